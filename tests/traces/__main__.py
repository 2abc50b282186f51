"""Send the spans of a program to Arize Phoenix, and compare what it shows with what the program did.

    python -m tests.traces

It installs Phoenix into an environment of its own, starts it on this machine with an empty database, and asks for the
list of spans over its REST interface, and for the cost over GraphQL. It fails if a model call, a tool or the agent is
missing there, or has other tokens or costs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import anyio
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from noetic_py.core.runtime import CONTENT
from tests.traces import program

VERSION: Final = "20.26.1"
SECONDS: Final = 900
"""How long it may take to install and to start."""
# Phoenix would listen for gRPC on all addresses, whatever PHOENIX_HOST says.
START: Final = """
import grpc.aio._server as server, sys
bind = server.Server.add_insecure_port
server.Server.add_insecure_port = lambda self, address: bind(self, address.replace("[::]", "127.0.0.1"))
from phoenix.server.main import main
sys.argv = ["phoenix", "serve"]
main()
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def asked(url: str, query: str | None = None) -> Any:
    """What Phoenix answers, to a query of GraphQL if there is one."""
    data = None if query is None else json.dumps({"query": query}).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def until(true: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    """Wait for something to be there."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"Phoenix ended with {process.returncode}")
        try:
            if true():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.5)
    raise SystemExit(f"Phoenix has not shown within {SECONDS} s what was expected")


@contextmanager
def phoenix() -> Generator[tuple[str, subprocess.Popen[bytes]]]:
    """A Phoenix that knows nothing yet: its address, and its process."""
    port = free_port()
    command = [sys.executable, "-m", "uv", "run", "-q", "--no-project", "--isolated", "-p", sys.executable]
    command += ["--with", f"arize-phoenix=={VERSION}", "python", "-c", START]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_WORKING_DIR": folder,
            "PHOENIX_TELEMETRY_ENABLED": "false",
            "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        }
        environment = os.environ | settings
        with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL) as process:
            address = f"http://127.0.0.1:{port}"
            try:
                until(lambda: asked(f"{address}/openapi.json"), process)
                yield address, process
            finally:
                process.terminate()


def send(address: str) -> None:
    """Run the program, and send its spans."""
    os.environ[CONTENT] = "true"
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    trace.set_tracer_provider(provider)
    anyio.run(program.trace)
    provider.shutdown()


def spans_of(address: str, kind: str) -> list[dict[str, Any]]:
    """The spans of a kind, in the order in which they began."""
    listed = asked(f"{address}/v1/projects/default/spans?limit=1000&span_kind={kind}")["data"]
    return sorted(listed, key=lambda span: span["start_time"])


def cost_of(address: str, span: dict[str, Any]) -> float | None:
    """What Phoenix computes from its own table of prices."""
    query = f'{{ node(id: "{span["id"]}") {{ ... on Span {{ costSummary {{ total {{ cost }} }} }} }} }}'
    cost: float | None = asked(f"{address}/graphql", query)["data"]["node"]["costSummary"]["total"]["cost"]
    return cost


def differences(address: str) -> Sequence[str]:
    """What Phoenix shows otherwise than the program did it."""
    agents, tools, calls = (spans_of(address, kind) for kind in ("AGENT", "TOOL", "LLM"))
    used = program.USAGE
    call = {
        "llm.model_name": program.MODEL,
        "llm.provider": "openai",
        "llm.token_count.prompt": used.input,
        "llm.token_count.completion": used.output,
        "llm.token_count.total": used.total,
        "llm.token_count.prompt_details.cache_read": used.cached_input,
        "noetic.cost": program.COST,
        "session.id": program.THREAD,
    }
    wanted: list[tuple[str, object, object]] = [
        ("agents", [span["name"] for span in agents], ["invoke_agent pilot"]),
        ("tools", [span["attributes"].get("tool.name") for span in tools], list(program.TOOLS)),
        ("calls", [{name: span["attributes"].get(name) for name in call} for span in calls], [call] * program.CALLS),
        ("costs of calls", [bool(cost_of(address, span)) for span in calls], [True] * program.CALLS),
        (
            "answers",
            [span["attributes"].get("llm.output_messages.0.message.finish_reason") for span in calls],
            ["tool_call", "stop"],
        ),
    ]
    return [f"{what}: {found} is shown; expected {expected}" for what, found, expected in wanted if found != expected]


def main() -> int:
    """Run the command."""
    with phoenix() as (address, process):
        send(address)
        # Phoenix stores spans, and computes costs, a moment after it has taken them.
        until(lambda: len(spans_of(address, "LLM")) == program.CALLS, process)
        until(lambda: all(cost_of(address, span) for span in spans_of(address, "LLM")), process)
        found = differences(address)
    sys.stdout.write("\n".join(found) + "\n" if found else f"Phoenix {VERSION} shows what the program did\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
