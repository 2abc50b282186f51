"""Parts of a harness that several machines use, which need a backend that all of these see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from noetic_py.checkpoints.backend import CheckpointBackend
from noetic_py.errors import ConfigError

__all__ = ["Distributed", "check_shared"]


class Distributed(Protocol):
    """A tool source, a service, a model or a memory layer that works across machines: a remote disk, a pool of workers.

    A harness that is given one needs a backend whose `shared` is true. Otherwise a run that goes on elsewhere would
    find what the part has done there, and nothing of what the run had recorded.
    """

    @property
    def distributed(self) -> bool:
        """Whether it works across machines; only `True` counts."""
        ...


def check_shared(backend: CheckpointBackend | None, parts: Iterable[tuple[str, object]]) -> None:
    """Refuse parts that work across machines where other machines do not see the backend.

    Args:
        backend: The backend of a harness; `None` for one that keeps its runs in its own memory.
        parts: What the harness is made of, with names for people.

    Raises:
        ConfigError: One is; code `"not-shared"`.
    """
    if backend is not None and backend.shared:
        return
    for name, part in parts:
        if getattr(part, "distributed", False) is True:
            store = "there is no backend" if backend is None else f"{type(backend).__name__} is on this machine only"
            raise ConfigError(
                f"{name} works across machines, and {store}",
                code="not-shared",
                hint='checkpoints="postgres://..." or another backend that all of them see',
            )
