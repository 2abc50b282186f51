"""Imports everything that a run needs by running one, so that a forked child imports nothing."""

from __future__ import annotations

import redis_jobs

from tests.servers.warm import warm_up

warm_up(redis_jobs.carry)
