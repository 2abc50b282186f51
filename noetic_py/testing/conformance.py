"""The conformance suite for checkpoint backends, to be run with pytest against one of your own.

A backend that passes it keeps the contract of `CheckpointBackend`. Subclass what fits,
in a test module; every case is a test of its own, on each event loop that anyio's pytest plugin is set to:

```python
from pathlib import Path

from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend
from noetic_py.testing import VirtualRuntime
from noetic_py.testing.conformance import BackendContract


class TestMyBackend(BackendContract):
    def make(self, folder: Path) -> CheckpointBackend:
        self.runtime = VirtualRuntime()
        return InMemoryBackend(runtime=self.runtime)

    async def lapse(self, backend: CheckpointBackend) -> None:
        await self.runtime.advance(3600.0)
```

A backend that has queues for workers and shared budgets adds `QueueContract`, one that outlives its process
`LastingContract` and `KillContract`, one that survives a loss of power `PowerLossContract`, and one whose stored bytes
a test can reach `DamageContract`.
"""

from __future__ import annotations

from pathlib import Path

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.testing._conformance.budgets import Budgets
from noetic_py.testing._conformance.concurrency import Cancelling, Concurrency
from noetic_py.testing._conformance.durability import Damaging, Reopening
from noetic_py.testing._conformance.ids import HostileIds
from noetic_py.testing._conformance.journals import Journals
from noetic_py.testing._conformance.killing import Killing
from noetic_py.testing._conformance.leases import Leases
from noetic_py.testing._conformance.power_loss import PowerLoss
from noetic_py.testing._conformance.queues import Queues
from noetic_py.testing._conformance.values import Values

__all__ = ["BackendContract", "DamageContract", "KillContract", "LastingContract", "PowerLossContract", "QueueContract"]


class BackendContract(Journals, Leases, Values, HostileIds, Concurrency, Cancelling):
    """The contract of a backend: journals, leases, values, hostile ids, concurrency, cancellation.

    The fixture `backend` is a backend that `make` made in an empty folder; it is closed after the test.
    """

    def make(self, folder: Path) -> CheckpointBackend:
        """Make a backend that was not used yet.

        Args:
            folder: An empty folder, for backends that store files.
        """
        raise NotImplementedError("make(folder) has to make a backend that stores in `folder`")

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Let every lease end that `backend` gave and that was not released: its time is up, or its owner is gone.

        `backend` itself goes on, as another owner.
        """
        raise NotImplementedError("lapse(backend) has to let every lease of `backend` end that was not released")


class QueueContract(Queues, Budgets):
    """The contract of a backend with queues, inboxes and shared budgets.

    One without raises `ConfigError`, code `"queues"` or `"budgets"`.
    """

    def make(self, folder: Path) -> CheckpointBackend:
        """Make a backend that was not used yet.

        Args:
            folder: An empty folder, for backends that store files.
        """
        raise NotImplementedError("make(folder) has to make a backend that stores in `folder`")

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Let every lease end that `backend` gave and that was not released, as in `BackendContract`."""
        raise NotImplementedError("lapse(backend) has to let every lease of `backend` end that was not released")


class LastingContract(Reopening):
    """The contract of a backend whose store is opened again, or is open twice.

    `make` with the same folder has to open the same store, also while another handle has it open.
    """

    def make(self, folder: Path) -> CheckpointBackend:
        """Open the store of a folder; the first one makes it."""
        raise NotImplementedError("make(folder) has to open the store of `folder`")


class KillContract(Killing):
    """The contract of a backend whose processes are killed: by themselves at a commit, and at random moments.

    Each next process goes on with what is stored. It makes its own copy of the test, so the class has to stand at the
    top of its module, and `make` needs nothing that cannot be pickled. Before a process takes the run of the one that
    was killed, it calls `lapse`.

    Attributes:
        kills: How many processes are killed, in each of two cases.
    """

    def make(self, folder: Path) -> CheckpointBackend:
        """Open the store of a folder; the first one makes it."""
        raise NotImplementedError("make(folder) has to open the store of `folder`")

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Let the leases of dead processes end; left as it is where the store sees that they are dead."""


class PowerLossContract(PowerLoss):
    """The contract of a backend with durability `"power"` that stores in files: its machine loses its power.

    A process is traced with `strace` while it writes. From the trace the disk is rebuilt as it may be at random points:
    what was synced is there, and of what was not, any part may be. The backend opens what is left. The class has to
    stand at the top of its module, as for [`KillContract`][noetic_py.testing.KillContract].

    Attributes:
        states: How many states of the disk are looked at.
    """

    def make(self, folder: Path) -> CheckpointBackend:
        """Open the store of a folder; the first one makes it."""
        raise NotImplementedError("make(folder) has to open the store of `folder`")

    async def lapse(self, backend: CheckpointBackend) -> None:
        """Let the leases of dead processes end; left as it is where the store sees that they are dead."""


class DamageContract(Damaging):
    """The contract of a backend whose stored bytes were damaged: it never reads anything but what was written."""

    def make(self, folder: Path) -> CheckpointBackend:
        """Open the store of a folder; the first one makes it."""
        raise NotImplementedError("make(folder) has to open the store of `folder`")

    async def damage(self, folder: Path, seed: int) -> None:
        """Change stored bytes while they are not open, as `seed` says: flip, cut, swap, overwrite."""
        raise NotImplementedError("damage(folder, seed) has to change stored bytes")
