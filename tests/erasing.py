"""A user with something in every place where the library stores, for the tests that erase them."""

from __future__ import annotations

from typing import Any

from noetic_py import Ask, Context, Harness, Memory, MemoryLayer, call_model, spawn, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.context.artifacts import ArtifactOwner, ArtifactScope, ArtifactStore, StoredArtifacts
from noetic_py.journal.stored import Record
from noetic_py.memory import Facts, Scope, SemanticRecall, WorkingMemory, function
from noetic_py.models.model import Model
from noetic_py.testing import Died, ScriptedModel
from noetic_py.testing.faults import When
from tests.layer_runs import Letters


class Shelf(MemoryLayer[dict[str, str]]):
    """A state, and a value beside it."""

    @function
    async def put(self, text: str) -> None:
        """Keep a text in both."""
        self.state = {**self.state, text: text}
        await self.storage.put(text, text)


class Mem(Memory):
    """A layer of each scope that has one owner, and layers with indexes of their own."""

    facts: Facts = Facts(scope=Scope.USER)
    notes: WorkingMemory = WorkingMemory()
    past: SemanticRecall = SemanticRecall(embedder=Letters(), scope=Scope.USER)
    here: SemanticRecall = SemanticRecall(embedder=Letters(), id="here")
    shelf: Shelf = Shelf(scope=Scope.USER, id="shelf")
    thread: Shelf = Shelf(id="thread")
    once: Shelf = Shelf(scope=Scope.EXECUTION, id="once")


class Others(Memory):
    """The bundle of a sub-agent, which the harness does not have."""

    desk: Shelf = Shelf(scope=Scope.USER, id="desk")


@step
async def inside(text: str, ctx: Context[Others]) -> str:
    await ctx.memory.desk.put(text)
    return text


@step
async def below(text: str, ctx: Context[Mem]) -> str:
    await ctx.memory.once.put(text)
    return text


@step
async def learn(text: str, ctx: Context[Mem]) -> str:
    said = f"We live in {text}."
    await ctx.memory.facts.record_from("letter", said, "user", "home", text, said)
    await ctx.memory.past.remember(said)
    await ctx.memory.here.remember(said)
    await ctx.memory.notes.update({"town": text})
    for shelf in (ctx.memory.shelf, ctx.memory.thread, ctx.memory.once):
        await shelf.put(text)
    scopes: tuple[ArtifactScope, ...] = ("session", "user", "run")
    for scope in scopes:
        await ctx.services[ArtifactStore].save(ArtifactOwner.of(ctx, scope), f"{text}.txt", text.encode() * 3)
    return text


@step
async def asks(text: str, ctx: Context[Mem]) -> str:
    return await ctx.ask(Ask(f"Where is {text}?", str))


@step
async def detaches(text: str, ctx: Context[Mem]) -> str:
    handle = ctx.spawn_detached(below, f"{text}, detached", owner="harness")
    return str(await handle.wait())


flow = learn >> spawn(below) >> spawn(inside, memory=Others()) >> call_model()
turn = learn >> call_model()


def harness_on(backend: CheckpointBackend | None, *, model: Model | None = None) -> Harness[Mem]:
    """A harness with all layers."""
    return Harness(
        memory=Mem(),
        checkpoints=backend,
        plugins=(),
        model=ScriptedModel(*["Fine."] * 400) if model is None else model,
        services={ArtifactStore: StoredArtifacts()},
    )


async def lives(harness: Harness[Mem], user: str, mark: str) -> None:
    """Let a user do everything; whatever they say has the mark in it."""
    await harness.run(flow, f"{mark}-town", user_id=user, run_id=f"{mark}-run", thread_id=f"{mark}-thread")
    await harness.run(detaches, f"{mark}-work", user_id=user, run_id=f"{mark}-detaching")
    await harness.run(asks, f"{mark}-key", user_id=user, run_id=f"{mark}-asking", thread_id=f"{mark}-thread")
    for app in (None, f"{mark}-app"):
        session = harness.session(user, f"{mark}-trip", app=app)
        await session.run(turn, f"{mark}-street", run_id=f"{mark}-turn-{app}")
        await session.send(f"{mark}-waits")
    await harness.session(user, f"{mark}-only-sent").send(f"{mark}-sent")
    # A context that was restored has a memory of its own.
    context: Context[Any, Any] = Context(thread_id=f"{mark}-other")
    await harness.run(turn, f"{mark}-road", ctx=context, user_id=user, run_id=f"{mark}-first")
    restored: Context[Any, Any] = Context.restore(context.snapshot())
    await harness.run(turn, f"{mark}-lane", ctx=restored, user_id=user, run_id=f"{mark}-second")


async def contents(backend: CheckpointBackend) -> list[object]:
    """All that a backend has."""
    found: list[object] = []
    for entry in await backend.list(limit=10_000):
        records: list[Record] = []
        while page := await backend.read(entry.run_id, after=len(records)):
            records += page
        found.append((entry.run_id, entry.status, entry.summary, entry.position, records))
    scopes = sorted(await backend.scopes(limit=10_000))
    return [*found, *[(scope, await backend.scan(scope, limit=10_000)) for scope in scopes]]


class DyingBackend(DelegatingBackend):
    """Another backend, and a process that dies at one of the writes by which something is deleted.

    Args:
        inner: The other backend.
        dies_at: At which write, counted from 1; 0 for never.
        when: Before it takes effect, or after.

    Attributes:
        writes: How many there were.
    """

    def __init__(self, inner: CheckpointBackend, dies_at: int = 0, when: When = "before") -> None:
        super().__init__(inner)
        self.writes: int = 0
        self._dies_at, self._when = dies_at, when

    def _count(self, when: When) -> None:
        self.writes += when == "before"
        if self.writes == self._dies_at and when == self._when:
            raise Died(f"at write {self.writes}")

    async def delete(self, run_id: str) -> None:
        self._count("before")
        await super().delete(run_id)
        self._count("after")

    async def remove(self, scope: tuple[str, ...], key: str, *, expected: int | None = None) -> bool:
        self._count("before")
        removed = await super().remove(scope, key, expected=expected)
        self._count("after")
        return removed
