"""Twenty secrets, put where secrets get lost, are in none of the bytes that are written."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import attrs
import pytest
from attrs import define
from pydantic import BaseModel, SecretBytes, SecretStr

from noetic_py import (
    Budget,
    Channel,
    Context,
    FunctionCall,
    FunctionCallOutput,
    Harness,
    Memory,
    MemoryLayer,
    Message,
    Retry,
    Secret,
    Tool,
    call_model,
    call_tool,
    loop,
    parallel,
    redact,
    step,
    tool,
    until,
)
from noetic_py.errors import ConfigError, ModelRetry, ModelStatusError, ModelStreamError, ModelUnavailable, NoeticError
from noetic_py.redaction import MASK
from noetic_py.testing import ScriptedModel
from tests.security.sinks import Sinks, sinks

pytestmark = pytest.mark.anyio

RUN_OPTIONS = ("budget", "model_settings", "services", "state")
CHAT = loop(call_model(), until=until.no_tool_calls(), max_iterations=4)


@define
class Case:
    """One place in which a secret is, and what is run."""

    secret: str
    key: Secret[str]
    store: str
    sinks: Sinks

    async def run(self, flow: Any, value: Any = "go", **options: Any) -> Any:
        """Run a flow in a harness with a store."""
        run = {
            name: options.pop(name) for name in ("state", "services", "metadata", "model_settings") if name in options
        }
        async with Harness(checkpoints=self.store, plugins=(), **options) as harness:
            return await self.sinks.run(harness, flow, value, **run)

    async def call(self, used: Tool[..., Any], arguments: Any, **options: Any) -> Any:
        """Let a model call a tool."""
        model = ScriptedModel(FunctionCall(name=used.name, arguments=arguments), "done", "done")
        result = await self.run(CHAT, model=model, tools=[used], **options)
        for request in model.requests[1:]:
            # What a provider is sent leaves the process too.
            self.sinks.note("requests", repr(list(request.items)))
        return result


Place = Callable[[Case], Awaitable[Any]]
PLACES: dict[str, Place] = {}


def place(work: Place) -> Place:
    """One of the twenty."""
    PLACES[work.__name__] = work
    return work


@place
async def env_variable_in_an_exception(case: Case) -> None:
    os.environ["CANARY_KEY"] = case.secret
    key = Secret.from_env("CANARY_KEY")
    del os.environ["CANARY_KEY"]

    @step
    async def fail(text: str) -> str:
        raise ValueError(f"no answer for key {key.reveal()}")

    assert (await case.run(fail)).status == "failed"


@place
async def exception_on_the_retry_path(case: Case) -> None:
    @step(retry=Retry(attempts=3, initial=0))
    async def fail(text: str, ctx: Context) -> str:
        ctx.span.record_exception(ValueError(case.key.reveal()))
        raise ConnectionError(f"refused: token={case.key.reveal()}")

    assert (await case.run(fail)).status == "failed"


@place
async def exception_with_causes(case: Case) -> None:
    @step
    async def fail(text: str) -> str:
        try:
            raise KeyError(case.key.reveal())
        except KeyError as error:
            raise RuntimeError("outer") from error

    assert (await case.run(fail)).status == "failed"


@place
async def exception_group_of_parallel_paths(case: Case) -> None:
    @step
    async def fail(text: str) -> str:
        raise ValueError(f"{case.key.reveal()} is wrong")

    @step
    async def work(text: str) -> str:
        return text

    assert (await case.run(parallel(fail, work))).status == "failed"


@place
async def cancel_path(case: Case) -> None:
    @step
    async def hang(text: str, ctx: Context) -> str:
        ctx.abort(f"gave up with {case.key.reveal()}")
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError(f"while leaving: {case.key.reveal()}")

    assert (await case.run(hang)).status == "aborted"


@place
async def timeout_in_a_budget(case: Case) -> None:
    @step
    async def hang(text: str) -> str:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError(f"cut off: {case.key.reveal()}")

    await case.run(hang, budget=Budget(seconds=0.5))


@place
async def tool_argument(case: Case) -> None:
    seen: list[str] = []

    @tool
    async def login(user: str, password: Secret[str]) -> str:
        seen.append(password.reveal())
        return f"{user} is in with {password.reveal()}"

    result = await case.call(login, {"user": "ada", "password": case.secret})
    assert (seen, result.value) == ([case.secret], "done")


@place
async def tool_argument_of_pydantic(case: Case) -> None:
    seen: list[str] = []

    class Login(BaseModel):
        user: str
        password: SecretStr

    @tool
    async def login(login: Login) -> str:
        seen.append(login.password.get_secret_value())
        raise PermissionError(f"{login.user}: {login.password.get_secret_value()} is wrong")

    await case.call(login, {"login": {"user": "ada", "password": case.secret}})
    assert seen == [case.secret]


@place
async def tool_argument_of_a_schema(case: Case) -> None:
    seen: list[str] = []

    async def login(**sent: str) -> dict[str, str]:
        seen.append(sent["password"])
        return sent

    schema: Any = {"type": "object", "properties": {"password": {"type": "string", "writeOnly": True}}}
    await case.call(Tool.from_schema(login, parameters=schema, name="login"), {"password": case.secret})
    assert seen == [case.secret]


@place
async def tool_arguments_that_are_no_json(case: Case) -> None:
    @tool
    async def login(password: Secret[str]) -> None: ...

    await case.call(login, '{"password": "' + case.secret)


@place
async def tool_arguments_of_a_wrong_type(case: Case) -> None:
    @tool
    async def pay(pin: Secret[int], card: Secret[str]) -> None: ...

    await case.call(pay, {"pin": case.secret, "card": [case.secret], case.secret[:4]: 1})


@place
async def tool_output(case: Case) -> None:
    @tool
    async def show() -> dict[str, Any]:
        return {"secret": case.key, "env": {"KEY": case.key.reveal()}, "url": f"https://u:{quote(case.secret)}@h"}

    await case.call(show, {})


@place
async def tool_that_asks_again(case: Case) -> None:
    @tool
    async def login(name: str) -> None:
        raise ModelRetry(f"{name} is not {case.key.reveal()}")

    await case.call(login, {"name": "ada"})


@place
async def model_error_that_echoes_a_header(case: Case) -> None:
    basic = base64.b64encode(f"user:{case.secret}".encode()).decode()
    body = f'{{"headers": {{"authorization": "Bearer {case.secret}", "proxy": "Basic {basic}"}}}}'
    error = ModelStatusError(f"status 401: {body}", model="m", status=401, body=body)
    await case.run(call_model(), model=ScriptedModel(error))


@place
async def model_errors_on_the_retry_path(case: Case) -> None:
    def refuse(_: Any) -> str:
        raise ModelUnavailable(f"https://api.example/?key={case.secret} is down", model="m")

    failures = (ModelStreamError(f"cut at {case.key.reveal()}", model="m"), refuse, "done")
    flow = call_model(retry=Retry(attempts=3, initial=0))
    result = await case.run(flow, model=ScriptedModel(*failures))
    assert result.value == "done"


@place
async def url_with_a_password(case: Case) -> None:
    address = f"postgresql://ada:{quote(case.secret, safe='')}@db.example/runs"

    @step
    async def connect(text: str) -> str:
        raise ConnectionError(f"cannot reach {address}, nor {address!r}")

    await case.run(connect)


@place
async def model_settings_and_services(case: Case) -> None:
    @define
    class Client:
        key: Secret[str]

    @step
    async def use(text: str, ctx: Context) -> str:
        client = ctx.services[Client]
        assert client.key.reveal() == case.secret
        ctx.span.set_attribute("client", repr(client))
        ctx.span.set_attribute("key", client.key.reveal())
        ctx.emit(client)
        raise ValueError(f"{client} {client.key.reveal()}")

    await case.run(use, services={Client: Client(case.key)})
    settings: Any = {"extra": {"token": case.key}}
    await case.run(call_model(), model=ScriptedModel("hi"), model_settings=settings)


@place
async def state_that_names_it(case: Case) -> None:
    @define
    class Vault:
        key: Secret[str]
        uses: int = 0

    @step
    async def use(text: str, ctx: Context[Memory, Vault]) -> str:
        ctx.state.uses += 1
        return text

    kept = Secret(case.secret, name="vault-key", stored="name")
    result = await case.run(use, state=Vault(kept))
    assert (result.value, result.state.key.reveal()) == ("go", case.secret)


@place
async def refused_state_output_and_argument(case: Case) -> None:
    @step
    async def give(text: str) -> Any:
        return {"key": case.key}

    result = await case.run(give)
    assert (result.status, "a Secret is not stored" in str(result.error)) == ("failed", True)

    @tool
    async def login(password: Secret[str]) -> str:
        return f"in with {password!r}"

    await case.run(call_tool(login, args={"password": case.key}))


@place
async def layers_conditions_and_channels(case: Case) -> None:
    class Broken(MemoryLayer[int]):
        async def recall(self, *args: Any, **options: Any) -> Any:
            raise ValueError(f"layer with {case.key.reveal()}")

    class Bundle(Memory):
        broken: Broken = Broken()

    def judge(snapshot: Any) -> bool:
        raise ValueError(f"until with {case.key.reveal()}")

    numbers = Channel("numbers", int)

    @step
    async def send(text: str, ctx: Context[Any]) -> str:
        wrong: Any = case.key.reveal()
        await ctx.send(numbers, wrong)
        return text

    flow = loop(call_model(), until=until.custom(judge), max_iterations=2)
    await case.run(flow, model=ScriptedModel("a", "b"), memory=Bundle())
    await case.run(send)


CANARIES = {name: f"canary/{number:02}+'é\"{name[:6]}\\=" for number, name in enumerate(PLACES)}


def forms(secret: str) -> list[bytes]:
    """How it may have been written."""
    import json

    texts = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    texts |= {json.dumps(text)[1:-1] for text in texts} | {quote(secret), quote(secret, safe="")}
    texts |= {base64.b64encode(b"user:" + secret.encode()).decode()[8:-4], f"canary/{secret[7:9]}"}
    return [text.encode() for text in texts]


def test_there_are_twenty() -> None:
    assert len(PLACES) == 20


@pytest.mark.parametrize("name", PLACES)
async def test_no_byte_of_a_secret_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = CANARIES[name]
    with sinks(tmp_path, monkeypatch) as found:
        await PLACES[name](Case(secret, Secret(secret), f"sqlite:{tmp_path / 'runs.db'}", found))
        written = found.written()
    where = [sink for sink, data in written.items() if any(form in data for form in forms(secret))]
    assert not where
    # It looked at something.
    assert all(written[sink] for sink in ("checkpoint", "spans", "events", "repr", "cli", "export"))


def no_forms(value: str) -> tuple[str, ...]:
    return ()


@pytest.mark.parametrize("name", ["exception_on_the_retry_path", "tool_output", "url_with_a_password"])
async def test_what_nobody_has_marked_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without the one call that masks, the same programs write it nearly everywhere."""
    secret = CANARIES[name]
    monkeypatch.setattr("noetic_py.redaction._register.forms", ())
    monkeypatch.setattr("noetic_py.redaction._forms", no_forms)
    with sinks(tmp_path, monkeypatch) as found:
        await PLACES[name](Case(secret, Secret(secret), f"sqlite:{tmp_path / 'runs.db'}", found))
        written = found.written()
    where = {sink for sink, data in written.items() if any(form in data for form in forms(secret))}
    assert {"checkpoint", "export"} <= where


# ------------------------------------------------------------------------------------------------- what a secret is


def test_a_secret_shows_nothing() -> None:
    secret = Secret("correct horse", name="db")
    shown = [str(secret), repr(secret), f"{secret}", f"{secret:>40}", f"{secret!r}", f"{[secret]}"]
    assert all("horse" not in text for text in shown)
    assert (str(secret), repr(secret)) == (MASK, "Secret([secret], name='db')")


def test_only_secrets_with_equal_values_are_equal() -> None:
    assert Secret("one-value") == Secret("one-value")
    assert hash(Secret("one-value")) == hash(Secret("one-value"))
    others: list[object] = [Secret("other-value"), Secret(b"one-value"), "one-value", Secret.named("one-value")]
    assert all(Secret("one-value") != other for other in others)


def test_a_value_is_masked_for_as_long_as_somebody_holds_it_and_some_time_after() -> None:
    secret = Secret("short-lived-value")
    assert redact("a short-lived-value b") == f"a {MASK} b"
    del secret
    assert redact("a short-lived-value b") == f"a {MASK} b"
    for number in range(1001):
        Secret(f"another value {number}")
    Secret("and one more")
    assert redact("a short-lived-value b") == "a short-lived-value b"


def test_short_values_are_not_looked_for() -> None:
    secret = Secret("12345")
    assert (redact("12345"), str(secret)) == ("12345", MASK)


@pytest.mark.parametrize("number", range(8))
def test_a_value_is_found_in_what_it_is_encoded_into(number: int) -> None:
    value = f"k{number}/é\"'\n\\ {'x' * number}"
    secret = Secret(value)
    for shift in range(4):
        encoded = base64.b64encode(b"u" * shift + value.encode() + b"!" * (3 - number % 3))
        assert MASK in redact(encoded.decode())
    assert redact(f"{value} {value!r} {quote(value)}") == f"{MASK} '{MASK}' {MASK}"
    assert secret.reveal() == value


async def test_what_a_restart_has_lost_is_asked_for_again(tmp_path: Path) -> None:
    calls: list[str] = []

    @tool
    async def login(password: Secret[str]) -> str:
        calls.append(password.reveal())
        return "in"

    # As in a conversation of an earlier process: the model repeats what it was shown of its own call.
    model = ScriptedModel(FunctionCall(name="login", arguments={"password": MASK}), "sorry")
    async with Harness(model=model, tools=[login]) as harness:
        result = await harness.run(CHAT, "go")
    assert calls == []
    assert "not kept" in next(item.text for item in result.items if isinstance(item, FunctionCallOutput))


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


async def test_a_request_for_leave_shows_a_mask_and_is_not_carried_out_without_the_value(tmp_path: Path) -> None:
    calls: list[str] = []

    @tool(needs_approval=True)
    async def login(password: Secret[str]) -> str:
        calls.append(password.reveal())
        return "in"

    value = "leave-me-in-4711"
    sent = FunctionCall(name="login", arguments={"password": value})
    model = ScriptedModel(sent, "sorry")
    for flow in (CHAT, call_tool(login, args={"password": value})):
        async with Harness(model=model, tools=[login], checkpoints=f"sqlite:{tmp_path / 'runs.db'}") as harness:
            first = await harness.run(flow, "go")
            (request,) = (await harness.runs.get(first.run_id)).pending
            assert (first.status, request.arguments) == ("suspended", {"password": MASK})
            await harness.resume(first.run_id, flow, answers=[request.approve()], on_error="result")
    # The model's value was not kept, so that nothing was there to call the tool with; the step's is in its own code.
    assert calls == [value]
    assert value.encode() not in bytes_in(tmp_path)


@pytest.mark.parametrize("number", range(20))
def test_bytes_and_mappings_are_masked_in_every_form(number: int) -> None:
    dice = random.Random(number)
    raw = dice.randbytes(dice.randint(6, 40))
    word = base64.b32encode(dice.randbytes(8)).decode()
    account = {"user": f"ada{number:05}", "inner": [{"password": word}], "pin": 100_000 + number, "on": True}
    kept = Secret(raw), Secret(account), Secret((f"{word}-1", f"{word}-2"))
    texts = json.dumps(account), json.dumps(account, separators=(",", ":")), repr(account), word, f"{word}-2"
    forms = [
        *texts, str(100_000 + number), repr(raw)[2:-1], raw.hex(), quote(raw, safe=""),
        *(base64.b64encode(each).decode() for each in (raw, *map(str.encode, texts))),
        base64.urlsafe_b64encode(raw).decode(),
    ]  # fmt: skip
    for form in forms:
        assert form not in redact(f"refused: {form} at once"), form
    assert redact("True and None") == "True and None"
    del kept


class Account(BaseModel):
    password: str
    on: bool = True


class Open(BaseModel):
    model_config = {"extra": "allow"}


class Hidden(BaseModel):
    password: SecretStr


@dataclasses.dataclass
class Entry:
    account: Account


@attrs.frozen
class Keys:
    main: bytes


class Kind(Enum):
    KEY = "CaNaRy-0815 é"


WORD = "CaNaRy-0815 é"
HELD: dict[str, Any] = {
    "bytearray": bytearray(WORD.encode()),
    "memoryview": memoryview(WORD.encode()),
    "key of a mapping": {WORD: "ada"},
    "set": {WORD},
    "model": Account(password=WORD),
    "object": Entry(Account(password=WORD)),
    "attrs": [Keys(WORD.encode())],
    "enum": Kind.KEY,
}


def itself() -> list[object]:
    made: list[object] = [WORD]
    made.append(made)
    return made


def noted() -> ValueError:
    error = ValueError("refused", {"by": "bank"})
    error.add_note(WORD)
    return error


HELD.update(
    {
        "deque": deque([WORD]),
        "values of a mapping": {"a": WORD}.values(),
        "undeclared field of a model": Open.model_validate({"account": WORD}),
        "secret of pydantic": SecretStr(WORD),
        "secret of pydantic in a model": Hidden(password=SecretStr(WORD)),
        "bytes of pydantic": SecretBytes(WORD.encode()),
        "argument of an exception": ValueError("refused", WORD),
        "note of an exception": noted(),
        "what holds itself": itself(),
    }
)


@pytest.mark.parametrize("value", HELD.values(), ids=HELD)
def test_parts_of_any_value_are_masked(value: Any) -> None:
    kept = Secret(value)
    shown = [WORD, repr(WORD), ascii(WORD), json.dumps(WORD), WORD.encode().hex(), repr(WORD.encode())]
    shown += [quote(WORD), quote(WORD).replace("%C3%A9", "%c3%a9"), WORD.encode().decode("latin-1")]
    for text in shown:
        assert "CaNaRy" not in redact(f"refused: {text} at once"), text
        assert text[1:-1] not in redact(f"refused: {text} at once"), text
    del kept


def test_the_mask_of_another_library_is_no_secret() -> None:
    kept = Secret(SecretStr(WORD))
    assert redact("**********") == "**********"
    del kept


def test_a_value_is_found_where_programs_escape_it_in_each_other() -> None:
    value = "CaNaRy é\"'\\/<b>&+\n"
    kept = Secret(value)
    once = json.dumps(value)
    texts = [
        json.dumps(json.dumps(once)), json.dumps(json.dumps(value, ensure_ascii=False)), repr(repr(value)),
        json.dumps({"error": repr(value)}), json.dumps(repr(value.encode())), json.dumps([repr({"a": value})]),
        once.replace("/", "\\/"), once.replace("\\u00e9", "\\u00E9"), html.escape(value),
        html.escape(value, quote=False), once.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        quote(once), quote(once, safe=""),
        quote(quote(value, safe=""), safe=""), base64.b64encode(f'{{"p": {once}}}'.encode()).decode(),
    ]  # fmt: skip
    for text in texts:
        assert MASK in redact(text), text
        assert "CaNaRy" not in redact(text), text
    del kept


def test_names_of_parts_and_bytes_that_are_no_text() -> None:
    kept = Secret({"password": "CaNaRy-0815", 7: "x"}), Secret(b"\xff\xfeCaNaRy-0816")
    assert redact("the password is wrong") == "the password is wrong"
    for text in (b"\xff\xfeCaNaRy-0816".decode(errors="replace"), b"\xff\xfeCaNaRy-0816".decode("latin-1")):
        assert redact(text) == "[secret]"
    del kept


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("login", "password"), ("Login", "password"), ("functions.login", "password"), ("login", "passwd"),
        ("login", "Password"), ("signin", "pw"), ("login", "password\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("nested", [False, True])
async def test_an_argument_stays_secret_when_the_model_misspells_tool_or_parameter(
    name: str, argument: str, nested: bool, tmp_path: Path
) -> None:
    word = "CaNaRy-0815"

    @tool
    async def login(user: str, password: Secret[str]) -> str:
        """Log in."""
        return "in"

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    value: Any = {"value": [word]} if nested else word
    calls = [
        FunctionCall(name=name, arguments={"user": "ada", argument: value}),
        FunctionCall(name="ad", arguments={"a": 1, "b": 2}),
    ]
    model = ScriptedModel(calls, "done")
    async with Harness(model=model, tools=[login, add], checkpoints=f"sqlite:{tmp_path}/r.db") as harness:
        result = await harness.run(CHAT, "go", on_error="result")
    assert word not in repr(list(result.items))
    assert "ada" in repr(list(result.items)) or nested
    assert all(word not in repr(request.items) for request in model.requests)
    written = [each.read_bytes() for each in await anyio.to_thread.run_sync(lambda: list(tmp_path.iterdir()))]
    assert all(word.encode() not in each for each in written)


ADDRESSES: list[tuple[str, set[str]]] = [
    ("postgresql://ada:hunter2!@db:5432/x", {"hunter2!"}),
    ("postgresql://ada:hunter%402@db:5432/x", {"hunter%402", "hunter@2"}),
    ("redis://:hunter2!@h1:1,h2:2/0", {"hunter2!"}),
    ("https://host:8000/@scope/v1", set()),
    ("https://ada:hunter2!@[::1]:8000/@scope", {"hunter2!"}),
    ("redis://host/0?password=hunter%202", {"hunter%202", "hunter 2"}),
    ("https://host/v1?API_KEY=hunter2!&x=1", {"hunter2!"}),
    ("https://host/v1?author=ada&keepalive=twenty&keyfile=/etc/key", set()),
    *(
        (f"https://host/v1?x=1&{name}=hunter2!", {"hunter2!"})
        for name in (
            "subscription-key",
            "client_secret",
            "sig",
            "X-Amz-Signature",
            "apiKey",
            "accessToken",
            "code",
            "x-api-key",
            "tok%65n",
            "ssl_password",
        )
    ),
    ("https://host/v1#access_token=hunter2!", {"hunter2!"}),
    ("https://host/v1?a=1;token=hunter2!", {"hunter2!"}),
    ("https://hunter2!@host/v1", {"hunter2!"}),
    ("postgresql://hunter2!@host/x", set()),
    ("host=h password=hunter2!", set()),
    ("/var/run/db", set()),
]


@pytest.mark.parametrize(("address", "found"), ADDRESSES)
def test_what_in_an_address_is_a_secret(address: str, found: set[str]) -> None:
    held: list[Secret[str]] = list(Secret.in_address(address))
    assert {secret.reveal() for secret in held} == found


def test_an_encoded_colon_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Secret.in_address("postgresql://ada%3ACaNaRy0815@127.0.0.1:1/x")
    assert caught.value.code == "address"
    assert "CaNaRy" not in str(caught.value)


@pytest.mark.parametrize("sign", "@/?#")
@pytest.mark.parametrize("scheme", ["postgresql", "redis", "rediss", "https"])
def test_a_password_that_two_programs_would_read_differently_is_refused(scheme: str, sign: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Secret.in_address(f"{scheme}://ada:pa{sign}CaNaRy0815@127.0.0.1:1/x")
    assert caught.value.code == "address"
    assert "CaNaRy" not in f"{caught.value} {caught.value!r}"


def test_messages_are_not_touched() -> None:
    secret = Secret("a-user-said-this")
    assert Message.user("a-user-said-this").text == secret.reveal()


def test_an_error_keeps_its_message_readable() -> None:
    secret = Secret("key-in-the-middle")
    error = NoeticError("cannot use key-in-the-middle here", hint="not key-in-the-middle")
    assert str(error) == f"cannot use {MASK} here\n  Try: not {MASK}"
    assert str(secret) == MASK
