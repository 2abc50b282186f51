from noetic_py import Context, step
from @MODULE@ import Tides


@step
async def at_noon(port: str, ctx: Context) -> int:
    return await ctx.services.get(Tides).height(12)
