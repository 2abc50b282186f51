"""A flow's tree, drawn."""

from __future__ import annotations

from typing import Any

from noetic_py.context.step import SequenceSpec, Step
from noetic_py.errors import ConfigError
from noetic_py.steps.flow import BranchSpec, ParallelSpec
from noetic_py.steps.handoff import HANDOFF_KINDS, HandoffSourceSpec, HandoffSpec
from noetic_py.steps.loop import LoopSpec
from noetic_py.steps.spawn import SpawnSpec

__all__ = ["children", "members", "mermaid"]

AnyStep = Step[Any, Any, Any, Any]


def children(step: AnyStep) -> list[tuple[str, AnyStep]]:
    """The steps that a step declares, each with the label of the way to it."""
    spec: object = step.spec
    match spec:
        case SequenceSpec():
            return [(str(number), each) for number, each in enumerate(spec.steps, 1)]
        case BranchSpec():
            cases = [(repr(key), each) for key, each in (spec.cases or {}).items()]
            return cases + ([("otherwise", spec.default)] if spec.default is not None else [])
        case ParallelSpec():
            return [("each", spec.each)] if spec.each is not None else [("", each) for each in spec.paths]
        case LoopSpec():
            return [("again", spec.body)]
        case SpawnSpec():
            return [("child", spec.step)]
        case HandoffSpec():
            return [("hands to" if number else "", each) for number, each in enumerate(members(step))]
        case _ if step.kind == "gather":
            return [("", each) for each in step.spec.steps]
        case HandoffSourceSpec() if spec.inner is not None:
            return [("", spec.inner)]
        case _:
            return []


def members(chain: AnyStep) -> list[AnyStep]:
    """All steps that a chain of handoffs may run, the one that it begins with first; each once.

    Raises:
        ConfigError: One of them has the chain itself inside, so that it would be nested ever deeper; code `"handoff"`.
    """
    spec: HandoffSpec = chain.spec
    found = _members(spec)
    if not spec.checked:
        waiting = [each for each in found if each.kind not in HANDOFF_KINDS]
        seen: set[int] = set()
        while waiting:
            step = waiting.pop()
            if id(step) in seen:
                continue
            seen.add(id(step))
            below = _members(step.spec) if isinstance(step.spec, HandoffSpec) else [each for _, each in children(step)]
            if spec.first in below:
                raise ConfigError(
                    f"{chain!r} hands over to a step that has {chain!r} inside",
                    code="handoff",
                    hint="hand over to the step itself, which goes on in the same chain, or put a loop around it",
                )
            waiting += below
        spec.checked.append(True)
    return found


def _members(spec: HandoffSpec) -> list[AnyStep]:
    found: dict[int, AnyStep] = {id(spec.first): spec.first}
    waiting = [spec.targets]
    while waiting:
        for each in waiting.pop(0).steps().values():
            inner: object = each.spec
            member = inner.first if isinstance(inner, HandoffSpec) else each
            if id(member) in found:
                continue
            found[id(member)] = member
            if isinstance(inner, HandoffSpec):
                waiting.append(inner.targets)
    return list(found.values())


_SHAPES = {
    "branch": ("{", "}"),
    "loop": ("([", "])"),
    "parallel": ("[/", "/]"),
    "spawn": ("[[", "]]"),
    "model": ("(", ")"),
}


def mermaid(step: AnyStep) -> str:
    """The tree as a Mermaid flowchart, top down."""
    lines = ["flowchart TD"]
    _draw(step, lines, [0])
    return "\n".join(lines) + "\n"


def _draw(step: AnyStep, lines: list[str], counter: list[int]) -> str:
    name = f"n{counter[0]}"
    counter[0] += 1
    left, right = _SHAPES.get(step.kind, ("[", "]"))
    lines.append(f'    {name}{left}"{_text(_label(step))}"{right}')
    for label, child in children(step):
        below = _draw(child, lines, counter)
        arrow = f'-->|"{_text(label)}"|' if label else "-->"
        lines.append(f"    {name} {arrow} {below}")
    return name


def _label(step: AnyStep) -> str:
    kind = step.spec.mode if isinstance(step.spec, ParallelSpec) and step.spec.mode != "all" else step.kind
    label = step.id if step.kind in ("code", "handing") or step.id == kind else f"{step.id} ({kind})"
    if isinstance(step.spec, ParallelSpec) and step.spec.make is not None:
        label += ": paths made while running"
    if isinstance(step.spec, BranchSpec) and step.spec.cases is None:
        label += ": step chosen while running"
    return label


def _text(text: str) -> str:
    return (
        text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    )
