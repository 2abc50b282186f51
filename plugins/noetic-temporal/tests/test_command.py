"""`noetic worker --on temporal`, as a program."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from noetic_temporal import submit
from temporal_server import TemporalServer

from noetic_py import Harness
from noetic_py.cli.loading import load_flow
from tests.cli_shell import Shell, read_until

pytestmark = pytest.mark.anyio

FLOW = """
import asyncio
import os
from noetic_py import Context, step

@step(replay="repeatable")
async def flow(text: str, ctx: Context) -> str:
    if not os.environ.get("FREE"):
        print("began", flush=True)
        await asyncio.sleep(3600)
    return text.upper()
"""


@contextmanager
def a_worker(folder: Path, address: str, free: str = "") -> Generator[subprocess.Popen[bytes]]:
    options = ("--db", "runs.db", "--on", "temporal", "--grace", "0.1")
    process = Shell(folder).start("worker", "flow.py", *options, TEMPORAL_ADDRESS=address, FREE=free)
    try:
        assert process.stderr is not None
        assert b"working at temporal: flow; Ctrl-C stops" in read_until(process.stderr, b"Ctrl-C stops\n")
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_a_worker_hands_its_runs_over_at_a_signal(temporal_server: TemporalServer, tmp_path: Path) -> None:
    client = await temporal_server.connect()
    (tmp_path / "flow.py").write_text(FLOW)
    flow = load_flow(str(tmp_path / "flow.py")).step
    async with Harness(checkpoints=f"sqlite:{tmp_path / 'runs.db'}", plugins=[], flows={"flow": flow}) as harness:
        await submit(client, harness, flow, "tide", run_id="command")
        with a_worker(tmp_path, temporal_server.address) as first:
            read_until(first.stdout, b"began\n")
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
        assert (await harness.runs.get("command")).shutdown
        with a_worker(tmp_path, temporal_server.address, free="yes"):
            assert await client.get_workflow_handle("command").result() == "completed"
        assert (await harness.result("command", flow)).value == "TIDE"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--queue", "slow"), "--queue and --attempts have no effect with --on temporal"),
        ((), "Temporal cannot be reached at 127.0.0.1:1"),
    ],
)
def test_a_worker_that_cannot_begin(options: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    given = ("worker", "flow.py", "--db", "runs.db", "--on", "temporal", *options)
    with Shell(tmp_path).start(*given, TEMPORAL_ADDRESS="127.0.0.1:1") as process:
        _, stderr = process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    assert said in stderr.decode()
    assert "Traceback" not in stderr.decode()
