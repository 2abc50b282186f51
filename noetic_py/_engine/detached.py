"""Work beside the flow: an execution that the run owns, and that no step waits for.

Its task lives in the harness's task group, because a run has none of its own; the run awaits it before it ends, and
cancels it when it is stopped. Its records stand under the path of the step that started it, and are no part of that
step's layout: it commits when it likes, and with it nothing of the step's.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from noetic_py._engine.durable import call, count_turns, put_down, recover, stop_again
from noetic_py._engine.execute import HANDLERS, AnyStep, execute, settle_state
from noetic_py._engine.fold import items_below
from noetic_py._engine.frame import Frame, acting
from noetic_py._engine.launched import note
from noetic_py._engine.layers import layers_for
from noetic_py._engine.parking import Parked
from noetic_py._engine.spawn import head, run_child
from noetic_py._engine.state import DOORS, Execution, Run
from noetic_py.budget import Budget, Lease
from noetic_py.channels import Channel, ChannelHandle
from noetic_py.checkpoints.records import StepFailed, StepOpened
from noetic_py.codec.text import dump
from noetic_py.context import CURRENT
from noetic_py.control import Checkpoint, Control, RunResult, RunStatus, Transcript, no_value
from noetic_py.detached import DetachedWork, DetachOptions
from noetic_py.domain import Domain, branch_at
from noetic_py.errors import Aborted, BudgetExceeded, ConcurrentStepCall, ConfigError, NoeticError
from noetic_py.log import ItemLog
from noetic_py.memory.layer import Memory
from noetic_py.redaction import logger
from noetic_py.state import NO_CELLS, copy_state
from noetic_py.steps.spawn import MemorySpec, SpawnSpec
from noetic_py.steps.step import Step, require_step
from noetic_py.steps.step import frame as frame_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from noetic_py.channels import Live
    from noetic_py.checkpoints.records import JournalRecord

__all__ = ["Detached", "detach", "external_handle"]

_log = logger()


def detach(frame: Frame, step: AnyStep, value: object, options: DetachOptions, own: bool = True) -> DetachedWork:
    """Start a step beside the flow; see [`Context.spawn_detached`][noetic_py.Context.spawn_detached].

    `own` says whether it was asked for in the run's own thread, and not by a sync tool, for which its thread waits.
    """
    frame = acting(frame)
    require_step(step, "spawn_detached")
    _check(options, frame)
    resources = frame.x.run.resources
    if resources.group is None or resources.launch is None:
        raise ConfigError(
            "spawn_detached() needs an owner for its task",
            code="harness-not-entered",
            path=frame.at,
            hint="async with Harness() as harness:",
        )
    _check_task(frame, step, own)
    if options.owner == "harness":
        return resources.launch(frame.x.run, step, value, options, _own_id(frame, step))
    work = Detached(frame, step, value, options)
    resources.group.start_soon(work.carry)
    return work


def _own_id(frame: Frame, step: AnyStep) -> str | None:
    """The id of a run of its own: the same when a durable run's body starts it once more because its process died."""
    run = frame.x.run
    if run.store is None:
        return None
    occurrences = frame.occurrences
    if occurrences is None:
        occurrences = frame.occurrences = {}
    place = f"{step.id}[launched]"
    count = occurrences[place] = occurrences.get(place, 0) + 1
    # Another attempt starts another run, as it does everything else again.
    attempts: list[int] = []
    node: Frame | None = frame
    while node is not None:
        attempts.append(node.attempt)
        node = node.up
    essence = [run.run_id, *frame.at, step.id, count, *attempts]
    return blake2b(dump(essence), digest_size=16).hexdigest()


def _check(options: DetachOptions, frame: Frame) -> None:
    if options.owner not in ("run", "harness"):
        raise ConfigError(
            f"owner={options.owner!r} is unknown", code="detached", path=frame.at, hint='"run" or "harness"'
        )
    if options.memory is not None and not isinstance(options.memory, Memory):
        raise ConfigError(
            f"memory={options.memory!r} is no Memory", code="detached", path=frame.at, hint="memory=Mem()"
        )
    if options.budget is not None and not isinstance(options.budget, Budget):
        raise ConfigError(
            f"budget={options.budget!r} is no Budget", code="detached", path=frame.at, hint="budget=Budget(steps=10)"
        )


def _check_task(frame: Frame, step: AnyStep, own: bool) -> None:
    """Work is started from the body's own task, in which the order of calls is the program's."""
    try:
        if frame.token is None:
            raise ValueError("the step has ended")
        if not own:
            return
        CURRENT.reset(frame.token)
    except ValueError:
        raise ConcurrentStepCall(
            f"{step.id} was started by {'/'.join(frame.at)} from a task or thread of its own, or after its end",
            path=frame.at,
            hint="call spawn_detached in the step itself",
        ) from None
    frame.token = CURRENT.set(frame)


class Detached:
    """One execution beside the flow."""

    def __init__(self, frame: Frame, step: AnyStep, value: object, options: DetachOptions) -> None:
        caller, run = frame.x, frame.x.run
        self.run_id: str = run.run_id
        self._run = run
        self._value = value
        state = copy_state(frame.domain.state) if options.state is None else options.state
        try:
            caller.enter_child()
        except NoeticError as error:
            error.at(frame.at)
            raise
        occurrences = frame.occurrences
        if occurrences is None:
            occurrences = frame.occurrences = {}
        # No id of a user's can hold brackets, so no step called from the body has this frame.
        place = f"{step.id}[detached]"
        count = occurrences.get(place, 0)
        occurrences[place] = count + 1
        self._name = frame_name(place, count)
        call(frame, self._name)
        self.path: tuple[str, ...] = (*frame.at, self._name)
        self._lease = Lease(None, frame.lease, depth=caller.depth + 1)
        layers = None if options.memory is None else layers_for(options.memory)
        self.child = Execution(run, self._lease, depth=caller.depth + 1, parent=frame, input=value, layers=layers)
        if frame.node is not None:
            recover(run, self._lease, self.path)
            count_turns(self.child, self.path)
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()
        self.outcome: RunResult[Any, Any] | None = None
        # Whether it waits for an answer.
        self.parked = False
        log = ItemLog()
        branch = branch_at((*self.path, step.id))
        log.origin = (run.run_id, branch)
        spec = SpawnSpec(step, "share", "new", None, options.budget)
        if options.memory is not None:
            spec = MemorySpec(step, "share", "new", None, options.budget, options.memory)
        cells = frame.domain.cells if options.memory is None else NO_CELLS
        self._domain = Domain(log, state, branch, cells=cells)
        self._step: AnyStep = Step(id=step.id, kind="detached", spec=(spec, self))
        self._above = _above(run, frame, self._domain)
        run.journal.append(StepOpened(self.path, "detached", 1))
        note(run, self.path, step, value, state, options, count)
        run.detached.append(self)
        if any(x.stop is not None for x in _around(self.child)):
            # Born into an execution that was stopped.
            self.scope.cancel()

    async def run(self, frame: Frame, spec: SpawnSpec) -> Any:
        """What the step does when it is executed."""
        frame.opened = True
        root = head(self.child, frame, frame.step, frame.domain)
        if frame.node is not None:
            stop_again(self.child, frame.at)
            if self.child.stop is not None:
                put_down(root, frame.node)
        try:
            return await run_child(self.child, root, spec, self._value)
        finally:
            self.child.frame = None
            # What the child has written into the conversation is its own, and no work of this step's.
            frame.mark = frame.written = len(frame.log)

    async def carry(self) -> None:
        """The task: run the step to its end, whatever that is, and tell who waits."""
        output, error = no_value(), None
        try:
            with self.scope:
                # What was cancelled before it began does not begin.
                await checkpoint()
                output = await execute(self._step, self._value, self._above, self._name, self._domain)
        except NoeticError as failure:
            error = failure
            settle_state(self._domain, failure)
        except Parked:
            self.parked = self._run.waits = True
        finally:
            self.child.ended()
            self._lease.close()
            self._run.family.children -= 1
            self._run.detached.remove(self)
            self.outcome = self._result(output, error)
            self.done.set()

    def _result(self, output: Any, error: NoeticError | None) -> RunResult[Any, Any]:
        status, reason = _ending(self.path, output, error, self.child.stop)
        if self.parked:
            status, reason = "suspended", "it waits for an answer"
        if status == "failed":
            _log.warning("detached %s failed: %s", "/".join(self.path), error)
        journal, path, lease = self._run.journal, self.path, self._lease
        end = len(journal)
        broken = error if status in ("failed", "budget_exceeded") else None

        def transcript() -> Transcript:
            log = ItemLog()
            log.extend(items_below(_valid(journal, path, end), path, () if broken is None else broken.path))
            items = log.rendered(f"{status}: {reason}" if reason else status)
            return Transcript(items, items)

        result: RunResult[Any, Any] = RunResult(
            run_id=self.run_id,
            status=status,
            output=output,
            state=self._domain.state,
            usage=lease.tokens,
            cost=None if self._run.unpriced else lease.cost,
            steps=lease.steps,
            model_calls=lease.calls,
            seconds=self.child.elapsed,
            checkpoint=Checkpoint(self.run_id, len(journal)),
            transcript=transcript,
            reason=reason,
            error=broken,
            possibly_spent=self._run.possibly_spent(path),
        )
        if broken is not None:
            broken.result = result
        return result

    async def wait(self) -> RunResult[Any, Any]:
        """Wait for the end."""
        while self.outcome is None:
            await self.done.wait()
        waiting = CURRENT.get()
        if self.parked and isinstance(waiting, Frame) and waiting.x.run is self._run:
            # Who waits for it in the run waits for the same answer.
            raise Parked
        return self.outcome

    def abort(self, reason: str) -> None:
        """Stop it."""
        if not self.done.is_set():
            self.child.request(Control("abort", reason=reason))

    def channel(self, channel: Channel[Any]) -> ChannelHandle[Any]:
        """A handle of one of the run's channels."""
        return external_handle(self._run, channel)


def _above(run: Run, frame: Frame, domain: Domain) -> Frame:
    """What the work hangs from: the run itself, at the caller's path, so that it writes nothing of the caller's."""
    root = None if run.root is None else run.root.frame
    if run.root is None or root is None:
        raise ConfigError("the run is over", code="not-running", hint="start work while a step runs")
    above = Frame(root.step, root, run.root, frame.at, domain, frame.lease, 0)
    above.virtual = above.opened = True
    above.node = frame.node
    return above


def _around(x: Execution) -> list[Execution]:
    """The executions that an execution was started in, from the inside."""
    found: list[Execution] = []
    parent = x.parent_context
    while isinstance(parent, Frame):
        found.append(parent.x)
        parent = parent.x.parent_context
    return found


def _ending(
    path: tuple[str, ...], output: Any, error: NoeticError | None, stop: Control | None
) -> tuple[RunStatus, str | None]:
    """How it ended, and why; an abort of something below it that nobody handled is a failure like any other."""
    if error is None:
        return ("completed", None) if output is not no_value() else ("cancelled", "what started it has ended")
    if stop is not None:
        return stop.status, stop.reason
    if isinstance(error, Aborted) and error.path == path:
        # As it is recorded: it was stopped before this process had the run.
        return "aborted", error.reason
    return "budget_exceeded" if isinstance(error, BudgetExceeded) else "failed", error.message


def _valid(journal: Sequence[JournalRecord], path: tuple[str, ...], end: int) -> Sequence[JournalRecord]:
    """The records up to an end of what has run at a path since an attempt around it was void for the last time."""
    start = 0
    for at, record in enumerate(journal[:end], 1):
        if isinstance(record, StepFailed) and not record.final and path[: len(record.path)] == record.path:
            start = at
    return journal[start:end]


async def run_detached(value: Any, frame: Frame) -> Any:
    """The step of the journal that stands for the work."""
    spec: tuple[SpawnSpec, Detached] = frame.step.spec
    return await spec[1].run(frame, spec[0])


def external_handle(run: Run, channel: Channel[Any]) -> ChannelHandle[Any]:
    """A handle of a run's channel for code outside of it.

    Raises:
        ConfigError: It is no channel, or not an external one; code `"channel"`.
        WrongThread: This is not the run's thread, nor a sync tool's.
    """
    return run.in_its_thread(partial(_open, run, channel))


def _open(run: Run, channel: Channel[Any]) -> ChannelHandle[Any]:
    live: Live = run.channels.live(channel)
    if not channel.external:
        raise ConfigError(
            f"{channel!r} is not external", code="channel", hint=f"Channel({channel.name!r}, ..., external=True)"
        )
    return ChannelHandle(channel, live)


DOORS.detach = detach
HANDLERS["detached"] = run_detached
