"""Sessions over processes: two at one moment, one that dies, messages that are delivered again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.crash.children import Children
from tests.crash.folders import quick_folder
from tests.crash.talks import Conversations, Talk
from tests.properties.checks import examples


@contextmanager
def talk_in_a_file(children: Children) -> Generator[Talk]:
    """A session in a folder of its own."""
    with quick_folder() as folder:
        yield Talk(children, folder, str(folder / "runs.db"))


class TestConversations(Conversations):
    together = examples(sample=20, full=200)
    kills = examples(sample=40, full=400)
    messages = examples(sample=100, full=1_000)

    @pytest.fixture(autouse=True)
    def use(self, children: Children) -> None:
        self.new = partial(talk_in_a_file, children)
