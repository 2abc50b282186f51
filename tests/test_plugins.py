"""Plugins as pluggy calls them, and the one hook that registers everything: `noetic_register`."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from typing import Any

import pytest
from attrs import frozen

from noetic_py import (
    Budget,
    Context,
    Event,
    Extension,
    Harness,
    HookContext,
    Message,
    Model,
    ModelResponse,
    call_model,
    extension_item,
    hookspecs,
    step,
)
from noetic_py.checkpoints import CheckpointBackend, DecodedPayload, InMemoryBackend, RecordPlace, RecordTransform
from noetic_py.context import hooks
from noetic_py.core.tokens import TextCounter, TokenCount
from noetic_py.errors import PluginError
from noetic_py.hookspecs import VERSION
from noetic_py.memory import MemoryLayer
from noetic_py.plugins import BackendRegistry, ModelRegistry, PluginRegistry, hookimpl, load_plugins
from noetic_py.steps.kind import StepKind
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@extension_item("ship:sighting")
class Sighting(Extension):
    name: str


class Facts(MemoryLayer[dict[str, str]]):
    """A layer to be named."""


class Chart:
    """A service."""


class Squeeze(RecordTransform):
    name = "squeeze"

    def encode(self, place: RecordPlace, payload: bytes) -> bytes:
        return zlib.compress(payload)

    def decode(self, place: RecordPlace, payload: bytes) -> DecodedPayload:
        return DecodedPayload(zlib.decompress(payload))


@hooks.after_model
async def watch(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
    ctx.effects.state["watched"] = True


class Words(TextCounter):
    def count_text(self, text: str, /) -> TokenCount:
        return TokenCount(len(text.split()), "exact")


@frozen(eq=False)
class Hailed(StepKind[str, str]):
    kind = "ship.hailed"
    times: int

    async def run(self, value: str, ctx: Context, /) -> str:
        return f"{'Ahoy! ' * self.times}{value}"


class Whole:
    """A plugin with everything that a plugin can have."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.backend = InMemoryBackend()
        self.asked: list[str] = []
        self.chart = Chart()

    @hookimpl
    def noetic_register(self, registry: PluginRegistry) -> None:
        registry.provider("ship", self.make)
        registry.item_type(Sighting)
        registry.checkpoint_backend("hold", self.keep)
        registry.memory_layer("ship-facts", Facts)
        registry.service(Chart, self.chart)
        registry.record_transform(Squeeze())
        registry.hook(watch)
        registry.token_counter("ship:*", Words())
        registry.step_kind(Hailed)
        registry.event_sink(self.note)

    async def note(self, run_id: str, event: Event) -> None:
        self.log.append((run_id, type(event).__name__))

    def make(self, name: str) -> Model:
        return ScriptedModel(f"I am {name}.", name=f"ship:{name}")

    def keep(self, rest: str) -> CheckpointBackend:
        self.asked.append(rest)
        return self.backend


async def test_a_run_has_all_that_one_hook_registers() -> None:
    plugin = Whole()
    seen: list[object] = []

    @step
    async def look(text: str, ctx: Context[Any, Any]) -> str:
        ctx.items.append(Sighting(name=text))
        seen.append(ctx.services[Chart])
        return text

    flow = Hailed(2).step() >> call_model() >> look
    async with Harness(model="ship:Argo", checkpoints="hold:below deck", plugins=[plugin]) as harness:
        result = await harness.run(flow, "Who are you?", run_id="r", budget=Budget(input_tokens=1_000))
        again = await harness.resume("r", flow)
        refused = await harness.run(flow, "Who are you?", run_id="s", budget=Budget(input_tokens=8))
        payloads = [record.payload for record in await plugin.backend.read("r")]
    assert result.value == again.value == "I am Argo."
    assert result.state["watched"]
    assert isinstance(result.items[0], Message)
    assert result.items[0].text == "Ahoy! Ahoy! Who are you?"
    # Five words, and four tokens of what stands around them.
    assert refused.reason == "budget of 8 input_tokens reached: 0 spent, 9 more asked for"
    assert plugin.log[0] == ("r", "RunStarted")
    assert plugin.log[-1] == ("s", "RunFinished")
    assert plugin.asked == ["below deck"]
    assert seen == [plugin.chart]
    # The conversation comes back out of records that went through the transform.
    sighting = again.items[-1]
    assert sighting == result.items[-1] == Sighting(name="I am Argo.", id=sighting.id)
    assert payloads
    assert not any(b"Argo" in payload for payload in payloads)


def test_what_one_hook_registers_is_listed_with_the_rest() -> None:
    plugins = load_plugins([Whole()])
    assert plugins.names == ["Whole"]
    assert plugins.models.prefixes == ["ship"]
    assert plugins.item_types.types == [Sighting]
    assert "hold" in plugins.backends.schemes
    assert "sqlite" in plugins.backends.schemes
    assert plugins.layers("ship-facts") is Facts
    assert isinstance(plugins.services.by_type[Chart], Chart)
    assert plugins.transforms.names == ["squeeze"]
    assert plugins.hooks.hooks == [watch]
    assert isinstance(plugins.counters("ship:Argo"), Words)
    assert plugins.step_kinds.names == ["ship.hailed"]
    assert [plugin for plugin, _ in plugins.event_sinks.sinks] == ["Whole"]


def test_a_plugin_may_have_both_kinds_of_hooks() -> None:
    class Both(Whole):
        @hookimpl
        def register_models(self, registry: ModelRegistry) -> None:
            registry.provider("boat", self.make)

    assert load_plugins([Both()]).models.prefixes == ["boat", "ship"]

    class Twice(Whole):
        @hookimpl
        def register_models(self, registry: ModelRegistry) -> None:
            registry.provider("ship", self.make)

    with pytest.raises(PluginError, match="plugins 'Twice' and 'Twice' both provide models 'ship'"):
        load_plugins([Twice()])


def test_a_name_is_taken_whichever_hook_took_it() -> None:
    class Old:
        @hookimpl
        def register_checkpoint_backends(self, registry: BackendRegistry) -> None:
            registry.checkpoint_backend("HOLD", lambda rest: InMemoryBackend())

    # The hook for everything is called last, whatever the order of the plugins.
    for given in ([Old(), Whole()], [Whole(), Old()]):
        with pytest.raises(PluginError, match="plugins 'Old' and 'Whole' both provide checkpoints"):
            load_plugins(given)


# --------------------------------------------------------------------------------------------- the options of pluggy


def serving(prefix: str) -> Callable[[Any, ModelRegistry], None]:
    def register_models(self: Any, registry: ModelRegistry) -> None:
        registry.provider(prefix, lambda name: ScriptedModel(name))

    return register_models


def acme() -> object:
    return type("Acme", (), {"register_models": hookimpl(serving("acme"))})()


def test_hooks_are_called_in_the_order_of_the_plugins_and_their_options() -> None:
    said: list[str] = []

    def plugin(name: str, **options: Any) -> object:
        def register_models(self: Any, registry: ModelRegistry) -> None:
            said.append(name)

        return type(name, (), {"register_models": hookimpl(**options)(register_models)})()

    given = [
        plugin("last", trylast=True),
        plugin("one"),
        plugin("first", tryfirst=True),
        plugin("two"),
        plugin("other_last", trylast=True),
        plugin("other_first", tryfirst=True),
    ]
    names = load_plugins(given).names
    assert said == ["first", "other_first", "one", "two", "other_last", "last"]
    assert names == ["last", "one", "first", "two", "other_last", "other_first"]


def test_a_function_of_another_name_implements_the_hook_it_says() -> None:
    class Acme:
        @hookimpl(specname="register_models")
        def give_models(self, registry: ModelRegistry) -> None:
            registry.provider("acme", lambda name: ScriptedModel(name))

    plugins = load_plugins([Acme()])
    assert plugins.models.prefixes == ["acme"]
    assert [(each.name, each.hooks) for each in plugins.loaded] == [("Acme", ["register_models"])]


def test_a_hook_that_this_version_does_not_have_may_be_optional() -> None:
    class Optional:
        register_models = hookimpl(serving("acme"))

        @hookimpl(optionalhook=True)
        def register_weather(self, registry: object) -> None:
            raise AssertionError

    assert load_plugins([Optional()]).models.prefixes == ["acme"]


@pytest.mark.parametrize("hook", ["models", "event_sinks", "token_counters", "step_kinds"])
def test_a_misspelt_hook_is_refused_with_the_right_name(hook: str) -> None:
    class Misspelt: ...

    wrong = f"register_{hook[:-1]}"
    setattr(Misspelt, wrong, hookimpl(serving("acme")))
    with pytest.raises(PluginError, match=f"there is no hook '{wrong}'") as caught:
        load_plugins([Misspelt()])
    assert f"did you mean register_{hook}" in str(caught.value.hint)


@pytest.mark.parametrize("options", [{"wrapper": True}, {"hookwrapper": True}], ids=lambda each: next(iter(each)))
def test_a_wrapper_is_around_all_others_and_registers_under_its_own_name(options: dict[str, bool]) -> None:
    said: list[str] = []

    def register_models(self: Any, registry: ModelRegistry) -> Generator[None, Any, Any]:
        said.append(f"before: {registry.prefixes}")
        result = yield
        said.append(f"after: {registry.prefixes}")
        registry.provider("late", lambda name: ScriptedModel(name))
        return result

    marked: Any = hookimpl
    wrapper = type("Wrapper", (), {"register_models": marked(**options)(register_models)})()
    assert load_plugins([acme(), wrapper]).models.prefixes == ["acme", "late"]
    assert said == ["before: []", "after: ['acme']"]
    late = type("Late", (), {"noetic_register": hookimpl(serving("late"))})()
    with pytest.raises(PluginError, match="plugins 'Wrapper' and 'Late' both provide models 'late'"):
        load_plugins([acme(), wrapper, late])


class Around:
    def __init__(self, *, again: bool) -> None:
        self.again = again
        self.seen: list[BaseException] = []

    @hookimpl(wrapper=True)
    def register_models(self, registry: ModelRegistry) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except KeyError as error:
            self.seen.append(error)
            if self.again:
                raise
            return []


def test_a_wrapper_sees_what_a_plugin_raised_and_may_go_on() -> None:
    class Bad:
        @hookimpl
        def register_models(self, registry: ModelRegistry) -> None:
            raise KeyError("tide")

    around = Around(again=False)
    load_plugins([Bad(), around])
    assert [repr(each) for each in around.seen] == ["KeyError('tide')"]
    with pytest.raises(PluginError, match="plugin 'Bad' failed in register_models: KeyError: 'tide'"):
        load_plugins([Bad(), Around(again=True)])


@pytest.mark.parametrize("times", [0, 2])
def test_a_wrapper_that_does_not_yield_once_is_named(times: int) -> None:
    class Odd:
        @hookimpl(wrapper=True)
        def register_models(self, registry: ModelRegistry) -> Generator[None, Any, Any]:
            for _ in range(times):
                yield

    with pytest.raises(
        PluginError, match=r"plugin 'Odd' failed in register_models: RuntimeError: .* has to yield once"
    ):
        load_plugins([acme(), Odd()])


def test_a_hook_may_leave_its_parameter_out() -> None:
    said: list[str] = []

    class Brief:
        @hookimpl
        def register_models(self) -> None:
            said.append("called")

    load_plugins([Brief()])
    assert said == ["called"]


def test_a_function_without_the_mark_is_refused_and_not_called() -> None:
    class Base:
        register_models = hookimpl(serving("acme"))

    class Below(Base):
        def register_models(self, registry: ModelRegistry) -> None:
            raise AssertionError

    with pytest.raises(PluginError, match="plugin 'Below' has a function register_models that is not marked") as caught:
        load_plugins([Below()])
    assert "@hookimpl" in str(caught.value.hint)


def test_nothing_stands_before_what_the_library_has_itself() -> None:
    class Early:
        @hookimpl(tryfirst=True)
        def register_checkpoint_backends(self, registry: BackendRegistry) -> None:
            registry.checkpoint_backend("sqlite", lambda rest: InMemoryBackend())

    with pytest.raises(PluginError, match="plugins 'noetic_py' and 'Early' both provide checkpoints 'sqlite'"):
        load_plugins([Early()])


# ------------------------------------------------------------------------------------------- the version of the hooks


def test_a_plugin_says_for_which_version_of_the_hooks_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def plugin(version: object) -> object:
        return type("Acme", (), {"HOOKS_VERSION": version, "register_models": hookimpl(serving("acme"))})()

    assert load_plugins([plugin(VERSION)]).names == ["Acme"]
    with pytest.raises(PluginError, match=r"for version 2 of the plugin interface, and .* version 1") as caught:
        load_plugins([plugin(2)])
    assert str(caught.value.hint).startswith("install a newer noetic-py, or ")
    for wrong in ("1", 0, True, None, 1.5, (), (1,), (0, 1), (2, 1), (1, True), (1, 2, 3), ("1", "2"), {1, 2}):
        with pytest.raises(PluginError, match="is not a valid HOOKS_VERSION; expected 1"):
            load_plugins([plugin(wrong)])
    monkeypatch.setattr(hookspecs, "VERSION", 2)
    with pytest.raises(PluginError, match=r"for version 1 of the plugin interface, and .* version 2") as caught:
        load_plugins([plugin(1)])
    assert str(caught.value.hint).startswith("install a newer Acme, or ")
    assert load_plugins([plugin((1, 2))]).names == load_plugins([plugin((2, 4))]).names == ["Acme"]
    with pytest.raises(PluginError, match=r"for versions 3 to 5 of the plugin interface, and .* version 2") as caught:
        load_plugins([plugin((3, 5))])
    assert str(caught.value.hint).startswith("install a newer noetic-py, or ")
    with pytest.raises(PluginError, match=r"for version 1 of the plugin interface") as caught:
        load_plugins([plugin((1, 1))])
    assert str(caught.value.hint).startswith("install a newer Acme, or ")
    # A plugin that says nothing is for the first version, which had no way to say it.
    with pytest.raises(PluginError, match="for version 1"):
        load_plugins([acme()])
