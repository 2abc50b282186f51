"""One hook that registers everything: `noetic_register`."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from noetic_py import Context, Extension, Harness, HookContext, Model, ModelResponse, call_model, extension_item, step
from noetic_py.checkpoints import CheckpointBackend, InMemoryBackend, RecordPlace, RecordTransform, Unsealed
from noetic_py.context import hooks
from noetic_py.errors import PluginError
from noetic_py.memory import MemoryLayer
from noetic_py.plugins import BackendRegistry, ModelRegistry, PluginRegistry, hookimpl, load_plugins
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

    def seal(self, place: RecordPlace, payload: bytes) -> bytes:
        return zlib.compress(payload)

    def unseal(self, place: RecordPlace, payload: bytes) -> Unsealed:
        return Unsealed(zlib.decompress(payload))


@hooks.after_model
async def watch(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
    ctx.effects.state["watched"] = True


class Whole:
    """A plugin with everything that a plugin can have."""

    def __init__(self) -> None:
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

    async with Harness(model="ship:Argo", checkpoints="hold:below deck", plugins=[plugin]) as harness:
        result = await harness.run(call_model() >> look, "Who are you?", run_id="r")
        again = await harness.resume("r", call_model() >> look)
        payloads = [record.payload for record in await plugin.backend.read("r")]
    assert result.value == again.value == "I am Argo."
    assert result.state["watched"]
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

    with pytest.raises(PluginError, match="plugins 'Old' and 'Whole' both provide checkpoints"):
        load_plugins([Old(), Whole()])
    with pytest.raises(PluginError, match="plugins 'Whole' and 'Old' both provide checkpoints"):
        load_plugins([Whole(), Old()])
