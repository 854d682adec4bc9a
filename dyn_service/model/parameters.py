"""The numbers of a tree that a parametric kernel takes as inputs, as arrays that broadcast like any other.

    bodies   (..., nb, 10)   per body: mass, kg; centre of mass, m; inertia about it, kg m^2: xx, xy, xz, yy, yz, zz in
                             the body's axes
    joints   (..., nr, 6)    per rate of a moving joint: damping, friction, width, armature, stiffness, rest
    free     (..., nv)       0 if the joint is locked, else 1

Poses and types of joints are constants of the kernel. Inertia is about the centre of mass, because a small inertia
would lose digits about a distant origin, and bodies without mass would divide by zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.tree import Tree

BODIES, JOINTS, FREE = "bodies", "joints", "free"

OF_BODY, OF_RATE = 10, 6

INERTIAL = ("m", "hx", "hy", "hz", "Ixx", "Ixy", "Ixz", "Iyy", "Iyz", "Izz")
"""The inertial parameters of a link in which its equations are linear: mass, first moment h = m c, inertia about the
link's origin, in its axes.
"""

LINEAR = ("damping", "friction", "armature", "stiffness")
"""The passive parameters of a rate in which the equations are linear."""

ROWS, COLUMNS = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)
"""Indices of the six independent entries of an inertia."""


def symmetric(entries: Matrix) -> Matrix:
    """Returns the symmetric matrices (..., 3, 3) of their entries xx, xy, xz, yy, yz, zz, (..., 6)."""
    matrix = np.empty((*np.shape(entries)[:-1], 3, 3))
    matrix[..., ROWS, COLUMNS] = matrix[..., COLUMNS, ROWS] = entries
    return matrix


def parameters_of(tree: Tree) -> dict[str, NDArray[np.float64]]:
    """Returns the parameters of a tree by name, each with the leading axes of its numbers."""
    bodies = [_of_body(body.mass, body.com, body.about_com) for body in tree.inertia]
    joints = np.broadcast_arrays(*tree.passive.arrays)
    return {
        BODIES: np.stack(np.broadcast_arrays(*bodies), axis=-2) if bodies else np.zeros((0, OF_BODY)),
        JOINTS: np.stack(joints, axis=-1),
        FREE: np.ones(tree.nv) if tree.free is None else np.asarray(tree.free),
    }


def _of_body(mass: Any, com: Vector, about_com: Matrix) -> NDArray[np.float64]:
    lead = np.broadcast_shapes(np.shape(mass), com.shape[:-1], about_com.shape[:-2])
    numbers = np.empty((*lead, OF_BODY))
    numbers[..., 0] = mass
    numbers[..., 1:4] = com
    numbers[..., 4:] = about_com[..., ROWS, COLUMNS]
    return numbers
