"""The errors that every provider has, for authors of models: one class per cause, in the same words."""

from __future__ import annotations

from noetic_py.errors import ContextOverflow, ModelStatusError, ModelStreamError, ModelUnavailable, RateLimited
from noetic_py.redaction import redact

__all__ = ["ProviderFailures"]

_BODY = 500


class ProviderFailures:
    """Makes the errors of one model from what its provider says, shortened and without secrets.

    Which cause a failure has, each provider says in its own way: so a model decides it, and calls one of these methods.

    Args:
        model: The model's name.
        where: Host and port of the server, where they are known.
        key: What to check where the provider refuses the key or the credentials.
    """

    def __init__(self, model: str, where: str | None = None, key: str = "the API key") -> None:
        self._model, self._key = model, key
        self._provider = "the provider" if where is None else f"the provider at {where}"

    def clean(self, text: str) -> str:
        """The text, shortened and without secrets."""
        text = redact(text)
        return text if len(text) <= _BODY else f"{text[:_BODY]}…"

    def overflow(self, status: int, words: str) -> ContextOverflow:
        """The request is larger than the context window."""
        text = self.clean(words)
        return ContextOverflow(
            f"the request is larger than the context window: {text}",
            model=self._model,
            status=status,
            body=text,
            hint="give the step less history, such as by a window layer, or take a model with a larger window",
        )

    def limited(self, words: str, retry_after: float | None) -> RateLimited:
        """There were too many requests; `retry_after` are the seconds that the provider asks to wait."""
        text = self.clean(words)
        return RateLimited(f"too many requests: {text}", model=self._model, retry_after=retry_after, body=text)

    def refused(self, status: int, words: str, hint: str | None = None) -> ModelStatusError:
        """The provider answered with another error status; for a refused key the hint says what to check."""
        text = self.clean(words)
        return ModelStatusError(
            f"{self._provider} answered with status {status}: {text}",
            model=self._model,
            status=status,
            body=text,
            hint=f"check {self._key}" if hint is None and status in (401, 403) else hint,
        )

    def broken_off(self, words: str) -> ModelStreamError:
        """The provider sent an error in the middle of its answer."""
        return ModelStreamError(f"the provider broke the answer off: {self.clean(words)}", model=self._model)

    def unreachable(self, error: BaseException) -> ModelUnavailable:
        """No connection came about; the SDK's error says why."""
        reason = self.clean(str(error.__cause__ or error)) or type(error).__name__
        return ModelUnavailable(
            f"{self._provider} could not be reached: {reason}",
            model=self._model,
            hint="check the network and the address (base_url=), or give the step retry=",
        )

    def late(self, seconds: float) -> ModelUnavailable:
        """The answer did not begin in time."""
        return ModelUnavailable(
            f"the answer did not begin within {seconds:g} s",
            model=self._model,
            hint="raise timeout= of the settings, or give the step retry=",
        )
