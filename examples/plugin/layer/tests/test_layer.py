"""The contract of memory layers, and the layer in a run."""

import pytest
from noetic_py import FunctionCall, Harness, Memory, call_model, loop, until
from noetic_py.testing import LayerContract, ScriptedModel

from @MODULE@ import Notes

pytestmark = pytest.mark.anyio


class TestNotes(LayerContract[Notes]):
    """What every memory layer has to keep."""

    def make(self) -> Notes:
        return Notes(budget=300)


class Mem(Memory):
    notes: Notes = Notes()


async def test_the_model_writes_a_note_and_sees_it() -> None:
    call = FunctionCall(
        name="notes__write",
        arguments={"name": "tide", "text": "High water at 12:40."},
        call_id="1",
    )
    model = ScriptedModel(call, "Done.")
    async with Harness(model=model, memory=Mem(), plugins=()) as harness:
        agent = loop(call_model(), until=until.no_tool_calls())
        result = await harness.run(agent, "Note the tide.", user_id="ada")
    assert result.value == "Done."
    assert result.memory["notes"] == {"tide": "High water at 12:40."}
    assert "High water at 12:40." in str(model.requests[-1].items)
