# What a model round gives, by what it is asked for.
from collections.abc import Awaitable

from attrs import define
from pydantic import BaseModel
from typing_extensions import assert_type

from noetic_py import Budget, Harness, InputImage, Memory, Message, Model, ModelSettings, ReadContext, Retry
from noetic_py.core.items import ModelInput
from noetic_py import Step, call_model, loop, sequence, step, until


class Report(BaseModel):
    title: str
    score: int


class Refused(BaseModel):
    why: str


class Later(BaseModel):
    when: str


class Mem(Memory): ...


@define
class State:
    tone: str = "dry"


assert_type(call_model("m"), Step[ModelInput, str, Memory, object])
assert_type(call_model("m", output=str), Step[ModelInput, str, Memory, object])
assert_type(call_model("m", output=Report), Step[ModelInput, Report, Memory, object])
assert_type(call_model("m", output=list[Report]), Step[ModelInput, list[Report], Memory, object])
assert_type(call_model("m", output=dict[str, int]), Step[ModelInput, dict[str, int], Memory, object])
assert_type(call_model("m", output=(Report, Refused)), Step[ModelInput, Report | Refused, Memory, object])
three = call_model("m", output=(Report, Refused, Later), output_retries=2)
assert_type(three, Step[ModelInput, Report | Refused | Later, Memory, object])
no_type = call_model("m", output=3)  # E
no_type_name = call_model("m", output="Report")  # E


def check(report: Report) -> Report:
    return report


async def acheck(report: Report) -> Report:
    return report


def check_other(refused: Refused) -> Refused:
    return refused


assert_type(call_model("m", output=Report, validate=check), Step[ModelInput, Report, Memory, object])
assert_type(call_model("m", output=Report, validate=acheck, output_retries=0), Step[ModelInput, Report, Memory, object])
bad_check = call_model("m", output=Report, validate=check_other)  # E
unasked = call_model("m", validate=check)  # E


async def tone(ctx: ReadContext[Mem, State]) -> str:
    return f"Be {ctx.state.tone}. Turn {ctx.turns}."


def plain_tone(ctx: ReadContext[Memory, object]) -> str:
    return f"Turn {ctx.turns}."


def awaited(ctx: ReadContext[Memory, State]) -> Awaitable[str]:
    raise NotImplementedError


def number(ctx: ReadContext[Memory, object]) -> int:
    return 3


assert_type(call_model("m", instructions=tone), Step[ModelInput, str, Mem, State])
assert_type(call_model("m", instructions=plain_tone, output=Report), Step[ModelInput, Report, Memory, object])
assert_type(call_model("m", instructions=awaited), Step[ModelInput, str, Memory, State])
dull = call_model("m", instructions=lambda ctx: f"Turn {ctx.turns}.")
as_dull: Step[ModelInput, str] = dull
bad_instructions = call_model("m", instructions=number)  # E

warm: ModelSettings = {"temperature": 0.2, "max_output_tokens": 100, "tool_choice": "auto"}
call_model("m", settings=warm)
call_model("m", settings={"temperature": 0.2, "stop": ["END"], "reasoning_effort": "low"})
call_model("m", settings={"temprature": 0.2})  # E
call_model("m", settings={"temperature": "hot"})  # E
call_model("m", retry=3, timeout=5.0, budget=Budget(tokens=100), id="ask")
call_model("m", retry=Retry(2, backoff="linear", on=(TimeoutError,)))
call_model("m", retires=3)  # E
call_model("m", retry="3")  # E
call_model(3)  # E


async def use(model: Model) -> None:
    call_model(model)


@step
async def grade(report: Report) -> float:
    return report.score / 10


graded = sequence(call_model("m", output=Report), grade)
assert_type(graded, Step[ModelInput, float, Memory, object])
assert_type(call_model("m", output=Report) >> grade, Step[ModelInput, float, Memory, object])
assert_type(grade >> call_model("m"), Step[Report, str, Memory, object])  # E
misfit = call_model("m") >> grade  # E
agent = loop(call_model("m", output=Report), until=until.no_tool_calls())
as_agent: Step[str, Report] = agent
rewrite = loop(agent, until=until.max_rounds(2), prepare_next=lambda report, verdict, ctx: report.title)
as_rewrite: Step[str, Report] = rewrite


async def main() -> None:
    async with Harness(model="m", model_settings={"temperature": 0.0}) as h:
        r = await h.run(graded, [Message.user(["what is this", InputImage(url="https://x")])])
        assert_type(r.value, float)
        await h.run(graded, Message.user("x"))
        await h.run(graded, None)
        await h.run(graded, 3)  # E
        await h.run(graded, ["x"])  # E
        r2 = await h.run(three, "x")
        match r2.value:
            case Report(title=title):
                assert_type(title, str)
            case Refused(why=why):
                assert_type(why, str)
            case other:
                assert_type(other, Later)
    Harness(model=3)  # E
