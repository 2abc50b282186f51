from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import anyio.lowlevel
import pytest

from noetic_py import Harness, loop, step, until
from noetic_py.until import Snapshot, Until, Verdict

pytestmark = pytest.mark.anyio


def says(stop: bool, reason: str | None = None, feedback: str | None = None, *, late: bool = False) -> Until[Any]:
    """A predicate that always says the same, at once or after a while."""

    def now(snapshot: Snapshot[Any]) -> Verdict:
        return Verdict(stop, reason, feedback)

    async def later(snapshot: Snapshot[Any]) -> Verdict:
        await anyio.lowlevel.checkpoint()
        return Verdict(stop, reason, feedback)

    return until.custom(later if late else now)


@step
async def echo(text: str) -> str:
    return text


async def verdict_of(when: Until[Any]) -> Verdict:
    """What a predicate says of a loop's first iteration."""
    found: list[Verdict] = []

    async def judge(snapshot: Snapshot[Any]) -> Verdict:
        found.append(await when(snapshot))
        return Verdict(True)

    made: Any = judge
    async with Harness() as harness:
        await harness.run(loop(echo, until=made), "x")
    return found[0]


LATE = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize(("a_late", "b_late"), LATE)
async def test_or(a_late: bool, b_late: bool) -> None:
    def both(a: bool, b: bool) -> Until[Any]:
        return says(a, "a", "fa", late=a_late) | says(b, "b", "fb", late=b_late)

    assert await verdict_of(both(True, True)) == Verdict(True, "a", "fa")
    assert await verdict_of(both(True, False)) == Verdict(True, "a", "fa")
    assert await verdict_of(both(False, True)) == Verdict(True, "b", "fb")
    assert await verdict_of(both(False, False)) == Verdict(False, "a; b", "fa; fb")


@pytest.mark.parametrize(("a_late", "b_late"), LATE)
async def test_and(a_late: bool, b_late: bool) -> None:
    def both(a: bool, b: bool) -> Until[Any]:
        return says(a, "a", "fa", late=a_late) & says(b, "b", "fb", late=b_late)

    assert await verdict_of(both(True, True)) == Verdict(True, "a; b", "fa; fb")
    assert not (await verdict_of(both(True, False))).stop
    assert not (await verdict_of(both(False, True))).stop
    assert not (await verdict_of(both(False, False))).stop


async def test_feedback_survives_whoever_gives_it() -> None:
    assert await verdict_of(says(False, feedback="a") | says(False)) == Verdict(False, None, "a")
    assert await verdict_of(says(False) | says(False, feedback="b")) == Verdict(False, None, "b")
    assert (await verdict_of(says(False, feedback="a") & says(True))).feedback == "a"
    assert (await verdict_of(says(True) & says(False, feedback="b"))).feedback == "b"


async def test_the_second_is_not_asked_when_the_first_decides() -> None:
    asked: list[str] = []

    def ask(snapshot: Snapshot[Any]) -> bool:
        asked.append("asked")
        return True

    assert (await verdict_of(says(True) | until.custom(ask))).stop
    assert not (await verdict_of(says(False) & until.custom(ask))).stop
    assert asked == []
    assert (await verdict_of(says(False) | until.custom(ask))).stop
    assert asked == ["asked"]


async def test_predicates_of_the_user_s_own_combine_too() -> None:
    class Mine:
        async def __call__(self, snapshot: Snapshot[Any], /) -> Verdict:
            return Verdict(True, "mine")

    mine: Any = Mine()
    assert await verdict_of(until.never() | mine) == Verdict(True, "mine")
    assert await verdict_of(until.max_rounds(1) & mine) == Verdict(True, "max_rounds: 1 round reached; mine")
    assert "Mine" in repr(until.never() | mine)


async def test_a_predicate_can_be_asked_directly() -> None:
    assert await verdict_of(until.never()) == Verdict(False)
    assert (await verdict_of(until.output_equals("x"))).stop
    assert not (await verdict_of(until.output_contains("y"))).stop


def test_a_predicate_shows_what_it_is() -> None:
    combined = until.max_rounds(3) | until.no_tool_calls() & until.max_cost(0.5)
    assert repr(combined) == "<until max_rounds(3) | no_tool_calls & max_cost(0.5)>"


@pytest.mark.parametrize(
    ("a", "b", "threshold", "alike"),
    [
        ("a b c d", "a b c d", 1.0, True),
        ("a b c d", "d c b a", 1.0, False),
        ("a b c d", "d c b a", 0.99, True),
        ("a b c d", "a b x y", 0.5, True),
        ("a b c d", "a b x y", 0.51, False),
        ("a a a b", "a b b b", 0.6, False),
        ("", "", 1.0, True),
        ("", "a", 0.1, False),
        (" ", "  ", 0.5, False),
        ([1, 2], [1, 2], 1.0, True),
        ({"a": 1}, {"a": 2}, 0.95, False),
    ],
)
async def test_converged(a: object, b: object, threshold: float, alike: bool) -> None:
    said = [a, b]

    @step
    async def say(text: str) -> object:
        return said.pop(0)

    body: Any = say
    async with Harness() as harness:
        result = await harness.run(loop(body, until=until.converged(threshold=threshold) | until.max_rounds(2)), "x")
    assert ("converged" in (result.reason or "")) is alike


async def test_an_answer_that_is_no_verdict_counts_as_true_or_false() -> None:
    async def truthy(output: str) -> Any:
        return [1]

    assert await verdict_of(until.verified(truthy)) == Verdict(True, "verified")

    def falsy(output: str) -> Any:
        return ""

    assert await verdict_of(until.verified(falsy)) == Verdict(False)


async def test_what_waits_is_awaited_once() -> None:
    made: list[Awaitable[bool]] = []

    def check(output: str) -> Awaitable[bool]:
        async def wait() -> bool:
            return True

        made.append(wait())
        return made[-1]

    assert (await verdict_of(until.verified(check) | says(True))).stop
    assert len(made) == 1
