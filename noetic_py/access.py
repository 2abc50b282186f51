"""Access control: principals, the policy that decides, and the authorizer that asks it.

```python
harness = Harness(checkpoints="sqlite:runs.db", access=RoleAccess({"member": {"run", "read", "resume"}}))
with acting_as(Principal("ada", {"member"})):
    await harness.run(flow, "Hello")
```

If a harness has a policy, each public method that touches a run or a session calls `Authorizer.require()` before it
does anything. What a run does itself, such as starting other runs or storing what its layers keep, is not asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

from attrs import evolve, field, frozen

from noetic_py.core.control import Answer, SessionKey
from noetic_py.errors import AccessDenied, ConfigError, NoeticError

AccessAction: TypeAlias = Literal[
    "run", "resume", "retry", "fork", "approve", "complete", "abort", "read", "export", "delete", "send"
]
"""An action on a run or a session. All but `"run"` need `"read"` too, without which the run or session is not found."""
ACTIONS: Final[frozenset[AccessAction]] = frozenset(get_args(AccessAction))
"""All of them."""


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(what, code="access", hint=hint)


def _texts(value: Any) -> frozenset[str]:
    # A text is a collection of texts too, and its letters are not roles.
    given: frozenset[Any] = frozenset() if isinstance(value, str) else frozenset(value)
    if isinstance(value, str) or not all(isinstance(each, str) and each for each in given):
        raise _wrong(
            f"{value!r} is not a valid collection of roles; expected names of roles", 'Principal("ada", {"member"})'
        )
    return given


# ---------------------------------------------------------------------------------------------------------- principals


@frozen
class Principal:
    """A user or a program that calls a harness.

    Args:
        user_id: The id, as in the `user_id` of runs and the `user` of sessions; `None` for an anonymous caller, which
            owns nothing.
        roles: The names of its roles.

    Raises:
        ConfigError: The id is not a text or is empty, or the roles are not names; code `"access"`.
    """

    user_id: str | None
    roles: frozenset[str] = field(default=frozenset(), converter=_texts)

    def __attrs_post_init__(self) -> None:
        """Check the id."""
        user: object = self.user_id
        if user is not None and (not isinstance(user, str) or not user):
            raise _wrong(
                f"{user!r} is not a valid user id; expected a text that is not empty, or None",
                'Principal("ada"), or Principal(None) for an anonymous caller',
            )


_ACTING: ContextVar[Principal | None] = ContextVar("noetic_py_principal", default=None)


@contextmanager
def acting_as(principal: Principal) -> Generator[Principal]:
    """Set the principal of a block, and of the tasks and runs that are started there.

    Raises:
        ConfigError: It is not a `Principal`; code `"access"`.
    """
    given: object = principal
    if not isinstance(given, Principal):
        raise _wrong(
            f"{given!r:.100} is not a valid principal; expected a Principal",
            'with acting_as(Principal("ada", {"member"})):',
        )
    token = _ACTING.set(principal)
    try:
        yield principal
    finally:
        _ACTING.reset(token)


def current_principal() -> Principal | None:
    """The principal that is set here, `None` when there is none."""
    return _ACTING.get()


def attributed(answers: Iterable[Answer]) -> tuple[Answer, ...]:
    """Fill in `Answer.by` with the user id of the principal, if one is set.

    Raises:
        AccessDenied: An answer names another user.
    """
    principal = current_principal()
    given: tuple[Any, ...] = tuple(answers)
    if principal is None:
        return given
    for answer in given:
        # A value that is not an Answer is refused where answers are read.
        if isinstance(answer, Answer) and answer.by not in (None, principal.user_id):
            raise AccessDenied(
                "an answer is given in another's name", action="approve", hint="leave out by=; it is filled in"
            )
    return tuple(evolve(each, by=principal.user_id) if isinstance(each, Answer) else each for each in given)


# -------------------------------------------------------------------------------------------------- requests, policies


class OwnedRun(Protocol):
    """A run, stored or in progress, as a policy sees it."""

    @property
    def run_id(self) -> str:
        """Its id."""
        ...

    @property
    def user_id(self) -> str | None:
        """Its owner."""
        ...

    @property
    def session(self) -> SessionKey | None:
        """The session that it is a turn of."""
        ...


@frozen
class Resource:
    """The target of an action; without any field, the store as a whole.

    Attributes:
        run_id: The run, when it is one.
        owner: Its `user_id`, or the user of the session.
        session: The session, or the one that the run is a turn of.
        thread_id: The thread that the caller has chosen for a new run.
    """

    run_id: str | None = None
    owner: str | None = None
    session: SessionKey | None = None
    thread_id: str | None = None

    @classmethod
    def of_run(cls, run: OwnedRun) -> Resource:
        """A run."""
        return cls(run.run_id, run.user_id, run.session)

    @classmethod
    def of_session(cls, key: SessionKey) -> Resource:
        """A session; its key says who owns it, whether it exists or not.

        Raises:
            ConfigError: It is not a `SessionKey`; code `"session-key"`.
        """
        given: object = key
        if not isinstance(given, SessionKey):
            raise ConfigError(
                f"{given!r} is not a valid session key; expected a SessionKey",
                code="session-key",
                hint='SessionKey("ada", "trip")',
            )
        return cls(None, key.user, key)


@frozen
class AccessRequest:
    """A question to the policy.

    Attributes:
        action: What is to be done.
        principal: The principal that acts.
        run_id: To which run; of `"run"` the id that the caller has chosen. `None` for a session, and for a new run
            without one.
        owner: The run's `user_id`, or the session's user. `None` when the run has no owner or does not exist, and for
            the store as a whole.
        session: The session, or the one that the run is a turn of.
        thread_id: Of `"run"`, the thread that the caller has chosen by itself. A caller who chooses one meets what the
            layers have kept of it.
    """

    action: AccessAction
    principal: Principal
    run_id: str | None
    owner: str | None
    session: SessionKey | None
    thread_id: str | None = None


class AccessPolicy(Protocol):
    """Decides who may do what; give it as `Harness(access=policy)`.

    Only `True` allows. A policy that raises, or returns anything else, denies.
    """

    async def allows(self, request: AccessRequest) -> bool:
        """Whether the request is allowed.

        Methods that are not async, such as `RunHandle.abort`, cannot wait for it: a policy that waits for something
        denies there.
        """
        ...


class RoleAccess:
    """A policy of roles: each role may do some actions, with the runs and sessions of its principal.

    Args:
        roles: What each role may do.
        own_runs_only: Whether that holds only for what the principal owns. What has no owner is not owned by an
            anonymous principal, and a thread that the caller names by itself is not its own either; sessions are.
        any_owner: Roles that may do their actions with the runs and sessions of any owner.

    Raises:
        ConfigError: An action or a role is unknown; code `"access"`.
    """

    def __init__(
        self,
        roles: Mapping[str, Collection[AccessAction]],
        *,
        own_runs_only: bool = True,
        any_owner: Collection[str] = (),
    ) -> None:
        self._roles = {name: frozenset(actions) for name, actions in roles.items()}
        for name, actions in roles.items():
            if isinstance(actions, str) or not self._roles[name] <= ACTIONS:
                raise _wrong(
                    f"{actions!r} is not a valid set of actions of role {name!r}; expected known actions",
                    f"some of {', '.join(sorted(ACTIONS))}",
                )
        unknown = _texts(any_owner) - self._roles.keys()
        if unknown:
            raise _wrong(
                f"any_owner={min(unknown)!r} is not a valid role; expected one of roles=", ", ".join(sorted(roles))
            )
        self._any_owner = frozenset(any_owner) if own_runs_only else frozenset(roles)

    async def allows(self, request: AccessRequest) -> bool:
        """Whether one of the principal's roles allows the request."""
        principal = request.principal
        fitting = {role for role in principal.roles if request.action in self._roles.get(role, ())}
        if not fitting.isdisjoint(self._any_owner):
            return True
        own = request.owner is not None and request.owner == principal.user_id
        return bool(fitting) and own and request.thread_id is None


# ---------------------------------------------------------------------------------------------------------- authorizer


class Authorizer:
    """Asks the access policy of a harness; without a policy everything is allowed.

    What a principal may not read is not there for it: it gets what it would get if the resource did not exist. The
    policy is asked whether the resource exists or not, so that not even an error of the policy tells the two apart.

    Args:
        policy: The policy; `None` for none.

    Raises:
        ConfigError: It is not a policy; code `"access"`.
    """

    def __init__(self, policy: AccessPolicy | None) -> None:
        given: object = policy
        if given is not None and not callable(getattr(given, "allows", None)):
            raise _wrong(
                f"access={given!r:.100} is not a valid access policy; expected an object with allows(request)",
                "RoleAccess({...})",
            )
        self._policy = policy
        self.allows_all: bool = policy is None

    async def require(self, *actions: AccessAction, on: Resource, hidden: NoeticError | None = None) -> None:
        """Ask for `"read"` and then for each action.

        Args:
            *actions: The actions; `"read"` alone when left out.
            on: The resource.
            hidden: The error of a resource that may not be read; `AccessDenied` when left out.

        Raises:
            AccessDenied: The policy does not allow it, has raised, or no principal is set.
        """
        if self._policy is None:
            return
        if not await self.allows("read", on):
            raise hidden or _denied(actions[0] if actions else "read")
        for action in actions:
            if action != "read" and not await self.allows(action, on):
                raise _denied(action)

    def require_now(self, *actions: AccessAction, on: Resource, hidden: NoeticError | None = None) -> None:
        """The same in a method that is not async.

        Raises:
            AccessDenied: As of `require`; or the policy waits for something.
        """
        if self._policy is None:
            return
        asking = self.require(*actions, on=on, hidden=hidden)
        try:
            asking.send(None)
        except StopIteration:
            return
        # The policy awaits something; an exception while it is closed does not matter.
        with suppress(Exception):
            asking.close()
        action = actions[0] if actions else "read"
        raise AccessDenied(
            f"the access policy awaits, but {action!r} is checked in a method that is not async",
            action=action,
            hint="call an async method, such as harness.interrupt(session), or use a policy that does not await",
        )

    async def allows(self, action: AccessAction, on: Resource) -> bool:
        """Whether the policy allows one action, for what is left out of a list otherwise.

        Raises:
            AccessDenied: The policy has raised, which is the cause, or no principal is set.
        """
        return self._policy is None or await _decide(self._policy, _request(action, on))

    def request(self, action: AccessAction, on: Resource) -> AccessRequest | None:
        """The request that `approve` will put to the policy, for the current principal; `None` without a policy.

        Raises:
            AccessDenied: No principal is set.
        """
        return None if self._policy is None else _request(action, on)

    async def approve(self, request: AccessRequest | None) -> None:
        """Ask this request only, without `"read"`: a run that is new cannot be hidden.

        Raises:
            AccessDenied: The policy does not allow it, or has raised.
        """
        if self._policy is not None and request is not None and not await _decide(self._policy, request):
            raise _denied(request.action)


ALLOW_ALL: Final = Authorizer(None)
"""Allows everything: without a policy, and for what a run does itself."""


def _request(action: AccessAction, on: Resource) -> AccessRequest:
    principal = current_principal()
    if principal is None:
        raise AccessDenied(
            f"no principal is set, so {action!r} is not allowed",
            action=action,
            hint="wrap the call in `acting_as(principal)`",
        )
    return AccessRequest(action, principal, on.run_id, on.owner, on.session, on.thread_id)


async def _decide(policy: AccessPolicy, request: AccessRequest) -> bool:
    try:
        return await policy.allows(request) is True
    except Exception as error:  # a policy that fails denies access
        raise AccessDenied(
            f"the access policy failed, so {request.action!r} is not allowed",
            action=request.action,
            hint="__cause__ is the exception of the policy",
        ) from error


def _denied(action: AccessAction) -> AccessDenied:
    return AccessDenied(
        f"the access policy does not allow {action!r} here", action=action, hint="ask the owner of the access policy"
    )
