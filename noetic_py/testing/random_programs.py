"""Programs of steps in random nesting, and an oracle that foretells what comes out of them.

A program has sequences, loops, branches, sections, races, spawns, retries, failures, stops, model calls with tools, and
bodies that work on state and conversation. What has to come out is found by plain recursion, without a journal, a
scheduler or an event loop. So a run in a backend, or one that was killed and resumed, can be compared with what is
right, and not only with another run:

```python
from noetic_py import Harness
from noetic_py.testing import Observations, assert_expected_outcome, random_program


async def test_random_programs() -> None:
    for seed in range(100):
        program, seen = random_program(seed), Observations()
        async with Harness(plugins=()) as harness:
            result = await harness.run(
                program.flow(seen),
                program.input,
                state=program.new_state(),
                budget=program.budget,
                on_error="result",
            )
        assert_expected_outcome(program, seen, result)
```
"""

from __future__ import annotations

from noetic_py.testing._random_programs.generation import random_program
from noetic_py.testing._random_programs.observations import Observations
from noetic_py.testing._random_programs.oracle import expected_outcome
from noetic_py.testing._random_programs.outcome import assert_expected_outcome
from noetic_py.testing._random_programs.program import RandomProgram
from noetic_py.testing._random_programs.scope import AmbiguousOutcome, ExpectedOutcome

__all__ = [
    "AmbiguousOutcome",
    "ExpectedOutcome",
    "Observations",
    "RandomProgram",
    "assert_expected_outcome",
    "expected_outcome",
    "random_program",
]
