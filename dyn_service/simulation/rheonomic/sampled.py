"""Rheonomic simulations with the prescribed motion as samples, with the same bits locally and on a server.

Equations: `systems.py`. RK4 evaluates the prescribed motion at t, twice at t + dt/2, and at t + dt. Samples are on the
half grid, row 2k at t0 + k dt and row 2k + 1 half a step later, or on the grid, row k at t0 + k dt. In the latter case
the sample between is that of the quintic through position x, velocity v and acceleration a at both ends, h = dt:

    x_m = (x_0 + x_1)/2 + 5h/32 (v_0 - v_1) + h^2/64 (a_0 + a_1)
    v_m = 15/(8h) (x_1 - x_0) - 7/16 (v_0 + v_1) + h/32 (a_1 - a_0)
    a_m = 3/(2h) (v_1 - v_0) - (a_0 + a_1)/4

of order h^6, h^6 and h^4, not less than the step itself. Efforts are held through a step. Only NumPy is needed.

Source: Multi Body Dynamics document, 5.2, 5.6. Checked by tests/simulation/test_rheonomic_samples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arguments import GivenMotion, Prescription
from dyn_service.api.arrays import broadcast, found
from dyn_service.api.queries import Array, EffortFunction, RobotQueries, Wrench
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.model.steps import rk4_step
from dyn_service.simulation.rheonomic.systems import Partition, PartlyPrescribed, entries, forward_dynamics, partition
from dyn_service.simulation.task import Efforts, Grid, check_grid, finite, listed, vectors_of


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
    """Simulates the free joints while the prescribed ones move as given, by `steps` RK4 steps of `dt`.

    Args:
        robot: A local or remote robot.
        prescribed: By joint, its motion: rows (..., 2 steps + 1, 3) on the half grid or (..., steps + 1, 3) on the grid
            of position, velocity, acceleration, or a function of time; see the module.
        q0: (..., nf) initial positions of the free joints, in the robot's order; leading axes are simulated together.
        v0: (..., nf) initial velocities.
        tau: Efforts of the free joints, held through each step: None (zero), (nf,) or (..., 1, nf) constant,
            (..., steps, nf) samples, or a function of (t, q, v) of the free joints at the start of the step.
        progress: Called after each step with the completed fraction.
        **arguments: The other arguments of `checked`.

    Returns:
        `steps // every + 1` states of all joints; the last one under the efforts of the last step.

    Raises:
        NotFoundError: There is no movable joint of a prescribed one's name.
        InvalidArgumentError: An argument has the wrong shape or value; names it.
        FailedPreconditionError: The accelerations are no longer finite (names step and time), or the mass matrix of the
            free joints is singular.
    """
    task = checked(robot.configuration, prescribed, q0, v0, tau, **arguments)
    grid, parts, rows = task.grid, task.parts, task.rows
    q, v = parts.free.unit(task.q, "q0"), task.v
    free = parts.free_v

    def state(row: int, q: Array, v: Array) -> tuple[Array, Array]:
        return parts.positions(q, rows[..., row, :, 0]), parts.velocities("v", v, rows[..., row, :, 1])

    def found(row: int, q: Array, v: Array) -> PartlyPrescribed:
        rates = {name: rows[..., row, i, 2] for i, name in enumerate(task.names)}
        tau_all = parts.velocities("tau", acting, np.zeros(len(task.names)))
        return forward_dynamics(robot, *state(row, q, v), tau_all, rates, gravity=task.gravity, wrenches=task.wrenches)

    def acceleration(q: Array, v: Array) -> Array:
        """Returns the acceleration at the next stage of the current step; RK4 evaluates stages in the order of time."""
        row, known = next(stages)
        return (found(row, q, v) if known is None else known).a[..., free]

    with np.errstate(over="ignore", invalid="ignore"):  # divergence raises an error instead
        records: list[tuple[Array, Array, Array, Array]] = []
        for k in range(grid.steps + 1):
            if k < grid.steps:  # the last state is recorded under the efforts of the last step
                acting = task.acting(k, q, v)
            here = found(2 * k, q, v)
            if not np.isfinite(here.a).all():
                raise FailedPreconditionError(
                    f"the simulation diverged before step {grid.first_step + k} (t = {grid.time(k):g} s): the "
                    f"accelerations are no longer finite; try a step shorter than dt = {grid.dt:g} s"
                )
            if not k % grid.every:
                records.append((*state(2 * k, q, v), *here))
            if k == grid.steps:
                break
            stages = iter(((2 * k, here), (2 * k + 1, None), (2 * k + 1, None), (2 * k + 2, None)))
            q, v = rk4_step(acceleration, q, v, grid.dt, on=parts.free)
            if progress is not None:
                progress((k + 1) / grid.steps)
    return RheonomicTrajectory(grid.times(), *(np.stack(column, axis=-2) for column in zip(*records, strict=True)))


@dataclass(eq=False)
class RheonomicTask:
    """The checked arguments of a rheonomic simulation; the initial state is broadcast to all leading axes.

    names: the prescribed joints. rows: (..., 2 steps + 1, np, 3), their motion on the half grid. q: (..., nqf), v:
    (..., nvf) of the free joints. gravity: (..., 3) or None. wrenches: vectors (..., 3), or None.
    """

    grid: Grid
    parts: Partition
    names: tuple[str, ...]
    rows: Array
    q: Array
    v: Array
    efforts: Efforts
    gravity: Array | None
    wrenches: list[Wrench] | None

    def acting(self, k: int, q: Array, v: Array) -> Array:
        """Returns the efforts (..., nvf) of the free joints in step k of this part, which starts at the given state."""
        return self.efforts.at(k, self.grid.first_step + k + 1, self.grid.time(k), q, v)


def checked(
    at: Configuration,
    prescribed: GivenMotion,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    dt: float,
    steps: int,
    t0: float = 0.0,
    first_step: int = 0,
    every: int = 1,
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
) -> RheonomicTask:
    """Checks the arguments of `simulate_rheonomic`.

    Args:
        at: The robot's movable joints.
        prescribed: As in `simulate_rheonomic`, like the next three.
        q0: Initial positions of the free joints.
        v0: Initial velocities.
        tau: Efforts.
        dt: s.
        steps: The number of steps.
        t0: s, the time of step 0.
        first_step: The number of steps before these, if this is a part of a longer motion.
        every: Record every `every` steps; the initial state and these are returned.
        gravity: (..., 3) m/s^2, world axes; None is the default.
        wrenches: External wrenches on links, vectors (..., 3), constant during the motion.

    Raises:
        NotFoundError: A prescribed joint is not a movable joint.
        InvalidArgumentError: An argument has the wrong type, shape or value; `path` names it.
    """
    grid = check_grid(dt, steps, every=every, first_step=first_step, t0=t0)
    names, rows = sampled(prescribed, dt=grid.dt, steps=grid.steps, t0=grid.t0, first_step=grid.first_step)
    parts = partition(at, names)
    q, v = (finite(name, parts.checked(name, x)) for name, x in (("q0", q0), ("v0", v0)))
    g = None if gravity is None else finite("gravity", entries("gravity", gravity, 3))
    loads = None if wrenches is None else listed(wrenches)
    efforts = Efforts(parts.free.velocity_joints, tau, grid.steps)
    leads = {"q0": q.shape[:-1], "v0": v.shape[:-1]}
    if rows.ndim > 3:
        leads["prescribed"] = rows.shape[:-3]
    if g is not None and g.ndim > 1:
        leads["gravity"] = g.shape[:-1]
    for name, array in vectors_of(loads or []):
        if finite(name, array).ndim > 1:
            leads[name] = array.shape[:-1]
    # A function gets the state with the leading axes of all data, and may add axes of its own.
    q, v = (np.broadcast_to(x, (*broadcast(leads), x.shape[-1])) for x in (q, v))
    leads["tau"] = efforts.begin(grid.first_step + 1, grid.time(0), q, v)
    efforts.lead = lead = broadcast(leads)
    q, v = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in (q, v))
    return RheonomicTask(grid, parts, names, rows, q, v, efforts, g, loads)


def sampled(
    prescribed: GivenMotion, *, dt: float, steps: int, t0: float = 0.0, first_step: int = 0
) -> tuple[tuple[str, ...], Array]:
    """Returns the names of the prescribed joints, and their motion on the half grid, (..., 2 steps + 1, np, 3).

    Args:
        prescribed: See `GivenMotion`. The caller ensures that velocities and accelerations are derivatives of
            positions.
        dt: s, the length of a step.
        steps: The number of steps.
        t0: s, the time of step 0.
        first_step: The step of the first row: functions are called at t0 + (first_step + j / 2) dt.

    Raises:
        InvalidArgumentError: The samples of a joint are not (..., rows, 3) finite numbers with one of the two numbers
            of rows, or the grid is invalid.
    """
    grid = check_grid(dt, steps, first_step=first_step, t0=t0)
    if not isinstance(prescribed, Mapping):
        raise InvalidArgumentError(
            f"prescribed must be a map from joints to their motions, found {found(prescribed)}", path="prescribed"
        )
    if not prescribed:
        return (), np.zeros((2 * grid.steps + 1, 0, 3))
    rows = [_rows(name, given, grid) for name, given in prescribed.items()]
    try:
        together = np.broadcast_arrays(*rows)
    except ValueError:
        shapes = ", ".join(f"{name} {x.shape[:-2]}" for name, x in zip(prescribed, rows, strict=True))
        raise InvalidArgumentError(
            f"the leading axes of the prescribed motions {shapes} do not broadcast", path="prescribed"
        ) from None
    return tuple(prescribed), np.stack(together, axis=-2)


def on_half_grid(samples: Array, dt: float) -> Array:
    """Interpolates rows (..., steps + 1, 3) on the grid with the module's quintic to (..., 2 steps + 1, 3)."""
    x, v, a = samples[..., 0], samples[..., 1], samples[..., 2]
    x0, x1, v0, v1, a0, a1 = (part for y in (x, v, a) for part in (y[..., :-1], y[..., 1:]))
    full = np.empty((*samples.shape[:-2], 2 * samples.shape[-2] - 1, 3))
    full[..., ::2, :] = samples
    full[..., 1::2, 0] = (x0 + x1) / 2 + 5 * dt / 32 * (v0 - v1) + dt * dt / 64 * (a0 + a1)
    full[..., 1::2, 1] = 15 / (8 * dt) * (x1 - x0) - 7 / 16 * (v0 + v1) + dt / 32 * (a1 - a0)
    full[..., 1::2, 2] = 3 / (2 * dt) * (v1 - v0) - (a0 + a1) / 4
    return full


def _rows(name: str, given: ArrayLike | Prescription, grid: Grid) -> Array:
    path, steps = f"prescribed.{name}", grid.steps
    expected = f"({2 * steps + 1}, 3) on the half grid or ({steps + 1}, 3) on the grid"
    if callable(given):
        # Times of whole steps are computed as k dt, as in the grid, to the last bit.
        times = (grid.time(j // 2) + (j % 2) * (grid.dt / 2) for j in range(2 * steps + 1))
        values: ArrayLike = [given(t) for t in times]
    else:
        values = given
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"the motion of joint '{name}' must be numbers of shape {expected}: position, velocity, acceleration",
            path=path,
        ) from None
    if rows.ndim < 2 or rows.shape[-1] != 3 or rows.shape[-2] not in (steps + 1, 2 * steps + 1):
        raise InvalidArgumentError(
            f"the motion of joint '{name}' has shape {rows.shape}, expected {expected}: position, velocity, "
            "acceleration",
            path=path,
        )
    if not np.isfinite(rows).all():
        index = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise InvalidArgumentError(
            f"the motion of joint '{name}' must be finite, found {rows[tuple(index)]} at {index}", path=path
        )
    return rows if rows.shape[-2] == 2 * steps + 1 else on_half_grid(rows, grid.dt)
