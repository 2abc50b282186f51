from __future__ import annotations

import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from tests.servers.readme import prints_what_it_says, programs

README = Path(__file__).parents[1] / "README.md"
ADDRESS = "postgresql://ada@127.0.0.1/agents"


def test_the_readmes_program_prints_what_it_says(server: PostgresServer, schema: str, tmp_path: Path) -> None:
    assert len(programs(README)) == 2
    prints_what_it_says(README, ADDRESS, server.url(schema), tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there is no wheel of wordllama yet")
def test_the_readmes_search_prints_what_it_says(
    vector_server: PostgresServer, vector_schema: str, tmp_path: Path
) -> None:
    prints_what_it_says(README, ADDRESS, vector_server.url(vector_schema), tmp_path, number=1)
