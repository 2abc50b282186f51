"""A Claude model behind the Messages API."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from noetic_anthropic.connection import new_client, tuned
from noetic_anthropic.failures import Failures
from noetic_anthropic.reading import MessageReading
from noetic_anthropic.requests import PromptCache, check_cache, message_request, profile_of_claude
from noetic_py import Secret
from noetic_py.errors import ConfigError, ModelError, ModelStreamError
from noetic_py.models import ModelProfile, ModelRequest, ModelStream, check_real_model
from noetic_py.models.http import (
    ACCEPTED,
    LoopClients,
    ReceivedBytes,
    check_address,
    end_reading,
    host_of,
    limited,
    shown_host,
)
from noetic_py.models.reading import AnswerStream, Malformed, mapping

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.lib.vertex import AsyncAnthropicVertex

__all__ = ["AnthropicModel"]

BEGIN_TIMEOUT = 600.0
"""Seconds an answer may take to begin where the settings say nothing."""

_HOME = "https://api.anthropic.com"
_NO_KEY = "none"
_DRAIN_TIMEOUT = 0.1


class AnthropicModel:
    """A Claude model that the official SDK talks to; a `Model` and a `ProfiledModel`, on asyncio and on trio.

    The SDK's own retries are off, since a step's `retry=` does that within the budget.

    A harness keeps connections open between calls while it is entered, and so does `async with model:`. Elsewhere each
    call has one of its own.

    Args:
        model: The provider's name of the model, such as `"claude-sonnet-5"`.
        base_url: The server's address; when absent, `ANTHROPIC_BASE_URL`, and Anthropic's own without that.
        api_key: The key; no error, log or trace shows it. When absent, `ANTHROPIC_API_KEY`, but not for a server given
            by `base_url=`: it gets no key that was not meant for it.
        client: An SDK client to use instead of `base_url` and `api_key`, also one for Vertex AI; it stays yours to
            close.
        profile: What is known of the model. Its `max_output_tokens` is what an answer may have where the settings say
            nothing; known by the model's name when absent.
        idle_timeout: Seconds without a byte after which a stream counts as stalled.
        name: The name the framework knows it by; `"anthropic:<model>"` when absent.
        prompt_cache: How long the provider keeps the start of a conversation, `"5m"` or `"1h"`; `"off"` caches nothing.

    Raises:
        ConfigError: There is no key (code `"model-key"`), `idle_timeout` is not above 0 (`"model-timeout"`), or
            `prompt_cache` is not possible (`"model-cache"`).
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | Secret[str] | None = None,
        client: AsyncAnthropic | AsyncAnthropicVertex | None = None,
        profile: ModelProfile | None = None,
        idle_timeout: float = 60.0,
        name: str | None = None,
        prompt_cache: PromptCache = "5m",
    ) -> None:
        if not idle_timeout > 0:
            raise ConfigError(
                f"idle_timeout={idle_timeout!r} is not a valid time; expected seconds above 0",
                code="model-timeout",
                hint="idle_timeout=60.0",
            )
        check_cache(prompt_cache)
        address = base_url or os.environ.get("ANTHROPIC_BASE_URL") if client is None else str(client.base_url)
        # Held for as long as the model lives, so that no text shows the password of an address.
        self._address_secrets = Secret.in_address(address or "")
        if client is None and address:
            check_address(address)
        self._model = model
        self._name = name or f"anthropic:{model}"
        self._cache: PromptCache = prompt_cache
        self._idle = idle_timeout
        self._profile = profile or profile_of_claude(model)
        given = _key_of(client) if client is not None else api_key or _key(base_url, self._name)
        # Known as a secret for as long as the model lives, so that no text shows it, wherever it is repeated.
        key = given if isinstance(given, Secret) else Secret(given)
        self._clients = LoopClients(partial(new_client, address, key), client and tuned(client))
        self._failures = Failures(self._name, shown_host(address, _HOME), f"the API key: {_key_source(address)}")

    @property
    def name(self) -> str:
        """The name it is known by, such as `"anthropic:claude-sonnet-5"`."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """Its properties."""
        return self._profile

    def __repr__(self) -> str:
        return f"AnthropicModel({self._model!r}, name={self._name!r})"

    async def __aenter__(self) -> Self:
        await _sdk()
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
            ConfigError: The request holds what the API cannot carry (code `"model-content"`), or a setting that Claude
                does not have (`"model-settings"`).
            ModelUnavailable: The server could not be reached, or did not begin in time.
            RateLimited: Too many requests.
            ContextOverflow: The request is larger than the model's context window.
            ModelStatusError: The server answered with another error status.
            ModelStreamError: The stream broke, stalled, was malformed or ended too early.
        """
        check_real_model(self._name)
        await _sdk()
        params = message_request(request, self._model, self._profile, self._cache)
        seconds = request.settings.get("timeout", BEGIN_TIMEOUT)
        async with self._clients.client() as client, AsyncExitStack() as stack:
            answer: AnswerStream | None = None
            with anyio.move_on_after(seconds) as scope:
                answer = await self._begin(client, params, stack)
            if answer is None or scope.cancelled_caught:
                raise self._failures.late(seconds)
            yield answer
            if self._clients.kept:
                await answer.drain()

    async def _begin(self, client: Any, params: dict[str, Any], stack: AsyncExitStack) -> AnswerStream:
        """Send the request, and wait for the first event."""
        import anthropic

        create: Any = client.messages.with_streaming_response.create
        try:
            with limited() as received:
                response = await stack.enter_async_context(
                    create(**params, stream=True, extra_headers={"Accept-Encoding": ACCEPTED})
                )
        except anthropic.APIStatusError as error:
            # Not chained: the SDK's text repeats the body, and a body may repeat the key.
            raise self._failures.status(error.status_code, error.response.headers, error.body) from None
        except anthropic.APIConnectionError as error:
            raise self._failures.unreachable(error) from error
        sent = anthropic.AsyncStream.raw_events(response.http_response)
        stack.push_async_callback(end_reading, response.http_response, sent)
        reading = MessageReading()

        def broken_off(body: object) -> ModelError:
            return self._failures.event(body, begun=reading.begun)

        answer = AnswerStream(_Events(sent, received, self._name, self._idle), reading, self._name, broken_off)
        await answer.pull()
        return answer


class _Events:
    """The events that the SDK reads, as JSON objects; a `ProviderEvents`."""

    def __init__(self, events: AsyncIterator[Any], received: ReceivedBytes, model: str, idle: float) -> None:
        self._events = events
        self._received = received
        self._model = model
        self._idle = idle

    async def next(self) -> Mapping[str, Any] | None:
        import httpx2

        data = ""
        while not data:
            try:
                event = await self._received.next_of(self._events, self._idle)
            except TimeoutError:
                raise ModelStreamError(
                    f"the stream stalled: nothing came for {self._idle:g} s",
                    model=self._model,
                    hint="raise idle_timeout= of the model if it may be silent for longer",
                ) from None
            except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
                raise ModelStreamError(
                    f"the stream broke before the answer was complete: {type(error).__name__}", model=self._model
                ) from error
            except ValueError as error:
                raise Malformed(str(error)) from None
            if event is None:
                return None
            data = event.data
        try:
            found: object = json.loads(data)
        except (ValueError, RecursionError):
            raise Malformed("an event is not JSON") from None
        return mapping(found, "an event")

    async def drain(self) -> None:
        import httpx2

        with anyio.move_on_after(_DRAIN_TIMEOUT):
            try:
                while await anext(self._events, None) is not None:
                    pass
            except (httpx2.HTTPError, httpx2.StreamError, OSError, ValueError):
                return


async def _sdk() -> None:
    """Load the SDK, in a worker thread, since it takes some seconds."""
    for name in ("anthropic", "anthropic.resources.messages"):
        if name not in sys.modules:
            await anyio.to_thread.run_sync(import_module, name)


def _key_of(client: AsyncAnthropic | AsyncAnthropicVertex) -> str:
    """The secret that a client signs with, where it holds one itself."""
    return getattr(client, "api_key", None) or getattr(client, "access_token", None) or _NO_KEY


def _key(base_url: str | None, name: str) -> str:
    found = None if base_url and not _is_home(base_url) else os.environ.get("ANTHROPIC_API_KEY")
    if not found and _is_home(base_url or os.environ.get("ANTHROPIC_BASE_URL")):
        raise ConfigError(
            f"{name} needs an API key",
            code="model-key",
            hint="set the environment variable ANTHROPIC_API_KEY, or pass api_key= to AnthropicModel",
        )
    return found or _NO_KEY


def _is_home(address: str | None) -> bool:
    host = host_of(address)
    return not address or host == "anthropic.com" or host.endswith(".anthropic.com")


def _key_source(address: str | None) -> str:
    """Where the key of a model comes from, for error hints."""
    given = "api_key= of AnthropicModel"
    return f"{given}, or the environment variable ANTHROPIC_API_KEY" if _is_home(address) else given
