"""A run that is killed in the middle and continues without repeating the steps that had finished.

The program starts itself a second time as a child process, which works through three parcels and dies at the second, as
a machine would: without a warning, between two lines. Then it resumes the same run from the same file.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from attrs import define, field

from noetic_py import Context, Harness, Memory, each, step


@define
class Depot:
    """What the run keeps: decoded into this class again when it goes on."""

    grams: int = 0
    labels: list[str] = field(factory=list[str])


@step
async def weigh(parcel: str) -> int:
    async with await anyio.open_file(os.environ["PARCELS"], "a") as box:
        await box.write(f"{parcel}\n")
    if parcel == "lamp" and "--die" in sys.argv:
        os._exit(1)
    return 100 * len(parcel)


@step
async def label(weights: list[int], ctx: Context[Memory, Depot]) -> str:
    for weight in weights:
        ctx.state.grams += weight
        ctx.state.labels.append(f"{weight} g")
    return ", ".join(ctx.state.labels)


depot = each(weigh, concurrency=1) >> label


async def main(folder: str) -> None:
    async with Harness(checkpoints=f"sqlite:{folder}/runs.db") as harness:
        if "--die" in sys.argv:
            await harness.run(depot, ["book", "lamp", "shoes"], state=Depot(), run_id="monday")
        for info in await harness.runs.list():
            print(f"{info.run_id}: {info.status}, {'alive' if info.alive else 'its process is gone'}")
        result = await harness.resume("monday", depot, state_type=Depot)
        print(f"{result.status}: {result.value}; {result.state.grams} g in all")


if __name__ == "__main__":
    if "--die" in sys.argv:
        anyio.run(main, sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            weighed = Path(folder) / "weighed.txt"
            os.environ["PARCELS"] = str(weighed)
            died = subprocess.run([sys.executable, __file__, "--die", folder], check=False)  # noqa: S603
            print(f"the first process died with exit code {died.returncode}")
            anyio.run(main, folder)
            print(f"weighed: {', '.join(weighed.read_text().split())}")
