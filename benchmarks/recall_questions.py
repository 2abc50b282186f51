"""How often a question about what a person has said finds it: in other words, and in other languages.

    python -m benchmarks.recall_questions [MODULE:EMBEDDER]

A generator makes what a person says: facts, each in one of several wordings with values drawn by a seed, among
messages about something else. The questions use other words than the facts. No setting was chosen by them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import anyio
from attrs import define, field, frozen

from noetic_py.memory import SemanticRecall, WordEmbedder

SHOWN: Final = 5
SEEDS: Final = (1, 2, 3)
CHATTER: Final = 240

NAMES: Final = ("Noor", "Emil", "Priya", "Tomas", "Ingrid", "Kofi", "Lucia", "Haruto")
CITIES: Final = ("Utrecht", "Porto", "Gdansk", "Bergen", "Lyon", "Graz", "Malmo", "Bilbao")


@frozen
class Fact:
    """What a person says in one of several ways, and a question about it in four languages."""

    said: tuple[str, ...]
    asked: Mapping[str, str]


def _fact(*said: str, en: str, de: str, fr: str, es: str) -> Fact:
    return Fact(said, {"en": en, "de": de, "fr": fr, "es": es})


FACTS: Final = (
    _fact(
        "My sister {name} teaches maths in {city}.", "{name}, my sister, has a job at a school in {city}.",
        en="What does my sibling do for a living?", de="Was ist der Beruf meiner Schwester?",
        fr="Quel est le métier de ma soeur ?", es="¿En qué trabaja mi hermana?",
    ),
    _fact(
        "Peanuts make my throat swell.", "I had to go to hospital after eating peanuts.",
        en="Which food is dangerous for me?", de="Welches Essen ist für mich gefährlich?",
        fr="Quel aliment est dangereux pour moi ?", es="¿Qué comida es peligrosa para mí?",
    ),
    _fact(
        "We moved into a flat in {city} last spring.", "Since spring our home is an apartment in {city}.",
        en="Where do I live?", de="Wo wohne ich?", fr="Où est-ce que j'habite ?", es="¿Dónde vivo?",
    ),
    _fact(
        "The vet says our cat needs pills for her kidneys.", "Our cat takes kidney pills since she saw the vet.",
        en="Is there anything wrong with my pet's health?", de="Ist mein Haustier krank?",
        fr="Mon animal est-il malade ?", es="¿Está enferma mi mascota?",
    ),
    _fact(
        "I cycle to the office unless it pours.", "On dry days I go to the office by bike.",
        en="How do I commute?", de="Wie komme ich zur Arbeit?",
        fr="Comment est-ce que je vais au travail ?", es="¿Cómo voy al trabajo?",
    ),
    _fact(
        "Our wedding was on the ninth of June.", "{name} and I got married on the ninth of June.",
        en="When is our anniversary?", de="Wann ist unser Hochzeitstag?",
        fr="Quand est notre anniversaire de mariage ?", es="¿Cuándo es nuestro aniversario de boda?",
    ),
    _fact(
        "I am learning the cello with a teacher named {name}.", "{name} gives me cello lessons.",
        en="Which instrument do I play?", de="Welches Instrument spiele ich?",
        fr="De quel instrument est-ce que je joue ?", es="¿Qué instrumento toco?",
    ),
    _fact(
        "Meat is off my plate since I turned thirty.", "I have not eaten any meat since I was thirty.",
        en="Am I a vegetarian?", de="Bin ich Vegetarier?", fr="Suis-je végétarien ?", es="¿Soy vegetariano?",
    ),
    _fact(
        "My passport runs out in {month}.", "In {month} my passport is no longer valid.",
        en="Which document do I have to renew?", de="Welches Dokument muss ich erneuern?",
        fr="Quel document dois-je renouveler ?", es="¿Qué documento tengo que renovar?",
    ),
    _fact(
        "The boss is called {name} and hates meetings before ten.", "{name}, my boss, wants no meetings before ten.",
        en="Who is my manager?", de="Wie heißt mein Vorgesetzter?",
        fr="Comment s'appelle mon chef ?", es="¿Cómo se llama mi jefe?",
    ),
    _fact(
        "I broke my left wrist while skiing.", "A fall on the ski slope broke my left wrist.",
        en="Have I ever had an accident?", de="Hatte ich schon einmal einen Unfall?",
        fr="Ai-je déjà eu un accident ?", es="¿He tenido algún accidente?",
    ),
    _fact(
        "The landlord wants {amount} euros a month from us.", "Each month {amount} euros go to our landlord.",
        en="How much is my rent?", de="Wie hoch ist meine Miete?",
        fr="Combien coûte mon loyer ?", es="¿Cuánto pago de alquiler?",
    ),
    _fact(
        "Our daughter {name} starts first grade in September.", "In September {name}, our daughter, goes to school.",
        en="Do I have children?", de="Habe ich Kinder?", fr="Ai-je des enfants ?", es="¿Tengo hijos?",
    ),
    _fact(
        "I get sick on boats, even in a calm sea.", "A boat makes my stomach turn, even without waves.",
        en="Would a cruise suit me?", de="Wäre eine Kreuzfahrt etwas für mich?",
        fr="Une croisière me conviendrait-elle ?", es="¿Me convendría un crucero?",
    ),
    _fact(
        "I write programs for a hospital in {city}.", "A hospital in {city} pays me to write its programs.",
        en="What is my profession?", de="Was bin ich von Beruf?",
        fr="Quelle est ma profession ?", es="¿Cuál es mi profesión?",
    ),
    _fact(
        "The car went to a scrapyard, and we have not bought another one.", "We gave up our car for good.",
        en="Do I own a vehicle?", de="Besitze ich ein Auto?", fr="Ai-je une voiture ?", es="¿Tengo coche?",
    ),
)  # fmt: skip

MONTHS: Final = ("March", "July", "October")
TOPICS: Final = (
    "Can you shorten this paragraph about {thing}?",
    "What is a good title for a talk on {thing}?",
    "I read an article about {thing} on the train.",
    "Make a table of the prices of {thing}.",
    "{name} has asked me to explain {thing} to the team.",
    "Is it true that {thing} was invented in {city}?",
    "The report on {thing} is due on Friday, and {name} has it.",
    "Translate the leaflet on {thing} for the office in {city}.",
    "There was a long queue for {thing} at the fair in {city}.",
    "Let us talk about {thing} another time.",
)
THINGS: Final = (
    "solar panels", "paper clips", "garden walls", "old maps", "coffee machines", "steam engines", "windmills",
    "postage stamps", "chess openings", "bee hives", "canal locks", "lighthouses", "glass bottles", "folding chairs",
    "night trains", "rubber boots", "compost", "typewriters", "weather balloons", "tide tables", "bread ovens",
    "street lamps", "wool socks", "water meters",
)  # fmt: skip


def conversation(seed: int) -> tuple[list[str], list[tuple[str, str, str]]]:
    """What is said, and the questions: language, question, and the message that answers it."""
    chance = random.Random(seed)

    def filled(text: str) -> str:
        return text.format(
            name=chance.choice(NAMES), city=chance.choice(CITIES), thing=chance.choice(THINGS),
            month=chance.choice(MONTHS), amount=chance.randrange(600, 1900, 10),
        )  # fmt: skip

    facts = [(filled(chance.choice(fact.said)), fact) for fact in FACTS]
    said = [text for text, _ in facts]
    while len(said) < len(FACTS) + CHATTER:
        text = filled(chance.choice(TOPICS))
        if text not in said:
            said.append(text)
    chance.shuffle(said)
    return said, [(language, question, text) for text, fact in facts for language, question in fact.asked.items()]


@define
class Cached:
    """Embeds texts that belong together at once, and each only once."""

    embedder: Any
    known: dict[str, Sequence[float]] = field(factory=dict[str, Any])

    @property
    def name(self) -> str:
        return str(self.embedder.name)

    @property
    def dimensions(self) -> int:
        return int(self.embedder.dimensions)

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known |= zip(new, await self.embedder.embed(new), strict=True)
        return [self.known[text] for text in texts]


async def shares(embedder: Any) -> Mapping[str, float]:
    """The share of questions whose message is among the first five, by language."""
    found, asked, cached = Counter[str](), Counter[str](), Cached(embedder)
    for seed in SEEDS:
        said, questions = conversation(seed)
        layer = SemanticRecall(embedder=cached, least=-1.0)
        await cached.embed([*said, *(question for _, question, _ in questions)])
        for text in said:
            await layer.remember(text, role="user")
        for language, question, text in questions:
            asked[language] += 1
            found[language] += text in {each.text for each in await layer.search(question, SHOWN)}
    return {language: found[language] / asked[language] for language in asked}


def named_embedder(arguments: Sequence[str]) -> Any:
    """The embedder that the first argument names as MODULE:EMBEDDER; the default one without an argument."""
    if not arguments:
        return WordEmbedder()
    module, _, name = arguments[0].partition(":")
    return getattr(import_module(module), name)()


async def main(arguments: Sequence[str]) -> None:
    """Print the shares."""
    found = await shares(named_embedder(arguments))
    listed = ", ".join(f"{language} {share:.2f}" for language, share in found.items())
    sys.stdout.write(
        f"{len(SEEDS)} seeds, {len(FACTS)} facts among {CHATTER} other messages, recall@{SHOWN}: {listed}, "
        f"together {sum(found.values()) / len(found):.2f}\n"
    )


if __name__ == "__main__":
    anyio.run(main, sys.argv[1:])
