"""The result of an identification: parameters with standard errors, friction, errors, what the data do not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from dyn_service.api.queries import Array, RobotQueries
from dyn_service.identification.regression import Regression
from dyn_service.identification.terms import FrictionTerm, InertialModel

TYPICAL_STATES = 300
"""Random states within limits that represent the motions of a robot."""

REACH_TIME_S = 0.2
"""The fastest motions of a robot reach its velocity limit within this time."""

UNKNOWN_SHARE = 0.05
"""A direction of parameters is unknown if its uncertainty changes efforts of typical states by more than the noise, and
by more than this share of them."""

MOST_NAMES = 3
"""Parameters named for an unknown direction."""


@dataclass(frozen=True)
class JointFriction:
    """Friction of a joint by kind (`dyn_service.identification.terms`): N m, N m s/rad, or N, N s/m.

    values, standard_errors: by kind, without terms that are not significant. width, stribeck_speed: rad/s | m/s.
    """

    joint: str
    values: Mapping[str, float]
    standard_errors: Mapping[str, float]
    width: float
    stribeck_speed: float | None = None

    def effort(self, v: Array) -> Array:
        """Returns the effort of friction at velocities of the joint, of any shape."""
        speed = np.asarray(v, dtype=np.float64)[..., None]
        total = np.zeros(np.shape(v))
        for kind, value in self.values.items():
            total += value * FrictionTerm(self.joint, 0, kind, self.width, self.stribeck_speed or np.inf).column(speed)
        return total


@dataclass(frozen=True)
class UnknownDirection:
    """A combination of base parameters that the recording does not determine.

    shares: its parameters with the largest effect on efforts, and their share. joint, effort_error: joint with the
    largest error of effort in typical motions, and the error (N m, N; rms). motion: a motion that would show it.
    """

    shares: tuple[tuple[str, float], ...]
    joint: str
    effort_error: float
    motion: str

    def __str__(self) -> str:
        names = ", ".join(f"{name} ({share:.0%})" for name, share in self.shares)
        return f"{names}: effort of {self.joint} within {self.effort_error:.3g}; {self.motion}"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Measured and computed efforts, all filtered alike.

    t (m,) s; measurement, file, fitted (m, nv): effort measured, of the robot's file, of the identification. usable
    (m, nv). is_check (m,): whether the row checks; the others were fitted, except for those in neither. columns (m, nv,
    p): of the base parameters, then of the friction terms; fitted = columns estimate + springs.
    """

    t: Array
    measurement: Array
    file: Array
    fitted: Array
    usable: NDArray[np.bool_]
    is_fit: NDArray[np.bool_]
    is_check: NDArray[np.bool_]
    columns: Array

    def rms(self, model: str, part: str) -> Array:
        """Rms error (nv,) of `model`, "file" or "fitted", in the rows of `part`, "fit" or "check"; NaN without rows."""
        rows = self.usable & (self.is_fit if part == "fit" else self.is_check)[:, None]
        error = np.where(rows, self.measurement - getattr(self, model), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.sqrt(np.sum(error**2, axis=0) / rows.sum(axis=0)))


@dataclass(frozen=True, eq=False)
class Identification:
    """An identified robot. `print` it for a table.

    model: names, definition and file values of the base parameters. friction: by joint. noise (nv,): standard deviation
    of filtered efforts, N m | N. delay_s: of the efforts after the positions. delay_error_s: its standard error, 0 if
    it was known or is not significant. comparison: efforts of the rows of fit and check. unknown: what the data do not
    show. terms: of friction. regression: of base parameters, terms, and the delay if it is estimated, together.
    notes: what was changed in the recording.
    """

    robot: RobotQueries
    model: InertialModel
    friction: Mapping[str, JointFriction]
    noise: Array
    delay_s: float
    delay_error_s: float
    cutoff_hz: float
    form: str
    comparison: Comparison
    unknown: tuple[UnknownDirection, ...]
    terms: tuple[FrictionTerm, ...]
    regression: Regression
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the base parameters."""
        return self.model.names

    @property
    def estimate(self) -> Array:
        """Base parameters (nb,)."""
        return self.regression.estimate[: len(self.names)]

    @property
    def covariance(self) -> Array:
        """Covariance (nb, nb) of the base parameters."""
        return self.regression.covariance[: len(self.names), : len(self.names)]

    @property
    def correlated_rows(self) -> int:
        """Rows over which residuals are correlated."""
        return self.regression.correlated_rows

    @property
    def standard_errors(self) -> Array:
        """Standard errors (nb,) of the base parameters."""
        return np.sqrt(np.diag(self.covariance))

    def effort(self, q: Array, v: Array, a: Array) -> Array:
        """Returns the efforts (n, nv) of the identified robot at states (n, nv)."""
        inertial = self.model.effort_columns(q, v, a) @ self.estimate
        return np.asarray(inertial + self.friction_effort(v) + self.model.spring_effort(q))

    def friction_effort(self, v: Array) -> Array:
        """Returns the friction (n, nv) at velocities (n, nv)."""
        columns = [self.friction[name].effort(v[:, k]) for k, name in enumerate(self.joints)]
        return np.column_stack(columns)

    @property
    def joints(self) -> tuple[str, ...]:
        """Joints in the order of `v`."""
        return self.robot.configuration.velocity_names

    def __str__(self) -> str:
        return "\n".join([*self._heading(), "", *self._errors(), "", *self._friction(), "", *self._parameters()])

    def _heading(self) -> list[str]:
        delay = f"{1e3 * self.delay_s:.3f} +- {1e3 * self.delay_error_s:.3f} ms"
        rows = int(self.comparison.is_fit.sum()), int(self.comparison.is_check.sum())
        return [
            f"robot '{self.robot.name}', form '{self.form}', cut-off {self.cutoff_hz:.2f} Hz, delay of efforts {delay}",
            f"{rows[0]} rows fitted, {rows[1]} rows check; residuals are correlated over {self.correlated_rows}",
            *(f"note: {note}" for note in self.notes),
        ]

    def _errors(self) -> list[str]:
        columns = [self.comparison.rms(model, part) for part in ("fit", "check") for model in ("file", "fitted")]
        width = max(len(name) for name in self.joints)
        lines = [f"{'rms error':<{width}}  fit: file  fitted  check: file  fitted   noise"]
        for name, a, b, c, d, s in zip(self.joints, *columns, self.noise, strict=True):
            lines.append(f"{name:<{width}}  {a:9.4g} {b:7.4g}  {c:11.4g} {d:7.4g} {s:7.4g}")
        return lines

    def _friction(self) -> list[str]:
        lines = ["friction"]
        for joint in self.friction.values():
            terms = [f"{kind} {x:.4g} +- {joint.standard_errors[kind]:.2g}" for kind, x in joint.values.items()]
            speeds = f"; width {joint.width:.3g}" if {"coulomb", "asymmetric", "stribeck"} & set(joint.values) else ""
            speeds += f", Stribeck speed {joint.stribeck_speed:.3g}" if joint.stribeck_speed else ""
            lines.append(f"  {joint.joint}: {', '.join(terms) or 'none is significant'}{speeds}")
        return lines

    def _parameters(self) -> list[str]:
        lines = ["      file   identified  +- standard error  base parameter"]
        for name, old, new, error in zip(
            self.names, self.model.file_values, self.estimate, self.standard_errors, strict=True
        ):
            lines.append(f"{old:10.4g} {new:12.4g}  +- {error:14.2g}  {name}")
        lines += ["", "not determined by this recording:" if self.unknown else "the recording determines all of them"]
        return [*lines, *(f"  {direction}" for direction in self.unknown)]


@dataclass(frozen=True, eq=False)
class TypicalStates:
    """Random states within the limits of a robot; q, v, a (k, nv)."""

    q: Array
    v: Array
    a: Array
    columns: Array

    @classmethod
    def of(cls, model: InertialModel, largest_v: Array, largest_a: Array) -> TypicalStates:
        """Returns states with positions within the limits, and velocities and accelerations up to these (nv,)."""
        robot = model.robot
        q = np.stack([np.asarray(robot.random_configuration(seed=k)) for k in range(TYPICAL_STATES)])
        unit = np.random.default_rng(0).uniform(-1.0, 1.0, (2, *q.shape))
        v, a = unit[0] * largest_v, unit[1] * largest_a
        return cls(q, v, a, model.effort_columns(q, v, a))

    def scaled(self, model: InertialModel, largest_v: Array, largest_a: Array) -> TypicalStates:
        """Returns the states with other largest velocities and accelerations (nv,)."""
        pairs = ((self.v, largest_v), (self.a, largest_a))
        v, a = (x * (largest / np.maximum(np.abs(x).max(axis=0), 1e-12)) for x, largest in pairs)
        return replace(self, v=v, a=a, columns=model.effort_columns(self.q, v, a))

    def information(self, effort: Array) -> Array:
        """Mean of Y_b^T diag(effort^-2) Y_b (nb, nb): what one state shows if efforts (nv,) are its errors."""
        weighted_columns = self.columns / effort[:, None]
        return np.asarray(np.einsum("tjp,tjq->pq", weighted_columns, weighted_columns, optimize=True) / len(self.q))


def unknown_directions(
    model: InertialModel, states: TypicalStates, estimate: Array, covariance: Array, noise: Array
) -> tuple[UnknownDirection, ...]:
    """Returns the directions whose uncertainty changes efforts of typical states by more than the tolerance: the noise,
    or `UNKNOWN_SHARE` of these efforts. states: as fast as the robot can be.

    They are the eigenvectors of C G, with the covariance C and the information G of a typical state: eigenvalues are
    variances of its efforts, relative to the tolerance and summed over joints.
    """
    efforts = np.sqrt(np.mean((states.columns @ estimate) ** 2, axis=0))
    tolerance = np.maximum(noise, UNKNOWN_SHARE * efforts)
    G = states.information(tolerance)
    # by correlations, whose eigenvalues rounding may turn negative where parameters are unknown by many powers of ten
    scale = np.sqrt(np.diag(covariance))
    eigenvalues, axes = np.linalg.eigh(covariance / np.outer(scale, scale))
    root = scale[:, None] * axes * np.sqrt(np.maximum(eigenvalues, 0.0))
    variance, vectors = linalg.eigh(root.T @ G @ root)
    directions = []
    for k in np.argsort(variance)[::-1]:
        if variance[k] <= 1.0:
            break
        direction = root @ vectors[:, k]
        effect = np.abs(direction) * np.sqrt(np.diag(G))
        order = np.argsort(effect)[::-1][:MOST_NAMES]
        shares = tuple((_short(model.names[i]), float(effect[i] / effect.sum())) for i in order)
        efforts = np.sqrt(np.mean((states.columns @ direction) ** 2, axis=0))
        joint = int(np.argmax(efforts / tolerance))
        names = model.robot.configuration.velocity_names
        motion = _revealing_motion(model, states, direction / float(efforts[joint]), joint)
        directions.append(UnknownDirection(shares, names[joint], float(efforts[joint]), motion))
    return tuple(directions)


def _short(name: str) -> str:
    """The first parameter of a combination, with the number of the others."""
    first, *rest = name.replace(" - ", " + ").split(" + ")
    return first if not rest else f"{first} and {len(rest)} more"


def _revealing_motion(model: InertialModel, states: TypicalStates, direction: Array, joint: int) -> str:
    """Returns the kind of motion in which the direction has the largest effect on the effort of a joint."""
    names, zero = model.robot.configuration.velocity_names, np.zeros_like(states.v)

    def effect(v: Array, a: Array) -> Array:
        return np.asarray(model.effort_columns(states.q, v, a)[:, joint] @ direction)

    static_effect = effect(zero, zero)
    effects = {f"still poses show it in the effort of {names[joint]}": static_effect}
    for k, name in enumerate(names):
        single_a = zero.copy()
        single_a[:, k] = states.a[:, k]
        text = f"accelerations of {name} up to {np.abs(states.a[:, k]).max():.3g}"
        effects[f"{text} show it in the effort of {names[joint]}"] = effect(zero, single_a) - static_effect
    fast = f"fast motions of several joints show it in the effort of {names[joint]}"
    effects[fast] = effect(states.v, zero) - static_effect
    return max(effects, key=lambda text: float(np.mean(effects[text] ** 2)))
