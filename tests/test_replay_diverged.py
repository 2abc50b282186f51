"""A run that goes on with other code: what has changed is named exactly, before anything new is done.

The program is run until right before its last step ends, then one thing in it is changed, and the run is resumed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from noetic_py import FunctionCall, FunctionCallOutput, Harness, InMemoryBackend, Item, Message, ModelRequest, errors
from noetic_py.checkpoints import Record
from noetic_py.testing import FaultyBackend, ScriptedModel

pytestmark = pytest.mark.anyio

FLOW = '''
from noetic_py import Channel, Context, Memory, Retry, StateBag
from noetic_py import branch, call_model, loop, parallel, race, sequence, settle, spawn, step, tool, until

BEGAN = []
LINE = Channel("line", int)


def began(ctx):
    BEGAN.append("/".join(ctx.path))


@step
async def first(x: int, ctx: Context) -> int:
    began(ctx)
    ctx.state["first"] = x
    return x + 1


@step
async def second(x: int, ctx: Context) -> int:
    began(ctx)
    return x + 2


@step
async def third(x: int, ctx: Context) -> int:
    began(ctx)
    return x + 3


@step
async def fourth(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step(replay="keyed")
async def keyed(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step(replay="once")
async def once(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step
async def parent(x: int, ctx: Context) -> int:
    began(ctx)
    found = await second(x, ctx)
    await ctx.send(LINE, found)
    return await third(found, ctx)


@tool
async def look(ctx: Context, port: str) -> str:
    """Look something up."""
    began(ctx)
    return port.upper()


@step
async def ask(x: int, ctx: Context) -> str:
    began(ctx)
    return f"how high is it, {x}?"


@step
async def count(text: str, ctx: Context) -> int:
    began(ctx)
    return len(text)


def route(x: int) -> bool:
    return x > 0


def merge(results: list[int]) -> int:
    return sum(results)


def pick(outcomes) -> int:
    return len(outcomes)


def further(output, verdict, ctx) -> int:
    return output + 1


@step
async def deep(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step
async def inner(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step
async def called(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step
async def ends(x: int, ctx: Context) -> int:
    began(ctx)
    return x


@step
async def calls(x: int, ctx: Context) -> int:
    began(ctx)
    return await called(x, ctx) + await called(x + 1, ctx)


nest = parallel([spawn(loop(deep, until=until.max_rounds(1))), deep], merge=merge, id="nest")
part = sequence(inner, calls, ends, id="part")
rounds = loop(part, until=until.max_rounds(2), id="rounds")
row = sequence(first, second, id="row")
chosen = branch(route, {True: row, False: third}, id="chosen")
both = parallel([second, third], merge=merge, id="both")
all_of = settle([second, third], merge=pick, id="all_of")
again = loop(second, until=until.max_rounds(2), prepare_next=further, id="again")
child = spawn(row, state="deepcopy", id="child")
agent = loop(call_model(tools=[look], instructions="Be brief."), until=until.no_tool_calls(), id="agent")
steps = first, parent, keyed, once, chosen, both, all_of, again, child, ask, agent, count, nest, rounds
flow = sequence(*steps, id="flow")
'''

RUN = "r"
names = count()


def load(folder: Path, code: str) -> ModuleType:
    """The program as a module from a file of its own, so that its source is found."""
    path = folder / f"diverging{next(names)}.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def changed(*changes: str) -> str:
    code = FLOW
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


STEPS = "steps = first, parent, keyed, once, chosen, both, all_of, again, child, ask, agent, count, nest, rounds"

PATHS = "both = parallel([second, third]"
SETTLED = "all_of = settle([second, third]"
AGAIN = "again = loop(second, until=until.max_rounds(2)"
PART = "sequence(inner, calls, ends"
SHOUT = '@tool\nasync def shout(text: str) -> str:\n    """Shout."""\n    return text\n\n\n'


def within(name: str, statement: str) -> tuple[str, str]:
    """A statement more in a body."""
    head = f"async def {name}(x: int, ctx: Context) -> int:\n    began(ctx)\n"
    return head, f"{head}    {statement}\n"


# What is changed, and the path of the step that is named.
MUTATIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "a body": (("return x + 1\n", "return x + 10\n"), "flow/first"),
    "the body of a keyed step": (within("keyed", "x = -x"), "flow/keyed"),
    "the body of a once step": (within("once", "x = -x"), "flow/once"),
    "a body below an unchanged section": (within("deep", "x += 1"), "flow/nest"),
    "a body below an unchanged round": (within("inner", "x += 1"), "flow/rounds/part[0]"),
    "a body that a body calls": (within("called", "x += 1"), "flow/rounds/part[1]/calls/called"),
    "two steps swapped": ((STEPS, STEPS.replace("first, parent", "parent, first")), "flow/parent"),
    "two later steps swapped": ((STEPS, STEPS.replace("keyed, once", "once, keyed")), "flow/once"),
    "a step inserted at the beginning": ((STEPS, STEPS.replace("= first", "= fourth, first")), "flow/fourth"),
    "a step inserted": ((STEPS, STEPS.replace("keyed, once", "keyed, fourth, once")), "flow/fourth"),
    "a step inserted again": ((STEPS, STEPS.replace("keyed, once", "keyed, keyed, once")), "flow/keyed#1"),
    "a step deleted": ((STEPS, STEPS.replace("keyed, once", "once")), "flow/keyed"),
    "the first step deleted": ((STEPS, STEPS.replace("first, parent", "parent")), "flow/first"),
    "a step renamed": (("async def keyed", "async def locked", STEPS, STEPS.replace("keyed", "locked")), "flow/keyed"),
    "a composite renamed": (('id="chosen")', 'id="elected")'), "flow/chosen"),
    "a round's steps swapped": (
        (PART, PART.replace("inner, calls", "calls, inner")),
        "flow/rounds/part[0]",
    ),
    "a step of a round in flight deleted": (
        (PART, PART.replace("inner, ", "")),
        "flow/rounds/part[0]",
    ),
    "a body in flight that calls less": (
        ("await called(x, ctx) + await called(x + 1, ctx)", "await called(x, ctx)"),
        "flow/rounds/part[0]",
    ),
    "a step replaced by one of another kind": (
        (f"{SETTLED}, merge=pick", "all_of = spawn(second"),
        "flow/all_of",
    ),
    "a section that becomes a race": (
        (f"{PATHS}, merge=merge", "both = race([second, third]"),
        "flow/both",
    ),
    "a path more": ((PATHS, PATHS.replace("third", "third, fourth")), "flow/both"),
    "a path less": ((PATHS, PATHS.replace(", third", "")), "flow/both"),
    "two paths swapped": ((PATHS, PATHS.replace("second, third", "third, second")), "flow/both"),
    "a merge": (("return sum(results)", "return max(results)"), "flow/both"),
    "a settled section's paths": (
        (SETTLED, SETTLED.replace("third", "fourth")),
        "flow/all_of",
    ),
    "a loop's body": (("again = loop(second", "again = loop(third"), "flow/again"),
    "a loop's until": (
        (
            "again = loop(second, until=until.max_rounds(2)",
            "again = loop(second, until=until.max_rounds(2) | until.never()",
        ),
        "flow/again",
    ),
    "a loop's kind of until": (
        (AGAIN, AGAIN.replace("rounds", "turns")),
        "flow/again",
    ),
    "a loop's next input": (("return output + 1", "return output + 2"), "flow/again"),
    "a spawn's child": (("child = spawn(row", "child = spawn(second"), "flow/child"),
    "a spawn's state": (('state="deepcopy"', 'state="new"'), "flow/child"),
    "a route": (("return x > 0", "return x >= 0"), "flow/chosen"),
    "a case that was not taken": (("False: third}", "False: fourth}"), "flow/chosen"),
    "the case that was taken": (("{True: row", "{True: second"), "flow/chosen"),
    "a step within the case that was taken": (
        ("row = sequence(first, second", "row = sequence(first, third"),
        "flow/chosen",
    ),
    "a tool more": (
        (
            "tools=[look]",
            "tools=[look, shout]",
            "@step\nasync def ask",
            '@tool\nasync def shout(text: str) -> str:\n    """Shout."""\n    return text\n\n\n@step\nasync def ask',
        ),
        "flow/agent",
    ),
    "no tool": (("tools=[look]", "tools=[]"), "flow/agent"),
    "a tool's body": (("port.upper()", "port.lower()"), "flow/agent"),
    "a tool's schema": (("ctx: Context, port: str", "ctx: Context, port: str, day: int = 0"), "flow/agent"),
    "instructions": (("Be brief.", "Be long."), "flow/agent"),
    "a version": (("@step\nasync def first", '@step(version="2")\nasync def first'), "flow/first"),
    "tries": (("@step\nasync def parent", "@step(retry=2)\nasync def parent"), "flow/parent"),
    "a replay kind": (('@step(replay="keyed")', "@step"), "flow/keyed"),
    "what a body calls": (("return await third(found, ctx)", "return await fourth(found, ctx)"), "flow/parent"),
    "what a body sends": (("LINE, found", "LINE, found + 1"), "flow/parent"),
    "the flow's own id": (('*steps, id="flow")', '*steps, id="stream")'), ""),
}


def answer(request: ModelRequest) -> Item:
    if isinstance(last := request.items[-1], FunctionCallOutput):
        return Message.assistant(f"{last.output}: {request.items.last_text('user')}")
    return FunctionCall(name="look", arguments={"port": "brest"})


def harness(backend: Any) -> Harness[Any]:
    return Harness(plugins=(), checkpoints=backend, model=ScriptedModel(*[answer] * 9, name="test:scripted"))


IN_FLIGHT = "flow/rounds/part[1]/calls"


class DyingBackend(FaultyBackend):
    """Dies before a step's record is stored."""

    def __init__(self, path: str) -> None:
        super().__init__(InMemoryBackend())
        self._path = path

    async def append(self, run_id: str, *, records: Sequence[Record], **given: Any) -> int:
        if any(record.kind == "StepFinished" and "/".join(record.path) == self._path for record in records):
            self._path = ""
            await self._die()
        return await super().append(run_id, records=records, **given)


known: dict[str, tuple[object, object]] = {}


async def whole(folder: Path, code: str) -> tuple[object, object]:
    """What the program comes to when nobody stops it."""
    if code not in known:
        result = await harness(InMemoryBackend()).run(load(folder, code).flow, 1)
        known[code] = result.value, result.state
    return known[code]


async def unfinished(folder: Path) -> FaultyBackend:
    """A run whose process died when its last body but one had got what it calls, and was not stored."""
    backend = DyingBackend(IN_FLIGHT)
    with backend.outlived():
        await harness(backend).run(load(folder, FLOW).flow, 1, run_id=RUN)
    assert backend.dead
    backend.revive()
    return backend


@pytest.mark.parametrize("kind", MUTATIONS)
async def test_what_has_changed_is_named_before_anything_is_done(tmp_path: Path, kind: str) -> None:
    backend = await unfinished(tmp_path)
    changes, path = MUTATIONS[kind]
    other = load(tmp_path, changed(*changes))
    with pytest.raises(errors.ReplayDiverged) as caught:
        await harness(backend).resume(RUN, other.flow)
    assert "/".join(caught.value.path) == path
    # What was in flight may begin again; it is its calls that are compared.
    assert set(other.BEGAN) <= {IN_FLIGHT}
    # What was refused was not spoilt: the code that the run was started with goes on with it.
    same = load(tmp_path, FLOW)
    result = await harness(backend).resume(RUN, same.flow)
    assert same.BEGAN == [IN_FLIGHT, "flow/rounds/part[1]/ends"]
    assert (result.value, result.state) == await whole(tmp_path, FLOW)


def test_there_are_more_than_twenty() -> None:
    assert len(MUTATIONS) >= 40


ADOPTED = {
    "a body": "flow/first",
    "the body of a keyed step": "flow/keyed",
    "a merge": "flow/both/second[0]",
    "a path more": "flow/both/fourth[2]",
    "a loop's next input": "flow/again/second[1]",
    "a spawn's child": "flow/child/second",
    "the case that was taken": "flow/chosen/second",
    "a tool's body": "flow/agent/call_model[0]/look[0]",
}


@pytest.mark.parametrize("kind", ADOPTED)
async def test_adopted_code_runs_what_differs_anew(tmp_path: Path, kind: str) -> None:
    backend = await unfinished(tmp_path)
    code = changed(*MUTATIONS[kind][0])
    other = load(tmp_path, code)
    result = await harness(backend).resume(RUN, other.flow, on_diverge="adopt")
    assert ADOPTED[kind] in other.BEGAN
    assert (result.value, result.state) == await whole(tmp_path, code)
    # From then on it is the code of the run.
    again = load(tmp_path, code)
    assert (await harness(backend).resume(RUN, again.flow)).value == result.value
    assert again.BEGAN == []


@pytest.mark.parametrize("kind", ADOPTED)
async def test_pinned_records_stand(tmp_path: Path, kind: str) -> None:
    backend = await unfinished(tmp_path)
    other = load(tmp_path, changed(*MUTATIONS[kind][0]))
    result = await harness(backend).resume(RUN, other.flow, on_diverge="pin")
    # Only what was in flight, and what had not begun, is done.
    assert other.BEGAN == [IN_FLIGHT, "flow/rounds/part[1]/ends"]
    assert (result.value, result.state) == await whole(tmp_path, FLOW)
