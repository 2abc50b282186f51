"""The history of a run, read from its journal: what a process needs to resume it, and which requests are open."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from noetic_py.channels import Entry
from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.core.budget import NO_USAGE, TokenUsage, Usage
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump
from noetic_py.core.control import END_BY_THEMSELVES, Answer, Control, PendingRequest, is_stream
from noetic_py.core.runtime import Runtime
from noetic_py.engine.journaling.deliveries import note_former_delivery
from noetic_py.engine.journaling.fold import FOLDED, Begun, forget_failure, tree
from noetic_py.engine.journaling.ledger import note_outcome
from noetic_py.engine.journaling.replay import migrated, revise
from noetic_py.engine.kind import Kinds, Node
from noetic_py.engine.progress import progress_of
from noetic_py.engine.state import OpenChildren, RecordedUsage, Run
from noetic_py.errors import AnswerConflict, AnswerInvalid, CodecError, RequestExpired, RequestNotFound, RunNotFound
from noetic_py.journal import values
from noetic_py.journal.records import (
    CHILD_USED,
    MESSAGE,
    Answered,
    AttemptFailed,
    CallStarted,
    Decision,
    Folded,
    Intent,
    JournalRecord,
    Pending,
    ResultDiscarded,
    RunBegun,
    RunEnded,
    StateRevised,
    StepFinished,
    StepOpened,
    StepStopped,
    check_journal,
)
from noetic_py.journal.run_summary import PlainCodec, load_records
from noetic_py.journal.values import Path, Stored
from noetic_py.redaction import with_article
from noetic_py.tools.calls import check_changed, plain

if TYPE_CHECKING:
    from noetic_py.core.items import JsonValue


def open_requests(journal: Sequence[JournalRecord], kinds: Kinds) -> dict[int, Pending]:
    """The open requests of a run by the positions of their records, in the order of the layout."""
    return dict(sorted(((position, record) for record, position in _open(tree(journal, kinds))), key=_place))


_INDEX = re.compile(r"[\[#](\d{1,9})\]?\Z")


def _place(found: tuple[int, Pending]) -> list[tuple[int, str]]:
    """Where a request's step stands: paths of a section and calls of a round by their index, whichever asked first."""
    numbers = [(_INDEX.search(frame), frame) for frame in found[1].path]
    return [(0 if number is None else int(number[1]), frame) for number, frame in numbers]


async def waiting(backend: CheckpointBackend, run_id: str, position: int) -> list[PendingRequest]:
    """The open requests of a suspended run, without reading the whole journal.

    Args:
        backend: Where it is kept.
        run_id: The run.
        position: How many records its journal holds; the last one says where the requests are.

    Raises:
        CodecError: A record cannot be read.
    """
    codec = PlainCodec()
    ended = await end_at(backend, run_id, position)
    if ended is None:
        # It was resumed meanwhile.
        return []
    found = [await record_at(backend, run_id, each, codec) for each in ended.pending]
    return [request_of(record, run_id) for record in found if isinstance(record, Pending)]


async def store_time(backend: CheckpointBackend, runtime: Runtime) -> datetime:
    """The moment that expiry goes by: the store's, where several machines use it, since their clocks may differ."""
    return datetime.fromtimestamp(await backend.clock(), UTC) if backend.shared else runtime.now()


async def end_at(backend: CheckpointBackend, run_id: str, position: int) -> RunEnded | None:
    """How a run had ended when its journal held so many records; `None` when it was going on.

    Raises:
        CodecError: The record cannot be read.
    """
    found = await record_at(backend, run_id, position - 1, PlainCodec()) if position > 0 else None
    return found if isinstance(found, RunEnded) else None


async def record_at(backend: CheckpointBackend, run_id: str, position: int, codec: Codec) -> JournalRecord | None:
    """The record at a position; `None` behind the end.

    Raises:
        CodecError: It cannot be read.
    """
    page = await backend.read(run_id, after=position, limit=1)
    return next(iter(load_records(page, codec, run_id, position)), None)


def has_open_requests(index: Node) -> bool:
    """Whether a run waits for an answer, by the tree of its steps."""
    return next(_open(index), None) is not None


def _open(node: Node) -> Iterator[tuple[Pending, int]]:
    done = node.finished is not None
    if node.asked is not None and node.answer is None and not done:
        yield node.asked
    for child in node.lasting:
        # Below a step that is done only what it has started beside the flow may still wait.
        goes_on = not done or child.finished is not None or child.kind.beside
        if goes_on and child.name not in node.failed:
            yield from _open(child)


def summary_of(requests: Sequence[Pending]) -> str:
    """The open requests of a run as one line."""
    each = [
        f"{record.kind} of {record.tool or _ASKED_BY.get(record.kind, 'ask')} at {'/'.join(record.path)}"
        for record in requests
    ]
    if not each:
        return "everything that it has waited for was answered"
    return f"waits for {'; '.join(each[:3])}" + (f" and {len(each) - 3} more" if len(each) > 3 else "")


_ASKED_BY = {"timer": "sleep", "run": "spawn"}


def request_of(record: Pending, run_id: str) -> PendingRequest:
    """A request as it is shown."""
    arguments: JsonValue = json.loads(record.arguments)
    return PendingRequest(
        run_id,
        record.key,
        record.kind,
        record.path,
        record.call_id or record.key,
        record.tool,
        arguments if isinstance(arguments, dict) else {},
        record.prompt,
        record.schema,
        datetime.fromisoformat(record.asked),
        None if record.expires is None else datetime.fromisoformat(record.expires),
        record.problem,
    )


def answers_for(run_id: str, index: Node, answers: Iterable[Answer], now: datetime) -> list[Answered]:
    """Check answers against what a run waits for; the records that say so, without those that are there already.

    Raises:
        RequestNotFound: The run does not wait for one of them.
        RequestExpired: It came too late.
        AnswerConflict: It says something else than an earlier one.
        AnswerInvalid: It is of the wrong kind.
        ArgumentsRefused: It changes the arguments to what the tool's schema does not take, or a rule denies.
    """
    asked = {
        record.key: (record, node) for node in _all(index) if node.asked is not None for record in (node.asked[0],)
    }
    still = {record.key for record, _ in _open(index)}
    made: dict[str, Answered] = {}
    for answer in answers:
        record, node = _asked(run_id, asked, answer)
        _check_answer(answer, record)
        changed = None if answer.arguments is None else json.dumps(answer.arguments, ensure_ascii=False)
        new = Answered(
            record.path, record.key, answer.decision, answer.value, answer.reason, answer.by, now.isoformat(), changed
        )
        before = made.get(record.key) or node.answer
        if before is not None:
            same_answer(before, new)
            continue
        if answer.key not in still:
            raise _not_found(answer, "it is no longer open")
        if record.expires is not None and datetime.fromisoformat(record.expires) <= now:
            raise RequestExpired(
                f"request {answer.key} could be answered until {record.expires}",
                path=record.path,
                hint="resume the run without an answer; its step handles the expiry",
            )
        check_changed(answer, record)
        made[record.key] = new
    return list(made.values())


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from _all(child)


def _asked(run_id: str, asked: Mapping[str, tuple[Pending, Node]], answer: Answer) -> tuple[Pending, Node]:
    given: object = answer
    if not isinstance(given, Answer):
        raise AnswerInvalid(
            f"{given!r:.100} is not a valid answer; expected an Answer",
            hint="pending.approve(), .reject(reason) or .answer(value)",
        )
    if answer.run_id != run_id:
        raise RequestNotFound("the answer is for another run", hint="look at runs.get(run_id).pending")
    if answer.key not in asked:
        raise _not_found(answer, "there is no such request in the run")
    return asked[answer.key]


def _not_found(answer: Answer, why: str) -> RequestNotFound:
    return RequestNotFound(f"request {answer.key}: {why}", hint="look at harness.runs.get(run_id).pending")


def _check_answer(answer: Answer, record: Pending) -> None:
    if record.kind in END_BY_THEMSELVES:
        raise AnswerInvalid(
            f"request {answer.key} is {with_article(record.kind)}, and takes no answer",
            path=record.path,
            hint="it ends by itself",
        )
    wanted = ("approved" if record.is_approval else "answered", "rejected")
    if answer.decision not in wanted:
        raise AnswerInvalid(
            f"request {answer.key} is {with_article(record.kind)}, and cannot be {answer.decision}",
            path=record.path,
            hint=" or ".join(wanted),
        )
    try:
        dump(answer.value)
    except CodecError as error:
        raise AnswerInvalid(f"the answer cannot be stored: {error.message}", path=record.path) from error


def same_answer(before: Answered, new: Answered) -> None:
    """Refuse an answer that says something else than an earlier one.

    Raises:
        AnswerConflict: It does.
    """
    said, says = [
        (each.decision, dump(each.value), each.reason, each.arguments and plain(each.arguments))
        for each in (before, new)
    ]
    if said != says:
        raise AnswerConflict(
            f"request {new.key} was {before.decision} before" + (f" by {before.by}" if before.by else ""),
            path=new.path,
            hint="the first answer holds",
        )


# Ends after which a run can be resumed.
_GO_ON = frozenset({"failed", "budget_exceeded"})
# Runs with this end are reported again, and nothing is added to them.
OVER = frozenset({"completed", "aborted"})
PAGE = 1000
"""Records read at once."""


@frozen(eq=False)
class RunHistory:
    """The contents of a journal.

    Attributes:
        started: Its head.
        records: All records.
        index: The tree of steps.
        ended: Its end, when it has one.
        revision: What a newer version of the state's type makes of it, and the journal does not hold yet.
        layers: What newer versions of layers make of it likewise.
        position: How many records it holds; summaries may stand for some of them.
        summaries: The positions of these summaries.
        answered: What was answered or sent just now, and the journal does not hold yet.
        summary: The run's summary as it was before the journal was read; `None` where it was not read.
    """

    started: RunBegun
    records: list[JournalRecord]
    index: Node
    ended: RunEnded | None
    revision: StateRevised | None = None
    answered: Sequence[Answered | Decision] = ()
    layers: StateRevised | None = None
    position: int = 0
    summaries: Sequence[int] = ()
    summary: bytes | None = None


async def read_journal(
    backend: CheckpointBackend, run_id: str, codec: Codec, *, upto: int | None = None
) -> list[JournalRecord]:
    """Every record of a run.

    Args:
        backend: Where it is kept.
        run_id: The run.
        codec: What reads it.
        upto: How many records it is known to hold, so that nothing is read to find its end.

    Raises:
        RunNotFound: There is no such run.
        CodecError: A record cannot be read, or refers to one that is not there; the message says which.
    """
    if is_stream(run_id):
        raise RunNotFound(f"there is no run {run_id!r}: it is a session's", hint="look at harness.runs.list()")
    found: list[JournalRecord] = []
    while True:
        page = await backend.read(run_id, after=len(found), limit=PAGE)
        found += load_records(page, codec, run_id, len(found))
        if not page or (upto is not None and len(found) >= upto):
            check_journal(found, run_id)
            return found


def run_history_of(
    records: list[JournalRecord], kinds: Kinds, run_id: str, kind: type[object] | None, codec: Codec
) -> RunHistory:
    """Read a journal.

    Args:
        records: What it holds.
        kinds: All kinds of steps.
        run_id: The run.
        kind: The type that its state has now.
        codec: What reads it.

    Raises:
        CodecError: The state cannot become one of that type.
        RunNotFound: It has no head, so there is nothing to go on with.
    """
    started = records[0] if records else None
    if not isinstance(started, RunBegun) or started.opening is None:
        raise RunNotFound(f"run {run_id!r} has no beginning", hint="it was never committed; start it again")
    ended = records[-1] if isinstance(records[-1], RunEnded) else None
    revise(records)
    revision = migrated(records, kinds, kind, codec)
    if revision is not None:
        revise([*records, revision])
    index = tree(records, kinds)
    if ended is not None and ended.status in _GO_ON:
        for record, _ in list(index.failed.values()):
            forget_failure(index, record)
    return RunHistory(started, records, index, ended, revision, position=len(records))


def answer(run_history: RunHistory, kinds: Kinds, run_id: str, answers: Iterable[Answer], now: datetime) -> RunHistory:
    """Resume a run with answers to its requests.

    Raises:
        AnswerError: One is not taken; then none is.
    """
    made = answers_for(run_id, run_history.index, answers, now)
    if not made:
        return run_history
    answered = [*run_history.answered, *made]
    return evolve(run_history, index=tree([*run_history.records, *answered], kinds), answered=answered)


def take_over(run: Run, run_history: RunHistory) -> None:
    """Continue a run where its journal ends."""
    run.journal.extend(run_history.records)
    if run.store is not None and run_history.summaries:
        run.store.unread = run_history.position - len(run_history.records)
        run.store.name_summaries(run_history.summaries)
    run.journal.extend(run_history.answered)
    steps = Begun(run.kinds)
    run.recorded_usage = recorded_usage(run_history.records, run.kinds, steps)
    run.begun = steps.attempts
    run.once = _once(run_history.records)
    run.turns = sum(usage.used.model_calls for usage in run.recorded_usage)
    run.context_turns = 0 if run_history.started.opening is None else run_history.started.opening.turns
    run.unpriced = is_unpriced(run_history.records)
    if any(isinstance(record, Pending) and record.kind == "run" for record in run_history.records):
        waits = open_requests(run_history.records, run.kinds).values()
        kept = {each.path: json.loads(each.arguments) for each in waits if each.kind == "run"}
        run.children = OpenChildren(
            {path: {name: Decimal(limit) for name, limit in limits.items()} for path, limits in kept.items()},
            count=len(kept),
        )
    run.stopped = _stops(run_history.records)
    run.progress.update(progress_of(run_history.records))
    run.limits.iterations += iterations_in(run_history.records, run.kinds)
    _deliver(run, run_history)
    if run_history.ended is None or run_history.ended.status not in OVER:
        run.journal.extend(each for each in (run_history.revision, run_history.layers) if each is not None)
    if any(isinstance(record, StepOpened) and run.kinds[record.kind].beside for record in run_history.records):
        run.recovered_work = set()
    run.messages = {each.key for each in run.journal if isinstance(each, Decision) and is_message(each)} or None
    run.sent = {
        each.path for each in run_history.records if isinstance(each, StepFinished) and run.kinds[each.kind].sends
    }


def is_unpriced(records: Iterable[JournalRecord]) -> bool:
    """Whether a model call has no known price."""
    for record in records:
        if isinstance(record, Folded) and record.stands and record.unpriced:
            return True
        if isinstance(record, Decision) and record.key == CHILD_USED and _is_without_price(record.value):
            return True
        if isinstance(record, (StepFinished, AttemptFailed, StepStopped)) and _has_no_price(record):
            return True
    return False


def _is_without_price(used: Any) -> bool:
    return used["calls"] > 0 and used["cost"] is None


def _has_no_price(record: StepFinished | AttemptFailed | StepStopped) -> bool:
    return record.calls > 0 and record.usage is not None and record.cost is None


def iterations_in(records: Sequence[JournalRecord], kinds: Kinds, loop: Path | None = None) -> int:
    """How often bodies of loops and steps of handoff chains have ended, in discarded attempts too.

    `loop` is one more loop, of which the records do not say that it is one.
    """
    named = (StepOpened, StepFinished, AttemptFailed)
    loops = {record.path for record in records if isinstance(record, named) and kinds[record.kind].rounds} | {loop}
    ended = (record for record in records if isinstance(record, (StepFinished, AttemptFailed)))
    summed_up: int = sum(record.iterations for record in records if isinstance(record, Folded) and record.stands)
    count: int = sum(
        record.path[:-1] in loops and record.path[-1] != "wrap_up" and getattr(record, "final", True)
        for record in ended
    )
    return summed_up + count


def recorded_usage(records: Sequence[JournalRecord], kinds: Kinds, steps: Begun) -> list[RecordedUsage]:
    """The usage of every attempt (finished, failed, stopped, discarded), each once; `steps` counts them."""
    # The places of the calls whose outcome is not known.
    begun: dict[Path, list[int]] = {}
    answered: set[int] = set()
    named = (StepOpened, StepFinished, AttemptFailed, StepStopped)
    spawns = {record.path for record in records if isinstance(record, named) and kinds[record.kind].execution}
    found: list[RecordedUsage] = []
    for record in records:
        counted = steps.read(record)
        if isinstance(record, CallStarted):
            begun.setdefault(record.path, []).append(len(found))
            found.append(_open_call(record, spawns))
        elif isinstance(record, (Folded, Decision)):
            found += _of_others(record)
            found += [RecordedUsage(path, _NOTHING, 1, None, _execution(path, spawns)) for path in counted]
        elif isinstance(record, (StepFinished, AttemptFailed, StepStopped)):
            if record.calls and record.path in begun:
                # Its own are the last ones; those before were in flight when an earlier owner died.
                answered.update(begun[record.path][-record.calls :])
                del begun[record.path][-record.calls :]
            used = Usage(record.usage or NO_USAGE, record.cost, record.calls)
            usage = RecordedUsage(record.path, used, len(counted), record.tool, _execution(record.path, spawns))
            if usage.steps or usage.tool or used != _NOTHING:
                found.append(usage)
            if isinstance(record, AttemptFailed) and not record.final:
                found = [each.discarded_with(record.path) for each in found]
        elif isinstance(record, ResultDiscarded) and record.path[-1] == "wrap_up":
            # Another wrap-up has the whole reserve.
            found = [each.discarded_with(record.path) for each in found]
        else:
            found += [RecordedUsage(path, _NOTHING, 1, None, _execution(path, spawns)) for path in counted]
    return [each for place, each in enumerate(found) if place not in answered]


def _open_call(call: CallStarted, spawns: set[Path]) -> RecordedUsage:
    """A call of which it is not known whether the provider has charged it: its whole reservation counts as spent."""
    tokens = TokenUsage(call.reserved_tokens - call.reserved_output, call.reserved_output)
    most = Usage(tokens, call.reserved_cost, 1)
    return RecordedUsage(call.path, most, 0, None, _execution(call.path, spawns), sure=False)


def _of_others(record: Folded | Decision) -> list[RecordedUsage]:
    """What the rounds that a summary stands for have used, or a run that a worker has carried out."""
    if isinstance(record, Folded):
        used = Usage(record.usage or NO_USAGE, record.cost, record.calls)
        usage = RecordedUsage((*record.path, FOLDED), used, record.steps, None)
        return [usage] if record.stands and (usage.steps or used != _NOTHING) else []
    if record.key != CHILD_USED:
        return []
    value, cost, path = record.value, record.value["cost"], (*record.path, CHILD_USED)
    used = Usage(values.read_usage(value["usage"]) or NO_USAGE, None if cost is None else Decimal(cost), value["calls"])
    tools = [RecordedUsage(path, _NOTHING, 0, tool, record.path) for tool in value["tools"]]
    return [RecordedUsage(path, used, value["steps"], None, record.path), *tools]


def _execution(path: Path, spawns: set[Path]) -> Path:
    """The innermost execution around a step."""
    return next((path[:depth] for depth in range(len(path) - 1, 0, -1) if path[:depth] in spawns), ())


_NOTHING = Usage(NO_USAGE, None, 0)


def _stops(records: Sequence[JournalRecord]) -> list[Control]:
    """The stops that were committed and hold, the first of each execution."""
    found: dict[Path, Control] = {}
    for record in records:
        if isinstance(record, AttemptFailed) and not record.final:
            # Requests of the attempt are discarded with it.
            depth = len(record.path)
            found = {at: control for at, control in found.items() if at[:depth] != record.path}
        control = record.control if isinstance(record, (StepFinished, AttemptFailed, StepStopped)) else None
        if control is not None:
            found.setdefault(control.at, control)
    return list(found.values())


def _once(records: Sequence[JournalRecord]) -> dict[Path, Intent | StepFinished | AttemptFailed]:
    """The known outcomes of steps that may run only once."""
    found: dict[Path, Intent | StepFinished | AttemptFailed] = {}
    for record in records:
        if isinstance(record, Intent):
            found[record.path] = record
        elif isinstance(record, Pending):
            # A tool that waits for approval has not started.
            found.pop(record.path, None)
        elif record.path in found and isinstance(record, (StepFinished, AttemptFailed)):
            note_outcome(found, record)
    return found


def _deliver(run: Run, run_history: RunHistory) -> None:
    """Put messages that were sent where they are to be found, and those taken where they may come back from."""
    takers = dict(_takes(run_history.index))
    for sender, (name, value) in _sent((*run_history.records, *run_history.answered), run.kinds):
        there = run.stored_messages.setdefault(name, [])
        entry = Entry(len(there) + 1, value, sender not in takers, sender)
        there.append(entry)
        if not entry.placed:
            note_former_delivery(run, takers[sender], name, entry)


def _sent(records: Iterable[JournalRecord], kinds: Kinds) -> Iterator[tuple[Path, Any]]:
    """What was sent, as a channel's name and a value, by the path of the send, or by the key of another process."""
    sent: set[Path] = set()
    for record in records:
        if isinstance(record, Decision) and is_message(record):
            yield (record.key,), record.value
        # A second attempt's send is recorded, and has sent nothing.
        elif isinstance(record, StepFinished) and kinds[record.kind].sends and record.path not in sent:
            sent.add(record.path)
            if isinstance(record.output, Stored):
                yield record.path, record.output.tree


def is_message(decision: Decision) -> bool:
    """Whether it puts a message of another process into a channel."""
    return not decision.path and decision.key.startswith(f"{MESSAGE}[")


def _takes(node: Node) -> Iterator[tuple[Path, Path]]:
    """The messages that were taken for good, by the paths of their sends, each with the path of its taker."""
    yield from ((sender, node.path) for sender in node.takes)
    for key, value in node.decisions.items():
        if key.endswith(".from"):
            yield tuple(value), (*node.path, key.removesuffix(".from"))
    for child in node.lasting:
        yield from _takes(child)
