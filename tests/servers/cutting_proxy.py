"""A proxy before the server that loses connections on purpose, at a moment that the test chooses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, TypeAlias

__all__ = ["CuttingProxy", "How", "pieces"]

How: TypeAlias = Literal["before", "after", "late", "half", "stall"]
"""What becomes of what the client has sent: nobody gets it, the server does and its answer is lost, the server does
but only when the client has long connected anew, the server gets the half of it, or nothing happens and nothing is
closed."""

_PIECE = 256 * 1024
_PATIENCE = 10


class _Pair:
    """A client's connection and the one to the server behind it."""

    def __init__(self, client: socket.socket, upstream: socket.socket) -> None:
        self.client = client
        self.upstream = upstream
        self.deaf = False
        self.answered = threading.Event()

    def close(self) -> None:
        for one in (self.client, self.upstream):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class CuttingProxy:
    """Passes bytes between clients and a server.

    Args:
        port: The server's.
        requests: What a client sends until it wants an answer, each as one.
        late: How many requests later something arrives that is late: the new connection has said then who it is, and is
            about to ask what became of it.
        rewrite: Changes what the server says; the length has to stay.

    Attributes:
        port: Its own.
        sent: How many statements, or several in one, clients have sent since `arm`.
        cut: How many connections it has lost since then.
        refusing: Whether it takes no connections.
    """

    def __init__(
        self,
        port: int,
        requests: Callable[[socket.socket], Iterable[bytes]],
        *,
        late: int,
        rewrite: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._server = port
        self._split = requests
        self._late = late
        self._rewrite = rewrite
        self._lock = threading.Lock()
        self._cuts: dict[int, How] = {}
        self._pairs: list[_Pair] = []
        self._held: list[tuple[int, _Pair, bytes]] = []
        self._threads: list[threading.Thread] = []
        self.sent = 0
        self.cut = 0
        self.refusing = False

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None, /) -> None:
        # A blocked accept does not notice that its socket is closed.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.close()
        for thread in self._threads:
            thread.join(20)
        for pair in pairs:
            pair.client.close()
            pair.upstream.close()

    def arm(self, cuts: dict[int, How] | None = None) -> None:
        """Count from 1 anew, and lose connections at these statements."""
        with self._lock:
            self.sent = self.cut = 0
            self._cuts = dict(cuts or {})

    def lose_all(self) -> None:
        """Lose all connections now."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            pair.close()

    def swallow(self) -> None:
        """Pass on no answer to those who are connected now; nothing is closed."""
        with self._lock:
            for pair in self._pairs:
                pair.deaf = True

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refusing:
                    raise ConnectionRefusedError
                upstream = socket.create_connection(("127.0.0.1", self._server), timeout=10)
            except OSError:
                client.close()
                continue
            upstream.settimeout(None)
            for one in (client, upstream):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = _Pair(client, upstream)
            with self._lock:
                self._pairs.append(pair)
            self._start(self._requests, pair)
            self._start(self._answers, pair)

    def _requests(self, pair: _Pair) -> None:
        for data in self._split(pair.client):
            with self._lock:
                self.sent += 1
                how = self._cuts.pop(self.sent, None)
                self.cut += how is not None
                due = [held for held in self._held if held[0] <= self.sent]
                self._held = [held for held in self._held if held[0] > self.sent]
            for _, other, late in due:
                with suppress(OSError):
                    other.upstream.sendall(late)
            if how is None:
                with suppress(OSError):
                    pair.upstream.sendall(data)
                continue
            self._lose(pair, data, how)
            return
        pair.close()

    def _lose(self, pair: _Pair, data: bytes, how: How) -> None:
        pair.deaf = True
        pair.answered.clear()
        with suppress(OSError):
            if how == "stall":
                return
            if how == "late":
                with self._lock:
                    self._held.append((self.sent + self._late, pair, data))
                pair.client.shutdown(socket.SHUT_RDWR)
                return
            if how == "half":
                pair.upstream.sendall(data[: len(data) // 2])
            elif how == "after":
                pair.upstream.sendall(data)
                pair.answered.wait(_PATIENCE)
        pair.close()

    def _answers(self, pair: _Pair) -> None:
        for data in pieces(pair.upstream):
            pair.answered.set()
            if pair.deaf:
                continue
            with suppress(OSError):
                pair.client.sendall(self._rewrite(data) if self._rewrite is not None else data)
        pair.answered.set()
        if not pair.deaf:
            pair.close()


def pieces(source: socket.socket) -> Iterable[bytes]:
    """What comes, as it comes, until nothing does."""
    while True:
        try:
            data = source.recv(_PIECE)
        except OSError:
            return
        if not data:
            return
        yield data
