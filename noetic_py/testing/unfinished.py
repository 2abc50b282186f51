"""`Unfinished`: a turn of a scripted model that never becomes whole."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from attrs import frozen

from noetic_py.core.items import Item

__all__ = ["Unfinished"]


@frozen(eq=False)
class Unfinished:
    """A turn that breaks off: something is said, and then comes an error, or nothing any more.

    ```python
    model = ScriptedModel(
        Unfinished("High wa", ModelStreamError("the stream was cut", model="test:scripted")),
        Unfinished("High"),
        "High water is at noon.",
    )
    ```

    Attributes:
        said: What is streamed before; the last item of it never becomes whole.
        error: What is raised then; with `None` the stream stays silent until the reader gives up.
    """

    said: str | Item | Sequence[Item] = ""
    error: Exception | None = None

    async def end(self) -> None:
        """Raise, or wait for ever."""
        if self.error is not None:
            raise self.error
        await anyio.sleep_forever()
