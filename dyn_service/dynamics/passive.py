"""What joints do by themselves: damping, Coulomb friction, rotors behind gears, springs.

    (M + A) a + C + g + p(q, v) = tau + J^T F
    p = d v + f tanh(v / w) + k (q - q_0)

The sign of p is that of tau: the efforts that an actuator must add because of what the joint does, which takes energy
where v p > 0; the joint pulls with -p. `equation_terms` alone has it on the right, as -p. By parts, per entry of v:

    damping    d v               takes the power d v^2
    friction   f tanh(v / w)     Coulomb's f sign(v), smoothed: 76 % of f at the width w, 99 % at 2.65 w; at rest none
    springs    k (q - q_0)       keep the energy k (q - q_0)^2 / 2; joints with one way to move
    armature   A a               A is rotor inertia times gear ratio squared, and keeps the energy A v^2 / 2

Armature is what of a fast rotor a joint feels along itself; the rotor's own turning with the links, which its gear does
not magnify, is not in it (Featherstone, Rigid Body Dynamics Algorithms, 2008, 9.6, without the gyroscopic part). So it
adds to M and to momenta, p = (M + A) v, and to nothing that bodies do: loads at joints, F, and what is swept along the
tree, are as without. The numbers are the tree's (`Tree.passive`); a part whose numbers are zeros takes no operation.
Cost: O(N). Source: Newton-Euler document, 'spring or damper in f'.
"""

from __future__ import annotations

import casadi as ca

from dyn_service.dynamics.spatial import Mat, constant
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree


def damping(tree: Tree, v: Mat) -> Mat:
    """d v, (nv,)."""
    return constant(tree.passive.damping) * v


def friction(tree: Tree, v: Mat) -> Mat:
    """f tanh(v / w), (nv,)."""
    return constant(tree.passive.friction) * ca.tanh(v / ca.DM(tree.passive.width))


def springs(tree: Tree, q: Mat) -> Mat:
    """k (q - q_0), (nv,)."""
    return constant(tree.passive.stiffness) * _from_rest(tree, q)


def efforts(tree: Tree, q: Mat, v: Mat) -> Mat:
    """p, (nv,): what actuators add to hold and move the joints against what these do by themselves."""
    return damping(tree, v) + friction(tree, v) + springs(tree, q)


def armature(tree: Tree) -> Mat:
    """The diagonal of A, (nv,)."""
    return constant(tree.passive.armature)


def armatures(tree: Tree) -> PerBody:
    """A, one diagonal block (nv_i, nv_i) per body."""
    return PerBody(ca.diag(constant(tree.passive.armature[part])) for part in tree.in_v)


def kinetic_energy(tree: Tree, v: Mat) -> Mat:
    """v^T A v / 2, of the rotors."""
    return ca.dot(v, armature(tree) * v) / 2


def spring_energy(tree: Tree, q: Mat) -> Mat:
    """The sum of k (q - q_0)^2 / 2."""
    return ca.dot(_from_rest(tree, q), springs(tree, q)) / 2


def passive_forces(tree: Tree, q: Mat, v: Mat) -> dict[str, Mat]:
    """The parts of p, (nv,) each, the energy that the springs keep and the power that the others take."""
    taking = damping(tree, v) + friction(tree, v)
    return {
        "damping": damping(tree, v),
        "friction": friction(tree, v),
        "springs": springs(tree, q),
        "stored": spring_energy(tree, q),
        "dissipated": ca.dot(v, taking),
    }


def _from_rest(tree: Tree, q: Mat) -> Mat:
    """q - q_0, (nv,), of joints with a spring; 0 of the others."""
    stiffness, rest = tree.passive.stiffness, tree.passive.rest
    turned = [
        q[at] - rest[part] if stiffness[part].any() else ca.DM(part.stop - part.start, 1)
        for at, part in zip(tree.in_q, tree.in_v, strict=True)
    ]
    return ca.vertcat(*turned) if turned else ca.DM(0, 1)
