"""The signature of a kernel: operands with fixed core shapes, from the table of queries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dyn_service.api.queries import Query
from dyn_service.api.spec import PLAIN, Bodies, Dimensions, Kind, Variant
from dyn_service.model.parameters import BODIES, FREE, JOINTS, OF_BODY, OF_RATE


@dataclass(frozen=True)
class Operand:
    """One input or output array: its name, core shape, kind, and whether one number means a vector of equal numbers.

    dims: the shape as the table writes it, in symbols.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind = "plain"
    scalar: bool = False
    dims: tuple[str | int, ...] = ()

    @property
    def size(self) -> int:
        """Numbers per state."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Signature:
    """function: `module.function` under `dynamics/`. bodies: what the bodies of the tree are.

    An input without entries (`q` of a robot that cannot move), which NumPy does not take, is padded to one that is
    ignored; `padded` names these, with the number of their core axes. inverts: it solves with the mass matrix.
    """

    name: str
    function: str
    bodies: Bodies
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    padded: Mapping[str, int]
    inverts: bool = False

    @property
    def parametric(self) -> bool:
        """Whether it takes the numbers of its tree as inputs."""
        return any(operand.kind == "overlay" for operand in self.inputs)

    @property
    def of_numbers(self) -> Signature:
        """The kernel of the same function on a tree with numbers."""
        inputs = tuple(operand for operand in self.inputs if operand.kind != "overlay")
        names = {operand.name for operand in inputs}
        padded = {name: axes for name, axes in self.padded.items() if name in names}
        return replace(self, inputs=inputs, padded=padded)

    @property
    def pose(self) -> Operand | None:
        """The input that says where the robot stands: the first of its positions."""
        return next((operand for operand in self.inputs if operand.kind == "position"), None)

    @property
    def empty(self) -> bool:
        """Whether an output has no entries: then there is nothing to compute."""
        return not all(operand.size for operand in self.outputs)

    @property
    def gufunc(self) -> str:
        """In NumPy's notation, sizes frozen: `(9),(9),(9),(3)->(9)`."""

        def side(operands: tuple[Operand, ...]) -> str:
            return ",".join(f"({','.join(map(str, operand.shape))})" for operand in operands)

        return f"{side(self.inputs)}->{side(self.outputs)}"


def signature_of(query: Query, method: str, sizes: Dimensions, variant: Variant = PLAIN) -> Signature:
    """The kernel's signature for one row of the table, one method, one variant. The parametric one stands on link
    frames: others are chosen by the numbers that it does not know.
    """
    inputs: list[Operand] = []
    for name, spec in query.inputs.items():
        if spec.kind == "overlay":
            inputs += parameters(name, sizes) if variant.overlay else []
        elif variant.wrenches or spec.kind != "wrenches":
            inputs.append(Operand(name, spec.dims(sizes), spec.kind, spec.scalar, spec.shape))
    outputs = tuple(Operand(name, spec.dims(sizes), spec.kind, dims=spec.shape) for name, spec in query.outputs.items())
    bodies: Bodies = "moving" if variant.overlay and query.bodies == "chosen" else query.bodies
    name = "-".join(part for part in (query.name, method, *variant.names) if part)
    return Signature(
        name,
        query.kernels[method],
        bodies,
        inputs=tuple(operand if operand.size else replace(operand, shape=(1,)) for operand in inputs),
        outputs=outputs,
        padded={operand.name: len(operand.shape) for operand in inputs if not operand.size},
        inverts=method in query.inverts,
    )


def parameters(overlay: str, sizes: Dimensions) -> list[Operand]:
    """The inputs that take the numbers of a tree in place of an overlay, by its name."""
    dims: dict[str, tuple[str | int, ...]] = {BODIES: ("nb", OF_BODY), JOINTS: ("nr", OF_RATE), FREE: ("nv",)}
    return [
        Operand(
            f"{overlay}.{name}",
            tuple(size if isinstance(size, int) else sizes[size] for size in shape),
            "overlay",
            dims=shape,
        )
        for name, shape in dims.items()
    ]
