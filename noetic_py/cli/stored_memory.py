"""`noetic memory`: what the memory layers of a file's harness keep for a user or a thread, and erasing a user."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import typer
from attrs import asdict, frozen

from noetic_py.cli.database import existing, opened
from noetic_py.cli.formatting import plural, printable
from noetic_py.cli.loading import load_flow, make_harness
from noetic_py.cli.output_capture import captured_output
from noetic_py.cli.report import USAGE, say, write_out
from noetic_py.cli.running import database_of
from noetic_py.core.control import SessionKey
from noetic_py.core.values import is_dict, is_list
from noetic_py.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from noetic_py.harness import Harness
    from noetic_py.sessions.export import LayerData

_SHORT = 200


@frozen
class MemoryRequest:
    """Whose memory a command line asks for.

    Attributes:
        target: The file with the harness, and a step in it.
        user: The user.
        thread: The thread.
        session: The name of the session, of that user.
        db: The database.
    """

    target: str
    user: str | None
    thread: str | None
    session: str | None
    db: str | None

    @property
    def thread_id(self) -> str | None:
        """The thread, or the session's.

        Raises:
            ConfigError: Both are named; code `"memory-owner"`.
            InvalidId: The session cannot have that name.
        """
        if self.session is None:
            return self.thread
        if self.thread is not None:
            raise ConfigError(
                "a session is a thread of its own", code="memory-owner", hint="give --thread or --session, not both"
            )
        return SessionKey(self.user, self.session).stream


async def show(wanted: MemoryRequest) -> int:
    """Print what is kept, for people."""
    found = await _read(wanted)
    for name, data in found.items():
        version = "" if data.state is None else f"  version {data.state.version}"
        write_out(printable(f"{name}{version}"))
        if data.state is not None:
            write_out("\n".join(_lines(data.state.value, "  ")))
        if data.values:
            write_out(f"  {plural(len(data.values), 'value')} beside the state")
    if not found:
        say("nothing is kept")
    return 0


async def export(wanted: MemoryRequest) -> int:
    """Print all that is kept as JSON."""
    from noetic_py.sessions.export import layer_tree

    found = await _read(wanted)
    layers = {name: layer_tree(data) for name, data in found.items()}
    document = {"user": wanted.user, "session": wanted.session, "thread": wanted.thread, "layers": layers}
    write_out(json.dumps(document, indent=2, ensure_ascii=False))
    return 0


@frozen
class EraseRequest:
    """Whom a command line asks to erase.

    Attributes:
        target: The file with the harness, and a step in it.
        user: The user.
        threads: Threads of the user that no run names any more.
        db: The database.
    """

    target: str
    user: str
    threads: Sequence[str]
    db: str | None


async def erase(wanted: EraseRequest, *, sure: bool, as_json: bool) -> int:
    """Erase a user, and print the certificate."""
    if not sure and not _agreed(wanted.user):
        say("nothing was erased")
        return USAGE
    async with _harness(wanted.target, wanted.db) as harness:
        found = await harness.erase(wanted.user, thread_ids=wanted.threads)
    if as_json:
        fields = asdict(found) | {"erased_at": found.erased_at.isoformat(), "removed": dict(found.removed)}
        write_out(json.dumps(fields, indent=2, ensure_ascii=False))
        return 0
    counts = ", ".join(f"{count} {kind}" for kind, count in found.removed.items())
    write_out(printable(f"erased {found.user_id}: {counts or 'nothing was there'}"))
    write_out("not erased by this:")
    write_out("\n".join(printable(f"  - {each}") for each in found.remaining))
    return 0


def _agreed(user: str) -> bool:
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(
            f"all of user {user!r} would be erased; there is no terminal to confirm it",
            code="memory-owner",
            hint="add --yes",
        )
    return typer.confirm(f"Erase all that is stored about user {printable(user)!r} for good?", err=True)


# A line is printed for each of so many parts of the owners.
_STRETCHES = 20


async def reindex(target: str, db: str | None) -> int:
    """Give all passages of a file's harness vectors of its embedder, and print how far it has come."""
    owners = changed = said = 0
    async with _harness(target, db) as harness, aclosing(harness.reindex()) as owned:
        async for each in owned:
            owners, changed = each.total, changed + each.changed
            if each.done * _STRETCHES // each.total > said:
                said = each.done * _STRETCHES // each.total
                say(f"{each.done} of {plural(each.total, 'owner')}, {plural(changed, 'passage')} with a new vector")
    write_out(f"{plural(changed, 'passage')} of {plural(owners, 'owner')} with a new vector")
    return 0


async def _read(wanted: MemoryRequest) -> Mapping[str, LayerData]:
    if wanted.user is None and wanted.thread is None:
        raise ConfigError("no owner is named", code="memory-owner", hint="--user ID, --thread ID, or both")
    async with _harness(wanted.target, wanted.db) as harness:
        return await harness.dump_memory(user_id=wanted.user, thread_id=wanted.thread_id)


@asynccontextmanager
async def _harness(target: str, db: str | None) -> AsyncGenerator[Harness[Any]]:
    with captured_output():
        file = load_flow(target)
    place = database_of(file, db)
    async with AsyncExitStack() as stack:
        backend = None if place is None else await stack.enter_async_context(opened(existing(place)))
        yield await stack.enter_async_context(await make_harness(file, None, backend))


def _lines(tree: object, indent: str) -> Iterator[str]:
    """A stored value for people: fields and entries on lines of their own, without the marks of classes."""
    if is_dict(tree) and set(tree) == {"$", "v"}:
        # A value that JSON has no form for, such as a time.
        tree = tree["v"]
    if is_dict(tree):
        entries = [(printable(str(key)), value) for key, value in tree.items() if key != "$"]
    elif is_list(tree):
        entries = [("-", value) for value in tree]
    else:
        yield f"{indent}{_text(tree)}"
        return
    for name, value in entries:
        inner = list(_lines(value, indent + "  "))
        if len(inner) == 1 and not _holds(value):
            yield f"{indent}{name}{'' if name == '-' else ':'} {inner[0].strip()}".rstrip()
        elif inner:
            yield f"{indent}{name}{'' if name == '-' else ':'}"
            yield from inner


def _holds(value: object) -> bool:
    return is_list(value) or (is_dict(value) and set(value) != {"$", "v"})


def _text(value: object) -> str:
    text = printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}\u2026"
