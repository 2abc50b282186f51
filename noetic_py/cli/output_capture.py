"""Where the flow's own output goes: standard output belongs to the result, so it joins the progress."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO

from noetic_py.cli.formatting import neutral
from noetic_py.redaction import redact


class OutputCapture(io.TextIOBase):
    """A stream to standard error, or to the display that draws there, line by line.

    Attributes:
        sink: Takes each whole line while a screen is drawn; `None` writes as it comes.
    """

    encoding = "utf-8"

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._rest = ""
        self.sink: Callable[[str], None] | None = None

    @property
    def buffer(self) -> object:
        """The underlying stream, for code that writes bytes."""
        return self._target.buffer

    def write(self, text: str, /) -> int:
        """Write text; without a sink at once, otherwise when its line is whole."""
        if self.sink is None:
            self._target.write(neutral(redact(self._rest + text), coloured=True))
            self._rest = ""
            return len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.sink(neutral(line, coloured=True))
        return len(text)

    def flush(self) -> None:
        """Write what can be written."""
        # The stream is flushed once more when it is thrown away, and its target may be gone by then.
        if self.sink is None and self._rest and not self._target.closed:
            self.write("")
            self._target.flush()

    def writable(self) -> bool:
        """It is there to be written to."""
        return True

    def isatty(self) -> bool:
        """Whether standard error is a terminal."""
        return self._target.isatty()

    def fileno(self) -> int:
        """The number of standard error, which child processes get."""
        return self._target.fileno()


@contextmanager
def captured_output() -> Generator[OutputCapture]:
    """Send what is printed inside the block, on either stream, through one stream."""
    out, error = sys.stdout, sys.stderr
    capture = OutputCapture(error)
    # A logging handler that is set up inside keeps the stream it found; the capture stays good after the block, too.
    sys.stdout = sys.stderr = capture
    try:
        yield capture
    finally:
        capture.sink = None
        capture.flush()
        sys.stdout, sys.stderr = out, error
