"""Stored runs, for people and for programs: the list of them, and one of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import attrs

from noetic_py.cli.database import standing
from noetic_py.cli.formatting import jsonable, money, plural, printable, table
from noetic_py.cli.record_lines import SHORT, as_object, line_of, pending_lines, pending_objects, short
from noetic_py.cli.run_tree import NOTHING, PLACE, RunTree, StepNode
from noetic_py.core.budget import NO_USAGE
from noetic_py.journal.records import CallStarted
from noetic_py.journal.transforms import VerificationReport

if TYPE_CHECKING:
    from noetic_py.core.items import Item
    from noetic_py.hookspecs import LoadedPlugin
    from noetic_py.memory.view_state import RecordedView
    from noetic_py.runner.runs import RunInfo


_LAST = 5
_FAILURES = 10
_BELOW = 20
"""How many children of a step are shown."""
_MARKS = {"finished": "✓", "failed": "✗", "stopped": "■", "open": "·"}


def _moment(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


# -- many


def list_text(found: Sequence[RunInfo]) -> str:
    """A table of runs."""
    rows = [("RUN", "STATUS", "FLOW", "RECORDS", "UPDATED")]
    for info in found:
        flow = printable(info.source or info.flow)
        rows.append((printable(info.run_id), standing(info), flow, f"{info.position:,}", _moment(info.updated)))
    return table(rows)


def list_json(found: Iterable[RunInfo]) -> str:
    """Runs as a JSON array."""
    return json.dumps([_info(info) for info in found])


def _info(info: RunInfo) -> dict[str, Any]:
    fields = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in attrs.asdict(attrs.evolve(info, pending=())).items()
    }
    return fields | {"pending": pending_objects(info.pending)}


# -- the views of one


def views_text(found: Sequence[RecordedView]) -> str:
    """What a model was shown, request by request."""
    return "\n\n".join(f"{printable('/'.join(view.path))}\n{_indented(view)}" for view in found)


def _indented(view: RecordedView) -> str:
    return "\n".join(f"  {printable(line)}" for line in view.account.explain().splitlines())


def views_json(found: Sequence[RecordedView]) -> str:
    """The same as a JSON array, with the texts of the layers."""
    return json.dumps([_view_object(view) for view in found])


def _view_object(view: RecordedView) -> dict[str, Any]:
    account = attrs.asdict(view.account)
    for place, items in view.contents.items():
        account["blocks"][place]["contents"] = [jsonable(item) for item in items]
    return {"path": list(view.path), **account}


# -- one


def show_json(info: RunInfo, run: RunTree, *, items: bool) -> str:
    """A run as a JSON object."""
    conversation = run.items()
    found: dict[str, Any] = {
        **_info(info),
        "reason": None if run.ended is None else run.ended.reason,
        "input": None if run.started is None else jsonable(run.started.input),
        "value": None if (value := run.value()) is NOTHING else jsonable(value),
        "usage": attrs.asdict(run.usage) | {"total": run.usage.total},
        "cost": None if run.cost is None else str(run.cost),
        "steps_run": run.steps,
        "model_calls": run.model_calls,
        "progress": [{"path": path, **attrs.asdict(entry)} for path, entry in run.progress().items()],
        "open_calls": [jsonable(call) for call in _open_calls(run)],
        "items": len(conversation),
        "steps": [_step_object(run, step) for step in run.root.all()],
        "failures": [jsonable(failure) for failure in run.failures],
        "last": [as_object(position, record) for position, record in _last(run)],
    }
    if items:
        found["conversation"] = [jsonable(item) for item in conversation]
    return json.dumps(found)


def _json_output(run: RunTree, step: StepNode | None) -> Any:
    output = NOTHING if step is None else run.output(step)
    return None if output is NOTHING else jsonable(output)


def _step_object(run: RunTree, step: StepNode) -> dict[str, Any]:
    return {
        "path": list(step.path),
        "kind": step.kind.name or None,
        "state": step.state,
        "attempts": step.attempts,
        "usage": None if step.usage is None else attrs.asdict(step.usage) | {"total": step.usage.total},
        "cost": None if step.cost is None else str(step.cost),
        "output": None if step.kind.part else _json_output(run, step),
        "error": step.error,
    }


def _last(run: RunTree) -> list[tuple[int, Any]]:
    return list(enumerate(run.records, 1))[-_LAST:]


def show_text(info: RunInfo, run: RunTree, *, everything: bool) -> str:
    """A run for people.

    Args:
        info: What the list knows of it.
        run: What its journal holds.
        everything: Whether to show all steps and failures, however many there are.
    """
    lines = [f"{name:<10} {value}" for name, value in _facts(info, run) if value]
    tree = list(_tree(run, run.root, 0, everything))
    lines += ["", "steps", *tree] if tree else []
    lines += ["", "waits for", *pending_lines(info.pending)] if info.pending else []
    failures = run.failures if everything else run.failures[:_FAILURES]
    if failures:
        lines += ["", "failures"]
    for failure in failures:
        attempt = f"attempt {failure.attempt}" + ("" if failure.final else ", tried again")
        lines.append(f"  {printable('/'.join(failure.path))} ({attempt}): {printable(failure.message)}")
        lines += [f"    try: {printable(failure.hint)}"] if failure.hint else []
    if len(failures) < len(run.failures):
        lines.append(f"  … {len(run.failures) - len(failures):,} more, all with --all")
    lines += ["", "last records", *(line_of(position, record) for position, record in _last(run))]
    return "\n".join(lines)


def _facts(info: RunInfo, run: RunTree) -> Iterator[tuple[str, str]]:
    reason = None if run.ended is None else run.ended.reason
    yield "run", printable(info.run_id)
    yield "status", standing(info) + (f" ({printable(reason)})" if reason else "")
    yield "problem", printable(info.problem or "")
    yield "flow", printable(info.flow)
    yield "source", printable(info.source or "")
    yield "thread", "" if info.thread_id in (None, info.run_id) else printable(str(info.thread_id))
    yield "user", printable(info.user_id or "")
    yield "request", printable(info.request_id or "")
    yield "queue", printable(info.queue or "")
    yield "for run", printable(info.parent or "")
    yield "created", _moment(info.created)
    yield "updated", _moment(info.updated)
    if run.started is not None:
        yield "input", short(run.started.input)
    output = run.value()
    if output is not NOTHING:
        yield "value", short(output)
    yield "used", _used(run)
    calls = _open_calls(run)
    if calls:
        tokens = plural(sum(call.reserved_tokens for call in calls), "token")
        cost = money(sum((call.reserved_cost for call in calls), Decimal(0)) or None)
        yield "maybe", f"{plural(len(calls), 'call')} without an outcome: up to {tokens}, {cost}"
    for path, entry in list(run.progress().items())[-_LAST:]:
        yield "progress", f"{printable('/'.join(path))}  {'done' if entry.done else short(entry.value)}"
    yield "journal", f"{plural(len(run.records), 'record')}, {plural(len(run.items()), 'item')} in the conversation"


def _open_calls(run: RunTree) -> list[CallStarted]:
    return [call for calls in run.open_calls.values() for call in calls]


def _used(run: RunTree) -> str:
    calls = plural(run.model_calls, "model call")
    tokens = f"{plural(run.usage.total, 'token')} ({run.usage.input:,} in, {run.usage.output:,} out)"
    return f"{plural(run.steps, 'step')}, {calls}, {tokens}, {money(run.cost)}"


def _tree(run: RunTree, above: StepNode, depth: int, everything: bool) -> Iterator[str]:
    children = [child for child in above.children() if not child.kind.part]
    shown = children if everything else _worth(children)
    for child in shown:
        yield f"{'  ' * (depth + 1)}{_step_line(run, child)}"
        yield from _tree(run, child, depth + 1, everything)
    if len(shown) < len(children):
        rest = [child.state for child in children if child not in shown]
        counts = ", ".join(f"{rest.count(state):,} {state}" for state in _MARKS if state in rest)
        yield f"{'  ' * (depth + 1)}… {len(rest):,} more ({counts}), all with --all"


def _worth(children: Sequence[StepNode]) -> list[StepNode]:
    """Those that are shown where there are many: what went wrong or has not ended first, in their order."""
    if len(children) <= _BELOW:
        return list(children)
    ranked = sorted(children, key=lambda child: child.state == "finished")[:_BELOW]
    return [child for child in children if child in ranked]


def _step_line(run: RunTree, step: StepNode) -> str:
    name = printable(step.path[-1])
    parts = [f"{_MARKS[step.state]} {name}", "" if PLACE.sub("", name) == step.kind.name else step.kind.name]
    if step.state != "finished":
        parts.append("in flight" if step.state == "open" else step.state)
    if step.rounds:
        parts.append(plural(step.rounds, "round"))
    if step.attempts > 1:
        parts.append(plural(step.attempts, "attempt"))
    # The usage of a model step is shown with its answer, which has no line of its own.
    spenders = [step, *(part for part in step.below.values() if part.kind.part)]
    if any(part.usage is not None for part in spenders):
        parts.append(plural(sum((part.usage or NO_USAGE).total for part in spenders), "token"))
    if any(part.cost is not None for part in spenders):
        parts.append(money(sum((part.cost or Decimal(0) for part in spenders), Decimal(0))))
    if step.state == "failed" and step.error:
        parts.append(printable(step.error)[:SHORT])
    elif not any(not child.kind.part for child in step.below.values()):
        output = run.output(step)
        parts += [] if output is NOTHING or output is None else [short(output)]
    return "  ".join(part for part in parts if part)


# -- the conversation


def item_lines(items: Iterable[Item]) -> Iterator[str]:
    """The conversation for people."""
    from noetic_py.core.items import FunctionCall, FunctionCallOutput, Message, Reasoning

    for item in items:
        match item:
            case Message():
                yield f"{item.role}: {_block(item.text)}"
            case FunctionCall():
                yield f"call {printable(item.name)} {printable(item.arguments)}"
            case FunctionCallOutput():
                yield f"output: {_block(item.output if isinstance(item.output, str) else short(item.output))}"
            case Reasoning():
                yield "reasoning"
            case _:
                yield f"{type(item).__name__}: {short(item)}"


def _block(text: str) -> str:
    """Text of several lines, those after the first set in."""
    return "\n  ".join(printable(line) for line in text.splitlines())


# -- plugins


def plugins_text(plugins: Sequence[LoadedPlugin]) -> str:
    """The plugins that are loaded, one a line."""
    rows = [(each.name, f"{each.distribution} {each.version}", ", ".join(each.hooks)) for each in plugins]
    lines = [f"{name:<16} {package:<28} {hooks}" for name, package, hooks in rows]
    return "".join(f"{printable(line)}\n" for line in lines) or "no plugin is loaded\n"


def plugins_json(plugins: Sequence[LoadedPlugin]) -> str:
    """The plugins that are loaded, as a JSON array."""
    fields = ("name", "distribution", "version", "hooks")
    return json.dumps([{name: getattr(each, name) for name in fields} for each in plugins], indent=2) + "\n"


# -- what record transforms say of a run

_SHOWN = 20
"""How many problems are listed, one line each."""


def verified_text(report: VerificationReport) -> str:
    """A line for each problem, or one that says that there is none."""
    problems = report.problems
    count = plural(0 if report.anchor is None else report.anchor.position, "record")
    if report.ok:
        lines = [f"{count}, all verified"]
    elif not problems:
        lines = [f"{count}, and nothing to verify"]
    else:
        lines = [f"\u2717 {printable(str(check))}" for check in problems[:_SHOWN]]
        if len(problems) > _SHOWN:
            lines.append(f"... and {len(problems) - _SHOWN} more; --json lists all")
    signed = dict.fromkeys(check.by for check in report.checks if check.by is not None and check.verdict == "verified")
    if signed:
        lines.append(f"by      {', '.join(map(printable, signed))}")
    if report.anchor is not None:
        lines.append(f"anchor  {report.anchor}")
    return "\n".join(lines)


def verified_json(report: VerificationReport) -> str:
    """A report as a JSON object."""
    return json.dumps(
        {
            "run_id": report.run_id,
            "ok": report.ok,
            "anchor": None if report.anchor is None else str(report.anchor),
            "checks": [attrs.asdict(check) for check in report.checks],
        }
    )
