"""Figures as a table: the same Markdown for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.measure import Figure, Spread

BEGIN = "<!-- figures: begin -->"
END = "<!-- figures: end -->"
HEAD = ("Work", "Measured", "Baseline", "Ours", "Unit", "Ratio", "Ratio, min-max", "Target", "Met")
LEFT = frozenset({"Work", "Measured", "Unit", "Met"})


def report(figures: Sequence[Figure], environment: Mapping[str, str]) -> str:
    """Where it was measured, and the table."""
    where = "; ".join(f"{name} {value}" for name, value in environment.items())
    rounds = figures[0].rounds if figures else 0
    return f"{where}; median of {rounds} rounds.\n\n{table(figures)}\n"


def table(figures: Iterable[Figure]) -> str:
    """A Markdown table with a line for each figure."""
    rows = [HEAD, *(row(figure) for figure in figures)]
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEAD))]
    lines = [line(cells, widths) for cells in rows]
    rule = ["-" * width if name in LEFT else "-" * (width - 1) + ":" for name, width in zip(HEAD, widths, strict=True)]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of the table, its cells padded."""
    padded = [
        cell.ljust(width) if name in LEFT else cell.rjust(width)
        for name, cell, width in zip(HEAD, cells, widths, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def row(figure: Figure) -> tuple[str, ...]:
    """A figure's cells."""
    ratio = figure.ratio
    target = "" if figure.target is None else f"≤ {figure.target:g}"
    if target and figure.judged == "ours":
        target += f" {figure.unit}"
    return (
        figure.work,
        figure.name,
        number(figure.baseline),
        number(figure.ours),
        figure.unit,
        number(ratio),
        "" if ratio is None else f"{digits(ratio.low)}-{digits(ratio.high)}",
        target,
        {True: "yes", False: "**no**", None: ""}[figure.met],
    )


def number(spread: Spread | None) -> str:
    """The median."""
    return "" if spread is None else digits(spread.median)


def digits(value: float) -> str:
    """Three digits that mean something; more would only look exact."""
    if value >= 100:
        return f"{value:.0f}"
    for limit, places in ((10, 1), (1, 2), (0.1, 3)):
        if value >= limit:
            return f"{value:.{places}f}"
    return f"{value:.4f}"


def into_page(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """A page with the figures between its markers replaced.

    Raises:
        ValueError: The markers are not there once each, in order.
    """
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed or begin in after or end in after:
        raise ValueError(f"the page needs {begin} and {end}, once each")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
