"""Robots as people make them, from a seed: every habit that has cost an engine its digits.

Axes tilted against each other by what typed angles leave (3.14, 3.1416, 1.5708, 0.7854), by 10^U(-12, -1) rad, or not
at all; offsets from a micrometre to a kilometre, in front of links of any size; masses from a milligram to ten tonnes,
gears of grams before arms of tonnes; rods and plates; centres of mass on the axis, off it, at the origin; millimetres
written for metres; chains, combs, stars and bushes of 1 to 120 joints, with fixed joints between.
"""

from __future__ import annotations

import numpy as np

Generator = np.random.Generator

TYPED = (3.14, 3.1416, 3.14159, 1.57, 1.5708, 1.570796, 0.7854, 0.785, 6.2832)
EXACT = (0.0, np.pi / 2, -np.pi / 2, np.pi)
AXES = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1), (0, -1, 0))


def nasty_urdf(seed: int, *, max_joints: int = 120) -> str:
    """The robot of a seed, with at most `max_joints` movable joints."""
    rng = np.random.default_rng([20261121, seed])
    movable = min(max_joints, _size(rng))
    shape = str(rng.choice(["chain", "comb", "star", "bush", "pairs"], p=[0.4, 0.1, 0.1, 0.3, 0.1]))
    house = _House(rng)
    links, joints = [_link("link_0", rng, house)], []
    previous = 0
    for k in range(1, movable + 1):
        if rng.random() < 0.25:  # a flange, a sensor, a tool: with or without inertia
            name = f"plate_{k}"
            joints.append(_joint(f"weld_{k}", "fixed", f"link_{previous}", name, rng, house))
            links.append(_link(name, rng, house) if rng.random() < 0.6 else f'<link name="{name}"/>')
        parent = _parent(shape, k, rng)
        kind = str(rng.choice(["revolute", "continuous", "prismatic"], p=[0.65, 0.15, 0.2]))
        tail = f"plate_{k}" if f'"plate_{k}"' in links[-1] and parent == previous else f"link_{parent}"
        joints.append(_joint(f"joint_{k:03d}", kind, tail, f"link_{k}", rng, house))
        links.append(_link(f"link_{k}", rng, house))
        previous = k
    return f'<robot name="nasty_{seed}">\n' + "\n".join(links + joints) + "\n</robot>\n"


def pair_urdf(tilt: float) -> str:
    """Three turning joints about x, z, z; the third axis tilted against the second by so many rad, at an offset."""
    moments = '<inertia ixx="0.1" iyy="0.1" izz="0.1" ixy="0" ixz="0" iyz="0"/>'
    inertial = f'<inertial><origin xyz="0.2 0 0"/><mass value="{{}}"/>{moments}</inertial>'
    links = "".join(f'<link name="l{k}">{inertial.format(mass)}</link>' for k, mass in ((1, 2), (2, 1), (3, 1)))
    joint = (
        '<joint name="j{k}" type="continuous"><parent link="l{p}"/><child link="l{k}"/>'
        '<origin xyz="{xyz}" rpy="{tilt!r} 0 0"/><axis xyz="{axis}"/></joint>'
    )
    joints = (
        joint.format(k=1, p=0, xyz="0 0 0", tilt=0.0, axis="1 0 0"),
        joint.format(k=2, p=1, xyz="0 0 0", tilt=0.0, axis="0 0 1"),
        joint.format(k=3, p=2, xyz="0.5 1 0", tilt=tilt, axis="0 0 1"),
    )
    return f'<robot name="pair"><link name="l0"/>{links}{"".join(joints)}</robot>'


class _House:
    """The habits of one robot's author: the unit of length, and how wide sizes spread."""

    def __init__(self, rng: Generator) -> None:
        self.unit = 1000.0 if rng.random() < 0.1 else 1.0
        self.spread = float(rng.choice([0.3, 1.0, 3.0]))
        self.tidy = rng.random() < 0.5


def _size(rng: Generator) -> int:
    low, high = ((1, 4), (4, 9), (9, 20), (20, 45), (45, 121))[int(rng.choice(5, p=[0.45, 0.38, 0.13, 0.033, 0.007]))]
    return int(rng.integers(low, high))


def _parent(shape: str, k: int, rng: Generator) -> int:
    return {
        "chain": k - 1,
        "comb": k - 1 if k % 3 else max(0, k - 3),
        "star": 0 if k % 4 == 1 else k - 1,
        "bush": int(rng.integers(0, k)),
        "pairs": max(0, (k - 1) // 2),
    }[shape]


def _length(rng: Generator, house: _House) -> float:
    """Metres: 0.1 or so, of widely spread robots from 1e-6 to 1e3."""
    size = 10.0 ** float(np.clip(rng.normal(-1.0, house.spread), -6.0, 3.0))
    return float(round(size, 4) if house.tidy and size > 1e-3 else size)


def _angle(rng: Generator) -> float:
    kind = rng.random()
    if kind < 0.35:
        return float(rng.choice(EXACT))
    if kind < 0.6:
        return float(rng.choice(TYPED)) * float(rng.choice([-1, 1]))
    if kind < 0.9:
        return float(rng.choice([0.0, np.pi, np.pi / 2])) + float(rng.choice([-1, 1])) * 10.0 ** rng.uniform(-12, -1)
    return float(rng.uniform(-np.pi, np.pi))


def _origin(rng: Generator, house: _House, scale: float = 1.0) -> str:
    place = [0.0, 0.0, 0.0]
    for axis in range(3):
        if rng.random() < 0.6:
            place[axis] = float(rng.choice([-1, 1])) * _length(rng, house) * scale * house.unit
    turn = [_angle(rng) if rng.random() < 0.5 else 0.0 for _ in range(3)]
    return f'<origin xyz="{" ".join(map(repr, place))}" rpy="{" ".join(map(repr, turn))}"/>'


def _link(name: str, rng: Generator, house: _House) -> str:
    mass = 10.0 ** float(np.clip(rng.normal(0.0, house.spread), -6.0, 4.0))
    if rng.random() < 0.15:
        mass = 10.0 ** rng.uniform(-6, -3)  # a gear
    size = _length(rng, house) * house.unit
    # Second moments of a solid along its axes: a ball, a rod, a plate, or anything between. Sums of two of them are
    # moments of inertia, so no body is impossible.
    second = {
        "ball": np.ones(3),
        "rod": np.array([1.0, 10.0 ** rng.uniform(-8, -2), 10.0 ** rng.uniform(-8, -2)]),
        "plate": np.array([1.0, rng.uniform(0.1, 1.0), 10.0 ** rng.uniform(-8, -2)]),
        "any": 10.0 ** rng.uniform(-3, 0, 3),
    }[str(rng.choice(["ball", "rod", "plate", "any"]))]
    second = rng.permutation(second) * mass * size * size / 12.0
    ixx, iyy, izz = (second.sum() - second).tolist()
    placement = rng.random()
    if placement < 0.3:
        place = '<origin xyz="0 0 0" rpy="0 0 0"/>'
    elif placement < 0.5:
        offset = [0.0, 0.0, 0.0]
        offset[int(rng.integers(3))] = _length(rng, house) * house.unit
        place = f'<origin xyz="{" ".join(map(repr, offset))}"/>'
    else:
        place = _origin(rng, house)
    return (
        f'<link name="{name}"><inertial>{place}<mass value="{mass!r}"/>'
        f'<inertia ixx="{ixx!r}" iyy="{iyy!r}" izz="{izz!r}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


def _joint(name: str, kind: str, parent: str, child: str, rng: Generator, house: _House) -> str:
    axis = AXES[int(rng.integers(len(AXES)))] if rng.random() < 0.85 else tuple(rng.normal(size=3).tolist())
    limit = '<limit lower="-3" upper="3" effort="100" velocity="10"/>' if kind in ("revolute", "prismatic") else ""
    moves = "" if kind == "fixed" else f'<axis xyz="{" ".join(map(repr, axis))}"/>{limit}'
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f"{_origin(rng, house)}{moves}</joint>"
    )
