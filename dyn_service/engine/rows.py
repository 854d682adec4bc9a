"""The rows of results: their number, their names, and the axes of their vectors.

A row may belong to a link, a URDF joint, a moving body, or a pair of moving bodies: a body and itself or one that
carries it. A pair is a block of an influence operator, which maps the axes of its column to those of its row.

Also the conversion of arguments to the inputs of kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from dyn_service.api.arrays import GRAVITY_UNIT, broadcast, found, numbers
from dyn_service.api.queries import QUERIES, Array, Query
from dyn_service.api.spec import Spec
from dyn_service.dynamics.structure import pairs
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.kernels.row_rotation import rotation_ufunc
from dyn_service.kernels.signature import Signature, sizes_of
from dyn_service.model.parameters import INERTIAL, LINEAR
from dyn_service.model.tree import Tree
from dyn_service.parsing.quantities import counted
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
        self._rotations: dict[tuple[str, str], np.ufunc] = {}
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

    def _name(self, dimension: str, owner: str) -> tuple[str, ...] | None:
        if dimension == "nt":
            return self._parameters
        return self._pairs[0].get(owner) if dimension == "na" else self._names.get((dimension, owner))

    def _link(self, dimension: str, owner: str) -> list[int]:
        return self._pairs[1][owner] if dimension == "na" else self._links[dimension, owner]

    def labels(self, row: Query) -> dict[str, tuple[str, ...]]:
        """Returns the labels of a query that depend on the robot only: the names of rows, by label."""
        labels = {label: self._name(names.dimension, names.of) for label, names in row.labels.items()}
        return {label: names for label, names in labels.items() if names is not None}

    def _rotation(self, dimension: str, owner: str) -> np.ufunc:
        """Returns the function that rotates vectors of rows from the axes of links to world axes."""
        key = dimension, owner
        if key not in self._rotations:
            world = len(self._tree)
            self._rotations[key] = rotation_ufunc([link if link >= 0 else world for link in self._link(*key)])
        return self._rotations[key]

    def turn_to_world(self, outputs: dict[str, Any], row: Query, R: Array) -> None:
        """Rotates outputs from link axes to world axes, in place. R: R_WL of every link, (..., nl, 3, 3)."""
        for name, spec in row.outputs.items():
            core = len(spec.shape)
            owners = ("",) * (core - 2) + ("row",) if spec.rotated is True else spec.rotated or ()
            for axis, owner in enumerate(owners, start=1 - core):
                if owner:
                    rotation = self._rotation(str(spec.shape[0]), owner)
                    R_all = R
                    # A table of rotations by link has no entry for the world, the parent of a root.
                    if owner == "parent":
                        R_all = np.concatenate([R, np.broadcast_to(np.eye(3), (*R.shape[:-3], 1, 3, 3))], axis=-3)
                    outputs[name] = _rotated(outputs[name], axis, core, rotation, R_all)

    def selection(self, row: Query, options: Mapping[str, Any], robot: str) -> Selection | None:
        """Returns the selection of the rows of the links or joints named in an option, in that order; None: all rows.

        Raises:
            NotFoundError: The robot has no link or joint of that name; `path` contains its index.
        """
        names = None if row.rows_option is None else options[row.rows_option]
        if names is None:
            return None
        kind, known_names = "link" if row.row_dimension == "nl" else "joint", self._names[str(row.row_dimension), "row"]
        rows = []
        for k, name in enumerate(names):
            if name not in known_names:
                raise NotFoundError(
                    f"robot '{robot}' has no {kind} '{name}'{known_instead(name, known_names, f'its {kind}s are')}",
                    path=f"options.{row.rows_option}[{k}]",
                )
            rows.append(known_names.index(name))
        axes = {name: -len(spec.shape) for name, spec in row.outputs.items()}
        labels = [
            label
            for label, label_names in row.labels.items()
            if (label_names.dimension, label_names.of) == (row.row_dimension, "row")
        ]
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


def _rotated(array: Array, axis: int, core: int, rotation: np.ufunc, R: Array) -> Array:
    """Returns an array with the vectors along an axis rotated, each by the rotation of its row.

    The rows are the first of the last `core` axes.
    """
    if core == 2:  # a vector in each row, without moves of axes, which take longer than the rotation of one state
        rows_of_vectors: Array = rotation(array, R)
        return rows_of_vectors
    vectors = np.moveaxis(array, axis, -1)
    of_row = vectors.shape[vectors.ndim - core + 1 :]
    rotated: Array = rotation(vectors.reshape(*vectors.shape[: vectors.ndim - len(of_row)], math.prod(of_row)), R)
    return np.moveaxis(rotated.reshape(*rotated.shape[:-1], *of_row), -1, axis)


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
    array = numbers(value)
    if array is not None and array.shape[max(array.ndim - len(core), 0) :] == core:
        return array
    path, shape = f"inputs.{name}", f"(..., {', '.join(map(str, core))})"
    shape += GRAVITY_UNIT if spec.kind == "gravity" else ""
    if array is None:
        raise InvalidArgumentError(f"{name} must be real numbers of shape {shape}, found {found(value)}", path=path)
    if spec.scalar and array.ndim == 0:
        # The only place where a number becomes a vector; compiled calls read the number with a stride of 0.
        return np.full(core, array[()])
    reason = ""
    if spec.shape in (("nq",), ("nv",)):
        entries = "" if core == (joints,) else f", {spec.shape[0]} = {core[0]}"
        reason = f" ({counted(joints, 'movable joint')}{entries})"
    elif spec.scalar:
        reason = f", or a number; one number for each state is {name}[:, None]"
    raise InvalidArgumentError(f"{name} has shape {array.shape}, expected {shape}{reason}", path=path)


class KernelInputs(NamedTuple):
    """The inputs of a kernel in its order. leads: their leading axes. lead: all of them, broadcast."""

    arrays: list[Array]
    leads: list[tuple[int, ...]]
    lead: tuple[int, ...]


def kernel_inputs(signature: Signature, arguments: Mapping[str, Array]) -> KernelInputs:
    """Returns the inputs of a kernel; pads those without entries.

    Raises:
        InvalidArgumentError: The leading axes do not broadcast against each other; the message names them.
    """
    arrays, leads = [], []
    for expected in signature.inputs:
        x, axes = arguments[expected.name], len(expected.shape)
        if signature.padded and expected.name in signature.padded:
            axes = signature.padded[expected.name]
            leads.append(x.shape[: x.ndim - axes])
            # NumPy refuses core axes of length 0, so such an input has one entry, which no kernel reads.
            arrays.append(np.zeros((*leads[-1], 1)))
        else:
            leads.append(x.shape[: x.ndim - axes])
            arrays.append(x)
    lead = max(leads, key=len)
    if any(axes not in (lead, ()) for axes in leads):
        lead = broadcast({expected.name: axes for expected, axes in zip(signature.inputs, leads, strict=True)})
    return KernelInputs(arrays, leads, lead)


class Answers(Protocol):
    """What answers queries: an `engine.evaluator.Evaluator`."""

    @property
    def direct_calls(self) -> Mapping[str, Callable[[tuple[Any, ...], tuple[Any, ...]], Any]]:
        """The direct forms of calls by query."""

    def answer(
        self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...], out: Any = None, workers: Any = None
    ) -> Any:
        """See `Evaluator.answer`."""


def ask(evaluator: Answers, query: str, *required: Any, **optional: Any) -> Any:
    """Returns the answer of an evaluator to a query with these optional arguments."""
    row = QUERIES[query]
    names = zip(row.optional_arguments, row.argument_defaults, strict=True)
    values = tuple(optional.get(name, default) for name, default in names)
    direct = evaluator.direct_calls.get(query)
    result = None if direct is None else direct(required, values)
    return evaluator.answer(row, required, values) if result is None else result
