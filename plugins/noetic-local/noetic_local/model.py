"""A model that runs on this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import attrs
from noetic_openai import OpenAIModel
from noetic_openai.connection import new_client
from noetic_openai.model import load_sdk
from noetic_openai.wire import Server

from noetic_local.calls import CallStream, needs_packing, pack
from noetic_local.process import LocalServer, release_server, shared_server
from noetic_local.weights import SMOLLM2, check_runtime, find_weights
from noetic_py import Secret
from noetic_py.errors import ConfigError
from noetic_py.models import (
    ModelProfile,
    ModelRequest,
    ModelStream,
    Price,
    check_real_model,
)
from noetic_py.models.http import LoopClients

__all__ = ["LocalModel"]


class LocalModel:
    """A small model on this machine's processor; no network, no key, no cost.

    The first call starts a server in a child process, which all local models of the process with the same file share.
    It ends with the process, or with `aclose()` of the last model that uses it. While the model is entered, as by a
    harness at its first call, its calls share a connection to the server.

    Answers with an output type always fit its JSON schema, and a tool call always fits the tool's parameters: the
    grammar of what the model may write is made from them. Both are what the model finds likeliest, unless the settings
    have a `temperature`. What it writes is as wise as a model of its size.

    Args:
        model: `"smollm2"`, whose weights are a package, or the path of a GGUF file.
        model_path: The GGUF file, whatever `model` is.
        n_ctx: Tokens that request and answer may have together.
        max_output_tokens: The most tokens of one answer, also where the settings ask for more: a small model does not
            always find an end.
        idle_timeout: Seconds without a token after which a stream counts as stalled.
        server: A running server to use instead of the shared one; it stays yours to stop.

    Raises:
        MissingExtra: The weights or the library that runs them are not installed.
        ConfigError: There is no such model or file, or a number is not above 0.
    """

    def __init__(
        self,
        model: str = SMOLLM2,
        *,
        model_path: str | Path | None = None,
        n_ctx: int = 4096,
        max_output_tokens: int = 512,
        idle_timeout: float = 120.0,
        server: LocalServer | None = None,
    ) -> None:
        for name, value in (("n_ctx", n_ctx), ("max_output_tokens", max_output_tokens)):
            if value <= 0:
                raise ConfigError(f"{name}={value} is not above 0", code="local-context")
        self._model = model
        self._path = find_weights(model, model_path)
        check_runtime()
        self._n_ctx = n_ctx
        self._most = max_output_tokens
        self._idle = idle_timeout
        self._server = server
        # Each call gives a client the address and the key of the server.
        self._clients = LoopClients(partial(new_client, Server("http://127.0.0.1"), Secret("none")))

    @property
    def name(self) -> str:
        """The name it is known by, such as `"local:smollm2"`."""
        return f"local:{self._model}"

    @property
    def profile(self) -> ModelProfile:
        """Its window, and a price of nothing."""
        window = self._n_ctx if self._server is None else self._server.n_ctx
        return ModelProfile(context_window=window, max_output_tokens=self._most, price=Price())

    def __repr__(self) -> str:
        return f"LocalModel({self._model!r})"

    async def __aenter__(self) -> Self:
        await load_sdk()
        await self._clients.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._clients.close()

    @asynccontextmanager
    async def respond(self, request: ModelRequest, /) -> AsyncGenerator[ModelStream]:
        """Ask; the answer is streamed while the context manager is open.

        With tools the answer is held back until it is whole, since only then it is known whether it is a call.

        Args:
            request: What to ask.

        Raises:
            RealModelRefused: Real models are forbidden here.
            ModelUnavailable: The server did not start.
            ContextOverflow: The request is larger than the context.
            ModelError: Whatever else can fail with a server, see `OpenAIModel`.
        """
        check_real_model(self.name)
        server = await anyio.to_thread.run_sync(self._ready)
        await load_sdk()
        packed = needs_packing(request)
        asked = self._bounded(pack(request) if packed else request)
        async with self._clients.client() as client:
            # A server that was started again has another port.
            client.base_url, client.api_key = server.base_url, server.api_key
            model = OpenAIModel(self._model, api="chat", client=client, name=self.name, idle_timeout=self._idle)
            async with model.respond(asked) as stream:
                yield CallStream(stream, request) if packed else stream

    async def aclose(self) -> None:
        """Stop the shared server, unless another model uses it; a later call starts it again."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(release_server, self)

    def _ready(self) -> LocalServer:
        if self._server is None:
            return shared_server(self, self._model, self._path, self._n_ctx)
        self._server.start()
        return self._server

    def _bounded(self, request: ModelRequest) -> ModelRequest:
        settings = request.settings.copy()
        settings["max_output_tokens"] = min(settings.get("max_output_tokens", self._most), self._most)
        if request.output is not None:
            # A label is picked, not drawn.
            settings.setdefault("temperature", 0.0)
        return attrs.evolve(request, settings=settings)
