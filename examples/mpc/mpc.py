"""Model predictive control of an arm: torques that follow a motion within the limits, planned 100 times a second.

    minimise  sum_k |W (z_k - z_ref(t_k))|^2,    z = (q, v, tau)
    subject to  x_{k+1} = step(x_k, tau_k, dt_k),    x = (q, v),  x_0 measured,    limits of position, velocity, effort

One iteration of sequential quadratic programming per update, the real-time iteration: the steps are linearised about
the last plan, moved on by one period, by one call of `step_derivatives` for the whole horizon, whose first row is the
step from the measured state to the start of the plan. HPIPM, which CasADi brings, solves the quadratic program. The
first effort is the command. dt_k is one period at first and grows from knot to knot, so that few knots look far ahead.
Needs the extra `symbolic`.

    dyn launch examples/mpc/mpc.launch.yaml --duration 8 --report report

Source: Diehl, Bock, Schloeder, A real-time iteration scheme for nonlinear optimization in optimal feedback control,
SIAM J. Control Optim. 43 (2005). Frison, Diehl, HPIPM, IFAC World Congress (2020).
"""

import casadi as ca
import numpy as np

from dyn_service.control import Law
from dyn_service.graph import MotionParameters, controller_kind, trajectory_maker


class MpcParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the controller.

    knots, horizon_s: number of steps of a plan, and their time. position_weight, velocity_weight: of errors relative to
    the joint's range and to its velocity limit; the weight of efforts relative to their limits is 1. velocity_share:
    share of the velocity limits that a plan may use, since the plant stops at these limits.
    """

    rate_hz: float = 100.0
    knots: int = 12
    horizon_s: float = 0.4
    position_weight: float = 100.0
    velocity_weight: float = 3.0
    velocity_share: float = 0.9


class Mpc(Law):
    """The law. Positions of the robot must add: no ball joints, no floating base."""

    name = "mpc"

    def __init__(self, p, model):
        self.model, self.make = model, trajectory_maker(p, model.configuration, model.limits)
        N, n, limits = p.knots, model.configuration.nv, model.limits
        first, mean = 1.0 / p.rate_hz, p.horizon_s / p.knots
        self.dt = np.linspace(first, 2.0 * mean - first, N)[:, None]
        self.times = np.concatenate([[0.0], np.cumsum(self.dt)])
        self.period, self.n = first, n
        span, speeds, efforts = np.minimum(limits.upper - limits.lower, 2.0 * np.pi), limits.speeds, limits.efforts
        weights = [p.position_weight / span, p.velocity_weight / np.where(np.isinf(speeds), 1.0, speeds)]
        weights += [1.0 / np.where(np.isinf(efforts), 100.0, efforts)]
        self.cost = self.rows(np.tile(np.concatenate(weights) ** 2, (N + 1, 1)))
        self.upper = np.tile(np.concatenate([limits.upper, p.velocity_share * speeds, efforts]), (N + 1, 1))
        self.lower = np.tile(np.concatenate([limits.lower, -p.velocity_share * speeds, -efforts]), (N + 1, 1))
        # the equations A_k x_k + B_k tau_k - x_{k+1} = gap_k; `entries` has the place of each number in [-1, A, B]
        shape = N * 2 * n, self.cost.size
        places = np.full(shape, -1)
        for k in range(N):
            rows, x = slice(2 * n * k, 2 * n * (k + 1)), 3 * n * k
            places[rows, x : x + 2 * n] = 1 + np.arange(4 * n * n).reshape(2 * n, 2 * n) + 4 * n * n * k
            places[rows, x + 2 * n : x + 3 * n] = (
                1 + 4 * n * n * N + np.arange(2 * n * n).reshape(2 * n, n) + 2 * n * n * k
            )
            np.fill_diagonal(places[rows, x + 3 * n : x + 5 * n], 0)
        columns, rows = np.nonzero(places.T >= 0)
        self.entries = places[rows, columns]
        starts = np.searchsorted(columns, np.arange(shape[1] + 1))
        shapes = {"h": ca.Sparsity.diag(shape[1]), "a": ca.Sparsity(*shape, starts.tolist(), rows.tolist())}
        structure = {"N": N, "nx": [2 * n] * (N + 1), "nu": [n] * N + [0], "ng": [0] * (N + 1)}
        options = {"error_on_fail": False, "hpipm": {"mode": "balance"}}
        self.solver = ca.conic("mpc", "hpipm", shapes, {**structure, **options})
        # it reads and writes arrays: to make CasADi's own matrices of them would take 1 ms
        solver, (self.buffer, self.solve) = self.solver, self.solver.buffer()
        self.solver_inputs = {name: np.zeros(solver.nnz_in(name)) for name in solver.name_in()}
        self.solver_outputs = {name: np.zeros(solver.nnz_out(name)) for name in solver.name_out()}
        for k, array in enumerate(self.solver_inputs.values()):
            self.buffer.set_arg(k, memoryview(array))
        self.solver_inputs["h"][:] = self.cost
        self.at_limits, self.failures = 0, 0

    def rows(self, z):
        """Returns the variables of the program, without the efforts after the last state."""
        return z.ravel()[: -self.n]

    def reset(self, state):
        """Begins the reference at this state."""
        self.reference, self.start_s, self.plan = self.make(state.q, state.v), state.t, None

    def motion(self):
        """Returns the reference and when it began."""
        return self.reference, self.start_s

    def update(self, state, reference, dt):
        """Returns the first efforts of the plan."""
        n, model, times = self.n, self.model, self.times
        starts = state.t - 0.5 * self.period  # the state is predicted for the middle of the command's time
        ahead = self.reference.sample(starts - self.start_s + times)
        reference_knots = np.concatenate([ahead.q, ahead.v, model.inverse_dynamics(*ahead)], axis=1)
        guess = reference_knots.copy()
        if self.plan is not None:  # the last plan at the new times
            plan_times = np.minimum(times + starts - self.plan_start_s, times[-1])
            guess = np.stack([np.interp(plan_times, times, column) for column in self.plan.T], axis=1)
        measurement = state.measured
        tau = guess[0, 2 * n :] if self.plan is None else self.plan[0, 2 * n :]
        # the first step is from the measured state: the last command acts until the plan starts
        knots = np.concatenate([np.concatenate([measurement.q, measurement.v, tau])[None], guess[:-1]])
        dt = np.concatenate([[[max(starts - measurement.t, 0.0)]], self.dt])
        steps = model.step_derivatives(knots[:, :n], knots[:, n : 2 * n], knots[:, 2 * n :], dt, integrator="rk4")
        predicted, A, B = np.concatenate([steps.q, steps.v], axis=1), steps.A[1:], steps.B[1:]
        gaps = (A @ guess[:-1, : 2 * n, None] + B @ guess[:-1, 2 * n :, None])[..., 0] - predicted[1:]
        guess[0, : 2 * n] = predicted[0]
        # a state beyond a limit, after an external push, returns to it within the horizon
        relaxation = (1.0 - times / times[-1])[:, None]
        upper = self.upper + relaxation * np.maximum(guess[0] - self.upper, 0.0)
        lower = self.lower - relaxation * np.maximum(self.lower - guess[0], 0.0)
        upper[0, : 2 * n] = lower[0, : 2 * n] = guess[0, : 2 * n]
        upper[:, 2 * n :], lower[:, 2 * n :] = self.upper[:, 2 * n :], self.lower[:, 2 * n :]
        np.concatenate([[-1.0], A.ravel(), B.ravel()]).take(self.entries, out=self.solver_inputs["a"])
        self.solver_inputs["lba"][:] = self.solver_inputs["uba"][:] = gaps.ravel()
        self.solver_inputs["g"][:] = -self.cost * self.rows(reference_knots)
        self.solver_inputs["lbx"][:], self.solver_inputs["ubx"][:] = self.rows(lower), self.rows(upper)
        for k, array in enumerate(self.solver_outputs.values()):
            self.buffer.set_res(k, memoryview(array))  # a call leaves other addresses
        self.solve()
        solved = self.solver.stats(1)["success"]  # memory 1 is the buffer's
        self.failures += not solved
        z = np.append(self.solver_outputs["x"], np.zeros(n)).reshape(guess.shape) if solved else guess
        z[-1, 2 * n :] = z[-2, 2 * n :]
        self.plan, self.plan_start_s = z, starts
        room = np.minimum(z - lower, upper - z)[1:] < 1e-3 * np.minimum(self.upper - self.lower, 1e3)[1:]
        self.at_limits = int(room.sum())
        return np.clip(z[0, 2 * n :], self.lower[0, 2 * n :], self.upper[0, 2 * n :])

    def signals(self):
        """at_limits: number of entries of the plan at a limit. failures: of the solver; the last plan goes on."""
        return {"at_limits": float(self.at_limits), "failures": float(self.failures)}


NODE = controller_kind("mpc", MpcParameters, Mpc, about="Model predictive control by HPIPM, 100 times a second.")

if __name__ == "__main__":
    raise SystemExit(NODE.run())
