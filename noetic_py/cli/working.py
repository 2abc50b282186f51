"""`noetic submit`, `worker`, `queues`, `budgets` and `schedules`: runs that worker processes carry out."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, NoReturn

from attrs import asdict, frozen

from noetic_py.checkpoints.budgets import amount_of
from noetic_py.cli.database import Place, flag, opened, read_runs
from noetic_py.cli.formatting import amount, money, printable, program, table
from noetic_py.cli.inputs import read_age, read_input
from noetic_py.cli.loading import FlowFile, load_flow, make_harness
from noetic_py.cli.report import say, write_out
from noetic_py.cli.running import database_of
from noetic_py.context.step import Retry
from noetic_py.core.shared_budget import has_ended
from noetic_py.errors import ConfigError, MissingExtra
from noetic_py.harness import Harness
from noetic_py.journal.stored import BudgetRow, QueueStats
from noetic_py.runner.lease import beside
from noetic_py.runner.registry import Signals
from noetic_py.runner.workers import labelled

__all__ = [
    "ScheduleRequest",
    "SubmitRequest",
    "WorkRequest",
    "leave",
    "show_budgets",
    "show_queues",
    "show_schedules",
    "submit",
    "work",
]


@frozen(eq=False)
class SubmitRequest:
    """The options of `noetic submit`; see `noetic submit --help`."""

    target: str
    input: str | None
    db: str | None
    queue: str
    after: str | None
    priority: int
    key: str | None
    run_id: str | None


async def submit(request: SubmitRequest) -> int:
    """Store a run for a worker, and print its id."""
    file = load_flow(request.target)
    value = read_input(file.step, request.input)
    options: dict[str, Any] = {
        "queue": request.queue,
        "priority": request.priority,
        "key": request.key,
        "source": file.source,
    }
    if request.after is not None:
        options["at"] = read_age(request.after)
    if request.run_id is not None:
        options["run_id"] = request.run_id
    if file.budget is not None:
        options["budget"] = file.budget
    if file.state is not None:
        options["state"] = file.state()
    place = database_of(file, request.db)
    async with AsyncExitStack() as stack:
        harness = await _harness(stack, file, None, place)
        write_out(await harness.submit(file.step, value, **options))
    say(f"carried out by: {program()} worker {request.target}{flag(place)}")
    return 0


@frozen(eq=False)
class WorkRequest:
    """The options of `noetic worker`; see `noetic worker --help`."""

    target: str
    model: str | None
    db: str | None
    queues: tuple[str, ...]
    concurrency: int
    lives: int
    attempts: int
    grace: float
    on: Literal["temporal"] | None


async def work(request: WorkRequest) -> int:
    """Carry out submitted runs until a signal comes; says what begins and ends.

    Returns:
        The exit code: 0 once all that went on has ended or was handed over.
    """
    temporal = None if request.on is None else _temporal()
    if temporal is not None and (request.queues or request.attempts > 1):
        raise ConfigError(
            "--queue and --attempts have no effect with --on temporal", code="work", hint="leave them out"
        )
    queues = request.queues or ("default",)
    file = load_flow(request.target, for_harness=True)
    place = database_of(file, request.db)
    with _saying(), Signals("stopped\n", limit=request.grace + 2.0) as signals:
        async with AsyncExitStack() as stack:
            harness = await stack.enter_async_context(await _harness(stack, file, request.model, place))
            # What is wrong with the flows or the store is said before.
            labelled(harness.flows)
            await harness.runs.queues()
            client = None if temporal is None else await temporal.connected()
            say(f"working at {request.on or ', '.join(queues)}: {', '.join(harness.flows)}; Ctrl-C stops")
            stopping = partial(_stop_on_signal, signals, harness, request.grace)
            limits: dict[str, Any] = {"concurrency": request.concurrency, "lives": request.lives}
            if temporal is None:
                retry = Retry(request.attempts) if request.attempts > 1 else None
                await beside(stopping, partial(harness.work, queues, retry=retry, **limits))
            else:
                # It works until it is cancelled: its workers do not know that the harness is shut down.
                await beside(partial(temporal.work, client, harness, **limits), stopping)
    return 0


def leave(code: int) -> NoReturn:
    """End the process after work for Temporal, without the interpreter's clean-up.

    Threads of its SDK may take the interpreter's lock while that is taken down, and the process would abort with
    everything done, or said: https://github.com/temporalio/sdk-python/issues/300.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _temporal() -> ModuleType:
    try:
        return import_module("noetic_temporal.worker")
    except ModuleNotFoundError as error:
        if error.name != "noetic_temporal":
            raise
        install = "pip install noetic-temporal"
        raise MissingExtra("noetic-temporal, which `noetic worker --on temporal` needs,", install=install) from None


@contextmanager
def _saying() -> Generator[None]:
    """Say on standard error what begins and ends."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("noetic_py.runs")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


async def _stop_on_signal(signals: Signals, harness: Harness[Any], grace: float) -> None:
    received = await signals.wait()
    say(f"{received.name}: no more runs are claimed; those that go on have {grace:g} s; once more ends at once")
    await harness.shutdown(timeout=grace)


async def _harness(stack: AsyncExitStack, file: FlowFile, model: str | None, place: Place | None) -> Harness[Any]:
    """The file's harness, or one of ours whose one flow is the file's step."""
    backend = None if place is None else await stack.enter_async_context(opened(place))
    return await make_harness(file, model, backend)


async def show_queues(db: str | None, *, as_json: bool) -> int:
    """Print how full each queue is."""
    async with read_runs(db) as (runs, _):
        found = await runs.queues()
    write_out(_as_json(found) if as_json else _as_text(found))
    return 0


async def show_budgets(db: str | None, *, everything: bool, as_json: bool) -> int:
    """Print the rows of shared budgets; those of periods that are over only if runs hold something of them, or all."""
    async with read_runs(db) as (runs, backend):
        now = datetime.fromtimestamp(await backend.clock(), UTC)
        found = [row for row in await runs.budgets() if everything or row.held or not has_ended(row.period, now)]
    if as_json:
        write_out(json.dumps([_budget(row) for row in found], indent=2, default=str))
        return 0
    rows = [("BUDGET", "PERIOD", "LIMIT OF", "USED", "RESERVED", "LIMIT", "RUNS")]
    for row in found:
        for name in sorted({*row.limits, *row.used, *row.reserved}):
            used, reserved = _shown(name, row.used.get(name)), _shown(name, row.reserved.get(name))
            limit = _shown(name, row.limits[name]) if name in row.limits else ""
            holders = sum(name in held for held in row.held.values())
            place = (printable(row.name), row.period, printable(name))
            rows.append((*place, used, reserved, limit, f"{holders:,}"))
    write_out(table(rows))
    return 0


def _budget(row: BudgetRow) -> dict[str, object]:
    """A row of a shared budget as JSON; amounts of money are texts."""

    def told(amounts: Mapping[str, int]) -> dict[str, int | Decimal]:
        return {name: amount_of(name, stored) for name, stored in amounts.items()}

    held = {run_id: told(amounts) for run_id, amounts in row.held.items()}
    return {
        "name": row.name,
        "period": row.period,
        "limits": told(row.limits),
        "used": told(row.used),
        "reserved": told(row.reserved),
        "runs": held,
    }


def _shown(dimension: str, stored: int | None) -> str:
    value = Decimal(amount_of(dimension, stored or 0))
    return money(value) if dimension == "cost" else amount(value)


@frozen(eq=False)
class ScheduleRequest:
    """The options of `noetic schedules`; see `noetic schedules --help`."""

    target: str
    db: str | None
    pause: str | None
    resume: str | None
    trigger: str | None
    as_json: bool


async def show_schedules(request: ScheduleRequest) -> int:
    """Change a schedule of a file's harness, and print how all of them stand."""
    file = load_flow(request.target, for_harness=True)
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(await _harness(stack, file, None, database_of(file, request.db)))
        schedules = harness.schedules
        if request.pause is not None:
            await schedules.pause(request.pause)
        if request.resume is not None:
            await schedules.resume(request.resume)
        if request.trigger is not None:
            say(f"submitted: {await schedules.trigger(request.trigger)}")
        found = await schedules.list()
    if request.as_json:
        write_out(json.dumps([asdict(each) for each in found], indent=2, default=str))
        return 0
    rows = [("SCHEDULE", "WHEN", "TIME ZONE", "QUEUE", "NEXT", "LAST RUN")]
    for each in found:
        following = "paused" if each.next is None else f"{each.next.astimezone():%Y-%m-%d %H:%M:%S}"
        when = each.when if isinstance(each.when, str) else f"every {each.when}"
        place = (printable(each.name), when, each.timezone, printable(each.queue))
        rows.append((*place, following, printable(each.last_run or "")))
    write_out(table(rows) if found else "the file's harness has no schedules")
    return 0


def _as_json(found: Sequence[QueueStats]) -> str:
    def since(each: QueueStats) -> str | None:
        return None if each.since is None else datetime.fromtimestamp(each.since, UTC).isoformat()

    return json.dumps([{**asdict(each), "since": since(each)} for each in found], indent=2)


def _as_text(found: Sequence[QueueStats]) -> str:
    """A table of queues."""
    rows = [("QUEUE", "FLOW", "READY", "OWNED", "WAITING", "READY SINCE")]
    for each in found:
        since = "" if each.since is None else f"{datetime.fromtimestamp(each.since).astimezone():%Y-%m-%d %H:%M:%S}"
        counts = (f"{each.ready:,}", f"{each.owned:,}", f"{each.waiting:,}")
        rows.append((printable(each.queue), printable(each.flow), *counts, since))
    return table(rows)
