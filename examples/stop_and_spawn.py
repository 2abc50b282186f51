"""Stopping: what ends a sub-agent does not end the run that spawned it.

`complete` ends an execution with a value, from any depth. `abort` ends it with a reason, which its parent may handle.
`ctx.root` reaches the run itself. A run that was asked to end returns a result that says so.
"""

import anyio

from noetic_py import Context, Harness, parallel, spawn, step
from noetic_py.errors import Aborted


@step
async def dig(depth: int, ctx: Context) -> str:
    if depth == 3:
        ctx.complete("gold at depth 3")  # the child's value; the diggers beside and above are cancelled
    if depth == 7:
        ctx.abort("rock")
    if depth == 13:
        ctx.root.abort("the mine is flooded")
    await anyio.sleep(0.01 * depth)
    return await dig(depth + 1, ctx)


@step
async def sleep_long(_: int) -> str:
    await anyio.sleep(60)
    return "never said"


mine = spawn(parallel(dig, sleep_long), id="mine")


@step
async def prospect(start: int, ctx: Context) -> str:
    try:
        return f"from {start}: {await mine(start, ctx)}"
    except Aborted as stop:
        return f"from {start}: gave up, {stop.reason}"


async def main() -> None:
    async with Harness() as harness:
        for start in (1, 5, 12):
            result = await harness.run(prospect, start)
            said = result.output_or(f"no value, {result.reason}")
            print(f"{result.status}: {said} ({result.steps} steps, {result.seconds:.2f} s)")


if __name__ == "__main__":
    anyio.run(main)
