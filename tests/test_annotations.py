"""Annotations that name what only type checkers import: each is left out alone, and spoils no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from types import FunctionType, GenericAlias, ModuleType
from typing import Any

import pytest

from noetic_py import Harness, InMemoryBackend, errors
from noetic_py.cli.inputs import read_input
from noetic_py.core.types import annotations_of
from noetic_py.engine.fingerprint import declared_input, declared_output

MODULE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from noetic_py import branch, loop, sequence, step, step_tool

if TYPE_CHECKING:
    from noetic_py import Context
    from nowhere import Checked

@dataclass
class Trip:
    port: str
    days: int

tried = []

@step
async def plan(port: str, ctx: Context) -> Trip:
    return Trip(port, 3)

@step
async def book(trip: Trip, ctx: Context) -> Trip:
    tried.append(trip)
    if len(tried) == 1:
        raise OSError("the line is busy")
    return trip

flow = sequence(plan, book)

def way(trip: Trip, ctx: Context) -> Literal["sea", "land"]:
    return "sea"
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "checked_only.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield import_module("checked_only")
    del sys.modules["checked_only"]


@pytest.mark.anyio
async def test_a_run_is_stored_and_resumed(module: ModuleType) -> None:
    async with InMemoryBackend() as store:
        with pytest.raises(errors.StepFailed, match="the line is busy"):
            await Harness(checkpoints=store, plugins=[]).run(module.flow, "Brest", run_id="r")
        result: Any = await Harness(checkpoints=store, plugins=[]).resume("r", module.flow)
    assert result.value == module.Trip("Brest", 3)
    assert module.tried == [module.Trip("Brest", 3)] * 2


def test_the_keys_of_a_branch(module: ModuleType) -> None:
    source = 'branch(way, {"sea": plan})'
    with pytest.raises(errors.ConfigError, match="branch has no case for 'land'"):
        eval(source, module.__dict__)  # the text above


def test_the_input_of_a_command_and_of_a_tool(module: ModuleType) -> None:
    assert read_input(module.book, '{"port": "Brest", "days": 3}') == module.Trip("Brest", 3)
    tool = module.step_tool(module.book, name="book", description="Books a trip.")
    assert '"days"' in json.dumps(tool.parameters)


def test_an_input_that_only_checkers_know(module: ModuleType) -> None:
    exec("@step\nasync def late(x: Checked, ctx: Context) -> Trip: ...", module.__dict__)  # as above
    with pytest.raises(errors.ConfigError, match="'Checked' cannot be evaluated"):
        module.step_tool(module.late, name="late", description="Does it later.")


TYPES = ["int", "list[Trip]", "Missing", "Trip | Missing", "1 +"]


def test_what_can_be_evaluated_is_known_whatever_else_cannot(module: ModuleType) -> None:
    """Every function of two parameters with these annotations."""
    known = {"int": int, "list[Trip]": GenericAlias(list, module.Trip)}
    for first, second, given in product(TYPES, repeat=3):
        names = {"x": first, "y": second, "return": given}
        made = FunctionType(module.way.__code__, vars(module))
        made.__annotations__ = names
        assert annotations_of(made) == {name: known[text] for name, text in names.items() if text in known}


def test_a_name_that_is_defined_later_is_found_then(module: ModuleType) -> None:
    exec("@step\nasync def early(x: Later, ctx: Context) -> int: ...", module.__dict__)  # as above
    assert (declared_input(module.early), declared_output(module.early)) == (object, int)
    exec("class Later: ...", module.__dict__)  # as above
    assert (declared_input(module.early), declared_output(module.early)) == (module.Later, int)
