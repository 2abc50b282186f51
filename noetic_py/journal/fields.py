"""How a record declares its fields, the loops that write, check and read it, and the envelope of its bytes.

A field that is stored says so in its annotation: what it can hold, and under which key. Annotations are values here and
no texts, so a module of records does without `from __future__ import annotations`. A record whose fields have no
keys is stored as a list, in the order of the declarations; any other one as an object, in the same order.

```python
attempt: Annotated[int, StoredKey("n"), ATTEMPT] = 1
```

A field with a default is left out where it has the default. What is read is checked field by field, before anything
is made of it: a stored record can have a valid checksum and still be wrong, because it was edited or because another
program has written it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from inspect import get_annotations
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
from attrs import NOTHING, evolve, field, frozen

from noetic_py.core.codec import Codec
from noetic_py.core.codec.structure import inside
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import CodecError, CorruptRecord, TransformMissing
from noetic_py.redaction import with_article

HINT = "the record was changed after it was written; restore the store from a backup"

T = TypeVar("T")
Fits: TypeAlias = Callable[[Any], bool]


def or_none(fits: Fits) -> Fits:
    """Null, or what fits."""
    return lambda value: value is None or fits(value)


def _same(value: object, _: Codec) -> object:
    return value


# ---------------------------------------------------------------------------------------------------- declarations


@frozen(eq=False)
class ValueKind:
    """A kind of field: its values and their stored form.

    Attributes:
        expected: What it can hold, in words, for errors.
        fits: Whether a stored form is one of such a value.
        write: Makes the stored form.
        read: Makes the value of a stored form that fits.
        holds: Whether a value that was read is one, where the stored form alone does not tell.
        nested: The class, where the value has declared fields itself.
    """

    expected: str
    fits: Fits
    write: Callable[[Any, Codec], Any] = _same
    read: Callable[[Any, Codec], Any] = _same
    holds: Fits | None = None
    nested: type[Any] | None = None

    def or_null(self) -> ValueKind:
        """The same, or null; `write` and `read` know what that means."""
        return evolve(self, expected=f"{self.expected} or null", fits=or_none(self.fits))


@frozen(eq=False)
class StoredKey:
    """Under which key a field is stored.

    Attributes:
        name: The key.
        absent: What is read where the key is not there; the field's default when left out.
    """

    name: str
    absent: Any = field(factory=lambda: NOTHING)


@frozen(eq=False)
class When:
    """Says that a field is stored only in some of the records."""

    holds: Callable[[Any], bool]


@frozen(eq=False)
class NamedBy:
    """Gives the name that errors have for a value that cannot be stored, in place of the field's own."""

    name: Callable[[Any], str]


_Mark: TypeAlias = Literal["always", "needed", "of the run", "anywhere", "closed"]
ALWAYS: _Mark = "always"
"""Written also where it has its default."""
NEEDED: _Mark = "needed"
"""Likewise, and a record without it is refused. A field without a default needs no mark."""
OF_THE_RUN: _Mark = "of the run"
"""On a path: the record is the run's, so the path is empty; without a mark it is a step's."""
ANYWHERE: _Mark = "anywhere"
"""On a path: the record is a step's or the run's."""
CLOSED: _Mark = "closed"
"""On a path: a key that this version does not know is refused. Elsewhere it is passed over: a later version's."""


@frozen(eq=False)
class Field:
    """One stored field of a class, as its annotation declares it."""

    name: str
    key: str | int
    values: ValueKind
    default: Any
    absent: Any
    always: bool
    needed: bool
    when: Callable[[Any], bool] | None
    named: Callable[[Any], str] | None

    def is_default(self, value: object) -> bool:
        """Whether a value is the default; one of another type is not asked, because it may be anything."""
        default = self.default
        return value is default or (value.__class__ is default.__class__ and bool(value == default))

    def is_written(self, record: object, value: object) -> bool:
        """Whether it is stored in this record."""
        return (self.always or not self.is_default(value)) and (self.when is None or self.when(record))


@frozen(eq=False)
class Form:
    """How a class is stored.

    Attributes:
        made: The class.
        fields: Its stored fields, in the order in which they are stored.
        by_key: The same by their keys, or by their places in a list.
        is_row: Whether it is a list; an object otherwise.
        needed: The fields without which one is refused.
        conditional: The fields that are stored only in some.
        absent: What is read of fields that are not there, where that is not their default.
        has_path: Whether it is a record, which has a path; a part of one has none.
        marks: The marks of its path.
        check: Its method `check`, where it has one: it checks, once a record is read, what no single field tells.
    """

    made: type[Any]
    fields: tuple[Field, ...]
    by_key: Mapping[str | int, Field]
    is_row: bool
    needed: tuple[Field, ...]
    conditional: tuple[Field, ...]
    absent: Mapping[str, Any]
    has_path: bool
    marks: frozenset[str]
    check: Callable[[Any], None] | None


_FORMS: dict[type[object], Form] = {}


def form_of(made: type[object]) -> Form:
    """How a class is stored, as its annotations declare it."""
    found = _FORMS.get(made)
    if found is None:
        found = _FORMS[made] = _form(made)
    return found


def _form(made: type[object]) -> Form:
    hints = get_annotations(made)
    defaults = {each.name: each.default for each in attrs.fields(made)} if attrs.has(made) else vars(made)
    marks = frozenset(getattr(hints.get("path"), "__metadata__", ()))
    fields: list[Field] = []
    for name, hint in hints.items():
        if name != "path":
            fields += _declared(name, getattr(hint, "__metadata__", ()), defaults.get(name, NOTHING), len(fields))
    return Form(
        made,
        tuple(fields),
        by_key={each.key: each for each in fields},
        is_row=all(isinstance(each.key, int) for each in fields),
        needed=tuple(each for each in fields if each.needed and each.when is None),
        conditional=tuple(each for each in fields if each.when is not None),
        absent={each.name: each.absent for each in fields if each.absent is not NOTHING},
        has_path="path" in hints,
        marks=marks,
        check=getattr(made, "check", None),
    )


def _declared(name: str, metadata: tuple[object, ...], default: Any, place: int) -> list[Field]:
    """The fields of one annotation; several where a value has another key in another form."""
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class, whatever its stub says
        default = default.factory()
    fields: list[Field] = []
    groups: list[list[object]] = [[]]
    for each in metadata:
        if isinstance(each, StoredKey) and groups[-1]:
            groups.append([])
        groups[-1].append(each)
    for group in groups:
        values = _only(group, ValueKind)
        if values is not None:
            key, when, named = _only(group, StoredKey), _only(group, When), _only(group, NamedBy)
            absent = NOTHING if key is None else key.absent
            needed = NEEDED in group or (default is NOTHING and absent is NOTHING)
            fields.append(
                Field(
                    name,
                    place if key is None else key.name,
                    values,
                    default,
                    absent,
                    always=needed or ALWAYS in group,
                    needed=needed,
                    when=None if when is None else when.holds,
                    named=None if named is None else named.name,
                )
            )
    return fields


def _only(group: list[object], kind: type[T]) -> T | None:
    return next((each for each in group if isinstance(each, kind)), None)


# ---------------------------------------------------------------------------------------------------- the loops


def write_fields(record: object, codec: Codec) -> object:
    """The stored form of what has declared fields.

    Raises:
        CodecError: A value cannot be stored; `where` begins with the name of its field.
    """
    form = form_of(record.__class__)
    each: Field | None = None
    try:
        if form.is_row:
            row: list[object] = []
            count = 0
            for each in form.fields:
                value = getattr(record, each.name)
                row.append(each.values.write(value, codec))
                if each.is_written(record, value):
                    count = len(row)
            return row[:count]
        tree: dict[str | int, object] = {}
        for each in form.fields:
            value = getattr(record, each.name)
            if value is each.default and not each.always:
                continue  # most fields of most records, so nothing is called for them
            if each.is_written(record, value):
                tree[each.key] = each.values.write(value, codec)
    except CodecError as error:
        name = "" if each is None else each.name if each.named is None else each.named(record)
        raise inside(error, name) from error
    return tree


def check_fields(form: Form, fields: Any, kind: str, path: tuple[str, ...], prefix: str = "") -> None:
    """Check a stored form, as JSON, field by field.

    Args:
        form: How it is to be.
        fields: The stored form.
        kind: The stored name of the record, for errors.
        path: Its path, likewise.
        prefix: What stands before the names of fields in errors.

    Raises:
        CodecError: A field does not fit; `where` is its name.
    """
    if not (is_list(fields) if form.is_row else is_dict(fields)):
        raise refuse(fields, prefix.removesuffix(".") or "form", kind, "a list" if form.is_row else "an object", path)
    for each in form.needed:
        if not _has(fields, each):
            raise _without(kind, prefix + each.name, path)
    known = 0
    for each, value in _stored(form, fields):
        known += 1
        if not each.values.fits(value):
            raise refuse(value, prefix + each.name, kind, each.values.expected, path)
        if each.values.nested is not None:
            check_fields(form_of(each.values.nested), value, kind, path, f"{prefix}{each.name}.")
    if known < len(fields) and (form.is_row or CLOSED in form.marks):
        raise CodecError(
            f"{with_article(kind)} with more fields than this version knows",
            path=path,
            hint="install a newer noetic-py",
        )


def read_fields(form: Form, fields: Any, codec: Codec, kind: str, path: tuple[str, ...], prefix: str = "") -> object:
    """The value of a stored form that was checked.

    Args:
        form: How it is stored.
        fields: The stored form.
        codec: What reads the values in it.
        kind: The stored name of the record, for errors.
        path: Its path, likewise.
        prefix: What stands before the names of fields in errors.

    Raises:
        CodecError: What was read does not fit; `where` is the field's name, where one alone tells.
    """
    found: dict[str, object] = {"path": path} if form.has_path else {}
    found |= form.absent
    for each, tree in _stored(form, fields):
        values = each.values
        if values.nested is None:
            value = values.read(tree, codec)
        else:
            value = read_fields(form_of(values.nested), tree, codec, kind, path, f"{prefix}{each.name}.")
        if values.holds is not None and not values.holds(value):
            raise refuse(value, prefix + each.name, kind, values.expected, path)
        found[each.name] = value
    if attrs.has(form.made):
        record = form.made(**found)
    else:
        record = object.__new__(form.made)
        for name, value in found.items():
            setattr(record, name, value)
    for each in form.conditional:
        there, expected = _has(fields, each), each.when is None or each.when(record)
        if there and not expected:
            raise refuse(fields[each.key], prefix + each.name, kind, "none in such a record", path)
        if expected and each.needed and not there:
            raise _without(kind, prefix + each.name, path)
    return record


def _stored(form: Form, fields: Any) -> Iterable[tuple[Field, object]]:
    """The fields that are there, with their stored forms."""
    if form.is_row:
        return zip(form.fields, fields, strict=False)
    by_key = form.by_key
    return [(by_key[key], value) for key, value in fields.items() if key in by_key]


def _has(fields: Any, field: Field) -> bool:
    return field.key < len(fields) if isinstance(field.key, int) else field.key in fields


def _without(kind: str, name: str, path: tuple[str, ...]) -> CodecError:
    return CodecError(f"{with_article(kind)} without its {name}", where=name, path=path, hint=HINT)


def refuse(value: object, name: str, kind: str, expected: str, path: tuple[str, ...] = ()) -> CodecError:
    """The error for a stored value that does not fit."""
    return CodecError(
        f"{value!r:.80} is not a valid {name} of {with_article(kind)}; expected {expected}",
        where=name,
        path=path,
        hint=HINT,
    )


_MARK = 0xF5
_BEGIN = bytes((_MARK,))
_LENGTH = 4
_HINTS = {
    "signing": "pip install noetic-signing, then NOETIC_SIGNING_TRUSTED, or Harness(record_transforms=[Signing(...)])"
}


def mark_transformed(name: str, payload: bytes) -> bytes:
    """Mark the bytes that a transform returned with its name."""
    mark = name.encode()
    return b"".join((_BEGIN, bytes((len(mark),)), mark, payload))


def split_transformed(payload: bytes) -> tuple[str, bytes] | None:
    """The name of the last transform and the bytes it returned; `None` when no transform made these bytes."""
    if payload[:1] != _BEGIN:
        return None
    start = 2 + (payload[1] if len(payload) > 1 else 0)
    return payload[2:start].decode("ascii", "backslashreplace"), payload[start:]


def refuse_transformed(payload: bytes, path: tuple[str, ...] = ()) -> None:
    """Refuse bytes that only a transform can read.

    Raises:
        TransformMissing: They are such bytes.
    """
    found = split_transformed(payload)
    if found is not None:
        raise missing(found[0], path)


def missing(name: str, path: tuple[str, ...] = ()) -> TransformMissing:
    """The error for a transform that is needed and not here."""
    return TransformMissing(
        f"the run was written through the record transform {name!r:.80}, which is not here",
        transform=name,
        path=path,
        hint=_HINTS.get(name, "install and configure the plugin that has it, or Harness(record_transforms=[...])"),
    )


def wrap_summary(name: str, summary: bytes, trailer: bytes) -> bytes:
    """A run's summary and the trailer of transforms, marked with the name of one."""
    return mark_transformed(name, len(summary).to_bytes(_LENGTH, "big") + summary + trailer)


def summary_trailer(stored: bytes) -> bytes:
    """The trailer that transforms stored after a summary; empty when there is none."""
    found = split_transformed(stored)
    return b"" if found is None else found[1][_LENGTH + len(plain_summary(stored)) :]


def plain_summary(stored: bytes) -> bytes:
    """The summary without the trailer of transforms."""
    found = split_transformed(stored)
    if found is None:
        return stored
    size = int.from_bytes(found[1][:_LENGTH], "big")
    return found[1][_LENGTH : _LENGTH + size]


def summary_fields(stored: bytes) -> dict[str, object]:
    """The fields of the summary of a run or a session; empty when there is none.

    Raises:
        CorruptRecord: It is not a JSON object.
    """
    plain = plain_summary(stored)
    if not plain:
        return {}
    try:
        fields: object = json.loads(plain)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise CorruptRecord("the summary of a run is not a JSON object", hint="restore the store from a backup")
    return fields  # pyright: ignore[reportUnknownVariableType]  # any JSON
