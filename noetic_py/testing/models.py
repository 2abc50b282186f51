r"""The conformance suite for models, to be run with pytest against one of your own.

A model that passes it can be asked by every flow: its answer is streamed and then whole, what goes wrong with its
provider is one named error for each cause, and an answer that is left or cancelled at any event leaves nothing open.

Subclass `ModelContract` in a test module, and let `serve` make the model with a provider that answers by a script: a
server on this machine, such as that of `noetic_py.testing.replies`, which sends each answer in the provider's own form.

```python
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderScript, ServedModel


class TestMyModel(ModelContract):
    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with my_server(*map(in_my_form, script)) as server:
            yield ServedModel(MyModel(server.url), lambda: len(server.requests), server.all_closed)
```

Every case is a test of its own, on each event loop that the model runs on.
"""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Literal, TypeAlias

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve, frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.control import AnyResult
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Message, Refusal
from noetic_py.errors import (
    ConfigError,
    ContextOverflow,
    ModelError,
    ModelRefused,
    ModelStatusError,
    ModelStreamError,
    ModelUnavailable,
    RateLimited,
    RealModelRefused,
    UnknownKeyword,
)
from noetic_py.harness import Harness
from noetic_py.models.model import (
    ItemDone,
    Model,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    ModelStream,
    TextPart,
    ToolCallPart,
    allow_real_models,
    close_events,
)
from noetic_py.models.wrapper import TimedModel
from noetic_py.steps.loop import loop
from noetic_py.steps.model import call_model
from noetic_py.testing._conformance.base import equal
from noetic_py.tools.definition import tool
from noetic_py.until import no_tool_calls

__all__ = ["ModelContract", "ProviderAnswer", "ProviderCallPieces", "ProviderFailure", "ProviderScript", "ServedModel"]


@frozen
class ProviderCallPieces:
    """A tool call in an answer.

    Attributes:
        call_id: The id that the provider gives it.
        name: The tool.
        pieces: The arguments' JSON text, each piece in an event of its own.
    """

    call_id: str
    name: str
    pieces: Sequence[str]

    @property
    def arguments(self) -> str:
        """The arguments' JSON text."""
        return "".join(self.pieces)


@frozen
class ProviderAnswer:
    """An answer that the provider streams: its text, then its calls.

    Attributes:
        text: The text, each piece in an event of its own; no piece for no text.
        calls: The tool calls, in order.
        refusal: What the model says to decline, in the form that the provider has for it; `None` when it does not.
        usage: The tokens that the provider reports: `input`, `output` and `cached_input`. `None` when it reports none.
        end: What comes behind the last piece: the end of a whole answer; nothing more (`"stall"`); the end of the
            connection (`"cut"`); something that is not of the provider's form, and then nothing more (`"malformed"`).
    """

    text: Sequence[str] = ()
    calls: Sequence[ProviderCallPieces] = ()
    refusal: str | None = None
    usage: TokenUsage | None = None
    end: Literal["whole", "stall", "cut", "malformed"] = "whole"


@frozen
class ProviderFailure:
    """An answer with an error status.

    Attributes:
        status: The HTTP status, or what it would be.
        message: What the provider says.
        retry_after: Seconds that the provider asks to wait, `None` when it does not.
        overflow: Whether it says that the request is larger than the model's context window.
    """

    status: int
    message: str = "the provider's own words"
    retry_after: int | None = None
    overflow: bool = False


ProviderScript: TypeAlias = ProviderAnswer | ProviderFailure
"""An entry of a script: what the provider does with one request."""


async def _at_once() -> None:
    """Nothing is open that could be waited for."""


@frozen
class ServedModel:
    """A model, and what a test sees of its provider.

    Attributes:
        model: The model.
        asked: How many requests have come to the provider.
        all_closed: Waits until none of the model's connections is open; fails when one stays open.
    """

    model: Model
    asked: Callable[[], int]
    all_closed: Callable[[], Awaitable[None]] = _at_once


HELLO = ProviderAnswer(["High ", "water ", "is ", "at ", "noon."], usage=TokenUsage(input=12, output=6))
TIDE = ProviderCallPieces("call-1", "tide", ['{"po', 'rt": "Bre', 'st"}'])
WIND = ProviderCallPieces("call-2", "wind", ['{"port"', ': "Sète"}'])
ASK = ModelRequest(items=[Message.user("When is high water?")])


@tool
async def tide(port: str) -> str:
    """The next high water at a port."""
    return f"noon at {port}"


@tool
async def wind(port: str) -> str:
    """The wind at a port."""
    return f"calm at {port}"


_ASK_WITH_TOOLS = evolve(ASK, tools=[tide.definition(), wind.definition()])
_UNKNOWN_SETTING = "temperatur"


class ModelContract:
    """The contract of a model."""

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio

    loops: ClassVar[Sequence[str]] = ("asyncio", "trio")
    """The event loops that the model runs on; on the other it has to refuse by the name of the loop."""
    parallel_calls: ClassVar[bool] = True
    """Whether one answer may hold several calls."""
    streams_calls: ClassVar[bool] = True
    """Whether the pieces of a call are told before it is whole."""
    is_real: ClassVar[bool] = True
    """Whether it calls something real, which tests may forbid; no fake."""

    def serve(self, *script: ProviderScript) -> AbstractAsyncContextManager[ServedModel]:
        """Make the model, and a provider that answers it by a script; for as long as the block lasts.

        Args:
            script: What the provider does with the first request, with the second, and so on.
        """
        raise NotImplementedError("serve(*script) has to make the model and a provider that answers by the script")

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each case on the loops of the model, and the one about the others on those."""
        if "anyio_backend" in metafunc.fixturenames:
            metafunc.parametrize("anyio_backend", self.loops, scope="module")

    # -- answers

    async def test_a_text_is_streamed_and_then_whole(self) -> None:
        """It comes in pieces, and the items that were told one by one are those of the response."""
        async with self._served(HELLO) as served:
            events, response = await _asked(served)
        pieces = [event.delta for event in events if isinstance(event, TextPart)]
        equal("".join(pieces), "High water is at noon.")
        equal(len(pieces) > 1, True)
        equal([event.item for event in events if isinstance(event, ItemDone)], list(response.items))
        equal(_text(response), "High water is at noon.")
        equal(response.stop_reason, "stop")

    async def test_a_response_without_its_events(self) -> None:
        """`response()` works without reading the stream first, and may be called again."""
        async with self._served(HELLO) as served, served.model.respond(ASK) as stream:
            first = await stream.response()
            equal(await stream.response(), first)
        equal(_text(first), "High water is at noon.")

    async def test_an_empty_answer(self) -> None:
        """A model that says nothing has failed in nothing: its answer has no text and no call."""
        async with self._served(ProviderAnswer(usage=HELLO.usage)) as served:
            _, response = await _asked(served)
        equal((_text(response), len(_calls(response)), response.stop_reason), ("", 0, "stop"))

    async def test_a_call_in_pieces(self) -> None:
        """The pieces of its arguments come with the call's id and name, and are its arguments together."""
        async with self._served(ProviderAnswer(calls=[TIDE])) as served:
            events, response = await _asked(served, _ASK_WITH_TOOLS)
        _check_calls(events, response, [TIDE])

    async def test_several_calls_in_one_answer(self) -> None:
        """They are told apart, and keep their order."""
        if self.parallel_calls:
            async with self._served(ProviderAnswer(calls=[WIND, TIDE])) as served:
                events, response = await _asked(served, _ASK_WITH_TOOLS)
            _check_calls(events, response, [WIND, TIDE])

    @pytest.mark.parametrize("second_id", ["call-2", "call-1"])
    async def test_an_agent_calls_its_tools(self, second_id: str) -> None:
        """The outputs go back with their calls, also where the provider gave two calls one id."""
        calls = [TIDE, evolve(WIND, call_id=second_id)] if self.parallel_calls else [TIDE]
        agent = loop(call_model(tools=[tide, wind]), until=no_tool_calls())
        async with self._served(ProviderAnswer(calls=calls), HELLO) as served:
            async with Harness(model=served.model, plugins=()) as harness:
                result = await harness.run(agent, "How is it at Brest and at Sète?")
            equal(served.asked(), 2)
        equal(result.value, "High water is at noon.")
        outputs = {item.call_id: item.text for item in result.items if isinstance(item, FunctionCallOutput)}
        equal([outputs[call.call_id] for call in _calls(result)], ["noon at Brest", "calm at Sète"][: len(calls)])

    async def test_a_refusal(self) -> None:
        """The model's words are a refusal in the response, and a run ends with the error that says so."""
        declined = ProviderAnswer(refusal="Not that.", usage=HELLO.usage)
        async with self._served(declined, declined) as served:
            _, response = await _asked(served)
            async with Harness(model=served.model, plugins=()) as harness:
                with pytest.raises(ModelRefused, match="Not that"):
                    await harness.run(call_model(), "When?")
        equal(response.stop_reason, "refusal")
        parts = [part for item in response.items if isinstance(item, Message) for part in item.content]
        equal([part.refusal for part in parts if isinstance(part, Refusal)], ["Not that."])

    async def test_answers_side_by_side(self) -> None:
        """One model answers several calls at once."""
        found: list[str] = []
        async with self._served(*[HELLO] * 4) as served:

            async def one() -> None:
                found.append(_text((await _asked(served))[1]))

            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(one)
        equal(found, ["High water is at noon."] * 4)

    # -- usage

    @pytest.mark.parametrize(
        "usage", [TokenUsage(120, 6), TokenUsage(120, 6, cached_input=100)], ids=["plain", "cached"]
    )
    async def test_the_tokens_that_the_provider_reports(self, usage: TokenUsage) -> None:
        """Cached ones are a part of the input."""
        async with self._served(evolve(HELLO, usage=usage)) as served:
            _, response = await _asked(served)
        found = response.usage
        if found is None:
            pytest.fail("the response has no usage")
        equal((found.input, found.output, found.cached_input or 0), (120, 6, usage.cached_input or 0))

    async def test_tokens_that_are_not_reported_are_not_made_up(self) -> None:
        """No usage is `None`, which a budget counts by itself."""
        async with self._served(evolve(HELLO, usage=None)) as served:
            _, response = await _asked(served)
        equal(response.usage, None)

    # -- what ends early

    async def test_an_answer_left_early(self) -> None:
        """A reader that leaves after the first event leaves no connection and no task."""
        async with self._served(evolve(HELLO, end="stall")) as served:
            async with served.model.respond(ASK) as stream:
                events = aiter(stream)
                await anext(events)
                await close_events(events)
            gc.collect()

    @pytest.mark.parametrize("answer", [HELLO, ProviderAnswer(calls=[TIDE])], ids=["text", "call"])
    async def test_a_call_cancelled_at_any_event(self, answer: ProviderAnswer) -> None:
        """Before it is asked, when the answer begins, and behind every event: nothing is left, and nothing is lost."""
        request = _ASK_WITH_TOOLS if answer.calls else ASK
        async with self._served(answer) as served:
            events, _ = await _asked(served, request)
        pieces = sum(not isinstance(event, ItemDone) for event in events)
        if answer.calls and not self.streams_calls:
            pieces = 0
        stalled = evolve(answer, end="stall")
        async with self._served(*[stalled] * (pieces + 2)) as served:
            for behind in range(-1, pieces + 1):
                with anyio.fail_after(20):
                    await _cancelled(served.model, request, behind)
                await served.all_closed()
            gc.collect()

    @pytest.mark.parametrize("said", [(), ("High ", "water ")], ids=["begin", "middle"])
    @pytest.mark.parametrize("end", ["cut", "malformed"])
    async def test_a_stream_that_breaks(self, said: Sequence[str], end: Literal["cut", "malformed"]) -> None:
        """It is an error that names the model and that another try may mend; the response raises it too."""
        async with self._served(ProviderAnswer(said, usage=HELLO.usage, end=end)) as served:
            kinds: tuple[type[ModelError], ...] = (ModelStreamError,)
            if not said:
                kinds = (ModelStreamError, ModelUnavailable)
            with pytest.raises(kinds) as caught:
                await _broken_twice(served.model, kinds)
        equal((caught.value.model, caught.value.retryable), (served.model.name, True))

    @pytest.mark.parametrize("said", [(), ("High ", "water ")], ids=["begin", "middle"])
    async def test_a_stream_that_stalls_meets_a_time_limit(self, said: Sequence[str]) -> None:
        """The call is given up where `TimedModel` says so, and leaves nothing."""
        async with self._served(ProviderAnswer(said, usage=HELLO.usage, end="stall")) as served:
            timed = TimedModel(served.model, idle=0.1) if said else TimedModel(served.model, begin=0.1)
            with pytest.raises(ModelStreamError if said else ModelUnavailable, match=r"stalled|did not begin"):
                async with timed.respond(ASK) as stream:
                    await stream.response()

    # -- what the provider refuses

    async def test_too_many_requests(self) -> None:
        """The error has the seconds that the provider asks to wait, and the model has not asked again by itself."""
        async with self._served(ProviderFailure(429, retry_after=7)) as served:
            error = await self._failed(served, RateLimited)
            equal(served.asked(), 1)
        if isinstance(error, RateLimited):
            equal((error.status, error.retry_after, error.retryable), (429, 7.0, True))

    @pytest.mark.parametrize("status", [400, 401, 404, 500, 503])
    async def test_an_error_status(self, status: int) -> None:
        """The error has the status and the provider's words, and says whether another try may help."""
        async with self._served(ProviderFailure(status)) as served:
            error = await self._failed(served, ModelStatusError)
            equal(served.asked(), 1)
        if isinstance(error, ModelStatusError):
            equal((type(error), error.status, error.retryable), (ModelStatusError, status, status >= 500))
            equal("the provider's own words" in error.body, True)

    async def test_a_request_larger_than_the_window(self) -> None:
        """It has an error of its own, which another try does not mend."""
        async with self._served(ProviderFailure(400, overflow=True)) as served:
            equal((await self._failed(served, ContextOverflow)).retryable, False)

    async def test_a_setting_that_no_model_reads(self) -> None:
        """It is refused by its name, and nothing is asked."""
        async with self._served(HELLO) as served:
            settings: Any = {_UNKNOWN_SETTING: 0.5}
            async with Harness(model=served.model, plugins=()) as harness:
                with pytest.raises(UnknownKeyword, match=_UNKNOWN_SETTING):
                    await harness.run(call_model(settings=settings), "When?")
            equal(served.asked(), 0)

    async def test_a_real_model_where_they_are_forbidden(self) -> None:
        """It refuses before it opens a connection."""
        async with self._served(HELLO) as served:
            if self.is_real:
                with allow_real_models(False), pytest.raises(RealModelRefused):
                    await _asked(served)
                equal(served.asked(), 0)

    def test_other_event_loops_are_refused_by_name(self) -> None:
        """A model that runs on one loop alone says on which, before it asks."""
        for other in {"asyncio", "trio"} - {*self.loops}:
            anyio.run(self._refuses, other, backend=other)

    # -- helpers

    async def _refuses(self, loop_name: str) -> None:
        async with self._served(HELLO) as served:
            with pytest.raises(ConfigError, match=loop_name):
                await _asked(served)
            equal(served.asked(), 0)

    async def _failed(self, served: ServedModel, kind: type[ModelStatusError]) -> ModelStatusError:
        with pytest.raises(kind) as caught:
            await _asked(served)
        equal(caught.value.model, served.model.name)
        return caught.value

    @asynccontextmanager
    async def _served(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        """The model in a test: afterwards its connections are closed, and no task is left that was not there before."""
        failure: BaseException | None = None
        async with self.serve(*script) as served:
            before = await _running_tasks()
            try:
                with allow_real_models():
                    yield served
                await served.all_closed()
                equal(await _running_tasks() <= before, True)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 # raised below, outside of a task group
                failure = error
        if failure is not None:
            raise failure


async def _running_tasks() -> set[int]:
    # Tasks begin and end within a few turns of the event loop.
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    return {task.id for task in anyio.get_running_tasks()}


async def _asked(served: ServedModel, request: ModelRequest = ASK) -> tuple[list[ModelEvent], ModelResponse]:
    async with served.model.respond(request) as stream:
        events = [event async for event in stream]
        return events, await stream.response()


async def _broken_twice(model: Model, kinds: tuple[type[ModelError], ...]) -> None:
    async with model.respond(ASK) as stream:
        with pytest.raises(kinds):
            async for _ in stream:
                pass
        await stream.response()


async def _cancelled(model: Model, request: ModelRequest, behind: int) -> None:
    """Ask, and cancel it behind so many events; -1 is before it is asked."""
    with anyio.CancelScope() as scope:
        if behind < 0:
            scope.cancel()
        async with model.respond(request) as stream:
            await _read_and_cancel(stream, behind, scope)
    equal(scope.cancelled_caught, True)


async def _read_and_cancel(stream: ModelStream, behind: int, scope: anyio.CancelScope) -> None:
    heard = 0
    if behind == 0:
        scope.cancel()
    events = aiter(stream)
    try:
        async for _ in events:
            heard += 1
            if heard == behind:
                scope.cancel()
    finally:
        await close_events(events)


def _check_calls(events: Sequence[ModelEvent], response: ModelResponse, expected: Sequence[ProviderCallPieces]) -> None:
    calls = _calls(response)
    equal([(call.name, json.loads(call.arguments)) for call in calls], [_said(each) for each in expected])
    equal(len({call.call_id for call in calls}), len(expected))
    for call in calls:
        parts = [part for part in events if isinstance(part, ToolCallPart) and part.call_id == call.call_id]
        equal({part.name for part in parts}, {call.name})
        equal("".join(part.delta for part in parts), call.arguments)
    equal(response.stop_reason, "tool_calls")


def _said(call: ProviderCallPieces) -> tuple[str, object]:
    return call.name, json.loads(call.arguments)


def _text(response: ModelResponse) -> str:
    return "".join(item.text for item in response.items if isinstance(item, Message))


def _calls(found: ModelResponse | AnyResult) -> list[FunctionCall]:
    return [item for item in found.items if isinstance(item, FunctionCall)]
