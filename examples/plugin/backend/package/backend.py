"""`Store`: a backend that begins as the one in memory, so that its tests pass from the start."""

from noetic_py.checkpoints import InMemoryBackend
from noetic_py.core.runtime import SYSTEM, Runtime


class Store(InMemoryBackend):
    """Stores at an address.

    Replace the methods of `InMemoryBackend` by your own, one after the other, and run the tests after each. When none is
    left, make `CheckpointBackend` the base: it says what each method has to do.

    Args:
        address: What stands behind `"@PREFIX@:"` in `Harness(checkpoints=...)`.
        runtime: The clock of its leases.
    """

    def __init__(self, address: str, *, runtime: Runtime = SYSTEM) -> None:
        super().__init__(runtime=runtime)
        self.address = address
