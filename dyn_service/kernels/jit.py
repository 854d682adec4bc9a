"""LLVM IR to machine code for this processor.

`make_gufunc` makes a `numpy.ufunc` of it: NumPy broadcasts, casts, fills `out=`, checks shapes, releases the GIL.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels import store
from dyn_service.kernels.signature import Signature


@dataclass(frozen=True)
class Host:
    """The processor that kernels are compiled for. lanes: doubles in a vector register, as kernels use them."""

    triple: str
    cpu: str
    features: str
    lanes: int


@cache
def host() -> Host:
    """Returns this machine's processor."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512dq"):
        lanes = 8
    elif features.get("avx2") and features.get("fma"):
        lanes = 4
    else:
        lanes = 2
    return Host(llvm.get_default_triple(), llvm.get_host_cpu_name(), features.flatten(), lanes)


def _machine(*, optimised: bool = True) -> Any:
    """Returns a new code generator for this processor; an engine takes ownership of its own."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(host().triple)
    # LLVM's basic register allocator halves the time to generate code, which then takes 1.6 times as long; without the
    # scheduler it takes 1.2 times as long, and level 1 gives the same code in the same time.
    return target.create_target_machine(
        cpu=host().cpu, features=host().features, opt=2 if optimised else 0, reloc="pic", codemodel="small", jit=True
    )


_READ_ADDRESSES = """
!llvm.module.flags = !{!1000000}
!1000000 = !{i32 7, !"RtLibUseGOT", i32 1}
"""
"""Makes calls that LLVM adds, such as `fma` on processors without it, read the function's address from memory. Calls
that kernels contain do so by the attribute `nonlazybind` (`llvm_ir.library_function`).
"""


def compile_ir(text: str, *, level: int = 1) -> bytes:
    """Returns the object code of a module.

    level: 0 is without optimisation, in a third of the time; 1 has the passes that make arithmetic faster; 2 also those
    that make loops and local variables faster.
    """
    machine = _machine(optimised=level > 0)
    try:
        with ExitStack() as owned:
            with _COMPILING:
                # A context keeps every constant of its modules, so each module gets its own, freed with it.
                context = owned.enter_context(llvm.create_context())
                module = owned.enter_context(llvm.parse_assembly(text + _READ_ADDRESSES, context))
                _optimise(module, level, machine)
            return _object_code(machine, module)
    finally:
        _free_dropped()


def _optimise(module: Any, level: int, machine: Any) -> None:
    module.triple = host().triple
    module.data_layout = str(machine.target_data)
    module.verify()
    if level:
        passes, builder = _passes(level)
        passes.run(module, builder)


def _object_code(machine: Any, module: Any) -> bytes:
    """Returns `machine.emit_object(module)`, while other threads can do the same with other machines and contexts."""
    # llvmlite's own method holds its lock, although LLVM's code generation takes half of the time to compile.
    with llvm.ffi.OutputString() as error:
        code = _unlocked_emit()(machine, module, 1, error)
        if not code:
            raise RuntimeError(str(error))
    library = llvm.ffi.lib
    try:
        return ctypes.string_at(library.LLVMPY_GetBufferStart(code), library.LLVMPY_GetBufferSize(code))
    finally:
        library.LLVMPY_DisposeMemoryBuffer(code)


@cache
def _unlocked_emit() -> Any:
    """Returns LLVM's code generation without llvmlite's lock, which allows one thread at a time to call LLVM."""
    locked = llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory
    library = ctypes.CDLL(llvm.ffi.lib._name, handle=llvm.ffi.lib._handle)
    # A second handle of the library: argument types are set on the function object, not on llvmlite's.
    unlocked = library.LLVMPY_TargetMachineEmitToMemory
    unlocked.argtypes, unlocked.restype = locked.argtypes, locked.restype
    return unlocked


@cache
def _passes(level: int) -> tuple[Any, Any]:
    """Returns the passes over a module, and their pass builder.

    Created once: llvmlite never frees a pass manager, some 60 kB each.
    """
    passes = llvm.create_new_module_pass_manager()
    if level > 1:
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
    # Common terms of the graph are shared and constants folded already. These passes find the products to fuse; the
    # whole standard pipeline takes four times as long and finds no more.
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    if level > 1:
        passes.add_simplify_cfg_pass()
    return passes, llvm.create_pass_builder(_machine(), llvm.PipelineTuningOptions())


class LoadedCode:
    """Object code that is loaded. It can be called, and its addresses are valid, while this object lives.

    size: bytes of object code. failures: the number of calls that found no memory for their buffer.
    """

    def __init__(self, code: bytes) -> None:
        self.size = len(code)
        # One block for code and constants: code reaches them within 2 GiB, also next to libraries that reserve more.
        # Its size counts addresses of other functions only if calls read them from memory: see `_READ_ADDRESSES`.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(), use_lmm=True)
        weakref.finalize(self, _drop, self._engine).atexit = False  # freed with the process
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        self.failures = ctypes.c_int64()

    def address(self, name: str) -> int:
        """Returns the address of a function; 0 if there is none of that name."""
        return int(self._engine.get_function_address(name))

    def global_address(self, name: str) -> int:
        """Returns the address of a global variable; 0 if there is none of that name."""
        return int(self._engine.get_global_value_address(name))

    @contextmanager
    def checked(self, kernel: str) -> Iterator[None]:
        """Raises ResourceExhaustedError if a call within the block finds no memory; in other threads too."""
        previous_failures = self.failures.value
        try:
            yield
        except (FloatingPointError, RuntimeWarning):  # a call without memory sets a status flag; see `numpy.errstate`
            if self.failures.value == previous_failures:
                raise
        if self.failures.value != previous_failures:
            raise ResourceExhaustedError(f"{kernel}: there is not enough memory for the workspace of this kernel")


@dataclass(frozen=True, eq=False)
class Loop:
    """The inner loop of a kernel; see `kernels.loop`.

    address: its function. plan: a ctypes buffer, the last argument of that function. code: the code of the kernel.
    work: bytes of code that run for a vector of states; code that runs several times is counted each time. allocates:
    whether calls allocate memory. owned: other objects that the plan points to.
    """

    address: int
    plan: Any
    code: LoadedCode
    work: int
    allocates: bool
    owned: tuple[object, ...]


def shared_code(name: str, module: str, emit: Callable[[], str]) -> LoadedCode:
    """Returns code that all kernels share, loaded into this process; it is compiled once and kept in the store.

    Args:
        name: The name of the code.
        module: The Python module that writes it, such as `kernels.loop`.
        emit: Returns its LLVM module.
    """
    machine = host()
    key = store.key(name, store.provenance(module), machine.triple, machine.cpu, machine.features)
    code = store.load(key)
    if code is None:
        code = compile_ir(emit(), level=2)
        store.save(key, code)
    return LoadedCode(code)


# llvmlite runs one call at a time, and the passes over a large module take long. A thread that drops a kernel
# meanwhile, such as a control loop, must not wait: the compiling thread frees the kernel's code afterwards.

_COMPILING = threading.Lock()
_DROPPED: deque[Any] = deque()
"""Engines that no `LoadedCode` owns any more."""


def _drop(engine: Any) -> None:
    _DROPPED.append(engine)
    _free_dropped()


def _free_dropped() -> None:
    """Frees dropped engines; during the passes of a compilation it leaves them to the compiling thread.

    Takes no lock, which an interrupt could leave held: llvmlite locks each call, and an engine lost in an interrupt is
    freed by its own finalizer. Passes that begin between the check and the call delay this call, rarely.
    """
    while _DROPPED and not _COMPILING.locked():
        try:
            engine = _DROPPED.popleft()
        except IndexError:  # another thread took it
            return
        engine.close()


@cache
def _trim() -> Callable[[int], int] | None:
    """Returns glibc's `malloc_trim`; None on systems without it."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def release_freed_memory() -> None:
    """Gives the memory that tracing and compiling have freed back to the system; glibc keeps 3 MB for each robot."""
    trim = _trim()
    if trim is not None:
        trim(0)


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
    """Makes the ufunc own an object, in the slot in which `numpy.frompyfunc` keeps its function.

    NumPy releases this object when the ufunc is freed, and reports it to the garbage collector.
    """
    head = _UFuncHead.from_address(id(ufunc))
    if head.obj is not None or not _slot_is_known():
        _PERMANENT.append(owned)
        return
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))
    # The code then lives as long as the ufunc, without a wrapper that each call would pay for.
    head.obj = id(owned)


@cache
def _slot_is_known() -> bool:
    """Whether `_UFuncHead.obj` is at the right offset."""
    probe = np.frompyfunc(_slot_is_known, 0, 1)
    return bool(_UFuncHead.from_address(id(probe)).obj == id(_slot_is_known))


_PERMANENT: list[object] = []
"""Objects of ufuncs without such a slot, kept to the end of the process."""


def gufunc(name: str, shape: str, inputs: int, outputs: int, loop: Loop) -> np.ufunc:
    """Returns the generalised ufunc of a loop over doubles; `shape` is its signature in NumPy's notation.

    It owns the code; its caller holds a reference to it, so code is never freed while it runs.
    """
    loops = (ctypes.c_void_p * 1)(loop.address)
    data = (ctypes.c_void_p * 1)(ctypes.addressof(loop.plan))
    types = bytes([np.dtype(np.float64).num]) * (inputs + outputs)
    text, core = name.encode(), shape.encode()
    ufunc: np.ufunc = _constructor()(
        ctypes.addressof(loops),
        ctypes.addressof(data),
        types,
        1,
        inputs,
        outputs,
        -1,  # PyUFunc_None: no identity
        text,
        core,
        0,
        core,
    )
    _own(ufunc, (loops, data, types, text, core, loop))  # NumPy does not copy them
    return ufunc


def make_gufunc(signature: Signature, loop: Loop) -> np.ufunc:
    """Returns the generalised ufunc of a kernel, which raises ResourceExhaustedError if a call finds no memory."""
    ufunc = gufunc(signature.name, signature.gufunc, len(signature.inputs), len(signature.outputs), loop)
    if not loop.allocates:
        return ufunc

    def checked(*arguments: Any, **options: Any) -> Any:
        with loop.code.checked(signature.name):
            return ufunc(*arguments, **options)

    return checked  # type: ignore[return-value]
