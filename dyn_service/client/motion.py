"""A simulation over the wire, part by part: what to ask next, from what was answered. No sockets here.

The server simulates a limited number of steps a request; a longer motion is a series of requests, each from the last
state of the one before. So nothing of it waits on the server, progress shows, and a client that goes away ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.answers import Array, Trajectory
from dyn_service.errors import InvalidArgumentError
from dyn_service.queries import EffortFunction

PART_STEPS = 2000
"""Steps of one request at most: some milliseconds of the server's time."""

PART_NUMBERS = 1 << 16
"""Numbers in one reply, about: half a mebibyte."""

Asking = tuple[dict[str, Any], dict[str, Any]]
"""Inputs and options of one request."""


def parts(
    nv: int,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None,
    *,
    dt: float,
    steps: int,
    every: int = 1,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Generator[Asking, Mapping[str, Array], Trajectory]:
    """The requests of one simulation, in turn: send each one's outputs back in; the motion is what comes back.

    Args:
        nv: Movable joints of the robot.
        q0: As for `Robot.simulate`, like all that follow. A function `tau` is called here, a request a step.
        v0: First velocities.
        tau: Efforts.
        dt: s, of a step.
        steps: How many.
        every: Record every so many steps.
        progress: Called after each part with the share that is done.
        **options: `method`, `integrator`, `gravity`.

    Raises:
        InvalidArgumentError: `steps` or `every` is not a positive number.
    """
    if steps < 1 or every < 1:
        raise InvalidArgumentError(f"steps and every must be at least 1, found {steps} and {every}", path="steps")
    q, v = np.asarray(q0, dtype=np.float64), np.asarray(v0, dtype=np.float64)
    gravity = options.pop("gravity", None)
    samples = None if tau is None or callable(tau) else np.asarray(tau, dtype=np.float64)
    sampled = samples is not None and samples.ndim > 1 and samples.shape[-2] == steps
    states = max(1, max(q.size, v.size) // max(nv, 1))
    records = max(1, min(PART_STEPS // every, PART_NUMBERS // (2 * nv * states or 1)))
    per_part = 1 if callable(tau) else records * every
    last = steps // every * every
    found: dict[str, list[Array]] = {}
    done = 0
    while done < last:
        count = min(per_part, last - done)
        acting: Any = samples
        if callable(tau):
            acting = np.asarray(tau(done * dt, q, v), dtype=np.float64)[..., None, :]
        elif sampled and samples is not None:
            acting = samples[..., done : done + count, :]
        inputs = {"q": q, "v": v, "tau": acting, "gravity": gravity}
        asked = {"dt": dt, "steps": count, "every": 1 if callable(tau) else every, **options}
        outputs = yield inputs, asked
        q, v = outputs["q"][..., -1, :], outputs["v"][..., -1, :]
        if not done:
            found = {name: [array[..., :1, :]] for name, array in outputs.items() if name != "t"}
        done += count
        if not callable(tau) or not done % every:
            for name, kept in found.items():
                kept.append(outputs[name][..., 1:, :])
        if progress is not None:
            progress(done / last)
    if not found:  # fewer steps than are recorded at all: the first state is the motion
        return Trajectory(np.zeros(1), q[..., None, :], v[..., None, :])
    joined = {name: np.concatenate(kept, axis=-2) for name, kept in found.items()}
    times: Array = dt * every * np.arange(last // every + 1, dtype=np.float64)
    return Trajectory(times, **joined)
