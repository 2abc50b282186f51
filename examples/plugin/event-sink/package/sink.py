"""`EventCounts`: an event sink; put what sends events to your system in its place."""

from noetic_py import Event


class EventCounts:
    """Counts events by the names of their classes."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    async def send(self, run_id: str, event: Event) -> None:
        """Take an event. It may wait: runs do not wait for it."""
        name = type(event).__name__
        self.counts[name] = self.counts.get(name, 0) + 1
