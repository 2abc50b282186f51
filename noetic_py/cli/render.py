"""The screen of a run, made of its progress: never wider or higher than the terminal."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from decimal import Decimal

from attrs import frozen
from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

from noetic_py.cli.formatting import amount, money, plural, printable
from noetic_py.cli.progress import Meter, ProgressRow, ProgressState

# How much of a tree is shown: nodes for each node above, and levels; the first that fits the terminal is taken.
_PLANS = ((8, 12), (6, 8), (4, 6), (3, 4), (2, 3), (1, 2), (1, 1))
_TEXT_LINES = 4
_METERS = 6


@frozen
class Glyphs:
    """The signs of a terminal that knows them, or of one that does not."""

    spinner: str
    done: str
    failed: str
    stopped: str
    full: str
    empty: str
    bar: str
    more: str


UNICODE = Glyphs(spinner="⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", done="✓", failed="✗", stopped="■", full="█", empty="░", bar="│", more="…")
ASCII = Glyphs(spinner="|/-\\", done="+", failed="x", stopped="-", full="#", empty=".", bar="|", more="...")


def screen(
    progress: ProgressState,
    *,
    title: str,
    seconds: float,
    size: tuple[int, int],
    glyphs: Glyphs = UNICODE,
    final: bool = False,
) -> Text:
    """The whole screen as one text.

    Args:
        progress: What is known of the run.
        title: What is run.
        seconds: Seconds since it began.
        size: Columns and lines of the terminal.
        glyphs: The signs to draw with.
        final: Whether the run is over: then there is no text that comes in.
    """
    width, height = max(size[0], 1), max(size[1] - 1, 1)
    head = [_head(progress, title, seconds, width)]
    text = [] if final else _speech(progress, width, glyphs)
    bars = _bars(progress.meters(seconds)[:_METERS], width, glyphs)
    # The tree keeps at least a third of the screen: text goes first when there is no room, then the bars.
    room = height - 1
    bars = bars[: room // 3]
    text = text[: max(0, min(len(text), room - len(bars) - room // 3))]
    lines = head + tree(progress.root, width, room - len(bars) - len(text), seconds, glyphs) + bars + text
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines[:height])


def _head(progress: ProgressState, title: str, seconds: float, width: int) -> Text:
    facts = f"{seconds:.1f} s  {plural(progress.steps, 'step')}"
    if progress.model_calls:
        facts += f"  {plural(progress.usage.total, 'token')}"
        facts += f"  {money(progress.cost)}{'+?' if progress.unpriced else ''}"
    name = _fit(printable(title), max(8, width - cell_len(facts) - 2))
    return _line(width, (name, "bold"), ("  ", ""), (facts, "dim"))


def _line(width: int, *parts: tuple[str, str]) -> Text:
    text = Text(no_wrap=True, overflow="crop", end="")
    for part, style in parts:
        text.append(part, style or None)
    text.truncate(width, overflow="ellipsis")
    return text


def _fit(text: str, width: int) -> str:
    """Cut in the middle: of a long name the beginning and the end tell most."""
    if cell_len(text) <= width:
        return text
    if width < 5:
        return set_cell_size(text, width)
    tail = (width - 1) // 2
    end = text[-tail:]
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(text, width - 1 - cell_len(end)).rstrip() + "…" + end


# -- the tree


def tree(root: ProgressRow, width: int, room: int, seconds: float, glyphs: Glyphs = UNICODE) -> list[Text]:
    """The nodes below `root`, in at most `room` lines.

    Args:
        root: The node above the first line.
        width: Columns.
        room: Lines.
        seconds: Seconds since the run began, on the clock of the nodes.
        glyphs: The signs to draw with.
    """
    lines: list[Text] = []
    for most, depth in _PLANS:
        lines = list(_below(root, 0, most, depth, width, seconds, glyphs))
        if len(lines) <= room:
            break
    return lines[: max(0, room)]


def _below(
    node: ProgressRow, level: int, most: int, depth: int, width: int, seconds: float, glyphs: Glyphs
) -> Iterator[Text]:
    if level >= depth:
        return
    shown, rest = _choose(list(node.children.values()), most)
    for child in shown:
        yield _node(child, level, width, seconds, glyphs)
        yield from _below(child, level + 1, most, depth, width, seconds, glyphs)
    if rest:
        counts = ProgressRow("", "")
        for each in rest:
            counts.running += each.running
            counts.done += each.done
            counts.failed += each.failed
            counts.stopped += each.stopped
        indent = _indent(level, width)
        yield _line(width, (f"{indent}{glyphs.more} {len(rest)} more: {_counts(counts)}", "dim"))


def _choose(nodes: Sequence[ProgressRow], most: int) -> tuple[Sequence[ProgressRow], Sequence[ProgressRow]]:
    """The nodes worth a line, in their order, and the others: what runs before what failed before what is over."""
    if len(nodes) <= most:
        return nodes, ()
    chosen = {id(each) for each in heapq.nlargest(most, nodes, key=_interest)}
    return [each for each in nodes if id(each) in chosen], [each for each in nodes if id(each) not in chosen]


def _interest(node: ProgressRow) -> tuple[bool, bool, int]:
    # A running step keeps its line until it ends, so that lines do not jump: the longest first.
    return node.running > 0, node.failed > 0, -node.touched if node.running else node.touched


def _indent(level: int, width: int) -> str:
    return ("  " if width >= 50 else " ") * min(level, width // 6)


def _node(node: ProgressRow, level: int, width: int, seconds: float, glyphs: Glyphs) -> Text:
    indent = _indent(level, width)
    sign, style = _sign(node, seconds, glyphs)
    facts = _facts(node, seconds)
    room = width - len(indent) - 2 - (len(facts) + 2 if facts else 0)
    name = _fit(printable(node.name), max(room, 6))
    return _line(width, (indent, ""), (sign, style), (f" {name}", ""), (f"  {facts}" if facts else "", "dim"))


def _sign(node: ProgressRow, seconds: float, glyphs: Glyphs) -> tuple[str, str]:
    if node.running:
        return glyphs.spinner[int(seconds * 8) % len(glyphs.spinner)], "cyan"
    if node.failed:
        return glyphs.failed, "red"
    if node.stopped and not node.done:
        return glyphs.stopped, "yellow"
    return glyphs.done, "green"


def _facts(node: ProgressRow, seconds: float) -> str:
    found = [_counts(node)] if node.seen > 1 else []
    if node.seen == 1 and node.retried:
        found.append("retried" if node.retried == 1 else f"retried {node.retried} times")
    if node.rounds:
        found.append(plural(node.rounds, "round"))
    if node.running == 1 and seconds - node.since >= 1:
        found.append(f"{seconds - node.since:.0f} s")
    return ", ".join(found)


def _counts(node: ProgressRow) -> str:
    parts = [(node.done, "done"), (node.running, "running"), (node.failed, "failed"), (node.stopped, "stopped")]
    return ", ".join(f"{count:,} {word}" for count, word in parts if count)


# -- bars and text


def _bars(meters: Sequence[Meter], width: int, glyphs: Glyphs) -> list[Text]:
    names = [printable(meter.dimension).replace("_", " ") for meter in meters]
    widest = max(map(cell_len, names), default=0)
    return [_bar(meter, set_cell_size(name, widest), width, glyphs) for meter, name in zip(meters, names, strict=True)]


def _bar(meter: Meter, name: str, width: int, glyphs: Glyphs) -> Text:
    spent, limit = (money(x) if meter.dimension == "cost" else amount(x) for x in (meter.used, meter.limit))
    share = float(min(Decimal(1), meter.used / meter.limit)) if meter.limit else 1.0
    style = "green" if share < 0.8 else "yellow" if share < 1 else "red"
    numbers = f"{spent} of {limit}"
    cells = min(24, width - cell_len(name) - len(numbers) - 4)
    if cells < 4:
        return _line(width, (f"{name}  ", "dim"), (numbers, style))
    full = round(share * cells)
    rest = glyphs.empty * (cells - full)
    return _line(width, (f"{name}  ", "dim"), (glyphs.full * full, style), (rest, "dim"), (f"  {numbers}", ""))


def _speech(progress: ProgressState, width: int, glyphs: Glyphs) -> list[Text]:
    """The last lines of the answer that comes in."""
    speaking = progress.speaking
    if speaking is None:
        return []
    lines: list[str] = []
    for line in speaking[1].splitlines()[-_TEXT_LINES:]:
        lines += chop_cells(printable(line.expandtabs(4)), max(2, width - 2)) or [""]
    return [_line(width, (f"{glyphs.bar} ", "dim"), (line, "italic")) for line in lines[-_TEXT_LINES:]]
