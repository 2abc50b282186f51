"""Facts that change: what the model is shown of them, and random programs against a plain list of what was said."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest
from attrs import define, field, frozen

from noetic_py import Context, Harness, InMemoryBackend, Memory, Message, Step, call_model, errors, step
from noetic_py.checkpoints import CheckpointBackend, SqliteBackend
from noetic_py.core.events import StepCommitted
from noetic_py.memory import Fact, Facts, Scope
from noetic_py.models.model import ModelRequest
from noetic_py.testing import FaultyBackend, ScriptedModel, VirtualRuntime
from tests.properties.checks import SEED, examples

pytestmark = pytest.mark.anyio

START = datetime(2025, 1, 1, tzinfo=UTC)


class Mem(Memory):
    facts: Facts = Facts(scope=Scope.USER)


# ------------------------------------------------------------------------------------------------------ changed facts

# What is said of an attribute at first, what is said when it has changed, and a question, in several languages.
SAID: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "home": (
        ("We rent a flat in {}.", "We moved, we live in {} now.", "Where do I live?"),
        ("Wir wohnen in {}.", "Wir sind nach {} gezogen.", "Wo wohne ich?"),
        ("J'habite {}.", "Nous avons déménagé, j'habite {}.", "Où est-ce que j'habite ?"),
    ),
    "employer": (
        ("I work at {}.", "Since Monday I work for {}.", "Where do I work?"),
        ("Ik werk bij {}.", "Sinds maandag werk ik bij {}.", "Waar werk ik?"),
        ("私は{}で働いています。", "今は{}で働いています。", "どこで働いていますか。"),
    ),
    "phone number": (
        ("My phone number is {}.", "My new phone number is {}.", "What is my phone number?"),
        ("Mi número es el {}.", "Mi nuevo número es el {}.", "¿Cuál es mi número?"),
    ),
    "boss": (
        ("My boss is {}.", "{} is my boss since March.", "Who is my boss?"),
        ("Мой начальник — {}.", "Теперь мой начальник — {}.", "Кто мой начальник?"),
    ),
    "meeting": (
        ("The meeting is on {}.", "The meeting is moved to {}.", "When is the meeting?"),
        ("Das Treffen ist am {}.", "Das Treffen ist auf {} verschoben.", "Wann ist das Treffen?"),
    ),
}  # fmt: skip
WORDS: Mapping[str, tuple[str, ...]] = {
    "home": ("Utrecht", "Delft", "Köln", "Ōsaka", "Sao Paulo", "New York", "York"),
    "employer": ("Brandt & Söhne", "Arup", "Arup Deutschland", "株式会社"),
    "phone number": ("0611 223344", "0699 887766", "+49 611 0", "0611"),
    "boss": ("Karl", "Teresa", "Иван", "Karla"),
    "meeting": ("Tuesday at ten", "Friday at two", "3.5.", "13.5."),
}
ASKED = "Which facts do you know of me?"


@frozen
class Change:
    """A fact that has changed.

    Attributes:
        attribute: What of the user.
        values: The old and the new value.
        texts: What the user says first, and later.
        question: A question about it.
    """

    attribute: str
    values: tuple[str, str]
    texts: tuple[str, str]
    question: str


def changes(dice: Random, count: int) -> list[Change]:
    """Facts that change, each other ones."""
    made: list[Change] = []
    for _ in range(count):
        attribute = dice.choice(list(SAID))
        old, new, question = dice.choice(SAID[attribute])
        one, other = dice.sample(WORDS[attribute], 2)
        made.append(Change(attribute, (one, other), (old.format(one), new.format(other)), question))
    return made


def extractor(dice: Random, change: Change) -> ScriptedModel:
    """A model that finds the facts, writes a key now in one way and now in another, and makes some of them up."""

    def turn(request: ModelRequest) -> str:
        asked = request.items[-1]
        text = asked.text if isinstance(asked, Message) else ""
        lines = re.findall(r"^\[(\d+)\] \S+ \S+ user: (.*)$", text, re.MULTILINE)
        found: list[dict[str, Any]] = []
        for number, line in lines:
            for value, said in zip(change.values, change.texts, strict=True):
                if line == said.replace("<", "&lt;"):
                    name = dice.choice((change.attribute, change.attribute.upper(), change.attribute.replace(" ", "_")))
                    fact = {"source": int(number), "span": dice.choice((value, said)), "value": value}
                    found.append({**fact, "subject": dice.choice(("user", "User")), "attribute": name})
        if dice.random() < 0.3:
            made_up = {"source": 1, "span": "what was never said", "subject": "user", "value": change.values[0]}
            found.append({**made_up, "attribute": change.attribute})
        return json.dumps({"value": found})

    return ScriptedModel(*[turn] * 9)


def facts_shown(request: ModelRequest) -> list[str]:
    """The lines about facts in a request."""
    texts = [item.text for item in request.items if isinstance(item, Message) and "<memory" in item.text]
    return [line for text in texts for line in text.splitlines() if line.startswith("- ")]


async def test_an_outdated_fact_is_hardly_ever_shown_unmarked() -> None:
    dice = Random(f"{SEED} changed")
    made = changes(dice, examples(sample=12, full=2_000))
    unmarked = marked = dated = 0
    for change in made:
        runtime, model = VirtualRuntime(), ScriptedModel("Noted.", "Noted.", "?")

        class Extracting(Memory):
            facts: Facts = Facts(scope=Scope.USER, extract=True, model=extractor(dice, change))

        async with Harness(memory=Extracting(), model=model, runtime=runtime, plugins=()) as harness:
            for text in (*change.texts, change.question):
                await harness.run(call_model(), text, user_id="ada", thread_id=f"on day {runtime.now():%j}")
                await runtime.advance(timedelta(days=90).total_seconds())
        old, new = change.values
        lines = facts_shown(model.requests[2])
        values = {line: line.partition(": ")[2].rpartition(" (")[0] for line in lines}
        unmarked += sum(values[line] == old and ", outdated since 2025-04-01: " not in line for line in lines)
        marked += sum(values[line] == old and ", outdated since 2025-04-01: " in line for line in lines)
        dated += sum(values[line] == new and "(user, 2025-04-01, on day 091)" in line for line in lines)
    assert unmarked * 50 <= len(made), f"NOETIC_SEED={SEED}: {unmarked} of {len(made)}"
    assert (marked, dated) == (len(made), len(made)), f"NOETIC_SEED={SEED}"


# ---------------------------------------------------------------------------------------------------- random programs


@frozen
class Said:
    """A statement about a key."""

    key: str
    value: str
    at: datetime

    async def tell(self, facts: Facts) -> None:
        """Record it."""
        text = f"{self.key} is {self.value} at {self.at}"
        await facts.record_from(str(self.at), text, "Ada", self.key, self.value, text, said=self.at)


@define
class Oracle:
    """What was said and not forgotten, as a plain list."""

    said: dict[datetime, Said] = field(factory=dict[datetime, Said])

    def add(self, *said: Said) -> None:
        """Something was said."""
        self.said.update({each.at: each for each in said})

    def forget(self, key: str) -> None:
        """A key was forgotten."""
        self.said = {at: each for at, each in self.said.items() if each.key != key}

    def expected(self) -> list[tuple[str, str, datetime, datetime | None]]:
        """Key, value, beginning and end of each fact, by key and the newest first."""
        made: list[tuple[str, str, datetime, datetime | None]] = []
        for key in sorted({each.key for each in self.said.values()}):
            times = sorted(at for at, each in self.said.items() if each.key == key)
            ends = [*times[1:], None]
            made += [(key, self.said[at].value, at, end) for at, end in reversed(list(zip(times, ends, strict=True)))]
        return made


def told(said: Said, name: str) -> Step[Any, Any, Any, Any]:
    @step(id=name, version="1")
    async def body(value: Any, ctx: Context[Mem]) -> Any:
        await said.tell(ctx.memory.facts)
        return value

    return body


@step(id="look", version="1")
async def look(value: Any, ctx: Context[Mem]) -> list[Fact]:
    """All facts."""
    assert not ctx.memory.facts.contradictions
    return list(ctx.memory.facts.known)


@step(id="forget", version="1")
async def forget(key: str, ctx: Context[Mem]) -> None:
    """Forget a key."""
    await ctx.memory.facts.forget("ada", key)


@define
class Trial:
    """One user's runs, and what was said in them.

    Attributes:
        backend: Where everything is kept.
        dice: What happens.
        oracle: What was said.
        number: How many operations there were.
    """

    backend: CheckpointBackend
    dice: Random
    oracle: Oracle = field(factory=Oracle)
    number: int = 0
    times: set[int] = field(factory=set[int])

    def make(self, backend: CheckpointBackend | None = None) -> Harness[Any]:
        """A process."""
        return Harness(memory=Mem(), checkpoints=backend or self.backend, plugins=())

    def said(self) -> Said:
        """A statement of a time that no other has, later or earlier than those before."""
        minute = self.dice.randrange(10**6)
        while minute in self.times:
            minute += 1
        self.times.add(minute)
        at = START + timedelta(minutes=minute)
        return Said(self.dice.choice(("home", "car", "boss")), self.dice.choice(("one", "two", "three")), at)

    async def tell(self) -> None:
        """Two statements in one run."""
        first, second = self.said(), self.said()
        async with self.make() as harness:
            await harness.run(told(first, "first") >> told(second, "second"), None, user_id="ada")
        self.oracle.add(first, second)

    async def both(self) -> None:
        """Two processes at once, a statement in each."""
        first, second = self.said(), self.said()
        async with self.make() as one, self.make() as other, anyio.create_task_group() as group:
            group.start_soon(partial(one.run, told(first, "first"), None, user_id="ada"))
            group.start_soon(partial(other.run, told(second, "second"), None, user_id="ada"))
        self.oracle.add(first, second)

    async def forget(self) -> None:
        """All facts of a key."""
        key = self.dice.choice(("home", "car", "boss"))
        async with self.make() as harness:
            await harness.run(forget, key, user_id="ada")
        self.oracle.forget(key)

    async def killed(self) -> None:
        """A process dies at a commit, and another one goes on."""
        first, second, name = self.said(), self.said(), f"killed {self.number}"
        flow = told(first, "first") >> told(second, "second")
        backend = FaultyBackend(
            self.backend, dies_at=self.dice.randint(1, 6), when=self.dice.choice(("before", "after"))
        )
        with suppress(errors.NoeticError), backend.outlived():
            await self.make(backend).run(flow, None, user_id="ada", run_id=name)
        backend.revive()
        async with self.make() as harness:
            if await self.backend.head(name) is None:
                await harness.run(flow, None, user_id="ada", run_id=name)
            elif (await harness.runs.get(name)).status != "completed":
                await harness.resume(name, flow)
        self.oracle.add(first, second)

    async def fork(self) -> None:
        """A run is forked between its statements, perhaps after the first one was forgotten."""
        first, second, name = self.said(), self.said(), f"forked {self.number}"
        flow = told(first, "first") >> told(second, "second")
        async with self.make() as harness:
            async with harness.stream(flow, None, user_id="ada", run_id=name) as stream:
                committed = [event async for event in stream.events if isinstance(event, StepCommitted)]
            at = next(event.position for event in committed if event.path[-1] == "first")
            self.oracle.add(first, second)
            if self.dice.random() < 0.5:
                await harness.run(forget, first.key, user_id="ada")
                self.oracle.forget(first.key)
            await harness.resume(await harness.fork(name, at=at), flow)
        self.oracle.add(second)

    async def check(self) -> None:
        """Compare what is known with what was said."""
        async with self.make() as harness:
            found: list[Fact] = (await harness.run(look, None, user_id="ada")).value
        assert [(each.attribute, each.value, each.said, each.valid_until) for each in found] == self.oracle.expected()
        for one, other in itertools.pairwise(found):
            assert other.superseded_by == (one.id if one.attribute == other.attribute else "")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_random_programs_know_what_was_said(kind: str, tmp_path: Any) -> None:
    backend: CheckpointBackend = InMemoryBackend() if kind == "memory" else SqliteBackend(tmp_path / "runs.db")
    async with backend:
        trial = Trial(backend, Random(f"{SEED} {kind}"))
        operations = (trial.tell, trial.both, trial.forget, trial.killed, trial.fork)
        for trial.number in range(examples(sample=18, full=4_000) // (1 if kind == "memory" else 3)):
            # Each of them is among the first five.
            operation = trial.dice.choice(operations) if trial.number >= len(operations) else operations[trial.number]
            await operation()
            try:
                await trial.check()
            except AssertionError as error:
                error.add_note(f"NOETIC_SEED={SEED}, {kind}, operation {trial.number}: {operation.__name__}")
                raise
