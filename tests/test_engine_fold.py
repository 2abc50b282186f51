"""What a journal means: records are read as a tree of steps, and the tree as a conversation and as what has begun."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from noetic_py import FunctionCallOutput, Item, Message, TokenUsage
from noetic_py.core.control import Control
from noetic_py.engine.journaling.fold import (
    BEGUN,
    Begun,
    below,
    cause_of,
    inside,
    items_below,
    last_step,
    last_verdict,
    lasting,
    left_by,
    tree,
    visible,
)
from noetic_py.engine.kind import BodySegment, Node
from noetic_py.engine.kinds import KINDS
from noetic_py.errors import BudgetExceeded, NoeticError, ParallelFailed, ReplayDiverged, StepFailed, StepOutcomeUnknown
from noetic_py.journal.patches import Change
from noetic_py.journal.records import (
    Answered,
    AttemptFailed,
    ChildReplayed,
    Decision,
    Intent,
    JournalRecord,
    Pending,
    ResultDiscarded,
    RunEnded,
    Segment,
    StepFinished,
    StepOpened,
    StepStopped,
)
from noetic_py.journal.values import Path

OVER = RunEnded((), "failed", None, None)


def at(path: str) -> Path:
    return tuple(path.split("/")) if path else ()


def said(*texts: str) -> tuple[Message, ...]:
    return tuple(Message.assistant(text) for text in texts)


def opened(path: str, kind: str = "code", attempt: int = 1, fence: int = 1) -> StepOpened:
    return StepOpened(at(path), kind, attempt, fence)


def sets(*keys: str) -> tuple[Change, ...]:
    return tuple(Change("set", key, None, 1) for key in keys)


def wrote(path: str, *texts: str, before: str | None = None, delta: tuple[Change, ...] = ()) -> Segment:
    return Segment(at(path), 1, said(*texts), delta, before=before)


def done(path: str, *texts: str, kind: str = "code", **fields: Any) -> StepFinished:
    made = StepFinished(at(path), kind, None, None)
    made.items = said(*texts)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def failed(path: str, kind: str = "code", *, cause: str = "", attempt: int = 1, final: bool = True, **of: Any) -> Any:
    """An attempt that failed, of a cause at a path or of an error."""
    error: NoeticError = of.pop("error", None) or broken(cause or path)
    return AttemptFailed(at(path), kind, attempt, final, error, None, None, None, **of)


def broken(path: str) -> StepFailed:
    return StepFailed(path=at(path), error_type="ValueError", error_message="broken")


def stopped(
    path: str, *texts: str, kind: str = "code", control: Control | None = None, attempt: int = 1
) -> StepStopped:
    return StepStopped(at(path), kind, attempt, said(*texts), (), None, None, control)


def discarded(path: str) -> ResultDiscarded:
    return ResultDiscarded(at(path))


def asked(path: str, key: str) -> Pending:
    return Pending(at(path), "question", key, "digest")


def out_of(dimension: str, path: str) -> BudgetExceeded:
    return BudgetExceeded(dimension, limit=1, requested=1, settled=1, path=at(path))


def outline(node: Node) -> list[str]:
    """A node and what is below it: a line for each step and for each stretch of own work, in the order of the layout.

    A step without a place stands behind those that have one, in brackets.
    """
    marks = [
        *([f"done {node.position}"] if node.finished is not None else []),
        *(f"failed {name} {position}" for name, (_, position) in node.failed.items()),
        *(f"tried {name} {tries}" for name, tries in node.tries.items()),
        *(f"begun {name} {held}" for name, held in node.begun.items()),
        *(f"once {name} {digest}" for name, digest in node.intents.items()),
        *(f"decided {key} {value}" for key, value in node.decisions.items()),
        *([f"asked {node.asked[0].key} {node.asked[1]}"] if node.asked else []),
        *([f"answered {node.answer.key}"] if node.answer else []),
        *([f"takes {node.takes}"] if node.takes else []),
        *([] if node.cause is None else [f"cause {'/'.join(node.cause)}"]),
        *(["shown"] if node.shown else []),
        *(["kept"] if node.kept is not None else []),
    ]
    lines = [", ".join([f"{node.kind.name} {'/'.join(node.path) or 'run'}".strip(), *marks])]
    for entry in node.layout:
        if isinstance(entry, BodySegment):
            lines.append(f"  {' '.join(texts(entry.items))!r} {entry.position}")
        else:
            lines += [f"  {line}" for line in outline(entry)]
    for child in node.children.values():
        assert child.placed == (child in node.layout)
        if not child.placed:
            lines += [f"  ({line})" for line in outline(child)]
    return lines


def texts(items: Sequence[Any]) -> list[str]:
    return [str(item.output) if isinstance(item, FunctionCallOutput) else item.text for item in items]


def shown(segments: Iterable[BodySegment]) -> str:
    """All items of segments, each change of the state with a plus."""
    parts = [[*texts(segment.items), *(f"+{change.key}" for change in segment.delta)] for segment in segments]
    return " ".join(part for each in parts for part in each)


# ------------------------------------------------------------------------------------------------------- as a tree

TREES: dict[str, tuple[list[JournalRecord], list[str]]] = {
    "own work stands between the children": (
        [opened("f"), wrote("f", "1"), done("f/a", "2"), wrote("f", "3"), done("f/b"), done("f", "5", takes=(("m",),))],
        [
            "run",
            "  code f, done 5, takes (('m',),)",
            "    '1' 1",
            "    code f/a, done 2",
            "      '2' 2",
            "    '3' 3",
            "    code f/b, done 4",
            "      '' 4",
            "    '5' 5",
        ],
    ),
    "own work that is written late stands before the child that it belongs before": (
        [opened("f"), opened("f/a"), done("f/b"), wrote("f", "late", before="a"), wrote("f", "last", before="c")],
        ["run", "  code f", "    'late' 3", "    code f/a", "    code f/b, done 2", "      '' 2", "    'last' 4"],
    ),
    "a child that no attempt has named has no kind": (
        [done("f/a/b")],
        ["run", "  f", "    f/a", "      code f/a/b, done 0", "        '' 0"],
    ),
    "an attempt that failed is discarded, and what was begun in it is known": (
        [
            opened("f", "sequence"),
            opened("f/a"),
            wrote("f/a", "1"),
            Intent(at("f/a"), "once"),
            failed("f/a", final=False, held=True),
            failed("f/b", attempt=2, final=False),
            done("f/a", "2", attempt=2),
        ],
        ["run", "  sequence f, tried a 1, tried b 2, begun a True", "    code f/a, done 6", "      '2' 6"],
    ),
    "an attempt of the flow itself fails": (
        [opened("f"), wrote("f", "1"), failed("f", final=False)],
        ["run, tried f 1, begun f False"],
    ),
    "a failure that was handled stays": (
        [opened("f"), done("f/a"), Intent(at("f/b"), "d"), failed("f/b", cause="f/b/c"), wrote("f", "1"), done("f")],
        [
            "run",
            "  code f, done 5, failed b 3",
            "    code f/a, done 1",
            "      '' 1",
            "    '1' 4",
            "    '' 5",
            "    (code f/b, cause f/b/c)",
        ],
    ),
    "a failure whose outcome is unknown leaves the intent": (
        [opened("f"), Intent(at("f/a"), "d"), failed("f/a", error=StepOutcomeUnknown(path=at("f/a/b")))],
        ["run", "  code f, failed a 2, once a d", "    (code f/a, cause f/a/b)"],
    ),
    "a later owner starts a body again": (
        [
            opened("f"),
            wrote("f", "1"),
            done("f/a", "2"),
            done("f/b", "3"),
            opened("f", fence=2),
            ChildReplayed(at("f/b")),
            wrote("f", "4"),
            opened("f", fence=2),
        ],
        [
            "run",
            "  code f",
            "    code f/b, done 3",
            "      '3' 3",
            "    '4' 6",
            "    (code f/a, done 2)",
            "    (  '2' 2)",
        ],
    ),
    "a later owner starts a composite again": (
        [opened("f", "sequence"), wrote("f", "1"), done("f/a", "2"), opened("f", "sequence", fence=2), done("f/b")],
        ["run", "  sequence f", "    code f/a, done 2", "      '2' 2", "    code f/b, done 4", "      '' 4"],
    ),
    "what is discarded goes with its failure": (
        [
            opened("f"),
            opened("f/a"),
            done("f/a/x"),
            failed("f/a"),
            done("f/b"),
            discarded("f/a"),
            discarded("f/b"),
        ],
        ["run", "  code f"],
    ),
    "what is discarded far below": (
        [
            opened("f"),
            opened("f/a"),
            done("f/a/x"),
            failed("f/a/y"),
            discarded("f/a/x"),
            discarded("f/a/y"),
        ],
        ["run", "  code f", "    code f/a"],
    ),
    "decisions": (
        [opened("f", "branch"), Decision(at("f"), "route", "x"), Decision(at("f"), "route", "y")],
        ["run", "  branch f, decided route y"],
    ),
    "a wrap-up shows what came before it": (
        [
            opened("f"),
            wrote("f", "1"),
            opened("f/a"),
            wrote("f/a", "2"),
            failed("f/a/b"),
            failed("f/a", cause="f/a/b"),
            Decision(at(""), "wrap_up", at("f/a/b")),
            done("wrap_up", "3"),
        ],
        [
            "run, decided wrap_up ('f', 'a', 'b')",
            "  code f, failed a 5, shown",
            "    '1' 1",
            "    code f/a, failed b 4, cause f/a/b, shown",
            "      '2' 3",
            "      (code f/a/b, cause f/a/b)",
            "  code wrap_up, done 7",
            "    '3' 7",
        ],
    ),
    "what waits has not begun its work": (
        [opened("f"), Intent(at("f/a"), "d"), asked("f/a", "1"), Answered(at("f/a"), "1", "approved")],
        ["run", "  code f", "    (f/a, asked 1 2, answered 1)"],
    ),
    "an answer to another question is none": (
        [opened("f"), asked("f/a", "1"), Answered(at("f/a"), "2", "answered"), Answered(at("f/b"), "1", "answered")],
        ["run", "  code f", "    (f/a, asked 1 1)", "    (f/b)"],
    ),
    "a later question takes the place of an earlier one": (
        [opened("f"), asked("f/a", "1"), Answered(at("f/a"), "1", "answered"), asked("f/a", "2")],
        ["run", "  code f", "    (f/a, asked 2 3)"],
    ),
    "what was stopped and wrote nothing leaves nothing": ([opened("f"), stopped("f/a")], ["run", "  code f"]),
    "what has asked for the end itself keeps its work": (
        [opened("f"), stopped("f/a", "1", control=Control("complete")), stopped("f/b", control=Control("abort"))],
        ["run", "  code f", "    code f/a", "      '1' 1", "    code f/b", "      '' 2"],
    ),
    "what was stopped by others is shown": (
        [opened("f"), stopped("f/a", "1")],
        ["run", "  code f", "    code f/a, kept", "      '1' 1"],
    ),
    "until it has run again": (
        [opened("f"), stopped("f/a", "1"), done("f/a", "2"), stopped("f/b", "3"), failed("f/b")],
        ["run", "  code f, failed b 4", "    code f/a, done 2", "      '2' 2", "    code f/b, cause f/b"],
    ),
    "or its parent is begun again": (
        [opened("f"), stopped("f/a", "1"), opened("f", fence=2), done("f/b")],
        ["run", "  code f", "    code f/b, done 3", "      '' 3", "    (code f/a)"],
    ),
    "work beside the flow has no place": (
        [
            opened("f"),
            opened("f/side", "detached"),
            wrote("f/side", "1"),
            opened("f/side/a"),
            done("f/side/a/b"),
            done("f/c"),
        ],
        [
            "run",
            "  code f",
            "    code f/c, done 5",
            "      '' 5",
            "    (detached f/side)",
            "    (  '1' 2)",
            "    (  code f/side/a)",
            "    (    code f/side/a/b, done 4)",
            "    (      '' 4)",
        ],
    ),
    "a step that may run only once stands again where a retry has called it again": (
        [
            opened("f", "sequence"),
            opened("f/a"),
            Intent(at("f/a/pay"), "d"),
            done("f/a/pay", "paid"),
            failed("f/a", final=False),
            opened("f/a", attempt=2),
            wrote("f/a", "1"),
            ChildReplayed(at("f/a/pay")),
            ChildReplayed(at("f/a/pay")),
        ],
        [
            "run",
            "  sequence f, tried a 1, begun a False",
            "    code f/a",
            "      '1' 6",
            "      code f/a/pay, done 3",
            "        'paid' 3",
        ],
    ),
    "a failure that has ended the run is tried again with what it came from": (
        [
            opened("f"),
            failed("f/handled"),
            opened("f/a"),
            failed("f/a/b", attempt=1, final=False),
            failed("f/a/b", attempt=2),
            failed("f/a", cause="f/a/b"),
            failed("f", cause="f/a/b"),
            OVER,
            opened("f", fence=2),
        ],
        [
            "run",
            "  code f, failed handled 1",
            "    (code f/handled, cause f/handled)",
            "    (code f/a)",
            "    (  (code f/a/b))",
        ],
    ),
    "a failure that has ended the run stays while the run does not go on": (
        [opened("f"), failed("f/a"), failed("f", cause="f/a"), OVER],
        ["run, failed f 2", "  code f, failed a 1, cause f/a", "    (code f/a, cause f/a)"],
    ),
    "an attempt that failed and was tried again has not ended the run": (
        [
            opened("f"),
            failed("f/a"),
            failed("f", final=False),
            opened("f", attempt=2),
            done("f/a"),
            OVER,
            opened("f/c"),
        ],
        ["run, tried f 1", "  code f", "    code f/a, done 4", "      '' 4", "    code f/c"],
    ),
    "a run that was over goes on": (
        [opened("f"), done("f/a"), OVER, done("f/b"), OVER, done("f/c")],
        [
            "run",
            "  code f",
            "    code f/a, done 1",
            "      '' 1",
            "    code f/b, done 3",
            "      '' 3",
            "    code f/c, done 5",
            "      '' 5",
        ],
    ),
    "what other code has not called stays as it is": (
        [
            opened("f"),
            failed("f/handled", attempt=2),
            failed("f", error=ReplayDiverged("is recorded", path=at("f/handled"))),
            OVER,
            opened("f", fence=2),
        ],
        ["run", "  code f, failed handled 1", "    (code f/handled, cause f/handled)"],
    ),
    "what a budget has ended goes on with the attempt that it was in": (
        [
            opened("f"),
            failed("f/a", final=False),
            failed("f/a", attempt=2, error=out_of("cost", "f/a")),
            failed("f", error=out_of("cost", "f/a")),
            OVER,
            opened("f", fence=2),
        ],
        ["run", "  code f, tried a 1", "    (code f/a)"],
    ),
    "every path of a section that failed is tried again": (
        [
            opened("f", "parallel"),
            done("f/p[0]"),
            failed("f/p[1]", final=False),
            failed("f/p[1]", attempt=2),
            failed("f/p[2]", cause="f/p[2]/x"),
            failed(
                "f",
                "parallel",
                error=ParallelFailed(
                    succeeded={},
                    failed={1: broken("f/p[1]"), 2: broken("f/p[2]/x")},
                    first=broken("f/p[1]"),
                    path=at("f"),
                ),
            ),
            OVER,
            opened("f", "parallel", fence=2),
        ],
        ["run", "  parallel f", "    code f/p[0], done 1", "      '' 1", "    (code f/p[1])", "    (code f/p[2])"],
    ),
    "every path of a section that a budget has ended is tried again": (
        [
            opened("f", "parallel"),
            failed("f/p[0]", error=out_of("cost", "f/p[0]")),
            opened("f/p[1]"),
            failed("f/p[1]/x", error=out_of("cost", "f/p[1]/x")),
            failed("f/p[1]", error=out_of("cost", "f/p[1]/x")),
            failed("f", "parallel", error=out_of("cost", "f/p[0]")),
            OVER,
            opened("f", "parallel", fence=2),
        ],
        ["run", "  parallel f", "    code f/p[1]", "      (code f/p[1]/x)", "    (code f/p[0])"],
    ),
    "a step that stands there already keeps its place": (
        [
            opened("f", "sequence"),
            Intent(at("f/pay"), "d"),
            done("f/pay", "paid"),
            done("f/a"),
            opened("f", "sequence", fence=2),
            ChildReplayed(at("f/pay")),
            done("f/b"),
        ],
        [
            "run",
            "  sequence f, once pay d",
            "    code f/pay, done 2",
            "      'paid' 2",
            "    code f/a, done 3",
            "      '' 3",
            "    code f/b, done 6",
            "      '' 6",
        ],
    ),
    "a step that has run anew is not put back as it was in a discarded attempt": (
        [
            opened("f"),
            opened("f/a"),
            Intent(at("f/a/pay"), "d"),
            done("f/a/pay", "paid once"),
            failed("f/a", final=False),
            opened("f/a", attempt=2),
            done("f/a/pay", "paid again"),
            opened("f/a", attempt=2, fence=2),
            ChildReplayed(at("f/a/pay")),
        ],
        [
            "run",
            "  code f, tried a 1, begun a False",
            "    code f/a",
            "      code f/a/pay, done 6",
            "        'paid again' 6",
        ],
    ),
    "what is discarded gives no place to what is around it": (
        [opened("f"), discarded("f/a/b")],
        ["run", "  code f", "    (f/a)"],
    ),
    "an answer is not a new question": (
        [opened("f"), asked("f/a", "1"), Intent(at("f/a"), "d"), Answered(at("f/a"), "1", "answered")],
        ["run", "  code f, once a d", "    (f/a, asked 1 1, answered 1)"],
    ),
    "a path that has failed of work beside the flow is tried again": (
        [
            opened("f", "parallel"),
            failed("f/p[0]", error=out_of("cost", "f/p[0]")),
            failed("f/p[1]", cause="f/p[2]/side/x"),
            failed("f", "parallel", error=out_of("cost", "f/p[0]")),
            OVER,
            opened("f", "parallel", fence=2),
        ],
        ["run", "  parallel f", "    (code f/p[0])", "    (code f/p[1], cause f/p[2]/side/x)"],
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_records_are_read_as_a_tree(name: str) -> None:
    journal, expected = TREES[name]
    assert outline(tree(journal, KINDS)) == expected


PARTS: dict[str, tuple[list[JournalRecord], str, list[str]]] = {
    "what is beside it does not belong to it": (
        [opened("f"), done("f/a"), opened("f/b"), wrote("f/b", "1"), done("f/b/c"), done("f/d"), done("f/b", "2")],
        "f/b",
        ["code f/b, done 6", "  '1' 3", "  code f/b/c, done 4", "    '' 4", "  '2' 6"],
    ),
    "work beside the flow seen from inside has places": (
        [opened("f"), opened("f/side", "detached"), wrote("f/side", "1"), done("f/side/a"), done("f/b")],
        "f/side",
        ["detached f/side", "  '1' 2", "  code f/side/a, done 3", "    '' 3"],
    ),
    "work beside the work beside the flow has none": (
        [
            opened("f"),
            opened("f/side", "detached"),
            done("f/side/a/b"),
            opened("f/side/other", "detached"),
            done("f/side/other/c"),
        ],
        "f/side",
        [
            "detached f/side",
            "  f/side/a",
            "    code f/side/a/b, done 2",
            "      '' 2",
            "  (detached f/side/other)",
            "  (  code f/side/other/c, done 4)",
            "  (    '' 4)",
        ],
    ),
    "a step that may run only once stands again": (
        [
            opened("f"),
            opened("f/a"),
            Intent(at("f/a/pay"), "d"),
            done("f/a/pay", "paid"),
            failed("f/a", final=False),
            opened("f/a", attempt=2),
            ChildReplayed(at("f/a/pay")),
        ],
        "f/a",
        ["code f/a", "  code f/a/pay, done 3", "    'paid' 3"],
    ),
    "it has failed itself": (
        [opened("f"), opened("f/a"), failed("f/a/b"), failed("f/a", cause="f/a/b")],
        "f/a",
        ["code f/a, failed b 2, cause f/a/b", "  (code f/a/b, cause f/a/b)"],
    ),
    "its failure has ended the run and is tried again": (
        [opened("f"), failed("f/a"), failed("f", cause="f/a"), OVER, opened("f", fence=2)],
        "f",
        ["code f", "  (code f/a)"],
    ),
    "the failure of another step is tried again": (
        [opened("f"), done("f/a", "1"), failed("f/b"), failed("f", cause="f/b"), OVER, opened("f", fence=2)],
        "f/a",
        ["code f/a, done 1", "  '1' 1"],
    ),
    "an attempt of its own that failed is discarded": (
        [
            opened("f"),
            opened("f/a"),
            wrote("f/a", "1"),
            done("f/a/b", "2"),
            failed("f/a/c"),
            failed("f/a", final=False),
            done("f/a/b", "3"),
        ],
        "f/a",
        ["code f/a", "  code f/a/b, done 6", "    '3' 6"],
    ),
    "an attempt around it that failed is discarded": (
        [opened("f"), opened("f/a"), done("f/a/b", "1"), failed("f", final=False), done("f/a/c", "2")],
        "f/a",
        ["code f/a", "  code f/a/c, done 4", "    '2' 4"],
    ),
    "it was done anew with other code": (
        [opened("f"), done("f/a", "1"), discarded("f/a"), done("f/a", "2")],
        "f/a",
        ["code f/a, done 3", "  '2' 3"],
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_records_below_a_path_are_read_alone(name: str) -> None:
    journal, path, expected = PARTS[name]
    assert outline(tree(journal, KINDS, at(path))) == expected


# ----------------------------------------------------------------------------------------------- as a conversation


def call(path: str, output: str) -> StepFinished:
    """A tool call of a model, with what the tool itself wrote before its output."""
    made = done(path, kind="tool_call")
    made.items = (*said("a tool's own"), FunctionCallOutput(call_id=path, output=output))
    return made


def section(kind: str, **fields: Any) -> list[JournalRecord]:
    """A step of which two parts work on copies, each changing the state and saying something."""
    return [
        opened("f", "sequence"),
        opened("f/s", kind),
        wrote("f/s", "own", delta=sets("own")),
        done("f/s/p[0]", "0", delta=sets("zero")),
        done("f/s/p[1]", "1", delta=sets("one")),
        done("f/s", kind=kind, **fields),
        done("f/after", "after"),
    ]


CONVERSATIONS: dict[str, tuple[list[JournalRecord], str]] = {
    "what was done in order": (
        [opened("f"), wrote("f", "1"), done("f/a", "2"), wrote("f", "3"), done("f/b", "4"), done("f", "5")],
        "1 2 3 4 5",
    ),
    "an attempt whose failure was handled is not shown": (
        [
            opened("f"),
            opened("f/a"),
            done("f/a/b", "1"),
            failed("f/a", cause="f/a/c"),
            done("f/d", "2"),
            done("f", "3"),
        ],
        "2 3",
    ),
    "an attempt whose failure ended the run is shown": (
        [
            opened("f"),
            done("f/x", "0"),
            opened("f/a"),
            done("f/a/b", "1"),
            failed("f/a", cause="f/a/c"),
            failed("f", cause="f/a/c"),
        ],
        "0 1",
    ),
    "but not when its failure was handled, and another one ended the run": (
        [opened("f"), opened("f/a"), done("f/a/b", "1"), failed("f/a"), failed("f/c"), failed("f", cause="f/c")],
        "",
    ),
    "nor when work went on after it": (
        [opened("f"), opened("f/a"), done("f/a/b", "1"), failed("f/a"), done("f/c", "2"), failed("f", cause="f/a")],
        "2",
    ),
    "closing layers is no such work": (
        [
            opened("f"),
            opened("f/a"),
            done("f/a/b", "1"),
            failed("f/a"),
            done("f/memory[close]", kind="memory"),
            failed("f", cause="f/a"),
        ],
        "1",
    ),
    "but opening layers is": (
        [
            opened("f"),
            opened("f/a"),
            done("f/a/b", "1"),
            failed("f/a"),
            done("f/memory[open]", kind="memory"),
            failed("f", cause="f/a"),
        ],
        "",
    ),
    "what came before a wrap-up is shown": (
        [
            opened("f"),
            opened("f/a"),
            done("f/a/b", "1"),
            failed("f/a", error=out_of("cost", "f/a/c")),
            Decision(at("f"), "wrap_up", at("f/a/c")),
            done("f/wrap_up", "2"),
        ],
        "1 2",
    ),
    "the copies of parallel paths are not shown": (section("parallel"), "own +own after"),
    "of a race the items of the winner are": (section("parallel", winner=1), "own +own 1 after"),
    "nor are they while one is in flight": (section("parallel")[:-2], "own +own"),
    "nor are those of a gather": (section("gather"), "own +own after"),
    "nor the firings of a schedule": (section("every"), "own +own after"),
    "a spawn shares nothing": (section("spawn"), "own +own after"),
    "a spawn shares its items": (section("spawn_shared"), "own +own 0 1 after"),
    "a spawn shares its state": (section("spawn_state"), "own +own +zero +one after"),
    "a spawn shares everything": (section("spawn_whole"), "own +own 0 +zero 1 +one after"),
    "a failure that a spawn has handled is not shared": (
        [
            opened("f", "sequence"),
            opened("f/s", "spawn_whole"),
            opened("f/s/a"),
            wrote("f/s/a", "1"),
            failed("f/s/a"),
            done("f/s/b", "2"),
            done("f/s", kind="spawn_whole"),
        ],
        "2",
    ),
    "calls of tools stand in the order of the answer and leave their outputs": (
        [
            opened("f", "model"),
            done("f/answer", "calls", kind="answer"),
            call("f/b[1]", "second"),
            call("f/a[0]", "first"),
            done("f", "end", kind="model"),
        ],
        "calls first second end",
    ),
    "a call of a tool in flight leaves nothing": (
        [opened("f", "model"), opened("f/a[0]", "tool_call"), wrote("f/a[0]", "a tool's own")],
        "",
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_journal_is_a_conversation(name: str) -> None:
    journal, expected = CONVERSATIONS[name]
    assert shown(below(journal, KINDS, at("f"))) == expected
    assert texts(items_below(journal, KINDS, at("f"))) == [each for each in expected.split() if each[0] != "+"]


def test_in_its_own_scope_a_step_shows_everything() -> None:
    node = tree(section("spawn"), KINDS).find(at("f/s"))
    assert shown(visible(node)) == "own +own 0 +zero 1 +one"
    assert shown(below(section("spawn"), KINDS, at("f/s"))) == "own +own 0 +zero 1 +one"


def test_what_a_path_has_left_depends_on_what_ended_it() -> None:
    """While a failure is on its way it is not recorded yet for the steps around."""
    journal = [opened("f"), opened("f/a"), done("f/a/b", "1"), failed("f/a", cause="f/a/c"), done("f/wrap_up", "2")]
    before = journal[:-1]
    assert shown(below(before, KINDS, at("f"))) == ""
    assert shown(below(before, KINDS, at("f"), at("f/a/c"))) == "1"
    # What is recorded already counts.
    assert shown(below([*before, failed("f", cause="f/d")], KINDS, at("f"), at("f/a/c"))) == ""
    # A wrap-up of its own may still follow, or is there already.
    assert shown(below(journal, KINDS, at("f"))) == "2"
    assert shown(below(journal, KINDS, at("f"), at("f/a/c"), wrapped=False)) == "1"
    assert texts(items_below(journal, KINDS, at("f/a"))) == ["1"]


@pytest.mark.parametrize(
    ("kind", "seen", "own"),
    [("code", "own +own 0 +zero 1 +one", "own +own 0 +zero 1 +one"), ("spawn", "own +own", "own +own")],
)
def test_what_a_finished_step_has_left_where_it_ran(kind: str, seen: str, own: str) -> None:
    node = tree(section(kind), KINDS).find(at("f/s"))
    assert shown(left_by(node, own=False)) == seen
    assert shown(left_by(node, own=True)) == own


def test_a_call_of_a_tool_has_left_more_in_its_own_conversation() -> None:
    node = tree([opened("f", "model"), call("f/a[0]", "output")], KINDS).find(at("f/a[0]"))
    assert shown(left_by(node, own=False)) == "output"
    assert shown(left_by(node, own=True)) == "a tool's own output"


def test_what_the_steps_of_a_spawn_have_left_in_it() -> None:
    journal = section("spawn")[:-2]
    journal += [opened("f/s/x"), wrote("f/s/x", "2"), failed("f/s/x")]
    assert shown(inside(tree(journal, KINDS).find(at("f/s")))) == "0 +zero 1 +one"


def test_what_lasts_for_a_run_that_goes_on_is_the_work_of_finished_steps() -> None:
    journal: list[JournalRecord] = [opened("f"), wrote("f", "own"), done("f/a", "1"), opened("f/b"), wrote("f/b", "2")]
    journal.append(done("f/b/c", "3"))
    assert shown(lasting(journal, KINDS, ())) == "1 3"
    # A failure is tried again, so it hides nothing.
    assert shown(lasting([*journal, failed("f/b"), failed("f", cause="f/b")], KINDS, ())) == "1 3"


@pytest.mark.parametrize(
    ("records", "cause"),
    [
        ([], ""),
        ([failed("f", cause="f/a")], ""),
        ([failed("f", cause="f/a"), OVER], "f/a"),
        ([failed("f"), OVER], "f"),
        ([failed("f", error=StepFailed(path=(), error_type="Boom", error_message="")), OVER], "f"),
        ([failed("f"), RunEnded((), "completed", None, None)], ""),
        ([RunEnded((), "failed", "", Control("budget", error=out_of("cost", "f/b")))], "f/b"),
        ([failed("f"), RunEnded((), "aborted", "", Control("abort"))], ""),
    ],
)
def test_where_the_failure_of_a_run_came_from(records: list[JournalRecord], cause: str) -> None:
    assert cause_of(records) == at(cause)


# --------------------------------------------------------------------------------------------- as what has been begun

COUNTS: dict[str, list[tuple[JournalRecord, list[str]]]] = {
    "an attempt is counted once": [
        (opened("f", "sequence"), []),
        (opened("f/a"), []),
        (done("f/a"), ["f/a"]),
        (done("f/a"), []),
        (stopped("f/b"), ["f/b"]),
        (done("f", kind="sequence"), []),
    ],
    "an attempt that failed is another one than the next": [
        (done("f/a/x"), ["f/a/x"]),
        (done("f/b"), ["f/b"]),
        (failed("f/a", final=False), ["f/a"]),
        (done("f/a/x"), ["f/a/x"]),
        (done("f/a", attempt=2), ["f/a"]),
        (done("f/b"), []),
    ],
    "a first attempt that failed for good goes on as the same": [(failed("f/a"), ["f/a"]), (failed("f/a"), [])],
    "after the last one of several begins the first": [
        (failed("f/a", attempt=2), ["f/a"]),
        (failed("f/a", attempt=2), ["f/a"]),
    ],
    "what a budget has ended goes on with its attempt": [
        (failed("f/a", attempt=2, error=out_of("cost", "f/a")), ["f/a"]),
        (failed("f/a", attempt=2, error=out_of("cost", "f/a")), []),
    ],
    "what a budget of steps has refused has not begun": [
        (failed("f/a", error=out_of("steps", "f/a")), []),
        (failed("f/a", error=out_of("steps", "f/a/b")), ["f/a"]),
        (failed("f/b", error=out_of("cost", "f/b")), ["f/b"]),
        (failed("f/c"), ["f/c"]),
    ],
    "what is discarded is counted anew": [
        (opened("f/a"), []),
        (opened("f/b"), []),
        (done("f/a/x"), ["f/a/x"]),
        (done("f/c"), ["f/c"]),
        (discarded("f/a"), []),
        (done("f/a/x"), ["f/a/x"]),
        (done("f/c"), []),
        (asked("f/a/q", "1"), []),
        (asked("f/b/q", "1"), ["f/b"]),
    ],
    "what waits has begun, and so has what is around it": [
        (opened("f"), []),
        (opened("f/a", "sequence"), []),
        (opened("f/a/b", "tool"), []),
        (opened("f/a/c"), []),
        (asked("f/a/b", "1"), ["f", "f/a/b"]),
        (asked("f/a/b", "1"), []),
        (done("f/a/b", kind="tool"), []),
    ],
    "what had begun in the other paths of a section is said by its decision": [
        (Decision(at("f"), "route", [[["f", "x"], 1]]), []),
        (Decision(at("f"), BEGUN, [[["f", "a"], 1], [["f", "b"], 2]]), ["f/a", "f/b"]),
        (done("f/a"), []),
        (done("f/b"), ["f/b"]),
    ],
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_attempts_that_have_begun_are_counted(name: str) -> None:
    begun = Begun(KINDS)
    for record, expected in COUNTS[name]:
        assert begun.read(record) == [at(path) for path in expected]


# ------------------------------------------------------------------------------------ as what was done and ended last


def test_the_last_step_is_the_body_that_has_finished_last() -> None:
    answer = done("f/m/answer", "hello", kind="answer", usage=TokenUsage(input=1, output=2))
    journal: list[JournalRecord] = [
        opened("f"),
        opened("f/m", "model"),
        answer,
        done("f/m", kind="model"),
        done("f/a"),
        done("f/s", kind="loop"),
    ]
    flow = tree(journal, KINDS).find(at("f"))
    assert used(flow) == (0, ())
    assert used(flow.find(("m",))) == (3, answer.items)
    assert used(tree([opened("f"), opened("f/a")], KINDS)) is None
    later: list[JournalRecord] = [
        opened("f", "sequence"),
        done("f/a"),
        opened("f/m", "model"),
        answer,
        done("f/m", kind="model"),
    ]
    assert used(tree(later, KINDS)) == (3, answer.items)
    # What a spawn does it does in an execution of its own.
    spawned: list[JournalRecord] = [
        opened("f", "sequence"),
        opened("f/s", "spawn"),
        done("f/s/a"),
        done("f/s", kind="spawn"),
    ]
    assert used(tree(spawned, KINDS)) is None


def used(node: Node) -> tuple[int, Sequence[Item]] | None:
    """The tokens of the last step, and the items of its answer."""
    meta = last_step(node)
    return None if meta is None else (meta.usage.total, meta.items)


def rounds(*verdicts: Any, path: str = "f") -> list[JournalRecord]:
    """A loop with a round for each verdict; `None` where none was given."""
    found: list[JournalRecord] = [opened(path, "loop")]
    for number, verdict in enumerate(verdicts):
        found.append(done(f"{path}/body[{number}]"))
        if verdict is not None:
            found.append(Decision(at(path), f"verdict[{number}]", verdict))
    return [*found, done(path, kind="loop")]


ON = [False, "not yet", "go on"]
WHY: dict[str, tuple[list[JournalRecord], str | None, str]] = {
    "a condition": (rounds(ON, [True, "enough", None]), "enough", "until"),
    "a condition without a reason": (rounds([True, None, None]), None, "until"),
    "a condition that failed": (rounds(ON, [True, "until raised", None, True]), "until raised", "until_failed"),
    "the limit": (rounds(ON, ON), "the limit of 2 rounds was reached", "max_iterations"),
    "a step": (rounds(ON, None), "stop_loop", "stop_loop"),
    "a step in the first round": (rounds(None), "stop_loop", "stop_loop"),
    "no round at all": (rounds(), "stop_loop", "stop_loop"),
    "the limit, in a round that failed": (
        [*rounds(ON), failed("f/body[1]"), Decision(at("f"), "on_error[1]", "end")],
        "the limit of 2 rounds was reached",
        "max_iterations",
    ),
    "the last of many rounds": (rounds(*[ON] * 10, [True, "ten", None]), "ten", "until"),
}


@pytest.mark.parametrize("name", WHY)
def test_why_a_loop_has_ended(name: str) -> None:
    journal, reason, stop = WHY[name]
    assert last_verdict(tree(journal, KINDS)) == (("f",), reason, stop)


def test_the_loop_that_has_ended_last_counts() -> None:
    first, second = rounds([True, "a", None], path="f/a"), rounds([True, "b", None], path="f/b")
    whole: list[JournalRecord] = [opened("f", "sequence"), *first, *second]
    assert last_verdict(tree(whole, KINDS)) == (("f", "b"), "b", "until")
    unfinished: list[JournalRecord] = [opened("f", "sequence"), *first, *second[:-1]]
    assert last_verdict(tree(unfinished, KINDS)) == (("f", "a"), "a", "until")
    assert last_verdict(tree([opened("f", "sequence"), done("f", kind="sequence")], KINDS)) is None
    # Of a race only the winner's count.
    lost, won = rounds([True, "a", None], path="f/p[1]"), rounds([True, "b", None], path="f/p[0]")
    race: list[JournalRecord] = [opened("f", "parallel"), *won, *lost, done("f", kind="parallel", winner=0)]
    assert last_verdict(tree(race, KINDS)) == (("f", "p[0]"), "b", "until")
