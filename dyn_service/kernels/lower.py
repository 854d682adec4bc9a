"""Lowers an expression graph to LLVM IR: each scalar becomes a vector with one state per lane.

A module has six functions.

    body(in, out, workspace)  the arithmetic of one block of W states, each number a <W x double>
    gather(...)               copies the states of a block, with NumPy's strides, to `in`
    scatter(...)              copies the results of a block from `out`, with NumPy's strides
    loop(args, dims, steps)   NumPy's inner loop of a generalised ufunc: each block through the same body
    block(in, out), bytes()   the body for other compiled code, and the size of `out`

The last block of a batch may be short; its idle lanes repeat its last state, and their results are not written. So the
result of a state is the same to the last bit at any position in a batch, and no lane computes on garbage.

Arithmetic has the flags nsz, contract and arcp. Not nnan or ninf, so that a NaN stays a NaN in every output that
depends on it (a constant entry of the mass matrix does not). Not reassoc, with which LLVM factors sums, and small
differences of large terms lose up to three digits (docs/adr/0009).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.dynamics import expressions as ex
from dyn_service.kernels.emitting import (
    BLOCK,
    BYTES,
    DOUBLE,
    I64,
    POINTER,
    at,
    chain_from,
    copied,
    integer,
    line,
    loop_over,
    splat,
)
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.jit import FAILURES, host
from dyn_service.kernels.rolled import Address, Equations, Rolled, Step, Walks
from dyn_service.kernels.selecting import PLACES, is_selectable
from dyn_service.kernels.signature import Operand
from dyn_service.kernels.staged import Staged
from dyn_service.kernels.trig import sincos, tanh, vector_intrinsic

BLOCK_INSTRUCTIONS = 2000
"""Instructions per basic block. The code generator's time grows faster than a block's length."""

MOST_STACK_BYTES = 64 << 10
"""Larger buffers of a kernel are allocated on the heap."""

I32 = ir.IntType(32)

_FLAGS = ("nsz", "contract", "arcp")

ERRORS = 256
"""Number of random factors of a state with which a kernel `with_errors` multiplies its rounded results."""


def with_errors(rolled: Any) -> Any:
    """Returns the kernel with one more input, `errors`: factors with which the rounded results are multiplied.

    Body and operation select the factor. The input holds the `ERRORS` factors twice, so that the sum of both indices is
    in range.
    """
    operand = Operand("errors", (2 * ERRORS,), dims=(2 * ERRORS,))
    signature = replace(rolled.signature, inputs=(*rolled.signature.inputs, operand))
    if isinstance(rolled, Staged):
        return Staged(signature, with_errors(rolled.inner), tuple(map(with_errors, rolled.states)))
    return replace(rolled, signature=signature, errors=True)


def lower(graph: Graph | Rolled | Staged, lanes: int, entry: str) -> str:
    """Returns the LLVM module of one kernel, as text.

    Args:
        graph: The traced query.
        lanes: States per vector, W.
        entry: Name of the exported function.
    """
    module = ir.Module(name=graph.signature.name)
    vector = ir.VectorType(DOUBLE, lanes)
    places: list[int] = []
    body = _emit(module, graph, vector, "body", places)
    selects = bool(places) and is_selectable(graph.signature)
    gather, scatter = emit_gather(module, vector), Scatter(module, vector, places, selects=selects)
    _emit_loop(module, entry, graph, vector, body, gather, scatter)
    if lanes == host().lanes:  # those of kernels that need less for their memory cannot be called in turn with others
        _emit_block(module, graph, vector, body, scatter)
    return str(module)


def _internal(module: ir.Module, name: str, arguments: int, pointers: int, *, inline: bool) -> ir.Function:
    """Adds an internal function that takes `pointers` pointers, then integers."""
    kinds = [POINTER] * pointers + [I64] * (arguments - pointers)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    function.attributes.add("alwaysinline" if inline else "noinline")
    return function


def _emit(
    module: ir.Module, graph: Graph | Rolled | Staged, vector: ir.VectorType, name: str, places: list[int] | None = None
) -> ir.Function:
    """Adds a function (in, out, workspace) with the arithmetic of one block. places: see `_emit_body`."""
    if isinstance(graph, Staged):
        return _emit_stages(module, graph, vector, name)
    if isinstance(graph, Rolled):
        return _emit_passes(module, graph, vector, name)
    return _emit_body(module, graph.program, vector, name, places)


def _emit_stages(module: ir.Module, graph: Staged, vector: ir.VectorType, name: str) -> ir.Function:
    """Adds the body of a kernel in stages.

    Its workspace: the inputs of `states`, those of `inner`, which the loop has cleared, and their workspace.
    """
    inner = _emit(module, graph.inner, vector, f"{name}.inner")
    states = [_emit(module, part, vector, f"{name}.states{k}") for k, part in enumerate(graph.states)]
    emitted = _internal(module, name, 3, 3, inline=False)
    source, target, known = emitted.args
    b = ir.IRBuilder(emitted.append_basic_block())
    size = 8 * vector.count

    def place(operands: Sequence[Operand], name: str) -> int:
        """Returns the place of an operand in a buffer."""
        names = [operand.name for operand in operands]
        return sum(operand.size for operand in operands[: names.index(name)])

    def copy(operand: Operand, to: Any, operands: Sequence[Operand]) -> None:
        first = integer(size * place(graph.signature.inputs, operand.name))
        cell, start = at(b, source, first), at(b, to, integer(size * place(operands, operand.name)))
        with loop_over(b, integer(size * operand.size), step=size) as offset:
            b.store(b.load(at(b, cell, offset), align=size, typ=vector), at(b, start, offset), align=size)

    of_states, of_inner = graph.states[0].signature.inputs, graph.inner.signature.inputs
    entered = at(b, known, integer(size * sum(operand.size for operand in of_states)))
    rest = at(b, entered, integer(size * sum(operand.size for operand in of_inner)))
    given = {operand.name for operand in graph.signature.inputs}
    for to, operands in ((known, of_states), (entered, of_inner)):
        for operand in operands:
            if operand.name in given:
                copy(operand, to, operands)
    results = [operand.name for operand in of_states if operand.name not in given]
    for part, result in zip(states, results, strict=False):  # the states are the first inputs of `inner`
        b.call(part, [known, entered, rest])
        b.call(inner, [entered, at(b, known, integer(size * place(of_states, result))), rest])
    b.call(states[-1], [known, target, rest])
    b.ret_void()
    return emitted


def _emit_body(
    module: ir.Module, program: ex.Program, vector: ir.VectorType, name: str, places: list[int] | None
) -> ir.Function:
    """Adds a function with straight-line arithmetic.

    Sets `places`: for each entry of the outputs, the first one in `out` of the same value. Only these are stored, so a
    symmetric matrix is computed and stored once. Entries that are 0 have the place -1. None: all are stored.
    """
    emitted = _internal(module, name, 3, 3, inline=False)
    source, target, _ = emitted.args
    for pointer in emitted.args:
        pointer.add_attribute("noalias")
    b = ir.IRBuilder(emitted.append_basic_block())
    first_in, first_out = _running(program.inputs), _running(program.outputs)

    def read(operand: int, entry: int) -> Any:
        return _load(b, vector, source, first_in[operand] + entry)

    if places is not None:
        places += [-1] * sum(program.outputs)
    stored: dict[Any, int] = {}

    def write(operand: int, entry: int, value: Any) -> None:
        if _is_clear(value):  # the loop has cleared the buffer
            return
        place = first_out[operand] + entry
        first = place if places is None else stored.setdefault(value, place)
        if places is not None:
            places[place] = first
        if first == place:
            _store(b, vector, target, place, value)

    emit_arithmetic(b, program, vector, read, write)
    b.ret_void()
    return emitted


def emit_arithmetic(
    b: ir.IRBuilder,
    program: ex.Program,
    vector: ir.VectorType,
    read: Callable[[int, int], Any],
    write: Callable[[int, int, Any], None],
    rounded: Callable[[int, Any], Any] | None = None,
) -> None:
    """Emits the instructions of a program.

    Args:
        b: Where to emit; it is in a later block afterwards if the program is long.
        program: The program.
        vector: The type of each scalar.
        read: Emits the reading of an input: its operand and entry.
        write: Emits the writing of an output: its operand, its entry and the value.
        rounded: Emits what is done to each rounded result: the number of the operation and the value. None is nothing.
    """
    module = b.module
    work: list[Any] = []
    angles: dict[Any, tuple[Any, ...]] = {}

    def turned(x: Any) -> tuple[Any, ...]:
        if x not in angles:
            angles[x] = copied(b, sincos, x)
        return angles[x]

    def with_error(operation: int, value: Any) -> Any:
        return value if rounded is None else rounded(operation, value)

    def flagged(name: str) -> Callable[..., Any]:
        return lambda *values: _arithmetic(b, name, *values)

    @cache
    def number(value: float) -> Any:
        return ir.Constant(vector, [value] * vector.count)

    zero = number(0.0)
    add, sub, mul, div, neg = map(flagged, ("fadd", "fsub", "fmul", "fdiv", "fneg"))
    sqrt = vector_intrinsic(module, "sqrt", vector, 1)
    emit: dict[int, Callable[..., Any]] = {
        ex.ADD: add,
        ex.SUB: sub,
        ex.MUL: mul,
        ex.DIV: div,
        ex.NEG: neg,
        ex.SQUARE: lambda x: mul(x, x),
        ex.TWICE: lambda x: add(x, x),
        ex.INVERSE: lambda x: div(number(1.0), x),
        ex.SQRT: lambda x: b.call(sqrt, [x]),
        ex.SIN: lambda x: turned(x)[0],
        ex.COS: lambda x: turned(x)[1],
        ex.FABS: lambda x: b.call(vector_intrinsic(module, "fabs", vector, 1), [x]),
        ex.COPYSIGN: lambda x, y: b.call(vector_intrinsic(module, "copysign", vector, 2), [x, y]),
        ex.TANH: lambda x: copied(b, tanh, x)[0],
        ex.ATAN2: lambda x, y: _lane_by_lane(b, "atan2", x, y),
        ex.LESS: lambda x, y: b.select(b.icmp_unsigned("<", _bits(b, x), _bits(b, y)), number(1.0), zero),
        ex.NOT: lambda x: b.select(_is_zero(b, x), number(1.0), zero),
        ex.IF_ELSE_ZERO: lambda x, y: b.select(_is_zero(b, x), zero, y),
        # A first operand that is NaN is the result.
        ex.FMIN: lambda x, y: b.select(b.fcmp_ordered(">", x, y), y, x),
        ex.FMAX: lambda x, y: b.select(b.fcmp_ordered("<", x, y), y, x),
    }
    for k, (operation, first, second) in enumerate(program.instructions):
        if k % BLOCK_INSTRUCTIONS == BLOCK_INSTRUCTIONS - 1:
            following = b.append_basic_block()
            b.branch(following)
            b.position_at_end(following)
        result = None
        if operation == ex.CONSTANT:
            result = number(first) if first else zero
            result = result if not first % 1.0 else with_error(k, result)
        elif operation == ex.INPUT:
            result = read(first, second)
        elif operation == ex.OUTPUT:
            write(first[0], first[1], work[second])
        else:
            result = emit[operation](work[first]) if second is None else emit[operation](work[first], work[second])
            result = result if operation in ex.EXACT else with_error(k, result)
        work.append(result)


def _arithmetic(b: ir.IRBuilder, name: str, first: Any, *others: Any) -> Any:
    operands = ", ".join(value.get_reference() for value in (first, *others))
    return line(b, first.type, f"{name} {' '.join(_FLAGS)} {first.type} {operands}")


def _entry_of(b: ir.IRBuilder, vector: ir.VectorType, buffer: Any, entry: int) -> Any:
    return line(b, POINTER, f"getelementptr i8, ptr {buffer.get_reference()}, i64 {8 * vector.count * entry}")


def _load(b: ir.IRBuilder, vector: ir.VectorType, buffer: Any, entry: int) -> Any:
    cell = _entry_of(b, vector, buffer, entry)
    return line(b, vector, f"load {vector}, ptr {cell.reference}, align {8 * vector.count}")


def _store(b: ir.IRBuilder, vector: ir.VectorType, buffer: Any, entry: int, value: Any) -> None:
    b.store(value, _entry_of(b, vector, buffer, entry), align=8 * vector.count)


def _is_clear(value: Any) -> bool:
    """Whether a value is the constant 0."""
    return isinstance(value, ir.Constant) and not any(value.constant)


def _emit_passes(module: ir.Module, rolled: Rolled, vector: ir.VectorType, body: str) -> ir.Function:
    """Adds the body of a kernel as loops.

    Its workspace: stored values, sums, totals, states of walks, shared sums, the matrix of equations.
    """
    emitted = _internal(module, body, 3, 3, inline=False)
    source, target, own = emitted.args
    b = ir.IRBuilder(emitted.append_basic_block())
    size, bodies = 8 * vector.count, len(rolled.kind)
    tables = _Tables(module, rolled)
    sums = at(b, own, integer(size * bodies * rolled.stored))
    clear = ir.Constant(vector, [0.0] * vector.count)
    with loop_over(b, integer(rolled.rows * rolled.summed + rolled.totals)) as entry:
        b.store(clear, _vector_address(b, sums, vector, entry), align=size)

    states = at(b, sums, integer(size * (rolled.rows * rolled.summed + rolled.totals)))
    shared = at(b, states, integer(size * rolled.states))

    def empty(buffer: Any, count: int) -> None:
        with loop_over(b, integer(count)) as entry:
            b.store(clear, _vector_address(b, buffer, vector, entry), align=size)

    empty(shared, rolled.velocities * rolled.shared)
    if rolled.adds:
        empty(target, sum(operand.size for operand in rolled.signature.outputs))
    nothing = integer(0)

    def step(name: str, of: Step | None, walks: Walks | None = None) -> ir.Function | None:
        if of is None:
            return None
        function = _internal(module, f"{body}.{name}", 7, 5, inline=False)
        inner = ir.IRBuilder(function.append_basic_block())
        access = _Access(inner, vector, rolled, tables, walks, *function.args)
        emit_arithmetic(
            inner,
            of.program,
            vector,
            lambda _, entry: access.read(of.sources[entry]),
            lambda _, entry, value: access.write(of.targets[entry], value),
            access.rounded if rolled.errors else None,
        )
        for entry in of.cleared:  # at the end, after they are read
            access.write(Address("children", entry), clear)
        inner.ret_void()
        return function

    def call(functions: Sequence[ir.Function | None], kind: Any, i: Any, first: Any) -> None:
        """Emits the call of the function of a kind."""
        after = b.append_basic_block()
        choice = b.switch(kind, after)
        for k, function in enumerate(functions):
            if function is not None:
                block = b.append_basic_block()
                choice.add_case(integer(k), block)
                b.position_at_end(block)
                b.call(function, [source, target, own, sums, states, i, first])
                b.branch(after)
        b.position_at_end(after)

    def visit(name: str, walks: Walks) -> None:
        first = [step(f"{name}_from{k}", of, walks) for k, of in enumerate(walks.first)]
        others = [
            step(f"{name}_from{k}_at{m}", of, walks) for k, row in enumerate(walks.others) for m, of in enumerate(row)
        ]
        kinds = integer(len(walks.first))
        with loop_over(b, integer(bodies)) as a:
            kind = tables.entry(b, "kind", a)
            call(first, kind, a, a)
            row = b.mul(kind, kinds)
            if walks.outward:
                with loop_over(b, tables.entry(b, "end", a), start=b.add(a, integer(1))) as i:
                    call(others, b.add(row, tables.entry(b, "kind", i)), i, a)
            else:
                with chain_from(b, tables.entry(b, "parent", a), lambda i: tables.entry(b, "parent", i)) as i:
                    call(others, b.add(row, tables.entry(b, "kind", i)), i, a)

    def solve(after: int) -> None:
        for n, of in enumerate(rolled.equations):
            if of.after == after:
                empty(at(b, shared, integer(size * rolled.velocities * rolled.shared)), rolled.matrix)
                visit(f"matrix{n}", of.matrix)
                _emit_solution(b, vector, rolled, tables, of, source, shared)

    for p, each in enumerate(rolled.passes):
        solve(p)
        steps = [step(f"pass{p}_kind{k}", of) for k, of in enumerate(each.steps)]
        with loop_over(b, integer(bodies)) as n:
            i = n if each.outward else b.sub(integer(bodies - 1), n)
            call(steps, tables.entry(b, "kind", i), i, nothing)
    solve(len(rolled.passes))
    for w, walks in enumerate(rolled.walks):
        visit(f"walk{w}", walks)
    last = step("last", rolled.last)
    if last is not None:
        b.call(last, [source, target, own, sums, states, nothing, nothing])
    b.ret_void()
    return emitted


def _emit_solution(
    b: ir.IRBuilder, vector: ir.VectorType, rolled: Rolled, tables: _Tables, of: Equations, source: Any, shared: Any
) -> None:
    """Emits the factorisation of the matrix as L^T D L, in place, and the solutions, see `rolled.Elimination`."""
    size, count, width = 8 * vector.count, rolled.velocities, rolled.elimination.width
    matrix = at(b, shared, integer(size * count * rolled.shared))
    errors = at(b, source, integer(size * sum(operand.size for operand in rolled.signature.inputs[:-1])))

    def load(place: Any) -> Any:
        return b.load(place, align=size, typ=vector)

    def store(value: Any, place: Any) -> None:
        b.store(value, place, align=size)

    def rounded(value: Any, i: Any, j: Any) -> Any:
        if not rolled.errors:
            return value
        index = b.and_(b.add(b.mul(i, integer(97)), b.mul(j, integer(31))), integer(ERRORS - 1))
        return b.fmul(value, load(_vector_address(b, errors, vector, index)))

    def less(place: Any, x: Any, y: Any, i: Any, j: Any) -> None:
        """Subtracts the product x y from what is stored."""
        product = rounded(b.fmul(x, y, flags=_FLAGS), i, b.add(j, integer(1)))
        store(rounded(b.fsub(load(place), product, flags=_FLAGS), i, j), place)

    def from_last() -> Any:
        return loop_over(b, integer(count))

    def before(k: Any) -> Any:
        return chain_from(b, k, lambda i: tables.entry(b, "before", i))

    def row(k: Any) -> Any:
        return _vector_address(b, matrix, vector, b.mul(k, integer(width)))

    def cell(row: Any, j: Any) -> Any:
        return _vector_address(b, row, vector, tables.entry(b, "place", j))

    with from_last() as n:
        k = tables.entry(b, "order", b.sub(integer(count - 1), n))
        of_k = row(k)
        pivot = cell(of_k, k)
        inverse = rounded(b.fdiv(ir.Constant(vector, [1.0] * vector.count), load(pivot), flags=_FLAGS), k, k)
        store(inverse, pivot)
        with before(tables.entry(b, "before", k)) as i:
            of_i, place = row(i), cell(of_k, i)
            share = rounded(b.fmul(load(place), inverse, flags=_FLAGS), k, i)
            with loop_over(b, b.add(tables.entry(b, "place", i), integer(1))) as j:
                entry = load(_vector_address(b, of_k, vector, j))
                less(_vector_address(b, of_i, vector, j), share, entry, i, j)
            store(share, place)
    for column in range(of.first, of.first + of.count):
        x = at(b, shared, integer(size * count * column))

        def entry_of(k: Any, x: Any = x) -> Any:
            return _vector_address(b, x, vector, k)

        with from_last() as n:
            k = tables.entry(b, "order", b.sub(integer(count - 1), n))
            of_k, own = row(k), load(entry_of(k))
            with before(tables.entry(b, "before", k)) as i:
                less(entry_of(i), load(cell(of_k, i)), own, i, k)
        with from_last() as n:
            k = tables.entry(b, "order", n)
            of_k, place = row(k), entry_of(k)
            store(rounded(b.fmul(load(place), load(cell(of_k, k)), flags=_FLAGS), k, k), place)
            with before(tables.entry(b, "before", k)) as i:
                less(place, load(cell(of_k, i)), load(entry_of(i)), k, i)


class _Tables:
    """Constant tables of a kernel as loops: of each body its kind, parent, rows and starts; and all numbers.

    Of each entry of v, if the kernel solves equations: `order`, `before` and `place`, those of `rolled.Elimination`.
    """

    def __init__(self, module: ir.Module, rolled: Rolled) -> None:
        self._module = module
        place, first = np.zeros(len(rolled.kind), dtype="<i8"), 0
        for k, numbers in enumerate(rolled.numbers):
            place[np.array(rolled.kind) == k] = first + numbers.shape[1] * np.arange(len(numbers))
            first += numbers.size
        columns = {
            "kind": rolled.kind,
            "parent": rolled.parent,
            "row": rolled.row,
            "parent_row": [rolled.row[parent] if parent >= 0 else 0 for parent in rolled.parent],
            "numbers": place,
            "end": _ends(rolled.parent),
            **rolled.starts,
        }
        if rolled.equations:
            of = rolled.elimination
            columns |= {"order": of.order, "before": of.parent, "place": of.column}
        self.tables = {name: self._add(name, np.array(column, dtype="<i8")) for name, column in columns.items()}
        self.numbers = self._add("values", np.concatenate([np.zeros(0), *(x.reshape(-1) for x in rolled.numbers)]))

    def _add(self, name: str, values: Any) -> Any:
        """Adds a table, once for all parts of a kernel in stages."""
        data = bytearray(values.tobytes())
        name = f"table.{name}.{hashlib.sha256(data).hexdigest()}"
        if name in self._module.globals:
            return self._module.globals[name]
        kind = ir.ArrayType(ir.IntType(8), len(data))
        table = ir.GlobalVariable(self._module, kind, name)
        table.linkage, table.global_constant, table.align = "internal", True, 64
        table.initializer = ir.Constant(kind, data)
        return table

    def entry(self, b: ir.IRBuilder, name: str, i: Any) -> Any:
        """Emits the reading of a body's entry of a table."""
        return b.load(at(b, self.tables[name], b.mul(i, integer(8))), typ=I64)


def _ends(parent: Sequence[int]) -> list[int]:
    """Returns for each body the first one after its descendants."""
    end = list(range(1, len(parent) + 1))
    for i in range(len(parent) - 1, -1, -1):
        if parent[i] >= 0:
            end[parent[i]] = max(end[parent[i]], end[i])
    return end


class _Access:
    """Emits what a step reads and writes for body i; in a walk that began at body `first`."""

    def __init__(
        self,
        b: ir.IRBuilder,
        vector: ir.VectorType,
        rolled: Rolled,
        tables: _Tables,
        walks: Walks | None,
        *arguments: Any,
    ) -> None:
        self._b, self._vector, self._rolled, self.tables, self._walks = b, vector, rolled, tables, walks
        self._source, self._target, self._own, self._sums, self._states, self._i, self._first = arguments
        self._known: dict[Any, Any] = {}

    def _once(self, key: Any, emit: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = emit()
        return self._known[key]

    def _row(self, buffer: Any, width: int, i: Any) -> Any:
        return at(self._b, buffer, self._b.mul(i, integer(8 * self._vector.count * width)))

    def _entry(self, table: str) -> Any:
        return self._once(table, lambda: self.tables.entry(self._b, table, self._i))

    def _locate(self, place: Address, *, write: bool = False) -> tuple[Any, int]:
        """Returns a buffer and the entry in it."""
        rolled, of = self._rolled, place.of
        if of in ("input", "output", "added", "shared", "matrix"):
            buffer = self._buffer(of)
            if place.family is None:
                return buffer, place.first
            start = self._entry(place.family)
            at_body = self._once(place._replace(first=0, other=None), lambda: self._row(buffer, place.stride, start))
            if place.other is None:
                return at_body, place.first
            other = str(place.other)
            row = self._once(("first", other), lambda: self.tables.entry(self._b, other, self._first))
            at_pair = self._once(place._replace(first=0), lambda: self._row(at_body, place.other_stride, row))
            return at_pair, place.first
        if of == "total":
            return self._sums, rolled.rows * rolled.summed + place.first
        if of in ("children", "gives"):
            row = self._entry("row" if of == "children" else "parent_row")
            return self._once((of,), lambda: self._row(self._sums, rolled.summed, row)), place.first
        if of == "state":
            # An outward walk stores the state of each body, an inward one the state that each body gets.
            walks = self._walks
            assert walks is not None
            at_parent = walks.outward != write
            i = self._entry("parent") if at_parent else self._i
            return self._once((of, at_parent), lambda: self._row(self._states, walks.size, i)), place.first
        i = self._entry("parent") if of == "parent" else self._i
        return self._once((of,), lambda: self._row(self._own, rolled.stored, i)), place.first

    def _buffer(self, of: str) -> Any:
        if of in ("shared", "matrix"):
            rolled = self._rolled
            before = rolled.states + (rolled.velocities * rolled.shared if of == "matrix" else 0)
            return self._once((of,), lambda: at(self._b, self._states, integer(8 * self._vector.count * before)))
        return self._source if of == "input" else self._target

    def read(self, place: Address) -> Any:
        """Emits the reading of a scalar."""
        b = self._b
        if place.of != "number":
            return _load(b, self._vector, *self._locate(place))
        row = self._once(("numbers",), lambda: at(b, self.tables.numbers, b.mul(self._entry("numbers"), integer(8))))
        number = splat(b, b.load(at(b, row, integer(8 * place.first)), typ=DOUBLE), self._vector)
        return self.rounded(31 * place.first, number) if self._rolled.errors else number

    def rounded(self, operation: int, value: Any) -> Any:
        """Emits the product with one of the factors `errors`."""
        b, inputs = self._b, self._rolled.signature.inputs
        first = sum(operand.size for operand in inputs[:-1])

        def row() -> Any:
            body = b.and_(b.mul(self._i, integer(97)), integer(ERRORS - 1))
            return self._row(self._source, 1, b.add(body, integer(first)))

        error = _load(b, self._vector, self._once(("errors",), row), operation % ERRORS)
        return line(b, value.type, f"fmul {value.type} {value.get_reference()}, {error.reference}")

    def write(self, place: Address, value: Any) -> None:
        """Emits the writing of a scalar, or adding it to a sum."""
        b, cell = self._b, self._locate(place, write=True)
        if place.of in ("gives", "total", "added", "shared", "matrix"):
            value = _arithmetic(b, "fadd", _load(b, self._vector, *cell), value)
        _store(b, self._vector, *cell, value)


def _bits(b: ir.IRBuilder, x: Any) -> Any:
    """Returns non-negative numbers as integers in the same order: comparing floats raises a flag for NaN."""
    return b.bitcast(x, ir.VectorType(I64, x.type.count))


def _is_zero(b: ir.IRBuilder, x: Any) -> Any:
    bits = _bits(b, x)
    return b.icmp_unsigned("==", bits, ir.Constant(bits.type, [0] * bits.type.count))


def _lane_by_lane(b: ir.IRBuilder, name: str, *vectors: Any) -> Any:
    """Calls a function of the C library, which few kernels need, for one lane at a time."""
    kind = ir.FunctionType(DOUBLE, [DOUBLE] * len(vectors))
    function = b.module.globals.get(name) or ir.Function(b.module, kind, name)
    found = ir.Constant(vectors[0].type, ir.Undefined)
    for lane in range(vectors[0].type.count):
        place = ir.Constant(ir.IntType(32), lane)
        value = b.call(function, [b.extract_element(v, place) for v in vectors])
        found = b.insert_element(found, value, place)
    return found


def emit_gather(module: ir.Module, vector: ir.VectorType) -> ir.Function:
    """Adds gather(in, base, states, state_stride, entries, entry_stride): lane l is state min(l, states - 1).

    Full blocks of contiguous entries are read by rows and transposed in registers, W entries at a time.
    """
    function = _internal(module, "gather", 6, 2, inline=False)
    target, base, states, state_stride, entries, entry_stride = function.args
    b = ir.IRBuilder(function.append_basic_block())
    last = b.sub(states, integer(1))
    rows = []
    for lane in range(vector.count):
        state = b.select(b.icmp_signed("<", integer(lane), last), integer(lane), last)
        rows.append(at(b, base, b.mul(state, state_stride)))
    transposed = _whole_tiles(b, vector, states, entries, entry_stride)
    with loop_over(b, transposed, step=vector.count) as entry:
        tile = [at(b, row, b.mul(entry, integer(8))) for row in rows]
        for k, column in enumerate(_transposed(b, vector, tile, align=1)):
            b.store(column, _vector_address(b, target, vector, b.add(entry, integer(k))), align=8 * vector.count)
    with loop_over(b, entries, start=transposed) as entry:
        value = ir.Constant(vector, ir.Undefined)
        for lane, row in enumerate(rows):
            number = b.load(at(b, row, b.mul(entry, entry_stride)), align=1, typ=DOUBLE)
            value = b.insert_element(value, number, integer(lane))
        b.store(value, _vector_address(b, target, vector, entry), align=8 * vector.count)
    b.ret_void()
    return function


class Scatter:
    """Copies results from a block's buffer to the outputs.

    Args:
        module: The module.
        vector: The type of each scalar.
        places: By entry of the outputs its place in the buffer, -1 for a 0; empty: each entry has its own.
        selects: Whether a call may choose rows, with a table of places of its own; see `kernels.selecting`.
    """

    def __init__(self, module: ir.Module, vector: ir.VectorType, places: Sequence[int], *, selects: bool) -> None:
        self._vector, self.selects = vector, selects
        self.table: Any = None
        if selects or list(places) != list(range(len(places))):
            kind = ir.ArrayType(I32, len(places))
            self.table = ir.GlobalVariable(module, kind, "table.places")
            self.table.linkage, self.table.global_constant = "internal", True
            self.table.initializer = ir.Constant(kind, list(places))
        if selects:
            where = ir.Function(module, ir.FunctionType(POINTER, []), PLACES)
            ir.IRBuilder(where.append_basic_block()).ret(ir.Constant.bitcast(self.table, POINTER))
        self._function = self._emit(module)

    def call(
        self,
        b: ir.IRBuilder,
        buffer: Any,
        first: Any,
        base: Any,
        states: Any,
        stride: Any,
        entries: Any,
        each: Any,
        chosen: Any,
    ) -> None:
        """Emits the copying of consecutive entries of some states.

        Args:
            b: Where to emit.
            buffer: The buffer of the block.
            first: The index of the first entry in it.
            base: Where to write this entry of the first state.
            states: The number of states.
            stride: Bytes from state to state.
            entries: The number of entries.
            each: Bytes from entry to entry.
            chosen: The table of the places of all entries, for chosen rows.
        """
        if self.table is None:
            buffer, table = _vector_address(b, buffer, self._vector, first), ir.Constant(POINTER, None)
        else:
            table = at(b, self.table if chosen is None else chosen, b.mul(first, integer(4)))
        b.call(self._function, [buffer, base, table, states, stride, entries, each])

    def _emit(self, module: ir.Module) -> ir.Function:
        """Adds scatter(out, base, places, states, state_stride, entries, entry_stride): writes `states` lanes."""
        vector, lanes = self._vector, self._vector.count
        function = _internal(module, "scatter", 7, 3, inline=False)
        source, base, table, states, state_stride, entries, entry_stride = function.args
        b = ir.IRBuilder(function.append_basic_block())
        transposed = _whole_tiles(b, vector, states, entries, entry_stride)
        clear = ir.Constant(vector, [0.0] * lanes)

        def place(entry: Any) -> Any:
            return b.sext(b.load(at(b, table, b.mul(entry, integer(4))), align=4, typ=I32), I64)

        def write(rows: Sequence[Any], entry: Any) -> None:
            for lane, row in enumerate(rows):
                start = at(b, base, b.add(b.mul(integer(lane), state_stride), b.mul(entry, integer(8))))
                b.store(row, start, align=1)

        with loop_over(b, transposed, step=lanes) as entry:
            if self.table is None:
                cells = [_vector_address(b, source, vector, b.add(entry, integer(k))) for k in range(lanes)]
                write(_transposed(b, vector, cells, align=8 * lanes), entry)
            else:
                found = [place(b.add(entry, integer(k))) for k in range(lanes)]
                every = found[0]
                for each in found[1:]:
                    every = b.and_(every, each)
                with b.if_else(b.icmp_signed("==", every, integer(-1))) as (zeros, others):
                    with zeros:
                        write([clear] * lanes, entry)
                    with others:
                        cells = [_vector_address(b, source, vector, each) for each in found]
                        write(_transposed(b, vector, cells, align=8 * lanes), entry)
        with loop_over(b, states) as state:
            row = at(b, base, b.mul(state, state_stride))
            lane = at(b, source, b.mul(state, integer(8)))
            with loop_over(b, entries, start=transposed) as entry:
                cell = entry if self.table is None else place(entry)
                number = b.load(_vector_address(b, lane, vector, cell), align=8, typ=DOUBLE)
                b.store(number, at(b, row, b.mul(entry, entry_stride)), align=1)
        b.ret_void()
        return function


def _whole_tiles(b: ir.IRBuilder, vector: ir.VectorType, states: Any, entries: Any, entry_stride: Any) -> Any:
    """Returns the number of entries copied in square tiles: a multiple of W if the block is full and packed, else 0."""
    packed = b.icmp_signed("==", entry_stride, integer(8))
    full = b.icmp_signed("==", states, integer(vector.count))
    return b.select(b.and_(packed, full), b.and_(entries, integer(-vector.count)), integer(0))


def _transposed(b: ir.IRBuilder, vector: ir.VectorType, tile: Sequence[Any], align: int) -> list[Any]:
    """Returns the columns of a square tile of vectors, by swapping off-diagonal blocks at every power of two.

    Args:
        b: Where to emit.
        vector: The type of a row.
        tile: The address of each row.
        align: Bytes by which the addresses are aligned.
    """
    count = len(tile)
    if count == 1:
        return [b.load(tile[0], align=min(align, 8), typ=vector)]
    half = count // 2
    half_vector = ir.VectorType(DOUBLE, half)

    def mask(lanes: Sequence[int]) -> Any:
        return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))

    # The largest blocks are swapped by loading halves: a load and an insertion take no shuffle of registers.
    rows: list[Any] = [None] * count
    for i in range(half):
        for side in range(2):
            halves = (
                b.load(at(b, tile[k], integer(8 * half * side)), align=min(align, 8 * half), typ=half_vector)
                for k in (i, i + half)
            )
            rows[i + half * side] = b.shuffle_vector(*halves, mask(range(count)))
    step = 1
    while step < half:
        # Lanes 0 .. count - 1 are of the first vector, from count on of the second.
        first = [lane if not lane & step else count + lane - step for lane in range(count)]
        second = [lane + step if not lane & step else count + lane for lane in range(count)]
        for i in range(count):
            if not i & step:
                pair = rows[i], rows[i + step]
                rows[i], rows[i + step] = (b.shuffle_vector(*pair, mask(lanes)) for lanes in (first, second))
        step *= 2
    return rows


def _vector_address(b: ir.IRBuilder, buffer: Any, vector: ir.VectorType, entry: Any) -> Any:
    """Returns the address of an entry's vector in a block's buffer."""
    return at(b, buffer, b.mul(entry, integer(8 * vector.count)))


def _emit_loop(
    module: ir.Module,
    entry: str,
    graph: Graph | Rolled | Staged,
    vector: ir.VectorType,
    body: ir.Function,
    gather: ir.Function,
    scatter: Scatter,
) -> None:
    """Adds loop(args, dims, steps, data): dims[0] states; steps: state strides of the operands, then core strides."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4), entry)
    function.attributes.add("nounwind")
    args, dims, steps, data = function.args
    b = ir.IRBuilder(function.append_basic_block())
    inputs, outputs = graph.signature.inputs, graph.signature.outputs
    operands = (*inputs, *outputs)
    size = 8 * vector.count

    def entry_of(table: Any, kind: Any, index: int) -> Any:
        return b.load(at(b, table, integer(8 * index)), typ=kind)

    source_bytes, target_bytes = (size * sum(operand.size for operand in side) for side in (inputs, outputs))
    workspace_bytes = size * graph.workspace
    # A vector of zeros precedes the results: the place -1.
    scratch, source = _scratch(module, b, source_bytes + size + target_bytes + workspace_bytes, align=size)
    if scratch is not None:
        with b.if_then(b.icmp_unsigned("==", scratch, ir.Constant(POINTER, None)), likely=False):
            _emit_failure(module, b)
            b.ret_void()
    target = at(b, source, integer(source_bytes + size))
    workspace = at(b, target, integer(target_bytes))
    clear = ir.Constant(vector, [0.0] * vector.count)
    cleared_bytes = target_bytes + (size * graph.entered if isinstance(graph, Staged) else 0)
    with loop_over(b, integer(cleared_bytes), start=integer(-size), step=size) as offset:
        b.store(clear, at(b, target, offset), align=size)
    count = entry_of(dims, I64, 0)
    bases = [entry_of(args, POINTER, k) for k in range(len(operands))]
    strides = [entry_of(steps, I64, k) for k in range(len(operands))]
    core: list[list[Any]] = []
    index = len(operands)
    for operand in operands:
        core.append([entry_of(steps, I64, index + axis) for axis in range(len(operand.shape))])
        index += len(operand.shape)

    table = rows_of_outputs = None
    if scatter.selects:
        # The data are null, or the number of chosen rows and the address of a table: the places of their entries.
        chosen, selection = b.icmp_unsigned("!=", data, ir.Constant(POINTER, None)), b.alloca(I64, size=integer(2))
        b.store(integer(outputs[0].shape[0]), selection)
        b.store(b.ptrtoint(scatter.table, I64), at(b, selection, integer(8)))
        given = b.select(chosen, data, selection)
        rows_of_outputs, table = entry_of(given, I64, 0), entry_of(given, POINTER, 1)

    with loop_over(b, count, step=vector.count) as start:
        left = b.sub(count, start)
        full = integer(vector.count)
        states = b.select(b.icmp_signed("<", left, full), left, full)

        def read(first: Any, base: Any, stride: Any, entries: Any, each: Any) -> None:
            cell = _vector_address(b, source, vector, first)
            b.call(gather, [cell, base, states, stride, entries, each])

        def write(first: Any, base: Any, stride: Any, entries: Any, each: Any) -> None:
            scatter.call(b, target, first, base, states, stride, entries, each, table)

        def move(mover: Callable[..., None], first: Any, k: int, operand: Operand, count: Any) -> None:
            """Emits the copying of an operand. first: its first entry in the buffer. count: size of its first axis."""
            base = at(b, bases[k], b.mul(start, strides[k]))
            *outer, width = operand.shape or (1,)
            if not outer:
                mover(first, base, strides[k], count, core[k][0] if core[k] else integer(8))
                return
            packed = ir.Constant(ir.IntType(1), 1)
            for axis, stride in enumerate(core[k]):
                expected = 8 * math.prod(operand.shape[axis + 1 :])
                packed = b.and_(packed, b.icmp_signed("==", stride, integer(expected)))
            with b.if_else(packed) as (at_once, row_by_row):
                with at_once:
                    rest = operand.size // operand.shape[0] if operand.shape[0] else 0
                    mover(first, base, strides[k], b.mul(count, integer(rest)), integer(8))
                with row_by_row:

                    def rows(axis: int, start_of_row: Any, row: Any) -> None:
                        if axis == len(outer):
                            entry = b.add(first, b.mul(row, integer(width)))
                            mover(entry, start_of_row, strides[k], integer(width), core[k][-1])
                            return
                        with loop_over(b, integer(outer[axis]) if axis else count) as position:
                            place = at(b, start_of_row, b.mul(position, core[k][axis]))
                            rows(axis + 1, place, b.add(b.mul(row, integer(outer[axis])), position))

                    rows(0, base, integer(0))

        for k, (first, operand) in enumerate(zip(_running(o.size for o in inputs), inputs, strict=False)):
            move(read, integer(first), k, operand, integer(next(iter(operand.shape), 1)))
        b.call(body, [source, target, workspace])
        for k, (first, operand) in enumerate(zip(_running(o.size for o in outputs), outputs, strict=False)):
            size_of_first = integer(next(iter(operand.shape), 1)) if rows_of_outputs is None else rows_of_outputs
            if rows_of_outputs is None:
                place = integer(first)
            else:
                place = b.mul(rows_of_outputs, integer(first // outputs[0].shape[0]))
            move(write, place, len(inputs) + k, operand, size_of_first)
    if scratch is not None:
        b.call(_library_function(module, "free", ir.VoidType(), [POINTER]), [scratch])
    b.ret_void()


def _emit_block(
    module: ir.Module, graph: Graph | Rolled | Staged, vector: ir.VectorType, body: ir.Function, scatter: Scatter
) -> None:
    """Adds block(in, out), the body, and bytes(), the size of its results and workspace; see `kernels/repeated.py`.

    Here each entry of `out` gets its value; those that are 0 are never written.
    """
    block = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 2), BLOCK)
    b = ir.IRBuilder(block.append_basic_block())
    source, target = block.args
    size, results = 8 * vector.count, sum(operand.size for operand in graph.signature.outputs)
    b.call(body, [source, target, at(b, target, integer(size * results))])
    if scatter.table is not None:
        with loop_over(b, integer(results)) as entry:
            place = b.sext(b.load(at(b, scatter.table, b.mul(entry, integer(4))), align=4, typ=I32), I64)
            with b.if_then(b.icmp_signed(">=", place, integer(0))):
                value = b.load(_vector_address(b, target, vector, place), align=size, typ=vector)
                b.store(value, _vector_address(b, target, vector, entry), align=size)
    b.ret_void()
    sizes = ir.Function(module, ir.FunctionType(I64, []), BYTES)
    ir.IRBuilder(sizes.append_basic_block()).ret(integer(size * (results + graph.workspace)))


def _scratch(module: ir.Module, b: ir.IRBuilder, size: int, align: int) -> tuple[Any, Any]:
    """Allocates memory for one call; returns the pointer to free (None on the stack) and the aligned buffer.

    Large buffers are on the heap, since a thread's stack may be small and its end is not checked.
    """
    scratch = None
    if size <= MOST_STACK_BYTES:
        memory = b.alloca(ir.IntType(8), size=integer(size + align))
    else:
        memory = scratch = b.call(_library_function(module, "malloc", POINTER, [I64]), [integer(size + align)])
    address = b.add(b.ptrtoint(memory, I64), integer(align - 1))
    return scratch, b.inttoptr(b.and_(address, integer(-align)), POINTER)


def _emit_failure(module: ir.Module, b: ir.IRBuilder) -> None:
    """Emits what happens without memory: the count of failures rises, and a status flag of the processor is set, so
    that direct calls drop the results.
    """
    count, nan = (ir.GlobalVariable(module, kind, name) for kind, name in ((I64, FAILURES), (DOUBLE, "nan")))
    count.initializer, nan.initializer, nan.linkage = integer(0), ir.Constant(DOUBLE, 0.0), "internal"
    failures = b.add(b.load(count, typ=I64), integer(1))
    b.store(failures, count)
    number = b.sitofp(failures, DOUBLE)
    zero = b.fsub(number, number)
    b.store(b.fdiv(zero, zero), nan)


def _library_function(module: ir.Module, name: str, returns: Any, takes: list[Any]) -> ir.Function:
    return ir.Function(module, ir.FunctionType(returns, takes), name)


def _running(sizes: Any) -> list[int]:
    """Returns the start of each of several consecutive runs."""
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size
    return starts
