"""One step in time, as one kernel: the solution loop of the Newton-Euler document, Step 1 and Step 2.

    semi-implicit Euler   v' = v + dt a(q, v),  q' = q + dt v'                         order 1, symplectic
    RK4                   the classical Runge-Kutta step on (q-dot, v-dot) = (v, a)    order 4

with a from (19b) and the efforts held through the step. Cost: one or four forward dynamics.
"""

from __future__ import annotations

from dyn_service.dynamics.articulated import forward_dynamics
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import Stack
from dyn_service.model.tree import Tree


def semi_implicit_euler(
    tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: Stack | None = None
) -> dict[str, Mat]:
    """The state after dt."""
    v_next = v + dt * forward_dynamics(tree, q, v, tau, gravity, wrenches)
    return {"q": q + dt * v_next, "v": v_next}


def rk4(tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: Stack | None = None) -> dict[str, Mat]:
    """The state after dt."""

    def a(q: Mat, v: Mat) -> Mat:
        return forward_dynamics(tree, q, v, tau, gravity, wrenches)

    half = dt / 2
    a1 = a(q, v)
    v2 = v + half * a1
    a2 = a(q + half * v, v2)
    v3 = v + half * a2
    a3 = a(q + half * v2, v3)
    v4 = v + dt * a3
    a4 = a(q + dt * v3, v4)
    return {
        "q": q + dt / 6 * (v + 2 * (v2 + v3) + v4),
        "v": v + dt / 6 * (a1 + 2 * (a2 + a3) + a4),
    }
