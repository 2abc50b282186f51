"""What goes wrong with models, tools and layers."""

from __future__ import annotations

from collections.abc import Iterable

from noetic_py.errors.general import NoeticError
from noetic_py.errors.redaction import redact


class ModelError(NoeticError):
    """A model call failed.

    Args:
        message: What happened.
        model: The model's name, such as `"openai:gpt-5-mini"`.
    """

    model: str
    retryable: bool = False

    def __init__(self, message: str, *, model: str, path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.model = model


class ModelRefused(ModelError):
    """The model declined to answer."""


class ModelParseError(ModelError):
    """The answer does not fit the output type, after the allowed `output_retries`."""


class UsageInvalid(ModelError):
    """A provider has reported a usage or a cost that cannot be booked; what was reserved counts as used."""


class ModelUnavailable(ModelError):
    """The provider could not be reached, or the connection was lost before an answer began."""

    retryable = True


class ModelStatusError(ModelError):
    """The provider answered with an error status.

    Args:
        status: The HTTP status.
        body: The provider's error text, shortened.
    """

    status: int
    body: str

    def __init__(
        self,
        message: str,
        *,
        model: str,
        status: int,
        body: str = "",
        path: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, model=model, path=path, hint=hint)
        self.status = status
        self.body = redact(body)
        self.retryable: bool = status in (408, 409, 429) or status >= 500


class RateLimited(ModelStatusError):
    """Too many requests.

    Args:
        retry_after: Seconds the provider asks to wait, `None` when it did not say.
    """

    retry_after: float | None

    def __init__(
        self,
        message: str,
        *,
        model: str,
        retry_after: float | None = None,
        status: int = 429,
        body: str = "",
        path: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            message, model=model, status=status, body=body, path=path, hint="wait, or give the step retry="
        )
        self.retry_after = retry_after


class ContextOverflow(ModelStatusError):
    """The request is larger than the model's context window."""


class ModelStreamError(ModelError):
    """A stream was cut, stalled or malformed after it had begun."""

    retryable = True


class AnswerTooLarge(ModelStreamError):
    """An answer has more bytes than answers may have, so it was cut off; what came of it counts against the budget.

    Args:
        limit: How many bytes an answer may have.
    """

    retryable = False
    limit: int

    def __init__(self, limit: int, *, model: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"an answer is limited to {limit} bytes",
            model=model,
            path=path,
            hint="set max_output_tokens=, or look at what the provider sends",
        )
        self.limit = limit


class ModelBusy(ModelError):
    """As many requests wait for a `LimitedModel` as may wait, so one more was refused.

    Args:
        waiting: How many wait.
    """

    retryable = True
    waiting: int

    def __init__(self, waiting: int, *, model: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"{waiting} requests wait for the model already",
            model=model,
            path=path,
            hint="try again later, ask another model, or raise max_waiting=",
        )
        self.waiting = waiting


class AllModelsFailed(ModelError):
    """Each model of a `FallbackModel` failed; `__cause__` is the last one's error.

    Args:
        failures: The models' names and errors, in the order in which they were asked.
    """

    failures: tuple[tuple[str, ModelError], ...]

    def __init__(self, failures: Iterable[tuple[str, ModelError]], *, model: str, path: tuple[str, ...] = ()) -> None:
        self.failures = tuple(failures)
        said = "; ".join(f"{name}: {error.message}" for name, error in self.failures)
        super().__init__(f"every model failed: {said}", model=model, path=path)
        self.retryable: bool = any(error.retryable for _, error in self.failures)


class ModelNotFound(ModelError):
    """No plugin knows the model's name, or the package that does is not installed."""


class RealModelRefused(ModelError):
    """A real model was about to be called while `noetic_py.models` forbids it, as it does under pytest."""


class ToolError(NoeticError):
    """A tool call failed.

    Args:
        message: What happened; the model sees it as the call's output.
        tool: The tool's name, as the model was offered it; a tool that raises one may leave it out.
    """

    tool: str

    def __init__(self, message: str, *, tool: str = "", path: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message, path=path, hint=hint)
        self.tool = tool


class UnknownTool(ToolError):
    """The model named a tool that it was not given."""


class ToolArgumentsInvalid(ToolError):
    """The arguments are no JSON object, or do not fit the tool's parameters."""


class ToolFailed(ToolError):
    """The tool's function raised."""


class LayerError(NoeticError):
    """A memory layer has failed, or is not in this execution.

    Args:
        message: What happened.
        layer: The layer's id.
        hook: In which hook, `""` outside of one.
    """

    layer: str
    hook: str

    def __init__(
        self, message: str, *, layer: str, hook: str = "", path: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.layer = layer
        self.hook = hook


class HookFailed(NoeticError):
    """A hook has raised, or has returned what it may not; what it was called for fails with it.

    Args:
        message: What happened.
        hook: The hook's name.
        event: What it was called for, such as `"after_model"`.
    """

    hook: str
    event: str

    def __init__(
        self, message: str, *, hook: str, event: str, path: tuple[str, ...] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.hook = hook
        self.event = event


class ModelRetry(NoeticError):
    """Raised by a tool or an output validator: ask the model again, with this message.

    Args:
        message: What the model should do differently.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
