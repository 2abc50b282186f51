"""What tests of one's own agents need: scripted models, and time that stands still.

The parts are loaded when they are first used: pytest imports this package early, for its plugin.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noetic_py.testing.scripted import ScriptedModel, ScriptExhausted, Turn
    from noetic_py.testing.virtual import VirtualRuntime

__all__ = ["ScriptExhausted", "ScriptedModel", "Turn", "VirtualRuntime"]

_MODULES = {
    "ScriptExhausted": "noetic_py.testing.scripted",
    "ScriptedModel": "noetic_py.testing.scripted",
    "Turn": "noetic_py.testing.scripted",
    "VirtualRuntime": "noetic_py.testing.virtual",
}


if not TYPE_CHECKING:
    # Hidden from type checkers, which would take any name for one that is there.
    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
