"""Replays stored conversations with another memory: the engine runs, and answers and outputs are those that are stored.

The model of a replay takes the answers from the journal, and so do tools. Layers run as in any run: they recall, judge,
store and merge, and the projector makes the view. So the requests are those that a run with these layers would send.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from time import process_time
from typing import Any, Final

from attrs import evolve, frozen
from typing_extensions import TypeIs

from noetic_py.context.context import AnyContext
from noetic_py.context.hooks import AnyHook, HookContext, StepCall, after_tool, before_step, before_tool
from noetic_py.context.step import AnyStep, Step, children_of
from noetic_py.core.control import AnyResult, SessionKey
from noetic_py.core.items import FunctionCall, FunctionCallOutput
from noetic_py.core.memory import Memory
from noetic_py.core.runtime import Runtime
from noetic_py.engine.frame import Frame
from noetic_py.engine.kinds.model import ROUNDS
from noetic_py.engine.kinds.output import OutputPlan, output_plan
from noetic_py.errors import ConfigError, ModelUnavailable
from noetic_py.harness import Harness
from noetic_py.memory.layer import layers_of
from noetic_py.models.model import (
    Model,
    ModelEvent,
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    ModelStream,
    StopReason,
    profile_of,
)
from noetic_py.runner.plan import RunOptions
from noetic_py.runner.runs import Runs
from noetic_py.sessions.policy import SessionPolicy
from noetic_py.steps.code import step
from noetic_py.steps.handoff import Transfers
from noetic_py.steps.loop import loop
from noetic_py.steps.model import ModelSpec
from noetic_py.tools.definition import AnyTool, Tool
from noetic_py.trial.stored import StoredRound, StoredTurn, time_of
from noetic_py.until import custom

_ASK: Final = "request"
_FLOW: Final = "trial"
_DEPTH_OF_A_REQUEST: Final = 3
# As many as a harness lets the loops of a run have.
_MOST_ROUNDS: Final = 50_000
_RECORDS_OF_A_TURN: Final = 2
_RANDOM_BITS: Final = 62


@frozen(eq=False)
class TriedRequest:
    """One request of a replay.

    Attributes:
        round: The stored request that it stands for.
        conversation: What tells its conversation from others.
        request: What the model would have been sent.
        model: The model that is replayed.
        seconds: CPU time of the round: layers and view, and the work of the engine.
    """

    round: StoredRound
    conversation: str | SessionKey
    request: ModelRequest
    model: Model
    seconds: float


async def replay(
    runs: Runs,
    turns: Sequence[StoredTurn],
    memory: Memory,
    flow: AnyStep | None,
    model: Model | None,
    done: Callable[[], object],
) -> tuple[Sequence[TriedRequest], Sequence[str]]:
    """Replay stored runs with a bundle.

    Args:
        runs: Where earlier items are read, when a conversation was edited by hand.
        turns: The runs, in their order.
        memory: The bundle.
        flow: The flow, whose steps tell what stands around the conversation.
        model: The model of steps that name none.
        done: Called after each run.

    Returns:
        The requests, and what of the runs was left out.

    Raises:
        ConfigError: A layer asks a model, or wants a person's approval; code `"trial"`.
        NoeticError: A round that was answered cannot be replayed with this bundle.
    """
    replaying = _Replay(memory, _heads(flow), model)
    async with replaying.harness:
        for turn in turns:
            await replaying.turn(runs, turn)
            done()
    return replaying.tried, list(dict.fromkeys(replaying.notes))


class _Clock(Runtime):
    """The time of what is replayed, and ids that tell it."""

    __slots__ = ("_serial", "moment")

    def __init__(self, moment: datetime) -> None:
        super().__init__()
        self.moment = moment
        self._serial = itertools.count()

    def now(self) -> datetime:
        return self.moment

    def new_id(self) -> str:
        stamp = f"{int(self.moment.timestamp() * 1000):012x}"
        tail = f"{0b10 << _RANDOM_BITS | next(self._serial):016x}"
        return f"{stamp[:8]}-{stamp[8:]}-7000-{tail[:4]}-{tail[4:]}"


class _RecordedTool:
    """A tool that gives what was stored, and takes from the real one how calls of it are described and checked."""

    needs_approval = False
    long_running = False
    expires = None
    replay = "repeatable"
    reconcile = None
    timeout = None
    hooks = ()
    fn = staticmethod(lambda: None)

    def __init__(self, tool: AnyTool, outputs: Callable[[str], FunctionCallOutput | None]) -> None:
        self._tool = tool
        self._outputs = outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)

    async def call(self, values: Mapping[str, object], *, ctx: object, inject: object, emit: object) -> object:
        """The stored output."""
        output = self._outputs(ctx.call_id) if isinstance(ctx, Frame) and ctx.call_id is not None else None
        return "" if output is None else output.output


def _is_tool(value: object) -> TypeIs[AnyTool]:
    return isinstance(value, Tool)


class _RecordedTransfers:
    """The tools of handoffs, which list themselves."""

    def __init__(self, source: Transfers, outputs: Callable[[str], FunctionCallOutput | None]) -> None:
        self._source = source
        self._outputs = outputs

    async def tools(self) -> Sequence[object]:
        """The same tools, each with stored outputs."""
        return [_RecordedTool(each, self._outputs) for each in await self._source.tools()]


def _heads(flow: AnyStep | None) -> Mapping[str, ModelSpec]:
    """The model steps that a flow declares, by id; of two with one id the first."""
    found: dict[str, ModelSpec] = {}
    seen: set[int] = set()
    todo = [] if flow is None else [flow]
    while todo:
        each = todo.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        spec: object = each.spec
        if isinstance(spec, ModelSpec):
            found.setdefault(each.id, spec)
        todo += [child for _, child in children_of(each)]
    return found


@frozen(eq=False)
class _Answering:
    """A model that gives the stored answers, with the name and the profile of the real one."""

    replay: _Replay
    model: Model

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def profile(self) -> ModelProfile:
        # No price: nothing is paid.
        return evolve(profile_of(self.model), price=None)

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        yield _Stored(self.replay.answered(request, self.model))


class _Unnamed:
    """Stands for a model of which nothing is known."""

    name = "unknown"

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        raise ModelUnavailable("a trial asks no model", model=self.name)


class _Stored:
    """An answer that is there."""

    def __init__(self, response: ModelResponse) -> None:
        self._response = response

    def __aiter__(self) -> _Stored:
        return self

    async def __anext__(self) -> ModelEvent:
        raise StopAsyncIteration

    async def response(self) -> ModelResponse:
        return self._response


class _AnyText(OutputPlan):
    """The schema of a step's output, without reading the answer by it: it was read when it was given."""

    def parse(self, text: str) -> Any:
        return text

    def parse_output(self, text: str) -> object:
        return text


class _Replay:
    """One bundle's replay of all turns.

    Attributes:
        harness: What runs it.
        tried: The requests so far.
        notes: What was left out.
    """

    def __init__(self, memory: Memory, heads: Mapping[str, ModelSpec], model: Model | None) -> None:
        self.tried: list[TriedRequest] = []
        self.notes: list[str] = []
        self._heads, self._model, self._layers = heads, model, {each.id for each in layers_of(memory).values()}
        self._clock = _Clock(datetime.fromtimestamp(0, UTC))
        self._asks: dict[str, AnyStep] = {}
        self._turn: StoredTurn | None = None
        self._left: deque[StoredRound] = deque()
        self._outputs: Mapping[str, FunctionCallOutput] = {}
        self._offered: set[str] = set()
        # What keeps a round from being replayed, which is raised once its run is over.
        self._problem: ConfigError | None = None
        # Where each session stands in the stored runs, and how many items it holds.
        self._sessions: dict[SessionKey, tuple[int, int]] = {}
        self.harness: Harness[Memory] = Harness(
            memory=memory,
            runtime=self._clock,
            plugins=(),
            sessions=SessionPolicy(history=0),
            hooks=[self._no_other_model(), self._stored_outputs(), self._stored_ids()],
        )
        self._flow: AnyStep = self._replaying()

    # -- a turn

    async def turn(self, runs: Runs, turn: StoredTurn) -> None:
        """Replay one run.

        Raises:
            ConfigError: A layer asks a model, or wants an approval; code `"trial"`.
            NoeticError: A round that was answered cannot be replayed.
        """
        self._turn, self._left = turn, deque(turn.rounds)
        self._clock.moment = turn.info.created
        self.notes += turn.notes
        result = await self._run_of(runs, turn)
        if self._problem is not None:
            raise self._problem
        if isinstance(result.error, ConfigError) and result.error.code == "no-backend":
            raise ConfigError(
                f"a layer wants a person's approval, or something else that only a stored run can have, in run "
                f"{turn.info.run_id}, which a trial cannot give: {result.error.message}",
                code="trial",
                hint="leave the layer out of the bundle",
            )
        unanswered = bool(turn.rounds) and turn.rounds[-1].answer is None
        if result.error is not None and not (unanswered and not self._left):
            raise result.error

    async def _run_of(self, runs: Runs, turn: StoredTurn) -> AnyResult:
        info = turn.info
        if info.session is None:
            history = await runs.history(info.run_id) if turn.history else ()
            given: RunOptions = {
                "history": history,
                "thread_id": info.thread_id or info.run_id,
                "on_error": "result",
            }
            if info.user_id is not None:
                given["user_id"] = info.user_id
            return await self.harness.run(self._flow, None, **given)
        await self._continue_session(runs, turn, info.session)
        return await self.harness.run(self._flow, None, on_error="result", session=info.session)

    async def _continue_session(self, runs: Runs, turn: StoredTurn, key: SessionKey) -> None:
        """Bring a session to what it held when the stored turn began."""
        known, size = self._sessions.get(key, (0, 0))
        follows = turn.position is not None and turn.position == known + _RECORDS_OF_A_TURN if known else True
        if size != turn.history or not follows:
            history = await runs.history(turn.info.run_id)
            session = self.harness.session(key.user, key.session, app=key.app)
            async with session.edit() as edit:
                edit.items[:] = history
        self._sessions[key] = turn.position or 0, turn.size

    def _replaying(self) -> AnyStep:
        """The flow of a replayed run: a round in each iteration, so that one that fails undoes itself alone."""

        @step(id="run")
        async def run(_: object, ctx: AnyContext) -> None:
            if self._left:
                now = self._left[0]
                self._clock.moment = time_of(now.input or ctx.items[-1:], self._clock.moment)
                began, before = process_time(), len(self.tried)
                await self._asking(now.step)(now.input, ctx)
                if len(self.tried) > before:
                    self.tried[-1] = evolve(self.tried[-1], seconds=process_time() - began)
            if not self._left and self._turn is not None and self._turn.rest:
                ctx.items.extend(self._turn.rest)

        return loop(run, until=custom(lambda _: not self._left), max_iterations=_MOST_ROUNDS, id=_FLOW)

    # -- a round

    def answered(self, request: ModelRequest, model: Model) -> ModelResponse:
        """Take the answer to a request from the journal.

        Raises:
            ModelUnavailable: It was not answered.
        """
        turn, now = self._turn, self._left.popleft() if self._left else None
        if turn is None or now is None or now.answer is None:
            raise ModelUnavailable("the stored request was not answered", model=model.name)
        # A view of a single list is compared and counted faster than one of the log.
        request = evolve(request, items=tuple(request.items))
        self.tried.append(TriedRequest(now, turn.conversation, request, model, 0.0))
        self._outputs, self._offered = now.outputs, {str(each["name"]) for each in request.tools}
        self._clock.moment = time_of(now.answer, self._clock.moment)
        calls = any(isinstance(each, FunctionCall) for each in now.answer)
        reason: StopReason = "tool_calls" if calls else "stop"
        return ModelResponse(now.answer, stop_reason=reason, model=model.name)

    def _asking(self, name: str) -> AnyStep:
        """The step that asks for a round."""
        made = self._asks.get(name)
        if made is None:
            made = self._asks[name] = self._made(name, self._heads.get(name))
        return made

    def _made(self, name: str, head: ModelSpec | None) -> AnyStep:
        given = None if head is None else head.model
        model = self._model if given is None or isinstance(given, str) else given
        instructions = None if head is None else head.instructions
        if callable(instructions):
            self.notes.append(f"the instructions of step {name} are a function, and are left out")
            instructions = None
        spec = ModelSpec(
            model=_Answering(self, _Unnamed() if model is None else model),
            outputs=() if head is None else head.outputs,
            validate=None,
            output_retries=0,
            instructions=instructions,
            tools=() if head is None else tuple(self._tools(name, head)),
            settings=ModelSettings() if head is None else head.settings,
        )
        if spec.outputs:
            plan = output_plan(spec.outputs)
            spec.cache["plan"] = _AnyText(plan.adapter, plan.schema, plan.wrapped)
        return Step(id=_ASK, kind="model", spec=spec, counted=True, goes_on=True)

    def _tools(self, name: str, head: ModelSpec) -> Iterator[object]:
        for each in head.tools:
            if _is_tool(each):
                yield _RecordedTool(each, self._outputs_of)
            elif isinstance(each, Transfers):
                yield _RecordedTransfers(each, self._outputs_of)
            else:
                self.notes.append(f"the tools of {type(each).__name__} of step {name} are left out of its requests")

    def _outputs_of(self, call_id: str) -> FunctionCallOutput | None:
        return self._outputs.get(call_id)

    # -- what must not happen

    def _no_other_model(self) -> AnyHook:
        @before_step
        async def refuse(ctx: HookContext, call: StepCall) -> None:
            ours = ctx.path[0] == _FLOW and len(ctx.path) == _DEPTH_OF_A_REQUEST
            if not ROUNDS.is_named(call.kind) or ours or self._problem is not None:
                return
            names = [frame.partition(".")[0] for frame in ctx.path]
            asking = next((f"layer {name!r}" for name in reversed(names) if name in self._layers), "a layer")
            self._problem = ConfigError(
                f"{asking} asks a model, and a trial asks none",
                code="trial",
                hint="leave the layer out of the bundle, or set it so that it works without a model",
            )
            raise self._problem

        return refuse

    def _stored_outputs(self) -> AnyHook:
        @before_tool
        async def stored(ctx: HookContext, call: FunctionCall) -> FunctionCallOutput | None:
            """The stored output of a call of a tool that the bundle and the flow do not have."""
            return None if call.name in self._offered else self._outputs_of(call.call_id)

        return stored

    def _stored_ids(self) -> AnyHook:
        @after_tool
        async def named(ctx: HookContext, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput | None:
            """The output with the id that is stored, by which layers may know it later."""
            known = self._outputs_of(call.call_id)
            return None if known is None else evolve(output, id=known.id)

        return named
