"""What decoders make of hostile data: plain values or a named error, never an import, a call or a hang."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noetic_py.checkpoints import Record
from noetic_py.core.codec import Codec, from_wire, from_wire_json
from noetic_py.core.codec.structure import MAX_KEYS, parse
from noetic_py.core.items import BUILTIN_TYPES, Extension, Message, Opaque, extension_item
from noetic_py.errors import CodecError, ConfigError, LimitExceeded, NoeticError
from noetic_py.journal.records import load_record
from tests.properties.checks import FULL
from tests.servers.figures import Figure

ROOT = Path(__file__).resolve().parents[2]

# ------------------------------------------------------------------------------------------ names of types

# In a process of its own, with a watch on everything that imports, opens, starts or connects.
NAMES = """
import json, sys, itertools
from noetic_py.checkpoints import Record
from noetic_py.journal.records import load_record
from noetic_py.core.codec import Codec, from_wire_json
from noetic_py.errors import NoeticError
import noetic_py.memory, noetic_py.sessions, cattrs.gen, pydantic, zoneinfo  # loaded before the watch begins
try:
    import tzdata  # where a package brings the zones along
except ImportError:
    pass

MODULES = ["os", "sys", "builtins", "subprocess", "socket", "shutil", "ctypes", "importlib", "pickle", "marshal",
           "code", "posix", "webbrowser", "antigravity", "this", "noetic_py", "noetic_py.core.codec.stored",
           "noetic_py.testing", "tests.security.gadget", "__main__"]
THINGS = ["system", "popen", "eval", "exec", "__import__", "Popen", "getenv", "__reduce__", "__class__",
          "__subclasses__", "rmtree", "CDLL", "import_module", "loads", "Codec", "Gadget", "__init__", "open"]
names = [f"{module}{dot}{thing}" for module, thing in itertools.product(MODULES, THINGS) for dot in (".", ":")]
names += [*MODULES, *THINGS, "object:os.system", "!!python/object/apply:os.system", "c__builtin__\\neval", "lc", "$ref"]
codec = Codec()
before = set(sys.modules)
seen = []

def watch(event, arguments):
    if watching and event in {"import", "exec", "compile"} or event.startswith(
        ("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pickle.", "marshal.", "code.__new__")
    ):
        seen.append((event, str(arguments)[:80]))

forms = [
    lambda name: {"$": "object", "t": name, "v": {"command": "id"}},
    lambda name: {"$": f"object:{name}", "command": "id"},
    lambda name: {"$": "enum", "t": name, "v": "id"},
    lambda name: {"$": "error", "t": name, "m": "id", "f": {"args": ["id"]}},
    lambda name: {"$": name, "v": "id"},
    lambda name: {"$": "item", "v": {"type": name, "data": {"command": "id"}}},
    lambda name: {"py/object": name, "py/reduce": [name, ["id"]]},
    lambda name: {"lc": 1, "type": "constructor", "id": name.split("."), "kwargs": {"command": "id"}},
    lambda name: {"__type__": name, "__reduce__": [name, ["id"]], "@class": name},
]
refused = plain = 0
watching = True
sys.addaudithook(watch)
for name, form in itertools.product(names, forms):
    tree = form(name)
    for read in (
        lambda: codec.loads(json.dumps(tree)),
        lambda: load_record(Record(name, (), json.dumps(tree).encode()), codec),
        lambda: load_record(Record("Decision", (), json.dumps(["k", tree]).encode()), codec),
    ):
        try:
            read()
            plain += 1
        except NoeticError:
            refused += 1
watching = False
print(json.dumps({"names": len(set(names)), "tried": refused + plain, "plain": plain, "seen": seen[:5],
                  "new": sorted(set(sys.modules) - before)}))
"""


def test_names_of_types_are_never_imported_or_called(figure: Figure) -> None:
    command = [sys.executable, "-c", NAMES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["names"] >= 500
    assert found["seen"] == []
    assert found["new"] == []
    figure("names", found["names"])
    figure("decoded", found["tried"])


class Gadget:
    """A class of our own package that nobody has registered."""

    made = 0

    def __init__(self, command: str = "") -> None:
        Gadget.made += 1


class Subgadget(Message):
    """A subclass of a known item that would be made in its place."""


@pytest.mark.parametrize("name", ["Gadget", "Subgadget", "tests.security.test_decoding.Gadget", "Codec", "Message"])
def test_a_class_that_is_loaded_is_not_made_by_its_name(name: str) -> None:
    for tree in ({"$": f"object:{name}", "command": "x"}, {"$": "object", "t": name, "v": {"command": "x"}}):
        with pytest.raises(CodecError, match="no such class is registered"):
            Codec().loads(json.dumps(tree))
        with pytest.raises(CodecError):
            Codec([Message]).loads(json.dumps(tree), Gadget)
    assert Gadget.made == 0


def test_no_extension_takes_the_name_of_what_is_built_in() -> None:
    for name in [
        *BUILTIN_TYPES,
        "message",
        "Message:",
        "a b:c",
        "noetic",
        "\uff4dessage:x",
        "acme:\u202enote",
        "os.system",
    ]:
        with pytest.raises(ConfigError):
            extension_item(name)(Extension)
    item = from_wire({"type": "os.system", "data": {"command": "id"}})
    assert isinstance(item, Opaque)


@pytest.mark.parametrize("depth", range(1, 6))
def test_reserved_keys_of_others_are_plain_data(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other libraries make objects of is a dict here, and what it names of the environment is not read."""
    monkeypatch.setenv("NOETIC_TEST_SECRET", "hunter2")
    value: Any = {
        "lc": 1,
        "type": "secret",
        "id": ["NOETIC_TEST_SECRET"],
        "$": "object",
        "$ref": "#/x",
        "__class__": "x",
        "!": 1,
        "{user.__class__}": "{0.__init__.__globals__}",
    }
    for _ in range(depth):
        value = {"kwargs": value, "more": [value]}
    codec = Codec()
    data = codec.dumps(value)
    assert codec.loads(data) == value
    assert b"hunter2" not in data
    assert "hunter2" not in repr(codec.loads(data))


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800", "\x00\ud800\uffff"])
def test_a_lone_surrogate_changes_no_form(text: str) -> None:
    """It comes back as it was or is refused; there is no second format to fall back to."""
    codec = Codec()
    for value in (text, {text: [text]}, {"a": {"b": text}}):
        assert codec.loads(codec.dumps(value)) == value
        assert codec.dumps(value)[:1] in b'"{'
    wire = from_wire({"type": "message", "role": "user", "content": text})
    assert isinstance(wire, Message)
    assert wire.text == text


@pytest.mark.parametrize(
    "blob",
    [b"\x80\x04\x95\x1e", b"cos\nsystem\n(S'id'\ntR.", b"\x80\x02c__builtin__\neval\n", b"PK\x03\x04", b"\x1f\x8b\x08"],
)
def test_what_was_pickled_is_no_record(blob: bytes) -> None:
    for kind in ("RunStarted", "StepFinished", "Segment", "Decision", "RunEnded"):
        with pytest.raises(CodecError):
            load_record(Record(kind, (), blob), Codec())
    with pytest.raises(CodecError):
        Codec().loads(blob)
    with pytest.raises(CodecError):
        from_wire_json(blob)


# ------------------------------------------------------------------------------------------ marks

MARKED = ["uuid", "decimal", "path", "bytes", "date", "datetime", "time", "timedelta", "set", "frozenset", "tuple"]
MARKED.extend(["enum", "object", "item", "opaque", "error", "dict"])
ODD: list[Any] = [5, None, [], {}, "x", "", True, [[1]], [1e308] * 3, [10**30, 1, 1], "9" * 100_000, "1e9999999999999"]
ODD.extend(
    [[0, [1], 0], [2, [1], 0], [0, ["a"], 0], "\ud800", {"$": "set", "v": [[]]}, [{"$": "dict", "v": [[[], 1]]}]]
)


@pytest.mark.parametrize("mark", MARKED)
def test_a_mark_with_something_odd_in_it_is_read_or_refused(mark: str) -> None:
    for odd in ODD:
        for fields in ("v", "vt", "vtmpf", "vtmpfh", "vtz"):
            tree = {"$": mark, **dict.fromkeys(fields, odd), "tz": odd, "fold": odd, "id": odd}
            said = ""
            try:
                Codec().loads(json.dumps(tree))
            except NoeticError as error:
                said = str(error)
            assert len(said) < 1000


@pytest.mark.parametrize(
    "name", ["America", "a" * 300, "../../etc/passwd", "/etc/passwd", "", ".", "a\0b", "\ud800", 5, None, "x" * 5000]
)
def test_a_time_zone_that_is_none_is_refused_and_tells_nothing_of_the_machine(name: Any) -> None:
    with pytest.raises(CodecError) as caught:
        Codec().loads(json.dumps({"$": "datetime", "v": "2026-01-01T00:00:00", "tz": name}))
    assert "site-packages" not in str(caught.value)
    assert "zoneinfo/" not in str(caught.value)


# ------------------------------------------------------------------------------------------ bombs

DEEP = "[" * 100_000 + "]" * 100_000
WIDE = "{" + ",".join(f'"k{number}":0' for number in range(1_000_000)) + "}"
TWICE = "{" + ",".join(f'"k{number}":0' for number in range(MAX_KEYS - 1)) + f',"k{MAX_KEYS - 2}":1}}'
LONG = "9" * 100_000
BOMBS = {
    "deep": DEEP,
    "deep objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "wide": WIDE,
    "twice": TWICE,
    "long": LONG,
}
BOMBS.update({"escapes": '"' + '\\"' * 500_000, "quotes": '"' * 500_001 + ":" * 300_000, "open": "[" * 1_000_000})
READERS: dict[str, Callable[[str], object]] = {
    "values": lambda text: Codec().loads(text),
    "items": lambda text: from_wire_json(f'{{"type":"acme:note","data":{text}}}'),
    "messages": lambda text: from_wire_json(f'{{"type":"message","role":"user","content":"","x":{text}}}'),
    "records": lambda text: load_record(Record("Decision", (), f'["k",{text}]'.encode()), Codec()),
}


@pytest.mark.timed
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_at_once(bomb: str, reader: str) -> None:
    """A named error within a second of work, and not much more memory than the text itself."""
    text = BOMBS[bomb]
    begun, before = time.thread_time(), resident()
    with pytest.raises((CodecError, LimitExceeded)) as caught:
        READERS[reader](text)
    assert time.thread_time() - begun < 1.0
    if bomb != "twice":
        assert resident() - before < 64 * 1024
    assert len(str(caught.value)) < 1000


def resident() -> int:
    """How much memory the process has, in kB."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * 4


def test_the_keys_of_an_object_are_limited_exactly() -> None:
    just = {f"k{number}": number for number in range(MAX_KEYS)}
    codec = Codec()
    assert codec.loads(codec.dumps(just)) == just
    two = json.dumps([just, {"more": [just]}])
    assert parse(two, 1 << 30, "x") == json.loads(two)
    for value in (just | {"one": 1}, [{"a": just | {"one": 1}}])[: 2 if FULL else 1]:
        with pytest.raises(LimitExceeded, match="keys of an object"):
            codec.dumps(value)
        with pytest.raises(LimitExceeded, match="keys of an object"):
            parse(json.dumps(value), 1 << 30, "x")
        with pytest.raises(LimitExceeded, match="keys of an object"):
            from_wire({"type": "acme:note", "data": value})


def test_colons_in_texts_are_no_keys() -> None:
    text = json.dumps([': ":{}' * 10, {"a": ":" * (MAX_KEYS + 10), "b\\": '\\":{"c":' * MAX_KEYS}])
    assert parse(text, 1 << 30, "x")[1]["a"].count(":") == MAX_KEYS + 10


def test_a_size_that_is_only_claimed_is_not_believed() -> None:
    from noetic_py.errors import CorruptRecord
    from noetic_py.journal.transforms import unpack

    claims = [b"\xff" * 9, b"\xff" * 8 + b"\x01", b"\x80\x80\x80\x80\x04", b"\xff\xff\xff\xff\x7f" + b"x" * 10]
    before = resident()
    for claim in claims:
        for body in (claim, b"\x01K" + claim, b"\x01K\x01\x01p" + b"\x00" + claim, b"\x01K\x01" + claim):
            with pytest.raises(CorruptRecord):
                unpack(body, 1, lambda _: b"")
    assert resident() - before < 1024
