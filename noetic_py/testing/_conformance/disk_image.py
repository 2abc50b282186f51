"""What a disk may hold after the power was lost, rebuilt from the system calls of a process that wrote to it.

What was synced is there. Of what was not, any part may be: each sector of a file is as it was after the last sync or
after any write since, whatever became of its neighbours, a length is any that the file had, and a name leads to what it
led to at any moment since its folder was synced. A file that was moved is not lost with both of its names. Nothing is
assumed of a file system besides that.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

__all__ = ["Disk", "DiskEvent", "NotFollowed", "read_files", "read_trace", "trace_options", "write_files"]

_CALLS = (
    "open", "openat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "lseek", "ftruncate", "truncate",
    "fallocate", "fsync", "fdatasync", "syncfs", "sync", "rename", "renameat", "renameat2", "link", "linkat", "symlink",
    "symlinkat", "unlink", "unlinkat", "rmdir", "mkdir", "mkdirat",
)  # fmt: skip
SECTOR = 512

_LINE = re.compile(r"^(?P<thread>\d+) +(?P<call>\w+)\((?P<rest>.*)$")
_RESUMED = re.compile(r"^(?P<thread>\d+) +<\.\.\. (?P<call>\w+) resumed>(?P<rest>.*)$")
_ENDED = re.compile(r"^(?P<given>.*)\) += (?P<result>-?\d+)(<[^>]*>)?( .*)?$")
_TOKEN = re.compile(
    r'(?P<handle>(?<!\d)-?\d+|AT_FDCWD)<(?P<path>[^>]*)>|"(?P<text>(?:\\x[0-9a-f]{2})*)"(?P<cut>\.\.\.)?'
)

Files: TypeAlias = dict[str, bytes]
"""Files by their place in a folder; a name that ends with a slash is a folder."""


class NotFollowed(Exception):
    """What a call does to a disk is not known here."""


@dataclass(frozen=True)
class DiskEvent:
    """One call, done.

    Attributes:
        call: `"write"`, `"sync"`, `"truncate"`, `"create"`, `"mkdir"`, `"unlink"`, `"move"`, `"link"`, or
            `"acknowledge"`.
        name: The place of its file or folder; empty for the whole folder.
        at: Where it writes, -1 for the end; or the new length.
        data: What it writes.
        to: The place to which it moves or links.
    """

    call: str
    name: str
    at: int = 0
    data: bytes = b""
    to: str = ""


def trace_options(log: Path) -> Sequence[str]:
    """What a tracer is told, so that its log can be read here."""
    # Not every machine has every call.
    return "-o", str(log), "-y", "-xx", "-s", "1000000", "-e", f"trace={','.join(f'?{name}' for name in _CALLS)}"


def read_trace(log: Path, folder: Path, acknowledged: Path) -> list[DiskEvent]:
    """What a process did to the files of a folder, in order.

    Args:
        log: What the tracer has written.
        folder: The folder.
        acknowledged: The file into which the process writes what it was told is stored.

    Raises:
        NotFollowed: It made a call whose effect is not known here.
    """
    return list(_TraceReader(folder, acknowledged).events(log))


def _whole_lines(log: Path) -> Iterator[tuple[str, str, int]]:
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
        ended = _ENDED.match(begun.pop(thread, "") + rest if resumed else rest)
        if ended is not None and int(ended["result"]) >= 0:
            yield found["call"], ended["given"], int(ended["result"])


@dataclass
class _Open:
    """A handle.

    Attributes:
        at: Where the next write goes; -1 for the end of the file.
    """

    at: int


class _TraceReader:
    """Reads calls."""

    def __init__(self, folder: Path, acknowledged: Path) -> None:
        self._folder, self._acknowledged = folder, acknowledged
        self._handles: dict[str, _Open] = {}

    def events(self, log: Path) -> Iterator[DiskEvent]:
        for call, given, result in _whole_lines(log):
            handles, paths, texts = self._tokens(call, given)
            if call == "sync":
                yield DiskEvent("sync all", "")
            elif call.startswith("open"):
                yield from self._opened(given, paths[-1], str(result))
            elif handles and call in _OF_HANDLES:
                handle, place = handles[0]
                if place == self._acknowledged and call == "write":
                    yield DiskEvent("acknowledge", "", data=texts[0][:result])
                elif self._is_inside(place):
                    yield from self._of_handle(call, given, result, handle, self._name(place), b"".join(texts))
            elif any(map(self._is_inside, paths)):
                yield from self._of_path(call, given, paths)

    def _tokens(self, call: str, given: str) -> tuple[list[tuple[str, Path]], list[Path], list[bytes]]:
        handles, paths, texts, base = list[tuple[str, Path]](), list[Path](), list[bytes](), Path()
        for found in _TOKEN.finditer(given):
            if found["handle"] is not None:
                shown = found["path"]
                base = Path(_plain(shown).decode() if shown.startswith("\\x") else shown)
                handles.append((found["handle"], base))
                continue
            text = _plain(found["text"])
            if found["cut"]:
                raise NotFollowed(f"{call} of more than a million bytes")
            texts.append(text)
            if call not in _OF_HANDLES:
                paths.append(base / text.decode())
        return handles, paths, texts

    def _is_inside(self, place: Path) -> bool:
        return place == self._folder or self._folder in place.parents

    def _name(self, place: Path) -> str:
        return "" if place == self._folder else place.relative_to(self._folder).as_posix()

    def _opened(self, given: str, place: Path, handle: str) -> Iterator[DiskEvent]:
        if not self._is_inside(place) or place == self._acknowledged:
            return
        if "O_TMPFILE" in given:
            raise NotFollowed(f"a file without a name in {self._name(place) or 'the folder'}")
        self._handles[handle] = _Open(-1 if "O_APPEND" in given else 0)
        if "O_CREAT" in given:
            yield DiskEvent("create", self._name(place))
        if "O_TRUNC" in given:
            yield DiskEvent("truncate", self._name(place))

    def _of_handle(
        self, call: str, given: str, result: int, handle: str, name: str, data: bytes
    ) -> Iterator[DiskEvent]:
        if name.endswith(" (deleted)"):
            return
        numbers = [int(each) for each in re.findall(r", (-?\d+)(?=, |$)", given)]
        if call in ("fsync", "fdatasync"):
            yield DiskEvent("sync", name)
        elif call == "syncfs":
            yield DiskEvent("sync all", "")
        elif call in ("pwrite64", "pwritev", "pwritev2"):
            yield DiskEvent("write", name, numbers[-1] if call != "pwritev2" else numbers[-2], data[:result])
        elif call == "ftruncate":
            yield DiskEvent("truncate", name, numbers[-1])
        elif call == "fallocate":
            if ", 0, " not in given:
                raise NotFollowed(f"fallocate of {name}")
            yield DiskEvent("grow", name, sum(numbers[-2:]))
        elif handle not in self._handles:
            raise NotFollowed(f"{call} of {name} by a handle that was not opened by its name")
        elif call == "lseek":
            opened = self._handles[handle]
            opened.at = result if opened.at >= 0 else -1
        else:
            opened = self._handles[handle]
            yield DiskEvent("write", name, opened.at, data[:result])
            opened.at += result if opened.at >= 0 else 0

    def _of_path(self, call: str, given: str, paths: Sequence[Path]) -> Iterator[DiskEvent]:
        if call.startswith(("sym", "trunc")) or not all(map(self._is_inside, paths)) or "RENAME_EXCHANGE" in given:
            raise NotFollowed(f"{call} of {paths[-1].name}")
        names = [self._name(place) for place in paths]
        if call.startswith(("rename", "link")):
            yield DiskEvent("move" if call.startswith("rename") else "link", names[0], to=names[1])
        else:
            yield DiskEvent("mkdir" if call.startswith("mkdir") else "unlink", names[0])


_OF_HANDLES = {
    "write", "writev", "pwrite64", "pwritev", "pwritev2", "lseek", "ftruncate", "fallocate", "fsync", "fdatasync",
    "syncfs",
}  # fmt: skip


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass(eq=False)
class FileImage:
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
        """Write, into the memory of the system at first; at -1 to the end."""
        at = len(self.now) if at < 0 else at
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


@dataclass(eq=False)
class FolderImage:
    """A folder.

    Attributes:
        now: What each name leads to.
        since: What each name led to when the folder was last synced, and at every moment since.
    """

    now: dict[str, FileImage | FolderImage | None] = field(default_factory=dict[str, "FileImage | FolderImage | None"])
    since: dict[str, list[FileImage | FolderImage | None]] = field(
        default_factory=dict[str, "list[FileImage | FolderImage | None]"]
    )

    def lead(self, name: str, node: FileImage | FolderImage | None) -> None:
        """Let a name lead to something else from now on."""
        self.since.setdefault(name, [None]).append(node)
        self.now[name] = node

    def sync(self) -> None:
        """All names are on the disk."""
        self.since = {name: [node] for name, node in self.now.items()}


@dataclass(frozen=True)
class _Move:
    """A file or a folder that has got another name, in a folder that was not synced since."""

    node: FileImage | FolderImage
    from_folder: FolderImage
    from_name: str
    to_folder: FolderImage
    to_name: str


class Disk:
    """A folder on a disk.

    Args:
        files: What is in it at first, and on the disk.
    """

    def __init__(self, files: Files) -> None:
        self._root = FolderImage()
        self._moves: list[_Move] = []
        self.acknowledged: list[bytes] = []
        for name, content in files.items():
            folder = self._root
            *above, last = name.split("/")
            for part in above:
                found = folder.now.get(part)
                if not isinstance(found, FolderImage):
                    found = FolderImage()
                    folder.lead(part, found)
                folder = found
            if last:
                folder.lead(last, FileImage(bytearray(content)))
        self._sync_all()

    def _sync_all(self) -> None:
        self._moves.clear()
        for node in _below(self._root):
            node.sync()

    def _place(self, name: str) -> tuple[FolderImage, str]:
        """The folder that a place is in, and its name there."""
        *above, last = name.split("/")
        folder = self._root
        for part in above:
            found = folder.now.get(part)
            if not isinstance(found, FolderImage):
                raise NotFollowed(f"{name}, which is in no known folder")
            folder = found
        return folder, last

    def do(self, event: DiskEvent, *, syncs: bool = True) -> None:
        """Let a call happen; `syncs` says whether the disk heeds those that sync.

        Raises:
            NotFollowed: It is about a file or a folder that is not known here.
        """
        if event.call == "acknowledge":
            self.acknowledged.append(event.data)
        elif event.call in ("sync", "sync all"):
            if syncs:
                self._sync(event)
        elif event.call in ("write", "truncate", "grow"):
            self._change(event)
        else:
            self._lead(event)

    def _sync(self, event: DiskEvent) -> None:
        if event.call == "sync all":
            self._sync_all()
            return
        folder, name = self._place(event.name)
        node = folder.now.get(name) if name else self._root
        if isinstance(node, FolderImage):
            self._moves = [each for each in self._moves if node not in (each.from_folder, each.to_folder)]
        if node is not None:
            node.sync()

    def _change(self, event: DiskEvent) -> None:
        folder, name = self._place(event.name)
        file = folder.now.get(name)
        if not isinstance(file, FileImage):
            raise NotFollowed(f"{event.call} of {event.name}, which is not known")
        if event.call == "write":
            file.write(event.at, event.data)
        elif event.call == "truncate" or event.at > len(file.now):
            file.truncate(event.at)

    def _lead(self, event: DiskEvent) -> None:
        folder, name = self._place(event.name)
        node = folder.now.get(name)
        if event.call == "create":
            if node is None:
                folder.lead(name, FileImage())
        elif event.call == "mkdir":
            folder.lead(name, FolderImage())
        elif event.call == "unlink":
            folder.lead(name, None)
        else:
            to_folder, to_name = self._place(event.to)
            if node is None:
                raise NotFollowed(f"{event.call} of {event.name}, which is not known")
            to_folder.lead(to_name, node)
            if event.call == "move":
                folder.lead(name, None)
                self._moves.append(_Move(node, folder, name, to_folder, to_name))

    def now(self) -> Files:
        """What every process sees."""
        return _files(self._root, lambda folder, name: folder.now[name], lambda file: bytes(file.now))

    def left(self, dice: random.Random) -> Files:
        """What may be in the folder when the power comes back."""
        chosen = {
            (folder, name): dice.randrange(len(nodes))
            for folder in _below(self._root)
            if isinstance(folder, FolderImage)
            for name, nodes in folder.since.items()
        }
        for move in self._moves:
            before, after = move.from_folder.since[move.from_name], move.to_folder.since[move.to_name]
            is_gone = before[chosen[move.from_folder, move.from_name]] is None
            if is_gone and chosen[move.to_folder, move.to_name] < after.index(move.node):
                chosen[move.from_folder, move.from_name] = before.index(move.node)
        return _files(
            self._root, lambda folder, name: folder.since[name][chosen[folder, name]], lambda file: file.left(dice)
        )


def _below(folder: FolderImage) -> Iterator[FileImage | FolderImage]:
    """A folder, and all that has been in it since it was synced, each once."""
    seen: dict[FileImage | FolderImage, None] = {folder: None}
    waiting: list[FolderImage] = [folder]
    while waiting:
        for nodes in waiting.pop().since.values():
            for node in nodes:
                if node is not None and node not in seen:
                    seen[node] = None
                    waiting.extend([node] if isinstance(node, FolderImage) else [])
    return iter(seen)


def _files(
    folder: FolderImage,
    pick: Callable[[FolderImage, str], FileImage | FolderImage | None],
    read: Callable[[FileImage], bytes],
    place: str = "",
) -> Files:
    """What is in a folder, as one of its times says."""
    found: Files = {}
    for name in folder.since:
        node = pick(folder, name)
        if isinstance(node, FileImage):
            found[place + name] = read(node)
        elif node is not None:
            found[f"{place}{name}/"] = b""
            found |= _files(node, pick, read, f"{place}{name}/")
    return found


def read_files(folder: Path) -> Files:
    """What is in a folder that was not taken apart."""
    found: Files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        found[name if path.is_file() else f"{name}/"] = path.read_bytes() if path.is_file() else b""
    return found


def write_files(folder: Path, files: Files) -> None:
    """Make a folder of files."""
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
