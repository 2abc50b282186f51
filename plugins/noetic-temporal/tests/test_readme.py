from __future__ import annotations

from pathlib import Path

import pytest
from temporal_server import TemporalServer

from tests.servers.readme import prints_what_it_says

PLUGIN = Path(__file__).parents[1]
PAGES = {"readme": PLUGIN / "README.md", "guide": PLUGIN.parents[1] / "docs" / "guides" / "temporal.md"}


@pytest.mark.anyio
@pytest.mark.parametrize("page", PAGES)
async def test_the_programs_print_what_they_say(
    page: str, temporal_server: TemporalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await temporal_server.connect()
    monkeypatch.chdir(tmp_path)
    prints_what_it_says(PAGES[page], "127.0.0.1:7233", temporal_server.address, tmp_path)
