from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import noetic_py.testing
from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import Extension, FunctionCall, Item, Message, Opaque, Reasoning, Refusal, extension_item
from noetic_py.errors import ModelError, RateLimited, RealModelRefused
from noetic_py.models.model import (
    ItemDone,
    Model,
    ModelEvent,
    ModelRequest,
    ModelResponse,
    Price,
    ProfiledModel,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    allow_real_models,
    check_real_model,
    price_of,
    profile_of,
)
from noetic_py.testing import ScriptedModel, ScriptExhausted

pytestmark = pytest.mark.anyio

ROOT = Path(noetic_py.testing.__file__).parents[2]
REQUEST = ModelRequest(items=[Message.user("hi")])


@extension_item("noetic-test:note")
class Note(Extension):
    text: str


async def ask(model: Model, request: ModelRequest = REQUEST) -> ModelResponse:
    async with model.respond(request) as stream:
        return await stream.response()


async def events_of(model: Model) -> list[ModelEvent]:
    async with model.respond(REQUEST) as stream:
        return [event async for event in stream]


async def test_it_says_its_turns_in_order() -> None:
    call = FunctionCall(name="search", arguments={"query": "x"})
    model = ScriptedModel("one", call, [Reasoning(content="hm"), Message.assistant("three")])
    first, second, third = [await ask(model) for _ in range(3)]
    assert [item.text for item in first.items if isinstance(item, Message)] == ["one"]
    assert second.items == (call,)
    assert [type(item) for item in third.items] == [Reasoning, Message]
    assert [first.stop_reason, second.stop_reason, third.stop_reason] == ["stop", "tool_calls", "stop"]
    model.assert_complete()


async def test_a_turn_may_be_a_function_of_the_request() -> None:
    model = ScriptedModel(lambda request: f"{len(request.items)} items", lambda _: ModelError("no", model="x"))
    assert [item.text for item in (await ask(model)).items if isinstance(item, Message)] == ["1 items"]
    with pytest.raises(ModelError, match="no"):
        await ask(model)


async def test_an_exception_is_raised_on_entering_and_counts_as_a_turn() -> None:
    error = RateLimited("slow down", model="test:scripted", retry_after=2.0)
    model = ScriptedModel(error, "then")
    with pytest.raises(RateLimited) as caught:
        await ask(model)
    assert caught.value is error
    assert (await ask(model)).stop_reason == "stop"
    model.assert_complete()


async def test_a_script_that_is_too_short_says_so() -> None:
    model = ScriptedModel("only", name="test:short")
    await ask(model)
    with pytest.raises(ScriptExhausted, match="call 2 of a script with 1 turns") as caught:
        await ask(model)
    assert isinstance(caught.value, ModelError)
    assert caught.value.model == "test:short"
    assert not caught.value.retryable
    assert len(model.requests) == 2


async def test_turns_that_are_left_are_told() -> None:
    model = ScriptedModel("a", "b", "c")
    with pytest.raises(AssertionError, match=r"3 of 3 turns of test:scripted left, the next is 'a'"):
        model.assert_complete()
    await ask(model)
    await ask(model)
    with pytest.raises(AssertionError, match=r"1 of 3 .* the next is 'c'"):
        model.assert_complete()


async def test_a_turn_is_taken_on_entering_only() -> None:
    model = ScriptedModel("a")
    unused = model.respond(REQUEST)
    assert model.requests == []
    async with unused:
        assert list(model.requests) == [REQUEST]


async def test_requests_are_kept_as_they_are() -> None:
    model = ScriptedModel("a", "b")
    other = ModelRequest(items=[])
    await ask(model)
    await ask(model, other)
    assert model.requests[0] is REQUEST
    assert model.requests[1] is other


async def test_usage_and_cost_are_absent_unless_told() -> None:
    plain = await ask(ScriptedModel("a"))
    assert plain.usage is None
    assert plain.cost is None
    assert plain.model == "test:scripted"
    usage = TokenUsage(input=5, output=2)
    told = await ask(ScriptedModel("a", usage=usage, cost=0.1))
    assert told.usage is usage
    assert told.cost == Decimal("0.1")


async def test_the_profile_says_the_price() -> None:
    free, dear = ScriptedModel(), ScriptedModel(cost=0.07, name="acme:dear")
    assert isinstance(free, ProfiledModel)
    assert profile_of(free).price == Price()
    assert profile_of(dear).price == Price(per_call=Decimal("0.07"))
    assert [free.name, dear.name] == ["test:scripted", "acme:dear"]
    assert price_of(dear) == Price(per_call=Decimal("0.07"))


async def test_text_is_streamed_in_words_and_each_item_when_it_is_whole() -> None:
    model = ScriptedModel([Reasoning(content="let me see"), Message.assistant(" one two\nthree ")])
    events = await events_of(model)
    texts = [event.delta for event in events if isinstance(event, TextPart)]
    assert texts == [" ", "one ", "two\n", "three "]
    assert [event.delta for event in events if isinstance(event, ReasoningPart)] == ["let ", "me ", "see"]
    whole = [event.item for event in events if isinstance(event, ItemDone)]
    assert [type(item) for item in whole] == [Reasoning, Message]
    parts = [event for event in events if isinstance(event, TextPart)]
    assert {part.item_id for part in parts} == {whole[1].id}
    assert isinstance(events[-1], ItemDone)


async def test_a_call_is_streamed_with_its_arguments() -> None:
    call = FunctionCall(name="search", arguments='{"q":1}', call_id="c")
    note = Note(text="n")
    events = await events_of(ScriptedModel([call, note]))
    assert events == [ToolCallPart("c", "search", '{"q":1}'), ItemDone(call), ItemDone(note)]


@given(st.text(), st.none() | st.integers(1, 7))
def test_pieces_make_up_the_text(text: str, chunk: int | None) -> None:
    async def collect() -> list[str]:
        events = await events_of(ScriptedModel(text, chunk=chunk))
        return [event.delta for event in events if isinstance(event, TextPart)]

    pieces = anyio.run(collect)
    assert "".join(pieces) == text
    assert "" not in pieces
    if chunk is not None:
        assert all(len(piece) == chunk for piece in pieces[:-1])


async def test_a_stream_left_early_still_gives_the_whole_answer() -> None:
    model = ScriptedModel("one two three")
    async with model.respond(REQUEST) as stream:
        async for event in stream:
            assert event == TextPart("one ", (await stream.response()).items[0].id)
            break
        rest = [event async for event in stream]
        assert [event.delta for event in rest if isinstance(event, TextPart)] == ["two ", "three"]
        assert [type(item) for item in (await stream.response()).items] == [Message]


async def test_nothing_is_streamed_after_the_answer_was_left() -> None:
    model = ScriptedModel("one two")
    async with model.respond(REQUEST) as stream:
        pass
    assert [event async for event in stream] == []


async def test_an_answer_that_was_not_entered_has_no_response() -> None:
    model = ScriptedModel("a")
    async with model.respond(REQUEST) as stream:
        pass
    other: object = model.respond(REQUEST)
    assert isinstance(other, type(stream))
    with pytest.raises(RuntimeError, match="enter the answer"):
        await other.response()


async def test_what_is_said_again_gets_new_ids() -> None:
    call = FunctionCall(name="search", call_id="c", arguments="{}")
    twin = FunctionCall(name="other", call_id="c")
    message, note = Message.assistant("x"), Note(text="n")
    model = ScriptedModel(call, [call, twin], [message, note], [message, note])
    answers = [(await ask(model)).items for _ in range(4)]
    calls = [item for items in answers for item in items if isinstance(item, FunctionCall)]
    assert calls[0] is call
    assert [c.name for c in calls] == ["search", "search", "other"]
    assert len({c.call_id for c in calls}) == 3
    assert len({c.id for c in calls}) == 3
    assert answers[2] == (message, note)
    again: list[Item] = list(answers[3])
    assert [item.id in {message.id, note.id} for item in again] == [False, False]
    assert isinstance(again[0], Message)
    assert again[0].text == "x"
    assert isinstance(again[1], Note)
    assert again[1].text == "n"


async def test_an_opaque_item_stays_as_it_is() -> None:
    item = Opaque(raw=b'{"type":"acme:x","id":"o1"}')
    model = ScriptedModel(item, item)
    assert (await ask(model)).items[0] is item
    assert (await ask(model)).items[0] is item


async def test_a_refusal_is_a_reason_to_stop() -> None:
    model = ScriptedModel(Message(role="assistant", content=[Refusal(refusal="no")]))
    assert (await ask(model)).stop_reason == "refusal"


async def test_a_delay_is_waited_out_and_can_be_cancelled() -> None:
    model = ScriptedModel("late", "never", delay=0.02)
    before = anyio.current_time()
    await ask(model)
    assert anyio.current_time() - before >= 0.015
    with anyio.move_on_after(0.001) as scope:
        await ask(ScriptedModel("never", delay=60))
    assert scope.cancelled_caught


async def test_calls_at_once_get_a_turn_each() -> None:
    model = ScriptedModel(*[str(n) for n in range(20)], delay=0.001)
    said: list[str] = []

    async def one() -> None:
        said.extend(item.text for item in (await ask(model)).items if isinstance(item, Message))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(one)
    assert sorted(said, key=int) == [str(n) for n in range(20)]
    model.assert_complete()


@pytest.mark.parametrize("wrong", [{"delay": -1}, {"cost": -0.1}, {"chunk": 0}])
def test_wrong_numbers_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="zero or more"):
        ScriptedModel("a", delay=wrong.get("delay", 0), cost=wrong.get("cost"), chunk=wrong.get("chunk"))


# ---------------------------------------------------------------------------------------------- the package, the plugin


def test_the_package_loads_its_parts_late() -> None:
    program = (
        "import sys, noetic_py.testing as t, noetic_py.testing.pytest_plugin\n"
        "assert 'noetic_py.testing.scripted' not in sys.modules and 'noetic_py.models' not in sys.modules\n"
        "assert not {'pydantic', 'cattrs'} & sys.modules.keys()\n"
        "assert t.ScriptedModel.__module__ == 'noetic_py.testing.scripted'\n"
        "assert {*t.__all__} <= {*dir(t)}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_every_public_name_is_there_and_no_other() -> None:
    for name in noetic_py.testing.__all__:
        assert getattr(noetic_py.testing, name) is not None
    assert noetic_py.testing.VirtualRuntime.__module__ == "noetic_py.testing.virtual"
    with pytest.raises(AttributeError, match="'NoSuch'"):
        getattr(noetic_py.testing, "NoSuch")  # noqa: B009 # a checker would refuse the plain way


PLUGIN_TESTS = """
import anyio
import pytest
from noetic_py.errors import RealModelRefused
from noetic_py.models.model import allow_real_models, check_real_model

@pytest.fixture
def checked():
    check_real_model("openai:x")

def test_forbidden():
    with pytest.raises(RealModelRefused):
        check_real_model("openai:x")

@pytest.mark.real_models
def test_allowed(checked):
    check_real_model("openai:x")

@pytest.mark.real_models
@pytest.mark.anyio
async def test_allowed_in_tasks():
    async with anyio.create_task_group() as group:
        group.start_soon(check)

async def check():
    check_real_model("openai:x")

def test_forbidden_again():
    with allow_real_models():
        check_real_model("openai:x")
    with pytest.raises(RealModelRefused):
        check_real_model("openai:x")
"""


OUTER = """
import sys
import pytest

code = pytest.main(sys.argv[1:])
from noetic_py.models.model import check_real_model

check_real_model("openai:x")
sys.exit(code)
"""


def run_pytest(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_inner.py").write_text(PLUGIN_TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    # The plugin is found as users find it: by the entry point of the installed package.
    command = [sys.executable, "-c", OUTER, "-q", "-p", "no:cacheprovider"]
    command += ["--strict-markers", "-W", "error", f"--rootdir={tmp_path}", "-c", str(tmp_path / "pytest.ini"), *more]
    return subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_plugin_forbids_real_models_but_for_marked_tests(tmp_path: Path) -> None:
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
    assert "real_models: the test may call real models" in run_pytest(tmp_path, "--markers").stdout


def test_the_guard_may_be_opened_and_closed_by_hand() -> None:
    with allow_real_models():
        check_real_model("openai:x")
    with allow_real_models(False), pytest.raises(RealModelRefused, match="openai:x"):
        check_real_model("openai:x")
