"""Draws the pictures of the documentation: `python docs/pictures/draw.py` writes them beside this file.

A picture is SVG with two sets of colours, so that it fits a light and a dark page. Its text is text: it can be searched
and is read aloud.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from noetic_py import Budget, FunctionCall, TokenUsage
from noetic_py.cli.progress import ProgressState
from noetic_py.cli.render import screen as drawn
from noetic_py.core.events import (
    Event,
    LoopIteration,
    ModelFinished,
    ModelStarted,
    StepCommitted,
    StepStarted,
    TextDelta,
    ToolStarted,
)

HERE = Path(__file__).parent
Tone = Literal["plain", "good", "bad", "store", "faint"]
STYLE = """
svg { font: 14px system-ui, sans-serif; }
text { fill: #1d2733; } .small { font-size: 12px; fill: #52606d; } .mono { font-family: ui-monospace, monospace; }
.bold { font-weight: 600; }
.plain { fill: #ffffff; stroke: #52606d; } .good { fill: #e3f6ea; stroke: #2b8a53; }
.bad { fill: #fdeaea; stroke: #c0392b; } .store { fill: #e8eefc; stroke: #3b5bbd; }
.faint { fill: none; stroke: #9aa5b1; stroke-dasharray: 5 4; }
.line { fill: none; stroke: #52606d; } .used { fill: #3b5bbd; stroke: none; } .kept { fill: #f2c94c; stroke: none; }
.head { fill: #52606d; }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb; } .small { fill: #a8b3bf; }
  .plain { fill: #1f2730; stroke: #9aa5b1; } .good { fill: #173525; stroke: #5fc98c; }
  .bad { fill: #3d1d1d; stroke: #ef7b6f; } .store { fill: #1b2747; stroke: #8ba6f5; }
  .faint { stroke: #65717e; } .line { stroke: #9aa5b1; } .used { fill: #8ba6f5; } .head { fill: #9aa5b1; }
}
"""


class Picture:
    """A drawing that grows by what is put into it.

    Args:
        width: Pixels.
        height: Pixels.
        title: What it shows, for readers who cannot see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts: list[str] = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"',
            'orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        ]

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> None:
        """A line of text, its baseline at `y`."""
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(
        self, x: float, y: float, w: float, h: float, lines: str | Sequence[str] = (), tone: Tone = "plain"
    ) -> None:
        """A box with lines of text in its middle; the lines after the first are small."""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="6" class="{tone}"/>')
        lines = [lines] if isinstance(lines, str) else lines
        top = y + h / 2 + 5 - 8 * (len(lines) - 1)
        for index, line in enumerate(lines):
            self.text(x + w / 2, top + 16 * index, line, "small" if index else "")

    def arrow(
        self, points: Iterable[tuple[float, float]], label: str = "", at: tuple[float, float] | None = None
    ) -> None:
        """A line through points with a head at its end."""
        path = " L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(f'<path class="line" d="M{path}" marker-end="url(#head)"/>')
        if at is not None:
            self.text(*at, label, "small")

    def bar(self, x: float, y: float, w: float, used: float, kept: float = 0.0) -> None:
        """A meter: the share that is used, and at its end the share that is kept back."""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="10" rx="3" class="plain"/>')
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w * used:g}" height="10" rx="3" class="used"/>')
        if kept:
            self.parts.append(
                f'<rect x="{x + w * (1 - kept):g}" y="{y:g}" width="{w * kept:g}" height="10" rx="3" class="kept"/>'
            )

    def svg(self) -> str:
        """The whole of it."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def life() -> Picture:
    """The life of a run."""
    p = Picture(760, 300, "The life of a run: it starts, runs, may wait or be interrupted and resumed, and ends once")
    p.box(20, 110, 110, 50, ["run()", "resume()"])
    p.box(190, 105, 140, 60, ["running", "one process owns it"], "good")
    p.box(420, 20, 150, 60, ["suspended", "waits for an answer"], "store")
    p.box(420, 105, 150, 60, ["interrupted", "shutdown or signal"], "store")
    p.box(420, 190, 150, 60, ["budget_exceeded", "needs a larger one"], "store")
    p.box(640, 60, 105, 50, "completed", "good")
    p.box(640, 125, 105, 50, ["failed", "resumable too"], "bad")
    p.box(640, 190, 105, 50, "aborted", "bad")
    p.arrow([(130, 135), (186, 135)])
    p.arrow([(330, 120), (375, 120), (375, 50), (416, 50)])
    p.arrow([(330, 135), (416, 135)])
    p.arrow([(330, 150), (375, 150), (375, 220), (416, 220)])
    p.arrow([(260, 105), (260, 8), (610, 8), (610, 85), (636, 85)])
    p.arrow([(610, 85), (610, 150), (636, 150)])
    p.arrow([(610, 150), (610, 215), (636, 215)])
    p.arrow(
        [(495, 250), (495, 280), (75, 280), (75, 164)],
        "resume(), in any process; finished steps do not run again",
        (285, 272),
    )
    return p


def budgets() -> Picture:
    """A tree of budgets."""
    p = Picture(760, 330, "A tree of budgets: what a model call reserves is taken from every budget above it at once")

    def node(x: float, y: float, name: str, budget: str, used: float, kept: float = 0.0) -> None:
        p.box(x, y, 190, 66)
        p.text(x + 95, y + 22, name, "bold")
        p.text(x + 95, y + 38, budget, "small mono")
        p.bar(x + 15, y + 47, 160, used, kept)

    node(285, 15, "harness", "cost=5.00", 0.35)
    node(80, 125, "run of Ada", "tokens=20_000", 0.55, 0.15)
    node(490, 125, "run of Bob", "tokens=20_000", 0.2)
    node(80, 240, "spawn: research", "model_calls=4", 0.75)
    p.arrow([(380, 85), (380, 103), (175, 103), (175, 121)])
    p.arrow([(380, 103), (585, 103), (585, 121)])
    p.arrow([(175, 191), (175, 236)])
    p.box(345, 240, 170, 66, ["a model call", "reserves before it starts"], "store")
    p.arrow([(345, 273), (274, 273)])
    p.text(640, 258, "All budgets above can cover the call:", "small")
    p.text(640, 275, "it is made. One cannot: it is not", "small")
    p.text(640, 292, "made, and nothing is reserved.", "small")
    p.parts.append('<rect x="20" y="20" width="14" height="10" class="used"/>')
    p.text(42, 30, "used", "small", "start")
    p.parts.append('<rect x="20" y="40" width="14" height="10" class="kept"/>')
    p.text(42, 50, "reserve for the wrap-up step", "small", "start")
    return p


def view() -> Picture:
    """What a model is shown."""
    p = Picture(
        760, 300, "What a model is shown: the journal's items and the layers' blocks, put together under a token budget"
    )
    p.box(20, 20, 180, 60, ["the log", "every item, never changed"], "store")
    for index, (name, says) in enumerate(
        (("notes", "of the user"), ("plan", "of the conversation"), ("recall", "of other days"))
    ):
        p.box(20, 100 + 62 * index, 180, 50, [f"layer: {name}", says])
    p.box(270, 120, 160, 80, ["projector", "tokens shared out", "same input, same bytes"], "good")
    for y in (50, 125, 187, 249):
        p.arrow([(200, y), (235, y), (235, 160), (266, 160)])
    p.box(500, 20, 240, 260, (), "faint")
    p.text(620, 42, "one request", "bold")
    rows: Sequence[tuple[str, str, Tone]] = (
        ("instructions", "stable", "store"),
        ("blocks of memory", "pinned until they change", "store"),
        ("older items", "a summary, or left out", "plain"),
        ("newer items", "calls with their outputs", "plain"),
        ("what changed since", "supersedes a pinned block", "good"),
    )
    for index, (name, says, tone) in enumerate(rows):
        p.box(515, 54 + 44 * index, 210, 38, [name, says], tone)
    p.arrow([(430, 160), (496, 160)])
    p.text(465, 84, "cached by", "small")
    p.text(465, 100, "the provider", "small")
    p.arrow([(465, 66), (465, 62), (511, 62)])
    return p


def resume() -> Picture:
    """A run goes on after a crash."""
    p = Picture(760, 250, "A run goes on after a crash: recorded steps are put back, the one in flight runs again")
    p.text(60, 45, "process 1", "bold")
    p.text(60, 205, "process 2", "bold")
    steps = ("plan", "search", "write", "send")
    for index, name in enumerate(steps):
        x = 130 + 150 * index
        p.box(x, 100, 110, 44, [f"record {index + 1}", name], "store" if index < 2 else "faint")
        if index < 2:
            p.box(x, 20, 110, 40, name, "good")
            p.arrow([(x + 55, 60), (x + 55, 96)], "commit", (x + 85, 83))
            p.box(x, 180, 110, 40, [name, "put back"], "faint")
            p.arrow([(x + 55, 144), (x + 55, 176)])
        else:
            p.box(x, 180, 110, 40, name, "good")
            p.arrow([(x + 55, 180), (x + 55, 148)], "commit", (x + 85, 168))
    p.box(430, 20, 110, 40, [steps[2], "killed here"], "bad")
    p.text(60, 126, "journal", "bold")
    p.text(655, 35, "Finished steps do not run again.", "small")
    p.text(655, 52, "A step without a record does.", "small")
    return p


def session() -> Picture:
    """A session and its queue."""
    p = Picture(
        760, 250, "A session: messages wait in a queue, one turn runs at a time, and the conversation is stored"
    )
    p.box(20, 30, 130, 44, ["session.run()", "a request"])
    p.box(20, 100, 130, 44, ["session.send()", "from any process"])
    p.box(215, 60, 150, 60, ["queue", "in order of arrival"], "store")
    p.arrow([(150, 52), (180, 52), (180, 80), (211, 80)])
    p.arrow([(150, 122), (180, 122), (180, 100), (211, 100)])
    p.box(430, 60, 130, 60, ["turn", "one at a time"], "good")
    p.arrow([(365, 90), (426, 90)], "claim", (395, 82))
    p.box(610, 20, 130, 44, ["watchers", "events of the turn"])
    p.arrow([(560, 80), (585, 80), (585, 42), (606, 42)])
    p.box(430, 175, 310, 50, ["stream of the session", "conversation, state and memory of the user"], "store")
    p.arrow([(495, 120), (495, 171)], "append", (520, 150))
    p.arrow([(640, 175), (640, 105), (564, 105)], "read at the", (685, 138))
    p.text(685, 154, "next turn", "small")
    p.text(190, 195, "A message that is delivered twice is answered once;", "small")
    p.text(190, 212, "one that arrives during a turn waits, joins or interrupts.", "small")
    return p


def screen() -> Picture:
    """A terminal while a run goes on, drawn by the code that draws it there."""
    progress = ProgressState(budgets=(Budget(steps=200, model_calls=8, tokens=2_000, cost="0.05"),))
    for number, event in enumerate(_events()):
        progress.apply(event, number / 10)
    lines = drawn(progress, title="flow.py:flow", seconds=2.4, size=(84, 24)).plain.splitlines()
    p = Picture(
        760,
        24 + 20 * (len(lines) + 1),
        "noetic run at work: steps with counts, a bar for each limit, and the answer as it comes in",
    )
    p.parts.append('<rect width="760" height="100%" rx="8" fill="#1d2733"/>')
    for row, line in enumerate(["$ noetic run flow.py 'Plan a day by boat.'", *lines]):
        look = 'class="mono" xml:space="preserve" style="fill:#e4e7eb"'
        p.parts.append(f'<text x="18" y="{30 + 20 * row}" {look}>{escape(line)}</text>')
    return p


def _events() -> Iterator[Event]:
    yield StepStarted(("trip",), "sequence", 1)
    yield StepStarted(("trip", "plan"), "loop", 1)
    call = FunctionCall(name="tide", arguments={"harbour": "Dover"})
    for index in range(2):
        path = ("trip", "plan", f"call_model[{index}]")
        yield StepStarted(path, "model", 1)
        yield ModelStarted(path, "openai:gpt-5-mini")
        if not index:
            yield StepStarted((*path, "tide[0]"), "tool_call", 1)
            yield ToolStarted((*path, "tide[0]"), call)
            yield StepCommitted((*path, "tide[0]"), "tool_call", 3)
        yield ModelFinished(path, "openai:gpt-5-mini", TokenUsage(310, 45), Decimal("0.004"))
        yield StepCommitted(path, "model", 4)
        yield LoopIteration(("trip", "plan"), index, bool(index), None, None)
    yield StepCommitted(("trip", "plan"), "loop", 6)
    yield StepStarted(("trip", "survey"), "parallel", 1)
    for index in range(112):
        yield StepStarted(("trip", "survey", f"measure[{index}]"), "code", 1)
        if index < 109:
            yield StepCommitted(("trip", "survey", f"measure[{index}]"), "code", index)
    yield StepStarted(("trip", "survey", "report"), "model", 1)
    yield TextDelta(
        ("trip", "survey", "report"), "High water is at 6.8 m in Dover and at 7.2 m in Calais, so Calais is"
    )


def demo(printed: str | None = None) -> Picture:
    """A recording of `noetic demo`: its output comes line after line, and scrolls as in a terminal of 24 lines.

    Args:
        printed: What it has printed; else it is run.
    """
    rows, height, width, top, margin = 24, 20, 840, 26, 16
    lines = list(_recorded(_printed() if printed is None else printed))
    # When each line comes: after a command its output takes a moment, and after a section the reader takes longer.
    times, now = list[float](), 0.5
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        times.append(now)
        now += 1.2 if line.startswith("$") else 2.5 if line and not after else 0.3
    whole = now + 5
    p = Picture(
        width,
        top + rows * height,
        "noetic demo: a run is killed, resumed in a new process, approved and completed; no finished step runs twice",
    )
    p.parts.append(
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{top + rows * height - 1}" rx="8" class="plain"/>'
    )
    p.parts.append(f'<svg y="12" width="{width}" height="{rows * height + 4}"><g class="scroll">')
    for index, line in enumerate(lines):
        look = "bold" if re.match(r"\$|\d\.|completed|suspended", line) else "dim" if line.startswith("  ") else ""
        place = f'x="{margin}" y="{14 + index * height}" xml:space="preserve"'
        p.parts.append(f'<text {place} class="mono {look} l{index}">{escape(line)}</text>')
    p.parts.append("</g></svg>")
    shown = [f"{100 * time / whole:.2f}%" for time in times]
    style = [".mono { font-size: 12px; } .dim { opacity: 0.8; }"]
    style.append(f".scroll {{ animation: up {whole:.1f}s step-end infinite; }}")
    moves = [f"{at} {{ transform: translateY({min(0, rows - 1 - n) * height}px); }}" for n, at in enumerate(shown)]
    style.append(f"@keyframes up {{ 0% {{ transform: none; }} {' '.join(moves[rows:])} }}")
    for index, at in enumerate(shown):
        style.append(f".l{index} {{ animation: k{index} {whole:.1f}s step-end infinite; }}")
        style.append(f"@keyframes k{index} {{ 0% {{ visibility: hidden; }} {at} {{ visibility: visible; }} }}")
    end = f".scroll {{ animation: none; transform: translateY({min(0, rows - len(lines)) * height}px); }}"
    style.append(f"@media (prefers-reduced-motion: reduce) {{ text {{ animation: none !important; }} {end} }}")
    p.parts.append(f"<style>{''.join(style)}</style>")
    return p


def _printed() -> str:
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "noetic_py.cli", "demo"],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},  # so that the lines of all processes are in their order
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )
    return done.stdout


def _recorded(printed: str) -> Iterator[str]:
    """What `noetic demo` prints, in lines of a terminal.

    Times and the ids of requests are left out, since they differ from run to run, and so are the parts after the run.
    """
    text = re.sub(r"^ +\d+\.\d\d s  |^  [0-9a-f]{8}-[0-9a-f-]{27}  ", "  ", printed, flags=re.MULTILINE)
    text = re.sub(r", \d+\.\d\d s$", "", text, flags=re.MULTILINE)
    yield "$ noetic demo"
    for section in text.strip().split("\n\n"):
        if not section.startswith(("5.", "Look further")):
            yield ""
            for line in section.splitlines():
                yield from textwrap.wrap(line, 110, subsequent_indent="  " if line.startswith(" ") else "") or [""]


PICTURES = {
    "demo": demo,
    "screen": screen,
    "run-life": life,
    "budget-tree": budgets,
    "model-view": view,
    "resume": resume,
    "session": session,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
