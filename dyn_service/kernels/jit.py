"""LLVM IR to machine code for this processor."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm


@dataclass(frozen=True)
class Host:
    """The processor kernels are compiled for. lanes: doubles in its widest vector registers."""

    triple: str
    cpu: str
    features: str
    lanes: int


@cache
def host() -> Host:
    """This machine's processor."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512dq"):
        lanes = 8
    elif features.get("avx2") and features.get("fma"):
        lanes = 4
    else:
        lanes = 2
    return Host(llvm.get_default_triple(), llvm.get_host_cpu_name(), features.flatten(), lanes)


def _machine() -> Any:
    """A code generator for this processor. An engine takes over the one it is given, so each use makes its own."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(host().triple)
    return target.create_target_machine(
        cpu=host().cpu, features=host().features, opt=2, reloc="pic", codemodel="small", jit=True
    )


def compile_ir(text: str) -> bytes:
    """Object code of a module."""
    try:
        with _COMPILING:
            return _compiled(text)
    finally:
        _free_dropped()


def _compiled(text: str) -> bytes:
    machine = _machine()
    # What a context has seen, every constant of it, it keeps: each module gets its own, which goes with it.
    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
        module.triple = host().triple
        module.data_layout = str(machine.target_data)
        module.verify()
        passes, builder = _passes()
        passes.run(module, builder)
        return bytes(machine.emit_object(module))


@cache
def _passes() -> tuple[Any, Any]:
    """The passes that every module goes through, and what they are run with.

    Made once: llvmlite never frees a pass manager, some 60 kB each.
    """
    # The graph comes with common terms shared and constants folded. These passes find the products to fuse; the whole
    # standard pipeline takes four times as long and finds no more.
    passes = llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    return passes, llvm.create_pass_builder(_machine(), llvm.PipelineTuningOptions())


class LoadedCode:
    """Object code in memory, ready to run. The addresses are valid while this object lives; with it the code goes.

    size: of the object code, in bytes.
    """

    def __init__(self, code: bytes) -> None:
        self.size = len(code)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        weakref.finalize(self, _drop, self._engine).atexit = False  # the process's end frees it anyway
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where the function of that name begins."""
        return int(self._engine.get_function_address(name))


# llvmlite runs one call at a time, and a compilation takes seconds. A thread that drops a kernel meanwhile, such as a
# control loop, must not wait for it: the thread that compiles frees the kernel's code afterwards.

_COMPILING = threading.Lock()
_DROPPED: deque[Any] = deque()
"""Engines of code without owner."""


def _drop(engine: Any) -> None:
    _DROPPED.append(engine)
    _free_dropped()


def _free_dropped() -> None:
    """Frees dropped engines, except during a compilation, whose thread frees them when it has ended.

    It takes no lock, which an interrupt could leave held: llvmlite locks each call, and an engine that an interrupt
    loses is freed by its own finalizer. A compilation that begins between the check and the call delays it, rarely.
    """
    while _DROPPED and not _COMPILING.locked():
        try:
            engine = _DROPPED.popleft()
        except IndexError:  # another thread took it
            return
        engine.close()
