"""A web page on which a person allows, refuses and redirects what an agent does, while it runs.

A person starts an agent on a task and sees live what it does. The agent proposes its actions and waits. A decision
reaches the waiting tool through an external channel of the run, and a new direction reaches the loop's inbox. The
page is plain HTML, without a build step and without resources from elsewhere. `scout` stands for a model and needs no
network; `--model` names a real one.

    python examples/web_form.py
"""

import argparse
import hmac
import json
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from html import escape
from pathlib import Path
from string import Template
from typing import Annotated, Literal, TypeVar
from urllib.parse import parse_qsl

import anyio
import uvicorn
from attrs import Factory, asdict, define, frozen
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from noetic_py import (
    Budget,
    Channel,
    Context,
    Emitted,
    Event,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Inject,
    Item,
    ItemsAppended,
    Message,
    RunHandle,
    StateBag,
    StepStarted,
    TextDelta,
    ToolFinished,
    ToolStarted,
    call_model,
    errors,
    loop,
    tool,
    until,
)
from noetic_py.core.events import ModelFailed, ModelStarted
from noetic_py.models import Model, ModelRequest, ModelStream
from noetic_py.testing import ScriptedModel

LIMITS = Budget(model_calls=50, tool_calls=100)
"""What one run may use."""
PATIENCE = 600.0
"""Seconds that a proposal waits for an answer; then it is as good as declined."""
GRACE = 1.0
"""Seconds that runs have to end by themselves when the server does."""
MOST_RUNS = 100
"""How many runs are kept for their pages; the oldest that have ended go first."""
MOST_BYTES = 16 * 1024
"""The longest form that is taken."""
PAGE = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))

log = logging.getLogger("web_form")


# ----------------------------------------------------------------------------------------------------------- the agent


@frozen
class Proposal:
    """What the agent wants to do, and does not before it may."""

    id: str
    title: str
    text: str


class Decision(BaseModel, frozen=True):
    """What the person says to a proposal."""

    proposal: str
    approved: bool
    reason: str = ""


# external: code outside the run may send to them. Each tool that waits hears all decisions, and takes its own.
decisions = Channel("decisions", Decision, mode="topic", external=True)
directions = Channel("directions", str, capacity=4, external=True)

ALMANAC = {
    "tides": "High water at 06:12 and 18:40; springs on Friday.",
    "winds": "South-west 5, backing south and rising to 7 by night.",
    "ferries": "The last boat to the islands leaves at 17:30.",
    "fog": "Banks of fog until ten, then good visibility.",
}


@define
class Board:
    """The harbour's public notice board."""

    notices: list[str] = Factory(list[str])


@tool
async def look_up(topic: str) -> str:
    """Look something up in the almanac.

    Args:
        topic: One word, such as "tides".
    """
    return ALMANAC.get(topic, f"nothing about {topic}; there is {', '.join(ALMANAC)}")


@tool
async def post_notice(ctx: Context, board: Inject[Board], title: str, text: str) -> str:
    """Post a notice on the harbour's board. A person is asked first.

    Args:
        title: What it is about.
        text: One sentence.
    """
    proposal = Proposal(ctx.idempotency_key, title, text)
    ctx.emit(proposal)
    decision = await decided(ctx, proposal)
    ctx.emit(decision)
    if not decision.approved:
        return f"Not posted: {decision.reason or 'the person has declined'}."
    board.notices.append(f"{title}: {text}")
    return f"Posted: {title}."


async def decided(ctx: Context, proposal: Proposal) -> Decision:
    """What is decided on a proposal; it cannot be answered before it was emitted, and nothing is awaited in between."""
    try:
        while True:
            decision = await ctx.recv(decisions, timeout=PATIENCE)
            if decision.proposal == proposal.id:
                return decision
    except errors.ChannelTimeout:
        return Decision(proposal=proposal.id, approved=False, reason="no answer in time")


def scout(request: ModelRequest) -> str | list[Item]:
    """What stands for a model: reads up on each topic that it was told last, and proposes a notice about it."""
    said = [at for at, item in enumerate(request.items) if isinstance(item, Message) and item.role == "user"]
    words = getattr(request.items[said[-1]], "text", "").lower()
    topics = sorted((topic for topic in ALMANAC if topic in words), key=words.index)
    if not topics:
        return f"I know about {', '.join(ALMANAC)}. Which of them?"
    # For each topic there are two calls, one after the other.
    outputs = [item.text for item in request.items[said[-1] :] if isinstance(item, FunctionCallOutput)]
    done, looked_up = divmod(len(outputs), 2)
    if done == len(topics):
        return f"That is all. {' '.join(outputs[1::2])}"
    topic = topics[done]
    if looked_up:
        call = FunctionCall(name="post_notice", arguments={"title": topic.capitalize(), "text": outputs[-1]})
        return [Message.assistant(f"I have read about {topic}, and would like to post it."), call]
    return [Message.assistant(f"I look up {topic}."), FunctionCall(name="look_up", arguments={"topic": topic})]


class Offline:
    """A model that runs in this process.

    Args:
        delay: Seconds that it thinks, so that a person can see it work.
    """

    name: str = "offline:scout"

    def __init__(self, delay: float = 0.0) -> None:
        self._delay = delay

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        return ScriptedModel(scout, delay=self._delay).respond(request)


# Where it would end, what was said meanwhile starts another round; between two rounds it is heard, too.
agent = loop(
    call_model(
        instructions="Look up each topic in the almanac, then post a notice about it. When told otherwise, do that.",
        tools=[look_up, post_notice],
    ),
    until=until.no_tool_calls(),
    inbox=directions,
)


# ------------------------------------------------------------------------------------------------- a run, as it is seen


def told(event: Event) -> tuple[str, Mapping[str, object]] | None:
    """What the page is told of an event."""
    match event:
        case StepStarted(path=path):
            return "step", {"path": " / ".join(path)}
        case ModelStarted(model=model):
            return "model", {"name": model}
        case TextDelta(delta=delta):
            return "text", {"delta": delta}
        case ModelFailed():
            return "discarded", {}
        case ToolStarted(call=call):
            return "call", {"id": call.call_id, "name": call.name, "arguments": call.arguments}
        case ToolFinished(output=output, failed=failed):
            return "output", {"id": output.call_id, "text": output.text, "failed": failed}
        case Emitted(event=Proposal() as proposal):
            return "proposal", asdict(proposal)
        case Emitted(event=Decision() as decision):
            return "decision", decision.model_dump()
        case _:
            return None


class Watched:
    """A run and all that its page was told, so that a page that is opened again, or late, shows the same.

    Attributes:
        watching: How many pages are open.
        over: Whether the run has ended.
    """

    def __init__(self, handle: RunHandle[str, StateBag], task: str) -> None:
        self.task = task
        self.watching = 0
        self.over = False
        self._handle = handle
        self._pieces: list[bytes] = []
        self._news = anyio.Event()
        self._proposed: set[str] = set()
        self._unheard: list[str] = []
        self._say(task)

    @property
    def id(self) -> str:
        return self._handle.run_id

    # -- what the person does

    def decide(self, decision: Decision) -> None:
        """Tell the tool that waits."""
        self._check()
        if decision.proposal not in self._proposed:
            raise HTTPException(409, "This is not proposed any more; nothing was sent.")
        self._proposed.remove(decision.proposal)
        self._handle.channel(decisions).send(decision)

    def direct(self, text: str) -> None:
        """Tell the agent what to do instead: what it has proposed is declined, and the loop hears of the rest."""
        self._check()
        if len(self._unheard) >= directions.capacity:
            # The channel would drop the oldest.
            raise HTTPException(429, "The agent has not heard what you said before. Wait a moment and send it again.")
        self._say(text)
        for proposal in tuple(self._proposed):
            self.decide(Decision(proposal=proposal, approved=False, reason="the person wants something else"))
        self._handle.channel(directions).send(text)

    def _say(self, text: str) -> None:
        self._unheard.append(text)
        self.tell("said", {"text": text})

    def stop(self) -> None:
        self._check()
        self._handle.interrupt("stopped on the page")

    def _check(self) -> None:
        if self.over or self._handle.done:
            raise HTTPException(409, "The run is over; nothing was sent.")

    # -- what the page is told

    async def follow(self) -> None:
        """Take down what the run does, until it ends."""
        async for event in self._handle.stream.events:
            self._note(event)
            piece = told(event)
            if piece is not None:
                self.tell(*piece)
        result = await self._handle.result()
        reason = result.reason
        if result.status == "failed":
            log.error("run %s broke", self.id, exc_info=result.error)
            reason = "something broke; the server's log says what"
        self.over = True
        self.tell("end", {"status": result.status, "reason": reason, "unheard": self._unheard})

    def _note(self, event: Event) -> None:
        match event:
            case Emitted(event=Proposal(id=proposal)):
                self._proposed.add(proposal)
            case Emitted(event=Decision(proposal=proposal)):
                self._proposed.discard(proposal)
            case ItemsAppended(items=items):
                for item in items:
                    if isinstance(item, Message) and item.role == "user" and item.text in self._unheard:
                        self._unheard.remove(item.text)
                        self.tell("heard", {"text": item.text})
            case _:
                pass

    def tell(self, name: str, data: Mapping[str, object]) -> None:
        number = len(self._pieces) + 1
        self._pieces.append(f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self._news.set()
        self._news = anyio.Event()

    async def after(self, seen: int) -> AsyncIterator[bytes]:
        """What was told, from a number on, and what will be."""
        while True:
            while seen < len(self._pieces):
                yield self._pieces[seen]
                seen += 1
            if self.over:
                return
            await self._news.wait()

    @contextmanager
    def open(self) -> Generator[None]:
        self.watching += 1
        try:
            yield
        finally:
            self.watching -= 1


class Live:
    """What a run does as server-sent events; a response of its own to Starlette.

    A page that is closed ends it, and not the run: opening the page's address again shows all of it.

    Args:
        run: Which run.
        seen: How many pieces the page has already: a browser that was cut off says so when it comes again.
    """

    def __init__(self, run: Watched, seen: int) -> None:
        self._run = run
        self._seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as group:

            async def hang_up() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(hang_up)
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            with self._run.open():
                async for piece in self._run.after(self._seen):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            group.cancel_scope.cancel()


# ----------------------------------------------------------------------------------------------------------- the forms


class TaskForm(BaseModel):
    task: Annotated[
        str, Field(min_length=1, max_length=500, description="Say what the agent is to do, in 1 to 500 characters.")
    ]


class DirectionForm(BaseModel):
    direction: Annotated[
        str, Field(min_length=1, max_length=500, description="Say what to do instead, in 1 to 500 characters.")
    ]


class DecisionForm(BaseModel):
    proposal: Annotated[str, Field(description="Say what is decided on.")]
    verdict: Annotated[Literal["approve", "decline"], Field(description="Either approve or decline.")]
    reason: Annotated[str, Field(max_length=500, description="Give a reason of at most 500 characters.")] = ""


Form = TypeVar("Form", bound=BaseModel)


class Tokens:
    """Words that open the server's addresses, one for each, so that a run's page opens nothing but this run.

    Only a person who was given the address knows its token. A foreign page can make a browser post here, and cannot say
    the token.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes()

    def of(self, what: str) -> str:
        return hmac.digest(self._key, what.encode(), "sha256").hex()

    def check(self, what: str, given: str) -> None:
        if not hmac.compare_digest(self.of(what).encode(), given.encode()):
            raise HTTPException(403, "The token is missing or wrong. Open the address that the server has printed.")


async def fields_of(request: Request) -> dict[str, str]:
    """A form's fields, without the spaces around them."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "The form is too long.")
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=16)
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error
    return {name: value.strip() for name, value in pairs}


def checked(kind: type[Form], fields: Mapping[str, str]) -> Form:
    """The form that the fields are; the first that is wrong says what is asked for."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        [name, *_] = error.errors()[0]["loc"]
        raise HTTPException(400, kind.model_fields[str(name)].description) from error


# ---------------------------------------------------------------------------------------------------------- the server


class Site:
    """What the server does.

    Args:
        harness: Does the runs; entered and left with the application.
    """

    def __init__(self, harness: Harness) -> None:
        self.tokens = Tokens()
        self.runs: dict[str, Watched] = {}
        self._harness = harness
        self._group: anyio.abc.TaskGroup | None = None

    @property
    def address(self) -> str:
        """The address of the first page, behind the server's own."""
        return f"/?token={self.tokens.of('start')}"

    @asynccontextmanager
    async def life(self, app: Starlette) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as self._group, self._harness:
            yield

    async def close(self) -> None:
        """Stop all runs, and with them what the pages wait for."""
        await self._harness.shutdown(timeout=GRACE)

    # -- the pages

    async def first(self, request: Request) -> Response:
        self.tokens.check("start", request.query_params.get("token", ""))
        return page("start", token=self.tokens.of("start"))

    async def watch(self, request: Request) -> Response:
        token = request.query_params.get("token", "")
        run = self._run(request, token)
        return page("live", token=token, task=run.task, run=f"/runs/{run.id}")

    async def live(self, request: Request) -> Live:
        run = self._run(request, request.query_params.get("token", ""))
        seen = request.headers.get("last-event-id", "0")
        if not (seen.isascii() and seen.isdecimal()):
            raise HTTPException(400, "Last-Event-ID is no number.")
        return Live(run, int(seen))

    def _run(self, request: Request, token: str) -> Watched:
        name = request.path_params["run"]
        self.tokens.check(name, token)
        if name not in self.runs:
            raise HTTPException(404, "This run is not kept any more.")
        return self.runs[name]

    # -- the posts

    async def start(self, request: Request) -> Response:
        fields = await fields_of(request)
        self.tokens.check("start", fields.get("token", ""))
        task = checked(TaskForm, fields).task
        self._make_room()
        try:
            # A run that breaks says so on its page, and not here.
            run = Watched(self._harness.start(agent, task, budget=LIMITS, on_error="result"), task)
        except errors.ShuttingDown as error:
            raise HTTPException(503, "The server is about to end; nothing was started.") from error
        assert self._group is not None
        self._group.start_soon(run.follow)
        self.runs[run.id] = run
        return Response(status_code=201, headers={"Location": f"/runs/{run.id}?token={self.tokens.of(run.id)}"})

    def _make_room(self) -> None:
        if len(self.runs) >= MOST_RUNS:
            ended = next((name for name, run in self.runs.items() if run.over), None)
            if ended is None:
                raise HTTPException(503, "Too many runs go on already; nothing was started.")
            del self.runs[ended]

    async def decide(self, request: Request) -> Response:
        fields = await fields_of(request)
        run = self._run(request, fields.get("token", ""))
        form = checked(DecisionForm, fields)
        run.decide(Decision(proposal=form.proposal, approved=form.verdict == "approve", reason=form.reason))
        return Response(status_code=204)

    async def direct(self, request: Request) -> Response:
        fields = await fields_of(request)
        run = self._run(request, fields.get("token", ""))
        run.direct(checked(DirectionForm, fields).direction)
        return Response(status_code=204)

    async def stop(self, request: Request) -> Response:
        fields = await fields_of(request)
        self._run(request, fields.get("token", "")).stop()
        return Response(status_code=204)


def page(state: str, *, token: str, task: str = "", run: str = "") -> HTMLResponse:
    """The page; only what carries this answer's nonce may run in it, and no page may put it into a frame."""
    nonce = secrets.token_urlsafe()
    values = {"state": state, "token": token, "task": task, "run": run, "nonce": nonce}
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
    headers = {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
    return HTMLResponse(PAGE.substitute({name: escape(value) for name, value in values.items()}), headers=headers)


def application(site: Site, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Starlette:
    """The server as an ASGI application.

    Args:
        site: What it does.
        hosts: The names under which it may be asked; others are refused, wherever the request comes from.
    """
    routes = [
        Route("/", site.first),
        Route("/runs", site.start, methods=["POST"]),
        Route("/runs/{run}", site.watch),
        Route("/runs/{run}/events", site.live),
        Route("/runs/{run}/decisions", site.decide, methods=["POST"]),
        Route("/runs/{run}/directions", site.direct, methods=["POST"]),
        Route("/runs/{run}/stop", site.stop, methods=["POST"]),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        lifespan=site.life,
    )


class Carrier(uvicorn.Server):
    """Carries the site. When it ends it stops the runs first: an open page listens for as long as its run lasts."""

    def __init__(self, site: Site) -> None:
        # No access log: the addresses hold tokens.
        config = uvicorn.Config(
            application(site), log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=5
        )
        super().__init__(config)
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._site.close()
        await super().shutdown(sockets)


def open_site(model: str | Model | None = None, board: Board | None = None) -> Site:
    return Site(Harness(model=model or Offline(), services={Board: board or Board()}))


def main() -> None:
    parser = argparse.ArgumentParser(description="An agent that a person steers on a web page, on the loopback.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--model", help="a model such as openai:gpt-5-mini; a script answers when left out")
    given = parser.parse_args()
    site = open_site(given.model or Offline(delay=1.0))
    with socket.create_server(("127.0.0.1", given.port)) as listening:
        print(f"open http://127.0.0.1:{listening.getsockname()[1]}{site.address}", flush=True)
        Carrier(site).run(sockets=[listening])


if __name__ == "__main__":
    main()
