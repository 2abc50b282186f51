"""Programs whose bodies do something to the world: a till that keeps books of its own.

A `keyed` step asks the till with its idempotency key, and the till does for a key once what is asked. A `once` step
asks without one, and the till does what is asked each time. The till's books are files: what a request did is there,
whatever becomes of the process that made it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint

from noetic_py import NOT_DONE, Retry, each, loop, parallel, sequence, step, until
from noetic_py.context.step import AnyStep
from noetic_py.testing._random_programs.building import AnyContext
from noetic_py.testing._random_programs.numbers import mix
from noetic_py.testing.ledger import attempt_of
from tests.crash.ledger import Ledger, shown
from tests.crash.programs import Flaky, new_attempts, number


class Till:
    """Does what is asked of it, and says in its books what it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        self.keys.mkdir(parents=True, exist_ok=True)

    def _book(self, line: str) -> None:
        handle = os.open(self.folder / "done", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(handle, line.encode() + b"\n")
        os.close(handle)

    def keyed(self, key: str, what: str) -> str:
        """Do it unless it was done for this key; the receipt is the same."""
        # The name is made last, with its content, so that a till that dies has done all of it or nothing.
        made = self.keys / f".{os.getpid()}"
        made.write_text(what)
        try:
            os.link(made, self.keys / key)
        except FileExistsError:
            assert (self.keys / key).read_text() == what, f"{what} has the key of {(self.keys / key).read_text()}"
        finally:
            made.unlink()
        return what

    def done_keyed(self) -> list[str]:
        """What was done for keys, one entry for each effect."""
        return sorted(path.read_text() for path in self.keys.iterdir() if not path.name.startswith("."))

    def once(self, what: str) -> str:
        """Do it."""
        self._book(what)
        return what

    def done(self) -> list[str]:
        """What was done without a key, one entry for each effect."""
        book = self.folder / "done"
        return book.read_text().splitlines() if book.exists() else []


class Effects:
    """Makes the flow of a seed.

    Args:
        seed: The seed.
        ledger: Where bodies are written down.
        folder: Where the till is.
        reconcile: Whether `once` steps can ask the till what became of them; of some seeds they always can.
    """

    def __init__(self, seed: int, ledger: Ledger, folder: Path, *, reconcile: bool) -> None:
        self.dice = random.Random(seed)
        self.ledger = ledger
        self.till = Till(folder)
        self.kinds = ("keyed",) if seed % 2 == 0 else ("once", "once", "keyed")
        self.reconcile = reconcile or seed % 4 == 1
        self.count = 0

    def flow(self) -> AnyStep:
        """The whole program."""
        parts = [self.effect(), self.node(), self.node(), self.node()]
        self.dice.shuffle(parts)
        return sequence(*parts, id="flow")

    def _id(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def node(self) -> AnyStep:
        how = self.dice.choice(("row", "rounds", "section", "many", "body", "effect"))
        if how == "row":
            return sequence(self.effect(), self.effect(), id=self._id("q"))
        if how == "rounds":
            return loop(self.effect(), until=until.max_rounds(3), id=self._id("l"))
        if how == "section":
            return sequence(parallel([self.effect(), self.effect()], id=self._id("p")), self.reduce(), id=self._id("q"))
        if how == "many":
            return sequence(self.split(), each(self.effect(), id=self._id("e")), self.reduce(), id=self._id("q"))
        return self.body() if how == "body" else self.effect()

    def effect(self) -> AnyStep:
        """A step that asks the till for something, once a run."""
        kind = self.dice.choice(self.kinds)
        fails = int(kind == "keyed" and self.dice.random() < 0.3)
        early = self.dice.random() < 0.5

        async def effect(x: int, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                if early:
                    await checkpoint()
                what = shown(tuple((name, 1) for name, _ in attempt_of(ctx)))
                receipt = self.till.once(what) if kind == "once" else self.till.keyed(ctx.idempotency_key, what)
                if new_attempts(ctx) < fails:
                    raise Flaky("no answer from the till")
                await checkpoint()
                return mix(x, len(receipt))

        async def look(x: int, ctx: Any) -> Any:
            what = "/".join(ctx.path)
            return mix(x, len(what)) if what in self.till.done() else NOT_DONE

        options: dict[str, Any] = {"replay": kind}
        if kind == "once" and self.reconcile:
            options["reconcile"] = look
        if fails:
            options["retry"] = Retry(2, initial=0)
        return step(id=self._id(kind[0]), **options)(effect)

    def body(self) -> AnyStep:
        """A body that calls two effects, so it is in flight itself when one of them is."""
        first, second = self.effect(), self.effect()

        async def body(x: int, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                return mix(await first(x, ctx), await second(x + 1, ctx))

        return step(id=self._id("s"))(body)

    def split(self) -> AnyStep:
        async def split(x: int, ctx: AnyContext) -> list[int]:
            with self.ledger.body(ctx):
                return [mix(x, index) for index in range(3)]

        return step(id=self._id("s"))(split)

    def reduce(self) -> AnyStep:
        async def reduce(x: Any, ctx: AnyContext) -> int:
            with self.ledger.body(ctx):
                return number(x)

        return step(id=self._id("r"))(reduce)
