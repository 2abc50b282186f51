"""The stored form of a step's output, and the output from its stored form."""

from __future__ import annotations

from noetic_py.context.step import AnyStep
from noetic_py.core.codec import Codec
from noetic_py.engine.fingerprint import declared_input, declared_output, known_types, read_as
from noetic_py.engine.kind import Kind
from noetic_py.errors import CodecError
from noetic_py.journal.values import Stored
from noetic_py.steps.handoff import HandoffOutput, HandoffSourceSpec


def packed(output: object) -> object:
    """What a step has given that might have handed over, as it is stored."""
    to, given = (output.step, output.input) if isinstance(output, HandoffOutput) else (None, output)
    return {"to": to, "value": given}


def read_output(kind: Kind, output: Stored, step: AnyStep, codec: Codec) -> object:
    """An output from its stored form."""
    return _handed(output, step, codec) if kind.hands_over else read_value(output, step, codec)


def _handed(output: Stored, step: AnyStep, codec: Codec) -> object:
    """What a step gave that might have handed over."""
    to, value = output.tree["to"], Stored(output.tree["value"])
    if to is None:
        return read_value(value, step, codec)
    spec: object = step.spec
    target = spec.targets.steps().get(to) if isinstance(spec, HandoffSourceSpec) else None
    return HandoffOutput(to, read_as(object if target is None else declared_input(target), value.tree, codec))


def read_value(value: Stored, step: AnyStep, codec: Codec) -> object:
    """A step's output from its stored form. A section may have steps inside that the flow does not declare."""
    kind = declared_output(step)
    try:
        return read_as(kind, value.tree, codec)
    except CodecError:
        inner = known_types(step)
        if not inner:
            raise
        return read_as(kind, value.tree, Codec(inner))
