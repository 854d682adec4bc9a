"""LLVM IR to machine code for this very processor."""

from __future__ import annotations

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
    machine = _machine()
    module = llvm.parse_assembly(text)
    module.triple = host().triple
    module.data_layout = str(machine.target_data)
    module.verify()
    # The graph comes with common terms shared and constants folded. These passes find the products to fuse; the whole
    # standard pipeline takes four times as long and finds no more.
    passes = llvm.create_new_module_pass_manager()
    passes.add_reassociate_pass()
    passes.add_instruction_combine_pass()
    passes.add_new_gvn_pass()
    builder = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions())
    passes.run(module, builder)
    return bytes(machine.emit_object(module))


class LoadedCode:
    """Object code in memory, ready to run. The addresses are valid while this object lives.

    size: of the object code, in bytes.
    """

    def __init__(self, code: bytes) -> None:
        self.size = len(code)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where the function of that name begins."""
        return int(self._engine.get_function_address(name))
