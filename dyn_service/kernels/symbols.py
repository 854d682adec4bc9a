"""A tree with symbols in place of numbers, on which kernels with overlays are traced.

Inertias, passive joint properties and the set of locked joints become inputs (`model/parameters.py`); positions and
axes of joints stay numbers. Structural zeros stay zeros: joints with several degrees of freedom have no springs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import casadi as ca
import numpy as np

from dyn_service.dynamics.spatial import constant
from dyn_service.model.parameters import COLUMNS, OF_BODY, OF_RATE, ROWS
from dyn_service.model.passive import Passive
from dyn_service.model.tree import Tree

Symbols = Any
"""A CasADi SX."""


@dataclass(frozen=True, eq=False)
class SymbolicInertia:
    """The attributes of `BodyInertia` used by the equations. mass: (1, 1). com: (3, 1). about_com: (3, 3)."""

    mass: Symbols
    com: Symbols
    about_com: Symbols
    centre: None = None

    @property
    def moment(self) -> Symbols:
        """m s."""
        return self.mass * self.com

    @property
    def about_origin(self) -> Symbols:
        """I - m s~ s~."""
        s = ca.skew(self.com)
        return ca.triu2symm(ca.triu(self.about_com - self.mass * s @ s))


def in_symbols(tree: Tree, bodies: Symbols, joints: Symbols, free: Symbols) -> Tree:
    """Returns the tree with these numbers, in the order of `model/parameters.py`.

    Args:
        tree: The tree with numbers.
        bodies: (10 nb, 1).
        joints: (6 nr, 1).
        free: (nv, 1).
    """
    of_body: Symbols = ca.reshape(bodies, OF_BODY, len(tree))
    of_rate: Symbols = ca.reshape(joints, OF_RATE, tree.nr)
    passive = {each.name: of_rate[k, :].T for k, each in enumerate(fields(Passive))}
    sprung = [float(joint.nv == 1) for joint in tree.inboard for _ in range(joint.nv)]
    passive["stiffness"] = constant(np.reshape(sprung, (-1, 1))) * passive["stiffness"]
    inertia: tuple[Any, ...] = tuple(_inertia(of_body[:, i]) for i in range(len(tree)))
    return replace(
        tree,
        inertia=inertia,
        passive=Passive(**passive),
        free=free,
    )


def _inertia(numbers: Symbols) -> SymbolicInertia:
    about = ca.SX(3, 3)
    for k, (row, column) in enumerate(zip(ROWS, COLUMNS, strict=True)):
        about[row, column] = about[column, row] = numbers[4 + k]
    return SymbolicInertia(numbers[0], numbers[1:4], about)
