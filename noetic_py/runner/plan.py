"""How a run is made of what its caller asks for: `Planner`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from noetic_py.access import AccessRequest, Authorizer, Resource, current_principal
from noetic_py.context.artifacts import StoredArtifacts
from noetic_py.context.context import Services
from noetic_py.context.scope import unanswered
from noetic_py.context.step import Step, require_step
from noetic_py.core.attributes import Attributes
from noetic_py.core.events import Bus
from noetic_py.core.session_key import SessionKey
from noetic_py.core.trace import Trace, tracer
from noetic_py.core.values import copy_value
from noetic_py.models.model import ModelSettings
from noetic_py.runner.options import check_options, outside_of, scope_of
from noetic_py.runner.registry import Living

if TYPE_CHECKING:
    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.engine.journaling.run_history import RunHistory
    from noetic_py.engine.protocol import Interpreter
    from noetic_py.engine.state import Run
    from noetic_py.runner.lease import RunStorage

__all__ = ["Planner", "at_home"]


def at_home(services: Mapping[type[Any], object], resources: Any) -> dict[type[Any], object]:
    """Services, of which those that keep what they are given keep it where the harness does."""
    return {
        kind: evolve(service, backend=resources.storage)
        if isinstance(service, StoredArtifacts) and service.backend is None
        else service
        for kind, service in services.items()
    }


@frozen(eq=False)
class Planner:
    """Makes the runs of a harness; what is made has not begun.

    Attributes:
        interpreter: What a body's call of the engine comes to.
        resources: What the harness lends to its runs.
        living: Which runs go on in it.
        access: Asked whether a run may begin.
        services: Its services and those of plugins, the nearer first.
        backend: What keeps its runs, `None` when nothing does.
        flows: Its steps by name.
    """

    interpreter: Interpreter
    resources: Any
    living: Living
    access: Authorizer
    services: tuple[Mapping[type[Any], object], ...]
    backend: CheckpointBackend | None
    flows: Mapping[str, Step[Any, Any, Any, Any]]

    def authorize(self, options: Mapping[str, Any], ctx: Any) -> tuple[Mapping[str, Any], AccessRequest | None]:
        """The options of a new run with those that follow from its principal, and what `access.approve` has to ask.

        Raises:
            AccessDenied: No principal is set.
        """
        if self.access.allows_all:
            return options, None
        session, run_id, thread_id = options.get("session"), options.get("run_id"), options.get("thread_id")
        if isinstance(session, SessionKey):
            return options, self.access.request("run", Resource(run_id, session.user, session))
        if ctx is not None:
            outside = outside_of(ctx)
            thread_id = outside.thread_id if outside.named else thread_id
        elif thread_id is None:
            # Not the run's id, which the caller may have chosen as the name of another's thread.
            options = {**options, "thread_id": self.resources.runtime.new_id()}
        principal = current_principal()
        if "user_id" not in options and principal is not None and principal.user_id is not None:
            options = {**options, "user_id": principal.user_id}
        resource = Resource(run_id, options.get("user_id"), thread_id=thread_id)
        return options, self.access.request("run", resource)

    async def begin(self, step: Any, input: Any, state: Any, ctx: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """The same as `new`, once the policy has approved it.

        Raises:
            AccessDenied: It has not.
        """
        options, request = self.authorize(options, ctx)
        await self.access.approve(request)
        return self.new(step, input, state, ctx, options)

    def new(self, step: Any, input: Any, state: Any, ctx: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
        """A run of a step, and how it is to begin.

        Raises:
            ConfigError: An option is unknown or of the wrong kind.
            RunBusy: A run of this id, or one of this context, goes on.
        """
        from noetic_py.engine.run import RunPlan

        require_step(step, "run")
        check_options(options, state, ctx)
        outside = None if ctx is None else outside_of(ctx)
        run_id = options.get("run_id") or self.resources.runtime.new_id()
        self.living.admit(run_id, "leave out run_id=, or await that run first")
        scope = scope_of(run_id, step, state, ctx, options)
        header, metadata = options.get("traceparent"), options.get("metadata")
        place = None if outside is None else outside.place
        run = self._run(
            run_id,
            options,
            thread_id=options.get("thread_id") or (run_id if outside is None else outside.thread_id),
            user_id=options.get("user_id"),
            request_id=options.get("request_id") or (None if outside is None else outside.request_id),
            metadata=copy_value(dict(metadata)) if metadata else {},
            trace=place if header is None else Trace.from_traceparent(header),
        )
        run.flow = step
        run.context_turns = 0 if outside is None else outside.turns
        if outside is not None:
            run.asked, run.memory = unanswered(scope.log, outside.settled), outside.memory
        session = run.session = options.get("session")
        if session is not None:
            run.thread_id, run.user_id = session.stream, session.user
        self.living.add(run)
        plan = RunPlan(
            step,
            copy_value(input),
            scope,
            options.get("budget"),
            options.get("deadline"),
            storage=self._run_storage(step, options),
            delivery_id=options.get("delivery_id"),
        )
        return run, plan

    def again(self, run_id: str, begun: Any, options: Mapping[str, Any]) -> Any:
        """A run that has a journal already."""
        run_history: RunHistory = begun
        opening = run_history.started.opening
        run = self._run(
            run_id,
            options,
            thread_id=run_history.started.thread_id,
            user_id=None if opening is None else opening.user_id,
            request_id=None if opening is None else opening.request_id,
            metadata={} if opening is None else opening.metadata,
            trace=None if opening is None else opening.trace,
        )
        run.depth = max(run.depth, 0 if opening is None else opening.depth)
        if opening is not None:
            run.asked, run.memory = opening.asked, opening.memory or run.memory
        if opening is not None and opening.base is not None:
            run.session = SessionKey(opening.base.user, opening.base.session, app=opening.base.app)
        return run

    def _run(self, run_id: str, options: Mapping[str, Any], **ids: Any) -> Run:
        from noetic_py.engine.state import Run

        run = Run(
            run_id=run_id,
            resources=self.resources,
            interpreter=self.interpreter,
            services=Services(at_home(options.get("services") or {}, self.resources), *self.services),
            model_settings=options.get("model_settings") or ModelSettings(),
            bus=Bus(run_id),
            tracer=tracer(),
            **ids,
        )
        run.attrs = Attributes(options.get("attrs"))
        return run

    def _run_storage(self, step: Step[Any, Any, Any, Any], options: Mapping[str, Any]) -> RunStorage | None:
        """How the run is to be kept, when it is."""
        if self.backend is None:
            return None
        from noetic_py.runner.lease import RunStorage

        named = next((name for name, flow in self.flows.items() if flow is step), None)
        return RunStorage(self.backend, options.get("durability", "step"), options.get("source", named))
