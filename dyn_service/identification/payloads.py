"""The payload of a link, from a recording of seconds of motion, from poses at rest, or while the robot moves.

Momenta need no accelerations. With the ten numbers theta of a body on the link (m, m c, inertia about the link's
origin), and beta of friction that the model lacks,

    d/dt (p + P theta) = r + E theta - B beta,    p = M v,    r = tau - p(q, v) + C^T v - g         Hamilton (P.3b)
    P = dp/dtheta,    E = (d/dt P at a = 0) - Y(q, v, 0),    Y = P-dot - E of Newton-Euler (18a)

since Y contains C v + g, and P-dot at a = 0 contains C v + C^T v. Each equation is multiplied by a window
phi = sin^2, which vanishes at both ends, and integrated by parts:

    [int (phi E + phi' P) dt] theta - [int phi B dt] beta = -int (phi r + phi' p) dt

so that noise of the velocities is averaged over the window and not differentiated. At rest this is the weight's
equation: only the mass and m c are in it, and not all of these in one pose. Windows overlap by half.

The estimate is the physical body (m >= 0, second moments S = int (x - c)(x - c)^T dm = L L^T) of least

    |R theta - z|^2 + (m / 100 kg)^2 + |c / s|^2 + |S / (m (s / 3)^2)|^2,    s = `extent_m`

R, z are the triangle and the right side of the weighted least squares. What the data know, they decide; for all else
the stated prior is a point mass at the link's origin. Source of the windows: Shinbrot, 'On the analysis of linear and
nonlinear systems', Trans. ASME 79 (1957); of theta: Atkeson, An, Hollerbach, 1986.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dyn_service.api.arrays import found as described
from dyn_service.api.arrays import numbers
from dyn_service.api.queries import Array, Overlay, Payload, RobotQueries
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.identification.inertias import inertial_parameters
from dyn_service.identification.recordings import REST_SPEED, Recording, check_positions, continuous_positions
from dyn_service.identification.regression import inflation
from dyn_service.identification.signals import filter_motion
from dyn_service.model.parameters import COLUMNS, ROWS, symmetric

_LARGEST_MASS = 100.0
"""kg, standard deviation of the mass before any data: larger than what robots carry, so that it decides nothing that
the data know."""

_UNKNOWN = 0.5
"""Share of the prior's standard deviation above which the estimate calls a quantity unknown."""

_ROUNDING = 1e-7
"""Least noise as a share of the effort limit: efforts have the rounding of single precision. It bounds the weights of
exact data."""

_LEAST_NOISE = 1e-3
"""Least noise of the recursive estimate as a share of the effort limit: the noise of a robot at rest is less than
that of the next motion, which must not surprise."""

_SURPRISE = 25.0
"""Mean ratio of squared innovations to their variance, five standard deviations, above which a window is not of this
payload: a push, or another payload."""

_PERSISTENT = 5
"""Such windows in a row, six half windows of time, that mean another payload: a push of 0.1 s is in three."""

_DERIVATIVE_S = 1e-5
"""Step of the central difference of P along the motion: truncation (1e-10) and rounding (1e-11) are about equal."""


@dataclass(frozen=True, eq=False)
class PayloadEstimate:
    """An estimated payload: a physical body, or a point mass.

    link: the link that carries it. mass: kg. com: (3,) m, in the link's frame. inertia: (3, 3) kg m^2, about the centre
    of mass in the link's axes. covariance: (10, 10) of the mass, the com and the entries xx, xy, xz, yy, yz, zz of the
    inertia, the prior included. unknown: sentences about what the data do not determine, where the prior decides.
    noise: (nv,) N m | N, standard deviation of the efforts that remain in a window. windows: their number, or of poses.
    notes: what was changed in the recording.
    """

    link: str
    mass: float
    com: Array
    inertia: Array
    covariance: Array
    unknown: tuple[str, ...]
    noise: Array
    windows: int
    notes: tuple[str, ...] = ()

    @property
    def standard_errors(self) -> Array:
        """(10,) of the mass, the com and the inertia, in the order of `covariance`."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def payload(self) -> Payload:
        """The body as the payload of an overlay."""
        return Payload(self.link, self.mass, self.com, self.inertia)

    @property
    def overlay(self) -> Overlay:
        """The overlay that gives the robot this payload."""
        return Overlay(payloads=self.payload)

    def __str__(self) -> str:
        errors = self.standard_errors
        lines = [
            f"payload of {self.link}, from {self.windows} windows or poses",
            _line("mass", self.mass, errors[0], "kg"),
        ]
        lines += [_line(f"com {x}", c, e, "m") for x, c, e in zip("xyz", self.com, errors[1:4], strict=True)]
        names = ("Ixx", "Ixy", "Ixz", "Iyy", "Iyz", "Izz")
        entries = self.inertia[ROWS, COLUMNS]
        lines += [_line(name, x, e, "kg m^2") for name, x, e in zip(names, entries, errors[4:], strict=True)]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, *(f"unknown: {sentence}" for sentence in self.unknown)])


def _line(name: str, value: float, error: float, unit: str) -> str:
    value = round(value, 5) + 0.0  # no -0.00000
    return f"  {name:<6}{value:12.5f} +- {error:.5f} {unit}"


class _Equations:
    """The equations of a payload on one link: columns of beta, then those of theta."""

    def __init__(self, robot: RobotQueries, link: str, friction: bool) -> None:
        if robot.closed_motion is not None:
            raise FailedPreconditionError(
                f"robot '{robot.name}' has closed loops: their joints share the payload's weight in a way that the "
                "momenta of the tree do not show; identify on the robot with loops='cut' and measured efforts"
            )
        names = robot.dynamic_parameters().parameters
        first = f"{link}.m"
        if first not in names:
            links = [name.removesuffix(".m") for name in names if name.endswith(".m")]
            raise NotFoundError(f"robot '{robot.name}' has no link '{link}': its links are {', '.join(links)}")
        begin = names.index(first)
        self.robot, self.link = robot, link
        self.theta = slice(begin, begin + 10)
        at_rest = np.zeros(robot.nv)
        Y = robot.inverse_dynamics_regressor(robot.configuration.neutral, at_rest, at_rest + robot.free).regressor
        if not Y[:, self.theta].any():
            raise InvalidArgumentError(f"link '{link}' never moves: a payload on it has no effect", path="link")
        self.beta = [k for k, name in enumerate(names) if friction and name.endswith((".damping", ".friction"))]
        efforts, speeds = robot.limits.efforts, robot.limits.speeds
        self.scale = np.where(np.isfinite(efforts) & (efforts > 0.0), efforts, 100.0)
        fastest = np.where(np.isfinite(speeds), speeds, 1.0)
        largest = float(self.scale.max())
        # Friction is at most about the largest effort, viscous friction at the slowest joint's largest speed.
        self.prior = np.array([largest / (fastest.min() if names[k].endswith(".damping") else 1.0) for k in self.beta])

    @property
    def size(self) -> int:
        return len(self.beta) + 10

    def at_rest(self, q: Array, tau: Array) -> tuple[Array, Array]:
        """Returns the matrix (n, nv, size) and the right side (n, nv) of poses q (n, nq) at rest under tau (n, nv)."""
        zero = np.zeros_like(tau)
        Y = self.robot.inverse_dynamics_regressor(q, zero, zero).regressor[..., self.theta]
        matrix = np.concatenate([np.zeros((*tau.shape, len(self.beta))), Y], axis=-1)
        return matrix, tau - self.robot.inverse_dynamics(q, zero, zero)

    def window(self, t: Array, q: Array, v: Array, tau: Array, mean_efforts: bool) -> tuple[Array, Array]:
        """Returns the matrix (nv, size) and the right side (nv,) of one window, divided by the integral of phi.

        mean_efforts: whether tau[k] is the mean effort since t[k - 1]; otherwise it is the effort at t[k].
        """
        robot, dt = self.robot, np.diff(t)
        phi = np.sin(np.pi * (t - t[0]) / (t[-1] - t[0])) ** 2
        phi[-1] = 0.0
        weights = np.zeros(len(t))
        weights[:-1] += dt / 2
        weights[1:] += dt / 2
        # By differences of phi, so that the integral of phi' is 0 on any grid.
        rises = np.zeros(len(t))
        rises[:-1] += np.diff(phi) / 2
        rises[1:] += np.diff(phi) / 2
        Y = robot.inverse_dynamics_regressor(q, v, np.zeros_like(v)).regressor
        momentum = robot.momentum(q, v)
        rate = robot.momentum_rate(q, momentum, np.zeros_like(v))
        impulse = (dt * (phi[1:] + phi[:-1]) / 2) @ tau[1:] if mean_efforts else (weights * phi) @ tau
        P, E = self._payload_columns(q, v, Y[..., self.theta])
        theta = np.tensordot(weights * phi, E, 1) + np.tensordot(rises, P, 1)
        beta = -np.tensordot(weights * phi, Y[..., self.beta], 1)
        right = -(impulse + (weights * phi) @ rate + rises @ momentum)
        return np.concatenate([beta, theta], axis=-1) / (weights @ phi), right / (weights @ phi)

    def _payload_columns(self, q: Array, v: Array, Y: Array) -> tuple[Array, Array]:
        """Returns P and E of the module, (n, nv, 10) each."""
        robot, step = self.robot, _DERIVATIVE_S
        ends = np.stack([q, robot.integrate(q, v, step), robot.integrate(q, v, -step)])
        P, P_next, P_previous = robot.momentum_regressor(ends, np.broadcast_to(v, (3, *v.shape))).regressor[
            ..., self.theta
        ]
        return P, (P_next - P_previous) / (2.0 * step) - Y


def identify_payload(
    robot: RobotQueries,
    recording: Mapping[str, Any] | Recording,
    link: str,
    *,
    rest_positions: Mapping[str, float] | None = None,
    friction: bool = True,
    window_s: float = 0.2,
    extent_m: float = 0.3,
) -> PayloadEstimate:
    """Estimates the payload of a link that the robot's model does not contain.

    Args:
        robot: The robot without the payload.
        recording: t (n,) s, q (n, nq) rad | m, v (n, nv) rad/s | m/s, tau (n, nv) N m | N at the same times, as
            `dyn_service.graph.bags.recording` returns. A column of tau may be NaN: its effort was not measured.
            Without t: poses at rest, in any order; v, if it is given, must be nearly 0. Without v, or a `Recording`
            without velocities: a motion, whose positions are filtered first.
        link: Its name.
        rest_positions: Positions of joints that are not in a `Recording` because they stood still.
        friction: Whether to estimate, per joint, Coulomb and viscous friction that the model lacks as well. Poses at
            rest do not show it: approach each pose from both sides.
        window_s: Length of a window, s; motion faster than 2 / window_s Hz has little weight.
        extent_m: Size of the payload for the prior of the module, m.

    Raises:
        InvalidArgumentError: The recording lacks an array, shapes differ, a number is not finite, times do not
            increase, it is shorter than two windows, or its numbers are no motion of the robot
            (`continuous_positions`), or no poses at rest.
        NotFoundError: The robot has no such link.
        FailedPreconditionError: The robot has closed loops.
    """
    equations = _Equations(robot, link, friction)
    _positive(window_s=window_s, extent_m=extent_m)
    notes: tuple[str, ...] = ()
    if isinstance(recording, Mapping) and "t" in recording and "v" not in recording:
        recording = _recording_of(robot, recording)
    if isinstance(recording, Mapping):
        arrays = _checked(
            robot, recording, [name for name in ("t", "q", "v", "tau") if name in {"q", "tau", *recording}]
        )
        moving = "t" in recording
    else:
        columns, notes = _columns_of(robot, recording, rest_positions)
        arrays, moving = _checked(robot, columns, ("t", "q", "v", "tau")), True
    if moving:
        arrays["q"], unwrapping = continuous_positions(robot, arrays["t"], arrays["q"])
        notes += unwrapping
    else:
        check_positions(robot, arrays["q"])
        _check_rest(robot, arrays.get("v"))
    if not moving:
        matrix, right = equations.at_rest(arrays["q"], arrays["tau"])
    else:
        times = recording.t if isinstance(recording, Recording) else arrays["t"]
        parts = [slice(a, b) for a, b in _windows(arrays["t"], window_s, times)]
        t, q, v, tau = (arrays[name] for name in ("t", "q", "v", "tau"))
        pairs = [equations.window(t[part], q[part], v[part], tau[part], mean_efforts=False) for part in parts]
        matrix, right = np.stack([A for A, _ in pairs]), np.stack([b for _, b in pairs])
    factor, noise = _weighted(matrix, right, equations, arrays["sensed"])
    return replace(_physical(equations, factor, noise, extent_m, len(right)), notes=notes)


class PayloadEstimator:
    """Estimates the payload of a link recursively while the robot moves.

    A window's equations enter a triangle R, so that no covariance is inverted or subtracted. Forgetting acts only on
    what a window measures: with B = A R^-1 = U s V^T, rows V^T [R z] are scaled by exp(-dt / (2 forgetting_s)), if
    s^2 is above a hundredth of what this forgetting removes. What the motion no longer shows is kept, so that the
    covariance of a robot at rest does not grow. A window that contradicts the estimate by five standard deviations is
    left out, as of a push; after five in a row the payload is another one, and the estimate begins again, with the
    friction that it knows. `reset` does the same, after a grasp or a release.

    windows: number since the beginning of the estimate. changes: number of other payloads.

    Source of directional forgetting: Kulhavy, 'Restricted exponential forgetting in real-time identification',
    Automatica 23 (1987).

    Args:
        robot: The robot without the payload, in this process or on a server.
        link: The link that carries it.
        forgetting_s: Time constant of forgetting, s.
        friction, window_s, extent_m: As of `identify_payload`.

    Raises:
        InvalidArgumentError: A time or the extent is not positive.
        NotFoundError: The robot has no such link.
        FailedPreconditionError: The robot has closed loops.
    """

    def __init__(
        self,
        robot: RobotQueries,
        link: str,
        *,
        forgetting_s: float = 20.0,
        friction: bool = True,
        window_s: float = 0.2,
        extent_m: float = 0.3,
    ) -> None:
        _positive(forgetting_s=forgetting_s, window_s=window_s, extent_m=extent_m)
        self._equations = _Equations(robot, link, friction)
        self.forgetting_s, self.window_s, self.extent_m = forgetting_s, window_s, extent_m
        self._factor, self._variance = _prior_rows(self._equations), (0.01 * self._equations.scale) ** 2
        self.changes = self._pauses = 0
        self.reset()
        # Once at rest, so that no window waits for a compiler and no estimate for a library.
        at_rest = np.zeros((3, robot.nv))
        rest = np.tile(robot.configuration.neutral, (3, 1))
        self._equations.window(np.arange(3.0), rest, at_rest, at_rest, mean_efforts=True)
        _ = self.estimate

    def reset(self) -> None:
        """Begins without knowledge of the payload, after a grasp or a release; keeps what is known of friction."""
        friction = len(self._equations.beta)
        order = [*range(friction, friction + 10), *range(friction), friction + 10]
        # With theta's columns first, the last rows are of friction alone.
        of_friction = _triangle(self._factor[:, order])[10:, 10:]
        self._factor = _prior_rows(self._equations)
        self._factor[:friction, :friction], self._factor[:friction, -1] = of_friction[:, :-1], of_friction[:, -1]
        self._surprises, self.windows = 0, 0
        self.interrupt()

    def interrupt(self) -> None:
        """Begins a new window with the next update: samples between it and the last one are missing."""
        self._samples: list[tuple[float, Array, Array, Array]] = []

    def update(self, q: Array, v: Array, tau: Array, dt: float) -> bool:
        """Takes a state, and returns whether it completed a window, in which case the estimate has changed.

        The last state of a window takes the time of its queries, some ms; all others take a few us. A state later than
        a seventh of a window after the previous one begins a new window.

        Args:
            q: (nq,) rad | m.
            v: (nv,) rad/s | m/s.
            tau: (nv,) N m | N, mean effort since the previous update, as `RobotState.effort`.
            dt: s since the previous update, more than 0.

        Raises:
            InvalidArgumentError: dt is not positive, or 8 times in a row so long that a window has fewer than 8 states;
                or a shape is wrong.
        """
        _positive(dt=dt)
        robot = self._equations.robot
        for name, value, count in (("q", q, robot.nq), ("v", v, robot.nv), ("tau", tau, robot.nv)):
            if np.shape(value) != (count,):
                text = f"{name} must have the shape ({count},), found {np.shape(value)}"
                raise InvalidArgumentError(text, path=name)
        self._pauses = self._pauses + 1 if dt > (1.0 + 1e-9) * self.window_s / 7.0 else 0
        if self._pauses == 8:
            raise InvalidArgumentError(
                f"window_s must be at least 8 updates of {dt:g} s, found {self.window_s:g}", path="window_s"
            )
        if self._pauses:
            self.interrupt()
        begin = self._samples[-1][0] if self._samples else 0.0
        self._samples.append((begin + dt, np.array(q), np.array(v), np.array(tau)))
        if len(self._samples) < 8 or begin + dt - self._samples[0][0] < self.window_s - 0.5 * dt:
            return False
        columns = zip(*self._samples, strict=True)
        t, q, v, tau = (np.array(column, dtype=np.float64) for column in columns)
        if all(np.isfinite(array).all() for array in (q, v, tau)):
            self._take(*self._equations.window(t, q, v, tau, mean_efforts=True), float(t[-1] - t[0]) / 2.0)
        half = int(np.searchsorted(t, (t[0] + t[-1]) / 2.0))
        self._samples = self._samples[half:]
        return True

    @property
    def estimate(self) -> PayloadEstimate:
        """The estimate, some ms of computation."""
        return _physical(self._equations, self._factor, np.sqrt(self._variance), self.extent_m, self.windows)

    def _take(self, matrix: Array, right: Array, dt: float) -> None:
        """Takes the equations of a window, dt s after the previous one."""
        from scipy.linalg import solve_triangular

        noise = np.sqrt(self._variance)
        rows = _rows(matrix, right, noise)
        R, z = self._factor[:, :-1], self._factor[:, -1]
        B = solve_triangular(R, rows[:, :-1].T, trans="T").T
        innovation = rows[:, -1] - B @ z
        # The innovation's variance is that of the noise times 1 + |B|^2, so that 1 / `expected` of it is noise: a first
        # window, which the unknowns explain, changes the noise by nothing.
        expected = 1.0 + (B**2).sum(axis=1)
        ratio = innovation**2 / expected
        if ratio.mean() > _SURPRISE:
            self._surprises += 1
            if self._surprises == _PERSISTENT:
                self.reset()
                self.changes += 1
            return
        self._surprises = 0
        removed = -np.expm1(-dt / self.forgetting_s)
        _, s, V = np.linalg.svd(B, full_matrices=False)
        share = s**2 / (s**2 + 0.01 * removed)
        retained_factor = self._factor - V.T @ ((1.0 - np.sqrt(1.0 - removed * share))[:, None] * (V @ self._factor))
        self._factor = _triangle(np.vstack([retained_factor, rows]))
        gain = max(removed, 1.0 / (self.windows + 2.0)) / expected
        self._variance *= 1.0 + gain * (ratio - 1.0)
        self._variance = np.maximum(self._variance, (_LEAST_NOISE * self._equations.scale) ** 2)
        self.windows += 1


def _checked(robot: RobotQueries, recording: Mapping[str, Any], names: Sequence[str]) -> dict[str, Array]:
    widths = {"t": (), "q": (robot.nq,), "v": (robot.nv,), "tau": (robot.nv,)}
    arrays: dict[str, Array] = {}
    sensed: Any = np.ones(robot.nv, dtype=bool)
    for name in names:
        if name not in recording:
            raise InvalidArgumentError(
                f"the recording has no {name}: it needs {', '.join(names)}", path=f"recording.{name}"
            )
        array = numbers(recording[name])
        if array is None:
            text = f"recording: {name} must be real numbers, found {described(recording[name])}"
            raise InvalidArgumentError(text, path=f"recording.{name}")
        if name == "tau" and array.ndim == 2:
            sensed = np.asarray(~np.isnan(array).all(axis=0))
            # Rows of these joints get no weight, so that any number does.
            array = np.where(sensed, array, 0.0)
        rows = len(arrays[names[0]]) if arrays else (array.shape or (0,))[0]
        if array.shape != (rows, *widths[name]) or not rows or not np.isfinite(array).all():
            expected = f"({rows}, {', '.join(map(str, widths[name]))})" if widths[name] else f"({rows},)"
            raise InvalidArgumentError(
                f"recording: {name} must be finite numbers of shape {expected}, found shape {array.shape}"
                f"{'' if np.isfinite(array).all() else ' with numbers that are not finite'}",
                path=f"recording.{name}",
            )
        arrays[name] = array
    arrays["sensed"] = sensed
    if "t" in arrays and not (np.diff(arrays["t"]) > 0.0).all():
        raise InvalidArgumentError("recording: t must increase", path="recording.t")
    return arrays


def _recording_of(robot: RobotQueries, recording: Mapping[str, Any]) -> Recording:
    """Returns arrays without velocities as a recording, whose positions `filter_motion` differentiates."""
    names = robot.configuration.velocity_names
    if not robot.configuration.flat or robot.nq != len(names):
        text = f"the recording of robot '{robot.name}', whose positions are not all numbers, must have v with t; "
        raise InvalidArgumentError(f"{text}leave out t if its rows are poses at rest", path="recording.v")
    arrays = _checked(robot, recording, ("t", "q", "tau"))
    effort = np.where(arrays["sensed"], arrays["tau"], np.nan)
    return Recording(arrays["t"], arrays["q"], effort, names)


def _columns_of(
    robot: RobotQueries, recording: Recording, rest_positions: Mapping[str, float] | None
) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Returns the arrays of a motion, and the notes of its recording."""
    whole = recording.motion_of(robot, rest_positions)
    if whole.v is not None:
        return {"t": whole.t, "q": whole.q, "v": whole.v, "tau": whole.effort}, whole.notes
    motion = filter_motion(whole)
    sensed = ~np.isnan(whole.effort).all(axis=0)
    rows = motion.usable[:, sensed].all(axis=1)
    effort = np.where(sensed, motion.effort, np.nan)[rows]
    return {"t": motion.t[rows], "q": motion.q[rows], "v": motion.v[rows], "tau": effort}, whole.notes


def _check_rest(robot: RobotQueries, v: Array | None) -> None:
    if v is None or not (moving := np.argwhere(np.abs(v) > REST_SPEED)).size:
        return
    row, index = moving[0]
    text = f"row {row} is no pose at rest: '{robot.configuration.velocity_names[index]}' has the velocity "
    text += f"{v[row, index]:.3g}, expected at most {REST_SPEED:g} rad/s or m/s; give t of a motion"
    raise InvalidArgumentError(f"recording: {text}", path="recording.v")


def _positive(**settings: float) -> None:
    for name, value in settings.items():
        if not 0.0 < value < np.inf:
            raise InvalidArgumentError(f"{name} must be positive and finite, found {value:g}", path=name)


def _windows(t: Array, window_s: float, times: Array) -> list[tuple[int, int]]:
    """Returns the rows (begin, end) of windows that overlap by half, without those that a pause interrupts.

    times: of the recording before the filter leaves out rows, for the message.
    """
    begins = np.arange(t[0], t[-1] - window_s + 1e-9, window_s / 2)
    pairs = [(int(np.searchsorted(t, s - 1e-9)), int(np.searchsorted(t, s + window_s + 1e-9))) for s in begins]
    whole = [(a, b) for a, b in pairs if b - a >= 8 and np.diff(t[a:b]).max() <= window_s / 7.0]
    if len(whole) < 2:
        raise InvalidArgumentError(
            f"the recording has {len(times)} rows in {times[-1] - times[0]:g} s: it must have two windows of "
            f"{window_s:g} s with 8 rows each, without pauses; of poses at rest, leave out t, or use --poses",
            path="recording.t",
        )
    return whole


def _weighted(matrix: Array, right: Array, equations: _Equations, sensed: Array) -> tuple[Array, Array]:
    """Returns [R z] (size, size + 1) of the equations, each joint weighted by its noise, and the noise (nv,).

    The noise is that of the residuals, in four rounds, times the root of their `inflation` by correlation in time.
    sensed: (nv,) the other joints have infinite noise.
    """
    noise, prior = np.where(sensed, 0.01 * equations.scale, np.inf), _prior_rows(equations)
    # The share of the residuals that the unknowns leave; few poses leave little, and then the first noise counts.
    rows = len(right) * np.count_nonzero(sensed)
    left = 1.0 - np.linalg.matrix_rank(matrix[:, sensed].reshape(-1, equations.size)) / max(rows, 1)
    if left < 0.1:
        return _triangle(np.vstack([prior, _rows(matrix, right, noise)])), noise
    floor = _ROUNDING * equations.scale
    for _ in range(4):
        factor = _triangle(np.vstack([prior, _rows(matrix, right, noise)]))
        solution = np.linalg.lstsq(factor[:, :-1], factor[:, -1], rcond=None)[0]
        residual = right - matrix @ solution
        squares = (residual**2)[:, sensed].sum(axis=0) / left
        pooled = (squares / equations.scale[sensed] ** 2).sum() / rows * equations.scale[sensed] ** 2
        # With the weight of ten windows the noise is the same share of every joint's limit: without it, in few windows,
        # the weight of the joint that fits best by chance grows without bound.
        noise[sensed] = np.sqrt((squares + 10.0 * pooled) / (len(right) + 10.0))
        noise = np.maximum(noise, floor)
    noise = noise * np.sqrt(inflation(residual, np.broadcast_to(sensed, residual.shape)))
    return _triangle(np.vstack([prior, _rows(matrix, right, noise)])), noise


def _prior_rows(equations: _Equations) -> Array:
    """Rows [.. 0] (size, size + 1) of the prior of friction, and of theta so wide that only the rank counts."""
    widths = np.concatenate([equations.prior, [_LARGEST_MASS] * 10])
    return np.asarray(np.eye(equations.size, equations.size + 1) / widths[:, None])


def _rows(matrix: Array, right: Array, noise: Array) -> Array:
    """Returns rows [A b] of weight 1."""
    augmented = np.concatenate([matrix, right[..., None]], axis=-1) / noise[:, None]
    return np.asarray(augmented.reshape(-1, matrix.shape[-1] + 1))


def _triangle(rows: Array) -> Array:
    """Returns [R z] of least squares with these rows [A b], (size, size + 1)."""
    size = rows.shape[1] - 1
    padded = np.vstack([rows, np.zeros((max(0, size - len(rows)), size + 1))])
    return np.asarray(np.linalg.qr(padded, mode="r")[:size])


def _physical(equations: _Equations, factor: Array, noise: Array, extent_m: float, windows: int) -> PayloadEstimate:
    """Returns the physical body of the module from [R z], whose last columns are theta."""
    from scipy.optimize import least_squares

    friction = len(equations.beta)
    R, z = factor[friction:, friction:-1], factor[friction:, -1]

    def cost(x: Array, widths: Array) -> Array:
        y = _body(x)[0]
        return np.concatenate([R @ _theta(y)[0] - z, y / widths])

    def slope(x: Array, widths: Array) -> Array:
        y, dy_dx = _body(x)
        return np.vstack([R @ _theta(y)[1] @ dy_dx, dy_dx / widths[:, None]])

    mass = max(float(np.linalg.lstsq(R, z, rcond=1e-9)[0][0]), 0.01)
    x = np.sqrt(mass) * np.array([1.0, 0.0, 0.0, 0.0, *extent_m / 3.0 * np.eye(3)[ROWS, COLUMNS]])
    bounds = np.array([1e-3, *[-np.inf] * 9]), np.full(10, np.inf)
    # With little of the prior first: the data alone are convex in the products of these variables, the prior is not.
    for width in (1e3, 1.0):
        mass = max(x[0] ** 2, 1e-3)
        sizes = np.array([_LARGEST_MASS, *[extent_m] * 3, *[mass * (extent_m / 3.0) ** 2] * 6])
        steps = np.sqrt(mass) * np.array([1.0, *[extent_m] * 3, *[extent_m / 3.0] * 6])
        stops = {"xtol": 1e-10, "ftol": 1e-10, "gtol": None, "max_nfev": 200}
        x = least_squares(cost, x, slope, bounds, x_scale=steps, args=(width * sizes,), **stops).x
    y = _body(x)[0]
    slopes = _theta(y)[1]
    J = R @ slopes
    covariance: Array = np.asarray(np.linalg.inv(J.T @ J + np.diag(sizes**-2.0)), dtype=np.float64)
    # The inertia about the centre of mass follows from S as the one about the origin does.
    inertia_of = np.eye(10)
    inertia_of[4:, 4:] = slopes[4:, 4:]
    return PayloadEstimate(
        equations.link,
        float(y[0]),
        y[1:4],
        symmetric(slopes[4:, 4:] @ y[4:]),
        inertia_of @ covariance @ inertia_of.T,
        _unknown(equations.link, covariance, sizes, float(y[0])),
        noise,
        windows,
    )


def _body(x: Array) -> tuple[Array, Array]:
    """Returns y = (m, c, S) and dy/dx (10, 10) of x = (d, b, L): m = d^2, m c = b d, S = L L^T.

    [[L, b], [0, d]] times its transpose is the pseudo-inertia, the second moments of (r, 1).
    """
    d, b, L = x[0], x[1:4], np.zeros((3, 3))
    L[COLUMNS, ROWS] = x[4:]
    derivative = np.zeros((10, 10))
    derivative[0, 0], derivative[1:4, 0], derivative[1:4, 1:4] = 2.0 * d, -b / d**2, np.eye(3) / d
    for k, (i, j) in enumerate(zip(COLUMNS, ROWS, strict=True)):
        dL = np.zeros((3, 3))
        dL[i, j] = 1.0
        derivative[4:, 4 + k] = (dL @ L.T + L @ dL.T)[ROWS, COLUMNS]
    return np.concatenate([[d**2], b / d, (L @ L.T)[ROWS, COLUMNS]]), derivative


def _theta(y: Array) -> tuple[Array, Array]:
    """Returns theta (10,) of mass, com and central second moments y = (m, c, S), and dtheta/dy (10, 10)."""
    m, r, unit = y[0], np.append(y[1:4], 1.0), np.eye(4)
    P, slopes = m * np.outer(r, r), np.zeros((10, 4, 4))
    P[:3, :3] += symmetric(y[4:])
    slopes[0] = np.outer(r, r)
    slopes[1:4] = [m * (np.outer(axis, r) + np.outer(r, axis)) for axis in unit[:3]]
    slopes[4:, :3, :3] = symmetric(np.eye(6))
    # Linear in the pseudo-inertia, so that its derivatives go the same way.
    return inertial_parameters(P), inertial_parameters(slopes).T


def _unknown(link: str, covariance: Array, sizes: Array, mass: float) -> tuple[str, ...]:
    """Returns sentences about the quantities of which the data know less than half of the prior's range."""
    sentences = []
    if covariance[0, 0] ** 0.5 > _UNKNOWN * max(mass, 1e-3):
        sentences.append(f"the mass: {mass:.3g} kg is within two standard errors of none")
    values, directions = np.linalg.eigh(covariance[1:4, 1:4])  # of a positive definite matrix, except for rounding
    for value, direction in zip(values, directions.T, strict=True):
        if value > (_UNKNOWN * sizes[1]) ** 2:
            sign = np.sign(direction[np.argmax(np.abs(direction))])
            axis = ", ".join(f"{x:.2f}" for x in sign * direction + 0.0)
            sentences.append(f"the centre of mass along ({axis}) in the axes of {link}: tilt the link to other poses")
    values, directions = np.linalg.eigh(covariance[4:, 4:])
    count = int((values > (_UNKNOWN * sizes[4]) ** 2).sum())
    if count:
        sentences.append(
            f"{count} of 6 second moments about the centre of mass, taken near those of a point mass: turn the link "
            "about other axes, faster"
        )
    return tuple(sentences)
