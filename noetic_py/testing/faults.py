"""A backend that dies where a test wants it to, and a check that a flow survives its death anywhere."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from noetic_py.checkpoints.delegating import DelegatingBackend

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.journal.stored import Claim, Lease, QueueLimits, Record, Transaction

__all__ = ["Died", "FaultyBackend", "When"]

When: TypeAlias = Literal["before", "after"]
"""Whether an append takes effect before the process dies of it."""


class Died(BaseException):
    """The process died here, as far as a run can tell. No `Exception`, so that nothing handles it."""


class FaultyBackend(DelegatingBackend):
    """Another backend, and a process that dies at one of its appends.

    It raises [`Died`][noetic_py.testing.Died] at the append that was chosen, before or after that took effect, and from
    then on whatever is asked of it: a run gets nothing more into the journal, as if its process were gone. The leases
    of the dead are freed, so that after `revive()` the run can be resumed at once.

    ```python
    backend = FaultyBackend(InMemoryBackend(), dies_at=3)
    with backend.outlived():
        await Harness(checkpoints=backend).run(flow, "go", run_id="r")
    backend.revive()
    result = await Harness(checkpoints=backend).resume("r", flow)
    ```

    Args:
        inner: The backend that keeps everything.
        dies_at: At which append it dies, counted from 1; never when left out.
        when: Whether it dies before that append or after it.

    Attributes:
        appends: How many appends were asked for since it was made, or revived.
        dead: Whether it has died.
    """

    def __init__(self, inner: CheckpointBackend, *, dies_at: int | None = None, when: When = "before") -> None:
        super().__init__(inner)
        self.appends: int = 0
        self.dead: bool = False
        self._dies_at = dies_at
        self._when: When = when
        self._leases: dict[str, Lease] = {}

    def revive(self, *, dies_at: int | None = None, when: When = "before") -> None:
        """Live again, as the backend of a new process: count appends anew, and die at another one, or never."""
        self.appends = 0
        self.dead = False
        self._dies_at, self._when = dies_at, when

    @contextmanager
    def outlived(self) -> Generator[None]:
        """A block that the death of this backend ends, and nothing worse."""
        try:
            yield
        except Died:
            pass
        except BaseExceptionGroup as group:
            # Task groups on the way have wrapped it, perhaps several times.
            _, other = group.split(Died)
            if other is not None:
                raise other from None

    @property
    def inner(self) -> CheckpointBackend:
        """The backend that keeps everything.

        Raises:
            Died: The process is dead, and does nothing any more.
        """
        self._check()
        return self._inner

    def _check(self) -> None:
        if self.dead:
            raise Died("the process is dead")

    async def _die(self) -> None:
        self.dead = True
        await self._release_all()
        raise Died(f"died {self._when} append {self._dies_at}")

    async def _release_all(self) -> None:
        """The dead hold nothing; what others acquire meanwhile is released by them."""
        with anyio.CancelScope(shield=True):
            while self._leases:
                _, lease = self._leases.popitem()
                await self._inner.release(lease)

    async def _begin(self) -> int:
        """The number of an append; die before it when it is time."""
        # One that is cancelled before it begins is made again, and counts when it is.
        await checkpoint_if_cancelled()
        self.appends += 1
        number = self.appends
        if number == self._dies_at and self._when == "before":
            await self._die()
        return number

    async def _end(self, number: int) -> None:
        """Die after an append when it is time; others may have begun meanwhile."""
        self._check()
        if number == self._dies_at and self._when == "after":
            await self._die()

    # -- the contract

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
        """Append one transaction, and die when it is time."""
        self._check()
        number = await self._begin()
        position = await self._inner.append(
            run_id, expected_position=expected_position, fence=fence, records=records, summary=summary, status=status
        )
        await self._end(number)
        return position

    async def commit(self, transactions: Sequence[Transaction]) -> Sequence[Lease]:
        """Append to several runs, begin and end ownership of them; one append, as far as dying goes."""
        self._check()
        number = await self._begin()
        done = await self._inner.commit(transactions)
        for given, lease in zip(transactions, done, strict=True):
            if given.release:
                self._leases.pop(given.run_id, None)
            elif given.acquire is not None:
                self._leases[given.run_id] = lease
        if self.dead:
            await self._release_all()
        await self._end(number)
        return done

    async def acquire(self, run_id: str, *, ttl: float) -> Lease:
        """Become the run's one writer, until the process dies."""
        self._check()
        lease = await self._inner.acquire(run_id, ttl=ttl)
        if self.dead:
            # It died meanwhile, and the dead hold nothing.
            with anyio.CancelScope(shield=True):
                await self._inner.release(lease)
        self._check()
        self._leases[run_id] = lease
        return lease

    async def renew(self, lease: Lease, *, ttl: float) -> Lease:
        """Keep a lease."""
        self._check()
        renewed = self._leases[lease.run_id] = await self._inner.renew(lease, ttl=ttl)
        return renewed

    async def claim(
        self,
        queues: Sequence[str],
        *,
        flows: Collection[str],
        ttl: float,
        limit: int = 1,
        limits: Mapping[str, QueueLimits] | None = None,
    ) -> Sequence[Claim]:
        """Become the owner of queued runs, until the process dies."""
        self._check()
        claims = await self._inner.claim(queues, flows=flows, ttl=ttl, limit=limit, limits=limits)
        self._leases.update({each.lease.run_id: each.lease for each in claims})
        if self.dead:
            await self._release_all()
        self._check()
        return claims

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        self._check()
        self._leases.pop(lease.run_id, None)
        await self._inner.release(lease)
