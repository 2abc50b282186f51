"""Texts cut into passages: nothing is lost, spans are true, and limits are kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetic_documents.passages import cut, normalized

from noetic_py.core.tokens import EstimatedCounter
from tests.properties.checks import examples

WORDS = st.sampled_from(
    ["tide", "high water.", "Why?", "*a*", "`b`", "[c](d)", "日本語。", "👩‍👧", "|", "x" * 90, "é", "#"]
)
PARAGRAPHS = st.lists(WORDS, min_size=1, max_size=40).map(" ".join)
PARTS = st.one_of(
    PARAGRAPHS,
    st.tuples(st.integers(1, 6), st.sampled_from(["Tides", "Springs", "A # b", "N" * 100])).map(
        lambda each: f"{'#' * each[0]} {each[1]}"
    ),
    st.lists(PARAGRAPHS, min_size=1, max_size=4).map(lambda each: "\n".join(f"- {item}" for item in each)),
    PARAGRAPHS.map(lambda each: f"```\n# {each}\n\n{each}\n```"),
    PARAGRAPHS.map(lambda each: f"| a | b |\n| --- | --- |\n| 1 | {each} |"),
    st.text(max_size=60),
)
TEXTS = st.lists(st.tuples(PARTS, st.sampled_from(["\n", "\n\n", "\r\n", " \n\n\n\n", " "])), max_size=12).map(
    lambda parts: "".join(part + end for part, end in parts)
)


def count(text: str) -> int:
    return EstimatedCounter().count_text(text).value


@settings(max_examples=examples(100, 5000), deadline=None)
@given(TEXTS, st.integers(16, 60), st.integers(0, 8), st.booleans())
def test_nothing_is_lost_spans_are_true_and_limits_are_kept(
    text: str, tokens: int, overlap: int, markdown: bool
) -> None:
    whole = normalized(text)
    passages = cut(whole, tokens, overlap, markdown=markdown)
    end = 0
    for before, passage in zip([None, *passages], passages, strict=False):
        assert passage.text == whole[passage.start : passage.end]
        assert passage.text.strip()
        assert count(passage.text) <= tokens
        if before is not None:
            assert before.start < passage.start
            assert before.end < passage.end
            assert count(whole[passage.start : before.end].strip()) <= overlap
        # What is in no passage is a heading, which the passage below it names.
        for line in filter(str.strip, whole[end : passage.start].splitlines()):
            assert markdown
            assert line.lstrip().lstrip("#").strip().rstrip("#").strip() in passage.heading
        end = passage.end
    assert not whole[end:].strip()


@given(st.text())
def test_a_normalized_text_stays_as_it_is(text: str) -> None:
    once = normalized(text)
    assert normalized(once) == once
    assert "\n\n\n" not in once
    once.encode()


def test_passages_stand_under_their_headings() -> None:
    text = normalized(
        "Before.\n\n# Tides\n\n## Springs\n\n"
        + "Springs come twice a month. " * 10
        + "\n\n```\n# no heading\n```\n\n# Ports\n\nBrest."
    )
    passages = cut(text, 24, 0, markdown=True)
    assert [passage.heading for passage in passages] == ["", *["Tides > Springs"] * (len(passages) - 2), "Ports"]
    assert passages[0].text == "Before."
    assert all("#" not in passage.text.split("```")[0] for passage in passages[1:-2])
    assert [passage.heading for passage in cut(text, 24, 0, markdown=False)] == [""] * len(
        cut(text, 24, 0, markdown=False)
    )


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "\n" * 100_000 + "x",
        "\u200b\n" * 50_000,
        "|a" * 300 + "\n" + "|-" * 300 + "\n" + ("|b" * 300 + "\n") * 100,
    ],
    ids=["word", "newlines", "lines", "table"],
)
def test_hostile_texts_are_cut_in_blocks(text: str) -> None:
    whole = normalized(text)
    passages = cut(whole, 128, 0, markdown=True)
    assert "".join("".join(passage.text.split()) for passage in passages) == "".join(whole.split())
