"""The pytest plugin: tests call no real model, unless they are marked with `real_models`.

Imports of the library stand inside the hooks: pytest loads the plugin before coverage is measured.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

__all__ = ["pytest_configure", "pytest_runtest_protocol"]


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
