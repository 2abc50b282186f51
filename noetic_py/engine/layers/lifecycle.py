"""Life cycle of the memory layers of an execution: opened before its first step, closed after its last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from logging import WARNING
from typing import Any, Final

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, evolve

from noetic_py import errors
from noetic_py.context.read import ContextScope
from noetic_py.context.step import AnyStep, Step
from noetic_py.core.diagnostics import log
from noetic_py.core.events import LayerFailed
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.core.reducers import Conflict, join_declared, reducers_of
from noetic_py.core.state import LayerStates, class_of
from noetic_py.core.values import copy_private
from noetic_py.engine.execute import execute
from noetic_py.engine.frame import Frame, failure_of, is_late
from noetic_py.engine.journaling.fold import CLOSE, OPEN
from noetic_py.engine.journaling.ledger import discarded
from noetic_py.engine.layers.handles import Live
from noetic_py.engine.layers.versions import versions_of
from noetic_py.engine.merge import Written, conflict, hint_of, merged
from noetic_py.engine.state import Execution
from noetic_py.memory.binding import Draft
from noetic_py.memory.layer import (
    TIMEOUTS,
    AnyLayer,
    AppendedItems,
    Guide,
    Halt,
    HookName,
    NeedsApproval,
    Returned,
    Seed,
    hooks_of,
    merges,
)
from noetic_py.models.model import ModelResponse
from noetic_py.tools.calls import Received


class _Failed(Enum):
    FAILED = "failed"


FAILED: Final = _Failed.FAILED
"""The result of a hook that failed or timed out."""

# Errors that end the run wherever they are raised.
_THROUGH = (errors.CheckpointError, errors.ConcurrentStepCall, errors.Stopped)


def present(frame: Frame, hook: HookName) -> Sequence[AnyLayer]:
    """The layers of an execution that have a hook and are not left out, in the order in which it is called."""
    layers = frame.x.layers.having(hook)
    if not layers:
        return layers
    layer_states = frame.scope.layer_states
    return [layer for layer in layers if layer.id in layer_states]


async def call_hook(frame: Frame, layer: AnyLayer, hook: HookName, *args: object) -> Any:
    """Call a hook; what it did to the layer's state counts when it returns.

    Returns:
        What it gave, or `FAILED`; then an event has been sent, and the state is as it was.
    """
    called = _Called(layer, Draft(Live(frame, layer)))
    await called.run(frame, hook, args)
    return called.settle(frame, hook)


async def try_hook(frame: Frame, layer: AnyLayer, hook: HookName) -> Exception | None:
    """Call a hook whose failure may end the run; returns what it raised."""
    called = _Called(layer, Draft(Live(frame, layer)))
    await called.run(frame, hook, ())
    if called.error is None:
        called.draft.commit()
    return called.error


async def call_at_once(frame: Frame, layers: Sequence[AnyLayer], hook: HookName, *args: object) -> None:
    """Call a hook of several layers at once, each on its own draft; one that fails does not touch the others."""
    if len(layers) == 1:
        await call_hook(frame, layers[0], hook, *args)
        return
    called = [_Called(layer, Draft(Live(frame, layer))) for layer in layers]
    async with anyio.create_task_group() as group:
        for each in called:
            group.start_soon(each.run, frame, hook, args)
    for each in called:
        each.settle(frame, hook)


@define(eq=False)
class _Called:
    """One call of a hook."""

    layer: AnyLayer
    draft: Draft
    result: object = None
    error: Exception | None = None

    async def run(self, frame: Frame, hook: HookName, args: tuple[object, ...]) -> None:
        seconds = self.layer.timeouts.get(hook, TIMEOUTS[hook])
        method = getattr(self.layer.bound(self.draft), hook)
        try:
            with anyio.move_on_after(seconds) as cancel_scope:
                self.result = await method(*args)
            if cancel_scope.cancelled_caught or is_late(cancel_scope):
                self.error = errors.LayerError(
                    f"layer {self.layer.id!r} took longer than {seconds:g} s in {hook}",
                    layer=self.layer.id,
                    hook=hook,
                    path=frame.at,
                    hint=f"timeouts={{{hook!r}: ...}} of the layer gives it more",
                )
        except BaseException as error:
            self.error = failure_of(error)
            if self.error is None:
                raise

    def settle(self, frame: Frame, hook: HookName) -> object:
        if self.error is None:
            self.draft.commit()
            return self.result
        if isinstance(self.error, _THROUGH):
            raise self.error
        report_failure(frame, self.layer, hook, self.error)
        return FAILED


def as_layer_error(frame: Frame, layer: AnyLayer, hook: str, error: Exception) -> errors.LayerError:
    """The message of a hook's failure."""
    if isinstance(error, errors.LayerError):
        return error
    what = error.message if isinstance(error, errors.NoeticError) else f"{type(error).__name__}: {error}"
    made = errors.LayerError(f"layer {layer.id!r} failed in {hook}: {what}", layer=layer.id, hook=hook, path=frame.at)
    made.__cause__ = error
    return made


def report_failure(frame: Frame, layer: AnyLayer, hook: str, error: Exception) -> None:
    """Log a failure that is not reported elsewhere, and send its event."""
    failure = as_layer_error(frame, layer, hook, error)
    log("memory", WARNING, "%s", failure.message, where=frame.where, error=error)
    if frame.x.run.bus.active:
        frame.publish(LayerFailed(frame.at, layer.id, hook, str(failure)))


def _phase(id: str) -> AnyStep:
    """A step of the engine's own, so that what layers do in it is in the journal, and is not done twice."""
    return Step(id=id, kind="memory")


# No id of a user's can hold brackets, so no step of theirs has one of these places.
_OPEN = _phase(OPEN)
_CLOSE = _phase(CLOSE)
_SPAWN = _phase("memory[spawn]")
_STORE = _phase("memory[store]")


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
    if not x.has_layers:
        return
    _open_again(root, main)
    await execute(_OPEN, _open, root, _OPEN.id)
    x.layer_store.first = dict(root.scope.layer_states)


def _open_again(root: Frame, main: str) -> None:
    """Reopen an execution that a stop had closed; what closing it left is discarded."""
    node = root.node
    if node is None or _CLOSE.id not in node.children:
        return
    step = node.children.get(main)
    if step is None or step.finished is None:
        node.drop(_CLOSE.id)
        discarded(root.x.run, (*root.at, _CLOSE.id))


async def _open(frame: Frame) -> object:
    x = frame.x
    layer_states: dict[str, object] = {}
    broken: set[str] = set()
    for layer in x.layers.by_id.values():
        try:
            layer_states[layer.id] = await x.layer_store.load(layer)
        except errors.ConfigError:
            raise
        except BaseException as error:
            failure = failure_of(error)
            if failure is None:
                raise
            broken.add(layer.id)
            layer_states[layer.id] = None
            _leave_out(frame, layer, failure)
    frame.put_layer_states(layer_states)
    for layer in x.layers.having("init"):
        failed = None if layer.id in broken else await try_hook(frame, layer, "init")
        if failed is not None:
            broken.add(layer.id)
            _leave_out(frame, layer, failed)
    if broken:
        frame.put_layer_states({each: state for each, state in frame.scope.layer_states.items() if each not in broken})
    # A process that resumes the run knows by this what its journal holds.
    return versions_of(x.layers)


def _leave_out(frame: Frame, layer: AnyLayer, error: Exception) -> None:
    if layer.on_init_error == "raise":
        raise as_layer_error(frame, layer, "init", error) from error
    report_failure(frame, layer, "init", error)


async def close_layers(x: Execution, root: Frame) -> None:
    """Call `on_complete`, put into the store what it does not have, and call `dispose`, whatever has ended it."""
    store = x.run.store
    if not root.scope.layer_states or (store is not None and store.broken):
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
    await frame.x.layer_store.flush(frame)
    for layer in present(frame, "dispose"):
        await call_hook(frame, layer, "dispose")


# -------------------------------------------------------------------------------------------------------------- a round


async def appended(frame: Frame, items: Sequence[Item]) -> Sequence[Item]:
    """Input or tool outputs as layers want them appended."""
    for layer in present(frame, "on_item_append"):
        made = await call_hook(frame, layer, "on_item_append", items)
        if made is FAILED:
            continue
        if isinstance(made, AppendedItems):
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
    report_failure(frame, layer, "on_item_append", error)
    return False


def _forget_recalled(frame: Frame, layer: AnyLayer, reread: str) -> None:
    recalled = frame.x.layer_store.recalled
    if reread == "all":
        recalled.clear()
    elif reread == "self":
        recalled.pop(layer.id, None)
    else:
        for each in frame.x.layers.by_slot:
            if each.slot >= layer.slot:
                recalled.pop(each.id, None)


async def mend_model_error(frame: Frame, error: errors.ModelError) -> ModelResponse | None:
    """The answer that a layer gives in place of a model that has failed; `None` when none does."""
    for layer in present(frame, "on_model_error"):
        made = await call_hook(frame, layer, "on_model_error", error)
        if isinstance(made, ModelResponse):
            return made
    return None


async def judged(frame: Frame, response: ModelResponse) -> ModelResponse:
    """The answer, unless a layer does not let it pass: then the text for the model instead, or the end."""
    for layer in present(frame, "after_model_call"):
        verdict = await call_hook(frame, layer, "after_model_call", response)
        if isinstance(verdict, Halt):
            frame.x.abort(frame, verdict.reason)
            await checkpoint()
        if isinstance(verdict, Guide):
            feedback = Message.developer(f"Your answer was not taken: {verdict.message}\nAnswer again.")
            return evolve(response, items=(feedback,), stop_reason="other")
    return response


def is_guided(response: ModelResponse) -> bool:
    """Whether a layer has put guidance in the place of an answer."""
    items = response.items
    return len(items) == 1 and isinstance(items[0], Message) and items[0].role == "developer"


async def before_tool_call(
    frame: Frame, received: Received, states: LayerStates | None = None, *, rules: bool = False
) -> tuple[Received, str | None] | str:
    """The call as layers let it be made, with why it needs approval; or the text for the model instead.

    Args:
        frame: The step in which they are asked.
        received: The call.
        states: For a call about which they were asked before, their states of then; they keep nothing of it this time.
        rules: Whether only layers that judge calls are asked.
    """
    # Rules come last: no layer changes a call that they have judged.
    layers = sorted(present(frame, "before_tool_call"), key=lambda each: each.judges_calls)
    if rules:
        layers = [layer for layer in layers if layer.judges_calls]
    if states is None or not layers:
        return await _ask_about(frame, layers, received)
    now = frame.scope.layer_states
    frame.put_layer_states(states)
    try:
        return await _ask_about(frame, layers, received)
    finally:
        frame.put_layer_states(now)


async def _ask_about(frame: Frame, layers: Sequence[AnyLayer], received: Received) -> tuple[Received, str | None] | str:
    asks: str | None = None
    for layer in layers:
        call = received.call
        answer = await call_hook(frame, layer, "before_tool_call", call)
        if isinstance(answer, Halt):
            frame.x.abort(frame, answer.reason)
            await checkpoint()
            return f"The run was aborted: {answer.reason}"
        if isinstance(answer, str):
            return answer
        if isinstance(answer, NeedsApproval):
            asks = "; ".join(part for part in (asks, answer.reason) if part)
        elif isinstance(answer, FunctionCall) and (answer.call_id, answer.name) == (call.call_id, call.name):
            received = received.changed(answer)
        else:
            if answer is not FAILED:
                wrong = f"it returned {answer!r:.100}; expected this call, a text, a Halt or a NeedsApproval"
                report_failure(frame, layer, "before_tool_call", TypeError(wrong))
            if layer.fail_closed:
                return f"The call was blocked: {layer.id} could not check it."
    return received, asks


async def after_tool_call(frame: Frame, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
    """The output as layers want the conversation to have it."""
    for layer in present(frame, "after_tool_call"):
        made = await call_hook(frame, layer, "after_tool_call", call, output)
        if made is FAILED:
            continue
        if made.call_id != output.call_id:
            report_failure(frame, layer, "after_tool_call", ValueError("its output belongs to another call"))
            continue
        output = made
    return output


async def remember(frame: Frame, response: ModelResponse, name: str) -> None:
    """The answer is in the journal: let the layers keep of it what they want, and put that into the store."""
    if not frame.x.has_layers:
        return

    async def store(below: Frame) -> None:
        layers = present(below, "store")
        if layers:
            await call_at_once(below, layers, "store", response)
            for layer in layers:
                below.x.layer_store.recalled.pop(layer.id, None)
        await below.x.layer_store.flush(below)

    # What a layer of an earlier release has kept there counts, although it may not have the hook any more.
    recorded = frame.node is not None and name in frame.node.children
    if recorded or present(frame, "store") or frame.x.layer_store.is_behind(frame.scope.layer_states):
        await execute(_STORE, store, frame, name)


# ------------------------------------------------------------------------------------------------------------- children


async def spawn_layers(root: Frame) -> None:
    """A child's layers, as its parent's `on_spawn` makes them: the states it has, and the items it begins with."""
    if present(root, "on_spawn"):
        await execute(_SPAWN, _spawned, root, _SPAWN.id)
        root.scope.began = root.scope.layer_states


async def _spawned(frame: Frame) -> None:
    items = await _seed(frame)
    frame.log.extend(items)


async def _seed(frame: Frame) -> list[Item]:
    items: list[Item] = []
    for layer in present(frame, "on_spawn"):
        seed: Seed[object] | None = await call_hook(frame, layer, "on_spawn")
        layer_states = dict(frame.scope.layer_states)
        if isinstance(seed, Seed):
            layer_states[layer.id] = copy_private(seed.state)
            items += seed.items
        else:
            del layer_states[layer.id]
        frame.put_layer_states(layer_states)
    return items


async def fork_layers(frame: Frame, index: int, scope: ContextScope) -> None:
    """A path's layers, likewise; its conversation is that of its section, so nothing is put into it."""
    if not present(frame, "on_spawn"):
        return

    async def forked(below: Frame) -> None:
        await _seed(below)

    await execute(_SPAWN, forked, frame, f"{_SPAWN.id}#{index}", scope)
    scope.began = scope.layer_states


async def join_returned(frame: Frame, children: Mapping[str, tuple[ContextScope, object]]) -> None:
    """Children have succeeded: give each, one after the other, to the layers that want something of it.

    Raises:
        ConfigError: A layer's `merge` does not join what two of them have written; code `"state-conflict"`.
    """
    layers = present(frame, "on_return")
    before = frame.scope.layer_states
    _merge_returned(frame, [(name, scope) for name, (scope, _) in children.items()])
    for child_id, (scope, value) in children.items():
        for layer in layers:
            if layer.id not in scope.layer_states:
                continue
            state, began = (copy_private(each.get(layer.id)) for each in (scope.layer_states, scope.began))
            child = Returned(child_id, state, began, scope.log.frozen(), value)
            await call_hook(frame, layer, "on_return", child)
    if layers or frame.scope.layer_states is not before:
        await frame.x.layer_store.flush(frame)


def _merge_returned(frame: Frame, children: Written) -> None:
    """The states of layers that have no `on_return` and say how two become one: of all fields, or of some."""
    made = dict(frame.scope.layer_states)
    for key, layer in frame.x.layers.by_id.items():
        if key not in made or "on_return" in hooks_of(type(layer)):
            continue
        if merges(type(layer)):
            joined: Callable[[Any, Any, Any], Any] = partial(merged, layer)
        elif reducers_of(class_of(made[key])):
            joined = join_declared
        else:
            continue
        others = [repr(frame.step.id)]
        for name, child in children:
            if child.layer_states.get(key) is child.began.get(key):
                continue
            try:
                made[key] = joined(child.began.get(key), child.layer_states.get(key), made[key])
            except Conflict as error:
                who = f"{' or '.join(others)} and by {name!r}"
                raise conflict(f"memory.{key}{error.where}", who, hint_of(layer), frame.path) from None
            others.append(repr(name))
    if any(made[key] is not state for key, state in frame.scope.layer_states.items()):
        frame.put_layer_states(made)


async def notify_children(frame: Frame) -> None:
    """Tell a child's layers what has become of them in its parent since it looked last."""
    parent = frame.x.parent_frame
    if parent is None or not (layers := present(frame, "on_parent_update")):
        return
    seen, now = frame.x.layer_store.parents, parent.scope.layer_states
    for layer in layers:
        before = seen.setdefault(layer.id, now.get(layer.id))
        if layer.id in now and now[layer.id] is not before:
            seen[layer.id] = now[layer.id]
            await call_hook(frame, layer, "on_parent_update", copy_private(now[layer.id]))
