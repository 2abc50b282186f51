"""Sessions over processes: two at one moment, one that dies, messages that are delivered again."""

from __future__ import annotations

from functools import partial

import pytest

from tests.crash.children import Children
from tests.crash.talks import Conversations, talk_in_a_file
from tests.properties.checks import examples


class TestConversations(Conversations):
    together = examples(sample=4, full=200)
    kills = examples(sample=6, full=400)
    messages = examples(sample=25, full=1_000)

    @pytest.fixture(autouse=True)
    def use(self, children: Children) -> None:
        self.new = partial(talk_in_a_file, children)
