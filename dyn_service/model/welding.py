"""Links that fixed joints hold together become one body: the tree that queries about moving bodies are answered on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dyn_service.model.arrays import Matrix, Vector
from dyn_service.model.description import Note
from dyn_service.model.inertia import BodyInertia, combine
from dyn_service.model.tree import Tree


@dataclass(frozen=True, eq=False)
class Weld:
    """The moving bodies of a tree, and where each link of the full tree went.

    tree: one body per movable joint. body: per link of the full tree, the body it moves with, -1 if it never moves.
    rotation, origin: per link, R_BL and p_BL in that body (in the world for -1).
    """

    tree: Tree
    body: tuple[int, ...]
    rotation: tuple[Matrix, ...]
    origin: tuple[Vector, ...]

    def carrying(self, full: Tree, changed: Collection[int]) -> Weld:
        """The same with the numbers of another tree of these links.

        Args:
            full: One body per link, in the same places.
            changed: The links whose inertia is another one.
        """
        bodies = frozenset(self.body[i] for i in changed)
        inertia = tuple(
            _welded_inertia(full, b, self.body, self.rotation, self.origin) if b in bodies else own
            for b, own in enumerate(self.tree.inertia)
        )
        tree = replace(self.tree, name=full.name, inertia=inertia, passive=full.passive, free=full.free)
        return replace(self, tree=tree)


def _welded_inertia(
    full: Tree, body: int, bodies: Sequence[int], rotation: Sequence[Matrix], origin: Sequence[Vector]
) -> BodyInertia:
    """Of the links that move with a body, in its frame: bodies, rotation and origin are those of `Weld`."""
    links = [i for i, of in enumerate(bodies) if of == body]
    return combine(full.inertia[i].placed(rotation[i], origin[i]) for i in links)


def weld(full: Tree) -> Weld:
    """Joins every link behind a fixed joint to the body it moves with. Inertia on unmoving links is the world's.

    In the arithmetic of the tree's numbers, doubles or decimals.
    """
    kind = full.origin[0].dtype
    unturned, nowhere = np.eye(3, dtype=kind), np.zeros(3, dtype=kind)
    body: list[int] = []
    rotation: list[Matrix] = []
    origin: list[Vector] = []
    moving: list[int] = []
    placement: list[tuple[int, Matrix, Vector]] = []
    for i, parent in enumerate(full.parent):
        carrier, R, p = (-1, unturned, nowhere) if parent < 0 else (body[parent], rotation[parent], origin[parent])
        R_BL, p_BL = R @ full.rotation[i], p + R @ full.origin[i]
        if full.inboard[i].nv:
            placement.append((carrier, R_BL, p_BL))
            carrier, R_BL, p_BL = len(moving), unturned, nowhere
            moving.append(i)
        body.append(carrier)
        rotation.append(R_BL)
        origin.append(p_BL)
    tree = Tree(
        name=full.name,
        links=tuple(full.links[i] for i in moving),
        joints=tuple(full.joints[i] for i in moving),
        parent=tuple(carrier for carrier, _, _ in placement),
        inboard=tuple(full.inboard[i] for i in moving),
        rotation=tuple(R for _, R, _ in placement),
        origin=tuple(p for _, _, p in placement),
        inertia=tuple(_welded_inertia(full, b, body, rotation, origin) for b in range(len(moving))),
        limits=full.limits,
        passive=full.passive,
        mimic=full.mimic,
        free=full.free,
    )
    return Weld(tree, tuple(body), tuple(rotation), tuple(origin))


def welding_notes(full: Tree, welded: Weld) -> tuple[Note, ...]:
    """One note per link that a fixed joint joined to a moving body or to the world."""
    notes = []
    for i, carrier in enumerate(welded.body):
        if full.joints[i] and not full.inboard[i].nv:
            to = "the world" if carrier < 0 else f"the body of link '{welded.tree.links[carrier]}'"
            notes.append(Note("merged", f"link '{full.links[i]}'", f"welded by fixed joint '{full.joints[i]}' to {to}"))
    return tuple(notes)
