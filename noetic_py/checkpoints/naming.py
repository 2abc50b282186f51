"""The ids under which sessions are kept, apart from those of runs; loads nothing."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SESSION", "is_stream", "stream_of"]

SESSION = "session"
"""The status of a session's stream, by which lists of runs know it."""
_PREFIX = "session."


def stream_of(parts: Sequence[str | None]) -> str:
    """The id of a session's stream: a digest, so that no id is ever a part of another one."""
    import hashlib
    import json

    return _PREFIX + hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def is_stream(run_id: str) -> bool:
    """Whether an id is that of a session's stream, which no run may have."""
    return run_id.startswith(_PREFIX)
