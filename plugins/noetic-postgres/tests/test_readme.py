from __future__ import annotations

from pathlib import Path

from postgres_server import PostgresServer

from tests.servers.readme import prints_what_it_says

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_program_prints_what_it_says(server: PostgresServer, schema: str, tmp_path: Path) -> None:
    prints_what_it_says(README, "postgresql://ada@127.0.0.1/agents", server.url(schema), tmp_path)
