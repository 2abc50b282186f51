# Branches, and steps that run beside each other.
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal

from attrs import define
from typing_extensions import assert_type

from noetic_py import Context, Harness, Memory, ReadContext, Step, branch, each, parallel, race, sequence, settle, step
from noetic_py.steps.flow import Settled


class Mem(Memory): ...


@define
class State:
    n: int = 0


class Kind(Enum):
    MATH = "math"
    CHAT = "chat"


@step
async def to_int(x: str) -> int:
    return 1


@step
async def to_str(x: str) -> str:
    return ""


@step
async def counted(x: str, ctx: Context[Memory, State]) -> int:
    return ctx.state.n


@step
async def noted(x: str, ctx: Context[Mem]) -> int:
    return 1


@step
async def from_int(x: int) -> str:
    return ""


# -- branch


def kind(x: str) -> Kind:
    return Kind.MATH


async def word(x: str, ctx: ReadContext[Memory, State]) -> Literal["math", "chat"]:
    return "math" if ctx.state.n else "chat"


assert_type(branch(kind, {Kind.MATH: to_int, Kind.CHAT: to_int}), Step[str, int, Memory, object])
assert_type(branch(word, {"math": counted, "chat": counted}), Step[str, int, Memory, State])
assert_type(branch(kind, {Kind.MATH: to_int}, default=to_int, id="kind"), Step[str, int, Memory, object])
assert_type(sequence(to_str, branch(kind, {Kind.MATH: to_int, Kind.CHAT: to_int})), Step[str, int, Memory, object])
named: Step[str, int, Mem, State] = branch(kind, {Kind.MATH: counted, Kind.CHAT: noted})
either: Step[str, int | str] = branch(kind, {Kind.MATH: to_int, Kind.CHAT: to_str})
wrong_input = branch(kind, {Kind.MATH: from_int, Kind.CHAT: from_int})  # E
wrong_key = branch(kind, {"math": to_int, "chat": to_int})  # E
too_little: Step[str, int] = branch(word, {"math": counted, "chat": counted})  # E


def dynamic(x: str, ctx: ReadContext[Mem, State]) -> Step[str, int, Mem, State]:
    return counted if ctx.state.n else noted


async def maybe(x: str, ctx: ReadContext[Memory, object]) -> Step[str, int] | None:
    return to_int if x else None


def no_step(x: str, ctx: ReadContext[Memory, object]) -> int:
    return 1


def writes(x: str, ctx: ReadContext[Memory, State]) -> Literal["math"]:
    ctx.items.append  # E
    ctx.abort("no")  # E
    return "math"


assert_type(branch(dynamic), Step[str, int, Mem, State])
assert_type(branch(maybe), Step[str, int | str, Memory, object])
bad_route = branch(no_step)  # E

# -- parallel and its like

assert_type(parallel(to_int, to_str), Step[str, tuple[int, str], Memory, object])
assert_type(parallel(to_int, counted), Step[str, tuple[int, int], Memory, State])
assert_type(parallel(counted, noted, to_str), Step[str, tuple[int, int, str], Mem, State])
assert_type(parallel(counted, noted, to_str, to_int, id="all"), Step[str, tuple[int, int, str, int], Mem, State])
assert_type(parallel([to_int, to_int], concurrency=1), Step[str, list[int], Memory, object])
no_merge = parallel(to_int, to_str, concurency=3)  # E


def total(outputs: Sequence[int], ctx: Context[Memory, State]) -> float:
    ctx.state.n = sum(outputs)
    return ctx.state.n / 2


def total3(outputs: Sequence[int], ctx: Context[Memory, State], states: Sequence[State]) -> float:
    return sum(state.n for state in states) / 2


def names(outputs: Sequence[str], ctx: Context[Memory, object]) -> str:
    return "".join(outputs)


def paths(x: str, ctx: Context[Memory, State]) -> Iterable[Step[str, int, Memory, State]]:
    return [to_int, counted]


assert_type(parallel([counted, counted], merge=total), Step[str, float, Memory, State])
assert_type(parallel([counted, counted], merge=total3), Step[str, float, Memory, State])
assert_type(parallel(paths), Step[str, list[int], Memory, State])
assert_type(parallel(paths, merge=total), Step[str, float, Memory, State])
bad_merge = parallel([to_int], merge=names)  # E

assert_type(race([to_int, to_int]), Step[str, int, Memory, object])
assert_type(race(paths), Step[str, int, Memory, State])
racers: Step[str, int, Mem, State] = race([counted, noted])
bad_race = race([to_int, from_int])  # E

assert_type(settle([to_int, to_int]), Step[str, list[Settled[int]], Memory, object])
assert_type(settle(paths), Step[str, list[Settled[int]], Memory, State])


def good(outcomes: Sequence[Settled[int]], ctx: Context[Memory, State]) -> list[int]:
    return [outcome.value for outcome in outcomes if outcome.ok]


assert_type(settle(paths, merge=good), Step[str, list[int], Memory, State])
bad_settle = settle([to_int], merge=total)  # E

assert_type(each(to_int), Step[Iterable[str], list[int], Memory, object])
assert_type(each(counted, concurrency=2), Step[Iterable[str], list[int], Memory, State])
listed: Step[list[str], list[int], Memory, State] = each(counted)
bad_each: Step[list[int], list[int]] = each(to_int)  # E


# -- inside a body


@step
async def all_at_once(x: str, ctx: Context[Mem, State]) -> int:
    two = await ctx.gather(to_int.bind(x), to_str.bind(x))
    assert_type(two, tuple[int, str])
    three = await ctx.gather(counted.bind(x), noted.bind(x), to_str.bind(x))
    assert_type(three, tuple[int, int, str])
    many = await ctx.gather(*[counted.bind(word) for word in x.split()])
    assert_type(many, list[int])
    await ctx.gather(to_int, to_str)  # E
    to_int.bind(3)  # E
    assert_type(counted.bind("x"), Step[object, int, Memory, State])
    assert_type(await counted(x, ctx), int)
    return two[0] + three[0] + sum(many)


@step
async def too_much(x: str, ctx: Context) -> int:
    await ctx.gather(to_int.bind(x), counted.bind(x))  # E
    return await counted(x, ctx)  # E


async def main() -> None:
    async with Harness(memory=Mem()) as h:
        r = await h.run(parallel(counted, noted), "x", state=State())
        assert_type(r.value, tuple[int, int])
        r2 = await h.run(each(to_int), ["x", "y"])
        assert_type(r2.value, list[int])
        await h.run(parallel(counted, noted), "x")  # E
        await h.run(each(to_int), [1, 2])  # E
        await h.run(parallel(to_int, from_int), "x")  # E
        await h.run(racers, "x", state=State())
    await Harness().run(racers, "x", state=State())  # E
