"""Rotates vectors to other axes: the vectors of rows, each by the rotation of its link, or single ones. Moves torques.

`rotated` and `moved` are the only places with the products and sums of a rotation and of a lever arm, so that wrenches
and results have the same bits alone, in a batch and in compiled code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.api.results import Array
from dyn_service.kernels.jit import LoadedCode, Loop, gufunc, shared_code
from dyn_service.kernels.llvm_ir import DOUBLE, POINTER, at, integer, loop_over, word

_TURN, _MOVE = "turn", "move"


def rotation_ufunc(links: Sequence[int]) -> np.ufunc:
    """Returns the gufunc (x, R) -> R x: x (..., rows, 3 k) has k vectors in each row, R (..., links, 3, 3).

    links: The index of the rotation of each row.
    """
    code = _code()
    table = (ctypes.c_int64 * len(links))(*links)
    loop = Loop(code.address(_TURN), table, code, code.size, allocates=False, owned=())
    return gufunc(_TURN, "(r,c),(l,3,3)->(r,c)", 2, 1, loop)


def turn(R: Array, x: Array) -> Array:
    """Returns R x over leading axes: R (..., 3, 3), x (..., 3)."""
    Rx: Array = _single()(x[..., None, :], R[..., None, :, :])
    return Rx[..., 0, :]


def move(torque: Array, p: Array, force: Array) -> Array:
    """Returns torque + p x force over leading axes: all (..., 3)."""
    moved_torque: Array = _lever_arm()(torque, p, force)
    return moved_torque


@cache
def _lever_arm() -> np.ufunc:
    """Returns the gufunc of `move`."""
    code = _code()
    loop = Loop(code.address(_MOVE), (ctypes.c_int64 * 0)(), code, code.size, allocates=False, owned=())
    return gufunc(_MOVE, "(3),(3),(3)->(3)", 3, 1, loop)


@cache
def _single() -> np.ufunc:
    """Returns the gufunc for one row and one rotation."""
    return rotation_ufunc([0])


def rotated(b: ir.IRBuilder, R: Sequence[Sequence[Any]], x: Sequence[Any]) -> list[Any]:
    """Emits R x, for numbers or vectors of states; without fused products, whose rounding NumPy cannot repeat."""
    products = [[b.fmul(r, entry) for r, entry in zip(row, x, strict=True)] for row in R]
    return [b.fadd(b.fadd(first, second), third) for first, second, third in products]


def moved(b: ir.IRBuilder, torque: Sequence[Any], p: Sequence[Any], force: Sequence[Any]) -> list[Any]:
    """Emits torque + p x force, for numbers or vectors of states; the products as in `rotated`."""
    crossed = [b.fsub(b.fmul(p[j], force[k]), b.fmul(p[k], force[j])) for j, k in ((1, 2), (2, 0), (0, 1))]
    return [b.fadd(entry, moment) for entry, moment in zip(torque, crossed, strict=True)]


@cache
def _code() -> LoadedCode:
    return shared_code(_TURN, "kernels.row_rotation", _emit)


def _emit() -> str:
    """Returns the module with turn(args, dims, steps, links) and move(args, dims, steps, plan), loops for NumPy."""
    module = ir.Module(name=_TURN)
    _emit_turn(module)
    _emit_move(module)
    return str(module)


def _loop(module: ir.Module, name: str) -> tuple[ir.IRBuilder, Sequence[Any]]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4), name)
    return ir.IRBuilder(function.append_basic_block()), function.args


def _offset(b: ir.IRBuilder, base: Any, *products: tuple[Any, Any]) -> Any:
    """Returns the address `base` plus these products of an index and a stride."""
    for index, stride in products:
        base = at(b, base, b.mul(index, stride))
    return base


def _emit_turn(module: ir.Module) -> None:
    """Emits `turn`.

    dims: states, rows, entries of a row, links. steps: from state to state of x, R and the result, then the core
    strides of x (2), R (3) and the result (2).
    """
    b, (args, dims, steps, links) = _loop(module, _TURN)
    states, rows, entries = (word(b, dims, k) for k in range(3))
    bases = [word(b, args, k, POINTER) for k in range(3)]
    strides = [word(b, steps, k) for k in range(10)]
    x_row, x_entry, R_link, R_row, R_column, y_row, y_entry = strides[3:]
    with loop_over(b, states) as state, loop_over(b, rows) as row:
        x, R, y = (_offset(b, base, (state, stride)) for base, stride in zip(bases, strides, strict=False))
        x, y = _offset(b, x, (row, x_row)), _offset(b, y, (row, y_row))
        R = _offset(b, R, (word(b, links, row), R_link))
        rotation = [
            [b.load(_offset(b, R, (integer(i), R_row), (integer(j), R_column)), typ=DOUBLE) for j in range(3)]
            for i in range(3)
        ]
        with loop_over(b, entries, step=3) as first:
            place = [b.add(first, integer(k)) for k in range(3)]
            vector = [b.load(_offset(b, x, (k, x_entry)), typ=DOUBLE) for k in place]
            for k, entry in zip(place, rotated(b, rotation, vector), strict=True):
                b.store(entry, _offset(b, y, (k, y_entry)))
    b.ret_void()


def _emit_move(module: ir.Module) -> None:
    """Emits `move`. dims: states, 3. steps: from state to state of each operand, then from entry to entry of each."""
    b, (args, dims, steps, _) = _loop(module, _MOVE)
    bases = [word(b, args, k, POINTER) for k in range(4)]
    strides = [word(b, steps, k) for k in range(8)]
    with loop_over(b, word(b, dims, 0)) as state:
        cells = [
            [_offset(b, base, (state, step), (integer(k), stride)) for k in range(3)]
            for base, step, stride in zip(bases, strides[:4], strides[4:], strict=True)
        ]
        vectors = [[b.load(cell, typ=DOUBLE) for cell in operand] for operand in cells[:3]]
        for cell, entry in zip(cells[3], moved(b, *vectors), strict=True):
            b.store(entry, cell)
    b.ret_void()
