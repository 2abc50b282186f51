"""What the parts of one run hand to each other: by name, by typed key, by class."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define

from noetic_py import (
    Context,
    FunctionCall,
    Harness,
    InMemoryBackend,
    Key,
    Memory,
    MemoryLayer,
    StateBag,
    call_model,
    errors,
    loop,
    sequence,
    spawn,
    step,
    tool,
    until,
)
from noetic_py.core.state import Attributes
from noetic_py.testing import ScriptedModel

TENANT = Key("tenant", str)


@define
class Limits:
    pages: int


@define
class Strict(Limits):
    pass


class Stricter(Strict):
    pass


class Loose(Limits):
    pass


def _any(value: Any) -> Any:
    """A value whose types nobody checks."""
    return value


def test_by_name() -> None:
    attrs = Attributes({"a": 1})
    attrs["b"] = None
    assert (attrs["a"], attrs["b"], "b" in attrs, attrs.get("c"), attrs.get("c", 5)) == (1, None, True, None, 5)
    attrs.put("b", None)
    assert ("b" in attrs, list(attrs), len(attrs)) == (False, ["a"], 1)
    del attrs["a"]
    del attrs["a"]
    with pytest.raises(KeyError):
        attrs["a"]


def test_by_typed_key() -> None:
    attrs = Attributes({TENANT: "acme"})
    assert (attrs[TENANT], attrs["tenant"]) == ("acme", "acme")
    # Who looks with another type finds nothing; so does who looks where there is something else.
    other = Key("tenant", int)
    assert (attrs.get(other), other in attrs, attrs.get(other, 7)) == (None, False, 7)
    attrs["tenant"] = 5
    assert (attrs.get(TENANT), attrs[other]) == (None, 5)
    with pytest.raises(KeyError):
        attrs[TENANT]
    with pytest.raises(errors.ConfigError, match="not a str"):
        _any(attrs)[TENANT] = 5
    attrs.put(TENANT, None)
    assert "tenant" not in attrs


def test_by_class() -> None:
    attrs = Attributes()
    assert attrs.get(Limits) is None
    attrs[Strict] = Strict(3)
    assert (attrs[Limits].pages, attrs[Strict].pages, attrs.get(Loose)) == (3, 3, None)
    attrs[Stricter] = Stricter(1)
    # Of related ones the most special.
    assert (attrs[Limits].pages, attrs[Strict].pages) == (1, 3)
    attrs[Loose] = Loose(9)
    with pytest.raises(errors.AmbiguousAttribute, match="Loose, Strict, Stricter"):
        attrs[Limits]
    attrs[Limits] = Limits(5)
    assert attrs[Limits].pages == 5
    attrs.put(Limits, None)
    attrs.put(Loose, None)
    assert (attrs[Limits].pages, attrs[Attributes] is attrs) == (1, True)
    with pytest.raises(errors.ConfigError, match="not a Limits"):
        _any(attrs)[Limits] = "many"


def test_as_a_mapping() -> None:
    attrs = Attributes({"a": 1, TENANT: "acme", Limits: Limits(3)})
    assert attrs.mapping == {"a": 1, "tenant": "acme"}
    attrs.mapping["b"] = 2
    assert attrs["b"] == 2
    copied = attrs.copy()
    copied["a"] = 9
    copied.put(Limits, None)
    assert (attrs["a"], attrs[Limits].pages, copied.get(Limits)) == (1, 3, None)
    assert repr(attrs) == "Attributes(a, tenant, b, Limits)"


@pytest.mark.parametrize("key", [5, None, ("a",)])
def test_what_is_no_key(key: Any) -> None:
    attrs = Attributes()
    for use in (lambda: attrs[key], lambda: attrs.get(key), lambda: attrs.put(key, 1)):
        with pytest.raises(errors.ConfigError) as caught:
            use()
        assert caught.value.code == "attribute"


@pytest.mark.parametrize("parts", [("", str), (5, str), ("a", "str")])
def test_keys_that_name_nothing(parts: Any) -> None:
    with pytest.raises(errors.ConfigError):
        Key(*parts)


# -- in a run


class Watch(MemoryLayer[None]):
    async def recall(self, query: str, budget: int) -> str | None:
        self.ctx.attrs["recalled"] = self.ctx.attrs[TENANT]
        return None


class Mem(Memory):
    watch: Watch = Watch()


@tool
def note(ctx: Context[Mem, StateBag]) -> str:
    """Note, in a thread of its own."""
    ctx.attrs["noted"] = ctx.attrs.get("noted", ()) or "once"
    return ctx.attrs[TENANT]


@pytest.mark.anyio
async def test_all_parts_of_a_run_share_them_and_nobody_stores_them() -> None:
    @step
    async def look(x: object, ctx: Context[Mem, StateBag]) -> list[object]:
        child = await spawn(inner)(None, ctx)
        return [child, ctx.attrs["noted"], ctx.attrs["recalled"], ctx.attrs[Limits].pages, ctx.read_only().attrs["x"]]

    @step
    async def inner(x: object, ctx: Context[Any, Any]) -> object:
        ctx.attrs["x"] = "of a child"
        return ctx.attrs[TENANT]

    model = ScriptedModel([FunctionCall(name="note"), FunctionCall(name="note")], "done")
    flow: Any = sequence(loop(call_model(model, tools=[note]), until=until.no_tool_calls()), look)
    backend = InMemoryBackend()
    harness: Any = Harness(plugins=(), checkpoints=backend, memory=Mem())
    given = {TENANT: "canary-acme", Limits: Limits(3), "unused": "canary-kept"}
    result = await harness.run(flow, "go", run_id="r", attrs=given)
    assert result.value == ["canary-acme", "once", "canary-acme", 3, "of a child"]
    assert given == {TENANT: "canary-acme", Limits: Limits(3), "unused": "canary-kept"}
    stored = b"".join(record.payload for record in await backend.read("r"))
    # The tenant is what tools and steps have given back, and so it is there; an attribute that nobody has told is not.
    assert b"canary-acme" in stored
    assert b"canary-kept" not in stored
    assert b"Limits" not in stored


@pytest.mark.anyio
async def test_a_run_that_goes_on_has_those_that_it_is_given_then() -> None:
    @step
    async def ask(x: object, ctx: Context[Memory, StateBag]) -> object:
        from noetic_py import Ask

        before = dict(ctx.attrs.mapping)
        ctx.attrs["asked"] = True
        await ctx.ask(Ask("?", int))
        return before

    harness: Any = Harness(plugins=(), checkpoints=InMemoryBackend())
    first = await harness.run(ask, None, run_id="r", attrs={"a": 1})
    result = await harness.resume("r", ask, answers=[first.pending[0].answer(1)], attrs={"b": 2})
    assert result.value == {"b": 2}
    with pytest.raises(errors.ConfigError, match="attrs="):
        await harness.run(ask, None, attrs=["a"])


def test_a_context_outside_a_run_has_its_own() -> None:
    one: Context[Memory, StateBag] = Context()
    one.attrs["a"] = 1
    assert (one.attrs["a"], Context[Memory, StateBag]().attrs.mapping) == (1, {})
