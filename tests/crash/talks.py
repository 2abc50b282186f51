"""A conversation over all the processes that carry it, and what has to be true of it whatever kills them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.crash.children import Children, Ended
from tests.crash.folders import quick_folder
from tests.properties.checks import SEED

LOOPS = ("asyncio", "trio")
Figure: TypeAlias = Callable[[str, object], None]
JOBS = "tests.crash.conversing"


def _nothing() -> None:
    """What there is to do where the kernel frees what a dead process had."""


@dataclass
class Talk:
    """A session, or a run, which nobody has used yet.

    Attributes:
        children: Where its processes come from.
        folder: Where its book is, in which bodies write down when they begin.
        store: What keeps it.
        jobs: The module of what its processes do.
        between: Called when a process has died: time passes.
    """

    children: Children
    folder: Path
    store: str
    jobs: str = JOBS
    between: Callable[[], None] = _nothing

    @property
    def given(self) -> dict[str, Any]:
        """What each process is given."""
        return {"store": self.store, "book": str(self.folder / "book")}

    def begin(self, texts: Sequence[str], **more: Any) -> int:
        """Start a process that does these turns."""
        return self.children.start(f"{self.jobs}:converse", **self.given, texts=list(texts), **more)

    def process(self, texts: Sequence[str], **more: Any) -> Ended:
        """A process that does these turns, to its end."""
        return self.ended(self.begin(texts, **more))

    def ended(self, pid: int) -> Ended:
        """How a process ends."""
        ended = self.children.ended(pid)
        if ended.killed:
            self.between()
        return ended

    def held(self) -> Any:
        """What another process reads of the session."""
        return self.children.run(f"{self.jobs}:read", **self.given).result

    def book(self) -> list[str]:
        """All that was written down."""
        book = self.folder / "book"
        return book.read_text().splitlines() if book.exists() else []

    def lines(self, kind: str) -> Counter[str]:
        """How often each text was noted, or replied to."""
        return Counter(line.partition(" ")[2] for line in self.book() if line.startswith(kind))

    def make_gate(self) -> Path:
        """A pipe that whoever is given it waits at."""
        gate = self.folder / "gate"
        os.mkfifo(gate)
        return gate


@contextmanager
def talk_in_a_file(children: Children, jobs: str = JOBS) -> Generator[Talk]:
    """A session in a folder of its own."""
    with quick_folder() as folder:
        yield Talk(children, folder, str(folder / "runs.db"), jobs)


NewTalk: TypeAlias = Callable[[], AbstractContextManager[Talk]]
"""Makes a session of its own for a test."""


def two_at_once(new: NewTalk, trial: int) -> str:
    """Two processes begin a turn at one moment; who was first."""
    with new() as talk:
        gate = talk.make_gate()
        pair = [talk.begin([name], gate=str(gate), loop=LOOPS[(trial + at) % 2]) for at, name in enumerate("ab")]
        # Whoever has begun waits at the gate, and the other one has to be told while it does.
        waiting, first = list(pair), None
        while first is None or first[1][0] != "noted":
            first = talk.children.event(waiting)
            assert first is not None, f"trial {trial}"
            if first[1][0] == "result":
                waiting.remove(first[0])
        winner = pair.index(first[0])
        loser = talk.children.ended(pair[1 - winner])
        gate.write_bytes(b"go")
        ended = talk.children.ended(pair[winner])
        mine, other = "ab"[winner], "ab"[1 - winner]
        assert loser.result == [[other, "RunBusy"]], f"trial {trial}: {loser.result}"
        assert ended.result == [[mine, f"re: {mine}"]], f"trial {trial}: {ended.result}"
        assert talk.lines("note") == Counter([mine]), f"trial {trial}"
        assert talk.held() == {"items": [mine, f"re: {mine}"], "said": [mine]}, f"trial {trial}"
        return mine


def five_lives(new: NewTalk, dice: random.Random) -> tuple[int, int, str]:
    """Processes hold a conversation, one after the other, and die at an append.

    Returns:
        How many were killed, how many turns were there that nobody had been told of, and the policy.
    """
    seed, killed = dice.randrange(1_000_000), 0
    persist = "step" if seed % 2 else "run"
    with new() as talk:
        answered: list[str] = []
        for life in range(5):
            texts = [f"{life}.{turn}" for turn in range(4)]
            death = {"at": 2 + dice.randrange(30), "when": dice.choice(("before", "after"))}
            ended = talk.process(texts, persist=persist, loop=LOOPS[seed % 2], **death)
            killed += ended.killed
            answered += [text for kind, text in ended.said if kind == "answered"]
        held = talk.held()
        why = f"seed {seed}, {persist}: {held}"
        # All that was answered is there, whole and in order.
        assert [text for text in held["said"] if text in answered] == answered, why
        pairs = [text for text in held["items"] if not text.startswith("re: ")]
        assert held["said"] == pairs, why
        assert len(set(pairs)) == len(pairs), why
        assert all(f"re: {text}" in held["items"] for text in answered), why
        assert max(talk.lines("note").values()) == 1, why
        return killed, len(held["said"]) - len(answered), persist


def delivered(new: NewTalk, count: int, dice: random.Random, loop: str) -> tuple[int, int]:
    """So many messages, each one to five times, in any order, by processes that die: one run each, and one answer.

    Returns:
        How often something was delivered, and how many processes were killed.
    """
    with new() as talk:
        names = [f"m{number}" for number in range(count)]
        queue = [name for name in names for _ in range(dice.randrange(1, 6))]
        dice.shuffle(queue)
        deliveries, killed = len(queue), 0
        answers: dict[str, set[str]] = {}
        while queue:
            part, queue = queue[:20], queue[20:]
            death = {"at": 2 + dice.randrange(120), "when": dice.choice(("before", "after"))}
            ended = talk.process(part, deliveries=True, loop=loop, **death)
            killed += ended.killed
            done = sum(kind == "answered" for kind, _ in ended.said)
            if ended.killed:
                queue = part[done:] + queue
            told: list[tuple[str, str]] = ended.result or []
            for text, value in told:
                answers.setdefault(text, set()).add(value)
        held = talk.held()
        assert all(found == {f"re: {text}"} for text, found in answers.items()), answers
        assert sorted(held["said"]) == sorted(names)
        # A body in flight at a kill may run again; a finished one does not.
        assert sum(talk.lines("reply").values()) <= len(names) + killed
        return deliveries, killed


def posted(new: NewTalk, count: int, dice: random.Random, loop: str) -> tuple[int, int]:
    """So many messages are sent, and answered later, by processes that die at any write: each once, in its order.

    Returns:
        How many processes were killed, and how many answers there were that nobody had been told of.
    """
    with new() as talk:
        names = [f"m{number}" for number in range(count)]
        sent = answered = killed = 0
        ended = Ended()
        while sent < count or ended.killed:
            # What was not acknowledged is sent again, and may be there.
            part = names[sent : sent + 8]
            death = {"at": 1 + dice.randrange(60), "when": dice.choice(("before", "after"))}
            more = {"texts": part, "drain": sent + len(part) == count, "loop": loop, **death}
            ended = talk.ended(talk.children.start(f"{talk.jobs}:post", **talk.given, **more))
            killed += ended.killed
            sent += sum(kind == "sent" for kind, _ in ended.said)
            answered += sum(kind == "answered" for kind, _ in ended.said)
        held = talk.held()
        assert held["said"] == names, held
        assert held["items"] == [text for name in names for text in (name, f"re: {name}")], held
        # A body in flight at a kill may run again; a finished one does not.
        assert sum(talk.lines("reply").values()) <= count + killed
        return killed, count - answered


class Conversations:
    """Tests of sessions over processes; a class below it says where the sessions are kept.

    Attributes:
        new: Makes a session.
        together: How often two processes begin a turn of one session at one moment.
        kills: How many processes are killed in a conversation.
        messages: How many messages are delivered one to five times, and how many are sent and answered later.
    """

    new: NewTalk
    together: int
    kills: int
    messages: int

    def test_two_that_begin_a_turn_at_one_moment(self, record_property: Figure) -> None:
        seen = Counter(two_at_once(self.new, trial) for trial in range(self.together))
        record_property("trials", dict(seen))

    def test_whoever_dies_in_a_conversation_leaves_what_it_had_answered(self, record_property: Figure) -> None:
        dice = random.Random(SEED)
        killed = found = 0
        persists: Counter[str] = Counter()
        while killed < self.kills:
            deaths, more, persist = five_lives(self.new, dice)
            killed, found = killed + deaths, found + more
            persists[persist] += 1
        record_property("kills", killed)
        record_property("conversations", dict(persists))
        record_property("turns that were there and not acknowledged", found)

    def test_messages_that_are_delivered_again(self, record_property: Figure) -> None:
        dice = random.Random(SEED)
        parts = [min(25, self.messages - done) for done in range(0, self.messages, 25)]
        found = [delivered(self.new, count, dice, LOOPS[at % 2]) for at, count in enumerate(parts)]
        record_property("messages", self.messages)
        record_property("deliveries", sum(deliveries for deliveries, _ in found))
        record_property("kills", sum(killed for _, killed in found))

    def test_messages_that_wait(self, record_property: Figure) -> None:
        dice = random.Random(SEED)
        parts = [min(25, self.messages - done) for done in range(0, self.messages, 25)]
        found = [posted(self.new, count, dice, LOOPS[at % 2]) for at, count in enumerate(parts)]
        record_property("messages", self.messages)
        record_property("kills", sum(killed for killed, _ in found))
        record_property("answers that were there and not acknowledged", sum(more for _, more in found))
        assert all(killed for killed, _ in found)
