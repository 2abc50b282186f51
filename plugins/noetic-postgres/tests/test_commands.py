"""The command line with runs that are kept in PostgreSQL."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from postgres_server import PASSWORD, PostgresServer

from tests.cli_shell import Inside
from tests.servers.ports import free_port

FRAGILE = """
@step
async def first(text: str) -> str:
    with open("bodies", "a") as file:
        file.write("first ")
    return text.upper()

@step
async def second(text: str) -> str:
    return text + Path("more").read_text()

flow = first >> second
"""
SECRET = PASSWORD.partition(" ")[0]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_run_fails_and_is_gone_on_with(inside: Inside, server: PostgresServer, schema: str, by: str) -> None:
    url = server.url(schema)
    options = ["--db", url] if by == "option" else []
    said = url if by == "variable" else ""
    inside.write(FRAGILE)
    done = inside.run("run", "flow.py:flow", "tide ", "--run-id", "monday", *options, NOETIC_DB=said)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"noetic resume monday{' --db ...' if options else ''}" in done.stderr.splitlines()[-1]
    assert SECRET not in done.stderr
    listed = inside.run("runs", "--json", *options, NOETIC_DB=said)
    assert [(each["run_id"], each["status"]) for each in json.loads(listed.stdout)] == [("monday", "failed")]
    (inside.folder / "more").write_text("turns")
    done = inside.run("resume", "monday", *options, NOETIC_DB=said)
    assert (done.returncode, done.stdout) == (0, "TIDE turns\n")
    assert (inside.folder / "bodies").read_text() == "first "
    shown = inside.run("show", "last", *options, NOETIC_DB=said)
    assert "first" in shown.stdout
    assert [path.name for path in inside.folder.rglob("*.db")] == []


def test_a_server_that_is_not_there(inside: Inside) -> None:
    inside.write(FRAGILE)
    url = f"postgresql://ada:{SECRET}@127.0.0.1:{free_port()}/runs"
    for arguments in (("run", "flow.py:flow", "x"), ("runs",), ("resume", "x")):
        begun = time.monotonic()
        done = inside.run(*arguments, NOETIC_DB=url)
        assert time.monotonic() - begun < 15
        assert (done.returncode > 0, done.stdout) == (True, "")
        assert "no connection came about" in done.stderr
        assert SECRET not in done.stderr
        assert "Traceback" not in done.stderr
