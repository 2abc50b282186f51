"""Which tools a model round offers, and why others that there are it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py._engine.frame import Frame
from noetic_py._engine.layers import Live
from noetic_py.steps.model import ModelSpec

if TYPE_CHECKING:
    from noetic_py.memory.layers.tool_groups import ToolGroups
    from noetic_py.tools import Tool

__all__ = ["Offer", "offer"]

_NONE: Mapping[str, str] = {}


@frozen(eq=False)
class Offer:
    """The tools of a round, by their names on the wire, and why some are withheld."""

    tools: Mapping[str, Tool[..., Any, Any, Any]]
    withheld: Mapping[str, str] = _NONE


async def offer(frame: Frame, spec: ModelSpec) -> Offer:
    """One set by name on the wire: the step's own tools win over those of layers, and these over the harness's."""
    groups = _groups(frame)
    grouped = [each for layer in groups for each in layer.offered()]
    given: tuple[Any, ...] = (*frame.x.run.resources.tools, *_functions(frame), *grouped, *spec.tools)
    if not given and not groups:
        return Offer({})
    found: dict[str, Tool[..., Any, Any, Any]] = {}
    for each in given:
        listed = await each.tools() if hasattr(each, "tools") else (each,)
        for tool in listed:
            found[tool.wire_name] = tool
    withheld = {name: why for layer in groups for name, why in layer.withheld().items()}
    return Offer(found, withheld)


def _groups(frame: Frame) -> Sequence[ToolGroups]:
    """The groups of tools of this execution, as they are now."""
    cells = frame.domain.cells
    return [layer.bound(Live(frame, layer, reads=True)) for layer in frame.x.layers.groups if layer.id in cells]


def _functions(frame: Frame) -> Sequence[Tool[..., Any, Any, Any]]:
    """The functions of the layers that are in this execution."""
    layers = frame.x.layers
    if not layers.tools:
        return ()
    return [tool for tool in layers.tools if tool.name.partition("/")[0] in frame.domain.cells]
