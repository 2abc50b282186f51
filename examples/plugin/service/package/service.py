"""`Tides`: one object for all runs, which steps and tools ask for by its type."""


class Tides:
    """Heights of the tide. Nothing is opened before the first use, and uses may overlap."""

    async def height(self, hour: int) -> int:
        """The height at an hour, in metres."""
        return abs(hour % 12 - 6)
