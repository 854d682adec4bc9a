"""Errors of parameters compared with those that an excitation predicts: `python -m qa.excitation ur5e scara`.

For each robot the motion of `design_excitation` with default numbers, and the median random motion within its limits. A
draw is the efforts of the inverse dynamics along it with noise, all parameters are fitted by weighted least squares.
Printed: condition numbers, and medians over parameters of predicted and observed standard errors, relative to those of
the random motion, and the ratio of both in each motion: rms over all parameters and draws, 1 expected.

`--report DIR` takes the states and efforts of one robot from a launch that followed the goals of `dyn excite`, with
default numbers, instead: positions of a simulated robot, accelerations by differences, efforts with noise added.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import Array
from dyn_service.control.trajectory import Reference
from dyn_service.graph.bags import recording
from dyn_service.identification.excitation import Excitation, design_excitation
from tests.conftest import URDF


def computed(robot: Robot, plan: Excitation) -> tuple[Reference, Array]:
    """Returns states and efforts of all samples of a motion."""
    times = np.tile(plan.motion.times(plan.samples // plan.periods), plan.periods)
    states = plan.motion.sample(times)
    return states, np.asarray(robot.inverse_dynamics(*states))


def recorded(robot: Robot, plan: Excitation, report: Path) -> tuple[Reference, Array]:
    """Returns states and efforts of a launch, at the rate of the plan, after the approach."""
    motion = recording(robot, report)
    begin = motion["t"][np.argmax(np.abs(motion["v"]).max(axis=1) > 1e-4)]
    rate_hz = plan.samples / plan.duration_s
    stride = round(1.0 / (rate_hz * float(np.median(np.diff(motion["t"])))))
    rows = np.flatnonzero((motion["t"] >= begin) & (motion["t"] < begin + plan.duration_s))[::stride]
    return Reference(*(motion[name][rows] for name in ("q", "v", "a"))), motion["tau"][rows]


def errors(plan: Excitation, states: Reference, effort: Array, draws: int) -> Array:
    """Returns the errors (draws, p) of weighted least squares, divided by the predicted standard errors."""
    rng = np.random.default_rng(0)
    Q, R = np.linalg.qr((plan.rows(states) / plan.noise[:, None]).reshape(effort.size, -1))
    sides = [Q.T @ (effort / plan.noise + rng.normal(size=effort.shape)).ravel() for _ in range(draws)]
    return np.asarray((np.linalg.solve(R, np.transpose(sides)).T - plan.values) / plan.standard_errors)


def main() -> None:
    """Prints the lines of the robots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robots", nargs="+")
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    for name in arguments.robots:
        robot = Robot.from_file(URDF / f"{name}.urdf")
        plan = design_excitation(robot)
        random = plan.random
        assert random is not None
        print(
            f"{name}: {len(plan.parameters)} parameters, condition {plan.condition:.4g}, random {random.condition:.4g}"
        )
        predicted = random.standard_errors / plan.standard_errors
        if arguments.report is not None:
            ratio = errors(plan, *recorded(robot, plan, arguments.report), arguments.draws)
            print(f"  recorded: observed / predicted {np.sqrt(np.mean(ratio**2)):.3f}")
            continue
        ratios = {
            key: errors(p, *computed(robot, p), arguments.draws) for key, p in (("plan", plan), ("random", random))
        }
        deviation = {key: np.sqrt(np.mean(ratio**2, axis=0)) for key, ratio in ratios.items()}
        observed = predicted * deviation["random"] / deviation["plan"]
        for kind, share in (("predicted", predicted), ("observed", observed)):
            span = f"{share.min():.3g} to {share.max():.3g}"
            print(f"  standard errors of random / plan, {kind}: median {np.median(share):.3g}, {span}")
        for key, ratio in ratios.items():
            low, high = deviation[key].min(), deviation[key].max()
            print(
                f"  {key}: observed / predicted {np.sqrt(np.mean(ratio**2)):.3f}, by parameter {low:.2f} to {high:.2f}"
            )


if __name__ == "__main__":
    main()
