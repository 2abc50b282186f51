"""What child processes do with runs that are kept in PostgreSQL."""

from __future__ import annotations

from noetic_postgres import PostgresBackend

from tests.servers.jobs import ServerJobs

_jobs = ServerJobs(PostgresBackend)
carry, hold, use_after_fork = _jobs.carry, _jobs.hold, _jobs.use_after_fork
converse, pay, post, read, work = _jobs.converse, _jobs.pay, _jobs.post, _jobs.read, _jobs.work
