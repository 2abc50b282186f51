"""Token counters of plugins: which one counts for a model, and where its counts show."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from noetic_py import Budget, Harness, Memory, Message, call_model
from noetic_py.core.tokens import TextCounter, TokenCount, TokenCounter, counter_for
from noetic_py.errors import PluginError
from noetic_py.memory import WorkingMemory
from noetic_py.models import ModelProfile
from noetic_py.plugins import PluginRegistry, TokenCounterRegistry, hookimpl, load_plugins
from noetic_py.testing import ScriptedModel, TokenCounterContract

pytestmark = pytest.mark.anyio

TEXT = "high water " * 50


class Words(TextCounter):
    def count_text(self, text: str, /) -> TokenCount:
        return TokenCount(len(text.split()), "exact")


class TestWords(TokenCounterContract):
    def make(self) -> Words:
        return Words()


class Encoded(ScriptedModel):
    """A model that names its encoding."""

    @property
    def profile(self) -> ModelProfile:
        return ModelProfile(encoding="o200k_base")


class Acme:
    """A plugin with a provider and counters by pattern."""

    def __init__(self, counters: dict[str, TokenCounter]) -> None:
        self._counters = counters

    @hookimpl
    def noetic_register(self, registry: PluginRegistry) -> None:
        registry.provider("acme", lambda name: ScriptedModel("Noon.", name=f"acme:{name}"))
        registry.provider("encoded", lambda name: Encoded("Noon.", name=f"acme:{name}"))
        for pattern, counter in self._counters.items():
            registry.token_counter(pattern, counter)


async def asked_for(plugins: Sequence[object], model: str = "acme:small") -> int:
    """The tokens for which a budget of one token is asked."""
    async with Harness(model=model, plugins=plugins) as harness:
        result = await harness.run(call_model(), TEXT, budget=Budget(input_tokens=1))
    assert result.status == "budget_exceeded"
    assert result.reason is not None
    return int(result.reason.rpartition(", ")[2].split()[0])


async def test_a_plugins_counter_counts_for_the_models_of_its_pattern() -> None:
    theirs = Words().count_item(Message.user(TEXT)).value
    ours = counter_for("acme:small").count_item(Message.user(TEXT)).value
    assert theirs != ours
    assert await asked_for([Acme({"acme:*": Words()})]) == theirs
    assert await asked_for([Acme({"acme:large*": Words()})]) == ours
    assert await asked_for([Acme({})]) == ours


class Mem(Memory):
    notes: WorkingMemory = WorkingMemory()


async def test_it_counts_the_view_of_a_model_with_layers_as_well() -> None:
    async with Harness(model="acme:small", plugins=[Acme({"acme:*": Words()})], memory=Mem()) as harness:
        result = await harness.run(call_model(), TEXT)
        view = harness.explain_view(result.run_id)
    tail = next(block for block in view.blocks if block.kind == "tail")
    assert tail.tokens == Words().count_item(Message.user(TEXT)).value


async def test_an_encoding_that_the_model_names_itself_comes_first() -> None:
    ours = counter_for("openai:gpt-5-mini").count_item(Message.user(TEXT)).value
    assert await asked_for([Acme({"acme:*": Words()})], model="encoded:small") == ours


def test_the_longest_pattern_that_fits_counts() -> None:
    every, large, one = Words(), Words(), Words()
    registry = load_plugins([Acme({"acme:large*": large, "acme:*": every, "acme:large-2": one})]).counters
    assert registry("acme:small") is every
    assert registry("acme:large-1") is large
    assert registry("acme:large-2") is one
    assert registry("openai:gpt-5-mini") is counter_for("openai:gpt-5-mini")


@pytest.mark.parametrize("pattern", ["", "acme", "acme:", ":small", "*:small", "a b:*"])
def test_a_pattern_without_a_provider_is_refused(pattern: str) -> None:
    with pytest.raises(PluginError, match="is not a valid pattern for models; expected a provider and a colon"):
        TokenCounterRegistry().token_counter(pattern, Words())


def test_what_cannot_count_is_refused() -> None:
    given: list[object] = [Words, len, None]
    for each in given:
        with pytest.raises(PluginError, match="is not a valid token counter; expected a TokenCounter"):
            TokenCounterRegistry().token_counter("acme:*", each)  # type: ignore[arg-type]  # that is the case


def test_two_plugins_with_one_pattern_are_refused() -> None:
    class Second:
        @hookimpl
        def register_token_counters(self, registry: TokenCounterRegistry) -> None:
            registry.token_counter("ACME:*", Words())

    with pytest.raises(PluginError, match=r"'Second' and 'Acme' both count the tokens of models 'acme:\*'"):
        load_plugins([Acme({"acme:*": Words()}), Second()])
