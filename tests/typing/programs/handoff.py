# A step that may hand over has the type of what comes out at last.
from typing_extensions import assert_type

from noetic_py import Context, Handoff, Memory, Step, step


@step
async def number(text: str) -> int:
    return 1


@step
async def word(text: str) -> str:
    return text


@step(handoffs=[number])
async def may(text: str) -> int | Handoff[int]:
    return Handoff(number, text) if text else 0


@step(handoffs=[number], retry=2, max_handoffs=5)
async def with_context(text: str, ctx: Context) -> int | Handoff[int]:
    return Handoff(number, text)


@step(handoffs=lambda: [number])
async def always(text: str) -> Handoff[int]:
    return Handoff(number, text)


@step(handoffs=[number])
async def nothing_given() -> int | Handoff[int]:
    return Handoff(number, "x")


assert_type(may, Step[str, int, Memory, object])
assert_type(with_context, Step[str, int, Memory, object])
assert_type(always, Step[str, int, Memory, object])
assert_type(nothing_given, Step[object, int, Memory, object])
assert_type(Handoff(number, "x"), Handoff[int])


@step(handoffs=[word])
async def wrong_target(text: str) -> int | Handoff[int]:
    return Handoff(word, text)  # E


@step(handoffs=[number])
async def wrong_value(text: str) -> int | Handoff[int]:
    return text  # E


@step(handoffs=[number])
async def wrong_input(text: str) -> int | Handoff[int]:
    return Handoff(number, 3)  # E


@step(handoffs=[number], max_handoffs="5")  # E
async def wrong_limit(text: str) -> int | Handoff[int]:
    return 1
