"""Motions of robots with closed loops for simulations, launches and `step`; implements `api.closed_motion`.

`closed_state` is the map of any state to the nearest closed one, which ends the stages of explicit steps.

The implicit midpoint step is that of the tree between two impulses of the loop joints, which act at closed positions:

    p+ = p + J_c(q)^T mu       (q', p-) = the tree's step from (q, p+)       p' = p- + J_c(q')^T mu'

mu closes the loops at q', and mu' makes J_c v' = 0 there. A potential that vanishes at closed positions causes both
impulses, so the step is symplectic on the closed states, and it is symmetric: its order is 2. Source: S. Reich,
Symplectic integration of constrained Hamiltonian systems by composition methods, SIAM J. Numer. Anal. 33, 1996; Hairer,
Lubich, Wanner, Geometric Numerical Integration, VII.1.

Checked by tests/simulation/test_closed_loops.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from dyn_service.api.closed_motion import LoopsLostError
from dyn_service.api.queries import QUERIES, Array, Overlay, Wrench
from dyn_service.api.results import PassiveForces
from dyn_service.engine.loops.call import Call, regular_accelerations
from dyn_service.engine.loops.closed_loops import ClosedLoops
from dyn_service.engine.loops.joints import CLOSED, LoopState, Tangent, first_place, pseudo_inverse, state_text, times
from dyn_service.engine.rows import ask
from dyn_service.errors import FailedPreconditionError

_CLOSING_STEPS, _ROUNDED = 12, 1e-14
"""Newton steps that close the loops of a simulated robot, two as a rule; and the gap, rad and lengths of the loop,
that counts as rounding.
"""

_MIDPOINT_STEPS, _MIDPOINT_ROUNDING, _MIDPOINT_STALLS, _MIDPOINT_ERROR = 60, 4e-15, 2, 1e-9
"""Iterations of a midpoint, some six as a rule; the change of its velocity, relative to the size of v or 1 rad/s or 1
length of the loop per second, that counts as rounding; the iterations after which a change that no longer halves is the
rounding of the tree's momenta; and the largest such change.
"""


class ClosedSimulation:
    """The motions that keep the loops of a robot closed."""

    def __init__(self, loops: ClosedLoops) -> None:
        self._loops = loops

    @property
    def driven(self) -> Array | None:
        """(nv,): 1 for joints with a motor, else 0; None if the description states it of no joint."""
        return self._loops.driven

    def check_start(self, q: Array, v: Array) -> None:
        """Refuses states that open a loop; errors as those of queries."""
        state = self._loops.joints.state(q, v)
        self._loops.check_closed(state, "q")
        self._loops.check_kept(state, v, 0.0, 0.0, "v")

    def check_efforts(self, tau: Array) -> None:
        """Refuses efforts (..., nv) of passive joints that are not 0: `ClosedLoops.check_efforts`."""
        self._loops.check_efforts(tau)

    @property
    def samples(self) -> Array:
        """(n, nq): random closed positions: `ClosedLoops.samples`."""
        return self._loops.samples

    def closed_state(self, q: Array, v: Array, brakes: Array | None = None) -> tuple[Array, Array]:
        """Returns the closed position nearest to q, by Newton's method, and v without its part across the loops.

        A closed position keeps its bits. The map is smooth, so that an integrator keeps its order.

        Args:
            q: (..., nq) near a closed position.
            v: (..., nv) rad/s | m/s.
            brakes: (nv,) velocities that brakes enforce, NaN for joints without a brake; None: no brake.

        Raises:
            LoopsLostError: The loops do not close near q.
        """
        if brakes is not None or self._loops.compiled is None:
            return self._closed(q, v, brakes)[:2]
        q_near, v_near, regular = self._loops.compiled.closed_state(q, v, _CLOSING_STEPS, _ROUNDED)
        if not regular.all():
            q, v, _ = self._closed(q, v)
            q_near, v_near = np.where(regular[..., None], q_near, q), np.where(regular[..., None], v_near, v)
        return q_near, v_near

    def _closed(self, q: Array, v: Array, brakes: Array | None = None) -> tuple[Array, Array, Tangent]:
        """Returns `closed_state`, and the motions that keep the loops closed there."""
        loops = self._loops
        q = np.broadcast_to(q, (*np.broadcast_shapes(q.shape[:-1], v.shape[:-1]), q.shape[-1]))
        previous = np.full(q.shape[:-1], np.inf)
        for _ in range(_CLOSING_STEPS):
            state = loops.joints.state(q, None)
            e = loops.joints.blocked_error(state.error)
            size = np.abs(e).max(axis=-1, initial=0.0)
            # Of large distances the rounding is larger: a step that no longer halves the gap ends the iteration.
            is_open = (size > _ROUNDED) & ((size < 0.5 * previous) | (size > CLOSED))
            if not is_open.any():
                break
            closer = loops.configuration.integrate(q, -loops.tangent(state).velocities(e))
            q, previous = np.where(is_open[..., None], closer, q), size
        self._check_near(state)
        state = _braked(state, loops.unit, brakes)
        tangent = loops.tangent(state)
        return q, np.asarray(v - tangent.velocities(times(state.rows, v) + state.bias)), tangent

    def _check_near(self, state: LoopState) -> None:
        """Raises `LoopsLostError` if a loop is still open."""
        gaps = self._loops.gaps(state)
        place = first_place(gaps > CLOSED)
        if place is not None:
            raise LoopsLostError(
                f"the loop of joint '{self._loops.joints.names[place[-1]]}'{state_text(place[:-1])} does not close "
                f"near the position reached: the iteration leaves a gap of {gaps[place]:.2g}"
            )

    def accelerations(
        self,
        q: Array,
        v: Array,
        tau: Array,
        *,
        gravity: Array | None = None,
        wrenches: Sequence[Wrench] | None = None,
        brakes: Array | None = None,
        overlay: Overlay | None = None,
        passive: bool = True,
    ) -> Array:
        """Returns the accelerations (..., nv) at the closed state nearest to q, v.

        Efforts act at all joints, also at those without a drive: they may be those of stops.

        Args:
            q: (..., nq).
            v: (..., nv).
            tau: (..., nv) N m | N.
            gravity: (3,) m/s^2; None: the robot's.
            wrenches: External wrenches.
            brakes: (nv,) accelerations that brakes enforce, NaN for joints without a brake; None: no brake.
            overlay: Changed numbers of the robot; None: none.
            passive: Whether passive joint forces act.

        Raises:
            LoopsLostError: The loops do not close near q.
            FailedPreconditionError: The state is singular.
        """
        loads = {"tau": tau, "gravity": gravity, "wrenches": wrenches, "overlay": overlay, "passive": passive}
        if brakes is None and (kernels := self._loops.compiled) is not None:
            q_near, v_near, closed = kernels.closed_state(q, v, _CLOSING_STEPS, _ROUNDED)
            with np.errstate(all="ignore"):
                call = Call(self._loops, QUERIES["forward_dynamics"], {"q": q_near, "v": v_near, **loads})
                a, regular = regular_accelerations(call, kernels, tau)
            is_regular = np.logical_and(closed, regular)
            if is_regular.all():
                return a
            return np.where(is_regular[..., None], a, self._accelerations(q, v, tau, loads, None))
        return self._accelerations(q, v, tau, loads, brakes)

    def _accelerations(self, q: Array, v: Array, tau: Array, loads: Mapping[str, Any], brakes: Array | None) -> Array:
        """Returns `accelerations` by singular values."""
        loops = self._loops
        q, v, tangent = self._closed(q, v)
        call = Call(loops, QUERIES["forward_dynamics"], {"q": q, "v": v, **loads})
        call.state = loops.joints.state(q, v, closed=True)
        if brakes is None:
            call.tangent = tangent
            return call.forward(tau)
        state = _braked(call.state, loops.unit, brakes)
        tangent = loops.tangent(state)
        a_b = -tangent.velocities(state.bias)
        f = tau - call.tree("inverse_dynamics", q, v, a_b)
        return np.asarray(a_b + tangent.solve(call.tree("mass_matrix", q), f))

    def momentum_step(
        self,
        q: Array,
        p: Array,
        tau: Array,
        dt: float,
        *,
        gravity: Array | None = None,
        wrenches: Sequence[Wrench] | None = None,
    ) -> tuple[Array, Array] | None:
        """Returns q (..., nq) and p = M v (..., nv) after an implicit midpoint step of dt (s) from a closed state.

        None if the iteration does not converge.

        Raises:
            LoopsLostError: The loops do not close near the end of the step.
            FailedPreconditionError: The mass matrix of motions that keep the loops closed is singular.
        """
        loops, configuration, half = self._loops, self._loops.configuration, dt / 2
        loads: dict[str, Any] = {"gravity": gravity, "wrenches": wrenches}
        start, M = loops.tangent(loops.joints.state(q, None)), self.tree_inertia(q)
        v, rest, pi = start.solve(M, p), np.zeros(loops.nv), configuration.momentum_on_parent(q, p)
        scale = np.maximum(np.abs(v / loops.unit).max(axis=-1, keepdims=True, initial=0.0), 1.0) * loops.unit
        converged, least_change = np.zeros((*v.shape[:-1], 1), dtype=bool), np.full((*v.shape[:-1], 1), np.inf)
        stalls = np.zeros(converged.shape, dtype=int)
        for _ in range(_MIDPOINT_STEPS):
            q_m, q_end = configuration.integrate(q, v, half), configuration.integrate(q, v, dt)
            p_m = ask(loops.tree, "momentum", q_m, v)
            # p-dot - tau = M-dot v - C: no inverse of M, which links without mass lack
            rate = ask(loops.tree, "momentum_derivative", q_m, v, rest)
            rate = tau + rate - ask(loops.tree, "inverse_dynamics", q_m, v, rest, **loads)
            rate_on_parent = configuration.momentum_on_parent(q_m, rate + configuration.turning(v, p_m))
            pi_m, state = configuration.momentum_on_parent(q_m, p_m), loops.joints.state(q_end, None)
            # With J_c at the end: near singular positions that at the start differs from it by a multiple of itself.
            end = loops.tangent(state)
            residual = configuration.momentum_on_body(q, pi_m - half * rate_on_parent - pi)
            closing = end.velocities(loops.joints.blocked_error(state.error)) / -dt
            try:
                step = closing - end.solve(M, residual + times(M, closing), start)
            except FailedPreconditionError:  # of an iterate; a singular M is refused at the start
                return None
            change = np.abs(step / scale).max(axis=-1, keepdims=True, initial=0.0)
            stalls = np.where(change > 0.5 * least_change, stalls + 1, 0)
            stalled = (stalls >= _MIDPOINT_STALLS) & (change <= _MIDPOINT_ERROR)
            converged = converged | (change <= _MIDPOINT_ROUNDING) | stalled | ~np.isfinite(change)
            if converged.all():
                break
            v, least_change = np.where(converged, v, v + step), np.minimum(least_change, change)
        else:
            return None
        self._check_near(state)
        p_end = configuration.momentum_on_body(q_end, pi_m + half * rate_on_parent)
        M = self.tree_inertia(q_end)
        return q_end, times(M, end.solve(M, p_end))

    def bias(
        self, q: Array, v: Array, a: Array, *, gravity: Array | None = None, wrenches: Sequence[Wrench] | None = None
    ) -> tuple[Array, Array]:
        """Returns N (..., nv, nv) of `basis`, and the inverse dynamics (..., nv) of the tree with the accelerations
        nearest to a (..., nv) that keep the loops closed, at a closed state.
        """
        state = self._loops.joints.state(q, v, closed=True)
        tangent = self._loops.tangent(state)
        a = a - tangent.velocities(state.bias + times(state.rows, a))
        return tangent.basis, ask(self._loops.tree, "inverse_dynamics", q, v, a, gravity=gravity, wrenches=wrenches)

    def passive_forces(self, q: Array, v: Array) -> PassiveForces:
        """Returns the passive forces of the tree's joints, also where loops are open."""
        return cast("PassiveForces", ask(self._loops.tree, "passive_forces", q, v))

    def mobility(self, q: Array, inertia: Array | None = None) -> Array:
        """Returns `Tangent.mobility` at closed positions q (..., nq), 0 where links without mass move, which the
        equation of motion reports. inertia: (..., nv, nv) M; None: `tree_inertia`.
        """
        M = self.tree_inertia(q) if inertia is None else inertia
        try:
            return self._tangent(q).mobility(M)
        except FailedPreconditionError:
            return np.zeros(M.shape)

    def tree_inertia(self, q: Array) -> Array:
        """Returns the tree's M (..., nv, nv), also at positions that are open by an error of measurement."""
        return np.asarray(ask(self._loops.tree, "mass_matrix", q))

    def drive_inertia(self, q: Array) -> Array:
        """Returns (nv, nv), by which -v becomes efforts of the drives that brake all motions alike.

        (S N)^T+ N^T M, for drives S: the power -v^T M v of independent drives.
        """
        drives = np.ones(self._loops.nv) if self.driven is None else self.driven
        tangent = self._tangent(q)
        N_T = np.swapaxes(tangent.basis, -1, -2)
        return np.asarray(drives[:, None] * pseudo_inverse(tangent.drives(drives)) @ N_T @ self.tree_inertia(q))

    def basis(self, q: Array) -> Array:
        """Returns N (..., nv, nv), the motions that keep the loops closed at q (..., nq); see `Tangent.basis`."""
        return self._tangent(q).basis

    def _tangent(self, q: Array) -> Tangent:
        return self._loops.tangent(self._loops.joints.state(q, None, closed=True))

    def efforts_of(self, q: Array, wrenches: Sequence[Wrench]) -> Array:
        """Returns the efforts (..., nv) with the same effect as external wrenches."""
        tree, zeros = self._loops.tree, np.zeros(self._loops.nv)
        at_rest = ask(tree, "inverse_dynamics", q, zeros, zeros)
        return np.asarray(at_rest - ask(tree, "inverse_dynamics", q, zeros, zeros, wrenches=list(wrenches)))


def _braked(state: LoopState, unit: Array, brakes: Array | None) -> LoopState:
    """Returns a state with a row for each braked joint: J v = -bias then also enforces its motion. brakes: (nv,), NaN
    for joints without a brake.
    """
    if brakes is None:
        return state
    entries = np.flatnonzero(~np.isnan(brakes))
    rows = np.broadcast_to((np.eye(len(unit)) / unit)[entries], (*state.rows.shape[:-2], len(entries), len(unit)))
    bias = np.broadcast_to(-(brakes / unit)[entries], (*state.bias.shape[:-1], len(entries)))
    return state._replace(
        rows=np.concatenate([state.rows, rows], axis=-2), bias=np.concatenate([state.bias, bias], axis=-1)
    )
