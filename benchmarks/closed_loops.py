"""Robots with closed loops compared with Pinocchio's `constraintDynamics`, on one core.

    python -m benchmarks.closed_loops [--rounds 21]

The delta robot of this project: 21 velocities, six balls that close loops. Pinocchio (`pip install pin`) has one 3D
contact constraint for each, and forward dynamics only, which is called through its bindings in a loop over the states,
as it has no batches; ours takes all 4,096 states in one call. Efforts and accelerations are compared before they are
timed. Rounds alternate. Figures are medians of us of CPU time per state, with the ratio's first and last decile.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from statistics import median, quantiles
from time import process_time
from typing import Any

# NumPy reads it when it is imported.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from dyn_service import Robot
from dyn_service.support.shipped import find_robot

Array = np.ndarray[Any, np.dtype[np.float64]]

STATES, PEER_STATES, CALLS = 4096, 256, 64
"""States of a batch; those of it that Pinocchio computes in a round; calls with one state in a round."""
MAX_DIFFERENCE = 1e-8
"""Largest difference relative to the largest entry: Pinocchio's constraints are regularised by 1e-12."""


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    path = find_robot("delta")
    robot = Robot.from_urdf(path)
    q, v, a = drawn_motions(robot)
    tau = robot.inverse_dynamics(q, v, a)
    peer = Pinocchio(path.read_text(), robot, q, v, tau)
    difference = np.abs(peer.accelerations() - a[:PEER_STATES]).max() / np.abs(a[:PEER_STATES]).max()
    difference = max(difference, np.abs(robot.forward_dynamics(q, v, tau) - a).max() / np.abs(a).max())
    if not difference < MAX_DIFFERENCE:
        raise SystemExit(f"accelerations differ by {difference:.1e} of the largest one")

    def single(query: Callable[..., Any], x: Array) -> Callable[[], None]:
        def call() -> None:
            for k in range(CALLS):
                query(q[k], v[k], x[k])

        return call

    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "inverse dynamics, 4096 states": (lambda: robot.inverse_dynamics(q, v, a), STATES),
        "forward dynamics, 4096 states": (lambda: robot.forward_dynamics(q, v, tau), STATES),
        "inverse dynamics, one state": (single(robot.inverse_dynamics, a), CALLS),
        "forward dynamics, one state": (single(robot.forward_dynamics, tau), CALLS),
        "constraintDynamics": (peer.accelerations, PEER_STATES),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, (call, states) in calls.items():
            start_s = process_time()
            call()
            times[name].append((process_time() - start_s) / states * 1e6)
    peer_times = times.pop("constraintDynamics")
    print("| query | us | Pinocchio, us | times | 10 % | 90 % |")
    print("|---|---|---|---|---|---|")
    for name, row in times.items():
        ratios = [peer_time / time for time, peer_time in zip(row, peer_times, strict=True)]
        low, *_, high = quantiles(ratios, n=10)
        figures = f"{median(row):.2f} | {median(peer_times):.1f} | {median(ratios):.1f} | {low:.1f} | {high:.1f}"
        print(f"| {name} | {figures} |")


def drawn_motions(robot: Robot) -> tuple[Array, Array, Array]:
    """Returns q, v and a of states that keep the loops closed."""
    rng = np.random.default_rng(0)
    start = robot.neutral() + 0.1 * rng.normal(size=(STATES, robot.nq))
    q = robot.assemble(robot.configuration.normalised(start))
    still = robot.independent_motion(q, np.zeros(robot.nv))
    rates = rng.normal(size=(2, STATES, still.jacobian.shape[-1]))
    v = np.einsum("...ij,...j->...i", still.jacobian, rates[0])
    moving = robot.independent_motion(q, v)
    return q, v, moving.bias_accelerations + np.einsum("...ij,...j->...i", moving.jacobian, rates[1])


class Pinocchio:
    """The same robot, loops of which are closed by balls, in Pinocchio. Its joints have our order of entries."""

    def __init__(self, urdf: str, robot: Robot, q: Array, v: Array, tau: Array) -> None:
        import pinocchio

        # Pinocchio does not read these elements.
        tree = re.sub(r"<(constraint|transmission) .*?</\1>", "", urdf, flags=re.DOTALL)
        self.pin, self.model = pinocchio, pinocchio.buildModelFromXML(tree)
        self.model.gravity.linear = np.asarray(robot.gravity)
        self.data = self.model.createData()
        self.constraints = pinocchio.StdVec_RigidConstraintModel()
        self.states = pinocchio.StdVec_RigidConstraintData()
        for joint in robot.evaluator.model.description.loop_joints:
            sides = []
            for link, R, p in (
                (joint.parent, joint.parent_rotation, joint.parent_xyz),
                (joint.child, joint.child_rotation, joint.child_xyz),
            ):
                frame = self.model.frames[self.model.getFrameId(link)]
                sides += [frame.parentJoint, frame.placement * pinocchio.SE3(R, p)]
            kind, axes = pinocchio.ContactType.CONTACT_3D, pinocchio.ReferenceFrame.LOCAL
            self.constraints.append(pinocchio.RigidConstraintModel(kind, self.model, *sides, axes))
            self.states.append(self.constraints[-1].createData())
        pinocchio.initConstraintDynamics(self.model, self.data, self.constraints, self.states)
        self.settings = pinocchio.ProximalSettings(1e-12, 1e-12, 10)
        if list(self.model.names)[1:] != list(robot.joint_names):
            raise SystemExit(f"Pinocchio orders the joints differently: {list(self.model.names)}")
        self.inputs = [[np.array(row) for row in x[:PEER_STATES]] for x in (q, v, tau)]

    def accelerations(self) -> Array:
        """Returns the accelerations of `PEER_STATES` states."""
        call, rest = self.pin.constraintDynamics, (self.constraints, self.states, self.settings)
        return np.array([call(self.model, self.data, *state, *rest) for state in zip(*self.inputs, strict=True)])


if __name__ == "__main__":
    main()
