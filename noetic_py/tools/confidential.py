"""Arguments that a model sends and nobody else is to see: which they are, and a call with a mask in their place."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import evolve

from noetic_py._types import is_dict, is_list
from noetic_py.items import FunctionCall
from noetic_py.redaction import MASK, remember

__all__ = ["conceal", "restored", "secret_parameters"]

_VALUES = frozenset({"default", "const", "enum", "examples"})


def secret_parameters(schema: Mapping[str, Any]) -> frozenset[str]:
    """The parameters whose schema holds something `writeOnly`, or of the format of a password."""
    properties = schema.get("properties")
    definitions = schema.get("$defs")
    known = definitions if is_dict(definitions) else {}
    return frozenset(
        name for name, part in (properties if is_dict(properties) else {}).items() if _holds(part, known, set())
    )


def _holds(part: object, known: Mapping[str, Any], seen: set[str]) -> bool:
    if is_list(part):
        return any(_holds(each, known, seen) for each in part)
    if not is_dict(part):
        return False
    if part.get("writeOnly") is True or part.get("format") == "password":
        return True
    name = str(part.get("$ref", "")).removeprefix("#/$defs/")
    if name in known and name not in seen:
        seen.add(name)
        if _holds(known[name], known, seen):
            return True
    return any(_holds(each, known, seen) for key, each in part.items() if key not in _VALUES)


def conceal(call: FunctionCall, secret: Collection[str]) -> FunctionCall:
    """The call as it is shown and stored, with a mask for each secret argument; its texts are known from now on.

    Args:
        call: The call as the model sent it.
        secret: The tool's secret parameters.
    """
    if not secret:
        return call
    sent = _object(call.arguments)
    if sent is None:
        # What cannot be read may hold anything.
        remember(call.arguments)
        return evolve(call, arguments=json.dumps(MASK))
    hidden = [name for name in sent if name in secret]
    for text in _texts([sent[name] for name in hidden]):
        remember(text)
    return evolve(call, arguments=_text(sent | dict.fromkeys(hidden, MASK))) if hidden else call


def restored(arguments: str, given: str, secret: Collection[str]) -> str:
    """The arguments for the tool: what was sent in the place of each mask.

    Args:
        arguments: As they are shown, and as layers may have changed them.
        given: As the model sent them.
        secret: The tool's secret parameters.
    """
    shown, sent = _object(arguments), _object(given)
    if shown is None or sent is None:
        return given if arguments == json.dumps(MASK) else arguments
    back = {name: sent[name] for name in secret if name in sent and shown.get(name) == MASK}
    return _text(shown | back) if back else arguments


def _object(text: str) -> dict[str, Any] | None:
    try:
        found: object = json.loads(text if text.strip() else "{}")
    except (ValueError, RecursionError):
        return None
    return found if is_dict(found) else None


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif is_list(value):
        for part in value:
            yield from _texts(part)
    elif is_dict(value):
        yield from _texts(list(value.values()))
    elif value is not None and not isinstance(value, bool):
        yield str(value)
