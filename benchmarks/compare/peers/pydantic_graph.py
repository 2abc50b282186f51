"""pydantic-graph: a node that returns itself, a mapped edge for branches.

Instrumentation is off; without logfire it would do nothing anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic_graph import BaseNode, End, Graph, GraphBuilder, GraphRunContext, StepContext, reduce_list_append

Run = Callable[[], Awaitable[int]]


@dataclass
class Same(BaseNode[None, None, int]):
    """A step that leads back to itself until it was run so often."""

    steps: int
    seconds: float | None = None
    count: int = 0

    async def run(self, ctx: GraphRunContext[None, None]) -> Same | End[int]:
        if self.seconds is not None:
            await asyncio.sleep(self.seconds)
        count = self.count + 1
        return Same(self.steps, self.seconds, count) if count < self.steps else End(count)


def loop() -> Graph[None, None, Same, int]:
    builder = GraphBuilder(input_type=Same, output_type=int, auto_instrument=False)
    builder.add(builder.node(Same), builder.edge_from(builder.start_node).to(Same))
    return builder.build()


def w1(steps: int) -> Run:
    graph = loop()

    async def run() -> int:
        return await graph.run(inputs=Same(steps))

    return run


def w2(branches: int) -> Run:
    builder = GraphBuilder(input_type=list[int], output_type=list[int], auto_instrument=False)

    @builder.step
    async def same(ctx: StepContext[None, None, int]) -> int:
        return ctx.inputs

    joined = builder.join(reduce_list_append, initial_factory=list[int])
    builder.add(
        builder.edge_from(builder.start_node).map().to(same),
        builder.edge_from(same).to(joined),
        builder.edge_from(joined).to(builder.end_node),
    )
    graph = builder.build()

    async def run() -> int:
        return len(await graph.run(inputs=[1] * branches))

    return run


def w7(runs: int, steps: int, seconds: float) -> Run:
    graph = loop()

    async def run() -> int:
        return sum(await asyncio.gather(*[graph.run(inputs=Same(steps, seconds)) for _ in range(runs)]))

    return run
