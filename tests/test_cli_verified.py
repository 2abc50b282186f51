"""What `noetic verify` prints."""

from __future__ import annotations

import json

import anyio
import pytest

from noetic_py.checkpoints import Anchor, RecordCheck, VerificationReport
from noetic_py.cli.show import verified_json, verified_text
from noetic_py.cli.stored_runs import verify
from noetic_py.errors import ConfigError

ANCHOR = Anchor(2, "ab" * 32)
GOOD = RecordCheck("signing", 1, "RunStarted", (), "verified", by="runner")
BAD = RecordCheck("signing", 2, "StepFinished", ("flow", "a\x1bb"), "forged", "the signature does not fit")
END = RecordCheck("signing", 2, None, (), "unverified", "the place where it ends is not signed")


def test_a_run_that_is_as_it_was_written() -> None:
    report = VerificationReport("r", [GOOD], Anchor(1200, "ab" * 32))
    assert verified_text(report).splitlines() == [
        "1,200 records, all verified",
        "by      runner",
        f"anchor  1200:{'ab' * 32}",
    ]
    assert json.loads(verified_json(report))["ok"] is True


def test_each_problem_has_a_line() -> None:
    report = VerificationReport("r", [GOOD, BAD, END], ANCHOR)
    assert verified_text(report).splitlines()[:3] == [
        "✗ record 2, a StepFinished at flow/a b is forged, says signing: the signature does not fit",
        "✗ the end of the journal is unverified, says signing: the place where it ends is not signed",
        "by      runner",
    ]
    told = json.loads(verified_json(report))
    assert (told["ok"], told["anchor"]) == (False, str(ANCHOR))
    assert told["checks"][1]["path"] == ["flow", "a\x1bb"]


def test_many_problems_are_counted() -> None:
    lines = verified_text(VerificationReport("r", [BAD] * 25, None)).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "... and 5 more; --json lists all"


def test_a_run_without_records() -> None:
    report = VerificationReport("r", [], Anchor(0, "00" * 32))
    assert not report.ok
    assert verified_text(report).splitlines()[0] == "0 records, and nothing to verify"


@pytest.mark.parametrize("anchor", ["2", "x:y", "2:abcd"])
def test_a_text_that_is_no_anchor(anchor: str) -> None:
    with pytest.raises(ConfigError) as caught:
        anyio.run(lambda: verify(None, "r", anchor, as_json=False))
    assert caught.value.code == "anchor"
