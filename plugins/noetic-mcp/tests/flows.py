"""Flows that the tests serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
from pydantic import BaseModel

from noetic_py import Ask, Context, InputImage, step, tool

PIXEL = b"\x89PNG\r\n\x1a\n"
waiting: list[str] = []
cancelled: list[str] = []
paid: list[str] = []


class Route(BaseModel):
    start: str
    end: str
    stops: list[str] = []


@dataclass(frozen=True)
class Passage:
    hours: float
    ports: list[str]


@step
async def plan(route: Route, ctx: Context) -> Passage:
    """Plan a passage."""
    ports = [route.start, *route.stops, route.end]
    for number, port in enumerate(ports, 1):
        ctx.progress.set(number)
        ctx.emit(f"looked at {port}")
    return Passage(2.5 * (len(ports) - 1), ports)


@step
async def shout(text: str) -> str:
    return text.upper()


@step
async def count(text: str) -> int:
    return len(text)


@step
async def break_off(text: str) -> str:
    """Fail."""
    raise ValueError(f"no {text}")


@step
async def wait(text: str) -> str:
    """Never end."""
    waiting.append(text)
    try:
        await anyio.sleep_forever()
    finally:
        cancelled.append(text)
    return ""


@step
async def choose(text: str, ctx: Context) -> str:
    """Ask which one."""
    number = await ctx.ask(Ask(f"How many of {text}?", int))
    return f"{number} of {text}"


@tool(needs_approval=True)
async def pay(to: str, amount: int = 10) -> str:
    """Pay."""
    paid.append(to)
    return f"paid {to} {amount}"


@tool
async def picture() -> list[InputImage | str]:
    """A picture."""
    return [InputImage(data=PIXEL, media_type="image/png"), "a buoy"]


FLOWS: dict[str, Any] = {
    "plan": plan,
    "shout": shout,
    "count": count,
    "break_off": break_off,
    "wait": wait,
    "choose": choose,
    "pay": pay,
    "picture": picture,
}
