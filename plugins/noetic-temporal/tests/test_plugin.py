"""The package as it is imported, by a program and by the sandbox of workflows."""

from __future__ import annotations

import subprocess
import sys

import noetic_temporal
import pytest


def test_the_module_of_the_workflow_brings_nothing_else_into_the_sandbox() -> None:
    program = (
        "import sys; import noetic_temporal.workflow; print([name for name in sys.modules if 'noetic_py' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_names_of_the_package() -> None:
    for name in noetic_temporal.__all__:
        assert callable(getattr(noetic_temporal, name))
    with pytest.raises(AttributeError, match="no attribute 'works'"):
        _ = noetic_temporal.works
