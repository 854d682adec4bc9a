"""A robot with an overlay: the kernels of the original robot with changed numbers.

It is a `Robot`, so computations and servers do not handle overlays. Its kernels are the parametric ones of the original
robot (`kernels/graph.py`), shared by all robots overlaid on it. Numbers with leading axes represent several robots,
also in `tree` and `bodies`.

`renumbered` converts a tree with changed numbers back to a description.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.arrays import numbers
from dyn_service.api.description import RobotDescription
from dyn_service.api.queries import Array, Computation, Query
from dyn_service.api.spec import PASSIVE_PARTS, Variant
from dyn_service.engine.altered_trees import COLUMNS, AlteredTrees
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.signature import parameters
from dyn_service.model.description import Description, Inertial, Joint, Link
from dyn_service.model.parameters import parameters_of
from dyn_service.model.tree import Tree
from dyn_service.parsing.report import Receipt


def _masked(efforts: Any, free: Array) -> Any:
    """Returns efforts (constant, samples or a function) with 0 for locked joints."""
    if callable(efforts):
        return lambda *state: _masked(efforts(*state), free)
    array = numbers(efforts)
    fits = array is not None and array.shape[-1:] == free.shape
    return array * free if array is not None and fits else efforts


_STILL = ("velocity", "acceleration")
"""Kinds of input that must be 0 for locked joints."""


class OverlaidRobot(Robot):
    """A robot with changed numbers. base: the robot whose kernels are used.

    Args:
        robot: The original robot, or one that is overlaid already.
        altered: The trees with the changed numbers.
        name: The name of the new robot; None: the name of `robot`.
    """

    base: Robot

    def __init__(self, robot: Robot, altered: AlteredTrees, name: str | None = None) -> None:
        self.base = base = robot.base if isinstance(robot, OverlaidRobot) else robot
        about = robot._about if name is None else msgspec.structs.replace(robot._about, name=name)
        gravity = robot._gravity if altered.gravity is None else altered.gravity
        self._begin(base._shared, about, robot._configuration, altered.tree, altered.weld, gravity)
        self._operands: dict[bool, dict[str, Array]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        altered = AlteredTrees(self._tree, self._weld, self._gravity)
        return type(self), (self.base, altered, self.name)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, different for every change of a number."""
        digest = hashlib.sha256(f"{self.base.fingerprint} {self.name} {self._tree.fingerprint}".encode())
        digest.update(str(self._tree.lead).encode() + (self._gravity + 0.0).tobytes())
        return digest.hexdigest()[:32]

    def share(self, robots: Iterable[Robot]) -> None:
        """Uses the kernels of one of these robots if it is overlaid on the same robot."""
        for robot in robots:
            base = robot.base if isinstance(robot, OverlaidRobot) else robot
            if base.fingerprint == self.base.fingerprint:
                self.base, self._library = base, base._library
                return

    @property
    def description(self) -> RobotDescription:
        """The description for clients, with the original robot's gravity if gravity has leading axes."""
        gravity = self._gravity if self._gravity.ndim == 1 else np.array(self._about.gravity)
        return msgspec.structs.replace(
            super().description,
            fingerprint=self.fingerprint,
            gravity=tuple(gravity.tolist()),
            passive=tuple(part for part in PASSIVE_PARTS if part in self._tree.passive.acts),
        )

    @property
    def as_described(self) -> Description:
        """The robot with its changed numbers as the description of a file; see `Robot.as_described`."""
        description = renumbered(self._description, self.base.tree, self._tree)
        if self._gravity.ndim > 1:
            raise UnimplementedError(
                f"robot '{self.name}' with a gravity for each state cannot be written to a robot file"
            )
        x, y, z = self._gravity.tolist()
        return replace(description, gravity=(x, y, z))

    def export(self, queries: Iterable[str], folder: str | os.PathLike[str], **options: Any) -> list[Path]:
        """Writes queries as C functions; see `Robot.export`.

        Raises:
            UnimplementedError: Joints are locked, or the robot's numbers or gravity have leading axes.
        """
        reason = (
            f"joint '{min(locked)}' locked"
            if (locked := self._tree.locked_joints - self.base.tree.locked_joints)
            else "many robots"
            if self._tree.lead
            else "a gravity for each state"
            if self._gravity.ndim > 1
            else None
        )
        if reason is not None:
            raise UnimplementedError(
                f"robot '{self.name}' with {reason} cannot be exported: a function has the numbers of one robot, whose "
                "joints move"
            )
        return Robot(replace(self.as_described, name=self.name)).export(queries, folder, **options)

    def export_fmu(self, file: str | os.PathLike[str], **options: Any) -> Path:
        """Writes the robot as an FMU; see `Robot.export_fmu`, and `as_described` for further errors."""
        return Robot(self.as_described).export_fmu(file, **options)

    @property
    def free(self) -> Array:
        """(nv,): 0 for locked joints, else 1."""
        return super().free if self._tree.free is None else np.array(self._tree.free)

    @property
    def certificates(self) -> Mapping[str, Certificate]:
        """Certificates of the original robot, whose kernels are used."""
        return self.base.certificates

    @cached_property
    def _import_receipt(self) -> Receipt:
        return self.base._import_receipt

    @cached_property
    def without_passive(self) -> Robot:
        """This robot without passive forces; it uses the same kernels."""
        if not self._tree.passive.acts:
            return self
        tree = self._tree.without_passive
        return type(self)(self, AlteredTrees(tree, self._weld.with_numbers(tree, ()), None))

    def _variant(self, row: Query, variant: Variant) -> Variant:
        """Returns the parametric variant, with passive forces among the numbers, for rows that depend on an overlay."""
        return variant._replace(overlay=row.overlay is not None)

    def _parameters(self, row: Query) -> dict[str, Array]:
        if row.overlay is None:
            return {}
        known = self._operands.get(row.links)
        if known is None:
            tree = self._tree if row.links else self._weld.tree
            values = zip(
                parameters(row.overlay, self._sizes(links=row.links)), parameters_of(tree).values(), strict=True
            )
            known = self._operands[row.links] = {operand.name: array for operand, array in values}
        return known

    def _check_still(self, row: Query, arguments: Mapping[str, Array]) -> None:
        if self._tree.free is not None:
            for name, spec in row.inputs.items():
                if spec.kind in _STILL:
                    self._refuse_moving(name, arguments.get(name), f"inputs.{name}")

    def _hold_still(self, row: Computation, arguments: dict[str, Any]) -> None:
        free = self._tree.free
        if free is None:
            return
        if row.of_kind("motions"):
            raise InvalidArgumentError(
                f"{row.name} does not accept locked joints: prescribe them to stand still", path="overlay.locked"
            )
        for name, value in arguments.items():
            spec = row.inputs.get(row.parameters.get(name) or name)
            if spec is not None and spec.kind in _STILL:
                self._refuse_moving(name, value, name)
            elif spec is not None and spec.kind == "effort" and value is not None:
                arguments[name] = _masked(value, free)

    def _refuse_moving(self, name: str, value: Any, path: str) -> None:
        """Refuses velocities or accelerations of locked joints that are not 0; arrays of other shapes are ignored."""
        array = None if value is None else numbers(value)
        if array is None or array.shape[-1:] != (self.nv,):
            return
        moves = np.argwhere((array != 0.0) & (self._tree.free == 0.0))
        if len(moves):
            joint = self._tree.configuration.velocity_names[moves[0][-1]]
            raise InvalidArgumentError(
                f"{name} of joint '{joint}', which is locked, must be 0, found {array[tuple(moves[0])]:g}", path=path
            )

    def _still(self, row: Query) -> tuple[list[int], list[int]]:
        if self._tree.free is None:
            return super()._still(row)
        locked: list[int] = np.flatnonzero(np.asarray(self._tree.free) == 0.0).tolist()
        return [k for k, name in enumerate(row.required) if row.inputs[name].kind in _STILL], locked


def renumbered(description: Description, own: Tree, tree: Tree) -> Description:
    """Returns the description of `tree`.

    Args:
        description: The description from which `own` was built.
        own: The original tree, one body per link.
        tree: The tree with other inertias and passive parameters.

    Raises:
        UnimplementedError: A joint is locked, or the tree has leading axes; a robot file cannot express that.
    """
    if tree.lead or tree.locked_joints != own.locked_joints:
        what = "many robots" if tree.lead else f"joint '{min(tree.locked_joints - own.locked_joints)}' locked"
        raise UnimplementedError(f"robot '{tree.name}' with {what} cannot be written to a robot file")
    bodies = dict(zip(tree.links, zip(own.inertia, tree.inertia, strict=True), strict=True))
    links = tuple(_link(link, *bodies[link.name]) for link in description.links)
    places = {tree.joints[i]: i for i in tree.movable}
    joints = tuple(
        _joint(joint, own, tree, places[joint.name]) if joint.name in places else joint for joint in description.joints
    )
    return replace(description, links=links, joints=joints)


def _link(link: Link, own: Any, body: Any) -> Link:
    if body is own:
        return link
    return replace(link, inertial=Inertial(float(body.mass), np.array(body.com), np.eye(3), np.array(body.about_com)))


def _joint(joint: Joint, own: Tree, tree: Tree, place: int) -> Joint:
    """Returns the joint with its changed numbers; a joint has one of each for all its degrees of freedom."""
    part = tree.in_rates[place].start
    before, after = ({name: float(getattr(t.passive, name)[part]) for name in _NUMBERS} for t in (own, tree))
    said: dict[str, Any] = {_NUMBERS[name]: value for name, value in after.items() if value != before[name]}
    mimic = tree.mimic[tree.movable.index(place)]
    if "rest" in said and mimic is not None:
        # A follower's rest position in the tree is relative to its position with the leader at zero.
        said["rest"] += mimic.offset
    return replace(joint, **said)


_NUMBERS = {column: name for name, column in COLUMNS.items()}
"""Fields of `Passive` and their names in a description."""
