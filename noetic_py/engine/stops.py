"""Stops with an outcome that are requested from outside of a run: `complete` with a value, `wrap_up`, and `abort`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import asdict, evolve, field, fields, frozen

from noetic_py.access import current_principal
from noetic_py.context.step import AnyStep, SequenceSpec
from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import dump
from noetic_py.core.control import NO_VALUE, STOPS, Control, StopKind, StopRule
from noetic_py.core.diagnostics import text_or_none
from noetic_py.core.items import FunctionCall, FunctionCallOutput
from noetic_py.engine.fingerprint import expected_output
from noetic_py.engine.journaling.fold import tree
from noetic_py.engine.journaling.replay import output_of
from noetic_py.engine.kind import Node
from noetic_py.engine.state import Run, wrap_up_step
from noetic_py.errors import CodecError, ConfigError, NoeticError
from noetic_py.journal.records import AttemptFailed, Decision, JournalRecord, Segment, StepFinished, StepStopped
from noetic_py.journal.values import Path, Stored
from noetic_py.redaction import without_secrets
from noetic_py.steps.flow import BranchSpec
from noetic_py.steps.handoff import HandoffOutput, HandoffSourceSpec, HandoffSpec, members
from noetic_py.steps.loop import LoopSpec
from noetic_py.steps.spawn import SpawnSpec

ASKED = "asked"
"""The key of the decision, which is the run's own."""
VALUELESS = "valueless"
"""The key of the decision that a wrap-up that was asked for has ended without a value."""
COMPLETED = "completed from outside"
ORPHAN = "orphan"
"""The key of a request to stop a run because the one that waits for its end does so no more."""


@frozen(eq=False)
class Asked:
    """A stop that was requested.

    Attributes:
        kind: Which one.
        value: Of a `complete` the stored form of its value.
        reason: Why.
        by: The user of the principal that asks, if one is set.
        key: Names the request of another process, empty of one in the run's own.
    """

    kind: StopKind
    value: Any = None
    reason: str = field(default="", validator=text_or_none)
    by: str | None = field(default=None, validator=text_or_none)
    key: str = ""

    @property
    def rule(self) -> StopRule:
        """The rule of its kind."""
        return STOPS[self.kind]


_NAMES = frozenset(each.name for each in fields(Asked))


def asked_by() -> str | None:
    """The user id of the principal, for the record."""
    principal = current_principal()
    return None if principal is None else principal.user_id


def check_value(value: object, flow: AnyStep | None, codec: Codec | None) -> None:
    """Refuse a value that the run could not have given.

    Raises:
        ConfigError: It is not of the type that the flow is annotated with; code `"complete"`.
        CodecError: The run is stored, and the value cannot be.
    """
    if flow is not None and not _fits(value, expected_output(flow)):
        raise ConfigError(
            f"{value!r:.100} is not a valid value of {flow.id!r}; expected {_named_stop(expected_output(flow))}",
            code="complete",
            hint="complete the run with a value of the type that its flow returns",
        )
    if codec is not None:
        codec.encode(value)


def _named_stop(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _fits(value: object, kind: object) -> bool:
    adapter = _adapter(kind)
    if adapter is None:
        return True
    from pydantic import ValidationError

    try:
        adapter.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _adapter(kind: Any) -> Any:
    """The validator of a type; `None` if the type is unknown."""
    from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

    if kind is object or kind is Any:
        return None
    for config in (None, ConfigDict(arbitrary_types_allowed=True)):
        try:
            return TypeAdapter(kind, config=config)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError):
            continue
    return None


def value_of(tree: object, flow: AnyStep | None, codec: Codec) -> object:
    """A value that was stored by a process that did not know the flow's type, as one of that type.

    Raises:
        ConfigError: It is not valid; code `"complete"`.
    """
    kind: object = object if flow is None else expected_output(flow)
    try:
        value = codec.decode(tree, kind)
        check_value(value, flow, None)
    except (CodecError, ConfigError) as error:
        plain = codec.decode(tree)
        adapter = _adapter(kind)
        if adapter is None:
            return plain
        from pydantic import ValidationError

        try:
            # Values from a command line or another program are JSON.
            return adapter.validate_json(dump(tree))
        except ValidationError:
            check_value(plain, flow, None)
            raise error from None
    return value


# ------------------------------------------------------------------------------------------------------ in the journal


def note(run: Run, control: Control, key: str = "", path: Path = ()) -> None:
    """Write into the journal that a stop is asked for; it is stored with the next commit.

    Args:
        run: The run.
        control: The stop.
        key: Names the request of another process.
        path: What is to be stopped: the run itself, or work beside its flow.

    Raises:
        CodecError: Its value cannot be stored.
    """
    store = run.store
    value = control.value if store is None else store.codec.encode(control.value)
    asked = Asked(control.kind, value, control.reason or "", control.by, key)
    record = decision_of(asked, path)
    if store is not None:
        store.prepare(record)
    run.journal.append(record)
    if store is not None:
        store.hurry()


def decision_of(asked: Asked, path: Path = ()) -> Decision:
    """The record that says that a stop is asked for."""
    fields = asdict(evolve(asked, reason=without_secrets(asked.reason) or ""), recurse=False)
    return Decision(path, ASKED, {name: value for name, value in fields.items() if value not in (None, "")})


def asked_of(fields: Mapping[str, Any]) -> Asked:
    """The stop request of a stored decision; keys of a later version are ignored."""
    return Asked(**{name: value for name, value in fields.items() if name in _NAMES})


def note_valueless(run: Run, path: Path = ()) -> None:
    """Write that a wrap-up has ended without a value, so that no later process runs it again."""
    run.journal.append(Decision(path, VALUELESS, True))


def out_of_time(reason: str | None) -> str:
    """The reason of a stop whose wrap-up has ended without a value."""
    return f"{reason or 'wrapped up'}; the wrap-up was out of time: raise seconds= of reserve="


def asked_in(journal: Sequence[JournalRecord], path: Path = ()) -> Asked | None:
    """The last stop that a journal says was asked for: of the run, or of what goes on beside its flow at a path."""
    for record in reversed(journal):
        if isinstance(record, Decision) and record.path == path and record.key == ASKED:
            return asked_of(record.value)
    return None


def unfinished(journal: Sequence[JournalRecord]) -> dict[str, str]:
    """Why calls had no output when a spent budget was wrapped up, by their ids, as a live run has said it."""
    found: dict[str, str] = {}
    calls: dict[str, Path] = {}
    failed: dict[Path, NoeticError] = {}
    for record in journal:
        match record:
            case Segment() | StepFinished() | StepStopped():
                for item in record.items:
                    if isinstance(item, FunctionCall):
                        calls[item.call_id] = record.path
                    elif isinstance(item, FunctionCallOutput):
                        calls.pop(item.call_id, None)
            case AttemptFailed():
                failed[record.path] = record.error
            case Decision(path=path, key="wrap_up", value=cause) if cause in failed:
                below = [call_id for call_id, at in calls.items() if at[: len(path)] == path]
                found = dict.fromkeys(below, f"budget_exceeded: {failed[cause].message}") | found
            case _:
                pass
    return found


def asked_again(root: Node | None, run: Run, flow: AnyStep | None) -> Control | None:
    """The stop that was asked for before this process had the run.

    Raises:
        ConfigError: It was given a value of another type than the flow's; code `"complete"`.
    """
    fields = None if root is None else root.decisions.get(ASKED)
    return None if fields is None or run.store is None else control_of(asked_of(fields), flow, run.store.codec)


def control_of(asked: Asked, flow: AnyStep | None, codec: Codec) -> Control:
    """The stop of a run or of detached work.

    Raises:
        ConfigError: The value is not of the flow's type; code `"complete"`.
    """
    if not asked.rule.completes:
        return Control(asked.kind, reason=asked.reason, by=asked.by)
    return Control("complete", value=value_of(asked.value, flow, codec), reason=asked.reason, by=asked.by)


def wrap_up_of(run: Run, flow: AnyStep, path: Path = ()) -> AnyStep | None:
    """The wrap-up step of the outermost budget in flight whose step would have given a flow's value.

    Args:
        run: The run.
        flow: The run's flow, or what goes on beside it.
        path: What it stands below.
    """
    for step, _ in _giving(flow, tree(run.journal, run.kinds, path).children.get(flow.id)):
        budgets = (step.budget, getattr(step.spec, "budget", None))
        for budget in budgets:
            found = wrap_up_step(budget)
            if found is not None:
                return found
    return None


def value_so_far(run: Run, flow: AnyStep, path: Path = ()) -> object:
    """The last value of the outermost loop that has one and would have given the flow's; `NO_VALUE` without one.

    Args:
        run: The run.
        flow: As for `wrap_up_of`.
        path: Likewise.
    """
    for step, node in _giving(flow, tree(run.journal, run.kinds, path).children.get(flow.id)):
        if node is None:
            break
        if node.finished is not None:
            return _output(node, step, run)
        if isinstance(step.spec, LoopSpec):
            for each in reversed(_rounds(step.spec, node)):
                value = _output(each, step.spec.body, run) if each.finished is not None else None
                if value is not None:
                    return value
    return NO_VALUE


def _output(node: Node, step: AnyStep, run: Run) -> Any:
    if run.store is not None:
        return output_of(node, step, run)
    return None if node.finished is None else node.finished.output


def _giving(step: AnyStep, node: Node | None) -> Iterator[tuple[AnyStep, Node | None]]:
    """The steps in flight whose outputs are each the output of the one before, the outermost first."""
    below: tuple[AnyStep, Node] | None = None if node is None else (step, node)
    yield step, node
    while below is not None:
        below = _below(*below)
        if below is not None:
            yield below


def _below(step: AnyStep, node: Node) -> tuple[AnyStep, Node] | None:
    """The child in flight that would give the step's output."""
    spec: object = step.spec
    found: list[tuple[AnyStep, Node]] = []
    match spec:
        case SequenceSpec():
            found = _named(node, spec.steps[-1], spec.frames[-1])
        case BranchSpec():
            cases = [*(spec.cases or {}).values(), *([] if spec.default is None else [spec.default])]
            found = [each for case in cases for each in _named(node, case, case.id)]
        case LoopSpec():
            found = [(spec.body, each) for each in _rounds(spec, node)]
        case SpawnSpec():
            found = _named(node, spec.step, spec.step.id)
        case HandoffSourceSpec() if spec.inner is not None:
            found = _named(node, spec.inner, spec.inner.id)
        case HandoffSpec():
            found = [each for member in members(spec) for each in _calls(node, member)]
        case _:
            pass
    open_ = [each for each in found if each[1].finished is None or not _handed(each[1])]
    return open_[-1] if open_ else None


def _handed(node: Node) -> bool:
    """Whether a step of a chain has handed over to another one, which goes on in its place."""
    output: object = None if node.finished is None else node.finished.output
    if isinstance(output, Stored) and node.kind.hands_over:
        tree: Any = output.tree
        return tree["to"] is not None
    return isinstance(output, HandoffOutput)


def _named(node: Node, step: AnyStep, name: str) -> list[tuple[AnyStep, Node]]:
    child = node.children.get(name)
    return [] if child is None else [(step, child)]


def _calls(node: Node, step: AnyStep) -> list[tuple[AnyStep, Node]]:
    """The calls of a step of a chain, in order."""
    return [(step, child) for name, child in node.children.items() if name.partition("#")[0] == step.id]


def _rounds(spec: LoopSpec, node: Node) -> list[Node]:
    prefix = f"{spec.body.id}["
    rounds = [child for name, child in node.children.items() if name.startswith(prefix)]
    return sorted(rounds, key=lambda child: int(child.name[len(prefix) : -1]))
