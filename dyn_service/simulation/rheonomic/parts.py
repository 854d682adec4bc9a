"""Remote rheonomic simulations as a series of requests: client side and server side. No sockets.

The prescribed motion is sent as samples on the half grid, so that the server computes no times and the parts give the
bits of the whole motion. A part continues from the free joints' entries of the last state of the previous part.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import spread
from dyn_service.api.cost import overlay_lead
from dyn_service.api.queries import EffortFunction, GivenMotion, Overlay, RobotQueries
from dyn_service.api.results import Array, RheonomicTrajectory
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.rheonomic.systems import checked, partition
from dyn_service.simulation.task import one_step

PART_STEPS = 250
"""Maximum number of steps per request: some tens of milliseconds of the server's time."""

PART_NUMBERS = 1 << 16
"""Approximate number of values per reply: 0.5 MiB."""

Asking = tuple[dict[str, Any], dict[str, Any]]
"""Inputs and options of a request."""


def simulate(
    at: Configuration,
    prescribed: GivenMotion,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    overlay: Overlay | None = None,
    passive: bool = True,
    progress: Callable[[float], None] | None = None,
    **arguments: Any,
) -> Generator[Asking, Mapping[str, Array], RheonomicTrajectory]:
    """Yields the requests of a motion; the caller sends the outputs of each back in. Returns the motion.

    Args:
        at: The robot's movable joints.
        prescribed: Arguments are those of `Robot.simulate_rheonomic`. Functions of time are called in this process.
        q0: Initial positions of the free joints.
        v0: Initial velocities.
        tau: Efforts. A function is called in this process, with one request per step.
        overlay: Constant during the motion; its leading axes are those of the states.
        passive: Whether passive joint forces act.
        progress: Called after each part with the completed fraction.
        **arguments: The other arguments of `sampled.checked`.

    Raises:
        NotFoundError: There is no movable joint of a prescribed one's name.
        InvalidArgumentError: An argument has the wrong shape or value; names it.
    """
    task = checked(at, prescribed, spread(q0, overlay_lead(overlay)), v0, tau, **arguments)
    dt, steps, every, first_step, t0 = task.grid
    q, v, by_function = task.q, task.v, task.efforts.function is not None
    states = max(1, q.size // max(task.parts.free.nq, 1), v.size // max(task.parts.free.nv, 1))
    most = max(1, min(PART_STEPS, PART_NUMBERS // ((at.nq + 3 * at.nv) * states or 1)))
    aligned = every <= most and not by_function  # parts end at records
    per_part = 1 if by_function else most // every * every if aligned else most
    found: dict[str, list[Array]] = {name: [] for name in ("q", "v", "a", "tau")}
    free = (("q", task.parts.free_q), ("v", task.parts.free_v))
    done = 0
    while done < steps:
        count = min(per_part, steps - done)
        acting = task.efforts.part(done, count)
        if by_function:
            acting, _ = one_step(task.acting(done, q, v), None)
        inputs = {
            "q": q,
            "v": v,
            "tau": acting,
            "prescribed": task.rows[..., 2 * done : 2 * (done + count) + 1, :, :],
            "gravity": task.gravity,
            "wrenches": task.wrenches,
            "overlay": overlay,
        }
        # The next part starts at the last state, so it is returned even if it is not recorded.
        stride = every if aligned and not count % every else 1
        grid = {"dt": dt, "steps": count, "t0": t0, "first_step": first_step + done, "every": stride}
        options = {"joints": list(task.names), **grid, **({} if passive is True else {"passive": passive})}
        outputs = yield inputs, options
        q, v = (outputs[name][..., -1, :][..., places] for name, places in free)
        # The last row of a part is the first of the next one, which has the efforts from there on.
        end = None if done + count == steps else -1
        for name, records in found.items():
            each = outputs[name][..., :end, :]
            records.append(each if stride == every else each[..., -done % every :: every, :])
        done += count
        if progress is not None:
            progress(done / steps)
    joined = {name: np.concatenate(records, axis=-2) for name, records in found.items()}
    return RheonomicTrajectory(task.grid.times(), **joined)


def simulated(
    robot: RobotQueries,
    inputs: Mapping[str, Array],
    options: Mapping[str, Any],
    progress: Callable[[float], None] | None = None,
) -> dict[str, Array]:
    """Answers one request.

    Args:
        robot: The robot.
        inputs: `q`, `v`, `prescribed` (.., rows, np, 3) and, if given, `tau`, `gravity`, `wrenches`.
        options: The options of the row, and `joints`, the names for the samples.
        progress: Called after each step with the completed fraction; its exceptions end the motion.

    Raises:
        DynError: As `RobotQueries.simulate_rheonomic`.
    """
    from dyn_service.simulation.rheonomic.systems import simulate_rheonomic  # not on the client

    given = dict(options)
    joints, samples, q = given.pop("joints"), inputs["prescribed"], inputs["q"]
    if len(set(joints)) < len(joints):
        raise InvalidArgumentError(f"joints must be a list of different names, found {joints!r}", path="options.joints")
    try:
        free = partition(robot.configuration, joints).free
    except DynError as fault:
        raise type(fault)(fault.message, path="options.joints") from None
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
        progress=progress,
    )
    return motion._asdict()
