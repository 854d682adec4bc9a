"""The base class of joint types, which is also the fixed joint, and the arithmetic of their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.model.inertia import BodyInertia

Array = NDArray[Any]
Scalar = Any
"""A number, an array with one entry per state, or a 1 x 1 symbol."""

Scalars = Sequence[Scalar]

Terms = Sequence[tuple[Scalar, Array]]
"""Sum of scalars times constant matrices or vectors; the scalar None is 1."""

NO_LIMIT = 1e9
"""rad or m; files contain 1e16 for joints that turn without end."""


class Arithmetic(NamedTuple):
    """Functions of scalars that are not operators. if_less: (a, b, x, y), x where a < b, else y; a, b >= 0."""

    sin: Callable[[Scalar], Scalar]
    cos: Callable[[Scalar], Scalar]
    sqrt: Callable[[Scalar], Scalar]
    fabs: Callable[[Scalar], Scalar]
    atan2: Callable[[Scalar, Scalar], Scalar]
    copysign: Callable[[Scalar, Scalar], Scalar]
    if_less: Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]


NUMBERS = Arithmetic(
    np.sin,
    np.cos,
    np.sqrt,
    np.fabs,
    np.arctan2,
    np.copysign,
    lambda a, b, x, y: np.where(a < b, x, y),
)
"""Arithmetic of numbers and arrays."""

SINGLE = Arithmetic(
    lambda x: float(np.sin(x)),
    lambda x: float(np.cos(x)),
    math.sqrt,
    math.fabs,
    lambda y, x: float(np.arctan2(y, x)),
    math.copysign,
    lambda a, b, x, y: x if a < b else y,
)
"""Arithmetic of Python's floats: the same bits as `NUMBERS`, several times faster; division by zero is an error."""


@dataclass(frozen=True, eq=False)
class Joint:
    """A fixed joint, and the base class of the other types.

    type: its name in robot files and messages. positions, velocities: names of its entries in q and v. angles: which
    positions are unbounded angles, rad. rate_is_velocity: whether q-dot = v for every entry. has_motor: whether it
    has a motor by default. wraps: whether the positions that are angles count whole turns, which do not change the
    pose.

    Its name in other formats, None if the format has no such joint: urdf; drake, of Drake's elements in URDF; sdf;
    mujoco, one type or a sequence of types on one body.

    `rate_is_velocity` says more than that positions add up. As G is constant in body axes, its columns then commute
    (their Lie brackets are zero), so that momenta and velocities are the same in the joint frame and in body axes.
    """

    type: ClassVar[str] = "fixed"
    urdf: ClassVar[str | None] = "fixed"
    drake: ClassVar[str | None] = None
    sdf: ClassVar[str | None] = "fixed"
    mujoco: ClassVar[str | None] = ""
    rate_is_velocity: ClassVar[bool] = True
    has_motor: ClassVar[bool] = True
    positions: ClassVar[tuple[str, ...]] = ()
    velocities: ClassVar[tuple[str, ...]] = ()
    angles: ClassVar[tuple[bool, ...]] = ()
    wraps: ClassVar[bool] = False
    linear: ClassVar[slice] = slice(0, 0)
    """Entries of v that are linear velocities in axes which the joint rotates; see `axes`."""

    @property
    def ratio(self) -> float:
        """Change of the joint's position per change of its entry in q: 1 unless it mimics another joint."""
        return 1.0

    @property
    def without_mimic(self) -> Joint:
        """The joint without mimic (`ratio` 1)."""
        return self

    def follower(self, ratio: float) -> Joint:
        """Returns the joint as a follower: its position is `ratio` times that of the mimicked joint."""
        raise NotImplementedError(f"no joint leads one of type {self.type}")

    @property
    def nq(self) -> int:
        """Number of positions."""
        return len(self.positions)

    @property
    def nv(self) -> int:
        """Number of degrees of freedom."""
        return len(self.velocities)

    @property
    def single_dof(self) -> bool:
        """Whether the joint has one degree of freedom, and so one entry in q and in v."""
        return self.nv == 1

    @property
    def free(self) -> bool:
        """Whether the joint has all six degrees of freedom."""
        return self.nv == 6

    @property
    def translates(self) -> bool:
        """Whether the joint moves the body's origin."""
        return bool(self.subspace[3:].any())

    @property
    def mujoco_types(self) -> list[str]:
        """MuJoCo's types of the joints on one body that are equivalent to this one."""
        return (self.mujoco or "").split()

    def mujoco_names(self, name: str) -> list[str]:
        """Returns MuJoCo's names of a joint; several joints have the names of the positions, such as `base.x`."""
        return [name] if len(self.mujoco_types) < 2 else [f"{name}.{position}" for position in self.positions]

    @property
    def shifts(self) -> tuple[bool, ...]:
        """Whether each position is a length, in m, and not an angle or part of a quaternion."""
        inner = range(self.quaternion.start, self.quaternion.stop)
        return tuple(not angle and k not in inner for k, angle in enumerate(self.angles))

    @property
    def quaternion(self) -> slice:
        """The slice of the quaternion in the positions; empty without a quaternion."""
        return slice(0, 0)

    @property
    def threaded(self) -> bool:
        """Whether the joint has a pitch."""
        return False

    @property
    def ranged(self) -> bool:
        """Whether the position can have limits."""
        return self.single_dof

    @property
    def unranged_type(self) -> str:
        """The type of the same joint without limits of its position."""
        return self.type

    @property
    def without_wrapping(self) -> Joint:
        """The same joint with a position whose whole turns count."""
        return self

    def refused(self, part: str) -> str | None:
        """Returns why the joint cannot have `stiffness`, `rest` or `armature`; None if it can.

        An armature is the same for all degrees of freedom. If they rotate and translate the body's axes, v^T I_r v / 2
        is not the kinetic energy of any body: momentum would not be conserved.
        """
        if part in ("stiffness", "rest") and not self.single_dof:
            return f"a spring acts along one degree of freedom, and a joint of type {self.type} has {self.nv}"
        if part == "armature" and self.nv > 1 and any(self.shifts):
            return (
                f"an armature needs one degree of freedom or a rotation only, and a joint of type {self.type} has more"
            )
        return None

    @property
    def numbers(self) -> tuple[Array, ...]:
        """The joint's parameters, for fingerprints."""
        return ()

    @property
    def parameters(self) -> dict[str, Any]:
        """`axis` (unit vector) and `pitch` (m per turn) as plain numbers, if the joint has them."""
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
        """R_JB; empty if the joint does not rotate."""
        return ()

    def translation(self, q: Scalars, m: Arithmetic) -> Terms:
        """p_JB, m; empty if the joint does not translate."""
        return ()

    def pose(self, q: Array) -> tuple[Array, Array]:
        """R_JB (..., 3, 3) and p_JB (..., 3) at q (..., nq), in numbers."""
        entries = [q[..., k] for k in range(self.nq)]
        R, p = np.eye(3), np.zeros(3)
        rotation_terms, translation_terms = self.rotation(entries, NUMBERS), self.translation(entries, NUMBERS)
        R, p = (
            summed(rotation_terms, 2) if rotation_terms else R,
            summed(translation_terms, 1) if translation_terms else p,
        )
        return np.broadcast_to(R, (*q.shape[:-1], 3, 3)), np.broadcast_to(p, (*q.shape[:-1], 3))

    def axes(self, q: Array) -> Array:
        """The rotation (..., n, n) at q (..., nq) from the axes of the n velocities `linear` to the joint frame's."""
        raise NotImplementedError(f"joints of type {self.type} have no linear velocities in rotating axes")

    def of_pose(self, rotation: Scalars, p: Scalars) -> list[float]:
        """Returns the position for the body's pose, a unit quaternion (x, y, z, w) and p, within the joint's
        freedom.
        """
        raise NotImplementedError(f"joints of type {self.type} have no pose of their own")

    def to_pose(self, q: Sequence[float]) -> tuple[list[float], list[float]]:
        """Returns the quaternion (x, y, z, w) and p at q (nq,), the inverse of `of_pose`."""
        raise NotImplementedError(f"joints of type {self.type} have no pose of their own")

    def rate(self, q: Scalars, v: Scalars, m: Arithmetic) -> list[Scalar]:
        """q-dot = N(q) v."""
        return list(v)

    def integrate(self, q: Scalars, step: Scalars, m: Arithmetic) -> list[Scalar]:
        """Returns the position after a motion with constant v; step: v times its duration."""
        return [x + dx for x, dx in zip(q, step, strict=True)]

    def difference(self, q: Scalars, q_to: Scalars, m: Arithmetic) -> list[Scalar]:
        """Returns the v that moves q to `to` in unit time; rotations given as quaternions take the shorter way."""
        return [y - x for x, y in zip(q, q_to, strict=True)]

    def normalised(self, q: Scalars, m: Arithmetic) -> list[Scalar]:
        """Returns the same position with a quaternion of unit length."""
        return list(q)

    def momentum_on_parent(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        """Returns the momenta p = G^T K in the axes and about the origin of the joint frame. They are constant if
        nothing acts on the body and its parent does not move.
        """
        return list(p)

    def momentum_on_body(self, q: Scalars, p: Scalars, m: Arithmetic) -> list[Scalar]:
        """The inverse of `momentum_on_parent`: p from momenta in the joint frame."""
        return list(p)

    def turning(self, v: Scalars, p: Scalars) -> list[Scalar]:
        """Returns v x* p, the difference of p-dot in the joint frame's axes and in body axes."""
        return [0.0 * x for x in p]

    def carried(self, q: Scalars, v: Scalars) -> list[Scalar]:
        """Returns v, in body axes, of a body that is fixed at q to a frame that moves with v. Numbers only.

        Power p v is the same on both, so this is the dual of `momentum_on_parent`.
        """
        return list(dot(self.momentum_on_parent(q, _units(self.nv, (*q, *v)), NUMBERS), v))

    def bracket(self, v: Scalars, w: Scalars) -> list[Scalar]:
        """Returns the Lie bracket v x w, minus the dual of `turning`. Numbers only."""
        return list(-dot(self.turning(v, _units(self.nv, (*v, *w))), w))

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        """Returns a random position (nq,) within the limits, (nq,) each.

        With one limit, within 2 pi rad or 2 m of it; with none, within pi rad or 1 m of zero.
        """
        reach = np.where(self.angles, np.pi, 1.0)
        # Exporters write equal limits for joints without a range.
        low, high = (lower > -NO_LIMIT) & (lower < upper), (upper < NO_LIMIT) & (lower < upper)
        lowest = np.where(low, lower, np.where(high, upper - 2 * reach, -reach))
        return rng.uniform(lowest, np.where(high, upper, lowest + 2 * reach))

    # Freedom of `kernels/frames.py`: the frame of the body, and inertia that may be transferred to the parent.

    @property
    def line(self) -> Array | None:
        """Direction (3,) along which the body's frame may be shifted, and about which it may be rotated, without
        changing the meaning of q and v; None if there is no such line.
        """
        return None

    def along_z(self, turn: Array) -> Joint:
        """Returns the joint with its line as the z axis; turn: cosine and sine of an angle that is added to its own."""
        return self

    @property
    def accepts_rotation(self) -> bool:
        """Whether `along_z` may add an angle."""
        return False

    def mapped(self, f: Callable[[Array], Array]) -> Joint:
        """Returns the joint with f applied to each of its unit vectors."""
        return self

    def transferable_inertia(self, body: BodyInertia) -> BodyInertia | None:
        """Returns the part of a body's inertia that is constant in the parent's frame, None if no part is.

        The line of the joint must be the z axis.
        """
        return None


FIXED = Joint()


def summed(terms: Terms, axes: int) -> Array:
    """Returns the sum of scalars (...) times constant arrays with that many axes. Numbers only."""
    places = (Ellipsis, *(None,) * axes)
    first, *rest = (matrix if x is None else np.asarray(x)[places] * matrix for x, matrix in terms)
    return np.asarray(sum(rest, first))


def dot(a: Scalars, b: Scalars) -> Scalar:
    """Returns a . b, for length 1 or more."""
    first, *rest = (x * y for x, y in zip(a, b, strict=True))
    return sum(rest, first)


def _units(count: int, arrays: Scalars) -> list[Scalar]:
    """Returns the entries of all unit vectors, along a first axis before the axes of `others`."""
    return list(np.eye(count).reshape(count, count, *(1,) * max(map(np.ndim, arrays), default=0)))
