"""The loop around the body of a kernel: one compiled function for all kernels and robots.

The machine code of a kernel computes a vector of W states (`kernels.lower`). Copying states into vectors and back is
the same for every kernel, so this code is compiled once and kept in the store; as part of a small kernel it would take
four fifths of the time to compile. It is NumPy's inner loop of a generalised ufunc:

    loop(args, dims, steps, plan)      for each block of W states:
        gather(...)                    copy the inputs, with NumPy's strides, to `in`
        fill(...)                      set the external wrenches of a direct call in `in`
        body(in, out, workspace)       each number a <W x double>
        scatter(...)                   copy the results from `out`, with NumPy's strides

The last block of a batch may be short; its idle lanes repeat its last state, and their results are not written.

A kernel as loops over bodies keeps its vectors in memory, which limits its speed. So most of them also have a body of
`NARROW_LANES` lanes, for calls with at most that number of states. Its results have the same bits, because LLVM fuses
the same products and sums in vectors of any number of lanes (but others in single numbers).
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from llvmlite import ir

from dyn_service.kernels.jit import LoadedCode, Loop, shared_code
from dyn_service.kernels.llvm_ir import (
    DOUBLE,
    I32,
    I64,
    POINTER,
    at,
    integer,
    internal,
    library_function,
    loop_over,
    splat,
    vector_address,
    word,
)
from dyn_service.kernels.signature import Operand, Signature, total_size

BODY, NARROW, SIZES, PLACES, FILL, FILL_NARROW = "body", "narrow", "sizes", "places", "fill", "fill.narrow"
"""Names in the code of a kernel: the function of a vector of states; that of a vector of `NARROW_LANES`; a table of W,
the sizes of the buffers, and the number of instructions that run, 0 if each runs once; and the table of the places of
results. Not every kernel has `narrow` and `places`. In the code of direct calls: fill(in, table, memory, first, states)
sets an operand in `in` for some states; `table` is the operand's argument of the loop. `FILL_NARROW` is the same for
vectors of `NARROW_LANES`.
"""

# Not 1: LLVM fuses other products and sums of single numbers, so one lane would have other bits.
NARROW_LANES = 2
"""The fewest lanes of a vector whose bits are those of wider ones."""

INSTRUCTION_BYTES = 16
"""Bytes of code assumed for each instruction, with its loads and stores, of a kernel that runs some several times."""

MAX_STACK_BYTES = 64 << 10
"""Larger buffers of a call are on the heap, since a thread's stack may be small and its end is not checked."""

MAX_AXES = 4

(
    _BODY,
    _INPUTS,
    _OPERANDS,
    _SOURCE_BYTES,
    _TARGET_BYTES,
    _WORKSPACE_BYTES,
    _CLEARED_BYTES,
    _ON_HEAP,
    _PLACES,
    _FAILURES,
    _FILLED,
    _FILL,
    _FILL_BYTES,
    _NARROW_LOOP,
    _NARROW_PLAN,
    _FIRST_OPERAND,
) = range(16)
_AXES, _ROWS, _WIDTH, _FIRST, _FIRST_STRIDE, _SHAPE = range(6)
_STRIDES, _OPERAND_WORDS = _SHAPE + MAX_AXES, _SHAPE + 2 * MAX_AXES
"""The plan: 64-bit integers, first those of the kernel, then those of each operand, with its shape and packed strides.
"""


@dataclass(frozen=True, eq=False)
class Body:
    """The body of a kernel in memory.

    address: its function (in, out, workspace). lanes: W. results, workspace: scalars per state in its buffers. cleared:
    the number of them at the start of the workspace that must be 0. places: the address of a table with the place in
    `out` of each entry of the results, as 32-bit integers, -1 for a 0; 0 if each entry has its own place. narrow: the
    function for `NARROW_LANES`, or 0. work: bytes of code that run for a vector of states.
    """

    code: LoadedCode
    address: int
    lanes: int
    results: int
    workspace: int
    cleared: int
    places: int
    narrow: int
    work: int

    @classmethod
    def of(cls, code: LoadedCode) -> Body:
        """Returns the body in the code of a kernel."""
        lanes, results, workspace, cleared, executed = (ctypes.c_int64 * 5).from_address(code.global_address(SIZES))
        places, narrow, work = code.global_address(PLACES), code.address(NARROW), INSTRUCTION_BYTES * executed
        body = code.address(BODY)
        return cls(code, body, lanes, results, workspace, cleared, places, narrow, work or code.size)

    def narrowed(self) -> Body:
        """Returns the body of `NARROW_LANES`, which this one must have."""
        return replace(self, address=self.narrow, lanes=NARROW_LANES, narrow=0)


def loop_of(signature: Signature, code: LoadedCode, places: Any = None) -> Loop:
    """Returns the loop of a kernel.

    Args:
        signature: The operands of the loop.
        code: The code of the kernel.
        places: For selected rows of the results, a ctypes buffer with the places of their entries.
    """
    body, owned = Body.of(code), [places]
    if places is not None:
        body = replace(body, places=ctypes.addressof(places))
    narrow = (0, 0)
    if body.narrow:
        function, driver = _function(NARROW_LANES)
        plan = _plan(signature, body.narrowed())
        narrow = (function, ctypes.addressof(plan))
        owned += [driver, plan]
    function, driver = _function(body.lanes)
    plan = _plan(signature, body, narrow)
    return Loop(function, plan, code, body.work, _is_on_heap(signature, body), (driver, *owned))


def _plan(signature: Signature, body: Body, narrow: tuple[int, int] = (0, 0)) -> Any:
    """Returns the plan of a kernel as a ctypes buffer. narrow: loop and plan for `NARROW_LANES` states, or zeros."""
    size = 8 * body.lanes
    inputs = size * total_size(signature.inputs)
    results, workspace = size * body.results, size * body.workspace
    operands = (*signature.inputs, *signature.outputs)
    words = [body.address, len(signature.inputs), len(operands), inputs, results, workspace]
    words += [results + size * body.cleared, _is_on_heap(signature, body), body.places]
    words += [ctypes.addressof(body.code.failures), -1, 0, 0, *narrow]
    stride = len(operands)
    for side in (signature.inputs, signature.outputs):
        first = 0
        for operand in side:
            words += _words(operand, first, stride)
            first += operand.size
            stride += len(operand.shape)
    return ctypes.create_string_buffer(struct.pack(f"={len(words)}q", *words))


def _is_on_heap(signature: Signature, body: Body) -> bool:
    """Whether the buffers of a call are on the heap."""
    numbers = total_size(signature.inputs) + 1 + body.results + body.workspace
    return 8 * body.lanes * numbers > MAX_STACK_BYTES


def filled(loop: Loop, operand: int, fills: Sequence[tuple[int, int]]) -> Loop:
    """Returns the loop with an operand that a function sets.

    Args:
        loop: The loop, which copies all operands.
        operand: The index of the operand.
        fills: The address of `fill`, and bytes of the memory that it gets, for W states and for `NARROW_LANES` states.
    """
    raw, (narrow_loop, narrow_plan) = loop.plan.raw, struct.unpack_from("=2q", loop.plan, 8 * _NARROW_LOOP)
    plans = [ctypes.create_string_buffer(raw)]
    if narrow_plan:
        plans.append(ctypes.create_string_buffer(ctypes.string_at(narrow_plan, len(raw))))
        struct.pack_into("=2q", plans[0], 8 * _NARROW_LOOP, narrow_loop, ctypes.addressof(plans[1]))
    allocates = False
    for plan, (function, size) in zip(plans, fills, strict=False):
        on_heap = struct.unpack_from("=q", plan, 8 * _ON_HEAP)[0] or size > 2 * MAX_STACK_BYTES
        struct.pack_into("=q", plan, 8 * _ON_HEAP, on_heap)
        struct.pack_into("=3q", plan, 8 * _FILLED, operand, function, size)
        allocates |= bool(on_heap)
    return replace(loop, plan=plans[0], allocates=allocates, owned=(loop.owned, loop, plans))


def _words(operand: Operand, first: int, stride: int) -> list[int]:
    """Returns the words of an operand. first: its first entry in a buffer. stride: the index of its first stride."""
    unused = (0,) * (MAX_AXES - len(operand.shape))
    strides = (8 * math.prod(operand.shape[axis + 1 :]) for axis in range(len(operand.shape)))
    rows, width = math.prod(operand.shape[:-1]), math.prod(operand.shape[-1:])
    return [len(operand.shape), rows, width, first, stride, *operand.shape, *unused, *strides, *unused]


@cache
def _function(lanes: int) -> tuple[int, LoadedCode]:
    """Returns the address of the loop for this number of lanes, loaded into this process, and its code."""
    code = shared_code(f"loop {lanes}", "kernels.loop", lambda: _emit(lanes))
    return code.address(_LOOP), code


_LOOP = "loop"


def _emit(lanes: int) -> str:
    """Returns the module with loop(args, dims, steps, plan)."""
    module = ir.Module(name=_LOOP)
    _LoopWriter(module, ir.VectorType(DOUBLE, lanes)).emit()
    return str(module)


class _LoopWriter:
    """Writes loop(args, dims, steps, plan).

    dims[0]: the number of states. steps: state strides of the operands, then their core strides.
    """

    def __init__(self, module: ir.Module, vector: ir.VectorType) -> None:
        self.module, self.vector, self.size = module, vector, 8 * vector.count
        self.gather, self.scatter = emit_gather(module, vector), emit_scatter(module, vector)
        self.scatter_by_places = emit_scatter(module, vector, by_places=True)
        self.function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4), _LOOP)
        self.function.attributes.add("nounwind")
        self.args, self.dims, self.steps, self.plan = self.function.args
        self.b = ir.IRBuilder(self.function.append_basic_block())

    def emit(self) -> None:
        b, plan = self.b, self.plan
        inputs, operands, places = word(b, plan, _INPUTS), word(b, plan, _OPERANDS), word(b, plan, _PLACES, POINTER)
        buffer_bytes = word(b, plan, _SOURCE_BYTES), word(b, plan, _TARGET_BYTES)
        memory, self.address, self.row_index = b.alloca(POINTER), b.alloca(POINTER), b.alloca(I64)
        count, narrow_plan = word(b, self.dims, 0), word(b, plan, _NARROW_PLAN, POINTER)
        is_narrow = b.icmp_unsigned("!=", narrow_plan, ir.Constant(POINTER, None))
        with b.if_then(b.and_(is_narrow, b.icmp_signed("<=", count, integer(NARROW_LANES)))):
            narrow_loop = word(b, plan, _NARROW_LOOP, self.function.function_type.as_pointer())
            b.call(narrow_loop, [self.args, self.dims, self.steps, narrow_plan])
            b.ret_void()
        self.copies = b.alloca(I64, size=b.mul(operands, integer(_COPY_WORDS)))
        source, target, workspace, workspace_bytes, on_heap = self._emit_buffers(memory, *buffer_bytes)
        filled_operand = word(b, plan, _FILLED)
        fill_memory = at(b, workspace, workspace_bytes)
        fill = word(b, plan, _FILL, ir.FunctionType(ir.VoidType(), [*[POINTER] * 3, I64, I64]).as_pointer())
        body = word(b, plan, _BODY, ir.FunctionType(ir.VoidType(), [POINTER] * 3).as_pointer())
        _emit_copies(b, plan, inputs, operands, self.args, self.steps, self.copies)

        def read(entry: Any, *arguments: Any) -> None:
            b.call(self.gather, [vector_address(b, source, self.vector, entry), *arguments])

        def write(entry: Any, *arguments: Any) -> None:
            has_no_places = b.icmp_unsigned("==", places, ir.Constant(POINTER, None))
            with b.if_else(has_no_places) as (all_stored, equal_stored_once):
                with all_stored:
                    b.call(self.scatter, [vector_address(b, target, self.vector, entry), *arguments])
                with equal_stored_once:
                    b.call(self.scatter_by_places, [target, *arguments, at(b, places, b.mul(entry, integer(4)))])

        lanes = self.vector.count
        with loop_over(b, count, step=lanes) as start:
            left = b.sub(count, start)
            states = b.select(b.icmp_signed("<", left, integer(lanes)), left, integer(lanes))
            with loop_over(b, inputs) as k:
                stride = word(b, at(b, self.copies, b.mul(k, integer(8 * _COPY_WORDS))), 1)
                # An input that is the same for all states is copied for the first block only.
                changes = b.or_(b.icmp_signed("!=", stride, integer(0)), b.icmp_signed("==", start, integer(0)))
                with b.if_then(b.and_(changes, b.icmp_signed("!=", k, filled_operand))):
                    self._emit_move(k, start, states, read)
            with b.if_then(b.icmp_signed(">=", filled_operand, integer(0))):
                b.call(fill, [source, word(b, self.args, filled_operand, POINTER), fill_memory, start, states])
            b.call(body, [source, target, workspace])
            with loop_over(b, operands, start=inputs) as k:
                self._emit_move(k, start, states, write)
        with b.if_then(on_heap):
            free = library_function(self.module, "free", ir.FunctionType(ir.VoidType(), [POINTER]))
            b.call(free, [b.load(memory, typ=POINTER)])
        b.ret_void()

    def _emit_buffers(self, memory: Any, source_bytes: Any, target_bytes: Any) -> tuple[Any, ...]:
        """Emits the allocation of the buffers of a block of states, on the stack or the heap.

        Returns `in`, `out`, `workspace`, the bytes of the workspace, and whether the memory is on the heap.
        """
        b, plan, size = self.b, self.plan, self.size
        # A vector of zeros precedes the results: the place -1.
        workspace_bytes = word(b, plan, _WORKSPACE_BYTES)
        total_bytes = b.add(b.add(b.add(source_bytes, target_bytes), workspace_bytes), integer(2 * size))
        total_bytes = b.add(total_bytes, word(b, plan, _FILL_BYTES))
        on_heap = b.icmp_signed("!=", word(b, plan, _ON_HEAP), integer(0))
        with b.if_else(on_heap) as (heap, stack):
            with heap:
                malloc = library_function(self.module, "malloc", ir.FunctionType(POINTER, [I64]))
                block = b.call(malloc, [total_bytes])
                b.store(block, memory)
                with b.if_then(b.icmp_unsigned("==", block, ir.Constant(POINTER, None)), likely=False):
                    _emit_failure(self.module, b, word(b, plan, _FAILURES, POINTER))
                    b.ret_void()
            with stack:
                b.store(b.alloca(ir.IntType(8), size=total_bytes), memory)
        begin = b.add(b.ptrtoint(b.load(memory, typ=POINTER), I64), integer(size - 1))
        source = b.inttoptr(b.and_(begin, integer(-size)), POINTER)
        target = at(b, source, b.add(source_bytes, integer(size)))
        workspace = at(b, target, target_bytes)
        # Bodies store no zeros, so what they leave is cleared once, for all blocks.
        with loop_over(b, word(b, plan, _CLEARED_BYTES), start=integer(-size), step=size) as offset:
            b.store(ir.Constant(self.vector, [0.0] * self.vector.count), at(b, target, offset), align=size)
        return source, target, workspace, workspace_bytes, on_heap

    def _emit_move(self, k: Any, start: Any, states: Any, mover: Callable[..., None]) -> None:
        """Emits the copying of operand k of a block of states, the first of which is `start`."""
        b = self.b
        copy = at(b, self.copies, b.mul(k, integer(8 * _COPY_WORDS)))
        base, stride, first, rows, width, entry_stride = (word(b, copy, n) for n in range(_COPY_WORDS))
        base = at(b, b.inttoptr(base, POINTER), b.mul(start, stride))
        with b.if_else(b.icmp_signed("==", rows, integer(1))) as (at_once, row_by_row):
            with at_once:
                mover(first, base, states, stride, width, entry_stride)
            with row_by_row, loop_over(b, rows) as row:
                offset = b.mul(k, integer(8 * _OPERAND_WORDS))
                words = at(b, self.plan, b.add(offset, integer(8 * _FIRST_OPERAND)))
                strides = at(b, self.steps, b.mul(word(b, words, _FIRST_STRIDE), integer(8)))
                outer = b.sub(word(b, words, _AXES), integer(1))
                b.store(base, self.address)
                b.store(row, self.row_index)
                with loop_over(b, outer) as n:
                    axis = b.sub(b.sub(outer, integer(1)), n)
                    length, index = word(b, words, b.add(axis, integer(_SHAPE))), b.load(self.row_index, typ=I64)
                    step = b.mul(b.urem(index, length), word(b, strides, axis))
                    b.store(at(b, b.load(self.address, typ=POINTER), step), self.address)
                    b.store(b.udiv(index, length), self.row_index)
                entry = b.add(first, b.mul(row, width))
                mover(entry, b.load(self.address, typ=POINTER), states, stride, width, entry_stride)


_COPY_WORDS = 6
"""Of an operand in one call: its address, bytes from state to state, its first entry in the buffer of inputs or
results, the number of rows to copy, the entries of a row, bytes from entry to entry. An operand whose entries have
equal distances is one row.
"""


def _emit_copies(b: ir.IRBuilder, plan: Any, inputs: Any, operands: Any, args: Any, steps: Any, copies: Any) -> None:
    """Emits the setting of `copies`, `_COPY_WORDS` for each operand."""
    even = b.alloca(I64)
    with loop_over(b, operands) as k:
        words = at(b, plan, b.add(b.mul(k, integer(8 * _OPERAND_WORDS)), integer(8 * _FIRST_OPERAND)))
        axes, rows, width, first = (word(b, words, n) for n in (_AXES, _ROWS, _WIDTH, _FIRST))
        strides = at(b, steps, b.mul(word(b, words, _FIRST_STRIDE), integer(8)))
        b.store(integer(1), even)
        last = word(b, strides, b.sub(axes, integer(1)))
        entry_stride = b.select(b.icmp_signed("==", axes, integer(0)), integer(8), last)
        with loop_over(b, axes) as axis:
            packed = word(b, words, b.add(axis, integer(_STRIDES)))
            alike = b.icmp_signed("==", b.mul(word(b, strides, axis), integer(8)), b.mul(packed, entry_stride))
            b.store(b.select(alike, b.load(even, typ=I64), integer(0)), even)
        at_once = b.icmp_signed("!=", b.load(even, typ=I64), integer(0))
        copy = [word(b, args, k), word(b, steps, k), first]
        copy += [b.select(at_once, integer(1), rows), b.select(at_once, b.mul(rows, width), width), entry_stride]
        place = at(b, copies, b.mul(k, integer(8 * _COPY_WORDS)))
        for n, number in enumerate(copy):
            b.store(number, at(b, place, integer(8 * n)))


def emit_gather(module: ir.Module, vector: ir.VectorType) -> ir.Function:
    """Adds gather(in, base, states, state_stride, entries, entry_stride): lane l is state min(l, states - 1).

    Full blocks of contiguous states are read as they are. Full blocks of contiguous entries are read W entries at a
    time, and transposed in registers.
    """
    function = internal(module, f"gather.{vector.count}", ir.VoidType(), *[POINTER] * 2, *[I64] * 4, inline=True)
    target, base, states, state_stride, entries, entry_stride = function.args
    b = ir.IRBuilder(function.append_basic_block())
    last = b.sub(states, integer(1))
    rows = []
    for lane in range(vector.count):
        # Idle lanes repeat the last state, a valid one, so that they raise no floating-point flag.
        state = b.select(b.icmp_signed("<", integer(lane), last), integer(lane), last)
        rows.append(at(b, base, b.mul(state, state_stride)))
    alike = b.icmp_signed("==", state_stride, integer(0))
    with b.if_then(b.or_(alike, b.icmp_signed("==", states, integer(1)))):
        with loop_over(b, entries) as entry:
            number = b.load(at(b, base, b.mul(entry, entry_stride)), align=1, typ=DOUBLE)
            cell = vector_address(b, target, vector, entry)
            b.store(splat(b, number, vector), cell, align=8 * vector.count)
        b.ret_void()
    with b.if_then(_is_by_columns(b, vector, states, state_stride)):
        with loop_over(b, entries) as entry:
            column = b.load(at(b, base, b.mul(entry, entry_stride)), align=1, typ=vector)
            b.store(column, vector_address(b, target, vector, entry), align=8 * vector.count)
        b.ret_void()
    transposed = _whole_tiles(b, vector, states, entries, entry_stride)
    with loop_over(b, transposed, step=vector.count) as entry:
        tile = [at(b, row, b.mul(entry, integer(8))) for row in rows]
        for k, column in enumerate(_transposed(b, vector, tile, align=1)):
            b.store(column, vector_address(b, target, vector, b.add(entry, integer(k))), align=8 * vector.count)
    with loop_over(b, entries, start=transposed) as entry:
        value = ir.Constant(vector, ir.Undefined)
        for lane, row in enumerate(rows):
            number = b.load(at(b, row, b.mul(entry, entry_stride)), align=1, typ=DOUBLE)
            value = b.insert_element(value, number, integer(lane))
        b.store(value, vector_address(b, target, vector, entry), align=8 * vector.count)
    b.ret_void()
    return function


def emit_scatter(module: ir.Module, vector: ir.VectorType, *, by_places: bool = False) -> ir.Function:
    """Adds scatter(out, base, states, state_stride, entries, entry_stride), which writes `states` lanes.

    by_places: The function has one more argument, the table of the places of the entries in `out`.
    """
    lanes = vector.count
    name = "scatter.places" if by_places else "scatter"
    function = internal(module, name, ir.VoidType(), *[POINTER] * 2, *[I64] * 4, *[POINTER] * by_places, inline=True)
    source, base, states, state_stride, entries, entry_stride, *table = function.args
    b = ir.IRBuilder(function.append_basic_block())
    clear = ir.Constant(vector, [0.0] * lanes)

    def place(entry: Any) -> Any:
        return b.sext(b.load(at(b, table[0], b.mul(entry, integer(4))), align=4, typ=I32), I64) if table else entry

    with b.if_then(_is_by_columns(b, vector, states, state_stride)):
        with loop_over(b, entries) as entry:
            column = b.load(vector_address(b, source, vector, place(entry)), align=8 * lanes, typ=vector)
            b.store(column, at(b, base, b.mul(entry, entry_stride)), align=1)
        b.ret_void()
    transposed = _whole_tiles(b, vector, states, entries, entry_stride)

    def write(rows: Sequence[Any], entry: Any) -> None:
        for lane, row in enumerate(rows):
            start = at(b, base, b.add(b.mul(integer(lane), state_stride), b.mul(entry, integer(8))))
            b.store(row, start, align=1)

    with loop_over(b, transposed, step=lanes) as entry:
        places = [place(b.add(entry, integer(k))) for k in range(lanes)]

        def write_tile() -> None:
            cells = [vector_address(b, source, vector, tile_place) for tile_place in places]
            write(_transposed(b, vector, cells, align=8 * lanes), entry)

        if table:
            common_bits = functools.reduce(b.and_, places)
            with b.if_else(b.icmp_signed("==", common_bits, integer(-1))) as (zeros, nonzeros):
                with zeros:
                    write([clear] * lanes, entry)
                with nonzeros:
                    write_tile()
        else:
            write_tile()
    with loop_over(b, states) as state:
        row = at(b, base, b.mul(state, state_stride))
        lane = at(b, source, b.mul(state, integer(8)))
        with loop_over(b, entries, start=transposed) as entry:
            number = b.load(vector_address(b, lane, vector, place(entry)), align=8, typ=DOUBLE)
            b.store(number, at(b, row, b.mul(entry, entry_stride)), align=1)
    b.ret_void()
    return function


def _is_by_columns(b: ir.IRBuilder, vector: ir.VectorType, states: Any, state_stride: Any) -> Any:
    """Returns whether a full block's states are contiguous: each entry is a vector in memory."""
    contiguous = b.icmp_signed("==", state_stride, integer(8))
    return b.and_(contiguous, b.icmp_signed("==", states, integer(vector.count)))


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


def _emit_failure(module: ir.Module, b: ir.IRBuilder, count: Any) -> None:
    """Emits the failure to get memory: increases the count of failures and sets a status flag of the processor, so that
    direct calls drop the results.
    """
    nan = ir.GlobalVariable(module, DOUBLE, "nan")
    nan.initializer, nan.linkage = ir.Constant(DOUBLE, 0.0), "internal"
    failures = b.add(b.load(count, typ=I64), integer(1))
    b.store(failures, count)
    number = b.sitofp(failures, DOUBLE)
    # Computed from the count, so that LLVM does not fold 0 / 0 into a constant, which sets no flag.
    zero = b.fsub(number, number)
    b.store(b.fdiv(zero, zero), nan)
