from __future__ import annotations

import traceback
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Literal

import anyio
import anyio.lowlevel
import attrs
import openai
import pytest
from noetic_openai import OpenAIModel, sdk_item
from noetic_openai.model import key_source
from noetic_openai.wire import Server
from openai.types.responses import ResponseCodeInterpreterToolCall, ResponseFunctionWebSearch
from proxy import endless, error_reply, sse

from noetic_py import Harness, call_model
from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import InputImage, Message, Opaque
from noetic_py.errors import (
    ConfigError,
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
    ProfiledModel,
    TextPart,
    allow_real_models,
    profile_of,
)
from noetic_py.testing.replies import CUT, STALL, Piece, Reply, ReplyServer, replying

pytestmark = pytest.mark.anyio

Api = Literal["responses", "chat"]
both = pytest.mark.parametrize("api", ["chat", "responses"])

HELLO: dict[Api, list[bytes]] = {
    "chat": sse(
        {"id": "r1", "model": "m-1", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"id": "r1", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "Hel"}}]},
        {"id": "r1", "model": "m-1", "choices": [{"index": 0, "delta": {"content": "lo"}}]},
        {"id": "r1", "model": "m-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": "r1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "cost": "0.01"}},
        done=True,
    ),
    "responses": sse(
        {"type": "response.created", "response": {"id": "r1", "status": "in_progress"}},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "Hel"},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "lo"},
        {
            "type": "response.output_item.done",
            "item": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
            },
        },
        {
            "type": "response.completed",
            "response": {
                "id": "r1",
                "model": "m-1",
                "status": "completed",
                "usage": {"input_tokens": 3, "output_tokens": 2, "cost": "0.01"},
            },
        },
    ),
}


def model_at(server: ReplyServer, api: Api = "chat", **options: Any) -> OpenAIModel:
    return OpenAIModel("m", api=api, base_url=f"{server.url}/v1", api_key="sk-secret", **options)


HI = ModelRequest(items=[Message.user("hi")])


@asynccontextmanager
async def asked(model: OpenAIModel, request: ModelRequest = HI) -> AsyncGenerator[ModelStream]:
    with allow_real_models():
        async with model.respond(request) as stream:
            yield stream


async def answer(model: OpenAIModel, request: ModelRequest = HI) -> ModelResponse:
    async with asked(model, request) as stream:
        return await stream.response()


async def tasks() -> set[int]:
    # What was started begins, and what is over ends, within a few turns of the loop.
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    return {task.id for task in anyio.get_running_tasks()}


@asynccontextmanager
async def nothing_leaks(server: ReplyServer) -> AsyncGenerator[None]:
    """Afterwards every connection is closed, and the tasks are those that were there before."""
    before = await tasks()
    yield
    await server.all_closed()
    assert await tasks() <= before


@both
async def test_an_answer(api: Api) -> None:
    async with replying(Reply(HELLO[api])) as server, nothing_leaks(server), asked(model_at(server, api)) as stream:
        parts = [part.delta async for part in stream if isinstance(part, TextPart)]
        response = await stream.response()
    assert parts == ["Hel", "lo"]
    (item,) = response.items
    assert isinstance(item, Message)
    assert item.text == "Hello"
    assert response.usage == TokenUsage(input=3, output=2)
    assert response.cost == Decimal("0.01")
    assert (response.stop_reason, response.model, response.response_id) == ("stop", "m-1", "r1")
    (seen,) = server.requests
    assert seen.path == ("/v1/chat/completions" if api == "chat" else "/v1/responses")
    assert seen.headers["authorization"] == "Bearer sk-secret"
    assert seen.body["stream"] is True


@both
@pytest.mark.parametrize("many", [1, 2000])
@pytest.mark.parametrize("status", ["100 Continue", "103 Early Hints\r\nlink: </a>"])
async def test_a_server_that_only_ever_says_to_go_on(api: Api, status: str, many: int) -> None:
    """An answer to come is none, however often it is promised: the time until the first event is limited."""
    piece = f"HTTP/1.1 {status}\r\n\r\n".encode() * many
    async with endless(piece) as server, nothing_leaks(server):
        with anyio.fail_after(20), pytest.raises(ModelUnavailable, match=r"did not begin within 0\.2 s"):
            await answer(model_at(server, api), attrs.evolve(HI, settings={"timeout": 0.2}))


FAULTS: dict[str, tuple[list[Piece], str]] = {
    "cut at the start": ([CUT], "broke"),
    "cut in the middle": ([b"data: {", CUT], "broke"),
    "stalls": ([STALL], "stalled"),
    "stalls inside an event": ([b"data: {", STALL], "stalled"),
    "is not JSON": ([b"data: {oops\n\n", STALL], "not JSON"),
    "is no object": ([b"data: [1]\n\n", STALL], "not a JSON object"),
    "is no text": ([b"data: \xff\n\n", STALL], "utf-8"),
    "ends": ([], "before the answer was complete"),
    "says it is done": ([b"data: [DONE]\n\n"], "before the answer was complete"),
    "is an error": (
        [b'data: {"type": "error", "error": {"code": "server_error", "message": "fire"}}\n\n', STALL],
        "fire",
    ),
}


@both
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_that_fails(api: Api, begun: bool, fault: str) -> None:
    pieces, words = FAULTS[fault]
    reply = Reply([*(HELLO[api][:2] if begun else []), *pieces])
    async with replying(reply) as server, nothing_leaks(server):
        model = model_at(server, api, idle_timeout=0.2 if words == "stalled" else 10)
        with pytest.raises(ModelStreamError, match=words) as caught:
            await answer(model)
    assert (caught.value.model, caught.value.retryable) == ("openai:m", True)


STATUSES: list[tuple[Reply, type[ModelStatusError]]] = [
    (error_reply(401, {"message": "bad key sk-secret"}), ModelStatusError),
    (Reply([b"<html>gateway</html>"], 502, {"content-type": "text/html"}), ModelStatusError),
]


@both
@pytest.mark.parametrize(("reply", "kind"), STATUSES)
async def test_an_error_status(api: Api, reply: Reply, kind: type[ModelStatusError]) -> None:
    async with replying(reply) as server, nothing_leaks(server):
        with pytest.raises(ModelStatusError) as caught:
            await answer(model_at(server, api))
    assert type(caught.value) is kind
    assert caught.value.status == reply.status
    assert "sk-secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert len(server.requests) == 1


# As OpenAI's servers and those like them word it; some repeat the key.
MISTAKES: dict[int, tuple[dict[str, str], tuple[str, ...]]] = {
    404: (
        {"message": "The model `m` does not exist or you do not have access to it.", "code": "model_not_found"},
        ("The model `m` does not exist", "check the model's name, 'openai:m', and base_url="),
    ),
    401: (
        {"message": "Incorrect API key provided: sk-secret.", "code": "invalid_api_key"},
        ("Incorrect API key provided: [secret]", "check the API key: api_key= of OpenAIModel"),
    ),
}


@both
@pytest.mark.parametrize("status", MISTAKES)
async def test_a_wrong_name_and_a_wrong_key_say_what_where_and_the_remedy(api: Api, status: int) -> None:
    error, says = MISTAKES[status]
    async with replying(error_reply(status, error)) as server, Harness(plugins=[]) as harness:
        with pytest.raises(ModelStatusError) as caught, allow_real_models():
            await harness.run(call_model(model_at(server, api)), "hi")
    text = "".join(traceback.format_exception(caught.value))
    host = server.url.partition("//")[2].partition("/")[0]
    for part in (f"the provider at {host} answered with status {status}", "[at call_model/answer]", *says):
        assert part in text
    assert "sk-secret" not in text
    assert len(text.splitlines()) < 20


def test_the_remedy_for_a_key_names_a_variable_only_where_it_is_read() -> None:
    openai_, own = Server(base_url=None), Server(base_url="http://localhost:1")
    assert key_source("openai:m", openai_).endswith("the environment variable OPENAI_API_KEY")
    assert key_source("openai:m", own) == "api_key= of OpenAIModel"
    assert key_source("openrouter:m", own) == "the environment variable OPENROUTER_API_KEY"


async def test_a_rate_limit_inside_the_stream() -> None:
    error = {"error": {"code": "rate_limit_exceeded", "message": "slow"}}
    async with replying(Reply(sse(error))) as server, nothing_leaks(server):
        with pytest.raises(RateLimited):
            await answer(model_at(server))


@both
async def test_nobody_listens(api: Api) -> None:
    async with replying() as server:
        url = f"{server.url}/v1"
    with pytest.raises(ModelUnavailable) as caught:
        await answer(OpenAIModel("m", api=api, base_url=url))
    assert caught.value.retryable


async def test_a_server_that_closes_at_once() -> None:
    async with replying(Reply([CUT], headers={"bad header": ""})) as server, nothing_leaks(server):
        with pytest.raises(ModelUnavailable):
            await answer(model_at(server))


@both
async def test_an_answer_that_does_not_begin_in_time(api: Api) -> None:
    async with replying(Reply([STALL])) as server, nothing_leaks(server):
        with pytest.raises(ModelUnavailable, match=r"within 0\.2 s"):
            await answer(model_at(server, api), attrs.evolve(HI, settings={"timeout": 0.2}))


async def test_signs_of_life_keep_a_slow_stream_alive() -> None:
    pieces = [piece for event in HELLO["chat"] for piece in (b": still thinking\n\n", event)]
    async with replying(Reply(pieces)) as server:
        assert (await answer(model_at(server, idle_timeout=2))).stop_reason == "stop"


async def test_what_the_provider_runs_itself_has_the_types_of_the_sdk() -> None:
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "tide"},
    }
    code = {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "status": "completed",
        "code": "print(6.9)",
        "container_id": "cntr_1",
        "outputs": [{"type": "logs", "logs": "6.9"}],
    }
    kept: list[dict[str, Any]] = [
        search,
        code,
        {"type": "tide_call", "id": "t_1"},
        {"type": "web_search_call", "id": "ws_2"},
    ]
    done = sse(*[{"type": "response.output_item.done", "item": item} for item in kept])
    async with replying(Reply([*done, *HELLO["responses"]])) as server:
        response = await answer(model_at(server, "responses"))
    searched, ran, unknown, partial = [item for item in response.items if isinstance(item, Opaque)]
    typed = sdk_item(searched)
    assert isinstance(typed, ResponseFunctionWebSearch)
    assert typed.action.type == "search"
    typed = sdk_item(ran)
    assert isinstance(typed, ResponseCodeInterpreterToolCall)
    assert typed.model_dump() == code
    with pytest.raises(ItemSchemaMismatch, match="'tide_call' is not a valid item of openai"):
        sdk_item(unknown)
    with pytest.raises(ItemSchemaMismatch, match=r"action: .* is not a valid ResponseFunctionWebSearch"):
        sdk_item(partial)


@both
async def test_tools_that_the_provider_runs_stand_beside_those_of_the_step(api: Api) -> None:
    tools: list[dict[str, Any]] = [
        {"name": "tide", "description": "", "parameters": {"type": "object", "properties": {}}}
    ]
    async with replying(Reply(HELLO[api]), Reply(HELLO[api])) as server:
        for own in (tools, []):
            extra: Any = {"tools": [{"type": "web_search"}], "top_k": 5}
            await answer(
                model_at(server, api), ModelRequest([Message.user("hi")], tools=own, settings={"extra": extra})
            )
    first, second = [request.body for request in server.requests]
    assert [tool["type"] for tool in first["tools"]] == ["function", "web_search"]
    assert (second["tools"], second["top_k"]) == ([{"type": "web_search"}], 5)


@both
async def test_each_call_has_a_connection_of_its_own(api: Api) -> None:
    async with replying(Reply(HELLO[api]), Reply(HELLO[api])) as server, nothing_leaks(server):
        model = model_at(server, api)
        await answer(model)
        await server.all_closed()
        await answer(model)
    assert server.opened == 2


@both
async def test_an_open_model_keeps_its_connection(api: Api) -> None:
    replies = [Reply(HELLO[api]) for _ in range(3)]
    async with replying(*replies) as server, nothing_leaks(server):
        model = model_at(server, api)
        async with model, model:
            await answer(model)
            await answer(model)
            assert server.opened == 1
        await answer(model)
    assert server.opened == 2


@both
async def test_a_client_of_ones_own_stays_open_and_never_repeats(api: Api) -> None:
    async with replying(error_reply(500, {"message": "fire"}), Reply(HELLO[api])) as server, nothing_leaks(server):
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-own", max_retries=5) as client:
            model = OpenAIModel("m", api=api, client=client)
            with pytest.raises(ModelStatusError):
                await answer(model)
            await answer(model)
            assert not client.is_closed()
        assert [seen.headers["authorization"] for seen in server.requests] == ["Bearer sk-own"] * 2


async def test_content_that_cannot_be_carried_is_refused_before_connecting() -> None:
    request = ModelRequest(items=[Message.user([InputImage(file_id="file-1")])])
    async with replying() as server:
        with pytest.raises(ConfigError, match="image by file id"):
            await answer(model_at(server), request)
    assert server.opened == 0


# ---------------------------------------------------------------------------------------------------- definition


def test_a_key_is_needed_for_openai() -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIModel("gpt-5-mini")
    assert caught.value.code == "model-key"
    assert "OPENAI_API_KEY" in str(caught.value)


def test_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    model = OpenAIModel("gpt-5-mini")
    assert model.name == "openai:gpt-5-mini"
    assert "sk-env" not in repr(model)
    assert isinstance(model, ProfiledModel)
    assert profile_of(model) == ModelProfile(encoding="o200k_base")
    assert profile_of(OpenAIModel("gpt-4")).encoding == "cl100k_base"


@pytest.mark.anyio
async def test_a_server_gets_no_key_that_was_not_meant_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    async with replying(Reply(HELLO["chat"]), Reply(HELLO["chat"])) as server:
        await answer(OpenAIModel("m", api="chat", base_url=f"{server.url}/v1"))
        assert "sk-env" not in str(server.requests)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        await answer(OpenAIModel("m", api="chat"))
        assert server.requests[1].headers["authorization"] == "Bearer sk-env"


async def test_the_password_of_an_address_goes_to_the_server_and_to_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with replying(Reply(HELLO["chat"]), error_reply(500, "http://ada:CaNaRy-0815@here failed")) as server:
        address = f"{server.url}/v1".replace("://", "://ada:CaNaRy-0815@")
        model = OpenAIModel("m", api="chat", base_url=address, api_key="sk-secret")
        await answer(model)
        assert server.requests[0].headers["authorization"] == "Basic YWRhOkNhTmFSeS0wODE1"
        with pytest.raises(ModelStatusError) as caught:
            await answer(model)
    assert "CaNaRy" not in f"{caught.value} {caught.value!r} {model!r} {caplog.text}"


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with replying(Reply(HELLO["chat"])) as server:
        assert (await answer(model_at(server))).stop_reason == "stop"


@pytest.mark.parametrize("idle", [0, -1.0, float("nan")])
def test_an_idle_timeout_is_above_zero(idle: float) -> None:
    with pytest.raises(ConfigError):
        OpenAIModel("m", api_key="k", idle_timeout=idle)


def test_a_profile_of_ones_own() -> None:
    profile = ModelProfile(context_window=10)
    model = OpenAIModel("m", base_url="http://127.0.0.1:1/v1", profile=profile, name="mine:m")
    assert (model.profile, model.name) == (profile, "mine:m")
    assert OpenAIModel("m", base_url="http://127.0.0.1:1/v1").profile == ModelProfile()


@pytest.mark.parametrize(
    "address", ["http://h/v1?token=CaNaRy0815", "http://h/v1#CaNaRy0815", "http://u:p@h:CaNaRy0815/v1"]
)
def test_an_address_that_the_sdk_would_show_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIModel("m", base_url=address, api_key="sk-secret")
    assert "CaNaRy" not in f"{caught.value} {caught.value!r}"
