"""The client that the conformance suite judges: `judged_client.py URL`, with the scenario in the environment.

An agent with a scripted model calls each tool of the server once. With a login, and where the scenario names the calls,
no model is asked.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
from mcp.client.auth import TokenStorage
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from noetic_mcp import McpLoginRequired, McpServer, McpTools, OAuth, OAuthClientCredentials

from noetic_py import Ask, FunctionCall, Harness, Memory, call_model, loop, until
from noetic_py.testing import ScriptedModel
from noetic_py.tools.definition import AnyTool

SCENARIO: Final = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Final[Mapping[str, Any]] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
CLIENT_ID: Final = "https://conformance-test.local/client-metadata.json"
MADE_UP: Final[Mapping[str, Any]] = {"string": "x", "number": 2, "integer": 2, "boolean": True}


async def authentication(url: str, folder: Path) -> OAuth | OAuthClientCredentials | httpx2.Auth | None:
    """What the scenario wants of a login."""
    match SCENARIO:
        case "auth/client-credentials-basic":
            return OAuthClientCredentials(CONTEXT["client_id"], CONTEXT["client_secret"], issuer=await issuer_of(url))
        case "auth/client-credentials-jwt":
            return await with_key(url)
        case "auth/cross-app-access-complete-flow":
            return await across_apps(url)
        case "auth/basic-cimd":
            return OAuth(folder / "login.json", client_id=CLIENT_ID)
        case "auth/pre-registration":
            return OAuth(folder / "login.json", client_id=CONTEXT["client_id"], client_secret=CONTEXT["client_secret"])
        case _:
            return OAuth(folder / "login.json") if SCENARIO.startswith("auth/") else None


async def issuer_of(url: str) -> str:
    """The authorization server, which a program is told of when it gets its secret; the suite does not tell it."""
    async with httpx2.AsyncClient() as client:
        answer = await client.get(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp"))
    return str(answer.json()["authorization_servers"][0])


async def with_key(url: str) -> httpx2.Auth:
    from mcp.client.auth.extensions.client_credentials import PrivateKeyJWTOAuthProvider, SignedJWTParameters

    client = CONTEXT["client_id"]
    signed = SignedJWTParameters(
        issuer=client,
        subject=client,
        signing_key=CONTEXT["private_key_pem"],
        signing_algorithm=CONTEXT["signing_algorithm"],
    )
    provider = signed.create_assertion_provider()
    return PrivateKeyJWTOAuthProvider(url, Stored(), client, provider, issuer=await issuer_of(url))


async def across_apps(url: str) -> httpx2.Auth:
    from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

    async def exchange(audience: str, resource: str) -> str:
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token": CONTEXT["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": CONTEXT["idp_client_id"],
            "audience": audience,
            "resource": resource,
        }
        async with httpx2.AsyncClient() as client:
            answer = await client.post(CONTEXT["idp_token_endpoint"], data=form)
        return str(answer.json()["access_token"])

    return IdentityAssertionOAuthProvider(
        url,
        Stored(),
        CONTEXT["client_id"],
        CONTEXT["client_secret"],
        await issuer_of(url),
        exchange,
        token_endpoint_auth_method="client_secret_basic",
    )


class Stored(TokenStorage):
    """The tokens of this process."""

    tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        return None


async def log_in(server: McpServer) -> None:
    """Be the person at the browser, who allows everything."""
    async with anyio.create_task_group() as group, httpx2.AsyncClient(follow_redirects=True) as browser:
        await server.login(show=lambda address: group.start_soon(browser.get, address))


async def fill_in(question: Ask[Any]) -> dict[str, Any]:
    """Be the person who sends a form as it is."""
    return {}


def arguments_of(tool: AnyTool, first: AnyTool) -> dict[str, Any]:
    """What the schema of a tool requires."""
    if tool.wire_name == "judge__json_schema_echo":
        return {"schema": dict(first.parameters)}
    parameters: Mapping[str, Any] = tool.parameters
    return {
        name: MADE_UP[parameters["properties"][name].get("type", "string")] for name in parameters.get("required", ())
    }


async def call_each_tool(server: McpServer) -> None:
    """Have an agent call them."""

    class Mem(Memory):
        mcp: McpTools = McpTools(servers=[server])

    agent = loop(call_model(), until=until.no_tool_calls())
    async with server:
        tools = await server.tools()
        if "toolCalls" in CONTEXT:
            # Some do not fit the tool's schema, so that they cannot come from a model.
            for call in CONTEXT["toolCalls"]:
                await server.call(call["name"], call["arguments"])
            return
        calls = [FunctionCall(name=each.wire_name, arguments=arguments_of(each, tools[0])) for each in tools]
        async with Harness(model=ScriptedModel(*calls, "done"), memory=Mem()) as harness:
            await harness.run(agent, "Call each tool.")


async def main(url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        auth = await authentication(url, Path(folder))
        server = McpServer.streamable_http("judge", url, auth=auth, elicitation=fill_in)
        if auth is None:
            await call_each_tool(server)
            return
        if isinstance(auth, OAuth):
            await log_in(server)
        try:
            async with server:
                await server.call("test-tool", {})
        except McpLoginRequired:
            await log_in(server)
            async with server:
                await server.call("test-tool", {})


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
