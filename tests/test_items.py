"""Items and content parts: what they hold, what they refuse."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.core.items import (
    ID_SOURCE,
    Extension,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    ItemBase,
    Message,
    Opaque,
    OutputText,
    Reasoning,
    Refusal,
    extension_class,
    extension_item,
    extension_types,
)
from noetic_py.core.runtime import SYSTEM
from noetic_py.errors import ConfigError, LimitExceeded


@extension_item("test-items:note")
class Note(Extension):
    text: str
    author: str | None = None


class Colour(Enum):
    RED = "red"


@attrs.frozen
class Place:
    name: str
    height: float


@extension_item("test-items:report")
class Report(Extension):
    colour: Colour
    place: Place
    tags: tuple[str, ...] = ()
    amounts: dict[str, Decimal] = attrs.field(factory=dict[str, Decimal])
    seen: frozenset[int] = frozenset()
    raw: bytes = b""
    day: date | None = None
    key: UUID | None = None
    anything: object = None


EVERY: list[Item] = [
    Message.user("hi"),
    FunctionCall(name="look"),
    FunctionCallOutput(call_id="1", output="seen"),
    Reasoning(summary="hm"),
    Note(text="x"),
    Opaque(raw=b'{"type":"web_search_call"}'),
]


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.type)
def test_every_item_has_the_base(item: Item) -> None:
    assert isinstance(item, ItemBase)
    assert item.status == "completed"
    assert UUID(item.id).version == 7
    assert item.extra is None
    assert item.is_final is False
    for name in ("id", "status", "extra"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(item, name, "other")
    with pytest.raises(AttributeError):
        item.surprise = 1  # type: ignore[union-attr]  # that is the test


@pytest.mark.parametrize("item", EVERY, ids=lambda item: item.type)
def test_items_are_values(item: Item) -> None:
    assert copy.deepcopy(item) == item
    assert pickle.loads(pickle.dumps(item)) == item
    assert hash(item) == hash(copy.copy(item))
    assert weakref.ref(item)() is item
    other = attrs.evolve(item, id="other")
    assert other.id == "other"
    assert other != item
    assert type(other) is type(item)


def test_a_status_can_be_given() -> None:
    assert Message(role="user", content="", status="in_progress").status == "in_progress"
    assert Note(text="", status="failed").status == "failed"
    wrong: Any = "done"
    with pytest.raises(ValueError, match="status"):
        FunctionCall(name="x", status=wrong)
    with pytest.raises(ValueError, match="status"):
        Note(text="", status=wrong)


def test_ids_come_from_where_the_run_says() -> None:
    ids = iter("abcdef")
    token = ID_SOURCE.set(lambda: next(ids))
    try:
        assert Message.user("x").id == "a"
        call = FunctionCall(name="x")
        assert (call.id, call.call_id) == ("b", "c")
        assert Note(text="x").id == "d"
    finally:
        ID_SOURCE.reset(token)
    assert ID_SOURCE.get() == SYSTEM.new_id


def test_an_item_base_says_nothing_of_its_type() -> None:
    base = ItemBase(id="1", status="completed", extra=None)
    assert not base.is_final
    with pytest.raises(NotImplementedError):
        _ = base.type


# ------------------------------------------------------------------------------------------------ messages


@pytest.mark.parametrize("make", [Message.user, Message.system, Message.developer])
def test_text_becomes_input_for_whoever_speaks_to_the_model(make: Callable[[str], Message]) -> None:
    assert make("hi").content == (InputText(text="hi"),)


def test_text_becomes_output_for_the_model() -> None:
    assert Message.assistant("hi").content == (OutputText(text="hi"),)
    assert Message.assistant(["a", Refusal(refusal="no"), "b"]).content == (
        OutputText(text="a"),
        Refusal(refusal="no"),
        OutputText(text="b"),
    )


def test_helpers_set_the_role() -> None:
    made = [Message.user("x"), Message.assistant("x"), Message.system("x"), Message.developer("x")]
    assert [message.role for message in made] == ["user", "assistant", "system", "developer"]
    assert [message.type for message in made] == ["message"] * 4


def test_text_joins_the_text_parts() -> None:
    picture = InputImage(url="https://example.org/a.png")
    assert Message.user(["a", picture, "b"]).text == "ab"
    assert Message.user([picture]).text == ""
    assert Message.assistant([Refusal(refusal="no")]).text == ""


def test_a_message_refuses_what_it_cannot_say() -> None:
    wrong: Any = "tool"
    with pytest.raises(ValueError, match="role"):
        Message(role=wrong, content="x")
    parts: Any = ["x", 5]
    with pytest.raises(TypeError, match="int"):
        Message(role="user", content=parts)
    nothing: Any = None
    with pytest.raises(TypeError):
        Message(role="user", content=nothing)


@pytest.mark.parametrize(
    ("message", "final"),
    [
        (Message.assistant("done"), True),
        (Message.assistant(""), False),
        (Message.assistant([Refusal(refusal="no")]), False),
        (Message.assistant([InputImage(url="https://example.org/map.png")]), True),
        (Message.assistant([InputFile(file_id="f")]), True),
        (Message(role="assistant", content=[InputFile(file_id="f")], status="failed"), False),
        (Message(role="assistant", content="do", status="incomplete"), False),
        (Message.user("done"), False),
    ],
)
def test_final_is_a_completed_answer_that_says_or_shows_something(message: Message, final: bool) -> None:
    assert message.is_final is final


# ------------------------------------------------------------------------------------------------ calls and others


@given(st.text())
def test_argument_text_is_kept(text: str) -> None:
    assert FunctionCall(name="x", arguments=text).arguments == text


def test_arguments_of_a_mapping_are_compact_json() -> None:
    assert FunctionCall(name="x", arguments={"a": [1, None], "é": "ü"}).arguments == '{"a":[1,null],"é":"ü"}'
    assert FunctionCall(name="x").arguments == "{}"
    with pytest.raises(ValueError, match="JSON"):
        FunctionCall(name="x", arguments={"a": float("nan")})
    for wrong in (None, 5, {"a": object()}):
        thing: Any = wrong
        with pytest.raises(TypeError):
            FunctionCall(name="x", arguments=thing)


def test_arguments_that_are_nested_too_deep_are_refused_by_name() -> None:
    arguments: dict[str, object] = {}
    # Python 3.12 and later write some thousands of levels.
    for _ in range(100_000):
        arguments = {"inside": arguments}
    with pytest.raises(LimitExceeded, match="nesting is limited to 64"):
        FunctionCall(name="x", arguments=arguments)


def test_call_ids_are_made_when_absent() -> None:
    first, second = FunctionCall(name="x"), FunctionCall(name="x")
    assert len({first.id, first.call_id, second.id, second.call_id}) == 4
    assert FunctionCall(name="x", call_id="mine").call_id == "mine"


def test_outputs_are_text_or_parts() -> None:
    assert FunctionCallOutput(call_id="1", output="seen").text == "seen"
    picture = InputImage(url="https://example.org/a.png")
    output = FunctionCallOutput(call_id="1", output=["seen", picture])
    assert output.output == (InputText(text="seen"), picture)
    assert output.text == "seen"


def test_reasoning_shows_what_there_is() -> None:
    assert Reasoning(content="long", summary="short").text == "long"
    assert Reasoning(summary=["a", "b"]).text == "ab"
    sealed = Reasoning(encrypted_content="AAAA")
    assert (sealed.text, sealed.content, sealed.summary, sealed.encrypted_content) == ("", (), (), "AAAA")
    assert "AAAA" not in repr(sealed)


def test_an_opaque_item_reads_its_head() -> None:
    item = Opaque(raw=b'{"type":"web_search_call","id":"ws_1"}')
    assert (item.type, item.id) == ("web_search_call", "ws_1")
    assert Opaque(raw=b'{"type":"x","id":5}').id != "5"
    given_both = Opaque(raw=b"anything", type="x", id="y", status="failed")
    assert (given_both.type, given_both.id, given_both.status) == ("x", "y", "failed")


@pytest.mark.parametrize("raw", [b"", b"[]", b"5", b"{}", b'{"type":5}', b"\xff", b"[" * 100_000])
def test_an_opaque_item_needs_a_type(raw: bytes) -> None:
    with pytest.raises(ValueError, match="type"):
        Opaque(raw=raw)


# ------------------------------------------------------------------------------------------------ content parts


@pytest.mark.parametrize(
    "arguments",
    [{}, {"url": "u", "file_id": "f"}, {"data": b"x"}, {"url": "u", "media_type": "image/png"}],
)
def test_an_image_has_one_source(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="InputImage"):
        InputImage(**arguments)


@pytest.mark.parametrize("arguments", [{}, {"url": "u", "data": b"x"}, {"url": "u", "media_type": "text/plain"}])
def test_a_file_has_one_source(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="InputFile"):
        InputFile(**arguments)


def test_a_files_media_type_follows_from_its_name() -> None:
    assert InputFile(data=b"x", filename="a.pdf").media_type == "application/pdf"
    assert InputFile(data=b"x").media_type == "application/octet-stream"
    assert InputFile(data=b"x", media_type="").media_type == ""
    assert InputFile(file_id="f", filename="a.pdf").media_type is None


@pytest.mark.parametrize("make", [InputText, OutputText])
def test_a_text_part_holds_text(make: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="text is a str"):
        make(text=5)


# ------------------------------------------------------------------------------------------------ extensions


def test_an_extension_has_fields_and_data() -> None:
    note = Note(text="buy milk")
    assert str(note.type) == "test-items:note"
    assert note.data == {"text": "buy milk", "author": None}
    assert note == Note(text="buy milk", id=note.id)
    match note:
        case Note(text=text):
            assert text == "buy milk"
    with pytest.raises(TypeError):
        Note(texxt="x")  # type: ignore[call-arg]  # that is the test
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        note.text = "y"  # type: ignore[misc]  # that is the test


def test_data_is_json() -> None:
    report = Report(
        colour=Colour.RED,
        place=Place("hill", 3.5),
        tags=("a", "b"),
        amounts={"x": Decimal("1.10")},
        seen=frozenset({3, 1}),
        raw=b"\xff",
        day=date(2030, 1, 2),
        key=UUID(int=7),
        anything=[datetime(2030, 1, 2, tzinfo=UTC), None, True],
    )
    assert report.data == {
        "colour": "red",
        "place": {"name": "hill", "height": 3.5},
        "tags": ["a", "b"],
        "amounts": {"x": "1.10"},
        "seen": [1, 3],
        "raw": "/w==",
        "day": "2030-01-02",
        "key": "00000000-0000-0000-0000-000000000007",
        "anything": ["2030-01-02T00:00:00+00:00", None, True],
    }


@pytest.mark.parametrize("thing", [object(), {1: 2}])
def test_data_without_a_json_form_is_named(thing: object) -> None:
    with pytest.raises(TypeError, match=r"payload"):
        _ = Report(colour=Colour.RED, place=Place("x", 1), anything=thing).data


def test_registered_types_can_be_listed() -> None:
    assert extension_class("test-items:note") is Note
    assert extension_class("test-items:other") is None
    assert extension_types()["test-items:report"] is Report
    with pytest.raises(TypeError):
        extension_types()["x:y"] = Note  # type: ignore[index]  # that is the test


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("note", "extension-name"),
        (":note", "extension-name"),
        ("acme:", "extension-name"),
        ("acme:no:te", "extension-name"),
        ("acme:no te", "extension-name"),
        ("acmé:note", "extension-name"),
        ("message", "extension-shadows-builtin"),
        ("function_call_output", "extension-shadows-builtin"),
        ("test-items:note", "extension-duplicate"),
    ],
)
def test_names_that_are_refused(name: str, code: str) -> None:
    with pytest.raises(ConfigError) as caught:

        @extension_item(name)
        class Other(Extension):
            text: str

    assert caught.value.code == code
    assert extension_types().get(name) in (None, Note)


def test_only_extensions_are_registered() -> None:
    for cls in (Extension, Message, int):
        wrong: Any = cls
        with pytest.raises(ConfigError) as caught:
            extension_item("test-items:wrong")(wrong)
        assert caught.value.code == "extension-base"


def test_an_extension_without_a_name_is_refused() -> None:
    class Nameless(Extension):
        pass

    class Heir(Note):
        pass

    for make in (Extension, Nameless, lambda: Heir(text="x")):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.code == "extension-unregistered"
