"""How the cutting proxy takes apart what clients of PostgreSQL send."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

from postgres_server import PostgresServer

from tests.servers.cutting_proxy import CuttingProxy, pieces

_SSL_OR_GSS = (80877103, 80877104)
_ENDS = b"SQXpH"


def proxy_of(server: PostgresServer, rewrite: Callable[[bytes], bytes] | None = None) -> CuttingProxy:
    """A proxy before a server."""
    return CuttingProxy(server.port, requests, late=8, rewrite=rewrite)


def requests(source: socket.socket) -> Iterable[bytes]:
    """What a client sends until it wants an answer, each as one: a statement, or several that are sent together."""
    held = b""
    at, started = 0, False
    for data in pieces(source):
        held += data
        while True:
            head = int(started)
            if len(held) < at + head + 4:
                break
            end = at + head + int.from_bytes(held[at + head : at + head + 4], "big")
            if len(held) < end:
                break
            wants = True
            if started:
                wants = held[at] in _ENDS
            else:
                started = int.from_bytes(held[at + 4 : at + 8], "big") not in _SSL_OR_GSS
            at = end
            if wants:
                yield held[:at]
                held, at = held[at:], 0
    if held:
        yield held
