"""Every Python block of the README and of the documentation runs as it stands.

A block is a program of its own. `<!-- not run: reason -->` on the line before takes one out. A block that is followed
by `<!-- output -->` and a fenced text has to print exactly that text. `test_typing.py` looks for type errors in all but
those that are "a part of" something.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from opentelemetry.util._once import Once

from noetic_py.core import diagnostics
from tests import peers

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("plugins/*/README.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)(?P=ticks) *$",
    re.DOTALL | re.MULTILINE,
)
NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->\s*\Z")
OUTPUT = re.compile(r"\s*<!-- output -->\s*```\w*\n(?P<text>.*?)^``` *$", re.DOTALL | re.MULTILINE)


class Snippet(NamedTuple):
    """One block of code."""

    page: str
    line: int
    code: str
    output: str | None
    skipped: str | None


def snippets(page: str, text: str) -> Iterator[Snippet]:
    """The Python blocks of a page, in order."""
    for found in FENCE.finditer(text):
        if found["language"] not in {"python", "py"}:
            continue
        indent = found["indent"]
        code = "".join(line.removeprefix(indent) for line in found["code"].splitlines(keepends=True))
        output = OUTPUT.match(text, found.end())
        skipped = NOT_RUN.search(text, 0, found.start())
        yield Snippet(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            code=code,
            output=output["text"] if output else None,
            skipped=skipped["reason"] if skipped else None,
        )


def all_snippets() -> list[Snippet]:
    pages = ((page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")) for page in PAGES if page.exists())
    return [snippet for name, text in pages for snippet in snippets(name, text)]


SNIPPETS = all_snippets()


def label(snippet: Snippet) -> str:
    return f"{snippet.page}:{snippet.line}"


def execute(code: str, path: Path) -> None:
    """Run a block as a module of its own, from a file, so that its source and its annotations can be found."""
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]


@contextmanager
def fresh_logging() -> Generator[None]:
    """A block sets up logging for a process of its own: it finds a root logger without handlers, and leaves none."""
    loggers = [logging.getLogger(), diagnostics.logger(""), *map(diagnostics.logger, get_args(diagnostics.Area))]
    before = [(each, each.handlers, each.level) for each in loggers]
    for each in loggers:
        each.handlers = []
    try:
        yield
    finally:
        for each, handlers, level in before:
            each.handlers = handlers
            each.setLevel(level)


@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if s.skipped is None], ids=label)
def test_snippet(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # A snippet may set the provider of its process, which the API allows once.
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER_SET_ONCE", Once())
    stem = re.sub(r"\W+", "_", label(snippet))
    with fresh_logging():
        execute(snippet.code, tmp_path / f"snippet_{stem}.py")
    if snippet.output is not None:
        assert capsys.readouterr().out == snippet.output


def is_part(snippet: Snippet) -> bool:
    """Whether a block is no program of its own, so that nothing can be checked of it."""
    return (snippet.skipped or "").startswith("a part of")


def test_the_readme_shows_code() -> None:
    assert any(snippet.page == "README.md" for snippet in SNIPPETS)


def test_the_pages_on_other_libraries_show_what_was_run() -> None:
    """`python -m tests.peers` makes the table; here it is compared with the pages, whose programs have to compile."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+) \| (\S+) (\S+) \| as shown \| as shown \|$", text, re.MULTILINE)
    pages = list(peers.peers())
    assert rows == [(peer.name, peer.package, peer.version) for peer in pages]
    assert len(pages) == len(list(peers.PAGES.iterdir()))
    for peer in pages:
        compile(peer.program, peer.name, "exec")


def test_blocks_are_found() -> None:
    text = """Intro

```python
print("a")
```

<!-- output -->
```text
a
```

<!-- not run: needs a key -->
```python
nope
```

1. in a list
    ```python
    x = [
        1]
    ```

```sh
ls
```
"""
    first, second, third = snippets("page.md", text)
    assert (first.line, first.code, first.output, first.skipped) == (3, 'print("a")\n', "a\n", None)
    assert second.skipped == "needs a key"
    assert third.code == "x = [\n    1]\n"
