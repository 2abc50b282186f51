from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_openai import OpenAIModel, plugin

from noetic_py.errors import ConfigError
from noetic_py.plugins import load_plugins


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["openai"]) is plugin


@pytest.mark.parametrize("prefix", ["openai", "openai-chat", "openrouter"])
def test_names_become_models(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    models = load_plugins([plugin]).models
    assert models.prefixes == ["openai", "openai-chat", "openrouter"]
    variable = "OPENROUTER_API_KEY" if prefix == "openrouter" else "OPENAI_API_KEY"
    with pytest.raises(ConfigError) as caught:
        models(f"{prefix}:maker/m")
    assert caught.value.code == "model-key"
    assert variable in str(caught.value)
    monkeypatch.setenv(variable, "sk-secret")
    model = models(f"{prefix}:maker/m")
    assert isinstance(model, OpenAIModel)
    assert model.name == f"{prefix}:maker/m"
    assert ("api='responses'" in repr(model)) is (prefix == "openai")


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_openai.plugin; "
        "assert not {'openai', 'httpx2', 'cattrs', 'noetic_openai.model'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
