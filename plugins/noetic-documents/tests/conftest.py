from __future__ import annotations

import sys
from pathlib import Path

# The helpers beside this file are imported by name, whatever pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))
