"""Lowers an expression graph to LLVM IR: each scalar becomes a vector with one state per lane.

A module has the function `body(in, out, workspace)`, the arithmetic of W states, each number a <W x double>, and the
tables `sizes` and, if results share places in `out`, `places` (`kernels.loop`). Kernels as loops that do not solve for
matrices also have the function `narrow`, for two states.

Arithmetic has the flags nsz, contract and arcp. Not nnan or ninf, so that a NaN stays a NaN in every output that
depends on it (a constant entry of the mass matrix does not). Not reassoc, with which LLVM factors sums, and small
differences of large terms lose up to three digits (docs/adr/0009).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.dynamics import expressions as ex
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.llvm_ir import (
    DOUBLE,
    I32,
    I64,
    POINTER,
    at,
    chain_from,
    copied,
    integer,
    internal,
    library_function,
    line,
    loop_over,
    splat,
    vector_address,
    word,
)
from dyn_service.kernels.loop import BODY, NARROW, NARROW_LANES, PLACES, SIZES
from dyn_service.kernels.rolled import SOLVED_COLUMNS, Address, Elimination, InputProducts, Rolled, Step, Walks
from dyn_service.kernels.row_selection import is_selectable
from dyn_service.kernels.signature import Operand
from dyn_service.kernels.staged import Staged
from dyn_service.kernels.trig import sincos, tanh, vector_intrinsic

BLOCK_INSTRUCTIONS = 2000
"""Most instructions of a basic block. The code generator's time grows faster than a block's length."""

_FLAGS = ("nsz", "contract", "arcp")

ERRORS = 256
"""Number of random factors per state of a kernel `with_errors`."""


def with_errors(rolled: Any) -> Any:
    """Returns the kernel with one more input, `errors`: factors by which its rounded results are multiplied.

    Body and operation each give an index below `ERRORS`; their sum selects the factor. So the input has the `ERRORS`
    factors twice.
    """
    operand = Operand("errors", (2 * ERRORS,), dims=(2 * ERRORS,))
    signature = replace(rolled.signature, inputs=(*rolled.signature.inputs, operand))
    if isinstance(rolled, Staged):
        states, changes = (tuple(map(with_errors, of)) for of in (rolled.states, rolled.changes))
        inner = with_errors(rolled.inner)
        return replace(rolled, signature=signature, inner=inner, states=states, changes=changes)
    return replace(rolled, signature=signature, errors=True)


def lower(graph: Graph | Rolled | Staged, lanes: int) -> str:
    """Returns the LLVM module of one kernel, as text.

    Args:
        graph: The traced query.
        lanes: States per vector, W.
    """
    module = ir.Module(name=graph.signature.name)
    vector = ir.VectorType(DOUBLE, lanes)
    places: list[int] = []
    emit_body(module, graph, vector, BODY, places).linkage = ""
    if _has_narrow(graph) and lanes > NARROW_LANES:
        emit_body(module, graph, ir.VectorType(DOUBLE, NARROW_LANES), NARROW).linkage = ""
    results = sum(operand.size for operand in graph.signature.outputs)
    cleared = graph.entered if isinstance(graph, Staged) else 0
    executed = 0 if isinstance(graph, Graph) else graph.operations
    _emit_table(module, SIZES, I64, [lanes, results, graph.workspace, cleared, executed])
    if places and (is_selectable(graph.signature) or places != list(range(results))):
        _emit_table(module, PLACES, I32, places)
    return str(module)


def _has_narrow(graph: Graph | Rolled | Staged) -> bool:
    """Whether a kernel has a body for few states.

    Kernels that solve for matrices have none: they take longest to compile, and are called for many states at a time.
    Kernels with errors have none, since they run once.
    """
    loops = graph.inner if isinstance(graph, Staged) else graph
    return isinstance(loops, Rolled) and not loops.solved and not loops.errors


def _emit_table(
    module: ir.Module, name: str, kind: Any, numbers: Sequence[int], linkage: str = ""
) -> ir.GlobalVariable:
    """Adds an array of integers, which is exported unless its linkage is `internal`."""
    array = ir.ArrayType(kind, len(numbers))
    table = ir.GlobalVariable(module, array, name)
    table.linkage, table.global_constant = linkage, True
    table.initializer = ir.Constant(array, list(numbers))
    return table


def emit_body(
    module: ir.Module, graph: Graph | Rolled | Staged, vector: ir.VectorType, name: str, places: list[int] | None = None
) -> ir.Function:
    """Adds a function (in, out, workspace) with the arithmetic of a vector of states. places: see `_emit_straight`."""
    if isinstance(graph, Staged):
        return _emit_stages(module, graph, vector, name)
    if isinstance(graph, Rolled):
        return _Passes(module, graph, vector, name).emit()
    return _emit_straight(module, graph.program, vector, name, places)


def _emit_stages(module: ir.Module, graph: Staged, vector: ir.VectorType, name: str) -> ir.Function:
    """Adds the body of a kernel in stages.

    Its workspace: the inputs of `states`, of `changes` and of `inner`, and the matrices of `inner`, which the loop has
    cleared; the changes of a state and of the accelerations, by columns; the workspace of the parts.
    """
    inner = emit_body(module, graph.inner, vector, f"{name}.inner")
    states = [emit_body(module, part, vector, f"{name}.states{k}") for k, part in enumerate(graph.states)]
    emitted = internal(module, name, ir.VoidType(), *[POINTER] * 3)
    source, target, known = emitted.args
    b = ir.IRBuilder(emitted.append_basic_block())
    size = 8 * vector.count

    def place(operands: Sequence[Operand], name: str) -> int:
        """Returns the place of an operand in a buffer."""
        names = [operand.name for operand in operands]
        return sum(operand.size for operand in operands[: names.index(name)])

    def after(buffer: Any, count: int) -> Any:
        return at(b, buffer, integer(size * count))

    def copy(count: int, source: Any, to: Any) -> None:
        with loop_over(b, integer(size * count), step=size) as offset:
            b.store(b.load(at(b, source, offset), align=size, typ=vector), at(b, to, offset), align=size)

    def total(operands: Sequence[Operand]) -> int:
        return sum(operand.size for operand in operands)

    of_states, of_inner = graph.states[0].signature.inputs, graph.inner.signature.inputs
    of_changes = graph.changes[0].signature.inputs if graph.changes else ()
    changing = after(known, total(of_states))
    entered = after(changing, total(of_changes))
    matrices = after(entered, total(of_inner))
    changed = after(matrices, total(graph.inner.signature.outputs) if graph.changes else 0)
    accelerated = after(changed, graph.columns[0])
    rest = after(accelerated, graph.columns[1])
    given = {operand.name for operand in graph.signature.inputs}
    for to, operands in ((known, of_states), (changing, of_changes), (entered, of_inner)):
        for operand in operands:
            if operand.name in given:
                from_ = after(source, place(graph.signature.inputs, operand.name))
                copy(operand.size, from_, after(to, place(operands, operand.name)))
    results = [operand.name for operand in of_states if operand.name not in given]
    columns = _Columns(module, graph, vector, name) if graph.changes else None
    for k, (part, result) in enumerate(zip(states, results, strict=False)):
        b.call(part, [known, entered, rest])  # the states are the first inputs of `inner`
        to = after(known, place(of_states, result))
        b.call(inner, [entered, to if columns is None else matrices, rest])
        if columns is not None:
            copy(graph.velocities, matrices, to)
            copy(graph.velocities, matrices, after(changing, place(of_changes, result)))
            columns.emit_stage(b, k, matrices, changing, changed, accelerated, rest)
    b.call(states[-1], [known, target, rest])
    if columns is not None:
        columns.emit_last(b, after(target, total(graph.signature.outputs[:2])), changing, changed, accelerated, rest)
    b.ret_void()
    return emitted


class _Columns:
    """Emits the chain rule of a kernel in stages, see `staged`."""

    def __init__(self, module: ir.Module, graph: Staged, vector: ir.VectorType, name: str) -> None:
        self._graph, self._vector, self._n = graph, vector, graph.velocities
        self._size, self._calls = 8 * vector.count, len(graph.states) - 1
        self._parts = [emit_body(module, part, vector, f"{name}.changes{k}") for k, part in enumerate(graph.changes)]
        operands = graph.changes[0].signature.inputs
        names = [operand.name for operand in operands]
        self._first = sum(operand.size for operand in operands[: names.index("dq")])
        errors = names[-1] == "errors"
        self._errors = sum(operand.size for operand in operands[:-1]) if errors else None
        self._multiply = self._emit_product(module, f"{name}.product") if self._calls > 1 else None

    def _after(self, b: ir.IRBuilder, buffer: Any, entries: Any) -> Any:
        return vector_address(b, buffer, self._vector, integer(entries) if isinstance(entries, int) else entries)

    def _copy(self, b: ir.IRBuilder, cell: Any, to: Any) -> None:
        b.store(b.load(cell, align=self._size, typ=self._vector), to, align=self._size)

    def _each(self, b: ir.IRBuilder, part: int, changing: Any, changed: Any, accelerated: Any, rest: Any) -> Any:
        """Emits the changes of a state, for each column."""
        n = self._n
        zero, one = (ir.Constant(self._vector, [x] * self._vector.count) for x in (0.0, 1.0))
        if _leaves_zeros(self._graph.changes[part]):
            with loop_over(b, integer(6 * n * n)) as entry:
                b.store(zero, self._after(b, changed, entry), align=self._size)
        direction = self._after(b, changing, self._first)
        with loop_over(b, integer(2 * n)) as entry:
            b.store(zero, self._after(b, direction, entry), align=self._size)
        with loop_over(b, integer(3 * n)) as c:
            is_state = b.icmp_signed("<", c, integer(2 * n))
            with b.if_then(is_state):
                b.store(one, self._after(b, direction, c), align=self._size)
            own = self._after(b, accelerated, b.mul(c, integer(n * self._calls)))
            with loop_over(b, integer(n * (part + 1))) as entry:
                to = self._after(b, direction, b.add(entry, integer(2 * n)))
                self._copy(b, self._after(b, own, entry), to)
            b.call(self._parts[part], [changing, self._after(b, changed, b.mul(c, integer(2 * n))), rest])
            with b.if_then(is_state):
                b.store(zero, self._after(b, direction, c), align=self._size)

    def emit_stage(
        self, b: ir.IRBuilder, k: int, matrices: Any, changing: Any, changed: Any, accelerated: Any, rest: Any
    ) -> None:
        """Emits the changes of the acceleration of stage k, with the matrices of `inner` there."""
        n = self._n
        if k == 0:  # the changes of the state are those before the step
            with loop_over(b, integer(3 * n)) as c, loop_over(b, integer(n)) as row:
                which, column = b.sdiv(c, integer(n)), b.srem(c, integer(n))
                row_of = b.add(b.mul(which, integer(n)), row)
                entry = b.add(integer(n), b.add(b.mul(row_of, integer(n)), column))
                to = b.add(b.mul(c, integer(n * self._calls)), row)
                self._copy(b, self._after(b, matrices, entry), self._after(b, accelerated, to))
            return
        self._each(b, k - 1, changing, changed, accelerated, rest)
        errors = changing if self._errors is None else self._after(b, changing, self._errors)
        b.call(self._multiply, [matrices, changed, self._after(b, accelerated, k * n), integer(int(k == 1)), errors])

    def emit_last(self, b: ir.IRBuilder, target: Any, changing: Any, changed: Any, accelerated: Any, rest: Any) -> None:
        """Emits the derivatives of the step: dx_dx (2 nv, 2 nv), dx_dtau (2 nv, nv)."""
        n = self._n
        self._each(b, len(self._parts) - 1, changing, changed, accelerated, rest)
        for first, count, start in ((0, 2 * n, 0), (2 * n, n, 4 * n * n)):
            with loop_over(b, integer(2 * n)) as row, loop_over(b, integer(count)) as c:
                cell = b.add(b.mul(b.add(c, integer(first)), integer(2 * n)), row)
                to = b.add(integer(start), b.add(b.mul(row, integer(count)), c))
                self._copy(b, self._after(b, changed, cell), self._after(b, target, to))

    def _emit_product(self, module: ir.Module, name: str) -> ir.Function:
        """Adds the function (matrices, X, D, second, errors): D = [da/dq, da/dv] X, plus da/dtau in the columns of tau.

        X and D are by columns. Several rows and columns are computed at a time, with their sums in registers. second: 1
        in the second stage, where X changes the motions of a joint by those of the same joint only.
        """
        n, vector = self._n, self._vector
        function = internal(module, name, ir.VoidType(), *[POINTER] * 3, I64, POINTER)
        matrices, X, D, second, errors = function.args
        b = ir.IRBuilder(function.append_basic_block())
        zero = ir.Constant(vector, [0.0] * vector.count)
        is_second = b.icmp_signed("!=", second, integer(0))
        joints, trees = (
            [
                _emit_table(module, f"{name}.{kind}.{side}", I64, numbers, "internal")
                for side, numbers in zip(("from", "to"), _ends_of(of), strict=True)
            ]
            for kind, of in (("joint", self._graph.joints), ("tree", self._graph.trees))
        )

        def load(buffer: Any, entry: Any) -> Any:
            return b.load(self._after(b, buffer, entry), align=self._size, typ=vector)

        def rounded(x: Any, i: Any, j: Any) -> Any:
            if self._errors is None:
                return x
            return b.fmul(x, b.load(_error(b, vector, errors, i, j), align=self._size, typ=vector))

        def sums(i: Any, height: int, c: Any, width: int, part: int) -> None:
            """Emits `height` rows from i on, `width` columns from c on. part: 0, 1, 2 for columns of q, v, tau."""
            rows = [b.add(i, integer(k)) for k in range(height)]
            columns = [b.add(c, integer(k)) for k in range(width)]
            given = [self._after(b, X, b.mul(b.add(column, integer(part * n)), integer(2 * n))) for column in columns]
            found = [zero] * (height * width)
            if part == 2:
                found = [load(lines[2], column) for lines in map(lines_of, rows) for column in columns]
            begins, ends = ([word(b, trees[side], of[-side]) for of in (rows, columns)] for side in range(2))
            begin = b.select(b.icmp_signed(">", *begins), *begins)
            end = b.select(b.icmp_signed("<", *ends), *ends)
            first = last = integer(0)
            if part < 2:
                first, last = word(b, joints[0], columns[0]), word(b, joints[1], columns[-1])
            bounds = [(b.select(is_second, first, begin), b.select(is_second, last, end))]
            for m, (start, stop) in enumerate([*bounds, (begin, end)]):
                factors = [(row, lines_of(row)[m]) for row in rows]
                others = [self._after(b, column, m * n) for column in given]
                found = _plus_products(b, vector, found, factors, others, (start, stop), rounded)
            for s, value in enumerate(found):
                r, column = divmod(s, width)
                at_column = b.mul(b.add(columns[column], integer(part * n)), integer(n * self._calls))
                b.store(value, self._after(b, D, b.add(at_column, rows[r])), align=self._size)

        def lines_of(row: Any) -> list[Any]:
            """Returns the rows of the three matrices."""
            return [self._after(b, matrices, b.add(integer(n + m * n * n), b.mul(row, integer(n)))) for m in range(3)]

        for part in range(3):
            for c_first, c_last, width in _tiles(0, n):
                with loop_over(b, integer(c_last), start=integer(c_first), step=width) as c:
                    for i_first, i_last, height in _tiles(0, n):
                        with loop_over(b, integer(i_last), start=integer(i_first), step=height) as i:
                            sums(i, height, c, width, part)
        b.ret_void()
        return function


def _plus_products(
    b: ir.IRBuilder,
    vector: ir.VectorType,
    sums: Sequence[Any],
    rows: Sequence[tuple[Any, Any]],
    columns: Sequence[Any],
    entries: tuple[Any, Any],
    rounded: Callable[[Any, Any, Any], Any],
) -> list[Any]:
    """Emits the sums, row by row, plus the products of some rows of a matrix and some columns of another.

    The sums stay in registers.

    Args:
        b: Where to emit.
        vector: The type of each scalar.
        sums: The sums.
        rows: The index of each row, and its address.
        columns: The address of each column.
        entries: The first entry of rows and columns that is multiplied, and the one after the last.
        rounded: Emits the rounding of a sum, from the index of its row and the entry.
    """

    def load(buffer: Any, entry: Any) -> Any:
        return b.load(vector_address(b, buffer, vector, entry), align=8 * vector.count, typ=vector)

    loop = loop_over(b, entries[1], start=entries[0], values=sums)
    with loop as k:
        total, others = list(loop.values), [load(column, k) for column in columns]
        for r, (i, row) in enumerate(rows):
            x = load(row, k)
            for s, y in enumerate(others, r * len(columns)):
                total[s] = rounded(b.fadd(total[s], b.fmul(x, y, flags=_FLAGS), flags=_FLAGS), i, k)
        loop.values = total
    return loop.values


def _ends_of(parts: Sequence[slice]) -> tuple[list[int], list[int]]:
    """Returns for each entry of consecutive parts where its part begins and ends."""
    entries = [part for part in parts for _ in range(part.stop - part.start)]
    return [part.start for part in entries], [part.stop for part in entries]


def _tiles(first: int, last: int, most: int = 4) -> list[tuple[int, int, int]]:
    """Returns at most two ranges that cover first to last, each (start, stop, step); steps are at most `most`."""
    count = last - first
    step = next((step for step in range(most, most // 2, -1) if count % step == 0), most)
    whole = first + count - count % step
    return [of for of in ((first, whole, step), (whole, last, last - whole)) if of[0] < of[1]]


def _error(b: ir.IRBuilder, vector: ir.VectorType, errors: Any, i: Any, j: Any) -> Any:
    """Returns the address of one of the factors of a kernel with errors."""
    index = b.and_(b.add(b.mul(i, integer(97)), b.mul(j, integer(31))), integer(ERRORS - 1))
    return vector_address(b, errors, vector, index)


def _leaves_zeros(part: Graph | Rolled) -> bool:
    """Whether the code leaves some entries of the outputs unset, because they are 0."""
    if isinstance(part, Rolled):
        return True
    program = part.program.instructions
    return any(op == ex.OUTPUT and program[x][:2] == (ex.CONSTANT, 0.0) for op, _, x in program)


def _emit_straight(
    module: ir.Module, program: ex.Program, vector: ir.VectorType, name: str, places: list[int] | None
) -> ir.Function:
    """Adds a function with straight-line arithmetic.

    places: set to the place in `out` of each entry of the outputs. Entries of the same value have the place of the
    first of them, which alone is stored: of a symmetric matrix, half is. Entries that are 0 are not stored and have the
    place -1. None: each entry that is not 0 is stored at its own place.
    """
    emitted = internal(module, name, ir.VoidType(), *[POINTER] * 3)
    source, target, _ = emitted.args
    for pointer in emitted.args:
        pointer.add_attribute("noalias")
    b = ir.IRBuilder(emitted.append_basic_block())
    first_in, first_out = ([0, *accumulate(sizes)] for sizes in (program.inputs, program.outputs))

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
        rounded: Emits the change of a rounded result, from the number of the operation and the value; None: no change.
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
        # If the first operand is NaN, so is the result.
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
    return isinstance(value, ir.Constant) and not any(lane.constant for lane in value.constant)


class _Passes:
    """Emits the body of a kernel as loops.

    Its workspace has stored values, sums, totals, states of walks, shared sums, the matrix of equations with a tile of
    columns that are solved for, and right factors of products.
    """

    def __init__(self, module: ir.Module, rolled: Rolled, vector: ir.VectorType, name: str) -> None:
        self._module, self._rolled, self._vector, self._name = module, rolled, vector, name
        self._size, self._zero = 8 * vector.count, ir.Constant(vector, [0.0] * vector.count)
        self.function = internal(module, name, ir.VoidType(), *[POINTER] * 3)
        self._source, self._target, self._own = self.function.args
        self._b = ir.IRBuilder(self.function.append_basic_block())
        self._tables = _Tables(module, rolled)
        sums, shared = rolled.rows * rolled.summed + rolled.totals, rolled.velocities * rolled.shared
        self._sums = self._after(self._own, len(rolled.kind) * rolled.stored)
        self._clear(self._sums, sums)
        self._states = self._after(self._sums, sums)
        self._shared = self._after(self._states, rolled.states)
        self._clear(self._shared, shared)
        self._factors = self._after(self._shared, shared + rolled.matrix)
        self._clear(self._factors, len(rolled.products) * rolled.velocities**2)
        if rolled.clears_outputs:
            self._clear(self._target, sum(operand.size for operand in rolled.signature.outputs))
        self._equations = _Factors(self._b, vector, rolled, self._tables, self._source, self._shared)

    def emit(self) -> ir.Function:
        """Emits passes, walks, solutions and products, and returns the function."""
        b, rolled = self._b, self._rolled
        for p, each in enumerate(rolled.passes):
            self._solve(p)
            steps = [self._step(f"pass{p}_kind{k}", step) for k, step in enumerate(each.steps)]
            with loop_over(b, integer(len(rolled.kind))) as n:
                i = n if each.outward else b.sub(integer(len(rolled.kind) - 1), n)
                self._call(steps, self._tables.entry(b, "kind", i), i, integer(0))
        self._solve(len(rolled.passes))
        for w, walks in enumerate(rolled.walks):
            self._visit(f"walk{w}", walks)
        for solved in rolled.solved:
            self._equations.solve_matrix(self._after(self._target, solved.first), symmetric=solved.symmetric)
        if rolled.products:
            _emit_products(b, self._vector, rolled, self._tables, self._source, self._target, self._factors)
        for solved in rolled.solved:
            if solved.transposed:
                _emit_transposition(b, self._vector, rolled.velocities, self._after(self._target, solved.first))
        last = self._step("last", rolled.last)
        if last is not None:
            b.call(last, [*self.function.args, self._sums, self._states, integer(0), integer(0)])
        b.ret_void()
        return self.function

    def _after(self, buffer: Any, entries: int) -> Any:
        """Returns the address of an entry of a buffer."""
        return at(self._b, buffer, integer(self._size * entries))

    def _clear(self, buffer: Any, entries: int) -> None:
        with loop_over(self._b, integer(entries)) as entry:
            self._b.store(self._zero, vector_address(self._b, buffer, self._vector, entry), align=self._size)

    def _step(self, name: str, step: Step | None, walks: Walks | None = None) -> ir.Function | None:
        """Adds the function of a step; None if there is nothing to compute."""
        if step is None:
            return None
        function = internal(self._module, f"{self._name}.{name}", ir.VoidType(), *[POINTER] * 5, *[I64] * 2)
        b = ir.IRBuilder(function.append_basic_block())
        access = _Access(b, self._vector, self._rolled, self._tables, walks, *function.args)
        # Read at first: an inward walk replaces its state.
        states_read = {k: access.read(source) for k, source in enumerate(step.sources) if source.buffer == "state"}
        emit_arithmetic(
            b,
            step.program,
            self._vector,
            lambda _, entry: states_read[entry] if entry in states_read else access.read(step.sources[entry]),
            lambda _, entry, value: access.write(step.targets[entry], value),
            access.rounded if self._rolled.errors else None,
        )
        for entry in step.cleared:  # at the end, after they are read
            access.write(Address("children", entry), self._zero)
        b.ret_void()
        return function

    def _call(self, steps: Sequence[ir.Function | None], kind: Any, i: Any, first: Any) -> None:
        """Emits the call of the step of a kind, for body i; first: the body where a walk began."""
        b = self._b
        after = b.append_basic_block()
        choice = b.switch(kind, after)
        for k, step in enumerate(steps):
            if step is not None:
                block = b.append_basic_block()
                choice.add_case(integer(k), block)
                b.position_at_end(block)
                b.call(step, [*self.function.args, self._sums, self._states, i, first])
                b.branch(after)
        b.position_at_end(after)

    def _visit(self, name: str, walks: Walks) -> None:
        """Emits a walk from each body."""
        b, entry = self._b, self._tables.entry
        first = [self._step(f"{name}_from{k}", step, walks) for k, step in enumerate(walks.first)]
        functions: dict[int, ir.Function | None] = {}
        for k, row in enumerate(walks.others):
            for m, step in enumerate(row):
                if id(step) not in functions:
                    functions[id(step)] = self._step(f"{name}_from{k}_at{m}", step, walks)
        others = [functions[id(step)] for row in walks.others for step in row]
        bodies, kinds = len(self._rolled.kind), integer(len(walks.first))
        # Of inward walks all states that reach a body are computed there one after the other: none waits for the last.
        with loop_over(b, integer(bodies)) as n:
            own = n if walks.outward else b.sub(integer(bodies - 1), n)
            kind = entry(b, "kind", own)
            self._call(first, kind, own, own)
            with loop_over(b, entry(b, "end", own), start=b.add(own, integer(1))) as below:
                kind_below = entry(b, "kind", below)
                if walks.outward:
                    self._call(others, b.add(b.mul(kind, kinds), kind_below), below, own)
                else:
                    self._call(others, b.add(b.mul(kind_below, kinds), kind), own, below)

    def _multiply(self, of: InputProducts) -> None:
        """Emits products with inputs, for several rows at a time."""
        b, vector, count = self._b, self._vector, self._rolled.velocities
        rounded, whole = _rounding(b, vector, self._rolled, self._source), (integer(0), integer(count))
        total = self._after(self._shared, count * of.column)
        factors = [(self._after(self._source, K), self._after(self._shared, count * x)) for K, x in of.factors]
        for first, last, height in _tiles(0, count):
            with loop_over(b, integer(last), start=integer(first), step=height) as i:
                rows = [b.add(i, integer(r)) for r in range(height)]
                cells = [vector_address(b, total, vector, row) for row in rows]
                sums = [b.load(cell, align=self._size, typ=vector) for cell in cells]
                for K, x in factors:
                    lines = [(row, vector_address(b, K, vector, b.mul(row, integer(count)))) for row in rows]
                    sums = _plus_products(b, vector, sums, lines, [x], whole, rounded)
                for value, cell in zip(sums, cells, strict=True):
                    b.store(value, cell, align=self._size)

    def _solve(self, after: int) -> None:
        """Emits the equations that are solved after this number of passes, and the products with inputs."""
        rolled = self._rolled
        for n, equations in enumerate(rolled.equations):
            if equations.after == after:
                self._clear(self._after(self._shared, rolled.velocities * rolled.shared), rolled.matrix)
                self._visit(f"matrix{n}", equations.matrix)
                self._equations.factor()
                for column in range(equations.first, equations.first + equations.count):
                    self._equations.solve(self._after(self._shared, rolled.velocities * column))
        for products in rolled.input_products:
            if products.after == after:
                self._multiply(products)


class _Factors:
    """Emits the factorisation of the matrix of equations as L^T D L, in place, and solutions; see `rolled.Elimination`.

    In a kernel with errors, the factors of solutions are the same for all columns.
    """

    def __init__(
        self, b: ir.IRBuilder, vector: ir.VectorType, rolled: Rolled, tables: _Tables, source: Any, shared: Any
    ) -> None:
        self._b, self._vector, self._rolled, self._tables = b, vector, rolled, tables
        self._source, self._shared = source, shared
        self._size, self._count = 8 * vector.count, rolled.velocities
        self._matrix = at(b, shared, integer(self._size * self._count * rolled.shared))
        self._rounded = _rounding(b, vector, rolled, source)

    def _load(self, place: Any) -> Any:
        return self._b.load(place, align=self._size, typ=self._vector)

    def _store(self, values: Sequence[Any], places: Sequence[Any]) -> None:
        for value, place in zip(values, places, strict=True):
            self._b.store(value, place, align=self._size)

    def _entries(self, buffer: Any, first: Any, number: int = 1) -> list[Any]:
        """Returns the addresses of `number` consecutive entries."""
        start = vector_address(self._b, buffer, self._vector, first)
        return [at(self._b, start, integer(self._size * n)) for n in range(number)]

    def _row(self, k: Any) -> Any:
        return self._entries(self._matrix, self._b.mul(k, integer(self._rolled.elimination.width)))[0]

    def _cell(self, row: Any, j: Any) -> Any:
        return self._entries(row, self._tables.entry(self._b, "place", j))[0]

    def _before(self, k: Any, sums: Sequence[Any] = ()) -> Any:
        entry = self._tables.entry
        return chain_from(self._b, entry(self._b, "before", k), lambda i: entry(self._b, "before", i), sums)

    def factor(self) -> None:
        """Factors the stored matrix."""
        b, rounded = self._b, self._rounded
        with loop_over(b, integer(self._count)) as n:
            k = self._tables.entry(b, "order", b.sub(integer(self._count - 1), n))
            of_k = self._row(k)
            pivot = self._cell(of_k, k)
            one = ir.Constant(self._vector, [1.0] * self._vector.count)
            inverse = rounded(b.fdiv(one, self._load(pivot), flags=_FLAGS), k, k)
            self._store([inverse], [pivot])
            with self._before(k) as i:
                of_i, place = self._row(i), self._cell(of_k, i)
                share = rounded(b.fmul(self._load(place), inverse, flags=_FLAGS), k, i)
                with loop_over(b, b.add(self._tables.entry(b, "place", i), integer(1))) as j:
                    (own,), (other,) = self._entries(of_i, j), self._entries(of_k, j)
                    product = rounded(b.fmul(share, self._load(other), flags=_FLAGS), i, b.add(j, integer(1)))
                    self._store([rounded(b.fsub(self._load(own), product, flags=_FLAGS), i, j)], [own])
                self._store([share], [place])

    def _less(self, sums: Sequence[Any], k: Any, i: Any, others: Sequence[Any]) -> list[Any]:
        """Returns the sums less entry (k, i) of L times the others."""
        b, rounded = self._b, self._rounded
        share = rounded(self._load(self._cell(self._row(k), i)), k, i)
        pairs = zip(sums, others, strict=True)
        return [rounded(b.fsub(own, b.fmul(share, y, flags=_FLAGS), flags=_FLAGS), i, k) for own, y in pairs]

    def solve(self, x: Any) -> None:
        """Replaces the entries of x, (nv,), by the solution."""
        b, count = self._b, self._count
        places = partial(self._entries, x)
        with loop_over(b, integer(count)) as n:
            k = self._tables.entry(b, "order", b.sub(integer(count - 1), n))
            own = list(map(self._load, places(k)))
            with self._before(k) as i:
                self._store(self._less(list(map(self._load, places(i))), k, i, own), places(i))
        with loop_over(b, integer(count)) as n:
            k = self._tables.entry(b, "order", n)
            inverse = self._load(self._cell(self._row(k), k))
            own = [self._rounded(b.fmul(self._load(place), inverse, flags=_FLAGS), k, k) for place in places(k)]
            chain = self._before(k, own)
            with chain as i:
                chain.values = self._less(chain.values, k, i, list(map(self._load, places(i))))
            self._store(chain.values, places(k))

    def solve_matrix(self, x: Any, *, symmetric: bool) -> None:
        """Replaces the entries of x, (nv, nv), by the solutions for its columns, some of them at a time.

        x has the zeros of the matrix of equations. symmetric: x is diagonal; of the solutions the half that is found
        first is copied to the other.
        """
        b, entry = self._b, self._tables.entry
        for first, last, step in _tiles(0, self._count, SOLVED_COLUMNS):
            solver = self._solver(step)
            with loop_over(b, integer(last), start=integer(first), step=step) as begin:
                end = b.add(begin, integer(step)) if symmetric else entry(b, "reach", begin)
                to = end if symmetric else entry(b, "last", begin)
                b.call(solver, [self._source, self._shared, x, begin, end, entry(b, "root", begin), to])
        if symmetric:
            with loop_over(b, integer(self._count)) as n, loop_over(b, n) as m:
                i, j = entry(b, "nested", n), entry(b, "nested", m)
                cells = [self._entries(x, b.add(b.mul(r, integer(self._count)), c)) for r, c in ((j, i), (i, j))]
                self._store([self._load(cells[0][0])], cells[1])

    def _solver(self, width: int) -> ir.Function:
        """Returns the function that solves for some columns, for all matrices of the kernel."""
        module, name = self._b.module, f"{self._b.function.name}.solve{width}"
        if name in module.globals:
            return module.globals[name]
        function = internal(module, name, ir.VoidType(), *[POINTER] * 3, *[I64] * 4)
        source, shared, *arguments = function.args
        b = ir.IRBuilder(function.append_basic_block())
        _Factors(b, self._vector, self._rolled, self._tables, source, shared)._solve_columns(width, *arguments)
        b.ret_void()
        return function

    def _solve_columns(self, width: int, x: Any, begin: Any, end: Any, root: Any, last: Any) -> None:
        """Emits the solutions for the columns of x from place `begin` on in `Elimination.nested`.

        They are 0 before place `root`, and from place `last` on, or not needed there. After the first substitution they
        are 0 except from `begin` to `end`, and at the entries on which that at `begin` depends.
        """
        b, count, entry = self._b, self._count, self._tables.entry
        tile = at(b, self._matrix, integer(self._size * count * self._rolled.elimination.width))
        columns = [
            at(b, x, b.mul(entry(b, "nested", b.add(begin, integer(n))), integer(self._size))) for n in range(width)
        ]

        def given(k: Any) -> list[Any]:
            offset = b.mul(k, integer(self._size * count))
            return [at(b, column, offset) for column in columns]

        def copies(k: Any) -> list[Any]:
            return self._entries(tile, b.mul(k, integer(width)), width)

        def minus(sums: Sequence[Any], k: Any, i: Any) -> list[Any]:
            """sums - L_ki times the copies of k."""
            return self._less(sums, k, i, list(map(self._load, copies(k))))

        clear = ir.Constant(self._vector, [0.0] * self._vector.count)
        with loop_over(b, last, start=root) as place:
            self._store([clear] * width, copies(entry(b, "nested", place)))

        def gather(i: Any, after: Any) -> list[Any]:
            """The entries i less the products with those that depend on i, from the last one to place `after`."""
            stop = entry(b, "end_of", i)
            stop = b.select(b.icmp_signed("<", stop, end), stop, end)
            sums = list(map(self._load, given(i)))
            loop = loop_over(b, b.sub(stop, after), values=sums)
            with loop as n:
                k = entry(b, "nested", b.sub(b.sub(stop, integer(1)), n))
                loop.values = minus(loop.values, k, i)
            return loop.values

        with loop_over(b, b.sub(end, begin)) as n:
            place = b.sub(b.sub(end, integer(1)), n)
            i = entry(b, "nested", place)
            self._store(gather(i, b.add(place, integer(1))), copies(i))
        lowest = entry(b, "before", entry(b, "nested", begin))
        with chain_from(b, lowest, lambda i: entry(b, "before", i)) as i:
            sums = gather(i, begin)

            def above(k: Any) -> Any:
                following = entry(b, "before", k)
                return b.select(b.icmp_signed("==", following, i), integer(-1), following)

            start = b.select(b.icmp_signed("==", lowest, i), integer(-1), lowest)
            chain = chain_from(b, start, above, sums)
            with chain as k:
                chain.values = minus(chain.values, k, i)
            self._store(chain.values, copies(i))
        with loop_over(b, last, start=root) as place:
            k = entry(b, "nested", place)
            row = self._row(k)
            depth = entry(b, "place", k)
            inverse = self._load(self._entries(row, depth)[0])
            own = [self._rounded(b.fmul(self._load(y), inverse, flags=_FLAGS), k, k) for y in copies(k)]
            chain = self._before(k, own)
            with chain as i:
                chain.values = self._less(chain.values, k, i, list(map(self._load, copies(i))))
            self._store(chain.values, copies(k))
            self._store(chain.values, given(k))


TILE = 4
"""Columns of Z that a product reads at a time."""


def _emit_products(
    b: ir.IRBuilder, vector: ir.VectorType, rolled: Rolled, tables: _Tables, source: Any, target: Any, factors: Any
) -> None:
    """Emits the products Z^T B, and subtracts them from outputs.

    Column j of B is 0 except at j, at the entries of v on which j depends, and at those that depend on j.
    """
    size, count = 8 * vector.count, rolled.velocities
    products, rounded = rolled.products, _rounding(b, vector, rolled, source)
    Z = at(b, target, integer(size * products[0].Z))
    zero = ir.Constant(vector, [0.0] * vector.count)

    def cell(X: Any, i: Any, j: Any) -> Any:
        return vector_address(b, X, vector, b.add(b.mul(i, integer(count)), j))

    def load(place: Any) -> Any:
        return b.load(place, align=size, typ=vector)

    def less(place: Any, x: Any, i: Any, j: Any) -> None:
        b.store(rounded(b.fsub(load(place), x, flags=_FLAGS), i, j), place, align=size)

    right = [at(b, factors, integer(size * count**2 * of.B)) for of in products]
    outputs = [at(b, target, integer(size * of.first)) for of in products]

    def tile(start: int, stop: int, width: int) -> None:
        """Emits the products for some columns of Z, `width` at a time."""
        with loop_over(b, integer(stop), start=integer(start), step=width) as first, loop_over(b, integer(count)) as j:
            columns = [b.add(first, integer(n)) for n in range(width)]

            def added(k: Any, sums: list[Any]) -> list[Any]:
                z, x = [load(cell(Z, k, i)) for i in columns], [load(cell(X, k, j)) for X in right]
                pairs = [(n, of, at_z) for of in x for n, at_z in enumerate(z)]
                products = [rounded(b.fmul(of, at_z, flags=_FLAGS), k, columns[n]) for n, of, at_z in pairs]
                found = [b.fadd(s, p, flags=_FLAGS) for s, p in zip(sums, products, strict=True)]
                return [rounded(s, columns[n], k) for s, (n, *_) in zip(found, pairs, strict=True)]

            sums = [zero] * (width * len(products))
            above = chain_from(b, tables.entry(b, "before", j), lambda i: tables.entry(b, "before", i), sums)
            with above as k:
                above.values = added(k, above.values)
            below = loop_over(b, tables.entry(b, "end_of", j), start=tables.entry(b, "rank", j), values=above.values)
            with below as rank:
                below.values = added(tables.entry(b, "nested", rank), below.values)
            for of, X, part in zip(products, outputs, range(0, len(sums), width), strict=True):
                for i, x in zip(columns, below.values[part : part + width], strict=True):
                    less(cell(X, i, j), x, i, j)
                    if of.twice:
                        less(cell(X, j, i), x, i, j)

    whole = count - count % TILE
    if whole:
        tile(0, whole, TILE)
    if count > whole:
        tile(whole, count, 1)


def _emit_transposition(b: ir.IRBuilder, vector: ir.VectorType, count: int, X: Any) -> None:
    """Emits the transposition of X, (count, count), in place."""
    with loop_over(b, integer(count)) as i, loop_over(b, i) as j:
        places = [vector_address(b, X, vector, b.add(b.mul(m, integer(count)), n)) for m, n in ((i, j), (j, i))]
        values = [b.load(place, align=8 * vector.count, typ=vector) for place in places]
        for place, value in zip(reversed(places), values, strict=True):
            b.store(value, place, align=8 * vector.count)


def _rounding(b: ir.IRBuilder, vector: ir.VectorType, rolled: Rolled, source: Any) -> Callable[[Any, Any, Any], Any]:
    """Returns a function that emits the product of a value with the error factor of two indices, if any."""
    errors = at(b, source, integer(8 * vector.count * sum(operand.size for operand in rolled.signature.inputs[:-1])))

    def rounded(value: Any, i: Any, j: Any) -> Any:
        if not rolled.errors:
            return value
        return b.fmul(value, b.load(_error(b, vector, errors, i, j), align=8 * vector.count, typ=vector))

    return rounded


class _Tables:
    """Constant tables of a kernel as loops: the kind, parent, rows and first entries of each body; and all numbers.

    Of each entry of v, if the kernel solves equations: `order`, `before` and `place`, those of `rolled.Elimination`;
    if it has products also `nested`, `rank` and `end_of`, those of `Elimination.nested`.
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
        if rolled.products or rolled.solved:
            columns |= dict(zip(("nested", "rank", "end_of"), rolled.elimination.nested, strict=True))
            columns |= dict(zip(("reach", "root", "last"), _reaches(rolled.elimination), strict=True))
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


def _reaches(of: Elimination) -> tuple[list[int], list[int], list[int]]:
    """Returns for each place in `Elimination.nested` where some columns begin that are solved for together: the place
    after all entries that depend on theirs; where the tree of the first begins, and where that of the last ends.
    """
    entries, rank, end_of = of.nested
    root = list(range(len(entries)))
    for k in entries:
        root[rank[k]] = root[rank[of.parent[k]]] if of.parent[k] >= 0 else rank[k]
    reach, last = [0] * len(entries), [0] * len(entries)
    for first, stop, step in _tiles(0, len(entries), SOLVED_COLUMNS):
        for begin in range(first, stop, step):
            reach[begin] = max(end_of[k] for k in entries[begin : begin + step])
            last[begin] = end_of[entries[root[begin + step - 1]]]
    return reach, root, last


def _ends(parent: Sequence[int]) -> list[int]:
    """Returns for each body the first one after its descendants."""
    end = list(range(1, len(parent) + 1))
    for i in range(len(parent) - 1, -1, -1):
        if parent[i] >= 0:
            end[parent[i]] = max(end[parent[i]], end[i])
    return end


class _Access:
    """Emits the reading and writing of a step for body i; in a walk, one that began at body `first`."""

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
        rolled, buffer_name = self._rolled, place.buffer
        if buffer_name in ("input", "output", "added", "shared", "matrix", "factor"):
            buffer = self._buffer(buffer_name)
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
        if buffer_name == "total":
            return self._sums, rolled.rows * rolled.summed + place.first
        if buffer_name in ("children", "gives"):
            row = self._entry("row" if buffer_name == "children" else "parent_row")
            return self._once((buffer_name,), lambda: self._row(self._sums, rolled.summed, row)), place.first
        if buffer_name == "state":
            # An outward walk stores the state of each body, an inward one that of each walk.
            walks = self._walks
            assert walks is not None
            i = self._first if not walks.outward else self._i if write else self._entry("parent")
            return self._once((buffer_name, write), lambda: self._row(self._states, walks.size, i)), place.first
        i = self._entry("parent") if buffer_name == "parent" else self._i
        return self._once((buffer_name,), lambda: self._row(self._own, rolled.stored, i)), place.first

    def _buffer(self, name: str) -> Any:
        if name in ("shared", "matrix", "factor"):
            rolled = self._rolled
            before = rolled.states + (rolled.velocities * rolled.shared if name != "shared" else 0)
            before += rolled.matrix if name == "factor" else 0
            return self._once((name,), lambda: at(self._b, self._states, integer(8 * self._vector.count * before)))
        return self._source if name == "input" else self._target

    def read(self, place: Address) -> Any:
        """Emits the reading of a scalar."""
        b = self._b
        if place.buffer != "number":
            return _load(b, self._vector, *self._locate(place))
        row = self._once(("numbers",), lambda: at(b, self.tables.numbers, b.mul(self._entry("numbers"), integer(8))))
        number = splat(b, b.load(at(b, row, integer(8 * place.first)), typ=DOUBLE), self._vector)
        return self.rounded(31 * place.first, number) if self._rolled.errors else number

    def rounded(self, operation: int, value: Any) -> Any:
        """Emits the product of a value with the error factor of a body and an operation."""
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
        if place.buffer in ("gives", "total", "added", "shared", "matrix", "factor"):
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
    function = b.module.globals.get(name) or library_function(b.module, name, kind)
    found = ir.Constant(vectors[0].type, ir.Undefined)
    for lane in range(vectors[0].type.count):
        place = ir.Constant(ir.IntType(32), lane)
        value = b.call(function, [b.extract_element(v, place) for v in vectors])
        found = b.insert_element(found, value, place)
    return found
