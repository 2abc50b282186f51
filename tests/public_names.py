"""The public names of a module: those that it lists, or without a list the classes and functions that it defines."""

from __future__ import annotations

from types import ModuleType

__all__ = ["public_names"]


def public_names(module: ModuleType) -> list[str]:
    """The names, sorted."""
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    return sorted(name for name in own if not name.startswith("_"))
