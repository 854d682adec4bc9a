"""What does not depend on a state: neutral and random positions, and the topology of a robot.

Ancestor pairs of bodies are the sparsity pattern that every Phi_A and Psi_A of a robot shares:

    Phi   block (i, j) where j is the parent of i                    Def. 1
    Psi   block (i, j) where j is i or carries it, j <= i            (P3)
    m     Phi^m = 0 and Phi^(m-1) is not: the number of bodies on the longest chain

Sets as in Fig. 2 of the Newton-Euler document: the chain {j <= i} is row i of Psi's pattern, the branch {i >= j} its
column j, the children of j the column j of Phi's. Cost: O(N^2), the answer's size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dyn_service.model.composite import weld
from dyn_service.model.tree import Tree


def neutral(tree: Tree) -> dict[str, Any]:
    """Returns the neutral `q`: every body coincides with its joint's frame."""
    # A copy, because callers may change what they get.
    return {"q": tree.configuration.neutral.copy()}


def random_configuration(tree: Tree, seed: int = 0) -> dict[str, Any]:
    """Returns a random `q` within the limits."""
    limits = tree.limits
    return {"q": tree.configuration.random(np.random.default_rng(seed), limits.lower, limits.upper)}


def pairs(tree: Tree) -> list[tuple[int, int]]:
    """The places of the blocks of Psi: (i, j) with j <= i, row by row, each from its root outward."""
    return [(i, j) for i in range(len(tree)) for j in reversed(tree.ancestors(i))]


def nilpotency(tree: Tree) -> int:
    """The m with Phi_A^m = 0 and Phi_A^(m-1) not: the number of bodies on the longest chain from a root."""
    return max((len(tree.ancestors(i)) for i in range(len(tree))), default=0)


def topology(tree: Tree, bodies: str = "moving") -> dict[str, Any]:
    """The relations among the bodies of a tree of links; `bodies`: as they are, "links", or welded, "moving"."""
    tree = weld(tree).tree if bodies == "moving" else tree
    size = len(tree)
    ancestors, children = np.zeros((size, size)), np.zeros((size, size))
    for i, j in pairs(tree):
        ancestors[i, j] = 1.0
    for i, parent in enumerate(tree.parent):
        if parent >= 0:
            children[parent, i] = 1.0
    return {
        "links": tree.links,
        "joints": tree.joints,
        "parent": np.array(tree.parent, dtype=np.float64),
        "ancestors": ancestors,
        "children": children,
        "nilpotency": np.float64(nilpotency(tree)),
    }
