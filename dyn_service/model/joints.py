"""How a joint lets its body move: one small class per joint type, and all that the rest of the package knows of it.

Each says, in the axes of the joint frame J that stands on the parent and coincides with the body B where the joint is
at zero:

    R_JB(q), p_JB(q)   the pose, as sums of constant matrices times functions of q
    G                  (6, nv), the motion subspace: V_JB = G v, [angular; linear] at the body's origin in its axes
    q-dot = N(q) v     how positions change; v itself where nq == nv
    integrate          the position after moving with constant v for a time: the exponential map
    difference         the v that moves one position to another in unit time: its inverse

G is constant in body axes for every type here, so what velocities alone add to a body's acceleration is one formula for
all, (5a) with omega_B x v_B: see `dynamics/newton_euler.py`. A joint with one way to move may be led by another: its
position is then `ratio` times the other's, and its G as many times as long; an offset between the two belongs to where
its frame stands (`building.py`), since each of these types moves along a group with one parameter. Conventions are those of
Pinocchio and ROS:

| type | q | v |
|---|---|---|
| revolute, continuous | angle, rad | rad/s |
| prismatic | distance, m | m/s |
| screw | angle, rad | rad/s |
| planar | x, y in m, theta in rad | vx, vy in m/s, omega in rad/s, body axes |
| spherical | qx, qy, qz, qw | angular, rad/s, body axes |
| floating | x, y, z in m, qx, qy, qz, qw | linear m/s, then angular rad/s, body axes |

A quaternion of any length stands for the rotation of the unit one; `integrate` returns unit ones. The functions take
numbers, arrays of states or symbols alike: an `Arithmetic` says how they are computed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.model.inertia import BodyInertia, skew

Array = NDArray[Any]
Scalar = Any
"""A number, an array with one entry per state, or a 1 x 1 symbol."""

Scalars = Sequence[Scalar]

Terms = Sequence[tuple[Scalar, Array]]
"""Sum of scalars times constant matrices or vectors; the scalar None is 1."""


class Arithmetic(NamedTuple):
    """Functions of scalars that are not operators. less: (a, b, then, otherwise), `then` where a < b; a, b >= 0."""

    sin: Callable[[Scalar], Scalar]
    cos: Callable[[Scalar], Scalar]
    sqrt: Callable[[Scalar], Scalar]
    fabs: Callable[[Scalar], Scalar]
    atan2: Callable[[Scalar, Scalar], Scalar]
    copysign: Callable[[Scalar, Scalar], Scalar]
    less: Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]


NUMBERS = Arithmetic(
    np.sin,
    np.cos,
    np.sqrt,
    np.fabs,
    np.arctan2,
    np.copysign,
    lambda a, b, then, otherwise: np.where(a < b, then, otherwise),
)
"""Of numbers and arrays."""

SINGLE = Arithmetic(
    lambda x: float(np.sin(x)),
    lambda x: float(np.cos(x)),
    math.sqrt,
    math.fabs,
    lambda y, x: float(np.arctan2(y, x)),
    math.copysign,
    lambda a, b, then, otherwise: then if a < b else otherwise,
)
"""Of Python's numbers: to the last bit that of `NUMBERS`, and several times faster; dividing by zero is an error."""

_TINY = 1e-150
"""Its square is a double too. Added in squares, it keeps quotients such as sin(x) / x defined at zero."""

_ONE_AT = np.eye(9).reshape(3, 3, 3, 3)
"""_ONE_AT[i, j] is the matrix with a one at (i, j)."""

_UNTURNED = np.array([1.0, 0.0])


@dataclass(frozen=True, eq=False)
class Joint:
    """A joint that does not move; the other types override what moves them.

    type: its name in URDF. positions, velocities: what the entries of q and v are called. angles: which of the
    positions are angles, in rad, that may turn on and on. adds_up: whether the rate of its positions is its velocity.
    driven: whether a motor moves it, where nobody says otherwise. mujoco: the type of MuJoCo's that moves the same way;
    None where there is none.
    """

    type: ClassVar[str] = "fixed"
    adds_up: ClassVar[bool] = True
    driven: ClassVar[bool] = True
    mujoco: ClassVar[str | None] = ""
    positions: ClassVar[tuple[str, ...]] = ()
    velocities: ClassVar[tuple[str, ...]] = ()
    angles: ClassVar[tuple[bool, ...]] = ()

    @property
    def ratio(self) -> float:
        """By how much its own position changes with the one it is given: 1 but where another joint leads it."""
        return 1.0

    @property
    def alone(self) -> Joint:
        """The joint as it moves where none leads it."""
        return self

    def led(self, ratio: float) -> Joint:
        """The joint where another one leads it: it takes that one's position, and its own is `ratio` times as much."""
        raise NotImplementedError(f"no joint leads one of type {self.type}")

    @property
    def nq(self) -> int:
        """Numbers that say where it stands."""
        return len(self.positions)

    @property
    def nv(self) -> int:
        """Ways it can move."""
        return len(self.velocities)

    @property
    def shifts(self) -> tuple[bool, ...]:
        """Which of the positions are lengths, in m: neither angles nor parts of a quaternion."""
        inner = range(self.quaternion.start, self.quaternion.stop)
        return tuple(not angle and k not in inner for k, angle in enumerate(self.angles))

    @property
    def quaternion(self) -> slice:
        """Where among its positions a quaternion stands; empty where there is none."""
        return slice(0, 0)

    @property
    def threaded(self) -> bool:
        """Whether it takes a pitch."""
        return False

    @property
    def ranged(self) -> bool:
        """Whether limits of its position mean anything."""
        return self.nv == 1

    def refused(self, part: str) -> str | None:
        """Why a part of what joints do by themselves, `stiffness`, `rest` or `armature`, means nothing here; else None.

        An armature is the same for all ways to move. Where they turn and shift the body's axes, v^T A v / 2 is the
        kinetic energy of nothing: momentum would not be kept.
        """
        if part in ("stiffness", "rest") and self.nv != 1:
            return f"a spring acts along one way to move, and a joint of type {self.type} has {self.nv}"
        if part == "armature" and self.nv > 1 and any(self.shifts):
            return f"an armature is felt along one way to move or in turning, and a joint of type {self.type} does more"
        return None

    @property
    def numbers(self) -> tuple[Array, ...]:
        """What it is made of, for fingerprints."""
        return ()

    @property
    def figures(self) -> dict[str, Any]:
        """`axis`, a unit vector, and `pitch`, m per turn, as far as it has them, in plain numbers."""
        return {}

    @property
    def subspace(self) -> Array:
        """G, (6, nv), angular part first."""
        return np.zeros((6, 0))

    @property
    def neutral(self) -> Array:
        """(nq,), where the body coincides with the joint frame."""
        return np.zeros(self.nq)

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        """R_JB; empty where the joint does not turn."""
        return ()

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        """p_JB, m; empty where the joint does not shift."""
        return ()

    def pose(self, q: Array) -> tuple[Array, Array]:
        """R_JB (..., 3, 3) and p_JB (..., 3) at q (..., nq), in numbers."""
        entries = [q[..., k] for k in range(self.nq)]
        R, p = np.eye(3), np.zeros(3)
        turned, shifted = self.rotation(entries, NUMBERS), self.translation(entries, NUMBERS)
        lead = q.shape[:-1]
        return (
            np.broadcast_to(summed(turned, 2) if turned else R, (*lead, 3, 3)),
            np.broadcast_to(summed(shifted, 1) if shifted else p, (*lead, 3)),
        )

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        """The position at which the body stands at a unit quaternion (x, y, z, w) and p, where the joint lets it."""
        raise NotImplementedError(f"joints of type {self.type} have no pose of their own")

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        """q-dot = N(q) v."""
        return list(v)

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        """The position after a motion with constant v; step: v times its duration."""
        return [x + moved for x, moved in zip(q, step, strict=True)]

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        """The v that moves q to `to` in unit time; of turns without an angle of their own the shorter one."""
        return [y - x for x, y in zip(q, to, strict=True)]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        """The same position, its quaternion of unit length."""
        return list(q)

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        """Momenta p = G^T K in the axes and about the origin of the joint frame: they stay as they are where nothing
        acts on a body whose parent stands still.
        """
        return list(p)

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        """The inverse of `momentum_on_parent`: p from momenta in the joint frame."""
        return list(p)

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        """v x* p, by which p-dot in body axes falls short of p-dot in the joint frame's."""
        return [0.0 * x for x in p]

    def carried(self, q: Scalars, v: Scalars) -> list[Scalar]:
        """v, in its own axes, of a body that stands fast at q on a frame that has this v, in numbers.

        Power p v is the same on both, so this is the dual of `momentum_on_parent`.
        """
        return list(_dot(self.momentum_on_parent(q, _units(self.nv, (*q, *v)), NUMBERS), v))

    def bracket(self, v: Scalars, w: Scalars) -> list[Scalar]:
        """v x w, the Lie bracket, in numbers: minus the dual of `turning`."""
        return list(-_dot(self.turning(v, _units(self.nv, (*v, *w))), w))

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        """(nq,) at random within its limits, (nq,) each; within pi rad or a metre of zero where there are none."""
        reach = np.where(self.angles, np.pi, 1.0)
        bounded = np.isfinite(lower) & np.isfinite(upper) & (lower < upper)
        return rng.uniform(np.where(bounded, lower, -reach), np.where(bounded, upper, reach))

    # What `kernels/frames.py` may choose, and what it may move to the parent.

    @property
    def line(self) -> Array | None:
        """(3,) direction of the line along which the body's frame may be slid, and about which it may be turned,
        without changing what q and v mean; None where there is none.
        """
        return None

    def along_z(self, turn: Array) -> Joint:
        """The joint where its line is the z axis; turn: cosine and sine of an angle that it adds to its own."""
        return self

    @property
    def takes_turns(self) -> bool:
        """Whether `along_z` may add an angle."""
        return False

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        """The joint with f of each unit vector it is made of."""
        return self

    def unfelt(self, body: BodyInertia) -> BodyInertia | None:
        """The part of a body's inertia that looks the same from the parent at every q, the line being the z axis."""
        return None


@dataclass(frozen=True, eq=False)
class _Axial(Joint):
    """axis: (3,) unit vector. ratio: as `Joint.ratio`."""

    axis: Array
    ratio: float = field(default=1.0, kw_only=True)

    @property
    def alone(self) -> Joint:
        return self if self.ratio == 1.0 else replace(self, ratio=1.0)

    def led(self, ratio: float) -> Joint:
        return replace(self, ratio=ratio)

    @property
    def numbers(self) -> tuple[Array, ...]:
        return (self.axis,)

    @property
    def figures(self) -> dict[str, Any]:
        return {"axis": tuple(self.axis.tolist())}

    @property
    def line(self) -> Array | None:
        return self.axis

    def along_z(self, turn: Array) -> Joint:
        return replace(self, axis=np.array([0.0, 0.0, 1.0]))

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        return replace(self, axis=f(self.axis))


@dataclass(frozen=True, eq=False)
class Revolute(_Axial):
    """Turns about its axis. turn: cosine and sine of an angle that is added to q."""

    turn: Array = field(default_factory=_UNTURNED.copy)

    type: ClassVar[str] = "revolute"
    mujoco: ClassVar[str | None] = "hinge"
    positions: ClassVar[tuple[str, ...]] = ("angle",)
    velocities: ClassVar[tuple[str, ...]] = ("rate",)
    angles: ClassVar[tuple[bool, ...]] = (True,)

    @property
    def numbers(self) -> tuple[Array, ...]:
        return (self.axis, self.turn)

    @property
    def subspace(self) -> Array:
        return self.ratio * np.concatenate([self.axis, 0 * self.axis])[:, None]

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        # By the theorem of addition: q + t as a number would have lost the last digits of a small q.
        cos_q, sin_q = _cosine_and_sine(self.ratio, q[0], m)
        cos_t, sin_t = map(float, self.turn)
        return _turned_about(self.axis, cos_t * cos_q - sin_t * sin_q, cos_t * sin_q + sin_t * cos_q)

    def along_z(self, turn: Array) -> Joint:
        return replace(self, axis=np.array([0.0, 0.0, 1.0]), turn=turn)

    @property
    def takes_turns(self) -> bool:
        return True

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        return replace(self, axis=f(self.axis), turn=f(self.turn))

    def unfelt(self, body: BodyInertia) -> BodyInertia | None:
        # The smaller one, so that what stays behind cannot be negative and cancel what went.
        across = min(body.about_origin[0, 0], body.about_origin[1, 1])
        return BodyInertia(body.mass, np.array([0, 0, body.moment[2]]), np.diag([across, across, 0]))


@dataclass(frozen=True, eq=False)
class Continuous(Revolute):
    """A revolute joint without a range."""

    type: ClassVar[str] = "continuous"

    @property
    def ranged(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Prismatic(_Axial):
    """Slides along its axis."""

    type: ClassVar[str] = "prismatic"
    mujoco: ClassVar[str | None] = "slide"
    positions: ClassVar[tuple[str, ...]] = ("distance",)
    velocities: ClassVar[tuple[str, ...]] = ("speed",)
    angles: ClassVar[tuple[bool, ...]] = (False,)

    @property
    def subspace(self) -> Array:
        return self.ratio * np.concatenate([0 * self.axis, self.axis])[:, None]

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return ((self.ratio * q[0], self.axis),)

    def unfelt(self, body: BodyInertia) -> BodyInertia | None:
        return BodyInertia(0 * body.mass, 0 * body.moment, body.about_origin)


@dataclass(frozen=True, eq=False)
class Screw(_Axial):
    """Turns about its axis and moves along it with each turn. pitch: m per turn, positive of a right-handed thread."""

    pitch: float

    type: ClassVar[str] = "screw"
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
    def figures(self) -> dict[str, Any]:
        return {**super().figures, "pitch": self.pitch}

    @property
    def subspace(self) -> Array:
        return self.ratio * np.concatenate([self.axis, self.lead * self.axis])[:, None]

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return _turned_about(self.axis, *_cosine_and_sine(self.ratio, q[0], m))

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return ((self.lead * (self.ratio * q[0]), self.axis),)

    def unfelt(self, body: BodyInertia) -> BodyInertia | None:
        # A mass on the axis moves along it; the inertia of a rod across, without mass, looks the same from everywhere.
        across = min(body.about_origin[0, 0], body.about_origin[1, 1])
        return BodyInertia(0 * body.mass, 0 * body.moment, np.diag([across, across, 0]))


@dataclass(frozen=True, eq=False)
class Planar(Joint):
    """Moves in the plane across its axis; x and y are the joint frame's, turned with z into the axis the short way.

    axis: (3,) unit vector.
    """

    axis: Array

    type: ClassVar[str] = "planar"
    adds_up: ClassVar[bool] = False
    driven: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = None
    positions: ClassVar[tuple[str, ...]] = ("x", "y", "theta")
    velocities: ClassVar[tuple[str, ...]] = ("vx", "vy", "omega")
    angles: ClassVar[tuple[bool, ...]] = (False, False, True)

    @property
    def numbers(self) -> tuple[Array, ...]:
        return (self.axis,)

    @property
    def figures(self) -> dict[str, Any]:
        return {"axis": tuple(self.axis.tolist())}

    @property
    def _plane(self) -> tuple[Array, Array]:
        x, y, z = self.axis
        if z < 0:
            # Near -z 1 + z has no digits left: 1 / (1 + z) = (1 - z) / (x^2 + y^2), and x, y in units of the larger.
            larger = max(abs(x), abs(y))
            if larger == 0:
                return np.array([1, 0, 0]) + 0 * self.axis, np.array([0, -1, 0]) + 0 * self.axis
            u, w = x / larger, y / larger
            c = (1 - z) / (u * u + w * w)
            return np.array([1 - c * u * u, -c * u * w, -x]), np.array([-c * u * w, 1 - c * w * w, -y])
        e_x = np.array([1 - x * x / (1 + z), -x * y / (1 + z), -x])
        return e_x, np.array([-x * y / (1 + z), 1 - y * y / (1 + z), -y])

    @property
    def subspace(self) -> Array:
        none, (e_x, e_y) = 0 * self.axis, self._plane
        return np.column_stack([np.concatenate(pair) for pair in ((none, e_x), (none, e_y), (self.axis, none))])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return _turned_about(self.axis, m.cos(q[2]), m.sin(q[2]))

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple(zip(q[:2], self._plane, strict=True))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        e_x, e_y = self._plane
        about = float(self.axis @ np.asarray(rotation[:3]))
        return [float(e_x @ np.asarray(p)), float(e_y @ np.asarray(p)), 2.0 * math.atan2(about, rotation[3])]

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*_turned_in_plane(v, m.cos(q[2]), m.sin(q[2])), v[2]]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = step[2] + m.copysign(_TINY, step[2])
        half = m.sin(angle / 2)
        along, across = m.sin(angle) / angle, 2 * half * (half / angle)
        moved = (along * step[0] - across * step[1], across * step[0] + along * step[1])
        x, y = _turned_in_plane(moved, m.cos(q[2]), m.sin(q[2]))
        return [q[0] + x, q[1] + y, q[2] + step[2]]

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        turned = to[2] - q[2]
        angle = m.atan2(m.sin(turned), m.cos(turned))
        x, y = _turned_in_plane((to[0] - q[0], to[1] - q[1]), m.cos(q[2]), -m.sin(q[2]))
        half = angle / 2 + m.copysign(_TINY, angle)
        along = half * m.cos(half) / m.sin(half)
        return [along * x + half * y, along * y - half * x, angle]

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        x, y = _turned_in_plane(p, m.cos(q[2]), m.sin(q[2]))
        return [x, y, p[2] + q[0] * y - q[1] * x]

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*_turned_in_plane(p, m.cos(q[2]), -m.sin(q[2])), p[2] - (q[0] * p[1] - q[1] * p[0])]

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        return [-v[2] * p[1], v[2] * p[0], v[0] * p[1] - v[1] * p[0]]

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        return replace(self, axis=f(self.axis))


@dataclass(frozen=True, eq=False)
class Spherical(Joint):
    """Turns about its origin."""

    type: ClassVar[str] = "spherical"
    adds_up: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "ball"
    positions: ClassVar[tuple[str, ...]] = ("qx", "qy", "qz", "qw")
    velocities: ClassVar[tuple[str, ...]] = ("wx", "wy", "wz")
    angles: ClassVar[tuple[bool, ...]] = (False, False, False, False)

    @property
    def quaternion(self) -> slice:
        return slice(0, 4)

    @property
    def subspace(self) -> Array:
        return np.eye(6)[:, :3]

    @property
    def neutral(self) -> Array:
        return np.array([0.0, 0.0, 0.0, 1.0])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple((entry, _ONE_AT[k // 3, k % 3]) for k, entry in enumerate(_matrix(q)))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        return list(map(float, rotation))

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [x / 2 for x in _quaternion_product(q, (*v, 0.0))]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        angle = m.sqrt(_dot(step, step) + _TINY * _TINY)
        share = m.sin(angle / 2) / angle
        return _unit(_quaternion_product(q, (*(share * x for x in step), m.cos(angle / 2))), m)

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        *imaginary, real = _quaternion_product((-q[0], -q[1], -q[2], q[3]), to)
        sine = m.sqrt(_dot(imaginary, imaginary) + _TINY * _TINY)
        share = m.copysign(2 * m.atan2(sine, m.fabs(real)) / sine, real)
        return [share * x for x in imaginary]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        return _unit(q, m)

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        return _times(_matrix(q), p)

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        return _times(_transposed(_matrix(q)), p)

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        return _cross(v, p)

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        found = rng.normal(size=4)
        return np.asarray(found / np.linalg.norm(found))


_SPHERICAL = Spherical()


@dataclass(frozen=True, eq=False)
class Floating(Joint):
    """Moves as it likes."""

    type: ClassVar[str] = "floating"
    adds_up: ClassVar[bool] = False
    driven: ClassVar[bool] = False
    mujoco: ClassVar[str | None] = "free"
    positions: ClassVar[tuple[str, ...]] = ("x", "y", "z", *Spherical.positions)
    velocities: ClassVar[tuple[str, ...]] = ("vx", "vy", "vz", *Spherical.velocities)
    angles: ClassVar[tuple[bool, ...]] = (False,) * 7

    @property
    def quaternion(self) -> slice:
        return slice(3, 7)

    @property
    def subspace(self) -> Array:
        return np.eye(6)[:, [3, 4, 5, 0, 1, 2]]

    @property
    def neutral(self) -> Array:
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])

    def rotation(self, q: Scalars, m: Arithmetic) -> Terms:
        return _SPHERICAL.rotation(q[3:], m)

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        return tuple(zip(q[:3], np.eye(3), strict=True))

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        return [*map(float, p), *map(float, rotation)]

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*_times(_matrix(q[3:]), v[:3]), *_SPHERICAL.rate(q[3:], v[3:], m)]

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        # The exponential of SE(3): p' = p + R (u + a w x u + b w x (w x u)), a = (1 - cos) / w^2, b = (w - sin) / w^3.
        u, w = step[:3], step[3:]
        square = _dot(w, w)
        angle = m.sqrt(square + _TINY * _TINY)
        half = m.sin(angle / 2) / angle
        once = _cross(w, u)
        twice = _cross(w, once)
        wide = m.sqrt(m.less(square, _SMALL, _SMALL, square))
        b = m.less(square, _SMALL, _series(square, _SINE_REST), (wide - m.sin(wide)) / (wide * wide * wide))
        moved = [u_k + 2 * half * half * x + b * y for u_k, x, y in zip(u, once, twice, strict=True)]
        shifted = _times(_matrix(q[3:]), moved)
        return [*(x + dx for x, dx in zip(q[:3], shifted, strict=True)), *_SPHERICAL.integrate(q[3:], w, m)]

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        w = _SPHERICAL.difference(q[3:], to[3:], m)
        moved = _times(_transposed(_matrix(q[3:])), [y - x for x, y in zip(q[:3], to[:3], strict=True)])
        square = _dot(w, w)
        half = m.sqrt(m.less(square, _SMALL, _SMALL, square)) / 2
        once = _cross(w, moved)
        twice = _cross(w, once)
        direct = (1 - half * m.cos(half) / m.sin(half)) / (4 * half * half)
        c = m.less(square, _SMALL, _series(square, _COTANGENT_REST), direct)
        return [*(u - x / 2 + c * y for u, x, y in zip(moved, once, twice, strict=True)), *w]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        return [*q[:3], *_unit(q[3:], m)]

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        R = _matrix(q[3:])
        linear = _times(R, p[:3])
        return [*linear, *(x + y for x, y in zip(_times(R, p[3:]), _cross(q[:3], linear), strict=True))]

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        R = _transposed(_matrix(q[3:]))
        about = [x - y for x, y in zip(p[3:], _cross(q[:3], p[:3]), strict=True)]
        return [*_times(R, p[:3]), *_times(R, about)]

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        angular = [x + y for x, y in zip(_cross(v[3:], p[3:]), _cross(v[:3], p[:3]), strict=True)]
        return [*_cross(v[3:], p[:3]), *angular]

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        return np.concatenate([rng.uniform(-1.0, 1.0, 3), _SPHERICAL.random(rng, lower[3:], upper[3:])])


FIXED = Joint()

_SMALL = 0.25
"""rad^2, below which a series takes the place of a difference that cancels."""

_SINE_REST = tuple((-1.0) ** k / math.factorial(2 * k + 3) for k in range(9))
"""(x - sin x) / x^3 in powers of x^2."""

_COTANGENT_REST = (1 / 12, 1 / 720, 1 / 30240, 1 / 1209600, 1 / 47900160, 691 / 1307674368000, 1 / 74724249600)
"""(1 - x/2 cot(x/2)) / x^2 in powers of x^2: Bernoulli numbers B_2k / (2k)!."""


def summed(terms: Terms, axes: int) -> Array:
    """A sum of scalars (...) times constant arrays of that many axes, in numbers."""
    places = (Ellipsis, *(None,) * axes)
    first, *others = (matrix if x is None else np.asarray(x)[places] * matrix for x, matrix in terms)
    return np.asarray(sum(others, first))


def _units(count: int, beside: Scalars) -> list[Scalar]:
    """The entries of all unit vectors at once, along a first axis before those of `beside`."""
    return list(np.eye(count).reshape(count, count, *(1,) * max(map(np.ndim, beside), default=0)))


def _turned_about(axis: Array, cosine: Scalar, sine: Scalar) -> Terms:
    """cos (e - a a^T) + a a^T + sin a~."""
    outer = np.outer(axis, axis)
    return ((cosine, np.eye(3) - outer), (None, outer), (sine, skew(axis)))


def _cosine_and_sine(ratio: float, q: Scalar, m: Arithmetic) -> tuple[Scalar, Scalar]:
    """Of ratio q; of two joints that turn alike, or against each other, the same two functions."""
    angle = abs(ratio) * q
    sine = m.sin(angle)
    return m.cos(angle), sine if ratio >= 0.0 else -sine


def _turned_in_plane(x: Scalars, cosine: Scalar, sine: Scalar) -> tuple[Scalar, Scalar]:
    return cosine * x[0] - sine * x[1], sine * x[0] + cosine * x[1]


def _matrix(q: Scalars) -> list[Scalar]:
    """The rotation of a quaternion of any length, row by row."""
    x, y, z, w = q
    s = 2.0 / _dot(q, q)
    return [
        1.0 - s * (y * y + z * z),
        s * (x * y - w * z),
        s * (x * z + w * y),
        s * (x * y + w * z),
        1.0 - s * (x * x + z * z),
        s * (y * z - w * x),
        s * (x * z - w * y),
        s * (y * z + w * x),
        1.0 - s * (x * x + y * y),
    ]


def _transposed(R: list[Scalar]) -> list[Scalar]:
    return [R[3 * j + i] for i in range(3) for j in range(3)]


def _times(R: list[Scalar], x: Scalars) -> list[Scalar]:
    return [R[3 * i] * x[0] + R[3 * i + 1] * x[1] + R[3 * i + 2] * x[2] for i in range(3)]


def _cross(a: Scalars, b: Scalars) -> list[Scalar]:
    return [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]


def _dot(a: Scalars, b: Scalars) -> Scalar:
    first, *others = (x * y for x, y in zip(a, b, strict=True))
    return sum(others, first)


def _quaternion_product(a: Scalars, b: Scalars) -> list[Scalar]:
    crossed = _cross(a, b)
    imaginary = [a[3] * b[k] + b[3] * a[k] + crossed[k] for k in range(3)]
    return [*imaginary, a[3] * b[3] - _dot(a[:3], b[:3])]


def _unit(q: Scalars, m: Arithmetic) -> list[Scalar]:
    length = m.sqrt(_dot(q, q))
    return [x / length for x in q]


def _series(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    found: Scalar = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        found = found * x + coefficient
    return found


JOINT_TYPES: Mapping[str, Callable[[Array, float], Joint]] = {
    "fixed": lambda axis, pitch: FIXED,
    "revolute": lambda axis, pitch: Revolute(axis),
    "continuous": lambda axis, pitch: Continuous(axis),
    "prismatic": lambda axis, pitch: Prismatic(axis),
    "screw": Screw,
    "planar": lambda axis, pitch: Planar(axis),
    "spherical": lambda axis, pitch: Spherical(),
    "ball": lambda axis, pitch: Spherical(),
    "floating": lambda axis, pitch: Floating(),
}
"""How a joint is made, by its type, from its axis and its pitch in m per turn, which those take that have one.

URDF has neither spherical joints, which Drake calls ball, nor screws; both are read all the same.
"""
