"""Builds model requests in a run with layers: calls their recall and the projector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import frozen

from noetic_py.core.budget import TokenUsage
from noetic_py.core.events import ViewMade
from noetic_py.core.items import FunctionCall, Item, Message, Reasoning
from noetic_py.core.log import ItemView
from noetic_py.core.tokens import CounterByName, TokenCounter
from noetic_py.core.view import View
from noetic_py.engine.frame import Frame
from noetic_py.engine.layers.handles import Live
from noetic_py.engine.layers.lifecycle import FAILED, call_hook, notify_children, present, report_failure
from noetic_py.engine.provider_call import ready_counter_of, room_for_answer
from noetic_py.errors import LimitExceeded
from noetic_py.journal.changes import view_change
from noetic_py.memory.blocks import LayerBlock, as_items, weigh
from noetic_py.memory.history import HistoryIndex
from noetic_py.memory.layer import AnyLayer, Recall, budget_of
from noetic_py.memory.projector import Allocation, Demand, Projector, RequestHead
from noetic_py.memory.view_state import projector_from, record_view
from noetic_py.models.model import Model, ModelRequest, profile_of
from noetic_py.steps.model import ModelSpec

# A block that takes more than this part of what it may take would perhaps be larger.
_FULL = 2


async def project(
    frame: Frame, spec: ModelSpec, model: Model, request: ModelRequest, history: ItemView
) -> tuple[View, Projector]:
    """Let the layers recall, and put together what the model is shown; without layers where there is no more room.

    Returns:
        The view, and the projector that has made it: the conversation's, once the model has answered.

    Raises:
        LimitExceeded: What is never left out does not fit the model's window.
    """
    head = await _head(spec, model, request, frame.x.run.resources.counters)
    if frame.scope.view is None and not present(frame, "recall"):
        frame.scope.view = _before_that(head, history)
    projector = projector_from(frame.scope.view)
    await notify_children(frame)
    shares = projector.plan(head, [Demand(layer.id, *budget_of(layer)) for layer in present(frame, "recall")])
    recalled = await _recalled(frame, shares, _query(history))
    projected = await _narrowed(frame, history)
    blocks = _blocks(frame, recalled, shares, partial(projector.certain, head, shares, history, projected))
    _warn_of_cuts(frame, blocks, head.counter)
    deltas = await _deltas(frame, projector.stale(head, blocks))
    view = projector.assemble(head, history, blocks, deltas=deltas, projected=projected)
    frame.x.run.view = view
    if frame.x.run.bus.active:
        frame.publish(ViewMade(frame.at, view))
    frame.x.last_layer_usage = view.usage
    return view, projector


def _before_that(head: RequestHead, history: ItemView) -> Projector | None:
    """A projector that has made the request before, when there was one: it was the conversation, and all had room."""
    projector, index = Projector(), HistoryIndex()
    index.update(history, head.counter)
    end = index.tail
    if index.awaits_answer:
        while (end and isinstance(history[end - 1], (Reasoning, FunctionCall))) or _is_said(history[end - 1 : end]):
            end -= 1
    if not end or end == len(history) or history.origin_of(end) is None:
        return None
    try:
        projector.assemble(head, history[:end])
    except LimitExceeded:
        return None
    return projector


def _is_said(items: Sequence[Item]) -> bool:
    return any(isinstance(item, Message) and item.role == "assistant" for item in items)


def keep_view(frame: Frame, projector: Projector, usage: TokenUsage | None) -> None:
    """The model has answered: the next view of the conversation goes on from this one, in a later process too.

    The view of a request that was not answered is not kept, since a process that resumes the run does not know of it.
    """
    projector.answered(usage)
    frame.put_view(projector)
    if frame.x.run.store is not None:
        before = record_view(projector, frame.at)
        frame.view_change = view_change(before.state, projector.recorded.state, before.path)
        # An earlier process may have made this call in an attempt that was discarded since.
        frame.x.run.views.pop(frame.at, None)


async def _head(spec: ModelSpec, model: Model, request: ModelRequest, counters: CounterByName) -> RequestHead:
    """The fixed parts around the conversation, counted again only when they change."""
    counter, window = await ready_counter_of(model, counters), profile_of(model).context_window
    reserved = 0 if window is None else room_for_answer(model, request, window)
    head: RequestHead | None = spec.counted.get("head")
    known = None if head is None else (head.window, head.reserved, head.model)
    if (
        head is None
        or known != (window, reserved, model.name)
        or head.counter is not counter
        or head.instructions != request.instructions
        or head.output != request.output
        or not _same(head.tools, request.tools)
    ):
        head = RequestHead(counter, request.instructions, request.tools, request.output, window, reserved, model.name)
        spec.counted.put("head", head)
    return head


def _same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


@frozen(eq=False)
class _Recalled:
    """What a layer has recalled, and whether that has changed its own state."""

    layer: AnyLayer
    recall: Recall
    volatile: bool


async def _recalled(frame: Frame, shares: Allocation, query: str) -> Sequence[_Recalled]:
    """What the layers recall, those whose recall failed left out."""
    found: list[_Recalled] = []
    kept = frame.x.layer_store.recalled
    for layer in present(frame, "recall"):
        before = frame.scope.layer_states[layer.id]
        if layer.recall_mode == "eventual" and layer.id in kept:
            given = kept[layer.id]
        else:
            given = await call_hook(frame, layer, "recall", query, shares.layers[layer.id])
            if given is FAILED:
                continue
            kept[layer.id] = given
        recall = given if isinstance(given, Recall) else Recall(() if given is None else given)
        found.append(_Recalled(layer, recall, frame.scope.layer_states[layer.id] is not before))
    return found


def _blocks(
    frame: Frame,
    recalled: Sequence[_Recalled],
    shares: Allocation,
    certain: Callable[[Sequence[LayerBlock]], Sequence[Item]],
) -> list[LayerBlock]:
    """Blocks of what was recalled; last of what depends on the items that are shown whatever these take."""
    blocks: list[LayerBlock] = []
    shown: Sequence[Item] | None = None
    for each in sorted(recalled, key=lambda each: callable(each.recall.content)):
        layer, content = each.layer, each.recall.content
        try:
            if callable(content):
                shown = certain(blocks) if shown is None else shown
                items = as_items(layer.id, content(shown))
            else:
                items = as_items(layer.id, content)
        except Exception as error:  # noqa: BLE001 # code of a layer, whose failure leaves out its block alone
            report_failure(frame, layer, "recall", error)
            continue
        share, (_, most), tokens = shares.layers[layer.id], budget_of(layer), each.recall.tokens
        blocks.append(LayerBlock(layer.id, layer.slot, items, layer.placement, share, tokens, each.volatile, most))
    return blocks


def _warn_of_cuts(frame: Frame, blocks: Sequence[LayerBlock], counter: TokenCounter) -> None:
    """Say once of a layer that it has filled what the window leaves of its budget."""
    known = frame.x.layers.cut
    for block in blocks:
        if block.cut is None or block.layer in known or weigh(block.items, counter) * _FULL < (block.budget or 0):
            continue
        known.add(block.layer)
        most = block.declared
        message = f"{block.cut}; budget=({most}, {most}) gives it all of them before anything is shared"
        Live(frame, frame.x.layers.by_id[block.layer]).warn(message)


def _query(history: ItemView) -> str:
    """The text of the newest input."""
    for item in reversed(history):
        if isinstance(item, Message) and item.role == "user" and item.text:
            return item.text
    return ""


async def _deltas(frame: Frame, stale: Sequence[tuple[LayerBlock, LayerBlock]]) -> Mapping[str, Sequence[Item]]:
    """How layers tell what has changed in blocks that the model still sees as they were."""
    found: dict[str, Sequence[Item]] = {}
    able = {layer.id: layer for layer in present(frame, "render_delta")}
    for now, pinned in stale:
        layer = able.get(now.layer)
        if layer is None:
            continue
        made = await call_hook(frame, layer, "render_delta", pinned.items, now.items)
        if made is not FAILED and made is not None:
            found[layer.id] = as_items(layer.id, made)
    return found


async def _narrowed(frame: Frame, history: ItemView) -> Sequence[Item] | None:
    """The history as layers narrow it; `None` when none does."""
    layers = present(frame, "project_history")
    if not layers:
        return None
    items: Sequence[Item] = history
    for layer in layers:
        made = await call_hook(frame, layer, "project_history", items)
        if made is not FAILED:
            items = made
    return None if items is history else items
