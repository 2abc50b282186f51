"""Signed runs: what an attacker with access to the database, but without a key, can change, and how it is found."""

from collections.abc import Callable, Sequence

import anyio
from attrs import evolve
from noetic_signing import Signer, Signing

from noetic_py import Budget, Harness, step
from noetic_py.checkpoints import InMemoryBackend, Record
from noetic_py.errors import RecordRefused


@step
async def quote(order: str) -> int:
    return 100 * len(order)


@step
async def approve(price: int) -> str:
    return f"approved: {price}"


flow = quote >> approve
KEY = Signer.generate()


def harness_on(backend: InMemoryBackend) -> Harness:
    return Harness(checkpoints=backend, record_transforms=[Signing(KEY)])


async def copied(
    backend: InMemoryBackend, change: Callable[[Sequence[Record]], Sequence[Record]], *, end_of: InMemoryBackend
) -> InMemoryBackend:
    """A copy of a database in which the run was changed, with the end that it had in a third one."""
    entry = await end_of.entry("order")
    assert entry is not None
    copy = InMemoryBackend()
    # Who copies a database copies the identity that binds its runs to it. A run that is copied alone is refused.
    identity = await backend.get(("noetic", "store"), "identity")
    assert identity is not None
    await copy.put(("noetic", "store"), "identity", identity.value)
    records = change(await backend.read("order"))
    await copy.append(
        "order", expected_position=0, fence=0, records=records, summary=entry.summary, status=entry.status
    )
    return copy


async def attempt(what: str, backend: InMemoryBackend) -> None:
    try:
        result = await harness_on(backend).resume("order", flow)
        print(f"{what}: {result.value}")
    except RecordRefused as refused:
        print(f"{what}: refused, {refused.reason}")


async def main() -> None:
    backend = InMemoryBackend()
    await harness_on(backend).run(flow, "lamps", run_id="order", budget=Budget(steps=1))
    early = await copied(backend, list, end_of=backend)
    await harness_on(backend).resume("order", flow, budget=Budget(steps=2))
    anchor = (await harness_on(backend).runs.verify("order")).anchor

    def cheaper(records: Sequence[Record]) -> list[Record]:
        return [evolve(record, payload=record.payload.replace(b"500", b"  5")) for record in records]

    await attempt("as it was written", await copied(backend, list, end_of=backend))
    await attempt("cheaper", await copied(backend, cheaper, end_of=backend))
    await attempt("without its last record", await copied(backend, lambda records: records[:-1], end_of=backend))
    await attempt("without the first step", await copied(backend, lambda r: [r[0], *r[2:]], end_of=backend))
    await attempt("with the end that it had before", await copied(backend, list, end_of=early))

    # An old copy of the whole run was signed as well. What was kept elsewhere, an anchor, tells it from the run.
    for name, database in (("the run", backend), ("an old copy", early)):
        report = await harness_on(database).runs.verify("order", anchor=anchor)
        print(f"{name}: {'holds all it held' if report.ok else report.problems[0].reason}")


if __name__ == "__main__":
    anyio.run(main)
