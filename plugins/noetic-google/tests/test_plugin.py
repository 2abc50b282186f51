from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_google import GoogleModel, plugin

from noetic_py.errors import ConfigError, ModelNotFound
from noetic_py.plugins import load_plugins


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["google"]) is plugin


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_a_name_becomes_a_model(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = load_plugins([plugin]).models
    assert models.prefixes == ["google"]
    with pytest.raises(ConfigError, match="GEMINI_API_KEY") as caught:
        models("google:gemini-3.8-flash")
    assert caught.value.code == "model-key"
    monkeypatch.setenv(variable, "sk-secret")
    model = models("google:gemini-3.8-flash")
    assert isinstance(model, GoogleModel)
    assert model.name == "google:gemini-3.8-flash"
    assert "sk-secret" not in repr(model)


def test_errors_list_the_provider_and_the_package_that_has_it() -> None:
    with pytest.raises(ModelNotFound) as caught:
        load_plugins([plugin]).models("goggle:gemini-3.8-flash")
    assert 'did you mean "google:gemini-3.8-flash"?' in str(caught.value.hint)
    with pytest.raises(ModelNotFound) as caught:
        load_plugins([]).models("google:gemini-3.8-flash")
    assert caught.value.hint == "pip install noetic-google"


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_google.plugin; "
        "assert not {'google.genai', 'httpx2', 'cattrs', 'noetic_google.model'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
