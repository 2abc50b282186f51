"""What every model has to keep, kept by a local one; its server is one that answers by a script."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from noetic_local import LocalModel, LocalServer

from noetic_py import Harness, call_model
from noetic_py.models import allow_real_models
from noetic_py.testing import ModelContract
from noetic_py.testing.models import ProviderAnswer, ProviderFailure, ProviderScript, ServedModel
from noetic_py.testing.replies import CUT, STALL, Piece, Reply, replying


class ScriptedServer(LocalServer):
    """A server that runs already, somewhere else."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    @property
    def base_url(self) -> str:
        return self._address

    def start(self) -> None:
        """There is nothing to start."""

    def move(self, address: str) -> None:
        """Be at another address, as a server that was started again is."""
        self._address = address


def event(**fields: Any) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def said(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def reply(script: ProviderScript) -> Reply:
    if isinstance(script, ProviderFailure):
        kind = "exceed_context_size_error" if script.overflow else "a_type"
        headers = {} if script.retry_after is None else {"retry_after": str(script.retry_after)}
        return Reply.json({"error": {"message": script.message, "type": kind}}, script.status, **headers)
    texts = list(script.text)
    for call in script.calls:
        # As the grammar has it: the model knows no calls of its own.
        texts += [f'{{"name": "{call.name}", "arguments": ', *call.pieces, "}"]
    pieces: list[Piece] = [said({"content": text}) for text in texts]
    if script.refusal is not None:
        pieces.append(said({"refusal": script.refusal}))
    return Reply([*pieces, *ended(script)])


def ended(script: ProviderAnswer) -> list[Piece]:
    if script.end != "whole":
        return [CUT] if script.end == "cut" else [b"data: {oops\n\n", STALL] if script.end == "malformed" else [STALL]
    end: list[Piece] = [said({}, "stop")]
    if (used := script.usage) is not None:
        details = {"cached_tokens": used.cached_input}
        usage = {"prompt_tokens": used.input, "completion_tokens": used.output, "prompt_tokens_details": details}
        end.append(event(choices=[], usage=usage))
    return [*end, b"data: [DONE]\n\n"]


class TestLocalModel(ModelContract):
    # The grammar allows one call, and whether it is one shows when it is whole.
    parallel_calls = False
    streams_calls = False

    @asynccontextmanager
    async def serve(self, *script: ProviderScript) -> AsyncGenerator[ServedModel]:
        async with replying(*[reply(each) for each in script]) as server:
            model = LocalModel(server=ScriptedServer(f"{server.url}/v1"))
            yield ServedModel(model, lambda: len(server.requests), server.all_closed)


@pytest.mark.anyio
async def test_an_open_model_keeps_its_connection_until_the_server_has_another_address() -> None:
    def server_of(*answers: str) -> list[Reply]:
        return [reply(ProviderAnswer(text=(answer,))) for answer in answers]

    async with replying(*server_of("a", "b", "d")) as first, replying(*server_of("c")) as second:
        running = ScriptedServer(f"{first.url}/v1")
        model = LocalModel(server=running)
        with allow_real_models():
            async with Harness(model=model, plugins=[]) as harness:
                said = [(await harness.run(call_model(), "?")).value for _ in range(2)]
                assert first.opened == 1
                running.move(f"{second.url}/v1")
                said.append((await harness.run(call_model(), "?")).value)
            await first.all_closed()
            await second.all_closed()
            assert (said, first.opened, second.opened) == (["a", "b", "c"], 1, 1)
            running.move(f"{first.url}/v1")
            async with Harness(model=model, plugins=[]) as harness:
                assert (await harness.run(call_model(), "?")).value == "d"
        assert first.opened == 2
