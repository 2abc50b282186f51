# A run that is watched, and one that goes on by itself.
from collections.abc import AsyncIterator

from attrs import define
from typing_extensions import assert_type

from noetic_py import Context, Emitted, Event, Harness, Item, ItemsAppended, Memory, RunFinished, RunHandle, RunResult, RunStatus
from noetic_py import RunStream, StateBag, TextDelta, ToolFinished, ToolStarted, call_model, loop, step, until
from noetic_py.errors import RunBusy

agent = loop(call_model("x"), until=until.no_tool_calls())


@define
class State:
    n: int = 0


@step
async def counting(x: str, ctx: Context[Memory, State]) -> int:
    ctx.emit({"n": ctx.state.n})
    return ctx.state.n


async def chat(h: Harness, user: str, text: str) -> AsyncIterator[str]:
    try:
        async with h.stream(agent, text, user_id=user) as stream:
            assert_type(stream, RunStream[str, StateBag])
            async for e in stream.events:
                assert_type(e.path, tuple[str, ...])
                match e:
                    case TextDelta(delta=d):
                        yield d
                    case ToolStarted(call=c):
                        yield f"[{c.name}]"
                    case ToolFinished(output=o, failed=failed):
                        yield o.call_id if failed else ""
                    case RunFinished(status=status):
                        assert_type(status, RunStatus)
                    case ItemsAppended() | Emitted():
                        pass
                    case _:
                        assert_type(e, Event)
            r = await stream.result()
            assert_type(r.value, str)
    except RunBusy:
        yield "busy"


async def watch(h: Harness) -> None:
    async with h.stream(counting, "x", state=State()) as stream:
        assert_type(stream, RunStream[int, State])
        async for text in stream.text:
            assert_type(text, str)
        async for item in stream.items:
            assert_type(item, Item)
        stream.abort("enough")
        assert_type((await stream.result()).state, State)
        n: str = (await stream.result()).value  # E
    async with h.stream(counting, "x") as other:  # E
        pass
    async with h.stream(counting, 3, state=State()):  # E
        pass
    async with h.stream(counting, "x", ctx=Context(state=State())) as third:
        assert_type(third, RunStream[int, State])
    async with h.stream(counting, "x", ctx=Context()):  # E
        pass
    async with h.stream(agent, "x", sesion="s"):  # E
        pass


async def beside(h: Harness) -> RunResult[int, State]:
    handle = h.start(counting, "x", state=State())
    assert_type(handle, RunHandle[int, State])
    assert_type(h.start(agent, "x"), RunHandle[str, StateBag])
    assert_type(h.start(counting, "x", ctx=Context(state=State())), RunHandle[int, State])
    assert_type(h.run_sync(counting, "x", ctx=Context(state=State())), RunResult[int, State])
    h.start(counting, "x")  # E
    h.start(counting, "x", ctx=Context())  # E
    h.run_sync(counting, "x", ctx=Context())  # E
    handle.interrupt()
    wide: RunHandle[object, object] = handle
    narrow: RunHandle[str, State] = handle  # E
    return await handle.result()
