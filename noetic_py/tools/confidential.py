"""Arguments that only the tool may see: which they are, and a call with a mask in their place."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from attrs import evolve

from noetic_py.core.items import FunctionCall
from noetic_py.core.values import is_dict, is_list
from noetic_py.redaction import MASK, remember

if TYPE_CHECKING:
    from noetic_py.tools.definition import AnyTool

_VALUES = frozenset({"default", "const", "enum", "examples"})


def secret_parameters(schema: Mapping[str, object]) -> frozenset[str]:
    """The parameters whose schema holds something `writeOnly`, or of the format of a password."""
    found: set[str] = set()
    for part in beside(schema, schema):
        found.update(name for name, each in properties_of(part).items() if _holds(each, schema, set()))
    return frozenset(found)


def properties_of(part: Mapping[str, object]) -> Mapping[str, object]:
    """The properties that a part of a schema names itself."""
    found = part.get("properties")
    return found if is_dict(found) else {}


def beside(part: object, root: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """A part of a schema, and the others that hold for the same value or may do so.

    Args:
        part: The part.
        root: The whole schema, which the part may refer into.
    """
    todo, seen = [part], set[int]()
    while todo:
        each = todo.pop(0)
        if is_dict(each) and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [each[key] for key in ("then", "else") if key in each]
            todo += [one for key in ("allOf", "anyOf", "oneOf") if is_list(several := each.get(key)) for one in several]
            todo.append(_pointed(each.get("$ref"), root))


def _pointed(reference: object, root: Mapping[str, object]) -> object:
    """The target of a reference inside a schema; `None` without a target."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, unquote(reference[1:]).split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if is_list(found) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if is_dict(found) else None
    return found


def _holds(part: object, root: Mapping[str, object], seen: set[int]) -> bool:
    if is_list(part):
        return any(_holds(each, root, seen) for each in part)
    if not is_dict(part) or id(part) in seen:
        return False
    seen.add(id(part))
    if part.get("writeOnly") is True or part.get("format") == "password":
        return True
    if _holds(_pointed(part.get("$ref"), root), root, seen):
        return True
    return any(_holds(each, root, seen) for key, each in part.items() if key not in _VALUES)


def conceal(call: FunctionCall, secret: Collection[str]) -> FunctionCall:
    """The call as it is shown and stored, with a mask for each secret argument; its texts are known from now on.

    Args:
        call: The call as the model sent it.
        secret: The tool's secret parameters.
    """
    if not secret:
        return call
    sent = object_of(call.arguments)
    if sent is None:
        # A schema that cannot be read may hold anything.
        remember(call.arguments)
        return evolve(call, arguments=json.dumps(MASK))
    hidden = [name for name in sent if name in secret]
    for text in _texts([sent[name] for name in hidden]):
        remember(text)
    return evolve(call, arguments=text_of(sent | dict.fromkeys(hidden, MASK))) if hidden else call


def hidden_in(call: FunctionCall, tool: AnyTool | None, offered: Iterable[AnyTool]) -> frozenset[str]:
    """The arguments of a call that are secret, or may be under a wrong name.

    A model may misspell a tool or a parameter. Of a tool with secret parameters every name that it does not have is
    taken for one of them; where the tool is unknown, so is every name but the plain parameters of such tools.

    Args:
        call: The call as the model sent it.
        tool: The tool that it names, `None` when none has that name.
        offered: The tools that it could have named.
    """
    tools = [each for each in (offered if tool is None else (tool,)) if each.secret_parameters]
    if not tools:
        return frozenset()
    secret = frozenset[str]().union(*(each.secret_parameters for each in tools))
    plain = {name for each in tools for name in _parameters(each)} - secret
    return secret | ((object_of(call.arguments) or {}).keys() - plain)


def _parameters(tool: AnyTool) -> Iterable[str]:
    return [name for part in beside(tool.parameters, tool.parameters) for name in properties_of(part)]


def restored(arguments: str, given: str, secret: Collection[str]) -> str:
    """The arguments for the tool: what was sent in the place of each mask.

    Args:
        arguments: As they are shown, and as layers may have changed them.
        given: As the model sent them.
        secret: The tool's secret parameters.
    """
    shown, sent = object_of(arguments), object_of(given)
    if shown is None or sent is None:
        return given if arguments == json.dumps(MASK) else arguments
    back = {name: sent[name] for name in secret if name in sent and shown.get(name) == MASK}
    return text_of(shown | back) if back else arguments


def object_of(text: str) -> dict[str, object] | None:
    """The JSON object that a text is; `None` when it is something else."""
    try:
        found: object = json.loads(text if text.strip() else "{}")
    except (ValueError, RecursionError):
        return None
    return found if is_dict(found) else None


def text_of(value: object) -> str:
    """A value as short JSON text."""
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
