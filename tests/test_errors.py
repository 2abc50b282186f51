from __future__ import annotations

import copy
import inspect
import pickle
import re
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import pytest

from noetic_py import Harness, Secret, errors, step
from noetic_py.errors import (
    BudgetExceeded,
    CodecError,
    ConfigError,
    ModelError,
    ModelStatusError,
    ModelUnavailable,
    NoeticDeprecationWarning,
    NoeticError,
    NoeticWarning,
    ParallelFailed,
    RateLimited,
    StepFailed,
    StepTimeout,
)
from noetic_py.redaction import with_article
from tests.public_names import public_names

CLASSES: list[type[BaseException]] = [getattr(errors, name) for name in public_names(errors)]
ERRORS = [cls for cls in CLASSES if issubclass(cls, NoeticError)]


NAMED = ("an approval", "a question", "an int", "a UserState", "an UnknownTool", "a unit", "an update", "an 'object'")


@pytest.mark.parametrize("text", NAMED)
def test_a_name_in_a_message_has_the_right_article(text: str) -> None:
    assert with_article(text.partition(" ")[2]) == text


VALUES: dict[str, Any] = {
    "message": "it broke",
    "action": "resume",
    "code": "step-id",
    "path": ("flow", "step"),
    "hint": "mend it",
    "error_type": "ValueError",
    "error_message": "no",
    "seconds": 1.5,
    "succeeded": {0: "x"},
    "failed": {1: NoeticError("no")},
    "first": NoeticError("no"),
    "limit": 3,
    "what": "nesting",
    "dimension": "tokens",
    "requested": 2,
    "settled": 1,
    "shared": "team-a",
    "period": "2026-11",
    "reserved": 4,
    "model": "openai:gpt-5-mini",
    "reason": "enough",
    "status": 500,
    "body": "text",
    "retry_after": 2.0,
    "tool": "search",
    "call_id": "call-1",
    "where": "content[0]",
    "extra": "rich",
    "install": "pip install rich",
    "channel": "jobs",
    "waiting": 3,
    "entry": "history",
    "index": 0,
    "kind": "function_call",
    "name": "db-password",
    "layer": "notes",
    "hook": "recall",
    "event": "after_model",
    "run_id": "run-1",
    "position": 3,
    "transform": "signing",
    "verdict": "forged",
    "failures": (("test:a", ModelUnavailable("gone", model="test:a")),),
}


def make(cls: type[NoeticError]) -> NoeticError:
    """An error with every argument it takes."""
    parameters = inspect.signature(cls).parameters.values()
    positional = [VALUES[p.name] for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keyword = {p.name: VALUES[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    return cls(*positional, **keyword)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_fields_are_what_was_given(cls: type[NoeticError]) -> None:
    error = make(cls)
    for name in inspect.signature(cls).parameters:
        if name not in ("message", "install", "first"):
            assert getattr(error, name) == VALUES[name]
    assert error.result is None
    assert isinstance(error.path, tuple)
    assert error.message in str(error)
    if error.hint is not None:
        assert f"\n  Try: {error.hint}" in str(error)
    if error.path:
        assert "[at flow/step]" in str(error)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_errors_survive_pickling_and_copying(cls: type[NoeticError]) -> None:
    """An error crosses process borders: pools, test runners, loggers."""
    error = make(cls)
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is cls
        assert str(other) == str(error)
        assert other.path == error.path
        assert other.hint == error.hint


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    text = errors.__doc__ or ""
    drawn = {
        match.group(2): len(match.group(1)) // 4
        for match in re.finditer(r"^((?:│   |    )*[├└]── )(\w+)", text, re.MULTILINE)
    }
    assert set(drawn) == {cls.__name__ for cls in ERRORS} - {"NoeticError"}
    for cls in ERRORS:
        depth = sum(issubclass(parent, NoeticError) for parent in cls.__mro__) - 1
        assert drawn.get(cls.__name__, 0) == depth, cls


def test_a_message_may_be_empty() -> None:
    assert str(NoeticError()) == ""
    assert str(NoeticError("it broke")) == "it broke"


def test_the_inner_step_names_the_path() -> None:
    error = NoeticError("it broke")
    assert error.at(("flow", "step")) is error
    error.at(("flow",))
    assert error.path == ("flow", "step")
    assert str(error) == "it broke [at flow/step]"


ROW = re.compile(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", re.DOTALL)


async def test_a_notebook_shows_an_error_as_a_table() -> None:
    @step
    async def read(port: str) -> str:
        raise ConfigError(f"no <table> for {port}", code="tables", hint="give & take")

    async with Harness() as harness:
        with pytest.raises(ConfigError) as caught:
            await harness.run(read, "Brest")
    rows = dict(ROW.findall(caught.value._repr_html_()))
    assert caught.value.result is not None
    assert "test_errors.py" in rows.pop("note")
    assert rows == {
        "error": "ConfigError",
        "message": "no &lt;table&gt; for Brest",
        "step": "read",
        "try": "give &amp; take",
        "run": caught.value.result.run_id,
    }
    assert dict(ROW.findall(NoeticError("it broke")._repr_html_())) == {"error": "NoeticError", "message": "it broke"}


class Shell:
    """Does what IPython's shell does with an error that a cell raises, as far as the error takes part."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.display_pub = SimpleNamespace(publish=self.shown.append)
        self.InteractiveTB = SimpleNamespace(structured_traceback=traceback.format_exception)


def test_a_failed_cell_shows_the_table_once_and_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    key = Secret("0123456789abcdef", name="key")
    error = NoeticError("it broke")
    try:
        raise error from ValueError(f"not accepted: {key.reveal()}")
    except NoeticError:
        lines = error._render_traceback_()
    assert shell.shown == [{"text/html": error._repr_html_()}]
    assert "not accepted: [secret]" in "".join(lines)
    assert lines[-1].endswith("NoeticError: it broke\n")
    # IPython asks again when it writes its history.
    assert error._render_traceback_() == lines
    assert len(shell.shown) == 1


def test_what_python_knows_too() -> None:
    assert issubclass(StepTimeout, TimeoutError)
    assert issubclass(errors.ChannelTimeout, TimeoutError)
    assert issubclass(errors.StateTypeError, TypeError)
    assert issubclass(errors.InvalidId, ValueError)
    assert issubclass(NoeticWarning, UserWarning)
    assert issubclass(NoeticDeprecationWarning, DeprecationWarning)


def test_step_failed_says_type_and_message() -> None:
    assert StepFailed(path=("a",), error_type="KeyError", error_message="'x'").message == "KeyError: 'x'"
    assert StepFailed(path=("a",), error_type="KeyError", error_message="").message == "KeyError"


def test_step_timeout_says_how_long() -> None:
    assert "1.5 s" in str(StepTimeout(1.5, path=("slow",)))


def test_parallel_failed_counts() -> None:
    no = NoeticError("no", path=("p", "a[0]"))
    one = ParallelFailed(succeeded={}, failed={0: no}, first=no)
    two = ParallelFailed(succeeded={}, failed={0: no, 1: no}, first=no)
    assert "1 path failed" in str(one)
    assert "2 paths failed" in str(two)
    assert one.__cause__ is no
    assert "settle" in (one.hint or "")


def test_budget_exceeded_names_the_argument_to_raise() -> None:
    error = BudgetExceeded("per_tool:search", limit=3, requested=1, settled=3)
    assert "per_tool=" in (error.hint or "")
    assert "3 per_tool:search" in str(error)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (408, True), (409, True), (429, True), (500, True)])
def test_which_statuses_are_worth_another_try(status: int, retryable: bool) -> None:
    assert ModelStatusError("no", model="m", status=status).retryable is retryable


def test_a_rate_limit_says_how_long_to_wait() -> None:
    error = RateLimited("slow down", model="m", retry_after=2.5)
    assert (error.retry_after, error.status, error.retryable) == (2.5, 429, True)
    assert RateLimited("slow down", model="m").retry_after is None
    assert not ModelError("no", model="m").retryable


def test_a_codec_error_says_where() -> None:
    assert str(CodecError("bad", where="a[0].b")) == "a[0].b: bad"
    assert str(CodecError("bad")) == "bad"


def test_a_config_error_has_a_code() -> None:
    error = ConfigError("wrong", code="step-id", hint="rename it")
    assert (error.code, error.hint, error.path) == ("step-id", "rename it", ())
    assert str(error) == "wrong\n  Try: rename it"
