"""The plugin of the entry point: it registers signing from the environment, so that `noetic show` reads signed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noetic_py.errors import ConfigError
from noetic_py.plugins import hookimpl

if TYPE_CHECKING:
    from noetic_py.plugins import TransformRegistry

__all__ = ["register_record_transforms"]


@hookimpl
def register_record_transforms(registry: TransformRegistry) -> None:
    """Sign and verify with the keys that the environment names.

    Raises:
        ConfigError: It names something that is not a key, or nothing although the plugin was asked for by name; code
            `"signing-key"`.
    """
    import os

    if any(name.startswith("NOETIC_SIGNING_") and value for name, value in os.environ.items()):
        from noetic_signing.signing import Signing

        signing = Signing.from_env()
        if signing is not None:
            registry.record_transform(signing)
            return
    if registry.asked_for:
        raise ConfigError(
            "the plugin 'signing' was asked for, and has no keys",
            code="signing-key",
            hint="NOETIC_SIGNING_KEY_FILE, NOETIC_SIGNING_TRUSTED, or Harness(record_transforms=[Signing(...)])",
        )
