"""`select_entries`: a model chooses from descriptions, and the caller gets what is behind them."""

from __future__ import annotations

from typing import Any, TypeVar

from noetic_py.context import Context, current_context
from noetic_py.errors import ConfigError, ModelRetry
from noetic_py.memory.layers.context_item import ContextItem
from noetic_py.memory.layers.context_pool import CatalogueView
from noetic_py.models.base import Model, ModelSettings
from noetic_py.steps.model import call_model
from noetic_py.steps.spawn import spawn
from noetic_py.steps.step import is_whole

__all__ = ["select_entries"]

T = TypeVar("T")

_ASKED = """Choose the entries whose content is needed to answer the query, the most useful first.
Answer with their ids only, as they stand in the brackets{most}. No entry is an answer too.

Query:
{query}

Entries:
{catalogue}"""


async def select_entries(
    model: str | Model | None,
    pool: CatalogueView[T],
    query: str,
    *,
    limit: int | None = None,
    output_retries: int = 1,
    ctx: Context[Any, Any] | None = None,
) -> tuple[ContextItem[T], ...]:
    """Show a model what a pool's entries are about, and return those that it chooses for a query.

    It runs as a step below the one it is called in, in a conversation of its own: it counts against the run's budget,
    leaves nothing in the conversation, and a resumed run does not ask again. A pool that is empty, or out of which
    nothing may be chosen, asks nobody.

    Args:
        model: The model, its name, or `None` for the harness's.
        pool: The entries.
        query: What they are wanted for.
        limit: How many to return at most; any number when left out.
        output_retries: How often the model is asked again when it names an entry that there is not.
        ctx: The context of the step, when it is not the one that is running here.

    Returns:
        The entries in the model's order, each once.

    Raises:
        ConfigError: `limit` is no whole number, 0 or more; code `"select-entries"`.
        NoContextError: It was called outside a step.
        ModelParseError: The model went on naming entries that there are not.
        ModelError: It failed.
    """
    if limit is not None and not is_whole(limit, 0):
        raise ConfigError(f"limit={limit!r} is not 0 or more", code="select-entries", hint="limit=3")
    catalogue = pool.catalogue()
    if not catalogue or limit == 0:
        return ()

    def known(ids: list[str]) -> list[str]:
        chosen = list(dict.fromkeys(ids))
        unknown = [each for each in chosen if each not in pool]
        if unknown:
            raise ModelRetry(f"there is no entry {', '.join(map(repr, unknown))}; choose from the list only")
        return chosen[:limit]

    ask = call_model(
        model,
        output=list[str],
        validate=known,
        output_retries=output_retries,
        settings=ModelSettings(tool_choice="none"),
        id="choose",
    )
    most = "" if limit is None else f", {limit} at most"
    prompt = _ASKED.format(most=most, query=query, catalogue=catalogue)
    running = current_context(required=True) if ctx is None else ctx
    chosen = await spawn(ask, id="select_entries")(prompt, running)
    return tuple(pool.get(each) for each in chosen)
