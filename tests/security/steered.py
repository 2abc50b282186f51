"""Decoders fed with inputs that atheris changes by what they reach, where it is installed.

`python -m tests.security.steered items 300 1` feeds one decoder for 300 seconds from seed 1. It ends with an error at
the first input that raises what has no name, or that takes longer than a second.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def main(name: str, seconds: str, seed: str) -> None:
    """Feed one decoder; the process ends here."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["noetic_py", "noetic_signing", "rfc8785"]):
        fuzzing: Any = importlib.import_module("tests.security.fuzzing")
        importlib.import_module("noetic_signing.canonical")
    decoder = fuzzing.decoders()[name]
    corpus = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for number, each in enumerate(decoder.seeds):
        (corpus / f"{number}").write_bytes(each)

    def one(data: bytes) -> None:
        with suppress(*decoder.named):
            decoder.feed(data)

    flags = [f"-max_total_time={seconds}", "-timeout=1", f"-seed={seed}", "-max_len=20000", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={corpus}/found-", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
