"""Small changes of a module's code, each behind a switch of its own in one and the same compiled module."""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType

from attrs import field, frozen, mutable

SWITCH = "__mutant__"
"""The name under which a mutated module finds its `Switch`."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Code = ast.expr | ast.stmt


@frozen
class Mutant:
    """One change.

    Attributes:
        function: The function that is changed, by its dotted name in the module.
        line: Where it is changed.
        change: What is done, as text.
        old: The node of the tree that is changed.
        new: What takes its place.
        code: The first line of what is changed.
    """

    function: str
    line: int
    change: str
    old: Code
    new: Code
    code: str

    def __str__(self) -> str:
        """The place, the change and the code."""
        return f"`{self.function}`, {self.change}: `{self.code}`"


@mutable
class Switch:
    """Says which change is on, and remembers which changes have been reached.

    Attributes:
        on: The number of the change that is made; none of them has -1.
        reached: The numbers of those that were asked for.
    """

    on: int = -1
    reached: set[int] = field(factory=set[int])

    def __call__(self, number: int) -> bool:
        """Whether this change is made."""
        self.reached.add(number)
        return number == self.on


def mutants(tree: ast.Module) -> list[Mutant]:
    """All changes inside of functions, in the order of the source."""
    return [
        Mutant(function, node.lineno, change, old, new, ast.unparse(old).splitlines()[0][:100])
        for function, node in _inside(tree, "", run=False)
        for change, old, new in _changes(node)
    ]


def _inside(node: ast.AST, name: str, *, run: bool) -> Iterator[tuple[str, Code]]:
    """Each piece of code that runs when a function is called, with the function's name."""
    for child in _code(node):
        if isinstance(child, Function):
            if not any("overload" in ast.unparse(mark) for mark in child.decorator_list):
                yield from _inside(child, f"{name}.{child.name}".lstrip("."), run=True)
        elif isinstance(child, ast.ClassDef):
            if not any("Protocol" in ast.unparse(base) for base in child.bases):
                yield from _inside(child, f"{name}.{child.name}".lstrip("."), run=False)
        else:
            if run and isinstance(child, Code):
                yield name, child
            yield from _inside(child, name, run=run)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """The children that are code: no annotations, docstrings, defaults, patterns and texts."""
    match node:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body) | ast.ClassDef(body=body):
            yield from body
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.pattern():
            pass
        case ast.Expr(value=ast.Constant()):
            pass
        case ast.AnnAssign(value=value):
            yield from () if value is None else (value,)
        case ast.Lambda(body=body):
            yield body
        case _:
            yield from ast.iter_child_nodes(node)


def _changes(node: Code) -> Iterator[tuple[str, Code, Code]]:
    """What is done to a piece of code, what is replaced, and by what."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            for other in COMPARISONS[type(op)]:
                yield f"{type(op).__name__} to {other.__name__}", node, ast.Compare(left, [other()], right)
        case ast.BoolOp(op=op, values=values):
            swapped = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{type(op).__name__} to {type(swapped).__name__}", node, ast.BoolOp(swapped, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "without not", node, operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not _text(left, right):
            swap = ARITHMETIC[type(op)]
            yield f"{type(op).__name__} to {swap.__name__}", node, ast.BinOp(left, swap(), right)
        case ast.Constant(value=bool() as truth):
            yield f"to {not truth}", node, ast.Constant(not truth)
        case ast.Constant(value=int() as number):
            yield f"to {number + 1}", node, ast.Constant(number + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "branches swapped", node, ast.IfExp(test, orelse, body)
        case _:
            yield from _changes_of_statement(node)


def _changes_of_statement(node: Code) -> Iterator[tuple[str, Code, Code]]:
    match node:
        case ast.If(test=test):
            yield "if always", test, ast.Constant(value=True)
            yield "if never", test, ast.Constant(value=False)
        case ast.While(test=test):
            yield "while never", test, ast.Constant(value=False)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None", value, ast.Constant(value=None)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield "left out", node, ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "left out", node, ast.Pass()
        case ast.Continue():
            yield "to break", node, ast.Break()
        case _:
            pass


def _text(*operands: ast.expr) -> bool:
    return any(
        isinstance(operand, ast.JoinedStr) or (isinstance(operand, ast.Constant) and isinstance(operand.value, str))
        for operand in operands
    )


class _Switched(ast.NodeTransformer):
    """Puts each change beside what it replaces."""

    def __init__(self, chosen: Sequence[Mutant]) -> None:
        self._chosen: dict[int, list[tuple[int, Mutant]]] = {}
        for number, mutant in enumerate(chosen):
            self._chosen.setdefault(id(mutant.old), []).append((number, mutant))

    def visit(self, node: ast.AST) -> ast.AST:
        """Return the node, or what chooses between it and its changes."""
        chosen = self._chosen.get(id(node), ())
        made: ast.AST = self.generic_visit(node)
        for number, mutant in chosen:
            asked = ast.Call(ast.Name(SWITCH, ast.Load()), [ast.Constant(number)], [])
            if isinstance(mutant.new, ast.expr) and isinstance(made, ast.expr):
                made = ast.IfExp(asked, mutant.new, made)
            elif isinstance(mutant.new, ast.stmt) and isinstance(made, ast.stmt):
                made = ast.If(asked, [mutant.new], [made])
        return made


class Mutated(MetaPathFinder, Loader):
    """Finds one module, before all other finders, and loads it with changes and their switch."""

    def __init__(self, module: str, path: Path, tree: ast.Module, chosen: Sequence[Mutant]) -> None:
        self.switch = Switch()
        self._module = module
        self._path = path
        _Switched(chosen).visit(tree)
        ast.fix_missing_locations(tree)
        with warnings.catch_warnings():
            # A change may compare a constant by identity.
            warnings.simplefilter("ignore", SyntaxWarning)
            self._code = compile(tree, str(path), "exec")

    def install(self) -> None:
        """Be asked first for the module, which must not be imported yet."""
        if self._module in sys.modules:
            msg = f"{self._module} is imported already"
            raise RuntimeError(msg)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module that is changed, and nothing else."""
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module with its switch in place."""
        setattr(module, SWITCH, self.switch)
        exec(self._code, module.__dict__)
