"""Default simulations of foreign robot files compared with a high order: `python -m qa.default_steps FOLDER`.

Each file moves for one second from a random position at rest, under gravity alone, by the default of `simulate`, and
by a reference: `adaptive` with its tolerance of 1e-12 a step, or, if that takes too long, SciPy's LSODA with 1e-9. The
error is the largest difference of a position or velocity, relative to 1 and to the largest of that entry. Prints a line
for each file that does not agree, then the totals. Exit status 1 if a file is wrong.

    agrees      error at most 1e-3
    coarse      larger, but half of the step reduces it to 0.4 or less, which it does not for unstable steps
    refused     simulate raised an error; its class is counted
    sensitive   a change of 1e-6 of the first position changes the motion of the reference by more than 1e-3:
                rounding alone prevents agreement
    unjudged    the reference takes more than the CPU time for a file
    wrong       anything else

`stick_slip` has exact friction, the reference smoothed friction. So the allowed error of `stick_slip` includes the
difference of two references, with the width and with twice the width.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from dyn_service import Robot
from dyn_service.api.queries import Array
from dyn_service.errors import DynError

DT, STEPS, EVERY = 1e-3, 1000, 100
CLOSE, HALVED, CHANGE, SENSITIVE = 1e-3, 0.4, 1e-6, 1e-3
ENDINGS = (".urdf", ".xml", ".sdf", ".xacro")


def reference(robot: Robot, q: Array) -> Array:
    """Returns records (11, nq + nv) of a motion from rest, by another integrator than the default."""
    try:
        motion = robot.simulate(q, np.zeros(robot.nv), dt=0.01, steps=100, every=10, integrator="adaptive")
        return np.hstack([motion.q, motion.v])
    except DynError:
        configuration, rest = robot.configuration, np.zeros(robot.nv)

        def rate(t: float, x: Array) -> Array:
            q, v = x[: configuration.nq], x[configuration.nq :]
            return np.concatenate(
                [configuration.rate(q, v), robot.forward_dynamics(configuration.normalised(q), v, rest)]
            )

        start, times = np.concatenate([q, rest]), np.linspace(0.0, 1.0, 11)
        return np.asarray(solve_ivp(rate, (0.0, 1.0), start, "LSODA", times, rtol=1e-9, atol=1e-12).y.T)


def smoother(robot: Robot) -> Robot:
    """Returns the robot with twice the width of friction."""
    joints = robot.as_described.joints
    wide = (
        replace(x, friction_width=2.0 * (x.friction_width or (0.01 if x.type == "prismatic" else 0.1))) for x in joints
    )
    return Robot(replace(robot.as_described, joints=tuple(wide)))


def judged(path: Path) -> tuple[str, str]:
    """Returns the verdict on one file, and the integrator or what was wrong."""
    try:
        robot = Robot.from_file(path)
    except Exception as fault:  # the readers have tests of their own
        return "unread", type(fault).__name__
    if not robot.nv:
        return "unread", "nothing moves"
    q = robot.configuration.unit(robot.random_configuration(seed=0), "q")
    options: dict[str, Any] = {"dt": DT, "steps": STEPS, "every": EVERY}
    try:
        motion = robot.simulate(q, np.zeros(robot.nv), **options)
    except DynError as fault:
        return "refused", f"{type(fault).__name__}: {fault.message}"
    states, exact = np.hstack([motion.q, motion.v]), reference(robot, q)
    scale = 1.0 + np.abs(exact).max(axis=0)

    def error(x: Array, y: Array) -> float:
        return float((np.abs(x - y) / scale).max())

    by_friction = motion.integrator == "stick_slip" and "friction" in robot.description.passive
    smoothing = 2.0 * error(reference(smoother(robot), q), exact) if by_friction else 0.0
    distance, method = error(states, exact), motion.integrator + (", in parts" if motion.substeps > 1 else "")
    if distance <= CLOSE + smoothing:
        return "agrees", method
    parts: Any = 2 * motion.substeps
    options |= {"dt": DT / parts, "steps": parts * STEPS, "every": parts * EVERY, "integrator": motion.integrator}
    half = robot.simulate(q, np.zeros(robot.nv), **options)
    far_half = error(np.hstack([half.q, half.v]), exact)
    if far_half <= HALVED * distance + smoothing:
        return "coarse", f"{method}: error {distance:.2g}, with half of the step {far_half:.2g}"
    moved_q = robot.integrate(q, np.full(robot.nv, CHANGE), 1.0)
    if error(reference(robot, moved_q), exact) > SENSITIVE:
        return "sensitive", method
    return "wrong", f"{method}: error {distance:.2g}, with half of the step {far_half:.2g}, of friction {smoothing:.2g}"


def judged_file(judge: Callable[[Path], tuple[str, Any]], path: Path, seconds: int, answer: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    try:
        answer.send(judge(path))
    except Exception as fault:  # reported with its file, and the run goes on
        answer.send(("unjudged", f"{type(fault).__name__}: {fault}"[:200]))


def verdicts(
    paths: list[Path], seconds: int, judge: Callable[[Path], tuple[str, Any]] = judged
) -> Iterator[tuple[Path, str, Any]]:
    """Yields the verdict of each file, made in a process of its own that has so many seconds of processor time."""
    fork = multiprocessing.get_context("fork")
    for path in paths:
        receiver, sender = fork.Pipe(duplex=False)
        worker = fork.Process(target=judged_file, args=(judge, path, seconds, sender))
        worker.start()
        sender.close()
        try:
            verdict, how = receiver.recv()
        except EOFError:
            verdict, how = "unjudged", "no answer in time"
        worker.join()
        yield path, verdict, how


def main() -> int:
    """Judges the files of a folder."""
    parser = argparse.ArgumentParser(prog="python -m qa.default_steps")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=0, help="at most so many, evenly from all; 0: all")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th of them, from the K-th on")
    parser.add_argument("--seconds", type=int, default=60, help="of processor time, for each file")
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.folder.rglob("*") if p.suffix in ENDINGS and p.is_file())
    paths = paths[:: max(1, len(paths) // arguments.files)] if arguments.files else paths
    first, stride = map(int, arguments.part.split("/"))
    totals: Counter[tuple[str, str]] = Counter()
    try:
        for path, verdict, how in verdicts(paths[first - 1 :: stride], arguments.seconds):
            totals[verdict, how.partition(":")[0]] += 1
            if verdict not in ("agrees", "unread"):
                print(f"{verdict}  {path.relative_to(arguments.folder)}  {how}", flush=True)
    except KeyboardInterrupt:  # the totals so far
        pass
    for (verdict, kind), count in sorted(totals.items()):
        print(f"{count:5d}  {verdict}  {kind}")
    return any(verdict == "wrong" for verdict, _ in totals)


if __name__ == "__main__":
    sys.exit(main())
