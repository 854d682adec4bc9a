"""Residuals between the answers of all formulations to the same query.

Each residual is the largest difference of two answers divided by the size of the compared quantity, per state; about
1e-14 for a correct engine. Two sizes need care:

- Accelerations a', a are compared as efforts, M (a' - a), because a nearly singular mass matrix magnifies rounding
  errors of accelerations.
- `momentum_rate` solves M v = p. Rounding changes v by a few eps |M^-1| |M| |v| (Skeel), and damping and friction turn
  this into efforts. The size of an entry is that of the efforts plus the slope of the passive efforts times
  |M^-1| |M| |v|.

| name | compares inverse dynamics, (7) (13) (18a), with |
|---|---|
| `mass_matrix` | M a + bias, (18) |
| `projected` | projected Newton-Euler: the sum over bodies through their Jacobians, M a - C - G |
| `body_recursion` | the recursion in body frames |
| `constraint_forces` | the actuation part of the joint loads, (15), (18a), plus armature and passive efforts |
| `influence_operators` | the explicit matrices in world axes, (15), (18b, c) |

| name | compares |
|---|---|
| `articulated` | forward dynamics (19b) of those efforts with a; with mimic joints it is (19a) too |
| `mass_matrix_solution` | forward dynamics (19a) with a |
| `influence_solution` | (19b) operator by operator with a; with mimic joints, of all joints, tied by constraints |
| `momentum` | G^T K, (P.3a), with M v |
| `velocity_from_momentum` | (P.5b) and (P.5a) with v, as momenta |
| `momentum_rate` | (P.3b) with d/dt (M v) by differentiation |
| `energy` | T of all links, (6), with v . p / 2, (11) |
| `power` | v . tau with the rate of kinetic and potential energy plus the power of damping and friction |
| `constraint_power` | the power of links' inertia and weight with v . tau less passive power; constraints do no work |

Passive efforts act in all of them; with `Robot.without_passive`, in none. If a massless branch moves, forward dynamics
has no solution, and the residuals that need one are omitted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import broadcast, vectors
from dyn_service.api.queries import Array
from dyn_service.api.results import ConstraintForces
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.local_robot import LocalRobot
from dyn_service.formulations.loop_verification import loop_residuals
from dyn_service.formulations.world_equations import WorldEquations, relative


def residuals(
    robot: LocalRobot, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None
) -> dict[str, Array]:
    """Relative residuals by name, (...,) each, of the formulations of this module's table; of a robot with closed loops
    those of `loop_verification`.

    q: (..., nq), v, a: (..., nv). gravity: (..., 3) m/s^2, world axes; None is the robot's. All leading axes broadcast.

    Raises:
        InvalidArgumentError: One of them has the wrong shape, or their leading axes do not broadcast; names it. A loop
            is open.
        FailedPreconditionError: The mass matrix is singular at a state, and not at all of them. Drives cannot cause
            the motion of a robot with closed loops.
    """
    g = robot.gravity if gravity is None else gravity
    state = (("q", q, robot.nq), ("v", v, robot.nv), ("a", a, robot.nv), ("gravity", g, 3))
    arrays = {name: vectors(name, value, length) for name, value, length in state}
    lead = broadcast({name: x.shape[:-1] for name, x in arrays.items()})
    q, v, a, g = (np.array(np.broadcast_to(x, (*lead, x.shape[-1]))) for x in arrays.values())
    if robot.description.loop_joints:
        return loop_residuals(robot, q, v, a, g)
    tau = robot.inverse_dynamics(q, v, a, gravity=g)
    M, bias = robot.mass_matrix(q), robot.bias_forces(q, v, gravity=g)
    p = _times(M, v)
    terms = robot.equation_terms(q, v, tau, gravity=g)
    right = terms.velocity_forces + terms.gravity_forces + terms.passive_forces
    # At rest without load all efforts are rounding errors: the scale is then the effort of a unit acceleration.
    unit = np.abs(M).max(axis=(-2, -1), initial=0.0)[..., None]
    effort = np.maximum(np.maximum(np.abs(tau), np.abs(bias)), unit)
    residual_by_name = {
        "mass_matrix": relative(_times(M, a) + bias, tau, effort),
        "projected": relative(_times(terms.mass_matrix, a) - right, tau, effort),
        "body_recursion": relative(robot.body_recursion(q, v, a, gravity=g).tau, tau, effort),
        "momentum": relative(robot.momentum(q, v), p),
    }
    kinetic = np.sum(v * p, axis=-1) / 2
    energy = robot.energy(q, v, gravity=g)
    residual_by_name["energy"] = relative(energy.kinetic[..., None], kinetic[..., None])
    weight = robot.gravity_forces(q, gravity=g)
    derivative = robot.momentum_derivative(q, v, a)
    rate = (np.sum(a * p, axis=-1) + np.sum(v * derivative, axis=-1)) / 2 + np.sum(v * weight, axis=-1)
    passive_forces = robot.passive_forces(q, v)
    rate = rate + passive_forces.dissipated
    powers = np.sum(np.abs(v) * effort, axis=-1)
    residual_by_name["power"] = relative(np.sum(v * tau, axis=-1)[..., None], rate[..., None], powers[..., None])
    residual_by_name |= _explicit(robot, q, v, a, tau, g, unit)
    try:
        for name, method in (("articulated", "articulated"), ("mass_matrix_solution", "mass_matrix")):
            solved = robot.forward_dynamics(q, v, tau, gravity=g, method=method)  # type: ignore[arg-type]
            residual_by_name[name] = relative(_times(M, solved), _times(M, a), effort)
        velocities = [robot.velocity_from_momentum(q, p), robot.velocity_from_momentum(q, p, method="mass_matrix")]
        residual_by_name["velocity_from_momentum"] = np.maximum(*(relative(_times(M, x), p) for x in velocities))
        # NaN marks states whose mass matrix is singular; the identity keeps NumPy's inverse from raising for all.
        has_answer = np.asarray(np.isfinite(velocities[0] + velocities[1]).all(axis=-1))[..., None, None]
        solvable = np.where(has_answer, M, np.eye(robot.nv))
        rates = robot.momentum_rate(q, p, tau, gravity=g), derivative
        residual_by_name["momentum_rate"] = _momentum_rate(robot, v, M, solvable, rates, effort)
        rotor = robot.tree.reflected(robot.tree.passive.armature) * a
        internal_efforts = rotor + passive_forces.damping + passive_forces.friction + passive_forces.springs
        loads = robot.constraint_forces(q, v, tau, joints=robot.tree.moving_joints, gravity=g)
        residual_by_name["constraint_forces"] = relative(_along(robot, loads) + internal_efforts, tau, effort)
    except FailedPreconditionError:
        # A robot with massless moving links: the result lacks the methods that invert M.
        pass
    # [()] makes a number of the array of a single state.
    return {name: np.asarray(residual)[()] for name, residual in residual_by_name.items()}


def survey(robot: LocalRobot, *, states: int = 20, seed: int = 0) -> dict[str, Any]:
    """The worst residual of each formulation over random states within the joints' limits; of a robot with closed loops
    over closed positions near them.

    Returns:
        `residuals` by name, the `worst` of them, and how many `states`: plain values, ready for JSON.

    Raises:
        FailedPreconditionError: The robot has no forward dynamics, or none at one of the states.
    """
    rng = np.random.default_rng(seed)
    q = np.array([robot.configuration.random(rng, robot.limits.lower, robot.limits.upper) for _ in range(states)])
    v, a = rng.normal(size=(2, states, robot.nv))
    if robot.closed_motion is not None:
        q = robot.closed_motion.samples[:states]
        states = len(q)
        motion = robot.independent_motion(q, np.zeros((states, robot.nv)))
        v = _times(motion.jacobian, _times(motion.selection, v[:states]))
        motion = robot.independent_motion(q, v)
        a = _times(motion.jacobian, _times(motion.selection, a[:states])) + motion.bias_accelerations
        return _summary(residuals(robot, q, v, a), states)
    # Raises for robots without forward dynamics, for which `residuals` only lacks entries.
    robot.forward_dynamics(q, v, a)
    return _summary(residuals(robot, q, v, a), states)


def _summary(residual_by_name: dict[str, Array], states: int) -> dict[str, Any]:
    largest = {name: float(np.max(residual, initial=0.0)) for name, residual in residual_by_name.items()}
    return {"residuals": largest, "worst": float(np.max(list(largest.values()))), "states": states}


def _momentum_rate(
    robot: LocalRobot, v: Array, M: Array, solvable: Array, rates: tuple[Array, Array], effort: Array
) -> Array:
    """Returns the residual of p-dot, (...,). solvable: M, or the identity at states without an answer. rates: p-dot by
    (P.3b), and by differentiation.
    """
    passive, sizes = robot.tree.passive, np.abs(rates)
    slope = robot.tree.reflected(passive.damping + passive.friction / passive.width)
    magnified = slope * _times(np.abs(np.linalg.inv(solvable)), _times(np.abs(M), np.abs(v)))
    largest = np.maximum(np.maximum(*sizes), effort).max(axis=-1, initial=0.0)[..., None]
    # Friction near rest magnifies the rounding of v by its slope: components with a large slope count less.
    share = np.divide(largest, largest + magnified, out=np.ones_like(v), where=magnified > 0.0)
    return relative(share * rates[0], share * rates[1], np.maximum(effort, largest))


def _explicit(robot: LocalRobot, q: Array, v: Array, a: Array, tau: Array, g: Array, unit: Array) -> dict[str, Array]:
    lead = q.shape[:-1]
    names = ["influence_operators", "constraint_power"]
    if robot.massless_joint is None:
        names.append("influence_solution")
    residual_by_name = {name: np.zeros(lead) for name in names}
    for index in np.ndindex(lead):
        world = WorldEquations(robot.tree.robot_at(index), q[index], v[index], g[index])
        efforts = world.mass_matrix @ a[index] + world.C + world.p
        scale = np.maximum(np.maximum(np.abs(tau[index]), np.abs(world.C)), unit[index])
        residual_by_name["influence_operators"][index] = relative(efforts, tau[index], scale)
        inertial = np.einsum("nij,nj->ni", world.M, world.acceleration(a[index])) + world.B - world.applied
        powers = inertial * world.velocity
        # Rotors, friction, damping and springs take their part of the actuators' power inside the joints.
        internal_power = v[index] * (world.tree.reflected(world.tree.passive.armature) * a[index] + world.p)
        actuation = np.array([v[index] @ tau[index] - internal_power.sum()])
        sizes = [np.abs(powers).sum(), np.abs(v[index] * tau[index]).sum(), np.abs(internal_power).sum()]
        residual_by_name["constraint_power"][index] = relative(np.array([powers.sum()]), actuation, np.array(sizes))
        if "influence_solution" in residual_by_name:
            try:
                expected_tau = world.mass_matrix @ world.forward_dynamics(tau[index])
            except np.linalg.LinAlgError:
                # The mass matrix of this state is singular: its residual is NaN, those of the other states are not.
                expected_tau = np.full(robot.nv, np.nan)
            residual_by_name["influence_solution"][index] = relative(expected_tau, world.mass_matrix @ a[index], scale)
    return residual_by_name


def _along(robot: LocalRobot, loads: ConstraintForces) -> Array:
    """Returns the loads along the free axes, (..., nv): `actuation`; G^T F for joints with several degrees of freedom.
    Those of mimic joints, times their ratio, are added to that of the mimicked joint.
    """
    tree = robot.tree
    joints = [tree.inboard[i].without_mimic for i in tree.movable]
    parts = [
        loads.actuation[..., k, None] if joint.nv == 1 else (joint.subspace.T @ loads.wrench[..., k, :, None])[..., 0]
        for k, joint in enumerate(joints)
    ]
    components = np.concatenate([loads.actuation[..., :0], *parts], axis=-1)
    components = np.asarray((tree.coupling_matrix.T @ components[..., None])[..., 0]) if tree.has_mimics else components
    # Locks carry loads without an effort.
    return components if tree.free is None else components * tree.free


def _times(M: Array, x: Array) -> Array:
    return np.asarray(np.einsum("...ij,...j->...i", M, x))
