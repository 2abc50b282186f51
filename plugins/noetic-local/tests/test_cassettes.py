"""A cassette of the local model: recorded on one event loop, it gives the same journal on both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import anyio
import pytest
from noetic_local import LocalModel, LocalServer
from pydantic import BaseModel

from noetic_py import Harness, InMemoryBackend, call_model, loop, step, tool, until
from noetic_py.models import Model, allow_real_models
from noetic_py.testing import Cassette, CassetteMismatch, VirtualRuntime

Journal: TypeAlias = Sequence[tuple[str, tuple[str, ...], bytes]]
"""The records as they are stored: kind, path and payload."""
RULES = "\n".join(f"Rule {number}: be brief." for number in range(40))


class Ticket(BaseModel):
    label: Literal["bug", "feature", "question"]


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


@step
async def ask(ticket: Ticket) -> str:
    return f"What is 2 plus 3? It is for a {ticket.label}."


def flow(instructions: str = RULES) -> Any:
    sort = call_model(instructions=instructions, output=Ticket)
    adds = call_model(tools=(add,), settings={"tool_choice": "add", "max_output_tokens": 60})
    return sort >> ask >> loop(adds, until=until.max_rounds(2), id="adds")


DRAWN = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def numbered(records: Journal) -> Journal:
    """The records with the ids that were drawn numbered in the order in which they come."""
    ids: dict[bytes, bytes] = {}

    def number(found: re.Match[bytes]) -> bytes:
        return ids.setdefault(found[0], b"id-%d" % len(ids))

    return [(kind, path, DRAWN.sub(number, payload)) for kind, path, payload in records]


async def journal(cassette: Cassette, model: Model | str, work: Any) -> Journal:
    """Run the flow with a clock that stands still: what the journal has, as it is stored."""
    # Ids of another seed than those of the recorded items, which are in the cassette.
    backend = InMemoryBackend()
    options: dict[str, Any] = {"checkpoints": backend, "runtime": VirtualRuntime(1 + cassette.records), "plugins": ()}
    async with Harness(model=cassette.model(model), **options) as harness:
        # The last round is one of calls, which is no output.
        result = await harness.run(work, "The app crashes when I save.", run_id="tickets", on_error="result")
        if isinstance(result.error, CassetteMismatch):
            raise result.error
    return [(record.kind, record.path, record.payload) for record in await backend.read("tickets")]


def test_a_cassette_gives_the_same_journal_byte_for_byte_on_both_event_loops(
    server: LocalServer, tmp_path: Path
) -> None:
    path = tmp_path / "tickets.json"

    async def recorded() -> Journal:
        with allow_real_models(), Cassette(path, record=True) as cassette:
            return await journal(cassette, LocalModel(server=server), flow())

    async def replayed() -> Journal:
        with Cassette(path) as cassette:
            return await journal(cassette, "local:smollm2", flow())

    first = anyio.run(recorded, backend="asyncio")
    again = anyio.run(replayed, backend="asyncio")
    assert anyio.run(replayed, backend="trio") == again
    # Only ids that a run draws itself are others.
    assert numbered(again) == numbered(first)

    async def changed() -> object:
        with Cassette(path) as cassette:
            return await journal(cassette, "local:smollm2", flow(RULES.replace("Rule 20: be", "Rule 20: do not be")))

    with pytest.raises(CassetteMismatch) as caught:
        anyio.run(changed, backend="trio")
    _, *lines = caught.value.message.splitlines()
    assert len(lines) <= 10
    assert {"-Rule 20: be brief.", "+Rule 20: do not be brief."} <= set(lines)
