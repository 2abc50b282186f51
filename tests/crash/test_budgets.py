"""Budgets over processes that die in the middle of a call, by the books of the provider."""

from __future__ import annotations

from functools import partial

import pytest

from tests.crash.children import Children
from tests.crash.spending import Spending
from tests.crash.talks import talk_in_a_file
from tests.properties.checks import examples


class TestSpending(Spending):
    kills = examples(sample=5, full=1_000)

    @pytest.fixture(autouse=True)
    def use(self, children: Children) -> None:
        self.new = partial(talk_in_a_file, children, "tests.crash.paying")
