"""Machine code to `numpy.ufunc`: NumPy then broadcasts, casts, fills `out=`, checks shapes and releases the GIL."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dyn_service.kernels.jit import LoadedCode
from dyn_service.kernels.signature import Signature

_FROM_FUNC_AND_DATA_AND_SIGNATURE = 31
"""Index of PyUFunc_FromFuncAndDataAndSignature in NumPy's C API table; part of its stable ABI."""


def numpy_function(table: str, index: int) -> int:
    """Address of a function of NumPy's C API, whose tables are `_ARRAY_API` and `_UFUNC_API`."""
    umath = importlib.import_module("numpy._core._multiarray_umath")  # the capsules have no public name
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    begin = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))(getattr(umath, table), None)
    return int(ctypes.cast(begin, ctypes.POINTER(ctypes.c_void_p))[index] or 0)


@cache
def _constructor() -> Callable[..., Any]:
    kind = ctypes.PYFUNCTYPE(
        ctypes.py_object,  # the new ufunc
        ctypes.c_void_p,  # inner loops, one per type signature
        ctypes.c_void_p,  # their data
        ctypes.c_char_p,  # operand types
        ctypes.c_int,  # number of loops
        ctypes.c_int,  # inputs
        ctypes.c_int,  # outputs
        ctypes.c_int,  # identity
        ctypes.c_char_p,  # name
        ctypes.c_char_p,  # doc
        ctypes.c_int,  # unused
        ctypes.c_char_p,  # signature
    )
    return kind(numpy_function("_UFUNC_API", _FROM_FUNC_AND_DATA_AND_SIGNATURE))


_KEPT: list[tuple[Any, ...]] = []
"""What the ufuncs point into. A ufunc cannot own it, so it stays until the process ends: some 50 kB a kernel."""


def make_gufunc(signature: Signature, code: LoadedCode, entry: str) -> np.ufunc:
    """The generalised ufunc whose inner loop is `entry` in `code`."""
    loops = (ctypes.c_void_p * 1)(code.address(entry))
    data = (ctypes.c_void_p * 1)(None)
    operands = len(signature.inputs) + len(signature.outputs)
    types = bytes([np.dtype(np.float64).num]) * operands
    name = ctypes.create_string_buffer(signature.name.encode())
    doc = ctypes.create_string_buffer(signature.gufunc.encode())
    types_buffer = ctypes.create_string_buffer(types)
    shape = signature.gufunc.encode()
    ufunc = _constructor()(
        ctypes.addressof(loops),
        ctypes.addressof(data),
        ctypes.cast(types_buffer, ctypes.c_char_p),
        1,
        len(signature.inputs),
        len(signature.outputs),
        -1,  # PyUFunc_None: no identity
        ctypes.cast(name, ctypes.c_char_p),
        ctypes.cast(doc, ctypes.c_char_p),
        0,
        shape,
    )
    _KEPT.append((loops, data, types_buffer, name, doc, code))
    return ufunc  # type: ignore[no-any-return]
