"""A memory layer for noetic_py: the terms of a field, shown to the model where they are spoken of."""

from __future__ import annotations

from noetic_glossary.layer import Glossary

__all__ = ["Glossary"]
