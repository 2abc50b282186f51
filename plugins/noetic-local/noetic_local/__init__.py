"""A small model on this machine for noetic_py: no network, no key, no cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noetic_local.model import LocalModel
    from noetic_local.process import LocalServer

__all__ = ["LocalModel", "LocalServer"]

_HOMES = {"LocalModel": "noetic_local.model", "LocalServer": "noetic_local.process"}


def __getattr__(name: str) -> Any:
    # The plugin's registration imports this package, and must not pay for what it may never use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
