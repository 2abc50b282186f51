"""Loads a file: its flow, its harness, its state, and how its result is shown."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from attrs import frozen

from noetic_py.cli.output_capture import captured_output
from noetic_py.context.step import AnyStep, Step, require_step
from noetic_py.core.budget import Budget
from noetic_py.core.control import AnyResult
from noetic_py.core.memory import Memory
from noetic_py.errors import ConfigError, NoeticError
from noetic_py.harness import Harness

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.trial import Evidence, StoredRound
    from noetic_py.trial.evidence import EvidenceOf

# The parameter of a file's harness function by which it takes the database.
_CHECKPOINTS = "checkpoints"
# Names that are looked for when the command line names no step.
_USUAL = ("flow", "main")


@frozen(eq=False)
class FlowFile:
    """A file that was loaded, and the step in it that was asked for.

    Attributes:
        path: The file.
        name: The variable that holds the step.
        step: The step.
        state: Makes the state of a run, `None` when the file has none.
        show: Prints a result for people, `None` when the file leaves that to us.
        budget: The budget of a run, `None` when the file has none.
        harness: What the file calls `harness`, `None` when it has none.
    """

    path: Path
    name: str
    step: AnyStep
    state: Callable[[], object] | None
    show: Callable[[AnyResult], object] | None
    budget: Budget | None
    harness: object

    @property
    def title(self) -> str:
        """The file and the variable, as a user writes them."""
        return f"{self.path.name}:{self.name}"

    @property
    def source(self) -> str:
        """The file and the variable, as they are found again from the current folder; below it the path is relative."""
        path, here = self.path.resolve(), Path.cwd().resolve()
        found = path.relative_to(here).as_posix() if path.is_relative_to(here) else str(path)
        return f"{found}:{self.name}"


def load_flow(target: str, *, for_harness: bool = False) -> FlowFile:
    """Load `FILE[:STEP]`.

    Args:
        target: What the command line names.
        for_harness: Whether the flows of the file's harness count, if it has one, and so any step will do.

    Raises:
        ConfigError: There is no such file, it cannot be loaded, or it holds no such step.
        NoeticError: The file itself raised one while it was loaded.
    """
    path, wanted = _split(target)
    names = vars(_load(path))
    name = _choose(path, names, wanted, any_step=for_harness and names.get("harness") is not None)
    budget = names.get("budget")
    if budget is not None and not isinstance(budget, Budget):
        raise ConfigError(f"budget in {path} is {budget!r}", code="flow-file", hint="budget = Budget(cost='0.50')")
    return FlowFile(
        path=path,
        name=name,
        step=require_step(names[name], f"{path}:{name}"),
        state=_function(path, names, "state", "state = State, or a function that makes one"),
        show=_function(path, names, "show", "def show(result): ..."),
        budget=budget,
        harness=names.get("harness"),
    )


def load_memory(target: str) -> Memory:
    """Load the memory bundle `FILE:NAME`: an instance of a `Memory` class, or the class itself.

    Raises:
        ConfigError: There is no such file, it cannot be loaded, or it holds no such bundle.
        NoeticError: The file itself raised one while it was loaded.
    """
    path, wanted = _split(target)
    names = vars(_load(path))
    bundles = [name for name, each in names.items() if _is_bundle(each) and each is not Memory]
    hint = "one of " + ", ".join(f"{path}:{name}" for name in bundles) if bundles else "class Mem(Memory): ..."
    if wanted is None:
        if len(bundles) != 1:
            which = "more than one memory bundle" if bundles else "no memory bundle"
            raise ConfigError(f"{path} defines {which}", code="flow-file", hint=hint)
        wanted = bundles[0]
    if wanted not in names:
        raise ConfigError(f"{path} has no {wanted!r}", code="flow-file", hint=hint)
    found = names[wanted]
    if not _is_bundle(found):
        raise ConfigError(
            f"{wanted} in {path} is {found!r:.100}, which is not a valid bundle; expected a Memory",
            code="flow-file",
            hint=hint,
        )
    return found() if isinstance(found, type) else found


def load_evidence(target: str) -> EvidenceOf:
    """Load `FILE[:FUNCTION]`, which tells what requests have to show; without a name the function `evidence`.

    Raises:
        ConfigError: There is no such file, it cannot be loaded, or it holds no such function. The function raises it
            for what goes wrong in it, with the place and the request.
        NoeticError: The file itself raised one while it was loaded.
    """
    path, wanted = _split(target)
    name = wanted or "evidence"
    example = "def evidence(asked: StoredRound) -> Evidence | None: ..."
    found = _function(path, vars(_load(path)), name, example)
    if found is None:
        raise ConfigError(f"{path} has no {name!r}", code="flow-file", hint=example)

    def evidence(asked: StoredRound) -> Evidence | None:
        try:
            with captured_output():
                told: Evidence | None = found(asked)
                return told
        except NoeticError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{name} in {path} failed for request {asked.index} of run {asked.run_id}: "
                f"{type(error).__name__}: {error}",
                code="trial",
                hint=f"look at {place_of(error, path) or path}, or run again with --traceback",
            ) from error

    return evidence


def _is_bundle(value: object) -> TypeGuard[Memory | type[Memory]]:
    return isinstance(value, Memory) or (isinstance(value, type) and issubclass(value, Memory))


def _split(target: str) -> tuple[Path, str | None]:
    """A file name may hold colons itself, so the whole is tried first."""
    if os.path.isfile(target):  # noqa: PTH113 # a Path raises for a name that is too long
        return Path(target), None
    name, colon, step = target.rpartition(":")
    path, wanted = (Path(name), step) if colon else (Path(target), None)
    if os.path.isdir(path):  # noqa: PTH112 # likewise
        raise ConfigError(f"{path} is a folder", code="flow-file", hint="name a Python file in it: FILE[:STEP]")
    if not os.path.isfile(path):  # noqa: PTH113 # likewise
        raise ConfigError(f"there is no file {path}", code="flow-file", hint="noetic run FILE[:STEP] [INPUT]")
    if wanted == "":
        raise ConfigError(f"no step behind the colon of {target!r}", code="flow-file", hint=f"{path}, or {path}:flow")
    return path, wanted


def _load(path: Path) -> ModuleType:
    folder = str(path.resolve().parent)
    if folder not in sys.path[:1]:
        sys.path.insert(0, folder)
    # A file named like a module that is loaded already, json.py say, must not take that module's place.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"noetic_file_{path.stem}"
    spec = spec_from_file_location(name, path.resolve(), loader=SourceFileLoader(name, str(path.resolve())))
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded", code="flow-file", hint="name a Python file")
    module = module_from_spec(spec)
    # Annotations, and classes that look for their module, need it there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except NoeticError:
        raise
    except SyntaxError as error:
        raise ConfigError(
            f"{path} is not valid Python: {error}", code="flow-file", hint="correct the line that it names"
        ) from error
    except SystemExit as error:
        raise ConfigError(
            f"{path} ended the program while it was loaded",
            code="flow-file",
            hint='put what runs the flow below `if __name__ == "__main__":`',
        ) from error
    except Exception as error:
        where = place_of(error, path) or str(path)
        raise ConfigError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}",
            code="flow-file",
            hint=f"look at {where}, or run again with --traceback",
        ) from error
    return module


def place_of(error: BaseException, path: Path) -> str | None:
    """Where in the file's folder an exception was raised, as `file:line`; `None` when it was elsewhere."""
    folder = path.resolve().parent
    for each in reversed(traceback.extract_tb(error.__traceback__)):
        found = Path(each.filename)
        if found.is_relative_to(folder) and "site-packages" not in found.parts:
            return f"{found.relative_to(folder)}:{each.lineno}"
    return None


def _choose(path: Path, names: Mapping[str, object], wanted: str | None, *, any_step: bool) -> str:
    """The variable that holds the step."""
    steps = {name: value for name, value in names.items() if _is_step(value)}
    if wanted is not None:
        if wanted not in names:
            raise ConfigError(f"{path} has no {wanted!r}", code="flow-file", hint=_available(path, steps))
        return wanted
    for name in _USUAL:
        if name in steps:
            return name
    public = {name: value for name, value in steps.items() if not name.startswith("_")} or steps
    if len({id(value) for value in public.values()}) == 1 or (any_step and public):
        return next(iter(public))
    what = "defines no step" if not steps else "defines more than one step, and none is called flow or main"
    raise ConfigError(f"{path} {what}", code="flow-file", hint=_available(path, steps))


def _is_step(value: object) -> TypeGuard[AnyStep]:
    return isinstance(value, Step)


def _is_harness(value: object) -> TypeGuard[Harness[Any]]:
    return isinstance(value, Harness)


def _available(path: Path, steps: Mapping[str, object]) -> str:
    if not steps:
        return "put @step on an async function, or build one with call_model, loop and the like"
    return "one of " + ", ".join(f"{path}:{name}" for name in steps)


def _function(path: Path, names: Mapping[str, object], name: str, example: str) -> Callable[..., Any] | None:
    found = names.get(name)
    if found is None:
        return None
    if not callable(found) or isinstance(found, Step):
        raise ConfigError(
            f"{found!r}, which {name} in {path} is, is not a valid {name}; expected a function",
            code="flow-file",
            hint=example,
        )
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{name} in {path} is async", code="flow-file", hint=example)
    return found


def takes_checkpoints(file: FlowFile) -> bool:
    """Whether the file leaves it to us where its runs are kept."""
    if file.harness is None:
        return True
    return callable(file.harness) and not _is_harness(file.harness) and _CHECKPOINTS in _parameters(file.harness)


async def make_harness(file: FlowFile, model: str | None, checkpoints: CheckpointBackend | None = None) -> Harness[Any]:
    """The file's harness, or one of ours.

    Args:
        file: The file.
        model: The model that the command line asks for.
        checkpoints: What keeps its runs, if the file leaves that to us.

    Raises:
        ConfigError: `harness` in the file gives none, or takes no model and one was asked for.
    """
    given = file.harness
    if given is None:
        return Harness(model=model, checkpoints=checkpoints, flows={file.name: file.step})
    make: Callable[..., Any] | None = given if callable(given) and not _is_harness(given) else None
    if make is not None and takes_checkpoints(file):
        make = partial(make, **{_CHECKPOINTS: checkpoints})
    takes_model = make is not None and _takes_argument(make)
    if model is not None and not takes_model:
        raise ConfigError(
            f"--model has no effect: {file.path} has a harness of its own",
            code="flow-file",
            hint="let it take the model: def harness(model: str | None) -> Harness",
        )
    made = given
    if make is not None:
        made = make(model) if takes_model else make()
        if inspect.isawaitable(made):
            made = await made
    if not _is_harness(made):
        raise ConfigError(
            f"harness in {file.path} gives {made!r}, which is not a valid harness; expected a Harness",
            code="flow-file",
            hint="harness = Harness(...), or def harness(model: str | None) -> Harness",
        )
    return made


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def _takes_argument(function: Callable[..., Any]) -> bool:
    parameters = _parameters(function).values()
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
