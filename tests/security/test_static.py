"""Rules that hold of every line that is shipped, and of what it is built from; `.ci/run lint` asks the scanners."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.properties.checks import FULL
from tests.test_house import CORE, SHIPPED, called, imported, name_of, source

ROOT = Path(__file__).resolve().parents[2]

# The places that import a module by a name that is made while running: of constants of the module itself each.
BY_NAME = {
    "noetic_py/__init__.py",
    "noetic_py/cli/loading.py",
    "noetic_py/memory/layers/vectors.py",
    "noetic_py/plugins.py",
}
PARTS_OF_STATEMENTS = {
    "plugins/noetic-postgres/noetic_postgres/schema.py",
    "plugins/noetic-postgres/noetic_postgres/statements.py",
    "plugins/noetic-postgres/noetic_postgres/vector_schema.py",
}
STATEMENTS = {"execute", "executemany", "executescript", "execute_command", "eval_sha", "register_script"}


parsed = cache(source)


def dotted(node: ast.expr) -> str:
    """The name that is written there; only its last part where something else than a name stands before it."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """A million nodes; the garbage collector would look through them for the rest of the suite."""
    yield
    calls.cache_clear()
    parsed.cache_clear()


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Module, written name and node of every call that is shipped."""
    return [
        (name_of(path), dotted(node.func), node)
        for path in SHIPPED
        for node in parsed(path).nodes
        if isinstance(node, ast.Call)
    ]


def test_nothing_stored_is_imported_by_its_name() -> None:
    """Modules are imported by name only where the name is the library's own, an entry point's or the command line's."""
    places = {
        where
        for where, name, node in calls()
        if name.rpartition(".")[2] in {"import_module", "__import__", "load_module", "exec_module"}
        and not (node.args and isinstance(node.args[0], ast.Constant))
    }
    assert {
        place for place in places if "/codec/" in place or "/checkpoints/" in place or "/sessions/" in place
    } == set()
    assert places <= BY_NAME | {place for place in places if place.endswith("__init__.py")}


def test_no_code_is_made_of_text() -> None:
    bad = {"eval", "exec", "os.system", "os.popen", "pty.spawn", "subprocess.getoutput", "yaml.load"}
    assert [(where, name) for where, name, _ in calls() if name in bad] == []
    # A default value of a step is compiled to be compared, and never run.
    compiled = [where for where, name, _ in calls() if name == "compile"]
    assert compiled == ["noetic_py/engine/fingerprint.py"]
    shells = [
        where
        for where, _, node in calls()
        for each in node.keywords
        if each.arg == "shell" and not (isinstance(each.value, ast.Constant) and each.value.value is False)
    ]
    assert shells == []


def test_nothing_is_unpacked_that_may_grow_without_end() -> None:
    """Neither stored nor received bytes are decompressed; but for answers and documents, up to a limit; the one
    compressed file is the package's own."""
    modules = {"gzip", "lzma", "bz2", "zipfile", "tarfile", "zlib"}
    users = {
        name_of(path)
        for path in SHIPPED
        for _, name in imported(parsed(path))
        if name.partition(".")[0] in modules - {"zlib"}
    }
    callers = {where for where, name, _ in calls() if "decompress" in name}
    # What a provider sends is unpacked in pieces, up to a limit; a document in a process of its own, which has limits.
    documents = "plugins/noetic-documents/noetic_documents/convert.py"
    assert users | callers == {"noetic_py/core/tokens.py", "noetic_py/models/http.py", documents}


def test_no_statement_of_a_database_is_put_together_from_values() -> None:
    """What is executed is a constant or a name, never a text that a value was put into.

    PostgreSQL's schema is put in as an identifier, which psycopg quotes: a `format` of `psycopg.sql`.
    """
    put = [
        f"{where}:{node.lineno}"
        for where, _, node in calls()
        if isinstance(node.func, ast.Attribute) and node.func.attr in STATEMENTS and node.args
        if isinstance(node.args[0], ast.JoinedStr | ast.BinOp)
        if not _constants_only(node.args[0])
    ]
    assert put == []


def _constants_only(node: ast.expr) -> bool:
    """Whether what is put in are names in capitals, which are the module's own."""
    parts = [each.value for each in ast.walk(node) if isinstance(each, ast.FormattedValue)]
    return bool(parts) and all(isinstance(each, ast.Name) and each.id.isupper() for each in parts)


def test_no_template_reaches_attributes_of_values() -> None:
    """`format` is called on constants alone, so nobody's text can ask for `{user.__class__}`."""
    formats = [
        f"{where}:{node.lineno}"
        for where, _, node in calls()
        if isinstance(node.func, ast.Attribute) and node.func.attr in {"format", "format_map", "safe_substitute"}
        if not isinstance(node.func.value, ast.Constant)
        if not dotted(node.func.value).isupper()
        # Parts of statements, of psycopg.sql.
        if where not in PARTS_OF_STATEMENTS
    ]
    assert formats == []
    engines = {"jinja2", "mako", "chevron", "string.Template", "django"}
    assert [name_of(path) for path in SHIPPED for _, name in imported(parsed(path)) if name in engines] == []


def test_no_fixed_place_for_temporary_files() -> None:
    fixed = [
        f"{name_of(path)}:{node.lineno}"
        for path in SHIPPED
        for node in parsed(path).nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"/(tmp|var/tmp|dev/shm)\b", node.value)
    ]
    assert fixed == []
    assert [line for path in SHIPPED for line, name in called(parsed(path)) if name.endswith("mktemp")] == []


def test_the_core_opens_no_connection_and_starts_no_process() -> None:
    modules = {
        "socket",
        "ssl",
        "http",
        "urllib",
        "requests",
        "httpx",
        "aiohttp",
        "ftplib",
        "smtplib",
        "subprocess",
        "pty",
    }
    users = {
        (name_of(path), name)
        for path in CORE
        for _, name in imported(parsed(path))
        if name.partition(".")[0] in modules and name != "urllib.parse" and not name.startswith("urllib.parse.")
    }
    allowed = {
        # A pair of connected ends in this process, which wakes up what waits for a signal.
        ("noetic_py/runner/registry.py", "socket"),
        # `noetic demo` runs the commands of this package that it prints.
        ("noetic_py/cli/demo.py", "subprocess"),
    }
    assert {user for user in users if not user[0].startswith("noetic_py/testing/")} == allowed


def test_comparisons_of_signatures_are_left_to_their_library() -> None:
    """No checksum that anybody can make stands in for a signature, and none of the weak ones is used for a secret."""
    weak = {"hashlib.md5", "hashlib.sha1", "random.SystemRandom", "secrets.choice"}
    used = [(where, name) for where, name, node in calls() if name in weak and not _not_for_security(node)]
    assert used == []


def _not_for_security(node: ast.Call) -> bool:
    return any(each.arg == "usedforsecurity" for each in node.keywords)


# ------------------------------------------------------------------------------------------ supply chain


def test_every_dependency_is_locked_by_its_hash() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    for package in lock["package"]:
        if "registry" not in package["source"]:
            assert set(package["source"]) <= {"editable", "virtual"}, package["name"]
            continue
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files, package["name"]
        for each in files:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", each["hash"]), package["name"]
            assert each["url"].startswith("https://files.pythonhosted.org/"), package["name"]


def test_no_distribution_of_ours_runs_code_at_the_start_or_at_its_installation() -> None:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    bad = [name for name in names if name.endswith((".pth", ".so", ".pyd", ".pyc", ".dll")) or "sitecustomize" in name]
    bad += [name for name in names if name.endswith(("setup.py", "setup.cfg", "hatch_build.py"))]
    assert bad == []
    for path in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))
        assert project["build-system"]["requires"] == ["hatchling>=1.27"], path
        assert "hooks" not in project.get("tool", {}).get("hatch", {}).get("build", {})
        assert "entry-points" not in project["project"] or set(project["project"]["entry-points"]) <= {
            "noetic_py",
            "pytest11",
        }


@pytest.mark.skipif(not FULL, reason="the suite once more without asserts of the library: of the full set")
def test_the_library_works_without_asserts() -> None:
    """`python -O` takes every assert out; those of the tests are pytest's and stay."""
    files = [
        "tests/test_codec.py",
        "tests/test_items.py",
        "tests/test_log.py",
        "tests/test_budget.py",
        "tests/test_resume.py",
    ]
    files += ["tests/test_tools.py", "tests/test_steps_flow.py", "tests/test_bad_input.py", "tests/test_sessions.py"]
    command = [sys.executable, "-O", "-W", "ignore", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        [*command, "-W", "ignore::pytest.PytestConfigWarning"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1500, env=os.environ | {"NOETIC_EXAMPLES": "20"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
