"""The load of each joint, split by cause: motors, passive joint forces, weights, pairs of rates, external wrenches.

    F = L (tau - p) + (e - L G^T) Psi_D^T (M Psi_D A + B - Y^T F-bar),    L = Psi_D^T M Psi_D G (M + I_r)^-1

which is (15) with (19a) for the accelerations. It is affine in tau, in the weight and wrench of each body (F-bar), and
A and B are quadratic in the rates, so that

    motor k          L_k tau_k                                   weight of body b    (e - L G^T) Psi_D^T (- Y^T W_b)
    passive joint k  - L_k p_k(q, v)                             wrenches on b       (e - L G^T) Psi_D^T (- Y^T F-bar_b)
    rates k, k       (e - L G^T) Psi_D^T (M Psi_D A + B) at v_k alone
    rates k, l       half of what both do together beyond the sum of what each does alone, at [k, l] and [l, k]

A column is one call of `constraint_forces`, O(N) by (19b), in which all other causes are zero: gravity 0, and efforts
that balance the passive forces. All columns of a kind are a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import vectors
from dyn_service.api.cost import (
    BODY_S,
    CALL_S,
    COPIES,
    NUMBER_S,
    Cost,
    count,
    given_shape,
    leading,
    overlay_lead,
    wrench_shapes,
)
from dyn_service.api.queries import Array, Wrench
from dyn_service.api.results import ConstraintForceCauses
from dyn_service.api.spec import Dimensions
from dyn_service.formulations.local_robot import LocalRobot


def constraint_force_causes(
    robot: LocalRobot,
    q: ArrayLike,
    v: ArrayLike,
    tau: ArrayLike,
    *,
    joints: Sequence[str] | None = None,
    frame: Literal["joint", "world"] = "joint",
    gravity: ArrayLike | None = None,
    wrenches: Wrench | Sequence[Wrench] | None = None,
) -> ConstraintForceCauses:
    """Returns the loads by cause; arguments and errors as in `RobotQueries.constraint_force_causes`."""
    nv, links = robot.nv, robot.link_names
    state = {"q": vectors("q", q, robot.nq), "v": vectors("v", v, nv), "tau": vectors("tau", tau, nv)}
    # The answer of the whole is checked first, so that errors name the caller's arguments.
    whole = robot.constraint_forces(*state.values(), joints=joints, frame=frame, gravity=gravity, wrenches=wrenches)
    lead = whole.wrench.shape[:-2]
    q, v, tau = (np.broadcast_to(x, (*lead, x.shape[-1])) for x in state.values())

    def loads(v: Array, tau: Array, wrenches: Wrench | Sequence[Wrench] | None = None) -> Array:
        """The wrenches without weight, under efforts beyond those that balance the passive forces."""
        p = _passive(robot, q, v)
        return robot.constraint_forces(
            q, v, tau + p, joints=joints, frame=frame, gravity=np.zeros(3), wrenches=wrenches
        ).wrench

    at_rest = np.zeros_like(v)
    columns = _last(loads(np.zeros((nv, *v.shape)), _diagonal(np.ones_like(v))))
    return ConstraintForceCauses(
        whole.joints,
        links,
        columns * tau[..., None, None, :],
        -columns * _passive(robot, q, v)[..., None, None, :],
        _last(np.stack([loads(at_rest, at_rest, weight) for weight in _weights(robot, gravity)])),
        _rates(loads, v),
        _last(np.stack([_of_wrenches(loads, at_rest, link, wrenches) for link in links])),
    )


def _of_wrenches(loads: Any, at_rest: Array, link: str, wrenches: Wrench | Sequence[Wrench] | None) -> Array:
    """The loads of the wrenches on one link."""
    sequence = [wrenches] if isinstance(wrenches, Wrench) else wrenches or ()
    return np.asarray(loads(at_rest, at_rest, [wrench for wrench in sequence if wrench.link == link]))


def _passive(robot: LocalRobot, q: Array, v: Array) -> Array:
    forces = robot.passive_forces(q, v)
    return np.asarray(forces.damping + forces.friction + forces.springs)


def _weights(robot: LocalRobot, gravity: ArrayLike | None) -> list[Wrench]:
    """The weight of each link as a wrench: at its centre of mass, in world axes."""
    g = robot.gravity if gravity is None else np.asarray(gravity, dtype=np.float64)
    return [
        Wrench(link, force=np.asarray(body.mass)[..., None] * g, point=body.com)
        for link, body in zip(robot.tree.links, robot.tree.inertia, strict=True)
    ]


def _rates(loads: Any, v: Array) -> Array:
    """The loads of each pair of rates (..., nj, 6, nv, nv)."""
    nv = v.shape[-1]
    single_rates = _diagonal(v)
    rows, columns = np.triu_indices(nv, 1)
    pair_rates = single_rates[rows] + single_rates[columns]
    singles = loads(single_rates, np.zeros_like(single_rates))
    pairs = (loads(pair_rates, np.zeros_like(pair_rates)) - singles[rows] - singles[columns]) / 2.0
    result = np.zeros((nv, nv, *singles.shape[1:]))
    result[np.arange(nv), np.arange(nv)] = singles
    result[rows, columns] = result[columns, rows] = pairs
    return np.moveaxis(result, (0, 1), (-2, -1))


def _diagonal(x: Array) -> Array:
    """(n, ..., n) of x (..., n): row k has the entry k alone."""
    n = x.shape[-1]
    return np.eye(n).reshape(n, *[1] * (x.ndim - 1), n) * x


def _last(x: Array) -> Array:
    return np.moveaxis(x, 0, -1)


def cost(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of a request; see `Computation.cost`."""
    wrenches = inputs.get("wrenches") or ()
    states = [given_shape(inputs.get(name), 1) for name in ("q", "v", "tau", "gravity")]
    lead = leading([*states, *wrench_shapes(wrenches, 1), overlay_lead(inputs.get("overlay"))])
    nv, nl, total = sizes["nv"], sizes["nl"], count(lead)
    calls, columns = 2 * nl + 6, nv * (nv + 3) // 2 + 2 * nl
    numbers = 6 * sizes["nj"] * (2 * nv + 2 * nl + nv * nv)
    work = 4 * calls * CALL_S + total * (columns * (3 * nl * BODY_S + 6 * sizes["nj"] * NUMBER_S) + numbers * NUMBER_S)
    reply = 8 * total * numbers
    return Cost(work, COPIES * reply + 8 * total * columns * (6 * sizes["nj"] + 4 * nv), reply, lead)
