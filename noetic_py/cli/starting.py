"""`noetic new`, `noetic plugins new` and `noetic examples`: files to start from."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from noetic_py.cli.demo import examples_folder
from noetic_py.cli.report import write_out
from noetic_py.errors import ConfigError

__all__ = ["example", "list_examples", "new_plugin", "new_project", "run_command"]

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PLACES = {"ci.yml": ".github/workflows/test.yml", "project.toml": "pyproject.toml"}
_USE = "use.py"
"""The program of a README, which is no file of the package."""
_IGNORED = ".noetic/\n.venv/\n__pycache__/\n"


def new_project(folder: Path) -> int:
    """Write a project with a flow, its test, a README and a CI file.

    Args:
        folder: Where it goes; its last part is the project's name.

    Returns:
        The exit code.

    Raises:
        ConfigError: The name is not a valid project name, or the folder is there already; code `"new-project"`.
    """
    _make(folder, "project", "noetic new my-agent", "noetic run flow.py 'When is high water in Dover?'")
    return 0


def new_plugin(folder: Path, kind: str) -> int:
    """Write a package with something to register, the plugin that registers it, its tests, a README and a CI file.

    Args:
        folder: Where it goes; its last part is the name of the package.
        kind: What it registers: a folder of the templates.

    Returns:
        The exit code.

    Raises:
        ConfigError: The name is not a valid name of a package, or the folder is there already; code `"new-project"`.
    """
    _make(folder, "plugin", "noetic plugins new my-notes", "pip install -e . pytest trio\npytest", kind)
    return 0


def _make(folder: Path, template: str, command: str, then: str, kind: str = "") -> None:
    name = folder.absolute().name
    module = re.sub(r"[^a-z0-9]+", "_", name.casefold())
    if not _NAME.fullmatch(name) or (template == "plugin" and (not module.isidentifier() or iskeyword(module))):
        raise ConfigError(
            f"{name!r} is not a valid {template} name; expected letters, digits, '-', '_' and '.'",
            code="new-project",
            hint=command,
        )
    source = examples_folder() / template
    values = {
        "@NAME@": name,
        "@MODULE@": module,
        # What registries take: letters, digits and dashes.
        "@PREFIX@": module.strip("_").replace("_", "-"),
        "@VERSION@": f">={version('noetic-py')}",
    }
    if kind:
        values = _of_kind(source / kind) | values
    files = {".gitignore": _IGNORED}
    for root in (source / "common", source / kind) if kind else (source,):
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc" and path.name != _USE:
                place = path.relative_to(root).as_posix()
                text = path.read_text(encoding="utf-8")
                for mark, value in values.items():
                    text = text.replace(mark, value)
                files[_PLACES.get(place, place).replace("package/", f"{module}/")] = text
    _write_all(folder, files)
    shown = ", ".join(sorted(files.keys() - {".gitignore"}))
    write_out(f"{folder}: {shown}\n\ncd {folder}\n{then}")


def _of_kind(source: Path) -> dict[str, str]:
    """What stands in the common files of a plugin for the marks that its kind decides; these hold marks themselves."""
    package = source / "package"
    imported = {name for path in package.glob("*.py") for name in _imported(path.read_text(encoding="utf-8"))}
    needs = ["noetic-py@VERSION@", *sorted(imported - sys.stdlib_module_names - {"noetic_py"})]
    return {
        "@WHAT@": f"{_first_line(package / '__init__.py')}.",
        "@USE@": (source / _USE).read_text(encoding="utf-8").strip(),
        "@NEEDS@": ", ".join(f'"{name}"' for name in needs),
    }


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"{folder} is not an empty folder", code="new-project", hint="name a folder that is not there yet"
        )
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _examples() -> dict[str, Path]:
    return {path.stem: path for path in sorted(examples_folder().glob("*.py"))}


def list_examples() -> int:
    """Print each example with what it shows, one a line.

    Returns:
        The exit code.
    """
    found = _examples()
    width = max(map(len, found), default=0)
    lines = [f"{name:<{width}}  {_first_line(path)}" for name, path in found.items()]
    write_out("\n".join([*lines, "", "noetic examples NAME writes one into the current folder"]))
    return 0


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].removesuffix(".")


def run_command(path: Path) -> str:
    """How an example is run: as its docstring says, and else by Python, after what it imports is installed."""
    text = path.read_text(encoding="utf-8")
    said = re.search(r"^ +(noetic run .*)$", text, re.MULTILINE)
    command = f"python {path.name}" if said is None else said[1].replace("examples/", "")
    missing = [name.replace("_", "-") for name in _imported(text) if find_spec(name) is None]
    return f"pip install {' '.join(missing)} && {command}" if missing else command


def _imported(text: str) -> list[str]:
    """The packages that a program imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return sorted({name.partition(".")[0] for name in names})


def example(name: str, folder: Path) -> int:
    """Write an example, and the files it reads, into a folder.

    Returns:
        The exit code.

    Raises:
        ConfigError: `name` is not the name of an example, or the folder has such a file; code `"example"`.
    """
    found = _examples()
    if name not in found:
        from noetic_py.core.diagnostics import nearest

        near = nearest(name, found)
        hint = f"did you mean {near!r}? " if near else ""
        raise ConfigError(
            f"{name!r} is not an example", code="example", hint=f"{hint}the examples are {', '.join(found)}"
        )
    parts = [found[name], *sorted(found[name].parent.glob(f"{name}.html"))]
    for path in parts:
        if (folder / path.name).exists():
            raise ConfigError(
                f"{folder / path.name} exists already", code="example", hint="go to another folder, or move the file"
            )
    for path in parts:
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    write_out(f"wrote {', '.join(path.name for path in parts)}; to run it: {run_command(found[name])}")
    return 0
