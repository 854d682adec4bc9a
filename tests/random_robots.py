"""Random robots as URDF text, from a seed: branched, with everything that makes importers and algorithms go wrong.

Skew axes of any length and sign, rotated joint and inertial frames, centres of mass off the axes, fixed joints in the
middle and at the ends, links without inertia behind fixed joints, revolute, continuous and prismatic joints, links in
shuffled order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dyn_service.model.joints import JOINT_TYPES, joint_of

TYPES = ("revolute", "revolute", "continuous", "prismatic")
MANY_TYPES = tuple(kind for kind in JOINT_TYPES if joint_of(kind).nv and joint_of(kind).type == kind)
"""Every type that moves, each by one of its names."""


def random_urdf(
    seed: int,
    *,
    movable: int | None = None,
    shuffle: int | None = None,
    bushy: float = 0.5,
    types: Sequence[str] = TYPES,
) -> str:
    """A robot with `movable` movable joints (2 to 12 by the seed) of these types, links shuffled by `shuffle`.

    bushy: the chance that a link hangs on an arbitrary link instead of the one before.
    """
    rng = np.random.default_rng(seed)
    movable = movable or int(rng.integers(2, 13))
    kinds = [str(rng.choice(types)) for _ in range(movable)]
    for _ in range(int(rng.integers(0, movable + 1))):
        kinds.insert(int(rng.integers(0, len(kinds) + 1)), "fixed")
    links = [_link("link_0", rng, massless=False)]
    joints = []
    for k, kind in enumerate(kinds, start=1):
        parent = int(rng.integers(0, k)) if rng.random() < bushy else k - 1
        massless = kind == "fixed" and rng.random() < 0.3
        links.append(_link(f"link_{k}", rng, massless=massless))
        joints.append(_joint(k, kind, parent, rng))
    elements = links + joints
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(len(elements))
        elements = [elements[i] for i in order]
    return f'<robot name="random_{seed}">\n' + "\n".join(elements) + "\n</robot>\n"


def _numbers(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)


def _pose(rng: np.random.Generator) -> str:
    return f'<origin xyz="{_numbers(rng.uniform(-0.5, 0.5, 3))}" rpy="{_numbers(rng.uniform(-3.0, 3.0, 3))}"/>'


def _link(name: str, rng: np.random.Generator, *, massless: bool) -> str:
    if massless:
        return f'  <link name="{name}"/>'
    # Principal moments of a solid body: sums of pairs of positive second moments, so the triangle inequality holds.
    mass = rng.uniform(0.5, 5.0)
    second = mass * rng.uniform(0.01, 0.1, 3)
    ixx, iyy, izz = (second.sum() - second).tolist()
    return (
        f'  <link name="{name}"><inertial>{_pose(rng)}<mass value="{mass!r}"/>'
        f'<inertia ixx="{ixx!r}" iyy="{iyy!r}" izz="{izz!r}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    )


def _joint(k: int, kind: str, parent: int, rng: np.random.Generator) -> str:
    axis = rng.normal(size=3) * rng.uniform(0.5, 2.0)
    limit = '<limit lower="-3" upper="3" effort="100" velocity="10"/>'
    if not joint_of(kind).ranged or joint_of(kind).threaded:
        limit = ""
    if joint_of(kind).threaded:
        limit = f'<drake:screw_thread_pitch value="{rng.uniform(-1.0, 1.0)!r}"/>'
    movable = "" if not joint_of(kind).nv else f'<axis xyz="{_numbers(axis)}"/>{limit}'
    return (
        f'  <joint name="joint_{k}" type="{kind}"><parent link="link_{parent}"/><child link="link_{k}"/>'
        f"{_pose(rng)}{movable}</joint>"
    )


EVERY_TYPE = next(
    seed
    for seed in range(200, 100_000)
    if all(f'type="{kind}"' in random_urdf(seed, movable=len(MANY_TYPES), types=MANY_TYPES) for kind in MANY_TYPES)
)
"""The seed of a small robot of `len(MANY_TYPES)` movable joints with one of each of these types."""
