"""The mutants of a module: its syntax tree with one small fault.

| operator | example |
|---|---|
| arithmetic | `a + b` to `a - b`, `a * b` to `a / b`, `a // b` to `a % b`, unary `-a` to `a`, `a += b` to `a -= b` |
| term | `a + b` to `a` and to `b`, `a @ b` to `b`, a keyword argument left out, a filter of a comprehension left out |
| number | `0` to `1`, `1` to `0` and `2`, `n` to `n + 1`, a float to its double, `True` to `False` |
| comparison | `<` to `<=` and `>=`, `==` to `!=`, `is` to `is not`, `in` to `not in` |
| logic | `and` to `or`, either side left out, `not a` to `a`, a condition always true, always false |
| call | `f(a, b)` to `f(b, a)`, to `f(a, a)` and to `a`; `a.f()` to `a`; `min` to `max`, `sin` to `cos` and the like |
| transpose | `a.T` to `a` |
| index | `a[i]` to `a[i + 1]` and `a[i - 1]`, `a[m:n]` to `a[:n]` and `a[m:]` |
| statement | an assignment to what already has a value, a call, `continue` or `break` removed |
| choice | `a if c else b` to `b if c else a` |

Left alone: docstrings, annotations, decorators, imports, whatever is in a `raise`, formatted text, type aliases, and
calls that convert a value without changing it.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
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
_PAIRS = [
    ("min", "max"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("any", "all"),
    ("sin", "cos"),
    ("lower", "upper"),
    ("angular", "linear"),
    ("horzcat", "vertcat"),
    ("outward", "inward"),
    ("zeros", "ones"),
]
RENAMED = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}
"""Names whose meaning another name has the other way about."""

_CONVERSIONS = {
    "asarray",
    "array",
    "densify",
    "sparsify",
    "constant",
    "DM",
    "SX",
    "PerBody",
    "float",
    "int",
    "str",
    "bool",
    "list",
    "tuple",
}
"""Calls that change the type of a value, or how it is stored (dense, sparse, as a stack), and not the value."""

_SYMMETRIC = {"array_equal", "max", "min", "maximum", "minimum", "hypot", "dot", "isclose", "_relative"}
"""Functions whose first two arguments may change places."""

_UNVALUED = {"strict", "path", "element", "line", "dtype", "copy"}
"""Keywords that say no value: of `zip`, where lengths are equal already, of errors, of conversions."""

_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params", "bases"}
_SKIPPED_NODES = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)
_TEXTS = {"message", "hint", "expected"}
"""Variables that hold parts of a message."""


@dataclass
class Mutant:
    """One fault. `original` and `mutated` are the expression or statement, as Python prints it.

    module: the file, relative to the package. function: dotted names of classes and functions around it, "" at the top.
    number: which one it is among equal faults in that function, from 1.
    """

    module: str
    function: str
    operator: str
    line: int
    original: str
    mutated: str
    number: int = 1
    _tree: ast.Module = field(repr=False, default_factory=lambda: ast.Module([], []))
    _place: tuple[ast.AST, str, int | None] = field(repr=False, default=(ast.Pass(), "", None))
    _new: ast.AST = field(repr=False, default_factory=ast.Pass)

    def code(self, path: str) -> Any:
        """The module's code with the fault in it."""
        parent, name, index = self._place
        old = getattr(parent, name) if index is None else getattr(parent, name)[index]
        _replace_child(parent, name, index, self._new)
        try:
            return compile(ast.fix_missing_locations(self._tree), path, "exec")
        finally:
            _replace_child(parent, name, index, old)

    def __str__(self) -> str:
        scope = f" in {self.function}" if self.function else ""
        return f"{self.module}:{self.line}{scope}: {self.original}  ->  {self.mutated}"


def mutants(source: str, module: str) -> list[Mutant]:
    """Every mutant of a module's source, in the order of its lines."""
    tree = ast.parse(source)
    mutant_list: list[Mutant] = []
    seen: set[tuple[int, str]] = set()
    counts: Counter[tuple[str, str, str]] = Counter()
    for place in _places(tree, "", tree):
        parent, name, index = place.slot
        for operator, new in _variants(place.node):
            ast.copy_location(new, place.node)
            original = _source_text(place.printed_node)
            _replace_child(parent, name, index, new)
            mutated = (
                "(removed)"
                if isinstance(new, ast.Pass)
                else _source_text(new if place.printed_node is place.node else place.printed_node)
            )
            # Of the whole statement: equal expressions in two places are two faults, one text from two operators is
            # one.
            whole = ast.dump(place.statement if not isinstance(new, ast.Pass) else new)
            _replace_child(parent, name, index, place.node)
            line = getattr(place.node, "lineno", getattr(place.printed_node, "lineno", 0))
            # Two operators may come to the same; once is enough.
            if original == mutated or (id(place.statement), whole) in seen:
                continue
            seen.add((id(place.statement), whole))
            counts[place.function, original, mutated] += 1
            number = counts[place.function, original, mutated]
            mutant_list.append(
                Mutant(module, place.function, operator, line, original, mutated, number, tree, place.slot, new)
            )
    return mutant_list


@dataclass
class _Place:
    """A node, its slot in the parent (node, field, index), the node to print for the reader, and its statement."""

    node: Any
    slot: tuple[ast.AST, str, int | None]
    function: str
    printed_node: ast.AST
    statement: ast.AST


def _places(node: ast.AST, function: str, statement: ast.AST) -> Iterator[_Place]:
    for name, value in ast.iter_fields(node):
        if name in _SKIPPED_FIELDS:
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or _skipped(node, child, first=index == 0 and name == "body"):
                continue
            slot = (node, name, index if isinstance(value, list) else None)
            scope = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                scope = f"{function}.{child.name}" if function else child.name
            enclosing_statement = child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.stmt | ast.expr | ast.comprehension):
                # A bare number or name is reported with the expression that contains it.
                small = isinstance(child, ast.Constant | ast.Name) and isinstance(
                    node, ast.expr | ast.stmt | ast.keyword
                )
                yield _Place(child, slot, function, node if small else child, enclosing_statement)
            yield from _places(child, scope, enclosing_statement)


def _skipped(parent: ast.AST, node: ast.AST, *, first: bool) -> bool:
    if isinstance(node, _SKIPPED_NODES):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return True  # a docstring
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.keyword) and node.arg in _UNVALUED:
        return True
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        target = node.targets[0].id
        alias = isinstance(parent, ast.Module) and target.strip("_").istitle()
        types = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
        return alias or target in _TEXTS or target.startswith("__") or (types and node.value.func.id == "TypeVar")
    return False


def _replace_child(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _source_text(node: ast.AST) -> str:
    """The node as one line; of a compound statement its head."""
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    if isinstance(node, ast.If | ast.For | ast.While | ast.With | ast.FunctionDef | ast.ClassDef):
        return next(line for line in text.splitlines() if not line.startswith("@"))
    return " ".join(text.split())


def _variants(node: Any) -> Iterator[tuple[str, ast.AST]]:
    """The faults of one node."""
    make = _MAKERS.get(type(node))
    if make is not None:
        yield from make(node)


def _with_fields(node: ast.AST, **fields: Any) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _number(value: object) -> Iterator[object]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from {0: (1,), 1: (0, 2), 2: (1, 3)}.get(value, (value + 1,))
    elif isinstance(value, float):
        yield 1.0 if value == 0.0 else 2.0 * value
        if value == 1.0:
            yield 0.0


def _constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    for value in _number(node.value):
        yield "number", ast.Constant(value)


def _name(node: ast.Name) -> Iterator[tuple[str, ast.AST]]:
    if node.id in RENAMED and isinstance(node.ctx, ast.Load):
        yield "call", ast.Name(RENAMED[node.id], node.ctx)


def _attribute(node: ast.Attribute) -> Iterator[tuple[str, ast.AST]]:
    if not isinstance(node.ctx, ast.Load):
        return
    if node.attr == "T":
        yield "transpose", node.value
    if node.attr in RENAMED:
        yield "call", _with_fields(node, attr=RENAMED[node.attr])


def _binary(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    if type(node.op) in ARITHMETIC:
        yield "arithmetic", _with_fields(node, op=ARITHMETIC[type(node.op)]())
        yield "term", node.left
    if not isinstance(node.op, ast.Pow | ast.Div | ast.FloorDiv | ast.Mod):
        yield "term", node.right


def _unary(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.op, ast.USub):
        yield "arithmetic", node.operand
    elif isinstance(node.op, ast.Not | ast.Invert):
        yield "logic", node.operand


def _compare(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    for k, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            yield "comparison", _with_fields(node, ops=[*node.ops[:k], other(), *node.ops[k + 1 :]])


def _bool(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST]]:
    yield "logic", _with_fields(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for k in range(len(node.values)):
        rest = [*node.values[:k], *node.values[k + 1 :]]
        yield "logic", rest[0] if len(rest) == 1 else _with_fields(node, values=rest)


def _call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    args = node.args
    plain = not any(isinstance(arg, ast.Starred) for arg in args)
    callee = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if len(args) >= 2 and plain:
        if callee not in _SYMMETRIC:
            yield "call", _with_fields(node, args=[args[1], args[0], *args[2:]])
        yield "call", _with_fields(node, args=[args[0], args[0], *args[2:]])
        for k in range(1, len(args) - 1):
            yield "call", _with_fields(node, args=[*args[:k], args[k + 1], args[k], *args[k + 2 :]])
    if args and plain:
        if callee not in _CONVERSIONS:
            yield "call", args[0]
    elif not args and not node.keywords and isinstance(node.func, ast.Attribute):
        yield "call", node.func.value
    for k, keyword in enumerate(node.keywords):
        if keyword.arg not in _UNVALUED:
            yield "term", _with_fields(node, keywords=[*node.keywords[:k], *node.keywords[k + 1 :]])


def _subscript(node: ast.Subscript) -> Iterator[tuple[str, ast.AST]]:
    index = node.slice
    if isinstance(index, ast.Name | ast.BinOp):
        for op in (ast.Add(), ast.Sub()):
            yield "index", _with_fields(node, slice=ast.BinOp(index, op, ast.Constant(1)))
    elif isinstance(index, ast.Slice):
        for end in ("lower", "upper"):
            if getattr(index, end) is not None:
                yield "index", _with_fields(node, slice=_with_fields(index, **{end: None}))


def _choice(node: ast.IfExp) -> Iterator[tuple[str, ast.AST]]:
    yield "choice", _with_fields(node, body=node.orelse, orelse=node.body)
    yield "choice", node.body
    yield "choice", node.orelse


def _comprehension(node: ast.comprehension) -> Iterator[tuple[str, ast.AST]]:
    for k in range(len(node.ifs)):
        yield "term", _with_fields(node, ifs=[*node.ifs[:k], *node.ifs[k + 1 :]])


def _condition(node: ast.If | ast.While) -> Iterator[tuple[str, ast.AST]]:
    yield "logic", _with_fields(node, test=ast.Constant(False))
    if isinstance(node, ast.If):
        yield "logic", _with_fields(node, test=ast.Constant(True))


def _augmented(node: ast.AugAssign) -> Iterator[tuple[str, ast.AST]]:
    yield "statement", ast.Pass()
    if type(node.op) in ARITHMETIC:
        yield "arithmetic", _with_fields(node, op=ARITHMETIC[type(node.op)]())


def _assignment(node: ast.Assign) -> Iterator[tuple[str, ast.AST]]:
    read = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
    targets = [name for target in node.targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    # A name that is read in its own assignment, an entry, an attribute: without it an older value stands.
    if all(not isinstance(name, ast.Name) or name.id in read for name in targets):
        yield "statement", ast.Pass()


def _removed(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    yield "statement", ast.Pass()


_MAKERS: dict[type, Any] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _bool,
    ast.Call: _call,
    ast.Subscript: _subscript,
    ast.IfExp: _choice,
    ast.comprehension: _comprehension,
    ast.If: _condition,
    ast.While: _condition,
    ast.AugAssign: _augmented,
    ast.Assign: _assignment,
    ast.Expr: _removed,
    ast.Continue: _removed,
    ast.Break: _removed,
}
