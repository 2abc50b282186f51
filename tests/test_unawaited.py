"""A forgotten `await` is an error, whichever async method it was of, in the body of a step and outside of one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Context, Harness, step
from noetic_py.context.artifacts import ArtifactOwner, ArtifactStore, StoredArtifacts
from noetic_py.errors import NotAwaited

AREAS = ("context", "harness", "sessions", "runner", "channels")
"""Where the classes are whose objects users call."""
OTHERS = {
    # What others implement, and what the engine calls.
    "context.artifacts.ArtifactStore",
    "context.detached.DetachedWork",
    "context.unbound.UnboundEngine",
    "channels.live.LiveChannel",
    "channels.live.Reader",
    "channels.live.TopicListener",
    "runner.children.QueuedChildren",
    "runner.registry.Living",
    "runner.plan.Planner",
    "runner.recorded_events.RecordReader",
    "runner.registry.Signals",
    "runner.registry.DetachedHarnessRun",
    "runner.workers.QueueWorker",
    "sessions.queue.MessageQueue",
    "sessions.store.SessionLease",
    "sessions.erasure.Erasure",
    "sessions.store.SessionStore",
    "sessions.store.SessionWrite",
    "sessions.turn.Turn",
}


def classes() -> list[type[Any]]:
    """All classes of those areas that have public async methods."""
    found: dict[type[Any], None] = {}
    for area in AREAS:
        home = importlib.import_module(f"noetic_py.{area}")
        inside = pkgutil.walk_packages(getattr(home, "__path__", []), f"noetic_py.{area}.")
        for module in (home, *(importlib.import_module(each.name) for each in inside)):
            for kind in vars(module).values():
                own = inspect.isclass(kind) and kind.__module__ == module.__name__
                if own and not kind.__name__.startswith("_") and methods(kind):
                    found[kind] = None
    return list(found)


def methods(kind: type[Any]) -> list[str]:
    """The public async methods that a class defines."""
    mine = {name: inspect.unwrap(value) for name, value in vars(kind).items() if callable(value)}
    return [name for name, value in mine.items() if not name.startswith("_") and inspect.iscoroutinefunction(value)]


def place(kind: type[Any]) -> str:
    return f"{kind.__module__.removeprefix('noetic_py.')}.{kind.__name__}"


CALLED = [kind for kind in classes() if place(kind) not in OTHERS]


def test_every_class_with_async_methods_is_told_apart() -> None:
    assert {place(kind) for kind in classes()} >= OTHERS
    assert {kind.__name__ for kind in CALLED} == {
        "Context", "DetachedRun", "Harness", "RunHandle", "RunStream", "Runs", "Session", "Sessions", "StoredArtifacts",
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "method"), [(kind, name) for kind in CALLED for name in methods(kind)])
async def test_a_call_that_a_body_does_not_await_fails_its_step(kind: type[Any], method: str) -> None:
    @step
    async def forgets(x: str, ctx: Context) -> str:
        call = getattr(kind, method)
        _, *signature = inspect.signature(call).parameters.values()
        needed = [each for each in signature if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
        positional = [None for each in needed if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        call(
            ctx if kind is Context else None,
            *positional,
            **{each.name: None for each in needed if each.kind is each.KEYWORD_ONLY},
        )
        return x

    async with Harness(plugins=[]) as harness:
        with pytest.raises(NotAwaited, match=rf"[a-z]\.{method}\(.*\) was called and not awaited") as caught:
            await harness.run(forgets, "x")
    assert f"{Path(__file__)}:" in str(caught.value)
    assert caught.value.path == ("forgets",)
    assert caught.value.hint is not None


def lost(harness: Harness) -> None:
    """Call what has to be awaited, and lose it."""
    with warnings.catch_warnings():
        # Python's own word for it, which comes at once.
        warnings.simplefilter("ignore", RuntimeWarning)
        calls = [
            harness.resume("r", same),
            harness.session("ada", "s").send("Hello"),
            harness.runs.delete("r"),
            StoredArtifacts().save(ArtifactOwner("run", "r"), "name", b""),
        ]
        while calls:
            del calls[0]


@step
async def same(x: str) -> str:
    return x


async def test_a_call_that_is_lost_outside_of_a_step_is_told_when_the_harness_is_left() -> None:
    async def program() -> None:
        async with Harness(plugins=[], checkpoints="memory:") as harness:
            await harness.run(same, "x")
            lost(harness)

    with pytest.raises(NotAwaited) as caught:
        await program()
    said = str(caught.value)
    calls = (
        "harness.resume(run_id, step)",
        "session.send(message)",
        "harness.runs.delete(run_id)",
        "artifacts.save(owner, name, data)",
    )
    assert [each for each in calls if f"{each} was called and not awaited ({__file__}:" in said] == list(calls)
    assert "harness.run(" not in said
    assert caught.value.hint == "await harness.resume(run_id, step)"


async def test_a_call_that_is_kept_and_never_awaited_is_told_too() -> None:
    kept: list[object] = []
    with pytest.raises(NotAwaited, match=r"harness\.fork\(run_id\) was called"):
        async with Harness(plugins=[], checkpoints="memory:") as harness:
            kept.append(harness.fork("r"))


async def test_what_ends_a_block_by_an_exception_stays_that() -> None:
    async def program() -> None:
        async with Harness(plugins=[], checkpoints="memory:") as harness:
            lost(harness)
            raise LookupError

    with pytest.raises(LookupError):
        await program()


async def test_a_harness_tells_of_its_own_block() -> None:
    async with Harness(plugins=[], checkpoints="memory:") as outer:
        async with Harness(plugins=[]):
            later = outer.run(same, "x")
        assert (await later).value == "x"
        with pytest.raises(NotAwaited):
            async with Harness(plugins=[], checkpoints="memory:") as inner:
                lost(inner)


async def test_a_call_of_an_artifact_store_that_is_awaited_is_no_error() -> None:
    @step
    async def saves(x: str, ctx: Context) -> int:
        return await ctx.services[ArtifactStore].save(ArtifactOwner.of(ctx), "a", x.encode())

    services = {ArtifactStore: StoredArtifacts()}
    async with Harness(plugins=[], checkpoints="memory:", services=services) as harness:
        assert (await harness.run(saves, "x")).value == 1
