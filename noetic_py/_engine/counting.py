"""What counts tokens for a model in a run."""

from __future__ import annotations

import anyio.to_thread

from noetic_py.models.base import Model
from noetic_py.models.pricing import profile_of
from noetic_py.tokens import TiktokenCounter, TokenCounter, counter_for, counter_of_encoding

__all__ = ["counter_of", "ready_counter_of"]


def counter_of(model: Model) -> TokenCounter:
    """What counts tokens for a model."""
    encoding = profile_of(model).encoding
    return counter_for(model.name) if encoding is None else counter_of_encoding(encoding)


async def ready_counter_of(model: Model) -> TokenCounter:
    """The same, ready to count."""
    counter = counter_of(model)
    if isinstance(counter, TiktokenCounter) and not counter.ready:
        # Loading the ranks takes half a second, in which other runs shall go on.
        await anyio.to_thread.run_sync(counter.load)
    return counter
