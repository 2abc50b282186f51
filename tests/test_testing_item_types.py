"""The conformance suite of item types, passed by sound ones and failed by broken ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from noetic_py import Extension, errors, extension_item
from noetic_py.core.codec import from_wire, to_wire
from noetic_py.testing import ItemTypeContract

pytestmark = pytest.mark.anyio


@extension_item("contract-test:plain")
class Plain(Extension):
    text: str


@extension_item("contract-test:third")
class Third(Extension):
    """Its first version had only a title, its second one the source as a list."""

    schema_version = 3
    text: str
    source: str

    @classmethod
    def migrate(cls, data: dict[str, Any], version: Any) -> Mapping[str, Any]:
        if version == 1:
            return {"text": data.pop("title"), "source": "unknown"}
        return {**data, "source": ", ".join(data["source"])}


@extension_item("contract-test:dotted")
class Dotted(Extension):
    schema_version = "1.10"
    text: str

    @classmethod
    def migrate(cls, data: dict[str, Any], version: Any) -> Mapping[str, Any]:
        return {"text": f"{data['text']} of {version}"}


class TestPlain(ItemTypeContract[Plain]):
    def make(self) -> Plain:
        return Plain(text="x", extra={"by": "another"})


class TestThird(ItemTypeContract[Third]):
    def make(self) -> Third:
        return Third(text="x", source="y")

    def older(self) -> list[tuple[int | str, Mapping[str, Any]]]:
        return [(1, {"title": "x"}), (2, {"text": "x", "source": ["a", "b"]})]


class TestDotted(ItemTypeContract[Dotted]):
    def make(self) -> Dotted:
        return Dotted(text="x")

    def older(self) -> list[tuple[int | str, Mapping[str, Any]]]:
        return [(1, {"text": "x"}), ("1.9", {"text": "y"})]


@extension_item("contract-test:broken")
class Broken(Extension):
    schema_version = 2
    text: str
    rule: str = ""

    @classmethod
    def migrate(cls, data: dict[str, Any], version: Any) -> Any:
        if data["text"] == "raises":
            raise KeyError("text")
        return {"text": 5} if data["text"] == "wrong" else ["no mapping"]


@extension_item("contract-test:unmigrated")
class Unmigrated(Extension):
    schema_version = 2
    text: str


def contract(item: Extension, *older: tuple[int | str, Mapping[str, Any]]) -> ItemTypeContract[Any]:
    class Contract(ItemTypeContract[Any]):
        def make(self) -> Extension:
            return item

        def older(self) -> Any:
            return older

    return Contract()


BROKEN: list[tuple[ItemTypeContract[Any], str]] = [
    (contract(Broken(text="x"), (1, {"text": "raises"})), r"data: Broken\.migrate\(\) failed on version 1: KeyError"),
    (contract(Broken(text="x"), (1, {"text": "wrong"})), r"data\.text: is "),
    (contract(Broken(text="x"), (1, {"text": ""})), r"data: Broken\.migrate\(\) returned list"),
    (contract(Unmigrated(text="x"), (1, {"text": ""})), "was stored by version 1, and its own is 2"),
]


@pytest.mark.parametrize(("broken", "why"), BROKEN)
def test_a_broken_migration_is_found(broken: ItemTypeContract[Any], why: str) -> None:
    with pytest.raises(errors.CodecError, match=why) as caught:
        broken.test_what_an_earlier_version_has_written_is_migrated()
    assert caught.value.hint


@pytest.mark.parametrize(("broken", "why"), BROKEN)
async def test_and_in_a_run_that_waits(broken: ItemTypeContract[Any], why: str) -> None:
    with pytest.raises(errors.CodecError, match=why) as caught:
        await broken.test_a_run_that_waits_goes_on_after_an_upgrade()
    assert caught.value.hint


def test_a_field_that_is_called_as_the_version_is_a_field() -> None:
    @extension_item("contract-test:field")
    class Field(Extension):
        schema_version: str = "a text"  # type: ignore[misc] # what a class of before may have

    item = Field(schema_version="another")
    assert from_wire(to_wire(item)) == item
    assert "schema_version" not in to_wire(item)
    foreign = {**to_wire(Plain(text="x", id="i")), "schema_version": "draft"}
    assert to_wire(from_wire(foreign)) == foreign


@pytest.mark.parametrize("version", [0, -1, "", "1.x", "1..2", "0.0"])
def test_what_is_no_version_is_refused(version: Any) -> None:
    with pytest.raises(errors.ConfigError, match="is not a version") as caught:
        extension_item("contract-test:none")(type("None_", (Extension,), {"schema_version": version}))
    assert caught.value.code == "extension-version"


def test_a_required_field_that_is_new_says_what_to_do() -> None:
    with pytest.raises(errors.ItemSchemaMismatch, match=r"data\.text: is missing") as caught:
        from_wire({"type": "contract-test:plain", "data": {}})
    assert "give it a schema_version and migrate(cls, data, version)" in str(caught.value.hint)
