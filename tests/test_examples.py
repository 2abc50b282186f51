from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from examples import ask
from noetic_py import Budget, FunctionCall, Harness, Message, ModelRequest
from noetic_py.cli.loading import load_flow
from noetic_py.testing import ScriptedModel, Turn
from tests.properties.checks import FULL
from tests.warm import forked

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# What each example is there to show.
SHOWN = {
    "approvals": [
        "suspended; paid so far: the baker\n  approval: pay {'to': 'the roofer', 'amount': 2400}\n  approval: pay",
        "suspended; paid so far: the baker, the roofer\n  question: 40 euros to the baker: done",
        'was made with these: {"to": "the roofer", "amount": 1200}\n1200 euros to the roofer: done',
        "The call was rejected: they are unknown. Again next month?",
        "see you next month",
    ],
    "budget": ["8 calls made for $0.16, 12 refused", "budget_exceeded: ", "5 calls made for $0.10"],
    "chat_inbox": [
        "user: What makes a spring tide?\nassistant: When sun and moon pull in one line.\nuser: [the gauge of Brest]",
        "interrupted (the user went to see for himself) after 4 model calls",
    ],
    "documents": [
        "summer: 3 added\nThe ferry leaves at nine in summer.\n[handbook/ferries.md, Ferries]\n# Ferries\n\nIn",
        "[buses.md]\nthere is no such passage\nwinter: 1 changed, 1 unchanged, 1 removed\nThe ferry leaves at ten",
        "From documents:\n",
    ],
    "durable": [
        "monday: running, its process is gone\n",
        "completed: 400 g, 400 g, 500 g; 1300 g in all\n",
        "weighed: book, lamp, lamp, shoes",
    ],
    "evaluation": [
        "plain: 33% right, 36 tokens a run\n  wrong: It is 6.9 m.\n",
        "strict: 100% right, 36 tokens a run\n",
    ],
    "handoff": [
        "The tap drips. -> a plumber comes tomorrow\n  front desk, repairs\n",
        "-> nothing to pay: the pipe was ours to mend\n  front desk, bills, repairs, bills\n",
        "It always drips. -> (the steps handed over more than 4 times)",
        "It leaks. -> a plumber comes tomorrow ['message', 'function_call', 'function_call_output', 'message']",
    ],
    "hooks": [
        "The house is broken. -> Done: Only up to 99 euros.\n  Desk(answers=2, refused=['{\"euros\":2000}'])\n",
        "Your prices? -> lamp 20, mat 9\n  Desk(answers=1, refused=[])\n  kept as sheet.txt, text/plain\n",
        "I have a complaint. -> a person calls back about: I have a complaint.\n  Desk(answers=0, refused=[])",
    ],
    "mcp_tools": [
        "approval: harbour/book {'port': 'Brest'}\n{\"Brest\":6.9,\"Dover\":6.7}\nA berth in Brest is booked.\n",
    ],
    "memory": [
        "I was shown 2 blocks of memory; the first begins with",
        "{'asked': 'And on Monday?', 'likes': 'short answers'}",
        "anchor  notes",
    ],
    "memory_trial": [
        "evidence found: 1.00, in use 0.00\noutdated shown: 1.00, in use 0.00\n",
        "Who has the keys of the shed? found: 1.0, in use 0.0; outdated: 1\n12 stored turns, 0 model calls\n",
    ],
    "message_queue": [
        "('next_turn', 'Thank you.'), ('between_rounds', 'In Brest, please.')]\n",
        "(I was told: When are the tides? / In Brest, please.)\n(I was told: In Brest, please. / Thank you.)\n",
        "interrupted: True; the same once more: dropped\n(interrupted)\n(I was told: When are the ferries?",
        "  a turn that was completed\n  a turn that was interrupted\n  a turn that was completed\n",
    ],
    "map_reduce": ["71 boats on 11 days; no note of day [7]\n12 model calls for $0.012\n"],
    "parallel_state": [
        "State(counts={'words': 14, 'tides': 3, 'letters': 52}, notes=['count_tides sees {}'])",
        "State(counts={}, notes=[])",
        "race: words won",
    ],
    "conversation": [
        "first: (1 items) I see.\ndetour: (3 items) I see. tides.detour Brest\nalone: (1 items) I see. False\n",
        "later: (3 items) I see. 2 turns\ntraces: True False\nanew: (1 items) I see. {}",
    ],
    "schedules": [
        "  Mon 26 Oct 08:00\n  Tue 27 Oct 08:00\n  Wed 28 Oct 08:00\n",
        "seconds: the gauge of Dover\neach time has one run: True\nseconds: paused\nweekdays: goes on\n",
        "by hand: the gauge of Brest\n",
    ],
    "progress": ["interrupted\ncopy: 3 of 6\n6 pages\ncopied: Tides, Moon, Springs, Neaps, Neaps, Currents, Storms"],
    "secret_key": [
        '{"user":"ada","password":"[secret]"}\nada was let in with [secret] at Bank(key=Secret([secret], name=',
        "POST https://ada:[secret]@bank.example/5 failed\nitem 0 of the history's items, a 'function_call', waits to",
        "stored: neither of them\na text of your own: the key [secret] is in it\n",
    ],
    "sessions": [
        "4 deliveries, 3 questions to the model\n",
        "ada: When is a ferry? -> (interrupted)\n\n-- the program is started anew --\n",
        "ada: ... -> I have noted: Never mind, I take a train.\nbob: Where am I going? -> To Cork.\n",
        "  function_call\n  the call's output is incomplete\n  user: Never mind, I take a train.\n",
        "ada is erased: 4 runs; sessions left: 0 and 1\n",
    ],
    "signed": [
        "as it was written: approved: 500\n",
        "cheaper: refused, the signature is not of this record at this place",
        "the run: holds all it held\nan old copy: it does not hold what it held",
    ],
    "stop_and_spawn": ["from 1: gold at depth 3", "from 5: gave up, rock", "aborted: no value, the mine is flooded"],
    "stream": [
        "The |tide |is |",
        "completed: no tool calls",
        "value: The tide is the rise",
        "so far: {'word': 'tide', 'meaning': 'the rise an'}\n",
        "['ToolStarted', 'Emitted', 'ToolFinished']\nat last: {'word': 'tide',",
    ],
    "structured": ["less than or equal to 60", "a storm under a clear sky", "Take an umbrella. (3 model calls)"],
    "sturdy_model": [
        "acme:large: The tide is high because ... discarded, $0.04\n",
        "acme:small: The moon pulls the water. ... done, $0.01\n4 calls for $0.09: The moon",
        "5 answers, at most 2 at once",
    ],
    "workers": [
        "monday: queued\n  worker 1 weighs the book\n  worker 1 weighs the lamp\n",
        "monday: running, its worker was killed\nmonday: finished sequence/each/weigh[0]\n",
        "monday: finished sequence/each\nmonday: suspended, Send 1300 g?\nmonday: finished sequence/send/ask\n",
        "monday: completed\n  worker 2 weighs the lamp\n  worker 2 weighs the shoes\n",
        "the result: worker 2 has sent 1300 g\nworker 2 ended with exit code 143\n",
    ],
    "tools_loop": ["gets no port is called 'Callais'", 'calls tide({"port":"Calais"})', "after 3 model calls"],
}

# Questions, and the topics that answer them; of some there are several.
QUESTIONS = {
    "What does the global statement do?": {"global"},
    "What does a lambda expression create?": {"lambda"},
    "What is a context manager?": {"context-managers", "with"},
    "What does the nonlocal statement do?": {"nonlocal"},
    "What does the continue statement do?": {"continue", "while", "for"},
    "Which values are considered false?": {"truth", "booleans"},
    "When is the else clause of a loop executed?": {"for", "while"},
    "What does the assert statement do?": {"assert"},
    "How do I raise an exception?": {"raise", "exceptions"},
    "When is a finally clause executed?": {"try"},
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=300)


# ------------------------------------------------------------------------------------------------------ all examples


def test_every_example_is_tested_and_listed() -> None:
    files = {path.stem for path in EXAMPLES.glob("*.py")}
    # Those that do not only print have tests of their own.
    assert files == {*SHOWN, "ask", "chat_server", "demo", "web_form"}
    assert set(re.findall(r"\[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(encoding="utf-8"))) == files


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_example(name: str) -> None:
    done = run(*forked("tests.warm_program", "-W", "error"), str(EXAMPLES / f"{name}.py"))
    assert (done.returncode, done.stderr) == (0, "")
    assert [text for text in SHOWN[name] if text not in done.stdout] == []


# ------------------------------------------------------------------------------------------- ask.py, without a model


def test_ask_is_short() -> None:
    assert len((EXAMPLES / "ask.py").read_text(encoding="utf-8").splitlines()) < 225


def test_passages_stand_in_their_topics() -> None:
    assert len(ask.passages()) > 1000
    assert [each.text for each in ask.passages() if each.text not in topics[each.topic]] == []


def test_words_are_told_by_their_stems_and_questions_by_what_they_ask() -> None:
    assert set(ask.words("How are statements executed?")) == set(ask.words("executing a statement"))
    assert ask.words("What does it do?") == []
    assert ask.weight("nonlocal") > ask.weight("expression") > ask.weight("is")


def choices(request: ModelRequest) -> list[str]:
    """The openings of the quotations that the model may choose from."""
    assert request.output is not None
    field = json.loads(json.dumps(request.output.schema["properties"]))["quotation"]
    return [field["const"]] if "const" in field else list(field["enum"])


def choose(opening: str) -> Callable[[ModelRequest], Turn]:
    """A turn that chooses the quotation with this opening; without one the best match, which stands last."""

    def turn(request: ModelRequest) -> Turn:
        return json.dumps({"quotation": next(each for each in reversed(choices(request)) if each.startswith(opening))})

    return turn


def read(topic: str) -> FunctionCall:
    """The call that reads a topic."""
    return FunctionCall(name="read_topic", arguments={"topic": topic})


def topics_of(request: ModelRequest) -> list[str]:
    """The topics that the model may read."""
    [declared] = request.tools
    return list(json.loads(json.dumps(declared["parameters"]))["properties"]["topic"]["enum"])


def read_first(request: ModelRequest) -> Turn:
    return read(topics_of(request)[0])


def unplugged(model: ScriptedModel) -> Harness:
    return Harness(model=model, plugins=())


def offered(request: ModelRequest) -> Sequence[str]:
    [message] = request.items
    assert isinstance(message, Message)
    return re.findall(r"^- (.*)$", message.text, flags=re.MULTILINE)


@pytest.mark.anyio
@pytest.mark.parametrize("question", QUESTIONS)
async def test_search_finds_a_topic_that_answers(question: str) -> None:
    async with Harness(plugins=()) as harness:
        result = await harness.run(ask.search, question, state=ask.State())
    assert 1 <= len(result.value) <= 6
    assert {each.topic for each in result.value} & QUESTIONS[question]


@pytest.mark.anyio
async def test_a_quotation_that_covers_ends_the_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    said = "It is a declaration which holds for the code block. It has a second sentence."
    model = ScriptedModel(read("global"), choose('The "global" statement is a declaration'), said)
    async with unplugged(model) as harness:
        result = await harness.run(ask.flow, "What does the global statement do?", state=ask.State(), budget=ask.budget)
    assert (result.status, result.model_calls, result.state.read) == ("completed", 3, ["global"])
    assert (result.value.topic, result.value.coverage, result.value.missing) == ("global", 1.0, "")
    assert result.value.text in topics["global"]
    look, chosen, _ = model.requests
    assert "global" in topics_of(look)
    assert look.settings.get("tool_choice") == "required"
    assert len(offered(chosen)) == len(choices(chosen)) > 1
    # Each of the three was made in a conversation of its own.
    assert len(result.items) == 0
    ask.show(result)
    assert capsys.readouterr().out == (
        f"{result.value.text}\n\n"
        "This is from the topic 'global', and covers the question.\n"
        "The model called read_topic for 'global'.\n"
        "Its own sentence: It is a declaration which holds for the code block.\n"
    )


@pytest.mark.anyio
async def test_a_sentence_with_words_that_were_made_up_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel(read("global"), choose(""), "The global statement bakes bread.")
    async with unplugged(model) as harness:
        result = await harness.run(ask.flow, "What does the global statement do?", state=ask.State(), budget=ask.budget)
    assert result.value.made_up == "bakes bread."
    ask.show(result)
    shown = capsys.readouterr().out
    assert shown.endswith("Its own sentence is left out, because the quotation does not have 'bakes bread.'.\n")


@pytest.mark.anyio
async def test_what_does_not_cover_is_followed_by_other_quotations(capsys: pytest.CaptureFixture[str]) -> None:
    question = "Does a generator in the kitchen bake bread?"
    model = ScriptedModel(*[read_first, choose("")] * 3, "No.")
    async with unplugged(model) as harness:
        result = await harness.run(ask.flow, question, state=ask.State(), budget=ask.budget)
    assert (result.status, result.model_calls) == ("completed", 7)
    quotations = [quotation for request in model.requests[1:-1:2] for quotation in offered(request)]
    assert len(quotations) == len(set(quotations)) >= 3
    assert 0 < result.value.coverage < 0.6
    ask.show(result)
    assert "does not cover 'kitchen bake bread?'" in capsys.readouterr().out


@pytest.mark.anyio
async def test_the_second_round_looks_for_what_was_missing() -> None:
    async with Harness(plugins=()) as harness:
        first = await harness.run(ask.search, "nonlocal precedence", state=ask.State())
        again = await harness.run(ask.search, "nonlocal precedence precedence precedence", state=ask.State())
    assert {each.topic for each in first.value} != {each.topic for each in again.value}
    verdict = ask.covers(ask.Answer("text", "topic", 0.5, "precedence"))
    assert (verdict.stop, verdict.feedback) == (False, "precedence")


@pytest.mark.anyio
async def test_without_a_match_no_model_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    model = ScriptedModel()
    async with unplugged(model) as harness:
        result = await harness.run(ask.flow, "Who won the football world cup?", state=ask.State(), budget=ask.budget)
    assert (result.status, result.model_calls, result.value) == ("completed", 0, ask.Answer())
    ask.show(result)
    assert capsys.readouterr().out == "Nothing found.\n"


@pytest.mark.anyio
async def test_a_model_that_is_not_held_to_the_types_is_asked_again() -> None:
    model = ScriptedModel(
        read("snakes"), read("global"), '{"quotation": "It makes things global."}', choose(""), "Yes."
    )
    async with unplugged(model) as harness:
        result = await harness.run(ask.flow, "What does the global statement do?", state=ask.State(), budget=ask.budget)
    assert (result.model_calls, result.value.topic, result.state.read) == (5, "global", ["global"])


@pytest.mark.anyio
async def test_a_run_out_of_budget_shows_the_best_it_has() -> None:
    model = ScriptedModel(read_first, choose(""))
    tight = Budget(model_calls=2, wrap_up=ask.best_so_far, reserve=Budget(steps=1))
    async with unplugged(model) as harness:
        result = await harness.run(
            ask.flow, "Does a generator in the kitchen bake bread?", state=ask.State(), budget=tight
        )
    assert result.status == "budget_exceeded"
    assert result.value == result.state.best != ask.Answer()


def test_the_command_line_finds_what_it_looks_for() -> None:
    file = load_flow(str(EXAMPLES / "ask.py"))
    assert (file.name, file.step.kind) == ("flow", "sequence")
    assert None not in (file.state, file.show, file.budget, file.harness)


# ----------------------------------------------------------------------------- ask.py with the model on this machine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "question"),
    [
        ([str(EXAMPLES / "ask.py")], "What does a lambda expression create?"),
        # In the sample `tests/crash/test_main_job.py` has the command line.
        (["-m", "noetic_py.cli", "run", str(EXAMPLES / "ask.py")], "What does the global statement do?"),
        ([str(EXAMPLES / "ask.py")], "What is a context manager?"),
    ][: 3 if FULL else 1],
    ids=["lambda", "global", "context manager"][: 3 if FULL else 1],
)
def test_with_the_local_model(command: list[str], question: str) -> None:
    done = run(sys.executable, "-W", "error", *command, question)
    assert done.returncode == 0, done.stderr
    shown = re.fullmatch(
        r"(?s)(.*)\n\nThis is from the topic '([\w-]+)', and covers the question\.\n"
        r"The model called read_topic for '\2'\.\n"
        r"Its own sentence(: .*\.| is left out, because the quotation does not have '.*'\.)\n",
        done.stdout,
    )
    assert shown is not None, done.stdout
    quotation, topic, _ = shown.groups()
    assert topic in QUESTIONS[question]
    assert quotation in topics[topic]
