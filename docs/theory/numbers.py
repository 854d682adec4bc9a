"""The numbers that the pages quote and that take seconds: each function returns the text of one part of a page.

`docs.theory.make_plots` writes them into the pages, and tests/docs holds the pages against them. Counts of operations
do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dyn_service import QUERIES, Robot, Wrench
from dyn_service.formulations import segments
from dyn_service.kernels.frames import cheapest_frames
from dyn_service.kernels.graph import trace
from dyn_service.kernels.signature import signature_of
from dyn_service.model.building import tree_of
from dyn_service.model.composite import weld
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_text
from dyn_service.simulation import simulate
from tests.random_robots import random_urdf

ROOT = Path(__file__).parent.parent.parent

PATHS = {
    "inverse dynamics, (13), (18a)": ("inverse_dynamics", ""),
    "forward dynamics, (19b)": ("forward_dynamics", "articulated"),
    "mass matrix, (18c)": ("mass_matrix", ""),
    "forward dynamics, (19a)": ("forward_dynamics", "mass_matrix"),
}
"""The ways whose cost is counted: query and method."""

SMALL = (4, 8, 16, 32)
"""Moving bodies of the chains that are quick to trace."""


@cache
def robot(name: str) -> Robot:
    """One of the robots under urdf/, each of its joints moving by itself, as (19b) has it."""
    return Robot.from_urdf(ROOT / "urdf" / f"{name}.urdf", mimic=False)


def chain(bodies: int) -> Tree:
    """A random serial chain of moving bodies."""
    return weld(tree_of(read_text(random_urdf(1, movable=bodies, bushy=0.0)))).tree


def operations(tree: Tree, path: str) -> int:
    """Operations of one evaluation of the kernel that is made for the moving bodies of a tree."""
    name, method = PATHS[path]
    row, n = QUERIES[name], len(tree)
    shape = dict.fromkeys(("nq", "nv", "nl", "nb"), n) | {"nj": n - 1}
    signature = signature_of(row, method or next(iter(row.kernels)), shape)
    return trace(cheapest_frames(tree), signature).operations


def thousands(number: int) -> str:
    """12345 as 12 345."""
    return f"{number:,}".replace(",", " ")


def counts() -> str:
    """Operations on short chains, and which way to forward dynamics takes fewer."""
    lines = [
        "| operations on a chain of | " + " | ".join(f"{n} bodies" for n in SMALL) + " | exponent, last two |",
        "|---|" + "---|" * (len(SMALL) + 1),
    ]
    trees = [chain(n) for n in SMALL]
    found = {path: [operations(tree, path) for tree in trees] for path in PATHS}
    for path, row in found.items():
        exponent = np.log(row[-1] / row[-2]) / np.log(SMALL[-1] / SMALL[-2])
        lines.append(f"| {path} | {' | '.join(map(thousands, row))} | {exponent:.2f} |")
    shorter = [
        n
        for n, one, other in zip(SMALL, found["forward dynamics, (19b)"], found["forward dynamics, (19a)"], strict=True)
        if one < other
    ]
    return "\n".join(
        [*lines, "", f"Of these chains (19b) takes fewer operations than (19a) from {shorter[0]} bodies on."]
    )


def robots() -> str:
    """Operations of the kernels of four robots."""
    names = ("double_pendulum", "ur5e", "panda", "upper_body")
    heads = [f"{name.replace('_', ' ')}, {robot(name).nv} joints" for name in names]
    lines = ["| operations of a kernel | " + " | ".join(heads) + " |", "|---|" + "---|" * len(names)]
    for path in PATHS:
        row = [thousands(operations(robot(name).bodies.tree, path)) for name in names]
        lines.append(f"| {path} | {' | '.join(row)} |")
    return "\n".join(lines)


class Program(NamedTuple):
    """Motions of the matrix document's program: t (K,) s, and both angles from the vertical, (K, 2) rad each."""

    t: np.ndarray
    as_printed: np.ndarray
    corrected: np.ndarray


@cache
def program() -> Program:
    """The document's explicit Euler steps of 0.1 ms from its own initial values, every fortieth."""
    pendulum, relative = robot("double_pendulum"), np.array([[1.0, 0.0], [-1.0, 1.0]])
    dt, steps, every, l1, l2, g = 1e-4, 40_000, 40, 1.0, 0.5, 9.81
    motions = []
    for missing in (g * (l1 - l2), 0.0):  # what m2 g l2 leaves out of the weight on the first bar
        q, v = relative @ [np.pi / 10, np.pi / 3], relative @ [2 * np.pi, -6 * np.pi]
        rows = []
        for k in range(steps):
            if k % every == 0:
                rows.append([q[0], q[0] + q[1]])
            tau = np.array([missing * np.sin(q[0]), 0.0])
            q, v = q + dt * v, v + dt * pendulum.forward_dynamics(q, v, tau)
        motions.append(np.array(rows))
    return Program(dt * every * np.arange(steps // every), *motions)


def slip_in_the_program() -> str:
    """How soon the slip in the document's program shows."""
    found = program()
    apart = np.abs(found.as_printed - found.corrected).max(axis=1)
    times = [found.t[np.argmax(apart > angle)] for angle in (0.01, 1.0)]
    return (
        "Left, the document's program from its own initial values (explicit Euler, 0.1 ms), as printed and with l1 in\n"
        f"place of l2: 0.01 rad apart after {times[0]:.2f} s, 1 rad after {times[1]:.2f} s. The tests reproduce both\n"
        "step by step for 1000 steps. Right, the terms of the first row along the motion."
    )


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
PERIOD = 1.1
"""s, of a stride."""


def twenty_seconds() -> str:
    """How long the document's steps follow the motion that they integrate, and what is left after its 20 s."""
    pendulum, relative = robot("double_pendulum"), np.array([[1.0, 0.0], [-1.0, 1.0]])
    first = relative @ [np.pi / 10, np.pi / 3], relative @ [2 * np.pi, -6 * np.pi]
    euler, exact, finer = (
        simulate(pendulum, *first, dt=dt, steps=round(20.0 / dt), integrator=name)
        for name, dt in (("explicit_euler", 1e-4), ("rk4", 1e-4), ("rk4", 5e-5))
    )
    error = np.abs(np.cumsum(euler.q - exact.q, axis=1)).max(axis=1)
    times = [euler.t[np.argmax(error > angle)] for angle in (0.1, 1.0)]
    certain = np.abs(np.cumsum(exact.q - finer.q[::2], axis=1)).max()
    ends = [np.cumsum(motion.q[-1])[1] for motion in (euler, exact)]
    energy = pendulum.energy(euler.q[[0, -1]], euler.v[[0, -1]]).total
    return (
        f"The program runs for 20 s. Its explicit Euler steps mean nothing after {times[1]:.0f} s: the angles are\n"
        f"wrong by 0.1 rad after {times[0]:.1f} s and by 1 rad after {times[1]:.1f} s. At 20 s the second bar is at\n"
        f"{ends[0]:.1f} rad instead of {ends[1]:.2f}, several turns away, and the pendulum has\n"
        f"{energy[1] - energy[0]:.2f} J more than at the start. `rk4` with the same steps is right to {certain:.0e}\n"
        "rad over all 20 s."
    )


class Stride(NamedTuple):
    """t (K,) s; at ankle, knee, hip moments and the robot's efforts (K, 3) N m, forces (K, 3) N; ground (K, 3) N."""

    t: np.ndarray
    moments: np.ndarray
    efforts: np.ndarray
    forces: np.ndarray
    ground: np.ndarray


@cache
def stride() -> Stride:
    """A stride made up of harmonics under a made-up ground reaction."""
    leg, names = Robot.from_urdf(LEG), ("foot", "shank", "thigh")
    t = np.linspace(0.0, PERIOD, 111)
    w = 2 * np.pi / PERIOD
    phase = w * t[:, None]
    mean, amplitude, shift = np.array([[0.15, -0.55, 0.0], [0.4, 0.5, 0.2], [0.0, 1.2, 2.0]])
    q = mean + amplitude * np.cos(phase + shift)
    v, a = -w * amplitude * np.sin(phase + shift), -w * w * amplitude * np.cos(phase + shift)
    share = t / (0.6 * PERIOD)
    stance = np.clip(np.sin(np.pi * share), 0.0, None) * (share < 1.0)
    grf = np.stack([-120 * np.cos(np.pi * share) * stance, 0 * t, 750 * stance], axis=-1)
    cop_in_foot = np.stack([-0.04 + 0.2 * np.clip(share, 0, 1), 0 * t, 0 * t - 0.08], axis=-1)

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
    tau = leg.inverse_dynamics(q, v, a, wrenches=Wrench("foot", force=grf, point=cop_in_foot))
    order = [leg.joint_names.index(name) for name in ("ankle", "knee", "hip")]
    forces = np.linalg.norm(found.force, axis=-1)
    return Stride(t, -found.moment[..., 1], tau[:, order], forces, grf)  # moments about the joints' axis, -y


def segments_against_the_robot() -> str:
    """How far the stride's moments are from the efforts of the same leg as a robot."""
    found = stride()
    return (
        "A stride made up of harmonics under a made-up ground reaction: segment moments against the efforts of the\n"
        f"same leg as a robot, {np.abs(found.moments - found.efforts).max():.0e} N m apart, of "
        f"{np.abs(found.efforts).max():.0f} N m. `tests/theory/test_matrix_formalism.py` holds all\n"
        "three components of force and moment against the robot's joint loads, for a leg that hangs and one that "
        "stands."
    )


class Swing(NamedTuple):
    """t (K,) s; loads in world axes that hinge and rail carry, (K, 6) each; the bar's weight, N."""

    t: np.ndarray
    hinge: np.ndarray
    rail: np.ndarray
    weight: float


@cache
def swing() -> Swing:
    """Loads while the pendulum of Example 2 swings."""
    cart = robot("cart_pendulum")
    motion = simulate(cart, [0.0, 2.5], [0.0, 0.0], dt=1e-3, steps=3000)
    loads = cart.constraint_forces(motion.q, motion.v, np.zeros(2), joints=["hinge", "cart_slide"], frame="world")
    mass = cart.tree.inertia[cart.link_names.index("pendulum")].mass
    return Swing(motion.t, loads.wrench[:, 0], loads.wrench[:, 1], 9.81 * mass)


def loads_at_the_hinge() -> str:
    """How much the hinge of Example 2 carries."""
    found = swing()
    most = np.linalg.norm(found.hinge[:, 3:], axis=-1).max() / found.weight
    return (
        "Left, which bodies act on which, and by how many steps. Right, loads while the pendulum of Example 2 swings:\n"
        f"the hinge carries up to {most:.1f} times the bar's weight ({found.weight:.1f} N), at the bottom."
    )


QUICK: dict[str, tuple[str, Callable[[], str]]] = {
    "counts": ("articulated.md", counts),
    "robots": ("articulated.md", robots),
    "slip_in_the_program": ("matrix_formalism.md", slip_in_the_program),
    "twenty_seconds": ("matrix_formalism.md", twenty_seconds),
    "segments_against_the_robot": ("matrix_formalism.md", segments_against_the_robot),
    "loads_at_the_hinge": ("newton_euler.md", loads_at_the_hinge),
}
"""By name: the page and the text of its part."""
