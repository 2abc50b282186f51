"""Runs that begin by the clock, once each, however many workers there are.

    python examples/schedules.py

Two workers have the same schedules. One is for each weekday at nine in Brest; the other one, for every second, is what
you see here. Pausing it holds for both.
"""

import sys
from datetime import UTC, datetime, timedelta
from itertools import islice
from tempfile import TemporaryDirectory

import anyio

from noetic_py import Context, Harness, step
from noetic_py.schedules import Schedule


@step
async def measure(gauge: str, ctx: Context) -> str:
    return f"{gauge} at {ctx.metadata['scheduled']}"


WEEKDAYS = Schedule("0 9 * * MON-FRI", measure, "the gauge of Brest", timezone="Europe/Paris")
SECONDS = Schedule(timedelta(seconds=1), measure, "the gauge of Dover", catch_up="all", user_id="ada")


def a_harness(folder: str) -> Harness:
    schedules = {"weekdays": WEEKDAYS, "seconds": SECONDS}
    return Harness(checkpoints=f"sqlite:{folder}/runs.db", flows={"measure": measure}, schedules=schedules)


async def main() -> None:
    print("weekdays at nine, in UTC:")
    for at in islice(WEEKDAYS.times(datetime(2026, 10, 23, 12, tzinfo=UTC)), 3):
        print(f"  {at:%a %d %b %H:%M}")

    with TemporaryDirectory() as folder:
        async with (
            a_harness(folder) as ours,
            a_harness(folder) as first,
            a_harness(folder) as second,
            anyio.create_task_group() as group,
        ):
            group.start_soon(first.work)
            group.start_soon(second.work)
            done: list[str] = []
            while len(done) < 3:
                await anyio.sleep(0.1)
                done = [each.run_id for each in await ours.runs.list(status="completed")]
            await ours.schedules.pause("seconds")
            result = await ours.result(done[0], measure)
            print(f"seconds: {result.value.partition(' at ')[0]}")
            print(f"each time has one run: {len(done) == len(set(done))}")
            for each in await ours.schedules.list():
                print(f"{each.name}: {'paused' if each.paused else 'goes on'}")
            by_hand = await ours.schedules.trigger("weekdays")
            print(f"by hand: {(await ours.result(by_hand, measure)).value.partition(' at ')[0]}")
            await first.shutdown()
            await second.shutdown()


if __name__ == "__main__":
    sys.exit(anyio.run(main))
