"""The command line with runs that a server keeps."""

from __future__ import annotations

import json
import time

from tests.cli_shell import Inside

__all__ = ["fails_and_is_gone_on_with", "says_that_nobody_is_there"]

FRAGILE = """
@step
async def first(text: str) -> str:
    with open("bodies", "a") as file:
        file.write("first ")
    return text.upper()

@step
async def second(text: str) -> str:
    return text + Path("more").read_text()

flow = first >> second
"""


def fails_and_is_gone_on_with(inside: Inside, url: str, secret: str, *, by: str) -> None:
    """A run that fails is listed, gone on with and shown.

    Args:
        inside: Where commands are run.
        url: The server.
        secret: What stands in it and is not to be said.
        by: Whether an `"option"` or a `"variable"` names the server.
    """
    options = ["--db", url] if by == "option" else []
    said = url if by == "variable" else ""
    inside.write(FRAGILE)
    done = inside.run("run", "flow.py:flow", "tide ", "--run-id", "monday", *options, NOETIC_DB=said)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"noetic resume monday{' --db ...' if options else ''}" in done.stderr.splitlines()[-1]
    assert secret not in done.stderr
    listed = inside.run("runs", "--json", *options, NOETIC_DB=said)
    assert [(each["run_id"], each["status"]) for each in json.loads(listed.stdout)] == [("monday", "failed")]
    (inside.folder / "more").write_text("turns")
    done = inside.run("resume", "monday", *options, NOETIC_DB=said)
    assert (done.returncode, done.stdout) == (0, "TIDE turns\n")
    assert (inside.folder / "bodies").read_text() == "first "
    shown = inside.run("show", "last", *options, NOETIC_DB=said)
    assert "first" in shown.stdout
    assert [path.name for path in inside.folder.rglob("*.db")] == []


def says_that_nobody_is_there(inside: Inside, url: str, secret: str) -> None:
    """Every command says in time that there is no server.

    Args:
        inside: Where commands are run.
        url: Where nobody listens.
        secret: What stands in it and is not to be said.
    """
    inside.write(FRAGILE)
    for arguments in (("run", "flow.py:flow", "x"), ("runs",), ("resume", "x")):
        begun = time.monotonic()
        done = inside.run(*arguments, NOETIC_DB=url)
        assert time.monotonic() - begun < 15
        assert (done.returncode > 0, done.stdout) == (True, "")
        assert "the server could not be reached" in done.stderr
        assert secret not in done.stderr
        assert "Traceback" not in done.stderr
