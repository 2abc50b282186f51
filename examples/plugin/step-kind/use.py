from noetic_py import Harness, step
from @MODULE@ import longest


@step
async def short(port: str) -> str:
    return port


@step
async def polite(port: str) -> str:
    return f"{port}, please."


# Without `plugins=` a harness loads every plugin that is installed.
harness = Harness(flows={"ask": longest(short, polite)})
