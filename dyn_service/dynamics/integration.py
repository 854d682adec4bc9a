"""Steps in time as kernels: the formulas of `model/steps.py` with the acceleration of the O(N) solution, (19b).

Efforts are held through a step; so are external wrenches, in the axes of the links they act on.
Source: Newton-Euler document, Order(N) solution of the equation of motion, Steps 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, singledispatch

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.articulated import forward_dynamics
from dyn_service.dynamics.kinematics import integrate, normalised, position_rates
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.steps import Step, explicit_euler_step, rk4_step, semi_implicit_euler_step
from dyn_service.model.tree import Tree


def states(
    step: Step, tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: PerBody | None = None, **a: Mat
) -> dict[str, Mat]:
    """The states q1, v1 .. of the stages of a step, and the state after dt, from the accelerations a1 .. of the stages.

    Each state depends on the accelerations of earlier stages only.
    """
    on_the_way: dict[str, Mat] = {}

    def stage(q: Mat, v: Mat) -> Mat:
        # Two entries, q and v, for each earlier stage.
        k = 1 + len(on_the_way) // 2
        on_the_way[f"q{k}"], on_the_way[f"v{k}"] = q, v
        return a[f"a{k}"]

    on_the_way["q"], on_the_way["v"] = step(stage, q, v, dt, on=_TreePositions(tree))
    return on_the_way


@dataclass(frozen=True)
class _TreePositions:
    """The positions of a tree's joints, in symbols."""

    tree: Tree

    def rate(self, q: Mat, v: Mat) -> Mat:
        """q-dot."""
        return position_rates(self.tree, q, v)

    def integrate(self, q: Mat, v: Mat, dt: Mat) -> Mat:
        """The position after dt with constant v."""
        return integrate(self.tree, q, v, dt)

    def normalised(self, q: Mat) -> Mat:
        """The same position, its quaternions of unit length."""
        return normalised(self.tree, q)


def _step(
    step: Step, tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """The state after dt, by one forward dynamics for each stage."""
    q_next, v_next = step(_acceleration(tree, tau, gravity, wrenches), q, v, dt, on=_TreePositions(tree))
    return {"q": q_next, "v": v_next}


@singledispatch
def _acceleration(tree: Tree, tau: Mat, gravity: Mat, wrenches: PerBody | None) -> Callable[[Mat, Mat], Mat]:
    """Returns a(q, v)."""
    # Written once and entered at each of the step's states: tracing it again for each took most of the compile time.
    q_symbols, v_symbols = ex.sym("q", tree.nq), ex.sym("v", tree.nv)
    acceleration = forward_dynamics(tree, q_symbols, v_symbols, tau, gravity, wrenches)
    return lambda q, v: ex.substitute([acceleration], [q_symbols, v_symbols], [q, v])[0]


@_acceleration.register(RolledTree)
def _acceleration_in_loops(
    tree: RolledTree, tau: Mat, gravity: Mat, wrenches: PerBody | None
) -> Callable[[Mat, Mat], Mat]:
    # The acceleration is the value of a loop, in which nothing can be substituted: each stage records its own loops.
    return lambda q, v: forward_dynamics(tree, q, v, tau, gravity, wrenches)


explicit_euler = partial(_step, explicit_euler_step)
semi_implicit_euler = partial(_step, semi_implicit_euler_step)
rk4 = partial(_step, rk4_step)
explicit_euler_states = partial(states, explicit_euler_step)
semi_implicit_euler_states = partial(states, semi_implicit_euler_step)
rk4_states = partial(states, rk4_step)
