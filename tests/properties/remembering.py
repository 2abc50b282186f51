"""Programs with layers, each another one: what they come to may not depend on where they are killed."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from attrs import define, field, frozen

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Item,
    Memory,
    MemoryLayer,
    Message,
    ModelResponse,
    Retry,
    Step,
    call_model,
    call_tool,
    each,
    errors,
    loop,
    parallel,
    sequence,
    settle,
    spawn,
    step,
    tool,
    until,
    with_memory,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.memory import (
    Compaction,
    ContextItem,
    ContextPool,
    ContextQueue,
    Episodic,
    Facts,
    Filesystem,
    Guide,
    HistoryWindow,
    NestedMemory,
    Observational,
    Plan,
    Recall,
    Returned,
    Rule,
    Scope,
    Seed,
    SemanticRecall,
    StaticContent,
    Steering,
    TaskState,
    Temporal,
    ToolMemory,
    WorkingMemory,
    function,
)
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime
from tests.layer_runs import Letters, agent

AnyStep = Step[Any, Any, Any, Any]

START = datetime(2025, 1, 1, 12, tzinfo=UTC)
LIMITS = Budget(steps=500, model_calls=200, tool_calls=100)


# ------------------------------------------------------------------------------------------------------ what is shared


class Everything(MemoryLayer[list[str]]):
    """Notes in its state whatever it is asked, and keeps a value beside it; breaks where it is told to."""

    breaks: frozenset[str] = frozenset()

    def _asked(self, hook: str) -> None:
        self.state.append(hook)
        if hook in self.breaks:
            raise ValueError(f"broken in {hook}")

    @function
    async def note(self, text: str) -> int:
        """Keep a text."""
        self.state.append(text)
        await self.storage.put(text, len(self.state))
        return len(self.state)

    async def init(self) -> None:
        self._asked("init")

    async def on_item_append(self, items: Sequence[Item]) -> Sequence[Item]:
        self._asked("append")
        return items

    async def recall(self, query: str, budget: int) -> str:
        self._asked("recall")
        return f"{self.id} has {len(self.state)}"

    async def project_history(self, items: Sequence[Item]) -> Sequence[Item]:
        self._asked("history")
        return items

    async def after_model_call(self, response: ModelResponse) -> None:
        self._asked("answer")

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        self._asked("call")
        return call

    async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
        self._asked("output")
        return output

    async def store(self, response: ModelResponse) -> None:
        self._asked("store")
        await self.storage.put("stored", len(self.state))

    async def on_spawn(self) -> Seed[list[str]]:
        self._asked("spawn")
        return Seed([*self.state, "born"], [Message.user(f"from {self.id}")])

    async def on_return(self, child: Returned[list[str]]) -> None:
        self._asked("return")
        self.state += [f"child: {text}" for text in child.state[len(child.began) :]]

    async def on_parent_update(self, state: list[str]) -> None:
        self._asked(f"parent {len(state)}")

    async def on_complete(self) -> None:
        self._asked("complete")

    async def dispose(self) -> None:
        self._asked("dispose")


class Scoped(Memory):
    """One for each scope."""

    thread: Everything = Everything(scope=Scope.THREAD)
    user: Everything = Everything(scope=Scope.USER)
    everybody: Everything = Everything(scope=Scope.GLOBAL)
    once: Everything = Everything(scope=Scope.EXECUTION)


def noting(name: str, *layers: str) -> AnyStep:
    """A step that keeps its name and its input in layers, and hands on its input."""

    @step(id=name, version="1")
    async def body(value: Any, ctx: Context[Any, Any]) -> Any:
        for layer in layers:
            await ctx.memory[layer].note(f"{name} of {value}")
        return value

    return body


def doing(name: str, act: Callable[[Any], Any]) -> AnyStep:
    """A step that does something with the bundle, and hands on its input."""

    @step(id=name, version="1")
    async def body(value: Any, ctx: Context[Any, Any]) -> Any:
        await act(ctx.memory)
        return value

    return body


@step(id="left", version="1")
async def left(value: Any, ctx: Context[Any, Any]) -> list[Any]:
    """What the step before gave, and what the budgets leave."""
    rest = ctx.budget
    return [value, rest.steps, rest.model_calls, rest.tool_calls]


@step(id="say", version="1")
async def say(value: Any, ctx: Context[Any, Any]) -> None:
    """Put what the user says into the conversation before a model is asked."""
    ctx.items.append(Message.user(f"and after {len(ctx.items)}?"))


@tool
async def height(port: str) -> str:
    """Look a height up."""
    if port == "nowhere":
        raise ValueError("no such port")
    return f"{port}: 6.9 m"


def asks(name: str, /, **arguments: Any) -> FunctionCall:
    """A model's call."""
    return FunctionCall(name=name, arguments=json.dumps(arguments))


def answers(text: str) -> Any:
    """A model that answers the same each time, or with a list where that is asked for."""

    def turn(request: ModelRequest) -> str:
        return text if request.output is None else json.dumps({"value": [text]})

    return ScriptedModel(*[turn] * 100)


def asking(text: str, id: str) -> AnyStep:
    """A question to a model."""
    return call_model(answers(text), id=id)


@define
class State:
    """A state beside the layers'."""

    seen: list[str] = field(factory=list[str])


@frozen(eq=False)
class Program:
    """A flow, and what its harness has.

    Attributes:
        flow: Makes the flow.
        memory: Makes the layers.
        state: The state it begins with.
        model: Makes the harness's model, which layers ask.
        runtime: Makes the clock of a process.
    """

    flow: Callable[[], AnyStep]
    memory: Callable[[CheckpointBackend], Memory]
    state: Any = None
    model: Callable[[], Any] = lambda: answers("noted")
    runtime: Callable[[], Runtime] = lambda: SYSTEM

    def harness(self, backend: CheckpointBackend) -> Harness[Any]:
        """The harness of a process."""
        return Harness(
            plugins=(), memory=self.memory(backend), model=self.model(), checkpoints=backend, runtime=self.runtime()
        )

    def limited(self) -> AnyStep:
        """The flow, below limits that the run keeps count of, whichever process carries it."""
        return self.flow().with_options(budget=LIMITS)


FOLDERS: dict[int, tempfile.TemporaryDirectory[str]] = {}


def folder_of(backend: CheckpointBackend) -> Path:
    """A folder that belongs to a backend as its values do."""
    if id(backend) not in FOLDERS:
        FOLDERS[id(backend)] = tempfile.TemporaryDirectory()
    return Path(FOLDERS[id(backend)].name)


# Of what was stored, with the ids that were drawn for it.
_DIGEST = re.compile("[0-9a-f]{64}| [0-9a-f]{16}|-[0-9a-f]{32}")


async def stored(backend: CheckpointBackend) -> object:
    """All values that stand in a backend beside its runs, and the files that belong to it."""
    assert isinstance(backend, FaultyBackend)
    inner: Any = backend._inner
    values = [
        [list(scope), _DIGEST.sub("digest", key), _DIGEST.sub("digest", value.value.decode())]
        for scope, kept in sorted(inner._store.values.items())
        for key, value in sorted(kept.items())
    ]
    folder = FOLDERS.pop(id(backend), None)
    if folder is None:
        return values
    with folder:
        return [*values, *_texts(Path(folder.name))]


def _texts(folder: Path) -> list[tuple[str, str]]:
    return sorted((path.name, path.read_text()) for path in folder.rglob("*.*"))


# ---------------------------------------------------------------------------------------------------- layers built in


def by_code() -> Program:
    class Mem(Memory):
        kept: WorkingMemory = WorkingMemory()
        mine: WorkingMemory = WorkingMemory(scope=Scope.EXECUTION)

    @step(id="round", version="1")
    async def body(value: int, ctx: Context[Mem, State]) -> int:
        await ctx.memory.kept.update({f"round {value}": "x" * value, "last": str(value)})
        await ctx.memory.mine.update({"last": None if value == 2 else str(value)})
        ctx.state.seen.append(f"{ctx.memory.mine.snapshot}")
        return value + 1

    first = doing("first", lambda memory: memory.kept.update({"begun": "yes"}))
    return Program(
        lambda: sequence(first, _number, loop(body, until=until.max_rounds(3)), left), lambda _: Mem(), State()
    )


@step(id="number", version="1")
async def _number(value: Any) -> int:
    """Where counting begins."""
    return 1


def by_model() -> Program:
    class Mem(Memory):
        user: NestedMemory = NestedMemory(scope=Scope.USER)

    def flow() -> AnyStep:
        one, two, three = (asks("user__update", patch={"a": {key: key}}) for key in "xyz")
        return sequence(agent(one, [two, three], "done"), left)

    return Program(flow, lambda _: Mem())


def planned() -> Program:
    class Mem(Memory):
        plan: Plan = Plan()

    def flow() -> AnyStep:
        begin = doing("begin", lambda memory: memory.plan.set_plan(["read", "write", "send"]))
        below = doing("below", lambda memory: memory.plan.complete("2"))
        calls = agent(
            asks("plan__complete", id="1"), [asks("plan__add", item="a"), asks("plan__add", item="b")], "done"
        )
        return sequence(begin, calls, spawn(below), left)

    return Program(flow, lambda _: Mem())


def task_in_paths() -> Program:
    class Mem(Memory):
        task: TaskState[Any] = TaskState(children="namespaced")

    def flow() -> AnyStep:
        def path(n: int) -> AnyStep:
            return doing(f"path{n}", lambda memory: memory.task.patch({f"p{n}": n, "all": [n]}))

        paths = [path(n) for n in range(3)]
        begin = doing("begin", lambda memory: memory.task.patch({"all": []}))
        return sequence(begin, parallel(paths, merge=_first), asking("fine", "ask"), left)

    return Program(flow, lambda _: Mem())


def _first(values: Sequence[Any], ctx: Any) -> Any:
    return values[0]


def episodes() -> Program:
    class Mem(Memory):
        past: Episodic = Episodic(clock=VirtualRuntime(start=START))

    note = doing("note", lambda memory: memory.past.note("before", "done"))
    return Program(lambda: sequence(note, asking("one", "one"), spawn(note), left), lambda _: Mem())


def times_and_texts() -> Program:
    async def content(ctx: Any) -> str:
        return f"{len(ctx.items)} items"

    class Mem(Memory):
        time: Temporal = Temporal(clock=VirtualRuntime(start=START))
        rules: StaticContent = StaticContent(content=content, recall_mode="eventual")

    return Program(lambda: sequence(asking("one", "one"), asking("two", "two"), left), lambda _: Mem())


def calls_remembered() -> Program:
    class Mem(Memory):
        calls: ToolMemory = ToolMemory(functions=True)

    def flow() -> AnyStep:
        calls = [asks("height", port="Brest"), asks("height", port="Bergen")]
        direct = call_tool(height, args={"port": "Dover"})
        return sequence(agent(asks("height", port="nowhere"), calls, "done", tools=[height]), direct, left)

    return Program(flow, lambda _: Mem())


def compacted() -> Program:
    page = "The tide rises and falls twice a day, and nobody asks it to. " * 10

    class Mem(Memory):
        short: Compaction = Compaction(
            window=900, above=0.8, down_to=0.4, keep_rounds=1, tiers=("repeats", "outputs", "summary")
        )

    @tool
    async def read(number: int) -> str:
        """Read a page."""
        return f"{number}: {page}"

    def flow() -> AnyStep:
        turns: list[Any] = [asks("read", number=n) for n in range(5)]
        model = ScriptedModel(*[_by_outputs(turns)] * 50)
        return sequence(loop(call_model(model, tools=[read]), until=until.no_tool_calls()), left)

    return Program(flow, lambda _: Mem(), model=lambda: answers("pages about tides"))


def _by_outputs(turns: Sequence[Any]) -> Callable[[ModelRequest], Any]:
    """The turn behind the newest call, which is always shown, and at last an answer."""

    def turn(request: ModelRequest) -> Any:
        calls = [json.loads(item.arguments)["number"] for item in request.items if isinstance(item, FunctionCall)]
        following = max(calls, default=-1) + 1
        return turns[following] if following < len(turns) else "done"

    return turn


def observed() -> Program:
    class Mem(Memory):
        window: HistoryWindow = HistoryWindow(max_items=3)
        seen: Observational = Observational(every=2)

    def flow() -> AnyStep:
        return sequence(loop(sequence(say, asking("well", "ask")), until=until.max_rounds(4)), left)

    return Program(flow, lambda _: Mem())


def facts() -> Program:
    class Mem(Memory):
        facts: Facts = Facts(scope=Scope.USER, extract=True)

    def model() -> Any:
        fact = {"source": 1, "span": "and after", "subject": "user", "attribute": "asked", "value": "a question"}

        def turn(request: ModelRequest) -> str:
            return "noted" if request.output is None else json.dumps({"value": [fact, {**fact, "span": "not there"}]})

        return ScriptedModel(*[turn] * 100)

    def flow() -> AnyStep:
        keep = doing(
            "keep", lambda memory: memory.facts.record_from("a", "in Delft", "Ada", "home", "Delft", "in Delft")
        )
        below = doing(
            "below", lambda memory: memory.facts.record_from("b", "in Bonn", "Bob", "home", "Bonn", "in Bonn")
        )
        spoken = {"subject": "user", "attribute": "said", "span": "after"}
        by_model = agent([asks("facts__record", value=value, **spoken) for value in ("one", "two")], "done")
        drop = doing("drop", lambda memory: memory.facts.forget("Ada"))
        # As for passages: what is a source stands in the conversation before.
        return sequence(keep, say, by_model, spawn(below), drop, left)

    seeds = itertools.count()
    return Program(flow, lambda _: Mem(), model=model, runtime=lambda: VirtualRuntime(seed=next(seeds), start=START))


def passages() -> Program:
    class Mem(Memory):
        past: SemanticRecall = SemanticRecall(embedder=Letters(), scope=Scope.USER, least=-1)

    def flow() -> AnyStep:
        keep = doing("keep", lambda memory: memory.past.remember("The moon makes the tide."))
        search = agent(asks("past__search", query="moon"), "done")
        # The input of a question belongs to it: where that is in flight at a kill, its item gets another id, which what
        # is stored outside of the journal does not know. So it stands in the conversation before.
        return sequence(keep, say, asking("It is at noon.", "ask"), say, search, left)

    # What is found says when it was said; and two processes draw other ids.
    seeds = itertools.count()
    return Program(flow, lambda _: Mem(), runtime=lambda: VirtualRuntime(seed=next(seeds), start=START))


def steered() -> Program:
    def drops(call: Any, ctx: Any) -> str | None:
        return "the users stay" if "nowhere" in call.arguments else None

    class Mem(Memory):
        rules: Steering = Steering(
            rules=(
                Rule(name="never", check=drops),
                Rule(name="polite", question="Is it rude?", at="answer", action="guide"),
            )
        )

    def model() -> Any:
        def turn(request: ModelRequest) -> Any:
            asked = request.items[-1]
            rude = isinstance(asked, Message) and "rough" in asked.text
            return json.dumps({"broken": rude, "reason": "be kind"})

        return ScriptedModel(*[turn] * 50)

    def flow() -> AnyStep:
        def turn(request: ModelRequest) -> Any:
            if any(isinstance(item, Message) and "not taken" in item.text for item in request.items):
                return "kind"
            if any(isinstance(item, FunctionCallOutput) for item in request.items):
                return "rough"
            return [asks("height", port="nowhere"), asks("height", port="Brest")]

        speaker = call_model(ScriptedModel(*[turn] * 50), tools=[height])
        return sequence(loop(speaker, until=until.no_tool_calls()), left)

    return Program(flow, lambda _: Mem(), model=model)


def files() -> Program:
    def memory(backend: CheckpointBackend) -> Memory:
        class Mem(Memory):
            files: Filesystem = Filesystem(root=folder_of(backend))

        return Mem()

    def flow() -> AnyStep:
        write = doing("write", lambda memory: memory.files.write("notes/a.md", "one"))
        calls = agent(asks("files__write", path="b.md", content="two"), asks("files__read", path="b.md"), "done")
        return sequence(write, calls, left)

    return Program(flow, memory)


def entries() -> Program:
    class Mem(Memory):
        window: ContextQueue[str] = ContextQueue(limit=2, scope=Scope.USER)
        shelf: ContextPool[str] = ContextPool(limit=2)

    @tool
    async def shelve(title: str) -> list[ContextItem[str]]:
        """Shelve something."""
        return [ContextItem(f"long {title}", f"about {title}", title), ContextItem(title)]

    @step(id="jot", version="1")
    async def jot(value: Any) -> ContextItem[str]:
        return ContextItem(f"jotted {value}")

    @step(id="clear", version="1")
    async def clear(value: Any, ctx: Context[Mem]) -> str:
        await ctx.memory.shelf.remove("b")
        return ctx.memory.window.render()

    def flow() -> AnyStep:
        a, b, c = (asks("shelve", title=title) for title in "abc")
        calls = agent(a, [b, c], "done", tools=[shelve])
        return sequence(jot, spawn(jot), calls.bind("go"), clear, left)

    return Program(flow, lambda _: Mem())


# ------------------------------------------------------------------------------------------------------ layers of users


def scoped() -> Program:
    names = ("thread", "user", "everybody", "once")

    def flow() -> AnyStep:
        return sequence(noting("one", *names), asking("fine", "ask"), noting("two", *names), left)

    return Program(flow, lambda _: Scoped())


def looped() -> Program:
    def flow() -> AnyStep:
        calls = agent(
            asks("height", port="Brest"),
            [asks("user__note", text="m1"), asks("user__note", text="m2"), asks("height", port="nowhere")],
            "done",
            tools=[height],
        )
        return sequence(calls, noting("end", "user"), left)

    class Mem(Memory):
        user: Everything = Everything(scope=Scope.USER)

    return Program(flow, lambda _: Mem())


def in_paths() -> Program:
    class Mem(Memory):
        thread: Everything = Everything()

    @step(id="bad", version="1")
    async def bad(value: Any, ctx: Context[Mem]) -> Any:
        await ctx.memory.thread.note("bad")
        raise ValueError("no")

    def flow() -> AnyStep:
        paths = [sequence(noting(f"p{n}", "thread"), spawn(noting("deep", "thread")), id=f"s{n}") for n in range(2)]
        settled = settle([noting("good", "thread"), bad], merge=lambda outcomes, ctx: "settled", id="settled")
        every = each(noting("one of", "thread"), id="every").bind(["a", "b"])
        return sequence(parallel(paths, merge=_first), settled, every, left)

    return Program(flow, lambda _: Mem())


def in_children() -> Program:
    class Other(Memory):
        notes: WorkingMemory = WorkingMemory(scope=Scope.USER)

    def flow() -> AnyStep:
        other = doing("other", lambda memory: memory.notes.update({"a": "b"}))
        deep = sequence(noting("deep", "thread"), spawn(noting("deeper", "thread", "user"), id="again"), id="two")
        child = sequence(asking("below", "ask"), spawn(deep, id="inner"), id="child")
        return sequence(
            noting("up", "thread"), spawn(child, id="outer"), spawn(other, memory=Other(), id="apart"),
            with_memory(other, memory=Other(), id="inside"), left,
        )  # fmt: skip

    return Program(flow, lambda _: Scoped())


def beside() -> Program:
    def flow() -> AnyStep:
        work = sequence(noting("work", "thread", "user"), asking("done", "ask"), noting("more", "thread"), id="work")
        more = noting("left", "everybody")

        @step(id="starts", version="1")
        async def starts(value: Any, ctx: Context[Scoped]) -> Any:
            await ctx.memory.thread.note("starts")
            started = ctx.spawn_detached(work, value)
            return (await started.wait()).value

        @step(id="leaves", version="1")
        async def leaves(value: Any, ctx: Context[Scoped]) -> Any:
            ctx.spawn_detached(more, value)
            return value

        return sequence(starts, noting("then", "thread"), leaves)

    return Program(flow, lambda _: Scoped())


HOOKS = frozenset(
    {"append", "recall", "history", "answer", "call", "output", "store", "return", "spawn", "complete", "dispose"}
)


def failing() -> Program:
    class Mem(Memory):
        broken: Everything = Everything(breaks=HOOKS)
        sound: Everything = Everything(scope=Scope.USER)

    def flow() -> AnyStep:
        calls = agent(asks("height", port="Brest"), asks("broken__note", text="m"), "done", tools=[height])
        return sequence(calls, spawn(noting("below", "sound")), noting("end", "broken", "sound"), left)

    return Program(flow, lambda _: Mem())


class Slow(MemoryLayer[list[str]]):
    """Takes too long to recall and to store, after it has changed something."""

    async def recall(self, query: str, budget: int) -> Recall:
        self.state.append("recall")
        await anyio.sleep_forever()
        raise AssertionError("for ever is over")

    async def store(self, response: ModelResponse) -> None:
        self.state.append("store")
        await anyio.sleep_forever()


class Careful(MemoryLayer[list[str]]):
    """Blocks each call because it cannot check it, and does not take the first answer."""

    fail_closed = True

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        self.state.append("checks")
        raise ValueError("who knows")

    async def after_model_call(self, response: ModelResponse) -> Guide | None:
        if isinstance(response.items[0], FunctionCall) or "told" in self.state:
            return None
        self.state.append("told")
        return Guide("say it again")


def left_out() -> Program:
    class Mem(Memory):
        gone: Everything = Everything(breaks=frozenset({"init"}), on_init_error="disable")
        slow: Slow = Slow(timeouts={"recall": 0.001, "store": 0.001})
        careful: Careful = Careful(scope=Scope.GLOBAL)

    return Program(lambda: sequence(agent(asks("height", port="Brest"), "done", tools=[height]), left), lambda _: Mem())


class Asks(MemoryLayer[list[str]]):
    """Runs steps of its own, in a function and in hooks."""

    @function
    async def think(self, about: str) -> str:
        """Think about something."""
        self.state.append(await self.ask(None, about, instructions="Think.", output=str))
        return self.state[-1]

    async def recall(self, query: str, budget: int) -> str:
        return str(await self.call(noting("recalls"), f"recalled {len(self.state)}"))

    async def store(self, response: ModelResponse) -> None:
        self.state.append(await self.call(call_model(), "sum up"))


def asking_layers() -> Program:
    class Mem(Memory):
        one: Asks = Asks()
        two: Asks = Asks(scope=Scope.USER)

    def flow() -> AnyStep:
        think = doing("think", lambda memory: memory.one.think("tides"))
        return sequence(think, agent(asks("two__think", about="moons"), "done"), left)

    def model() -> Any:
        def turn(request: ModelRequest) -> str:
            return "noted" if request.output is None else json.dumps({"value": "noted"})

        return ScriptedModel(*[turn] * 100)

    return Program(flow, lambda _: Mem(), model=model)


def retried() -> Program:
    @step(id="again", version="1", retry=Retry(3, initial=0))
    async def again(value: Any, ctx: Context[Scoped]) -> Any:
        await ctx.memory.thread.note("tried")
        await noting("below", "user")(value, ctx)
        frame: Any = ctx
        if frame.attempt < 2:
            raise ValueError("once more")
        return value

    @step(id="careful", version="1")
    async def careful(value: Any, ctx: Context[Scoped]) -> Any:
        await ctx.memory.once.note("before")
        try:
            await failing_step(value, ctx)
        except errors.StepFailed:
            await ctx.memory.once.note("behind")
        return value

    @step(id="fails", version="1")
    async def failing_step(value: Any, ctx: Context[Scoped]) -> Any:
        await ctx.memory.once.note("never")
        raise ValueError("no")

    return Program(lambda: sequence(again, careful, asking("fine", "ask"), left), lambda _: Scoped())


PROGRAMS: tuple[Callable[[], Program], ...] = (
    by_code, by_model, planned, task_in_paths, episodes, times_and_texts, calls_remembered, compacted, observed,
    facts, passages, steered, files, entries, scoped, looped, in_paths, in_children, beside, failing, left_out,
    asking_layers, retried,
)  # fmt: skip
