"""Rheonomic motions whose given part comes as samples: data from end to end, so the same here and on a server.

The equations are those of `sim/rheonomic.py`, the samples those of `sim/prescribed.py`. A step is RK4's, from the
state of the free joints, with the given motion's row 2k, 2k + 1, 2k + 1, 2k + 2 at its four stages; efforts are held
through it.

Source: Multi Body Dynamics document, 5.2, 5.6. Checked by tests/theory/test_rheonomic_samples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import Array, EffortFunction, GivenMotion, RobotQueries, Wrench
from dyn_service.api.results import RheonomicTrajectory
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.steps import rk4_step
from dyn_service.sim.prescribed import check_efforts, check_grid, sampled
from dyn_service.sim.rheonomic import Partition, PartlyPrescribed, forward_dynamics, partition


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
            of position, velocity, acceleration, or a function of time; see `sim/prescribed.py`.
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
        wrenches: External wrenches on links, all through the motion.
        progress: Called after each step with the share that is done.

    Returns:
        `steps // every + 1` states of all joints; in the last row under the efforts of the last step.

    Raises:
        NotFoundError: There is no movable joint of a prescribed one's name.
        InvalidArgumentError: An argument of the wrong shape or value; names it.
        FailedPreconditionError: The accelerations are no longer finite, at the step and time that are named; or the
            free joints' mass matrix is singular.
    """
    check_grid(dt, steps, every)
    names, rows = sampled(prescribed, dt=dt, steps=steps, t0=t0, first_step=first_step)
    parts = partition(robot, names)
    free = parts.free_v
    q, v = (parts.checked(name, x) for name, x in (("q0", q0), ("v0", v0)))
    efforts = _efforts(tau, steps, parts)

    def time(k: int) -> float:
        return t0 + (first_step + k) * dt

    def state(row: int, q: Array, v: Array) -> tuple[Array, Array]:
        return parts.positions(q, rows[..., row, :, 0]), parts.velocities("v", v, rows[..., row, :, 1])

    def found(row: int, q: Array, v: Array) -> PartlyPrescribed:
        rates = {name: rows[..., row, i, 2] for i, name in enumerate(names)}
        tau_all = parts.velocities("tau", acting, np.zeros(len(names)))
        return forward_dynamics(robot, *state(row, q, v), tau_all, rates, gravity=gravity, wrenches=wrenches)

    def acceleration(q: Array, v: Array) -> Array:
        """Of the next stage of the step at hand: RK4 asks in the order of time."""
        row, known = next(stages)
        return (found(row, q, v) if known is None else known).a[..., free]

    with np.errstate(over="ignore", invalid="ignore"):  # divergence is told in words
        acting = efforts(0, time(0), q, v)
        lead = found(0, q, v).a.shape[:-1]  # those of gravity and wrenches too
        q, v = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in (q, v))
        records: list[tuple[Array, Array, Array, Array]] = []
        for k in range(steps + 1):
            if 0 < k < steps:
                acting = efforts(k, time(k), q, v)
            here = found(2 * k, q, v)
            if not np.isfinite(here.a).all():
                raise FailedPreconditionError(
                    f"the simulation diverged before step {first_step + k} (t = {time(k):g} s): the accelerations are "
                    f"no longer finite; try a step shorter than dt = {dt:g} s"
                )
            if not k % every:
                records.append((*state(2 * k, q, v), *here))
            if k == steps:
                break
            stages = iter(((2 * k, here), (2 * k + 1, None), (2 * k + 1, None), (2 * k + 2, None)))
            q, v = rk4_step(acceleration, q, v, dt, on=parts.free)
            if progress is not None:
                progress((k + 1) / steps)
    times: Array = t0 + dt * (first_step + every * np.arange(len(records), dtype=np.float64))
    return RheonomicTrajectory(times, *(np.stack(column, axis=-2) for column in zip(*records, strict=True)))


def _efforts(
    tau: ArrayLike | EffortFunction | None, steps: int, parts: Partition
) -> Callable[[int, float, Array, Array], Array]:
    """(step, t, q, v) -> the efforts that act through that step."""
    if callable(tau):
        function = tau
        return lambda k, t, q, v: parts.checked("tau", function(t, q, v))
    given = np.zeros(parts.free.nv) if tau is None else np.asarray(tau, dtype=np.float64)
    array = check_efforts(given, steps, parts.free.nv)
    return lambda k, t, q, v: array if array.ndim == 1 else array[..., min(k, array.shape[-2] - 1), :]
