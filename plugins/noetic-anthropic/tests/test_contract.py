"""What every model has to keep."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from messages_wire import reply
from noetic_anthropic import AnthropicModel

from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderScript, ServedModel
from noetic_py.testing.replies import replying


class TestAnthropicModel(ModelContract):
    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            model = AnthropicModel("claude-sonnet-5", base_url=server.url, api_key="sk-secret")
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)
