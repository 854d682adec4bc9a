"""Residuals between the answers of all formulations to the same query.

Each residual is the largest difference between two answers over the size of what is compared, per state: rounding,
where all is well. Accelerations are compared as the efforts they need, M (a' - a): a nearly singular mass matrix
magnifies any difference between accelerations, and no engine's is then the right one. `momentum_rate` solves M v = p;
rounding changes this v by at most a few eps |M^-1| |M| |v| (Skeel), which damping and friction turn into efforts. The
entry of each joint is therefore compared at the size of the efforts plus that slope times |M^-1| |M| |v|.

| name | compares inverse dynamics, (7) (13) (18a), with |
|---|---|
| `mass_matrix` | M a + bias, (18) |
| `projected` | the sum over bodies through their Jacobians, M a - C - G |
| `body_recursion` | the recursion in body frames |
| `constraint_forces` | the actuation part of the joint loads, (15), (18a), and what the joints take by themselves |
| `influence_operators` | the explicit matrices in world axes, (15), (18b, c) |
| name | compares |
| `articulated` | forward dynamics (19b) of those efforts with a; where joints follow others it is (19a) too |
| `mass_matrix_solution` | forward dynamics (19a) with a |
| `influence_solution` | (19b) operator by operator with a; where joints follow others, all by themselves and tied |
| `momentum` | G^T K, (P.3a), with M v |
| `velocity_from_momentum` | (P.5b) and (P.5a) with v, as momenta |
| `momentum_rate` | (P.3b) with d/dt (M v) by differentiation |
| `energy` | T of all links, (6), with v . p / 2, (11) |
| `power` | v . tau with the rate of kinetic and potential energy, and what damping and friction take |
| `constraint_power` | the power of links' inertia and weight with v . tau, less what joints take: no constraint works |

Passive efforts act in all of them; with `Robot.without_passive`, in none.
Where a massless branch moves, forward dynamics has no solution, and the residuals that need one are omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.api.arrays import broadcast, vectors
from dyn_service.api.queries import Array
from dyn_service.api.results import ConstraintForces
from dyn_service.errors import FailedPreconditionError
from dyn_service.formulations.influence import WorldEquations

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot


def residuals(
    robot: Robot, q: ArrayLike, v: ArrayLike, a: ArrayLike, *, gravity: ArrayLike | None = None
) -> dict[str, Array]:
    """Relative residuals by name, (...,) each, of the formulations of this module's table.

    Args:
        robot: The robot.
        q: (..., nq) positions; all broadcast against each other.
        v: (..., nv) velocities.
        a: (..., nv) accelerations.
        gravity: (..., 3) m/s^2, world axes; None is the robot's.

    Raises:
        InvalidArgumentError: One of them has the wrong shape, or their leading axes do not broadcast; names it.
        FailedPreconditionError: The mass matrix is singular at a state, and not at all of them.
    """
    g = robot.gravity if gravity is None else gravity
    given = (("q", q, robot.nq), ("v", v, robot.nv), ("a", a, robot.nv), ("gravity", g, 3))
    q, v, a, g = _spread({name: vectors(name, value, length) for name, value, length in given})
    tau = robot.inverse_dynamics(q, v, a, gravity=g)
    M, bias = robot.mass_matrix(q), robot.bias_forces(q, v, gravity=g)
    p = _times(M, v)
    terms = robot.equation_terms(q, v, tau, gravity=g)
    right = terms.velocity_forces + terms.gravity_forces + terms.passive_forces
    # At rest without load all efforts are rounding of zero; then what counts is that of a unit acceleration.
    unit = np.abs(M).max(axis=(-2, -1), initial=0.0)[..., None]
    effort = np.maximum(np.maximum(np.abs(tau), np.abs(bias)), unit)
    found = {
        "mass_matrix": _relative(_times(M, a) + bias, tau, effort),
        "projected": _relative(_times(terms.mass_matrix, a) - right, tau, effort),
        "body_recursion": _relative(robot.body_recursion(q, v, a, gravity=g).tau, tau, effort),
        "momentum": _relative(robot.momentum(q, v), p),
    }
    kinetic = np.sum(v * p, axis=-1) / 2
    energy = robot.energy(q, v, gravity=g)
    found["energy"] = _relative(energy.kinetic[..., None], kinetic[..., None])
    weight = robot.gravity_forces(q, gravity=g)
    derivative = robot.momentum_derivative(q, v, a)
    rate = (np.sum(a * p, axis=-1) + np.sum(v * derivative, axis=-1)) / 2 + np.sum(v * weight, axis=-1)
    own = robot.passive_forces(q, v)
    rate = rate + own.dissipated
    powers = np.sum(np.abs(v) * effort, axis=-1)
    found["power"] = _relative(np.sum(v * tau, axis=-1)[..., None], rate[..., None], powers[..., None])
    found |= _explicit(robot, q, v, a, tau, g, unit)
    try:
        for name, method in (("articulated", "articulated"), ("mass_matrix_solution", "mass_matrix")):
            solved = robot.forward_dynamics(q, v, tau, gravity=g, method=method)  # type: ignore[arg-type]
            found[name] = _relative(_times(M, solved), _times(M, a), effort)
        velocities = [robot.velocity_from_momentum(q, p), robot.velocity_from_momentum(q, p, method="mass_matrix")]
        found["velocity_from_momentum"] = np.maximum(*(_relative(_times(M, x), p) for x in velocities))
        answered = np.asarray(np.isfinite(velocities[0] + velocities[1]).all(axis=-1))[..., None, None]
        solvable = np.where(answered, M, np.eye(robot.nv))
        rate_of_p, passive = robot.momentum_rate(q, p, tau, gravity=g), robot.tree.passive
        slope = robot.tree.reflected(passive.damping + passive.friction / passive.width)
        magnified = slope * _times(np.abs(np.linalg.inv(solvable)), _times(np.abs(M), np.abs(v)))
        largest = np.maximum(np.maximum(np.abs(rate_of_p), np.abs(derivative)), effort).max(axis=-1, initial=0.0)
        share = np.divide(
            largest[..., None], largest[..., None] + magnified, out=np.ones_like(v), where=magnified > 0.0
        )
        found["momentum_rate"] = _relative(
            share * rate_of_p, share * derivative, np.maximum(effort, largest[..., None])
        )
        taken = robot.tree.reflected(robot.tree.passive.armature) * a + own.damping + own.friction + own.springs
        loads = robot.constraint_forces(q, v, tau, joints=robot.tree.moving_joints, gravity=g)
        found["constraint_forces"] = _relative(_along(robot, loads) + taken, tau, effort)
    except FailedPreconditionError:
        pass
    return {name: np.asarray(residual)[()] for name, residual in found.items()}


def survey(robot: Robot, *, states: int = 20, seed: int = 0) -> dict[str, Any]:
    """The worst residual of each formulation over random states within the joints' limits.

    Returns:
        `residuals` by name, the `worst` of them, and how many `states`: plain values, ready for JSON.
    """
    rng = np.random.default_rng(seed)
    q = np.array([robot.configuration.random(rng, robot.limits.lower, robot.limits.upper) for _ in range(states)])
    v, a = rng.normal(size=(2, states, robot.nv))
    found = {name: float(np.max(residual, initial=0.0)) for name, residual in residuals(robot, q, v, a).items()}
    return {"residuals": found, "worst": float(np.max(list(found.values()))), "states": states}


def _explicit(robot: Robot, q: Array, v: Array, a: Array, tau: Array, g: Array, unit: Array) -> dict[str, Array]:
    """Results of the explicit operators, state by state."""
    lead = q.shape[:-1]
    names = ["influence_operators", "constraint_power"]
    if robot.massless_joint is None:
        names.append("influence_solution")
    found = {name: np.zeros(lead) for name in names}
    for index in np.ndindex(lead):
        world = WorldEquations(robot.tree.one(index), q[index], v[index], g[index])
        efforts = world.mass_matrix @ a[index] + world.C + world.p
        scale = np.maximum(np.maximum(np.abs(tau[index]), np.abs(world.C)), unit[index])
        found["influence_operators"][index] = _relative(efforts, tau[index], scale)
        inertial = np.einsum("nij,nj->ni", world.M, world.acceleration(a[index])) + world.B - world.applied
        powers = inertial * world.velocity
        # Of the actuators' power the joints take what their rotors, friction, damping and springs take.
        taken = v[index] * (world.tree.reflected(world.tree.passive.armature) * a[index] + world.p)
        actuation = np.array([v[index] @ tau[index] - taken.sum()])
        sizes = [np.abs(powers).sum(), np.abs(v[index] * tau[index]).sum(), np.abs(taken).sum()]
        found["constraint_power"][index] = _relative(np.array([powers.sum()]), actuation, np.array(sizes))
        if "influence_solution" in found:
            try:
                needed = world.mass_matrix @ world.forward_dynamics(tau[index])
            except np.linalg.LinAlgError:  # the mass matrix of this state is singular
                needed = np.full(robot.nv, np.nan)
            found["influence_solution"][index] = _relative(needed, world.mass_matrix @ a[index], scale)
    return found


def _along(robot: Robot, loads: ConstraintForces) -> Array:
    """(..., nv): the loads' parts along the free axes; of joints with several, which one number cannot hold, G^T F. Of
    joints that move together they add up, each times its ratio.
    """
    tree = robot.tree
    joints = [tree.inboard[i].alone for i in tree.movable]
    parts = [
        loads.actuation[..., k, None] if joint.nv == 1 else (joint.subspace.T @ loads.wrench[..., k, :, None])[..., 0]
        for k, joint in enumerate(joints)
    ]
    along = np.concatenate([loads.actuation[..., :0], *parts], axis=-1)
    along = np.asarray((tree.spread.T @ along[..., None])[..., 0]) if tree.coupled else along
    return along if tree.free is None else along * tree.free  # what locks carry is no effort


def _spread(arrays: Mapping[str, Array]) -> list[Array]:
    """Leading axes of all for each."""
    lead = broadcast({name: x.shape[:-1] for name, x in arrays.items()})
    return [np.array(np.broadcast_to(x, (*lead, x.shape[-1]))) for x in arrays.values()]


def _times(M: Array, x: Array) -> Array:
    return np.asarray(np.einsum("...ij,...j->...i", M, x))


def _relative(x: Array, y: Array, scale: Array | None = None) -> Array:
    """The largest difference over the largest entry of either, or of the scale, per state."""
    sizes = [np.abs(x), np.abs(y)] + ([] if scale is None else [scale])
    size = np.max([s.max(axis=-1, initial=0.0) for s in np.broadcast_arrays(*sizes)], axis=0)
    difference = np.abs(x - y).max(axis=-1, initial=0.0)
    # Only where there is nothing to compare is the residual zero: a NaN on either side must come out as one.
    return np.asarray(np.divide(difference, size, out=np.zeros_like(difference), where=~(size == 0.0)))
