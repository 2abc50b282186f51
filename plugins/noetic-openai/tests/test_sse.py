from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetic_openai import sse
from noetic_openai.sse import SSEDecoder


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@settings(deadline=None)
@given(
    texts=st.lists(st.text("ab: é𝄞\u2028\x00", min_size=1).filter(lambda text: text[0] != " "), max_size=5),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    places=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_events_survive_any_cut(texts: list[str], newline: str, places: list[int]) -> None:
    data = "".join(f": ping{newline}event: x{newline}data: {text}{newline}{newline}" for text in texts).encode()
    decoder = SSEDecoder()
    assert [event for chunk in cut(data, places) for event in decoder.feed(chunk)] == texts


def test_lines_of_one_event_are_joined() -> None:
    assert SSEDecoder().feed(b'data: {"a":\ndata:1}\n\n') == ['{"a":\n1}']


def test_an_event_without_data_is_none() -> None:
    assert SSEDecoder().feed(b"event: ping\nid: 3\n\n\n\n") == []


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        SSEDecoder().feed(b"data: \xff\xfe\n\n")


@pytest.mark.parametrize(
    "piece", [b"x" * 40, b"data: " + b"x" * 20 + b"\n", b"data:\n" * 3, b": ping\n\n" * 3, b"event: x\n" * 3, b"\n"]
)
def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    decoder = SSEDecoder()

    def feed() -> None:
        for _ in range(10):
            decoder.feed(piece)

    with pytest.raises(ValueError, match="larger than 100 bytes"):
        feed()
