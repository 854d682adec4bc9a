"""Robots with mimic joints, from files or random, with the same robots without mimic joints.

What ties the two is written down here once more, from the relations alone: q_all = S q + o, v_all = S v.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dyn_service.engine.robot import Robot
from dyn_service.model.description import Description, Mimic, RootType, rooted


@dataclass(frozen=True, eq=False)
class Pair:
    """coupled: joints follow others. free: the same robot, none does."""

    coupled: Robot
    free: Robot
    relations: dict[str, Mimic]

    @cached_property
    def S(self) -> np.ndarray:
        """(free nv, coupled nv)."""
        S = np.zeros((self.free.nv, self.coupled.nv))
        free, coupled = self.free.configuration, self.coupled.configuration
        for name, rows in zip(free.names, free.v_slices, strict=True):
            leader, multiplier, _ = self.relation(name)
            S[rows, coupled.v_slices[coupled.names.index(leader)]] = multiplier * np.eye(rows.stop - rows.start)
        return S

    def positions(self, q: np.ndarray) -> np.ndarray:
        """(..., free nq) from (..., coupled nq)."""
        q_free = np.zeros((*q.shape[:-1], self.free.nq))
        free, coupled = self.free.configuration, self.coupled.configuration
        for name, part in zip(free.names, free.q_slices, strict=True):
            leader, multiplier, offset = self.relation(name)
            q_free[..., part] = multiplier * q[..., coupled.q_slices[coupled.names.index(leader)]] + offset
        return q_free

    def rates(self, v: np.ndarray) -> np.ndarray:
        """(..., free nv) from (..., coupled nv)."""
        return v @ self.S.T

    def reduced(self, tau: np.ndarray) -> np.ndarray:
        """(..., coupled nv): S^T tau."""
        return tau @ self.S

    def relation(self, name: str) -> tuple[str, float, float]:
        """Leader, multiplier and offset of a joint; a leader leads itself."""
        if name not in self.relations:
            return name, 1.0, 0.0
        mimic = self.relations[name]
        leader, multiplier, offset = self.relation(mimic.joint)
        return leader, mimic.multiplier * multiplier, mimic.multiplier * offset + mimic.offset


def pair(description: Description, root: RootType = "fixed") -> Pair:
    """A robot whose joints follow others, with what its description says of that."""
    joints = {joint.name: joint for joint in description.joints}
    relations = {
        joint.name: joint.mimic
        for joint in description.joints
        if joint.mimic is not None and joint.type != "fixed" and joints[joint.mimic.joint].type != "fixed"
    }
    free_joints = tuple(replace(joint, mimic=None) for joint in description.joints)
    return Pair(
        Robot(rooted(description, root)), Robot(rooted(replace(description, joints=free_joints), root)), relations
    )


def drawn(description: Description, seed: int, share: float = 0.4) -> Description:
    """The robot, some of its joints following others whatever its file says: at random, of any type with one way to
    move, along a branch and across, in chains, ahead and behind in the order of q.
    """
    rng = np.random.default_rng(seed)
    one_way = [joint.name for joint in description.joints if joint.moves.nv == 1]
    order = [one_way[k] for k in rng.permutation(len(one_way))]
    count = max(1, round(share * len(order))) if len(order) > 1 else 0
    relations: dict[str, Mimic] = {}
    for k in range(len(order) - count, len(order)):  # each follows a joint before it, so that there is no cycle
        multiplier = float(rng.choice([1.0, -1.0, *rng.uniform(-2.0, 2.0, 3)]))
        offset = float(rng.choice([0.0, rng.uniform(-1.0, 1.0)]))
        relations[order[k]] = Mimic(order[int(rng.integers(0, k))], multiplier, offset)
    joints = tuple(replace(joint, mimic=relations.get(joint.name)) for joint in description.joints)
    return replace(description, joints=joints)
