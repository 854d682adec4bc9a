"""A tree with symbols in place of numbers, on which kernels with overlays are traced.

Inertias, what joints do by themselves, and which of them are locked become inputs (`model/parameters.py`); where joints
stand and how they move stay numbers. The equations see a tree like any other: with symbols in place of numbers. What
is zero by structure stays so: springs of joints with several ways to move.
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
    """What the equations ask of a `BodyInertia`. mass: (1, 1). com: (3, 1). about_com: (3, 3)."""

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
    """The tree with these numbers, laid out row by row as `model/parameters.py` says.

    Args:
        tree: In numbers.
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
