"""Imports everything that a worker needs, so that a forked child imports nothing."""

from __future__ import annotations

import threading

from temporal_jobs import work

__all__ = ["work"]

assert threading.active_count() == 1, threading.enumerate()
