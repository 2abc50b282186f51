"""Hooks: when they are called, in which order, what they may give, and what becomes of what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from attrs import define, evolve, field

from noetic_py import (
    Budget,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Handoff,
    Harness,
    HookContext,
    Memory,
    MemoryLayer,
    Message,
    ModelRequest,
    ModelResponse,
    Secret,
    StateBag,
    Step,
    call_model,
    call_tool,
    loop,
    parallel,
    race,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.context import hooks
from noetic_py.context.hooks import Hook
from noetic_py.errors import (
    ConfigError,
    HookFailed,
    ModelError,
    ModelParseError,
    ModelUnavailable,
    NoeticError,
    PluginError,
    StepFailed,
)
from noetic_py.memory import Compaction, function
from noetic_py.plugins import HookRegistry, hookimpl
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


def calls(*names: str, **arguments: Any) -> list[FunctionCall]:
    return [FunctionCall(name=name, arguments=arguments) for name in names]


async def run(flow: Step[Any, Any, Any, Any], value: Any, *turns: Any, state: Any = None, **options: Any) -> Any:
    """Run a flow in a harness with these options, and a model that says these turns."""
    async with Harness(model=ScriptedModel(*turns), **options) as harness:
        return await harness.run(flow, value, state=StateBag() if state is None else state)


def agent(*tools: Any, **options: Any) -> Step[Any, Any, Any, Any]:
    return loop(call_model(tools=tools, **options), until=until.no_tool_calls())


@tool
async def price(item: str) -> int:
    """Look a price up."""
    return len(item)


# ------------------------------------------------------------------------------------------------------------ defining


async def test_a_hook_is_its_function_with_an_event_a_name_and_tags() -> None:
    @hooks.after_model(name="audit", tags=["billed"])
    async def remember(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        seen.append(response)

    seen: list[ModelResponse] = []
    assert isinstance(remember, Hook)
    assert (remember.event, remember.name) == ("after_model", "audit")
    assert remember.tags == {"billed"}
    await remember(HookContext(Context()), ModelResponse([]))
    assert len(seen) == 1
    assert hooks.before_model(_seen).name == f"{__name__}:_seen"
    assert hooks.after_model(tags="one")(partial(_seen)).name == f"{__name__}:_seen"
    assert hooks.after_model(hooks.before_model(_seen)).event == "after_model"


async def _seen(ctx: HookContext[Any, Any], subject: Any) -> None:
    ctx.state.setdefault("seen", []).append(type(subject).__name__)


def _log_here() -> Hook[Any, Any]:
    @hooks.after_model
    async def log(ctx: HookContext[Any, Any], response: ModelResponse) -> None: ...

    return log


def _log_there() -> Hook[Any, Any]:
    @hooks.after_model
    async def log(ctx: HookContext[Any, Any], response: ModelResponse) -> None: ...

    return log


def test_two_functions_of_one_name_in_different_places_do_not_clash_and_two_of_one_name_are_refused() -> None:
    assert len(call_model(hooks=[_log_here(), _log_there()]).hooks) == 2
    both = [hooks.before_model(_seen), hooks.after_model(_seen)]
    assert len(call_model(hooks=both).hooks) == 2
    again = _log_here()
    assert call_model(hooks=[again, again]).hooks == (again,)
    places: list[tuple[str, Callable[..., object]]] = [
        ("the step", call_model),
        ("the harness", Harness),
        ("the tool", price.with_options),
        ("the step", call_model().with_options),
        ("the step", _made_with),
    ]
    for where, make in places:
        with pytest.raises(
            ConfigError, match=f"{where} has two after_model hooks named '.*_log_here.<locals>.log'"
        ) as e:
            make(hooks=[_log_here(), _log_here()])
        assert e.value.code == "hook"
        with pytest.raises(ConfigError, match=f"in hooks= of {where} is not a valid hook"):
            make(hooks=[_seen])
        with pytest.raises(ConfigError, match=f"of {where} is not valid; expected a list"):
            make(hooks=7)


async def _body(value: object) -> object:
    return value


def _made_with(hooks: Any) -> object:
    return step(hooks=hooks)(_body)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: hooks.after_model(lambda ctx, response: None), "expected an async function"),  # type: ignore[arg-type, return-value] # refused
        (lambda: hooks.after_tool(_seen), "do not fit a hook"),  # type: ignore[arg-type] # refused
        (lambda: hooks.after_model(name="")(_seen), "name=''"),
        (lambda: hooks.after_model(name="a\nb")(_seen), "name="),
        (lambda: hooks.after_model(tags=[7])(_seen), "not texts"),  # type: ignore[list-item] # refused
        (lambda: hooks.after_model(tags=7)(_seen), "not texts"),  # type: ignore[call-overload] # refused
    ],
)
def test_what_can_be_no_hook_is_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        make()
    assert refused.value.code == "hook"


# ----------------------------------------------------------------------------------------------------------- the order


async def test_plugins_come_first_then_the_harness_then_steps_from_outside_in_then_the_tool() -> None:
    order: list[str] = []

    def told(name: str) -> Hook[Any, Any]:
        @hooks.after_tool(name=name)
        async def tell(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> str:
            order.append(name)
            return f"{output.text}>{name}"

        return tell

    class Plugin:
        @hookimpl
        def register_hooks(self, registry: HookRegistry) -> None:
            registry.hook(told("plugin"))

    twice = told("twice")
    inner = call_model(tools=[price.with_options(hooks=[told("tool"), twice])], hooks=[told("inner")])
    flow = loop(inner, until=until.no_tool_calls()).with_options(hooks=[told("outer"), twice])
    result = await run(flow, "lamp?", calls("price", item="lamp"), "4", plugins=[Plugin()], hooks=[told("harness")])
    assert order == ["plugin", "harness", "outer", "twice", "inner", "tool"]
    (output,) = [item for item in result.items if isinstance(item, FunctionCallOutput)]
    assert output.text == "4>plugin>harness>outer>twice>inner>tool"


async def test_two_plugins_with_a_hook_of_one_name_are_refused_and_so_is_what_is_no_hook() -> None:
    class Plugin:
        @hookimpl
        def register_hooks(self, registry: HookRegistry) -> None:
            registry.hook(hooks.after_model(_seen))

    class Wrong:
        @hookimpl
        def register_hooks(self, registry: HookRegistry) -> None:
            registry.hook(_seen)  # type: ignore[arg-type] # refused

    with pytest.raises(PluginError, match="plugins 'Plugin' and 'Plugin#2' both have an after_model hook"):
        Harness(plugins=[Plugin(), Plugin()])
    with pytest.raises(PluginError, match=r"plugin 'Wrong' is not a valid hook"):
        Harness(plugins=[Wrong()])


class Told(MemoryLayer[None]):
    """A layer that tells when its hooks are called."""

    order: list[str] | None = None

    def tell(self, what: str) -> None:
        if self.order is not None:
            self.order.append(what)

    async def after_model_call(self, response: ModelResponse) -> None:
        self.tell(f"layer after_model_call: {response.items[-1].type}")

    async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
        self.tell(f"layer before_tool_call: {call.arguments}")
        return call

    async def after_tool_call(self, call: FunctionCall, output: FunctionCallOutput) -> FunctionCallOutput:
        self.tell(f"layer after_tool_call: {output.text}")
        return evolve(output, output="layer")

    async def on_item_append(self, items: Sequence[Any]) -> Sequence[Any]:
        for item in items:
            self.tell(f"layer on_item_append: {item.text}")
        return items

    async def recall(self, query: str, budget: int) -> str:
        return "recalled"


class Telling(Memory):
    told: Told = Told()


async def test_hooks_stand_next_to_the_model_and_layers_behind_them() -> None:
    order: list[str] = []

    @hooks.before_model
    async def before_model(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
        order.append(f"hook before_model: {'recalled' in str(request.items)}")

    @hooks.after_model
    async def after_model(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        order.append(f"hook after_model: {response.items[-1].type}")

    @hooks.before_tool
    async def before_tool(ctx: HookContext[Any, Any], call: FunctionCall) -> FunctionCall:
        order.append(f"hook before_tool: {call.arguments}")
        return evolve(call, arguments='{"item":"chair"}')

    @hooks.after_tool
    async def after_tool(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> str:
        order.append(f"hook after_tool: {output.text}")
        return "hook"

    here = [before_model, after_model, before_tool, after_tool]
    memory = Telling(told=Told(order=order))
    result = await run(agent(price, hooks=here), "lamp?", calls("price", item="lamp"), "4", memory=memory)
    assert order == [
        "layer on_item_append: lamp?",
        "hook before_model: True",
        "hook after_model: function_call",
        "layer after_model_call: function_call",
        'hook before_tool: {"item":"lamp"}',
        'layer before_tool_call: {"item":"chair"}',
        "layer after_tool_call: 5",
        "hook after_tool: layer",
        "layer on_item_append: hook",
        "hook before_model: True",
        "hook after_model: message",
        "layer after_model_call: message",
    ]
    assert [item.text for item in result.items if isinstance(item, FunctionCallOutput)] == ["hook"]


async def test_hooks_with_tags_are_called_for_what_shares_one_of_them() -> None:
    told: list[str] = []

    @hooks.before_step(tags=["slow"])
    async def of_steps(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
        told.append(call.id)

    @hooks.before_tool(tags=["dear"])
    async def of_tools(ctx: HookContext[Any, Any], call: FunctionCall) -> None:
        told.append(call.name)

    @hooks.before_model(tags=["slow"])
    async def of_models(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
        told.append("model")

    @hooks.after_round(tags=["watched"])
    async def of_rounds(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
        told.append(f"{done.loop} {done.index} {done.output}")

    @tool(tags=["dear"])
    async def buy() -> str:
        """Buy."""
        return "bought"

    @step(tags=("slow", "other"))
    async def wait(value: str) -> str:
        return value

    slow = call_model(tools=[buy, price], id="slow").with_options(tags="slow")
    flow = (
        wait
        >> loop(slow, until=until.no_tool_calls(), id="all").with_options(tags=["watched"])
        >> loop(call_model(id="fast"), until=until.no_tool_calls())
    )
    turns = [[*calls("buy"), *calls("price", item="a")], "done", "over"]
    await run(flow, "go", *turns, hooks=[of_steps, of_tools, of_models, of_rounds])
    assert told == ["wait", "slow", "model", "buy", "all 0 None", "slow", "model", "all 1 done"]


async def test_hooks_of_an_outer_step_hold_in_spawns_parallel_paths_and_tools() -> None:
    told: list[tuple[str, str]] = []

    @hooks.before_step
    async def tell(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
        told.append((call.id, call.kind))

    @step
    async def one(value: object) -> object:
        return value

    flow = (one >> parallel(one.with_options(id="left"), spawn(one.with_options(id="deep"))) >> _first).with_options(
        hooks=[tell]
    )
    await run(flow >> one.with_options(id="outside") >> call_tool(price, args={"item": "x"}), "go")
    assert sorted(told) == [("deep", "code"), ("left", "code"), ("one", "code"), ("take", "code")]


@step(id="take")
async def _first(value: Any) -> Any:
    return value[0]


# -------------------------------------------------------------------------------------------------------------- models


async def test_before_model_changes_what_is_asked_and_the_budget_is_of_what_is_sent() -> None:
    @hooks.before_model
    async def shorten(ctx: HookContext[Any, Any], request: ModelRequest) -> ModelRequest:
        return evolve(request, items=[Message.user("short")], instructions="Be kind.")

    model = ScriptedModel("yes", usage=None)
    long = "word " * 500
    for memory in (Memory(), Telling(told=Told(order=[]))):
        model = ScriptedModel("yes")
        async with Harness(model=model, hooks=[shorten], memory=memory) as harness:
            result = await harness.run(call_model(), long, budget=Budget(tokens=200))
        assert result.value == "yes"
        (request,) = model.requests
        assert [item.text for item in request.items if isinstance(item, Message)] == ["short"]
        assert request.instructions == "Be kind."
        # The conversation has what was said.
        assert isinstance(result.items[0], Message)
        assert result.items[0].text == long


async def test_before_model_may_answer_instead_and_those_behind_it_are_not_asked() -> None:
    told: list[str] = []

    @hooks.before_model
    async def cached(ctx: HookContext[Any, Any], request: ModelRequest) -> ModelResponse:
        return ModelResponse([Message.assistant("from the cache")])

    @hooks.before_model
    async def behind(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
        told.append("before")

    @hooks.after_model
    async def after(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        told.append("after")

    result = await run(call_model(hooks=[cached, behind, after]), "hi")
    assert (result.value, result.model_calls, result.cost, told) == ("from the cache", 0, 0, ["after"])


async def test_after_model_changes_what_the_conversation_gets() -> None:
    @hooks.after_model
    async def polite(ctx: HookContext[Any, Any], response: ModelResponse) -> ModelResponse:
        return evolve(response, items=[Message.assistant("please")])

    result = await run(call_model(hooks=[polite]), "hi", "give me")
    assert result.value == "please"
    assert [item.text for item in result.items if isinstance(item, Message)] == ["hi", "please"]


async def test_on_model_error_answers_or_lets_the_error_go_on() -> None:
    told: list[str] = []

    @hooks.on_model_error
    async def watch(ctx: HookContext[Any, Any], error: ModelError) -> None:
        told.append(type(error).__name__)

    @hooks.on_model_error
    async def sorry(ctx: HookContext[Any, Any], error: ModelError) -> ModelResponse:
        return ModelResponse([Message.assistant("later")])

    @hooks.on_model_error
    async def again(ctx: HookContext[Any, Any], error: ModelError) -> None:
        raise error

    @hooks.on_model_error
    async def broken(ctx: HookContext[Any, Any], error: ModelError) -> None:
        raise ValueError("no")

    down = ModelUnavailable("down", model="m")
    assert (await run(call_model(hooks=[watch, sorry]), "hi", down)).value == "later"
    for here in ([watch], [again]):
        with pytest.raises(ModelUnavailable, match="down"):
            await run(call_model(hooks=here), "hi", ModelUnavailable("down", model="m"))
    with pytest.raises(HookFailed, match="raised ValueError: no"):
        await run(call_model(hooks=[broken]), "hi", ModelUnavailable("down", model="m"))
    assert told == ["ModelUnavailable"] * 2


async def test_a_hook_answers_before_a_layer_is_asked() -> None:
    class Mending(MemoryLayer[None]):
        async def on_model_error(self, error: ModelError) -> ModelResponse:
            return ModelResponse([Message.assistant("layer")])

    class Mem(Memory):
        mending: Mending = Mending()

    @hooks.on_model_error
    async def sorry(ctx: HookContext[Any, Any], error: ModelError) -> ModelResponse:
        return ModelResponse([Message.assistant("hook")])

    down = ModelUnavailable("down", model="m")
    assert (await run(call_model(), "hi", down, memory=Mem())).value == "layer"
    assert (await run(call_model(hooks=[sorry]), "hi", down, memory=Mem())).value == "hook"


@pytest.mark.parametrize(
    ("event", "given"),
    [
        (hooks.after_tool, 7),
        (hooks.after_tool, FunctionCallOutput(call_id="other", output="x")),
        (hooks.before_model, "text"),
        (hooks.before_model, ModelRequest([FunctionCallOutput(call_id="c", output="x")])),
        (hooks.after_model, "text"),
        (hooks.on_model_error, "text"),
        (hooks.before_tool, 7),
        (hooks.before_tool, FunctionCall(name="price", arguments={"item": "x"})),
        (hooks.before_tool, FunctionCallOutput(call_id="other", output="x")),
        (hooks.before_step, "text"),
        (hooks.after_round, "text"),
    ],
)
async def test_what_a_hook_may_not_give_fails_by_name(event: hooks.HookKind[..., Any], given: object) -> None:
    async def wrong(ctx: HookContext[Any, Any], *subject: object) -> object:
        return given

    turns: list[Any] = [calls("price", item="a"), "done"]
    if event is hooks.on_model_error:
        turns = [ModelUnavailable("down", model="m")]
    with pytest.raises(HookFailed, match=f"the {event.event} hook '.*wrong' returned") as failed:
        await run(agent(price), "hi", *turns, hooks=[event(wrong)])
    assert (failed.value.event, failed.value.hook) == (event.event, f"{wrong.__module__}:{wrong.__qualname__}")


# --------------------------------------------------------------------------------------------------------------- tools


async def test_before_tool_changes_arguments_gives_an_output_or_blocks() -> None:
    made: list[str] = []

    @tool
    async def buy(item: str) -> str:
        """Buy."""
        made.append(item)
        return f"bought {item}"

    @hooks.before_tool
    async def rules(ctx: HookContext[Any, Any], call: FunctionCall) -> Any:
        match call.arguments:
            case '{"item":"poison"}':
                return hooks.Block("not that")
            case '{"item":"air"}':
                return "free"
            case '{"item":"water"}':
                return FunctionCallOutput(call_id=call.call_id, output="from the tap")
            case '{"item":"apple"}':
                return evolve(call, arguments='{"item":"pear"}')
            case '{"item":"stone"}':
                return evolve(call, arguments='{"item":7}')
            case _:
                return None

    wanted = ["poison", "air", "water", "apple", "stone", "bread"]
    asked = [call for item in wanted for call in calls("buy", item=item)]
    result = await run(agent(buy.with_options(hooks=[rules])), "go", asked, "done")
    outputs = [item.text for item in result.items if isinstance(item, FunctionCallOutput)]
    assert outputs[:4] == ["not that", "free", "from the tap", "bought pear"]
    assert "item" in outputs[4]
    assert outputs[5] == "bought bread"
    assert sorted(made) == ["bread", "pear"]
    # What the model has sent stays as it was.
    assert [item.arguments for item in result.items if isinstance(item, FunctionCall)][3] == '{"item":"apple"}'


async def test_what_a_hook_raises_in_a_call_fails_the_step_and_is_no_output() -> None:
    @hooks.after_tool
    async def broken(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        raise LookupError("gone")

    with pytest.raises(HookFailed, match=r"after_tool hook .* raised LookupError: gone") as failed:
        await run(agent(price.with_options(hooks=[broken])), "go", calls("price", item="a"), "done")
    assert failed.value.path == ("loop", "call_model[0]", "price[0]")
    assert isinstance(failed.value.__cause__, LookupError)


async def test_hooks_hear_of_a_tool_that_there_is_not() -> None:
    told: list[str] = []

    @hooks.after_tool
    async def tell(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        told.append(f"{call.name}: {output.text}")

    await run(agent(price), "go", calls("nothing"), "done", hooks=[tell])
    assert told == ["nothing: there is no tool 'nothing'\nthe tools are price"]


# --------------------------------------------------------------------------------------------------- steps and rounds


@define
class Count:
    seen: list[str] = field(factory=list[str])
    total: int = 0


async def test_step_hooks_see_input_output_and_attempt_and_their_state_goes_with_a_failed_attempt() -> None:
    told: list[object] = []

    @hooks.before_step
    async def before(ctx: HookContext[Memory, Count], call: hooks.StepCall) -> None:
        ctx.state.seen.append(f"{call.id} {call.attempt}")
        ctx.effects.state["total"] = ctx.state.total + 1
        told.append((call.input, call.attempt))

    @hooks.after_step
    async def after(ctx: HookContext[Memory, Count], call: hooks.StepCall, output: object) -> None:
        told.append(output)

    @step(retry=2, hooks=[before, after])
    async def shaky(value: str, ctx: Context[Memory, Count]) -> str:
        told.append(ctx.state.total)
        if len(told) == 2:
            raise OSError("no")
        return value.upper()

    result = await run(shaky, "go", state=Count())
    assert told == [("go", 1), 1, ("go", 2), 1, "GO"]
    assert result.state == Count(["shaky 2"], 1)


async def test_a_hook_that_raises_leaves_nothing_and_says_where() -> None:
    @hooks.before_step
    async def broken(ctx: HookContext[Memory, Count], call: hooks.StepCall) -> None:
        ctx.state.seen.append("x")
        ctx.effects.state["total"] = 7
        raise ZeroDivisionError("oops")

    @step(hooks=[broken])
    async def body(value: str) -> str:
        return value

    async with Harness() as harness:
        result = await harness.run(body, "go", state=Count(), on_error="result")
    assert result.state == Count()
    assert isinstance(result.error, HookFailed)
    assert result.error.path == ("body",)
    assert result.error.hook.endswith("<locals>.broken")


async def test_a_hook_is_stopped_with_its_step() -> None:
    @hooks.before_step
    async def sleepy(ctx: HookContext[Memory, Count], call: hooks.StepCall) -> None:
        ctx.state.total = 9
        await anyio.sleep_forever()

    async with Harness() as harness:
        result = await harness.run(step(hooks=[sleepy], timeout=0.01)(_body), "go", state=Count(), on_error="result")
    assert type(result.error).__name__ == "StepTimeout"
    assert result.state == Count()


async def test_a_failed_step_calls_its_own_hooks_for_each_attempt_and_after_step_for_the_one_that_is_done() -> None:
    told: list[object] = []

    @hooks.after_step
    async def after(ctx: HookContext[Memory, Count], call: hooks.StepCall, output: object) -> None:
        told.append((call.attempt, output))

    @hooks.on_step_error
    async def failed(ctx: HookContext[Memory, Count], call: hooks.StepCall, error: NoeticError) -> None:
        ctx.state.total = 99
        told.append((call.id, call.input, call.attempt, type(error), error.path, type(error.__cause__)))

    @step(retry=3, hooks=[after, failed])
    async def shaky(value: list[str]) -> str:
        value.append("seen")
        if len(told) < succeeds_after:
            raise OSError("no")
        return "done"

    attempts = [("shaky", ["go"], attempt, StepFailed, ("shaky",), OSError) for attempt in (1, 2, 3)]
    succeeds_after = 1
    result = await run(shaky, ["go"], state=Count())
    assert told == [attempts[0], (2, "done")]
    assert result.state == Count()
    told.clear()
    succeeds_after = 9
    async with Harness() as harness:
        ended = await harness.run(shaky, ["go"], state=Count(), on_error="result")
    assert told == attempts
    assert isinstance(ended.error, StepFailed)
    assert ended.state == Count()


@pytest.mark.parametrize("fails", ["body", "time", "before", "after", "model", "output"])
async def test_every_way_to_fail_calls_the_hook_once(fails: str) -> None:
    told: list[str] = []

    @hooks.on_step_error
    async def failed(ctx: HookContext[Any, Any], call: hooks.StepCall, error: NoeticError) -> None:
        # A time limit of the step does not cut off the hook that is told of it.
        await anyio.lowlevel.checkpoint()
        told.append(f"{call.kind} {type(error).__name__}")

    @hooks.before_step
    async def before(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
        if fails == "before":
            raise ValueError

    @hooks.after_step
    async def after(ctx: HookContext[Any, Any], call: hooks.StepCall, output: object) -> None:
        if fails == "after":
            raise ValueError

    @step(timeout=0.05 if fails == "time" else 60.0)
    async def work(value: str) -> Any:
        if fails == "time":
            await anyio.sleep_forever()
        if fails == "output":
            return anyio.sleep(1)
        raise ValueError

    flow: Step[Any, Any, Any, Any] = call_model() if fails == "model" else _fine if fails == "after" else work
    async with Harness(
        model=ScriptedModel(ModelUnavailable("down", model="m")), hooks=[failed, before, after]
    ) as harness:
        result = await harness.run(flow, "go", on_error="result")
    kind = "model ModelUnavailable" if fails == "model" else None
    expected = {"time": "code StepTimeout", "before": "code HookFailed", "after": "code HookFailed", "model": kind}
    assert told == [expected.get(fails, f"code {type(result.error).__name__}")]


@pytest.mark.parametrize("ends", ["scope", "abort", "race"])
async def test_a_cancelled_step_has_not_failed(ends: str) -> None:
    told: list[str] = []
    began = anyio.Event()

    @hooks.on_step_error
    async def failed(ctx: HookContext[Any, Any], call: hooks.StepCall, error: NoeticError) -> None:
        told.append(call.id)

    @step
    async def work(value: str, ctx: Context) -> str:
        began.set()
        if ends == "abort":
            ctx.abort("enough")
        if ends == "scope":
            scope.cancel()
        await anyio.sleep_forever()
        return value

    @step
    async def wins(value: str) -> str:
        await began.wait()
        return value

    flow: Step[Any, Any, Any, Any] = race([work, wins]) if ends == "race" else work
    async with Harness(hooks=[failed]) as harness:
        with anyio.CancelScope() as scope:
            await harness.run(flow, "go", on_error="result")
    assert began.is_set()
    assert told == []


async def test_a_hook_of_a_failed_step_that_raises_is_the_failure() -> None:
    @hooks.on_step_error(name="audit")
    async def broken(ctx: HookContext[Any, Any], call: hooks.StepCall, error: NoeticError) -> None:
        raise ZeroDivisionError("oops")

    @step(hooks=[broken])
    async def work(value: str) -> str:
        raise OSError("no")

    async with Harness() as harness:
        result = await harness.run(work, "go", on_error="result")
    assert isinstance(result.error, HookFailed)
    assert (result.error.hook, result.error.event, result.error.path) == ("audit", "on_step_error", ("work",))
    # Why the step had failed stays readable.
    assert result.error.__cause__ is not None
    assert isinstance(result.error.__cause__.__context__, OSError)


@pytest.mark.parametrize("effect", ["state", "stop_loop", "finish", "compact", "hand_off"])
async def test_a_hook_of_a_failed_step_can_only_save(effect: str) -> None:
    @hooks.on_step_error
    async def asks(ctx: HookContext[Any, Any], call: hooks.StepCall, error: NoeticError) -> None:
        match effect:
            case "state":
                ctx.effects.state["a"] = 1
            case "stop_loop":
                ctx.effects.stop_loop()
            case "compact":
                ctx.effects.compact("short")
            case "hand_off":
                ctx.effects.hand_off(_fine, "go")
            case _:
                ctx.effects.finish()

    @step(hooks=[asks])
    async def work(value: str) -> str:
        raise OSError("no")

    async with Harness() as harness:
        result = await harness.run(loop(work, until=until.max_rounds(1)), "go", on_error="result")
    assert isinstance(result.error, ConfigError)
    assert result.error.code == "hook-effect"


@step
async def _fine(value: str) -> str:
    return value


async def test_a_hook_of_rounds_sees_each_and_may_end_the_loop() -> None:
    seen: list[tuple[int, object]] = []

    @hooks.after_round
    async def enough(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
        seen.append((done.index, done.output))
        ctx.state["rounds"] = done.index + 1
        if done.index == 2:
            ctx.effects.stop_loop("enough")

    @step
    async def double(value: int) -> int:
        return value * 2

    flow = loop(double, until=until.max_rounds(9)).with_options(hooks=[enough])
    result = await run(flow, 1)
    assert (result.value, seen, result.state["rounds"]) == ("enough", [(0, 2), (1, 4), (2, 8)], 3)


async def test_a_hook_that_fails_a_round_is_for_the_loop_to_handle() -> None:
    @hooks.after_round
    async def broken(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
        if done.index == 0:
            raise ValueError("bad round")

    told: list[str] = []

    def skip(error: Exception, ctx: object) -> Any:
        told.append(str(error))
        return "retry"

    @step
    async def work(value: int) -> int:
        return value

    flow = loop(work, until=until.max_rounds(1), on_error=skip).with_options(hooks=[broken])
    assert (await run(flow, 1)).value == 1
    assert "bad round" in told[0]


# ------------------------------------------------------------------------------------------------------------- effects


async def test_state_is_merged_and_never_replaced() -> None:
    @hooks.after_step
    async def first(ctx: HookContext[Memory, StateBag], call: hooks.StepCall, output: object) -> None:
        ctx.state = {"a": 1}
        ctx.effects.state = {"b": 2}
        ctx.effects.state["c"] = 3
        assert "b" not in ctx.state

    @hooks.after_step
    async def second(ctx: HookContext[Memory, StateBag], call: hooks.StepCall, output: object) -> None:
        # Of its own, and what the one before has asked for is done.
        assert ctx.effects.state == {}
        assert ctx.state["c"] == 3

    state = StateBag({"kept": True})
    result = await run(step(hooks=[first, second])(_body), "go", state=state)
    assert result.state == StateBag({"kept": True, "a": 1, "b": 2, "c": 3})


@pytest.mark.parametrize("by", ["assigning", "effects"])
async def test_a_state_with_fields_takes_no_others(by: str) -> None:
    @hooks.before_step
    async def wrong(ctx: HookContext[Memory, Count], call: hooks.StepCall) -> None:
        if by == "assigning":
            ctx.state = {"total": 1, "other": 2}
        ctx.effects.state = {"total": 1, "other": 2}

    async with Harness() as harness:
        result = await harness.run(step(hooks=[wrong])(_body), "go", state=Count(), on_error="result")
    assert isinstance(result.error, ConfigError)
    assert result.error.code == "state-field"
    assert result.state == Count()


async def test_a_loop_is_ended_by_any_hook_in_it_and_there_has_to_be_one() -> None:
    @hooks.after_model
    async def stop(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.stop_loop()

    flow = loop(call_model(hooks=[stop]), until=until.never())
    assert (await run(flow, "hi", "one")).value == "one"
    with pytest.raises(ConfigError, match="outside a loop") as refused:
        await run(call_model(hooks=[stop]), "hi", "one")
    assert refused.value.code == "no-loop"


async def test_the_output_of_a_tool_is_the_answer_where_a_hook_skips_the_summary() -> None:
    @hooks.after_tool
    async def as_it_is(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        ctx.effects.skip_summary()

    told = price.with_options(hooks=[as_it_is])
    # No turn is left for a model that would put it into words.
    asked = [*calls("price", item="lamp"), *calls("price", item="mat")]
    for flow in (agent(told), call_model(tools=[told])):
        result = await run(flow, "lamp and mat?", asked)
        assert (result.value, result.model_calls, result.text) == ("4\n3", 1, "3")
        assert [item.is_final for item in result.items] == [False, False, False, True, True]
    typed = call_model(tools=[told], output=int)
    assert (await run(typed, "lamp?", calls("price", item="lamp"))).value == 4
    with pytest.raises(ModelParseError, match="the output of a tool stands for the answer"):
        await run(call_model(tools=[told], output=list[str]), "lamp?", calls("price", item="lamp"))


async def test_answers_of_a_log_hold_the_outputs_that_stand_for_one() -> None:
    @hooks.after_tool
    async def as_it_is(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        if call.arguments == '{"item":"lamp"}':
            ctx.effects.skip_summary()

    @step
    async def look(value: object, ctx: Context[Any, Any]) -> list[str]:
        return [str(getattr(item, "text", "")) for item in ctx.items.view(final=True)]

    asked = [*calls("price", item="lamp"), *calls("price", item="mat")]
    result = await run(agent(price) >> look, "lamp?", asked, hooks=[as_it_is])
    assert result.value == ["4"]


async def test_skipping_a_summary_needs_an_output() -> None:
    @hooks.after_model
    async def early(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.skip_summary()

    with pytest.raises(ConfigError, match="a hook of after_model") as refused:
        await run(call_model(hooks=[early]), "hi", "one")
    assert refused.value.code == "hook-effect"


@step
async def human(text: str) -> str:
    return f"a person says: {text}"


def hand_to(target: Step[str, str]) -> Hook[Any, Any]:
    @hooks.after_tool
    async def transfer(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        ctx.effects.hand_off(target, output.text)

    return transfer


async def test_a_hook_hands_over_in_place_of_the_step_around_that_may() -> None:
    reached: list[str] = []
    inner = agent(price.with_options(hooks=[hand_to(human)]))

    @step(handoffs=[human])
    async def desk(text: str, ctx: Context[Any, Any]) -> str | Handoff[str]:
        await inner(text, ctx)
        reached.append("the rest of the body")
        return "never seen"

    result = await run(desk, "lamp?", calls("price", item="lamp"))
    # The loop has ended after its round, and the body goes on to its end.
    assert (result.value, result.model_calls, reached) == ("a person says: 4", 1, ["the rest of the body"])


async def test_a_hook_hands_over_before_a_body_or_after_it() -> None:
    ran: list[str] = []

    @hooks.before_step
    async def guard(ctx: HookContext[Any, Any], call: hooks.StepCall) -> None:
        if call.input == "rude":
            ctx.effects.hand_off(human, "somebody is rude")

    @hooks.after_step
    async def check(ctx: HookContext[Any, Any], call: hooks.StepCall, output: Any) -> None:
        if repr(output).startswith("Handoff"):
            ran.append(repr(output))
        elif output == "do not know":
            ctx.effects.hand_off(human, "help")

    @step(handoffs=[human], hooks=[guard, check], tags=["desk"])
    async def desk(text: str) -> str | Handoff[str]:
        ran.append(text)
        return Handoff(human, "asked for") if text == "person" else "do not know"

    assert (await run(desk, "rude")).value == "a person says: somebody is rude"
    assert ran == []
    assert (await run(desk, "what?")).value == "a person says: help"
    assert (await run(desk, "person")).value == "a person says: asked for"
    assert ran == ["what?", "person", "Handoff(<code step 'human'>, 'asked for')"]


async def test_a_hook_hands_over_only_where_that_was_declared() -> None:
    flow = agent(price.with_options(hooks=[hand_to(human)]))
    with pytest.raises(ConfigError, match="is not in the handoffs= of a step around it") as refused:
        await run(flow, "lamp?", calls("price", item="lamp"))
    assert refused.value.code == "handoff"

    @step(handoffs=[step(_body)])
    async def other(text: str, ctx: Context[Any, Any]) -> Any:
        return await flow(text, ctx)

    with pytest.raises(ConfigError, match="human"):
        await run(other, "lamp?", calls("price", item="lamp"))


class Short(Memory):
    short: Compaction = Compaction(keep_first=False)


async def test_a_summary_stands_in_place_of_older_items_from_then_on() -> None:
    @hooks.after_model
    async def summarise(ctx: HookContext[Short, Any], response: ModelResponse) -> None:
        if ctx.turns == 2:
            ctx.effects.compact("They said one and two.")

    ask = call_model(hooks=[summarise])

    @step
    async def chat(value: object, ctx: Context[Short, Any]) -> str:
        said = [await ask(text, ctx) for text in ("first", "second", "third")]
        return ",".join(said)

    model = ScriptedModel("one", "two", "three")
    async with Harness(model=model, memory=Short()) as harness:
        result = await harness.run(chat, None)
    shown = [item.text for item in model.requests[-1].items if isinstance(item, Message)]
    assert "They said one and two." in shown[0]
    # What waited for its answer then is shown, and what came after it.
    assert shown[1:] == ["second", "two", "third"]
    assert [item.text for item in result.items if isinstance(item, Message)] == [
        "first", "one", "second", "two", "third", "three",
    ]  # fmt: skip


async def test_a_layer_compacts_for_a_step_too_and_keeps_what_it_is_told() -> None:
    @step
    async def chat(value: object, ctx: Context[Short, Any]) -> list[bool]:
        nothing = await ctx.memory.short.compact("nothing yet")
        for text in ("a", "b", "c", "d"):
            ctx.items.append(Message.user(text))
            ctx.items.append(Message.assistant(text.upper()))
        some = await ctx.memory.short.compact("a to c", keep=3)
        await call_model()("e", ctx)
        return [nothing, some]

    model = ScriptedModel("E")
    async with Harness(model=model, memory=Short()) as harness:
        result = await harness.run(chat, None)
    assert result.value == [False, True]
    shown = [item.text for item in model.requests[-1].items if isinstance(item, Message)]
    assert shown[1:] == ["C", "d", "D", "e"] or shown[1:] == ["c", "C", "d", "D", "e"]
    assert "a to c" in shown[0]


class Digest(MemoryLayer[str]):
    """A layer of another package that takes summaries."""

    def compactor(self) -> Any:
        return self.keep

    @function(model=False)
    async def keep(self, summary: str, keep: int) -> None:
        self.state = f"{summary} (and {keep})"


async def test_any_layer_can_take_a_summary() -> None:
    class Other(Memory):
        digest: Digest = Digest()

    @hooks.after_model
    async def summarise(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.compact("They said one.", keep=2)

    async with Harness(model=ScriptedModel("one"), memory=Other()) as harness:
        result = await harness.run(call_model(hooks=[summarise]), "hi")
    assert result.memory["digest"] == "They said one. (and 2)"


async def test_compacting_needs_the_layer_that_shows_the_summary() -> None:
    @hooks.after_model
    async def summarise(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.compact("short")

    with pytest.raises(ConfigError, match="Compaction") as refused:
        await run(call_model(hooks=[summarise]), "hi", "one")
    assert refused.value.code == "no-compaction"


async def test_saving_needs_a_store() -> None:
    @hooks.after_model
    async def keep(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.save("answer.md", b"one")

    with pytest.raises(ConfigError, match="ArtifactStore") as refused:
        await run(call_model(hooks=[keep]), "hi", "one")
    assert refused.value.code == "service-missing"


async def test_hooks_see_masks_of_secret_arguments_and_may_change_the_others() -> None:
    seen: list[str] = []
    used: list[tuple[str, str]] = []

    @tool
    async def log_in(user: str, password: Secret[str]) -> str:
        """Log in."""
        used.append((user, password.reveal()))
        return "in"

    @hooks.before_model
    async def answer(ctx: HookContext[Any, Any], request: ModelRequest) -> ModelResponse | None:
        if len(request.items) > 1:
            return None
        return ModelResponse(calls("log_in", user="ada", password="hunter2"))

    @hooks.after_model
    async def look(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        seen.extend(item.arguments for item in response.items if isinstance(item, FunctionCall))

    @hooks.before_tool
    async def other_user(ctx: HookContext[Any, Any], call: FunctionCall) -> FunctionCall:
        seen.append(call.arguments)
        return evolve(call, arguments=call.arguments.replace("ada", "bob"))

    result = await run(agent(log_in), "go", "done", hooks=[answer, look, other_user])
    assert used == [("bob", "hunter2")]
    assert len(seen) == 2
    assert not any("hunter2" in each for each in [*seen, str(result.items)])


async def test_hooks_of_the_harness_are_called_for_what_a_layer_asks_too() -> None:
    told: list[tuple[str, ...]] = []

    class Judging(MemoryLayer[None]):
        async def after_model_call(self, response: ModelResponse) -> None:
            if len(told) == 1:
                await self.ask(None, "Is it kind?", instructions="yes or no", output=str)

    class Mem(Memory):
        judging: Judging = Judging()

    @hooks.before_model
    async def tell(ctx: HookContext[Any, Any], request: ModelRequest) -> None:
        told.append(ctx.path)

    await run(call_model(), "hi", "one", "yes", hooks=[tell], memory=Mem())
    assert told == [
        ("call_model", "answer"),
        ("call_model", "answer", "judging.ask", "ask", "answer"),
    ]


async def test_finishing_marks_what_the_hook_was_called_for() -> None:
    @hooks.after_model
    async def answered(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
        ctx.effects.finish()

    @hooks.after_tool
    async def called(ctx: HookContext[Any, Any], call: FunctionCall, output: FunctionCallOutput) -> None:
        ctx.effects.finish()

    @hooks.after_round
    async def went_round(ctx: HookContext[Any, Any], done: hooks.Round) -> None:
        ctx.effects.finish()

    @step
    async def look(value: object, ctx: Context[Any, Any]) -> list[tuple[str, ...]]:
        return sorted(path for path, entry in ctx.progress.entries.items() if entry.done)

    for hook, marked in (
        (answered, ("sequence", "loop", "call_model[1]")),
        (called, ("sequence", "loop", "call_model[0]")),
        (went_round, ("sequence", "loop")),
    ):
        flow = loop(call_model(tools=[price]), until=until.no_tool_calls()) >> look
        result = await run(flow, "go", calls("price", item="lamp"), "4", hooks=[hook])
        # What a round has left is forgotten when the next one begins.
        assert result.value == ([] if hook is called else [marked])
