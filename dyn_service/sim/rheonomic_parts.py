"""A rheonomic motion over a wire, part by part, both ends: what to ask next, and the answer to one such request.

The given motion goes as samples on the half grid, so that the server computes no time and a motion in parts is the
whole to the last bit. A part goes on from the free joints' entries of the last state of the one before. No sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.queries import EffortFunction, GivenMotion, RobotQueries
from dyn_service.api.results import Array, RheonomicTrajectory
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.sim.prescribed import check_efforts, check_grid, sampled

PART_STEPS = 250
"""Steps of one request at most: some tens of milliseconds of the server's time."""

PART_NUMBERS = 1 << 16
"""Numbers in one reply, about: half a mebibyte."""

Asking = tuple[dict[str, Any], dict[str, Any]]
"""Inputs and options of one request."""


def simulate(
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
    wrenches: Any = None,
    progress: Callable[[float], None] | None = None,
) -> Generator[Asking, Mapping[str, Array], RheonomicTrajectory]:
    """The requests of one motion, in turn: send each one's outputs back in; the motion is what comes back.

    Args:
        at: The robot's movable joints.
        prescribed: As for `Robot.simulate_rheonomic`, like all that follow. Functions of time are called here.
        q0: First positions of the free joints.
        v0: First velocities.
        tau: Efforts. A function is called here, a request a step.
        dt: s, of a step.
        steps: How many.
        t0: s.
        first_step: Steps that were made before these.
        every: Record every so many steps.
        gravity: m/s^2.
        wrenches: All through the motion.
        progress: Called after each part with the share that is done.

    Raises:
        InvalidArgumentError: `dt`, `steps`, `every`, the given motion or the efforts do not fit.
    """
    check_grid(dt, steps, every)
    names, rows = sampled(prescribed, dt=dt, steps=steps, t0=t0, first_step=first_step)
    free, *of_free = at.chosen([name for name in at.names if name not in names])
    q, v = np.asarray(q0, dtype=np.float64), np.asarray(v0, dtype=np.float64)
    samples = None
    if tau is not None and not callable(tau):  # here, since the server knows a part's steps only
        samples = check_efforts(np.asarray(tau, dtype=np.float64), steps, free.nv)
    states = max(1, max(q.size // max(free.nq, 1), v.size // max(free.nv, 1)))
    most = max(1, min(PART_STEPS, PART_NUMBERS // ((at.nq + 3 * at.nv) * states or 1)))
    aligned = every <= most and not callable(tau)  # then parts end where a state is recorded
    per_part = 1 if callable(tau) else most // every * every if aligned else most
    found: dict[str, list[Array]] = {name: [] for name in ("q", "v", "a", "tau")}
    done = 0
    while done < steps:
        count = min(per_part, steps - done)
        acting: Any = samples
        if callable(tau):
            acting = np.asarray(tau(t0 + (first_step + done) * dt, q, v), dtype=np.float64)[..., None, :]
        elif samples is not None and samples.ndim > 1 and samples.shape[-2] == steps:
            acting = samples[..., done : done + count, :]
        inputs = {
            "q": q,
            "v": v,
            "tau": acting,
            "prescribed": rows[..., 2 * done : 2 * (done + count) + 1, :, :],
            "gravity": gravity,
            "wrenches": wrenches,
        }
        # The last state of a part is where the next begins: it has to come back, recorded or not.
        stride = every if aligned and not count % every else 1
        grid = {"dt": dt, "steps": count, "t0": t0, "first_step": first_step + done, "every": stride}
        options = {"joints": list(names), **grid}
        outputs = yield inputs, options
        q, v = (outputs[name][..., -1, :][..., places] for name, places in zip(("q", "v"), of_free, strict=True))
        # The last row of a part is the first of the next, which knows the efforts that act from there on.
        end = None if done + count == steps else -1
        for name, records in found.items():
            each = outputs[name][..., :end, :]
            records.append(each if stride == every else each[..., -done % every :: every, :])
        done += count
        if progress is not None:
            progress(done / steps)
    joined = {name: np.concatenate(records, axis=-2) for name, records in found.items()}
    times: Array = t0 + dt * (first_step + every * np.arange(steps // every + 1, dtype=np.float64))
    return RheonomicTrajectory(times, **joined)


def simulated(robot: RobotQueries, inputs: Mapping[str, Array], options: Mapping[str, Any]) -> dict[str, Array]:
    """The answer to one request.

    Args:
        robot: The robot.
        inputs: `q`, `v`, `prescribed` (.., rows, np, 3) and, where they are given, `tau`, `gravity`, `wrenches`.
        options: Those of the row, and `joints`, the names that go with the samples.

    Raises:
        DynError: As `RobotQueries.simulate_rheonomic`.
    """
    from dyn_service.sim.sampled import simulate_rheonomic  # not at a client

    given = dict(options)
    joints, samples, q = given.pop("joints"), inputs["prescribed"], inputs["q"]
    if len(set(joints)) < len(joints):
        raise InvalidArgumentError(f"joints must be a list of different names, found {joints!r}", path="options.joints")
    free, *_ = robot.configuration.chosen([name for name in robot.joint_names if name not in joints])
    if q.shape[-1:] == (free.nq,):
        free.check_unit(q, "q", "inputs.q")
    if samples.ndim < 3 or samples.shape[-2:] != (len(joints), 3):
        raise InvalidArgumentError(
            f"prescribed has shape {samples.shape}, expected (.., rows, {len(joints)}, 3): position, velocity, "
            "acceleration of each joint in `joints`",
            path="inputs.prescribed",
        )
    acting: dict[str, Any] = {name: inputs.get(name) for name in ("gravity", "wrenches")}
    motion = simulate_rheonomic(
        robot,
        {name: samples[..., k, :] for k, name in enumerate(joints)},
        q,
        inputs["v"],
        inputs.get("tau"),
        **acting,
        **given,
    )
    return motion._asdict()
