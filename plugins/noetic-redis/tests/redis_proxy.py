"""How the cutting proxy takes apart what clients of Redis send."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from redis_server import RedisServer

from tests.servers.cutting_proxy import CuttingProxy, pieces

_GREETING = 8
"""How many commands a new connection sends before its first script."""


def proxy_of(server: RedisServer, *, late: int = _GREETING + 1) -> CuttingProxy:
    """A proxy before a server; what is late arrives just before the write that is sent again, unless `late` says so."""
    return CuttingProxy(server.port, requests, late=late)


def requests(source: socket.socket) -> Iterable[bytes]:
    """The commands that a client sends, each as one."""
    held = b""
    for data in pieces(source):
        held += data
        while (end := _end(held)) is not None:
            yield held[:end]
            held = held[end:]
    if held:
        yield held


def _end(held: bytes) -> int | None:
    """Where the first command ends, `None` when it is not whole: an array of texts, each with its length before it."""
    line = held.find(b"\r\n")
    if line < 0:
        return None
    count, at = int(held[1:line]), line + 2
    for _ in range(count):
        line = held.find(b"\r\n", at)
        if line < 0:
            return None
        at = line + 2 + int(held[at + 1 : line]) + 2
    return at if at <= len(held) else None
