"""Kernels in stages, which call one compiled kernel several times instead of repeating it: an RK4 step.

    stage k    state_k = states(inputs, a_1 .. a_{k-1}),  a_k = inner(state_k, inputs)
    last       outputs = states(inputs, a_1 .. a_n)

Both forms of a kernel, straight-line code and loops, can be parts of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from dyn_service.dynamics import expressions as ex
from dyn_service.kernels.graph import Graph
from dyn_service.kernels.rolled import Rolled
from dyn_service.kernels.signature import Operand, Signature


class _Stages(NamedTuple):
    """The function that computes the states; the function that is called at each, and how often."""

    states: str
    inner: str
    calls: int


_STAGED: Mapping[str, _Stages] = MappingProxyType(
    {"integration.rk4": _Stages("integration.rk4_states", "articulated.forward_dynamics", 4)}
)


@dataclass(frozen=True, eq=False)
class Staged:
    """A kernel in stages. states: of each stage, then the outputs, from the inputs and all results of `inner`."""

    signature: Signature
    inner: Graph | Rolled
    states: tuple[Graph | Rolled, ...]

    @property
    def parts(self) -> tuple[Graph | Rolled, ...]:
        """All kernels that are compiled."""
        return (self.inner, *self.states)

    @property
    def is_rolled(self) -> bool:
        """Whether its parts are loops."""
        return self.inner.is_rolled

    @property
    def operations(self) -> int:
        """Number of instructions of the parts."""
        return sum(part.operations for part in self.parts)

    @property
    def workspace(self) -> int:
        """Number of scalars that it stores besides its outputs: the inputs of its parts, then their workspace."""
        return self.entered + max(part.workspace for part in self.parts)

    @property
    def entered(self) -> int:
        """Number of inputs of its parts."""
        return sum(operand.size for part in (self.states[0], self.inner) for operand in part.signature.inputs)

    @cached_property
    def program(self) -> ex.Program:
        """The same as one program, of straight-line parts."""
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


def inner_of(signature: Signature) -> Signature | None:
    """Returns the signature of the kernel that is called in each stage; None if a kernel has no stages."""
    stages = _STAGED.get(signature.function)
    if stages is None or signature.padded:
        return None
    inputs = tuple(operand for operand in signature.inputs if operand.kind != "duration")
    return replace(signature, function=stages.inner, inputs=inputs, outputs=(_acceleration(signature, 1),))


def staged(signature: Signature, trace: Callable[[Signature], Any]) -> Staged:
    """Returns a kernel in stages. trace: makes each part, a graph or loops."""
    stages, inner = _STAGED[signature.function], inner_of(signature)
    assert inner is not None
    inputs = (*signature.inputs, *(_acceleration(signature, k) for k in range(1, stages.calls + 1)))
    states: list[tuple[Operand, ...]] = [
        tuple(replace(operand, name=f"{operand.name}{k}") for operand in signature.outputs)
        for k in range(1, stages.calls + 1)
    ]
    return Staged(
        signature,
        trace(inner),
        tuple(
            trace(replace(signature, function=stages.states, inputs=inputs, outputs=outputs))
            for outputs in (*states, signature.outputs)
        ),
    )


def _acceleration(signature: Signature, k: int) -> Operand:
    v = next(operand for operand in signature.outputs if operand.kind == "velocity")
    return replace(v, name=f"a{k}", kind="acceleration")
