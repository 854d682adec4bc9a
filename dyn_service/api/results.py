"""What queries with several outputs answer: one named result each.

A field with a `Spec` is an output; one without labels the rows of the others. Every result may carry leading axes,
which stand before the core shape that the `Spec` gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.spec import Names, Spec
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import did_you_mean

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
    actuation: Annotated[
        Array,
        Spec(
            ("nj",),
            "N m | N",
            "the wrench's part along the free axis; 0 at fixed joints, of several the length",
        ),
    ]
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
class ForceTorque:
    """What ideal force/torque sensors in joints read, each in its own axes about its own origin.

    joints: names, in row order: every URDF joint, fixed ones too, unless the query selected some.
    """

    joints: tuple[str, ...]
    force: Annotated[Array, Spec(("nj", 3), "N", "in the sensor's axes")]
    torque: Annotated[Array, Spec(("nj", 3), "N m", "about the sensor's origin, in its axes")]


@dataclass(frozen=True, eq=False)
class ImuReading:
    """What ideal inertial measurement units on links read, each in its own axes.

    links: names, in row order: every link unless the query selected some.
    """

    links: tuple[str, ...]
    specific_force: Annotated[
        Array, Spec(("nl", 3), "m/s^2", "acceleration of the sensor less gravity: at rest g upwards")
    ]
    angular_velocity: Annotated[Array, Spec(("nl", 3), "rad/s", "of the link")]


@dataclass(frozen=True, eq=False)
class LinkPoses:
    """Where each link is. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    rotation: Annotated[Array, Spec(("nl", 3, 3), "1", "R_WL: columns are the link's axes in world axes")]
    position: Annotated[Array, Spec(("nl", 3), "m", "p_WL: the link's origin in the world")]


@dataclass(frozen=True, eq=False)
class PointMotion:
    """Where a point of a link is, how it moves, and how the joints move it. Six-vectors have the angular part first.

        velocity = jacobian v,    d/dt velocity = jacobian a + bias

    With `frame="world_aligned"` the last three of `d/dt velocity` are the point's acceleration; with the others it is
    the rate of the entries of `velocity`, which is a spatial acceleration.
    """

    rotation: Annotated[Array, Spec((3, 3), "1", "R_WL: columns are the link's axes in world axes")]
    position: Annotated[Array, Spec((3,), "m", "of the point in the world")]
    velocity: Annotated[Array, Spec((6,), "rad/s, m/s", "[angular; linear]")]
    jacobian: Annotated[Array, Spec((6, "nv"), "1 | m | 1/m", "takes joint velocities to `velocity`")]
    bias: Annotated[Array, Spec((6,), "rad/s^2, m/s^2", "J-dot v: the rate of `velocity` at zero joint accelerations")]


@dataclass(frozen=True, eq=False)
class OperationalSpace:
    """How hard it is to accelerate a point of a link. Rows and columns are rx, ry, rz, x, y, z.

    With J of `PointMotion`, in the same axes, mobility = J M^-1 J^T. `inertia` is its inverse in the directions that
    count, and 0 in the others.
    """

    mobility: Annotated[
        Array, Spec((6, 6), "1/(kg m^2), 1/(kg m), 1/kg", "Omega: accelerations that a wrench on the point adds")
    ]
    inertia: Annotated[
        Array,
        Spec(
            (6, 6),
            "kg m^2, kg m, kg",
            "Lambda: the wrench that it takes to add accelerations; NaN where some of them cannot be",
            singular="at this state link '{link}' cannot move in all of the directions that count, and J M^-1 J^T is "
            "singular: ask with fewer `directions`",
        ),
    ]


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
    inertia: Annotated[Array, Spec(("nm", 6, 6), "kg m^2, kg m, kg", "J: the branch's inertia, its joints yielding")]
    resistance: Annotated[
        Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "R = G^T J G: what each joint meets; zero between joints")
    ]
    gain: Annotated[Array, Spec(("nv", 6), "1, m, 1/m", "K = J G R^-1, a row per entry of v")]
    influence: Annotated[
        Array,
        Spec(
            ("nm", 6, 6), "1, m", "beta = (e - G K^T) D: from the moving body that carries it; 0 where it is the world"
        ),
    ]


@dataclass(frozen=True, eq=False)
class Topology:
    """Who hangs on whom: the pattern of Phi and Psi. Row k belongs to `links[k]`, which hangs by the joint `joints[k]`.

    Parent before child, and depth first: a branch is a run of rows. A body has the name of its link.
    """

    links: Annotated[tuple[str, ...], Names("nb", "link")]
    joints: Annotated[tuple[str, ...], Names("nb", "row", "the joints by which the rows hang; the root link has none")]
    parent: Annotated[Array, Spec(("nb",), "1", "row of the parent; -1 where it is the world")]
    ancestors: Annotated[Array, Spec(("nb", "nb"), "1", "1 where column j is row i or carries it, j <= i, else 0: Psi")]
    children: Annotated[Array, Spec(("nb", "nb"), "1", "1 where row i is the parent of column j, else 0: Phi^T")]
    nilpotency: Annotated[Array, Spec((), "1", "m, with Phi^m = 0: bodies on the longest chain")]

    def parent_of(self, link: str) -> str | None:
        """The body that carries `link`; None where it is the world."""
        row = int(self.parent[self._row(link)])
        return self.links[row] if row >= 0 else None

    def ancestors_of(self, link: str) -> tuple[str, ...]:
        """{j <= i}: from the root to `link`, itself included."""
        return self._marked(self.ancestors[self._row(link)])

    def children_of(self, link: str) -> tuple[str, ...]:
        """The bodies whose parent is `link`."""
        return self._marked(self.children[self._row(link)])

    def branch_of(self, link: str) -> tuple[str, ...]:
        """{j >= i}: `link` and all that hangs on it."""
        return self._marked(self.ancestors[:, self._row(link)])

    def _marked(self, marks: Array) -> tuple[str, ...]:
        return tuple(name for name, mark in zip(self.links, marks, strict=True) if mark)

    def _row(self, link: str) -> int:
        if link not in self.links:
            raise NotFoundError(f"there is no body '{link}' here; the bodies are {', '.join(self.links)}")
        return self.links.index(link)


@dataclass(frozen=True, eq=False)
class InfluenceOperators:
    """Phi_A and Psi_A as blocks with their places, for moving bodies named by their inboard joints.

    Block k of `phi` stands in row `joints[k]`, column `parents[k]`; block k of `psi` in row `rows[k]`, column
    `columns[k]`. All other blocks are zero.
    """

    joints: tuple[str, ...]
    parents: Annotated[
        tuple[str, ...], Names("nm", "parent", 'the joint of the body that carries the row\'s; "" is the world')
    ]
    rows: Annotated[tuple[str, ...], Names("na", "row", "the rows of `psi`")]
    columns: Annotated[tuple[str, ...], Names("na", "column", "the columns of `psi`: the row's joint, or one inboard")]
    phi: Annotated[
        Array,
        Spec(("nm", 6, 6), "1, m", "A_i, from the parent; 0 where it is the world", turned=("row", "parent")),
    ]
    psi: Annotated[
        Array, Spec(("na", 6, 6), "1, m", "A_i A_ip .. down to below j; e for j = i", turned=("row", "column"))
    ]

    def dense(self) -> tuple[Array, Array]:
        """Phi_A and Psi_A whole, (..., 6 nv, 6 nv) each, bodies in the order of `joints`."""
        carried = [k for k, parent in enumerate(self.parents) if parent]
        return (
            self._assembled(self.phi, [(k, self.joints[k], self.parents[k]) for k in carried]),
            self._assembled(
                self.psi, [(k, *place) for k, place in enumerate(zip(self.rows, self.columns, strict=True))]
            ),
        )

    def _assembled(self, blocks: Array, places: list[tuple[int, str, str]]) -> Array:
        size = 6 * len(self.joints)
        whole = np.zeros((*blocks.shape[:-3], size, size))
        for k, row, column in places:
            i, j = 6 * self.joints.index(row), 6 * self.joints.index(column)
            whole[..., i : i + 6, j : j + 6] = blocks[..., k, :, :]
        return whole


@dataclass(frozen=True, eq=False)
class NewtonEulerBlocks:
    """The blocks of (1)-(17), Y and F-bar too, moving bodies named by their inboard joints. Row k is `joints[k]`'s.

    Each body is what moves with its joint as one, links behind fixed joints included, seen from the joint's origin.
    """

    joints: tuple[str, ...]
    influence: Annotated[
        Array, Spec(("nm", 6, 6), "1, m", "D, (4); 0 where the parent is the world", turned=("row", "parent"))
    ]
    free_axis: Annotated[
        Array,
        Spec(("nr", 6), "1", "G, (4), a row per way to move; of a follower times its multiplier", turned=True),
    ]
    centre_lever: Annotated[Array, Spec(("nm", 6, 6), "1, m", "S, (1): to the centre of mass", turned=("row", "row"))]
    velocity_products: Annotated[Array, Spec(("nm", 6), "rad/s^2, m/s^2", "A, (5a)", turned=True)]
    centre_velocity_products: Annotated[Array, Spec(("nm", 6), "rad/s^2, m/s^2", "A-bar, (2)", turned=True)]
    inertia: Annotated[
        Array, Spec(("nm", 6, 6), "kg m^2, kg m, kg", "M, (16), about the joint's origin", turned=("row", "row"))
    ]
    centre_inertia: Annotated[
        Array, Spec(("nm", 6, 6), "kg m^2, kg", "M-bar, (11), about the centre of mass", turned=("row", "row"))
    ]
    velocity_loads: Annotated[Array, Spec(("nm", 6), "N m, N", "B, (17), about the joint's origin", turned=True)]
    centre_velocity_loads: Annotated[Array, Spec(("nm", 6), "N m, N", "B-bar, (11), about the centre", turned=True)]
    external_lever: Annotated[
        Array,
        Spec(("nm", 6, 6), "1, m", "Y, (11): to the point of F-bar, here the centre of mass", turned=("row", "row")),
    ]
    external_loads: Annotated[
        Array, Spec(("nm", 6), "N m, N", "F-bar, (11): weight and wrenches, summed at the centre of mass", turned=True)
    ]


@dataclass(frozen=True, eq=False)
class MassMatrixSteps:
    """The mass matrix by the document's three steps. Row k of J and Q belongs to `joints[k]`'s body."""

    joints: tuple[str, ...]
    jacobian: Annotated[
        Array, Spec(("nm", 6, "nv"), "1, m", "J = Psi_D G: joint rates to velocities", turned=("row", ""))
    ]
    momenta: Annotated[
        Array, Spec(("nm", 6, "nv"), "kg m^2, kg m, kg", "Q = M J: joint rates to momenta", turned=("row", ""))
    ]
    mass_matrix: Annotated[Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "J^T Q", kind="effort")]


@dataclass(frozen=True, eq=False)
class ConstraintBases:
    """Directions in which joints carry load, (20), in joint axes. Row k belongs to `joints[k]`."""

    joints: tuple[str, ...]
    basis: Annotated[Array, Spec(("nj", 6, 6), "1", "columns: directions, orthonormal; 0 beyond their number")]
    directions: Annotated[Array, Spec(("nj",), "1", "how many: 5 where the joint moves, 6 where it is fixed")]

    def of(self, joint: str) -> Array:
        """The directions of one joint, (6, 5), or (6, 6) for a fixed one.

        Raises:
            NotFoundError: There is no row for that joint.
        """
        if joint not in self.joints:
            raise NotFoundError(f"there is no joint '{joint}' here; the joints are {', '.join(self.joints)}")
        row = self.joints.index(joint)
        found: Array = self.basis[row, :, : int(self.directions[row])]
        return found


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
class SystemMomentumRate:
    """How the momentum of each branch changes, and why. Row k belongs to `links[k]` and all that hangs on it.

    Rates are those that stand still in the world sees; `frame` only says in whose axes their components are.
    """

    links: tuple[str, ...]
    rate: Annotated[
        Array, Spec(("nl", 6), "N m, N", "[H-dot; P-dot], about the link's moving origin: (P.1g), (P.1e)", turned=True)
    ]
    centre_rate: Annotated[Array, Spec(("nl", 3), "m/s", "c-dot, (P.1d); 0 for a branch without mass", turned=True)]
    central_momentum: Annotated[
        Array, Spec(("nl", 3), "N m s", "H^c: angular momentum about the branch's centre of mass", turned=True)
    ]
    central_rate: Annotated[Array, Spec(("nl", 3), "N m", "H^c-dot, (P.1f)", turned=True)]
    load: Annotated[
        Array, Spec(("nl", 6), "N m, N", "[tau; f] from the parent, from the ground on the root", turned=True)
    ]
    external: Annotated[
        Array,
        Spec(("nl", 6), "N m, N", "weight and wrenches on the whole branch, about the link's origin", turned=True),
    ]


@dataclass(frozen=True, eq=False)
class PassiveForces:
    """What joints do by themselves, in efforts that actuators add because of it: tau = M a + C + g + their sum.

    Armature, which acts with acceleration, is in the mass matrix.
    """

    damping: Annotated[Array, Spec(("nv",), "N m | N", "d v", kind="effort")]
    friction: Annotated[Array, Spec(("nv",), "N m | N", "f tanh(v / w)", kind="effort")]
    springs: Annotated[Array, Spec(("nv",), "N m | N", "k (q - q_0)", kind="effort")]
    stored: Annotated[Array, Spec((), "J", "in the springs: the sum of k (q - q_0)^2 / 2")]
    dissipated: Annotated[Array, Spec((), "W", "by damping and friction")]


@dataclass(frozen=True, eq=False)
class Energy:
    """Energy of the robot, its joints' rotors and springs among it. Potential energy is zero where a link's centre of
    mass is in the world's origin, and a spring at rest.
    """

    kinetic: Annotated[Array, Spec((), "J", "T = v^T M v / 2")]
    potential: Annotated[Array, Spec((), "J", "V = - sum of m g . r, and what springs keep")]
    total: Annotated[Array, Spec((), "J", "T + V")]
    lagrangian: Annotated[Array, Spec((), "J", "L = T - V")]


@dataclass(frozen=True, eq=False)
class Hamiltonian:
    """The Hamiltonian and its parts."""

    kinetic: Annotated[Array, Spec((), "J", "p^T M^-1 p / 2")]
    potential: Annotated[Array, Spec((), "J", "V = - sum of m g . r")]
    hamiltonian: Annotated[Array, Spec((), "J", "H, their sum")]


@dataclass(frozen=True, eq=False)
class HamiltonianFlow:
    """Hamilton's equations: how positions and momenta change."""

    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "q-dot = dH/dp", kind="velocity")]
    p_dot: Annotated[Array, Spec(("nv",), "N m | N", "p-dot = -dH/dq + Q", kind="effort")]


@dataclass(frozen=True, eq=False)
class State:
    """Positions and velocities at one time."""

    q: Annotated[Array, Spec(("nq",), "rad | m", "joint positions", kind="position")]
    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "joint velocities", kind="velocity")]


@dataclass(frozen=True, eq=False)
class EquationTerms:
    """M a = C + G + Q + E + P, each term as the equation has it on its right side."""

    mass_matrix: Annotated[Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "M", kind="effort")]
    velocity_forces: Annotated[Array, Spec(("nv",), "N m | N", "C: centrifugal and Coriolis", kind="effort")]
    gravity_forces: Annotated[Array, Spec(("nv",), "N m | N", "G: weight", kind="effort")]
    efforts: Annotated[Array, Spec(("nv",), "N m | N", "Q: what drives the joints", kind="effort")]
    external_forces: Annotated[Array, Spec(("nv",), "N m | N", "E: wrenches from outside", kind="effort")]
    passive_forces: Annotated[
        Array, Spec(("nv",), "N m | N", "P: what joints do by themselves, less armature, which is in M", kind="effort")
    ]


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
    centre_acceleration: Annotated[Array, Spec(("nl", 3), "m/s^2", "v-dot_cm: acceleration of the centre of mass")]
    centre_force: Annotated[Array, Spec(("nl", 3), "N", "F = m (v-dot_cm - g): net force, weight not counted")]
    centre_moment: Annotated[
        Array, Spec(("nl", 3), "N m", "N = M omega-dot + omega x M omega, about the centre of mass")
    ]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A motion on a grid of K times."""

    t: Annotated[Array, Spec(("K",), "s", "times")]
    q: Annotated[Array, Spec(("K", "nq"), "rad | m", "joint positions")]
    v: Annotated[Array, Spec(("K", "nv"), "rad/s | m/s", "joint velocities")]
    p: Annotated[
        Array | None, Spec(("K", "nv"), "N m s | N s", "generalised momenta, where they were integrated, else None")
    ] = None
    contact_forces: Annotated[
        Array | None,
        Spec(
            ("K", "nc", 3),
            "N",
            "on the robot at each contact, world axes, mean over the step that ends there; None without contacts",
        ),
    ] = None
    stop_efforts: Annotated[
        Array | None,
        Spec(("K", "nv"), "N m | N", "of stops and brakes, mean over that step; None without stops and brakes"),
    ] = None
    clamped: Annotated[
        Array | None,
        Spec(("K", "nv"), "1", "steps since the record before whose effort was cut; None where none may be"),
    ] = None
    work: Annotated[
        Array | None,
        Spec(
            ("K", 2),
            "J",
            "of efforts, of external wrenches, since the record before; with limits or contacts, like the next two",
        ),
    ] = None
    stored: Annotated[Array | None, Spec(("K", 2), "J", "in stops, in contacts")] = None
    dissipated: Annotated[
        Array | None,
        Spec(
            ("K", 4),
            "J",
            "by what joints do by themselves, stops and brakes, contacts, `stick_slip`'s steps, since the record "
            "before",
        ),
    ] = None


@dataclass(frozen=True, eq=False)
class ContactDynamics:
    """Accelerations and forces while points of links are held on planes."""

    a: Annotated[Array, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", kind="acceleration")]
    forces: Annotated[
        Array, Spec(("nc", 3), "N", "on the robot at each contact, world axes; the least where not determined")
    ]
    rank: Annotated[Array, Spec((), "1", "independent ones of the 3 nc directions that are held")]
    violation: Annotated[
        Array, Spec((), "m/s^2", "the largest acceleration that is left in them; 0 but where they contradict another")
    ]


class RheonomicTrajectory(NamedTuple):
    """A motion on a grid of K times, of which some joints' part was given."""

    t: Annotated[Array, Spec(("K",), "s", "times")]
    q: Annotated[Array, Spec(("K", "nq"), "rad | m", "positions of all joints")]
    v: Annotated[Array, Spec(("K", "nv"), "rad/s | m/s", "velocities of all joints")]
    a: Annotated[Array, Spec(("K", "nv"), "rad/s^2 | m/s^2", "accelerations of all joints")]
    tau: Annotated[Array, Spec(("K", "nv"), "N m | N", "efforts; of the prescribed joints what makes them move so")]


class GroundReactions(NamedTuple):
    """What acts while a robot moves as given: its joints' efforts, and the forces at its contacts."""

    tau: Annotated[
        Array, Spec(("nv",), "N m | N", "joint efforts; for undriven joints the residual, 0 except for rounding")
    ]
    forces: Annotated[Array, Spec(("nc", 3), "N", "on the robot at each contact, world axes")]
    residual: Annotated[
        Array, Spec((), "1", "what is left at the joints that nothing drives, as a share of what they need")
    ]
    supported: Annotated[Array, Spec((), "1", "1 where the contacts make this motion, else 0: a residual above 1e-8")]
    rank: Annotated[Array, Spec((), "1", "the directions of the undriven joints that contacts push in")]
    indeterminate: Annotated[
        Array,
        Spec((), "1", "3 nc - rank: how many forces inside the robot may be added"),
    ]


class SegmentLoads(NamedTuple):
    """What acts on each segment at its proximal joint: the ankle for the foot, the knee for the shank."""

    force: Annotated[Array, Spec(("n", 3), "N", "at the upper joints, global basis")]
    moment: Annotated[Array, Spec(("n", 3), "N m", "at the upper joints, segment's basis")]


class SegmentMatrices(NamedTuple):
    """M q-ddot = C + G + Q + E of n segments, Q = A [F_1; M_1; F_2; ...], and its solution.

    Entry 6i to 6i + 2 belongs to segment i's force equation, N, global basis; 6i + 3 to 6i + 5 to its moment equation,
    N m, segment's basis. Only A depends on where the joints are.
    """

    mass_matrix: Annotated[Array, Spec(("6n", "6n"), "kg, kg m^2", "M: masses and inertias on the diagonal")]
    acceleration: Annotated[Array, Spec(("6n",), "m/s^2, rad/s^2", "q-ddot: the centre's, then omega-dot")]
    velocity_forces: Annotated[Array, Spec(("6n",), "N, N m", "C")]
    gravity_forces: Annotated[Array, Spec(("6n",), "N, N m", "G")]
    external_forces: Annotated[Array, Spec(("6n",), "N, N m", "E: the ground and other loads from outside")]
    efforts: Annotated[Array, Spec(("6n",), "N, N m", "Q = M q-ddot - C - G - E")]
    load_matrix: Annotated[Array, Spec(("6n", "6n"), "1, m", "A")]
    loads: Annotated[Array, Spec(("6n",), "N, N m", "A^-1 Q: what `segment_inverse_dynamics` answers, stacked")]
