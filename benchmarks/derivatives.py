"""Derivatives by sweeps compared with Pinocchio's C++, and weighted Hessians, on one core.

    python -m benchmarks.derivatives [ROBOT.urdf ..] [--floating] [--states 1 32]

By default the Panda, and TALOS with fixed and floating root if example-robot-data is installed (`pip install pin
casadi`, and `g++`, which takes two minutes). Both compute the same derivatives of the same states, compared with
Pinocchio's before they are timed; its C++ (`computeRNEADerivatives`, `computeABADerivatives`, -O3 -march=native) leaves
the derivatives of each state in its own matrices, while ours are returned as new arrays, or in arrays given as `out`.
Rounds alternate. Figures are medians of us of CPU time per state, with the ratio's first and last decile; the last
column is the CPU time of the first call. Pinocchio has no Hessians.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any

import numpy as np

from benchmarks.peers import ROOT, PinocchioCpp, bare
from benchmarks.rollouts import talos
from dyn_service import Robot

Array = np.ndarray[Any, np.dtype[np.float64]]

DERIVATIVES = {"inverse_dynamics_derivatives": 3, "forward_dynamics_derivatives": 4}
"""With the number of their query in peers.cpp."""
HESSIANS = ("inverse_dynamics_hessian", "forward_dynamics_hessian")
ROUNDS, ROUND_S = 41, 4e-3
HESSIAN_STATES = 128
MAX_DIFFERENCE = 1e-8
"""Largest difference relative to the largest entry: rounding in double precision, where masses differ by 1e3."""


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robots", nargs="*", type=Path)
    parser.add_argument("--floating", action="store_true", help="floating root of the robots that are given")
    parser.add_argument("--states", nargs="+", type=int, default=[1, 32])
    options = parser.parse_args()
    cases = [(path, options.floating) for path in options.robots]
    if not cases:
        humanoid = talos()
        cases = [(ROOT / "urdf" / "panda.urdf", False)]
        cases += [(humanoid, floating) for floating in (False, True)] if humanoid else []
    print("| robot | velocities | query | states | us | us with out | Pinocchio, us | times | 10 % | 90 % | first, s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for path, floating in cases:
        compared(path, floating, options.states)


def compared(path: Path, floating: bool, batches: list[int]) -> None:
    """Prints the rows of one robot."""
    text = bare(path)
    robot = Robot.from_text(text, root="floating" if floating else "fixed")
    peer = Derivatives(text, robot, floating)
    rng = np.random.default_rng(0)
    for states in (*batches, HESSIAN_STATES):
        q = np.array([robot.configuration.random(rng, robot.limits.lower, robot.limits.upper) for _ in range(states)])
        v, x, weights = rng.normal(size=(3, states, robot.nv))
        hessians = states == HESSIAN_STATES and states not in batches
        for query in HESSIANS if hessians else DERIVATIVES:
            ask = partial(getattr(robot, query), *((q, v, x, weights) if hessians else (q, v, x)))
            start_s = process_time()
            derivatives = ask()
            first = process_time() - start_s
            out = type(derivatives)(**{name: np.empty_like(array) for name, array in vars(derivatives).items()})
            calls: list[Callable[[], Any]] = [ask, partial(ask, out=out)]
            if not hessians:
                peer.check(query, derivatives, q, v, x)
                calls.append(peer.call(query, q, v, x))
            times = times_of_calls(calls, states)
            cells = [path.stem + (", floating" if floating else ""), str(robot.nv), query, str(states)]
            cells += [f"{median(own_times):.2f}" for own_times in times] + [""] * (3 - len(times))
            if len(times) == 3:
                ratios = [peer_time / own_time for own_time, peer_time in zip(times[0], times[2], strict=True)]
                low, *_, high = quantiles(ratios, n=10)
                cells += [f"{ratio:.1f}" for ratio in (median(ratios), low, high)]
            else:
                cells += [""] * 3
            print("| " + " | ".join([*cells, f"{first:.2f}"]) + " |", flush=True)


def times_of_calls(calls: list[Callable[[], Any]], states: int) -> list[list[float]]:
    """Returns us of CPU time per state of each call, by rounds that alternate."""
    repeats = []
    for call in calls:
        call()
        start_s = process_time()
        call()
        # The same time for each kind and round: a fast call alone would be below the clock's resolution.
        repeats.append(max(1, round(ROUND_S / (process_time() - start_s))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, repeat, call_times in zip(calls, repeats, times, strict=True):
            start_s = process_time()
            for _ in range(repeat):
                call()
            call_times.append((process_time() - start_s) / repeat / states * 1e6)
    return times


class Derivatives(PinocchioCpp):
    """Pinocchio's, of a robot of revolute and prismatic joints with fixed or floating root."""

    def __init__(self, urdf: str, robot: Robot, floating: bool) -> None:
        import pinocchio

        self.pin = pinocchio
        self.model = pinocchio.buildModelFromXML(urdf, *([pinocchio.JointModelFreeFlyer()] if floating else []))
        self.model.gravity.linear = np.asarray(robot.gravity)
        self.data = self.model.createData()
        moving = [self.model.getJointId(name) for name in robot.joint_names[floating:]]
        root, rates = (list(range(7)), list(range(6))) if floating else ([], [])
        self.of_q = root + [self.model.idx_qs[joint] for joint in moving]
        self.of_v = rates + [self.model.idx_vs[joint] for joint in moving]
        self.load()

    def states(self, q: Array, *tangents: Array) -> list[Array]:
        """Returns the arrays in Pinocchio's order of joints."""
        reordered = [np.empty_like(q), *(np.empty_like(other) for other in tangents)]
        reordered[0][:, self.of_q] = q
        for row, other in zip(reordered[1:], tangents, strict=True):
            row[:, self.of_v] = other
        return reordered

    def check(self, query: str, answer: Any, q: Array, v: Array, x: Array) -> None:
        """Raises SystemExit if the derivatives by q and v of the first state are not Pinocchio's."""
        inputs = [array[0] for array in self.states(q[:1], v[:1], x[:1])]
        inverse = query == "inverse_dynamics_derivatives"
        peer_answer = (self.pin.computeRNEADerivatives if inverse else self.pin.computeABADerivatives)(
            self.model, self.data, *inputs
        )
        for name, expected in zip(
            ("dtau_dq", "dtau_dv") if inverse else ("da_dq", "da_dv"), peer_answer[:2], strict=True
        ):
            difference = np.abs(getattr(answer, name)[0] - expected[np.ix_(self.of_v, self.of_v)]).max()
            if not difference <= MAX_DIFFERENCE * np.abs(expected).max():
                raise SystemExit(f"{query}: {name} differs by {difference:g} from Pinocchio's")

    def call(self, query: str, q: Array, v: Array, x: Array) -> Callable[[], Any]:
        arrays = [np.ascontiguousarray(array) for array in self.states(q, v, x)]
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]  # which keep the arrays
        number, states = ctypes.c_int(DERIVATIVES[query]), ctypes.c_long(len(q))
        return lambda: self.library.run(self.handle, number, states, *pointers, None)


if __name__ == "__main__":
    main()
