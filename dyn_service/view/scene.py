"""What stands where in which colour: links, the centre of mass, and what the joints carry. NumPy only, no viewer.

X_WL        robot.link_poses
c           robot.system_momentum, the row of the first link: it and all that hangs on it
F_j         robot.constraint_forces in world axes: the force that a joint carries, without its effort's part
tau_j       the effort; its share of the limit, |tau_j| / limit_j, is the colour
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array, RobotQueries, Wrench
from dyn_service.errors import FailedPreconditionError
from dyn_service.parsing.pose import quaternion_of
from dyn_service.service.protocol.contacts import unpack_contacts
from dyn_service.simulation.contact.supports import SupportedDynamics
from dyn_service.simulation.task import checked

Colours = NDArray[np.uint8]

UNKNOWN = (128, 134, 145)
"""Of a joint without a limit, or without a motor."""
_SCALE = np.array([[46, 160, 67], [230, 190, 40], [214, 48, 49]], dtype=np.float64)
"""Colours of the shares 0, 1/2 and 1."""
FORCE_LENGTH = 0.35
"""Of the robot's size: the length of the arrow of the largest force among the joints."""
_LEAST_FORCE = 0.03
"""Of the largest: what is smaller has no arrow, since it would be all head."""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The robot in one state.

    rotation (nl, 3, 3), position (nl, 3) m: of the links, X_WL. centre (3,) m: of mass. tau, share (nv,): efforts and
    their shares of their limits, NaN where there is none. loads (k, 2, 3) m: ends of the arrows, force (k,) N what
    they stand for, colours (k, 3), joints: whose they are. contacts (nc, 2, 3) m, contact_force (nc,) N: the same of
    what planes push with.
    """

    rotation: Array
    position: Array
    centre: Array
    tau: Array
    share: Array
    loads: Array
    force: Array
    colours: Colours
    joints: tuple[str, ...]
    contacts: Array
    contact_force: Array


class Scene:
    """A robot as it is shown, and the planes that it stands on. `links` are those of `Snapshot.position`."""

    def __init__(self, robot: RobotQueries, ground: Ground | None = None) -> None:
        self.robot, self._ground = robot, ground
        self.at = robot.configuration
        about = robot.description
        self.links = about.link_names
        self._joints = about.all_joint_names
        self._child = np.array([self.links.index(joint.child) for joint in about.joints], dtype=np.intp)
        # the rows of constraint_forces that have an effort, and which one
        entries = dict(zip(self.at.names, self.at.v_slices, strict=True))
        self._entry = [entries.get(name) for name in self._joints]

    @property
    def stands(self) -> bool:
        """Whether there are planes that push."""
        return self._ground is not None

    @cached_property
    def size(self) -> float:
        """How far the links' origins reach from their middle at the neutral position, m; at least 0.1."""
        position = self.robot.link_poses(self.at.neutral).position
        return max(0.1, float(np.linalg.norm(position - position.mean(axis=0), axis=1).max()))

    @cached_property
    def floor(self) -> float:
        """How high the floor is drawn, m: at 0, or below the lowest link of a robot that reaches further down."""
        return min(0.0, float(self.robot.link_poses(self.position_of(self.start())).position[:, 2].min()))

    @cached_property
    def limits(self) -> Array:
        """(nv,) N m | N, NaN where there is none or it is 0."""
        efforts = self.robot.limits.efforts
        return np.where(np.isfinite(efforts) & (efforts > 0.0), efforts, np.nan)

    def still(self, q: Array) -> Snapshot:
        """The robot held still at q (nq,), by no plane: efforts are those against gravity."""
        return self._shown(q, np.zeros(self.at.nv), np.asarray(self.robot.gravity_forces(q)), None)

    def moving(self, q: Array, v: Array, tau: Array) -> Snapshot:
        """The robot at q (nq,), v (nv,) while the efforts tau (nv,) act, and planes push."""
        return self._shown(q, v, tau, self._ground)

    def _shown(self, q: Array, v: Array, tau: Array, ground: Ground | None) -> Snapshot:
        poses = self.robot.link_poses(q)
        points = pushes = np.zeros((0, 3))
        wrenches = None
        if ground is not None:
            points, pushes = ground.points(poses.rotation, poses.position), ground.forces(q, v, tau)
            wrenches = ground.wrenches(points, poses.rotation, poses.position, pushes)
        branch = self.robot.system_momentum(q, v, frame="world")
        share = np.abs(tau) / self.limits
        forces = self._carried(q, v, tau, wrenches)
        size = np.linalg.norm(forces, axis=1)
        largest = float(size.max(initial=0.0))
        shown: list[int] = np.flatnonzero((size > _LEAST_FORCE * largest) & np.isfinite(size)).tolist()
        begin = poses.position[self._child[shown]]
        contact_force = np.linalg.norm(pushes, axis=1)
        largest = max(largest, float(contact_force.max(initial=0.0)), 1e-12)
        per_newton = FORCE_LENGTH * self.size / largest
        arrows = per_newton * forces[shown]
        return Snapshot(
            rotation=poses.rotation,
            position=poses.position,
            centre=poses.position[0] + branch.centre[0],
            tau=tau,
            share=share,
            loads=np.stack([begin, begin + arrows], axis=1).reshape(-1, 2, 3),
            force=size[shown],
            colours=colours([self._share(share, k) for k in shown]),
            joints=tuple(self._joints[k] for k in shown),
            contacts=np.stack([points, points + per_newton * pushes], axis=1),
            contact_force=contact_force,
        )

    def _carried(self, q: Array, v: Array, tau: Array, wrenches: list[Wrench] | None) -> Array:
        """(nj, 3) N, world axes; NaN where the efforts give no motion: a massless branch moves."""
        try:
            carried: Array = self.robot.constraint_forces(q, v, tau, frame="world", wrenches=wrenches).constraint[:, 3:]
        except FailedPreconditionError:
            carried = np.full((len(self._joints), 3), np.nan)
        return carried

    def position_of(self, offsets: Array) -> Array:
        """q (nq,) from one number per velocity (nv,): angles and shifts of joints with one degree of freedom; of others
        how far they are moved from where they are neutral.
        """
        q: Array = self.at.integrate(self.at.neutral, offsets)
        return q

    def ranges(self) -> tuple[Array, Array]:
        """Least and largest (nv,) of the numbers of `position_of`: the limits where there are such, else a turn, or the
        robot's size.
        """
        free = np.where(self.at.turns, math.pi, self.size)
        lower, upper = -free, free.copy()
        for in_q, in_v in zip(self.at.q_slices, self.at.v_slices, strict=True):
            if in_v.stop - in_v.start == 1:
                low, high = self.robot.limits.lower[in_q.start], self.robot.limits.upper[in_q.start]
                lower[in_v] = low if math.isfinite(low) else lower[in_v]
                upper[in_v] = high if math.isfinite(high) else upper[in_v]
        return lower, np.maximum(upper, lower + 1e-6)

    def start(self) -> Array:
        """Numbers of `position_of` to begin with (nv,): the middle of the limits, 0 where there are none."""
        lower, upper = self.ranges()
        middle: Array = 0.5 * (lower + upper)
        return middle

    def _share(self, share: Array, row: int) -> float:
        entry = self._entry[row]
        found = share[entry] if entry is not None else np.array([np.nan])
        return float(np.nanmax(found)) if np.isfinite(found).any() else math.nan


def colours(shares: list[float]) -> Colours:
    """(k, 3), green through yellow to red for shares from 0 to 1 and beyond; grey for NaN."""
    at = np.array(shares, dtype=np.float64).reshape(-1, 1)
    known = np.clip(np.nan_to_num(at), 0.0, 1.0) * (len(_SCALE) - 1)
    below = np.minimum(known.astype(int), len(_SCALE) - 2)
    mixed = _SCALE[below[:, 0]] + (known - below) * (_SCALE[below[:, 0] + 1] - _SCALE[below[:, 0]])
    return np.where(np.isnan(at), np.array([UNKNOWN]), mixed).round().astype(np.uint8)


def quaternions(rotation: Array) -> Array:
    """(k, 4) w x y z, of unit length, of rotations (k, 3, 3)."""
    return np.array([quaternion_of(each) for each in rotation])


class Ground:
    """The planes that a plant stood on.

    Args:
        robot: As the plant has it.
        parameters: The plant's, with `contacts`.

    Raises:
        NotFoundError: A contact's link does not exist.
        InvalidArgumentError: A contact is none.
        FailedPreconditionError: The mass matrix is singular.
    """

    def __init__(self, robot: RobotQueries, parameters: Mapping[str, Any]) -> None:
        self.contacts = unpack_contacts(parameters["contacts"], "contacts")
        dt = 1.0 / (float(parameters.get("rate_hz", 1000.0)) * int(parameters.get("substeps", 1)))
        at = robot.configuration
        integrator = parameters.get("integrator", "rk4")
        task = checked(
            at, at.neutral, np.zeros(at.nv), None, dt=dt, steps=1, integrator=integrator, contacts=self.contacts
        )
        self._dynamics = SupportedDynamics(robot, task)
        self._links = [robot.link_names.index(contact.link) for contact in self.contacts]
        self._points = np.array([contact.point for contact in self.contacts], dtype=np.float64)
        self._radii = np.array([[contact.radius] for contact in self.contacts])
        normal = np.array([contact.normal for contact in self.contacts], dtype=np.float64)
        self._normal = normal / np.linalg.norm(normal, axis=1, keepdims=True)

    @property
    def height(self) -> float:
        """Of the lowest plane's point, m: where the floor is drawn."""
        return min(float(np.asarray(contact.plane, dtype=np.float64)[2]) for contact in self.contacts)

    def forces(self, q: Array, v: Array, tau: Array) -> Array:
        """(nc, 3) N, on the robot, world axes, at q (nq,), v (nv,) while the efforts tau (nv,) act."""
        return self._dynamics.moved(q, v, tau)[1]

    def points(self, rotation: Array, position: Array) -> Array:
        """(nc, 3) m, where it does so, towards the plane: of links at rotation (nl, 3, 3), position (nl, 3)."""
        turned = (rotation[self._links] @ self._points[..., None])[..., 0]
        found: Array = position[self._links] + turned - self._radii * self._normal
        return found

    def wrenches(self, points: Array, rotation: Array, position: Array, forces: Array) -> list[Wrench]:
        """The same as what acts on the links."""
        return [
            Wrench(link=contact.link, force=force, point=rotation[k].T @ (point - position[k]), frame="world")
            for contact, k, point, force in zip(self.contacts, self._links, points, forces, strict=True)
        ]
