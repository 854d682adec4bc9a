"""The kernels of one robot: compiled on first use, certified, kept in memory and on disk."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels import store
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.compile_events import compilation
from dyn_service.kernels.direct import Arguments, DirectCall, direct_call
from dyn_service.kernels.jit import LoadedCode, Loop, host, make_gufunc, release_freed_memory
from dyn_service.kernels.loop import Body, loop_of
from dyn_service.kernels.rollout import Block
from dyn_service.kernels.row_selection import Selected, selected
from dyn_service.kernels.signature import Signature
from dyn_service.kernels.store import COMPILER, provenance
from dyn_service.kernels.wrenches import Place, WrenchConversion
from dyn_service.model.loop_tree import LoopTree
from dyn_service.model.tree import Tree

if TYPE_CHECKING:
    from dyn_service.kernels.graph import Graph
    from dyn_service.kernels.rolled import Rolled
    from dyn_service.kernels.staged import Staged

    Traced: TypeAlias = Graph | Rolled | Staged

_REFUSAL = "refused as too large"
_FILE_FORMAT = "certificate or refusal, line break, code"
"""Format of a stored kernel's file; part of its key."""


MAX_LIST_KERNELS = 64
"""Most kernels of lists of queries of one robot, one for each method and variant. Clients may ask for any list."""

_SEPARATE = "kernels of its queries"
"""In the store: a list that uses the kernels of its queries, since one of these is compiled as loops."""


def _processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Separate:
    """The kernel of a list of queries that calls the kernels of its queries one after the other."""

    signature: Signature
    kernels: tuple[Any, ...]

    def __call__(self, *arrays: Any, out: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
        """Returns the outputs of all kernels, with the leading axes of all inputs."""
        arrays_of = dict(zip((operand.name for operand in self.signature.inputs), map(np.asarray, arrays), strict=True))
        sizes = [
            arrays_of[operand.name].shape[: arrays_of[operand.name].ndim - len(operand.shape)]
            for operand in self.signature.inputs
        ]
        lead, results = np.broadcast_shapes(*sizes), list[Any]()
        for part, kernel in zip(self.signature.parts, self.kernels, strict=True):
            answer = kernel(*(arrays_of[operand.name] for operand in part.inputs))
            results += answer if isinstance(answer, tuple) else (answer,)
        outputs = out or tuple(np.empty(lead + operand.shape) for operand in self.signature.outputs)
        for array, x in zip(outputs, results, strict=True):
            array[...] = x
        return outputs


@dataclass(frozen=True, eq=False)
class LibraryKernel:
    """A kernel that can be called. kernel: a gufunc or `Separate`. loop: its compiled loop; None for `Separate`."""

    kernel: Any
    certificate: Certificate
    loop: Loop | None


@dataclass(eq=False)
class KernelLibrary:
    """The kernels of one robot. Safe to use from several threads, which can make different kernels at the same time.

    links: the tree with one body per link. A kernel's code lives as long as this library, the kernel or one of its
    direct calls.
    """

    links: Tree
    _kernels: dict[str, LibraryKernel] = field(default_factory=dict)
    _blocks: dict[str, Block] = field(default_factory=dict)
    _refusals: dict[str, str] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def __contains__(self, signature: Signature) -> bool:
        return signature.name in self._kernels

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of the kernels made so far, by name."""
        return {name: kernel.certificate for name, kernel in self._kernels.copy().items()}

    def kernel(self, signature: Signature) -> np.ufunc:
        """Returns the gufunc of this signature; the first call loads it from disk, or compiles and certifies it.

        Raises:
            ResourceExhaustedError: The kernel needs too many operations; the refusal is stored like a kernel.
        """
        kernel: np.ufunc = self._get(signature).kernel
        return kernel

    def load(self, signature: Signature) -> bool:
        """Loads a kernel from disk if it is not in memory; returns whether it is in memory.

        Never compiles, and does not wait for a compiling thread.

        Raises:
            ResourceExhaustedError: The kernel was refused before: it needs too many operations.
        """
        if signature.name not in self._kernels:
            kernel = self._load(signature)
            if kernel is None:
                return False
            self._refuse_more_lists(signature)
            # Another thread may have loaded it meanwhile: the first one stays, since calls may hold it.
            self._kernels.setdefault(signature.name, kernel)
        return True

    @contextmanager
    def making(self, signatures: Sequence[Signature]) -> Iterator[None]:
        """Within this block, another thread makes these kernels too, from the last to the first: LLVM releases the GIL.

        There is no such thread on one processor, or if fewer than two kernels are missing. It ignores errors: the
        caller gets the error of a kernel when it makes or calls it.
        """
        stopped = threading.Event()

        def make() -> None:
            # From the other end than the caller, so that the two meet once.
            for signature in reversed(missing):
                if not stopped.is_set():
                    with suppress(Exception):
                        self.kernel(signature)

        missing = [signature for signature in signatures if not self._is_known(signature)] if _processors() > 1 else []
        thread = threading.Thread(target=make, name="dyn_service compiler") if len(missing) > 1 else None
        if thread is not None:
            thread.start()
        try:
            yield
        finally:
            stopped.set()
            if thread is not None:
                thread.join()

    def _is_known(self, signature: Signature) -> bool:
        try:
            return self.load(signature)
        except ResourceExhaustedError:
            return True

    def direct_call(
        self,
        signature: Signature,
        arguments: Arguments,
        conversion: WrenchConversion | None = None,
        selection: Selected | None = None,
    ) -> DirectCall | None:
        """Returns the direct call of a kernel, or None if it has none; see `kernels.direct`.

        The direct call itself returns None for arguments that need the gufunc. Each call of this method creates a new
        one, so callers should keep it.

        Args:
            signature: The signature of the kernel.
            arguments: The arguments of the call.
            conversion: For a kernel with wrenches, their conversion.
            selection: The selected rows; None: all rows.
        """
        loop = None if signature.empty else self._get(signature).loop
        if loop is None:
            return None
        if selection is None:
            return direct_call(signature, loop, arguments, conversion)
        return direct_call(selection.signature, selection.loop, arguments, conversion)

    def selected(self, signature: Signature, rows: Sequence[int]) -> tuple[Selected, np.ufunc] | None:
        """Returns the selection of rows of a kernel, and its gufunc; None if rows of it cannot be selected."""
        loop = self._get(signature).loop
        selection = None if loop is None else selected(signature, loop.code, rows)
        return None if selection is None else (selection, make_gufunc(selection.signature, selection.loop))

    def work(self, signature: Signature) -> int:
        """Returns the bytes of machine code that a kernel runs for a vector of states; 0 for `Separate`."""
        loop = self._get(signature).loop
        return 0 if loop is None else loop.work

    def block(self, signature: Signature) -> Block | None:
        """Returns a kernel in memory as a function of a vector of states.

        None if it is not in memory, has padded inputs or no outputs, or computes fewer states than a vector has.
        """
        if signature.name not in self._blocks:
            kernel = None if signature.empty or signature.padded else self._kernels.get(signature.name)
            body = None if kernel is None or kernel.loop is None else Body.of(kernel.loop.code)
            if body is None or body.lanes < host().lanes:
                return None
            self._blocks[signature.name] = Block(body, signature)
        return self._blocks[signature.name]

    def wrench_conversion(
        self, poses: Signature, links: dict[str, int], places: Sequence[Place]
    ) -> WrenchConversion | None:
        """Returns the conversion of wrenches, which calls the kernel of `link_poses`; None if it has no compiled loop.

        Args:
            poses: The signature of `link_poses`.
            links: Index of each link by name; must not change.
            places: By link, the body that its wrench acts on.
        """
        loop = None if poses.empty or poses.padded else self._get(poses).loop
        return None if loop is None else WrenchConversion(Body.of(loop.code), links, places)

    def _get(self, signature: Signature) -> LibraryKernel:
        kernel = self._kernels.get(signature.name)
        if kernel is None:
            self._refuse_more_lists(signature)
            lock = self._locks.setdefault(signature.name, threading.Lock())
            # Kernels of one robot have a lock each, so that two threads compile two of them at the same time.
            with compilation(f"{signature.name} of robot '{self.links.name}'"), lock:
                kernel = self._kernels.get(signature.name) or self._load(signature) or self._make(signature)
                kernel = self._kernels.setdefault(signature.name, kernel)
        return kernel

    def _refuse_more_lists(self, signature: Signature) -> None:
        """Checks the number of kernels of lists of queries, including refused ones, before another is made.

        Raises:
            ResourceExhaustedError: There are `MAX_LIST_KERNELS` others.
        """
        list_names = {name for name in (*self._kernels, *self._refusals) if "+" in name} if signature.parts else set()
        if signature.parts and len(list_names - {signature.name}) >= MAX_LIST_KERNELS:
            raise ResourceExhaustedError(
                f"robot '{self.links.name}' has {MAX_LIST_KERNELS} kernels of lists of queries, which is the limit: "
                "call the queries of this list separately"
            )

    def _separate(self, signature: Signature, parts: Sequence[LibraryKernel]) -> LibraryKernel:
        """Returns the kernels of a list's queries as one, with the certificate that has the largest error."""
        worst = max((part.certificate for part in parts), key=lambda part: part.error)
        kernels = tuple(part.kernel for part in parts)
        return LibraryKernel(Separate(signature, kernels), replace(worst, kernel=signature.name), None)

    def _load(self, signature: Signature) -> LibraryKernel | None:
        refusal = self._refusals.get(signature.name)
        content = None if refusal else store.load(self._key(signature))
        if content is not None:
            head, _, code = content.partition(b"\n")
            header = json.loads(head)
            refusal = header.get(_REFUSAL)
            if header.get(_SEPARATE):
                loaded = all(map(self.load, signature.parts))
                return self._separate(signature, [self._kernels[p.name] for p in signature.parts]) if loaded else None
            if refusal is None:
                loop = loop_of(signature, LoadedCode(code))
                return LibraryKernel(make_gufunc(signature, loop), Certificate(**header), loop)
            self._refusals[signature.name] = refusal
        if refusal is not None:
            raise ResourceExhaustedError(refusal)
        return None

    def _make(self, signature: Signature) -> LibraryKernel:
        # Imported here, so that a start from the store does not import the tracer.
        from dyn_service.kernels.budget import check_size
        from dyn_service.kernels.certify import certified
        from dyn_service.kernels.compiling import compiled
        from dyn_service.kernels.frames import kernel_tree

        # One graph shares equal expressions; loops have none to share, so such a list calls the kernels of its queries.
        if any(_as_loops(self.links, part) for part in signature.parts):
            self._save(signature, {_SEPARATE: True}, b"")
            return self._separate(signature, [self._get(part) for part in signature.parts])
        tree = kernel_tree(self.links, signature.bodies).tree
        compilations: list[tuple[bytes, Loop]] = []

        def build(graph: Traced) -> np.ufunc:
            check_size(graph, tree, host().lanes)
            kernel, loop, code = compiled(graph)
            compilations.append((code, loop))
            return kernel

        try:
            kernel, certificate = certified(self.links, signature, build, _tracer(self.links, signature))
        except ResourceExhaustedError as refusal:
            self._refusals[signature.name] = str(refusal)
            self._save(signature, {_REFUSAL: str(refusal)}, b"")
            raise
        code, loop = compilations[-1]
        self._save(signature, asdict(certificate), code)
        release_freed_memory()
        return LibraryKernel(kernel, certificate, loop)

    def graphs(self, signature: Signature) -> list[Traced]:
        """Returns the traced forms from which the code of a kernel is made; makes the kernel if it is missing.

        Several: a list of queries that uses a kernel for each of them.

        Raises:
            ResourceExhaustedError: The kernel needs too many operations.
        """
        from dyn_service.kernels.frames import cheapest_frames, kernel_trees, welded

        kernel = self._get(signature)
        if isinstance(kernel.kernel, Separate):
            return [graph for part in signature.parts for graph in self.graphs(part)]
        model = (cheapest_frames if kernel.certificate.form == "chosen frames" else welded)(self.links)
        return [_tracer(self.links, signature)(kernel_trees(self.links, signature, model), signature)]

    def _save(self, signature: Signature, header: dict[str, object], code: bytes) -> None:
        store.save(self._key(signature), json.dumps(header).encode() + b"\n" + code)

    def _key(self, signature: Signature) -> str:
        machine = host()
        return store.key(
            self.links.fingerprint,
            repr(signature),
            provenance(*(f"dynamics.{name.partition('.')[0]}" for name in signature.function.split("+")), *COMPILER),
            _FILE_FORMAT,
            machine.triple,
            machine.cpu,
            machine.features,
        )


def _as_loops(links: Tree, signature: Signature) -> Rolled | None:
    """Returns a kernel, or the one that its stages call, as loops; None if it is straight-line code, as a list is."""
    from dyn_service.kernels.budget import rolled_if_large
    from dyn_service.kernels.frames import kernel_tree
    from dyn_service.kernels.staged import inner_of

    if signature.parts or isinstance(links, LoopTree):
        return None
    return rolled_if_large(kernel_tree(links, signature.bodies), inner_of(signature) or signature)


def _tracer(links: Tree, signature: Signature) -> Callable[[Any, Signature], Traced]:
    """Returns the function that traces a kernel on a tree, in the form that `_as_loops` chooses for its signature."""
    from dyn_service.kernels.frames import kernel_tree
    from dyn_service.kernels.graph import trace
    from dyn_service.kernels.rolled import roll
    from dyn_service.kernels.staged import has_stages, staged

    loops = _as_loops(links, signature)

    def traced(model: Any, signature: Signature) -> Traced:
        def part(signature: Signature) -> Graph | Rolled:
            if loops is None:
                return trace(model, signature)
            is_traced = signature == loops.signature and model is kernel_tree(links, signature.bodies)
            # The loops that decided the form are kept: tracing them again takes as long as the decision.
            return loops if is_traced else roll(model, signature)

        if not has_stages(signature, as_loops=loops is not None):
            return part(signature)
        return staged(signature, model.of(signature.bodies).tree, part)

    return traced
