"""Two memory bundles compared on conversations that are stored, without asking a model again.

Run it: python examples/memory_trial.py

For runs in a database the command line does the same:

    noetic memory trial RUN RUN --with memory_trial.py:Episodes --against memory_trial.py:Recent \
        --flow memory_trial.py:flow --evidence memory_trial.py:evidence
"""

from __future__ import annotations

import anyio

from noetic_py import Harness, InMemoryBackend, Memory, call_model
from noetic_py.memory import Episodic, HistoryWindow, Scope
from noetic_py.testing import ScriptedModel
from noetic_py.trial import Evidence, MemoryTrial, StoredRound, memory_trial


class Recent(Memory):
    """The bundle in use: the model sees the newest turns."""

    newest: HistoryWindow = HistoryWindow(max_turns=2)


class Episodes(Recent):
    """The bundle on trial: the same, and earlier turns whose words are like the question's."""

    past: Episodic = Episodic(max_recalled=3, recent=0, scope=Scope.THREAD)


TALKS = {
    "ada": [
        ("My boat lies at berth seven.", "Noted: berth seven."),
        ("When is high water?", "At noon."),
        ("And low water?", "At six."),
        ("Does it rain?", "Not today."),
        ("At which berth does my boat lie?", "At berth seven."),
    ],
    "bob": [
        ("The keys of the shed are under the blue pot.", "I will remember the pot."),
        ("Call me Bob.", "Hello, Bob."),
        ("What day is it?", "Sunday."),
        ("The keys of the shed are with Eve now.", "With Eve, good."),
        ("Is the harbour open?", "Until nine."),
        ("Thank you.", "You are welcome."),
        ("Who has the keys of the shed?", "Eve has them."),
    ],
}

# What a request has to show, by its question; and what was true once.
NEEDED = {
    "At which berth does my boat lie?": Evidence(needed=["berth seven"]),
    "Who has the keys of the shed?": Evidence(needed=["with Eve now"], outdated=["under the blue pot"]),
}


def evidence(asked: StoredRound) -> Evidence | None:
    """Requests without an entry are not judged."""
    return NEEDED.get(asked.query)


model = ScriptedModel(*[reply for talk in TALKS.values() for _, reply in talk])
flow = call_model(model, instructions="You keep a harbour's books.", id="clerk")


def report(trial: MemoryTrial) -> None:
    """Print the means of both bundles, and what each question was shown."""
    for name, measured in trial.summary().items():
        if measured.against is not None and name != "ms":
            print(f"{name}: {measured.memory.mean:.2f}, in use {measured.against.mean:.2f}")
    for new, old in zip(trial.requests, trial.against, strict=True):
        if new.found is not None:
            print(f"{new.query} found: {new.found}, in use {old.found}; outdated: {new.outdated}")


async def main() -> None:
    """Store two conversations, then try another bundle on them."""
    async with Harness(memory=Recent(), checkpoints=InMemoryBackend()) as harness:
        for user, talk in TALKS.items():
            for said, _ in talk:
                await harness.session(user, "desk").run(flow, said)
        asked = len(model.requests)
        run_ids = [info.run_id for info in await harness.runs.list(limit=None)]
        report(await memory_trial(harness.runs, run_ids, Episodes(), against=Recent(), flow=flow, evidence=evidence))
        print(f"{len(run_ids)} stored turns, {len(model.requests) - asked} model calls")


if __name__ == "__main__":
    anyio.run(main)
