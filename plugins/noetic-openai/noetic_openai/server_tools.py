"""Items of tools that OpenAI runs itself, as the SDK types them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py import Opaque
from noetic_py.models.reading import as_sdk_type

if TYPE_CHECKING:
    from openai.types.responses import ResponseOutputItem

__all__ = ["sdk_item"]


def sdk_item(item: Opaque) -> ResponseOutputItem:
    """An item of an answer as the SDK types it, such as a `ResponseFunctionWebSearch`.

    Args:
        item: An item that `OpenAIModel` has kept as it came, such as a `web_search_call` or a `code_interpreter_call`.

    Raises:
        ItemSchemaMismatch: The installed SDK has no type for it, or it does not fit its type; `item.raw` is its JSON.
    """
    from openai.types.responses import ResponseOutputItem

    found: ResponseOutputItem = as_sdk_type(item, ResponseOutputItem, sdk="openai")
    return found
