"""Tools, resources and prompts of MCP servers for noetic_py, and its flows as a server."""

from __future__ import annotations

from noetic_mcp.client_model import ClientModel
from noetic_mcp.errors import (
    ClientModelUnavailable,
    McpConnectionLost,
    McpError,
    McpLoginFailed,
    McpLoginRequired,
    McpProtocolError,
    McpTimeout,
    McpToolError,
    McpUnavailable,
)
from noetic_mcp.layers import McpResources, McpTools
from noetic_mcp.oauth import OAuth, OAuthClientCredentials
from noetic_mcp.server import McpServer, McpServerOptions
from noetic_mcp.serving import mcp_server, serve_mcp

__all__ = [
    "ClientModel",
    "ClientModelUnavailable",
    "McpConnectionLost",
    "McpError",
    "McpLoginFailed",
    "McpLoginRequired",
    "McpProtocolError",
    "McpResources",
    "McpServer",
    "McpServerOptions",
    "McpTimeout",
    "McpToolError",
    "McpTools",
    "McpUnavailable",
    "OAuth",
    "OAuthClientCredentials",
    "mcp_server",
    "serve_mcp",
]
