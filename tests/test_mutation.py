"""The tool that changes the library to see whether a test notices; `python -m tests.mutation` runs it."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutation.__main__ import ROOT, main, part, source
from tests.mutation.mutants import Mutated, mutants
from tests.mutation.targets import PARTS, TARGETS

PROGRAM = '''
"""No docstring, annotation, default or text of a message is changed."""
LIMIT = 3

def counted(words: list[str], most: int = 7) -> int | None:
    """Count words."""
    total = 0
    for word in words:
        if word == "the" or not word:
            continue
        total += 1
    if total > most:
        raise ValueError(f"{total + 1} words")
    return total
'''


@pytest.fixture
def mutated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Mutated, ModuleType]:
    path = tmp_path / "counting_words.py"
    path.write_text(PROGRAM, encoding="utf-8")
    tree = ast.parse(PROGRAM)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    made = Mutated("counting_words", path, tree, mutants(tree))
    made.install()
    module = importlib.import_module("counting_words")
    del sys.modules["counting_words"]
    return made, module


def test_what_is_changed() -> None:
    assert [f"{mutant.line} {mutant.change}" for mutant in mutants(ast.parse(PROGRAM))] == [
        "7 to 1",
        "9 if always",
        "9 if never",
        "9 Or to And",
        "9 Eq to NotEq",
        "9 without not",
        "10 to break",
        "11 left out",
        "11 to 2",
        "12 if always",
        "12 if never",
        "12 Gt to GtE",
        "12 Gt to LtE",
        "13 left out",
        "14 return None",
    ]


def answer(module: ModuleType, most: int) -> object:
    try:
        return module.counted(["the", "tide", "", "is", "high"], most)
    except ValueError as error:
        return str(error)


def test_each_change_makes_a_difference_while_it_is_on(mutated: tuple[Mutated, ModuleType]) -> None:
    made, module = mutated

    def answers(number: int) -> list[object]:
        made.switch.on = number
        return [answer(module, most) for most in (2, 3, 7)]

    assert answers(-1) == ["4 words", 3, 3]
    assert made.switch.reached == {*range(15)}
    assert [number for number in range(15) if answers(number) == ["4 words", 3, 3]] == []


def test_a_module_that_is_imported_already_cannot_be_changed(
    mutated: tuple[Mutated, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, module = mutated
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(RuntimeError, match="imported already"):
        made.install()


@pytest.mark.parametrize("target", TARGETS)
def test_modules_and_tests_of_a_target_exist(target: str) -> None:
    module, tests = TARGETS[target]
    assert source(module).is_file()
    assert [name for name in tests if not (ROOT / name.partition("::")[0]).exists()] == []


@pytest.mark.parametrize("target", PARTS)
def test_a_part_of_a_module_is_not_measured_with_the_rest(target: str) -> None:
    module, names = TARGETS[target][0], PARTS[target]
    functions = {mutant.function for mutant in mutants(ast.parse(source(module).read_text(encoding="utf-8")))}
    parts = {function: part(module, function) for function in functions}
    assert {*parts.values()} == {target, None}
    assert {function.partition(".")[0] for function in parts if parts[function]} == {*names}


def test_an_unknown_target_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["budget", "bugdet"])
    assert "bugdet: not a target; expected one of budget, log" in capsys.readouterr().err
