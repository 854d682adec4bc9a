"""Lowers an expression graph to LLVM IR: each scalar becomes a vector with one state per lane.

A module has six functions.

    body(in, out)             the arithmetic of one block of W states, each number a <W x double>
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

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np
from llvmlite import ir

from dyn_service.kernels.emitting import BLOCK, BYTES, DOUBLE, I64, POINTER, at, chain_from, integer, loop_over, splat
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.rolled import Address, Rolled, Step, Walks
from dyn_service.kernels.signature import Operand
from dyn_service.kernels.trig import sincos, tanh, vector_intrinsic

BLOCK_INSTRUCTIONS = 2000
"""Instructions per basic block. The code generator's time grows faster than a block's length."""

MOST_STACK_BYTES = 64 << 10
"""Larger buffers of a kernel are allocated on the heap."""

_FLAGS = ("nsz", "contract", "arcp")

EXACT = frozenset(
    (
        *(ca.OP_NEG, ca.OP_TWICE, ca.OP_ASSIGN, ca.OP_FABS, ca.OP_COPYSIGN, ca.OP_LT, ca.OP_NOT, ca.OP_IF_ELSE_ZERO),
        *(ca.OP_FMIN, ca.OP_FMAX),
    )
)
"""Operations without rounding errors."""


ERRORS = 256
"""Number of random factors of a state with which a kernel `with_errors` multiplies its rounded results."""


def with_errors(rolled: Rolled) -> Rolled:
    """Returns the kernel with one more input, `errors`: factors with which the rounded results are multiplied.

    Body and operation select the factor. The input holds the `ERRORS` factors twice, so that the sum of both indices is
    in range.
    """
    operand = Operand("errors", (2 * ERRORS,), dims=(2 * ERRORS,))
    inputs = (*rolled.signature.inputs, operand)
    return replace(rolled, signature=replace(rolled.signature, inputs=inputs), errors=True)


def lower(graph: Graph | Rolled, lanes: int, entry: str) -> str:
    """Returns the LLVM module of one kernel, as text.

    Args:
        graph: The traced query.
        lanes: States per vector, W.
        entry: Name of the exported function.
    """
    module = ir.Module(name=graph.signature.name)
    vector = ir.VectorType(DOUBLE, lanes)
    body = (
        _emit_passes(module, graph, vector) if isinstance(graph, Rolled) else _emit_body(module, graph.function, vector)
    )
    gather, scatter = emit_gather(module, vector), emit_scatter(module, vector)
    _emit_loop(module, entry, graph, vector, body, gather, scatter)
    _emit_block(module, graph, vector, body)
    return str(module)


def _internal(module: ir.Module, name: str, arguments: int, pointers: int, *, inline: bool) -> ir.Function:
    """Adds an internal function that takes `pointers` pointers, then integers."""
    kinds = [POINTER] * pointers + [I64] * (arguments - pointers)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    function.attributes.add("alwaysinline" if inline else "noinline")
    return function


def _emit_body(module: ir.Module, function: Any, vector: ir.VectorType) -> ir.Function:
    emitted = _internal(module, "body", 2, 2, inline=False)
    source, target = emitted.args
    for pointer in emitted.args:
        pointer.add_attribute("noalias")
    b = ir.IRBuilder(emitted.append_basic_block())
    first_in = _running(function.size1_in(k) for k in range(function.n_in()))
    first_out = _running(function.size1_out(k) for k in range(function.n_out()))

    def read(operand: int, entry: int) -> Any:
        return _load(b, vector, source, first_in[operand] + entry)

    def write(operand: int, entry: int, value: Any) -> None:
        if not _is_clear(value):  # the loop has cleared the buffer
            _store(b, vector, target, first_out[operand] + entry, value)

    emit_arithmetic(b, function, vector, read, write)
    b.ret_void()
    return emitted


def emit_arithmetic(
    b: ir.IRBuilder,
    function: Any,
    vector: ir.VectorType,
    read: Callable[[int, int], Any],
    write: Callable[[int, int, Any], None],
    rounded: Callable[[int, Any], Any] | None = None,
) -> None:
    """Emits the instructions of a CasADi function.

    Args:
        b: Where to emit; it is in a later block afterwards if the function is long.
        function: The function.
        vector: The type of each scalar.
        read: Emits the reading of an input: its operand and entry.
        write: Emits the writing of an output: its operand, its entry and the value.
        rounded: Emits what is done to each rounded result: the number of the operation and the value. None is nothing.
    """
    module = b.module
    work: dict[int, Any] = {}
    angles: dict[Any, tuple[Any, Any]] = {}

    def turned(x: Any) -> tuple[Any, Any]:
        if x not in angles:
            angles[x] = sincos(b, x)
        return angles[x]

    def with_error(operation: int, value: Any) -> Any:
        return value if rounded is None else rounded(operation, value)

    def flagged(operation: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *values: operation(*values, flags=_FLAGS)

    def number(value: float) -> Any:
        return ir.Constant(vector, [value] * vector.count)

    zero = number(0.0)
    add, sub, mul, div, neg = (flagged(f) for f in (b.fadd, b.fsub, b.fmul, b.fdiv, b.fneg))
    sqrt = vector_intrinsic(module, "sqrt", vector, 1)
    emit: dict[int, Callable[..., Any]] = {
        ca.OP_ADD: add,
        ca.OP_SUB: sub,
        ca.OP_MUL: mul,
        ca.OP_DIV: div,
        ca.OP_NEG: neg,
        ca.OP_SQ: lambda x: mul(x, x),
        ca.OP_TWICE: lambda x: add(x, x),
        ca.OP_INV: lambda x: div(number(1.0), x),
        ca.OP_SQRT: lambda x: b.call(sqrt, [x]),
        ca.OP_SIN: lambda x: turned(x)[0],
        ca.OP_COS: lambda x: turned(x)[1],
        ca.OP_ASSIGN: lambda x: x,
        ca.OP_FABS: lambda x: b.call(vector_intrinsic(module, "fabs", vector, 1), [x]),
        ca.OP_COPYSIGN: lambda x, y: b.call(vector_intrinsic(module, "copysign", vector, 2), [x, y]),
        ca.OP_TANH: lambda x: tanh(b, x),
        ca.OP_ATAN2: lambda x, y: _lane_by_lane(b, "atan2", x, y),
        ca.OP_LT: lambda x, y: b.select(b.icmp_unsigned("<", _bits(b, x), _bits(b, y)), number(1.0), zero),
        ca.OP_NOT: lambda x: b.select(_is_zero(b, x), number(1.0), zero),
        ca.OP_IF_ELSE_ZERO: lambda x, y: b.select(_is_zero(b, x), zero, y),
        # A first operand that is NaN is the result.
        ca.OP_FMIN: lambda x, y: b.select(b.fcmp_ordered(">", x, y), y, x),
        ca.OP_FMAX: lambda x, y: b.select(b.fcmp_ordered("<", x, y), y, x),
    }
    for k in range(function.n_instructions()):
        if k % BLOCK_INSTRUCTIONS == BLOCK_INSTRUCTIONS - 1:
            following = b.append_basic_block()
            b.branch(following)
            b.position_at_end(following)
        operation = function.instruction_id(k)
        if operation == ca.OP_CONST:
            value = function.instruction_constant(k)
            constant = number(value) if value else zero
            work[function.instruction_output(k)[0]] = constant if not value % 1.0 else with_error(k, constant)
        elif operation == ca.OP_INPUT:
            work[function.instruction_output(k)[0]] = read(*function.instruction_input(k))
        elif operation == ca.OP_OUTPUT:
            operand, entry = function.instruction_output(k)
            write(operand, entry, work[function.instruction_input(k)[0]])
        elif operation in emit:
            values = [work[index] for index in function.instruction_input(k)]
            result = emit[operation](*values)
            work[function.instruction_output(k)[0]] = result if operation in EXACT else with_error(k, result)
        else:
            raise NotImplementedError(f"CasADi operation {operation} has no lowering")


def _load(b: ir.IRBuilder, vector: ir.VectorType, buffer: Any, entry: int) -> Any:
    size = 8 * vector.count
    return b.load(at(b, buffer, integer(size * entry)), align=size, typ=vector)


def _store(b: ir.IRBuilder, vector: ir.VectorType, buffer: Any, entry: int, value: Any) -> None:
    size = 8 * vector.count
    b.store(value, at(b, buffer, integer(size * entry)), align=size)


def _is_clear(value: Any) -> bool:
    """Whether a value is the constant 0."""
    return isinstance(value, ir.Constant) and not any(value.constant)


def _emit_passes(module: ir.Module, rolled: Rolled, vector: ir.VectorType) -> ir.Function:
    """Adds body(in, out) of a kernel as loops. Its workspace follows `out`: stored values, then sums, then totals."""
    emitted = _internal(module, "body", 2, 2, inline=False)
    source, target = emitted.args
    b = ir.IRBuilder(emitted.append_basic_block())
    size, bodies = 8 * vector.count, len(rolled.kind)
    tables = _Tables(module, rolled)
    own = at(b, target, integer(size * sum(operand.size for operand in rolled.signature.outputs)))
    sums = at(b, own, integer(size * bodies * rolled.stored))
    clear = ir.Constant(vector, [0.0] * vector.count)
    with loop_over(b, integer(rolled.rows * rolled.summed + rolled.totals)) as entry:
        b.store(clear, _vector_address(b, sums, vector, entry), align=size)

    states = at(b, sums, integer(size * (rolled.rows * rolled.summed + rolled.totals)))
    nothing = integer(0)

    def step(name: str, of: Step | None, walks: Walks | None = None) -> ir.Function | None:
        if of is None:
            return None
        function = _internal(module, name, 7, 5, inline=False)
        inner = ir.IRBuilder(function.append_basic_block())
        access = _Access(inner, vector, rolled, tables, walks, *function.args)
        emit_arithmetic(
            inner,
            of.function,
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

    for p, each in enumerate(rolled.passes):
        steps = [step(f"pass{p}_kind{k}", of) for k, of in enumerate(each.steps)]
        with loop_over(b, integer(bodies)) as n:
            i = n if each.outward else b.sub(integer(bodies - 1), n)
            call(steps, tables.entry(b, "kind", i), i, nothing)
    for w, walks in enumerate(rolled.walks):
        first = [step(f"walk{w}_from{k}", of, walks) for k, of in enumerate(walks.first)]
        others = [
            step(f"walk{w}_from{k}_at{m}", of, walks) for k, row in enumerate(walks.others) for m, of in enumerate(row)
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
    last = step("last", rolled.last)
    if last is not None:
        b.call(last, [source, target, own, sums, states, nothing, nothing])
    b.ret_void()
    return emitted


class _Tables:
    """Constant tables of a kernel as loops: of each body its kind, parent, rows and starts; and all numbers."""

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
        self._tables = {name: self._add(name, np.array(column, dtype="<i8")) for name, column in columns.items()}
        self.numbers = self._add("values", np.concatenate([np.zeros(0), *(x.reshape(-1) for x in rolled.numbers)]))

    def _add(self, name: str, values: Any) -> Any:
        data = bytearray(values.tobytes())
        kind = ir.ArrayType(ir.IntType(8), len(data))
        table = ir.GlobalVariable(self._module, kind, f"table.{name}")
        table.linkage, table.global_constant, table.align = "internal", True, 64
        table.initializer = ir.Constant(kind, data)
        return table

    def entry(self, b: ir.IRBuilder, name: str, i: Any) -> Any:
        """Emits the reading of a body's entry of a table."""
        return b.load(at(b, self._tables[name], b.mul(i, integer(8))), typ=I64)


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
        self._b, self._vector, self._rolled, self._tables, self._walks = b, vector, rolled, tables, walks
        self._source, self._target, self._own, self._sums, self._states, self._i, self._first = arguments
        self._known: dict[Any, Any] = {}

    def _once(self, key: Any, emit: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = emit()
        return self._known[key]

    def _row(self, buffer: Any, width: int, i: Any) -> Any:
        return at(self._b, buffer, self._b.mul(i, integer(8 * self._vector.count * width)))

    def _entry(self, table: str) -> Any:
        return self._once(table, lambda: self._tables.entry(self._b, table, self._i))

    def _locate(self, place: Address, *, write: bool = False) -> tuple[Any, int]:
        """Returns a buffer and the entry in it."""
        rolled, of = self._rolled, place.of
        if of in ("input", "output"):
            buffer = self._source if of == "input" else self._target
            if place.family is None:
                return buffer, place.first
            start = self._entry(place.family)
            at_body = self._once(place._replace(first=0, other=None), lambda: self._row(buffer, place.stride, start))
            if place.other is None:
                return at_body, place.first
            other = str(place.other)
            row = self._once(("first", other), lambda: self._tables.entry(self._b, other, self._first))
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

    def read(self, place: Address) -> Any:
        """Emits the reading of a scalar."""
        b = self._b
        if place.of != "number":
            return _load(b, self._vector, *self._locate(place))
        row = self._once(("numbers",), lambda: at(b, self._tables.numbers, b.mul(self._entry("numbers"), integer(8))))
        number = splat(b, b.load(at(b, row, integer(8 * place.first)), typ=DOUBLE), self._vector)
        return self.rounded(31 * place.first, number) if self._rolled.errors else number

    def rounded(self, operation: int, value: Any) -> Any:
        """Emits the product with one of the factors `errors`."""
        b, inputs = self._b, self._rolled.signature.inputs
        first = sum(operand.size for operand in inputs[:-1])

        def row() -> Any:
            body = b.and_(b.mul(self._i, integer(97)), integer(ERRORS - 1))
            return self._row(self._source, 1, b.add(body, integer(first)))

        return b.fmul(value, _load(b, self._vector, self._once(("errors",), row), operation % ERRORS))

    def write(self, place: Address, value: Any) -> None:
        """Emits the writing of a scalar, or adding it to a sum."""
        b, cell = self._b, self._locate(place, write=True)
        if place.of in ("gives", "total"):
            value = b.fadd(_load(b, self._vector, *cell), value, flags=_FLAGS)
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
        tile = [b.load(at(b, row, b.mul(entry, integer(8))), align=1, typ=vector) for row in rows]
        for k, column in enumerate(_transposed(b, tile)):
            b.store(column, _vector_address(b, target, vector, b.add(entry, integer(k))), align=8 * vector.count)
    with loop_over(b, entries, start=transposed) as entry:
        value = ir.Constant(vector, ir.Undefined)
        for lane, row in enumerate(rows):
            number = b.load(at(b, row, b.mul(entry, entry_stride)), align=1, typ=DOUBLE)
            value = b.insert_element(value, number, integer(lane))
        b.store(value, _vector_address(b, target, vector, entry), align=8 * vector.count)
    b.ret_void()
    return function


def emit_scatter(module: ir.Module, vector: ir.VectorType) -> ir.Function:
    """Adds scatter(out, base, states, state_stride, entries, entry_stride): writes the first `states` lanes."""
    function = _internal(module, "scatter", 6, 2, inline=False)
    source, base, states, state_stride, entries, entry_stride = function.args
    b = ir.IRBuilder(function.append_basic_block())
    transposed = _whole_tiles(b, vector, states, entries, entry_stride)
    with loop_over(b, transposed, step=vector.count) as entry:
        cells = [_vector_address(b, source, vector, b.add(entry, integer(k))) for k in range(vector.count)]
        tile = [b.load(cell, align=8 * vector.count, typ=vector) for cell in cells]
        for lane, row in enumerate(_transposed(b, tile)):
            place = at(b, base, b.add(b.mul(integer(lane), state_stride), b.mul(entry, integer(8))))
            b.store(row, place, align=1)
    with loop_over(b, states) as state:
        row = at(b, base, b.mul(state, state_stride))
        lane = at(b, source, b.mul(state, integer(8)))
        with loop_over(b, entries, start=transposed) as entry:
            number = b.load(_vector_address(b, lane, vector, entry), align=8, typ=DOUBLE)
            b.store(number, at(b, row, b.mul(entry, entry_stride)), align=1)
    b.ret_void()
    return function


def _whole_tiles(b: ir.IRBuilder, vector: ir.VectorType, states: Any, entries: Any, entry_stride: Any) -> Any:
    """Returns the number of entries copied in square tiles: a multiple of W if the block is full and packed, else 0."""
    packed = b.icmp_signed("==", entry_stride, integer(8))
    full = b.icmp_signed("==", states, integer(vector.count))
    return b.select(b.and_(packed, full), b.and_(entries, integer(-vector.count)), integer(0))


def _transposed(b: ir.IRBuilder, tile: list[Any]) -> list[Any]:
    """Returns the columns of a square tile of vectors, by swapping off-diagonal blocks at every power of two."""
    tile = list(tile)
    count = len(tile)
    step = 1
    while step < count:
        # Lanes 0 .. count - 1 are of the first vector, from count on of the second.
        first = [lane if not lane & step else count + lane - step for lane in range(count)]
        second = [lane + step if not lane & step else count + lane for lane in range(count)]
        for i in range(count):
            if not i & step:
                pair = tile[i], tile[i + step]
                tile[i], tile[i + step] = (
                    b.shuffle_vector(*pair, ir.Constant(ir.VectorType(ir.IntType(32), count), mask))
                    for mask in (first, second)
                )
        step *= 2
    return tile


def _vector_address(b: ir.IRBuilder, buffer: Any, vector: ir.VectorType, entry: Any) -> Any:
    """Returns the address of an entry's vector in a block's buffer."""
    return at(b, buffer, b.mul(entry, integer(8 * vector.count)))


def _emit_loop(
    module: ir.Module,
    entry: str,
    graph: Graph | Rolled,
    vector: ir.VectorType,
    body: ir.Function,
    gather: ir.Function,
    scatter: ir.Function,
) -> None:
    """Adds loop(args, dims, steps, data): dims[0] states; steps: state strides of the operands, then core strides."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4), entry)
    function.attributes.add("nounwind")
    args, dims, steps, _ = function.args
    b = ir.IRBuilder(function.append_basic_block())
    inputs, outputs = graph.signature.inputs, graph.signature.outputs
    operands = (*inputs, *outputs)
    size = 8 * vector.count

    def entry_of(table: Any, kind: Any, index: int) -> Any:
        return b.load(at(b, table, integer(8 * index)), typ=kind)

    source_bytes, target_bytes = (size * sum(operand.size for operand in side) for side in (inputs, outputs))
    workspace_bytes = size * graph.workspace
    scratch, source = _scratch(module, b, source_bytes + target_bytes + workspace_bytes, align=size)
    target = at(b, source, integer(source_bytes))
    clear = ir.Constant(vector, [0.0] * vector.count)
    with loop_over(b, integer(target_bytes), step=size) as offset:
        b.store(clear, at(b, target, offset), align=size)
    count = entry_of(dims, I64, 0)
    bases = [entry_of(args, POINTER, k) for k in range(len(operands))]
    strides = [entry_of(steps, I64, k) for k in range(len(operands))]
    core: list[list[Any]] = []
    index = len(operands)
    for operand in operands:
        core.append([entry_of(steps, I64, index + axis) for axis in range(len(operand.shape))])
        index += len(operand.shape)

    with loop_over(b, count, step=vector.count) as start:
        left = b.sub(count, start)
        full = integer(vector.count)
        states = b.select(b.icmp_signed("<", left, full), left, full)

        def move(mover: ir.Function, buffer: Any, first: int, k: int, operand: Operand) -> None:
            base = at(b, bases[k], b.mul(start, strides[k]))
            cell = at(b, buffer, integer(size * first))
            *outer, width = operand.shape or (1,)
            if not outer:
                stride = core[k][0] if core[k] else integer(8)
                b.call(mover, [cell, base, states, strides[k], integer(width), stride])
                return
            packed = ir.Constant(ir.IntType(1), 1)
            for axis, stride in enumerate(core[k]):
                expected = 8 * math.prod(operand.shape[axis + 1 :])
                packed = b.and_(packed, b.icmp_signed("==", stride, integer(expected)))
            with b.if_else(packed) as (at_once, row_by_row):
                with at_once:
                    b.call(mover, [cell, base, states, strides[k], integer(operand.size), integer(8)])
                with row_by_row:

                    def rows(axis: int, start_of_row: Any, row: Any) -> None:
                        if axis == len(outer):
                            cell = _vector_address(b, buffer, vector, b.add(integer(first), b.mul(row, integer(width))))
                            b.call(mover, [cell, start_of_row, states, strides[k], integer(width), core[k][-1]])
                            return
                        with loop_over(b, integer(outer[axis])) as position:
                            place = at(b, start_of_row, b.mul(position, core[k][axis]))
                            rows(axis + 1, place, b.add(b.mul(row, integer(outer[axis])), position))

                    rows(0, base, integer(0))

        for k, (first, operand) in enumerate(zip(_running(o.size for o in inputs), inputs, strict=False)):
            move(gather, source, first, k, operand)
        b.call(body, [source, target])
        for k, (first, operand) in enumerate(zip(_running(o.size for o in outputs), outputs, strict=False)):
            move(scatter, target, first, len(inputs) + k, operand)
    if scratch is not None:
        b.call(_library_function(module, "free", ir.VoidType(), [POINTER]), [scratch])
    b.ret_void()


def _emit_block(module: ir.Module, graph: Graph | Rolled, vector: ir.VectorType, body: ir.Function) -> None:
    """Adds block(in, out), the body, and bytes(), the size of its results and workspace; see `kernels/repeated.py`."""
    block = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 2), BLOCK)
    b = ir.IRBuilder(block.append_basic_block())
    b.call(body, block.args)
    b.ret_void()
    size = sum(operand.size for operand in graph.signature.outputs) + graph.workspace
    sizes = ir.Function(module, ir.FunctionType(I64, []), BYTES)
    ir.IRBuilder(sizes.append_basic_block()).ret(integer(8 * vector.count * size))


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


def _library_function(module: ir.Module, name: str, returns: Any, takes: list[Any]) -> ir.Function:
    return ir.Function(module, ir.FunctionType(returns, takes), name)


def _running(sizes: Any) -> list[int]:
    """Returns the start of each of several consecutive runs."""
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size
    return starts
