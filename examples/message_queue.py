"""Messages that arrive while an answer is made: they wait, are read in between, or interrupt.

`send` stores a message and returns at once; `serve` answers one after the other. A message may wait for its turn, be
read by the running turn before its next model call, or interrupt that turn. A late watcher is shown the earlier
events. `guide` stands for a model.
"""

import tempfile

import anyio

from noetic_py import FunctionCall, Harness, Message, RunResult, Session, call_model, loop, tool, until
from noetic_py.core.events import RunFinished
from noetic_py.memory import Memory
from noetic_py.models import ModelRequest
from noetic_py.testing import ScriptedModel


class Almanac:
    """A book that takes its time."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.found = anyio.Event()


almanac = Almanac()


@tool
async def look_up(what: str) -> str:
    """Look something up in the almanac.

    Args:
        what: What to look for.
    """
    almanac.opened.set()
    await almanac.found.wait()
    return f"the {what} are at 16:20"


def guide(request: ModelRequest) -> str | FunctionCall:
    last = request.items[-1]
    if isinstance(last, Message) and last.role == "user" and last.text.startswith("When"):
        return FunctionCall(name="look_up", arguments={"what": last.text.split()[-1].rstrip("?")})
    said = [item.text for item in request.items if isinstance(item, Message) and item.role == "user"]
    return f"(I was told: {' / '.join(said[-2:])})"


agent = loop(call_model(tools=[look_up]), until=until.no_tool_calls())


async def talk(session: Session[Memory]) -> None:
    await session.send("When are the tides?")
    await almanac.opened.wait()
    await session.send("Thank you.")
    await session.send("In Brest, please.", deliver="between_rounds")
    print("waiting:", [(each.deliver, each.message) for each in await session.queued()])
    almanac.found.set()


async def change_of_mind(session: Session[Memory]) -> None:
    almanac.opened, almanac.found = anyio.Event(), anyio.Event()
    await session.send("When are the ferries?")
    await almanac.opened.wait()
    sent = await session.send("Never mind.", deliver="interrupt", delivery_id="m-4")
    # The messenger was not sure that it had been heard.
    again = await session.send("Never mind.", deliver="interrupt", delivery_id="m-4")
    print(f"interrupted: {sent.interrupted}; the same once more: {'dropped' if again.duplicate else 'taken'}")


async def serve(session: Session[Memory]) -> int:
    """Answer until all was said; how many turns that took."""
    turns = 0
    async with anyio.create_task_group() as group:

        async def answered(result: RunResult[str]) -> None:
            nonlocal turns
            turns += 1
            print(result.value if result.status == "completed" else f"({result.status})")
            if turns == 2:
                group.start_soon(change_of_mind, session)
            if turns == 4:
                group.cancel_scope.cancel()

        group.start_soon(talk, session)
        await session.serve(agent, on_turn=answered)
    return turns


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with Harness(model=ScriptedModel(*[guide] * 6), checkpoints=f"sqlite:{folder}/chat.db") as harness:
            session = harness.session("ada", "trip")
            turns = await serve(session)
            print("\nwho comes late sees:")
            async with session.watch() as seen:
                async for event in seen.events:
                    if isinstance(event, RunFinished):
                        print(f"  a turn that was {event.status}")
                        turns -= 1
                    if not turns:
                        break


if __name__ == "__main__":
    anyio.run(main)
