"""What can be wrong with a run that was kept: each has a name, says what to do, and nothing is lost."""

from __future__ import annotations

import logging
import subprocess
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from attrs import define

from noetic_py import Ask, Context, Harness, InMemoryBackend, Memory, StateBag, errors, loop, sequence, step
from noetic_py.checkpoints import Record, SqliteBackend
from noetic_py.until import Verdict
from tests.warm import forked

pytestmark = pytest.mark.anyio

Ctx = Context[Memory, StateBag]
Work: TypeAlias = Callable[[], Awaitable[object]]


@step(version="1")
async def first(value: str, ctx: Ctx) -> str:
    """One step."""
    return value + "1"


@step(version="1")
async def second(value: str, ctx: Ctx) -> str:
    """Another one."""
    return value + "2"


flow = sequence(first, second, id="flow")


def harness(backend: Any) -> Any:
    return Harness(plugins=[], checkpoints=backend)


async def test_an_unknown_run_is_named_by_everything_that_takes_an_id() -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        works: list[Work] = [
            lambda: it.resume("nobody", flow),
            lambda: it.plan_resume("nobody", flow),
            lambda: it.fork("nobody"),
            lambda: it.fork("nobody", at=1),
            lambda: it.fork("nobody", at=1, state=StateBag()),
            lambda: it.runs.get("nobody"),
            lambda: it.runs.journal("nobody"),
        ]
        for work in works:
            with pytest.raises(errors.RunNotFound):
                await work()
        with pytest.raises(errors.RunNotFound):
            async with it.resume_stream("nobody", flow):
                pass
        await it.runs.delete("nobody")
    assert list(await backend.list()) == []


async def test_a_kind_of_step_of_a_newer_version(tmp_path: Path) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend, harness(backend) as it:
        await it.run(flow, "x", run_id="r")
        head = await backend.head("r")
        assert head is not None
        odd = Record("StepFinished", ("flow", "more"), b'{"k":"delay","o":"x"}')
        await backend.append("r", expected_position=head.position, fence=head.fence, records=[odd])
        with pytest.raises(errors.CodecError, match="'delay' is not a valid kind of step; expected ") as caught:
            await it.resume("r", flow)
        assert "a newer one" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Record("StepDreamt", (), b"{}"), r"record 8 of run r: a record of kind 'StepDreamt', which this version"),
        (Record("StepFinished", ("flow",), b'{"k":"code","o":{"$":"quantum"}}'), None),
        (Record("StepFinished", ("flow",), b"[]"), r"record 8 of run r: .*is not a valid form of a StepFinished"),
        (Record("RunEnded", (), b'["completed"]'), r"record 8 of run r: reason: a RunEnded without its reason"),
    ],
    ids=["kind", "value", "form", "short"],
)
async def test_a_record_of_a_newer_version(tmp_path: Path, record: Record, said: str | None) -> None:
    async with SqliteBackend(tmp_path / "runs.db") as backend, harness(backend) as it:
        await it.run(flow, "x", run_id="r")
        head = await backend.head("r")
        assert head is not None
        await backend.append("r", expected_position=head.position, fence=head.fence, records=[record])
        if said is None:
            # Only whoever asks for the value has to know what it is.
            assert len(await it.runs.journal("r")) == head.position + 1
            return
        said = said.replace("record 8", f"record {head.position + 1}")
        works: list[Work] = [lambda: it.resume("r", flow), lambda: it.runs.journal("r")]
        for work in works:
            with pytest.raises(errors.CodecError, match=said):
                await work()
        # It is all still there for a version that knows it, and nobody holds it.
        assert len(await backend.read("r")) == head.position + 1
        assert (await it.runs.get("r")).alive is False


WITHOUT_PLUGIN = """
    import sys

    import anyio

    from noetic_py import Context, Extension, Harness, Message, errors, extension_item, sequence, step

    if sys.argv[1] == "with":

        @extension_item("acme:note")
        class Note(Extension):
            text: str


    @step(version="1")
    async def write(value: str, ctx: Context) -> str:
        ctx.items.append(Note(text="kept"))
        return value


    @step(version="1")
    async def answer(value: str, ctx: Context) -> str:
        if sys.argv[1] == "with" and len(sys.argv) == 3:
            raise ValueError("no")
        ctx.items.append(Message.assistant("done"))
        return value


    async def main() -> None:
        flow = sequence(write, answer, id="flow")
        async with Harness(plugins=[], checkpoints=f"sqlite:{sys.argv[2]}") as harness:
            if len(sys.argv) > 3 or sys.argv[1] == "without":
                result = await harness.resume("r", flow)
            else:
                result = await harness.run(flow, "x", run_id="r", on_error="result")
            print(result.status, [(type(item).__name__, item.type) for item in result.items])


    anyio.run(main)
"""


def test_a_run_whose_plugin_is_absent_goes_on_and_keeps_its_items(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(WITHOUT_PLUGIN), encoding="utf-8")

    def process(*arguments: str) -> tuple[str, str]:
        given = [arguments[0], str(tmp_path / "runs.db"), *arguments[1:]]
        command = [*forked("tests.warm_program"), str(program), *given]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    note, opaque, message = ("Note", "acme:note"), ("Opaque", "acme:note"), ("Message", "message")
    assert process("with") == (f"failed {[note]}", "")
    printed, said = process("without")
    assert printed == f"completed {[opaque, message]}"
    assert "run r holds items of acme:note, which no plugin here has registered: they are kept as they are" in said
    # With the plugin back, they are what they were.
    assert process("with", "again") == (f"completed {[note, message]}", "")


async def test_nothing_is_said_when_every_type_is_known(caplog: pytest.LogCaptureFixture) -> None:
    async with harness(InMemoryBackend()) as it:
        with caplog.at_level(logging.WARNING):
            await it.run(flow, "x", run_id="r")
            await it.resume("r", flow)
    assert caplog.records == []


async def test_a_state_whose_type_has_changed_without_a_migration() -> None:
    @define
    class Notes:
        count: int = 0

    @step(version="1")
    async def count(value: str, ctx: Context[Memory, Any]) -> str:
        ctx.state.count += 1
        return value

    @define
    class Newer:
        count: str

    Newer.__name__ = Newer.__qualname__ = "Notes"
    async with harness(InMemoryBackend()) as it:
        await it.run(count, "x", run_id="r", state=Notes())
        with pytest.raises(
            errors.CodecError, match="the stored state is not a valid Notes: count: is a str, not int"
        ) as caught:
            await it.resume("r", count, state_type=Newer)
        assert "give it a schema_version and migrate(stored, version)" in (caught.value.hint or "")
        assert (await it.resume("r", count, state_type=Notes)).state == Notes(1)


async def test_two_harnesses_on_one_file(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    begun, go = anyio.Event(), anyio.Event()

    @step(version="1")
    async def slow(value: str, ctx: Ctx) -> str:
        begun.set()
        await go.wait()
        return value + "!"

    async with harness(url) as one, harness(url) as other:
        handle = one.start(slow, "x", run_id="r")
        await begun.wait()
        works: list[Work] = [lambda: other.resume("r", slow), lambda: other.run(slow, "y", run_id="r")]
        for work in works:
            with pytest.raises(errors.RunBusy):
                await work()
        with pytest.raises(errors.RunBusy):
            await other.runs.delete("r")
        assert (await other.runs.get("r")).alive
        # Runs of their own go on beside it.
        assert (await other.run(flow, "z")).value == "z12"
        go.set()
        assert (await handle.result()).value == "x!"
        assert (await other.resume("r", slow)).value == "x!"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://localhost/runs", "checkpoints"),
        ("sqlite", "checkpoints"),
        ("", "checkpoints"),
    ],
)
async def test_an_address_that_nothing_serves(url: str, code: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        harness(url)
    assert caught.value.code == code
    assert caught.value.hint


# ------------------------------------------------------------------------------------------------------ what is no text


@step
async def asks(value: str, ctx: Ctx) -> str:
    return await ctx.ask(Ask("Which?", str))


@step
async def stops(value: str, ctx: Ctx) -> str:
    odd: Any = ValueError("the boat leaves")
    ctx.abort(odd)
    return value


def judges(**told: Any) -> Any:
    def judge(_: object) -> Verdict:
        return Verdict(True, **told)

    condition: Any = judge
    return loop(first, until=condition)


@step
async def untyped(value: Any, ctx: Ctx) -> Any:
    return await ctx.ask(Ask("Which?", str))


ODD: list[Any] = [5, b"x", ["x"], ValueError("x")]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
async def test_what_is_no_text_is_refused_before_it_is_stored(odd: Any) -> None:
    backend = InMemoryBackend()
    async with harness(backend) as it:
        (request,) = (await it.run(asks, "x", run_id="waits")).pending
        handle = it.start(asks, "x", run_id="goes-on")
        works: list[Callable[[Any], object]] = [
            handle.abort,
            handle.interrupt,
            handle.wrap_up,
            request.reject,
            lambda x: request.answer("a", by=x),
        ]
        for work in works:
            with pytest.raises((errors.ConfigError, errors.AnswerInvalid), match="expected text"):
                work(odd)
        with pytest.raises(errors.ConfigError, match="expected text"):
            await it.runs.wrap_up("waits", odd)
        await handle.result()
        for name, told in (("reason", {"reason": odd}), ("feedback", {"feedback": odd})):
            await it.run(judges(**told), "x", run_id=name, on_error="result")
        await it.run(stops, "x", run_id="stops", on_error="result")
        # Every run can still be read, and gone on with.
        for name, flow in (("waits", asks), ("goes-on", asks), ("stops", stops), ("reason", judges(reason=odd))):
            assert await it.runs.journal(name)
            await it.resume(name, flow, on_error="result")


async def test_a_value_that_a_run_is_completed_with_is_the_one_of_that_moment() -> None:
    async with harness(InMemoryBackend()) as it:
        given = {"ports": ["Brest"]}
        waiting = it.start(untyped, "x", run_id="u")
        assert waiting.complete(given)
        given["ports"].append("Atlantis")
        assert (await waiting.result()).value == (await it.resume("u", untyped)).value == {"ports": ["Brest"]}
