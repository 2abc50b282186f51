"""The public interface with its types, one name a line: compare it with `.ci/public_api.txt`, or `--write` that file.

Public is what the modules on the pages in `docs/api` list in `__all__`; of a module without that list, what it defines
under a name with no leading underscore. The sources are read and nothing is imported, so the text is the same for every
version of Python. A name that is public in two modules is described in one of them, so that code can move without a
change here.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / ".ci" / "public_api.txt"
RENEW = ".venv/bin/uv run --locked --all-packages python .ci/public_api.py --write"
_OWN = re.compile(rf"\b(?:{'|'.join(sorted({file.stem for file in ROOT.glob('noetic_py/**/*.py')}))})\.(?=[A-Z])")
_SILENT = {"__repr__", "__str__", "__slots__", "__all__", "__module__", "__doc__", "__hash__"}


def documented(pages: Path) -> list[str]:
    """The modules and names that the pages describe."""
    found = (re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE) for page in pages.glob("*.md"))
    return sorted({name for names in found for name in names})


def surface(package: str, places: Iterable[str], folder: Path) -> list[str]:
    """The lines of a package.

    Args:
        package: Its name.
        places: The modules whose names are public, and single names.
        folder: Where the package is.
    """
    loader = griffe.GriffeLoader(search_paths=[folder], allow_inspection=False)
    root = loader.load(package)
    loader.resolve_aliases(external=False)
    public: dict[str, griffe.Object] = {}
    for place in sorted(places):
        found = root if place == package else root[place.removeprefix(f"{package}.")]
        for name in [f"{place}.{name}" for name in _names(found)] if found.is_module else [place]:
            public[name] = _target(root[name.removeprefix(f"{package}.")])
    lines: list[str] = []
    known: dict[str, str] = {}
    # The shortest path describes a name.
    for path in sorted(public, key=lambda each: (each.count("."), each)):
        first = known.setdefault(public[path].path, path)
        lines += [f"{path}: is {first}"] if first != path else []
    for path in known.values():
        lines += _described(path, public[path], known)
    return sorted(lines)


def _shown(hint: object) -> str:
    """A type as users know it: a class of the library's without the module that the code has it from."""
    return _OWN.sub("", str(hint))


def _names(module: griffe.Object | griffe.Alias) -> list[str]:
    """The public names of a module; its type variables are left out."""
    if module.exports is not None:
        return [str(name) for name in module.exports]
    own = {name: each for name, each in module.members.items() if not each.is_alias and not each.is_module}
    return [name for name, each in own.items() if not name.startswith("_") and not _is_variable(_target(each))]


def _is_variable(found: griffe.Object) -> bool:
    return isinstance(found, griffe.Attribute) and str(found.value).startswith(("TypeVar(", "ParamSpec("))


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def _described(path: str, found: griffe.Object, known: Container[str]) -> Iterator[str]:
    if isinstance(found, griffe.Function):
        yield from _functions(path, found)
    elif isinstance(found, griffe.Class):
        yield f"{path}: {_marks(found.decorators)}class({', '.join(_shown(base) for base in found.bases)})"
        for name, member in found.all_members.items():
            target = _target(member)
            # What is inherited from a public class is described there.
            inherited = member.inherited and (target.parent is None or target.parent.path in known)
            if _is_public(name) and not inherited:
                yield from _described(f"{path}.{name}", target, known)
    elif isinstance(found, griffe.Attribute):
        kind = "property " if "property" in found.labels else ""
        kind = f"settable {kind}" if found.setter is not None else kind
        # What a constructor sets is its own affair.
        shown = found.value is not None and found.labels != {"instance-attribute"}
        hint = _shown(found.annotation) if found.annotation is not None else "no annotation"
        yield f"{path}: {kind}{hint}{f' = {_shown(found.value)}' if shown else ''}"
    else:
        yield f"{path}: {found.kind.value}"


def _functions(path: str, function: griffe.Function) -> Iterator[str]:
    for each in function.overloads or [function]:
        start = "async " if "async" in each.labels else ""
        marks = _marks(mark for mark in each.decorators if str(mark.value) != "overload")
        yield f"{path}: {marks}{start}({', '.join(_parameters(each))}) -> {_shown(each.returns)}"


def _parameters(function: griffe.Function) -> Iterator[str]:
    kinds = griffe.ParameterKind
    before: griffe.ParameterKind | None = None
    for each in function.parameters:
        if before is kinds.positional_only and each.kind is not before:
            yield "/"
        if each.kind is kinds.keyword_only and before not in (kinds.keyword_only, kinds.var_positional):
            yield "*"
        star = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(each.kind or kinds.positional_or_keyword, "")
        hint = f": {_shown(each.annotation)}" if each.annotation is not None else ""
        default = f" = {_shown(each.default)}" if each.default is not None and not star else ""
        yield f"{star}{each.name}{hint}{default}"
        before = each.kind
    if before is kinds.positional_only:
        yield "/"


def _marks(decorators: Iterable[griffe.Decorator]) -> str:
    return "".join(f"@{mark.value} " for mark in decorators)


def _is_public(name: str) -> bool:
    if name.startswith("__") and name.endswith("__"):
        return name not in _SILENT
    return not name.startswith("_")


def differences(before: list[str], after: list[str]) -> list[str]:
    """What has changed, as lines of a diff; empty for nothing."""
    found = difflib.unified_diff(before, after, "public_api.txt", "the sources", lineterm="", n=0)
    return [line for line in found if not line.startswith("@@")]


def main(arguments: list[str]) -> int:
    """Compare, or write."""
    lines = surface("noetic_py", documented(ROOT / "docs" / "api"), ROOT)
    if arguments == ["--write"]:
        LIST.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return 0
    changed = differences(LIST.read_text(encoding="utf-8").splitlines(), lines)
    if changed:
        print(*changed, sep="\n")
        print(f"\nThe public interface has changed. Where that is meant, write it down:\n  {RENEW}")
        return 1
    print(f"{len(lines)} lines of public interface, as written down")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
