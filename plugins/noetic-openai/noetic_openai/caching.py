"""Cache settings of requests, so that the provider serves their start from its cache.

The start is what `ModelRequest.stable` says: instructions, tools, and the items that the next call will have too.
OpenAI finds what it has cached by `prompt_cache_key`. Its models from GPT-5.6 on, and those of Anthropic, look only
where a part of the content is marked; the mark of one is `prompt_cache_breakpoint`, and that of the other
`cache_control`, which OpenRouter takes for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias, get_args

from attrs import frozen

from noetic_openai.narrow import is_array
from noetic_openai.wire import Server
from noetic_py.errors import ConfigError

__all__ = ["UNTOLD", "Caching", "PromptCache", "caching_of", "mark"]

PromptCache: TypeAlias = Literal["auto", "key", "breakpoints", "off"]
"""The cache settings of a model."""

_OPENROUTER = "openrouter.ai"
_GPT = re.compile(r"(?:~?openai/)?gpt-(\d+)(?:\.(\d+))?(?![\d.])")
_MARKED_FROM = (5, 6)
_ANTHROPIC = ("anthropic/", "~anthropic/")


@frozen
class Caching:
    """The directives of one model.

    Attributes:
        key: Whether it takes `prompt_cache_key`.
        mark: The field that marks a part of the content, and its value; `None` for no marks.
        limit: How many marks a request may have.
    """

    key: bool = False
    mark: tuple[str, Mapping[str, str]] | None = None
    limit: int = 0


UNTOLD: Final = Caching()
"""No directives."""

_CONTROL = ("cache_control", {"type": "ephemeral"})
_BREAKPOINT = ("prompt_cache_breakpoint", {"mode": "explicit"})
# Anthropic takes four, and OpenAI looks at many more than these.
_MOST = 4


def caching_of(setting: PromptCache, model: str, server: Server, api: str) -> Caching:
    """The directives that a model at a server takes.

    Raises:
        ConfigError: There is no such setting, or the interface has no marks; code `"model-cache"`.
    """
    if setting not in get_args(PromptCache):
        raise ConfigError(
            f"prompt_cache={setting!r} is not a valid setting",
            code="model-cache",
            hint=f"one of {get_args(PromptCache)}",
        )
    if setting == "off":
        return UNTOLD
    if setting == "key":
        return Caching(key=True)
    if setting == "breakpoints" and not server.is_openai and api != "chat":
        raise ConfigError(
            'prompt_cache="breakpoints" has a form in chat completions only, at this server',
            code="model-cache",
            hint='api="chat"',
        )
    has_form = api == "chat" or server.is_openai
    marked = setting == "breakpoints" or (has_form and _is_marked(model, server))
    style = _BREAKPOINT if server.is_openai else _CONTROL
    return Caching(key=server.is_openai, mark=style if marked else None, limit=_MOST if marked else 0)


def _is_marked(model: str, server: Server) -> bool:
    """Whether a model finds what is cached by marks, and takes them."""
    if server.is_openai or server.host == _OPENROUTER:
        version = _GPT.match(model)
        if version is not None:
            return (int(version[1]), int(version[2] or 0)) >= _MARKED_FROM
    # Google's models cache by themselves; a mark would make them store another copy with every call, at a price.
    return server.host == _OPENROUTER and model.startswith(_ANTHROPIC)


def mark(
    messages: Sequence[dict[str, Any]], stable: int, caching: Caching, *, is_input: Callable[[Mapping[str, Any]], bool]
) -> None:
    """Mark, among the first messages of a request, the last part of each stretch of input of one role.

    The stretch that ends the stable start is one of them; those before it are where the start of earlier calls ended,
    and a provider finds there what it has cached. Of these the last ones are marked, and the first, which other
    conversations may begin with too.

    Args:
        messages: The messages or items, in the form that is sent; the marks are put into them.
        stable: How many of them are the stable start.
        caching: The directives.
        is_input: Whether a message may be marked; not those of the model.
    """
    if caching.mark is None:
        return
    ends: list[dict[str, Any]] = []
    for (inputs, _), stretch in groupby(messages[:stable], lambda each: (is_input(each), each.get("role"))):
        parts = [part for each in stretch if (part := _last_text(each)) is not None]
        if inputs and parts:
            ends.append(parts[-1])
    name, value = caching.mark
    for part in [*ends[:1], *ends[1:][1 - caching.limit :]]:
        part[name] = dict(value)


def _last_text(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last part with a text, which alone can be marked everywhere."""
    for name in ("content", "output"):
        found = message.get(name)
        if is_array(found):
            parts: list[dict[str, Any]] = found
            return next((part for part in reversed(parts) if part.get("text")), None)
    return None
