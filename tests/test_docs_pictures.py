"""The pictures of the documentation are what their script draws, and a page shows each of them."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

DOCS = Path(__file__).resolve().parent.parent / "docs"
FOLDER = DOCS / "pictures"
DRAWN = runpy.run_path(str(FOLDER / "draw.py"))["PICTURES"]


def test_the_files_are_what_the_script_draws() -> None:
    assert {path.stem for path in FOLDER.glob("*.svg")} == set(DRAWN)
    for name, draw in DRAWN.items():
        # The demo takes seconds: `test_cli_starting.py` draws it when it has run there.
        if name == "demo":
            continue
        text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert text == draw().svg(), f"python docs/pictures/draw.py draws {name} anew"
        assert ET.fromstring(text).findtext("{http://www.w3.org/2000/svg}title")


def test_a_page_shows_each_picture() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    assert [name for name in DRAWN if f"pictures/{name}.svg)" not in pages] == []
