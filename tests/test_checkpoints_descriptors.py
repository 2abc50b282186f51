"""A process without file descriptors is told so, by every backend, and goes on once there are some again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_shell import ROOT

PROGRAM = """
import os, resource, sys, time
import anyio
from noetic_py import Harness, step, tool, errors
from noetic_py.checkpoints import sqlite, files
from noetic_py.checkpoints.server import connected

where, loop = sys.argv[1:]
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
held = []

def use_up():
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

def free():
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    while held:
        os.close(held.pop())

def refused(seconds):
    raise errors.StoreUnavailable("no connection came about", where="server", reason="unreachable")

@step(version="1")
async def known(x: str) -> str:
    return x

@step
async def unread(x: str) -> str:
    return x

async def main():
    async with Harness(checkpoints=where) as harness:
        for flow in (known, unread):
            use_up()
            try:
                await harness.run(flow, "x")
            except errors.StoreUnavailable as error:
                free()
                print(error.reason, error.where.rpartition("/")[2], "ulimit" in (error.hint or ""))
            free()
        print((await harness.run(unread, "x")).status)

def server():
    use_up()
    try:
        connected(refused, time.monotonic() + 5, passing=lambda reason: True, late=lambda: None)
    except errors.StoreUnavailable as error:
        free()
        print(error.reason, error.where)

server() if where == "server" else anyio.run(main, backend=loop)
"""


def _said(where: str, folder: Path, loop: str) -> list[str]:
    place = where if where == "server" else f"{where}:{folder}/runs"
    command = [sys.executable, "-c", PROGRAM, place, loop]
    if where != "server":
        (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
        command[1:3] = [str(folder / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("where", ["sqlite", "files"])
def test_running_out_of_descriptors_is_reported_as_that(where: str, loop: str, tmp_path: Path) -> None:
    assert _said(where, tmp_path, loop) == [
        "descriptors runs True",
        "descriptors the source of step 'unread' True",
        "completed",
    ]


def test_a_server_is_not_blamed_for_it(tmp_path: Path) -> None:
    assert _said("server", tmp_path, "asyncio") == ["descriptors server"]
