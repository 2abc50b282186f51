"""A store full of one user's runs and sessions, and everything that can be done to them through the public methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
from attrs import define, evolve, frozen

from noetic_py import (
    Channel,
    Context,
    Harness,
    Memory,
    Principal,
    RunHandle,
    SessionKey,
    StateBag,
    acting_as,
    call_model,
    call_tool,
    errors,
    step,
    tool,
)
from noetic_py.access import ACTIONS, AccessAction, AccessPolicy, RoleAccess
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.memory import StaticContent
from noetic_py.schedules import Schedule
from noetic_py.sessions.export import SessionData
from noetic_py.testing import ScriptedModel

Ctx: TypeAlias = Context[Any, StateBag]

ROLES: dict[str, frozenset[AccessAction]] = {
    "nothing": frozenset(),
    "viewer": frozenset({"read"}),
    "writer": frozenset({"run"}),
    "member": frozenset({"run", "read", "resume", "send", "abort"}),
    "approver": frozenset({"read", "resume", "approve"}),
    "operator": ACTIONS - {"approve", "export", "delete"},
    "mender": frozenset({"read", "retry"}),
    "auditor": frozenset({"read", "export"}),
    "blind": ACTIONS - {"read"},
    "admin": ACTIONS,
}
ANY_OWNER = frozenset({"admin"})
POLICY: AccessPolicy = RoleAccess(ROLES, any_owner=ANY_OWNER)
ADMIN = Principal("root", {"admin"})

TRIP, NOW = SessionKey("ada", "trip"), SessionKey("ada", "now")

RAN: list[str] = []
"""What bodies and tools were run."""
BEGINNING: list[anyio.Event] = []
"""Who wants to know that a waiting step has begun."""
LINE = Channel("line", int, external=True)


class Mem(Memory):
    rules: StaticContent = StaticContent(content="Be kind.")


talk = call_model()


@step
async def hello(text: str, ctx: Ctx) -> str:
    RAN.append("hello")
    return f"{text}, {ctx.user_id}"


@tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append("pay")
    return f"paid {amount}"


pays = call_tool(pay, args={"amount": 5})


@step
async def breaks(text: str, ctx: Ctx) -> str:
    RAN.append("breaks")
    raise ValueError(text)


@step
async def waits(text: str, ctx: Ctx) -> str:
    BEGINNING.pop().set()
    return f"{text} {await ctx.recv(LINE, timeout=float('inf'))}"


@define
class World:
    """Where something is done, and to what.

    Attributes:
        harness: A harness with the policy.
        backend: Its backend.
        stored: A run that has completed.
        broken: One that has failed.
        paying: One that waits for leave to pay.
        live: One that goes on.
        owner: Whose they are.
        key: A session of theirs.
        turning: Another one, in which a turn goes on.
        handle: The handle of `live`.
    """

    harness: Harness[Any]
    backend: CheckpointBackend
    handle: RunHandle[Any, Any]
    stored: str = "stored"
    broken: str = "broken"
    paying: str = "paying"
    live: str = "live"
    owner: str = "ada"
    key: SessionKey = TRIP
    turning: SessionKey = NOW

    async def answers(self) -> list[Any]:
        """An approval of what `paying` waits for, however it was come by."""
        with acting_as(ADMIN):
            waiting = (await self.harness.runs.get("paying")).pending
        return [evolve(each.approve(), run_id=self.paying) for each in waiting]

    async def contents(self) -> list[Any]:
        """What stands in the store, and what has run or was stopped."""
        entries = await self.backend.list(limit=1000)
        # Of a run that goes on the beginning may still be being written.
        runs = [(each.run_id, each.held or each.position, each.status, each.summary) for each in entries]
        keys = await self.backend.scan(("sessions", "-", "-", "user", "ada"))
        with acting_as(ADMIN):
            said = await self.harness.session("ada", "trip").items()
            waiting = [await self.harness.session("ada", name).queued() for name in ("trip", "now")]
        return [*sorted(runs, key=str), [key.key for key in keys], len(said), waiting, list(RAN), self.handle.done]


def a_harness(backend: CheckpointBackend, policy: AccessPolicy = POLICY) -> Harness[Any]:
    model = ScriptedModel(*["Hi."] * 99)
    return Harness(
        plugins=(),
        checkpoints=backend,
        access=policy,
        memory=Mem(),
        model=model,
        flows={"hello": hello},
        schedules={"daily": Schedule("0 9 * * *", hello, "x", user_id="ada")},
    )


@asynccontextmanager
async def a_world(backend: CheckpointBackend, policy: AccessPolicy = POLICY) -> AsyncGenerator[World]:
    """Everything there is, and two runs that go on."""
    ada = Principal("ada", {"admin"})
    async with a_harness(backend, policy) as harness:
        with acting_as(ada):
            await harness.run(talk, "Hello", run_id="stored")
            await harness.run(breaks, "no", run_id="broken", on_error="result")
            await harness.run(pays, None, run_id="paying")
            await harness.session("ada", "trip").run(talk, "Hello", run_id="turn")
            began = [anyio.Event(), anyio.Event()]
            BEGINNING.extend(began)
            live = harness.start(waits, "a", run_id="live", on_error="result")
            turning = harness.start(waits, "b", run_id="turning", session=NOW, on_error="result")
            for event in began:
                await event.wait()
        RAN.clear()
        try:
            yield World(harness, backend, live)
        finally:
            with acting_as(ADMIN), anyio.CancelScope(shield=True):
                for handle in (live, turning):
                    if not handle.done:
                        handle.abort("over")
                    await handle.result()


Doing: TypeAlias = Callable[[World], Awaitable[object]]


@frozen
class Deed:
    """Something that can be done through a public method.

    Attributes:
        method: The method.
        needs: What it asks for.
        do: Does it.
        nothing: What comes back instead of an error when what it is done to is not there, `...` for an error.
        keyed: Whether it is done to something that another id names; the rest is of a handle, or of everything.
    """

    method: str
    needs: frozenset[AccessAction]
    do: Doing
    nothing: object = ...
    keyed: bool = True


DEEDS: list[Deed] = []


def deed(method: str, *needs: AccessAction, nothing: object = ..., keyed: bool = True) -> Callable[[Doing], Doing]:
    def add(do: Doing) -> Doing:
        DEEDS.append(Deed(method, frozenset(needs), do, nothing, keyed))
        return do

    return add


# -- to begin something


@deed("Harness.run", "run")
async def run(w: World) -> object:
    return (await w.harness.run(hello, "x", user_id=w.owner)).status


@deed("Harness.run", "run")
async def run_turn(w: World) -> object:
    return (await w.harness.run(hello, "x", session=w.key)).status


@deed("Harness.stream", "run")
async def stream(w: World) -> object:
    async with w.harness.stream(hello, "x", user_id=w.owner) as found:
        return (await found.result()).status


@deed("Harness.start", "run")
async def start(w: World) -> object:
    return (await w.harness.start(hello, "x", user_id=w.owner).result()).status


@deed("Harness.submit", "run")
async def submit(w: World) -> object:
    return len(await w.harness.submit(hello, "x", user_id=w.owner))


@deed("Schedules.pause", "read", "run", keyed=False)
async def pause_schedule(w: World) -> object:
    await w.harness.schedules.pause("daily")
    return True


@deed("Schedules.resume", "read", "run", keyed=False)
async def resume_schedule(w: World) -> object:
    await w.harness.schedules.resume("daily")
    return True


@deed("Schedules.trigger", "read", "run", keyed=False)
async def trigger_schedule(w: World) -> object:
    return len(await w.harness.schedules.trigger("daily"))


@deed("Session.run", "run")
async def session_run(w: World) -> object:
    return (await w.harness.session(w.key.user, w.key.session).run(hello, "x")).status


@deed("Session.stream", "run")
async def session_stream(w: World) -> object:
    async with w.harness.session(w.key.user, w.key.session).stream(hello, "x") as found:
        return (await found.result()).status


# -- to go on with a run, or to look at it


@deed("Harness.resume", "read", "resume")
async def resume(w: World) -> object:
    return (await w.harness.resume(w.paying, pays)).status


@deed("Harness.resume", "read", "retry")
async def retry(w: World) -> object:
    return (await w.harness.resume(w.broken, breaks, on_error="result")).status


@deed("Harness.resume", "read", "resume", "approve")
async def resume_with_answers(w: World) -> object:
    return (await w.harness.resume(w.paying, pays, answers=await w.answers())).value


@deed("Harness.result", "read")
async def result(w: World) -> object:
    return (await w.harness.result(w.stored, hello)).status


@deed("Harness.resume_stream", "read", "resume")
async def resume_stream(w: World) -> object:
    async with w.harness.resume_stream(w.paying, pays) as found:
        return (await found.result()).status


@deed("Harness.resume_stream", "read", "retry")
async def retry_stream(w: World) -> object:
    async with w.harness.resume_stream(w.broken, breaks, on_error="result") as found:
        return (await found.result()).status


@deed("Harness.plan_resume", "read")
async def plan_resume(w: World) -> object:
    return (await w.harness.plan_resume(w.paying, pays)).status


@deed("Harness.fork", "read", "fork")
async def fork(w: World) -> object:
    return bool(await w.harness.fork(w.stored))


@deed("Harness.erase", "read", "delete", keyed=False)
async def erase(w: World) -> object:
    # The runs of this user go on, so that one who may is refused for that.
    try:
        return dict((await w.harness.erase(w.owner)).removed)
    except errors.RunBusy:
        return {}


@deed("Harness.dump_memory", "read", "export", keyed=False)
async def dump_memory(w: World) -> object:
    return dict(await w.harness.dump_memory(user_id=w.owner))


@deed("Harness.explain_view", "read")
async def explain_view(w: World) -> object:
    return bool(w.harness.explain_view(w.stored).explain())


@deed("Harness.channel_handle", "read", "send")
async def channel_handle(w: World) -> object:
    return w.harness.channel_handle(LINE, w.live).closed


@deed("Harness.channel_stream", "read")
async def channel_stream(w: World) -> object:
    async with w.harness.channel_stream(LINE, w.live) as values:
        return hasattr(values, "__anext__")


@deed("Harness.interrupt", "read", "abort")
async def interrupt(w: World) -> object:
    return await w.harness.interrupt(w.turning)


@deed("Runs.get", "read")
async def get(w: World) -> object:
    return (await w.harness.runs.get(w.paying)).run_id


@deed("Runs.wait", "read")
async def wait(w: World) -> object:
    return (await w.harness.runs.wait(w.stored)).status


@deed("Runs.progress", "read")
async def progress(w: World) -> object:
    return dict(await w.harness.runs.progress(w.stored))


@deed("Runs.list", "read", nothing=[])
async def list_runs(w: World) -> object:
    return [run.run_id for run in await w.harness.runs.list(session=w.key)]


@deed("Runs.list", "read", nothing=[], keyed=False)
async def list_suspended(w: World) -> object:
    return [run.run_id for run in await w.harness.runs.list(status="suspended", limit=1)]


@deed("Runs.journal", "read", "export")
async def journal(w: World) -> object:
    return len(await w.harness.runs.journal(w.stored)) > 0


@deed("Runs.events", "read", "export")
async def events(w: World) -> bool:
    return len([each async for each in w.harness.runs.events(w.stored)]) > 0


@deed("Runs.history", "read", "export")
async def history(w: World) -> object:
    await w.harness.runs.history(w.stored)
    return True


@deed("Runs.views", "read", "export")
async def views(w: World) -> object:
    await w.harness.runs.views(w.stored)
    return True


@deed("Runs.verify", "read", "export")
async def verify(w: World) -> object:
    try:
        return await w.harness.runs.verify(w.stored)
    except errors.ConfigError as error:
        # Whoever comes so far was let in.
        return error.code


@deed("Runs.answer", "read", "approve")
async def answer(w: World) -> object:
    return (await w.harness.runs.answer(*await w.answers())).pending


@deed("Runs.complete", "read", "complete")
async def complete(w: World) -> object:
    return (await w.harness.runs.complete(w.paying, "enough")).status


@deed("Runs.wrap_up", "read", "complete")
async def wrap_up(w: World) -> object:
    return (await w.harness.runs.wrap_up(w.paying, "enough")).run_id


@deed("Runs.abort", "read", "abort")
async def abort_stored(w: World) -> object:
    return (await w.harness.runs.abort(w.paying, "enough")).status


@deed("Runs.send", "read", "send")
async def send_stored(w: World) -> object:
    await w.harness.runs.send(w.paying, LINE, 1)
    return None


@deed("Runs.delete", "read", "delete", nothing=None)
async def delete(w: World) -> object:
    await w.harness.runs.delete(w.stored)
    return None


@deed("Runs.prune", "read", "delete", nothing=0, keyed=False)
async def prune(w: World) -> object:
    return await w.harness.runs.prune(keep=0, statuses=["completed", "failed", "suspended", "running"])


# -- sessions


@deed("Session.items", "read")
async def items(w: World) -> object:
    return len(await w.harness.session(w.key.user, w.key.session).items())


@deed("Session.state", "read")
async def state(w: World) -> object:
    return await w.harness.session(w.key.user, w.key.session).state(StateBag)


@deed("Session.send", "read", "send")
async def send(w: World) -> object:
    return (await w.harness.session(w.key.user, w.key.session).send("x", delivery_id="d")).durable


@deed("Session.send", "read", "send", "abort")
async def send_and_interrupt(w: World) -> object:
    session = w.harness.session(w.turning.user, w.turning.session)
    return (await session.send("x", deliver="interrupt", delivery_id="d")).durable


@deed("Session.queued", "read")
async def queued(w: World) -> object:
    return len(await w.harness.session(w.key.user, w.key.session).queued())


@deed("Session.next_turn", "read", "run")
async def next_turn(w: World) -> object:
    return await w.harness.session(w.key.user, w.key.session).next_turn(hello)


@deed("Session.serve", "read", "run")
async def serve(w: World) -> object:
    with anyio.move_on_after(0.01):
        await w.harness.session(w.key.user, w.key.session).serve(hello)
    return None


@deed("Session.watch", "read")
async def watch(w: World) -> object:
    async with w.harness.session(w.key.user, w.key.session).watch() as stream:
        return stream.dropped


@deed("Session.interrupt", "read", "abort")
async def interrupt_session(w: World) -> object:
    return await w.harness.session(w.turning.user, w.turning.session).interrupt()


@deed("Session.edit", "read", "run")
async def edit(w: World) -> object:
    async with w.harness.session(w.key.user, w.key.session).edit() as found:
        del found.items[1:]
        return len(found.items)


@deed("Session.clear", "read", "run")
async def clear(w: World) -> object:
    await w.harness.session(w.key.user, w.key.session).clear()
    return None


@deed("Session.dump", "read", "export")
async def dump(w: World) -> object:
    return len((await w.harness.session(w.key.user, w.key.session).dump()).items)


@deed("Session.save", "read", "run")
async def save(w: World) -> object:
    return await w.harness.session(w.key.user, w.key.session).save()


@deed("Sessions.list", "read", nothing=[])
async def list_sessions(w: World) -> object:
    return [key.session for key in await w.harness.sessions.list(w.key.user)]


@deed("Sessions.exists", "read")
async def exists(w: World) -> object:
    return await w.harness.sessions.exists(w.key)


@deed("Sessions.load", "read", "run")
async def load(w: World) -> object:
    return (await w.harness.sessions.load(SessionData(), into=SessionKey(w.key.user, "new"))).session


@deed("Sessions.load", "read", "run", "delete")
async def load_over(w: World) -> object:
    return (await w.harness.sessions.load("{}", into=w.key, replace=True)).app


@deed("Sessions.delete", "read", "delete")
async def delete_session(w: World) -> object:
    await w.harness.sessions.delete(w.key)
    return None


# -- a run under way, in other hands than those that have started it


@deed("RunHandle.abort", "read", "abort", keyed=False)
async def abort(w: World) -> object:
    w.handle.abort("enough")
    return None


@deed("RunHandle.complete", "read", "complete", keyed=False)
async def complete_run(w: World) -> object:
    w.handle.complete("enough")
    return None


@deed("RunHandle.wrap_up", "read", "complete", keyed=False)
async def wrap_up_run(w: World) -> object:
    w.handle.wrap_up("enough")
    return None


@deed("RunHandle.interrupt", "read", "abort", keyed=False)
async def interrupt_run(w: World) -> object:
    w.handle.interrupt()
    return None


@deed("RunHandle.channel", "read", "send", keyed=False)
async def channel(w: World) -> object:
    return w.handle.channel(LINE).closed


@deed("RunStream.abort", "read", "abort", keyed=False)
async def abort_stream(w: World) -> object:
    w.handle.stream.abort("enough")
    return None


@deed("RunStream.complete", "read", "complete", keyed=False)
async def complete_stream(w: World) -> object:
    w.handle.stream.complete("enough")
    return None


@deed("RunStream.wrap_up", "read", "complete", keyed=False)
async def wrap_up_stream(w: World) -> object:
    w.handle.stream.wrap_up("enough")
    return None


@deed("RunStream.interrupt", "read", "abort", keyed=False)
async def interrupt_stream(w: World) -> object:
    w.handle.stream.interrupt()
    return None


@deed("RunStream.channel", "read", "send", keyed=False)
async def stream_channel(w: World) -> object:
    return w.handle.stream.channel(LINE).closed
