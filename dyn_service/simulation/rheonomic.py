"""Rheonomic systems: robots with joints that move as given functions of time (driven joints, moving bases).

With p the prescribed joints and f the free ones, M a + b = tau splits into

    M_ff a_f = tau_f - b_f - M_fp a_p           accelerations of the free joints
    tau_p    = M_pf a_f + M_pp a_p + b_p        efforts of the prescribed joints

with b the inverse dynamics at a = 0, including gravity and external wrenches. The state is that of the free joints, and
its equation depends on time, gamma-dot = fct(gamma, t). A moving base is a prescribed base joint (or several) of the
URDF.

No engine is needed: a remote robot takes two requests per evaluation. For whole motions the prescribed motion is
sampled, so that a server computes the same bits. RK4 evaluates it at t, twice at t + dt/2, and at t + dt. Samples are
on the half grid, row 2k at t0 + k dt and row 2k + 1 half a step later, or on the grid, row k at t0 + k dt. In the
latter case the sample between is that of the quintic through position x, velocity v and acceleration a at both ends,
h = dt:

    x_m = (x_0 + x_1)/2 + 5h/32 (v_0 - v_1) + h^2/64 (a_0 + a_1)
    v_m = 15/(8h) (x_1 - x_0) - 7/16 (v_0 + v_1) + h/32 (a_1 - a_0)
    a_m = 3/(2h) (v_1 - v_0) - (a_0 + a_1)/4

of order h^6, h^6 and h^4, not less than the step itself. Efforts and wrenches are held through a step.

Cost: O(N^2) for M, O(F^3) for F free joints; any leading axes. Source: Multi Body Dynamics document, 5.2, 5.5, 5.6.
Checked by tests/theory/test_particles.py and tests/simulation/test_rheonomic_samples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import GivenMotion, Prescription
from dyn_service.api.arrays import broadcast, finite, found, numbers, vectors
from dyn_service.api.queries import Array, EffortFunction, RobotQueries, Wrench, WrenchFunction
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import rk4_step
from dyn_service.simulation.contact_points import check_joint
from dyn_service.simulation.divergence import DivergedError
from dyn_service.simulation.loads import HeldEfforts, Loads, as_samples, listed, vectors_of
from dyn_service.simulation.stability import StabilityCheck
from dyn_service.simulation.task import Grid, Motion


class PartlyPrescribed(NamedTuple):
    """a: (..., nv) accelerations of all joints. tau: (..., nv) their efforts, computed for the prescribed ones."""

    a: Array
    tau: Array


def forward_dynamics(
    robot: RobotQueries,
    q: ArrayLike,
    v: ArrayLike,
    tau: ArrayLike,
    prescribed: Mapping[str, ArrayLike],
    *,
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
    passive: bool = True,
) -> PartlyPrescribed:
    """Returns the accelerations of the free joints and the efforts of the prescribed ones.

    q, v, tau: (..., n) of all joints of a local or remote robot; efforts of prescribed joints are ignored. prescribed:
    joint name to its acceleration, (...). gravity, wrenches, passive: as for `RobotQueries.forward_dynamics`.

    Raises:
        NotFoundError: A prescribed joint is not a movable joint.
        InvalidArgumentError: The last axis of q, v, tau or gravity is wrong, or leading axes do not broadcast.
        FailedPreconditionError: The free joints' mass matrix is singular: a massless branch moves.
    """
    parts = partition(robot.configuration, prescribed)
    prescribed_v, free = parts.prescribed_v, parts.free_v
    state = {"q": vectors("q", q, robot.nq), "v": vectors("v", v, robot.nv), "tau": vectors("tau", tau, robot.nv)}
    rates = {name: _acceleration(name, x) for name, x in prescribed.items()}
    wrench_list = None if wrenches is None else listed(wrenches)
    lead = broadcast(
        {name: x.shape[:-1] for name, x in state.items()}
        | {f"prescribed.{name}": x.shape for name, x in rates.items()}
        | ({} if gravity is None else {"gravity": vectors("gravity", gravity, 3).shape[:-1]})
        | {name: x.shape[:-1] for name, x in vectors_of(wrench_list or [])}
    )
    a = np.zeros((*lead, robot.nv))
    for k, rate in zip(prescribed_v, rates.values(), strict=True):
        a[..., k] = rate
    efforts = np.array(np.broadcast_to(state["tau"], (*lead, robot.nv)))
    is_free = np.ones(robot.nv)
    is_free[prescribed_v] = 0.0
    robot.check_inertia("simulate_rheonomic", state["q"], is_free)
    M = robot.mass_matrix(state["q"], passive=passive)
    # Inverse dynamics of a with its free entries zero: b + M_.p a_p.
    bias = robot.inverse_dynamics(state["q"], state["v"], a, gravity=gravity, wrenches=wrench_list, passive=passive)
    M_ff = M[..., free, :][..., :, free]
    try:
        a[..., free] = np.linalg.solve(M_ff, (efforts - bias)[..., free][..., None])[..., 0]
    except np.linalg.LinAlgError:
        text = f"the mass matrix of the free joints of robot '{robot.name}' is singular: a massless branch moves"
        raise FailedPreconditionError(text) from None
    M_pf = M[..., prescribed_v, :][..., :, free]
    efforts[..., prescribed_v] = bias[..., prescribed_v] + np.einsum("...pf,...f->...p", M_pf, a[..., free])
    return PartlyPrescribed(a, efforts)


def _acceleration(name: str, value: ArrayLike) -> Array:
    rate = numbers(value)
    if rate is None:
        text = f"the acceleration of joint '{name}' must be (...) numbers, found {found(value)}"
        raise InvalidArgumentError(text, path=f"prescribed.{name}")
    return rate


class RheonomicRobot:
    """A robot with joints that move as functions of time; its state is that of the other joints.

    Args:
        robot: A local or remote robot.
        prescribed: Joint name to t -> (q, v, a). The caller ensures that v and a are the derivatives of q.

    Raises:
        NotFoundError: There is no movable joint of that name.
    """

    def __init__(self, robot: RobotQueries, prescribed: Mapping[str, Prescription]) -> None:
        self.robot = robot
        self.prescribed = dict(prescribed)
        self._parts = partition(robot.configuration, prescribed)

    @property
    def free_joints(self) -> tuple[str, ...]:
        """The free joints, in the robot's order."""
        return self._parts.free.names

    def state(self, t: float, q: ArrayLike, v: ArrayLike) -> tuple[Array, Array]:
        """Returns positions (..., nq) and velocities (..., nv) of all joints, from those of the free joints at t."""
        motions = [self.prescribed[name](t) for name in self.prescribed]
        parts = self._parts
        return parts.whole("q", q, [x[0] for x in motions]), parts.whole("v", v, [x[1] for x in motions])

    def forward_dynamics(
        self, t: float, q: ArrayLike, v: ArrayLike, tau: ArrayLike = 0.0, **loads: Any
    ) -> PartlyPrescribed:
        """Returns accelerations and efforts of all joints at t, for free joints at q, v (..., nf) under tau (..., nf).

        Raises:
            InvalidArgumentError: The last axis of q, v or tau does not have one entry per free joint.
        """
        q_all, v_all = self.state(t, q, v)
        accelerations = {name: self.prescribed[name](t)[2] for name in self.prescribed}
        efforts = self._parts.whole("tau", self._efforts(tau), [0.0] * len(self._parts.prescribed_v))
        return forward_dynamics(self.robot, q_all, v_all, efforts, accelerations, **loads)

    def simulate(
        self,
        q0: ArrayLike,
        v0: ArrayLike,
        tau: ArrayLike | EffortFunction = 0.0,
        *,
        dt: float,
        steps: int,
        t0: float = 0.0,
        gravity: ArrayLike | None = None,
        wrenches: Wrench | Sequence[Wrench] | WrenchFunction | None = None,
        passive: bool = True,
    ) -> RheonomicTrajectory:
        """Simulates from the free joints' state `q0` (..., nqf), `v0` (..., nvf) at `t0`; see `simulate_rheonomic`.

        tau: efforts of the free joints: a number, (..., nvf), or a function of (t, q, v). wrenches: external wrenches
        on links, or a function of (t, q, v) of the free joints that returns them; held through each step.
        """
        efforts = tau if callable(tau) else as_samples(self._efforts(tau))
        configuration = self.robot.configuration
        options: dict[str, Any] = {"dt": dt, "steps": steps, "t0": t0, "gravity": gravity, "wrenches": wrenches}
        task = checked(configuration, self.prescribed, q0, v0, efforts, **options)
        return _simulate(self.robot, task, None, passive=passive)

    def _efforts(self, tau: ArrayLike) -> Any:
        number = numbers(tau)
        return np.full(self._parts.free.nv, number) if number is not None and not number.ndim else tau


@dataclass(frozen=True, eq=False)
class Partition:
    """The free and the prescribed joints of a robot.

    configuration: all joints. free: the free ones. free_q, free_v, prescribed_q, prescribed_v: their indices in q and
    in v.
    """

    configuration: Configuration
    free: Configuration
    free_q: list[int]
    free_v: list[int]
    prescribed_q: list[int]
    prescribed_v: list[int]

    def checked(self, name: str, value: ArrayLike) -> Array:
        """Checks the free joints' part of q (`q`, `q0`) or of an array with the length of v.

        Raises:
            InvalidArgumentError: Its last axis has the wrong length.
        """
        length, array = self.free.nq if name.startswith("q") else self.free.nv, numbers(value)
        if array is None or array.ndim < 1 or array.shape[-1] != length:
            fault = f"must be numbers, found {found(value)}" if array is None else f"has shape {array.shape}"
            form = f"(..., {length}): {'one entry per free joint' if self.free.flat else 'those of the free joints'}"
            raise InvalidArgumentError(f"{name} {fault}, expected {form} ({', '.join(self.free.names)})", path=name)
        return array

    def whole(self, name: str, free: ArrayLike, prescribed: ArrayLike) -> Array:
        """Returns a vector of all joints from the entries of the free joints (..., n) and of the prescribed ones (...,
        np): positions (..., nq) if the name is "q", else velocities, accelerations or efforts (..., nv). The name is
        used in errors.
        """
        if name == "q":
            size, free_entries, prescribed_entries = self.configuration.nq, self.free_q, self.prescribed_q
        else:
            size, free_entries, prescribed_entries = self.configuration.nv, self.free_v, self.prescribed_v
        free_values, prescribed_values = self.checked(name, free), np.asarray(prescribed, dtype=np.float64)
        leads = {name: free_values.shape[:-1], "prescribed": prescribed_values.shape[:-1]}
        full = np.zeros((*broadcast(leads), size))
        full[..., free_entries], full[..., prescribed_entries] = free_values, prescribed_values
        return full


def partition(configuration: Configuration, prescribed: Iterable[str]) -> Partition:
    """Returns the partition of a robot's joints, the prescribed ones in the order of their names.

    Raises:
        NotFoundError: A prescribed joint is not a movable joint.
        InvalidArgumentError: A prescribed joint has more than one degree of freedom.
    """
    names = list(prescribed)
    for name in names:
        check_joint(configuration, name, "prescribed")
        joint = configuration.joints[configuration.names.index(name)]
        if joint.nv != 1:
            text = f"joint '{name}' is {joint.type}, and a prescribed one must have one degree of freedom"
            raise InvalidArgumentError(text, path="prescribed")
    free, free_q, free_v = configuration.chosen([name for name in configuration.names if name not in names])
    _, prescribed_q, prescribed_v = configuration.chosen(names)
    return Partition(configuration, free, free_q, free_v, prescribed_q, prescribed_v)


def simulate_rheonomic(
    robot: RobotQueries,
    prescribed: GivenMotion,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None = None,
    *,
    progress: Callable[[float], None] | None = None,
    **arguments: Any,
) -> RheonomicTrajectory:
    """Simulates the free joints of a local or remote robot while the prescribed ones move as given; arguments and
    errors are those of `RobotQueries.simulate_rheonomic`, without those that change the robot.

    Returns:
        `steps // every + 1` states of all joints; the last one under the efforts of the last step.
    """
    return _simulate(robot, checked(robot.configuration, prescribed, q0, v0, tau, **arguments), progress)


def _simulate(
    robot: RobotQueries, task: RheonomicTask, progress: Callable[[float], None] | None, *, passive: bool = True
) -> RheonomicTrajectory:
    parts, rows, free = task.parts, task.rows, task.parts.free_v
    q, v = task.configuration.unit(task.q, "q0"), task.v

    def state(row: int, q: Array, v: Array) -> tuple[Array, Array]:
        return parts.whole("q", q, rows[..., row, :, 0]), parts.whole("v", v, rows[..., row, :, 1])

    def evaluate(row: int, q: Array, v: Array) -> PartlyPrescribed:
        rates = {name: rows[..., row, i, 2] for i, name in enumerate(task.names)}
        efforts, wrenches = loads
        tau = parts.whole("tau", efforts, np.zeros(len(task.names)))
        options: dict[str, Any] = {"gravity": task.gravity, "wrenches": wrenches, "passive": passive}
        return forward_dynamics(robot, *state(row, q, v), tau, rates, **options)

    def acceleration(q: Array, v: Array) -> Array:
        """Returns the acceleration at the next stage of the current step; RK4 evaluates stages in the order of time."""
        row, known_dynamics = next(stages)
        return (evaluate(row, q, v) if known_dynamics is None else known_dynamics).a[..., free]

    stable = StabilityCheck(robot if passive else None, task, "rk4", 1, free)
    with np.errstate(over="ignore", invalid="ignore"):  # divergence raises an error instead
        records: list[tuple[Array, Array, Array, Array]] = []
        for k in range(task.steps + 1):
            # The last state is recorded under the efforts of the last step.
            if k < task.steps:
                loads = task.loads_at(k, q, v)
            stable.states(k - 1, 1, parts.whole("q", q, rows[..., 2 * k, :, 0])[None])
            dynamics = evaluate(2 * k, q, v)
            if not np.isfinite(dynamics.a).all():
                raise DivergedError(
                    f"the simulation diverged before step {task.first_step + k} (t = {task.time(k):g} s): the "
                    f"accelerations are no longer finite; try a step shorter than dt = {task.dt:g} s"
                )
            if not k % task.every:
                records.append((*state(2 * k, q, v), *dynamics))
            if k == task.steps:
                break
            # rows by index: neither server nor client computes a time, so that their bits agree
            stages = iter(((2 * k, dynamics), (2 * k + 1, None), (2 * k + 1, None), (2 * k + 2, None)))
            q, v = rk4_step(acceleration, q, v, task.dt, on=task.configuration)
            if progress is not None:
                progress((k + 1) / task.steps)
    return RheonomicTrajectory(task.times(), *(np.stack(column, axis=-2) for column in zip(*records, strict=True)))


@dataclass(eq=False, kw_only=True)
class RheonomicTask(Motion):
    """The arguments of `simulate_rheonomic`, checked; `configuration` and the state are those of the free joints.

    names: the prescribed joints. rows: (..., 2 steps + 1, np, 3), their motion on the half grid.
    """

    parts: Partition
    names: tuple[str, ...]
    rows: Array

    def __post_init__(self) -> None:
        super().__post_init__()
        arguments: Any = self
        states = {name: finite(name, self.parts.checked(name, x)) for name, x in (("q0", self.q), ("v0", self.v))}
        g = None if self.gravity is None else finite("gravity", vectors("gravity", self.gravity, 3))
        wrenches = arguments.wrenches
        loads = wrenches if wrenches is None or callable(wrenches) else listed(wrenches)
        leads = {"prescribed": self.rows.shape[:-3]} if self.rows.ndim > 3 else {}
        if g is not None and g.ndim > 1:
            leads["gravity"] = g.shape[:-1]
        if isinstance(loads, list):
            leads |= {name: array.shape[:-1] for name, array in vectors_of(loads) if finite(name, array).ndim > 1}
            loads = as_samples(loads)
        self.efforts = HeldEfforts(self.configuration.velocity_joints, arguments.efforts, self.steps)
        self.wrenches, self.gravity = Loads(loads, self.steps), g
        self.q, self.v = self._broadcast(states, leads, {})


def checked(
    configuration: Configuration,
    prescribed: GivenMotion,
    q0: Any,
    v0: Any,
    tau: Any,
    *,
    gravity: Any = None,
    wrenches: Any = None,
    **grid: Any,
) -> RheonomicTask:
    """Returns the checked arguments of `simulate_rheonomic`. wrenches: their vectors are (..., 3), constant during the
    motion; or a function of (t, q, v).

    Raises:
        NotFoundError: A prescribed joint is not a movable joint.
        InvalidArgumentError: An argument has the wrong type, shape or value; `path` names it.
    """
    times = Grid(**grid)
    names, rows = sampled(prescribed, times)
    parts = partition(configuration, names)
    motion = {"q": q0, "v": v0, "efforts": tau, "wrenches": wrenches, "gravity": gravity}
    return RheonomicTask(**vars(times), **motion, configuration=parts.free, parts=parts, names=names, rows=rows)


def sampled(prescribed: GivenMotion, grid: Grid) -> tuple[tuple[str, ...], Array]:
    """Returns the names of the prescribed joints, and their motion on the half grid, (..., 2 steps + 1, np, 3).

    prescribed: see `GivenMotion`. The caller ensures that velocities and accelerations are derivatives of positions.
    grid: functions are called at its times and half way between.

    Raises:
        InvalidArgumentError: The samples of a joint are not (..., rows, 3) finite numbers with one of the two numbers
            of rows.
    """
    if not isinstance(prescribed, Mapping):
        text = f"prescribed must be a map from joints to their motions, found {found(prescribed)}"
        raise InvalidArgumentError(text, path="prescribed")
    if not prescribed:
        return (), np.zeros((2 * grid.steps + 1, 0, 3))
    rows = [_rows(name, motion, grid) for name, motion in prescribed.items()]
    try:
        rows_broadcast = np.broadcast_arrays(*rows)
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape[:-2]}" for name, x in zip(prescribed, rows, strict=True))
        text = f"the leading axes of the prescribed motions {shapes} do not broadcast"
        raise InvalidArgumentError(text, path="prescribed") from None
    return tuple(prescribed), np.stack(rows_broadcast, axis=-2)


def on_half_grid(samples: Array, dt: float) -> Array:
    """Interpolates rows (..., steps + 1, 3) on the grid with the module's quintic to (..., 2 steps + 1, 3)."""
    x, v, a = samples[..., 0], samples[..., 1], samples[..., 2]
    x0, x1, v0, v1, a0, a1 = (part for y in (x, v, a) for part in (y[..., :-1], y[..., 1:]))
    full = np.empty((*samples.shape[:-2], 2 * samples.shape[-2] - 1, 3))
    full[..., ::2, :] = samples
    # a cubic would lose an order in the acceleration, which determines the motion of the free joints
    full[..., 1::2, 0] = (x0 + x1) / 2 + 5 * dt / 32 * (v0 - v1) + dt * dt / 64 * (a0 + a1)
    full[..., 1::2, 1] = 15 / (8 * dt) * (x1 - x0) - 7 / 16 * (v0 + v1) + dt / 32 * (a1 - a0)
    full[..., 1::2, 2] = 3 / (2 * dt) * (v1 - v0) - (a0 + a1) / 4
    return full


def _rows(name: str, motion: ArrayLike | Prescription, grid: Grid) -> Array:
    path, motion_text, steps = f"prescribed.{name}", f"the motion of joint '{name}'", grid.steps
    form = f"({2 * steps + 1}, 3) on the half grid or ({steps + 1}, 3) on the grid: position, velocity, acceleration"
    if callable(motion):
        # Times of whole steps are computed as k dt, as in the grid, to the last bit.
        times = (grid.time(j // 2) + (j % 2) * (grid.dt / 2) for j in range(2 * steps + 1))
        values: ArrayLike = [motion(t) for t in times]
    else:
        values = motion
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{motion_text} must be numbers of shape {form}", path=path) from None
    if rows.ndim < 2 or rows.shape[-1] != 3 or rows.shape[-2] not in (steps + 1, 2 * steps + 1):
        raise InvalidArgumentError(f"{motion_text} has shape {rows.shape}, expected {form}", path=path)
    if not np.isfinite(rows).all():
        index = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise InvalidArgumentError(f"{motion_text} must be finite, found {rows[tuple(index)]} at {index}", path=path)
    return rows if rows.shape[-2] == 2 * steps + 1 else on_half_grid(rows, grid.dt)
