from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import anyio
import pytest
from noetic_local import LocalModel, LocalServer, process
from noetic_local.process import release_server, shared_server
from noetic_local.weights import find_weights

from noetic_py.core.items import Message
from noetic_py.errors import ModelUnavailable
from noetic_py.models import ModelRequest, allow_real_models

HI = ModelRequest(items=[Message.user("hi")], settings={"max_output_tokens": 1})


def state_of(server: LocalServer) -> tuple[bool, int | None]:
    """Whether it runs, and as which process, read anew."""
    return server.running, server.pid


async def answer(model: LocalModel) -> None:
    with allow_real_models():
        async with model.respond(HI) as stream:
            await stream.response()


def status(server: LocalServer, key: str) -> int:
    body = json.dumps({"model": "x", "messages": [], "max_tokens": 1}).encode()
    request = Request(
        f"{server.base_url}/chat/completions",
        body,
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except HTTPError as error:
        with error:
            return error.code


def test_it_listens_on_this_machine_and_asks_for_its_key(server: LocalServer) -> None:
    parts = urlsplit(server.base_url)
    assert (parts.hostname, parts.path) == ("127.0.0.1", "/v1")
    assert parts.port
    assert server.running
    assert server.n_ctx == 4096
    assert status(server, "guess") == 401
    assert status(server, server.api_key) != 401


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_it_runs_for_the_block() -> None:
    server = LocalServer(n_ctx=300)
    with pytest.raises(ModelUnavailable):
        _ = server.base_url
    async with server:
        pid = server.pid
        assert pid is not None
        os.kill(pid, 0)
        # The server rounds the size, and says so.
        assert server.n_ctx >= 300
        await answer(LocalModel(server=server))
        assert LocalModel(server=server).profile.context_window == server.n_ctx
        server.start()
        assert server.pid == pid
    assert state_of(server) == (False, None)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server.stop()


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(b"this is no model")
    with pytest.raises(ModelUnavailable, match="did not start") as caught:
        LocalServer(model_path=file).start()
    assert not caught.value.retryable


def test_loading_that_takes_too_long() -> None:
    server = LocalServer(start_timeout=0.01)
    with pytest.raises(ModelUnavailable, match=r"within 0\.01 s"):
        server.start()
    assert not server.running


PARENT = """
import os, sys
from noetic_local import LocalServer
server = LocalServer(n_ctx=256)
server.start()
print(server.pid, flush=True)
if sys.argv[1] == "raise":
    raise RuntimeError("over")
sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["raise", "kill"])
def test_it_does_not_outlive_its_parent(way: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if way == "kill":
            parent.send_signal(signal.SIGKILL)
        parent.wait(10)
    wait_until_gone(pid)


def wait_until_gone(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    # It becomes readable when the process ends.
    ended, _, _ = select.select([process], [], [], 10)
    os.close(process)
    assert ended, f"process {pid} still runs"


@pytest.mark.anyio
async def test_models_share_a_server_that_is_started_again_when_it_died() -> None:
    first, second = LocalModel(n_ctx=512), LocalModel(n_ctx=512)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer, first)
        tasks.start_soon(answer, second)
    (key,) = [key for key in process.SHARED if key[3] == 512]
    server = process.SHARED[key].server
    await first.aclose()
    assert server.running
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    await answer(second)
    assert server.running
    assert server.pid != pid
    await second.aclose()
    assert state_of(server) == (False, None)
    assert key not in process.SHARED


class User:
    """A user of a server."""


def test_a_user_that_is_gone_holds_no_server() -> None:
    path = find_weights("smollm2")
    user, other = User(), User()
    server = shared_server(user, "smollm2", path, 1024)
    assert shared_server(other, "smollm2", path, 1024) is server
    del user
    release_server(other)
    assert not server.running
