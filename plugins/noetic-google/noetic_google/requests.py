"""Requests: settings, tools, schemas and thinking."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from noetic_google.content import content_of, contents_of, is_before_3
from noetic_py.core.secrets import revealed
from noetic_py.errors import ConfigError, UnknownKeyword
from noetic_py.models import ModelProfile, ModelRequest, ModelSettings, OutputSchema

if TYPE_CHECKING:
    from google.genai.types import Content, GenerateContentConfig

__all__ = ["content_request", "profile_of_gemini"]

_SAME: Final = ("temperature", "top_p", "max_output_tokens", "seed")
_READ: Final = frozenset({*_SAME, "tool_choice", "stop", "reasoning_effort", "timeout", "extra"})
# Models of the generation 2 take a number of thinking tokens, later ones a level.
_BUDGETS: Final[Mapping[str, int]] = {"minimal": 512, "low": 2048, "medium": 8192, "high": 24_576}


def profile_of_gemini(model: str) -> ModelProfile:
    """The properties of a model by its name: its window, and the maximum length of an answer."""
    if not model.rpartition("/")[2].startswith("gemini-"):
        return ModelProfile()
    return ModelProfile(context_window=1_048_576, max_output_tokens=8192 if "gemini-2.0" in model else 65_536)


def content_request(request: ModelRequest, model: str) -> tuple[list[Content], GenerateContentConfig]:
    """The contents and the configuration of the SDK's `generate_content_stream` for a request.

    Args:
        request: What to ask.
        model: The provider's name of the model.

    Raises:
        UnknownKeyword: A setting is none that Gemini has (code `"model-settings"`).
        ConfigError: The request holds what the API cannot carry (code `"model-content"`), or a field of `extra` is not
            one of the SDK's `GenerateContentConfig` (`"model-settings"`).
    """
    from google.genai.types import Content, GenerateContentConfig
    from pydantic import ValidationError

    settings = request.settings
    _check_settings(settings, model)
    extra: dict[str, Any] = dict(revealed(settings.get("extra", {})))
    # Tools that the provider runs stand beside ours.
    tools: list[Any] = [*_tools(request), *(extra.pop("tools", None) or ())]
    content = content_of(request.items, request.instructions, model)
    fields: dict[str, Any] = {name: value for name, value in settings.items() if name in _SAME}
    if "stop" in settings:
        fields["stop_sequences"] = list(settings["stop"])
    if request.tools and "tool_choice" in settings:
        fields["tool_config"] = {"function_calling_config": _choice(settings["tool_choice"])}
    if "reasoning_effort" in settings:
        fields["thinking_config"] = _thinking(settings["reasoning_effort"], model)
    if request.output is not None:
        # Before the generation 3 the API takes no schema beside tools.
        if request.output.strict and not (tools and is_before_3(model)):
            fields |= {"response_mime_type": "application/json", "response_json_schema": dict(request.output.schema)}
        else:
            content.system.append(_asked_for(request.output))
    if tools:
        fields["tools"] = tools
    if content.system:
        fields["system_instruction"] = {"parts": content.system}
    # The framework alone calls tools, repeats and asks on: the budget and the journal see each call.
    fields |= {"automatic_function_calling": {"disable": True}, "automatic_continuation": False}
    try:
        contents = [Content.model_validate(each) for each in contents_of(content.turns)]
        return contents, GenerateContentConfig.model_validate({**fields, **extra})
    except ValidationError as error:
        raise _refused(error.errors(include_url=False, include_input=False)[0], model) from None


def _refused(problem: Mapping[str, Any], model: str) -> ConfigError:
    where = ".".join(str(each) for each in problem["loc"])
    return ConfigError(
        f"{model} cannot be asked with {where or 'this'}: {problem['msg']}",
        code="model-settings",
        hint="the fields of extra={...} are those of GenerateContentConfig in google-genai",
    )


def _check_settings(settings: ModelSettings, model: str) -> None:
    for name in settings:
        if name not in _READ:
            raise UnknownKeyword(
                f"{model} takes no setting {name!r}; expected one of {', '.join(sorted(_READ))}",
                code="model-settings",
                hint="leave it out; a field of the provider's own goes into extra={...}",
            )


def _thinking(effort: str, model: str) -> dict[str, Any]:
    if is_before_3(model):
        return {"include_thoughts": True, "thinking_budget": _BUDGETS[effort]}
    # The larger models have no smaller level.
    level = "low" if effort == "minimal" and "-pro" in model else effort
    return {"include_thoughts": True, "thinking_level": level.upper()}


def _choice(choice: str) -> dict[str, Any]:
    modes = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
    return {"mode": modes[choice]} if choice in modes else {"mode": "ANY", "allowed_function_names": [choice]}


def _tools(request: ModelRequest) -> list[dict[str, Any]]:
    if not request.tools:
        return []
    return [{"function_declarations": [_declaration(tool) for tool in request.tools]}]


def _declaration(tool: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": tool["name"], "description": tool.get("description") or ""}
    parameters = tool.get("parameters")
    if parameters and parameters.get("properties"):
        found["parameters_json_schema"] = parameters
    return found


def _asked_for(output: OutputSchema) -> dict[str, Any]:
    """The wish for an answer of a schema in words, where the API does not enforce it."""
    schema = json.dumps(dict(output.schema), ensure_ascii=False)
    return {
        "text": f"Answer with one JSON value that fits the following JSON schema, and write nothing else.\n{schema}"
    }
