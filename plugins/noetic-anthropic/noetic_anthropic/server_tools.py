"""Items of tools that Anthropic runs itself, as the SDK types them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py import Opaque
from noetic_py.models.reading import as_sdk_type

if TYPE_CHECKING:
    from anthropic.types import ContentBlock
    from anthropic.types.beta import BetaContentBlock

__all__ = ["sdk_item"]


def sdk_item(item: Opaque) -> ContentBlock | BetaContentBlock:
    """An item of an answer as the SDK types it, such as a `ServerToolUseBlock`.

    Args:
        item: An item that `AnthropicModel` has kept as it came, such as a `server_tool_use` or a
            `web_search_tool_result`. One that only the SDK's beta types know, such as `mcp_tool_use`, is of these.

    Raises:
        ItemSchemaMismatch: The installed SDK has no type for it, or it does not fit its type; `item.raw` is its JSON.
    """
    from anthropic.types import ContentBlock
    from anthropic.types.beta import BetaContentBlock

    found: ContentBlock | BetaContentBlock = as_sdk_type(item, ContentBlock, BetaContentBlock, sdk="anthropic")
    return found
