"""Rules, approvals and hooks judge what a tool will receive, however the model has spelled it."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import attrs
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, SecretStr

from noetic_py import (
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    MemoryLayer,
    ReadContext,
    RunResult,
    Secret,
    Tool,
    call_model,
    call_tool,
    loop,
    tool,
    until,
)
from noetic_py.checkpoints import CheckpointBackend
from noetic_py.context.hooks import HookContext, before_tool
from noetic_py.core.values import is_dict
from noetic_py.engine.journaling.run_history import read_journal
from noetic_py.errors import ToolArgumentsInvalid
from noetic_py.journal.records import Decision
from noetic_py.journal.run_summary import PlainCodec
from noetic_py.memory import PermissionRule, Permissions
from noetic_py.testing import ScriptedModel
from noetic_py.tools.arguments import as_received
from noetic_py.tools.permissions import decide

pytestmark = pytest.mark.anyio

SPELLINGS = 500
"""How many ways of writing the arguments each kind of rule is tried with."""

received: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_is_received() -> None:
    received.clear()


class Mode(Enum):
    PROD = "prod"
    STAGING = "staging"


class Level(Enum):
    LOW = 1
    HIGH = 1000


class Place(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    target: str = Field("prod", validation_alias="where", exclude=True)


class Order(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    place: Place = Field(default_factory=lambda: Place.model_validate({}))
    amount: int = Field(1, validation_alias=AliasChoices("amount", "sum"))


@dataclasses.dataclass
class Plan:
    target: str = "prod"
    days: int = 1


def of(annotation: Any, default: Any = ...) -> Tool[..., Any]:
    """A tool with one parameter of a type."""

    async def take(value: Any) -> str:
        received.append(value)
        return "taken"

    take.__annotations__["value"] = annotation
    if default is not ...:
        take.__defaults__ = (default,)
    return tool(name="take", description="Take.", retries=10**6)(take)


def default_of(taken: Tool[..., Any]) -> Any:
    return inspect.signature(taken.fn).parameters["value"].default


def folded(chance: random.Random, text: str) -> str:
    return "".join(chance.choice((letter.upper(), letter)) for letter in text)


def number(chance: random.Random, value: int) -> Any:
    """A number as one of the JSON values that may be read as it."""
    zeros = "0" * chance.randrange(3)
    texts = [f"{zeros}{value}", f"+{value}", f" {value} ", f"{value}.{zeros}0", f"{value}_0"[:-2], f"{value}e0"]
    return chance.choice([value, float(value), *texts, value + 1, -value, f"{value // 10}e1", None, True])


def text(chance: random.Random, value: str) -> Any:
    spelled = [value, folded(chance, value), f" {value}", f"{value} ", value[::-1], "staging", 1000, None, [value]]
    return chance.choice(spelled)


def yes_or_no(chance: random.Random) -> Any:
    words = ["true", "yes", "on", "t", "y", "1", "false", "no", "off", "f", "n", "0"]
    return chance.choice([True, False, 1, 0, 1.0, 0.0, folded(chance, chance.choice(words)), None])


def path(chance: random.Random) -> str:
    inner = chance.choice(["shadow", "ssl/../shadow", "./passwd", "", "a b", "é"])
    ups = "/".join([".."] * chance.randrange(1, 40))
    before = chance.choice(["/", "//", "/tmp/../", "/./", f"/usr/{'../' * 3}", f"{ups}/" * 3, "/tmp/", "~/../../../"])
    return f"{before}{chance.choice(['etc', 'etc/', 'ETC', 'etcetera', 'proc/self/root/etc'])}/{inner}"


def in_etc(value: Any) -> bool:
    return Path(value).expanduser().resolve().is_relative_to("/etc")


def place(chance: random.Random) -> Any:
    whole: dict[str, Any] = {chance.choice(["where", "target"]): text(chance, "prod")}
    return chance.choice([{}, whole, whole | {"where": text(chance, "prod")}])


def order(chance: random.Random) -> Any:
    parts = {"place": place(chance), chance.choice(["amount", "sum"]): number(chance, 1000)}
    return {name: value for name, value in parts.items() if chance.random() < 0.8}


def when(chance: random.Random) -> Any:
    at = datetime(2031, 1, chance.randrange(1, 3), tzinfo=UTC)
    zone = chance.choice(["Z", "+00:00", "z", "+0000", "-00:00"])
    return chance.choice([f"{at:%Y-%m-%d}{chance.choice('T t_')}{at:%H:%M}{zone}", at.timestamp(), f"{at.timestamp()}"])


Case = tuple[str, Tool[..., Any], PermissionRule, Callable[[random.Random], Any], Callable[[Any], bool]]


def denies(fit: str) -> PermissionRule:
    return PermissionRule("deny", "take", where={"value": fit})


def keeps_out(folder: str) -> PermissionRule:
    return PermissionRule("deny", "take", within="value", folders=[folder])


CASES: list[Case] = [
    ("int", of(int, 1000), denies("1000"), lambda c: number(c, 1000), lambda v: v == 1000),
    ("float", of(float, 1000.0), denies("1000"), lambda c: number(c, 1000), lambda v: v == 1000),
    ("decimal", of(Decimal, Decimal("1e3")), denies("1000.00"), lambda c: number(c, 1000), lambda v: v == 1000),
    ("bool", of(bool, True), denies("true"), yes_or_no, lambda v: v is True),
    ("text", of(str, "prod"), denies("prod"), lambda c: text(c, "prod"), lambda v: v == "prod"),
    ("pattern", of(str, "prod"), denies("*prod*"), lambda c: text(c, "prod"), lambda v: "prod" in v),
    ("bytes", of(bytes, b"prod"), denies("prod"), lambda c: text(c, "prod"), lambda v: v == b"prod"),
    ("enum", of(Mode, Mode.PROD), denies("prod"), lambda c: text(c, "prod"), lambda v: v is Mode.PROD),
    ("number enum", of(Level, Level.HIGH), denies("1000"), lambda c: number(c, 1000), lambda v: v is Level.HIGH),
    ("literal", of(Literal["prod", 1000], "prod"), denies("prod"), lambda c: text(c, "prod"), lambda v: v == "prod"),
    (
        "union",
        of(int | bool | list[int] | None, 1000),
        denies("1000"),
        lambda c: c.choice([number(c, 1000), [number(c, 1000)], yes_or_no(c)]),
        lambda v: v == 1000 or v == [1000],
    ),
    ("optional", of(str | None, "prod"), denies("prod"), lambda c: text(c, "prod"), lambda v: v == "prod"),
    (
        "several",
        of(set[int] | tuple[int, ...]),
        denies("1000"),
        lambda c: [number(c, 1000) for _ in range(c.randrange(4))],
        lambda v: 1000 in v,
    ),
    ("model", of(Order, Order.model_validate({})), denies("*prod*"), order, lambda v: v.place.target == "prod"),
    (
        "models",
        of(dict[int, list[Place]]),
        denies("*prod*"),
        lambda c: {c.choice("12"): [place(c)]},
        lambda v: any(each.target == "prod" for one in v.values() for each in one),
    ),
    (
        "dataclass",
        of(Plan, Plan()),
        denies('*"target":"prod"*'),
        lambda c: c.choice([{}, {"target": text(c, "prod")}, {"days": number(c, 2), "target": text(c, "prod")}]),
        lambda v: v.target == "prod",
    ),
    ("time", of(datetime), denies("2031-01-01T00:00:00Z"), when, lambda v: v == datetime(2031, 1, 1, tzinfo=UTC)),
    ("path", of(Path, Path("/etc")), keeps_out("/etc"), path, in_etc),
    ("text path", of(str, "/etc"), keeps_out("/etc"), path, in_etc),
    ("byte path", of(bytes, b"/etc"), keeps_out("/etc"), path, lambda v: in_etc(v.decode())),
    (
        "paths",
        of(list[str] | str | None, None),
        keeps_out("/etc"),
        lambda c: c.choice([path(c), [path(c) for _ in range(c.randrange(4))], None]),
        lambda v: v is not None and any(map(in_etc, [v] if isinstance(v, str) else v)),
    ),
]


def spelled(chance: random.Random, make: Callable[[random.Random], Any]) -> str:
    """The arguments as JSON text: given twice at times, with escapes, or left out."""
    parts = [f'"value"{chance.choice(["", " "])}:{json.dumps(make(chance), ensure_ascii=chance.random() < 0.5)}']
    if chance.random() < 0.2:
        parts.append(f'"value":{json.dumps(make(chance))}')
    if chance.random() < 0.1:
        parts = [part.replace("value", "\\u0076alue") for part in parts]
    return "{" + ",".join(parts if chance.random() < 0.9 else []) + "}"


async def run(taken: Tool[..., Any], memory: Memory, calls: list[FunctionCall]) -> RunResult[Any]:
    async with Harness(model=ScriptedModel(calls, "done"), memory=memory) as harness:
        return await harness.run(loop(call_model(tools=[taken]), until=until.no_tool_calls()), "go")


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_no_spelling_passes_a_rule_that_denies(case: Case) -> None:
    name, taken, rule, make, falls_under = case
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)  # noqa: T201 # shown when it fails
    chance = random.Random(f"{seed} {name}")
    texts = [spelled(chance, make) for _ in range(SPELLINGS)]

    # Each rule has something to keep out, and each tool something to receive.
    given: list[Any] = []
    for each in texts:
        try:
            values = taken.parse(each)
        except ToolArgumentsInvalid:
            continue
        given.append(values.get("value", default_of(taken)))
    assert any(map(falls_under, given)), "nothing to deny"
    assert not all(map(falls_under, given)), "nothing to let through"

    class Mem(Memory):
        permissions: Permissions = Permissions(rules=[rule, PermissionRule("allow", "*")])

    await run(taken, Mem(), [FunctionCall(name="take", arguments=each) for each in texts])
    assert [value for value in received if falls_under(value)] == []
    assert received, "all were refused"


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
async def test_what_a_rule_asks_for_is_not_made_without_an_answer(case: Case) -> None:
    name, taken, rule, make, falls_under = case
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)  # noqa: T201 # shown when it fails
    chance = random.Random(f"{seed} {name}")
    asks = attrs.evolve(rule, action="ask")
    for _ in range(SPELLINGS):
        try:
            values = taken.parse(spelled(chance, make))
        except ToolArgumentsInvalid:
            continue
        shown = taken.received(values)
        value = values.get("value", default_of(taken))
        if falls_under(value):
            assert decide([asks], "take", shown, otherwise="allow")[0] == "ask", (value, shown)
            # What cannot be judged does not open what is closed.
            assert decide([asks], "take", shown, otherwise="deny")[0] in ("ask", "deny")


# -------------------------------------------------------------------------------------------------- one after the other


def test_a_rule_that_allows_has_to_fit_for_sure() -> None:
    folder = PermissionRule("allow", "read", within="paths", folders=["/srv"])
    one = PermissionRule("allow", "read", where={"paths": "a"})
    for paths, fits in (
        ("/srv/a", True),
        (["/srv/a", "/srv/b"], True),
        (["/srv/a", "/etc/b"], False),
        ([], False),
        (None, False),
        ([["/srv/a"]], False),
        ("/srv/\0", False),
        ("", False),
        ({"/srv/a": "/srv/b"}, False),
        ("[not shown: Db]", False),
    ):
        assert folder.fits("read", {"paths": paths}) is fits, paths
        assert attrs.evolve(folder, action="deny").fits("read", {"paths": paths}) is (paths != "/etc"), paths
    assert not attrs.evolve(folder, action="deny").fits("read", {"paths": ["/etc/a", "/etc/b"]})
    assert one.fits("read", {"paths": "a"})
    assert not one.fits("read", {"paths": ["a"]})
    assert PermissionRule("deny", "read", where={"paths": "a"}).fits("read", {"paths": ["b", {"x": "a"}]})
    assert PermissionRule("deny", "read", where={"paths": "x"}).fits("read", {"paths": ["b", {"x": "a"}]})


@pytest.mark.parametrize("action", ["deny", "ask"])
def test_what_cannot_be_judged_counts_against_a_call(action: Any) -> None:
    rule = PermissionRule(action, "t", where={"x": "prod"})
    for value in ("[secret]", "[not shown: Db]", ["a", "[secret]"]):
        assert decide([rule], "t", {"x": value}, otherwise="allow") == (action, rule), value
    assert decide([rule], "t", None, otherwise="allow") == (action, rule)
    assert decide([rule], "t", {"y": "prod"}, otherwise="allow") == ("allow", None)
    assert decide([PermissionRule(action, "t")], "t", None, otherwise="allow")[0] == action
    # A rule that may ask does not open what nothing allows.
    assert decide([rule], "t", None, otherwise="deny")[0] == "deny"
    always = PermissionRule("allow", "t", where={"x": "*"})
    assert decide([always], "t", {"x": "[secret]"}, otherwise="deny")[0] == "allow"
    some = PermissionRule("allow", "t", where={"x": "[!p]*"})
    assert decide([some], "t", {"x": "[secret]"}, otherwise="deny")[0] == "deny"


def test_numbers_are_compared_as_numbers() -> None:
    for pattern in ("1000", "1000.00", "1e3", "+1000"):
        for value in (1000, 1000.0):
            assert PermissionRule("allow", "t", where={"x": pattern}).fits("t", {"x": value}), (pattern, value)
        assert PermissionRule("deny", "t", where={"x": pattern}).fits("t", {"x": "1e3"}), pattern
        assert not PermissionRule("allow", "t", where={"x": pattern}).fits("t", {"x": "10e2"}), pattern
    assert not PermissionRule("deny", "t", where={"x": "1"}).fits("t", {"x": True})
    assert PermissionRule("deny", "t", where={"x": "10000*"}).fits("t", {"x": 1e22})
    assert PermissionRule("deny", "t", where={"x": "True"}).fits("t", {"x": True})
    assert not PermissionRule("deny", "t", where={"x": "1e999999999"}).fits("t", {"x": "1e999999999x"})


SAME = {
    "2031-01-01T00:00:00+00:00": ["2031-01-01T00:00:00Z", "2031-01-01T14:00:00+14:00", "2031-01-01 00:00:00z"],
    "1924992000": ["2031-01-01T00:00:00Z"],
    "12:00": ["12:00:00", "12:00:00.000000"],
    "3600": ["PT1H", "PT60M", "3600.0"],
    "1:00:00": ["PT1H"],
    "F47AC10B-58CC-4372-A567-0E02B2C3D479": [
        "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        "f47ac10b58cc4372a5670e02b2c3d479",
    ],
    "https://Example.org": ["https://example.org/", "HTTPS://EXAMPLE.ORG:443/"],
    "0:0::1": ["::1"],
}


@pytest.mark.parametrize("pattern", SAME)
def test_what_denies_fits_a_value_however_either_is_written(pattern: str) -> None:
    rule = PermissionRule("deny", "t", where={"x": pattern})
    for value in SAME[pattern]:
        assert rule.fits("t", {"x": value}), value
        assert rule.fits("t", {"x": ["other", {"at": value}]}), value
        # Whether they are the same is for the tool to say, so nothing is opened by it.
        assert attrs.evolve(rule, action="allow").fits("t", {"x": value}) is (value == "3600.0" and pattern == value)
    for other in ("2031-01-01T00:00:01Z", "PT2H", "12:00:01", str(UUID(int=1)), "https://example.com/", "::2", 5, "x"):
        assert not rule.fits("t", {"x": other}), other
    assert not rule.fits("t", {"x": pattern + "0" * 300})


HOME = str(Path.home())


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        ("~/keys", f"{HOME}/keys/id"),
        ("~/keys", "~/keys/id"),
        ("~/keys", "~/other/../keys"),
        (f"{HOME}/keys", "$HOME/keys/id"),
        (f"{HOME}/keys", "${HOME}/keys/id"),
        ("/srv/keys", "/SRV/Keys/id"),
        ("/srv/Ké", "/srv/ke\u0301/id"),
        ("/srv/ﬁle", "/srv/file"),
        ("/srv/keys", "file:///srv/keys/id"),
        ("/srv/keys", "FILE://localhost/srv/%6beys/id"),
        ("/srv/keys", "file:/srv/keys/id"),
        ("/srv/keys", "sftp://host/srv/keys/id"),
        ("/", "anything"),
    ],
)
def test_no_way_of_writing_a_path_leads_into_a_folder_that_is_denied(folder: str, path: str) -> None:
    rule = PermissionRule("deny", "read", within="path", folders=[folder])
    assert rule.fits("read", {"path": path})
    assert not rule.fits("read", {"path": "/srv/keysmith/id"}) or folder == "/"


def test_a_path_that_may_be_elsewhere_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rule = PermissionRule("allow", "read", within="path", folders=["."])
    assert rule.fits("read", {"path": "notes:today"})
    for path in ("file:///etc/shadow", "https://example.org/a", "$HOME/a", "~/a"):
        assert not rule.fits("read", {"path": path}), path


def test_letters_that_look_alike_are_different_texts() -> None:
    rule = PermissionRule("deny", "t", where={"x": "prod"})
    assert rule.fits("t", {"x": "prod"})
    assert not rule.fits("t", {"x": "рrоd"})  # noqa: RUF001 # two letters are Cyrillic, which is the point
    composed, decomposed = "\u00e9", "e\u0301"
    assert not PermissionRule("deny", "t", where={"x": composed}).fits("t", {"x": decomposed})
    assert PermissionRule("deny", "t", where={"x": "*é*"}).fits("t", {"x": {"é": 1}})


@attrs.frozen
class Spot:
    x: int


class Names(RootModel[list[str]]):
    pass


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclasses.dataclass
class Made:
    days: int
    target: dataclasses.InitVar[str]

    def __post_init__(self, target: str) -> None:
        self.goal = target


class Odd:
    pass


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\xff", "[not shown: bytes]"),
        (bytearray(b"a"), "a"),
        ({1: "a"}, {"1": "a"}),
        ({1: "a", "1": "b"}, "[not shown: dict]"),
        ({Mode.PROD: 1}, {"prod": 1}),
        ({"b", "a"}, ["a", "b"]),
        (Spot(1), {"x": 1}),
        (Names(["a"]), ["a"]),
        (Loose.model_validate({"extra": 1}), {"extra": 1}),
        (Place.model_validate({"where": "a"}), {"where": "a"}),
        (Secret("open sesame"), "[secret]"),
        (SecretStr("open sesame"), "[secret]"),
        (Made(1, "prod"), {"days": 1, "target": "[not shown: only read when it is made]"}),
        (Odd, "[not shown: type]"),
        (iter([1]), "[not shown: list_iterator]"),
        (IPv4Address("127.0.0.1"), "127.0.0.1"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1E+3"), "1000"),
        (Decimal("10.500"), "10.5"),
        (Decimal("-0.00"), "0"),
        (Decimal("1E+999999"), "1E+999999"),
        (Decimal("NaN"), "NaN"),
        (Odd(), "[not shown: Odd]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_shown_of_a_value(value: Any, shown: Any) -> None:
    assert as_received(value) == shown


def test_a_value_that_is_nested_too_deeply_is_not_shown() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert as_received(deep) == "[not shown: list]"


async def test_a_secret_argument_cannot_be_judged() -> None:
    async def take(value: Secret[str], other: str = "x") -> str:
        received.append(value)
        return "taken"

    class Mem(Memory):
        permissions: Permissions = Permissions(rules=[denies("open*"), PermissionRule("allow", "*")])

    result = await run(tool(take), Mem(), [FunctionCall(name="take", arguments={"value": "closed"})])
    assert received == []
    assert any("refused" in str(getattr(item, "output", "")) for item in result.items)


async def test_a_tool_from_a_schema_is_judged_with_the_schema_s_defaults() -> None:
    async def deploy(**values: Any) -> str:
        received.append(values)
        return "deployed"

    schema: Any = {
        "type": "object",
        "properties": {"target": {"type": "string", "default": "prod"}, "region": {"type": "string"}},
    }
    taken = Tool.from_schema(deploy, parameters=schema, name="deploy")
    assert taken.received({}) == {"target": "prod", "region": "[not shown: not sent, the tool decides]"}
    assert Tool.from_schema(deploy, parameters={}, name="deploy").received({"a": 1}) == {"a": 1}
    # The tool itself gets what was sent.
    for rule, sent, expected in (
        (PermissionRule("deny", "deploy", where={"target": "prod"}), {}, []),
        (PermissionRule("deny", "deploy", where={"region": "eu"}), {}, []),
        (PermissionRule("deny", "deploy", where={"region": "eu"}), {"region": "us"}, [{"region": "us"}]),
    ):
        received.clear()

        class Mem(Memory):
            permissions: Permissions = Permissions(rules=[rule], otherwise="allow")

        await run(taken, Mem(), [FunctionCall(name="deploy", arguments=sent)])
        assert received == expected, (rule, sent)


PLACE: Any = {"type": "object", "properties": {"target": {"default": "prod"}, "days": {"default": 1}}}
DRAFT_7: Any = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"Place": PLACE}}
HERE: Any = {"$ref": "#/definitions/Place"}
WHOLE = {"target": "prod", "days": 1}
UNKNOWN = "[not shown: not sent, the tool decides]"


SCHEMAS: list[tuple[Any, Any, Any]] = [
    (PLACE, {"days": 2}, {"target": "prod", "days": 2}),
    (DRAFT_7 | HERE, {}, WHOLE),
    ({"allOf": [PLACE, {"properties": {"more": {}}}]}, {}, {**WHOLE, "more": UNKNOWN}),
    (DRAFT_7 | {"properties": {"at": HERE}}, {"at": {}}, {"at": WHOLE}),
    (DRAFT_7 | {"properties": {"at": {**HERE, "default": {}}}}, {}, {"at": WHOLE}),
    (DRAFT_7 | {"properties": {"at": {"anyOf": [{"type": "null"}, HERE]}}}, {"at": {}}, {"at": WHOLE}),
    (DRAFT_7 | {"properties": {"at": {"anyOf": [{"type": "null"}, HERE]}}}, {"at": None}, {"at": None}),
    (
        DRAFT_7 | {"properties": {"at": {"items": HERE}}},
        {"at": [{}, {"days": 2}]},
        {"at": [WHOLE, {**WHOLE, "days": 2}]},
    ),
    (DRAFT_7 | {"properties": {"at": {"items": [HERE]}}}, {"at": [{}, {}]}, {"at": [WHOLE, {}]}),
    ({"properties": {"at": {"prefixItems": [{}, PLACE]}}}, {"at": [{}, {}, {}]}, {"at": [{}, WHOLE, {}]}),
    ({"additionalProperties": PLACE}, {"a": {}}, {"a": WHOLE}),
    (
        {"properties": {"at": {"$ref": "#"}, "n": {"default": 1}}},
        {"at": {"at": {}}},
        {"at": {"at": {"n": 1, "at": UNKNOWN}, "n": 1}, "n": 1},
    ),
    ({"properties": {"at": {"$ref": "#/nowhere"}}}, {}, {"at": UNKNOWN}),
    (
        {
            "oneOf": [
                {"properties": {"kind": {"const": "a"}, "x": {"default": 1}}},
                {"properties": {"kind": {"const": "b"}, "y": {"default": 2}}},
            ]
        },
        {"kind": "b"},
        {"kind": "b", "y": 2},
    ),
]


@pytest.mark.parametrize(("schema", "sent", "shown"), SCHEMAS)
def test_defaults_of_a_schema_are_found_wherever_they_stand(schema: Any, sent: Any, shown: Any) -> None:
    async def take(**values: Any) -> str:
        return "taken"

    def bare(value: Any) -> Any:
        if not is_dict(value):
            return value
        return {name: bare(each) for name, each in value.items() if each != UNKNOWN}

    found = Tool.from_schema(take, parameters=schema, name="take").received(sent)
    assert bare(found) == bare(shown)
    assert [name for name, each in found.items() if each == UNKNOWN] == [
        n for n, each in shown.items() if each == UNKNOWN
    ]


def test_a_function_s_own_default_is_what_it_gets_whatever_its_schema_says() -> None:
    async def deploy(target: str = "prod", days: int = 1, **values: Any) -> str:
        return "deployed"

    schema: Any = {"properties": {"target": {"default": "staging"}, "region": {}}}
    taken = Tool.from_schema(deploy, parameters=schema, name="deploy")
    assert taken.received({}) == {"target": "prod", "region": UNKNOWN, "days": 1}
    assert taken.received({"target": "x", "days": 2, "region": "eu"}) == {"target": "x", "region": "eu", "days": 2}


async def test_a_default_that_only_the_annotation_has_is_received() -> None:
    @tool
    async def take(value: Annotated[str, Field(default="prod")], other: int = 1) -> str:
        """Take."""
        received.append((value, other))
        return "taken"

    assert take.received(take.parse("{}")) == {"value": "prod", "other": 1}
    await run(take, Memory(), [FunctionCall(name="take", arguments={})])
    assert received == [("prod", 1)]


# ------------------------------------------------------------------------------------------------------------ approvals


class Ticket(BaseModel):
    id: UUID = Field(default_factory=uuid4)
    urgent: bool = False


async def test_who_approves_sees_what_the_tool_will_receive(backend: CheckpointBackend) -> None:
    judged: list[str] = []

    async def dear(call: FunctionCall, ctx: ReadContext) -> bool:
        judged.append(call.arguments)
        return bool(json.loads(call.arguments)["amount"] >= 1000)

    @tool(needs_approval=dear)
    async def pay(amount: int, ticket: Ticket, to: str = "ada") -> str:
        """Pay."""
        received.append((amount, ticket, to))
        return "paid"

    sent = '{"amount": "+1000", "ticket": {"urgent": "yes"}}'
    flow = loop(call_model(tools=[pay]), until=until.no_tool_calls())
    model = ScriptedModel(FunctionCall(name="pay", arguments=sent), "done")
    async with Harness(model=model, checkpoints=backend) as harness:
        waiting = await harness.run(flow, "go", run_id="r")
        (pending,) = waiting.pending
        shown: Any = pending.arguments
        assert shown == {"amount": 1000, "ticket": {"id": shown["ticket"]["id"], "urgent": True}, "to": "ada"}
        assert [json.loads(each) for each in judged] == [shown]
        result = await harness.resume("r", flow, answers=[pending.approve()])
    # The id is new each time that the arguments are parsed; the one that was approved counts.
    assert received == [(1000, Ticket(id=UUID(shown["ticket"]["id"]), urgent=True), "ada")]
    assert [item.arguments for item in result.items if isinstance(item, FunctionCall)] == [sent]
    assert result.value == "done"


numbers = itertools.count()


async def test_a_call_of_other_arguments_than_those_approved_is_asked_for_again() -> None:
    class Numbered(BaseModel):
        # What is shown is not what comes out when that is read again.
        number: Annotated[str, Field(default_factory=lambda: str(next(numbers)))]

        def __init__(self, **values: Any) -> None:
            super().__init__()

    @tool(needs_approval=True)
    async def pay(order: Numbered) -> str:
        """Pay."""
        received.append(order)
        return "paid"

    flow = loop(call_model(tools=[pay]), until=until.no_tool_calls())
    model = ScriptedModel(FunctionCall(name="pay", arguments={"order": {}}), "done")
    async with Harness(model=model, checkpoints=InMemoryBackend()) as harness:
        waiting = await harness.run(flow, "go", run_id="r")
        again = await harness.resume("r", flow, answers=[waiting.pending[0].approve()])
        assert again.status == "suspended"
        assert "other arguments" in (again.pending[0].problem or "")
    assert received == []


async def test_a_step_that_calls_a_tool_shows_what_it_will_receive(backend: CheckpointBackend) -> None:
    @tool(needs_approval=True)
    async def pay(amount: int, ticket: Ticket, to: str = "ada") -> str:
        """Pay."""
        received.append((amount, str(ticket.id), to))
        return "paid"

    flow = call_tool(pay, args={"amount": "1000", "ticket": {}})
    async with Harness(checkpoints=backend) as harness:
        waiting = await harness.run(flow, None, run_id="r")
        shown: Any = waiting.pending[0].arguments
        assert (shown["amount"], shown["to"]) == (1000, "ada")
        result = await harness.resume("r", flow, answers=[waiting.pending[0].approve()])
    assert result.value == "paid"
    assert received == [(1000, shown["ticket"]["id"], "ada")]


async def test_the_journal_says_what_a_tool_received(backend: CheckpointBackend) -> None:
    @tool
    async def pay(amount: int, to: str = "ada") -> str:
        """Pay."""
        return "paid"

    calls = [
        FunctionCall(name="pay", arguments='{"amount": "1000"}'),
        FunctionCall(name="pay", arguments='{"to": "bob", "amount": 2}'),
    ]
    flow = loop(call_model(tools=[pay]), until=until.no_tool_calls())
    async with Harness(model=ScriptedModel(calls, "done"), checkpoints=backend) as harness:
        await harness.run(flow, "go", run_id="r")
    journal = await read_journal(backend, "r", PlainCodec())
    told = [record.value for record in journal if isinstance(record, Decision) and record.key == "arguments"]
    assert told == ['{"amount":1000,"to":"ada"}']


# ----------------------------------------------------------------------------------------------------- hooks and layers


async def test_hooks_and_layers_are_given_what_the_tool_will_receive() -> None:
    seen: list[str] = []

    @before_tool
    async def look(ctx: HookContext, call: FunctionCall) -> FunctionCall:
        seen.append(call.arguments)
        return attrs.evolve(call, arguments=json.dumps(json.loads(call.arguments) | {"to": "bob"}))

    @before_tool
    async def look_again(ctx: HookContext, call: FunctionCall) -> None:
        seen.append(call.arguments)

    class Looks(MemoryLayer[None]):
        async def before_tool_call(self, call: FunctionCall) -> FunctionCall:
            seen.append(call.arguments)
            return attrs.evolve(call, arguments=call.arguments.replace("1000", '"2_000"'))

    class Mem(Memory):
        permissions: Permissions = Permissions(
            rules=[PermissionRule("deny", "pay", where={"amount": "2000", "to": "bob"})], otherwise="allow"
        )
        looks: Looks = Looks()

    @tool(hooks=[look, look_again])
    async def pay(amount: int, password: Secret[str], to: str = "ada") -> str:
        """Pay."""
        received.append((amount, password.reveal(), to))
        return "paid"

    sent = FunctionCall(name="pay", arguments={"amount": "+1000", "password": "open sesame"})
    result = await run(pay, Mem(), [sent])
    shown = '{"amount":1000,"password":"[secret]","to":"%s"}'
    assert seen == [shown % "ada", shown % "bob", shown % "bob"]
    # The layer stands behind the rules, and yet they judge what it made of the call.
    assert received == []
    output = next(item for item in result.items if isinstance(item, FunctionCallOutput))
    assert "refused" in str(output.output)

    class Open(Memory):
        looks: Looks = Looks()

    await run(pay, Open(), [sent])
    assert received == [(2000, "open sesame", "bob")]


async def test_a_hook_may_mend_arguments_that_do_not_fit() -> None:
    @before_tool
    async def mend(ctx: HookContext, call: FunctionCall) -> FunctionCall:
        return attrs.evolve(call, arguments='{"value": 7}')

    async def take(value: int) -> str:
        received.append(value)
        return "taken"

    for sent in ('{"value": "many"}', '["value"]', '{"value'):
        received.clear()
        await run(tool(hooks=[mend])(take), Memory(), [FunctionCall(name="take", arguments=sent)])
        assert received == [7]


async def test_what_does_not_fit_is_told_before_anybody_is_asked() -> None:
    @tool(needs_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    result = await run(pay, Memory(), [FunctionCall(name="pay", arguments={"amount": "much"})])
    output = next(item for item in result.items if isinstance(item, FunctionCallOutput))
    assert "valid integer" in str(output.output)


async def test_the_context_is_no_argument() -> None:
    class Db:
        pass

    async def take(ctx: Context, db: Db, value: str = "x") -> str:
        return "taken"

    assert tool(take).received({}) == {"value": "x"}
    assert tool(take).received({"db": Db()}) == {"value": "x", "db": "[not shown: Db]"}
