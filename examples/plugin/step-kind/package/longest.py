"""`longest`: a step of the kind that the plugin registers."""

from collections.abc import Sequence

from attrs import frozen
from noetic_py import Context, Step
from noetic_py.steps.kind import StepKind


@frozen(eq=False)
class Longest(StepKind[str, str]):
    """The kind. Its fields are what a step is made of, and are compared when a run is resumed."""

    kind = "@PREFIX@.longest"
    steps: tuple[Step[str, str], ...]

    def children(self) -> Sequence[tuple[str, Step[str, str]]]:
        """The steps, for drawings."""
        return [(str(number), each) for number, each in enumerate(self.steps, 1)]

    async def run(self, value: str, ctx: Context, /) -> str:
        """Run the steps; what has finished is not repeated when the run is resumed."""
        return max([await each(value, ctx) for each in self.steps], key=len)


def longest(*steps: Step[str, str]) -> Step[str, str]:
    """A step that gives the longest of the texts that its steps give."""
    return Longest(steps).step()
