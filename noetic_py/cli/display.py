"""How progress is shown: a screen on a terminal, a few plain lines elsewhere, or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from noetic_py.cli.formatting import neutral, printable
from noetic_py.cli.output_capture import OutputCapture
from noetic_py.cli.progress import ProgressState
from noetic_py.cli.render import ASCII, UNICODE, screen
from noetic_py.core.events import (
    BudgetWarning,
    Event,
    FeeUnknown,
    StepCommitted,
    StepDiscarded,
    StepStarted,
    ToolFinished,
    UntilFailed,
)
from noetic_py.redaction import redact

Clock = Callable[[], float]
_MOST_ROWS = 3
"""How many steps one line names."""


class Display(Protocol):
    """Shows a run's events. A closed output stream raises no error.

    Attributes:
        farewell: What a process that ends at once has to write to leave the stream in order.
    """

    farewell: str

    def start(self) -> None:
        """The run begins."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def tick(self) -> None:
        """Some time has passed."""

    def stop(self) -> None:
        """The run is over; the stream is free again. Calling it twice does no harm."""


class SilentDisplay:
    """Shows nothing."""

    farewell = ""

    def start(self) -> None:
        """Nothing to do."""

    def event(self, event: Event) -> None:
        """Nothing to do."""

    def tick(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do."""


class PlainDisplay:
    """One plain line for each step that starts or ends near the top of the flow, for logs and pipes.

    Lines that come too fast are counted and not written: a burst of `BURST`, then `RATE` a second. Where no line has
    come for `SILENCE` seconds, one says how many steps have finished and how many are running.

    Args:
        stream: Where the lines go.
        clock: Seconds, never going back.
    """

    farewell = ""
    DEPTH = 2
    BURST = 20
    RATE = 5.0
    SILENCE = 5.0

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began = self._last = self._written = clock()
        self._allowed = float(self.BURST)
        self._skipped = 0
        self._progress = ProgressState()
        self._broken = False

    def start(self) -> None:
        """The clock of the lines starts."""
        self._began = self._last = self._written = self._clock()

    def event(self, event: Event) -> None:
        """Write the event's line, if it has one and there is room."""
        now = self._clock()
        self._progress.apply(event, now)
        line = self._line(event)
        if line is None:
            return
        self._allowed = min(float(self.BURST), self._allowed + (now - self._last) * self.RATE)
        self._last = now
        if self._allowed < 1:
            self._skipped += 1
            return
        self._allowed -= 1
        self._flush(now)
        self._write(now, line)

    def tick(self) -> None:
        """Write how far the steps are, when nothing else was written for a while."""
        now = self._clock()
        if now - self._written >= self.SILENCE:
            rows = list(islice(self._progress.at_work(), _MOST_ROWS))
            line = "; ".join(
                f"{printable('/'.join(path))}: {row.done:,} done, {row.running:,} running" for path, row in rows
            )
            self._flush(now)
            self._write(now, f"working  {line or 'no step is running'}")

    def stop(self) -> None:
        """Write what was left out."""
        self._flush(self._clock())

    def _line(self, event: Event) -> str | None:
        path = printable("/".join(event.path))
        if isinstance(event, BudgetWarning):
            return f"warning  {event.used} of {event.limit} {event.dimension} spent"
        if isinstance(event, FeeUnknown):
            return f"warning  the fee for {event.uses} uses of {printable(event.tool)} by {event.model} is not known"
        if isinstance(event, ToolFinished) and event.failed:
            return f"failed   {path}: {printable(event.output.text.partition(chr(10))[0])}"
        if isinstance(event, UntilFailed):
            return f"failed   {path}: until raised {event.error_type}: {printable(event.error_message)}"
        if not 0 < len(event.path) <= self.DEPTH:
            return None
        match event:
            case StepStarted():
                return f"started  {path}" if event.attempt == 1 else f"started  {path} (attempt {event.attempt})"
            case StepCommitted():
                return f"finished {path}"
            case StepDiscarded(reason="stopped"):
                return f"stopped  {path}"
            case StepDiscarded():
                why = printable(event.reason.partition("\n")[0].partition(" [at ")[0])
                return f"{'failed   ' if event.final else 'retrying '}{path}: {why}"
            case _:
                return None

    def _flush(self, now: float) -> None:
        if self._skipped:
            skipped, self._skipped = self._skipped, 0
            self._write(now, f"... {skipped:,} more lines left out")

    def _write(self, now: float, line: str) -> None:
        self._written = now
        if self._broken:
            return
        try:
            self._stream.write(neutral(redact(f"{now - self._began:8.2f} s  {line}\n")))
            self._stream.flush()
        except OSError:
            # The run is worth more than its log.
            self._broken = True


class ScreenDisplay:
    """The tree of steps with counts, bars for the budgets and the answer that comes in, drawn again and again.

    Args:
        progress: Where events are counted.
        title: What is run.
        capture: Its stream is the terminal, and what the flow prints appears above the screen.
        stream: The terminal.
        clock: Seconds, never going back.
    """

    # Shows the cursor, which the screen hides.
    farewell = "\x1b[?25h\n"

    def __init__(
        self, progress: ProgressState, title: str, capture: OutputCapture, stream: TextIO, clock: Clock = time.monotonic
    ) -> None:
        self._progress = progress
        self._title = title
        self._capture = capture
        self._clock = clock
        self._began = clock()
        self._final = False
        self._broken = False
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=False)
        self._glyphs = UNICODE if self._console.encoding.startswith("utf") else ASCII
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
            get_renderable=self._screen,
        )

    def start(self) -> None:
        """Take the lower part of the terminal."""
        self._began = self._clock()
        self._capture.sink = self._above
        self._draw(lambda: self._live.start(refresh=True))

    def event(self, event: Event) -> None:
        """Count the event; `tick` draws."""
        self._progress.apply(event, self._clock() - self._began)

    def tick(self) -> None:
        """Draw."""
        self._draw(self._live.refresh)

    def stop(self) -> None:
        """Leave the last screen, without the answer, and give the terminal back."""
        if self._final:
            return
        self._final = True
        self._capture.sink = None
        self._capture.flush()
        self._draw(self._live.stop)

    def _draw(self, draw: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            draw()
        except OSError:
            self._broken = True

    def _screen(self) -> Text:
        size = self._console.size
        shown = screen(
            self._progress,
            title=self._title,
            seconds=self._clock() - self._began,
            size=(size.width, size.height),
            glyphs=self._glyphs,
            final=self._final,
        )
        # Its colours are beside the text, not in it.
        shown.plain = neutral(shown.plain)
        return shown

    def _above(self, line: str) -> None:
        self._draw(lambda: self._console.print(Text.from_ansi(redact(line)), soft_wrap=True))


def wants_screen(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can be drawn on, and plain text was not asked for."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb") and not os.environ.get("NO_COLOR")


def make_display(
    progress: ProgressState, title: str, capture: OutputCapture, stream: TextIO, *, quiet: bool
) -> Display:
    """The display that fits the stream."""
    if quiet:
        return SilentDisplay()
    return ScreenDisplay(progress, title, capture, stream) if wants_screen(stream) else PlainDisplay(stream)
