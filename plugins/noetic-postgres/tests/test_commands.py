"""The command line with runs that are kept in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from postgres_server import PASSWORD, PostgresServer

from benchmarks import postgres_runs
from tests.cli_shell import Inside
from tests.servers.commands import fails_and_is_gone_on_with, says_that_nobody_is_there
from tests.servers.ports import free_port

SECRET = PASSWORD.partition(" ")[0]


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    return Inside(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_run_fails_and_is_gone_on_with(inside: Inside, server: PostgresServer, schema: str, by: str) -> None:
    fails_and_is_gone_on_with(inside, server.url(schema), SECRET, by=by)


def test_a_server_that_is_not_there(inside: Inside) -> None:
    says_that_nobody_is_there(inside, f"postgresql://ada:{SECRET}@127.0.0.1:{free_port()}/runs", SECRET)


def test_the_benchmark_of_many_runs(server: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    address = server.url().partition("?")[0]
    assert postgres_runs.main([address, "--rounds", "1", "--scale", "0.02"]) == 0
    printed = capsys.readouterr().out
    assert "| 20 runs of 10 steps at once, against 4 connections that insert rows |" in printed
    assert server.query("SELECT to_regnamespace('noetic_benchmark')") == [(None,)]
