"""One state, one call: a builtin that takes arrays as they are and runs a kernel's loop once.

NumPy's machinery for generalised ufuncs finds types, shapes, casts and an iterator for any operands; for one state of a
control loop that is most of the time. This call takes only what needs none of it, and answers `None` to all else, so
its caller then asks the gufunc:

    call = single_state_call(signature, code, "loop")
    tau = call(q, v, a, gravity)
    if tau is None:
        tau = ufunc(q, v, a, gravity)

It takes by position exactly one array per input: of `numpy.ndarray` itself, of native aligned doubles, of the operand's
core shape; strides as they may be. Where one number stands for a vector of equal numbers (`Operand.scalar`), it may be
a `float`. What comes back is what the gufunc gives for these, to the last bit: a new array, or a NumPy number where the
output has no axes, or a tuple of them. Errors are raised only for what is one, such as no memory.

**Floating-point errors.** The gufunc raises, warns of or ignores what `numpy.errstate` says. So where the status flags
tell of overflow, underflow, division by zero or an invalid operation, this call drops its result and answers `None`:
the gufunc computes it again and does with the flags what it is told to.

**One function for all kernels.** Its machine code is the same for every kernel and robot, is compiled once and kept in
the store. What differs is a packed plan, the builtin's `self`: see `_plan`.

**What it reads.** The type of an object is read from its head, and an array's fields from the layout that NumPy
documents as `PyArrayObject_fields`, which C extensions compiled against NumPy read too. All else goes through C
functions. Where the layout may be another (not CPython, no GIL, tracing of references, 32 bits), or is found to be
another, there is no such call: `single_state_call` returns None.

**The GIL** is held while a kernel of less than `HELD_BYTES` of code runs, a hundredth of the 5 ms for which any thread
may hold it. Whoever lets go of it beside a busy thread may wait for that thread's whole turn: calls of 0.08 ms then
took 2 to 12 ms now and then, and none did that held it. A control loop would miss its beat. Larger kernels let others
run.

Measured, medians of a call, gufunc to this: inverse dynamics of the Panda 1.05 to 0.35 us, of TALOS (50 joints) 2.5 to
1.8 us; forward dynamics 1.22 to 0.52 us and 4.9 to 4.3 us. A pendulum, where the kernel takes next to nothing, 0.86 to
0.15 us. So some 0.7 us a call, whatever the robot.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.kernels import store
from dyn_service.kernels.emitting import DOUBLE, I64, POINTER, at, integer, loop_over
from dyn_service.kernels.gufunc import numpy_function
from dyn_service.kernels.jit import LoadedCode, compile_ir, host
from dyn_service.kernels.provenance import provenance
from dyn_service.kernels.signature import Operand, Signature

SingleStateCall = Callable[..., Any]

HELD_BYTES = 1 << 20
"""Machine code from which on a kernel lets go of the GIL: some 50 us. The Panda's largest have a tenth of it."""

MOST_OPERANDS = 32
MOST_AXES = 4
"""Room on the stack. The table of queries has at most 11 operands of 3 axes."""

_ENTRY, _TABLE = "single", "table"
_I32 = ir.IntType(32)

# Offsets into objects: the head of any, and NumPy's PyArrayObject_fields.
_TYPE = 8
_DATA, _ND, _DIMENSIONS, _STRIDES, _DESCR, _FLAGS = 16, 24, 32, 40, 56, 64
_ALIGNED = 0x0100  # NPY_ARRAY_ALIGNED


# The plan: integers of 64 bits, these first, then for each operand its own, shape last.
_LOOP, _INPUTS, _OUTPUTS, _RELEASE, _OPERANDS = range(5)
_AXES, _SCALAR, _FIRST_STEP, _SHAPE = range(4)
_OPERAND_WORDS = _SHAPE + MOST_AXES


class _Plan(bytes):
    """Words that the compiled function reads. A call owns its plan, and through it all that it points into."""

    owned: tuple[object, ...]


def _plan(signature: Signature, code: LoadedCode, entry: str) -> _Plan:
    """What the compiled function has to know of a kernel.

    The kernel's loop, the numbers of inputs and outputs, and whether to release the GIL; then for each operand the
    number of its axes, whether it may be one number, where its core strides begin among the loop's `steps`, its shape.
    """
    operands = (*signature.inputs, *signature.outputs)
    release = code.size >= HELD_BYTES
    words = [code.address(entry), len(signature.inputs), len(signature.outputs), release]
    first_step = len(operands)  # the operands' strides from state to state stand before
    for operand in operands:
        shape = (*operand.shape, *(0,) * (MOST_AXES - len(operand.shape)))
        words += [len(operand.shape), operand.scalar, first_step, *shape]
        first_step += len(operand.shape)
    return _Plan(struct.pack(f"={len(words)}q", *words))


def single_state_call(signature: Signature, code: LoadedCode, entry: str) -> SingleStateCall | None:
    """The call for one state of a kernel, or None where there is none: see the module's docstring.

    Args:
        signature: The kernel's. One with padded inputs, or outputs without entries, has no such call.
        code: The kernel's.
        entry: Name of the inner loop in it.
    """
    operands: tuple[Operand, ...] = (*signature.inputs, *signature.outputs)
    fits = len(operands) <= MOST_OPERANDS and all(len(operand.shape) <= MOST_AXES for operand in operands)
    if signature.padded or signature.empty or not fits or not _layout_is_known():
        return None
    with _LOADING:
        method, function = _method()
    plan = _plan(signature, code, entry)
    plan.owned = (code, method, function)
    call: SingleStateCall = _builtin()(ctypes.addressof(method), plan, None)
    return call


_LOADING = threading.Lock()


@cache
def _builtin() -> Callable[..., Any]:
    """Python's PyCFunction_NewEx."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return kind(_address(ctypes.pythonapi.PyCFunction_NewEx))


@cache
def _layout_is_known() -> bool:
    """Whether objects and arrays of this interpreter are laid out as the compiled function reads them."""
    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or hasattr(sys, "getobjects")  # references are traced: every object's head is longer
        or ctypes.sizeof(ctypes.c_void_p) != 8
    ):
        return False
    probe = np.zeros((5, 3))[::-2, 1:]

    def word(kind: Any, offset: int) -> int:
        return int(kind.from_address(id(probe) + offset).value)

    def words(offset: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * probe.ndim).from_address(word(ctypes.c_int64, offset)))

    return (
        word(ctypes.c_int64, _TYPE) == id(np.ndarray)
        and word(ctypes.c_int64, _DATA) == probe.ctypes.data
        and word(ctypes.c_int32, _ND) == probe.ndim
        and words(_DIMENSIONS) == probe.shape
        and words(_STRIDES) == probe.strides
        and word(ctypes.c_int64, _DESCR) == id(np.dtype(np.float64))
        and word(ctypes.c_int32, _FLAGS) == probe.flags.num
    )


class _MethodDef(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x0080


@cache
def _method() -> tuple[_MethodDef, LoadedCode]:
    """The compiled function, loaded into this process, and the code that it is."""
    machine = host()
    key = store.key("single state", provenance("kernels.single"), machine.triple, machine.cpu, machine.features)
    kept = store.load(key)
    if kept is None:
        kept = compile_ir(_emit())
        store.save(key, kept)
    code = LoadedCode(kept)
    function = code.address(_ENTRY)
    table = ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address(_TABLE))()
    (ctypes.c_void_p * len(_NAMES)).from_address(table)[:] = [_addresses()[name] for name in _NAMES]
    method = _MethodDef(b"single_state", function, _METH_FASTCALL, b"One state through a kernel; None: ask the gufunc.")
    return method, code


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


# What the compiled function takes from outside stands in a table that each process fills in: so its code holds no
# address of this process, and the loader has no names to look for.


def _short(value: int) -> Any:
    return ir.Constant(_I32, value)


def _function(returns: Any, *takes: Any) -> ir.FunctionType:
    return ir.FunctionType(returns, takes)


_PYTHON: Mapping[str, ir.FunctionType] = {
    "PyBytes_AsString": _function(POINTER, POINTER),
    "PyFloat_AsDouble": _function(DOUBLE, POINTER),
    "PyTuple_New": _function(POINTER, I64),
    "PyTuple_SetItem": _function(_I32, POINTER, I64, POINTER),
    "Py_IncRef": _function(ir.VoidType(), POINTER),
    "Py_DecRef": _function(ir.VoidType(), POINTER),
    "PyEval_SaveThread": _function(POINTER),
    "PyEval_RestoreThread": _function(ir.VoidType(), POINTER),
}
_NUMPY: Mapping[str, tuple[str, int, ir.FunctionType]] = {
    "PyArray_New": (
        "_ARRAY_API",
        93,
        _function(POINTER, POINTER, _I32, POINTER, _I32, POINTER, POINTER, _I32, _I32, POINTER),
    ),
    "PyArray_Return": ("_ARRAY_API", 76, _function(POINTER, POINTER)),
    "PyArray_EquivTypes": ("_ARRAY_API", 182, _function(ir.IntType(8), POINTER, POINTER)),
    "PyUFunc_getfperr": ("_UFUNC_API", 28, _function(_I32)),  # the status flags, which it clears
}
"""Where they stand in NumPy's C API tables, part of its stable ABI; and what they take."""

_OBJECTS: Mapping[str, Any] = {"ndarray": np.ndarray, "float": float, "float64": np.dtype(np.float64), "None": None}

_NAMES = (*_PYTHON, *_NUMPY, *_OBJECTS)


def _addresses() -> dict[str, int]:
    return {
        **{name: _address(getattr(ctypes.pythonapi, name)) for name in _PYTHON},
        **{name: numpy_function(table, index) for name, (table, index, _) in _NUMPY.items()},
        **{name: id(thing) for name, thing in _OBJECTS.items()},
    }


def _emit() -> str:
    """The LLVM module: single(self, args, nargs) of METH_FASTCALL, and table(), which says where its table is."""
    module = ir.Module(name=_ENTRY)
    content = ir.GlobalVariable(module, ir.ArrayType(POINTER, len(_NAMES)), "outside")
    content.linkage = "internal"
    content.initializer = ir.Constant(content.value_type, None)
    table = ir.Function(module, ir.FunctionType(POINTER, []), _TABLE)
    ir.IRBuilder(table.append_basic_block()).ret(ir.Constant.bitcast(content, POINTER))
    _Single(module, content).emit()
    return str(module)


class _Single:
    """Writes the function: takes the inputs, makes the outputs, runs the loop, gives the outputs back."""

    def __init__(self, module: ir.Module, outside: Any) -> None:
        function = ir.Function(module, ir.FunctionType(POINTER, [POINTER, POINTER, I64]), _ENTRY)
        self.b = ir.IRBuilder(function.append_basic_block())
        self.outside = outside
        self.itself, self.given, self.count = function.args
        # The loop's arguments: where each operand begins, its strides; numbers that stand for vectors; new arrays.
        self.bases, self.steps, self.numbers, self.made = (
            self.b.alloca(POINTER, size=integer(words))
            for words in (MOST_OPERANDS, MOST_OPERANDS * (1 + MOST_AXES), MOST_OPERANDS, MOST_OPERANDS)
        )
        self.one = self.b.alloca(POINTER)
        self.b.store(integer(1), self.one)
        self.refused, self.failed, self.dropped = (function.append_basic_block(n) for n in ("none", "null", "drop"))

    def emit(self) -> None:
        b = self.b
        self.plan = self.call("PyBytes_AsString", self.itself)
        self.inputs, self.outputs = self.word(self.plan, _INPUTS), self.word(self.plan, _OUTPUTS)
        self.take_inputs()
        self.make_outputs()
        self.run()
        self.give_outputs()
        b.position_at_end(self.dropped)
        self.drop_outputs()
        b.branch(self.refused)
        b.position_at_end(self.refused)
        self.call("Py_IncRef", self.known("None"))
        b.ret(self.known("None"))
        b.position_at_end(self.failed)
        self.drop_outputs()
        b.ret(ir.Constant(POINTER, None))

    def take_inputs(self) -> None:
        b = self.b
        self.go_on_if(b.icmp_signed("==", self.count, self.inputs), otherwise=self.refused)
        with loop_over(b, self.inputs) as k:
            given = self.word(self.given, k, POINTER)
            kind = self.field(given, _TYPE)
            operand = self.operand(k)
            with b.if_else(b.icmp_unsigned("==", kind, self.known("ndarray"))) as (array, number):
                with array:
                    self.take_array(given, k, operand)
                with number:
                    self.go_on_if(b.icmp_unsigned("==", kind, self.known("float")), otherwise=self.refused)
                    may_be = b.icmp_signed("!=", self.word(operand, _SCALAR), integer(0))
                    self.go_on_if(may_be, otherwise=self.refused)
                    self.take_number(given, k, operand)

    def take_array(self, given: Any, k: Any, operand: Any) -> None:
        b = self.b
        axes = self.word(operand, _AXES)
        aligned = b.icmp_signed("!=", b.and_(self.field(given, _FLAGS, _I32), _short(_ALIGNED)), _short(0))
        as_many = b.icmp_signed("==", self.field(given, _ND, _I32), b.trunc(axes, _I32))
        self.go_on_if(b.and_(aligned, as_many), otherwise=self.refused)
        kind, double = self.field(given, _DESCR), self.known("float64")
        with b.if_then(b.icmp_unsigned("!=", kind, double)):
            # Arrays that were pickled have a dtype object of their own, and so has all that is computed from them.
            alike = self.call("PyArray_EquivTypes", kind, double)
            self.go_on_if(b.icmp_unsigned("!=", alike, ir.Constant(alike.type, 0)), otherwise=self.refused)
        shape = self.field(given, _DIMENSIONS)
        with loop_over(b, axes) as axis:
            wanted = self.word(operand, b.add(axis, integer(_SHAPE)))
            self.go_on_if(b.icmp_signed("==", self.word(shape, axis), wanted), otherwise=self.refused)
        self.place_array(given, k, operand)

    def place_array(self, array: Any, k: Any, operand: Any) -> None:
        """As operand k of the loop."""
        strides = self.field(array, _STRIDES)
        self.place(k, self.field(array, _DATA), operand, lambda axis: self.word(strides, axis))

    def take_number(self, given: Any, k: Any, operand: Any) -> None:
        """A vector of equal numbers is one number with stride 0."""
        b = self.b
        number = at(b, self.numbers, b.mul(k, integer(8)))
        b.store(self.call("PyFloat_AsDouble", given), number)
        self.place(k, number, operand, lambda _: integer(0))

    def place(self, k: Any, base: Any, operand: Any, stride: Callable[[Any], Any]) -> None:
        b = self.b
        self.put(self.bases, k, base)
        self.put(self.steps, k, integer(0))  # from state to state: there is one
        first = self.word(operand, _FIRST_STEP)
        with loop_over(b, self.word(operand, _AXES)) as axis:
            self.put(self.steps, b.add(first, axis), stride(axis))

    def make_outputs(self) -> None:
        """Nothing from here to the loop runs Python, which could change the arrays that were taken."""
        b = self.b
        nothing = ir.Constant(POINTER, None)
        with loop_over(b, self.outputs) as k:
            self.put(self.made, k, nothing)
        with loop_over(b, self.outputs) as k:
            place = b.add(self.inputs, k)
            operand = self.operand(place)
            axes = b.trunc(self.word(operand, _AXES), _I32)
            shape = at(b, operand, integer(8 * _SHAPE))
            double = _short(np.dtype(np.float64).num)
            new = self.call(
                "PyArray_New",
                self.known("ndarray"),
                axes,
                shape,
                double,
                nothing,
                nothing,
                _short(0),
                _short(0),
                nothing,
            )
            self.put(self.made, k, new)
            self.go_on_if(b.icmp_unsigned("!=", new, nothing), otherwise=self.failed)
            self.place_array(new, place, operand)

    def run(self) -> None:
        b = self.b
        kind = _function(ir.VoidType(), POINTER, POINTER, POINTER, POINTER)
        loop = self.word(self.plan, _LOOP, kind.as_pointer())

        def status() -> Any:
            self.call("PyUFunc_getfperr")
            # Of the dimensions the loop reads the first alone, the number of states.
            b.call(loop, [self.bases, self.one, self.steps, ir.Constant(POINTER, None)])
            return self.call("PyUFunc_getfperr")

        with b.if_else(b.icmp_signed("!=", self.word(self.plan, _RELEASE), integer(0))) as (freely, held):
            with freely:
                thread = self.call("PyEval_SaveThread")
                of_free = status()
                self.call("PyEval_RestoreThread", thread)
                free = b.block
            with held:
                of_held = status()
                holding = b.block
        found = b.phi(_I32)
        found.add_incoming(of_free, free)
        found.add_incoming(of_held, holding)
        self.go_on_if(b.icmp_signed("==", found, _short(0)), otherwise=self.dropped)

    def give_outputs(self) -> None:
        b = self.b
        nothing = ir.Constant(POINTER, None)
        with loop_over(b, self.outputs) as k:
            answer = self.call("PyArray_Return", self.word(self.made, k, POINTER))  # a number where it has no axes
            self.put(self.made, k, answer)
            self.go_on_if(b.icmp_unsigned("!=", answer, nothing), otherwise=self.failed)
        with b.if_then(b.icmp_signed("==", self.outputs, integer(1))):
            b.ret(self.word(self.made, integer(0), POINTER))
        answers = self.call("PyTuple_New", self.outputs)
        self.go_on_if(b.icmp_unsigned("!=", answers, nothing), otherwise=self.failed)
        with loop_over(b, self.outputs) as k:
            self.call("PyTuple_SetItem", answers, k, self.word(self.made, k, POINTER))
        b.ret(answers)

    def drop_outputs(self) -> None:
        with loop_over(self.b, self.outputs) as k:
            self.call("Py_DecRef", self.word(self.made, k, POINTER))  # which takes NULL too

    # What the parts above are written with.

    def known(self, name: str) -> Any:
        """What the table holds under a name."""
        return self.word(self.outside, _NAMES.index(name), POINTER)

    def call(self, name: str, *values: Any) -> Any:
        """A call of a C function."""
        kind = _PYTHON[name] if name in _PYTHON else _NUMPY[name][2]
        return self.b.call(self.word(self.outside, _NAMES.index(name), kind.as_pointer()), values)

    def operand(self, k: Any) -> Any:
        """Where the plan's words on operand k begin."""
        words = self.b.add(integer(_OPERANDS), self.b.mul(k, integer(_OPERAND_WORDS)))
        return at(self.b, self.plan, self.b.mul(words, integer(8)))

    def word(self, base: Any, index: Any, kind: Any = I64) -> Any:
        """The entry of a row of words of 64 bits."""
        return self.b.load(self._word_at(base, index), typ=kind)

    def put(self, base: Any, index: Any, value: Any) -> None:
        """Sets that entry."""
        self.b.store(value, self._word_at(base, index))

    def _word_at(self, base: Any, index: Any) -> Any:
        if isinstance(index, int):
            return at(self.b, base, integer(8 * index))
        return at(self.b, base, self.b.mul(index, integer(8)))

    def field(self, thing: Any, offset: int, kind: Any = POINTER) -> Any:
        """A field of an object."""
        return self.b.load(at(self.b, thing, integer(offset)), typ=kind)

    def go_on_if(self, condition: Any, *, otherwise: ir.Block) -> None:
        """What is written next runs only if this holds."""
        following = self.b.append_basic_block()
        self.b.cbranch(condition, following, otherwise)
        self.b.position_at_end(following)
