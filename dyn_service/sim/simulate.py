"""Motions from efforts: the equations of motion integrated over a grid of times, for a batch at once.

    q-dot = v,      v-dot = a(q, v, tau)         rk4, semi_implicit_euler, adaptive
    q-dot = dH/dp,  p-dot = -dH/dq + tau         implicit_midpoint: symplectic, so energy errors stay bounded

The fixed steps of the articulated solution run as one kernel a step; with `method="mass_matrix"`, (19a), the step's
formula runs over that kernel's accelerations. `adaptive` is SciPy's DOP853, the documents' ode45 at a higher order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from dyn_service.answers import Trajectory
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError
from dyn_service.inputs import broadcast, found, numbers
from dyn_service.queries import Array, EffortFunction, RobotQueries
from dyn_service.sim.integrators import INTEGRATORS
from dyn_service.suggestions import did_you_mean

Integrator = Literal["rk4", "semi_implicit_euler", "implicit_midpoint", "adaptive"]
Method = Literal["articulated", "mass_matrix"]
_ADAPTIVE_TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}
_ADAPTIVE_EVALUATIONS = 100_000
_MIDPOINT_TOLERANCE = 1e-14
"""Relative change of the flow at the midpoint at which its iteration ends: a few roundings."""

_MIDPOINT_ITERATIONS = 100
_CHECK_EVERY = 32
"""Steps between looks whether the state is still finite."""


def simulate(
    robot: RobotQueries,
    q0: ArrayLike,
    v0: ArrayLike,
    tau: ArrayLike | EffortFunction | None = None,
    *,
    dt: float,
    steps: int,
    method: Method = "articulated",
    integrator: Integrator = "rk4",
    gravity: ArrayLike | None = None,
    every: int = 1,
    progress: Callable[[float], None] | None = None,
) -> Trajectory:
    """The motion from the state `q0`, `v0` under the efforts `tau`, on a grid of `steps` steps of `dt`.

    Args:
        robot: In this process or remote.
        q0: (..., nq) first positions; leading axes are simulated together.
        v0: (..., nv) first velocities.
        tau: Efforts, held through each step: None (none), (nv,) constant, (..., steps, nv) samples, or a function of
            (t, q, v). `adaptive` evaluates a function at every stage instead.
        dt: s, of a step, and of the output grid for `adaptive`.
        steps: How many.
        method: Which solution of the equation of motion: (19b) or (19a).
        integrator: See the module.
        gravity: (3,) m/s^2, world axes; None is the default.
        every: Record every so many steps; the first state and these are returned.
        progress: Called now and then with the share that is done.

    Returns:
        `steps // every + 1` states.

    Raises:
        FailedPreconditionError: The state is no longer finite; names the step, the time and the joint.
        InvalidArgumentError: An argument of the wrong shape or value.
    """
    if isinstance(dt, bool) or not isinstance(dt, int | float) or not (np.isfinite(dt) and dt > 0.0):
        raise InvalidArgumentError(f"dt must be a positive time in s, found {dt!r}", path="dt")
    if not (isinstance(steps, int) and isinstance(every, int)) or steps < 1 or every < 1:
        raise InvalidArgumentError(
            f"steps and every must be whole numbers, at least 1, found {steps!r} and {every!r}", path="steps"
        )
    for name, value, known in (("integrator", integrator, get_args(Integrator)), ("method", method, get_args(Method))):
        if value not in known:
            near = did_you_mean(value, known)
            raise InvalidArgumentError(f"{name} must be one of {', '.join(known)}, found {value!r}{near}", path=name)
    states = {}
    for name, given in (("q0", q0), ("v0", v0)):
        array = numbers(given)
        if array is None or array.ndim < 1 or array.shape[-1] != robot.nv:
            raise InvalidArgumentError(f"{name} must be (..., {robot.nv}) numbers, found {found(given)}", path=name)
        states[name] = array
    q, v = states.values()
    efforts = _efforts(tau, robot.nv, steps, dt)
    first = efforts(0, 0.0, q, v)
    if first.ndim < 1 or first.shape[-1] != robot.nv:
        raise InvalidArgumentError(f"tau gives efforts of shape {first.shape}, expected (..., {robot.nv})", path="tau")
    leads = {"q0": q.shape[:-1], "v0": v.shape[:-1], "tau": first.shape[:-1]}
    lead = (*broadcast(leads), robot.nv)
    run = _Run(robot, np.broadcast_to(q, lead), np.broadcast_to(v, lead), efforts, dt, steps, every, gravity, progress)
    if integrator == "adaptive":
        return run.adaptive(tau if callable(tau) else None, method)
    if integrator == "implicit_midpoint":
        return run.implicit_midpoint()
    return run.explicit(integrator, method)


_EffortsAt = Callable[[int, float, Array, Array], Array]


def _efforts(tau: ArrayLike | EffortFunction | None, nv: int, steps: int, dt: float) -> _EffortsAt:
    """(step, t, q, v) -> the efforts that act through that step."""
    if tau is None:
        nothing = np.zeros(nv)
        return lambda k, t, q, v: nothing
    if callable(tau):
        function = tau
        return lambda k, t, q, v: np.asarray(function(t, q, v), dtype=np.float64)
    array = np.asarray(tau, dtype=np.float64)
    if array.ndim < 1 or array.shape[-1] != nv or (array.ndim > 1 and array.shape[-2] not in (1, steps)):
        raise InvalidArgumentError(
            f"tau has shape {array.shape}, expected ({nv},), (..., {steps}, {nv}) or a function of (t, q, v)",
            path="tau",
        )
    if array.ndim == 1:
        return lambda k, t, q, v: array
    return lambda k, t, q, v: array[..., min(k, array.shape[-2] - 1), :]


@dataclass
class _Run:
    robot: RobotQueries
    q: Array
    v: Array
    efforts: _EffortsAt
    dt: float
    steps: int
    every: int
    gravity: ArrayLike | None
    progress: Callable[[float], None] | None

    def _recorded(self) -> tuple[Array, Array, Array]:
        count = self.steps // self.every + 1
        shape = (*self.q.shape[:-1], count, self.robot.nv)
        times: Array = self.dt * self.every * np.arange(count, dtype=np.float64)
        return times, np.empty(shape), np.empty(shape)

    def _look(self, k: int, *state: Array, every: int = _CHECK_EVERY) -> None:
        """After step k: is the state still finite? Tells the progress."""
        if k % every and k != self.steps:
            return
        for array in state:
            if not np.isfinite(array).all():
                axes = tuple(range(array.ndim - 1))
                joint = self.robot.joint_names[int(np.argmin(np.isfinite(array).all(axis=axes)))]
                within = f"within {every} steps before step" if every > 1 else "in step"
                raise FailedPreconditionError(
                    f"the simulation diverged {within} {k} (t = {k * self.dt:g} s): the "
                    f"state of joint '{joint}' is no longer finite; try a step shorter than dt = {self.dt:g} s"
                )
        if self.progress is not None:
            self.progress(k / self.steps)

    def explicit(self, integrator: str, method: str) -> Trajectory:
        """Fixed steps of (q, v)."""
        robot, dt, gravity = self.robot, self.dt, self.gravity
        formula = INTEGRATORS[integrator]
        step_length = np.array([dt])
        q, v = self.q, self.v
        t, q_all, v_all = self._recorded()
        q_all[..., 0, :], v_all[..., 0, :] = q, v
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is told in words
            for k in range(self.steps):
                tau = self.efforts(k, k * dt, q, v)
                if method == "articulated":
                    state = robot.step(q, v, tau, step_length, gravity=gravity, integrator=integrator)  # type: ignore[arg-type]
                    q, v = state.q, state.v
                else:
                    q, v = formula(
                        lambda q, v, tau=tau: robot.forward_dynamics(q, v, tau, gravity=gravity, method=method),  # type: ignore[misc, arg-type]
                        q,
                        v,
                        dt,
                    )
                self._look(k + 1, q, v)
                if not (k + 1) % self.every:
                    q_all[..., (k + 1) // self.every, :], v_all[..., (k + 1) // self.every, :] = q, v
        return Trajectory(t, q_all, v_all)

    def implicit_midpoint(self) -> Trajectory:
        """Fixed steps of (q, p) by x' = x + dt f((x + x') / 2), solved by iteration to rounding."""
        robot, dt = self.robot, self.dt
        q, p = self.q, robot.momentum(self.q, self.v)
        t, q_all, p_all = self._recorded()
        q_all[..., 0, :], p_all[..., 0, :] = q, p
        v = self.v
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(self.steps):
                tau = self.efforts(k, k * dt, q, v)
                flow = robot.hamiltonian_flow(q, p, tau, gravity=self.gravity)
                for _ in range(_MIDPOINT_ITERATIONS):
                    q_mid, p_mid = q + dt / 2 * flow.v, p + dt / 2 * flow.p_dot
                    last, flow = flow, robot.hamiltonian_flow(q_mid, p_mid, tau, gravity=self.gravity)
                    if not _moved(last.v, flow.v) and not _moved(last.p_dot, flow.p_dot):
                        break
                else:
                    self._look(k + 1, flow.v, flow.p_dot, every=1)
                    raise FailedPreconditionError(
                        f"the midpoint of step {k + 1} (t = {k * dt:g} s) was not found in {_MIDPOINT_ITERATIONS} "
                        f"iterations; try a step shorter than dt = {dt:g} s"
                    )
                q, p, v = q + dt * flow.v, p + dt * flow.p_dot, flow.v
                self._look(k + 1, q, p)
                if not (k + 1) % self.every:
                    q_all[..., (k + 1) // self.every, :], p_all[..., (k + 1) // self.every, :] = q, p
        return Trajectory(t, q_all, robot.velocity_from_momentum(q_all, p_all), p_all)

    def adaptive(self, tau: EffortFunction | None, method: str) -> Trajectory:
        """SciPy's DOP853 with steps of its own, between the grid's times, where sampled efforts may jump.

        A batch is one system: its members share the steps that the fastest of them needs.
        """
        from scipy.integrate import solve_ivp

        robot, shape = self.robot, self.q.shape

        budget = 0

        def rates(t: float, x: Array, held: Array | None) -> Array:
            nonlocal budget
            budget -= 1
            if budget < 0:
                raise FailedPreconditionError(
                    f"the simulation needs more than {_ADAPTIVE_EVALUATIONS} evaluations between two times of the grid "
                    f"(t = {t:g} s): it diverges, or dt = {self.dt:g} s is too long for so fast a motion"
                )
            q, v = x.reshape(2, *shape)
            acting = np.asarray(tau(t, q, v)) if held is None and tau is not None else held
            a = robot.forward_dynamics(q, v, acting, gravity=self.gravity, method=method)  # type: ignore[arg-type]
            return np.concatenate([v.ravel(), np.broadcast_to(a, shape).ravel()])

        t, q_all, v_all = self._recorded()
        x = np.concatenate([self.q.ravel(), self.v.ravel()])
        q_all[..., 0, :], v_all[..., 0, :] = self.q, self.v
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(self.steps):
                budget = _ADAPTIVE_EVALUATIONS
                held = None if tau is not None else self.efforts(k, k * self.dt, *x.reshape(2, *shape))
                solution = solve_ivp(
                    rates, (k * self.dt, (k + 1) * self.dt), x, method="DOP853", args=(held,), **_ADAPTIVE_TOLERANCE
                )
                x = solution.y[:, -1] if solution.success else np.full_like(x, np.nan)
                q, v = x.reshape(2, *shape)
                self._look(k + 1, q, v, every=1)
                if not (k + 1) % self.every:
                    q_all[..., (k + 1) // self.every, :], v_all[..., (k + 1) // self.every, :] = q, v
        return Trajectory(t, q_all, v_all)


def _moved(before: Array, after: Array) -> bool:
    """Whether any state's flow still changes by more than rounding."""
    scale = np.maximum(np.abs(before).max(axis=-1, initial=0.0), 1.0)
    return not bool(np.all(np.abs(after - before).max(axis=-1, initial=0.0) <= _MIDPOINT_TOLERANCE * scale))
