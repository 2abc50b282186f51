# A scripted model stands wherever a model does.
from typing_extensions import assert_type

from noetic_py import FunctionCall, Harness, Message, Model, ModelRequest, TokenUsage, call_model, loop, tool, until
from noetic_py.errors import ModelUnavailable
from noetic_py.testing import ScriptedModel, VirtualRuntime


@tool
async def search(query: str) -> str:
    return "r"


def third(request: ModelRequest) -> str:
    assert_type(request.items.last_text("user"), str | None)
    return f"{len(request.items)}"


def number(request: ModelRequest) -> int:
    return len(request.items)


async def fourth(request: ModelRequest) -> str:
    return "4"


m = ScriptedModel(
    FunctionCall(name="search", arguments={"query": "x"}),
    [Message.assistant("a"), FunctionCall(name="search")],
    ModelUnavailable("down", model="m"),
    third,
    lambda request: Message.assistant("b"),
    "done",
    usage=TokenUsage(input=3, output=4),
    cost="0.5",
    delay=0.1,
)
model: Model = m
agent = loop(call_model(m, tools=(search,)), until=until.no_tool_calls())
ScriptedModel(3)  # E
ScriptedModel(number)  # E
ScriptedModel(fourth)  # E
ScriptedModel("a", usages=None)  # E
FunctionCall("search")  # E
FunctionCall(name="search", arguments=3)  # E
Message(role="robot", content="x")  # E


async def test_agent() -> None:
    async with Harness(model=m, runtime=VirtualRuntime(seed=3)) as h:
        r = await h.run(agent, "hi")
    assert_type(r.value, str)
    calls = [c for c in r.items if isinstance(c, FunctionCall)]
    assert_type(calls, list[FunctionCall])
    assert_type(m.requests[0].items[-1].id, str)
    m.assert_complete()
