"""The comparison as a table, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.compare.registry import OURS, Library
from benchmarks.compare.rounds import Line
from benchmarks.table import digits, number
from benchmarks.table import into_page as replaced

BEGIN = "<!-- comparison: begin -->"
END = "<!-- comparison: end -->"
HEAD = ("Work", "Measured", "Library", "Ours", "Theirs", "Unit", "Ratio", "Ratio, min-max")
LEFT = frozenset({"Work", "Measured", "Library", "Unit"})
ABSENT = "-"


def report(lines: Sequence[Line], peers: Iterable[Library], where: Mapping[str, str], rounds: int) -> str:
    """Where and with what it was measured, the table, and what a reader should know of some lines."""
    head = "; ".join(f"{name} {value}" for name, value in where.items())
    measured = {(line.work, line.peer) for line in lines} | {(line.work, OURS.name) for line in lines}
    notes = [
        f"- {work}, {library.name}: {text}."
        for library in (OURS, *peers)
        for work, text in sorted({**library.notes, **library.absent}.items())
        if (work, library.name) in measured
    ]
    parts = [f"{head}; median of {rounds} rounds.", table(lines), "\n".join(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(lines: Iterable[Line]) -> str:
    """A Markdown table."""
    rows = [HEAD, *(row(line) for line in lines)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEAD))]
    rule = ["-" * width if name in LEFT else "-" * (width - 1) + ":" for name, width in zip(HEAD, widths, strict=True)]
    drawn = [padded(cells, widths) for cells in rows]
    drawn.insert(1, rule)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in drawn)


def padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The cells of a row, as wide as their columns."""
    return [
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for name, cell, width in zip(HEAD, cells, widths, strict=True)
    ]


def row(line: Line) -> tuple[str, ...]:
    """The cells of a line; a work that a library cannot do has dashes."""
    ratio = line.ratio
    return (
        line.work,
        line.text,
        line.peer,
        number(line.ours) or ABSENT,
        number(line.theirs) or ABSENT,
        line.unit,
        number(ratio) or ABSENT,
        ABSENT if ratio is None else f"{digits(ratio.low)}-{digits(ratio.high)}",
    )


def into_page(page: str, text: str) -> str:
    """A page with the comparison between its markers replaced.

    Raises:
        ValueError: The markers are not there once each, in order.
    """
    return replaced(page, text, BEGIN, END)
