"""`Filesystem`: files below one folder, and none elsewhere."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Context, FunctionCall, Harness, InMemoryBackend, Memory, call_model, loop, step, until
from noetic_py.core.items import FunctionCallOutput, Message
from noetic_py.errors import ConfigError
from noetic_py.memory import FileRefused, Filesystem
from noetic_py.memory.layers.common import COUNTER
from noetic_py.memory.layers.filesystem import is_supported
from noetic_py.testing import ScriptedModel

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not is_supported(), reason="this system cannot open files relative to a folder"),
]

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with neighbours that nobody may reach."""
    made = tmp_path / "root"
    made.mkdir()
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "root-too").mkdir()
    (tmp_path / "root-too" / "secret.txt").write_text(SECRET)
    return made


def outside(tmp_path: Path) -> dict[str, str]:
    """What there is beside the root, with its contents."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(tmp_path):
        if Path(folder) == tmp_path:
            folders.remove("root")
        for name in names:
            path = Path(folder) / name
            found[str(path.relative_to(tmp_path))] = path.read_text()
    return found


async def test_alone(root: Path) -> None:
    files = Filesystem(root=root)
    assert await files.list() == {}
    assert await files.write("notes/plan.md", "1. Read.\n") == "wrote 9 bytes"
    assert await files.append("notes/plan.md", "2. Write über all.\n") == "appended 20 bytes"
    assert await files.read("notes/plan.md") == "1. Read.\n2. Write über all.\n"
    assert await files.list() == {"notes/plan.md": 29}
    assert await files.list("notes") == {"notes/plan.md": 29}
    assert await files.search("WRITE") == ("notes/plan.md:2: 2. Write über all.",)
    assert await files.search("write", "notes") == ("notes/plan.md:2: 2. Write über all.",)
    assert await files.write("notes/plan.md", "anew") == "wrote 4 bytes"
    assert await files.recall("", 100) == "Files (size in bytes):\nnotes/plan.md 4"
    with pytest.raises(FileRefused) as caught:
        await files.delete("notes")
    assert caught.value.reason == "system"
    assert await files.delete("notes/plan.md") == "deleted"
    assert await files.delete("notes") == "deleted"
    assert await files.list() == {}
    assert os.listdir(root) == []  # noqa: PTH208


async def test_changes_inside_a_file(root: Path) -> None:
    files = Filesystem(root=root)
    await files.write("plan.md", "1. Read.\n2. Leave at noon.\n")
    assert await files.str_replace("plan.md", "at noon", "at ten") == "replaced"
    assert await files.insert("plan.md", 1, "Mark the rocks.") == "inserted"
    assert await files.insert("plan.md", 0, "# Plan\n") == "inserted"
    assert await files.insert("plan.md", 4, "3. Anchor.") == "inserted"
    whole = "# Plan\n1. Read.\nMark the rocks.\n2. Leave at ten.\n3. Anchor.\n"
    assert await files.read("plan.md") == whole
    for old, count in (("e", 3), ("west", 0), ("", 0)):
        with pytest.raises(FileRefused, match=rf"{count} times|occurs") as caught:
            await files.str_replace("plan.md", old, "x")
        assert caught.value.reason == "text"
    for line in (-1, 6):
        with pytest.raises(FileRefused, match="expected 0 to 5"):
            await files.insert("plan.md", line, "x")
    assert await files.read("plan.md") == whole
    assert await files.str_replace("plan.md", "# Plan\n") == "replaced"
    await files.write("open.txt", "no end of line")
    await files.insert("open.txt", 1, "more")
    assert await files.read("open.txt") == "no end of line\nmore\n"
    with pytest.raises(FileRefused, match=r"no 'other\.md'"):
        await files.insert("other.md", 0, "x")


async def test_a_change_keeps_the_limits(root: Path) -> None:
    files = Filesystem(root=root, max_bytes=20)
    await files.write("a", "0123456789\n")
    with pytest.raises(FileRefused, match="larger than 20 bytes"):
        await files.insert("a", 1, "0123456789")
    with pytest.raises(FileRefused, match="larger than 20 bytes"):
        await files.str_replace("a", "5", "0123456789abc")
    assert await files.read("a") == "0123456789\n"


async def test_rename(tmp_path: Path, root: Path) -> None:
    files = Filesystem(root=root, depth=3)
    await files.write("notes/plan.md", "plan")
    await files.write("old/a/b.md", "b")
    assert await files.rename("notes/plan.md", "done/plan.md") == "renamed"
    assert await files.rename("old", "kept") == "renamed"
    assert await files.list() == {"done/plan.md": 4, "kept/a/b.md": 1}
    before = outside(tmp_path)
    (root / "link").symlink_to(tmp_path / "secret.txt")
    for path, new_path, reason in [
        ("done/plan.md", "kept", "kind"),
        ("done/plan.md", "kept/a/b.md", "kind"),
        ("done/plan.md", "../plan.md", "name"),
        ("../secret.txt", "mine.txt", "name"),
        ("link", "mine.txt", "kind"),
        ("done/plan.md", "link/plan.md", "kind"),
        ("missing", "mine.txt", "missing"),
        ("kept", "done/kept", "name"),
        ("done", "done/in", "system"),
    ]:
        with pytest.raises(FileRefused) as caught:
            await files.rename(path, new_path)
        assert caught.value.reason == reason, (path, new_path)
    assert await files.list() == {"done/plan.md": 4, "kept/a/b.md": 1}
    assert outside(tmp_path) == before


async def test_a_root_that_is_not_there_is_made_when_it_is_needed(tmp_path: Path) -> None:
    files = Filesystem(root=tmp_path / "later" / "root")
    assert await files.list() == {}
    assert await files.recall("", 100) == ""
    assert not (tmp_path / "later").exists()
    await files.write("a.txt", "a")
    assert (tmp_path / "later" / "root" / "a.txt").read_text() == "a"


def hostile(root: Path) -> list[str]:
    """Two hundred paths that lead out of a folder, or would like to."""
    ups = [
        "../" * count + tail for count in range(1, 18) for tail in ("secret.txt", "root-too/secret.txt", "etc/passwd")
    ]
    inside = [f"a/{'../' * count}secret.txt" for count in range(1, 12)]
    dotted = [
        f"{dots}secret.txt" for dots in ("./../", ".//../", "a/./../../", "a/b/../../../", "..//", "../.", "./.././")
    ]
    absolute = [
        f"{'/' * count}{tail}"
        for count in range(1, 6)
        for tail in ("etc/passwd", "etc/hostname", str(root.parent / "secret.txt")[1:])
    ]
    devices = [f"/dev/{name}" for name in ("null", "zero", "random", "tty", "stdin", "fd/0", "mem", "full")]
    proc = [
        f"/proc/{name}"
        for name in ("self/environ", "self/root/etc/passwd", "1/root", "self/cwd/../secret.txt", "self/fd/0")
    ]
    windows = [f"{up}secret.txt" for up in ("..\\", "..\\..\\", "a\\..\\..\\", "C:\\", "\\\\host\\", "/..\\", "\\")]
    nul = [f"a{bad}../secret.txt" for bad in ("\0", "\n", "\r", "\t", "\x1b", "\x7f", "\u2028", "\u202e", "\u200b\0")]
    nul += ["secret.txt\0", "\0", "\0../secret.txt", "../secret.txt\0.md", "a.txt\0", "\udc80", "a\ud800/b"]
    home = ["~", "~/secret.txt", "~root/.ssh/id_rsa", "~+/x", "~-/x"]
    long = ["a" * 300, "a/" * 17 + "b", "x" * 2000, "../" * 400 + "etc/passwd", "é" * 200]
    empty = ["", ".", "./", "/", "//", "./.", "././", "/."]
    linked = [
        "link/secret.txt", "link", "link/", "link/.", "link/..", "link/../secret.txt", "file_link", "file_link/",
        "deep/link/secret.txt", "deep/link", "deep/up/secret.txt", "deep/up", "up", "up/secret.txt",
        "up/root-too/secret.txt",
        "slash/secret.txt", "slash", "slash/root-too", "self", "self/a", "loop", "loop/a", "dangling", "dangling/a",
        "hard.txt", "pipe", "pipe/a", "socket", "relative", "relative/secret.txt", "null", "zero",
    ]  # fmt: skip
    temporary = [".noetic-x", "a/.noetic-0123456789abcdef-1", ".noetic-/../../secret.txt"]
    mixed = [
        f"{name}/{'../' * count}secret.txt" for name in ("link", "up", "deep/up", "file_link") for count in range(1, 9)
    ]
    spaced = [f"{pad}../secret.txt" for pad in (" /", "a /", ". /../", "%2e%2e/../", "..%2f../", "…/../../")]
    return [
        *ups,
        *inside,
        *dotted,
        *absolute,
        *devices,
        *proc,
        *windows,
        *nul,
        *home,
        *long,
        *empty,
        *linked,
        *temporary,
        *mixed,
        *spaced,
    ]


def with_traps(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "root-too", target_is_directory=True)
    (root / "file_link").symlink_to(root.parent / "secret.txt")
    (root / "up").symlink_to("..", target_is_directory=True)
    (root / "slash").symlink_to(root.parent.absolute(), target_is_directory=True)
    (root / "self").symlink_to("self")
    (root / "loop").symlink_to("loop/loop")
    (root / "dangling").symlink_to(root.parent / "made.txt")
    (root / "relative").symlink_to("../root-too")
    (root / "null").symlink_to("/dev/null")
    (root / "zero").symlink_to("/dev/zero")
    (root / "deep").mkdir()
    (root / "deep" / "link").symlink_to(root.parent / "root-too")
    (root / "deep" / "up").symlink_to("../..")
    (root / "hard.txt").hardlink_to(root.parent / "secret.txt")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(root)
        try:
            made.bind("socket")
        finally:
            os.chdir(here)


async def test_two_hundred_hostile_paths_reach_nothing_outside(tmp_path: Path, root: Path) -> None:
    with_traps(root)
    before = outside(tmp_path)
    files = Filesystem(root=root)
    paths = hostile(root)
    assert len(set(paths)) >= 200
    for path in paths:
        with pytest.raises(FileRefused):
            await files.read(path)
        await files.write("mine", "mine")
        for attempt in (
            files.write(path, "bad"),
            files.append(path, "bad"),
            files.str_replace(path, "secret", "bad"),
            files.insert(path, 0, "bad"),
            files.rename("mine", path),
            files.rename(path, "yours"),
            files.delete(path),
        ):
            try:
                await attempt
            except FileRefused:
                continue
            # What is let through is a plain name below the root, such as one with a blank.
            assert (root / path).resolve().is_relative_to(root)
        for listing in (files.list(path), files.search("secret", path)):
            try:
                assert SECRET not in str(await listing)
            except FileRefused:
                continue
    assert outside(tmp_path) == before
    assert SECRET not in str(await files.search("secret"))
    assert "secret" not in str(await files.list())


async def test_a_link_that_is_made_meanwhile_leads_nowhere(tmp_path: Path, root: Path) -> None:
    files = Filesystem(root=root)
    before = outside(tmp_path)
    ended = threading.Event()

    def swap() -> None:
        # A folder that is one moment a folder and the next a link out of the root.
        while not ended.is_set():
            (root / "now").mkdir(exist_ok=True)
            for name in ("a", "secret.txt"):
                (root / "now" / name).unlink(missing_ok=True)
            try:
                (root / "now").rmdir()
                (root / "now").symlink_to(tmp_path / "root-too")
                (root / "now").unlink()
            except OSError:
                continue

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(150):
            for attempt in (
                files.read("now/secret.txt"),
                files.write("now/a", "bad"),
                files.append("now/secret.txt", "bad"),
                files.search("secret"),
            ):
                try:
                    assert SECRET not in str(await attempt)
                except FileRefused:
                    continue
    finally:
        ended.set()
        swapping.join()
    assert outside(tmp_path) == before


async def test_limits(root: Path) -> None:
    files = Filesystem(root=root, max_bytes=10, max_total=25, max_files=3, max_read=4, max_found=1)
    await files.write("a", "0123456789")
    assert await files.read("a") == "0123\n[6 more characters from start=4]"
    assert await files.read("a", start=8) == "89"
    assert await files.read("a", start=100) == ""
    for attempt in (files.write("b", "0123456789x"), files.append("a", "x")):
        with pytest.raises(FileRefused, match="larger than 10 bytes") as caught:
            await attempt
        assert caught.value.reason == "size"
    await files.write("b", "0123456789")
    with pytest.raises(FileRefused, match="larger than 25 bytes"):
        await files.write("c", "012345")
    await files.write("c", "a\na")
    assert await files.search("a") == ("c:1: a",)
    with pytest.raises(FileRefused, match="3 files") as caught:
        await files.write("d", "")
    assert caught.value.reason == "count"
    await files.write("c", "again")
    (root / "large").write_bytes(b"x" * 11)
    with pytest.raises(FileRefused, match="larger"):
        await files.read("large")


@pytest.mark.parametrize(
    ("path", "reason"),
    [("none", "missing"), ("none/none", "missing"), ("d", "kind"), ("f/x", "kind"), ("raw", "text"), ("", "kind")],
)
async def test_what_cannot_be_read(root: Path, path: str, reason: str) -> None:
    (root / "d").mkdir()
    (root / "f").write_text("f")
    (root / "raw").write_bytes(b"\xff\xfe")
    files = Filesystem(root=root, id="files")
    with pytest.raises(FileRefused) as caught:
        await files.read(path)
    assert (caught.value.reason, caught.value.layer) == (reason, "files")
    with pytest.raises(FileRefused):
        await files.search("")
    with pytest.raises(FileRefused):
        await files.write("half", "\ud800")


async def test_read_only(root: Path) -> None:
    (root / "a").write_text("a")
    files = Filesystem(root=root, read_only=True)
    for attempt in (
        files.write("a", "b"),
        files.append("a", "b"),
        files.str_replace("a", "a", "b"),
        files.insert("a", 0, "b"),
        files.rename("a", "b"),
        files.delete("a"),
    ):
        with pytest.raises(FileRefused) as caught:
            await attempt
        assert caught.value.reason == "read-only"
    assert await files.read("a") == "a"


async def test_recall_stays_below_its_budget(root: Path) -> None:
    files = Filesystem(root=root)
    for number in range(40):
        await files.write(f"folder/name{number:02}.txt", "x")
    (root / "bad\nname").write_text("x")
    whole = await files.recall("", 10_000)
    assert whole.count("\n") == 40
    for budget in (0, 10, 30, 60, 100, 300):
        text = await files.recall("", budget)
        assert COUNTER.count_text(text).value <= budget
    assert (await files.recall("", 100)).endswith("ask for a folder's list")


async def test_in_a_run(root: Path) -> None:
    class Mem(Memory):
        files: Filesystem = Filesystem(root=root)

    @step
    async def plan(text: str, ctx: Context[Mem]) -> str:
        await ctx.memory.files.write("plan.md", "1. Read.")
        return text

    def written(path: str) -> FunctionCall:
        return FunctionCall(name="files__write", arguments={"path": path, "content": "2. Write."})

    model = ScriptedModel([written("next.md"), written("../out.md")], "done")
    flow: Any = plan >> loop(call_model(model), until=until.no_tool_calls())
    async with Harness(memory=Mem(), checkpoints=InMemoryBackend()) as harness:
        result = await harness.run(flow, "go")
    assert result.value == "done"
    outputs = [item.text for item in model.requests[1].items if isinstance(item, FunctionCallOutput)]
    assert outputs[0] == "wrote 9 bytes"
    assert "leads out of the root" in outputs[1]
    recalled = [item.text for item in model.requests[0].items if isinstance(item, Message) and "plan.md 8" in item.text]
    assert len(recalled) == 1
    assert (root / "next.md").read_text() == "2. Write."
    assert not (root.parent / "out.md").exists()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "root"),
        ({"root": " "}, "root"),
        ({"root": "a\0"}, "root"),
        ({"root": "a", "max_bytes": 0}, "settings"),
        ({"root": "a", "depth": True}, "settings"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Filesystem(**settings)
    assert caught.value.code == f"filesystem-{code}"
