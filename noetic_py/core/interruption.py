"""What Ctrl-C has interrupted: told in a few lines at the end of a program, in the place of Python's traceback."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from inspect import getattr_static
from types import FrameType, TracebackType
from typing import Self

from noetic_py.core.diagnostics import FULL

_METHODS = {"run": 0, "stream": 0, "run_sync": 0, "resume": 1, "resume_stream": 1}
"""The methods that run a step, and where the step stands among their arguments."""


_STORE = 'Harness(checkpoints="sqlite:runs.db") stores runs, so that they can be resumed'
_AGAIN = "run it again"


class Interruption(str):
    """A note on a cancellation: which run it has interrupted, where, and how to go on.

    Args:
        run_id: The run.
        step: Its flow.
        paths: The steps that were in flight; `None` when the run had not begun.
        stored: Whether another process can resume it.
        session: Whether it is a turn of a session.
    """

    __slots__ = ("harness", "other", "run_id", "session", "step", "stored", "what")

    what: str
    other: str
    run_id: str
    step: object
    stored: bool
    session: bool
    # The harness that the code which the cancellation reaches has run the step with; none where it has only started it.
    harness: object

    def __new__(
        cls, run_id: str, step: object, paths: Iterable[tuple[str, ...]] | None, *, stored: bool, session: bool
    ) -> Self:
        """Make the note's text, with general names for the harness and the step."""
        if paths is None:
            where, lost = "before it began", ""
        else:
            where = "at " + (", ".join(sorted("/".join(path) for path in paths)) or "its beginning")
            lost = "" if stored else ", and ends with the process"
        what = f"run {run_id!r} was interrupted {where}{lost}"
        other = _AGAIN if paths is None else _STORE
        note = super().__new__(cls, f"{what}\n  Try: {_remedy(run_id) if stored else other}")
        note.other = other
        note.what, note.run_id, note.step, note.stored, note.session = what, run_id, step, stored, session
        note.harness = None
        return note

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # A copy of the exception, and another process, have the text.
        return str, (str(self),)

    def put_on(self, error: BaseException, harness: object = None) -> None:
        """Note it on a cancellation, once.

        Args:
            error: The cancellation.
            harness: With what the code that the cancellation reaches has run the step, if it has not only started it.
        """
        self.harness = harness
        if self not in getattr(error, "__notes__", ()):
            error.add_note(self)
        if sys.excepthook is sys.__excepthook__:
            # A hook of the application's, or of another library, stays.
            sys.excepthook = _show

    def describe(self, error: BaseException) -> str:
        """The note with the names that the code has where the cancellation came through."""
        known = getattr(sys.modules.get("__main__"), "__dict__", {})
        named = next((name for name, value in known.items() if value is self.step), "step")
        harness, step = _as_called(error, self) or ("harness", named)
        return f"{self.what}\n  Try: {_remedy(self.run_id, harness, step) if self.stored else self.other}"


def _remedy(run_id: str, harness: str = "harness", step: str = "step") -> str:
    return f"await {harness}.resume({run_id!r}, {step})"


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None, /) -> None:
    """Print what a Ctrl-C has interrupted, and anything else as Python does."""
    notes = dict(_notes(error)) if _is_ctrl_c(error) and os.environ.get(FULL) != "full" else {}
    if not notes:
        sys.__excepthook__(kind, error, trace)
        return
    lines = ("KeyboardInterrupt", *(note.describe(on) for note, on in notes.items()), "")
    sys.stderr.write("\n".join(lines))


def _is_ctrl_c(error: BaseException) -> bool:
    inside: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return all(map(_is_ctrl_c, inside)) if inside else isinstance(error, KeyboardInterrupt)


def _notes(error: BaseException) -> Iterator[tuple[Interruption, BaseException]]:
    """The notes on an exception, on those that it was raised in the handling of, and on the members of a group."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        for note in getattr(each, "__notes__", ()):
            if isinstance(note, Interruption):
                yield note, each
        waiting += (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))


def _as_called(error: BaseException, note: Interruption) -> tuple[str, str] | None:
    """The harness and the step in the call that a cancellation came through, as its source has them."""
    trace = error.__traceback__
    while trace is not None:
        call = _call_at(trace)
        if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
            place = _METHODS[call.func.attr]
            given = [*call.args[place : place + 1], *(each.value for each in call.keywords if each.arg == "step")]
            owner = call.func.value
            if note.session and isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
                # A turn is run with what the method `session` of a harness gives.
                owner = owner.func.value
            if given and note.harness is not None and _value(owner, trace.tb_frame) is note.harness:
                return ast.unparse(owner), ast.unparse(given[0])
        trace = trace.tb_next
    return None


def _value(expression: ast.expr, frame: FrameType) -> object:
    """The value of a name, or of an attribute of one; nothing is called for it."""
    if isinstance(expression, ast.Name):
        return frame.f_locals.get(expression.id, frame.f_globals.get(expression.id))
    if isinstance(expression, ast.Attribute):
        return getattr_static(_value(expression.value, frame), expression.attr, None)
    return None


def _call_at(trace: TracebackType) -> ast.Call | None:
    """The call that a frame was in, read from its file."""
    code = trace.tb_frame.f_code
    first, last, begins, ends = list(code.co_positions())[trace.tb_lasti // 2]
    if first is None or last is None or begins is None or ends is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if len(lines) != last - first + 1:
        return None
    lines[-1] = lines[-1][:ends]
    lines[0] = lines[0][begins:]
    try:
        found = ast.parse(b"(" + b"".join(lines) + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    found = found.value if isinstance(found, ast.Await) else found
    return found if isinstance(found, ast.Call) else None
