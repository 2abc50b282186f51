"""Shared by all tests of the library: stores, shells, and how hard properties are tried."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from noetic_py import redaction
from noetic_py.engine import frame
from noetic_py.models import model

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from noetic_py.checkpoints import CheckpointBackend
    from tests.cli_shell import Inside, Shell

# What several folders of tests share asserts too; it is imported by whichever comes first.
pytest.register_assert_rewrite(
    "tests.crash.talks",
    "tests.servers.conversations",
    "tests.servers.hostile_ids",
    "tests.servers.journeys",
    "tests.servers.lost",
    "tests.servers.processes",
    "tests.servers.together",
)

# A shell that starts the suite in the background makes it, and all that it starts, deaf to an interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["memory", "sqlite", "files"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointBackend]:
    """A store of each kind that the library brings along."""
    from noetic_py.checkpoints import FileBackend, InMemoryBackend, SqliteBackend

    makes: dict[str, Callable[[], CheckpointBackend]] = {
        "memory": InMemoryBackend,
        "sqlite": lambda: SqliteBackend(tmp_path / "runs.db"),
        "files": lambda: FileBackend(tmp_path / "runs"),
    }
    async with makes[request.param]() as made:
        yield made


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans of the test; the provider is gone afterwards."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The API lets a provider be set only once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture(autouse=True)
def secrets_are_forgotten() -> None:
    """What one test has held as a secret is a plain word for the next one."""
    redaction._register.forget()


@pytest.fixture(autouse=True)
def a_busy_machine_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops a test for a second seems to be a body that holds the event loop: a warning too many."""
    monkeypatch.setattr(frame, "LIMIT", 3600.0)


@pytest.fixture(autouse=True)
def prices_are_put_back() -> Iterator[None]:
    """The price table belongs to the process: what one test, or a snippet of the documentation, sets is its own."""
    before = dict(model._prices)
    yield
    model._prices.clear()
    model._prices.update(before)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """The command line, each command in a process of its own."""
    from tests.cli_shell import Shell

    return Shell(tmp_path)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    """The command line, called in this process."""
    from tests.cli_shell import Inside

    return Inside(tmp_path, monkeypatch, capsys)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[CheckpointBackend]:
    """A store in memory and one in a file, for what holds in each."""
    from noetic_py.checkpoints import InMemoryBackend, SqliteBackend

    made = InMemoryBackend() if request.param == "memory" else SqliteBackend(tmp_path / "runs.db")
    async with made as backend:
        yield backend
