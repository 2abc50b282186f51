"""A context outside of a run: its engine, and its conversation as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from noetic_py.context.read import Services, StepMeta
from noetic_py.core.allowance import Remaining
from noetic_py.core.budget import NO_USAGE
from noetic_py.core.control import Ask, Control, SessionKey, Timer, check_callers_id
from noetic_py.core.derivation import ContextMemory, is_branch, read_memory, write_memory
from noetic_py.core.items import Item, ItemBase, JsonValue
from noetic_py.core.progress import NO_RUN, ProgressStore
from noetic_py.core.runtime import SYSTEM, Trace
from noetic_py.core.state import Attributes, StateBag
from noetic_py.core.types import ShareState
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError, InvalidId, LimitExceeded, NoContextError

if TYPE_CHECKING:
    from types import CodeType, CoroutineType

    from opentelemetry.trace import Span

    from noetic_py.channels.declared import AnyChannel
    from noetic_py.context.context import AnyContext
    from noetic_py.context.detached import DetachedWork, DetachOptions
    from noetic_py.context.step import AnyStep
    from noetic_py.core.view import LayerUsage


class UnboundEngine:
    """The engine of a context that no run has adopted: ids, and a refusal for everything else.

    Attributes:
        adopted: Whether a run is going on with the context now.
        named: Whether its maker has chosen its thread.
        trusted: How many items of its log a run has made; those behind come from outside.
        settled: How many items there were when a run had completed last.
        turns: The model calls of the runs that went on with it.
        memory: Where layers of scope thread keep what is its own.
        place: The trace that they belong to; `None` until the first begins.
        request_id: The caller's correlation id.
    """

    run_id = ""
    depth = 0
    run_turns = 0
    step_count = 0
    tokens = NO_USAGE
    cost: Decimal = Decimal(0)
    input: object = None
    last_step: StepMeta | None = None
    last_layer_usage: LayerUsage | None = None
    stop: Control | None = None
    parent_context: AnyContext | None = None
    user_id: str | None = None
    fence: int | None = None
    session: SessionKey | None = None
    progress: ProgressStore = NO_RUN
    adopted: bool
    trusted: int
    settled: int
    thread_id: str
    named: bool
    turns: int
    _place: Trace | None
    _request_id: str | None

    def __init__(self, ctx: AnyContext, thread_id: str | None, request_id: str | None, trace: Trace | None) -> None:
        self.adopted, self.trusted, self.turns = False, 0, 0
        self.settled = ctx.scope.log.size
        self.place = trace
        if thread_id not in (None, ""):
            check_callers_id(thread_id, "thread_id")
        self.id: str = SYSTEM.new_id()
        self.thread_id, self.named = thread_id or SYSTEM.new_id(), bool(thread_id)
        self.request_id = request_id
        self.memory: ContextMemory = ContextMemory()
        self.services: Services = Services()
        self.attrs: Attributes = Attributes()
        self.metadata: Mapping[str, JsonValue] = {}
        self.root_context = ctx
        self._began = SYSTEM.monotonic()

    @property
    def request_id(self) -> str | None:
        return self._request_id

    @request_id.setter
    def request_id(self, value: str | None) -> None:
        if value is not None:
            check_callers_id(value, "request_id")
        self._request_id = value

    @property
    def place(self) -> Trace | None:
        """The place in a distributed trace that its runs begin at."""
        return self._place

    @place.setter
    def place(self, value: Trace | None) -> None:
        if value is not None and not isinstance(value, Trace):
            raise InvalidId(
                f"{value!r:.80} is not a valid trace; expected a Trace", hint="Trace.from_traceparent(header) reads one"
            )
        self._place = value

    @property
    def elapsed(self) -> float:
        return SYSTEM.monotonic() - self._began

    def _refuse(self, what: str) -> NoContextError:
        return NoContextError(
            f"{what} needs a run",
            hint="call it with a step's own context, or with ctx.child(preset='derive') of that; a context outside a "
            "run goes into harness.run(step, input, ctx=ctx)",
        )

    def trace(self, ctx: AnyContext, /) -> Trace | None:
        return self.place

    def memory_of(self, ctx: AnyContext, /) -> ContextMemory:
        return self.memory

    def touch(self, ctx: AnyContext, /) -> None:
        """Nothing to guard: no step runs."""

    def bind(self, ctx: AnyContext, /, *, reads: bool) -> Any:
        return None

    def remaining(self, ctx: AnyContext, /) -> Remaining:
        return Remaining()

    def complete(self, ctx: AnyContext, value: object, /) -> None:
        raise self._refuse("complete()")

    def abort(self, ctx: AnyContext, reason: str, /) -> None:
        raise self._refuse("abort()")

    def stop_loop(self, ctx: AnyContext, value: object, /, *, now: bool = False) -> None:
        raise self._refuse("stop_loop()")

    def emit(self, ctx: AnyContext, event: object, /) -> None:
        raise self._refuse("emit()")

    def span(self, ctx: AnyContext, /) -> Span:
        from opentelemetry.trace import INVALID_SPAN

        return INVALID_SPAN

    def idempotency_key(self, ctx: AnyContext, /) -> str:
        raise self._refuse("idempotency_key")

    async def call(self, ctx: AnyContext, step: AnyStep, value: object, /) -> Any:
        raise self._refuse(f"calling step {step.id!r}")

    def note_call(
        self, ctx: AnyContext, made: CoroutineType[object, object, object], code: CodeType, instruction: int, /
    ) -> bool:
        """No step's body waits here; awaiting the call raises."""
        return False

    async def gather(self, ctx: AnyContext, steps: Sequence[AnyStep], state: ShareState, /) -> list[object]:
        raise self._refuse("gather()")

    async def send(self, ctx: AnyContext, channel: AnyChannel, value: object, timeout: float | None, /) -> None:
        raise self._refuse("send()")

    async def receive(self, ctx: AnyContext, channel: AnyChannel, timeout: float | None, /) -> object:
        raise self._refuse("recv()")

    def receive_now(self, ctx: AnyContext, channel: AnyChannel, /) -> object:
        raise self._refuse("try_recv()")

    async def ask(self, ctx: AnyContext, question: Ask[object] | Timer, /) -> Any:
        raise self._refuse("sleep()" if isinstance(question, Timer) else "ask()")

    async def checkpoint(self, ctx: AnyContext, /) -> None:
        raise self._refuse("checkpoint()")

    def spawn_detached(self, ctx: AnyContext, step: AnyStep, value: object, options: DetachOptions, /) -> DetachedWork:
        raise self._refuse("spawn_detached()")


_FORM = 1
_FIELDS = frozenset({"form", "items", "state", "turns", "thread", "request"})
# Fields that snapshots of earlier releases lack.
_ADDED = frozenset({"trace", "name", "memory"})


@frozen
class Conversation:
    """The data of a context from which a later process can continue.

    Attributes:
        items: The conversation.
        state: The state.
        turns: The model calls so far.
        thread_id: The conversation's id.
        request_id: The caller's correlation id.
        trace: The place in a distributed trace.
        name: What the context is called.
        memory: What goes with it of the layers of its thread.
    """

    items: Sequence[Item]
    state: Any
    turns: int
    thread_id: str
    request_id: str | None
    trace: Trace | None = None
    name: str | None = None
    memory: ContextMemory = field(factory=ContextMemory)


def pack(conversation: Conversation) -> bytes:
    """A conversation as JSON.

    Raises:
        CodecError: An item or the state cannot be stored.
        LimitExceeded: It is too long, or nested too deep.
    """
    from noetic_py.core.codec import Codec
    from noetic_py.core.codec.structure import check_nesting, dump

    state = conversation.state
    bag = isinstance(state, StateBag)
    codec, memory = Codec(), conversation.memory
    tree = codec.encode(
        {
            "form": _FORM,
            "items": list(conversation.items),
            "state": dict(state.view()) if bag else state,
            "turns": conversation.turns,
            "thread": conversation.thread_id,
            "request": conversation.request_id,
            "trace": None if conversation.trace is None else list(conversation.trace.as_headers()),
            "name": conversation.name,
        }
    )
    if memory.states or memory.owner is not None:
        # In its stored form already.
        tree["memory"] = write_memory(memory, codec.encode)
    check_nesting(tree)
    data = dump(tree)
    if len(data) > codec.max_bytes:
        raise LimitExceeded("value size", codec.max_bytes)
    return data


def unpack(data: bytes, state_type: type[object]) -> Conversation:
    """The conversation that `pack` has made this of, its state checked to be a `state_type`.

    Raises:
        CodecError: It is malformed, of another form, or its state does not fit.
        LimitExceeded: It is too long, or nested too deep.
    """
    from noetic_py.core.codec import MAX_VALUE_BYTES, Codec
    from noetic_py.core.codec.structure import inside, parse

    tree: object = parse(data, MAX_VALUE_BYTES, "value size")
    if not is_dict(tree) or not _FIELDS <= tree.keys() <= _FIELDS | _ADDED or tree["form"] != _FORM:
        raise CodecError("is not a valid snapshot of a context", hint="Context.restore(ctx.snapshot())")
    bag = state_type is StateBag
    codec = Codec(() if bag else (state_type,))
    items: object = codec.decode(tree["items"])
    if not is_list(items) or not all(isinstance(item, ItemBase) for item in items):
        raise CodecError("holds something that is not an item", where="items")
    turns, thread, request = tree["turns"], tree["thread"], tree["request"]
    if type(turns) is not int or turns < 0:
        raise CodecError("is not a valid number of turns", where="turns")
    name = tree.get("name")
    if not isinstance(thread, str) or not thread or not isinstance(request, str | None):
        raise CodecError("are not valid ids", where="thread, request")
    if not isinstance(name, str | None) or (name is not None and not is_branch(name)):
        raise CodecError("is not a valid name", where="name")
    try:
        state = codec.decode(tree["state"], dict if bag else state_type)
    except CodecError as error:
        raise inside(error, "state") from error
    trace = _trace(tree.get("trace"))
    try:
        memory = read_memory(tree["memory"]) if "memory" in tree else ContextMemory()
    except ValueError as error:
        raise CodecError(str(error), where="memory") from None
    return Conversation(items, StateBag(state) if bag else state, turns, thread, request, trace, name, memory)


def _trace(headers: object) -> Trace | None:
    if headers is None:
        return None
    try:
        return Trace.from_headers(headers)
    except InvalidId as error:
        raise CodecError(error.message, where="trace") from error
