"""Artifacts: named bytes with versions, kept for a session, a user or a run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from noetic_py import Context, Harness, InMemoryBackend, SessionKey, current_context, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.checkpoints.delegating import DelegatingBackend
from noetic_py.context.artifacts import Artifact, ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.errors import CodecError, ConfigError, InvalidId, LimitExceeded
from noetic_py.plugins import ServiceRegistry, hookimpl

pytestmark = pytest.mark.anyio

MINE = ArtifactOwner("session", "mine")


async def test_versions_are_saved_listed_loaded_and_forgotten(backend: CheckpointBackend) -> None:
    store: ArtifactStore = StoredArtifacts(backend)
    assert await store.load(MINE, "report.md") is None
    assert await store.versions(MINE, "report.md") == []
    assert await store.list(MINE) == []
    assert await store.save(MINE, "report.md", b"one", media_type="text/markdown") == 1
    two: Any = bytearray(b"two")
    chart: Any = memoryview(b"\x89PNG")
    assert await store.save(MINE, "report.md", two) == 2
    assert await store.save(MINE, "chart.png", chart, media_type="image/png") == 1
    assert await store.list(MINE) == ["chart.png", "report.md"]
    assert await store.versions(MINE, "report.md") == [1, 2]
    assert await store.load(MINE, "report.md") == Artifact("report.md", 2, b"two", "application/octet-stream")
    assert await store.load(MINE, "report.md", version=1) == Artifact("report.md", 1, b"one", "text/markdown")
    assert await store.load(MINE, "report.md", version=3) is None
    assert await store.delete(MINE, "report.md", version=2)
    assert not await store.delete(MINE, "report.md", version=2)
    assert await store.save(MINE, "report.md", b"three") == 3
    assert await store.versions(MINE, "report.md") == [1, 3]
    assert await store.delete(MINE, "report.md")
    assert not await store.delete(MINE, "report.md")
    assert await store.list(MINE) == ["chart.png"]
    assert (await backend.stats()).values == 2


async def test_the_same_key_takes_the_place_of_what_was_saved_with_it(backend: CheckpointBackend) -> None:
    store = StoredArtifacts(backend)
    assert await store.save(MINE, "a", b"one", key="k") == 1
    assert await store.save(MINE, "a", b"two", key="other") == 2
    assert await store.save(MINE, "a", b"again", media_type="text/plain", key="k") == 1
    assert await store.load(MINE, "a", version=1) == Artifact("a", 1, b"again", "text/plain")
    assert await store.versions(MINE, "a") == [1, 2]
    # Of another name it is another one.
    assert await store.save(MINE, "b", b"one", key="k") == 1


HOSTILE = [
    "../../etc/passwd",
    "/absolute",
    "..",
    ".",
    "a/b",
    "a\\b",
    "C:\\x",
    "con",
    "näme",
    "na\u0308me",
    "A",
    "a",
    "%2e%2e",
    "'; drop table runs; --",
    " ",
    "x" * 1024,
    "🗎" * 200,
    '{"a": 1}',
]


async def test_names_and_owners_are_data(backend: CheckpointBackend, tmp_path: Path) -> None:
    store = StoredArtifacts(backend)
    before = {path for path in tmp_path.parent.rglob("*") if not path.is_relative_to(tmp_path)}
    for name in HOSTILE:
        await store.save(MINE, name, name.encode())
        await store.save(ArtifactOwner("session", name), "same", name.encode())
        await store.save(ArtifactOwner("user", name), "same", b"user " + name.encode())
    assert await store.list(MINE) == sorted(HOSTILE)
    for name in HOSTILE:
        mine = await store.load(MINE, name)
        theirs = await store.load(ArtifactOwner("session", name), "same")
        user = await store.load(ArtifactOwner("user", name), "same")
        assert mine is not None
        assert theirs is not None
        assert user is not None
        assert (mine.data, theirs.data, user.data) == (name.encode(), name.encode(), b"user " + name.encode())
        assert await store.list(ArtifactOwner("run", name)) == []
    assert {path for path in tmp_path.parent.rglob("*") if not path.is_relative_to(tmp_path)} == before


@pytest.mark.parametrize("name", ["", "a\nb", "a\0b", "\ud800", "x" * 1025, 7])
async def test_what_is_no_name_is_refused_and_nothing_is_stored(name: Any) -> None:
    backend = InMemoryBackend()
    store = StoredArtifacts(backend)
    with pytest.raises(InvalidId):
        await store.save(MINE, name, b"x")
    with pytest.raises(InvalidId):
        await store.save(ArtifactOwner("session", name), "a", b"x")
    with pytest.raises(InvalidId):
        await store.save(MINE, "a", b"x", media_type=name)
    assert (await backend.stats()).values == 0


async def test_sizes_and_versions_are_limited_by_name() -> None:
    backend = InMemoryBackend()
    store = StoredArtifacts(backend, max_bytes=3, max_versions=2)
    for data in (b"four", memoryview(b"four")):
        with pytest.raises(LimitExceeded, match="bytes of an artifact is limited to 3"):
            await store.save(MINE, "a", data)  # type: ignore[arg-type] # a view of bytes does too
    with pytest.raises(ConfigError, match="str, not bytes") as refused:
        await store.save(MINE, "a", "text")  # type: ignore[arg-type] # refused
    assert refused.value.code == "artifact"
    await store.save(MINE, "a", b"1", key="k")
    await store.save(MINE, "a", b"2")
    with pytest.raises(LimitExceeded, match="versions of an artifact is limited to 2"):
        await store.save(MINE, "a", b"3")
    # The same version again is no more.
    assert await store.save(MINE, "a", b"4", key="k") == 1
    assert (await backend.stats()).values == 3
    wrong: list[dict[str, Any]] = [{"max_bytes": 0}, {"max_bytes": 1 << 30}, {"max_versions": 0}]
    for limits in wrong:
        with pytest.raises(ConfigError, match="out of range"):
            StoredArtifacts(**limits)


async def test_many_writers_get_a_version_each(backend: CheckpointBackend) -> None:
    store = StoredArtifacts(backend, max_versions=12)
    made: list[int] = []
    refused: list[str] = []

    async def write(number: int) -> None:
        try:
            made.append(await store.save(MINE, "a", str(number).encode()))
        except LimitExceeded as error:
            refused.append(error.what)

    async with anyio.create_task_group() as group:
        for number in range(15):
            group.start_soon(write, number)
    assert sorted(made) == list(range(1, 13))
    assert len(refused) == 3
    found = [await store.load(MINE, "a", version=version) for version in made]
    assert len({each.data for each in found if each is not None}) == 12
    # Whoever came too late has left nothing.
    assert (await backend.stats()).values == 13


class Racing(DelegatingBackend):
    """A backend in which somebody else saves just before an index is written."""

    def __init__(self, inner: CheckpointBackend, others: int) -> None:
        super().__init__(inner)
        self._others = others

    async def put(self, scope: tuple[str, ...], key: str, value: bytes, *, expected: int | None = None) -> int:
        if expected is not None and self._others:
            self._others -= 1
            await StoredArtifacts(self._inner).save(MINE, key, b"theirs")
        return await super().put(scope, key, value, expected=expected)

    async def remove(self, scope: tuple[str, ...], key: str, *, expected: int | None = None) -> bool:
        if expected is not None and self._others:
            self._others -= 1
            await StoredArtifacts(self._inner).save(MINE, key, b"theirs")
        return await super().remove(scope, key, expected=expected)


async def test_who_loses_a_race_takes_the_next_number_or_leaves_nothing() -> None:
    inner = InMemoryBackend()
    assert await StoredArtifacts(Racing(inner, 2)).save(MINE, "a", b"mine") == 3
    with pytest.raises(LimitExceeded):
        await StoredArtifacts(Racing(inner, 1), max_versions=4).save(MINE, "a", b"late")
    assert (await inner.stats()).values == 5
    assert await StoredArtifacts(Racing(inner, 1)).delete(MINE, "a")
    assert (await inner.stats()).values == 0


async def test_what_is_no_index_is_told_by_name() -> None:
    backend = InMemoryBackend()
    store = StoredArtifacts(backend)
    await store.save(MINE, "a", b"x")
    for broken in (b"{", b"7", b"[1]", b'["x", []]', b"[1, [[1]]]"):
        await backend.put(("artifacts", "session", "mine"), "a", broken)
        with pytest.raises(CodecError, match="artifact a: is not a valid index of versions"):
            await store.load(MINE, "a")


async def test_bytes_that_are_gone_are_no_artifact() -> None:
    backend = InMemoryBackend()
    store = StoredArtifacts(backend)
    await store.save(MINE, "a", b"x")
    for value in await backend.scan(("artifacts", "session", "mine", "a")):
        await backend.remove(("artifacts", "session", "mine", "a"), value.key)
    assert await store.load(MINE, "a") is None


# ---------------------------------------------------------------------------------------------------------- in a run


@step
async def write(text: str, ctx: Context[Any, Any]) -> list[str]:
    store = ctx.services[ArtifactStore]
    for scope in ("session", "user", "run"):
        with contextlib.suppress(ConfigError):
            await store.save(ArtifactOwner.of(ctx, scope), "note.txt", text.encode())
    return [f"{scope}:{len(await store.versions(ArtifactOwner(scope, _id(scope)), 'note.txt'))}" for scope in (
        "session", "user", "run",
    )]  # fmt: skip


def _id(scope: str) -> str:
    ctx = current_context(required=True)
    return {"session": ctx.thread_id, "user": ctx.user_id or "nobody", "run": ctx.run_id}[scope]


async def test_a_store_without_a_backend_keeps_them_where_the_harness_keeps_its_runs(
    backend: CheckpointBackend,
) -> None:
    async with Harness(checkpoints=backend, services={ArtifactStore: StoredArtifacts()}) as harness:
        first = await harness.run(write, "hi", thread_id="t", user_id="ada")
        again = await harness.run(write, "ho", thread_id="t", user_id="ada")
        other = await harness.run(write, "ha", thread_id="t")
    assert first.value == ["session:1", "user:1", "run:1"]
    assert again.value == ["session:2", "user:2", "run:1"]
    assert other.value == ["session:3", "user:0", "run:1"]
    found = await StoredArtifacts(backend).load(ArtifactOwner("user", "ada"), "note.txt")
    assert found is not None
    assert found.data == b"ho"


async def test_a_session_has_artifacts_that_no_other_user_or_application_sees() -> None:
    backend = InMemoryBackend()
    async with Harness(checkpoints=backend, services={ArtifactStore: StoredArtifacts()}) as harness:
        for key in (SessionKey("ada", "chat"), SessionKey("bob", "chat"), SessionKey("ada", "chat", app="other")):
            result = await harness.run(write, "hi", session=key)
            assert result.value[0] == "session:1"
            found = await StoredArtifacts(backend).load(ArtifactOwner("session", key.stream), "note.txt")
            assert found is not None


async def test_a_harness_without_a_backend_keeps_them_as_long_as_it_lives() -> None:
    shared = StoredArtifacts()
    async with Harness(services={ArtifactStore: shared}) as one, Harness(services={ArtifactStore: shared}) as two:
        assert (await one.run(write, "hi", thread_id="t")).value[0] == "session:1"
        assert (await one.run(write, "hi", thread_id="t")).value[0] == "session:2"
        assert (await two.run(write, "hi", thread_id="t")).value[0] == "session:1"
        # A run may bring its own.
        mine = StoredArtifacts(InMemoryBackend())
        result = await one.run(write, "hi", thread_id="t", services={ArtifactStore: mine})
        assert result.value[0] == "session:1"
    with pytest.raises(ConfigError, match="no backend") as refused:
        await shared.list(MINE)
    assert refused.value.code == "no-backend"


async def test_a_plugin_may_bring_the_store() -> None:
    class Plugin:
        @hookimpl
        def register_services(self, registry: ServiceRegistry) -> None:
            registry.service(ArtifactStore, StoredArtifacts())

    async with Harness(plugins=[Plugin()]) as harness:
        assert (await harness.run(write, "hi")).value[0] == "session:1"


async def test_a_scope_needs_somebody_who_has_it() -> None:
    outside: Context[Any, Any] = Context(thread_id="t")
    assert ArtifactOwner.of(outside) == ArtifactOwner("session", "t")
    for scope in ("user", "team"):
        with pytest.raises(ConfigError) as refused:
            ArtifactOwner.of(outside, scope)  # type: ignore[arg-type] # one of them is none
        assert refused.value.code == "artifact-scope"
