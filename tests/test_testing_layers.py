"""The conformance suite of layers, passed by sound ones and failed by broken ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import define, field

from noetic_py.memory import ContextItem, ContextPool, ContextQueue, MemoryLayer, Scope, function
from noetic_py.testing import LayerContract

pytestmark = pytest.mark.anyio

FOUND = (AssertionError, pytest.fail.Exception)


class Facts(MemoryLayer[list[str]]):
    """A sound one."""

    @function
    async def remember(self, fact: str) -> None:
        """Keep a fact."""
        self.state.append(fact)

    async def recall(self, query: str, budget: int) -> str:
        return "\n".join(self.state)[: 3 * budget]


class TestFacts(LayerContract[Facts]):
    def make(self) -> Facts:
        return Facts(budget=200)

    async def use(self, layer: Facts, text: str) -> None:
        await layer.remember(text)


class TestPrivateFacts(TestFacts):
    def make(self) -> Facts:
        return Facts(scope=Scope.EXECUTION)


class TestSharedFacts(TestFacts):
    def make(self) -> Facts:
        return Facts(scope=Scope.GLOBAL)


class TestQueue(LayerContract[ContextQueue[str]]):
    def make(self) -> ContextQueue[str]:
        return ContextQueue[str](limit=3)

    async def use(self, layer: ContextQueue[str], text: str) -> None:
        await layer.append(ContextItem(text))


class TestPool(LayerContract[ContextPool[str]]):
    def make(self) -> ContextPool[str]:
        return ContextPool[str](limit=3)

    async def use(self, layer: ContextPool[str], text: str) -> None:
        await layer.add(ContextItem(text, text[:40], f"id-{len(text)}"))


@define
class Kept:
    """A state with fields."""

    facts: dict[str, str] = field(factory=dict[str, str])


class TenthFacts(MemoryLayer[Kept]):
    """One that has had several forms, the last but one of which was called 1.9."""

    schema_version = "1.10"

    @function
    async def remember(self, fact: str) -> None:
        """Keep a fact."""
        self.state = Kept({**self.state.facts, fact: fact})

    def migrate(self, state: Any, version: object) -> object:
        if version == 1:
            return Kept({fact: fact for fact in state})
        assert version == "1.9"
        return Kept({fact: fact for fact in state["facts"]})


class TestTenthFacts(LayerContract[TenthFacts]):
    def make(self) -> TenthFacts:
        return TenthFacts(scope=Scope.USER)

    async def use(self, layer: TenthFacts, text: str) -> None:
        await layer.remember(text)

    def older(self) -> list[tuple[int | str, Any]]:
        return [(1, ["one", "two"]), (1, []), ("1.9", {"facts": ["three"]})]


class TestOwnTenthFacts(TestTenthFacts):
    def make(self) -> TenthFacts:
        return TenthFacts(scope=Scope.EXECUTION)


class Broken(Facts):
    """Breaks one rule."""

    rule: str = ""

    async def init(self) -> None:
        if self.rule == "leaks":
            self.state = [*SEEN]
        if self.rule == "forgets":
            self.state = []

    @function
    async def remember(self, fact: str) -> None:
        """Keep a fact."""
        self.state.append(fact)
        if self.rule == "leaks":
            SEEN.append(fact)

    async def recall(self, query: str, budget: int) -> Any:
        if self.rule == "budget":
            return "word " * 5000
        if self.rule == "same":
            SEEN.append("x")
            return f"{len(SEEN)}"
        return "\n".join(self.state)[: 3 * budget]

    async def store(self, response: object) -> None:
        if self.rule == "raises":
            raise ValueError("no")
        if self.rule == "crash":
            SEEN.append("y")
            self.state.append(f"{len(SEEN)}")


SEEN: list[str] = []


def contract(rule: str, scope: Scope = Scope.THREAD) -> LayerContract[Broken]:
    class Of(LayerContract[Broken]):
        def make(self) -> Broken:
            return Broken(rule=rule, scope=scope)

        async def use(self, layer: Broken, text: str) -> None:
            await layer.remember(text)

    return Of()


CASES: list[tuple[str, Callable[[LayerContract[Any]], Any]]] = [
    ("budget", lambda suite: suite.test_its_recall_keeps_to_its_budget(200)),
    ("same", lambda suite: suite.test_its_recall_says_the_same_of_the_same_state()),
    ("raises", lambda suite: suite.test_a_run_goes_well()),
    ("crash", lambda suite: suite.test_it_survives_being_killed_anywhere()),
    ("leaks", lambda suite: suite.test_others_have_of_it_what_its_scope_says()),
    ("forgets", lambda suite: suite.test_its_state_is_the_same_when_it_is_read_back()),
]


@pytest.mark.parametrize(("rule", "case"), CASES, ids=[rule for rule, _ in CASES])
async def test_a_layer_that_breaks_a_rule_is_found(rule: str, case: Callable[[LayerContract[Any]], Any]) -> None:
    SEEN.clear()
    await case(contract(""))
    SEEN.clear()
    with pytest.raises(FOUND):
        await case(contract(rule))


@pytest.mark.parametrize("rule", ["leaks", "forgets"])
async def test_what_is_everybodys_is_found_by_everybody_of_its_store(rule: str) -> None:
    SEEN.clear()
    await contract("", Scope.GLOBAL).test_others_have_of_it_what_its_scope_says()
    with pytest.raises(FOUND):
        await contract(rule, Scope.GLOBAL).test_others_have_of_it_what_its_scope_says()


async def test_what_is_an_executions_own_ends_with_it() -> None:
    SEEN.clear()
    with pytest.raises(FOUND):
        await contract("leaks", Scope.EXECUTION).test_its_state_is_the_same_when_it_is_read_back()
