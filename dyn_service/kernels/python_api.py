"""Access of compiled functions to Python's and NumPy's objects and C functions.

The code reads the addresses of objects and C functions from a table that each process fills in. So it contains no
address itself, and the loader has no names to resolve.

The type of an object is read from its head, and an array's fields from the layout that NumPy documents as
`PyArrayObject_fields`, as C extensions compiled against NumPy do. All other access is by C functions.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.api.arguments import Wrench
from dyn_service.kernels.jit import numpy_function
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over

# Offsets of fields: the type in the head of any object, and NumPy's PyArrayObject_fields.
TYPE = 8
DATA, ND, DIMENSIONS, STRIDES, DESCR, FLAGS = 16, 24, 32, 40, 56, 64
ALIGNED = 0x0100  # NPY_ARRAY_ALIGNED


def short(value: int) -> Any:
    """Returns a 32-bit integer constant."""
    return ir.Constant(I32, value)


def function(returns: Any, *takes: Any) -> ir.FunctionType:
    """Returns the type of a function."""
    return ir.FunctionType(returns, takes)


LOOP = function(ir.VoidType(), POINTER, POINTER, POINTER, POINTER)
"""The type of a kernel's loop: the addresses of its operands, the number of states, the strides, its plan."""

_PYTHON: Mapping[str, ir.FunctionType] = {
    "PyBytes_AsString": function(POINTER, POINTER),
    "PyFloat_AsDouble": function(DOUBLE, POINTER),
    "PyLong_AsLongLongAndOverflow": function(I64, POINTER, POINTER),
    "PyTuple_New": function(POINTER, I64),
    "PyTuple_SetItem": function(I32, POINTER, I64, POINTER),
    "PyTuple_Size": function(I64, POINTER),
    "PyTuple_GetItem": function(POINTER, POINTER, I64),
    "PyList_Size": function(I64, POINTER),
    "PyList_GetItem": function(POINTER, POINTER, I64),
    "PyDict_GetItem": function(POINTER, POINTER, POINTER),
    "PyUnicode_Compare": function(I32, POINTER, POINTER),
    "Py_IncRef": function(ir.VoidType(), POINTER),
    "Py_DecRef": function(ir.VoidType(), POINTER),
    "PyEval_SaveThread": function(POINTER),
    "PyEval_RestoreThread": function(ir.VoidType(), POINTER),
}
_NUMPY: Mapping[str, tuple[str, int, ir.FunctionType]] = {
    "PyArray_New": (
        "_ARRAY_API",
        93,
        function(POINTER, POINTER, I32, POINTER, I32, POINTER, POINTER, I32, I32, POINTER),
    ),
    "PyArray_Return": ("_ARRAY_API", 76, function(POINTER, POINTER)),
    "PyArray_EquivTypes": ("_ARRAY_API", 182, function(ir.IntType(8), POINTER, POINTER)),
    "PyUFunc_getfperr": ("_UFUNC_API", 28, function(I32)),  # the status flags, which it clears
}
"""For each function: its table of NumPy's C API, its index there, which is part of the stable ABI, and its type."""

_TYPES: Mapping[str, Any] = {
    "ndarray": np.ndarray,
    "number": np.float64,
    "float": float,
    "int": int,
    "str": str,
    "tuple": tuple,
    "list": list,
    "Wrench": Wrench,
}
_OBJECTS: Mapping[str, Any] = {
    **_TYPES,
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "int64": np.dtype(np.int64),
    "None": None,
    "world": "world",
}

_PARTS = ("link", "torque", "force", "point", "frame")
"""The fields of a `Wrench`, whose offsets are in the table."""

_NAMES = (*_PYTHON, *_NUMPY, *_OBJECTS, *_PARTS)


def address(function_pointer: Any) -> int:
    """Returns the address of a C function of `ctypes`."""
    return int(ctypes.cast(function_pointer, ctypes.c_void_p).value or 0)


def addresses() -> list[int]:
    """Returns the contents of the table in this process."""
    return [
        *(address(getattr(ctypes.pythonapi, name)) for name in _PYTHON),
        *(numpy_function(table, index) for table, index, _ in _NUMPY.values()),
        *map(id, _OBJECTS.values()),
        *(_slots()[part] for part in _PARTS),
    ]


@cache
def _slots() -> Mapping[str, int]:
    """Returns the offsets of the fields of a `Wrench`, found by searching an instance's memory for their values."""
    parts: dict[str, Any] = {part: (float(k), 0.0, 0.0) for k, part in enumerate(_PARTS)}
    parts |= {name: f"the {name} of a probe" for name in ("link", "frame")}
    probe = Wrench(**parts)
    # msgspec does not document where a struct keeps its fields.
    words = (ctypes.c_void_p * (Wrench.__basicsize__ // 8)).from_address(id(probe))
    places = {word: 8 * k for k, word in enumerate(words)}
    return {part: places[id(value)] for part, value in parts.items() if id(value) in places}


def table(module: ir.Module) -> Any:
    """Adds the table to a module; `addresses` has its contents."""
    content = ir.GlobalVariable(module, ir.ArrayType(POINTER, len(_NAMES)), "api_table")
    content.linkage = "internal"
    content.initializer = ir.Constant(content.value_type, None)
    return content


@cache
def layout_is_known() -> bool:
    """Whether objects and arrays of this interpreter have the layout that compiled functions assume."""
    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")  # another head of objects
        or hasattr(sys, "getobjects")  # a build that traces references: every object's head is longer
        or ctypes.sizeof(ctypes.c_void_p) != 8
    ):
        return False
    probe = np.zeros((5, 3))[::-2, 1:]

    def word(kind: Any, offset: int) -> int:
        return int(kind.from_address(id(probe) + offset).value)

    def words(offset: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * probe.ndim).from_address(word(ctypes.c_int64, offset)))

    return (
        word(ctypes.c_int64, TYPE) == id(np.ndarray)
        and word(ctypes.c_int64, DATA) == probe.ctypes.data
        and word(ctypes.c_int32, ND) == probe.ndim
        and words(DIMENSIONS) == probe.shape
        and words(STRIDES) == probe.strides
        and word(ctypes.c_int64, DESCR) == id(np.dtype(np.float64))
        and word(ctypes.c_int32, FLAGS) == probe.flags.num
        and len(_slots()) == len(_PARTS)
    )


class Writer:
    """Base class for writing one function that accesses Python's objects.

    Args:
        module: The module of the function.
        api_table: The module's table.
        name: The name of the function.
        kind: The type of the function.
    """

    def __init__(self, module: ir.Module, api_table: Any, name: str, kind: ir.FunctionType) -> None:
        self.function = ir.Function(module, kind, name)
        self.b = ir.IRBuilder(self.function.append_basic_block())
        self.api_table = api_table

    def object_address(self, name: str) -> Any:
        """Returns the entry of the table with this name."""
        return self.word(self.api_table, _NAMES.index(name), POINTER)

    def call(self, name: str, *values: Any) -> Any:
        """Calls a C function."""
        kind = _PYTHON[name] if name in _PYTHON else _NUMPY[name][2]
        return self.b.call(self.word(self.api_table, _NAMES.index(name), kind.as_pointer()), values)

    def part(self, wrench: Any, name: str) -> Any:
        """Returns a field of a `Wrench`."""
        offset = self.word(self.api_table, _NAMES.index(name))
        return self.b.load(at(self.b, wrench, offset), typ=POINTER)

    def is_a(self, instance: Any, name: str) -> Any:
        """Whether the type of an object is exactly this one."""
        return self.b.icmp_unsigned("==", self.field(instance, TYPE), self.object_address(name))

    def is_real(self, instance: Any) -> Any:
        """Whether an object is a `float`, or the `numpy.float64` that an entry of an array is."""
        return self.b.or_(self.is_a(instance, "float"), self.is_a(instance, "number"))

    def word(self, base: Any, index: Any, kind: Any = I64) -> Any:
        """Returns an entry of an array of 64-bit words."""
        return self.b.load(self.word_at(base, index), typ=kind)

    def put(self, base: Any, index: Any, value: Any) -> None:
        """Sets an entry of an array of 64-bit words."""
        self.b.store(value, self.word_at(base, index))

    def word_at(self, base: Any, index: Any) -> Any:
        """Returns the address of an entry of an array of 64-bit words."""
        if isinstance(index, int):
            return at(self.b, base, integer(8 * index))
        return at(self.b, base, self.b.mul(index, integer(8)))

    def field(self, instance: Any, offset: int, kind: Any = POINTER) -> Any:
        """Returns a field of an object."""
        return self.b.load(at(self.b, instance, integer(offset)), typ=kind)

    def continue_if(self, condition: Any, *, failure: ir.Block) -> None:
        """Branches to `failure` unless the condition holds."""
        following = self.b.append_basic_block()
        self.b.cbranch(condition, following, failure)
        self.b.position_at_end(following)

    def take_items(self, kind: str, items: Any, length: Any, numbers: Any, *, failure: ir.Block) -> None:
        """Sets an array of doubles to the numbers of Python or NumPy in a sequence, or branches to `failure`.

        kind: `list` or `tuple`, the type of the sequence.
        """
        b, name = self.b, f"Py{kind.capitalize()}"
        self.continue_if(b.icmp_signed("==", self.call(f"{name}_Size", items), length), failure=failure)
        overflow = b.alloca(I32)
        with loop_over(b, length) as k:
            item = self.call(f"{name}_GetItem", items, k)
            with b.if_else(self.is_a(item, "int")) as (whole, other):
                with whole:  # NumPy converts integers of up to 64 bits
                    number = self.call("PyLong_AsLongLongAndOverflow", item, overflow)
                    fits = b.icmp_signed("==", b.load(overflow, typ=I32), short(0))
                    self.continue_if(fits, failure=failure)
                    self.put(numbers, k, b.sitofp(number, DOUBLE))
                with other:
                    self.continue_if(self.is_real(item), failure=failure)
                    self.put(numbers, k, self.call("PyFloat_AsDouble", item))

    def check_array(
        self,
        array: Any,
        axes: int | Any,
        size: Callable[[Any], Any],
        states: Any,
        *,
        failure: ir.Block,
        checks_type: bool = True,
    ) -> Any:
        """Branches to `failure` unless an array contains native aligned doubles and has this shape.

        Args:
            array: An `ndarray`, not of a subclass.
            axes: The number of its axes, without that of the states.
            size: Returns the size of an axis.
            states: The address of the number of states, -1 as long as no array has an axis of states. The array may
                have this axis, first: it then sets the number, or must agree with it.
            failure: The block for all other arrays.
            checks_type: Whether to check the type of the numbers.

        Returns:
            1 if the array has the axis of states, else 0.
        """
        b = self.b
        aligned = b.icmp_signed("!=", b.and_(self.field(array, FLAGS, I32), short(ALIGNED)), short(0))
        lead = b.sub(b.sext(self.field(array, ND, I32), I64), axes)
        self.continue_if(b.and_(aligned, b.icmp_unsigned("<=", lead, integer(1))), failure=failure)
        if checks_type:
            kind, double = self.field(array, DESCR), self.object_address("float64")
            with b.if_then(b.icmp_unsigned("!=", kind, double)):
                # Unpickled arrays, and arrays computed from them, have their own dtype object.
                alike = self.call("PyArray_EquivTypes", kind, double)
                self.continue_if(b.icmp_unsigned("!=", alike, ir.Constant(alike.type, 0)), failure=failure)
        shape = self.field(array, DIMENSIONS)
        with b.if_then(b.icmp_signed("==", lead, integer(1))):
            length, count = self.word(shape, 0), self.word(states, 0)
            first = b.icmp_signed("==", count, integer(-1))
            self.continue_if(b.or_(first, b.icmp_signed("==", length, count)), failure=failure)
            self.put(states, 0, length)
        with loop_over(b, axes) as axis:
            length = self.word(shape, b.add(axis, lead))
            self.continue_if(b.icmp_signed("==", length, size(axis)), failure=failure)
        return lead
