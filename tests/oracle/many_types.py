"""Robots with joints of every type in Pinocchio, built joint by joint: it reads no spherical ones from URDF.

What bodies weigh and where joints stand is taken from our tree, which other tests hold; how joints move is Pinocchio's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pinocchio as pin

from dyn_service.model.inertia import BodyInertia
from dyn_service.model.tree import Tree


def plane(axis: np.ndarray) -> np.ndarray:
    """The smallest rotation from z to the axis: the axes of a planar joint."""
    cross, cosine = np.cross([0.0, 0.0, 1.0], axis), axis[2]
    # The formula below divides by 1 + cosine; half a turn about x is as small as any other.
    if cosine < -1 + 1e-12:
        return np.diag([1.0, -1.0, -1.0])
    skew = pin.skew(cross)
    return np.eye(3) + skew + skew @ skew / (1.0 + cosine)


class ManyTypes:
    """A tree of ours in Pinocchio."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.model = tree, pin.Model()
        frames: list[tuple[int, pin.SE3]] = []  # per body: Pinocchio's joint, and the body's pose in its frame
        for i, joint in enumerate(tree.inboard):
            carrier, pose = (0, pin.SE3.Identity()) if tree.parent[i] < 0 else frames[tree.parent[i]]
            pose = pose * pin.SE3(tree.rotation[i], tree.origin[i])
            if joint.nv:
                inner = pin.SE3(plane(joint.axis), np.zeros(3)) if joint.type == "planar" else pin.SE3.Identity()
                carrier = self.model.addJoint(carrier, MODELS[joint.type](joint), pose * inner, tree.joints[i])
                pose = inner.inverse()
            frames.append((carrier, pose))
            body = tree.inertia[i]
            if body.mass or body.about_com.any():
                self.model.appendBodyToJoint(carrier, _inertia(body), pose)
        self.frames = frames
        self.data = self.model.createData()
        assert list(self.model.names)[1:] == list(tree.movable_joints)

    def position(self, q: np.ndarray) -> np.ndarray:
        """q as Pinocchio takes it: cosine and sine of a planar joint's angle."""
        entries: list[float] = []
        for i in self.tree.movable:
            joint_q = q[self.tree.in_q[i]].tolist()
            entries += (
                [*joint_q[:2], np.cos(joint_q[2]), np.sin(joint_q[2])]
                if self.tree.inboard[i].type == "planar"
                else joint_q
            )
        return np.array(entries)

    def inverse_dynamics(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        return pin.rnea(self.model, self.data, self.position(q), v, a).copy()

    def forward_dynamics(self, q: np.ndarray, v: np.ndarray, tau: np.ndarray) -> np.ndarray:
        return pin.aba(self.model, self.data, self.position(q), v, tau).copy()

    def mass_matrix(self, q: np.ndarray) -> np.ndarray:
        upper = np.triu(pin.crba(self.model, self.data, self.position(q)))
        return upper + np.triu(upper, 1).T

    def momentum_rate(self, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        """d/dt (M v) = M a + (C + C^T) v, except for the rotation of the axes of v by v itself."""
        C = pin.computeCoriolisMatrix(self.model, self.data, self.position(q), v).copy()
        return self.mass_matrix(q) @ a + (C + C.T) @ v

    def link_poses(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pin.forwardKinematics(self.model, self.data, self.position(q))
        poses = [self.data.oMi[carrier] * pose for carrier, pose in self.frames]
        return np.array([x.rotation for x in poses]), np.array([x.translation for x in poses])

    def joint_wrench(self, name: str, q: np.ndarray, v: np.ndarray, a: np.ndarray) -> np.ndarray:
        """[torque; force] on the child, at the joint's origin in the child's axes."""
        pin.rnea(self.model, self.data, self.position(q), v, a)
        carrier = self.model.getJointId(name)
        force = self.frames[self.tree.joints.index(name)][1].actInv(self.data.f[carrier])
        return np.concatenate([force.angular, force.linear])


def _inertia(body: BodyInertia) -> pin.Inertia:
    """Whatever the file says, of bodies without mass too; what is made of three arguments is held to be possible."""
    inertia = pin.Inertia.Zero()
    inertia.mass, inertia.lever, inertia.inertia = body.mass, body.com, body.about_com
    return inertia


def _cylindrical(joint: Any) -> pin.JointModelComposite:
    """Pinocchio has no such joint: one that turns, then one that slides along the same axis."""
    composite = pin.JointModelComposite(2)
    composite.addJoint(pin.JointModelRevoluteUnaligned(joint.axis), pin.SE3.Identity())
    composite.addJoint(pin.JointModelPrismaticUnaligned(joint.axis), pin.SE3.Identity())
    return composite


MODELS: Mapping[str, Callable[[Any], Any]] = {
    "revolute": lambda joint: pin.JointModelRevoluteUnaligned(joint.axis),
    "continuous": lambda joint: pin.JointModelRevoluteUnaligned(joint.axis),
    "prismatic": lambda joint: pin.JointModelPrismaticUnaligned(joint.axis),
    "screw": lambda joint: pin.JointModelHelicalUnaligned(joint.axis, joint.lead),
    "cylindrical": _cylindrical,
    "planar": lambda joint: pin.JointModelPlanar(),
    "spherical": lambda joint: pin.JointModelSpherical(),
    "floating": lambda joint: pin.JointModelFreeFlyer(),
}
"""Pinocchio's joints by our types; a new type of `JOINT_TYPES` needs its line here."""
