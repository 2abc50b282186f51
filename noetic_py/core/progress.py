"""How far the steps of a run have come: `ctx.progress`, which outlives the process that they run in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from attrs import frozen

from noetic_py.core.types import T
from noetic_py.core.values import is_array
from noetic_py.errors import ConfigError, NoContextError, StateTypeError

if TYPE_CHECKING:
    from noetic_py.core.items import JsonValue

Path = tuple[str, ...]


@frozen
class ProgressEntry:
    """How far one step has come.

    Attributes:
        value: What was left, JSON; `None` also where only `done` says something.
        done: Whether the step is done, of which there is then no value any more.
    """

    value: JsonValue = None
    done: bool = False


DONE: Final = ProgressEntry(done=True)


class ProgressStore(Protocol):
    """Where the progress of a run's steps is kept."""

    @property
    def entries(self) -> Mapping[Path, ProgressEntry]:
        """All of it, by the steps' paths; live, and not to be written."""
        ...

    def put(self, path: Path, entry: ProgressEntry | None) -> None:
        """Set the progress of a step; `None` clears it."""
        ...

    def reset_below(self, path: Path) -> None:
        """Forget everything strictly below a step."""
        ...


class ReadProgress:
    """How far a step has come, to be read; get it as `ctx.progress` where a context can only be read."""

    __slots__ = ("_path", "_store")

    def __init__(self, store: ProgressStore, path: Path) -> None:
        self._store = store
        self._path = path

    def __repr__(self) -> str:
        entry = self.entries.get(self._path)
        text = "nothing" if entry is None else "done" if entry.done else repr(entry.value)
        return f"{type(self).__name__}({'/'.join(self._path)}: {text})"

    @property
    def path(self) -> Path:
        """The step that it is the progress of."""
        return self._path

    @property
    def value(self) -> JsonValue:
        """A copy of the last reported value; `None` without one."""
        entry = self.entries.get(self._path)
        return None if entry is None else entry.value

    def get_as(self, type: type[T]) -> T | None:
        """The value as a type: `page = ctx.progress.get_as(int) or 0`; `None` when nothing is there.

        Raises:
            StateTypeError: The value is of another type.
        """
        value = self.value
        if value is None:
            return None
        if not isinstance(value, type):
            raise StateTypeError(f"the progress is {value.__class__.__name__}, not {type.__name__}", path=self._path)
        return value

    @property
    def done(self) -> bool:
        """Whether the step was said to be done."""
        entry = self.entries.get(self._path)
        return entry is not None and entry.done

    @property
    def entries(self) -> Mapping[Path, ProgressEntry]:
        """The progress of all steps of the run that have left some, by path: a live view."""
        return self._store.entries

    def at(self, path: Path) -> ReadProgress:
        """The progress of another step of the run, by its path.

        Raises:
            ConfigError: That is not a path; code `"progress-path"`.
        """
        return ReadProgress(self._store, _checked(path))


class Progress(ReadProgress):
    """How far a step has come, for the process that resumes the run; get it as `ctx.progress`.

    ```python
    @step
    async def copy(pages: int, ctx: Context) -> int:
        for page in range(ctx.progress.get_as(int) or 0, pages):
            await copy_page(page)
            ctx.progress.set(page + 1)
            await ctx.checkpoint()
        return pages
    ```

    One map, by the paths of steps, is shared by all steps and tools of a run: what one has set, the others see at once.
    It is not part of the state: it is neither copied for a parallel path nor taken back when a body does not finish.

    In a run that is kept, what was set goes into the journal with the next commit of any step. A step that was
    in flight when the process died, or that the run was stopped in, begins again and finds it. A retry forgets what is
    left of the step and of all below it, a lost race that of its losers. A fork has what there was at its position.
    """

    __slots__ = ()

    def set(self, value: JsonValue) -> None:
        """Set the progress value; the step is not done.

        An empty value is a value. What is stored is a copy of the value as it is now: set one again that was changed in
        place.

        Raises:
            CodecError: The value is not JSON.
            LimitExceeded: The run is kept and the value is longer than 1 MiB as JSON; it is nested too deep; or too
                many steps of the run have left something.
            NoContextError: The context belongs to no run.
            ConfigError: The run is over; code `"not-running"`.
        """
        self._store.put(self._path, ProgressEntry(value))

    def finish(self) -> None:
        """Mark the step as done, which removes the value; a loop around the step continues.

        Raises:
            LimitExceeded: As for `set`, and so are the others.
            NoContextError: The context belongs to no run.
            ConfigError: The run is over; code `"not-running"`.
        """
        self._store.put(self._path, DONE)

    def clear(self) -> None:
        """Forget what is left of the step, so that it may run from scratch; nothing happens when nothing is there.

        Raises:
            NoContextError: The context belongs to no run.
            ConfigError: The run is over; code `"not-running"`.
        """
        self._store.put(self._path, None)

    def reset_children(self) -> None:
        """Forget what is left of everything below the step, at any depth, and not of the step itself.

        Nothing happens when nothing is there. A loop does so for each round when the next one begins.

        Raises:
            NoContextError: The context belongs to no run.
            ConfigError: The run is over; code `"not-running"`.
        """
        self._store.reset_below(self._path)

    def at(self, path: Path) -> Progress:
        """The progress of another step of the run, by its path: `ctx.progress.at(ctx.path[:-1])` is the step's around.

        Raises:
            ConfigError: That is not a path; code `"progress-path"`.
        """
        return Progress(self._store, _checked(path))


def _checked(path: object) -> Path:
    if not is_array(path) or not all(isinstance(frame, str) for frame in path):
        raise ConfigError(
            f"{path!r:.200} is not a valid path of a step; expected a tuple of frames",
            code="progress-path",
            hint='a tuple of frames, ("flow", "work#1")',
        )
    return tuple(path)


class _NoRun:
    """The store of a context that belongs to no run: there is nothing, and no place to store anything."""

    entries: Mapping[Path, ProgressEntry] = MappingProxyType({})

    def put(self, path: Path, entry: ProgressEntry | None) -> None:
        self._refuse()

    def reset_below(self, path: Path) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NoContextError("progress needs a run", hint="report it in a step; harness.run(step, input, ctx=ctx)")


NO_RUN: Final[ProgressStore] = _NoRun()
