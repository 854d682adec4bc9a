"""The rows of results: their number, their names, and the axes of their vectors.

A row may belong to a link, a URDF joint, a moving body, or a pair of moving bodies: a body and itself or one that
carries it. A pair is a block of an influence operator, which maps the axes of its column to those of its row.

Also the conversion of arguments to the inputs of kernels, the description of a robot for clients, and the receipt of
its import.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dyn_service.api.arrays import GRAVITY_UNIT, broadcast, found, numbers
from dyn_service.api.description import (
    JointDescription,
    LimitsDescription,
    MimicDescription,
    NoteDescription,
    RobotDescription,
    Sizes,
)
from dyn_service.api.queries import DEFAULT_GRAVITY, Array, Query
from dyn_service.api.spec import PASSIVE_PARTS, Spec
from dyn_service.dynamics.structure import pairs
from dyn_service.engine.wrenches import turn
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.kernels.row_rotation import rotation_ufunc
from dyn_service.kernels.signature import Signature, sizes_of
from dyn_service.model import composite
from dyn_service.model.composite import Weld, welding_notes
from dyn_service.model.description import Description, Mimic
from dyn_service.model.inertia import combine
from dyn_service.model.parameters import INERTIAL, LINEAR
from dyn_service.model.tree import Tree
from dyn_service.parsing.quantities import counted
from dyn_service.parsing.report import MassSummary, Receipt, build_receipt
from dyn_service.support.suggestions import known_instead


class Rows:
    """The rows of one robot.

    sizes: the sizes of the table's dimensions; `nb` is the number of links.

    Args:
        links: The tree with one body per link.
        moving: The tree of the moving bodies, in the order of the moving joints.
    """

    def __init__(self, links: Tree, moving: Tree) -> None:
        joints, parents = links.moving_joints, moving.parent
        self.sizes = sizes_of(links, moving)
        self._names: dict[tuple[str, str], tuple[str, ...]] = {
            ("nj", "row"): links.named_joints,
            ("nl", "row"): links.links,
            ("nv", "row"): links.configuration.velocity_names,
            ("nm", "row"): joints,
            ("nm", "parent"): tuple(joints[p] if p >= 0 else "" for p in parents),
        }
        link = links.movable
        self._links: dict[tuple[str, str], list[int]] = {  # the link whose axes are used; -1 is the world
            ("nl", "row"): list(range(len(links))),
            ("nj", "row"): [i for i, name in enumerate(links.joints) if name],
            ("nr", "row"): [i for i in link for _ in range(links.inboard[i].nv)],
            ("nm", "row"): list(link),
            ("nm", "parent"): [link[p] if p >= 0 else -1 for p in parents],
        }
        self._rotations: dict[str, np.ufunc] = {}
        self._moving, self._joints, self._movable, self._tree = moving, joints, link, links

    @cached_property
    def _pairs(self) -> tuple[dict[str, tuple[str, ...]], dict[str, list[int]]]:
        """Names and links of the pairs' bodies, by `row` and `column`. Created on first use: there may be millions."""
        bodies = dict(zip(("row", "column"), zip(*pairs(self._moving), strict=True), strict=False))
        names = {side: tuple(self._joints[i] for i in bodies.get(side, ())) for side in ("row", "column")}
        return names, {side: [self._movable[i] for i in bodies.get(side, ())] for side in ("row", "column")}

    @cached_property
    def rates(self) -> tuple[str, ...]:
        """Names of the velocities of all moving joints, including mimic joints."""
        tree = self._tree
        return tuple(
            name if tree.inboard[i].nv == 1 else f"{name}.{part}"
            for name, i in zip(tree.moving_joints, tree.movable, strict=True)
            for part in tree.inboard[i].velocities
        )

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        """Names of the dynamic parameters."""
        return (
            *(f"{link}.{number}" for link in self._tree.links for number in INERTIAL),
            *(f"{rate}.{part}" for part in LINEAR for rate in self.rates),
        )

    def _name(self, dimension: str, of: str) -> tuple[str, ...] | None:
        if dimension == "nt":
            return self._parameters
        return self._pairs[0].get(of) if dimension == "na" else self._names.get((dimension, of))

    def _link(self, dimension: str, of: str) -> list[int]:
        return self._pairs[1][of] if dimension == "na" else self._links[dimension, of]

    def labels(self, row: Query) -> dict[str, tuple[str, ...]]:
        """Returns the labels of a query that depend on the robot only: the names of rows, by label."""
        labels = {label: self._name(names.dimension, names.of) for label, names in row.labels.items()}
        return {label: names for label, names in labels.items() if names is not None}

    def _rotation(self, dimension: str) -> np.ufunc:
        """Returns the function that rotates vectors of rows from link axes to world axes."""
        if dimension not in self._rotations:
            self._rotations[dimension] = rotation_ufunc(self._link(dimension, "row"))
        return self._rotations[dimension]

    def turn_to_world(self, outputs: dict[str, Any], row: Query, R: Array) -> None:
        """Rotates outputs from link axes to world axes, in place. R: R_WL of every link, (..., nl, 3, 3)."""
        for name, spec in row.outputs.items():
            core = len(spec.shape)
            owners = ("",) * (core - 2) + ("row",) if spec.rotated is True else spec.rotated or ()
            for axis, owner in enumerate(owners, start=1 - core):
                if owner == "row" and core == 2:
                    outputs[name] = self._rotation(str(spec.shape[0]))(outputs[name], R)
                elif owner:
                    links = self._link(str(spec.shape[0]), owner)
                    R_rows = R.take(links, -3)
                    if owner == "parent":
                        R_rows[..., [k for k, link in enumerate(links) if link < 0], :, :] = np.eye(3)
                    outputs[name] = _rotated(outputs[name], axis, R_rows, core)

    def selection(self, row: Query, chosen: Mapping[str, Any], robot: str) -> Selection | None:
        """Returns the selection of the rows of the links or joints named in an option, in that order; None: all rows.

        Raises:
            NotFoundError: The robot has no link or joint of that name; `path` contains its index.
        """
        names = None if row.rows_option is None else chosen[row.rows_option]
        if names is None:
            return None
        what, known = "link" if row.row_dimension == "nl" else "joint", self._names[str(row.row_dimension), "row"]
        rows = []
        for k, name in enumerate(names):
            if name not in known:
                raise NotFoundError(
                    f"robot '{robot}' has no {what} '{name}'{known_instead(name, known, f'its {what}s are')}",
                    path=f"options.{row.rows_option}[{k}]",
                )
            rows.append(known.index(name))
        axes = {name: -len(spec.shape) for name, spec in row.outputs.items()}
        labels = [label for label, of in row.labels.items() if (of.dimension, of.of) == (row.row_dimension, "row")]
        return Selection(rows, axes, dict.fromkeys(labels, tuple(names)))


class Selection(NamedTuple):
    """Selected rows. rows: their indices. axes: by output, the axis of the rows. labels: by label, their names."""

    rows: Sequence[int]
    axes: Mapping[str, int]
    labels: Mapping[str, tuple[str, ...]]

    def apply(self, outputs: dict[str, Any], *, selected: bool = False) -> None:
        """Selects the rows of outputs and labels, in place. selected: whether the outputs contain only these rows."""
        for name, axis in self.axes.items():
            if not selected:
                outputs[name] = outputs[name].take(self.rows, axis)
        outputs.update(self.labels)


def _rotated(array: Array, axis: int, R: Array, core: int) -> Array:
    """Returns an array with the vectors along an axis rotated, each by the R (..., rows, 3, 3) of its row.

    The rows are the first of the last `core` axes.
    """
    vectors = np.moveaxis(array, axis, -1)
    R = R.reshape(*R.shape[:-2], *(1,) * (core - 1), 3, 3)
    parts = turn(R, vectors.reshape(*vectors.shape[:-1], vectors.shape[-1] // 3, 3))
    return np.moveaxis(parts.reshape(vectors.shape), -1, axis)


def operand(name: str, spec: Spec, value: Any, core: tuple[int, ...], joints: int) -> Array:
    """Returns an input as an array of doubles.

    Args:
        name: The name of the input.
        spec: The specification of the input.
        value: The value from the caller.
        core: The shape without leading axes.
        joints: The number of movable joints, for the error.

    Raises:
        InvalidArgumentError: The value does not consist of real numbers, or has another shape.
    """
    path, shape = f"inputs.{name}", f"(..., {', '.join(map(str, core))})"
    shape += GRAVITY_UNIT if spec.kind == "gravity" else ""
    array = numbers(value)
    if array is None:
        raise InvalidArgumentError(f"{name} must be real numbers of shape {shape}, found {found(value)}", path=path)
    if spec.scalar and array.ndim == 0:
        return np.full(core, array[()])
    if array.ndim < len(core) or array.shape[array.ndim - len(core) :] != core:
        reason = ""
        if spec.shape in (("nq",), ("nv",)):
            entries = "" if core == (joints,) else f", {spec.shape[0]} = {core[0]}"
            reason = f" ({counted(joints, 'movable joint')}{entries})"
        elif spec.scalar:
            reason = f", or a number; one number for each state is {name}[:, None]"
        raise InvalidArgumentError(f"{name} has shape {array.shape}, expected {shape}{reason}", path=path)
    return array


def operands(signature: Signature, arguments: Mapping[str, Array]) -> tuple[list[Array], tuple[int, ...]]:
    """Returns the arguments in the kernel's order, and their broadcast leading axes; pads inputs without entries.

    Raises:
        InvalidArgumentError: The leading axes do not broadcast against each other; the message names them.
    """
    arrays, leads = [], {}
    for expected in signature.inputs:
        x, axes = arguments[expected.name], signature.padded.get(expected.name, len(expected.shape))
        leads[expected.name] = lead = x.shape[: x.ndim - axes]
        arrays.append(np.zeros((*lead, 1)) if expected.name in signature.padded else x)
    return arrays, broadcast(leads)


def fingerprint_of(tree: Tree, description: Description) -> str:
    """Returns 32 hexadecimal digits that identify the tree, gravity and loops; those of the tree by default."""
    text = "".join(f" loop {note.element}" for note in description.loops).encode()
    if description.gravity != DEFAULT_GRAVITY:
        text = b" gravity " + (np.array(description.gravity, dtype="<f8") + 0.0).tobytes() + text
    return hashlib.sha256(tree.fingerprint.encode() + text).hexdigest()[:32] if text else tree.fingerprint


def described(tree: Tree, sizes: Sizes, description: Description) -> RobotDescription:
    """Returns the description of a robot, without the certificates of its kernels."""
    limits = tree.limits
    mimics = dict(zip(tree.moving_joints, tree.mimic, strict=True))
    return RobotDescription(
        name=tree.name,
        fingerprint=fingerprint_of(tree, description),
        nq=tree.nq,
        nv=tree.nv,
        sizes=sizes,
        joint_names=tree.movable_joints,
        joint_types=tuple(joint.type for joint in tree.configuration.joints),
        all_joint_names=tree.named_joints,
        link_names=tree.links,
        joints=tuple(
            JointDescription(
                name=name,
                type=joint.type,
                parent=tree.links[parent] if parent >= 0 else None,
                child=child,
                mimic=_followed(mimics.get(name)),
                **joint.parameters,
            )
            for name, joint, parent, child in zip(tree.joints, tree.inboard, tree.parent, tree.links, strict=True)
            if name
        ),
        limits=LimitsDescription(
            lower=_finite(limits.lower),
            upper=_finite(limits.upper),
            velocity=_finite(limits.velocity),
            effort=_finite(limits.effort),
            acceleration=_finite(limits.acceleration) if np.isfinite(limits.acceleration).any() else [],
            jerk=_finite(limits.jerk) if np.isfinite(limits.jerk).any() else [],
        ),
        gravity=description.gravity,
        passive=tuple(part for part in PASSIVE_PARTS if part in tree.passive.acts),
        notes=tuple(NoteDescription(note.kind, note.element, note.text, note.line) for note in description.notes),
    )


def _followed(mimic: Mimic | None) -> MimicDescription | None:
    return None if mimic is None else MimicDescription(**asdict(mimic))


def _finite(values: Array) -> list[float | None]:
    """Returns values with infinities replaced by None."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def import_receipt(description: Description, tree: Tree, weld: Weld) -> Receipt:
    """Returns the receipt of an import: what was kept, merged, set to defaults, dropped and reported as uncertain.

    It contains the masses before and after welding, which must agree.
    """
    before = composite.total_inertia(tree)
    still = [i for i, body in enumerate(weld.body) if body < 0]
    poses = composite.poses_at_zero(tree)
    parts = [tree.inertia[i].transformed(*poses[i]) for i in still]
    poses = composite.poses_at_zero(weld.tree)
    parts += [body.transformed(*pose) for body, pose in zip(weld.tree.inertia, poses, strict=True)]
    after = combine(parts)
    return build_receipt(
        description,
        before=MassSummary(before.mass, before.com),
        after=MassSummary(after.mass, after.com),
        movable=tree.movable_joints,
        bodies=len(weld.tree),
        merged=welding_notes(tree, weld),
        fingerprint=fingerprint_of(tree, description),
    )
