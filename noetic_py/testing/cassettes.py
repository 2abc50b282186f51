"""Cassettes: the answers of a model and of tools, recorded once and replayed in tests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from difflib import SequenceMatcher, unified_diff
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import attrs
from attrs import define, frozen

from noetic_py.context.hooks import AnyHook, HookContext, after_tool, before_tool
from noetic_py.context.step import Step
from noetic_py.core.budget import TokenUsage
from noetic_py.core.codec import from_wire, to_wire
from noetic_py.core.control import RunResult
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item
from noetic_py.core.memory import Memory
from noetic_py.core.state import StateBag
from noetic_py.core.types import R, T
from noetic_py.core.values import is_array, is_mapping
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.harness import Harness
from noetic_py.models.model import Model, ModelEvent, ModelProfile, ModelRequest, ModelResponse, ModelStream
from noetic_py.models.wrapper import ModelWrapper
from noetic_py.plugins import ModelRegistry, hookimpl
from noetic_py.redaction import redact
from noetic_py.testing.scripted import events_of

_VERSION: Final = 1
_LINES: Final = 10
# What differs from run to run, and what no provider is sent.
_LEFT_OUT: Final = frozenset({"id", "status"})


class CassetteMismatch(NoeticError):
    """A run asked a model or a tool for something that was not recorded, or did not ask for all that was.

    The message shows the nearest recorded call that was not used, and at most ten lines of the difference.
    """


@define(eq=False)
class _Call:
    """A recorded call, and whether it was replayed."""

    kind: str
    name: str
    asked: Any
    given: Any
    used: bool = False


class Cassette:
    """Records what a model and tools answer, and replays it to changed code.

    ```python
    with Cassette("tests/cassettes/tides.json") as cassette:
        async with Harness(model=cassette.model("openai:gpt-5-mini"), hooks=cassette.tools) as harness:
            result = await harness.run(agent, "When is high water at Brest?")
    ```

    With `record=True` the model is asked and the tools are called, and the file is written when the block ends without
    an error. Otherwise the file is read: no model is asked, no tool is called, and a request that differs from what was
    recorded is a `CassetteMismatch` that shows the difference. Calls may come in another order.

    Requests are compared as the provider gets them: the conversation, the instructions, the tools, the settings and the
    type of the output. Ids do not count. Known secrets are masked in the file, in answers too.

    Args:
        path: The file. It is JSON, to be read by people and kept with the tests.
        record: Record, and do not replay.

    Raises:
        ConfigError: There is no such file to replay, or it is not a cassette; code `"cassette"`.
    """

    def __init__(self, path: str | Path, *, record: bool = False) -> None:
        self._path = Path(path)
        self._record = record
        self._calls: list[_Call] = [] if record else _read(self._path)
        self._mismatch: CassetteMismatch | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def records(self) -> bool:
        """Whether it records."""
        return self._record

    def model(self, model: Model | str) -> Model:
        """The model to give to a harness or a step: the recorded answers, or the model itself while it records.

        Args:
            model: The model, or its name. While it is replayed only its name is used.
        """
        return _CassetteModel(self, model)

    @property
    def tools(self) -> Sequence[AnyHook]:
        """Hooks for `Harness(hooks=...)` that record or replay the outputs of tools; without them tools are called."""

        @after_tool
        async def record(ctx: HookContext, call: FunctionCall, output: FunctionCallOutput) -> None:
            self.add("tool", call.name, _arguments(call), to_wire(output)["output"])

        @before_tool
        async def replay(ctx: HookContext, call: FunctionCall) -> FunctionCallOutput:
            given = self.take("tool", call.name, _arguments(call))
            made = from_wire({"type": "function_call_output", "call_id": call.call_id, "output": given})
            if not isinstance(made, FunctionCallOutput):
                raise _invalid(self._path, "the output of a tool is not one")
            return made

        return [record if self._record else replay]

    def add(self, kind: str, name: str, asked: object, given: object) -> None:
        """Record a call."""
        self._calls.append(_Call(kind, name, _masked(asked), _masked(given)))

    def take(self, kind: str, name: str, asked: object) -> Any:
        """What was given to a call that was recorded.

        Raises:
            CassetteMismatch: There is none that is the same and was not used.
        """
        wanted = _masked(asked)
        left = [call for call in self._calls if call.kind == kind and call.name == name and not call.used]
        for call in left:
            if call.asked == wanted:
                call.used = True
                return call.given
        self._mismatch = self._differs(kind, name, wanted, left)
        raise self._mismatch

    def check(self) -> None:
        """Refuse a run that has left something out.

        Raises:
            CassetteMismatch: A call differed from what was recorded, or a recorded one was not made.
        """
        if self._mismatch is not None:
            raise self._mismatch
        left = [call for call in self._calls if not call.used]
        if left and not self._record:
            first = left[0]
            raise CassetteMismatch(
                f"{len(left)} of {len(self._calls)} calls in {self._path} were not made; the first is of the "
                f"{first.kind} {first.name!r}:\n" + "\n".join(_lines(first.asked)[:_LINES]),
                hint="record the cassette again if the flow is to ask for less",
            )

    def save(self) -> None:
        """Write the file; nothing while it is replayed."""
        if not self._record:
            return
        calls = [attrs.asdict(call, filter=attrs.filters.exclude("used")) for call in self._calls]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"cassette": _VERSION, "calls": calls}, indent=1, ensure_ascii=False)
        self._path.write_text(f"{text}\n", encoding="utf-8")

    def names(self, kind: str) -> Sequence[str]:
        """The names of the models (kind `"model"`) or tools (`"tool"`) that were recorded, in the order of calls."""
        return list(dict.fromkeys(call.name for call in self._calls if call.kind == kind))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            self.check()
            self.save()

    def _differs(self, kind: str, name: str, wanted: object, left: Sequence[_Call]) -> CassetteMismatch:
        hint = "record the cassette again if the change is intended"
        if not left:
            return CassetteMismatch(
                f"the {kind} {name!r} is asked for more than was recorded in {self._path}:\n"
                + "\n".join(_lines(wanted)[-_LINES:]),
                hint=hint,
            )
        new = _lines(wanted)
        nearest = max(left, key=lambda call: SequenceMatcher(None, _lines(call.asked), new, autojunk=False).ratio())
        lines = [*unified_diff(_lines(nearest.asked), new, "recorded", "now", lineterm="", n=1)]
        if len(lines) > _LINES:
            lines = [*lines[: _LINES - 1], f"... and {len(lines) - _LINES + 1} lines more"]
        return CassetteMismatch(
            f"what the {kind} {name!r} is asked differs from what was recorded in {self._path}:\n" + "\n".join(lines),
            hint=hint,
        )


async def replay(run: str | Path, flow: Step[T, R, Memory, StateBag], value: T) -> RunResult[R, StateBag]:
    """Run a flow with what a cassette has of a run, and check that it asks for the same.

    ```python
    result = await replay("tests/cassettes/tides.json", agent, "When is high water at Brest?")
    ```

    The recorded answers are those of the harness's model, and of the models that steps name. Tools are called if the
    cassette has no outputs of tools. For steps with a model object, or a harness of your own, use `Cassette`.

    Args:
        run: The file of the cassette.
        flow: The flow, changed or not.
        value: Its input.

    Raises:
        ConfigError: There is no such file, or it is not a cassette; code `"cassette"`.
        CassetteMismatch: The flow asks for something that was not recorded, or does not ask for all that was.
        NoeticError: The run broke.
    """
    with Cassette(run) as cassette:
        names, tools = cassette.names("model"), cassette.names("tool")
        model = cassette.model(names[0]) if names else None
        async with Harness(
            model=model, hooks=cassette.tools if tools else (), plugins=[_Named(cassette, names)]
        ) as harness:
            return await harness.run(flow, value)


@frozen(eq=False)
class _Named:
    """A plugin that gives the recorded models to steps that name them."""

    cassette: Cassette
    names: Sequence[str]

    @hookimpl
    def register_models(self, registry: ModelRegistry) -> None:
        for provider in dict.fromkeys(name.partition(":")[0] for name in self.names if ":" in name):
            registry.provider(provider, partial(self._model, provider))

    def _model(self, provider: str, name: str) -> Model:
        return self.cassette.model(f"{provider}:{name}")


class _CassetteModel(ModelWrapper):
    """Asks the model and records it, or gives what was recorded."""

    def __init__(self, cassette: Cassette, model: Model | str) -> None:
        super().__init__(model)
        self._cassette = cassette

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        asked = _asked(request)
        if not self._cassette.records:
            given = self._cassette.take("model", self.name, asked)
            async with self.ask(_Recorded(self.name, self.profile, _response(given)), request) as stream:
                yield stream
            return
        async with self.ask(self.model, request) as stream:
            yield stream
            # What a reader has left early is not an answer.
            self._cassette.add("model", self.name, asked, _given(await stream.response()))


@frozen(eq=False)
class _Recorded:
    """A model that gives one answer."""

    name: str
    profile: ModelProfile
    answer: ModelResponse

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        yield _Stream(self.answer)


@frozen(eq=False)
class _Stream:
    """An answer that was recorded, word by word."""

    answer: ModelResponse

    async def __aiter__(self) -> AsyncIterator[ModelEvent]:
        for event in events_of(self.answer.items, None, whole=True):
            yield event

    async def response(self) -> ModelResponse:
        return self.answer


# ------------------------------------------------------------------------------------------------------- forms in files


def _asked(request: ModelRequest) -> dict[str, Any]:
    """A request without what differs from run to run."""
    ids: dict[str, str] = {}
    found: dict[str, Any] = {
        "instructions": request.instructions,
        "items": [_item(item, ids) for item in request.items],
        "tools": [dict(tool) for tool in request.tools],
        "settings": dict(request.settings),
        "output": None if request.output is None else dict(request.output.schema),
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}


def _item(item: Item, ids: dict[str, str]) -> dict[str, Any]:
    wire = {name: value for name, value in to_wire(item).items() if name not in _LEFT_OUT}
    call_id = wire.get("call_id")
    if isinstance(call_id, str):
        wire["call_id"] = ids.setdefault(call_id, f"call-{len(ids) + 1}")
    return wire


def _arguments(call: FunctionCall) -> Any:
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def _given(response: ModelResponse) -> dict[str, Any]:
    usage = None if response.usage is None else attrs.asdict(response.usage)
    return {
        "items": [to_wire(item) for item in response.items],
        "usage": usage and {name: value for name, value in usage.items() if value is not None},
        "cost": None if response.cost is None else str(response.cost),
        "stop_reason": response.stop_reason,
        "model": response.model,
        "response_id": response.response_id,
        **({"server_tools": dict(response.server_tools)} if response.server_tools else {}),
    }


def _response(given: Mapping[str, Any]) -> ModelResponse:
    return ModelResponse(
        items=tuple(from_wire(item) for item in given["items"]),
        usage=None if given["usage"] is None else TokenUsage(**given["usage"]),
        cost=None if given["cost"] is None else Decimal(given["cost"]),
        stop_reason=given["stop_reason"],
        model=given["model"],
        response_id=given["response_id"],
        server_tools=given.get("server_tools", {}),
    )


def _masked(value: object) -> Any:
    """A value as JSON has it, with known secrets masked."""
    if isinstance(value, str):
        return redact(value)
    if is_mapping(value):
        return {str(name): _masked(each) for name, each in value.items()}
    if is_array(value):
        return [_masked(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))


def _lines(value: object) -> list[str]:
    """A value line by line, with the lines of its texts as lines of their own."""
    found: list[str] = []
    for line in json.dumps(value, indent=1, ensure_ascii=False).splitlines():
        found += line.replace("\\n", "\n").splitlines()
    return found


def _read(path: Path) -> list[_Call]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no cassette {path}",
            code="cassette",
            hint="record it: Cassette(path, record=True), or pytest --record-cassettes",
        ) from None
    except (OSError, ValueError) as error:
        raise _invalid(path, str(error)) from None
    if not is_mapping(found) or found.get("cassette") != _VERSION:
        raise _invalid(path, f"expected version {_VERSION}")
    try:
        return [_Call(each["kind"], each["name"], each["asked"], each["given"]) for each in found["calls"]]
    except (KeyError, TypeError) as error:
        raise _invalid(path, f"{type(error).__name__}: {error}") from None


def _invalid(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is not a valid cassette: {why}", code="cassette", hint="record it again")
