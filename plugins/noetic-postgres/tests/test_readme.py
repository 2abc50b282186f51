from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from postgres_server import PostgresServer

README = Path(__file__).parents[1] / "README.md"
ADDRESS = "postgresql://ada@127.0.0.1/agents"


def test_the_readmes_program_prints_what_it_says(server: PostgresServer, schema: str, tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    program = text.partition("```python\n")[2].partition("```\n")[0]
    output = text.partition("```text\n")[2].partition("```\n")[0]
    assert program.count(ADDRESS) == 1
    file = tmp_path / "program.py"
    file.write_text(program.replace(ADDRESS, server.url(schema)))
    done = subprocess.run([sys.executable, "-W", "error", file], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
