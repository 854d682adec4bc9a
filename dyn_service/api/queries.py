"""The table of queries: what can be asked of a robot, declared once.

Each method of `RobotQueries` is one row: its parameters are the inputs (shape, unit, frame in the annotation) and the
options (choices), its return annotation names the outputs, its docstring says what comes back, and `@query` adds the
source equation and the functions under `dynamics/` that carry it. From these rows come the methods of `Robot` and
`RemoteRobot`, the server's dispatch, `dyn call`, the reference page and the parametrised tests.

Shapes are core shapes: every input may carry further leading axes, and these broadcast against each other as in NumPy.
The symbols are `nq` (positions), `nv` (velocities), `nl` (links), `nj` (URDF joints, fixed ones too), `nb` (bodies),
`na` (pairs of moving bodies of which one is the other or carries it). A query without inputs asks for what is the same
at every state.
Gravity is an acceleration in world axes, m/s^2. The world frame is the frame of the URDF's root link.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from numpy.typing import ArrayLike

from dyn_service.api.prescribed import GivenMotion
from dyn_service.api.results import (
    Array,
    BiasAccelerations,
    BodyRecursion,
    BranchInertias,
    ConstraintBases,
    ConstraintForces,
    Energy,
    EquationTerms,
    Hamiltonian,
    HamiltonianFlow,
    InfluenceOperators,
    Jacobians,
    LinkMotion,
    LinkPoses,
    MassMatrixSteps,
    NewtonEulerBlocks,
    RheonomicTrajectory,
    State,
    SystemMomentum,
    SystemMomentumRate,
    Topology,
    Trajectory,
)
from dyn_service.api.spec import QUERIES, Option, Query, Spec, query

if TYPE_CHECKING:
    from dyn_service.model.configuration import Configuration

__all__ = [
    "DEFAULT_GRAVITY",
    "QUERIES",
    "Array",
    "ConstraintForces",
    "EffortFunction",
    "LinkPoses",
    "Integrator",
    "Method",
    "Option",
    "Payload",
    "Query",
    "RobotQueries",
    "Spec",
    "Wrench",
    "WrenchFunction",
]

DEFAULT_GRAVITY = (0.0, 0.0, -9.81)
"""m/s^2, world axes: what `gravity=None` means, here and on the wire."""


@dataclass(frozen=True, eq=False)
class Wrench:
    """A torque and a force on a link, from outside the robot.

    link: the link it acts on. torque: (..., 3) N m. force: (..., 3) N. point: (..., 3) m, where the force acts, in the
    link's frame. frame: the axes in which torque and force are given: `world`, or the name of any link.
    """

    link: str
    torque: ArrayLike = (0.0, 0.0, 0.0)
    force: ArrayLike = (0.0, 0.0, 0.0)
    point: ArrayLike = (0.0, 0.0, 0.0)
    frame: str = "world"


@dataclass(frozen=True, eq=False)
class Payload:
    """A body that a link carries, as if it were welded to it.

    link: the link's name. mass: kg, more than 0. com: (3,) m, its centre of mass in the link's frame. inertia: (3, 3)
    kg m^2, about its centre of mass in the link's axes; zeros are a point mass.
    """

    link: str
    mass: float
    com: ArrayLike = (0.0, 0.0, 0.0)
    inertia: ArrayLike = ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))


Integrator = Literal["rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint", "adaptive"]
"""How `simulate` steps."""

Method = Literal["articulated", "mass_matrix"]
"""Which solution of the equation of motion: O(N), (19b), (P.5b), or through the mass matrix, (19a), (P.5a)."""

Position = Annotated[ArrayLike, Spec(("nq",), "rad | m", "joint positions", kind="position")]
Velocity = Annotated[ArrayLike, Spec(("nv",), "rad/s | m/s", "joint velocities", kind="velocity")]
Acceleration = Annotated[ArrayLike, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", kind="acceleration")]
Effort = Annotated[
    ArrayLike, Spec(("nv",), "N m | N", "joint efforts: torques, forces at prismatic joints", kind="effort")
]
Momentum = Annotated[ArrayLike, Spec(("nv",), "N m s | N s", "generalised momenta", kind="momentum")]
Step = Annotated[ArrayLike, Spec((1,), "s", "length of the step", scalar=True, kind="duration")]
Gravity = Annotated[
    ArrayLike | None, Spec((3,), "m/s^2", "acceleration of gravity, world axes; None is (0, 0, -9.81)", kind="gravity")
]
Wrenches = Annotated[
    Wrench | Sequence[Wrench] | None,
    Spec(("nb", 6), "N m, N", "external wrenches on links, see `Wrench`", kind="wrenches"),
]
PositionGain = Annotated[
    ArrayLike, Spec(("nv",), "1/s^2", "position gain, a number or one per entry of v", scalar=True, kind="gain")
]
VelocityGain = Annotated[
    ArrayLike, Spec(("nv",), "1/s", "velocity gain, a number or one per entry of v", scalar=True, kind="gain")
]

PositionResult = Annotated[Array, Spec(("nq",), "rad | m", "joint positions", name="q", kind="position")]
EffortResult = Annotated[Array, Spec(("nv",), "N m | N", "joint efforts", name="tau", kind="effort")]
AccelerationResult = Annotated[
    Array, Spec(("nv",), "rad/s^2 | m/s^2", "joint accelerations", name="a", kind="acceleration")
]
MassMatrixResult = Annotated[
    Array, Spec(("nv", "nv"), "kg m^2 | kg m | kg", "symmetric, positive definite", name="mass_matrix", kind="effort")
]
ForcesResult = Annotated[Array, Spec(("nv",), "N m | N", "generalised forces", name="forces", kind="effort")]
VelocityResult = Annotated[Array, Spec(("nv",), "rad/s | m/s", "joint velocities", name="v", kind="velocity")]
MomentumResult = Annotated[Array, Spec(("nv",), "N m s | N s", "generalised momenta", name="p", kind="momentum")]
MomentumRateResult = Annotated[
    Array, Spec(("nv",), "N m | N", "rates of the generalised momenta", name="p_dot", kind="effort")
]


EffortFunction = Callable[[float, Array, Array], ArrayLike]
"""Efforts as a function of time and state: tau (..., nv) at t (s), q, v."""

WrenchFunction = Callable[[float, Array, Array], Wrench | Sequence[Wrench] | None]
"""External wrenches as a function of time and state: at t (s), q, v."""


class RobotQueries(ABC):
    """The questions a robot answers, in this process (`Robot`) or over a socket (`RemoteRobot`): the same methods."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The robot's name."""

    @property
    @abstractmethod
    def joint_names(self) -> tuple[str, ...]:
        """The movable joints, in the order of `q`, `v`, `tau`."""

    @property
    @abstractmethod
    def configuration(self) -> Configuration:
        """Where the joints' entries stand in q and v, and how positions move: `integrate`, `difference`, `neutral`."""

    @property
    @abstractmethod
    def link_names(self) -> tuple[str, ...]:
        """Every link, parent before child."""

    @property
    @abstractmethod
    def nq(self) -> int:
        """Length of `q`."""

    @property
    @abstractmethod
    def nv(self) -> int:
        """Length of `v`, `a`, `tau`."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Changes whenever anything that an answer depends on changes."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what the robot holds open: the socket of a remote robot, nothing for one in this process."""

    def constraint_basis(self, joint: str) -> Array:
        """Directions in which a joint carries load, Newton-Euler (20): (6, 5) in joint axes, (6, 6) for a fixed joint.

        `basis.T @ wrench` are the components of a joint's wrench along them.

        Raises:
            NotFoundError: There is no joint of that name.
        """
        return self.constraint_bases(joints=[joint]).of(joint)

    @abstractmethod
    def _evaluate(self, row: Query, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row's outputs, by name."""

    @abstractmethod
    def verify(self, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None) -> dict[str, Array]:
        """How far the formulations are apart at a state: relative residuals by name, (...,) each.

        `dyn_service.reference.verification` lists the names and what each compares. Rounding is 1e-16 to 1e-12.
        """

    @abstractmethod
    def simulate(
        self,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction | None = None,
        *,
        dt: float,
        steps: int,
        method: Method = "articulated",
        integrator: Integrator = "rk4",
        gravity: ArrayLike | None = None,
        wrenches: Wrench | Sequence[Wrench] | WrenchFunction | None = None,
        payload: Payload | None = None,
        every: int = 1,
        p0: ArrayLike | None = None,
        first_step: int = 0,
        progress: Callable[[float], None] | None = None,
    ) -> Trajectory:
        """The motion from `q0`, `v0` under the efforts `tau`, on a grid of `steps` steps of `dt`.

        Args:
            q0: (..., nq) first positions; leading axes are simulated together.
            v0: (..., nv) first velocities.
            tau: Efforts, held through each step: None (none), (nv,) constant, (..., steps, nv) samples, or a function
                of (t, q, v) at the step's beginning. `adaptive` asks a function at every stage instead.
            dt: s, of a step, and of the output grid for `adaptive`.
            steps: How many; those after the last one that is recorded are not made.
            method: Which solution of the equation of motion.
            integrator: "rk4", "semi_implicit_euler" and "explicit_euler" step q and v, "implicit_midpoint" q and p;
                "adaptive" chooses its steps.
            gravity: (3,) m/s^2, world axes; None is the default.
            wrenches: External wrenches, held through each step in the axes of their `frame`: a `Wrench` or several,
                whose torque, force and point are (3,) constant or (..., steps, 3) samples, or a function of (t, q, v)
                that gives such with (..., 3), asked as a function for `tau` is.
            payload: A body that a link carries through the motion.
            every: Record every so many steps; the first state and these are returned.
            p0: (..., nv) first momenta, in place of those of `v0`, for "implicit_midpoint".
            first_step: The number of the first step, where this goes on with a longer motion: times are those of the
                whole. From a record's q, v (and p) a motion goes on, to the last bit, as if it had not ended there.
            progress: Called now and then with the share that is done.

        Returns:
            `steps // every + 1` states; with "implicit_midpoint" the momenta too.

        Raises:
            FailedPreconditionError: The state is no longer finite; names the first such step, its time and the joint.
                Or an implicit midpoint is not found.
            InvalidArgumentError: An argument of the wrong shape or value; `path` names it.
            NotFoundError: A wrench's or the payload's link does not exist.
        """

    @abstractmethod
    def simulate_rheonomic(
        self,
        prescribed: GivenMotion,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction | None = None,
        *,
        dt: float,
        steps: int,
        **options: Any,
    ) -> RheonomicTrajectory:
        """The motion of the free joints while the prescribed ones do as given: `dyn_service.sim.sampled` says all."""

    @query(
        equation="Newton-Euler (7), (13), (18a); body frames: Newton/Euler recursion",
        kernel="newton_euler.inverse_dynamics",
    )
    def inverse_dynamics(
        self, q: Position, v: Velocity, a: Acceleration, *, gravity: Gravity = None, wrenches: Wrenches = None
    ) -> EffortResult:
        """Joint efforts that produce the acceleration `a` at the state `q`, `v`.

        tau = M(q) a + C(q, v) v + g(q) - sum_B J_B(q)^T F_B
        """
        raise NotImplementedError

    @query(
        equation="Newton-Euler (19b); with method='mass_matrix' (19a)",
        kernel={"articulated": "articulated.forward_dynamics", "mass_matrix": "mass_matrix.forward_dynamics"},
        inverts=True,
    )
    def forward_dynamics(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        method: Literal["articulated", "mass_matrix"] = "articulated",
    ) -> AccelerationResult:
        """Joint accelerations that the efforts `tau` produce at the state `q`, `v`.

            a = M(q)^-1 (tau - C(q, v) v - g(q) + sum_B J_B(q)^T F_B)

        `method`: "articulated" is O(N), (19b); "mass_matrix" assembles and factors M, (19a).
        """
        raise NotImplementedError

    @query(equation="Newton-Euler (16), (18c)", kernel="mass_matrix.mass_matrix")
    def mass_matrix(self, q: Position) -> MassMatrixResult:
        """Mass matrix M(q) of the system: kinetic energy is v^T M v / 2."""
        raise NotImplementedError

    @query(equation="Newton-Euler (17), (18b), without external wrenches", kernel="newton_euler.bias_forces")
    def bias_forces(self, q: Position, v: Velocity, *, gravity: Gravity = None) -> ForcesResult:
        """Joint efforts that hold zero acceleration at the state `q`, `v`: C(q, v) v + g(q)."""
        raise NotImplementedError

    @query(equation="Newton-Euler (18b) at rest, without external wrenches", kernel="newton_euler.gravity_forces")
    def gravity_forces(self, q: Position, *, gravity: Gravity = None) -> ForcesResult:
        """Joint efforts that hold the robot still at `q`: g(q)."""
        raise NotImplementedError

    @query(
        equation="Newton-Euler (15), (18a), (20)", kernel="constraint.constraint_forces", bodies="links", inverts=True
    )
    def constraint_forces(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        joints: Sequence[str] | None = None,
        frame: Literal["joint", "world"] = "joint",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
    ) -> ConstraintForces:
        """Wrench that the parent exerts on the child at each joint's origin, while the efforts `tau` act.

        `joints` selects rows by name, in that order; None is every URDF joint, fixed ones too. `frame` is the axes of
        the wrenches: "joint" (the child link's axes, which in URDF are the joint's) or "world".
        """
        raise NotImplementedError

    @query(equation="Newton-Euler (20)", kernel="constraint.bases", control=False)
    def constraint_bases(self, *, joints: Sequence[str] | None = None) -> ConstraintBases:
        """Directions in which each joint carries load: torques, then forces, in joint axes.

        `joints` selects rows by name, in that order; None is every URDF joint, fixed ones too.
        """
        raise NotImplementedError

    @query(
        equation="Newton-Euler (18) with q-ddot = a_ref + kd (v_ref - v) + kp (q_ref - q)",
        kernel="newton_euler.computed_torque",
    )
    def computed_torque(
        self,
        q: Position,
        v: Velocity,
        q_ref: Position,
        v_ref: Velocity,
        a_ref: Acceleration,
        *,
        kp: PositionGain,
        kd: VelocityGain,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
    ) -> EffortResult:
        """Joint efforts that make the tracking error obey e-ddot + kd e-dot + kp e = 0."""
        raise NotImplementedError

    @query(
        equation="forward kinematics: R_WL and p_WL from parent to child",
        kernel="kinematics.link_poses",
        bodies="links",
    )
    def link_poses(self, q: Position) -> LinkPoses:
        """Orientation and position of every link in the world."""
        raise NotImplementedError

    @query(
        equation="Newton-Euler (4)-(8), (13), (15)", kernel="newton_euler.link_motion", bodies="links", control=False
    )
    def link_motion(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        frame: Literal["body", "world"] = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
    ) -> LinkMotion:
        """Velocity, acceleration and inboard load of every link.

        `frame` is the axes: "body" (the link's own, which in URDF are its inboard joint's) or "world".
        """
        raise NotImplementedError

    @query(
        equation="Newton-Euler (19b)", kernel="articulated.branch_inertias", bodies="links", control=False, inverts=True
    )
    def branch_inertias(self, q: Position) -> BranchInertias:
        """What the O(N) solution (19b) is made of: J_i, R_i, K_i, beta_i at every movable joint."""
        raise NotImplementedError

    @query(equation="Newton-Euler Def. 1, 2, Figs. 2, 3", kernel="topology.topology", control=False)
    def topology(self, *, bodies: Literal["moving", "links"] = "moving") -> Topology:
        """Parents, ancestors, children and branches of the bodies, and the nilpotency of Phi.

        `bodies`: "moving" is one body per movable joint, with all that is fixed to it: the document's; "links" is one
        per URDF link.
        """
        raise NotImplementedError

    @query(
        equation="Newton-Euler Def. 1, (P3); D of (4), beta of (19b)",
        kernel={"D": "operators.influence_operators", "beta": "operators.yielding_operators"},
        bodies="moving",
        control=False,
        inverts=("beta",),
    )
    def influence_operators(
        self, q: Position, *, operator: Literal["D", "beta"] = "D", frame: Literal["body", "world"] = "body"
    ) -> InfluenceOperators:
        """Phi_A and Psi_A = (e - Phi_A)^-1 as 6x6 blocks with their places.

        `operator` is A: "D" is the influence of a parent on its child, (4); "beta" that on a child whose joint yields,
        (19b). `frame` is the axes: "body" (each body's own: a block takes its column's axes to its row's) or "world".
        """
        raise NotImplementedError

    @query(
        equation="Newton-Euler (1)-(17): D, G, S, A, A-bar, M, M-bar, B, B-bar",
        kernel="operators.newton_euler_blocks",
        bodies="moving",
        control=False,
    )
    def newton_euler_blocks(
        self, q: Position, v: Velocity, *, frame: Literal["body", "world"] = "body"
    ) -> NewtonEulerBlocks:
        """The blocks of which the equations of motion are made, one per moving body."""
        raise NotImplementedError

    @query(
        equation="Newton-Euler (18c) by 'Computing System Mass Matrix', steps 1 to 3",
        kernel="operators.mass_matrix_steps",
        bodies="moving",
        control=False,
    )
    def mass_matrix_steps(self, q: Position, *, frame: Literal["body", "world"] = "body") -> MassMatrixSteps:
        """The mass matrix with what it is made of on the way: J = Psi_D G, Q = M J, then J^T Q."""
        raise NotImplementedError

    @query(equation="Hamilton (9), (P.2), (P.3a), (P.4)", kernel="hamilton.momentum", control=False)
    def momentum(self, q: Position, v: Velocity) -> MomentumResult:
        """Generalised momenta p = M(q) v."""
        raise NotImplementedError

    @query(
        equation="Hamilton (10), (P.5b); with method='mass_matrix' (P.5a)",
        kernel={
            "articulated": "hamilton.velocity_from_momentum",
            "mass_matrix": "hamilton.velocity_through_mass_matrix",
        },
        control=False,
        inverts=True,
    )
    def velocity_from_momentum(
        self, q: Position, p: Momentum, *, method: Literal["articulated", "mass_matrix"] = "articulated"
    ) -> VelocityResult:
        """Joint velocities v = M(q)^-1 p. `method`: "articulated" is O(N), (P.5b); "mass_matrix" factors M, (P.5a)."""
        raise NotImplementedError

    @query(equation="Hamilton (2), (P.1e)-(P.1g), (P.3b)", kernel="hamilton.momentum_rate", control=False, inverts=True)
    def momentum_rate(
        self, q: Position, p: Momentum, tau: Effort, *, gravity: Gravity = None, wrenches: Wrenches = None
    ) -> MomentumRateResult:
        """Rates of the generalised momenta under the efforts `tau`."""
        raise NotImplementedError

    @query(equation="Hamilton (P.1a)-(P.1c), (P.2)", kernel="hamilton.system_momentum", bodies="links", control=False)
    def system_momentum(self, q: Position, v: Velocity, *, frame: Literal["body", "world"] = "body") -> SystemMomentum:
        """Momentum, mass and centre of mass of every branch: a link and all that hangs on it."""
        raise NotImplementedError

    @query(equation="Hamilton (P.1d)-(P.1g)", kernel="hamilton.system_momentum_rate", bodies="links", control=False)
    def system_momentum_rate(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        frame: Literal["body", "world"] = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
    ) -> SystemMomentumRate:
        """How every branch's momentum and centre of mass change, and the loads that make them change."""
        raise NotImplementedError

    @query(equation="Hamilton (4), (6), (7)", kernel="hamilton.energy", bodies="links", control=False)
    def energy(self, q: Position, v: Velocity, *, gravity: Gravity = None) -> Energy:
        """Kinetic and potential energy, and their sum."""
        raise NotImplementedError

    @query(equation="Hamilton (3), (11)", kernel="hamilton.hamiltonian", bodies="links", control=False, inverts=True)
    def hamiltonian(self, q: Position, p: Momentum, *, gravity: Gravity = None) -> Hamiltonian:
        """The Hamiltonian H(q, p) and its kinetic and potential parts."""
        raise NotImplementedError

    @query(
        equation="Projected Newton-Euler 5.4-5.6; matrix formalism M q-ddot = C + G + Q + E",
        kernel="projected.terms",
        control=False,
    )
    def equation_terms(
        self, q: Position, v: Velocity, tau: Effort, *, gravity: Gravity = None, wrenches: Wrenches = None
    ) -> EquationTerms:
        """The equation of motion term by term, M a = C + G + Q + E, summed over bodies by their Jacobians."""
        raise NotImplementedError

    @query(equation="Projected Newton-Euler 5.2, 5.6", kernel="projected.jacobians", bodies="links", control=False)
    def jacobians(self, q: Position) -> Jacobians:
        """Jacobians of every link: of its centre of mass, J_S, and of its rotation, J_R, in link axes."""
        raise NotImplementedError

    @query(equation="Projected Newton-Euler 5.6", kernel="projected.bias_accelerations", bodies="links", control=False)
    def bias_accelerations(self, q: Position, v: Velocity) -> BiasAccelerations:
        """What is left of every link's accelerations at zero joint accelerations, in link axes."""
        raise NotImplementedError

    @query(
        equation="Newton/Euler recursion: omega, omega-dot, v-dot outward; f, eta inward",
        kernel="body_frame.recursion",
        bodies="links",
        control=False,
    )
    def body_recursion(
        self, q: Position, v: Velocity, a: Acceleration, *, gravity: Gravity = None, wrenches: Wrenches = None
    ) -> BodyRecursion:
        """Inverse dynamics in body frames with its intermediate results, link by link."""
        raise NotImplementedError

    @query(
        equation="Hamilton (1), (2): (P.5b) and (P.3b) together; with method='mass_matrix' (P.5a)",
        kernel={"articulated": "hamilton.flow", "mass_matrix": "hamilton.flow_through_mass_matrix"},
        control=False,
        inverts=True,
    )
    def hamiltonian_flow(
        self,
        q: Position,
        p: Momentum,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        method: Literal["articulated", "mass_matrix"] = "articulated",
    ) -> HamiltonianFlow:
        """Hamilton's equations: the rates of q and p. `method` says how v is found from p."""
        raise NotImplementedError

    @query(equation="d/dt of Hamilton (P.4), by differentiation", kernel="hamilton.momentum_derivative", control=False)
    def momentum_derivative(self, q: Position, v: Velocity, a: Acceleration) -> MomentumRateResult:
        """d/dt (M(q) v) along the motion: M a + M-dot v."""
        raise NotImplementedError

    @query(
        equation="q-dot = N(q) v, integrated: each joint's exponential map",
        kernel="kinematics.integrate",
        control=False,
    )
    def integrate(self, q: Position, v: Velocity, dt: Step) -> PositionResult:
        """The position after moving for `dt` with constant joint velocities: q + dt v where positions add up."""
        raise NotImplementedError

    @query(equation="the inverse of `integrate`", kernel="kinematics.difference", control=False)
    def difference(self, q: Position, q_to: Position) -> VelocityResult:
        """The constant joint velocities that move `q` to `q_to` in 1 s, turns without a range by the shorter way."""
        raise NotImplementedError

    @query(equation="each body in its joint's frame", kernel="configurations.neutral", control=False)
    def neutral(self) -> PositionResult:
        """The position at which every body stands in its joint's frame: zeros, and quaternions (0, 0, 0, 1)."""
        raise NotImplementedError

    @query(equation="uniform over what each joint can do", kernel="configurations.random_configuration", control=False)
    def random_configuration(self, *, seed: int = 0) -> PositionResult:
        """A position at random, within the limits of each joint; the same for the same seed.

        Where there are no limits: angles within pi rad, lengths within 1 m of zero, any rotation.
        """
        raise NotImplementedError

    @query(
        equation="Newton-Euler, O(N) solution of EOM, Steps 1 and 2",
        kernel={
            "rk4": "integration.rk4",
            "semi_implicit_euler": "integration.semi_implicit_euler",
            "explicit_euler": "integration.explicit_euler",
        },
        control=False,
        inverts=True,
    )
    def step(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        dt: Step,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        integrator: Literal["rk4", "semi_implicit_euler", "explicit_euler"] = "rk4",
    ) -> State:
        """The state one step later, the efforts held through it, and the wrenches in the axes of their links."""
        raise NotImplementedError
