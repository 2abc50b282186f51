"""The real SDK against a server that sends what the published schema says."""

from __future__ import annotations

import traceback
from base64 import urlsafe_b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any, TypeVar

import anyio
import attrs
import pytest
from gemini_wire import (
    MODEL,
    OVERFLOW,
    answer,
    called,
    chunk,
    credentials_with,
    error,
    error_body,
    event,
    retry_info,
    said,
)
from google.auth.exceptions import RefreshError, TransportError
from google.oauth2.credentials import Credentials
from noetic_google import GoogleModel, sdk_item
from pydantic import BaseModel

from noetic_py import Harness, RunResult, Step, call_model, loop, tool, until
from noetic_py.core.items import FunctionCallOutput, InputImage, Message, Opaque, Reasoning
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

pytestmark = [
    pytest.mark.anyio,
    # Where the SDK itself cannot read a stream, it leaves its generators to the event loop, and trio warns of each.
    pytest.mark.filterwarnings("ignore:Async generator '(google.genai|httpx2):ResourceWarning"),
]

T = TypeVar("T")

HI = ModelRequest(items=[Message.user("hi")])
SAFETY: Any = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
HELLO = answer(said("Hel"), said("lo"))


def model_at(server: ReplyServer, **options: Any) -> GoogleModel:
    return GoogleModel(MODEL, base_url=server.url, api_key="sk-secret", **options)


@asynccontextmanager
async def asked(model: GoogleModel, request: ModelRequest = HI) -> AsyncGenerator[ModelStream]:
    with allow_real_models(), anyio.fail_after(30):
        async with model.respond(request) as stream:
            yield stream


async def ask(model: GoogleModel, request: ModelRequest = HI) -> ModelResponse:
    async with asked(model, request) as stream:
        return await stream.response()


async def run(model: GoogleModel, step: Step[str, T]) -> RunResult[T]:
    async with Harness(model=model, plugins=[]) as harness:
        with allow_real_models():
            return await harness.run(step, "When?")


@tool
async def tide(port: str) -> str:
    """The next high water at a port."""
    return f"noon at {port}"


async def test_what_is_sent() -> None:
    async with replying(HELLO) as server:
        response = await ask(model_at(server), attrs.evolve(HI, settings={"extra": {"safety_settings": SAFETY}}))
    (seen,) = server.requests
    assert seen.path.partition("/models/")[2] == f"{MODEL}:streamGenerateContent?alt=sse"
    assert seen.headers["x-goog-api-key"] == "sk-secret"
    assert seen.body == {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "safetySettings": SAFETY,
        "generationConfig": {},
    }
    assert (response.stop_reason, response.model, response.response_id) == ("stop", MODEL, "resp_1")


async def test_thoughts_go_back_with_their_signatures_and_tools_run_side_by_side() -> None:
    first = answer(
        said("Two ports.", thought=True),
        said("I look."),
        called("tide", {"port": "Brest"}, thoughtSignature="c2ln"),
        called("tide", {"port": "Sète"}),
    )
    agent = loop(call_model(tools=[tide], settings={"reasoning_effort": "high"}), until=until.no_tool_calls())
    async with replying(first, answer(said("At noon."), said("", thoughtSignature="AQID"))) as server:
        result = await run(model_at(server), agent)
    assert result.value == "At noon."
    outputs = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert [item.text for item in outputs] == ["noon at Brest", "noon at Sète"]
    assert any(isinstance(item, Reasoning) and item.text == "Two ports." for item in result.items)
    _, model, user = server.requests[1].body["contents"]
    ids = [item.call_id for item in outputs]
    assert model == {
        "role": "model",
        "parts": [
            said("Two ports.", thought=True),
            said("I look."),
            called("tide", {"port": "Brest"}, ids[0], thoughtSignature="c2ln"),
            called("tide", {"port": "Sète"}, ids[1]),
        ],
    }
    assert [part["functionResponse"]["id"] for part in user["parts"]] == ids
    assert len(set(ids)) == 2
    # The SDK sends some fields in snake case, which the API takes too.
    thinking = {"include_thoughts": True, "thinking_level": "HIGH"}
    assert server.requests[0].body["generationConfig"]["thinkingConfig"] == thinking
    (declared,) = server.requests[0].body["tools"][0]["functionDeclarations"]
    assert declared["parameters_json_schema"]["required"] == ["port"]


async def test_what_the_provider_runs_itself_is_kept_and_goes_back() -> None:
    code = {"executableCode": {"language": "PYTHON", "code": "print(6.9)", "id": "c1"}, "thoughtSignature": "-_8="}
    printed = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "6.9\n", "id": "c1"}}
    search: dict[str, Any] = {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["tide"]}}}
    first = answer(code, printed, search, said("6.9 m."), groundingMetadata={"webSearchQueries": ["tide"]})
    async with replying(first, HELLO) as server:
        model = model_at(server)
        response = await ask(model)
        assert [isinstance(item, Opaque) for item in response.items] == [True, True, True, False]
        parts = [sdk_item(item) for item in response.items if isinstance(item, Opaque)]
        assert [part.model_dump(mode="json", by_alias=True, exclude_none=True) for part in parts] == [
            code,
            printed,
            search,
        ]
        assert parts[0].executable_code is not None
        assert parts[0].executable_code.code == "print(6.9)"
        await ask(model, ModelRequest([*HI.items, *response.items, Message.user("Sure?")]))
    search["toolCall"]["tool_type"] = search["toolCall"].pop("toolType")
    assert server.requests[1].body["contents"][1]["parts"] == [code, printed, search, said("6.9 m.")]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b'{"type": "web_search_call"}', "'web_search_call' is not a valid item of google-genai"),
        (b'{"type": "google_part"}', "'google_part' is not a valid Part of google-genai"),
        (b'{"type": "google_part", "part": {"executableCode": 5}}', "executableCode: .* is not a valid Part"),
    ],
)
def test_what_is_not_a_part_of_the_sdk_is_refused(raw: bytes, said: str) -> None:
    with pytest.raises(ItemSchemaMismatch, match=said):
        sdk_item(Opaque(raw=raw))


async def test_a_picture_goes_in_as_it_is() -> None:
    picture = bytes(range(256))
    items = [Message.user([InputImage(data=picture, media_type="image/png")])]
    async with replying(HELLO) as server:
        await ask(model_at(server), ModelRequest(items))
    (part,) = server.requests[0].body["contents"][0]["parts"]
    assert urlsafe_b64decode(part["inlineData"]["data"]) == picture


class Tide(BaseModel):
    port: str
    metres: float


async def test_an_answer_of_a_type() -> None:
    async with replying(answer(said('{"port": "Brest",'), said(' "metres": 6.9}'))) as server:
        result = await run(model_at(server), call_model(output=Tide))
    assert result.value == Tide(port="Brest", metres=6.9)
    config = server.requests[0].body["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"]["required"] == ["port", "metres"]


async def test_a_run_books_the_cache_and_the_thoughts() -> None:
    usage = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 70,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 30,
    }
    price = Price(input="1", output="5", cached_input="0.1")
    async with replying(answer(said("At noon."), usage=usage)) as server:
        result = await run(model_at(server, profile=ModelProfile(price=price)), call_model())
    assert str(result.cost) == "0.000287"


# ---------------------------------------------------------------------------------------------------- failures


UNAVAILABLE = error_body(503, "UNAVAILABLE", "The model is overloaded.")
FAULTS: dict[str, tuple[list[Piece], str]] = {
    "is cut": ([CUT], "broke"),
    "is cut in a chunk": ([b'data: {"cand', CUT], "broke"),
    "stalls": ([STALL], "stalled"),
    "stalls in a chunk": ([b'data: {"cand', STALL], "stalled"),
    "ends in a chunk": ([b'data: {"cand'], "malformed"),
    "is not JSON": ([b"data: {oops\r\n\r\n", STALL], "malformed"),
    "is not an object": ([b"data: [1]\r\n\r\n"], "ended before"),
    "is null": ([b"data: null\r\n\r\n"], "ended before"),
    "is of another form": ([event(candidates=[{"content": {"parts": "no"}}]), STALL], "malformed"),
    "is not a text": ([b"data: \xff\r\n\r\n", STALL], "utf-8"),
    "is nested deeply": ([b"data: " + b"[" * 100_000 + b"\r\n\r\n", STALL], "malformed"),
    "ends": ([], "ended before"),
    "is an error": ([event(**UNAVAILABLE)], "overloaded"),
    "is an error without a code": ([event(error={"message": "fire"}), STALL], "malformed"),
    "holds a call that is not valid": ([chunk(finish="MALFORMED_FUNCTION_CALL")], "MALFORMED_FUNCTION_CALL"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_that_fails(fault: str) -> None:
    pieces, words = FAULTS[fault]
    async with replying(Reply([chunk(said("Hel")), *pieces])) as server:
        with pytest.raises(ModelStreamError, match=words) as caught:
            await ask(model_at(server, idle_timeout=0.2 if words == "stalled" else 10))
        await server.all_closed()
    assert (caught.value.model, caught.value.retryable) == (f"google:{MODEL}", True)


async def test_a_chunk_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_EVENT", 2**16)
    async with replying(Reply(repeat(b"data: " + b"x" * 4096))) as server:
        with pytest.raises(ModelStreamError, match="malformed"):
            await ask(model_at(server))
        await server.all_closed()


@pytest.mark.parametrize("part", [said("x" * 2**20), said("", thoughtSignature="A" * 2**20)])
async def test_an_answer_without_an_end_is_cut_off(part: dict[str, Any]) -> None:
    async with replying(Reply([*[chunk(part)] * 40, STALL])) as server:
        with pytest.raises(AnswerTooLarge):
            await ask(model_at(server))
        await server.all_closed()


FAILURES: list[tuple[Reply, type[ModelStatusError], tuple[str, ...]]] = [
    (
        error(400, "INVALID_ARGUMENT", "API key not valid: sk-secret"),
        ModelStatusError,
        ("[secret]", "api_key= of"),
    ),
    (error(403, "PERMISSION_DENIED", "no access"), ModelStatusError, ("status 403", "api_key= of")),
    (error(404, "NOT_FOUND", "models/x is not found"), ModelStatusError, ("check the model's name",)),
    (error(400, "INVALID_ARGUMENT", OVERFLOW), ContextOverflow, ("window",)),
    (error(413, "INVALID_ARGUMENT", "too large"), ContextOverflow, ("window",)),
    (error(503, "UNAVAILABLE", "The model is overloaded."), ModelStatusError, ("status 503", "overloaded")),
    (Reply([b"<html>gateway</html>"], 502, {"content-type": "text/html"}), ModelStatusError, ("gateway",)),
    (Reply([b"[]"], 500, {"content-type": "application/json"}), ModelStatusError, ("status 500",)),
    (Reply([b'["\xff"]'], 500, {"content-type": "application/json"}), ModelStatusError, ("status 500",)),
    (Reply([b"[" * 60_000], 500, {"content-type": "application/json"}), ModelStatusError, ("status 500",)),
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


@pytest.mark.parametrize(
    ("details", "headers", "seconds"),
    [
        ([retry_info("41.5s")], {}, 41.5),
        ([{"@type": "type.googleapis.com/google.rpc.Help"}, retry_info("3s")], {"retry_after": "9"}, 3.0),
        ([retry_info("soon")], {"retry_after": "9"}, 9.0),
        ([], {}, None),
    ],
)
async def test_how_long_to_wait(details: list[dict[str, Any]], headers: dict[str, str], seconds: float | None) -> None:
    async with replying(error(429, "RESOURCE_EXHAUSTED", "Quota exceeded.", *details, **headers)) as server:
        with pytest.raises(RateLimited, match="Quota exceeded") as caught:
            await ask(model_at(server))
    assert caught.value.retry_after == seconds


async def test_an_error_before_the_answer_is_that_of_its_status() -> None:
    limited = Reply([event(**error_body(429, "RESOURCE_EXHAUSTED", "slow down"))])
    async with replying(limited, Reply([event(**UNAVAILABLE)])) as server:
        with pytest.raises(RateLimited, match="slow down"):
            await ask(model_at(server))
        with pytest.raises(ModelStatusError) as caught:
            await ask(model_at(server))
    assert (caught.value.status, caught.value.retryable) == (503, True)


async def test_no_server_and_an_answer_that_does_not_begin() -> None:
    async with replying(Reply([STALL])) as server:
        with pytest.raises(ModelUnavailable, match=r"within 0\.2 s"):
            await ask(model_at(server), attrs.evolve(HI, settings={"timeout": 0.2}))
        await server.all_closed()
    with pytest.raises(ModelUnavailable, match="could not be reached"):
        await ask(model_at(server))


@pytest.mark.parametrize(
    ("settings", "words"), [({"parallel_tool_calls": False}, "'parallel_tool_calls'"), ({"extra": {"topp": 1}}, "topp")]
)
async def test_what_gemini_does_not_have_is_refused_before_connecting(settings: Any, words: str) -> None:
    async with replying() as server:
        with pytest.raises(ConfigError, match=words):
            await ask(model_at(server), attrs.evolve(HI, settings=settings))
    assert server.opened == 0


async def test_what_only_vertex_has_is_refused_before_connecting() -> None:
    settings: Any = {"extra": {"audio_timestamp": True}}
    async with replying() as server:
        with pytest.raises(ConfigError, match="audio_timestamp") as caught:
            await ask(model_at(server), attrs.evolve(HI, settings=settings))
    assert (server.opened, caught.value.code) == (0, "model-content")


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


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with replying(HELLO) as server:
        assert (await ask(model_at(server))).stop_reason == "stop"


async def test_the_password_of_an_address_goes_to_the_server_and_to_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with replying(HELLO, error(500, "INTERNAL", "http://ada:CaNaRy-0815@here failed")) as server:
        address = server.url.replace("://", "://ada:CaNaRy-0815@")
        model = GoogleModel(MODEL, base_url=address, api_key="sk-secret")
        await ask(model)
        assert server.requests[0].headers["authorization"] == "Basic YWRhOkNhTmFSeS0wODE1"
        with pytest.raises(ModelStatusError) as caught:
            await ask(model)
    assert "CaNaRy" not in f"{caught.value} {caught.value!r} {model!r} {caplog.text}"


# ---------------------------------------------------------------------------------------------------- Vertex AI


def failing_with(error: type[Exception], words: str) -> Credentials:
    """Credentials that have to be refreshed, which fails."""

    class Failing(Credentials):
        def refresh(self, request: object) -> None:
            raise error(words)

    make: Any = Failing
    made: Credentials = make(token=None)
    return made


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_vertex_is_asked_with_a_token_of_the_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = credentials_with("ya29.token")
    withheld = Reply([chunk(finish="MODEL_ARMOR", finishMessage="It says why.")])
    async with replying(HELLO, withheld) as server:
        model = GoogleModel(MODEL, base_url=server.url, project="tides", credentials=credentials)
        await ask(model)
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "tides-2")
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "europe-west4")
        declined = await ask(GoogleModel(MODEL, base_url=server.url, credentials=credentials))
    first, second = server.requests
    path = f"/publishers/google/models/{MODEL}:streamGenerateContent?alt=sse"
    assert first.path.endswith(f"/projects/tides/locations/global{path}")
    assert first.headers["authorization"] == "Bearer ya29.token"
    assert second.path.endswith(f"/projects/tides-2/locations/europe-west4{path}")
    assert declined.stop_reason == "refusal"


async def test_vertex_is_asked_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    async with replying(HELLO) as server:
        await ask(GoogleModel(MODEL, base_url=server.url, api_key="sk-secret"))
    assert server.requests[0].path.endswith(f"/publishers/google/models/{MODEL}:streamGenerateContent?alt=sse")
    assert server.requests[0].headers["x-goog-api-key"] == "sk-secret"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("failure", "words", "kind"),
    [(RefreshError, "invalid_grant", ConfigError), (TransportError, "no route", ModelUnavailable)],
)
async def test_credentials_that_give_no_token(failure: type[Exception], words: str, kind: type[Exception]) -> None:
    async with replying() as server:
        model = GoogleModel(MODEL, base_url=server.url, project="tides", credentials=failing_with(failure, words))
        with pytest.raises(kind, match=words):
            await ask(model)
    assert server.opened == 0


def test_vertex_needs_a_project_or_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="project at Google Cloud") as caught:
        GoogleModel(MODEL, location="europe-west4")
    assert caught.value.code == "model-key"
    monkeypatch.setenv("GOOGLE_API_KEY", "sk-env")
    GoogleModel(MODEL, location="europe-west4")
    with pytest.raises(ConfigError, match="meant for the server of base_url="):
        GoogleModel(MODEL, project="tides", base_url="http://127.0.0.1:9")


# ---------------------------------------------------------------------------------------------------- definition


def test_a_key_is_needed_for_the_providers_own_address() -> None:
    with pytest.raises(ConfigError, match="GEMINI_API_KEY") as caught:
        GoogleModel(MODEL)
    assert caught.value.code == "model-key"
    with pytest.raises(ConfigError):
        GoogleModel(MODEL, base_url="https://generativelanguage.googleapis.com")


async def test_a_server_gets_no_key_that_was_not_meant_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "sk-env")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "env-project")
    async with replying(HELLO, HELLO) as server:
        await ask(GoogleModel(MODEL, base_url=server.url))
        assert "env" not in str(server.requests)
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        await ask(GoogleModel(MODEL))
        assert "sk-env" in str(server.requests[1].headers)


@pytest.mark.parametrize("idle", [0, -1.0, float("nan")])
def test_an_idle_timeout_is_above_zero(idle: float) -> None:
    with pytest.raises(ConfigError) as caught:
        GoogleModel(MODEL, api_key="k", idle_timeout=idle)
    assert caught.value.code == "model-timeout"


def test_a_profile_of_ones_own() -> None:
    profile = ModelProfile(context_window=10)
    model = GoogleModel(MODEL, api_key="k", profile=profile, name="mine:m")
    assert isinstance(model, ProfiledModel)
    assert (profile_of(model), model.name) == (profile, "mine:m")


@pytest.mark.parametrize(
    "address", ["http://h/v1?token=CaNaRy0815", "http://h/v1#CaNaRy0815", "http://u:p@h:CaNaRy0815/v1"]
)
def test_an_address_that_the_sdk_would_show_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GoogleModel("m", base_url=address, api_key="sk-secret")
    assert "CaNaRy" not in f"{caught.value} {caught.value!r}"
