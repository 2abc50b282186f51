"""What the errors of hostile calls say: nothing of another tenant, of the store's insides, of files, of secrets."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from noetic_py import (
    FunctionCall,
    FunctionCallOutput,
    Harness,
    InMemoryBackend,
    Memory,
    Secret,
    SessionKey,
    SessionPolicy,
    StateBag,
    call_model,
    loop,
    step,
    tool,
    until,
)
from noetic_py.checkpoints import FileBackend, SqliteBackend
from noetic_py.core.codec import Codec, from_wire_json
from noetic_py.errors import NoeticError
from noetic_py.memory import Filesystem
from noetic_py.testing import ScriptedModel

pytestmark = pytest.mark.anyio

THEIRS = "theirs-5c1d"
"""In every id, name, input and value of the other tenant."""
SECRET = "sk-canary-of-the-operator"

HOSTILE = [
    "", "\0", "a\nb", "x" * 300, "../../etc/passwd", "/etc/passwd", "..\\..\\boot.ini", "' OR '1'='1",
    "x'; DROP TABLE runs--", "%s%s%n", "*", "{}", "{0.__class__}", "session.0000", "\ud800",
    "\u202egnp", "nobody", "NULL", "0", "-1",
]  # fmt: skip

SQL = re.compile(
    r"\b(SELECT\s|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM|CREATE\s+TABLE|PRAGMA|WHERE\s+\w+\s*=|FROM\s+\w+\s+WHERE)",
    re.IGNORECASE,
)
PATH = re.compile(r"(?<![\w:/.])/(?:[\w.@+-]+/)+[\w.@+-]*|\b[A-Za-z]:\\")


@step
async def echo(text: str) -> str:
    return text


@tool
async def pay(amount: int, card: Secret[str]) -> str:
    """Pay."""
    return f"{amount}"


CHAT = loop(call_model(), until=until.no_tool_calls(), max_iterations=3)
Attempt = Callable[[], Awaitable[Any]]


async def theirs(harness: Harness[Any]) -> None:
    """What the other tenant has in the same store."""
    await harness.run(echo, f"input {THEIRS}", run_id=f"run-{THEIRS}", user_id=f"user-{THEIRS}")
    await harness.session(f"user-{THEIRS}", f"name-{THEIRS}").run(echo, THEIRS)


async def caught(attempts: Iterator[tuple[str, Attempt]]) -> list[tuple[str, BaseException]]:
    """Each error of the attempts, with the errors that it comes from."""
    found: list[tuple[str, BaseException]] = []
    for what, attempt in attempts:
        try:
            result = await attempt()
        except Exception as error:  # noqa: BLE001 # what is raised is what is looked at
            node: BaseException | None = error
            while node is not None:
                found.append((what, node))
                node = node.__cause__
        else:
            if getattr(result, "error", None) is not None:
                found.append((what, result.error))
    return found


def check(found: list[tuple[str, BaseException]], given: str) -> None:
    """Nothing is told that the caller has not said."""
    for what, error in found:
        said = [str(error), repr(error), *(str(part) for part in error.args), *getattr(error, "__notes__", ())]
        fields = {name: value for name, value in vars(error).items() if name not in ("result", "left")}
        text = "\n".join([*said, repr(fields)])
        assert THEIRS not in text, (what, text)
        assert SECRET not in text, (what, text)
        assert not SQL.search(text.replace(repr(what)[1:-1], "").replace(what, "")), (what, text)
        paths = [path for path in PATH.findall(text) if path.rstrip("/") not in given and path not in what]
        assert not paths, (what, paths)


# ------------------------------------------------------------------------------------------------------------- ids


def by_id(harness: Harness[Any]) -> Iterator[tuple[str, Attempt]]:
    """Every call that takes an id from outside, with every hostile id, and with that of the other tenant."""
    calls: list[Callable[[Any], Awaitable[Any]]] = [
        lambda value: harness.run(echo, "x", run_id=value, on_error="result"),
        lambda value: harness.run(echo, "x", user_id=value),
        lambda value: harness.run(echo, "x", thread_id=value),
        lambda value: harness.run(echo, "x", session=value),
        lambda value: harness.resume(value, echo),
        lambda value: harness.runs.get(value),
        lambda value: harness.runs.journal(value),
        lambda value: harness.runs.verify(value),
        lambda value: harness.runs.delete(value),
        lambda value: harness.session(value, "s").run(echo, "x"),
        lambda value: harness.session("u", value).run(echo, "x"),
        lambda value: harness.sessions.list(value),
        lambda value: harness.sessions.delete(SessionKey("u", value)),
        lambda value: harness.run(call_model(value), "x", on_error="result"),
        lambda value: harness.run(CHAT, "x", history=[FunctionCall(name=value or "-", arguments=value)]),
    ]
    for text in [*HOSTILE, f"run-{THEIRS}"[:-1]]:
        for each in calls:
            yield text, partial(each, text)


@pytest.mark.parametrize("store", ["memory", "sqlite", "files"])
async def test_ids(store: str, tmp_path: Path) -> None:
    where: dict[str, Any] = {
        "memory": InMemoryBackend(),
        "sqlite": f"sqlite:{tmp_path / 'runs.db'}",
        "files": f"files:{tmp_path / 'runs'}",
    }
    key = Secret(SECRET)
    model = ScriptedModel("x")
    async with Harness(checkpoints=where[store], model=model, services={type(key): key}, plugins=()) as harness:
        await theirs(harness)
        found = await caught(by_id(harness))
    assert len(found) > 100
    check(found, given="")


# ----------------------------------------------------------------------------------------------------------- stores


def damage(path: Path) -> None:
    """Overwrite a part of every page or frame but the first."""
    data = bytearray(path.read_bytes())
    for at in range(5000, len(data), 997):
        data[at : at + 40] = b"\xff" * len(data[at : at + 40])
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_stores(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "runs"
    backend = SqliteBackend(place) if kind == "sqlite" else FileBackend(place)
    async with Harness(checkpoints=backend, plugins=()) as harness:
        await theirs(harness)
        for number in range(20):
            await harness.run(echo, f"{THEIRS} {number}" * 50, run_id=f"run-{number}")
    await backend.close()
    for path in [place] if place.is_file() else [each for each in place.rglob("*") if each.is_file()]:
        damage(path)

    async def use(name: str) -> Any:
        async with Harness(checkpoints=f"{kind}:{place}", plugins=()) as again:
            await again.runs.list()
            return await again.resume(name, echo)

    async def open_other(address: str) -> Any:
        async with Harness(checkpoints=address, plugins=()) as again:
            return await again.run(echo, "x", on_error="result")

    text = tmp_path / "notes.txt"
    text.write_text(f"{THEIRS} is no database" * 400)
    (tmp_path / "folder").mkdir()
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute(f"CREATE TABLE '{THEIRS}' (x)")
    connection.commit()
    connection.close()
    addresses = [
        f"{kind}:{text}", f"{kind}:{tmp_path / 'folder'}", f"{kind}:{foreign}", f"{kind}:{tmp_path / 'no' / 'such'}",
        f"postgresql://ada:{SECRET}@nowhere/runs", f"redis://:{SECRET}@nowhere", f"nosuch:{SECRET}", kind,
        f"{kind}:", ":",
    ]  # fmt: skip
    attempts: list[tuple[str, Attempt]] = [(f"run-{n}", partial(use, f"run-{n}")) for n in range(20)]
    attempts += [(address, partial(open_other, address)) for address in addresses]
    found = await caught(iter(attempts))
    assert len(found) >= 6
    # The secret in an address is told by nobody, marked or not.
    check([(what.replace(SECRET, ""), error) for what, error in found], given="".join([str(place), *addresses]))


async def test_a_damaged_session_of_somebody_else(tmp_path: Path) -> None:
    backend = InMemoryBackend()
    async with Harness(checkpoints=backend, plugins=(), sessions=SessionPolicy(wait=0)) as harness:
        await theirs(harness)
        session = harness.session("mine", "talk")
        lease = await backend.acquire(session.key.stream, ttl=30)

        def attempts() -> Iterator[tuple[str, Attempt]]:
            yield "busy", lambda: session.run(echo, "x")
            yield "run", lambda: harness.run(echo, "x", run_id=f"run-{THEIRS}"[:5])
            yield "state", lambda: session.state(StateBag)

        found = await caught(attempts())
        await backend.release(lease)
    assert found
    check(found, given="")


# ------------------------------------------------------------------------------------------------- tools and data


async def test_tools_and_files(tmp_path: Path) -> None:
    class Bundle(Memory):
        files: Filesystem = Filesystem(root=tmp_path / "workspace")

    outputs: list[tuple[str, BaseException]] = []
    (tmp_path / "outside.txt").write_text(THEIRS)
    sent: list[Any] = [
        *HOSTILE,
        '{"amount": "x", "card": 1}',
        '{"amount": 1}',
        "[]",
        "null",
        '{"amount": NaN}',
        '{"path": 1}',
    ]
    sent += [{"path": path, "text": THEIRS[:3], "amount": path, "card": SECRET} for path in HOSTILE]
    for name in ("pay", "files__read", "files__write", "nosuch", "../pay"):
        for arguments in sent:
            model = ScriptedModel(FunctionCall(name=name, arguments=arguments), "done")
            async with Harness(model=model, tools=[pay], memory=Bundle(), plugins=()) as harness:
                result = await harness.run(CHAT, "go", on_error="result")
            told = [item.text for item in result.items if isinstance(item, FunctionCallOutput)]
            outputs += [(str(arguments), NoeticError(text)) for text in told]
            if result.error is not None:
                outputs.append((str(arguments), result.error))
    assert len(outputs) > 100
    check(outputs, given="")


async def test_data() -> None:
    codec = Codec()
    wrong = [
        b"",
        b"\xff",
        b"{",
        b'{"$": "os.system", "v": "x"}',
        b'{"$": 1}',
        b'{"type": "message", "role": "root"}',
        b"[" * 99,
    ]

    async def load(data: bytes) -> Any:
        return codec.loads(data, dict[str, Any])

    async def read(data: bytes) -> Any:
        return from_wire_json(data)

    found = await caught((repr(data), partial(work, data)) for data in wrong for work in (load, read))
    assert len(found) > 10
    check(found, given="")
