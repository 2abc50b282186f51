"""Models that are loaded with the first text and run in worker threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, TypeAlias

from anyio import to_thread

Model: TypeAlias = Callable[[Sequence[str]], Sequence[Sequence[float]]]
"""Makes a vector of length 1 of each text; called in several threads at once."""

_loading: Final = Lock()
_models: Final[dict[Callable[[], Model], Model]] = {}


async def embedded(load: Callable[[], Model], texts: Sequence[str]) -> Sequence[Sequence[float]]:
    """The vectors of texts, made in a worker thread by a model that is loaded once for the process."""
    wanted = list(texts)

    def work() -> Sequence[Sequence[float]]:
        with _loading:
            if load not in _models:
                _models[load] = load()
        return _models[load](wanted)

    return await to_thread.run_sync(work) if wanted else []
