"""Long computations about closed loops: `loop_error`, `assemble`, `independent_motion`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.api.arrays import vectors
from dyn_service.api.cost import (
    BODY_S,
    CALL_S,
    COPIES,
    CUBE_S,
    NUMBER_S,
    Cost,
    count,
    given_shape,
    leading,
    overlay_lead,
)
from dyn_service.api.inputs import checked_option
from dyn_service.api.queries import COMPUTATIONS, Array
from dyn_service.api.results import IndependentMotion
from dyn_service.api.spec import Dimensions
from dyn_service.engine.loops import derivatives
from dyn_service.engine.loops.call import Call
from dyn_service.engine.loops.closed_loops import entries_of, no_movable_joint
from dyn_service.engine.loops.joints import CLOSED, first_place, state_text, times
from dyn_service.engine.loops.kernels import REGULAR
from dyn_service.engine.loops.mechanism import gap_text
from dyn_service.engine.loops.queries import LoopQueries
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError


def loop_error(robot: Any, q: Any) -> Array:
    """Returns the errors of the loop joints; arguments and errors are those of `RobotQueries.loop_error`."""
    call = _call(robot, "loop_error", q=q)
    if call is None:
        return np.zeros((*vectors("q", q, robot.nq).shape[:-1], 0, 6))
    return call.state.error


def assemble(robot: Any, q: Any, *, fixed: Sequence[str] | None = None) -> Array:
    """Returns the nearest closed positions; arguments and errors are those of `RobotQueries.assemble`."""
    call, start = _call(robot, "assemble", q=q), vectors("q", q, robot.nq)
    checked_option(COMPUTATIONS["assemble"].options["fixed"], fixed)
    for k, name in enumerate(fixed or ()):
        if name not in robot.joint_names:
            raise no_movable_joint(name, robot.configuration, robot.name, _loop_joints(robot), f"fixed[{k}]")
    if not np.isfinite(start).all():
        raise InvalidArgumentError("q must have finite numbers", path="q")
    if call is None:
        return np.array(start)
    loops, lead = call.loops, start.shape[:-1]
    start = loops.configuration.unit(start, "q").reshape(-1, loops.configuration.nq)
    if (place := first_place(~np.isfinite(loops.joints.state(start, None).rows).all(axis=(-2, -1)))) is not None:
        largest = float(np.abs(start[place]).max())
        raise InvalidArgumentError(
            f"q has a number too large for poses of links, {largest:g}; begin nearer to a closed position", path="q"
        )
    assembled, iterations = loops.assembly(fixed or ()).nearest(start)
    closing = loops.joints.state(assembled, np.zeros(loops.nv))
    place = first_place(~(loops.gaps(closing) <= CLOSED))
    if place is not None:
        state, gap = np.unravel_index(place[0], lead), closing.error[place]
        raise FailedPreconditionError(
            f"assemble found no closed position{state_text([int(k) for k in state])} near q within the limits: after "
            f"{iterations} iterations the loop of joint '{loops.joints.names[place[-1]]}' has a gap of "
            f"{gap_text(gap)}; begin nearer to a closed position, or fix fewer joints"
        )
    return assembled.reshape(call.q.shape)


def independent_motion(
    robot: Any, q: Any, v: Any, *, independent: Sequence[str] | None = None, gravity: Any = None
) -> IndependentMotion:
    """Returns the motion in independent velocities; arguments and errors are those of
    `RobotQueries.independent_motion`.
    """
    call = _call(robot, "independent_motion", q=q, v=v, gravity=gravity)
    if call is None:
        return _independent_tree(robot, q, v, independent, gravity)
    rows, G, a, freedom = _of_independent(call, independent)
    G_T = np.swapaxes(G, -1, -2)
    motion = IndependentMotion(
        rows,
        G,
        a,
        G_T @ call.tree("mass_matrix", call.q) @ G,
        times(G_T, call.tree("inverse_dynamics", call.q, call.v, a)),
        freedom,
        derivatives.idle_efforts(call, rows, G),
    )
    return _with_common_lead(motion)


def _with_common_lead(motion: IndependentMotion) -> IndependentMotion:
    """Returns a motion whose arrays all have the leading axes of the states, as every output of a row."""
    arrays = {name: np.asarray(getattr(motion, name)) for name in COMPUTATIONS["independent_motion"].outputs}
    axes = {name: x.ndim - len(COMPUTATIONS["independent_motion"].outputs[name].shape) for name, x in arrays.items()}
    lead = np.broadcast_shapes(*(x.shape[: axes[name]] for name, x in arrays.items()))
    return IndependentMotion(
        **{name: np.array(np.broadcast_to(x, (*lead, *x.shape[axes[name] :]))) for name, x in arrays.items()}
    )


def _of_independent(call: Call, independent: Sequence[str] | None) -> tuple[Array, Array, Array, Array]:
    """Returns S_u (nu, nv), G (..., nv, nu), the accelerations at constant u (..., nv), and the freedom (...)."""
    loops, kernels = call.loops, call.loops.compiled
    regular = np.zeros((), dtype=bool)
    if kernels is not None and independent is None:
        with np.errstate(all="ignore"):
            G, a_p, shares = kernels.independent_motion(call.q, call.v)
            a = a_p - times(G, a_p[..., kernels.independent])
        rows, regular = np.eye(loops.nv)[kernels.independent], (shares <= REGULAR).all(axis=-1)
        if regular.all():
            return rows, G, a, np.full(regular.shape, float(len(rows)))
    loops.check_closed(call.state, "q")
    loops.check_kept(call.state, call.v, 0.0, 0.0, "v")
    selected = loops.selection(independent, call.state)
    G_all = loops.from_independent(call.tangent, selected)
    a_all = call.independent_acceleration(np.zeros(len(selected)), selected)
    if regular.any() and np.array_equal(rows, selected):  # so that no answer depends on the other states
        G_all, a_all = np.where(regular[..., None, None], G, G_all), np.where(regular[..., None], a, a_all)
    return selected, G_all, a_all, np.where(call.tangent.exists, call.tangent.free.sum(axis=-1), np.nan)


def _independent_tree(robot: Any, q: Any, v: Any, independent: Sequence[str] | None, gravity: Any) -> IndependentMotion:
    """Returns the motion of a robot without loops, whose velocities are all independent."""
    M, bias = robot.mass_matrix(q), robot.bias_forces(q, v, gravity=gravity)
    free = robot.evaluator.model.tree.free
    is_free = np.ones(robot.nv, dtype=bool) if free is None else free > 0.0
    default = np.flatnonzero(is_free).tolist()
    entries = entries_of(robot.configuration, len(default), independent, default, robot.name)
    for k in entries:
        if not is_free[k]:
            raise InvalidArgumentError(
                f"independent has joint '{robot.configuration.velocity_joints[k]}', which an overlay locks; name "
                "joints that move",
                path="independent",
            )
    rows = np.eye(robot.nv)[entries]
    M, zeros, freedom = rows @ M @ rows.T, np.zeros(bias.shape), np.array(float(len(entries)))
    idle = np.zeros((robot.nv, robot.nv))
    return _with_common_lead(IndependentMotion(rows, rows.T, zeros, M, times(rows, bias), freedom, idle))


def _loop_joints(robot: Any) -> tuple[str, ...]:
    loops: LoopQueries | None = robot.evaluator.closed_loops
    return () if loops is None else loops.joints.names


def _call(robot: Any, name: str, **arguments: Any) -> Call | None:
    """Returns the call of a computation; None if the robot has no closed loops."""
    loops: LoopQueries | None = robot.evaluator.closed_loops
    if loops is None:
        return None
    loops.check_unlocked(COMPUTATIONS[name])
    return Call(loops, COMPUTATIONS[name], arguments)


def cost(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of a computation about closed loops; of `assemble` with the iterations of an ordinary start."""
    lead = leading(
        [*(given_shape(inputs.get(name), 1) for name in ("q", "v", "gravity")), overlay_lead(inputs.get("overlay"))]
    )
    n, states = sizes["nv"], count(lead)
    loops, (iterations, batch_iterations) = sizes["nk"], _ITERATIONS if "fixed" in options else (1, 1)
    numbers = n * (4 * n + 2) + 6 * n
    work = CALL_S + states * numbers * NUMBER_S
    if loops:
        state_s = loops * (sizes["nl"] * BODY_S + _LOOP_S) + 40 * n**3 * CUBE_S
        work += iterations * 10 * CALL_S * loops + batch_iterations * states * state_s
    reply = 8 * states * numbers
    return Cost(work, COPIES * reply + 8 * states * 30 * n**2, reply, lead)


_LOOP_S, _ITERATIONS = 5e-6, (20, 100)
"""Cost of a loop joint of one state; and calls of `point_motion` by which `assemble` closes the loops of one state, and
of a batch, all of whose states iterate until the last one is closed, each with singular values.
"""
