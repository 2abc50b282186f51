"""Log records of the library: one function makes them all, so that they have the same fields and hold no secret.

A record goes to `logging.getLogger("noetic_py.<area>")`, and `run`, `path` and `attempt` are attributes of it. The
library adds no handler and sets no level.
"""

from __future__ import annotations

import logging
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from noetic_py.core.tracebacks import trim
from noetic_py.errors.redaction import redact, redact_record

Area: TypeAlias = Literal[
    "channels", "checkpoints", "events", "memory", "models", "runs", "sessions", "steps", "tools", "until"
]
"""The part of the library that a record is about, which is the last part of its logger's name."""


class Where(NamedTuple):
    """Which attempt of which step of which run a record is about.

    Attributes:
        run: The run's id; empty when the record belongs to no run.
        path: The step's path; empty when it belongs to no step.
        attempt: The step's attempt, from 1 on; 0 when it belongs to no step.
    """

    run: str = ""
    path: tuple[str, ...] = ()
    attempt: int = 0


NOWHERE: Final = Where()
"""Of a record that belongs to no run."""


def logger(area: str) -> logging.Logger:
    """The logger of an area. A filter of a parent does not see the records of its children, so each logger has one."""
    found = logging.getLogger(f"noetic_py.{area}" if area else "noetic_py")
    if redact_record not in found.filters:
        found.addFilter(redact_record)
    return found


_LOGGERS: Final = {area: logger(area) for area in get_args(Area)}
# What is only worth its cost when it is read: one record or more for each step.
_VERBOSE: Final = (_LOGGERS["models"], _LOGGERS["steps"])
logger("")


def is_verbose() -> bool:
    """Whether steps and model calls are to be logged; a run asks once, when it begins."""
    models, steps = _VERBOSE
    return steps.isEnabledFor(logging.DEBUG) or models.isEnabledFor(logging.DEBUG)


def log(
    area: Area,
    level: int,
    message: str,
    *args: object,
    where: Where = NOWHERE,
    error: BaseException | None = None,
    hint: str = "",
) -> None:
    """Write a log record.

    Args:
        area: The part of the library.
        level: DEBUG for what goes on and for failures that a caller is told of, INFO for the beginning and the end of
            runs, WARNING and ERROR for failures that nothing raises.
        message: What has happened, with a `%s` for each argument.
        *args: The arguments.
        where: The run, the step and the attempt; the path is added to the message.
        error: The exception whose traceback belongs to it.
        hint: What to do about it; it stands on a line of its own.
    """
    found = _LOGGERS[area]
    if not found.isEnabledFor(level):
        return
    path = redact("/".join(where.path))
    if path:
        message, args = f"{message} [at %s]", (*args, path)
    if hint:
        message, args = f"{message}\n  Try: %s", (*args, hint)
    if error is not None:
        trim(error)
    fields = {"run": redact(where.run), "path": path, "attempt": where.attempt}
    found.log(level, message, *args, exc_info=error, extra=fields, stacklevel=2)
