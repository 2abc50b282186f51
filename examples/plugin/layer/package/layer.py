"""`Notes`: a memory layer whose state is a dict: runs of one user that write side by side are joined by key."""

from noetic_py.memory import MemoryLayer, Scope, function


class Notes(MemoryLayer[dict[str, str]]):
    """Short notes by name. The model writes them, and sees them in every request.

    Attributes:
        limit: How many notes are kept; the oldest one goes first.
        scope: Whose notes they are. With `Scope.USER` they are kept for each user, across runs.
    """

    limit: int = 50
    scope: Scope = Scope.USER

    @function
    async def write(self, name: str, text: str) -> str:
        """Write a note, in place of an earlier one of that name.

        Args:
            name: The name of the note.
            text: The text, in a sentence or two.
        """
        notes = {key: value for key, value in self.state.items() if key != name}
        kept = [*notes.items()][-(self.limit - 1) :] if self.limit > 1 else []
        self.state = {**dict(kept), name: text}
        return f"{name}: {text}"

    async def recall(self, query: str, budget: int) -> str | None:
        """The notes that the model sees; the library leaves out what has no room."""
        return "\n".join(f"{name}: {text}" for name, text in self.state.items()) or None
