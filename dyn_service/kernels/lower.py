"""Lowers an expression graph to LLVM IR: each scalar becomes a vector with one state per lane.

A module has the function `body(in, out, workspace)`, the arithmetic of W states, each number a <W x double>, and the
tables `sizes` and, if results share places in `out`, `places` (`kernels.loop`). Kernels as loops that do not solve for
matrices also have the function `narrow`, for two states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial, reduce
from itertools import accumulate
from typing import Any, NamedTuple

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
    copy_vectors,
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
from dyn_service.kernels.rolled import (
    MOST_COLUMNS,
    SOLVED_COLUMNS,
    SOLVED_ROWS,
    Address,
    Elimination,
    InputProducts,
    Rolled,
    Step,
    Walks,
)
from dyn_service.kernels.row_selection import is_selectable
from dyn_service.kernels.signature import Operand, first_entry, total_size
from dyn_service.kernels.staged import Staged
from dyn_service.kernels.trig import sincos, tanh, vector_intrinsic

BLOCK_INSTRUCTIONS = 2000
"""Most instructions of a basic block. The code generator's time grows faster than a block's length."""

# Not nnan or ninf: a NaN stays a NaN in every output that depends on it (a constant entry of the mass matrix does not).
# Not reassoc: LLVM then factors sums, and small differences of large terms lose up to three digits.
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
        states, changes = (tuple(map(with_errors, parts)) for parts in (rolled.states, rolled.changes))
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
    # Loops keep vectors in memory, so for one state eight lanes take up to four times as long as two.
    if _has_narrow(graph) and lanes > NARROW_LANES:
        emit_body(module, graph, ir.VectorType(DOUBLE, NARROW_LANES), NARROW).linkage = ""
    results = total_size(graph.signature.outputs)
    cleared = graph.input_count if isinstance(graph, Staged) else 0
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
        body = _emit_stages(module, graph, vector, name)
    elif isinstance(graph, Rolled):
        body = _Passes(module, graph, vector, name).emit()
    else:
        body = _emit_straight(module, graph.program, vector, name, places)
    if vector.count > NARROW_LANES:
        # The stack is aligned to 16 bytes only, so vectors that LLVM keeps there would cross cache lines.
        body.attributes.alignstack = 8 * vector.count
    return body


def _emit_stages(module: ir.Module, graph: Staged, vector: ir.VectorType, name: str) -> ir.Function:
    """Adds the body of a kernel in stages.

    Its workspace: the inputs of `states`, of `changes` and of `inner`, and the matrices of `inner`, which the loop has
    cleared; the changes of a state and of the accelerations, by columns; the workspace of the parts.
    """
    inner = emit_body(module, graph.inner, vector, f"{name}.inner")
    states = [emit_body(module, part, vector, f"{name}.states{k}") for k, part in enumerate(graph.states)]
    emitted = internal(module, name, ir.VoidType(), *[POINTER] * 3)
    source, target, state_inputs = emitted.args
    b = ir.IRBuilder(emitted.append_basic_block())
    size = 8 * vector.count

    def skip(buffer: Any, count: int) -> Any:
        return at(b, buffer, integer(size * count))

    state_operands, inner_operands = graph.states[0].signature.inputs, graph.inner.signature.inputs
    change_operands = graph.changes[0].signature.inputs if graph.changes else ()
    change_inputs = skip(state_inputs, total_size(state_operands))
    inner_inputs = skip(change_inputs, total_size(change_operands))
    matrices = skip(inner_inputs, total_size(inner_operands))
    state_changes = skip(matrices, total_size(graph.inner.signature.outputs) if graph.changes else 0)
    acceleration_changes = skip(state_changes, graph.columns[0])
    part_workspace = skip(acceleration_changes, graph.columns[1])
    buffers = _ColumnBuffers(change_inputs, state_changes, acceleration_changes, part_workspace)
    kernel_inputs = {operand.name for operand in graph.signature.inputs}
    for buffer, operands in (
        (state_inputs, state_operands),
        (change_inputs, change_operands),
        (inner_inputs, inner_operands),
    ):
        for operand in operands:
            if operand.name in kernel_inputs:
                entries = skip(source, first_entry(graph.signature.inputs, operand.name))
                copy_vectors(b, vector, operand.size, entries, skip(buffer, first_entry(operands, operand.name)))
    results = [operand.name for operand in state_operands if operand.name not in kernel_inputs]
    columns = _Columns(module, graph, vector, name) if graph.changes else None
    for k, (part, result) in enumerate(zip(states, results, strict=False)):
        b.call(part, [state_inputs, inner_inputs, part_workspace])  # the states are the first inputs of `inner`
        acceleration = skip(state_inputs, first_entry(state_operands, result))
        b.call(inner, [inner_inputs, acceleration if columns is None else matrices, part_workspace])
        if columns is not None:
            copy_vectors(b, vector, graph.velocities, matrices, acceleration)
            change_entry = first_entry(change_operands, result)
            copy_vectors(b, vector, graph.velocities, matrices, skip(change_inputs, change_entry))
            columns.emit_stage(b, k, matrices, buffers)
    b.call(states[-1], [state_inputs, target, part_workspace])
    if columns is not None:
        columns.emit_last(b, skip(target, total_size(graph.signature.outputs[:2])), buffers)
    b.ret_void()
    return emitted


class _ColumnBuffers(NamedTuple):
    """Addresses of the workspace of the chain rule: the inputs of `changes`, and the changes by columns."""

    inputs: Any
    states: Any
    accelerations: Any
    workspace: Any


class _Columns:
    """Emits the chain rule of a kernel in stages, see `staged`."""

    def __init__(self, module: ir.Module, graph: Staged, vector: ir.VectorType, name: str) -> None:
        self._graph, self._vector, self._n = graph, vector, graph.velocities
        self._size, self._calls = 8 * vector.count, len(graph.states) - 1
        self._parts = [emit_body(module, part, vector, f"{name}.changes{k}") for k, part in enumerate(graph.changes)]
        operands = graph.changes[0].signature.inputs
        self._first = first_entry(operands, "dq")
        errors = operands[-1].name == "errors"
        self._errors = total_size(operands[:-1]) if errors else None
        self._multiply = self._emit_product(module, f"{name}.product") if self._calls > 1 else None

    def _entry(self, b: ir.IRBuilder, buffer: Any, entries: Any) -> Any:
        return vector_address(b, buffer, self._vector, integer(entries) if isinstance(entries, int) else entries)

    def _copy(self, b: ir.IRBuilder, cell: Any, destination: Any) -> None:
        b.store(b.load(cell, align=self._size, typ=self._vector), destination, align=self._size)

    def _emit_changes(self, b: ir.IRBuilder, part: int, buffers: _ColumnBuffers) -> None:
        """Emits the changes of a state, for each column."""
        n = self._n
        zero, unit = (ir.Constant(self._vector, [x] * self._vector.count) for x in (0.0, 1.0))
        if _leaves_zeros(self._graph.changes[part]):
            with loop_over(b, integer(6 * n * n)) as entry:
                b.store(zero, self._entry(b, buffers.states, entry), align=self._size)
        direction = self._entry(b, buffers.inputs, self._first)
        with loop_over(b, integer(2 * n)) as entry:
            b.store(zero, self._entry(b, direction, entry), align=self._size)
        with loop_over(b, integer(3 * n)) as c:
            is_state = b.icmp_signed("<", c, integer(2 * n))
            with b.if_then(is_state):
                b.store(unit, self._entry(b, direction, c), align=self._size)
            acceleration = self._entry(b, buffers.accelerations, b.mul(c, integer(n * self._calls)))
            with loop_over(b, integer(n * (part + 1))) as entry:
                destination = self._entry(b, direction, b.add(entry, integer(2 * n)))
                self._copy(b, self._entry(b, acceleration, entry), destination)
            changes = self._entry(b, buffers.states, b.mul(c, integer(2 * n)))
            b.call(self._parts[part], [buffers.inputs, changes, buffers.workspace])
            with b.if_then(is_state):
                b.store(zero, self._entry(b, direction, c), align=self._size)

    def emit_stage(self, b: ir.IRBuilder, k: int, matrices: Any, buffers: _ColumnBuffers) -> None:
        """Emits the changes of the acceleration of stage k, with the matrices of `inner` there."""
        n = self._n
        if k == 0:  # the changes of the state are those before the step
            with loop_over(b, integer(3 * n)) as c, loop_over(b, integer(n)) as row:
                matrix, column = b.sdiv(c, integer(n)), b.srem(c, integer(n))
                matrix_row = b.add(b.mul(matrix, integer(n)), row)
                entry = b.add(integer(n), b.add(b.mul(matrix_row, integer(n)), column))
                destination = b.add(b.mul(c, integer(n * self._calls)), row)
                self._copy(b, self._entry(b, matrices, entry), self._entry(b, buffers.accelerations, destination))
            return
        self._emit_changes(b, k - 1, buffers)
        errors = buffers.inputs if self._errors is None else self._entry(b, buffers.inputs, self._errors)
        D = self._entry(b, buffers.accelerations, k * n)
        b.call(self._multiply, [matrices, buffers.states, D, integer(int(k == 1)), errors])

    def emit_last(self, b: ir.IRBuilder, target: Any, buffers: _ColumnBuffers) -> None:
        """Emits the derivatives of the step: dx_dx (2 nv, 2 nv), dx_dtau (2 nv, nv)."""
        n = self._n
        self._emit_changes(b, len(self._parts) - 1, buffers)
        for first, count, start in ((0, 2 * n, 0), (2 * n, n, 4 * n * n)):
            with loop_over(b, integer(2 * n)) as row, loop_over(b, integer(count)) as c:
                cell = b.add(b.mul(b.add(c, integer(first)), integer(2 * n)), row)
                destination = b.add(integer(start), b.add(b.mul(row, integer(count)), c))
                self._copy(b, self._entry(b, buffers.states, cell), self._entry(b, target, destination))

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
        joints, trees = self._emit_bounds(module, name)
        rounded = _rounding_by(b, vector, None if self._errors is None else errors)

        def load(buffer: Any, entry: Any) -> Any:
            return b.load(self._entry(b, buffer, entry), align=self._size, typ=vector)

        def emit_tile(i: Any, height: int, c: Any, width: int, part: int) -> None:
            """Emits `height` rows from i on, `width` columns from c on. part: 0, 1, 2 for columns of q, v, tau."""
            rows = [b.add(i, integer(k)) for k in range(height)]
            columns = [b.add(c, integer(k)) for k in range(width)]
            X_columns = [
                self._entry(b, X, b.mul(b.add(column, integer(part * n)), integer(2 * n))) for column in columns
            ]
            totals = [zero] * (height * width)
            if part == 2:
                totals = [load(lines[2], column) for lines in map(lines_of, rows) for column in columns]
            begins, ends = ([word(b, trees[side], indices[-side]) for indices in (rows, columns)] for side in range(2))
            begin = b.select(b.icmp_signed(">", *begins), *begins)
            end = b.select(b.icmp_signed("<", *ends), *ends)
            first = last = integer(0)
            if part < 2:
                first, last = word(b, joints[0], columns[0]), word(b, joints[1], columns[-1])
            bounds = [(b.select(is_second, first, begin), b.select(is_second, last, end))]
            for m, (start, stop) in enumerate([*bounds, (begin, end)]):
                factors = [(row, lines_of(row)[m]) for row in rows]
                columns_of_X = [self._entry(b, column, m * n) for column in X_columns]
                totals = _plus_products(b, vector, totals, factors, columns_of_X, (start, stop), rounded)
            for s, value in enumerate(totals):
                r, column = divmod(s, width)
                at_column = b.mul(b.add(columns[column], integer(part * n)), integer(n * self._calls))
                b.store(value, self._entry(b, D, b.add(at_column, rows[r])), align=self._size)

        def lines_of(row: Any) -> list[Any]:
            """Returns the rows of the three matrices."""
            return [self._entry(b, matrices, b.add(integer(n + m * n * n), b.mul(row, integer(n)))) for m in range(3)]

        for part in range(3):
            for c_first, c_last, width in _tiles(0, n):
                with loop_over(b, integer(c_last), start=integer(c_first), step=width) as c:
                    for i_first, i_last, height in _tiles(0, n):
                        with loop_over(b, integer(i_last), start=integer(i_first), step=height) as i:
                            emit_tile(i, height, c, width, part)
        b.ret_void()
        return function

    def _emit_bounds(self, module: ir.Module, name: str) -> list[list[ir.GlobalVariable]]:
        """Adds tables of where the joint of each entry of v begins and ends, and its tree; returns both pairs."""
        return [
            [
                _emit_table(module, f"{name}.{kind}.{side}", I64, numbers, "internal")
                for side, numbers in zip(("from", "to"), _ends_of(parts), strict=True)
            ]
            for kind, parts in (("joint", self._graph.joints), ("tree", self._graph.trees))
        ]


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
        total, column_entries = list(loop.values), [load(column, k) for column in columns]
        for r, (i, row) in enumerate(rows):
            x = load(row, k)
            for s, y in enumerate(column_entries, r * len(columns)):
                total[s] = rounded(b.fadd(total[s], b.fmul(x, y, flags=_FLAGS), flags=_FLAGS), i, k)
        loop.values = total
    return loop.values


def _ends_of(parts: Sequence[slice]) -> tuple[list[int], list[int]]:
    """Returns for each entry of consecutive parts where its part begins and ends."""
    entries = [part for part in parts for _ in range(part.stop - part.start)]
    return [part.start for part in entries], [part.stop for part in entries]


def _tiles(first: int, last: int, max_step: int = 4) -> list[tuple[int, int, int]]:
    """Returns at most two ranges that cover first to last, each (start, stop, step); steps are at most `max_step`."""
    count = last - first
    step = next((step for step in range(max_step, max_step // 2, -1) if count % step == 0), max_step)
    whole = first + count - count % step
    return [tile for tile in ((first, whole, step), (whole, last, last - whole)) if tile[0] < tile[1]]


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
    # The loop over states calls with three buffers of its own, so no store changes what a later load reads.
    for pointer in emitted.args:
        pointer.add_attribute("noalias")
    b = ir.IRBuilder(emitted.append_basic_block())
    first_in, first_out = ([0, *accumulate(sizes)] for sizes in (program.inputs, program.outputs))

    def read(operand: int, entry: int) -> Any:
        return _load(b, vector, source, first_in[operand] + entry)

    if places is not None:
        places += [-1] * sum(program.outputs)
    place_of: dict[Any, int] = {}

    def write(operand: int, entry: int, value: Any) -> None:
        if _is_clear(value):  # the loop has cleared the buffer
            return
        place = first_out[operand] + entry
        first = place if places is None else place_of.setdefault(value, place)
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
    values: list[Any] = []
    number = cache(partial(_constant, vector))  # per program, so that it is freed with the program
    emit = _emitters(b, vector, number)

    def with_error(operation: int, value: Any) -> Any:
        return value if rounded is None else rounded(operation, value)

    for k, (operation, first, second) in enumerate(program.instructions):
        if k % BLOCK_INSTRUCTIONS == BLOCK_INSTRUCTIONS - 1:
            following = b.append_basic_block()
            b.branch(following)
            b.position_at_end(following)
        value = None
        if operation == ex.CONSTANT:
            value = number(first or 0.0)  # -0.0 is 0.0, which `_is_clear` recognises
            value = value if not first % 1.0 else with_error(k, value)
        elif operation == ex.INPUT:
            value = read(first, second)
        elif operation == ex.OUTPUT:
            write(first[0], first[1], values[second])
        else:
            arguments = [values[first]] if second is None else [values[first], values[second]]
            value = emit[operation](*arguments)
            value = value if operation in ex.EXACT else with_error(k, value)
        values.append(value)


def _constant(vector: ir.VectorType, value: float) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def _emitters(
    b: ir.IRBuilder, vector: ir.VectorType, number: Callable[[float], ir.Constant]
) -> dict[int, Callable[..., Any]]:
    """Returns for each operation of a program the function that emits it. number: makes the constants."""
    angles: dict[Any, tuple[Any, ...]] = {}

    def sine_cosine(x: Any) -> tuple[Any, ...]:
        if x not in angles:  # one reduction of the angle serves both
            angles[x] = copied(b, sincos, x)
        return angles[x]

    def intrinsic(name: str, operands: int) -> Callable[..., Any]:
        return lambda *values: b.call(vector_intrinsic(b.module, name, vector, operands), values)

    add, sub, mul, div, neg = (partial(_arithmetic, b, name) for name in ("fadd", "fsub", "fmul", "fdiv", "fneg"))
    return {
        ex.ADD: add,
        ex.SUB: sub,
        ex.MUL: mul,
        ex.DIV: div,
        ex.NEG: neg,
        ex.SQUARE: lambda x: mul(x, x),
        ex.TWICE: lambda x: add(x, x),
        ex.INVERSE: lambda x: div(number(1.0), x),
        ex.SQRT: intrinsic("sqrt", 1),
        ex.SIN: lambda x: sine_cosine(x)[0],
        ex.COS: lambda x: sine_cosine(x)[1],
        ex.FABS: intrinsic("fabs", 1),
        ex.COPYSIGN: intrinsic("copysign", 2),
        ex.TANH: lambda x: copied(b, tanh, x)[0],
        ex.ATAN2: lambda x, y: _lane_by_lane(b, "atan2", x, y),
        ex.LESS: lambda x, y: b.select(b.icmp_unsigned("<", _bits(b, x), _bits(b, y)), number(1.0), number(0.0)),
        ex.NOT: lambda x: b.select(_is_zero(b, x), number(1.0), number(0.0)),
        ex.IF_ELSE_ZERO: lambda x, y: b.select(_is_zero(b, x), number(0.0), y),
        # If the first operand is NaN, so is the result.
        ex.FMIN: lambda x, y: b.select(b.fcmp_ordered(">", x, y), y, x),
        ex.FMAX: lambda x, y: b.select(b.fcmp_ordered("<", x, y), y, x),
    }


def _arithmetic(b: ir.IRBuilder, name: str, *values: Any) -> Any:
    kind, operands = values[0].type, ", ".join(value.get_reference() for value in values)
    return line(b, kind, f"{name} {' '.join(_FLAGS)} {kind} {operands}")


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
        self._source, self._target, self._stored = self.function.args
        self._b = ir.IRBuilder(self.function.append_basic_block())
        self._tables = _Tables(module, rolled)
        sum_size = rolled.rows * rolled.body_sums + rolled.totals
        shared_size = rolled.velocities * rolled.shared_columns
        self._sums = self._entry(self._stored, len(rolled.kind) * rolled.stored_values)
        self._clear(self._sums, sum_size)
        self._states = self._entry(self._sums, sum_size)
        self._shared = self._entry(self._states, rolled.states)
        self._clear(self._shared, shared_size)
        self._factors = self._entry(self._shared, shared_size + rolled.matrix)
        self._clear(self._factors, len(rolled.products) * rolled.velocities**2)
        if rolled.clears_outputs:
            self._clear(self._target, total_size(rolled.signature.outputs))
        self._equations = _Factors(self._b, vector, rolled, self._tables, self._source, self._shared)

    def emit(self) -> ir.Function:
        """Emits passes, walks, solutions and products, and returns the function."""
        b, rolled = self._b, self._rolled
        for p, sweep in enumerate(rolled.passes):
            self._solve(p)
            steps = [self._step(f"pass{p}_kind{k}", step) for k, step in enumerate(sweep.steps)]
            with loop_over(b, integer(len(rolled.kind))) as n:
                i = n if sweep.outward else b.sub(integer(len(rolled.kind) - 1), n)
                self._call(steps, self._tables.entry(b, "kind", i), i, integer(0))
        self._solve(len(rolled.passes))
        for w, walks in enumerate(rolled.walks):
            self._visit(f"walk{w}", walks)
        if rolled.solved:
            self._equations.solve_matrices(self._target)
        if rolled.products:
            _emit_products(b, self._vector, rolled, self._tables, self._source, self._target, self._factors)
        for solved in rolled.solved:
            if solved.transposed:
                _emit_transposition(b, self._vector, rolled.velocities, self._entry(self._target, solved.first))
        last = self._step("last", rolled.last)
        if last is not None:
            b.call(last, [*self.function.args, self._sums, self._states, integer(0), integer(0)])
        b.ret_void()
        return self.function

    def _entry(self, buffer: Any, entries: int) -> Any:
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
        continuation = b.append_basic_block()
        choice = b.switch(kind, continuation)
        for k, step in enumerate(steps):
            if step is not None:
                block = b.append_basic_block()
                choice.add_case(integer(k), block)
                b.position_at_end(block)
                b.call(step, [*self.function.args, self._sums, self._states, i, first])
                b.branch(continuation)
        b.position_at_end(continuation)

    def _visit(self, name: str, walks: Walks) -> None:
        """Emits a walk from each body."""
        b, entry = self._b, self._tables.entry
        first_steps = [self._step(f"{name}_from{k}", step, walks) for k, step in enumerate(walks.first)]
        functions: dict[int, ir.Function | None] = {}
        for k, row in enumerate(walks.visits):
            for m, step in enumerate(row):
                if id(step) not in functions:
                    functions[id(step)] = self._step(f"{name}_from{k}_at{m}", step, walks)
        visit_steps = [functions[id(step)] for row in walks.visits for step in row]
        bodies, kinds = len(self._rolled.kind), integer(len(walks.first))
        # Of inward walks all states that reach a body are computed there one after the other: none waits for the last.
        with loop_over(b, integer(bodies)) as n:
            body = n if walks.outward else b.sub(integer(bodies - 1), n)
            kind = entry(b, "kind", body)
            self._call(first_steps, kind, body, body)
            with loop_over(b, entry(b, "end", body), start=b.add(body, integer(1))) as descendant:
                descendant_kind = entry(b, "kind", descendant)
                if walks.outward:
                    self._call(visit_steps, b.add(b.mul(kind, kinds), descendant_kind), descendant, body)
                else:
                    self._call(visit_steps, b.add(b.mul(descendant_kind, kinds), kind), body, descendant)

    def _multiply(self, products: InputProducts) -> None:
        """Emits products with inputs, for several rows at a time."""
        b, vector, count = self._b, self._vector, self._rolled.velocities
        rounded, whole = _rounding(b, vector, self._rolled, self._source), (integer(0), integer(count))
        total = self._entry(self._shared, count * products.column)
        factors = [(self._entry(self._source, K), self._entry(self._shared, count * x)) for K, x in products.factors]
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

    def _solve(self, pass_count: int) -> None:
        """Emits the equations that are solved after this number of passes, and the products with inputs."""
        rolled = self._rolled
        for n, equations in enumerate(rolled.equations):
            if equations.previous_passes == pass_count:
                self._clear(self._entry(self._shared, rolled.velocities * rolled.shared_columns), rolled.matrix)
                self._visit(f"matrix{n}", equations.matrix)
                self._equations.factor()
                for column in range(equations.first, equations.first + equations.count):
                    self._equations.solve(self._entry(self._shared, rolled.velocities * column))
        for products in rolled.input_products:
            if products.previous_passes == pass_count:
                self._multiply(products)


class _Factors:
    """Emits the factorisation of the matrix of equations as L^T D L, in place, and solutions; see `rolled.Elimination`.

    In a kernel with errors, the factors of solutions are the same for all columns.
    """

    def __init__(
        self, b: ir.IRBuilder, vector: ir.VectorType, rolled: Rolled, tables: _Tables, source: Any, shared_sums: Any
    ) -> None:
        self.b, self.vector, self.tables, self.elimination = b, vector, tables, rolled.elimination
        self._rolled, self._source, self._shared_sums = rolled, source, shared_sums
        self.size, self.count, self.depths = 8 * vector.count, rolled.velocities, rolled.elimination.width
        self.matrix = at(b, shared_sums, integer(self.size * self.count * rolled.shared_columns))
        self.rounded = _rounding(b, vector, rolled, source)

    def load(self, place: Any) -> Any:
        return self.b.load(place, align=self.size, typ=self.vector)

    def store(self, values: Sequence[Any], places: Sequence[Any]) -> None:
        for value, place in zip(values, places, strict=True):
            self.b.store(value, place, align=self.size)

    def entries(self, buffer: Any, first: Any, number: int = 1) -> list[Any]:
        """Returns the addresses of `number` consecutive entries."""
        start = vector_address(self.b, buffer, self.vector, first)
        return [at(self.b, start, integer(self.size * n)) for n in range(number)]

    def row(self, k: Any) -> Any:
        return self.entries(self.matrix, self.b.mul(k, integer(self._rolled.elimination.width)))[0]

    def _cell(self, row: Any, j: Any) -> Any:
        return self.entries(row, self.tables.entry(self.b, "place", j))[0]

    def _ancestors(self, k: Any, sums: Sequence[Any] = ()) -> Any:
        entry = self.tables.entry
        return chain_from(self.b, entry(self.b, "before", k), lambda i: entry(self.b, "before", i), sums)

    def factor(self) -> None:
        """Factors the stored matrix."""
        b, rounded = self.b, self.rounded
        with loop_over(b, integer(self.count)) as n:
            k = self.tables.entry(b, "order", b.sub(integer(self.count - 1), n))
            of_k = self.row(k)
            pivot = self._cell(of_k, k)
            unit = ir.Constant(self.vector, [1.0] * self.vector.count)
            inverse = rounded(b.fdiv(unit, self.load(pivot), flags=_FLAGS), k, k)
            self.store([inverse], [pivot])
            with self._ancestors(k) as i:
                of_i, place = self.row(i), self._cell(of_k, i)
                share = rounded(b.fmul(self.load(place), inverse, flags=_FLAGS), k, i)
                with loop_over(b, b.add(self.tables.entry(b, "place", i), integer(1))) as j:
                    (cell,), (pivot_cell,) = self.entries(of_i, j), self.entries(of_k, j)
                    product = rounded(b.fmul(share, self.load(pivot_cell), flags=_FLAGS), i, b.add(j, integer(1)))
                    self.store([rounded(b.fsub(self.load(cell), product, flags=_FLAGS), i, j)], [cell])
                self.store([share], [place])

    def _minus_products(self, sums: Sequence[Any], k: Any, i: Any, factors: Sequence[Any]) -> list[Any]:
        """Returns the sums less entry (k, i) of L times the factors."""
        b, rounded = self.b, self.rounded
        share = rounded(self.load(self._cell(self.row(k), i)), k, i)
        pairs = zip(sums, factors, strict=True)
        return [rounded(b.fsub(total, b.fmul(share, y, flags=_FLAGS), flags=_FLAGS), i, k) for total, y in pairs]

    def solve(self, x: Any) -> None:
        """Replaces the entries of x, (nv,), by the solution."""
        # Subtracts one product after the other, `_Substitutions` subtracts their sum: other bits, so both are kept.
        b, count = self.b, self.count
        places = partial(self.entries, x)
        with loop_over(b, integer(count)) as n:
            k = self.tables.entry(b, "order", b.sub(integer(count - 1), n))
            x_k = list(map(self.load, places(k)))
            with self._ancestors(k) as i:
                self.store(self._minus_products(list(map(self.load, places(i))), k, i, x_k), places(i))
        with loop_over(b, integer(count)) as n:
            k = self.tables.entry(b, "order", n)
            inverse = self.load(self._cell(self.row(k), k))
            x_k = [self.rounded(b.fmul(self.load(place), inverse, flags=_FLAGS), k, k) for place in places(k)]
            chain = self._ancestors(k, x_k)
            with chain as i:
                chain.values = self._minus_products(chain.values, k, i, list(map(self.load, places(i))))
            self.store(chain.values, places(k))

    def solve_matrices(self, target: Any) -> None:
        """Replaces outputs, (nv, nv), by their solutions.

        Lanes are states; of a vector of equal states, as in a call with one state, lanes are columns instead, which
        takes a part of the operations. Both compute an entry by the same operations on vectors, so with the same bits.
        """
        b, lanes = self.b, self.vector.count
        # In a kernel with errors each lane has its own factors, so equal states have different solutions.
        if self._rolled.errors or lanes == 1:
            self._solve_outputs(target, lanes_are_columns=False)
            return
        with b.if_else(self._are_equal_states()) as (equal, different):
            with equal:
                self._solve_outputs(target, lanes_are_columns=True)
            with different:
                self._solve_outputs(target, lanes_are_columns=False)

    def _are_equal_states(self) -> Any:
        """Emits whether the lanes of each input have the same bits."""
        b, vector = self.b, self.vector
        bits = ir.VectorType(I64, vector.count)
        entries = total_size(self._rolled.signature.inputs)
        loop = loop_over(b, integer(entries), values=[ir.Constant(bits, [0] * vector.count)])
        with loop as entry:
            value = self.load(vector_address(b, self._source, vector, entry))
            first = splat(b, b.extract_element(value, integer(0)), vector)
            # Bits, not values: a NaN differs from itself, and -0.0 may give another answer than 0.0.
            difference = b.xor(b.bitcast(value, bits), b.bitcast(first, bits))
            loop.values = [b.or_(loop.values[0], difference)]
        differences = [b.extract_element(loop.values[0], integer(n)) for n in range(vector.count)]
        return b.icmp_signed("==", reduce(b.or_, differences), integer(0))

    def _solve_outputs(self, target: Any, *, lanes_are_columns: bool) -> None:
        """Emits the solutions for all outputs, for one block of columns after the other.

        The given matrices have the zeros of the matrix of equations, where they are not set. Of symmetric solutions,
        for diagonal matrices, the half that is computed first is copied to the other.
        """
        b, entry, count = self.b, self.tables.entry, self.count
        columns = min(MOST_COLUMNS, 2 * self.vector.count) if lanes_are_columns else SOLVED_COLUMNS
        blocks = self._rolled.elimination.blocks(columns)
        self.tables.add(f"first_of_{columns}", [first for first, _ in blocks])
        self.tables.add(f"last_of_{columns}", [first + size - 1 for first, size in blocks])
        solver = self._solver(columns, lanes_are_columns=lanes_are_columns)
        for solved in self._rolled.solved:
            x = at(b, target, integer(self.size * solved.first))
            with loop_over(b, integer(len(blocks))) as n:
                first, last = entry(b, f"first_of_{columns}", n), entry(b, f"last_of_{columns}", n)
                if solved.symmetric:
                    nonzero_end = row_end = b.add(last, integer(1))
                else:
                    nonzero_end, row_end = entry(b, "end_of", entry(b, "nested", first)), entry(b, "tree_end", first)
                b.call(solver, [self._source, self._shared_sums, x, first, last, nonzero_end, row_end])
            if solved.symmetric:
                with loop_over(b, integer(count)) as n, loop_over(b, n) as m:
                    i, j = entry(b, "nested", n), entry(b, "nested", m)
                    cells = [self.entries(x, b.add(b.mul(r, integer(count)), c))[0] for r, c in ((j, i), (i, j))]
                    self.store([self.load(cells[0])], cells[1:])

    def _solver(self, columns: int, *, lanes_are_columns: bool) -> ir.Function:
        """Returns the function that solves for a block of columns, for all matrices of the kernel."""
        module, name = self.b.module, f"{self.b.function.name}.solve{columns}"
        function = internal(module, name, ir.VoidType(), *[POINTER] * 3, *[I64] * 4)
        source, shared_sums, *arguments = function.args
        b = ir.IRBuilder(function.append_basic_block())
        factors = _Factors(b, self.vector, self._rolled, self.tables, source, shared_sums)
        _Substitutions(factors, columns, *arguments, lanes_are_columns=lanes_are_columns).emit()
        b.ret_void()
        return function


class _Substitutions:
    """Emits the solutions L^-1 D^-1 L^-T x for a block of columns of an output x.

    Rows are in blocks, too (`Elimination.blocks`), whose sums are in registers while the columns of L before the block
    are read. `path` has one row for each depth, of the entries on which the current block depends: in the first
    substitution what is to be subtracted, in the second the solutions. So both read consecutive entries of L and
    `path`. `y` has L^-T x.
    """

    def __init__(
        self,
        factors: _Factors,
        columns: int,
        x: Any,
        first: Any,
        last: Any,
        nonzero_end: Any,
        row_end: Any,
        *,
        lanes_are_columns: bool,
    ) -> None:
        """x: the output. first, last: places of the columns in `Elimination.nested`; beyond the last one, it is solved
        for again. nonzero_end: the place from which on x is 0. row_end: the place up to which rows are needed.
        """
        self._factors, self._lanes_are_columns = factors, lanes_are_columns
        self._first, self._nonzero_end, self._row_end = first, nonzero_end, row_end
        b, lanes, entry = factors.b, factors.vector.count, factors.tables.entry
        self._width = columns // lanes if lanes_are_columns else columns
        self._x = []
        for n in range(columns):
            place = b.add(first, integer(n))
            place = b.select(b.icmp_signed("<", place, last), place, last)
            self._x.append(at(b, x, b.mul(entry(b, "nested", place), integer(factors.size))))
        self._y = at(b, factors.matrix, integer(factors.size * factors.count * factors.depths))
        self._path = at(b, self._y, integer(factors.size * factors.count * self._width))
        self._zeros = at(b, self._path, integer(factors.size * factors.depths * self._width))

    def emit(self) -> None:
        """Emits both substitutions."""
        f, b, first = self._factors, self._factors.b, self._first
        entry = partial(f.tables.entry, b)
        clear = [ir.Constant(f.vector, [0.0] * f.vector.count)] * self._width
        with loop_over(b, integer(f.depths + 1)) as depth:  # and the zeros after them
            f.store(clear, self._row(self._path, depth))

        def previous(place: Any) -> Any:
            """The place before a block, or from that of the columns on the entry on which the block depends."""
            block = entry("block", place)
            return b.select(b.icmp_signed(">", block, first), b.sub(block, integer(1)), entry("above", block))

        with chain_from(b, b.sub(self._nonzero_end, integer(1)), previous) as place:
            self._by_size(entry("block", place), self._forward)

        def next_block(block: Any) -> Any:
            place = b.add(block, entry("rows", block))
            return b.select(b.icmp_signed("<", place, self._row_end), place, integer(-1))

        with chain_from(b, entry("tree", first), next_block) as block:
            self._by_size(block, self._backward)

    def _by_size(self, block: Any, emit: Callable[[Any, int], None]) -> None:
        """Emits the code for each size of blocks of rows, and the choice."""
        f, b = self._factors, self._factors.b
        continuation = b.append_basic_block()
        # A loop over the rows of a block would keep their sums in memory, unrolled code keeps them in registers.
        choice = b.switch(f.tables.entry(b, "rows", block), continuation)
        for size in sorted({size for _, size in f.elimination.blocks(SOLVED_ROWS)}):
            case = b.append_basic_block()
            choice.add_case(integer(size), case)
            b.position_at_end(case)
            emit(block, size)
            b.branch(continuation)
        b.position_at_end(continuation)

    def _forward(self, block: Any, size: int) -> None:
        """Emits y = L^-T x for a block of rows."""
        f, b = self._factors, self._factors.b
        rows, depths = self._rows_of(block, size)
        sums = [self._loaded(self._row(self._path, depth)) for depth in depths]
        y: list[list[Any]] = [[]] * size
        clear = [ir.Constant(f.vector, [0.0] * f.vector.count)] * self._width
        for n in reversed(range(size)):
            for m in reversed(range(n + 1, size)):
                sums[n] = self._plus(sums[n], rows[m], depths[n], y[m], b.fadd)
            pairs = zip(self._x_of(rows[n]), sums[n], strict=True)
            y[n] = [f.rounded(b.fsub(x, total, flags=_FLAGS), rows[n], depths[n]) for x, total in pairs]
        for k, depth, values in zip(rows, depths, y, strict=True):
            f.store(values, self._row(self._y, k))
            f.store(clear, self._row(self._path, depth))  # the next entry of this depth has other descendants
        with loop_over(b, depths[0]) as depth:
            total = self._loaded(self._row(self._path, depth))
            for m in reversed(range(size)):
                total = self._plus(total, rows[m], depth, y[m], b.fadd)
            f.store(total, self._row(self._path, depth))

    def _backward(self, block: Any, size: int) -> None:
        """Emits x = L^-1 D^-1 y for a block of rows. y is 0 except at rows that the first substitution visits."""
        f, b, first = self._factors, self._factors.b, self._first
        rows, depths = self._rows_of(block, size)
        is_below = b.and_(b.icmp_signed(">=", block, first), b.icmp_signed("<", block, self._nonzero_end))
        stop = f.tables.entry(b, "end_of", rows[0])
        is_above = b.and_(b.icmp_signed("<=", block, first), b.icmp_signed("<", first, stop))
        is_visited = b.or_(is_below, is_above)
        sums = []
        for k, depth in zip(rows, depths, strict=True):
            inverse = self._factor(k, depth)
            cells = zip(self._row(self._y, k), self._row(self._zeros, integer(0)), strict=True)
            y = self._loaded([b.select(is_visited, *pair) for pair in cells])
            sums += [f.rounded(b.fmul(value, inverse, flags=_FLAGS), k, k) for value in y]
        loop = loop_over(b, depths[0], values=sums)
        with loop as depth:
            path, sums = self._loaded(self._row(self._path, depth)), []
            for k, values in zip(rows, self._by_row(loop.values), strict=True):
                sums += self._plus(values, k, depth, path, b.fsub)
            loop.values = sums
        x = self._by_row(loop.values)
        for n, k in enumerate(rows):
            for m in range(n):
                x[n] = self._plus(x[n], k, depths[m], x[m], b.fsub)
            self._set_x(k, x[n])
            f.store(x[n], self._row(self._path, depths[n]))

    def _rows_of(self, block: Any, size: int) -> tuple[list[Any], list[Any]]:
        """Returns the entries of v of a block, and their depths."""
        b, entry = self._factors.b, self._factors.tables.entry
        rows = [entry(b, "nested", b.add(block, integer(n))) for n in range(size)]
        top = entry(b, "place", rows[0])
        return rows, [b.add(top, integer(n)) for n in range(size)]

    def _by_row(self, values: Sequence[Any]) -> list[list[Any]]:
        return [list(values[n : n + self._width]) for n in range(0, len(values), self._width)]

    def _row(self, buffer: Any, n: Any) -> list[Any]:
        """Returns the addresses of a row of `y` or `path`."""
        return self._factors.entries(buffer, self._factors.b.mul(n, integer(self._width)), self._width)

    def _loaded(self, cells: Sequence[Any]) -> list[Any]:
        return list(map(self._factors.load, cells))

    def _factor(self, k: Any, depth: Any) -> Any:
        """Emits the entry of row k of L, and of D^-1, in all lanes."""
        f, b = self._factors, self._factors.b
        (cell,) = f.entries(f.row(k), depth)
        return splat(b, b.load(cell, align=8, typ=DOUBLE), f.vector) if self._lanes_are_columns else f.load(cell)

    def _plus(self, sums: Sequence[Any], k: Any, depth: Any, y: Sequence[Any], add: Callable[..., Any]) -> list[Any]:
        """Emits the sums plus (or minus, by `add`) y times an entry of row k of L."""
        f, b = self._factors, self._factors.b
        factor = f.rounded(self._factor(k, depth), k, depth)
        pairs = zip(sums, y, strict=True)
        return [f.rounded(add(s, b.fmul(factor, z, flags=_FLAGS), flags=_FLAGS), depth, k) for s, z in pairs]

    def _x_of(self, k: Any) -> list[Any]:
        """Emits the reading of row k of x."""
        f, b = self._factors, self._factors.b
        cells = [at(b, column, b.mul(k, integer(f.size * f.count))) for column in self._x]
        if not self._lanes_are_columns:
            return self._loaded(cells)
        vectors = [ir.Constant(f.vector, ir.Undefined)] * self._width
        for n, cell in enumerate(cells):
            group, lane = divmod(n, f.vector.count)
            number = b.load(cell, align=8, typ=DOUBLE)
            vectors[group] = b.insert_element(vectors[group], number, integer(lane))
        return vectors

    def _set_x(self, k: Any, values: Sequence[Any]) -> None:
        """Emits the writing of row k of x, of one state in all lanes."""
        f, b = self._factors, self._factors.b
        cells = [at(b, column, b.mul(k, integer(f.size * f.count))) for column in self._x]
        if self._lanes_are_columns:
            places = [divmod(n, f.vector.count) for n in range(len(cells))]
            values = [splat(b, b.extract_element(values[group], integer(lane)), f.vector) for group, lane in places]
        f.store(values, cells)


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

    def subtract(place: Any, x: Any, i: Any, j: Any) -> None:
        b.store(rounded(b.fsub(load(place), x, flags=_FLAGS), i, j), place, align=size)

    right = [at(b, factors, integer(size * count**2 * product.B)) for product in products]
    outputs = [at(b, target, integer(size * product.first)) for product in products]

    def tile(start: int, stop: int, width: int) -> None:
        """Emits the products for some columns of Z, `width` at a time."""
        with loop_over(b, integer(stop), start=integer(start), step=width) as first, loop_over(b, integer(count)) as j:
            columns = [b.add(first, integer(n)) for n in range(width)]

            def plus_products(k: Any, sums: list[Any]) -> list[Any]:
                z, x = [load(cell(Z, k, i)) for i in columns], [load(cell(X, k, j)) for X in right]
                pairs = [(n, factor, entry) for factor in x for n, entry in enumerate(z)]
                products = [rounded(b.fmul(factor, z_n, flags=_FLAGS), k, columns[n]) for n, factor, z_n in pairs]
                totals = [b.fadd(s, p, flags=_FLAGS) for s, p in zip(sums, products, strict=True)]
                return [rounded(s, columns[n], k) for s, (n, *_) in zip(totals, pairs, strict=True)]

            sums = [zero] * (width * len(products))
            ancestors = chain_from(b, tables.entry(b, "before", j), lambda i: tables.entry(b, "before", i), sums)
            with ancestors as k:
                ancestors.values = plus_products(k, ancestors.values)
            end, start = tables.entry(b, "end_of", j), tables.entry(b, "rank", j)
            descendants = loop_over(b, end, start=start, values=ancestors.values)
            with descendants as rank:
                descendants.values = plus_products(tables.entry(b, "nested", rank), descendants.values)
            for product, X, part in zip(products, outputs, range(0, len(sums), width), strict=True):
                for i, x in zip(columns, descendants.values[part : part + width], strict=True):
                    subtract(cell(X, i, j), x, i, j)
                    if product.twice:
                        subtract(cell(X, j, i), x, i, j)

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
    errors = at(b, source, integer(8 * vector.count * total_size(rolled.signature.inputs[:-1])))
    return _rounding_by(b, vector, errors if rolled.errors else None)


def _rounding_by(b: ir.IRBuilder, vector: ir.VectorType, errors: Any | None) -> Callable[[Any, Any, Any], Any]:
    """Returns the same for factors at this address; None: values stay as they are."""

    def rounded(value: Any, i: Any, j: Any) -> Any:
        if errors is None:
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
        columns: dict[str, Any] = {
            "kind": rolled.kind,
            "parent": rolled.parent,
            "row": rolled.row,
            "parent_row": [rolled.row[parent] if parent >= 0 else 0 for parent in rolled.parent],
            "numbers": place,
            "end": _ends(rolled.parent),
            **rolled.starts,
        }
        if rolled.equations:
            elimination = rolled.elimination
            columns |= {"order": elimination.order, "before": elimination.parent, "place": elimination.column}
        if rolled.products or rolled.solved:
            columns |= dict(zip(("nested", "rank", "end_of"), rolled.elimination.nested, strict=True))
            columns |= _solution_order(rolled.elimination)
        self.tables: dict[str, Any] = {}
        for name, column in columns.items():
            self.add(name, column)
        self.numbers = self._add("values", np.concatenate([np.zeros(0), *(x.reshape(-1) for x in rolled.numbers)]))

    def add(self, name: str, column: Sequence[int]) -> None:
        """Adds a table of integers."""
        self.tables[name] = self._add(name, np.array(column, dtype="<i8"))

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


def _solution_order(elimination: Elimination) -> dict[str, list[int]]:
    """Returns tables for solutions, by the place of an entry in `Elimination.nested`.

    block: where its block of rows begins. rows: the number of rows of the block that begins there. above: the place of
    the entry on which it depends, or -1. tree, tree_end: where its tree begins and ends.
    """
    entries, rank, end_of = elimination.nested
    block, rows, parent, tree = ([0] * len(entries) for _ in range(4))
    for place, k in enumerate(entries):
        parent[place] = rank[elimination.parent[k]] if elimination.parent[k] >= 0 else -1
        tree[place] = tree[parent[place]] if parent[place] >= 0 else place
    for first, size in elimination.blocks(SOLVED_ROWS):
        block[first : first + size] = [first] * size
        rows[first] = size
    tree_end = [end_of[entries[first]] for first in tree]
    return {"block": block, "rows": rows, "above": parent, "tree": tree, "tree_end": tree_end}


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
        self._source, self._target, self._stored, self._sums, self._states, self._i, self._first = arguments
        self._emitted: dict[Any, Any] = {}

    def _once(self, key: Any, emit: Callable[[], Any]) -> Any:
        if key not in self._emitted:
            self._emitted[key] = emit()
        return self._emitted[key]

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
            return self._sums, rolled.rows * rolled.body_sums + place.first
        if buffer_name in ("children", "gives"):
            row = self._entry("row" if buffer_name == "children" else "parent_row")
            return self._once((buffer_name,), lambda: self._row(self._sums, rolled.body_sums, row)), place.first
        if buffer_name == "state":
            # An outward walk stores the state of each body, an inward one that of each walk.
            walks = self._walks
            assert walks is not None
            i = self._first if not walks.outward else self._i if write else self._entry("parent")
            return self._once((buffer_name, write), lambda: self._row(self._states, walks.size, i)), place.first
        i = self._entry("parent") if buffer_name == "parent" else self._i
        return self._once((buffer_name,), lambda: self._row(self._stored, rolled.stored_values, i)), place.first

    def _buffer(self, name: str) -> Any:
        if name in ("shared", "matrix", "factor"):
            rolled = self._rolled
            offset = rolled.states + (rolled.velocities * rolled.shared_columns if name != "shared" else 0)
            offset += rolled.matrix if name == "factor" else 0
            return self._once((name,), lambda: at(self._b, self._states, integer(8 * self._vector.count * offset)))
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
        first = total_size(inputs[:-1])

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
    results = ir.Constant(vectors[0].type, ir.Undefined)
    for lane in range(vectors[0].type.count):
        place = ir.Constant(ir.IntType(32), lane)
        value = b.call(function, [b.extract_element(v, place) for v in vectors])
        results = b.insert_element(results, value, place)
    return results
