"""Failures of pydantic-ai as the named errors of noetic_py, one per cause."""

from __future__ import annotations

import json

from pydantic_ai import exceptions

from noetic_py import redact
from noetic_py.errors import (
    ConfigError,
    ContextOverflow,
    ModelError,
    ModelStatusError,
    ModelStreamError,
    ModelUnavailable,
    NoeticError,
    RateLimited,
)

__all__ = ["failure_of"]

_BODY = 500
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
    if isinstance(error, exceptions.UserError):
        return ConfigError(f"{model} cannot be asked: {_cut(str(error))}", code="model-content")
    if begun or isinstance(error, exceptions.AgentRunError):
        return ModelStreamError(f"the stream broke: {type(error).__name__}: {_cut(str(error))}", model=model)
    return ModelUnavailable(f"the provider could not be asked: {type(error).__name__}: {_cut(str(error))}", model=model)


def _of_api(error: exceptions.ModelAPIError, model: str, *, begun: bool) -> ModelError:
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    text = _cut(_words(error))
    if begun or error.in_stream:
        return ModelStreamError(f"the provider broke the answer off: {text}", model=model)
    if isinstance(error, exceptions.ModelContextWindowExceededError) or (status == 400 and _overflows(text)):
        return ContextOverflow(
            f"the request is larger than the context window: {text}",
            model=model,
            status=status or 400,
            body=text,
            hint="give the step less history, such as by a window layer, or take a model with a larger window",
        )
    if isinstance(error, exceptions.ModelRateLimitError) or status == 429:
        return RateLimited(f"too many requests: {text}", model=model, retry_after=error.retry_after, body=text)
    if status is None:
        return ModelUnavailable(
            f"the provider could not be reached: {text}",
            model=model,
            hint="check the network and the address of the provider, or give the step retry=",
        )
    return ModelStatusError(
        f"the provider answered with status {status}: {text}",
        model=model,
        status=status,
        body=text,
        hint="check the API key" if status in (401, 403) else None,
    )


def _words(error: exceptions.ModelAPIError) -> str:
    if error.body is None:
        return str(error.message)
    return error.body if isinstance(error.body, str) else json.dumps(error.body, default=str)


def _overflows(text: str) -> bool:
    return any(words in text.lower() for words in _OVERFLOW_WORDS)


def _cut(text: str) -> str:
    text = redact(" ".join(text.split()))
    return text if len(text) <= _BODY else f"{text[:_BODY]}…"
