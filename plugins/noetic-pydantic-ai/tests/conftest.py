from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.leftovers import nothing_left_open as nothing_left_open

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "MISTRAL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
