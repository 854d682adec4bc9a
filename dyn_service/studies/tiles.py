"""Compiled loops over the states of a tile: points of Sobol's sequence, reductions, histograms.

They run beside the kernels without the interpreter's lock and read each number once. `LANES` states at a time are one
row of vectors, on every processor and without fused products, so sums have the same bits everywhere.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.api.arrays import Array
from dyn_service.kernels.jit import LoadedCode, shared_code
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over, splat, word

LANES = 8
"""States of one row of vectors."""


_LOADING = threading.Lock()


def code() -> dict[str, Callable[..., None]]:
    """Returns the compiled functions; the first call compiles them or loads them from the store of kernels."""
    with _LOADING:  # code that another thread loads as well would be freed
        return _loaded()[0]


@cache
def _loaded() -> tuple[dict[str, Callable[..., None]], LoadedCode]:
    loaded = shared_code("loops over tiles", "studies.tiles", _emit)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    arguments = {
        "reduce": (pointer, number, number, pointer),
        "points": (pointer, number, number, number, pointer, pointer, pointer, pointer),
        "count": (pointer, number, number, number, pointer, pointer, pointer),
    }
    return {name: ctypes.CFUNCTYPE(None, *of)(loaded.address(name)) for name, of in arguments.items()}, loaded


def _aligned(x: Any) -> Any:
    """Returns a contiguous copy whose rows of vectors do not cross cache lines."""
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@cache
def _start(entries: int) -> Any:
    """Returns the numbers (5, LANES, entries) with which a reduction begins."""
    lanes = np.zeros((5, LANES, entries))
    lanes[0], lanes[1] = np.inf, -np.inf
    return lanes


def reduced(x: Array) -> Array:
    """Returns (5, entries): smallest, largest, sum, sum of squares and of |x|^3 of the rows of (states, entries).

    A number that is not finite makes the sum NaN or infinite; the smallest and the largest are then undefined.
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    states, entries = x.shape
    lanes = _start(entries).copy()
    if last := states % LANES:
        rest = x[-last:]
        with np.errstate(over="ignore"):
            lanes[:, :last] = rest, rest, rest, rest * rest, np.abs(rest * rest * rest)
    code()["reduce"](x.ctypes.data, states // LANES, entries, lanes.ctypes.data)
    found: Array = lanes[:, 0]
    return found


def points(table: Any, directions: Any, scale: Array, low: Array) -> Callable[[int, int, Array], None]:
    """Returns a function (first, bits, out) that sets out (rows, entries) to (integer + 0.5) 2^-32 scale + low.

    The integers are those of `table`, from row `first` on, exclusive or the directions whose bits are set and the last
    one. The number of rows must be a multiple of `LANES`.

    Args:
        table: (rows, entries) 32-bit integers.
        directions: (33, LANES entries) 32-bit integers, the same for each state, as are the next ones.
        scale: (LANES entries,).
        low: (LANES entries,).
    """
    arrays = [*map(_aligned, (table, directions, scale, low))]
    first_row, *others = (x.ctypes.data for x in arrays)
    entries, run = table.shape[1], code()["points"]

    def draw(first: int, bits: int, out: Array) -> None:
        assert arrays  # whose addresses these are
        run(first_row + 4 * entries * first, len(out) // LANES, entries, bits, *others, out.ctypes.data)

    return draw


def count(x: Array, first: Array, scale: Array, counts: Any) -> None:
    """Counts the rows of finite x (states, entries) in counts (entries, bins + 2) at place 1 + (x - first) scale.

    Smaller numbers are counted at place 0, larger ones at the last place.
    """
    x = np.ascontiguousarray(x, dtype=np.float64)
    sizes = (*x.shape, counts.shape[1] - 2)
    code()["count"](x.ctypes.data, *sizes, first.ctypes.data, scale.ctypes.data, counts.ctypes.data)


def _emit() -> str:
    module = ir.Module(name="tiles")
    _emit_reduce(module)
    _emit_points(module)
    _emit_count(module)
    return str(module)


def _function(module: ir.Module, name: str, *takes: Any) -> tuple[ir.IRBuilder, list[Any]]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), takes), name)
    function.attributes.add("nounwind")
    return ir.IRBuilder(function.append_basic_block()), list(function.args)


def _emit_reduce(module: ir.Module) -> None:
    """reduce(x, blocks, entries, lanes): lanes (5, LANES, entries) is set before; the result is its lane 0."""
    vector = ir.VectorType(DOUBLE, LANES)
    b, (x, blocks, entries, lanes) = _function(module, "reduce", POINTER, I64, I64, POINTER)
    magnitude = ir.Function(module, ir.FunctionType(vector, [vector]), f"llvm.fabs.v{LANES}f64")
    lane = b.mul(entries, integer(8))
    row = b.mul(lane, integer(LANES))
    kept = [b.alloca(vector) for _ in range(5)]  # in registers

    def place(number: int, byte: Any) -> Any:
        return at(b, lanes, b.add(b.mul(row, integer(number)), byte))

    def combined(number: int, one: Any, value: Any) -> Any:
        return b.select(b.fcmp_ordered("<>"[number], value, one), value, one) if number < 2 else b.fadd(one, value)

    with loop_over(b, row, step=8 * LANES) as byte:
        for number, of in enumerate(kept):
            b.store(b.load(place(number, byte), align=8, typ=vector), of)
        with loop_over(b, blocks) as block:
            value = b.load(at(b, x, b.add(b.mul(block, row), byte)), align=8, typ=vector)
            square = b.fmul(value, value)
            cube = b.call(magnitude, [b.fmul(square, value)])
            for number, (of, term) in enumerate(zip(kept, (value, value, value, square, cube), strict=True)):
                b.store(combined(number, b.load(of, typ=vector), term), of)
        for number, of in enumerate(kept):
            b.store(b.load(of, typ=vector), place(number, byte), align=8)
    with loop_over(b, row, start=lane, step=8) as byte:
        first = b.urem(byte, lane)
        for number in range(5):
            value = combined(number, b.load(place(number, first), typ=DOUBLE), b.load(place(number, byte), typ=DOUBLE))
            b.store(value, place(number, first))
    b.ret_void()


def _emit_points(module: ir.Module) -> None:
    """points(table, blocks, entries, bits, directions, scale, low, out): see `points`."""
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
            chosen = b.trunc(b.sub(integer(0), b.and_(b.lshr(bits, bit), integer(1))), I32)
            term = b.and_(integers_at(directions, bit), splat(b, chosen, integers))
            b.store(b.xor(b.load(high, typ=integers), term), high)
        with loop_over(b, blocks) as block:
            value = b.uitofp(b.xor(integers_at(table, block), b.load(high, typ=integers)), vector)
            value = b.fmul(b.fmul(b.fadd(value, half), unit), times)
            place = at(b, out, b.add(b.mul(b.mul(block, row), integer(8)), doubles))
            b.store(b.fadd(value, plus), place, align=8)
    b.ret_void()


def _emit_count(module: ir.Module) -> None:
    """count(x, states, entries, bins, first, scale, counts): see the function of this name."""
    takes = (POINTER, I64, I64, I64, POINTER, POINTER, POINTER)
    b, (x, states, entries, bins, first, scale, counts) = _function(module, "count", *takes)
    last, below = b.sitofp(bins, DOUBLE), ir.Constant(DOUBLE, -1.0)
    with loop_over(b, states) as state:
        row = at(b, x, b.mul(state, b.mul(entries, integer(8))))
        with loop_over(b, entries) as k:
            y = b.fmul(b.fsub(word(b, row, k, DOUBLE), word(b, first, k, DOUBLE)), word(b, scale, k, DOUBLE))
            y = b.select(b.fcmp_ordered("<", y, last), y, last)
            y = b.select(b.fcmp_ordered(">", y, below), y, below)
            inside = b.add(b.fptosi(y, I64), integer(1))
            index = b.select(b.fcmp_ordered(">=", y, ir.Constant(DOUBLE, 0.0)), inside, integer(0))
            index = b.add(index, b.mul(k, b.add(bins, integer(2))))
            place = at(b, counts, b.mul(index, integer(8)))
            b.store(b.add(b.load(place, typ=I64), integer(1)), place)
    b.ret_void()
