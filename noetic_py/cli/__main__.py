"""`python -m noetic_py.cli` is `noetic`."""

from __future__ import annotations

import sys

from noetic_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
