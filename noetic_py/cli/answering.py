"""The open requests of a suspended run, as text and JSON; and `noetic answer`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from attrs import frozen

from noetic_py.cli.database import chosen, find, flag, read_runs, resume_line
from noetic_py.cli.formatting import plural, printable
from noetic_py.cli.record_lines import pending_lines, pending_objects
from noetic_py.cli.report import say, write_out
from noetic_py.core.control import END_BY_THEMSELVES
from noetic_py.core.values import is_dict
from noetic_py.errors import AnswerInvalid, ConfigError, RequestNotFound

if TYPE_CHECKING:
    from noetic_py.core.control import Answer, PendingRequest
    from noetic_py.runner.runs import RunInfo


@frozen
class CommandLineDecision:
    """The answer that a command line gives to a request.

    Attributes:
        approve: Whether it says yes.
        reject: Whether it says no.
        value: JSON, or else text, of an answer or a result.
        reason: Why not.
        by: The name of the person who answers.
        arguments: JSON of the arguments in place of the model's own, with which it says yes.
    """

    approve: bool = False
    reject: bool = False
    value: str | None = None
    reason: str = ""
    by: str | None = None
    arguments: str | None = None

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            ConfigError: Code `"answer"`.
        """
        if self.approve + self.reject + (self.value is not None) > 1:
            raise ConfigError(
                "--approve, --reject and --value say different things", code="answer", hint="give one of them"
            )
        if self.arguments is not None and not self.approve:
            raise ConfigError("--arguments goes with --approve", code="answer", hint="--approve --arguments JSON")

    @property
    def is_none(self) -> bool:
        """Whether it says nothing, so that a person has to be asked."""
        return not self.approve and not self.reject and self.value is None


async def answer(db: str | None, name: str, wanted: str | None, decision: CommandLineDecision, *, as_json: bool) -> int:
    """Answer what a run waits for, and say what it still waits for."""
    decision.check()
    async with read_runs(db) as (runs, _):
        info = await find(runs, name)
        requests = _meant(info, wanted, decision)
        for request in requests:
            info = await runs.answer(_asked(request) if decision.is_none else _said(request, decision))
    place = flag(chosen(db))
    if as_json:
        write_out(json.dumps({"run_id": info.run_id, "answered": len(requests), **_left(info)}))
    else:
        write_out("\n".join([f"{plural(len(requests), 'request')} answered", *pending_lines(info.pending)]))
    if not info.pending and info.queue is not None:
        say(f"all requests are answered; a worker of queue {printable(info.queue)} goes on with it")
    elif not info.pending:
        say(f"all requests are answered; to resume it: {resume_line(info)}{place}")
    return 0


async def complete(db: str | None, name: str, value: str, wait: float, *, as_json: bool) -> int:
    """End a run with a value."""
    async with read_runs(db) as (runs, _):
        info = await runs.complete((await find(runs, name)).run_id, _json_or_text(value), wait=wait)
    return _stopped(info, "completed", as_json=as_json)


async def wrap_up(db: str | None, name: str, reason: str, wait: float, *, as_json: bool) -> int:
    """Let a run finish with what it has."""
    async with read_runs(db) as (runs, _):
        info = await runs.wrap_up((await find(runs, name)).run_id, reason, wait=wait)
    code = _stopped(info, "to be wrapped up", as_json=as_json)
    if not info.alive and info.status == "interrupted" and info.queue is None:
        say(f"no process runs it; to finish it: noetic resume {info.run_id}{flag(chosen(db))}")
    return code


async def abort(db: str | None, name: str, reason: str, wait: float, *, as_json: bool) -> int:
    """End a run for good."""
    async with read_runs(db) as (runs, _):
        info = await runs.abort((await find(runs, name)).run_id, reason, wait=wait)
    return _stopped(info, "aborted", as_json=as_json)


def _stopped(info: RunInfo, what: str, *, as_json: bool) -> int:
    write_out(json.dumps({"run_id": info.run_id, "status": info.status}) if as_json else f"{info.run_id} is {what}")
    return 0


def _left(info: RunInfo) -> dict[str, Any]:
    return {"status": info.status, "pending": pending_objects(info.pending)}


def _meant(info: RunInfo, wanted: str | None, decision: CommandLineDecision) -> Sequence[PendingRequest]:
    """The requests that the command line names; all of them when it asks about each.

    Raises:
        RequestNotFound: There is none.
        ConfigError: There are several; code `"answer"`.
    """
    found = [
        request
        for request in info.pending
        if request.kind not in END_BY_THEMSELVES
        and (wanted is None or request.call_id == wanted or request.key.startswith(wanted))
    ]
    if not found:
        what = "has no open request" if not info.pending else f"has no open request {wanted!r}"
        raise RequestNotFound(f"run {info.run_id!r} {what}", hint=f"noetic show {info.run_id} lists what it waits for")
    if len(found) > 1 and not (decision.is_none and wanted is None):
        raise ConfigError(
            f"{len(found)} requests match: {', '.join(request.key for request in found[:5])}",
            code="answer",
            hint="give the key of one, a prefix of it, or the call's id",
        )
    return found


def _said(request: PendingRequest, decision: CommandLineDecision) -> Answer:
    if decision.value is not None:
        return _checked(request, request.answer(_value(request, decision.value), by=decision.by))
    if decision.approve:
        return request.approve(arguments=_arguments(decision.arguments), by=decision.by)
    return request.reject(decision.reason, by=decision.by)


def _arguments(text: str | None) -> dict[str, Any] | None:
    """The changed arguments.

    Raises:
        ConfigError: They are not a JSON object; code `"answer"`.
    """
    found = None if text is None else _json_or_text(text)
    if found is None or is_dict(found):
        return found
    raise ConfigError(
        f"--arguments {text!r:.60} is not a valid JSON object", code="answer", hint="--arguments '{\"amount\": 50}'"
    )


def _checked(request: PendingRequest, answer: Answer) -> Answer:
    """The answer itself, when it is what the question asks for.

    Raises:
        AnswerInvalid: It is of another type.
    """
    from noetic_py.tools.schema import SchemaCheck

    schema = request.schema or {}
    problems = SchemaCheck(f"request {request.key}", schema, frozenset()).problems(answer.value)
    if problems:
        raise AnswerInvalid(
            f"request {request.key} was not answered: {'; '.join(problems)}",
            path=request.path,
            hint=f"--value JSON that fits {json.dumps(request.schema)}",
        )
    return answer


def _value(request: PendingRequest, text: str) -> Any:
    """JSON as what it says; what is none, and where text is wanted everything, as text."""
    if request.schema is not None and request.schema.get("type") == "string":
        return text
    return _json_or_text(text)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _asked(request: PendingRequest) -> Answer:
    """The answer of the person at the terminal.

    Raises:
        ConfigError: There is no terminal to ask at; code `"answer"`.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            "no answer was given, and there is no terminal to ask at",
            code="answer",
            hint="--approve, --reject --reason TEXT, or --value JSON",
        )
    say("\n".join(pending_lines([request])))
    if request.is_approval:
        if typer.confirm("Approve?", err=True):
            return request.approve()
        return request.reject(typer.prompt("Why not?", default="", show_default=False, err=True))
    return _checked(request, request.answer(_value(request, typer.prompt("Answer", err=True))))
