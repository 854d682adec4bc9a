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
    """The processor that kernels are compiled for. lanes: doubles in its widest vector registers."""

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


def _machine() -> Any:
    """Returns a new code generator for this processor; an engine takes ownership of its own."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(host().triple)
    return target.create_target_machine(
        cpu=host().cpu, features=host().features, opt=2, reloc="pic", codemodel="small", jit=True
    )


def compile_ir(text: str) -> bytes:
    """Returns the object code of a module."""
    try:
        with _COMPILING:
            return _compiled(text)
    finally:
        _free_dropped()


def _compiled(text: str) -> bytes:
    machine = _machine()
    # A context keeps every constant of its modules, so each module gets its own, freed with it.
    with llvm.create_context() as context, llvm.parse_assembly(text, context) as module:
        module.triple = host().triple
        module.data_layout = str(machine.target_data)
        module.verify()
        passes, builder = _passes()
        passes.run(module, builder)
        return bytes(machine.emit_object(module))


@cache
def _passes() -> tuple[Any, Any]:
    """Returns the passes of every module, and their pass builder.

    Created once: llvmlite never frees a pass manager, some 60 kB each.
    """
    # Common terms of the graph are shared and constants folded already. These passes find the products to fuse; the
    # whole standard pipeline takes four times as long and finds no more.
    passes = llvm.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    return passes, llvm.create_pass_builder(_machine(), llvm.PipelineTuningOptions())


class LoadedCode:
    """Object code in memory, ready to run. Addresses are valid, and the code is loaded, while this object lives.

    size: bytes of object code.
    """

    def __init__(self, code: bytes) -> None:
        self.size = len(code)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        weakref.finalize(self, _drop, self._engine).atexit = False  # freed with the process
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Returns the address of a function."""
        return int(self._engine.get_function_address(name))


# llvmlite runs one call at a time, and a compilation takes seconds. A thread that drops a kernel during one, such as a
# control loop, must not wait: the compiling thread frees the kernel's code afterwards.

_COMPILING = threading.Lock()
_DROPPED: deque[Any] = deque()
"""Engines whose code has no owner."""


def _drop(engine: Any) -> None:
    _DROPPED.append(engine)
    _free_dropped()


def _free_dropped() -> None:
    """Frees dropped engines; during a compilation it leaves them to the compiling thread.

    Takes no lock, which an interrupt could leave held: llvmlite locks each call, and an engine lost in an interrupt is
    freed by its own finalizer. A compilation that begins between the check and the call delays this call, rarely.
    """
    while _DROPPED and not _COMPILING.locked():
        try:
            engine = _DROPPED.popleft()
        except IndexError:  # another thread took it
            return
        engine.close()
