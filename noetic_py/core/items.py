"""The items of a conversation: messages, function calls and their outputs, reasoning, and your own types.

Items are frozen values. Their shapes follow the OpenResponses specification in snake_case; the exact wire names are the
codec's business. An item that the library does not know is kept whole, as [`Opaque`][noetic_py.core.items.Opaque].
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, get_args
from uuid import UUID

import attrs
from attrs import field, frozen
from typing_extensions import TypeAliasType, dataclass_transform

from noetic_py.core.runtime import SYSTEM
from noetic_py.core.types import MAX_NESTING, Version, version_order
from noetic_py.errors import ConfigError, LimitExceeded
from noetic_py.redaction import with_article

JsonValue = TypeAliasType("JsonValue", "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None")
"""A JSON value."""

Role: TypeAlias = Literal["user", "assistant", "system", "developer"]
"""The author of a message."""

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
"""How far an item has come; in a finished log nearly always `"completed"`."""

ID_SOURCE: ContextVar[Callable[[], str]] = ContextVar("noetic_py_id_source", default=SYSTEM.new_id)
"""Where items get their ids from when none is given: a run with a runtime of its own sets that runtime's `new_id`."""

BUILTIN_TYPES = frozenset({"message", "function_call", "function_call_output", "reasoning"})
"""The item types that have a class here; an extension may not take their names."""

RESERVED_PREFIXES = frozenset({"noetic", "noetic_py", "noetic-py"})
"""Prefixes of item types that are the library's own; no extension may take them, and none comes in from outside."""

_STATUSES = frozenset(get_args(Status))


def _new_id() -> str:
    return ID_SOURCE.get()()


# ---------------------------------------------------------------------------------------------------- content parts


@frozen(kw_only=True)
class ContentPart:
    """Base of what a message's content is made of."""

    extra: Mapping[str, JsonValue] | None = field(default=None, hash=False, repr=False)
    """Fields a provider sent that this version has no name for; they go back on the wire as they came."""


# Some of these frozen classes have a hand-written `__init__` that goes through the slots' own setters: they are made
# for every model round and every tool call, at about half the cost of the generated one.
def _setter(cls: type, name: str) -> Callable[[object, object], None]:
    setter: Callable[[object, object], None] = vars(cls)[name].__set__
    return setter


_set_part_extra = _setter(ContentPart, "extra")


@frozen(kw_only=True, init=False)
class InputText(ContentPart):
    """Text given to the model."""

    text: str

    def __init__(self, *, text: str, extra: Mapping[str, JsonValue] | None = None) -> None:
        if not isinstance(text, str):
            raise TypeError(f"text is a str, not {type(text).__name__}")
        _set_part_extra(self, extra)
        _set_input_text(self, text)


_set_input_text = _setter(InputText, "text")


@frozen(kw_only=True)
class InputImage(ContentPart):
    """An image given to the model, by address, by content or by file id.

    Args:
        url: Where the image is.
        data: The image's bytes; needs `media_type`.
        file_id: The id of a file that the provider holds.
        media_type: Such as `"image/png"`.
        detail: How closely the model should look.

    Raises:
        ValueError: Not exactly one of `url`, `data` and `file_id` was given, or `data` without `media_type`.
    """

    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    file_id: str | None = None
    media_type: str | None = None
    detail: Literal["auto", "low", "high"] | None = None

    def __attrs_post_init__(self) -> None:
        _one_source(self, self.url, self.data, self.file_id)
        if (self.data is None) != (self.media_type is None):
            raise ValueError("an InputImage needs data= and media_type= together")


@frozen(kw_only=True)
class InputFile(ContentPart):
    """A file given to the model, by address, by content or by id.

    Args:
        url: Where the file is.
        data: The file's bytes.
        file_id: The id of a file that the provider holds.
        filename: Its name, shown to the model.
        media_type: Such as `"application/pdf"`; goes with `data`, and follows from `filename` when absent. Empty for
            data that goes on the wire without one.

    Raises:
        ValueError: Not exactly one of `url`, `data` and `file_id` was given.
    """

    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    file_id: str | None = None
    filename: str | None = None
    media_type: str | None = None

    def __attrs_post_init__(self) -> None:
        _one_source(self, self.url, self.data, self.file_id)
        if self.media_type is not None and self.data is None:
            raise ValueError("media_type= of an InputFile goes with data=")
        if self.media_type is None and self.data is not None:
            import mimetypes

            guess, _ = mimetypes.guess_type(self.filename or "")
            object.__setattr__(self, "media_type", guess or "application/octet-stream")


@frozen(kw_only=True, init=False)
class OutputText(ContentPart):
    """Text that the model wrote."""

    text: str

    def __init__(self, *, text: str, extra: Mapping[str, JsonValue] | None = None) -> None:
        if not isinstance(text, str):
            raise TypeError(f"text is a str, not {type(text).__name__}")
        _set_part_extra(self, extra)
        _set_output_text(self, text)


_set_output_text = _setter(OutputText, "text")


@frozen(kw_only=True)
class Refusal(ContentPart):
    """The model's words when it declines."""

    refusal: str = field(validator=attrs.validators.instance_of(str))


def _one_source(part: ContentPart, *sources: object) -> None:
    if sum(source is not None for source in sources) != 1:
        raise ValueError(f"{with_article(type(part).__name__)} needs exactly one of url=, data= and file_id=")


_TEXT_OF_ROLE: Mapping[str, type[InputText] | type[OutputText]] = {
    "user": InputText,
    "assistant": OutputText,
    "system": InputText,
    "developer": InputText,
}


def _parts(content: Iterable[object], text: type[InputText] | type[OutputText]) -> tuple[ContentPart, ...]:
    parts: list[ContentPart] = []
    for part in content:
        if isinstance(part, ContentPart):
            parts.append(part)
        elif isinstance(part, str):
            parts.append(text(text=part))
        else:
            raise TypeError(f"content is made of strings and content parts, not {type(part).__name__}")
    return tuple(parts)


def _join(content: Iterable[ContentPart]) -> str:
    return "".join([part.text for part in content if isinstance(part, InputText | OutputText)])


# ---------------------------------------------------------------------------------------------------- items


@frozen(kw_only=True)
class ItemBase:
    """The fields of every item."""

    __noetic_shared__: ClassVar[bool] = True

    id: str
    """Unique; made from the runtime's ids when absent."""

    status: Status
    """How far the item has come."""

    extra: Mapping[str, JsonValue] | None = field(hash=False, repr=False)
    """Fields a provider sent that this version has no name for; they go back on the wire as they came."""

    @property
    def type(self) -> str:
        """The item's type on the wire, such as `"message"`."""
        raise NotImplementedError

    @property
    def is_final(self) -> bool:
        """Whether this item on its own is an answer.

        That is a completed assistant message that says or shows something, or an output that no model puts into words.
        """
        return False


_set_id = _setter(ItemBase, "id")
_set_status = _setter(ItemBase, "status")
_set_extra = _setter(ItemBase, "extra")


def _base(item: ItemBase, id: str | None, status: Status, extra: Mapping[str, JsonValue] | None) -> None:
    _set_id(item, ID_SOURCE.get()() if id is None else id)
    if status != "completed" and status not in _STATUSES:
        raise ValueError(f"status is one of {', '.join(sorted(_STATUSES))}, not {status!r}")
    _set_status(item, status)
    _set_extra(item, extra or None)


@frozen(kw_only=True, init=False)
class Message(ItemBase):
    """Something said, by the user, the model, the system or the developer.

    Args:
        role: The author.
        content: Content parts, or a string: an `OutputText` for the assistant, an `InputText` for other roles.
        id: Made when absent.
        status: How far the message has come.
        extra: Fields without a name here.

    Raises:
        ValueError: `role` or `status` is none of the known ones.
        TypeError: A part of the content is neither a string nor a content part.
    """

    role: Role
    content: tuple[ContentPart, ...]

    def __init__(
        self,
        *,
        role: Role,
        content: str | Sequence[str | ContentPart],
        id: str | None = None,
        status: Status = "completed",
        extra: Mapping[str, JsonValue] | None = None,
    ) -> None:
        text = _TEXT_OF_ROLE.get(role)
        if text is None:
            raise ValueError(f"role is one of {', '.join(_TEXT_OF_ROLE)}, not {role!r}")
        _base(self, id, status, extra)
        _set_message_role(self, role)
        _set_message_content(self, (text(text=content),) if isinstance(content, str) else _parts(content, text))

    @classmethod
    def user(cls, content: str | Sequence[str | ContentPart], /) -> Message:
        """A message of the user."""
        return Message(role="user", content=content)

    @classmethod
    def assistant(cls, content: str | Sequence[str | ContentPart], /) -> Message:
        """A message of the model."""
        return Message(role="assistant", content=content)

    @classmethod
    def system(cls, content: str, /) -> Message:
        """A message of the system."""
        return Message(role="system", content=content)

    @classmethod
    def developer(cls, content: str, /) -> Message:
        """A message of the developer."""
        return Message(role="developer", content=content)

    @property
    def type(self) -> Literal["message"]:
        """`"message"`."""
        return "message"

    @property
    def text(self) -> str:
        """All text parts, joined; empty when there is none."""
        return _join(self.content)

    @property
    def is_final(self) -> bool:
        """Whether the message is a completed answer of the assistant with some text, or with a picture or a file.

        Function calls are items of their own: a message that announces calls in the same answer looks final by itself,
        and `view(final=True)` of a log, which sees the calls, leaves it out.
        """
        if self.role != "assistant" or self.status != "completed":
            return False
        return bool(self.text) or any(isinstance(part, InputImage | InputFile) for part in self.content)


_set_message_role = _setter(Message, "role")
_set_message_content = _setter(Message, "content")


@frozen(kw_only=True, init=False)
class FunctionCall(ItemBase):
    """The model's wish to have a tool called.

    Args:
        name: The tool's name.
        arguments: The arguments as JSON text, which is kept exactly; a mapping becomes compact JSON.
        call_id: Pairs the call with its output; made when absent.
        id: Made when absent.
        status: How far the call has come.
        extra: Fields without a name here.

    Raises:
        TypeError: `arguments` is neither text nor a mapping of JSON values.
        ValueError: `arguments` holds NaN or an infinity.
        LimitExceeded: `arguments` is a mapping that is nested too deep.
    """

    call_id: str
    name: str
    arguments: str

    def __init__(
        self,
        *,
        name: str,
        arguments: str | Mapping[str, object] = "{}",
        call_id: str | None = None,
        id: str | None = None,
        status: Status = "completed",
        extra: Mapping[str, JsonValue] | None = None,
    ) -> None:
        _base(self, id, status, extra)
        _set_call_call_id(self, ID_SOURCE.get()() if call_id is None else call_id)
        _set_call_name(self, name)
        _set_call_arguments(self, arguments if isinstance(arguments, str) else _argument_text(arguments))

    @property
    def type(self) -> Literal["function_call"]:
        """`"function_call"`."""
        return "function_call"


_set_call_call_id = _setter(FunctionCall, "call_id")
_set_call_name = _setter(FunctionCall, "name")
_set_call_arguments = _setter(FunctionCall, "arguments")


def _argument_text(arguments: Mapping[str, object]) -> str:
    try:
        plain = dict(arguments)
    except (TypeError, ValueError):
        raise TypeError(f"arguments are JSON text or a mapping, not {type(arguments).__name__}") from None
    try:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise LimitExceeded("nesting", MAX_NESTING, hint="nest the arguments less deeply") from None


@frozen(kw_only=True, init=False)
class FunctionCallOutput(ItemBase):
    """The output of a function call.

    Args:
        call_id: The call's `call_id`.
        output: Text, or content parts.
        final: Whether it is the answer, and no model puts it into words. It is kept with a run; the wire has no such
            field.
        id: Made when absent.
        status: How far the output has come.
        extra: Fields without a name here.

    Raises:
        TypeError: A part of the output is neither a string nor a content part.
    """

    call_id: str
    output: str | tuple[ContentPart, ...]
    final: bool

    def __init__(
        self,
        *,
        call_id: str,
        output: str | Sequence[str | ContentPart],
        final: bool = False,
        id: str | None = None,
        status: Status = "completed",
        extra: Mapping[str, JsonValue] | None = None,
    ) -> None:
        _base(self, id, status, extra)
        _set_output_call_id(self, call_id)
        _set_output_output(self, output if isinstance(output, str) else _parts(output, InputText))
        _set_output_final(self, final)

    @property
    def type(self) -> Literal["function_call_output"]:
        """`"function_call_output"`."""
        return "function_call_output"

    @property
    def text(self) -> str:
        """The output's text; parts that are not text are left out."""
        return self.output if isinstance(self.output, str) else _join(self.output)

    @property
    def is_final(self) -> bool:
        """Whether it is the answer, and no model puts it into words."""
        return self.final


_set_output_call_id = _setter(FunctionCallOutput, "call_id")
_set_output_output = _setter(FunctionCallOutput, "output")
_set_output_final = _setter(FunctionCallOutput, "final")


@frozen(kw_only=True, init=False)
class Reasoning(ItemBase):
    """The reasoning of the model.

    Args:
        content: The reasoning itself, where the provider shows it.
        summary: A summary of it.
        encrypted_content: The provider's encrypted form, kept exactly.
        id: Made when absent.
        status: How far the reasoning has come.
        extra: Fields without a name here.
    """

    content: tuple[ContentPart, ...]
    summary: tuple[ContentPart, ...]
    encrypted_content: str | None = field(repr=False)

    def __init__(
        self,
        *,
        content: str | Sequence[str | ContentPart] = (),
        summary: str | Sequence[str | ContentPart] = (),
        encrypted_content: str | None = None,
        id: str | None = None,
        status: Status = "completed",
        extra: Mapping[str, JsonValue] | None = None,
    ) -> None:
        _base(self, id, status, extra)
        _set_reasoning_content(self, _parts((content,) if isinstance(content, str) else content, OutputText))
        _set_reasoning_summary(self, _parts((summary,) if isinstance(summary, str) else summary, OutputText))
        _set_reasoning_encrypted_content(self, encrypted_content)

    @property
    def type(self) -> Literal["reasoning"]:
        """`"reasoning"`."""
        return "reasoning"

    @property
    def text(self) -> str:
        """The reasoning's text, or its summary's where the reasoning is not shown."""
        return _join(self.content) or _join(self.summary)


_set_reasoning_content = _setter(Reasoning, "content")
_set_reasoning_summary = _setter(Reasoning, "summary")
_set_reasoning_encrypted_content = _setter(Reasoning, "encrypted_content")


@frozen(kw_only=True, init=False)
class Opaque(ItemBase):
    """An item of a type that the library does not know, kept byte for byte.

    Args:
        raw: The item's JSON text, in UTF-8.
        type: Its type; read from `raw` when absent.
        id: Its id; read from `raw` when absent there as well as here, made.
        status: How far the item has come.

    Raises:
        ValueError: `raw` is not a JSON object with a `type`.
    """

    raw: bytes
    kind: str = field(alias="type")
    extra: Mapping[str, JsonValue] | None = field(init=False, hash=False, repr=False)

    def __init__(
        self, *, raw: bytes, type: str | None = None, id: str | None = None, status: Status = "completed"
    ) -> None:
        if type is None or id is None:
            found_type, found_id = _read_head(raw, type)
            _base(self, id or found_id, status, None)
            _set_opaque_kind(self, found_type)
        else:
            _base(self, id, status, None)
            _set_opaque_kind(self, type)
        _set_opaque_raw(self, raw)

    @property
    def type(self) -> Literal["opaque"]:
        """The type that the provider gave it, such as `"web_search_call"`; never one of those that have a class here.

        Type checkers see one name for all of them, so that a comparison with a built-in type leaves them out.
        """
        name: Any = self.kind
        found: Literal["opaque"] = name
        return found


_set_opaque_raw = _setter(Opaque, "raw")
_set_opaque_kind = _setter(Opaque, "kind")


def _read_head(raw: bytes, type: str | None) -> tuple[str, str | None]:
    """The type and the id of an item; a message need not say that it is one, so a type that is known is not read."""
    try:
        data: Any = json.loads(raw)
        kind: object = data["type"] if type is None else type
        found: object = data.get("id")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError("raw is not the JSON text of an object with a type") from error
    if not isinstance(kind, str):
        raise ValueError("raw is not the JSON text of an object with a type")
    return kind, found if isinstance(found, str) and found else None


# ---------------------------------------------------------------------------------------------------- extensions


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(attrs.field,))
class _Declared(ItemBase):
    """Makes type checkers read the fields of a subclass as its parameters."""

    __slots__ = ()


@frozen(kw_only=True)
class Extension(_Declared):
    """Base of item types of your own; their fields are the payload.

    ```python
    @extension_item("acme:note")
    class Note(Extension):
        text: str
        author: str | None = None
    ```

    When the payload gets another form, raise the class's `schema_version` and override `migrate`: items of older
    versions are read in the new form wherever they are stored, and code of an older version refuses what is newer.

    Raises:
        ConfigError: An instance is made of a class without `@extension_item` (code `"extension-unregistered"`).
    """

    schema_version: ClassVar[Version] = 1
    """The version of the payload's form: a number, or numbers with dots such as `"1.10"`."""

    id: str = field(factory=_new_id)
    status: Status = field(default="completed", validator=attrs.validators.in_(_STATUSES))
    extra: Mapping[str, JsonValue] | None = field(default=None, hash=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if type(self) not in _NAMES:
            raise ConfigError(
                f"{type(self).__qualname__} is not registered as an item type",
                code="extension-unregistered",
                hint='put @extension_item("prefix:name") on the class',
            )

    @property
    def type(self) -> Literal["extension"]:
        """The name given to `@extension_item`, such as `"acme:note"`.

        Type checkers see one name for all of them, so that a comparison with a built-in type leaves them out; what
        tells your own types apart is `isinstance`.
        """
        name: Any = _NAMES[type(self)]
        found: Literal["extension"] = name
        return found

    @classmethod
    def migrate(cls, data: dict[str, Any], version: Any) -> Mapping[str, Any]:
        """The payload of an item that was stored with an older `schema_version`, in the form of this one.

        Args:
            data: The payload as JSON values; what it is changed to is returned.
            version: Which version it is of.

        Raises:
            ConfigError: There is no way, which is what this one says; code `"extension-version"`.
        """
        raise ConfigError(
            f"an item of {_NAMES[cls]} was stored by version {version}, and its own is {cls.schema_version}",
            code="extension-version",
            hint="define the classmethod migrate(cls, data, version)",
        )

    @property
    def data(self) -> dict[str, JsonValue]:
        """The payload: every field but the base's, as JSON values."""
        payload = (f.name for f in attrs.fields(type(self)) if f.name not in _BASE_FIELDS)
        return {name: _plain(getattr(self, name)) for name in payload}


_BASE_FIELDS = frozenset({"id", "status", "extra"})
_NAMES: dict[type, str] = {}
_CLASSES: dict[str, type[Extension]] = {}

ExtT = TypeVar("ExtT", bound=Extension)


def extension_item(name: str, /) -> Callable[[type[ExtT]], type[ExtT]]:
    """Register a subclass of `Extension` as an item type, and make it a frozen value with keyword-only fields.

    Args:
        name: The type's name on the wire, a prefix and a name with a colon between: `"acme:note"`.

    Raises:
        ConfigError: The name has no such form or is taken, the class is not a subclass of `Extension`, or its
            `schema_version` is not a version.
    """
    if name in BUILTIN_TYPES:
        raise ConfigError(
            f"{name!r} is a built-in item type", code="extension-shadows-builtin", hint='use a prefix: "acme:note"'
        )
    prefix, _, rest = name.partition(":")
    if not (_is_word(prefix) and _is_word(rest)):
        raise ConfigError(
            f"{name!r} is not a valid name for an item type",
            code="extension-name",
            hint='write a prefix, a colon and a name, in ASCII letters, digits, "_", "-" and ".": "acme:note"',
        )
    if prefix.lower() in RESERVED_PREFIXES:
        raise ConfigError(
            f"the prefix of {name!r} is the library's own", code="extension-reserved", hint='use yours: "acme:note"'
        )

    def register(cls: type[ExtT]) -> type[ExtT]:
        if cls is Extension or Extension not in cls.__mro__:
            raise ConfigError(
                f"{cls.__qualname__} is not a valid item type; expected a subclass of Extension", code="extension-base"
            )
        if name in _CLASSES:
            raise ConfigError(
                f"{name!r} is registered already, by {_CLASSES[name].__qualname__}", code="extension-duplicate"
            )
        made = frozen(kw_only=True)(cls)
        version: object = made.schema_version
        if isinstance(version, (int, str)) and version_order(version) is None:
            raise ConfigError(
                f"schema_version={version!r} of {cls.__qualname__} is not a version",
                code="extension-version",
                hint='a number from 1, or numbers with dots: "1.10"',
            )
        _NAMES[made] = name
        _CLASSES[name] = made
        return made

    return register


def _is_word(text: str) -> bool:
    return text.isascii() and text.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _plain(value: object) -> JsonValue:
    """A payload value as JSON; what JSON has no form for becomes text."""
    if value is None or isinstance(value, bool):
        return value
    for types, convert in _PLAIN:
        if isinstance(value, types):
            return convert(value)
    kind: type[object] = type(value)
    if attrs.has(kind):
        return {f.name: _plain(getattr(value, f.name)) for f in attrs.fields(kind)}
    raise TypeError(f"a payload cannot hold {with_article(kind.__qualname__)}")


def _plain_mapping(value: Any) -> JsonValue:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"a payload's mapping has text keys, not {type(key).__qualname__}")
    return {key: _plain(part) for key, part in value.items()}


def _plain_items(value: Any) -> list[JsonValue]:
    return [_plain(part) for part in value]


# Tried in order: an Enum may also be a str, a datetime is also a date.
_PLAIN: tuple[tuple[type | tuple[type, ...], Callable[[Any], JsonValue]], ...] = (
    (Enum, lambda value: _plain(value.value)),
    ((str, int, float), lambda value: value),
    ((Decimal, UUID), str),
    ((datetime, date, time), lambda value: value.isoformat()),
    (bytes, lambda value: b64encode(value).decode()),
    (Mapping, _plain_mapping),
    ((list, tuple), _plain_items),
    ((set, frozenset), lambda value: sorted(_plain_items(value), key=json.dumps)),
)


def extension_class(type: str) -> type[Extension] | None:
    """The class registered under a type's name, `None` when there is none; nothing is ever imported."""
    return _CLASSES.get(type)


def extension_types() -> Mapping[str, type[Extension]]:
    """All registered extension types, by name."""
    return MappingProxyType(_CLASSES)


Item: TypeAlias = Message | FunctionCall | FunctionCallOutput | Reasoning | Extension | Opaque
"""Whatever a log can hold."""

ModelInput: TypeAlias = str | Message | Sequence[Item] | None
"""The input of a model step: text becomes a user message; `None` continues from the log."""
