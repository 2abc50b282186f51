"""A body while it runs: its own context variables, and how long it holds the event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from inspect import isawaitable
from logging import WARNING
from time import monotonic
from types import coroutine
from typing import Any, Final

from noetic_py.context.protocol import CURRENT
from noetic_py.context.step import function_of
from noetic_py.core.logs import log
from noetic_py.core.tracebacks import where_defined
from noetic_py.engine.cancellation import failure_of
from noetic_py.engine.frame import Frame

__all__ = ["DONE", "call_apart", "first_stretch", "go_on", "look", "pause", "resumed"]

DONE: Final = object()
"""What `next` gives for work that has ended: cheaper than the exception that `send` raises."""
LIMIT: Final = 1.0
"""Seconds that a body may hold the event loop."""


def first_stretch(frame: Frame, context: Context, work: Any, around: Frame | None) -> Any:
    """Begin a body and time it up to its first await; gives what it waits for, or `DONE`.

    Args:
        frame: The step.
        context: What the body runs in.
        work: The body.
        around: The step around it; `None` when the body begins a task, so that the one around it is not running.
    """
    run = frame.x.run
    # Only code of a user's holds the event loop.
    if around is not None and around.kind.reported and around.on_stack:
        look(around)
    else:
        run.running_since = monotonic()
    try:
        waits = context.run(next, work, DONE)
    except BaseException:
        look(frame)
        raise
    if waits is DONE:
        # `look`, without the call.
        now = monotonic()
        if run.running_since and now - run.running_since > LIMIT:
            look(frame)
        run.running_since = now
    return waits


def resumed(frame: Frame) -> None:
    """A body goes on."""
    frame.x.run.running_since = monotonic()


def pause(frame: Frame) -> None:
    """A stretch of a body is over, and what follows is not timed."""
    look(frame)
    frame.x.run.running_since = 0.0


def look(frame: Frame) -> None:
    """A stretch of a body is over, and another one begins."""
    run, now = frame.x.run, monotonic()
    seconds = now - run.running_since if run.running_since else 0.0
    run.running_since = now
    if seconds > LIMIT and frame.kind.reported:
        _warn(frame, seconds)


def _warn(frame: Frame, seconds: float) -> None:
    step, noticed = frame.step, frame.x.run.noticed
    tool = frame.call_id is not None
    what = f"tool {frame.at[-1].partition('[')[0]!r}" if tool else f"step {step.id!r}"
    if what in noticed:
        return
    noticed.add(what)
    function = function_of(step)
    place = "" if function is None else f", {where_defined(function)},"
    log(
        "steps",
        WARNING,
        "%s%s held the event loop for %.1f s without an await, so nothing else ran meanwhile",
        what,
        place,
        seconds,
        where=frame.where,
        hint="an async client, or await anyio.to_thread.run_sync(function, ...) for what blocks"
        + ("; a tool that is a plain def runs in a thread" if tool else ""),
    )


@coroutine
def go_on(frame: Frame, context: Context, work: Any, waits: Any) -> Generator[Any, Any, None]:
    """Bring work of a step to its end that has begun in a context and waits for something."""
    run = frame.x.run
    try:
        while waits is not DONE:
            frame.on_stack = False
            # Those around it find that the stretch is over, and when it goes on they are the first to note it.
            if run.running_since:
                if monotonic() - run.running_since > LIMIT:
                    look(frame)
                run.running_since = 0.0
            try:
                sent, thrown = (yield waits), None
            except BaseException as error:  # noqa: BLE001 # it is raised where the work waits
                sent, thrown = None, error
            frame.on_stack = True
            if not run.running_since:
                run.running_since = monotonic()
            waits = context.run(next, work, DONE) if sent is thrown else context.run(_resume, work, sent, thrown)
    finally:
        now = monotonic()
        if run.running_since and now - run.running_since > LIMIT:
            look(frame)
        run.running_since = now


def _resume(work: Any, sent: Any, thrown: BaseException | None) -> Any:
    try:
        return work.send(sent) if thrown is None else work.throw(thrown)
    except StopIteration:
        return DONE


async def call_apart(frame: Frame, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that decides something for a step, sync or async, as a body is called.

    Raises:
        Exception: What it has raised; an unrequested cancellation is a failure of its.
    """
    found: list[Any] = []

    async def work() -> None:
        CURRENT.set(frame)
        made = function(*args)
        found.append(await made if isawaitable(made) else made)

    context, begun = copy_context(), work().__await__()
    try:
        await go_on(frame, context, begun, context.run(next, begun, DONE))
    except BaseException as error:
        failure = failure_of(error)
        if failure is error or failure is None:
            raise
        raise failure from error
    return found[0]
