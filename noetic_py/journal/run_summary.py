"""What is known of a stored run without the code of its flow: its summary, its records, and the plan of a resume."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import frozen

from noetic_py.core.codec import Codec
from noetic_py.errors import CodecError
from noetic_py.journal.fields import beside_summary, opened, plain_summary, sealed_around
from noetic_py.journal.records import JournalRecord, load_record
from noetic_py.journal.stored import Record
from noetic_py.journal.transforms import JournalEnd

if TYPE_CHECKING:
    from noetic_py.core.control import RunStatus


class PlainCodec(Codec):
    """Makes what needs no class of a flow's; everything else stays stored JSON."""

    def decode(self, tree: object, type: object = object) -> Any:
        """The value, or the tree as it is when it holds a class that is not known here."""
        try:
            return super().decode(tree, type)
        except CodecError:
            return tree


def load_records(page: Iterable[Record], codec: Codec, run_id: str, after: int) -> Iterator[JournalRecord]:
    """The records of a page.

    Args:
        page: As they are stored.
        codec: For the values in them.
        run_id: Whose they are, for messages.
        after: The position that the page begins at.

    Raises:
        CodecError: One cannot be read; the message says which.
    """
    for position, stored in enumerate(page, after + 1):
        try:
            yield stored.value if stored.value is not None else load_record(stored, codec)
        except CodecError as error:
            raise CodecError(error.message, where=f"record {position} of run {run_id}", hint=error.hint) from error


Seals: TypeAlias = dict[str, bytes | None]
"""What transforms have stored beside the end of a journal, by the names of all that were there."""


def sealed_summary(end: JournalEnd, seals: Seals) -> bytes:
    """A run's summary with where its journal ends, and what seals that."""
    fields: dict[str, Any] = {
        "position": end.position,
        "digest": end.digest.hex(),
        "status": end.status,
        "seals": {name: None if seal is None else base64.b64encode(seal).decode() for name, seal in seals.items()},
    }
    if end.origins:
        fields["origins"] = [list(origin) for origin in end.origins]
    if end.store is not None:
        fields["store"] = end.store
    return sealed_around(next(iter(seals), ""), end.summary, json.dumps(fields, separators=(",", ":")).encode())


@frozen
class SummaryParts:
    """A stored summary, taken apart.

    Attributes:
        end: Where the journal ended when it was written; `None` when nothing says so.
        seals: What seals that.
        summary: The summary as its owner gave it.
    """

    end: JournalEnd | None
    seals: Seals
    summary: bytes


def sealed_parts(run_id: str, stored: bytes) -> SummaryParts:
    """Split a stored summary into its parts; bytes without the mark of a transform are a plain summary.

    Raises:
        ValueError: It is sealed, and damaged.
    """
    summary, beside = plain_summary(stored), beside_summary(stored)
    if opened(stored) is None:
        return SummaryParts(None, {}, summary)
    try:
        fields = json.loads(beside)
        seals: Seals = {
            str(name): None if seal is None else base64.b64decode(seal, validate=True)
            for name, seal in fields["seals"].items()
        }
        origins = tuple((str(run), int(at)) for run, at in fields.get("origins", ()))
        status = fields["status"]
        digest = bytes.fromhex(fields["digest"])
        end = JournalEnd(run_id, int(fields["position"]), digest, status, summary, origins, fields.get("store"))
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"what is kept beside the end of the journal is damaged: {type(error).__name__}") from error
    if sealed_summary(end, seals) != stored:
        # One way only to write it, so that every bit of it counts.
        raise ValueError("what is kept beside the end of the journal is damaged")
    return SummaryParts(end, seals, summary)


@frozen
class PlannedStep:
    """One step of a run that would go on.

    Attributes:
        path: The step.
        kind: Its kind.
        action: `"replay"`: it gives its recorded outcome. `"run"`: its body runs. `"differ"`: the flow is not the one
            that was recorded, so the run would fail there. `"unknown"`: it may run only once, and it is unknown whether
            it has.
        reason: Why, where the action does not say it.
    """

    path: tuple[str, ...]
    kind: str
    action: Literal["replay", "run", "differ", "unknown"]
    reason: str | None = None


@frozen
class ResumePlan:
    """What going on with a run would do.

    Attributes:
        run_id: The run.
        status: How it stands.
        steps: What would happen, in the order of the flow as far as that is known. Below a step that is replayed
            nothing is listed; what a body or a route will choose is not known yet.
    """

    run_id: str
    status: RunStatus
    steps: tuple[PlannedStep, ...]

    @property
    def diverges(self) -> bool:
        """Whether the flow differs from what is recorded."""
        return any(step.action == "differ" for step in self.steps)
