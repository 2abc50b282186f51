"""Helpers of the built-in layers: checks of settings, refusals, changes of children, text within a budget."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from noetic_py.core.items import FunctionCall, FunctionCallOutput, Item, Message
from noetic_py.core.reducers import Conflict, by_key, join, reducer
from noetic_py.core.tokens import EstimatedCounter, TokenCounter
from noetic_py.core.values import is_dict
from noetic_py.errors import ConfigError, NoContextError, ToolArgumentsInvalid
from noetic_py.memory.blocks import escape

if TYPE_CHECKING:
    from noetic_py.memory.layer import AnyLayer, Returned

MergeMode = Literal["merge", "ignore"]
"""Which changes a layer takes over from a child that succeeded."""

V = TypeVar("V")

COUNTER: Final[TokenCounter] = EstimatedCounter()
"""Counts what a layer recalls; what it estimates too low the view cuts."""

# The tokens of the tags around a layer's text, without the layer's id.
_FRAME: Final = 20
_MORE: Final = "({} more left out)"
_MISSING: Final = object()
# A distilling model reads this much of a tool output or message: the beginning and the end.
_LINE: Final = 4_000
_GAP: Final = " [...] "
_OPAQUE: Final = re.compile(r"[0-9a-fA-F-]{32,}")


# ------------------------------------------------------------------------------------------------- settings, arguments


def wrong(layer: AnyLayer, what: str, code: str, hint: str | None = None) -> ConfigError:
    """A setting that cannot be."""
    name = f"{type(layer).__name__} {layer.id!r}" if layer.id else type(layer).__name__
    return ConfigError(f"{name}: {what}", code=code, hint=hint)


def check_counts(layer: AnyLayer, code: str, **counts: object) -> None:
    """Refuse settings that are not whole numbers above 0.

    Raises:
        ConfigError: One is not; the code is `code`.
    """
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise wrong(layer, f"{name}={value!r} is not valid; expected a whole number above 0", code)


def at_least(layer: AnyLayer, code: str, least: float, /, **settings: object) -> None:
    """Check numbers among a layer's settings.

    Raises:
        ConfigError: One of them is too small, or no number.
    """
    for name, value in settings.items():
        # Written so that what cannot be compared, such as not-a-number, is refused.
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise wrong(
                layer,
                f"{name}={value!r} is not valid; expected a number from {least:g}",
                code,
                f"{name}={max(least, 1):g}",
            )


def not_blank(layer: AnyLayer, code: str, /, **settings: object) -> None:
    """Check texts among a layer's settings.

    Raises:
        ConfigError: One of them says nothing.
    """
    for name, value in settings.items():
        if not isinstance(value, str) or not value.strip():
            raise wrong(layer, f"{name}={value!r} says nothing", code, f"{name}= a text")


def is_one_of(layer: AnyLayer, code: str, name: str, value: object, known: Sequence[str]) -> None:
    """Refuse an unknown value of a setting.

    Raises:
        ConfigError: It is not; the code is `code`.
    """
    if value not in known:
        raise wrong(layer, f"{name}={value!r} is unknown", code, " or ".join(f'"{each}"' for each in known))


def refused(layer: AnyLayer, function: str, message: str, hint: str | None = None) -> ToolArgumentsInvalid:
    """The error of a function that refuses a request; a model gets it, and may try something else."""
    return ToolArgumentsInvalid(message, tool=f"{layer.id or type(layer).__name__}/{function}", hint=hint)


# ------------------------------------------------------------------------------------------------------------- children


def merged(now: Mapping[str, V], child: Returned[Any], state: Mapping[str, V], *, deep: bool = True) -> dict[str, V]:
    """A layer's entries with what a child has changed of them.

    Args:
        now: The entries here.
        child: The child.
        state: The entries in the child.
        deep: Whether entries that are mappings are merged too, instead of replaced.
    """
    return changed_by(now, state, child.began, deep=deep)


def changed_by(
    now: Mapping[str, V], after: Mapping[str, V], before: Mapping[str, V] | None, *, deep: bool = True
) -> dict[str, V]:
    """`now` with what leads from `before` to `after`; mappings inside of both are merged likewise, where it is deep.

    Where it is not known what there was before, what is there after it counts, and nothing is taken away.
    """
    known: Mapping[str, V] = {} if before is None else before
    made = dict(now)
    for key, value in after.items():
        old = known.get(key, _MISSING)
        if old is _MISSING or old != value:
            made[key] = _entry(made.get(key, _MISSING), value, old) if deep else value
    for key in known:
        if key not in after:
            made.pop(key, None)
    return made


def _entry(now: object, after: object, before: object) -> Any:
    if not is_dict(now) or not is_dict(after):
        return after
    return changed_by(now, after, before if is_dict(before) else None)


def latest(base: object, mine: object, theirs: object) -> Any:
    """Join two states changed in parallel: the changes of both, and for the same value the later one's.

    For layers whose functions put a value in place of another: there the last one counts one after the other, too.
    """
    try:
        return join(base, mine, theirs)
    except Conflict:
        if not (is_dict(mine) and is_dict(theirs)):
            return mine
    return _BY_KEY.apply(base if is_dict(base) else None, mine, theirs)


_BY_KEY: Final = by_key(reducer(latest, later=True))


def patched(values: Mapping[str, object], patch: Mapping[str, object]) -> dict[str, Any]:
    """Values with a patch: mappings are merged, everything else is replaced, and `None` takes a key away."""
    made = dict(values)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif is_dict(value):
            old = made.get(key)
            made[key] = patched(old if is_dict(old) else {}, value)
        else:
            made[key] = value
    return made


# -------------------------------------------------------------------------------------------------------- conversations


def conversation_of(layer: AnyLayer) -> str:
    """The name of a layer's conversation for readers: of its session or thread; `""` where there is none."""
    try:
        ctx = layer.ctx
    except NoContextError:
        return ""
    return readable_name(ctx.thread_id if ctx.session is None else ctx.session.session)


def readable_name(name: str) -> str:
    """A name, or `""` for a digest or a UUID, which takes more tokens than most of what is recalled."""
    return "" if _OPAQUE.search(name) else name


def unseen(items: Sequence[Item], last: str) -> list[Item]:
    """The items behind the one with an id; all of them when there is no such one."""
    found: list[Item] = []
    for item in reversed(items):
        if item.id == last:
            break
        found.append(item)
    found.reverse()
    return found


def you_said(item: Item) -> str:
    """One item of a conversation as a line for a model that reads about it, `""` for what is nothing to read."""
    match item:
        case Message() if item.text.strip():
            return f"{item.role}: {clipped(item.text, _LINE)}"
        case FunctionCall():
            return f"assistant calls {item.name}: {clipped(item.arguments, _LINE)}"
        case FunctionCallOutput():
            return f"tool: {clipped(item.text, _LINE)}"
        case _:
            return ""


def transcript(items: Iterable[Item], limit: int) -> str:
    """A conversation as text that a model reads as data, of at most `limit` characters; the oldest goes first."""
    lines = [escape(line) for item in items if (line := you_said(item))]
    return f"<conversation>\n{clipped(chr(10).join(lines), limit)}\n</conversation>"


# ----------------------------------------------------------------------------------------------------------------- text


def canonical(value: object) -> str:
    """JSON that is the same for equal values, and stays on one line."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text.splitlines()) < 2 else json.dumps(value, sort_keys=True)


def plain(text: str) -> str:
    """A text as it is when it stands on one line, and quoted as in JSON when it could be taken for something else."""
    if text and text == text.strip() and len(text.splitlines()) == 1 and not text.startswith('"'):
        return text
    return canonical(text)


def one_line(text: str, limit: int) -> str:
    """A text on one line, cut to a number of characters."""
    flat = " ".join(text[: limit * 4].split())
    return flat if len(flat) <= limit and len(text) <= limit * 4 else f"{flat[: limit - 1].rstrip()}\u2026"


def clipped(text: str, limit: int) -> str:
    """A text of at most `limit` characters: its beginning and its end."""
    if len(text) <= limit:
        return text
    if limit <= 2 * len(_GAP):
        return text[:limit]
    head = (limit - len(_GAP)) * 2 // 3
    return text[:head] + _GAP + text[len(text) - (limit - len(_GAP) - head) :]


def readable(values: Mapping[str, object]) -> list[str]:
    """Values as lines `key: value` in the order of the keys, nested ones indented; equal values give equal lines."""
    return list(_lines(values, ""))


def _lines(values: Mapping[str, object], indent: str) -> Iterable[str]:
    for key in sorted(values):
        value, name = values[key], f"{indent}{_key(key)}:"
        if is_dict(value) and value:
            yield name
            yield from _lines(value, indent + "  ")
        else:
            yield f"{name} {plain(value) if isinstance(value, str) else canonical(value)}"


def _key(key: str) -> str:
    return canonical(key) if ":" in key else plain(key)


def fits(layer: AnyLayer, lines: Sequence[str], budget: int) -> bool:
    """Whether a budget has room for all lines."""
    return sum(_tokens(line) + 1 for line in lines) <= _room(layer, budget)


def within(layer: AnyLayer, lines: Sequence[str], budget: int) -> str:
    """Return as many lines from the start as a budget has room for, and the number of the others.

    The count is an estimate; what the model's own counter finds to be too much is cut when the request is made.

    Args:
        layer: The layer.
        lines: The most important first.
        budget: Tokens.
    """
    if fits(layer, lines, budget):
        return "\n".join(lines)
    sizes = [_tokens(line) + 1 for line in lines]
    room = _room(layer, budget) - _tokens(_MORE) - 2
    kept = 0
    while kept < len(lines) and sizes[kept] <= room:
        room -= sizes[kept]
        kept += 1
    if room < 0:
        return ""
    return "\n".join([*lines[:kept], _MORE.format(len(lines) - kept)])


def newest_within(lines: Sequence[str], budget: int) -> list[str]:
    """Return as many of the last lines as a budget of tokens has room for, in their order."""
    kept: list[str] = []
    left = budget
    for line in reversed(lines):
        left -= COUNTER.count_text(line + "\n").value
        if left < 0:
            break
        kept.append(line)
    kept.reverse()
    return kept


def _room(layer: AnyLayer, budget: int) -> int:
    return budget - _FRAME - _tokens(layer.id)


def _tokens(text: str) -> int:
    return COUNTER.count_text(escape(text)).value
