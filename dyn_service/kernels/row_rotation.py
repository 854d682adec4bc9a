"""Rotates the vectors of rows to other axes, each row by the rotation of its link: one function for all robots.

The operations and their order are those of `engine.wrenches.turn`, so the results have the same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.kernels.jit import LoadedCode, Loop, gufunc, shared_code
from dyn_service.kernels.llvm_ir import DOUBLE, POINTER, at, integer, loop_over, word

_TURN = "turn"


def rotation_ufunc(links: Sequence[int]) -> np.ufunc:
    """Returns the gufunc (x, R) -> R x: x (..., rows, 3 k) has k vectors in each row, R (..., links, 3, 3).

    links: The index of the rotation of each row.
    """
    code = _code()
    table = (ctypes.c_int64 * len(links))(*links)
    loop = Loop(code.address(_TURN), table, code, code.size, allocates=False, owned=())
    return gufunc(_TURN, "(r,c),(l,3,3)->(r,c)", 2, 1, loop)


@cache
def _code() -> LoadedCode:
    return shared_code(_TURN, "kernels.row_rotation", _emit)


def _emit() -> str:
    """Returns the module with turn(args, dims, steps, links), a loop for NumPy.

    dims: states, rows, entries of a row, links. steps: from state to state of x, R and the result, then the core
    strides of x (2), R (3) and the result (2).
    """
    module = ir.Module(name=_TURN)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER] * 4), _TURN)
    args, dims, steps, links = function.args
    b = ir.IRBuilder(function.append_basic_block())

    def offset(base: Any, *products: tuple[Any, Any]) -> Any:
        for index, stride in products:
            base = at(b, base, b.mul(index, stride))
        return base

    states, rows, entries = (word(b, dims, k) for k in range(3))
    bases = [word(b, args, k, POINTER) for k in range(3)]
    strides = [word(b, steps, k) for k in range(10)]
    x_row, x_entry, R_link, R_row, R_column, y_row, y_entry = strides[3:]
    with loop_over(b, states) as state, loop_over(b, rows) as row:
        x, R, y = (offset(base, (state, stride)) for base, stride in zip(bases, strides, strict=False))
        x, R, y = offset(x, (row, x_row)), offset(R, (word(b, links, row), R_link)), offset(y, (row, y_row))
        rotation = [
            [b.load(offset(R, (integer(i), R_row), (integer(j), R_column)), typ=DOUBLE) for j in range(3)]
            for i in range(3)
        ]
        with loop_over(b, entries, step=3) as first:
            place = [b.add(first, integer(k)) for k in range(3)]
            vector = [b.load(offset(x, (k, x_entry)), typ=DOUBLE) for k in place]
            for k, of_row in zip(place, rotation, strict=True):
                products = [b.fmul(r, each) for r, each in zip(of_row, vector, strict=True)]
                turned = b.fadd(b.fadd(products[0], products[1]), products[2])
                b.store(turned, offset(y, (k, y_entry)))
    b.ret_void()
    return str(module)
