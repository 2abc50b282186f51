"""Mistakes of a beginner: each is told what is wrong, where, and how to mend it.

A mistake is a program in a file of its own. Its text is what Python would print: the exception with its causes and
notes, and the warnings before it. A line of the program that ends in `# HERE` has to be named.
"""

from __future__ import annotations

import copy
import logging
import pickle
import re
import subprocess
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

import noetic_py
from noetic_py import Context, Harness, parallel, step
from noetic_py.engine import frame
from noetic_py.errors import (
    NoDescriptionWarning,
    NoeticError,
    NotAwaited,
    ParallelFailed,
    StepFailed,
    UnknownKeyword,
)
from tests.properties.checks import FULL
from tests.warm import forked

LIBRARY = f"{Path(noetic_py.__file__).parent}/"
"""What the frames of the library begin with, wherever it is; the folder of a clone may have its name too."""

HEAD = """
import anyio
from attrs import define
from noetic_py import *
from noetic_py import until
from noetic_py.memory import MemoryLayer, function
from noetic_py.models import FallbackModel
from noetic_py.testing import ScriptedModel

@step
async def same(x: str) -> str: return x
"""
LONGEST = 45


class Mistake(NamedTuple):
    """A program, and what its author has to be told."""

    name: str
    program: str
    says: tuple[str, ...]


def run_of(flow: str, *, harness: str = "", options: str = "") -> str:
    """A program that runs a flow."""
    return f"""
async def main():
    async with Harness({harness}) as harness:
        print((await harness.run({flow}, "x"{options})).value)
"""


B = """
@step
async def b(x: str, ctx: Context) -> str:
"""
IDLE = """
class Idle(MemoryLayer[None]): ...
class Mem(Memory):
    idle: Idle = Idle()
"""
MISTAKES = [
    Mistake(
        "the result of a step call is used without await",
        B + "    r = same(x, ctx)  # HERE\n    return r + '!'\n" + run_of("b"),
        ("same was called and not awaited", "Try: await same", "[at b]"),
    ),
    Mistake(
        "a step call that nothing awaits",
        B + "    same(x, ctx)  # HERE\n    return 'done'\n" + run_of("b"),
        ("same was called and not awaited", "Try: await same"),
    ),
    Mistake(
        "a step call that nothing awaits, before others that are awaited",
        B + "    same(x, ctx)  # HERE\n    await same(x, ctx)\n    return await same(x, ctx)\n" + run_of("b"),
        ("same was called and not awaited",),
    ),
    Mistake(
        "the coroutine of a step call is returned",
        B + "    return same(x, ctx)  # HERE\n" + run_of("b"),
        ("same was called and not awaited",),
    ),
    Mistake(
        "the coroutine of a step call is put into the state",
        B + "    ctx.state['later'] = same(x, ctx)  # HERE\n    return x\n" + run_of("b"),
        ("same was called and not awaited",),
    ),
    Mistake(
        "a lost call in a durable run, in a retried step with a timeout",
        "@step(retry=3, timeout=5.0)\nasync def b(x: str, ctx: Context) -> str:\n"
        "    same(x, ctx)  # HERE\n    return x\n" + run_of("b", harness='checkpoints="memory:"'),
        ("same was called and not awaited",),
    ),
    Mistake(
        "a step is called with a derived context and not awaited",
        B + "    same(x, ctx.child(preset='derive', name='k'))  # HERE\n    return x\n" + run_of("b"),
        ("same was called and not awaited", "Try: await same", "[at b]"),
    ),
    Mistake(
        "gather is not awaited",
        B + "    ctx.gather(same.bind(x))  # HERE\n    return x\n" + run_of("b"),
        ("ctx.gather(...) was called and not awaited", "Try: await ctx.gather(...)", "[at b]"),
    ),
    Mistake(
        "a question is not awaited",
        B + "    await same(x, ctx)\n    ctx.ask(Ask('sure?', bool))  # HERE\n    return x\n" + run_of("b"),
        ("ctx.ask(...) was called and not awaited", "Try: await ctx.ask(...)"),
    ),
    Mistake(
        "the result of a receive is used without await, in a durable run",
        B + "    return ctx.recv(Channel('c', str)).upper()  # HERE\n" + run_of("b", harness='checkpoints="memory:"'),
        ("ctx.recv(...) was called and not awaited", "Try: await ctx.recv(...)"),
    ),
    Mistake(
        "a message is not sent, nor a checkpoint made",
        B + "    ctx.send(Channel('c', str), 'x')  # HERE\n    ctx.checkpoint()\n    return x\n" + run_of("b"),
        ("ctx.send(...) was called and not awaited", "ctx.checkpoint(...) was called and not awaited"),
    ),
    Mistake(
        "a function of a memory layer is not awaited",
        "class Notes(MemoryLayer[list[str]]):\n    def initial(self): return []\n"
        "    @function\n    async def note(self, text: str) -> None:\n"
        "        'Note.'\n        self.state.append(text)\n"
        "class Mem(Memory):\n    notes: Notes = Notes()\n"
        "@step\nasync def b(x: str, ctx: Context[Mem]) -> str:\n    ctx.memory.notes.note(x)  # HERE\n    return x\n"
        + run_of("b", harness="memory=Mem()"),
        ("Notes.note(...) was called and not awaited", "Try: await Notes.note(...)", "[at b]"),
    ),
    Mistake(
        "the result of a handle is not awaited",
        "async def main():\n    async with Harness() as harness:\n"
        "        harness.start(same, 'x').result().value  # HERE\n",
        ("handle.result() was called and not awaited", "(await handle.result()).value"),
    ),
    Mistake(
        "the coroutine of a step call is another one's input",
        B + "    return await same(same(x, ctx), ctx)  # HERE\n" + run_of("b"),
        ("same was called and not awaited", "Try: await same", "[at b]"),
    ),
    Mistake(
        "the coroutine of a step call is another one's input, in a durable run",
        B + "    return await same(same(x, ctx), ctx)  # HERE\n" + run_of("b", harness='checkpoints="memory:"'),
        ("same was called and not awaited", "Try: await same", "[at b]"),
    ),
    Mistake(
        "a step is bound to the coroutine of a step call",
        B + "    return await ctx.gather(same.bind(same(x, ctx)))  # HERE\n" + run_of("b"),
        ("same was called and not awaited", "Try: await same"),
    ),
    Mistake(
        "steps are called for gather",
        B + "    return await ctx.gather(same(x, ctx), same(x, ctx))  # HERE\n" + run_of("b"),
        ("same was called and not awaited", "Try: pass the step itself or step.bind(input), without calling it"),
    ),
    Mistake(
        "coroutines of step calls in a list",
        B + "    return [same(y, ctx) for y in 'ab']  # HERE\n" + run_of("b"),
        ("same was called and not awaited", "Try: await same"),
    ),
    Mistake(
        "a coroutine of a function of one's own in a list",
        "async def plain() -> str: return 'x'  # HERE\n" + B + "    return [plain()]\n" + run_of("b"),
        ("plain()", "which is not a value", "await plain(...) first", "[at b]"),
    ),
    Mistake(
        "a coroutine of a function of one's own in a list, in a durable run",
        "made = []\nasync def plain() -> str: return 'x'\n"
        + B
        + "    made.append(plain())\n    return made\n"
        + run_of("b", harness='checkpoints="memory:"').replace("        print", "        try: print").rstrip()
        + "\n        finally: made[0].close()\n",
        ("output[0]: a builtins.coroutine cannot be stored", "await plain(...) first", "[at b]"),
    ),
    Mistake(
        "a coroutine is the input of a run",
        "async def plain() -> str: return 'x'  # HERE\n"
        "async def main():\n    async with Harness() as harness: await harness.run(same, plain())\n",
        ("plain()", "which is not a value", "await plain(...) first"),
    ),
    Mistake(
        "a tool returns the coroutine of a step call",
        "@tool\nasync def f(ctx: Context, x: int) -> str:\n    'F.'\n    return same('y', ctx)  # HERE\n"
        "flow = loop(call_model(tools=[f]), until=until.no_tool_calls())\n"
        + run_of("flow", harness="model=ScriptedModel(FunctionCall(name='f', arguments={'x': 1}), 'ok')"),
        ("same was called and not awaited", "Try: await same"),
    ),
    Mistake(
        "a merge calls a step and does not await it",
        "async def merge(outputs, ctx):\n    same('x', ctx)  # HERE\n    return outputs\n"
        + run_of("parallel(same, same, merge=merge)"),
        ("same was called and not awaited", "Try: await same"),
    ),
    Mistake(
        "a condition of a loop gives a truth value",
        "def ready(snapshot): return snapshot.output == 'x'  # HERE\n" + run_of("loop(same, until=ready)"),
        ("True is not a valid verdict of ready (", "expected a Verdict", "until.custom(...)", "[at loop]"),
    ),
    Mistake(
        "a condition of a loop that waits gives a truth value, in a durable run",
        "async def ready(snapshot): return True  # HERE\n"
        + run_of("loop(same, until=ready)", harness='checkpoints="memory:"'),
        ("True is not a valid verdict of ready (", "expected a Verdict", "until.custom(...)", "[at loop]"),
    ),
    Mistake(
        "a step that yields",
        "@step  # HERE\nasync def b(x: str):\n    yield x\n",
        ("yields; a step returns one value", "Try: return the result"),
    ),
    Mistake(
        "the coroutine of a function of one's own is returned",
        "async def plain() -> str: return 'x'  # HERE\n" + B + "    return plain()\n" + run_of("b"),
        ("plain()", "which is not a value", "await plain(...) first"),
    ),
    Mistake(
        "harness.run without await",
        "async def main():\n    async with Harness() as harness:\n        harness.run(same, 'x').value  # HERE\n",
        ("was called and not awaited", "(await harness.run(step, input)).value"),
    ),
    Mistake(
        "harness.stream without async with",
        "async def main():\n    async with Harness() as harness:\n        stream = harness.stream(same, 'x')  # HERE\n"
        "        async for event in stream.events: print(event)\n",
        ("without being entered", "async with harness.stream(step, input) as stream"),
    ),
    Mistake(
        "harness.stream is awaited",
        "async def main():\n    async with Harness() as harness:\n        await harness.stream(same, 'x')  # HERE\n",
        ("was awaited without being entered", "async with"),
    ),
    Mistake(
        "harness.stream is iterated",
        "async def main():\n    async with Harness() as harness:\n"
        "        async for each in harness.stream(same, 'x'): print(each)  # HERE\n",
        ("was iterated without being entered", "async with"),
    ),
    Mistake(
        "a step is called outside a run",
        "async def main(): print(await same('x'))  # HERE\n",
        ("step 'same' was called without a context", "await harness.run(same, input)"),
    ),
    Mistake(
        "a step gives another type than the next one takes",
        "@step\nasync def number(x: str) -> int: return 3\n"
        "@step\nasync def upper(x: str) -> str: return x.upper()  # HERE\n" + run_of("number >> upper"),
        (
            "step 'upper' was given int from step 'number'",
            "'x' is declared as str",
            "convert the value before",
            "[at sequence/upper]",
        ),
    ),
    Mistake(
        "a step gives another type than a path of the next section takes, which is noticed by a lookup",
        "@step\nasync def number(x: str) -> object: return [1]\n"
        "@step\nasync def first(x: dict[str, int] | None) -> int: return x['a']  # HERE\n"
        + run_of("number >> parallel(first, same)"),
        ("step 'first' was given list from step 'number'", "'x' is declared as dict[str, int] | None"),
    ),
    Mistake(
        "a body gives a step a list of another type than it takes",
        "@step\nasync def joined(x: list[str]) -> str: return ''.join(x)  # HERE\n"
        + B
        + "    return await joined([1, 2], ctx)\n"
        + run_of("b"),
        ("step 'joined' was given list from the body of step 'b'", "'x' is declared as list[str]", "[at b/joined]"),
    ),
    Mistake(
        "the wrap-up of a sequence does not take that there is no input",
        "@step\nasync def short(x: str) -> str: return x.upper()  # HERE\n"
        "flow = sequence(same, same).with_options(budget=Budget(steps=1, reserve=Budget(steps=1), wrap_up=short))\n"
        + run_of("flow"),
        ("step 'short' was given NoneType", "'x' is declared as str"),
    ),
    Mistake(
        "a step is bound to a value of another type than it takes",
        "@step\nasync def upper(x: str) -> str: return x.upper()  # HERE\n" + run_of("same >> upper.bind(3)"),
        ("step 'upper' was given int from bind()", "'x' is declared as str"),
    ),
    Mistake(
        "the state was not given",
        "@define\nclass S: n: int = 0\n"
        "@step\nasync def a(x: str, ctx: Context[Memory, S]) -> int: return ctx.state.n  # HERE\n" + run_of("a"),
        ("StateBag", "no field 'n'", "harness.run(step, input, state=...)", "[at a]"),
    ),
    Mistake(
        "the state was not given to a path of a section",
        B + "    ctx.state.n = 3  # HERE\n    return x\n" + run_of("parallel(b, same)"),
        ("1 path failed", "no field 'n'", "Try: give the flow's own state"),
    ),
    Mistake(
        "the state was not given, and is written to",
        B + "    ctx.state.n = 3  # HERE\n    return x\n" + run_of("b"),
        ("StateBag", "no field 'n'", "ctx.state['n']"),
    ),
    Mistake(
        "a step with two inputs",
        "@step  # HERE\nasync def a(x: str, y: str) -> str: return x + y\nasync def main(): ...\n",
        ("the second parameter of a step is its context", "'y: str'", "y: Context"),
    ),
    Mistake(
        "a step whose second input has a default",
        "@step  # HERE\nasync def a(x: str, n: int = 3) -> str: return x\nasync def main(): ...\n",
        ("the second parameter of a step is its context", "'n: int = 3'"),
    ),
    Mistake(
        "a step with two inputs without annotations",
        "@step  # HERE\nasync def a(x, y): return x\nasync def main(): ...\n",
        ("the second parameter of a step is its context", "'y'"),
    ),
    Mistake(
        "a step with three inputs",
        "@step  # HERE\nasync def a(x: str, y: Context, z: str) -> str: return x\nasync def main(): ...\n",
        ("expected (input, ctx), (input) or nothing", "put several values into one input"),
    ),
    Mistake(
        "a step that is not async",
        "@step  # HERE\ndef a(x: str) -> str: return x\nasync def main(): ...\n",
        ("is not async", "async def"),
    ),
    Mistake(
        "a typing error in a keyword of run",
        run_of("same", options=", budgt=Budget(tokens=1)"),
        ("run() takes no keyword 'budgt'", "did you mean 'budget'?"),
    ),
    Mistake(
        "a typing error in a keyword of Harness",
        "async def main(): Harness(modle=ScriptedModel('x'))  # HERE\n",
        ("Harness() takes no keyword 'modle'", "did you mean 'model'?"),
    ),
    Mistake(
        "a typing error in a keyword of call_model",
        "async def main(): call_model(instruction='x')  # HERE\n",
        ("call_model() takes no keyword 'instruction'", "did you mean 'instructions'?"),
    ),
    Mistake(
        "a typing error in a keyword of Budget",
        "async def main(): Budget(token=10)  # HERE\n",
        ("Budget() takes no keyword 'token'", "did you mean 'tokens'?"),
    ),
    Mistake(
        "a typing error in an option of step",
        "async def main():\n    @step(retries=3)  # HERE\n    async def a(x: str) -> str: return x\n",
        ("takes no keyword 'retries'", "did you mean 'retry'?"),
    ),
    Mistake(
        "a typing error in an option of tool",
        "async def main():\n    @tool(descripton='F.')  # HERE\n    async def f(x: int) -> int: return x\n",
        ("a tool takes no keyword 'descripton'", "did you mean 'description'?"),
    ),
    Mistake(
        "a typing error in a keyword of loop",
        "async def main(): loop(same, untl=until.never())  # HERE\n",
        ("loop() takes no keyword 'untl'", "did you mean 'until'?"),
    ),
    Mistake(
        "an unknown setting of a model, known when the step is made",
        "async def main(): call_model(ScriptedModel('x'), settings={'max_tokens': 10})  # HERE\n",
        ("a setting 'max_tokens'", "did you mean 'max_output_tokens'?", "extra="),
    ),
    Mistake(
        "an unknown setting of a step for the model of the harness",
        run_of("call_model(settings={'temprature': 1})", harness="model=ScriptedModel('x')"),
        ("a setting 'temprature'", "did you mean 'temperature'?", "[at call_model"),
    ),
    Mistake(
        "an unknown setting of the harness",
        run_of("call_model()", harness="model=ScriptedModel('x'), model_settings={'top_k': 1}"),
        ("a setting 'top_k'", "did you mean 'top_p'?"),
    ),
    Mistake(
        "settings that are no mapping",
        "async def main(): call_model(settings='hot')  # HERE\n",
        ("settings='hot' is not a valid mapping of settings", 'settings={"temperature": 0.2}'),
    ),
    Mistake(
        "a provider that is misspelt",
        run_of("call_model('opnai:gpt-5-mini')", harness="plugins=[]"),
        ("no plugin provides models 'opnai'", 'did you mean "openai:gpt-5-mini"?', "[at call_model]"),
    ),
    Mistake(
        "a provider that is not installed",
        run_of("call_model('openai:gpt-5-mini')", harness="plugins=[]"),
        ("no plugin provides models 'openai'", "pip install noetic-openai"),
    ),
    Mistake(
        "a model without its provider",
        run_of("call_model('gpt-5-mini')", harness="plugins=[]"),
        ("'gpt-5-mini' is not a model name; expected provider:name", 'call_model("openai:gpt-5-mini")'),
    ),
    Mistake(
        "a file as checkpoints",
        run_of("same", harness='checkpoints="runs.db"'),
        ("checkpoints='runs.db' is not a backend", '"sqlite:runs.db"'),
    ),
    Mistake(
        "a misspelt backend",
        run_of("same", harness='checkpoints="sqlit:runs.db"'),
        ('checkpoints="sqlit:..." is not a backend', 'did you mean "sqlite:..."?'),
    ),
    Mistake(
        "a backend without its colon",
        run_of("same", harness='checkpoints="memory"'),
        ("checkpoints='memory' is not a backend", 'Try: "memory:"'),
    ),
    Mistake(
        "a backend without its path",
        run_of("same", harness='checkpoints="sqlite:"'),
        ('checkpoints="sqlite:..." is not a backend', '"sqlite:runs.db"'),
    ),
    Mistake(
        "a tool without a docstring",
        "@tool  # HERE\nasync def f(x: int) -> int: return x\nasync def main(): ...\n",
        ("tool 'f' has no description", "write a docstring"),
    ),
    Mistake(
        "a tool without a docstring, made of something without a line of its own",
        "import operator\nclass Plain:\n    async def __call__(self, x: int) -> int: return x\n"
        "async def main(): tool(Plain(), name='f')  # HERE\n",
        ("tool 'f' has no description", "write a docstring"),
    ),
    Mistake(
        "a layer that does nothing",
        f"{IDLE}async def main(): Harness(memory=Mem())  # HERE\n",
        ("NoeticWarning: layer 'idle' has neither a hook nor a function",),
    ),
    Mistake(
        "a layer that does nothing, of a step",
        f"{IDLE}async def main(): with_memory(same, memory=Mem())  # HERE\n",
        ("NoeticWarning: layer 'idle' has neither a hook nor a function",),
    ),
    Mistake(
        "a layer that does nothing, of a spawn",
        f"{IDLE}async def main(): spawn(same, memory=Mem())  # HERE\n",
        ("NoeticWarning: layer 'idle' has neither a hook nor a function",),
    ),
    Mistake(
        "no limit of time for a message",
        "line = Channel('line', str)\n"
        + B
        + "    await ctx.send(line, x)\n    return await ctx.recv(line, timeout=None)  # HERE\n"
        + run_of("b"),
        ("NoeticWarning: recv(timeout=None) waits for ever", "timeout=float('inf') says that it is meant"),
    ),
    Mistake(
        "a tool without annotations",
        "@tool\nasync def f(x):\n    'F.'\nasync def main(): f.parameters\n",
        ("parameter 'x' has no type", "write its type"),
    ),
    Mistake(
        "a function that is no tool",
        "async def f(x: int) -> int: return x\nasync def main(): call_model(tools=[f])  # HERE\n",
        ("is not a valid tool; expected a function with @tool", "put @tool on the function"),
    ),
    Mistake(
        "a function that is no step",
        "async def f(x: str) -> str: return x\n" + run_of("f"),
        ("is not a valid step for run; expected a Step", "put @step on the function"),
    ),
    Mistake(
        "the same id twice",
        "@step(id='same')\nasync def other(x: str) -> str: return x\n"
        "@step(id='same')\nasync def third(x: str) -> str: return x\n" + run_of("other >> third"),
        ("two different steps with id 'same'", "rename one: @step(id="),
    ),
    Mistake(
        "something that cannot be stored",
        B + "    return (each for each in x)\n" + run_of("b", harness='checkpoints="memory:"'),
        ("generator cannot be stored", "[at b]", "use an attrs class", "goes into services="),
    ),
    Mistake(
        "a client in the state of a stored run",
        """
import socket

@step
async def connect(x: str, ctx: Context) -> str:
    with socket.socket() as client:
        ctx.state["client"] = client
    return x
"""
        + run_of("connect", harness='checkpoints="memory:"'),
        ("a socket.socket cannot be stored", "[at connect]", "a client goes into services="),
    ),
    Mistake(
        "no model",
        run_of("call_model()"),
        ("neither the step nor the harness has one", "[at call_model]", 'call_model("openai:gpt-5-mini")'),
    ),
    Mistake(
        "a budget of nothing",
        run_of("call_model()", harness="model=ScriptedModel('x')", options=", budget=Budget(tokens=0)"),
        ("budget of 0 tokens reached", "raise tokens= of the budget"),
    ),
    Mistake(
        "a question in a run that is not kept",
        B + "    return await ctx.ask(Ask('n?', str))  # HERE\n" + run_of("b"),
        ("in a run that is not stored", 'Harness(checkpoints="sqlite:runs.db")'),
    ),
    Mistake(
        "steps in tasks of one's own",
        "import asyncio\n" + B + "    async with anyio.create_task_group() as group:\n"
        "        group.start_soon(same, x, ctx)\n    return x\n" + run_of("b"),
        ("was called from a task that the body started", "await ctx.gather(a.bind(x), b.bind(y))"),
    ),
    Mistake(
        "a script that is too short",
        run_of("call_model() >> call_model()", harness="model=ScriptedModel('x')"),
        ("call 2 of a script with 1 turns", "add a turn"),
    ),
    Mistake(
        "a run that is not there",
        "async def main():\n    async with Harness(checkpoints='memory:') as harness:\n"
        "        await harness.resume('nope', same)  # HERE\n",
        ("there is no run 'nope'", "harness.runs.list() shows the runs"),
    ),
    Mistake(
        "a run that is there already",
        "async def main():\n    async with Harness(checkpoints='memory:') as harness:\n"
        "        await harness.run(same, 'x', run_id='r')\n        await harness.run(same, 'y', run_id='r')  # HERE\n",
        ("run 'r' is there already", "resume it, leave out run_id=, or delete the old run"),
    ),
    Mistake(
        "a harness in two threads",
        "async def main():\n    async with Harness() as harness:\n"
        "        def work(): anyio.run(lambda: harness.run(same, 'x'))\n"
        "        await harness.run(same, 'x')\n        await anyio.to_thread.run_sync(work)  # HERE\n",
        (
            "belongs to thread 'MainThread', and was called from thread '",
            "make one harness for each",
        ),
    ),
    Mistake(
        "a harness in a worker thread, where no line of the program is on the stack of the call",
        "async def main():\n    async with Harness() as harness:\n"
        "        def work(): anyio.run(lambda: harness.run(same, 'x'))  # HERE\n"
        "        await anyio.to_thread.run_sync(work)\n",
        ("belongs to thread", "anyio.from_thread.run(harness.run, step, input)"),
    ),
    Mistake(
        "a harness in two event loops",
        "harness = Harness()\nasync def use(): await harness.run(same, 'x')  # HERE\n"
        "def twice():\n    anyio.run(use)\n    anyio.run(use)\n"
        "async def main(): await anyio.to_thread.run_sync(twice)\n",
        ("belongs to another event loop of this thread", "async with Harness() as harness"),
    ),
    Mistake(
        "a harness that opens a store is not entered",
        "async def main():\n    harness = Harness(checkpoints='sqlite:runs.db')\n"
        "    print((await harness.run(same, 'x')).value)  # HERE\n    await harness._backend.close()\n",
        ("NoeticWarning: the harness was not entered", "sqlite store", "use: async with Harness(...) as harness"),
    ),
    Mistake(
        "run_sync where an event loop runs",
        "async def main(): Harness().run_sync(same, 'x')  # HERE\n",
        ("run_sync() would block the event loop", "Try: await harness.run(...)"),
    ),
    Mistake(
        "a run that goes on with other code",
        "@step(id='a')\nasync def one(x: str) -> str: return x\n"
        "@step(id='a')\nasync def two(x: str) -> str: return x + '!'\n"
        "@step(id='b')\nasync def fails(x: str) -> str: raise ValueError\n"
        "async def main():\n    async with Harness(checkpoints='memory:') as harness:\n"
        "        await harness.run(sequence(one, fails), 'x', run_id='r', on_error='result')\n"
        "        await harness.resume('r', sequence(two, fails))  # HERE\n",
        ("the step's code or options have changed since it ran [at sequence/a]", "on_diverge='adopt' or 'pin'"),
    ),
    Mistake(
        "a database where none can be",
        run_of("same", harness="checkpoints='sqlite:/proc/x/y.db'"),
        ("/proc/x/y.db: the folder does not exist", "make the folder, or give another path"),
    ),
    Mistake(
        "a file that is no database",
        "from pathlib import Path\nPath('not.db').write_text('hello' * 100)\n"
        + run_of("same", harness="checkpoints='sqlite:not.db'"),
        ("not.db: the file is not an SQLite database", "give the path of a new file"),
    ),
    Mistake(
        "an answer that is not of the type",
        run_of("call_model(output=int)", harness="model=ScriptedModel('hello', 'hello')"),
        ("the answer is not JSON", "[at call_model]", "raise output_retries=, simplify the output type"),
    ),
    Mistake(
        "a loop without an end",
        "async def main(): loop(same)  # HERE\n",
        ("loop() needs until=", "until=until.no_tool_calls() for an agent"),
    ),
    Mistake(
        "a function that is no step, after one that is",
        "async def f(x: str) -> str: return x\nasync def main(): same >> f  # HERE\n",
        ("f (", "is not a valid step for >>; expected a Step", "put @step on the function"),
    ),
    Mistake(
        "a limit of costs for a model without a price",
        "from noetic_py.models import ModelProfile\nclass Dear(ScriptedModel):\n    profile = ModelProfile()\n"
        + run_of("call_model()", harness="model=Dear('x')", options=", budget=Budget(cost='1')"),
        ("no price is known for model 'test:scripted'", "[at call_model/answer]", "set_price(...)"),
    ),
    Mistake(
        "a tool that the model makes up",
        "@tool\nasync def f(x: int) -> int:\n    'F.'\n    return x\n"
        "flow = loop(call_model(tools=[f]), until=until.no_tool_calls())\n"
        + run_of("flow", harness="model=ScriptedModel(*[FunctionCall(name='g', arguments={})] * 2)"),
        ("there is no tool 'g' [at loop/call_model[1]/tool[0]]", "the tools are f"),
    ),
    Mistake(
        "a blocking call in a step",
        "import time\n@step  # HERE\nasync def b(x: str) -> str:\n    time.sleep(0.05)\n    return x\n" + run_of("b"),
        ("step 'b', b (", "held the event loop for", "[at b]", "await anyio.to_thread.run_sync"),
    ),
    Mistake(
        "a blocking call in a tool",
        "import time\n@tool\nasync def f(x: int) -> int:\n    'F.'\n    time.sleep(0.05)\n    return x\n"
        "flow = loop(call_model(tools=[f]), until=until.no_tool_calls())\n"
        + run_of("flow", harness="model=ScriptedModel(FunctionCall(name='f', arguments={'x': 1}), 'ok')"),
        (
            "tool 'f' held the event loop for",
            "[at loop/call_model[0]/f[0]]",
            "a plain def runs in a thread",
        ),
    ),
    Mistake(
        "paths that write to the state",
        B + "    ctx.state['seen'] = x\n    return x\n" + run_of("parallel(b, b)"),
        ("'seen' by 'b[0]' and 'b[1]'", "are lost", "[at parallel]", 'Try: state="share", a reducer for the field'),
    ),
    Mistake(
        "a bug in a step, below sections and retries",
        "@step(retry=Retry(2, initial=0))\nasync def broken(x: str) -> str:\n    return helper(x)\n"
        "def helper(x): return 1 / 0  # HERE\n"
        + B
        + "    return await ctx.gather(same.bind('a'), broken.bind('b'))\n"
        + run_of("same >> b"),
        ("ZeroDivisionError: division by zero", "in step sequence/b/gather/broken[1]: ", "in helper"),
    ),
]


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a program, and gives what Python would have printed about it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOETIC_TRACEBACK", raising=False)
    path = tmp_path / "program.py"

    async def printed(program: str) -> str:
        path.write_text(HEAD + program, encoding="utf-8")
        namespace: dict[str, Any] = {"__name__": "program"}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            error: BaseException | None = None
            try:
                exec(compile(HEAD + program, str(path), "exec", dont_inherit=True), namespace)  # that is the test
                await namespace["main"]()
            except Exception as raised:  # noqa: BLE001 # all of them are looked at
                error = raised
        lines = [f"{each.filename}:{each.lineno}: {each.category.__name__}: {each.message}\n" for each in told]
        return "".join(lines) + ("" if error is None else "".join(traceback.format_exception(error)))

    return printed


def place(program: str) -> int:
    """The line that has to be named, 0 for none."""
    lines = (HEAD + program).splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith("# HERE")), 0)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
async def test_a_mistake_is_told_with_its_place_and_its_remedy(
    mistake: Mistake,
    printed: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "time.sleep" in mistake.program:
        monkeypatch.setattr(frame, "LIMIT", 0.02)
    text: str = await printed(mistake.program)
    text += "".join(f"{each.getMessage()}\n" for each in caplog.records if each.levelno >= logging.WARNING)
    for part in mistake.says:
        assert part in text
    here = place(mistake.program)
    file = str(tmp_path / "program.py")
    if here:
        assert f"{file}:{here}" in text or f'File "{file}", line {here},' in text
    # Of two event loops within each other both are shown.
    assert len(text.splitlines()) < LONGEST or "anyio.run(" in mistake.program
    assert "never awaited" not in text


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        ("str", "'x'"),
        ("float", "3"),
        ("object", "3"),
        ("Any", "3"),
        ("str | None", "None"),
        ("Literal['a', 3]", "3"),
        ("list[int | str]", "[1, 'a']"),
        ("Mapping[str, int]", "{}"),
        ("Annotated[int, 'x']", "3"),
        ("Movie", "{'title': 'x'}"),
        ("Name", "'ada'"),
        ("Drawn", "3"),
        ("'Unknown'", "3"),
        ("tuple[int, ...]", "(1, 2)"),
        ("type[int]", "int"),
        ("Odd", "3"),
        ("Callable[[], int]", "print"),
    ],
)
async def test_a_failure_says_nothing_about_an_input_that_may_fit(declared: str, value: str, printed: Any) -> None:
    text: str = await printed(
        "from collections.abc import Callable, Mapping\n"
        "from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict\n"
        "class Movie(TypedDict):\n    title: str\nName = NewType('Name', str)\n"
        "class Drawn(Protocol):\n    def draw(self): ...\n"
        "class Meta(type):\n    def __instancecheck__(cls, value): raise ValueError\n"
        "class Odd(metaclass=Meta): ...\n"
        f"@step\nasync def broken(x: {declared}): raise TypeError('no')\n"
        f"async def main():\n    async with Harness() as harness: await harness.run(broken, {value})\n"
    )
    assert "StepFailed: TypeError: no [at broken]" in text
    assert "was given" not in text


async def test_what_a_correct_program_prints(printed: Any) -> None:
    program = B + "    first, second = same(x, ctx), same(x, ctx)\n    same(x, ctx).close()\n"
    program += "    await second\n    return await first\n"
    assert await printed(program + run_of("b")) == ""


async def test_a_failure_names_the_calls_that_were_left_behind(printed: Any) -> None:
    text: str = await printed(B + "    call = same(x, ctx)  # HERE\n    raise ValueError('no')\n" + run_of("b"))
    assert "ValueError: no" in text
    assert re.search(r"same was called and not awaited \(.*program.py:\d+, in b\)", text)


FAILING = B + "    return 1 / 0\n"


async def test_the_frames_of_the_library_are_hidden_and_can_be_shown(
    printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = FAILING + run_of("parallel(b, same)")
    short: str = await printed(program)
    assert "noetic_py/engine" not in short
    assert len(short.splitlines()) < 25
    monkeypatch.setenv("NOETIC_TRACEBACK", "full")
    full: str = await printed(program)
    assert "engine/execute.py" in full
    for line in short.splitlines():
        assert line in full


async def test_exception_groups_and_nested_sections_are_short(printed: Any) -> None:
    program = (
        FAILING
        + B.replace("def b(", "def grouped(")
        + (
            "    async def work(): raise LookupError('gone')\n"
            "    async with anyio.create_task_group() as group:\n        group.start_soon(work)\n    return x\n"
        )
    )
    text: str = await printed(program + run_of("grouped"))
    assert "LookupError: gone" in text
    assert "noetic_py/engine" not in text
    nested: str = await printed(program + run_of("parallel(same, parallel(same, parallel(b, same, id='i'), id='m'))"))
    assert "ZeroDivisionError" in nested
    assert len(nested.splitlines()) < 30


WAYS = {
    "run": "run(b, 'x')",
    "session": "session('ada', 'trip').run(b, 'x')",
    "start": "start(b, 'x').result()",
    "stream": "streamed(b)",
    "next turn": "next_turn(b)",
    "serve": "serve(b)",
    "resume": "resumed(b)",
    "resumed stream": "resumed_stream(b)",
    "spawn": "run(spawn(b), 'x')",
    "nested spawn": "run(spawn(spawn(c.with_options(id='inner'), id='s'), id='t'), 'x')",
    "race": "run(race([b, b.with_options(id='c')]), 'x')",
    "each": "run(each(b), ['x', 'y'])",
    "nested each": "run(each(each(b, id='e')), [['x', 'y'], ['z']])",
    "parallel": "run(same >> parallel(same, b), 'x')",
    "nested parallel": "run(parallel(same, parallel(same, parallel(b, same, id='i'), id='m')), 'x')",
    "a call": "run(c, 'x')",
    "gather": "run(same >> gathers, 'x')",
    "nested gather": "run(gathers_gather, 'x')",
    "retry": "run(b.with_options(retry=Retry(4, initial=0)), 'x')",
    "retry under gather": "run(gathers_retry, 'x')",
    "tool": "run(calls_a_tool, 'x')",
    "tool step": "run(call_tool(f, args=lambda given: {'x': 1}), 'x')",
    "function of a layer": "run(with_memory(remembers, memory=Mem()), 'x')",
    "hook of a layer": "run(with_memory(same, memory=Opens()), 'x')",
    "merge": "run(parallel(same, same, merge=lambda outputs, ctx: helper(outputs)), 'x')",
    "sync tool": "run(call_tool(g, args=lambda given: {'x': 1}), 'x')",
    "condition of a branch": "run(branch(lambda x: 1 / 0, {'a': same}), 'x')",
}
CALLERS = """
def helper(x): return 1 / 0
@step
async def b(x: str) -> str: return helper(x)
@tool
async def f(x: int) -> int:
    "F."
    return helper(x)
@tool
def g(x: int) -> int:
    "G."
    return helper(x)
@step
async def c(x: str, ctx: Context) -> str: return await b(x, ctx)
@step
async def calls_a_tool(x: str, ctx: Context) -> int: return await f(1)
@step
async def gathers(x: str, ctx: Context) -> list[str]: return await ctx.gather(same.bind(x), b.bind(x))
@step
async def gathers_gather(x: str, ctx: Context) -> object: return await ctx.gather(same.bind(x), gathers.bind(x))
@step
async def gathers_retry(x: str, ctx: Context) -> object:
    return await ctx.gather(same.bind(x), b.with_options(retry=Retry(3, initial=0)).bind(x))
class Notes(MemoryLayer[list[str]]):
    @function
    async def put(self, x: str) -> None:
        "Put."
        helper(x)
class Mem(Memory):
    notes: Notes = Notes()
class Broken(MemoryLayer[list[str]]):
    async def init(self) -> None: helper("x")
class Opens(Memory):
    broken: Broken = Broken()
@step
async def remembers(x: str, ctx: Context[Mem]) -> str:
    await ctx.memory.notes.put(x)
    return x
class Ways(Harness):
    async def streamed(self, flow):
        async with self.stream(flow, "x") as stream: return await stream.result()
    async def next_turn(self, flow):
        session = self.session("ada", "trip")
        await session.send("x")
        return await session.next_turn(flow)
    async def serve(self, flow):
        session = self.session("ada", "trip")
        await session.send("x")
        await session.serve(flow)
    async def resumed(self, flow):
        await self.run(flow, "x", run_id="r", on_error="result")
        return await self.resume("r", flow)
    async def resumed_stream(self, flow):
        await self.run(flow, "x", run_id="r", on_error="result")
        async with self.resume_stream("r", flow) as stream: return await stream.result()
async def main():
    async with Ways(plugins=[], checkpoints="memory:") as harness:
        print((await harness.HOW).value)
def begin(backend):
    anyio.run(main, backend=backend)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", WAYS)
def test_a_failing_line_prints_few_lines_however_it_runs(
    how: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOETIC_TRACEBACK", raising=False)
    path = tmp_path / "program.py"
    program = HEAD + CALLERS.replace("HOW", WAYS[how])
    path.write_text(program, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, str(path), "exec", dont_inherit=True), namespace)  # that is the test
    with pytest.raises(NoeticError) as caught:
        namespace["begin"](backend)
    trace = caught.value.__traceback__
    assert trace is not None
    # As Python prints it: without the frame of this test.
    text = "".join(traceback.format_exception(caught.value.with_traceback(trace.tb_next)))
    assert "ZeroDivisionError: division by zero" in text
    assert LIBRARY not in text
    assert len(text.splitlines()) < LONGEST
    assert text.count("Traceback (most recent call last)") <= 2
    line = next(number for number, line in enumerate(program.splitlines(), 1) if "1 / 0" in line)
    if "lambda" not in WAYS[how]:
        assert f'File "{path}", line {line}, in helper' in text


async def test_a_section_that_fails_shows_the_lines_that_led_there_once() -> None:
    def helper(x: str) -> str:
        raise LookupError(x)

    @step
    async def inner(x: str) -> str:
        return helper(x)

    @step
    async def calls(x: str, ctx: Context) -> str:
        return await inner(x, ctx)

    flow = parallel(calls, parallel(calls, calls, id="within"))
    async with Harness(plugins=[]) as harness:
        with pytest.raises(ParallelFailed) as caught:
            await harness.run(flow, "x")
    error = caught.value
    assert isinstance(error.__cause__, LookupError)
    assert [each.name for each in traceback.extract_tb(error.__cause__.__traceback__)] == ["calls", "inner", "helper"]
    (note,) = error.__notes__
    assert re.search(r"  in step parallel/.*calls\[.\]/inner: .*, in .*helper", note)
    assert isinstance(error.first, StepFailed)
    assert error.first.__cause__ is error.__cause__
    for each in error.failed.values():
        assert LIBRARY not in "".join(traceback.format_exception(each))


async def test_a_failure_in_a_task_group_names_the_line_in_its_task() -> None:
    async def work() -> None:
        raise LookupError("gone")

    @step
    async def grouped(x: str) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
        return x

    async with Harness(plugins=[]) as harness:
        with pytest.raises(StepFailed) as caught:
            await harness.run(grouped, "x")
    (note,) = caught.value.__notes__
    assert re.search(r"in .*work$", note)
    text = "".join(traceback.format_exception(caught.value))
    assert not re.search(r"(anyio|trio)/", text)


async def test_a_log_record_leaves_the_causes_of_a_failure_as_they_are() -> None:
    """What is logged inside of a run goes on in it, and a handler there sees the same with and without logging."""

    @step
    async def inner(x: str) -> str:
        raise LookupError(x)

    section = parallel(inner, inner.with_options(id="b"))

    @step
    async def handles(x: str, ctx: Context) -> str:
        try:
            return str(await section(x, ctx))
        except ParallelFailed as error:
            return type(error.__cause__).__name__

    logging.getLogger("noetic_py.steps").setLevel(logging.DEBUG)
    try:
        async with Harness(plugins=[]) as harness:
            assert (await harness.run(handles, "x")).value == "StepFailed"
    finally:
        logging.getLogger("noetic_py.steps").setLevel(logging.NOTSET)


def test_a_run_without_an_event_loop_prints_few_lines() -> None:
    @step
    async def broken(x: str) -> str:
        raise LookupError(x)

    with pytest.raises(StepFailed) as caught:
        Harness(plugins=[]).run_sync(broken, "x")
    text = "".join(traceback.format_exception(caught.value))
    assert LIBRARY not in text
    assert len(text.splitlines()) < LONGEST


@pytest.mark.parametrize("kept", [True, False])
async def test_a_run_that_is_cancelled_says_how_to_go_on(kept: bool, tmp_path: Path) -> None:
    begun = anyio.Event()

    @step
    async def slow(x: str) -> None:
        begun.set()
        await anyio.sleep_forever()

    noted: list[str] = []
    text: list[str] = []

    async def run() -> None:
        try:
            await harness.run(slow, "x", run_id="r")
        except anyio.get_cancelled_exc_class() as error:
            noted.extend(getattr(error, "__notes__", ()))
            assert pickle.loads(pickle.dumps(noted)) == copy.deepcopy(noted) == noted
            text.extend(traceback.format_exception(error))
            raise

    store = f"sqlite:{tmp_path}/runs.db" if kept else "memory:"
    async with Harness(checkpoints=store) as harness, anyio.create_task_group() as group:
        group.start_soon(run)
        await begun.wait()
        group.cancel_scope.cancel()
    assert "noetic_py/engine" not in "".join(text)
    said = (
        "run 'r' was interrupted at slow\n  Try: await harness.resume('r', step)"
        if kept
        else "run 'r' was interrupted at slow, and ends with the process\n"
        '  Try: Harness(checkpoints="sqlite:runs.db") stores runs, so that they can be resumed'
    )
    assert noted == [said]


CTRL_C = """
import signal
import sys
import anyio
from noetic_py import *

@step
async def first(x: str) -> str: return x

@step
async def slow(x: str) -> str:
    if len(sys.argv) == 2:
        if x == "when both have begun":
            await begun.wait()
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()
    return x

begun = anyio.Event()

@step
async def beside(x: str) -> str:
    begun.set()
    await anyio.sleep(0 if len(sys.argv) > 2 else 1000)
    return x

@step
async def late(x: str, ctx: Context) -> str:
    with anyio.move_on_after(0):
        await beside(x, ctx)
    return await slow(x, ctx)

flow = first >> slow

async def go(harness):
    await harness.run(flow, 'x', run_id='r')

async def main():
    async with Harness(checkpoints=STORE) as harness:
        WAY

if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[1])
"""
INTERRUPTED = [
    ("await harness.run(flow, 'x', run_id='r')", "sequence/slow", "harness.resume('r', flow)"),
    (
        "await harness.run(\n            first >> slow,\n            'é', run_id='r')",
        "sequence/slow",
        "harness.resume('r', first >> slow)",
    ),
    (
        "h = harness\n        await h.run(parallel(beside, slow), 'when both have begun', run_id='r')",
        "parallel/beside[0], parallel/slow[1]",
        "h.resume('r', parallel(beside, slow))",
    ),
    ("await harness.run(late, 'x', run_id='r')", "late/slow", "harness.resume('r', late)"),
    ("await harness.start(flow, 'x', run_id='r').result()", "sequence/slow", "harness.resume('r', flow)"),
    (
        "async with harness.stream(flow, 'x', run_id='r') as s:\n            await s.result()",
        "sequence/slow",
        "harness.resume('r', flow)",
    ),
    (
        "async with anyio.create_task_group() as g:\n            g.start_soon(go, harness)",
        "sequence/slow",
        "harness.resume('r', flow)",
    ),
    ("await harness.session('ada', 's').run(flow, 'x', run_id='r')", "sequence/slow", "harness.resume('r', flow)"),
]


@pytest.mark.parametrize(
    ("loop", "way", "where", "command"),
    # In the sample the two event loops take turns.
    [
        (loop, *each)
        for number, each in enumerate(INTERRUPTED)
        for loop in (("asyncio", "trio") if FULL else (("asyncio", "trio")[number % 2],))
    ],
)
def test_ctrl_c_says_last_what_it_has_interrupted_and_how_to_go_on(
    loop: str, way: str, where: str, command: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    store = f"sqlite:{tmp_path}/runs.db"
    program.write_text(CTRL_C.replace("STORE", repr(store)).replace("WAY", way))
    run = [*forked("tests.warm_program", "-W", "error"), str(program), loop]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == f"KeyboardInterrupt\nrun 'r' was interrupted at {where}\n  Try: await {command}\n"
    assert ended.stdout == ""
    assert ended.returncode != 0
    # The line that was told goes on.
    program.write_text(CTRL_C.replace("STORE", repr(store)).replace("WAY", f"h = harness; print(await {command})"))
    again = subprocess.run([*run, "again"], capture_output=True, text=True, timeout=60, check=False)
    assert (again.stderr, again.stdout.split(",")[:2]) == ("", ["RunResult(r", " completed"])


def test_ctrl_c_before_a_run_begins_says_so(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    early = """
class Early(InMemoryBackend):
    async def commit(self, transactions):
        signal.raise_signal(signal.SIGINT)
        await anyio.sleep_forever()
"""
    text = CTRL_C.replace("STORE", "Early()").replace("WAY", "await harness.run(flow, 'x', run_id='r')")
    program.write_text(text.replace("flow =", f"{early}\nflow ="))
    for loop in ("asyncio", "trio"):
        run = [*forked("tests.warm_program", "-W", "error"), str(program), loop]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert ended.stderr == "KeyboardInterrupt\nrun 'r' was interrupted before it began\n  Try: run it again\n"


def test_ctrl_c_leaves_other_tracebacks_and_hooks_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    way = "await harness.run(flow, 'x')"
    text = CTRL_C.replace("STORE", "None").replace("WAY", way)
    run = [*forked("tests.warm_program"), str(program), "asyncio"]
    for more, kept in (
        ("", "ends with the process"),
        ("sys.excepthook = lambda *error: print('its own')", "its own"),
        ("import os; os.environ['NOETIC_TRACEBACK'] = 'full'", "Traceback"),
    ):
        program.write_text(text.replace("flow =", f"{more}\nflow ="))
        ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
        assert kept in ended.stdout + ended.stderr
    # What ends the program is an error of its own.
    broken = f"try: {way}\n        finally: raise LookupError('its own')"
    program.write_text(text.replace(way, broken))
    ended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert "LookupError: its own" in ended.stderr


async def test_an_error_inside_the_library_shows_where(printed: Any) -> None:
    program = B + "    ctx.emit(1, 2)\n    return x\n" + run_of("b")
    text: str = await printed(program)
    assert "program.py" in text
    assert "TypeError" in text


def of_errors(caught: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caught.records if record.levelno >= logging.ERROR]


async def test_a_condition_that_raises_is_heard(printed: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    program = """
from noetic_py.core.events import UntilFailed
def wrong(snapshot): return snapshot.nonsense  # HERE
flow = loop(same, until=until.custom(wrong))
async def main():
    async with Harness({}) as harness, harness.stream(flow, "x") as stream:
        heard = [event async for event in stream.events if isinstance(event, UntilFailed)]
        result = await stream.result()
        assert result.reason.startswith("until raised AttributeError"), result.reason
        assert [(e.path, e.iteration, e.error_type) for e in heard] == [(("loop",), 0, "AttributeError")]
        assert "nonsense" in heard[0].error_message
"""
    for number, harness in enumerate(("", 'checkpoints="memory:"'), 1):
        assert await printed(program.format(harness)) == ""
        records = of_errors(caplog)
        assert len(records) == number
        record: Any = records[-1]
        assert (record.name, record.path, record.attempt) == ("noetic_py.until", "loop", 1)
        assert record.run
        assert f'program.py", line {place(program)}' in logging.Formatter().format(record)


async def test_a_tool_that_raises_is_heard(printed: Any, caplog: pytest.LogCaptureFixture) -> None:
    program = """
@tool
async def f(x: int) -> int:
    "F."
    raise ValueError("token s3cr3t-value")  # HERE
flow = loop(call_model(tools=[f]), until=until.no_tool_calls())
async def main():
    secret = Secret("s3cr3t-value")
    model = ScriptedModel(FunctionCall(name="f", arguments={"x": 1}), "ok")
    async with Harness(model=model) as harness:
        assert (await harness.run(flow, "x")).value == "ok"
"""
    assert await printed(program) == ""
    (record,) = of_errors(caplog)
    text = logging.Formatter().format(record)
    assert record.name == "noetic_py.tools"
    assert "tool 'f' failed: ValueError" in text
    assert f'program.py", line {place(program)}' in text
    assert "s3cr3t-value" not in text
    assert vars(record)["path"] == "loop/call_model[0]/f[0]"


async def test_what_a_tool_asks_of_the_model_is_news_and_no_error(
    printed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "noetic_py.tools")
    program = """
from noetic_py.errors import ModelRetry
@tool
async def f(x: int) -> int:
    "F."
    raise ModelRetry("x is a port")
flow = loop(call_model(tools=[f]), until=until.no_tool_calls())
async def main():
    model = ScriptedModel(FunctionCall(name="f", arguments={"x": 1}), "ok")
    async with Harness(model=model) as harness:
        await harness.run(flow, "x")
"""
    assert await printed(program) == ""
    (record,) = caplog.records
    assert (record.levelno, record.exc_info) == (logging.INFO, None)
    assert record.getMessage() == "x is a port [at loop/call_model[0]/f[0]]"


async def test_nothing_is_made_for_a_log_that_nobody_reads(printed: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "noetic_py")
    program = "flow = loop(same, until=until.custom(lambda snapshot: snapshot.nonsense))\n"
    assert await printed(program + run_of("flow")) == ""
    assert of_errors(caplog) == []


def test_the_errors_are_what_python_would_have_raised() -> None:
    assert issubclass(UnknownKeyword, TypeError)
    assert issubclass(NotAwaited, AttributeError)
    assert issubclass(UnknownKeyword, NoeticError)
    assert issubclass(NoDescriptionWarning, UserWarning)


CHAINED = """
def look_up(x: str) -> str:
    try:
        return {}[x]
    except KeyError as missing:
        raise ValueError("no such entry") from missing  # HERE

@step
async def b(x: str) -> str:
    try:
        return look_up(x)
    except ValueError as error:
        HOW
"""
GATHERS = """
@step
async def gathers(x: str, ctx: Context) -> str:
    return (await ctx.gather(b.bind(x), b.bind(x)))[0]
"""
WRAPS = """
@step
async def wraps(x: str, ctx: Context) -> str:
    try:
        return (await ctx.gather(b.bind(x), same.bind(x)))[0]
    except Exception as error:
        raise LookupError("not in the catalogue") from error
"""


@pytest.mark.parametrize("how", ["raise LookupError('mine') from error", "raise LookupError('mine')"])
@pytest.mark.parametrize(
    ("more", "flow"),
    [
        ("", "b"),
        ("", "parallel(b, same, b.with_options(id='b2'))"),
        ("", "parallel(parallel(b, same, id='inner'), same, id='outer')"),
        ("", "spawn(parallel(b, same))"),
        (GATHERS, "gathers"),
        (WRAPS, "wraps"),
    ],
)
async def test_a_chain_of_the_users_own_exceptions_is_printed_once(
    printed: Any, tmp_path: Path, how: str, more: str, flow: str
) -> None:
    program = CHAINED.replace("HOW", how) + more + run_of(flow)
    text: str = await printed(program)
    # Five exceptions of the user's own in a row are longer, and nothing in them is said twice.
    assert len(text.splitlines()) < (LONGEST if more != WRAPS else 55)
    assert f'File "{tmp_path / "program.py"}", line {place(program)},' in text
    for part in ("KeyError: 'x'", "ValueError: no such entry", "LookupError: mine"):
        assert len(re.findall(rf"^{re.escape(part)}$", text, re.MULTILINE)) == 1
    assert LIBRARY not in text
