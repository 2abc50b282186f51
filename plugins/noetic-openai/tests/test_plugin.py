from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from noetic_openai import OpenAIModel, plugin
from noetic_openai.model import key_source
from noetic_openai.presets import PRESETS
from noetic_openai.wire import Server

from noetic_py import Message, ModelRequest
from noetic_py.errors import ConfigError, ModelUnavailable
from noetic_py.models import allow_real_models
from noetic_py.plugins import load_plugins


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert import_module(project["entry-points"]["noetic_py"]["openai"]) is plugin


KEYS = {
    "azure": "AZURE_OPENAI_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-chat": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "xai": "XAI_API_KEY",
}
LOCAL = {"lmstudio": 1234, "ollama": 11434, "vllm": 8000}


@pytest.mark.parametrize("prefix", KEYS)
def test_names_become_models(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    models = load_plugins([plugin]).models
    assert models.prefixes == sorted({*KEYS, *LOCAL})
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://me.openai.azure.com/")
    with pytest.raises(ConfigError) as caught:
        models(f"{prefix}:maker/m")
    assert caught.value.code == "model-key"
    assert KEYS[prefix] in str(caught.value)
    monkeypatch.setenv(KEYS[prefix], "sk-secret")
    model = models(f"{prefix}:maker/m")
    assert isinstance(model, OpenAIModel)
    assert model.name == f"{prefix}:maker/m"
    assert ("api='responses'" in repr(model)) is (prefix == "openai")
    assert KEYS[prefix] in key_source(model.name, Server())


@pytest.mark.parametrize(("prefix", "port"), LOCAL.items())
async def test_a_local_server_needs_no_key(monkeypatch: pytest.MonkeyPatch, prefix: str, port: int) -> None:
    """Without a server the error names the address that was tried; the environment names another."""
    # The key of another provider is never sent.
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv(f"{prefix.upper()}_BASE_URL", "http://127.0.0.1:9/v1/")
    model = load_plugins([plugin]).models(f"{prefix}:m")
    assert PRESETS[prefix].address == f"http://127.0.0.1:{port}/v1"
    with allow_real_models(), pytest.raises(ModelUnavailable, match=r"127\.0\.0\.1:9"):
        async with model.respond(ModelRequest(items=[Message.user("Hello")])):
            raise AssertionError


def test_an_endpoint_at_azure_gets_the_path_of_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "sk-secret")
    with pytest.raises(ConfigError, match="AZURE_OPENAI_ENDPOINT") as caught:
        load_plugins([plugin]).models("azure:m")
    assert caught.value.code == "model-address"
    for given in ("https://me.openai.azure.com", "https://me.openai.azure.com/openai/v1/"):
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", given)
        made = PRESETS["azure"].model("azure", "m")
        assert made.profile.encoding == "o200k_base"
        assert PRESETS["azure"].base_url("azure:m") == "https://me.openai.azure.com/openai/v1"


def test_registering_loads_nothing_heavy() -> None:
    code = (
        "import sys, noetic_openai.plugin; "
        "assert not {'openai', 'httpx2', 'cattrs', 'noetic_openai.model'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
