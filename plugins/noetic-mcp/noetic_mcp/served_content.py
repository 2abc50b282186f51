"""Serves steps and tools as resources and prompts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from attrs import frozen
from mcp import MCPError, types
from mcp.server.lowlevel import Server
from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from noetic_mcp.elicitation import resolved
from noetic_mcp.served_run import Request, Runs
from noetic_mcp.served_step import Served, ServedStep, block_of, served_step
from noetic_py import Message, Tool
from noetic_py.context.step import AnyStep
from noetic_py.core.control import AnyResult
from noetic_py.core.items import ContentPart, InputFile, InputImage, InputText
from noetic_py.core.values import is_array
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.tools.definition import AnyTool, render_output

__all__ = ["Completions", "ServedPrompts", "ServedResource", "ServedResources", "serve_content", "served_resource"]

_MOST_COMPLETIONS: Final = 100

Contents: TypeAlias = "types.TextResourceContents | types.BlobResourceContents"


def serve_content(
    server: Server[Any],
    runs: Runs,
    resources: Mapping[str, AnyStep | AnyTool] | None,
    prompts: Mapping[str, AnyStep | AnyTool] | None,
) -> None:
    """Have a server offer resources and prompts; what is not given has no handler, so that clients are not told of it.

    Raises:
        ConfigError: One is not a step or a tool, or the arguments of a resource are not those of its URI.
    """
    read = ServedResources(runs, Served({} if resources is None else resources, served_resource))
    asked = ServedPrompts(runs, Served({} if prompts is None else prompts, served_step))
    if resources is not None:
        server.add_request_handler("resources/list", types.PaginatedRequestParams, read.list)
        server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, read.templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, read.read)
    if prompts is not None:
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, asked.list)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, asked.get)
    if resources is not None or prompts is not None:
        complete = Completions(read.served, asked.served).complete
        server.add_request_handler("completion/complete", types.CompleteRequestParams, complete)


@frozen(eq=False)
class ServedResource:
    """A step or a tool that clients read.

    Attributes:
        listed: How the list of resources, or that of templates, describes it.
        served: The step.
        template: The template of its URIs; `None` for one URI.
    """

    listed: types.Resource | types.ResourceTemplate
    served: ServedStep
    template: UriTemplate | None

    def given(self, uri: str) -> object:
        """The step's input for a URI.

        Raises:
            ToolArgumentsInvalid: A value in the URI does not fit the step.
        """
        is_tool = self.served.step.kind == "tool"
        if self.template is None:
            return {} if is_tool else None
        values = self.template.match(uri) or {}
        return self.served.read(values if is_tool else {"input": next(iter(values.values()), None)})


def served_resource(uri: str, given: AnyStep | AnyTool) -> ServedResource:
    """Make a step or a tool readable.

    Raises:
        ConfigError: It is neither, or its arguments are not those of the URI; code `"mcp-resource"`.
    """
    if ":" not in uri:
        raise ConfigError(
            f"{uri!r} is not a valid URI of a resource; expected scheme:rest",
            code="mcp-resource",
            hint='resources={"tides://brest": step}, or {"tides://{port}": step}',
        )
    try:
        template = UriTemplate.parse(uri) if UriTemplate.is_template(uri) else None
    except InvalidUriTemplate as error:
        raise ConfigError(f"{uri!r} is not a valid URI template: {error}", code="mcp-resource") from error
    _check_variables(uri, given, [] if template is None else template.variable_names)
    served = served_step(given.name if isinstance(given, Tool) else "resource", given)
    name, about = given.name if isinstance(given, Tool) else given.id, served.listed.description
    listed: types.Resource | types.ResourceTemplate = (
        types.Resource(uri=uri, name=name, description=about)
        if template is None
        else types.ResourceTemplate(uri_template=uri, name=name, description=about)
    )
    return ServedResource(listed, served, template)


def _check_variables(uri: str, given: object, variables: Sequence[str]) -> None:
    """Refuse a URI whose variables are not what its step or tool needs."""
    if not isinstance(given, Tool):
        if len(variables) > 1:
            raise ConfigError(
                f"the resource {uri!r} has {len(variables)} variables, and a step takes one",
                code="mcp-resource",
                hint="serve a tool, whose arguments are the variables",
            )
        return
    parameters: Mapping[str, Any] = given.parameters
    known, needed = parameters.get("properties", {}), parameters.get("required", ())
    missing = [name for name in needed if name not in variables]
    unknown = [name for name in variables if name not in known]
    if missing or unknown:
        raise ConfigError(
            f"the resource {uri!r} is the tool {given.name!r}, which needs arguments that the URI does not have: "
            f"{missing[0]!r}"
            if missing
            else f"the resource {uri!r} has a variable {unknown[0]!r}, which is not an argument of {given.name!r}",
            code="mcp-resource",
            hint='a variable for each argument: {"tides://{port}": tool}',
        )


@frozen(eq=False)
class ServedResources:
    """Steps and tools that clients read, by their URIs: each reading is a run."""

    runs: Runs
    served: Served[ServedResource]

    async def list(self, ctx: object, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        """What clients can read by one URI."""
        listed = [each.listed for each in self.served.now().values()]
        return types.ListResourcesResult(resources=[each for each in listed if isinstance(each, types.Resource)])

    async def templates(
        self, ctx: object, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """What clients can read by the URIs of a template."""
        listed = [each.listed for each in self.served.now().values()]
        return types.ListResourceTemplatesResult(
            resource_templates=[each for each in listed if isinstance(each, types.ResourceTemplate)]
        )

    async def read(
        self, ctx: Request, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        """Run a resource's step, and show its output."""
        uri = str(params.uri)
        found = self._found(uri)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {uri!r:.200}", {"uri": uri})
        try:
            given = found.given(uri)
        except NoeticError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from error
        result = await _run(self.runs, ctx, params, found.served.step, given)
        if isinstance(result, types.InputRequiredResult):
            return result
        value = _value(result)
        shown = _rendered(value, uri)
        if isinstance(shown, str):
            kind = "text/plain" if isinstance(value, str) else "application/json"
            return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=shown, mime_type=kind)])
        return types.ReadResourceResult(contents=[_contents(uri, part) for part in shown])

    def _found(self, uri: str) -> ServedResource | None:
        """The resource with this URI, or the first one whose template it fits."""
        known = self.served.now()
        exact = known.get(uri)
        if exact is not None and exact.template is None:
            return exact
        matching = (each for each in known.values() if each.template is not None)
        return next((each for each in matching if each.template and each.template.match(uri) is not None), None)


@frozen(eq=False)
class ServedPrompts:
    """Steps and tools whose output is a prompt, by their names: each request is a run."""

    runs: Runs
    served: Served[ServedStep]

    async def list(self, ctx: object, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        """The prompts, with their arguments."""
        return types.ListPromptsResult(prompts=[_prompt(each.listed) for each in self.served.now().values()])

    async def get(
        self, ctx: Request, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        """Run a prompt's step, and give its output as messages."""
        served = next((each for each in self.served.now().values() if each.listed.name == params.name), None)
        if served is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r:.80}")
        try:
            given = served.read(dict(params.arguments or {}))
        except NoeticError as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from error
        result = await _run(self.runs, ctx, params, served.step, given)
        if isinstance(result, types.InputRequiredResult):
            return result
        value = _value(result)
        said = value if is_array(value) and value and all(isinstance(each, Message) for each in value) else (value,)
        return types.GetPromptResult(messages=[each for one in said for each in _messages(one, params.name)])


@frozen(eq=False)
class Completions:
    """Completes arguments of prompts and of URI templates whose types list their values, such as `Literal`."""

    resources: Served[ServedResource]
    prompts: Served[ServedStep]

    async def complete(self, ctx: object, params: types.CompleteRequestParams) -> types.CompleteResult:
        """The values of an argument that begin with what was typed."""
        schema, typed = self._schema(params), params.argument.value.casefold()
        given: Mapping[str, Any] = resolved(schema.get("properties", {}).get(params.argument.name, {}), schema)
        listed = [True, False] if given.get("type") == "boolean" else given.get("enum", [given.get("const")])
        texts = [each if isinstance(each, str) else json.dumps(each) for each in listed if each is not None]
        found = [each for each in texts if each.casefold().startswith(typed)]
        shown, total = found[:_MOST_COMPLETIONS], len(found)
        return types.CompleteResult(completion=types.Completion(values=shown, total=total, has_more=total > len(shown)))

    def _schema(self, params: types.CompleteRequestParams) -> Mapping[str, Any]:
        """The schema of the arguments that are completed."""
        ref = params.ref
        if isinstance(ref, types.PromptReference):
            prompts = self.prompts.now().values()
            prompt = next((each for each in prompts if each.listed.name == ref.name), None)
            if prompt is not None:
                return prompt.listed.input_schema
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {ref.name!r:.80}")
        resource = self.resources.now().get(ref.uri)
        if resource is None:
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {ref.uri!r:.200}")
        schema, is_tool = resource.served.listed.input_schema, resource.served.step.kind == "tool"
        # The one variable of a step's URI has any name.
        return schema if is_tool else {**schema, "properties": {params.argument.name: schema["properties"]["input"]}}


async def _run(
    runs: Runs, ctx: Request, params: types.InputResponseRequestParams, step: AnyStep, given: object
) -> AnyResult | types.InputRequiredResult:
    """Run a step, or resume the run that the same request has begun before."""
    try:
        if params.request_state is None:
            opened = runs.begin(step, given)
        else:
            opened = runs.resume(step, await runs.info(params.request_state), params)
        return await runs.to_the_end(ctx, params, step, opened)
    except NoeticError as error:
        raise _failed(error) from error


def _value(result: AnyResult) -> object:
    try:
        return result.value
    except NoeticError as error:
        raise _failed(error) from error


def _failed(error: NoeticError) -> MCPError:
    text = f"{type(error).__name__}: {error.message}"
    return MCPError(types.INTERNAL_ERROR, text if error.hint is None else f"{text}\nTry: {error.hint}")


def _rendered(value: object, name: str) -> str | Sequence[ContentPart]:
    try:
        return render_output(value, tool=name)
    except NoeticError as error:
        raise _failed(error) from error


def _contents(uri: str, part: ContentPart) -> Contents:
    match part:
        case InputText():
            return types.TextResourceContents(uri=uri, text=part.text, mime_type="text/plain")
        case InputImage(data=bytes() as data) | InputFile(data=bytes() as data):
            encoded = base64.b64encode(data).decode()
            return types.BlobResourceContents(uri=uri, blob=encoded, mime_type=part.media_type)
        case _:
            return types.TextResourceContents(uri=uri, text=str(getattr(part, "url", None) or ""))


def _prompt(listed: types.Tool) -> types.Prompt:
    fields: Mapping[str, Any] = listed.input_schema.get("properties", {})
    required = listed.input_schema.get("required", ())
    arguments = [
        types.PromptArgument(name=name, description=field.get("description"), required=name in required)
        for name, field in fields.items()
    ]
    return types.Prompt(name=listed.name, description=listed.description, arguments=arguments)


def _messages(value: object, name: str) -> list[types.PromptMessage]:
    """One message for each part: the protocol has no message of several."""
    role: types.Role = "assistant" if isinstance(value, Message) and value.role == "assistant" else "user"
    shown = value.content if isinstance(value, Message) else _rendered(value, name)
    blocks = [types.TextContent(type="text", text=shown)] if isinstance(shown, str) else [block_of(p) for p in shown]
    return [types.PromptMessage(role=role, content=block) for block in blocks]
