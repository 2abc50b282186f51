"""Who may do what: every public method, every role, one's own and another's; and nothing of another's is seen.

Nothing here takes the library's word for what is allowed: it is reckoned anew from the roles.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from importlib import import_module
from inspect import isawaitable, isclass, signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_overloads, is_typeddict

import anyio
import pytest
from attrs import evolve, has

import noetic_py.runner
import noetic_py.sessions
from noetic_py import (
    Answer,
    Context,
    Harness,
    InMemoryBackend,
    Memory,
    Principal,
    RunResult,
    SessionKey,
    StateBag,
    acting_as,
    errors,
    step,
)
from noetic_py.access import ACTIONS, AccessAction, AccessRequest, RoleAccess
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.memory import Scope, WorkingMemory
from tests.properties.checks import FULL, SEED, examples
from tests.security.access_world import (
    ADMIN,
    ANY_OWNER,
    DEEDS,
    LINE,
    POLICY,
    RAN,
    ROLES,
    TRIP,
    Deed,
    World,
    a_harness,
    a_world,
    hello,
    pays,
)

TRIES = examples(6, 100)

OPEN: dict[str, str] = {
    "Harness.run_sync": "tested by itself, for it runs where there is no event loop",
    "Harness.session": "reads nothing and makes nothing; each method of what it gives asks",
    "Harness.sessions": "reads nothing; each method of what it gives asks",
    "Harness.schedules": "reads nothing; each method of what it gives asks",
    "Harness.runs": "reads nothing; each method of what it gives asks",
    "Harness.budget": "what the harness was made with",
    "Harness.flows": "what the harness was made with",
    "Harness.memory_layers": "what can be named, not what is kept",
    "Harness.graph": "of a step, not of a run",
    "Harness.shutdown": "the program's own end; it names no run",
    "Harness.stopping_on_signals": "the program's own end; it names no run",
    "Harness.work": "carries out what was allowed when it was submitted",
    "Session.key": "what the caller gave",
    "RunHandle.run_id": "known to whoever started it",
    "RunHandle.done": "known to whoever started it",
    "RunHandle.result": "given to whoever started it, who was let in",
    "RunHandle.stream": "given to whoever started it, who was let in; what it can do to the run asks",
    "RunStream.run_id": "known to whoever watches it",
    "RunStream.done": "known to whoever watches it",
    "RunStream.dropped": "known to whoever watches it",
    "RunStream.events": "given to whoever began it, who was let in",
    "RunStream.text": "given to whoever began it, who was let in",
    "RunStream.reasoning": "given to whoever began it, who was let in",
    "RunStream.select": "given to whoever began it, who was let in",
    "RunStream.snapshots": "given to whoever began it, who was let in",
    "RunStream.partial": "given to whoever began it, who was let in",
    "RunStream.items": "given to whoever began it, who was let in",
    "RunStream.result": "given to whoever began it, who was let in",
    "RunStream.outcome": "given to whoever began it, who was let in",
    "RunStream.ended": "given to whoever began it, who was let in",
    "RunStream.finish": "the harness's, for a run that is over",
    "SessionStream.dropped": "given to whoever began to watch, who was let in",
    "SessionStream.events": "given to whoever began to watch, who was let in",
    "SessionStream.text": "given to whoever began to watch, who was let in",
    "SessionStream.reasoning": "given to whoever began to watch, who was let in",
    "SessionStream.items": "given to whoever began to watch, who was let in",
    "Stopping.received": "the program's own end; it names no run",
}
"""What asks nobody, and why."""


def services() -> list[type[Any]]:
    """The classes that a harness gives to its callers: those that its public methods return, and so on from there."""
    modules = [import_module("noetic_py.harness"), import_module("noetic_py.schedules")]
    for package in (noetic_py.runner, noetic_py.sessions):
        modules += [import_module(each.name) for each in iter_modules(package.__path__, f"{package.__name__}.")]
    known: dict[str, type[Any]] = {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isclass(kind) and kind.__module__ == module.__name__ and not has(kind) and not is_typeddict(kind)
    }
    found: list[type[Any]] = [Harness]
    for kind in found:
        for name in public(kind):
            member: Any = getattr(kind, name)
            member = member.fget if isinstance(member, property) else member
            for each in get_overloads(member) or [member]:
                words = re.findall(r"(?<![.\w])(?:registry\.)?(\w+)", str(signature(each).return_annotation))
                found += [known[word] for word in words if word in known and known[word] not in found]
    return found


def public(kind: type[Any]) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


def test_every_public_method_asks_or_says_why_not() -> None:
    found = {f"{kind.__name__}.{name}" for kind in services() for name in public(kind)}
    asking = {deed.method for deed in DEEDS}
    # These are of the store as a whole, and tested by themselves.
    asking |= {"Harness.reindex", "Runs.budgets", "Runs.describe", "Runs.queues", "Runs.stats", "Schedules.list"}
    assert asking | set(OPEN) == found | {"Harness.flows", "RunHandle.stream"}
    assert not asking & set(OPEN)


class Switch:
    """A policy that allows everything at first, and then gives or raises what it is set to."""

    def __init__(self) -> None:
        self.says: bool | Exception = True

    async def allows(self, request: AccessRequest) -> bool:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


ARGUMENTS: dict[str, Any] = {
    "step": hello, "input": "x", "run_id": "live", "value": "enough", "reason": "enough", "channel": LINE,
    "key": TRIP, "session": TRIP, "into": TRIP, "user": "ada", "message": "x", "kind": StateBag, "data": "{}",
    "name": "daily", "user_id": "ada", "answers": Answer("paying", "key", "approved"), "keep": 0,
}  # fmt: skip
"""What is given for a parameter of this name."""


async def called(method: Any) -> object:
    """What comes of a method that is called with `ARGUMENTS`, or the error."""
    args: list[Any] = []
    options: dict[str, Any] = {}
    for each in signature(method).parameters.values():
        if each.name not in ARGUMENTS:
            assert each.default is not each.empty or each.kind is each.VAR_KEYWORD, f"ARGUMENTS has no {each.name!r}"
        elif each.kind is each.KEYWORD_ONLY:
            options[each.name] = ARGUMENTS[each.name]
        else:
            args.append(ARGUMENTS[each.name])
    try:
        with anyio.fail_after(5):
            came: Any = method(*args, **options)
            if hasattr(came, "__aenter__"):
                async with came as entered:
                    return entered
            if isawaitable(came):
                return await came
            if hasattr(came, "__anext__"):
                return [event async for event in came]
            # A run that was started tells by its result that it was refused.
            return await came.result() if hasattr(came, "result") else came
    except (errors.NoeticError, TimeoutError) as error:
        return error


NOTHING: tuple[object, ...] = (None, 0, [])
"""What gives a list, or deletes, when there is nothing that the caller may read."""


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("acting", "says"),
    [(None, True), (ADMIN, OSError("down")), (ADMIN, False)],
    ids=["without a principal", "the policy raises", "the policy denies"],
)
async def test_every_public_method_is_denied(acting: Principal | None, says: bool | Exception) -> None:
    policy = Switch()
    async with a_world(InMemoryBackend(), policy) as world:
        harness, before = world.harness, await world.contents()
        given: list[Any] = [
            harness,
            harness.runs,
            harness.schedules,
            harness.sessions,
            harness.session("ada", "trip"),
            world.handle,
        ]
        instances: dict[type[Any], Any] = {type(each): each for each in [*given, world.handle.stream]}
        let_in: dict[str, object] = {}
        asking = [(kind, name) for kind in services() for name in public(kind) if f"{kind.__name__}.{name}" not in OPEN]
        policy.says = says
        try:
            for kind, name in asking:
                with nullcontext() if acting is None else acting_as(acting):
                    came = await called(getattr(instances[kind], name))
                hidden = type(came) is errors.RunNotFound or came in NOTHING
                if type(came) is not errors.AccessDenied and not (says is False and hidden):
                    let_in[f"{kind.__name__}.{name}"] = came
        finally:
            policy.says = True
        assert let_in == {}
        assert await world.contents() == before


def test_every_action_is_in_the_matrix() -> None:
    assert {action for deed in DEEDS for action in deed.needs} == ACTIONS


def may(principal: Principal, needs: frozenset[AccessAction], owner: str | None) -> bool:
    """Reckoned anew: all that is needed by its roles, with its own, or with everybody's."""
    every = frozenset[AccessAction]().union(*(ROLES[role] for role in principal.roles & ANY_OWNER))
    own = frozenset[AccessAction]().union(*(ROLES[role] for role in principal.roles))
    return all(need in every or (need in own and owner == principal.user_id) for need in needs)


async def done(deed: Deed, world: World, principal: Principal | None) -> object:
    """What comes back, or the error."""
    with nullcontext() if principal is None else acting_as(principal):
        try:
            return await deed.do(world)
        except errors.NoeticError as error:
            return error


def is_refusal(deed: Deed, came: object, *, seen: bool) -> bool:
    """Whether it is what somebody has to get who may not; `seen` says whether they may read it."""
    if deed.nothing is not ... and not seen:
        return came == deed.nothing
    if deed.method == "Runs.prune":
        return came == 0
    about_run = deed.method.split(".")[0] in {"Harness", "Runs"} and "read" in deed.needs and deed.keyed
    hidden = about_run and not seen and deed.method != "Harness.interrupt"
    return type(came) is (errors.RunNotFound if hidden else errors.AccessDenied)


@pytest.mark.anyio
@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: f"{deed.method}-{deed.do.__name__}")
async def test_every_role(deed: Deed) -> None:
    cells = [Principal(user, {role}) for role in ROLES for user in ("ada", "bob", None)]
    async with a_world(InMemoryBackend()) as world:
        before = await world.contents()
        for principal in cells:
            if not may(principal, deed.needs, "ada"):
                came = await done(deed, world, principal)
                seen = may(principal, frozenset({"read"}), "ada")
                assert is_refusal(deed, came, seen=seen), (principal, came)
                assert await world.contents() == before, principal
    # What may be done changes the world, so each does it in a new one; the sample has every other of them.
    allowed = [principal for principal in cells if may(principal, deed.needs, "ada")]
    for principal in allowed if FULL else allowed[::2]:
        async with a_world(InMemoryBackend()) as world:
            came = await done(deed, world, principal)
            assert not isinstance(came, errors.AccessDenied | errors.RunNotFound), principal
            assert deed.nothing in (..., None) or came != deed.nothing, principal


@asynccontextmanager
async def a_store(kind: str, folder: Path) -> AsyncGenerator[CheckpointBackend]:
    if kind == "memory":
        yield InMemoryBackend()
        return
    async with SqliteBackend(folder / "runs.db") as backend:
        yield backend


def told(came: object, names: dict[str, str]) -> str:
    """What was told, without the names that were asked for."""
    text = f"{type(came).__name__}: {came!r} {getattr(came, 'hint', '')}"
    for given, name in names.items():
        text = text.replace(repr(given), name)
    return text


@pytest.mark.anyio
@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("role", sorted(ROLES.keys() - ANY_OWNER))
async def test_what_is_another_s_is_as_if_it_were_not_there(store: str, role: str, tmp_path: Path) -> None:
    bob = Principal("bob", {role})
    async with a_store(store, tmp_path) as backend, a_world(backend) as world:
        there = {"stored": "S", "broken": "B", "paying": "P", "live": "L"}
        missing = evolve(
            world, stored="s-0", broken="b-0", paying="p-0", live="l-0",
            key=SessionKey("ada", "nowhere"), turning=SessionKey("ada", "never"),
        )  # fmt: skip
        absent = {"s-0": "S", "b-0": "B", "p-0": "P", "l-0": "L"}
        before = await world.contents()
        for deed in DEEDS:
            found, nothing = await done(deed, world, bob), await done(deed, missing, bob)
            assert told(found, there) == told(nothing, absent), deed.method
            assert "ada" not in str(found), deed.method
        assert await world.contents() == before


@pytest.mark.anyio
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_everybody_finds_their_own(store: str, tmp_path: Path) -> None:
    people = [f"user-{number}" for number in range(5)]
    async with a_store(store, tmp_path) as backend, a_harness(backend) as harness:
        for number in range(15):
            with acting_as(Principal(people[number % 5], {"operator"})):
                await harness.run(hello, "x", run_id=f"r{number}")
        for at, name in enumerate(people):
            with acting_as(Principal(name, {"operator"})):
                runs = await harness.runs.list(limit=2)
                assert [run.run_id for run in runs] == [f"r{10 + at}", f"r{5 + at}"]
                assert {run.user_id for run in await harness.runs.list(limit=None)} == {name}


MIXED = examples(150, 10_000)


class Remembering(Memory):
    """Keeps notes of a thread and of a person."""

    thread: WorkingMemory = WorkingMemory(id="thread", scope=Scope.THREAD)
    person: WorkingMemory = WorkingMemory(id="person", scope=Scope.USER)


@step
async def note(text: str | None, ctx: Context[Remembering, StateBag]) -> list[dict[str, str]]:
    """What is remembered, and one note more."""
    notes = [dict(ctx.memory.thread.snapshot), dict(ctx.memory.person.snapshot)]
    if text is not None:
        await ctx.memory.thread.update({"note": text})
        await ctx.memory.person.update({"note": text})
    return notes


@pytest.mark.anyio
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_nobody_recalls_what_another_has_said(store: str, tmp_path: Path) -> None:
    secret = {"note": "ada's"}
    async with (
        a_store(store, tmp_path) as backend,
        Harness(plugins=(), checkpoints=backend, access=POLICY, memory=Remembering()) as harness,
    ):
        with acting_as(Principal("ada", {"admin"})):
            await harness.run(note, "ada's", thread_id="hers")
            await harness.session("ada", "trip").run(note, "ada's")
            assert (await harness.run(note, None, thread_id="hers")).value == [secret, secret]
            assert (await harness.session("ada", "trip").run(note, None)).value == [secret, secret]
        stream = SessionKey("ada", "trip").stream
        ways: list[dict[str, Any]] = [
            {},
            {"run_id": "hers"},
            {"ctx": Context()},
            {"session": SessionKey("bob", "trip")},
            {"user_id": "ada"},
            {"thread_id": "hers"},
            {"thread_id": stream},
            {"run_id": stream},
            {"ctx": Context(thread_id="hers")},
            {"session": SessionKey("ada", "trip")},
            {"session": SessionKey("ada", "trip", app="")},
        ]
        let_in = 0
        for way in ways:
            with acting_as(Principal("bob", {"operator"})):
                try:
                    result: RunResult[Any, Any] = await harness.run(note, None, **way)
                except (errors.AccessDenied, errors.InvalidId):
                    continue
                let_in += 1
                assert result.value == [{}, {}], way
        assert let_in == 4


class Crowd:
    """Who does anything to anything, and whose everything is."""

    def __init__(self, harness: Harness[Any]) -> None:
        self.harness = harness
        self.dice = random.Random(SEED)  # a test's own dice
        self.people = [Principal(f"user-{number}", {"member", "auditor", "cleaner"}) for number in range(5)]
        self.owners: dict[str, str | None] = {}

    async def does(self, number: int) -> None:
        who = self.dice.choice(self.people)
        doing = self.dice.choice([self.begin, self.turn, self.list, self.delete, self.look, self.look])
        with acting_as(who):
            await doing(who.user_id, f"r{number}")

    async def begin(self, user: str | None, name: str) -> None:
        await self.harness.run(hello, "x", run_id=name)
        self.owners[name] = user

    async def turn(self, user: str | None, name: str) -> None:
        await self.harness.session(user, "s").run(hello, "x", run_id=name)
        self.owners[name] = user

    async def list(self, user: str | None, name: str) -> None:
        found = {run.run_id for run in await self.harness.runs.list(limit=None)}
        assert found == {run_id for run_id, owner in self.owners.items() if owner == user}
        other = self.dice.choice(self.people).user_id
        assert not await self.harness.sessions.list(other) or other == user

    async def delete(self, user: str | None, name: str) -> None:
        run_id = self.dice.choice([*self.owners, "nowhere"])
        await self.harness.runs.delete(run_id)
        if self.owners.get(run_id) == user:
            del self.owners[run_id]

    async def look(self, user: str | None, name: str) -> None:
        run_id = self.dice.choice([*self.owners, "nowhere"])
        runs = self.harness.runs
        doing: Any = self.dice.choice([runs.get, runs.journal, self.harness.fork, self.go_on])
        if self.owners.get(run_id) != user:
            with pytest.raises(errors.RunNotFound):
                await doing(run_id)
            return
        came = await doing(run_id)
        if isinstance(came, str):
            self.owners[came] = user

    async def go_on(self, run_id: str) -> RunResult[Any, Any]:
        return await self.harness.resume(run_id, hello)


@pytest.mark.anyio
@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_users_among_each_other(store: str, tmp_path: Path) -> None:
    """Five users do anything to anything: each sees what is their own, all of it, and nothing else."""
    policy = RoleAccess({**ROLES, "cleaner": {"delete", "fork"}}, any_owner=ANY_OWNER)
    async with a_store(store, tmp_path) as backend, a_harness(backend, policy) as harness:
        crowd = Crowd(harness)
        for number in range(MIXED):
            await crowd.does(number)
            if len(crowd.owners) > 40:
                # So that what is listed stays short.
                gone = crowd.dice.choice(sorted(crowd.owners))
                await backend.delete(gone)
                del crowd.owners[gone]


@pytest.mark.anyio
async def test_the_wrong_approver() -> None:
    strangers = [Principal("bob", {"approver"}), Principal("ada", {"operator"}), Principal("ada", {"viewer"}), None]
    async with a_world(InMemoryBackend()) as world:
        for number in range(TRIES):
            who = strangers[number % len(strangers)]
            answers: Any = await world.answers()
            if number % 3:
                answers = [evolve(each, by=["ada", "root", "bob"][number % 3]) for each in answers]
            for do in (
                lambda given=answers: world.harness.runs.answer(*given),
                lambda given=answers: world.harness.resume(world.paying, pays, answers=given),
            ):
                with nullcontext() if who is None else acting_as(who), pytest.raises(errors.NoeticError) as caught:
                    await do()
                assert type(caught.value) in (errors.AccessDenied, errors.RunNotFound)
        assert RAN == []
        with acting_as(Principal("ada", {"approver"})):
            result = await world.harness.resume(world.paying, pays, answers=await world.answers())
        assert (result.value, RAN) == ("paid 5", ["pay"])


def test_run_sync() -> None:
    RAN.clear()
    for role in ROLES:
        for user in ("ada", "bob"):
            harness = a_harness(InMemoryBackend())
            principal = Principal(user, {role})
            with acting_as(principal):
                if may(principal, frozenset({"run"}), "ada"):
                    assert harness.run_sync(hello, "x", user_id="ada").value == "x, ada"
                else:
                    with pytest.raises(errors.AccessDenied):
                        harness.run_sync(hello, "x", user_id="ada")
    with pytest.raises(errors.AccessDenied):
        a_harness(InMemoryBackend()).run_sync(hello, "x")
    assert len(RAN) == len([role for role in ROLES.values() if "run" in role]) + 1


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["stats", "describe"])
async def test_the_store_as_a_whole_is_for_those_who_may_read_everybody_s(name: str) -> None:
    async with a_world(InMemoryBackend()) as world:
        for role in ROLES:
            with acting_as(Principal("ada", {role})):
                ask = getattr(world.harness.runs, name)
                if role in ANY_OWNER:
                    assert await ask()
                else:
                    with pytest.raises(errors.AccessDenied):
                        await ask()
