"""The expected outcome of a program, by plain recursion, without a journal, a scheduler or an event loop.

Where a run had a choice the oracle looks up what was chosen. The rules it follows: a sequence, a loop and a branch
share their parent's state and conversation; a path of a section has copies, of which only a race's winner's come back;
a spawn has a conversation and a state as it asks for. A step that fails leaves nothing for its handler. What is
stopped, or ends in a failure that is not handled, leaves what had been committed: whenever a step finishes, all that
stands around it at that moment counts as written. What a model is asked stays too, whether or not it answers, and the
items before it; the state counts as written when something has finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from noetic_py.core.control import RunStatus
from noetic_py.testing._random_programs import description as p
from noetic_py.testing._random_programs.conversation import renumbered
from noetic_py.testing._random_programs.description import Node
from noetic_py.testing._random_programs.model import question
from noetic_py.testing._random_programs.numbers import mix, see
from noetic_py.testing._random_programs.observations import Observations
from noetic_py.testing._random_programs.program import RandomProgram
from noetic_py.testing._random_programs.scope import (
    AmbiguousOutcome,
    ExpectedOutcome,
    Failed,
    GivenUp,
    ProgramScope,
    Stopped,
    Unfinished,
    blank,
    closed,
)
from noetic_py.testing.ledger import Attempt

NEVER_RETRIED = frozenset({"BudgetExceeded", "Aborted"})


class Oracle:
    """Foretells one run."""

    def __init__(self, program: RandomProgram, seen: Observations) -> None:
        self.program = program
        self.seen = seen
        self.serial = 0
        # Of each loop in flight, the nearest last, what it was told to end with.
        self.loops: list[list[int | None]] = []

    def run(self) -> ExpectedOutcome:
        """The outcome of the whole program."""
        root = ProgramScope([], blank())
        flow = self.program.root
        try:
            value = self.call(flow, self.program.input, root, (), flow.id, ())
            return _outcome("completed", value, None, root)
        except Stopped:
            _, kind, value = self.seen.controls[()]
            root.put(root.written)
            return (
                _outcome("completed", value, None, root)
                if kind == "complete"
                else _outcome("aborted", None, None, root)
            )
        except Failed as failure:
            root.put(failure.left[root])
            status: RunStatus = "budget_exceeded" if failure.kind == "BudgetExceeded" else "failed"
            return _outcome(status, None, failure.kind, root)

    def call(self, node: Node, value: Any, scope: ProgramScope, above: Attempt, name: str, execution: Attempt) -> Any:
        """A step with all its attempts."""
        attempt = 1
        while True:
            start, version, written = scope.now(), scope.version, scope.written
            ends = [list(each) for each in self.loops]
            key = (*above, (name, attempt))
            try:
                out = self.kind(node, value, scope, key, execution)
            except Failed as failure:
                failure.note(scope)
                scope.back(start, version, written)
                self.loops = ends
                if attempt >= node.attempts or failure.kind in NEVER_RETRIED:
                    raise
                attempt += 1
                continue
            scope.commit()
            if isinstance(node, p.Code) and self.asked_for_stop(key, execution):
                raise Stopped(execution)
            return out

    def asked_for_stop(self, key: Attempt, execution: Attempt) -> bool:
        """Whether this body was the first to ask for the end of its execution."""
        control = self.seen.controls.get(execution)
        return control is not None and control[0] == key

    def kind(self, node: Node, value: Any, scope: ProgramScope, key: Attempt, execution: Attempt) -> Any:
        """One attempt."""
        match node:
            case p.Split() | p.Mark() | p.Reduce():
                return self.glue(node, value)
            case p.Code():
                return Body(self, node, scope, key, execution).run(value)
            case p.Loop():
                return self.loop(node, value, scope, key, execution)
            case p.Section():
                return self.section(node, value, scope, key, execution)
            case p.Spawn():
                return self.spawn(node, value, scope, key)
            case p.Branch():
                chosen = node.choice(value)
                row = node.cases[chosen : chosen + 1]
            case p.Seq():
                row = node.nodes
        for each in row:
            value = self.call(each, value, scope, key, each.id, execution)
        return value

    def glue(self, node: p.Split | p.Mark | p.Reduce, value: Any) -> Any:
        """The steps around a section."""
        match node:
            case p.Split():
                return [mix(value, index) for index in range(node.count)]
            case p.Mark():
                return value * 16 + node.index
            case p.Reduce(mode="race"):
                return value // 16
            case p.Reduce():
                return mix(*value)

    # -- loops

    def loop(self, node: p.Loop, value: Any, scope: ProgramScope, key: Attempt, execution: Attempt) -> Any:
        """Iterations; an iteration that was told to end the loop says so by its value."""
        depth = len(self.loops)
        self.loops.append([])
        try:
            for index in range(node.most):
                self.loops[depth] = []
                try:
                    out = self.call(node.body, value, scope, key, f"{node.body.id}[{index}]", execution)
                except Failed:
                    if node.on_error in (None, "abort"):
                        raise
                    continue
                ended = self.loops[depth]
                if ended:
                    return out if ended[0] is None else ended[0]
                if index + 1 >= node.rounds:
                    return out
                value = mix(out, 5) if node.prepare else out
            raise Failed("LoopLimit")
        finally:
            del self.loops[depth:]

    # -- sections

    def section(self, node: p.Section, value: Any, scope: ProgramScope, key: Attempt, execution: Attempt) -> Any:
        """Paths, each in a scope of its own."""
        nodes = node.nodes if node.mode != "each" else node.nodes * len(value)
        paths = [
            (each, value[index] if node.mode == "each" else value, f"{each.id}[{index}]")
            for index, each in enumerate(nodes)
        ]
        if node.mode == "race":
            return self.race(node, paths, scope, key, execution)
        mode = "all" if node.mode == "each" else node.mode
        results, scopes = self.paths(mode, paths, scope, key, execution)
        if node.join == "tuple":
            return results
        if node.join == "merge":
            scope.items.append(("message", f"merged {len(results)}"))
            scope.state["n"] += len(results)
        else:
            scope.state["l"] = [x for each in scopes for x in each.state["l"]]
            scope.state["n"] = sum(each.state["n"] for each in scopes)
        return mix(*results)

    def paths(
        self, mode: str, paths: Sequence[tuple[Node, Any, str]], scope: ProgramScope, key: Attempt, execution: Attempt
    ) -> tuple[list[int], list[ProgramScope]]:
        """The results of all paths, 9999 for a failed one, and their scopes."""
        results: list[int] = []
        scopes: list[ProgramScope] = []
        failures: list[Failed] = []
        stop: Stopped | None = None
        unfinished = False
        for node, value, name in paths:
            own = scope.path()
            scopes.append(own)
            try:
                results.append(self.call(node, value, own, key, name, execution))
            except Failed as failure:
                results.append(9999)
                failures.append(failure)
            except Stopped as stopped:
                stop = stopped
            except Unfinished:
                unfinished = True
        if stop is not None:
            scope.commit()
            raise stop
        self.commit_around(scope, key)
        if failures and mode == "all":
            raise self.first(failures)
        if unfinished:
            raise Unfinished(key)
        return results, scopes

    def commit_around(self, scope: ProgramScope, key: Attempt) -> None:
        """Write what stands around a section, as far as something below it was written."""
        if self.wrote(key):
            scope.commit()
        elif any(each[: len(key)] == key and each[-1][0].startswith("ask") for each in self.seen.starts):
            scope.commit_items()

    def wrote(self, key: Attempt) -> bool:
        """Whether a step below a section was committed, or the stop of a spawn there, or what a step waits for."""
        written = [*self.seen.done, *self.seen.asked, *(caller for caller, _, _ in self.seen.controls.values())]
        return any(each[: len(key)] == key for each in written)

    def first(self, failures: Sequence[Failed]) -> Failed:
        """The failure that a section ends with."""
        kinds = {failure.kind == "BudgetExceeded" for failure in failures}
        if len(kinds) == 2:
            raise AmbiguousOutcome("a budget and a failure in one section")
        return failures[0] if kinds == {True} else Failed("ParallelFailed")

    def race(
        self,
        node: p.Section,
        paths: Sequence[tuple[Node, Any, str]],
        scope: ProgramScope,
        key: Attempt,
        execution: Attempt,
    ) -> int:
        """The winner's value; its conversation and state replace the parent's."""
        failures: list[Failed] = []
        open_end = False
        for each, value, name in paths:
            try:
                self.call(each, value, scope.path(), key, name, execution)
            except Failed as failure:
                failures.append(failure)
            except Unfinished:
                pass
            except AmbiguousOutcome:
                open_end = True
        self.commit_around(scope, key)
        if len(failures) == len(paths):
            raise self.first(failures)
        winner = self.seen.winners.get((key[:-1], node.id))
        if winner is None:
            raise AmbiguousOutcome("a path that may have failed") if open_end else Unfinished(key)
        if winner != self.seen.marks[key]:
            raise AssertionError(f"path {winner} has won a race in which path {self.seen.marks[key]} ended first")
        each, value, name = paths[winner]
        own = scope.path()
        out: int = self.call(each, value, own, key, name, execution)
        scope.put(own.now())
        return out

    # -- spawns

    def spawn(self, node: p.Spawn, value: Any, scope: ProgramScope, key: Attempt) -> Any:
        """An execution below."""
        items = scope.items if node.items == "share" else [] if node.items == "new" else list(scope.items)
        state = scope.state if node.state == "share" else blank() if node.state == "new" else deepcopy(scope.state)
        child = ProgramScope(items, state, scope)
        # What it shares is written as far as it is around.
        child.written = (
            scope.written[0] if items is scope.items else child.written[0],
            scope.written[1] if state is scope.state else child.written[1],
        )
        try:
            return self.call(node.node, value, child, key, node.node.id, key)
        except Stopped as stopped:
            if stopped.execution != key:
                raise
            child.put(child.written)
            _, kind, found = self.seen.controls[key]
            if kind == "abort":
                raise Failed("Aborted") from None
            return found


class Body:
    """One attempt of a code step."""

    def __init__(self, oracle: Oracle, node: p.Code, scope: ProgramScope, key: Attempt, execution: Attempt) -> None:
        self.oracle = oracle
        self.node = node
        self.scope = scope
        self.key = key
        self.execution = execution
        self.occurrences: dict[str, int] = {}
        self.asked = False

    def run(self, value: int) -> int:
        """All that the body does."""
        begin, version = self.scope.now(), self.scope.version
        acc = value
        for index, op in enumerate(self.node.ops):
            try:
                acc = self.do(op, index, acc)
            except Failed:
                if not self.asked:
                    raise
                # A failure after the stop is none; the body's own unwritten work is gone, what stood before is written.
                self.scope.put(self.scope.since(version, begin, self.scope.written))
                self.scope.commit()
                raise Stopped(self.execution) from None
        return acc

    def do(self, op: p.Op, index: int, acc: int) -> int:
        """One operation."""
        if isinstance(op, (p.Call, p.Gather, p.Ask)):
            self.wait()
            try:
                return self.child(op, index, acc)
            except Failed as failure:
                if not op.catch:
                    raise
                del failure
                return mix(acc, 9999)
        if isinstance(op, p.Give):
            self.wait()
            return self.give(op, acc)
        if isinstance(op, (p.Tick, p.Both, p.Pair, p.Hang)):
            self.waiting(op, index, acc)
            return acc
        return self.at_once(op, index, acc)

    def at_once(self, op: p.Op, index: int, acc: int) -> int:
        """Do an operation that needs no wait."""
        items, state = self.scope.items, self.scope.state
        match op:
            case p.Say():
                items.append(("message", f"{self.node.id}.{index}={acc}"))
            case p.Inc():
                state["n"] += 1
            case p.Push():
                state["l"] = [*state["l"], acc]
            case p.See():
                return see(acc, len(items), state)
            case p.Fail():
                if sum(attempt - 1 for _, attempt in self.key) < op.until:
                    raise Failed("StepFailed")
            case p.Stop():
                self.stop()
            case p.EndLoop():
                self.oracle.loops[-1][:] = [op.value]
            case p.Open():
                self.open(index, acc)
            case _:
                raise AssertionError(op)
        return acc

    def give(self, op: p.Give, acc: int) -> int:
        """A child that may be given up: what finished below it stays, what it did itself goes."""
        start, version = self.scope.now(), self.scope.version
        ends = [list(each) for each in self.oracle.loops]
        name = self.occurrence(op.node.id)
        try:
            return mix(acc, self.oracle.call(op.node, acc, self.scope, self.key, name, self.execution))
        except GivenUp:
            self.scope.put(self.scope.since(version, start, self.scope.written))
            self.oracle.loops = ends
            return mix(acc, 8888)

    def waiting(self, op: p.Tick | p.Both | p.Pair | p.Hang, index: int, acc: int) -> None:
        """Do an operation that lets others run in its middle."""
        match op:
            case p.Tick():
                self.wait()
            case p.Hang():
                self.wait()
                raise GivenUp(self.key)
            case p.Both():
                self.scope.state["a"] += 1
                self.wait()
                self.scope.state["b"] += 1
            case p.Pair():
                call = self.open(index, acc)
                self.wait()
                self.scope.items.append(("output", call, f"{acc}"))

    def open(self, index: int, acc: int) -> str:
        """A function call; its id is a number of the oracle's own."""
        return self.call_item(f"{self.node.id}.{index}={acc}")

    def call_item(self, name: str) -> str:
        self.oracle.serial += 1
        call = f"call {self.oracle.serial}"
        self.scope.items.append(("call", call, name))
        return call

    # -- stops

    def stop(self) -> None:
        """Ask for the end; it comes with the next wait."""
        control = self.oracle.seen.controls.get(self.execution)
        if control is None:
            raise Unfinished(self.key)
        if control[0] == self.key:
            self.asked = True
        else:
            # Another path was first, so this body ends at its next wait or, without one, right behind its end.
            raise Unfinished(self.key)

    def wait(self) -> None:
        """A point at which a stop takes hold; what the asking body did until then is kept."""
        if self.asked:
            self.scope.commit()
            raise Stopped(self.execution)

    # -- children

    def child(self, op: p.Call | p.Gather | p.Ask, index: int, acc: int) -> int:
        """A child step."""
        if isinstance(op, p.Ask):
            return self.ask(op, index, acc)
        if isinstance(op, p.Call):
            name = self.occurrence(op.node.id)
            return mix(acc, self.oracle.call(op.node, acc, self.scope, self.key, name, self.execution))
        section = (*self.key, (self.occurrence("gather"), 1))
        paths = [(node, mix(acc, at), f"{node.id}[{at}]") for at, node in enumerate(op.nodes)]
        start, version, written = self.scope.now(), self.scope.version, self.scope.written
        try:
            results, _ = self.oracle.paths("all", paths, self.scope, section, self.execution)
        except Failed as failure:
            failure.note(self.scope)
            self.scope.back(start, version, written)
            raise
        self.scope.commit()
        return mix(acc, *results)

    def occurrence(self, id: str) -> str:
        """The frame of a child's path."""
        count = self.occurrences.get(id, 0)
        self.occurrences[id] = count + 1
        return f"{id}#{count}" if count else id

    def ask(self, op: p.Ask, index: int, acc: int) -> int:
        """A model round, or an agent's loop of two."""
        seen, items = self.oracle.seen, self.scope.items
        if self.oracle.program.model_calls is not None:
            if (self.key, index) in seen.refused:
                raise self.unanswered(op, acc, "BudgetExceeded")
            if (self.key, index) not in seen.answered:
                raise Unfinished(self.key)
        if op.how == "down":
            raise self.unanswered(op, acc, "ModelUnavailable")
        items.append(("message", question(op.how, acc)))
        if op.how != "agent":
            items.append(("message", f"re:{acc}"))
        if op.how == "halt":
            self.halt(index)
        elif op.how != "text":
            calls = [self.call_item("note") for _ in range(2)]
            for at, call in enumerate(calls):
                items.append(("output", call, f"noted {acc + at}"))
                self.scope.state["l"] = [*self.scope.state["l"], acc + at]
        if op.how == "agent":
            items.append(("message", f"re:{acc}"))
        self.scope.commit()
        return mix(acc, len(f"re:{acc}"))

    def unanswered(self, op: p.Ask, acc: int, kind: str) -> Failed:
        """A question that fails: it stays, unless the failure is handled."""
        failure, scope = Failed(kind), self.scope
        start, version, written = scope.now(), scope.version, scope.written
        scope.items.append(("message", question(op.how, acc)))
        scope.commit_items()
        failure.note(scope)
        scope.back(start, version, written)
        return failure

    def halt(self, index: int) -> None:
        """A tool that asks for the end: its output is written, nothing comes after it."""
        control = self.oracle.seen.controls.get(self.execution)
        tool = (*self.key, (self.occurrence(f"ask{index}"), 1), ("halt[0]", 1))
        if control is None or control[0] != tool:
            raise Unfinished(self.key)
        self.scope.items.append(("output", self.call_item("halt"), "halted"))
        self.scope.commit()
        raise Stopped(self.execution)


def _outcome(status: RunStatus, value: int | None, error: str | None, root: ProgramScope) -> ExpectedOutcome:
    items, live = renumbered(closed(root.items)), renumbered(root.items)
    return ExpectedOutcome(status, value, error, tuple(items), tuple(live), root.state)


def expected_outcome(program: RandomProgram, seen: Observations) -> ExpectedOutcome:
    """The expected outcome of a program, given the choices that its run has made.

    Args:
        program: What was run.
        seen: What its bodies saw, of which only the choices are read.

    Raises:
        AmbiguousOutcome: Two outcomes are right, and the choice between them was not noted.
    """
    return Oracle(program, seen).run()
