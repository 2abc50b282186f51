"""Runs steps for clients: sends progress, and has the person at the client answer what a run waits for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias
from uuid import uuid4

from attrs import frozen
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from noetic_mcp.elicitation import answer_of, form_of
from noetic_py import Emitted, Harness, PendingRequest
from noetic_py.context.step import AnyStep
from noetic_py.core.control import Answer, AnyResult
from noetic_py.core.events import ProgressSet
from noetic_py.core.selections import Selection
from noetic_py.errors import ConfigError, RunNotFound
from noetic_py.runner.registry import RunStream
from noetic_py.runner.runs import RunInfo

__all__ = ["REQUEST", "RUN_ID", "Opened", "Request", "Runs", "wanted_run"]

RUN_ID: Final = "noetic/run_id"
"""The key in `_meta` under which a call names its run, and a result says it."""
_PREFIX: Final = "mcp-"
_LONGEST_MESSAGE: Final = 500

Request: TypeAlias = ServerRequestContext[Any, Any]
Opened: TypeAlias = AbstractAsyncContextManager[RunStream[Any, Any]]

REQUEST: Final[ContextVar[Request | None]] = ContextVar("noetic_mcp.request", default=None)
"""The request that a run serves, for its steps."""


@frozen(eq=False)
class Runs:
    """Begins, resumes and ends the runs of requests."""

    harness: Harness[Any]
    state: Callable[[], object] | None

    @property
    def stored(self) -> bool:
        """Whether another request can resume a run."""
        try:
            _ = self.harness.runs
        except ConfigError:
            return False
        return True

    async def info(self, run_id: str) -> RunInfo:
        """A run that an earlier request has begun.

        Raises:
            RunNotFound: There is no such run of a client's.
        """
        if not run_id.startswith(_PREFIX):
            raise RunNotFound(f"there is no run {run_id!r:.80}", hint="the result of the earlier call names it")
        return await self.harness.runs.get(run_id)

    def begin(self, step: AnyStep, given: object, run_id: str | None = None) -> Opened:
        """A new run."""
        options: dict[str, Any] = {"run_id": run_id or f"{_PREFIX}{uuid4().hex}", "on_error": "result"}
        if self.state is not None:
            options["state"] = self.state()
        return self.harness.stream(step, given, **options)

    def resume(self, step: AnyStep, info: RunInfo, params: types.InputResponseRequestParams) -> Opened:
        """A run that waits, with what the person at the client has answered."""
        given = params.input_responses or {}
        said = {key: each for key, each in given.items() if isinstance(each, types.ElicitResult)}
        return self._resumed(step, info.run_id, _answers(info.pending, said))

    def _resumed(self, step: AnyStep, run_id: str, answers: Sequence[Answer]) -> Opened:
        options: dict[str, Any] = {"answers": answers, "on_error": "result"}
        if self.state is not None:
            options["state_type"] = type(self.state())
        return self.harness.resume_stream(run_id, step, **options)

    async def to_the_end(
        self, ctx: Request, params: types.InputResponseRequestParams, step: AnyStep, opened: Opened
    ) -> AnyResult | types.InputRequiredResult:
        """Follow a run until it has ended, or waits for what this request cannot ask the person."""
        token = REQUEST.set(ctx)
        try:
            return await self._to_the_end(ctx, params, step, opened)
        finally:
            REQUEST.reset(token)

    async def _to_the_end(
        self, ctx: Request, params: types.InputResponseRequestParams, step: AnyStep, opened: Opened
    ) -> AnyResult | types.InputRequiredResult:
        # Nothing is asked twice in a request: a client that answers by itself may answer wrong each time.
        shown = set(params.input_responses or {})
        while True:
            async with opened as stream:
                await _tell_progress(ctx, stream)
                result = await stream.result()
            # A question of which the answer was not taken is asked under another key.
            if result.status != "suspended" or (
                shown and any(each.key in shown or each.problem is not None for each in result.pending)
            ):
                return result
            asked = await _asked(ctx, result)
            if isinstance(asked, types.InputRequiredResult):
                return asked
            if not asked:
                return result
            shown |= {each.key for each in result.pending}
            opened = self._resumed(step, result.run_id, asked)


async def _asked(ctx: Request, result: AnyResult) -> Sequence[Answer] | types.InputRequiredResult:
    """The answers of a person, or the result that has the client ask; no answers where the client cannot ask."""
    forms = {each.key: form for each in result.pending if (form := form_of(each)) is not None}
    capabilities = ctx.session.client_capabilities
    if not forms or capabilities is None or capabilities.elicitation is None:
        return ()
    if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
        requests: types.InputRequests = {
            key: types.ElicitRequest(method="elicitation/create", params=form) for key, form in forms.items()
        }
        return types.InputRequiredResult(input_requests=requests, request_state=result.run_id)
    said: dict[str, types.ElicitResult] = {}
    for key, form in forms.items():
        said[key] = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_id)
    return _answers(result.pending, said)


def wanted_run(ctx: Request) -> str | None:
    """The run that a call names in `_meta`; a client's names are distinguished from other runs of the harness."""
    named: object = (ctx.meta or {}).get(RUN_ID)
    if named is None:
        return None
    text = str(named)
    return text if text.startswith(_PREFIX) else f"{_PREFIX}{text}"


def _answers(pending: Sequence[PendingRequest], said: Mapping[str, types.ElicitResult]) -> Sequence[Answer]:
    found = [answer_of(each, said[each.key]) for each in pending if each.key in said]
    return [each for each in found if each is not None]


async def _tell_progress(ctx: Request, stream: RunStream[Any, Any]) -> None:
    """Send what the steps leave and emit, until the run is over; what is sent last is the furthest."""
    sent = 0.0
    events: Selection[ProgressSet | Emitted] = stream.select(ProgressSet, Emitted)
    async for event in events:
        value = event.event if isinstance(event, Emitted) else event.value
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
        sent = number if number > sent else sent + 1
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        await ctx.session.report_progress(sent, None, f"{'/'.join(event.path)}: {text}"[:_LONGEST_MESSAGE])
