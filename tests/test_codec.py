"""The wire form of items and the stored form of values."""

from __future__ import annotations

import base64
import collections
import dataclasses
import enum
import inspect
import json
import re
import string
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py import Secret
from noetic_py.core import codec
from noetic_py.core.codec import Codec, from_wire, from_wire_json, to_wire, to_wire_json
from noetic_py.core.codec import structure as json_text
from noetic_py.core.codec.structure import check_nesting, is_named_tuple, kind_name
from noetic_py.core.codec.wire import check_size
from noetic_py.core.items import (
    ContentPart,
    Extension,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemBase,
    JsonValue,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
    extension_item,
)
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError, ConfigError, ItemSchemaMismatch, LimitExceeded, NoeticError
from noetic_py.memory import Episode

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


@attrs.frozen
class Place:
    name: str
    height: float = 0.0


@extension_item("test-codec:report")
class Report(Extension):
    title: str
    place: Place | None = None
    tags: tuple[str, ...] = ()
    seen: frozenset[int] = frozenset()
    raw: bytes = b""
    day: date | None = None
    price: Decimal | None = None


@attrs.frozen
class Keyed:
    key: Secret[str]
    more: Secret[list[int]]


@attrs.frozen
class Other:
    n: int


@attrs.frozen
class More(Other):
    name: str


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# ------------------------------------------------------------------------------------------------ wire: items

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.text(string.ascii_letters, min_size=1, max_size=10)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
extras = st.none() | st.dictionaries(words.map(lambda word: f"x_{word}"), json_values, min_size=1, max_size=3)
input_texts = st.builds(InputText, text=texts, extra=extras)
images = st.builds(InputImage, url=texts, detail=st.sampled_from([None, "low", "high", "auto"])) | st.builds(
    InputImage, data=st.binary(max_size=20), media_type=st.sampled_from(["image/png", "image/svg+xml"]), extra=extras
)
files = st.one_of(
    st.builds(InputFile, url=texts, filename=st.none() | texts),
    st.builds(InputFile, file_id=texts),
    st.builds(InputFile, data=st.binary(max_size=20), filename=st.sampled_from([None, "a.pdf", "b.unknown"])),
    st.builds(InputFile, data=st.binary(max_size=20), media_type=st.sampled_from(["", "text/plain;charset=utf-8"])),
)
output_texts = st.builds(OutputText, text=texts, extra=extras)
refusals = st.builds(Refusal, refusal=texts, extra=extras)
parts = st.lists(st.one_of(input_texts, images, files, output_texts, refusals), max_size=3)
statuses = st.sampled_from(["in_progress", "completed", "incomplete", "failed"])
messages = st.builds(
    Message,
    role=st.sampled_from(["user", "assistant", "system", "developer"]),
    content=parts,
    status=statuses,
    id=st.none() | words,
    extra=extras,
)
calls = st.builds(FunctionCall, name=texts, arguments=texts, call_id=texts, status=statuses, extra=extras)
outputs = st.builds(FunctionCallOutput, call_id=texts, output=texts | parts, status=statuses, extra=extras)
thoughts = st.builds(
    Reasoning,
    content=st.lists(output_texts, max_size=2),
    summary=st.lists(output_texts, max_size=2),
    encrypted_content=st.none() | texts,
    extra=extras,
)
reports = st.builds(
    Report,
    title=texts,
    place=st.none() | st.builds(Place, texts, st.floats(allow_nan=False, allow_infinity=False)),
    tags=st.lists(texts, max_size=3).map(tuple),
    seen=st.frozensets(st.integers(), max_size=3),
    raw=st.binary(max_size=10),
    day=st.none() | st.dates(),
    price=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    status=statuses,
    extra=extras,
)
opaques = st.dictionaries(texts, json_values, max_size=3).map(
    lambda data: Opaque(raw=json.dumps({**data, "type": "web_search_call", "id": "ws"}).encode())
)
items: st.SearchStrategy[Item] = st.one_of(messages, calls, outputs, thoughts, reports, opaques)


@given(items)
def test_items_survive_the_wire(item: Item) -> None:
    assert from_wire_json(to_wire_json(item)) == item
    if not isinstance(item, Opaque):
        assert from_wire(to_wire(item)) == item
    assert from_wire_json(to_wire_json(item).decode()) == item


@given(items)
def test_items_survive_storing(item: Item) -> None:
    store = Codec()
    assert store.loads(store.dumps(item)) == item
    assert store.loads(store.dumps([item]), list[Item]) == [item]
    assert store.loads(store.dumps(item), type(item)) == item


def test_that_an_output_stands_for_an_answer_is_stored_and_not_on_the_wire() -> None:
    output = FunctionCallOutput(call_id="c", output="a", final=True)
    store = Codec()
    assert store.loads(store.dumps(output)) == output
    assert to_wire(output) == to_wire(attrs.evolve(output, final=False))
    assert from_wire(to_wire(output)) == attrs.evolve(output, final=False)
    # A type that came after it was stored, and is no output, is left as it is.
    other = store.encode(Message.user("hi"))
    assert store.decode({**other, "final": True}) == store.decode(other)


def test_wire_names() -> None:
    message = Message(
        id="msg_1",
        role="user",
        content=[
            InputText(text="look"),
            InputImage(url="https://example.org/a.png", detail="low"),
            InputImage(data=b"\x89PNG", media_type="image/png"),
            InputFile(data=b"abc", filename="a.pdf"),
            InputFile(file_id="file_1"),
            InputFile(url="https://example.org/b.pdf"),
            OutputText(text="seen"),
            Refusal(refusal="no"),
        ],
    )
    assert to_wire(message) == {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "low"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="},
            {"type": "input_file", "file_data": "data:application/pdf;base64,YWJj", "filename": "a.pdf"},
            {"type": "input_file", "file_id": "file_1"},
            {"type": "input_file", "file_url": "https://example.org/b.pdf"},
            {"type": "output_text", "text": "seen", "annotations": []},
            {"type": "refusal", "refusal": "no"},
        ],
    }
    assert to_wire(FunctionCall(id="fc", call_id="c", name="n", arguments='{"a": 1}')) == {
        "type": "function_call",
        "id": "fc",
        "status": "completed",
        "call_id": "c",
        "name": "n",
        "arguments": '{"a": 1}',
    }
    assert to_wire(FunctionCallOutput(id="fo", call_id="c", output=["a"], status="failed")) == {
        "type": "function_call_output",
        "id": "fo",
        "status": "failed",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "a"}],
    }
    assert to_wire(Reasoning(id="rs", content="long", summary="short", encrypted_content="AA+/")) == {
        "type": "reasoning",
        "id": "rs",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "long"}],
        "encrypted_content": "AA+/",
    }
    assert to_wire(Reasoning(id="rs")) == {"type": "reasoning", "id": "rs", "status": "completed", "summary": []}
    assert to_wire(Report(id="r", title="t", day=date(2030, 1, 2))) == {
        "type": "test-codec:report",
        "id": "r",
        "status": "completed",
        "data": {
            "title": "t", "place": None, "tags": [], "seen": [], "raw": "", "day": "2030-01-02", "price": None,
        },
    }  # fmt: skip


def test_what_a_provider_leaves_out_is_filled_in() -> None:
    item = from_wire({"role": "user", "content": "hi"})
    assert isinstance(item, Message)
    assert item.content == (InputText(text="hi"),)
    assert item.status == "completed"
    assert item.id
    thought = from_wire(
        {"type": "reasoning", "id": "rs", "summary": [], "content": None, "encrypted_content": None, "status": None}
    )
    assert thought == Reasoning(id="rs")


def test_unknown_fields_are_kept() -> None:
    wire: dict[str, Any] = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "phase": "final",
        "content": [{"type": "output_text", "text": "x", "annotations": [{"url": "u"}], "logprobs": []}],
    }
    item = from_wire(wire)
    assert isinstance(item, Message)
    assert item.extra == {"phase": "final"}
    assert to_wire(item) == wire


def test_an_empty_list_of_annotations_is_nothing_special() -> None:
    wire: dict[str, Any] = {"type": "output_text", "text": "x", "annotations": []}
    item = from_wire({"type": "message", "role": "assistant", "content": [wire]})
    assert isinstance(item, Message)
    assert item.content == (OutputText(text="x"),)


def test_extra_cannot_take_a_name() -> None:
    message = Message(role="user", content="x", id="1", extra={"role": "system", "type": "reasoning", "more": 1})
    wire = to_wire(message)
    assert (wire["role"], wire["type"], wire["more"]) == ("user", "message", 1)


def test_unknown_fields_of_a_payload_are_kept() -> None:
    wire: dict[str, Any] = {
        "type": "test-codec:report",
        "id": "r",
        "status": "completed",
        "data": {"title": "t", "id": "shadow", "new": [1]},
        "more": True,
    }
    item = from_wire(wire)
    assert isinstance(item, Report)
    assert item.title == "t"
    assert item.id == "r"
    assert item.extra == {"data": {"id": "shadow", "new": [1]}, "more": True}
    back = to_wire(item)
    data = back["data"]
    assert isinstance(data, dict)
    assert (data["new"], data["id"], data["title"], back["more"]) == ([1], "shadow", "t", True)
    assert from_wire(back) == item


@pytest.mark.parametrize(
    "wire",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "tides"}},
        {"type": "acme:unregistered", "id": "a", "data": {"x": 1}},
        {"type": "message", "role": "user", "id": "m", "content": [{"type": "input_audio", "data": "AA"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_image", "text": "x"}]},
        {"type": "item_reference", "id": "i", "status": "odd"},
    ],
)
def test_what_is_unknown_stays_whole(wire: dict[str, Any]) -> None:
    raw = json.dumps(wire, indent=3).encode() + b" "
    item = from_wire_json(raw)
    assert isinstance(item, Opaque)
    assert item.raw == raw
    assert item.id == wire["id"]
    assert item.type == wire["type"]
    assert to_wire_json(item) is item.raw
    assert to_wire(item) == wire
    again = from_wire(wire)
    assert isinstance(again, Opaque)
    assert json.loads(again.raw) == wire
    assert from_wire_json(raw.decode()) == item


def test_an_opaque_without_an_id_gets_one() -> None:
    item = from_wire_json(b'{"type":"compaction","id":""}')
    assert item.id
    store = Codec()
    assert store.loads(store.dumps(item)) == item


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "data:image/png,raw",
        "data:image/png;base64,AAA",
        "data:image/png;base64,AAB=",
        "data:image/png;charset=x;base64,AA AA",
        "data:;base64,AAAA",
        "data:image/png;base64,ÄÄÄÄ",
    ],
)
def test_urls_that_would_change_stay_urls(url: str) -> None:
    wire: dict[str, Any] = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}
    item = from_wire(wire)
    assert isinstance(item, Message)
    assert item.content == (InputImage(url=url),)
    assert to_wire(item)["content"] == wire["content"]


@given(st.binary(max_size=100))
def test_image_bytes_become_a_data_url(data: bytes) -> None:
    wire = to_wire(Message.user([InputImage(data=data, media_type="image/png")]))
    content: Any = wire["content"]
    assert content[0]["image_url"] == f"data:image/png;base64,{base64.b64encode(data).decode()}"


def test_a_file_by_plain_base64() -> None:
    wire: dict[str, Any] = {"type": "message", "role": "user", "content": [{"type": "input_file", "file_data": "YWJj"}]}
    item = from_wire(wire)
    assert isinstance(item, Message)
    assert item.content == (InputFile(data=b"abc", media_type=""),)
    assert to_wire(item)["content"] == wire["content"]


def content(part: object) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}, part]}


MISMATCHES: list[tuple[Any, str]] = [
    ([], ""),
    ({}, "type"),
    ({"type": 5}, "type"),
    ({"type": ""}, "type"),
    ({"type": "message", "content": "x"}, "role"),
    ({"type": "message", "role": "tool", "content": "x"}, "role"),
    ({"type": "message", "role": ["user"], "content": "x"}, "role"),
    ({"type": "message", "role": "user"}, "content"),
    ({"type": "message", "role": "user", "content": 5}, "content"),
    ({"type": "message", "role": "user", "content": "x", "status": "done"}, "status"),
    ({"type": "message", "role": "user", "content": "x", "status": {}}, "status"),
    ({"type": "message", "role": "user", "content": "x", "id": 5}, "id"),
    (content("x"), "content[1]"),
    (content({"text": "x"}), "content[1].type"),
    (content({"type": "input_text"}), "content[1].text"),
    (content({"type": "output_text", "text": None}), "content[1].text"),
    (content({"type": "refusal", "refusal": 1}), "content[1].refusal"),
    (content({"type": "input_image"}), "content[1]"),
    (content({"type": "input_image", "image_url": 5}), "content[1].image_url"),
    (content({"type": "input_file", "file_id": "a", "file_url": "b"}), "content[1]"),
    (content({"type": "input_file", "file_data": "no base64!"}), "content[1].file_data"),
    ({"type": "function_call", "call_id": "c", "name": "n"}, "arguments"),
    ({"type": "function_call", "call_id": "c", "name": "n", "arguments": {}}, "arguments"),
    ({"type": "function_call", "name": "n", "arguments": "{}"}, "call_id"),
    ({"type": "function_call_output", "call_id": "c"}, "output"),
    ({"type": "reasoning", "summary": "x"}, "summary"),
    ({"type": "reasoning", "summary": [{"type": "summary_text"}]}, "summary[0].text"),
    ({"type": "test-codec:report", "data": 5}, "data"),
    ({"type": "test-codec:report", "data": {}}, "data.title"),
    ({"type": "test-codec:report"}, "data.title"),
    ({"type": "test-codec:report", "data": {"title": 5}}, "data.title"),
    ({"type": "test-codec:report", "data": {"title": "x", "tags": ["a", 5]}}, "data.tags[1]"),
    ({"type": "test-codec:report", "data": {"title": "x", "place": {"name": 5}}}, "data.place.name"),
    ({"type": "test-codec:report", "data": {"title": "x", "place": {"name": "x", "no": 1}}}, "data.place"),
    ({"type": "test-codec:report", "data": {"title": "x", "day": "soon"}}, "data.day"),
    ({"type": "test-codec:report", "data": {"title": "x", "seen": [[]]}}, "data.seen[0]"),
]


@pytest.mark.parametrize(("wire", "where"), MISMATCHES)
def test_mismatches_name_the_field(wire: Any, where: str) -> None:
    with pytest.raises(ItemSchemaMismatch) as caught:
        from_wire(wire)
    assert caught.value.where == where
    with pytest.raises(ItemSchemaMismatch):
        from_wire_json(json.dumps(wire))


@given(json_values)
def test_any_json_gives_an_item_or_a_named_error(value: Any) -> None:
    for data in (value, {"type": "message", "role": "user", "content": value}, {"type": "x:y", "data": value}):
        try:
            item = from_wire(data)
        except NoeticError:
            continue
        assert isinstance(item, ItemBase)


def test_only_items_have_a_wire_form() -> None:
    class Strange(ContentPart):
        pass

    base = ItemBase(id="1", status="completed", extra=None)
    with pytest.raises(CodecError, match="is not a valid item"):
        to_wire(base)
    with pytest.raises(CodecError, match="is not a valid content part"):
        to_wire(Message.user([Strange()]))


@extension_item("test-codec:free")
class Free(Extension):
    value: object


def test_a_payload_without_a_json_form_is_named() -> None:
    with pytest.raises(CodecError) as caught:
        to_wire(Free(value=object()))
    assert caught.value.where == "data"
    with pytest.raises(CodecError) as caught:
        Codec().dumps({"a": Free(value=object())})
    assert caught.value.where == "['a'].data"
    with pytest.raises(CodecError, match="not JSON compliant"):
        to_wire_json(Free(value=float("nan")))


def test_nothing_is_imported_by_name() -> None:
    before = set(sys.modules)
    for name in ("antigravity:x", "os:system", "antigravity"):
        assert isinstance(from_wire({"type": name, "data": {"x": 1}}), Opaque)
    with pytest.raises(CodecError, match="no such class"):
        Codec().loads(b'{"$":"object:antigravity.Thing"}')
    assert set(sys.modules) == before


# ------------------------------------------------------------------------------------------------ JSON text


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"NaN", b"[Infinity]", b"1e999", b"-1e999", b'{"a":1,"a":2}', b"9" * 5000, b"\xef\xbb\xbf1"],
)
def test_malformed_text_is_a_codec_error(text: bytes) -> None:
    with pytest.raises(CodecError):
        from_wire_json(text)
    with pytest.raises(CodecError):
        Codec().loads(text)


@pytest.mark.parametrize("depth", [65, 1000, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    bomb = b"[" * depth + b"]" * depth
    with pytest.raises(LimitExceeded) as caught:
        Codec().loads(bomb)
    assert (caught.value.what, caught.value.limit) == ("nesting", 64)
    with pytest.raises(LimitExceeded):
        from_wire_json(b'{"type":"x","a":' + bomb[:-depth] + b"]" * depth + b"}")


@pytest.mark.parametrize("work", [Codec().encode, Codec().check, Codec().decode])
def test_deep_down_in_a_stack_the_limit_is_met_sooner(work: Callable[[Any], object]) -> None:
    def down(left: int) -> object:
        return work(nested(60)) if left == 0 else down(left - 1)

    with pytest.raises(LimitExceeded) as caught:
        down(sys.getrecursionlimit() - len(inspect.stack(0)) - 50)
    assert caught.value.what == "nesting"


def test_a_secret_that_a_type_declares() -> None:
    found = Codec().loads(b'{"key":"k1","more":[1]}', Keyed)
    assert (found.key.reveal(), found.more.reveal()) == ("k1", [1])
    # What is one already stays as it is: its name is all that was stored.
    kept = Codec().loads(
        Codec().dumps(Keyed(Secret("k1", name="db", stored="name"), Secret([1], name="m", stored="name"))), Keyed
    )
    assert (kept.key.name, kept.more.name) == ("db", "m")


def test_a_stored_instance_of_another_class_than_the_declared_one() -> None:
    store = Codec([Keyed, Other])
    with pytest.raises(CodecError, match="is a Keyed, not"):
        store.loads(store.dumps(Other(1)), Keyed)


def test_a_stored_instance_of_a_class_below_the_declared_one() -> None:
    store = Codec([Other, More])
    assert store.loads(store.dumps([More(1, "x")]), list[Other]) == [More(1, "x")]


def test_nesting_up_to_the_limit_is_fine() -> None:
    store = Codec()
    assert store.loads(store.dumps(nested(64))) == nested(64)
    with pytest.raises(LimitExceeded):
        store.dumps(nested(65))
    with pytest.raises(LimitExceeded):
        store.dumps(nested(5000))
    wide: list[Any] = [[[]]] * 100
    assert store.loads(store.dumps(wide)) == wide


@given(st.text('aä\n"', max_size=1500), st.integers(0, 5))
def test_an_item_is_as_large_as_its_text_says(said: str, kind: int) -> None:
    items: list[Item] = [
        Message.user(said),
        Message(role="user", content=(InputText(text=said), InputImage(url="https://example.org/a.png"))),
        Message(role="user", content=(InputImage(url="https://example.org/" + said),)),
        FunctionCall(name="look", arguments=json.dumps(said)),
        FunctionCallOutput(call_id="c", output=said),
        Reasoning(content=said),
    ]
    item = items[kind]
    data = to_wire_json(item)
    assert json_text.parse(data, len(data), "bytes") == to_wire(item)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noetic_py.core.codec.wire.MAX_ITEM_BYTES", len(data))
        assert to_wire_json(item) == data
        assert from_wire_json(data) == item
        patch.setattr("noetic_py.core.codec.wire.MAX_ITEM_BYTES", len(data) - 1)
        for refused in (lambda: to_wire_json(item), lambda: from_wire_json(data)):
            with pytest.raises(LimitExceeded, match="item size"):
                refused()
        # What is said of the size without writing the item is enough to refuse one that is too large.
        patch.setattr("noetic_py.core.codec.wire.MAX_ITEM_BYTES", 4000)
        try:
            check_size(item)
            assert len(data) <= 4000
        except LimitExceeded:
            assert len(data) > 4000


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(LimitExceeded):
        Codec().dumps(loop)
    for wire in ({"type": "x", "a": loop}, {"type": "message", "role": "user", "content": "x", "a": loop}):
        with pytest.raises(LimitExceeded):
            from_wire(wire)
    deep: Any = nested(2000)
    with pytest.raises(LimitExceeded):
        to_wire(Message(role="user", content="x", extra={"a": deep}))
    with pytest.raises(CodecError):
        to_wire(Free(value=deep))
    with pytest.raises(LimitExceeded):
        to_wire(Free(value=nested(70)))


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceeded) as caught:
        Codec(max_bytes=10).dumps("x" * 9)
    assert (caught.value.what, caught.value.limit) == ("value size", 10)
    with pytest.raises(LimitExceeded):
        Codec(max_bytes=10).loads(b'"xxxxxxxxx"')
    monkeypatch.setattr("noetic_py.core.codec.wire.MAX_ITEM_BYTES", 100)
    with pytest.raises(LimitExceeded) as caught:
        to_wire_json(Message.user("x" * 100))
    assert (caught.value.what, caught.value.limit) == ("item size", 100)
    with pytest.raises(LimitExceeded):
        from_wire_json(b" " * 101)


def test_lone_surrogates_survive() -> None:
    message = Message(role="user", content="a\ud800b", id="1", extra={"\udfff": ["\ud800"]})
    assert from_wire_json(to_wire_json(message)) == message
    opaque = from_wire({"type": "x", "id": "1", "a": "\ud800"})
    assert from_wire_json(to_wire_json(opaque)) == opaque
    store = Codec()
    assert store.loads(store.dumps({"a": "\ud800"})) == {"a": "\ud800"}


def test_a_pair_of_surrogates_is_refused() -> None:
    for text in ("\ud83d\ude00", "x\ud800\udc00"):
        with pytest.raises(CodecError, match="surrogates"):
            Codec().dumps([text])
        with pytest.raises(CodecError, match="surrogates"):
            to_wire_json(Message.user(text))


def test_a_text_with_a_bare_surrogate_is_no_json_text() -> None:
    with pytest.raises(CodecError, match="surrogate"):
        from_wire_json('{"type":"x","a":"\ud800"}')


# ------------------------------------------------------------------------------------------------ stored values


class Colour(enum.Enum):
    RED = 1
    BLUE = "blue"


class Word(str, enum.Enum):  # noqa: UP042  # people have these
    YES = "yes"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: int
    right: tuple[str, ...] = ()


@attrs.define
class Inner:
    number: int
    when: datetime | None = None


@attrs.define
class State:
    drafts: int = 0
    tags: set[str] = attrs.field(factory=set[str])
    inner: Inner | None = None
    pairs: dict[tuple[int, int], Inner] = attrs.field(factory=dict[tuple[int, int], Inner])
    choice: Literal["a", 1] = "a"
    word: Word = Word.YES
    free: JsonValue = None
    log: list[Item] = attrs.field(factory=list[Item])
    either: int | str | list[int] | None = None
    late: list[int] = attrs.field(init=False, factory=list[int])
    _hidden: float = 1.5


@attrs.frozen
class Box(Generic[T]):
    value: T


@dataclasses.dataclass
class Tree:
    children: list[Tree] = dataclasses.field(default_factory=lambda: [])  # noqa: PIE807  # a class is not known in itself
    count: int = dataclasses.field(init=False, default=0)


class Movie(typing.TypedDict):
    title: str
    year: typing.NotRequired[int]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    amounts: list[Decimal] = []
    keys: set[UUID] = set()
    raw: bytes = b""


class Numbers(pydantic.RootModel[list[int]]):
    pass


Distance = typing.NewType("Distance", int)
Short = typing.Annotated[str, "short"]

CASES: list[tuple[object, Any]] = [
    (
        State(
            3,
            {"b", "a"},
            Inner(1, datetime(2030, 1, 2, tzinfo=UTC)),
            {(1, 2): Inner(5)},
            1,
            free={"$": [1, {"x": None}]},
            log=[Message.user("hi"), Opaque(raw=b'{"type": "x"}')],
            either=[1],
        ),
        State,
    ),
    (Box(Inner(2)), Box[Inner]),
    (Tree([Tree(), Tree([Tree()])]), Tree),
    ({"title": "x"}, Movie),
    (Pair(1, ("a",)), Pair),
    (Person(fullName="x", amounts=[Decimal("1.10")], keys={UUID(int=1)}, raw=b"\xff"), Person),
    (Numbers([1, 2]), Numbers),
    (Colour.BLUE, Colour),
    (Word.YES, Word),
    (Rights.READ | Rights.WRITE, Rights),
    (Path("a/b.txt"), Path),
    ([Path("a"), "a", None], list[Path | str | None]),
    (1, int | str),
    ("1", int | str),
    (1, float | int),
    ([Inner(1), Tree()], list[Inner | Tree]),
    ({"a": {1}, "b": [2]}, dict[str, set[int] | list[int]]),
    ({"a": frozenset({1})}, Mapping[str, frozenset[int] | None]),
    ((1, "a", None), tuple[int, str, None]),
    ((), tuple[()]),
    ((1, (2,)), tuple),
    ([(1,), (2, 3)], Sequence[tuple[int, ...]]),
    ((1, 2), Sequence[int]),
    ({1, 2}, AbstractSet[int]),
    (frozenset({1, 2}), Collection[int]),
    ([1, 2], Iterable[int]),
    ({1: {2: 3}}, dict[int, dict[int, int]]),
    ({"x": 1}, dict),
    (Distance(5), Distance),
    ("x", Short),
    (5, Distance | Short),
    ([1], list[typing.Annotated[int, ["no hash"]]]),
    ("x", Literal["x", "y"]),
    ("x", Literal["x"] | int),
    (Message.assistant("x"), Item),
    (Message.assistant("x"), ItemBase | None),
    (InputImage(data=b"x", media_type="image/png"), InputImage),
    (None, None),
    (None, int | None),
    (None, object),
]


@pytest.mark.parametrize(("value", "kind"), CASES, ids=lambda part: type(part).__name__)
def test_values_come_back_as_declared(value: object, kind: Any) -> None:
    store = Codec()
    back = store.loads(store.dumps(value), kind)
    assert back == value
    assert type(back) is type(value)


def test_fields_outside_the_constructor_come_back() -> None:
    state, tree = State(), Tree()
    state.late.append(9)
    tree.count = 7
    store = Codec()
    assert store.loads(store.dumps(state), State).late == [9]
    assert store.loads(store.dumps(tree), Tree).count == 7


def test_local_classes_come_back() -> None:
    @attrs.define
    class Local:
        value: Any

    assert Codec().loads(Codec().dumps(Local([1])), Local) == Local([1])


moments = st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False)
plain: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        texts,
        st.sampled_from(["$", "v", "t", "$ref", "object:State", "__type__"]),
        st.binary(max_size=10),
        moments,
        st.dates(),
        st.times(),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.uuids(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["$", "v", "t", "a"]) | texts, inner, max_size=3),
        st.dictionaries(st.integers() | st.none() | st.uuids() | st.tuples(texts, st.integers()), inner, max_size=3),
        st.sets(st.integers() | texts | st.tuples(st.integers()), max_size=3),
        st.frozensets(st.integers() | st.frozensets(st.integers(), max_size=2), max_size=3),
    ),
    max_leaves=10,
)


def trace(value: Any) -> tuple[str, Any]:
    """The value with the class of everything in it, and the wall time and offset of moments."""
    kind = kind_name(value)
    if kind in ("list", "tuple"):
        return kind, [trace(part) for part in value]
    if kind in ("set", "frozenset"):
        return kind, sorted([trace(part) for part in value], key=repr)
    if kind == "dict":
        return kind, [(trace(key), trace(part)) for key, part in value.items()]
    if kind == "datetime":
        return kind, (value.replace(tzinfo=None), value.fold, value.utcoffset())
    return kind, value


def same(left: object, right: object) -> bool:
    return repr(trace(left)) == repr(trace(right))


@given(plain)
def test_plain_values_come_back_as_they_are(value: Any) -> None:
    store = Codec()
    assert same(store.loads(store.dumps(value)), value)


@given(st.integers(1, 5), st.sampled_from(["$", "$type", "object", "v"]), plain)
def test_reserved_keys_of_the_user_are_just_keys(depth: int, key: str, inner: Any) -> None:
    value: Any = {key: "object:State", "v": inner}
    for _ in range(depth):
        value = {key: value}
    store = Codec([State])
    assert same(store.loads(store.dumps(value)), value)
    assert same(store.loads(store.dumps(value), dict[str, Any]), value)


def test_zones_and_folds_are_kept() -> None:
    store, zone = Codec(), ZoneInfo("Europe/Berlin")
    for moment in (
        datetime(2024, 10, 27, 2, 30, tzinfo=zone),
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zone),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    ):
        back = store.loads(store.dumps(moment), datetime)
        assert back.utcoffset() == moment.utcoffset()
        assert back.fold == moment.fold
    assert store.loads(store.dumps(datetime(2024, 1, 1, tzinfo=zone))).tzinfo is zone
    assert store.loads(store.dumps(time(1, 2, tzinfo=UTC))) == time(1, 2, tzinfo=UTC)


def test_equal_sets_give_equal_bytes() -> None:
    store = Codec()
    left, right = {f"k{n}" for n in range(50)}, {f"k{n}" for n in reversed(range(50))}
    assert store.dumps(left) == store.dumps(right)


def test_registered_classes_come_back_undeclared() -> None:
    store = Codec([State, Inner, Colour, Pair, Person])
    store.register(State)
    value = [State(inner=Inner(1)), {"a": Colour.RED, "b": (Pair(1), {Colour.BLUE})}, Person(fullName="x")]
    assert store.loads(store.dumps(value)) == value
    assert store.loads(store.dumps({(1, 2): Inner(1)})) == {(1, 2): Inner(1)}
    with pytest.raises(CodecError) as caught:
        Codec().loads(store.dumps({"a": [Inner(1)]}))
    assert caught.value.where == "['a'][0]"
    assert "Inner" in str(caught.value)
    assert caught.value.hint is not None

    class Inner2:
        pass

    Inner2.__name__ = "Inner"
    with pytest.raises(ConfigError) as refused:
        store.register(Inner2)
    assert refused.value.code == "codec-duplicate"


class Wrong:
    pass


class Loud(pydantic.BaseModel):
    value: int

    @pydantic.field_serializer("value")
    def refuse(self, value: int) -> int:
        raise RuntimeError("no")


@attrs.define
class Picky:
    value: int = attrs.field(validator=attrs.validators.ge(0))


@pytest.mark.parametrize(
    ("value", "where", "named"),
    [
        ({"a": [1, {"f": print}]}, "['a'][1]['f']", "builtin_function_or_method"),
        (State(inner=Inner(number=Wrong())), "inner.number", "Wrong"),  # type: ignore[arg-type]  # that is the test
        ((1, {2: Wrong()}), "[1][2]", "Wrong"),
        ({Wrong(): 1}, "", "Wrong"),
        ([float("nan")], "[0]", "nan"),
        ({"a": {float("inf")}}, "['a'][0]", "inf"),
        (collections.OrderedDict(), "", "OrderedDict"),
        (Wrong, "", "type"),
        (Loud(value=1), "", "Loud"),
        (range(3), "", "range"),
    ],
)
def test_what_cannot_be_stored_is_named(value: object, where: str, named: str) -> None:
    with pytest.raises(CodecError) as caught:
        Codec().dumps(value)
    if where:
        assert caught.value.where == where
    assert named in str(caught.value)


def test_an_integer_too_long_for_text_is_refused() -> None:
    with pytest.raises(CodecError):
        Codec().dumps(10**5000)


def test_a_stored_error_whose_fields_are_none_is_refused() -> None:
    with pytest.raises(CodecError, match="is not a valid error: TypeError: its fields are"):
        Codec().loads(b'{"$": "error", "t": "LoopLimit", "m": "no", "f": [1]}')


UNFIT: list[tuple[Any, Any, str]] = [
    ({"drafts": "x"}, State, "drafts"),
    ({"drafts": True}, State, "drafts"),
    ({"inner": {}}, State, "inner.number"),
    ({"inner": {"number": "x"}}, State, "inner.number"),
    ({"inner": {"number": 1, "more": 2}}, State, "inner"),
    ({"tags": "abc"}, State, "tags"),
    ({"tags": ["a", 5]}, State, "tags[1]"),
    ({"choice": "z"}, State, "choice"),
    ({"word": "no"}, State, "word"),
    ({"log": [{"type": "message"}]}, State, "log[0]"),
    ({"either": 1.5}, State, "either"),
    ({"either": ["x"]}, State, "either[0]"),
    ({"late": ["x"]}, State, "late[0]"),
    ({"unknown": 1}, State, ""),
    ([1], State, ""),
    ({"value": -1}, Picky, ""),
    ({"value": {"number": "x"}}, Box[Inner], "value.number"),
    ({"left": "x"}, Pair, "left"),
    ({"other": 1}, Pair, ""),
    ({"right": []}, Pair, ""),
    (5, Pair, ""),
    ({"title": 5}, Movie, "title"),
    ({"year": 5}, Movie, "title"),
    ({"title": "x", "more": 5}, Movie, ""),
    (5, Movie, ""),
    ({"name": 5}, Person, ""),
    ([1, 2], tuple[int], ""),
    ([1, "x"], tuple[int, int], "[1]"),
    (5, tuple[int, ...], ""),
    ({"a": "x"}, dict[str, int], "['a']"),
    ([], dict[str, int], ""),
    ({"$": "set", "v": [1]}, list[int], ""),
    ({"$": "set", "v": [1]}, dict, ""),
    ({"$": "dict", "v": [[1, 2]]}, set[int], ""),
    ({"$": "set", "v": [[1]]}, object, ""),
    ({"$": "set", "v": [[1]]}, set[list[int]], ""),
    ({"$": "set", "v": ["x"]}, int | None, ""),
    ({"$": "object:Other"}, int | str, ""),
    ({"$": "set", "v": []}, int | str, ""),
    ([[1], [[]]], list[list[int]], "[1][0]"),
    (5, Literal["x"], ""),
    (5, Colour, ""),
    (5, Message, ""),
    (5, Wrong, ""),
    ("x", bytes, ""),
    ("2030-01-02T00:00:00", date, ""),
    ({"$": "datetime", "v": "2030-01-02T00:00:00"}, date, ""),
    (5, timedelta, ""),
    ("x", Decimal, ""),
    ("x", UUID, ""),
    (5, Path, ""),
    ({"$": "path", "v": 5}, Path, ""),
]


@pytest.mark.parametrize(("data", "kind", "where"), UNFIT)
def test_what_does_not_fit_is_named(data: object, kind: Any, where: str) -> None:
    with pytest.raises(CodecError) as caught:
        Codec().loads(json.dumps(data), kind)
    assert caught.value.where == where


@pytest.mark.parametrize(
    "data",
    [
        {"$": "boom"},
        {"$": 5},
        {"$": ["set"]},
        {"$": "datetime", "v": 5},
        {"$": "datetime", "v": "soon"},
        {"$": "datetime", "v": "2030-01-02T00:00:00", "tz": "../../etc/passwd"},
        {"$": "datetime", "v": "2030-01-02T00:00:00", "tz": "Nowhere/Land"},
        {"$": "timedelta", "v": [1]},
        {"$": "timedelta", "v": [10**12, 0, 0]},
        {"$": "bytes", "v": "!"},
        {"$": "decimal", "v": "x"},
        {"$": "decimal", "v": []},
        {"$": "uuid", "v": "x"},
        {"$": "enum"},
        {"$": "set"},
        {"$": "set", "v": 5},
        {"$": "dict", "v": [5]},
        {"$": "dict", "v": [[1, 2, 3]]},
        {"$": "dict", "v": [[[1], 2]]},
        {"$": "item", "v": {"type": "message"}},
        {"$": "item", "v": 5},
        {"$": "opaque", "v": "!", "id": "x"},
        {"$": "opaque", "v": "AAAA", "id": "x"},
    ],
)
def test_malformed_marks_are_codec_errors(data: object) -> None:
    with pytest.raises(CodecError):
        Codec().loads(json.dumps(data))


def test_an_opaque_whose_type_was_registered_since_is_read() -> None:
    raw = b'{"type":"test-codec:later","id":"l","data":{"value":5}}'
    item = from_wire_json(raw)
    stored = Codec().dumps(item)
    assert isinstance(item, Opaque)

    @extension_item("test-codec:later")
    class Later(Extension):
        value: int

    assert Codec().loads(stored) == Later(id="l", value=5)


def test_json_written_by_hand_is_read() -> None:
    store = Codec()
    assert store.loads(b'{"number":1,"when":"2030-01-02T00:00:00+00:00"}', Inner) == Inner(
        1, datetime(2030, 1, 2, tzinfo=UTC)
    )
    assert store.loads(b'["a"]', set[str]) == {"a"}
    assert store.loads(b"[1]", tuple[int]) == (1,)
    assert store.loads(b'{"name":"x"}', Person) == Person(fullName="x")
    assert store.loads(b"1", Colour) is Colour.RED
    assert store.loads(b'"1.5"', Decimal) == Decimal("1.5")


@given(st.recursive(json_values, lambda inner: st.fixed_dictionaries({"$": words | json_values, "v": inner})))
def test_any_stored_json_gives_a_value_or_a_named_error(value: Any) -> None:
    for kind in (object, State, dict[str, int], int | Inner | None):
        try:
            Codec([State]).loads(json.dumps(value), kind)
        except NoeticError:
            continue


def test_a_cause_is_kept() -> None:
    with pytest.raises(CodecError) as caught:
        Codec().dumps([Loud(value=1)])
    assert caught.value.__cause__ is not None


def test_everything_public_is_exported() -> None:
    assert sorted(codec.__all__) == sorted(name for name in codec.__all__ if hasattr(codec, name))


makers: list[Callable[[], object]] = [Codec, lambda: Codec([Inner])]


@pytest.mark.parametrize("make", makers)
def test_codecs_do_not_share_classes(make: Callable[[], object]) -> None:
    store = make()
    assert isinstance(store, Codec)
    store.register(Colour)
    with pytest.raises(CodecError):
        Codec().loads(store.dumps(Colour.RED))


def test_texts_are_the_same_without_the_encoder_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    value: dict[str, Any] = {"a": [1, 2.5, None, True, "ü\n\u2028"], "b": {}}
    with_it = json_text.dump(value)
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    without = json_text._in_c()
    assert without is None
    monkeypatch.setattr(json_text, "_encode_parts", without)
    assert json_text.dump(value) == with_it


def test_a_message_that_does_not_say_so_and_is_not_understood_stays_whole() -> None:
    wire = {"role": "user", "content": [{"type": "video", "url": "https://x/y"}]}
    for item in (from_wire(wire), from_wire_json(json.dumps(wire))):
        assert isinstance(item, Opaque)
        assert (item.type, bool(item.id)) == ("message", True)
        assert to_wire(item) == wire


def test_marks_inside_each_other_are_refused_by_name_however_deep_the_caller_is() -> None:
    tree: Any = "x"
    for _ in range(15):
        tree = {"$": "error", "t": "NoeticError", "m": "x", "f": {"a": [{"$": "dict", "v": [[tree, tree]]}]}}
        tree["f"]["a"][0]["v"][0][1] = 1

    def deep(calls: int) -> Any:
        return deep(calls - 1) if calls else Codec().decode(tree)

    used = len(inspect.stack())
    refused = 0
    for spare in (250, 200, 150, 100, 60):
        try:
            deep(sys.getrecursionlimit() - used - spare)
        except LimitExceeded:
            refused += 1
        except CodecError:
            pass
    assert refused


def levels(node: object) -> int:
    if is_dict(node):
        return 1 + max(map(levels, node.values()), default=0)
    return 1 + max(map(levels, node), default=0) if is_list(node) else 0


@pytest.mark.parametrize("inner", [(), {1: []}, {2}, {"a": [1]}, Rights.READ, Pair(1, ("b", "c")), Inner(1)], ids=repr)
def test_what_a_value_is_stored_as_is_nested_up_to_the_limit(inner: object) -> None:
    store = Codec([Rights, Pair, Inner])
    value: Any = inner
    for _ in range(64 - levels(store.encode(inner))):
        value = [value]
    assert store.loads(store.dumps(value)) == value
    with pytest.raises(LimitExceeded):
        store.dumps([value])


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "tuple", "v": {"a": 1}},
        {"a": [{"$": "unknown", "v": 1}]},
        {"$": "opaque", "v": "eyJ0eXBlIjogInMifQ==!", "id": "x"},
        {"$": "set", "v": 1},
    ],
)
def test_a_tree_that_no_value_is_stored_as(tree: Any) -> None:
    for read in (Codec().check, Codec().decode):
        with pytest.raises(CodecError):
            read(tree)


def test_what_cannot_be_read_back_is_refused_when_it_is_stored() -> None:
    tree = Codec().encode([Inner(1)])
    Codec([Inner]).require_readable(tree)
    Codec().require_readable(tree, list[Inner])
    with pytest.raises(CodecError) as caught:
        Codec().require_readable(tree)
    assert caught.value.where == "[0]"


def test_a_field_that_is_missing_is_told_from_one_of_another_type() -> None:
    said: list[str] = []
    for wire in ({"type": "function_call", "name": "look"}, {"type": "function_call", "name": "look", "call_id": None}):
        with pytest.raises(ItemSchemaMismatch) as caught:
            from_wire(wire)
        assert caught.value.where == "call_id"
        said.append(caught.value.message)
    assert ["missing" in text for text in said] == [True, False]
    assert "null" in said[1]


@attrs.frozen
class Two(Generic[K, V]):
    """Two values of any types."""

    one: K
    other: V


def test_a_generic_class_is_read_without_its_arguments_too() -> None:
    made = Codec([Two])
    stored = made.encode(Two(1, "a"))
    assert made.decode(stored, Two) == made.decode(stored, Two[int, str]) == Two(1, "a")


def test_what_does_not_fit_says_where() -> None:
    made = Codec([Two])
    stored: Any = made.encode(Two(1, "a"))
    del stored["other"]
    with pytest.raises(CodecError, match=r"other: is missing"):
        made.decode(stored, Two)
    with pytest.raises(CodecError, match=r"\[1\]: is a str, not int"):
        made.decode(made.encode({1: 2}), dict[str, int])
    with pytest.raises(CodecError, match=r"\['1'\]: is an int, not str"):
        made.decode({"1": 2}, dict[int, int])


def test_a_secret_is_stored_by_its_name_or_not_at_all() -> None:
    made = Codec()
    assert made.encode([Secret("k1", name="db", stored="name")]) == [{"$": "secret", "v": "db"}]
    with pytest.raises(CodecError, match=r"\[0\]: a Secret is not stored"):
        made.encode([Secret("k1")])


def test_of_a_union_of_sets_the_stored_one_is_made() -> None:
    made = Codec()
    for value in ({1}, frozenset({1})):
        assert type(made.decode(made.encode(value), set[int] | frozenset[int])) is type(value)


def test_a_named_tuple_is_a_tuple_with_named_fields() -> None:
    class Named(NamedTuple):
        one: int

    class Fields:
        _fields = ("one",)

    assert [is_named_tuple(kind) for kind in (Named, Fields, tuple)] == [True, False, False]


def test_mappings_of_other_classes_are_counted_as_nested() -> None:
    deep: Mapping[str, Any] = {}
    for _ in range(100):
        deep = MappingProxyType({"inner": deep})
    with pytest.raises(LimitExceeded, match="nesting"):
        check_nesting(deep)


@pytest.mark.timed
def test_a_large_state_takes_few_calls_an_entry() -> None:
    """The states of memory layers are read and written whole in each turn."""
    made, start = Codec(), datetime(2025, 1, 1, tzinfo=UTC)
    kept = {f"{number:032x}": Episode(f"asked {number}", "answered", start, "t") for number in range(200)}
    data, calls = made.dumps(kept), [0]
    assert made.loads(data, dict[str, Episode]) == kept

    def note(frame: FrameType, event: str, arg: object) -> None:
        calls[-1] += event == "call"

    for work, most in ((lambda: made.dumps(kept), 10), (lambda: made.loads(data, dict[str, Episode]), 35)):
        calls.append(0)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            work()
        finally:
            sys.setprofile(before)
        assert 1 < calls[-1] / len(kept) < most


class _Silent:
    def __repr__(self) -> str:
        raise OSError("not shown")


def test_what_an_error_holds_is_stored_as_far_as_it_can_be() -> None:
    """Without an event loop: whatever a failure holds, it is stored."""
    deep: object = "end"
    for _ in range(300):
        deep = [deep]
    error = NoeticError("it broke", path=("a",), hint="mend it")
    vars(error).update(
        plain=[1, "two"],
        surrogate="\ud800",
        unknown=_Silent(),
        object=_Plain(),
        mixed={1: "one", "two": _Plain()},
        deep=deep,
    )
    read = Codec().loads(Codec().dumps(error))
    assert isinstance(read, NoeticError)
    assert (read.message, read.path, read.hint) == ("it broke", ("a",), "mend it")
    fields = vars(read)
    assert (fields["plain"], fields["surrogate"], fields["unknown"]) == ([1, "two"], "\\ud800", "<_Silent>")
    assert (fields["object"], fields["mixed"]) == ("a plain object", {1: "one", "two": "a plain object"})
    assert str(fields["deep"]).startswith("[[[[")


class _Plain:
    def __repr__(self) -> str:
        return "a plain object"


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        ({"$": "error", "t": "Newer", "m": "x"}, "is an error of class 'Newer', which this version does not know"),
        ({"$": "error", "t": "NoeticError", "m": "x", "f": {"hint": "y"}}, "'hint' is not a valid field"),
        ({"$": "error", "t": "NoeticError", "m": "x", "f": {"_own": "y"}}, "'_own' is not a valid field"),
    ],
)
def test_a_stored_error_that_is_malformed(tree: dict[str, object], told: str) -> None:
    with pytest.raises(CodecError, match=re.escape(told)):
        Codec().loads(json.dumps(tree))


def test_a_part_of_a_stored_error_whose_class_is_not_known_is_shown() -> None:
    part = {"$": "object:Gone", "a": 1}
    read = Codec().loads(json.dumps({"$": "error", "t": "NoeticError", "m": "x", "f": {"part": part}}))
    assert isinstance(read, NoeticError)
    assert "Gone" in str(vars(read)["part"])
