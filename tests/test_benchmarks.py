"""The benchmarks run and give figures of the right shape; how long anything takes is not looked at here."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from attrs import evolve

from benchmarks import w1_steps
from benchmarks.__main__ import PAGE, WORKS, history_line, main
from benchmarks.measure import Figure, Plan, Spread, compare, take_turns
from benchmarks.table import BEGIN, END, digits, into_page, report, table
from benchmarks.untraced import untraced
from noetic_py import Harness
from tests.properties.checks import FULL

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

TINY = Plan(rounds=1, scale=0.02)
TRIED = WORKS if FULL else ("W1", "W7", "W8")
"""In the sample one that runs on both loops, one that stores and one of sessions; the command below runs W0."""


@pytest.mark.parametrize("work", TRIED)
def test_a_work_gives_figures(work: str) -> None:
    figures = WORKS[work](TINY)
    assert {figure.work for figure in figures} == {work}
    assert len({figure.name for figure in figures}) == len(figures)
    assert any(figure.met is not None for figure in figures)
    for figure in figures:
        assert figure.rounds == 1
        for spread in (figure.baseline, figure.ours, figure.ratio):
            assert spread is not None
            assert math.isfinite(spread.median)
            assert 0 < spread.low <= spread.median <= spread.high


def test_without_telemetry_nothing_asks_whether_something_records(spans: InMemorySpanExporter) -> None:
    async def work() -> list[str]:
        async with Harness(plugins=[]) as harness:
            await harness.run(w1_steps.SAME, 1)
        return [span.name for span in spans.get_finished_spans()]

    with untraced():
        assert anyio.run(work) == []
    assert anyio.run(work) == ["code same", "invoke_workflow same"]


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figures.json"
    assert main(["w0", "--rounds", "2", "--scale", "0.01", "--json", str(target)]) == 0
    head, _, lines = capsys.readouterr().out.partition("\n\n")
    assert "median of 2 rounds" in head
    assert all(word in head for word in ("commit", "Python", "cores", "anyio", "date"))
    found = json.loads(target.read_text(encoding="utf-8"))
    assert set(found) == {"environment", "figures"}
    assert len(found["figures"]) == len(lines.splitlines()) - 2
    assert {"work", "name", "unit", "ours", "baseline", "ratio", "target", "met"} <= set(found["figures"][0])


@pytest.mark.parametrize(
    "arguments", [["W99"], ["--rounds", "0"], ["--scale", "0"], ["W1", "--docs"], ["--scale", "0.5", "--docs"]]
)
def test_the_command_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("usage:")


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = take_turns({"a": lambda: side("a"), "b": lambda: side("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_ratio_is_taken_within_a_round() -> None:
    figure = compare("W1", "n", [1.0, 2.0, 4.0], [2.0, 6.0, 8.0], unit="ms", factor=1e3, target=2.0)
    assert figure.ratio == Spread(2.0, 2.0, 3.0)
    assert figure.ours == Spread(6000.0, 2000.0, 8000.0)
    assert figure.met is True
    assert evolve(figure, target=1.9).met is False
    assert evolve(figure, target=None).met is None
    assert evolve(figure, target=5000.0, judged="ours").met is False


def test_the_table_is_markdown() -> None:
    spread = Spread(1.0, 0.5, 2.0)
    figures = [
        Figure("W1", "a name", "µs", spread, spread, spread, 0.5, rounds=3),
        Figure("W4", "b", "ms", spread, target=2.0, judged="ours"),
    ]
    lines = table(figures).splitlines()
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[2] == ["W1", "a name", "1.00", "1.00", "µs", "1.00", "0.500-2.00", "≤ 0.5", "**no**"]
    assert cells[3] == ["W4", "b", "", "1.00", "ms", "", "", "≤ 2 ms", "yes"]
    assert report(figures, {"Python": "3"}).startswith("Python 3; median of 3 rounds.\n\n| Work")


def test_the_history_keeps_the_medians() -> None:
    figure = Figure("W1", "a name", "µs", Spread(1.5, 0.5, 2.0), Spread(1.0, 0.5, 2.0), Spread(1.5, 1.0, 2.0))
    alone = Figure("W4", "b", "ms", Spread(3.0, 3.0, 3.0))
    line = history_line([figure, alone], {"commit": "c", "load": "1.0"})
    assert line.endswith("\n")
    assert json.loads(line) == {
        "commit": "c",
        "load": "1.0",
        "figures": {
            "W1 a name": {"unit": "µs", "baseline": 1.0, "ours": 1.5, "ratio": 1.5},
            "W4 b": {"unit": "ms", "baseline": None, "ours": 3.0, "ratio": None},
        },
    }


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (56.78, "56.8"), (5.678, "5.68"), (0.5678, "0.568"), (0.056781, "0.0568")]
)
def test_three_digits(value: float, text: str) -> None:
    assert digits(value) == text


def test_figures_go_between_the_markers_of_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    once = into_page(page, "| new |")
    assert f"{BEGIN}\n\n| new |\n\n{END}" in once
    assert into_page(once, "| new |") == once
    assert once.partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert once.partition(END)[2] == page.partition(END)[2]
    for broken in ("no markers", BEGIN, f"{page}{BEGIN}"):
        with pytest.raises(ValueError, match="figures"):
            into_page(broken, "")
