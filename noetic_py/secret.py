"""`Secret`: a value that no text shows and no store takes by accident."""

from __future__ import annotations

from typing import Any, Final, Generic, Literal, NoReturn, TypeVar, get_args
from weakref import finalize

from typing_extensions import TypeIs

from noetic_py._types import is_array, is_mapping
from noetic_py.errors import ConfigError, SecretNotKept
from noetic_py.redaction import MASK, forget_later, hold

__all__ = ["Secret", "is_secret", "revealed"]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


NOT_KEPT: Final = "the value of a secret is not kept, send it again"
"""What is told whoever sends a mask."""


class _Absent:
    """The value of a secret of which only the name was stored."""


_ABSENT: Final = _Absent()


class Secret(Generic[V_co]):
    """A value that is not to be seen: a password, a key, a token.

    ```python
    key = Secret.from_env("PAYMENT_KEY")
    print(key)                      # [secret]
    client = Client(key.reveal())   # the one way to the value
    ```

    `str`, `repr` and formatting give a mask. Two secrets are equal when their values are, compared in constant time; a
    secret never equals a plain value. It cannot be pickled, and a checkpoint refuses it, unless `stored="name"`.

    While a secret is alive, and some time after, its value is masked in every text that the library writes, wherever it
    came from: see [`redact`][noetic_py.redact]. Values that are shorter than 6 characters as a text are not.

    A tool's parameter may be a `Secret[str]`: the model sends the value, the function gets the secret, and the log and
    the journal have a mask in its place. So may a field of a pydantic model, a dataclass or an attrs class.

    Args:
        value: The value.
        name: What it is called, in its `repr` and where it is stored.
        stored: What a checkpoint does with it: `"refused"`, or `"name"`, which stores the name and gives back a secret
            without a value.

    Raises:
        TypeError: The value is a secret already.
        ConfigError: `stored="name"` without a name; code `"secret"`.
    """

    __slots__ = ("__weakref__", "_name", "_stored", "_value")

    _value: V_co | _Absent
    _name: str | None
    _stored: Literal["refused", "name"]

    def __init__(self, value: V_co, *, name: str | None = None, stored: Literal["refused", "name"] = "refused") -> None:
        if is_secret(value):
            raise TypeError("the value is a Secret already")
        if stored not in ("refused", "name") or (stored == "name" and not name):
            raise ConfigError(
                f"stored={stored!r} is not possible here", code="secret", hint='Secret(value, name="db", stored="name")'
            )
        self._set(value, name, stored)
        text = _text_of(value)
        if text:
            hold(text)
            finalize(self, forget_later, text).atexit = False

    def _set(self, value: Any, name: str | None, stored: Literal["refused", "name"]) -> None:
        for slot, content in (("_value", value), ("_name", name), ("_stored", stored)):
            object.__setattr__(self, slot, content)

    @classmethod
    def from_env(cls, variable: str, *, stored: Literal["refused", "name"] = "refused") -> Secret[str]:
        """The value of an environment variable, under the variable's name.

        Raises:
            ConfigError: It is not set, or empty; code `"secret-env"`.
        """
        import os

        value = os.environ.get(variable)
        if not value:
            raise ConfigError(f"the environment variable {variable} is not set", code="secret-env")
        return Secret(value, name=variable, stored=stored)

    @classmethod
    def named(cls, name: str) -> Secret[Any]:
        """A secret as it comes out of a checkpoint: its name, and no value."""
        made: Secret[Any] = cls.__new__(cls)
        made._set(_ABSENT, name, "name")
        return made

    @property
    def name(self) -> str | None:
        """What it is called."""
        return self._name

    @property
    def stored(self) -> Literal["refused", "name"]:
        """What a checkpoint does with it."""
        return self._stored

    def reveal(self) -> V_co:
        """The value.

        Raises:
            SecretNotKept: It came out of a checkpoint, which has its name only.
        """
        value = self._value
        if isinstance(value, _Absent):
            raise SecretNotKept(self._name or "")
        return value

    def __repr__(self) -> str:
        return f"Secret({MASK})" if self._name is None else f"Secret({MASK}, name={self._name!r})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        if not is_secret(other):
            return NotImplemented
        mine, theirs = self._value, other._value
        if isinstance(mine, _Absent) or isinstance(theirs, _Absent):
            return mine is theirs and self._name == other._name
        if type(mine) is not type(theirs):
            return False
        from hmac import compare_digest

        if isinstance(mine, str) and isinstance(theirs, str):
            return compare_digest(mine.encode(errors="surrogatepass"), theirs.encode(errors="surrogatepass"))
        if isinstance(mine, bytes) and isinstance(theirs, bytes):
            return compare_digest(mine, theirs)
        return bool(mine == theirs)

    def __hash__(self) -> int:
        return hash((Secret, self._name if self._value is _ABSENT else self._value))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret does not change")

    def __init_subclass__(cls) -> None:
        raise TypeError("Secret is final: what a subclass shows, nobody would mask")

    def __copy__(self) -> Secret[V_co]:
        return self

    def __deepcopy__(self, memo: object) -> Secret[V_co]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled: hand over its name, and read it there")

    # -- pydantic, which is loaded by whoever asks

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        inner = handler.generate_schema((get_args(source) or (str,))[0])
        made = core_schema.no_info_after_validator_function(_wrapped, inner)
        either = core_schema.union_schema([core_schema.is_instance_schema(cls), made])
        return core_schema.json_or_python_schema(
            json_schema=made,
            python_schema=either,
            serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        found: dict[str, Any] = dict(handler(schema["json_schema"]["schema"]))
        return found | {"writeOnly": True} | ({"format": "password"} if found.get("type") == "string" else {})


def _wrapped(value: Any) -> Secret[Any]:
    if value == MASK:
        raise ValueError(NOT_KEPT)
    return value if is_secret(value) else Secret(value)


def is_secret(value: object) -> TypeIs[Secret[Any]]:
    """Whether the value is a secret."""
    return isinstance(value, Secret)


def _text_of(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return value if isinstance(value, str) else str(value)


def revealed(value: Any) -> Any:
    """The value with the secrets in it, and in mappings, lists and tuples below it, replaced by what they hold.

    For whoever sends it where it belongs, such as a provider's package with its settings.
    """
    if is_secret(value):
        return value.reveal()
    if is_mapping(value):
        return {key: revealed(part) for key, part in value.items()}
    return [revealed(part) for part in value] if is_array(value) else value
