"""The commands that other packages add to `noetic`: entry points of a group, each of them a `typer.Typer`."""

from __future__ import annotations

from functools import cached_property
from importlib import metadata
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

__all__ = ["GROUP", "CommandGroup"]

GROUP = "noetic_py.commands"


class CommandGroup(TyperGroup):
    """The commands of `noetic`, and those of other packages, of which one is imported when it is called or listed.

    One that fails is left out, with a message on standard error.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; `None` where there is none."""
        own = super().get_command(ctx, cmd_name)
        point = self._added.get(cmd_name) if own is None else None
        return own if point is None else _loaded(point)

    def list_commands(self, ctx: Any) -> list[str]:
        """Our own commands, and then the added ones."""
        return [*super().list_commands(ctx), *self._added]

    @cached_property
    def _added(self) -> dict[str, metadata.EntryPoint]:
        """The entry points by the names of their commands; of two with one name the first counts."""
        found: dict[str, metadata.EntryPoint] = {}
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda each: (each.name, _package(each))):
            if point.name in self.commands:
                _tell(point, f"{_package(point)} adds the command {point.name!r}, which noetic has itself")
            elif point.name in found and found[point.name].value != point.value:
                others = f"{_package(found[point.name])} and {_package(point)}"
                _tell(point, f"{others} both add the command {point.name!r}")
            else:
                found[point.name] = point
        return found


def _loaded(point: metadata.EntryPoint) -> Any:
    try:
        app = point.load()
        if isinstance(app, typer.Typer):
            command = get_command(app)
            command.name = point.name
            return command
        _tell(
            point, f"{_package(point)} gives {type(app).__name__} as the command {point.name!r}; expected a typer.Typer"
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 # whatever its module raises
        _tell(point, f"the command {point.name!r} of {_package(point)} failed to load: {type(error).__name__}: {error}")
    return None


def _package(point: metadata.EntryPoint) -> str:
    dist = point.dist
    return point.value if dist is None else f"{dist.name} {dist.version}"


def _tell(point: metadata.EntryPoint, problem: str) -> None:
    from noetic_py.cli.report import print_error
    from noetic_py.errors import PluginError

    name = _package(point).split()[0]
    print_error(PluginError(problem, hint=f"upgrade {name}, or uninstall it"), None, trace=False)
