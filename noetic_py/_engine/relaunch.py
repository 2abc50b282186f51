"""Work beside the flow that was in flight when its process died, and whose starter had finished: it goes on.

The starter does not run again, so what it has started is read from the journal, and the step is looked for among those
that the flow declares and that its functions name.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from noetic_py._engine.detached import Detached
from noetic_py._engine.fingerprint import fingerprint
from noetic_py._engine.fold import Node
from noetic_py._engine.frame import Frame
from noetic_py._engine.launched import LAUNCHED
from noetic_py._engine.limits import budget_of
from noetic_py._engine.references import referenced
from noetic_py._engine.revision import stored_type, version_of
from noetic_py._engine.state import DOORS
from noetic_py._engine.types import declared_input
from noetic_py.codec.text import parse
from noetic_py.detached import DetachOptions
from noetic_py.errors import CodecError, ConfigError, NoeticWarning
from noetic_py.state import StateBag
from noetic_py.steps.step import Step

if TYPE_CHECKING:
    from noetic_py.codec import Codec

__all__ = ["relaunch"]

AnyStep = Step[Any, Any, Any, Any]

_MOST = 64 * 1024 * 1024


def relaunch(parent: Frame, step: AnyStep, node: Node) -> None:
    """Let the work go on that the steps of a finished child had started, and that was in flight.

    Args:
        parent: Who has called the child; the work belongs to it from now on.
        step: The child.
        node: What the journal says of it.
    """
    run = parent.x.run
    if run.relaunched is None:
        return
    for starter, work in _left_alone(node, within=False):
        if work.path in run.relaunched:
            continue
        run.relaunched.add(work.path)
        launched = _read(parent, step, work)
        if launched is None or run.resources.group is None:
            warnings.warn(
                f"{'/'.join(work.path)} had not ended, and the step that had started it has: it does not go on",
                NoeticWarning,
                stacklevel=2,
            )
            continue
        frame = Frame(step, parent, parent.x, starter.path, parent.domain, parent.lease, parent.domain.log.size)
        frame.node = starter
        frame.occurrences = {f"{launched.step.id}[detached]": launched.count}
        options = DetachOptions(None, launched.state, launched.budget, "run")
        run.resources.group.start_soon(Detached(frame, launched.step, launched.value, options).carry)


def _left_alone(node: Node, *, within: bool) -> Iterator[tuple[Node, Node]]:
    """Work that was in flight when its starter was done already, each with the starter.

    `within` says whether a step around has finished: below that, what has not was cancelled.
    """
    done = node.finished is not None
    if within and not done:
        return
    for child in node.lasting:
        if done and child.kind == "detached" and child.finished is None and child.name not in node.failed:
            yield node, child
        yield from _left_alone(child, within=within or done)


@frozen(eq=False)
class _Launched:
    step: AnyStep
    value: Any
    state: Any
    budget: Any
    count: int


def _read(parent: Frame, step: AnyStep, work: Node) -> _Launched | None:
    """What was started; `None` when it cannot be found, or is not what it was."""
    told = work.decisions.get(LAUNCHED)
    store = parent.x.run.store
    if told is None or store is None:
        return None
    found = {
        id(each): each
        for each in referenced(step)
        if each.id == told["step"] and fingerprint(each) == told["fingerprint"]
    }
    if len(found) != 1:
        # Two may say the same and hold different values.
        return None
    (started,) = found.values()
    try:
        value = store.codec.decode(_parsed(told["input"]), declared_input(started))
        state = _state(told, parent.domain.state.__class__, store.codec)
        return _Launched(started, value, state, budget_of(told["budget"], None), told["count"])
    except (CodecError, ConfigError):
        return None


def _state(told: Mapping[str, Any], kind: type[Any], codec: Codec) -> Any:
    """The state that it was started with, when that is plain, or of the class that its starter's has.

    Raises:
        CodecError: It is something else.
    """
    tree = _parsed(told["state"])
    name = stored_type(tree)
    if name == "dict":
        made = codec.decode(tree)
        return StateBag(made) if told["bag"] else made
    if name != kind.__name__ or told["version"] != version_of(kind):
        raise CodecError(f"the state is a {name} of version {told['version']}")
    return codec.decode(tree, kind)


def _parsed(text: str) -> Any:
    return parse(text, _MOST, "what was started")


DOORS.relaunch = relaunch
