"""Columns of the identification model: base inertial parameters, and friction of each joint.

    tau = Y_b(q, v, a) theta_b + sum over terms of a joint of x(v)

Base parameters are combinations of the inertial parameters of links and the armatures of joints; an armature whose
column depends on those before it is part of another base parameter (`dyn_service.formulations.base_parameters`).
Gravity is the robot's. Stiffness is not identified: springs of the robot's file count as known.

    viscous      x = d v
    coulomb      x = f tanh(v / w)
    offset       x = b, also what differs between the Coulomb frictions of both directions
    asymmetric   x = c v tanh(v / w), half the difference of the viscous frictions of both directions
    stribeck     x = s tanh(v / w) exp(-(v / v_s)^2), more friction at slow speeds

Three forms have the same unknowns. `effort` needs accelerations. `momentum` and `energy` do not:

    filtered tau = d/dt (filtered Y_p) theta + filtered (Y(q, v, 0) - (dY_p/dq v)) theta       p = M v = Y_p theta
    filtered tau . v = d/dt (filtered (y_T + y_V)) theta + filtered power of friction

because M a = d/dt (M v) - (dM/dt) v. The second form has one row for all joints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.formulations.identifiability import BaseParameters, base_parameters
from dyn_service.identification.signals import Motion, at_rate, smooth_rows
from dyn_service.model.parameters import INERTIAL

Form = Literal["effort", "momentum", "energy"]
SpeedName = Literal["width", "stribeck_speed"]
FORMS: tuple[Form, ...] = ("effort", "momentum", "energy")

FRICTION_KINDS = ("viscous", "coulomb", "offset", "asymmetric", "stribeck")

FILE_PARAMETERS = {"viscous": "damping", "coulomb": "friction"}
"""Kinds of friction that robot files have, and their names there."""

THRESHOLD = 1e-6
"""Relative length of a column below which it counts as dependent: no recording shows a millionth of an effort."""

BLOCK = 4096
"""States of a call: bounds the memory of columns that are not used."""

ANGLE_STEP = 1e-5
"""Step of the difference dY_p/dq v, per largest speed: truncation and rounding errors are both about 1e-10."""


@dataclass(frozen=True, eq=False)
class InertialModel:
    """The base inertial parameters of a robot.

    names (nb): `link2.Iyy + link3.Iyy + 0.4 link3.m`. columns (nb): their columns in the regressor. combinations
    (nb, nt): K of theta_b = K theta, with theta and `parameters` of `dynamic_parameters`; zero in the columns of
    friction, damping and stiffness. file_values (nb,): K theta of the robot's file.
    """

    robot: RobotQueries
    names: tuple[str, ...]
    columns: tuple[int, ...]
    combinations: Array
    parameters: tuple[str, ...]
    file_values: Array

    def effort_columns(self, q: Array, v: Array, a: Array) -> Array:
        """Y_b (n, nv, nb)."""
        return self._in_blocks(lambda rows: self._regressor(q[rows], v[rows], a[rows]), len(q))

    def rows(self, motion: Motion, form: Form) -> Array:
        """Smoothed columns of a form, (m, nv, nb), or (m, 1, nb) of energy; see the module."""
        if form == "effort":
            return _smooth_columns(motion, self.effort_columns(motion.q, motion.v, motion.a))
        if form == "momentum":
            momentum = self._in_blocks(lambda rows: self._momentum(motion.q[rows], motion.v[rows]), len(motion.t))
            force = self._in_blocks(lambda rows: self._force(motion.q[rows], motion.v[rows]), len(motion.t))
            return _smooth_columns(motion, momentum, order=1) + _smooth_columns(motion, force)
        energy = self._in_blocks(lambda rows: self._energy(motion.q[rows], motion.v[rows]), len(motion.t))
        return _smooth_columns(motion, energy, order=1)

    def spring_effort(self, q: Array) -> Array:
        """Effort (n, nv) of the springs of the robot's file."""
        springs = [k for k, name in enumerate(self.parameters) if name.endswith(".stiffness")]
        stiffness = self.robot.dynamic_parameters().theta[springs]
        if not stiffness.any():
            return np.zeros((len(q), self.robot.nv))
        rest = np.zeros(self.robot.nv)
        regressor = self.robot.inverse_dynamics_regressor
        return self._in_blocks(lambda rows: regressor(q[rows], rest, rest).regressor[..., springs] @ stiffness, len(q))

    def _in_blocks(self, function: Callable[[slice], Array], count: int) -> Array:
        return np.concatenate([function(slice(k, k + BLOCK)) for k in range(0, max(count, 1), BLOCK)])

    def _regressor(self, q: Array, v: Array, a: Array) -> Array:
        return np.asarray(self.robot.inverse_dynamics_regressor(q, v, a).regressor)[..., self.columns]

    def _momentum(self, q: Array, v: Array) -> Array:
        return np.asarray(self.robot.momentum_regressor(q, v).regressor)[..., self.columns]

    def _force(self, q: Array, v: Array) -> Array:
        step = ANGLE_STEP / max(1.0, float(np.abs(v).max(initial=0.0)))
        rate = (self._momentum(q + step * v, v) - self._momentum(q - step * v, v)) / (2.0 * step)
        return self._regressor(q, v, np.zeros_like(v)) - rate

    def _energy(self, q: Array, v: Array) -> Array:
        energy = self.robot.energy_regressor(q, v)
        return (np.asarray(energy.kinetic) + np.asarray(energy.potential))[..., None, self.columns]


def inertial_model(robot: RobotQueries) -> InertialModel:
    """Returns the base parameters of inertia and armature of a robot.

    Raises:
        FailedPreconditionError: The robot has closed loops.
    """
    base: BaseParameters = base_parameters(robot, threshold=THRESHOLD)
    inertial = (*INERTIAL, "armature")
    is_inertial = np.array([name.rpartition(".")[2] in inertial for name in base.parameters])
    rows = [row for row, column in enumerate(base.columns) if is_inertial[column]]
    combinations = np.where(is_inertial, base.combinations[rows], 0.0)
    file_values = combinations @ robot.dynamic_parameters().theta
    names, columns = tuple(base.names[row] for row in rows), tuple(base.columns[row] for row in rows)
    return InertialModel(robot, names, columns, combinations, base.parameters, file_values)


@dataclass(frozen=True)
class FrictionTerm:
    """A term of the friction of a joint. index: of the joint's velocity. width: w. stribeck_speed: v_s. rad/s | m/s"""

    joint: str
    index: int
    kind: str
    width: float
    stribeck_speed: float = np.inf

    @property
    def name(self) -> str:
        """`JOINT.kind`."""
        return f"{self.joint}.{self.kind}"

    def column(self, v: Array) -> Array:
        """Returns x(v) of the joint for a coefficient of 1, (n,), from the velocities of all joints (n, nv)."""
        speed = v[..., self.index]
        sign = np.tanh(speed / self.width)
        if self.kind == "viscous":
            return np.asarray(speed)
        if self.kind == "coulomb":
            return np.asarray(sign)
        if self.kind == "offset":
            return np.ones_like(speed)
        if self.kind == "asymmetric":
            return np.asarray(speed * sign)
        return np.asarray(sign * np.exp(-((speed / self.stribeck_speed) ** 2)))

    def slope(self, v: Array, name: SpeedName) -> Array:
        """Returns the derivative of x(v) to the logarithm of w or v_s, (n,); 0 if x does not depend on it."""
        speed = v[..., self.index]
        if name == "stribeck_speed":
            return 2.0 * (speed / self.stribeck_speed) ** 2 * self.column(v) if self.kind == "stribeck" else 0.0 * speed
        if self.kind in ("viscous", "offset"):
            return 0.0 * speed
        ratio = speed / self.width
        shape = -ratio / np.cosh(np.minimum(np.abs(ratio), 300.0)) ** 2
        if self.kind == "asymmetric":
            return np.asarray(speed * shape)
        return np.asarray(shape * np.exp(-((speed / self.stribeck_speed) ** 2)) if self.kind == "stribeck" else shape)


def file_widths(robot: RobotQueries) -> Array:
    """Returns the widths w of friction (nv,), rad/s | m/s, from its column tanh(v / w) of the regressor."""
    names, speed = robot.dynamic_parameters().parameters, 1e-3
    zero = np.zeros(robot.nv)
    Y = robot.inverse_dynamics_regressor(robot.neutral(), zero + speed, zero).regressor
    columns = [names.index(f"{name}.friction") for name in robot.configuration.velocity_names]
    return np.asarray(speed / np.arctanh(np.asarray(Y)[range(robot.nv), columns]))


def friction_columns(terms: Sequence[FrictionTerm], v: Array) -> Array:
    """Columns (n, nv, terms) of friction terms at velocities (n, nv)."""
    columns = np.zeros((*v.shape, len(terms)))
    for k, term in enumerate(terms):
        columns[:, term.index, k] = term.column(v)
    return columns


def friction_rows(motion: Motion, columns: Callable[[Array], Array], form: Form) -> Array:
    """Smoothed columns of efforts (n, nv, p), functions of velocities (n, nv): (m, nv, p), or of power (m, 1, p)."""

    def power(v: Array) -> Array:
        return np.asarray(np.sum(columns(v) * v[..., None], axis=1, keepdims=True))

    return _smooth_columns(motion, at_rate(motion, power if form == "energy" else columns))


def effort_rows(motion: Motion, effort: Array, form: Form, shift_s: float = 0.0, order: int = 0) -> Array:
    """Smoothed efforts (m, nv) at t + shift_s, or their power (m, 1); order: 1 for the derivative to time."""
    if form != "energy":
        return smooth_rows(motion, effort, order, shift_s)
    # The velocity belongs to time t, the effort to t + shift_s, so the effort is moved before they are multiplied.
    shifted = np.concatenate(
        [
            [np.interp(motion.t[part] + shift_s, motion.t[part], effort[part, j]) for j in range(effort.shape[1])]
            for part in motion.parts()
        ],
        axis=1,
    ).T
    if order:
        shifted = np.concatenate([np.gradient(shifted[part], 1.0 / motion.rate_hz, axis=0) for part in motion.parts()])
    return smooth_rows(motion, np.sum(shifted * motion.v, axis=1))[:, None]


def _smooth_columns(motion: Motion, x: Array, order: int = 0) -> Array:
    """As `smooth_rows` of x (n, rows, nb), without the columns that are zero at all times, which most are."""
    nonzero = x.any(axis=0)
    smooth = smooth_rows(motion, x[:, nonzero], order)
    result = np.zeros((len(smooth), *x.shape[1:]))
    result[:, nonzero] = smooth
    return result
