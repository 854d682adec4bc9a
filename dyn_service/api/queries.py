"""The table of queries: all questions about a robot, each declared once.

Each method of `RobotQueries` and `GaitQueries` is one row: its parameters are the inputs (shape, unit, frame in the
annotation) and the options, its return annotation names the outputs, its docstring describes the result. `@query` adds
the source equation and the functions under `dynamics/` that implement it; `@computation` declares a long computation.
The body passes the arguments to `_ask` or `_compute` of a `Robot`, which computes the answer, or of a remote robot,
which requests it. The server's dispatch, `dyn call`, the reference page and many tests are derived from these rows.

Shapes are core shapes: every input may have further leading axes, which broadcast as in NumPy. The symbols are those of
`api.description.Sizes`, and n (segments), K (times), nf, np (free and prescribed joints). The result of a query without
inputs is the same at every state.
Gravity is an acceleration in world axes, m/s^2. The world frame is the frame of the URDF's root link.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from dyn_service.api.arguments import (
    DEFAULT_FRICTION,
    DEFAULT_GRAVITY,
    DEFAULT_STEP,
    STOP_DAMPING,
    Acceleration,
    AccelerationResult,
    ActingWrenches,
    ActiveContacts,
    Axes,
    ClosedPositionResult,
    Contact,
    Contacts,
    Direction,
    Directions,
    Distal,
    Effort,
    EffortFunction,
    EffortLimits,
    EffortResult,
    Every,
    ExternalForce,
    ExternalMoment,
    ExternalPoint,
    FirstMomentum,
    FirstPosition,
    FirstStep,
    FirstTime,
    FirstVelocity,
    FixedJoints,
    ForcesResult,
    FreeEfforts,
    FreePosition,
    FreeVelocity,
    GivenMotion,
    Gravity,
    GroundForce,
    GroundMoment,
    IndependentJoints,
    Inertial,
    Integrator,
    JointAxes,
    JointNumbers,
    JointRows,
    Least,
    LinkRows,
    LoopErrorResult,
    MassMatrixResult,
    Method,
    Momentum,
    MomentumRateResult,
    MomentumResult,
    Motions,
    Out,
    Outs,
    Overlay,
    OverlayInput,
    Passive,
    Payload,
    PayloadInput,
    Point,
    PointAxes,
    PointLink,
    Position,
    PositionGain,
    PositionLimits,
    PositionResult,
    Progress,
    Proximal,
    ResidualsResult,
    SegmentAcceleration,
    SegmentGravity,
    SegmentInertia,
    SegmentMass,
    SegmentOmega,
    SegmentOmegaDot,
    SegmentRotation,
    SensorPosition,
    SensorRotation,
    SettleTime,
    SimulationSteps,
    Step,
    StepCount,
    StepLength,
    StopDamping,
    StopTime,
    Undriven,
    Velocity,
    VelocityGain,
    VelocityLimits,
    VelocityResult,
    Weights,
    Workers,
    Wrench,
    Wrenches,
    WrenchFunction,
)
from dyn_service.api.closed_motion import ClosedMotion
from dyn_service.api.laws import ComputedTorqueLaw, Efforts, PDLaw, StateFeedbackLaw
from dyn_service.api.lists import call_of
from dyn_service.api.outputs import checked_workers, fill, output_arrays
from dyn_service.api.results import (
    Array,
    BiasAccelerations,
    BodyRecursion,
    BranchInertias,
    CentroidalDerivatives,
    ConstraintBases,
    ConstraintForceCauses,
    ConstraintForces,
    ContactDynamics,
    CoriolisMatrix,
    DynamicParameters,
    Energy,
    EnergyDerivatives,
    EnergyRegressor,
    EquationTerms,
    ForceTorque,
    ForwardDynamicsDerivatives,
    ForwardDynamicsHessian,
    GroundReactions,
    Hamiltonian,
    HamiltonianFlow,
    ImuReading,
    IndependentMotion,
    InfluenceOperators,
    InverseDynamicsDerivatives,
    InverseDynamicsHessian,
    InverseDynamicsRegressor,
    Jacobians,
    JointWrenchDerivatives,
    JointWrenchRegressor,
    LinkMotion,
    LinkPoses,
    MassMatrixSteps,
    MomentumDerivatives,
    MomentumRegressor,
    NewtonEulerBlocks,
    OperationalSpace,
    PassiveForces,
    PointMotion,
    PointMotionDerivatives,
    RheonomicTrajectory,
    SegmentLoads,
    SegmentMatrices,
    State,
    StepDerivatives,
    SystemMomentum,
    SystemMomentumRate,
    Topology,
    Trajectory,
)
from dyn_service.api.robot_properties import RobotProperties
from dyn_service.api.spec import (
    COMPUTATIONS,
    PASSIVE_PARTS,
    QUERIES,
    Computation,
    Option,
    Query,
    Row,
    Spec,
    computation,
    query,
)

__all__ = [
    "DEFAULT_FRICTION",
    "DEFAULT_GRAVITY",
    "COMPUTATIONS",
    "QUERIES",
    "STOP_DAMPING",
    "Array",
    "Computation",
    "ComputedTorqueLaw",
    "ConstraintForces",
    "Contact",
    "EffortFunction",
    "GaitQueries",
    "GivenMotion",
    "Inertial",
    "JointNumbers",
    "LinkPoses",
    "Integrator",
    "Method",
    "Option",
    "Overlay",
    "PDLaw",
    "Payload",
    "Query",
    "RobotQueries",
    "Row",
    "Spec",
    "StateFeedbackLaw",
    "Wrench",
    "WrenchFunction",
]


class TheoryQueries:
    """Queries of theory: forms of the equations for study and comparison, such as operators, blocks and momenta."""

    __slots__ = ()


theory = partial(query, theory=True)


class RobotQueries(TheoryQueries, RobotProperties, ABC):
    """The queries of a robot, in this process (`Robot`) or over a socket (`RemoteRobot`): the same methods.

    Queries write their result into `out`, and compute large batches in up to `workers` threads; see `api.outputs`.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the socket of a remote robot; does nothing for a robot in this process."""

    # Simulations call it on any robot; the server of a remote one checks the states that it gets.
    def check_inertia(self, query: str, q: Array, free: Array | None = None) -> None:
        """Does nothing; a robot in this process refuses states at which M(q) is not positive definite."""

    @property
    def closed_motion(self) -> ClosedMotion | None:
        """The motions that keep loops closed, of a robot in this process; None for a robot without loops."""
        return None

    def constraint_basis(self, joint: str) -> Array:
        """Returns the directions in which a joint carries load, Newton-Euler (20): (6, 5), (6, 6) for a fixed joint.

        Joint axes; `basis.T @ wrench` are the components of a joint's wrench along them.

        Raises:
            NotFoundError: There is no joint of that name.
        """
        return self.constraint_bases(joints=[joint]).of(joint)

    def _ask(
        self,
        query: str,
        required: tuple[Any, ...],
        optional: tuple[Any, ...] = (),
        out: Any = None,
        workers: Any = None,
    ) -> Any:
        """Answers a query.

        Args:
            query: Its name in `QUERIES`.
            required: The required inputs, in the order of the method's parameters.
            optional: The optional inputs and the options, in that order.
            out: See `api.outputs`, as for `workers`.
            workers: The largest number of threads.
        """
        row = QUERIES[query]
        if out is None and workers is None:
            return self._answer(row, required, optional)
        arrays = output_arrays(row, out)
        checked_workers(1 if workers is None else workers)
        return self._filled(row, self._answer(row, required, optional), arrays)

    def _filled(self, row: Query, answer: Any, arrays: tuple[Array | None, ...]) -> Any:
        return fill(row, answer, arrays)

    @abstractmethod
    def _answer(self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
        """Answers a row of `QUERIES`, or a list of them; see `_ask`."""

    @abstractmethod
    def _compute(self, row: str, **arguments: Any) -> Any:
        """Answers a row of `COMPUTATIONS`."""

    def evaluate(self, queries: str | Sequence[str], /, **arguments: Any) -> dict[str, Any]:
        """Returns the results of several queries at one state or batch, by query: one kernel, one request.

            terms = robot.evaluate(["mass_matrix", "bias_forces", "point_motion"], q=q, v=v, link="hand")
            terms["mass_matrix"], terms["point_motion"].jacobian

        The kernel computes what the queries have in common once, and is made when the list is first used; robots that
        need loops (docs/adr/0043) use the kernels of the queries one after the other. Each result has the type and
        shape of the plain call and equals it within rounding, in any order of the list.

        Args:
            queries: Names of queries of this class with inputs, each once, or the name of a list: "whole_body_terms"
                is `mass_matrix`, `bias_forces` and `point_motion`.
            **arguments: The inputs of all queries by name; an input that several have is given once. `passive` and,
                where all queries that have an option for their method have the same one, that option; other options
                have their defaults. A query ignores inputs that it does not have, such as `wrenches`.

        Raises:
            UnimplementedError: There is no such query.
            InvalidArgumentError: The list or an argument is invalid, or two queries cannot be computed together.
            ResourceExhaustedError: The robot has kernels of too many lists, or this one needs too many operations.
        """
        row, required, optional = call_of(queries, arguments)
        result = self._answer(row, required, optional)
        return result if row.parts else {row.name: result}

    @query(
        equation="Newton-Euler (7), (13), (18a); body frames: Newton/Euler recursion",
        kernel="newton_euler.inverse_dynamics",
        passive=PASSIVE_PARTS,
    )
    def inverse_dynamics(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> EffortResult:
        """Joint efforts that produce the acceleration `a` at the state `q`, `v`.

            tau = M(q) a + C(q, v) v + g(q) + p(q, v) - sum_B J_B(q)^T F_B

        p are the passive joint forces: damping, friction and springs. M includes the joints' armature. See
        `passive_forces` and `dyn_service.dynamics.passive`. With `passive=False`, as in every query with this option,
        passive forces and armature are zero.
        """
        return self._ask("inverse_dynamics", (q, v, a), (gravity, wrenches, overlay, passive), out, workers)

    @query(
        equation="Newton-Euler (19b); with method='mass_matrix' (19a)",
        kernel={"articulated": "articulated.forward_dynamics", "mass_matrix": "mass_matrix.forward_dynamics"},
        inverts_mass_matrix=True,
        cost_exponent={"articulated": 1, "mass_matrix": 3},
        passive=PASSIVE_PARTS,
    )
    def forward_dynamics(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        method: Method = "articulated",
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> AccelerationResult:
        """Joint accelerations that the efforts `tau` produce at the state `q`, `v`.

            a = M(q)^-1 (tau - C(q, v) v - g(q) - p(q, v) + sum_B J_B(q)^T F_B)

        `method`: "articulated" is O(N), (19b); "mass_matrix" assembles and factors M, (19a). For robots with mimic
        joints both are (19a).
        """
        return self._ask("forward_dynamics", (q, v, tau), (gravity, wrenches, method, overlay, passive), out, workers)

    @query(equation="Newton-Euler (16), (18c)", kernel="mass_matrix.mass_matrix", passive=("armature",))
    def mass_matrix(
        self,
        q: Position,
        *,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> MassMatrixResult:
        """Mass matrix M(q) of the system: kinetic energy is v^T M v / 2."""
        return self._ask("mass_matrix", (q,), (overlay, passive), out, workers)

    @query(
        equation="Newton-Euler (17), (18b), without external wrenches",
        kernel="newton_euler.bias_forces",
        passive=("damping", "friction", "springs"),
    )
    def bias_forces(
        self,
        q: Position,
        v: Velocity,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> ForcesResult:
        """Joint efforts that hold zero acceleration at the state `q`, `v`: C(q, v) v + g(q) + p(q, v)."""
        return self._ask("bias_forces", (q, v), (gravity, overlay, passive), out, workers)

    @query(
        equation="Newton-Euler (18b) at rest, without external wrenches",
        kernel="newton_euler.gravity_forces",
        passive=("springs",),
    )
    def gravity_forces(
        self,
        q: Position,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> ForcesResult:
        """Joint efforts that hold the robot at rest at `q`: g(q) and the forces of the joints' springs."""
        return self._ask("gravity_forces", (q,), (gravity, overlay, passive), out, workers)

    # Bodies are links, because fixed joints carry loads too.
    @query(
        equation="Newton-Euler (15), (18a), (20)",
        kernel="constraint.constraint_forces",
        bodies="links",
        inverts_mass_matrix=True,
        passive=PASSIVE_PARTS,
    )
    def constraint_forces(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        joints: JointRows = None,
        frame: JointAxes = "joint",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[ConstraintForces] = None,
        workers: Workers = None,
    ) -> ConstraintForces:
        """Wrench that the parent exerts on the child at each joint's origin, while the efforts `tau` act.

        `joints` selects rows by name, in that order; None: every URDF joint, including fixed ones. `frame` are the axes
        of the wrenches: "joint" (the child link's axes, which in URDF are the joint's) or "world". `actuation` excludes
        the part of the efforts that accelerates the armature and overcomes damping, friction and springs.
        """
        return self._ask(
            "constraint_forces", (q, v, tau), (joints, frame, gravity, wrenches, overlay, passive), out, workers
        )

    @query(
        equation="Newton-Euler (13), about the sensor's origin and in its axes",
        kernel={"parent_on_child": "sensors.force_torque", "child_on_parent": "sensors.reaction"},
        bodies="links",
        control=False,
    )
    def force_torque(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        joints: JointRows = None,
        xyz: SensorPosition = None,
        rpy: SensorRotation = None,
        direction: Direction = "parent_on_child",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        out: Outs[ForceTorque] = None,
        workers: Workers = None,
    ) -> ForceTorque:
        """Reading of an ideal force/torque sensor in each joint, including fixed ones, at the acceleration `a`.

        The sensor is at `xyz`, `rpy` in the child link's frame, which in URDF is the joint's. It measures the weight
        and inertia of the child link and all links outward of it, and the wrenches on them.
        """
        return self._ask(
            "force_torque", (q, v, a), (joints, xyz, rpy, direction, gravity, wrenches, overlay), out, workers
        )

    @query(
        equation="Newton-Euler (4)-(7), of the sensor's origin, less gravity",
        kernel="sensors.imu",
        bodies="links",
        control=False,
    )
    def imu(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        links: LinkRows = None,
        xyz: SensorPosition = None,
        rpy: SensorRotation = None,
        gravity: Gravity = None,
        out: Outs[ImuReading] = None,
        workers: Workers = None,
    ) -> ImuReading:
        """Reading of an ideal inertial measurement unit on each link at the acceleration `a`.

        The unit is at `xyz`, `rpy` in the link's frame. Its accelerometer measures the acceleration minus gravity.
        """
        return self._ask("imu", (q, v, a), (links, xyz, rpy, gravity), out, workers)

    # Without a state, but a row like the others, so that it is on the wire and in the reference.
    @query(equation="Newton-Euler (20)", kernel="constraint.bases", control=False)
    def constraint_bases(self, *, joints: JointRows = None, out: Outs[ConstraintBases] = None) -> ConstraintBases:
        """Directions in which each joint carries load: torques, then forces, in joint axes.

        `joints` selects rows by name, in that order; None: every URDF joint, including fixed ones, then joints that
        close loops, in the axes of their frames on the child.
        """
        return self._ask("constraint_bases", (), (joints,), out)

    @query(
        equation="Newton-Euler (18) with q-ddot = a_ref + kd (v_ref - v) + kp (q_ref - q)",
        kernel="newton_euler.computed_torque",
        passive=PASSIVE_PARTS,
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
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> EffortResult:
        """Joint efforts that make the tracking error e = q_ref - q obey e-ddot + kd e-dot + kp e = 0.

        The error of a continuous joint is the shorter way round, from -pi to pi.
        """
        return self._ask(
            "computed_torque", (q, v, q_ref, v_ref, a_ref, kp, kd), (gravity, wrenches, overlay, passive), out, workers
        )

    @query(
        equation="forward kinematics: R_WL and p_WL from parent to child",
        kernel="kinematics.link_poses",
        bodies="links",
    )
    def link_poses(self, q: Position, *, out: Outs[LinkPoses] = None, workers: Workers = None) -> LinkPoses:
        """Orientation and position of every link in the world."""
        return self._ask("link_poses", (q,), (), out, workers)

    # The link is an input, not a choice of kernel: a task that changes its link must not wait for a compiler.
    @query(
        equation="Newton-Euler (4)-(8) and J = Psi_D G of one link, at a point",
        kernel={
            "world_aligned": "task_space.point_motion",
            "local": "task_space.point_motion_local",
            "world": "task_space.point_motion_world",
        },
        bodies="links",
        control=False,
        inertia=False,
    )
    def point_motion(
        self,
        q: Position,
        v: Velocity,
        link: PointLink,
        *,
        point: Point = None,
        frame: PointAxes = "world_aligned",
        overlay: OverlayInput = None,
        out: Outs[PointMotion] = None,
        workers: Workers = None,
    ) -> PointMotion:
        """Pose, velocity, Jacobian and acceleration bias of a link, or of a point fixed on it.

        Link and point are inputs: one kernel serves all of them, and leading axes select several in one call.
        """
        return self._ask("point_motion", (q, v, link), (point, frame, overlay), out, workers)

    # Omega_i follows from the factors of (19b), in O(N); so there is no answer where M has no inverse.
    @query(
        equation="Newton-Euler (19b): Omega_i = beta_i Omega_ip beta_i^T + G_i R_i^-1 G_i^T",
        kernel={
            "world_aligned": "task_space.operational_space",
            "local": "task_space.operational_space_local",
            "world": "task_space.operational_space_world",
        },
        bodies="links",
        control=False,
        inverts_mass_matrix=True,
        passive=("armature",),
    )
    def operational_space(
        self,
        q: Position,
        link: PointLink,
        *,
        point: Point = None,
        directions: Directions = None,
        frame: PointAxes = "world_aligned",
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[OperationalSpace] = None,
        workers: Workers = None,
    ) -> OperationalSpace:
        """Operational-space inertia of a link at a point fixed on it, and its inverse, in O(N).

        If the link cannot move in all of `directions`, as the hand of a planar arm, `inertia` is NaN; a server answers
        FAILED_PRECONDITION.
        """
        return self._ask("operational_space", (q, link), (point, directions, frame, overlay, passive), out, workers)

    @query(
        equation="Newton-Euler (4)-(8), (13), (15)", kernel="newton_euler.link_motion", bodies="links", control=False
    )
    def link_motion(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        frame: Axes = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        out: Outs[LinkMotion] = None,
        workers: Workers = None,
    ) -> LinkMotion:
        """Velocity, acceleration and inboard load of every link.

        `frame` are the axes: "body" (the link's own, which in URDF are its inboard joint's) or "world".
        """
        return self._ask("link_motion", (q, v, a), (frame, gravity, wrenches, overlay), out, workers)

    # The factors depend on the frames of the bodies, so these are the joints' own instead of the cheapest ones.
    @theory(
        equation="Newton-Euler (19b)",
        kernel="articulated.branch_inertias",
        bodies="moving",
        control=False,
        inverts_mass_matrix=True,
        rejects_mimic=True,
        passive=("armature",),
    )
    def branch_inertias(
        self,
        q: Position,
        *,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[BranchInertias] = None,
        workers: Workers = None,
    ) -> BranchInertias:
        """The factors of the O(N) solution (19b): J_i, R_i, K_i, beta_i at every movable joint.

        A body is a joint's link with all links fixed to it, as in `topology`, `newton_euler_blocks` and
        `influence_operators`. Robots with mimic joints have no such factors.
        """
        return self._ask("branch_inertias", (q,), (overlay, passive), out, workers)

    @theory(equation="Newton-Euler Def. 1, 2, Figs. 2, 3", kernel="structure.topology", control=False)
    def topology(self, *, bodies: Literal["moving", "links"] = "moving", out: Outs[Topology] = None) -> Topology:
        """Parents, ancestors, children and branches of the bodies, and the nilpotency of Phi.

        `bodies`: "moving" is one body per movable joint, with all links fixed to it, as in the document; "links" is one
        body per URDF link.
        """
        return self._ask("topology", (), (bodies,), out)

    @theory(
        equation="Newton-Euler Def. 1, (P3); D of (4), beta of (19b)",
        kernel={"D": "operators.influence_operators", "beta": "operators.yielding_operators"},
        bodies="moving",
        control=False,
        inverts_mass_matrix=("beta",),
        rejects_mimic=("beta",),
        passive={"D": (), "beta": ("armature",)},
        inertia=("beta",),
    )
    def influence_operators(
        self,
        q: Position,
        *,
        operator: Literal["D", "beta"] = "D",
        frame: Axes = "body",
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[InfluenceOperators] = None,
        workers: Workers = None,
    ) -> InfluenceOperators:
        """Phi_A and Psi_A = (e - Phi_A)^-1 as 6x6 blocks with their places.

        `operator` is A: "D" is the influence of a parent on its child, (4); "beta" the influence on a child whose joint
        is free to move, (19b), for robots without mimic joints. `frame` are the axes: "body" (each body's own: a block
        maps its column's axes to its row's) or "world".
        """
        return self._ask("influence_operators", (q,), (operator, frame, overlay, passive), out, workers)

    @theory(
        equation="Newton-Euler (1)-(17): D, G, S, A, A-bar, M, M-bar, B, B-bar, Y, F-bar",
        kernel="operators.newton_euler_blocks",
        bodies="moving",
        control=False,
    )
    def newton_euler_blocks(
        self,
        q: Position,
        v: Velocity,
        *,
        frame: Axes = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        out: Outs[NewtonEulerBlocks] = None,
        workers: Workers = None,
    ) -> NewtonEulerBlocks:
        """The blocks of the equations of motion, one per moving body.

        F-bar is the sum of the weight and the wrenches on a body at its centre of mass, with Y = S.
        """
        return self._ask("newton_euler_blocks", (q, v), (frame, gravity, wrenches, overlay), out, workers)

    @theory(
        equation="Newton-Euler (18c) by 'Computing System Mass Matrix', steps 1 to 3",
        kernel="operators.mass_matrix_steps",
        bodies="moving",
        control=False,
        passive=("armature",),
    )
    def mass_matrix_steps(
        self,
        q: Position,
        *,
        frame: Axes = "body",
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[MassMatrixSteps] = None,
        workers: Workers = None,
    ) -> MassMatrixSteps:
        """The mass matrix with its intermediate results: J = Psi_D G, Q = M J, then J^T Q."""
        return self._ask("mass_matrix_steps", (q,), (frame, overlay, passive), out, workers)

    @query(
        equation="Newton-Euler, 'spring or damper in f': p(q, v), see `dyn_service.dynamics.passive`",
        kernel="passive.passive_forces",
        control=False,
        inertia=False,
    )
    def passive_forces(
        self,
        q: Position,
        v: Velocity,
        *,
        overlay: OverlayInput = None,
        out: Outs[PassiveForces] = None,
        workers: Workers = None,
    ) -> PassiveForces:
        """Passive joint forces part by part, as efforts that actuators must add, with their energy and power."""
        return self._ask("passive_forces", (q, v), (overlay,), out, workers)

    @query(
        equation="Hamilton (9), (P.2), (P.3a), (P.4)", kernel="hamilton.momentum", control=False, passive=("armature",)
    )
    def momentum(
        self,
        q: Position,
        v: Velocity,
        *,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> MomentumResult:
        """Generalised momenta p = M(q) v."""
        return self._ask("momentum", (q, v), (overlay, passive), out, workers)

    @theory(
        equation="Hamilton (10), (P.5b); with method='mass_matrix' (P.5a)",
        kernel={
            "articulated": "hamilton.velocity_from_momentum",
            "mass_matrix": "hamilton.velocity_through_mass_matrix",
        },
        control=False,
        inverts_mass_matrix=True,
        cost_exponent={"articulated": 1, "mass_matrix": 3},
        passive=("armature",),
    )
    def velocity_from_momentum(
        self,
        q: Position,
        p: Momentum,
        *,
        method: Method = "articulated",
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> VelocityResult:
        """Joint velocities v = M(q)^-1 p. `method`: "articulated" is O(N), (P.5b); "mass_matrix" factors M, (P.5a).

        For robots with mimic joints both are (P.5a).
        """
        return self._ask("velocity_from_momentum", (q, p), (method, overlay, passive), out, workers)

    @theory(
        equation="Hamilton (2), (P.1e)-(P.1g), (P.3b)",
        kernel="hamilton.momentum_rate",
        control=False,
        inverts_mass_matrix=True,
        passive=PASSIVE_PARTS,
    )
    def momentum_rate(
        self,
        q: Position,
        p: Momentum,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> MomentumRateResult:
        """Rates of the generalised momenta under the efforts `tau`."""
        return self._ask("momentum_rate", (q, p, tau), (gravity, wrenches, overlay, passive), out, workers)

    @theory(equation="Hamilton (P.1a)-(P.1c), (P.2)", kernel="hamilton.system_momentum", bodies="links", control=False)
    def system_momentum(
        self,
        q: Position,
        v: Velocity,
        *,
        frame: Axes = "body",
        overlay: OverlayInput = None,
        out: Outs[SystemMomentum] = None,
        workers: Workers = None,
    ) -> SystemMomentum:
        """Momentum, mass and centre of mass of every branch: a link and all links outward of it."""
        return self._ask("system_momentum", (q, v), (frame, overlay), out, workers)

    @theory(equation="Hamilton (P.1d)-(P.1g)", kernel="hamilton.system_momentum_rate", bodies="links", control=False)
    def system_momentum_rate(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        frame: Axes = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        out: Outs[SystemMomentumRate] = None,
        workers: Workers = None,
    ) -> SystemMomentumRate:
        """Rates of every branch's momentum and centre of mass, and the loads that cause them."""
        return self._ask("system_momentum_rate", (q, v, a), (frame, gravity, wrenches, overlay), out, workers)

    @query(
        equation="Hamilton (4), (6), (7)",
        kernel="hamilton.energy",
        bodies="links",
        control=False,
        passive=("armature", "springs"),
    )
    def energy(
        self,
        q: Position,
        v: Velocity,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[Energy] = None,
        workers: Workers = None,
    ) -> Energy:
        """Kinetic and potential energy, their sum, and the Lagrangian; with the joints' armature and springs."""
        return self._ask("energy", (q, v), (gravity, overlay, passive), out, workers)

    @theory(
        equation="Hamilton (3), (11)",
        kernel="hamilton.hamiltonian",
        bodies="links",
        control=False,
        inverts_mass_matrix=True,
        passive=("armature", "springs"),
    )
    def hamiltonian(
        self,
        q: Position,
        p: Momentum,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[Hamiltonian] = None,
        workers: Workers = None,
    ) -> Hamiltonian:
        """The Hamiltonian H(q, p) and its kinetic and potential parts."""
        return self._ask("hamiltonian", (q, p), (gravity, overlay, passive), out, workers)

    @theory(
        equation="Projected Newton-Euler 5.4-5.6; matrix formalism M q-ddot = C + G + Q + E",
        kernel="projected.terms",
        control=False,
        cost_exponent=3,
        passive=PASSIVE_PARTS,
    )
    def equation_terms(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[EquationTerms] = None,
        workers: Workers = None,
    ) -> EquationTerms:
        """The equation of motion term by term, M a = C + G + Q + E, summed over bodies by their Jacobians."""
        return self._ask("equation_terms", (q, v, tau), (gravity, wrenches, overlay, passive), out, workers)

    @query(equation="Projected Newton-Euler 5.2, 5.6", kernel="projected.jacobians", bodies="links", control=False)
    def jacobians(
        self,
        q: Position,
        *,
        links: LinkRows = None,
        overlay: OverlayInput = None,
        out: Outs[Jacobians] = None,
        workers: Workers = None,
    ) -> Jacobians:
        """Jacobians of every link: of its centre of mass, J_S, and of its rotation, J_R, in link axes.

        `links` selects rows by name, in that order.
        """
        return self._ask("jacobians", (q,), (links, overlay), out, workers)

    @query(equation="Projected Newton-Euler 5.6", kernel="projected.bias_accelerations", bodies="links", control=False)
    def bias_accelerations(
        self,
        q: Position,
        v: Velocity,
        *,
        overlay: OverlayInput = None,
        out: Outs[BiasAccelerations] = None,
        workers: Workers = None,
    ) -> BiasAccelerations:
        """Accelerations of every link at zero joint accelerations, in link axes."""
        return self._ask("bias_accelerations", (q, v), (overlay,), out, workers)

    @theory(
        equation="Newton/Euler recursion: omega, omega-dot, v-dot outward; v-dot_cm, F, N; f, eta inward",
        kernel="body_frame.recursion",
        bodies="links",
        control=False,
        passive=PASSIVE_PARTS,
    )
    def body_recursion(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[BodyRecursion] = None,
        workers: Workers = None,
    ) -> BodyRecursion:
        """Inverse dynamics in body frames with its intermediate results, link by link."""
        return self._ask("body_recursion", (q, v, a), (gravity, wrenches, overlay, passive), out, workers)

    @theory(
        equation="Hamilton (1), (2): (P.5b) and (P.3b) together; with method='mass_matrix' (P.5a)",
        kernel={"articulated": "hamilton.flow", "mass_matrix": "hamilton.flow_through_mass_matrix"},
        control=False,
        inverts_mass_matrix=True,
        cost_exponent={"articulated": 1, "mass_matrix": 3},
        passive=PASSIVE_PARTS,
    )
    def hamiltonian_flow(
        self,
        q: Position,
        p: Momentum,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        method: Method = "articulated",
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[HamiltonianFlow] = None,
        workers: Workers = None,
    ) -> HamiltonianFlow:
        """Hamilton's equations: the rates of q and p. `method` is that of `velocity_from_momentum`."""
        return self._ask("hamiltonian_flow", (q, p, tau), (gravity, wrenches, method, overlay, passive), out, workers)

    @theory(
        equation="d/dt of Hamilton (P.4), by differentiation",
        kernel="hamilton.momentum_derivative",
        control=False,
        passive=("armature",),
    )
    def momentum_derivative(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> MomentumRateResult:
        """d/dt (M(q) v) along the motion: M a + M-dot v."""
        return self._ask("momentum_derivative", (q, v, a), (overlay, passive), out, workers)

    @query(
        equation="q-dot = N(q) v, integrated: each joint's exponential map",
        kernel="kinematics.integrate",
        control=False,
    )
    def integrate(
        self, q: Position, v: Velocity, dt: Step, *, out: Out = None, workers: Workers = None
    ) -> PositionResult:
        """The position after moving for `dt` with constant joint velocities: q + dt v for joints with nq = nv."""
        return self._ask("integrate", (q, v, dt), (), out, workers)

    @query(
        equation="C(q, v) of (17), (18b), with C + C^T = dM/dt; see `dyn_service.dynamics.coriolis`",
        kernel="coriolis.coriolis_matrix",
        bodies="moving",
        control=False,
    )
    def coriolis_matrix(
        self,
        q: Position,
        v: Velocity,
        *,
        overlay: OverlayInput = None,
        out: Out = None,
        workers: Workers = None,
    ) -> CoriolisMatrix:
        """The Coriolis matrix C(q, v) of the bias forces C v, with dM/dt - 2 C skew-symmetric."""
        return self._ask("coriolis_matrix", (q, v), (overlay,), out, workers)

    @query(
        equation="the numbers of Newton-Euler (16), 'spring or damper in f'",
        kernel="regressors.parameters",
        control=False,
    )
    def dynamic_parameters(self, *, out: Out = None) -> DynamicParameters:
        """The parameters theta in which the equations of motion are linear, with their names."""
        return self._ask("dynamic_parameters", (), (), out)

    @query(
        equation="Newton-Euler (13), (16)-(18a), linear in theta; see `dyn_service.dynamics.regressors`",
        kernel="regressors.inverse_dynamics",
        bodies="links",
        control=False,
        inertia=False,
    )
    def inverse_dynamics_regressor(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        out: Out = None,
        workers: Workers = None,
    ) -> InverseDynamicsRegressor:
        """The matrix Y(q, v, a) with tau = Y theta, for identification; theta is that of `dynamic_parameters`.

        Y does not depend on theta. It contains the width of each joint's friction and the rest position of its spring.
        With closed loops, tau are the efforts of the driven joints.
        """
        return self._ask("inverse_dynamics_regressor", (q, v, a), (gravity, overlay), out, workers)

    @query(
        equation="Newton-Euler (13), (16), (17), linear in theta",
        kernel="regressors.joint_wrench",
        bodies="links",
        control=False,
    )
    def joint_wrench_regressor(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        joints: JointRows = None,
        gravity: Gravity = None,
        out: Out = None,
        workers: Workers = None,
    ) -> JointWrenchRegressor:
        """The load of each joint, as a force/torque sensor there measures it, per inertial parameter of the links.

        `joints` selects rows by name, in that order; None: every URDF joint, including fixed ones.
        """
        return self._ask("joint_wrench_regressor", (q, v, a), (joints, gravity), out, workers)

    @query(equation="Hamilton (9), (P.2), linear in theta", kernel="regressors.momentum", bodies="links", control=False)
    def momentum_regressor(
        self,
        q: Position,
        v: Velocity,
        *,
        out: Out = None,
        workers: Workers = None,
    ) -> MomentumRegressor:
        """The matrix Y_p(q, v) with p = M(q) v = Y_p theta, for identification without accelerations."""
        return self._ask("momentum_regressor", (q, v), (), out, workers)

    @query(
        equation="Hamilton (4), (6), (7), linear in theta",
        kernel="regressors.energy",
        bodies="links",
        control=False,
        inertia=False,
    )
    def energy_regressor(
        self,
        q: Position,
        v: Velocity,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        out: Out = None,
        workers: Workers = None,
    ) -> EnergyRegressor:
        """Kinetic and potential energy per parameter, for identification without accelerations."""
        return self._ask("energy_regressor", (q, v), (gravity, overlay), out, workers)

    @query(equation="the inverse of `integrate`", kernel="kinematics.difference", control=False)
    def difference(self, q: Position, q_to: Position, *, out: Out = None, workers: Workers = None) -> VelocityResult:
        """The constant joint velocities that move `q` to `q_to` in 1 s.

        Angles of joints with one degree of freedom are subtracted, including whole turns; joints with several rotate
        the shorter way.
        """
        return self._ask("difference", (q, q_to), (), out, workers)

    @query(equation="each body in its joint's frame", kernel="structure.neutral", control=False)
    def neutral(self, *, out: Out = None) -> PositionResult:
        """Zeros, and quaternions (0, 0, 0, 1): every body frame coincides with its joint frame."""
        return self._ask("neutral", (), (), out)

    @query(equation="uniform over the range of each joint", kernel="structure.random_configuration", control=False)
    def random_configuration(self, *, seed: int = 0, out: Out = None) -> PositionResult:
        """A random position within the limits of each joint; the same for the same seed.

        Joints without limits (or beyond 1e9): angles within pi rad, lengths within 1 m of zero, any rotation. Joints
        with one limit: angles within 2 pi rad, lengths within 2 m of it.
        """
        return self._ask("random_configuration", (), (seed,), out)

    @query(
        equation="Newton-Euler, O(N) solution of EOM, Steps 1 and 2",
        kernel={
            "rk4": "integration.rk4",
            "semi_implicit_euler": "integration.semi_implicit_euler",
            "explicit_euler": "integration.explicit_euler",
        },
        control=False,
        inverts_mass_matrix=True,
        passive=PASSIVE_PARTS,
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
        integrator: Literal["rk4", "semi_implicit_euler", "explicit_euler"] = DEFAULT_STEP,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Outs[State] = None,
        workers: Workers = None,
    ) -> State:
        """The state one step later. Efforts are held through the step, wrenches in the axes of their links.

        It is one step of the formula, also where such steps are unstable, which only `simulate` refuses.
        """
        return self._ask("step", (q, v, tau, dt), (gravity, wrenches, integrator, overlay, passive), out, workers)

    @query(
        equation="derivatives of Newton-Euler (18a) by sweeps; see docs/theory/derivatives.md",
        kernel="derivatives.inverse_dynamics_derivatives",
        control=False,
        passive=PASSIVE_PARTS,
    )
    def inverse_dynamics_derivatives(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> InverseDynamicsDerivatives:
        """Derivatives of `inverse_dynamics` with respect to q, v and a, and its value.

        Wrenches are constant in the axes of their links. With closed loops, derivatives are with respect to the
        independent joints, all others following, and 0 in the columns of the others; see docs/closed-loops.md.
        """
        return self._ask("inverse_dynamics_derivatives", (q, v, a), (gravity, wrenches, overlay, passive), out, workers)

    @query(
        equation="derivatives of Newton-Euler (19a) by sweeps; see docs/theory/derivatives.md",
        kernel="derivatives.forward_dynamics_derivatives",
        control=False,
        inverts_mass_matrix=True,
        cost_exponent=3,
        passive=PASSIVE_PARTS,
    )
    def forward_dynamics_derivatives(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> ForwardDynamicsDerivatives:
        """Derivatives of `forward_dynamics` with respect to q, v and tau, and its value.

        Wrenches are constant in the axes of their links. With closed loops, derivatives are with respect to the
        independent joints, all others following, and 0 in the columns of the others; see docs/closed-loops.md.
        """
        return self._ask(
            "forward_dynamics_derivatives", (q, v, tau), (gravity, wrenches, overlay, passive), out, workers
        )

    @query(
        equation="derivatives of Newton-Euler (13) by sweeps; see docs/theory/derivatives.md",
        kernel="motion_derivatives.joint_wrench_derivatives",
        bodies="links",
        control=False,
    )
    def joint_wrench_derivatives(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        joints: JointRows = None,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        out: Out = None,
        workers: Workers = None,
    ) -> JointWrenchDerivatives:
        """Derivatives of the load of each joint with respect to q, v and a, and its value: `constraint_forces` at a.

        `joints` selects rows by name, in that order; None: every URDF joint, including fixed ones. Wrenches are
        constant in the axes of their links.
        """
        return self._ask("joint_wrench_derivatives", (q, v, a), (joints, gravity, wrenches, overlay), out, workers)

    @query(
        equation="second derivatives of Newton-Euler (18a) by sweeps; see docs/theory/derivatives.md",
        kernel="hessians.inverse_dynamics_hessian",
        control=False,
        passive=PASSIVE_PARTS,
    )
    def inverse_dynamics_hessian(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        weights: Weights,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> InverseDynamicsHessian:
        """Gradient and Hessian of the sum of `weights` times joint efforts, for solvers with multipliers.

        Wrenches are constant in the axes of their links.
        """
        return self._ask(
            "inverse_dynamics_hessian", (q, v, a, weights), (gravity, wrenches, overlay, passive), out, workers
        )

    @query(
        equation="second derivatives of Newton-Euler (19a) by sweeps; see docs/theory/derivatives.md",
        kernel="hessians.forward_dynamics_hessian",
        control=False,
        inverts_mass_matrix=True,
        cost_exponent=3,
        passive=PASSIVE_PARTS,
    )
    def forward_dynamics_hessian(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        weights: Weights,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> ForwardDynamicsHessian:
        """Gradient and Hessian of the sum of `weights` times joint accelerations, for solvers with multipliers.

        Wrenches are constant in the axes of their links.
        """
        return self._ask(
            "forward_dynamics_hessian", (q, v, tau, weights), (gravity, wrenches, overlay, passive), out, workers
        )

    @query(
        equation="derivatives of Newton-Euler, O(N) solution of EOM, Steps 1 and 2; see docs/theory/derivatives.md",
        kernel={
            "rk4": "derivatives.rk4",
            "semi_implicit_euler": "derivatives.semi_implicit_euler",
            "explicit_euler": "derivatives.explicit_euler",
            "implicit_midpoint": "midpoint.implicit_midpoint",
        },
        control=False,
        inverts_mass_matrix=True,
        cost_exponent=3,
        passive=PASSIVE_PARTS,
    )
    def step_derivatives(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        dt: Step,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        integrator: Literal["rk4", "semi_implicit_euler", "explicit_euler", "implicit_midpoint"] = DEFAULT_STEP,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> StepDerivatives:
        """Derivatives of `step` with respect to q, v and tau, and its value.

        "rk4" takes about four times as long as the Euler steps. "implicit_midpoint" is the step of `simulate` with this
        integrator; q and v are NaN if its iteration does not converge. A and B of the result linearise the step:
        x' + A dx + B dtau, with x = (q, v).
        """
        return self._ask(
            "step_derivatives", (q, v, tau, dt), (gravity, wrenches, integrator, overlay, passive), out, workers
        )

    @query(
        equation="derivatives of Hamilton (P.3a) by sweeps; see docs/theory/derivatives.md",
        kernel="motion_derivatives.momentum_derivatives",
        control=False,
        passive=("armature",),
    )
    def momentum_derivatives(
        self,
        q: Position,
        v: Velocity,
        *,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> MomentumDerivatives:
        """Derivatives of `momentum` with respect to q and v, and its value; `momentum_derivative` is d/dt."""
        return self._ask("momentum_derivatives", (q, v), (overlay, passive), out, workers)

    @query(
        equation="derivatives of Hamilton (6), (7) by sweeps; see docs/theory/derivatives.md",
        kernel="motion_derivatives.energy_derivatives",
        bodies="links",
        control=False,
        passive=("armature", "springs"),
    )
    def energy_derivatives(
        self,
        q: Position,
        v: Velocity,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        out: Out = None,
        workers: Workers = None,
    ) -> EnergyDerivatives:
        """Derivatives of kinetic and potential `energy` with respect to q and v, and their values."""
        return self._ask("energy_derivatives", (q, v), (gravity, overlay, passive), out, workers)

    @query(
        equation="derivatives of Hamilton (P.1a)-(P.1e), of the whole robot, by sweeps; see docs/theory/derivatives.md",
        kernel="motion_derivatives.centroidal_derivatives",
        bodies="links",
        control=False,
    )
    def centroidal_derivatives(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        overlay: OverlayInput = None,
        out: Out = None,
        workers: Workers = None,
    ) -> CentroidalDerivatives:
        """Centre of mass, momentum about it and its rate, of all links, with derivatives with respect to q, v and a."""
        return self._ask("centroidal_derivatives", (q, v, a), (overlay,), out, workers)

    @query(
        equation="derivatives of Newton-Euler (4)-(8) at a point by sweeps; see docs/theory/derivatives.md",
        kernel={
            "world_aligned": "motion_derivatives.point_motion",
            "local": "motion_derivatives.point_motion_local",
            "world": "motion_derivatives.point_motion_world",
        },
        bodies="links",
        control=False,
        inertia=False,
    )
    def point_motion_derivatives(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        link: PointLink,
        *,
        point: Point = None,
        frame: PointAxes = "world_aligned",
        overlay: OverlayInput = None,
        out: Out = None,
        workers: Workers = None,
    ) -> PointMotionDerivatives:
        """Derivatives of the velocity and acceleration of a link, or of a point fixed on it.

        With respect to q, v and a. Link and point are inputs, as in `point_motion`.
        """
        return self._ask("point_motion_derivatives", (q, v, a, link), (point, frame, overlay), out, workers)

    @computation(
        # Every query that a formulation uses, so that `prepare(["verify"])` leaves nothing to compile.
        equation="fourteen formulations of the documents, see `dyn_service.formulations.verification`",
        queries=(
            "inverse_dynamics",
            "forward_dynamics",
            "mass_matrix",
            "bias_forces",
            "gravity_forces",
            "constraint_forces",
            "momentum",
            "velocity_from_momentum",
            "momentum_rate",
            "energy",
            "equation_terms",
            "body_recursion",
            "momentum_derivative",
            "passive_forces",
        ),
        theory=True,
    )
    def verify(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
    ) -> ResidualsResult:
        """Differences between the formulations at a state: relative residuals by name, (...,) each.

        `dyn_service.formulations.verification` lists the names and what each compares. Rounding errors are 1e-16 to
        1e-12.
        """
        return self._compute("verify", q=q, v=v, a=a, gravity=gravity, overlay=overlay, passive=passive)

    @computation(
        equation="Newton-Euler, O(N) solution of EOM, Steps 1 and 2; Hamilton (1), (2) where momenta are integrated",
        divided=True,
        queries=(
            "forward_dynamics",
            "momentum",
            "velocity_from_momentum",
            "hamiltonian_flow",
            "step",
            "mass_matrix",
            "inverse_dynamics",
            "passive_forces",
            "link_poses",
            "jacobians",
            "bias_accelerations",
        ),
        intermediate_outputs={
            # The client integrates adaptive steps and asks for accelerations alone.
            "a": Spec(
                ("nv",), "rad/s^2 | m/s^2", "accelerations at `q`, `v`, if `steps` is 0; then only this and `finite`"
            ),
            "finite": Spec(("nv",), "1", "1; 0 if an acceleration overflows, with `a` set to 0"),
            "substeps": Spec(
                (), "1", "with the integrator `auto`: parts of a step of `rk4`, or negated of `stick_slip`"
            ),
        },
    )
    def simulate(
        self,
        q0: FirstPosition,
        v0: FirstVelocity,
        tau: Efforts = None,
        *,
        dt: StepLength,
        steps: StepCount,
        method: Method = "articulated",
        integrator: SimulationSteps = "auto",
        gravity: Gravity = None,
        wrenches: ActingWrenches = None,
        payload: PayloadInput = None,
        every: Every = 1,
        p0: FirstMomentum = None,
        first_step: FirstStep = 0,
        contacts: Contacts = None,
        position_limits: PositionLimits = False,
        effort_limits: EffortLimits = False,
        velocity_limits: VelocityLimits = False,
        stop_time: StopTime = 0.0,
        stop_damping: StopDamping = STOP_DAMPING,
        overlay: OverlayInput = None,
        passive: Passive = True,
        progress: Progress = None,
    ) -> Trajectory:
        """Simulates the motion from `q0`, `v0` under the efforts `tau`, by `steps` steps of `dt`.

        Args:
            q0: (..., nq) initial positions; leading axes are simulated together.
            v0: (..., nv) initial velocities.
            tau: Efforts, held through each step: None (zero), (nv,) constant, (..., steps, nv) samples, a function
                of (t, q, v) at the beginning of the step, or a law as data (`PDLaw`, `ComputedTorqueLaw`,
                `StateFeedbackLaw`), in this process. `adaptive` calls a function or law at every stage instead.
            dt: Length of a step, s; for `adaptive`, the output grid.
            steps: Number of steps; those after the last recorded one are not computed.
            method: The solution of the equation of motion.
            integrator: "rk4", "semi_implicit_euler" and "explicit_euler" step q and v, "implicit_midpoint" q and p;
                "adaptive" chooses its steps; "stick_slip" is "semi_implicit_euler" with exact Coulomb friction: joints
                stay at rest under smaller loads, and stiff joints allow long steps. It ignores `method`. "auto" is
                "rk4" in as many parts of a step as the joints' damping, friction and springs need, or, if these are
                more than 64, "stick_slip", extrapolated to order 2 from one and two parts. The result names both.
            gravity: (..., 3) m/s^2, world axes; None is the default.
            wrenches: External wrenches, held through each step in the axes of their `frame`: one `Wrench` or several,
                with torque, force and point (3,) constant or (..., steps, 3) samples, or a function of (t, q, v) that
                returns them with (..., 3), called like a function for `tau`.
            payload: A body that a link carries during the motion.
            every: Record every `every` steps; the initial state and these are returned.
            p0: (..., nv) initial momenta, instead of those of `v0`, for "implicit_midpoint".
            first_step: Number of the first step, if this continues a longer motion; times are those of the whole
                motion. A motion continued from a record's q, v (and p) has the same bits as one without a break.
            contacts: Points of links against planes: one `Contact` or several. Contacts and limits need "rk4",
                "semi_implicit_euler" or "explicit_euler", which smooth friction, or "stick_slip", which does not.
            position_limits: Whether joints have stops at their position limits.
            effort_limits: Whether efforts are clipped to their limits.
            velocity_limits: Whether joints are braked beyond their velocity limits.
            stop_time: Time constant of stops, and of contacts without a stiffness, s; 0: five steps, or one step of
                "stick_slip".
            stop_damping: Relative increase of their stiffness per unit of approach velocity, s/rad | s/m.
            overlay: Changed numbers of the robot.
            passive: Whether passive joint forces act.
            progress: Called repeatedly with the completed fraction.

        Returns:
            `steps // every + 1` states; with "implicit_midpoint" the momenta too; with contacts or limits their forces
            and the energy balance, see docs/contacts.md.

        Raises:
            FailedPreconditionError: The state is no longer finite (names the first such step, its time and the joint),
                explicit steps are too long for the damping, friction or springs of a joint, or the iteration for an
                implicit midpoint does not converge.
            InvalidArgumentError: An argument has the wrong shape or value; `path` names it.
            NotFoundError: The link of a wrench or of the payload does not exist.
        """
        return self._compute(
            "simulate",
            q0=q0,
            v0=v0,
            tau=tau,
            dt=dt,
            steps=steps,
            method=method,
            integrator=integrator,
            gravity=gravity,
            wrenches=wrenches,
            payload=payload,
            every=every,
            p0=p0,
            first_step=first_step,
            contacts=contacts,
            position_limits=position_limits,
            effort_limits=effort_limits,
            velocity_limits=velocity_limits,
            stop_time=stop_time,
            stop_damping=stop_damping,
            overlay=overlay,
            passive=passive,
            progress=progress,
        )

    @computation(
        equation="a = M^-1 (tau - b + J^T f), J a = -J-dot v: Featherstone 2008, 11.4; "
        "see `dyn_service.simulation.contact.supports`",
        queries=("forward_dynamics", "mass_matrix", "link_poses", "jacobians", "bias_accelerations"),
    )
    def contact_dynamics(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        contacts: ActiveContacts,
        *,
        settle: SettleTime = 0.0,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
    ) -> ContactDynamics:
        """Accelerations under the efforts `tau` while points of links are held on planes, and the contact forces.

        All of `contacts` are held, if necessary by pulling, and do not slide; `rigid`, `friction` and the following
        fields are ignored. The caller selects the active contacts.
        """
        return self._compute(
            "contact_dynamics",
            q=q,
            v=v,
            tau=tau,
            contacts=contacts,
            settle=settle,
            gravity=gravity,
            wrenches=wrenches,
            overlay=overlay,
            passive=passive,
        )

    @computation(
        equation="Newton-Euler (20) of the joints that close loops; see `dyn_service.engine.loops.joints`",
    )
    def loop_error(self, q: Position) -> LoopErrorResult:
        """The gap of each joint that closes a loop, in the directions that it blocks.

        Row k is the motion from the nearest pose that joint k allows to the pose of its child frame, in that frame's
        axes: 0 in free directions, and 0 in all if the loop is closed. Rows are in the order of
        `description.loop_joints`; robots without loops have none.
        """
        return self._compute("loop_error", q=q)

    @computation(
        equation="J_c dq = -error by Levenberg-Marquardt; see `dyn_service.engine.loops.assembly`",
    )
    def assemble(self, q: Position, *, fixed: FixedJoints = None) -> ClosedPositionResult:
        """The position nearest to `q` that closes all loops within the position limits.

        Nearest by the squares of rad and lengths of the loops. Positions with another branch, such as an elbow up
        instead of down, follow from another `q`.

        Raises:
            FailedPreconditionError: No closed position was found; names the loop and its remaining gap.
            NotFoundError: There is no movable joint of a fixed one's name.
        """
        return self._compute("assemble", q=q, fixed=fixed)

    @computation(
        equation="Newton-Euler (18) on J_c v = 0; see `dyn_service.engine.loops.call`",
    )
    def independent_motion(
        self,
        q: Position,
        v: Velocity,
        *,
        independent: IndependentJoints = None,
        gravity: Gravity = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
    ) -> IndependentMotion:
        """The velocities, accelerations and inertia of a robot with closed loops in independent velocities.

        The rates of the independent velocities, and the efforts along them, are arbitrary; all other velocities and
        accelerations follow. All velocities of a robot without loops are independent.

        Raises:
            InvalidArgumentError: `independent` has more or fewer velocities than the loops leave free.
            FailedPreconditionError: The independent velocities do not determine the others at this position.
        """
        return self._compute(
            "independent_motion", q=q, v=v, independent=independent, gravity=gravity, overlay=overlay, passive=passive
        )

    @computation(
        equation="Multi Body Dynamics, 5.2, 5.6",
        divided=True,
        queries=("inverse_dynamics", "mass_matrix"),
        on_wire=(Option("joints", None, "names", text="the prescribed joints, np names", required=True),),
    )
    def simulate_rheonomic(
        self,
        prescribed: Motions,
        q0: FreePosition,
        v0: FreeVelocity,
        tau: FreeEfforts = None,
        *,
        dt: StepLength,
        steps: StepCount,
        t0: FirstTime = 0.0,
        first_step: FirstStep = 0,
        every: Every = 1,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
        progress: Progress = None,
    ) -> RheonomicTrajectory:
        """Simulates the free joints while the prescribed ones move as given, by RK4 steps.

        Args:
            prescribed: By joint, its motion: rows (..., 2 steps + 1, 3) on the half grid or (..., steps + 1, 3) on the
                grid of position, velocity, acceleration, or a function of time; see
                `simulation/rheonomic.py`.
            q0: (..., nf) initial positions of the free joints, in the robot's order.
            v0: (..., nf) initial velocities.
            tau: Efforts of the free joints, held through each step: None (zero), (nf,) or (..., 1, nf) constant,
                (..., steps, nf) samples, or a function of (t, q, v) of the free joints at the beginning of the step.
            dt: Length of a step, s.
            steps: Number of steps.
            t0: Time of step 0, s; the prescribed motion begins at the time of `first_step`.
            first_step: Number of the first step, if this is part of a longer motion.
            every: Record every `every` steps; the initial state and these are returned.
            gravity: (..., 3) m/s^2, world axes; None is the default.
            wrenches: External wrenches on links, constant during the motion.
            overlay: Changed numbers of the robot.
            passive: Whether passive joint forces act.
            progress: Called repeatedly with the completed fraction.

        Returns:
            `steps // every + 1` states of all joints; the last one under the efforts of the last step.

        Raises:
            NotFoundError: There is no movable joint of a prescribed one's name.
            InvalidArgumentError: An argument has the wrong shape or value; `path` names it.
            FailedPreconditionError: The accelerations are no longer finite (names step and time), or the mass matrix of
                the free joints is singular.
        """
        return self._compute(
            "simulate_rheonomic", prescribed=prescribed, q0=q0, v0=v0, tau=tau, dt=dt, steps=steps, t0=t0,
            first_step=first_step, every=every, gravity=gravity, wrenches=wrenches, overlay=overlay, passive=passive,
            progress=progress,
        )  # fmt: skip

    @computation(
        equation="Newton-Euler (15), (19b): F = L (tau - p) + (e - L G^T) Psi_D^T (M Psi_D A + B - Y^T F-bar); "
        "see `dyn_service.formulations.force_causes`",
        queries=("constraint_forces", "passive_forces"),
    )
    def constraint_force_causes(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        joints: JointRows = None,
        frame: JointAxes = "joint",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
    ) -> ConstraintForceCauses:
        """The wrenches of `constraint_forces` split by cause; over all causes they sum to these.

        Every cause includes the accelerations that it alone gives the robot: a motor loads joints far from it, and a
        weight those beyond its body. `joints` and `frame` as of `constraint_forces`.

        Raises:
            FailedPreconditionError: The robot has closed loops, whose loads are not unique by cause.
        """
        return self._compute(
            "constraint_force_causes",
            q=q,
            v=v,
            tau=tau,
            joints=joints,
            frame=frame,
            gravity=gravity,
            wrenches=wrenches,
            overlay=overlay,
            passive=passive,
        )

    @computation(
        equation="U (M a + h) = U J^T f, tau = M a + h - J^T f; see `dyn_service.simulation.contact.ground_reactions`",
        queries=("inverse_dynamics", "jacobians", "link_poses"),
    )
    def ground_reactions(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        contacts: ActiveContacts,
        *,
        least: Least = "forces",
        undriven: Undriven = None,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: OverlayInput = None,
        passive: Passive = True,
    ) -> GroundReactions:
        """Joint efforts and contact forces of a robot on its feet that moves as given.

            M a + h = tau + J^T f,    tau = 0 at undriven joints, f within the friction cones

        If several f satisfy this, the result has the least |f| or, with `least="efforts"`, the least |tau|; `rank` and
        `indeterminate` describe the set. If no f does, the result has the least `residual`, and `supported` is 0. Rigid
        contacts have no cone. Active friction cones need the extra `contacts`.
        """
        return self._compute(
            "ground_reactions",
            q=q,
            v=v,
            a=a,
            contacts=contacts,
            least=least,
            undriven=undriven,
            gravity=gravity,
            wrenches=wrenches,
            overlay=overlay,
            passive=passive,
        )


# Moved only now: the table has the order of declaration, and lists of queries are traced in that order.
for _row in (*QUERIES.values(), *COMPUTATIONS.values()):
    if _row.theory:  # `help` lists the methods of each class by themselves
        setattr(TheoryQueries, _row.name, vars(RobotQueries)[_row.name])
        delattr(RobotQueries, _row.name)


class GaitQueries(ABC):
    """Queries about measured segments, without a robot; see `dyn_service.formulations.segments`."""

    @abstractmethod
    def _compute(self, row: str, **arguments: Any) -> Any:
        """Answers a row of `COMPUTATIONS`."""

    @computation(
        equation="Matrix Formalism, 3-D gait, Problem 2",
        robot=False,
        theory=True,
    )
    def segment_inverse_dynamics(
        self,
        *,
        mass: SegmentMass,
        inertia: SegmentInertia,
        rotation: SegmentRotation,
        acceleration: SegmentAcceleration,
        omega: SegmentOmega,
        omega_dot: SegmentOmegaDot,
        proximal: Proximal,
        distal: Distal,
        ground_force: GroundForce = (0.0, 0.0, 0.0),
        ground_moment: GroundMoment = (0.0, 0.0, 0.0),
        external_force: ExternalForce = (0.0, 0.0, 0.0),
        external_moment: ExternalMoment = (0.0, 0.0, 0.0),
        external_point: ExternalPoint = (0.0, 0.0, 0.0),
        gravity: SegmentGravity = (0.0, -9.81, 0.0),
        method: Literal["recursion", "matrix"] = "recursion",
    ) -> SegmentLoads:
        """Forces and moments at the joints of a chain of n measured segments, from the ground up."""
        return self._compute(
            "segment_inverse_dynamics",
            mass=mass,
            inertia=inertia,
            rotation=rotation,
            acceleration=acceleration,
            omega=omega,
            omega_dot=omega_dot,
            proximal=proximal,
            distal=distal,
            ground_force=ground_force,
            ground_moment=ground_moment,
            external_force=external_force,
            external_moment=external_moment,
            external_point=external_point,
            gravity=gravity,
            method=method,
        )

    @computation(
        equation="Matrix Formalism, 3-D gait: M q-ddot = C + G + Q + E, Q = A [F_1; M_1; F_2; ..]",
        robot=False,
        theory=True,
    )
    def segment_matrices(
        self,
        *,
        mass: SegmentMass,
        inertia: SegmentInertia,
        rotation: SegmentRotation,
        acceleration: SegmentAcceleration,
        omega: SegmentOmega,
        omega_dot: SegmentOmegaDot,
        proximal: Proximal,
        distal: Distal,
        ground_force: GroundForce = (0.0, 0.0, 0.0),
        ground_moment: GroundMoment = (0.0, 0.0, 0.0),
        external_force: ExternalForce = (0.0, 0.0, 0.0),
        external_moment: ExternalMoment = (0.0, 0.0, 0.0),
        external_point: ExternalPoint = (0.0, 0.0, 0.0),
        gravity: SegmentGravity = (0.0, -9.81, 0.0),
    ) -> SegmentMatrices:
        """The matrices of the same equations, and their solution A^-1 Q."""
        return self._compute(
            "segment_matrices",
            mass=mass,
            inertia=inertia,
            rotation=rotation,
            acceleration=acceleration,
            omega=omega,
            omega_dot=omega_dot,
            proximal=proximal,
            distal=distal,
            ground_force=ground_force,
            ground_moment=ground_moment,
            external_force=external_force,
            external_moment=external_moment,
            external_point=external_point,
            gravity=gravity,
        )
