from __future__ import annotations

from pathlib import Path

from redis_server import RedisServer

from tests.servers.readme import prints_what_it_says

README = Path(__file__).parents[1] / "README.md"


def test_the_readmes_program_prints_what_it_says(redis_server: RedisServer, prefix: str, tmp_path: Path) -> None:
    prints_what_it_says(README, "redis://127.0.0.1:6379/0", redis_server.url(prefix), tmp_path)
