"""Interrupts of a session's turn that another process has."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from noetic_py import Ask, Context, Harness, Message, SessionPolicy, call_model, errors, sequence, step
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.engine.stops import ASKED
from noetic_py.journal.records import check_decision
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

LEASE = 0.3
INTERRUPTED = "interrupted by the session's user"


class Talk:
    """A flow that says something and then goes on until it is stopped."""

    def __init__(self) -> None:
        self.said = anyio.Event()

        @step
        async def note(text: str, ctx: Context) -> None:
            ctx.items.append(Message.user(text))

        @step
        async def think(_: object) -> None:
            self.said.set()
            await anyio.sleep_forever()

        self.flow = sequence(note, think, id="talk")

    async def begun(self) -> None:
        with anyio.fail_after(10):
            await self.said.wait()


def texts(model: ScriptedModel) -> list[str]:
    return [item.text for item in model.requests[-1].items if item.type == "message"]


@pytest.mark.parametrize("message", [None, "Never mind."])
async def test_a_turn_of_another_process_is_interrupted(store: CheckpointBackend, message: str | None) -> None:
    talk, model = Talk(), ScriptedModel("As you wish.")
    statuses: list[str] = []
    async with (
        Harness(checkpoints=store, lease=LEASE) as owner,
        Harness(checkpoints=store, model=model, sessions=SessionPolicy(wait=10)) as other,
        anyio.create_task_group() as group,
    ):

        async def turn() -> None:
            result = await owner.session("ada", "trip").run(talk.flow, "When?", on_error="result")
            statuses.append(f"{result.status}: {result.reason}")

        group.start_soon(turn)
        await talk.begun()
        assert await other.session("bob", "trip").interrupt() is False
        assert await other.session("ada", "trip").interrupt(message) is True
        assert (await other.session("ada", "trip").run(call_model(), "And now?")).value == "As you wish."
        assert await other.session("ada", "trip").interrupt() is False
    assert statuses == [f"interrupted: {message or INTERRUPTED}"]
    assert texts(model) == ["When?", *([message] if message else []), "And now?"]


async def test_a_message_interrupts_a_turn_of_another_process(store: CheckpointBackend) -> None:
    talk, seen = Talk(), list[Any]()

    @step
    async def serve(text: str, ctx: Context) -> None:
        seen.append(text)
        if text == "When?":
            await talk.flow(text, ctx)

    async with (
        Harness(checkpoints=store, lease=LEASE) as owner,
        Harness(checkpoints=store) as other,
        anyio.create_task_group() as group,
    ):
        heard = anyio.Event()

        async def done(result: object) -> None:
            if seen[-1] == "Later":
                heard.set()

        group.start_soon(lambda: owner.session("ada", "trip").serve(serve, on_turn=done, poll=0.05, on_error="result"))
        session = other.session("ada", "trip")
        await session.send("When?")
        await talk.begun()
        await session.send("Later")
        sent = await session.send("Now", deliver="interrupt")
        assert (sent.interrupted, sent.durable) == (True, True)
        with anyio.fail_after(10):
            await heard.wait()
        group.cancel_scope.cancel()
    assert seen == ["When?", "Now", "Later"]


async def test_a_turn_that_waits_or_whose_process_died_is_not_there(store: CheckpointBackend) -> None:
    @step
    async def asks(text: str, ctx: Context) -> str:
        return await ctx.ask(Ask(text, str))

    dying = FaultyBackend(store, dies_at=2)
    async with Harness(checkpoints=store) as other:
        with dying.outlived():
            async with Harness(checkpoints=dying) as owner:
                await owner.session("ada", "left").run(asks, "Where?", on_error="result")
        assert await other.session("ada", "left").interrupt("Stop.") is False
        await other.session("ada", "waits").run(asks, "Where?")
        assert await other.session("ada", "waits").interrupt("Stop.") is False
        with pytest.raises(errors.SessionSuspended):
            await other.session("ada", "waits").run(asks, "Here?")


def test_a_journal_holds_no_interrupt() -> None:
    check_decision(ASKED, {"kind": "abort"}, ())
    with pytest.raises(errors.CodecError, match="a stop that was asked for"):
        check_decision(ASKED, {"kind": "interrupt"}, ())
