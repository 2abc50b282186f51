"""`Height`: an item that steps add to a conversation, and that is stored with it."""

from collections.abc import Mapping
from typing import Any

from noetic_py import Extension, extension_item


@extension_item("@MODULE@:height")
class Height(Extension):
    """The height of the water at a port.

    Attributes:
        port: The port.
        metres: The height.
    """

    # Raise it when the fields change, and read what is stored in `migrate`.
    schema_version = 2
    port: str
    metres: float

    @classmethod
    def migrate(cls, data: dict[str, Any], version: Any) -> Mapping[str, Any]:
        """Read a payload of version 1, which had centimetres."""
        data["metres"] = data.pop("centimetres") / 100
        return data
