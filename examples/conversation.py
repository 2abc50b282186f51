"""A conversation over several runs: a detour with a copy of it, a fresh start, and a continuation in another process.

The context is made outside of a run, and any number of runs continue it, one after the other. A child takes over the
part that it is asked for; the first context does not see what is said in it. All runs belong to one trace, here that of
a request.
"""

import anyio

from noetic_py import Context, Harness, ModelRequest, call_model
from noetic_py.testing import ScriptedModel

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # as it came with the request


def answer(request: ModelRequest) -> str:
    return f"({len(request.items)} items) I see."


async def main() -> None:
    ctx = Context(name="tides", request_id="checkout 7")
    ctx.state["port"] = "Brest"
    async with Harness(model=ScriptedModel(*[answer] * 5)) as harness:
        first = await harness.run(call_model(), "When is high water?", ctx=ctx, traceparent=HEADER)
        print("first:", first.value)

        detour = ctx.child(name="detour", request="How deep is it there?")
        print("detour:", (await harness.run(call_model(), None, ctx=detour)).value, detour.branch, detour.state["port"])

        alone = ctx.child(preset="isolated", request="What is a chart datum?")
        print("alone:", (await harness.run(call_model(), None, ctx=alone)).value, "port" in alone.state)

        data = ctx.snapshot()  # JSON, for a file or a client
        later = Context.restore(data)
        print("later:", (await harness.run(call_model(), "And low water?", ctx=later)).value, later.turns, "turns")

        traces = [each.trace.trace_id[:8] if each.trace else None for each in (detour, later, alone)]
        print("traces:", traces[0] == traces[1], traces[0] == traces[2])

        ctx.reset()
        print("anew:", (await harness.run(call_model(), "Good morning.", ctx=ctx)).value, dict(ctx.state.view()))


if __name__ == "__main__":
    anyio.run(main)
