"""A server of an earlier protocol, without the SDK: it can send what is not valid, and change its tools."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOLS = ["frames", "grow", "refuse", "unpaired"]
WRONG_TOOLS: dict[str, dict[str, Any]] = {
    "refers": {"inputSchema": {"type": "object", "$ref": "https://example.com/schema"}},
    "no-schema": {"inputSchema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}},
    "pattern": {"inputSchema": {"type": "object", "properties": {"a": {"pattern": "("}}}},
    "no-name": {"name": ""},
    "large": {"description": "x" * 2_000_000},
}
CONTENT = {
    "not-an-image": {"type": "image", "data": "AAAA", "mimeType": "text/html\n"},
    "not-audio": {"type": "audio", "data": "AAAA", "mimeType": "image/png"},
    "no-image": {"type": "image", "data": "", "mimeType": "image/png"},
    "no-base64": {"type": "image", "data": "&", "mimeType": "image/png"},
    "any-file": {"type": "resource", "resource": {"uri": "a:///../b", "blob": "AAAA", "mimeType": "x y"}},
}


FIELDS = {"port": {"type": "string"}, "nights": {"type": "integer", "default": 1}, "any": True}
FORM = {"type": "object", "properties": FIELDS, "required": ["port", "nights"]}
BAD_FORM = {"type": "object", "properties": {"port": {"type": "string", "pattern": "("}}}
ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "elicit": ("elicitation/create", {"message": "Where?", "requestedSchema": FORM}),
    "open": (
        "elicitation/create",
        {"mode": "url", "message": "Pay.", "url": "https://example.com", "elicitationId": "1"},
    ),
    "wrong-form": ("elicitation/create", {"message": "Where?", "requestedSchema": BAD_FORM}),
    "sample": (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Tides?"}}], "maxTokens": 9},
    ),
    "roots": ("roots/list", {}),
}


def asking(call: str, name: str) -> None:
    """Ask the client for something, and give its answer as the result."""
    method, params = ASKS[name]
    send(id=f"asked-{call}", method=method, params=params)


def write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def send(**message: Any) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}))


def called(call: str, name: str) -> None:
    if name == "frames":
        # A frame that is not a message stands where the answer is expected.
        write('{"jsonrpc": "2.0", "id": ')
    elif name == "grow":
        TOOLS.append("later")
        send(method="notifications/tools/list_changed")
        send(id=call, result={"content": [{"type": "text", "text": "added"}]})
    elif name == "unpaired":
        send(id=call, result={"content": "a text and not a list"})
    elif name == "endless":
        # A line that does not end, until the pipe breaks.
        while True:
            sys.stdout.write("x" * 100_000)
    elif name in ASKS:
        asking(call, name)
    elif name in CONTENT:
        send(id=call, result={"content": [CONTENT[name]]})
    elif name == "refuse":
        send(id=call, error={"code": -32602, "message": "no"})
    else:
        send(id=call, result={"content": [{"type": "text", "text": name}]})


def main() -> None:
    if sys.argv[1:] == ["at-once"]:
        return
    for line in sys.stdin:
        message = json.loads(line)
        call, method = message.get("id"), message.get("method")
        if method == "initialize" and sys.argv[1:] != ["silent"]:
            capabilities = {"tools": {"listChanged": True}}
            version = message["params"]["protocolVersion"]
            about = {"name": "by hand", "version": "1"}
            send(id=call, result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": about})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            if sys.argv[1:] == ["twice"]:
                tools += tools[:1]
            tools[0] |= WRONG_TOOLS.get("".join(sys.argv[1:]), {})
            send(id=call, result={"tools": tools})
        elif method == "tools/call":
            called(call, message["params"]["name"])
        elif method is None and str(call).startswith("asked-"):
            said = json.dumps(message.get("result", message.get("error")), sort_keys=True)
            send(id=int(call.removeprefix("asked-")), result={"content": [{"type": "text", "text": said}]})
        elif call is not None and sys.argv[1:] != ["silent"]:
            send(id=call, error={"code": -32601, "message": "unknown method"})


if __name__ == "__main__":
    main()
