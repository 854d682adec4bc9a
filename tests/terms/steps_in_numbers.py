"""Derivatives of an implicit midpoint step and of joint loads, in numbers, on trees whose joints do everything.

Against differences along one random direction, exact to 1e-12: of the step of `simulate`, and of the loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import hamilton, newton_euler
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read
from dyn_service.simulation.integrators.implicit_midpoint import midpoint_step
from tests.mimics import drawn
from tests.passive import restless
from tests.random_robots import random_urdf

MOVING_IN_MANY_WAYS = random_urdf(7, types=("floating", "planar", "screw"), movable=4)
TREES: dict[str, Callable[[], Tree]] = {
    "many ways to move, passive forces": lambda: restless(MOVING_IN_MANY_WAYS).tree,
    "mimic joints, passive forces": lambda: restless(drawn(read(random_urdf(4, movable=4)), 1)).tree,
    "balls and planes": lambda: restless(random_urdf(5, types=("spherical", "planar"), movable=2)).tree,
    "locked joints": lambda: restless(random_urdf(9, movable=4)).tree.locked(["joint_2"]),
}
STEP_S = 0.01
GRAVITY = ex.matrix([0.7, -1.3, -9.81])

Case = tuple[Callable[[], Any], Callable[[], np.ndarray]]


def slope(f: Callable[[float], np.ndarray]) -> np.ndarray:
    """f'(0) by differences; their error is of the tenth order."""
    h, factors = 2e-3, (5 / 6, -5 / 21, 5 / 84, -5 / 504, 1 / 1260)
    return np.asarray(sum(c / h * (f(k * h) - f(-k * h)) for k, c in enumerate(factors, start=1)))


def numbers(x: Any) -> np.ndarray:
    """The entries."""
    return ex.matrix(x).array().ravel()


class State:
    """A tree, how it moves, and what is expected of it. Nothing here is of a module under test."""

    def __init__(self, name: str) -> None:
        self.tree, rng = TREES[name](), np.random.default_rng(0)
        n, self.at = self.tree.nv, self.tree.configuration
        self.W = PerBody(ex.matrix(w) for w in rng.uniform(-5.0, 5.0, (len(self.tree), 6)))
        self.q = self.at.normalised(rng.normal(size=self.tree.nq))
        free = np.ones(n) if self.tree.free is None else np.asarray(self.tree.free)
        self.v, self.a, self.tau = rng.normal(size=(3, n)) * free
        self.direction = rng.normal(size=(3, n)) * free
        self.direction[2] += 1.0 - free  # efforts at locked joints must not count

    def moved(self, s: float, last: np.ndarray) -> tuple[np.ndarray, ...]:
        """q, v and a or tau, moved."""
        e, v, x = s * self.direction
        return self.at.integrate(self.q, e, 1.0), self.v + v, last + x

    def stepped(self, q: np.ndarray, v: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q and v after a step."""

        def flow(q: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rates = hamilton.flow(self.tree, *map(ex.matrix, (q, p, tau)), GRAVITY, self.W)
            return numbers(rates["v"]), numbers(rates["p_dot"])

        p = numbers(hamilton.momentum(self.tree, ex.matrix(q), ex.matrix(v)))
        stepped = midpoint_step(flow, self.at, q, p, STEP_S, 1.0)
        assert stepped is not None
        return stepped[0], numbers(hamilton.velocity_from_momentum(self.tree, *map(ex.matrix, stepped)))

    def load(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        """Loads of the named joints."""
        F, _ = newton_euler.joint_loads(self.tree, *map(ex.matrix, (q, v, a)), GRAVITY, self.W)
        return np.concatenate([numbers(f) for f, joint in zip(F, self.tree.joints, strict=True) if joint])

    @cached_property
    def after(self) -> tuple[np.ndarray, np.ndarray]:
        """q and v after the step, and their changes along the direction."""
        end_state = self.stepped(self.q, self.v, self.tau)

        def apart(s: float) -> np.ndarray:
            q, v = self.stepped(*self.moved(s, self.tau))
            return np.concatenate([self.at.difference(end_state[0], q), v])

        return np.concatenate(end_state), slope(apart)

    @cached_property
    def loaded(self) -> tuple[np.ndarray, np.ndarray]:
        """The loads and their change along the direction."""
        return self.load(self.q, self.v, self.a), slope(lambda s: self.load(*self.moved(s, self.a)))


_state = cache(State)


def cases(modules: Mapping[str, Any]) -> dict[str, Case]:
    """Ours and those, by name. modules: those of `dynamics/` by name."""
    cases_by_name: dict[str, Case] = {}
    for name in TREES:
        s = _state(name)
        q, v, a, tau, dt = map(ex.matrix, (s.q, s.v, s.a, s.tau, STEP_S))
        step = cache(partial(modules["midpoint"].implicit_midpoint, s.tree, q, v, tau, dt, GRAVITY, s.W))
        load = cache(partial(modules["motion_derivatives"].joint_wrench_derivatives, s.tree, q, v, a, GRAVITY, s.W))
        cases_by_name |= {
            f"implicit midpoint, state, {name}": (
                lambda step=step: np.concatenate([numbers(step()[part]) for part in "qv"]),
                lambda s=s: s.after[0],
            ),
            f"implicit midpoint, A and B, {name}": (
                lambda step=step, s=s: along(step(), {"dx_dx": s.direction[:2], "dx_dtau": s.direction[2]}),
                lambda s=s: s.after[1],
            ),
            f"joint loads, {name}": (lambda load=load: load()["wrench"], lambda s=s: s.loaded[0]),
            f"derivatives of joint loads, {name}": (
                lambda load=load, s=s: along(load(), {f"dwrench_d{x}": s.direction[k] for k, x in enumerate("qva")}),
                lambda s=s: s.loaded[1],
            ),
        }
    return cases_by_name


def along(outputs: Mapping[str, Any], direction: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sum of the products of some matrices with their parts of a direction."""
    pairs = direction.items()
    return np.asarray(sum(numbers(outputs[name]).reshape(-1, part.size) @ part.ravel() for name, part in pairs))
