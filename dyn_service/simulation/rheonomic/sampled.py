"""Rheonomic motions whose given part comes as samples: data from end to end, so the same here and on a server.

The equations are those of `simulation/rheonomic/systems.py`, the samples those of
`simulation/rheonomic/prescribed.py`. A step is RK4's, from the
state of the free joints, with the given motion's row 2k, 2k + 1, 2k + 1, 2k + 2 at its four stages; efforts are held
through it.

Source: Multi Body Dynamics document, 5.2, 5.6. Checked by tests/simulation/test_rheonomic_samples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array, EffortFunction, GivenMotion, RobotQueries, Wrench
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.steps import rk4_step
from dyn_service.simulation.rheonomic.systems import PartlyPrescribed, forward_dynamics
from dyn_service.simulation.rheonomic.task import checked


def simulate_rheonomic(
    robot: RobotQueries,
    prescribed: GivenMotion,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None = None,
    *,
    dt: float,
    steps: int,
    t0: float = 0.0,
    first_step: int = 0,
    every: int = 1,
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
    progress: Callable[[float], None] | None = None,
) -> RheonomicTrajectory:
    """The motion of the free joints while the prescribed ones do as given, by `steps` RK4 steps of `dt`.

    Args:
        robot: In this process or remote.
        prescribed: By joint, its motion: rows (..., 2 steps + 1, 3) on the half grid or (..., steps + 1, 3) on the grid
            of position, velocity, acceleration, or a function of time; see `simulation/rheonomic/prescribed.py`.
        q0: (..., nf) first positions of the free joints, in the robot's order; leading axes are simulated together.
        v0: (..., nf) first velocities.
        tau: Efforts of the free joints, held through each step: None (none), (nf,) or (..., 1, nf) constant,
            (..., steps, nf) samples, or a function of (t, q, v) of the free joints at the step's beginning.
        dt: s.
        steps: How many.
        t0: s, the time of step 0.
        first_step: Steps that were made before these, where this is part of a longer motion: times go on from there.
        every: Record every so many steps; the first state and these are returned.
        gravity: (..., 3) m/s^2, world axes; None is the default.
        wrenches: External wrenches on links, their vectors (..., 3), all through the motion.
        progress: Called after each step with the share that is done.

    Returns:
        `steps // every + 1` states of all joints; in the last row under the efforts of the last step.

    Raises:
        NotFoundError: There is no movable joint of a prescribed one's name.
        InvalidArgumentError: An argument of the wrong shape or value; names it.
        FailedPreconditionError: The accelerations are no longer finite, at the step and time that are named; or the
            free joints' mass matrix is singular.
    """
    task = checked(
        robot.configuration,
        prescribed,
        q0,
        v0,
        tau,
        dt=dt,
        steps=steps,
        t0=t0,
        first_step=first_step,
        every=every,
        gravity=gravity,
        wrenches=wrenches,
    )
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
        """Of the next stage of the step at hand: RK4 asks in the order of time."""
        row, known = next(stages)
        return (found(row, q, v) if known is None else known).a[..., free]

    with np.errstate(over="ignore", invalid="ignore"):  # divergence is told in words
        records: list[tuple[Array, Array, Array, Array]] = []
        for k in range(grid.steps + 1):
            if k < grid.steps:  # the last state is that under the last step's efforts
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
