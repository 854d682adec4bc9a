"""The results of queries with several outputs, one class each.

A field with a `Spec` is an output; a field without one labels the rows of the others. Outputs may have leading axes
before the core shape of their `Spec`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.spec import Names, Spec
from dyn_service.errors import InvalidArgumentError, NotFoundError
from dyn_service.support.suggestions import did_you_mean

Array = NDArray[np.float64]

Load = partial(Spec, kind="load")
_POSITIONS = Spec(("nq",), "rad | m", "joint positions", kind="position")
_NO_MIDPOINT = "the iteration for the midpoint does not converge; try a step shorter than dt = {dt:g} s"
_COMPONENTS = ("torque x", "torque y", "torque z", "force x", "force y", "force z")


class Unpacked:
    """A result of two or three arrays, which unpacks to them: `q, v = robot.step(..)`. Labels of rows are left out."""

    def __iter__(self) -> Iterator[Array]:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # of a dataclass
        return iter([value for value in values if not isinstance(value, tuple)])


@dataclass(frozen=True, eq=False)
class ConstraintForces(Unpacked):
    """The load of each joint. Row k belongs to `joints[k]`, at that joint's origin.

    joints: names in row order: every URDF joint, including fixed ones, or the selected ones.
    """

    joints: tuple[str, ...]
    wrench: Annotated[
        Array, Spec(("nj", 6), "N m, N", "[torque; force] that the parent link exerts on the child link", rotated=True)
    ]
    actuation: Annotated[
        Array,
        Spec(
            ("nj",),
            "N m | N",
            "component of the wrench along the free axis; 0 at fixed joints; the norm if there are several axes",
        ),
    ]
    constraint: Annotated[
        Array, Spec(("nj", 6), "N m, N", "the rest of the wrench: the load on bearings or guides", rotated=True)
    ]

    def component(self, joint: str, name: str) -> Array:
        """Returns one component of a joint's constraint load, (...), such as `"force z"`: Newton-Euler (20).

        Args:
            joint: The joint's name.
            name: `torque` or `force`, and `x`, `y` or `z` in the axes of the query's `frame`.

        Raises:
            NotFoundError: There is no row for that joint.
            InvalidArgumentError: There is no component of that name.
        """
        if joint not in self.joints:
            hint = did_you_mean(joint, self.joints)
            raise NotFoundError(f"there is no joint '{joint}' here; the joints are {', '.join(self.joints)}{hint}")
        if name not in _COMPONENTS:
            raise InvalidArgumentError(
                f"a component is one of {', '.join(_COMPONENTS)}, found {name!r}{did_you_mean(name, _COMPONENTS)}"
            )
        component: Array = self.constraint[..., self.joints.index(joint), _COMPONENTS.index(name)]
        return component


@dataclass(frozen=True, eq=False)
class ForceTorque(Unpacked):
    """Readings of ideal force/torque sensors in joints, each in the sensor's axes about its origin.

    joints: names in row order: every URDF joint, including fixed ones, or the selected ones.
    """

    joints: tuple[str, ...]
    force: Annotated[Array, Load(("nj", 3), "N", "in the sensor's axes")]
    torque: Annotated[Array, Load(("nj", 3), "N m", "about the sensor's origin, in its axes")]


@dataclass(frozen=True, eq=False)
class ImuReading(Unpacked):
    """Readings of ideal inertial measurement units on links, each in its own axes.

    links: names in row order: every link, or the selected ones.
    """

    links: tuple[str, ...]
    specific_force: Annotated[
        Array, Spec(("nl", 3), "m/s^2", "acceleration of the sensor minus gravity: g upwards at rest")
    ]
    angular_velocity: Annotated[Array, Spec(("nl", 3), "rad/s", "of the link")]


@dataclass(frozen=True, eq=False)
class LinkPoses(Unpacked):
    """The pose of each link. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    rotation: Annotated[Array, Spec(("nl", 3, 3), "1", "R_WL: columns are the link's axes in world axes")]
    position: Annotated[Array, Spec(("nl", 3), "m", "p_WL: the link's origin in the world")]


@dataclass(frozen=True, eq=False)
class PointMotion:
    """Pose, velocity and Jacobian of a point of a link. Six-vectors have the angular part first.

        velocity = jacobian v,    d/dt velocity = jacobian a + bias

    With `frame="world_aligned"`, the last three entries of `d/dt velocity` are the point's acceleration. With the other
    frames, `d/dt velocity` is a spatial acceleration, the rate of the entries of `velocity`.
    """

    rotation: Annotated[Array, Spec((3, 3), "1", "R_WL: columns are the link's axes in world axes")]
    position: Annotated[Array, Spec((3,), "m", "of the point in the world")]
    velocity: Annotated[Array, Spec((6,), "rad/s, m/s", "[angular; linear]")]
    jacobian: Annotated[Array, Spec((6, "nv"), "1 | m | 1/m", "maps joint velocities to `velocity`")]
    bias: Annotated[Array, Spec((6,), "rad/s^2, m/s^2", "J-dot v: the rate of `velocity` at zero joint accelerations")]


@dataclass(frozen=True, eq=False)
class OperationalSpace(Unpacked):
    """Inertia of a point of a link. Rows and columns are rx, ry, rz, x, y, z.

    With J of `PointMotion`, in the same axes, mobility = J M^-1 J^T. `inertia` is its inverse in the selected
    directions, and 0 in the others.
    """

    mobility: Annotated[
        Array,
        Spec((6, 6), "1/(kg m^2), 1/(kg m), 1/kg", "Omega: maps a wrench on the point to the accelerations it causes"),
    ]
    inertia: Annotated[
        Array,
        Spec(
            (6, 6),
            "kg m^2, kg m, kg",
            "Lambda: maps accelerations to the wrench that causes them; NaN if the link cannot move in some direction",
            singular="at this state link '{link}' cannot move in all of the selected directions, and J M^-1 J^T is "
            "singular: use fewer `directions`",
        ),
    ]


@dataclass(frozen=True, eq=False)
class LinkMotion(Unpacked):
    """Motion and inboard load of each link at its inboard joint's origin. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    velocity: Annotated[Array, Spec(("nl", 6), "rad/s, m/s", "[omega; velocity of the origin]", rotated=True)]
    acceleration: Annotated[
        Array, Spec(("nl", 6), "rad/s^2, m/s^2", "[omega-dot; acceleration of the origin]", rotated=True)
    ]
    load: Annotated[
        Array, Load(("nl", 6), "N m, N", "[torque; force] from the parent, from the ground on the root", rotated=True)
    ]


@dataclass(frozen=True, eq=False)
class BranchInertias:
    """The factors of the inverse mass matrix, (19b). Row k belongs to the movable joint `joints[k]`, in its axes."""

    joints: tuple[str, ...]
    inertia: Annotated[Array, Spec(("nm", 6, 6), "kg m^2, kg m, kg", "J: articulated inertia of the branch")]
    resistance: Annotated[
        Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "R = G^T J G: inertia along each joint, block diagonal")
    ]
    gain: Annotated[Array, Spec(("nv", 6), "1, m, 1/m", "K = J G R^-1, one row per entry of v")]
    influence: Annotated[
        Array,
        Spec(("nm", 6, 6), "1, m", "beta = (e - G K^T) D: from the parent moving body; 0 if the parent is the world"),
    ]


@dataclass(frozen=True, eq=False)
class Topology:
    """The tree of bodies: the pattern of Phi and Psi. Row k belongs to `links[k]`, whose inboard joint is `joints[k]`.

    Parents precede children, depth first, so that a branch is a range of rows. A body has the name of its link.
    """

    links: Annotated[tuple[str, ...], Names("nb", "link")]
    joints: Annotated[tuple[str, ...], Names("nb", "row", "inboard joints of the rows; the root link has none")]
    parent: Annotated[Array, Spec(("nb",), "1", "row of the parent; -1: the world")]
    ancestors: Annotated[
        Array, Spec(("nb", "nb"), "1", "1 if column j is row i or an ancestor of it, j <= i, else 0: Psi")
    ]
    children: Annotated[Array, Spec(("nb", "nb"), "1", "1 if row i is the parent of column j, else 0: Phi^T")]
    nilpotency: Annotated[Array, Spec((), "1", "m, with Phi^m = 0: number of bodies in the longest chain")]

    def parent_of(self, link: str) -> str | None:
        """Returns the parent body of `link`; None: the world."""
        row = int(self.parent[self._row(link)])
        return self.links[row] if row >= 0 else None

    def ancestors_of(self, link: str) -> tuple[str, ...]:
        """Returns {j <= i}: the bodies from the root to `link`, inclusive."""
        return self._names_where(self.ancestors[self._row(link)])

    def children_of(self, link: str) -> tuple[str, ...]:
        """Returns the bodies whose parent is `link`."""
        return self._names_where(self.children[self._row(link)])

    def branch_of(self, link: str) -> tuple[str, ...]:
        """Returns {j >= i}: `link` and all bodies outward of it."""
        return self._names_where(self.ancestors[:, self._row(link)])

    def _names_where(self, flags: Array) -> tuple[str, ...]:
        return tuple(name for name, flag in zip(self.links, flags, strict=True) if flag)

    def _row(self, link: str) -> int:
        if link not in self.links:
            raise NotFoundError(f"there is no body '{link}' here; the bodies are {', '.join(self.links)}")
        return self.links.index(link)


@dataclass(frozen=True, eq=False)
class InfluenceOperators(Unpacked):
    """Phi_A and Psi_A as blocks with their places, for moving bodies named by their inboard joints.

    Block k of `phi` is in row `joints[k]`, column `parents[k]`; block k of `psi` is in row `rows[k]`, column
    `columns[k]`. All other blocks are zero.
    """

    joints: tuple[str, ...]
    parents: Annotated[
        tuple[str, ...], Names("nm", "parent", 'inboard joint of the parent body of the row; "" is the world')
    ]
    rows: Annotated[tuple[str, ...], Names("na", "row", "the rows of `psi`")]
    columns: Annotated[
        tuple[str, ...], Names("na", "column", "the columns of `psi`: the row's joint, or one inboard of it")
    ]
    phi: Annotated[
        Array,
        Spec(("nm", 6, 6), "1, m", "A_i, from the parent; 0 if the parent is the world", rotated=("row", "parent")),
    ]
    psi: Annotated[
        Array, Spec(("na", 6, 6), "1, m", "A_i A_ip .. down to below j; e for j = i", rotated=("row", "column"))
    ]

    def dense(self) -> tuple[Array, Array]:
        """Returns Phi_A and Psi_A, (..., 6 nv, 6 nv) each, with bodies in the order of `joints`."""
        with_parent = [k for k, parent in enumerate(self.parents) if parent]
        return (
            self._assembled(self.phi, [(k, self.joints[k], self.parents[k]) for k in with_parent]),
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
    """The blocks of (1)-(17), with Y and F-bar, for moving bodies named by their inboard joints. Row k is
    `joints[k]`'s.

    Each body consists of the links that move with its joint, including those behind fixed joints; the reference point
    is the joint's origin.
    """

    joints: tuple[str, ...]
    influence: Annotated[
        Array, Spec(("nm", 6, 6), "1, m", "D, (4); 0 if the parent is the world", rotated=("row", "parent"))
    ]
    free_axis: Annotated[
        Array,
        Spec(
            ("nr", 6), "1", "G, (4), one row per degree of freedom; times the multiplier for mimic joints", rotated=True
        ),
    ]
    centre_lever: Annotated[Array, Spec(("nm", 6, 6), "1, m", "S, (1): to the centre of mass", rotated=("row", "row"))]
    velocity_products: Annotated[Array, Spec(("nm", 6), "rad/s^2, m/s^2", "A, (5a)", rotated=True)]
    centre_velocity_products: Annotated[Array, Spec(("nm", 6), "rad/s^2, m/s^2", "A-bar, (2)", rotated=True)]
    inertia: Annotated[
        Array, Spec(("nm", 6, 6), "kg m^2, kg m, kg", "M, (16), about the joint's origin", rotated=("row", "row"))
    ]
    centre_inertia: Annotated[
        Array, Spec(("nm", 6, 6), "kg m^2, kg", "M-bar, (11), about the centre of mass", rotated=("row", "row"))
    ]
    velocity_loads: Annotated[Array, Spec(("nm", 6), "N m, N", "B, (17), about the joint's origin", rotated=True)]
    centre_velocity_loads: Annotated[Array, Spec(("nm", 6), "N m, N", "B-bar, (11), about the centre", rotated=True)]
    external_lever: Annotated[
        Array,
        Spec(("nm", 6, 6), "1, m", "Y, (11): to the point of F-bar, here the centre of mass", rotated=("row", "row")),
    ]
    external_loads: Annotated[
        Array, Spec(("nm", 6), "N m, N", "F-bar, (11): sum of weight and wrenches at the centre of mass", rotated=True)
    ]


@dataclass(frozen=True, eq=False)
class MassMatrixSteps(Unpacked):
    """The mass matrix by the document's three steps. Row k of J and Q belongs to `joints[k]`'s body."""

    joints: tuple[str, ...]
    jacobian: Annotated[
        Array, Spec(("nm", 6, "nv"), "1, m", "J = Psi_D G: joint rates to velocities", rotated=("row", ""))
    ]
    momenta: Annotated[
        Array, Spec(("nm", 6, "nv"), "kg m^2, kg m, kg", "Q = M J: joint rates to momenta", rotated=("row", ""))
    ]
    mass_matrix: Annotated[Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "J^T Q", kind="effort")]


@dataclass(frozen=True, eq=False)
class CoriolisMatrix(Unpacked):
    """C, with C + C^T = dM/dt, and its products with v, which momentum observers need."""

    matrix: Annotated[Array, Spec(("nv", "nv"), "kg m^2/s | kg m/s | kg/s", "C(q, v)")]
    forces: Annotated[Array, Spec(("nv",), "N m | N", "C v: centrifugal and Coriolis", kind="effort")]
    transposed_forces: Annotated[Array, Spec(("nv",), "N m | N", "C^T v = dM/dt v - C v", kind="effort")]


@dataclass(frozen=True, eq=False)
class DynamicParameters:
    """theta: 10 numbers for each link, in its axes and about its origin, then 4 for each joint velocity.

    `LINK.m` (kg), `LINK.hx`, `.hy`, `.hz` (mass times centre of mass, kg m), `LINK.Ixx`, `.Ixy`, `.Ixz`, `.Iyy`,
    `.Iyz`, `.Izz` (kg m^2); then of all joints `JOINT.damping`, `JOINT.friction`, `JOINT.armature`, `JOINT.stiffness`.
    """

    parameters: tuple[str, ...]
    theta: Annotated[Array, Spec(("nt",), "kg, kg m, kg m^2 | N m s, N m, kg m^2, N m | N s/m, N, kg, N/m", "theta")]


@dataclass(frozen=True, eq=False)
class InverseDynamicsRegressor:
    """Y with tau = Y theta, without external wrenches. Columns belong to `parameters`, see `DynamicParameters`."""

    parameters: Annotated[tuple[str, ...], Names("nt", text="the names of the columns")]
    regressor: Annotated[Array, Load(("nv", "nt"), "tau per theta", "Y(q, v, a)")]


@dataclass(frozen=True, eq=False)
class JointWrenchRegressor:
    """The matrix of each joint that maps the inertial parameters of the links to the joint's wrench."""

    joints: tuple[str, ...]
    links: Annotated[tuple[str, ...], Names("nl", text="the names along the third axis of `regressor`")]
    regressor: Annotated[
        Array,
        Load(
            ("nj", 6, "nl", 10),
            "N m, N per theta",
            "to [torque; force] from the parent on the child, about the joint's origin in the child link's axes",
        ),
    ]


@dataclass(frozen=True, eq=False)
class MomentumRegressor:
    """Y_p with p = M(q) v = Y_p theta. Columns belong to `parameters`, see `DynamicParameters`."""

    parameters: Annotated[tuple[str, ...], Names("nt", text="the names of the columns")]
    regressor: Annotated[Array, Spec(("nv", "nt"), "p per theta", "Y_p(q, v)")]


@dataclass(frozen=True, eq=False)
class EnergyRegressor(Unpacked):
    """Energies per parameter: T = kinetic . theta, V = potential . theta. Entries belong to `parameters`."""

    parameters: tuple[str, ...]
    kinetic: Annotated[Array, Spec(("nt",), "J per theta", "y_T(q, v)")]
    potential: Annotated[Array, Spec(("nt",), "J per theta", "y_V(q)")]


@dataclass(frozen=True, eq=False)
class ConstraintBases(Unpacked):
    """Directions in which joints carry load, (20), in joint axes. Row k belongs to `joints[k]`."""

    joints: tuple[str, ...]
    basis: Annotated[Array, Spec(("nj", 6, 6), "1", "columns: orthonormal directions; further columns are 0")]
    directions: Annotated[Array, Spec(("nj",), "1", "number of directions: 5 for a hinge or slide, 6 for fixed joints")]

    def of(self, joint: str) -> Array:
        """Returns the directions of one joint, (6, 5), or (6, 6) for a fixed one.

        Raises:
            NotFoundError: There is no row for that joint.
        """
        if joint not in self.joints:
            raise NotFoundError(f"there is no joint '{joint}' here; the joints are {', '.join(self.joints)}")
        row = self.joints.index(joint)
        # The basis is padded with zero columns, so that joints with other freedoms fit into one array.
        directions: Array = self.basis[row, :, : int(self.directions[row])]
        return directions


@dataclass(frozen=True, eq=False)
class SystemMomentum(Unpacked):
    """Momentum of each branch about its link's origin. Row k: the branch of `links[k]` and all links outward of it."""

    links: tuple[str, ...]
    momentum: Annotated[Array, Spec(("nl", 6), "N m s, N s", "K = [H; P]: angular, linear", rotated=True)]
    mass: Annotated[Array, Spec(("nl",), "kg", "of the branch")]
    centre: Annotated[
        Array, Spec(("nl", 3), "m", "c: centre of mass of the branch from the link's origin", rotated=True)
    ]


@dataclass(frozen=True, eq=False)
class SystemMomentumRate:
    """Rates of the momentum of each branch, and their causes. Row k: `links[k]` and all links outward of it.

    Rates are those in the world; `frame` only selects the axes of their components.
    """

    links: tuple[str, ...]
    rate: Annotated[
        Array, Spec(("nl", 6), "N m, N", "[H-dot; P-dot], about the link's moving origin: (P.1g), (P.1e)", rotated=True)
    ]
    centre_rate: Annotated[Array, Spec(("nl", 3), "m/s", "c-dot, (P.1d); 0 for a branch without mass", rotated=True)]
    central_momentum: Annotated[
        Array, Spec(("nl", 3), "N m s", "H^c: angular momentum about the branch's centre of mass", rotated=True)
    ]
    central_rate: Annotated[Array, Spec(("nl", 3), "N m", "H^c-dot, (P.1f)", rotated=True)]
    load: Annotated[
        Array, Load(("nl", 6), "N m, N", "[tau; f] from the parent, from the ground on the root", rotated=True)
    ]
    external: Annotated[
        Array,
        Spec(("nl", 6), "N m, N", "weight and wrenches on the whole branch, about the link's origin", rotated=True),
    ]


@dataclass(frozen=True, eq=False)
class PassiveForces:
    """Passive joint forces, as efforts that actuators must add: tau = M a + C + g + their sum.

    Armature is in the mass matrix.
    """

    damping: Annotated[Array, Spec(("nv",), "N m | N", "d v", kind="effort")]
    friction: Annotated[Array, Spec(("nv",), "N m | N", "f tanh(v / w)", kind="effort")]
    springs: Annotated[Array, Spec(("nv",), "N m | N", "k (q - q_0)", kind="effort")]
    stored: Annotated[Array, Spec((), "J", "in the springs: the sum of k (q - q_0)^2 / 2")]
    dissipated: Annotated[Array, Spec((), "W", "by damping and friction")]


@dataclass(frozen=True, eq=False)
class Energy:
    """Energy of the robot, including its rotors and springs. The potential energy of a link is zero with its centre of
    mass at the world's origin, that of a spring at its position of rest.
    """

    kinetic: Annotated[Array, Spec((), "J", "T = v^T M v / 2")]
    potential: Annotated[Array, Spec((), "J", "V = - sum of m g . r, and the energy of springs")]
    total: Annotated[Array, Spec((), "J", "T + V")]
    lagrangian: Annotated[Array, Spec((), "J", "L = T - V")]


@dataclass(frozen=True, eq=False)
class Hamiltonian(Unpacked):
    """The Hamiltonian and its parts."""

    kinetic: Annotated[Array, Spec((), "J", "p^T M^-1 p / 2")]
    potential: Annotated[Array, Spec((), "J", "V = - sum of m g . r")]
    hamiltonian: Annotated[Array, Spec((), "J", "H, their sum")]


@dataclass(frozen=True, eq=False)
class HamiltonianFlow(Unpacked):
    """Hamilton's equations: the rates of positions and momenta."""

    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "q-dot = dH/dp", kind="velocity")]
    p_dot: Annotated[Array, Spec(("nv",), "N m | N", "p-dot = -dH/dq + Q", kind="effort")]


@dataclass(frozen=True, eq=False)
class State(Unpacked):
    """Positions and velocities at one time."""

    q: Annotated[Array, _POSITIONS]
    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "joint velocities", kind="velocity")]


@dataclass(frozen=True, eq=False)
class InverseDynamicsDerivatives:
    """Joint efforts and their derivatives: row i, column k is the derivative of tau_i with respect to entry k.

    Derivatives with respect to q are with respect to e in integrate(q, e, 1), e (nv,): q itself if nq = nv.
    """

    tau: Annotated[Array, Spec(("nv",), "N m | N", "joint efforts", kind="effort")]
    dtau_dq: Annotated[Array, Spec(("nv", "nv"), "N m/rad | N/rad | N | N/m", "with respect to q")]
    dtau_dv: Annotated[Array, Spec(("nv", "nv"), "N m s/rad | N s/rad | N s | N s/m", "with respect to v")]
    dtau_da: Annotated[
        Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "with respect to a: the mass matrix", kind="effort")
    ]


@dataclass(frozen=True, eq=False)
class ForwardDynamicsDerivatives:
    """Joint accelerations and their derivatives: row i, column k is the derivative of a_i with respect to entry k.

    Derivatives with respect to q are with respect to e in integrate(q, e, 1), e (nv,): q itself if nq = nv.
    """

    a: Annotated[Array, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", kind="acceleration")]
    da_dq: Annotated[Array, Spec(("nv", "nv"), "1/s^2 | m/(rad s^2) | rad/(m s^2)", "with respect to q")]
    da_dv: Annotated[Array, Spec(("nv", "nv"), "1/s | m/(rad s) | rad/(m s)", "with respect to v")]
    da_dtau: Annotated[
        Array, Spec(("nv", "nv"), "1/(kg m^2) | 1/(kg m) | 1/kg", "with respect to tau: the inverse mass matrix")
    ]


class _Blocks:
    """The gradient and the Hessian as one vector and one matrix, from the blocks of a result."""

    _variables = ("q", "v", "a")

    @property
    def gradient(self) -> Array:
        """The gradient over (q, v, a) or (q, v, tau), (..., 3 nv)."""
        blocks = vars(self)
        return np.concatenate([blocks[f"gradient_{name}"] for name in self._variables], axis=-1)

    @property
    def hessian(self) -> Array:
        """The symmetric Hessian over (q, v, a) or (q, v, tau), (..., 3 nv, 3 nv); blocks without a field are zero."""
        names, blocks = self._variables, vars(self)
        # Blocks without a field are zero or the transpose of one: the table declares each block once.
        zero = np.zeros_like(blocks["hessian_vv"])

        def entries(row: str, column: str) -> Array:
            block, transposed = blocks.get(f"hessian_{row}{column}"), blocks.get(f"hessian_{column}{row}")
            return block if block is not None else zero if transposed is None else np.swapaxes(transposed, -2, -1)

        return np.block([[entries(row, column) for column in names] for row in names])


@dataclass(frozen=True, eq=False)
class InverseDynamicsHessian(_Blocks):
    """Gradient and Hessian over (q, v, a) of the sum of `weights` times joint efforts.

    Derivatives with respect to q are with respect to e in integrate(q, e, 1), at e = 0: all blocks of a variable with
    itself are symmetric. Blocks of v with a, and of a with itself, are zero.
    """

    gradient_q: Annotated[Array, Spec(("nv",), "N m/rad | N", "with respect to q")]
    gradient_v: Annotated[Array, Spec(("nv",), "N m s/rad | N s", "with respect to v")]
    gradient_a: Annotated[Array, Spec(("nv",), "kg m^2 | kg m", "with respect to a", kind="effort")]
    hessian_qq: Annotated[Array, Spec(("nv", "nv"), "N m/rad^2 | N/rad | N/m", "twice with respect to q")]
    hessian_qv: Annotated[Array, Spec(("nv", "nv"), "N m s/rad^2, ..", "row: entry of q; column: entry of v")]
    hessian_vv: Annotated[Array, Spec(("nv", "nv"), "N m s^2/rad^2, ..", "twice with respect to v")]
    hessian_qa: Annotated[Array, Spec(("nv", "nv"), "kg m^2/rad, ..", "row: entry of q; column: entry of a")]


@dataclass(frozen=True, eq=False)
class ForwardDynamicsHessian(_Blocks):
    """Gradient and Hessian over (q, v, tau) of the sum of `weights` times joint accelerations.

    As in `InverseDynamicsHessian`. Blocks of v with tau, and of tau with itself, are zero.
    """

    gradient_q: Annotated[Array, Spec(("nv",), "1/s^2 | 1/(m s^2)", "with respect to q")]
    gradient_v: Annotated[Array, Spec(("nv",), "1/s | 1/(m s)", "with respect to v")]
    gradient_tau: Annotated[Array, Spec(("nv",), "1/(kg m^2) | 1/(kg m)", "with respect to tau")]
    hessian_qq: Annotated[Array, Spec(("nv", "nv"), "1/(rad s^2), ..", "twice with respect to q")]
    hessian_qv: Annotated[Array, Spec(("nv", "nv"), "1/(rad s), ..", "row: entry of q; column: entry of v")]
    hessian_vv: Annotated[Array, Spec(("nv", "nv"), "1/rad, ..", "twice with respect to v")]
    hessian_qtau: Annotated[Array, Spec(("nv", "nv"), "1/(kg m^2 rad), ..", "row: entry of q; column: entry of tau")]

    _variables = ("q", "v", "tau")


@dataclass(frozen=True, eq=False)
class StepDerivatives:
    """The state one step later, and its derivatives with respect to the state x = (q, v) before, and tau.

    Changes of q, before and after, are e in integrate(q, e, 1), e (nv,): those of q itself if nq = nv.
    """

    q: Annotated[Array, replace(_POSITIONS, singular=_NO_MIDPOINT, singular_by="implicit_midpoint")]
    v: Annotated[Array, Spec(("nv",), "rad/s | m/s", "joint velocities", kind="velocity")]
    dx_dx: Annotated[
        Array,
        Spec((2, "nv", 2, "nv"), "1 | s | 1/s", "[0, :, 0, :]: q by q; [0, :, 1, :]: q by v; [1, :, 0, :]: v by q"),
    ]
    dx_dtau: Annotated[Array, Spec((2, "nv", "nv"), "s^2/(kg m^2) | s/(kg m^2), ..", "[0]: of q; [1]: of v")]

    @property
    def A(self) -> Array:
        """`dx_dx` as a matrix, (..., 2 nv, 2 nv)."""
        size = 2 * self.v.shape[-1]
        return self.dx_dx.reshape(*self.v.shape[:-1], size, size)

    @property
    def B(self) -> Array:
        """`dx_dtau` as a matrix, (..., 2 nv, nv)."""
        size = self.v.shape[-1]
        return self.dx_dtau.reshape(*self.v.shape[:-1], 2 * size, size)


@dataclass(frozen=True, eq=False)
class MomentumDerivatives(Unpacked):
    """Generalised momenta and their derivatives, as in `InverseDynamicsDerivatives`."""

    p: Annotated[Array, Spec(("nv",), "N m s | N s", "generalised momenta", kind="momentum")]
    dp_dq: Annotated[Array, Spec(("nv", "nv"), "N m s/rad | N s/rad | N s | N s/m", "with respect to q")]
    dp_dv: Annotated[
        Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "with respect to v: the mass matrix", kind="effort")
    ]


@dataclass(frozen=True, eq=False)
class JointWrenchDerivatives:
    """The load of each joint and its derivatives, as in `InverseDynamicsDerivatives`. Row k belongs to `joints[k]`.

    Loads are those of `ConstraintForces`, in the axes of the child link.
    """

    joints: tuple[str, ...]
    wrench: Annotated[Array, Load(("nj", 6), "N m, N", "[torque; force]")]
    dwrench_dq: Annotated[Array, Spec(("nj", 6, "nv"), "N m/rad, N/rad | N, N/m", "with respect to q")]
    dwrench_dv: Annotated[Array, Spec(("nj", 6, "nv"), "N m s/rad, N s/rad | N s, N s/m", "with respect to v")]
    dwrench_da: Annotated[Array, Spec(("nj", 6, "nv"), "kg m^2, kg m | kg m, kg", "with respect to a")]


@dataclass(frozen=True, eq=False)
class EnergyDerivatives:
    """Kinetic and potential energy, as in `Energy`, and their derivatives, as in `InverseDynamicsDerivatives`."""

    kinetic: Annotated[Array, Spec((), "J", "T")]
    potential: Annotated[Array, Spec((), "J", "V")]
    dkinetic_dq: Annotated[Array, Spec(("nv",), "N m | N", "of T with respect to q", kind="effort")]
    dkinetic_dv: Annotated[Array, Spec(("nv",), "N m s | N s", "of T with respect to v: the momenta", kind="momentum")]
    dpotential_dq: Annotated[
        Array, Spec(("nv",), "N m | N", "of V with respect to q: the forces that hold the robot", kind="effort")
    ]


@dataclass(frozen=True, eq=False)
class CentroidalDerivatives:
    """Centre of mass, momentum and its rate, and their derivatives, as in `InverseDynamicsDerivatives`; world axes.

    Momentum and rate are about the centre of mass, angular part first.
    """

    centre: Annotated[Array, Spec((3,), "m", "centre of mass")]
    momentum: Annotated[Array, Spec((6,), "N m s, N s", "[angular; linear]")]
    rate: Annotated[Array, Spec((6,), "N m, N", "[angular; linear], at the accelerations `a`")]
    jacobian: Annotated[Array, Spec((3, "nv"), "m | 1", "of the centre of mass: v to its velocity")]
    dmomentum_dq: Annotated[Array, Spec((6, "nv"), "N m s/rad, N s/rad | N s, N s/m", "with respect to q")]
    dmomentum_dv: Annotated[
        Array, Spec((6, "nv"), "kg m^2, kg m | kg m, kg", "with respect to v; also of the rate with respect to a")
    ]
    drate_dq: Annotated[Array, Spec((6, "nv"), "N m/rad, N/rad | N, N/m", "of the rate with respect to q")]
    drate_dv: Annotated[Array, Spec((6, "nv"), "N m s/rad, N s/rad | N s, N s/m", "of the rate with respect to v")]


@dataclass(frozen=True, eq=False)
class PointMotionDerivatives:
    """Velocity and acceleration of a point of a link, and their derivatives, as in `InverseDynamicsDerivatives`.

    Axes, point and meaning are those of `PointMotion`: `acceleration` is its `d/dt velocity`. In "world_aligned" the
    last rows of `jacobian` are the derivative of the point's position.
    """

    velocity: Annotated[Array, Spec((6,), "rad/s, m/s", "[angular; linear]")]
    acceleration: Annotated[Array, Spec((6,), "rad/s^2, m/s^2", "[angular; linear]")]
    jacobian: Annotated[
        Array,
        Spec((6, "nv"), "1 | m | 1/m", "of the velocity by v; of the acceleration by a"),
    ]
    dvelocity_dq: Annotated[Array, Spec((6, "nv"), "1/s | m/s | 1/(m s)", "of the velocity with respect to q")]
    dacceleration_dq: Annotated[
        Array, Spec((6, "nv"), "1/s^2 | m/s^2 | 1/(m s^2)", "of the acceleration with respect to q")
    ]
    dacceleration_dv: Annotated[Array, Spec((6, "nv"), "1/s | m/s | 1/(m s)", "of the acceleration with respect to v")]


@dataclass(frozen=True, eq=False)
class EquationTerms:
    """M a = C + G + Q + E + P, each term with its sign on the right-hand side."""

    mass_matrix: Annotated[Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "M", kind="effort")]
    velocity_forces: Annotated[Array, Spec(("nv",), "N m | N", "C: centrifugal and Coriolis", kind="effort")]
    gravity_forces: Annotated[Array, Spec(("nv",), "N m | N", "G: weight", kind="effort")]
    efforts: Annotated[Array, Spec(("nv",), "N m | N", "Q: efforts of the actuators", kind="effort")]
    external_forces: Annotated[Array, Spec(("nv",), "N m | N", "E: external wrenches", kind="effort")]
    passive_forces: Annotated[
        Array, Spec(("nv",), "N m | N", "P: passive joint forces, without armature, which is in M", kind="effort")
    ]


@dataclass(frozen=True, eq=False)
class Jacobians(Unpacked):
    """Jacobians of every link, in link axes. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    translation: Annotated[Array, Spec(("nl", 3, "nv"), "m | 1", "J_S: v to the velocity of the centre of mass")]
    rotation: Annotated[Array, Spec(("nl", 3, "nv"), "1", "J_R: v to the angular velocity")]


@dataclass(frozen=True, eq=False)
class BiasAccelerations(Unpacked):
    """Accelerations of every link at zero joint accelerations, in link axes. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    translation: Annotated[Array, Spec(("nl", 3), "m/s^2", "sigma_S, of the centre of mass")]
    rotation: Annotated[Array, Spec(("nl", 3), "rad/s^2", "sigma_R, angular")]


@dataclass(frozen=True, eq=False)
class BodyRecursion:
    """The recursion's intermediate results, in each link's own axes, and the efforts. Row k belongs to `links[k]`."""

    links: tuple[str, ...]
    omega: Annotated[Array, Spec(("nl", 3), "rad/s", "angular velocity")]
    omega_dot: Annotated[Array, Spec(("nl", 3), "rad/s^2", "angular acceleration")]
    v_dot: Annotated[Array, Spec(("nl", 3), "m/s^2", "acceleration of the link's origin")]
    force: Annotated[Array, Load(("nl", 3), "N", "f: from the parent on the link")]
    moment: Annotated[Array, Load(("nl", 3), "N m", "eta: from the parent on the link, at its origin")]
    tau: Annotated[Array, Load(("nv",), "N m | N", "joint efforts")]
    centre_acceleration: Annotated[Array, Spec(("nl", 3), "m/s^2", "v-dot_cm: acceleration of the centre of mass")]
    centre_force: Annotated[Array, Spec(("nl", 3), "N", "F = m (v-dot_cm - g): net force without weight")]
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
        Array | None, Spec(("K", "nv"), "N m s | N s", "generalised momenta, if they were integrated, else None")
    ] = None
    contact_forces: Annotated[
        Array | None,
        Spec(
            ("K", "nc", 3),
            "N",
            "on the robot at each contact, world axes, mean over the step before the record; None without contacts",
        ),
    ] = None
    stop_efforts: Annotated[
        Array | None,
        Spec(("K", "nv"), "N m | N", "of stops and brakes, mean over the same step; None without stops and brakes"),
    ] = None
    clamped: Annotated[
        Array | None,
        Spec(("K", "nv"), "1", "steps since the previous record with clipped effort; None without effort limits"),
    ] = None
    work: Annotated[
        Array | None,
        Spec(
            ("K", 2),
            "J",
            "of efforts, of external wrenches, since the previous record; None without limits and contacts, like the "
            "next two",
        ),
    ] = None
    stored: Annotated[Array | None, Spec(("K", 2), "J", "in stops, in contacts")] = None
    dissipated: Annotated[
        Array | None,
        Spec(
            ("K", 4),
            "J",
            "by passive joint forces, stops and brakes, contacts, steps of `stick_slip`, since the previous record",
        ),
    ] = None
    integrator: str = ""
    """The integrator of all steps, also where `simulate` chose it."""
    substeps: int = 1
    """In how many parts it made each step; 2 of `stick_slip`: extrapolated from one and two parts."""


@dataclass(frozen=True, eq=False)
class ContactDynamics:
    """Accelerations and forces while points of links are held on planes."""

    a: Annotated[Array, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", kind="acceleration")]
    forces: Annotated[
        Array, Spec(("nc", 3), "N", "on the robot at each contact, world axes; the least ones if not unique")
    ]
    rank: Annotated[Array, Spec((), "1", "number of independent directions of the 3 nc that are held")]
    violation: Annotated[
        Array,
        Spec((), "m/s^2", "largest remaining acceleration in these directions; 0 unless they contradict each other"),
    ]


@dataclass(frozen=True, eq=False)
class ConstraintForceCauses:
    """The wrench [torque; force] of each joint by its cause. Row k belongs to `joints[k]`, at that joint's origin; over
    the last axes all causes sum to the wrench of `ConstraintForces`.

    joints: names in row order: every URDF joint, including fixed ones, or the selected ones.
    """

    joints: tuple[str, ...]
    links: Annotated[tuple[str, ...], Names("nl", text="the names along the last axis of `weights` and `external`")]
    motors: Annotated[Array, Spec(("nj", 6, "nv"), "N m, N", "of the effort of each velocity's motor")]
    passive: Annotated[
        Array, Spec(("nj", 6, "nv"), "N m, N", "of damping, friction and springs at each velocity's joint")
    ]
    weights: Annotated[Array, Spec(("nj", 6, "nl"), "N m, N", "of the weight of each link")]
    rates: Annotated[
        Array, Spec(("nj", 6, "nv", "nv"), "N m, N", "of each pair of velocities, half of it at either order")
    ]
    external: Annotated[Array, Spec(("nj", 6, "nl"), "N m, N", "of the external wrenches on each link")]


@dataclass(frozen=True, eq=False)
class IndependentMotion:
    """Motion of a robot with closed loops in nu independent velocities u, with efforts that act along them.

    u = S v,    v = G u,    a = G du/dt + bias_accelerations,    mass_matrix du/dt + bias_forces = G^T tau
    """

    selection: Annotated[Array, Spec(("nu", "nv"), "1", "S: 1 at each independent velocity")]
    jacobian: Annotated[Array, Spec(("nv", "nu"), "1 | m | 1/m", "G: column k are all joint velocities at u_k = 1")]
    bias_accelerations: Annotated[
        Array, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations at constant u", kind="acceleration")
    ]
    mass_matrix: Annotated[Array, Spec(("nu", "nu"), "kg m^2 | kg m | kg", "G^T M G")]
    bias_forces: Annotated[Array, Load(("nu",), "N m | N", "G^T (M bias_accelerations + C), at constant u")]
    freedom: Annotated[
        Array, Spec((), "1", "number of velocities that the loops leave free at this position; more than nu: singular")
    ]
    idle_efforts: Annotated[
        Array,
        Spec(
            ("nv", "nv"),
            "1 | m | 1/m",
            "P: efforts P x of the drives cause no motion, for any x; 0 without redundant drives",
        ),
    ]


class RheonomicTrajectory(NamedTuple):
    """A motion on a grid of K times with some joints prescribed."""

    t: Annotated[Array, Spec(("K",), "s", "times")]
    q: Annotated[Array, Spec(("K", "nq"), "rad | m", "positions of all joints")]
    v: Annotated[Array, Spec(("K", "nv"), "rad/s | m/s", "velocities of all joints")]
    a: Annotated[Array, Spec(("K", "nv"), "rad/s^2 | m/s^2", "accelerations of all joints")]
    tau: Annotated[Array, Spec(("K", "nv"), "N m | N", "efforts; of prescribed joints those that cause their motion")]


class GroundReactions(NamedTuple):
    """Joint efforts and contact forces of a robot that moves as given."""

    tau: Annotated[
        Array, Load(("nv",), "N m | N", "joint efforts; for undriven joints the residual, 0 except for rounding")
    ]
    forces: Annotated[Array, Load(("nc", 3), "N", "on the robot at each contact, world axes")]
    residual: Annotated[Array, Spec((), "1", "remaining effort at undriven joints, relative to the required one")]
    supported: Annotated[Array, Spec((), "1", "1 if the contacts permit this motion, else 0: a residual above 1e-8")]
    rank: Annotated[Array, Spec((), "1", "number of directions of the undriven joints in which contacts act")]
    indeterminate: Annotated[Array, Spec((), "1", "3 nc - rank: dimension of the internal forces")]


class SegmentLoads(NamedTuple):
    """Loads on each segment at its proximal joint: the ankle for the foot, the knee for the shank."""

    force: Annotated[Array, Spec(("n", 3), "N", "at the upper joints, global basis")]
    moment: Annotated[Array, Spec(("n", 3), "N m", "at the upper joints, segment's basis")]


class SegmentMatrices(NamedTuple):
    """M q-ddot = C + G + Q + E of n segments, Q = A [F_1; M_1; F_2; ...], and its solution.

    Entry 6i to 6i + 2 belongs to segment i's force equation, N, global basis; 6i + 3 to 6i + 5 to its moment equation,
    N m, segment's basis. Only A depends on the positions of the joints.
    """

    mass_matrix: Annotated[Array, Spec(("6n", "6n"), "kg, kg m^2", "M: masses and inertias on the diagonal")]
    acceleration: Annotated[Array, Spec(("6n",), "m/s^2, rad/s^2", "q-ddot: the centre's, then omega-dot")]
    velocity_forces: Annotated[Array, Spec(("6n",), "N, N m", "C")]
    gravity_forces: Annotated[Array, Spec(("6n",), "N, N m", "G")]
    external_forces: Annotated[Array, Spec(("6n",), "N, N m", "E: ground and other external loads")]
    efforts: Annotated[Array, Spec(("6n",), "N, N m", "Q = M q-ddot - C - G - E")]
    load_matrix: Annotated[Array, Spec(("6n", "6n"), "1, m", "A")]
    loads: Annotated[Array, Spec(("6n",), "N, N m", "A^-1 Q: the results of `segment_inverse_dynamics`, stacked")]
