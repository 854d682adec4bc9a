"""The signature of a kernel: operands with fixed core shapes, from the table of queries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dyn_service.api.description import Sizes
from dyn_service.api.queries import Query
from dyn_service.api.spec import WITHOUT_WRENCHES, Bodies, Dimensions, Kind, Variant
from dyn_service.model.parameters import BODIES, FREE, INERTIAL, JOINTS, LINEAR, OF_BODY, OF_RATE
from dyn_service.model.tree import Tree


@dataclass(frozen=True)
class Operand:
    """One input or output array.

    shape: core shape. scalar: whether one number is accepted for a vector of equal numbers. dims: the shape in the
    symbols of the table.
    """

    name: str
    shape: tuple[int, ...]
    kind: Kind = "plain"
    scalar: bool = False
    dims: tuple[str | int, ...] = ()

    @property
    def size(self) -> int:
        """Number of entries per state."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Signature:
    """The operands of one kernel.

    function: `module.function` under `dynamics/`. bodies: the bodies of its tree. outputs: only those with entries; the
    others, which a robot without movable joints has, are added to results by `Robot`. padded: by name of an input
    without entries, which NumPy does not accept, the number of its core axes; it is padded to one entry, which is
    ignored. inverts_mass_matrix: whether the function solves with the mass matrix. parts: of a list of queries, their
    signatures, except those without outputs; the outputs of the list are theirs, in order.
    """

    name: str
    function: str
    bodies: Bodies
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    padded: Mapping[str, int]
    inverts_mass_matrix: bool = False
    parts: tuple[Signature, ...] = ()

    @property
    def in_chosen_frames(self) -> bool:
        """Whether it, or one of its parts, uses a tree in chosen frames (`kernels.frames`)."""
        return any(part.bodies == "chosen" for part in self.parts or (self,))

    @property
    def parametric(self) -> bool:
        """Whether the numbers of the tree are inputs."""
        return any(operand.kind == "overlay" for operand in self.inputs)

    @property
    def of_numbers(self) -> Signature:
        """The signature of the same function with the numbers of the tree as constants."""
        inputs = tuple(operand for operand in self.inputs if operand.kind != "overlay")
        names = {operand.name for operand in inputs}
        padded = {name: axes for name, axes in self.padded.items() if name in names}
        return replace(self, inputs=inputs, padded=padded, parts=tuple(part.of_numbers for part in self.parts))

    def resized(self, sizes: Dimensions) -> Signature:
        """Returns the signature of the same function for a robot with other sizes of the table's dimensions."""
        inputs, outputs = (
            tuple(replace(x, shape=tuple(n if isinstance(n, int) else sizes[n] for n in x.dims)) for x in operands)
            for operands in (self.inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs)

    @property
    def pose(self) -> Operand | None:
        """The input with the robot's configuration, which is the first position; None if there is no position."""
        return next((operand for operand in self.inputs if operand.kind == "position"), None)

    @property
    def empty(self) -> bool:
        """Whether no output has entries, so that there is nothing to compute."""
        return not self.outputs

    @property
    def gufunc(self) -> str:
        """The signature in NumPy's notation with fixed sizes: `(9),(9),(9),(3)->(9)`."""

        def side(operands: tuple[Operand, ...]) -> str:
            return ",".join(f"({','.join(map(str, operand.shape))})" for operand in operands)

        return f"{side(self.inputs)}->{side(self.outputs)}"


def total_size(operands: Iterable[Operand]) -> int:
    """Returns the number of entries of all operands."""
    return sum(operand.size for operand in operands)


def first_entry(operands: Sequence[Operand], name: str) -> int:
    """Returns the first entry of an operand among those of all operands."""
    return total_size(operands[: [operand.name for operand in operands].index(name)])


def sizes_of(links: Tree, moving: Tree, bodies: Bodies = "links") -> Sizes:
    """Returns the sizes of the table's dimensions. moving: the tree of the moving bodies. bodies: those of `nb`."""
    depths: list[int] = []
    for parent in moving.parent:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return Sizes(
        nq=links.nq,
        nv=links.nv,
        nr=links.nr,
        nm=len(links.movable),
        nl=len(links),
        nj=len(links.named_joints),
        nb=len(links if bodies == "links" else moving),
        na=sum(depths),
        nt=len(INERTIAL) * len(links) + len(LINEAR) * links.nr,
    )


def signature_of(query: Query, method: str, sizes: Dimensions, variant: Variant = WITHOUT_WRENCHES) -> Signature:
    """Returns the signature of a kernel for one row of the table, one method and one variant."""
    inputs: list[Operand] = []
    for name, spec in query.inputs.items():
        if spec.kind == "overlay":
            inputs += parameters(name, sizes) if variant.overlay else []
        elif variant.wrenches or spec.kind != "wrenches":
            inputs.append(Operand(name, spec.dims(sizes), spec.kind, spec.scalar, spec.shape))
    outputs = (Operand(name, spec.dims(sizes), spec.kind, dims=spec.shape) for name, spec in query.outputs.items())
    parts = (_part(query, part, choice, sizes, variant) for part, choice in query.choices(method))
    # Link frames with an overlay: chosen frames depend on the numbers of the robot, which are inputs then.
    bodies: Bodies = "moving" if variant.overlay and query.bodies == "chosen" else query.bodies
    return Signature(
        "-".join(part for part in (query.name, method, *variant.names) if part),
        query.kernels[method],
        bodies,
        inputs=tuple(operand if operand.size else replace(operand, shape=(1,)) for operand in inputs),
        outputs=tuple(operand for operand in outputs if operand.size),
        padded={operand.name: len(operand.shape) for operand in inputs if not operand.size},
        inverts_mass_matrix=method in query.inverts_mass_matrix,
        parts=tuple(part for part in parts if part.outputs),
    )


def _part(whole: Query, query: Query, method: str, sizes: Dimensions, variant: Variant) -> Signature:
    """Returns the signature of the kernel of a query in a list.

    All queries of a list take wrenches, and the numbers of an overlay, on the bodies of the list's tree.
    """
    part_variant = Variant(
        variant.wrenches and query.wrenches is not None, variant.overlay and query.overlay is not None
    )
    signature = signature_of(query, method, sizes, part_variant)
    bodies: Bodies = "moving" if variant.overlay and whole.bodies == "chosen" else whole.bodies
    if (variant.overlay or (variant.wrenches and whole.links)) and signature.bodies != bodies:
        return replace(signature, name=f"{signature.name}-{bodies}", bodies=bodies)
    return signature


def parameters(overlay: str, sizes: Dimensions) -> list[Operand]:
    """Returns the inputs that an overlay becomes: the numbers of a tree. overlay: the input's name in the table."""
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
