"""Declarations of channels, and the checks of their messages."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias

from typing_extensions import TypeIs

from noetic_py.core.types import O_co, T
from noetic_py.errors import ChannelClosed, ChannelValueInvalid, ConfigError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ChannelMode: TypeAlias = Literal["value", "queue", "topic"]
"""How a channel hands on what is sent."""

DEFAULT_TIMEOUT = 30.0
"""The default timeout of `ctx.send` and `ctx.recv` in seconds."""
MAX_NAME = 200
"""The longest name of a channel, in characters."""


class Channel(Generic[T]):
    """A typed channel.

    ```python
    questions = Channel("questions", str, external=True)
    await ctx.send(questions, "When is high tide?")
    question = await ctx.recv(questions)
    ```

    Two declarations with one name are one channel when they agree, and an error in a run that meets both when not.

    Args:
        name: Its name, unique in a run.
        schema: The type of what is sent: any type that pydantic can check. A step's value has to be of the type as it
            stands; one from outside the run is converted where pydantic does that without loss.
        mode: `"queue"`, `"value"` or `"topic"`.
        capacity: How many messages may wait: in a queue for a receiver, in a topic for each receiver.
        external: Whether code outside the run may have a handle of it.

    Raises:
        ConfigError: An argument is of the wrong kind; code `"channel"`.
    """

    __slots__ = ("_adapter", "capacity", "external", "mode", "name", "schema")

    def __init__(
        self, name: str, schema: type[T], *, mode: ChannelMode = "queue", capacity: int = 1000, external: bool = False
    ) -> None:
        _check_parts(name, mode, capacity)
        self.name: str = name
        self.schema: type[T] = schema
        self.mode: ChannelMode = mode
        self.capacity: int = capacity
        self.external: bool = external
        self._adapter: TypeAdapter[T] | None = None
        declared: object = schema
        if isinstance(declared, str):
            raise _unknown(declared)
        if not isinstance(declared, type):
            # A class can always be checked; of anything else it shows now whether pydantic knows it.
            self._checker()

    def __repr__(self) -> str:
        return f"Channel({self.name!r}, {_spelled(self.schema)}, mode={self.mode!r})"

    def agrees(self, other: AnyChannel) -> bool:
        """Whether both declare the same channel."""
        return (self.name, self.schema, self.mode, self.capacity, self.external) == (
            other.name, other.schema, other.mode, other.capacity, other.external,
        )  # fmt: skip

    def check(self, value: object, *, outside: bool = False) -> T:
        """The value as the channel carries it.

        Args:
            value: What is to be sent.
            outside: Whether it comes from outside the run, and may be converted.

        Raises:
            ChannelValueInvalid: It is not of the channel's type.
        """
        if type(value) is self.schema and not outside:
            return value
        from pydantic import BaseModel, PydanticUserError, ValidationError

        declared: object = self.schema
        strict = not outside and isinstance(declared, type) and issubclass(declared, BaseModel)
        if strict and not isinstance(value, BaseModel):
            # Pydantic makes a model of a mapping even where it is told to be strict.
            raise self._unfit(f"{type(value).__name__} is not a valid {_spelled(declared)}")
        try:
            return self._checker().validate_python(value, strict=None if outside else True)
        except PydanticUserError as error:
            raise _unknown(self.schema) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise self._unfit(f"{where}: {first['msg']}" if where else first["msg"]) from None

    def _unfit(self, message: str) -> ChannelValueInvalid:
        return ChannelValueInvalid(message, channel=self.name, hint=f"{self.name!r} carries {_spelled(self.schema)}")

    def _checker(self) -> TypeAdapter[T]:
        if self._adapter is None:
            from pydantic import ConfigDict, PydanticUserError, TypeAdapter
            from pydantic.warnings import ArbitraryTypeWarning

            try:
                with warnings.catch_warnings():
                    # Pydantic would accept an object that is not a type with a warning, and any value with it.
                    warnings.simplefilter("error", ArbitraryTypeWarning)
                    try:
                        self._adapter = TypeAdapter(self.schema, config=ConfigDict(arbitrary_types_allowed=True))
                    except PydanticUserError:
                        # A pydantic model or dataclass brings a configuration of its own, and wants no other.
                        self._adapter = TypeAdapter(self.schema)
            except (PydanticUserError, ArbitraryTypeWarning, NameError, TypeError) as error:
                raise _unknown(self.schema) from error
        return self._adapter


def _check_parts(name: object, mode: object, capacity: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise refuse(f"name={name!r} is not a printable text of 1 to {MAX_NAME} characters", 'Channel("jobs", str)')
    if mode not in ("value", "queue", "topic"):
        raise refuse(f"mode={mode!r} is unknown", 'mode="queue", "value" or "topic"')
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise refuse(f"capacity={capacity!r} is not 1 or more", "capacity=1000")


def is_channel(value: object) -> TypeIs[AnyChannel]:
    """Whether the value is a channel, whatever it carries."""
    return isinstance(value, Channel)


def require_channel(value: object) -> AnyChannel:
    """The value, which has to be a channel.

    Raises:
        ConfigError: It is not one; code `"channel"`.
    """
    if not is_channel(value):
        raise refuse(f"{value!r} is not a valid channel; expected a Channel", 'Channel("jobs", str)')
    return value


def require_external(channel: AnyChannel) -> None:
    """Refuse a channel that code outside the run may not use.

    Raises:
        ConfigError: It is not external; code `"channel"`.
    """
    if not channel.external:
        raise refuse(f"{channel!r} is not external", f"Channel({channel.name!r}, ..., external=True)")


def _spelled(schema: object) -> str:
    # A generic such as list[int] has the name of its class, without what is in the brackets.
    return schema.__name__ if isinstance(schema, type) and "[" not in repr(schema) else repr(schema)


def _unknown(schema: object) -> ConfigError:
    return refuse(f"schema={schema!r} is not a valid schema; expected a type that pydantic can check", "schema=str")


def refuse(message: str, hint: str) -> ConfigError:
    """The error of a wrong declaration, or of a wrong use of one."""
    return ConfigError(message, code="channel", hint=hint)


def gone(name: str, hint: str) -> ChannelClosed:
    """The error of a channel that is closed."""
    return ChannelClosed(f"channel {name!r} is closed", hint=hint)


class Receivable(Protocol[O_co]):
    """A channel as receivers see it; covariant, so a receiver may expect a wider type."""

    def check(self, value: object, *, outside: bool = False) -> O_co:
        """The value as the channel carries it."""
        ...


AnyChannel: TypeAlias = Channel[Any]
"""A channel of whatever messages."""
