"""What each joint carries: the wrench from parent to child, and its part that no actuator makes.

    F                                    load at every joint, fixed ones too      (15), with a from (19b)
    actuation  = G^T F                                                            (18a)
    constraint = F - G G^T F = G^ G^^T F                                          (20)

G has unit length, so subtracting its part leaves the part in the five-dimensional complement G^, of which `basis` gives
an orthonormal basis: G^T G^ = 0, G^^T G^ = e. Cost: O(N) over links, not bodies.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from dyn_service.dynamics.articulated import forward_dynamics
from dyn_service.dynamics.newton_euler import joint_loads
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import Stack
from dyn_service.model.description import Matrix
from dyn_service.model.tree import Tree


def constraint_forces(
    tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: Stack | None = None
) -> dict[str, Mat]:
    """wrench (nj, 6), actuation (nj,), constraint (nj, 6) of every named joint, in the child link's axes."""
    a = forward_dynamics(tree, q, v, tau, gravity, wrenches)
    F, G = joint_loads(tree, q, v, a, gravity, wrenches)
    rows = [i for i, joint in enumerate(tree.joints) if joint]
    along = G.T @ F
    across = F - G @ along
    return {
        "wrench": ca.vertcat(*(ca.densify(F[i]) for i in rows)),
        "actuation": ca.vertcat(*(along[i] if tree.dof[i] >= 0 else ca.DM.zeros(1) for i in rows)),
        "constraint": ca.vertcat(*(ca.densify(across[i]) for i in rows)),
    }


def bases(tree: Tree) -> dict[str, Any]:
    """`basis` (nj, 6, 6), zero beyond the `directions` (nj,) of each named joint."""
    found = [basis(tree, i) for i, joint in enumerate(tree.joints) if joint]
    return {
        "basis": np.array([np.pad(G_hat, ((0, 0), (0, 6 - G_hat.shape[1]))) for G_hat in found]).reshape(-1, 6, 6),
        "directions": np.array([float(G_hat.shape[1]) for G_hat in found]),
    }


def basis(tree: Tree, i: int) -> Matrix:
    """G^ of body i's joint, (20): (6, 5), directions in which it carries load; (6, 6) for a fixed joint.

    In joint axes, angular part first. For a turning joint two torques across the axis, then three forces; for a sliding
    one three torques, then two forces across the axis.
    """
    axis = tree.axis[i]
    across = np.linalg.svd(axis[None, :])[2][1:].T
    three, none = np.eye(3), np.zeros((3, 3))
    if tree.motion[i] == "revolute":
        return np.block([[across, none], [np.zeros((3, 2)), three]])
    if tree.motion[i] == "prismatic":
        return np.block([[three, np.zeros((3, 2))], [none, across]])
    return np.eye(6)
