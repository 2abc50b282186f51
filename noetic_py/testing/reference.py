"""A stateful test that compares a backend with the reference, `InMemoryBackend`; it needs Hypothesis."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.errors import NoeticError
from noetic_py.journal.stored import Lease, Record, Transaction
from noetic_py.testing._conformance.base import equal, everything
from noetic_py.testing.virtual import VirtualRuntime

__all__ = ["ReferenceContract"]

_Drawn: TypeAlias = tuple[str, tuple[str, ...], str]
"""Kind, path, and which payload."""

Hook: TypeAlias = Callable[[CheckpointBackend], Awaitable[None]]

_LONG = 1e6
_RUNS = st.sampled_from(["a", "b", "c", "\u00e9", "e\u0301", "a ", ""])
_SCOPES = st.sampled_from([("s",), ("s", "t"), ("st",), ("s:t",), ()])
_KEYS = st.sampled_from(["k", "K", "\u6f22", "k\0"])
_STATUSES = st.none() | st.sampled_from(["running", "completed", "s" * 65])
_SUMMARYS = st.none() | st.sampled_from([b"", b"summary"])
_WHICH = st.integers(0, 5)
# By name, so that a row that fails can be read.
_PAYLOADS = {"empty": b"", "x": b"x", "binary": b"\0\xff" * 100, "large": b"large" * 5000}
_PAGES = st.sampled_from([1, 2, 3, 1000])


def _drawn() -> st.SearchStrategy[list[_Drawn]]:
    path = st.lists(st.sampled_from(["flow", "step#2", "a/b", "\u6f22"]), max_size=3).map(tuple)
    kind = st.sampled_from(["StepFinished", "K"])
    return st.lists(st.tuples(kind, path, st.sampled_from(list(_PAYLOADS))), max_size=4)


def _made(drawn: Sequence[_Drawn]) -> list[Record]:
    return [Record(kind, path, _PAYLOADS[payload]) for kind, path, payload in drawn]


def records() -> st.SearchStrategy[list[Record]]:
    """Records to append: with payloads that are empty, text, binary and large."""
    return _drawn().map(_made)


def _operation(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.fixed_dictionaries(arguments).map(lambda chosen: (name, chosen))


_APPEND = {"run": _RUNS, "off": st.sampled_from([0, 0, 0, 1, -1]), "which": _WHICH, "records": _drawn()}
_OPERATIONS = st.one_of(
    _operation("append", summary=_SUMMARYS, status=_STATUSES, **_APPEND),
    _operation("append", summary=st.none(), status=st.none(), **_APPEND),
    _operation("append_many", several=st.lists(st.fixed_dictionaries(_APPEND), max_size=3)),
    _operation("read", run=_RUNS, after=st.integers(-1, 12), limit=st.integers(0, 5)),
    _operation("head", run=_RUNS),
    _operation("list", limit=_PAGES, status=_STATUSES),
    _operation("fork", run=_RUNS, at=st.integers(-1, 9), new=_RUNS, summary=_SUMMARYS, status=_STATUSES),
    _operation("delete", run=_RUNS),
    _operation("prune", keep=st.none() | st.integers(-1, 3), age=st.none() | st.integers(0, 5)),
    _operation("prune", keep=st.integers(0, 3), age=st.none(), statuses=st.sampled_from([["running"], ["completed"]])),
    _operation("acquire", run=_RUNS),
    _operation("renew", which=_WHICH),
    _operation("release", which=_WHICH),
    _operation("put", scope=_SCOPES, key=_KEYS, value=st.binary(max_size=5), which=st.none() | _WHICH),
    _operation("get", scope=_SCOPES, key=_KEYS),
    _operation("remove", scope=_SCOPES, key=_KEYS, which=st.none() | _WHICH),
    _operation("scan", scope=_SCOPES, limit=_PAGES),
    _operation("wait"),
    _operation("lapse"),
    _operation("stats"),
)


class _World:
    """One backend, and the numbers that it gave: others give others, so they are known by when they were given."""

    def __init__(self, backend: CheckpointBackend, runtime: VirtualRuntime, lapse: Hook, moved: Hook) -> None:
        self.backend = backend
        self.runtime = runtime
        self.ends = lapse
        self.moved = moved
        self.leases: list[Lease] = []
        self.current: set[int] = set()
        self.versions: list[int] = []

    def fence(self, which: int) -> int:
        return 0 if which == 0 or not self.leases else self.leases[-min(which, len(self.leases))].fence

    def version(self, which: int | None) -> int | None:
        if which is None:
            return None
        return 0 if which == 0 or not self.versions else self.versions[-min(which, len(self.versions))]

    def known(self, number: int, given: Sequence[int]) -> int:
        return given.index(number) + 1 if number else 0

    async def do(self, name: str, arguments: dict[str, Any]) -> object:
        method: Callable[..., Awaitable[object]] = getattr(self, name)
        try:
            return await method(**arguments)
        except NoeticError as error:
            return type(error).__name__

    async def _given(self, run: str, off: int, which: int, records: list[_Drawn]) -> Transaction:
        head = await self.backend.head(run) if run else None
        fence = 0 if head is None else head.fence
        return Transaction(
            run, (head.position if head else 0) + off, self.fence(which) if which > 3 else fence, _made(records)
        )

    async def append(self, run: str, off: int, which: int, records: list[_Drawn], **more: Any) -> object:
        given = await self._given(run, off, which, records)
        return await self.backend.append(
            run, expected_position=given.expected_position, fence=given.fence, records=given.records, **more
        )

    async def append_many(self, several: list[dict[str, Any]]) -> object:
        # The order of runs that are new in one call is not promised.
        new = {each["run"]: None for each in several if each["run"] and await self.backend.head(each["run"]) is None}
        left_out = list(new)[1:]
        given = [await self._given(**each) for each in several if each["run"] not in left_out]
        outcomes = await self.backend.append_many(given)
        return [each if isinstance(each, int) else type(each).__name__ for each in outcomes]

    async def read(self, run: str, after: int, limit: int) -> object:
        return list(await self.backend.read(run, after=after, limit=limit))

    async def head(self, run: str) -> object:
        head = await self.backend.head(run)
        return head and (head.position, self.known(head.fence, [lease.fence for lease in self.leases]))

    async def list(self, limit: int, status: str | None) -> object:
        entries: list[object] = []
        after: int | None = None
        while page := await self.backend.list(after=after, limit=limit, status=status):
            entries += [(e.run_id, e.position, e.status, e.summary, e.created, e.updated, e.held) for e in page]
            after = page[-1].cursor
        return entries

    async def fork(self, run: str, at: int, new: str, summary: bytes | None, status: str | None) -> object:
        await self.backend.fork(run, at=at, new_run_id=new, summary=summary, status=status)
        return None

    async def delete(self, run: str) -> object:
        await self.backend.delete(run)
        return None

    async def prune(self, keep: int | None, age: int | None, statuses: Sequence[str] | None = None) -> object:
        before = None if age is None else self.runtime.now() - timedelta(seconds=age)
        return await self.backend.prune(before=before, keep=keep, statuses=statuses)

    async def acquire(self, run: str) -> object:
        lease = await self.backend.acquire(run, ttl=_LONG)
        self.leases.append(lease)
        self.current.add(lease.fence)
        return lease.run_id

    async def renew(self, which: int) -> object:
        for lease in self.leases[-which:][:1]:
            # One that has lapsed may be renewed or not, while no other owner has the run.
            if lease.fence in self.current:
                return (await self.backend.renew(lease, ttl=_LONG)) == lease
        return None

    async def release(self, which: int) -> object:
        for lease in self.leases[-which:][:1]:
            await self.backend.release(lease)
        return None

    async def put(self, scope: tuple[str, ...], key: str, value: bytes, which: int | None) -> object:
        self.versions.append(await self.backend.put(scope, key, value, expected=self.version(which)))
        return None

    async def get(self, scope: tuple[str, ...], key: str) -> object:
        found = await self.backend.get(scope, key)
        return found and (found.key, found.value, self.known(found.version, self.versions))

    async def remove(self, scope: tuple[str, ...], key: str, which: int | None) -> object:
        return await self.backend.remove(scope, key, expected=self.version(which))

    async def scan(self, scope: tuple[str, ...], limit: int) -> object:
        page = await self.backend.scan(scope, limit=limit)
        return [(each.key, each.value, self.known(each.version, self.versions)) for each in page]

    async def wait(self) -> object:
        await self._move(1.0)
        return None

    async def lapse(self) -> object:
        await self._move(10 * _LONG)
        self.current.clear()
        await self.ends(self.backend)
        return None

    async def _move(self, seconds: float) -> None:
        await self.runtime.advance(seconds)
        await self.moved(self.backend)

    async def stats(self) -> object:
        stats = await self.backend.stats()
        return stats.runs, stats.records, stats.values

    async def everything(self) -> Sequence[object]:
        """All that it holds, in parts of which the first that differs can be read."""
        values = [await self.scan(scope, 1000) for scope in (("s",), ("s", "t"), ("st",), ("s:t",))]
        runs = {each.run_id: await everything(self.backend, each.run_id) for each in await self.backend.list()}
        return [await self.list(1000, None), await self.stats(), values, runs]


async def _nothing(backend: CheckpointBackend) -> None:
    """Its clock is the one that was moved, and its leases end with that."""


class ReferenceContract:
    """A backend does with any row of operations the same as `InMemoryBackend`.

    Hypothesis draws the operations and, when an outcome differs, finds the shortest row that shows it.

    Attributes:
        runtime: The clock of the backend that `make` makes; it moves when a row says so.
        examples: How many rows are tried.
    """

    runtime: VirtualRuntime
    examples: int = 100

    def make(self, folder: Path) -> CheckpointBackend:
        """Make a backend that was not used yet, and whose clock shows what `self.runtime` shows.

        Args:
            folder: An empty folder, for backends that store files.
        """
        raise NotImplementedError("make(folder) has to make a backend that stores in `folder`")

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Let every lease end that `backend` gave and that was not released; `self.runtime` has been moved already."""
        raise NotImplementedError("lapse(backend) has to let every lease of `backend` end that was not released")

    async def moved(self, backend: CheckpointBackend) -> None:
        """Let a store that has a clock of its own, as a server has, show what `self.runtime` shows now.

        Nothing has to be done where the backend asks `self.runtime` itself.
        """

    def test_it_does_what_the_reference_does(self, anyio_backend_name: str) -> None:
        """Rows of operations, each on backends of its own."""

        @settings(max_examples=self.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(_OPERATIONS, min_size=30, max_size=50))
        def row(operations: list[tuple[str, dict[str, Any]]]) -> None:
            anyio.run(self._row, operations, backend=anyio_backend_name)

        row()

    async def _row(self, operations: list[tuple[str, dict[str, Any]]]) -> None:
        self.runtime, other = VirtualRuntime(), VirtualRuntime()
        with tempfile.TemporaryDirectory() as folder:
            async with self.make(Path(folder)) as backend, InMemoryBackend(runtime=other) as reference:
                mine = _World(backend, self.runtime, self.lapse, self.moved)
                wanted = _World(reference, other, _nothing, _nothing)
                for name, arguments in operations:
                    outcome, expected = await mine.do(name, arguments), await wanted.do(name, arguments)
                    if outcome != expected:
                        pytest.fail(f"{name}({arguments}) gave {outcome!r:.2000}, and the reference {expected!r:.2000}")
                for part, expected in zip(await mine.everything(), await wanted.everything(), strict=True):
                    equal(part, expected)
                await self._emptied(backend)

    async def _emptied(self, backend: CheckpointBackend) -> None:
        await backend.prune(keep=0)
        if not await backend.list():
            equal((await backend.stats()).blobs, 0)
