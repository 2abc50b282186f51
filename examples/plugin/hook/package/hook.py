"""`count_answers`: a hook that is called after each answer of a model."""

from typing import Any

from noetic_py import HookContext, ModelResponse, hooks


@hooks.after_model
async def count_answers(ctx: HookContext[Any, Any], response: ModelResponse) -> None:
    """Count the answers in `state["answers"]`; the effect is stored, and not done twice when a run is resumed."""
    ctx.effects.state["answers"] = ctx.state.get("answers", 0) + 1
