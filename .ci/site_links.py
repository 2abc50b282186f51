"""Check that pages link to their sources where the address of the repository is known, and only there.

Builds a site of two pages with the settings of `mkdocs.yml`, with the addresses and without them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("index", "guides/page")
SITE = "https://docs.example.org/noetic/0.1/"
REPOSITORY = "https://git.example.org/noetic"


def build(folder: Path, addresses: dict[str, str]) -> dict[str, str]:
    """The texts of the pages and of the map of the site."""
    for name in PAGES:
        source = folder / "docs" / f"{name}.md"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("# Page\n\nText.\n", encoding="utf-8")
    # JSON is YAML too.
    own = {"docs_dir": "docs", "plugins": ["search"], "hooks": [str(ROOT / ".ci" / "site_hooks.py")], "nav": None}
    settings = folder / "mkdocs.yml"
    settings.write_text(json.dumps({"INHERIT": str(ROOT / "mkdocs.yml"), **own}), encoding="utf-8")
    without = {name: value for name, value in os.environ.items() if name not in ("NOETIC_SITE", "NOETIC_REPOSITORY")}
    # Not with -q: a warning that is not logged is not counted.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings), "-d", str(folder / "site")]
    done = subprocess.run(command, env=without | addresses, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    built = (*(f"{name}.html" for name in PAGES), "sitemap.xml")
    return {name: (folder / "site" / name).read_text(encoding="utf-8") for name in built}


def main() -> int:
    """Print what is missing, and what should not be there."""
    with TemporaryDirectory() as folder:
        known = build(Path(folder), {"NOETIC_SITE": SITE, "NOETIC_REPOSITORY": REPOSITORY})
        unknown = build(Path(folder), {})
    # The selector of versions needs the folder of the version in the map.
    expected = [("sitemap.xml", f"<loc>{SITE}</loc>"), ("sitemap.xml", f"<loc>{SITE}guides/page.html</loc>")]
    for page in PAGES:
        links = (f'href="{REPOSITORY}"', f'href="{REPOSITORY}/edit/main/docs/{page}.md"', 'rel="edit"')
        expected += [(f"{page}.html", link) for link in links]
    wrong = [f"with the addresses, {page} has no {text}" for page, text in expected if text not in known[page]]
    wrong += [f"without them, {page} has {text}" for page, text in expected if text in unknown[page]]
    print("\n".join(wrong) or "pages link to their sources where the address of the repository is known")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
