"""A trial with the bundle that a run had: its requests are those that the model has received, byte for byte.

Random conversations with layers, tools, functions of layers, failures, edits and narrow windows, whose turns are taken
by one process or by many.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from noetic_py import Harness, InMemoryBackend, call_model, loop, until
from noetic_py.context.step import AnyStep
from noetic_py.core.codec import to_wire_json
from noetic_py.errors import LimitExceeded, ModelUnavailable
from noetic_py.models.model import ModelRequest
from noetic_py.testing import VirtualRuntime
from noetic_py.trial import memory_trial
from tests.properties.checks import SEED, examples
from tests.properties.test_view_accounts import WINDOWS, Talk, Windowed, bundle, lookup, say

pytestmark = pytest.mark.anyio

TURNS = 8


def sent(request: ModelRequest) -> list[object]:
    """What a provider gets of a request; the library's ids are not part of it."""
    head: list[object] = [request.instructions, json.dumps(request.tools), request.cache_key, request.stable]
    return [*head, *(to_wire_json(evolve(item, id="")) for item in request.items)]


async def converse(number: int) -> tuple[int, list[Any]]:
    """Hold a conversation and try it: how many requests there were, and those that differ."""
    source = random.Random(f"{SEED} trial {number}")
    window, runtime = source.choice(WINDOWS), VirtualRuntime(number)
    talk, memory, backend = Talk(source), bundle(source, window), InMemoryBackend(runtime=runtime)
    asking = call_model(instructions="You are a pilot.", tools=[lookup], id="ask")
    flow: AnyStep = loop(asking, until=until.no_tool_calls(), max_iterations=50)
    run_ids: list[str] = []
    turn = 0
    while turn < TURNS:
        model = Windowed(talk, window)
        async with Harness(memory=memory, checkpoints=backend, model=model, plugins=(), runtime=runtime) as harness:
            session = harness.session("ada", "talk")
            for _ in range(source.randint(1, 4)):
                turn += 1
                await runtime.advance(source.randint(1, 200))
                if source.random() < 0.1:
                    async with session.edit() as edit:
                        said = [at for at, item in enumerate(edit.items) if getattr(item, "role", "") == "user"]
                        del edit.items[: source.choice(said) if said else 0]
                result = await session.run(flow, f"{turn} {say(source, 25)}", on_error="result")
                assert result.error is None or isinstance(result.error, ModelUnavailable | LimitExceeded)
                run_ids.append(result.run_id)
    received = tuple(talk.answered)
    async with Harness(checkpoints=backend, plugins=()) as harness:
        trial = await memory_trial(harness.runs, run_ids, memory, flow=flow, model=Windowed(talk, window))
    assert len(talk.answered) == len(received)
    assert len(trial.requests) == len(received)
    wrong = [
        (number, place, ours.run_id)
        for place, (ours, real) in enumerate(zip(trial.requests, received, strict=True))
        if sent(ours.request) != sent(real)
    ]
    return len(received), wrong


async def test_a_trial_shows_what_the_model_has_received(
    anyio_backend_name: str, record_testsuite_property: Callable[[str, object], None]
) -> None:
    wanted = examples(sample=50, full=3_000)
    requests, wrong = 0, list[Any]()
    number = 0 if anyio_backend_name == "asyncio" else 1
    while requests < wanted:
        made, found = await converse(number)
        requests, wrong, number = requests + made, wrong + found, number + 2
    record_testsuite_property(f"requests of trials, {anyio_backend_name}", f"{len(wrong)} of {requests} differ")
    assert wrong == []
