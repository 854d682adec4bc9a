"""Singular mass matrices: what moves with a joint has no inertia along it, so forward dynamics has no answer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dyn_service.model import composite
from dyn_service.model.tree import Tree

Array = NDArray[np.float64]

SINGULAR = 1e-13
"""A joint whose branch inertia is below this share of its rigid one has none: rounding of the subtraction is 1e-15."""


def massless_joint(bodies: Tree) -> str | None:
    """The movable joint nearest the leaves whose branch has no inertia along it, in any configuration; of a tree of
    many robots, in any of them.

    Args:
        bodies: The bodies that move against each other.
    """
    # An arbitrary configuration. Branch inertias are analytic in q: zero there means zero at all.
    moved = np.random.default_rng(0).uniform(-1.0, 1.0, bodies.nv)
    at = bodies.configuration
    return singular_joint(bodies, np.asarray(at.integrate(at.neutral, moved)))


def singular_joint(bodies: Tree, q: Array) -> str | None:
    """The movable joint nearest the leaves whose branch has no inertia along it at `q`; None: M(q) is regular.

    Args:
        bodies: As of `massless_joint`.
        q: (nq,) positions, of a size at which nothing overflows.
    """
    left = _left(bodies, q)
    bare = np.flatnonzero((left <= SINGULAR).any(axis=tuple(range(left.ndim - 1))))
    return bodies.configuration.velocity_joints[bare.max()] if bare.size else None


def _left(bodies: Tree, q: Array) -> Array:
    """(..., nv): what is left of the inertia along each joint when the joints outward of it yield, as a share of what
    it is while they hold; NaN where that is not finite.
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
