"""Open requests of a run: put to the person at a client (elicitation), or reported as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mcp import types

from noetic_py import PendingRequest
from noetic_py.core.control import Answer
from noetic_py.errors import AnswerInvalid

__all__ = ["answer_of", "form_of", "pending_text", "resolved"]

_PLAIN: Final = frozenset({"string", "integer", "number", "boolean"})
_KEPT: Final = (
    *("type", "title", "description", "default", "enum", "enumNames", "oneOf", "items", "format"),
    *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"),
)
"""What the fields of a form have; clients may refuse others."""
_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
_ANSWER: Final = "answer"


def form_of(request: PendingRequest) -> types.ElicitRequestFormParams | None:
    """The form that asks a person; `None` for the result of long work, which a program gives."""
    if request.is_approval:
        called = json.dumps(dict(request.arguments), ensure_ascii=False, default=str)
        return types.ElicitRequestFormParams(
            message=f"Allow the call of {request.tool} with {called}?",
            requested_schema={
                "type": "object",
                "properties": {
                    "approve": {"type": "boolean", "title": "Allow it", "default": False},
                    "reason": {"type": "string", "title": "Why not"},
                },
                "required": ["approve"],
            },
        )
    if request.kind != "question":
        return None
    schema: Mapping[str, Any] = request.schema or {}
    fields, required = _fields(schema), schema.get("required", [])
    if fields is None:
        fields, required = {_ANSWER: _field(schema, schema) or _as_json(schema)}, [_ANSWER]
    return types.ElicitRequestFormParams(
        message=request.prompt, requested_schema={"type": "object", "properties": fields, "required": list(required)}
    )


def _fields(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """The fields of a form for an object; `None` for another value, and for an object with what forms do not have."""
    if schema.get("type") != "object" or not schema.get("properties"):
        return None
    found: dict[str, dict[str, Any]] = {}
    for name, each in schema["properties"].items():
        field = _field(each, schema)
        if field is None:
            return None
        found[name] = field
    return found


def _field(given: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any] | None:
    """The field of a form for a text, a number, a yes or no, or a choice; `None` for another value."""
    field = resolved(given, root)
    kept: dict[str, Any] = {name: field[name] for name in _KEPT if name in field}
    if kept.get("format") not in _FORMATS:
        kept.pop("format", None)
    if kept.get("type") == "array":
        kept["items"] = items = resolved(kept.get("items", {}), root)
        return kept if "enum" in items or "anyOf" in items else None
    return kept if kept.get("type") in _PLAIN else None


def resolved(given: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without a reference, and without the null of a value that may be left out."""
    found = dict(given)
    reference = found.pop("$ref", None)
    if isinstance(reference, str):
        found = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {}) | found
    either = [each for each in found.get("anyOf", ()) if each != {"type": "null"}]
    if len(either) == 1 and len(found["anyOf"]) == 2:
        del found["anyOf"]
        if found.get("default", ...) is None:
            del found["default"]
        found = resolved(either[0], root) | found
    return found


def _as_json(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The field of a form for what forms do not have, such as lists of numbers: JSON as text."""
    wanted = f"JSON that fits {json.dumps(schema)}" if schema else "JSON, or else text"
    return {"type": "string", "description": wanted[:500]}


def answer_of(request: PendingRequest, said: types.ElicitResult) -> Answer | None:
    """The answer that a person has given; `None` when the form was dismissed.

    Raises:
        AnswerInvalid: It is not what was asked for.
    """
    if said.action == "cancel":
        return None
    content = said.content or {}
    if said.action == "decline":
        return request.reject("the person declined")
    if request.is_approval:
        if content.get("approve") is True:
            return request.approve()
        return request.reject(str(content.get("reason") or "the person did not allow it"))
    if _fields(request.schema or {}) is not None:
        return request.answer(content)
    if _ANSWER not in content:
        raise AnswerInvalid("the form was accepted without an answer", path=request.path)
    return request.answer(_value(request, content[_ANSWER]))


def _value(request: PendingRequest, given: object) -> object:
    if not isinstance(given, str) or (request.schema or {}).get("type") == "string":
        return given
    try:
        found: object = json.loads(given)
    except ValueError:
        return given
    return found


def pending_text(run_id: str, pending: Sequence[PendingRequest]) -> str:
    """The open requests of a run, and how to answer them."""
    lines = [f"The run {run_id} is not finished. It waits for {'an answer' if len(pending) == 1 else 'answers'}:"]
    for each in pending:
        called = f"{each.tool} {json.dumps(dict(each.arguments), ensure_ascii=False, default=str)}" if each.tool else ""
        lines.append(f"- {each.kind}: {' '.join(part for part in (called, each.prompt) if part)}")
        if each.problem is not None:
            lines.append(f"  The last answer was not taken: {each.problem}")
    lines.append(f"A person answers where the server runs: noetic answer {run_id}")
    lines.append(f'Afterwards call continue_run with {{"run_id": "{run_id}"}} for the result.')
    return "\n".join(lines)
