"""What providers are told of the start of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from noetic_openai import OpenAIModel
from noetic_openai.caching import UNTOLD, Caching, PromptCache, caching_of, mark
from noetic_openai.chat import chat_messages, chat_request
from noetic_openai.responses import responses_input, responses_request
from noetic_openai.wire import Server
from proxy import sse

from noetic_py import Harness, Memory, MemoryLayer, call_model
from noetic_py.core.budget import TokenUsage
from noetic_py.core.items import FunctionCall, FunctionCallOutput, InputImage, Item, Message, Reasoning
from noetic_py.errors import ConfigError
from noetic_py.models import ModelRequest, allow_real_models
from noetic_py.testing.replies import Reply, ReplyServer, replying

pytestmark = pytest.mark.anyio

Api = Literal["responses", "chat"]
OPENAI = Server()
AZURE = Server(base_url="https://me.openai.azure.com/openai/v1")
ROUTER = Server(base_url="https://openrouter.ai/api/v1")
OTHER = Server(base_url="http://127.0.0.1:1/v1")
CONTROL = {"type": "ephemeral"}
EXPLICIT = {"mode": "explicit"}


# ---------------------------------------------------------------------------------------------------- who is told what


@pytest.mark.parametrize(
    ("model", "server", "api", "key", "field"),
    [
        ("gpt-5-mini", OPENAI, "responses", True, None),
        ("gpt-4o", OPENAI, "chat", True, None),
        ("o3", OPENAI, "responses", True, None),
        ("gpt-5.5", AZURE, "responses", True, None),
        ("gpt-5.6", OPENAI, "responses", True, "prompt_cache_breakpoint"),
        ("gpt-5.10-mini", OPENAI, "chat", True, "prompt_cache_breakpoint"),
        ("gpt-6", AZURE, "chat", True, "prompt_cache_breakpoint"),
        ("anthropic/claude-sonnet-5", ROUTER, "chat", False, "cache_control"),
        ("~anthropic/claude-sonnet-latest", ROUTER, "chat", False, "cache_control"),
        ("openai/gpt-5.6", ROUTER, "chat", False, "cache_control"),
        ("openai/gpt-5", ROUTER, "chat", False, None),
        ("google/gemini-3-pro", ROUTER, "chat", False, None),
        ("anthropic/claude-sonnet-5", ROUTER, "responses", False, None),
        ("anthropic/claude-sonnet-5", OTHER, "chat", False, None),
        ("gpt-5.6", OTHER, "chat", False, None),
        ("gpt-oss-120b", OPENAI, "chat", True, None),
    ],
)
def test_each_is_told_what_it_knows(model: str, server: Server, api: Api, key: bool, field: str | None) -> None:
    caching = caching_of("auto", model, server, api)
    assert (caching.key, caching.mark and caching.mark[0]) == (key, field)
    assert caching_of("off", model, server, api) == UNTOLD


def test_a_setting_tells_more_or_less() -> None:
    assert caching_of("key", "m", OTHER, "responses") == Caching(key=True)
    assert caching_of("key", "anthropic/claude", ROUTER, "chat") == Caching(key=True)
    assert caching_of("breakpoints", "google/gemini-3-pro", ROUTER, "chat") == Caching(
        mark=("cache_control", CONTROL), limit=4
    )
    assert caching_of("breakpoints", "gpt-5", OPENAI, "responses") == Caching(
        key=True, mark=("prompt_cache_breakpoint", EXPLICIT), limit=4
    )


def test_what_is_no_setting_is_refused() -> None:
    wrong: Any = "sometimes"
    with pytest.raises(ConfigError) as caught:
        OpenAIModel("m", api_key="k", prompt_cache=wrong)
    assert caught.value.code == "model-cache"
    with pytest.raises(ConfigError, match="in chat completions only") as caught:
        OpenAIModel("m", base_url="http://127.0.0.1:1/v1", prompt_cache="breakpoints")
    assert (caught.value.code, caught.value.hint) == ("model-cache", 'api="chat"')


# ---------------------------------------------------------------------------------------------------- where marks are


def text(role: str, said: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": said, **more}]}


CALL = FunctionCall(name="look", arguments="{}", call_id="c1")
HISTORY: Sequence[Item] = [
    Message.user("one"),
    Message.assistant("first"),
    Message.user("two"),
    CALL,
    FunctionCallOutput(call_id="c1", output="seen"),
    Message.user("live"),
    Message.user("three"),
]


def test_marks_in_chat_completions() -> None:
    caching = caching_of("auto", "anthropic/claude-sonnet-5", ROUTER, "chat")
    request = ModelRequest(HISTORY, instructions="Be brief.", stable=5, cache_key="k" * 32)
    sent = chat_request(request, "anthropic/claude-sonnet-5", ROUTER, caching)
    assert sent["messages"] == [
        text("system", "Be brief.", cache_control=CONTROL),
        text("user", "one", cache_control=CONTROL),
        {"role": "assistant", "content": "first"},
        text("user", "two", cache_control=CONTROL),
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {**text("tool", "seen", cache_control=CONTROL), "tool_call_id": "c1"},
        text("user", "live"),
        text("user", "three"),
    ]
    assert "prompt_cache_key" not in sent
    # With one more message than there may be marks the first and the last stay.
    longer = evolve(request, items=[*HISTORY, Message.assistant("yes"), Message.user("four")], stable=9)
    marked = [m for m in chat_request(longer, "m", ROUTER, caching)["messages"] if "cache_control" in json.dumps(m)]
    assert [message["content"][0]["text"] for message in marked] == ["Be brief.", "seen", "three", "four"]


def test_marks_in_the_responses_api() -> None:
    caching = caching_of("auto", "gpt-5.6", OPENAI, "responses")
    request = ModelRequest(HISTORY, instructions="Be brief.", stable=5, cache_key="k" * 32)
    sent = responses_request(request, "gpt-5.6", OPENAI, caching)
    assert sent["prompt_cache_key"] == "k" * 32
    assert sent["instructions"] == "Be brief."
    marked = {"prompt_cache_breakpoint": EXPLICIT}
    inputs = [wire.get("content") or wire.get("output") for wire in sent["input"]]
    assert inputs == [
        [{"type": "input_text", "text": "one", **marked}],
        [{"type": "output_text", "text": "first", "annotations": []}],
        [{"type": "input_text", "text": "two", **marked}],
        None,
        [{"type": "input_text", "text": "seen", **marked}],
        [{"type": "input_text", "text": "live"}],
        [{"type": "input_text", "text": "three"}],
    ]


def test_without_marks_requests_are_as_they_were() -> None:
    request = ModelRequest(HISTORY, instructions="Be brief.", stable=5, cache_key="k" * 32)
    for caching in (UNTOLD, Caching(key=True)):
        assert chat_request(request, "m", ROUTER, caching)["messages"] == chat_messages(HISTORY, "Be brief.")
        assert responses_request(request, "m", OPENAI, caching)["input"] == responses_input(HISTORY, OPENAI)
    plain = ModelRequest(HISTORY, instructions="Be brief.")
    without = chat_request(request, "m", OTHER)
    assert without == chat_request(plain, "m", OTHER)
    assert "prompt_cache_key" not in chat_request(plain, "m", OPENAI, Caching(key=True))
    assert "prompt_cache_key" not in responses_request(plain, "m", OPENAI, Caching(key=True))


def test_only_what_has_a_text_is_marked() -> None:
    caching = caching_of("breakpoints", "m", ROUTER, "chat")
    image = InputImage(data=b"\x01", media_type="image/png")
    items = [Message.user([image]), Message.user(""), Message.assistant("x"), Message.user(["look", image])]
    sent = chat_request(ModelRequest(items, stable=4), "m", ROUTER, caching)["messages"]
    assert [json.dumps(message).count("cache_control") for message in sent] == [0, 0, 0, 1]
    assert sent[3]["content"][0] == {"type": "text", "text": "look", "cache_control": CONTROL}
    assert "cache_control" not in json.dumps(chat_request(ModelRequest([]), "m", ROUTER, caching))
    alone = chat_request(ModelRequest([Message.user("hi")], "Be brief."), "m", ROUTER, caching)["messages"]
    assert [json.dumps(message).count("cache_control") for message in alone] == [1, 0]


def test_an_output_that_came_late_ends_the_start_before_its_call() -> None:
    """It is moved up to its call, so that what stands there is not what the next call begins with."""
    caching = caching_of("breakpoints", "m", ROUTER, "chat")
    items: list[Item] = [
        Message.user("go"),
        CALL,
        FunctionCall(name="slow", arguments="{}", call_id="c2"),
        FunctionCallOutput(call_id="c1", output="seen"),
        Message.user("and?"),
        FunctionCallOutput(call_id="c2", output="late"),
    ]
    sent = chat_request(ModelRequest(items, stable=5), "m", ROUTER, caching)["messages"]
    assert [json.dumps(message).count("cache_control") for message in sent] == [1, 0, 1, 0, 0]
    assert sent[2]["tool_call_id"] == "c1"


ITEMS = st.lists(
    st.one_of(
        st.text("ab", max_size=3).map(Message.user),
        st.text("ab", min_size=1, max_size=3).map(Message.assistant),
        st.just(Reasoning(content="hm")),
        st.just(Message.developer("note")),
    ),
    max_size=12,
)


@given(ITEMS, st.integers(0, 12), st.sampled_from(["one", None]))
def test_marks_change_nothing_but_themselves(items: list[Item], stable: int, instructions: str | None) -> None:
    request = ModelRequest(items, instructions, stable=min(stable, len(items)))
    for server, name in ((ROUTER, "cache_control"), (OPENAI, "prompt_cache_breakpoint")):
        caching = caching_of("breakpoints", "m", server, "chat")
        sent = chat_request(request, "m", server, caching)["messages"]
        # Behind the start there is none, and there are no more than are taken.
        start = len(chat_messages(items[: request.stable], instructions))
        assert name not in json.dumps(sent[start:])
        assert json.dumps(sent).count(name) <= 4
        for message in sent:
            parts: list[dict[str, Any]] = message["content"] if message["role"] != "assistant" else []
            assert all(part.pop(name, None) is None or part["text"] for part in parts)
        every = chat_request(evolve(request, stable=0, instructions=None), "m", server, caching)["messages"]
        assert sent[1 if instructions else 0 :] == every
    responses = responses_request(request, "m", OPENAI, caching_of("breakpoints", "m", OPENAI, "responses"))["input"]
    kept = sum(not isinstance(item, Reasoning) for item in items[: request.stable])
    assert "prompt_cache_breakpoint" not in json.dumps(responses[kept:])


def test_the_next_call_has_a_mark_where_this_one_had_its_last() -> None:
    caching = caching_of("breakpoints", "m", ROUTER, "chat")

    def marked(items: Sequence[Item]) -> list[int]:
        sent = chat_request(ModelRequest(items, "Be brief.", stable=len(items)), "m", ROUTER, caching)["messages"]
        return [place for place, message in enumerate(sent) if "cache_control" in json.dumps(message)]

    items: list[Item] = [Message.user("go")]
    last = marked(items)[-1]
    for number in range(8):
        calls = [FunctionCall(name="look", arguments="{}", call_id=f"{number}-{n}") for n in range(3)]
        items = [*items, *calls, *[FunctionCallOutput(call_id=call.call_id, output="seen") for call in calls]]
        now = marked(items)
        assert last in now
        assert now[0] == 0
        last = now[-1]


def test_a_stretch_of_none_is_no_error() -> None:
    messages: list[dict[str, Any]] = [{"role": "tool", "content": None}, {"role": "user", "content": [{"type": "x"}]}]
    mark(messages, 2, Caching(mark=("cache_control", CONTROL), limit=4), is_input=lambda message: True)
    assert messages == [{"role": "tool", "content": None}, {"role": "user", "content": [{"type": "x"}]}]


# ---------------------------------------------------------------------------------------------------- on the wire

USAGE = {"prompt_tokens": 2000, "completion_tokens": 2}
ANSWER = {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}


def replied(cached: int, written: int) -> Reply:
    usage = {**USAGE, "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written}}
    return Reply(sse(ANSWER, {"id": "r", "choices": [], "usage": usage}, done=True))


class Harbour(MemoryLayer[None]):
    """Always says the same."""

    async def recall(self, query: str, budget: int) -> str:
        return "The harbour dries out."


class Clock(MemoryLayer[None]):
    """Says something else each time."""

    async def recall(self, query: str, budget: int) -> str:
        return f"Item {len(self.ctx.items)}."


class Mem(Memory):
    harbour: Harbour = Harbour(placement="anchor")
    clock: Clock = Clock(placement="live")


async def sent(server: ReplyServer, prompt_cache: PromptCache, *threads: str) -> tuple[list[Any], list[TokenUsage]]:
    """The bodies of one run of two calls for each thread, and what the runs have used."""
    model = OpenAIModel("m", api="chat", base_url=f"{server.url}/v1", api_key="k", prompt_cache=prompt_cache)
    flow = call_model(id="first", instructions="Be brief.") >> call_model(id="then", instructions="Be brief.")
    used: list[TokenUsage] = []
    with allow_real_models():
        async with Harness(memory=Mem(), model=model) as harness:
            for thread in threads:
                result = await harness.run(flow, "hi", thread_id=thread, user_id="ada@example.org")
                used.append(result.usage)
    return [seen.body for seen in server.requests], used


async def test_the_marks_stand_where_a_view_says_that_it_stays() -> None:
    async with replying(replied(0, 1900), replied(1900, 60)) as server:
        (first, second), used = await sent(server, "breakpoints", "t")
    harbour = '<memory layer="harbour">\nThe harbour dries out.\n</memory>'
    assert first == {
        "model": "m",
        "messages": [
            text("system", "Be brief.", cache_control=CONTROL),
            text("developer", harbour, cache_control=CONTROL),
            text("developer", '<memory layer="clock">\nItem 1.\n</memory>'),
            text("user", "hi"),
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert second["messages"] == [
        text("system", "Be brief.", cache_control=CONTROL),
        text("developer", harbour, cache_control=CONTROL),
        text("user", "hi", cache_control=CONTROL),
        {"role": "assistant", "content": "ok"},
        text("developer", '<memory layer="clock">\nItem 3.\n</memory>'),
        text("user", "ok"),
    ]
    assert used == [TokenUsage(input=4000, output=4, cached_input=1900, cache_write=1960)]


async def test_the_key_is_the_conversations_and_tells_nobody() -> None:
    async with replying(*[replied(0, 0)] * 6) as server:
        bodies, _ = await sent(server, "key", "ada@example.org", "other", "ada@example.org")
    keys = [body.pop("prompt_cache_key") for body in bodies]
    assert keys == [keys[0], keys[0], keys[2], keys[2], keys[0], keys[0]]
    assert len(set(keys)) == 2
    assert all(len(key) == 32 and int(key, 16) for key in keys)
    assert "ada" not in json.dumps(bodies) + "".join(keys)


@pytest.mark.parametrize("setting", ["off", "auto"])
async def test_others_are_told_nothing(setting: PromptCache) -> None:
    async with replying(replied(0, 0), replied(0, 0)) as server:
        [body, _], _ = await sent(server, setting, "t")
    harbour = '<memory layer="harbour">\nThe harbour dries out.\n</memory>'
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": harbour},
            {"role": "developer", "content": '<memory layer="clock">\nItem 1.\n</memory>'},
            {"role": "user", "content": "hi"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_who_says_a_key_of_ones_own_is_heard(api: Api) -> None:
    async with replying(replied(0, 0)) as server:
        model = OpenAIModel("m", api=api, base_url=f"{server.url}/v1", api_key="k", prompt_cache="key")
        request = ModelRequest(
            [Message.user("hi")], settings={"extra": {"prompt_cache_key": "mine"}}, cache_key="k" * 32
        )
        with allow_real_models():
            async with model.respond(request) as stream:
                del stream
    assert server.requests[0].body["prompt_cache_key"] == "mine"
