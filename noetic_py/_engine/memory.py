"""The life of an execution's layers: opened before its first step, closed after its last, asked in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from attrs import evolve

from noetic_py._engine.execute import HANDLERS, AnyStep, execute
from noetic_py._engine.frame import Frame
from noetic_py._engine.hooks import FAILED, as_layer_error, call_at_once, call_hook, present, tell_failed, try_hook
from noetic_py._engine.layers import AnyLayer
from noetic_py._engine.state import Execution
from noetic_py.checkpoints.records import Voided
from noetic_py.domain import Domain
from noetic_py.errors import ConfigError, ModelError
from noetic_py.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.memory.hooks import Appended, Guide, Halt, NeedsApproval, Returned, Seed
from noetic_py.models.base import ModelResponse
from noetic_py.steps.step import Step

__all__ = [
    "after_tool_call",
    "appended",
    "before_tool_call",
    "close_layers",
    "fork_layers",
    "is_guided",
    "join_returned",
    "judged",
    "mend_model_error",
    "open_layers",
    "remember",
    "spawn_layers",
    "tell_children",
]


def _phase(id: str) -> AnyStep:
    """A step of the engine's own, so that what layers do in it is in the journal, and is not done twice."""
    return Step(id=id, kind="memory")


# No id of a user's can hold brackets, so no step of theirs has one of these places.
_OPEN = _phase("memory[open]")
_CLOSE = _phase("memory[close]")
_SPAWN = _phase("memory[spawn]")
_STORE = _phase("memory[store]")


async def run_phase(work: Any, frame: Frame) -> Any:
    """Do what the phase is there for."""
    return await work(frame)


# ------------------------------------------------------------------------------------------------- opening and closing


async def open_layers(x: Execution, root: Frame, main: str) -> None:
    """Load the layers' states and call `init`, before anything recalls.

    Args:
        x: The execution.
        root: What it hangs from.
        main: The frame of the step that it is there for.

    Raises:
        LayerError: A layer could not begin, and does not say that it may be left out.
    """
    if not x.layers:
        return
    _open_again(root, main)
    await execute(_OPEN, _open, root, _OPEN.id)
    x.upkeep.first = dict(root.domain.cells)


def _open_again(root: Frame, main: str) -> None:
    """An execution that was closed because it was stopped goes on: what closing it has left is void."""
    node = root.node
    if node is None or _CLOSE.id not in node.children:
        return
    step = node.children.get(main)
    if step is None or step.finished is None:
        node.drop(_CLOSE.id)
        root.x.run.journal.append(Voided((*root.at, _CLOSE.id)))


async def _open(frame: Frame) -> None:
    x = frame.x
    cells: dict[str, Any] = {}
    broken: set[str] = set()
    for layer in x.layers.by_id.values():
        try:
            cells[layer.id] = await x.upkeep.load(layer)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 # the layer says what it means
            broken.add(layer.id)
            cells[layer.id] = None
            _leave_out(frame, layer, error)
    frame.put_cells(cells)
    for layer in x.layers.having("init"):
        failed = None if layer.id in broken else await try_hook(frame, layer, "init")
        if failed is not None:
            broken.add(layer.id)
            _leave_out(frame, layer, failed)
    if broken:
        frame.put_cells({each: state for each, state in frame.domain.cells.items() if each not in broken})


def _leave_out(frame: Frame, layer: AnyLayer, error: Exception) -> None:
    if layer.on_init_error == "raise":
        raise as_layer_error(frame, layer, "init", error) from error
    tell_failed(frame, layer, "init", error)


async def close_layers(x: Execution, root: Frame) -> None:
    """Call `on_complete`, put into the store what it does not have, and call `dispose`, whatever has ended it."""
    store = x.run.store
    if not root.domain.cells or (store is not None and store.broken):
        return
    x.closing = True
    try:
        with anyio.CancelScope(shield=True):
            await execute(_CLOSE, _close, root, _CLOSE.id)
    finally:
        x.closing = False


async def _close(frame: Frame) -> None:
    for layer in present(frame, "on_complete"):
        await call_hook(frame, layer, "on_complete")
    await frame.x.upkeep.flush(frame)
    for layer in present(frame, "dispose"):
        await call_hook(frame, layer, "dispose")


# -------------------------------------------------------------------------------------------------------------- a round


async def appended(frame: Frame, items: Sequence[Item]) -> Sequence[Item]:
    """Input or tool outputs as layers want them appended."""
    for layer in present(frame, "on_item_append"):
        made = await call_hook(frame, layer, "on_item_append", items)
        if made is FAILED:
            continue
        if isinstance(made, Appended):
            _forget_recalled(frame, layer, made.reread)
            made = made.items
        if _keeps_outputs(frame, layer, items, made):
            items = made
    return items


def _keeps_outputs(frame: Frame, layer: AnyLayer, before: Sequence[Item], made: Sequence[Item]) -> bool:
    """Whether every output is still there: without one its call would be open for ever."""
    kept = {item.call_id for item in made if isinstance(item, FunctionCallOutput)}
    wanted = {item.call_id for item in before if isinstance(item, FunctionCallOutput)}
    if kept == wanted:
        return True
    error = ValueError("it has taken the output of a tool call away, or added one; change its text instead")
    tell_failed(frame, layer, "on_item_append", error)
    return False


def _forget_recalled(frame: Frame, layer: AnyLayer, reread: str) -> None:
    recalled = frame.x.upkeep.recalled
    if reread == "all":
        recalled.clear()
    elif reread == "self":
        recalled.pop(layer.id, None)
    else:
        for each in frame.x.layers.by_slot:
            if each.slot >= layer.slot:
                recalled.pop(each.id, None)


async def mend_model_error(frame: Frame, error: ModelError) -> ModelResponse | None:
    """The answer that a layer gives in place of a model that has failed; `None` when none does."""
    for layer in present(frame, "on_model_error"):
        made = await call_hook(frame, layer, "on_model_error", error)
        if isinstance(made, ModelResponse):
            return made
    return None


async def judged(frame: Frame, response: ModelResponse) -> ModelResponse:
    """The answer, unless a layer does not let it pass: then what the model is told instead, or the end."""
    for layer in present(frame, "after_model_call"):
        verdict = await call_hook(frame, layer, "after_model_call", response)
        if isinstance(verdict, Halt):
            frame.x.abort(frame, verdict.reason)
            await checkpoint()
        if isinstance(verdict, Guide):
            told = Message.developer(f"Your answer was not taken: {verdict.message}\nAnswer again.")
            return evolve(response, items=(told,), stop_reason="other")
    return response


def is_guided(response: ModelResponse) -> bool:
    """Whether a layer has put guidance in the place of an answer."""
    items = response.items
    return len(items) == 1 and isinstance(items[0], Message) and items[0].role == "developer"


async def before_tool_call(frame: Frame, call: FunctionCall) -> tuple[FunctionCall, str | None] | str:
    """The call as layers let it be made, with why somebody has to approve it; or what the model is told instead."""
    asks: str | None = None
    for layer in present(frame, "before_tool_call"):
        answer = await call_hook(frame, layer, "before_tool_call", call)
        if answer is FAILED:
            if layer.fail_closed:
                return f"The call was blocked: {layer.id} could not check it."
            continue
        if isinstance(answer, Halt):
            frame.x.abort(frame, answer.reason)
            await checkpoint()
            return f"The run was aborted: {answer.reason}"
        if isinstance(answer, str):
            return answer
        if isinstance(answer, NeedsApproval):
            asks = "; ".join(part for part in (asks, answer.reason) if part)
        else:
            call = answer
    return call, asks


async def after_tool_call(frame: Frame, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
    """The output as layers want the conversation to have it."""
    for layer in present(frame, "after_tool_call"):
        made = await call_hook(frame, layer, "after_tool_call", call, output)
        if made is FAILED:
            continue
        if made.call_id != output.call_id:
            tell_failed(frame, layer, "after_tool_call", ValueError("its output belongs to another call"))
            continue
        output = made
    return output


async def remember(frame: Frame, response: ModelResponse, name: str) -> None:
    """The answer is in the journal: let the layers keep of it what they want, and put that into the store."""
    if not frame.x.layers:
        return

    async def store(below: Frame) -> None:
        layers = present(below, "store")
        if layers:
            await call_at_once(below, layers, "store", response)
            for layer in layers:
                below.x.upkeep.recalled.pop(layer.id, None)
        await below.x.upkeep.flush(below)

    if present(frame, "store") or frame.x.upkeep.is_behind(frame.domain.cells):
        await execute(_STORE, store, frame, name)


# ------------------------------------------------------------------------------------------------------------- children


async def spawn_layers(root: Frame) -> None:
    """A child's layers, as its parent's `on_spawn` makes them: the states it has, and the items it begins with."""
    if present(root, "on_spawn"):
        await execute(_SPAWN, _spawned, root, _SPAWN.id)
        root.domain.began = root.domain.cells


async def _spawned(frame: Frame) -> None:
    items = await _seed(frame)
    frame.log.extend(items)


async def _seed(frame: Frame) -> list[Item]:
    items: list[Item] = []
    for layer in present(frame, "on_spawn"):
        seed: Seed[Any] | None = await call_hook(frame, layer, "on_spawn")
        cells = dict(frame.domain.cells)
        if isinstance(seed, Seed):
            cells[layer.id] = seed.state
            items += seed.items
        else:
            del cells[layer.id]
        frame.put_cells(cells)
    return items


async def fork_layers(frame: Frame, index: int, domain: Domain) -> None:
    """A path's layers, likewise; its conversation is that of its section, so nothing is put into it."""
    if not present(frame, "on_spawn"):
        return

    async def forked(below: Frame) -> None:
        await _seed(below)

    await execute(_SPAWN, forked, frame, f"{_SPAWN.id}#{index}", domain)
    domain.began = domain.cells


async def join_returned(frame: Frame, children: Mapping[str, tuple[Domain, Any]]) -> None:
    """Children have succeeded: give each, one after the other, to the layers that want something of it."""
    layers = present(frame, "on_return")
    for child_id, (domain, value) in children.items():
        for layer in layers:
            if layer.id not in domain.cells:
                continue
            began = domain.began.get(layer.id)
            child = Returned(child_id, domain.cells[layer.id], began, domain.log.frozen(), value)
            await call_hook(frame, layer, "on_return", child)
    if layers:
        await frame.x.upkeep.flush(frame)


async def tell_children(frame: Frame) -> None:
    """Tell a child's layers what has become of them in its parent since it looked last."""
    parent = frame.x.parent_frame
    if parent is None or not (layers := present(frame, "on_parent_update")):
        return
    seen, now = frame.x.upkeep.parents, parent.domain.cells
    for layer in layers:
        before = seen.setdefault(layer.id, now.get(layer.id))
        if layer.id in now and now[layer.id] is not before:
            seen[layer.id] = now[layer.id]
            await call_hook(frame, layer, "on_parent_update", now[layer.id])


HANDLERS["memory"] = run_phase
