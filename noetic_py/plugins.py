"""Plugins: found by entry point, narrowed by an allow-list, and never able to take a name that is taken.

A plugin is a module, or an object, with functions marked [`hookimpl`][noetic_py.plugins.hookimpl]; its distribution
names it under the entry-point group `noetic_py`. Plugins are loaded when a [`Harness`][noetic_py.Harness] is built.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy
from attrs import frozen

from noetic_py.core.diagnostics import nearest
from noetic_py.core.runtime import SYSTEM, Runtime
from noetic_py.core.types import T
from noetic_py.errors import ConfigError, ModelNotFound, PluginError
from noetic_py.hookspecs import PROJECT, HookCalls, Hooks, LoadedPlugin, Registry, hookimpl, registry_of
from noetic_py.redaction import with_article

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from noetic_py.checkpoints.contract import CheckpointBackend
    from noetic_py.context.hooks import AnyHook
    from noetic_py.core.items import Extension
    from noetic_py.core.sinks import EventSink
    from noetic_py.core.tokens import TokenCounter
    from noetic_py.journal.transforms import RecordTransform
    from noetic_py.memory.layer import AnyLayer
    from noetic_py.models.model import Model
    from noetic_py.steps.kind import AnyStepKind

__all__ = [
    "GROUP",
    "BackendRegistry",
    "EventSinkRegistry",
    "HookRegistry",
    "ItemTypeRegistry",
    "LayerRegistry",
    "LoadedPlugin",
    "ModelRegistry",
    "PluginRegistry",
    "Plugins",
    "StepKindRegistry",
    "TokenCounterRegistry",
    "TransformRegistry",
    "hookimpl",
    "load_plugins",
    "load_working_plugins",
]

GROUP = "noetic_py"
"""The entry-point group."""
ALLOW_LIST = "NOETIC_PLUGINS"
"""The environment variable that narrows the plugins: names, separated by commas."""

_BUILT_IN = "noetic_py"
_KNOWN = {
    "openai": "noetic-openai",
    "openai-chat": "noetic-openai",
    "azure": "noetic-openai",
    "deepseek": "noetic-openai",
    "lmstudio": "noetic-openai",
    "ollama": "noetic-openai",
    "openrouter": "noetic-openai",
    "vllm": "noetic-openai",
    "xai": "noetic-openai",
    "anthropic": "noetic-anthropic",
    "google": "noetic-google",
    "pydantic-ai": "noetic-pydantic-ai",
    "local": "noetic-local",
}
_KNOWN_BACKENDS = {
    "postgresql": "noetic-postgres",
    "postgres": "noetic-postgres",
    "redis": "noetic-redis",
    "rediss": "noetic-redis",
    "unix": "noetic-redis",
}


class ModelRegistry:
    """Providers of models by prefix."""

    def __init__(self) -> None:
        self._providers: dict[str, tuple[Callable[[str], Model], str]] = {}
        self._made: dict[str, Model] = {}
        self.plugin = ""

    def provider(self, prefix: str, factory: Callable[[str], Model], /) -> None:
        """Serve the names that begin with `prefix` and a colon.

        Args:
            prefix: Letters, digits and dashes.
            factory: Gets the part of the name behind the colon, and makes the model; called once a name.

        Raises:
            PluginError: The prefix is taken, or is not valid.
        """
        if not _is_prefix(prefix):
            raise PluginError(
                f"{prefix!r} is not a valid prefix for models; expected letters, digits and dashes",
                hint='register_provider("acme", ...)',
            )
        _check_factory(factory, self.plugin)
        taken = _twin(self._providers, prefix)
        if taken is not None:
            raise PluginError(
                f"plugins {taken[1]!r} and {self.plugin!r} both provide models {prefix!r}:...",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}",
            )
        self._providers[prefix] = (factory, self.plugin)

    def __call__(self, name: str) -> Model:
        """The model of a name such as `"openai:gpt-5-mini"`.

        Raises:
            ModelNotFound: No plugin provides it.
        """
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(name)
        return made

    def _make(self, name: str) -> Model:
        prefix, colon, rest = name.partition(":")
        found = self._providers.get(prefix)
        if colon and rest and found is not None:
            return found[0](rest)
        if not colon or not rest:
            served = nearest(prefix, self._providers) or "openai"
            raise ModelNotFound(
                f"{name!r} is not a model name; expected provider:name",
                model=name,
                hint=f'call_model("{served}:{rest or prefix}"); {self._served()}',
            )
        package = _KNOWN.get(prefix)
        close = nearest(prefix, {*self._providers, *_KNOWN})
        hint = f"pip install {package}" if package else f"{self._served()}; a plugin package can provide others"
        if package is None and close is not None:
            hint = f'did you mean "{close}:{rest}"? {hint}'
        raise ModelNotFound(f"no plugin provides models {prefix!r}:...", model=name, hint=hint)

    def _served(self) -> str:
        if not self._providers:
            return "no provider is installed: pip install noetic-openai, noetic-anthropic or noetic-google"
        return f"the providers are {', '.join(self.prefixes)}"

    @property
    def prefixes(self) -> Sequence[str]:
        """The prefixes that are served, sorted."""
        return sorted(self._providers)


class TokenCounterRegistry:
    """Token counters by the names of models.

    A counter of a plugin counts for the models whose names fit its pattern; of several patterns the longest one. For a
    model that names an encoding in its profile that encoding counts, whatever plugins have. For all others it is what
    the library knows: tiktoken, or an estimate.
    """

    def __init__(self) -> None:
        self._counters: dict[str, tuple[TokenCounter, str]] = {}
        self.plugin = ""

    def token_counter(self, pattern: str, counter: TokenCounter, /) -> None:
        """Count the tokens of models by a counter.

        Args:
            pattern: What the whole name of a model fits: `"acme:*"` for all of a provider, `"openrouter:acme/*"`,
                `"acme:large"`. The characters `*`, `?` and `[...]` mean what they mean in file names.
            counter: A [`TokenCounter`][noetic_py.core.tokens.TokenCounter]. It is made whether a run uses it or not,
                so it loads a tokenizer at its first count.

        Raises:
            PluginError: The pattern is taken, or is not valid; or it is not a token counter.
        """
        from noetic_py.core import tokens

        given: object = counter
        if isinstance(given, type) or not isinstance(given, tokens.TokenCounter):
            raise PluginError(
                f"{given!r:.60} of plugin {self.plugin!r} is not a valid token counter; expected a TokenCounter",
                hint="derive it from noetic_py.core.tokens.TextCounter, and register an object of the class",
            )
        provider, _, rest = pattern.partition(":")
        if not _is_prefix(provider) or not rest:
            raise PluginError(
                f"{pattern!r} is not a valid pattern for models; expected a provider and a colon, and what follows",
                hint='token_counter("acme:*", ...)',
            )
        taken = _twin(self._counters, pattern)
        if taken is not None:
            raise PluginError(
                f"plugins {taken[1]!r} and {self.plugin!r} both count the tokens of models {pattern!r}",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}",
            )
        self._counters[pattern] = (counter, self.plugin)

    def __call__(self, name: str) -> TokenCounter:
        """The counter for a model's name."""
        from noetic_py.core import tokens

        # Of two patterns of one length the order is that of the alphabet, the same in each process.
        fitting = [(len(pattern), pattern) for pattern in self._counters if fnmatchcase(name, pattern)]
        return self._counters[max(fitting)[1]][0] if fitting else tokens.counter_for(name)


class ItemTypeRegistry:
    """Takes the item types of plugins; `@extension_item` has put them into the codec's registry already."""

    def __init__(self) -> None:
        self.types: list[type[Extension]] = []
        self.plugin = ""

    def item_type(self, cls: type[Extension], /) -> None:
        """Declare an extension item type.

        Raises:
            PluginError: The class has no `@extension_item`.
        """
        from noetic_py.core.items import extension_types

        if cls not in extension_types().values():
            raise PluginError(
                f"{cls.__qualname__} is not a valid item type; expected a class with @extension_item",
                hint='@extension_item("acme:note")',
            )
        self.types.append(cls)


class BackendRegistry:
    """Checkpoint backends by scheme.

    Args:
        runtime: The clock of the built-in ones.
    """

    def __init__(self, runtime: Runtime = SYSTEM) -> None:
        self._factories: dict[str, tuple[Callable[[str], CheckpointBackend], str]] = {}
        self.runtime = runtime
        self.plugin = ""

    def checkpoint_backend(self, scheme: str, factory: Callable[[str], CheckpointBackend], /) -> None:
        """Serve the texts that begin with `scheme` and a colon, as in `Harness(checkpoints="acme:...")`.

        Args:
            scheme: Letters, digits and dashes.
            factory: Gets the part of the text behind the colon, and makes the backend.

        Raises:
            PluginError: The scheme is taken, or is not valid.
        """
        if not _is_prefix(scheme):
            raise PluginError(
                f"{scheme!r} is not a valid scheme for checkpoints; expected letters, digits and dashes",
                hint='"acme", for checkpoints="acme:..."',
            )
        _check_factory(factory, self.plugin)
        taken = _twin(self._factories, scheme)
        if taken is not None:
            raise PluginError(
                f"plugins {taken[1]!r} and {self.plugin!r} both provide checkpoints {scheme!r}:...",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}; the built-in ones stay",
            )
        self._factories[scheme] = (factory, self.plugin)

    def __call__(self, spec: str) -> CheckpointBackend:
        """The backend of a text such as `"sqlite:runs.db"`.

        Raises:
            ConfigError: No plugin provides it, code `"checkpoints"`; or what the backend's own factory refuses.
        """
        scheme, colon, rest = spec.partition(":")
        found = self._factories.get(scheme)
        if colon and found is not None:
            return found[0](rest)
        from noetic_py.checkpoints.spec import no_backend

        package = _KNOWN_BACKENDS.get(scheme)
        raise no_backend(spec, {*self.schemes, *_KNOWN_BACKENDS}, package)

    @property
    def schemes(self) -> Sequence[str]:
        """The schemes that are served, sorted."""
        return sorted(self._factories)


class LayerRegistry:
    """Memory layers by name, for whatever names one in a text: a document, a command line."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type[AnyLayer] | str, str]] = {}
        self.plugin = ""

    def memory_layer(self, name: str, cls: type[AnyLayer], /) -> None:
        """Declare a layer.

        Args:
            name: Letters, digits and dashes.
            cls: A class below [`MemoryLayer`][noetic_py.MemoryLayer].

        Raises:
            PluginError: The name is taken, or is not valid; or the class is not a layer.
        """
        from noetic_py.memory.layer import MemoryLayer

        given: object = cls
        if not isinstance(given, type) or not issubclass(given, MemoryLayer):
            raise PluginError(
                f"{given!r} is not a valid memory layer; expected a class below MemoryLayer",
                hint="class Notes(MemoryLayer[list[str]]): ...",
            )
        self._declare(name, cls)

    def _declare(self, name: str, found: type[AnyLayer] | str) -> None:
        if not _is_prefix(name):
            raise PluginError(
                f"{name!r} is not a valid name for a memory layer; expected letters, digits and dashes",
                hint='"acme-notes"',
            )
        taken = _twin(self._known, name)
        if taken is not None:
            raise PluginError(
                f"plugins {taken[1]!r} and {self.plugin!r} both provide a memory layer {name!r}",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}; the built-in ones stay",
            )
        self._known[name] = (found, self.plugin)

    def built_in(self, name: str, home: str) -> None:
        """Declare one of the library's own, which is imported when it is asked for."""
        self._declare(name, home)

    def __call__(self, name: str) -> type[AnyLayer]:
        """The layer's class.

        Raises:
            ConfigError: No plugin provides it; code `"memory-layer"`.
        """
        known = self._known.get(name)
        if known is None:
            raise ConfigError(
                f"no plugin provides a memory layer {name!r}",
                code="memory-layer",
                hint=f"there are {', '.join(self.names)}",
            )
        found = known[0]
        if isinstance(found, str):
            cls: type[AnyLayer] = getattr(import_module("noetic_py.memory"), found)
            return cls
        return found

    @property
    def names(self) -> Sequence[str]:
        """The names that are served, sorted."""
        return sorted(self._known)


class ServiceRegistry:
    """Takes the services of plugins: the ones of a harness or a run come first.

    Attributes:
        by_type: The services.
    """

    def __init__(self) -> None:
        self.by_type: dict[type[object], object] = {}
        self._from: dict[type[object], str] = {}
        self.plugin = ""

    # A class is one of the callables that make something; a checker takes no Protocol for a `type`.
    def service(self, kind: Callable[..., object], service: object, /) -> None:
        """Register what is found as `ctx.services[kind]` where none was given nearer to the run.

        Raises:
            PluginError: `kind` is not a type, the service is `None`, or another plugin has registered one of that type.
        """
        given: object = kind
        if not isinstance(given, type) or service is None:
            raise PluginError(
                f"plugin {self.plugin!r} registers {service!r:.60} as {kind!r:.60}", hint="registry.service(Db, db)"
            )
        if given in self.by_type:
            raise PluginError(
                f"plugins {self._from[given]!r} and {self.plugin!r} both provide {with_article(given.__qualname__)}",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}",
            )
        self.by_type[given], self._from[given] = service, self.plugin


class HookRegistry:
    """Takes the hooks of plugins, which are called before all others, in the order in which the plugins were loaded.

    Attributes:
        hooks: The hooks.
    """

    def __init__(self) -> None:
        self.hooks: list[AnyHook] = []
        self._from: dict[tuple[str, str], str] = {}
        self.plugin = ""

    def hook(self, hook: AnyHook, /) -> None:
        """Register a hook, made by one of `noetic_py.context.hooks`.

        Raises:
            PluginError: It is not valid, or there is one of its event and name.
        """
        from noetic_py.context.hooks import read_hooks

        try:
            read_hooks([hook], f"plugin {self.plugin!r}")
        except ConfigError as error:
            raise PluginError(error.message, hint=error.hint) from error
        taken = self._from.get((hook.event, hook.name))
        if taken is not None:
            raise PluginError(
                f"plugins {taken!r} and {self.plugin!r} both have {with_article(hook.event)} hook {hook.name!r}",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}",
            )
        self.hooks.append(hook)
        self._from[hook.event, hook.name] = self.plugin


class StepKindRegistry:
    """Takes the step kinds of plugins: steps of other kinds do not run in the harness."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[type[AnyStepKind], str]] = {}
        self.plugin = ""

    def step_kind(self, cls: type[AnyStepKind], /) -> None:
        """Register a kind of step, a class below [`StepKind`][noetic_py.steps.kind.StepKind].

        Raises:
            PluginError: It is not valid, or another plugin has one of its name.
        """
        from noetic_py.steps.kind import check_kind

        try:
            name = check_kind(cls).kind
        except ConfigError as error:
            raise PluginError(f"plugin {self.plugin!r}: {error.message}", hint=error.hint) from error
        taken = _twin(self._known, name)
        if taken is not None:
            raise PluginError(
                f"plugins {taken[1]!r} and {self.plugin!r} both provide a step kind {name!r}",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}",
            )
        self._known[name] = (cls, self.plugin)

    @property
    def names(self) -> Sequence[str]:
        """The names that are taken, sorted."""
        return sorted(self._known)


class EventSinkRegistry:
    """Takes the event sinks of plugins.

    Attributes:
        sinks: The sinks, each behind the plugin that has registered it.
    """

    def __init__(self) -> None:
        self.sinks: list[tuple[str, EventSink]] = []
        self.plugin = ""

    def event_sink(self, sink: EventSink, /) -> None:
        """Give the events of all runs to an async function `(run_id, event)`, one after the other.

        Args:
            sink: The function. It is called by a task of its own, so runs do not wait for it. Of the events that wait
                for it the oldest are lost where there are more than 10,000, or more than 64 MiB.

        Raises:
            PluginError: It is not an async function, or it is registered twice.
        """
        call = inspect.getattr_static(type(sink), "__call__", None)
        if not inspect.iscoroutinefunction(sink) and not inspect.iscoroutinefunction(call):
            raise PluginError(
                f"{sink!r:.60} of plugin {self.plugin!r} is not a valid event sink; expected an async function",
                hint="async def send(run_id: str, event: Event) -> None: ...",
            )
        if any(known == sink for _, known in self.sinks):
            raise PluginError(
                f"plugin {self.plugin!r} registers the event sink {sink!r:.60}, which is registered already",
                hint="register it once",
            )
        self.sinks.append((self.plugin, sink))


class TransformRegistry:
    """Takes the record transforms of plugins. They are applied after those of the harness, in the order of the names.

    Attributes:
        asked_for: Whether plugins were named, by `Harness(plugins=...)` or by `NOETIC_PLUGINS`, and not only found. One
            that was named and cannot do its work says so, instead of leaving it out.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[RecordTransform, str]] = {}
        self.plugin = ""
        self.asked_for = False

    def record_transform(self, transform: RecordTransform, /) -> None:
        """Register a transform.

        Raises:
            PluginError: It is not valid, or its name is taken.
        """
        from noetic_py.journal.signing import TransformChain

        try:
            (name,) = TransformChain([transform]).by_name
        except ConfigError as error:
            raise PluginError(f"plugin {self.plugin!r}: {error.message}", hint=error.hint) from error
        taken = _twin(self._known, name)
        if taken is not None:
            raise PluginError(
                f"plugins {taken[1]!r} and {self.plugin!r} both provide a record transform {name!r}",
                hint=f"allow one of them: Harness(plugins=[...]) or {ALLOW_LIST}",
            )
        self._known[name] = (transform, self.plugin)

    def around(self, backend: CheckpointBackend, first: Sequence[RecordTransform] = ()) -> CheckpointBackend:
        """A backend whose records go through transforms; the backend itself where there are none.

        Args:
            backend: What keeps everything; one that has transforms already stays as it is, unless others are given.
            first: The transforms of a harness. One of them takes the place of a plugin's of the same name.

        Raises:
            ConfigError: A transform is not valid, or two have one name; code `"record-transforms"`.
        """
        if not first and not self._known:
            return backend
        from noetic_py.checkpoints.signed import SignedBackend

        if isinstance(backend, SignedBackend):
            if not first:
                return backend
            backend = backend.inner
        names = {getattr(transform, "name", None) for transform in first}
        return SignedBackend(backend, [*first, *(self._known[name][0] for name in self.names if name not in names)])

    @property
    def names(self) -> Sequence[str]:
        """The names that are taken, sorted."""
        return sorted(self._known)


class PluginRegistry:
    """Takes everything that a plugin has, in the one hook `noetic_register`.

    Each method is that of the registry which a `register_*` hook gets, and refuses the same.

    Args:
        plugins: What is registered with.
    """

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self.plugin = ""

    def provider(self, prefix: str, factory: Callable[[str], Model], /) -> None:
        """Serve the models whose names begin with `prefix` and a colon; as `register_models` does.

        Raises:
            PluginError: The prefix is taken, or is not valid.
        """
        registry_of(self._plugins.models, self.plugin).provider(prefix, factory)

    def token_counter(self, pattern: str, counter: TokenCounter, /) -> None:
        """Count the tokens of models whose names fit a pattern; as `register_token_counters` does.

        Raises:
            PluginError: The pattern is taken, or is not valid; or it is not a token counter.
        """
        registry_of(self._plugins.counters, self.plugin).token_counter(pattern, counter)

    def item_type(self, cls: type[Extension], /) -> None:
        """Declare an extension item type; as `register_item_types` does.

        Raises:
            PluginError: The class has no `@extension_item`.
        """
        registry_of(self._plugins.item_types, self.plugin).item_type(cls)

    def checkpoint_backend(self, scheme: str, factory: Callable[[str], CheckpointBackend], /) -> None:
        """Serve the texts that begin with `scheme` and a colon; as `register_checkpoint_backends` does.

        Raises:
            PluginError: The scheme is taken, or is not valid.
        """
        registry_of(self._plugins.backends, self.plugin).checkpoint_backend(scheme, factory)

    def memory_layer(self, name: str, cls: type[AnyLayer], /) -> None:
        """Declare a layer; as `register_memory_layers` does.

        Raises:
            PluginError: The name is taken, or is not valid; or the class is not a layer.
        """
        registry_of(self._plugins.layers, self.plugin).memory_layer(name, cls)

    def service(self, kind: Callable[..., object], service: object, /) -> None:
        """Register what is found as `ctx.services[kind]`; as `register_services` does.

        Raises:
            PluginError: `kind` is not a type, the service is `None`, or another plugin has registered one of that type.
        """
        registry_of(self._plugins.services, self.plugin).service(kind, service)

    def step_kind(self, cls: type[AnyStepKind], /) -> None:
        """Register a kind of step; as `register_step_kinds` does.

        Raises:
            PluginError: It is not valid, or another plugin has one of its name.
        """
        registry_of(self._plugins.step_kinds, self.plugin).step_kind(cls)

    def record_transform(self, transform: RecordTransform, /) -> None:
        """Register a transform; as `register_record_transforms` does.

        Raises:
            PluginError: It is not valid, or its name is taken.
        """
        registry_of(self._plugins.transforms, self.plugin).record_transform(transform)

    def event_sink(self, sink: EventSink, /) -> None:
        """Give the events of all runs to an async function; as `register_event_sinks` does.

        Raises:
            PluginError: It is not an async function, or it is registered twice.
        """
        registry_of(self._plugins.event_sinks, self.plugin).event_sink(sink)

    def hook(self, hook: AnyHook, /) -> None:
        """Register a hook; as `register_hooks` does.

        Raises:
            PluginError: It is not valid, or there is one of its event and name.
        """
        registry_of(self._plugins.hooks, self.plugin).hook(hook)


# The library's own layers, by the names of their classes in `noetic_py.memory`.
_LAYERS = {
    "compaction": "Compaction",
    "context-pool": "ContextPool",
    "context-queue": "ContextQueue",
    "episodic": "Episodic",
    "facts": "Facts",
    "filesystem": "Filesystem",
    "history-window": "HistoryWindow",
    "nested-memory": "NestedMemory",
    "observational": "Observational",
    "permissions": "Permissions",
    "plan": "Plan",
    "semantic-recall": "SemanticRecall",
    "static-content": "StaticContent",
    "steering": "Steering",
    "task-state": "TaskState",
    "temporal": "Temporal",
    "tool-groups": "ToolGroups",
    "tool-limits": "ToolLimits",
    "tool-memory": "ToolMemory",
    "working-memory": "WorkingMemory",
}


def _built_in(scheme: str, runtime: Runtime, rest: str) -> CheckpointBackend:
    from noetic_py.checkpoints.spec import backend_from

    return backend_from(f"{scheme}:{rest}", runtime=runtime)


def _is_prefix(text: str) -> bool:
    return bool(text) and all(c.isascii() and (c.isalnum() or c == "-") for c in text)


def _check_factory(factory: object, plugin: str) -> None:
    if not callable(factory):
        raise PluginError(f"plugin {plugin!r} gives {factory!r:.60} as a factory", hint="a function or a class")


def _twin(known: Mapping[str, tuple[T, str]], name: str) -> tuple[T, str] | None:
    """The known name that differs from this one at most in case."""
    return next((found for other, found in known.items() if other.lower() == name.lower()), None)


class Plugins:
    """The plugins of one harness, loaded."""

    def __init__(self, manager: pluggy.PluginManager, runtime: Runtime = SYSTEM) -> None:
        self.manager = manager
        self.calls: HookCalls = HookCalls(manager)
        self.models: ModelRegistry = ModelRegistry()
        self.counters: TokenCounterRegistry = TokenCounterRegistry()
        self.item_types: ItemTypeRegistry = ItemTypeRegistry()
        self.backends: BackendRegistry = BackendRegistry(runtime)
        self.layers: LayerRegistry = LayerRegistry()
        self.services: ServiceRegistry = ServiceRegistry()
        self.step_kinds: StepKindRegistry = StepKindRegistry()
        self.transforms: TransformRegistry = TransformRegistry()
        self.hooks: HookRegistry = HookRegistry()
        self.event_sinks: EventSinkRegistry = EventSinkRegistry()

    def backend(self, checkpoints: object, transforms: Sequence[RecordTransform] = ()) -> CheckpointBackend | None:
        """The backend of a harness; `None` without one.

        Args:
            checkpoints: A backend, or the text that names one.
            transforms: The record transforms of the harness; those of plugins follow.

        Raises:
            ConfigError: It is neither, code `"checkpoints"`; or a transform is not valid, code `"record-transforms"`.
        """
        if checkpoints is None:
            return None
        given: Any = self.backends(checkpoints) if isinstance(checkpoints, str) else checkpoints
        if not hasattr(given, "append"):
            raise ConfigError(
                f"checkpoints={checkpoints!r} is not a valid backend; expected an address or a CheckpointBackend",
                code="checkpoints",
                hint='checkpoints="sqlite:runs.db"',
            )
        return self.transforms.around(given, transforms)

    @property
    def names(self) -> Sequence[str]:
        """The plugins' names, in the order in which they were loaded."""
        return [each.name for each in self.loaded]

    @property
    def loaded(self) -> Sequence[LoadedPlugin]:
        """The loaded plugins: entry points by name, then the given objects."""
        return tuple(self.calls.loaded)

    def register(self) -> None:
        """Let every plugin register, in a stable order; what the library itself has comes first, so nothing shadows it.

        Raises:
            PluginError: A plugin raised, or took a name that is taken.
        """
        self.backends.plugin = self.layers.plugin = _BUILT_IN
        for scheme in ("memory", "sqlite", "files"):
            self.backends.checkpoint_backend(scheme, partial(_built_in, scheme, self.backends.runtime))
        for name, cls in _LAYERS.items():
            self.layers.built_in(name, cls)
        registries: dict[str, Registry] = {
            "register_models": self.models,
            "register_token_counters": self.counters,
            "register_item_types": self.item_types,
            "register_checkpoint_backends": self.backends,
            "register_memory_layers": self.layers,
            "register_services": self.services,
            "register_step_kinds": self.step_kinds,
            "register_record_transforms": self.transforms,
            "register_hooks": self.hooks,
            "register_event_sinks": self.event_sinks,
            "noetic_register": PluginRegistry(self),
        }
        self.calls.register()
        for hook, registry in registries.items():
            self.calls.call(hook, registry)


def load_plugins(allowed: Iterable[object] | None = None, *, runtime: Runtime = SYSTEM) -> Plugins:
    """Load plugins, by name from the entry points, and objects as they are.

    Args:
        allowed: Names and plugin objects; `None` takes the names of `NOETIC_PLUGINS`, and all when that is not set.
        runtime: The clock of the built-in backends.

    Raises:
        PluginError: A name is not installed, twice there, fails to load, or registers what is taken; or a plugin has no
            hook, or one of another form.
        ConfigError: `allowed` is not a list of names and plugins; code `"plugins"`.
    """
    return _load(_wanted(allowed), runtime)


def load_working_plugins() -> tuple[Plugins, Sequence[PluginError]]:
    """Load the plugins that a harness would load, without those that fail: for programs that look at plugins.

    Returns:
        The plugins, and for each that was left out why.

    Raises:
        PluginError: A name of `NOETIC_PLUGINS` is not installed, or is there twice.
    """
    wanted, working, problems = _wanted(None), list[str](), list[PluginError]()
    try:
        return _load(wanted, SYSTEM), ()
    except PluginError:
        for point in _entry_points(wanted.names, wanted.left_out):
            try:
                _load(wanted, SYSTEM, only=(*working, point.name))
                working.append(point.name)
            except PluginError as error:
                problems.append(error)
    return _load(wanted, SYSTEM, only=working), problems


def _load(wanted: _Wanted, runtime: Runtime, only: Container[str] | None = None) -> Plugins:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    plugins = Plugins(manager, runtime)
    for point in _entry_points(wanted.names, wanted.left_out):
        if only is not None and point.name not in only:
            continue
        known = LoadedPlugin.of(point, wanted.without(point.name))
        try:
            plugin = point.load()
        except (Exception, SystemExit) as error:
            raise known.refused(f"failed to load{known.package}: {type(error).__name__}: {error}") from error
        plugins.calls.add(plugin, known)
    for plugin in wanted.objects:
        plugins.calls.add(plugin, LoadedPlugin(_name_of(plugin, plugins.names)))
    plugins.transforms.asked_for = wanted.names is not None
    plugins.register()
    return plugins


def _name_of(plugin: object, taken: Sequence[str]) -> str:
    """A name for a plugin that was given as it is; that of its class or module, with a number where there are more."""
    own = plugin.__name__ if isinstance(plugin, type | ModuleType) else type(plugin).__name__
    name, number = own, 1
    while name in taken:
        name, number = f"{own}#{number + 1}", number + 1
    return name


@frozen
class _Wanted:
    """The plugins to load: names, `None` for all installed ones, exclusions, and objects."""

    names: Sequence[str] | None
    left_out: Sequence[str] = ()
    objects: Sequence[object] = ()
    listed: bool = False

    def without(self, name: str) -> str:
        """How to run without a plugin that is loaded by its name."""
        if self.listed:
            return "leave it out of plugins=[...]"
        said = [*(self.names or ()), *(f"-{each}" for each in (*self.left_out, name))]
        return f"go on without it: {ALLOW_LIST}={','.join(said)}"


def _wanted(allowed: Iterable[object] | None) -> _Wanted:
    if allowed is None:
        text = os.environ.get(ALLOW_LIST)
        given = [name.strip() for name in (text or "").split(",") if name.strip()]
        names, left_out = [n for n in given if n[0] != "-"], [n[1:] for n in given if n[0] == "-"]
        # Names that are only left out are taken from everything that is installed.
        return _Wanted(None if text is None or (left_out and not names) else names, left_out)
    if isinstance(allowed, str):
        raise ConfigError(f"plugins={allowed!r} is a text", code="plugins", hint=f"plugins=[{allowed!r}]")
    if not isinstance(allowed, Iterable):
        raise ConfigError(
            f"plugins={allowed!r:.60} is not a valid list of plugins; expected names and plugins",
            code="plugins",
            hint='plugins=["openai"]',
        )
    everything = list(allowed)
    if any(each is None for each in everything):
        raise ConfigError("plugins holds None", code="plugins", hint="names and plugin objects")
    objects = [each for each in everything if not isinstance(each, str)]
    return _Wanted([each for each in everything if isinstance(each, str)], (), objects, listed=True)


@cache
def _installed() -> tuple[EntryPoint, ...]:
    from importlib import metadata

    # It reads the files of every installed distribution, and what is installed does not change under a running program.
    return tuple(sorted(metadata.entry_points(group=GROUP), key=lambda each: each.name))


def _entry_points(names: Sequence[str] | None, left_out: Sequence[str] = ()) -> list[EntryPoint]:
    if names is not None and not names:
        return []
    found: dict[str, EntryPoint] = {}
    for point in _installed():
        if point.name in left_out or (names is not None and point.name not in names):
            continue
        if not _is_prefix(point.name.replace("_", "-").replace(".", "-")):
            raise PluginError(
                f"{point.name!a} ({point.value!a}) is not a valid name for a plugin",
                hint='uninstall it: a name is ASCII letters, digits, "-", "_" and "."',
            )
        other = next((each for name, each in found.items() if name.lower() == point.name.lower()), None)
        if other is not None and (other.name, other.value) != (point.name, point.value):
            raise PluginError(
                f"two distributions have a plugin named {point.name!r}: {other.value} and {point.value}",
                hint="uninstall one of them",
            )
        found[point.name] = point
    missing = [name for name in names or () if name not in {*found, *left_out}]
    if missing:
        raise PluginError(f"plugin {missing[0]!r} is not installed", hint=f"installed are {', '.join(found) or 'none'}")
    return list(found.values())
