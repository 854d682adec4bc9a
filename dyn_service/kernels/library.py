"""The kernels of one robot: made when first asked for, kept in memory and on disk."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels import store
from dyn_service.kernels.gufunc import make_gufunc
from dyn_service.kernels.jit import LoadedCode, compile_ir, host
from dyn_service.kernels.making import making
from dyn_service.kernels.signature import Signature
from dyn_service.model.tree import Tree

ENTRY = "loop"
"""The function in the machine code that NumPy calls."""

MOST_OPERATIONS = 200_000
"""Operations of one kernel: some twenty seconds of compiling. The largest of a 100-joint robot have half of it."""


@dataclass(eq=False)
class KernelLibrary:
    """links: the tree with one body per link. bodies: the tree of what moves. Safe to use from several threads."""

    links: Tree
    bodies: Tree
    _made: dict[str, np.ufunc] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __contains__(self, signature: Signature) -> bool:
        return signature.name in self._made

    def kernel(self, signature: Signature) -> np.ufunc:
        """The gufunc of this signature; the first call loads it from disk or compiles it."""
        made = self._made.get(signature.name)
        if made is None:
            with making(f"{signature.name} of robot '{self.links.name}'"), self._lock:
                made = self._made.get(signature.name)
                if made is None:
                    made = make_gufunc(signature, LoadedCode(self._code(signature)), ENTRY)
                    self._made[signature.name] = made
        return made

    def _code(self, signature: Signature) -> bytes:
        machine = host()
        name = store.key(
            self.links.fingerprint, signature.name, signature.gufunc, machine.triple, machine.cpu, machine.features
        )
        code = store.load(name)
        if code is None:
            # Imported here: a start from the cache then needs no tracer.
            from dyn_service.kernels.frames import as_given, simplest
            from dyn_service.kernels.graph import trace
            from dyn_service.kernels.lower import lower

            model = as_given(self.links) if signature.links else simplest(self.bodies)
            graph = trace(model, signature)
            if graph.operations > MOST_OPERATIONS:
                raise ResourceExhaustedError(
                    f"{signature.name} of robot '{self.links.name}' takes {graph.operations} operations, more than the "
                    f"{MOST_OPERATIONS} that are compiled: its {len(self.links)} links are too many for this query"
                )
            code = compile_ir(lower(graph, machine.lanes, ENTRY))
            store.save(name, code)
        return code
