"""Who may do what: principals, and the policies that are asked about them.

```python
harness = Harness(checkpoints="sqlite:runs.db", access=RoleAccess({"member": {"run", "read", "resume"}}))
with acting_as(Principal("ada", {"member"})):
    await harness.run(flow, "Hello")
```

A harness with a policy asks it before everything that its methods do to a run or a session. What a run does itself,
such as starting others or storing what its layers keep, is the run's own and not asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args

from attrs import evolve, field, frozen

from noetic_py.errors import AccessDenied, ConfigError
from noetic_py.pending import Answer

if TYPE_CHECKING:
    from noetic_py.sessions.keys import SessionKey

__all__ = [
    "ACTIONS",
    "AccessAction",
    "AccessPolicy",
    "AccessRequest",
    "Principal",
    "RoleAccess",
    "acting_as",
    "current_principal",
    "signed",
]

AccessAction: TypeAlias = Literal[
    "run", "resume", "retry", "fork", "approve", "abort", "read", "export", "delete", "send"
]
"""What can be done to a run or a session. All but `"run"` need `"read"` as well: what one may not read is not there."""
ACTIONS: Final[frozenset[AccessAction]] = frozenset(get_args(AccessAction))
"""All of them."""


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(what, code="access", hint=hint)


def _texts(value: Any) -> frozenset[str]:
    # A text is a collection of texts too, and its letters are nobody's roles.
    given: frozenset[Any] = frozenset() if isinstance(value, str) else frozenset(value)
    if isinstance(value, str) or not all(isinstance(each, str) and each for each in given):
        raise _wrong(f"{value!r} are no names of roles", 'Principal("ada", {"member"})')
    return given


@frozen
class Principal:
    """Somebody who acts: a person, or a program.

    Args:
        user_id: Who, as in the `user_id` of runs and the `user` of sessions; `None` is nobody in particular, whom
            nothing belongs to.
        roles: What they are.

    Raises:
        ConfigError: The id is no text or empty, or the roles are no names; code `"access"`.
    """

    user_id: str | None
    roles: frozenset[str] = field(default=frozenset(), converter=_texts)

    def __attrs_post_init__(self) -> None:
        """Refuse what is nobody."""
        user: object = self.user_id
        if user is not None and (not isinstance(user, str) or not user):
            raise _wrong(f"{user!r} is no user's id", 'Principal("ada"), or Principal(None) for nobody in particular')


_ACTING: ContextVar[Principal | None] = ContextVar("noetic_py_principal", default=None)


@contextmanager
def acting_as(principal: Principal) -> Generator[Principal]:
    """Say who acts in a block, and in the tasks and runs that are started there.

    Raises:
        ConfigError: It is no principal; code `"access"`.
    """
    given: object = principal
    if not isinstance(given, Principal):
        raise _wrong(f"{given!r:.100} is no Principal", 'with acting_as(Principal("ada", {"member"})):')
    token = _ACTING.set(principal)
    try:
        yield principal
    finally:
        _ACTING.reset(token)


def current_principal() -> Principal | None:
    """Who acts here, `None` when nobody has said so."""
    return _ACTING.get()


@frozen
class AccessRequest:
    """What a policy is asked.

    Attributes:
        action: What is to be done.
        principal: By whom.
        run_id: To which run; of `"run"` the id that the caller has chosen. `None` where it is no run's, or a new one's.
        owner: Whose it is: the run's `user_id`, or the session's user. `None` when it is nobody's, not there, or about
            the store as a whole.
        session: The session, or the one that the run is a turn of.
        thread_id: Of `"run"`, the thread that the caller has chosen by itself. Whoever chooses one meets what the
            layers have kept of it.
    """

    action: AccessAction
    principal: Principal
    run_id: str | None
    owner: str | None
    session: SessionKey | None
    thread_id: str | None = None


class AccessPolicy(Protocol):
    """Says who may do what; give it as `Harness(access=policy)`.

    Only `True` allows. A policy that raises, or gives anything else, denies.
    """

    async def allows(self, request: AccessRequest) -> bool:
        """Whether it may be done.

        Methods that are not async, such as `RunHandle.abort`, cannot wait for it: one that has to wait for something
        denies there.
        """
        ...


class RoleAccess:
    """A policy of roles: each may do some actions, with the runs and sessions of its principal.

    Args:
        roles: What each role may do.
        own_runs_only: Whether that holds only for what is the principal's own. What belongs to nobody is nobody's own,
            and a thread that the caller names by itself is not its own either; sessions are.
        everybodys: Roles that may do their actions with everybody's, too.

    Raises:
        ConfigError: An action or a role is unknown; code `"access"`.
    """

    def __init__(
        self,
        roles: Mapping[str, Collection[AccessAction]],
        *,
        own_runs_only: bool = True,
        everybodys: Collection[str] = (),
    ) -> None:
        self._roles = {name: frozenset(actions) for name, actions in roles.items()}
        for name, actions in roles.items():
            if isinstance(actions, str) or not self._roles[name] <= ACTIONS:
                raise _wrong(f"role {name!r} has actions {actions!r}", f"some of {', '.join(sorted(ACTIONS))}")
        unknown = _texts(everybodys) - self._roles.keys()
        if unknown:
            raise _wrong(f"everybodys= names role {min(unknown)!r}, which is none", ", ".join(sorted(roles)))
        self._everybodys = frozenset(everybodys) if own_runs_only else frozenset(roles)

    async def allows(self, request: AccessRequest) -> bool:
        """Whether one of the principal's roles may do it."""
        principal = request.principal
        fitting = {role for role in principal.roles if request.action in self._roles.get(role, ())}
        if not fitting.isdisjoint(self._everybodys):
            return True
        own = request.owner is not None and request.owner == principal.user_id
        return bool(fitting) and own and request.thread_id is None


def signed(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Answers with the name of whoever gives them, where somebody has said who acts.

    Raises:
        AccessDenied: One is given in another's name.
    """
    principal = current_principal()
    given: tuple[Any, ...] = tuple(answers)
    if principal is None:
        return given
    for answer in given:
        # What is no answer is refused by whoever takes it.
        if isinstance(answer, Answer) and answer.by not in (None, principal.user_id):
            raise AccessDenied(
                "an answer is given in another's name", action="approve", hint="leave out by=; it is filled in"
            )
    return tuple(evolve(each, by=principal.user_id) if isinstance(each, Answer) else each for each in given)
