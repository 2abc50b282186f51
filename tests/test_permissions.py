"""Rules that allow, ask or deny: what they fit, and which counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noetic_py.errors import ConfigError
from noetic_py.tools.permissions import PermissionRule, decide

ACTIONS = ("deny", "ask", "allow")


@pytest.mark.parametrize(
    ("tool", "where", "called", "arguments", "fits"),
    [
        ("*", {}, "anything", {}, True),
        ("read_*", {}, "read_file", {}, True),
        ("read_*", {}, "Read_file", {}, False),
        ("read_*", {}, "x_read_file", {}, False),
        ("facts/*", {}, "facts__remember", {}, True),
        ("shell", {"command": "git *"}, "shell", {"command": "git status"}, True),
        ("shell", {"command": "git *"}, "shell", {"command": "sudo git status"}, False),
        ("shell", {"command": "git *"}, "shell", {}, False),
        ("pay", {"amount": "[0-9]"}, "pay", {"amount": 7}, True),
        ("pay", {"amount": "[0-9]"}, "pay", {"amount": 70}, False),
        ("pay", {"sure": "true"}, "pay", {"sure": True}, True),
        ("send", {"to": '["a","b"]'}, "send", {"to": ["a", "b"]}, False),
        ("send", {"to": '[[]"a","b"]'}, "send", {"to": ["a", "b"]}, True),
    ],
)
def test_what_a_rule_fits(tool: str, where: dict[str, str], called: str, arguments: dict[str, Any], fits: bool) -> None:
    assert PermissionRule("allow", tool, where).fits(called, arguments) is fits


def test_paths_have_to_lie_in_a_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "data", tmp_path / "data-of-others"
    for folder in (inside, outside):
        folder.mkdir()
    (inside / "link").symlink_to(outside)
    rule = PermissionRule("allow", "write", within="path", folders=[inside])
    good = [inside, inside / "a", inside / "a" / ".." / "b", inside / "not" / "there"]
    bad = [outside / "a", inside / ".." / "x", inside / "link" / "x", "", "relative", "\0", 5, None, tmp_path]
    assert [rule.fits("write", {"path": os.fspath(path)}) for path in good] == [True] * len(good)
    assert [rule.fits("write", {"path": str(path) if isinstance(path, Path) else path}) for path in bad] == [False] * 9
    assert not rule.fits("write", {})
    assert PermissionRule("allow", "write", within="path", folders="/").fits("write", {"path": "/etc"})


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(["*", "a*", "ab", "b"]))), st.sampled_from(ACTIONS))
def test_the_strictest_counts_in_any_order(given_rules: list[tuple[Any, str]], otherwise: Any) -> None:
    rules = [PermissionRule(action, tool) for action, tool in given_rules]
    fitting = [rule.action for rule in rules if rule.fits("ab", {})]
    expected = min(fitting, key=ACTIONS.index, default=otherwise)
    for order in (rules, rules[::-1]):
        action, rule = decide(order, "ab", {}, otherwise=otherwise)
        assert (action, rule is None) == (expected, not fitting)


@pytest.mark.parametrize(
    "settings",
    [
        {"action": "maybe"},
        {"action": "ask", "tool": ""},
        {"action": "ask", "tool": 5},
        {"action": "ask", "where": {"command": 5}},
        {"action": "ask", "where": {5: "x"}},
        {"action": "ask", "within": ["path"]},
        {"action": "ask", "folders": ["/srv"]},
        {"action": "ask", "within": "path", "folders": [b"/srv"]},
    ],
)
def test_rules_that_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        PermissionRule(**settings)
    assert caught.value.code == "permission"


def test_a_hostile_pattern_takes_no_time() -> None:
    rule = PermissionRule("deny", "*a" * 50 + "b", {"x": "*a" * 50 + "b"})
    assert not rule.fits("a" * 50_000, {"x": "a" * 50_000})
