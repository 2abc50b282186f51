"""`McpTools` and `McpResources`: servers as layers of memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mcp import types

from noetic_mcp.errors import McpProtocolError
from noetic_mcp.server import McpServer
from noetic_py import InputText, MemoryLayer
from noetic_py.core.tokens import EstimatedCounter
from noetic_py.errors import ConfigError, ToolArgumentsInvalid
from noetic_py.memory import TIMEOUTS, Slot, function

__all__ = ["McpResources", "McpTools"]

_COUNTER: Final = EstimatedCounter()


class McpTools(MemoryLayer[dict[str, str]]):
    """Offers the tools of servers to every model call of the runs that have the layer, and shows their instructions.

        class Mem(Memory):
            mcp: McpTools = McpTools(servers=[files, mail])

    The instructions that a server gives with its handshake are read when an execution begins, and kept in the state.
    With `on_init_error="disable"` a run continues without the tools of a server that cannot be reached.

    Attributes:
        servers: The servers; each is entered with `async with` around the harness.
        longest: The most characters of a server's instructions that are kept.

    Raises:
        ConfigError: Two servers have one name, so that tools of one would hide those of the other (code `"mcp-name"`),
            or `longest` is below 1 (`"mcp-longest"`).
    """

    servers: Sequence[McpServer] = ()
    longest: int = 4000
    slot: int = Slot.SYSTEM

    def __attrs_post_init__(self) -> None:
        _check_longest(self.longest)
        names: set[str] = set()
        for server in self.servers:
            if server.name in names:
                raise ConfigError(
                    f"two MCP servers are named {server.name!r}", code="mcp-name", hint="give each a name of its own"
                )
            names.add(server.name)
        _wait_for_servers(self, [server.longest_wait for server in self.servers])

    async def init(self) -> None:
        """Read the instructions of the servers that are not known yet."""
        known = self.state
        self.state = {
            each.name: known[each.name] if each.name in known else _cut(await each.instructions(), self.longest)
            for each in self.servers
        }

    async def recall(self, query: str, budget: int) -> str | None:
        """The servers' instructions, as far as the budget reaches."""
        return _within([f"{name}: {text}" for name, text in self.state.items() if text], budget)

    def available_tools(self) -> Sequence[McpServer]:
        """The servers, which are asked for their tools before each model call."""
        return tuple(self.servers)

    def merge(self, base: dict[str, str], mine: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
        """The later reading."""
        return theirs if mine == base else mine


class McpResources(MemoryLayer[dict[str, str]]):
    """Shows resources of a server to the model: those that are named, and by `read` those that it asks for.

    By `available` the model lists what it can read, with the templates of URIs such as `docs://{page}`.

        class Mem(Memory):
            docs: McpResources = McpResources(server=docs, uris=["docs://style"])

    The named resources are read when an execution begins, and kept in the state, so that a resumed run shows the same
    text. A resource that has no text is refused.

    Attributes:
        server: The server; it is entered with `async with` around the harness.
        uris: The resources to show.
        longest: The most characters of a resource that are kept; longer text is cut, and says so.

    Raises:
        ConfigError: `longest` is below 1; code `"mcp-longest"`.
    """

    server: McpServer
    uris: Sequence[str] = ()
    longest: int = 20_000

    def __attrs_post_init__(self) -> None:
        _check_longest(self.longest)
        _wait_for_servers(self, [self.server.longest_wait] * len(self.uris))

    async def init(self) -> None:
        """Read the named resources that are not known yet, and forget those that are no longer named."""
        known = self.state
        self.state = {uri: known[uri] if uri in known else await self._text(uri) for uri in self.uris}

    async def recall(self, query: str, budget: int) -> str | None:
        """The named resources, in their order, as far as the budget reaches."""
        return _within([f"{uri}:\n{text}" for uri, text in self.state.items()], budget)

    @function(model=False)
    async def refresh(self) -> None:
        """Read the named resources again."""
        self.state = {uri: await self._text(uri) for uri in self.uris}

    @function
    async def available(self) -> str:
        """List the resources that can be read. In a template such as `docs://{page}` fill in the parts in braces."""
        lines = [_line(each) for each in await self.server.resources()]
        return _cut("\n".join(lines), self.longest) or "There is no resource."

    @function
    async def read(self, uri: str) -> str:
        """Read a resource.

        Args:
            uri: Its URI.

        Raises:
            ToolArgumentsInvalid: There is no such resource, or it has no text.
        """
        try:
            return await self._text(uri)
        except McpProtocolError as error:
            raise ToolArgumentsInvalid(error.message, tool=f"{self.id}/read") from None

    async def _text(self, uri: str) -> str:
        parts = await self.server.read(uri)
        texts = [part.text for part in parts if isinstance(part, InputText)]
        if not texts or len(texts) < len(parts):
            raise McpProtocolError(f"the resource {uri!r} is not text", server=self.server.name)
        return _cut("\n".join(texts), self.longest)

    def merge(self, base: dict[str, str], mine: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
        """The later reading."""
        return theirs if mine == base else mine


def _line(listed: types.Resource | types.ResourceTemplate) -> str:
    uri = str(listed.uri) if isinstance(listed, types.Resource) else listed.uri_template
    about = listed.description or listed.title or listed.name
    return f"{uri}: {' '.join(about.split())}" if about else uri


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}\n[cut after {longest} characters]"


def _within(entries: Sequence[str], budget: int) -> str | None:
    shown: list[str] = []
    for entry in entries:
        budget -= _COUNTER.count_text(f"{entry}\n\n").value
        if budget < 0:
            break
        shown.append(entry)
    return "\n\n".join(shown) or None


def _wait_for_servers(layer: McpTools | McpResources, waits: Sequence[float]) -> None:
    """Let `init` take as long as the servers themselves may, unless the layer's own `timeouts` limit it."""
    object.__setattr__(layer, "timeouts", {"init": max(TIMEOUTS["init"], sum(waits)), **layer.timeouts})


def _check_longest(longest: int) -> None:
    if longest < 1:
        raise ConfigError(f"longest={longest!r} is not a valid length; expected 1 or more", code="mcp-longest")
