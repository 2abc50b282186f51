"""What the command line gives a beginner: the demo, a project, the examples, and what is wrong with an installation."""

from __future__ import annotations

import io
import os
import re
import runpy
import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import NamedTuple, get_args
from zipfile import ZipFile

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.cli.app import PluginKind
from noetic_py.cli.display import PlainDisplay
from noetic_py.cli.record_lines import written
from noetic_py.cli.starting import run_command
from noetic_py.core.codec import Codec
from noetic_py.core.events import StepCommitted, StepStarted
from noetic_py.errors import ConfigError
from tests.cli_shell import ROOT, TIMEOUT, Inside, Shell, environment, posix
from tests.properties.checks import FULL
from tests.test_typing import INSIDE


@posix
@pytest.mark.slow
def test_the_demo_repeats_nothing_that_had_finished(shell: Shell) -> None:
    demo = shell.start("demo", stderr=subprocess.STDOUT, PYTHONUNBUFFERED="1")
    printed = demo.communicate(timeout=TIMEOUT)[0].decode()
    assert demo.returncode == 0, printed
    diary = (shell.folder / "noetic-demo" / "bodies.log").read_text().splitlines()
    ran = [line.partition(" ")[2] for line in diary]
    # The first process, the one that waits for the approval, and the one that ends the run.
    assert len({line.partition(" ")[0] for line in diary}) == 3
    assert "  model                  2 in process 1, 1 in process 2, 1 in process 3\n" in printed
    assert {line: ran.count(line) for line in ran} == {
        "model": 4,
        "tool tide Dover": 1,
        "tool tide Calais": 1,
        "step measure Dover": 1,
        "step measure Calais": 1,
        "step measure Hull": 1,
        # The process died while this body was at work.
        "step measure Ostend": 2,
        "step measure Brest": 1,
        "step measure Cadiz": 1,
        "tool book Calais": 1,
    }
    assert "suspended (waits for approval of book" in printed
    assert "booked from Calais for 240 euros" in printed
    pictures = ROOT / "docs" / "pictures"
    drawn = runpy.run_path(str(pictures / "draw.py"))["demo"](printed).svg()
    assert drawn == (pictures / "demo.svg").read_text(encoding="utf-8"), "python docs/pictures/draw.py draws it anew"
    again = shell.run("demo")
    assert again.returncode == 2
    assert again.stderr.splitlines() == [
        "error: noetic-demo is not an empty folder",
        "  try: rm -r noetic-demo, or name another folder",
    ]


def test_a_demo_that_cannot_go_on_says_so(inside: Inside) -> None:
    done = inside.run("demo", NOETIC_PLUGINS="no-such-plugin")
    assert done.returncode == 1
    assert "the demo stops here: the command ended with exit code" in done.stderr


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy knows of the library: reading it takes nearly all of its time, and is the same for each new project."""
    return tmp_path_factory.mktemp("mypy")


def check(project: Path, cache: Path, *style: str) -> None:
    """Check the types and the style of a new project, as its author does; the style of some folders in it if named."""
    folders = style or (".",)
    # Reading what the library's plugins use takes mypy five sixths of its time.
    with (project / "pyproject.toml").open("a") as settings:
        settings.write(
            f'[[tool.mypy.overrides]]\nmodule = {[f"{name}.*" for name in INSIDE]}\nfollow_imports = "skip"\n'
            # And the bodies of the library's own functions, which are not the project's.
            '[[tool.mypy.overrides]]\nmodule = "noetic_py.*"\nignore_errors = true\n'
        )
    kept = environment(MYPY_CACHE_DIR=str(cache))
    for tool in (["mypy"], ["ruff", "check", *folders], ["ruff", "format", "--check", *folders]):
        command = [sys.executable, "-m", *tool]
        checked = subprocess.run(command, cwd=project, env=kept, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_a_new_project_runs_and_its_tests_pass(shell: Shell, mypy_cache: Path) -> None:
    done = shell.run("new", "my-agent")
    assert done.returncode == 0, done.stderr
    project = shell.folder / "my-agent"
    assert (project / ".github" / "workflows" / "test.yml").is_file()
    assert 'name = "my-agent"' in (project / "pyproject.toml").read_text()
    assert "@" not in (project / "pyproject.toml").read_text() + (project / "README.md").read_text()
    shell.folder = project
    ran = shell.run("run", "flow.py", "When is high water in Dover?")
    assert (ran.returncode, "High water in Dover" in ran.stdout) == (0, True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tested = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "4 passed" in tested.stdout
    check(project, mypy_cache)


@pytest.mark.slow
def test_a_new_plugin_is_built_installed_and_passes_the_contract(
    shell: Shell, mypy_cache: Path, tmp_path: Path
) -> None:
    done = shell.run("plugins", "new", "Tide-notes")
    assert done.returncode == 0, done.stderr
    project = shell.folder / "Tide-notes"
    written = [path for path in project.rglob("*") if path.is_file()]
    assert not [path for path in written if re.search("@[A-Z]+@", path.read_text())]

    def run(*command: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=project,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    assert "passed" in run("pytest", "-q", "-p", "no:cacheprovider")
    check(project, mypy_cache)
    # As an index would serve it, in a folder of its own.
    run("uv", "build", "-q", "--wheel", "--no-build-isolation", "-o", str(tmp_path / "dist"))
    (wheel,) = (tmp_path / "dist").glob("tide_notes-*.whl")
    with ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    shell.folder = tmp_path
    listed = shell.run("plugins", PYTHONPATH=str(tmp_path / "installed"))
    assert "Tide-notes 0.1.0" in listed.stdout, listed.stdout + listed.stderr


# The plugin that the test above builds has a layer.
OTHER_KINDS = sorted({*get_args(PluginKind)} - {"layer"})


def test_each_kind_of_plugin_has_a_template() -> None:
    found = {path.name for path in (ROOT / "examples" / "plugin").iterdir() if (path / "package").is_dir()}
    assert found == {*get_args(PluginKind), "common"}


@pytest.mark.slow
def test_new_plugins_of_the_other_kinds_pass_their_contracts(inside: Inside, mypy_cache: Path) -> None:
    root = inside.folder
    packages = {kind: f"tide_my_{kind.replace('-', '_')}" for kind in OTHER_KINDS}
    for kind in OTHER_KINDS:
        # A name that neither a package nor a registry can have as it is.
        done = inside.run("plugins", "new", f"Tide.my-{kind}", "--kind", kind)
        assert (done.returncode, done.stderr) == (0, "")
    assert not [path for path in root.rglob("*.*") if path.is_file() and re.search("@[A-Z]+@", path.read_text())]
    assert '"noetic-py>=' in (root / "Tide.my-model" / "pyproject.toml").read_text()
    assert ', "httpx2"]' in (root / "Tide.my-model" / "pyproject.toml").read_text()
    loading = "\n\n".join(
        f"def test_{name}() -> None:\n    from {name} import plugin\n\n    Harness(plugins=[plugin])\n"
        for name in packages.values()
    )
    inside.write(f"from noetic_py import Harness\n\n{loading}", "test_loading.py")
    files = [f"Tide.my-{kind}/{name}" for kind, name in packages.items()]
    (root / "pyproject.toml").write_text(f"[tool.mypy]\nstrict = true\nfiles = {files}\n", encoding="utf-8")
    check(root, mypy_cache, *[f"Tide.my-{kind}" for kind in OTHER_KINDS])
    # In one process, on one loop, and without what takes long; of the backend, which is the one in memory, a part.
    some = [] if FULL else ["-k", "not asyncio and not any_event and (not TestStore or lease)"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *some, "."]
    path = os.pathsep.join([str(ROOT), *[str(root / f"Tide.my-{kind}") for kind in OTHER_KINDS]])
    tested = subprocess.run(
        command, cwd=root, env=environment(PYTHONPATH=path), capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout


TIDE_COMMANDS = """
import typer

app = typer.Typer()

@app.command()
def height(port: str, feet: bool = False):
    "Print the height of high water."
    typer.echo(f"{port}: {'22.6 ft' if feet else '6.9 m'}")
"""


def test_packages_add_commands_and_a_broken_one_leaves_the_others_working(shell: Shell) -> None:
    for name, text, added in [
        ("tides", TIDE_COMMANDS, "height = tides:app"),
        ("zz_again", TIDE_COMMANDS, "height = zz_again:app\nruns = zz_again:app"),
        ("broken", "import no_such_module", "ebb = broken:app"),
        ("lost", "app = dict()", "lost = lost:app"),
    ]:
        (shell.folder / f"{name}.py").write_text(text)
        info = shell.folder / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[noetic_py.commands]\n{added}\n")
    path = os.pathsep.join([str(shell.folder), str(ROOT)])
    ran = shell.run("height", "Brest", "--feet", PYTHONPATH=path)
    problems = [
        "error: tides 1 and zz_again 1 both add the command 'height'",
        "error: zz_again 1 adds the command 'runs', which noetic has itself",
    ]
    assert (ran.returncode, ran.stdout, errors_of(ran)) == (0, "Brest: 22.6 ft\n", problems)
    helped = shell.run("--help", PYTHONPATH=path)
    assert helped.returncode == 0
    assert "  height     Print the height of high water.\n" in helped.stdout
    assert "  runs       List the stored runs" in helped.stdout
    assert "  lost" not in helped.stdout
    assert errors_of(helped) == [
        *problems,
        "error: the command 'ebb' of broken 1 failed to load: ModuleNotFoundError: No module named 'no_such_module'",
        "error: lost 1 gives dict as the command 'lost'; expected a typer.Typer",
    ]
    # What is not asked for costs nothing, and says nothing.
    assert shell.run("runs", PYTHONPATH=path).stderr == shell.run("runs").stderr
    unknown = shell.run("heigth", PYTHONPATH=path)
    assert (unknown.returncode, "No such command 'heigth'" in unknown.stderr) == (2, True)


def errors_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def test_the_help_imports_nothing_of_the_engine() -> None:
    program = (
        "import sys\nfrom noetic_py.cli import main\nsys.argv = ['noetic', '--help']\nmain()\n"
        "print(sorted(name for name in sys.modules if name.startswith('noetic_py')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    names = ["noetic_py", "noetic_py.cli", "noetic_py.cli.app", "noetic_py.cli.plugin_commands"]
    assert done.stderr.strip() == str(names)


@pytest.mark.parametrize("name", ["a b", "2notes", "class"])
def test_a_plugin_name_that_cannot_be_imported(inside: Inside, name: str) -> None:
    done = inside.run("plugins", "new", name)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"error: {name!r} is not a valid plugin name; expected letters, digits, '-', '_' and '.'",
            "  try: noetic plugins new my-notes",
        ],
    )
    assert not list(inside.folder.iterdir())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a b", "'a b' is not a valid project name; expected letters, digits, '-', '_' and '.'"),
        ("full", "full is not an empty folder"),
    ],
)
def test_a_project_that_cannot_be_made(inside: Inside, name: str, says: str) -> None:
    (inside.folder / "full").mkdir()
    inside.write("", "full/flow.py")
    before = sorted(inside.folder.rglob("*"))
    done = inside.run("new", name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {says}\n  try: ")
    assert sorted(inside.folder.rglob("*")) == before


def test_examples_are_listed_and_written(inside: Inside) -> None:
    listed = inside.run("examples")
    names = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert {line.split()[0] for line in listed.stdout.splitlines()[:-2]} == names
    assert inside.run("examples", "web_form").returncode == 0
    assert (inside.folder / "web_form.py").read_text() == (ROOT / "examples" / "web_form.py").read_text()
    assert (inside.folder / "web_form.html").is_file()
    (inside.folder / "web_form.py").write_text("mine")
    again = inside.run("examples", "web_form")
    assert (again.returncode, again.stderr.splitlines()[0]) == (2, "error: web_form.py exists already")
    assert (inside.folder / "web_form.py").read_text() == "mine"
    wrong = inside.run("examples", "budgets")
    assert (wrong.returncode, "did you mean 'budget'?" in wrong.stderr) == (2, True)


def test_an_example_says_what_to_install_first(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import anyio\nfrom no_such_package.part import name\n", encoding="utf-8")
    assert run_command(program) == "pip install no-such-package && python program.py"
    program.write_text("import anyio\n", encoding="utf-8")
    assert run_command(program) == "python program.py"


def test_the_doctor_finds_what_works(inside: Inside) -> None:
    done = inside.run("doctor", OPENAI_API_KEY="", NOETIC_PLUGINS="openai,local")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok      Python") for line in lines)
    assert "ok      model      local:..." in lines
    assert "note    model      openai:... needs an API key" in lines
    assert "ok      runs       no database yet; noetic run FILE makes .noetic/runs.db" in lines
    ready = inside.run("doctor", OPENAI_API_KEY="a key", NOETIC_PLUGINS="openai")
    assert "ok      model      openai:..." in ready.stdout.splitlines()
    assert "a key" not in ready.stdout


def test_the_doctor_finds_what_does_not_work(inside: Inside) -> None:
    broken = inside.run("doctor", NOETIC_PLUGINS="no-such-plugin")
    assert broken.returncode == 1
    assert "failed  plugins    'no-such-plugin' is not installed" in broken.stdout.replace("plugin 'no", "'no")
    (inside.folder / "runs.db").write_text("no database" * 100)
    damaged = inside.run("doctor", "--db", "runs.db", NOETIC_PLUGINS="")
    assert damaged.returncode == 1
    assert "failed  runs       runs.db: " in damaged.stdout


def test_progress_without_a_terminal_is_never_silent() -> None:
    now, stream = [0.0], io.StringIO()
    display = PlainDisplay(stream, lambda: now[0])
    display.start()
    display.event(StepStarted(("survey",), "parallel", 1))
    for index in range(90):
        display.event(StepStarted(("survey", f"measure[{index}]"), "code", 1))
        display.event(StepCommitted(("survey", f"measure[{index}]"), "code", index))
    for index in range(90, 93):
        display.event(StepStarted(("survey", f"measure[{index}]"), "code", 1))
    now[0] = 4.0
    display.tick()
    assert "working" not in stream.getvalue()
    now[0] = 5.5
    display.tick()
    display.tick()
    assert stream.getvalue().splitlines()[-1] == "    5.50 s  working  survey/measure: 90 done, 3 running"
    assert stream.getvalue().count("working") == 1


TAGS = st.sampled_from(["$", "v", "t", "m", "object:X", "other"]) | st.text()


class Colour(Enum):
    RED = "red"


class Place(NamedTuple):
    port: str


@frozen
class Trip:
    to: Place
    by: Colour


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Trip(Place("Brest"), Colour.RED), 'Trip(to=Place(port="Brest"), by=Colour("red"))'),
        ({1: (2,), "$": {3}}, '{1: (2,), "$": {3}}'),
        ([set[int](), b"a\xff", Decimal("1.50"), None, "ä"], "[set(), b'a\\xff', 1.50, null, \"ä\"]"),
        ([date(2020, 1, 2), timedelta(days=2), Path("x/y")], "[2020-01-02, 2 days, 0:00:00, x/y]"),
        (ConfigError("no model", code="model"), "ConfigError: no model"),
        # What no codec writes is shown as it is.
        ({"a": 1, "b": [2]}, '{"a": 1, "b": [2]}'),
    ],
)
def test_values_are_shown_as_people_write_them(value: object, shown: str) -> None:
    assert written(Codec([Trip, Place, Colour]).encode(value)) == shown


@given(st.recursive(st.none() | st.integers() | st.text(), lambda part: st.lists(part) | st.dictionaries(TAGS, part)))
def test_an_edited_value_is_shown_and_raises_nothing(tree: object) -> None:
    assert isinstance(written(tree), str)
