"""Servers that speak OpenAI's interface, by the name that stands before a model's: their addresses and keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from attrs import frozen

from noetic_py.errors import ConfigError

if TYPE_CHECKING:
    from noetic_openai.model import OpenAIModel

__all__ = ["PRESETS", "Preset"]


@frozen
class Preset:
    """A server whose models have a prefix of their own.

    Attributes:
        address: Where it is; empty when only the environment says so.
        address_variable: The environment variable with another address; empty when there is none.
        key_variable: The environment variable with the key.
        needs_key: Whether nothing can be asked without a key.
        path: What is put behind the address of the environment variable where it is not there.
    """

    address: str = ""
    address_variable: str = ""
    key_variable: str = ""
    needs_key: bool = True
    path: str = ""

    def model(self, prefix: str, name: str) -> OpenAIModel:
        """A model of the server.

        Args:
            prefix: The name of the preset.
            name: The server's name of the model.

        Raises:
            ConfigError: The key (code `"model-key"`) or the address (`"model-address"`) is not known.
        """
        from noetic_openai.model import OpenAIModel

        known = f"{prefix}:{name}"
        key = os.environ.get(self.key_variable) or None
        if key is None and self.needs_key:
            raise ConfigError(
                f"{known} needs an API key",
                code="model-key",
                hint=f"set the environment variable {self.key_variable}",
            )
        return OpenAIModel(name, api="chat", base_url=self.base_url(known), api_key=key, name=known)

    def base_url(self, known: str) -> str:
        """The address for a model, which errors call `known`.

        Raises:
            ConfigError: It is not known; code `"model-address"`.
        """
        given = os.environ.get(self.address_variable, "").rstrip("/") if self.address_variable else ""
        if given:
            return given if given.endswith(self.path) else f"{given}{self.path}"
        if not self.address:
            raise ConfigError(
                f"{known} needs the address of its server",
                code="model-address",
                hint=f"set the environment variable {self.address_variable}",
            )
        return self.address


PRESETS: Final[Mapping[str, Preset]] = {
    "azure": Preset("", "AZURE_OPENAI_ENDPOINT", "AZURE_OPENAI_API_KEY", path="/openai/v1"),
    "deepseek": Preset("https://api.deepseek.com", "DEEPSEEK_BASE_URL", "DEEPSEEK_API_KEY"),
    "lmstudio": Preset("http://127.0.0.1:1234/v1", "LMSTUDIO_BASE_URL", "LMSTUDIO_API_KEY", needs_key=False),
    "ollama": Preset("http://127.0.0.1:11434/v1", "OLLAMA_BASE_URL", "OLLAMA_API_KEY", needs_key=False),
    "openrouter": Preset("https://openrouter.ai/api/v1", "", "OPENROUTER_API_KEY"),
    "vllm": Preset("http://127.0.0.1:8000/v1", "VLLM_BASE_URL", "VLLM_API_KEY", needs_key=False),
    "xai": Preset("https://api.x.ai/v1", "XAI_BASE_URL", "XAI_API_KEY"),
}
