"""The conformance suite of models, passed by the scripted model and a small provider, and failed by broken ones."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
from attrs import evolve
from sniffio import current_async_library

from noetic_py import TokenUsage
from noetic_py.core.items import FunctionCall, Item, Message, Refusal
from noetic_py.errors import ConfigError, ContextOverflow, ModelError, ModelStatusError, ModelStreamError, RateLimited
from noetic_py.models import Model, ModelRequest, ModelStream, RetryModel, allow_real_models
from noetic_py.testing import ModelContract, ScriptedModel, Turn, Unfinished, replies
from noetic_py.testing.models import (
    HELLO,
    ProviderAnswer,
    ProviderCallPieces,
    ProviderFailure,
    ProviderScript,
    ServedModel,
)
from noetic_py.testing.replies import CUT, STALL, Reply, replying
from tests.line_provider import LineModel

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------------------------------------------- a fake


def failure(script: ProviderFailure) -> ModelError:
    message, model = script.message, "test:scripted"
    if script.overflow:
        return ContextOverflow(message, model=model, status=script.status, body=message)
    if script.status == 429:
        return RateLimited(message, model=model, retry_after=script.retry_after, body=message)
    return ModelStatusError(message, model=model, status=script.status, body=message)


def turn(script: ProviderScript) -> Turn:
    if isinstance(script, ProviderFailure):
        return failure(script)
    items: list[Item] = []
    if script.refusal is not None:
        items.append(Message.assistant([Refusal(refusal=script.refusal)]))
    if script.text:
        items.append(Message.assistant("".join(script.text)))
    items += [FunctionCall(name=each.name, arguments=each.arguments, call_id=each.call_id) for each in script.calls]
    if script.end == "whole":
        return items
    return Unfinished(
        items or "", None if script.end == "stall" else ModelStreamError("it broke", model="test:scripted")
    )


class TestScriptedModel(ModelContract):
    is_real = False

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        first = script[0]
        usage = first.usage if isinstance(first, ProviderAnswer) else None
        model = ScriptedModel(*[turn(each) for each in script], usage=usage)
        yield ServedModel(model, lambda: len(model.requests))


# ---------------------------------------------------------------------------------------------------- a provider


class TestLineModel(ModelContract):
    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            yield ServedModel(LineModel("m", server.url), lambda: len(server.requests), server.all_closed)


def reply(script: ProviderScript) -> Reply:
    """An entry of a script in the provider's own form."""
    if isinstance(script, ProviderFailure):
        headers = {} if script.retry_after is None else {"retry_after": str(script.retry_after)}
        return Reply.json(script.message, 413 if script.overflow else script.status, **headers)
    lines: list[object] = [{"text": piece} for piece in script.text]
    for index, call in enumerate(script.calls):
        lines += [{"call": index, "id": call.call_id, "name": call.name, "arguments": each} for each in call.pieces]
    end: dict[str, object] = {"end": "stop"} if script.refusal is None else {"end": "refusal", "words": script.refusal}
    if script.usage is not None:
        used = script.usage
        end["usage"] = {"input": used.input, "output": used.output, "cached_input": used.cached_input}
    ends: dict[str, list[object]] = {"whole": [end], "stall": [], "cut": [], "malformed": ["no line of this provider"]}
    sent = [json.dumps(line).encode() + b"\n" for line in [*lines, *ends[script.end]]]
    if script.end == "whole":
        return Reply(sent)
    return Reply([*sent, CUT if script.end == "cut" else STALL])


# ---------------------------------------------------------------------------------------------------- one loop alone


class AsyncioModel(LineModel):
    """Runs on asyncio alone, as what stands on another library may have to."""

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        if current_async_library() != "asyncio":
            raise ConfigError(f"{self.name} runs on asyncio alone, not on trio", code="event-loop")
        async with super().respond(request) as stream:
            yield stream


class TestAsyncioModel(ModelContract):
    loops = ("asyncio",)

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            yield ServedModel(AsyncioModel("m", server.url), lambda: len(server.requests), server.all_closed)


def test_a_model_that_says_it_runs_on_one_loop_has_to_refuse_the_other() -> None:
    class Contract(TestLineModel):
        loops = ("asyncio",)

    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        Contract().test_other_event_loops_are_refused_by_name()


# ---------------------------------------------------------------------------------------------------- broken ones


class Unguarded(LineModel):
    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        with allow_real_models():
            async with super().respond(request) as stream:
                yield stream


class Stubborn(LineModel):
    """Does not end when it is cancelled."""

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        with anyio.CancelScope(shield=True):
            async with super().respond(request) as stream:
                # From here on, so that a busy machine does not end it before it has begun.
                with anyio.move_on_after(0.2):
                    yield stream


class Leaking(LineModel):
    """Keeps its connection when it is left."""

    left: ClassVar[list[AbstractAsyncContextManager[ModelStream]]] = []

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        self.left.append(super().respond(request))
        yield await self.left[-1].__aenter__()


def repeating(name: str, url: str) -> Model:
    return RetryModel(LineModel(name, url), attempts=2, initial=0.001)


def answers(**changes: Callable[[Any], object]) -> Callable[[ProviderScript], ProviderScript]:
    """What a provider says, read wrongly: some attributes of it are something else."""

    def changed(script: ProviderScript) -> ProviderScript:
        found: Any = {name: change(getattr(script, name)) for name, change in changes.items() if hasattr(script, name)}
        return evolve(script, **found)

    return changed


def merged(calls: Sequence[ProviderCallPieces]) -> list[ProviderCallPieces]:
    return list({each.call_id: each for each in calls}.values())


def uncached(usage: TokenUsage | None) -> TokenUsage | None:
    return None if usage is None else TokenUsage(usage.input, usage.output)


BROKEN: dict[str, tuple[Callable[[ProviderScript], ProviderScript], str, tuple[Any, ...]]] = {
    "a text in one piece": (answers(text=lambda text: ["".join(text)]), "test_a_text_is_streamed_and_then_whole", ()),
    "calls of one id are one": (answers(calls=merged), "test_an_agent_calls_its_tools", ("call-1",)),
    "only the first call": (answers(calls=lambda calls: calls[:1]), "test_several_calls_in_one_answer", ()),
    "a piece is lost": (
        answers(calls=lambda calls: [evolve(each, pieces=['{"port": "Lorient"}']) for each in calls]),
        "test_a_call_in_pieces",
        (),
    ),
    "a refusal is a text": (answers(text=lambda _: ["Not that."], refusal=lambda _: None), "test_a_refusal", ()),
    "cached tokens are lost": (
        answers(usage=uncached),
        "test_the_tokens_that_the_provider_reports",
        (TokenUsage(120, 6, cached_input=100),),
    ),
    "no tokens are none": (
        answers(usage=lambda _: TokenUsage()),
        "test_tokens_that_are_not_reported_are_not_made_up",
        (),
    ),
    "a cut answer is whole": (answers(end=lambda _: "whole"), "test_a_stream_that_breaks", (["High "], "cut")),
    "nothing is asked to wait": (answers(retry_after=lambda _: None), "test_too_many_requests", ()),
    "a failure is a mistake": (answers(status=lambda _: 400), "test_an_error_status", (500,)),
    "too much is a mistake": (answers(overflow=lambda _: False), "test_a_request_larger_than_the_window", ()),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_an_answer_that_is_read_wrongly_is_found(fault: str) -> None:
    change, case, arguments = BROKEN[fault]

    class Contract(TestLineModel):
        @asynccontextmanager
        async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
            async with super().serve(*[change(each) for each in script]) as served:
                yield served

    with pytest.raises((pytest.fail.Exception, KeyError, ModelStatusError)):
        await getattr(Contract(), case)(*arguments)


MISBEHAVED: list[tuple[Callable[[str, str], Model], str, tuple[Any, ...]]] = [
    (Unguarded, "test_a_real_model_where_they_are_forbidden", ()),
    (Leaking, "test_an_answer_left_early", ()),
    (Stubborn, "test_a_call_cancelled_at_any_event", (HELLO,)),
    (repeating, "test_an_error_status", (500,)),
]


@pytest.mark.parametrize(("make", "case", "arguments"), MISBEHAVED)
async def test_a_model_that_misbehaves_is_found(
    make: Callable[[str, str], Model], case: str, arguments: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "CLOSING_TIMEOUT", 0.2)

    class Contract(TestLineModel):
        @asynccontextmanager
        async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
            async with replying(*[reply(each) for each in [*script, *script]]) as server:
                yield ServedModel(make("m", server.url), lambda: len(server.requests), server.all_closed)

    with pytest.raises((pytest.fail.Exception, TimeoutError)):
        await getattr(Contract(), case)(*arguments)
    for each in Leaking.left:
        await each.__aexit__(None, None, None)
    Leaking.left.clear()
