"""Cassettes: what was recorded is replayed, and what differs is shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noetic_py import (
    Budget,
    FunctionCall,
    Harness,
    RunResult,
    Secret,
    call_model,
    each,
    loop,
    step,
    tool,
    until,
)
from noetic_py.core.codec import to_wire
from noetic_py.errors import ConfigError, HookFailed
from noetic_py.testing import Cassette, CassetteMismatch, ScriptedModel, replay

CALLED: list[str] = []


@tool
async def tide(port: str) -> str:
    """The next high water at a port."""
    CALLED.append(port)
    return f"noon at {port}"


def agent(instructions: str = "Answer in one sentence.") -> Any:
    return loop(call_model(instructions=instructions, tools=[tide]), until=until.no_tool_calls())


def scripted() -> ScriptedModel:
    calls = [FunctionCall(name="tide", arguments={"port": port}) for port in ("Brest", "Dover")]
    return ScriptedModel(calls, "At noon.", name="acme:large", cost="0.25")


async def asked(cassette: Cassette, flow: Any, text: str = "When?") -> RunResult[Any, Any]:
    model = cassette.model(scripted() if cassette.records else "acme:large")
    async with Harness(model=model, hooks=cassette.tools, plugins=()) as harness:
        return await harness.run(flow, text, budget=Budget(model_calls=5))


async def recorded(path: Path, flow: Any) -> RunResult[Any, Any]:
    with Cassette(path, record=True) as cassette:
        return await asked(cassette, flow)


async def test_a_run_is_replayed_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tides.json"
    first = await recorded(path, agent())
    before = len(CALLED)
    with Cassette(path) as cassette:
        again = await asked(cassette, agent())
    assert len(CALLED) == before
    assert [said(item) for item in again.items] == [said(item) for item in first.items]
    assert (again.value, again.usage, again.cost, again.model_calls) == (
        first.value,
        first.usage,
        first.cost,
        first.model_calls,
    )
    assert str(again.cost) == "0.50"


def said(item: Any) -> dict[str, Any]:
    wire = to_wire(item)
    # The user's own message and the outputs of tools are made anew.
    return {name: value for name, value in wire.items() if name != "id"}


async def test_a_flow_is_replayed_by_its_cassette_alone(tmp_path: Path) -> None:
    path = tmp_path / "tides.json"
    first = await recorded(path, agent())
    before = len(CALLED)
    again = await replay(path, agent(), "When?")
    assert len(CALLED) == before
    assert (again.value, again.usage, str(again.cost)) == (first.value, first.usage, "0.50")
    # A step may name the model too.
    named = loop(
        call_model("acme:large", instructions="Answer in one sentence.", tools=[tide]), until=until.no_tool_calls()
    )
    assert (await replay(path, named, "When?")).value == first.value
    with pytest.raises(CassetteMismatch, match="Answer in two words"):
        await replay(path, agent("Answer in two words."), "When?")

    @step
    async def nothing(text: str) -> str:
        return text

    with pytest.raises(CassetteMismatch, match="were not made"):
        await replay(path, nothing, "When?")


async def test_a_flow_whose_tools_were_not_recorded_calls_them(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with Cassette(path, record=True) as cassette:
        async with Harness(model=cassette.model(scripted()), plugins=()) as harness:
            await harness.run(agent(), "When?")
    before = len(CALLED)
    assert (await replay(path, agent(), "When?")).value == "At noon."
    assert len(CALLED) == before + 2


async def test_an_answer_is_streamed_word_by_word(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with Cassette(path, record=True) as cassette:
        async with Harness(model=cassette.model(ScriptedModel("At noon today.", name="m")), plugins=()) as harness:
            await harness.run(call_model(), "When?")
    with Cassette(path) as cassette:
        model = cassette.model("m")
        async with Harness(model=model, plugins=()) as harness, harness.stream(call_model(), "When?") as stream:
            assert [piece async for piece in stream.text] == ["At ", "noon ", "today."]


async def test_a_changed_prompt_shows_its_difference_in_ten_lines(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    long = "\n".join(f"Rule {number}." for number in range(50))
    await recorded(path, agent(long))
    with pytest.raises(CassetteMismatch) as caught, Cassette(path) as cassette:
        await asked(cassette, agent(long.replace("Rule 30.", "Rule thirty.")))
    lines = caught.value.message.splitlines()
    assert len(lines) <= 11
    assert {"-Rule 30.", "+Rule thirty."} <= set(lines)
    with pytest.raises(CassetteMismatch, match="lines more") as caught, Cassette(path) as cassette:
        await asked(cassette, agent(long.replace("Rule", "Law")))
    assert len(caught.value.message.splitlines()) == 11


async def test_a_changed_question_names_the_call_that_is_nearest(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    await recorded(path, agent())
    with pytest.raises(CassetteMismatch, match=r"\+ +\"text\": \"Where\?\""), Cassette(path) as cassette:
        await asked(cassette, agent(), "Where?")


async def test_calls_may_come_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    flow = each(call_model(), concurrency=4)
    ports = ["Brest", "Dover", "Cork"]
    with Cassette(path, record=True) as cassette:
        model = cassette.model(ScriptedModel("a", "b", "c", name="m"))
        async with Harness(model=model, plugins=()) as harness:
            first = (await harness.run(flow, ports)).value
    with Cassette(path) as cassette:
        async with Harness(model=cassette.model("m"), plugins=()) as harness:
            assert (await harness.run(flow, ports[::-1])).value == first[::-1]


async def test_what_was_not_asked_for_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    await recorded(path, agent())

    @step
    async def nothing(text: str) -> str:
        return text

    said = r"4 of 4 calls in .* were not made; the first is of the model"
    with pytest.raises(CassetteMismatch, match=said), Cassette(path) as cassette:
        await asked(cassette, nothing)
    # A run that hides the mismatch does not hide it from the test.
    with pytest.raises(CassetteMismatch, match="differs from what was recorded"), Cassette(path) as cassette:
        await hidden(cassette)


async def hidden(cassette: Cassette) -> None:
    async with Harness(model=cassette.model("acme:large"), hooks=cassette.tools, plugins=()) as harness:
        await harness.run(agent("Other."), "When?", on_error="result")


async def test_other_arguments_of_a_tool_are_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    await recorded(path, agent())
    path.write_text(path.read_text().replace('"port": "Dover"', '"port": "Deal"'))
    with pytest.raises(HookFailed) as caught, Cassette(path) as cassette:
        await asked(cassette, agent())
    assert isinstance(caught.value.__cause__, CassetteMismatch)
    assert '+ "port": "Dover"' in caught.value.__cause__.message


async def test_secrets_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    secret = Secret("kept-from-files-7")
    with Cassette(path, record=True) as cassette:
        model = ScriptedModel(f"It is {secret.reveal()}.", name="m")
        async with Harness(model=cassette.model(model), plugins=()) as harness:
            await harness.run(call_model(instructions=f"The key is {secret.reveal()}."), "Which key?")
    assert "kept-from-files-7" not in path.read_text()
    with Cassette(path) as cassette:
        async with Harness(model=cassette.model("m"), plugins=()) as harness:
            await harness.run(call_model(instructions=f"The key is {secret.reveal()}."), "Which key?")


def test_what_is_not_a_cassette(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no cassette") as caught:
        Cassette(tmp_path / "none.json")
    assert caught.value.code == "cassette"
    for text in ("", "[]", '{"cassette": 2, "calls": []}', '{"cassette": 1, "calls": [{}]}'):
        path = tmp_path / "c.json"
        path.write_text(text)
        with pytest.raises(ConfigError, match="is not a valid cassette"):
            Cassette(path)


TEST = """
from noetic_py import Harness, call_model
from noetic_py.testing import ScriptedModel

async def ask(cassette, text):
    model = ScriptedModel("Noon.", name="m") if cassette.records else "m"
    async with Harness(model=cassette.model(model), plugins=()) as harness:
        return (await harness.run(call_model(), text)).value

async def test_tides(cassette):
    assert await ask(cassette, "When?") == "Noon."

async def test_changed(cassette):
    assert await ask(cassette, "When?" if cassette.records else "Where?") == "Noon."
"""


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(TEST)
    (tmp_path / "conftest.py").write_text(
        "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    missing = subprocess.run([*command, "-k", "tides"], cwd=tmp_path, capture_output=True, text=True)
    assert "pytest --record-cassettes" in missing.stdout
    written = subprocess.run([*command, "--record-cassettes"], cwd=tmp_path, capture_output=True, text=True)
    assert "2 passed" in written.stdout
    found = json.loads((tmp_path / "cassettes" / "test_one" / "test_tides.json").read_text())
    assert [call["kind"] for call in found["calls"]] == ["model"]
    replayed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 1 passed" in replayed.stdout
    assert "CassetteMismatch" in replayed.stdout
