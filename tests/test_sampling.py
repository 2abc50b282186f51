"""Of tests with several parameters a choice of cases is run, in which each two values meet."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest

from tests import sampling
from tests.sampling import every_pair

ROOT = Path(__file__).resolve().parent.parent
FILE = """
import pytest

class Kit:
    @pytest.mark.parametrize(("n", "text"), [(1, "a"), (2, "a"), (3, "b")])
    def test_kit(self, anyio_backend, n, text):
        pass

class TestOne(Kit):
    pass

class TestOther(Kit):
    pass

@pytest.mark.parametrize("durable", [False, True])
def test_two(anyio_backend, durable):
    pass

@pytest.mark.parametrize("seed", range(20))
def test_seeds(anyio_backend, seed):
    pass

@pytest.mark.parametrize("kind", ["x", "y", "z"])
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_four(anyio_backend, kind, durable, again):
    pass
"""


@pytest.mark.parametrize(
    ("sizes", "count"), [((3, 2), 6), ((3, 2, 2), 6), ((18, 2, 2), 36), ((4, 4, 3, 2), 16), ((7, 7, 2), 49)]
)
def test_each_two_values_meet_in_a_chosen_row(sizes: tuple[int, ...], count: int) -> None:
    rows = [tuple((f"p{at}", value) for at, value in enumerate(row)) for row in product(*map(range, sizes))]
    chosen = every_pair(rows)
    assert chosen <= set(rows)
    assert len(chosen) == count
    wanted = {pair for row in rows for pair in combinations(row, 2)}
    assert {pair for row in chosen for pair in combinations(row, 2)} == wanted


def chosen_cases(folder: Path, **variables: str) -> list[str]:
    """The cases of the file that are run."""
    (folder / "test_cases.py").write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "--collect-only", "-c", str(ROOT / "pyproject.toml")]
    command += ["-p", "conftest", "-p", "tests.conftest", "--rootdir", str(ROOT), str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "NOETIC_OTHER_LOOP"}
    done = subprocess.run(command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, check=True)
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def test_each_case_is_run_on_one_loop_and_in_another_run_on_the_other(tmp_path: Path) -> None:
    first, second = (
        {case for case in chosen_cases(tmp_path, **variables) if "test_seeds" in case}
        for variables in ({}, {"NOETIC_OTHER_LOOP": "1"})
    )
    assert len(first) == len(second) == 20
    assert first | second == {f"test_seeds[{loop}-{seed}]" for loop in ("asyncio", "trio") for seed in range(20)}
    assert 5 < len([case for case in first if "asyncio" in case]) < 15


def test_a_choice_of_the_cases_is_run(tmp_path: Path) -> None:
    cases = chosen_cases(tmp_path)
    # Three rows of two values each, on two event loops, in two classes: each two of the three meet.
    kit = [case for case in cases if "test_kit" in case]
    assert len(kit) == 6
    assert {case.partition("[")[2] for case in kit} == {
        f"{loop}-{row}]" for loop in ("asyncio", "trio") for row in ("1-a", "2-a", "3-b")
    }
    assert sorted(case.partition("::")[0] for case in kit) == ["TestOne"] * 3 + ["TestOther"] * 3
    assert len([case for case in cases if "test_two" in case]) == 2
    assert 6 <= len([case for case in cases if "test_four" in case]) <= 8


def test_in_full_all_cases_are_run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(sampling, "FULL", True)
    items = list(request.session.items)
    sampling.leave_out(request.config, items)
    assert items == request.session.items
