"""The model of random programs: it answers from the request alone, and keeps an account of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from types import TracebackType

from noetic_py.context.context import current_context
from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.errors import ModelUnavailable
from noetic_py.models.model import ModelRequest, ModelStream
from noetic_py.testing._random_programs.conversation import valid
from noetic_py.testing._random_programs.observations import Observations
from noetic_py.testing.ledger import attempt_of
from noetic_py.testing.scripted import ScriptedModel

COST = Decimal("0.25")
"""The cost of a model call in these programs."""


class MeteredModel(ScriptedModel):
    """A scripted model that keeps its own account, and looks at every request."""

    def __init__(self, seen: Observations) -> None:
        super().__init__(*[_answer] * 4096, cost=COST)
        self.seen = seen

    def respond(self, request: ModelRequest, /) -> AbstractAsyncContextManager[ModelStream]:
        """Answer, and count."""
        return _Metered(self, request, super().respond(request))


class _Metered:
    def __init__(
        self, model: MeteredModel, request: ModelRequest, inner: AbstractAsyncContextManager[ModelStream]
    ) -> None:
        self.model = model
        self.request = request
        self.inner = inner

    async def __aenter__(self) -> ModelStream:
        seen = self.model.seen
        seen.calls += 1
        if not valid(self.request.items):
            seen.bad_requests.append(tuple(self.request.items))
        stream = await self.inner.__aenter__()
        seen.cost += COST
        seen.done.add(attempt_of(current_context(required=True)))
        return stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.inner.__aexit__(kind, error, trace)


def question(how: str, acc: int) -> str:
    """The prompt of a body."""
    return f"{how}:{acc}"


def _answer(request: ModelRequest) -> Item | Sequence[Item] | Exception:
    asked = next(item.text for item in reversed(request.items) if isinstance(item, Message) and item.role == "user")
    how, _, acc = asked.partition(":")
    if how == "down":
        return ModelUnavailable("down", model="test:scripted")
    if how == "agent" and isinstance(request.items[-1], FunctionCallOutput):
        return Message.assistant(f"re:{acc}")
    if how == "halt":
        return [Message.assistant(f"re:{acc}"), FunctionCall(name="halt", arguments={"x": int(acc)})]
    calls = [FunctionCall(name="note", arguments={"x": int(acc) + index}) for index in range(2)]
    if how == "tools":
        return [Message.assistant(f"re:{acc}"), *calls]
    return calls if how == "agent" else Message.assistant(f"re:{acc}")
