"""SIGTERM and Ctrl-C at random moments: the process ends in time and with the right code, and the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.children import Children
from tests.crash.conftest import Figure
from tests.crash.folders import quick_folder
from tests.crash.stopping import RUNS, STEPS
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.slow

SIGNALS = examples(sample=4, full=100)
"""How often each of the two signals comes."""
SECOND = examples(sample=4, full=100)
"""How often a second one comes to a process that does not listen."""
LOOPS = ("asyncio", "trio")
TEXTS = [f"m{number}" for number in range(30)]
NUMBERS = [pytest.param(number, id=number.name) for number in (signal.SIGTERM, signal.SIGINT)]
_SLACK = examples(sample=5, full=1)
"""Seconds behind the grace in which the process has to be gone; the sample may run on a busy machine."""


def ended_after(
    children: Children, pid: int, number: signal.Signals, before: signal.Signals | None = None
) -> tuple[float, list[Any]]:
    """Send a signal; how many seconds the process then lives, and what it has said."""
    begun = time.monotonic()
    os.kill(pid, number)
    # Of two that a busy process gets at one moment, the kernel may show it the second one first.
    ended = children.ended(pid, codes={128 + each for each in (number, before) if each is not None})
    return time.monotonic() - begun, ended.said


def lines(book: Path, kind: str) -> Counter[str]:
    """How often each body has begun, or ended."""
    text = book.read_text() if book.exists() else ""
    return Counter(line.partition(" ")[2] for line in text.splitlines() if line.startswith(kind))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_at_a_random_moment(children: Children, number: signal.Signals, figure: Figure) -> None:
    dice = random.Random(f"{SEED} {number.name}")
    statuses: Counter[str] = Counter()
    repeated, slowest = 0, 0.0
    for trial in range(SIGNALS):
        with quick_folder() as folder:
            book = folder / "book"
            given: dict[str, Any] = {
                "store": str(folder / "runs.db"),
                "book": str(book),
                "loop": LOOPS[trial % 2],
                "last": _SLACK,
            }
            # Long enough for everything to end by itself, or not.
            grace = dice.choice((0.02, 0.1, 10.0))
            pid = children.start("tests.crash.stopping:serve", **given, texts=TEXTS, grace=grace)
            children.hear(pid, "ready")
            time.sleep(dice.random() * 0.12)
            seconds, said = ended_after(children, pid, number)
            why = f"trial {trial}, seed {SEED}, {number.name}, grace {grace}, {LOOPS[trial % 2]}"
            assert seconds <= grace + _SLACK, why
            slowest = max(slowest, seconds - (grace if grace < 10 else 0))
            ended = lines(book, "end")
            answered = [text for kind, text in said if kind == "answered"]
            rest = TEXTS[len(answered) : len(answered) + 3]
            # Another process has it all at once: nobody waits for a lease here.
            after = children.run("tests.crash.stopping:go_on", **given, texts=rest).result
            states = sorted([*(f"s{at}" for at in range(STEPS))])
            assert after["runs"] == {name: ["completed", [name] * 3, states] for name in RUNS}, why
            for name, (status, shutdown, alive) in after["before"].items():
                assert (status, shutdown, alive) in [("completed", False, False), ("interrupted", True, False)], (
                    why,
                    name,
                )
                statuses[status] += 1
            expected = [said for text in (*answered, *rest) for said in (text, f"re: {text}")]
            assert after["items"] == expected, why
            # Each body has ended once, whichever process it was in; what had begun only may begin again.
            assert set(lines(book, "end").values()) == {1}, why
            assert ended.keys() <= lines(book, "end").keys()
            begins = lines(book, "begin")
            assert begins.keys() == lines(book, "end").keys(), why
            repeated += sum(begins.values()) - len(begins)
            assert max(begins.values()) <= 2, why
    figure("signals", SIGNALS)
    figure("runs that the next process found", dict(statuses))
    figure("bodies run again", repeated)
    figure("slowest end in seconds, after a grace period that was used up", round(slowest, 2))


@pytest.mark.parametrize("number", NUMBERS)
def test_a_second_signal_ends_the_process_now(children: Children, number: signal.Signals, figure: Figure) -> None:
    dice = random.Random(f"{SEED} second {number.name}")
    slowest = 0.0
    for trial in range(SECOND):
        with quick_folder() as folder:
            way = ("loop", "shield")[trial // 2 % 2]
            store = str(folder / "runs.db")
            pid = children.start("tests.crash.stopping:block", store=store, way=way, loop=LOOPS[trial % 2], grace=60)
            children.hear(pid, "ready")
            # Another signal, for two of one kind that come at one moment are one.
            first = signal.SIGINT if number is signal.SIGTERM else signal.SIGTERM
            os.kill(pid, first)
            time.sleep(0.01 + dice.random() * 0.1)
            seconds, _ = ended_after(children, pid, number, first)
            slowest = max(slowest, seconds)
            assert seconds <= _SLACK, f"trial {trial}, {way}"
    figure("second signals", SECOND)
    figure("slowest end in seconds", round(slowest, 2))


@pytest.mark.parametrize("way", ["loop", "shield"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_step_that_does_not_listen_ends_with_the_grace(children: Children, number: signal.Signals, way: str) -> None:
    with quick_folder() as folder:
        store = str(folder / "runs.db")
        pid = children.start(
            "tests.crash.stopping:block", store=store, way=way, loop=LOOPS[number % 2], grace=0.2, last=1
        )
        children.hear(pid, "ready")
        seconds, _ = ended_after(children, pid, number)
        # The grace and the second behind it, and what the kernel takes to end a process.
        assert 0.2 <= seconds <= 0.2 + 1 + _SLACK
