"""Closed positions of a robot with loops, near arbitrary positions.

Each iteration adds a damped least-squares step within the position limits (Levenberg-Marquardt):

    step = - diag(unit) V diag(s / (s^2 + mu)) U^T e,    mu = e^T e / 2        J_c diag(unit) = U diag(s) V^T

e is the error of the loop joints. The least steps from q end near the nearest closed position; steps along the loops'
free motions, each followed by closing, then reduce the remaining difference to q in these directions. Joints at a
limit that a step would leave are held, and the others solve again.

Cost: one call of `point_motion` and a singular value decomposition for each iteration. Source: as for
`simulation/inverse_kinematics.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import Array
from dyn_service.engine.loops.joints import DEPENDENT, LoopJoints, LoopState, Tangent
from dyn_service.model.configuration import Configuration, Limits

ITERATIONS = 100
"""Largest number of steps that close the loops; few are usual."""

_MAX_STEP = 1.0
"""rad | lengths of the loop, largest entry of a step: J_c says little about positions farther away."""

_CLOSED = 1e-6
"""Error above which a start is closed again in lengths of the joints' travel."""

_STALLED, _MAX_STALLED = 1e-3, 5
"""Least decrease of the error that counts as progress, and the steps without it after which no more follow."""

_APPROACHES, _AGAIN, _NEAREST = 30, 8, 1e-8
"""Steps towards q along the free motions, steps that close the loops after each, and the length at which they end."""


@dataclass(frozen=True, eq=False)
class Assembly:
    """Finds positions in which the loops of a robot are closed.

    unit: (nv,) as in `Tangent`. fixed: (nv,) whether the joint keeps its position. far: the same in lengths of the
    joints' travel, from starts that do not close in lengths of the loops; None: the travel is no longer.
    """

    joints: LoopJoints
    configuration: Configuration
    limits: Limits
    unit: Array
    fixed: NDArray[np.bool_]
    far: Assembly | None = None

    def nearest(self, q: Array) -> tuple[Array, int]:
        """Returns the closed positions (n, nq) nearest to q (n, nq), and the iterations made."""
        target = q
        q, error, iterations = self.close(q)
        share, distance = np.ones(len(q)), self._distance(q, target)
        for _ in range(_APPROACHES):
            back = self._approach(q, target)
            remaining = (np.linalg.norm(back / self.unit, axis=-1) > _NEAREST) & (share > _STALLED)
            if not remaining.any():
                break
            closer, closer_error, count = self.close(self._moved(q, share[:, None] * back), _AGAIN)
            iterations += count
            closer_distance = self._distance(closer, target)
            # Below 1e-12 both are closed, and rounding decides which error is larger.
            closes = closer_error <= np.maximum(error, 1e-12)
            better = remaining & closes & (closer_distance < distance)
            q = np.where(better[:, None], closer, q)
            error, distance = np.where(better, (closer_error, closer_distance), (error, distance))
            share = np.where(better, np.minimum(1.0, 2.0 * share), 0.25 * share)
        return q, iterations

    def close(self, q: Array, iterations: int = ITERATIONS) -> tuple[Array, Array, int]:
        """Returns positions (n, nq) with smaller errors, the sizes (n,) of these, and the number of steps."""
        closer, size, count = self._closed(q, iterations)
        is_open = ~(size <= _CLOSED)
        if self.far is None or iterations < ITERATIONS or not is_open.any():
            return closer, size, count
        nearby, _, far_count = self.far.close(q[is_open])
        closer[is_open], size[is_open], last_count = self._closed(nearby, iterations)
        return closer, size, count + far_count + last_count

    def _closed(self, q: Array, iterations: int) -> tuple[Array, Array, int]:
        """Returns what `close` does, in lengths of the loops alone."""
        q = self._clipped(q)
        cut = np.zeros(len(q), bool)
        best, lowest, stalled, k = q, np.full(len(q), np.inf), np.zeros(len(q), int), 0
        for k in range(iterations + 1):
            state = self.joints.state(q, None)
            e = self.joints.blocked_error(state.error)
            size = np.linalg.norm(e, axis=-1)
            better = size < lowest
            best = np.where(better[:, None], q, best)
            stalled = np.where(size < (1.0 - _STALLED) * lowest, 0, np.where(cut, stalled, stalled + 1))
            lowest = np.minimum(size, lowest)
            if k == iterations or ((stalled >= _MAX_STALLED) | (lowest < 1e-15)).all():
                break
            step = self._step(q, state, e)
            cut = np.abs(step / self.unit).max(axis=-1, initial=0.0) > _MAX_STEP
            q = self._moved(q, step)
        return best, lowest, k

    def _step(self, q: Array, state: LoopState, e: Array) -> Array:
        """Returns the damped step (n, nv) that closes loops."""
        free = np.broadcast_to(~self.fixed, (len(q), len(self.unit)))
        step, smallest = np.zeros(free.shape), DEPENDENT * state.size(self.unit)[:, None]
        for _ in range(3):  # without the joints that the last step takes out of a limit, at most two times
            U, s, Vt = np.linalg.svd(state.rows * self.unit * free[:, None, :], full_matrices=False)
            large = s > smallest
            damped = np.where(large, s / np.where(large, s**2 + 0.5 * np.sum(e**2, axis=-1)[:, None], 1.0), 0.0)
            part = damped * (np.swapaxes(U, -1, -2) @ e[..., None])[..., 0]
            step = -self.unit * (np.swapaxes(Vt, -1, -2) @ part[..., None])[..., 0]
            leaving = self._leaving(q, step)
            if not leaving.any():
                break
            free = free & ~leaving
        return np.asarray(step)

    def _approach(self, q: Array, target: Array) -> Array:
        """Returns the part (n, nv) of the difference from q to the target that keeps the loops closed."""
        back = self.configuration.difference(q, target)
        free = ~self.fixed & ~self._leaving(q, back)
        tangent = Tangent.of(self.joints.state(q, None), self.unit, free=free.astype(float))
        V = tangent.V * tangent.free[..., None, :]
        part = V @ (np.swapaxes(V, -1, -2) @ (free * back / self.unit)[..., None])
        return np.asarray(self.unit * part[..., 0])

    def _moved(self, q: Array, step: Array) -> Array:
        """Returns the positions after a step (n, nv) of bounded size, within the limits."""
        largest = np.abs(step / self.unit).max(axis=-1, keepdims=True, initial=0.0)
        step = step * np.minimum(1.0, _MAX_STEP / np.maximum(largest, 1e-300))
        return self._clipped(self.configuration.integrate(q, step))

    def _distance(self, q: Array, target: Array) -> Array:
        """Returns the lengths (n,) of the differences in units of rad and lengths of the loops."""
        return np.asarray(np.linalg.norm(self.configuration.difference(q, target) / self.unit, axis=-1))

    def _entries(self) -> tuple[list[int], list[int]]:
        """Returns the entries in q and in v of the joints with one degree of freedom; others have no limits."""
        slices = zip(self.configuration.q_slices, self.configuration.v_slices, strict=True)
        pairs = [(i.start, k.start) for i, k in slices if i.stop - i.start == k.stop - k.start == 1]
        pairs = [(i, k) for i, k in pairs if not self.fixed[k]]
        return [i for i, _ in pairs], [k for _, k in pairs]

    def _leaving(self, q: Array, step: Array) -> NDArray[np.bool_]:
        """Returns which velocities (n, nv) a step takes out of a limit that their joint is at."""
        in_q, in_v = self._entries()
        leaving = np.zeros(step.shape, bool)
        at_lower, at_upper = q[:, in_q] <= self.limits.lower[in_q], q[:, in_q] >= self.limits.upper[in_q]
        leaving[:, in_v] = (at_lower & (step[:, in_v] < 0.0)) | (at_upper & (step[:, in_v] > 0.0))
        return leaving

    def _clipped(self, q: Array) -> Array:
        """Returns the positions with the joints that are not fixed within their limits."""
        in_q, _ = self._entries()
        clipped = np.array(q, dtype=np.float64)
        clipped[:, in_q] = np.clip(q[:, in_q], self.limits.lower[in_q], self.limits.upper[in_q])
        return clipped
