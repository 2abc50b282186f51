"""Failures of pydantic-ai as the named errors of noetic_py, one per cause."""

from __future__ import annotations

import json

from pydantic_ai import exceptions

from noetic_py.errors import (
    ConfigError,
    ModelError,
    ModelStreamError,
    ModelUnavailable,
    NoeticError,
)
from noetic_py.models.failures import ProviderFailures

__all__ = ["failure_of"]

_OVERFLOW_WORDS = ("context_length_exceeded", "prompt is too long", "context window", "maximum context length")


def failure_of(error: Exception, model: str, *, begun: bool) -> NoeticError:
    """The error for what a model of pydantic-ai raised.

    Args:
        error: What it raised.
        model: The model's name.
        begun: Whether the answer had begun: then something was read and written, whatever the cause.
    """
    if isinstance(error, NoeticError):
        return error
    if isinstance(error, exceptions.ModelAPIError):
        return _of_api(error, model, begun=begun)
    words = ProviderFailures(model).clean(" ".join(str(error).split()))
    if isinstance(error, exceptions.UserError):
        return ConfigError(f"{model} cannot be asked: {words}", code="model-content")
    if begun or isinstance(error, exceptions.AgentRunError):
        return ModelStreamError(f"the stream broke: {type(error).__name__}: {words}", model=model)
    return ModelUnavailable(f"the provider could not be asked: {type(error).__name__}: {words}", model=model)


def _of_api(error: exceptions.ModelAPIError, model: str, *, begun: bool) -> ModelError:
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    failures, words = ProviderFailures(model), " ".join(_words(error).split())
    if begun or error.in_stream:
        return failures.broken_off(words)
    if isinstance(error, exceptions.ModelContextWindowExceededError) or (status == 400 and _overflows(words)):
        return failures.overflow(status or 400, words)
    if isinstance(error, exceptions.ModelRateLimitError) or status == 429:
        return failures.limited(words, error.retry_after)
    if status is None:
        return ModelUnavailable(
            f"the provider could not be reached: {failures.clean(words)}",
            model=model,
            hint="check the network and the address of the provider, or give the step retry=",
        )
    return failures.refused(status, words)


def _words(error: exceptions.ModelAPIError) -> str:
    if error.body is None:
        return str(error.message)
    return error.body if isinstance(error.body, str) else json.dumps(error.body, default=str)


def _overflows(text: str) -> bool:
    return any(words in text.lower() for words in _OVERFLOW_WORDS)
