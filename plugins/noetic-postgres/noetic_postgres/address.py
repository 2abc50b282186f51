"""The address of the server, and the part of it that may be shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import psycopg
from attrs import field, frozen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from noetic_py import Secret
from noetic_py.errors import ConfigError

__all__ = ["Address", "address_of"]

_OWN = ("schema", "connections", "timeout")
_LONGEST = 63
# Told nothing else, the kernel waits for hours before it says that a server's machine is gone.
_WATCHED: Mapping[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "client_encoding": "UTF8",
}


@frozen
class Address:
    """A server, a database in it, and a schema in that.

    Attributes:
        parameters: What the driver connects with; holds secrets, and so is not part of any text.
        where: The server, for messages; holds none.
        schema: The schema that everything is in.
        connections: How many connections there may be at once.
        timeout: How many seconds an operation may take, with everything that is tried again.
        secrets: The passwords in it, held so that no text shows them.
    """

    parameters: Mapping[str, Any] = field(repr=False)
    where: str
    schema: str
    connections: int
    timeout: float
    secrets: tuple[Secret[str], ...] = field(default=(), repr=False)

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Where the server may still have what was deleted, and what removes it there."""
        return (
            f"PostgreSQL: deleted rows stay in the files of {self.where} until VACUUM FULL of its tables",
            "PostgreSQL: the write-ahead log and its archive, replicas and base backups, until they are replaced",
        )

    def connection_text(self, *, name: str, seconds: float) -> str:
        """The connection parameters of the driver.

        Args:
            name: What the server calls the connection, besides the program's own name for it.
            seconds: How long connecting may take.
        """
        own = str(self.parameters.get("application_name") or "noetic_py")
        given = {**_WATCHED, **self.parameters}
        given["application_name"] = f"{own.encode()[:40].decode(errors='ignore')} {name}"
        # Whole seconds, and less than two are none to the driver.
        given["connect_timeout"] = max(2, math.ceil(min(seconds, float(given.get("connect_timeout") or 10))))
        return make_conninfo("", **given)


def address_of(
    address: str | Secret[str], *, schema: str | None, connections: int | None, timeout: float | None
) -> Address:
    """Read an address: a URL, or the driver's `key=value` pairs.

    A URL may hold `schema`, `connections` and `timeout` among its parameters; the arguments win over it.

    Raises:
        ConfigError: It is not valid, or a setting is wrong; codes `"postgres-address"` and `"postgres-setting"`.
    """
    text = address.reveal() if isinstance(address, Secret) else address
    secrets = Secret.in_address(text)
    rest, found = _own_parameters(text)
    parameters = _parsed(rest)
    if parameters is None:
        # The driver's message quotes the address, with its password.
        raise ConfigError(
            "the text is not a valid address of a PostgreSQL database",
            code="postgres-address",
            hint='"postgresql://user@host:5432/database"; percent-encode special characters in a password',
        )
    name = schema if schema is not None else found.get("schema", "noetic")
    size = connections if connections is not None else _number(found, "connections", 4)
    seconds = timeout if timeout is not None else _number(found, "timeout", 30)
    if not (name.isascii() and name.isidentifier() and len(name) <= _LONGEST and not name.lower().startswith("pg_")):
        raise ConfigError(
            f"schema={name!r:.80} is not a valid name of a schema",
            code="postgres-setting",
            hint="letters, digits and underscores, not beginning with pg_",
        )
    if not 1 <= size <= 100 or not 1 <= seconds <= 86_400:
        raise ConfigError(
            f"connections={size}, timeout={seconds}: 1 to 100 connections, and 1 s to a day",
            code="postgres-setting",
            hint="leave them out",
        )
    passwords = [str(parameters[each]) for each in ("password", "sslpassword") if parameters.get(each)]
    secrets = (*secrets, *map(Secret, passwords))
    return Address(parameters, _where(parameters, name), name, int(size), float(seconds), secrets)


def _parsed(text: str) -> Mapping[str, Any] | None:
    """The address in the driver's form, `None` if it is not valid."""
    try:
        found = conninfo_to_dict(text)
    except psycopg.ProgrammingError:
        return None
    # The driver itself looks at a port only when it connects.
    ports = [port for port in str(found.get("port") or "").split(",") if port]
    return found if all(port.isascii() and port.isdigit() and len(port) < 6 for port in ports) else None


def _own_parameters(text: str) -> tuple[str, dict[str, str]]:
    """An address without the parameters that are this package's, and these."""
    begin, mark, query = text.partition("?")
    if not mark or not text.startswith(("postgresql://", "postgres://")):
        return text, {}
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    found = {name: value for name, _, value in pairs if name in _OWN}
    rest = "&".join("".join(pair) for pair in pairs if pair[0] not in _OWN)
    return f"{begin}?{rest}" if rest else begin, found


def _number(found: Mapping[str, str], name: str, default: int) -> int:
    text = found.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ConfigError(
            f"{name}={text!r:.40} in the address is not a valid number",
            code="postgres-setting",
            hint=f"?{name}={default}",
        )
    return int(text)


def _where(parameters: Mapping[str, Any], schema: str) -> str:
    host = str(parameters.get("host") or parameters.get("hostaddr") or "localhost")
    port = f":{parameters['port']}" if parameters.get("port") else ""
    user = f"{parameters['user']}@" if parameters.get("user") else ""
    database = parameters.get("dbname") or ""
    return f"postgresql://{user}{host}{port}/{database} (schema {schema})"
