"""Kernels in stages, which call one compiled kernel several times instead of repeating its code, as of an RK4 step.

    stage k    state_k = states(inputs, a_1 .. a_{k-1}),  a_k = inner(state_k, inputs)
    last       outputs = states(inputs, a_1 .. a_n)

Derivatives of a step follow by the chain rule, one column for each entry of x = (q, v) and tau:

    stage k    dx_k = changes(inputs, a_1 .. a_{k-1}, dx, da_1 .. da_{k-1}),  da_k = [da/dq, da/dv] dx_k + da/dtau dtau
    last       dx' = changes(inputs, a_1 .. a_n, dx, da_1 .. da_n)

with the matrices of `inner`, the derivatives of forward dynamics, in this state. The products are loops.

The parts are straight-line code or loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.rolled import Rolled
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.model.tree import Tree


class _Stages(NamedTuple):
    """The functions under `dynamics/` of a kernel in stages.

    states: computes the state of each stage. inner: called in each stage. calls: number of stages. changes: of
    derivatives, computes the changes of the states.
    """

    states: str
    inner: str
    calls: int
    changes: str = ""


_DERIVATIVES = "derivatives.forward_dynamics_derivatives"
_STAGED: Mapping[str, _Stages] = MappingProxyType(
    {
        "integration.rk4": _Stages("integration.rk4_states", "articulated.forward_dynamics", 4),
        **{
            f"derivatives.{step}": _Stages(
                f"integration.{step}_states", _DERIVATIVES, calls, f"derivatives.{step}_changes"
            )
            for step, calls in (("explicit_euler", 1), ("semi_implicit_euler", 1), ("rk4", 4))
        },
    }
)


@dataclass(frozen=True, eq=False)
class Staged:
    """A kernel in stages.

    states: the kernels that compute the state of each stage, then that of the outputs, from the inputs and all results
    of `inner`. changes: for derivatives, the kernels that compute a column of the changes of each state but the first,
    then of the outputs. joints: the entries of v of each joint. trees: those of joints that may affect each other.
    """

    signature: Signature
    inner: Graph | Rolled
    states: tuple[Graph | Rolled, ...]
    changes: tuple[Graph | Rolled, ...] = ()
    joints: tuple[slice, ...] = ()
    trees: tuple[slice, ...] = ()

    @property
    def parts(self) -> tuple[Graph | Rolled, ...]:
        """All kernels that are compiled."""
        return (self.inner, *self.states, *self.changes)

    @property
    def is_rolled(self) -> bool:
        """Whether its parts are loops."""
        return self.inner.is_rolled

    @property
    def operations(self) -> int:
        """Number of instructions that a call executes."""
        calls, n = len(self.states) - 1, self.velocities
        count = calls * self.inner.operations + sum(part.operations for part in self.states)
        count += 3 * n * sum(part.operations for part in self.changes)
        if self.changes and calls > 1:  # products of matrices: in the second stage, dq has entries of one joint only
            cubes, squares = (sum((x.stop - x.start) ** k for x in of) for of, k in ((self.trees, 3), (self.joints, 2)))
            count += 6 * (2 * calls - 3) * cubes + 4 * n * squares
        return count

    @property
    def workspace(self) -> int:
        """Number of scalars per state besides its outputs: `entered`, `columns`, then the workspace of its parts."""
        return self.entered + sum(self.columns) + max(part.workspace for part in self.parts)

    @property
    def entered(self) -> int:
        """Number of inputs of its parts, and of matrices of `inner`."""
        parts = (self.states[0], self.inner, *self.changes[:1])
        matrices = self.inner.signature.outputs if self.changes else ()
        return sum(operand.size for part in parts for operand in part.signature.inputs) + sum(x.size for x in matrices)

    @property
    def columns(self) -> tuple[int, int]:
        """Numbers of changes of a state, and of changes of all accelerations."""
        n = self.velocities if self.changes else 0
        return 3 * n * 2 * n, 3 * n * n * (len(self.states) - 1)

    @property
    def velocities(self) -> int:
        """Number of velocities."""
        return self.signature.outputs[1].size

    @cached_property
    def program(self) -> Any:
        """The kernel as one program, if its parts are straight-line; for derivatives, an object called like one."""
        if self.changes:
            return _Interpreted(self)
        with ex.graph():
            symbols = {operand.name: ex.sym(operand.name, operand.size) for operand in self.signature.inputs}
            known = {operand.name: ex.zeros(operand.size) for operand in self.states[0].signature.inputs} | symbols

            def call(part: Any, known: Mapping[str, Any]) -> list[ex.Matrix]:
                found: list[ex.Matrix] = part.program.on([known[operand.name] for operand in part.signature.inputs])
                return found

            for k, part in enumerate(self.states[:-1], 1):
                q, v = call(part, known)
                (known[f"a{k}"],) = call(self.inner, {**known, "q": q, "v": v})
            return ex.Program.of(list(symbols.values()), call(self.states[-1], known))


@dataclass(frozen=True, eq=False)
class _Interpreted:
    """Derivatives of a step, computed with NumPy by the programs of a kernel's parts; called like a `Program`."""

    kernel: Staged

    def __call__(
        self,
        inputs: Sequence[Any],
        constant: Callable[[int, float], Any] | None = None,
        rounded: Callable[[int, Any], Any] | None = None,
    ) -> list[list[Any]]:
        """Returns the entries of the outputs; see `expressions.Program`."""
        kernel, n = self.kernel, self.kernel.velocities
        known: dict[str, Any] = {operand.name: x for operand, x in zip(kernel.signature.inputs, inputs, strict=True)}
        lanes = np.broadcast_shapes(*(np.shape(x) for entries in inputs for x in entries))
        begun = 0

        def call(part: Any, known: Mapping[str, Any]) -> list[list[Any]]:
            """Returns the results of a part. The instructions of each call are numbered on from those of the last."""
            nonlocal begun
            first, begun = begun, begun + len(part.program.instructions)
            names = [(operand.name, operand.size) for operand in part.signature.inputs]
            entered = [known[name] if name in known else [0.0] * size for name, size in names]
            return part.program(  # type: ignore[no-any-return]
                entered,
                constant and (lambda k, x: constant(k, x)),
                rounded and (lambda k, x: rounded(first + k, x)),
            )

        def array(entries: Sequence[Any]) -> np.ndarray:
            """(states, entries)."""
            return np.stack([np.broadcast_to(x, lanes) for x in entries], axis=-1)

        def product(A: np.ndarray, X: np.ndarray) -> np.ndarray:
            """A X. Each entry of A has the rounding errors of its products."""
            nonlocal begun
            if rounded is not None:
                for entry in np.ndindex(A.shape[-2:]):
                    A[..., entry[0], entry[1]] = rounded(begun, A[..., entry[0], entry[1]].copy())
                    begun += 1
            found: np.ndarray = A @ X
            return found

        def changes(part: Any) -> np.ndarray:
            """(states, 2 nv, 3 nv)."""
            found = []
            for c in range(3 * n):
                unit = [float(c == k) for k in range(2 * n)]
                own = {f"da{k}": list(np.moveaxis(x[..., c], -1, 0)) for k, x in enumerate(accelerated, 1)}
                dq, dv = call(part, {**known, **own, "dq": unit[:n], "dv": unit[n:]})
                found.append(array([*dq, *dv]))
            return np.stack(found, axis=-1)

        accelerated: list[np.ndarray] = []  # of each stage (states, nv, 3 nv)
        for k, part in enumerate(kernel.states[:-1], 1):
            q, v = call(part, known)
            known[f"a{k}"], *entries = call(kernel.inner, {**known, "q": q, "v": v})
            A = np.concatenate([array(x).reshape(*lanes, n, n) for x in entries], axis=-1)
            if k > 1:
                found = product(A[..., : 2 * n].copy(), changes(kernel.changes[k - 2]))
                found[..., 2 * n :] += A[..., 2 * n :]
                A = found
            accelerated.append(A)
        both = changes(kernel.changes[-1])
        of_x, of_tau = both[..., : 2 * n], both[..., 2 * n :]
        flat = [np.moveaxis(x.reshape(*lanes, -1), -1, 0) for x in (of_x, of_tau)]
        return [*call(kernel.states[-1], known), *map(list, flat)]


def inner_of(signature: Signature) -> Signature | None:
    """Returns the signature of the kernel that is called in each stage; None if a kernel has no stages."""
    stages = _STAGED.get(signature.function)
    if stages is None or signature.padded:
        return None
    inputs = tuple(operand for operand in signature.inputs if operand.kind != "duration")
    outputs: tuple[Operand, ...] = (_acceleration(signature, 1),)
    if stages.changes:
        n = outputs[0].size
        matrices = (Operand(name, (n, n), dims=("nv", "nv")) for name in ("da_dq", "da_dv", "da_dtau"))
        outputs = (replace(outputs[0], name="a"), *matrices)
    return replace(signature, function=stages.inner, inputs=inputs, outputs=outputs)


def has_stages(signature: Signature, *, as_loops: bool) -> bool:
    """Whether a kernel is made in stages. as_loops: whether its parts are loops; if not, one stage is not enough."""
    return inner_of(signature) is not None and (as_loops or _STAGED[signature.function].calls > 1)


def staged(signature: Signature, tree: Tree, trace: Callable[[Signature], Any]) -> Staged:
    """Returns a kernel in stages. trace: traces a part, as a graph or as loops."""
    stages, inner = _STAGED[signature.function], inner_of(signature)
    assert inner is not None
    calls = range(1, stages.calls + 1)
    accelerations = tuple(_acceleration(signature, k) for k in calls)
    inputs, state = (*signature.inputs, *accelerations), signature.outputs[:2]
    changing = tuple(replace(accelerations[0], name=name, kind="velocity") for name in ("dq", "dv"))
    moved = (*inputs, *changing, *(replace(a, name=f"d{a.name}") for a in accelerations))

    def parts(function: str, inputs: tuple[Operand, ...], state: tuple[Operand, ...], stages: Sequence[int]) -> Any:
        outputs = [tuple(replace(operand, name=f"{operand.name}{k}") for operand in state) for k in stages]
        of = replace(signature, inputs=inputs)
        return tuple(trace(replace(of, function=function, outputs=each)) for each in (*outputs, state))

    return Staged(
        signature,
        trace(inner),
        parts(stages.states, inputs, state, calls),
        parts(stages.changes, moved, changing, calls[1:]) if stages.changes else (),
        tuple(tree.in_v[i] for i in tree.independent_bodies),
        _trees(tree),
    )


def _trees(tree: Tree) -> tuple[slice, ...]:
    """Returns ranges of v, each with all joints on a body on the ground, and with those that follow them."""
    ranges: dict[int, list[int]] = {}
    for i, of in enumerate(tree.in_v):
        if of.stop > of.start:
            known = ranges.setdefault(tree.ancestors(i)[-1], [of.start, of.stop])
            known[:] = min(known[0], of.start), max(known[1], of.stop)
    found: list[list[int]] = []
    for start, stop in sorted(ranges.values()):
        if found and start < found[-1][1]:
            found[-1][1] = max(found[-1][1], stop)
        else:
            found.append([start, stop])
    return tuple(slice(*of) for of in found)


def _acceleration(signature: Signature, k: int) -> Operand:
    v = next(operand for operand in signature.outputs if operand.kind == "velocity")
    return replace(v, name=f"a{k}", kind="acceleration")
