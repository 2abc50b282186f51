"""Memory: a layer of one's own, typed handles, and what a wrong name is."""

from collections.abc import Sequence

from typing_extensions import assert_type

from noetic_py import Context, Harness, Memory, MemoryLayer, SessionKey, Step, spawn, step, tool, with_memory
from noetic_py.sessions.export import SessionData
from noetic_py.memory import Needs, Recall, Scope, ToolGroup, ToolGroups, function


class Facts(MemoryLayer[list[str]]):
    limit: int = 20

    @property
    def newest(self) -> str:
        return self.state[-1]

    @function
    async def remember(self, fact: str, *, twice: bool = False) -> int:
        self.state = [*self.state, fact][-self.limit :]
        self.state = {"not": "a list"}  # E
        return len(self.state)

    async def recall(self, query: str, budget: int) -> Recall:
        return Recall("\n".join(self.state), tokens=len(self.state))


class Mem(Memory):
    facts: Facts = Facts(limit=5, scope=Scope.USER, budget=(10, 200))
    more: Facts = Facts(id="others", placement="live")


class Other(Memory):
    things: Facts = Facts()


class Digest(MemoryLayer[None]):
    facts = Needs(Facts)
    limit: int = 3

    async def recall(self, query: str, budget: int) -> str:
        assert_type(self.facts, Facts)
        assert_type(self.facts.state, list[str])
        assert_type(await self.storage.get("seen", int), int | None)
        assert_type(await self.storage.get_versioned("seen", int), tuple[int | None, int])
        assert_type(await self.storage.scan(int), Sequence[tuple[str, int]])
        self.facts.fcats  # E
        self.facts.limit = 3  # E
        return self.facts.newest


assert_type(Digest.facts, Needs[Facts])
Digest(limit=5)
Digest(facts=Facts())  # E
Needs(Facts())  # E
Needs(int)  # E
Facts(limt=5)  # E
Facts(budget="some")  # E
Mem(fact=Facts())  # E


@step
async def body(text: str, ctx: Context[Mem]) -> int:
    assert_type(ctx.memory.facts, Facts)
    assert_type(ctx.memory.facts.state, list[str])
    assert_type(ctx.memory.facts.newest, str)
    assert_type(ctx.memory[Facts], Facts)
    assert_type(await ctx.memory.facts.remember(text, twice=True), int)
    await ctx.memory.facts.remember(1)  # E
    await ctx.memory.facts.forget(text)  # E
    ctx.memory.fcats.newest  # E
    ctx.memory.facts = Facts()  # E
    ctx.memory.facts.limit = 3  # E
    return ctx.memory.facts.limit


@step
async def bare(text: str, ctx: Context) -> str:
    ctx.memory.facts  # E
    return text


async def main() -> None:
    assert_type(with_memory(body, memory=Mem()), Step[str, int, Memory, object])
    assert_type(spawn(body, memory=Mem()), Step[str, int, Memory, object])
    assert_type(with_memory(bare, memory=Mem()), Step[str, str, Memory, object])
    async with Harness(memory=Mem()) as harness:
        assert_type((await harness.run(body, "x")).value, int)
        await harness.run(bare, "x")
    async with Harness() as none:
        await none.run(body, "x")  # E
        await none.run(with_memory(body, memory=Mem()), "x")
    async with Harness(memory=Other()) as other:
        await other.run(body, "x")  # E


@tool
async def look(path: str, ctx: Context[Other]) -> str:
    return path


class Grouped(Memory):
    groups: ToolGroups = ToolGroups(groups=[ToolGroup("files", [look], "Files.", by_model=True)])


ToolGroup("files", ["look"])  # E
ToolGroups(groups=["files"])  # E
ToolGroups(group=[])  # E


@step
async def switches(text: str, ctx: Context[Grouped]) -> Sequence[str]:
    assert_type(await ctx.memory.groups.activate("files"), None)
    assert_type(await ctx.memory.groups.switch("files", True), str)
    assert_type(ctx.memory.groups.is_active("files"), bool)
    await ctx.memory.groups.activate(1)  # E
    await ctx.memory.groups.enable("files")  # E
    ctx.memory.groups.active = ()  # E
    assert_type(ctx.memory.groups.state, dict[str, bool])
    return ctx.memory.groups.active


async def carries(harness: Harness[Grouped], other: SessionKey) -> None:
    data = await harness.session("ada", "trip").dump()
    assert_type(data, SessionData)
    assert_type(data.to_json(), str)
    assert_type(await harness.sessions.load(data, into=other, replace=True), SessionKey)
    await harness.sessions.load(data.to_json())
    await harness.sessions.load(data, other)  # E
    await harness.sessions.load({"items": []})  # E
