"""Items of tools that Google runs itself, as the SDK types them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from noetic_google.reading import PART
from noetic_py import Opaque
from noetic_py.models.reading import as_sdk_model, no_sdk_type

if TYPE_CHECKING:
    from google.genai.types import Part

__all__ = ["sdk_item"]


def sdk_item(item: Opaque) -> Part:
    """A part of an answer as the SDK types it, with an `executable_code`, a `code_execution_result` or a `tool_call`.

    Args:
        item: An item that `GoogleModel` has kept as it came.

    Raises:
        ItemSchemaMismatch: It is not such a part, or does not fit the installed SDK's type; `item.raw` is its JSON.
    """
    from google.genai.types import Part

    if item.kind != PART:
        raise no_sdk_type(item, "google-genai")
    found: Part = as_sdk_model(item, json.loads(item.raw).get("part"), Part, "google-genai")
    return found
