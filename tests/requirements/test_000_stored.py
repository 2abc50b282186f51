"""A context as data."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from attrs import define, field

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InputImage,
    Message,
    StateBag,
    call_model,
)
from noetic_py.errors import CodecError, ForgedEvent
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@define
class Trip:
    port: str
    days: int = 0
    seen: list[str] = field(factory=list[str])
    left: datetime | None = None


TRIP = Trip("Brest", 3, ["a"], datetime(2026, 1, 2, tzinfo=UTC))


@pytest.mark.clause("000-35a")
async def test_000_35_a_whole_context_comes_back() -> None:
    ctx = Context(thread_id="t", request_id="r")
    ctx.items.append(Message.user([InputImage(url="https://example.com/a.png")]))
    ctx.items.extend([FunctionCall(name="f", call_id="c"), FunctionCallOutput(call_id="c", output="o")])
    ctx.state.put("list", [1, "two", None]).put("nested", {"a": 1.5})
    ctx.state["nothing"] = None
    # The call and its output come from the same hands as the data.
    async with Harness(model=ScriptedModel("answer", "more")) as harness:
        await harness.run(call_model(), "question", ctx=ctx)
        back = Context.restore(ctx.snapshot())
        assert list(back.items) == list(ctx.items)
        assert isinstance(back.state, StateBag)
        assert back.state == ctx.state
        assert (back.turns, back.thread_id, back.request_id) == (1, "t", "r")
        assert back.id != ctx.id
        assert back.snapshot() == ctx.snapshot()
        await harness.run(call_model(), "and?", ctx=back)
    assert (back.turns, ctx.turns) == (2, 1)
    assert len(back.items) == len(ctx.items) + 2


@pytest.mark.clause("000-35b")
def test_000_35_the_data_are_json_and_an_empty_context_stays_one() -> None:
    ctx = Context()
    assert isinstance(json.loads(ctx.snapshot()), dict)
    back = Context.restore(ctx.snapshot())
    assert (len(back.items), len(back.state), back.turns, back.request_id) == (0, 0, 0, None)


@pytest.mark.clause("000-35c")
def test_000_35_a_typed_state_comes_back_as_its_type() -> None:
    back = Context.restore(Context(state=TRIP).snapshot(), state_type=Trip)
    assert back.state == TRIP
    assert back.state is not TRIP


def changed(**fields: Any) -> bytes:
    tree = json.loads(Context(state=TRIP).snapshot())
    return json.dumps({**tree, "state": {**tree["state"], **fields}}).encode()


@pytest.mark.clause("000-35c")
@pytest.mark.parametrize(("fields", "where"), [({"days": "three"}, "state.days"), ({"seen": 3}, "state.seen")])
def test_000_35_a_typed_state_is_checked_on_the_way_in(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(CodecError) as caught:
        Context.restore(changed(**fields), state_type=Trip)
    assert caught.value.where == where


@pytest.mark.clause("000-35c")
def test_000_35_a_state_of_another_type_is_refused() -> None:
    @define
    class Other:
        name: str

    data = Context(state=TRIP).snapshot()
    for wanted in (Other, dict, int):
        with pytest.raises(CodecError) as caught:
            Context.restore(data, state_type=wanted)
        assert caught.value.where.startswith("state")
    with pytest.raises(CodecError):
        Context.restore(data)


@pytest.mark.clause("000-35d")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        json.dumps({"form": 2, "items": [], "state": {}, "turns": 0, "thread": "t", "request": None}).encode(),
        json.dumps({"form": 1, "items": [1], "state": {}, "turns": 0, "thread": "t", "request": None}).encode(),
        json.dumps({"form": 1, "items": {}, "state": {}, "turns": 0, "thread": "t", "request": None}).encode(),
        json.dumps({"form": 1, "items": [], "state": {}, "turns": -1, "thread": "t", "request": None}).encode(),
        json.dumps({"form": 1, "items": [], "state": {}, "turns": True, "thread": "t", "request": None}).encode(),
        json.dumps({"form": 1, "items": [], "state": {}, "turns": 0, "thread": "", "request": None}).encode(),
        json.dumps({"form": 1, "items": [], "state": {}, "turns": 0, "thread": "t", "request": 3}).encode(),
        json.dumps({"form": 1, "items": [], "state": [], "turns": 0, "thread": "t", "request": None}).encode(),
    ],
)
def test_000_35_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        Context.restore(data)


@pytest.mark.clause("000-35d")
def test_000_35_a_call_without_its_output_does_not_come_in() -> None:
    ctx = Context()
    ctx.items.append(FunctionCall(name="pay", call_id="c"))
    with pytest.raises(ForgedEvent):
        Context.restore(ctx.snapshot())


@pytest.mark.clause("000-35e")
def test_000_35_a_state_that_cannot_be_stored_is_refused() -> None:
    ctx = Context()
    ctx.state["client"] = object()
    with pytest.raises(CodecError, match="state"):
        ctx.snapshot()
