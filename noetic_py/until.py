"""When a loop stops: `until.no_tool_calls() | until.max_rounds(10)`."""

from noetic_py.steps.until import (
    Snapshot,
    Until,
    Verdict,
    converged,
    custom,
    max_cost,
    max_rounds,
    max_seconds,
    max_steps,
    max_tokens,
    max_turns,
    never,
    no_tool_calls,
    output_contains,
    output_equals,
    verified,
)

__all__ = [
    "Snapshot",
    "Until",
    "Verdict",
    "converged",
    "custom",
    "max_cost",
    "max_rounds",
    "max_seconds",
    "max_steps",
    "max_tokens",
    "max_turns",
    "never",
    "no_tool_calls",
    "output_contains",
    "output_equals",
    "verified",
]
