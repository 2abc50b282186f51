"""`SessionKey`: whose conversation, and the id under which a backend keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from attrs import field, frozen

from noetic_py.errors import InvalidId

SESSION = "session"
"""The status of a session's stream, by which lists of runs know it."""

_PREFIX = "session."


def stream_of(parts: Sequence[str | None]) -> str:
    """The id of a session's stream: a digest, so that no id is ever a part of another one."""
    import hashlib

    return _PREFIX + hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def is_stream(run_id: str) -> bool:
    """Whether an id is that of a session's stream, which no run may have."""
    return run_id.startswith(_PREFIX)


_MAX_ID = 256


def check_callers_id(value: object, name: str) -> None:
    """Refuse what a caller gives as an id and what cannot be one.

    Raises:
        InvalidId: It is not text, is empty or too long, or holds control characters or a lone surrogate.
    """
    if not isinstance(value, str) or not value or len(value) > _MAX_ID or not value.isprintable():
        raise InvalidId(
            f"{value!r:.80} is not a valid {name}; expected a printable text of 1 to {_MAX_ID} characters",
            hint="use a UUID, or a short name",
        )


def _or_none(value: str | None) -> str | None:
    return value or None


@frozen
class SessionKey:
    """Whose conversation, and which of them. Two keys are one session exactly when all three parts are equal.

    Args:
        user: Whose; `None` and the empty text are one user, the anonymous user.
        session: Which conversation of that user.
        app: Of which application, where several share a backend.

    Raises:
        InvalidId: A part is no printable text of at most 256 characters, or `session` is empty.
    """

    user: str | None = field(converter=_or_none)
    session: str
    app: str | None = field(default=None, kw_only=True, converter=_or_none)

    def __attrs_post_init__(self) -> None:
        """Refuse what is no id."""
        for name in ("user", "session", "app"):
            if (part := getattr(self, name)) not in (None, ""):
                check_callers_id(part, name)
        if not self.session or not self.session.strip():
            raise InvalidId("session is empty", hint="a UUID for each conversation")

    @property
    def parts(self) -> tuple[str | None, str | None, str]:
        """Application, user and session."""
        return self.app, self.user, self.session

    @property
    def stream(self) -> str:
        """The id under which a backend keeps the session, which is also the `thread_id` of its runs."""
        return stream_of(self.parts)
