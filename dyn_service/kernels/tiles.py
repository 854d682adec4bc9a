"""Compiled loops over the states of a tile: points of Sobol's sequence, reductions, histograms.

They run without the interpreter's lock, as kernels do, and read each number once. On every processor, `LANES` states at
a time are one row of vectors, and no products are fused, so sums have the same bits everywhere.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from dyn_service.kernels.jit import LoadedCode, Loop, shared_code
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over, splat, word
from dyn_service.kernels.signature import Signature

Array = NDArray[np.float64]

LANES = 8
"""States of one row of vectors."""

TILE = 4096
"""States of one call of a kernel, and rows of a table of points."""

STEP = 1024
"""States that a `Sweep` draws, computes and reduces in turn, in the nearest cache."""


_LOADING = threading.Lock()


def code() -> dict[str, Callable[..., None]]:
    """Returns the compiled functions; the first call compiles them or loads them from the store of kernels."""
    # Of two threads that load the code, the code of the first would be freed while it runs.
    with _LOADING:
        return _loaded()[0]


@cache
def _loaded() -> tuple[dict[str, Callable[..., None]], LoadedCode]:
    loaded = shared_code("loops over tiles", "kernels.tiles", _emit)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    arguments = {
        "reduce": (pointer, number, number, pointer, number),
        "combine": (number, pointer),
        "sweep": (number, number, pointer),
        "points": (pointer, number, number, number, pointer, pointer, pointer, pointer),
        "count": (pointer, number, number, number, pointer, pointer, pointer),
    }
    return {name: ctypes.CFUNCTYPE(None, *types)(loaded.address(name)) for name, types in arguments.items()}, loaded


def _aligned(x: Any) -> Any:
    """Returns a contiguous copy whose rows of vectors do not cross cache lines."""
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@cache
def _start(entries: int) -> Any:
    """Returns the numbers (7, LANES, entries) with which a reduction begins."""
    lanes = np.zeros((7, LANES, entries))
    lanes[0], lanes[1] = np.inf, -np.inf
    return lanes


def reduced(x: Array) -> Array:
    """Returns seven numbers of each entry of (states, entries), (7, entries).

    Smallest, largest, sum, sum of squares, sum of |x|^3, and the first states of the smallest and of the largest. A
    number that is not finite makes the sum NaN or infinite; smallest and largest are then undefined.
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    states, entries = x.shape
    lanes = _start(entries).copy()
    code()["reduce"](x.ctypes.data, states // LANES, entries, lanes.ctypes.data, 0)
    code()["combine"](entries, lanes.ctypes.data)
    numbers: Array = lanes[:, 0]
    if last := states % LANES:
        tail = x[-last:]
        for row, sign in ((0, 1.0), (1, -1.0)):
            best = (sign * tail).min(axis=0)
            numbers[row + 5] = np.where(better := best < sign * numbers[row], states - last, numbers[row + 5])
            numbers[row + 5] += np.where(better, (sign * tail).argmin(axis=0), 0)
            numbers[row] = np.where(better, sign * best, numbers[row])
        with np.errstate(over="ignore"):
            numbers[2:5] += [x.sum(axis=0) for x in (tail, tail * tail, np.abs(tail * tail * tail))]
    return numbers


class Points:
    """Points of Sobol's sequence: (integer + 0.5) 2^-32 scale + low.

    The integers are rows of `table`, exclusive or the directions whose bits are set, exclusive or the last direction.

    Args:
        table: (rows, entries) 32-bit integers.
        directions: (33, LANES entries) 32-bit integers: 32 directions and a last one, repeated for `LANES` states.
        scale: (LANES entries,), repeated likewise.
        low: (LANES entries,), repeated likewise.
    """

    def __init__(self, table: Any, directions: Any, scale: Array, low: Array) -> None:
        self._arrays = [*map(_aligned, (table, directions, scale, low))]
        self.entries = table.shape[1]
        self.addresses = [x.ctypes.data for x in self._arrays]

    def __call__(self, first: int, bits: int, out: Array) -> None:
        """Sets `out`, (rows, entries), from row `first` of the table on; rows: a multiple of `LANES`."""
        table, *points_arguments = self.addresses
        table += 4 * self.entries * first
        code()["points"](table, len(out) // LANES, self.entries, bits, *points_arguments, out.ctypes.data)


class Sweep:
    """A kernel on drawn and other inputs, whose only output is reduced at once. Used by one thread.

    Args:
        loop: The loop of the kernel.
        signature: Its operands.
        points: By the index of an input, its points.
    """

    def __init__(self, loop: Loop, signature: Signature, points: Mapping[int, Points]) -> None:
        operands = (*signature.inputs, *signature.outputs)
        self._arrays = dict[int, Any]()
        for k in (*points, len(operands) - 1):
            self._arrays[k] = _aligned(np.zeros((STEP, operands[k].size)))
        count, entries = len(operands), operands[-1].size
        self._args, self._advance, self._bases = np.zeros((3, count), np.int64)
        cores = [8 * math.prod(operand.shape[k + 1 :]) for operand in operands for k in range(len(operand.shape))]
        self._dims, self._steps = np.zeros(1, np.int64), np.array([0] * count + cores)
        for k, x in self._arrays.items():
            self._bases[k], self._steps[k] = x.ctypes.data, x.strides[0]
        point_rows = [[*point_set.addresses, int(self._bases[k]), point_set.entries] for k, point_set in points.items()]
        self._draws = np.array(point_rows, np.int64).reshape(-1, 6)
        self._lanes, self._first = _aligned(_start(entries)), _start(entries)
        tables = (self._args, self._advance, self._bases, self._dims, self._steps, self._arrays[count - 1], self._lanes)
        plan = [loop.address, ctypes.addressof(loop.plan), count, len(points), entries, self._draws.ctypes.data]
        self._plan, self._owner = np.array([*plan, *(x.ctypes.data for x in tables)]), (loop, points)
        self._run, self._combine, self._entries = code()["sweep"], code()["combine"], entries
        self._pointers = self._plan.ctypes.data, self._lanes.ctypes.data

    def set(self, k: int, x: Array, core: int) -> None:
        """Sets an input that is not drawn: the same for all states, or one for each. core: the number of its axes."""
        x = np.ascontiguousarray(x, dtype=np.float64)
        self._arrays[k], self._bases[k] = x, x.ctypes.data
        self._advance[k] = self._steps[k] = x.strides[0] if x.ndim > core else 0

    def __call__(self, states: int, index: int) -> Array:
        """Returns `reduced` of the output. states: a multiple of `LANES`. index: of the first, a multiple of `STEP`."""
        self._lanes[...] = self._first
        self._run(states, index, self._pointers[0])
        self._combine(self._entries, self._pointers[1])
        numbers: Array = self._lanes[:, 0]
        return numbers


def count(x: Array, first: Array, scale: Array, counts: Any) -> None:
    """Adds finite x, (states, entries), to histograms: counts, (entries, bins + 2), at place 1 + (x - first) scale.

    Numbers below the first bin are counted at place 0, those above the last bin at the last place.
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    sizes = (*x.shape, counts.shape[1] - 2)
    code()["count"](x.ctypes.data, *sizes, first.ctypes.data, scale.ctypes.data, counts.ctypes.data)


def _emit() -> str:
    module = ir.Module(name="tiles")
    reduce, draw = _emit_reduce(module), _emit_points(module)
    _emit_combine(module)
    _emit_count(module)
    _emit_sweep(module, reduce, draw)
    return str(module)


def _function(module: ir.Module, name: str, *takes: Any) -> tuple[ir.IRBuilder, list[Any]]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), takes), name)
    function.attributes.add("nounwind")
    return ir.IRBuilder(function.append_basic_block()), list(function.args)


def _emit_reduce(module: ir.Module) -> ir.Function:
    """reduce(x, blocks, entries, lanes, base): adds rows to lanes (7, LANES, entries); base: blocks before them."""
    # The same order of sums on every processor: eight lanes whatever the width of its registers.
    vector = ir.VectorType(DOUBLE, LANES)
    b, (x, blocks, entries, lanes, base) = _function(module, "reduce", POINTER, I64, I64, POINTER, I64)
    magnitude = ir.Function(module, ir.FunctionType(vector, [vector]), f"llvm.fabs.v{LANES}f64")
    row = b.mul(entries, integer(8 * LANES))
    accumulators = [b.alloca(vector) for _ in range(7)]  # in registers
    with loop_over(b, row, step=8 * LANES) as byte:
        places = [at(b, lanes, b.add(b.mul(row, integer(number)), byte)) for number in range(7)]
        for place, accumulator in zip(places, accumulators, strict=True):
            b.store(b.load(place, align=8, typ=vector), accumulator)
        with loop_over(b, blocks) as block:
            value = b.load(at(b, x, b.add(b.mul(block, row), byte)), align=8, typ=vector)
            number = splat(b, b.sitofp(b.add(base, block), DOUBLE), vector)
            for end, accumulator in enumerate(accumulators[:2]):
                better = b.fcmp_ordered("<>"[end], value, b.load(accumulator, typ=vector))
                b.store(b.select(better, value, b.load(accumulator, typ=vector)), accumulator)
                b.store(b.select(better, number, b.load(accumulators[5 + end], typ=vector)), accumulators[5 + end])
            square = b.fmul(value, value)
            cube = b.call(magnitude, [b.fmul(square, value)])
            for accumulator, term in zip(accumulators[2:5], (value, square, cube), strict=True):
                b.store(b.fadd(b.load(accumulator, typ=vector), term), accumulator)
        for place, accumulator in zip(places, accumulators, strict=True):
            b.store(b.load(accumulator, typ=vector), place, align=8)
    b.ret_void()
    return b.function


def _emit_combine(module: ir.Module) -> None:
    """combine(entries, lanes): reduces all lanes to lane 0; numbers of blocks become numbers of states."""
    b, (entries, lanes) = _function(module, "combine", I64, POINTER)
    count = b.mul(entries, integer(LANES))

    def place(number: int, k: Any) -> Any:
        return at(b, lanes, b.mul(b.add(b.mul(count, integer(number)), k), integer(8)))

    def value(number: int, k: Any) -> Any:
        return b.load(place(number, k), typ=DOUBLE)

    with loop_over(b, count) as k:
        lane = b.sitofp(b.udiv(k, entries), DOUBLE)
        for number in (5, 6):
            b.store(b.fadd(b.fmul(value(number, k), ir.Constant(DOUBLE, LANES)), lane), place(number, k))
    with loop_over(b, count, start=entries) as k:
        first = b.urem(k, entries)
        for end in range(2):
            new, old, state, old_state = value(end, k), value(end, first), value(5 + end, k), value(5 + end, first)
            same = b.and_(b.fcmp_ordered("==", new, old), b.fcmp_ordered("<", state, old_state))
            better = b.or_(b.fcmp_ordered("<>"[end], new, old), same)
            b.store(b.select(better, new, old), place(end, first))
            b.store(b.select(better, state, old_state), place(5 + end, first))
        for number in (2, 3, 4):
            b.store(b.fadd(value(number, first), value(number, k)), place(number, first))
    b.ret_void()


def _emit_sweep(module: ir.Module, reduce: ir.Function, draw: ir.Function) -> None:
    """sweep(states, index, plan): see `Sweep`; index is a multiple of STEP."""
    b, (states, index, plan) = _function(module, "sweep", I64, I64, POINTER)
    loop = word(b, plan, 0, ir.FunctionType(ir.VoidType(), [POINTER] * 4).as_pointer())
    operands, point_sets, entries = (word(b, plan, k) for k in (2, 3, 4))
    of_loop, draws, args, advance, bases, dims, steps, x, lanes = (
        word(b, plan, k, POINTER) for k in (1, *range(5, 13))
    )
    with loop_over(b, states, step=STEP) as first:
        left = b.sub(states, first)
        count = b.select(b.icmp_signed("<", left, integer(STEP)), left, integer(STEP))
        blocks = b.udiv(count, integer(LANES))
        point = b.add(index, first)
        tile, row = (b.and_(point, integer(mask)) for mask in (-TILE, TILE - 1))
        gray = b.xor(tile, b.lshr(tile, integer(1)))
        with loop_over(b, point_sets) as k:
            words = at(b, draws, b.mul(k, integer(48)))
            width = word(b, words, 5)
            table = at(b, word(b, words, 0, POINTER), b.mul(b.mul(row, width), integer(4)))
            b.call(draw, [table, blocks, width, gray, *(word(b, words, n, POINTER) for n in range(1, 5))])
        with loop_over(b, operands) as k:
            address = b.add(word(b, bases, k), b.mul(first, word(b, advance, k)))
            b.store(address, at(b, args, b.mul(k, integer(8))))
        b.store(count, dims)
        b.call(loop, [args, dims, steps, of_loop])
        b.call(reduce, [x, blocks, entries, lanes, b.udiv(first, integer(LANES))])
    b.ret_void()


def _emit_points(module: ir.Module) -> ir.Function:
    """points(table, blocks, entries, bits, directions, scale, low, out): see `Points`."""
    vector, integers = ir.VectorType(DOUBLE, LANES), ir.VectorType(I32, LANES)
    takes = (POINTER, I64, I64, I64, POINTER, POINTER, POINTER, POINTER)
    b, (table, blocks, entries, bits, directions, scale, low, out) = _function(module, "points", *takes)
    row = b.mul(entries, integer(LANES))
    half, unit = (splat(b, ir.Constant(DOUBLE, x), vector) for x in (0.5, 2.0**-32))
    high = b.alloca(integers)  # in a register
    with loop_over(b, row, step=LANES) as k:
        doubles = b.mul(k, integer(8))
        times = b.load(at(b, scale, doubles), align=8, typ=vector)
        plus = b.load(at(b, low, doubles), align=8, typ=vector)

        def integers_at(table: Any, number: Any, k: Any = k) -> Any:
            return b.load(at(b, table, b.mul(b.add(b.mul(number, row), k), integer(4))), align=4, typ=integers)

        b.store(integers_at(directions, integer(32)), high)
        with loop_over(b, integer(32)) as bit:
            mask = b.trunc(b.sub(integer(0), b.and_(b.lshr(bits, bit), integer(1))), I32)
            term = b.and_(integers_at(directions, bit), splat(b, mask, integers))
            b.store(b.xor(b.load(high, typ=integers), term), high)
        with loop_over(b, blocks) as block:
            value = b.uitofp(b.xor(integers_at(table, block), b.load(high, typ=integers)), vector)
            value = b.fmul(b.fmul(b.fadd(value, half), unit), times)
            place = at(b, out, b.add(b.mul(b.mul(block, row), integer(8)), doubles))
            b.store(b.fadd(value, plus), place, align=8)
    b.ret_void()
    return b.function


def _emit_count(module: ir.Module) -> None:
    """count(x, states, entries, bins, first, scale, counts): see the function of this name."""
    takes = (POINTER, I64, I64, I64, POINTER, POINTER, POINTER)
    b, (x, states, entries, bins, first, scale, counts) = _function(module, "count", *takes)
    last, underflow = b.sitofp(bins, DOUBLE), ir.Constant(DOUBLE, -1.0)
    with loop_over(b, states) as state:
        row = at(b, x, b.mul(state, b.mul(entries, integer(8))))
        with loop_over(b, entries) as k:
            y = b.fmul(b.fsub(word(b, row, k, DOUBLE), word(b, first, k, DOUBLE)), word(b, scale, k, DOUBLE))
            y = b.select(b.fcmp_ordered("<", y, last), y, last)
            y = b.select(b.fcmp_ordered(">", y, underflow), y, underflow)
            bin_index = b.add(b.fptosi(y, I64), integer(1))
            index = b.select(b.fcmp_ordered(">=", y, ir.Constant(DOUBLE, 0.0)), bin_index, integer(0))
            index = b.add(index, b.mul(k, b.add(bins, integer(2))))
            place = at(b, counts, b.mul(index, integer(8)))
            b.store(b.add(b.load(place, typ=I64), integer(1)), place)
    b.ret_void()
