"""Standard errors of identified parameters and their true errors: `python -m qa.identification --draws 100`.

A Panda arm, a UR5e, a SCARA and a leg of Solo 12 move along random sines for 20 s. Their masses, centres of mass and
inertias differ from the files', and their joints have friction of other widths. Recordings have noise, steps of the
numbers (19 bits a turn), efforts that arrive 3.5 ms late, and are sampled at 500 Hz. Each draw has other noise. For
each robot: the rms ratio of error and predicted standard error, and the share of errors within 1.96 standard errors (95
percent expected), of base parameters, friction (coefficients and widths; other terms have the true value 0) and delay.

`--recording FILE --robot FILE` compares on a real recording instead: rms errors of efforts in one half, by the robot's
file, by plain least squares on the other half (ordinary, all columns, offset and Coulomb friction, the filter at the
same cut-off), by `identify` on the other half, by `physical`, and by its files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import Array
from dyn_service.identification import Recording, filter_motion, identify, inertial_model, physical, read_recording
from dyn_service.identification.signals import kept_samples, smooth_rows
from dyn_service.identification.terms import FORMS
from tests.conftest import URDF
from tests.identification.simulated import Errors, Experiment, part_of

LEG = ("base_link", "FL_shoulder", "FL_upper_leg", "FL_lower_leg", "FL_foot")
ROBOTS: dict[str, Callable[[], Robot]] = {
    "panda": lambda: part_of("panda", [f"panda_link{k}" for k in range(9)]),
    "ur5e": lambda: Robot.from_file(URDF / "ur5e.urdf"),
    "scara": lambda: Robot.from_file(URDF / "scara.urdf"),
    "leg": lambda: part_of("solo12", LEG),
}


def ratios(experiment: Experiment, draws: int, form: str = "effort") -> dict[str, Array]:
    """Returns errors divided by predicted standard errors of parameters, friction and delay, in all draws."""
    result: dict[str, list[float]] = {"base parameters": [], "friction": [], "delay": []}
    for seed in range(draws):
        identification = identify(experiment.robot, experiment.recording(seed), check=0.0, form=form)
        result["base parameters"] += list((identification.estimate - experiment.truth) / identification.standard_errors)
        for name, numbers in experiment.numbers.joints.items():
            joint = identification.friction[name]
            values = {**joint.values, "width": joint.width}
            truth = {"viscous": numbers.damping, "coulomb": numbers.friction, "width": numbers.friction_width}
            for kind, error in joint.standard_errors.items():
                result["friction"].append((values[kind] - float(truth.get(kind, 0.0))) / error)
        if identification.delay_error_s:
            result["delay"].append((identification.delay_s - experiment.errors.delay_s) / identification.delay_error_s)
    return {name: np.array(x) for name, x in result.items()}


def plain_least_squares(robot: Robot, fit: Recording, check: Recording, cutoff_hz: float) -> Array:
    """Returns rms errors (nv,) in `check` of ordinary least squares of filtered efforts in `fit`."""
    model = inertial_model(robot)

    def system(recording: Recording) -> tuple[Array, Array]:
        motion = filter_motion(recording, cutoff_hz)
        rows = kept_samples(motion)
        q, v, a = motion.q[rows], motion.v[rows], motion.a[rows]
        eye = np.eye(robot.nv)
        friction = np.concatenate([np.sign(v)[:, :, None] * eye, np.broadcast_to(eye, (len(v), *eye.shape))], axis=-1)
        return np.concatenate([model.effort_columns(q, v, a), friction], axis=-1), smooth_rows(motion, motion.effort)

    X, tau = system(fit)
    estimate = np.linalg.lstsq(X.reshape(-1, X.shape[-1]), tau.ravel(), rcond=None)[0]
    X, tau = system(check)
    return np.asarray(np.sqrt(np.mean((tau - X @ estimate) ** 2, axis=0)))


def compare(robot: Robot, recording: Recording, cutoff_hz: float | None) -> None:
    """Prints the rms errors of efforts on each half, fitted on the other."""
    middle = 0.5 * (recording.t[0] + recording.t[-1])
    halves = [recording.between(-np.inf, middle), recording.between(middle, np.inf)]
    for name, fit, check in (("second half", *halves), ("first half", *reversed(halves))):
        identification = identify(robot, fit, check=check, cutoff_hz=cutoff_hz)
        plain = plain_least_squares(robot, fit, check, identification.cutoff_hz)
        print(f"rms error on the {name}, cut-off {identification.cutoff_hz:.2f} Hz")
        errors_by_model = physical(identification).errors("check")
        rows = {"file": "file", "identify": "least squares", "physical": "physical", "new files": "new files"}
        table = {"plain least squares": plain, **{row: errors_by_model[model] for row, model in rows.items()}}
        for row, errors in table.items():
            print(f"  {row:<20}", *(f"{x:8.3f}" for x in errors))


def main() -> None:
    """Prints the table of the module."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=list(ROBOTS))
    parser.add_argument("--seed", type=int, default=0, help="of the robot's numbers and motion")
    parser.add_argument("--noise", type=float, default=1.0, help="factor of noise and steps; without a delay if not 1")
    parser.add_argument("--form", choices=FORMS, default="effort")
    parser.add_argument("--recording", type=Path)
    parser.add_argument("--robot", type=Path)
    parser.add_argument("--joints", type=Path)
    parser.add_argument("--cutoff", type=float)
    arguments = parser.parse_args()
    if arguments.recording is not None:
        robot = Robot.from_file(arguments.robot, joints=arguments.joints)
        compare(robot, read_recording(arguments.recording, robot), arguments.cutoff)
        return
    print(f"{'robot':<8}{'of':<18}{'number':>8}{'rms ratio':>11}{'within 1.96':>13}")
    for name in arguments.robots:
        errors = Errors() if arguments.noise == 1.0 else Errors().scaled(arguments.noise)
        experiment = Experiment.of(ROBOTS[name](), seed=arguments.seed, errors=errors, widths=(0.05, 0.2))
        for part, ratio in ratios(experiment, arguments.draws, arguments.form).items():
            rms, share = np.sqrt(np.mean(ratio**2)), np.mean(np.abs(ratio) < 1.96)
            print(f"{name:<8}{part:<18}{ratio.size:>8}{rms:>11.3f}{share:>13.1%}", flush=True)


if __name__ == "__main__":
    main()
