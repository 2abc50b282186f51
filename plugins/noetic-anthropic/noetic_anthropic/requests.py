"""Requests: settings, tools, schemas, thinking, and what the provider is to cache."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

from noetic_anthropic.content import Content, content_of, messages_of
from noetic_py.core.secrets import revealed
from noetic_py.core.values import is_list, is_mapping
from noetic_py.errors import ConfigError, UnknownKeyword
from noetic_py.models import ModelProfile, ModelRequest, ModelSettings, OutputSchema

__all__ = ["PromptCache", "check_cache", "message_request", "profile_of_claude"]

PromptCache: TypeAlias = Literal["5m", "1h", "off"]
"""How long the provider keeps the start of a request that stays the same."""

_READ = frozenset(
    {
        "temperature",
        "top_p",
        "max_output_tokens",
        "tool_choice",
        "parallel_tool_calls",
        "stop",
        "reasoning_effort",
        "timeout",
        "extra",
    }
)
# Models up to 4.5 take a number of thinking tokens, those since 4.6 a level of effort.
_COUNTED: Final = re.compile(r"claude-(?:3-|(?:opus|sonnet|haiku)-4-(?:[0-5](?!\d)|\d{8}))")
_WITHOUT_SCHEMAS: Final = re.compile(r"claude-(?:3-|(?:opus|sonnet|haiku)-4-(?:[0-4](?!\d)|\d{8}))")
_BUDGETS: Mapping[str, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
_LEAST_BUDGET: Final = 1024
_EFFORTS: Mapping[str, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high"}
_LONGEST: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"claude-3-7"), 64_000),
    (re.compile(r"claude-3-5"), 8192),
    (re.compile(r"claude-3-"), 4096),
    (re.compile(r"claude-opus-4-(?:[01](?!\d)|\d{8})"), 32_000),
)
_LONG: Final = 64_000
_REFERENCE: Final = re.compile(r'"\$ref": "#/\$defs/([^"]+)"')
# The API takes four marks; one is for the system prompt and the tools.
_MARKS: Final = 3


def profile_of_claude(model: str) -> ModelProfile:
    """The properties of a model by its name: its window, and the maximum length of an answer."""
    longest = next((tokens for pattern, tokens in _LONGEST if pattern.match(model)), _LONG)
    return ModelProfile(context_window=200_000 if _COUNTED.match(model) else 1_000_000, max_output_tokens=longest)


def message_request(request: ModelRequest, model: str, profile: ModelProfile, cache: PromptCache) -> dict[str, Any]:
    """The parameters of the SDK's `messages.create` for a request.

    Args:
        request: What to ask.
        model: The provider's name of the model.
        profile: What is known of it.
        cache: How long the provider keeps the start.

    Raises:
        UnknownKeyword: A setting is none that Claude has (code `"model-settings"`).
        ConfigError: The request holds what the API cannot carry (code `"model-content"`).
    """
    settings = request.settings
    _check_settings(settings, model)
    most = settings.get("max_output_tokens") or profile.max_output_tokens or _LONG
    content = content_of(request.items, request.instructions)
    params: dict[str, Any] = {"model": model, "max_tokens": most, **_tools(request)}
    params.update({name: value for name, value in settings.items() if name in ("temperature", "top_p")})
    if "stop" in settings:
        params["stop_sequences"] = list(settings["stop"])
    config = _thinking(params, settings, model)
    if request.output is not None:
        schema = None if _WITHOUT_SCHEMAS.match(model) else _schema(request.output.schema)
        if schema is not None and request.output.strict:
            config["format"] = {"type": "json_schema", "schema": schema}
        else:
            content.system.append(_asked_for(request.output))
    if config:
        params["output_config"] = config
    if cache != "off" and request.stable > 0:
        _mark(content, request, params, {"type": "ephemeral"} if cache == "5m" else {"type": "ephemeral", "ttl": cache})
    if content.system:
        params["system"] = content.system
    params["messages"] = messages_of(content.turns)
    _add_extra(params, settings)
    return params


def check_cache(cache: PromptCache) -> None:
    """Refuse a value that is not a setting of the cache.

    Raises:
        ConfigError: It is not; code `"model-cache"`.
    """
    known = get_args(PromptCache)
    if cache not in known:
        raise ConfigError(
            f"prompt_cache={cache!r:.60} is not a valid setting; expected one of {', '.join(known)}",
            code="model-cache",
            hint='prompt_cache="1h" keeps the start of a conversation for an hour',
        )


def _check_settings(settings: ModelSettings, model: str) -> None:
    for name in settings:
        if name not in _READ:
            raise UnknownKeyword(
                f"{model} takes no setting {name!r}; expected one of {', '.join(sorted(_READ))}",
                code="model-settings",
                hint="leave it out; a field of the provider's own goes into extra={...}",
            )


def _thinking(params: dict[str, Any], settings: ModelSettings, model: str) -> dict[str, Any]:
    """Say how hard to think; gives what belongs to the configuration of the output."""
    effort = settings.get("reasoning_effort")
    if effort is None:
        return {}
    if _COUNTED.match(model):
        # Thinking is a part of the answer's tokens, and where these do not suffice there is none.
        budget = min(_BUDGETS[effort], params["max_tokens"] - 1)
        if budget >= _LEAST_BUDGET:
            params["thinking"] = {"type": "enabled", "budget_tokens": budget}
        return {}
    params["thinking"] = {"type": "adaptive"}
    return {"effort": _EFFORTS[effort]}


def _add_extra(params: dict[str, Any], settings: ModelSettings) -> None:
    extra: dict[str, Any] = dict(revealed(settings.get("extra", {})))
    tools = extra.pop("tools", None)
    if tools:
        # Tools that the provider runs stand beside ours.
        params["tools"] = [*params.get("tools", ()), *tools]
    if extra:
        params["extra_body"] = extra


# ---------------------------------------------------------------------------------------------------- tools


def _tools(request: ModelRequest) -> dict[str, Any]:
    if not request.tools:
        return {}
    fields: dict[str, Any] = {"tools": [_tool(tool) for tool in request.tools]}
    settings = request.settings
    choice = settings.get("tool_choice")
    if choice is None and "parallel_tool_calls" not in settings:
        return fields
    kinds = {None: "auto", "auto": "auto", "required": "any", "none": "none"}
    chosen: dict[str, Any] = {"type": kinds[choice]} if choice in kinds else {"type": "tool", "name": choice}
    if "parallel_tool_calls" in settings and choice != "none":
        chosen["disable_parallel_tool_use"] = not settings["parallel_tool_calls"]
    return {**fields, "tool_choice": chosen}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters: Any = tool.get("parameters") or {"type": "object", "properties": {}}
    strict = _schema(parameters) if tool.get("strict") else None
    found: dict[str, Any] = {"name": tool["name"], "input_schema": parameters if strict is None else strict}
    if tool.get("description"):
        found["description"] = tool["description"]
    if strict is not None:
        found["strict"] = True
    return found


# ---------------------------------------------------------------------------------------------------- schemas


def _asked_for(output: OutputSchema) -> dict[str, Any]:
    """The wish for an answer of a schema in words, where the API cannot enforce it."""
    schema = json.dumps(dict(output.schema), ensure_ascii=False)
    return {
        "type": "text",
        "text": f"Answer with one JSON value that fits the following JSON schema, and write nothing else.\n{schema}",
    }


def _schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """A schema in the form that the API enforces; `None` where it has none: for free keys and for recursion."""
    from anthropic import transform_schema

    if _has_free_keys(schema) or _is_recursive(schema):
        return None
    try:
        return transform_schema(dict(schema))
    except ValueError:
        return None


def _has_free_keys(schema: object) -> bool:
    """Whether an object of the schema takes keys that are not declared."""
    if is_list(schema):
        return any(_has_free_keys(part) for part in schema)
    if not is_mapping(schema):
        return False
    if schema.get("type") == "object" and (
        "properties" not in schema or schema.get("additionalProperties", False) is not False
    ):
        return True
    return any(_has_free_keys(part) for key, part in schema.items() for part in _subschemas(key, part))


def _subschemas(key: str, value: Any) -> Iterable[object]:
    # A property may have a keyword's name, so the maps of subschemas are walked by value.
    if key in ("properties", "$defs", "definitions") and is_mapping(value):
        return list(value.values())
    return [value] if key in ("items", "anyOf", "allOf", "oneOf", "prefixItems") else []


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Whether a definition refers to itself, by itself or through others."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    refers = {name: set(_REFERENCE.findall(json.dumps(part))) for name, part in definitions.items()}
    for name in refers:
        seen, left = set[str](), [*refers[name]]
        while left:
            following = left.pop()
            if following == name:
                return True
            if following not in seen:
                seen.add(following)
                left += refers.get(following, ())
    return '"$ref": "#"' in json.dumps(dict(schema))


# ---------------------------------------------------------------------------------------------------- the cache


def _mark(content: Content, request: ModelRequest, params: dict[str, Any], mark: Mapping[str, str]) -> None:
    """Mark where the start ends that the next call will have too, and where those of earlier calls have ended.

    The provider looks for what it has cached at the marks and a few blocks before. Tools stand before the system
    prompt, and this before the messages; a mark covers all that stands before it.
    """
    start = content_of(request.items[: request.stable], request.instructions)
    # Later items can still change the start: an output that is moved up to its call.
    pairs = enumerate(zip(start.turns, content.turns, strict=False))
    stable = next((place for place, (one, other) in pairs if one != other), len(start.turns))
    if content.system:
        content.system[-1]["cache_control"] = dict(mark)
    elif params.get("tools"):
        params["tools"][-1]["cache_control"] = dict(mark)
    turns = content.turns[:stable]
    ends = [
        block
        for place, (role, block) in enumerate(turns)
        if role == "user" and (place + 1 == len(turns) or turns[place + 1][0] != "user")
    ]
    for block in ends[-_MARKS:]:
        block["cache_control"] = dict(mark)
