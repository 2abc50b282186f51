"""Worker processes in network namespaces of their own, whose link is cut and mended.

Only the full set runs this: it needs root on Linux, and `ip` of iproute2.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from noetic_postgres import PostgresBackend
from postgres_server import PostgresServer

from noetic_py import Harness
from noetic_py.context.step import AnyStep
from tests.properties.checks import FULL
from tests.servers.journeys import journal

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(not FULL, reason="the full set makes network namespaces, which takes root"),
]

WORKER = """
import json, os, sys, time
import anyio
from noetic_postgres import PostgresBackend
from noetic_py import Context, Harness, sequence, step

_, url, name, lines = sys.argv


def say(*words):
    with open(lines, "a") as file:
        file.write(json.dumps([name, *words]) + "\\n")


@step(replay="repeatable")
async def slow(x: int, ctx: Context) -> int:
    say("slow", ctx.run_id, ctx.fence)
    while name == "apart" and x == 1 and not os.path.exists(lines + ".go"):
        await anyio.sleep(0.01)
    return x + 1


@step
async def then(x: int, ctx: Context) -> int:
    say("then", ctx.run_id, ctx.fence)
    return x


flow = sequence(slow, then, id="flow")


async def main() -> None:
    async with PostgresBackend(url) as store, Harness(checkpoints=store, flows={"flow": flow}, lease=1.0) as harness:
        await harness.work(concurrency=1)


if __name__ == "__main__":
    anyio.run(main)
"""

_numbers = itertools.count(1)


def ip(*words: str) -> None:
    program = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert program is not None, "ip is missing: apt-get install -y iproute2"
    subprocess.run([program, *words], check=True, capture_output=True, timeout=20)


class Namespace:
    """A network of its own, with one link to this one, over which a port of this machine's loopback is reached.

    Attributes:
        name: Its name.
        address: This machine's address on the link.
    """

    def __init__(self) -> None:
        number = next(_numbers)
        self.name = f"noetic-{os.getpid()}-{number}"
        self._link = f"nv{os.getpid() % 100_000}x{number}"
        self.address = f"10.213.{number}.1"
        self._inner = f"10.213.{number}.2"

    @contextmanager
    def made(self) -> Generator[Namespace]:
        ip("netns", "add", self.name)
        try:
            ip("link", "add", self._link, "type", "veth", "peer", "name", "out", "netns", self.name)
            ip("addr", "add", f"{self.address}/30", "dev", self._link)
            ip("link", "set", self._link, "up")
            for words in (("addr", "add", f"{self._inner}/30", "dev", "out"), ("link", "set", "out", "up")):
                ip("-n", self.name, *words)
            yield self
        finally:
            ip("netns", "del", self.name)

    def cut(self) -> None:
        """Nothing passes any more, and nothing says so."""
        ip("link", "set", self._link, "down")

    def mend(self) -> None:
        ip("link", "set", self._link, "up")

    @asynccontextmanager
    async def forwarded(self, port: int) -> AsyncGenerator[int]:
        """A port on the link behind which is one of the loopback; only the namespace sees it."""

        async def copy(source: ByteStream, target: ByteStream) -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    await target.send(await source.receive())
            await target.aclose()

        async def serve(one: ByteStream) -> None:
            async with one, await anyio.connect_tcp("127.0.0.1", port) as other, anyio.create_task_group() as both:
                both.start_soon(copy, one, other)
                both.start_soon(copy, other, one)

        async with (
            await anyio.create_tcp_listener(local_host=self.address) as listening,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listening.serve, serve)
            yield listening.extra(SocketAttribute.local_port)
            group.cancel_scope.cancel()


@contextmanager
def worker(program: Path, url: str, name: str, lines: Path, *inside: str) -> Generator[None]:
    command = [*inside, sys.executable, str(program), url, name, str(lines)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


async def said(lines: Path, *words: str) -> list[object]:
    """The first line that begins with these words."""
    with anyio.fail_after(60):
        while True:
            for line in (await anyio.Path(lines).read_text()).splitlines():
                found: list[object] = json.loads(line)
                if found[: len(words)] == [*words]:
                    return found
            await anyio.sleep(0.01)


def flow_of(program: Path) -> AnyStep:
    """The flow that the workers have."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("cut_off", program)
    assert spec is not None
    assert spec.loader is not None
    module, argv = module_from_spec(spec), sys.argv
    sys.argv = ["", "", "", os.devnull]
    try:
        spec.loader.exec_module(module)
    finally:
        sys.argv = argv
    flow: AnyStep = module.flow
    return flow


@pytest.mark.parametrize("round_", range(5))
async def test_a_worker_cut_off_writes_nothing_and_works_again_when_it_is_back(
    server: PostgresServer, schema: str, tmp_path: Path, round_: int
) -> None:
    program, lines = tmp_path / "worker.py", tmp_path / "lines"
    program.write_text(WORKER)
    lines.touch()
    flow = flow_of(program)
    namespace = Namespace()
    with namespace.made():
        async with (
            namespace.forwarded(server.port) as port,
            PostgresBackend(server.url(schema)) as store,
            Harness(checkpoints=store, flows={"flow": flow}, plugins=()) as harness,
        ):
            there = server.url(schema, port=port, more="&timeout=2").replace("127.0.0.1", namespace.address)
            with worker(program, there, "apart", lines, "ip", "netns", "exec", namespace.name):
                await harness.submit(flow, 1, run_id="first")
                before = await said(lines, "apart", "slow", "first")
                namespace.cut()
                with worker(program, server.url(schema), "other", lines):
                    began = anyio.current_time()
                    with anyio.fail_after(60):
                        info = await harness.runs.wait("first")
                    waited = anyio.current_time() - began
                    after = await said(lines, "other", "slow", "first")
                assert info.status == "completed"
                written = await journal(store, "first")
                namespace.mend()
                (tmp_path / "lines.go").touch()
                # It is back, and the only one: what it still had is not written, and it takes the next run.
                await harness.submit(flow, 2, run_id="second")
                with anyio.fail_after(90):
                    assert (await harness.runs.wait("second")).status == "completed"
                await said(lines, "apart", "then", "second")
                assert await journal(store, "first") == written
    assert int(str(before[3])) < int(str(after[3]))
    # Of the step behind there is one line, of the worker that took the run over.
    then = [line for line in map(json.loads, lines.read_text().splitlines()) if line[1:3] == ["then", "first"]]
    assert [line[0] for line in then] == ["other"]
    assert waited < 30
