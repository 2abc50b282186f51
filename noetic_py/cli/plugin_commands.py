"""The commands that plugins add to `noetic`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from noetic_py.cli.report import print_error
from noetic_py.errors import PluginError
from noetic_py.plugins import Plugins, load_working_plugins

__all__ = ["CommandGroup"]


class CommandGroup(TyperGroup):
    """The commands of `noetic`, and those of plugins, which are loaded for a name that is not its own and for the help.

    A plugin that fails is left out, with a message on standard error.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; `None` where there is none."""
        return super().get_command(ctx, cmd_name) or self._of_plugins.get(cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Our own commands, and then those of plugins."""
        return [*super().list_commands(ctx), *sorted(self._of_plugins)]

    @cached_property
    def _of_plugins(self) -> dict[str, Any]:
        try:
            plugins, problems = load_working_plugins()
        except PluginError as error:
            print_error(error, None, trace=False)
            return {}
        for problem in problems:
            print_error(problem, None, trace=False)
        return dict(_made(plugins))


def _made(plugins: Plugins) -> Iterator[tuple[str, Any]]:
    for name, (factory, plugin) in plugins.commands.by_name.items():
        try:
            app = factory()
            if not isinstance(app, typer.Typer):
                raise PluginError(
                    f"plugin {plugin!r} gives {type(app).__name__} as the command {name!r}; expected a typer.Typer",
                    hint=f"upgrade it, or go on without it: NOETIC_PLUGINS=-{plugin}",
                )
            command = get_command(app)
        except (Exception, SystemExit) as error:  # noqa: BLE001 # whatever making it raises
            print_error(error, None, trace=False)
        else:
            command.name = name
            yield name, command
