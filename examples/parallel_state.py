"""Parallel paths with copies of the state, and a `merge` or a reducer that joins their changes.

Three readers go through a text at once, each counting something in the same state class. There are no locks and no lost
updates: no path sees what another one does. In a race the winner's state is kept. A field with a reducer is joined
without a `merge`.
"""

from collections.abc import Sequence
from typing import Annotated

import anyio
from attrs import Factory, define

from noetic_py import Context, Harness, Memory, each, parallel, race, step
from noetic_py.core import reducers

TEXT = "the tide comes in and the tide goes out and people asked the tide"


@define
class State:
    counts: dict[str, int] = Factory(dict[str, int])
    notes: list[str] = Factory(list[str])


@step
async def count_words(text: str, ctx: Context[Memory, State]) -> str:
    ctx.state.counts["words"] = len(text.split())
    return "words"


@step
async def count_tides(text: str, ctx: Context[Memory, State]) -> str:
    await anyio.sleep(0.02)
    # The others are done by now; their counts are in their own copies.
    ctx.state.notes.append(f"count_tides sees {ctx.state.counts}")
    ctx.state.counts["tides"] = text.count("tide")
    return "tides"


@step
async def count_letters(text: str, ctx: Context[Memory, State]) -> str:
    await anyio.sleep(0.01)
    ctx.state.counts["letters"] = sum(map(str.isalpha, text))
    return "letters"


def merge(outputs: Sequence[str], ctx: Context[Memory, State], states: Sequence[State]) -> str:
    # Outputs and states come in the order of the paths, whichever finished first.
    for state in states:
        ctx.state.counts |= state.counts
        ctx.state.notes += state.notes
    return ", ".join(outputs)


def join(outputs: Sequence[str], ctx: Context[Memory, State], states: Sequence[State]) -> str:
    # The states are taken and left: what the paths have written to their copies is not wanted here.
    return ", ".join(outputs)


@define
class Tally:
    letters: Annotated[int, reducers.sum] = 0
    words: Annotated[set[str], reducers.union] = Factory(set[str])


@step
async def tally(word: str, ctx: Context[Memory, Tally]) -> None:
    ctx.state.letters += len(word)
    ctx.state.words.add(word)


counters = [count_words, count_tides, count_letters]


async def main() -> None:
    async with Harness() as harness:
        kept = await harness.run(parallel(counters, merge=merge), TEXT, state=State())
        print(f"parallel with merge: {kept.value}\n  {kept.state}")

        dropped = await harness.run(parallel(counters, merge=join), TEXT, state=State())
        print(f"parallel without merge: {dropped.value}\n  {dropped.state}")

        won = await harness.run(race(counters), TEXT, state=State())
        print(f"race: {won.value} won\n  {won.state}")

        reduced = await harness.run(each(tally), TEXT.split(), state=Tally())
        print(f"each with reducers: {reduced.state.letters} letters in {len(reduced.state.words)} words")


if __name__ == "__main__":
    anyio.run(main)
