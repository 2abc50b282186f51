"""A long step that is stopped in the middle and continues where it was, although it is one step.

A finished step is never repeated, but a running step starts again. A step that works through many things stores how far
it has come, and reads it when it starts again: after a crash, an interrupt, or a failure.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from anyio import Event

from noetic_py import Context, Harness, step

PAGES = ["Tides", "Moon", "Springs", "Neaps", "Currents", "Storms"]
copied: list[str] = []
half = Event()


async def copy_page(page: str) -> None:
    """The work itself, such as a request to a server."""
    copied.append(page)
    if page == "Neaps" and copied.count(page) == 1:
        half.set()
        await anyio.sleep_forever()  # the run is stopped here


@step
async def copy(pages: list[str], ctx: Context) -> str:
    for number in range(ctx.progress.get_as(int) or 0, len(pages)):
        await copy_page(pages[number])
        ctx.progress.set(number + 1)
        await ctx.checkpoint()  # from here on a crash does not undo it
    ctx.progress.finish()
    return f"{len(pages)} pages"


async def main(folder: Path) -> None:
    async with Harness(checkpoints=f"sqlite:{folder}/runs.db") as harness:
        handle = harness.start(copy, PAGES, run_id="book", on_error="result")
        await half.wait()
        handle.interrupt("lunch")
        print((await handle.result()).status)

    # Another process may look, and go on.
    async with Harness(checkpoints=f"sqlite:{folder}/runs.db") as harness:
        for path, entry in (await harness.runs.progress("book")).items():
            print(f"{'/'.join(path)}: {entry.value} of {len(PAGES)}")
        print((await harness.resume("book", copy)).value)
    print(f"copied: {', '.join(copied)}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        anyio.run(main, Path(folder))
