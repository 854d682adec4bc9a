"""The direct call of a kernel: a builtin function that reads arrays itself and runs the kernel's loop once.

For any operands, NumPy's generalised ufuncs determine types, shapes, casts and an iterator; for one state of a control
loop this takes most of the time, and for a horizon of 64 states half of it. This call accepts only arguments that need
none of it, and returns `None` for all others, so that the caller then calls the gufunc:

    call = direct_call(signature, loop, Arguments({"gravity": standard}))
    tau = call((q, v, a), (gravity,))
    if tau is None:
        tau = ufunc(q, v, a, standard if gravity is None else gravity)

It takes two tuples, the required and the optional arguments of the method as the caller gave them; `Arguments` maps
them to the inputs of the kernel. A third tuple may contain the arrays of the result: contiguous, writable, of exactly
its shape, and without overlap with each other or with an input. An input is a `numpy.ndarray` itself, of native aligned
doubles, with any strides, of the operand's core shape; one axis of states may precede it. All inputs with this axis
have the same number of states; those without it are the same in all states. An operand that accepts one number for a
vector of equal numbers (`Operand.scalar`) may also be a `float` or a `numpy.float64`. A vector of one state may be a
list or tuple of numbers. Vectors may be arrays of singles or 64-bit integers: at most `CONVERTED` numbers are
converted. External wrenches are converted as `kernels.wrenches` describes. The result is the gufunc's to the last bit:
a new array, or a NumPy number if the output has no axes, or a tuple of these. The call raises only genuine errors, such
as a lack of memory.

**One function for all kernels.** Its machine code is the same for every kernel and robot; it is compiled once and kept
in the store. The differences are in a packed plan, the builtin's `self`: see `_plan`.

**Memory layout.** `kernels.python_api` describes the objects that it reads. If their layout may differ (not CPython, no
GIL, tracing of references, 32 bits), or a check finds that it does, `direct_call` returns None.

Measured medians of a call, gufunc and this call: inverse dynamics of the Panda 1.05 and 0.35 us, of TALOS (50 joints)
2.5 and 1.8 us; forward dynamics 1.22 and 0.52 us, 4.9 and 4.3 us; a pendulum, whose kernel takes almost no time, 0.86
and 0.15 us. The call saves some 0.7 us for every robot, and 1.5 us for 64 states of the Panda.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from dyn_service.kernels.jit import LoadedCode, Loop, host, shared_code
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over
from dyn_service.kernels.loop import FILL, FILL_NARROW, Body, filled
from dyn_service.kernels.python_api import (
    DATA,
    DESCR,
    FLAGS,
    LOOP,
    STRIDES,
    Writer,
    address,
    addresses,
    function,
    layout_is_known,
    short,
    table,
)
from dyn_service.kernels.signature import Operand, Signature, total_size
from dyn_service.kernels.wrenches import TABLE_WORDS, WrenchConversion, emit_conversion, emit_for_each
from dyn_service.support.buffers import LARGE_BYTES

DirectCall = Callable[..., Any]

# 1 % of the 5 ms for which a thread may hold the GIL. A call that releases it while another thread is busy may wait for
# that thread's whole turn: some calls of 0.08 ms then took 2 to 12 ms, and a control loop would miss its deadline.
HELD_BYTES = 1 << 20
"""Work from which the GIL is released, in bytes of machine code run for all vectors of states: some 50 us."""

CONVERTED = 1 << 13
"""Most numbers that a call converts to doubles, on the stack; more only if the vectors of one state have more."""

MAX_OPERANDS = 32
MAX_AXES = 4
"""Sizes of arrays on the stack. A query has at most 18 operands, of up to 4 axes; a list of queries may have more."""

_ENTRY, _TABLE = "direct", "table"

_WRITABLE, _CONTIGUOUS = 0x0400, 0x0001
"""NPY_ARRAY_WRITEABLE and NPY_ARRAY_C_CONTIGUOUS."""

ANY = object()
"""In `Arguments.optional`: the call accepts any object as this argument and does not read it."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """How the two tuples of a call become the inputs of a kernel.

    The first tuple has the kernel's inputs that are in neither `optional` nor `fixed`. optional: the second tuple by
    name, in order. For an input of the kernel: the array that replaces None. For any other argument: the only object
    accepted, or `ANY`. fixed: arrays of the inputs that no argument sets. zero_entries: by name of an input that is a
    vector, the indices of the entries that must be 0.
    """

    optional: Mapping[str, object] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    zero_entries: Mapping[str, Sequence[int]] = field(default_factory=dict)


# The plan: 64-bit integers, first those of the kernel, then those of each operand, which end with its shape.
(
    _LOOP,
    _INPUTS,
    _OUTPUTS,
    _RELEASED_FROM,
    _CONVERSION,
    _WRENCHES,
    _REQUIRED,
    _OPTIONAL,
    _FIXED,
    _LARGE_FROM,
    _LOOP_PLAN,
    _CONVERTED,
    _ZERO_ENTRIES,
    _OPERANDS,
) = range(14)
_ACCEPTED, _IGNORED = -1, -2  # instead of the index of an input: an argument with one accepted value, or with any
_AXES, _SCALAR, _FIRST_STEP, _SHAPE = range(4)
_OPERAND_WORDS = _SHAPE + MAX_AXES


def _released_from(size: int) -> int:
    """Returns the number of states from which the GIL is released. size: bytes of code that run for a vector."""
    passes = math.ceil(HELD_BYTES / size)
    return host().lanes * (passes - 1) + 1


class _Plan(bytes):
    """Words that the compiled function reads. A call owns its plan, and through `owned` all memory it points to."""

    owned: tuple[object, ...]


def _plan(signature: Signature, loop: Loop, arguments: Arguments, conversion: WrenchConversion | None) -> _Plan:
    """Returns the plan of a kernel for the compiled function.

    It has the address of the kernel's loop; the numbers of inputs and outputs; the number of states from which the GIL
    is released; the address of the plan of wrenches, and their index among the inputs, -1 without wrenches; the numbers
    of required, optional and fixed arguments; the number of states from which the result is large; the address of the
    loop's plan; the number of entries that may be converted, and that of entries that must be 0. Then for each operand:
    the number of its axes, whether it may be one number, the index of its core strides in the loop's `steps`, its
    shape. For each optional and each fixed argument: the index of its input, or `_ACCEPTED` or `_IGNORED`, and the
    address of its default. Last, for each entry that must be 0: the index of its input, and its own in that input.
    """
    operands = (*signature.inputs, *signature.outputs)
    names = [operand.name for operand in signature.inputs]
    packed_wrenches, size, wrenches = b"", loop.work, -1
    if conversion is not None:
        packed_wrenches, size = conversion.plan(signature), size + conversion.poses.work
        wrenches = [operand.kind for operand in signature.inputs].index("wrenches")
        functions = (_method()[1].address(name) for name in (FILL, FILL_NARROW))
        loop = filled(loop, wrenches, [*zip(functions, conversion.sizes(signature), strict=True)])
    plan_of_wrenches = ctypes.create_string_buffer(packed_wrenches)
    words = [loop.address, len(signature.inputs), len(signature.outputs), _released_from(size)]
    words += [ctypes.addressof(plan_of_wrenches), wrenches]
    argument_names = {*arguments.optional, *arguments.fixed}
    words += [sum(name not in argument_names for name in names), len(arguments.optional), len(arguments.fixed)]
    words += [-(-LARGE_BYTES // (8 * total_size(signature.outputs)))]
    words += [ctypes.addressof(loop.plan)]
    words += [max(CONVERTED, sum(operand.size for operand in signature.inputs if len(operand.shape) == 1))]
    zero_entries = [(names.index(name), entry) for name, entries in arguments.zero_entries.items() for entry in entries]
    words += [len(zero_entries)]
    first_step = len(operands)  # after the operands' strides from state to state
    for operand in operands:
        shape = (*operand.shape, *(0,) * (MAX_AXES - len(operand.shape)))
        words += [len(operand.shape), operand.scalar, first_step, *shape]
        first_step += len(operand.shape)
    for name, default in (*arguments.optional.items(), *arguments.fixed.items()):
        marker = _IGNORED if default is ANY else _ACCEPTED
        words += [names.index(name) if name in names else marker, id(default)]
    words += [word for pair in zero_entries for word in pair]
    plan = _Plan(struct.pack(f"={len(words)}q", *words))
    plan.owned = (loop, arguments, conversion, plan_of_wrenches)
    return plan


def direct_call(
    signature: Signature, loop: Loop, arguments: Arguments, conversion: WrenchConversion | None = None
) -> DirectCall | None:
    """Returns the direct call of a kernel; None for kernels without one. See the module's docstring.

    Args:
        signature: The signature of the kernel. One with padded inputs or without outputs has no direct call.
        loop: The loop of the kernel.
        arguments: The arguments of the call.
        conversion: The conversion of wrenches, for a kernel with wrenches that takes them as objects.
    """
    operands: tuple[Operand, ...] = (*signature.inputs, *signature.outputs)
    fits = len(operands) <= MAX_OPERANDS and all(len(operand.shape) <= MAX_AXES for operand in operands)
    if signature.padded or signature.empty or not fits or not layout_is_known():
        return None
    if conversion is not None and {conversion.poses.lanes, Body.of(loop.code).lanes} != {host().lanes}:
        return None
    with _LOADING:
        method, code = _method()
    plan = _plan(signature, loop, arguments, conversion)
    plan.owned += (method, code)
    # The plan is the builtin's self, so Python keeps it, and the code it owns, while a thread runs the call.
    call: DirectCall = _builtin()(ctypes.addressof(method), plan, None)
    return call


_LOADING = threading.Lock()


@cache
def _builtin() -> Callable[..., Any]:
    """Python's PyCFunction_NewEx."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return kind(address(ctypes.pythonapi.PyCFunction_NewEx))


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
    """Returns the compiled function, loaded into this process, and its code."""
    code = shared_code("direct call", "kernels.direct", _emit)
    api_table = addresses()
    table_address = ctypes.CFUNCTYPE(ctypes.c_void_p)(code.address(_TABLE))()
    (ctypes.c_void_p * len(api_table)).from_address(table_address)[:] = [*api_table]
    doc = b"Calls a kernel for one state or a batch; returns None for arguments that need the gufunc."
    method = _MethodDef(b"direct_call", code.address(_ENTRY), _METH_FASTCALL, doc)
    return method, code


def _emit() -> str:
    """Returns the module: `direct(self, args, nargs)` of METH_FASTCALL, and `table()`, which returns its table."""
    module = ir.Module(name=_ENTRY)
    api_table = table(module)
    table_function = ir.Function(module, function(POINTER), _TABLE)
    ir.IRBuilder(table_function.append_basic_block()).ret(ir.Constant.bitcast(api_table, POINTER))
    _Direct(module, api_table, emit_conversion(module, api_table)).emit()
    return str(module)


class _Direct(Writer):
    """Writes the function: reads the inputs, creates the outputs, runs the loop, returns the outputs."""

    def __init__(self, module: ir.Module, api_table: Any, convert: Any) -> None:
        super().__init__(module, api_table, _ENTRY, function(POINTER, POINTER, POINTER, I64))
        self.plan_object, self.arguments, self.count = self.function.args
        self.convert = convert
        # The loop's arguments: address and strides of each operand; numbers that replace vectors; new arrays.
        self.bases, self.steps, self.numbers, self.new_arrays = (
            self.b.alloca(POINTER, size=integer(words))
            for words in (MAX_OPERANDS, MAX_OPERANDS * (1 + MAX_AXES), MAX_OPERANDS, MAX_OPERANDS)
        )
        self.shape = self.b.alloca(I64, size=integer(1 + MAX_AXES))  # of an output, first the axis of the states
        self.ends = self.b.alloca(I64, size=integer(2))
        self.states = self.b.alloca(I64)  # their number; -1 for one state without an axis
        self.b.store(integer(-1), self.states)
        ends = ("none", "null", "drop")
        self.refused, self.failed, self.dropped = map(self.function.append_basic_block, ends)

    def emit(self) -> None:
        b = self.b
        self.plan = self.call("PyBytes_AsString", self.plan_object)
        self.inputs, self.outputs = self.word(self.plan, _INPUTS), self.word(self.plan, _OUTPUTS)
        self.room = b.alloca(I64)  # for numbers that are converted to doubles
        b.store(self.word(self.plan, _CONVERTED), self.room)
        # Clears the flags before the inputs are read: those of conversions count too.
        self.call("PyUFunc_getfperr")
        self.take_inputs()
        self.check_zero_entries()
        self.prepare_outputs()
        self.run()
        self.give_outputs()
        b.position_at_end(self.dropped)
        self.drop_outputs()
        b.branch(self.refused)
        b.position_at_end(self.refused)
        self.call("Py_IncRef", self.object_address("None"))
        b.ret(self.object_address("None"))
        b.position_at_end(self.failed)
        self.drop_outputs()
        b.ret(ir.Constant(POINTER, None))

    def take_inputs(self) -> None:
        b = self.b
        self.has_outputs = b.icmp_signed("==", self.count, integer(3))
        self.continue_if(b.or_(self.has_outputs, b.icmp_signed("==", self.count, integer(2))), failure=self.refused)
        objects = self.unpack()
        with loop_over(b, self.inputs) as k:
            argument = self.word(objects, k, POINTER)
            operand = self.operand(k)
            with b.if_else(b.icmp_signed("==", k, self.word(self.plan, _WRENCHES))) as (wrenches, other):
                with wrenches:
                    self.put(self.bases, k, argument)  # converted when all arrays are known
                with other, b.if_else(self.is_a(argument, "ndarray")) as (array, number):
                    with array:
                        self.take_array_or_convert(argument, k, operand)
                    with number, b.if_else(self.is_real(argument)) as (equal, items):
                        with equal:
                            may_be = b.icmp_signed("!=", self.word(operand, _SCALAR), integer(0))
                            self.continue_if(may_be, failure=self.refused)
                            self.take_number(argument, k, operand)
                        with items:
                            self.convert_items(argument, k, operand)

    def unpack(self) -> Any:
        """Returns the address of the inputs in order, from the two tuples and the plan."""
        b = self.b
        objects = b.alloca(POINTER, size=integer(MAX_OPERANDS))
        required, optional = (self.word(self.arguments, k, POINTER) for k in range(2))
        counts = [self.word(self.plan, word) for word in (_REQUIRED, _OPTIONAL)]
        for arguments, count in zip((required, optional), counts, strict=True):
            self.continue_if(self.is_a(arguments, "tuple"), failure=self.refused)
            as_many = b.icmp_signed("==", self.call("PyTuple_Size", arguments), count)
            self.continue_if(as_many, failure=self.refused)
        with loop_over(b, counts[0]) as k:
            self.put(objects, k, self.call("PyTuple_GetItem", required, k))
        entry = self.operand(b.add(self.inputs, self.outputs))  # after the words of the operands

        def place_and_default(k: Any) -> tuple[Any, Any]:
            word = b.mul(k, integer(2))
            return self.word(entry, word), self.word(entry, b.add(word, integer(1)), POINTER)

        with loop_over(b, counts[1]) as k:
            argument = self.call("PyTuple_GetItem", optional, k)
            place, default = place_and_default(k)
            with b.if_else(b.icmp_signed("<", place, integer(0))) as (accepted_option, kernel_input):
                with accepted_option:
                    ignored = b.icmp_signed("==", place, integer(_IGNORED))
                    accepted = b.icmp_unsigned("==", argument, default)
                    self.continue_if(b.or_(ignored, accepted), failure=self.refused)
                with kernel_input:
                    is_none = b.icmp_unsigned("==", argument, self.object_address("None"))
                    self.put(objects, place, b.select(is_none, default, argument))
        with loop_over(b, self.word(self.plan, _FIXED)) as k:
            place, default = place_and_default(b.add(counts[1], k))
            self.put(objects, place, default)
        return objects

    def take_array(self, argument: Any, k: Any, operand: Any) -> Any:
        """Sets an array as operand k of the loop. Returns 1 if it has the axis of states, else 0."""
        shape, axes = self.word_at(operand, _SHAPE), self.word(operand, _AXES)
        lead = self.check_array(argument, axes, lambda axis: self.word(shape, axis), self.states, failure=self.refused)
        self.place_array(argument, k, operand, lead)
        return lead

    def check_zero_entries(self) -> None:
        """Refuses inputs with another number where a joint is locked."""
        b, number = self.b, self.word(self.states, 0)
        states = b.select(b.icmp_signed("==", number, integer(-1)), integer(1), number)
        counts = [self.word(self.plan, word) for word in (_OPTIONAL, _FIXED)]
        entry = self.operand(b.add(self.inputs, self.outputs))
        pairs = self.word_at(entry, b.mul(b.add(*counts), integer(2)))
        with loop_over(b, self.word(self.plan, _ZERO_ENTRIES)) as n:
            k, index = (self.word(pairs, b.add(b.mul(n, integer(2)), integer(side))) for side in range(2))
            stride = self.word(self.steps, self.word(self.operand(k), _FIRST_STEP))
            first = at(b, self.word(self.bases, k, POINTER), b.mul(index, stride))
            with loop_over(b, states) as state:
                value = b.load(at(b, first, b.mul(state, self.word(self.steps, k))), typ=DOUBLE)
                self.continue_if(b.fcmp_ordered("==", value, ir.Constant(DOUBLE, 0.0)), failure=self.refused)

    def take_array_or_convert(self, argument: Any, k: Any, operand: Any) -> None:
        """Sets an array as operand k; vectors of singles or integers are converted."""
        b, kind = self.b, self.field(argument, DESCR)
        single = b.icmp_unsigned("==", kind, self.object_address("float32"))
        whole = b.icmp_unsigned("==", kind, self.object_address("int64"))
        with b.if_else(b.or_(single, whole)) as (other, doubles):
            with doubles:
                self.take_array(argument, k, operand)
            with other:
                axes, length = integer(1), self.word(operand, _SHAPE)
                lead = self.check_array(
                    argument, axes, lambda _: length, self.states, failure=self.refused, checks_type=False
                )
                is_single, strides = b.icmp_signed("==", lead, integer(0)), self.field(argument, STRIDES)
                states = b.select(is_single, integer(1), self.word(self.states, 0))
                numbers = self.take_room(k, operand, states)
                with b.if_then(b.not_(is_single)):
                    self.put(self.steps, k, b.mul(length, integer(8)))
                first, step, stride = self.field(argument, DATA), self.word(strides, 0), self.word(strides, lead)

                def convert(kind: Any, to_double: Callable[..., Any]) -> None:
                    with loop_over(b, states) as state, loop_over(b, length) as n:
                        entry = at(b, first, b.add(b.mul(state, step), b.mul(n, stride)))
                        index = b.add(b.mul(state, length), n)
                        self.put(numbers, index, to_double(b.load(entry, typ=kind), DOUBLE))

                with b.if_else(single) as (singles, integers):
                    with singles:
                        convert(ir.FloatType(), b.fpext)
                    with integers:
                        convert(I64, b.sitofp)

    def convert_items(self, argument: Any, k: Any, operand: Any) -> None:
        """Sets the numbers of a list or tuple as operand k, a vector of one state."""
        b, is_list = self.b, self.is_a(argument, "list")
        self.continue_if(b.or_(is_list, self.is_a(argument, "tuple")), failure=self.refused)
        length, numbers = self.word(operand, _SHAPE), self.take_room(k, operand, integer(1))
        with b.if_else(is_list) as (in_list, in_tuple):
            with in_list:
                self.take_items("list", argument, length, numbers, failure=self.refused)
            with in_tuple:
                self.take_items("tuple", argument, length, numbers, failure=self.refused)

    def take_room(self, k: Any, operand: Any, states: Any) -> Any:
        """Allocates memory for the vectors of operand k, sets it as the operand, and returns its address."""
        b = self.b
        self.continue_if(b.icmp_signed("==", self.word(operand, _AXES), integer(1)), failure=self.refused)
        size = b.mul(states, self.word(operand, _SHAPE))
        left = b.sub(self.word(self.room, 0), size)
        self.continue_if(b.icmp_signed(">=", left, integer(0)), failure=self.refused)
        b.store(left, self.room)
        numbers = b.alloca(DOUBLE, size=size)
        self.place(k, numbers, operand, lambda _: integer(8))
        return numbers

    def place_array(self, array: Any, k: Any, operand: Any, lead: Any) -> None:
        """Sets an array as operand k of the loop. lead: 1 if it has the axis of states, else 0."""
        b, strides = self.b, self.field(array, STRIDES)
        is_single = b.icmp_signed("==", lead, integer(0))
        self.place(k, self.field(array, DATA), operand, lambda axis: self.word(strides, b.add(axis, lead)))
        with b.if_then(b.not_(is_single)):
            self.put(self.steps, k, self.word(strides, 0))

    def take_number(self, argument: Any, k: Any, operand: Any) -> None:
        """Sets a vector of equal numbers as operand k: one number with stride 0."""
        b = self.b
        number = at(b, self.numbers, b.mul(k, integer(8)))
        b.store(self.call("PyFloat_AsDouble", argument), number)
        self.place(k, number, operand, lambda _: integer(0))

    def place(self, k: Any, base: Any, operand: Any, stride: Callable[[Any], Any]) -> None:
        b = self.b
        self.put(self.bases, k, base)
        self.put(self.steps, k, integer(0))  # stride from state to state: there is one state
        first = self.word(operand, _FIRST_STEP)
        with loop_over(b, self.word(operand, _AXES)) as axis:
            self.put(self.steps, b.add(first, axis), stride(axis))

    def prepare_outputs(self) -> None:
        """Takes or creates the outputs. From here to the loop no Python code runs, which could change the inputs."""
        b = self.b
        with loop_over(b, self.outputs) as k:
            self.put(self.new_arrays, k, ir.Constant(POINTER, None))
        number = self.word(self.states, 0)
        self.continue_if(b.icmp_signed("!=", number, integer(0)), failure=self.refused)
        lead = b.zext(b.icmp_signed("!=", number, integer(-1)), I64)
        with b.if_else(self.has_outputs) as (existing, new):
            with existing:
                self.take_outputs(lead)
            with new:
                states = b.select(b.icmp_signed("==", number, integer(-1)), integer(1), number)
                # The gufunc's caller takes large results from a pool, instead of memory that the system has to clear.
                small = b.icmp_signed("<", states, self.word(self.plan, _LARGE_FROM))
                self.continue_if(small, failure=self.refused)
                self.make_outputs(number, lead)

    def take_outputs(self, lead: Any) -> None:
        """Sets the arrays of the third tuple as outputs. lead: 1 if the inputs have the axis of states, else 0."""
        b = self.b
        outputs = self.word(self.arguments, 2, POINTER)
        self.continue_if(self.is_a(outputs, "tuple"), failure=self.refused)
        as_many = b.icmp_signed("==", self.call("PyTuple_Size", outputs), self.outputs)
        self.continue_if(as_many, failure=self.refused)
        # Anything else goes to the gufunc, which copies where arrays overlap, and casts.
        usable = short(_WRITABLE | _CONTIGUOUS)
        with loop_over(b, self.outputs) as k:
            array, place = self.call("PyTuple_GetItem", outputs, k), b.add(self.inputs, k)
            self.continue_if(self.is_a(array, "ndarray"), failure=self.refused)
            flags = b.and_(self.field(array, FLAGS, I32), usable)
            self.continue_if(b.icmp_signed("==", flags, usable), failure=self.refused)
            array_lead = self.take_array(array, place, self.operand(place))
            self.continue_if(b.icmp_signed("==", array_lead, lead), failure=self.refused)
            start, end = self.extent(place)
            with loop_over(b, place) as other:
                is_array = b.icmp_signed("!=", other, self.word(self.plan, _WRENCHES))
                with b.if_then(is_array):  # the arrays of wrenches are the caller's to check
                    first, last = self.extent(other)
                    disjoint = b.or_(b.icmp_unsigned("<=", end, first), b.icmp_unsigned("<=", last, start))
                    self.continue_if(disjoint, failure=self.refused)

    def extent(self, k: Any) -> tuple[Any, Any]:
        """Returns the addresses of the first byte of operand k and of the byte after its last."""
        b, ends = self.b, self.ends
        base = b.ptrtoint(self.word(self.bases, k, POINTER), I64)
        for side in range(2):
            self.put(ends, side, base)

        def extend(length: Any, stride: Any) -> None:
            distance = b.mul(b.sub(length, integer(1)), stride)
            side = b.zext(b.icmp_signed(">", distance, integer(0)), I64)
            self.put(ends, side, b.add(self.word(ends, side), distance))

        number, operand = self.word(self.states, 0), self.operand(k)
        extend(b.select(b.icmp_signed("==", number, integer(-1)), integer(1), number), self.word(self.steps, k))
        first = self.word(operand, _FIRST_STEP)
        with loop_over(b, self.word(operand, _AXES)) as axis:
            extend(self.word(self.word_at(operand, _SHAPE), axis), self.word(self.steps, b.add(first, axis)))
        return self.word(ends, 0), b.add(self.word(ends, 1), integer(8))

    def make_outputs(self, number: Any, lead: Any) -> None:
        b = self.b
        null = ir.Constant(POINTER, None)
        self.put(self.shape, 0, number)
        with loop_over(b, self.outputs) as k:
            place = b.add(self.inputs, k)
            operand = self.operand(place)
            axes = self.word(operand, _AXES)
            with loop_over(b, axes) as axis:
                self.put(self.shape, b.add(axis, integer(1)), self.word(self.word_at(operand, _SHAPE), axis))
            new = self.call(
                "PyArray_New",
                self.object_address("ndarray"),
                b.trunc(b.add(axes, lead), I32),
                self.word_at(self.shape, b.sub(integer(1), lead)),
                short(np.dtype(np.float64).num),
                null,
                null,
                short(0),
                short(0),
                null,
            )
            self.put(self.new_arrays, k, new)
            self.continue_if(b.icmp_unsigned("!=", new, null), failure=self.failed)
            self.place_array(new, place, operand, lead)

    def run(self) -> None:
        """Converts the wrenches and runs the loop, without the GIL if it takes long."""
        b = self.b
        number, wrenches = self.word(self.states, 0), self.word(self.plan, _WRENCHES)
        states = b.select(b.icmp_signed("==", number, integer(-1)), integer(1), number)
        count, table = b.alloca(I64), b.alloca(POINTER)
        b.store(states, count)
        has_wrenches = b.icmp_signed(">=", wrenches, integer(0))
        with b.if_then(has_wrenches):
            objects, words = self.word(self.bases, wrenches, POINTER), b.alloca(I64, size=integer(TABLE_WORDS))
            converted = b.call(self.convert, [self.word(self.plan, _CONVERSION, POINTER), objects, words, number])
            self.continue_if(b.icmp_signed("!=", converted, short(0)), failure=self.dropped)
            self.put(self.bases, wrenches, words)
            b.store(words, table)
        release = b.icmp_signed(">=", states, self.word(self.plan, _RELEASED_FROM))
        # Below some 50 us the GIL is held: with other threads busy, calls that released it took up to 2 ms.
        with b.if_else(release) as (released, locked):
            with released:
                with b.if_then(has_wrenches):  # another thread may change the list of wrenches
                    emit_for_each(self, b.load(table, typ=POINTER), "Py_IncRef")
                thread = self.call("PyEval_SaveThread")
                self.call_loop(count)
                self.call("PyEval_RestoreThread", thread)
                with b.if_then(has_wrenches):
                    emit_for_each(self, b.load(table, typ=POINTER), "Py_DecRef")
            with locked:
                self.call_loop(count)
        # A flag is a warning, an error or nothing, as `numpy.errstate` says: the gufunc computes again and follows it.
        self.continue_if(b.icmp_signed("==", self.call("PyUFunc_getfperr"), short(0)), failure=self.dropped)

    def call_loop(self, count: Any) -> None:
        # The loop reads only the first dimension, the number of states.
        loop = self.word(self.plan, _LOOP, LOOP.as_pointer())
        self.b.call(loop, [self.bases, count, self.steps, self.word(self.plan, _LOOP_PLAN, POINTER)])

    def give_outputs(self) -> None:
        b = self.b
        null = ir.Constant(POINTER, None)
        with b.if_then(self.has_outputs):
            outputs = self.word(self.arguments, 2, POINTER)
            single = b.icmp_signed("==", self.outputs, integer(1))
            first = self.call("PyTuple_GetItem", outputs, integer(0))
            outputs = b.select(single, first, outputs)
            self.call("Py_IncRef", outputs)
            b.ret(outputs)
        with loop_over(b, self.outputs) as k:
            answer = self.call("PyArray_Return", self.word(self.new_arrays, k, POINTER))  # a number if it has no axes
            self.put(self.new_arrays, k, answer)
            self.continue_if(b.icmp_unsigned("!=", answer, null), failure=self.failed)
        with b.if_then(b.icmp_signed("==", self.outputs, integer(1))):
            b.ret(self.word(self.new_arrays, integer(0), POINTER))
        answers = self.call("PyTuple_New", self.outputs)
        self.continue_if(b.icmp_unsigned("!=", answers, null), failure=self.failed)
        with loop_over(b, self.outputs) as k:
            self.call("PyTuple_SetItem", answers, k, self.word(self.new_arrays, k, POINTER))
        b.ret(answers)

    def drop_outputs(self) -> None:
        with loop_over(self.b, self.outputs) as k:
            self.call("Py_DecRef", self.word(self.new_arrays, k, POINTER))  # which accepts NULL

    def operand(self, k: Any) -> Any:
        """Returns the address of the plan's words of operand k."""
        words = self.b.add(integer(_OPERANDS), self.b.mul(k, integer(_OPERAND_WORDS)))
        return self.word_at(self.plan, words)
