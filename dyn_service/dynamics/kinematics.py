"""Where each body stands and how its joint lets it move.

    D_i, G_i   influence of the parent and free axis of body i, both in the axes of body i      Newton-Euler (4)
    revolute   R_PC = R_PC(0) Rot(axis, t + q),  p_PC constant,              G = [axis; 0],  t = 0 in link frames
    prismatic  R_PC = R_PC(0),               p_PC = p_PC(0) + R_PC(0) axis q,  G = [0; axis]
    fixed      both constant,                                                G has no column

The documents write G for revolute joints only; a prismatic joint moves d_i instead.
"""

from __future__ import annotations

import casadi as ca

from dyn_service.dynamics.spatial import Influence, Mat, constant, join, rotation_about, row_by_row
from dyn_service.dynamics.sweeps import Stack
from dyn_service.model.tree import Tree


def joint_values(tree: Tree, x: Mat) -> Stack:
    """One entry per body from a vector over the movable joints: 1x1, and 0x1 at fixed joints."""
    return Stack(x[k] if k >= 0 else ca.DM(0, 1) for k in tree.dof)


def joint_vector(tree: Tree, x: Stack) -> Mat:
    """The vector over the movable joints from one entry per body."""
    return ca.vertcat(*(x[i] for i, k in enumerate(tree.dof) if k >= 0))


def free_axes(tree: Tree) -> Stack:
    """G, one constant 6x1 column per body; 6x0 at fixed joints."""
    columns = []
    for motion, axis in zip(tree.motion, tree.axis, strict=True):
        none, direction = ca.DM(3, 1), constant(axis)
        if motion == "fixed":
            columns.append(ca.DM(6, 0))
        else:
            columns.append(join(direction, none) if motion == "revolute" else join(none, direction))
    return Stack(columns)


def placements(tree: Tree, q: Mat) -> list[tuple[Mat, Mat]]:
    """R_PC and p_PC of every body at q."""
    poses = []
    for i, motion in enumerate(tree.motion):
        R, p = constant(tree.rotation[i]), constant(tree.origin[i])
        if motion == "revolute":
            R = R @ rotation_about(tree.axis[i], q[tree.dof[i]], tree.turn[i])
        elif motion == "prismatic":
            p = p + R @ constant(tree.axis[i]) * q[tree.dof[i]]
        poses.append((R, p))
    return poses


def influences(tree: Tree, q: Mat) -> Stack:
    """D, one operator per body, (4)."""
    return Stack(Influence(R.T, p) for R, p in placements(tree, q))


def link_poses(tree: Tree, q: Mat) -> dict[str, Mat]:
    """R_WB and p_WB of every body: `rotation` (N, 3, 3), row by row, and `position` (N, 3)."""
    poses: list[tuple[Mat, Mat]] = []
    for parent, (R, p) in zip(tree.parent, placements(tree, q), strict=True):
        if parent >= 0:
            R_WP, p_WP = poses[parent]
            R, p = R_WP @ R, p_WP + R_WP @ p
        poses.append((R, p))
    return {
        "rotation": ca.vertcat(*(row_by_row(R) for R, _ in poses)),
        "position": ca.vertcat(*(ca.densify(p) for _, p in poses)),
    }
