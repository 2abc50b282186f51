"""Hooks of the documentation's build: its search, and overloads that are folded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

ALSO = re.compile(r"# [^\n]+\n\n\*Also called: (.*?)\.\*$", re.DOTALL | re.MULTILINE)

SIGNATURE = r'\s*<div class="doc-signature highlight">.*?</pre>\s*</div>'
OVERLOADS = re.compile(rf'<div class="doc-overloads">({SIGNATURE})((?:{SIGNATURE})+)\s*</div>', re.DOTALL)

# Guides come first, then what is generated, then what is written for maintainers.
BOOSTS = {"migrate": 0.5, "api": 0.1}
MAINTAINERS = {"coverage.md", "design.md", "how-to-add.md", "performance.md", "reliability.md"}


class File(Protocol):
    """What the hooks use of mkdocs' `File`; mkdocs is not installed where types are checked."""

    src_uri: str


class Page(Protocol):
    """What the hooks use of mkdocs' `Page`."""

    file: File
    meta: dict[str, object]


def on_page_markdown(markdown: str, page: Page, **_: object) -> None:
    """Tag a page with the words below its title, and rank it by its part of the site."""
    source = page.file.src_uri
    folder = source.rpartition("/")[0]
    also = ALSO.match(markdown)
    if also:
        page.meta["tags"] = " ".join(also[1].split()).split(", ")
    elif folder == "migrate":
        page.meta["tags"] = [markdown.partition("\n")[0].removeprefix("# Coming from ")]
    page.meta["search"] = {"boost": 0.05 if source in MAINTAINERS else BOOSTS.get(folder, 1.0)}


def on_page_content(html: str, **_: object) -> str:
    """Show the first overload of a function, and the others when they are asked for."""

    def folded(found: re.Match[str]) -> str:
        count = found[2].count("doc-signature")
        return f"{found[1]}<details><summary>{count} more overload{'s' * (count > 1)}</summary>{found[2]}</details>"

    return OVERLOADS.sub(folded, html)


def on_post_build(config: Mapping[str, str], **_: object) -> None:
    """Keep the search from mixing up words with digits.

    lunr names a node of its words by its letters and the numbers of the nodes behind them, one after the other, so that
    "3" before node 45 and "34" before node 5 are one name. A search that meets such a word raises an error, and the
    reader sees no result.
    """
    [worker] = Path(config["site_dir"]).glob("assets/javascripts/workers/search.*.js")
    mended, count = re.subn(r"(\w)=\1\+(\w)\+(\w)\.id\}", r'\1=\1+\2+\3.id+","}', worker.read_text(encoding="utf-8"))
    if count != 1:
        raise RuntimeError(f"the search of the theme has changed: {count} places name a node of lunr's words")
    worker.write_text(mended, encoding="utf-8")
