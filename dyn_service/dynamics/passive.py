"""Passive efforts of joints: damping, Coulomb friction, rotors behind gears, springs.

    (M + I_r) a + C + g + p(q, v) = tau + J^T F
    p = d v + f tanh(v / w) + k (q - q_0)

p has the sign of tau: it is the effort that an actuator must add to balance the passive effort -p of the joint, which
takes energy if v p > 0. Only `equation_terms` has it on the right side, as -p. Parts, per entry of v:

    damping    d v               takes the power d v^2
    friction   f tanh(v / w)     Coulomb's f sign(v), smoothed: 76 % of f at the width w, 99 % at 2.65 w; zero at rest
    springs    k (q - q_0)       keep the energy k (q - q_0)^2 / 2; only joints with one degree of freedom
    armature   I_r a             I_r: rotor inertia times gear ratio squared; keeps the energy I_r v^2 / 2

Armature is the inertia of a fast rotor reflected along its joint. The rotor's rotation with the links, which its gear
does not magnify, is not included (Featherstone, Rigid Body Dynamics Algorithms, 2008, 9.6, without the gyroscopic
part). Armature adds to M and to momenta, p = (M + I_r) v; loads at joints, F, and the sweeps along the tree do not
change. The numbers are in `Tree.passive`; parts whose numbers are zero cost no operation.
A mimic joint with velocity m v has passive efforts at this velocity; on the mimicked joint they act as m^2 d, m^2 I_r,
m f tanh(m v / w) and m k (m q - q_0). The factors m are the entries of `Tree.coupling_matrix`.
Cost: O(N). Source: Newton-Euler document, 'spring or damper in f'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.kinematics import dot, joint_values, sum_over_driven_bodies
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Mat, constant, dense
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree


def damping(tree: Tree, v: Mat) -> Mat:
    """d v, (nv,)."""
    return _reflected(tree, tree.passive.damping) * v


def friction(tree: Tree, v: Mat) -> Mat:
    """f tanh(v / w), (nv,)."""
    rates, back = _rates(tree, v)
    return back(constant(tree.passive.friction) * ex.tanh(rates / dense(tree.passive.width)))


def springs(tree: Tree, q: Mat) -> Mat:
    """k (q - q_0), (nv,)."""
    return _gathered(tree, constant(tree.passive.stiffness) * _from_rest(tree, q))


def efforts(tree: Tree, q: Mat, v: Mat) -> Mat:
    """p, (nv,): the efforts that actuators add to balance the passive efforts of the joints."""
    return damping(tree, v) + friction(tree, v) + springs(tree, q)


def stiffness(tree: Tree) -> Mat:
    """The diagonal of dp/dq, (nv,)."""
    return _reflected(tree, tree.passive.stiffness)


def resistance(tree: Tree, v: Mat) -> Mat:
    """The diagonal of dp/dv, (nv,): d + f / w / cosh^2(v / w)."""
    rates, width = _rates(tree, v)[0], dense(tree.passive.width)
    slope = constant(tree.passive.friction) / width
    return _reflected(tree, tree.passive.damping) + _reflected(
        tree, ex.matrix(slope * (1 - ex.tanh(rates / width) ** 2))
    )


def curvature(tree: Tree, v: Mat, weights: Mat) -> Mat:
    """The diagonal of the second derivative of weights . p with respect to v, (nv,): that of the friction."""
    (rates, _), width = _rates(tree, v), dense(tree.passive.width)
    saturation = ex.tanh(rates / width)
    slope = -2 * constant(tree.passive.friction) / width**2
    return _reflected(tree, ex.matrix(slope * saturation * (1 - saturation**2) * _rates(tree, weights)[0]))


def armature(tree: Tree) -> Mat:
    """The diagonal of I_r, (nv,)."""
    return _reflected(tree, tree.passive.armature)


def armatures(tree: Tree) -> PerBody:
    """I_r, one diagonal block (nv_i, nv_i) per body, reflected to the entries of v."""
    return PerBody(
        ex.diag(constant(joint.ratio**2 * tree.passive.armature[part]))
        for joint, part in zip(tree.inboard, tree.in_rates, strict=True)
    )


def kinetic_energy(tree: Tree, v: Mat) -> Mat:
    """v^T I_r v / 2: kinetic energy of the rotors."""
    return dot(tree, v, armature(tree) * v) / 2


def spring_energy(tree: Tree, q: Mat) -> Mat:
    """The sum of k (q - q_0)^2 / 2."""
    stretched = _from_rest(tree, q)
    return dot(tree, stretched, constant(tree.passive.stiffness) * stretched, rates=True) / 2


def passive_forces(tree: Tree, q: Mat, v: Mat) -> dict[str, Mat]:
    """The parts of p, (nv,) each, the energy stored in the springs and the power dissipated by the other parts."""
    dissipative = damping(tree, v) + friction(tree, v)
    return {
        "damping": damping(tree, v),
        "friction": friction(tree, v),
        "springs": springs(tree, q),
        "stored": spring_energy(tree, q),
        "dissipated": dot(tree, v, dissipative),
    }


def _from_rest(tree: Tree, q: Mat) -> Mat:
    """q - q_0 of each joint that moves, (nr,), where it has a spring; else 0."""
    stiffness, rest = tree.passive.stiffness, tree.passive.rest
    deflections = [
        joint.ratio * q[in_q] - rest[part] if constant(stiffness[part]).nnz() else ex.zeros(joint.nv, 1)
        for joint, in_q, part in zip(tree.inboard, tree.in_q, tree.in_rates, strict=True)
    ]
    return ex.vertcat(*deflections) if deflections else ex.zeros(0, 1)


@singledispatch
def _gathered(tree: Tree, x: Mat) -> Mat:
    """Returns S^T x of joint efforts, (nr,), as entries of v, (nv,)."""
    return constant(tree.coupling_matrix.T) @ x if tree.has_mimics else x


@_gathered.register(RolledTree)
def _gathered_in_loops(tree: RolledTree, x: Mat, power: int = 1) -> Mat:
    sizes = PerBody(ex.matrix(joint.ratio**power) for joint in tree.inboard)
    efforts = zip(sizes, joint_values(tree, x), strict=True)
    return sum_over_driven_bodies(tree, PerBody(size * effort for size, effort in efforts))


@singledispatch
def _reflected(tree: Tree, x: Any) -> Mat:
    """Returns coefficients of joint rates, (nr,), as those of v, (nv,); see `Tree.reflected`."""
    # Squared, because both the rate and the effort of a follower are scaled by its ratio.
    if isinstance(x, ex.Matrix):
        return constant(tree.coupling_matrix.T**2) @ x if tree.has_mimics else x
    return constant(tree.reflected(x))


@_reflected.register(RolledTree)
def _reflected_in_loops(tree: RolledTree, x: Any) -> Mat:
    return _gathered_in_loops(tree, constant(x), power=2)


@singledispatch
def _rates(tree: Tree, v: Mat) -> tuple[Mat, Callable[[Mat], Mat]]:
    """The rate of each joint, up to sign, (nr,), and the map from efforts odd in this rate to entries of v."""
    if not tree.has_mimics:
        return v, lambda x: x
    # The sign is left out, since an odd function of the rate gives it back.
    size = constant(np.abs(tree.coupling_matrix))
    return size @ v, lambda x: size.T @ x


@_rates.register(RolledTree)
def _rates_in_loops(tree: RolledTree, v: Mat) -> tuple[Mat, Callable[[Mat], Mat]]:
    if not tree.has_mimics:
        return v, lambda x: x
    # Signed here, since the sign of an odd function of the rate cancels with that of the sum.
    sizes = ex.vertcat(*(joint.ratio * ex.full(joint.nv, 1, 1.0) for joint in tree.inboard))
    return sizes * v, lambda x: sum_over_driven_bodies(tree, joint_values(tree, sizes * x))
