"""What child processes do with runs that are kept in Redis."""

from __future__ import annotations

from noetic_redis import RedisBackend

from tests.servers.jobs import ServerJobs

_jobs = ServerJobs(RedisBackend)
carry, hold, use_after_fork = _jobs.carry, _jobs.hold, _jobs.use_after_fork
converse, pay, post, read, work = _jobs.converse, _jobs.pay, _jobs.post, _jobs.read, _jobs.work
