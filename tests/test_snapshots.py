from __future__ import annotations

import pytest

from noetic_py import Message, StateBag
from noetic_py.errors import CodecError
from noetic_py.snapshots import Conversation, pack, unpack


def test_a_conversation_comes_back_equal() -> None:
    conversation = Conversation([Message.user("a")], StateBag({"n": 1}), 2, "t", None)
    assert unpack(pack(conversation), StateBag) == conversation


@pytest.mark.parametrize("state", [3, "text", None, [1, 2], {"a": 1}])
def test_a_state_may_be_plain(state: object) -> None:
    data = pack(Conversation([], state, 0, "t", "r"))
    assert unpack(data, type(state)).state == state


def test_an_error_says_where_once() -> None:
    data = pack(Conversation([], {"a": 1}, 0, "t", None))
    with pytest.raises(CodecError) as caught:
        unpack(data, int)
    assert str(caught.value).count("state") == 1
