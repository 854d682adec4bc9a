"""Joints along one axis, with one degree of freedom: revolute, continuous, prismatic, screw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dyn_service.model.inertia import BodyInertia
from dyn_service.model.joints.base import Arithmetic, Array, Joint, Scalar, Scalars, Terms
from dyn_service.model.joints.rotations import turned_about

_UNTURNED = np.array([1.0, 0.0])


@dataclass(frozen=True, eq=False)
class JointWithAxis(Joint):
    """axis: (3,) unit vector."""

    axis: Array

    @property
    def numbers(self) -> tuple[Array, ...]:
        return (self.axis,)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"axis": tuple(self.axis.tolist())}

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        return replace(self, axis=f(self.axis))


@dataclass(frozen=True, eq=False)
class Axial(JointWithAxis):
    """ratio: as `Joint.ratio`."""

    ratio: float = field(default=1.0, kw_only=True)

    @property
    def without_mimic(self) -> Joint:
        return self if self.ratio == 1.0 else replace(self, ratio=1.0)

    def follower(self, ratio: float) -> Joint:
        return replace(self, ratio=ratio)

    @property
    def line(self) -> Array | None:
        return self.axis

    def along_z(self, turn: Array) -> Joint:
        return replace(self, axis=np.array([0.0, 0.0, 1.0]))


@dataclass(frozen=True, eq=False)
class Revolute(Axial):
    """Rotates about its axis. turn: cosine and sine of an angle that is added to q."""

    turn: Array = field(default_factory=_UNTURNED.copy)

    type: ClassVar[str] = "revolute"
    urdf: ClassVar[str | None] = "revolute"
    sdf: ClassVar[str | None] = "revolute"
    mujoco: ClassVar[str | None] = "hinge"
    positions: ClassVar[tuple[str, ...]] = ("angle",)
    velocities: ClassVar[tuple[str, ...]] = ("rate",)
    angles: ClassVar[tuple[bool, ...]] = (True,)

    @property
    def unranged_type(self) -> str:
        return Continuous.type

    @property
    def numbers(self) -> tuple[Array, ...]:
        return (self.axis, self.turn)

    @property
    def subspace(self) -> Array:
        return self.ratio * np.concatenate([self.axis, 0 * self.axis])[:, None]

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        # By the theorem of addition: q + t as a number would have lost the last digits of a small q.
        cos_q, sin_q = _cosine_and_sine(self.ratio, q[0], m)
        cos_t, sin_t = self.turn.tolist()
        return turned_about(self.axis, cos_t * cos_q - sin_t * sin_q, cos_t * sin_q + sin_t * cos_q)

    def along_z(self, turn: Array) -> Joint:
        return replace(self, axis=np.array([0.0, 0.0, 1.0]), turn=turn)

    @property
    def accepts_rotation(self) -> bool:
        return True

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        return replace(self, axis=f(self.axis), turn=f(self.turn))

    def transferable_inertia(self, body: BodyInertia) -> BodyInertia | None:
        # The smaller one, so that the remaining inertia is not negative.
        transverse = min(body.about_origin[0, 0], body.about_origin[1, 1])
        return BodyInertia(body.mass, np.array([0, 0, body.moment[2]]), np.diag([transverse, transverse, 0]))


@dataclass(frozen=True, eq=False)
class Continuous(Revolute):
    """A revolute joint without a range."""

    type: ClassVar[str] = "continuous"
    urdf: ClassVar[str | None] = "continuous"
    sdf: ClassVar[str | None] = "continuous"
    wraps: ClassVar[bool] = True

    @property
    def ranged(self) -> bool:
        return False

    @property
    def without_wrapping(self) -> Joint:
        return Revolute(self.axis, self.turn, ratio=self.ratio)


@dataclass(frozen=True, eq=False)
class Prismatic(Axial):
    """Translates along its axis."""

    type: ClassVar[str] = "prismatic"
    urdf: ClassVar[str | None] = "prismatic"
    sdf: ClassVar[str | None] = "prismatic"
    mujoco: ClassVar[str | None] = "slide"
    positions: ClassVar[tuple[str, ...]] = ("distance",)
    velocities: ClassVar[tuple[str, ...]] = ("speed",)
    angles: ClassVar[tuple[bool, ...]] = (False,)

    @property
    def subspace(self) -> Array:
        return self.ratio * np.concatenate([0 * self.axis, self.axis])[:, None]

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return ((self.ratio * q[0], self.axis),)

    def transferable_inertia(self, body: BodyInertia) -> BodyInertia | None:
        return BodyInertia(0 * body.mass, 0 * body.moment, body.about_origin)


@dataclass(frozen=True, eq=False)
class Screw(Axial):
    """Rotates about its axis and translates along it. pitch: m per turn, positive for a right-handed thread."""

    pitch: float

    type: ClassVar[str] = "screw"
    urdf: ClassVar[str | None] = None
    drake: ClassVar[str | None] = "screw"
    sdf: ClassVar[str | None] = "screw"
    mujoco: ClassVar[str | None] = None
    positions: ClassVar[tuple[str, ...]] = ("angle",)
    velocities: ClassVar[tuple[str, ...]] = ("rate",)
    angles: ClassVar[tuple[bool, ...]] = (True,)

    @property
    def threaded(self) -> bool:
        return True

    @property
    def lead(self) -> float:
        """m per rad."""
        return self.pitch / (2.0 * math.pi)

    @property
    def numbers(self) -> tuple[Array, ...]:
        return (self.axis, np.array([self.pitch]))

    @property
    def parameters(self) -> dict[str, Any]:
        return {**super().parameters, "pitch": self.pitch}

    @property
    def subspace(self) -> Array:
        return self.ratio * np.concatenate([self.axis, self.lead * self.axis])[:, None]

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return turned_about(self.axis, *_cosine_and_sine(self.ratio, q[0], m))

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return ((self.lead * (self.ratio * q[0]), self.axis),)

    def transferable_inertia(self, body: BodyInertia) -> BodyInertia | None:
        # A mass on the axis moves along it; the inertia of a rod across, without mass, looks the same from everywhere.
        transverse = min(body.about_origin[0, 0], body.about_origin[1, 1])
        return BodyInertia(0 * body.mass, 0 * body.moment, np.diag([transverse, transverse, 0]))


def _cosine_and_sine(ratio: float, q: Scalar, m: Arithmetic) -> tuple[Scalar, Scalar]:
    """Returns cosine and sine of ratio q. Joints with ratios of opposite sign share both functions."""
    if not isinstance(ratio, float):  # a symbol
        return m.cos(ratio * q), m.sin(ratio * q)
    angle = abs(ratio) * q
    sine = m.sin(angle)
    return m.cos(angle), sine if ratio >= 0.0 else -sine
