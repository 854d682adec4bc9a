# Written by `python -m tools.awaited` from api/queries.py.

from abc import ABC
from typing import (
    Any,
    Literal,
)

from dyn_service.api.arguments import (
    STOP_DAMPING,
    Acceleration,
    AccelerationResult,
    ActingWrenches,
    ActiveContacts,
    Altered,
    Axes,
    Contacts,
    Direction,
    Directions,
    Distal,
    Effort,
    EffortLimits,
    EffortResult,
    Efforts,
    Every,
    ExternalForce,
    ExternalMoment,
    ExternalPoint,
    FirstMomentum,
    FirstPosition,
    FirstStep,
    FirstTime,
    FirstVelocity,
    ForcesResult,
    FreeEfforts,
    FreePosition,
    FreeVelocity,
    Gravity,
    GroundForce,
    GroundMoment,
    Integrator,
    JointAxes,
    JointRows,
    Least,
    LinkRows,
    Load,
    MassMatrixResult,
    Method,
    Momentum,
    MomentumRateResult,
    MomentumResult,
    Motions,
    Offset,
    Passive,
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
    SettleTime,
    Step,
    StepCount,
    StepLength,
    StopDamping,
    StopTime,
    Turn,
    Undriven,
    Velocity,
    VelocityGain,
    VelocityLimits,
    VelocityResult,
    Wrenches,
)
from dyn_service.api.description import (
    Described,
)
from dyn_service.api.results import (
    BiasAccelerations,
    BodyRecursion,
    BranchInertias,
    ConstraintBases,
    ConstraintForces,
    ContactDynamics,
    Energy,
    EquationTerms,
    ForceTorque,
    GroundReactions,
    Hamiltonian,
    HamiltonianFlow,
    ImuReading,
    InfluenceOperators,
    Jacobians,
    LinkMotion,
    LinkPoses,
    MassMatrixSteps,
    NewtonEulerBlocks,
    OperationalSpace,
    PassiveForces,
    PointMotion,
    RheonomicTrajectory,
    SegmentLoads,
    SegmentMatrices,
    State,
    SystemMomentum,
    SystemMomentumRate,
    Topology,
    Trajectory,
)

class AsyncRobotQueries(Described, ABC):
    async def _ask(self, row: str, given: tuple[Any, ...], others: tuple[Any, ...] = ()) -> Any: ...
    async def _compute(self, row: str, **arguments: Any) -> Any: ...
    async def inverse_dynamics(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> EffortResult: ...
    async def forward_dynamics(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        method: Method = "articulated",
        overlay: Altered = None,
        passive: Passive = True,
    ) -> AccelerationResult: ...
    async def mass_matrix(
        self, q: Position, *, overlay: Altered = None, passive: Passive = True
    ) -> MassMatrixResult: ...
    async def bias_forces(
        self, q: Position, v: Velocity, *, gravity: Gravity = None, overlay: Altered = None, passive: Passive = True
    ) -> ForcesResult: ...
    async def gravity_forces(
        self, q: Position, *, gravity: Gravity = None, overlay: Altered = None, passive: Passive = True
    ) -> ForcesResult: ...
    async def constraint_forces(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        joints: JointRows = None,
        frame: JointAxes = "joint",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> ConstraintForces: ...
    async def force_torque(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        joints: JointRows = None,
        xyz: Offset = None,
        rpy: Turn = None,
        direction: Direction = "parent_on_child",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
    ) -> ForceTorque: ...
    async def imu(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        links: LinkRows = None,
        xyz: Offset = None,
        rpy: Turn = None,
        gravity: Gravity = None,
    ) -> ImuReading: ...
    async def constraint_bases(self, *, joints: JointRows = None) -> ConstraintBases: ...
    async def computed_torque(
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
        overlay: Altered = None,
        passive: Passive = True,
    ) -> EffortResult: ...
    async def link_poses(self, q: Position) -> LinkPoses: ...
    async def point_motion(
        self,
        q: Position,
        v: Velocity,
        link: PointLink,
        *,
        point: Point = None,
        frame: PointAxes = "world_aligned",
        overlay: Altered = None,
    ) -> PointMotion: ...
    async def operational_space(
        self,
        q: Position,
        link: PointLink,
        *,
        point: Point = None,
        directions: Directions = None,
        frame: PointAxes = "world_aligned",
        overlay: Altered = None,
        passive: Passive = True,
    ) -> OperationalSpace: ...
    async def link_motion(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        frame: Axes = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
    ) -> LinkMotion: ...
    async def branch_inertias(
        self, q: Position, *, overlay: Altered = None, passive: Passive = True
    ) -> BranchInertias: ...
    async def topology(self, *, bodies: Literal["moving", "links"] = "moving") -> Topology: ...
    async def influence_operators(
        self,
        q: Position,
        *,
        operator: Literal["D", "beta"] = "D",
        frame: Axes = "body",
        overlay: Altered = None,
        passive: Passive = True,
    ) -> InfluenceOperators: ...
    async def newton_euler_blocks(
        self,
        q: Position,
        v: Velocity,
        *,
        frame: Axes = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
    ) -> NewtonEulerBlocks: ...
    async def mass_matrix_steps(
        self, q: Position, *, frame: Axes = "body", overlay: Altered = None, passive: Passive = True
    ) -> MassMatrixSteps: ...
    async def passive_forces(self, q: Position, v: Velocity, *, overlay: Altered = None) -> PassiveForces: ...
    async def momentum(
        self, q: Position, v: Velocity, *, overlay: Altered = None, passive: Passive = True
    ) -> MomentumResult: ...
    async def velocity_from_momentum(
        self,
        q: Position,
        p: Momentum,
        *,
        method: Method = "articulated",
        overlay: Altered = None,
        passive: Passive = True,
    ) -> VelocityResult: ...
    async def momentum_rate(
        self,
        q: Position,
        p: Momentum,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> MomentumRateResult: ...
    async def system_momentum(
        self, q: Position, v: Velocity, *, frame: Axes = "body", overlay: Altered = None
    ) -> SystemMomentum: ...
    async def system_momentum_rate(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        frame: Axes = "body",
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
    ) -> SystemMomentumRate: ...
    async def energy(
        self, q: Position, v: Velocity, *, gravity: Gravity = None, overlay: Altered = None, passive: Passive = True
    ) -> Energy: ...
    async def hamiltonian(
        self, q: Position, p: Momentum, *, gravity: Gravity = None, overlay: Altered = None, passive: Passive = True
    ) -> Hamiltonian: ...
    async def equation_terms(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> EquationTerms: ...
    async def jacobians(self, q: Position, *, overlay: Altered = None) -> Jacobians: ...
    async def bias_accelerations(self, q: Position, v: Velocity, *, overlay: Altered = None) -> BiasAccelerations: ...
    async def body_recursion(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> BodyRecursion: ...
    async def hamiltonian_flow(
        self,
        q: Position,
        p: Momentum,
        tau: Effort,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        method: Method = "articulated",
        overlay: Altered = None,
        passive: Passive = True,
    ) -> HamiltonianFlow: ...
    async def momentum_derivative(
        self, q: Position, v: Velocity, a: Acceleration, *, overlay: Altered = None, passive: Passive = True
    ) -> MomentumRateResult: ...
    async def integrate(self, q: Position, v: Velocity, dt: Step) -> PositionResult: ...
    async def difference(self, q: Position, q_to: Position) -> VelocityResult: ...
    async def neutral(self) -> PositionResult: ...
    async def random_configuration(self, *, seed: int = 0) -> PositionResult: ...
    async def step(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        dt: Step,
        *,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        integrator: Literal["rk4", "semi_implicit_euler", "explicit_euler"] = "rk4",
        overlay: Altered = None,
        passive: Passive = True,
    ) -> State: ...
    async def verify(
        self,
        q: Position,
        v: Velocity,
        a: Acceleration,
        *,
        gravity: Gravity = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> ResidualsResult: ...
    async def simulate(
        self,
        q0: FirstPosition,
        v0: FirstVelocity,
        tau: Efforts = None,
        *,
        dt: StepLength,
        steps: StepCount,
        method: Method = "articulated",
        integrator: Integrator = "rk4",
        gravity: Gravity = None,
        wrenches: ActingWrenches = None,
        payload: Load = None,
        every: Every = 1,
        p0: FirstMomentum = None,
        first_step: FirstStep = 0,
        contacts: Contacts = None,
        position_limits: PositionLimits = False,
        effort_limits: EffortLimits = False,
        velocity_limits: VelocityLimits = False,
        stop_time: StopTime = 0.0,
        stop_damping: StopDamping = STOP_DAMPING,
        overlay: Altered = None,
        passive: Passive = True,
        progress: Progress = None,
    ) -> Trajectory: ...
    async def contact_dynamics(
        self,
        q: Position,
        v: Velocity,
        tau: Effort,
        contacts: ActiveContacts,
        *,
        settle: SettleTime = 0.0,
        gravity: Gravity = None,
        wrenches: Wrenches = None,
        overlay: Altered = None,
        passive: Passive = True,
    ) -> ContactDynamics: ...
    async def simulate_rheonomic(
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
        overlay: Altered = None,
        passive: Passive = True,
        progress: Progress = None,
    ) -> RheonomicTrajectory: ...
    async def ground_reactions(
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
        overlay: Altered = None,
        passive: Passive = True,
    ) -> GroundReactions: ...

class AsyncGaitQueries(ABC):
    async def _compute(self, row: str, **arguments: Any) -> Any: ...
    async def segment_inverse_dynamics(
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
    ) -> SegmentLoads: ...
    async def segment_matrices(
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
    ) -> SegmentMatrices: ...
