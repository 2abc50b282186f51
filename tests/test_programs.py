"""A test whose program is missing is left out and counted in one line, or fails where everything is required."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).resolve().parent.parent
FILE = """
import pytest
from tests.programs import need

@pytest.fixture
def openssl():
    return need("openssl")

@pytest.mark.needs("strace", "openssl")
def test_marked():
    pass

@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_with_a_fixture(openssl, loop):
    pass

def test_without():
    pass
"""
LINE = (
    "left out: 3 tests: openssl (2), strace (1) are not installed; NOETIC_REQUIRE_ALL=1 makes that a failure\n"
    "1 passed, 3 skipped in "
)


def suite(folder: Path, workers: int, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the file with nothing on the path, with the settings and hooks of this repository."""
    (folder / "test_needing.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-c", str(ROOT / "pyproject.toml")]
    command += ["-p", "conftest", "--rootdir", str(ROOT), str(folder)]
    kept = {name: value for name, value in os.environ.items() if name != "NOETIC_REQUIRE_ALL"}
    return subprocess.run(
        command, cwd=ROOT, env={**kept, "PATH": str(folder), **environment}, capture_output=True, text=True, check=False
    )


def test_what_needs_a_missing_program_is_left_out_and_counted(tmp_path: Path) -> None:
    done = suite(tmp_path, 1)
    assert done.returncode == 0, done.stdout
    assert LINE in done.stdout


def test_where_everything_is_required_a_missing_program_fails(tmp_path: Path) -> None:
    done = suite(tmp_path, 0, NOETIC_REQUIRE_ALL="1")
    assert done.returncode == 1
    assert "strace is not installed: apt-get install -y strace" in done.stdout
    assert "left out" not in done.stdout
    assert "1 passed, " in done.stdout
    assert "skipped" not in done.stdout


def test_an_old_server_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = tmp_path / "redis-server"
    monkeypatch.setenv("NOETIC_REDIS_SERVER", str(server))
    find = programs.PROGRAMS["redis-server"][1]
    assert find() is None
    for version, found in (("6.2.7", None), ("7.0.15", server)):
        server.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 bits=64'\n")
        server.chmod(0o755)
        assert find() == found
