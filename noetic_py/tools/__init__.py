"""Tools: functions that a model may call, their schemas, and what is injected into them."""

from noetic_py.tools.definition import (
    MISSING,
    Approval,
    Emit,
    Injector,
    RunBinding,
    Tool,
    ToolOptions,
    ToolSource,
    make_tool,
    render_output,
    set_run_binding,
    tool,
    wire_name,
)
from noetic_py.tools.signature import INJECT, Inject, Injected

__all__ = [
    "INJECT",
    "MISSING",
    "Approval",
    "Emit",
    "Inject",
    "Injected",
    "Injector",
    "RunBinding",
    "Tool",
    "ToolOptions",
    "ToolSource",
    "make_tool",
    "render_output",
    "set_run_binding",
    "tool",
    "wire_name",
]
