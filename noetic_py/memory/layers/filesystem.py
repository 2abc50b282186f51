"""`Filesystem`: the files below one folder, for code and for the model, and files outside of it refused."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

from anyio import to_thread
from attrs import define, frozen

from noetic_py.errors import LayerError
from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import COUNTER, at_least, clipped, wrong

_FOLDER: Final = (
    os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)
# Opening a named pipe must not wait.
_FILE: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_TEMPORARY: Final = ".noetic-"
_MOST_PATH: Final = 1024
_MOST_NAME: Final = 255

# A limit on the number or the size of all files is looked at and used in one piece.
_writing: Final = Lock()


def is_supported() -> bool:
    """Whether this system opens files relative to folders, and can refuse links."""
    return os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW") and hasattr(os, "O_DIRECTORY")


class FileRefused(LayerError):
    """A [`Filesystem`][noetic_py.memory.Filesystem] does not read or write this.

    Args:
        message: What happened; a model sees it as the call's output.
        layer: The layer's id.
        reason: A short stable word: `"name"`, `"missing"`, `"kind"`, `"size"`, `"count"`, `"text"`, `"read-only"` or
            `"system"`.
        hint: The next thing to try.
    """

    reason: str

    def __init__(self, message: str, *, layer: str, reason: str, hint: str | None = None) -> None:
        super().__init__(message, layer=layer, hint=hint)
        self.reason = reason


@frozen
class Limits:
    """Limits of the files below the root.

    Attributes:
        file_bytes: Bytes of one file.
        total_bytes: Bytes of all of them.
        files: How many files.
        depth: Folders in one another.
        entries: Names that a walk looks at, links and other things that are not files among them.
    """

    file_bytes: int
    total_bytes: int
    files: int
    depth: int
    entries: int = 100_000


@define
class Sandbox:
    """One folder, and what may be done below it; everything here waits for the disk.

    Attributes:
        root: The folder.
        layer: The layer's name in errors.
        limits: What there may be.
    """

    root: Path
    layer: str
    limits: Limits

    # -- paths

    def refused(self, what: str, reason: str, hint: str | None = None) -> FileRefused:
        """An error that says what is not allowed."""
        return FileRefused(what, layer=self.layer, reason=reason, hint=hint)

    def parts(self, path: str) -> tuple[str, ...]:
        """The parts of a path relative to the root; none for the root itself.

        Raises:
            FileRefused: It leads out of the root, or is not a plain path.
        """
        shown = ascii(path[:80])
        try:
            size = len(path.encode())
        except UnicodeEncodeError:
            raise self.refused(f"the path {shown} is not text", "name") from None
        if size > _MOST_PATH:
            raise self.refused(f"the path {shown}... is longer than {_MOST_PATH} bytes", "name")
        if path.startswith(("/", "~")) or "\\" in path or not path.isprintable():
            raise self.refused(
                f"the path {shown} is not allowed", "name", "relative to the root, such as notes/plan.md"
            )
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if ".." in parts:
            raise self.refused(f"the path {shown} leads out of the root", "name", "relative to the root, without ..")
        if any(part.startswith(_TEMPORARY) or len(part.encode()) > _MOST_NAME for part in parts):
            raise self.refused(f"the path {shown} has a name that is not allowed", "name")
        if len(parts) > self.limits.depth:
            raise self.refused(f"the path {shown} is deeper than {self.limits.depth} folders", "name")
        return parts

    def _file_parts(self, path: str) -> tuple[str, ...]:
        parts = self.parts(path)
        if not parts:
            raise self.refused("this is the root, and no file", "kind")
        return parts

    @contextmanager
    def _naming(self, path: str) -> Generator[None, None, None]:
        """An error of the operating system as a refusal."""
        try:
            yield
        except FileNotFoundError:
            raise self.refused(f"there is no {path!a}", "missing") from None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EMLINK, errno.EEXIST):
                raise self.refused(f"{path!a} is not a plain file or folder, or lies below one", "kind") from None
            raise self.refused(f"{path!a}: {error.strerror or 'the system refuses'}", "system") from error

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, make: bool = False) -> Generator[int, None, None]:
        """A folder below the root, opened part by part."""
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        # The root is the user's word, so it may be a link.
        opened = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in parts:
                if make:
                    _make_folder(part, opened)
                below = os.open(part, _FOLDER, dir_fd=opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)

    def _check(self, found: os.stat_result, path: str) -> os.stat_result:
        """Refuse everything but a file of the root's own: links, pipes, devices, a second name of a file elsewhere."""
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise self.refused(f"{path!a} is not a plain file", "kind")
        return found

    def _size(self, name: str, folder: int, path: str) -> int | None:
        """The size of a file, `None` when there is none."""
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return self._check(found, path).st_size

    # -- reading

    def read(self, path: str) -> bytes:
        """A file's bytes.

        Raises:
            FileRefused: There is none, it is not a plain file, or too large.
        """
        *folders, name = self._file_parts(path)
        with self._naming(path), self._folder(tuple(folders)) as folder:
            if self._size(name, folder, path) is None:
                raise FileNotFoundError
            opened = os.open(name, os.O_RDONLY | _FILE, dir_fd=folder)
            with os.fdopen(opened, "rb") as file:
                # It may be another one than a moment ago.
                self._check(os.fstat(file.fileno()), path)
                data = file.read(self.limits.file_bytes + 1)
        if len(data) > self.limits.file_bytes:
            raise self.refused(f"{path!a} is larger than {self.limits.file_bytes} bytes", "size")
        return data

    def walk(self, path: str = "") -> dict[str, int]:
        """The plain files below a folder and their sizes, by path, up to the limit of files.

        Raises:
            FileRefused: There is no such folder.
        """
        found: dict[str, int] = {}
        parts = self.parts(path)
        looked = 0
        try:
            with self._naming(path), self._folder(parts) as folder:
                for name, size in self._below(folder, "/".join(parts), self.limits.depth - len(parts)):
                    looked += 1
                    if looked > self.limits.entries or len(found) >= self.limits.files:
                        break
                    if size is not None:
                        found[name] = size
        except FileRefused as error:
            # A root that was never written to need not be there.
            if parts or error.reason != "missing":
                raise
        return dict(sorted(found.items()))

    def _below(self, folder: int, prefix: str, depth: int) -> Iterator[tuple[str, int | None]]:
        # Read out before anything is opened, so that no more than one folder of a level is open.
        with os.scandir(folder) as entries:
            names = [(entry.name, about) for entry in entries if (about := _about(entry)) is not None]
        for name, about in sorted(names, key=lambda each: each[0]):
            path = f"{prefix}/{name}" if prefix else name
            if not name.isprintable():
                # No path that is allowed names it, and a line break would make two of one line.
                yield path, None
            elif stat.S_ISDIR(about.st_mode) and depth > 0:
                yield path, None
                yield from self._inside(name, folder, path, depth - 1)
            elif stat.S_ISREG(about.st_mode) and about.st_nlink == 1 and not name.startswith(_TEMPORARY):
                yield path, about.st_size
            else:
                yield path, None

    def _inside(self, name: str, folder: int, path: str, depth: int) -> Iterator[tuple[str, int | None]]:
        try:
            opened = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:
            # Gone, exchanged for a link, or closed to us: then it is not listed.
            return
        try:
            yield from self._below(opened, path, depth)
        finally:
            os.close(opened)

    # -- writing

    def write(self, path: str, data: bytes) -> None:
        """Put a file there, in place of another one as a whole.

        Raises:
            FileRefused: The path, its size or the number of files is not allowed.
        """
        with _writing:
            self._put(path, data)

    def change(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Put a file there that is made of the one there, with no other change between.

        Raises:
            FileRefused: There is none, or its new size is not allowed.
        """
        with _writing:
            self._put(path, change(self.read(path)))

    def _put(self, path: str, data: bytes) -> None:
        *folders, name = self._file_parts(path)
        with self._naming(path):
            self._check_room(path, len(data), append=False)
            with self._folder(tuple(folders), make=True) as folder:
                self._size(name, folder, path)
                self._replace(name, folder, data)

    def rename(self, path: str, new_path: str) -> None:
        """Give a file or a folder another path, where nothing is yet.

        Raises:
            FileRefused: There is none, it is neither, or the other path is taken or not allowed.
        """
        *folders, name = self._file_parts(path)
        *new_folders, new_name = self._file_parts(new_path)
        with _writing, self._naming(path), self._folder(tuple(folders)) as folder:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                self._check(found, path)
            else:
                for below in self.walk(path):
                    # None of its files may be deeper than a path reaches.
                    self.parts("/".join((*new_folders, new_name, *self.parts(below)[len(folders) + 1 :])))
            with self._folder(tuple(new_folders), make=True) as new_folder:
                if _is_there(new_name, new_folder):
                    raise self.refused(f"{new_path!a} is there already", "kind", "delete it, or take another name")
                os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)

    def _replace(self, name: str, folder: int, data: bytes) -> None:
        temporary = f"{_TEMPORARY}{sha256(name.encode()).hexdigest()[:16]}-{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
        try:
            opened = os.open(temporary, flags, 0o666, dir_fd=folder)
        except FileExistsError:
            # Left by a process that was killed: no other task of this one writes now.
            os.unlink(temporary, dir_fd=folder)
            opened = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            with os.fdopen(opened, "wb") as file:
                file.write(data)
            # A link that was put there is replaced, and not followed.
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise

    def append(self, path: str, data: bytes) -> None:
        """Put bytes behind a file's, or make it.

        Raises:
            FileRefused: The path, its size or the number of files is not allowed.
        """
        *folders, name = self._file_parts(path)
        with _writing, self._naming(path):
            self._check_room(path, len(data), append=True)
            with self._folder(tuple(folders), make=True) as folder:
                self._size(name, folder, path)
                opened = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FILE, 0o666, dir_fd=folder)
                with os.fdopen(opened, "ab") as file:
                    self._check(os.fstat(file.fileno()), path)
                    file.write(data)

    def _check_room(self, path: str, size: int, *, append: bool) -> None:
        limits, there = self.limits, self.walk()
        before = there.get("/".join(self.parts(path)))
        whole = size + (before or 0 if append else 0)
        if whole > limits.file_bytes:
            raise self.refused(f"{path!a} would be larger than {limits.file_bytes} bytes", "size")
        if before is None and len(there) >= limits.files:
            raise self.refused(f"there are {limits.files} files already", "count", "delete one")
        if sum(there.values()) - (before or 0) + whole > limits.total_bytes:
            raise self.refused(f"all files would be larger than {limits.total_bytes} bytes", "size", "delete one")

    def delete(self, path: str) -> None:
        """Take a file away, or an empty folder.

        Raises:
            FileRefused: There is none, or it is neither.
        """
        *folders, name = self._file_parts(path)
        with _writing, self._naming(path), self._folder(tuple(folders)) as folder:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                self._check(found, path)
                os.unlink(name, dir_fd=folder)


def _about(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        # It is gone by now.
        return None


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        # Its type is checked when it is opened.
        return


R = TypeVar("R")

_HEAD = "Files (size in bytes):"
_MORE = "... and more; ask for a folder's list"
_MOST_LINE = 200


class Filesystem(MemoryLayer[None]):
    """Text files below a root, which the model lists, reads, writes and searches, and code too.

        class Mem(Memory):
            files: Filesystem = Filesystem(root="workspace")

        await ctx.memory.files.write("notes/plan.md", "1. Read.")

    Paths are relative to the root, with `/` between their parts. No path leads out of it: not with `..`, not with an
    absolute path, and not over a link, also one that is made meanwhile; links, pipes, devices and files with a second
    name are neither read nor listed. Other access raises `FileRefused`, whose message the model reads. Files
    are not part of the journal; every run sees them as they are on disk, so a run that goes on after a crash
    may append once more what the call in flight had appended.

    Attributes:
        root: The folder; made with the first write when it is not there.
        read_only: Whether nothing may be written, changed, renamed or deleted.
        max_bytes: Bytes of one file.
        max_total: Bytes of all files.
        max_files: How many files there may be, and are listed.
        max_read: Characters that one `read` gives.
        max_found: Lines that one `search` gives.
        depth: Parts that a path may have.

    Raises:
        ConfigError: There is no root (code `"filesystem-root"`), another setting is wrong (`"filesystem-settings"`), or
            the system cannot do it (`"filesystem-platform"`).
    """

    root: str | Path = ""
    read_only: bool = False
    max_bytes: int = 1_000_000
    max_total: int = 50_000_000
    max_files: int = 1_000
    max_read: int = 20_000
    max_found: int = 50
    depth: int = 16

    def __attrs_post_init__(self) -> None:
        root = os.fspath(self.root)
        if not root.strip() or "\0" in root:
            raise wrong(self, f"root={root!r} is not valid; expected a folder", "filesystem-root", 'root="workspace"')
        at_least(
            self,
            "filesystem-settings",
            1,
            max_bytes=self.max_bytes,
            max_total=self.max_total,
            max_files=self.max_files,
            max_read=self.max_read,
            max_found=self.max_found,
            depth=self.depth,
        )
        if not is_supported():
            raise wrong(
                self, "this system cannot open files relative to a folder", "filesystem-platform", "Linux, macOS"
            )
        # A later change of the working directory does not move the root.
        self.__dict__["root"] = Path(root).absolute()

    @property
    def _sandbox(self) -> Sandbox:
        limits = Limits(self.max_bytes, self.max_total, self.max_files, self.depth)
        return Sandbox(Path(self.root), self.id or type(self).__name__, limits)

    @function
    async def list(self, path: str = "") -> dict[str, int]:
        """List the files below a folder, with their sizes in bytes.

        Args:
            path: The folder, relative to the root; the root when left out.
        """
        return await _in_thread(lambda: self._sandbox.walk(path))

    @function
    async def read(self, path: str, start: int = 0) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the root.
            start: How many of its characters to leave out at the start, to read on in a long one.
        """
        text = await _in_thread(lambda: self._text(path))
        shown = text[max(0, start) : max(0, start) + self.max_read]
        left = len(text) - max(0, start) - len(shown)
        return f"{shown}\n[{left} more characters from start={len(text) - left}]" if left > 0 else shown

    @function
    async def write(self, path: str, content: str) -> str:
        """Write a text file; one that is there is replaced as a whole.

        Args:
            path: The file, relative to the root; folders are made.
            content: The whole text.
        """
        data = self._data(content)
        await _in_thread(lambda: self._sandbox.write(path, data))
        return f"wrote {len(data)} bytes"

    @function
    async def append(self, path: str, content: str) -> str:
        """Put text at the end of a file, or make it.

        Args:
            path: The file, relative to the root; folders are made.
            content: The text to add.
        """
        data = self._data(content)
        await _in_thread(lambda: self._sandbox.append(path, data))
        return f"appended {len(data)} bytes"

    @function
    async def str_replace(self, path: str, old: str, new: str = "") -> str:
        """Replace a text in a file that occurs there exactly once.

        Args:
            path: The file, relative to the root.
            old: The text as it stands there, with enough around it to occur once.
            new: What comes in its place; nothing when left out.
        """
        self._data(new)

        def replaced(text: str) -> str:
            count = text.count(old) if old else 0
            if count != 1:
                raise self._sandbox.refused(
                    f"the text to replace occurs {count} times in {path!a}; expected once",
                    "text",
                    "take in more of what is around it" if count else "read the file, and copy the text from it",
                )
            return text.replace(old, new)

        await _in_thread(lambda: self._changed(path, replaced))
        return "replaced"

    @function
    async def insert(self, path: str, line: int, text: str) -> str:
        """Put lines into a file.

        Args:
            path: The file, relative to the root.
            line: The number of the line behind which they stand; 0 for the beginning of the file.
            text: The lines.
        """
        self._data(text)

        def inserted(content: str) -> str:
            lines = content.splitlines(keepends=True)
            if not 0 <= line <= len(lines):
                raise self._sandbox.refused(
                    f"line {line} is not in {path!a}; expected 0 to {len(lines)}", "text", "read the file"
                )
            before, after = "".join(lines[:line]), "".join(lines[line:])
            ended = before if not before or before.endswith("\n") else f"{before}\n"
            return f"{ended}{text}" + ("" if text.endswith("\n") else "\n") + after

        await _in_thread(lambda: self._changed(path, inserted))
        return "inserted"

    @function
    async def rename(self, path: str, new_path: str) -> str:
        """Give a file or a folder another path, where nothing is yet.

        Args:
            path: The file or the folder, relative to the root.
            new_path: Its new path, relative to the root; folders are made.
        """
        self._data("")
        await _in_thread(lambda: self._sandbox.rename(path, new_path))
        return "renamed"

    @function
    async def delete(self, path: str) -> str:
        """Delete a file or an empty folder.

        Args:
            path: The file, relative to the root.
        """
        self._data("")
        await _in_thread(lambda: self._sandbox.delete(path))
        return "deleted"

    @function
    async def search(self, text: str, path: str = "") -> Sequence[str]:
        """Find a text in files, whatever its case; gives lines as `path:number: line`.

        Args:
            text: What to look for, as it stands.
            path: The folder to look in; the root when left out.
        """
        if not text:
            raise self._sandbox.refused("the text to search for is empty", "text")
        return await _in_thread(lambda: self._found(text.casefold(), path))

    async def recall(self, query: str, budget: int) -> str:
        """The list of files, as far as the budget allows."""
        found = await _in_thread(lambda: self._sandbox.walk())
        if not found:
            return ""
        lines, left = [_HEAD], budget - COUNTER.count_text(f"{_HEAD}\n{_MORE}\n").value
        for path, size in found.items():
            line = f"{path} {size}"
            left -= COUNTER.count_text(line + "\n").value
            if left < 0:
                lines.append(_MORE)
                break
            lines.append(line)
        return "\n".join(lines) if len(lines) > 2 or left >= 0 else ""

    def _data(self, content: str) -> bytes:
        if self.read_only:
            raise self._sandbox.refused("these files can only be read", "read-only")
        try:
            return content.encode()
        except UnicodeEncodeError:
            raise self._sandbox.refused("the content holds half a character, which no file can", "text") from None

    def _text(self, path: str) -> str:
        return self._decoded(path, self._sandbox.read(path))

    def _decoded(self, path: str, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._sandbox.refused(f"{path!a} is not text", "text") from None

    def _changed(self, path: str, change: Callable[[str], str]) -> None:
        self._sandbox.change(path, lambda data: change(self._decoded(path, data)).encode())

    def _found(self, text: str, path: str) -> Sequence[str]:
        found: tuple[str, ...] = ()
        for name in self._sandbox.walk(path):
            try:
                lines = self._text(name).splitlines()
            except FileRefused:
                # Too large, no text, or gone by now.
                continue
            hits = [(number, line) for number, line in enumerate(lines, 1) if text in line.casefold()]
            found += tuple(f"{name}:{number}: {clipped(line.strip(), _MOST_LINE)}" for number, line in hits)
            if len(found) >= self.max_found:
                break
        return found[: self.max_found]


async def _in_thread(work: Callable[[], R]) -> R:
    return await to_thread.run_sync(work)
