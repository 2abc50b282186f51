"""A stored run without the code of its flow: its summary, its records, and the plan of a resume."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import frozen

from noetic_py.core.codec import Codec
from noetic_py.core.values import is_list
from noetic_py.errors import CodecError, CorruptRecord
from noetic_py.journal.fields import plain_summary, split_transformed, summary_trailer, wrap_summary
from noetic_py.journal.records import JournalRecord, load_record
from noetic_py.journal.stored import Record
from noetic_py.journal.transforms import JournalEnd

if TYPE_CHECKING:
    from noetic_py.core.control import RunStatus


class PlainCodec(Codec):
    """Makes what needs no class of a flow's; everything else stays stored JSON."""

    def decode(self, tree: object, type: object = object) -> object:
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
        run_id: The run, for messages.
        after: The position that the page begins at.

    Raises:
        CodecError: One cannot be read; the message says which.
    """
    for position, stored in enumerate(page, after + 1):
        try:
            yield stored.value if stored.value is not None else load_record(stored, codec)
        except CodecError as error:
            raise CodecError(error.message, where=f"record {position} of run {run_id}", hint=error.hint) from error


EndSignatures: TypeAlias = dict[str, bytes | None]
"""The value that each transform stored for the end of a journal, by its name; `None` where it stored nothing."""


def signed_summary(end: JournalEnd, signatures: EndSignatures) -> bytes:
    """A run's summary, followed by the end of its journal and the signatures of that end."""
    fields: dict[str, object] = {
        "position": end.position,
        "digest": end.digest.hex(),
        "status": end.status,
        "seals": {
            name: None if signature is None else base64.b64encode(signature).decode()
            for name, signature in signatures.items()
        },
    }
    if end.origins:
        fields["origins"] = [list(origin) for origin in end.origins]
    if end.store is not None:
        fields["store"] = end.store
    return wrap_summary(next(iter(signatures), ""), end.summary, json.dumps(fields, separators=(",", ":")).encode())


@frozen
class SummaryParts:
    """A stored summary, taken apart.

    Attributes:
        end: Where the journal ended when it was written; `None` when nothing says so.
        signatures: The signatures of that end.
        summary: The summary without that trailer.
    """

    end: JournalEnd | None
    signatures: EndSignatures
    summary: bytes


def summary_parts(run_id: str, stored: bytes) -> SummaryParts:
    """Split a stored summary into its parts; bytes without the mark of a transform are a plain summary.

    Raises:
        ValueError: It has a trailer, and that is damaged.
    """
    summary, trailer = plain_summary(stored), summary_trailer(stored)
    if split_transformed(stored) is None:
        return SummaryParts(None, {}, summary)
    try:
        fields = json.loads(trailer)
        signatures: EndSignatures = {
            str(name): None if signature is None else base64.b64decode(signature, validate=True)
            for name, signature in fields["seals"].items()
        }
        origins = tuple((str(run), int(at)) for run, at in fields.get("origins", ()))
        status = fields["status"]
        digest = bytes.fromhex(fields["digest"])
        end = JournalEnd(run_id, int(fields["position"]), digest, status, summary, origins, fields.get("store"))
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"the stored end of the journal is damaged: {type(error).__name__}") from error
    if signed_summary(end, signatures) != stored:
        # One way only to write it, so that every bit of it counts.
        raise ValueError("the stored end of the journal is damaged")
    return SummaryParts(end, signatures, summary)


def forked_from(fields: Mapping[str, object]) -> tuple[tuple[str, int], ...]:
    """The runs that a fork was made of, and at which position of its journal each ends; the latest is the last.

    Args:
        fields: Those of its summary.

    Raises:
        CorruptRecord: The summary names something else.
    """
    runs = fields.get("forked", [])
    if is_list(runs):
        pairs = [(each[0], each[1]) for each in runs if is_list(each) and len(each) == 2]
        found = tuple((run_id, at) for run_id, at in pairs if isinstance(run_id, str) and isinstance(at, int))
        if len(found) == len(runs):
            return found
    raise CorruptRecord(
        f"the summary of a run says that it is a fork of {runs!r:.60}", hint="restore the store from a backup"
    )


@frozen
class PlannedStep:
    """One step of a resume plan.

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
    """The plan of a resume.

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
