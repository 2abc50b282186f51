"""The contract of backends, which store journals.

A backend stores bytes and knows nothing of what they mean: the records of runs, each run with a summary for lists, and
the values of scoped keys. Positions are counts of records. Ids, scopes and keys are data: two that differ in any
character are different, and none is ever made of two others.

Every method may raise [`StoreUnavailable`][noetic_py.errors.StoreUnavailable] when the store cannot be reached,
[`CorruptRecord`][noetic_py.errors.CorruptRecord] when what it holds was damaged, and what the functions of
`noetic_py.checkpoints.checks` refuse. A method that is cancelled has done all of its work or none of it, and a commit
that has begun is waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias

from noetic_py.journal.stored import (
    BudgetRow,
    Claim,
    Head,
    Lease,
    QueueLimits,
    QueueStats,
    Record,
    RunEntry,
    Signal,
    Stats,
    StoredValue,
    Transaction,
)

BackendDurability: TypeAlias = Literal["none", "process", "power"]
"""Which failure a finished write survives: none, a crash of the process, or a loss of power."""

Scope: TypeAlias = tuple[str, ...]
"""The owner of keys, such as `("user", "u-1", "layer", "facts")`."""


class CheckpointBackend(Protocol):
    """Stores journals, one a run, appended to at an expected position by the one owner of a lease; and scoped values.

    Used as `async with backend`, or closed with `close`.
    """

    @property
    def durability(self) -> BackendDurability:
        """Which failure a finished write survives."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other machines see it."""
        ...

    async def describe(self) -> Mapping[str, str]:
        """A description for people: `"backend"` is its name, others say versions and modes. Contains no secrets."""
        ...

    async def close(self) -> None:
        """Finish what was begun, give all leases back, and free what it holds; a second time is not an error.

        Everything else raises [`StoreUnavailable`][noetic_py.errors.StoreUnavailable] afterwards, reason `"closed"`.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /
    ) -> None: ...

    # -- journals

    async def append(
        self,
        run_id: str,
        *,
        expected_position: int,
        fence: int,
        records: Sequence[Record],
        summary: bytes | None = None,
        status: str | None = None,
    ) -> int:
        """Append one transaction, whole or not at all; the first one makes the run.

        Args:
            run_id: The run.
            expected_position: Where its journal has to end.
            fence: The writer's fence; 0 for a run that has had no owner since it was made.
            records: What is appended.
            summary: A small summary of the run, opaque here, that replaces the earlier one.
            status: A short text that replaces the earlier one, and that `list` and `prune` can ask for.

        Returns:
            The new position.

        Raises:
            PositionConflict: The journal does not end at `expected_position`.
            LeaseLost: `fence` is not the latest owner's.
            CheckpointFailed: It was not taken, and why.
            CodecError: A record holds what this backend cannot store.
            LimitExceeded: The transaction, its summary or its status is too large.
        """
        ...

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them, queue them, send signals: all of it or nothing.

        A backend that cannot make several runs one write does them in order, after it has checked all of them: when its
        process dies in between, the first ones may be there without those behind them. What a caller has acquired that
        was cancelled meanwhile is given back.

        Args:
            transactions: One for each run.

        Returns:
            For each the owner's lease, with the new position.

        Raises:
            RunBusy: Another owner holds a run that was to be acquired.
            PositionConflict: A journal does not end where it is expected to.
            LeaseLost: A fence is not the latest owner's.
            CheckpointFailed: It was not taken, and why.
            CodecError: A record holds what this backend cannot store.
            LimitExceeded: All of it together is too large.
            BudgetExceeded: A shared budget would pass a limit; where several things are wrong, the others come first.
            ConfigError: Two transactions are of the same run, code `"commit"`; or the backend has no queues, code
                `"queues"`, or no shared budgets, code `"budgets"`.
        """
        ...

    async def read(self, run_id: str, *, after: int = 0, limit: int = 1000) -> Sequence[Record]:
        """A page of records, from position `after` on.

        A page may be shorter than `limit`, and is empty only at the end.

        Raises:
            RunNotFound: There is no such run.
            CorruptRecord: The stored value is not what was written.
        """
        ...

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends, `None` when there is no such run."""
        ...

    async def entry(self, run_id: str) -> RunEntry | None:
        """The list entry of one run, `None` if it does not exist."""
        ...

    async def list(
        self, *, after: int | None = None, limit: int = 100, status: str | None = None
    ) -> Sequence[RunEntry]:
        """A page of the runs, the newest first; one whose entry is damaged has a `problem`, and hides no other.

        Args:
            after: The cursor of the last entry of the page before.
            limit: How many at most.
            status: Only those with this status.
        """
        ...

    async def fork(
        self,
        run_id: str,
        *,
        at: int,
        new_run_id: str,
        records: Sequence[Record] = (),
        summary: bytes | None = None,
        status: str | None = None,
    ) -> None:
        """Make a run whose journal is the first `at` records of another's, whole or not at all; it has no owner yet.

        Args:
            run_id: The other run.
            at: How many of its records.
            new_run_id: The run that is made.
            records: One more transaction, behind those.
            summary: The new run's summary.
            status: Its status.

        Raises:
            RunNotFound: There is no such run.
            PositionConflict: `at` is not a transaction's end, or the new run exists.
            CodecError: A record holds what this backend cannot store.
            LimitExceeded: The transaction, its summary or its status is too large.
        """
        ...

    async def delete(self, run_id: str) -> None:
        """Forget a run; one that is not there is no error. Its forks keep what they share with it.

        Raises:
            RunBusy: An owner holds it.
        """
        ...

    async def prune(
        self, *, before: datetime | None = None, keep: int | None = None, statuses: Collection[str] | None = None
    ) -> int:
        """Delete old runs, but none that an owner holds.

        Args:
            before: Only runs that were last written before this moment.
            keep: Leave so many of the newest runs, counted among those with one of the statuses.
            statuses: Only runs with one of these; `None` takes all.

        Returns:
            How many were deleted.

        Raises:
            ConfigError: Neither `before` nor `keep` was given; code `"prune"`.
        """
        ...

    async def stats(self) -> Stats:
        """How much it holds."""
        ...

    async def scrub(self) -> Sequence[str]:
        """Take what was deleted out of its files, so that no byte of it is left in them.

        Returns:
            Where deleted data may still be that this cannot reach, and what removes them there; a sentence each.

        Raises:
            StoreUnavailable: It cannot be done while another process uses the store, reason `"busy"`; try again.
        """
        ...

    # -- leases

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer, for at least `ttl` seconds; a run that is not there begins to be.

        A backend that knows whether an owner lives may let it keep the run for longer.

        Raises:
            RunBusy: Another owner holds it.
        """
        ...

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease for another `ttl` seconds.

        Raises:
            LeaseLost: It ran out and another owner has the run, or it was released.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give a lease back; one that is not held any more is not an error."""
        ...

    # -- queues and inboxes

    async def clock(self) -> float:
        """The store's clock, which queues go by: seconds since 1970."""
        ...

    async def claim(
        self,
        queues: Sequence[str],
        *,
        flows: Collection[str],
        ttl: float,
        limit: int = 1,
        limits: Mapping[str, QueueLimits] | None = None,
    ) -> Sequence[Claim]:
        """Become the owner of queued runs that may be claimed and have none.

        A claim takes nothing away: the run stays in its queue and its signals in its inbox until its owner commits what
        it did. A caller that is cancelled meanwhile owns none of them.

        Args:
            queues: The queues.
            flows: The flows that the caller has.
            ttl: Seconds for which it becomes the owner.
            limit: How many runs at most.
            limits: How many runs of a queue may be at work at once, in all processes, by queue.

        Returns:
            Those that it now owns: by priority, then those whose key has the fewest runs at work in their queue, then
            by how long they have waited. Where more keys wait than a claim can look at, claims take turns with them.

        Raises:
            ConfigError: The backend has no queues; code `"queues"`.
        """
        ...

    async def wait_for_runs(self, queues: Sequence[str], *, timeout: float) -> bool:
        """Wait until another process may have made a run ready in one of the queues; a backend may just sleep.

        It only shortens the pause before the next `claim`: no notification is certain to come, none is sent when the
        time of a run comes or a lease runs out, and a store that cannot be reached is no error here.

        Args:
            queues: The queues.
            timeout: After how many seconds it returns in any case.

        Returns:
            Whether it was notified; `False` after the timeout.
        """
        ...

    async def queues(self) -> Sequence[QueueStats]:
        """How full each queue is, by queue and flow.

        Raises:
            ConfigError: The backend has no queues; code `"queues"`.
        """
        ...

    async def send(self, run_id: str, key: str, body: bytes) -> int:
        """Put a signal into a run's inbox, and let the run be claimed where it is queued; any process may.

        Returns:
            Its number, or that of the one with this key that waits there already.

        Raises:
            RunNotFound: There is no such run.
            ConfigError: The backend has no queues; code `"queues"`.
        """
        ...

    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> Sequence[Signal]:
        """A page of the signals that wait for a run, in their order; none where there is no such run.

        Args:
            run_id: The run.
            after: The number of the last signal of the page before.
            limit: How many at most.
        """
        ...

    # -- shared budgets

    async def budgets(self, *, name: str | None = None, since: str = "") -> Sequence[BudgetRow]:
        """The rows of shared budgets, by name and period; commits change them, and `forget_budgets` removes them.

        Args:
            name: Only those with this name.
            since: Only those whose period is this one, or comes behind it in the order of texts.

        Raises:
            ConfigError: The backend has no shared budgets; code `"budgets"`.
        """
        ...

    async def forget_budgets(self, places: Sequence[tuple[str, str]]) -> None:
        """Remove rows of shared budgets, those that no run holds anything of when they are removed; the others stay.

        Args:
            places: Their names and periods; one that is not there is no error.

        Raises:
            ConfigError: The backend has no shared budgets; code `"budgets"`.
        """
        ...

    # -- scoped values

    async def get(self, scope: Scope, key: str) -> StoredValue | None:
        """The value of a key, `None` when it has none."""
        ...

    async def put(self, scope: Scope, key: str, value: bytes, *, expected: int | None = None) -> int:
        """Give a key a value.

        Args:
            scope: The owner of the key.
            key: The key.
            value: The bytes.
            expected: The version that has to be there, 0 for none; `None` writes whatever is there.

        Returns:
            The new version.

        Raises:
            VersionConflict: Another version is there.
        """
        ...

    async def remove(self, scope: Scope, key: str, *, expected: int | None = None) -> bool:
        """Take a key's value away.

        Returns:
            Whether there was one.

        Raises:
            VersionConflict: Another version than `expected` is there.
        """
        ...

    async def scan(self, scope: Scope, *, after: str | None = None, limit: int = 100) -> Sequence[StoredValue]:
        """A page of a scope's values, by key in the order of code points.

        Args:
            scope: The owner of the keys; scopes below it are others.
            after: The last key of the page before.
            limit: How many at most.
        """
        ...

    async def scopes(self, prefix: Scope = (), *, after: Scope | None = None, limit: int = 100) -> Sequence[Scope]:
        """A page of the scopes that hold a value, in an order of the backend's own that does not change.

        Args:
            prefix: Only scopes that begin with these parts, or are these parts; each part as a whole.
            after: The last scope of the page before.
            limit: How many at most.
        """
        ...
