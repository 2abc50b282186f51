"""A chat for two users in one harness: each conversation continues after a restart of the program.

A session is found by its user and its name. Each turn starts with the earlier conversation, in any process. A message
that is delivered twice is answered once. An impatient user interrupts the turn with a message, which the model sees
when the conversation continues. `guide` stands for a model: it knows only what it is shown.
"""

import re
import tempfile

import anyio

from noetic_py import FunctionCall, FunctionCallOutput, Harness, Message, call_model, loop, tool, until
from noetic_py.models import ModelRequest
from noetic_py.testing import ScriptedModel

asked = anyio.Event()


@tool
async def ferries(port: str) -> str:
    """When the ferries leave a port.

    Args:
        port: The port's name.
    """
    asked.set()
    # The port's office takes its time.
    await anyio.sleep(3600)
    return f"from {port} at ten"


def guide(request: ModelRequest) -> str | FunctionCall:
    told = [item.text for item in request.items if isinstance(item, Message) and item.role == "user"]
    places = re.findall(r"to (\w+)\.", " ".join(told))
    if told[-1] == "Where am I going?":
        return f"To {places[-1]}." if places else "You have not told me."
    if told[-1] == "When is a ferry?":
        return FunctionCall(name="ferries", arguments={"port": places[-1]})
    return f"I have noted: {told[-1]}"


agent = loop(call_model(instructions="You know about travelling.", tools=[ferries]), until=until.no_tool_calls())


def open_chat(folder: str) -> tuple[Harness, ScriptedModel]:
    model = ScriptedModel(*[guide] * 5)
    return Harness(model=model, checkpoints=f"sqlite:{folder}/chat.db"), model


async def say(harness: Harness, user: str, text: str | None, delivery: str) -> None:
    result = await harness.session(user, "trip").run(agent, text, delivery_id=delivery)
    answer = result.value if result.status == "completed" else f"({result.status})"
    print(f"{user}: {text or '...'} -> {answer}")


async def first_day(folder: str) -> None:
    harness, model = open_chat(folder)
    async with harness:
        await say(harness, "ada", "I want to go to Brest.", "a-1")
        await say(harness, "bob", "I am on my way to Cork.", "b-1")
        await say(harness, "ada", "Where am I going?", "a-2")

        # The messenger was not sure that it had been heard.
        await say(harness, "bob", "I am on my way to Cork.", "b-1")
        print(f"4 deliveries, {len(model.requests)} questions to the model")

        async with anyio.create_task_group() as group:
            group.start_soon(say, harness, "ada", "When is a ferry?", "a-3")
            await asked.wait()
            stopped = await harness.session("ada", "trip").interrupt("Never mind, I take a train.")
            print(f"a turn was running: {stopped}")


async def second_day(folder: str) -> None:
    harness, _ = open_chat(folder)
    async with harness:
        await say(harness, "ada", None, "a-4")
        await say(harness, "bob", "Where am I going?", "b-2")
        print("\nada's conversation:")
        for item in await harness.session("ada", "trip").items():
            match item:
                case Message(role=role):
                    print(f"  {role}: {item.text}")
                case FunctionCallOutput(status=status):
                    print(f"  the call's output is {status}")
                case _:
                    print(f"  {item.type}")

        certificate = await harness.erase("ada")
        left = await harness.sessions.list("ada"), await harness.sessions.list("bob")
        print(f"ada is erased: {certificate.removed['runs']} runs; sessions left: {len(left[0])} and {len(left[1])}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        await first_day(folder)
        print("\n-- the program is started anew --\n")
        await second_day(folder)


if __name__ == "__main__":
    anyio.run(main)
