"""The library without its calls for spans and metrics, to see what they cost where nothing records them."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import CodeType, FunctionType, ModuleType

from benchmarks.measure import Measurement

# A program that has the interface loaded and sets no provider asks the most.
for _name in ("opentelemetry.metrics", "opentelemetry.trace"):
    import_module(_name)

NAMES = frozenset({"tracer", "metrics", "own_span", "_span", "span"})
"""What the engine asks whether it is there: a tracer, instruments, or a span that was begun."""


class Cut(ast.NodeTransformer):
    """Makes of every question whether something records what it is without a provider; the compiler drops the rest."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """`tracer is None` is so."""
        match node:
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as asked], comparators=[ast.Constant(value=None)]) if _named(
                node.left
            ):
                return ast.copy_location(ast.Constant(isinstance(asked, ast.Is)), node)
            case _:
                return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`tracer()` and `metrics()` look for a provider."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and _named(node.func):
            return ast.copy_location(ast.Constant(None), node)
        return node

    def visit_With(self, node: ast.With) -> ast.AST | list[ast.stmt]:
        """A block in no span is its statements."""
        self.generic_visit(node)
        match node.items:
            case [ast.withitem(context_expr=ast.IfExp(test=ast.Constant(value=True), body=ast.Name(id="_NO_SPAN")))]:
                return node.body
            case _:
                return node


def _named(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in NAMES


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for value in vars(module).values():
        found = vars(value).values() if isinstance(value, type) and value.__module__ == module.__name__ else [value]
        yield from (
            each for each in found if isinstance(each, FunctionType) and each.__code__.co_filename == module.__file__
        )


@cache
def cuts() -> dict[FunctionType, CodeType]:
    """The functions that are loaded and ask whether something records, with their code that does not ask."""
    found: dict[FunctionType, CodeType] = {}
    loaded = [each for name, each in sys.modules.items() if name.startswith(("noetic_py.engine.", "noetic_py.runner."))]
    for module in loaded:
        source = inspect.getsource(module)
        plain, cut = ast.parse(source), Cut().visit(ast.parse(source))
        before, after = (
            {code.co_qualname: code for code in _codes(compile(tree, str(module.__file__), "exec", dont_inherit=True))}
            for tree in (plain, ast.fix_missing_locations(cut))
        )
        for function in _functions(module):
            name = function.__code__.co_qualname
            if name in before and before[name].co_code != after[name].co_code:
                found[function] = after[name]
    return found


def without_telemetry(measurement: Measurement) -> Measurement:
    """A measurement of the same in which nothing asks whether something records."""

    def measured() -> float:
        with untraced():
            return measurement()

    return measured


@contextmanager
def untraced() -> Generator[None]:
    """Nothing asks within the block whether something records."""
    changed = cuts()
    kept = {function: function.__code__ for function in changed}
    for function, code in changed.items():
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in kept.items():
            function.__code__ = code
