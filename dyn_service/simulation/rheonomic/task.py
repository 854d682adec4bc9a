"""What a rheonomic motion from samples is asked for: arguments checked, states spread, efforts step by step.

A client that asks for a motion part by part and the loop that makes it begin from the same checks. No engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import broadcast
from dyn_service.api.queries import Array, EffortFunction, GivenMotion, Wrench
from dyn_service.model.configuration import Configuration
from dyn_service.simulation.grid import Grid, check_grid
from dyn_service.simulation.rheonomic.prescribed import sampled
from dyn_service.simulation.rheonomic.systems import Partition, entries, partition
from dyn_service.simulation.task import Efforts, finite, listed, vectors_of


@dataclass(eq=False)
class RheonomicTask:
    """One motion, its arguments checked and its first state spread over all leading axes.

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
        """(..., nvf), the efforts of the free joints through step k of this part, which begins at that state."""
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
    """The motion that these arguments of `simulate_rheonomic` ask for.

    Raises:
        NotFoundError: There is no movable joint of a prescribed one's name.
        InvalidArgumentError: One of them has the wrong type, shape or value; `path` names it.
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
    # A function is told the state with all the leading axes that the data have; its own may come on top.
    q, v = (np.broadcast_to(x, (*broadcast(leads), x.shape[-1])) for x in (q, v))
    leads["tau"] = efforts.begin(grid.first_step + 1, grid.time(0), q, v)
    efforts.lead = lead = broadcast(leads)
    q, v = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in (q, v))
    return RheonomicTask(grid, parts, names, rows, q, v, efforts, g, loads)
