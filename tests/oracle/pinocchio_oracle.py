"""Pinocchio's answers, in our order and conventions."""

from __future__ import annotations

import re

import numpy as np
import pinocchio as pin


class Oracle:
    """A robot in Pinocchio. `xml` is URDF text. Positions of continuous joints are angles here, cos and sin there."""

    def __init__(self, xml: str) -> None:
        self._take(pin.buildModelFromXML(xml))

    @classmethod
    def of_model(cls, model: pin.Model) -> Oracle:
        """Of a model that is there already."""
        oracle = cls.__new__(cls)
        oracle._take(model)
        return oracle

    def _take(self, model: pin.Model) -> None:
        self.model = model
        self.data = model.createData()

    @property
    def joint_names(self) -> tuple[str, ...]:
        return tuple(self.model.names)[1:]

    def position(self, q: np.ndarray) -> np.ndarray:
        """q as Pinocchio takes it."""
        entries: list[float] = []
        for joint, value in zip(self.model.joints[1:], q, strict=True):
            entries += [value] if joint.nq == 1 else [np.cos(value), np.sin(value)]
        return np.array(entries)

    def inverse_dynamics(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        return pin.rnea(self.model, self.data, self.position(q), v, a).copy()

    def forward_dynamics(self, q: np.ndarray, v: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return pin.aba(self.model, self.data, self.position(q), v, tau).copy()

    def mass_matrix(self, q: np.ndarray) -> np.ndarray:
        upper = np.triu(pin.crba(self.model, self.data, self.position(q)))
        return upper + np.triu(upper, 1).T

    def bias_forces(self, q: np.ndarray, v: np.ndarray) -> np.ndarray:
        return pin.nle(self.model, self.data, self.position(q), v).copy()

    def gravity_forces(self, q: np.ndarray) -> np.ndarray:
        return pin.computeGeneralizedGravity(self.model, self.data, self.position(q)).copy()

    def momentum_rate(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        """d/dt (M v) = M a + (C + C^T) v."""
        C = pin.computeCoriolisMatrix(self.model, self.data, self.position(q), v).copy()
        return self.mass_matrix(q) @ a + (C + C.T) @ v

    def joint_wrenches(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> dict[str, np.ndarray]:
        """`data.f` of every movable joint by name, [torque; force] in the joint's axes at its origin."""
        pin.rnea(self.model, self.data, self.position(q), v, a)
        loads = {}
        for index, name in enumerate(self.model.names):
            if index:
                force = self.data.f[index]
                loads[name] = np.concatenate([force.angular, force.linear])
        return loads


def with_fixed_joints_turning(xml: str) -> str:
    """The same robot with each fixed joint made a revolute one, which held still carries what the fixed one carries."""
    return re.sub(
        r'(<joint\b[^>]*type=")fixed("[^>]*>)', r'\1revolute\2<limit lower="0" upper="0" effort="0" velocity="0"/>', xml
    )
