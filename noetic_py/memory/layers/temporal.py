"""`Temporal`: what time it is, and how long ago things were said."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from attrs import evolve, frozen

from noetic_py.core.items import Item, Message
from noetic_py.core.runtime import Runtime
from noetic_py.memory.layer import MemoryLayer, Returned
from noetic_py.memory.layers.common import is_one_of, wrong
from noetic_py.memory.scopes import Slot
from noetic_py.models.model import ModelResponse

Precision = Literal["second", "minute", "hour", "day"]

_FORMS: Final = {"second": "%Y-%m-%d %H:%M:%S", "minute": "%Y-%m-%d %H:%M", "hour": "%Y-%m-%d %H:00", "day": "%Y-%m-%d"}
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
_ONE: Final = {"second": "a second", "minute": "a minute", "hour": "an hour", "day": "a day"}
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# The number of units shown of a span; the rest is noise.
_TOLD: Final = 2


@frozen
class Moments:
    """When things were said, in UTC.

    Attributes:
        began: The first message of the user.
        newest: The newest one.
        before: The one before that.
        answered: The newest answer of the model.
    """

    began: datetime | None = None
    newest: datetime | None = None
    before: datetime | None = None
    answered: datetime | None = None


class Temporal(MemoryLayer[Moments]):
    """Tells the model what time it is, when the user last wrote, and when it answered.

        class Mem(Memory):
            time: Temporal = Temporal(timezone="Europe/Berlin", precision="hour")

    It stands behind the conversation, so that a time that is always another one moves nothing in a provider's cache.
    The time is that of the run's runtime, so a test with a virtual clock gets the same text each time.

    Attributes:
        timezone: The zone of the times, by its name in the time zone database.
        precision: The smallest unit of times and spans.
        clock: A clock of the layer's own, in place of the run's.

    Raises:
        ConfigError: The zone or the precision is unknown; code `"temporal"`.
    """

    timezone: str = "UTC"
    precision: Precision = "minute"
    clock: Runtime | None = None
    slot: int = Slot.HISTORY
    placement: Literal["anchor", "live", "auto"] = "live"

    def __attrs_post_init__(self) -> None:
        _zone(self)
        is_one_of(self, "temporal", "precision", self.precision, tuple(_FORMS))

    @property
    def now(self) -> datetime:
        """The time in the layer's zone."""
        return (self.clock or self.runtime).now().astimezone(_zone(self))

    async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
        """Notes when the user has said something."""
        if any(isinstance(item, Message) and item.role == "user" for item in items):
            now, known = self.now.astimezone(UTC), self.state
            self.state = evolve(known, began=known.began or now, newest=now, before=known.newest)
        return items

    async def store(self, response: ModelResponse) -> None:
        """Notes when the model has answered."""
        if any(isinstance(item, Message) for item in response.items):
            self.state = evolve(self.state, answered=self.now.astimezone(UTC))

    async def recall(self, query: str, budget: int) -> str:
        """The time, and how long ago the rest was."""
        now, known = self.now, self.state
        lines = [f"Now: {now.strftime(_FORMS[self.precision])} ({self.timezone}), {_DAYS[now.weekday()]}"]
        told = (
            ("The user's newest message", known.newest),
            ("The user's message before that", known.before),
            ("Your last answer", known.answered),
            ("The conversation began", known.began if known.before is not None else None),
        )
        return "\n".join([*lines, *(f"{what}: {self._ago(now, at)}" for what, at in told if at is not None)])

    def merge(self, base: Moments, mine: Moments, theirs: Moments) -> Moments:
        """The newest moments of both, and the first beginning."""
        said = sorted({each for of in (mine, theirs) for each in (of.before, of.newest) if each is not None})
        return Moments(
            min((each.began for each in (mine, theirs) if each.began is not None), default=None),
            said[-1] if said else None,
            said[-2] if len(said) > 1 else None,
            max((each.answered for each in (mine, theirs) if each.answered is not None), default=None),
        )

    async def on_return(self, child: Returned[Moments]) -> None:
        """Take over nothing: messages to a child belong to the child."""

    def _ago(self, now: datetime, at: datetime) -> str:
        least = dict(_UNITS)[self.precision]
        rest = max(0, int((now - at) / timedelta(seconds=1))) // least * least
        parts: list[str] = []
        for unit, seconds in _UNITS:
            count, rest = divmod(rest, seconds)
            if count:
                parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
        return f"{' '.join(parts[:_TOLD])} ago" if parts else f"less than {_ONE[self.precision]} ago"


def _zone(layer: Temporal) -> tzinfo:
    if layer.timezone == "UTC":
        # There on machines without a time zone database too.
        return UTC
    try:
        return ZoneInfo(layer.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise wrong(
            layer, f"timezone={layer.timezone!r} is unknown", "temporal", 'a name such as "Europe/Berlin"'
        ) from error
