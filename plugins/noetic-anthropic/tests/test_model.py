"""The real SDK against a server that sends what the published schema says."""

from __future__ import annotations

import json
import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import anthropic
import anyio
import attrs
import pytest
from anthropic.lib.vertex import AsyncAnthropicVertex
from anthropic.types import ServerToolUseBlock, WebSearchToolResultBlock
from anthropic.types.beta import BetaMCPToolUseBlock
from messages_wire import answer, block, end, error, event, start, texts, tool_use
from noetic_anthropic import AnthropicModel, sdk_item
from pydantic import BaseModel

from noetic_py import Harness, RunResult, Step, call_model, loop, tool, until
from noetic_py.core.items import FunctionCallOutput, Message, Opaque, Reasoning
from noetic_py.errors import (
    AnswerTooLarge,
    ConfigError,
    ContextOverflow,
    ItemSchemaMismatch,
    ModelStatusError,
    ModelStreamError,
    ModelUnavailable,
    RateLimited,
)
from noetic_py.models import (
    ModelProfile,
    ModelRequest,
    ModelResponse,
    ModelStream,
    Price,
    ProfiledModel,
    allow_real_models,
    http,
    profile_of,
)
from noetic_py.testing.replies import CUT, STALL, Piece, Reply, ReplyServer, replying

pytestmark = pytest.mark.anyio

T = TypeVar("T")

HI = ModelRequest(items=[Message.user("hi")])
HELLO = answer(texts(0, "Hel", "lo"))


def model_at(server: ReplyServer, **options: Any) -> AnthropicModel:
    return AnthropicModel("claude-sonnet-5", base_url=server.url, api_key="sk-secret", **options)


@asynccontextmanager
async def asked(model: AnthropicModel, request: ModelRequest = HI) -> AsyncGenerator[ModelStream]:
    with allow_real_models(), anyio.fail_after(30):
        async with model.respond(request) as stream:
            yield stream


async def ask(model: AnthropicModel, request: ModelRequest = HI) -> ModelResponse:
    async with asked(model, request) as stream:
        return await stream.response()


async def run(model: AnthropicModel, step: Step[str, T]) -> RunResult[T]:
    async with Harness(model=model, plugins=[]) as harness:
        with allow_real_models():
            return await harness.run(step, "When?")


@tool
async def tide(port: str) -> str:
    """The next high water at a port."""
    return f"noon at {port}"


async def test_what_is_sent() -> None:
    async with replying(HELLO) as server:
        response = await ask(model_at(server))
    (seen,) = server.requests
    assert seen.path == "/v1/messages"
    assert "sk-secret" in str(seen.headers)
    assert "anthropic-version" in seen.headers
    assert seen.body == {
        "model": "claude-sonnet-5",
        "max_tokens": 64_000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
    }
    assert (response.stop_reason, response.model, response.response_id) == ("stop", "claude-sonnet-5", "msg_1")


async def test_thinking_goes_back_with_its_signature_and_tools_run_side_by_side() -> None:
    thought = [{"type": "thinking_delta", "thinking": "Two ports."}, {"type": "signature_delta", "signature": "c2ln"}]
    first = answer(
        block(0, {"type": "thinking", "thinking": "", "signature": ""}, *thought),
        texts(1, "I look."),
        tool_use(2, "toolu_1", "tide", '{"port": ', '"Brest"}'),
        tool_use(3, "toolu_2", "tide", '{"port": "Sète"}'),
        reason="tool_use",
    )
    agent = loop(call_model(tools=[tide], settings={"reasoning_effort": "high"}), until=until.no_tool_calls())
    async with replying(first, answer(texts(0, "At noon."))) as server:
        result = await run(model_at(server), agent)
    assert result.value == "At noon."
    assert [item.text for item in result.items if isinstance(item, FunctionCallOutput)] == [
        "noon at Brest",
        "noon at Sète",
    ]
    assert any(isinstance(item, Reasoning) and item.text == "Two ports." for item in result.items)
    _, said, outputs = server.requests[1].body["messages"]
    assert said["content"] == [
        {"type": "thinking", "thinking": "Two ports.", "signature": "c2ln"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "tide", "input": {"port": "Brest"}},
        {"type": "tool_use", "id": "toolu_2", "name": "tide", "input": {"port": "Sète"}},
    ]
    assert [each["tool_use_id"] for each in outputs["content"]] == ["toolu_1", "toolu_2"]
    assert server.requests[0].body["thinking"] == {"type": "adaptive"}


def test_what_only_the_beta_types_of_the_sdk_know_is_one_of_them() -> None:
    called: dict[str, Any] = {
        "type": "mcp_tool_use",
        "id": "mcptoolu_1",
        "name": "tide",
        "input": {},
        "server_name": "harbour",
    }
    assert isinstance(sdk_item(Opaque(raw=json.dumps(called).encode())), BetaMCPToolUseBlock)


async def test_what_the_provider_runs_itself_is_kept_and_goes_back() -> None:
    search: dict[str, Any] = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    hit = {"type": "web_search_result", "url": "https://x.test", "title": "Tides", "encrypted_content": "x"}
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [hit]}
    novel = {"type": "tide_lookup_tool_result", "tool_use_id": "srvtoolu_1", "heights": [6.9]}
    query = {"type": "input_json_delta", "partial_json": '{"query": "tide"}'}
    first = answer(block(0, search, query), block(1, result), block(2, novel), texts(3, "At noon."))
    async with replying(first, HELLO) as server:
        model = model_at(server)
        response = await ask(model)
        assert [item.type for item in response.items if isinstance(item, Opaque)] == [
            "server_tool_use",
            "web_search_tool_result",
            "tide_lookup_tool_result",
        ]
        called, found, unknown = [item for item in response.items if isinstance(item, Opaque)]
        typed = sdk_item(called)
        assert isinstance(typed, ServerToolUseBlock)
        assert typed.input == {"query": "tide"}
        typed = sdk_item(found)
        assert isinstance(typed, WebSearchToolResultBlock)
        assert typed.model_dump(exclude_none=True)["content"] == [hit]
        with pytest.raises(ItemSchemaMismatch, match="'tide_lookup_tool_result' is not a valid item of anthropic"):
            sdk_item(unknown)
        await ask(model, ModelRequest([*HI.items, *response.items, Message.user("Sure?")]))
    sent = server.requests[1].body["messages"][1]["content"]
    assert sent == [{**search, "input": {"query": "tide"}}, result, novel, {"type": "text", "text": "At noon."}]


async def test_an_answer_in_which_the_provider_pauses_goes_on() -> None:
    search: dict[str, Any] = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    first = answer(texts(0, "I look."), block(1, search), reason="pause_turn")
    async with replying(first, answer(texts(0, "At noon."))) as server:
        result = await run(model_at(server), call_model())
    assert (result.value, result.model_calls, result.usage.output) == ("At noon.", 2, 10)
    assert server.requests[1].body["messages"][1:] == [
        {"role": "assistant", "content": [{"type": "text", "text": "I look."}, search]}
    ]


class Tide(BaseModel):
    port: str
    metres: float


async def test_an_answer_of_a_type() -> None:
    async with replying(answer(texts(0, '{"port": "Brest",', ' "metres": 6.9}'))) as server:
        result = await run(model_at(server), call_model(output=Tide))
    assert result.value == Tide(port="Brest", metres=6.9)
    assert server.requests[0].body["output_config"]["format"]["type"] == "json_schema"


async def test_a_run_tells_what_stays_and_books_the_cache() -> None:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20, "output_tokens": 1}
    split = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 20}
    pieces = [start(**usage, cache_creation=split), *texts(0, "At noon."), *end(output_tokens=50)]
    price = Price(input="1", output="5", cached_input="0.1", cache_write="1.25", cache_write_1h="2")
    async with replying(Reply(pieces)) as server:
        model = model_at(server, prompt_cache="1h", profile=ModelProfile(price=price))
        result = await run(model, call_model(instructions="Answer with a time."))
    assert str(result.cost) == "0.000307"
    assert server.requests[0].body["system"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


# ---------------------------------------------------------------------------------------------------- failures


FAULTS: dict[str, tuple[list[Piece], str]] = {
    "is cut": ([CUT], "broke"),
    "is cut in an event": ([b"event: content_block_delta\ndata: {", CUT], "broke"),
    "stalls": ([STALL], "stalled"),
    "stalls in an event": ([b"event: content_block_delta\ndata: {", STALL], "stalled"),
    "is not JSON": ([b"event: content_block_stop\ndata: {oops\n\n", STALL], "not JSON"),
    "is not an object": ([b"event: content_block_stop\ndata: [1]\n\n", STALL], "not an object"),
    "is null": ([b"event: content_block_stop\ndata: null\n\n", STALL], "malformed"),
    "is not a text": ([b"event: content_block_stop\ndata: \xff\n\n", STALL], "utf-8"),
    "is nested deeply": ([b"event: x\ndata: " + b"[" * 100_000 + b"\n\n", STALL], "malformed"),
    "ends": ([], "ended before"),
    "is an error": ([event("error", error={"type": "overloaded_error", "message": "Overloaded"})], "Overloaded"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_that_fails(fault: str) -> None:
    pieces, words = FAULTS[fault]
    async with replying(Reply([start(input_tokens=1), *texts(0, "Hel", stop=False), *pieces])) as server:
        with pytest.raises(ModelStreamError, match=words) as caught:
            await ask(model_at(server, idle_timeout=0.2 if words == "stalled" else 10))
        await server.all_closed()
    assert (caught.value.model, caught.value.retryable) == ("anthropic:claude-sonnet-5", True)


async def test_an_event_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_EVENT", 2**16)
    async with replying(Reply(repeat(b"data: " + b"x" * 4096))) as server:
        with pytest.raises(ModelStreamError, match="malformed"):
            await ask(model_at(server))
        await server.all_closed()


@pytest.mark.parametrize("delta", [{"type": "text_delta", "text": "x"}, {"type": "signature_delta", "signature": "x"}])
async def test_an_answer_without_an_end_is_cut_off(delta: dict[str, Any]) -> None:
    (kind,) = set(delta) - {"type"}
    piece = event("content_block_delta", index=0, delta={**delta, kind: "x" * 2**20})
    begin = block(0, {"type": "text", "text": ""}, stop=False)

    async with replying(Reply([start(input_tokens=1), *begin, *[piece] * 40, STALL])) as server:
        with pytest.raises(AnswerTooLarge):
            await ask(model_at(server))
        await server.all_closed()


FAILURES: list[tuple[Reply, type[ModelStatusError], tuple[str, ...]]] = [
    (error(401, "authentication_error", "invalid x-api-key sk-secret"), ModelStatusError, ("[secret]", "api_key= of")),
    (error(404, "not_found_error", "model: claude-x"), ModelStatusError, ("check the model's name",)),
    (error(413, "request_too_large", "Request exceeds the maximum size"), ContextOverflow, ("window",)),
    (error(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"), ContextOverflow, ("window",)),
    (error(529, "overloaded_error", "Overloaded"), ModelStatusError, ("status 529", "Overloaded")),
    (Reply([b"<html>gateway</html>"], 502, {"content-type": "text/html"}), ModelStatusError, ("gateway",)),
    (Reply([b"[]"], 500, {"content-type": "application/json"}), ModelStatusError, ("no reason given",)),
]


@pytest.mark.parametrize(("reply", "kind", "says"), FAILURES)
async def test_an_error_status(reply: Reply, kind: type[ModelStatusError], says: tuple[str, ...]) -> None:
    async with replying(reply) as server:
        with pytest.raises(ModelStatusError) as caught:
            await ask(model_at(server))
    assert (type(caught.value), caught.value.status) == (kind, reply.status)
    shown = "".join(traceback.format_exception(caught.value))
    assert "sk-secret" not in shown
    for words in says:
        assert words in shown
    assert len(server.requests) == 1


async def test_an_error_before_the_answer_is_that_of_its_status() -> None:
    limited = Reply([event("error", error={"type": "rate_limit_error", "message": "slow down"})])
    overloaded = Reply([event("error", error={"type": "overloaded_error", "message": "Overloaded"})])
    async with replying(limited, overloaded) as server:
        with pytest.raises(RateLimited, match="slow down"):
            await ask(model_at(server))
        with pytest.raises(ModelStatusError) as caught:
            await ask(model_at(server))
    assert (caught.value.status, caught.value.retryable) == (529, True)


async def test_no_server_and_an_answer_that_does_not_begin() -> None:
    async with replying(Reply([STALL])) as server:
        with pytest.raises(ModelUnavailable, match=r"within 0\.2 s"):
            await ask(model_at(server), attrs.evolve(HI, settings={"timeout": 0.2}))
        await server.all_closed()
    with pytest.raises(ModelUnavailable, match="could not be reached"):
        await ask(model_at(server))


async def test_a_setting_that_claude_does_not_have_is_refused_before_connecting() -> None:
    async with replying() as server:
        with pytest.raises(ConfigError, match="'seed'"):
            await ask(model_at(server), attrs.evolve(HI, settings={"seed": 1}))
    assert server.opened == 0


# ---------------------------------------------------------------------------------------------------- connections


async def test_an_open_model_keeps_its_connection() -> None:
    async with replying(HELLO, HELLO, HELLO) as server:
        model = model_at(server)
        async with model, model:
            await ask(model)
            await ask(model)
            assert server.opened == 1
        await ask(model)
        await server.all_closed()
    assert server.opened == 2


async def test_a_client_of_ones_own_stays_open_and_never_repeats() -> None:
    async with replying(error(500, "api_error", "fire"), HELLO) as server:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="sk-own", max_retries=5) as client:
            model = AnthropicModel("claude-sonnet-5", client=client)
            with pytest.raises(ModelStatusError):
                await ask(model)
            await ask(model)
            assert not client.is_closed()
        assert ["sk-own" in str(seen.headers) for seen in server.requests] == [True] * 2


async def test_a_client_for_vertex_ai() -> None:
    vertex = partial(AsyncAnthropicVertex, region="europe-west4", project_id="tides", max_retries=5)
    async with (
        replying(HELLO, error(401, "authentication_error", "ya29.token is no token")) as server,
        vertex(access_token="ya29.token", base_url=server.url) as client,
    ):
        model = AnthropicModel("claude-sonnet-5", client=client)
        response = await ask(model)
        with pytest.raises(ModelStatusError) as caught:
            await ask(model)
    assert response.stop_reason == "stop"
    seen, _ = server.requests
    assert seen.path == (
        "/projects/tides/locations/europe-west4/publishers/anthropic/models/claude-sonnet-5:streamRawPredict"
    )
    assert seen.headers["authorization"] == "Bearer ya29.token"
    assert "model" not in seen.body
    assert "ya29" not in str(caught.value)


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with replying(HELLO) as server:
        assert (await ask(model_at(server))).stop_reason == "stop"


async def test_the_password_of_an_address_goes_to_the_server_and_to_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with replying(HELLO, error(500, "api_error", "http://ada:CaNaRy-0815@here failed")) as server:
        address = server.url.replace("://", "://ada:CaNaRy-0815@")
        model = AnthropicModel("claude-sonnet-5", base_url=address, api_key="sk-secret")
        await ask(model)
        assert server.requests[0].headers["authorization"] == "Basic YWRhOkNhTmFSeS0wODE1"
        with pytest.raises(ModelStatusError) as caught:
            await ask(model)
    assert "CaNaRy" not in f"{caught.value} {caught.value!r} {model!r} {caplog.text}"


# ---------------------------------------------------------------------------------------------------- definition


def test_a_key_is_needed_for_the_providers_own_address() -> None:
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY") as caught:
        AnthropicModel("claude-sonnet-5")
    assert caught.value.code == "model-key"
    with pytest.raises(ConfigError):
        AnthropicModel("claude-sonnet-5", base_url="https://api.anthropic.com")


async def test_a_server_gets_no_key_that_was_not_meant_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-env")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-env")
    async with replying(HELLO, HELLO) as server:
        await ask(AnthropicModel("claude-sonnet-5", base_url=server.url))
        assert "-env" not in str(server.requests)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        await ask(AnthropicModel("claude-sonnet-5"))
        assert "sk-env" in str(server.requests[1].headers)


@pytest.mark.parametrize("idle", [0, -1.0, float("nan")])
def test_an_idle_timeout_is_above_zero(idle: float) -> None:
    with pytest.raises(ConfigError) as caught:
        AnthropicModel("claude-sonnet-5", api_key="k", idle_timeout=idle)
    assert caught.value.code == "model-timeout"


def test_how_long_is_cached_is_one_of_three() -> None:
    cache: Any = "2h"
    with pytest.raises(ConfigError, match="expected one of 5m, 1h, off") as caught:
        AnthropicModel("claude-sonnet-5", api_key="k", prompt_cache=cache)
    assert caught.value.code == "model-cache"


def test_a_profile_of_ones_own() -> None:
    profile = ModelProfile(context_window=10)
    model = AnthropicModel("claude-sonnet-5", api_key="k", profile=profile, name="mine:m")
    assert isinstance(model, ProfiledModel)
    assert (profile_of(model), model.name) == (profile, "mine:m")


@pytest.mark.parametrize(
    "address", ["http://h/v1?token=CaNaRy0815", "http://h/v1#CaNaRy0815", "http://u:p@h:CaNaRy0815/v1"]
)
def test_an_address_that_the_sdk_would_show_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AnthropicModel("m", base_url=address, api_key="sk-secret")
    assert "CaNaRy" not in f"{caught.value} {caught.value!r}"
