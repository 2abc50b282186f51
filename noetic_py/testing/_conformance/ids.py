"""Cases of hostile ids: what is an id is kept as it is, what is none is refused, and no two are the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from noetic_py.checkpoints.checks import MAX_ID, MAX_KEY, MAX_SCOPE
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.errors import InvalidId, NoeticError
from noetic_py.journal.stored import Lease, Record
from noetic_py.testing._conformance.base import Suite, equal, everything, fill, record

KEPT = {
    "dots": "..",
    "dot": ".",
    "slash": "/",
    "backslash": "\\",
    "absolute": "/etc/passwd",
    "traversal": "../../../../etc/passwd",
    "windows traversal": "..\\..\\windows\\system32",
    "drive": "C:\\runs.db",
    "unc": "\\\\server\\share",
    "percent": "%2e%2e%2f",
    "percent zero": "%00",
    "query": "file:x?mode=memory&cache=shared",
    "memory": ":memory:",
    "leading dash": "-rf",
    "double dash": "--",
    "trailing dot": "run.",
    "trailing space": "run ",
    "leading space": " run",
    "one space": " ",
    "device": "CON",
    "device with ending": "nul.txt",
    "glob": "*",
    "like": "%_%",
    "brackets": "[a-z]{1,2}",
    "search syntax": "@user:{admin} | *",
    "quote": "'",
    "sql": "'; DROP TABLE runs; --",
    "sql or": "' OR '1'='1",
    "double quote": '" OR ""="',
    "parameter": "?1 :name @name $name",
    "json": '{"$ne": null}',
    "template": "{{7*7}} ${7*7} {0.__class__}",
    "markup": "<script>alert(1)</script>",
    "colon": "a:b:c",
    "encoded colon": "a__3Ab",
    "number": "1",
    "float": "1.0",
    "null": "None",
    "true": "True",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "look-alike": "\u0440un",
    "full width": "\uff52\uff55\uff4e",
    "upper": "RUN",
    "lower": "run",
    "sharp s": "stra\u00dfe",
    "dotless": "\u0131d",
    "right to left": "\u202enur",
    "zero width": "r\u200bun",
    "byte order mark": "\ufeffrun",
    "no-break space": "r\u00a0un",
    "line separator": "r\u2028un",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "cjk": "\u6f22" * MAX_ID,
    "beyond bmp": "\U0001f388" * MAX_ID,
    "private use": "\ue000\U0010fffd",
    "noncharacter": "\uffff",
    "longest": "x" * MAX_ID,
}
REFUSED = {
    "empty": "",
    "zero": "\0",
    "zero inside": "run\0.db",
    "newline": "run\n",
    "return": "\rrun",
    "tab": "a\tb",
    "escape": "\x1b[2J",
    "delete": "run\x7f",
    "next line": "run\x85",
    "high control": "\x9f",
    "high surrogate": "\ud800",
    "low surrogate": "run\udcff",
    "surrogate pair": "\ud83c\udf88",
}
LONG = {"long": "x" * (MAX_KEY + 1), "very long": "x" * 1_000_000}


def named(ids: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", list(ids.values()), ids=[each.replace(" ", "-") for each in ids])


class HostileIds(Suite):
    @named(KEPT)
    async def test_a_run_id_is_kept_as_it_is(self, backend: CheckpointBackend, name: str) -> None:
        lease = await backend.acquire(name, ttl=60.0)
        equal(lease, Lease(name, lease.fence))
        written = await fill(backend, name, 2, fence=lease.fence)
        (entry,) = await backend.list()
        equal(await backend.entry(name), entry)
        equal((entry.run_id, entry.position, entry.held), (name, 2, True))
        await backend.renew(lease, ttl=60.0)
        await backend.release(lease)
        await backend.fork(name, at=2, new_run_id="fork of it")
        await backend.delete(name)
        equal(await backend.head(name), None)
        await backend.fork("fork of it", at=2, new_run_id=name)
        equal(await everything(backend, name), written)

    @named(KEPT)
    async def test_a_key_and_a_scope_are_kept_as_they_are(self, backend: CheckpointBackend, name: str) -> None:
        scope = (name, "x", name)
        version = await backend.put(scope, name, name.encode())
        found = await backend.get(scope, name)
        equal(found, (await backend.scan(scope))[0])
        equal(None if found is None else (found.key, found.value, found.version), (name, name.encode(), version))
        equal(await backend.get(("x", name, name), name), None)
        equal(list(await backend.scan((name, "x"))), [])
        equal(list(await backend.scan(scope, after=name)), [])
        equal(await backend.remove(scope, name, expected=version), True)

    async def test_no_two_runs_are_the_same(self, backend: CheckpointBackend) -> None:
        written = {name: await fill(backend, name, 1) for name in KEPT.values()}
        for name, records in written.items():
            equal(await everything(backend, name), records)
        equal([each.run_id for each in await backend.list(limit=1000)], list(reversed(written)))
        for name in KEPT.values():
            await backend.delete(name)
        equal((await backend.stats()).runs, 0)

    async def test_no_two_keys_are_the_same(self, backend: CheckpointBackend) -> None:
        for name in KEPT.values():
            await backend.put(("s",), name, name.encode(), expected=0)
        values = await backend.scan(("s",), limit=1000)
        equal([each.key for each in values], sorted(KEPT.values()))
        equal([each.value.decode() for each in values], [each.key for each in values])

    async def test_no_two_scopes_are_the_same(self, backend: CheckpointBackend) -> None:
        for name in KEPT.values():
            await backend.put((name,), "k", name.encode(), expected=0)
            await backend.put((name, name), "k", b"twice", expected=0)
        for name in KEPT.values():
            equal([each.value.decode() for each in await backend.scan((name,))], [name])

    @named(KEPT)
    async def test_a_path_and_a_kind_are_kept_as_they_are(self, backend: CheckpointBackend, name: str) -> None:
        written = [Record(name, (name, name), b"x"), Record("K", (name + name,), b"y")]
        await backend.append("r", expected_position=0, fence=0, records=written, status=name[:64])
        equal(await everything(backend, "r"), written)
        equal([each.status for each in await backend.list(status=name[:64])], [name[:64]])

    @named(REFUSED | LONG)
    async def test_what_is_no_id_is_refused_everywhere(self, backend: CheckpointBackend, name: str) -> None:
        await fill(backend, "r", 1)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: backend.append(name, expected_position=0, fence=0, records=[record("x")]),
            lambda: backend.append("r", expected_position=1, fence=0, records=[record("x", kind=name)]),
            lambda: backend.append("r", expected_position=1, fence=0, records=[record("x", path=("a", name))]),
            lambda: backend.append("r", expected_position=1, fence=0, records=[], status=name),
            lambda: backend.read(name),
            lambda: backend.head(name),
            lambda: backend.entry(name),
            lambda: backend.fork(name, at=0, new_run_id="f"),
            lambda: backend.fork("r", at=1, new_run_id=name),
            lambda: backend.delete(name),
            lambda: backend.acquire(name, ttl=1.0),
            lambda: backend.get(("s",), name),
            lambda: backend.get((name,), "k"),
            lambda: backend.put(("s",), name, b"v"),
            lambda: backend.put(("s", name), "k", b"v"),
            lambda: backend.remove(("s",), name),
            lambda: backend.remove((name, "s"), "k"),
            lambda: backend.scan((name,)),
            lambda: backend.scan(("s",), after=name),
        ]
        for number, call in enumerate(calls, 1):
            try:
                await call()
            except InvalidId:
                continue
            except NoeticError as error:
                pytest.fail(f"call {number} of this test raised {error!r:.300} for {name!r:.80}; expected InvalidId")
            pytest.fail(f"call {number} of this test took {name!r:.80}; expected InvalidId")
        stats = await backend.stats()
        equal((stats.runs, stats.records, stats.values), (1, 1, 0))

    @pytest.mark.parametrize("name", [None, 7, b"run", ("run",)], ids=["none", "number", "bytes", "tuple"])
    async def test_what_is_no_text_is_refused(self, backend: CheckpointBackend, name: object) -> None:
        wrong: dict[str, object] = {"run_id": name}
        with pytest.raises(InvalidId):
            await backend.head(**wrong)  # type: ignore[arg-type]  # what a caller without a type checker passes

    @pytest.mark.parametrize(
        "scope", [(), ("s",) * (MAX_SCOPE + 1), "scope", ["s"], None], ids=["empty", "deep", "text", "list", "none"]
    )
    async def test_what_is_no_scope_is_refused(self, backend: CheckpointBackend, scope: object) -> None:
        wrong: dict[str, object] = {"scope": scope, "key": "k"}
        with pytest.raises(InvalidId):
            await backend.get(**wrong)  # type: ignore[arg-type]  # what a caller without a type checker passes

    async def test_the_longest_that_are_kept(self, backend: CheckpointBackend) -> None:
        scope = ("\U0001f388" * MAX_KEY,) * MAX_SCOPE
        await backend.put(scope, "\U0001f388" * MAX_KEY, b"v", expected=0)
        equal([each.value for each in await backend.scan(scope)], [b"v"])

    async def test_an_error_tells_nothing_of_other_runs(self, backend: CheckpointBackend) -> None:
        await fill(backend, "run-of-ada", 1)
        for call in (
            lambda: backend.read("mine"),
            lambda: backend.fork("mine", at=0, new_run_id="f"),
            lambda: backend.append("mine", expected_position=4, fence=0, records=[]),
        ):
            with pytest.raises(NoeticError) as caught:
                await call()
            equal([word for word in str(caught.value).split() if "run-of-ada" in word], [])
