"""What every model has to keep, kept by a model of pydantic-ai with the SDK of its provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chat_wire import reply
from noetic_pydantic_ai import PydanticAIModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderScript, ServedModel
from noetic_py.testing.replies import replying


class TestChatCompletions(ModelContract):
    loops = ("asyncio",)

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key="sk-secret")
            model = PydanticAIModel(OpenAIChatModel("m", provider=provider))
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)
