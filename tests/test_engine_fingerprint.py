"""What changes a step's fingerprint, and what a run that goes on with other code says."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from noetic_py import Harness, InMemoryBackend, Step, call_model, errors, step
from noetic_py.engine.fingerprint import fingerprint

AnyStep = Step[Any, Any, Any, Any]

GOLDEN = "622a6a5079da9d7d"
"""The fingerprint of `FLOW`, in every Python and every release: another one would end all runs that are begun."""

FLOW = '''
from noetic_py import Retry, StateBag, Context, Memory, branch, loop, parallel, sequence, spawn, step, until


@step
async def first(x: int) -> int:
    """Add one."""
    return x + 1


@step
async def second(x: int) -> int:
    # Twice as much.
    name = f"{x!r:>{4}} {x=}" "and" 'more'
    if len(name) > 1000:
        return 0
    return x * 2


@step
async def third(x: int, ctx: Context[Memory, StateBag]) -> int:
    ctx.state["n"] = await first(x, ctx)
    return x - 3


def route(x: int) -> bool:
    return x > 10


def merge(results: list[int]) -> int:
    return sum(results)


chosen = branch(route, {True: first, False: second}, id="chosen")
both = parallel([first, second], merge=merge, id="both")
again = loop(second, until=until.max_rounds(2), prepare_next=lambda output, verdict, ctx: output + 1, id="again")
child = spawn(third, state="deepcopy", id="child")
flow = sequence(first, third, chosen, both, again, child, id="flow")
'''

names = count()


def load(tmp_path: Path, code: str) -> ModuleType:
    """The program as a module of its own, from a file, so that its source is found."""
    path = tmp_path / f"program{next(names)}.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def changed(old: str, new: str) -> str:
    assert FLOW.count(old) == 1, old
    return FLOW.replace(old, new)


# -- what makes no difference


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    """Add one."""\n', ""),
        ('"""Add one."""', '"""Say\n\n    something else."""'),
        ("    # Twice as much.\n", "    # twice\n\n\n"),
        ("return x * 2", "return (x  *\n        2)  # done"),
        ("\"and\" 'more'", '"andmore"'),
        ("return x > 10", "return (x > 10)"),
        ("return sum(results)", "return sum(\n        results,\n    )"),
        ("lambda output, verdict, ctx: output + 1, id", "lambda output, verdict, ctx: (\n    output + 1\n), id"),
        ("sequence(first, third, ", "sequence(\n    first,\n    third,\n    "),
    ],
)
def test_layout_comments_and_docstrings_make_no_difference(tmp_path: Path, old: str, new: str) -> None:
    one, other = load(tmp_path, FLOW), load(tmp_path, changed(old, new))
    for name in ("first", "second", "third", "chosen", "both", "again", "child", "flow"):
        assert fingerprint(getattr(one, name)) == fingerprint(getattr(other, name)), name


def test_the_place_in_the_file_makes_no_difference(tmp_path: Path) -> None:
    body = FLOW.replace("\n", "\n    ")
    moved = load(tmp_path, f"def make():\n    {body}\n    return flow\n")
    assert fingerprint(moved.make()) == fingerprint(load(tmp_path, FLOW).flow)


def test_a_text_that_begins_at_the_margin_is_no_hindrance(tmp_path: Path) -> None:
    code = """
from noetic_py import step

def make():
    @step
    async def f(x: str) -> str:
        return x + '''
{}
'''
    return f
"""
    one, same, other = (load(tmp_path, code.format(text)).make() for text in ("a", "a", "b"))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


# -- what makes one

MUTATIONS = {
    "an operator": ("return x + 1", "return x - 1"),
    "a number": ("return x * 2", "return x * 3"),
    "a kind of number": ("return x * 2", "return x * 2.0"),
    "a text": ("\"and\" 'more'", "\"and\" 'less'"),
    "a name": ("    return x > 10", "    y = x\n    return y > 10"),
    "a condition": ("len(name) > 1000", "len(name) >= 1000"),
    "a format": ("{x!r:>{4}}", "{x!r:<{4}}"),
    "an annotation": ("async def first(x: int) -> int:", "async def first(x: int) -> float:"),
    "a statement more": ("    return x - 3", "    ctx.state['m'] = 1\n    return x - 3"),
    "two statements swapped": (
        "    return sum(results)",
        "    results.sort()\n    return sum(results)",
    ),
    "what a body calls": ("await first(x, ctx)", "await second(x, ctx)"),
    "an option": ("@step\nasync def third", "@step(timeout=30)\nasync def third"),
    "tries": ("@step\nasync def third", "@step(retry=2)\nasync def third"),
    "replay": ("@step\nasync def third", '@step(replay="keyed")\nasync def third'),
    "a version": ("@step\nasync def third", '@step(version="2")\nasync def third'),
    "two children swapped": ("parallel([first, second]", "parallel([second, first]"),
    "a child less": ("parallel([first, second]", "parallel([first]"),
    "a case": ("{True: first, False: second}", "{True: second, False: second}"),
    "a key": ("{True: first, False: second}", "{1: first, 0: second}"),
    "a lambda": ("ctx: output + 1", "ctx: output + 2"),
    "what a spawn shares": ('state="deepcopy"', 'state="new"'),
    "a step renamed": ('id="again")', 'id="anew")'),
}


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_change_of_code_makes_a_difference(tmp_path: Path, kind: str) -> None:
    one, other = load(tmp_path, FLOW), load(tmp_path, changed(*MUTATIONS[kind]))
    assert fingerprint(one.flow) != fingerprint(other.flow)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", MUTATIONS)
async def test_a_run_does_not_go_on_with_other_code(tmp_path: Path, kind: str) -> None:
    """From right before the end of the flow, so that every step of the flow was recorded with the code it had."""
    backend = InMemoryBackend()
    harness = Harness(plugins=(), checkpoints=backend)
    await harness.run(load(tmp_path, FLOW).flow, 1, run_id="whole")
    run_id = await harness.fork("whole", at=len(await harness.runs.journal("whole")) - 2)
    same = load(tmp_path, FLOW).flow
    other = load(tmp_path, changed(*MUTATIONS[kind])).flow
    with pytest.raises(errors.ReplayDiverged) as caught:
        await Harness(plugins=(), checkpoints=backend).resume(run_id, other)
    assert caught.value.path[0] == "flow"
    assert len(caught.value.path) >= 2, "the path is that of the step that has changed"
    # What was refused was not spoilt, and the code that the run was started with goes on with it.
    result = await Harness(plugins=(), checkpoints=backend).resume(run_id, same)
    assert result.status == "completed"


def test_a_changed_child_changes_its_parents_whatever_their_own_version(tmp_path: Path) -> None:
    code = FLOW + "\npinned = flow.with_options(version='1')\n"
    one = load(tmp_path, code)
    other = load(tmp_path, code.replace("return x + 1", "return x + 2"))
    assert fingerprint(one.second) == fingerprint(other.second)
    assert fingerprint(one.both) != fingerprint(other.both)
    assert fingerprint(one.pinned) != fingerprint(other.pinned)


def test_a_version_stands_for_the_source(tmp_path: Path) -> None:
    code = "from noetic_py import step\n\n@step(version='{}')\nasync def f(x: int) -> int:\n    return x + {}\n"
    one, same, other = (load(tmp_path, code.format(*each)).f for each in (("1", 1), ("1", 2), ("2", 1)))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)


def test_a_function_without_a_source_needs_a_version() -> None:
    found: dict[str, Any] = {}
    exec("async def f(x: int) -> int:\n    return x", found)
    with pytest.raises(errors.ConfigError) as caught:
        fingerprint(step(found["f"]))
    assert caught.value.code == "no-source"
    assert caught.value.hint is not None
    assert "version=" in caught.value.hint
    assert fingerprint(step(version="1")(found["f"]))


def test_the_source_of_something_else_is_not_taken_for_its_own() -> None:
    found: dict[str, Any] = {}
    exec(compile("async def f(x: int) -> int:\n    return x", "<noetic>", "exec"), found)
    other = "print('another program')\n"
    linecache.cache["<noetic>"] = (len(other), None, [other], "<noetic>")
    try:
        with pytest.raises(errors.ConfigError, match="has no source"):
            fingerprint(step(found["f"]))
    finally:
        del linecache.cache["<noetic>"]


def test_lambdas_on_one_line_are_told_apart(tmp_path: Path) -> None:
    code = """
from noetic_py import branch, step

@step
async def a(x: int) -> int:
    return x

pair = [branch(lambda x: x > 1, {True: a, False: a}, id="b"), branch(lambda x: x > 2, {True: a, False: a}, id="b")]
same = branch(lambda x: x > 2, {True: a, False: a}, id="b")
"""
    module = load(tmp_path, code)
    assert fingerprint(module.pair[0]) != fingerprint(module.pair[1])
    assert fingerprint(module.same) == fingerprint(module.pair[1])


def test_an_object_in_the_place_of_a_function_counts_with_its_class_and_its_fields(tmp_path: Path) -> None:
    code = """
from dataclasses import dataclass
from functools import partial
from noetic_py import branch, step

@dataclass(frozen=True)
class Over:
    limit: int

    def __call__(self, x: int) -> bool:
        return x > self.limit

def over(limit: int, x: int) -> bool:
    return x > limit

@step
async def a(x: int) -> int:
    return x

def flow(route):
    return branch(route, {True: a, False: a}, id="b")
"""
    module, other = load(tmp_path, code), load(tmp_path, code.replace("x > ", "x >= "))
    makers: list[Callable[[Any, int], Any]] = [
        lambda there, limit: there.Over(limit),
        lambda there, limit: there.partial(there.over, limit),
    ]
    for make in makers:
        assert fingerprint(module.flow(make(module, 1))) == fingerprint(module.flow(make(module, 1)))
        assert fingerprint(module.flow(make(module, 1))) != fingerprint(module.flow(make(module, 2)))
        assert fingerprint(module.flow(make(module, 1))) != fingerprint(other.flow(make(other, 1)))


def test_a_tool_that_is_a_step_is_that_step(tmp_path: Path) -> None:
    code = """
from noetic_py import call_model, step, step_tool

@step
async def double(x: int) -> int:
    return 2 * x

flow = call_model(tools=[step_tool(double, name="double", description="Twice as much.")])
"""
    found = fingerprint(load(tmp_path, code).flow)
    assert found == fingerprint(load(tmp_path, code.replace("2 * x", "2 * x  # twice")).flow)
    assert found != fingerprint(load(tmp_path, code.replace("2 * x", "3 * x")).flow)
    assert found != fingerprint(load(tmp_path, code.replace("Twice", "Two times")).flow)


# -- other Pythons


def test_every_python_takes_the_same_fingerprint(tmp_path: Path) -> None:
    """A run that was begun with one Python goes on with another: all of them, and all releases, find this."""
    assert fingerprint(load(tmp_path, FLOW).flow) == GOLDEN


@pytest.mark.parametrize(("one", "other"), [(list[str], list[int]), (Literal["a"], Literal["b"])])
def test_a_generic_output_type_counts(one: Any, other: Any) -> None:
    assert fingerprint(call_model(output=one)) == fingerprint(call_model(output=one))
    assert fingerprint(call_model(output=one)) != fingerprint(call_model(output=other))
