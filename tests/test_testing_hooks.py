"""The contract of hooks: sound ones pass it, and faults that it has to find."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from noetic_py import FunctionCall, FunctionCallOutput, HookContext, Message, ModelRequest, ModelResponse, hooks
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore
from noetic_py.core.values import is_list
from noetic_py.errors import NoeticError
from noetic_py.testing import HookContract

pytestmark = pytest.mark.anyio
AnyHook = hooks.Hook[Any, Any]
Context = HookContext[Any, Any]


@hooks.after_model
async def count_answers(ctx: Context, response: ModelResponse) -> None:
    ctx.effects.state["answers"] = ctx.state.get("answers", 0) + 1


@hooks.after_tool
async def keep_output(ctx: Context, call: FunctionCall, output: FunctionCallOutput) -> str:
    await anyio.lowlevel.checkpoint()
    ctx.effects.save("output.txt", output.text.encode())
    return f"{output.text}, as {call.name} says"


@hooks.on_model_error
async def say_sorry(ctx: Context, error: NoeticError) -> ModelResponse:
    return ModelResponse([Message.assistant("Ask again later.")])


@hooks.on_step_error
async def keep_error(ctx: Context, call: hooks.StepCall, error: NoeticError) -> None:
    ctx.effects.save("errors.txt", error.message.encode(), scope="run")


@hooks.after_round
async def one_round(ctx: Context, done: hooks.Round) -> None:
    ctx.effects.stop_loop("enough")


class SoundHook(HookContract):
    hook: AnyHook

    def make(self) -> AnyHook:
        return self.hook


class TestCountAnswers(SoundHook):
    hook = count_answers


class TestKeepOutput(SoundHook):
    hook = keep_output


class TestSaySorry(SoundHook):
    hook = say_sorry


class TestKeepError(SoundHook):
    hook = keep_error


class TestOneRound(SoundHook):
    hook = one_round


# Each makes the hook as a process of its own does.


def counted_in_the_process() -> AnyHook:
    """Numbers answers over all runs of its process."""
    numbers = [0]

    @hooks.after_model
    async def number(ctx: Context, response: ModelResponse) -> None:
        numbers[0] += 1
        ctx.effects.state["answers"] = numbers[0]

    return number


class Remembered:
    """Keeps the request of one run where another one puts its own."""

    def __init__(self) -> None:
        self.asked = ""

    async def __call__(self, ctx: Context, request: ModelRequest) -> None:
        self.asked = next(item.text for item in request.items if isinstance(item, Message) and item.role == "user")
        await anyio.lowlevel.checkpoint()
        ctx.effects.state["asked"] = self.asked


def at_random() -> AnyHook:
    """Says something else each time."""

    @hooks.after_tool
    async def unsure(ctx: Context, call: FunctionCall, output: FunctionCallOutput) -> str:
        return f"{output.text}, perhaps {random.random()}"

    return unsure


def saved_directly() -> AnyHook:
    """Saves a version of its own each time that it is called."""

    @hooks.after_tool
    async def save(ctx: Context, call: FunctionCall, output: FunctionCallOutput) -> None:
        await ctx.services[ArtifactStore].save(ArtifactOwner.of(ctx), "output.txt", output.text.encode())

    return save


def deaf() -> AnyHook:
    """Takes a cancellation for a failure."""

    @hooks.before_model
    async def look(ctx: Context, request: ModelRequest) -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException:  # noqa: BLE001 # the fault
            return

    return look


def locked() -> AnyHook:
    """Keeps its lock when it is cancelled."""
    free = anyio.Event()
    free.set()
    state = {"free": free}

    @hooks.before_model
    async def alone(ctx: Context, request: ModelRequest) -> None:
        await state["free"].wait()
        state["free"] = anyio.Event()
        await anyio.lowlevel.checkpoint()
        state["free"].set()

    return alone


def renamed() -> AnyHook:
    """Has another name in each process."""

    @hooks.before_step(name=f"audit-{random.random()}")
    async def audit(ctx: Context, call: hooks.StepCall) -> None: ...

    return audit


def never_called() -> AnyHook:
    """Holds for a tag that nothing has."""

    @hooks.before_step(tags=["audited"])
    async def audit(ctx: Context, call: hooks.StepCall) -> None: ...

    return audit


def wrong_value() -> AnyHook:
    """Returns what its event does not take."""

    async def answer(ctx: Context, response: ModelResponse) -> Any:
        return "an answer"

    return hooks.after_model(answer)


def failing() -> AnyHook:
    @hooks.after_round
    async def fail(ctx: Context, done: hooks.Round) -> None:
        raise KeyError("answers")

    return fail


def impossible() -> AnyHook:
    """Asks for what its event cannot have."""

    @hooks.before_tool
    async def skip(ctx: Context, call: FunctionCall) -> None:
        ctx.effects.skip_summary()

    return skip


def in_place() -> AnyHook:
    """Changes an input, of which it has a copy."""

    @hooks.before_step
    async def tidy(ctx: Context, call: hooks.StepCall) -> None:
        if is_list(call.input):
            call.input.append("please")

    return tidy


def no_hook() -> Any:
    """A function without a decorator."""

    async def plain(ctx: Context, request: ModelRequest) -> None: ...

    return plain


FAULTS: list[tuple[Callable[[], AnyHook], str, str]] = [
    (counted_in_the_process, "runs_at_once_do_not_mix", "answers"),
    (counted_in_the_process, "it_survives_being_killed_anywhere", "answers"),
    (lambda: hooks.before_model(Remembered()), "runs_at_once_do_not_mix", "asked"),
    (at_random, "it_survives_being_killed_anywhere", "perhaps"),
    (saved_directly, "it_survives_being_killed_anywhere", "what else was read"),
    (deaf, "a_cancelled_call_ends", "went on after it was cancelled"),
    (locked, "a_cancelled_call_ends", "TimeoutError|"),
    (renamed, "a_plugin_can_register_it", "audit-"),
    (no_hook, "a_plugin_can_register_it", "is not a valid hook"),
    (never_called, "it_is_called_and_does_not_fail", "was not called"),
    (wrong_value, "it_is_called_and_does_not_fail", "returned 'an answer'"),
    (failing, "it_is_called_and_does_not_fail", "KeyError"),
    (impossible, "it_is_called_and_does_not_fail", "skip_summary"),
    (in_place, "it_changes_nothing_in_place", "please"),
]


@pytest.mark.parametrize(("faulty", "case", "why"), FAULTS)
async def test_a_fault_is_found(faulty: Callable[[], AnyHook], case: str, why: str) -> None:
    class Case(HookContract):
        patience = 0.5

        def make(self) -> AnyHook:
            return faulty()

    with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception), match=why):
        await called(getattr(Case(), f"test_{case}"))


async def called(case: Callable[[], Any]) -> None:
    found = case()
    if found is not None:
        await found
