"""The conformance suite for record transforms, to be run with pytest against one of your own.

A transform that passes it can stand in front of every backend: what it wrote is read back as it was, also by another
process, at the place where it was written, in forks, and while many runs use it at once.

```python
from noetic_py.testing import TransformContract


class TestSqueeze(TransformContract):
    def make(self) -> Squeeze:
        return Squeeze()
```
"""

from __future__ import annotations

import anyio
import pytest
from attrs import evolve

from noetic_py.checkpoints.memory import InMemoryBackend
from noetic_py.context.context import Context
from noetic_py.core.memory import Memory
from noetic_py.core.state import StateBag
from noetic_py.errors import TransformMissing
from noetic_py.harness import Harness
from noetic_py.journal.signing import TransformChain
from noetic_py.journal.transforms import RecordPlace, RecordTransform
from noetic_py.steps.code import step
from noetic_py.testing._conformance.base import equal

__all__ = ["TransformContract"]

PLACE = RecordPlace("monday", 7, "StepFinished", ("outline", "draft[2]"), bytes(range(32)))
PAYLOADS = [b"", b"\x00", b'{"output":"High water is at noon."}', bytes(range(256)) * 64]
_RUN = "transformed"


@step
async def write_down(text: str, ctx: Context[Memory, StateBag]) -> str:
    ctx.state["said"] = text
    return text.upper()


@step
async def double(text: str) -> str:
    return text * 2


_FLOW = write_down >> double


class TransformContract:
    """The contract of a record transform.

    Attributes:
        detects_changes: Whether it notices that a stored record was changed, as signatures and authenticated encryption
            do. One that only compresses does not.
    """

    pytestmark: pytest.MarkDecorator = pytest.mark.anyio
    detects_changes: bool = False

    def make(self) -> RecordTransform:
        """Make the transform, as each process of a program does: with the same name and the same keys."""
        raise NotImplementedError("make() has to make the transform")

    # -- bytes

    def test_its_name_is_valid_and_stays_the_same(self) -> None:
        """Records are marked with it, so another process needs the same one."""
        (name,) = TransformChain([self.make()]).by_name
        equal(self.make().name, name)

    @pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: f"{len(payload)}-bytes")
    def test_what_it_wrote_is_read_back_by_another_one(self, payload: bytes) -> None:
        """It keeps nothing that a process has to remember, and accepts what it wrote itself."""
        stored = self.make().encode(PLACE, payload)
        equal(type(stored), bytes)
        read = self.make().decode(PLACE, stored)
        equal((read.payload, read.finding.verdict), (payload, "verified"))

    def test_records_of_many_runs_are_told_apart(self) -> None:
        """One transform serves all runs at once, in any order."""
        transform = self.make()
        places = [evolve(PLACE, run_id=run, position=at) for run in ("monday", "tuesday") for at in (1, 2)]
        stored = [transform.encode(place, f"{place.run_id} {place.position}".encode()) for place in places]
        for place, payload in reversed(list(zip(places, stored, strict=True))):
            equal(transform.decode(place, payload).payload, f"{place.run_id} {place.position}".encode())

    # -- runs

    async def test_a_run_is_resumed_by_another_process(self) -> None:
        """Value, state and conversation are those of the run, and a fork of it can be read and resumed."""
        backend = InMemoryBackend()
        written = await self._run(backend)
        async with self._harness(backend) as harness:
            resumed = await harness.resume(_RUN, _FLOW, state_type=StateBag)
            equal((resumed.value, resumed.state), (written, StateBag({"said": "tide"})))
            equal((await harness.runs.verify(_RUN)).ok, True)
            forked = await harness.fork(_RUN)
            equal((await harness.resume(forked, _FLOW)).value, written)

    async def test_runs_at_once_do_not_mix(self) -> None:
        """Each run reads its own records."""
        async with self._harness(InMemoryBackend()) as harness:

            async def one(text: str) -> None:
                equal((await harness.run(_FLOW, text, run_id=f"run-{text}")).value, text.upper() * 2)
                equal((await harness.resume(f"run-{text}", _FLOW)).value, text.upper() * 2)

            async with anyio.create_task_group() as group:
                for text in ("ebb", "flow", "slack"):
                    group.start_soon(one, text)

    async def test_a_reader_without_it_is_told_which_one_it_needs(self) -> None:
        """A run is never read as if there were no transform."""
        backend = InMemoryBackend()
        await self._run(backend)
        async with Harness(checkpoints=backend, plugins=()) as harness:
            with pytest.raises(TransformMissing) as caught:
                await harness.resume(_RUN, _FLOW)
        equal(caught.value.transform, self.make().name)

    async def test_a_record_at_another_place_or_changed_is_refused(self) -> None:
        """For a transform that detects changes: a moved and a changed record are not read as verified."""
        if not self.detects_changes:
            pytest.skip("it does not detect changes")
        stored = self.make().encode(PLACE, PAYLOADS[2])
        moved = evolve(PLACE, position=8)
        changed = bytes([stored[0] ^ 1, *stored[1:]]), bytes([*stored[:-1], stored[-1] ^ 1])
        for place, payload in ((moved, stored), *((PLACE, each) for each in changed)):
            equal(_verdict(self.make(), place, payload) == "verified", False)

    # -- helpers

    def _harness(self, backend: InMemoryBackend) -> Harness[Memory]:
        return Harness(checkpoints=backend, record_transforms=[self.make()], plugins=())

    async def _run(self, backend: InMemoryBackend) -> str:
        async with self._harness(backend) as harness:
            return (await harness.run(_FLOW, "tide", run_id=_RUN)).value


def _verdict(transform: RecordTransform, place: RecordPlace, payload: bytes) -> str:
    try:
        return transform.decode(place, payload).finding.verdict
    except Exception:  # noqa: BLE001 # whatever it raises at bytes that may be anything; a reader refuses them then
        return "refused"
