"""Detection of singular mass matrices: joints without inertia along their axis, for which forward dynamics has no
solution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dyn_service.model import composite
from dyn_service.model.tree import Tree

Array = NDArray[np.float64]

SINGULAR = 1e-13
"""A branch inertia below this fraction of the rigid inertia counts as zero; the subtraction rounds to 1e-15."""


def massless_joint(bodies: Tree) -> str | None:
    """Returns the movable joint nearest the leaves whose branch has no inertia along it, or None.

    Args:
        bodies: The tree of moving bodies; with leading axes, one robot without inertia is enough.
    """
    # An arbitrary configuration: branch inertias are analytic in q, so zero here means zero everywhere.
    moved = np.random.default_rng(0).uniform(-1.0, 1.0, bodies.nv)
    at = bodies.configuration
    return singular_joint(bodies, np.asarray(at.integrate(at.neutral, moved)))


def singular_joint(bodies: Tree, q: Array) -> str | None:
    """Returns the movable joint nearest the leaves whose branch has no inertia along it at `q`; None if M(q) is
    regular.

    Args:
        bodies: As for `massless_joint`.
        q: (nq,) positions, small enough that nothing overflows.
    """
    left = _left(bodies, q)
    bare = np.flatnonzero((left <= SINGULAR).any(axis=tuple(range(left.ndim - 1))))
    return bodies.configuration.velocity_joints[bare.max()] if bare.size else None


def _left(bodies: Tree, q: Array) -> Array:
    """Returns (..., nv): the inertia along each joint with free outward joints, divided by that with locked ones; NaN
    if that is not finite.
    """
    order = list(bodies.entries_outward)
    M = composite.mass_matrix(bodies, q)[..., order, :][..., order]
    held = np.abs(np.diagonal(M, axis1=-2, axis2=-1))
    left, share = np.array(M), np.zeros(held.shape)
    for k in range(bodies.nv - 1, -1, -1):
        with np.errstate(divide="ignore", invalid="ignore"):
            pivot = left[..., k, k]
            share[..., k] = np.where(held[..., k] > 0.0, np.abs(pivot) / held[..., k], held[..., k])
            yields = np.where(share[..., k, None] > SINGULAR, left[..., k, :k] / pivot[..., None], 0.0)
        left[..., :k, :k] -= yields[..., :, None] * left[..., k, None, :k]
    found = np.empty(held.shape)
    found[..., order] = share
    return found
