"""Steps in time as kernels: the formulas of `model/steps.py` with the acceleration of the O(N) solution, (19b).

Efforts are held through a step; so are external wrenches, in the axes of the links they act on.
Source: Newton-Euler document, Order(N) solution of the equation of motion, Steps 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.articulated import forward_dynamics
from dyn_service.dynamics.kinematics import integrate, normalised, position_rates
from dyn_service.dynamics.rolled_tree import RolledTree
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import PerBody
from dyn_service.model.steps import Step, explicit_euler_step, rk4_step, semi_implicit_euler_step
from dyn_service.model.tree import Tree


def _states(
    step: Step, tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: PerBody | None = None, **a: Mat
) -> dict[str, Mat]:
    """The states q1, v1 .. of the stages of a step, and the state after dt, from the accelerations a1 .. of the stages.

    Each state depends on the accelerations of earlier stages only.
    """
    found: dict[str, Mat] = {}

    def at(q: Mat, v: Mat) -> Mat:
        k = 1 + len(found) // 2
        found[f"q{k}"], found[f"v{k}"] = q, v
        return a[f"a{k}"]

    found["q"], found["v"] = step(at, q, v, dt, on=_On(tree))
    return found


@dataclass(frozen=True)
class _On:
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


def _stepped(
    step: Step, tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """The state after dt, by one forward dynamics for each stage."""
    if isinstance(tree, RolledTree):  # its acceleration is the value of a loop, which cannot be substituted in
        q_next, v_next = step(lambda q, v: forward_dynamics(tree, q, v, tau, gravity, wrenches), q, v, dt, on=_On(tree))
        return {"q": q_next, "v": v_next}
    # Written once and entered at each of the step's states: tracing it again for each took most of the compile time.
    at_q, at_v = ex.sym("q", tree.nq), ex.sym("v", tree.nv)
    acceleration = forward_dynamics(tree, at_q, at_v, tau, gravity, wrenches)

    def rate(q: Mat, v: Mat) -> Mat:
        return ex.substitute([acceleration], [at_q, at_v], [q, v])[0]

    q_next, v_next = step(rate, q, v, dt, on=_On(tree))
    return {"q": q_next, "v": v_next}


explicit_euler = partial(_stepped, explicit_euler_step)
semi_implicit_euler = partial(_stepped, semi_implicit_euler_step)
rk4 = partial(_stepped, rk4_step)
explicit_euler_states = partial(_states, explicit_euler_step)
semi_implicit_euler_states = partial(_states, semi_implicit_euler_step)
rk4_states = partial(_states, rk4_step)
