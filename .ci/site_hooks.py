"""Hooks of the documentation's build: its links and search, folded overloads, and the texts for language models."""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Protocol

ALSO = re.compile(r"# [^\n]+\n\n\*Also called: (.*?)\.\*$", re.DOTALL | re.MULTILINE)

SIGNATURE = r'\s*<div class="doc-signature highlight">.*?</pre>\s*</div>'
OVERLOADS = re.compile(rf'<div class="doc-overloads">({SIGNATURE})((?:{SIGNATURE})+)\s*</div>', re.DOTALL)

ROOT = re.compile(r"<p>noetic_py: typed, budgeted, [^<]*</p>")

# Guides come first, then what is generated, then what is written for maintainers.
BOOSTS = {"migrate": 0.5, "api": 0.1}
MAINTAINERS = {"changelog.md", "coverage.md", "design.md", "how-to-add.md", "performance.md", "reliability.md"}


class File(Protocol):
    """What the hooks use of mkdocs' `File`; mkdocs is not installed where types are checked."""

    src_uri: str


class Page(Protocol):
    """What the hooks use of mkdocs' `Page`."""

    file: File
    meta: dict[str, object]
    title: str
    url: str
    markdown: str
    ancestors: Sequence[Section]


class Section(Protocol):
    """What the hooks use of mkdocs' `Section`."""

    title: str


class Navigation(Protocol):
    """What the hooks use of mkdocs' `Navigation`."""

    pages: Sequence[Page]


ORDER: list[Page] = []
"""The pages as the navigation lists them: mkdocs hands it to one hook, and the texts are written by another one."""


def on_config(config: MutableMapping[str, object], **_: object) -> None:
    """Leave out the links for editing a page when the address of the sources is not known."""
    if not config["repo_url"]:
        config["edit_uri"] = None


def on_nav(nav: Navigation, **_: object) -> None:
    """Keep the order of the pages."""
    ORDER[:] = nav.pages


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
    """Fold the overloads of a function after the first, and leave out the docstring of the root."""

    def folded(found: re.Match[str]) -> str:
        count = found[2].count("doc-signature")
        return f"{found[1]}<details><summary>{count} more overload{'s' * (count > 1)}</summary>{found[2]}</details>"

    return OVERLOADS.sub(folded, ROOT.sub("", html))


def on_post_template(output_content: str, template_name: str, config: Mapping[str, object], **_: object) -> str:
    """The same for the page of a wrong address, which is not made from Markdown."""
    if template_name == "sitemap.xml":
        # The selector of versions stays on a page only if the map lists the folder of the other version.
        root = f"<loc>{str(config['site_url']).rstrip('/')}/"
        return output_content.replace(f"{root}index.html</loc>", f"{root}</loc>")
    return on_post_page(output_content)


def on_post_page(output: str, **_: object) -> str:
    """Name the search, and the switches that open it and the menu, for screen readers."""
    search = 'data-md-component="search" role="dialog"'
    output = output.replace(search, f'{search} aria-label="Search"')
    for switch, name in (("__search", "Search"), ("__drawer", "Menu")):
        output = output.replace(f'type="checkbox" id="{switch}"', f'type="checkbox" id="{switch}" aria-label="{name}"')
    return output


def on_post_build(config: Mapping[str, str], **_: object) -> None:
    """Write the texts for language models, and mend the search."""
    site = Path(config["site_dir"])
    _write_texts(site, f"# {config['site_name']}\n\n> {config['site_description']}\n")
    _mend_search(site)


def _write_texts(site: Path, head: str) -> None:
    """Write `llms.txt`, a list of the pages with what each is about, and `llms-full.txt`, the pages for users."""
    listed, whole = [head], [head]
    section = ""
    for page in ORDER:
        above = page.ancestors[-1].title if page.ancestors else "Overview"
        if above != section:
            listed.append(f"\n## {above}\n")
        section = above
        words = page.meta.get("tags")
        about = f": {', '.join(map(str, words))}" if isinstance(words, list) else ""
        listed.append(f"- [{page.title}]({page.url}){about}")
        if page.file.src_uri not in MAINTAINERS and not page.file.src_uri.startswith("api/"):
            whole.append(f"\n<!-- {page.url} -->\n\n{page.markdown.strip()}")
    for name, lines in (("llms.txt", listed), ("llms-full.txt", whole)):
        (site / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _mend_search(site: Path) -> None:
    """Keep the search from mixing up words with digits.

    lunr names a node of its words by its letters and the numbers of the nodes behind them, one after the other, so that
    "3" before node 45 and "34" before node 5 are one name. A search that meets such a word raises an error, and the
    reader sees no result.
    """
    [worker] = site.glob("assets/javascripts/workers/search.*.js")
    mended, count = re.subn(r"(\w)=\1\+(\w)\+(\w)\.id\}", r'\1=\1+\2+\3.id+","}', worker.read_text(encoding="utf-8"))
    if count != 1:
        raise RuntimeError(f"the search of the theme has changed: {count} places name a node of lunr's words")
    worker.write_text(mended, encoding="utf-8")
