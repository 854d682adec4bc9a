"""A robot with an overlay: the kernels of the original robot with other numbers.

It is a `Robot` in all, so computations and servers need not know of overlays. Its kernels are the parametric ones of
the robot below it (`kernels/symbols.py`), which all that is laid over that robot shares. Where numbers have leading
axes, it is as many robots, and so are its `tree` and `bodies`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from dyn_service.api.arrays import numbers
from dyn_service.api.description import RobotDescription
from dyn_service.api.queries import Array, Computation, Query
from dyn_service.api.spec import EVERY_PART, PLAIN, Variant
from dyn_service.engine.overlay import AlteredTrees
from dyn_service.engine.robot import Robot
from dyn_service.errors import InvalidArgumentError, UnimplementedError
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.signature import Signature, parameters
from dyn_service.model.description import Description
from dyn_service.model.parameters import parameters_of
from dyn_service.model.renumbered import renumbered
from dyn_service.parsing.report import Receipt


def _masked(efforts: Any, free: Array) -> Any:
    """Efforts, constant, samples or a function, without those of joints that are locked."""
    if callable(efforts):
        return lambda *state: _masked(efforts(*state), free)
    array = numbers(efforts)
    fits = array is not None and array.shape[-1:] == free.shape
    return array * free if array is not None and fits else efforts


_STILL = ("velocity", "acceleration")
"""Kinds of input that are 0 at joints that are locked."""


class Overlaid(Robot):
    """A robot with other numbers. base: the robot whose kernels answer.

    Args:
        robot: The robot, or one that is overlaid already.
        altered: Its trees with the numbers.
        name: What it is called; None: as the robot.
    """

    base: Robot

    def __init__(self, robot: Robot, altered: AlteredTrees, name: str | None = None) -> None:
        self.base = base = robot.base if isinstance(robot, Overlaid) else robot
        about = robot._about if name is None else msgspec.structs.replace(robot._about, name=name)
        gravity = robot._gravity if altered.gravity is None else altered.gravity
        self._begin(base._shared, about, robot._configuration, altered.tree, altered.weld, gravity)
        self._operands: dict[bool, dict[str, Array]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        altered = AlteredTrees(self._tree, self._weld, self._gravity)
        return type(self), (self.base, altered, self.name)

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits; a robot with any number changed has others."""
        digest = hashlib.sha256(f"{self.base.fingerprint} {self.name} {self._tree.fingerprint}".encode())
        digest.update(str(self._tree.lead).encode() + (self._gravity + 0.0).tobytes())
        return digest.hexdigest()[:32]

    def share(self, robots: Iterable[Robot]) -> None:
        """Has it use the kernels of one of these robots, where it is laid over the same one."""
        for robot in robots:
            base = robot.base if isinstance(robot, Overlaid) else robot
            if base.fingerprint == self.base.fingerprint:
                self.base, self._library = base, base._library
                return

    @property
    def description(self) -> RobotDescription:
        """What a client needs to know of the robot; gravity is the default where each state has its own."""
        gravity = self._gravity if self._gravity.ndim == 1 else np.array(self._about.gravity)
        return msgspec.structs.replace(
            super().description,
            fingerprint=self.fingerprint,
            gravity=tuple(gravity.tolist()),
            passive=tuple(part for part in EVERY_PART if part in self._tree.passive.acts),
        )

    @property
    def as_described(self) -> Description:
        """The robot with its numbers in the words of a file; see `Robot.as_described`."""
        description = renumbered(self._description, self.base.tree, self._tree)
        if self._gravity.ndim > 1:
            raise UnimplementedError(
                f"robot '{self.name}' with a gravity for each state cannot be written to a robot file"
            )
        x, y, z = self._gravity.tolist()
        return replace(description, gravity=(x, y, z))

    @property
    def free(self) -> Array:
        """(nv,): 0 where a joint is locked, else 1."""
        return super().free if self._tree.free is None else np.array(self._tree.free)

    @property
    def certificates(self) -> Mapping[str, Certificate]:
        """Those of the robot below: the kernels are its own."""
        return self.base.certificates

    @cached_property
    def _import_receipt(self) -> Receipt:
        return self.base._import_receipt

    @cached_property
    def bare(self) -> Robot:
        """The same robot, its joints doing nothing by themselves; by the same kernels."""
        if not self._tree.passive.acts:
            return self
        tree = self._tree.bare
        return type(self)(self, AlteredTrees(tree, self._weld.carrying(tree, ()), None))

    def has_kernel(self, row: Query, method: str = "", variant: Variant = PLAIN, *, passive: bool = True) -> bool:
        """Whether a kernel is in this process: what joints do by themselves is among the numbers."""
        return super().has_kernel(row, method, variant._replace(overlay=row.overlay is not None))

    def load_kernel(self, row: Query, method: str = "", variant: Variant = PLAIN, *, passive: bool = True) -> bool:
        """Whether a kernel can be called without a compiler, as `has_kernel`."""
        return super().load_kernel(row, method, variant._replace(overlay=row.overlay is not None))

    def signature(self, row: Query, method: str, variant: Variant = PLAIN) -> Signature:
        """Of the kernels that take the robot's numbers, of the rows that depend on any."""
        return super().signature(row, method, variant._replace(overlay=row.overlay is not None))

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
                f"{row.name} takes no locked joints: prescribe them to stand still", path="overlay.locked"
            )
        for name, value in arguments.items():
            spec = row.inputs.get(row.parameters.get(name) or name)
            if spec is not None and spec.kind in _STILL:
                self._refuse_moving(name, value, name)
            elif spec is not None and spec.kind == "effort" and value is not None:
                arguments[name] = _masked(value, free)

    def _refuse_moving(self, name: str, value: Any, path: str) -> None:
        """Refuses velocities or accelerations that are not 0 where a joint is locked; others are not looked at."""
        array = None if value is None else numbers(value)
        if array is None or array.shape[-1:] != (self.nv,):
            return
        moves = np.argwhere((array != 0.0) & (self._tree.free == 0.0))
        if len(moves):
            joint = self._tree.configuration.velocity_names[moves[0][-1]]
            raise InvalidArgumentError(
                f"{name} of joint '{joint}', which is locked, must be 0, found {array[tuple(moves[0])]:g}", path=path
            )

    def _shorten(self, row: Query) -> None:
        if self._tree.free is None and row.overlay is not None:  # whether joints that are locked move must be looked at
            super()._shorten(row)

    def _pushed_call(self, row: Query, method: str) -> None:
        """None: the call of one state with external wrenches does not know of the robot's numbers."""
