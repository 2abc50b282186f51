"""`noetic mcp`: the flows of a file for MCP clients, by the package noetic-mcp."""

from __future__ import annotations

import signal
import sys
from contextlib import AsyncExitStack, redirect_stdout
from importlib import import_module
from types import ModuleType

import anyio

from noetic_py.cli.database import Place, opened
from noetic_py.cli.loading import FlowFile, load_flow, make_harness
from noetic_py.cli.report import USAGE, print_error
from noetic_py.cli.running import database_of
from noetic_py.errors import MissingExtra, NoeticError
from noetic_py.runner.registry import Signals

__all__ = ["serve"]

# Seconds that runs have to end after the first signal. A thread may still wait for standard input then.
_MOST = 5.0


def serve(target: str, model: str | None, db: str | None, port: int | None) -> int:
    """Serve the flow of `FILE[:STEP]`, and those of the file's harness, until the client closes the connection.

    Args:
        target: The file and the step.
        model: The model that the command line asks for.
        db: Where runs are kept.
        port: The port for HTTP; standard input and output when `None`.

    Returns:
        The exit code.
    """
    try:
        plugin = _plugin()
        # Standard output belongs to the protocol.
        with redirect_stdout(sys.stderr):
            file = load_flow(target)
            place = database_of(file, db)
    except NoeticError as error:
        print_error(error, None, trace=False)
        return USAGE
    return anyio.run(_serve, plugin, file, model, place, port)


def _plugin() -> ModuleType:
    try:
        return import_module("noetic_mcp")
    except ModuleNotFoundError as error:
        if error.name != "noetic_mcp":
            raise
        raise MissingExtra("noetic-mcp, which `noetic mcp` needs,", install="pip install noetic-mcp") from None


async def _serve(plugin: ModuleType, file: FlowFile, model: str | None, place: Place | None, port: int | None) -> int:
    with Signals("stopped\n", limit=_MOST) as signals:
        async with AsyncExitStack() as stack:
            backend = None if place is None else await stack.enter_async_context(opened(place))
            harness = await stack.enter_async_context(await make_harness(file, model, backend))
            step = file.step if file.budget is None else file.step.with_options(budget=file.budget)
            flows = {**harness.flows, file.name: step}
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_on_signal, signals, group.cancel_scope)
                await plugin.serve_mcp(harness, flows, name=file.path.stem, state=file.state, port=port)
                group.cancel_scope.cancel()
        return 0 if signals.received is None else 128 + signals.received


async def _stop_on_signal(signals: Signals, scope: anyio.CancelScope) -> None:
    received: signal.Signals = await signals.wait()
    sys.stderr.write(f"{received.name}: stopping\n")
    scope.cancel()
