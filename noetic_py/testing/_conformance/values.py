"""Cases of scoped values."""

from __future__ import annotations

import pytest

from noetic_py.checkpoints.checks import MAX_BYTES
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import ConfigError, InvalidId, LimitExceeded, VersionConflict
from noetic_py.journal.stored import StoredValue
from noetic_py.testing._conformance.base import SCOPE, Suite, equal

TWINS = [
    (("a:b", "c"), ("a", "b:c")),
    (("a", "b"), ("a", "b", "c")),
    (("a/b",), ("a", "b")),
    (("ab",), ("a", "b")),
    (("a,b",), ("a", "b")),
    (("a|b",), ("a", "b")),
    (("a__b",), ("a", "b")),
    (("a b",), ("a", "b")),
    (("['a', 'b']",), ("a", "b")),
    (("1", "1"), ("11",)),
    (("a", "a"), ("a", "a", "a")),
    (("%61",), ("a",)),
]


async def all_scopes(backend: CheckpointBackend, prefix: tuple[str, ...] = (), *, limit: int) -> list[tuple[str, ...]]:
    """All scopes, page by page, sorted."""
    found: list[tuple[str, ...]] = []
    while page := await backend.scopes(prefix, after=found[-1] if found else None, limit=limit):
        if len(page) > limit:
            pytest.fail(f"a page of {limit} holds {len(page)}")
        found += page
    return sorted(found)


class Values(Suite):
    async def test_what_was_put_comes_back(self, backend: CheckpointBackend) -> None:
        equal(await backend.get(SCOPE, "k"), None)
        version = await backend.put(SCOPE, "k", b"\0one\xff")
        equal(version > 0, True)
        equal(await backend.get(SCOPE, "k"), StoredValue("k", b"\0one\xff", version))

    @pytest.mark.parametrize("size", [0, 1, 4096, 65537, 1_000_003])
    async def test_values_of_any_size(self, backend: CheckpointBackend, size: int) -> None:
        await backend.put(SCOPE, "k", b"v" * size)
        found = await backend.get(SCOPE, "k")
        equal(None if found is None else found.value == b"v" * size, True)

    async def test_a_value_that_is_too_large(self, backend: CheckpointBackend) -> None:
        with pytest.raises(LimitExceeded):
            await backend.put(SCOPE, "k", bytes(MAX_BYTES + 1))
        equal(await backend.get(SCOPE, "k"), None)

    async def test_every_write_has_a_version_of_its_own(self, backend: CheckpointBackend) -> None:
        versions = [await backend.put(SCOPE, "k", b"same") for _ in range(4)]
        await backend.remove(SCOPE, "k")
        versions += [await backend.put(SCOPE, "k", b"same"), await backend.put(SCOPE, "other", b"same")]
        equal(len(set(versions)), 6)

    async def test_only_the_expected_version_is_replaced(self, backend: CheckpointBackend) -> None:
        first = await backend.put(SCOPE, "k", b"one", expected=0)
        second = await backend.put(SCOPE, "k", b"two", expected=first)
        for stale in (0, first, second + 1, -1, 2**70):
            with pytest.raises(VersionConflict):
                await backend.put(SCOPE, "k", b"stale", expected=stale)
            with pytest.raises(VersionConflict):
                await backend.remove(SCOPE, "k", expected=stale)
        equal(await backend.get(SCOPE, "k"), StoredValue("k", b"two", second))

    async def test_a_version_is_expected_of_nothing(self, backend: CheckpointBackend) -> None:
        with pytest.raises(VersionConflict):
            await backend.put(SCOPE, "k", b"v", expected=1)
        with pytest.raises(VersionConflict):
            await backend.remove(SCOPE, "k", expected=1)
        equal(await backend.get(SCOPE, "k"), None)

    async def test_an_old_version_never_comes_back(self, backend: CheckpointBackend) -> None:
        old = await backend.put(SCOPE, "k", b"v")
        await backend.remove(SCOPE, "k")
        await backend.put(SCOPE, "k", b"v")
        with pytest.raises(VersionConflict):
            await backend.put(SCOPE, "k", b"stale", expected=old)

    async def test_removing(self, backend: CheckpointBackend) -> None:
        equal(await backend.remove(SCOPE, "k"), False)
        equal(await backend.remove(SCOPE, "k", expected=0), False)
        version = await backend.put(SCOPE, "k", b"v")
        equal(await backend.remove(SCOPE, "k", expected=version), True)
        equal(await backend.remove(SCOPE, "k"), False)
        equal(await backend.get(SCOPE, "k"), None)
        equal((await backend.stats()).values, 0)

    @pytest.mark.parametrize("limit", [1, 2, 6, 7, 100, 2**80])
    async def test_a_scan_goes_by_code_points(self, backend: CheckpointBackend, limit: int) -> None:
        keys = ["b", "a", "B", "aa", "é", "漢", "🎈", "\uffee"]
        for key in keys:
            await backend.put(SCOPE, key, key.encode())
        seen: list[str] = []
        after: str | None = None
        while page := await backend.scan(SCOPE, after=after, limit=limit):
            equal([each.value for each in page], [each.key.encode() for each in page])
            seen += [each.key for each in page]
            after = page[-1].key
        equal(seen, sorted(keys))

    async def test_a_scan_begins_behind_any_key(self, backend: CheckpointBackend) -> None:
        for key in "ace":
            await backend.put(SCOPE, key, b"v")
        equal([each.key for each in await backend.scan(SCOPE, after="b")], ["c", "e"])
        equal([each.key for each in await backend.scan(SCOPE, after="c")], ["e"])
        equal(list(await backend.scan(SCOPE, after="e")), [])
        with pytest.raises(ConfigError):
            await backend.scan(SCOPE, limit=0)

    @pytest.mark.parametrize(("one", "other"), TWINS, ids=[f"{n}" for n in range(len(TWINS))])
    async def test_scopes_that_look_alike_are_apart(
        self, backend: CheckpointBackend, one: tuple[str, ...], other: tuple[str, ...]
    ) -> None:
        await backend.put(one, "k", b"one")
        equal(await backend.get(other, "k"), None)
        equal(list(await backend.scan(other)), [])
        await backend.put(other, "k", b"other", expected=0)
        equal([each.value for each in await backend.scan(one)], [b"one"])
        equal(await backend.remove(other, "k"), True)
        equal([each.value for each in await backend.scan(one)], [b"one"])

    @pytest.mark.parametrize("limit", [1, 2, 100, 2**80])
    async def test_scopes_are_those_that_hold_a_value(self, backend: CheckpointBackend, limit: int) -> None:
        scopes = {scope for twins in TWINS for scope in twins} | {("\u6f22", "\U0001f388"), ("a" * 300, "b")}
        for scope in scopes:
            await backend.put(scope, "k", b"one")
            await backend.put(scope, "other", b"two")
        equal(await all_scopes(backend, limit=limit), sorted(scopes))
        await backend.remove(("ab",), "k")
        equal(await all_scopes(backend, limit=limit), sorted(scopes))
        for key in ("k", "other"):
            await backend.remove(("ab",), key)
            await backend.remove(("never",), key)
        equal(await all_scopes(backend, limit=limit), sorted(scopes - {("ab",)}))
        await backend.put(("ab",), "k", b"three")
        equal(await all_scopes(backend, limit=limit), sorted(scopes))

    @pytest.mark.parametrize("limit", [1, 100])
    async def test_a_prefix_of_scopes_ends_where_a_part_does(self, backend: CheckpointBackend, limit: int) -> None:
        users = ("ann", "anna", "an", "ann/x", "ann\u0301", "a", "Ann", " ann", "\u0203nn")
        for user in users:
            await backend.put(("user", user, "facts"), "k", b"v")
            await backend.put(("user", user), "k", b"v")
            await backend.put((user, "user"), "k", b"v")
        for user in users:
            equal(await all_scopes(backend, ("user", user), limit=limit), [("user", user), ("user", user, "facts")])
        equal(len(await all_scopes(backend, ("user",), limit=limit)), 2 * len(users))
        equal(await all_scopes(backend, ("user", "ann", "facts", "more"), limit=limit), [])
        equal(await all_scopes(backend, ("us",), limit=limit), [])

    async def test_a_page_of_scopes_is_valid(self, backend: CheckpointBackend) -> None:
        with pytest.raises(ConfigError):
            await backend.scopes(limit=0)
        with pytest.raises(InvalidId):
            await backend.scopes(("a", ""))
        with pytest.raises(InvalidId):
            await backend.scopes(("a",), after=())

    async def test_a_scope_and_a_key_are_no_longer_scope(self, backend: CheckpointBackend) -> None:
        await backend.put(("a",), "b", b"v")
        equal(await backend.get(("a", "b"), "b"), None)
        equal(list(await backend.scan(("a", "b"))), [])
        equal(await backend.get(("b",), "a"), None)

    async def test_runs_and_values_know_nothing_of_each_other(self, backend: CheckpointBackend) -> None:
        await backend.put(("r",), "r", b"v")
        equal(await backend.head("r"), None)
        await backend.delete("r")
        equal([each.key for each in await backend.scan(("r",))], ["r"])
