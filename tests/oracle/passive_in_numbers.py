"""Joints that do something by themselves, in numbers, beside Pinocchio's answer with what they do added by hand.

One tree with joints of every type, each damped, rubbing, driven through a gear, and sprung where it has one way to
move.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import casadi as ca
import numpy as np

from dyn_service.model.tree import Tree
from tests.oracle.in_numbers import GRAVITY, Case
from tests.oracle.many_types import ManyTypes
from tests.passive import restless
from tests.random_robots import MANY_TYPES, random_urdf

XML = random_urdf(44, movable=8, types=MANY_TYPES)


class State:
    """The robot, how it moves, and the answers: Pinocchio's, and what each joint does, joint by joint."""

    def __init__(self) -> None:
        self.tree = tree = restless(XML, 5).tree
        rng = np.random.default_rng(0)
        self.q = tree.configuration.random(rng, tree.limits.lower, tree.limits.upper)
        self.v, self.a = rng.uniform(-1.5, 1.5, (2, tree.nv))
        self.v[::3] *= 0.1  # within the width of friction, and far beyond it
        oracle = ManyTypes(tree)
        oracle.model.gravity.linear = GRAVITY
        own, self.stored = tree.passive, 0.0
        self.damping, self.friction, self.springs = np.zeros((3, tree.nv))
        for i in tree.movable:
            for k in range(tree.in_v[i].start, tree.in_v[i].stop):
                self.damping[k] = own.damping[k] * self.v[k]
                x = 2 * self.v[k] / own.width[k]
                self.friction[k] = own.friction[k] * (2 / (1 + np.exp(-x)) - 1)
            if tree.inboard[i].nv == 1:
                turned = self.q[tree.in_q[i]][0] - own.rest[k]
                self.springs[k] = own.stiffness[k] * turned
                self.stored += own.stiffness[k] * turned**2 / 2
        self.own = self.damping + self.friction + self.springs
        self.dissipated = float((self.damping + self.friction) @ self.v)
        bare = oracle.mass_matrix(self.q)
        rotors = np.diag(own.armature)
        self.M = bare + rotors
        self.p = self.M @ self.v
        still = np.zeros(tree.nv)
        self.bias = oracle.inverse_dynamics(self.q, self.v, still) + self.own
        self.rest = oracle.inverse_dynamics(self.q, still, still) + self.springs
        self.tau = oracle.inverse_dynamics(self.q, self.v, self.a) + rotors @ self.a + self.own
        self.momentum_derivative = oracle.momentum_rate(self.q, self.v, self.a) + rotors @ self.a
        self.kinetic = float(self.v @ self.M @ self.v) / 2


_state = cache(State)


def cases(made: Mapping[str, Any]) -> dict[str, Case]:
    """Ours and theirs, by name. made: the modules of `dynamics/` by name."""
    s = _state()
    tree: Tree = s.tree
    q, v, a, tau, p, g = (ca.DM(x) for x in (s.q, s.v, s.a, s.tau, s.p, GRAVITY))
    NE, H, A = made["newton_euler"], made["hamilton"], made["articulated"]
    kp, kd = 3.0, 0.5
    gains = (ca.DM([kp] * tree.nv), ca.DM([kd] * tree.nv))
    asked = a - kd * (ca.DM([0.1] * tree.nv) - v)  # with these as reference, a itself is asked for
    terms = cache(lambda: made["projected"].terms(tree, q, v, tau, g))
    own = cache(lambda: made["passive"].passive_forces(tree, q, v))
    energy = cache(lambda: H.energy(tree, q, v, g))
    # What weight alone stores, from the same functions on the bare tree: others hold these to Pinocchio.
    weight = cache(lambda: float(H.potential_energy(tree.bare, q, g)))
    loads = cache(lambda: made["constraint"].constraint_forces(tree, q, v, tau, g))
    moving = [k for k, name in enumerate(n for n in tree.joints if n) if name in tree.movable_joints]

    def branches() -> Any:
        """R of (19b) again as M: its determinant is the product of what is left."""
        R = np.array(A.branch_inertias(tree, q)["resistance"]).reshape(tree.nv, tree.nv)
        return np.array([np.linalg.slogdet(R)[1]])

    def actuation() -> Any:
        """Of each joint with one way to move."""
        found = np.array(loads()["actuation"]).ravel()[moving]
        return found[[joint.nv == 1 for joint in tree.configuration.joints]]

    one_way = [k for k, i in enumerate(tree.movable) if tree.inboard[i].nv == 1]
    at = [tree.in_v[tree.movable[k]].start for k in one_way]
    found: dict[str, Case] = {
        "inverse_dynamics": (lambda: NE.inverse_dynamics(tree, q, v, a, g), lambda: s.tau),
        "bias_forces": (lambda: NE.bias_forces(tree, q, v, g), lambda: s.bias),
        "gravity_forces": (lambda: NE.gravity_forces(tree, q, g), lambda: s.rest),
        "computed_torque": (
            lambda: NE.computed_torque(tree, q, v, q, ca.DM([0.1] * tree.nv), asked, *gains, g),
            lambda: s.tau,
        ),
        "mass_matrix": (lambda: ca.DM(made["mass_matrix"].mass_matrix(tree, q)), lambda: s.M),
        "body_recursion": (lambda: made["body_frame"].recursion(tree, q, v, a, g)["tau"], lambda: s.tau),
        "projected": (lambda: made["projected"].inverse_dynamics(tree, q, v, a, g), lambda: s.tau),
        "equation_terms, M": (lambda: terms()["mass_matrix"], lambda: s.M),
        "equation_terms, P": (lambda: terms()["passive_forces"], lambda: -s.own),
        "branch_inertias, det R = det M": (branches, lambda: np.array([np.linalg.slogdet(s.M)[1]])),
        "momentum": (lambda: H.momentum(tree, q, v), lambda: s.p),
        "velocity_from_momentum": (lambda: H.velocity_from_momentum(tree, q, p), lambda: s.v),
        "velocity_through_mass_matrix": (lambda: H.velocity_through_mass_matrix(tree, q, p), lambda: s.v),
        "momentum_rate": (lambda: H.momentum_rate(tree, q, p, tau, g), lambda: s.momentum_derivative),
        "energy, kinetic": (lambda: energy()["kinetic"], lambda: np.array([s.kinetic])),
        "energy, potential": (lambda: energy()["potential"], lambda: np.array([weight() + s.stored])),
        "hamiltonian, kinetic": (lambda: H.hamiltonian(tree, q, p, g)["kinetic"], lambda: np.array([s.kinetic])),
        "hamiltonian, potential": (
            lambda: H.hamiltonian(tree, q, p, g)["potential"],
            lambda: np.array([weight() + s.stored]),
        ),
        "constraint_forces, actuation": (
            actuation,
            lambda: (s.tau - s.own - tree.passive.armature * s.a)[at],
        ),
        "mass_matrix_steps": (lambda: made["operators"].mass_matrix_steps(tree, q)["mass_matrix"], lambda: s.M),
    }
    for part in ("damping", "friction", "springs"):
        found[f"passive_forces, {part}"] = (lambda part=part: own()[part], lambda part=part: getattr(s, part))
    for part in ("stored", "dissipated"):
        found[f"passive_forces, {part}"] = (
            lambda part=part: own()[part],
            lambda part=part: np.array([getattr(s, part)]),
        )
    for method in ("articulated", "mass_matrix"):
        solve = made[method].forward_dynamics
        found[f"forward_dynamics, {method}"] = (lambda solve=solve: solve(tree, q, v, tau, g), lambda: s.a)
    return found
