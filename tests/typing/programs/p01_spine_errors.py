# Every marked line is a mistake that both checkers see.
from noetic_py import Context, Harness, Memory, sequence, step
from programs.p01_spine import Mem, State, bare, count, draft, outline, p1, remember


class Other(Memory): ...


class Another: ...


x1 = outline >> count  # E
x2 = sequence(outline, count)  # E
x3 = sequence(outline, bare, count, count)  # E
x4 = bare >> len  # E


@step
async def reader(t: str, ctx: Context[Mem, State]) -> str:
    ctx.state.draft  # E
    ctx.memory.notess  # E
    ctx.memory.notes.liness  # E
    await ctx.memory.notes.update("x")  # E
    ctx.state = State()  # E
    ctx.memory = Mem()  # E
    await outline(3, ctx)  # E
    await bare(await outline(t, ctx), ctx)
    return t


@step
async def bare_state(t: str, ctx: Context) -> str:
    ctx.state.anything  # E
    ctx.memory.notes  # E
    await draft(t, ctx)  # E
    await remember(t, ctx)  # E
    return t


async def main() -> None:
    h = Harness(memory=Mem())
    await h.run(p1, 3, state=State())  # E
    await h.run(p1, "x", state=3)  # E
    await h.run(p1, "x", state=Another())  # E
    await h.run(p1, "x")  # E
    await h.run(p1, "x", ctx=Context())  # E
    await h.run(outline >> count, "x", state=State())  # E
    await Harness(memory=Other()).run(p1, "x", state=State())  # E
    await Harness().run(p1, "x", state=State())  # E
    await Harness().run(remember, "x")  # E
    await Harness().run(draft, "x")  # E
    await Harness().run(len, "x")  # E
    r = await h.run(bare, ["x"])
    n: int = r.value  # E
    await h.run(p1, "x", state=State(), sesion=3)  # E
    await h.run(p1, "x", state=State(), deadline="soon")  # E
    async with h.stream(p1, "x") as stream:  # E
        pass
    h.start(p1, 3, state=State())  # E
    h.run_sync(p1, "x")  # E
    h.run_sync(bare, "x")  # E
