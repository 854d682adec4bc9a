"""Kernels called in turn, many times, in compiled code: the steps of a simulation and the law that controls it.

    for each tile of steps:
        copy the samples of these steps, step by step
        for each of its steps:
            each kernel in turn, with outputs of others and of the last step as inputs
        copy the states to the records

Each kernel runs its own machine code, so that the bits are those of single calls. A tile keeps what a step reads and
writes side by side: in the samples and records of a batch it is a row apart from member to member, which took as long
as the step itself. Status flags of the processor are not read, so `numpy.errstate` has no effect.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

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


TILE = 16
"""Records of each step that are copied together."""

_LEAST_TILE, _MOST_TILE = 4, 64
"""Numbers of steps of a tile for which samples are copied."""


def repeat(stages: Sequence[Stage], state: Mapping[str, Array], records: Mapping[str, Array], every: int) -> None:
    """Calls the kernels in turn and sets the records. Releases the GIL.

    Args:
        stages: The kernels, in the order of their calls.
        state: The first state, (states, n) each.
        records: By name of the state, (records, states, n), with any strides but contiguous entries.
        every: Number of steps between two records.
    """
    count = len(next(iter(records.values())))
    tile = TILE if every == 1 else 1
    whole = count // tile * tile
    for first, last, rows in ((0, whole, tile), (whole, count, count - whole)):
        if last > first:
            _tiles(
                [stage._replace(inputs=_from(stage.inputs, first * every)) for stage in stages],
                {name: records[name][first - 1] for name in state} if first else state,
                {name: x[first:last] for name, x in records.items()},
                every,
                rows,
            )


def _from(inputs: Mapping[str, Array | str], step: int) -> dict[str, Array | str]:
    return {name: x if isinstance(x, str) else x[step:] for name, x in inputs.items()}


def _tiles(
    stages: Sequence[Stage], state: Mapping[str, Array], records: Mapping[str, Array], every: int, rows: int
) -> None:
    """As `repeat`, for a multiple of `rows` records, which are those of a tile."""
    count, states = next(iter(records.values())).shape[:2]
    steps = rows * every
    code = _code()
    kept: list[object] = []

    def words(numbers: Sequence[int]) -> int:
        array = (ctypes.c_int64 * len(numbers))(*numbers)
        kept.append(array)
        return ctypes.addressof(array)

    # The states of a tile and the one before it; or two states that alternate, by base = sum - base.
    apart = every > 1
    slots = {name: np.empty((2 if apart else rows + 1, *x.shape)) for name, x in state.items()}
    for name, x in state.items():
        slots[name][0] = x
    buffers: dict[str, Array] = {}
    before: list[int] = []

    def place(x: Array | str, shape: tuple[int, ...], *, following: bool = False) -> _Operand:
        """Returns an operand of the first step."""
        if isinstance(x, str):
            if x in slots:
                here, step = slots[x].ctypes.data, slots[x].strides[0]
                move = (2 * here + step, -1, 0) if apart else (step, 1, -steps * step)
                return _Operand(slots[x][int(following)], *move)
            if x not in buffers:
                buffers[x] = np.empty((states, *shape))
            return _Operand(buffers[x])
        if x.strides[0] and x.strides[1] and states > 1 and _LEAST_TILE <= steps <= _MOST_TILE and _packed(x):
            copied = np.empty((steps, *x.shape[1:]))
            kept.append(copied)
            before.extend(copy(x, _Operand(x[0], steps * x.strides[0]), copied, _Operand(copied[0]), steps))
            return _Operand(copied[0], copied.strides[0], 1, -steps * copied.strides[0])
        return _Operand(x[0], x.strides[0])

    def call(loop: int, dims: list[int], operands: Sequence[_Operand]) -> list[int]:
        """Returns the words of a call: `_CALL`."""
        arrays = [each.array for each in operands]
        strides = [array.strides[0] for array in arrays] + [step for array in arrays for step in array.strides[1:]]
        bases = words([array.ctypes.data for array in arrays])
        moves = words([word for each in operands for word in (each.added, each.sign, each.back)])
        return [loop, bases, words(dims), words(strides), moves, len(operands)]

    def copy(source: Array, first: _Operand, target: Array, to: _Operand, rows: int) -> list[int]:
        """Returns the words of a copy of `rows` rows (states, ...) with contiguous entries."""
        width = int(np.prod(source.shape[2:]))
        found = call(code.address(_COPY), [states, rows, width], [first, to])
        found[3] = words([source.strides[1], target.strides[1], source.strides[0], target.strides[0]])
        return found

    inner: list[int] = []
    for stage in stages:
        signature = stage.loop.signature
        operands = [place(stage.inputs[each.name], each.shape) for each in signature.inputs]
        operands += [place(stage.outputs[each.name], each.shape, following=True) for each in signature.outputs]
        inner += call(stage.loop.code.address(stage.loop.entry), [states], operands)
    after: list[int] = []
    for name, record in records.items():
        slot = slots[name]
        to = _Operand(record[0], rows * record.strides[0])
        if apart:
            odd = every % 2
            source = _Operand(slot[odd], 2 * slot.ctypes.data + slot.strides[0] if odd else 0, -1 if odd else 1)
            after += copy(slot, source, record, to, 1)
        else:
            after += copy(slot, _Operand(slot[1]), record, to, rows)
            after += copy(slot, _Operand(slot[rows]), slot, _Operand(slot[0]), 1)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64] * 4)(code.address(_REPEAT))
    calls = [(words(each), len(each) // len(_CALL)) for each in (before, inner, after)]
    run(*(number for each in calls for number in each), steps, count // rows)


def _packed(x: Array) -> bool:
    """Whether the entries of a state are contiguous."""
    return x[0, 0].flags.c_contiguous


class _Operand(NamedTuple):
    """An operand of the first call; after each call, base = added + sign base; after a tile, base = base + back."""

    array: Array
    added: int = 0
    sign: int = 1
    back: int = 0


_REPEAT, _COPY = "repeat", "copy"
_CALL = ("loop", "bases", "dims", "strides", "moves", "operands")
"""The words of a call: addresses, then the number of operands. moves: `added`, `sign`, `back` of each operand."""


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
    """Returns the LLVM module with `repeat(before, calls, inner, calls, after, calls, steps, tiles)` and `copy`."""
    module = ir.Module(name=_REPEAT)
    _emit_copy(module)
    turn, back = (_emit_moves(module, name, called=name == "turn") for name in ("turn", "back"))
    repeat = ir.Function(module, function(ir.VoidType(), *[POINTER, I64] * 3, I64, I64), _REPEAT)
    *each, steps, tiles = repeat.args
    before, inner, after = zip(each[::2], each[1::2], strict=True)
    b = ir.IRBuilder(repeat.append_basic_block())
    with loop_over(b, tiles):
        b.call(turn, before)
        with loop_over(b, steps):
            b.call(turn, inner)
        b.call(back, inner)
        b.call(turn, after)
    b.ret_void()
    return str(module)


def _emit_moves(module: ir.Module, name: str, *, called: bool) -> ir.Function:
    """Adds `turn(words, calls)`: each call once, then the move of its operands' bases; or `back`, without the calls."""
    turn = ir.Function(module, function(ir.VoidType(), POINTER, I64), name)
    turn.linkage = "internal"
    words, calls = turn.args
    b = ir.IRBuilder(turn.append_basic_block())
    with loop_over(b, calls) as n:
        own = at(b, words, b.mul(n, integer(8 * len(_CALL))))
        word = {each: b.load(at(b, own, integer(8 * k)), typ=POINTER) for k, each in enumerate(_CALL)}
        if called:
            loop = b.load(own, typ=LOOP.as_pointer())
            b.call(loop, [word["bases"], word["dims"], word["strides"], ir.Constant(POINTER, None)])
        with loop_over(b, b.ptrtoint(word["operands"], I64)) as k:
            cell = at(b, word["bases"], b.mul(k, integer(8)))
            move = at(b, word["moves"], b.mul(k, integer(24)))
            added, sign, back = (b.load(at(b, move, integer(8 * m)), typ=I64) for m in range(3))
            base = b.load(cell, typ=I64)
            b.store(b.add(added, b.mul(sign, base)) if called else b.add(base, back), cell)
    b.ret_void()
    return turn


def _emit_copy(module: ir.Module) -> None:
    """Adds the loop `copy`: of dims[0] members dims[1] rows of dims[2] numbers."""
    copy = ir.Function(module, LOOP, _COPY)
    bases, dims, strides, _ = copy.args
    b = ir.IRBuilder(copy.append_basic_block())

    def entry(table: Any, kind: Any, k: int) -> Any:
        return b.load(at(b, table, integer(8 * k)), typ=kind)

    members, rows, width = (entry(dims, I64, k) for k in range(3))
    lanes = host().lanes
    vector = ir.VectorType(DOUBLE, lanes)
    whole = b.and_(width, integer(-lanes))
    bases_of = [entry(bases, POINTER, k) for k in range(2)]
    to_member, to_row = ([entry(strides, I64, k) for k in pair] for pair in ((0, 1), (2, 3)))
    with loop_over(b, members) as member:
        of_member = [at(b, base, b.mul(member, step)) for base, step in zip(bases_of, to_member, strict=True)]
        with loop_over(b, rows) as row:
            source, target = (at(b, base, b.mul(row, step)) for base, step in zip(of_member, to_row, strict=True))
            with loop_over(b, whole, step=lanes) as k:
                offset = b.mul(k, integer(8))
                b.store(b.load(at(b, source, offset), align=8, typ=vector), at(b, target, offset), align=8)
            with loop_over(b, width, start=whole) as k:
                offset = b.mul(k, integer(8))
                b.store(b.load(at(b, source, offset), typ=DOUBLE), at(b, target, offset))
    b.ret_void()
