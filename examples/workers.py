"""A front end that submits runs, and workers that carry them out: one is killed, and another one finishes its runs.

The program starts itself again as a worker. The first worker is killed at the second parcel, as a machine would end
it: without a warning. The second one does not weigh the first parcel again. Then the run asks a person. While it waits,
no worker has it. The front end follows the run over both workers by its stored events.
"""

import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

import anyio

from noetic_py import Ask, Context, Harness, each, step
from noetic_py.core.events import RequestMade, StepCommitted

worker = sys.argv[1] if sys.argv[1:] else None


@step
async def weigh(parcel: str) -> int:
    print(f"{worker} weighs the {parcel}", flush=True)
    if worker == "worker 1" and parcel == "lamp":
        await anyio.sleep_forever()  # until the process is killed
    return 100 * len(parcel)


@step
async def send(weights: list[int], ctx: Context) -> str:
    agreed = await ctx.ask(Ask(f"Send {sum(weights)} g?", bool))
    return f"{worker} has sent {sum(weights)} g" if agreed else "sent back"


depot = each(weigh, concurrency=1) >> send


def harness(folder: str) -> Harness:
    return Harness(checkpoints=f"sqlite:{folder}/runs.db", flows={"depot": depot})


async def work(folder: str) -> None:
    async with harness(folder) as ours, ours.stopping_on_signals():
        await ours.work()


@contextmanager
def start(name: str, folder: str) -> Generator["subprocess.Popen[str]"]:
    command = [sys.executable, "-u", __file__, name, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            yield process
        finally:
            process.terminate()


async def follow(ours: Harness, run_id: str, after: int = 0) -> int:
    """Print the finished steps until the run asks or ends; returns the cursor to go on from."""
    async for recorded in ours.runs.events(run_id, after=after):
        after = recorded.cursor
        match recorded.event:
            case StepCommitted(path=path):
                print(f"{run_id}: finished {'/'.join(path)}")
            case RequestMade():
                break
            case _:
                pass
    return after


async def front_end(folder: str) -> None:
    async with harness(folder) as ours:
        run_id = await ours.submit(depot, ["book", "lamp", "shoes"], run_id="monday")
        print(f"{run_id}: {(await ours.runs.get(run_id)).status}")

        with start("worker 1", folder) as first:
            for line in first.stdout or ():
                print(f"  {line}", end="")
                if "lamp" in line:
                    break
            first.kill()
        left = await ours.runs.get(run_id)
        print(f"{run_id}: {left.status}, {'alive' if left.alive else 'its worker was killed'}")

        with start("worker 2", folder) as second:
            cursor = await follow(ours, run_id)
            waiting = await ours.runs.wait(run_id)
            print(f"{run_id}: {waiting.status}, {waiting.pending[0].prompt}")
            await ours.runs.answer(waiting.pending[0].answer(True, by="ada"))
            await follow(ours, run_id, cursor)
            print(f"{run_id}: {(await ours.runs.wait(run_id)).status}")
            second.terminate()
            print("".join(f"  {line}" for line in second.stdout or ()), end="")
        print(f"the result: {(await ours.result(run_id, depot)).value}")
        print(f"worker 2 ended with exit code {second.returncode}")


if __name__ == "__main__":
    if worker is not None:
        anyio.run(work, sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as made:
            anyio.run(front_end, made)
