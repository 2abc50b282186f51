"""Calls that are not awaited, and items that are told apart by their type."""

from typing_extensions import assert_type

from noetic_py import Context, FunctionCall, FunctionCallOutput, Harness, Item, Message, Reasoning, StateBag, step


@step
async def note(text: str) -> None: ...


@step
async def forgetful(text: str, ctx: Context) -> str:
    note(text, ctx)  # E
    await note(text, ctx)
    ctx.gather(note.bind(text))  # E
    return text


async def run() -> None:
    async with Harness() as harness:
        harness.run(forgetful, "x")  # E
        print((await harness.run(forgetful, "x")).value)


def told_apart(item: Item) -> str:
    if item.type == "message":
        assert_type(item, Message)
        return item.text
    if item.type == "function_call":
        assert_type(item, FunctionCall)
        return item.name
    if item.type == "function_call_output":
        assert_type(item, FunctionCallOutput)
        return item.call_id
    if item.type == "reasoning":
        assert_type(item, Reasoning)
        return item.text
    return item.text  # E


def bag(state: StateBag) -> list[str]:
    state.update({"a": 1}, b=2)
    state.setdefault("c", 3)
    return [f"{key}={value}" for key, value in state.items()]
