"""`FallbackModel`: asks the next model when one fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from contextlib import AbstractAsyncContextManager, aclosing
from logging import WARNING
from typing import TypeVar

from noetic_py.core.logs import log
from noetic_py.errors import (
    AllModelsFailed,
    ConfigError,
    ModelError,
    ModelNotFound,
    ModelStatusError,
    RateLimited,
)
from noetic_py.models.model import Model, ModelProfile, ModelRequest, ModelStream, current_where
from noetic_py.models.price_table import profile_of
from noetic_py.models.retry import is_retryable
from noetic_py.models.wrapper import GeneratedAnswer, ModelWrapper, Part, checked_model, name_of, parts_of

_CODE = "fallback-model"
_T = TypeVar("_T", bound=Hashable)

# No key or a wrong one, nothing paid, not allowed, not known, no longer there: all of that is about one provider.
_OF_THE_PROVIDER = frozenset({401, 402, 403, 404, 410})


class FallbackModel(ModelWrapper):
    """Asks its models one after the other, until one answers.

    The next model is asked when one fails with an error that it may not have: every `retryable` one, every rate limit,
    a name that cannot be resolved, a key that is not accepted, a model that the provider does not have. A model that
    refuses, a request that is wrong or too large, and an answer that does not fit would be the same everywhere, and are
    raised as they are. What was streamed of a failed answer is void, and the events of the next model follow.

    Each model's calls have its own price and its own tokenizer. `ModelResponse.model` says who has answered.

    Args:
        models: The models, or their names, the best first.
        when: Whether the next model is asked after an error; only errors of models are asked about.

    Raises:
        ConfigError: There are no models, one is none, or `when` is no function; code `"fallback-model"`.
    """

    def __init__(self, *models: Model | str, when: Callable[[ModelError], bool] | None = None) -> None:
        if not models:
            raise ConfigError(
                "() is not a valid list of models; expected at least one",
                code=_CODE,
                hint="FallbackModel(first, second)",
            )
        if when is not None and not callable(when):
            raise ConfigError(
                f"when={when!r} is not a valid condition; expected a function of an error",
                code=_CODE,
                hint="when=lambda error: error.retryable",
            )
        self.models: tuple[Model | str, ...] = tuple(checked_model(model, code=_CODE) for model in models)
        super().__init__(self.models[0])
        self.when: Callable[[ModelError], bool] = may_differ if when is None else when

    @property
    def name(self) -> str:
        """The names of all models, such as `"openai:gpt-5-mini|local:smollm2"`."""
        return "|".join(map(name_of, self.models))

    @property
    def profile(self) -> ModelProfile:
        """What holds for all models: the smallest window, and price and tokenizer where they have the same."""
        profiles = [ModelProfile() if isinstance(model, str) else profile_of(model) for model in self.models]
        return ModelProfile(
            context_window=_least(profile.context_window for profile in profiles),
            max_output_tokens=_least(profile.max_output_tokens for profile in profiles),
            price=_common(profile.price for profile in profiles),
            encoding=_common(profile.encoding for profile in profiles),
            settings=frozenset[str]().union(*(profile.settings for profile in profiles)),
        )

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask the models in order.

        Raises:
            AllModelsFailed: Every model failed.
            ModelError: A model failed in a way for which `when` asks no other.
            BudgetExceeded: In a run: the budget does not allow the next call.
        """
        return GeneratedAnswer(self.name, self._parts(request))

    async def _parts(self, request: ModelRequest) -> AsyncGenerator[Part]:
        failures: list[tuple[str, ModelError]] = []
        for model in self.models:
            try:
                async with self.ask(model, request) as stream, aclosing(parts_of(stream)) as parts:
                    async for part in parts:
                        yield part
                return
            except ModelError as error:
                if not self.when(error):
                    raise
                failures.append((name_of(model), error))
                left = len(self.models) - len(failures)
                if left:
                    name = name_of(model)
                    message = "%s failed, the next of %d others is asked: %s"
                    log("models", WARNING, message, name, left, error.message, where=current_where())
        raise AllModelsFailed(failures, model=self.name) from failures[-1][1]


def may_differ(error: ModelError) -> bool:
    """Whether another model may answer where one failed so."""
    if isinstance(error, AllModelsFailed):
        return True
    if isinstance(error, ModelStatusError) and error.status in _OF_THE_PROVIDER:
        return True
    # An account that is empty answers with a rate limit that no waiting lifts.
    return is_retryable(error) or isinstance(error, (ModelNotFound, RateLimited))


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _common(values: Iterable[_T | None]) -> _T | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None
