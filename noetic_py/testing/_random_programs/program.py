"""A random program: a value from which a flow is built."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from noetic_py.context.step import Step
from noetic_py.core.budget import Budget
from noetic_py.testing._random_programs.building import Builder
from noetic_py.testing._random_programs.description import Node
from noetic_py.testing._random_programs.observations import Observations
from noetic_py.testing._random_programs.states import Kind, new_state, state_type


@frozen
class RandomProgram:
    """A program of steps in random nesting; a value, whose text shows all of it.

    ```python
    program, seen = random_program(7), Observations()
    result = await harness.run(
        program.flow(seen),
        program.input,
        state=program.new_state(),
        budget=program.budget,
        on_error="result",
    )
    assert_expected_outcome(program, seen, result)
    ```

    Attributes:
        seed: Which one it is.
        root: What its steps are, and what their bodies do.
        state: What kind of state it has: a bag, a dictionary, or an object.
        model_calls: How often it may call a model; as often as it likes when `None`.
        input: What the flow is given.
    """

    seed: int
    root: Node
    state: Kind
    model_calls: int | None
    input: int

    def flow(self, seen: Observations) -> Step[int, Any, Any, Any]:
        """Build the flow, with a scripted model of its own; each process that carries the run builds another.

        Args:
            seen: Where its bodies note what they see.
        """
        return Builder(seen).build(self.root)

    def new_state(self) -> Any:
        """The state a run of it begins with."""
        return new_state(self.state)

    @property
    def state_type(self) -> type[object]:
        """The state's class, which `resume` has to be told."""
        return state_type(self.state)

    @property
    def budget(self) -> Budget:
        """The budget of a run of it."""
        return Budget(model_calls=self.model_calls)
