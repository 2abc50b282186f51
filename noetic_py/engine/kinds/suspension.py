"""Waiting for an answer: a step that asks ends its task, and begins again once its request is answered.

A request is a record at the step's path, committed before it is published. The step's task then ends with
`Waiting`: no failure, no attempt, nothing that a body can catch. What stands around it goes on as far as it can and
waits too, and when the root waits the run is suspended. An answer is a record at the same path; the flow is run again,
what is recorded replays, and the step finds its answer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py.context.step import AnyStep, Step
from noetic_py.core.codec.structure import dump
from noetic_py.core.control import Ask, Timer
from noetic_py.core.events import RequestMade
from noetic_py.core.types import T
from noetic_py.engine.execute import call_from_body
from noetic_py.engine.frame import Frame, Waiting, acting
from noetic_py.engine.journaling import ledger
from noetic_py.engine.journaling.run_history import request_of, store_time
from noetic_py.engine.journaling.writer import PlannedWrite
from noetic_py.engine.kind import Kind, Node
from noetic_py.engine.kinds.output import misfit
from noetic_py.engine.state import Run
from noetic_py.errors import AnswerInvalid, BudgetExceeded, ConfigError, Rejected, RequestExpired
from noetic_py.journal.records import Answered, Pending
from noetic_py.redaction import with_article
from noetic_py.tools.calls import plain

if TYPE_CHECKING:
    from noetic_py.engine.shared_budgets import RunBudgets


@frozen(eq=False)
class Request:
    """A request that a step is about to make.

    Attributes:
        kind: What it waits for.
        essence: What the answer holds for, and nothing else.
        call_id: The model's id of the call.
        tool: The tool.
        arguments: The arguments, as JSON text.
        prompt: What is asked.
        schema: JSON schema of the answer.
        expires: Seconds until it can be answered no more.
        rules: What the permission layers say of the tool.
        key: Its own id; made when empty.
        begins: The run that begins in the commit that stores it.
    """

    kind: Any
    essence: Sequence[object]
    call_id: str = ""
    tool: str = ""
    arguments: str = "{}"
    prompt: str = ""
    schema: Mapping[str, object] | None = None
    expires: float | None = None
    rules: object = None
    key: str = ""
    begins: PlannedWrite | None = None

    @property
    def digest(self) -> str:
        """The digest of the request that an answer is for."""
        return blake2b(dump([self.kind, *self.essence]), digest_size=32).hexdigest()


async def answer_to(frame: Frame, request: Request, *, problem: str | None = None) -> Answered:
    """The answer to a request of the step; without one the step waits.

    Args:
        frame: The step.
        request: What it asks.
        problem: Why the answer that there is cannot be taken: then it is asked once more.

    Raises:
        Waiting: There is none yet.
        RequestExpired: There is none, and the time for it is over.
        ConfigError: The run is not stored, so it could not be answered; or a step around it may run only once.
    """
    run, node = frame.x.run, frame.node
    digest = request.digest
    known = None if node is None or node.asked is None else node.asked[0]
    if known is not None and node is not None and known.digest == digest and problem is None:
        if node.answer is not None:
            return node.answer
        if known.expires is not None and datetime.fromisoformat(known.expires) <= await _now(run):
            raise RequestExpired(
                f"it was not answered until {known.expires}", path=frame.at, hint="give it more time: expires="
            )
        raise Waiting
    if problem is None and known is not None and node is not None and node.answer is not None:
        problem = _why_anew(request, known, node.answer)
    check(frame, request.kind)
    await _ask(frame, request, digest, problem)
    raise Waiting


OTHER_ARGUMENTS = "the tool would receive other arguments than those that were approved"


def _why_anew(request: Request, known: Pending, answer: Answered) -> str:
    """Why the answer to a request does not hold for the one that the step makes now."""
    if request.kind != known.kind:
        return f"the step asks for something else now: {request.kind}, not {known.kind}"
    if not known.tool:
        return "the question has changed since the answer"
    approved = answer.decision == "approved"
    if plain(request.arguments) != plain(known.arguments):
        return OTHER_ARGUMENTS if approved else "the tool would receive other arguments than those of the answer"
    return f"the tool has changed since the {'approval' if approved else 'answer'}"


async def request(frame: Frame, made: Request) -> Pending:
    """Store a request that ends by itself, before anything waits for it."""
    return await _ask(frame, made, "", None)


async def _now(run: Run) -> datetime:
    return run.runtime.now() if run.store is None else await store_time(run.store.backend, run.runtime)


def check(frame: Frame, kind: str) -> None:
    """Refuse to wait where no answer is possible, or the answer would come too late.

    Raises:
        ConfigError: Code `"no-backend"` or `"ask"`.
    """
    if frame.x.run.store is None:
        raise ConfigError(
            f"{with_article(kind)} was asked for in a run that is not stored, so no answer could reach it",
            code="no-backend",
            path=frame.at,
            hint='Harness(checkpoints="sqlite:runs.db"), or InMemoryBackend() for as long as the process lives',
        )
    node = frame.up
    while node is not None:
        why = _why_not(node)
        if why is not None:
            raise ConfigError(
                f"{with_article(kind)} was asked for {why}", code="ask", path=frame.at, hint="ask in a step before it"
            )
        node = node.up


def _why_not(frame: Frame) -> str | None:
    """Why nothing below a step can wait, when that is so."""
    if frame.step.replay == "once":
        return f"below {frame.step.id!r}, which may run only once: with the answer its body would begin again"
    if frame.wrap_up is not None:
        return "in a wrap-up, when the budget is spent already"
    return frame.kind.no_waiting


async def _ask(frame: Frame, request: Request, digest: str, problem: str | None) -> Pending:
    """Commit the request with all that stands before it, and say so afterwards."""
    run = frame.x.run
    now = await _now(run)
    record = Pending(
        frame.at,
        request.kind,
        request.key or run.runtime.new_id(),
        digest,
        request.call_id,
        request.tool,
        request.arguments,
        request.prompt,
        request.schema,
        now.isoformat(),
        None if request.expires is None else (now + timedelta(seconds=request.expires)).isoformat(),
        problem,
        request.rules,
    )
    ledger.prepare(frame, record)
    ledger.flush(frame.up)
    run.journal.append(record)
    if run.store is not None:
        if request.begins is not None:
            run.store.add_run(request.begins)
        await run.store.commit(run.journal, force=True)
    if run.bus.active:
        frame.publish(RequestMade(frame.at, request_of(record, run.run_id)))
    return record


# ------------------------------------------------------------------------------------------------------------ questions

ASK: AnyStep = Step(id="ask", kind="ask")


async def ask(frame: Frame, question: Ask[object] | Timer) -> Any:
    """Ask from a body, or sleep: a child step of its own, so that what was answered is not asked again."""
    if isinstance(question, Timer):
        return await call_from_body(acting(frame), SLEEP, question)
    tree = await call_from_body(acting(frame), ASK, question)
    return _fitting(question, tree)


async def run_ask(question: Ask[object], frame: Frame) -> object:
    """Wait for the answer; one that does not fit is asked for once more."""
    schema = question.adapter().json_schema()
    request = Request(
        "question", [question.prompt, schema], prompt=question.prompt, schema=schema, expires=question.expires
    )
    answered = await answer_to(frame, request)
    if answered.decision == "rejected":
        raise Rejected(answered.reason, path=frame.at)
    try:
        _fitting(question, answered.value)
    except AnswerInvalid as error:
        await answer_to(frame, request, problem=error.message)
    return answered.value


def _fitting(question: Ask[object], tree: object) -> object:
    """The answer as the type that was asked for.

    Raises:
        AnswerInvalid: It does not fit.
    """
    from pydantic import ValidationError

    try:
        # Strict: an answer is taken literally, and "1" is not a number.
        return question.adapter().validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        raise AnswerInvalid(misfit(error)) from None


# ---------------------------------------------------------------------------------------------------------------- time

SLEEP: AnyStep = Step(id="sleep", kind="sleep")
_SHORT = 5.0
"""Seconds that are waited for in the process, and not written down: a process that resumes the run waits once more."""


async def run_sleep(timer: Timer, frame: Frame) -> None:
    """Wait until a time: in the process, or suspended where a worker has the run, which then has room for others."""
    run, node = frame.x.run, frame.node
    known = None if node is None or node.asked is None else node.asked[0].expires
    now = await _now(run)
    ends = timer.ends(now) if known is None else datetime.fromisoformat(known)
    left = (ends - now).total_seconds()
    if left > _SHORT and run.store is not None and _may_wait(frame.up):
        if known is None:
            await request(frame, Request("timer", (), prompt=f"sleeps until {ends.isoformat()}", expires=left))
        if run.store.claimed is not None:
            raise Waiting
    await run.runtime.sleep(max(left, 0.0))


def _may_wait(node: Frame | None) -> bool:
    """Whether a body, and those around it, may begin again later."""
    while node is not None and _why_not(node) is None:
        node = node.up
    return node is None


async def with_room(frame: Frame, shared: RunBudgets, take: Callable[[], Awaitable[T]]) -> T:
    """Take of shared budgets before work begins; where one waits for room, the step waits, and begins again later.

    Waiting takes no more than `_SHORT` seconds of a worker, which may be what another run needs to give something back.

    Args:
        frame: The step whose work it is.
        shared: The budgets of its run.
        take: Takes of them.

    Raises:
        BudgetExceeded: One of them has no room, and is not waited for.
        Waiting: A worker has the run, which is suspended now.
    """
    run, waited = frame.x.run, 0.0
    while True:
        try:
            return await take()
        except BudgetExceeded as error:
            seconds = await shared.time_to_wait(error)
            if seconds is None:
                raise
            name = error.shared
        if waited + seconds > _SHORT and _may_leave(frame):
            prompt = f"waits for room in the shared budget {name!r}"
            await request(frame, Request("timer", (), prompt=prompt, expires=max(seconds, _SHORT)))
            raise Waiting
        await run.runtime.sleep(seconds)
        waited += seconds


def _may_leave(frame: Frame) -> bool:
    """Whether a worker has the run and may suspend it; the answer to an earlier request of the step has to stay."""
    store, asked = frame.x.run.store, None if frame.node is None else frame.node.asked
    if store is None or store.claimed is None:
        return False
    return (asked is None or asked[0].kind == "timer") and _may_wait(frame)


def _nothing(node: Node, codec: object = None) -> None:
    """A sleep has no output."""


def answer_of(node: Node, codec: object = None) -> object:
    """The answer to a request of a step; stored with the answer."""
    return None if node.answer is None else node.answer.value


KINDS = (
    Kind(
        "ask",
        run_ask,
        declared=False,
        reported=False,
        essence=lambda question: question.prompt,
        stored=False,
        load=answer_of,
    ),
    Kind("sleep", run_sleep, declared=False, reported=False, essence=lambda _: "", stored=False, load=_nothing),
)
