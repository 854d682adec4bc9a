"""Kernels called in turn, many times, in compiled code: the steps of a simulation and the law that controls it.

    for each record:
        for each of its steps:
            each kernel in turn, with outputs of others and of the last step as inputs
        copy the state

Each kernel runs its own machine code, so that the bits are those of single calls. The state alternates between two
buffers. Status flags of the processor are not read, so `numpy.errstate` has no effect.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from dyn_service.kernels import store
from dyn_service.kernels.emitting import DOUBLE, I64, POINTER, at, integer, loop_over
from dyn_service.kernels.jit import LoadedCode, compile_ir, host
from dyn_service.kernels.outside import LOOP, function
from dyn_service.kernels.signature import Signature
from dyn_service.kernels.store import provenance

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Loop:
    """The loop of a kernel: its machine code, and its name there."""

    code: LoadedCode
    entry: str
    signature: Signature


class Stage(NamedTuple):
    """One of the kernels that are called in turn.

    inputs: by name of an input, its values (steps, states, ...), with any strides, or the name of an output of an
    earlier kernel or of the state. outputs: by name of an output, the name under which later kernels read it; the names
    of the state for its next value.
    """

    loop: Loop
    inputs: Mapping[str, Array | str]
    outputs: Mapping[str, str]


def repeat(stages: Sequence[Stage], state: Mapping[str, Array], records: Mapping[str, Array], every: int) -> None:
    """Calls the kernels in turn and sets the records. Releases the GIL.

    Args:
        stages: The kernels, in the order of their calls.
        state: The first state, (states, n) each.
        records: By name of the state, (records, states, n), with any strides but contiguous entries.
        every: Number of steps between two records.
    """
    count, states = next(iter(records.values())).shape[:2]
    kept: list[object] = []

    def words(numbers: Sequence[int]) -> int:
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        kept.append(array)
        return ctypes.addressof(array)

    # Two values of each part of the state; a base moves from one to the other by base = sum - base.
    pairs = {name: np.stack([x, x]) for name, x in state.items()}
    buffers: dict[str, Array] = {}

    def place(x: Array | str, shape: tuple[int, ...], *, following: bool = False) -> tuple[Array, int, int]:
        """Returns an operand of the first step, and c and s of base = c + s base after each step."""
        if not isinstance(x, str):
            return x[0], x.strides[0], 1
        if x in pairs:
            here, other = (pair.ctypes.data for pair in pairs[x])
            return pairs[x][int(following)], here + other, -1
        if x not in buffers:
            buffers[x] = np.empty((states, *shape))
        return buffers[x], 0, 1

    def call(loop: int, dims: list[int], operands: list[tuple[Array, int, int]]) -> list[int]:
        """Returns the words of a call: `_CALL`."""
        arrays = [array for array, _, _ in operands]
        strides = [array.strides[0] for array in arrays] + [step for array in arrays for step in array.strides[1:]]
        bases = words([array.ctypes.data for array in arrays])
        moves = words([word for _, added, sign in operands for word in (added, sign)])
        return [loop, bases, words(dims), words(strides), moves, len(operands)]

    inner: list[int] = []
    for stage in stages:
        signature = stage.loop.signature
        operands = [place(stage.inputs[each.name], each.shape) for each in signature.inputs]
        operands += [place(stage.outputs[each.name], each.shape, following=True) for each in signature.outputs]
        inner += call(stage.loop.code.address(stage.loop.entry), [states], operands)
    code = _code()
    outer: list[int] = []
    for name, record in records.items():
        here, other = (pair.ctypes.data for pair in pairs[name])
        odd = every % 2
        source = (pairs[name][odd], here + other if odd else 0, -1 if odd else 1)
        target = (record[0], record.strides[0], 1)
        outer += call(code.address(_COPY), [states, record.shape[-1]], [source, target])
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64] * 3)(code.address(_REPEAT))
    run(words(inner), len(stages), words(outer), len(records), every, count)


_REPEAT, _COPY = "repeat", "copy"
_CALL = ("loop", "bases", "dims", "strides", "moves", "operands")
"""The words of a call: addresses, then the number of operands. moves: of each operand, c and s of base = c + s base."""


@cache
def _code() -> LoadedCode:
    """Returns the compiled functions, loaded into this process."""
    machine = host()
    key = store.key("repeated calls", provenance("kernels.repeated"), machine.triple, machine.cpu, machine.features)
    kept = store.load(key)
    if kept is None:
        kept = compile_ir(_emit())
        store.save(key, kept)
    return LoadedCode(kept)


def _emit() -> str:
    """Returns the LLVM module with `repeat(inner, calls, outer, calls, every, count)` and the loop `copy`."""
    module = ir.Module(name=_REPEAT)
    _emit_copy(module)
    turn = _emit_turn(module)
    repeat = ir.Function(module, function(ir.VoidType(), POINTER, I64, POINTER, I64, I64, I64), _REPEAT)
    inner, kernels, outer, copies, every, count = repeat.args
    b = ir.IRBuilder(repeat.append_basic_block())
    with loop_over(b, count):
        with loop_over(b, every):
            b.call(turn, [inner, kernels])
        b.call(turn, [outer, copies])
    b.ret_void()
    return str(module)


def _emit_turn(module: ir.Module) -> ir.Function:
    """Adds `turn(words, calls)`: each call once, then the move of its operands' bases."""
    turn = ir.Function(module, function(ir.VoidType(), POINTER, I64), "turn")
    turn.linkage = "internal"
    words, calls = turn.args
    b = ir.IRBuilder(turn.append_basic_block())
    with loop_over(b, calls) as n:
        own = at(b, words, b.mul(n, integer(8 * len(_CALL))))
        word = {name: b.load(at(b, own, integer(8 * k)), typ=POINTER) for k, name in enumerate(_CALL)}
        loop = b.load(own, typ=LOOP.as_pointer())
        b.call(loop, [word["bases"], word["dims"], word["strides"], ir.Constant(POINTER, None)])
        with loop_over(b, b.ptrtoint(word["operands"], I64)) as k:
            cell = at(b, word["bases"], b.mul(k, integer(8)))
            move = at(b, word["moves"], b.mul(k, integer(16)))
            added, sign = b.load(move, typ=I64), b.load(at(b, move, integer(8)), typ=I64)
            b.store(b.add(added, b.mul(sign, b.load(cell, typ=I64))), cell)
    b.ret_void()
    return turn


def _emit_copy(module: ir.Module) -> None:
    """Adds the loop `copy`: dims[0] rows of dims[1] numbers."""
    copy = ir.Function(module, LOOP, _COPY)
    bases, dims, strides, _ = copy.args
    b = ir.IRBuilder(copy.append_basic_block())
    rows, width = (b.load(at(b, dims, integer(8 * k)), typ=I64) for k in range(2))
    lanes = host().lanes
    vector = ir.VectorType(DOUBLE, lanes)
    whole = b.and_(width, integer(-lanes))
    ends = [
        (b.load(at(b, bases, integer(k)), typ=POINTER), b.load(at(b, strides, integer(k)), typ=I64)) for k in (0, 8)
    ]
    with loop_over(b, rows) as n:
        source, target = (at(b, base, b.mul(n, stride)) for base, stride in ends)
        with loop_over(b, whole, step=lanes) as k:
            offset = b.mul(k, integer(8))
            b.store(b.load(at(b, source, offset), align=8, typ=vector), at(b, target, offset), align=8)
        with loop_over(b, width, start=whole) as k:
            offset = b.mul(k, integer(8))
            b.store(b.load(at(b, source, offset), typ=DOUBLE), at(b, target, offset))
    b.ret_void()
