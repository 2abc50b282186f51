"""A run over all the processes that carried it, and what has to be true of it whatever killed them."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tests.crash.children import ChildFailed, Children, Ended
from tests.crash.ledger import again, key_of, problems, read_ledger
from tests.crash.tools import traced
from tests.properties.programs import Key

MOST_RESTARTS = 10

When: TypeAlias = Literal["before", "after", "line", "time"]
Kill: TypeAlias = tuple[str, float]
"""Where a process dies: before or after its append of a number, at a line of its ledger, or after so many seconds.

The name of a system call stands for a kill at that call of it.
"""


def same(result: dict[str, Any]) -> dict[str, Any]:
    """The part of a result that no kill may change."""
    return {name: value for name, value in result.items() if name not in ("appends", "lines")}


@dataclass(frozen=True)
class Held:
    """What the journal held when a process began.

    Attributes:
        closed: The attempts whose outcome it held.
        finished: Those of them that had finished well.
        untrue: What is wrong with what the list of runs said.
        status: What it said; `None` when it did not know the run.
    """

    closed: set[Key]
    finished: set[Key]
    untrue: list[str]
    status: str | None = None


def held(ended: Ended) -> Held | None:
    """What a process said that the journal held; `None` when it died before."""
    said = [rest[0] for kind, *rest in ended.said if kind == "found"]
    if not said:
        return None
    if said[0] is None:
        return Held(set(), set(), [])
    closed, finished = ({key_of(tree) for tree in said[0][name]} for name in ("closed", "finished"))
    status = said[0]["status"]
    over = status == "completed" and said[0]["ended"] != "completed"
    return Held(closed, finished, ["the list says completed, and the journal has no end"] if over else [], status)


@dataclass
class Life:
    """One run.

    Attributes:
        children: Where its processes come from.
        folder: Where its files are.
        given: What each process is given.
        kills: The kills that really happened, for messages.
        restarted: How many processes there were after the first.
        repeated: How many bodies were started again.
        statuses: What the list of runs said when each process began.
    """

    children: Children
    folder: Path
    given: dict[str, Any]
    kills: list[Kill] = field(default_factory=list[Kill])
    restarted: int = 0
    repeated: int = 0
    processes: int = 0
    statuses: Counter[str | None] = field(default_factory=Counter[str | None])

    def explain(self, problem: object) -> str:
        """A failure's message: what is needed to repeat it."""
        shown = ", ".join(f"{when} {at:g}" for when, at in self.kills)
        return f"seed {self.given['seed']}, flow {self.given.get('flow', 'program')}, killed [{shown}]: {problem}"

    def process(self, kill: Kill | None = None, *, trace: Sequence[str] = (), **more: Any) -> Ended:
        """One process, and everything that has to be true of it.

        Args:
            kill: Where it is to be killed.
            trace: Options of a tracer to run it under.
            **more: What it is given besides.
        """
        given: dict[str, Any] = {**self.given, **more, "folder": str(self.folder), "process": self.processes}
        if kill is not None and kill[0] != "time":
            given |= {"when": kill[0], "at": int(kill[1])}
        try:
            ended = self._ended(given, kill[1] if kill is not None and kill[0] == "time" else None, trace)
        except ChildFailed as failed:
            raise ChildFailed(self.explain(failed)) from None
        if ended.killed and kill is not None:
            self.kills.append(kill)
        self.check(ended)
        self.processes += 1
        return ended

    def _ended(self, given: dict[str, Any], kill_after: float | None, trace: Sequence[str]) -> Ended:
        if not trace:
            return self.children.ended(self.children.start("jobs:carry", **given), kill_after=kill_after)
        pid = self.children.start("jobs:carry", traced=True, **given)
        with traced(pid, *trace):
            return self.children.ended(pid)

    def check(self, ended: Ended) -> None:
        """Nothing that was done is done again, nothing that was acknowledged is lost, and the status is true."""
        lines = read_ledger(self.folder / "ledger")
        before = held(ended)
        wrong = [] if before is None else problems(lines, self.processes, before.closed, before.finished)
        if before is not None:
            self.statuses[before.status] += 1
            wrong += before.untrue
            if before.status == "completed" and any(line.process == self.processes for line in lines):
                # The bodies themselves say what was still to be done.
                wrong.append("the list says completed, and there was a body to run")
        assert not wrong, self.explain(wrong)
        self.repeated += again(lines, self.processes)

    def live(self, kills: Iterable[Kill]) -> Ended:
        """Processes until one gets to the end: each of the kills strikes one of them, then they are left alone."""
        for kill in kills:
            ended = self.process(kill)
            if not ended.killed:
                return ended
            self.restarted += 1
        ended = self.process()
        assert not ended.killed, self.explain("the last process died of itself")
        return ended

    def close(self) -> None:
        """Take its files away."""
        shutil.rmtree(self.folder)


def random_kills(dice: random.Random, whole: Ended, most: int) -> list[Kill]:
    """Where the processes of a run die, of which an unkilled one is known."""
    kills: list[Kill] = []
    for _ in range(dice.randint(1, most)):
        when: When = dice.choice(("before", "after", "line", "time"))
        if when == "time":
            kills.append((when, dice.uniform(0.0, whole.seconds)))
        else:
            last = whole.result["lines" if when == "line" else "appends"]
            kills.append((when, dice.randint(1, max(1, last))))
    return kills
