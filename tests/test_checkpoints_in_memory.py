"""The backend in memory keeps the contract that every backend keeps, by reference."""

import pytest

from noetic_py import Context, Harness, Message, errors, step
from noetic_py.checkpoints import InMemoryBackend, Record
from noetic_py.journal.records import Decision
from noetic_py.testing import VirtualRuntime

pytestmark = pytest.mark.anyio


def record(key: str) -> Record:
    value = Decision(("flow",), key, None)
    return Record("Decision", value.path, value=value)


async def test_append_takes_a_transaction_at_its_position_only() -> None:
    backend = InMemoryBackend()
    assert await backend.head("r") is None
    assert await backend.append("r", expected_position=0, fence=0, records=[record("a"), record("b")]) == 2
    with pytest.raises(errors.PositionConflict, match="ends at 2, not at 1"):
        await backend.append("r", expected_position=1, fence=0, records=[record("c")])
    assert await backend.append("r", expected_position=2, fence=0, records=[record("c")]) == 3
    head = await backend.head("r")
    assert head is not None
    assert (head.position, head.fence) == (3, 0)
    assert (backend.durability, backend.shared) == ("none", False)


async def test_reading_goes_page_by_page() -> None:
    backend = InMemoryBackend()
    await backend.append("r", expected_position=0, fence=0, records=[record(key) for key in "abcde"])
    keys: list[str] = []
    position = 0
    while page := await backend.read("r", after=position, limit=2):
        keys += [each.value.key for each in page if isinstance(each.value, Decision)]
        position += len(page)
    assert keys == list("abcde")
    with pytest.raises(errors.RunNotFound):
        await backend.read("other")


async def test_payloads_and_references_are_kept_as_they_are() -> None:
    backend = InMemoryBackend()
    records = [record("a"), Record("Decision", ("x",), b"{}"), Record("Decision", ("x",), b"{}", record("b").value)]
    await backend.append("r", expected_position=0, fence=0, records=records)
    assert list(await backend.read("r")) == records
    assert (await backend.read("r"))[0].value is records[0].value
    assert (await backend.stats()).bytes == 4


async def test_a_fork_begins_at_the_end_of_a_transaction() -> None:
    backend = InMemoryBackend()
    await backend.append("r", expected_position=0, fence=0, records=[record("a"), record("b")])
    await backend.append("r", expected_position=2, fence=0, records=[record("c")])
    with pytest.raises(errors.PositionConflict, match="1 is not the end"):
        await backend.fork("r", at=1, new_run_id="f")
    await backend.fork("r", at=2, new_run_id="f")
    assert await backend.append("f", expected_position=2, fence=0, records=[record("d")]) == 3
    assert [each.value.key for each in await backend.read("r") if isinstance(each.value, Decision)] == ["a", "b", "c"]
    assert [each.value.key for each in await backend.read("f") if isinstance(each.value, Decision)] == ["a", "b", "d"]
    with pytest.raises(errors.PositionConflict, match="exists"):
        await backend.fork("r", at=2, new_run_id="f")
    with pytest.raises(errors.RunNotFound):
        await backend.fork("none", at=0, new_run_id="g")
    await backend.fork("r", at=0, new_run_id="empty")
    assert list(await backend.read("empty")) == []


async def test_one_owner_at_a_time_and_the_fence_stops_the_old_one() -> None:
    runtime = VirtualRuntime()
    backend = InMemoryBackend(runtime=runtime)
    first = await backend.acquire("r", ttl=10.0)
    with pytest.raises(errors.RunBusy):
        await backend.acquire("r", ttl=10.0)
    await runtime.advance(6.0)
    assert await backend.renew(first, ttl=10.0) == first
    await runtime.advance(6.0)
    with pytest.raises(errors.RunBusy):
        await backend.acquire("r", ttl=10.0)
    await runtime.advance(6.0)
    second = await backend.acquire("r", ttl=10.0)
    assert second.fence > first.fence
    with pytest.raises(errors.LeaseLost):
        await backend.append("r", expected_position=0, fence=first.fence, records=[record("a")])
    with pytest.raises(errors.LeaseLost):
        await backend.renew(first, ttl=1.0)
    await backend.release(first)
    assert await backend.append("r", expected_position=0, fence=second.fence, records=[record("a")]) == 1
    await backend.release(second)
    third = await backend.acquire("r", ttl=1.0)
    assert third.fence > second.fence


async def test_a_deleted_run_is_gone_and_deleting_again_is_no_error() -> None:
    backend = InMemoryBackend()
    await backend.append("r", expected_position=0, fence=0, records=[record("a")])
    await backend.delete("r")
    await backend.delete("r")
    assert await backend.head("r") is None


async def test_a_harness_keeps_the_journals_of_its_runs_in_it() -> None:
    backend = InMemoryBackend()

    @step
    async def inner(x: int, ctx: Context) -> int:
        ctx.items.append(Message.assistant("inner"))
        return x + 1

    @step
    async def outer(x: int, ctx: Context) -> int:
        ctx.items.append(Message.assistant("before"))
        y = await inner(x, ctx)
        ctx.items.append(Message.assistant("after"))
        return y

    async with Harness(checkpoints=backend) as harness:
        result = await harness.run(outer, 1, run_id="run-1")
        with pytest.raises(errors.RunBusy):
            await harness.run(outer, 1, run_id="run-1")
    records = await backend.read("run-1")
    assert [(each.kind, each.path) for each in records] == [
        ("RunStarted", ()),
        ("StepOpened", ("outer",)),
        ("Segment", ("outer",)),
        ("StepFinished", ("outer", "inner")),
        ("StepFinished", ("outer",)),
        ("RunEnded", ()),
    ]
    assert result.checkpoint.position == len(records)
    assert [item.text for item in result.items if isinstance(item, Message)] == ["before", "inner", "after"]
