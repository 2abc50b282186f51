"""Sessions over processes: two at one moment, one that dies, messages that are delivered again."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.properties.checks import SEED, examples

TOGETHER = examples(sample=20, full=200)
"""How often two processes begin a turn of one session at one moment."""
KILLS = examples(sample=40, full=400)
"""How many processes are killed in a conversation."""
DELIVERED = examples(sample=100, full=1_000)
"""How many messages are delivered one to five times."""
LOOPS = ("asyncio", "trio")


class Talk:
    """A session in a folder of its own."""

    def __init__(self, children: Children, folder: Path) -> None:
        self._children = children
        self._given: dict[str, Any] = {"store": str(folder / "runs.db"), "book": str(folder / "book")}
        self._book = folder / "book"

    def begin(self, texts: Sequence[str], **more: Any) -> int:
        """Start a process that does these turns."""
        return self._children.start("tests.crash.conversing:converse", **self._given, texts=list(texts), **more)

    def held(self) -> Any:
        """What another process reads of the session."""
        return self._children.run("tests.crash.conversing:read", **self._given).result

    def lines(self, kind: str) -> Counter[str]:
        """How often each text was noted, or replied to."""
        lines = self._book.read_text().splitlines() if self._book.exists() else []
        return Counter(line.partition(" ")[2] for line in lines if line.startswith(kind))


def test_two_that_begin_a_turn_at_one_moment(children: Children, figure: Figure) -> None:
    seen: Counter[str] = Counter()
    for trial in range(TOGETHER):
        with quick_folder() as folder:
            talk = Talk(children, folder)
            gate = folder / "gate"
            os.mkfifo(gate)
            pair = [talk.begin([name], gate=str(gate), loop=LOOPS[(trial + at) % 2]) for at, name in enumerate("ab")]
            # Whoever has begun waits at the gate, and the other one has to be told while it does.
            waiting, first = list(pair), None
            while first is None or first[1][0] != "noted":
                first = children.event(waiting)
                assert first is not None, f"trial {trial}"
                if first[1][0] == "result":
                    waiting.remove(first[0])
            winner = pair.index(first[0])
            loser = children.ended(pair[1 - winner])
            gate.write_bytes(b"go")
            ended = children.ended(pair[winner])
            mine, other = "ab"[winner], "ab"[1 - winner]
            assert loser.result == [[other, "RunBusy"]], f"trial {trial}: {loser.result}"
            assert ended.result == [[mine, f"re: {mine}"]], f"trial {trial}: {ended.result}"
            assert talk.lines("note") == Counter([mine]), f"trial {trial}"
            assert talk.held() == {"items": [mine, f"re: {mine}"], "said": [mine]}, f"trial {trial}"
            seen[mine] += 1
    figure("trials", dict(seen))


def test_whoever_dies_in_a_conversation_leaves_what_it_had_answered(children: Children, figure: Figure) -> None:
    dice = random.Random(SEED)
    killed = found = 0
    persists: Counter[str] = Counter()
    while killed < KILLS:
        seed = dice.randrange(1_000_000)
        with quick_folder() as folder:
            talk = Talk(children, folder)
            persist = "step" if seed % 2 else "run"
            answered: list[str] = []
            for life in range(5):
                texts = [f"{life}.{turn}" for turn in range(4)]
                death = {"at": 2 + dice.randrange(30), "when": dice.choice(("before", "after"))}
                ended = children.ended(talk.begin(texts, persist=persist, loop=LOOPS[seed % 2], **death))
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
            found += len(held["said"]) - len(answered)
            persists[persist] += 1
    figure("kills", killed)
    figure("conversations", dict(persists))
    figure("turns that were there and not acknowledged", found)


def test_messages_that_are_delivered_again(children: Children, figure: Figure) -> None:
    """Each one to five times, in any order, by processes that die: one run each, and always the same answer."""
    dice = random.Random(SEED)
    left, killed, deliveries = DELIVERED, 0, 0
    while left > 0:
        with quick_folder() as folder:
            talk = Talk(children, folder)
            names = [f"m{number}" for number in range(min(left, 25))]
            left -= len(names)
            queue = [name for name in names for _ in range(dice.randrange(1, 6))]
            dice.shuffle(queue)
            deliveries += len(queue)
            answers: dict[str, set[str]] = {}
            while queue:
                part, queue = queue[:20], queue[20:]
                death = {"at": 2 + dice.randrange(120), "when": dice.choice(("before", "after"))}
                ended = children.ended(talk.begin(part, deliveries=True, loop=LOOPS[left % 2], **death))
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
    figure("messages", DELIVERED)
    figure("deliveries", deliveries)
    figure("kills", killed)
