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
"""Arithmetic of numbers and arrays."""

SINGLE = Arithmetic(
    lambda x: float(np.sin(x)),
    lambda x: float(np.cos(x)),
    math.sqrt,
    math.fabs,
    lambda y, x: float(np.arctan2(y, x)),
    math.copysign,
    lambda a, b, then, otherwise: then if a < b else otherwise,
)
"""Arithmetic of Python's floats: the same bits as `NUMBERS`, several times faster; division by zero is an error."""


@dataclass(frozen=True, eq=False)
class Joint:
    """A fixed joint, and the base class of the other types.

    type: its name in URDF. positions, velocities: names of its entries in q and v. angles: which positions are
    unbounded angles, rad. rate_is_velocity: whether q-dot = v. driven: whether it has a motor by default. mujoco: the
    equivalent type of MuJoCo, or a sequence of types on one body, or None. wraps: whether its position counts whole
    turns, which do not change the pose.
    """

    type: ClassVar[str] = "fixed"
    rate_is_velocity: ClassVar[bool] = True
    driven: ClassVar[bool] = True
    mujoco: ClassVar[str | None] = ""
    positions: ClassVar[tuple[str, ...]] = ()
    velocities: ClassVar[tuple[str, ...]] = ()
    angles: ClassVar[tuple[bool, ...]] = ()
    wraps: ClassVar[bool] = False

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

    def mujoco_names(self, name: str) -> list[str]:
        """Returns MuJoCo's names of a joint; several joints have the names of the positions, such as `base.x`."""
        kinds = (self.mujoco or "").split()
        return [name] if len(kinds) < 2 else [f"{name}.{part}" for part in self.positions]

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
        return self.nv == 1

    def refused(self, part: str) -> str | None:
        """Returns why the joint cannot have `stiffness`, `rest` or `armature`; None if it can.

        An armature is the same for all degrees of freedom. If they rotate and translate the body's axes, v^T I_r v / 2
        is not the kinetic energy of any body: momentum would not be conserved.
        """
        if part in ("stiffness", "rest") and self.nv != 1:
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
        turned, shifted = self.rotation(entries, NUMBERS), self.translation(entries, NUMBERS)
        R, p = summed(turned, 2) if turned else R, summed(shifted, 1) if shifted else p
        return np.broadcast_to(R, (*q.shape[:-1], 3, 3)), np.broadcast_to(p, (*q.shape[:-1], 3))

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
        return [x + moved for x, moved in zip(q, step, strict=True)]

    def difference(self, q: Scalars, to: Scalars, m: Arithmetic) -> list[Scalar]:
        """Returns the v that moves q to `to` in unit time; rotations given as quaternions take the shorter way."""
        return [y - x for x, y in zip(q, to, strict=True)]

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
        low, high = (lower > -NO_LIMIT) & (lower < upper), (upper < NO_LIMIT) & (lower < upper)
        least = np.where(low, lower, np.where(high, upper - 2 * reach, -reach))
        return rng.uniform(least, np.where(high, upper, least + 2 * reach))

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
        """Returns the part of a body's inertia that is constant in the parent's frame, None if there is none.

        The line of the joint must be the z axis.
        """
        return None


FIXED = Joint()


def summed(terms: Terms, axes: int) -> Array:
    """Returns the sum of scalars (...) times constant arrays with that many axes. Numbers only."""
    places = (Ellipsis, *(None,) * axes)
    first, *others = (matrix if x is None else np.asarray(x)[places] * matrix for x, matrix in terms)
    return np.asarray(sum(others, first))


def dot(a: Scalars, b: Scalars) -> Scalar:
    """Returns a . b, for length 1 or more."""
    first, *others = (x * y for x, y in zip(a, b, strict=True))
    return sum(others, first)


def _units(count: int, others: Scalars) -> list[Scalar]:
    """Returns the entries of all unit vectors, along a first axis before the axes of `others`."""
    return list(np.eye(count).reshape(count, count, *(1,) * max(map(np.ndim, others), default=0)))
