"""`ModelWrapper`: a model made of another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, TypeAlias, TypeGuard

from noetic_py.errors import ConfigError, ModelNotFound, ModelStreamError
from noetic_py.models.model import CALLS, Model, ModelEvent, ModelProfile, ModelRequest, ModelResponse, ModelStream
from noetic_py.models.price_table import profile_of

Part: TypeAlias = ModelEvent | ModelResponse
"""What comes in with an answer: its events, and then the whole."""


class ModelWrapper:
    """A model that passes requests on to another one; the base of all wrappers, also of your own.

    A wrapper overrides `respond`, and asks its model through `ask`, never through the model's own `respond`. Then each
    request that really goes to a provider is a call of its own in the run: within the budget, with that model's price,
    and with events of its own. Whatever way a wrapper is left, it has to leave what it has entered.

    ```python
    class Polite(ModelWrapper):
        @asynccontextmanager
        async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
            async with self.ask(self.model, evolve(request, instructions="Be polite.")) as stream:
                yield stream
    ```

    Args:
        model: The model to ask, or its name, which only a run can resolve.

    Raises:
        ConfigError: It is no model; code `"model-wrapper"`.
    """

    def __init__(self, model: Model | str) -> None:
        self.model: Model | str = checked_model(model)

    @property
    def name(self) -> str:
        """The name of the model behind."""
        return name_of(self.model)

    @property
    def profile(self) -> ModelProfile:
        """What is known of the model behind; nothing as long as it is only a name."""
        return ModelProfile() if isinstance(self.model, str) else profile_of(self.model)

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Ask the model behind.

        Raises:
            ModelError: One of its subclasses, on entering, while streaming or on leaving.
            BudgetExceeded: In a run: the budget does not allow the call.
        """
        return self.ask(self.model, request)

    @staticmethod
    def ask(model: Model | str, request: ModelRequest) -> AbstractAsyncContextManager[ModelStream]:
        """Ask a model on behalf of the run that asks this wrapper, or simply ask it where there is none.

        Args:
            model: The model, or its name.
            request: What to ask.

        Raises:
            ModelNotFound: It is a name that no plugin knows, or there is no run to resolve it.
        """
        calls = CALLS.get()
        if isinstance(model, str):
            if calls is None:
                raise ModelNotFound(
                    f"the model {model!r} is only a name, and no run is here to resolve it",
                    model=model,
                    hint="give the wrapper an object, or use it as a run's model",
                )
            model = calls.find(model)
        if calls is None or isinstance(model, ModelWrapper):
            return model.respond(request)
        return calls.open(model, request)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class GeneratedAnswer:
    """An answer whose parts come out of a generator, which may ask as often as it likes.

    It is the context manager and the stream. The generator is begun on entering, so that what fails before the answer
    begins is raised there, and it is closed before the block is left, with all that it has entered.

    Args:
        name: The name of the model that answers, for errors.
        parts: The answer's events, and then the whole.
    """

    __slots__ = ("_first", "_name", "_parts", "_whole")

    def __init__(self, name: str, parts: AsyncGenerator[Part]) -> None:
        self._name = name
        self._parts = parts
        self._first: ModelEvent | None = None
        self._whole: ModelResponse | None = None

    async def __aenter__(self) -> GeneratedAnswer:
        self._first = await self._pull()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        # Closed, and not told of the error: an error of the reader is not a failure of the model behind.
        await self._parts.aclose()

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        event, self._first = self._first, None
        if event is None:
            event = await self._pull()
        if event is None:
            raise StopAsyncIteration
        return event

    async def response(self) -> ModelResponse:
        """The whole answer; reads what was not iterated.

        Raises:
            ModelStreamError: The answer broke off, which was raised before.
        """
        async for _ in self:
            pass
        if self._whole is None:
            raise ModelStreamError("the answer broke off before it was whole", model=self._name)
        return self._whole

    async def _pull(self) -> ModelEvent | None:
        async for part in self._parts:
            if not isinstance(part, ModelResponse):
                return part
            self._whole = part
        return None


async def parts_of(stream: ModelStream) -> AsyncGenerator[Part]:
    """The events of a stream that are still to come, and then the whole; close it when it is left early."""
    events = aiter(stream)
    try:
        async for event in events:
            yield event
    finally:
        await close_events(events)
    yield await stream.response()


async def close_events(events: AsyncIterator[ModelEvent]) -> None:
    """End an iterator that may have been left in the middle; most have nothing to end."""
    if isinstance(events, AsyncGenerator):
        await events.aclose()


def name_of(model: Model | str) -> str:
    """The name of a model, or the name itself."""
    return model if isinstance(model, str) else model.name


def checked_model(model: object, *, code: str = "model-wrapper") -> Model | str:
    """The model, or its name.

    Raises:
        ConfigError: It is neither.
    """
    if _is_model(model):
        return model
    raise ConfigError(
        f"{model!r} is not a valid model; expected a model or its name",
        code=code,
        hint='give a name such as "openai:gpt-5-mini", or an object that has been made, not its class',
    )


def _is_model(model: object) -> TypeGuard[Model | str]:
    if isinstance(model, str):
        return bool(model)
    return not isinstance(model, type) and callable(getattr(model, "respond", None)) and hasattr(model, "name")


def checked_count(value: object, name: str, *, code: str, least: int = 1) -> int:
    """The whole number.

    Raises:
        ConfigError: It is none, or below `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name}={value!r} is not a whole number, {least} or more", code=code, hint=f"{name}={max(least, 3)}"
        )
    return value


def checked_seconds(value: Any, name: str, *, code: str, zero: bool = False) -> float:
    """The seconds.

    Raises:
        ConfigError: They are no finite number above 0, or 0 where that has a meaning.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 <= value < float("inf") and (value > 0 or zero):
        return float(value)
    bound = "0 or more" if zero else "above 0"
    raise ConfigError(f"{name}={value!r} is not a finite number of seconds, {bound}", code=code, hint=f"{name}=30.0")
