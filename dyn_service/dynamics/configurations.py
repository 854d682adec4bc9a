"""Neutral and random positions of a robot."""

from __future__ import annotations

from typing import Any

import numpy as np

from dyn_service.model.tree import Tree


def neutral(tree: Tree) -> dict[str, Any]:
    """Returns the neutral `q`: every body coincides with its joint's frame."""
    return {"q": tree.configuration.neutral.copy()}


def random_configuration(tree: Tree, seed: int = 0) -> dict[str, Any]:
    """Returns a random `q` within the limits."""
    limits = tree.limits
    return {"q": tree.configuration.random(np.random.default_rng(seed), limits.lower, limits.upper)}
