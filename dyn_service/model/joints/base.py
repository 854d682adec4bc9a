"""What every type of joint says of itself, the fixed one being all defaults; and the arithmetic it is computed with."""

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


@dataclass(frozen=True, eq=False)
class Joint:
    """A fixed joint, and the base class of the other types.

    type: its name in URDF. positions, velocities: names of its entries in q and v. angles: which positions are
    unbounded angles, rad. adds_up: whether the rate of its positions is its velocity. driven: whether it has a motor by
    default.
    mujoco: the equivalent type of MuJoCo, or a sequence of types on one body, or None. wraps: whether its position
    counts whole turns, which do not change the pose.
    """

    type: ClassVar[str] = "fixed"
    adds_up: ClassVar[bool] = True
    driven: ClassVar[bool] = True
    mujoco: ClassVar[str | None] = ""
    positions: ClassVar[tuple[str, ...]] = ()
    velocities: ClassVar[tuple[str, ...]] = ()
    angles: ClassVar[tuple[bool, ...]] = ()
    wraps: ClassVar[bool] = False

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

    def mujoco_names(self, name: str) -> list[str]:
        """What a joint of this name is called there: where it is several, by its positions, `base.x`."""
        kinds = (self.mujoco or "").split()
        return [name] if len(kinds) < 2 else [f"{name}.{part}" for part in self.positions]

    @property
    def shifts(self) -> tuple[bool, ...]:
        """Which of the positions are lengths, in m: neither angles nor parts of a quaternion."""
        inner = range(self.quaternion.start, self.quaternion.stop)
        return tuple(not angle and k not in inner for k, angle in enumerate(self.angles))

    @property
    def quaternion(self) -> slice:
        """The entries of its quaternion among its positions; empty without a quaternion."""
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
        """Why a part of passive joint forces, `stiffness`, `rest` or `armature`, means nothing here; else None.

        An armature is the same for all degrees of freedom. Where they turn and shift the body's axes, v^T A v / 2 is
        the kinetic energy of nothing: momentum would not be kept.
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
        return list(dot(self.momentum_on_parent(q, _units(self.nv, (*q, *v)), NUMBERS), v))

    def bracket(self, v: Scalars, w: Scalars) -> list[Scalar]:
        """v x w, the Lie bracket, in numbers: minus the dual of `turning`."""
        return list(-dot(self.turning(v, _units(self.nv, (*v, *w))), w))

    def random(self, rng: np.random.Generator, lower: Array, upper: Array) -> Array:
        """Returns a random position (nq,) within the limits, (nq,) each; without limits within pi rad or 1 m of
        zero.
        """
        reach = np.where(self.angles, np.pi, 1.0)
        bounded = np.isfinite(lower) & np.isfinite(upper) & (lower < upper)
        return rng.uniform(np.where(bounded, lower, -reach), np.where(bounded, upper, reach))

    # What `kernels/frames.py` may choose, and what it may move to the parent.

    @property
    def line(self) -> Array | None:
        """Direction (3,) along which the body's frame may be shifted, and about which it may be rotated, without
        changing the meaning of q and v; None if there is no such line.
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


FIXED = Joint()


def summed(terms: Terms, axes: int) -> Array:
    """A sum of scalars (...) times constant arrays of that many axes, in numbers."""
    places = (Ellipsis, *(None,) * axes)
    first, *others = (matrix if x is None else np.asarray(x)[places] * matrix for x, matrix in terms)
    return np.asarray(sum(others, first))


def dot(a: Scalars, b: Scalars) -> Scalar:
    """a . b, of any length but none."""
    first, *others = (x * y for x, y in zip(a, b, strict=True))
    return sum(others, first)


def _units(count: int, others: Scalars) -> list[Scalar]:
    """The entries of all unit vectors at once, along a first axis before those of `others`."""
    return list(np.eye(count).reshape(count, count, *(1,) * max(map(np.ndim, others), default=0)))
