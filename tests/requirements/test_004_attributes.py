"""Data of one call, by name, key and class; and services, the nearest first."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from attrs import define

from noetic_py import Context, FunctionCall, Harness, Key, Memory, StateBag, call_model, loop, step, tool, until
from noetic_py.core.state import Attributes
from noetic_py.errors import AmbiguousAttribute, ConfigError
from noetic_py.plugins import ServiceRegistry, hookimpl
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]


@define
class Tenant:
    name: str


class Paying(Tenant):
    pass


class Testing(Tenant):
    __test__ = False


async def in_a_run(look: Any, **attrs: Any) -> Any:
    """What a function of the attributes gives inside a step."""

    @step
    async def body(_: None, ctx: Ctx) -> object:
        found: object = look(ctx.attrs)
        return found

    async with Harness(plugins=[]) as harness:
        return (await harness.run(body, None, attrs=attrs)).value


def nameless(attrs: Any) -> object:
    found: object = attrs.get(None)
    return found


@pytest.mark.clause("004-45a", "004-45b")
async def test_004_45_such_data_can_be_kept_by_name() -> None:
    def look(attrs: Attributes) -> list[object]:
        attrs["b"] = 2
        attrs.put("a", None)
        # An item that is assigned is stored, `None` too; `put` takes away.
        attrs["c"] = None
        return [attrs.get("a"), attrs["b"], "c" in attrs, attrs.get("d"), attrs.get("d", "else")]

    assert await in_a_run(look, a=1) == [None, 2, True, None, "else"]
    with pytest.raises(ConfigError):
        await in_a_run(nameless)


@pytest.mark.clause("004-46a", "004-46b", "004-46c")
async def test_004_46_such_data_can_be_kept_by_type() -> None:
    def look(attrs: Attributes) -> list[object]:
        seen: list[object] = [attrs.get(Tenant)]
        attrs[Paying] = Paying("acme")
        seen.append(attrs[Tenant].name)
        attrs[Tenant] = Tenant("exactly")
        seen += [attrs[Tenant].name, attrs[Paying].name, attrs[Attributes] is attrs]
        attrs.put(Tenant, None)
        attrs[Testing] = Testing("x")
        try:
            attrs.get(Tenant)
        except AmbiguousAttribute as error:
            seen.append(error.message)
        return seen

    assert await in_a_run(look) == [
        None,
        "acme",
        "exactly",
        "acme",
        True,
        "several attributes are a Tenant: Paying, Testing",
    ]


async def test_004_47_typed_keys_give_typed_values() -> None:
    name, number = Key("limit", str), Key("limit", int)

    def look(attrs: Attributes) -> list[object]:
        text: str | None = attrs.get(name)
        found: int = attrs[number]
        # What was put by name is found by a key of its type, and by one of another type nothing is.
        return [text, found, attrs["limit"]]

    assert await in_a_run(look, limit=5) == [None, 5, 5]


async def test_004_48_named_data_can_be_seen_as_a_mapping() -> None:
    def look(attrs: Attributes) -> dict[str, object]:
        attrs[Tenant] = Tenant("acme")
        attrs.mapping["b"] = 2
        assert attrs["b"] == 2
        return attrs.mapping

    assert await in_a_run(look, a=1) == {"a": 1, "b": 2}


async def test_004_49_tools_beside_each_other_can_read_and_write_such_data() -> None:
    """Sync tools run in threads of their own, all at once."""

    @tool
    def note(ctx: Ctx, n: int) -> str:
        """Note."""
        for at in range(200):
            ctx.attrs[f"{n}.{at}"] = n
            assert ctx.attrs[f"{n}.{at}"] == n
        return "noted"

    @step
    async def run(_: None, ctx: Ctx) -> int:
        calls = [FunctionCall(name="note", arguments={"n": n}) for n in range(16)]
        model = ScriptedModel(calls, "done")
        await loop(call_model(model, tools=[note]), until=until.no_tool_calls())("go", ctx)
        return len(ctx.attrs.mapping)

    async with Harness(plugins=[]) as harness:
        with anyio.fail_after(60):
            assert (await harness.run(run, None)).value == 16 * 200


@pytest.mark.clause("004-54a", "004-54b")
async def test_004_54_services_of_a_run_come_first_then_the_harness_then_plugins() -> None:
    class Provided:
        @hookimpl
        def register_services(self, registry: ServiceRegistry) -> None:
            for kind in (Tenant, Paying, Testing):
                registry.service(kind, kind("plugin"))

    @step
    async def look(_: None, ctx: Ctx) -> list[str]:
        return [ctx.services[kind].name for kind in (Tenant, Paying, Testing)]

    given = {Tenant: Tenant("harness"), Paying: Paying("harness")}
    async with Harness(plugins=[Provided()], services=given) as harness:
        result = await harness.run(look, None, services={Tenant: Tenant("run")})
        assert result.value == ["run", "harness", "plugin"]
        assert (await harness.run(look, None)).value == ["harness", "harness", "plugin"]
