"""A flow's tree, drawn as a Mermaid flowchart or as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from attrs import define, frozen

GraphForm: TypeAlias = Literal["mermaid", "svg"]

_CHARACTER, _LINE, _MARGIN = 7.4, 17, 12
_ACROSS, _DOWN = 22, 48
_STYLE = """text{font:13px ui-monospace,monospace;fill:#1d2733}.small{font-size:11px;fill:#52606d}
rect{fill:#fff;stroke:#52606d}.model{fill:#e8eefc;stroke:#3b5bbd}.choice{fill:#fdf6e3;stroke:#b58900}
.inside{fill:#e3f6ea;stroke:#2b8a53}path{fill:none;stroke:#9aa5b1}
@media(prefers-color-scheme:dark){text{fill:#e4e7eb}.small{fill:#a8b3bf}rect{fill:#1f2730;stroke:#9aa5b1}
.model{fill:#1b2747}.choice{fill:#3a3115}.inside{fill:#173525}}"""
_CLASSES = {"(": "model", "{": "choice", "[[": "inside"}


@frozen
class Box:
    """A step of a flow as it is drawn.

    Attributes:
        lines: How it is named, and below that what it has been given, a line each.
        outline: What stands around its label in a Mermaid flowchart.
        below: The steps that it declares, each with the label of the way to it.
    """

    lines: Sequence[str]
    outline: tuple[str, str]
    below: Sequence[tuple[str, Box]]


def drawn(box: Box, form: GraphForm) -> str:
    """The tree, top down.

    Args:
        box: The step at the top, with all below it.
        form: `"mermaid"` for a flowchart of Mermaid, `"svg"` for a picture that needs no other program.
    """
    if form == "svg":
        return _svg(box)
    lines = ["flowchart TD"]
    _draw(box, lines, [0])
    return "\n".join(lines) + "\n"


def _draw(box: Box, lines: list[str], counter: list[int]) -> str:
    name = f"n{counter[0]}"
    counter[0] += 1
    left, right = box.outline
    lines.append(f'    {name}{left}"{"<br/>".join(map(_text, box.lines))}"{right}')
    for way, child in box.below:
        below = _draw(child, lines, counter)
        arrow = f'-->|"{_text(way)}"|' if way else "-->"
        lines.append(f"    {name} {arrow} {below}")
    return name


def _text(text: str) -> str:
    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace('"', "&quot;").replace("\n", " ")


@define(eq=False)
class _Placed:
    """A step with the place of its box: the middle of its upper edge."""

    lines: Sequence[str]
    kind: str
    below: list[tuple[str, _Placed]]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _CHARACTER + 2 * _MARGIN

    @property
    def height(self) -> float:
        return _LINE * len(self.lines) + _MARGIN

    def place(self, left: float, top: float) -> float:
        """Put it and all below it to the right of a line, and say how wide that is."""
        inner = left
        for _, child in self.below:
            inner += child.place(inner, top + self.height + _DOWN) + _ACROSS
        span = max(self.width, inner - _ACROSS - left if self.below else 0.0)
        shift = (span - (inner - _ACROSS - left)) / 2 if self.below else 0.0
        if shift > 0:
            for _, child in self.below:
                child.move(shift)
        self.x, self.y = left + span / 2, top
        return span

    def move(self, right: float) -> None:
        for each in self.walk():
            each.x += right

    def walk(self) -> Iterator[_Placed]:
        yield self
        for _, child in self.below:
            yield from child.walk()


def _placed(box: Box) -> _Placed:
    return _Placed(box.lines, _CLASSES.get(box.outline[0], ""), [(way, _placed(child)) for way, child in box.below])


def _svg(box: Box) -> str:
    root = _placed(box)
    width = root.place(_MARGIN, _MARGIN) + 2 * _MARGIN
    height = max(each.y + each.height for each in root.walk()) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"',
        f"role='img'><title>{_text(root.lines[0])}</title><style>{_STYLE}</style>",
    ]
    for each in root.walk():
        parts += _box(each)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(placed: _Placed) -> Iterator[str]:
    bottom = placed.y + placed.height
    for way, child in placed.below:
        middle = bottom + _DOWN / 2
        yield f'<path d="M{placed.x:.1f} {bottom:.1f}V{middle:.1f}H{child.x:.1f}V{child.y:.1f}"/>'
        yield _line(child.x + 4, child.y - 8, way, "small", "start")
    left = placed.x - placed.width / 2
    size = f'x="{left:.1f}" y="{placed.y:.1f}" width="{placed.width:.1f}" height="{placed.height:.1f}"'
    yield f'<rect {size} rx="6" class="{placed.kind}"/>'
    for number, line in enumerate(placed.lines):
        yield _line(placed.x, placed.y + _LINE * (number + 1), line, "small" if number else "", "middle")


def _line(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{_text(text)}</text>'
