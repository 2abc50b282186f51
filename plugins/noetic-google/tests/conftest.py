from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test forgets to close warns when it is collected; the warning shall hit that test and no later one."""
    # Only what the test makes is looked through: the SDK's modules alone would take a tenth of a second each time.
    gc.freeze()
    yield
    if "anyio_backend" in request.fixturenames:
        gc.collect()


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "GOOGLE_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
        "GOOGLE_GENAI_API_VERSION",
        "GOOGLE_GENAI_USE_ENTERPRISE",
        "GOOGLE_GENAI_USE_VERTEXAI",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_CLOUD_LOCATION",
    ):
        monkeypatch.delenv(name, raising=False)
