"""A bound for one message over stdio. The SDK collects a line until it ends, and has no limit of its own.

The SDK reads the output of a program through a text encoding that its caller names. The one made here is UTF-8, and
ends the connection where a line is too long.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Final

from typing_extensions import Buffer, override

from noetic_mcp.errors import McpError

__all__ = ["END_CONNECTION", "bounded_utf8"]

_NAME: Final = re.compile(r"noetic_mcp_utf_8_(\d+)")
END_CONNECTION: Final[ContextVar[Callable[[str | McpError], None]]] = ContextVar("noetic_mcp_end_connection")
"""Ends the connection that is opened in this context, and says why."""


def bounded_utf8(limit: int) -> str:
    """The name of an encoding that is UTF-8 with lines of at most `limit` bytes, and a chunk more."""
    return f"noetic_mcp_utf_8_{limit}"


class _Decoder(codecs.IncrementalDecoder):
    def __init__(self, errors: str = "strict", *, limit: int) -> None:
        super().__init__(errors)
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)
        self._limit = limit
        self._end = END_CONNECTION.get()
        self._line = 0

    @override
    def decode(self, input: Buffer, final: bool = False) -> str:
        data = bytes(input)
        end = data.rfind(b"\n")
        self._line = self._line + len(data) if end < 0 else len(data) - end - 1
        if self._line > self._limit:
            why = f"it sent a message of more than {self._limit} bytes"
            self._end(why)
            # The SDK takes this error for a broken pipe, and drops what still comes.
            raise ConnectionError(why)
        return self._utf8.decode(data, final)


def _find(name: str) -> codecs.CodecInfo | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return codecs.CodecInfo(
        name=name,
        encode=codecs.utf_8_encode,
        decode=codecs.utf_8_decode,
        incrementaldecoder=partial(_Decoder, limit=int(found[1])),
    )


codecs.register(_find)
