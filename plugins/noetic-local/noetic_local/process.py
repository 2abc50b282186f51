"""The server of a local model, as a child process that cannot outlive this one."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from weakref import WeakSet

import anyio
from attrs import define

from noetic_local.weights import SMOLLM2, check_runtime, find_weights
from noetic_py.errors import ConfigError, ModelUnavailable

__all__ = ["LocalServer", "release_server", "shared_server"]

_SCRIPT = Path(__file__).with_name("server.py")
_STOP_TIMEOUT = 5.0
_TOLD = 400


@define
class _Child:
    process: subprocess.Popen[bytes]
    address: str
    n_ctx: int


class LocalServer:
    """An OpenAI-compatible server for one model, on 127.0.0.1 and a free port, with a key of its own.

    `async with LocalServer() as server:` runs it for the block. The server lives in a child process that ends when this
    process does, however that ends.

    Args:
        model: `"smollm2"`, or the path of a GGUF file.
        model_path: The GGUF file, whatever `model` is.
        n_ctx: Tokens that request and answer may have together.
        start_timeout: Seconds that loading the model may take.

    Raises:
        MissingExtra: The weights or the library that runs them are not installed.
        ConfigError: There is no such file or model, or `n_ctx` is not above 0 (code `"local-context"`).
    """

    def __init__(
        self,
        model: str = SMOLLM2,
        *,
        model_path: str | Path | None = None,
        n_ctx: int = 4096,
        start_timeout: float = 60.0,
    ) -> None:
        if n_ctx <= 0:
            raise ConfigError(f"n_ctx={n_ctx} is not above 0", code="local-context")
        self._path = find_weights(model, model_path)
        check_runtime()
        self._model = model
        self._n_ctx = n_ctx
        self._timeout = start_timeout
        self._key = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._child: _Child | None = None

    @property
    def base_url(self) -> str:
        """The address of its OpenAI-compatible interface.

        Raises:
            ModelUnavailable: The server does not run.
        """
        return f"{self._running().address}/v1"

    @property
    def api_key(self) -> str:
        """The key it asks for; a new one for each server, so that no other program on the machine can use it."""
        return self._key

    @property
    def n_ctx(self) -> int:
        """Tokens of its context: what was asked for, and once it runs what it really has."""
        return self._n_ctx if self._child is None else self._child.n_ctx

    @property
    def pid(self) -> int | None:
        """The child's process id, `None` while there is none."""
        return None if self._child is None else self._child.process.pid

    @property
    def running(self) -> bool:
        """Whether the child lives."""
        return self._child is not None and self._child.process.poll() is None

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    def start(self) -> None:
        """Start it and wait until it listens; nothing happens when it runs already. Blocks for about a second.

        Raises:
            ModelUnavailable: It ended, or did not listen within `start_timeout`.
        """
        with self._lock:
            if not self.running:
                self._discard()
                self._child = self._spawn()

    def stop(self) -> None:
        """End it; nothing happens when it does not run. Blocks until the child is gone."""
        with self._lock:
            self._discard()

    def _running(self) -> _Child:
        if self._child is None or not self.running:
            raise ModelUnavailable("the local server does not run", model=self._name, hint="async with LocalServer()")
        return self._child

    @property
    def _name(self) -> str:
        return f"local:{self._model}"

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            _end(child.process)

    def _spawn(self) -> _Child:
        config = {"model_path": str(self._path), "n_ctx": self._n_ctx, "alias": self._model, "api_key": self._key}
        with tempfile.TemporaryFile() as told:
            # By its path and without its folder on the module path: a module of this package must not pass for another.
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", str(_SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told
            )
            try:
                report = _first_line(process, config, self._timeout)
            except BaseException:
                _end(process)
                raise
            if report is None:
                _end(process)
                raise self._not_started(told)
        return _Child(process, str(report["address"]), int(report["n_ctx"]))

    def _not_started(self, told: IO[bytes]) -> ModelUnavailable:
        told.seek(0)
        text = told.read().decode(errors="replace").strip()[-_TOLD:]
        error = ModelUnavailable(
            f"the local server did not start within {self._timeout:g} s: {text or 'it said nothing'}",
            model=self._name,
            hint="see that the file is a GGUF model and that there is memory for it",
        )
        error.retryable = False
        return error


def _first_line(process: subprocess.Popen[bytes], config: Mapping[str, Any], seconds: float) -> Any | None:
    """The report of the child when it listens, `None` if it ended or timed out."""
    if process.stdin is None or process.stdout is None:
        return None
    # Ending the child ends the reading, on every platform.
    watch = threading.Timer(seconds, process.kill)
    watch.daemon = True
    watch.start()
    try:
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    finally:
        watch.cancel()
        watch.join()
        process.stdout.close()
    return json.loads(line) if line else None


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---------------------------------------------------------------------------------------------------- shared servers


@define
class _Shared:
    server: LocalServer
    users: WeakSet[Any]


SHARED: dict[tuple[int, str, Path, int], _Shared] = {}
"""The shared servers by process, so that a forked child starts one of its own, model, file and size of the context."""

_shared_lock = threading.Lock()


def shared_server(user: object, model: str, path: Path, n_ctx: int) -> LocalServer:
    """The process's server for a model, running; started when there is none. Blocks.

    Args:
        user: The model that uses it, until `release_server`.
        model: The model's name.
        path: Its file.
        n_ctx: Tokens of its context.

    Raises:
        ModelUnavailable: It did not start.
    """
    key = (os.getpid(), model, path, n_ctx)
    with _shared_lock:
        entry = SHARED.get(key)
        if entry is None:
            entry = SHARED[key] = _Shared(LocalServer(model, model_path=path, n_ctx=n_ctx), WeakSet())
        entry.users.add(user)
        entry.server.start()
        return entry.server


def release_server(user: object) -> None:
    """Stop the servers that only `user` uses. Blocks until they are gone.

    Args:
        user: The model that no longer uses its server.
    """
    idle: list[LocalServer] = []
    with _shared_lock:
        for key, entry in list(SHARED.items()):
            entry.users.discard(user)
            if not entry.users and key[0] == os.getpid():
                idle.append(SHARED.pop(key).server)
    for server in idle:
        server.stop()


@atexit.register
def _stop_all() -> None:
    for key, entry in list(SHARED.items()):
        if key[0] == os.getpid():
            entry.server.stop()
