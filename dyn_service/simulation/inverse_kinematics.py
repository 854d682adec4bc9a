"""Inverse kinematics: joint positions at which points of links reach targets, for many problems at once.

A problem is a set of targets that one position q shall reach. Each iteration of each problem solves the damped normal
equations (Levenberg-Marquardt) and stays within the position limits:

    (J^T W^2 J + mu 1) dq = J^T W^2 e,    mu = e^T W^2 e / 2 + 1e-12 tr(J^T W^2 J)

e is the error of all targets, J their Jacobian (the rows of `point_motion`), W the weights per metre and per radian.
The damping is proportional to the squared error, so the last steps are Gauss-Newton steps. Joints at a limit that the
step would leave are held, and the others solve again. A problem without an answer begins again at a random position.

Only `point_motion` and `link_poses` of the robot are used: a remote robot gets one request for each target and
iteration, for all problems together.

Source: Newton-Euler document, (4) to (8), for J; the damping is Sugihara's (2011), without its constant term. Checked
by tests/simulation/test_inverse_kinematics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dyn_service.api.arrays import broadcast, found, numbers, vectors
from dyn_service.api.queries import Array, RobotQueries
from dyn_service.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from dyn_service.model.configuration import Limits
from dyn_service.model.joints import joint_of
from dyn_service.model.rotations import rotation_vector
from dyn_service.support.suggestions import known_instead

Rows = NDArray[np.int_]
"""Numbers of problems."""

_LARGEST = 1e6
"""Largest weight and length of a quaternion, and inverse of the smallest; starting positions ignore larger limits."""

MAX_STEP = 1.0
"""rad | m, largest entry of a step dq: the Jacobian says little about positions farther away."""

_STALLED = 1e-3
"""Smallest relative decrease of the squared error that counts as progress."""

_MAX_STALLED = 5
"""Iterations without progress after which an attempt ends."""

_STATIONARY = 1e-2
"""Length of J^T W e, as a share of |W J| |W e|, below which no small motion decreases the error."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target of one link: position of a point, orientation, or direction of an axis.

    At least one of `position`, `rotation` and `direction` is needed. Leading axes (...) are those of the problems.

    Attributes:
        link: The link.
        position: (..., 3) m, of the point in the world.
        rotation: (..., 3, 3) R_WL: columns are the link's axes in world axes.
        direction: (..., 3) in world axes, where `axis` shall point; rotations about it are free.
        axis: (3,) in link axes; its length is ignored, as that of `direction`.
        point: (3,) m, in the link's frame.
        position_weight: Per metre, between 1e-6 and 1e6.
        rotation_weight: Per radian, of `rotation` and `direction`, between 1e-6 and 1e6.

    Raises:
        InvalidArgumentError: A field has the wrong type, shape or value, or all parts are absent; `path` names it.
    """

    link: str
    position: ArrayLike | None = None
    rotation: ArrayLike | None = None
    direction: ArrayLike | None = None
    axis: ArrayLike = (0.0, 0.0, 1.0)
    point: ArrayLike = (0.0, 0.0, 0.0)
    position_weight: float = 1.0
    rotation_weight: float = 1.0

    if not TYPE_CHECKING:

        def __new__(cls, *values: Any, **_: Any) -> Target:
            """Refuses values without their names."""
            if values:
                raise InvalidArgumentError(
                    f"a Target takes its values by name, found {found(values[0])} without one: write "
                    "Target(link=.., position=..), with rotation= or direction= for the orientation",
                    path="target",
                )
            return super().__new__(cls)

    def __post_init__(self) -> None:
        Goal.read(self, "target")


@dataclass(frozen=True, eq=False)
class InverseKinematics:
    """The answer: the position of each problem, and how far it is from each target.

    Attributes:
        q: (..., nq) positions within the limits; of problems that were not solved, those with the smallest error.
            Quaternions have length 1. Locked joints have the seed's position.
        reached: (...,) whether all errors are within the tolerances.
        position_error: (..., targets) m; 0 for targets without a position.
        rotation_error: (..., targets) rad, the angle to `rotation` or `direction`; 0 for targets without.
        reason: (...,) why a problem was not solved, "" if it was:
            "out_of_reach": a position is farther from the origin of the first moving link than the sum of link lengths
            and prismatic travel;
            "limit": with position limits ignored, a solution was found from q;
            "singular": no small motion within the limits decreases the error, as J^T W^2 e of the joints that can move
            is nearly 0; the target may be unreachable;
            "not_converged": none of these; more iterations or attempts may help.
        attempts: (...,) number of starting positions tried.
    """

    q: Array
    reached: NDArray[np.bool_]
    position_error: Array
    rotation_error: Array
    reason: NDArray[np.str_]
    attempts: NDArray[np.int_]


@np.errstate(over="ignore", invalid="ignore")  # of positions whose square is no number
def inverse_kinematics(
    robot: RobotQueries,
    targets: Target | Sequence[Target],
    *others: Never,
    seed: ArrayLike | None = None,
    position_tolerance: float = 1e-6,
    rotation_tolerance: float = 1e-6,
    iterations: int = 60,
    attempts: int = 20,
    rng: np.random.Generator | int = 0,
) -> InverseKinematics:
    """Returns, for each problem, the position within the limits that reaches all targets, or the best one found.

    Args:
        robot: In this process or remote.
        targets: One, or several that hold at once; their leading axes broadcast.
        others: Must be empty: the other arguments are given by name.
        seed: (..., nq) where to begin, moved into the limits; leading axes broadcast with those of targets. Quaternions
            of other lengths than 1 are normalised. None: the middle of the limits, neutral where one is infinite or
            larger than 1e6. Locked joints stay at the seed, also outside the limits (a remote robot does not say which
            joints are locked, so theirs are moved into the limits).
        position_tolerance: m, largest distance of a point from its position.
        rotation_tolerance: rad, largest angle.
        iterations: Largest number for each attempt.
        attempts: Largest number of starting positions: the seed, then random ones within the limits (joints without
            limits: up to pi, rad or m, away from the seed). Joints that move no target's link stay at the seed.
        rng: Of the random positions, or its seed. The same seed gives the same answer.

    Raises:
        InvalidArgumentError: An argument has the wrong type or shape, a target has no part, or a number is out of its
            range.
        NotFoundError: The robot has no such link.
        UnimplementedError: The robot has closed loops; `assemble` with the target's joint fixed closes them.
    """
    if robot.description.loop_joints:
        raise UnimplementedError(
            f"inverse_kinematics has no answer for robot '{robot.name}': joint "
            f"'{robot.description.loop_joints[0].name}' closes a loop, which its steps would open; a link with a joint "
            'to the base reaches a position by robot.assemble(q, fixed=[that joint]), and loops="cut" reads the tree '
            "alone"
        )
    configuration, target_list = robot.configuration, _listed(targets, others)
    _check_numbers(iterations, attempts, position_tolerance, rotation_tolerance, rng)
    goals = [Goal.read(target, f"targets[{k}]", robot) for k, target in enumerate(target_list)]
    seeds = _bounds(robot).middle(configuration.neutral) if seed is None else _seed(robot, seed)
    lead = broadcast({"seed": seeds.shape[:-1], **{f"targets[{k}]": goal.lead for k, goal in enumerate(goals)}})
    count, locked = int(np.prod(lead)), _of_positions(robot, robot.free == 0.0)
    solver = _Solver(
        robot,
        [goal.broadcast_to(lead) for goal in goals],
        np.array([position_tolerance, rotation_tolerance], float),
        iterations,
        np.where(locked, -np.inf, robot.limits.lower),
        np.where(locked, np.inf, robot.limits.upper),
    )
    seeds = np.broadcast_to(seeds, (*lead, configuration.nq)).reshape(count, configuration.nq)
    best, attempt_counts = solver.search(seeds, attempts, np.random.default_rng(rng))
    reason, unsolved = np.full(count, "", dtype="<U13"), np.flatnonzero(~best.reached)
    if len(unsolved):
        reason[unsolved] = _reasons(robot, solver, best, unsolved)
    return InverseKinematics(
        best.q.reshape(*lead, configuration.nq),
        best.reached.reshape(lead)[()],
        best.errors[..., 0].reshape(*lead, len(goals)),
        best.errors[..., 1].reshape(*lead, len(goals)),
        reason.reshape(lead)[()],
        attempt_counts.reshape(lead)[()],
    )


def _listed(targets: Target | Sequence[Target], others: Sequence[Any]) -> list[Target]:
    if others:
        raise InvalidArgumentError(
            f"inverse_kinematics takes robot and targets by position, found also {found(others[0])}: write several "
            "targets as a list, targets=[..], and where to begin as seed=..",
            path="targets" if isinstance(others[0], Target) else "seed",
        )
    if not isinstance(targets, Target | Sequence):
        raise InvalidArgumentError(f"targets must be a Target or a list, found {found(targets)}", path="targets")
    if not isinstance(targets, Target) and not targets:
        raise InvalidArgumentError("targets is empty: at least one is needed", path="targets")
    return [targets] if isinstance(targets, Target) else list(targets)


def _check_numbers(iterations: Any, attempts: Any, position_tolerance: Any, rotation_tolerance: Any, rng: Any) -> None:
    for name, value in (("iterations", iterations), ("attempts", attempts)):
        if not _is_whole(value) or value < 1:
            raise InvalidArgumentError(f"{name} must be a whole number, at least 1, found {found(value)}", path=name)
    for name, tolerance in (("position_tolerance", position_tolerance), ("rotation_tolerance", rotation_tolerance)):
        if not _is_real(tolerance) or not 0.0 < tolerance <= float(np.finfo(float).max):
            raise InvalidArgumentError(f"{name} must be a positive finite number, found {found(tolerance)}", path=name)
    if not isinstance(rng, np.random.Generator) and (not _is_whole(rng) or rng < 0):
        raise InvalidArgumentError(f"rng must be a Generator or a whole number >= 0, found {found(rng)}", path="rng")


@dataclass(frozen=True)
class Goal:
    """A target as arrays. Absent parts are None."""

    link: str
    point: Array
    axis: Array
    position: Array | None
    rotation: Array | None
    direction: Array | None
    weights: tuple[float, float]
    lead: tuple[int, ...] = ()

    @classmethod
    def read(cls, target: Target, path: str, robot: RobotQueries | None = None) -> Goal:
        """Returns a target, checked. robot: which must have its link; None: any name is good."""
        if not isinstance(target, Target):
            raise InvalidArgumentError(f"{path} must be a Target, found {found(target)}", path=path)
        if not isinstance(target.link, str):
            raise InvalidArgumentError(f"{path}.link must be a name, found {found(target.link)}", path=f"{path}.link")
        if robot is not None and target.link not in robot.link_names:
            hint = known_instead(target.link, robot.link_names, "its links are")
            raise NotFoundError(f"robot '{robot.name}' has no link '{target.link}'{hint}", path=f"{path}.link")
        if target.rotation is not None and target.direction is not None:
            raise InvalidArgumentError(f"{path} has both rotation and direction: give one of them", path=path)
        shapes = {"position": (3,), "rotation": (3, 3), "direction": (3,)}
        values = {name: getattr(target, name) for name in shapes}
        parts = {name: _finite(f"{path}.{name}", x, shapes[name]) for name, x in values.items() if x is not None}
        position, rotation, direction = (parts.get(name) for name in shapes)
        if not parts:
            raise InvalidArgumentError(f"{path} needs a position, a rotation or a direction", path=path)
        if rotation is not None:
            small = (np.abs(rotation) < 2.0).all()
            if not small or not np.allclose(rotation @ np.swapaxes(rotation, -1, -2), np.eye(3), atol=1e-6):
                raise InvalidArgumentError(f"{path}.rotation must be a rotation matrix: R R^T is not 1", path=path)
            if (np.linalg.det(rotation) < 0.0).any():
                text = f"{path}.rotation is a reflection: its determinant is -1, expected 1"
                raise InvalidArgumentError(text, path=path)
        for name in ("position_weight", "rotation_weight"):
            weight, bounds = getattr(target, name), f"between {1.0 / _LARGEST:g} and {_LARGEST:g}"
            if not _is_real(weight) or not 1.0 / _LARGEST <= weight <= _LARGEST:
                text = f"{path}.{name} must be a number {bounds}, found {found(weight)}"
                raise InvalidArgumentError(text, path=f"{path}.{name}")
        weights = (float(target.position_weight), float(target.rotation_weight))
        point = _finite(f"{path}.point", target.point, (3,), single=True)
        axis = _unit(f"{path}.axis", _finite(f"{path}.axis", target.axis, (3,), single=True))
        if direction is not None:
            direction = _unit(f"{path}.direction", direction)
        lead = broadcast({name: x.shape[: x.ndim - len(shapes[name])] for name, x in parts.items()})
        return cls(target.link, point, axis, position, rotation, direction, weights, lead)

    def broadcast_to(self, lead: tuple[int, ...]) -> Goal:
        """Returns it with one row for each problem."""
        position, rotation, direction = (
            None if x is None else np.broadcast_to(x, (*lead, *x.shape[len(x.shape) - size :])).reshape(-1, *[3] * size)
            for x, size in ((self.position, 1), (self.rotation, 2), (self.direction, 1))
        )
        return Goal(self.link, self.point, self.axis, position, rotation, direction, self.weights)


@dataclass
class _Best:
    """q: (n, nq). errors: (n, targets, 2), m and rad. cost: (n,), squared weighted error. reached: (n,)."""

    q: Array
    errors: Array
    cost: Array
    reached: NDArray[np.bool_]

    @classmethod
    def worst(cls, q: Array, targets: int) -> _Best:
        n = len(q)
        return cls(q.copy(), np.full((n, targets, 2), np.inf), np.full(n, np.inf), np.zeros(n, bool))

    def keep_better(self, rows: Rows, other: _Best) -> None:
        """Replaces these rows by those of `other` that have a smaller error."""
        better = other.reached | (other.cost < self.cost[rows])
        for name in ("q", "errors", "cost", "reached"):
            getattr(self, name)[rows[better]] = getattr(other, name)[better]


@dataclass
class _Solver:
    """tolerances: (2,), m and rad. lower, upper: (nq,)."""

    robot: RobotQueries
    goals: Sequence[Goal]
    tolerances: Array
    iterations: int
    lower: Array
    upper: Array
    scalar_entries: NDArray[np.int_] = field(init=False)
    """(k, 2): index in q and in v of each joint with one degree of freedom. Other joints have no limits."""
    moving: NDArray[np.bool_] = field(init=False)
    """(nv,): joints that were found to move the link of a target."""

    def __post_init__(self) -> None:
        configuration = self.robot.configuration
        slices = zip(configuration.joints, configuration.q_slices, configuration.v_slices, strict=True)
        entries = [(in_q.start, in_v.start) for joint, in_q, in_v in slices if joint.nq == joint.nv == 1]
        self.scalar_entries = np.array(entries, int).reshape(-1, 2)
        self.moving = np.zeros(configuration.nv, bool)

    def search(self, seeds: Array, attempts: int, rng: np.random.Generator) -> tuple[_Best, NDArray[np.int_]]:
        """Returns the best position of each problem, from its seed (n, nq) and from random ones, and their number."""
        best = _Best.worst(np.clip(seeds, self.lower, self.upper), len(self.goals))
        counts, rows = np.zeros(len(seeds), int), np.arange(len(seeds))
        for attempt in range(attempts):
            q = seeds[rows] if attempt == 0 else _random(self.robot, seeds[rows], self.moving, rng)
            best.keep_better(rows, self.solve(q, rows))
            counts[rows] += 1
            rows = rows[~best.reached[rows]]
            if not len(rows):
                break
        return best, counts

    def solve(self, q: Array, rows: Rows) -> _Best:
        """Iterates from q (n, nq) with the goals of these rows; returns the best position of each."""
        configuration, n = self.robot.configuration, len(q)
        q = self._clip(q)
        best = _Best.worst(q, len(self.goals))
        active, lowest, stalled = np.arange(n), np.full(n, np.inf), np.zeros(n, int)
        for _ in range(self.iterations + 1):
            e, J, errors = self.errors(q[active], rows[active])
            cost = np.minimum(np.einsum("ni,ni->n", e, e), np.finfo(float).max)
            is_reached = np.asarray((errors <= self.tolerances).all(axis=(1, 2)))
            best.keep_better(active, _Best(q[active], errors, cost, is_reached))
            stalled[active] = np.where(cost < (1.0 - _STALLED) * lowest[active], 0, stalled[active] + 1)
            lowest[active] = np.minimum(lowest[active], cost)
            continues = ~is_reached & (stalled[active] < _MAX_STALLED)
            if not continues.any():
                break
            active = active[continues]
            step = self._step(q[active], e[continues], J[continues], cost[continues])
            q[active] = self._clip(configuration.integrate(q[active], step))
        return best

    def errors(self, q: Array, rows: Rows) -> tuple[Array, Array, Array]:
        """Returns the weighted error (n, m), its Jacobian (n, m, nv), and the errors of each target (n, targets, 2)."""
        no_velocity = np.zeros((len(q), self.robot.nv))
        parts, jacobians, sizes = [], [], np.zeros((len(q), len(self.goals), 2))
        for k, goal in enumerate(self.goals):
            motion = self.robot.point_motion(q, no_velocity, goal.link, point=goal.point)
            self.moving |= (motion.jacobian != 0.0).any(axis=(0, 1))
            per_metre, per_radian = goal.weights
            if goal.position is not None:
                error = goal.position[rows] - motion.position
                sizes[:, k, 0] = _length(error)
                parts.append(per_metre * error)
                jacobians.append(per_metre * motion.jacobian[:, 3:])
            if goal.rotation is not None:
                error = rotation_vector(goal.rotation[rows] @ np.swapaxes(motion.rotation, -1, -2))
                jacobian = motion.jacobian[:, :3]
            elif goal.direction is not None:
                axis_now = motion.rotation @ goal.axis
                error = _rotation_between(axis_now, goal.direction[rows])
                jacobian = motion.jacobian[:, :3] - axis_now[..., None] * (axis_now[:, None] @ motion.jacobian[:, :3])
            else:
                continue
            sizes[:, k, 1] = np.linalg.norm(error, axis=-1)
            parts.append(per_radian * error)
            jacobians.append(per_radian * jacobian)
        return np.concatenate(parts, axis=-1), np.concatenate(jacobians, axis=-2), sizes

    def _step(self, q: Array, e: Array, J: Array, cost: Array) -> Array:
        """Returns the damped step (n, nv); joints at a limit that it would leave are held."""
        H, g = np.swapaxes(J, -1, -2) @ J, (e[:, None] @ J)[:, 0]
        diagonal = np.arange(H.shape[-1])
        H[:, diagonal, diagonal] += (0.5 * cost + 1e-12 * np.trace(H, axis1=-2, axis2=-1) + 1e-300)[:, None]
        step = np.asarray(np.linalg.solve(H, g[..., None])[..., 0], np.float64)
        at_limit = np.zeros(step.shape, bool)
        for _ in range(2):
            leaves = self.leaves(q, step)
            blocked = leaves.any(axis=1)
            if not blocked.any():
                break
            at_limit[:, self.scalar_entries[:, 1]] |= leaves
            frozen = at_limit[blocked]
            reduced = np.where(frozen[:, :, None] | frozen[:, None, :], 0.0, H[blocked])
            reduced[:, diagonal, diagonal] += frozen
            step[blocked] = np.linalg.solve(reduced, np.where(frozen, 0.0, g[blocked])[..., None])[..., 0]
        largest = np.abs(step).max(axis=1, initial=0.0)
        return np.asarray(step * np.minimum(1.0, MAX_STEP / np.maximum(largest, 1e-300))[:, None])

    def leaves(self, q: Array, step: Array) -> NDArray[np.bool_]:
        """Returns which of `scalar_entries` are at a limit that a step (n, nv) would leave, (n, k)."""
        in_q, in_v = self.scalar_entries.T
        at_lower, at_upper = q[:, in_q] <= self.lower[in_q], q[:, in_q] >= self.upper[in_q]
        return np.asarray((at_lower & (step[:, in_v] < 0.0)) | (at_upper & (step[:, in_v] > 0.0)))

    def _clip(self, q: Array) -> Array:
        in_q = self.scalar_entries[:, 0]
        q[:, in_q] = np.clip(q[:, in_q], self.lower[in_q], self.upper[in_q])
        return q


def _rotation_between(axis_now: Array, axis_target: Array) -> Array:
    """Returns the shortest rotation vectors (n, 3) from unit vectors to others; from opposite ones about any axis."""
    axis, cosine = np.cross(axis_now, axis_target), np.einsum("ni,ni->n", axis_now, axis_target)
    sine = np.linalg.norm(axis, axis=-1)
    opposite = (sine < 1e-8) & (cosine < 0.0)
    if opposite.any():
        unit = np.eye(3)[np.argmin(np.abs(axis_now[opposite]), axis=-1)]
        axis[opposite] = np.cross(axis_now[opposite], unit)
        sine[opposite] = np.linalg.norm(axis[opposite], axis=-1)
    angle = np.where(opposite, np.pi, np.arctan2(sine, cosine))
    return np.asarray(axis * np.where(sine > 0.0, angle / np.maximum(sine, 1e-300), 1.0)[:, None])


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _finite(path: str, value: ArrayLike, shape: tuple[int, ...], single: bool = False) -> Array:
    """Returns (..., *shape) numbers; `single`: exactly `shape`."""
    array = numbers(value)
    lead = 0 if array is None else array.ndim - len(shape)
    if array is None or array.shape[lead:] != shape or (single and lead) or not np.isfinite(array).all():
        sizes = ", ".join(map(str, shape))
        shape_text = f"({sizes},)" if single else f"(..., {sizes})"
        raise InvalidArgumentError(f"{path} must be {shape_text} finite numbers, found {found(value)}", path=path)
    return array


def _length(vector: Array) -> Array:
    """Returns the lengths of (..., 3), also where their square overflows."""
    length = np.linalg.norm(vector, axis=-1)
    return np.asarray(np.where(np.isinf(length), np.hypot.reduce(vector, axis=-1), length))


def _unit(path: str, vector: Array) -> Array:
    largest = np.abs(vector).max(axis=-1, keepdims=True)
    if (largest == 0.0).any():
        raise InvalidArgumentError(f"{path} has length 0: a direction is needed", path=path)
    # Scaled first, because the square of the length of `vector` may overflow.
    bounded = vector / largest
    return np.asarray(bounded / np.linalg.norm(bounded, axis=-1, keepdims=True))


def _seed(robot: RobotQueries, seed: ArrayLike) -> Array:
    """Returns the seed (..., nq) with unit quaternions."""
    configuration = robot.configuration
    begin = np.array(vectors("seed", seed, configuration.nq))
    if not np.isfinite(begin).all():
        raise InvalidArgumentError("seed must have finite numbers", path="seed")
    for name, joint, part in zip(configuration.names, configuration.joints, configuration.q_slices, strict=True):
        if joint.quaternion.stop:
            largest = np.abs(begin[..., part][..., joint.quaternion]).max(axis=-1)
            wrong = largest[(largest < 1.0 / _LARGEST) | (largest > _LARGEST)]
            if wrong.size:
                text = f"a quaternion with largest entry {wrong.flat[0]:g}, expected length 1"
                raise InvalidArgumentError(f"seed of joint '{name}' has {text}", path="seed")
    return configuration.unit(begin, "seed")


def _bounds(robot: RobotQueries) -> Limits:
    """Returns the limits, infinite where larger than `_LARGEST`."""
    limits = robot.limits
    lower = np.where(np.abs(limits.lower) > _LARGEST, -np.inf, limits.lower)
    return replace(limits, lower=lower, upper=np.where(np.abs(limits.upper) > _LARGEST, np.inf, limits.upper))


def _of_positions(robot: RobotQueries, of_velocities: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns (nq,): the joints of which an entry of v (nv,) is marked."""
    configuration = robot.configuration
    marked = np.zeros(configuration.nq, bool)
    for in_q, in_v in zip(configuration.q_slices, configuration.v_slices, strict=True):
        marked[in_q] = of_velocities[in_v].any()
    return marked


def _random(robot: RobotQueries, center: Array, moving: NDArray[np.bool_], rng: np.random.Generator) -> Array:
    """Returns random positions: joints with limits between them, others up to pi (rad or m) away from `center`; joints
    that are not moving stay there.
    """
    configuration, limits = robot.configuration, _bounds(robot)
    q = configuration.integrate(center, rng.uniform(-np.pi, np.pi, (len(center), configuration.nv)))
    bounded = np.isfinite(limits.lower) & np.isfinite(limits.upper)
    width = limits.upper[bounded] - limits.lower[bounded]
    q[:, bounded] = limits.lower[bounded] + rng.uniform(size=(len(center), int(bounded.sum()))) * width
    return np.where(_of_positions(robot, moving), q, center)


def _reasons(robot: RobotQueries, solver: _Solver, best: _Best, rows: Rows) -> NDArray[np.str_]:
    """Returns why the problems of these rows were not solved; see `InverseKinematics.reason`."""
    q = best.q[rows]
    e, J, _ = solver.errors(q, rows)
    descent = np.asarray((e[:, None] @ J)[:, 0], np.float64)
    descent[:, solver.scalar_entries[:, 1]] *= ~solver.leaves(q, descent)
    largest = np.linalg.norm(J, axis=(1, 2)) * np.linalg.norm(e, axis=1)
    stuck = np.linalg.norm(descent, axis=1) <= _STATIONARY * largest
    unlimited = np.full(robot.configuration.nq, np.inf)
    free = replace(solver, lower=-unlimited, upper=unlimited).solve(q.copy(), rows)
    too_far = np.zeros(len(rows), bool)
    for goal in solver.goals:
        if goal.position is not None:
            origin, length = _reach(robot, goal, solver)
            too_far |= np.linalg.norm(goal.position[rows] - origin, axis=-1) > length + solver.tolerances[0]
    reasons = ["out_of_reach", "limit", "singular"]
    return np.select([too_far, free.reached, stuck], reasons, "not_converged")


def _reach(robot: RobotQueries, goal: Goal, solver: _Solver) -> tuple[Array, float]:
    """Returns the origin (3,) of the first moving link on the way to the target's link, and how far from it the point
    can be at most: the sum of the distances between the origins of the links between, and the travel of their joints.
    """
    joints = {joint.child: joint for joint in robot.description.joints}
    path = []
    link: str | None = goal.link
    while link in joints:
        path.append(joints[link])
        link = joints[link].parent
    path.reverse()
    types = [joint_of(joint.type, joint.axis, joint.pitch) for joint in path]
    first = next((k for k, moves in enumerate(types) if moves.nv), len(path))
    poses = robot.link_poses(robot.configuration.neutral)
    place = dict(zip(poses.links, poses.position, strict=True))
    length = float(np.linalg.norm(goal.point))
    for k, (joint, moves) in enumerate(zip(path[first:], types[first:], strict=True)):
        # No limits bound how far a planar or floating joint goes.
        if moves.translates and moves.shifts != (True,):
            return np.zeros(3), np.inf
        # Not the first joint, which turns about its own origin.
        if k:
            length += float(np.linalg.norm(place[joint.child] - place[joint.parent or ""]))
        if moves.translates:
            leader, ratio = (joint.name, 1.0) if joint.mimic is None else (joint.mimic.joint, joint.mimic.multiplier)
            entry = robot.configuration.q_slices[robot.configuration.names.index(leader)].start
            neutral = float(robot.configuration.neutral[entry])
            limits = (solver.lower[entry], solver.upper[entry])
            length += abs(ratio) * max(abs(float(limit) - neutral) for limit in limits)
    start = path[first].child if first < len(path) else goal.link
    return place[start], length
