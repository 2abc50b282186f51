"""Runs that workers carry out for steps of other runs: how one begins, how it has ended, and how it is stopped."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from logging import WARNING
from typing import Any

from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.context.step import AnyStep
from noetic_py.core.budget import NO_USAGE, Budget, Usage
from noetic_py.core.control import AnyResult, Control, RunStatus
from noetic_py.core.diagnostics import Where, log
from noetic_py.core.shared_budget import SharedBudget
from noetic_py.core.state import StateBag
from noetic_py.engine.fingerprint import referenced
from noetic_py.engine.frame import Frame
from noetic_py.engine.journaling.fold import Begun
from noetic_py.engine.journaling.run_history import is_unpriced, read_journal, recorded_usage
from noetic_py.engine.journaling.writer import PlannedWrite
from noetic_py.engine.kinds import KINDS
from noetic_py.engine.protocol import ChildEnd
from noetic_py.engine.state import Run
from noetic_py.engine.stops import ORPHAN, Asked, asked_in
from noetic_py.journal.fields import summary_fields
from noetic_py.journal.records import JournalRecord, RunEnded
from noetic_py.journal.run_summary import PlainCodec
from noetic_py.journal.stored import Lease, Queued, Transaction
from noetic_py.redaction import with_article
from noetic_py.runner.lease import failure_of, find_state_type, prepare_new_run
from noetic_py.runner.plan import Planner, detached_options
from noetic_py.steps.spawn import QueuedSpec

_ENDED: tuple[RunStatus, ...] = ("completed", "aborted", "failed", "budget_exceeded")
_LONGEST_STOP = 5.0
"""Seconds that the owner of a child has to take a request to stop."""


def named_steps(flows: Mapping[str, AnyStep]) -> Iterator[tuple[str, AnyStep]]:
    """The steps that workers with these flows can carry out, by name: the flows, and what they spawn into queues."""
    yield from flows.items()
    known = {id(step) for step in flows.values()}
    for flow in flows.values():
        for step in referenced(flow):
            spec: object = step.spec
            if isinstance(spec, QueuedSpec) and id(spec.step) not in known:
                known.add(id(spec.step))
                yield spec.step.id, spec.step


@frozen(eq=False)
class _Planned:
    """The beginning of a child, which is committed with the request for it."""

    transaction: Transaction
    look: Callable[[], None]

    def written(self, lease: Lease, /) -> None:
        """Have the workers of this process look for it at once."""
        self.look()


class QueuedChildren:
    """The runs that workers carry out for steps of a harness's runs.

    Args:
        backend: Where they are stored.
        planner: Makes them.
        flows: The flows of the harness.
        result: Reads the result of a run that has completed.
        look: Has the workers of this process look for runs.
    """

    def __init__(
        self,
        backend: CheckpointBackend,
        planner: Planner,
        flows: Mapping[str, AnyStep],
        result: Callable[[str, AnyStep], Awaitable[AnyResult]],
        look: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._planner = planner
        self._flows = flows
        self._result = result
        self._look = look
        self._labels: dict[int, str] = {}

    async def plan(self, frame: Frame, spec: QueuedSpec, value: object, run_id: str) -> PlannedWrite:
        """How a child begins.

        Raises:
            ConfigError: No flow of the harness spawns the step, code `"flows"`; the backend has no queues, code
                `"queues"`; the class of its state is not known to workers, code `"spawn"`; or a budget cannot be given
                to it, code `"budget"`.
            CodecError: The input or the state cannot be stored.
        """
        parent, step = frame.x.run, spec.step
        if not self._labels:
            # Refused here where there are none, and not in the commit, which would break the parent.
            await self._backend.queues()
        claimed = None if parent.store is None else parent.store.claimed
        # It waits as its parent has, in whatever queue.
        place = Queued(spec.queue, "", key=parent.user_id or "") if claimed is None else claimed.claim.queued
        now = await self._backend.clock()
        queued = Queued(spec.queue, self._label(step), now, place.priority, place.key)
        options = detached_options(parent, None, run_id) | _budget_of(frame, spec)
        run, plan = self._planner.new(step, value, _state(frame, spec), None, options)
        try:
            if plan.storage is None:
                raise errors.ConfigError("the harness keeps no runs", code="no-backend")
            run.parent = parent.run_id
            if spec.items != "new":
                plan.scope.log.put(frame.log.rendered("its run goes on"), ())
            _, store = prepare_new_run(run, plan, evolve(plan.storage, queued=queued))
            return _Planned(store.first(run.journal), self._look)
        finally:
            self._planner.living.remove(run)

    def _label(self, step: AnyStep) -> str:
        """What queues call the step.

        Raises:
            ConfigError: Workers could not find it; code `"flows"`.
        """
        from noetic_py.runner.workers import label_of

        if not self._labels:
            self._labels.update((id(each), label_of(name, each)) for name, each in named_steps(self._flows))
        label = self._labels.get(id(step))
        if label is None:
            raise errors.ConfigError(
                f"step {step.id!r} is not a valid step for a queue: workers could not find it; expected one that a "
                "flow of the harness spawns",
                code="flows",
                hint='Harness(flows={"name": flow}), where flow or a function that it calls names the spawn',
            )
        return label

    async def ended(self, run_id: str, step: AnyStep) -> ChildEnd | None:
        """How a child has ended; `None` while workers may go on with it.

        Raises:
            CheckpointError: Its journal cannot be read.
        """
        entry = await self._backend.entry(run_id)
        if entry is None:
            gone = errors.RunNotFound(
                f"run {run_id!r}, which is waited for, was deleted", hint="resume its parent to begin another one"
            )
            return ChildEnd(None, gone, Usage(), False, 0, ())
        found: list[RunStatus] = [each for each in _ENDED if each == entry.status]
        if not found or entry.held or "queue" in summary_fields(entry.summary):
            return None
        (status,) = found
        journal = await read_journal(self._backend, run_id, PlainCodec())
        end = _used_in(journal)
        if status == "completed":
            return evolve(end, value=(await self._result(run_id, step)).value)
        if status == "aborted":
            asked, last = asked_in(journal), journal[-1]
            control = last.control if isinstance(last, RunEnded) else None
            reason = asked.reason if asked is not None else "" if control is None else control.reason or ""
            return evolve(end, error=errors.Aborted(reason), again=asked is not None and asked.key == ORPHAN)
        return evolve(end, error=await failure_of(self._backend, run_id, status))

    async def stop(self, run_id: str, reason: str, key: str | None) -> None:
        """End a child that is not wanted any more.

        Args:
            run_id: The child.
            reason: Why.
            key: Names the request; `None` for a new one.
        """
        from noetic_py.runner.stop_requests import request_stop

        runtime = self._planner.resources.runtime
        asked = Asked("abort", None, reason, key=runtime.new_id() if key is None else key)
        try:
            with suppress(errors.RunOver, errors.RunNotFound):
                await request_stop(self._backend, run_id, asked, _LONGEST_STOP, runtime)
        except errors.CheckpointError as error:
            text = "run %s goes on: it could not be stopped: %s"
            log("runs", WARNING, text, run_id, error.message, where=Where(run_id))


def _used_in(journal: Sequence[JournalRecord]) -> ChildEnd:
    """What a run has used."""
    usages = recorded_usage(journal, KINDS, Begun(KINDS))
    costs = [usage.used.cost for usage in usages if usage.used.cost is not None]
    used = Usage(
        sum((usage.used.tokens for usage in usages), NO_USAGE),
        sum(costs, Decimal(0)) if costs else None,
        sum(usage.used.model_calls for usage in usages),
    )
    tools = [usage.tool for usage in usages if usage.tool is not None]
    return ChildEnd(None, None, used, is_unpriced(journal), sum(usage.steps for usage in usages), tools)


def _budget_of(frame: Frame, spec: QueuedSpec) -> dict[str, Any]:
    """The limits of a child, as an option of its run.

    Raises:
        ConfigError: It has limits of its own, and shares others with its parent; code `"budget"`.
    """
    run, budget, lease = frame.x.run, spec.budget, frame.lease
    shared: SharedBudget | None = None if run.shared is None else run.shared.of_run(run.resources.shared)
    if shared is not None:
        if budget is not None:
            raise errors.ConfigError(
                f"the run shares the budget {shared.name!r}, and spawn(queue=, budget=) gives another one; expected "
                "one of both",
                code="budget",
                hint="give the child's limits to its step: spawn(step.with_options(budget=Budget(...)), queue=...)",
            )
        return {"budget": shared}
    if lease.deadline is not None:
        left = max(lease.deadline - run.runtime.monotonic(), 0.0)
        own = None if budget is None else budget.seconds
        budget = _with_seconds(budget, left if own is None else min(own, left))
    return {} if budget is None else {"budget": budget}


def _with_seconds(budget: Budget | None, seconds: float) -> Budget:
    limits: dict[str, Any] = {}
    if budget is not None:
        counts = {name: limit for name, limit in budget.limits.items() if not name.startswith("per_tool:")}
        limits = {name: limit if name == "cost" else int(limit) for name, limit in counts.items()}
        limits |= {"per_tool": budget.per_tool, "depth": budget.depth, "warn_at": budget.warn_at}
    return Budget(**limits, seconds=seconds)


def _state(frame: Frame, spec: QueuedSpec) -> object:
    """The state that a child begins with.

    Raises:
        ConfigError: Workers would not know its class; code `"spawn"`.
    """
    if callable(spec.state):
        state = spec.state()
    elif spec.state == "new":
        return None
    else:
        state = copy.copy(frame.state)
    if type(state) is not StateBag and find_state_type(type(state).__name__, spec.step) is None:
        raise errors.ConfigError(
            f"the state of {spec.step.id!r} is {with_article(type(state).__name__)}, "
            "and no annotation of the step names it",
            code="spawn",
            path=frame.at,
            hint='annotate its context, as in ctx: Context[Memory, State]; or give it none: spawn(..., state="new")',
        )
    return state


async def look_at_parent(run: Run) -> None:
    """Stop a run that a worker has when the one that waits for its end has ended, or was deleted."""
    store, parent = run.store, run.parent
    if store is None or parent is None or store.claimed is None:
        # Who resumes it by hand, or a fork of it, wants it for itself.
        return
    entry = await store.backend.entry(parent)
    if entry is not None and (entry.status not in _ENDED or entry.held or "queue" in summary_fields(entry.summary)):
        return
    why = "was deleted" if entry is None else f"has ended as {entry.status}"
    asked = Asked("abort", None, f"run {parent}, which waits for it, {why}", key=ORPHAN)
    if run.take_stop(Control("abort", reason=asked.reason), key=asked.key):
        await store.commit(run.journal, force=True)
