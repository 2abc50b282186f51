"""The pytest plugin: tests call no real model, unless they are marked with `real_models`, and the fixture `cassette`.

Imports of the library stand inside the hooks: pytest loads the plugin before coverage is measured.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from noetic_py.testing.cassettes import Cassette

__all__ = ["cassette", "pytest_addoption", "pytest_configure", "pytest_runtest_makereport", "pytest_runtest_protocol"]

_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record-cassettes`."""
    parser.addoption(
        "--record-cassettes",
        action="store_true",
        help="record the cassettes of tests that have one, with real models, and do not replay them",
    )


@pytest.fixture
def cassette(request: pytest.FixtureRequest) -> Generator[Cassette]:
    """A cassette of the test's own, `cassettes/<module>/<test>.json` beside it; recorded with `--record-cassettes`."""
    from noetic_py.models.model import set_real_models_default
    from noetic_py.testing.cassettes import Cassette

    name = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
    path = request.path.parent / "cassettes" / request.path.stem / f"{name}.json"
    record = bool(request.config.getoption("--record-cassettes"))
    before = set_real_models_default(True) if record else None
    try:
        made = Cassette(path, record=record)
        yield made
        # Of a test that has failed the rest of the cassette says nothing.
        if not request.node.stash.get(_FAILED, False):
            made.check()
            made.save()
    finally:
        if before is not None:
            set_real_models_default(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test has failed, for its fixtures."""
    report = yield
    item.stash[_FAILED] = report.failed or item.stash.get(_FAILED, False)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Forbid real models until the session is over, and register the marker."""
    from noetic_py.models.model import set_real_models_default

    config.addinivalue_line("markers", "real_models: the test may call real models, at their price")
    before = set_real_models_default(False)

    def restore() -> None:
        set_real_models_default(before)

    config.add_cleanup(restore)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Allow real models while a marked test is set up, runs and is torn down."""
    if item.get_closest_marker("real_models") is None:
        return (yield)
    # Not `allow_real_models`: a context variable set here is not seen by the task that an async test runs in.
    from noetic_py.models.model import set_real_models_default

    before = set_real_models_default(True)
    try:
        return (yield)
    finally:
        set_real_models_default(before)
