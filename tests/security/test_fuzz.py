"""Decoders fed with changed inputs: what is refused has a named error, and nothing takes longer than a second."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from tests.properties.checks import FULL, SEED
from tests.security import edited
from tests.security.fuzzing import Decoder, Found, decoders, feed, fuzz
from tests.servers.figures import Figure

ROOT = Path(__file__).resolve().parents[2]
DECODERS = decoders()
SECONDS = 300


@pytest.mark.parametrize("name", DECODERS)
def test_what_is_fed_is_read_or_refused_by_name(name: str, figure: Figure) -> None:
    """A few thousand inputs in the sample; in full five minutes of each decoder, steered where that can be."""
    if FULL and importlib.util.find_spec("atheris") is not None:
        command = [sys.executable, "-m", "tests.security.steered", name, str(SECONDS), str(SEED)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
        figure("said", next((line for line in done.stderr.splitlines() if line.startswith("Done ")), "nothing"))
        assert done.returncode == 0, done.stderr[-2000:]
        return
    decoder = DECODERS[name]
    found = fuzz(decoder, seconds=SECONDS if FULL else 60, inputs=10**12 if FULL else 2500, seed=SEED)
    figure("fed", found.fed)
    figure("refused", found.refused)
    assert found.unnamed == [], f"seed {SEED}"
    assert found.slow == [], f"seed {SEED}"


# Of values and channels the first byte chooses a type, which need not be the one that was written.
@pytest.mark.parametrize("name", [name for name in DECODERS if name not in {"values", "channels"}])
def test_the_inputs_that_changes_begin_with_are_read(name: str) -> None:
    decoder = DECODERS[name]
    assert decoder.seeds
    for each in decoder.seeds:
        decoder.feed(each)


def test_an_error_without_a_name_and_a_slow_input_are_found() -> None:
    def burn(data: bytes) -> object:
        return {b"fine": 1}[data]

    found = Found()
    decoder = Decoder(burn, [b"fine"])
    feed(decoder, b"fine", found)
    feed(decoder, b"odd", found)
    assert (found.fed, found.unnamed) == (2, [(b"odd", ascii("KeyError: b'odd'"))])
    assert fuzz(decoder, seconds=5, inputs=100, seed=1).unnamed


async def test_journals_of_edited_records_are_read_or_refused_by_name(figure: Figure) -> None:
    """Lists, `show`, plans and `resume` of recorded runs of which one record was edited under a valid checksum."""
    kept = await edited.load()
    tried = await edited.fuzz(kept, journals=10**9 if FULL else 80, seconds=SECONDS if FULL else 60, seed=SEED)
    figure("journals", tried.journals)
    figure("refused", tried.refused)
    assert tried.unnamed == [], f"seed {SEED}"
    assert tried.refused > tried.journals / 2


# The judgement of a call, the cause of a wrap-up, and what is set aside for a run elsewhere.
JUDGEMENTS: list[object] = [None, 5, [], [None] * 4, [1, None, None, None, None], [None, None, None, None, {"a": 1}]]
CAUSES: list[object] = [[], ["a"], 5, {"$": "tuple", "v": [[]]}]
LIMITS: list[object] = ['{"cost": "many"}', '{"cost": null}', '{"cost": {}}']
CHANGED = [
    *(("judged_calls-judged_and_asked", "StepFinished", "o", value) for value in JUDGEMENTS),
    *(("wrapped_up", "Decision", "", value) for value in CAUSES),
    *(("asking", "Pending", "arguments", value) for value in LIMITS),
]


@pytest.mark.parametrize(("name", "kind", "field", "value"), CHANGED)
async def test_a_value_of_another_form_is_refused(name: str, kind: str, field: str, value: object) -> None:
    """Edits that were read, and failed later without a name."""
    (kept,) = await edited.load(name)
    records = list(kept.records)
    begin = {"StepFinished": b"hooks[", "Decision": b'["wrap_up"', "Pending": b""}[kind]
    found = (
        n
        for n, each in enumerate(records)
        if each.kind == kind and begin in "/".join(each.path).encode() + each.payload
    )
    at = next(found)
    fields = json.loads(records[at].payload)
    if kind == "Decision":
        fields[1] = value
    else:
        fields |= {field: value} if kind == "StepFinished" else {field: value, "kind": "run"}
    records[at] = evolve(records[at], payload=json.dumps(fields).encode())
    tried = edited.Tried()
    await edited.feed(kept, records, tried, name)
    assert (tried.refused, tried.unnamed) == (1, [])
