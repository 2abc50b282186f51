"""Heads of runs: what a run's small file says."""

from __future__ import annotations

from attrs import frozen

from noetic_py.checkpoints._files.sealed import seal, unseal
from noetic_py.checkpoints._local.moments import moment
from noetic_py.checkpoints._local.rules import RESTORE
from noetic_py.checkpoints.backend import RunEntry
from noetic_py.errors import CorruptRecord

__all__ = ["Part", "RunHead", "load_head", "store_head"]


@frozen
class Part:
    """A part of a run's journal: one file.

    Attributes:
        stream: The number of the run that writes it.
        upto: The position that it is read up to.
        end: Where that is in the file.
    """

    stream: int
    upto: int
    end: int


@frozen
class RunHead:
    """A run; times are microseconds since 1970.

    Attributes:
        run_id: The run.
        number: Its number, later runs have larger ones.
        parts: Its journal, the last part its own and the others shared with what it was forked from.
        fence: Of its latest owner.
        owner: Who holds it, 0 for nobody.
        created: When it was first written.
        updated: When it was last written.
        status: The text stored with it.
        card: The bytes stored with it.
    """

    run_id: str
    number: int
    parts: tuple[Part, ...]
    fence: int
    owner: int
    created: int
    updated: int
    status: str | None
    card: bytes

    @property
    def own(self) -> Part:
        """The part that it appends to."""
        return self.parts[-1]

    @property
    def position(self) -> int:
        """Where its journal ends."""
        return self.own.upto

    def entry(self, *, held: bool) -> RunEntry:
        """The run, as lists show it."""
        return RunEntry(
            run_id=self.run_id,
            position=self.position,
            status=self.status,
            card=self.card,
            created=moment(self.created),
            updated=moment(self.updated),
            held=held,
            cursor=self.number,
        )


def store_head(head: RunHead, *, seed: int) -> bytes:
    """The content of a run's small file."""
    fields: dict[str, object] = {
        "run_id": head.run_id,
        "number": head.number,
        "position": head.position,
        "status": head.status,
        "fence": head.fence,
        "owner": head.owner,
        "created": head.created,
        "updated": head.updated,
        "parts": [[part.stream, part.upto, part.end] for part in head.parts],
    }
    return seal(fields, head.card, seed=seed)


def load_head(content: bytes, what: str, *, seed: int) -> RunHead:
    """The head that `store_head` has stored.

    Raises:
        CorruptRecord: It is not what was written.
    """
    fields, card = unseal(content, what, seed=seed)
    match fields:
        case {
            "run_id": str(run_id),
            "number": int(number),
            "status": (str() | None) as status,
            "fence": int(fence),
            "owner": int(owner),
            "created": int(created),
            "updated": int(updated),
            "parts": [*parts],
        } if parts:
            shares = tuple(Part(*part) for part in parts)
            return RunHead(run_id, number, shares, fence, owner, created, updated, status, card)
        case _:
            raise CorruptRecord(f"{what} is none", hint=RESTORE)
