"""Made-up dialogues: the same for the same seed, and their evidence is said, once, before it is asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import attrs
import pytest

from noetic_py.errors import ConfigError
from noetic_py.testing import Ability, Dialogue, Language, random_dialogue

LANGUAGES: tuple[Language, ...] = get_args(Language)


def said(dialogue: Dialogue) -> list[str]:
    return [turn.said for part in dialogue.sessions[:-1] for turn in part.turns]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("seed", range(5))
def test_the_evidence_of_each_question_is_said_once_and_before(language: Language, seed: int) -> None:
    dialogue = random_dialogue(seed, language=language, questions=50)
    sentences = said(dialogue)
    assert {each.ability for each in dialogue.questions} == set(get_args(Ability))
    for question in dialogue.questions:
        for text in (*question.needed, *question.outdated):
            assert len([each for each in sentences if text in each]) == 1, (question, text)
            assert text not in question.text
        if question.ability == "abstention":
            assert not question.needed
        if question.ability == "update":
            [new], [old] = question.needed, question.outdated
            order = [place for place, each in enumerate(sentences) if old in each or new in each]
            assert old in sentences[order[0]]
        if question.ability == "sessions":
            assert len(question.needed) == 2


def test_the_two_facts_of_a_question_are_said_in_two_sessions() -> None:
    dialogue = random_dialogue(3, questions=50)
    for question in dialogue.questions:
        if question.ability in ("sessions", "update"):
            parts = [
                place
                for place, part in enumerate(dialogue.sessions[:-1])
                for text in (*question.needed, *question.outdated)
                if any(text in turn.said for turn in part.turns)
            ]
            assert len(parts) == len(set(parts)) == 2


def test_an_event_is_asked_for_by_its_day() -> None:
    dialogue = random_dialogue(4, questions=50)
    for question in dialogue.questions:
        if question.ability == "time":
            [part] = [
                part for part in dialogue.sessions[:-1] if any(question.needed[0] == turn.said for turn in part.turns)
            ]
            assert question.answer == part.day.isoformat()


def test_seeds_languages_and_sizes_decide() -> None:
    one = random_dialogue(1, sessions=3, turns=8, questions=10)
    assert one == random_dialogue(1, sessions=3, turns=8, questions=10)
    assert one != random_dialogue(2, sessions=3, turns=8, questions=10)
    assert len({said(random_dialogue(1, language=each))[0] for each in LANGUAGES}) == 4
    assert [len(part.turns) for part in one.sessions] == [8, 8, 8, 10]
    assert Counter(each.ability for each in one.questions) == dict.fromkeys(get_args(Ability), 2)
    assert attrs.asdict(one)["sessions"][0]["turns"][0]["said"] == one.sessions[0].turns[0].said
    assert len(random_dialogue(1, questions=1_000).questions) == 1_000


@pytest.mark.parametrize("wrong", [{"language": "xx"}, {"sessions": 1}, {"turns": 0}, {"questions": 0}])
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"not a valid|is not valid") as caught:
        random_dialogue(**wrong)
    assert caught.value.code == "dialogue"
