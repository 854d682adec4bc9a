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
        # Loops over columns: the code has each part once, a call runs it for every column.
        count += 3 * n * sum(part.operations for part in self.changes)
        if self.changes and calls > 1:  # products of matrices: in the second stage, dq has entries of one joint only
            cubes, squares = (
                sum((x.stop - x.start) ** k for x in slices) for slices, k in ((self.trees, 3), (self.joints, 2))
            )
            count += 6 * (2 * calls - 3) * cubes + 4 * n * squares
        return count

    @property
    def workspace(self) -> int:
        """Number of scalars per state besides outputs: `input_count`, `columns`, then the workspace of its parts."""
        return self.input_count + sum(self.columns) + max(part.workspace for part in self.parts)

    @property
    def input_count(self) -> int:
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
            values = {operand.name: ex.zeros(operand.size) for operand in self.states[0].signature.inputs} | symbols

            def call(part: Any, arguments: Mapping[str, Any]) -> list[ex.Matrix]:
                results: list[ex.Matrix] = part.program.on(
                    [arguments[operand.name] for operand in part.signature.inputs]
                )
                return results

            for k, part in enumerate(self.states[:-1], 1):
                q, v = call(part, values)
                (values[f"a{k}"],) = call(self.inner, {**values, "q": q, "v": v})
            return ex.Program.of(list(symbols.values()), call(self.states[-1], values))


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
        return _ChainRule(self.kernel, inputs, constant, rounded).outputs()


class _ChainRule:
    """One evaluation of `_Interpreted`.

    values: by name the inputs, and the accelerations of the stages so far. instruction: the number of the next one.
    """

    def __init__(
        self,
        kernel: Staged,
        inputs: Sequence[Any],
        constant: Callable[[int, float], Any] | None,
        rounded: Callable[[int, Any], Any] | None,
    ) -> None:
        self.kernel, self.n, self.constant, self.rounded = kernel, kernel.velocities, constant, rounded
        operands = kernel.signature.inputs
        self.values: dict[str, Any] = {operand.name: x for operand, x in zip(operands, inputs, strict=True)}
        self.lanes = np.broadcast_shapes(*(np.shape(x) for entries in inputs for x in entries))
        self.instruction = 0
        self.acceleration_changes: list[np.ndarray] = []  # of each stage (states, nv, 3 nv)

    def outputs(self) -> list[list[Any]]:
        kernel, n = self.kernel, self.n
        for k, part in enumerate(kernel.states[:-1], 1):
            q, v = self._call(part, self.values)
            self.values[f"a{k}"], *entries = self._call(kernel.inner, {**self.values, "q": q, "v": v})
            A = np.concatenate([self._array(x).reshape(*self.lanes, n, n) for x in entries], axis=-1)
            if k > 1:
                total = self._product(A[..., : 2 * n].copy(), self._changes(kernel.changes[k - 2]))
                total[..., 2 * n :] += A[..., 2 * n :]
                A = total
            self.acceleration_changes.append(A)
        changes = self._changes(kernel.changes[-1])
        flat = [np.moveaxis(x.reshape(*self.lanes, -1), -1, 0) for x in np.split(changes, [2 * n], axis=-1)]
        return [*self._call(kernel.states[-1], self.values), *map(list, flat)]

    def _call(self, part: Any, arguments: Mapping[str, Any]) -> list[list[Any]]:
        """Returns the results of a part. The instructions of each call are numbered on from those of the last."""
        constant, rounded, first = self.constant, self.rounded, self.instruction
        self.instruction += len(part.program.instructions)
        names = [(operand.name, operand.size) for operand in part.signature.inputs]
        return part.program(  # type: ignore[no-any-return]
            [arguments[name] if name in arguments else [0.0] * size for name, size in names],
            # The numbers of the robot are rounded alike in each call, the results of its instructions are not.
            constant and (lambda k, x: constant(k, x)),
            rounded and (lambda k, x: rounded(first + k, x)),
        )

    def _array(self, entries: Sequence[Any]) -> np.ndarray:
        """(states, entries)."""
        return np.stack([np.broadcast_to(x, self.lanes) for x in entries], axis=-1)

    def _product(self, A: np.ndarray, X: np.ndarray) -> np.ndarray:
        """A X. Each entry of A has the rounding errors of its products."""
        if self.rounded is not None:
            for entry in np.ndindex(A.shape[-2:]):
                A[..., entry[0], entry[1]] = self.rounded(self.instruction, A[..., entry[0], entry[1]].copy())
                self.instruction += 1
        product: np.ndarray = A @ X
        return product

    def _changes(self, part: Any) -> np.ndarray:
        """(states, 2 nv, 3 nv)."""
        n, columns = self.n, []
        for c in range(3 * n):
            unit = [float(c == k) for k in range(2 * n)]
            changes = {
                f"da{k}": list(np.moveaxis(x[..., c], -1, 0)) for k, x in enumerate(self.acceleration_changes, 1)
            }
            dq, dv = self._call(part, {**self.values, **changes, "dq": unit[:n], "dv": unit[n:]})
            columns.append(self._array([*dq, *dv]))
        return np.stack(columns, axis=-1)


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
    # Straight-line code with one stage is one graph, which shares expressions between state and inner function.
    return inner_of(signature) is not None and (as_loops or _STAGED[signature.function].calls > 1)


def staged(signature: Signature, tree: Tree, trace: Callable[[Signature], Any]) -> Staged:
    """Returns a kernel in stages. trace: traces a part, as a graph or as loops."""
    stages, inner = _STAGED[signature.function], inner_of(signature)
    assert inner is not None
    calls = range(1, stages.calls + 1)
    accelerations = tuple(_acceleration(signature, k) for k in calls)
    inputs, state = (*signature.inputs, *accelerations), signature.outputs[:2]
    state_changes = tuple(replace(accelerations[0], name=name, kind="velocity") for name in ("dq", "dv"))
    inputs_and_changes = (*inputs, *state_changes, *(replace(a, name=f"d{a.name}") for a in accelerations))

    def parts(function: str, inputs: tuple[Operand, ...], state: tuple[Operand, ...], stages: Sequence[int]) -> Any:
        outputs = [tuple(replace(operand, name=f"{operand.name}{k}") for operand in state) for k in stages]
        base = replace(signature, inputs=inputs)
        return tuple(trace(replace(base, function=function, outputs=operands)) for operands in (*outputs, state))

    return Staged(
        signature,
        trace(inner),
        parts(stages.states, inputs, state, calls),
        parts(stages.changes, inputs_and_changes, state_changes, calls[1:]) if stages.changes else (),
        tuple(tree.in_v[i] for i in tree.independent_bodies),
        _trees(tree),
    )


def _trees(tree: Tree) -> tuple[slice, ...]:
    """Returns ranges of v, each with all joints on a body on the ground, and with those that follow them."""
    ranges: dict[int, list[int]] = {}
    for i, entries in enumerate(tree.in_v):
        if entries.stop > entries.start:
            whole = ranges.setdefault(tree.ancestors(i)[-1], [entries.start, entries.stop])
            whole[:] = min(whole[0], entries.start), max(whole[1], entries.stop)
    merged: list[list[int]] = []
    for start, stop in sorted(ranges.values()):
        if merged and start < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return tuple(slice(*bounds) for bounds in merged)


def _acceleration(signature: Signature, k: int) -> Operand:
    v = next(operand for operand in signature.outputs if operand.kind == "velocity")
    return replace(v, name=f"a{k}", kind="acceleration")
