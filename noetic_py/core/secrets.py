"""`Secret`: a value that no text shows and no store takes by accident."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar, get_args
from weakref import finalize

import attrs
from typing_extensions import TypeIs

from noetic_py.core.values import is_array, is_mapping
from noetic_py.errors import ConfigError, SecretNotKept
from noetic_py.redaction import MASK, forget_later, hold

__all__ = ["Secret", "is_secret", "revealed"]

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


NOT_KEPT: Final = "the value of a secret is not kept, send it again"
"""The hint for input that contains a mask."""


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
        for text in set(_texts_of(value)) - {""}:
            hold(text)
            finalize(self, forget_later, text).atexit = False

    def _set(self, value: object, name: str | None, stored: Literal["refused", "name"]) -> None:
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
        made: Secret[object] = cls.__new__(cls)
        made._set(_ABSENT, name, "name")
        return made

    @staticmethod
    def in_address(address: str) -> tuple[Secret[str], ...]:
        """The parts of an address that may be passwords or keys, as secrets that are masked in every text.

        These are the password in front of the host, of `http` also a user name without one, and the values of
        parameters such as `password`, `token` and `api_key`, each as it is written and as it is meant.

        Args:
            address: A URL, with the scheme and `://`; any other text has none.

        Raises:
            ConfigError: A character of the password is not percent-encoded, so that one program would take a part of it
                for the host; code `"address"`. The message shows nothing of the address.
        """
        return tuple(map(Secret, sorted(_address_secrets(address))))

    @property
    def name(self) -> str | None:
        """Its name."""
        return self._name

    @property
    def stored(self) -> Literal["refused", "name"]:
        """How it is stored in a checkpoint."""
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
        raise TypeError("Secret is final: a subclass could show its value")

    def __copy__(self) -> Secret[V_co]:
        return self

    def __deepcopy__(self, memo: object) -> Secret[V_co]:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled: hand over its name, and read it there")

    # -- pydantic, loaded only when it asks

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


def _wrapped(value: object) -> Secret[object]:
    if value == MASK:
        raise ValueError(NOT_KEPT)
    return value if is_secret(value) else Secret(value)


def is_secret(value: object) -> TypeIs[Secret[Any]]:
    """Whether the value is a secret."""
    return isinstance(value, Secret)


_BYTES: tuple[Any, ...] = (bytes, bytearray, memoryview)
# A key that is a word is the name of a part: masked, it would be gone from every other text too.
_NAME: Final = re.compile(r"[A-Za-z_.\- ]{1,40}")


def _texts_of(value: Any, above: tuple[object, ...] = ()) -> Iterator[str]:
    """The texts that a value may be written as, and those of its parts; `above` is what it is a part of."""
    if any(value is each for each in above):
        return
    if isinstance(value, _BYTES):
        yield bytes(value).decode(errors="surrogateescape")
        return
    hidden = getattr(value, "get_secret_value", None)
    if callable(hidden):
        # Values like pydantic's `SecretStr`, whose own text is a mask.
        yield from _texts_of(hidden(), (*above, value))
        return
    if isinstance(value, str):
        yield str(value)
    if isinstance(value, Enum):
        yield from _texts_of(value.value)
    if not isinstance(value, str):
        yield from (str(value), repr(value))
    if is_mapping(value) or is_array(value):
        yield from _as_json(value)
    for part in _parts_of(value):
        # A truth value or a small number would be found everywhere.
        if part is not None and not isinstance(part, bool):
            yield from _texts_of(part, (*above, value))


def _as_json(value: object) -> Iterator[str]:
    import json

    for separators in ((",", ":"), (", ", ": ")):
        for ascii_only in (True, False):
            try:
                yield json.dumps(value, separators=separators, ensure_ascii=ascii_only, default=str)
            except (TypeError, ValueError):
                # Keys that JSON does not have, or a value that holds itself.
                return


def _parts_of(value: object) -> Iterable[object]:
    """The parts of a value: of a mapping its values and keys that are not names, of an object its fields."""
    if is_mapping(value):
        return [*value.values(), *(key for key in value if not isinstance(key, str) or not _NAME.fullmatch(key))]
    if isinstance(value, BaseException):
        return [*value.args, *getattr(value, "__notes__", ()), value.__cause__]
    if _is_several(value):
        return list(value)
    kind: type[object] = value.__class__
    if dataclasses.is_dataclass(kind):
        return [getattr(value, each.name, None) for each in dataclasses.fields(kind)]
    if attrs.has(kind):
        return [getattr(value, each.name, None) for each in attrs.fields(kind)]
    fields = getattr(kind, "model_fields", None)
    if fields is None:
        return []
    extra: Mapping[str, object] | None = getattr(value, "model_extra", None)
    return [*(getattr(value, name) for name in fields), *(extra or {}).values()]


def _is_several(value: object) -> TypeIs[Collection[object]]:
    return isinstance(value, Collection) and not isinstance(value, str)


# Names of parameters, in lower case and without what separates their words: all of a name, and its end.
_SECRET_NAMES: Final = frozenset({"auth", "code", "key", "pass", "pwd", "sig"})
_SECRET_ENDS: Final = (
    "accesskey", "accountkey", "apikey", "authorization", "credential", "passphrase", "passwd", "password",
    "privatekey", "secret", "secretkey", "signature", "subscriptionkey", "token",
)  # fmt: skip


def _names_secret(name: str) -> bool:
    plain = re.sub(r"[-_.\[\]]", "", name.lower())
    return plain in _SECRET_NAMES or plain.endswith(_SECRET_ENDS)


def _address_secrets(address: str) -> set[str]:
    from urllib.parse import unquote, unquote_plus

    scheme, mark, rest = address.partition("://")
    if not mark:
        return set()
    authority = rest[: min((at for sign in "/?#" if (at := rest.find(sign)) >= 0), default=len(rest))]
    user_info, _, hosts = authority.rpartition("@")
    # A password that holds "/", "?" or "#" as it stands ends the part in front of the host too early: what is taken for
    # a port is then none.
    cut = "@" in rest[len(authority) :] and any(not _is_host(host) for host in hosts.split(","))
    user, colon, password = user_info.partition(":")
    # An encoded colon hides from one program what is the password to the next.
    if "@" in user_info or cut or ":" in unquote(user):
        raise ConfigError(
            "the user name or the password in an address is not valid; expected one with special characters encoded",
            code="address",
            hint='urllib.parse.quote(password, safe="") gives the text to put between ":" and "@"',
        )
    if not colon and scheme.lower() in ("http", "https"):
        # Where the address names no user, what stands there alone is a token.
        password = user
    written = {password}
    for part in re.split("[?#&]", rest[len(authority) :]):
        # Some servers take a semicolon for an end, others for a part of the value.
        for pair in (part, *part.split(";")):
            name, _, value = pair.partition("=")
            if _names_secret(unquote_plus(name)):
                written.add(value)
    return {form for each in written for form in (each, unquote(each), unquote_plus(each))} - {""}


def _is_host(host: str) -> bool:
    """Whether a host has no port, or one that is a number."""
    port = host.rpartition("]")[2].partition(":")[2]
    return not port or (port.isascii() and port.isdigit())


def revealed(value: object) -> Any:
    """The value with the secrets in it, and in mappings, lists and tuples below it, replaced by what they hold.

    For code that sends it where it belongs, such as the package of a provider.
    """
    if is_secret(value):
        return value.reveal()
    if is_mapping(value):
        return {key: revealed(part) for key, part in value.items()}
    return [revealed(part) for part in value] if is_array(value) else value
