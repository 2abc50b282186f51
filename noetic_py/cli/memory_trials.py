"""`noetic memory trial`: stored runs replayed with another memory bundle, and what that would have shown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from attrs import asdict, frozen

from noetic_py.cli.database import find, read_runs
from noetic_py.cli.formatting import jsonable, plural, printable, table
from noetic_py.cli.loading import load_evidence, load_flow, load_memory
from noetic_py.cli.output_capture import captured_output
from noetic_py.cli.record_lines import short
from noetic_py.cli.report import say, write_out

if TYPE_CHECKING:
    from noetic_py.context.step import AnyStep
    from noetic_py.core.memory import Memory
    from noetic_py.models.model import Model
    from noetic_py.trial import EvidenceOf, Interval, MemoryTrial, TrialRequest

_LONG = 100
"""From how many replays on their progress is shown."""
_STRETCHES = 20


@frozen
class TrialCommand:
    """What a command line asks for.

    Attributes:
        runs: The runs.
        memory: The file of the bundle on trial, and the bundle.
        against: The same of another one.
        flow: The file of the runs' flow, and the step.
        evidence: The file of the function that tells what each request has to show, and the function.
        model: The name of the model of steps that name none.
        db: The database.
    """

    runs: Sequence[str]
    memory: str
    against: str | None
    flow: str | None
    evidence: str | None
    model: str | None
    db: str | None


async def trial(wanted: TrialCommand, *, everything: bool, as_json: bool) -> int:
    """Replay the runs, and print what was found."""
    from noetic_py.trial import memory_trial

    memory, against, flow, evidence = _loaded(wanted)
    async with read_runs(wanted.db) as (runs, _):
        names = [(await find(runs, name)).run_id for name in wanted.runs]
        found = await memory_trial(
            runs, names, memory, against=against, flow=flow, model=_model(wanted.model), evidence=evidence,
            progress=_tell,
        )  # fmt: skip
    for note in found.notes:
        say(printable(note))
    if flow is None:
        say("requests hold the conversation and the layers only; --flow FILE:STEP adds instructions and tools")
    write_out(_document(found) if as_json else "\n".join(_text(found, everything)))
    return 0


def _loaded(wanted: TrialCommand) -> tuple[Memory, Memory | None, AnyStep | None, EvidenceOf | None]:
    with captured_output():
        memory = load_memory(wanted.memory)
        against = None if wanted.against is None else load_memory(wanted.against)
        flow = None if wanted.flow is None else load_flow(wanted.flow).step
        return memory, against, flow, None if wanted.evidence is None else load_evidence(wanted.evidence)


def _model(name: str | None) -> Model | None:
    if name is None:
        return None
    from noetic_py.plugins import load_plugins

    return load_plugins().models(name)


def _tell(done: int, total: int) -> None:
    if total >= _LONG and done * _STRETCHES // total > (done - 1) * _STRETCHES // total:
        say(f"{done:,} of {plural(total, 'replay')}")


def _text(found: MemoryTrial, everything: bool) -> Iterator[str]:
    yield f"{plural(found.runs, 'run')}, {plural(len(found.requests), 'request')}, 0 model calls"
    yield ""
    yield from _means(found).splitlines()
    if everything:
        yield ""
        yield from _requests(found).splitlines()


def _means(found: MemoryTrial) -> str:
    names = [printable(each) for each in found.names]
    rows = [("", *names, *(["difference"] if len(names) > 1 else []))]
    for name, measured in found.summary().items():
        intervals = [each for each in (measured.memory, measured.against) if each is not None]
        cells = [_interval(each) for each in intervals]
        if measured.difference is not None:
            mark = " *" if measured.difference.excludes_zero else ""
            cells.append(_interval(measured.difference, sign="+") + mark)
        rows.append((name, *cells))
    lines = [table(rows)]
    observed = next(iter(found.summary().values())).memory.observations
    what = "conversations" if len({each.conversation for each in found.requests}) > 1 else "requests"
    lines.append(
        f"means with 95 % intervals over {what} ({observed} observed)"
        + ("; * the interval does not hold 0" if len(names) > 1 else "")
    )
    return "\n".join(lines)


def _interval(each: Interval, sign: str = "") -> str:
    around = f" ({_number(each.low)} to {_number(each.high)})" if isfinite(each.low) else ""
    return f"{_number(each.mean, sign)}{around}"


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign},.0f}" if abs(value) >= _LONG else f"{value:{sign}.2f}"


def _requests(found: MemoryTrial) -> str:
    two = bool(found.against)
    heads = ("found", "outdated", "tokens", "cached", "ms")
    names = [printable(each) for each in found.names]
    columns = [f"{head} {name}" for name in names for head in heads] if two else [*heads]
    rows: list[tuple[str, ...]] = [("RUN", "REQUEST", *columns, "QUERY")]
    for place, each in enumerate(found.requests):
        cells = [*_cells(each), *(_cells(found.against[place]) if two else ())]
        rows.append((printable(each.run_id[-8:]), str(each.index), *cells, short(each.query)))
    return table(rows)


def _cells(each: TrialRequest) -> tuple[str, ...]:
    return (
        "-" if each.found is None else f"{each.found:.2f}",
        "-" if each.outdated is None else str(each.outdated),
        f"{each.tokens:,}",
        f"{each.cached_share:.2f}",
        f"{each.seconds * 1000:.1f}",
    )


def _document(found: MemoryTrial) -> str:
    sides = [found.requests, *([found.against] if found.against else [])]
    document: dict[str, Any] = {
        "runs": found.runs,
        "model_calls": 0,
        "summary": {
            name: {side: None if of is None else _measured(of) for side, of in asdict(each, recurse=False).items()}
            for name, each in found.summary().items()
        },
        "bundles": [
            {"memory": name, "requests": [_request(each) for each in side]}
            for name, side in zip(found.names, sides, strict=True)
        ],
        "notes": [*found.notes],
    }
    return json.dumps(jsonable(document), ensure_ascii=False)


def _measured(each: Interval) -> dict[str, Any]:
    # JSON has no infinity.
    return {name: value if isfinite(value) else None for name, value in asdict(each).items()}


def _request(each: TrialRequest) -> dict[str, Any]:
    return {
        "run": each.run_id,
        "request": each.index,
        "query": each.query,
        "found": each.found,
        "outdated": each.outdated,
        "tokens": each.tokens,
        "cached": each.cached,
        "seconds": each.seconds,
        "shown": [jsonable(item) for item in each.items],
    }
