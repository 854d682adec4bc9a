"""Machine code to `numpy.ufunc`. NumPy broadcasts, casts, fills `out=`, checks shapes and releases the GIL."""

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
    """Returns the address of a function of NumPy's C API. table: `_ARRAY_API` or `_UFUNC_API`."""
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


class _UFuncHead(ctypes.Structure):
    """The first fields of NumPy's PyUFuncObject, part of its stable ABI."""

    _fields_ = (
        ("head", ctypes.c_byte * object.__basicsize__),
        ("nin", ctypes.c_int),
        ("nout", ctypes.c_int),
        ("nargs", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("ntypes", ctypes.c_int),
        ("reserved1", ctypes.c_int),
        ("name", ctypes.c_void_p),
        ("types", ctypes.c_void_p),
        ("doc", ctypes.c_void_p),
        ("ptr", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
    )


def _own(ufunc: np.ufunc, owned: object) -> None:
    """Lets the ufunc hold a reference, in the slot in which `numpy.frompyfunc` keeps its function.

    NumPy releases this object when the ufunc is freed, and reports it to the garbage collector.
    """
    head = _UFuncHead.from_address(id(ufunc))
    if head.obj is not None or not _slot_is_known():
        _KEPT.append(owned)
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))
    head.obj = id(owned)


@cache
def _slot_is_known() -> bool:
    """Whether that slot is at the expected offset."""
    made = np.frompyfunc(_slot_is_known, 0, 1)
    return bool(_UFuncHead.from_address(id(made)).obj == id(_slot_is_known))


_KEPT: list[object] = []
"""Objects of ufuncs whose slot is not at the expected offset, kept to the end of the process."""


def make_gufunc(signature: Signature, code: LoadedCode, entry: str) -> np.ufunc:
    """Returns the generalised ufunc whose inner loop is `entry` in `code`.

    It owns the code, and a caller holds a reference to it, so running code is never freed.
    """
    loops = (ctypes.c_void_p * 1)(code.address(entry))
    data = (ctypes.c_void_p * 1)(None)
    operands = len(signature.inputs) + len(signature.outputs)
    types = bytes([np.dtype(np.float64).num]) * operands
    name, shape = signature.name.encode(), signature.gufunc.encode()
    ufunc: np.ufunc = _constructor()(
        ctypes.addressof(loops),
        ctypes.addressof(data),
        types,
        1,
        len(signature.inputs),
        len(signature.outputs),
        -1,  # PyUFunc_None: no identity
        name,
        shape,
        0,
        shape,
    )
    _own(ufunc, (loops, data, types, name, shape, code))  # NumPy does not copy them
    return ufunc
