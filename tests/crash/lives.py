"""A run over all the processes that carried it, and what has to be true of it whatever killed them."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from noetic_py.testing.ledger import Attempt
from tests.crash.children import ChildFailed, Children, Ended
from tests.crash.folders import quick_folder
from tests.crash.ledger import again, key_of, problems, read_ledger
from tests.crash.tools import traced

MOST_RESTARTS = 10
CARRY = "tests.crash.jobs:carry"

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

    closed: set[Attempt]
    finished: set[Attempt]
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


def _nothing() -> None:
    """What there is to do where the kernel frees what a dead process had."""


@dataclass
class Life:
    """One run.

    Attributes:
        children: Where its processes come from.
        folder: Where its files are.
        given: What each process is given.
        job: What each process does.
        between: Called before each process but the first: time passes.
        kills: The kills that really happened, for messages.
        restarted: How many processes there were after the first.
        repeated: How many bodies were started again.
        statuses: What the list of runs said when each process began.
    """

    children: Children
    folder: Path
    given: dict[str, Any]
    job: str = CARRY
    between: Callable[[], None] = _nothing
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
        if self.processes:
            self.between()
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
            return self.children.ended(self.children.start(self.job, **given), kill_after=kill_after)
        pid = self.children.start(self.job, traced=True, **given)
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

    def begin(self, **more: object) -> int:
        """Start a process and do not wait for it; returns its pid."""
        given = {**self.given, "folder": str(self.folder), "process": self.processes, **more}
        self.processes += 1
        return self.children.start(self.job, **given)

    def starts(self) -> Counter[Attempt]:
        """How often each body was started."""
        return Counter(line.key for line in read_ledger(self.folder / "ledger") if line.what == "start")

    def started_by(self, process: int) -> int:
        """How many bodies a process has started."""
        lines = read_ledger(self.folder / "ledger")
        return sum(line.process == process and line.what == "start" for line in lines)

    def make_gate(self) -> None:
        """Make the gate at which the flow `"gate"` waits."""
        os.mkfifo(self.folder / "gate")

    def open_gate(self) -> None:
        """Let the one that waits go on; waits until somebody does."""
        with (self.folder / "gate").open("wb"):
            pass

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


@contextmanager
def new_life(children: Children, seed: int) -> Generator[Life]:
    """A run of the program of a seed, in a file."""
    with quick_folder() as folder:
        yield Life(children, folder, {"seed": seed})


NewLife: TypeAlias = Callable[[int], AbstractContextManager[Life]]
"""Makes a run of the program of a seed; its files are there as long as the block lasts."""


def a_life_and_deaths(
    new_life: NewLife, seed: int, statuses: Counter[str | None] | None = None
) -> tuple[Counter[str], int]:
    """A program's run that nobody kills, and two that processes are killed of; counts the kills, and what ran again.

    Args:
        new_life: Makes a run of a seed's program.
        seed: The program's.
        statuses: Counts what lists of runs said after kills; each was compared with what the bodies then did.
    """
    dice = random.Random(seed)
    kills: Counter[str] = Counter()
    repeated = 0
    with new_life(seed) as whole:
        expected = whole.live([])
        assert expected.result["status"] == "completed", whole.explain(expected.result)
    for most in (2, MOST_RESTARTS):
        with new_life(seed) as life:
            ended = life.live(random_kills(dice, expected, most))
            assert same(ended.result) == same(expected.result), life.explain(ended.result)
            assert life.restarted <= MOST_RESTARTS, life.explain("too many restarts")
            # A run that is over gives its result again, and does nothing.
            lines = ended.result["lines"]
            over = life.process()
            assert same(over.result) == same(expected.result), life.explain(over.result)
            assert over.result["lines"] == 0, life.explain(f"{lines} lines, and then again {over.result['lines']}")
            assert life.statuses["completed"] > 0, life.explain("the list never said that it has completed")
            kills.update(when for when, _ in life.kills)
            if statuses is not None:
                statuses.update(life.statuses)
            repeated += life.repeated
    return kills, repeated


def two_at_once(new_life: NewLife, seed: int) -> str:
    """Two processes begin a run, or go on with one, at the same moment; says which of these, and who won."""
    dice = random.Random(seed)
    resumed = dice.random() < 0.5
    with new_life(seed) as life:
        life.given["flow"] = "gate"
        life.make_gate()
        if resumed:
            # The first two appends are the run's head and its first step; so it was killed there, or before its head.
            life.process(("after", dice.randint(1, 2)))
            life.between()
        first = life.processes
        moment = time.monotonic() + 0.03
        pids = [life.begin(moment=moment) for _ in range(2)]
        # Whoever has the run waits at the gate, so the one that ends is the other.
        while True:
            event = life.children.event(pids)
            assert event is not None, life.explain("both hang: both have the run, or none")
            if event[1][0] == "result":
                break
        loser, (_, refused) = event
        winner = next(pid for pid in pids if pid != loser)
        assert refused["status"] == "refused", life.explain(refused)
        assert refused["errors"] == [["RunBusy", ""]], life.explain(refused)
        its = life.started_by(first + pids.index(loser))
        assert refused["lines"] == its == 0, life.explain("the loser acted")
        life.children.ended(loser)
        life.open_gate()
        result = life.children.ended(winner).result
        assert result["status"] == "completed", life.explain(result)
        starts = life.starts()
        assert max(starts.values()) == 1 or resumed, life.explain(starts)
        assert result["value"] == seed % 97 + 3, life.explain(result)
        return f"{'resumed' if resumed else 'new'}, {'first' if winner == pids[0] else 'second'} won"
