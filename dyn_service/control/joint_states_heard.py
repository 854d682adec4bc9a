"""What ROS's messages of joint states say of a robot's joints, whoever made them: see `joint_states`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import UNIT, Configuration


@dataclass
class Heard:
    """What messages have said of a robot's joints: q (nq,), v, tau (nv,). What nobody spoke of is neutral, or zero."""

    at: Configuration

    def __post_init__(self) -> None:
        self.q, self.v, self.tau = self.at.neutral.copy(), np.zeros(self.at.nv), np.zeros(self.at.nv)
        self._places = {
            name: (joint, in_q, in_v)
            for name, joint, in_q, in_v in zip(
                self.at.names, self.at.joints, self.at.q_slices, self.at.v_slices, strict=True
            )
        }

    def take(self, message: Any) -> list[str]:
        """Takes up a `JointState` or a `MultiDOFJointState`, of ours or as a bag's own schema has it; the joints whose
        position it says. Others' joints are passed over, and joints that follow others: their leader moves them.

        Raises:
            InvalidArgumentError: A list has not an entry for each name, a position is not finite, or a quaternion is
                none. Then nothing is taken up.
        """
        return self._take_several(message) if hasattr(message, "joint_names") else self._take_single(message)

    def _take_single(self, message: Any) -> list[str]:
        lists = [_filled(message, field, len(message.name)) for field in ("position", "velocity", "effort")]
        own = [(k, *self._places[name][1:]) for k, name in self._own(message.name, several=False)]
        if lists[0] is None:
            return []
        for k, _, _ in own:
            if not math.isfinite(lists[0][k]):
                raise InvalidArgumentError(
                    f"the joint state has position {lists[0][k]} of joint {message.name[k]!r}, expected a finite number"
                )
        for k, in_q, in_v in own:
            for array, part, values in ((self.q, in_q, lists[0]), (self.v, in_v, lists[1]), (self.tau, in_v, lists[2])):
                array[part] = 0.0 if values is None else values[k]
        return [message.name[k] for k, _, _ in own]

    def _take_several(self, message: Any) -> list[str]:
        names = message.joint_names
        transforms, twists, wrenches = (
            _filled(message, field, len(names)) for field in ("transforms", "twist", "wrench")
        )
        if transforms is None:
            return []
        taken = []
        for k, name in self._own(names, several=True):
            joint, in_q, in_v = self._places[name]
            p, r = transforms[k].translation, transforms[k].rotation
            quaternion = (r.x, r.y, r.z, r.w)
            length = math.hypot(*quaternion)
            if not (abs(length - 1.0) <= UNIT and math.isfinite(p.x + p.y + p.z)):
                raise InvalidArgumentError(
                    f"the joint state has a transform of joint {name!r} with ({p.x:g}, {p.y:g}, {p.z:g}) and a "
                    f"quaternion of length {length:g}, expected finite numbers and 1 within {UNIT:g}"
                )
            v, tau = np.zeros(joint.nv), np.zeros(joint.nv)
            if twists is not None:
                v = joint.subspace.T @ _vector(twists[k].angular, twists[k].linear)
            if wrenches is not None:
                tau = joint.subspace.T @ _vector(wrenches[k].torque, wrenches[k].force)
            taken.append((in_q, in_v, joint.of_pose(quaternion, (p.x, p.y, p.z)), v, tau))
        for in_q, in_v, q, v, tau in taken:
            self.q[in_q], self.v[in_v], self.tau[in_v] = q, v, tau
        return [name for _, name in self._own(names, several=True)]

    def _own(self, names: Sequence[str], *, several: bool) -> list[tuple[int, str]]:
        """Those of the robot, of that kind."""
        return [
            (k, name)
            for k, name in enumerate(names)
            if name in self._places and (self._places[name][0].nv > 1) == several
        ]


def _filled(message: Any, field: str, count: int) -> Sequence[Any] | None:
    """A list with an entry for each name; None where it is empty."""
    values: Sequence[Any] = getattr(message, field)
    if len(values) not in (0, count):
        raise InvalidArgumentError(
            f"the joint state has {len(values)} entries in {field!r} of {count} names, expected as many, or none"
        )
    return values if len(values) else None


def _vector(*parts: Any) -> Array:
    return np.array([x for part in parts for x in (part.x, part.y, part.z)])
