"""Of all tests, the library's and the plugins': event loops, order, files and programs, and which say what they cover.

Saying so nearly doubles what a test costs. What random programs, killed processes, servers, a browser, examples and
further cases on the second event loop run is the same code once more, so with coverage switched on it is not watched.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none

from tests.crash.folders import MEMORY
from tests.programs import need_all, say_left_out
from tests.sampling import leave_out

ROOT = Path(__file__).parent
ROOM = 2 << 30
"""Bytes that must be free in memory before the files of tests lie there."""
UNWATCHED = tuple(
    str(ROOT / path)
    for path in (
        "tests/crash",
        "tests/properties",
        "tests/security",
        "tests/test_benchmarks.py",
        "tests/test_benchmarks_compare.py",
        "tests/test_chat_server.py",
        "tests/test_checkpoints_descriptors.py",
        "tests/test_checkpoints_signed.py",
        "tests/test_cli_starting.py",
        "tests/test_docs_",
        "tests/test_erase.py",
        "tests/test_examples.py",
        "tests/test_histories.py",
        "tests/test_hooks_durable.py",
        "tests/test_house.py",
        "tests/test_how_to_add.py",
        "tests/test_large.py",
        "tests/test_memory_context_properties.py",
        "tests/test_memory_conversation.py",
        "tests/test_memory_layers_",
        "tests/test_packaging.py",
        "tests/test_public_api.py",
        "tests/test_random_programs.py",
        "tests/test_resumed_counts.py",
        "tests/test_side_by_side.py",
        "tests/test_stop_requests.py",
        "tests/test_testing_kills.py",
        "tests/test_testing_power.py",
        "tests/test_typing.py",
        "tests/test_web_form.py",
        "plugins/",
    )
)
"""Beginnings of paths: what runs the same code once more, or tools and not the library."""
ASKED = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")

# Most of the time of a store's tests would go into waiting for a disk to sync. Which calls sync what is shown by the
# traced processes of `tests/crash`, so `tmp_path` lies in memory where there is room for it.
if (
    os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > ROOM
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Hundreds of tests start a process that imports the library. Where Python is told to write no bytecode each of them
# would compile all of it, so it goes where pytest keeps what it knows of earlier runs.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")

# A slow machine, or one that has much to do, is no finding. Plugins are tested by themselves too.
settings.register_profile(
    "suite", deadline=None, print_blob=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def watched(item: pytest.Item) -> bool:
    """Whether what a test covers is noted."""
    if str(item.path).startswith(UNWATCHED):
        return False
    return item.get_closest_marker("timed") is None and item.get_closest_marker("unwatched") is None


def pytest_configure(config: pytest.Config) -> None:
    """Hand the files to the workers in the order of `pytest_collection_modifyitems`, and collect quickly."""
    config.option.loadscopereorder = False
    # What is collected stays, so there is no garbage to look for: that took a fifth of the time.
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take a sample, and begin with the files that take long, so that no worker is left with one at the end.

    By itself xdist begins with the files that have the most tests, and the longest ones have two or three.
    """
    leave_out(config, items)
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
        sizes = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path not in slow, -sizes[item.path], item.path))


def pytest_collection_finish() -> None:
    """Set apart what stays until the end: twenty thousand tests, which take each collection a third of a second."""

    # Hypothesis makes its random generator with the first example, and warns when it cannot see what refers to it; what
    # is set apart is not seen. So the first example is run here.
    @settings(max_examples=1, database=None)
    @given(none())
    def first(_: None) -> None:
        pass

    first()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out before its fixtures are made, when a program that it needs is missing."""
    need_all(item)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Every test that asks for an event loop runs on both."""
    backend: str = request.param
    return backend


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what was left out."""
    say_left_out(terminalreporter)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test, and if need be what it starts, without anybody watching."""
    asked = {name: os.environ[name] for name in ASKED if name in os.environ}
    if not asked or watched(item):
        return (yield)
    from coverage import Coverage

    watch = Coverage.current()
    for name in asked:
        del os.environ[name]
    if watch is not None:
        watch.stop()
    try:
        return (yield)
    finally:
        os.environ.update(asked)
        if watch is not None:
            watch.start()
