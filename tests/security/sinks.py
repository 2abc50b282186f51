"""Everything that a program with this library writes, gathered for a look at its bytes."""

from __future__ import annotations

import io
import json
import logging
import pickle
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from noetic_py import Harness
from noetic_py.cli.record_lines import as_object, line_of
from noetic_py.cli.report import as_json, print_error, say
from noetic_py.core.codec import to_wire_json
from noetic_py.errors import NoeticError
from noetic_py.redaction import rendered

__all__ = ["Sinks", "sinks"]


class Sinks:
    """What was written, by where."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spans = InMemorySpanExporter()
        self.logged = io.StringIO()
        self.said: dict[str, list[str]] = {}

    def note(self, where: str, text: str) -> None:
        """Something was written as text."""
        self.said.setdefault(where, []).append(text)

    async def run(self, harness: Harness[Any], flow: Any, value: Any, **options: Any) -> Any:
        """Run a flow, and note what every sink gets of it; gives the result, whichever way the run ends."""
        async with harness.stream(flow, value, on_error="result", **options) as stream:
            async for event in stream.events:
                self.note("events", repr(event))
            result = await stream.result()
        self.note("repr", f"{result!r} {flow!r} {harness!r} {result.state!r} {list(result.items)!r} {result.reason}")
        self.note("log", "\n".join(to_wire_json(item).decode() for item in result.items))
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
            say(as_json(result))
            if result.error is not None:
                self.error(result.error)
        self.note("cli", out.getvalue())
        for position, record in enumerate(await harness.runs.journal(result.run_id), 1):
            self.note("export", f"{json.dumps(as_object(position, record))} {line_of(position, record)} {record!r}")
        return result

    def error(self, error: NoeticError) -> None:
        """An error, in every way it can be told."""
        self.note("error", f"{error} {error!r} {error.args} {rendered(error)} {getattr(error, '__notes__', '')}")
        self.note("error", repr({**vars(error), "result": None, "left": None}))
        self.note("pickle", repr(pickle.dumps(error)))
        print_error(error, None, trace=True)

    def written(self) -> dict[str, bytes]:
        """All of it."""
        found = {where: "\n".join(texts).encode(errors="backslashreplace") for where, texts in self.said.items()}
        found["spans"] = "\n".join(span.to_json() for span in self.spans.get_finished_spans()).encode()
        found["logging"] = self.logged.getvalue().encode()
        found["checkpoint"] = b"".join(path.read_bytes() for path in self.folder.iterdir() if path.is_file())
        return found


@contextmanager
def sinks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Sinks]:
    """Gather what is written within the block."""
    made = Sinks(folder)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made.spans))
    # The API lets a provider be set only once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    handler = logging.StreamHandler(made.logged)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield made
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
