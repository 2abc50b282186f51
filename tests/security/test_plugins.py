"""Plugins that take what is another's, or that are not what they say: refused by name when a harness is built."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noetic_py import Harness, plugins
from noetic_py.errors import ConfigError, ModelNotFound, PluginError
from noetic_py.plugins import hookimpl, load_plugins

ENTRY = "[noetic_py]\n"


def nothing(rest: str) -> Any:
    """A factory."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs distributions for this test alone: each a name, its entry points and the module they lead to."""
    patch: Any = monkeypatch
    patch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("NOETIC_PLUGINS", raising=False)
    made: list[str] = []
    number = itertools.count()

    def install(points: dict[str, str], source: str = "") -> str:
        module = f"hostile_plugin_{next(number)}_{tmp_path.name}".replace("-", "_")
        (tmp_path / f"{module}.py").write_text("from noetic_py.plugins import hookimpl\n" + source, encoding="utf-8")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        lines = "".join(f"{name} = {target.format(module=module)}\n" for name, target in points.items())
        (info / "entry_points.txt").write_text(ENTRY + lines, encoding="utf-8")
        made.append(module)
        plugins._installed.cache_clear()
        return module

    yield install
    plugins._installed.cache_clear()
    for module in made:
        sys.modules.pop(module, None)


MODELS = """
@hookimpl
def register_models(registry):
    registry.provider({prefix!r}, lambda name: None)
"""


def test_two_distributions_with_one_plugin(installed: Any) -> None:
    for prefix in ("one", "two"):
        installed({"acme": "{module}"}, MODELS.format(prefix=prefix))
    for given in (None, ["acme"]):
        with pytest.raises(PluginError, match="two distributions have a plugin named 'acme'"):
            load_plugins(given)
    assert load_plugins([]).names == []


@pytest.mark.parametrize("twin", ["OPENAI", "OpenAi"])
def test_a_name_in_capitals_is_no_other_name(installed: Any, twin: str) -> None:
    installed({"openai": "{module}"}, MODELS.format(prefix="one"))
    installed({twin: "{module}"}, MODELS.format(prefix="two"))
    with pytest.raises(PluginError, match="two distributions"):
        load_plugins()


@pytest.mark.parametrize(
    "name", ["\uff4fpenai", "op\u0435nai", "open\u00adai", "openai\u200b", "\u202eianepo", "ópenai"]
)
def test_a_name_that_only_looks_like_another_is_refused(installed: Any, name: str) -> None:
    installed({name: "{module}"}, MODELS.format(prefix="one"))
    with pytest.raises(PluginError, match="is not a valid name for a plugin") as caught:
        load_plugins()
    assert str(caught.value).isascii()
    # One that is not asked for does no harm.
    assert load_plugins([]).names == []


@pytest.mark.parametrize(
    "source", ["raise RuntimeError('no')", "import no_such_module", "raise SystemExit(3)", "(", "1/0"]
)
def test_a_plugin_that_fails_to_load(installed: Any, source: str) -> None:
    installed({"acme": "{module}"}, source)
    for given in (None, ["acme"]):
        with pytest.raises(PluginError, match="plugin 'acme' failed to load"):
            Harness(plugins=given)


BREAKS = {
    "while it is loaded": ("raise RuntimeError('no')", "failed to load"),
    "while it registers": (
        "@hookimpl\ndef register_models(registry):\n    raise KeyError(1)",
        "failed in register_models",
    ),
    "another version": ("HOOKS_VERSION = 7\n@hookimpl\ndef register_models(registry): ...", "version 7"),
    "other versions": (
        "HOOKS_VERSION = (7, 9)\n@hookimpl\ndef register_models(registry): ...",
        "versions 7 to 9 of the plugin interface .*, and this noetic-py has version 1",
    ),
    "another form": ("@hookimpl\ndef register_models(other): ...", "is not a valid hook"),
    "no mark": ("def register_models(registry): ...", "not marked"),
    "no hook": ("", "has no hook"),
    "a value": ("@hookimpl\ndef register_models(registry): return 1", "gave int back"),
}


@pytest.mark.parametrize(("source", "says"), BREAKS.values(), ids=BREAKS)
def test_a_plugin_that_breaks_names_its_package_and_the_way_to_go_on(
    installed: Any, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    module = installed({"acme": "{module}"}, source)
    monkeypatch.setenv("NOETIC_PLUGINS", "-local")
    with pytest.raises(PluginError, match=says) as caught:
        load_plugins()
    assert f"({module} 1.0)" in caught.value.message
    assert str(caught.value.hint).endswith("go on without it: NOETIC_PLUGINS=-local,-acme")
    monkeypatch.setenv("NOETIC_PLUGINS", "-local,-acme")
    assert "acme" not in load_plugins().names
    with pytest.raises(PluginError, match=says) as caught:
        load_plugins(["acme"])
    assert str(caught.value.hint).endswith("leave it out of plugins=[...]")


def test_names_may_be_left_out(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = installed({"bad": "{module}"}, "raise RuntimeError('imported')")
    for name in ("one", "two"):
        installed({name: "{module}"}, MODELS.format(prefix=name))
    monkeypatch.setenv("NOETIC_PLUGINS", "one,two,bad,-bad,-one")
    assert load_plugins().names == ["two"]
    monkeypatch.setenv("NOETIC_PLUGINS", "-bad, -not-there")
    everything = load_plugins()
    assert {"one", "two"} <= set(everything.names)
    assert not everything.transforms.asked_for
    assert bad not in sys.modules
    loaded = next(each for each in everything.loaded if each.name == "one")
    assert (loaded.version, loaded.hooks) == ("1.0", ["register_models"])
    assert loaded.distribution.startswith("hostile_plugin_")


@pytest.mark.parametrize("target", ["{module}:missing", "no_such_module_at_all", "{module}:a.b.c"])
def test_an_entry_point_that_leads_nowhere(installed: Any, target: str) -> None:
    installed({"acme": target})
    with pytest.raises(PluginError, match="failed to load"):
        load_plugins()


def test_what_is_not_allowed_is_not_even_imported(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = installed({"bad": "{module}"}, "raise RuntimeError('imported')")
    good = installed({"good": "{module}"}, MODELS.format(prefix="good"))
    assert load_plugins(["good"]).names == ["good"]
    monkeypatch.setenv("NOETIC_PLUGINS", " good ,")
    assert load_plugins().models.prefixes == ["good"]
    assert good in sys.modules
    assert bad not in sys.modules
    with pytest.raises(PluginError, match="plugin 'Good' is not installed"):
        load_plugins(["Good"])
    with pytest.raises(PluginError, match="'absent' is not installed"):
        load_plugins(["good", "absent"])


def test_the_one_hook_for_everything_is_found_and_narrowed_like_the_others(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "@hookimpl\ndef noetic_register(registry):\n    registry.provider({prefix!r}, lambda name: None)\n"
    for name in ("one", "two"):
        installed({name: "{module}"}, source.format(prefix=name))
    assert load_plugins(["one", "two"]).models.prefixes == ["one", "two"]
    monkeypatch.setenv("NOETIC_PLUGINS", "two")
    assert load_plugins().models.prefixes == ["two"]


def test_the_order_is_that_of_the_names(installed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("delta", "alpha", "charlie", "bravo"):
        installed({name: "{module}"}, MODELS.format(prefix=name))
    wanted = ["alpha", "bravo", "charlie", "delta"]
    for order in itertools.permutations(wanted):
        assert load_plugins(list(order)).names == wanted
    monkeypatch.setenv("NOETIC_PLUGINS", "delta,alpha,bravo,charlie")
    assert load_plugins().names == wanted


# ------------------------------------------------------------------------------------------ what they register


def registering(hook: str, *arguments: Any, method: str = "provider") -> object:

    class Acme:
        pass

    def register(self: Any, registry: Any) -> None:
        getattr(registry, method)(*arguments)

    setattr(Acme, hook, hookimpl(register))
    return Acme()


@pytest.mark.parametrize(
    "name",
    ["sqlite", "SQLite", "FILES", "Memory", "\uff53qlite", "sqlit\u0435", "sq\u200blite", "sqlite ", "", "a:b", 5],
)
def test_nothing_shadows_a_built_in_backend(name: Any) -> None:
    for hook in ("register_checkpoint_backends", "noetic_register"):
        with pytest.raises((PluginError, ConfigError)):
            load_plugins([registering(hook, name, nothing, method="checkpoint_backend")])


@pytest.mark.parametrize(
    ("hook", "method"),
    [
        ("register_models", "provider"),
        ("register_checkpoint_backends", "checkpoint_backend"),
        ("noetic_register", "provider"),
        ("noetic_register", "checkpoint_backend"),
    ],
)
def test_one_name_of_two_plugins(hook: str, method: str) -> None:
    for names in (("acme", "acme"), ("acme", "ACME")):
        with pytest.raises(PluginError, match="plugins 'Acme' and 'Acme#2' both provide"):
            load_plugins([registering(hook, name, nothing, method=method) for name in names])
    with pytest.raises(PluginError, match="as a factory"):
        load_plugins([registering(hook, "acme", 5, method=method)])


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("item_type", [str]),
        ("memory_layer", ["facts", str]),
        ("memory_layer", ["working-memory", object]),
        ("service", [str, None]),
        ("service", ["Db", object()]),
        ("record_transform", [object()]),
    ],
)
def test_one_registry_for_everything_refuses_what_each_does(method: str, wrong: list[Any]) -> None:
    with pytest.raises(PluginError):
        load_plugins([registering("noetic_register", *wrong, method=method)])


def hooked(function: Any, name: str = "register_models") -> object:
    made = type("Acme", (), {name: hookimpl(function)})
    return made()


async def late(self: Any, registry: Any) -> None:
    """Would never be run."""


def lazy(self: Any, registry: Any) -> Iterator[None]:
    yield


def fails(self: Any, registry: Any) -> None:
    raise KeyError("x")


def leaves(self: Any, registry: Any) -> None:
    raise SystemExit(3)


def gives(self: Any, registry: Any) -> int:
    return 5


def other(self: Any, models: Any) -> None:
    """Takes something else."""


def unknown(self: Any, registry: Any) -> None:
    """A hook of no name."""


ODD = {
    "async": (hooked(late), "gave coroutine back"),
    "generator": (hooked(lazy), "gave generator back"),
    "value": (hooked(gives), "gave int back"),
    "raises": (hooked(fails), "failed in register_models: KeyError"),
    "exits": (hooked(leaves), "failed in register_models: SystemExit"),
    "async, for everything": (hooked(late, "noetic_register"), "gave coroutine back in noetic_register"),
    "raises, for everything": (hooked(fails, "noetic_register"), "failed in noetic_register: KeyError"),
    "other arguments": (hooked(other), "is not a valid hook"),
    "unknown hook": (hooked(unknown, "register_everything"), "is not a valid hook"),
    "nothing": (object(), "has no hook"),
    "number": (5, "has no hook"),
}


@pytest.mark.parametrize(("plugin", "says"), ODD.values(), ids=ODD)
def test_a_plugin_of_another_form(plugin: object, says: str) -> None:
    with pytest.raises(PluginError, match=says) as caught:
        Harness(plugins=[plugin])
    assert "0x" not in str(caught.value).partition("Try:")[0] or says == "is not a valid hook"


def test_the_same_plugin_twice() -> None:
    plugin = registering("register_models", "acme", nothing)
    with pytest.raises(PluginError):
        load_plugins([plugin, plugin])


@pytest.mark.parametrize("given", [5, "acme", [None]])
def test_what_is_no_list_of_plugins(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugins(given)
    assert caught.value.code == "plugins"


def test_a_name_is_never_loaded_as_a_module() -> None:
    before = set(sys.modules)
    for name in ("os:system", "antigravity", "this:x", "noetic_py.cli:main", "../x:y"):
        with pytest.raises(ModelNotFound):
            load_plugins([]).models(name)
        with pytest.raises(ConfigError):
            Harness(plugins=[], checkpoints=name)
    assert set(sys.modules) - before <= {name for name in sys.modules if name.startswith("noetic_py.")}
