"""The chat server of the examples: a real server on the loopback, and clients that speak HTTP to it."""

from __future__ import annotations

import json
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import pytest
import uvicorn

from benchmarks.chat import BEGIN, END, PAGE, USERS, Connection, Found, load, look, main, server, talks, token_of
from benchmarks.table import into_page
from examples import chat_server
from noetic_py import Harness, Message, SessionPolicy, errors
from noetic_py.checkpoints import SqliteBackend
from noetic_py.core.control import SessionKey
from noetic_py.models import Model, ModelRequest, ModelStream
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

ADA = SessionKey("ada", "trip")


@pytest.fixture
def anyio_backend() -> str:
    """The server that carries the example runs on asyncio alone."""
    return "asyncio"


@asynccontextmanager
async def served(harness: Harness) -> AsyncGenerator[int]:
    """A server for a harness, on a free port, for as long as the block lasts."""
    tokens = chat_server.StubTokens({token_of(user): user for user in ("ada", "bob")})
    app = chat_server.application(harness, tokens)
    carrier = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", http=chat_server.Patient, ws="none", timeout_graceful_shutdown=1)
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(carrier.serve, sockets=[listening]))
            yield int(listening.getsockname()[1])
            carrier.should_exit = True


class Gated:
    """A model that waits, before it answers, where a text says so.

    Attributes:
        asked: Set when it waits.
        go: Lets it answer.
        left: Set when the wait was cancelled.
    """

    name: str = "test:gated"

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.go = anyio.Event()
        self.left = anyio.Event()

    @asynccontextmanager
    async def _respond(self, request: ModelRequest) -> AsyncGenerator[ModelStream]:
        last = request.items[-1]
        if not (isinstance(last, Message) and last.role == "user") or "wait" in last.text:
            self.asked.set()
            try:
                await self.go.wait()
            except anyio.get_cancelled_exc_class():
                self.left.set()
                raise
        async with ScriptedModel(chat_server.guide).respond(request) as answer:
            yield answer

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        return self._respond(request)


def kept(folder: Path, model: Model | None = None) -> Harness:
    return chat_server.open_harness(f"sqlite:{folder}/chat.db", model)


# ------------------------------------------------------------------------------------------------------ what it answers


async def test_a_conversation_is_streamed_kept_and_nobody_elses(tmp_path: Path) -> None:
    async with served(kept(tmp_path)) as port, Connection(port) as client:
        reply = await client.say("ada", "trip", "My dog is Rex.", "d1")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        names = [name for name, _ in reply.events]
        assert (names[0], names[-1], set(names[1:-1])) == ("turn", "end", {"text"})
        answer = "You have said 1 things; the first was: My dog is Rex."
        assert "".join(str(data["delta"]) for name, data in reply.events if name == "text") == answer
        assert reply.end == {"run": reply.events[0][1]["run"], "status": "completed", "answer": answer}
        again = await client.say("ada", "trip", "My dog is Rex.", "d1")
        assert again.events == [("end", reply.end)]

        tide = await client.say("ada", "trip", "High water at Brest?")
        assert ("tool", {"name": "high_water"}) in tide.events
        assert tide.end["answer"] == "The table says: Brest: 6 o'clock."

        other = await client.say("bob", "trip", "Who am I?")
        assert other.end["answer"] == "You have said 1 things; the first was: Who am I?"
        history = json.loads((await client.ask("GET", "/sessions/trip", user="ada")).body)["items"]
        assert [item.get("text", item.get("type")) for item in history] == [
            "My dog is Rex.",
            answer,
            "High water at Brest?",
            "function_call",
            "function_call_output",
            "The table says: Brest: 6 o'clock.",
        ]
        for user, names in (("ada", ["trip"]), ("bob", ["trip"])):
            assert json.loads((await client.ask("GET", "/sessions", user=user)).body) == {"sessions": names}
        assert (
            json.loads((await client.ask("GET", "/sessions/trip", user="bob")).body)["items"][0]["text"] == "Who am I?"
        )
        assert (await client.ask("GET", "/health")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/sessions/%00/messages", {"text": "x"}, {}, 400),
        ("POST", "/sessions/%20/messages", {"text": "x"}, {}, 400),
        ("POST", f"/sessions/{'s' * 257}/messages", {"text": "x"}, {}, 400),
        ("GET", "/sessions/a%0Ab", None, {}, 400),
        ("GET", "/sessions/..%2Ftrip", None, {}, 404),
        ("POST", "/sessions/trip/messages", {"text": "x"}, {"delivery-id": "d" * 300}, 400),
        ("POST", "/sessions/trip/messages", {"text": ""}, {}, 400),
        ("POST", "/sessions/trip/messages", {"text": 7}, {}, 400),
        ("POST", "/sessions/trip/messages", b"{", {}, 400),
        ("POST", "/sessions/trip/messages", b'{"text": "\\ud800"}', {}, 400),
        ("POST", "/sessions/trip/messages", b"[" * 60_000, {}, 400),
        ("POST", "/sessions/trip/messages", {"text": "x" * 70_000}, {}, 413),
        ("POST", "/sessions/trip/interrupt", {"message": ["x"]}, {}, 400),
        ("GET", "/sessions/trip/messages", None, {}, 405),
        ("GET", "/elsewhere", None, {}, 404),
        ("GET", "/sessions", None, {"authorization": "Bearer nobody"}, 401),
        ("GET", "/sessions/trip", None, {"authorization": f"Basic {token_of('ada')}"}, 401),
        ("POST", "/sessions/trip/interrupt", None, {"authorization": "\u00e4"}, 401),
        ("POST", "/sessions/trip/messages", {"text": "x"}, {"authorization": ""}, 401),
        ("GET", "/health", None, {"host": "evil.example"}, 400),
    ],
)
async def test_what_is_refused(
    tmp_path: Path, method: str, path: str, body: object, headers: dict[str, str], status: int
) -> None:
    async with served(kept(tmp_path)) as port, Connection(port) as client:
        reply = await client.ask(method, path, body, user="ada", **headers)
        assert reply.status == status, reply
        assert ("www-authenticate" in reply.headers) is (status == 401)
        # The server is as it was.
        assert (await client.say("ada", "other", "Hello")).status == 200


async def test_a_queue_that_is_full_and_a_session_that_another_process_has(tmp_path: Path) -> None:
    model, policy = Gated(), SessionPolicy(max_waiting=0)
    store = f"{tmp_path}/chat.db"
    async with SqliteBackend(store) as backend, anyio.create_task_group() as group:
        lease = await backend.acquire(SessionKey("bob", "trip").stream, ttl=60.0)
        harness: Harness = Harness(model=model, checkpoints=f"sqlite:{store}", sessions=policy)
        async with served(harness) as port, Connection(port) as client:
            group.start_soon(answered, port, "Please wait", "completed")
            await model.asked.wait()
            for user, status, error in (("ada", 429, "Overloaded"), ("bob", 503, "RunBusy")):
                refused = await client.say(user, "trip", "Hello")
                assert (refused.status, refused.headers["retry-after"]) == (status, "1")
                assert json.loads(refused.body) == {"error": error}
            await backend.release(lease)
            assert (await client.say("bob", "trip", "Hello")).end["status"] == "completed"
            model.go.set()


async def answered(port: int, text: str, status: str, delivery: str | None = None) -> None:
    """A turn of Ada's that ends so."""
    async with Connection(port) as client:
        assert (await client.say("ada", "trip", text, delivery)).end["status"] == status


async def test_what_breaks_is_told_without_what_is_inside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(ValueError("the secret is 1234"), "Well.")
    async with served(kept(tmp_path, model)) as port, Connection(port) as client:
        with caplog.at_level(logging.CRITICAL):
            broken = await client.say("ada", "trip", "Hello", "d1")
        assert (broken.status, broken.events[0][0], broken.events[-1]) == (
            200,
            "turn",
            ("error", {"error": "internal"}),
        )
        assert b"the secret" not in broken.body
        # The turn has failed and is kept; delivered again it goes on.
        again = await client.say("ada", "trip", "Hello", "d1")
        assert again.end == {"run": broken.events[0][1]["run"], "status": "completed", "answer": "Well."}


async def test_a_store_that_is_down(tmp_path: Path) -> None:
    broken = tmp_path / "chat.db"
    broken.mkdir()
    async with served(kept(tmp_path)) as port, Connection(port) as client:
        for reply in (await client.ask("GET", "/health"), await client.say("ada", "trip", "Hello")):
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
            assert json.loads(reply.body) == {"error": "StoreUnavailable"}
        broken.rmdir()
        assert (await client.say("ada", "trip", "Hello")).end["status"] == "completed"


# --------------------------------------------------------------------------------------------- whoever stops, and dies


async def test_whoever_hangs_up_cancels_the_turn_which_is_kept_and_can_be_gone_on_with(tmp_path: Path) -> None:
    model = Gated()
    harness = kept(tmp_path, model)
    async with served(harness) as port:
        async with Connection(port) as client:
            text = {"text": "High water at Brest?"}
            await client.send("POST", "/sessions/trip/messages", text, user="ada", delivery_id="d1")
            assert (await client.begun()).status == 200
            # The tool is done, and the model is asked what to say of it.
            await model.asked.wait()
        with anyio.fail_after(10):
            await model.left.wait()
            # An edit waits until the turn has been written.
            async with harness.session("ada", "trip").edit():
                pass
        [run] = await harness.runs.list()
        assert run.status == "cancelled"
        assert [item.type for item in await harness.session("ada", "trip").items()] == [
            "message",
            "function_call",
            "function_call_output",
        ]
        model.go.set()
        async with Connection(port) as client:
            again = await client.say("ada", "trip", "High water at Brest?", "d1")
            assert again.end["run"] == run.run_id
            assert again.end["answer"] == "The table says: Brest: 6 o'clock."
            items = json.loads((await client.ask("GET", "/sessions/trip", user="ada")).body)["items"]
            assert len(items) == 4


async def test_whoever_hangs_up_while_others_are_before_leaves_no_gap(tmp_path: Path) -> None:
    model = Gated()
    harness = kept(tmp_path, model)
    async with served(harness) as port, anyio.create_task_group() as group:
        group.start_soon(answered, port, "Please wait", "completed")
        await model.asked.wait()
        async with Connection(port) as client:
            await client.send("POST", "/sessions/trip/messages", {"text": "second"}, user="ada")
            await until(lambda: waiting(harness) == 1)
        await until(lambda: waiting(harness) == 0)
        group.start_soon(answered, port, "third", "completed")
        await until(lambda: waiting(harness) == 1)
        model.go.set()
        async with harness.session("ada", "trip").edit() as edit:
            told = [item.text for item in edit.items if isinstance(item, Message) and item.role == "user"]
        assert told == ["Please wait", "third"]


def waiting(harness: Harness) -> int:
    """How many turns of Ada's wait."""
    return len(harness._session_store.lock._lines.get(ADA, ()))


async def until(seen: Callable[[], bool]) -> None:
    """Let the server work until something is so."""
    with anyio.fail_after(10):
        while not seen():
            await anyio.lowlevel.checkpoint()


async def test_an_interrupt_ends_the_turn_and_its_message_is_seen_by_the_next_one(tmp_path: Path) -> None:
    model = Gated()
    async with served(kept(tmp_path, model)) as port, Connection(port) as client, anyio.create_task_group() as group:
        nothing = await client.ask("POST", "/sessions/trip/interrupt", user="ada")
        assert json.loads(nothing.body) == {"interrupted": False}
        group.start_soon(answered, port, "Please wait", "interrupted")
        await model.asked.wait()
        foreign = await client.ask("POST", "/sessions/trip/interrupt", user="bob")
        assert json.loads(foreign.body) == {"interrupted": False}
        stopped = await client.ask("POST", "/sessions/trip/interrupt", {"message": "Never mind."}, user="ada")
        assert json.loads(stopped.body) == {"interrupted": True}
        reply = await client.say("ada", "trip", "Where were we?")
        assert reply.end["answer"] == "You have said 3 things; the first was: Please wait"


async def test_a_server_that_is_killed_and_started_anew_goes_on(tmp_path: Path) -> None:
    with server(tmp_path, USERS) as first:
        async with Connection(first.port) as client:
            for turn in range(3):
                await client.say("u0", "trip", f"Turn {turn}", f"d{turn}")
            await client.send("POST", "/sessions/trip/messages", {"text": "Turn 3"}, user="u0", delivery_id="d3")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait(30)
    with server(tmp_path, USERS) as second:
        async with Connection(second.port) as client:
            # It was answered, and the client cannot know; or it was not.
            for turn in (1, 3):
                reply = await client.say("u0", "trip", f"Turn {turn}", f"d{turn}")
                assert reply.end["answer"] == f"You have said {turn + 1} things; the first was: Turn 0"
            items = json.loads((await client.ask("GET", "/sessions/trip", user="u0")).body)["items"]
            assert [item["text"] for item in items[::2]] == [f"Turn {turn}" for turn in range(4)]
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(30) == -signal.SIGTERM


# -------------------------------------------------------------------------------------------------------- many at once


async def test_many_conversations_at_once_are_not_mixed_up(tmp_path: Path) -> None:
    chats = talks(40)
    with server(tmp_path, USERS) as running:
        part = await load(running.port, chats, at_once=20, rounds=2)
        assert len(part.took) == 80
        assert 0 < part.share(0.5) <= part.share(0.99) <= part.seconds
        assert await look(running.port, chats) == 160
        assert running.memory() > 10 * 2**20
        # The check can fail: what is expected of one conversation is not what another one holds.
        chats[0].said.reverse()
        with pytest.raises(AssertionError, match="u0, talk0"):
            await look(running.port, chats)


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sessions", "2"]) == 0
    assert "| Turns at once, 2 conversations |" in capsys.readouterr().out
    for arguments in (["--sessions", "1"], ["--sessions", "2", "--docs"]):
        with pytest.raises(SystemExit):
            main(arguments)


def test_the_figures_go_into_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = into_page(page, Found(2, [], 4, 2**20, 2**21, 2**22).report(), BEGIN, END)
    assert "4 stored items" in found
    assert found.partition(BEGIN)[0] == page.partition(BEGIN)[0]


def test_users_are_named_by_a_text() -> None:
    assert chat_server.users_of(" a=ada, b=bob,,c,=x") == {"a": "ada", "b": "bob"}


def test_every_error_has_a_status() -> None:
    busy = chat_server.refuse(errors.RunBusy("busy"))
    assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    assert chat_server.refuse(errors.SessionConflict("x")).status_code == 409
    assert chat_server.refuse(errors.RunNotFound("x")).status_code == 410


# -------------------------------------------------------------------------------------------------- slow clients


async def until_closed(client: anyio.abc.SocketStream) -> bytes:
    """What a server says until it closes the connection."""
    said = b""
    with anyio.fail_after(5):
        try:
            while True:
                said += await client.receive()
        except anyio.EndOfStream:
            return said


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"POST /sessions/trip/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"],
        [b"GET /health HTTP/1.1\r\n"] + [b"A: b\r\n"] * 9,
    ],
    ids=["nothing", "half a head", "a head that drips"],
)
async def test_a_head_that_does_not_come_whole_closes_the_connection(
    pieces: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_server, "HEAD_SECONDS", 0.1)
    async with served(Harness(model=ScriptedModel(chat_server.guide))) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            for piece in pieces:
                await client.send(piece)
            assert await until_closed(client) == b""
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with anyio.fail_after(5):
                assert (await client.receive()).startswith(b"HTTP/1.1 200")
            # One that goes on after an answer has to be as quick.
            await client.send(b"GET /health HT")
            await until_closed(client)


async def test_a_body_that_does_not_come_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_server, "BODY_SECONDS", 0.1)
    head = (
        f"POST /sessions/trip/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token_of('ada')}\r\n"
        "Content-Length: 20\r\n\r\n"
    )
    async with served(Harness(model=ScriptedModel(chat_server.guide))) as port:
        async with await anyio.connect_tcp("127.0.0.1", port) as client:
            await client.send(head.encode() + b'{"text"')
            said = await until_closed(client)
        assert said.startswith(b"HTTP/1.1 408")
