from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_anthropic import AnthropicModel, plugin

from noetic_py.errors import ConfigError, ModelNotFound
from noetic_py.plugins import load_plugins


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["anthropic"]) is plugin


def test_a_name_becomes_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    models = load_plugins([plugin]).models
    assert models.prefixes == ["anthropic"]
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY") as caught:
        models("anthropic:claude-sonnet-5")
    assert caught.value.code == "model-key"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    model = models("anthropic:claude-sonnet-5")
    assert isinstance(model, AnthropicModel)
    assert model.name == "anthropic:claude-sonnet-5"
    assert "sk-secret" not in repr(model)


def test_errors_list_the_provider_and_the_package_that_has_it() -> None:
    with pytest.raises(ModelNotFound) as caught:
        load_plugins([plugin]).models("antropic:claude-sonnet-5")
    assert 'did you mean "anthropic:claude-sonnet-5"?' in str(caught.value.hint)
    assert "the providers are anthropic" in str(caught.value.hint)
    with pytest.raises(ModelNotFound) as caught:
        load_plugins([]).models("anthropic:claude-sonnet-5")
    assert caught.value.hint == "pip install noetic-anthropic"


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_anthropic.plugin; "
        "assert not {'anthropic', 'httpx2', 'cattrs', 'noetic_anthropic.model'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
