"""The wrench that each joint transmits from parent to child, and its constraint part, which no actuator provides.

    F                                             load at every joint, fixed ones too      (15), with a from (19b)
    actuation  = G^T F                                                                     (18a)
    constraint = F - G (G^T G)^-1 G^T F = G^ G^^T F                                        (20)

Subtracting G's part leaves the part in its complement G^, of 6 - nv_i dimensions, of which `basis` gives an orthonormal
basis: G^T G^ = 0, G^^T G^ = e. F is the whole wrench from parent to child: G^T F = tau - I_r a - p, the motor's effort
without the parts that accelerate the rotor and balance friction, damping and springs. A mimic joint has no tau of its
own, but its own G: the mechanism that couples it transmits its effort. For a joint with several degrees of freedom,
the actuation is the length of G^T F. Cost: O(N) over links, not bodies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.articulated import forward_dynamics
from dyn_service.dynamics.newton_euler import joint_loads
from dyn_service.dynamics.spatial import Mat
from dyn_service.dynamics.sweeps import PerBody, of_joints
from dyn_service.model.arrays import Matrix
from dyn_service.model.tree import Tree


def constraint_forces(
    tree: Tree, q: Mat, v: Mat, tau: Mat, gravity: Mat, wrenches: PerBody | None = None
) -> dict[str, Mat]:
    """wrench (nj, 6), actuation (nj,), constraint (nj, 6) of every named joint, in the child link's axes."""
    a = forward_dynamics(tree, q, v, tau, gravity, wrenches)
    return components(tree, joint_loads(tree, q, v, a, gravity, wrenches)[0])


def components(tree: Tree, F: PerBody) -> dict[str, Mat]:
    """As `constraint_forces`, of the loads F at every joint."""
    rows = [i for i, joint in enumerate(tree.joints) if joint]
    actuation = of_joints(tree, lambda joint: joint.without_mimic.subspace).T @ F
    constraint = F - of_joints(tree, lambda joint: _of_subspace(joint.without_mimic.subspace)) @ actuation
    return {
        "wrench": ex.vertcat(*(ex.densify(F[i]) for i in rows)),
        "actuation": ex.vertcat(*(actuation[i] if tree.inboard[i].nv == 1 else _length(actuation[i]) for i in rows)),
        "constraint": ex.vertcat(*(ex.densify(constraint[i]) for i in rows)),
    }


def bases(tree: Tree) -> dict[str, Any]:
    """`basis` (nj, 6, 6), zero beyond the `directions` (nj,) of each named joint."""
    joint_bases = [basis(tree, i) for i, joint in enumerate(tree.joints) if joint]
    return {
        "basis": np.array([np.pad(G_hat, ((0, 0), (0, 6 - G_hat.shape[1]))) for G_hat in joint_bases]).reshape(
            -1, 6, 6
        ),
        "directions": np.array([float(G_hat.shape[1]) for G_hat in joint_bases]),
    }


def basis(tree: Tree, i: int) -> Matrix:
    """G^ of body i's joint, (20): (6, 5), the directions of its constraint load; (6, 6) for a fixed joint."""
    return blocked_directions(tree.inboard[i].without_mimic.subspace)


def blocked_directions(G: Matrix) -> Matrix:
    """G^ of a joint with the motion subspace G, (20): (6, 6 - nv), orthonormal.

    In joint axes, angular part first. For a turning joint two torques across the axis, then three forces; for a sliding
    one three torques, then two forces across the axis; (6, 0) for a floating one.
    """
    turning, shifting = _complement(G[:3]), _complement(G[3:])
    # Torques and forces apart, unless the joint couples rotation and translation, as a screw does.
    if turning.shape[1] + shifting.shape[1] + G.shape[1] == 6:
        return np.block(
            [
                [turning, np.zeros((3, shifting.shape[1]))],
                [np.zeros((3, turning.shape[1])), shifting],
            ]
        )
    # Its free directions rotate and translate at once.
    return _complement(G)


def _complement(G: Matrix) -> Matrix:
    """An orthonormal basis of the complement of the columns of G, (n, ..)."""
    # A joint that only slides has zero columns in its angular half: they would count as directions of it.
    nonzero_columns = G[:, np.abs(G).max(axis=0, initial=0.0) > 0.0]
    return (
        np.eye(len(G))
        if not nonzero_columns.size
        else np.linalg.svd(nonzero_columns.T)[2][nonzero_columns.shape[1] :].T
    )


def _of_subspace(G: Matrix) -> Matrix:
    """G (G^T G)^-1, which is G where its columns are orthonormal."""
    gram = G.T @ G
    # G itself, so that the usual axes, of length 1, keep their bits.
    return G if np.abs(gram - np.eye(len(gram))).max(initial=0.0) < 1e-14 else G @ np.linalg.inv(gram)


def _length(x: Mat) -> Mat:
    return ex.norm_2(x) if x.shape[0] else ex.matrix(0.0)
