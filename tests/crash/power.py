"""What a disk may hold after the power was lost, rebuilt from the system calls of a process that wrote to it.

What was synced is there. Of what was not, any part may be: each sector of a file is as it was after the last sync or
after any write since, whatever became of its neighbours, a length is any that the file had, and a name leads to what it
led to at any moment since its folder was synced. Nothing is assumed of a file system besides that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALLS = ("pwrite64", "write", "fsync", "fdatasync", "ftruncate", "unlink", "rename", "openat", "mkdir", "pwritev")
SECTOR = 512
ACKNOWLEDGED = "acknowledged"
"""The file into which the process writes a line for each append that it was told is stored."""

_LINE = re.compile(r"^(?P<thread>\d+) +(?P<call>\w+)\((?P<rest>.*)$")
_RESUMED = re.compile(r"^(?P<thread>\d+) +<\.\.\. (?P<call>\w+) resumed>(?P<rest>.*)$")
_HEX = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"^(?:\d+|AT_FDCWD)<([^>]*)>")


@dataclass(frozen=True)
class Event:
    """One call, done.

    Attributes:
        call: `"write"`, `"sync"`, `"truncate"`, `"create"`, `"unlink"`, or `"acknowledge"`.
        name: The file's name in the folder; empty for the folder.
        at: Where it writes, or the new length.
        data: What it writes.
    """

    call: str
    name: str
    at: int = 0
    data: bytes = b""


def trace_options(log: Path) -> Sequence[str]:
    """What a tracer is told, so that its log can be read here."""
    return "-o", str(log), "-y", "-xx", "-s", "1000000", "-e", f"trace={','.join(CALLS)}"


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _whole_lines(log: Path) -> Iterator[tuple[str, str]]:
    """Every call that came back well, where it came back, with its arguments and its result."""
    begun: dict[str, str] = {}
    for line in log.read_text().splitlines():
        resumed = _RESUMED.match(line)
        found = resumed or _LINE.match(line)
        if found is None:
            continue
        thread, rest = found["thread"], found["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>")
            continue
        text = begun.pop(thread, "") + rest if resumed else rest
        if not re.search(r"\) += -1 ", text):
            yield found["call"], text


def read_trace(log: Path, folder: Path) -> list[Event]:
    """What a process did to the files of a folder, in order."""
    events: list[Event] = []
    for call, text in _whole_lines(log):
        handle = _HANDLE.match(text)
        strings = [_plain(part) for part in _HEX.findall(text)]
        path = _path(handle[1] if handle is not None else "", strings, call)
        if path != folder and path.parent != folder:
            continue
        name = "" if path == folder else path.name
        event = _event(call, name, text, strings)
        if event is not None:
            events.append(event)
    return events


def _path(handle: str, strings: Sequence[bytes], call: str) -> Path:
    """Which file a call is about."""
    if call in ("openat", "unlink", "mkdir", "rename"):
        return Path(strings[0].decode())
    shown = _plain(handle) if handle.startswith("\\x") else handle.encode()
    return Path(shown.decode())


def _event(call: str, name: str, text: str, strings: Sequence[bytes]) -> Event | None:
    match call:
        case "write" if name == ACKNOWLEDGED:
            return Event("acknowledge", name, data=strings[0])
        case "pwrite64":
            return Event("write", name, int(text.rpartition(")")[0].rpartition(", ")[2]), strings[0])
        case "fsync" | "fdatasync":
            return Event("sync", name)
        case "ftruncate":
            return Event("truncate", name, int(text.rpartition(")")[0].rpartition(", ")[2]))
        case "openat" if "O_CREAT" in text and name != ACKNOWLEDGED:
            return Event("create", name)
        case "openat":
            return None
        case "unlink":
            return Event("unlink", name)
        case _:
            raise AssertionError(f"{call} of {name}: what that does to a disk is not known here")


@dataclass(eq=False)
class File:
    """A file: what of it is surely on the disk, and what it has been since.

    Attributes:
        now: What it holds, as every process sees it.
        kept: What it held when it was last synced.
        changed: By its number, every sector that was written since, as it was after each write.
        lengths: Every length that it had since.
    """

    now: bytearray = field(default_factory=bytearray)
    kept: bytes = b""
    changed: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    lengths: list[int] = field(default_factory=lambda: [0])

    def write(self, at: int, data: bytes) -> None:
        """Write, into the memory of the system at first."""
        if at > len(self.now):
            self.now.extend(bytes(at - len(self.now)))
        self.now[at : at + len(data)] = data
        self._changed(at, at + len(data))

    def truncate(self, length: int) -> None:
        """Make it shorter or longer."""
        before = len(self.now)
        del self.now[length:]
        self.now.extend(bytes(length - len(self.now)))
        self._changed(min(before, length), max(before, length))

    def _changed(self, begin: int, end: int) -> None:
        self.lengths.append(len(self.now))
        for number in range(begin // SECTOR, (end + SECTOR - 1) // SECTOR):
            sector = bytes(self.now[number * SECTOR : (number + 1) * SECTOR])
            self.changed.setdefault(number, []).append(sector.ljust(SECTOR, b"\0"))

    def sync(self) -> None:
        """Everything is on the disk."""
        self.kept = bytes(self.now)
        self.changed.clear()
        self.lengths = [len(self.now)]

    def left(self, dice: random.Random) -> bytes:
        """What the disk may hold of it."""
        share = dice.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        length = dice.choice(self.lengths) if share < 1 else len(self.now)
        content = bytearray(self.kept)
        for number, versions in self.changed.items():
            begin = number * SECTOR
            content.extend(bytes(max(0, begin + SECTOR - len(content))))
            if dice.random() < share:
                content[begin : begin + SECTOR] = versions[-1] if share == 1 else dice.choice(versions)
        content.extend(bytes(max(0, length - len(content))))
        return bytes(content[:length])


class Disk:
    """A folder on a disk.

    Args:
        files: What is on it at first.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.names: dict[str, File | None] = {}
        # What each name led to when the folder was last synced, and at every moment since.
        self.since: dict[str, list[File | None]] = {}
        self.acknowledged: list[bytes] = []
        for name, content in files.items():
            file = File(bytearray(content))
            file.sync()
            self.names[name] = file
            self.since[name] = [file]

    def do(self, event: Event, *, syncs: bool = True) -> None:
        """Let a call happen; `syncs` says whether the disk heeds those that sync."""
        name = event.name
        file = self.names.get(name)
        if event.call == "acknowledge":
            self.acknowledged.append(event.data)
        elif event.call == "create" and file is None:
            self._lead(name, File())
        elif event.call == "unlink":
            self._lead(name, None)
        elif event.call == "sync" and syncs:
            self._sync(name)
        elif file is not None and event.call == "write":
            file.write(event.at, event.data)
        elif file is not None and event.call == "truncate":
            file.truncate(event.at)

    def _lead(self, name: str, file: File | None) -> None:
        self.since.setdefault(name, [None]).append(file)
        self.names[name] = file

    def _sync(self, name: str) -> None:
        file = self.names.get(name)
        if not name:
            self.since = {each: [led] for each, led in self.names.items()}
        elif file is not None:
            file.sync()

    def left(self, dice: random.Random) -> dict[str, bytes]:
        """What may be in the folder when the power comes back."""
        found = {name: dice.choice(files) for name, files in self.since.items()}
        return {name: file.left(dice) for name, file in found.items() if file is not None}


def written(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder of files."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
