"""A stateful test that compares a backend with the reference, `InMemoryBackend`; it needs Hypothesis."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.errors import NoeticError, RunBusy
from noetic_py.journal.stored import Lease, Record, Transaction
from noetic_py.testing._conformance.base import equal, everything
from noetic_py.testing.virtual import VirtualRuntime

__all__ = ["Operation", "ReferenceContract"]

Operation: TypeAlias = tuple[str, dict[str, Any]]
"""An operation by its name, and its arguments."""
_Drawn: TypeAlias = tuple[str, tuple[str, ...], str]
"""Kind, path, and which payload."""

Hook: TypeAlias = Callable[[CheckpointBackend], Awaitable[None]]

_LONG = 1e6
_SHORT = 100.0
# How long a row that differs is made shorter: a failure is to be known within a minute.
_SHORTENING = 20.0
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
_OWNER = {"acquire": st.sampled_from([None, None, _LONG]), "release": st.booleans()}
_OPERATIONS = st.one_of(
    _operation("append", summary=_SUMMARYS, status=_STATUSES, **_APPEND),
    _operation("append", summary=st.none(), status=st.none(), **_APPEND),
    _operation("commit", several=st.lists(st.fixed_dictionaries(_APPEND | _OWNER), max_size=3)),
    _operation("read", run=_RUNS, after=st.integers(-1, 12), limit=st.integers(0, 5)),
    _operation("head", run=_RUNS),
    _operation("list", limit=_PAGES, status=_STATUSES),
    _operation(
        "fork", run=_RUNS, at=st.integers(-1, 9), new=_RUNS, records=_drawn(), summary=_SUMMARYS, status=_STATUSES
    ),
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
    _operation("scopes", scope=_SCOPES, limit=_PAGES),
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
        self.current: set[tuple[str, int]] = set()
        self.versions: list[int] = []

    def fences(self, run: str) -> list[int]:
        # A backend may number the owners of each run, or those of all runs.
        return [lease.fence for lease in self.leases if lease.run_id == run]

    def fence(self, which: int, run: str) -> int:
        given = self.fences(run)
        return 0 if which == 0 or not given else given[-min(which, len(given))]

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

    async def _given(self, run: str, off: int, which: int, records: list[_Drawn], **owner: Any) -> Transaction:
        head = await self.backend.head(run) if run else None
        fence = 0 if head is None else head.fence
        position = (head.position if head else 0) + off
        return Transaction(run, position, self.fence(which, run) if which > 3 else fence, _made(records), **owner)

    async def append(self, run: str, off: int, which: int, records: list[_Drawn], **more: Any) -> object:
        given = await self._given(run, off, which, records)
        return await self.backend.append(
            run, expected_position=given.expected_position, fence=given.fence, records=given.records, **more
        )

    async def commit(self, several: list[dict[str, Any]]) -> object:
        # Which of several reasons is given, and the order of runs that are new, is not promised.
        sound = [await self._given(**each) for each in several[:-1] if each["off"] == 0 and each["run"]]
        given = [each for each in sound if await self.backend.head(each.run_id) is not None and not each.acquire]
        given += [await self._given(**each) for each in several[-1:]]
        done = await self.backend.commit(given)
        for each, lease in zip(given, done, strict=True):
            if each.acquire is not None:
                self.leases.append(lease)
                self.current.add((lease.run_id, lease.fence))
        return [lease.position for lease in done]

    async def read(self, run: str, after: int, limit: int) -> object:
        return list(await self.backend.read(run, after=after, limit=limit))

    async def head(self, run: str) -> object:
        head = await self.backend.head(run)
        return head and (head.position, self.known(head.fence, self.fences(run)))

    async def list(self, limit: int, status: str | None) -> object:
        entries: list[object] = []
        after: int | None = None
        while page := await self.backend.list(after=after, limit=limit, status=status):
            entries += [(e.run_id, e.position, e.status, e.summary, e.created, e.updated, e.held) for e in page]
            after = page[-1].cursor
        return entries

    async def fork(
        self, run: str, at: int, new: str, records: Sequence[_Drawn], summary: bytes | None, status: str | None
    ) -> object:
        made = _made(records)
        await self.backend.fork(run, at=at, new_run_id=new, records=made, summary=summary, status=status)
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
        self.current.add((run, lease.fence))
        return lease.run_id

    async def renew(self, which: int) -> object:
        for lease in self.leases[-which:][:1]:
            # One that has lapsed may be renewed or not, while no other owner has the run.
            if (lease.run_id, lease.fence) in self.current:
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

    async def scopes(self, scope: tuple[str, ...], limit: int) -> object:
        return sorted(await self.backend.scopes(scope, limit=max(limit, 10)))

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

    Hypothesis draws the operations. When an outcome differs, operations are left out of the row for up to 20 seconds
    while it still shows the difference, and the failure shows the rest as a test to copy, which calls `replay`.

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

        # The row is made shorter here: Hypothesis would take minutes, and show operations that cannot be copied.
        @settings(
            max_examples=self.examples,
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
            # Behind the short row it would show the whole one, in forms that cannot be copied.
            verbosity=Verbosity.quiet,
            print_blob=False,
        )
        @given(st.lists(_OPERATIONS, min_size=30, max_size=50))
        def row(operations: list[Operation]) -> None:
            difference = anyio.run(self._difference, operations, backend=anyio_backend_name)
            if difference is not None:
                pytest.fail(anyio.run(self._shortened, operations, difference, backend=anyio_backend_name))

        row()

    @pytest.mark.anyio
    async def test_a_lease_lasts_as_long_as_was_asked_for(self) -> None:
        """Until its time is over no other can become the owner, and renewing begins the time anew."""
        self.runtime = VirtualRuntime()
        with tempfile.TemporaryDirectory() as folder:
            async with self.make(Path(folder)) as backend:
                await self._lasts(backend)

    async def _lasts(self, backend: CheckpointBackend) -> None:
        lease = await backend.acquire("r", ttl=_SHORT)
        for part, what in ((0.95, "the time of a lease"), (0.9, "the time of a renewed lease")):
            await self._pass(backend, _SHORT * part)
            try:
                await backend.acquire("r", ttl=_SHORT)
            except RunBusy:
                lease = await backend.renew(lease, ttl=_SHORT)
            else:
                pytest.fail(f"{what} is {_SHORT:g} s, and after {_SHORT * part:g} s another became the owner")
        await self._pass(backend, _SHORT * 1.05)
        await self.lapse(backend)
        await backend.acquire("r", ttl=_SHORT)

    async def _pass(self, backend: CheckpointBackend, seconds: float) -> None:
        await self.runtime.advance(seconds)
        await self.moved(backend)

    async def replay(self, *operations: Operation) -> None:
        """Do a row of operations, as a failure has shown it; fails when the backend does other than the reference.

        Args:
            operations: The operations, in their order.
        """
        difference = await self._difference(list(operations))
        if difference is not None:
            pytest.fail(difference)

    async def _shortened(self, operations: list[Operation], difference: str) -> str:
        """The failure, with as few operations as were found in the time for that."""
        until = time.monotonic() + _SHORTENING
        size = len(operations) // 2
        while size and time.monotonic() < until:
            for start in range(0, len(operations), size):
                fewer = operations[:start] + operations[start + size :]
                found = await self._difference(fewer) if time.monotonic() < until else None
                if found is not None:
                    operations, difference = fewer, found
                    break
            else:
                size //= 2
        rows = "".join(f"            {each!r},\n" for each in operations)
        head = "    @pytest.mark.anyio\n    async def test_a_row(self) -> None:\n        await self.replay("
        why = "These operations show it; the test belongs into the class of the contract:"
        return f"{difference}\n\n{why}\n\n{head}\n{rows}        )\n"

    async def _difference(self, operations: list[Operation]) -> str | None:
        """What a backend does that the reference does not; `None` when both do the same."""
        self.runtime, other = VirtualRuntime(), VirtualRuntime()
        with tempfile.TemporaryDirectory() as folder:
            async with self.make(Path(folder)) as backend, InMemoryBackend(runtime=other) as reference:
                mine = _World(backend, self.runtime, self.lapse, self.moved)
                wanted = _World(reference, other, _nothing, _nothing)
                for name, arguments in operations:
                    outcome, expected = await mine.do(name, arguments), await wanted.do(name, arguments)
                    if outcome != expected:
                        return f"{name}({arguments}) gave {outcome!r:.2000}, and the reference {expected!r:.2000}"
                for part, expected in zip(await mine.everything(), await wanted.everything(), strict=True):
                    if part != expected:
                        return f"in the end it holds {part!r:.2000}, and the reference {expected!r:.2000}"
                await self._emptied(backend)
        return None

    async def _emptied(self, backend: CheckpointBackend) -> None:
        await backend.prune(keep=0)
        if not await backend.list():
            equal((await backend.stats()).blobs, 0)
