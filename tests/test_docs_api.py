"""The pages of the API describe every public name of the package root, each at one place, and the guide each option."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from typer.main import get_command

import noetic_py
from noetic_py.cli.app import app
from tests.public_names import public_names

PAGES = Path(__file__).resolve().parent.parent / "docs" / "api"
BLOCK = re.compile(r"^::: (\S+)\n((?: .*\n|\n(?= ))*)", re.MULTILINE)
MEMBERS = re.compile(r"members:(?: \[(.*)\]|((?:\n +- \w+)+))")


def described() -> list[tuple[str, list[str] | None]]:
    """The modules of the pages, and the members that are picked from each; None for all of its public names."""
    found: list[tuple[str, list[str] | None]] = []
    for page in sorted(PAGES.glob("*.md")):
        for module, options in BLOCK.findall(page.read_text(encoding="utf-8") + "\n"):
            members = MEMBERS.search(options)
            found.append((module, re.findall(r"\w+", f"{members[1] or ''}{members[2] or ''}") if members else None))
    return found


def test_every_public_name_of_the_root_is_on_a_page() -> None:
    grouped = [name for module, members in described() if module == "noetic_py" for name in members or ()]
    assert len(grouped) == len(set(grouped))
    elsewhere = {
        name
        for module, members in described()
        if module != "noetic_py" and not module.endswith(".Hooks")
        for name in members or public_names(import_module(module))
    }
    names = {name for name in noetic_py.__all__ if not isinstance(getattr(noetic_py, name), ModuleType)}
    assert names - set(grouped) - elsewhere == set()
    assert set(grouped) <= names


def test_the_list_of_the_api_names_every_public_name() -> None:
    text = (PAGES / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(\w+)`", text))
    assert set(noetic_py.__all__) - listed - {"errors", "hooks", "memory"} == set()
    linked = set(re.findall(r"\((\w+)\.md\)", text))
    assert {page.stem for page in PAGES.glob("*.md")} - linked == {"index"}


def test_the_guide_of_the_command_names_every_command_and_option() -> None:
    guide = (PAGES.parent / "guides" / "cli.md").read_text(encoding="utf-8")
    left, named = [("noetic", get_command(app))], [""]
    for name, command in left:
        named += [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        inner = getattr(command, "commands", {})
        named += [] if inner else [name]
        left += [(f"{name} {word}", each) for word, each in inner.items()]
    assert len(named) > 100
    assert [each for each in named if each not in guide] == []
