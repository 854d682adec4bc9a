"""Dynamics of robots with closed loops as one function each, by the motions of `loops.py`, for exported functions.

Each returns `shares` (4,) as of `loops.efforts` besides its answer: they are small where the state is closed and
regular, and the answer counts only there.

The step is that of `simulate`: the accelerations of its stages are those at the nearest closed states, and it ends at
one. `closed_state` iterates q - J_c^+ e with the gap e, and removes from v its part across the loops, J_c^+ J_c v.

Checked by tests/engine/test_exported_loops.py.
"""

from __future__ import annotations

from functools import partial

from dyn_service.dynamics import constraint, integration, loops, newton_euler
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import error, influences, integrate
from dyn_service.dynamics.mass_matrix import mass_matrix
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import PerBody, inward
from dyn_service.model.loop_tree import LoopTree
from dyn_service.model.steps import Step, explicit_euler_step, rk4_step, semi_implicit_euler_step

CLOSING_STEPS = 3
"""Newton steps that close the loops at a stage: each squares the gap, which is at most some 1e-3 after the first."""


def shares(tree: LoopTree, q: Mat, v: Mat | None = None, a: Mat | None = None) -> Mat:
    """shares (4,) of a state. None: at rest; accelerations that keep the loops closed."""
    rest = ex.zeros(tree.nv, 1)
    v = rest if v is None else v
    return loops.independent_motion(tree, q, v)["shares"] if a is None else loops.efforts(tree, q, v, a, rest)["shares"]


def inverse_dynamics(
    tree: LoopTree, q: Mat, v: Mat, a: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """tau (nv,), 0 at dependent joints."""
    return loops.efforts(tree, q, v, a, newton_euler.inverse_dynamics(tree, q, v, a, gravity, wrenches))


def gravity_forces(tree: LoopTree, q: Mat, gravity: Mat) -> dict[str, Mat]:
    """tau (nv,) at rest."""
    rest = ex.zeros(tree.nv, 1)
    return inverse_dynamics(tree, q, rest, rest, gravity)


def bias_forces(tree: LoopTree, q: Mat, v: Mat, gravity: Mat) -> dict[str, Mat]:
    """tau (nv,) that keep the independent velocities constant."""
    return _with_rates(tree, q, v, ex.zeros(tree.nv, 1), gravity)


def computed_torque(
    tree: LoopTree,
    q: Mat,
    v: Mat,
    q_ref: Mat,
    v_ref: Mat,
    a_ref: Mat,
    kp: Mat,
    kd: Mat,
    gravity: Mat,
    wrenches: PerBody | None = None,
) -> dict[str, Mat]:
    """tau (nv,) of the law at the independent joints."""
    return _with_rates(tree, q, v, a_ref + kd * (v_ref - v) + kp * error(tree, q, q_ref), gravity, wrenches)


def _with_rates(
    tree: LoopTree, q: Mat, v: Mat, rates: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """tau (nv,) of the accelerations whose independent entries are those of rates (nv,)."""
    G, a_p, _ = _motion(tree, q, v)
    rates = rates - a_p
    a = a_p + G @ ex.vertcat(*(rates[k] for k in tree.independent))
    return inverse_dynamics(tree, q, v, a, gravity, wrenches)


def forward_dynamics(
    tree: LoopTree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """a (nv,)."""
    G, a_p, shares = _motion(tree, q, v)
    f = tau - newton_euler.inverse_dynamics(tree, q, v, a_p, gravity, wrenches)
    answer = loops.accelerations_of(tree, mass_matrix(tree, q), G, a_p, f)
    return {"a": answer["a"], "shares": ex.vertcat(shares[:3], ex.fmax(shares[3], answer["quotient"]))}


def constraint_forces(
    tree: LoopTree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """wrench, actuation and constraint of the named joints, then of the loop joints, as `constraint.constraint_forces`.

    Of all loads with this motion those with the least squares at all joints.
    """
    motion = forward_dynamics(tree, q, v, tau, gravity, wrenches)
    f = newton_euler.inverse_dynamics(tree, q, v, motion["a"], gravity, wrenches) - tau
    forces, idle = loops.row_forces(tree, loops.unit_rows(tree, q), f)
    D = influences(tree, q)
    loads, on_bodies = loops.wrenches_of(tree, q, forces)
    external = on_bodies if wrenches is None else on_bodies + wrenches
    F, _ = newton_euler.joint_loads(tree, q, v, motion["a"], gravity, external)
    stacked, quotient = ex.vertcat(*loads, *F), motion["shares"][3]
    if idle.shape[1]:
        columns = []
        for column in ex.horzsplit(idle):
            loads, on_bodies = loops.wrenches_of(tree, q, column)
            columns.append(ex.vertcat(*loads, *inward(tree, D, PerBody(-W for W in on_bodies))))
        A = ex.horzcat(*columns)
        x, of_idle = loops.least_squares(A, stacked)
        stacked, quotient = stacked + A @ x, ex.fmax(quotient, of_idle)
    parts = ex.vertsplit(stacked, 6)
    loads, count = parts[: len(tree.loops)], len(tree.loops)
    answer = constraint.components(tree, PerBody(parts[count:]))
    answer["wrench"] = ex.vertcat(answer["wrench"], *loads)
    answer["actuation"] = ex.vertcat(answer["actuation"], ex.zeros(count, 1))
    answer["constraint"] = ex.vertcat(answer["constraint"], *loads)
    return answer | {"shares": ex.vertcat(motion["shares"][:3], quotient)}


def _motion(tree: LoopTree, q: Mat, v: Mat) -> tuple[Mat, Mat, Mat]:
    """G (nv, nu), a_p (nv, 1) and shares (4, 1)."""
    motion = loops.independent_motion(tree, q, v)
    return ex.reshape(motion["jacobian"], -1, tree.nv).T, motion["acceleration"], motion["shares"]


def closed_state(tree: LoopTree, q: Mat, v: Mat) -> tuple[Mat, Mat]:
    """The closed position nearest to q, and v without its part across the loops."""
    for _ in range(CLOSING_STEPS):
        q = integrate(tree, q, loops.closing(tree, q, v)["dq"], ex.matrix(1.0))
    return q, v + loops.closing(tree, q, v)["dv"]


def acceleration_near(
    tree: LoopTree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """a (nv,) at the nearest closed state."""
    return forward_dynamics(tree, *closed_state(tree, q, v), tau, gravity, wrenches)


def _end(
    step: Step,
    tree: LoopTree,
    q: Mat,
    v: Mat,
    tau: Mat,
    dt: Mat,
    gravity: Mat,
    wrenches: PerBody | None = None,
    **a: Mat,
) -> dict[str, Mat]:
    """q and v after dt, closed, from the accelerations a1 .. of the stages."""
    states = integration.states(step, tree, q, v, tau, dt, gravity, wrenches, **a)
    q_end, v_end = closed_state(tree, states["q"], states["v"])
    return {"q": q_end, "v": v_end, "shares": loops.independent_motion(tree, q_end, v_end)["shares"]}


explicit_euler = partial(_end, explicit_euler_step)
semi_implicit_euler = partial(_end, semi_implicit_euler_step)
rk4 = partial(_end, rk4_step)
