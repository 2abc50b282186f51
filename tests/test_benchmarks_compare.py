"""The comparison with other libraries, shown with small libraries made up here: nothing is downloaded."""

from __future__ import annotations

import ast
import json
import shlex
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import asdict, evolve

from benchmarks.compare.__main__ import PAGE, main
from benchmarks.compare.environments import STAMP, Failed, Stamp, fingerprint, prepare
from benchmarks.compare.processes import figures_in, measure
from benchmarks.compare.registry import FILES, OURS, PEERS, WORKS, Library
from benchmarks.compare.rounds import Line, Plan, compare
from benchmarks.compare.table import BEGIN, END, into_page, report, table
from benchmarks.measure import ROOT, Spread
from tests.properties.checks import FULL

PEER = """
import asyncio, os

assert not [name for name in os.environ if name.endswith("_API_KEY")]
print("hello from a library")


def w1(steps):
    async def run():
        return steps
    return run


def w2(branches):
    async def run():
        return len(await asyncio.gather(*[asyncio.sleep(0) for _ in range(branches)]))
    return run


def w3(steps, file):
    async def run():
        with open(file, "wb") as kept:
            kept.write(bytes(100 * steps))
        return steps
    return run


def w4(turns, stamp):
    async def run():
        for turn in range(turns + 1):
            sum(range(1_000))
            stamp()
        return turns
    return run


def w6():
    async def make(texts):
        return texts
    return make


def w7(runs, steps, seconds):
    async def run():
        await asyncio.sleep(seconds)
        return runs * steps
    return run


def w8(turns, file):
    async def run():
        return 2 * turns
    return run
"""
CURIOUS = """
import socket


def w1(steps):
    async def run():
        try:
            socket.create_connection(("127.0.0.1", 9))
        except Exception:
            pass
        return steps
    return run
"""
BROKEN = {
    "raises": 'raise ImportError("no such thing in this library")',
    "idle": "def w1(steps):\n    async def run():\n        return steps - 1\n    return run",
    "curious": CURIOUS,
    "silent": "import os\nos._exit(0)",
    "stuck": "import threading\nthreading.Event().wait()",
}
SAID = {
    "raises": "ImportError: no such thing in this library",
    "idle": "1 were done, not 2",
    "curious": "a connection to ('127.0.0.1', 9) was tried",
    "silent": "printed no figures",
    "stuck": "not finished after",
}


def library(folder: Path, name: str, source: str, packages: tuple[str, ...] = ()) -> Library:
    """A library of our own making."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return Library(name, packages or (name,), "import json", dict.fromkeys(WORKS, name), folder=folder)


@pytest.fixture
def peer(tmp_path: Path) -> Library:
    return library(tmp_path, "small", PEER)


@pytest.mark.parametrize("work", WORKS if FULL else ["W3", "W8"])
def test_ours_does_every_work(work: str) -> None:
    check(work, measure(OURS, sys.executable, work, 4))


@pytest.mark.parametrize("work", WORKS)
def test_a_process_measures_a_file_by_its_path(work: str, peer: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    check(work, measure(peer, sys.executable, work, 4))


def check(work: str, figures: Mapping[str, float]) -> None:
    assert set(figures) == {shown.figure for shown in WORKS[work].shown}
    assert all(value > 0 for value in figures.values())


@pytest.mark.parametrize("name", BROKEN)
def test_what_goes_wrong_in_a_process_is_said(name: str, tmp_path: Path) -> None:
    broken = library(tmp_path, name, BROKEN[name])
    with pytest.raises(Failed) as caught:
        measure(broken, sys.executable, "W1", 4, minutes=0.02 if name == "stuck" else 1)
    assert str(caught.value).startswith(f"{name}, W1: ")
    assert SAID[name] in str(caught.value)


@pytest.mark.parametrize("printed", ["", "1", "[]", "{}", '{"work": "W2", "figures": {}}', '{"figures": {"a": "b"}}'])
def test_only_figures_are_taken_as_figures(printed: str) -> None:
    with pytest.raises(Failed, match="printed no figures"):
        figures_in(printed, "small", "W1")


def test_the_last_line_counts() -> None:
    assert figures_in('noise\n{"work": "W1", "figures": {"a": 1}}\n', "small", "W1") == {"a": 1.0}


def test_ours_and_the_others_take_turns(peer: Library) -> None:
    other = evolve(peer, name="other", sizes={"W2": 10})
    calls: list[tuple[str, str, int]] = []

    def figures(each: Library, work: str, size: int) -> dict[str, float]:
        calls.append((each.name, work, size))
        seconds = {OURS.name: 2e-6, "small": 4e-6, "other": 1e-6}[each.name]
        return {"branch": seconds * len(calls)}

    outcome = compare(Plan(["W2"], [peer, other], rounds=3), figures)
    assert calls == [(OURS.name, "W2", 1_000), ("small", "W2", 1_000), (OURS.name, "W2", 10), ("other", "W2", 10)] * 3
    assert outcome.failures == {}
    first, second = outcome.lines
    assert (first.peer, first.unit, first.text) == ("small", "µs", "a branch of 1,000 parallel ones, joined")
    assert (second.peer, second.text) == ("other", "a branch of 10 parallel ones, joined")
    assert values(first.ours) == pytest.approx((10, 2, 18))
    assert values(first.theirs) == pytest.approx((24, 8, 40))
    assert values(first.ratio) == pytest.approx((2.4, 40 / 18, 4))
    assert first.rounds.ours == pytest.approx([2e-6, 1e-5, 1.8e-5])


def values(spread: Spread | None) -> tuple[float, float, float]:
    assert spread is not None
    return spread.median, spread.low, spread.high


def test_a_library_that_fails_is_left_out_and_what_it_said_is_kept(peer: Library) -> None:
    worse = evolve(peer, name="worse")
    asked: list[tuple[str, str]] = []

    def figures(each: Library, work: str, size: int) -> dict[str, float]:
        asked.append((each.name, work))
        if each.name == "worse" and work == "W6":
            raise Failed("worse, W6: it broke")
        return {shown.figure: 1.0 for shown in WORKS[work].shown}

    outcome = compare(Plan(["W5", "W6", "W7"], [worse, peer], rounds=2), figures)
    assert outcome.failures == {"worse": "worse, W6: it broke"}
    assert {line.peer for line in outcome.lines} == {"small"}
    assert asked.count(("worse", "W6")) == 1
    assert ("worse", "W7") not in asked
    before = compare(Plan(["W5"], [worse, peer], rounds=1), figures, {"worse": "not installed"})
    assert before.failures == {"worse": "not installed"}
    assert asked.count(("worse", "W5")) == 2


def test_ours_must_not_fail(peer: Library) -> None:
    def figures(each: Library, work: str, size: int) -> dict[str, float]:
        raise Failed(f"{each.name} broke")

    with pytest.raises(Failed, match="noetic-py broke"):
        compare(Plan(["W5"], [peer], rounds=1), figures)


def test_a_work_that_a_library_cannot_do_has_dashes_and_a_reason(peer: Library) -> None:
    without = evolve(peer, absent={"W5": "it cannot be imported"})

    def figures(each: Library, work: str, size: int) -> dict[str, float]:
        raise AssertionError("nothing is measured")

    outcome = compare(Plan(["W5"], [without], rounds=2), figures)
    text = report(outcome.lines, [without], {"Python": "3"}, 2)
    assert text.startswith("Python 3; median of 2 rounds.\n\n| Work")
    cells = [cell.strip() for cell in text.splitlines()[4].strip("|").split("|")]
    assert cells == ["W5", "importing what a first program needs", "small", "-", "-", "ms", "-", "-"]
    assert text.endswith("\n\n- W5, small: it cannot be imported.\n")


def test_the_table_is_markdown_and_notes_belong_to_its_lines(peer: Library) -> None:
    spread = Spread(2.0, 1.5, 3.0)
    lines = [Line("W6", "a name", "small", "KB", spread, spread, spread), Line("W7", "b", "small", "s, wall")]
    drawn = table(lines).splitlines()
    assert len({len(line) for line in drawn}) == 1
    assert [cell.strip() for cell in drawn[2].strip("|").split("|")] == [
        "W6", "a name", "small", "2.00", "2.00", "KB", "2.00", "1.50-3.00",
    ]  # fmt: skip
    noted = evolve(peer, notes={"W6": "as bytes", "W1": "not measured here"})
    text = report(lines, [noted], {}, 1)
    assert f"- W6, noetic-py: {OURS.notes['W6']}." in text
    assert text.endswith("- W6, small: as bytes.\n")


def test_the_comparison_goes_between_its_markers_of_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    once = into_page(page, "| new |")
    assert f"{BEGIN}\n\n| new |\n\n{END}" in once
    assert into_page(once, "| new |") == once
    assert once.partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert once.partition(END)[2] == page.partition(END)[2]
    for broken in ("no markers", BEGIN, f"{page}{BEGIN}"):
        with pytest.raises(ValueError, match="comparison"):
            into_page(broken, "")


@pytest.mark.parametrize("name", [OURS.name, *PEERS])
def test_every_library_has_a_function_for_every_work(name: str) -> None:
    each = OURS if name == OURS.name else PEERS[name]
    for work in set(WORKS) - {"W5"} - set(each.absent):
        tree = ast.parse((FILES / f"{each.files[work]}.py").read_text(encoding="utf-8"))
        assert work.lower() in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    ast.parse(each.hello)


# ---------------------------------------------------------------------------------------------------------- the command


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Environments that were made before: each is this interpreter."""
    folder = tmp_path / "cache"
    made(folder, OURS.name, Stamp(fingerprint(ROOT), versions={OURS.name: "0"}))
    made(folder, "small", Stamp("small", versions={"small": "1.2"}))
    made(folder, "raises", Stamp("raises", versions={"raises": "3.4"}))
    return folder


def made(cache: Path, name: str, stamp: Stamp) -> None:
    python = cache / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (cache / name / STAMP).write_text(json.dumps(asdict(stamp)), encoding="utf-8")


def test_the_command_prints_the_table_and_writes_json(
    cache: Path, peer: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "found.json"
    arguments = ["w1", "W6", "--peers", "small", "--rounds", "1", "--scale", "0.001"]
    assert main([*arguments, "--cache", str(cache), "--json", str(target)], {"small": peer}) == 0
    head, _, rest = capsys.readouterr().out.partition("\n\n")
    assert "packages noetic-py 0, small 1.2; median of 1 rounds." in head
    assert all(word in head for word in ("date", "commit", "Python", "cores"))
    found = json.loads(target.read_text(encoding="utf-8"))
    assert set(found) == {"environment", "lines", "failed"}
    assert [line["work"] for line in found["lines"]] == ["W1", "W1", "W6"]
    assert rest.count("| small") == 3
    for line in found["lines"]:
        assert len(line["rounds"]["ours"]) == len(line["rounds"]["peer"]) == 1
        assert 0 < line["ratio"]["low"] <= line["ratio"]["median"] <= line["ratio"]["high"]


def test_the_command_fails_with_what_a_library_said(
    cache: Path, peer: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = library(tmp_path, "raises", BROKEN["raises"])
    peers = {"raises": broken, "small": peer}
    arguments = ["W1", "--rounds", "1", "--scale", "0.001", "--cache", str(cache)]
    assert main(arguments, peers) == 1
    said = capsys.readouterr()
    assert "no such thing in this library" in said.err
    assert "| small" in said.out
    assert "| raises" not in said.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["W9"],
        ["--peers", "nobody"],
        ["--peers", ""],
        ["--rounds", "0"],
        ["--scale", "0"],
        ["W1", "--docs"],
        ["--peers", "langgraph", "--docs"],
        ["--scale", "0.5", "--docs"],
    ],
)
def test_the_command_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("usage:")


# ----------------------------------------------------------------------------------------------------- the environments


@pytest.mark.slow
def test_an_environment_is_made_once_and_made_anew_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheel(wheels, "smallest", "1.5")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    small = library(tmp_path, "small", PEER, ("smallest",))
    cache = tmp_path / "cache"
    first = prepare(small, cache)
    assert first.versions == {"smallest": "1.5"}
    check("W1", measure(small, first.python, "W1", 4))
    wheel(wheels, "smallest", "1.6")
    assert prepare(small, cache) == first
    if FULL:
        assert prepare(small, cache, upgrade=True).versions == {"smallest": "1.6"}
    with pytest.raises(Failed, match=r"small could not be installed:\n(.|\n)*no-such-package"):
        prepare(evolve(small, packages=("no-such-package",)), cache)
    assert not (cache / "small" / STAMP).exists()
    # It takes half a minute to make one, and without its stamp it is made like the first one.
    if FULL:
        assert prepare(small, cache).versions == {"smallest": "1.6"}


def wheel(folder: Path, name: str, version: str) -> None:
    """A package with nothing in it."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_a_stamp_of_other_sources_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "noetic_py").mkdir()
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    empty = fingerprint(tmp_path)
    (tmp_path / "noetic_py" / "module.py").write_text("a = 1", encoding="utf-8")
    one = fingerprint(tmp_path)
    (tmp_path / "noetic_py" / "module.py").write_text("a = 2", encoding="utf-8")
    assert len({empty, one, fingerprint(tmp_path)}) == 3


def test_no_lines_are_still_a_table() -> None:
    assert report([], [], {"Python": "3"}, 1).splitlines()[2].startswith("| Work")
