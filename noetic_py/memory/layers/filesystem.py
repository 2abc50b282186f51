"""`Filesystem`: the files below one folder, for code and for the model, and none elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from anyio import to_thread

from noetic_py.memory.functions import function
from noetic_py.memory.layer import MemoryLayer
from noetic_py.memory.layers.common import COUNTER, at_least, clipped, wrong
from noetic_py.memory.layers.rooted import FileRefused, Limits, Rooted, is_supported

__all__ = ["Filesystem"]

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
    name are neither read nor listed. What is not allowed raises `FileRefused`, which a model gets to read. Files are
    what they are on the disk, whichever run looks: they are no part of the journal, so a run that goes on after a crash
    may append once more what the call in flight had appended.

    Attributes:
        root: The folder; made with the first write when it is not there.
        read_only: Whether nothing may be written, appended or deleted.
        most_bytes: Bytes of one file.
        most_total: Bytes of all files.
        most_files: How many files there may be, and are listed.
        most_read: Characters that one `read` gives.
        most_found: Lines that one `search` gives.
        depth: Parts that a path may have.

    Raises:
        ConfigError: There is no root (code `"filesystem-root"`), another setting is wrong (`"filesystem-settings"`), or
            the system cannot do it (`"filesystem-platform"`).
    """

    root: str | Path = ""
    read_only: bool = False
    most_bytes: int = 1_000_000
    most_total: int = 50_000_000
    most_files: int = 1_000
    most_read: int = 20_000
    most_found: int = 50
    depth: int = 16

    def __attrs_post_init__(self) -> None:
        root = os.fspath(self.root)
        if not root.strip() or "\0" in root:
            raise wrong(self, f"root={root!r} is no folder", "filesystem-root", 'root="workspace"')
        at_least(
            self,
            "filesystem-settings",
            1,
            most_bytes=self.most_bytes,
            most_total=self.most_total,
            most_files=self.most_files,
            most_read=self.most_read,
            most_found=self.most_found,
            depth=self.depth,
        )
        if not is_supported():
            raise wrong(
                self, "this system cannot open files relative to a folder", "filesystem-platform", "Linux, macOS"
            )
        # Whoever changes the working directory later does not move the root.
        self.__dict__["root"] = Path(root).absolute()

    @property
    def _rooted(self) -> Rooted:
        limits = Limits(self.most_bytes, self.most_total, self.most_files, self.depth)
        return Rooted(Path(self.root), self.id or type(self).__name__, limits)

    @function
    async def list(self, path: str = "") -> dict[str, int]:
        """List the files below a folder, with their sizes in bytes.

        Args:
            path: The folder, relative to the root; the root when left out.
        """
        return await _in_thread(lambda: self._rooted.walk(path))

    @function
    async def read(self, path: str, start: int = 0) -> str:
        """Read a text file.

        Args:
            path: The file, relative to the root.
            start: How many of its characters to leave out at the start, to read on in a long one.
        """
        text = await _in_thread(lambda: self._text(path))
        shown = text[max(0, start) : max(0, start) + self.most_read]
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
        await _in_thread(lambda: self._rooted.write(path, data))
        return f"wrote {len(data)} bytes"

    @function
    async def append(self, path: str, content: str) -> str:
        """Put text at the end of a file, or make it.

        Args:
            path: The file, relative to the root; folders are made.
            content: The text to add.
        """
        data = self._data(content)
        await _in_thread(lambda: self._rooted.append(path, data))
        return f"appended {len(data)} bytes"

    @function
    async def delete(self, path: str) -> str:
        """Delete a file or an empty folder.

        Args:
            path: The file, relative to the root.
        """
        self._data("")
        await _in_thread(lambda: self._rooted.delete(path))
        return "deleted"

    @function
    async def search(self, text: str, path: str = "") -> Sequence[str]:
        """Find a text in files, whatever its case; gives lines as `path:number: line`.

        Args:
            text: What to look for, as it stands.
            path: The folder to look in; the root when left out.
        """
        if not text:
            raise self._rooted.refused("there is nothing to look for", "text")
        return await _in_thread(lambda: self._found(text.casefold(), path))

    async def recall(self, query: str, budget: int) -> str:
        """What files there are, as far as the budget has room for it."""
        found = await _in_thread(lambda: self._rooted.walk())
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
            raise self._rooted.refused("these files can only be read", "read-only")
        try:
            return content.encode()
        except UnicodeEncodeError:
            raise self._rooted.refused("the content holds half a character, which no file can", "text") from None

    def _text(self, path: str) -> str:
        rooted = self._rooted
        try:
            return rooted.read(path).decode()
        except UnicodeDecodeError:
            raise rooted.refused(f"{path!a} is no text", "text") from None

    def _found(self, text: str, path: str) -> Sequence[str]:
        found: tuple[str, ...] = ()
        for name in self._rooted.walk(path):
            try:
                lines = self._text(name).splitlines()
            except FileRefused:
                # Too large, no text, or gone by now.
                continue
            hits = [(number, line) for number, line in enumerate(lines, 1) if text in line.casefold()]
            found += tuple(f"{name}:{number}: {clipped(line.strip(), _MOST_LINE)}" for number, line in hits)
            if len(found) >= self.most_found:
                break
        return found[: self.most_found]


async def _in_thread(work: Callable[[], R]) -> R:
    return await to_thread.run_sync(work)
