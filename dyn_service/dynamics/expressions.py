"""Small sparse matrices of expressions, in which the algorithms of this folder are traced.

An entry of a `Matrix` is a float, a `Node`, or a structural zero, which costs nothing. A `Node` is one scalar operation
on floats and other nodes. Nodes are simplified when they are made, and equal nodes are one object, so that a graph has
no common subexpression. A matrix of floats is computed at once. A `Program` is the list of the instructions that
compute some matrices from their symbols.

Rules of simplification, the order of operands, and which zeros are structural are those of CasADi's SX, with which
tests compare them (docs/adr/0047).
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

SYMBOL, CONSTANT, INPUT, OUTPUT = range(4)
ADD, SUB, MUL, DIV, NEG, SQUARE, TWICE, INVERSE = range(4, 12)
SQRT, SIN, COS, TANH, ATAN2, FABS, COPYSIGN = range(12, 19)
LESS, NOT, IF_ELSE_ZERO, FMIN, FMAX = range(19, 24)
"""Operations. IF_ELSE_ZERO: the second operand where the first is not 0, else 0. LESS, NOT: 1 or 0."""

NAMES = (
    *("symbol", "constant", "input", "output", "add", "sub", "mul", "div", "neg", "square", "twice", "inverse", "sqrt"),
    *("sin", "cos", "tanh", "atan2", "fabs", "copysign", "less", "not", "if_else_zero", "fmin", "fmax"),
)
"""Names of the operations."""

Table = dict[Any, "Node"]


class Node:
    """An operation on one or two operands, floats or nodes. a: of a symbol its name. table: all nodes of the graph."""

    __slots__ = ("a", "b", "op", "table")

    def __init__(self, op: int, a: Any, b: Any, table: Table) -> None:
        self.op = op
        self.a = a
        self.b = b
        self.table = table

    @property
    def name(self) -> str:
        """The name of a symbol."""
        assert self.op == SYMBOL
        return str(self.a)

    def __repr__(self) -> str:
        if self.op == SYMBOL:
            return str(self.a)
        return f"{NAMES[self.op]}({self.a!r}{'' if self.b is None else f', {self.b!r}'})"


Scalar = float | Node
Entry = float | Node | None
"""None is a structural zero."""


class _Tables(threading.local):
    def __init__(self) -> None:
        self.table: Table = {}


_tables = _Tables()


@contextmanager
def graph() -> Iterator[None]:
    """Within this block, symbols of this thread belong to a new graph, which shares no node with others."""
    outer, _tables.table = _tables.table, {}
    try:
        yield
    finally:
        # Nodes and table refer to each other: without this they would wait for the garbage collector.
        _tables.table.clear()
        _tables.table = outer


def _unary(op: int, a: Node) -> Node:
    table = a.table
    key = (op, a)
    node = table.get(key)
    if node is None:
        node = table[key] = Node(op, a, None, table)
    return node


def _binary(op: int, a: Any, b: Any) -> Node:
    table: Table = b.table if type(a) is float else a.table
    # Operands keep their order, by which LLVM fuses products: sorting them would change last bits.
    key = (op, a, b)
    node = table.get(key)
    if node is None:
        node = table[key] = Node(op, a, b, table)
    return node


_COMMUTATIVE = frozenset((ADD, MUL, FMIN, FMAX))
_NOT_NEGATIVE = frozenset((SQRT, SQUARE, LESS, NOT, FABS))


def _same(x: Any, y: Any) -> bool:
    """Whether two scalars are equal, perhaps with operands in the other order."""
    if x is y:
        return True
    if type(x) is float or type(y) is float:
        return bool(x == y)
    return x.op == y.op and x.op in _COMMUTATIVE and x.a == y.b and x.b == y.a


def _share(x: Any) -> tuple[Any, Any] | None:
    """Returns the factor (None: 1) and the square of a sine or cosine whose product x is."""
    if x.op == SQUARE:
        return None, x.a
    if x.op == MUL and type(x.b) is not float and x.b.op == SQUARE:
        return x.a, x.b.a
    return None


def _add(x: Any, y: Any) -> Any:
    if type(x) is float:
        if type(y) is float:
            return x + y
        if x == 0.0:
            return y
        if y.op == NEG:
            return _sub(x, y.a)
        if y.op == SUB and x == y.b:
            return y.a
        return _binary(ADD, x, y)
    p = x.op
    if type(y) is float:
        if y == 0.0:
            return x
        if p == NEG:
            return _sub(y, x.a)
        if p == SUB and x.b == y:
            return x.a
        return _binary(ADD, x, y)
    q = y.op
    if q == NEG:
        return _sub(x, y.a)
    if p == NEG:
        return _sub(y, x.a)
    if x is y:
        return _if_else_zero(x.a, _add(x.b, x.b)) if p == IF_ELSE_ZERO else _mul(2.0, x)
    if p == q:
        if p == MUL:
            if type(x.a) is float and type(y.a) is float and x.a + y.a == 1.0 and _same(x.b, y.b):
                return x.b
            if x.a == y.b and x.b == y.a:
                return _mul(2.0, x)
        elif p == DIV:
            if x.b == 2.0 and y.b == 2.0 and _same(x.a, y.a):
                return x.a
        elif p == IF_ELSE_ZERO:
            if _same(x.a, y.a):
                return _if_else_zero(x.a, _add(x.b, y.b))
        elif p in _COMMUTATIVE and x.a == y.b and x.b == y.a:
            return _mul(2.0, x)
    if p == TWICE and _same(x.a, y):
        return _mul(3.0, x.a)
    if q == TWICE and _same(y.a, x):
        return _mul(3.0, y.a)
    if p == SUB and _same(x.b, y):
        return x.a
    if q == SUB and _same(x, y.b):
        return y.a
    if p in (SQUARE, MUL) and q == p:
        x_share, y_share = _share(x), _share(y)
        if (
            x_share
            and y_share
            and x_share[0] == y_share[0]
            and type(x_share[1]) is not float
            and type(y_share[1]) is not float
        ):
            f, g = x_share[1], y_share[1]
            # sin^2 + cos^2, which rotations about parallel axes produce.
            if {f.op, g.op} == {SIN, COS} and _same(f.a, g.a):
                return 1.0 if x_share[0] is None else x_share[0]
    return _binary(ADD, x, y)


def _sub(x: Any, y: Any) -> Any:
    if type(y) is float:
        if type(x) is float:
            return x - y
        if y == 0.0:
            return x
    elif type(x) is float and x == 0.0:
        return _neg(y)
    p = -1 if type(x) is float else x.op
    q = -1 if type(y) is float else y.op
    if x is y or (p == q and _same(x, y)):
        return 0.0
    if q == NEG:
        return _add(x, y.a)
    if p == TWICE and _same(x.a, y):
        return y
    if q == TWICE and _same(y.a, x):
        return _neg(x)
    if p == ADD:
        if _same(x.b, y):
            return x.a
        if _same(x.a, y):
            return x.b
    if q == ADD:
        if _same(x, y.b):
            return _neg(y.a)
        if _same(x, y.a):
            return _neg(y.b)
    if p == NEG:
        return _neg(_add(x.a, y))
    if p == MUL == q and type(x.a) is float and type(y.a) is float and x.a - y.a == 1.0 and _same(x.b, y.b):
        return x.b
    return _binary(SUB, x, y)


def _neg(x: Any) -> Any:
    if type(x) is float:
        # 0.0 instead of -0.0, as in `_entry`.
        return -x if x else 0.0
    return x.a if x.op == NEG else _unary(NEG, x)


def _mul(x: Any, y: Any) -> Any:
    if type(y) is float:
        if type(x) is float:
            # + 0.0 turns -0.0 into 0.0, as in `_entry`.
            return x * y + 0.0
        x, y = y, x
    if type(x) is float:
        q = y.op
        if q == IF_ELSE_ZERO:
            return _if_else_zero(y.a, _mul(x, y.b))
        if x == 0.0:
            return 0.0
        if x == 1.0:
            return y
        if x == -1.0:
            return _neg(y)
        if q == MUL and type(y.a) is float:
            return _mul(x * y.a, y.b)
        if q == TWICE:
            return _mul(2.0 * x, y.a)
        if q == INVERSE:
            return _div(x, y.a)
        if q == DIV and y.b == x:
            return y.a
        if x == 2.0:
            return _unary(TWICE, y)
        return _neg(_mul(x, y.a)) if q == NEG else _binary(MUL, x, y)
    p, q = x.op, y.op
    if q == IF_ELSE_ZERO:
        return _if_else_zero(y.a, _mul(x, y.b))
    if p == IF_ELSE_ZERO:
        return _if_else_zero(x.a, _mul(x.b, y))
    if x is y or (p == q and _same(x, y)):
        return _square(x)
    if q == INVERSE:
        return _div(x, y.a)
    if p == INVERSE:
        return _div(y, x.a)
    if p == DIV and _same(x.b, y):
        return x.a
    if q == DIV and _same(y.b, x):
        return y.a
    if p == NEG:
        return _neg(_mul(x.a, y))
    if q == NEG:
        return _neg(_mul(x, y.a))
    return _binary(MUL, x, y)


def _div(x: Any, y: Any) -> Any:
    if type(y) is float:
        if type(x) is float:
            return x / y + 0.0 if y else x * math.inf
        if y == 0.0:
            return math.inf
        if y == 1.0:
            return x
        if y == -1.0:
            return _neg(x)
        if y == 0.5:
            return _mul(2.0, x)
    elif type(x) is float and x == 0.0:
        return 0.0
    p = -1 if type(x) is float else x.op
    q = -1 if type(y) is float else y.op
    if _same(x, y):
        return 1.0
    if p == TWICE and y == 2.0:
        return x.a
    if p == MUL:
        if _same(y, x.a):
            return x.b
        if _same(y, x.b):
            return x.a
    if p == TWICE and _same(x.a, y):
        return 2.0
    if p == -1 and x == 1.0:
        return _inverse(y)
    if q == INVERSE:
        return _mul(x, y.a)
    if p == TWICE and q == TWICE:
        return _div(x.a, y.a)
    if q == -1 and p == DIV and type(x.b) is float and x.b * y == 1.0:
        return x.a
    if q == MUL and _same(y.b, x):
        return _inverse(y.a)
    if q == TWICE and _same(y.a, x):
        return 0.5
    if (p == NEG and _same(x.a, y)) or (q == NEG and _same(y.a, x)):
        return -1.0
    if p == NEG and q == NEG and _same(x.a, y.a):
        return 1.0
    if p == DIV and _same(y, x.a):
        return _inverse(x.b)
    if p == NEG:
        return _neg(_div(x.a, y))
    if q == NEG:
        return _neg(_div(x, y.a))
    return _binary(DIV, x, y)


def _square(x: Any) -> Any:
    if type(x) is float:
        return x * x
    if x.op == SQRT:
        return x.a
    return _square(x.a) if x.op in (NEG, FABS) else _unary(SQUARE, x)


def _twice(x: Any) -> Any:
    return _mul(2.0, x)


def _inverse(x: Any) -> Any:
    if type(x) is float:
        return _div(1.0, x)
    return x.a if x.op == INVERSE else _unary(INVERSE, x)


def _sqrt(x: Any) -> Any:
    if type(x) is float:
        return math.sqrt(x) if x >= 0.0 else math.nan
    return _fabs(x.a) if x.op == SQUARE else _unary(SQRT, x)


def _sin(x: Any) -> Any:
    if type(x) is float:
        return math.sin(x) if math.isfinite(x) else math.nan
    return _unary(SIN, x)


def _cos(x: Any) -> Any:
    if type(x) is float:
        return math.cos(x) if math.isfinite(x) else math.nan
    return _cos(x.a) if x.op in (NEG, FABS) else _unary(COS, x)


def _tanh(x: Any) -> Any:
    return math.tanh(x) if type(x) is float else _unary(TANH, x)


def _fabs(x: Any) -> Any:
    if type(x) is float:
        return abs(x)
    if x.op in _NOT_NEGATIVE:
        return x
    return _fabs(x.a) if x.op == NEG else _unary(FABS, x)


def _not(x: Any) -> Any:
    return float(not x) if type(x) is float else _unary(NOT, x)


def _less(x: Any, y: Any) -> Any:
    difference = _sub(x, y)
    if type(difference) is not float:
        return 0.0 if difference.op in (SQUARE, FABS) else _binary(LESS, x, y)
    return float(x < y) if type(x) is float and type(y) is float else 0.0 if difference >= 0.0 else _binary(LESS, x, y)


def _atan2(x: Any, y: Any) -> Any:
    return math.atan2(x, y) if type(x) is float and type(y) is float else _binary(ATAN2, x, y)


def _copysign(x: Any, y: Any) -> Any:
    if x == 0.0:
        return 0.0
    return math.copysign(x, y) if type(x) is float and type(y) is float else _binary(COPYSIGN, x, y)


def _fmin(x: Any, y: Any) -> Any:
    if type(x) is float and type(y) is float:
        return min(x, y)
    return x if _same(x, y) else _binary(FMIN, x, y)


def _fmax(x: Any, y: Any) -> Any:
    if type(x) is float and type(y) is float:
        return max(x, y)
    return x if _same(x, y) else _binary(FMAX, x, y)


def _if_else_zero(x: Any, y: Any) -> Any:
    if y == 0.0:
        return 0.0
    if type(x) is float:
        return y if x else 0.0
    return _binary(IF_ELSE_ZERO, x, y)


_UNARY: Mapping[int, Callable[[Any], Any]] = {
    NEG: _neg,
    SQUARE: _square,
    TWICE: _twice,
    INVERSE: _inverse,
    SQRT: _sqrt,
    SIN: _sin,
    COS: _cos,
    TANH: _tanh,
    FABS: _fabs,
    NOT: _not,
}
_BINARY: Mapping[int, Callable[[Any, Any], Any]] = {
    ADD: _add,
    SUB: _sub,
    MUL: _mul,
    DIV: _div,
    ATAN2: _atan2,
    COPYSIGN: _copysign,
    LESS: _less,
    IF_ELSE_ZERO: _if_else_zero,
    FMIN: _fmin,
    FMAX: _fmax,
}
_KEEPS_ZERO = frozenset((NEG, SQUARE, TWICE, SQRT, SIN, TANH, FABS))
"""Functions f with f(0) = 0."""
_ZERO_LEFT = frozenset((MUL, DIV, COPYSIGN, IF_ELSE_ZERO))
_ZERO_RIGHT = frozenset((MUL, IF_ELSE_ZERO))
"""Functions f with f(0, y) = 0, and with f(x, 0) = 0."""
_ZERO_BOTH = _ZERO_LEFT | {ADD, SUB, FMIN, FMAX, LESS}
"""Functions f with f(0, 0) = 0."""


class Matrix:
    """A matrix. data: its entries, column by column."""

    __slots__ = ("data", "shape")
    # NumPy's arrays and scalars then leave operations with a matrix to the matrix.
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rows: int, columns: int, data: list[Entry]) -> None:
        self.shape = (rows, columns)
        self.data = data

    def __repr__(self) -> str:
        return f"Matrix{self.shape}{self.data}"

    def numel(self) -> int:
        """Number of entries."""
        return len(self.data)

    def nnz(self) -> int:
        """Number of entries that are not structural zeros."""
        return len(self.data) - self.data.count(None)

    @property
    def places(self) -> list[int]:
        """Where in `data` the entries are that are not structural zeros."""
        return [k for k, x in enumerate(self.data) if x is not None]

    def nonzeros(self) -> list[Scalar]:
        """The entries that are not structural zeros, column by column."""
        return [x for x in self.data if x is not None]

    def elements(self) -> list[Scalar]:
        """All entries, column by column."""
        return [0.0 if x is None else x for x in self.data]

    def array(self) -> np.ndarray:
        """The numbers of a matrix without nodes."""
        return np.array(self.elements(), dtype=float).reshape(self.shape[::-1]).T

    def __float__(self) -> float:
        (x,) = self.elements()
        assert not isinstance(x, Node), "a symbol has no number"
        return x

    @property
    def T(self) -> Matrix:
        """The transposed matrix."""
        rows, columns = self.shape
        if rows == 1 or columns == 1:
            return Matrix(columns, rows, self.data.copy())
        return Matrix(columns, rows, [x for i in range(rows) for x in self.data[i::rows]])

    def _chosen(self, key: Any) -> tuple[range | list[int], int, int]:
        """Returns the places of a part, and its shape."""
        rows, columns = self.shape
        if not isinstance(key, tuple):
            if isinstance(key, slice):
                part = range(len(self.data))[key]
                return (part, 1, len(part)) if rows == 1 and columns != 1 else (part, len(part), 1)
            return [range(len(self.data))[key]], 1, 1
        i, j = key
        if not isinstance(i, slice) and not isinstance(j, slice):
            return [range(rows)[i] + rows * range(columns)[j]], 1, 1
        row_indices = range(rows)[i] if isinstance(i, slice) else (range(rows)[i],)
        column_indices = range(columns)[j] if isinstance(j, slice) else (range(columns)[j],)
        return [r + rows * c for c in column_indices for r in row_indices], len(row_indices), len(column_indices)

    def __getitem__(self, key: Any) -> Matrix:
        data = self.data
        if type(key) is int:
            return Matrix(1, 1, [data[key]])
        places, rows, columns = self._chosen(key)
        return Matrix(rows, columns, [data[k] for k in places])

    def __setitem__(self, key: Any, value: Any) -> None:
        places, rows, columns = self._chosen(key)
        source = matrix(value)
        if source.shape == (1, 1):
            entries = source.data * len(places)
        elif source.shape == (rows, columns):
            entries = source.data
        else:
            raise ValueError(f"a part of shape {(rows, columns)} cannot be set to a matrix of shape {source.shape}")
        for k, x in zip(places, entries, strict=True):
            self.data[k] = 0.0 if x is None and len(entries) == 1 else x

    def __add__(self, other: Any) -> Matrix:
        if type(other) is Matrix and other.shape == self.shape and len(self.data) != 1:
            pairs = zip(self.data, other.data, strict=True)
            return Matrix(*self.shape, [y if x is None else x if y is None else _add(x, y) for x, y in pairs])
        return _elementwise(ADD, self, other)

    def __radd__(self, other: Any) -> Matrix:
        return _elementwise(ADD, other, self)

    def __sub__(self, other: Any) -> Matrix:
        if type(other) is Matrix and other.shape == self.shape and len(self.data) != 1:
            pairs = zip(self.data, other.data, strict=True)
            return Matrix(
                *self.shape,
                [x if y is None else _neg(y) if x is None else _sub(x, y) for x, y in pairs],
            )
        return _elementwise(SUB, self, other)

    def __rsub__(self, other: Any) -> Matrix:
        return _elementwise(SUB, other, self)

    def __mul__(self, other: Any) -> Matrix:
        return _elementwise(MUL, self, other)

    def __rmul__(self, other: Any) -> Matrix:
        return _elementwise(MUL, other, self)

    def __truediv__(self, other: Any) -> Matrix:
        return _elementwise(DIV, self, other)

    def __rtruediv__(self, other: Any) -> Matrix:
        return _elementwise(DIV, other, self)

    def __lt__(self, other: Any) -> Matrix:
        return _elementwise(LESS, self, other)

    def __gt__(self, other: Any) -> Matrix:
        return _elementwise(LESS, other, self)

    def __neg__(self) -> Matrix:
        return Matrix(*self.shape, [x if x is None else _neg(x) for x in self.data])

    def __pow__(self, n: int) -> Matrix:
        return Matrix(*self.shape, [x if x is None else _power(x, n) for x in self.data])

    def __matmul__(self, other: Any) -> Matrix:
        return _product(self, matrix(other))

    def __rmatmul__(self, other: Any) -> Matrix:
        return _product(matrix(other), self)


_SCALARS = frozenset((float, int, Node))


def matrix(x: Any) -> Matrix:
    """Returns a number, an array or a node as a matrix; zeros are entries. Vectors are columns."""
    if type(x) is Matrix:
        return x
    if type(x) in _SCALARS:
        return Matrix(1, 1, [_entry(x)])
    array = np.asarray(x)
    if array.ndim > 2:
        raise ValueError(f"a matrix has at most two axes, found an array of shape {array.shape}")
    rows, columns = array.shape if array.ndim == 2 else (array.size, 1)
    entries = array.T.ravel().tolist()
    return Matrix(rows, columns, [_entry(x) for x in entries])


def _entry(x: Any) -> Entry:
    if type(x) is Matrix:
        (entry,) = x.data
        return entry
    # + 0.0 turns -0.0 into 0.0: both are the same key of the table, which would keep the first.
    return x if isinstance(x, Node) else float(x) + 0.0


def column(entries: Sequence[Entry]) -> Matrix:
    """A column of these entries."""
    return Matrix(len(entries), 1, list(entries))


def zeros(rows: int, columns: int = 1) -> Matrix:
    """A matrix of structural zeros."""
    return Matrix(rows, columns, [None] * (rows * columns))


def full(rows: int, columns: int, value: float) -> Matrix:
    """A matrix of equal numbers."""
    return Matrix(rows, columns, [value] * (rows * columns))


def eye(n: int) -> Matrix:
    """The identity; its zeros are structural."""
    data: list[Entry] = [None] * (n * n)
    data[:: n + 1] = [1.0] * n
    return Matrix(n, n, data)


def sym(name: str, rows: int = 1, columns: int = 1) -> Matrix:
    """A matrix of new symbols: `name`, or of several entries `name_0`, `name_1`, .. column by column."""
    return symbols_like(name, full(rows, columns, 0.0))


def symbols_like(name: str, x: Matrix) -> Matrix:
    """New symbols where a matrix has entries; its structural zeros stay."""
    table = _tables.table
    if len(x.data) == 1 and x.data[0] is not None:
        return Matrix(1, 1, [Node(SYMBOL, name, None, table)])
    data: list[Entry] = [None] * len(x.data)
    for n, k in enumerate(x.places):
        data[k] = Node(SYMBOL, f"{name}_{n}", None, table)
    return Matrix(*x.shape, data)


def _elementwise(op: int, left: Any, right: Any) -> Matrix:
    x, y, f = matrix(left), matrix(right), _BINARY[op]
    if len(x.data) == 1 == len(y.data) and x.data[0] is not None and y.data[0] is not None:
        return Matrix(1, 1, [f(x.data[0], y.data[0])])
    if len(x.data) == 1 and x.shape == (1, 1):
        a = x.data[0]
        if a is None and op in _ZERO_LEFT:
            return zeros(*y.shape)
        a = 0.0 if a is None else a
        # Structural zeros stay where the function is zero there: loops skip them.
        at_zero: Entry = None
        if op not in _ZERO_RIGHT and None in y.data:
            at_zero = _or_none(f(a, 0.0))
        return Matrix(*y.shape, [at_zero if b is None else f(a, b) for b in y.data])
    if len(y.data) == 1 and y.shape == (1, 1):
        b = y.data[0]
        if b is None and op in _ZERO_RIGHT:
            return zeros(*x.shape)
        b = 0.0 if b is None else b
        at_zero = None
        if op not in _ZERO_LEFT and None in x.data:
            at_zero = _or_none(f(0.0, b))
        return Matrix(*x.shape, [at_zero if a is None else f(a, b) for a in x.data])
    # A matrix and a vector: the vector meets each column.
    if x.shape != y.shape and x.shape[0] == y.shape[0] and 1 in (x.shape[1], y.shape[1]):
        columns = max(x.shape[1], y.shape[1])
        x, y = (Matrix(factor.shape[0], columns, factor.data * (columns // factor.shape[1])) for factor in (x, y))
    if x.shape != y.shape:
        raise ValueError(f"{NAMES[op]} of matrices of shapes {x.shape} and {y.shape}")
    data: list[Entry] = []
    for a, b in zip(x.data, y.data, strict=True):
        if a is None:
            is_absorbing = op in _ZERO_LEFT or (b is None and op in _ZERO_BOTH)
            data.append(None if is_absorbing else f(0.0, 0.0 if b is None else b))
        elif b is None:
            data.append(None if op in _ZERO_RIGHT else f(a, 0.0))
        else:
            data.append(f(a, b))
    return Matrix(*x.shape, data)


def _or_none(x: Scalar) -> Entry:
    return None if x == 0.0 else x


def _each(op: int, x: Any) -> Matrix:
    source, f = matrix(x), _UNARY[op]
    at_zero = None if op in _KEEPS_ZERO or None not in source.data else f(0.0)
    return Matrix(*source.shape, [at_zero if a is None else f(a) for a in source.data])


def _power(x: Any, n: int) -> Any:
    if n == 0:
        return 1.0
    if n < 0:
        return _div(1.0, _power(x, -n))
    if n % 2:
        return x if n == 1 else _mul(x, _power(x, n - 1))
    root = _power(x, n // 2)
    return _mul(root, root)


def _is_eye(x: Matrix) -> bool:
    n = x.shape[0]
    return x.shape == (n, n) and n > 0 and x.data[0] == 1.0 == x.data[-1] and x.data == eye(n).data


def _product(x: Matrix, y: Matrix) -> Matrix:
    (n, m), (k, p) = x.shape, y.shape
    if len(x.data) == 1 or len(y.data) == 1:
        return _elementwise(MUL, x, y)
    if m != k:
        raise ValueError(f"product of matrices of shapes {x.shape} and {y.shape}")
    if n == m and _is_eye(x):
        return Matrix(k, p, y.data.copy())
    if k == p and _is_eye(y):
        return Matrix(n, m, x.data.copy())
    rows = [[(k, a) for k, a in enumerate(x.data[i::n]) if a is not None] for i in range(n)] if m else [[]] * n
    add, mul = _add, _mul
    data: list[Entry] = []
    for first in range(0, m * p, m) if m else ():
        column = y.data[first : first + m]
        for row in rows:
            total: Entry = None
            for k, a in row:
                b = column[k]
                if b is not None:
                    total = mul(a, b) if total is None else add(total, mul(a, b))
            data.append(total)
    return Matrix(n, p, data if m else [None] * (n * p))


sin = partial(_each, SIN)
cos = partial(_each, COS)
tanh = partial(_each, TANH)
sqrt = partial(_each, SQRT)
fabs = partial(_each, FABS)
logic_not = partial(_each, NOT)
"""1 for entries that are 0, else 0."""

atan2 = partial(_elementwise, ATAN2)
"""Angle of the point (y, x) of each pair of entries, y first."""
copysign = partial(_elementwise, COPYSIGN)
"""The size of the first with the sign of the second."""
fmin = partial(_elementwise, FMIN)
fmax = partial(_elementwise, FMAX)


def if_else(condition: Any, if_true: Any, if_false: Any) -> Matrix:
    """`then` where the condition is not 0, else `otherwise`."""
    selected = _elementwise(IF_ELSE_ZERO, condition, if_true)
    return selected + _elementwise(IF_ELSE_ZERO, logic_not(condition), if_false)


def vertcat(*parts: Any) -> Matrix:
    """Matrices above each other; those without entries are left out."""
    blocks = [matrix(part) for part in parts]
    if all(part.shape[1] == 1 for part in blocks):
        data = [x for part in blocks for x in part.data]
        return Matrix(len(data), 1, data)
    return horzcat(*(part.T for part in blocks)).T


def horzcat(*parts: Any) -> Matrix:
    """Matrices next to each other; those without entries are left out."""
    blocks = [matrix(part) for part in parts]
    wide = [part for part in blocks if part.data] or [part for part in blocks if part.shape[0]][:1] or blocks[:1]
    if not wide:
        return Matrix(1, 0, [])
    heights = {part.shape[0] for part in wide}
    if len(heights) > 1:
        raise ValueError(f"matrices of different heights: {[part.shape for part in wide]}")
    (rows,) = heights
    columns = sum(part.shape[1] for part in blocks if part.shape[0] == rows)
    return Matrix(rows, columns, [x for part in wide for x in part.data])


def blockcat(rows: Sequence[Sequence[Any]]) -> Matrix:
    """A matrix of blocks."""
    return vertcat(*(horzcat(*row) for row in rows))


def diagcat(*blocks: Any) -> Matrix:
    """A matrix of blocks along the diagonal."""
    diagonal = [matrix(block) for block in blocks]
    whole = zeros(sum(block.shape[0] for block in diagonal), sum(block.shape[1] for block in diagonal))
    rows, row, column = whole.shape[0], 0, 0
    for block in diagonal:
        height, width = block.shape
        for k in range(width):
            start = row + rows * (column + k)
            whole.data[start : start + height] = block.data[height * k : height * (k + 1)]
        row, column = row + height, column + width
    return whole


def vertsplit(x: Matrix, height: int = 1) -> list[Matrix]:
    """Parts of equal heights."""
    if x.shape[1] == 1:
        return [Matrix(height, 1, x.data[k : k + height]) for k in range(0, x.shape[0], height)]
    return [x[k : k + height, :] for k in range(0, x.shape[0], height)]


def horzsplit(x: Matrix, width: int = 1) -> list[Matrix]:
    """Parts of equal widths."""
    rows, columns = x.shape
    return [Matrix(rows, width, x.data[rows * k : rows * (k + width)]) for k in range(0, columns, width)]


def vec(x: Any) -> Matrix:
    """The entries as one column."""
    source = matrix(x)
    return Matrix(len(source.data), 1, source.data.copy())


def reshape(x: Any, rows: int, columns: int) -> Matrix:
    """The same entries, column by column, in another shape; -1 is the number that remains."""
    source = matrix(x)
    count = len(source.data)
    if rows == -1:
        rows = count // max(1, columns)
    if columns == -1:
        columns = count // max(1, rows)
    if rows * columns != count:
        raise ValueError(f"{count} entries have no shape {(rows, columns)}")
    return Matrix(rows, columns, source.data.copy())


def densify(x: Any) -> Matrix:
    """The matrix without structural zeros."""
    source = matrix(x)
    return Matrix(*source.shape, source.elements())  # type: ignore[arg-type]


def sparsify(x: Any) -> Matrix:
    """The matrix in which all zeros are structural."""
    source = matrix(x)
    return Matrix(*source.shape, [None if a == 0.0 else a for a in source.data])


def triu(x: Matrix) -> Matrix:
    """The upper triangle."""
    rows = x.shape[0]
    return Matrix(*x.shape, [a if k % rows <= k // rows else None for k, a in enumerate(x.data)])


def diag(x: Any) -> Matrix:
    """The diagonal matrix of a vector, or the diagonal of a matrix."""
    source = matrix(x)
    if 1 in source.shape:
        size = len(source.data)
        data: list[Entry] = [None] * (size * size)
        data[:: size + 1] = source.data
        return Matrix(size, size, data)
    rows = source.shape[0]
    return Matrix(rows, 1, source.data[:: rows + 1])


def triu2symm(x: Matrix) -> Matrix:
    """The symmetric matrix of this upper triangle."""
    return x + x.T - diag(diag(x)) if x.shape != (1, 1) else x + x - x


def skew(a: Any) -> Matrix:
    """a~, with a~ b = a x b."""
    x, y, z = matrix(a).data
    u, v, w = (p if p is None else _neg(p) for p in (x, y, z))
    return Matrix(3, 3, [0.0, z, v, w, 0.0, x, y, u, 0.0])


def cross(a: Any, b: Any) -> Matrix:
    """a x b."""
    (x, y, z), (u, v, w) = matrix(a).data, matrix(b).data
    return Matrix(3, 1, [_minor(y, w, z, v), _minor(z, u, x, w), _minor(x, v, y, u)])


def _minor(a: Entry, b: Entry, c: Entry, d: Entry) -> Any:
    """a b - c d."""
    if c is None or d is None:
        if a is None or b is None:
            return None
        return _or_none(_mul(a, b))
    subtrahend = _mul(c, d)
    return _neg(subtrahend) if a is None or b is None else _sub(_mul(a, b), subtrahend)


def _sum(entries: Iterable[Scalar]) -> Matrix:
    total: Any = 0.0
    for x in entries:
        total = _add(total, x)
    return Matrix(1, 1, [total])


def dot(x: Any, y: Any) -> Matrix:
    """The sum of the products of all pairs of entries."""
    pairs = zip(matrix(x).data, matrix(y).data, strict=True)
    return _sum(_mul(a, b) for a, b in pairs if a is not None and b is not None)


def sum1(x: Any) -> Matrix:
    """The sum of each column."""
    source = matrix(x)
    return full(1, source.shape[0], 1.0) @ source


def sumsqr(x: Any) -> Matrix:
    """The sum of the squares of all entries."""
    return _sum(_square(a) for a in matrix(x).nonzeros())


def norm_2(x: Any) -> Matrix:
    """The length of a vector."""
    return sqrt(sumsqr(x))


def trace(x: Matrix) -> Matrix:
    """The sum of the diagonal."""
    return _sum(a for a in x.data[:: x.shape[0] + 1] if a is not None)


def is_equal(x: Matrix, y: Matrix) -> bool:
    """Whether two matrices have the same entries, structural zeros included."""
    if x.shape != y.shape:
        return False
    return all(a is b or (a is not None and b is not None and _same(a, b)) for a, b in zip(x.data, y.data, strict=True))


def _sorted(roots: Iterable[Entry]) -> list[Node]:
    """Returns all nodes below some entries, operands first, in the order of a search in depth."""
    order: dict[Node, None] = {}
    for root in roots:
        if not isinstance(root, Node):
            continue
        stack = [root]
        while stack:
            node = stack[-1]
            if node in order:
                stack.pop()
                continue
            if node.op != SYMBOL:
                a, b = node.a, node.b
                if type(a) is Node and a not in order:
                    stack.append(a)
                    continue
                if type(b) is Node and b not in order:
                    stack.append(b)
                    continue
            order[node] = None
            stack.pop()
    return list(order)


def symvar(x: Matrix) -> list[Node]:
    """Returns the symbols of a matrix, in the order in which a search in depth finds them."""
    return [node for node in _sorted(x.data) if node.op == SYMBOL]


def substitute(expressions: Sequence[Matrix], symbols: Sequence[Matrix], values: Sequence[Any]) -> list[Matrix]:
    """Returns the expressions with values in place of symbols."""
    work: dict[Any, Any] = {None: None}
    for x, value in zip(symbols, values, strict=True):
        replacements = zip(x.data, matrix(value).elements(), strict=True)
        work.update((symbol, entry) for symbol, entry in replacements if symbol is not None)
    # In the order of operands, iteratively: expressions are deeper than the stack of Python.
    for node in _sorted(a for x in expressions for a in x.data):
        if node not in work:
            a, b, op = node.a, node.b, node.op
            if op == SYMBOL:
                work[node] = node
                continue
            a = work.get(a, a)
            work[node] = _UNARY[op](a) if b is None else _BINARY[op](a, work.get(b, b))
    return [Matrix(*x.shape, [work.get(a, a) for a in x.data]) for x in expressions]


def _slopes(node: Node) -> tuple[Any, Any]:
    """Returns the derivatives of an operation with respect to its operands."""
    op, x, y = node.op, node.a, node.b
    if op == ADD:
        return 1.0, 1.0
    if op == SUB:
        return 1.0, -1.0
    if op == MUL:
        return y, x
    if op == DIV:
        return _inverse(y), _div(_neg(node), y)
    if op == NEG:
        return -1.0, 0.0
    if op == SQUARE:
        return _twice(x), 0.0
    if op == TWICE:
        return 2.0, 0.0
    if op == INVERSE:
        return _mul(_neg(node), node), 0.0
    if op == SQRT:
        return _inverse(_twice(node)), 0.0
    if op == SIN:
        return _cos(x), 0.0
    if op == COS:
        return _neg(_sin(x)), 0.0
    if op == TANH:
        return _sub(1.0, _mul(node, node)), 0.0
    if op == ATAN2:
        t = _add(_mul(x, x), _mul(y, y))
        return _div(y, t), _div(_neg(x), t)
    if op == FABS:
        return _copysign(1.0, x), 0.0
    if op == COPYSIGN:
        return _mul(_copysign(1.0, y), _copysign(1.0, x)), 0.0
    if op == IF_ELSE_ZERO:
        return 0.0, x
    if op in (LESS, NOT):
        return 0.0, 0.0
    raise NotImplementedError(f"the derivative of '{NAMES[op]}' is not implemented")


def jtimes(expression: Matrix, symbols: Matrix, directions: Any) -> Matrix:
    """Returns the derivative of an expression where symbols change with the given rates."""
    return _changes(expression, [(symbols.data, matrix(directions).elements())])[0]


def _changes(expression: Matrix, directions: Sequence[tuple[Sequence[Entry], Sequence[Scalar]]]) -> list[Matrix]:
    """Returns the derivative along each direction: symbols, and their rates."""
    nodes = _sorted(expression.data)
    slopes = [(0.0, 0.0) if node.op == SYMBOL else _slopes(node) for node in nodes]
    changes = []
    for symbols, rates in directions:
        work: dict[Any, Any] = dict(zip(symbols, rates, strict=True))
        for node, (left, right) in zip(nodes, slopes, strict=True):
            op = node.op
            if op == SYMBOL:
                work.setdefault(node, 0.0)
            elif op == IF_ELSE_ZERO:
                work[node] = _if_else_zero(right, work.get(node.b, 0.0))
            elif node.b is None:
                work[node] = _mul(left, work.get(node.a, 0.0))
            else:
                work[node] = _add(_mul(left, work.get(node.a, 0.0)), _mul(right, work.get(node.b, 0.0)))
        changes.append(Matrix(*expression.shape, [a if a is None else work.get(a, 0.0) for a in expression.data]))
    return changes


def jacobian(expression: Matrix, symbols: Matrix) -> Matrix:
    """Returns the derivatives of the entries of a column with respect to each symbol, one column each."""
    seed = [1.0]
    columns = _changes(expression, [([symbol], seed) for symbol in symbols.data])
    return sparsify(Matrix(len(expression.data), len(symbols.data), [x for column in columns for x in column.data]))


Instruction = tuple[int, Any, Any]
"""Operation and operands, which are the indices of earlier instructions.

Of CONSTANT the number, of INPUT the operand and the entry, of OUTPUT the place (operand, entry) and the value.
"""

_NUMERIC: Mapping[int, Callable[..., Any]] = {
    ADD: operator.add,
    SUB: operator.sub,
    MUL: operator.mul,
    DIV: operator.truediv,
    NEG: operator.neg,
    SQUARE: lambda x: x * x,
    TWICE: lambda x: x + x,
    INVERSE: lambda x: 1.0 / x,
    SQRT: np.sqrt,
    SIN: np.sin,
    COS: np.cos,
    TANH: np.tanh,
    ATAN2: np.arctan2,
    FABS: np.fabs,
    COPYSIGN: np.copysign,
    LESS: lambda x, y: (x < y) * 1.0,
    NOT: lambda x: (x == 0.0) * 1.0,
    IF_ELSE_ZERO: lambda x, y: np.where(x == 0.0, 0.0, y),
    FMIN: lambda x, y: np.where(x > y, y, x),
    FMAX: lambda x, y: np.where(x < y, y, x),
}
"""Operations on arrays and numbers: Python's operators take a fifth of NumPy's time for numbers. Of FMIN and FMAX a
first operand that is NaN is the result.
"""

EXACT = frozenset((NEG, TWICE, FABS, COPYSIGN, LESS, NOT, IF_ELSE_ZERO, FMIN, FMAX))
"""Operations without rounding errors."""


@dataclass(frozen=True, eq=False)
class Program:
    """Straight-line instructions. inputs, outputs: number of entries of each operand."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: Sequence[Instruction]

    @classmethod
    def of(cls, inputs: Sequence[Matrix], outputs: Sequence[Matrix]) -> Program:
        """Returns the program that computes matrices without structural zeros from symbols.

        Raises:
            ValueError: An output depends on another symbol.
        """
        input_places = {x: (n, k) for n, operand in enumerate(inputs) for k, x in enumerate(operand.data)}
        places: dict[Any, int] = {}
        instructions: list[Instruction] = []

        def place(x: Any) -> int:
            """Returns the index of a constant or of a node that is computed."""
            k = places.get(x)
            if k is None:
                k = places[x] = len(instructions)
                instructions.append((CONSTANT, x, None))
            return k

        for n, operand in enumerate(outputs):
            for entry, root in enumerate(operand.data):
                stack = [root] if type(root) is Node else []
                while stack:
                    node: Any = stack[-1]
                    if node in places:
                        stack.pop()
                        continue
                    op, a, b = node.op, node.a, node.b
                    if op == SYMBOL:
                        if node not in input_places:
                            raise ValueError(f"the expression depends on the symbol '{node.name}', which is no input")
                        places[node] = len(instructions)
                        instructions.append((INPUT, *input_places[node]))
                        stack.pop()
                        continue
                    if a not in places:
                        if type(a) is Node:
                            stack.append(a)
                            continue
                        place(a)
                    if b is None:
                        first, second = places[a], None
                    else:
                        if b not in places:
                            if type(b) is Node:
                                stack.append(b)
                                continue
                            place(b)
                        first, second = places[a], places[b]
                    places[node] = len(instructions)
                    instructions.append((op, first, second))
                    stack.pop()
                instructions.append((OUTPUT, (n, entry), place(0.0 if root is None else root)))
        return cls(
            tuple(len(operand.data) for operand in inputs),
            tuple(len(operand.data) for operand in outputs),
            instructions,
        )

    @property
    def operations(self) -> int:
        """Number of instructions except inputs, outputs and constants."""
        return sum(op >= ADD for op, *_ in self.instructions)

    def __call__(
        self,
        inputs: Sequence[Any],
        constant: Callable[[int, float], Any] | None = None,
        rounded: Callable[[int, Any], Any] | None = None,
    ) -> list[list[Any]]:
        """Returns the entries of the outputs, computed with NumPy from those of the inputs.

        Args:
            inputs: The entries of each operand, arrays or numbers.
            constant: Returns what is used in place of a constant, from the index of its instruction and its value.
            rounded: Returns the same for a rounded result.
        """
        work: list[Any] = [None] * len(self.instructions)
        numeric = _NUMERIC
        outputs: list[list[Any]] = [[0.0] * size for size in self.outputs]
        with np.errstate(all="ignore"):
            for k, (op, a, b) in enumerate(self.instructions):
                if op >= ADD:
                    result = numeric[op](work[a]) if b is None else numeric[op](work[a], work[b])
                    work[k] = result if rounded is None or op in EXACT else rounded(k, result)
                elif op == CONSTANT:
                    work[k] = a if constant is None else constant(k, a)
                elif op == INPUT:
                    x = inputs[a][b]
                    work[k] = np.float64(x) if type(x) is float else x  # which may be divided by 0
                else:
                    outputs[a[0]][a[1]] = work[b]
        return outputs

    def on(self, inputs: Sequence[Matrix]) -> list[Matrix]:
        """Returns the outputs, columns, from matrices of expressions."""
        work: list[Any] = [None] * len(self.instructions)
        input_entries = [x.elements() for x in inputs]
        outputs = [full(size, 1, 0.0) for size in self.outputs]
        for k, (op, a, b) in enumerate(self.instructions):
            if op == CONSTANT:
                work[k] = a
            elif op == INPUT:
                work[k] = input_entries[a][b]
            elif op == OUTPUT:
                outputs[a[0]].data[a[1]] = work[b]
            else:
                work[k] = _UNARY[op](work[a]) if b is None else _BINARY[op](work[a], work[b])
        return outputs
