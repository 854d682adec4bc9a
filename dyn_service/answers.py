"""What queries with several outputs answer: one named result each.

A field with a `Spec` is an output; one without labels the rows of the others. Every result may carry leading axes,
which stand before the core shape that the `Spec` gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.suggestions import did_you_mean
from dyn_service.table import Spec

Array = NDArray[np.float64]

_COMPONENTS = ("torque x", "torque y", "torque z", "force x", "force y", "force z")


@dataclass(frozen=True, eq=False)
class ConstraintForces:
    """What each joint carries. Row k belongs to `joints[k]`; every row is at that joint's origin.

    joints: names, in row order: every URDF joint, fixed ones too, unless the query selected some.
    """

    joints: tuple[str, ...]
    wrench: Annotated[
        Array,
        Spec(("nj", 6), "N m, N", "[torque; force] that the parent link exerts on the child link", turned=True),
    ]
    actuation: Annotated[Array, Spec(("nj",), "N m | N", "the wrench's part along the free axis; 0 at fixed joints")]
    constraint: Annotated[
        Array, Spec(("nj", 6), "N m, N", "the rest of the wrench: the load on bearings or guides", turned=True)
    ]

    def component(self, joint: str, name: str) -> Array:
        """One component of a joint's constraint load, (...), such as `"force z"`: Newton-Euler (20).

        Args:
            joint: The joint's name.
            name: `torque` or `force`, and `x`, `y` or `z` of the axes in which the query was asked.

        Raises:
            NotFoundError: There is no row for that joint.
            InvalidArgumentError: There is no component of that name.
        """
        if joint not in self.joints:
            near = did_you_mean(joint, self.joints)
            raise NotFoundError(f"there is no joint '{joint}' here; the joints are {', '.join(self.joints)}{near}")
        if name not in _COMPONENTS:
            raise InvalidArgumentError(
                f"a component is one of {', '.join(_COMPONENTS)}, found {name!r}{did_you_mean(name, _COMPONENTS)}"
            )
        found: Array = self.constraint[..., self.joints.index(joint), _COMPONENTS.index(name)]
        return found


@dataclass(frozen=True, eq=False)
class LinkPoses:
    """Where each link is. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    rotation: Annotated[Array, Spec(("nl", 3, 3), "1", "R_WL: columns are the link's axes in world axes")]
    position: Annotated[Array, Spec(("nl", 3), "m", "p_WL: the link's origin in the world")]


@dataclass(frozen=True, eq=False)
class LinkMotion:
    """How each link moves and what moves it, at its inboard joint's origin. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    velocity: Annotated[Array, Spec(("nl", 6), "rad/s, m/s", "[omega; velocity of the origin]", turned=True)]
    acceleration: Annotated[
        Array, Spec(("nl", 6), "rad/s^2, m/s^2", "[omega-dot; acceleration of the origin]", turned=True)
    ]
    load: Annotated[
        Array, Spec(("nl", 6), "N m, N", "[torque; force] from the parent, from the ground on the root", turned=True)
    ]


@dataclass(frozen=True, eq=False)
class BranchInertias:
    """The factors of the inverse mass matrix, (19b). Row k belongs to the movable joint `joints[k]`, in its axes."""

    joints: tuple[str, ...]
    inertia: Annotated[Array, Spec(("nv", 6, 6), "kg m^2, kg m, kg", "J: the branch's inertia, its joints yielding")]
    resistance: Annotated[Array, Spec(("nv",), "kg m^2 | kg", "R = G^T J G: what the joint meets")]
    gain: Annotated[Array, Spec(("nv", 6), "1, m, 1/m", "K = J G / R")]
    influence: Annotated[Array, Spec(("nv", 6, 6), "1, m", "beta = (e - G K^T) D: from the parent, joint yielding")]


@dataclass(frozen=True, eq=False)
class SystemMomentum:
    """Momentum of each branch. Row k belongs to `links[k]` and all that hangs on it, about that link's origin."""

    links: tuple[str, ...]
    momentum: Annotated[Array, Spec(("nl", 6), "N m s, N s", "K = [H; P]: angular, linear", turned=True)]
    mass: Annotated[Array, Spec(("nl",), "kg", "of the branch")]
    centre: Annotated[
        Array, Spec(("nl", 3), "m", "c: centre of mass of the branch from the link's origin", turned=True)
    ]


@dataclass(frozen=True, eq=False)
class Energy:
    """Energy of the robot. Potential energy is zero where a link's centre of mass is in the world's origin."""

    kinetic: Annotated[Array, Spec((), "J", "T = v^T M v / 2")]
    potential: Annotated[Array, Spec((), "J", "V = - sum of m g . r")]
    total: Annotated[Array, Spec((), "J", "T + V")]


@dataclass(frozen=True, eq=False)
class Hamiltonian:
    """The Hamiltonian and its parts."""

    kinetic: Annotated[Array, Spec((), "J", "p^T M^-1 p / 2")]
    potential: Annotated[Array, Spec((), "J", "V = - sum of m g . r")]
    hamiltonian: Annotated[Array, Spec((), "J", "H, their sum")]


@dataclass(frozen=True, eq=False)
class HamiltonianFlow:
    """Hamilton's equations: how positions and momenta change."""

    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "q-dot = dH/dp")]
    p_dot: Annotated[Array, Spec(("nv",), "N m | N", "p-dot = -dH/dq + Q")]


@dataclass(frozen=True, eq=False)
class State:
    """Positions and velocities at one time."""

    q: Annotated[Array, Spec(("nq",), "rad | m", "joint positions")]
    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "joint velocities")]


@dataclass(frozen=True, eq=False)
class EquationTerms:
    """M a = C + G + Q + E, each term as the equation has it on its right side."""

    mass_matrix: Annotated[Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "M")]
    velocity_forces: Annotated[Array, Spec(("nv",), "N m | N", "C: centrifugal and Coriolis")]
    gravity_forces: Annotated[Array, Spec(("nv",), "N m | N", "G: weight")]
    efforts: Annotated[Array, Spec(("nv",), "N m | N", "Q: what drives the joints")]
    external_forces: Annotated[Array, Spec(("nv",), "N m | N", "E: wrenches from outside")]


@dataclass(frozen=True, eq=False)
class Jacobians:
    """Jacobians of every link, in link axes. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    translation: Annotated[Array, Spec(("nl", 3, "nv"), "m | 1", "J_S: v to the velocity of the centre of mass")]
    rotation: Annotated[Array, Spec(("nl", 3, "nv"), "1", "J_R: v to the angular velocity")]


@dataclass(frozen=True, eq=False)
class BiasAccelerations:
    """Accelerations of every link at zero joint accelerations, in link axes. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    translation: Annotated[Array, Spec(("nl", 3), "m/s^2", "sigma_S, of the centre of mass")]
    rotation: Annotated[Array, Spec(("nl", 3), "rad/s^2", "sigma_R, angular")]


@dataclass(frozen=True, eq=False)
class BodyRecursion:
    """The recursion's intermediate results, each link's in its own axes, and the efforts. Row k is `links[k]`."""

    links: tuple[str, ...]
    omega: Annotated[Array, Spec(("nl", 3), "rad/s", "angular velocity")]
    omega_dot: Annotated[Array, Spec(("nl", 3), "rad/s^2", "angular acceleration")]
    v_dot: Annotated[Array, Spec(("nl", 3), "m/s^2", "acceleration of the link's origin")]
    force: Annotated[Array, Spec(("nl", 3), "N", "f: from the parent on the link")]
    moment: Annotated[Array, Spec(("nl", 3), "N m", "eta: from the parent on the link, at its origin")]
    tau: Annotated[Array, Spec(("nv",), "N m | N", "joint efforts")]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A motion. t: (K,) s. q: (..., K, nq) rad | m. v: (..., K, nv) rad/s | m/s.

    p: (..., K, nv) N m s | N s where momenta were integrated, else None.
    """

    t: Array
    q: Array
    v: Array
    p: Array | None = None


class SegmentLoads(NamedTuple):
    """What acts on each segment at its proximal joint: the ankle for the foot, the knee for the shank.

    force: (..., n, 3) N, global basis. moment: (..., n, 3) N m, in the basis of segment i.
    """

    force: Array
    moment: Array
