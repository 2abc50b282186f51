from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NOETIC_SIGNING_")]:
        monkeypatch.delenv(name)
