"""Made-up dialogues of several sessions, with questions about what was said and the evidence of each answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Final, Literal, TypeAlias, get_args

from attrs import frozen

from noetic_py.errors import ConfigError
from noetic_py.trial import Evidence, StoredRound

__all__ = ["Ability", "Dialogue", "DialogueQuestion", "DialogueSession", "DialogueTurn", "Language", "random_dialogue"]

Ability: TypeAlias = Literal["extraction", "sessions", "time", "update", "abstention"]
"""What a question asks for: one fact, facts of two sessions, a day, a fact that has changed, or what was never said."""
Language: TypeAlias = Literal["en", "de", "fr", "nl"]
"""The language of a dialogue."""


@frozen
class DialogueQuestion:
    """A question about what was said.

    Attributes:
        ability: What it asks for.
        text: The question.
        answer: The right answer.
        needed: Texts that have to be shown to a model that is to give it; none for what was never said.
        outdated: Texts that were true before.
    """

    ability: Ability
    text: str
    answer: str
    needed: Sequence[str] = ()
    outdated: Sequence[str] = ()


@frozen
class DialogueTurn:
    """One message of the user, and the answer to it.

    Attributes:
        said: The message.
        reply: The answer; the right one to a question.
        question: The question that it is, `None` for other messages.
    """

    said: str
    reply: str
    question: DialogueQuestion | None = None


@frozen
class DialogueSession:
    """The turns of one day.

    Attributes:
        name: The session's name.
        day: The day.
        turns: Its turns.
    """

    name: str
    day: date
    turns: Sequence[DialogueTurn]


@frozen
class Dialogue:
    """A dialogue; its last session asks the questions. `attrs.asdict` makes plain data of it.

    Attributes:
        seed: What it was made from.
        language: Its language.
        sessions: Its sessions, by day.
    """

    seed: int
    language: Language
    sessions: Sequence[DialogueSession]

    @property
    def questions(self) -> Sequence[DialogueQuestion]:
        """All questions."""
        return [each.question for part in self.sessions for each in part.turns if each.question is not None]

    def evidence(self, asked: StoredRound) -> Evidence | None:
        """The evidence of a stored request for a trial: `memory_trial(..., evidence=dialogue.evidence)`."""
        found = next((each for each in self.questions if each.text == asked.query), None)
        return None if found is None else Evidence(found.needed, found.outdated)


@frozen
class _Fact:
    """The sentences of one kind of fact: `{who}` is a person, `{value}` what is said of them."""

    kind: Literal["town", "person", "number"]
    said: str
    changed: str
    asked: str
    asked_of_two: str


@frozen
class _Words:
    """The sentences of a language."""

    facts: Sequence[_Fact]
    event: str
    when: str
    small_talk: Sequence[str]
    noted: str
    unknown: str
    both: str


_WORDS: Final[Mapping[Language, _Words]] = {
    "en": _Words(
        (
            _Fact(
                "town", "{who} lives in {value}.", "{who} has moved to {value}.",
                "Where is the home of {who} these days?", "Where are the homes of {who} and {other}?",
            ),
            _Fact(
                "person", "The dentist of {who} is called {value}.", "{who} goes to another dentist now: {value}.",
                "Who looks after the teeth of {who}?", "Who look after the teeth of {who} and of {other}?",
            ),
            _Fact(
                "number", "At work {who} sits in room {value}.", "{who} got a new desk, in room {value}.",
                "Behind which door at the office do I find {who}?",
                "Behind which doors at the office do I find {who} and {other}?",
            ),
            _Fact(
                "person", "{who} has a dog by the name of {value}.", "{who} has another dog now, {value}.",
                "What does {who} shout when the pet runs away?",
                "What do {who} and {other} shout when their pets run away?",
            ),
            _Fact(
                "town", "{who} was hired by a firm in {value}.", "{who} changed jobs and works in {value}.",
                "To which town does {who} commute?", "To which towns do {who} and {other} commute?",
            ),
        ),
        "Today {who} went to the museum in {value}.", "On which day did {who} see the exhibition in {value}?",
        (
            "The rain did not stop all morning.", "I slept badly and drank far too much coffee.",
            "The printer is out of paper again.", "We painted the kitchen door green.",
            "The soup needed more salt.", "My bicycle has a flat tyre.", "The meeting took an hour longer.",
            "The tomatoes on the balcony are ripe.", "I finally finished that long novel.",
            "The train was late, as always.", "The new film was rather dull.", "I have to buy stamps tomorrow.",
        ),
        "Noted.", "You have not told me.", "and",
    ),
    "de": _Words(
        (
            _Fact(
                "town", "{who} wohnt in {value}.", "{who} ist nach {value} gezogen.",
                "Wo ist {who} jetzt zu Hause?", "Wo sind {who} und {other} zu Hause?",
            ),
            _Fact(
                "person", "Der Zahnarzt von {who} heißt {value}.",
                "{who} geht jetzt zu einem anderen Zahnarzt: {value}.",
                "Wer kümmert sich um die Zähne von {who}?", "Wer kümmert sich um die Zähne von {who} und von {other}?",
            ),
            _Fact(
                "number", "Bei der Arbeit sitzt {who} in Zimmer {value}.",
                "{who} hat einen neuen Schreibtisch, in Zimmer {value}.",
                "Hinter welcher Tür im Büro finde ich {who}?",
                "Hinter welchen Türen im Büro finde ich {who} und {other}?",
            ),
            _Fact(
                "person", "{who} hat einen Hund mit dem Namen {value}.", "{who} hat jetzt einen anderen Hund, {value}.",
                "Was ruft {who}, wenn das Haustier wegläuft?",
                "Was rufen {who} und {other}, wenn ihre Haustiere weglaufen?",
            ),
            _Fact(
                "town", "{who} wurde von einer Firma in {value} eingestellt.",
                "{who} hat die Stelle gewechselt und arbeitet in {value}.",
                "In welche Stadt pendelt {who}?", "In welche Städte pendeln {who} und {other}?",
            ),
        ),
        "Heute war {who} im Museum in {value}.", "An welchem Tag hat {who} die Ausstellung in {value} gesehen?",
        (
            "Es hat den ganzen Morgen geregnet.", "Ich habe schlecht geschlafen und zu viel Kaffee getrunken.",
            "Der Drucker hat wieder kein Papier.", "Wir haben die Küchentür grün gestrichen.",
            "In der Suppe fehlte Salz.", "Mein Fahrrad hat einen Platten.",
            "Die Besprechung dauerte eine Stunde länger.", "Die Tomaten auf dem Balkon sind reif.",
            "Ich habe den langen Roman endlich fertig.", "Der Zug kam zu spät, wie immer.",
            "Der neue Film war ziemlich langweilig.", "Morgen muss ich Briefmarken kaufen.",
        ),
        "Notiert.", "Das hast du mir nicht gesagt.", "und",
    ),
    "fr": _Words(
        (
            _Fact(
                "town", "{who} habite à {value}.", "{who} a déménagé à {value}.",
                "Où se trouve maintenant le domicile de {who} ?",
                "Où se trouvent les domiciles de {who} et de {other} ?",
            ),
            _Fact(
                "person", "Le dentiste de {who} s'appelle {value}.",
                "{who} va maintenant chez un autre dentiste : {value}.",
                "Qui soigne les dents de {who} ?", "Qui soigne les dents de {who} et celles de {other} ?",
            ),
            _Fact(
                "number", "Au travail, {who} est dans la salle {value}.", "{who} a un nouveau bureau, salle {value}.",
                "Derrière quelle porte de l'entreprise se trouve {who} ?",
                "Derrière quelles portes de l'entreprise se trouvent {who} et {other} ?",
            ),
            _Fact(
                "person", "{who} a un chien du nom de {value}.", "{who} a maintenant un autre chien, {value}.",
                "Que crie {who} quand l'animal s'enfuit ?",
                "Que crient {who} et {other} quand leurs animaux s'enfuient ?",
            ),
            _Fact(
                "town", "{who} a été engagé par une société à {value}.",
                "{who} a changé d'emploi et travaille à {value}.",
                "Vers quelle ville part {who} chaque matin ?",
                "Vers quelles villes partent {who} et {other} chaque matin ?",
            ),
        ),
        "Aujourd'hui {who} est allé au musée de {value}.", "Quel jour {who} a vu l'exposition à {value} ?",
        (
            "Il a plu toute la matinée.", "J'ai mal dormi et bu trop de café.",
            "L'imprimante n'a plus de papier.", "Nous avons peint la porte de la cuisine en vert.",
            "La soupe manquait de sel.", "Mon vélo a un pneu crevé.", "La réunion a duré une heure de plus.",
            "Les tomates du balcon sont mûres.", "J'ai enfin terminé ce long roman.",
            "Le train était en retard, comme toujours.", "Le nouveau film était plutôt ennuyeux.",
            "Demain je dois acheter des timbres.",
        ),
        "C'est noté.", "Tu ne me l'as pas dit.", "et",
    ),
    "nl": _Words(
        (
            _Fact(
                "town", "{who} woont in {value}.", "{who} is naar {value} verhuisd.",
                "Waar is {who} nu thuis?", "Waar zijn {who} en {other} thuis?",
            ),
            _Fact(
                "person", "De tandarts van {who} heet {value}.", "{who} gaat nu naar een andere tandarts: {value}.",
                "Wie verzorgt het gebit van {who}?", "Wie verzorgt het gebit van {who} en dat van {other}?",
            ),
            _Fact(
                "number", "Op het werk zit {who} in kamer {value}.", "{who} heeft een nieuw bureau, in kamer {value}.",
                "Achter welke deur op kantoor vind ik {who}?",
                "Achter welke deuren op kantoor vind ik {who} en {other}?",
            ),
            _Fact(
                "person", "{who} heeft een hond met de naam {value}.", "{who} heeft nu een andere hond, {value}.",
                "Wat roept {who} als het huisdier wegloopt?",
                "Wat roepen {who} en {other} als hun huisdieren weglopen?",
            ),
            _Fact(
                "town", "{who} is aangenomen door een bedrijf in {value}.",
                "{who} is van baan veranderd en werkt in {value}.",
                "Naar welke stad reist {who} elke ochtend?", "Naar welke steden reizen {who} en {other} elke ochtend?",
            ),
        ),
        "Vandaag was {who} in het museum in {value}.", "Op welke dag heeft {who} de tentoonstelling in {value} gezien?",
        (
            "Het heeft de hele ochtend geregend.", "Ik heb slecht geslapen en te veel koffie gedronken.",
            "De printer heeft weer geen papier.", "We hebben de keukendeur groen geverfd.",
            "Er zat te weinig zout in de soep.", "Mijn fiets heeft een lekke band.",
            "De vergadering duurde een uur langer.", "De tomaten op het balkon zijn rijp.",
            "Ik heb die lange roman eindelijk uit.", "De trein was te laat, zoals altijd.",
            "De nieuwe film was nogal saai.", "Morgen moet ik postzegels kopen.",
        ),
        "Genoteerd.", "Dat heb je me niet verteld.", "en",
    ),
}  # fmt: skip

# Syllables of names that no language has, so that a name stands for one thing only, and no model knows it.
_BEGINNINGS: Final = ("Bra", "Dor", "Fel", "Gru", "Hal", "Jor", "Kel", "Lom", "Mir", "Nar", "Pel", "Ros", "Sel", "Tor")
_MIDDLES: Final = ("ba", "de", "fi", "ga", "lo", "mu", "na", "ri", "so", "ta", "ve", "zu")
_ENDS: Final[Mapping[str, Sequence[str]]] = {
    "town": ("burg", "dam", "holm", "mond", "ville", "stad"),
    "person": ("lan", "mer", "nis", "rek", "sa", "vin"),
    "who": ("ka", "ne", "ro", "tis"),
}
_LEAST_PEOPLE: Final = 3
_FACTS_OF_ONE: Final = 4
_SHORT_NAMES: Final = 300
_FIRST_DAY: Final = date(2025, 1, 6)
_ABILITIES: Final[Sequence[Ability]] = get_args(Ability)


def random_dialogue(
    seed: int = 0, *, language: Language = "en", sessions: int = 5, turns: int = 20, questions: int = 20
) -> Dialogue:
    """Make a dialogue of facts, small talk and, in a last session, questions; the same for the same arguments.

    Questions ask for the five abilities in turn. Each value of a fact stands for that fact only, and questions use
    other words than the sentences in which the facts were said.

    Args:
        seed: What it is made from.
        language: Its language: `"en"`, `"de"`, `"fr"` or `"nl"`.
        sessions: How many sessions there are before the one with the questions, a week apart.
        turns: How many turns each of them has at least; sentences of facts that need more make more.
        questions: How many questions are asked.

    Raises:
        ConfigError: An argument is wrong; code `"dialogue"`.
    """
    if language not in _WORDS:
        raise ConfigError(
            f"language={language!r} is not a valid language; expected one of {', '.join(_WORDS)}",
            code="dialogue",
            hint='language="en"',
        )
    for name, given, least in (("sessions", sessions, 2), ("turns", turns, 1), ("questions", questions, 1)):
        if given < least:
            raise ConfigError(
                f"{name}={given!r} is not valid; expected {least} or more", code="dialogue", hint=f"{name}={least}"
            )
    source = random.Random(f"{seed} {language}")  # noqa: S311
    return _Maker(source, _WORDS[language], sessions, questions).made(seed, language, turns, questions)


class _Maker:
    """Makes one dialogue."""

    def __init__(self, source: random.Random, words: _Words, sessions: int, questions: int) -> None:
        self._source, self._words, self._sessions = source, words, sessions
        self._said: list[list[str]] = [[] for _ in range(sessions)]
        self._taken: set[str] = set()
        people = [self._new("who") for _ in range(_LEAST_PEOPLE + questions // _FACTS_OF_ONE)]
        # Several things are said of each person, each once.
        self._free = [(who, fact) for who in people for fact in words.facts]
        source.shuffle(self._free)
        self._people = people

    def made(self, seed: int, language: Language, turns: int, questions: int) -> Dialogue:
        """The dialogue."""
        asked = [self._question(_ABILITIES[place % len(_ABILITIES)]) for place in range(questions)]
        parts = [*self._told(turns)]
        self._source.shuffle(asked)
        ask = [DialogueTurn(each.text, each.answer, each) for each in asked]
        return Dialogue(seed, language, (*parts, DialogueSession("questions", _day(self._sessions), tuple(ask))))

    def _told(self, turns: int) -> Iterator[DialogueSession]:
        for place, facts in enumerate(self._said):
            talk = [self._source.choice(self._words.small_talk) for _ in range(turns - len(facts))]
            said = [*facts, *talk]
            self._source.shuffle(said)
            made = tuple(DialogueTurn(each, self._words.noted) for each in said)
            yield DialogueSession(f"week {place + 1}", _day(place), made)

    def _question(self, ability: Ability) -> DialogueQuestion:
        words = self._words
        first, second = sorted(self._source.sample(range(self._sessions), 2))
        if ability == "time":
            who, value = self._source.choice(self._people), self._new("town")
            text = _filled(words.event, who=who, value=value)
            self._said[first].append(text)
            return DialogueQuestion(
                ability, _filled(words.when, who=who, value=value), _day(first).isoformat(), (text,)
            )
        who, fact = self._free.pop()
        asked = _filled(fact.asked, who=who)
        if ability == "abstention":
            return DialogueQuestion(ability, asked, words.unknown)
        value = self._new(fact.kind)
        self._said[first].append(_filled(fact.said, who=who, value=value))
        if ability == "extraction":
            return DialogueQuestion(ability, asked, value, (value,))
        later = self._new(fact.kind)
        if ability == "update":
            self._said[second].append(_filled(fact.changed, who=who, value=later))
            return DialogueQuestion(ability, asked, later, (later,), (value,))
        place = next((at for at, (_, of) in enumerate(self._free) if of is fact), None)
        other = self._new("who") if place is None else self._free.pop(place)[0]
        self._said[second].append(_filled(fact.said, who=other, value=later))
        asked = _filled(fact.asked_of_two, who=who, other=other)
        return DialogueQuestion(ability, asked, f"{value} {words.both} {later}", (value, later))

    def _new(self, kind: str) -> str:
        """A name or a number that stands for nothing else in the dialogue."""
        while True:
            made = self._any(kind)
            if made not in self._taken:
                self._taken.add(made)
                return made

    def _any(self, kind: str) -> str:
        if kind == "number":
            return str(self._source.randrange(1_000, 1_000_000))
        # The more names there are, the longer they get.
        middles = 1 + len(self._taken) // _SHORT_NAMES
        parts = (_BEGINNINGS, *[_MIDDLES] * middles, _ENDS[kind])
        return "".join(self._source.choice(each) for each in parts)


def _filled(sentence: str, **words: str) -> str:
    """A sentence with words in its places."""
    for name, word in words.items():
        sentence = sentence.replace(f"{{{name}}}", word)
    return sentence


def _day(place: int) -> date:
    return _FIRST_DAY + timedelta(weeks=place)
