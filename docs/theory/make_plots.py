"""Draws the figures of these pages and writes the numbers that they quote into them.

    python -m docs.theory.make_plots [figure ...]      # all of it without names; `energy`, `scaling` take minutes
    python -m docs.theory.make_plots numbers           # only what `docs/theory/numbers.py` counts: half a minute

A page's numbers are between `<!-- made: NAME -->` and `<!-- end -->`; tests/docs fails when the quick ones are stale.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import casadi as ca
import matplotlib.pyplot as plt
import numpy as np

from docs.pages import with_section
from docs.theory.drawings import DRAWINGS
from docs.theory.numbers import PATHS, PERIOD, QUICK, chain, operations, program, robot, stride, swing, thousands
from dyn_service.formulations import ParticleSystem, WorldEquations, nilpotency
from dyn_service.simulation import RheonomicRobot, simulate

HERE = Path(__file__).parent
IMAGES = HERE / "img"
BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#d9741a", "#2e8b57", "#b03a3a", "#777777"


def style() -> None:
    """Small figures whose letters can be read, drawn without a screen."""
    plt.switch_backend("Agg")
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


def write(page: str, name: str, text: str) -> None:
    """Brings one part of a page up to date."""
    path = HERE / page
    path.write_text(with_section(path.read_text(encoding="utf-8"), name, text), encoding="utf-8")
    print(f"-> docs/theory/{page}, {name}")


def numbers() -> None:
    """What is counted in seconds."""
    for name, (page, made) in QUICK.items():
        write(page, name, made())


def energy() -> None:
    """Energy over a million coarse steps: implicit midpoint in (q, p) and RK4 in (q, v)."""
    lines = ["| | largest energy error, first tenth | last tenth | at the end | time |", "|---|---|---|---|---|"]
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
        lines.append(
            f"| {label.removesuffix(', symplectic')} | {np.abs(error[:tenth]).max():.4f} J | "
            f"{np.abs(error[-tenth:]).max():.4f} J | {error[-1]:.4f} J | {time.perf_counter() - begun:.0f} s |"
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
    lines.insert(0, f"Above hanging still it has {found[0] - lowest:.3f} J.\n")
    write("hamilton.md", "energy", "\n".join(lines))


COUNTED = (2, 4, 8, 16, 32, 64, 128, 181, 256)
LARGEST = {"forward dynamics, (19a)": 128}
"""Beyond it a path's graph takes minutes to trace."""


def solution(n: int) -> int:
    """Operations of L^T L = M, L^T L a = f for a chain of n joints: what (19a) adds to M and C."""
    factor = n * 2 + n * (n - 1) // 2 + sum(k * (k + 1) for k in range(n))
    return factor + 2 * (n + n * (n - 1)) + n  # two triangular solutions, and f - C


def slope(n: list[int], y: list[float], least: int) -> float:
    """Exponent of the power law fitted from `least` bodies on."""
    kept = [(a, b) for a, b in zip(n, y, strict=True) if a >= least]
    return float(np.polyfit(*np.log(np.array(kept)).T, 1)[0])


def scaling() -> None:
    """Operations of the traced graphs, and wall time of the explicit operators, on chains of 2 to 256 bodies."""
    sys.setrecursionlimit(20_000)
    found: dict[str, tuple[list[int], list[float]]] = {}
    slowest = 0.0
    for label in PATHS:
        sizes, row = [n for n in COUNTED if n <= LARGEST.get(label, COUNTED[-1])], []
        for n in sizes:
            tree, begun = chain(n), time.perf_counter()
            row.append(float(operations(tree, label)))
            slowest = max(slowest, time.perf_counter() - begun)
        found[label] = (sizes, row)
        print(f"{label}: {dict(zip(sizes, map(int, row), strict=True))}", flush=True)
    (_, inverse), _, (_, assembly), (sizes, solved) = found.values()
    last = sizes[-1]
    rest = solved[-1] - assembly[len(sizes) - 1] - inverse[len(sizes) - 1]
    gap = abs(rest - solution(last)) / rest
    alone = "its solution alone, M = L^T L"
    found[alone] = (list(COUNTED), [float(solution(n)) for n in COUNTED])

    times: dict[str, tuple[list[int], list[float]]] = {
        "explicit loads, (15), wall time": ([], []),
        "explicit M by the three steps, wall time": ([], []),
    }
    for n in COUNTED:
        tree, (q, v, a) = chain(n), np.random.default_rng(n).normal(size=(3, n))
        best = [np.inf, np.inf]
        for _ in range(3):
            world = WorldEquations(tree, q, v, np.array([0.0, 0.0, -9.81]))
            begun = time.perf_counter()
            world.forces(a)
            between = time.perf_counter()
            world.mass_matrix.sum()
            best = [min(best[0], between - begun), min(best[1], time.perf_counter() - between)]
        for (sizes, row), seconds in zip(times.values(), best, strict=True):
            sizes.append(n)
            row.append(seconds * 1e3)

    ends = [64, COUNTED[-1]]
    lines = [
        f"| path | {ends[0]}, {ends[1]} bodies | exponent fitted from {ends[0]} bodies on | between the last two |",
        "|---|---|---|---|",
    ]
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.6))
    for axis, curves, colours in ((axes[0], found, (GREEN, BLUE, ORANGE, RED, GREY)), (axes[1], times, (BLUE, ORANGE))):
        for (label, (n, y)), colour in zip(curves.items(), colours, strict=True):
            exponent, at = slope(n, y, 64), dict(zip(n, y, strict=True))
            shown = [
                f"{at[k]:.3g} ms" if curves is times else thousands(int(at[k])) for k in (ends[0], min(ends[1], n[-1]))
            ]
            limit = f" ({n[-1]})" if n[-1] < ends[1] else ""
            lines.append(f"| {label} | {', '.join(shown)}{limit} | {exponent:.3f} | {slope(n[-2:], y[-2:], 1):.3f} |")
            axis.loglog(
                n,
                y,
                "--" if label == alone else "o-",
                color=colour,
                ms=3,
                lw=1,
                label=f"{label}: $N^{{{exponent:.2f}}}$",
            )
    lines += [
        "",
        f"Tracing (19a) at {last} bodies takes {slowest:.0f} s, so that path ends there. The solution alone is "
        f"counted in\nclosed form, which differs from the traced total less M and C by {gap:.2%} at {last} bodies "
        "(subexpressions that\nthe two share).",
    ]
    write("articulated.md", "scaling", "\n".join(lines))
    axes[0].set(xlabel="moving bodies N", ylabel="operations", title="Compiled kernels: operations of one evaluation")
    axes[1].set(xlabel="moving bodies N", ylabel="wall time, ms", title="Explicit operators (WorldEquations)")
    for axis in axes:
        axis.set_xticks([2, 8, 32, 128], ["2", "8", "32", "128"])
        axis.minorticks_off()
        axis.legend(fontsize=7.5)
    save(figure, "articulated_scaling")


def newton_euler() -> None:
    """How far influence reaches in the tree of Fig. 2; loads at the hinge of Example 2 while it swings."""
    tree = robot("ten_body_tree").bodies.tree
    number = np.array([int(name.removeprefix("body_")) for name in tree.links])
    steps = np.full((10, 10), np.nan)
    for i in range(10):
        for k, j in enumerate(tree.ancestors(i)):
            steps[number[i] - 1, number[j] - 1] = k
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.4), width_ratios=(1, 1.45))
    shown = axes[0].imshow(steps, cmap=plt.get_cmap("viridis_r", 5), vmin=-0.5, vmax=4.5)
    axes[0].set_xticks(range(10), [str(k + 1) for k in range(10)])
    axes[0].set_yticks(range(10), [str(k + 1) for k in range(10)])
    axes[0].grid(visible=False)
    axes[0].set(xlabel="body j that acts", ylabel="body i", title=f"$\\Psi_A$, Fig. 2: nilpotency {nilpotency(tree)}")
    figure.colorbar(shown, ax=axes[0], ticks=range(5), label="power k of $\\Phi_A^k$ that fills it", shrink=0.85)

    found = swing()
    axes[1].plot(found.t, found.hinge[:, 3], color=BLUE, label="hinge, force x")
    axes[1].plot(found.t, found.hinge[:, 5], color=ORANGE, label="hinge, force z")
    axes[1].plot(found.t, found.rail[:, 5], color=GREEN, label="rail, force z")
    axes[1].set(xlabel="time, s", ylabel="N, world axes", title="Example 2 let go at $\\theta$ = 2.5 rad")
    axes[1].legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    save(figure, "newton_euler")


def gains() -> None:
    """What each joint of the Panda meets: branch inertia yielding (R) and holding (diagonal of M)."""
    panda = robot("panda")
    q = np.array([0.0, -0.8, 0.0, -2.3, 0.0, 1.6, 0.8, 0.02, 0.02])
    found, M = panda.branch_inertias(q), panda.mass_matrix(q)
    R, rigid = np.diag(found.resistance)[:7], np.diag(M)[:7]
    print("R:", np.round(R, 4), "diagonal of M:", np.round(rigid, 4))
    place = np.arange(7)
    figure, axis = plt.subplots(figsize=(5.6, 3.0))
    axis.bar(place - 0.2, rigid, 0.4, color=GREY, label="$M_{ii}$: joints outward of it hold")
    axis.bar(place + 0.2, R, 0.4, color=BLUE, label="$R_i$: joints outward of it yield")
    axis.set_yscale("log")
    axis.set_xticks(place, [name.removeprefix("panda_") for name in found.joints[:7]])
    axis.set(ylabel="inertia about the axis, kg m$^2$", title="Panda: what each joint meets")
    axis.set_ylim(top=12.0)
    axis.legend(loc="upper right")
    save(figure, "articulated_gains")


def rheonomic() -> None:
    """A pendulum whose pivot shakes up and down stands on its head; efforts and energies of a driven base."""
    length, amplitude, frequency = 0.3, 0.02, 2 * np.pi * 40
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.2))
    for amp, colour, label in ((0.0, GREY, "pivot at rest"), (amplitude, BLUE, "pivot shaken 20 mm at 40 Hz")):
        system = ParticleSystem(
            [1.0],
            lambda q, t, amp=amp: [length * ca.sin(q), amp * ca.cos(frequency * t) - length * ca.cos(q)],
            1,
            dimension=2,
        )
        dt, q, v = 5e-4, np.array([np.pi - 0.25]), np.array([0.0])
        angles = [q[0]]
        for k in range(6000):
            t = k * dt

            def a(t: float, q: np.ndarray, v: np.ndarray, system: ParticleSystem = system) -> np.ndarray:
                return system.forward_dynamics(q, v, 0.0, t)

            k1 = a(t, q, v)
            k2 = a(t + dt / 2, q + dt / 2 * v, v + dt / 2 * k1)
            k3 = a(t + dt / 2, q + dt / 2 * v + dt * dt / 4 * k1, v + dt / 2 * k2)
            k4 = a(t + dt, q + dt * v + dt * dt / 2 * k2, v + dt * k3)
            q, v = q + dt * v + dt * dt / 6 * (k1 + k2 + k3), v + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            angles.append(q[0])
        angles_deg = np.degrees(angles)
        print(f"{label}: angle stays within {angles_deg.min():.1f} .. {angles_deg.max():.1f} degrees over 3 s")
        axes[0].plot(dt * np.arange(6001), angles_deg, color=colour, lw=1, label=label)
    axes[0].axhline(180, color=RED, lw=0.8, ls="--")
    axes[0].text(3.0, 200, "upright", color=RED, ha="right", va="bottom")
    axes[0].set_ylim(-190, 330)
    axes[0].set(xlabel="time, s", ylabel="angle from hanging, degrees", title="Particle with explicit time, 5.2")
    axes[0].legend(loc="upper left")

    cart = robot("cart_pendulum")
    moving = RheonomicRobot(cart, {"cart_slide": swayed})
    motion = moving.simulate([0.0], [0.0], dt=1e-3, steps=6000)
    power = motion.tau[:, 0] * motion.v[:, 0]
    work = np.concatenate([[0.0], np.cumsum((power[1:] + power[:-1]) / 2 * 1e-3)])
    total = cart.energy(motion.q, motion.v).total
    print(
        f"work less change of energy: at most {np.abs(work - (total - total[0])).max():.2e} J of {np.ptp(total):.2f} J"
    )
    axes[1].plot(motion.t, motion.tau[:, 0], color=ORANGE, lw=1, label="force on the base, N")
    axes[1].plot(motion.t, work, color=BLUE, lw=1, label="its work, J")
    axes[1].plot(motion.t[::200], (total - total[0])[::200], "o", color=GREEN, ms=3, label="energy gained, J")
    axes[1].set(xlabel="time, s", ylabel="N | J", title="Base prescribed: x = 0.1 sin 4t m")
    axes[1].legend(loc="upper left", ncols=2)
    axes[1].set_ylim(top=axes[1].get_ylim()[1] * 1.6)
    save(figure, "projected_rheonomic")


def swayed(t: float) -> tuple[float, float, float]:
    """x(t) of the base and its derivatives."""
    return 0.1 * np.sin(4 * t), 0.4 * np.cos(4 * t), -1.6 * np.sin(4 * t)


def body_frame() -> None:
    """f_i and eta_i along a UR5e that swings all its joints."""
    arm = robot("ur5e")
    t = np.linspace(0.0, 2.0, 401)
    rates, amplitude = np.array([2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), 0.5
    phase = t[:, None] * rates
    q = np.array([0.0, -1.2, 1.4, -0.6, 0.5, 0.0]) + amplitude * np.sin(phase)
    v, a = amplitude * rates * np.cos(phase), -amplitude * rates**2 * np.sin(phase)
    found = arm.body_recursion(q, v, a)
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.3))
    colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.9, 6))
    for k, (joint, colour) in enumerate(zip(arm.joint_names, colours, strict=True)):
        i = arm.tree.joints.index(joint)
        axes[0].plot(t, np.linalg.norm(found.force[:, i], axis=-1), color=colour, lw=1.2, label=joint)
        axes[1].plot(t, np.linalg.norm(found.moment[:, i], axis=-1), color=colour, lw=1.2)
        axes[1].plot(t, np.abs(found.tau[:, k]), color=colour, lw=0.8, ls=":")
    axes[0].set(xlabel="time, s", ylabel="$|f_i|$, N", title="UR5e: force at each joint")
    axes[1].set(xlabel="time, s", ylabel="N m", title="moment $|\\eta_i|$, and the effort in it (dotted)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=6, fontsize=7.5)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(IMAGES / "body_frame.png")
    plt.close(figure)
    print("-> docs/theory/img/body_frame.png")


def matrix_formalism() -> None:
    """The document's double pendulum by its program, as printed and corrected, and by the robot's named terms."""
    pendulum, made = robot("double_pendulum"), program()
    relative = np.array([[1.0, 0.0], [-1.0, 1.0]])
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.3))
    for label, theta, line in (("as printed", made.as_printed, "--"), ("corrected", made.corrected, "-")):
        axes[0].plot(made.t, theta[:, 0], line, color=BLUE, lw=1.1, label=f"$\\theta_1$, {label}")
        axes[0].plot(made.t, theta[:, 1], line, color=ORANGE, lw=1.1, label=f"$\\theta_2$, {label}")
    axes[0].set(xlabel="time, s", ylabel="rad, from the vertical", title="The document's program")
    axes[0].legend(fontsize=7.5, ncols=2)
    motion = simulate(
        pendulum, relative @ [np.pi / 10, np.pi / 3], relative @ [2 * np.pi, -6 * np.pi], dt=1e-3, steps=2000
    )
    terms = pendulum.equation_terms(motion.q, motion.v, np.zeros(2))
    inertial = np.einsum("tij,tj->ti", terms.mass_matrix, pendulum.forward_dynamics(motion.q, motion.v, np.zeros(2)))
    absolute = relative  # forces on theta are relative^T those on q
    for (label, row), colour in zip(
        {"M $\\ddot\\theta$": inertial, "C": terms.velocity_forces, "G": terms.gravity_forces}.items(),
        (GREY, GREEN, RED),
        strict=True,
    ):
        axes[1].plot(motion.t, (row @ absolute)[:, 0], color=colour, lw=1.2, label=label)
    axes[1].set(xlabel="time, s", ylabel="N m on $\\theta_1$", title="M $\\ddot\\theta$ = C + G (Q = E = 0)")
    axes[1].set_ylim(-100, 125)
    axes[1].legend(ncols=3, loc="upper center")
    save(figure, "matrix_formalism")


def gait() -> None:
    """A stride made up of harmonics: moments at ankle, knee and hip from segments, against the robot's efforts."""
    found = stride()
    t = found.t
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.2))
    for k, (name, colour) in enumerate(zip(("ankle", "knee", "hip"), (BLUE, ORANGE, GREEN), strict=True)):
        axes[0].plot(t, found.moments[:, k], color=colour, lw=1.2, label=name)
        axes[0].plot(t[::5], found.efforts[::5, k], "o", color=colour, ms=2.5)
        axes[1].plot(t, found.forces[:, k], color=colour, lw=1.2, label=name)
    axes[1].plot(t, np.linalg.norm(found.ground, axis=-1), color=GREY, lw=1, ls="--", label="ground")
    axes[0].set(xlabel="time, s", ylabel="N m", title="Moments: segments (lines), robot (dots)")
    axes[1].set(xlabel="time, s", ylabel="N", title="Forces at the joints")
    for axis in axes:
        low, high = axis.get_ylim()
        axis.set_ylim(low - 0.1 * (high - low), high)
        axis.axvspan(0, 0.6 * PERIOD, color=GREY, alpha=0.08)
        axis.text(
            0.3 * PERIOD, 0.02, "foot on the ground", transform=axis.get_xaxis_transform(), ha="center", color=GREY
        )
        axis.legend()
    save(figure, "matrix_gait")


def drawings() -> None:
    """The line drawings, as SVG."""
    for name, drawn in DRAWINGS.items():
        (IMAGES / f"{name}.svg").write_text(drawn(), encoding="utf-8")
        print(f"-> docs/theory/img/{name}.svg")


FIGURES: dict[str, Callable[[], None]] = {
    "numbers": numbers,
    "drawings": drawings,
    "newton_euler": newton_euler,
    "gains": gains,
    "scaling": scaling,
    "energy": energy,
    "rheonomic": rheonomic,
    "body_frame": body_frame,
    "matrix_formalism": matrix_formalism,
    "gait": gait,
}


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    style()
    for chosen in sys.argv[1:] or FIGURES:
        FIGURES[chosen]()
