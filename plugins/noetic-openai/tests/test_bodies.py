"""Bodies of responses that are endless, slow, packed or damaged."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import chain, cycle, repeat
from typing import Any

import anyio
import httpx2
import openai
import pytest
from noetic_openai import OpenAIModel
from noetic_openai.chat_reading import ChatReading
from noetic_openai.failures import Failures
from noetic_openai.responses import ResponsesReading
from proxy import sse

from noetic_py.core.items import Message
from noetic_py.errors import AnswerTooLarge, ModelStatusError, ModelStreamError
from noetic_py.models import ModelRequest, ModelResponse, allow_real_models, http
from noetic_py.models.reading import BEGUN
from noetic_py.testing.replies import CUT, STALL, Piece, Reply, ReplyServer, replying

pytestmark = pytest.mark.anyio

MANY = 48 * 2**20
HELLO = b"".join(
    sse(
        {"choices": [{"index": 0, "delta": {"content": "Hello"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        done=True,
    )
)
WORDS = b'{"error": {"message": "the words of the provider"}}'


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


@cache
def bomb(pack: Callable[[bytes], bytes]) -> bytes:
    """A body that is small until it is unpacked."""
    return pack(b'{"error":{"message":"' + b"x" * MANY + b'"}}')


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "x-gzip": gzip.compress,
}
packed = pytest.mark.parametrize(
    ("encoding", "pack"), [*PACKERS.items(), ("deflate", raw_deflate), ("GZIP", gzip.compress), ("identity", bytes)]
)


@asynccontextmanager
async def own(server: ReplyServer) -> AsyncGenerator[OpenAIModel]:
    yield OpenAIModel("m", api="chat", base_url=f"{server.url}/v1", api_key="sk-secret")


@asynccontextmanager
async def kept(server: ReplyServer) -> AsyncGenerator[OpenAIModel]:
    async with own(server) as model, model:
        yield model


@asynccontextmanager
async def given(server: ReplyServer) -> AsyncGenerator[OpenAIModel]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-secret") as client:
        yield OpenAIModel("m", api="chat", client=client)


clients = pytest.mark.parametrize("client", [own, kept, given])


async def ask(model: OpenAIModel) -> ModelResponse:
    request = ModelRequest(items=[Message.user("hi")])
    with allow_real_models(), anyio.fail_after(30):
        async with model.respond(request) as stream:
            return await stream.response()


async def refusal(*pieces: Piece, headers: dict[str, str], client: Any = own, status: int = 400) -> ModelStatusError:
    async with replying(Reply(pieces, status, headers)) as server, client(server) as model:
        with pytest.raises(ModelStatusError) as caught:
            await ask(model)
    assert caught.value.status == status
    return caught.value


@clients
@packed
async def test_the_body_of_an_error_is_unpacked(encoding: str, pack: Callable[[bytes], bytes], client: Any) -> None:
    error = await refusal(pack(WORDS), headers={"content-encoding": encoding}, client=client)
    assert error.body == "the words of the provider"


@clients
@pytest.mark.parametrize(("encoding", "pack"), PACKERS.items())
async def test_a_packed_body_does_not_fill_the_memory(
    encoding: str, pack: Callable[[bytes], bytes], client: Any
) -> None:
    async with replying(Reply([bomb(pack)], 400, {"content-encoding": encoding})) as server, client(server) as model:
        tracemalloc.start()
        try:
            with pytest.raises(ModelStatusError) as caught:
                await ask(model)
            assert tracemalloc.get_traced_memory()[1] < MANY / 4
        finally:
            tracemalloc.stop()
    assert caught.value.body.startswith('{"error":{"message":"xxx')


@clients
@pytest.mark.parametrize("status", [400, 429, 503])
async def test_an_error_without_an_end(status: int, client: Any) -> None:
    async with replying(Reply(repeat(b"x" * 5000), status)) as server, client(server) as model:
        with pytest.raises(ModelStatusError) as caught:
            await ask(model)
        await server.all_closed()
    assert caught.value.body.startswith("xxx")


async def test_a_redirection_without_an_end() -> None:
    replies = Reply(repeat(b"x" * 5000), 307, {"location": "/v1/other"}), Reply([HELLO])
    async with replying(*replies) as server, own(server) as model:
        assert (await ask(model)).items[0].text == "Hello"  # type: ignore[union-attr]  # an answer of text


@pytest.mark.parametrize("rest", [STALL, CUT])
async def test_of_an_error_that_does_not_go_on_what_came_is_told(rest: Piece, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_SECONDS", 0.1)
    assert (await refusal(b"too busy", rest, headers={}, status=503)).body == "too busy"


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br"])
async def test_an_encoding_that_was_not_asked_for_is_not_unpacked(encoding: str) -> None:
    error = await refusal(gzip.compress(gzip.compress(WORDS)), headers={"content-encoding": encoding})
    assert error.body == "no reason given"
    async with replying(Reply([gzip.compress(HELLO)], 200, {"content-encoding": encoding})) as server:
        async with own(server) as model:
            with pytest.raises(ModelStreamError):
                await ask(model)
        assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"


async def test_of_a_damaged_error_what_was_read_is_told() -> None:
    whole = gzip.compress(WORDS)
    assert (await refusal(whole[:-9], b"\0" * 50, headers={"content-encoding": "gzip"})).status == 400
    assert (await refusal(b"no gzip", headers={"content-encoding": "gzip"})).body == "no reason given"


async def test_no_codec_of_the_text_is_taken_from_the_header() -> None:
    body = bz2.compress(b"x" * MANY)
    await refusal(body, headers={"content-type": "text/plain; charset=bz2"})


def test_an_error_in_an_error_in_an_error() -> None:
    body: dict[str, Any] = {"message": "at last"}
    for _ in range(100_000):
        body = {"error": body}
    assert Failures("m", "localhost", "api_key=").status(400, {}, body).body == "at last"
    while "error" in body:
        # Deeply nested objects are taken apart, since freeing them at once would nest as deep.
        body = body.pop("error")


@clients
@packed
async def test_an_answer_is_unpacked(encoding: str, pack: Callable[[bytes], bytes], client: Any) -> None:
    whole = pack(HELLO)
    pieces = [whole[at : at + 7] for at in range(0, len(whole), 7)]
    async with replying(Reply(pieces, 200, {"content-encoding": encoding})) as server, client(server) as model:
        assert (await ask(model)).items[0].text == "Hello"  # type: ignore[union-attr]  # an answer of text


async def test_a_packed_answer_does_not_fill_the_memory() -> None:
    packed = gzip.compress(b"data: " + b"x" * MANY + b"\n\n")
    async with replying(Reply([packed], 200, {"content-encoding": "gzip"})) as server, own(server) as model:
        tracemalloc.start()
        try:
            with pytest.raises(ModelStreamError, match="larger than"):
                await ask(model)
            assert tracemalloc.get_traced_memory()[1] < 2 * MANY
        finally:
            tracemalloc.stop()


async def test_what_follows_a_packed_answer_is_not_read() -> None:
    pieces = chain([gzip.compress(sse({"choices": []})[0])], repeat(b"x" * 2**16))
    async with replying(Reply(pieces, 200, {"content-encoding": "gzip"})) as server, own(server) as model:
        with anyio.fail_after(20), pytest.raises(ModelStreamError):
            await ask(model)
        await server.all_closed()


async def test_events_that_say_nothing_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetic_py.models.model.MAX_ANSWER_BYTES", 2**12)
    async with replying(Reply(repeat(b'data: {"choices": []}\n\n' * 9))) as server, own(server) as model:
        with pytest.raises(AnswerTooLarge):
            await ask(model)


MB = "x" * 2**20
LARGE: dict[str, list[dict[str, Any]]] = {
    "text": [{"choices": [{"index": 0, "delta": {"content": MB}}]}],
    "refusal": [{"choices": [{"index": 0, "delta": {"refusal": MB}}]}],
    "reasoning": [{"choices": [{"index": 0, "delta": {"reasoning": MB}}]}],
    "arguments": [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": MB}}]}}]}
    ],
    "names": [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": each, "function": {"name": MB}}]}}]}
        for each in range(40)
    ],
}


@pytest.mark.parametrize("kind", LARGE)
async def test_an_answer_without_an_end_is_cut_off(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole answer may be as large as it is by itself in `test_items_without_an_end_are_cut_off`.
    monkeypatch.setattr("noetic_py.models.model.MAX_ANSWER_BYTES", 2**22)
    pieces = cycle(sse(*LARGE[kind]))
    async with replying(Reply(pieces)) as server, own(server) as model:
        with pytest.raises(AnswerTooLarge) as caught:
            await ask(model)
        await server.all_closed()
    assert caught.value.model == "openai:m"


@pytest.mark.parametrize("kind", ["added", "done"])
async def test_items_without_an_end_are_cut_off(kind: str) -> None:
    item = {"type": "function_call", "call_id": "c", "name": MB, "arguments": "{}", "status": "completed"}
    pieces = (
        piece
        for each in range(200)
        for piece in sse({"type": f"response.output_item.{kind}", "item": {**item, "id": f"{each}"}})
    )
    async with replying(Reply(pieces)) as server:
        model = OpenAIModel("m", base_url=f"{server.url}/v1", api_key="sk-secret")
        with pytest.raises(AnswerTooLarge):
            await ask(model)


def test_a_call_that_begins_counts_as_an_object() -> None:
    chat, responses = ChatReading(), ResponsesReading()
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
    list(chat.feed({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}))
    item = {"type": "function_call", "id": "1", "call_id": "c", "name": "f", "arguments": ""}
    list(responses.feed({"type": "response.output_item.added", "item": item}))
    assert min(chat.unheard, responses.unheard) >= BEGUN


async def test_other_requests_of_a_given_client_are_as_before() -> None:
    refused = Reply([b"x" * 200_000], 400)
    async with (
        replying(Reply([HELLO]), refused) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-secret", max_retries=0) as client,
    ):
        await ask(OpenAIModel("m", api="chat", client=client))
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=[])
    response: httpx2.Response = caught.value.response
    assert len(response.content) == 200_000
