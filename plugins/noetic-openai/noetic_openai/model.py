"""A model behind OpenAI's Responses API or chat completions, at any address."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from noetic_openai.caching import PromptCache, caching_of
from noetic_openai.chat import chat_request
from noetic_openai.chat_reading import ChatReading
from noetic_openai.connection import new_client, tuned
from noetic_openai.failures import Failures
from noetic_openai.presets import PRESETS
from noetic_openai.sse import EventReader
from noetic_openai.wire import Server
from noetic_py import Secret
from noetic_py.errors import ConfigError
from noetic_py.models import ModelProfile, ModelRequest, ModelStream, check_real_model
from noetic_py.models.http import ACCEPTED, LoopClients, check_address, end_reading, limited
from noetic_py.models.reading import AnswerReading, AnswerStream

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIModel"]

BEGIN_TIMEOUT = 600.0
"""Seconds an answer may take to begin where the settings say nothing; reasoning models can be silent for minutes."""

_NO_KEY = "none"


class OpenAIModel:
    """A model that the official SDK talks to; a `Model` and a `ProfiledModel`, on asyncio and on trio.

    The model is asked statelessly: each call carries the whole conversation, and the provider stores nothing.
    The SDK's own retries are off, since a step's `retry=` does that within the budget.

    A harness keeps connections open between calls while it is entered, and so does `async with model:`. Elsewhere each
    call has one of its own.

    Args:
        model: The provider's name of the model, such as `"gpt-5-mini"`.
        api: The Responses API, or chat completions, which nearly every other server has too.
        base_url: The server's address, such as `"http://127.0.0.1:8000/v1"`; when absent, `OPENAI_BASE_URL`, and
            OpenAI's own without that.
        api_key: The key; no error, log or trace shows it. When absent, `OPENAI_API_KEY`, but not for a server given by
            `base_url=`: it gets no key that was not meant for it.
        client: An SDK client to use instead of `base_url` and `api_key`; it stays yours to close.
        profile: What is known of the model; the tokenizer of OpenAI's own models is known when absent.
        idle_timeout: Seconds without a byte after which a stream counts as stalled.
        name: The name the framework knows it by; `"openai:<model>"` when absent.
        schema_in_extra_body: Whether the server's Responses API wants an answer's schema as the body's field
            `json_schema`, as llama.cpp does.
        store: Whether the provider may store the answers.
        prompt_cache: The cache settings for the provider: `"auto"` sends what is known to help with this model at this
            server, `"key"` the conversation's key, `"breakpoints"` marks in the content, `"off"` nothing.

    Raises:
        ConfigError: There is no key (code `"model-key"`), `idle_timeout` is not above 0 (`"model-timeout"`), or
            `prompt_cache` is not possible (`"model-cache"`).
    """

    def __init__(
        self,
        model: str,
        *,
        api: Literal["responses", "chat"] = "responses",
        base_url: str | None = None,
        api_key: str | Secret[str] | None = None,
        client: AsyncOpenAI | None = None,
        profile: ModelProfile | None = None,
        idle_timeout: float = 60.0,
        name: str | None = None,
        schema_in_extra_body: bool = False,
        store: bool = False,
        prompt_cache: PromptCache = "auto",
    ) -> None:
        if not idle_timeout > 0:
            raise ConfigError(f"idle_timeout={idle_timeout!r} is not above 0", code="model-timeout")
        address = base_url or os.environ.get("OPENAI_BASE_URL") if client is None else str(client.base_url)
        # Held for as long as the model lives, so that no text shows the password of an address.
        self._address_secrets = Secret.in_address(address or "")
        if client is None and address:
            check_address(address)
        self._server = Server(base_url=address, schema_in_extra_body=schema_in_extra_body, store=store)
        self._caching = caching_of(prompt_cache, model, self._server, api)
        self._model = model
        self._api: Literal["responses", "chat"] = api
        self._name = name or f"openai:{model}"
        self._idle = idle_timeout
        self._profile = profile or _profile(model, self._server)
        given = client.api_key if client is not None else api_key or _key(base_url, self._server, self._name)
        # Known as a secret for as long as the model lives, so that no text shows it, wherever it is repeated.
        key = given if isinstance(given, Secret) else Secret(given)
        self._clients = LoopClients(partial(new_client, self._server, key), client and tuned(client))
        self._failures = Failures(
            self._name, self._server.where, f"the API key: {key_source(self._name, self._server)}"
        )

    @property
    def name(self) -> str:
        """The name it is known by, such as `"openai:gpt-5-mini"`."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """Its properties."""
        return self._profile

    def __repr__(self) -> str:
        return f"OpenAIModel({self._model!r}, api={self._api!r}, name={self._name!r})"

    async def __aenter__(self) -> Self:
        await load_sdk()
        await self._clients.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._clients.close()

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Ask; the answer is streamed while the context manager is open.

        Args:
            request: What to ask. The setting `timeout` bounds the seconds until the answer begins.

        Raises:
            RealModelRefused: Real models are forbidden here.
            ConfigError: The request holds what this interface cannot carry (code `"model-content"`).
            ModelUnavailable: The server could not be reached, or did not begin in time.
            RateLimited: Too many requests.
            ContextOverflow: The request is larger than the model's context window.
            ModelStatusError: The server answered with another error status.
            ModelStreamError: The stream broke, stalled, was malformed or ended too early.
        """
        check_real_model(self._name)
        reading, params = self._translated(request)
        await load_sdk()
        seconds = request.settings.get("timeout", BEGIN_TIMEOUT)
        async with self._clients.client() as client, AsyncExitStack() as stack:
            answer: AnswerStream | None = None
            with anyio.move_on_after(seconds) as scope:
                answer = await self._begin(client, params, reading, stack)
            if answer is None or scope.cancelled_caught:
                raise self._failures.late(seconds)
            yield answer
            if self._clients.kept:
                await answer.drain()

    def _translated(self, request: ModelRequest) -> tuple[AnswerReading, dict[str, Any]]:
        if self._api == "chat":
            return ChatReading(), chat_request(request, self._model, self._server, self._caching)
        # Only this interface needs the codec, which is slow to load.
        from noetic_openai.responses import ResponsesReading, responses_request

        return ResponsesReading(), responses_request(request, self._model, self._server, self._caching)

    async def _begin(
        self, client: AsyncOpenAI, params: dict[str, Any], reading: AnswerReading, stack: AsyncExitStack
    ) -> AnswerStream:
        """Send the request, and wait for the first event."""
        import httpx2
        import openai

        create: Callable[..., Any] = (
            client.chat.completions.with_streaming_response.create
            if self._api == "chat"
            else client.responses.with_streaming_response.create
        )
        try:
            with limited():
                response = await stack.enter_async_context(
                    create(**params, extra_headers={"Accept-Encoding": ACCEPTED})
                )
        except openai.APIStatusError as error:
            # Not chained: the SDK's text repeats the body, and a body may repeat the key.
            raise self._failures.status(error.status_code, error.response.headers, error.body) from None
        except openai.APIConnectionError as error:
            raise self._failures.unreachable(error) from error
        chunks = response.http_response.aiter_bytes()
        stack.push_async_callback(end_reading, response.http_response, chunks)
        broken = (httpx2.HTTPError, httpx2.StreamError, OSError)
        events = EventReader(chunks, model=self._name, idle=self._idle, broken=broken)
        answer = AnswerStream(events, reading, self._name, self._failures.event)
        await answer.pull()
        return answer


_SDK = ("openai", "openai.resources.chat", "openai.resources.responses")


async def load_sdk() -> None:
    """Load the SDK, in a worker thread, since it takes the better part of a second."""
    for name in _SDK:
        if name not in sys.modules:
            await anyio.to_thread.run_sync(import_module, name)


def _key(base_url: str | None, server: Server, name: str) -> str:
    found = None if base_url and not server.is_openai else os.environ.get("OPENAI_API_KEY")
    if not found and server.is_openai:
        raise ConfigError(
            f"{name} needs an API key",
            code="model-key",
            hint="set the environment variable OPENAI_API_KEY, or pass api_key= to OpenAIModel",
        )
    return found or _NO_KEY


def key_source(name: str, server: Server) -> str:
    """Where the key of a model comes from, for error hints."""
    preset = PRESETS.get(name.partition(":")[0])
    if preset is not None:
        return f"the environment variable {preset.key_variable}"
    given = "api_key= of OpenAIModel"
    return f"{given}, or the environment variable OPENAI_API_KEY" if server.is_openai else given


def _profile(model: str, server: Server) -> ModelProfile:
    if not server.is_openai:
        return ModelProfile()
    old = model.startswith(("gpt-3.5", "gpt-4-")) or model == "gpt-4"
    return ModelProfile(encoding="cl100k_base" if old else "o200k_base")
