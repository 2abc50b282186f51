"""`harness.erase`: nothing of a user is left, everything of the others is, and a call that was cut short goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import (
    Channel,
    Context,
    Handoff,
    Harness,
    InMemoryBackend,
    Memory,
    SessionKey,
    acting_as,
    spawn,
    step,
)
from noetic_py.access import AccessRequest, Principal
from noetic_py.checkpoints import CheckpointBackend, FileBackend, SqliteBackend
from noetic_py.checkpoints.signed import SignedBackend
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.errors import AccessDenied, ConfigError, InvalidId, RunBusy
from noetic_py.memory import Scope, SemanticRecall
from noetic_py.memory.scopes import Owner
from noetic_py.sessions.erasure import ErasureCertificate
from noetic_py.testing import Died, VirtualRuntime
from noetic_py.testing.faults import When
from tests.erasing import DyingBackend, Shelf, contents, harness_on, lives, turn
from tests.layer_runs import Letters
from tests.properties.checks import FULL, SEED, examples
from tests.test_checkpoints_signed import Sum, Veil
from tests.test_memory_layers_semantic import Recorded, TopicEmbedder

pytestmark = pytest.mark.anyio

MAKES: dict[str, Callable[[Path], CheckpointBackend]] = {
    "memory": lambda folder: InMemoryBackend(),
    "sqlite": lambda folder: SqliteBackend(folder / "runs.db"),
    "files": lambda folder: FileBackend(folder / "runs"),
    "signed": lambda folder: SignedBackend(InMemoryBackend(), [Sum(), Veil()]),
}
LINE = Channel("line", int, external=True)


def holding(folder: Path, mark: bytes) -> list[str]:
    """The files in which some bytes are."""
    return [path.name for path in folder.rglob("*") if path.is_file() and mark in path.read_bytes()]


@pytest.mark.parametrize("kind", MAKES)
async def test_nothing_of_the_user_is_left_and_all_of_the_others(kind: str, tmp_path: Path) -> None:
    async with MAKES[kind](tmp_path) as backend:
        async with harness_on(backend) as harness:
            await lives(harness, "bob", "KEPT")
            others = await contents(backend)
            assert "GONE" not in repr(others)
            await lives(harness, "ann", "GONE")
            assert repr(await contents(backend)).count("GONE") > 100
            assert bool(holding(tmp_path, b"GONE")) == (kind in ("sqlite", "files"))
            found = await harness.erase("ann")
            assert await contents(backend) == others
            assert holding(tmp_path, b"GONE") == []
            assert await harness.sessions.list("ann") == []
            assert await harness.dump_memory(user_id="ann") == {}
        assert found.user_id == "ann"
        assert found.backend == ("memory" if kind == "signed" else kind)
        assert set(found.removed) == {"artifacts", "memory", "messages", "records", "runs", "sessions"}
        assert (found.removed["runs"], found.removed["sessions"], found.removed["messages"]) == (8, 2, 3)
        assert any("backups" in each for each in found.remaining)
    assert holding(tmp_path, b"GONE") == []


async def test_of_a_harness_without_a_backend_all_is_erased_too() -> None:
    async with harness_on(None) as harness:
        await harness.session("ann", "trip").run(turn, "GONE")
        await harness.session("ann", "trip").send("GONE")
        await harness.run(turn, "GONE", user_id="ann", run_id="r")
        assert harness.explain_view("r").blocks
        found = await harness.erase("ann")
        assert (found.backend, found.removed["sessions"], found.removed["messages"]) == ("memory", 1, 1)
        assert list(await harness.session("ann", "trip").items()) == []
        assert await harness.dump_memory(user_id="ann", thread_id=SessionKey("ann", "trip").stream) == {}
        assert (await harness.erase("ann")).removed == {}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_call_that_was_killed_anywhere_comes_to_the_same_when_it_is_made_again(when: When) -> None:
    async def lived() -> tuple[InMemoryBackend, list[object]]:
        backend = InMemoryBackend()
        async with harness_on(backend) as harness:
            await lives(harness, "bob", "KEPT")
            others = await contents(backend)
            await lives(harness, "ann", "GONE")
        return backend, others

    backend, others = await lived()
    whole = DyingBackend(backend)
    await harness_on(whole).erase("ann")
    assert await contents(backend) == others
    points = range(1, whole.writes + 1)
    assert whole.writes > 50
    chosen = random.Random(f"{SEED} {when}").sample(points, examples(sample=2, full=len(points)))
    for at in sorted(chosen):
        backend, others = await lived()
        with pytest.raises(Died):
            await harness_on(DyingBackend(backend, at, when)).erase("ann")
        assert "GONE" in repr(await contents(backend)) or at == whole.writes
        again = await harness_on(backend).erase("ann")
        assert await contents(backend) == others, f"NOETIC_SEED={SEED}, killed {when} write {at} of {whole.writes}"
        assert again.remaining


HOSTILE: Sequence[Sequence[str]] = (
    ("ann", "anna", "ann/x", "an", "Ann", "ann ", " ann", "ann:1", "ann\u0301"),
    ("ann/x", "ann", "x", "ann\\x"),
    ("user", "state", "data", "memory", "layer", "sessions", "-"),
    ("%", "_", "*", "?", "%_", "[a]"),
    ("a,b", "a", "b", "['a', 'b']", "a|b", "a b"),
    ("\u6f22", "\u6f22\u5b57", "\U0001f388", "\u00e9", "e\u0301"),
    ("'; DROP TABLE pairs; --", "'", '"', "null", "None", "0"),
    ("../ann", "ann", ".", "..", "/"),
)


# In the sample the kinds take turns; `tests/security/test_ids.py` has all hostile ids in each store.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param((users, kind), id=f"{number}-{kind}")
        for number, users in enumerate(HOSTILE)
        for kind in (MAKES if FULL else (tuple(MAKES)[number % len(MAKES)],))
    ],
)
async def test_only_the_one_user_is_erased_whatever_their_id_is(
    case: tuple[Sequence[str], str], tmp_path: Path
) -> None:
    (erased, *others), kind = case
    async with MAKES[kind](tmp_path) as backend, harness_on(backend) as harness:
        for number, user in enumerate(others):
            await harness.session(user, "trip").run(turn, f"kept {number}")
            await harness.session(user, erased, app=erased).send("kept")
            await harness.run(turn, "kept", user_id=user, thread_id=f"{erased}-{number}", run_id=f"{erased}{number}")
            await harness.session(None, erased).send("kept")
        before = await contents(backend)
        await harness.session(erased, "trip").run(turn, "gone")
        await harness.run(turn, "gone", user_id=erased)
        assert await contents(backend) != before
        await harness.erase(erased)
        assert await contents(backend) == before


async def test_a_user_with_a_run_that_goes_on_is_refused_and_nothing_is_erased(backend: CheckpointBackend) -> None:
    began = anyio.Event()

    @step
    async def waits(text: str, ctx: Context) -> str:
        began.set()
        return f"{text} {await ctx.recv(LINE, timeout=float('inf'))}"

    async with Harness(checkpoints=backend, plugins=()) as harness, Harness(checkpoints=backend, plugins=()) as other:
        await harness.run(turn_without, "a", user_id="ann", run_id="old")
        for run_id, session in (("live", None), ("turning", SessionKey("ann", "trip"))):
            began = anyio.Event()
            options: dict[str, Any] = {"user_id": "ann"} if session is None else {"session": session}
            handle = harness.start(waits, "a", run_id=run_id, on_error="result", **options)
            with anyio.fail_after(10):
                await began.wait()
            # In the harness that runs it, and in one of another process.
            for one in (harness, other):
                with pytest.raises(RunBusy) as refused:
                    await one.erase("ann")
                assert run_id in refused.value.message or "'trip'" in refused.value.message
                assert "erase again" in str(refused.value)
                assert await backend.entry("old") is not None
                # Other users are not concerned.
                await one.erase("bob")
            handle.abort("over")
            await handle.result()
        await harness.erase("ann")
        assert await contents(backend) == []


@step
async def turn_without(text: str) -> str:
    return text


async def test_threads_that_no_run_names_any_more_are_named_by_the_caller() -> None:
    backend = InMemoryBackend()
    async with harness_on(backend) as harness:
        await harness.run(turn, "GONE", user_id="ann", thread_id="harbour", run_id="r")
        # As earlier releases deleted a run, and as a process leaves it that dies while it deletes one.
        await backend.delete("r")
        await harness.erase("ann")
        assert "GONE" in repr(await contents(backend))
        found = await harness.erase("ann", thread_ids=["harbour"])
        assert set(found.removed) == {"artifacts", "memory"}
        # What was kept for the run alone says of whom it is no more than the run, which is gone.
        assert {scope[-2:] for scope in await backend.scopes()} == {("r", "once"), ("run", "r"), ("r", "GONE.txt")}
        assert any("run 'r', which was deleted before" in each for each in found.remaining)


async def test_the_session_of_another_user_is_not_the_thread_of_whoever_names_it() -> None:
    backend = InMemoryBackend()
    async with harness_on(backend) as harness:
        await harness.session("bob", "trip").run(turn, "kept")
        others = await contents(backend)
        stream = SessionKey("bob", "trip").stream
        await harness.erase("ann", thread_ids=[stream])
        assert await contents(backend) == others


async def test_what_cannot_be_reached_is_said() -> None:
    class Everyone(Memory):
        rules: Shelf = Shelf(scope=Scope.GLOBAL)

    @step
    async def states(text: str, ctx: Context[Everyone]) -> None:
        await ctx.memory.rules.put(text)

    backend = InMemoryBackend()
    await backend.append("odd", expected_position=0, fence=0, records=[], summary=b"not JSON")
    async with Harness(memory=Everyone(), checkpoints=backend, plugins=()) as harness:
        await harness.run(states, "a", user_id="ann")
    # Of layers that the harness does not have any more, too.
    async with Harness(checkpoints=backend, plugins=()) as later:
        found = await later.erase("ann")
    assert any("layer 'rules'" in each and "all users" in each for each in found.remaining)
    assert any("'odd'" in each and "harness.runs.delete" in each for each in found.remaining)
    assert await backend.entry("odd") is not None


async def test_a_certificate_says_when() -> None:
    runtime = VirtualRuntime()
    async with Harness(runtime=runtime, plugins=()) as harness:
        found = await harness.erase("ann")
    assert isinstance(found, ErasureCertificate)
    assert found.erased_at == runtime.now()
    assert datetime(2000, 1, 1, tzinfo=UTC) < found.erased_at


async def test_layers_with_a_database_of_their_own_are_asked() -> None:
    asked: list[Owner] = []

    class Elsewhere(Shelf):
        async def erase_owner(self, owner: Owner) -> int:
            asked.append(owner)
            return 7 if len(asked) == 1 else 0

        async def scrub(self) -> Sequence[str]:
            return ["a shelf", "copies of them"]

    class Database(Recorded):
        async def forget(self, owner: Owner, where: Mapping[str, str] | None = None, /) -> int:
            asked.append(owner)
            return 0

    class Bundle(Memory):
        ours: Elsewhere = Elsewhere(scope=Scope.USER)
        theirs: Elsewhere = Elsewhere(id="theirs")
        past: SemanticRecall = SemanticRecall(embedder=Letters(), vectors=Database(), scope=Scope.USER)

    async with Harness(memory=Bundle(), plugins=(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(turn_without, "a", user_id="ann", thread_id="t")
        found = await harness.erase("ann")
    assert set(asked) == {
        Owner(Scope.USER, "ann", "ours"),
        Owner(Scope.USER, "ann", "past"),
        Owner(Scope.THREAD, "t", "theirs"),
    }
    assert found.removed["passages"] == 7
    assert found.remaining[:3] == ("a shelf", "copies of them", "the lists' files: end the process")


class Desk(Memory):
    """The bundle of a sub-agent, with a database."""

    past: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), scope=Scope.USER)
    here: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), id="here")


def desk_of(database: Recorded) -> Desk:
    return Desk(
        past=SemanticRecall(embedder=TopicEmbedder(), vectors=database, scope=Scope.USER),
        here=SemanticRecall(embedder=TopicEmbedder(), vectors=database, id="here"),
    )


@step
async def at_desk(text: str, ctx: Context[Desk]) -> str:
    await ctx.memory.past.remember(text)
    await ctx.memory.here.remember(text)
    return text


@step
async def ends(text: str, ctx: Context) -> str:
    return text


HERE, THREAD = Owner(Scope.USER, "ann", "past"), Owner(Scope.THREAD, "t", "here")


@pytest.mark.parametrize("how", ["spawned", "transferred", "detached", "registered"])
async def test_databases_of_sub_agents_are_erased_too(how: str) -> None:
    database, backend = Recorded(), InMemoryBackend()
    desk = desk_of(database)
    agent = spawn(at_desk, memory=desk)

    @step
    async def detaches(text: str, ctx: Context) -> str:
        return (await ctx.spawn_detached(at_desk, text, memory=desk).wait()).value or ""

    @step(handoffs=[agent])
    async def transfers(text: str, ctx: Context) -> Handoff[str]:
        return Handoff(agent, text)

    flow = {"detached": detaches, "transferred": transfers}.get(how, ends >> agent)
    async with Harness(plugins=(), checkpoints=backend) as harness:
        for user, thread in (("ann", "t"), ("bob", "u")):
            await harness.run(flow, "The tide is high.", user_id=user, thread_id=thread)
        assert {HERE, THREAD} <= database.kept.keys()
        later = Harness(plugins=(), checkpoints=backend, flows={"desk": flow})
        found = await (later if how == "registered" else harness).erase("ann")
    assert set(database.kept) == {Owner(Scope.USER, "bob", "past"), Owner(Scope.THREAD, "u", "here")}
    assert found.removed["passages"] == 2
    assert found.remaining[:2] == ("the lists' files: end the process", "copies of them")
    assert not any("does not know" in each for each in found.remaining)


async def test_what_children_keep_for_themselves_is_named() -> None:
    database = Recorded()

    class Once(Memory):
        once: SemanticRecall = SemanticRecall(embedder=TopicEmbedder(), vectors=database, scope=Scope.EXECUTION)

    @step
    async def keeps(text: str, ctx: Context[Once]) -> str:
        await ctx.memory.once.remember(text)
        return text

    async with Harness(memory=Once(), plugins=(), checkpoints=InMemoryBackend()) as harness:
        await harness.run(keeps, "The tide is high.", user_id="ann", run_id="alone")
        await harness.run(keeps >> spawn(keeps), "The tide is high.", user_id="ann", run_id="both")
        found = await harness.erase("ann")
    [left] = database.kept
    assert (left.scope, left.layer) == (Scope.EXECUTION, "once")
    [said] = [each for each in found.remaining if "'once'" in each]
    assert "remove there what children of the user's runs have" in said


@pytest.mark.parametrize("when", ["before", "after"])
async def test_databases_of_which_the_harness_does_not_know_are_named_also_after_a_kill(when: When) -> None:
    async def lived() -> InMemoryBackend:
        backend = InMemoryBackend()
        async with Harness(plugins=(), checkpoints=backend, memory=Slip()) as harness:
            await harness.run(flow, "The tide is high.", user_id="ann", thread_id="t", run_id="r")
        return backend

    class Slip(Memory):
        shelf: Shelf = Shelf()

    class Later(Memory):
        """The harness's bundle of a later release."""

        shelf: Shelf = Shelf()
        more: Shelf = Shelf(id="more")

    database = Recorded()
    flow = ends >> spawn(at_desk, memory=desk_of(database))
    whole = DyingBackend(await lived())
    found = await Harness(plugins=(), checkpoints=whole, memory=Later()).erase("ann")
    named = [each for each in found.remaining if "does not know" in each]
    assert named == [
        f"layer {name!r} is of a bundle that this harness does not know: if it has a database of its own, await "
        f"layer.erase_owner(Owner(layer.scope, id, {name!r})) with each id of 'ann', 'r', 't'"
        for name in ("here", "past")
    ]
    # All but the notes are gone, and these are, too.
    assert await contents(whole) == []
    for at in range(1, whole.writes):
        backend = await lived()
        with pytest.raises(Died):
            await Harness(plugins=(), checkpoints=DyingBackend(backend, at, when), memory=Later()).erase("ann")
        again = await Harness(plugins=(), checkpoints=backend, memory=Later()).erase("ann")
        # Notes are removed last, and one by one.
        assert set(named) >= {each for each in again.remaining if "does not know" in each}
        assert at >= whole.writes - 1 or set(named) <= set(again.remaining)
        assert await contents(backend) == []
    for owner in (HERE, THREAD):
        await desk_of(database)[owner.layer].erase_owner(owner)
    assert database.kept == {}


async def test_artifacts_are_erased_wherever_their_store_has_them() -> None:
    apart = InMemoryBackend()
    stored = StoredArtifacts(apart)

    class Forwarding:
        """A store of a user's own, over nothing but the protocol."""

        def __getattr__(self, name: str) -> Any:
            return getattr(stored, name)

    for store in (stored, Forwarding()):
        services: dict[type[Any], object] = {ArtifactStore: store}
        async with Harness(checkpoints=InMemoryBackend(), services=services, plugins=()) as harness:
            await harness.run(turn_without, "a", user_id="ann", run_id="r", thread_id="t")
            owners = (ArtifactOwner("user", "ann"), ArtifactOwner("session", "t"), ArtifactOwner("run", "r"))
            for owner in (*owners, ArtifactOwner("user", "anna")):
                await stored.save(owner, "page", b"text")
            found = await harness.erase("ann")
            assert [await stored.list(owner) for owner in owners] == [[], [], []]
            assert found.removed["artifacts"] >= 3
            assert await stored.list(ArtifactOwner("user", "anna")) == ["page"]


@pytest.mark.parametrize("user", ["", "a\n", "a" * 300, None])
async def test_an_id_that_cannot_be_one_is_refused(user: Any) -> None:
    async with Harness(plugins=()) as harness:
        with pytest.raises(InvalidId):
            await harness.erase(user)
        with pytest.raises(InvalidId):
            await harness.erase("ann", thread_ids=[user])
        with pytest.raises(ConfigError, match="list of threads"):
            await harness.erase("ann", thread_ids="harbour")


async def test_the_policy_is_asked_for_the_user_and_for_each_thread() -> None:
    class Own:
        async def allows(self, request: AccessRequest) -> bool:
            return request.owner == request.principal.user_id and request.thread_id is None

    async with Harness(checkpoints=InMemoryBackend(), access=Own(), plugins=()) as harness:
        with acting_as(Principal("ann")):
            await harness.erase("ann")
            with pytest.raises(AccessDenied):
                await harness.erase("bob")
            with pytest.raises(AccessDenied):
                await harness.erase("ann", thread_ids=["harbour"])
