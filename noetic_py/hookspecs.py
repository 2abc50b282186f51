"""The hooks of the plugin interface, version 1, and how they are called.

Each is synchronous and only registers typed objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, partial, wraps
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy
from attrs import evolve, frozen
from typing_extensions import TypeIs

from noetic_py.core.diagnostics import nearest
from noetic_py.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from importlib import metadata

    from noetic_py.plugins import (
        BackendRegistry,
        EventSinkRegistry,
        HookRegistry,
        ItemTypeRegistry,
        LayerRegistry,
        ModelRegistry,
        PluginRegistry,
        ServiceRegistry,
        StepKindRegistry,
        TokenCounterRegistry,
        TransformRegistry,
    )

PROJECT = "noetic_py"
VERSION = 1
"""The version of the plugin interface. A plugin says with `HOOKS_VERSION = 1` which one it is written for, or with
`HOOKS_VERSION = (1, 2)` which is the first and which the last that it works with. The version grows when plugins for it
would not work any more; a hook that is added does not change it."""

hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(PROJECT)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(PROJECT)


class Hooks:
    """The hooks that a plugin may implement."""

    @hookspec
    def register_models(self, registry: ModelRegistry) -> None:
        """Register providers: `registry.provider("acme", lambda name: AcmeModel(name))` serves `"acme:..."`."""

    @hookspec
    def register_token_counters(self, registry: TokenCounterRegistry) -> None:
        """Register token counters: `registry.token_counter("acme:*", AcmeCounter())` counts for `"acme:..."`."""

    @hookspec
    def register_item_types(self, registry: ItemTypeRegistry) -> None:
        """Register item types: `registry.item_type(Note)`, a class with `@extension_item`."""

    @hookspec
    def register_checkpoint_backends(self, registry: BackendRegistry) -> None:
        """Register backends: `registry.checkpoint_backend("acme", AcmeBackend)` serves `checkpoints="acme:..."`."""

    @hookspec
    def register_memory_layers(self, registry: LayerRegistry) -> None:
        """Register layers: `registry.memory_layer("acme-facts", Facts)`, a class below `MemoryLayer`."""

    @hookspec
    def register_services(self, registry: ServiceRegistry) -> None:
        """Register services: `registry.service(Db, Db("..."))`, for runs and harnesses that bring none of that type."""

    @hookspec
    def register_step_kinds(self, registry: StepKindRegistry) -> None:
        """Register kinds of steps: `registry.step_kind(Delay)`, a class below `noetic_py.steps.kind.StepKind`."""

    @hookspec
    def register_record_transforms(self, registry: TransformRegistry) -> None:
        """Register transforms: `registry.record_transform(Compress())`, an instance of a `RecordTransform`."""

    @hookspec
    def register_hooks(self, registry: HookRegistry) -> None:
        """Register hooks: `registry.hook(audit)`, made by `noetic_py.context.hooks.after_model` or one of its like."""

    @hookspec
    def register_event_sinks(self, registry: EventSinkRegistry) -> None:
        """Register event sinks: `registry.event_sink(send)`, an async function `(run_id, event)`."""

    @hookspec
    def noetic_register(self, registry: PluginRegistry) -> None:
        """Register everything at once: one registry with the methods of all the others."""


_HOOKS = frozenset(name for name in vars(Hooks) if not name.startswith("_"))
_FORM = "the hooks are those of noetic_py.hookspecs.Hooks"
_NOTHING = object()


class Registry(Protocol):
    """Takes what plugins have, under the name of the one that calls."""

    plugin: str


R = TypeVar("R", bound=Registry)


def registry_of(registry: R, plugin: str) -> R:
    """The same registry, which puts what it takes under a plugin's name."""
    seen = copy(registry)
    seen.plugin = plugin
    return seen


@cache
def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    # Each of the two parses a file, and what is installed does not change under a running program.
    return distribution.name, distribution.version


@frozen
class LoadedPlugin:
    """A plugin that is loaded.

    Attributes:
        name: That of its entry point; of an object that was given, that of its class or module.
        distribution: The distribution it comes from; empty for an object that was given.
        version: The distribution's version.
        hooks: The hooks it implements, sorted.
        without: How to run without it.
    """

    name: str
    distribution: str = ""
    version: str = ""
    hooks: Sequence[str] = ()
    without: str = "leave it out of plugins=[...]"

    @classmethod
    def of(cls, point: metadata.EntryPoint, without: str) -> LoadedPlugin:
        """The plugin of an entry point."""
        if point.dist is None:
            return cls(point.name, without=without)
        return cls(point.name, *_name_and_version(point.dist), without=without)

    @property
    def package(self) -> str:
        """The distribution and its version in brackets, for messages; empty for an object that was given."""
        return f" ({self.distribution} {self.version})" if self.distribution else ""

    def refused(self, why: str, hint: str = "") -> PluginError:
        """The error for a plugin that cannot be used."""
        return PluginError(f"plugin {self.name!r} {why}", hint=f"{hint}, or {self.without}" if hint else self.without)


class _Calls(SimpleNamespace):
    """The hooks of a plugin, as the manager calls them."""

    def __dir__(self) -> list[str]:
        # The manager looks at each name for a hook, and an object has thirty of its own.
        return list(vars(self))


class HookCalls:
    """HookCalls the implementations of plugins through pluggy's manager, and knows which plugin is being called.

    The manager gets, for each plugin, an object with the same functions and the same options. They hand over registries
    that know the plugin, and note what was raised in which one. What is raised passes through hook wrappers as it is.
    """

    def __init__(self, manager: pluggy.PluginManager) -> None:
        self.loaded: list[LoadedPlugin] = []
        self._manager = manager
        self._plugins: list[object] = []
        self._calls: list[_Calls] = []
        self._raised: list[tuple[BaseException, LoadedPlugin]] = []

    def add(self, plugin: object, known: LoadedPlugin) -> None:
        """Add a plugin; those added first are called first, unless their options say otherwise.

        Raises:
            PluginError: It was added before, has no hook, or one of another form; or it is for another version.
        """
        if any(plugin is each for each in self._plugins):
            raise known.refused("is there twice")
        self._check_version(plugin, known)
        try:
            marked = {name: self._manager.parse_hookimpl_opts(plugin, name) for name in _names_of(plugin)}
            found = {name: options for name, options in marked.items() if options is not None}
            functions = {name: getattr(plugin, name) for name in found}
        except Exception as error:  # whatever looking at the plugin raises
            raise known.refused(f"is not a valid hook{known.package}: {error}", _FORM) from error
        hooks = sorted({options.get("specname") or name for name, options in found.items()})
        known = evolve(known, hooks=hooks)
        self._check_marks(plugin, known, found)
        calls = _Calls()
        for name, options in found.items():
            hook = options.get("specname") or name
            if options.get("wrapper") or options.get("hookwrapper"):
                setattr(calls, name, self._wrapping(known, functions[name]))
            else:
                setattr(calls, name, self._calling(known, hook, functions[name]))
            if hook not in _HOOKS and not options.get("optionalhook"):
                close = nearest(hook, sorted(_HOOKS))
                hint = f"did you mean {close}" if close else _FORM
                raise known.refused(f"is not a valid hook{known.package}: there is no hook {hook!r}", hint)
        self._plugins.append(plugin)
        self._calls.append(calls)
        self.loaded.append(known)

    def register(self) -> None:
        """Hand all of them to the manager.

        Raises:
            PluginError: A hook has another form.
        """
        # The manager calls first what was registered last.
        for known, calls in reversed(tuple(zip(self.loaded, self._calls, strict=True))):
            try:
                self._manager.register(calls, name=known.name)
            except Exception as error:  # pluggy has a class for a hook of another form, and others for other mistakes
                raise known.refused(f"is not a valid hook{known.package}: {error}", _FORM) from error

    def call(self, hook: str, registry: Registry) -> None:
        """Call a hook of all of them.

        Raises:
            PluginError: A plugin raised, or what it registers is refused.
        """
        try:
            getattr(self._manager.hook, hook)(registry=registry)
        except (PluginError, ConfigError):
            raise
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            known = next((each for raised, each in self._raised if raised is error), None)
            if known is None:
                raise PluginError(f"a plugin failed in {hook}: {why}") from error
            raise known.refused(f"failed in {hook}{known.package}: {why}") from error

    def _check_version(self, plugin: object, known: LoadedPlugin) -> None:
        declared: object = getattr(plugin, "HOOKS_VERSION", 1)
        versions = _versions(declared)
        if versions is None:
            raise known.refused(
                f"has {declared!r:.60} which is not a valid HOOKS_VERSION{known.package}; expected {VERSION}, or the "
                f"first and the last version that it works with, as in (1, {VERSION + 1})"
            )
        first, last = versions
        if first <= VERSION <= last:
            return
        name = known.distribution or known.name
        raise known.refused(
            f"is written for version{f' {first}' if first == last else f's {first} to {last}'} of the plugin interface"
            f"{known.package}, and this noetic-py has version {VERSION}",
            "install a newer noetic-py" if first > VERSION else f"install a newer {name}",
        )

    def _check_marks(self, plugin: object, known: LoadedPlugin, found: Iterable[str]) -> None:
        for hook in sorted(_HOOKS & set(dir(plugin)) - set(found)):
            if callable(inspect.getattr_static(plugin, hook, None)):
                why = f"has a function {hook} that is not marked{known.package}"
                raise known.refused(why, "put @hookimpl of noetic_py.plugins above it")
        if not known.hooks:
            raise known.refused(f"has no hook{known.package}", "mark its functions with noetic_py.plugins.hookimpl")

    def _calling(self, known: LoadedPlugin, hook: str, function: Callable[..., object]) -> Callable[..., None]:
        @wraps(function)
        def call(*registries: Registry) -> None:
            with self._noting(known):
                given = function(*(registry_of(each, known.name) for each in registries))
            if given is not None:
                raise _no_hook(known, hook, given)

        return call

    def _wrapping(
        self, known: LoadedPlugin, function: Callable[..., Generator[object, object, object]]
    ) -> Callable[..., Generator[None, object, object]]:
        @wraps(function)
        def call(*registries: Registry) -> Generator[None, Any, object]:
            around = function(*(registry_of(each, known.name) for each in registries))
            with self._noting(known):
                if next(around, _NOTHING) is _NOTHING:
                    raise RuntimeError("a hook wrapper has to yield once")
            go_on: Callable[[], object]
            try:
                go_on = partial(around.send, (yield))
            except BaseException as error:  # noqa: BLE001 # it is the wrapper's to handle
                go_on = partial(around.throw, error)
            with self._noting(known):
                try:
                    go_on()
                except StopIteration as end:
                    return end.value
                around.close()
                raise RuntimeError("a hook wrapper has to yield once")

        return call

    @contextmanager
    def _noting(self, known: LoadedPlugin) -> Generator[None]:
        """Note whose an exception is; the first to raise it counts, not a wrapper that it passes through."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if not any(raised is error for raised, _ in self._raised):
                self._raised.append((error, known))
            raise


_FUNCTIONS = (FunctionType, MethodType, classmethod, staticmethod)
"""What the manager takes for a hook."""


def _names_of(plugin: object) -> Sequence[str]:
    """The names below which there may be hooks; of a module those of functions, for the manager looks long at each."""
    if isinstance(plugin, ModuleType):
        return sorted(name for name, value in vars(plugin).items() if isinstance(value, _FUNCTIONS))
    return dir(plugin)


def _versions(declared: object) -> tuple[int, int] | None:
    """The first and the last version of the interface that a plugin declares, `None` if that is not valid."""
    match declared:
        case int():
            first = last = declared
        case (int(first), int(last)):
            pass
        case _:
            return None
    # A bool is an int too.
    return (first, last) if bool not in (type(first), type(last)) and 1 <= first <= last else None


def _no_hook(known: LoadedPlugin, hook: str, given: object) -> PluginError:
    """The error for a hook that gives something back: most likely one that was never run, as an `async def` is not."""
    if _is_coroutine(given):
        given.close()
    return known.refused(
        f"gave {type(given).__name__} back in {hook}{known.package}",
        "a hook is a plain function that calls its registry and returns nothing",
    )


def _is_coroutine(value: object) -> TypeIs[Coroutine[object, Any, object]]:
    return isinstance(value, Coroutine)
