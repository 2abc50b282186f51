# What a flow of code steps needs of its run is the sum of what its parts need.
from attrs import define
from typing_extensions import assert_type

from noetic_py import Context, Harness, Memory, StateBag, Step, sequence, step


class Notes:
    lines: tuple[str, ...] = ()

    async def update(self, patch: dict[str, str]) -> None: ...


class Mem(Memory):
    notes: Notes = Notes()


@define
class State:
    drafts: int = 0


@step
async def outline(topic: str, ctx: Context[Mem, State]) -> list[str]:
    ctx.state.drafts += 1
    await ctx.memory.notes.update({"topic": topic})
    return [topic]


@step
async def bare(points: list[str]) -> str:
    return "".join(points)


@step(id="count", timeout=3.0)
async def count(text: str, ctx: Context) -> int:
    return len(text) + ctx.step_count


@step
async def tick() -> int:
    return 1


@step
async def remember(text: str, ctx: Context[Mem]) -> str:
    await ctx.memory.notes.update({"text": text})
    return text


@step
async def draft(text: str, ctx: Context[Memory, State]) -> str:
    ctx.state.drafts += 1
    return text


@step
async def seed(n: int) -> str:
    return str(n)


assert_type(outline, Step[str, list[str], Mem, State])
assert_type(bare, Step[list[str], str, Memory, object])
assert_type(count, Step[str, int, Memory, object])
assert_type(tick, Step[object, int, Memory, object])
assert_type(remember, Step[str, str, Mem, object])
assert_type(draft, Step[str, str, Memory, State])

p1 = outline >> bare >> count
p3 = bare >> count
assert_type(p1, Step[str, int, Mem, State])
assert_type(sequence(outline, bare, count), Step[str, int, Mem, State])
assert_type(p3, Step[list[str], int, Memory, object])
assert_type(sequence(bare, count), Step[list[str], int, Memory, object])
assert_type(p3 >> tick, Step[list[str], int, Memory, object])
assert_type(sequence(seed), Step[int, str, Memory, object])
assert_type(sequence(draft, draft, draft, draft, draft, draft), Step[str, str, Memory, State])

# Nothing, then something; something, then nothing; each another thing.
assert_type(seed >> outline, Step[int, list[str], Mem, State])
assert_type(outline >> bare, Step[str, str, Mem, State])
assert_type(remember >> draft, Step[str, str, Mem, State])
assert_type(draft >> remember, Step[str, str, Mem, State])
assert_type(seed >> remember >> draft >> count, Step[int, int, Mem, State])
assert_type(sequence(seed, outline, bare), Step[int, str, Mem, State])
assert_type(sequence(seed, remember, draft, count, id="all"), Step[int, int, Mem, State])


async def main() -> None:
    async with Harness(memory=Mem()) as h:
        r = await h.run(p1, "tides", state=State())
        assert_type(r.value, int)
        assert_type(r.state, State)
        r2 = await h.run(p3, ["a"])
        assert_type(r2.value, int)
        assert_type(r2.state, StateBag)
        assert_type((await h.run(remember, "a")).state, StateBag)
    async with Harness() as h0:
        r3 = await h0.run(p3, ["a"])
        assert_type(r3.value, int)
        r4 = await h0.run(draft, "a", ctx=Context(state=State()))
        assert_type(r4.state, State)
        r5 = await h0.run(p3, ["a"], ctx=Context())
        assert_type(r5.state, StateBag)
