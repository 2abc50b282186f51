"""Memory on trial: stored conversations are replayed with another memory bundle, and no model is asked.

The log is whole, and what a model is shown follows from it and from the layers. So a trial tells what other layers
would have shown in each request of conversations that are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from json import dumps

from attrs import evolve, frozen

from noetic_py.context.step import AnyStep, require_step
from noetic_py.core.items import Item
from noetic_py.core.memory import Memory
from noetic_py.core.tokens import TokenCounter
from noetic_py.engine.provider_call import ready_counter_of
from noetic_py.errors import ConfigError
from noetic_py.models.model import Model, ModelRequest
from noetic_py.runner.runs import Runs
from noetic_py.trial.evidence import Evidence, EvidenceOf, Wanted, judge, wanted_of
from noetic_py.trial.replay import TriedRequest, replay
from noetic_py.trial.result import Comparison, Interval, MemoryTrial, TrialRequest
from noetic_py.trial.stored import StoredRound, read_turns

__all__ = [
    "Comparison",
    "Evidence",
    "EvidenceOf",
    "Interval",
    "MemoryTrial",
    "StoredRound",
    "TrialRequest",
    "memory_trial",
]


async def memory_trial(
    runs: Runs,
    run_ids: Iterable[str],
    memory: Memory,
    *,
    against: Memory | None = None,
    flow: AnyStep | None = None,
    model: Model | None = None,
    evidence: EvidenceOf | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> MemoryTrial:
    """Replay stored runs with another memory bundle, without asking a model.

    ```python
    trial = await memory_trial(harness.runs, run_ids, Other(), against=Mem(), flow=agent)
    ```

    Runs are replayed in the order in which they began. Layers begin with nothing, so give all turns of a session.
    Inputs, answers and outputs of tools are those that are stored; functions of layers run again. Values that a layer
    has in `storage` are kept for the trial only. A database of a layer's own, such as `SemanticRecall(vectors=...)`, is
    written as in any run: give the bundle one of its own.

    Code of steps is not run, and what it had written to layers is missing. Requests of sub-agents are left out. The
    result's `notes` name both.

    Args:
        runs: The stored runs: `harness.runs`.
        run_ids: Which of them.
        memory: The bundle on trial; `Memory()` is none.
        against: Another bundle, to be compared with it.
        flow: The flow of the runs. Instructions, tools, output types and settings of its model steps are part of the
            requests; without it requests hold the conversation and the layers alone.
        model: Tells the window and the tokenizer for steps that name no model, or name it by a text. It is not asked.
        evidence: What each request has to show. It is called once for each, before anything is replayed. Left out, it
            is what the answer took from earlier: its words that the user or a tool had said in one to three earlier
            items of the conversation, and that are neither in the turn nor in the instructions.
        progress: Called after each run with how many are done, and how many there are.

    Raises:
        RunNotFound: There is no such run.
        ConfigError: No model has answered in the runs, `evidence` returns something else, a layer asks a model, or
            wants a person's approval; code `"trial"`.
        LimitExceeded: A request does not fit the window with the bundle.
    """
    bundles = [_bundle(each) for each in ([memory] if against is None else [memory, against])]
    if flow is not None:
        require_step(flow, "flow=")
    turns = await read_turns(runs, run_ids)
    wanted = None if evidence is None else wanted_of(turns, evidence)
    sides: list[Sequence[TrialRequest]] = []
    notes: list[str] = []
    for place, bundle in enumerate(bundles):
        note = _counting(progress, place * len(turns), len(turns) * len(bundles))
        tried, left_out = await replay(runs, turns, bundle, flow, model, note)
        notes += left_out
        sides.append(await _measured(tried, wanted))
    names = [type(each).__name__ for each in bundles]
    return MemoryTrial(names, len(turns), sides[0], sides[1] if against is not None else (), [*dict.fromkeys(notes)])


def _counting(progress: Callable[[int, int], object] | None, done: int, total: int) -> Callable[[], None]:
    """Count runs that are replayed."""
    counts = count(done + 1)

    def note() -> None:
        now = next(counts)
        if progress is not None:
            progress(now, total)

    return note


def _bundle(given: object) -> Memory:
    if not isinstance(given, Memory):
        raise ConfigError(
            f"{given!r} is not a valid bundle; expected an instance of a Memory subclass",
            code="trial",
            hint="memory_trial(harness.runs, run_ids, Mem())",
        )
    return given


async def _measured(tried: Sequence[TriedRequest], wanted: Wanted | None) -> Sequence[TrialRequest]:
    """The requests with their measures."""
    before: dict[object, _CountedRequest] = {}
    heads: dict[tuple[TokenCounter, str], int] = {}
    found: list[TrialRequest] = []
    for each, (shown, outdated) in zip(tried, judge(tried, wanted), strict=True):
        counter = await ready_counter_of(each.model)
        head = _head_tokens(counter, heads, each.request)
        now = _counted(counter, each.request, before.get(each.conversation))
        before[each.conversation] = now
        stored = each.round
        found.append(
            TrialRequest(
                stored.run_id, stored.index, each.conversation, stored.query, now.request,
                head + now.sums[-1], 0 if now.repeated is None else head + now.sums[now.repeated],
                shown, outdated, each.seconds,
            )
        )  # fmt: skip
    return found


@frozen(eq=False)
class _CountedRequest:
    """A request, the tokens of its first items by how many they are, and how many are those of the request before."""

    request: ModelRequest
    sums: Sequence[int]
    repeated: int | None


def _counted(counter: TokenCounter, request: ModelRequest, last: _CountedRequest | None) -> _CountedRequest:
    """Count a request; what is the same as in the one before is not counted again."""
    repeated, sums = None, [0]
    if last is not None and _same_head(last.request, request):
        repeated = _shared(last.request.items, request.items)
        sums = [*last.sums[: repeated + 1]]
    for item in request.items[repeated or 0 :]:
        sums.append(sums[-1] + counter.count_item(item).value)
    return _CountedRequest(request, sums, repeated)


def _head_tokens(counter: TokenCounter, known: dict[tuple[TokenCounter, str], int], request: ModelRequest) -> int:
    """Tokens of what stands around the items; the same texts are counted once."""
    texts = [request.instructions or "", *map(dumps, request.tools)]
    if request.output is not None:
        texts.append(dumps(request.output.schema))
    total = 0
    for text in filter(None, texts):
        if (counter, text) not in known:
            known[counter, text] = counter.count_text(text).value
        total += known[counter, text]
    return total


def _same_head(one: ModelRequest, other: ModelRequest) -> bool:
    return (one.instructions, one.tools, one.output) == (other.instructions, other.tools, other.output)


def _shared(before: Sequence[Item], now: Sequence[Item]) -> int:
    """How many items both begin with; ids are not part of what a provider compares."""
    for place, (one, other) in enumerate(zip(before, now, strict=False)):
        if one is not other and (type(one) is not type(other) or evolve(one, id=other.id) != other):
            return place
    return min(len(before), len(now))
