"""The conformance suite for hooks, to be run with pytest against one of your own.

A hook that passes it can be registered by a plugin for every run: it is called, it does the same in a run that is
killed and resumed, it tells runs that go on at once apart, and it can be cancelled.

```python
from typing import Any

from noetic_py import HookContext, ModelResponse, hooks
from noetic_py.testing import HookContract


@hooks.after_model
async def count_answers(ctx: HookContext, response: ModelResponse) -> None:
    ctx.effects.state["answers"] = ctx.state.get("answers", 0) + 1


class TestCountAnswers(HookContract):
    def make(self) -> hooks.Hook[Any, Any]:
        return count_answers
```
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from attrs import evolve

from noetic_py.checkpoints.contract import CheckpointBackend
from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.context.artifacts import ArtifactOwner, ArtifactScope, ArtifactStore, StoredArtifacts
from noetic_py.context.context import Context
from noetic_py.context.hooks import AnyHook, Hook, Round, StepCall
from noetic_py.context.step import AnyStep
from noetic_py.core.control import AnyResult
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Message
from noetic_py.core.values import alike, copy_value
from noetic_py.errors import ConfigError, HookFailed, ModelUnavailable, StepFailed
from noetic_py.harness import Harness
from noetic_py.models.model import ModelRequest
from noetic_py.plugins import HookRegistry
from noetic_py.steps.code import step
from noetic_py.steps.loop import loop
from noetic_py.steps.model import call_model
from noetic_py.testing._conformance.base import equal
from noetic_py.testing._conformance.driving import CancelledAt, at_every_wait, slowed
from noetic_py.testing.resumable import assert_resumable_everywhere
from noetic_py.testing.scripted import ScriptedModel, Turn
from noetic_py.tools.definition import tool
from noetic_py.until import max_rounds, no_tool_calls

__all__ = ["HookContract"]

_INPUTS = ("when is high water?", "and at Brest?", "and at night?", "thank you")


@tool
async def look_up(port: str) -> str:
    """Look up the next high water at a port."""
    await anyio.lowlevel.checkpoint()
    return f"noon at {port}"


@step(id="fail", version="1")
async def _fail(text: list[str]) -> str:
    raise OSError(f"no answer to {text[0]}")


@step(id="prepare", version="1")
async def _prepare(text: str, ctx: Context[Any]) -> str:
    await anyio.lowlevel.checkpoint()
    try:
        await _fail([text], ctx)
    except StepFailed:
        ctx.items.append(Message.assistant("The first source has failed."))
    return text


class HookContract:
    """The contract of a hook.

    Attributes:
        patience: Seconds that a run may take; more means that something waits for ever.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio
    patience: float = 20.0

    def make(self) -> AnyHook:
        """Make the hook as each process does that loads the plugin."""
        raise NotImplementedError("make() has to make the hook")

    def flow(self) -> AnyStep:
        """Make a flow of a text in which the hook is called.

        The default has a code step, a step that fails, and an agent with a tool. Give one of your own where the hook
        needs tags, a state, or a step to hand over to.
        """
        return _prepare >> loop(call_model(tools=[look_up]), until=no_tool_calls() | max_rounds(4))

    def options(self) -> Mapping[str, Any]:
        """What the hook needs of its harness besides: `memory=`, `services=`, or a `model=` of your own.

        It is called for each harness. A model has to answer each request the same way, as often as it is asked.
        """
        return {}

    # -- how it is run

    def _say(self, request: ModelRequest) -> Turn:
        if not any(isinstance(item, FunctionCallOutput) for item in request.items):
            return FunctionCall(name="look_up", arguments={"port": "Dover"})
        if self.make().event == "on_model_error":
            return ModelUnavailable("the provider is away", model="test:scripted")
        return "High water is at noon."

    def _harness(self, backend: CheckpointBackend, hook: AnyHook | None) -> Harness[Any]:
        given = dict(self.options())
        services = {ArtifactStore: StoredArtifacts(), **given.pop("services", {})}
        given.setdefault("model", ScriptedModel(*[self._say] * 256))
        hooks = () if hook is None else (hook,)
        return Harness(checkpoints=backend, services=services, hooks=hooks, plugins=(), **given)

    async def _run(self, harness: Harness[Any], text: str = _INPUTS[0]) -> dict[str, object]:
        with anyio.fail_after(self.patience):
            return _outcome(await harness.run(self.flow(), text, user_id="u", on_error="result"))

    # -- what it is

    def test_a_plugin_can_register_it(self) -> None:
        """It is a hook, and each process gives it the same name: artifacts that it saves are found by that."""
        hook: object = self.make()
        if not isinstance(hook, Hook):
            pytest.fail(f"{hook!r} is not a valid hook; expected a function with a decorator of noetic_py.hooks")
        again = self.make()
        equal((again.event, again.name, again.tags), (hook.event, hook.name, hook.tags))
        HookRegistry().hook(hook)

    # -- what a run has of it

    async def test_it_is_called_and_does_not_fail(self) -> None:
        """Its flow calls it, what it returns is taken, and each of its effects is possible."""
        calls: list[object] = []
        hook = self.make()

        async def counted(*given: Any) -> object:
            calls.append(given)
            return await hook.fn(*given)

        async with self._harness(InMemoryBackend(), evolve(hook, fn=counted)) as harness:
            with anyio.fail_after(self.patience):
                result = await harness.run(self.flow(), _INPUTS[0], user_id="u", on_error="result")
        if isinstance(result.error, HookFailed | ConfigError):
            pytest.fail(f"it has failed: {result.error}")
        if not calls:
            pytest.fail("it was not called: define flow() with a step, a tool or a loop for which it holds")

    async def test_it_changes_nothing_in_place(self) -> None:
        """It is given copies of inputs and outputs, so such a change would be lost."""
        changed: list[str] = []
        hook = self.make()

        async def watched(ctx: Any, *subject: Any) -> object:
            shown = [value for each in subject for value in _values(each)]
            before = [copy_value(value) for value in shown]
            made = await hook.fn(ctx, *subject)
            changed.extend(f"{a!r} became {b!r}" for a, b in zip(before, shown, strict=True) if not alike(a, b))
            return made

        async with self._harness(InMemoryBackend(), evolve(hook, fn=watched)) as harness:
            await self._run(harness)
        equal(changed, [])

    async def test_runs_at_once_do_not_mix(self) -> None:
        """Each of several runs of one harness, at once and after them, comes out as it does alone."""
        alone: dict[str, object] = {}
        for text in _INPUTS:
            async with self._harness(InMemoryBackend(), self.make()) as harness:
                alone[text] = await self._run(harness, text)
        found: dict[str, object] = {}
        hook, dice = self.make(), random.Random(0)  # noqa: S311 # draws a schedule

        async def slow(*given: Any) -> object:
            return await slowed(hook.fn(*given), dice)

        async with self._harness(InMemoryBackend(), evolve(hook, fn=slow)) as harness:

            async def one(text: str) -> None:
                found[text] = await self._run(harness, text)

            async with anyio.create_task_group() as group:
                for text in _INPUTS:
                    group.start_soon(one, text)
            equal(found, alone)
            for text in _INPUTS:
                equal(await self._run(harness, text), alone[text])

    async def test_it_survives_being_killed_anywhere(self) -> None:
        """Killed before and after every commit, a run and its artifacts come out the same."""
        await assert_resumable_everywhere(
            self.flow,
            _INPUTS[0],
            make=lambda backend: self._harness(backend, self.make()),
            user_id="u",
            also=self._artifacts,
        )

    async def _artifacts(self, backend: CheckpointBackend) -> dict[str, Any]:
        store = StoredArtifacts(backend)
        scopes: dict[ArtifactScope, str] = {"session": "resumable", "user": "u", "run": "resumable"}
        owners = [ArtifactOwner(scope, name) for scope, name in scopes.items()]
        return {
            f"{owner.scope} {name}": (list(await store.versions(owner, name)), await _newest(store, owner, name))
            for owner in owners
            for name in await store.list(owner)
        }

    # -- how it ends

    async def test_a_cancelled_call_ends(self) -> None:
        """Cancelled wherever it waits, it ends, and the runs after it are as they were."""
        backend, hook = InMemoryBackend(), self.make()
        async with self._harness(backend, self.make()) as harness:
            expected = await self._run(harness)

        async def cancelled_call(cancelled: CancelledAt[object]) -> None:
            async def cut(*given: Any) -> object:
                return await cancelled.run(lambda: hook.fn(*given))

            async with self._harness(InMemoryBackend(), evolve(hook, fn=cut)) as harness:
                await self._run(harness)
            if cancelled.swallowed:
                pytest.fail("it went on after it was cancelled; let the exception of a cancellation through")
            async with self._harness(InMemoryBackend(), hook) as harness:
                equal(await self._run(harness), expected)

        await at_every_wait(cancelled_call)


def _values(subject: object) -> tuple[object, ...]:
    """What of a hook's subject can be changed in place."""
    if isinstance(subject, StepCall):
        return (subject.input,)
    return (subject.output,) if isinstance(subject, Round) else (subject,)


async def _newest(store: ArtifactStore, owner: ArtifactOwner, name: str) -> tuple[bytes, str] | None:
    found = await store.load(owner, name)
    return None if found is None else (found.data, found.media_type)


def _outcome(result: AnyResult) -> dict[str, object]:
    """What two runs are compared by; the ids in them differ."""
    error = result.error
    return {
        "status": result.status,
        "value": result.output_or(None),
        "error": None if error is None else f"{type(error).__name__} at {'/'.join(error.path)}",
        "state": result.state,
        "items": [(item.type, item.text) for item in result.items if isinstance(item, Message | FunctionCallOutput)],
    }
