"""Draws the figures of these pages and prints the numbers that they quote.

    python docs/theory/make_plots.py [figure ...]

Without names, every figure; `energy` takes about two minutes, `scaling` about three. Run from the repository's root.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import casadi as ca
import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.random_robots import random_urdf  # noqa: E402

from dyn_service.dynamics import segments  # noqa: E402
from dyn_service.dynamics.influence import WorldEquations, nilpotency  # noqa: E402
from dyn_service.dynamics.particles import ParticleSystem  # noqa: E402
from dyn_service.kernels.frames import simplest  # noqa: E402
from dyn_service.kernels.graph import trace  # noqa: E402
from dyn_service.kernels.signature import signature_of  # noqa: E402
from dyn_service.model.tree import Tree, weld  # noqa: E402
from dyn_service.model.urdf import read_text  # noqa: E402
from dyn_service.queries import QUERIES  # noqa: E402
from dyn_service.robot import Robot  # noqa: E402
from dyn_service.sim import simulate  # noqa: E402

IMAGES = Path(__file__).parent / "img"
BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#d9741a", "#2e8b57", "#b03a3a", "#777777"


def style() -> None:
    """Small figures whose letters can be read."""
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    )


def save(figure: plt.Figure, name: str) -> None:
    """Writes the figure under img/."""
    figure.tight_layout()
    figure.savefig(IMAGES / f"{name}.png")
    plt.close(figure)
    print(f"-> docs/theory/img/{name}.png")


def robot(name: str) -> Robot:
    """One of the robots under urdf/."""
    return Robot.from_urdf(ROOT / "urdf" / f"{name}.urdf")


def energy() -> None:
    """Energy over a million coarse steps: implicit midpoint in (q, p) beside RK4 in (q, v)."""
    pendulum, start, dt, steps = robot("double_pendulum"), (np.array([0.6, 0.9]), np.zeros(2)), 0.02, 1_000_000
    lowest = pendulum.energy(np.zeros(2), np.zeros(2)).total
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.2), width_ratios=(1.5, 1))
    names = {"rk4": ("RK4 in (q, v)", ORANGE), "implicit_midpoint": ("implicit midpoint in (q, p), symplectic", BLUE)}
    for integrator, (label, colour) in names.items():
        begun = time.perf_counter()
        motion = simulate(pendulum, *start, dt=dt, steps=steps, integrator=integrator, every=100)
        found = pendulum.energy(motion.q, motion.v).total
        error = found - found[0]
        tenth = len(error) // 10
        print(
            f"{integrator}: {time.perf_counter() - begun:.0f} s; energy above rest at first {found[0] - lowest:.3f} J; "
            f"error at the end {error[-1]:+.4f} J; largest in the first tenth {np.abs(error[:tenth]).max():.5f} J, "
            f"in the last tenth {np.abs(error[-tenth:]).max():.5f} J, overall {np.abs(error).max():.5f} J"
        )
        axes[0].plot(motion.t[::5], error[::5], color=colour, lw=0.8, label=label)
        bins = np.array_split(np.abs(error[1:]), 200)
        axes[1].loglog([dt * steps * (k + 0.5) / 200 for k in range(200)], [b.max() for b in bins], color=colour, lw=1)
    axes[0].axhline(lowest - found[0], color=GREY, lw=0.8, ls="--")
    axes[0].text(100, lowest - found[0] + 0.08, "pendulum at rest", color=GREY, va="bottom")
    axes[0].set(xlabel="time, s", ylabel="energy - energy at t = 0, J", title="Double pendulum, $10^6$ steps of 0.02 s")
    axes[0].legend(loc="center right")
    axes[1].set(xlabel="time, s", ylabel="largest |energy error| in 100 s, J", title="the same, logarithmic")
    save(figure, "hamilton_energy")


COUNTED = (2, 4, 8, 16, 32, 64, 128, 181, 256, 362, 512)
PATHS = {
    "inverse dynamics, (13), (18a)": ("inverse_dynamics", "", 512),
    "forward dynamics, (19b)": ("forward_dynamics", "articulated", 512),
    "mass matrix, (18c)": ("mass_matrix", "", 512),
    "forward dynamics, (19a)": ("forward_dynamics", "mass_matrix", 181),
}


def chain(bodies: int) -> Tree:
    """A random serial chain of moving bodies."""
    return weld(Tree.from_description(read_text(random_urdf(1, movable=bodies, bushy=0.0)))).tree


def solution(n: int) -> int:
    """Operations of L^T L = M, L^T L a = f for a chain of n joints: what (19a) adds to M and C."""
    factor = n * 2 + n * (n - 1) // 2 + sum(k * (k + 1) for k in range(n))
    return factor + 2 * (n + n * (n - 1)) + n  # two triangular solutions, and f - C


def slope(n: list[int], y: list[float], least: int) -> float:
    """Exponent of the power law fitted from `least` bodies on."""
    kept = [(a, b) for a, b in zip(n, y, strict=True) if a >= least]
    return float(np.polyfit(*np.log(np.array(kept)).T, 1)[0])


def scaling() -> None:
    """Operations of the traced graphs, and wall time of the explicit operators, on chains of 2 to 512 bodies."""
    sys.setrecursionlimit(20_000)
    counts: dict[str, tuple[list[int], list[float]]] = {}
    for label, (name, method, largest) in PATHS.items():
        row = QUERIES[name]
        sizes, found = [n for n in COUNTED if n <= largest], []
        for n in sizes:
            begun, tree = time.perf_counter(), chain(n)
            shape = dict.fromkeys(("nq", "nv", "nl", "nb"), n) | {"nj": n - 1}
            signature = signature_of(row, method or next(iter(row.kernels)), shape, wrenches=False)
            found.append(float(trace(simplest(tree), signature).operations))
            took = time.perf_counter() - begun
        counts[label] = (sizes, found)
        print(f"{label}: {dict(zip(sizes, map(int, found), strict=True))}, the last traced in {took:.0f} s", flush=True)
    inverse, assembly, solved = (counts[label][1] for label in list(PATHS)[0::1][:1] + list(PATHS)[2:])
    gaps = [s - a - i - solution(n) for n, i, a, s in zip(COUNTED, inverse, assembly, solved, strict=False)]
    print("(19a) less M, C and the closed form of the solution:", [int(x) for x in gaps])
    counts["solution alone, $L^T L\\,a = f$"] = (list(COUNTED), [float(solution(n)) for n in COUNTED])

    times: dict[str, tuple[list[int], list[float]]] = {"forces": ([], []), "matrix": ([], [])}
    for n in COUNTED:
        tree, (q, v, a) = chain(n), np.random.default_rng(n).normal(size=(3, n))
        best: dict[str, float] = dict.fromkeys(times, np.inf)
        for _ in range(3):
            world = WorldEquations(tree, q, v, np.array([0.0, 0.0, -9.81]))
            begun = time.perf_counter()
            world.forces(a)
            best["forces"] = min(best["forces"], time.perf_counter() - begun)
            begun = time.perf_counter()
            world.mass_matrix.sum()
            best["matrix"] = min(best["matrix"], time.perf_counter() - begun)
        for name, seconds in best.items():
            times[name][0].append(n)
            times[name][1].append(seconds)
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.6))
    colours = (GREEN, BLUE, ORANGE, RED, GREY)
    for (label, (n, y)), colour in zip(counts.items(), colours, strict=True):
        exponent = slope(n, y, 64)
        print(f"{label}: exponent {exponent:.3f} from 64 bodies on, {slope(n[-2:], y[-2:], 1):.3f} between the last two")
        alone = label.startswith("solution")
        axes[0].loglog(n, y, "--" if alone else "o-", color=colour, ms=3, lw=1, label=f"{label}: $N^{{{exponent:.2f}}}$")
    axes[0].set(xlabel="moving bodies N", ylabel="operations", title="Compiled kernels: operations of one evaluation")
    labels = {"forces": "loads, (15), by $\\Psi_D$ and $\\Psi_D^T$", "matrix": "then M by its three steps, (18c)"}
    for (name, (n, y)), colour in zip(times.items(), (BLUE, ORANGE), strict=True):
        exponent = slope(n, y, 64)
        print(f"explicit {name}: {[f'{x * 1e3:.2f} ms' for x in y]}, exponent {exponent:.3f} from 64 bodies on")
        axes[1].loglog(n, np.array(y) * 1e3, "o-", color=colour, ms=3, lw=1, label=f"{labels[name]}: $N^{{{exponent:.2f}}}$")
    axes[1].set(xlabel="moving bodies N", ylabel="wall time, ms", title="Explicit operators (WorldEquations)")
    for axis in axes:
        axis.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
        axis.minorticks_off()
        axis.legend(fontsize=7.5)
    save(figure, "articulated_scaling")


FIGURES: dict[str, Callable[[], None]] = {"energy": energy, "scaling": scaling}


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    style()
    for chosen in sys.argv[1:] or FIGURES:
        FIGURES[chosen]()
