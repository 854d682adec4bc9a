"""The answers to fifty digits and more, from the text of a URDF, sharing nothing with the package.

Ball arithmetic (Arb, through python-flint) at 1200 bits: every number carries a bound of its own error, so a reference
that had lost its digits would say so. Spatial vectors are Featherstone's, [angular; linear] about each link's origin in
its axes, with spatial accelerations and 6 x 6 matrices; the package sweeps classical accelerations with blocks. Source:
Featherstone, Rigid Body Dynamics Algorithms, 2008, tables 5.1, 6.1 (recursive Newton-Euler, composite bodies).
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx

ctx.prec = 1200
"""Bits: 360 digits, so that fifty are left after four solutions in a row, the steps of RK4, of a tree of any size."""

Array = np.ndarray


def vector(values: Sequence[Any]) -> arb_mat:
    return arb_mat(len(values), 1, [arb(v) for v in values])


def rows(m: arb_mat, start: int, stop: int) -> arb_mat:
    return arb_mat(stop - start, m.ncols(), [m[i, j] for i in range(start, stop) for j in range(m.ncols())])


def stack(a: arb_mat, b: arb_mat) -> arb_mat:
    return arb_mat(a.nrows() + b.nrows(), a.ncols(), a.entries() + b.entries())


def skew(p: arb_mat) -> arb_mat:
    x, y, z = p.entries()
    return arb_mat(3, 3, [0, -z, y, z, 0, -x, -y, x, 0])


def blocks(a: arb_mat, b: arb_mat, c: arb_mat, d: arb_mat) -> arb_mat:
    """[a b; c d] of 3 x 3 blocks."""
    parts = ((a, b), (c, d))
    return arb_mat(6, 6, [parts[i // 3][j // 3][i % 3, j % 3] for i in range(6) for j in range(6)])


def identity() -> arb_mat:
    return arb_mat(3, 3, [int(i == j) for i in range(3) for j in range(3)])


def cross(v: arb_mat, m: arb_mat) -> arb_mat:
    """v x m of two motions."""
    w, u = rows(v, 0, 3), rows(v, 3, 6)
    a, b = rows(m, 0, 3), rows(m, 3, 6)
    return stack(skew(w) * a, skew(u) * a + skew(w) * b)


def cross_force(v: arb_mat, f: arb_mat) -> arb_mat:
    """v x* f of a motion and a force."""
    w, u = rows(v, 0, 3), rows(v, 3, 6)
    a, b = rows(f, 0, 3), rows(f, 3, 6)
    return stack(skew(w) * a + skew(u) * b, skew(w) * b)


def turn(axis: arb_mat, angle: arb) -> arb_mat:
    """Rodrigues' rotation about a unit vector."""
    K = skew(axis)
    half = (angle / 2).sin()
    return identity() + K * angle.sin() + K * K * (2 * half * half)


_ZERO = 1e-100
"""Differences of equal numbers end below this, some at 1e-270; as a scale, such a number would make errors infinite."""


def double(m: arb_mat | arb) -> Array:
    """The nearest doubles, 0 below `_ZERO`. A ball wider than fifty digits of the largest entry is no reference."""
    entries = [m] if isinstance(m, arb) else m.entries()
    largest = max([abs(float(x.mid())) for x in entries], default=0.0)
    for x in entries:
        assert float(x.rad()) <= 1e-50 * largest + _ZERO, f"the reference lost its digits: {x}"
    values = np.array([float(x.mid()) for x in entries])
    values[np.abs(values) < _ZERO] = 0.0
    return values[0] if isinstance(m, arb) else values.reshape(m.nrows(), m.ncols())


class ExactRobot:
    """A robot read from URDF text; joints in depth-first order, siblings by name."""

    def __init__(self, xml: str) -> None:
        root = ElementTree.fromstring(xml)
        inertials = {link.get("name", ""): link.find("inertial") for link in root.iter("link") if link.get("name")}
        joints = root.findall("joint")
        outboard: dict[str, list[Any]] = {name: [] for name in inertials}
        for joint in joints:
            outboard[joint.find("parent").get("link")].append(joint)
        (base,) = set(inertials) - {joint.find("child").get("link") for joint in joints}
        self.links: list[str] = []
        self.parent: list[int] = []
        self.joints: list[str] = []
        self.subspace: list[arb_mat | None] = []
        self.wraps: list[bool] = []
        """For each degree of freedom, whether its joint is continuous."""
        self._place: list[tuple[arb_mat, arb_mat]] = []
        self.inertia: list[arb_mat] = []
        self.mass: list[arb] = []
        self.com: list[arb_mat] = []
        stack_: list[tuple[str, Any, int]] = [(base, None, -1)]
        while stack_:
            name, joint, parent = stack_.pop()
            index = len(self.links)
            self.links.append(name)
            self.parent.append(parent)
            self.joints.append("" if joint is None else joint.get("name"))
            self._place.append(_origin(None if joint is None else joint.find("origin")))
            self.subspace.append(_subspace(joint))
            if self.subspace[-1] is not None:
                self.wraps.append(joint.get("type") == "continuous")
            self._read_inertia(inertials[name])
            outboard_joints = sorted(outboard[name], key=lambda j: j.get("name"), reverse=True)
            stack_ += [(other.find("child").get("link"), other, index) for other in outboard_joints]
        self.dof = []
        for S in self.subspace:
            self.dof.append(-1 if S is None else 1 + max([-1, *self.dof]))
        self.nv = 1 + max(self.dof)

    def _read_inertia(self, inertial: Any) -> None:
        mass, com, rotational_inertia = arb(0), vector([0, 0, 0]), arb_mat(3, 3)
        if inertial is not None:
            mass = arb(inertial.find("mass").get("value"))
            R, com = _origin(inertial.find("origin"))
            tensor = inertial.find("inertia")
            if tensor is not None:
                xx, xy, xz, yy, yz, zz = (
                    arb(tensor.get(name, "0")) for name in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")
                )
                rotational_inertia = R * arb_mat(3, 3, [xx, xy, xz, xy, yy, yz, xz, yz, zz]) * R.transpose()
        s = skew(com)
        self.mass.append(mass)
        self.com.append(com)
        self.inertia.append(blocks(rotational_inertia - s * s * mass, s * mass, s * (-mass), identity() * mass))

    def at(self, q: Array, v: Array | None = None) -> State:
        """The robot at positions and velocities, (nv,) doubles each."""
        zero_velocity = np.zeros(self.nv)
        return State(self, *([arb(float(x)) for x in values] for values in (q, zero_velocity if v is None else v)))


class State:
    """A robot at q, v. Everything is found when first asked for."""

    def __init__(self, robot: ExactRobot, q: Sequence[Any], v: Sequence[Any]) -> None:
        self.robot, self.q, self.v = robot, list(q), list(v)
        self.rotation, self.offset, self.X = [], [], []  # R_PC, p_PC, motion transforms from parent to child
        for i, S in enumerate(robot.subspace):
            R, p = robot._place[i]
            if S is not None:
                x = self.q[robot.dof[i]]
                if any(e != 0 for e in rows(S, 0, 3).entries()):
                    R = R * turn(rows(S, 0, 3), x)
                else:
                    p = p + R * rows(S, 3, 6) * x
            self.rotation.append(R)
            self.offset.append(p)
            T = R.transpose()
            self.X.append(blocks(T, arb_mat(3, 3), T * skew(p) * (-1), T))

    def rates(self, x: Sequence[Any]) -> list[arb_mat]:
        """S x_i per link, zero at fixed joints."""
        robot = self.robot
        zero_column = vector([0] * 6)
        return [zero_column if S is None else S * arb(x[robot.dof[i]]) for i, S in enumerate(robot.subspace)]

    @cached_property
    def velocity(self) -> list[arb_mat]:
        """Spatial velocity per link, (6, 1)."""
        velocities: list[arb_mat] = []
        for i, rate in enumerate(self.rates(self.v)):
            parent = self.robot.parent[i]
            velocities.append(rate if parent < 0 else self.X[i] * velocities[parent] + rate)
        return velocities

    def acceleration(self, a: Sequence[Any], ground: arb_mat) -> list[arb_mat]:
        """Spatial acceleration per link; `ground` is the world's."""
        accelerations: list[arb_mat] = []
        joint_velocities, accelerated = self.rates(self.v), self.rates(a)
        for i, parent in enumerate(self.robot.parent):
            inherited = self.X[i] * (ground if parent < 0 else accelerations[parent])
            accelerations.append(inherited + accelerated[i] + cross(self.velocity[i], joint_velocities[i]))
        return accelerations

    def forces(self, a: Sequence[Any], gravity: Sequence[float], wrenches: Sequence[arb_mat] | None = None) -> Any:
        """[torque; force] from the parent on each link at its origin, in its axes."""
        lift = vector([0, 0, 0, *(-arb(float(g)) for g in gravity)])
        accelerations = self.acceleration(a, lift)
        net_forces = []
        for i, I in enumerate(self.robot.inertia):
            V = self.velocity[i]
            f = I * accelerations[i] + cross_force(V, I * V)
            net_forces.append(f if wrenches is None else f - wrenches[i])
        return self.inward(net_forces)

    def inward(self, f: Sequence[arb_mat]) -> list[arb_mat]:
        """What each link and all that hangs on it adds up to at the link's origin."""
        total = list(f)
        for i in range(len(total) - 1, 0, -1):
            parent = self.robot.parent[i]
            total[parent] = total[parent] + self.X[i].transpose() * total[i]
        return total

    def along(self, f: Sequence[arb_mat]) -> arb_mat:
        """S_i^T f_i, (nv, 1)."""
        efforts = [(S.transpose() * f[i])[0, 0] for i, S in enumerate(self.robot.subspace) if S is not None]
        return vector(efforts)

    def inverse_dynamics(
        self, a: Sequence[Any], gravity: Sequence[float], wrenches: Sequence[arb_mat] | None = None
    ) -> arb_mat:
        return self.along(self.forces(a, gravity, wrenches))

    @cached_property
    def composite(self) -> list[arb_mat]:
        """The inertia of each link and all that hangs on it, its joints held."""
        composites = list(self.robot.inertia)
        for i in range(len(composites) - 1, 0, -1):
            parent = self.robot.parent[i]
            composites[parent] = composites[parent] + self.X[i].transpose() * composites[i] * self.X[i]
        return composites

    @cached_property
    def mass_matrix(self) -> arb_mat:
        robot, composite = self.robot, self.composite
        M = [[arb(0)] * robot.nv for _ in range(robot.nv)]
        for i, S in enumerate(robot.subspace):
            if S is None:
                continue
            f, j = composite[i] * S, i
            while j >= 0:
                other = robot.subspace[j]
                if other is not None:
                    entry = (other.transpose() * f)[0, 0]
                    M[robot.dof[i]][robot.dof[j]] = M[robot.dof[j]][robot.dof[i]] = entry
                f = self.X[j].transpose() * f
                j = robot.parent[j]
        return arb_mat(M)

    def forward_dynamics(
        self, tau: Sequence[Any], gravity: Sequence[float], wrenches: Sequence[arb_mat] | None = None
    ) -> arb_mat:
        bias = self.inverse_dynamics([0] * self.robot.nv, gravity, wrenches)
        return self.mass_matrix.solve(vector(tau) - bias)

    @cached_property
    def momentum(self) -> list[arb_mat]:
        """Of each link and all that hangs on it."""
        return self.inward([I * V for I, V in zip(self.robot.inertia, self.velocity, strict=True)])

    @cached_property
    def momentum_turning(self) -> arb_mat:
        """S^T (v x* h), (nv, 1): what the turning of the joints takes from p-dot."""
        return self.along([cross_force(V, h) for V, h in zip(self.velocity, self.momentum, strict=True)])

    def momentum_rate(
        self, tau: Sequence[Any], gravity: Sequence[float], wrenches: Sequence[arb_mat] | None = None
    ) -> arb_mat:
        """d/dt of p = S^T h: S-dot = v x S, h-dot = what acts on the branch."""
        rest = State(self.robot, self.q, [arb(0)] * self.robot.nv)
        static_efforts = rest.inverse_dynamics([0] * self.robot.nv, gravity, wrenches)
        return vector(tau) - static_efforts - self.momentum_turning

    def momentum_derivative(self, a: Sequence[Any]) -> arb_mat:
        """d/dt (M v): p-dot under the efforts that make the motion, without weight."""
        no_gravity = [0.0, 0.0, 0.0]
        return self.momentum_rate(self.inverse_dynamics(a, no_gravity).entries(), no_gravity)

    @cached_property
    def poses(self) -> list[tuple[arb_mat, arb_mat]]:
        """R_WL, p_WL."""
        poses: list[tuple[arb_mat, arb_mat]] = []
        for i, parent in enumerate(self.robot.parent):
            R, p = self.rotation[i], self.offset[i]
            if parent >= 0:
                R_WP, p_WP = poses[parent]
                R, p = R_WP * R, p_WP + R_WP * p
            poses.append((R, p))
        return poses

    def potential(self, gravity: Sequence[float]) -> arb:
        total = arb(0)
        for (R, p), mass, com in zip(self.poses, self.robot.mass, self.robot.com, strict=True):
            total -= mass * (vector(gravity).transpose() * (p + R * com))[0, 0]
        return total

    @cached_property
    def kinetic(self) -> arb:
        pairs = zip(self.robot.inertia, self.velocity, strict=True)
        return sum(((V.transpose() * (I * V))[0, 0] for I, V in pairs), arb(0)) / 2


def _origin(element: Any) -> tuple[arb_mat, arb_mat]:
    """R and p as written, angles of the decimals themselves."""
    xyz = "0 0 0" if element is None else element.get("xyz", "0 0 0")
    rpy = "0 0 0" if element is None else element.get("rpy", "0 0 0")
    roll, pitch, yaw = map(_angle, rpy.split())
    x, y, z = (vector([int(k == n) for n in range(3)]) for k in range(3))
    return turn(z, yaw) * turn(y, pitch) * turn(x, roll), vector([arb(t) for t in xyz.split()])


def _angle(text: str) -> arb:
    """The angle that is meant: the importer takes what is within 1e-15 of a right angle for one, and says so."""
    right = arb.pi() / 2
    turns = round(float(text) / float(right.mid()))
    return right * turns if abs(float((arb(text) - right * turns).mid())) < 1e-15 else arb(text)


def _subspace(joint: Any) -> arb_mat | None:
    if joint is None or joint.get("type") == "fixed":
        return None
    element = joint.find("axis")
    axis = vector([arb(t) for t in ("1 0 0" if element is None else element.get("xyz")).split()])
    axis = axis * (1 / (axis.transpose() * axis)[0, 0].sqrt())
    zero_vector = vector([0, 0, 0])
    return stack(zero_vector, axis) if joint.get("type") == "prismatic" else stack(axis, zero_vector)
