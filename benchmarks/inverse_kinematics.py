"""Inverse kinematics of reachable poses, compared with Pinocchio's loop and pink.

Targets are the poses of random positions within the limits. The share reached to 1e-6 m and 1e-6 rad, and CPU
microseconds for each target. Pinocchio's loop is its example of damped inverse kinematics with clipping to the limits,
and as many random starts as this package takes; pink, where installed, starts once.

    python benchmarks/inverse_kinematics.py ROBOT.urdf LINK [--targets 100000] [--peers 500]

Peers: `pip install pin pin-pink daqp`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np

from dyn_service import Robot
from dyn_service.api.queries import Array
from dyn_service.simulation.inverse_kinematics import Target, inverse_kinematics

TOLERANCE, ATTEMPTS, ITERATIONS = 1e-6, 20, 60


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robot", type=Path)
    parser.add_argument("link")
    parser.add_argument("--targets", type=int, default=100_000)
    parser.add_argument("--peers", type=int, default=500, help="number of these that the peers solve")
    options = parser.parse_args()
    robot = Robot.from_urdf(options.robot)
    rng, limits = np.random.default_rng(0), robot.limits
    # Poses within one turn: continuous joints have no limits to draw from.
    lower, upper = np.maximum(limits.lower, -np.pi), np.minimum(limits.upper, np.pi)
    q = np.array([robot.configuration.random(rng, lower, upper) for _ in range(options.targets)])
    poses = robot.point_motion(q, np.zeros((len(q), robot.nv)), options.link)
    goal = Target(link=options.link, position=poses.position, rotation=poses.rotation)
    inverse_kinematics(robot, Target(link=options.link, position=poses.position[0]))  # compiles
    start_s = process_time()
    solutions = inverse_kinematics(robot, goal, attempts=ATTEMPTS, iterations=ITERATIONS)
    duration_s = process_time() - start_s
    print(f"{robot.name}, {options.link}: {options.targets} poses\n\n| | reached, % | us per target |\n|---|---|---|")
    print(f"| dyn_service | {100.0 * solutions.reached.mean():.3f} | {1e6 * duration_s / options.targets:.0f} |")
    for name, peer in (("Pinocchio's loop", pinocchio_loop), ("pink, one start", pink_loop)):
        try:
            solve = peer(options.robot, options.link, robot)
        except ImportError as missing:
            print(f"| {name} | {missing} | |")
            continue
        start_s = process_time()
        successes = [solve(poses.position[k], poses.rotation[k]) for k in range(options.peers)]
        duration_s = process_time() - start_s
        print(f"| {name} | {100.0 * np.mean(successes):.3f} | {1e6 * duration_s / options.peers:.0f} |")
    reasons, counts = np.unique(solutions.reason[~solutions.reached], return_counts=True)
    print("\nnot reached:", {str(reason): int(count) for reason, count in zip(reasons, counts, strict=True)})


Solver = Callable[[Array, Array], bool]


def pinocchio_loop(file: Path, link: str, robot: Robot) -> Solver:
    """Returns damped inverse kinematics by Pinocchio's Python functions."""
    import pinocchio as pin

    model = pin.buildModelFromUrdf(str(file))
    data, frame, rng = model.createData(), model.getFrameId(link), np.random.default_rng(0)
    lower, upper = np.maximum(model.lowerPositionLimit, -np.pi), np.minimum(model.upperPositionLimit, np.pi)

    def solve(position: Array, rotation: Array) -> bool:
        goal = pin.SE3(rotation, position)
        q = 0.5 * (lower + upper)
        for _ in range(ATTEMPTS):
            for _ in range(ITERATIONS):
                pin.computeJointJacobians(model, data, q)
                error = data_pose(q).actInv(goal)
                e = pin.log6(error).vector
                if (
                    max(np.linalg.norm(goal.translation - data.oMf[frame].translation), np.linalg.norm(e[3:]))
                    < TOLERANCE
                ):
                    return True
                J = pin.Jlog6(error.inverse()) @ pin.getFrameJacobian(model, data, frame, pin.LOCAL)
                step = J.T @ np.linalg.solve(J @ J.T + (0.5 * e @ e + 1e-12) * np.eye(6), e)
                q = np.clip(pin.integrate(model, q, step), lower, upper)
            q = rng.uniform(lower, upper)
        return False

    def data_pose(q: Array) -> pin.SE3:
        return pin.updateFramePlacement(model, data, frame)

    return solve


def pink_loop(file: Path, link: str, robot: Robot) -> Solver:
    """Returns pink's differential inverse kinematics, iterated from the middle of the limits."""
    import pink
    import pinocchio as pin
    import qpsolvers

    model = pin.buildModelFromUrdf(str(file))
    data, solver = model.createData(), qpsolvers.available_solvers[0]
    lower, upper = np.maximum(model.lowerPositionLimit, -np.pi), np.minimum(model.upperPositionLimit, np.pi)

    def solve(position: Array, rotation: Array) -> bool:
        configuration = pink.Configuration(model, data, 0.5 * (lower + upper))
        task = pink.FrameTask(link, position_cost=1.0, orientation_cost=1.0, lm_damping=1e-3)
        task.set_target(pin.SE3(rotation, position))
        for _ in range(ITERATIONS):
            e = task.compute_error(configuration)
            if max(np.linalg.norm(e[:3]), np.linalg.norm(e[3:])) < TOLERANCE:
                return True
            configuration.integrate_inplace(pink.solve_ik(configuration, [task], 1.0, solver=solver), 1.0)
        return False

    return solve


if __name__ == "__main__":
    main()
