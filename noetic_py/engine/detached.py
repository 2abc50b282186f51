"""Detached work: executions that the run owns and that no step waits for, and their recovery after a crash."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from logging import WARNING
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve, frozen

from noetic_py.channels import ChannelHandle, LiveChannel
from noetic_py.channels.declared import AnyChannel, require_external
from noetic_py.context.detached import DetachedWork, DetachOptions
from noetic_py.context.protocol import CURRENT
from noetic_py.context.read import ContextScope, branch_at
from noetic_py.context.step import AnyStep, Step, require_step
from noetic_py.context.step import frame as frame_name
from noetic_py.core.budget import Budget, BudgetLease
from noetic_py.core.codec.structure import dump, parse
from noetic_py.core.control import NO_VALUE, AnyResult, Checkpoint, Control, RunResult, RunStatus, Transcript
from noetic_py.core.diagnostics import Where, log, warn
from noetic_py.core.log import ItemLog
from noetic_py.core.memory import Memory
from noetic_py.core.state import NO_LAYER_STATES, LayerStates, StateBag, copy_state
from noetic_py.core.values import copy_value
from noetic_py.engine.execute import execute, settle_state
from noetic_py.engine.fingerprint import declared_input, fingerprint, referenced
from noetic_py.engine.frame import Frame, Waiting, acting, lost_task, settle_cuts, waited
from noetic_py.engine.journaling.fold import DETACHED_START, below, items_below
from noetic_py.engine.journaling.ledger import count_turns, recover
from noetic_py.engine.journaling.replay import as_stored, call, put_down, put_state, stop_again, stored_type, version_of
from noetic_py.engine.kind import Node
from noetic_py.engine.kinds.spawn import DetachedSpec, run_child
from noetic_py.engine.layers.handles import layers_for
from noetic_py.engine.layers.versions import is_older, migrated, revise_here, versions_of
from noetic_py.engine.state import Execution, Run, budget_of, head, limits_of
from noetic_py.engine.stops import COMPLETED, VALUELESS, asked_again, asked_by, asked_in, check_value, note, out_of_time
from noetic_py.errors import (
    Aborted,
    BudgetExceeded,
    CodecError,
    ConcurrentStepCall,
    ConfigError,
    LimitExceeded,
    NoeticError,
)
from noetic_py.journal.records import AttemptFailed, Decision, JournalRecord, StepOpened
from noetic_py.redaction import with_article
from noetic_py.steps.spawn import MemorySpec, SpawnSpec

if TYPE_CHECKING:
    from noetic_py.core.codec import Codec
    from noetic_py.core.types import Version


def detach(frame: Frame, step: AnyStep, value: object, options: DetachOptions, own: bool = True) -> DetachedWork:
    """Start a step beside the flow; see [`Context.spawn_detached`][noetic_py.Context.spawn_detached].

    `own` says whether it was asked for in the run's own thread, and not by a sync tool, for which its thread waits.
    """
    frame = acting(frame)
    settle_cuts(frame)
    require_step(step, "spawn_detached")
    _check(options, frame)
    resources = frame.x.run.resources
    if resources.group is None or resources.start_detached is None:
        raise ConfigError(
            "spawn_detached() needs an owner for its task",
            code="harness-not-entered",
            path=frame.at,
            hint="async with Harness() as harness:",
        )
    _check_task(frame, step, own)
    if options.owner == "harness":
        return resources.start_detached(frame.x.run, step, value, options, _own_id(frame, step))
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
            f"memory={options.memory!r} is not a valid memory; expected an instance of a Memory subclass",
            code="detached",
            path=frame.at,
            hint="memory=Mem()",
        )
    if options.budget is not None and not isinstance(options.budget, Budget):
        raise ConfigError(
            f"budget={options.budget!r} is not a valid budget; expected a Budget",
            code="detached",
            path=frame.at,
            hint="budget=Budget(steps=10)",
        )


def _check_task(frame: Frame, step: AnyStep, own: bool) -> None:
    """Work is started from the body's own task, in which the order of calls is the program's."""
    if not (frame.on_stack if own else frame.running):
        raise ConcurrentStepCall(
            f"{step.id} was started by {'/'.join(frame.at)} from a task or thread of its own, or after its end",
            path=frame.at,
            hint="call spawn_detached in the step itself",
        )


class Detached:
    """One execution beside the flow."""

    def __init__(self, frame: Frame, step: AnyStep, value: object, options: DetachOptions) -> None:
        caller, run = frame.x, frame.x.run
        self.run_id: str = run.run_id
        self._run = run
        self._value = copy_value(value)
        state = copy_state(frame.scope.state) if options.state is None else options.state
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
        self._lease = BudgetLease(None, frame.lease, depth=caller.depth + 1)
        layers = None if options.memory is None else layers_for(options.memory)
        self.child = Execution(run, self._lease, depth=caller.depth + 1, parent=frame, input=self._value, layers=layers)
        if frame.node is not None:
            recover(run, self._lease, self.path)
            count_turns(self.child, self.path)
        # Its task is not below the run's own, and the time of the run is its time.
        self.cancel_scope = anyio.CancelScope(deadline=math.inf if run.root is None else run.root.cancel_scope.deadline)
        self.done = anyio.Event()
        self._outcome: AnyResult | None = None
        # Whether it waits for an answer.
        self.waiting = False
        log = ItemLog()
        branch = branch_at((*self.path, step.id))
        log.origin = (run.run_id, branch)
        spec = SpawnSpec(step, "share", "new", None, options.budget)
        if options.memory is not None:
            spec = MemorySpec(step, "share", "new", None, options.budget, options.memory)
        layer_states = frame.scope.layer_states if options.memory is None else NO_LAYER_STATES
        self._flow = step
        self._scope = ContextScope(log, state, branch, layer_states=layer_states)
        self._step: AnyStep = Step(id=step.id, kind="detached", spec=DetachedSpec(spec, self))
        self._above = _above(run, frame, self._scope)
        run.journal.append(StepOpened(self.path, "detached", 1))
        _note_start(run, self.path, step, self._value, self._scope, options, count, versions_of(caller.layers))
        run.detached.append(self)
        if any(x.stop is not None for x in _around(self.child)):
            # Born into an execution that was stopped.
            self.cancel_scope.cancel()

    async def run(self, frame: Frame, spec: SpawnSpec) -> Any:
        """Run the work as the body of its step."""
        frame.opened = True
        root = head(self.child, frame, frame.step, frame.scope)
        if isinstance(spec, MemorySpec):
            revise_here(root)
        if frame.node is not None:
            stop_again(self.child, frame.at)
            asked = asked_again(frame.node, self._run, spec.step)
            if asked is not None and not asked.rule.wraps_up:
                self.child.request(asked)
            if self.child.stop is not None:
                put_down(root, frame.node)
        try:
            output = await run_child(self.child, root, spec, self._value)
            # The journal has no form of a value that there is not: that it was wrapped up without one says it.
            return None if output is NO_VALUE else output
        finally:
            self.child.over = True
            self.child.frame = None
            # Items of the child are its own, and not work of this step.
            frame.mark = frame.written = len(frame.log)

    async def carry(self) -> None:
        """The task: run the step to its end, and wake the waiters."""
        output, error = NO_VALUE, None
        try:
            with self.cancel_scope:
                # Work that was cancelled before its start does not start.
                await checkpoint()
                output = await execute(self._step, self._value, self._above, self._name, self._scope)
        except NoeticError as failure:
            error = failure
            settle_state(self._scope, failure)
        except Waiting:
            self.waiting = self._run.waits = True
        except BaseException as cut:
            # A cancellation of this task alone ends this work, and not the harness that owns the task.
            if lost_task(cut) is None:
                raise
        finally:
            self.child.ended()
            self._lease.close()
            self._run.limits.children -= 1
            self._run.detached.remove(self)
            self._outcome = self._result(output, error)
            self.done.set()

    def _result(self, output: object, error: NoeticError | None) -> AnyResult:
        status, reason = _ending(self.path, output, error, self.child.stop)
        valid = _valid(self._run.journal, self.path) if status == "completed" else ()
        asked = asked_in(valid, self.path)
        if asked is not None:
            reason = asked.reason
            decided = {each.key for each in valid if isinstance(each, Decision) and each.path == self.path}
            if output is None and asked.rule.wraps_up and VALUELESS in decided:
                output, reason = NO_VALUE, out_of_time(reason)
            elif output is None and asked.rule.wraps_up and "wrap_up" not in decided:
                # There was no wrap-up step, and no loop with a value.
                output = NO_VALUE
        if self.waiting:
            status, reason = "suspended", "it waits for an answer"
        if status == "failed":
            where = Where(self._run.run_id, self.path, 1)
            log("runs", WARNING, "detached %s failed: %s", "/".join(self.path), reason, where=where, error=error)
        run, path, lease = self._run, self.path, self._lease
        end = run.position
        broken = error if status in ("failed", "budget_exceeded") else None
        cause = () if broken is None else broken.path
        if status != "completed" and self._above.node is not None:
            # An earlier process may have come further than this one.
            put_state(self._above, below(run.journal_to(end), run.kinds, path, cause))

        def transcript() -> Transcript:
            log = ItemLog()
            log.extend(items_below(run.journal_to(end), run.kinds, path, cause))
            items = log.rendered(f"{status}: {reason}" if reason else status, self._run.unfinished)
            return Transcript(items, items)

        result: AnyResult = RunResult(
            run_id=self.run_id,
            status=status,
            output=output,
            state=self._scope.state,
            usage=lease.tokens,
            cost=None if self._run.unpriced else lease.cost,
            steps=lease.steps,
            model_calls=lease.calls,
            seconds=self.child.elapsed,
            checkpoint=Checkpoint(self.run_id, end),
            transcript=transcript,
            reason=reason,
            error=broken,
            memory=self._scope.layer_states,
            possibly_spent=self._run.possibly_spent(path),
        )
        if broken is not None:
            broken.result = result
        return result

    async def wait(self) -> AnyResult:
        """Wait for the end."""
        waiting = CURRENT.get()
        outcome = await waited(waiting, self._name, self._ended)
        if self.waiting and isinstance(waiting, Frame) and waiting.x.run is self._run:
            # Steps of the run that wait for it wait for the same answer.
            raise Waiting
        return outcome

    async def _ended(self) -> AnyResult:
        while (outcome := self.outcome) is None:
            await self.done.wait()
        return outcome

    @property
    def outcome(self) -> AnyResult | None:
        """How it ended, with a copy of the value for each caller; `None` while it runs."""
        outcome = self._outcome
        if outcome is None or not outcome.has_value:
            return outcome
        value = copy_value(outcome.value)
        return outcome if value is outcome.value else evolve(outcome, output=value)

    def complete(self, value: object) -> bool:
        """End it with a value."""
        store = self._run.store
        check_value(value, self._flow, None if store is None else store.codec)
        return self._stop(Control("complete", value=copy_value(value), reason=COMPLETED, by=asked_by()))

    def wrap_up(self, reason: str) -> bool:
        """Have it finish with what it has."""
        return self._stop(Control("wrap_up", reason=reason, by=asked_by()))

    def _stop(self, control: Control) -> bool:
        return self._run.in_its_thread(partial(self._take_stop, control))

    def _take_stop(self, control: Control) -> bool:
        if self.done.is_set() or not self.child.takes(control):
            return False
        note(self._run, control, path=self.path)
        return self.child.request(control)

    def abort(self, reason: str) -> None:
        """Stop it."""
        self._stop(Control("abort", reason=reason, by=asked_by()))

    def channel(self, channel: AnyChannel) -> ChannelHandle[Any]:
        """A handle of one of the run's channels."""
        return external_handle(self._run, channel)


def _above(run: Run, frame: Frame, scope: ContextScope) -> Frame:
    """The parent frame of the work: the run's root at the caller's path, so that it writes no records of the caller."""
    root = None if run.root is None else run.root.frame
    if run.root is None or root is None:
        raise ConfigError("the run is over", code="not-running", hint="start work while a step runs")
    above = Frame(root.step, root, run.root, frame.at, scope, frame.lease, 0)
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
    path: tuple[str, ...], output: object, error: NoeticError | None, stop: Control | None
) -> tuple[RunStatus, str | None]:
    """How it ended, and why; an abort below it that was not handled is a failure like any other."""
    if error is None:
        return ("completed", None) if output is not NO_VALUE else ("cancelled", "what started it has ended")
    if stop is not None:
        return stop.status, stop.reason
    if isinstance(error, Aborted) and error.path == path:
        # The recorded end: it was stopped before this process had the run.
        return "aborted", error.reason
    return "budget_exceeded" if isinstance(error, BudgetExceeded) else "failed", error.message


def _valid(journal: Sequence[JournalRecord], path: tuple[str, ...]) -> Sequence[JournalRecord]:
    """The records of a path since an attempt around it was last discarded."""
    start = 0
    for at, record in enumerate(journal, 1):
        if isinstance(record, AttemptFailed) and not record.final and path[: len(record.path)] == record.path:
            start = at
    return journal[start:]


def external_handle(run: Run, channel: AnyChannel) -> ChannelHandle[Any]:
    """A handle of a run's channel for code outside of it.

    Raises:
        ConfigError: It is not a channel, or not an external one; code `"channel"`.
        WrongThread: This is not the run's thread, nor a sync tool's.
    """
    return run.in_its_thread(partial(_open, run, channel))


def _open(run: Run, channel: AnyChannel) -> ChannelHandle[object]:
    live: LiveChannel = run.channels.live(channel)
    require_external(channel)
    return ChannelHandle(channel, live)


def _note_start(
    run: Run,
    path: tuple[str, ...],
    step: AnyStep,
    value: object,
    scope: ContextScope,
    options: DetachOptions,
    at: int,
    versions: Mapping[str, Version] | None = None,
) -> None:
    """Write down what was started; what cannot be stored is not, and does not go on when its starter has finished.

    Layers that were given to it are code and settings, and cannot be stored either.

    Args:
        run: The run.
        path: The work's.
        step: What was started.
        value: Its input.
        scope: The state it begins with, and those of layers.
        options: What else it was given.
        at: How many of this step its starter had started before.
        versions: Those of the layers that are not the first.
    """
    if run.store is None or options.memory is not None or path in (run.recovered_work or ()):
        return
    codec, state = run.store.codec, scope.state
    try:
        started: dict[str, object] = {
            "step": step.id,
            "fingerprint": fingerprint(step),
            "count": at,
            # Stored as texts, which can be read before their classes are known.
            "input": dump(codec.encode(value)).decode(),
            "state": dump(codec.encode(as_stored(state))).decode(),
            "bag": isinstance(state, StateBag),
            "version": version_of(state.__class__),
            "budget": limits_of(options.budget),
        }
        if scope.layer_states:
            started["memory"] = dump(codec.encode(dict(scope.layer_states))).decode()
            if versions:
                started["layers"] = dict(versions)
        record = Decision(path, DETACHED_START, started)
        run.store.prepare(record)
    except (CodecError, ConfigError, LimitExceeded):
        return
    run.journal.append(record)


_MOST = 64 * 1024 * 1024


def recover_detached(parent: Frame, step: AnyStep, node: Node) -> None:
    """Restart the detached work that was in flight and belongs to a replayed child.

    Args:
        parent: The step that called the child; it owns the work from now on.
        step: The child.
        node: What the journal says of it.
    """
    run = parent.x.run
    if run.recovered_work is None:
        return
    for starter, work in _left_alone(node, within=False):
        if work.path in run.recovered_work:
            continue
        run.recovered_work.add(work.path)
        start = _read(parent, step, work)
        if start is None or run.resources.group is None:
            warn(f"{'/'.join(work.path)} had not ended, and the step that had started it has: it does not go on")
            continue
        # It begins with the states of layers that its starter had then.
        scope = ContextScope(parent.scope.log, None, parent.scope.branch, layer_states=start.layer_states)
        frame = Frame(step, parent, parent.x, starter.path, scope, parent.lease, scope.log.size)
        frame.node = starter
        frame.occurrences = {f"{start.step.id}[detached]": start.count}
        options = DetachOptions(None, start.state, start.budget, "run")
        run.resources.group.start_soon(Detached(frame, start.step, start.value, options).carry)


def _left_alone(node: Node, *, within: bool) -> Iterator[tuple[Node, Node]]:
    """Work that was in flight when its starter was done already, each with the starter.

    `within` says whether a step around has finished: below that, what has not was cancelled.
    """
    done = node.finished is not None
    if within and not done:
        return
    for child in node.lasting:
        if done and child.kind.beside and child.finished is None and child.name not in node.failed:
            yield node, child
        yield from _left_alone(child, within=within or done)


@frozen(eq=False)
class _DetachedStart:
    step: AnyStep
    value: Any
    state: Any
    layer_states: LayerStates
    budget: Any
    count: int


def _read(parent: Frame, step: AnyStep, work: Node) -> _DetachedStart | None:
    """The work that was started; `None` if it is missing or has changed."""
    decided = work.decisions.get(DETACHED_START)
    store = parent.x.run.store
    if decided is None or store is None:
        return None
    found = {
        id(each): each
        for each in referenced(step)
        if each.id == decided["step"] and fingerprint(each) == decided["fingerprint"]
    }
    if len(found) != 1:
        # Two may say the same and hold different values.
        return None
    (started,) = found.values()
    try:
        value = store.codec.decode(_parsed(decided["input"]), declared_input(started))
        state = _state(decided, parent.scope.state.__class__, store.codec)
        layer_states = _layer_states(decided, parent, store.codec)
        return _DetachedStart(started, value, state, layer_states, budget_of(decided["budget"], None), decided["count"])
    except (CodecError, ConfigError):
        return None


def _layer_states(decided: Mapping[str, Any], parent: Frame, codec: Codec) -> LayerStates:
    """The states of layers that it was started with.

    Raises:
        CodecError: One does not fit its layer.
        ConfigError: One is of a newer version.
    """
    if "memory" not in decided:
        return parent.scope.layer_states
    layers, layer_states = parent.x.layers, dict[str, Any]()
    for name, tree in _parsed(decided["memory"]).items():
        layer, kind = layers.by_id.get(name), layers.state_type(name)
        version = decided.get("layers", {}).get(name, 1)
        if layer is not None and tree is not None and is_older(layer, version):
            layer_states[name] = migrated(layer, codec, tree, version, kind)
        else:
            layer_states[name] = codec.decode(tree, kind)
    return layer_states


def _state(decided: Mapping[str, Any], kind: type[object], codec: Codec) -> Any:
    """The state that it was started with, when that is plain, or of the class that its starter's has.

    Raises:
        CodecError: It is something else.
    """
    tree = _parsed(decided["state"])
    name = stored_type(tree)
    if name == "dict":
        made = codec.decode(tree)
        return StateBag(made) if decided["bag"] else made
    if name != kind.__name__ or decided["version"] != version_of(kind):
        raise CodecError(f"the state is {with_article(name)} of version {decided['version']}")
    return codec.decode(tree, kind)


def _parsed(text: str) -> Any:
    return parse(text, _MOST, "what was started")
