"""Steps in time: the solution loop of the Newton-Euler document, Step 1 and Step 2.

    semi-implicit Euler   v' = v + dt a(q, v),  q' = q + dt v'                         order 1, symplectic
    RK4                   the classical Runge-Kutta step on (q-dot, v-dot) = (v, a)    order 4

The formulas are written once, for whatever can be added and scaled: symbols, where a step becomes one kernel with a
from (19b), or arrays, where a is any function. Efforts are held through a step. Every joint is revolute or prismatic,
so a position's rate is its velocity. Source of the steps: Hairer, Lubich, Wanner, Geometric Numerical Integration,
(1.9) of chapter I and (1.8) of chapter II.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the formulas alone need no engine: a client's install steps remote robots with them
    from dyn_service.dynamics.spatial import Mat
    from dyn_service.dynamics.sweeps import Stack
    from dyn_service.model.tree import Tree

Formula = Callable[[Callable[[Any, Any], Any], Any, Any, Any], tuple[Any, Any]]
"""(a(q, v), q, v, dt in s) -> q and v one step later."""


def semi_implicit_euler_step(acceleration: Callable[[Any, Any], Any], q: Any, v: Any, dt: Any) -> tuple[Any, Any]:
    """The state after dt by v += dt a(q, v), then q += dt v."""
    v_next = v + dt * acceleration(q, v)
    return q + dt * v_next, v_next


def rk4_step(acceleration: Callable[[Any, Any], Any], q: Any, v: Any, dt: Any) -> tuple[Any, Any]:
    """The state after dt by the classical Runge-Kutta step."""
    half, sixth = dt / 2, dt / 6
    a1 = acceleration(q, v)
    v2 = v + half * a1
    a2 = acceleration(q + half * v, v2)
    v3 = v + half * a2
    a3 = acceleration(q + half * v2, v3)
    v4 = v + dt * a3
    a4 = acceleration(q + dt * v3, v4)
    return q + sixth * (v + 2 * (v2 + v3) + v4), v + sixth * (a1 + 2 * (a2 + a3) + a4)


def semi_implicit_euler(
    tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: Stack | None = None
) -> dict[str, Mat]:
    """The state after dt, by one forward dynamics."""
    return _stepped(semi_implicit_euler_step, tree, q, v, tau, dt, gravity, wrenches)


def rk4(tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: Stack | None = None) -> dict[str, Mat]:
    """The state after dt, by four forward dynamics."""
    return _stepped(rk4_step, tree, q, v, tau, dt, gravity, wrenches)


def _stepped(
    formula: Formula, tree: Tree, q: Mat, v: Mat, tau: Mat, dt: Mat, gravity: Mat, wrenches: Stack | None
) -> dict[str, Mat]:
    from dyn_service.dynamics.articulated import forward_dynamics

    q_next, v_next = formula(lambda q, v: forward_dynamics(tree, q, v, tau, gravity, wrenches), q, v, dt)
    return {"q": q_next, "v": v_next}
