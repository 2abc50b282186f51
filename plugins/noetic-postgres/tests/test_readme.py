from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer

README = Path(__file__).parents[1] / "README.md"
ADDRESS = "postgresql://ada@127.0.0.1/agents"
PROGRAMS: list[tuple[str, str]] = re.findall(
    r"```python\n(.*?)```\n\n<!-- output -->\n```text\n(.*?)```\n", README.read_text(encoding="utf-8"), re.DOTALL
)


def check(number: int, address: str, folder: Path) -> None:
    program, output = PROGRAMS[number]
    assert program.count(ADDRESS) == 1
    file = folder / "program.py"
    file.write_text(program.replace(ADDRESS, address))
    done = subprocess.run([sys.executable, "-W", "error", file], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


def test_the_readmes_program_prints_what_it_says(server: PostgresServer, schema: str, tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    check(0, server.url(schema), tmp_path)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there is no wheel of wordllama yet")
def test_the_readmes_search_prints_what_it_says(
    vector_server: PostgresServer, vector_schema: str, tmp_path: Path
) -> None:
    check(1, vector_server.url(vector_schema), tmp_path)
