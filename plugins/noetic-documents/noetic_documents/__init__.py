"""Documents for noetic_py: files as passages that are found again."""

from __future__ import annotations

from noetic_documents.files import Limits
from noetic_documents.layer import Document, DocumentReport, Documents, StoredDocument

__all__ = ["Document", "DocumentReport", "Documents", "Limits", "StoredDocument"]
