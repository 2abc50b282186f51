"""What every model has to keep."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from gemini_wire import MODEL, credentials_with, reply
from noetic_google import GoogleModel

from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderScript, ServedModel
from noetic_py.testing.replies import replying


# Where the SDK itself cannot read a stream, it leaves its generators to the event loop, and trio warns of each.
@pytest.mark.filterwarnings("ignore:Async generator '(google.genai|httpx2):ResourceWarning")
class TestGoogleModel(ModelContract):
    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            model = GoogleModel(MODEL, base_url=server.url, api_key="sk-secret")
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)


class TestVertexModel(ModelContract):
    loops: ClassVar[Sequence[str]] = ("asyncio",)

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        credentials = credentials_with("ya29.secret")
        async with replying(*[reply(each) for each in script]) as server:
            model = GoogleModel(MODEL, base_url=server.url, project="tides", credentials=credentials)
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)
