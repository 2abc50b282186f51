"""Checks of a memory bundle when a harness is built."""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

from noetic_py.core.diagnostics import warn
from noetic_py.core.memory import Memory
from noetic_py.core.types import version_order
from noetic_py.errors import ConfigError
from noetic_py.memory.functions import functions_of
from noetic_py.memory.layer import TIMEOUTS, AnyLayer, hooks_of, layers_of
from noetic_py.memory.scopes import Scope


def check_memory(memory: Memory) -> None:
    """Refuse a bundle that cannot work.

    Raises:
        ConfigError: Two layers have one id (`"layer-id"`), or a setting is wrong (`"layer-slot"`, `"layer-scope"`,
            `"layer-budget"`, `"layer-timeout"`, `"layer-placement"`, `"layer-version"`); the first state cannot be
            stored or made.
    """
    seen: dict[str, str] = {}
    for name, layer in layers_of(memory).items():
        if layer.id in seen:
            raise ConfigError(
                f"the fields {seen[layer.id]!r} and {name!r} of {type(memory).__name__} are both layer {layer.id!r}",
                code="layer-id",
                hint="give one of them another id=",
            )
        seen[layer.id] = name
        _check_layer(layer)
        if version_order(layer.schema_version) is None:
            wrong = f"schema_version={layer.schema_version!r} is not a version"
            raise _wrong(layer, wrong, "version", 'a number from 1, or numbers with dots: "1.10"')
        if is_idle(layer):
            warn(f"layer {layer.id!r} has neither a hook nor a function, so it has no effect")


# A layer's functions are tools, and providers allow no other letters in the name of one.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


def _check_layer(layer: AnyLayer) -> None:
    if _ID.fullmatch(layer.id) is None:
        raise _wrong(layer, "its id is not 1 to 40 ASCII letters, digits, '_' or '-'", "id", 'id="notes"')
    if not isfinite(layer.slot):
        raise _wrong(layer, f"slot={layer.slot!r} is not finite", "slot", "slot=Slot.ENTITY")
    if not isinstance(layer.scope, Scope):
        raise _wrong(layer, f"scope={layer.scope!r} is unknown", "scope", "scope=Scope.THREAD")
    if layer.placement not in ("anchor", "live", "auto"):
        raise _wrong(layer, f"placement={layer.placement!r} is unknown", "placement", '"anchor", "live" or "auto"')
    if layer.recall_mode not in ("atomic", "eventual"):
        raise _wrong(layer, f"recall_mode={layer.recall_mode!r} is unknown", "recall", '"atomic" or "eventual"')
    if layer.on_init_error not in ("raise", "disable"):
        raise _wrong(layer, f"on_init_error={layer.on_init_error!r} is unknown", "init", '"raise" or "disable"')
    least, most = budget_of(layer)
    if least < 0 or (most is not None and most < least):
        raise _wrong(
            layer, f"budget={layer.budget!r} has a minimum above its maximum, or below 0", "budget", "(0, 500)"
        )
    for hook, seconds in layer.timeouts.items():
        if hook not in TIMEOUTS or not seconds > 0:
            raise _wrong(
                layer,
                f"timeouts={{{hook!r}: {seconds!r}}} is not valid; expected a hook and its seconds",
                "timeout",
                "seconds > 0",
            )


def _wrong(layer: AnyLayer, what: str, code: str, hint: str) -> ConfigError:
    return ConfigError(f"layer {layer.id!r}: {what}", code=f"layer-{code}", hint=hint)


def budget_of(layer: AnyLayer) -> tuple[int, int | None]:
    """The least and the most tokens a layer wants, `None` for what there is.

    Raises:
        ConfigError: Its budget is not valid; code `"layer-budget"`.
    """
    budget: object = layer.budget
    if budget == "auto":
        return 0, None
    if isinstance(budget, int) and not isinstance(budget, bool):
        return 0, budget
    if isinstance(layer.budget, tuple) and [type(each) for each in layer.budget] == [int, int]:
        return layer.budget
    raise _wrong(
        layer, f"budget={budget!r} is not valid; expected a number of tokens", "budget", '500, (100, 500) or "auto"'
    )


def is_idle(layer: AnyLayer) -> bool:
    """Whether a layer has neither a hook nor a function, so that nothing ever comes of it."""
    cls = type(layer)
    return not hooks_of(cls) and not functions_of(cls)
