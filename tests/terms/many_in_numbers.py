"""Joints with several degrees of freedom, in numbers, against Pinocchio: like `in_numbers.py` for those with one.

One tree whose root floats, with joints of every type, fixed ones and branches, under weight that no axis lies along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pinocchio as pin

from dyn_service.dynamics import expressions as ex
from dyn_service.model.building import tree_of
from dyn_service.model.description import rooted
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_text
from tests.oracle.many_types import ManyTypes
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.in_numbers import GRAVITY, Case

XML = random_urdf(44, movable=8, types=MANY_TYPES)
"""Joints of every type, of which those with several ways to move carry others."""

SHORT_STEP_S = 1e-3
"""So short that the implicit step converges without its terms too, and is wrong instead of endless."""


class State:
    """The robot, how it moves, and Pinocchio's answers. They do not depend on our equations: once is enough."""

    def __init__(self) -> None:
        self.tree = tree_of(rooted(read_text(XML), "floating"))
        tree, configuration = self.tree, self.tree.configuration
        rng = np.random.default_rng(0)
        self.q = configuration.random(rng, tree.limits.lower, tree.limits.upper)
        self.v, self.a = rng.uniform(-1.5, 1.5, (2, tree.nv))
        oracle = ManyTypes(tree)
        oracle.model.gravity.linear = GRAVITY
        self.tau = oracle.inverse_dynamics(self.q, self.v, self.a)
        self.M = oracle.mass_matrix(self.q)
        self.p = self.M @ self.v
        self.momentum_rate = oracle.momentum_rate(self.q, self.v, self.a)
        loads = [oracle.joint_wrench(tree.joints[i], self.q, self.v, self.a) for i in tree.movable]
        efforts = [self.tau[tree.in_v[i]] for i in tree.movable]
        spaces = [tree.inboard[i].subspace for i in tree.movable]
        self.wrench = np.array(loads)
        self.actuation = np.array([x[0] if len(x) == 1 else np.linalg.norm(x) for x in efforts])
        self.constraint = np.array([F - G @ np.linalg.pinv(G) @ F for F, G in zip(loads, spaces, strict=True)])
        joint_rows = [i for i, name in enumerate(tree.joints) if name]
        self.rows = [joint_rows.index(i) for i in tree.movable]
        """Where the movable joints stand among all named ones."""
        self.weightless = ManyTypes(tree)
        self.weightless.model.gravity.linear = np.zeros(3)

    def stretched(self) -> tuple[Tree, np.ndarray, np.ndarray]:
        """The same tree with the unit of one sliding joint doubled; per entry of q and of v, its unit."""
        tree = self.tree
        slides = next(i for i in tree.movable if all(tree.inboard[i].shifts))
        inboard = list(tree.inboard)
        inboard[slides] = inboard[slides].mapped(lambda axis: 2 * axis)
        of_q, of_v = np.ones(tree.nq), np.ones(tree.nv)
        of_q[tree.in_q[slides]] = of_v[tree.in_v[slides]] = 2.0
        return replace(tree, inboard=tuple(inboard)), of_q, of_v

    def flow(self, q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hamilton's equations without weight and efforts: v and p-dot."""
        v = np.linalg.solve(self.weightless.mass_matrix(q), p)
        a = self.weightless.forward_dynamics(q, v, np.zeros_like(v))
        return v, self.weightless.momentum_rate(q, v, a)

    def momentum(self) -> np.ndarray:
        """[linear; angular] of the whole robot about the world's origin, in the order of the root's velocities."""
        oracle = self.weightless
        pin.computeCentroidalMomentum(oracle.model, oracle.data, oracle.position(self.q), self.v)
        hg, centre = oracle.data.hg, oracle.data.com[0]
        return np.concatenate([hg.linear, hg.angular + np.cross(centre, hg.linear)])


_state = cache(State)


def cases(modules: Mapping[str, Any]) -> dict[str, Case]:
    """Ours and Pinocchio's, by name. modules: those of `dynamics/`, and
    `simulation/integrators/implicit_midpoint.py`, by name."""
    s = _state()
    tree = s.tree
    q, v, a, tau, p, g = (ex.matrix(x) for x in (s.q, s.v, s.a, s.tau, s.p, GRAVITY))
    H, constraint = modules["hamilton"], modules["constraint"].constraint_forces
    loads = cache(lambda: constraint(tree, q, v, tau, g))

    def row(name: str) -> np.ndarray:
        return loads()[name].array().reshape(-1, 1 if name == "actuation" else 6)[s.rows]

    def of_stretched() -> np.ndarray:
        other, of_q, of_v = s.stretched()
        loads_stretched = constraint(other, ex.matrix(s.q / of_q), ex.matrix(s.v / of_v), ex.matrix(s.tau * of_v), g)[
            "constraint"
        ]
        return loads_stretched.array().reshape(-1, 6)[s.rows]

    def momentum_after_step() -> np.ndarray:
        configuration = tree.configuration
        stepped = modules["implicit_midpoint"].midpoint_step(s.flow, configuration, s.q, s.p, SHORT_STEP_S, 0.0)
        # NaN differs from every answer: a step that is not found is no agreement.
        return np.full(6, np.nan) if stepped is None else configuration.momentum_on_parent(*stepped)[:6]

    cases_by_name: dict[str, Case] = {
        "inverse_dynamics": (lambda: modules["newton_euler"].inverse_dynamics(tree, q, v, a, g), lambda: s.tau),
        "projected": (lambda: modules["projected"].inverse_dynamics(tree, q, v, a, g), lambda: s.tau),
        "body_recursion": (lambda: modules["body_frame"].recursion(tree, q, v, a, g)["tau"], lambda: s.tau),
        "mass_matrix": (lambda: ex.matrix(modules["mass_matrix"].mass_matrix(tree, q)), lambda: s.M),
        "momentum": (lambda: H.momentum(tree, q, v), lambda: s.p),
        "velocity_from_momentum": (lambda: H.velocity_from_momentum(tree, q, p), lambda: s.v),
        "velocity_through_mass_matrix": (lambda: H.velocity_through_mass_matrix(tree, q, p), lambda: s.v),
        "momentum_rate": (lambda: H.momentum_rate(tree, q, p, tau, g), lambda: s.momentum_rate),
        "constraint_forces, wrench": (lambda: row("wrench"), lambda: s.wrench),
        "constraint_forces, actuation": (lambda: row("actuation"), lambda: s.actuation),
        "constraint_forces, constraint": (lambda: row("constraint"), lambda: s.constraint),
        "constraint_forces, constraint, in other units": (of_stretched, lambda: s.constraint),
        "midpoint_step, momentum on which nothing acts": (momentum_after_step, s.momentum),
    }
    for method in ("articulated", "mass_matrix"):
        solve = modules[method].forward_dynamics
        cases_by_name[f"forward_dynamics, {method}"] = (lambda solve=solve: solve(tree, q, v, tau, g), lambda: s.a)
    return cases_by_name
