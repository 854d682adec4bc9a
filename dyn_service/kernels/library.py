"""The kernels of one robot: made when first asked for, certified, kept in memory and on disk."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels import store
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.gufunc import make_gufunc
from dyn_service.kernels.jit import LoadedCode, compile_ir, host
from dyn_service.kernels.making import making
from dyn_service.kernels.provenance import COMPILER, provenance
from dyn_service.kernels.signature import Signature
from dyn_service.kernels.single import SingleStateCall, single_state_call
from dyn_service.model.tree import Tree

if TYPE_CHECKING:
    from dyn_service.kernels.graph import Graph

_KEPT_AS = "certificate, line break, code"
"""What a kept kernel's file holds."""

ENTRY = "loop"
"""The function in the machine code that NumPy calls."""

MOST_OPERATIONS = 200_000
"""Operations of one kernel: some twenty seconds of compiling. The largest of a 100-joint robot have half of it."""


@dataclass(eq=False)
class KernelLibrary:
    """links: the tree with one body per link. Safe to use from several threads."""

    links: Tree
    _made: dict[str, np.ufunc] = field(default_factory=dict)
    _codes: dict[str, LoadedCode] = field(default_factory=dict)
    _certificates: dict[str, Certificate] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __contains__(self, signature: Signature) -> bool:
        return signature.name in self._made

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Of the kernels made so far, by name."""
        return dict(self._certificates)

    def kernel(self, signature: Signature) -> np.ufunc:
        """The gufunc of this signature; the first call loads it from disk, or compiles and certifies it."""
        made = self._made.get(signature.name)
        if made is None:
            with making(f"{signature.name} of robot '{self.links.name}'"), self._lock:
                made = self._made.get(signature.name)
                if made is None:
                    made, self._certificates[signature.name] = self._load(signature) or self._make(signature)
                    self._made[signature.name] = made
        return made

    def load(self, signature: Signature) -> bool:
        """Fetches the kernel from disk, if it is there; whether it can be called now. Compiles nothing."""
        if signature.name not in self._made and not signature.empty:
            with self._lock:
                if signature.name not in self._made and (loaded := self._load(signature)) is not None:
                    self._made[signature.name], self._certificates[signature.name] = loaded
        return signature.empty or signature.name in self._made

    def single_state(self, signature: Signature) -> SingleStateCall | None:
        """A faster way into the same kernel for one state: its answer, or None where the kernel has to be asked.

        None at once where there is no such way: see `kernels.single`. Made anew at each call, so worth keeping.
        """
        if signature.empty:
            return None
        self.kernel(signature)
        code = self._codes.get(signature.name)  # there is none where the kernel is interpreted
        return None if code is None else single_state_call(signature, code, ENTRY)

    def _load(self, signature: Signature) -> tuple[np.ufunc, Certificate] | None:
        kept = store.load(self._key(signature))
        if kept is None:
            return None
        certificate, _, code = kept.partition(b"\n")
        return self._gufunc(signature, code), Certificate(**json.loads(certificate))

    def _make(self, signature: Signature) -> tuple[np.ufunc, Certificate]:
        # Imported here: a start from the cache then needs no tracer.
        from dyn_service.kernels.certify import certified

        codes: list[bytes] = []

        def build(graph: Graph) -> np.ufunc:
            codes.append(self._compiled(graph))
            return self._gufunc(signature, codes[-1])

        kernel, certificate, _ = certified(self.links, signature, build)
        store.save(self._key(signature), json.dumps(asdict(certificate)).encode() + b"\n" + codes[-1])
        return kernel, certificate

    def _gufunc(self, signature: Signature, code: bytes) -> np.ufunc:
        self._codes[signature.name] = loaded = LoadedCode(code)
        return make_gufunc(signature, loaded, ENTRY)

    def _compiled(self, graph: Graph) -> bytes:
        from dyn_service.kernels.lower import lower

        if graph.operations > MOST_OPERATIONS:
            raise ResourceExhaustedError(
                f"{graph.signature.name} of robot '{self.links.name}' takes {graph.operations} operations, more than "
                f"the {MOST_OPERATIONS} that are compiled: its {len(self.links)} links are too many for this query"
            )
        return compile_ir(lower(graph, host().lanes, ENTRY))

    def _key(self, signature: Signature) -> str:
        machine = host()
        return store.key(
            self.links.fingerprint,
            repr(signature),
            provenance(f"dynamics.{signature.function.partition('.')[0]}", *COMPILER),
            _KEPT_AS,
            machine.triple,
            machine.cpu,
            machine.features,
        )
