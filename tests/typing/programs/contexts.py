# Contexts outside of a run: a child and a restored one keep the type of the state.
from attrs import define
from typing_extensions import assert_type

from noetic_py import Context, Harness, Memory, StateBag, current_context, step


@define
class Trip:
    port: str


@step
async def sail(_: str, ctx: Context[Memory, Trip]) -> str:
    assert_type(ctx.child(), Context[Memory, Trip])
    return ctx.state.port


typed = Context(state=Trip("Brest"))
assert_type(typed.child(items="new", state="share", request="x"), Context[Memory, Trip])
assert_type(typed.snapshot(), bytes)
assert_type(Context.restore(typed.snapshot(), state_type=Trip), Context[Memory, Trip])
assert_type(Context.restore(b""), Context[Memory, StateBag])
assert_type(Context().state.pop("a"), object)
with typed.bind() as bound:
    assert_type(bound.state, Trip)
    assert_type(current_context(required=True).turns, int)

typed.child(items="shared")  # E
typed.child(state="none")  # E
typed.child(request=3)  # E
Context.restore("text")  # E


async def main(harness: Harness) -> None:
    await harness.run(sail, "x", ctx=typed.child())
    await harness.run(sail, "x", ctx=Context.restore(b"", state_type=Trip))
    await harness.run(sail, "x", ctx=Context.restore(b""))  # E
