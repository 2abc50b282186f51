"""The contract of item types, with what an earlier version has stored."""

from collections.abc import Mapping, Sequence
from typing import Any

from noetic_py.testing import ItemTypeContract

from @MODULE@ import Height


class TestHeight(ItemTypeContract[Height]):
    """What every item type has to keep."""

    def make(self) -> Height:
        return Height(port="Brest", metres=6.9)

    def older(self) -> Sequence[tuple[int | str, Mapping[str, Any]]]:
        return [(1, {"port": "Brest", "centimetres": 690})]


def test_an_item_of_version_1_is_read() -> None:
    stored = {"port": "Brest", "centimetres": 690}
    assert Height.migrate(stored, 1) == {"port": "Brest", "metres": 6.9}
