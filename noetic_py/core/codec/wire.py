"""Items as OpenResponses JSON."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Final, get_args

import attrs

from noetic_py.core import items
from noetic_py.core.codec.structure import Structurer, Unfit, check_nesting, dump, kind_name, parse
from noetic_py.core.types import Version, version_order
from noetic_py.core.values import is_array, is_dict, is_mapping, size_of
from noetic_py.errors import CodecError, ItemSchemaMismatch, LimitExceeded, NoeticError

MAX_ITEM_BYTES: Final = 32 * 1024 * 1024
"""How long the JSON text of an item may be."""

# ---------------------------------------------------------------------------------------------------- writing


def to_wire(item: items.ItemBase) -> dict[str, items.JsonValue]:
    """An item as OpenResponses JSON values.

    Raises:
        CodecError: The payload of an extension holds something that JSON has no form for.
    """
    write = _WRITERS.get(type(item))
    if write is None:
        write = next((write for kind, write in _WRITERS.items() if isinstance(item, kind)), None)
    if write is None:
        raise CodecError(f"{type(item).__qualname__} is not a valid item; expected an Item")
    return _with_extra(write(item), item.extra)


def to_wire_json(item: items.ItemBase) -> bytes:
    """An item as the text of OpenResponses JSON, in UTF-8; an `Opaque` gives exactly its bytes.

    Raises:
        CodecError: Something in the item has no JSON form.
        LimitExceeded: The item is larger than 32 MiB or nested deeper than 64.
    """
    data = item.raw if isinstance(item, items.Opaque) else dump(to_wire(item))
    if len(data) > MAX_ITEM_BYTES:
        raise LimitExceeded("item size", MAX_ITEM_BYTES)
    return data


def check_size(item: items.ItemBase) -> int:
    """Refuse an item whose JSON text is too long; of most items the text is not made for that.

    Returns:
        About how many bytes the item has.

    Raises:
        LimitExceeded: The item is larger than 32 MiB.
    """
    size = _text_size(item)
    # In JSON a character of one byte takes six at the most.
    if size > MAX_ITEM_BYTES // 8:
        return len(to_wire_json(item))
    return size


def _text_size(item: items.ItemBase) -> int:
    if isinstance(item, items.FunctionCall):
        return len(item.arguments)
    content = (
        item.output
        if isinstance(item, items.FunctionCallOutput)
        else item.content
        if isinstance(item, items.Message)
        else ""
    )
    if isinstance(content, str) and content:
        return len(content)
    if len(content) == 1 and isinstance(content[0], items.InputText | items.OutputText):
        return len(content[0].text)
    return size_of(item)


def _with_extra(wire: dict[str, Any], extra: Mapping[str, object] | None) -> dict[str, Any]:
    """Fields without a name here; what has a name wins over them."""
    if extra:
        check_nesting(extra)
        for key, value in extra.items():
            if key == "data" and is_dict(value) and is_dict(wire.get("data")):
                wire["data"] = value | wire["data"]
            else:
                wire.setdefault(key, value)
    return wire


def _write_message(item: items.Message) -> dict[str, object]:
    content = [_write_part(part) for part in item.content]
    return {"type": "message", "id": item.id, "status": item.status, "role": item.role, "content": content}


def _write_call(item: items.FunctionCall) -> dict[str, object]:
    return {
        "type": "function_call",
        "id": item.id,
        "status": item.status,
        "call_id": item.call_id,
        "name": item.name,
        "arguments": item.arguments,
    }


def _write_output(item: items.FunctionCallOutput) -> dict[str, object]:
    output = item.output if isinstance(item.output, str) else [_write_part(part) for part in item.output]
    return {
        "type": "function_call_output",
        "id": item.id,
        "status": item.status,
        "call_id": item.call_id,
        "output": output,
    }


def _write_reasoning(item: items.Reasoning) -> dict[str, object]:
    wire: dict[str, object] = {
        "type": "reasoning",
        "id": item.id,
        "status": item.status,
        "summary": [_write_part(part, "summary_text") for part in item.summary],
    }
    if item.content:
        wire["content"] = [_write_part(part, "reasoning_text") for part in item.content]
    if item.encrypted_content is not None:
        wire["encrypted_content"] = item.encrypted_content
    return wire


def _write_extension(item: items.Extension) -> dict[str, object]:
    try:
        data = item.data
    except (TypeError, RecursionError) as error:
        raise CodecError(str(error), where="data") from None
    check_nesting(data)
    wire: dict[str, object] = {"type": item.type, "id": item.id, "status": item.status, "data": data}
    if version_order(version := _version_of(type(item))) != (1,):
        wire["schema_version"] = version
    return wire


def _version_of(cls: type[items.Extension]) -> Version:
    """The version of an item type; 1 where a field of the payload happens to be called as its attribute."""
    version: object = cls.schema_version
    return version if isinstance(version, (int, str)) and version_order(version) else 1


def _write_opaque(item: items.Opaque) -> dict[str, object]:
    wire: dict[str, object] = parse(item.raw, MAX_ITEM_BYTES, "item size")
    return wire


_WRITERS: Final[dict[type, Callable[[Any], dict[str, Any]]]] = {
    items.Message: _write_message,
    items.FunctionCall: _write_call,
    items.FunctionCallOutput: _write_output,
    items.Reasoning: _write_reasoning,
    items.Extension: _write_extension,
    items.Opaque: _write_opaque,
}


def _write_part(part: items.ContentPart, text_type: str | None = None) -> dict[str, object]:
    match part:
        case items.InputText():
            wire: dict[str, object] = {"type": "input_text", "text": part.text}
        case items.OutputText():
            wire = {"type": text_type or "output_text", "text": part.text}
            if text_type is None:
                wire["annotations"] = [] if part.extra is None else part.extra.get("annotations", [])
        case items.InputImage():
            source = part.url if part.data is None else f"data:{part.media_type};base64,{b64encode(part.data).decode()}"
            wire = {"type": "input_image", "image_url": source, "file_id": part.file_id, "detail": part.detail}
        case items.InputFile():
            wire = {"type": "input_file", "file_url": part.url, "file_id": part.file_id, "filename": part.filename}
            if part.data is not None:
                prefix = f"data:{part.media_type};base64," if part.media_type else ""
                wire["file_data"] = f"{prefix}{b64encode(part.data).decode()}"
        case items.Refusal():
            wire = {"type": "refusal", "refusal": part.refusal}
        case _:
            raise CodecError(
                f"{type(part).__qualname__} is not a valid content part; expected text, an image, audio or a file"
            )
    return _with_extra({key: value for key, value in wire.items() if value is not None}, part.extra)


# ---------------------------------------------------------------------------------------------------- reading


class _UnknownShape(Exception):
    """A known item with a part that this version has no class for: the whole item stays opaque."""


_ROLES: Final[dict[Any, items.Role]] = {role: role for role in get_args(items.Role)}
_STATUSES: Final[dict[Any, items.Status]] = {status: status for status in get_args(items.Status)}
_DATA_URL: Final = re.compile(r"data:([^,;][^,;/]*+/[^,]+?);base64,([A-Za-z0-9+/=]*+)", re.ASCII)


def from_wire(data: Mapping[str, object]) -> items.Item:
    """The item that OpenResponses JSON values stand for; the inverse of `to_wire`.

    An unknown type, an extension that is not registered, and an item with a content part of an unknown type give an
    `Opaque`. Unknown fields of a known type stay in `extra`. A missing id is made, a missing status is `"completed"`.

    Raises:
        ItemSchemaMismatch: A known type lacks a field or holds one of the wrong type; `where` names it.
        CodecError: A value of an unknown type has no JSON form.
        LimitExceeded: The values are nested deeper than 64.
    """
    item = _read(data)
    return _opaque(dump(dict(data)), data) if item is None else item


def from_wire_json(data: bytes | str) -> items.Item:
    """The item that a text of OpenResponses JSON stands for; the inverse of `to_wire_json`.

    What becomes an `Opaque` keeps exactly these bytes.

    Raises:
        CodecError: The text is not UTF-8 or not JSON, or holds NaN, an infinity or a key twice.
        ItemSchemaMismatch: A known type lacks a field or holds one of the wrong type; `where` names it.
        LimitExceeded: The text is longer than 32 MiB or nested deeper than 64.
    """
    wire = parse(data, MAX_ITEM_BYTES, "item size")
    item = _read(wire)
    if item is not None:
        return item
    return _opaque(data if isinstance(data, bytes) else _text_bytes(data), wire)


def _text_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CodecError("the text holds a surrogate that is not escaped") from None


def _read(data: object) -> items.Item | None:
    if not is_mapping(data):
        raise ItemSchemaMismatch(f"an item is an object, not {kind_name(data)}")
    kind = data.get("type", "message" if "role" in data else None)
    if not isinstance(kind, str) or not kind:
        raise ItemSchemaMismatch("an item has a type", where="type")
    read = _READERS.get(kind)
    if read is None:
        cls = items.extension_class(kind)
        if cls is None:
            return None
        read = partial(_read_extension, cls)
    try:
        return read(data)
    except _UnknownShape:
        return None
    except Unfit as error:
        raise ItemSchemaMismatch(error.message, where=error.where.lstrip("."), hint=error.hint) from None


def _opaque(raw: bytes, data: Mapping[str, object]) -> items.Opaque:
    check_nesting(data)
    own_id = data.get("id")
    status = _STATUSES.get(data["status"]) if isinstance(data.get("status"), str) else None
    return items.Opaque(
        raw=raw,
        type=str(data.get("type", "message")),
        id=own_id if isinstance(own_id, str) and own_id else None,
        status=status or "completed",
    )


def _field(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    if isinstance(value, str):
        return value
    message = f"is a text, not {kind_name(value)}" if key in data else "is missing"
    raise Unfit(message).inside(f".{key}")


def _optional(data: Mapping[str, object], key: str) -> str | None:
    return None if data.get(key) is None else _field(data, key)


def _extra(data: Mapping[str, object], known: frozenset[str]) -> dict[str, Any] | None:
    extra = {key: value for key, value in data.items() if key not in known}
    if extra:
        check_nesting(extra)
    return extra or None


def _base(data: Mapping[str, object], known: frozenset[str]) -> dict[str, Any]:
    status = data.get("status")
    if status is None:
        status = "completed"
    elif not isinstance(status, str) or status not in _STATUSES:
        raise Unfit(f"is one of {', '.join(_STATUSES)}, not {status!r:.60}").inside(".status")
    return {"id": _optional(data, "id") or None, "status": status, "extra": _extra(data, known)}


def _objects(value: object, key: str) -> Iterable[tuple[str, Mapping[str, object]]]:
    if not is_array(value):
        raise Unfit(f"is a list, not {kind_name(value)}" if value is not None else "is missing").inside(f".{key}")
    for index, part in enumerate(value):
        where = f".{key}[{index}]"
        if not is_mapping(part):
            raise Unfit(f"is an object, not {kind_name(part)}").inside(where)
        yield where, part


def _parts(value: object, key: str) -> str | list[items.ContentPart]:
    if isinstance(value, str):
        return value
    parts: list[items.ContentPart] = []
    for where, part in _objects(value, key):
        kind = part.get("type")
        if not isinstance(kind, str):
            raise Unfit("is missing").inside(f"{where}.type")
        read = _PART_READERS.get(kind)
        if read is None:
            raise _UnknownShape
        try:
            parts.append(read(part))
        except Unfit as error:
            raise error.inside(where) from None
        except ValueError as error:
            raise Unfit(str(error)).inside(where) from None
    return parts


_payloads: Final = Structurer()

_MESSAGE: Final = frozenset({"type", "id", "status", "role", "content"})
_CALL: Final = frozenset({"type", "id", "status", "call_id", "name", "arguments"})
_OUTPUT: Final = frozenset({"type", "id", "status", "call_id", "output"})
_REASONING: Final = frozenset({"type", "id", "status", "summary", "content", "encrypted_content"})
_EXTENSION: Final = frozenset({"type", "id", "status", "data"})


def _read_message(data: Mapping[str, object]) -> items.Message:
    role = data.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise Unfit(f"is one of {', '.join(_ROLES)}, not {role!r:.60}").inside(".role")
    return items.Message(role=_ROLES[role], content=_parts(data.get("content"), "content"), **_base(data, _MESSAGE))


def _read_call(data: Mapping[str, object]) -> items.FunctionCall:
    return items.FunctionCall(
        call_id=_field(data, "call_id"),
        name=_field(data, "name"),
        arguments=_field(data, "arguments"),
        **_base(data, _CALL),
    )


def _read_output(data: Mapping[str, object]) -> items.FunctionCallOutput:
    return items.FunctionCallOutput(
        call_id=_field(data, "call_id"), output=_parts(data.get("output"), "output"), **_base(data, _OUTPUT)
    )


def _read_reasoning(data: Mapping[str, object]) -> items.Reasoning:
    return items.Reasoning(
        content=_thoughts(data.get("content"), "content", "reasoning_text"),
        summary=_thoughts(data.get("summary"), "summary", "summary_text"),
        encrypted_content=_optional(data, "encrypted_content"),
        **_base(data, _REASONING),
    )


def _thoughts(value: object, key: str, text_type: str) -> list[items.ContentPart]:
    if value is None:
        return []
    parts: list[items.ContentPart] = []
    for where, part in _objects(value, key):
        if part.get("type") != text_type:
            raise _UnknownShape
        try:
            parts.append(items.OutputText(text=_field(part, "text"), extra=_extra(part, _TEXT)))
        except Unfit as error:
            raise error.inside(where) from None
    return parts


def _read_extension(cls: type[items.Extension], data: Mapping[str, object]) -> items.Extension:
    payload = data.get("data", {})
    if not is_mapping(payload):
        raise Unfit(f"is an object, not {kind_name(payload)}").inside(".data")
    check_nesting(payload)
    version = data.get("schema_version", 1)
    # A value that is not a version is a field of another library.
    versioned = version_order(version) is not None
    payload = _migrated(cls, payload, version if versioned else 1)
    base = _base(data, _EXTENSION | {"schema_version"} if versioned else _EXTENSION)
    names = {field.name for field in attrs.fields(cls)}
    known = {key: value for key, value in payload.items() if key in names and key not in base}
    if unknown := {key: value for key, value in payload.items() if key not in known}:
        base["extra"] = (base["extra"] or {}) | {"data": unknown}
    try:
        made: items.Extension = _payloads.record(cls, known)
    except Unfit as error:
        changed = f"when {cls.__qualname__} has changed, give it a schema_version and migrate(cls, data, version)"
        error.hint = error.hint or changed
        raise error.inside(".data") from None
    return attrs.evolve(made, **{key: value for key, value in base.items() if value is not None})


def _migrated(cls: type[items.Extension], payload: Mapping[str, object], version: object) -> Mapping[str, object]:
    """The payload of an item in the form that its type has now."""
    mine, theirs = version_order(_version_of(cls)) or (), version_order(version) or ()
    if theirs == mine:
        return payload
    if theirs > mine:
        raise Unfit(
            f"is {version}, and the {cls.__qualname__} here is of version {_version_of(cls)}",
            hint="install the newer version of the plugin that registers the item type",
        ).inside(".schema_version")
    try:
        made: object = cls.migrate(deepcopy(dict(payload)), version)
    except NoeticError as error:
        raise Unfit(error.message, hint=error.hint).inside(".data") from error
    except Exception as error:
        raise Unfit(
            f"{cls.__qualname__}.migrate() failed on version {version}: {type(error).__name__}: {error}",
            hint="it is given the payload as JSON values, and returns that of its own version",
        ).inside(".data") from error
    if not is_mapping(made):
        raise Unfit(f"{cls.__qualname__}.migrate() returned {kind_name(made)}", hint="return a dict").inside(".data")
    return made


_READERS: Final[dict[str, Callable[[Mapping[str, object]], items.Item]]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "reasoning": _read_reasoning,
}

_TEXT: Final = frozenset({"type", "text"})
_IMAGE: Final = frozenset({"type", "image_url", "file_id", "detail"})
_FILE: Final = frozenset({"type", "file_url", "file_id", "file_data", "filename"})
_REFUSAL: Final = frozenset({"type", "refusal"})


def _read_output_text(data: Mapping[str, object]) -> items.OutputText:
    extra = _extra(data, _TEXT)
    if extra is not None and extra.get("annotations") == []:
        del extra["annotations"]
    return items.OutputText(text=_field(data, "text"), extra=extra or None)


def _read_image(data: Mapping[str, Any]) -> items.InputImage:
    source: dict[str, Any] = {"url": _optional(data, "image_url")}
    # Only what encodes back to the same text is decoded; any other data URL stays as it is.
    if source["url"] is not None and (found := _DATA_URL.fullmatch(source["url"])):
        content = _base64(found[2])
        if content is not None:
            source = {"data": content, "media_type": found[1]}
    detail: Any = _optional(data, "detail")
    return items.InputImage(file_id=_optional(data, "file_id"), detail=detail, extra=_extra(data, _IMAGE), **source)


def _read_file(data: Mapping[str, Any]) -> items.InputFile:
    source: dict[str, Any] = {}
    text = _optional(data, "file_data")
    if text is not None:
        found = _DATA_URL.fullmatch(text)
        content = _base64(found[2] if found else text)
        if content is None:
            raise Unfit("is neither base64 nor a base64 data URL").inside(".file_data")
        source = {"data": content, "media_type": found[1] if found else ""}
    return items.InputFile(
        url=_optional(data, "file_url"),
        file_id=_optional(data, "file_id"),
        filename=_optional(data, "filename"),
        extra=_extra(data, _FILE),
        **source,
    )


def _base64(text: str) -> bytes | None:
    try:
        content = b64decode(text, validate=True)
    except ValueError:
        return None
    return content if b64encode(content).decode() == text else None


_PART_READERS: Final[dict[str, Callable[[Mapping[str, object]], items.ContentPart]]] = {
    "input_text": lambda data: items.InputText(text=_field(data, "text"), extra=_extra(data, _TEXT)),
    "output_text": _read_output_text,
    "input_image": _read_image,
    "input_file": _read_file,
    "refusal": lambda data: items.Refusal(refusal=_field(data, "refusal"), extra=_extra(data, _REFUSAL)),
}
