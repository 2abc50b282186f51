"""Change the library in small ways, one at a time, and count the changes that the tests notice.

`python -m tests.mutation` measures every target, `python -m tests.mutation budget log` only these. It prints a table
and each change that no test has noticed: a test is missing for it, or it makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.mutation.mutants import Mutant, Mutated, Switch, mutants
from tests.mutation.targets import PARTS, TARGETS

ROOT = Path(__file__).resolve().parent.parent.parent
TAIL = 4000
SECONDS = 15.0
"""How much time of the processor the tests of one change take together, without the change."""
WAITS = 60.0
"""Seconds after which a test that does nothing has ended for good."""


@frozen
class Measured:
    """What a target's tests have noticed.

    Attributes:
        target: Its name.
        module: The module that was changed.
        possible: How many changes there are.
        tried: How many of them were tried.
        survivors: Those that no test has noticed.
    """

    target: str
    module: str
    possible: int
    tried: int
    survivors: Sequence[str]

    def row(self, when: str) -> str:
        """A row of the table, with the date and the commit."""
        killed = self.tried - len(self.survivors)
        share = f"{100 * killed / self.tried:.0f} %"
        return f"| {self.target} | `{self.module}` | {self.possible} | {self.tried} | {killed} | {share} | {when} |"


def forked(work: Callable[[], object]) -> Any:
    """What `work` returns in a process of its own; "died" where that has ended before."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        os.close(read)
        try:
            answer = work()
        except BaseException as error:  # noqa: BLE001 - it is the answer, whatever it is
            answer = repr(error)
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            said = pipe.read()
        return json.loads(said) if said else "died"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)


class Session:
    """A plugin of pytest that runs the tests once as they are, and then for each change those that reach it."""

    def __init__(self, switch: Switch, chosen: Sequence[Mutant]) -> None:
        self._switch = switch
        self._chosen = chosen
        self._failed: list[str] = []
        self.survived: list[int] = []

    def pytest_sessionstart(self) -> None:
        """Property tests try the same in each run, remember nothing and look for no smaller example."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", settings(), database=None, derandomize=True, phases=phases)
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember that a test has failed."""
        if report.failed:
            self._failed.append(report.nodeid)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run everything."""
        unchanged: Any = forked(lambda: self._unchanged(session.items))
        if not hasattr(unchanged, "keys"):
            msg = f"without a change the tests end with: {unchanged}"
            raise pytest.UsageError(msg)
        for number, mutant in enumerate(self._chosen):
            limits = self._limits(number, session.items, unchanged)
            answer = forked(partial(self._changed, number, limits)) if limits else "alive"
            if answer == "alive":
                self.survived.append(number)
            say(f"{answer}: {mutant} ({len(limits)} tests)")
        return True

    def _limits(self, number: int, items: Sequence[pytest.Item], unchanged: Any) -> dict[pytest.Item, float]:
        """The shortest tests that reach a change, as many as fit, with the seconds of the processor that each may take.

        Other work on the machine makes no difference to these.
        """
        limits: dict[pytest.Item, float] = {}
        left = SECONDS
        for item in sorted(items, key=lambda item: float(unchanged[item.nodeid]["seconds"])):
            seconds = float(unchanged[item.nodeid]["seconds"])
            if number in unchanged[item.nodeid]["reached"] and left > 0:
                limits[item] = 3 + 5 * seconds
                left -= seconds
        return limits

    def _unchanged(self, items: Sequence[pytest.Item]) -> object:
        seen: dict[str, object] = {}
        for item, following in zip(items, [*items[1:], None], strict=True):
            self._switch.reached.clear()
            begin = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seen[item.nodeid] = {"seconds": time.process_time() - begin, "reached": sorted(self._switch.reached)}
        return f"failures of {self._failed}" if self._failed else seen

    def _changed(self, number: int, limits: Mapping[pytest.Item, float]) -> str:
        self._switch.on = number
        # A change may well make a test run or wait for ever: an alarm ends the process.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for item, following in zip(limits, [*[*limits][1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, limits[item])
            signal.setitimer(signal.ITIMER_REAL, WAITS + 20 * limits[item])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return "noticed"
        return "alive"


def measure(target: str, sample: int, seed: int) -> dict[str, Any]:
    """Change a target's module and run its tests; for a process of its own."""
    module, tests = TARGETS[target]
    path = source(module)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    mine = target if target in PARTS else None
    possible = [mutant for mutant in mutants(tree) if part(module, mutant.function) == mine]
    chosen = possible
    if sample < len(possible):
        places = sorted(random.Random(seed).sample(range(len(possible)), sample))
        chosen = [possible[place] for place in places]
    mutated = Mutated(module, path, tree, chosen)
    mutated.install()
    session = Session(mutated.switch, chosen)
    with tempfile.TemporaryDirectory() as folder:
        log = os.open(f"{folder}/log", os.O_CREAT | os.O_RDWR)
        os.dup2(log, 1)
        options = [
            "-q",
            "-n",
            "0",
            "-x",
            "--assert=plain",
            "-p",
            "no:cacheprovider",
            f"--basetemp={folder}/base",
            "-c",
            "pyproject.toml",
            # The switches cost calls of their own.
            "-m",
            "not timed",
        ]
        code = pytest.main([*options, *tests], plugins=[session])
        if code != pytest.ExitCode.OK:
            raise RuntimeError(Path(f"{folder}/log").read_text(encoding="utf-8")[-TAIL:])
    return {
        "possible": len(possible),
        "tried": len(chosen),
        "survivors": [str(chosen[number]) for number in session.survived],
    }


def part(module: str, function: str) -> str | None:
    """The target that measures the class of a function, where that is not the rest of its module."""
    name = function.partition(".")[0]
    return next((each for each, names in PARTS.items() if name in names and TARGETS[each][0] == module), None)


def source(module: str) -> Path:
    """The file of a module, found without importing it or what is above it."""
    package, *rest = module.split(".")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        msg = f"{module} is not installed"
        raise ModuleNotFoundError(msg)
    return Path(found.submodule_search_locations[0]).joinpath(*rest).with_suffix(".py")


def main(arguments: Sequence[str]) -> int:
    """Measure the targets one after the other and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of {', '.join(TARGETS)}; without any: all")
    parser.add_argument("--sample", type=int, default=45, help="how many changes of each module are tried (45)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    options = parser.parse_args(arguments)
    if unknown := sorted({*options.targets} - {*TARGETS}):
        parser.error(f"{', '.join(unknown)}: not a target; expected one of {', '.join(TARGETS)}")
    os.chdir(ROOT)
    rows: list[Measured] = []
    for target in options.targets or TARGETS:
        say(f"== {target}")
        found: Any = forked(partial(measure, target, options.sample, options.seed))
        if not hasattr(found, "keys"):
            say(str(found))
            return 1
        rows.append(Measured(target=target, module=TARGETS[target][0], **found))
    sys.stdout.write(table(rows, options.seed) + "\n")
    return 0


def say(line: str) -> None:
    """Say how far it is."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def table(rows: Sequence[Measured], seed: int) -> str:
    """The result as Markdown."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout
    date = dt.datetime.now(dt.UTC).date()
    lines = [f"Seed {seed}:", "", "| Target | Module | Changes | Tried | Noticed | Share | Measured |"]
    lines += ["|---|---|---:|---:|---:|---:|---|", *(row.row(f"{date}, {commit.strip()}") for row in rows)]
    for row in rows:
        if row.survivors:
            lines += ["", f"Not noticed in {row.target}:", ""]
            lines += [f"- {survivor}" for survivor in row.survivors]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
