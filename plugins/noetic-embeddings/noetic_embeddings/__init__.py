"""Vectors of sentences in 16 languages for noetic_py, made on this machine."""

from __future__ import annotations

from noetic_embeddings.multilingual import MultilingualEmbedder

__all__ = ["MultilingualEmbedder"]
