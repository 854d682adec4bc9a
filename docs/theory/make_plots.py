"""Draws the figures of these pages and prints the numbers that they quote.

    python -m docs.theory.make_plots [figure ...]

Without names, every figure; `energy` takes about two minutes, `scaling` about seven, the others seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import casadi as ca
import matplotlib.pyplot as plt
import numpy as np

from dyn_service.dynamics import segments
from dyn_service.dynamics.influence import WorldEquations, nilpotency
from dyn_service.dynamics.particles import ParticleSystem
from dyn_service.kernels.frames import simplest
from dyn_service.kernels.graph import trace
from dyn_service.kernels.signature import signature_of
from dyn_service.model.tree import Tree, weld
from dyn_service.model.urdf import read_text
from dyn_service.queries import QUERIES, Wrench
from dyn_service.robot import Robot
from dyn_service.sim import simulate
from dyn_service.sim.rheonomic import RheonomicRobot
from tests.random_robots import random_urdf

ROOT = Path(__file__).parent.parent.parent
IMAGES = Path(__file__).parent / "img"
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
        print(
            f"{label}: exponent {exponent:.3f} from 64 bodies on, {slope(n[-2:], y[-2:], 1):.3f} between the last two"
        )
        alone = label.startswith("solution")
        axes[0].loglog(
            n, y, "--" if alone else "o-", color=colour, ms=3, lw=1, label=f"{label}: $N^{{{exponent:.2f}}}$"
        )
    axes[0].set(xlabel="moving bodies N", ylabel="operations", title="Compiled kernels: operations of one evaluation")
    labels = {"forces": "loads, (15), by $\\Psi_D$ and $\\Psi_D^T$", "matrix": "then M by its three steps, (18c)"}
    for (name, (n, y)), colour in zip(times.items(), (BLUE, ORANGE), strict=True):
        exponent = slope(n, y, 64)
        print(f"explicit {name}: {[f'{x * 1e3:.2f} ms' for x in y]}, exponent {exponent:.3f} from 64 bodies on")
        axes[1].loglog(
            n, np.array(y) * 1e3, "o-", color=colour, ms=3, lw=1, label=f"{labels[name]}: $N^{{{exponent:.2f}}}$"
        )
    axes[1].set(xlabel="moving bodies N", ylabel="wall time, ms", title="Explicit operators (WorldEquations)")
    for axis in axes:
        axis.set_xticks([2, 8, 32, 128, 512], ["2", "8", "32", "128", "512"])
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

    cart = robot("cart_pendulum")
    motion = simulate(cart, [0.0, 2.5], [0.0, 0.0], dt=1e-3, steps=3000)
    loads = cart.constraint_forces(motion.q, motion.v, np.zeros(2), joints=["hinge", "cart_slide"], frame="world")
    hinge, rail = loads.wrench[:, 0], loads.wrench[:, 1]
    axes[1].plot(motion.t, hinge[:, 3], color=BLUE, label="hinge, force x")
    axes[1].plot(motion.t, hinge[:, 5], color=ORANGE, label="hinge, force z")
    axes[1].plot(motion.t, rail[:, 5], color=GREEN, label="rail, force z")
    axes[1].set(xlabel="time, s", ylabel="N, world axes", title="Example 2 let go at $\\theta$ = 2.5 rad")
    axes[1].legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    save(figure, "newton_euler")


def gains() -> None:
    """What each joint of the Panda meets: branch inertia yielding (R) and holding (diagonal of M)."""
    panda = robot("panda")
    q = np.array([0.0, -0.8, 0.0, -2.3, 0.0, 1.6, 0.8, 0.02, 0.02])
    found, M = panda.branch_inertias(q), panda.mass_matrix(q)
    R, rigid = found.resistance[:7], np.diag(M)[:7]
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
    pendulum = robot("double_pendulum")
    relative = np.array([[1.0, 0.0], [-1.0, 1.0]])
    dt, steps, l1, l2, g = 1e-4, 40_000, 1.0, 0.5, 9.81
    angles = {}
    for label, missing in (("as printed", g * (l1 - l2)), ("corrected", 0.0)):
        motion = pendulum.simulate(
            relative @ [np.pi / 10, np.pi / 3],
            relative @ [2 * np.pi, -6 * np.pi],
            lambda t, q, v, missing=missing: np.array([missing * np.sin(q[0]), 0.0]),
            dt=dt,
            steps=steps,
            integrator="explicit_euler",
            every=40,
        )
        angles[label] = np.stack([motion.q[:, 0], motion.q.sum(axis=-1)], axis=-1)
        t = motion.t
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.3))
    for (label, theta), line in zip(angles.items(), ("--", "-"), strict=True):
        axes[0].plot(t, theta[:, 0], line, color=BLUE, lw=1.1, label=f"$\\theta_1$, {label}")
        axes[0].plot(t, theta[:, 1], line, color=ORANGE, lw=1.1, label=f"$\\theta_2$, {label}")
    apart = np.abs(angles["as printed"] - angles["corrected"]).max(axis=1)
    print(
        f"printed and corrected: 0.01 rad apart at {t[np.argmax(apart > 0.01)]:.2f} s, 1 rad at "
        f"{t[np.argmax(apart > 1.0)]:.2f} s"
    )
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


LEG = """<robot name="leg"><link name="pelvis"/>
<link name="thigh"><inertial><origin xyz="0 0 -0.19"/><mass value="8"/>
  <inertia ixx="0.13" iyy="0.13" izz="0.03" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="shank"><inertial><origin xyz="0 0 -0.18"/><mass value="3.5"/>
  <inertia ixx="0.05" iyy="0.05" izz="0.006" ixy="0" ixz="0" iyz="0"/></inertial></link>
<link name="foot"><inertial><origin xyz="0.06 0 -0.04"/><mass value="1"/>
  <inertia ixx="0.001" iyy="0.004" izz="0.004" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="hip" type="continuous"><parent link="pelvis"/><child link="thigh"/>
  <origin xyz="0 0 0.9"/><axis xyz="0 -1 0"/></joint>
<joint name="knee" type="continuous"><parent link="thigh"/><child link="shank"/>
  <origin xyz="0 0 -0.42"/><axis xyz="0 -1 0"/></joint>
<joint name="ankle" type="continuous"><parent link="shank"/><child link="foot"/>
  <origin xyz="0 0 -0.4"/><axis xyz="0 -1 0"/></joint></robot>"""


def gait() -> None:
    """A stride made up of harmonics: moments at ankle, knee and hip from segments, against the robot's efforts."""
    leg, names = Robot.from_urdf(LEG), ("foot", "shank", "thigh")
    period = 1.1
    t = np.linspace(0.0, period, 111)
    w = 2 * np.pi / period
    phase = w * t[:, None]
    mean, amplitude, shift = np.array([[0.15, -0.55, 0.0], [0.4, 0.5, 0.2], [0.0, 1.2, 2.0]])
    q = mean + amplitude * np.cos(phase + shift)
    v, a = -w * amplitude * np.sin(phase + shift), -w * w * amplitude * np.cos(phase + shift)
    stance = np.clip(np.sin(np.pi * t / (0.6 * period)), 0.0, None) * (t < 0.6 * period)
    grf = np.stack([-120 * np.cos(np.pi * t / (0.6 * period)) * stance, 0 * t, 750 * stance], axis=-1)
    cop_in_foot = np.stack([-0.04 + 0.2 * np.clip(t / (0.6 * period), 0, 1), 0 * t, 0 * t - 0.08], axis=-1)

    rows = [leg.link_names.index(name) for name in names]
    poses, motion = leg.link_poses(q), leg.link_motion(q, v, a, frame="world")
    R, origin = poses.rotation[:, rows], poses.position[:, rows]
    s = np.einsum("fnij,nj->fni", R, [leg.tree.inertia[i].com for i in rows])
    omega, omega_dot = motion.velocity[:, rows, :3], motion.acceleration[:, rows, :3]
    centre = motion.acceleration[:, rows, 3:] + np.cross(omega_dot, s) + np.cross(omega, np.cross(omega, s))
    cop = origin[:, 0] + np.einsum("fij,fj->fi", R[:, 0], cop_in_foot)
    lower = np.stack([cop, origin[:, 0], origin[:, 1]], axis=1)
    turn = np.swapaxes(R, -1, -2)
    found = segments.inverse_dynamics(
        [1.0, 3.5, 8.0],
        [leg.tree.inertia[i].about_com for i in rows],
        turn,
        centre,
        np.einsum("fnij,fnj->fni", turn, omega),
        np.einsum("fnij,fnj->fni", turn, omega_dot),
        -s,
        lower - (origin + s),
        grf,
        gravity=(0.0, 0.0, -9.81),
    )
    push = Wrench("foot", force=grf, point=cop_in_foot)
    tau = leg.inverse_dynamics(q, v, a, wrenches=push)
    moments = -found.moment[..., 1]  # about the joints' axis, -y
    order = [leg.joint_names.index(name) for name in ("ankle", "knee", "hip")]
    print(f"segments against the robot: at most {np.abs(moments - tau[:, order]).max():.1e} N m apart")
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.2))
    for k, (name, colour) in enumerate(zip(("ankle", "knee", "hip"), (BLUE, ORANGE, GREEN), strict=True)):
        axes[0].plot(t, moments[:, k], color=colour, lw=1.2, label=name)
        axes[0].plot(t[::5], tau[::5, order[k]], "o", color=colour, ms=2.5)
        axes[1].plot(t, np.linalg.norm(found.force[:, k], axis=-1), color=colour, lw=1.2, label=name)
    axes[1].plot(t, np.linalg.norm(grf, axis=-1), color=GREY, lw=1, ls="--", label="ground")
    axes[0].set(xlabel="time, s", ylabel="N m", title="Moments: segments (lines), robot (dots)")
    axes[1].set(xlabel="time, s", ylabel="N", title="Forces at the joints")
    for axis in axes:
        low, high = axis.get_ylim()
        axis.set_ylim(low - 0.1 * (high - low), high)
        axis.axvspan(0, 0.6 * period, color=GREY, alpha=0.08)
        axis.text(
            0.3 * period, 0.02, "foot on the ground", transform=axis.get_xaxis_transform(), ha="center", color=GREY
        )
        axis.legend()
    save(figure, "matrix_gait")


FIGURES: dict[str, Callable[[], None]] = {
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
