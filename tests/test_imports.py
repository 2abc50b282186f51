"""Every module of the core and of the plugins is imported, with the versions that are installed."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

import pytest

PACKAGES = [
    "noetic_py",
    "noetic_anthropic",
    "noetic_documents",
    "noetic_embeddings",
    "noetic_glossary",
    "noetic_google",
    "noetic_local",
    "noetic_mcp",
    "noetic_openai",
    "noetic_postgres",
    "noetic_pydantic_ai",
    "noetic_redis",
    "noetic_signing",
    "noetic_temporal",
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of old versions of others, among themselves
@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_imported(package: str) -> None:
    found = import_module(package)
    names = [each.name for each in walk_packages(found.__path__, f"{package}.")]
    for name in names:
        if not name.endswith("__main__"):
            import_module(name)
    for name in getattr(found, "__all__", ()):
        getattr(found, name)
    assert names
