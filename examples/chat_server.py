"""A chat server over HTTP: many users with many conversations, and one harness that holds none of them.

A message is answered as a stream of server-sent events. Turns of one conversation run one after the other, those of
different conversations side by side. A message that is delivered twice is answered once. A client that disconnects
cancels its turn: what has finished is kept, and the same delivery continues from there. `guide` stands for a model and
needs no network; `--model` names a real one.

    python examples/chat_server.py
    curl -N -H "Authorization: Bearer TOKEN" -d '{"text": "Hello"}' http://127.0.0.1:8000/sessions/trip/messages
"""

import argparse
import hmac
import json
import logging
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import anyio
import uvicorn
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    Harness,
    Memory,
    Message,
    Session,
    SessionKey,
    SessionPolicy,
    TextDelta,
    ToolStarted,
    call_model,
    errors,
    loop,
    step,
    tool,
    until,
)
from noetic_py.core.events import RunStarted
from noetic_py.models import Model, ModelRequest, ModelStream
from noetic_py.testing import ScriptedModel

MOST_BYTES = 64 * 1024
"""The longest body that is taken."""
HEAD_SECONDS = 10.0
"""How long the head of a request may take; uvicorn has no such limit."""
BODY_SECONDS = 10.0
"""How long a body may take."""
LIMITS = Budget(model_calls=8, seconds=120)
"""What one turn may use."""
POLICY = SessionPolicy(max_waiting=4, wait=2.0)
"""Four messages of a conversation may wait; one that another server works on is waited for two seconds."""
REFUSALS: tuple[tuple[type[errors.NoeticError], int, Mapping[str, str]], ...] = (
    (errors.InvalidId, 400, {}),
    (errors.Overloaded, 429, {"Retry-After": "1"}),
    (errors.RunBusy, 503, {"Retry-After": "1"}),
    (errors.StoreUnavailable, 503, {"Retry-After": "5"}),
    (errors.SessionConflict, 409, {}),
    (errors.RunNotFound, 410, {}),
)
"""What a client is told of an error, by its class; of all others, that something broke."""

log = logging.getLogger("chat_server")


# ----------------------------------------------------------------------------------------------------------- the agent


@tool
async def high_water(port: str) -> str:
    """When the next high water is.

    Args:
        port: The port's name.
    """
    return f"{port}: {len(port) % 12 + 1} o'clock"


def guide(request: ModelRequest) -> str | FunctionCall:
    """What stands for a model: it knows nothing but what it is shown."""
    told = [item.text for item in request.items if isinstance(item, Message) and item.role == "user"]
    last = request.items[-1]
    if not isinstance(last, Message):
        return f"The table says: {getattr(last, 'text', '')}."
    if last.text.startswith("High water at "):
        return FunctionCall(name="high_water", arguments={"port": last.text.removeprefix("High water at ").rstrip("?")})
    return f"You have said {len(told)} things; the first was: {told[0]}"


class Offline:
    """A model that runs in this process."""

    name: str = "offline:guide"

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        return ScriptedModel(guide).respond(request)


@step
async def hear(text: str, ctx: Context[Memory, object]) -> None:
    """Take down what the user says: a step of its own, so that it stays when what follows is stopped."""
    ctx.items.append(Message.user(text))


agent = hear >> loop(call_model(instructions="You know the tides.", tools=[high_water]), until=until.no_tool_calls())


def open_harness(store: str, model: str | Model | None = None) -> Harness:
    return Harness(model=model or Offline(), checkpoints=store, sessions=POLICY)


# ------------------------------------------------------------------------------------------------------- who is asking


class StubTokens:
    """The login: a stub. A list of tokens stands for the login of a real server.

    The user comes from here alone, never from a path or a body, so no user can name a conversation of another user.

    Args:
        users: The users by their tokens.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def user_of(self, request: Request) -> str:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        # All are compared, each in the same time, so that how long it takes tells nothing.
        found = [user for token, user in self._users.items() if hmac.compare_digest(token.encode(), given.encode())]
        if kind.lower() != "bearer" or not found:
            raise HTTPException(401, "who are you?", headers={"WWW-Authenticate": "Bearer"})
        return found[0]


def users_of(text: str) -> dict[str, str]:
    """`token=user,token=user` as a mapping."""
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    return {token: user for token, _, user in pairs if token and user}


# ---------------------------------------------------------------------------------------------------------- the server


def refuse(error: Exception) -> JSONResponse:
    """What a client is told of an error: its kind, and nothing of what is inside."""
    for kind, status, headers in REFUSALS:
        if isinstance(error, kind):
            return JSONResponse({"error": type(error).__name__}, status, headers)
    log.error("a turn broke", exc_info=error)
    return JSONResponse({"error": "internal"}, 500)


class Answer:
    """The answer to a message while it is made, as server-sent events; a response of its own to Starlette.

    The turn is entered and left in the task that answers. The status is decided with its first event, so that a turn
    that cannot begin is refused by a status, and one that breaks later by the event `error`.

    Args:
        session: Whose turn it is.
        text: What the user says.
        delivery: What the message was delivered as.
    """

    def __init__(self, session: Session[Any], text: str, delivery: str | None) -> None:
        self._session = session
        self._text = text
        self._delivery = delivery
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def hang_up() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(hang_up)
            try:
                await self._turn(send)
            except errors.NoeticError as error:
                response = refuse(error)
                if self._begun:
                    await self._say(send, "error", json.loads(bytes(response.body)))
                else:
                    await response(scope, receive, send)
            if self._begun:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()

    async def _turn(self, send: Send) -> None:
        delivered: Any = {} if self._delivery is None else {"delivery_id": self._delivery}
        async with self._session.stream(agent, self._text, budget=LIMITS, **delivered) as stream:
            async for event in stream.events:
                match event:
                    case RunStarted(run_id=run_id):
                        await self._say(send, "turn", {"run": run_id})
                    case TextDelta(delta=delta):
                        await self._say(send, "text", {"delta": delta})
                    case ToolStarted(call=call):
                        await self._say(send, "tool", {"name": call.name})
                    case _:
                        pass
            # Once it is here it is stored. A client that reads slowly may have missed pieces; this is all of it.
            result = await stream.result()
            end = {"run": result.run_id, "status": result.status, "answer": result.output_or(None)}
            await self._say(send, "end", end)

    async def _say(self, send: Send, event: str, data: Mapping[str, object]) -> None:
        if not self._begun:
            self._begun = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})


class Said(BaseModel):
    """The body of a message."""

    text: str = Field(min_length=1)


class Stop(BaseModel):
    """The body of an interrupt: what the next turn's model is told, if anything."""

    message: str | None = None


Body = TypeVar("Body", bound=BaseModel)


class Chat:
    """What the server does; it keeps nothing between two requests.

    Args:
        harness: Does the turns.
        tokens: Says who is asking.
    """

    def __init__(self, harness: Harness, tokens: StubTokens) -> None:
        self._harness = harness
        self._tokens = tokens

    def _session(self, request: Request) -> Session[Any]:
        return self._harness.session(self._tokens.user_of(request), request.path_params["session"])

    async def say(self, request: Request) -> Any:
        session = self._session(request)
        said = await body_of(request, Said)
        return Answer(session, said.text, request.headers.get("delivery-id"))

    async def history(self, request: Request) -> JSONResponse:
        shown = [
            {"role": item.role, "text": item.text} if isinstance(item, Message) else {"type": item.type}
            for item in await self._session(request).items()
        ]
        return JSONResponse({"items": shown})

    async def interrupt(self, request: Request) -> JSONResponse:
        session = self._session(request)
        stop = await body_of(request, Stop)
        return JSONResponse({"interrupted": await session.interrupt(stop.message)})

    async def list(self, request: Request) -> JSONResponse:
        found = await self._harness.sessions.list(self._tokens.user_of(request))
        return JSONResponse({"sessions": [key.session for key in found]})

    async def health(self, request: Request) -> JSONResponse:
        # It asks the store, and raises when that does not answer.
        await self._harness.sessions.exists(SessionKey(None, "health"))
        return JSONResponse({"status": "ok"})


async def body_of(request: Request, kind: type[Body]) -> Body:
    """What a body says; nothing is as good as an empty object."""
    body = b""
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BYTES:
                    raise HTTPException(413, "the body is too long")
    except TimeoutError:
        raise HTTPException(408, "the body took too long", {"Connection": "close"}) from None
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise HTTPException(400, "the body is not what was asked for") from error


class Patient(H11Protocol):
    """A connection that is closed when the head of a request does not come whole in time, however its bytes drip in."""

    timer: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if not self._is_waiting():
            # The head is there, and the request is the application's.
            self._forget()
        elif self.timer is None:
            self.timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _is_waiting(self) -> bool:
        cycle: Any = self.cycle
        return cycle is None or bool(cycle.response_complete)

    def _give_up(self) -> None:
        if self._is_waiting():
            self.transport.close()

    def _forget(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def application(harness: Harness, tokens: StubTokens, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Starlette:
    """The server as an ASGI application.

    Args:
        harness: Does the turns; entered and left with the application.
        tokens: Says who is asking.
        hosts: The names under which it may be asked; others are refused, wherever the request comes from.
    """

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncGenerator[None]:
        async with harness:
            yield

    async def broken(request: Request, error: Exception) -> JSONResponse:
        return refuse(error)

    async def refused(request: Request, error: Exception) -> JSONResponse:
        status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
        return JSONResponse({"error": getattr(error, "detail", "internal")}, status, headers)

    chat = Chat(harness, tokens)
    routes = [
        Route("/health", chat.health),
        Route("/sessions", chat.list),
        Route("/sessions/{session}", chat.history),
        Route("/sessions/{session}/messages", chat.say, methods=["POST"]),
        Route("/sessions/{session}/interrupt", chat.interrupt, methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        exception_handlers={errors.NoeticError: broken, HTTPException: refused},
        lifespan=life,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat server on the loopback.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--store", default="sqlite:chat.db", help="what keeps the conversations")
    parser.add_argument("--model", help="a model such as local:smollm2; a script answers when left out")
    parser.add_argument("--users", help="token=user,token=user; NOETIC_CHAT_USERS when left out, else one is made up")
    given = parser.parse_args()
    users = users_of(given.users or os.environ.get("NOETIC_CHAT_USERS", ""))
    if not users:
        users = {secrets.token_urlsafe(): "demo"}
        print(f"no user was named; for now the user demo has the token {next(iter(users))}")
    app = application(open_harness(given.store, given.model), StubTokens(users))
    # Turns that are under way when it is to end have ten seconds; then they are cancelled, and can be gone on with.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        http=Patient,
        ws="none",
        timeout_graceful_shutdown=10,
        limit_concurrency=2_000,
    )
    with socket.create_server(("127.0.0.1", given.port)) as listening:
        print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
