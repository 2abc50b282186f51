# Loops, when they end, and steps of their own.
from typing import Literal

from attrs import define
from pydantic import BaseModel
from typing_extensions import assert_type

from noetic_py import Budget, Context, Harness, Memory, Step, call_model, loop, spawn, step, until
from noetic_py.core.items import ModelInput
from noetic_py.until import Snapshot, Until, Verdict


class Patch(BaseModel):
    diff: str


class Mem(Memory): ...


@define
class State:
    tries: int = 0


@define
class Child:
    n: int = 0


# A body that takes None goes on from the log.
inner = loop(call_model("x", output=Patch), until=until.no_tool_calls())
assert_type(inner, Step[ModelInput, Patch, Memory, object])
as_inner: Step[str, Patch] = inner


@step
async def on(text: str | None, ctx: Context[Mem, State]) -> Patch:
    return Patch(diff=text or "")


as_on: Step[str, Patch, Mem, State] = loop(on, until=until.max_rounds(3))


# A body whose output is its input is piped.
@step
async def shorten(text: str, ctx: Context[Memory, State]) -> str:
    return text[1:]


@step
async def measure(text: str) -> int:
    return len(text)


assert_type(loop(shorten, until=until.output_equals("")), Step[str, str, Memory, State])
no_way = loop(measure, until=until.never())  # E


# And any other needs prepare_next.
def again(n: int, verdict: Verdict, ctx: Context[Memory, object]) -> str:
    return "x" * n


def judge_error(error: Exception, ctx: Context[Memory, object]) -> Literal["retry", "skip", "abort"]:
    return "retry" if ctx.turns < 3 else "abort"


def misjudge(error: Exception, ctx: Context[Memory, object]) -> str:
    return "retry"


def judge_more(error: Exception, ctx: Context[Mem, State]) -> Literal["skip"]:
    ctx.state.tries += 1
    return "skip"


def wrong(n: str, verdict: Verdict, ctx: Context[Memory, object]) -> str:
    return n


assert_type(loop(measure, until=until.max_rounds(3), prepare_next=again), Step[str, int, Memory, object])
assert_type(loop(inner, until=until.never(), on_error=judge_error), Step[ModelInput, Patch, Memory, object])
as_more: Step[str, Patch, Mem, State] = loop(on, until=until.never(), on_error=judge_more)
bad_word = loop(inner, until=until.never(), on_error=misjudge)  # E
bad_next = loop(measure, until=until.max_rounds(3), prepare_next=wrong)  # E
bad_rounds = loop(measure, until=until.max_rounds(3), prepare_next=again, max_iterations="3")  # E


async def verify(p: Patch) -> Verdict:
    return Verdict(stop="ok" in p.diff, feedback="tests fail")


fix = loop(
    spawn(inner, timeout=60),
    until=until.verified(verify) | until.max_steps(5),
    prepare_next=lambda patch, verdict, ctx: f"{verdict.feedback} {patch.diff}",
)
as_fix: Step[str, Patch] = fix


# A spawn keeps what its step demands, except for a state that it makes itself.
@step
async def work(task: str, ctx: Context[Mem, Child]) -> Patch:
    ctx.state.n += 1
    return Patch(diff=task)


@step
async def plain(task: str) -> Patch:
    return Patch(diff=task)


assert_type(spawn(work, state=Child), Step[str, Patch, Mem, object])
assert_type(spawn(work, state=lambda: Child(n=3)), Step[str, Patch, Mem, object])
assert_type(spawn(work), Step[str, Patch, Mem, Child])
assert_type(spawn(work, state="copy", items="view", budget=Budget(steps=3), id="work"), Step[str, Patch, Mem, Child])
assert_type(spawn(plain), Step[str, Patch, Memory, object])
spawn(work, state=State)  # E
spawn(work, state="copied")  # E
spawn(work, items="all")  # E
spawn(work, tiemout=3)  # E


# A predicate about outputs fits loops with such outputs; one about counts fits all.
def judge(s: Snapshot[Patch]) -> bool:
    return s.output.diff == ""


def weigh(s: Snapshot[int]) -> Verdict:
    return Verdict(s.output > 3, reason="heavy")


u = until.custom(judge) | until.max_steps(3) & until.never()
assert_type(until.max_steps(3), Until[object])
assert_type(until.max_steps(3) | until.max_cost(0.5), Until[object])
assert_type(until.custom(judge), Until[Patch])
as_u: Until[Patch] = u
u2: Until[Patch] = until.max_steps(3) | until.custom(judge)
u3: Until[Patch] = until.max_steps(3) & until.verified(verify)
mixed: Until[object] = until.custom(judge)  # E
until.max_steps("3")  # E
until.max_turns(3, scope="loop")  # E
until.custom(lambda s: "yes")  # E


def prep(p: Patch, v: Verdict, ctx: Context[Memory, State]) -> str:
    ctx.state.tries += 1
    return p.diff


body2: Step[str, Patch, Memory, State] = plain  # a demand that only another part has is named, for mypy's sake
fix2 = loop(body2, until=u, prepare_next=prep)
assert_type(fix2, Step[str, Patch, Memory, State])
badu: Until[Patch] = until.custom(judge)
bad = loop(call_model("x"), until=badu)  # E
bad2 = loop(plain, until=until.custom(weigh), prepare_next=lambda p, v, ctx: p.diff)  # E


async def main() -> None:
    async with Harness() as h:
        r = await h.run(fix2, "x", state=State())
        assert_type(r.value, Patch)
        assert_type((await h.run(fix, "x")).value, Patch)
        await h.run(fix2, "x")  # E
        await h.run(spawn(work), "x", state=Child())  # E
    async with Harness(memory=Mem()) as hm:
        assert_type((await hm.run(spawn(work, state=Child), "x")).value, Patch)
