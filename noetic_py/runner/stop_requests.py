"""A stop that one process asks for, of a run that another one has.

The request is a scoped value of the backend. The run's owner looks for one between two renewals of its lease, writes
the decision into the journal and answers in the same place. A run that no process has gets the decision from the
process that asks. A request has an end, after which no owner takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
from attrs import asdict

from noetic_py import errors
from noetic_py.checkpoints.contract import CheckpointBackend, Scope
from noetic_py.core.codec.structure import dump, parse
from noetic_py.core.control import SETTLING
from noetic_py.engine.journaling.run_history import OVER, store_time
from noetic_py.engine.stops import Asked, asked_in, asked_of, control_of, decision_of
from noetic_py.journal.records import JournalRecord, RunEnded, asks_for
from noetic_py.journal.stored import StoredValue
from noetic_py.redaction import without_secrets
from noetic_py.runner.children import look_at_parent
from noetic_py.runner.inbox import take_messages
from noetic_py.runner.lease import write_without_owner

if TYPE_CHECKING:
    from noetic_py.core.control import RunStatus
    from noetic_py.core.runtime import Runtime
    from noetic_py.engine.state import Run


_SCOPE: Scope = ("run stops",)
_MAX_BYTES = 32 * 1024 * 1024
# An interrupt gives a run no outcome, so that it is asked for and is in no journal.
_is_asked = asks_for(*SETTLING, "interrupt")
# Seconds between two looks at what the owner of a run has answered.
_PAUSE = 0.1


async def hear(run: Run, thorough: bool) -> None:
    """Store a stop that this process requested, and take the messages and the stop request of other processes.

    Args:
        run: The run.
        thorough: Whether to look too if the run that waits for this one still does.
    """
    store = run.store
    if store is None:
        return
    try:
        if thorough:
            await look_at_parent(run)
        if store.hurried.is_set():
            # A stop is stored at once: its process may die before the body has ended.
            store.hurried = anyio.Event()
            await store.commit(run.journal, force=True)
        if run.takes_messages:
            await take_messages(run)
        found = await store.backend.get(_SCOPE, run.run_id)
        if found is None or (request := _request_of(found))["taken"] is not None:
            return
        if request["until"] >= (await store_time(store.backend, run.runtime)).timestamp():
            # The stop may end the run, and this task with it, before the other process knows.
            with anyio.CancelScope(shield=True):
                await _answer(run, found, request)
    except Exception:  # noqa: BLE001 # whatever a backend's client raises
        # A store that cannot be reached is asked again; a failed commit has ended the run.
        return


async def _answer(run: Run, found: StoredValue, request: dict[str, Any]) -> None:
    store = run.store
    if store is None:
        return
    why = ""
    try:
        asked = asked_of(request["asked"])
        if asked.kind == "interrupt":
            message = asked.value if isinstance(asked.value, str) else None
            taken = run.interrupt_turn(asked.reason, message, by=asked.by)
        else:
            taken = run.take_stop(control_of(asked, run.flow, store.codec), key=asked.key)
        if taken:
            await store.commit(run.journal, force=True)
    except (errors.ConfigError, errors.CodecError) as error:
        taken, why = False, error.message
    answer = {**request, "taken": taken, "why": why}
    await store.backend.put(_SCOPE, run.run_id, dump(answer), expected=found.version)


def _request_of(found: StoredValue) -> dict[str, Any]:
    fields: Any = parse(found.value, _MAX_BYTES, "stop request")
    try:
        if not _is_asked(fields["asked"]):
            raise TypeError("asked")
        if not isinstance(fields["until"], float) or fields["taken"] not in (None, True, False):
            raise TypeError("until and taken")
    except (LookupError, TypeError) as error:
        raise errors.CodecError("is not a valid request to stop a run", where=f"run {found.key}") from error
    request: dict[str, object] = fields
    return request


async def request_stop(backend: CheckpointBackend, run_id: str, asked: Asked, wait: float, runtime: Runtime) -> None:
    """Stop a run in whichever process it runs; returns once the stop is in its journal.

    Args:
        backend: Where it is kept.
        run_id: The run.
        asked: The stop.
        wait: Seconds that its owner has to accept it.
        runtime: The clock.

    Raises:
        RunOver: It has ended, or is being stopped in another way.
        RunBusy: Its owner has not answered in time; the request is withdrawn.
        ConfigError: The value is not of the flow's type; code `"complete"`.
    """
    ends = runtime.monotonic() + wait
    until = (await store_time(backend, runtime)).timestamp() + wait
    posted: int | None = None
    try:
        while True:
            try:
                return await _write(backend, run_id, asked)
            except errors.RunOver:
                # A stop that is not in the journal was the last that its owner did.
                if posted is None or not await _taken(backend, run_id, asked):
                    raise
                return None
            except errors.RunBusy:
                if posted is None:
                    posted = await _post(backend, run_id, asked, until)
                elif await _taken(backend, run_id, asked):
                    return None
                left = ends - runtime.monotonic()
                if left <= 0:
                    # A withdrawn request cannot be accepted later; if withdrawing fails, the owner has answered.
                    late = posted is not None and not await _take_back(backend, run_id, posted)
                    if late and await _taken(backend, run_id, asked):
                        return None
                    raise
            await runtime.sleep(min(_PAUSE, left))
    finally:
        if posted is not None:
            with anyio.CancelScope(shield=True):
                await _clear(backend, run_id, asked)


async def withdraw(backend: CheckpointBackend, run_id: str) -> None:
    """Remove the request to stop a run that is deleted; none is no error."""
    await backend.remove(_SCOPE, run_id)


async def _post(backend: CheckpointBackend, run_id: str, asked: Asked, until: float) -> int | None:
    """Leave the request for the run's owner; `None` while another one is there."""
    request = {"asked": asdict(asked, recurse=False), "until": until, "taken": None}
    found = await backend.get(_SCOPE, run_id)
    try:
        if found is not None and _request_of(found)["until"] >= until:
            return None
        return await backend.put(_SCOPE, run_id, dump(request), expected=0 if found is None else found.version)
    except errors.VersionConflict:
        return None


async def _taken(backend: CheckpointBackend, run_id: str, asked: Asked) -> bool:
    """Whether the owner has accepted the request.

    Raises:
        RunOver: It has refused.
        ConfigError: It has refused the value; code `"complete"`.
    """
    found = await backend.get(_SCOPE, run_id)
    request = None if found is None else _request_of(found)
    if request is None or request["asked"].get("key") != asked.key or request["taken"] is None:
        return False
    if request["taken"]:
        return True
    if request.get("why"):
        raise errors.ConfigError(
            str(request["why"]), code="complete", hint="give a value of the type that the flow returns"
        )
    raise _over(run_id, "it is being stopped already")


async def _take_back(backend: CheckpointBackend, run_id: str, posted: int) -> bool:
    """Withdraw a request; returns whether it had no answer yet."""
    try:
        return await backend.remove(_SCOPE, run_id, expected=posted)
    except errors.VersionConflict:
        return False


async def _clear(backend: CheckpointBackend, run_id: str, asked: Asked) -> None:
    """Remove a request from the store."""
    found = await backend.get(_SCOPE, run_id)
    if found is not None and _request_of(found)["asked"].get("key") == asked.key:
        with suppress(errors.VersionConflict):
            await backend.remove(_SCOPE, run_id, expected=found.version)


async def _write(backend: CheckpointBackend, run_id: str, asked: Asked) -> None:
    """Stop a run that no process has.

    Raises:
        RunBusy: One has it.
        RunOver: It has ended.
    """
    # A wrap-up is left to the process that goes on with the run.
    status: RunStatus = "interrupted" if asked.rule.wraps_up else asked.rule.status

    def made(journal: Sequence[JournalRecord]) -> Sequence[JournalRecord]:
        if not asked.rule.settles:
            raise _over(run_id, "no process has it")
        known = asked_in(journal)
        if known is not None and asked.key and known.key == asked.key:
            return ()
        last = journal[-1] if journal else None
        if isinstance(last, RunEnded) and last.status in OVER:
            raise _over(run_id, f"it has {last.status}")
        if known is not None and (not known.rule.wraps_up or asked.rule.wraps_up):
            raise _over(run_id, "it is being stopped already")
        reason = asked.reason if not asked.rule.wraps_up else f"to be wrapped up when it is resumed: {asked.reason}"
        return [decision_of(asked), RunEnded((), status, without_secrets(reason), None)]

    await write_without_owner(backend, run_id, made, status)


def _over(run_id: str, why: str) -> errors.RunOver:
    return errors.RunOver(
        f"run {run_id!r} cannot be stopped any more: {why}", hint="look at harness.runs.get(run_id).status"
    )
