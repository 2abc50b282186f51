"""Hook dispatch: hooks are called in order, with effects on the step's frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from anyio.lowlevel import checkpoint
from attrs import evolve, frozen

from noetic_py import errors
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore
from noetic_py.context.hooks import (
    AnyHook,
    Block,
    Compact,
    Effects,
    HandOff,
    HookContext,
    HookEvent,
    Round,
    Saved,
    StepCall,
)
from noetic_py.context.step import AnyStep, Body, Step
from noetic_py.context.step import frame as frame_name
from noetic_py.core.items import FunctionCall, FunctionCallOutput
from noetic_py.core.state import merge_state
from noetic_py.core.values import copy_value
from noetic_py.engine.execute import execute
from noetic_py.engine.frame import Frame, failure_of, in_time
from noetic_py.engine.protocol import HookedBody
from noetic_py.memory.history import paired
from noetic_py.memory.layer import AnyLayer, answers
from noetic_py.models.model import ModelRequest, ModelResponse
from noetic_py.steps.handoff import Handoff, HandoffOutput
from noetic_py.tools.calls import Received


async def apply(frame: Frame, hook: AnyHook, effects: Effects) -> None:
    """Do what a hook has asked for.

    Raises:
        ConfigError: It cannot be done here.
        NoeticError: The store of artifacts, or the memory, has refused it.
    """
    _check_effects(frame, hook, effects)
    if effects.state:
        merge_state(frame.state, effects.state)
    for index, artifact in enumerate(effects.saved):
        await _save(frame, hook, artifact, index)
    if effects.compaction is not None:
        await _compact(frame, effects.compaction)
    if effects.stop is not None:
        ending = frame.x.stop_loop_around(frame, effects.stop.value)
        if effects.stop.now and hook.event != "after_round":
            frame.cuts_short = ending
    if effects.handoff is not None:
        hand_over(frame, effects.handoff)
    if effects.finished:
        _finish(frame)
    if frame.cuts_short is not None and hook.event.startswith("before"):
        frame.x.run.interpreter.cut_short(*frame.cuts_short, frame)
        # The operation before which the hook was called does not begin.
        await checkpoint()


def _check_effects(frame: Frame, hook: AnyHook, effects: Effects) -> None:
    """Refuse what a hook of its event cannot ask for."""
    if effects.skips and hook.event != "after_tool":
        raise errors.ConfigError(
            f"skip_summary() was asked for by {hook.name!r}, a hook of {hook.event}",
            code="hook-effect",
            path=frame.at,
            hint="an output is there in a hook of after_tool",
        )
    changes = (effects.state, effects.compaction, effects.stop, effects.handoff, effects.finished)
    if hook.event == "on_step_error" and any(changes):
        raise errors.ConfigError(
            f"{hook.name!r}, a hook of on_step_error, asked for more than save()",
            code="hook-effect",
            path=frame.at,
            hint="what a failed step did is undone; only artifacts stay, so use ctx.effects.save(...)",
        )


def cut_after(frame: Frame) -> None:
    """A step whose hooks have asked for the end of a loop has done its work: that is kept, and what follows is not."""
    if frame.cuts_short is not None:
        frame.x.run.interpreter.cut_short(*frame.cuts_short, None)


async def _save(frame: Frame, hook: AnyHook, artifact: Saved, index: int) -> None:
    # A step that is tried again, or begins again in another process, saves it in the place of what it had saved before.
    key = sha256(f"{frame.idempotency_key} {index} {hook.event} {hook.name}".encode()).hexdigest()
    owner = ArtifactOwner.of(frame, artifact.scope)
    store = frame.services[ArtifactStore]
    await store.save(owner, artifact.name, artifact.data, media_type=artifact.media_type, key=key)


async def _compact(frame: Frame, asked: Compact) -> None:
    layers = [each for each in frame.x.layers.by_id.values() if answers(type(each), "compactor")]
    bound: AnyLayer | None = frame.memory[layers[0].id] if layers else None
    compact = None if bound is None else bound.compactor()
    if compact is None:
        raise errors.ConfigError(
            "compact() needs a Compaction layer, which shows the summary",
            code="no-compaction",
            path=frame.at,
            hint="class Mem(Memory): short: Compaction = Compaction()",
        )
    await compact(asked.summary, asked.keep)


def hand_over(frame: Frame, asked: HandOff | Handoff[object]) -> None:
    """Ask the nearest step that may hand over to do so, and the loops on the way to end.

    Raises:
        ConfigError: No step around may hand over to that one; code `"handoff"`.
    """
    loops: list[Frame] = []
    node: Frame | None = frame
    while node is not None and node.x.whole is frame.x.whole:
        if node.kind.hands_over:
            break
        if node.kind.stoppable:
            loops.append(node)
        node = node.up
    targets: dict[str, AnyStep] = {}
    if node is not None and node.x.whole is frame.x.whole:
        targets = node.step.spec.targets.steps()
    if node is None or targets.get(asked.step.id) is not asked.step:
        raise errors.ConfigError(
            f"a hook hands over to {asked.step!r}, which is not in the handoffs= of a step around it",
            code="handoff",
            path=frame.at,
            hint=f"it names {', '.join(targets)}" if targets else "@step(handoffs=[other]) on a step around it",
        )
    node.stop_loop_with(HandoffOutput(asked.step.id, asked.input), frame.at)
    for loop in loops:
        loop.stop_loop_with(None, frame.at)


def _finish(frame: Frame) -> None:
    """Mark the progress of the round, the step or the loop that the hook was called for as done."""
    # An answer, a call and the hooks of a round are steps of the engine's own, below the one that a program knows.
    frame.progress.at(frame.at if frame.step.counted else frame.at[:-1]).finish()


# Errors that end the run, and mistakes of the program.
_THROUGH = (errors.CheckpointError, errors.ConcurrentStepCall, errors.ConfigError, errors.Stopped)


def _hooks(frame: Frame, event: HookEvent, tags: frozenset[str], more: Sequence[AnyHook] = ()) -> Sequence[AnyHook]:
    """The hooks of an event that hold for a step, the outermost first; `more` are those of its tool."""
    steps: list[Sequence[AnyHook]] = []
    node: Frame | None = frame
    while node is not None:
        if node.step.hooks:
            steps.append(node.step.hooks)
        node = node.up
    found = dict.fromkeys(frame.x.run.resources.hooks)
    for hooks in (*reversed(steps), more):
        found.update(dict.fromkeys(hooks))
    return [each for each in found if each.event == event and each.holds_for(tags)]


async def _call(frame: Frame, hook: AnyHook, *subject: object) -> tuple[object, Effects]:
    """Call a hook, and do what it has asked for; gives what it has returned.

    Raises:
        HookFailed: It has raised.
    """
    ctx: HookContext[Any, Any] = HookContext(frame)
    try:
        made = await hook.fn(ctx, *subject)
    except _THROUGH:
        raise
    except BaseException as raised:
        error = failure_of(raised)
        if error is None:
            raise
        raise _failed(frame, hook, f"raised {type(error).__name__}: {error}") from raised
    await apply(frame, hook, ctx.effects)
    return made, ctx.effects


def _failed(frame: Frame, hook: AnyHook, what: str, hint: str | None = None) -> errors.HookFailed:
    return errors.HookFailed(
        f"the {hook.event} hook {hook.name!r} {what}", hook=hook.name, event=hook.event, path=frame.at, hint=hint
    )


def _wrong(frame: Frame, hook: AnyHook, made: object, wanted: str) -> errors.HookFailed:
    return _failed(frame, hook, f"returned {made!r:.100}", f"it returns {wanted}, or nothing")


# -------------------------------------------------------------------------------------------------------------- models


def _tags_of_round(frame: Frame) -> frozenset[str]:
    """The tags of the model round that an answer, or a call, belongs to."""
    return frozenset() if frame.up is None else frame.up.step.tags


async def before_model(frame: Frame, request: ModelRequest) -> ModelRequest | ModelResponse:
    """The request as hooks want it asked, or the answer of one."""
    if not frame.x.run.dispatches_hooks:
        return request
    for hook in _hooks(frame, "before_model", _tags_of_round(frame)):
        made, _ = await _call(frame, hook, request)
        if isinstance(made, ModelResponse):
            return made
        if isinstance(made, ModelRequest):
            if made.items is not request.items and len(paired(made.items)) < len(made.items):
                raise _failed(frame, hook, "returned a request that no provider takes: calls and outputs in it differ")
            request = made
        elif made is not None:
            raise _wrong(frame, hook, made, "a ModelRequest or a ModelResponse")
    return request


async def after_model(frame: Frame, response: ModelResponse) -> ModelResponse:
    """The answer as hooks want the conversation to have it."""
    if not frame.x.run.dispatches_hooks:
        return response
    for hook in _hooks(frame, "after_model", _tags_of_round(frame)):
        made, _ = await _call(frame, hook, response)
        if isinstance(made, ModelResponse):
            response = made
        elif made is not None:
            raise _wrong(frame, hook, made, "a ModelResponse")
    return response


async def on_model_error(frame: Frame, error: errors.ModelError) -> ModelResponse | None:
    """The answer that a hook gives in place of a model that has failed; `None` when none does."""
    if not frame.x.run.dispatches_hooks:
        return None
    for hook in _hooks(frame, "on_model_error", _tags_of_round(frame)):
        try:
            made, _ = await _call(frame, hook, error)
        except errors.HookFailed as failed:
            # Raising what it was given is not a failure of the hook's.
            if failed.__cause__ is error:
                raise error from None
            raise
        if isinstance(made, ModelResponse):
            return made
        if made is not None:
            raise _wrong(frame, hook, made, "a ModelResponse")
    return None


# --------------------------------------------------------------------------------------------------------------- tools


def _of_tool(frame: Frame, event: HookEvent, tool: Any) -> Sequence[AnyHook]:
    return _hooks(frame, event, frozenset()) if tool is None else _hooks(frame, event, tool.tags, tool.hooks)


async def before_tool(frame: Frame, received: Received) -> Received | FunctionCallOutput | Block:
    """The call as hooks want it made, the output of one in place of the tool's, or the text for the model instead."""
    for hook in _of_tool(frame, "before_tool", received.tool):
        call = received.call
        made, _ = await _call(frame, hook, call)
        if isinstance(made, Block):
            return made
        if isinstance(made, (str, FunctionCallOutput)):
            return _output(frame, hook, call.call_id, made)
        if isinstance(made, FunctionCall):
            if (made.call_id, made.name) != (call.call_id, call.name):
                raise _failed(frame, hook, "returned another call", "evolve(call, arguments=...) changes its arguments")
            received = received.changed(made)
        elif made is not None:
            raise _wrong(frame, hook, made, "the call with other arguments, an output, a text or a Block")
    return received


async def after_tool(frame: Frame, call: FunctionCall, output: FunctionCallOutput, tool: object) -> FunctionCallOutput:
    """The output as hooks want the conversation to have it."""
    for hook in _of_tool(frame, "after_tool", tool):
        made, effects = await _call(frame, hook, call, output)
        if isinstance(made, (str, FunctionCallOutput)):
            output = _output(frame, hook, call.call_id, made, output)
        elif made is not None:
            raise _wrong(frame, hook, made, "an output or a text")
        if effects.skips:
            output = evolve(output, final=True)
    return output


def _output(
    frame: Frame,
    hook: AnyHook,
    call_id: str,
    made: str | FunctionCallOutput,
    before: FunctionCallOutput | None = None,
) -> FunctionCallOutput:
    if isinstance(made, str):
        return FunctionCallOutput(call_id=call_id, output=made) if before is None else evolve(before, output=made)
    if made.call_id != call_id:
        raise _failed(frame, hook, "returned the output of another call", "evolve(output, output=...) changes it")
    return made


# --------------------------------------------------------------------------------------------------- steps and rounds


@frozen(eq=False)
class _BodyWithHooks:
    """A body between the hooks of its step."""

    body: Body

    async def __call__(self, value: object, frame: Frame) -> object:
        """Run the body, with the hooks before it and after it."""
        step = frame.step
        call = _step_call(frame, value)
        for hook in _hooks(frame, "before_step", step.tags):
            await _notify(frame, hook, call)
        if frame.x.run.timed:
            await in_time()
        handover = frame.handover
        if handover is not None or frame.cuts_short is not None:
            return handover
        output = await self.body(value, frame)
        shown: object = output
        if isinstance(output, HandoffOutput):
            shown = Handoff(step.spec.targets.steps()[output.step], output.input)
        for hook in _hooks(frame, "after_step", step.tags):
            await _notify(frame, hook, call, copy_value(shown))
        cut_after(frame)
        return output if frame.handover is None else frame.handover

    async def failed(self, value: object, frame: Frame, error: errors.NoeticError) -> None:
        """Call the hooks for a failed attempt, outside of its time limit.

        Raises:
            HookFailed: One of them has raised.
        """
        # After a stop no failure is written, and a process that has lost its run has no say in it.
        if frame.x.stop is not None or isinstance(error, errors.CheckpointError):
            return
        call = _step_call(frame, value)
        for hook in _hooks(frame, "on_step_error", frame.step.tags):
            await _notify(frame, hook, call, error)


def with_hooks(body: Body) -> HookedBody:
    """A body between the hooks of its step."""
    return _BodyWithHooks(body)


def _step_call(frame: Frame, value: object) -> StepCall:
    step = frame.step
    return StepCall(step.id, step.kind, step.tags, copy_value(value), frame.attempt)


def rounds_with_hooks(frame: Frame) -> Callable[[AnyStep, object, Frame, str], Awaitable[Any]]:
    """How a loop runs its body: with its hooks, where it has any."""
    hooks = _hooks(frame, "after_round", frame.step.tags)
    return partial(_round, hooks) if hooks else execute


async def _round(hooks: Sequence[AnyHook], body: AnyStep, value: object, frame: Frame, name: str) -> object:
    """Run a loop's body, and then the hooks, in a recorded step of the engine's own: a run that goes on calls none."""
    output = await execute(body, value, frame, name)
    last, index = frame.last_output, int(name[len(body.id) + 1 : -1])
    done = Round(frame.step.id, index, copy_value(output))
    await execute(_ROUND, partial(_after_round, hooks, done), frame, frame_name(_ROUND.id, index))
    # The round's own output is still the loop's last one.
    frame.last_output = last
    return output


async def _after_round(hooks: Sequence[AnyHook], done: Round, frame: Frame) -> None:
    for hook in hooks:
        await _notify(frame, hook, done)


async def _notify(frame: Frame, hook: AnyHook, *subject: object) -> None:
    """Call a hook that has nothing to give."""
    made, _ = await _call(frame, hook, *subject)
    if made is not None:
        raise _failed(frame, hook, f"returned {made!r:.100}", "it returns nothing")


# No id of a user's can hold brackets, so no step of theirs has this place.
_ROUND: AnyStep = Step(id="hooks[round]", kind="hook")
