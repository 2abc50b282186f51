"""Take the rules of runs on several machines out of the library, one at a time, and see which test notices it.

`python -m tests.mutation.rules` does all of them, `python -m tests.mutation.rules D5 D20` only these. It changes a
copy, runs the tests that are named for the rule, and fails if these pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parent.parent.parent
COPIED = ("noetic_py", "tests", "examples", "conftest.py", "pyproject.toml")
LIMIT = 120.0
"""Seconds after which a test has noticed by not ending."""


@frozen
class Rule:
    """A rule, and what it is without it.

    Attributes:
        name: Its name.
        says: What it says.
        file: The module that keeps it.
        kept: The text there that keeps it.
        broken: What stands there instead.
        test: The test that notices.
    """

    name: str
    says: str
    file: str
    kept: str
    broken: str
    test: str


_COMMIT = '        """Append to several runs, begin and end ownership of them."""\n        for each in given:\n'

RULES = (
    Rule(
        "D1",
        "a write of an owner that was fenced is refused",
        "noetic_py/checkpoints/memory.py",
        "        checks.check_turn(given, position, fence)\n        if run is None:",
        "        checks.check_turn(given, position, given.fence)\n        if run is None:",
        "tests/test_checkpoints_conformance.py -k test_every_write_checks_the_fence",
    ),
    Rule(
        "D2",
        "after a cut an append is looked for before it is made again",
        "noetic_py/engine/journaling/writer.py",
        "            if head is None or (head.position, head.fence) != (done, self.fence):",
        "            if True:",
        "tests/test_engine_store.py::test_a_cancelled_commit_is_done_once",
    ),
    Rule(
        "D3",
        "what was read before a run is owned is compared with its position afterwards",
        "noetic_py/runner/lease.py",
        "        if head is None or head.position != run_history.position:",
        "        if head is None:",
        "tests/test_workers.py::test_a_run_that_was_written_while_it_was_acquired_is_not_gone_on_with",
    ),
    Rule(
        "D4",
        "a claim takes nothing away",
        "noetic_py/checkpoints/memory.py",
        "            self.runs[run_id].lives = lives\n",
        "            self.runs[run_id].lives = lives\n            self.runs[run_id].queued = None\n",
        "tests/test_checkpoints_conformance.py -k test_a_claim_takes_nothing_away",
    ),
    Rule(
        "D5",
        "an answer to a run that has an owner waits in the inbox",
        "noetic_py/runner/lease.py",
        "        if not await send_answers(backend, run_id, answers, now):",
        "        if True:",
        "tests/test_inbox.py::test_a_worker_takes_answers_that_came_while_it_had_the_run",
    ),
    Rule(
        "D6",
        "a run that falls asleep is due if a signal has come that was not read",
        "noetic_py/checkpoints/memory.py",
        "            run.queued = woken(given.queued, now) if run.signals else given.queued",
        "            run.queued = given.queued",
        "tests/test_checkpoints_conformance.py -k test_a_signal_that_was_not_read_wakes_a_run_that_falls_asleep",
    ),
    Rule(
        "D7",
        "a signal that was read does not wake its run again",
        "noetic_py/engine/journaling/writer.py",
        "release=True, queued=queued, read=self.read,",
        "release=True, queued=queued, read=0,",
        "tests/test_workers.py::test_a_signal_that_was_read_does_not_wake_its_run_again",
    ),
    Rule(
        "D8",
        "a worker polls, and needs no notification",
        "noetic_py/runner/workers.py",
        "            await sleep_or_event(self._runtime, _POLL, self._changed)\n",
        "            await self._changed.wait()\n",
        "tests/test_workers.py::test_a_worker_polls_without_a_notification",
    ),
    Rule(
        "D9",
        "a second answer to a request has no effect",
        "noetic_py/engine/journaling/run_history.py",
        "            same_answer(before, new)\n            continue",
        "            same_answer(before, new)",
        "tests/test_suspension.py tests/test_inbox.py",
    ),
    Rule(
        "D10",
        "requests expire by the clock of the store",
        "noetic_py/engine/journaling/run_history.py",
        "    return datetime.fromtimestamp(await backend.clock(), UTC) if backend.shared else runtime.now()",
        "    return runtime.now()",
        "tests/test_inbox.py::test_requests_expire_by_the_clock_of_the_store",
    ),
    Rule(
        "D11",
        "an owner believes in its lease from before it asked",
        "noetic_py/engine/journaling/writer.py",
        "            self._renewed = began",
        "            self._renewed = SYSTEM.monotonic()",
        "tests/test_engine_writer.py::test_a_lease_is_renewed_once_it_is_not_certain_any_more",
    ),
    Rule(
        "D12",
        "a run is taken over at once by a process that knows its owner to be dead",
        "noetic_py/checkpoints/sqlite/store.py",
        "        return run.owner != 0 and self._locks.alive(run.owner)",
        "        return run.owner != 0",
        "tests/test_checkpoints_sqlite.py::test_a_killed_owner_is_replaced_at_once",
    ),
    Rule(
        "D13",
        "a run that has ended takes no cancellation",
        "noetic_py/runner/stop_requests.py",
        "        if isinstance(last, RunEnded) and last.status in OVER:",
        "        if False:",
        "tests/test_workers.py::test_the_result_of_a_run_that_a_worker_carries_out",
    ),
    Rule(
        "D14",
        "a child begins in the commit of its parent's request for it, or not at all",
        "noetic_py/engine/kinds/suspension.py",
        "            run.store.add_run(request.begins)\n        await run.store.commit(run.journal, force=True)\n",
        "            await run.store.backend.commit([request.begins.transaction])\n"
        "        await run.store.commit(run.journal, force=True)\n",
        "tests/test_queued_children.py::test_a_child_begins_in_the_commit_of_the_request_for_it",
    ),
    Rule(
        "D15",
        "the end of a child and what wakes its parent are one commit",
        "noetic_py/engine/journaling/writer.py",
        "        told = ended_signals(self.run_id, self.parent) if ended else ()\n",
        "        told = ()\n",
        "tests/test_queued_children.py::test_one_worker_is_enough",
    ),
    Rule(
        "D16",
        "a run that falls asleep has read the signals before it looked at what it waits for",
        "noetic_py/engine/journaling/writer.py",
        "release=True, queued=queued, read=self.read, ended=ended",
        "release=True, queued=queued, read=2**40, ended=ended",
        "tests/test_queued_children.py::test_a_child_that_ends_while_its_parent_runs_wakes_it_all_the_same",
    ),
    Rule(
        "D17",
        "a run that waits for another one holds no worker",
        "noetic_py/engine/kinds/queued.py",
        "frame.lease, _limits(spec), store.claimed is not None\n",
        "frame.lease, _limits(spec), False\n",
        "tests/test_queued_children.py::test_one_worker_is_enough",
    ),
    Rule(
        "D18",
        "a run that another one waits for is not deleted",
        "noetic_py/runner/runs.py",
        "        await self._check_not_awaited(run_id)\n",
        "",
        "tests/test_queued_children.py::test_a_child_that_is_waited_for_is_not_deleted",
    ),
    Rule(
        "D19",
        "a shared budget changes only under the run's fence",
        "noetic_py/checkpoints/memory.py",
        _COMMIT,
        _COMMIT.replace("\n", "\n        self.shared.update(budgets.rows_after(given, self.shared))\n", 1),
        "tests/test_checkpoints_conformance.py -k test_only_the_owner_changes_a_budget",
    ),
    Rule(
        "D20",
        "the next owner takes back what all earlier ones held",
        "noetic_py/runner/lease.py",
        "    held = () if entry is None else await held_by(store.backend, run.run_id, entry.summary)",
        "    held = ()",
        "tests/test_shared_budgets.py::test_the_next_owner_books_what_a_call_in_flight_held",
    ),
    Rule(
        "D21",
        "the end of a run gives back what is left",
        "noetic_py/engine/shared_budgets.py",
        "        return [change for _, change in self._sent]",
        "        return []",
        "tests/test_shared_budgets.py::test_a_failed_call_gives_back",
    ),
    Rule(
        "D22",
        "a run that waits for a shared budget is suspended",
        "noetic_py/engine/kinds/suspension.py",
        "        if waited + seconds > _SHORT and _may_leave(frame):\n",
        "        if False:\n",
        "tests/test_rates.py::test_the_only_worker_is_free_for_the_run_whose_owner_has_died",
    ),
)


def noticed(rule: Rule, copy: Path) -> str | None:
    """How the test of a rule has noticed that it is missing; `None` if it has not.

    Raises:
        ValueError: The text that keeps the rule is not in its module, or is there twice.
    """
    path = copy / rule.file
    text = path.read_text(encoding="utf-8")
    if text.count(rule.kept) != 1:
        raise ValueError(f"{rule.name}: {rule.file} has {text.count(rule.kept)} times {rule.kept!r}; expected one")
    path.write_text(text.replace(rule.kept, rule.broken), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *rule.test.split()]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT:.0f} s"
    finally:
        path.write_text(text, encoding="utf-8")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition("::")[2].partition(" - ")[0] if done.returncode == 1 and failed else None


def main(names: Sequence[str]) -> int:
    """Try the rules; returns how many were not noticed."""
    missing = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        sys.stdout.write("| Rule | | Test that notices when it is taken out |\n|---|---|---|\n")
        for rule in RULES:
            if names and rule.name not in names:
                continue
            began = time.monotonic()
            found = noticed(rule, copy)
            missing += found is None
            how = "**none**" if found is None else f"`{found}`"
            sys.stdout.write(f"| {rule.name} | {rule.says} | {how} |\n")
            sys.stdout.flush()
            sys.stderr.write(f"{rule.name}: {time.monotonic() - began:.0f} s\n")
    return missing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="*", help="such as D5; all when left out")
    sys.exit(main(parser.parse_args().rules))
