"""The stored values of decisions and of outputs of the engine's own steps, and their checks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from noetic_py.core.control import SETTLING
from noetic_py.core.items import FunctionCallOutput, Item, ItemBase
from noetic_py.core.values import is_list
from noetic_py.journal import values
from noetic_py.journal.fields import Fits, or_none, refuse


def _anything(_: object) -> bool:
    return True


def _is_verdict(value: object) -> bool:
    return (
        is_list(value)
        and len(value) in (3, 4)
        and values.is_flag(value[0])
        and all(map(values.is_optional_text, value[1:3]))
        and all(map(values.is_flag, value[3:]))
    )


_ASKED = values.object_of(
    {"kind": lambda value: value in SETTLING},
    {"value": _anything, "reason": values.is_text, "by": values.is_optional_text, "key": values.is_text},
)
# The stored outputs of the engine's own steps, by kind.
_OUTPUTS: Mapping[str, tuple[Fits, str]] = {
    "answer": (
        lambda value: (
            is_list(value)
            and len(value) == 5
            and or_none(values.is_usage)(value[0])
            and or_none(values.object_of({"$": lambda mark: mark == "decimal", "v": values.is_cost}))(value[1])
            and all(map(values.is_optional_text, value[2:]))
        ),
        "[usage, cost, stop reason, model, response id]",
    ),
    "gather": (is_list, "a list"),
    "handing": (values.object_of({"to": values.is_optional_text, "value": _anything}), "an object of to and value"),
    "send": (values.pair_of(values.is_text, _anything), "[channel, value]"),
}
# The engine's decisions about a step, by the key up to its number, as they are read.
_DECISIONS: Mapping[str, tuple[Fits, str]] = {
    "route": (values.is_optional_text, "the id of a step or null"),
    "paths": (values.is_path, "ids of steps"),
    "wrap_up": (values.is_path, "a path"),
    "verdict": (
        _is_verdict,
        "[stop, reason, feedback], with a fourth field when the condition failed",
    ),
    "cut": (
        lambda value: (
            is_list(value) and len(value) in (2, 3) and type(value[0]) is int and all(map(values.is_flag, value[1:]))
        ),
        "[scope, timed] or [scope, timed, held]",
    ),
    "between": (values.each_of(lambda item: isinstance(item, ItemBase)), "a list of items"),
    "begun": (
        values.each_of(
            lambda value: (
                is_list(value) and len(value) == 2 and values.is_path(value[0]) and values.is_attempt(value[1])
            )
        ),
        "a list of [path, attempt]",
    ),
    "valueless": (lambda value: value is True, "true"),
    "asked": (_ASKED, "a stop that was asked for"),
    "launched": (
        values.object_of(
            {
                "step": values.is_text,
                "fingerprint": values.is_text,
                "count": values.is_count,
                "input": values.is_text,
                "state": values.is_text,
                "bag": values.is_flag,
                "version": values.is_attempt,
                "budget": values.is_limits,
            }
        ),
        "what was started",
    ),
}
_TAKEN = (values.is_path, "the path of a send")
_CALL = re.compile(r"\[\d{1,9}\]\Z")


def check_output(kind: str, path: values.Path, tree: object, items: Sequence[Item]) -> None:
    """Check the output of a finished step, which the engine's own steps know the form of.

    Args:
        kind: The step's kind.
        path: The step.
        tree: Its output in its stored form, `None` where it has none of its own.
        items: Its items.

    Raises:
        CodecError: It has another form; or it is a tool call without a number, or without its output.
    """
    of_kind = f"StepFinished of kind {kind}"
    known = _OUTPUTS.get(kind)
    if known is not None and not known[0](tree):
        raise refuse(tree, "output", of_kind, known[1], path)
    if kind == "tool_call":
        if not _CALL.search(path[-1]):
            raise refuse("/".join(path), "path", of_kind, "a frame with a number, such as [0]")
        if not isinstance(items[-1] if items else None, FunctionCallOutput):
            raise refuse(len(items), "items", of_kind, "an output as the last one")


def check_decision(key: str, value: object, path: values.Path) -> None:
    """Check what was decided for a step, as it was read.

    Raises:
        CodecError: It is not what the engine decides under this key.
    """
    name, bracket, end = key.partition("[")
    found = _TAKEN if bracket and end.endswith(".from") else _DECISIONS.get(name)
    if found is not None and not found[0](value):
        raise refuse(value, f"value of {key:.60}", "Decision", found[1], path)
