"""The queries of robots with closed loops: one row for each, with its answer or the reason why it has none.

Queries about motion, momentum and energy that the table lacks are those of the tree at states that keep the loops
closed; all others that it lacks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from dyn_service.api.queries import Array, ConstraintForces, Query, Row
from dyn_service.api.results import ForceTorque, ForwardDynamicsDerivatives, Hamiltonian, HamiltonianFlow, State
from dyn_service.engine.loops import derivatives
from dyn_service.engine.loops.call import Call, regular_accelerations
from dyn_service.engine.loops.joints import TEARING, first_place, state_text, times, with_common_lead
from dyn_service.engine.loops.kernels import REGULAR, LoopKernels
from dyn_service.engine.loops.simulation import ClosedSimulation
from dyn_service.engine.rows import ask
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.steps import STEPS
from dyn_service.parsing.quantities import rotation_of_rpy


class Answer(NamedTuple):
    """How a row is answered for closed loops.

    function: of a call; None: the tree's answer, or a computation. queries: those of the tree that the function asks,
    besides `point_motion`. regular: the answer by compiled kernels (..., nv), and whether it counts at each state
    (...): whether the state is closed and regular. opens: whether positions may be open. reference: whether the
    acceleration is a reference, of which only the independent entries are used. refusal: why there is no answer.
    """

    function: Callable[[Call], Any] | None = None
    queries: tuple[str, ...] = ()
    regular: Callable[[Call, LoopKernels], tuple[Array, Array]] | None = None
    opens: bool = False
    reference: bool = False
    refusal: str = ""


def answer_of(row: Row) -> Answer:
    """Returns the row of a query or computation; that of the tree's answers if the table lacks it."""
    return ANSWERS.get(row.name, _OF_TREE)


def is_computed_for_loops(row: Row) -> bool:
    """Whether a row is a computation that answers for closed loops."""
    return not isinstance(row, Query) and row.name in ANSWERS


def refusal_of(row: Row, method: str = "") -> str:
    """Returns why a method of a row has no answer for robots with closed loops; "" if it has."""
    if isinstance(row, Query) and row.parts:
        return next(filter(None, (refusal_of(part, choice) for part, choice in row.choices(method))), "")
    if row.name in ANSWERS:
        return ANSWERS[row.name].refusal
    if isinstance(row, Query) and method not in row.inverts_mass_matrix and not row.has_loads:
        return ""
    return (
        "it is not computed for closed loops, whose joints carry loads that the equations of the tree lack; "
        'loops="cut" takes the tree that is left'
    )


def _inverse_dynamics(call: Call) -> Array:
    return call.inverse(call.input("acceleration"))[0]


def _forward_dynamics(call: Call) -> Array:
    return call.forward(_checked_efforts(call))


def _checked_efforts(call: Call) -> Array:
    """Returns the efforts of a call; refuses those of passive joints that are not 0."""
    tau = call.input("effort")
    call.loops.check_efforts(tau)
    return cast("Array", tau)


def _bias_forces(call: Call) -> Array:
    rows = call.loops.selection(None, call.state)
    return call.inverse(call.independent_acceleration(np.zeros(len(rows)), rows))[0]


def _gravity_forces(call: Call) -> Array:
    return call.inverse(np.zeros(call.loops.nv))[0]


def _computed_torque(call: Call) -> Array:
    rate = _reference(call)
    rows = call.loops.selection(None, call.state)
    return call.inverse(call.independent_acceleration(times(rows, rate), rows))[0]


def _reference(call: Call) -> Array:
    """Returns a_ref + kd (v_ref - v) + kp e, (..., nv)."""
    x = call.arguments
    error = call.loops.configuration.error(x["q"], x["q_ref"])
    return cast("Array", x["a_ref"] + x["kd"] * (x["v_ref"] - x["v"]) + x["kp"] * error)


def _with_loads(call: Call) -> tuple[Any, Array]:
    """Returns the tree's answer with the loads of the loop joints acting on the links, and the drives' efforts."""
    a = call.input("acceleration")
    tau, h = call.inverse(a)
    loads, _ = call.loads(a, call.tangent.forces(h - tau))
    wrenches = call.loops.joints.on_links(call.state, loads)
    options = {name: x for name, x in call.arguments.items() if name == "frame"}
    return call.tree(call.row.name, call.q, call.v, a, wrenches=wrenches, **options), tau


def _motion_with_loads(call: Call) -> Any:
    return _with_loads(call)[0]


def _body_recursion(call: Call) -> Any:
    recursion, tau = _with_loads(call)
    return replace(recursion, tau=np.broadcast_to(tau, recursion.tau.shape).copy())


def _momentum_call(call: Call) -> Call:
    """Returns the call at the velocities of its momenta.

    Raises:
        InvalidArgumentError: They are not the momenta of velocities that keep the loops closed.
    """
    p, M = call.input("momentum"), call.tree("mass_matrix", call.q)
    v = call.tangent.solve(M, p)
    remaining, size = np.abs(p - times(M, v)), np.abs(p) + times(np.abs(M), np.abs(v))
    place = first_place((remaining > TEARING * size.max(axis=-1, keepdims=True)).any(axis=-1))
    if place is not None:
        raise InvalidArgumentError(
            f"p is not M(q) v of velocities that keep the loops closed{state_text(place)}: their nearest momentum "
            f"differs by {np.broadcast_to(remaining, size.shape)[place].max():.3g}; momentum(q, v) returns it",
            path="inputs.p",
        )
    moving = Call(call.loops, call.row, dict(call.arguments))
    moving.v = v
    return moving


def _velocity_from_momentum(call: Call) -> Array:
    return _momentum_call(call).v


def _momentum_rate(call: Call) -> Array:
    return _hamiltonian_flow(call).p_dot


def _hamiltonian_flow(call: Call) -> HamiltonianFlow:
    moving = _momentum_call(call)
    a = moving.forward(_checked_efforts(moving))
    v, rate = with_common_lead([moving.v, moving.tree("momentum_derivative", moving.q, moving.v, a)], 1)
    return HamiltonianFlow(v.copy(), rate.copy())


def _hamiltonian(call: Call) -> Hamiltonian:
    energy = call.tree("energy", call.q, _momentum_call(call).v)
    return Hamiltonian(energy.kinetic, energy.potential, energy.kinetic + energy.potential)


def _constraint_forces(call: Call) -> ConstraintForces:
    tau = _checked_efforts(call)
    a = call.forward(tau)
    h = call.tree("inverse_dynamics", call.q, call.v, a)
    loads, inboard = call.loads(a, call.tangent.forces(h - tau))
    tree = call.loops.tree.model.tree
    links = [i for i, name in enumerate(tree.joints) if name]
    loads, wrench = with_common_lead([loads, inboard[..., links, :]], 2)
    constraint, actuation = wrench.copy(), np.zeros(wrench.shape[:-1])
    for k, i in enumerate(links):
        G = tree.inboard[i].without_mimic.subspace
        component = times(G.T, wrench[..., k, :])
        actuation[..., k] = component[..., 0] if G.shape[1] == 1 else np.linalg.norm(component, axis=-1)
        constraint[..., k, :] -= times(np.linalg.pinv(G).T, component)
    wrench, constraint = (np.concatenate([x, loads], axis=-2) for x in (wrench, constraint))
    actuation = np.concatenate([actuation, np.zeros(loads.shape[:-1])], axis=-1)
    if call.arguments["frame"] == "world":
        R = ask(call.loops.kinematics, "link_poses", call.q).rotation[..., links, :, :]
        R = np.concatenate(with_common_lead([R, call.state.child_rotation], 3), axis=-3)
        wrench, constraint = (
            np.concatenate([times(R, x[..., :3]), times(R, x[..., 3:])], axis=-1) for x in (wrench, constraint)
        )
    rows, names = call.loops.joint_rows(call.arguments["joints"])
    return ConstraintForces(names, wrench[..., rows, :], actuation[..., rows], constraint[..., rows, :])


def _force_torque(call: Call) -> ForceTorque:
    a, x = call.input("acceleration"), call.arguments
    tau, h = call.inverse(a)
    loads, _ = call.loads(a, call.tangent.forces(h - tau))
    wrenches = call.loops.joints.on_links(call.state, loads)
    mounting = {name: x[name] for name in ("xyz", "rpy", "direction")}
    reading = call.tree("force_torque", call.q, call.v, a, wrenches=wrenches, **mounting)
    xyz = np.zeros(3) if x["xyz"] is None else x["xyz"]
    rpy = np.zeros(3) if x["rpy"] is None else x["rpy"]
    rotations = np.array([rotation_of_rpy(angles) for angles in rpy.reshape(-1, 3)])
    R = np.swapaxes(rotations.reshape(*rpy.shape[:-1], 3, 3), -1, -2)[..., None, :, :]
    sign = -1.0 if x["direction"] == "child_on_parent" else 1.0
    force = sign * times(R, loads[..., 3:])
    torque = sign * times(R, loads[..., :3] - np.cross(xyz[..., None, :], loads[..., 3:]))
    rows, names = call.loops.joint_rows(call.arguments["joints"])
    force, torque = (
        np.concatenate(with_common_lead(pair, 2), axis=-2)[..., rows, :]
        for pair in ([reading.force, force], [reading.torque, torque])
    )
    return ForceTorque(names, force, torque)


def _step(call: Call) -> State:
    """The step of `simulate`: stages and end are moved to the nearest closed state."""
    tau, dt = _checked_efforts(call), call.arguments["dt"]
    motion = ClosedSimulation(call.loops)
    loads = {name: call.arguments[name] for name in ("gravity", "wrenches", "overlay", "passive")}
    formula = STEPS[call.arguments["integrator"]]
    q, v = formula(
        lambda q, v: motion.accelerations(q, v, tau, **loads), call.q, call.v, dt, on=call.loops.configuration
    )
    return State(*motion.closed_state(q, v))


def _forward_dynamics_derivatives(call: Call) -> ForwardDynamicsDerivatives:
    return derivatives.forward_dynamics_derivatives(call, _checked_efforts(call))


def _regular_inverse(call: Call, kernels: LoopKernels, a: Array) -> tuple[Array, Array]:
    tau, shares = kernels.efforts(call.q, call.v, a, call.tree("inverse_dynamics", call.q, call.v, a))
    return tau, (shares <= REGULAR).all(axis=-1)


def _regular_forward(call: Call, kernels: LoopKernels) -> tuple[Array, Array]:
    return regular_accelerations(call, kernels, _checked_efforts(call))


def _regular_reference(call: Call, kernels: LoopKernels) -> tuple[Array, Array]:
    """Efforts for reference accelerations of the independent joints, of `bias_forces` and `computed_torque`."""
    G, a_p, _ = kernels.independent_motion(call.q, call.v)
    rate = _reference(call) - a_p if call.row.name == "computed_torque" else -a_p
    return _regular_inverse(call, kernels, a_p + times(G, rate[..., kernels.independent]))


_DYNAMICS = ("inverse_dynamics", "mass_matrix")
_LOADS = ("inverse_dynamics", "link_motion", "link_poses")
_DERIVATIVES = ("inverse_dynamics_derivatives", "point_motion_derivatives")
_OF_TREE = Answer()

ANSWERS: Mapping[str, Answer] = {
    "inverse_dynamics": Answer(
        _inverse_dynamics,
        _DYNAMICS[:1],
        lambda call, kernels: _regular_inverse(call, kernels, call.input("acceleration")),
    ),
    "forward_dynamics": Answer(_forward_dynamics, _DYNAMICS, _regular_forward),
    "bias_forces": Answer(_bias_forces, _DYNAMICS[:1], _regular_reference),
    "gravity_forces": Answer(
        _gravity_forces,
        _DYNAMICS[:1],
        lambda call, kernels: _regular_inverse(call, kernels, np.zeros_like(call.v)),
    ),
    "computed_torque": Answer(_computed_torque, _DYNAMICS[:1], _regular_reference, reference=True),
    "step": Answer(_step, _DYNAMICS),
    "constraint_forces": Answer(_constraint_forces, (*_LOADS, "mass_matrix")),
    "link_motion": Answer(_motion_with_loads, _LOADS),
    "system_momentum_rate": Answer(_motion_with_loads, (*_LOADS, "system_momentum_rate")),
    "body_recursion": Answer(_body_recursion, (*_LOADS, "body_recursion")),
    "force_torque": Answer(_force_torque, (*_LOADS, "force_torque")),
    "velocity_from_momentum": Answer(_velocity_from_momentum, ("mass_matrix",)),
    "momentum_rate": Answer(_momentum_rate, (*_DYNAMICS, "momentum_derivative")),
    "hamiltonian": Answer(_hamiltonian, ("mass_matrix", "energy")),
    "hamiltonian_flow": Answer(_hamiltonian_flow, (*_DYNAMICS, "momentum_derivative")),
    "operational_space": Answer(derivatives.operational_space, ("mass_matrix", "point_motion")),
    "inverse_dynamics_derivatives": Answer(
        derivatives.inverse_dynamics_derivatives, ("inverse_dynamics", *_DERIVATIVES)
    ),
    "forward_dynamics_derivatives": Answer(_forward_dynamics_derivatives, (*_DYNAMICS, *_DERIVATIVES)),
    "inverse_dynamics_regressor": Answer(derivatives.inverse_dynamics_regressor, ("inverse_dynamics_regressor",)),
    # Of the tree, although their inputs or outputs are efforts.
    "mass_matrix": _OF_TREE,
    "momentum": _OF_TREE,
    "coriolis_matrix": _OF_TREE,
    "mass_matrix_steps": _OF_TREE,
    "passive_forces": _OF_TREE,
    "momentum_derivative": _OF_TREE,
    "momentum_derivatives": _OF_TREE,
    "energy_derivatives": _OF_TREE,
    # Arithmetic of positions, by which motions to closed positions begin.
    "integrate": Answer(opens=True),
    "difference": Answer(opens=True),
    # Computations with functions of their own.
    "loop_error": Answer(),
    "assemble": Answer(),
    "independent_motion": Answer(),
    "simulate": Answer(),
    "verify": Answer(),
    "step_derivatives": Answer(
        refusal="the step ends at the closed state nearest to its formula's, and the derivative of this map is not "
        "computed; forward_dynamics_derivatives linearises the motion that keeps loops closed"
    ),
    "equation_terms": Answer(
        refusal="M a = C + G + Q + E + P lacks the loads of the loops; independent_motion has the equation without them"
    ),
}

KINEMATIC = ("point_motion", "link_poses", "point_motion_derivatives")
"""Queries of the tree that are asked of the robot as loaded, since overlays change no poses."""

WITH_LOADS = ("link_motion", "force_torque", "system_momentum_rate", "body_recursion")
"""Queries of the tree that are asked with the loads of the loop joints as external wrenches."""
