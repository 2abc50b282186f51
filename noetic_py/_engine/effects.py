"""What a hook has asked for is done in its step's frame: it is a part of that step's record, and void with it."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from noetic_py._engine.frame import Frame
from noetic_py.artifacts import ArtifactOwner, ArtifactStore
from noetic_py.effects import Compact, Effects, HandOff, Saved
from noetic_py.errors import ConfigError
from noetic_py.hooks import Hook
from noetic_py.memory.layers.compaction import Compaction
from noetic_py.state import merge_state
from noetic_py.steps.handoff import AnyStep, Handed

__all__ = ["apply"]


async def apply(frame: Frame, hook: Hook[Any, Any], effects: Effects) -> None:
    """Do what a hook has asked for.

    Raises:
        ConfigError: It cannot be done here.
        NoeticError: The store of artifacts, or the memory, has refused it.
    """
    if effects.skips and hook.event != "after_tool":
        raise ConfigError(
            f"skip_summary() was asked for by {hook.name!r}, a hook of {hook.event}",
            code="hook-effect",
            path=frame.at,
            hint="an output is there in a hook of after_tool",
        )
    if effects.state:
        merge_state(frame.state, effects.state)
    for index, artifact in enumerate(effects.saved):
        await _save(frame, hook, artifact, index)
    if effects.compaction is not None:
        await _compact(frame, effects.compaction)
    if effects.stop is not None:
        frame.x.stop_loop(frame, effects.stop.value)
    if effects.handoff is not None:
        _hand_off(frame, effects.handoff)
    if effects.finished:
        _finish(frame)


async def _save(frame: Frame, hook: Hook[Any, Any], artifact: Saved, index: int) -> None:
    # A step that is tried again, or begins again in another process, saves it in the place of what it had saved before.
    key = sha256(f"{frame.idempotency_key} {index} {hook.event} {hook.name}".encode()).hexdigest()
    owner = ArtifactOwner.of(frame, artifact.scope)
    store = frame.services[ArtifactStore]
    await store.save(owner, artifact.name, artifact.data, media_type=artifact.media_type, key=key)


async def _compact(frame: Frame, asked: Compact) -> None:
    layers = [each for each in frame.x.layers.by_id.values() if isinstance(each, Compaction)]
    if not layers:
        raise ConfigError(
            "compact() needs a Compaction layer, which shows the summary",
            code="no-compaction",
            path=frame.at,
            hint="class Mem(Memory): short: Compaction = Compaction()",
        )
    bound: Compaction = frame.memory[layers[0].id]
    await bound.compact(asked.summary, keep=asked.keep)


def _hand_off(frame: Frame, asked: HandOff) -> None:
    """Ask the nearest step that may hand over to do so, and the loops on the way to end."""
    loops: list[Frame] = []
    node: Frame | None = frame
    while node is not None and node.x is frame.x:
        if node.step.kind == "handing":
            break
        if node.step.kind in ("loop", "every"):
            loops.append(node)
        node = node.up
    targets: dict[str, AnyStep] = {}
    if node is not None and node.x is frame.x:
        targets = node.step.spec.targets.steps()
    if node is None or targets.get(asked.step.id) is not asked.step:
        raise ConfigError(
            f"a hook hands over to {asked.step!r}, which no hands_to around it names",
            code="handoff",
            path=frame.at,
            hint=f"it names {', '.join(targets)}" if targets else "@step(hands_to=[other]) on a step around it",
        )
    node.stop_loop_with(Handed(asked.step.id, asked.input), frame.at)
    for loop in loops:
        loop.stop_loop_with(None, frame.at)


def _finish(frame: Frame) -> None:
    """Mark the progress of the round, the step or the loop that the hook was called for as done."""
    # An answer, a call and the hooks of a round are steps of the engine's own, below the one that a program knows.
    frame.progress.at(frame.at if frame.step.counted else frame.at[:-1]).finish()
