"""Gains from motor current to effort, by a robot whose inertias are known: `tau = K i`.

    i = (m(t - d) + friction) / K,   m = Y theta of the robot's file

is linear in 1 / K, -d / K and the coefficients of friction. The current is the measured side, so its noise does not
bias K. Inertias and gains cannot both be unknown: a robot with heavier links and larger gains takes the same currents.
A known payload in the robot (an overlay, or a link of its file) makes its effort known. Robot files mostly lack the
inertia of rotors, so a joint without armature gets the term J a / K with an unknown J.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from dyn_service.api.queries import RobotQueries
from dyn_service.engine.robot import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.identification.fit import first_terms
from dyn_service.identification.recordings import Recording
from dyn_service.identification.regression import solve
from dyn_service.identification.signals import filter_motion, smooth_rows, usable_rows
from dyn_service.identification.terms import inertial_model

LEAST_RATIO = 10.0
"""A gain whose error is larger than a tenth is not known."""


LEAST_RESIDUAL = 1e-6
"""A gain is not known if the other columns explain the effort up to this share, which rounding and filters leave."""


class EffortGain(NamedTuple):
    """N m/A, N/A: effort per current of a joint, and its standard error; NaN and infinity if not known."""

    value: float
    standard_error: float


def file_gains(robot: Robot) -> dict[str, float]:
    """Returns N K, N m/A | N/A, of each joint with a motor in the robot's files."""
    return {joint.name: joint.motor.gain for joint in robot.as_described.joints if joint.motor is not None}


def effort_gains(
    robot: RobotQueries,
    recording: Recording,
    *,
    friction: Collection[str] = ("viscous", "coulomb", "offset"),
    cutoff_hz: float | None = None,
) -> dict[str, EffortGain]:
    """Returns the gain of each joint whose current the recording contains; NaN where the motion does not show it.

    robot: its masses and inertias are those of the recorded robot, and so are its armatures; 0 is an unknown one.
    recording: `effort` contains currents, A. friction, cutoff_hz:
    as for `identify`.

    Raises:
        FailedPreconditionError: The motion determines no gain to a tenth.
    """
    recording = recording.motion_of(robot)
    motion = filter_motion(recording, cutoff_hz, lower=robot.limits.lower, upper=robot.limits.upper)
    model = inertial_model(robot)
    effort = model.effort_columns(motion.q, motion.v, motion.a) @ model.file_values + model.spring_effort(motion.q)
    smooth, rate = smooth_rows(motion, effort), smooth_rows(motion, effort, order=1)
    current, mask = smooth_rows(motion, motion.effort), usable_rows(motion)
    parameters = robot.dynamic_parameters()
    armature = dict(zip(parameters.parameters, parameters.theta, strict=True))
    gains = {}
    for index, name in enumerate(robot.configuration.velocity_names):
        terms = [term for term in first_terms(robot, motion, friction) if term.index == index]
        if not mask[:, index].any():
            continue
        columns = [smooth[:, index], rate[:, index], *(smooth_rows(motion, term.column(motion.v)) for term in terms)]
        if not armature.get(f"{name}.armature"):
            columns.append(smooth_rows(motion, motion.a[:, index]))
        X = np.column_stack(columns)
        rows = X[mask[:, index]]
        residual = rows[:, 0] - rows[:, 1:] @ np.linalg.lstsq(rows[:, 1:], rows[:, 0])[0]
        if np.linalg.norm(residual) <= LEAST_RESIDUAL * np.linalg.norm(rows[:, 0]):
            gains[name] = EffortGain(np.nan, np.inf)
            continue
        # Weak enough not to matter, so that a joint at rest is found undetermined, not singular.
        prior = np.diag(1e-9 * np.maximum(np.mean(X**2, axis=0), 1e-12) / max(float(np.var(current[:, index])), 1e-24))
        fit = solve(X[:, None, :], current[:, [index]], mask[:, [index]], prior, np.zeros(X.shape[1]))
        inverse, error = float(fit.estimate[0]), float(np.sqrt(max(fit.covariance[0, 0], 0.0)))
        is_known = abs(inverse) > LEAST_RATIO * error
        gains[name] = EffortGain(1.0 / inverse, error / inverse**2) if is_known else EffortGain(np.nan, np.inf)
    if np.isnan([gain.value for gain in gains.values()]).all():
        text = f"the motion determines the gain of none of the joints {', '.join(gains)} to a tenth"
        raise FailedPreconditionError(
            f"{text}: move them against more gravity, or give their rotor_inertia in a joint file"
        )
    return gains
