"""A Gemini model behind the Gemini API or Vertex AI."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from noetic_google.connection import Account, GoogleClient, new_client
from noetic_google.failures import Failures
from noetic_google.reading import ChunkReading
from noetic_google.requests import content_request, profile_of_gemini
from noetic_py import Secret
from noetic_py.errors import ConfigError, ModelError, ModelStreamError, ModelUnavailable
from noetic_py.models import ModelProfile, ModelRequest, ModelStream, check_real_model
from noetic_py.models.http import (
    LoopClients,
    ReceivedBytes,
    check_address,
    check_asyncio,
    end_reading,
    host_of,
    limited,
    shown_host,
)
from noetic_py.models.reading import AnswerStream, Malformed

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

__all__ = ["GoogleModel"]

BEGIN_TIMEOUT = 600.0
"""Seconds an answer may take to begin where the settings say nothing."""

_HOME = "https://generativelanguage.googleapis.com"
_VERTEX = "https://aiplatform.googleapis.com"
_NO_KEY = "none"
_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
_FLAGS = ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI")


class GoogleModel:
    """A Gemini model that the official SDK talks to; a `Model` and a `ProfiledModel`, on asyncio and on trio.

    It is asked at the Gemini API, or at Vertex AI where `project`, `location` or `credentials` is given or the
    environment says `GOOGLE_GENAI_USE_VERTEXAI=true`. Credentials of Google Cloud are refreshed on asyncio only.

    The SDK's own retries are off, since a step's `retry=` does that within the budget; so are its continuations and its
    calling of functions.

    A harness keeps connections open between calls while it is entered, and so does `async with model:`. Elsewhere each
    call has one of its own.

    Args:
        model: The provider's name of the model, such as `"gemini-3.8-flash"`.
        base_url: The server's address; when absent, `GOOGLE_GEMINI_BASE_URL`, or `GOOGLE_VERTEX_BASE_URL` for Vertex
            AI, and Google's own without that.
        api_key: The key; no error, log or trace shows it. When absent, `GOOGLE_API_KEY` or `GEMINI_API_KEY`, but not
            for a server given by `base_url=`: it gets no key that was not meant for it.
        project: The project at Google Cloud; when absent, `GOOGLE_CLOUD_PROJECT`.
        location: Its location; when absent, `GOOGLE_CLOUD_LOCATION`, and `"global"` without that.
        credentials: The credentials of google-auth; those of the environment when absent.
        profile: What is known of the model; known by its name when absent.
        idle_timeout: Seconds without a byte after which a stream counts as stalled.
        name: The name the framework knows it by; `"google:<model>"` when absent.

    Raises:
        ConfigError: There is no key, or for Vertex AI neither a project nor a key (code `"model-key"`), or
            `idle_timeout` is not above 0 (`"model-timeout"`).
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | Secret[str] | None = None,
        project: str | None = None,
        location: str | None = None,
        credentials: Credentials | None = None,
        profile: ModelProfile | None = None,
        idle_timeout: float = 60.0,
        name: str | None = None,
    ) -> None:
        if not idle_timeout > 0:
            raise ConfigError(
                f"idle_timeout={idle_timeout!r} is not a valid time; expected seconds above 0",
                code="model-timeout",
                hint="idle_timeout=60.0",
            )
        self._model = model
        self._name = name or f"google:{model}"
        vertex = bool(project or location or credentials is not None or _vertex_by_environment())
        address = base_url or os.environ.get("GOOGLE_VERTEX_BASE_URL" if vertex else "GOOGLE_GEMINI_BASE_URL")
        # Held for as long as the model lives, so that no text shows the password of an address.
        self._address_secrets = Secret.in_address(address or "")
        if address:
            check_address(address)
        self._account = _account(vertex, api_key, project, location, credentials, base_url, address, self._name)
        self._idle = idle_timeout
        self._profile = profile or profile_of_gemini(model)
        self._where = shown_host(address, _VERTEX if vertex else _HOME)
        self._clients = LoopClients(partial(new_client, address, self._account))
        self._failures = Failures(self._name, self._where, _sign_in(self._account, base_url))

    @property
    def name(self) -> str:
        """The name it is known by, such as `"google:gemini-3.8-flash"`."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """Its properties."""
        return self._profile

    def __repr__(self) -> str:
        return f"GoogleModel({self._model!r}, name={self._name!r})"

    async def __aenter__(self) -> Self:
        self._check_loop()
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
            ConfigError: The request holds what the API cannot carry (code `"model-content"`), or a setting that Gemini
                does not have (`"model-settings"`); Google Cloud refuses the credentials (`"model-key"`), or they would
                have to be refreshed on trio (`"model-loop"`).
            ModelUnavailable: The server could not be reached, or did not begin in time.
            RateLimited: Too many requests.
            ContextOverflow: The request is larger than the model's context window.
            ModelStatusError: The server answered with another error status.
            ModelStreamError: The stream broke, stalled, was malformed or ended too early, or the model wrote a call
                that cannot be read.
        """
        check_real_model(self._name)
        self._check_loop()
        await _sdk()
        contents, config = content_request(request, self._model)
        seconds = request.settings.get("timeout", BEGIN_TIMEOUT)
        async with self._clients.client() as client, AsyncExitStack() as stack:
            answer: AnswerStream | None = None
            with anyio.move_on_after(seconds) as scope:
                answer = await self._begin(client, contents, config, stack)
            if answer is None or scope.cancelled_caught:
                raise self._failures.late(seconds)
            yield answer

    async def _begin(
        self, client: GoogleClient, contents: list[Any], config: Any, stack: AsyncExitStack
    ) -> AnswerStream:
        """Send the request, and wait for the first chunk."""
        with limited() as received:
            models: Any = client.aio.models
            chunks = await models.generate_content_stream(model=self._model, contents=contents, config=config)
            reading = ChunkReading()
            events = _Events(chunks, received, reading, self._name, self._failures, self._idle)
            stack.push_async_callback(events.close)
            answer = AnswerStream(events, reading, self._name, self._unusable)
            await answer.pull()
        return answer

    def _unusable(self, reason: object) -> ModelError:
        return ModelStreamError(
            f"the model wrote what cannot be used: {self._failures.clean(str(reason))}",
            model=self._name,
            hint="give the step retry=: another try often brings a valid answer",
        )

    def _check_loop(self) -> None:
        # The SDK refreshes credentials with locks and threads of asyncio.
        if self._account.api_key is None:
            check_asyncio(self._name, "google-genai signs in at Google Cloud", "give it an api_key=")


class _Events:
    """The chunks that the SDK reads; a `ProviderEvents`."""

    def __init__(
        self,
        chunks: AsyncIterator[Any],
        received: ReceivedBytes,
        reading: ChunkReading,
        model: str,
        failures: Failures,
        idle: float,
    ) -> None:
        self._chunks = chunks
        self._received = received
        self._reading = reading
        self._model = model
        self._failures = failures
        self._idle = idle

    async def next(self) -> Mapping[str, Any] | None:
        import httpx2
        from google.auth.exceptions import GoogleAuthError
        from google.genai.errors import APIError

        begun = self._reading.begun
        try:
            # Until the answer begins, the caller's time limit holds.
            chunk = await self._received.next_of(self._chunks, self._idle if begun else math.inf)
        except TimeoutError:
            raise ModelStreamError(
                f"the stream stalled: nothing came for {self._idle:g} s",
                model=self._model,
                hint="raise idle_timeout= of the model if it may be silent for longer",
            ) from None
        except APIError as error:
            # Not chained: the SDK's text repeats the body, and a body may repeat the key.
            raise self._failures.of(error, begun=begun) from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise self._broken(error) from error
        except GoogleAuthError as error:
            raise self._not_signed_in(error) from error
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise self._unread(error) from None
        return None if chunk is None else {"chunk": chunk}

    async def drain(self) -> None:
        """A whole answer ends with its stream, behind which nothing comes."""

    async def close(self) -> None:
        """End the stream, also one that was left in the middle."""
        if self._received.response is not None:
            await end_reading(self._received.response, self._chunks)

    def _broken(self, error: Exception) -> ModelError:
        if self._received.response is not None:
            return ModelStreamError(
                f"the stream broke before the answer was complete: {type(error).__name__}", model=self._model
            )
        return self._failures.unreachable(error)

    def _not_signed_in(self, error: Any) -> ModelError | ConfigError:
        from google.auth.exceptions import TransportError

        words = self._failures.clean(str(error))
        if error.retryable or isinstance(error, TransportError):
            return ModelUnavailable(f"Google Cloud could not be asked for a token: {words}", model=self._model)
        return ConfigError(
            f"{self._model} could not sign in at Google Cloud: {words}",
            code="model-key",
            hint="run `gcloud auth application-default login`, or pass credentials= to GoogleModel",
        )

    def _unread(self, error: Exception) -> Exception:
        """The error for what the SDK could not make a request, or a chunk, of."""
        words, response = self._failures.clean(str(error)), self._received.response
        if response is None:
            return ConfigError(f"{self._model} cannot be asked like this: {words}", code="model-content")
        if not response.is_success:
            return self._failures.status(response.status_code, "no reason given", response.headers)
        return Malformed(words or type(error).__name__)


async def _sdk() -> None:
    """Load the SDK, in a worker thread, since it takes a second or more."""
    for name in ("google.genai", "google.genai.types"):
        if name not in sys.modules:
            await anyio.to_thread.run_sync(import_module, name)


def _vertex_by_environment() -> bool:
    found = next((os.environ[name] for name in _FLAGS if name in os.environ), "")
    return found.lower() in ("true", "1")


def _account(
    vertex: bool,
    api_key: str | Secret[str] | None,
    project: str | None,
    location: str | None,
    credentials: Credentials | None,
    base_url: str | None,
    address: str | None,
    name: str,
) -> Account:
    """What signs the requests of a model."""
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") if vertex else None
    foreign = bool(base_url) and not _is_home(base_url)
    if vertex and project and not api_key:
        if foreign and credentials is None:
            raise ConfigError(
                f"{name} needs credentials that are meant for the server of base_url=",
                code="model-key",
                hint="pass credentials= or api_key= to GoogleModel",
            )
        where = location or os.environ.get("GOOGLE_CLOUD_LOCATION") or "global"
        return Account(True, None, project, where, credentials)
    found = api_key or (None if foreign else next((os.environ[key] for key in _KEYS if os.environ.get(key)), None))
    if not found and (vertex or _is_home(address)):
        what = "a project at Google Cloud or an API key" if vertex else "an API key"
        hint = "set the environment variable GEMINI_API_KEY, or pass api_key= to GoogleModel"
        if vertex:
            hint = "set GOOGLE_CLOUD_PROJECT, or pass project= or api_key= to GoogleModel"
        raise ConfigError(f"{name} needs {what}", code="model-key", hint=hint)
    # Known as a secret for as long as the model lives, so that no text shows it, wherever it is repeated.
    key = found if isinstance(found, Secret) else Secret(found or _NO_KEY)
    return Account(vertex, key, project, location if project else None, None)


def _is_home(address: str | None) -> bool:
    host = host_of(address)
    return not address or host == "googleapis.com" or host.endswith(".googleapis.com")


def _sign_in(account: Account, base_url: str | None) -> str:
    """What a model signs in with, for error hints."""
    if account.api_key is None:
        return "the credentials of Google Cloud: credentials= of GoogleModel, or those of the environment"
    given = "the API key: api_key= of GoogleModel"
    return f"{given}, or the environment variable GOOGLE_API_KEY or GEMINI_API_KEY" if _is_home(base_url) else given
