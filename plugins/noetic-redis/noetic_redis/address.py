"""The address of the server, and the part of it that may be shown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, get_args
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from attrs import field, frozen

from noetic_py import Secret
from noetic_py.errors import ConfigError
from noetic_redis.settings import Require

__all__ = ["Address", "address_of"]

_OWN = ("prefix", "connections", "timeout", "require")
_SCHEMES = ("redis", "rediss", "unix")
# Options that change how answers are read, or retry on their own.
_NOT_TAKEN = frozenset({"decode_responses", "encoding", "encoding_errors", "protocol", "retry_on_timeout", "retry"})
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@frozen
class Address:
    """A server, a database in it, and a prefix in that.

    Attributes:
        url: What the driver connects with; holds secrets, and so is not part of any text.
        where: The server, for messages; holds none.
        prefix: What the names of all keys begin with.
        connections: How many connections there may be at once.
        timeout: How many seconds an operation may take, with everything that is tried again.
        require: What the server has to promise; `None` warns when that is not `"always"`.
        secrets: The passwords in it, held so that no text shows them.
    """

    url: str = field(repr=False)
    where: str
    prefix: str
    connections: int
    timeout: float
    require: Require | None
    secrets: tuple[Secret[str], ...] = field(default=(), repr=False)

    def connection(self, seconds: float) -> Any:
        """A connection of the driver's, which is not connected yet.

        Args:
            seconds: How long connecting may take.
        """
        # The address takes precedence over these.
        # The driver says little of its types.
        pools: Any = redis.ConnectionPool
        return pools.from_url(
            self.url,
            protocol=2,
            # Half of the time for an answer: what is left is for finding out what became of it.
            socket_timeout=self.timeout / 2,
            socket_connect_timeout=min(seconds, 10.0),
        ).make_connection()


def address_of(
    address: str | Secret[str],
    *,
    prefix: str | None,
    connections: int | None,
    timeout: float | None,
    require: str | None,
) -> Address:
    """Read an address.

    It may hold `prefix`, `connections`, `timeout` and `require` among its parameters; the arguments win over it.

    Raises:
        ConfigError: It is not valid, or a setting is wrong; codes `"redis-address"` and `"redis-setting"`.
    """
    text = address.reveal() if isinstance(address, Secret) else address
    secrets = Secret.in_address(text)
    rest, found = _own_parameters(text)
    where = _where(rest)
    name = prefix if prefix is not None else found.get("prefix", "noetic")
    size = connections if connections is not None else _number(found, "connections", 4)
    seconds = timeout if timeout is not None else _number(found, "timeout", 30)
    if not _PREFIX.fullmatch(name):
        raise ConfigError(
            f"prefix={name!r:.80} cannot begin the names of keys",
            code="redis-setting",
            hint="up to 64 letters, digits and _ . : -",
        )
    if not 1 <= size <= 100 or not (math.isfinite(seconds) and 1 <= seconds <= 86_400):
        raise ConfigError(
            f"connections={size}, timeout={seconds}: 1 to 100 connections, and 1 s to a day",
            code="redis-setting",
            hint="leave them out",
        )
    made = Address(
        url=rest,
        where=f"{where} (prefix {name})",
        prefix=name,
        connections=int(size),
        timeout=float(seconds),
        require=_require(require if require is not None else found.get("require")),
        secrets=secrets,
    )
    _try_out(made)
    return made


def _require(text: str | None) -> Require | None:
    known: Mapping[str, Require] = {each: each for each in get_args(Require)}
    if text is None:
        return None
    if text not in known:
        raise ConfigError(
            f"require={text!r:.40} is unknown", code="redis-setting", hint=", ".join(map(repr, sorted(known)))
        )
    return known[text]


def _try_out(address: Address) -> None:
    """Let the driver read the address, without connecting.

    Raises:
        ConfigError: It does not understand it; code `"redis-address"`.
    """
    try:
        address.connection(1.0)
    except (ValueError, TypeError, redis.RedisError, OSError):
        # The driver's message may quote the address, with its password.
        raise _no_address() from None


def _own_parameters(text: str) -> tuple[str, dict[str, str]]:
    """An address without the parameters that are this package's, and these."""
    try:
        parts = urlsplit(text)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        _ = parts.port
    except ValueError:
        raise _no_address() from None
    if parts.scheme not in _SCHEMES or "://" not in text or parts.fragment or _NOT_TAKEN & {name for name, _ in pairs}:
        raise _no_address()
    found = {name: value for name, value in pairs if name in _OWN}
    rest = urlencode([(name, value) for name, value in pairs if name not in _OWN])
    begin = text.partition("?")[0]
    return f"{begin}?{rest}" if rest else begin, found


def _no_address() -> ConfigError:
    return ConfigError(
        "the text is not a valid address of a Redis server",
        code="redis-address",
        hint='"redis://user@host:6379/0", "rediss://..." or "unix:///path/to/socket"; percent-encode a password',
    )


def _number(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ConfigError(
            f"{name}={text!r:.40} in the address is not a valid number", code="redis-setting", hint=f"?{name}={default}"
        )
    return int(text)


def _where(url: str) -> str:
    """The address without its secrets: no password, and no parameters but the database."""
    parts = urlsplit(url)
    database = dict(parse_qsl(parts.query)).get("db", "")
    shown = f"?db={database}" if database.isascii() and database.isdigit() else ""
    user = f"{unquote(parts.username)}@" if parts.username else ""
    if parts.scheme == "unix":
        return f"unix://{user}{parts.path}{shown}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    path = parts.path if parts.path.strip("/").isdigit() else "/0"
    return f"{parts.scheme}://{user}{host}:{parts.port or 6379}{shown or path}"
