"""Sessions over processes that share a server, and owners that are stopped for longer than their lease."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from tests.crash.children import Children
from tests.crash.folders import quick_folder
from tests.crash.spending import Spending
from tests.crash.talks import LOOPS, Conversations, Figure, Talk
from tests.properties.checks import examples
from tests.servers.processes import LEASE, woken
from tests.servers.tested import ServerOfTests

__all__ = ["ServedConversations", "ServedSpending"]


@contextmanager
def talk_at(server: ServerOfTests, children: Children, jobs: str) -> Generator[Talk]:
    """A session in a space of its own; whoever dies is gone for long when somebody else comes."""
    with server.space() as space, quick_folder() as folder:
        yield Talk(children, folder, server.url(space), jobs, partial(server.bury, space))
        server.bury(space)


class ServedConversations(Conversations):
    """Tests of sessions; a class below it says in `use_server` of which server.

    Attributes:
        server: The server.
        stopped: How many owners are stopped.
    """

    server: ServerOfTests
    together = examples(sample=2, full=200)
    kills = examples(sample=2, full=200)
    messages = examples(sample=25, full=1_000)
    stopped: int = examples(sample=2, full=100)

    def use_server(self, server: ServerOfTests, children: Children, jobs: str) -> None:
        """Keep the sessions there.

        Args:
            server: The server.
            children: Where their processes come from.
            jobs: The module of their jobs.
        """
        self.server, self.jobs = server, jobs
        self.children = children
        self.new = partial(talk_at, server, children, jobs)

    def test_a_stopped_owner_of_a_session_writes_nothing_when_it_wakes(self, record_property: Figure) -> None:
        for trial in range(self.stopped):
            self._stopped(trial)
        record_property("trials", self.stopped)

    def _stopped(self, trial: int) -> None:
        """An owner is stopped in its turn until its time is up, and another process has had a turn meanwhile."""
        loop, persist = LOOPS[trial % 2], ("run", "step")[trial // 2 % 2]
        with self.server.space() as space, quick_folder() as folder:
            talk = Talk(self.children, folder, self.server.url(space), self.jobs)
            gate = talk.make_gate()
            owner = talk.begin(["a"], gate=str(gate), loop=loop, persist=persist, ttl=LEASE)
            self.children.hear(owner, "noted")
            os.kill(owner, signal.SIGSTOP)
            self.server.wait_for_leases(space)
            assert talk.process(["b"], loop=loop, persist=persist, ttl=LEASE).result == [["b", "re: b"]]
            before = self.server.stored(space)
            assert woken(self.children, owner, gate).result == [["a", "LeaseLost"]]
            assert self.server.stored(space) == before, "a stale write was taken"
            assert talk.lines("reply") == {"b": 1}
            assert talk.held() == {"items": ["b", "re: b"], "said": ["b"]}
            self.server.bury(space)


class ServedSpending(Spending):
    """Tests of budgets; a class below it says in `use_server` of which server."""

    kills = examples(sample=2, full=200)

    def use_server(self, server: ServerOfTests, children: Children, jobs: str) -> None:
        """Keep the runs there.

        Args:
            server: The server.
            children: Where their processes come from.
            jobs: The module of their jobs.
        """
        self.new = partial(talk_at, server, children, jobs)
