"""A model of pydantic-ai as a model of noetic_py."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from noetic_py.errors import ConfigError, ModelError, ModelUnavailable
from noetic_py.models import ModelProfile, ModelRequest, ModelStream, check_real_model
from noetic_py.models.failures import ProviderFailures
from noetic_py.models.http import check_asyncio
from noetic_py.models.reading import AnswerStream

if TYPE_CHECKING:
    from pydantic_ai.models import Model, StreamedResponse

__all__ = ["PydanticAIModel"]

BEGIN_TIMEOUT = 600.0
"""Seconds an answer may take to begin where the settings say nothing; reasoning models can be silent for minutes."""


class PydanticAIModel:
    """A model of pydantic-ai; a `Model` and a `ProfiledModel`, on asyncio.

    The model is asked by pydantic-ai's own class for its provider, without an agent: tools, typed output, budgets and
    retries are those of noetic_py. The retries of the provider's SDK are off, where pydantic-ai can turn them off.

    A harness keeps connections open between calls while it is entered, and so does `async with model:`. Elsewhere each
    call has one of its own.

    Args:
        model: pydantic-ai's name of the model, such as `"mistral:mistral-large-latest"`, or a model of pydantic-ai.
        profile: What is known of the model.
        name: The name the framework knows it by; `"pydantic-ai:<provider>:<model>"` when absent.

    Raises:
        ConfigError: The name is not one of pydantic-ai's (code `"model-name"`).
    """

    def __init__(self, model: str | Model, *, profile: ModelProfile | None = None, name: str | None = None) -> None:
        if isinstance(model, str) and ":" not in model:
            raise ConfigError(
                f"{model!r:.100} is not a valid model of pydantic-ai; expected a provider and a model",
                code="model-name",
                hint='PydanticAIModel("mistral:mistral-large-latest")',
            )
        self._given = model
        self._found: Model | None = None if isinstance(model, str) else model
        self._profile = profile or ModelProfile()
        known = model if isinstance(model, str) else f"{model.system}:{model.model_name}"
        self._name = name or f"pydantic-ai:{known}"

    @property
    def name(self) -> str:
        """The name it is known by, such as `"pydantic-ai:mistral:mistral-large-latest"`."""
        return self._name

    @property
    def profile(self) -> ModelProfile:
        """Its properties."""
        return self._profile

    def __repr__(self) -> str:
        return f"PydanticAIModel(name={self._name!r})"

    async def __aenter__(self) -> Self:
        self._check_loop()
        await (await self._model()).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await (await self._model()).__aexit__(kind, error, trace)

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Ask; the answer is streamed while the context manager is open.

        Args:
            request: What to ask. The setting `timeout` bounds the seconds until the answer begins.

        Raises:
            RealModelRefused: Real models are forbidden here.
            ConfigError: The loop is not asyncio (code `"model-loop"`), the model or its package is not there
                (`"model-name"`), or the request holds what pydantic-ai cannot carry (`"model-content"`).
            ModelUnavailable: The server could not be reached, or did not begin in time.
            RateLimited: Too many requests.
            ContextOverflow: The request is larger than the model's context window.
            ModelStatusError: The server answered with another error status.
            ModelStreamError: The stream broke, was malformed or ended too early.
        """
        check_real_model(self._name)
        self._check_loop()
        model = await self._model()
        from noetic_pydantic_ai.reading import PartReading
        from noetic_pydantic_ai.requests import request_of

        seconds = request.settings.get("timeout", BEGIN_TIMEOUT)
        messages, settings, parameters = request_of(request, model, self._name)
        async with AsyncExitStack() as stack:
            answer: AnswerStream | None = None
            await stack.enter_async_context(model)
            with anyio.move_on_after(seconds) as scope:
                reading = PartReading()
                opened = model.request_stream(messages, settings, parameters)
                streamed = await self._entered(stack, opened)
                events = _Events(streamed, self._name)
                stack.push_async_callback(events.close)
                reading.streamed = streamed
                answer = AnswerStream(events, reading, self._name, _never)
                await answer.pull()
            if answer is None or scope.cancelled_caught:
                raise ProviderFailures(self._name).late(seconds)
            yield answer

    async def _entered(self, stack: AsyncExitStack, opened: Any) -> StreamedResponse:
        from noetic_pydantic_ai.failures import failure_of

        try:
            found: StreamedResponse = await stack.enter_async_context(opened)
        except Exception as error:
            raise failure_of(error, self._name, begun=False) from error
        return found

    async def _model(self) -> Model:
        if self._found is None:
            if "pydantic_ai.models" not in sys.modules:
                # It takes the better part of three seconds.
                await anyio.to_thread.run_sync(import_module, "pydantic_ai.models")
            self._found = await anyio.to_thread.run_sync(_inferred, self._given, self._name)
        return self._found

    def _check_loop(self) -> None:
        check_asyncio(self._name, "pydantic-ai runs", "use a model of noetic-openai, noetic-anthropic or noetic-google")


def _inferred(given: Any, name: str) -> Model:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    try:
        return infer_model(given)
    except (UserError, ImportError, ValueError) as error:
        raise ConfigError(
            f"{name} cannot be used: {' '.join(str(error).split())[:500]}",
            code="model-name",
            hint="pydantic-ai's documentation names the models, their packages and where their keys come from",
        ) from error


def _never(error: object) -> ModelError:
    return ModelUnavailable(f"the provider sent an error: {error!r:.200}", model="")


class _Events:
    """The events of an answer; a `ProviderEvents`."""

    def __init__(self, streamed: StreamedResponse, model: str) -> None:
        self._events: AsyncIterator[Any] = aiter(streamed)
        self._model = model
        self._begun = False

    async def next(self) -> Mapping[str, Any] | None:
        from noetic_pydantic_ai.failures import failure_of

        try:
            event = await anext(self._events, None)
        except Exception as error:
            raise failure_of(error, self._model, begun=self._begun) from error
        self._begun = True
        return None if event is None else {"event": event}

    async def drain(self) -> None:
        """The connection belongs to pydantic-ai, which reads to the end by itself."""

    async def close(self) -> None:
        """End the iteration, which an answer that was left early has not."""
        with suppress(RuntimeError):
            close = getattr(self._events, "aclose", None)
            if close is not None:
                await close()
