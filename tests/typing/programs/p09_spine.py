# What a run injects into a tool has to be passed where there is no run.
from typing import Annotated

from typing_extensions import assert_type

from noetic_py import Context, Harness, Inject, Memory, Step, call_model, call_tool, loop, tool, until
from noetic_py.core.items import ModelInput


class Db:
    async def q(self, s: str) -> list[str]:
        return [s]


class Clock:
    now: float = 0.0


class Mem(Memory):
    shelf: dict[str, str] = {}


@tool
async def read(doc_id: str, db: Inject[Db]) -> list[str]:
    assert_type(db, Db)
    return await db.q(doc_id)


@tool
async def note(text: Annotated[str, "one line"], clock: Inject[Clock] | None = None) -> float:
    return 0.0 if clock is None else clock.now


@tool
async def save(ctx: Context[Mem], text: str, db: Db) -> int:
    ctx.memory.shelf["a"] = text
    return len(await db.q(text))


agent = loop(call_model("x", tools=(read, note, save)), until=until.no_tool_calls())
assert_type(agent, Step[ModelInput, str, Mem, object])
assert_type(call_tool(note, args={"text": "x"}), Step[object, float, Memory, object])
assert_type(call_tool(save, args={"text": "x"}), Step[object, int, Mem, object])


async def main() -> None:
    await note("x")
    await note("x", clock=Clock())
    await note("x", clock=Db())  # E
    await read("x")  # E
    await read("x", db=Db())
    await save("x", db=Db())
    await save(db=Db())  # E
    async with Harness(memory=Mem(), services={Db: Db()}) as h:
        r = await h.run(agent, "x", services={Clock: Clock()})
        assert_type(r.value, str)
    async with Harness(services={Db: Db()}) as h0:
        await h0.run(agent, "x")  # E
        await h0.run(call_tool(save, args={}), "x")  # E
