"""What the answers of a robot depend on: its trees and its gravity, as in its file or with changed numbers.

An overlay or a payload changes numbers only. So a robot with changed numbers is another `RobotModel` of the same file:
its numbers are inputs of the parametric kernels (`kernels/graph.py`) of the robot as loaded. Numbers with leading axes
represent several robots.

Some queries have no answer for some robots or states: see `refusals`, and `check_inertia`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import broadcast, numbers
from dyn_service.api.description import RobotDescription, Sizes
from dyn_service.api.queries import Array, Computation, Query
from dyn_service.api.spec import PASSIVE_PARTS, Variant
from dyn_service.engine.altered_trees import AlteredTrees
from dyn_service.engine.descriptions import described, renumbered
from dyn_service.engine.rows import Rows
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.kernels.signature import parameters
from dyn_service.model.building import tree_of
from dyn_service.model.composite import (
    Weld,
    branch_inertias,
    is_possible,
    lacks_inertia,
    massless_joint,
    singular_joint,
    weld,
)
from dyn_service.model.configuration import Configuration
from dyn_service.model.description import Description
from dyn_service.model.parameters import parameters_of
from dyn_service.model.tree import Tree
from dyn_service.support.suggestions import known_instead

_MOTIONS = ("velocity", "acceleration")
"""Kinds of input that must be 0 for locked joints."""


@dataclass(frozen=True, eq=False)
class RobotModel:
    """The numbers of a robot.

    description: as read from its file. client_description: for clients, without certificates of kernels.
    configuration: the movable joints. tree: one body per link. bodies: the moving bodies. gravity: (..., 3) m/s^2,
    world axes. rows: names and axes of rows of results. link_index: index of each link by name. loaded: the model of
    the file if numbers are changed; None: this is that model.
    """

    description: Description
    client_description: RobotDescription
    configuration: Configuration
    tree: Tree
    bodies: Weld
    gravity: Array
    rows: Rows
    link_index: dict[str, int]
    loaded: RobotModel | None = None

    @classmethod
    def of(cls, description: Description) -> RobotModel:
        """Returns the model of a robot as described in its file."""
        tree = tree_of(description)
        bodies = weld(tree)
        rows = Rows(tree, bodies.tree)
        for_clients = described(tree, rows.sizes, description)
        link_index, gravity = {name: i for i, name in enumerate(tree.links)}, np.array(description.gravity)
        return cls(description, for_clients, tree.configuration, tree, bodies, gravity, rows, link_index)

    def with_numbers(self, altered: AlteredTrees, name: str | None = None) -> RobotModel:
        """Returns this model with the numbers of other trees. name: of the new robot; None: this robot's."""
        return replace(
            self,
            client_description=self.client_description
            if name is None
            else msgspec.structs.replace(self.client_description, name=name),
            tree=altered.tree,
            bodies=altered.weld,
            gravity=self.gravity if altered.gravity is None else altered.gravity,
            loaded=self.loaded or self,
        )

    @property
    def without_loops(self) -> RobotModel:
        """The model of the tree without its loop joints."""
        return replace(self, description=replace(self.description, loop_joints=()))

    @property
    def name(self) -> str:
        """The robot's name."""
        return self.client_description.name

    @property
    def numbers(self) -> AlteredTrees:
        """The trees and gravity."""
        return AlteredTrees(self.tree, self.bodies, self.gravity)

    @property
    def lead(self) -> tuple[int, ...]:
        """The leading axes of the numbers, including gravity; () for a single robot."""
        return broadcast({"the robot's numbers": self.tree.lead, "its gravity": self.gravity.shape[:-1]})

    @property
    def free(self) -> Array:
        """(nv,): 0 for locked joints, else 1."""
        return np.ones(self.client_description.nv) if self.tree.free is None else np.array(self.tree.free)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, different for every change of a number."""
        if self.loaded is None:
            return self.client_description.fingerprint
        digest = hashlib.sha256(f"{self.loaded.fingerprint} {self.name} {self.tree.fingerprint}".encode())
        digest.update(str(self.tree.lead).encode() + (self.gravity + 0.0).tobytes())  # + 0.0, because -0.0 equals 0.0
        return digest.hexdigest()[:32]

    def described(self, certificates: Mapping[str, Mapping[str, Any]]) -> RobotDescription:
        """Returns the description for clients; its gravity is that of the file if this one has leading axes."""
        client_description = msgspec.structs.replace(self.client_description, certificates=certificates)
        if self.loaded is None:
            return client_description
        # Clients read three numbers; requests that omit gravity still get that of each robot.
        gravity = self.gravity if self.gravity.ndim == 1 else np.array(self.client_description.gravity)
        return msgspec.structs.replace(
            client_description,
            fingerprint=self.fingerprint,
            gravity=tuple(gravity.tolist()),
            passive=tuple(part for part in PASSIVE_PARTS if part in self.tree.passive.acts),
        )

    @property
    def as_described(self) -> Description:
        """The description of this robot; see `Robot.as_described`."""
        if self.loaded is None:
            return self.description
        description = renumbered(self.description, self.loaded.tree, self.tree)
        if self.gravity.ndim > 1:
            raise UnimplementedError(
                f"robot '{self.name}' with a gravity for each state cannot be written to a robot file"
            )
        x, y, z = self.gravity.tolist()
        return replace(description, gravity=(x, y, z))

    @property
    def not_exported(self) -> str:
        """What prevents an export of this robot, because a C function has the numbers of one robot; "" if nothing."""
        if self.loaded is None:
            return ""
        if locked := self.tree.locked_joints - self.loaded.tree.locked_joints:
            return f"joint '{min(locked)}' locked"
        return "many robots" if self.tree.lead else "a gravity for each state" if self.gravity.ndim > 1 else ""

    def sizes(self, row: Query) -> Sizes:
        """Returns the sizes of a query's dimensions."""
        sizes = self.rows.sizes
        # A kernel of moving bodies has fewer bodies than links, but all other sizes are the same.
        return sizes if row.links else msgspec.structs.replace(sizes, nb=len(self.bodies.tree))

    def index_of(self, name: str, path: str) -> int:
        """Returns the index of a link or frame.

        Raises:
            NotFoundError: It does not exist; `path` names it.
        """
        index = self.link_index.get(name) if isinstance(name, str) else None
        if index is None:
            links = self.client_description.link_names
            kind, names = ("frame", ("world", *links)) if path.endswith(".frame") else ("link", links)
            raise NotFoundError(
                f"robot '{self.name}' has no {kind} '{name}'{known_instead(name, names, f'its {kind}s are')}", path=path
            )
        return index

    # Kernels.

    def variant(self, row: Query, variant: Variant) -> Variant:
        """Returns the variant of a query's kernels: parametric ones where numbers are changed and matter."""
        return variant if self.loaded is None else variant._replace(overlay=row.overlay is not None)

    def parameters(self, row: Query) -> dict[str, Array]:
        """Returns the numbers of the robot as inputs of a parametric kernel, by operand; none for other kernels."""
        if self.loaded is None or row.overlay is None:
            return {}
        arrays = self._parameters.get(row.links)
        if arrays is None:
            tree = self.tree if row.links else self.bodies.tree
            values = zip(parameters(row.overlay, self.sizes(row)), parameters_of(tree).values(), strict=True)
            arrays = self._parameters[row.links] = {operand.name: array for operand, array in values}
        return arrays

    @cached_property
    def _parameters(self) -> dict[bool, dict[str, Array]]:
        return {}

    def default_of(self, row: Query, name: str) -> Array:
        """Returns the default value of an input other than wrenches."""
        default = row.inputs[name].default
        return self.gravity if default is None else np.array(default)

    # Locked joints.

    def locked_inputs(self, row: Query) -> tuple[list[int], list[int]]:
        """Returns the indices of the required inputs that must be 0 for locked joints, and their entries."""
        if self.tree.free is None:
            return [], []
        locked: list[int] = np.flatnonzero(np.asarray(self.tree.free) == 0.0).tolist()
        return [k for k, name in enumerate(row.required) if row.inputs[name].kind in _MOTIONS], locked

    def check_locked(self, name: str, value: Any, path: str) -> None:
        """Refuses velocities or accelerations of locked joints that are not 0; ignores arrays of other shapes."""
        array = None if value is None or self.tree.free is None else numbers(value)
        if array is None or array.shape[-1:] != (self.client_description.nv,):
            return
        # nan moves as well, because nan != 0.
        moves = np.argwhere((array != 0.0) & (self.tree.free == 0.0))
        if len(moves):
            joint = self.tree.configuration.velocity_names[moves[0][-1]]
            raise InvalidArgumentError(
                f"{name} of joint '{joint}', which is locked, must be 0, found {array[tuple(moves[0])]:g}", path=path
            )

    def hold_locked(self, row: Computation, arguments: dict[str, Any]) -> None:
        """Sets the efforts of locked joints to 0 in the arguments of a computation; refuses motions of these joints."""
        free = self.tree.free
        if free is None:
            return
        if row.of_kind("motions"):
            raise InvalidArgumentError(
                f"{row.name} does not accept locked joints: prescribe them to stand still", path="overlay.locked"
            )
        for name, value in arguments.items():
            spec = row.inputs.get(row.parameters.get(name) or name)
            if spec is not None and spec.kind in _MOTIONS:
                self.check_locked(name, value, name)
            elif spec is not None and spec.kind == "effort" and value is not None:
                arguments[name] = _masked(value, free)

    # Queries without an answer.

    def checks_states(self, row: Query, method: str) -> bool:
        """Whether a method has a result only at states where M(q) is positive definite, which some may not be."""
        return method in row.inverts_mass_matrix and not self.has_possible_inertia

    def check_inertia(self, query: str, q: Array, free: Array | None = None) -> None:
        """Raises FailedPreconditionError, which names the joint, at positions (..., nq) where M(q) is not positive
        definite. query: what is asked. free: (nv,) 0 for joints whose motion is prescribed, else 1; None: all move.
        """
        if self.has_possible_inertia:
            return
        # Prescribed joints do not accelerate, so their inertia may vanish.
        bodies = self.bodies.tree if free is None else replace(self.bodies.tree, free=free)
        branch, size = branch_inertias(bodies, q)
        lacking = lacks_inertia(branch, size)
        if not lacking.any():
            return
        index = tuple(np.argwhere(lacking.any(axis=-1))[0].tolist())
        k = int(np.flatnonzero(lacking[index]).max())
        raise FailedPreconditionError(
            f"{query} has no answer for robot '{self.name}'{f' at state {list(index)}' if index else ''}: the inertia "
            f"along joint '{self.configuration.velocity_joints[k]}' is {branch[index][k]:g}, expected more than 0; "
            f"{self.impossible_inertia}"
        )

    @property
    def impossible_inertia(self) -> str:
        """The links with an inertia that no body has, as text."""
        links = zip(self.tree.links, self.tree.inertia, self.bodies.body, strict=True)
        names = [f"'{name}'" for name, inertia, body in links if body >= 0 and not is_possible(inertia)]
        return f"no body has the inertia of {'link' if len(names) == 1 else 'links'} {', '.join(names)}"

    @cached_property
    def has_possible_inertia(self) -> bool:
        """Whether each moving body has an inertia that a body can have, so that M(q) is never indefinite."""
        return all(map(is_possible, self.bodies.tree.inertia))

    @cached_property
    def massless_joint(self) -> str | None:
        """See `Robot.massless_joint`."""
        return massless_joint(self.bodies.tree)

    def singular_joint(self, q: ArrayLike) -> str | None:
        """Returns the movable joint nearest the leaves whose branch has no inertia along it at `q`, or None.

        None means that M(q) is positive definite.

        Args:
            q: (nq,) positions, small enough that nothing overflows.
        """
        return singular_joint(self.bodies.tree, np.asarray(q, dtype=np.float64))


def _masked(efforts: Any, free: Array) -> Any:
    """Returns efforts (constant, samples or a function) with 0 for locked joints."""
    if callable(efforts):
        return lambda *state: _masked(efforts(*state), free)
    array = numbers(efforts)
    fits = array is not None and array.shape[-1:] == free.shape
    return array * free if array is not None and fits else efforts
