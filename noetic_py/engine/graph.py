"""A flow's tree, drawn."""

from __future__ import annotations

from typing import Any

from noetic_py.context.step import Spec, Step, children_of

__all__ = ["mermaid"]

AnyStep = Step[Any, Any, Any, Any]


def mermaid(step: AnyStep) -> str:
    """The tree as a Mermaid flowchart, top down."""
    lines = ["flowchart TD"]
    _draw(step, lines, [0])
    return "\n".join(lines) + "\n"


def _draw(step: AnyStep, lines: list[str], counter: list[int]) -> str:
    name = f"n{counter[0]}"
    counter[0] += 1
    spec: object = step.spec
    (left, right), label = (spec.outline, spec.label(step)) if isinstance(spec, Spec) else (Spec.outline, step.id)
    lines.append(f'    {name}{left}"{_text(label)}"{right}')
    for way, child in children_of(step):
        below = _draw(child, lines, counter)
        arrow = f'-->|"{_text(way)}"|' if way else "-->"
        lines.append(f"    {name} {arrow} {below}")
    return name


def _text(text: str) -> str:
    return (
        text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")
    )
