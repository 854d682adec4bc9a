"""Periodic motions that make the base parameters of a robot known, within limits.

    q(t) = q_0 + sum_k A_k sin(k w t) + B_k (cos(k w t) - 1),    sum_k k A_k = 0,    sum_k k^2 B_k = 0

begins and ends each period at rest at q_0, with acceleration zero. Efforts tau = Y_b theta_b + noise, with independent
noise of standard deviation sigma_j at joint j, have the information matrix M = sum_t Y_b^T diag(sigma)^-2 Y_b, whose
inverse is the covariance of the weighted least-squares estimate of theta_b.

- `determinant` maximises log det M: the smallest volume of the confidence ellipsoid, whatever the units.
- `condition` minimises the condition number of M with its columns and rows scaled to a diagonal of ones.

The gradient of an objective f is the sum over t of 2 <diag(sigma)^-2 Y_b S, dY_b> with S = df/dM: for each state the
derivatives of Y along each entry of q, v and a, contracted, then the chain rule through the sines. Y is affine in a;
its other derivatives are central differences of the compiled regressor. The exact form, by
`inverse_dynamics_derivatives` of robots whose parameters are the rows of Y_b S, takes 2.9 times as long (Panda) and 4.5
times (UR5e), and differs by 2e-10.

An augmented Lagrangian with L-BFGS-B searches motions within the limits at samples. Whether a motion is within them at
all times is checked on a grid of `GRID` times, with these allowances for times between those:

- position, velocity, acceleration and jerk are trigonometric polynomials of degree N: |p| <= max of grid / cos(pi N /
  GRID);
- efforts: h^2/8 max |tau''|, with tau'' from second differences on the grid;
- points: the largest distance of neighbours on the grid, halved, and h^2/8 max |p''| in the same way.

A motion beyond a limit is scaled towards q_0 until it meets all of them.

Sources: Swevers et al., 'Optimal Robot Excitation and Identification', IEEE Trans. Robotics and Automation 13 (1997);
Ehlich and Zeller, 'Schwankung von Polynomen zwischen Gitterpunkten', Math. Zeitschrift 86 (1964); Nocedal and Wright,
'Numerical Optimization' (2006), 17.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import msgspec
import numpy as np
from scipy.linalg import null_space
from scipy.optimize import minimize

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.control.trajectory import Reference
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.identification.regression import gram
from dyn_service.identification.terms import (
    FILE_PARAMETERS,
    THRESHOLD,
    FrictionTerm,
    InertialModel,
    file_widths,
    friction_columns,
    inertial_model,
)
from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.trajectory_msgs import JointTrajectory, JointTrajectoryPoint
from dyn_service.support.suggestions import did_you_mean
from dyn_service.support.validation import MismatchError, convert, dotted

Objective = Literal["determinant", "condition"]
_Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
_Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]

GRID = 4000
"""Times per period at which limits are checked."""
SAMPLES_PER_HARMONIC = 20
"""Samples per period of the highest harmonic, for the information matrix and the limits in the optimisation."""
POINTS_PER_HARMONIC = 20
"""Points of a goal per period of the highest harmonic. Quintics between them differ from the sines by 2e-8 of their
amplitude: (2 pi / 20)^6 / 46080.
"""
RANDOM_MOTIONS = 20
"""Number of random motions, for the starts and the comparison."""
STEP = 1e-5
"""Step of the central differences, rad | m and per s: errors of truncation and rounding are both about 1e-10."""
ACTIVE = 0.98
"""Share of a limit from which it is reported as active."""
_OUTER = 6
"""Updates of the multipliers."""
SLACK = 1e-3
"""Share of a limit, m of a distance, that the search leaves, so that its last violations need no smaller motion."""
_SHRINK = 0.999
"""First factor by which a motion beyond a limit is scaled towards its start; later ones are smaller."""


class KeepOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A box, in world axes, that a point of a link may not enter.

    link: its name. point: (3,) m, in the link's axes. lower, upper: (3,) m, corners of the box in world axes.
    """

    link: str
    point: tuple[float, float, float]
    lower: tuple[float, float, float]
    upper: tuple[float, float, float]


class ExcitationDesign(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a motion is for, and its limits.

    period_s: of the first harmonic, s. harmonics: their number, from 2. periods: how often the motion is recorded.
    rate_hz: of the samples of the recording. noise: standard deviation of efforts, N m | N, for all joints or by joint;
    None is 1 % of the effort limits. objective: see the module. friction: kinds of friction to be known,
    of `viscous`, `coulomb`, `offset`, `asymmetric`, with the widths of the robot's file. position_share,
    velocity_share, effort_share: of the robot's ranges and limits that may be used. velocity, acceleration, jerk,
    effort: limits that replace the file's, by joint; a jerk, rad/s^3 | m/s^3, also for all joints. start: rad | m by
    joint, else the middle of the limits; 0 for joints without limits, which move by `free_range` to both sides.
    keep_out: boxes. seed: of the random motions. restarts: number of random motions from which the optimisation starts.
    iterations: of each, of L-BFGS-B.
    """

    period_s: _Positive = 10.0
    harmonics: Annotated[int, msgspec.Meta(ge=2)] = 5
    periods: _Count = 5
    rate_hz: _Positive = 100.0
    noise: float | dict[str, float] | None = None
    objective: Objective = "determinant"
    friction: tuple[Literal["viscous", "coulomb", "offset", "asymmetric"], ...] = ("viscous", "coulomb", "offset")
    position_share: _Share = 0.9
    velocity_share: _Share = 0.8
    effort_share: _Share = 0.8
    velocity: dict[str, float] = {}
    acceleration: dict[str, float] = {}
    jerk: float | dict[str, float] = {}
    effort: dict[str, float] = {}
    start: dict[str, float] = {}
    free_range: _Positive = math.pi
    keep_out: tuple[KeepOut, ...] = ()
    seed: int = 0
    restarts: _Count = 2
    iterations: _Count = 360


@dataclass(frozen=True, eq=False)
class FourierMotion:
    """A periodic motion, at rest at `start` at each multiple of the period.

    start: (n,) rad | m. sine, cosine: A and B, (N, n). period_s: s.
    """

    start: Array
    sine: Array
    cosine: Array
    period_s: float

    def sample(self, t: Array) -> Reference:
        """Returns q, v, a (..., n) at the times t (...) s."""
        rate = 2.0 * np.pi / self.period_s * np.arange(1, len(self.sine) + 1)
        angle = np.asarray(t)[..., None] * rate
        s, c = np.sin(angle), np.cos(angle)
        return Reference(
            self.start + s @ self.sine + (c - 1.0) @ self.cosine,
            (rate * c) @ self.sine - (rate * s) @ self.cosine,
            -(rate**2 * s) @ self.sine - (rate**2 * c) @ self.cosine,
        )

    def jerk(self, t: Array) -> Array:
        """Returns the third derivative of q (..., n) at the times t (...) s."""
        rate = 2.0 * np.pi / self.period_s * np.arange(1, len(self.sine) + 1)
        angle = np.asarray(t)[..., None] * rate
        return np.asarray(-(rate**3 * np.cos(angle)) @ self.sine + (rate**3 * np.sin(angle)) @ self.cosine)

    def times(self, count: int) -> Array:
        """Returns `count` equidistant times of one period, from 0, s."""
        return np.asarray(np.arange(count) * (self.period_s / count), dtype=np.float64)

    def scaled(self, factor: float) -> FourierMotion:
        """Returns the motion with its distance from the start multiplied by a factor."""
        return replace(self, sine=factor * self.sine, cosine=factor * self.cosine)


@dataclass(frozen=True)
class Peak:
    """The largest use of a limit. limit: `position`, `velocity`, `acceleration`, `jerk`, `effort` or `keep-out`.

    name: of the joint, or of the link. share: of the limit that is used, with what is added for times between those of
    the grid; of `keep-out`, 1 less the distance to the box in m.
    """

    limit: str
    name: str
    share: float


@dataclass(frozen=True, eq=False)
class Excitation:
    """A motion and what a recording of it makes known.

    joint_names: in the order of the motion. model, terms: base inertial parameters and friction, in whose order the
    other arrays are. values (p,): of the robot's file. standard_errors (p,): predicted for weighted least squares.
    condition: condition number of Y with rows divided by the noise and columns scaled to length 1. log_determinant: of
    the information matrix of all samples. peaks: use of each limit. noise (nv,): N m | N. samples: number of states in
    the recording. periods: number of periods in it. approach_s: time in which the start can be reached from any
    position. dependent: friction that no motion tells from other parameters. random: the median, by determinant, of
    random motions within the same limits; None for these.
    """

    joint_names: tuple[str, ...]
    motion: FourierMotion
    model: InertialModel
    terms: tuple[FrictionTerm, ...]
    values: Array
    standard_errors: Array
    condition: float
    log_determinant: float
    peaks: tuple[Peak, ...]
    noise: Array
    samples: int
    periods: int
    approach_s: float
    dependent: tuple[str, ...]
    random: Excitation | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters, (p,)."""
        return (*self.model.names, *(term.name for term in self.terms))

    def rows(self, states: Reference) -> Array:
        """Returns Y (T, nv, p) with tau = Y theta at states (T, n)."""
        return _rows(self.model, self.terms, states)

    @property
    def duration_s(self) -> float:
        """Duration of all periods, s."""
        return self.periods * self.motion.period_s

    @property
    def active(self) -> tuple[Peak, ...]:
        """Limits of which at least 98 % are used."""
        return tuple(peak for peak in self.peaks if peak.share >= ACTIVE)

    def goals(self) -> list[JointTrajectory]:
        """Returns two goals: to the start in `approach_s`, and one period of the motion."""
        zero, approach = [0.0] * len(self.joint_names), Duration.from_seconds(self.approach_s)
        rest = JointTrajectoryPoint(self.motion.start.tolist(), zero, zero, time_from_start=approach)
        count = POINTS_PER_HARMONIC * len(self.motion.sine)
        times = self.motion.times(count)[1:]
        rows = zip(times.tolist(), *(x.tolist() for x in self.motion.sample(times)), strict=True)
        points = [JointTrajectoryPoint(q, v, a, time_from_start=Duration.from_seconds(t)) for t, q, v, a in rows]
        end = Duration.from_seconds(self.motion.period_s)
        points.append(JointTrajectoryPoint(self.motion.start.tolist(), zero, zero, time_from_start=end))
        names = list(self.joint_names)
        return [JointTrajectory(joint_names=names, points=[rest]), JointTrajectory(joint_names=names, points=points)]


def design_excitation(
    robot: RobotQueries,
    design: ExcitationDesign | None = None,
    *,
    progress: Callable[[float], object] = lambda share: None,
) -> Excitation:
    """Returns the motion that makes the robot's base parameters known best, as far as the optimisation finds it.

    robot: its joints' positions add, and all have motors. progress: is called with the share of the work that is done.

    Raises:
        InvalidArgumentError: A number of the design is out of range, or names no joint or link.
        FailedPreconditionError: The robot has closed loops, a joint without a motor or with several degrees of freedom,
            or no velocity limit; its base parameters are undecided; or no motion from the start meets the limits.
    """
    design = design or ExcitationDesign()
    problem = _Problem(robot, design)
    problem.check_rest()
    rng = np.random.default_rng(design.seed)
    motions = [problem.random_motion(rng) for _ in range(RANDOM_MOTIONS)]
    comparisons = sorted((problem.excitation(motion) for motion in motions), key=lambda plan: plan.log_determinant)
    starts = comparisons[::-1][: design.restarts]
    candidates = []
    for k, start in enumerate(starts):
        x = problem.optimum(problem.coefficients(start.motion), lambda share, k=k: progress((k + share) / len(starts)))  # type: ignore[misc]
        candidates.append(problem.excitation(problem.within_limits(problem.motion(x))))
    score = (lambda plan: plan.log_determinant) if design.objective == "determinant" else (lambda plan: -plan.condition)
    # A random motion may be better where the optimisation was stopped early.
    best = max((*candidates, *starts), key=score)
    return replace(best, random=comparisons[len(comparisons) // 2])


class _Problem:
    """The optimisation's variables, objective and constraints; x (2 (N - 1), n) are coefficients of sines at rest."""

    def __init__(self, robot: RobotQueries, design: ExcitationDesign) -> None:
        _check(robot, design)
        self.robot, self.design = robot, design
        self.names = robot.configuration.velocity_names
        self.start, self.lower, self.upper = _ranges(robot, design)
        self.rate_limits = _rate_limits(robot, design)
        # The largest rates of a quintic from rest to rest, times T, T^2 and T^3, relative to the distance.
        factors = (1.875, 10.0 / math.sqrt(3.0), 60.0)
        rates = zip(factors, self.rate_limits, (1.0, 2.0, 3.0), strict=False)
        durations = [(factor * (self.upper - self.lower) / limit) ** (1.0 / k) for factor, limit, k in rates]
        self.approach_s = max(1.0, float(np.max(durations)))
        self.noise = _noise(robot, design)
        self.model = inertial_model(robot)
        widths = file_widths(robot)
        pairs = [(kind, k) for kind in design.friction for k in range(robot.nv)]
        terms = [FrictionTerm(self.names[k], k, kind, widths[k]) for kind, k in pairs]
        self.terms = self._independent(terms)
        self.dependent = tuple(term.name for term in terms if term not in self.terms)
        parameters = robot.dynamic_parameters()
        theta = dict(zip(parameters.parameters, parameters.theta.tolist(), strict=True))
        friction = [theta.get(f"{term.joint}.{FILE_PARAMETERS.get(term.kind)}", 0.0) for term in self.terms]
        self.values = np.concatenate([self.model.file_values, friction])
        order = np.arange(1.0, design.harmonics + 1)
        self.sines, self.cosines = null_space(order[None]), null_space(order[None] ** 2)
        samples = SAMPLES_PER_HARMONIC * design.harmonics
        self.basis = self._basis(self.motion(np.zeros((2 * design.harmonics - 2, len(self.names)))).times(samples))

    def _independent(self, terms: list[FrictionTerm]) -> tuple[FrictionTerm, ...]:
        """Returns the terms whose columns at random states are no sums of multiples of the columns before them, as is
        the offset of a vertical slide, whose weight is constant.
        """
        rng, nv = np.random.default_rng(self.design.seed), self.robot.nv
        count = 3 * (len(self.model.names) + len(terms))  # more rows than columns, so that chance makes none dependent
        q = rng.uniform(self.lower, self.upper, (count, nv))
        v = rng.uniform(-self.rate_limits[0], self.rate_limits[0], (count, nv))
        Y = _rows(self.model, terms, Reference(q, v, rng.uniform(-1.0, 1.0, (count, nv)))).reshape(count * nv, -1)
        Y /= np.linalg.norm(Y, axis=0)
        first = len(self.model.names)
        basis = np.linalg.qr(Y[:, :first])[0]
        independent_terms = []
        for term, column in zip(terms, Y[:, first:].T, strict=True):
            part = column - basis @ (basis.T @ column)
            if np.linalg.norm(part) > THRESHOLD:
                independent_terms.append(term)
                basis = np.column_stack([basis, part / np.linalg.norm(part)])
        return tuple(independent_terms)

    def motion(self, x: Array) -> FourierMotion:
        """Returns the motion of coefficients x."""
        rows = self.design.harmonics - 1
        return FourierMotion(self.start, self.sines @ x[:rows], self.cosines @ x[rows:], self.design.period_s)

    def coefficients(self, motion: FourierMotion) -> Array:
        """Returns x of a motion: the inverse of `motion`."""
        return np.vstack([self.sines.T @ motion.sine, self.cosines.T @ motion.cosine])

    def _basis(self, t: Array) -> Array:
        """(4, T, 2 (N - 1)): q - q_0, v, a and jerk of one joint at the times t, per entry of x."""
        unit = np.eye(self.design.harmonics)
        zero = np.zeros_like(unit)
        start = np.zeros(self.design.harmonics)
        motions = (FourierMotion(start, *parts, self.design.period_s) for parts in ((unit, zero), (zero, unit)))
        of_sines, of_cosines = ((*motion.sample(t), motion.jerk(t)) for motion in motions)
        return np.stack(
            [np.hstack([s @ self.sines, c @ self.cosines]) for s, c in zip(of_sines, of_cosines, strict=True)]
        )

    def states(self, x: Array) -> tuple[Reference, Array]:
        """The states of the samples, (T, n) each, and their jerks."""
        q, v, a, jerk = self.basis @ x
        return Reference(self.start + q, v, a), jerk

    def information(self, states: Reference) -> tuple[Array, Array]:
        """Returns M, the mean over the states, (nb, nb), and Y_b with rows divided by the noise, (T, nv, nb)."""
        Y = _rows(self.model, self.terms, states) / self.noise[:, None]
        return gram(Y.reshape(-1, Y.shape[-1])) / len(Y), Y

    def objective(self, x: Array) -> tuple[float, Array, Array]:
        """Returns the objective, its gradient (3, T, n) with respect to q, v and a of the samples, and M."""
        states, _ = self.states(x)
        M, Y = self.information(states)
        value, S = _log_determinant(M) if self.design.objective == "determinant" else _log_condition(M)
        weights = 2.0 / len(Y) * (Y @ S) / self.noise[:, None]
        return value, self._contracted(states, weights), M

    def _contracted(self, states: Reference, weights: Array) -> Array:
        """Returns (3, T, n): the derivatives of <weights, Y> with respect to q, v and a of each state."""
        inertial = np.zeros((*weights.shape[:2], len(self.model.parameters)))
        inertial[..., self.model.columns] = weights[..., : len(self.model.columns)]

        def product(k: int, change: Array) -> Array:
            inputs = list(states)
            inputs[k] = inputs[k] + change
            return np.asarray(
                np.einsum("tij,tij->t", self.robot.inverse_dynamics_regressor(*inputs).regressor, inertial)
            )

        def products(k: int, changes: Array) -> Array:
            # A call for each direction, whose Y stays in the cache: one for all takes four times as long at 20 joints.
            return np.stack([product(k, change) for change in changes], axis=1)

        step = STEP * np.eye(len(self.names))
        by_q, by_v = ((products(k, step) - products(k, -step)) / (2.0 * STEP) for k in (0, 1))
        for term, weight in zip(self.terms, np.moveaxis(weights[..., len(self.model.columns) :], -1, 0), strict=True):
            slope = (term.column(states.v + STEP) - term.column(states.v - STEP)) / (2.0 * STEP)
            by_v[:, term.index] += slope * weight[:, term.index]
        # Y is affine in a: differences over any step are exact.
        unit, rest = np.eye(len(self.names)), np.zeros((1, len(self.names)))
        return np.stack([by_q, by_v, products(2, unit) - products(2, rest)])

    def limits(self, states: Reference, jerk: Array) -> tuple[Array, Array]:
        """Returns (T, m) shares of limits that are used, less 1, and their derivatives (T, m, 4, n) by q, v, a, jerk.

        The rows are those of `limit_names`. Limits that are infinite have a share of 0.
        """
        count, n = states.q.shape
        derivatives = self.robot.inverse_dynamics_derivatives(*states)
        slopes = np.zeros((5, count, n, 4, n))
        for k in range(4):
            slopes[k][..., k, :] = np.eye(n)
        slopes[4][..., :3, :] = np.stack([derivatives.dtau_dq, derivatives.dtau_dv, derivatives.dtau_da], axis=2)
        middle, half = 0.5 * (self.upper + self.lower), 0.5 * (self.upper - self.lower)
        scale = np.stack([half, *self.rate_limits])[:, None]
        shares = np.stack([states.q - middle, states.v, states.a, jerk, derivatives.tau]) / scale
        slopes /= scale[..., None, None]
        parts = [np.moveaxis(shares, 0, 1).reshape(count, -1), np.moveaxis(slopes, 0, 1).reshape(count, 5 * n, 4, n)]
        values, rates = [parts[0] - 1.0, -parts[0] - 1.0], [parts[1], -parts[1]]
        for box in self.design.keep_out:
            distance, slope, _ = self._distance(box, states)
            values.append(-distance[:, None])
            rates.append(np.zeros((count, 1, 4, n)))
            rates[-1][:, 0, 0] = -slope
        return np.concatenate(values, axis=1), np.concatenate(rates, axis=1)

    @cached_property
    def limit_names(self) -> list[tuple[str, str]]:
        """Kind and joint or link of each row of `limits`."""
        kinds = ("position", "velocity", "acceleration", "jerk", "effort")
        rows = [(kind, name) for kind in kinds for name in self.names]
        return [*rows, *rows, *(("keep-out", box.link) for box in self.design.keep_out)]

    def _distance(self, box: KeepOut, states: Reference) -> tuple[Array, Array, Array]:
        """Returns the distance (T,) m of the point from the box along the axis where it is largest, negative inside of
        it, its derivative (T, n) by q, and the point (T, 3) m in the world.
        """
        motion = self.robot.point_motion(states.q, states.v, box.link, point=box.point)
        middle, half = (0.5 * (np.add(box.upper, sign * np.array(box.lower))) for sign in (1.0, -1.0))
        offset = motion.position - middle
        axis = np.argmax(np.abs(offset) - half, axis=1)
        row = np.arange(len(offset))
        distance = (np.abs(offset) - half)[row, axis]
        return distance, np.sign(offset[row, axis])[:, None] * motion.jacobian[row, 3 + axis], motion.position

    def peaks(self, motion: FourierMotion) -> Array:
        """Returns (m,), the largest use of each limit at any time, less 1, by the bounds of the module."""
        times = motion.times(GRID)
        states = motion.sample(times)
        values = self.limits(states, motion.jerk(times))[0]
        bends = np.abs(np.roll(values, 1, 0) - 2.0 * values + np.roll(values, -1, 0)).max(axis=0) / 8.0
        factor = 1.0 / math.cos(math.pi * self.design.harmonics / GRID) - 1.0
        excess = np.array([bends[k] if kind == "effort" else 0.0 for k, (kind, _) in enumerate(self.limit_names)])
        half = 5 * len(self.names)
        linear = np.array([kind not in ("effort", "keep-out") for kind, _ in self.limit_names])
        largest = np.abs(values[:, :half] + 1.0).max(axis=0)
        excess += np.where(linear, factor * np.concatenate([largest, largest, np.zeros(len(linear) - 2 * half)]), 0.0)
        for k, box in enumerate(self.design.keep_out):
            point = self._distance(box, states)[2]
            step = np.linalg.norm(np.roll(point, -1, 0) - point, axis=1).max()
            bend = np.linalg.norm(np.roll(point, 1, 0) - 2.0 * point + np.roll(point, -1, 0), axis=1).max()
            excess[2 * half + k] = 0.5 * step + 0.125 * bend
        return np.asarray(values.max(axis=0) + excess)

    def check_rest(self) -> None:
        """Raises if the robot at rest at the start is beyond a limit."""
        zero = np.zeros((1, len(self.names)))
        values = self.limits(Reference(self.start[None], zero, zero), zero)[0][0]
        k = int(np.argmax(values))
        if values[k] >= 0.0:
            raise FailedPreconditionError(self._refusal(k, values[k], "at rest at the start"))

    def _refusal(self, row: int, value: float, phase: str) -> str:
        kind, name = self.limit_names[row]
        if kind == "keep-out":
            text = f"its point is {value:.3g} m inside of its keep-out box; change start or keep_out"
            return f"link '{name}' of robot '{self.robot.name}': {phase} {text}"
        text = f"it uses {1.0 + value:.3g} of its limit of {kind}, allowed is less than 1; change start or the limit"
        return f"joint '{name}' of robot '{self.robot.name}': {phase} {text}"

    def within_limits(self, motion: FourierMotion, shrink: float = _SHRINK) -> FourierMotion:
        """Returns the motion, scaled towards its start until it meets all limits.

        Raises:
            FailedPreconditionError: Even a thousandth of the motion is beyond a limit.
        """
        factor = 1.0
        times = motion.times(len(self.basis[0]))
        while factor > 1e-3:
            candidate = motion.scaled(factor)
            values = self.limits(candidate.sample(times), candidate.jerk(times))[0].max(axis=0)
            if values.max() <= 0.0:  # the few samples first, because each grid takes as long as 40 of them
                values = self.peaks(candidate)
            if values.max() <= 0.0:
                return candidate
            factor *= shrink
            shrink **= 1.1
        row = int(np.argmax(values))
        raise FailedPreconditionError(self._refusal(row, values[row], "in small motions about the start"))

    def random_motion(self, rng: np.random.Generator) -> FourierMotion:
        """Returns a random motion: joints as large as their limits allow, then scaled to meet the other limits."""
        order = np.arange(1, self.design.harmonics + 1)[:, None]
        amplitudes = rng.normal(size=(2, self.design.harmonics, len(self.names))) / order
        x = np.vstack([self.sines.T @ amplitudes[0], self.cosines.T @ amplitudes[1]])
        q, *derivatives = self.basis @ x
        rates = [limit / np.abs(rate).max(axis=0) for limit, rate in zip(self.rate_limits, derivatives, strict=False)]
        # A motion to one side only has a largest or smallest distance of 0, also -0.
        upper_room = (self.upper - self.start) / np.maximum(q.max(axis=0), 1e-300)
        lower_room = (self.start - self.lower) / np.maximum(-q.min(axis=0), 1e-300)
        return self.within_limits(self.motion(x * np.minimum.reduce([upper_room, lower_room, *rates])), shrink=0.95)

    def optimum(self, x: Array, progress: Callable[[float], object]) -> Array:
        """Returns the coefficients of a local optimum, by an augmented Lagrangian, from x."""
        multipliers, penalty, violation, margin = np.zeros(1), 10.0, math.inf, np.zeros(1)
        units = np.minimum(self.upper - self.start, self.start - self.lower)  # so that all joints count alike
        steps = 0

        def lagrangian(y: Array) -> tuple[float, Array]:
            x = y.reshape(-1, len(units)) * units
            value, by_states, M = self.objective(x)
            excess, slopes = self.limits(*self.states(x))
            excess = excess + margin
            force = np.maximum(multipliers + penalty * excess, 0.0)
            gradient = np.einsum("tm,tmkj->ktj", force, slopes)
            gradient[:3] += by_states / len(M)
            total = value / len(M) + float(np.sum(force**2 - multipliers**2)) / (2.0 * penalty)
            return total, (np.einsum("ktr,ktj->rj", self.basis, gradient) * units).ravel()

        def step(_: Array) -> None:
            nonlocal steps
            steps += 1
            progress(min(1.0, steps / self.design.iterations))

        y = (x / units).ravel()
        for _ in range(_OUTER):
            y = minimize(
                lagrangian,
                y,
                jac=True,
                method="L-BFGS-B",
                callback=step,
                options={"maxiter": math.ceil(self.design.iterations / _OUTER)},
            ).x
            x = y.reshape(-1, len(units)) * units
            excess = self.limits(*self.states(x))[0]
            # What limits are exceeded by between the samples, for the next search.
            margin = SLACK + self.peaks(self.motion(x)) - excess.max(axis=0)
            excess = excess + margin
            multipliers = np.maximum(multipliers + penalty * excess, 0.0)
            previous, violation = violation, float(np.maximum(excess, 0.0).max())
            penalty *= 4.0 if violation > 0.25 * previous else 1.0
        progress(1.0)
        return np.asarray(y.reshape(-1, len(units)) * units)

    def excitation(self, motion: FourierMotion) -> Excitation:
        """Returns the motion with its errors and peaks."""
        count = max(1, round(self.design.period_s * self.design.rate_hz))
        M, _ = self.information(motion.sample(motion.times(count)))
        samples = count * self.design.periods
        length = np.sqrt(np.diag(M))
        eigenvalues, vectors = np.linalg.eigh(M / np.outer(length, length))
        if eigenvalues[0] <= len(M) * np.finfo(float).eps * eigenvalues[-1]:
            raise FailedPreconditionError(
                f"robot '{self.robot.name}': motions with {self.design.harmonics} harmonics do not determine all "
                f"{len(M)} parameters; give more harmonics"
            )
        variance = np.sum(vectors**2 / eigenvalues, axis=1) / length**2 / samples
        shares = dict[tuple[str, str], float]()
        for name, value in zip(self.limit_names, self.peaks(motion).tolist(), strict=True):
            shares[name] = max(1.0 + value, shares.get(name, 0.0))
        return Excitation(
            self.names,
            motion,
            self.model,
            self.terms,
            self.values,
            np.sqrt(variance),
            math.sqrt(eigenvalues[-1] / eigenvalues[0]),
            float(np.sum(np.log(eigenvalues)) + 2.0 * np.sum(np.log(length)) + len(M) * math.log(samples)),
            tuple(Peak(*name, share) for name, share in shares.items() if share > 0.0),
            self.noise,
            samples,
            self.design.periods,
            self.approach_s,
            self.dependent,
        )


def _rows(model: InertialModel, terms: Sequence[FrictionTerm], states: Reference) -> Array:
    """Returns the columns (T, nv, p) of the inertial parameters and of friction."""
    return np.concatenate([model.effort_columns(*states), friction_columns(terms, states.v)], axis=-1)


def _log_determinant(M: Array) -> tuple[float, Array]:
    """-log det M and its derivative by M."""
    return -float(np.linalg.slogdet(M)[1]), -np.asarray(np.linalg.inv(M), dtype=np.float64)


def _log_condition(M: Array) -> tuple[float, Array]:
    """The logarithm of the condition number of C = D^-1/2 M D^-1/2 with D = diag(M), and its derivative by M.

    A simple eigenvalue changes by u^T dC u = w^T dM w - lambda sum_i w_i^2 dM_ii, with w = D^-1/2 u.
    """
    length = np.sqrt(np.diag(M))
    eigenvalues, vectors = np.linalg.eigh(M / np.outer(length, length))
    smallest, largest = (
        np.outer(w, w) / eigenvalues[k] - np.diag(w**2) for k in (0, -1) for w in (vectors[:, k] / length,)
    )
    return math.log(eigenvalues[-1] / eigenvalues[0]), largest - smallest


def _check(robot: RobotQueries, design: ExcitationDesign) -> None:
    """Raises for robots without excitation, and for designs with a number out of range."""
    if robot.description.loop_joints:
        raise FailedPreconditionError(
            f"robot '{robot.name}' has closed loops, which sines of all joints would open; excite a robot without loops"
        )
    multi_dof_types = [joint.type for joint in robot.configuration.joints if joint.nq != 1 or joint.nv != 1]
    if multi_dof_types:
        raise FailedPreconditionError(
            f"robot '{robot.name}' has a joint of type {multi_dof_types[0]}, whose positions do not add; "
            "load the robot with a fixed root, or without that joint"
        )
    motors = {joint.name: joint.driven for joint in robot.description.joints}
    for name, effort in zip(robot.configuration.velocity_names, robot.limits.effort, strict=True):
        if effort <= 0.0 or motors[name] is False:
            raise FailedPreconditionError(f"joint '{name}' of robot '{robot.name}' has no motor, which excites it")
    try:
        convert(msgspec.to_builtins(design), ExcitationDesign)  # which a constructor does not check
    except MismatchError as error:
        raise InvalidArgumentError(f"{dotted(error.place)}: {error}", path=dotted(error.place)) from None
    for box in design.keep_out:
        if not np.all(np.less(box.lower, box.upper)):
            text = f"corners of a box must be lower < upper, found {box.lower} and {box.upper}"
            raise InvalidArgumentError(text, path="keep_out")


def _by_joint(
    robot: RobotQueries,
    numbers: Mapping[str, float],
    default: Array,
    path: str,
    low: float = 0.0,
    high: Array | float = math.inf,
) -> Array:
    """Returns (n,), the numbers of the named joints, more than `low` and at most `high`, else the default."""
    names, values = robot.configuration.velocity_names, np.array(default, dtype=np.float64)
    ceilings = np.broadcast_to(high, len(names))
    for name, number in numbers.items():
        if name not in names:
            text = f"robot '{robot.name}' has no joint '{name}'{did_you_mean(name, names)}"
            raise InvalidArgumentError(text, path=path)
        k = names.index(name)
        if not (math.isfinite(number) and low < number <= ceilings[k]):
            bounds = f"a number more than {low:g}, at most {ceilings[k]:g}"
            raise InvalidArgumentError(f"{path} of joint '{name}' must be {bounds}, found {number:g}", path=path)
        values[k] = number
    return values


def _named(robot: RobotQueries, numbers: float | Mapping[str, float] | None) -> Mapping[str, float]:
    """Returns numbers by joint; one number is that of all joints."""
    if isinstance(numbers, float | int):
        return dict.fromkeys(robot.configuration.velocity_names, numbers)
    return numbers or {}


def _ranges(robot: RobotQueries, design: ExcitationDesign) -> tuple[Array, Array, Array]:
    """Returns the start, and the lowest and highest positions, (n,) each."""
    limits = robot.limits
    middle = limits.middle(np.zeros(robot.nq))
    start = _by_joint(robot, design.start, middle, "start", low=-math.inf)
    bounded = np.isfinite(limits.lower) & np.isfinite(limits.upper)
    with np.errstate(invalid="ignore"):
        half = np.where(bounded, 0.5 * design.position_share * (limits.upper - limits.lower), design.free_range)
    if not half.all():
        name = robot.configuration.velocity_names[int(np.argmin(half))]
        raise FailedPreconditionError(
            f"joint '{name}' of robot '{robot.name}' cannot move: its limits are one position"
        )
    centre = np.where(bounded, middle, start)
    return start, np.maximum(centre - half, limits.lower), np.minimum(centre + half, limits.upper)


def _rate_limits(robot: RobotQueries, design: ExcitationDesign) -> tuple[Array, Array, Array, Array]:
    """Returns the limits of velocity, acceleration, jerk and effort, (n,) each."""
    limits, n = robot.limits, robot.nv
    acceleration, jerk = (np.broadcast_to(limit, n) for limit in (limits.acceleration, limits.jerk))
    velocity = _by_joint(robot, design.velocity, design.velocity_share * limits.speeds, "velocity", high=limits.speeds)
    acceleration = _by_joint(robot, design.acceleration, acceleration, "acceleration", high=acceleration)
    jerk = _by_joint(robot, _named(robot, design.jerk), jerk, "jerk", high=jerk)
    effort = _by_joint(robot, design.effort, design.effort_share * limits.efforts, "effort", high=limits.efforts)
    if not np.isfinite(velocity).all():
        name = robot.configuration.velocity_names[int(np.argmax(~np.isfinite(velocity)))]
        text = f"joint '{name}' of robot '{robot.name}' has no velocity limit: give one in velocity"
        raise FailedPreconditionError(text)
    return velocity, acceleration, jerk, effort


def _noise(robot: RobotQueries, design: ExcitationDesign) -> Array:
    """Returns the standard deviations of the efforts, (nv,)."""
    names = robot.configuration.velocity_names
    noise = _by_joint(robot, _named(robot, design.noise), 0.01 * robot.limits.efforts, "noise")
    if not np.isfinite(noise).all():
        name = names[int(np.argmax(~np.isfinite(noise)))]
        raise FailedPreconditionError(f"joint '{name}' of robot '{robot.name}' has no effort limit: give its noise")
    return noise
