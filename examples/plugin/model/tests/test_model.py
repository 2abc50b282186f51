"""The contract of models, against a server of the test that answers in the provider's form."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from noetic_py import Harness
from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderFailure, ProviderScript, ServedModel
from noetic_py.testing.replies import CUT, STALL, Reply, replying

from @MODULE@ import LineModel, plugin


def reply(script: ProviderScript) -> Reply:
    """An entry of a script, as the provider would send it."""
    if isinstance(script, ProviderFailure):
        after = {} if script.retry_after is None else {"retry_after": str(script.retry_after)}
        return Reply.json(script.message, 413 if script.overflow else script.status, **after)
    lines: list[object] = [{"text": piece} for piece in script.text]
    for index, call in enumerate(script.calls):
        begun = {"call": index, "id": call.call_id, "name": call.name}
        lines += [{**begun, "arguments": piece} for piece in call.pieces]
    end: dict[str, object] = {"end": "stop"}
    if script.refusal is not None:
        end = {"end": "refusal", "words": script.refusal}
    if (used := script.usage) is not None:
        counts = {"input": used.input, "output": used.output, "cached_input": used.cached_input}
        end["usage"] = counts
    last = {"whole": [end], "malformed": ["no line of this provider"]}.get(script.end, [])
    sent = [json.dumps(line).encode() + b"\n" for line in [*lines, *last]]
    if script.end == "whole":
        return Reply(sent)
    return Reply([*sent, CUT if script.end == "cut" else STALL])


class TestLineModel(ModelContract):
    """What every model has to keep."""

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            model = LineModel("large", server.url)
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)


def test_a_harness_finds_it_by_name() -> None:
    Harness(model="@PREFIX@:large", plugins=[plugin])
