"""Vectors of sentences for noetic_py, made on this machine: of English, or of 16 languages."""

from __future__ import annotations

from noetic_embeddings.english import EnglishEmbedder
from noetic_embeddings.multilingual import MultilingualEmbedder

__all__ = ["EnglishEmbedder", "MultilingualEmbedder"]
