"""The errors of MCP servers, one class per cause."""

from __future__ import annotations

from noetic_py.errors import ModelNotFound, NoeticError

__all__ = [
    "ClientModelUnavailable",
    "McpConnectionLost",
    "McpError",
    "McpLoginFailed",
    "McpLoginRequired",
    "McpProtocolError",
    "McpTimeout",
    "McpToolError",
    "McpUnavailable",
]


class McpError(NoeticError):
    """An MCP server could not do what it was asked for.

    Args:
        message: What happened.
        server: The server's name.
        hint: The next thing to try.
    """

    server: str

    def __init__(self, message: str, *, server: str, hint: str | None = None) -> None:
        super().__init__(f"MCP server {server!r}: {message}", hint=hint)
        self.server = server


class McpUnavailable(McpError):
    """The server could not be started or reached, or did not complete its handshake in time."""


class McpLoginRequired(McpError):
    """There is no valid stored login; a person has to log in with [`login`][noetic_mcp.McpServer.login]."""


class McpLoginFailed(McpError):
    """A login was refused, or not completed in time."""


class McpConnectionLost(McpError):
    """The server ended, or the connection broke, while a request was under way; whether it was done is unknown."""


class McpTimeout(McpError):
    """The server did not answer in time."""


class McpProtocolError(McpError):
    """The server sent something that is not valid in the protocol, refused a request, or exceeded a limit."""


class McpToolError(McpError):
    """A tool says that it has failed (`isError`); the message is its own."""


class ClientModelUnavailable(ModelNotFound):
    """The model of the client could not be asked: there is no client, it offers none to servers, or it refused.

    A [`FallbackModel`][noetic_py.models.FallbackModel] asks its next model then.
    """
