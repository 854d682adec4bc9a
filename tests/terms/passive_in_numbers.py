"""Joints with passive properties, in numbers, against Pinocchio's answer plus passive efforts computed here.

One tree with joints of every type, each damped, rubbing, driven through a gear, and sprung where it has one way to
move; and another with mimic joints, also in chains, against Pinocchio's model of all its joints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_text
from tests.mimics import Pair, drawn, pair
from tests.oracle.many_types import ManyTypes
from tests.passive import restless
from tests.random_robots import MANY_TYPES, random_urdf
from tests.terms.in_numbers import GRAVITY, Case

XML = random_urdf(44, movable=8, types=MANY_TYPES)
# The first has a follower that its leader carries, the second fill-in of L^T D L.
XML_OF_MIMICS = tuple(random_urdf(seed, movable=12, types=MANY_TYPES) for seed in (21, 37))


class State:
    """The robot, how it moves, and the answers: Pinocchio's, and what each joint does, joint by joint.

    What has `all` in its name is of all joints by themselves, the rest tied by S: where none follows another, the same.
    """

    def __init__(self, tied: Pair, locked: Sequence[str] = ()) -> None:
        self.tree, free = tied.coupled.tree.locked(locked), tied.free.tree
        tree = self.tree
        moves = np.array([float(name not in locked) for name in tree.configuration.velocity_joints])
        moves_all = np.array([float(not row[moves == 0.0].any()) for row in tied.S])
        reduced = lambda x: moves * tied.reduced(x)
        rng = np.random.default_rng(0)
        self.q = tree.configuration.random(rng, tree.limits.lower, tree.limits.upper)
        self.v, self.a = rng.uniform(-1.5, 1.5, (2, tree.nv))
        self.v[::3] *= 0.1  # within the width of friction, and far beyond it
        self.v, self.a = moves * self.v, moves * self.a
        self.q_all, v_all, a_all = tied.positions(self.q), tied.rates(self.v), tied.rates(self.a)
        oracle = ManyTypes(free)
        oracle.model.gravity.linear = GRAVITY
        passive, self.stored = free.passive, 0.0
        damping, friction, springs = np.zeros((3, free.nv))
        for i in free.movable:
            for k in range(free.in_v[i].start, free.in_v[i].stop):
                damping[k] = passive.damping[k] * v_all[k]
                x = 2 * v_all[k] / passive.width[k]
                friction[k] = passive.friction[k] * (2 / (1 + np.exp(-x)) - 1)
            if free.inboard[i].nv == 1:
                deflection = self.q_all[free.in_q[i]][0] - passive.rest[k]
                springs[k] = moves_all[k] * passive.stiffness[k] * deflection
                self.stored += springs[k] * deflection / 2
        self.damping, self.friction, self.springs = reduced(damping), reduced(friction), reduced(springs)
        self.efforts = self.damping + self.friction + self.springs
        self.dissipated = float((damping + friction) @ v_all)
        rotors = tied.S.T @ np.diag(passive.armature) @ tied.S
        M = tied.S.T @ oracle.mass_matrix(self.q_all) @ tied.S + rotors
        self.M = np.outer(moves, moves) * M + np.diag(1.0 - moves)
        self.p = self.M @ self.v
        zero_v = np.zeros(free.nv)
        self.bias = reduced(oracle.inverse_dynamics(self.q_all, v_all, zero_v)) + self.efforts
        self.rest = reduced(oracle.inverse_dynamics(self.q_all, zero_v, zero_v)) + self.springs
        self.driven_all = oracle.inverse_dynamics(self.q_all, v_all, a_all)
        self.tau = reduced(self.driven_all) + moves * (rotors @ self.a) + self.efforts
        self.momentum_derivative = reduced(oracle.momentum_rate(self.q_all, v_all, a_all)) + moves * (rotors @ self.a)
        self.idle = 3.0 * (1.0 - moves)  # what is given at joints that are locked, and must not count
        self.kinetic = float(self.v @ self.M @ self.v) / 2
        self.free, self.rotors = free, rotors


@cache
def each_by_itself() -> State:
    return State(pair(restless(XML, 5).evaluator.model.description))


@cache
def mimicking(number: int) -> State:
    return State(_pair_of_mimics(number))


def _pair_of_mimics(number: int) -> Any:
    return pair(restless(drawn(read_text(XML_OF_MIMICS[number]), 1, share=0.7), 5).evaluator.model.description)


@cache
def locked() -> tuple[State, State]:
    """Every third joint locked, with all that follow: of those that move by themselves, and of those that follow."""
    first, other = each_by_itself().tree.movable_joints, mimicking(0).tree.movable_joints
    return (
        State(pair(restless(XML, 5).evaluator.model.description), first[1::3]),
        State(_pair_of_mimics(0), other[::3]),
    )


def locked_cases(modules: Mapping[str, Any]) -> dict[str, Case]:
    """The same where joints are locked."""
    cases_by_name = {}
    for label, state in zip(("by itself", "following"), locked(), strict=True):
        cases_by_name |= {f"{name}, {label}": case for name, case in _cases(modules, state).items()}
    return cases_by_name


def cases(modules: Mapping[str, Any]) -> dict[str, Case]:
    """Ours and theirs, by name. modules: those of `dynamics/` by name."""
    return _cases(modules, each_by_itself())


def mimicking_cases(modules: Mapping[str, Any]) -> dict[str, Case]:
    """The same where joints follow others."""
    cases_by_name = {}
    for number in range(len(XML_OF_MIMICS)):
        cases_by_name |= {f"{name}, tree {number}": case for name, case in _cases(modules, mimicking(number)).items()}
    return cases_by_name


def _cases(modules: Mapping[str, Any], s: State) -> dict[str, Case]:
    return {**_efforts(modules, s), **_momenta(modules, s), **_passive_forces(modules, s)}


def _efforts(modules: Mapping[str, Any], s: State) -> dict[str, Case]:
    tree: Tree = s.tree
    q, v, a, tau, g = (ex.matrix(x) for x in (s.q, s.v, s.a, s.tau + s.idle, GRAVITY))
    NE, A = modules["newton_euler"], modules["articulated"]
    kp, kd = 3.0, 0.5
    gains = (ex.matrix([kp] * tree.nv), ex.matrix([kd] * tree.nv))
    # With these as reference, a itself is asked for.
    reference_a = a - kd * (ex.matrix([0.1] * tree.nv) - v) + ex.matrix(s.idle)
    terms = cache(lambda: modules["projected"].terms(tree, q, v, tau, g))
    loads = cache(lambda: modules["constraint"].constraint_forces(tree, q, v, tau, g))
    moving = [k for k, name in enumerate(n for n in tree.joints if n) if name in tree.moving_joints]

    def branches() -> Any:
        """R of (19b) again as M: its determinant is the product of what is left."""
        R = A.branch_inertias(tree, q)["resistance"].array().reshape(tree.nv, tree.nv)
        return np.array([np.linalg.slogdet(R)[1]])

    def actuation() -> Any:
        """Of each joint with one way to move."""
        values = loads()["actuation"].array().ravel()[moving]
        return values[[tree.inboard[i].nv == 1 for i in tree.movable]]

    single_dofs = [s.free.in_v[i].start for i in s.free.movable if s.free.inboard[i].nv == 1]
    cases_by_name: dict[str, Case] = {
        "inverse_dynamics": (lambda: NE.inverse_dynamics(tree, q, v, a, g), lambda: s.tau),
        "bias_forces": (lambda: NE.bias_forces(tree, q, v, g), lambda: s.bias),
        "gravity_forces": (lambda: NE.gravity_forces(tree, q, g), lambda: s.rest),
        "computed_torque": (
            lambda: NE.computed_torque(tree, q, v, q, ex.matrix([0.1] * tree.nv), reference_a, *gains, g),
            lambda: s.tau,
        ),
        "mass_matrix": (lambda: ex.matrix(modules["mass_matrix"].mass_matrix(tree, q)), lambda: s.M),
        "body_recursion": (lambda: modules["body_frame"].recursion(tree, q, v, a, g)["tau"], lambda: s.tau),
        "projected": (lambda: modules["projected"].inverse_dynamics(tree, q, v, a, g), lambda: s.tau),
        "equation_terms, M": (lambda: terms()["mass_matrix"], lambda: s.M),
        "equation_terms, Q": (lambda: terms()["efforts"], lambda: s.tau),
        "equation_terms, P": (lambda: terms()["passive_forces"], lambda: -s.efforts),
        "constraint_forces, actuation": (actuation, lambda: s.driven_all[single_dofs]),
        "mass_matrix_steps": (lambda: modules["operators"].mass_matrix_steps(tree, q)["mass_matrix"], lambda: s.M),
    }
    if not tree.has_mimics and tree.free is None:
        cases_by_name["branch_inertias, det R = det M"] = (branches, lambda: np.array([np.linalg.slogdet(s.M)[1]]))
    for method in ("articulated", "mass_matrix"):
        solve = modules[method].forward_dynamics
        cases_by_name[f"forward_dynamics, {method}"] = (lambda solve=solve: solve(tree, q, v, tau, g), lambda: s.a)
    return cases_by_name


def _momenta(modules: Mapping[str, Any], s: State) -> dict[str, Case]:
    tree, H = s.tree, modules["hamilton"]
    q, v, tau, p, g = (ex.matrix(x) for x in (s.q, s.v, s.tau + s.idle, s.p + s.idle, GRAVITY))
    energy = cache(lambda: H.energy(tree, q, v, g))
    # What weight alone stores, from the same functions on the bare tree: others hold these to Pinocchio.
    weight = cache(lambda: float(H.potential_energy(s.free.without_passive, ex.matrix(s.q_all), g)))
    return {
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
    }


def _passive_forces(modules: Mapping[str, Any], s: State) -> dict[str, Case]:
    forces = cache(lambda: modules["passive"].passive_forces(s.tree, ex.matrix(s.q), ex.matrix(s.v)))
    return {
        f"passive_forces, {part}": (lambda part=part: forces()[part], lambda part=part: np.atleast_1d(getattr(s, part)))
        for part in ("damping", "friction", "springs", "stored", "dissipated")
    }
