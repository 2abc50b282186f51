"""Items as OpenResponses JSON, and values of any declared type as stored JSON.

The wire form ([`to_wire`][noetic_py.core.codec.to_wire], [`from_wire`][noetic_py.core.codec.from_wire] and their
twins for bytes) is what a Responses API speaks. Nothing it says is lost: a field without a name here stays in
`extra`, and an item of an unknown type, or with a content part of an unknown type, becomes an
[`Opaque`][noetic_py.core.items.Opaque] that keeps its bytes.

The stored form ([`Codec`][noetic_py.core.codec.Codec]) is for inputs, outputs and states. It is JSON in which the key
`"$"` marks what JSON has no form for; a dict of the user's that has such a key is stored in another way and comes
back equal. Decoding makes only the types that were asked for or registered; it never imports anything by name.
"""

from __future__ import annotations

from noetic_py.core.codec.stored import MAX_VALUE_BYTES, Codec
from noetic_py.core.codec.wire import MAX_ITEM_BYTES, from_wire, from_wire_json, to_wire, to_wire_json
from noetic_py.core.types import MAX_NESTING

__all__ = [
    "MAX_ITEM_BYTES",
    "MAX_NESTING",
    "MAX_VALUE_BYTES",
    "Codec",
    "from_wire",
    "from_wire_json",
    "to_wire",
    "to_wire_json",
]
