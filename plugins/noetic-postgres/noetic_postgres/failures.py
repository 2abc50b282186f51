"""Maps errors of PostgreSQL and its driver to those of noetic_py: where it happened and what to do.

Nothing that the server or the driver says is passed on: it may quote a password, a statement, or what is in a row.
"""

from __future__ import annotations

import psycopg

from noetic_py.errors import CheckpointError, CorruptRecord, StoreUnavailable

__all__ = ["from_connecting", "from_server", "is_busy", "is_lost", "is_passing", "unknown_outcome"]

_Case = tuple[str, str, str]

_ROLE = "give the role its rights, or use another one"
_SERVER: dict[str, _Case] = {
    "25006": (
        "readonly",
        "the server takes no writes",
        "connect to the primary: target_session_attrs=read-write, several hosts in the address",
    ),
    "42501": ("permission", "the role may not do this", _ROLE),
    "42P01": ("schema", "the tables are gone", "the schema was dropped; make a new backend, or restore a backup"),
    "42703": ("schema", "the tables are not those that were made", "give another schema="),
    "42P07": ("schema", "the schema holds other tables of these names", "give another schema="),
    "3F000": ("schema", "the schema is gone", "make a new backend"),
    "53100": ("full", "the server's disk is full", "free space there, then resume the run"),
    "53200": ("memory", "the server's memory ran out", "give the server more memory"),
    "53300": ("connections", "the server has no connection left", "lower connections=, or raise its max_connections"),
    "54000": ("limit", "a limit of the server was reached", "store less at once"),
    "55P03": ("busy", "a lock was not given in time", "look for a transaction that hangs, or raise timeout="),
    "57014": ("timeout", "the server gave the statement up", "raise its statement_timeout, or look what is slow"),
    "0A000": ("server", "the server cannot do this", "use PostgreSQL 15 or newer"),
}
_RESTORE = "restore a copy of the database"
_DAMAGED = frozenset({"XX001", "XX002"})

# Errors while connecting come as text only, without a code.
_CONNECTING: tuple[tuple[tuple[str, ...], _Case], ...] = (
    (
        ("password authentication failed", "no password supplied", "authentication failed"),
        ("auth", "the server refused the user or the password", "look at both; a password may come from PGPASSWORD"),
    ),
    (
        ("no pg_hba.conf entry", "pg_hba.conf rejects"),
        ("auth", "the server refuses connections from this host", "check its pg_hba.conf, and sslmode="),
    ),
    (
        ("too many clients", "remaining connection slots", "too many connections"),
        _SERVER["53300"],
    ),
    (
        ("starting up", "shutting down", "recovery mode", "not yet accepting", "not accepting connections"),
        ("starting", "the server is starting or stopping", "try again in a moment"),
    ),
    (
        ("is not permitted to log in",),
        ("auth", "the role may not log in", _ROLE),
    ),
    (
        ("session is read-only", "session is not read-only", "not in hot standby", "server is in hot standby"),
        ("readonly", "no server of the address takes writes", "look which one is the primary"),
    ),
    (
        ("certificate", "ssl", "tls"),
        ("tls", "no encrypted connection came about", "look at sslmode= and sslrootcert="),
    ),
    (
        ("could not translate host name", "name or service not known", "failed to resolve", "getaddrinfo"),
        ("unreachable", "the server's name is not known", "look at the host in the address"),
    ),
    (
        ("closed the connection", "could not receive", "could not send", "reset by peer", "refused", "is bad"),
        ("unreachable", "the server could not be reached", "start the server, or check host and port in the address"),
    ),
    (
        ("timeout", "timed out"),
        ("unreachable", "the server did not answer in time", "look at the address, at the network, and at firewalls"),
    ),
)
_NO_DATABASE: _Case = ("database", "there is no such database", "create it: createdb NAME")
_NO_ROLE: _Case = ("auth", "the server refused the user or the password", "look at both")
_NO_SERVER: _Case = (
    "unreachable",
    "the server could not be reached",
    "start the server, or check host and port in the address",
)


def _unavailable(where: str, case: _Case, code: str = "") -> StoreUnavailable:
    reason, what, hint = case
    said = f" ({code})" if code else ""
    return StoreUnavailable(f"{where}: {what}{said}", where=where, reason=reason, hint=hint)


def from_connecting(error: psycopg.Error, where: str) -> StoreUnavailable:
    """The library's error for a connection that did not come about."""
    said = str(error).lower()
    if "does not exist" in said and "database" in said and "role" not in said.partition("fatal:")[2]:
        return _unavailable(where, _NO_DATABASE)
    if "does not exist" in said and "role" in said:
        return _unavailable(where, _NO_ROLE)
    for texts, case in _CONNECTING:
        if any(text in said for text in texts):
            return _unavailable(where, case)
    # A server that speaks another language than English has answered nevertheless.
    pgconn = error.pgconn
    if pgconn is not None and (pgconn.used_password or pgconn.needs_password):
        return _unavailable(where, _CONNECTING[0][1])
    return _unavailable(where, _NO_SERVER)


def from_server(error: psycopg.Error, where: str) -> CheckpointError:
    """The library's error for a statement that was refused."""
    code = error.sqlstate or ""
    if isinstance(error, psycopg.DataError):
        # Written values were checked before, so stored data cannot be read by the server or the driver.
        return CorruptRecord(f"{where}: a stored value is damaged ({code or 'driver'})", hint=_RESTORE)
    if code in _DAMAGED:
        return CorruptRecord(f"{where}: the server says that its files are damaged ({code})", hint=_RESTORE)
    found = _SERVER.get(code) or _SERVER.get(f"{code[:2]}000")
    if found is not None:
        return _unavailable(where, found, code)
    if not code or code[:2] in ("08", "57"):
        return _unavailable(where, ("lost", "the connection was lost", "look at the server and at the network"), code)
    return _unavailable(where, ("server", f"the server refused a statement: {type(error).__name__}", "report it"), code)


def unknown_outcome(where: str) -> StoreUnavailable:
    """The error for a write of which it is not known whether it was taken."""
    return StoreUnavailable(
        f"{where}: the connection was lost during a commit, and whether it was taken could not be found out in time",
        where=where,
        reason="unknown",
        hint="resume the run when the server is back: it reads what is there",
    )


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone with the error, so that a commit under way may have been taken or not."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return error.diag.severity_nonlocalized in ("FATAL", "PANIC") or error.sqlstate[:2] == "08"


def is_busy(error: psycopg.Error) -> bool:
    """Whether the statement was undone because it waited too long for a lock."""
    return error.sqlstate == "55P03"


def is_passing(error: psycopg.Error) -> bool:
    """Whether the statement was undone only because of another one beside it."""
    return error.sqlstate in ("40001", "40P01")
