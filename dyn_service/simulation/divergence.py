"""The error of motions that diverge, with the step and the joint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array
from dyn_service.errors import FailedPreconditionError
from dyn_service.model.configuration import Configuration


class DivergedError(FailedPreconditionError):
    """A motion is no longer finite or too fast for its steps, or the iteration of a step does not converge."""


def diverged(step: int, t: float, cause: str) -> DivergedError:
    """Returns the error for a motion that diverged in a step, counted from 1, which ends at t (s)."""
    return DivergedError(f"the simulation diverged in step {step} (t = {t:g} s): {cause}")


def no_longer_finite(
    configuration: Configuration,
    step: int,
    t: float,
    dt: float,
    last_finite: tuple[Array, Array, Array],
    finite: NDArray[np.bool_],
) -> DivergedError:
    """Returns the error for a motion whose state is not finite after a step, counted from 1, which ends at t (s).

    last_finite: positions, velocities and accelerations at its start. finite: (..., nv) whether the state of each
    entry's joint is finite after it.
    """
    diverging = ~finite
    member = tuple(np.argwhere(diverging.any(axis=-1))[0].tolist())
    v, a = (np.broadcast_to(x, diverging.shape)[member] for x in last_finite[1:])
    speed = np.abs(v) + dt * np.where(np.isfinite(a), np.abs(a), 0.0)
    joint = configuration.velocity_joints[int(np.argmax(np.where(diverging[member], speed, -1.0)))]
    place = f" of member {list(member)} of the batch" if member else ""
    cause = f"the state of joint '{joint}'{place} is no longer finite"
    return diverged(step, t, f"{cause}; try a step shorter than dt = {dt:g} s")
