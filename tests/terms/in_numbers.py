"""Every query of `dynamics/` in numbers, without compiling a kernel, against Pinocchio's answer.

One tree with skew axes, revolute, continuous, prismatic and fixed joints, branches and links without inertia, moving,
under weight that no axis lies along, pushed by a wrench on every link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import pinocchio as pin

from dyn_service.dynamics import expressions as ex
from dyn_service.model.building import tree_of
from dyn_service.model.composite import weld
from dyn_service.model.tree import Tree
from dyn_service.parsing.urdf.reader import read_text
from tests.oracle.pinocchio_oracle import Oracle, with_fixed_joints_turning
from tests.random_robots import random_urdf
from tests.trees import dofs, motion_subspaces

XML = random_urdf(12)
"""Three joints on the ground, the first body among them, which carries others; every kind of joint on every other."""

GRAVITY = np.array([0.7, -1.3, -9.81])
STEP_S = 0.01
TURNED = np.array([0.4, -1.1, 2.3])
PLACE = (np.array([0.3, -0.2, 0.11]), np.array(pin.rpy.rpyToMatrix(*TURNED)))
"""Poses of sensors in the frames of their joints or links: xyz, and R of `TURNED`, roll, pitch and yaw."""

Case = tuple[Callable[[], Any], Callable[[], np.ndarray]]
"""Ours and Pinocchio's."""


_oracle = cache(Oracle)


@cache
def _tree(welded: bool) -> Tree:
    full = tree_of(read_text(XML))
    return weld(full).tree if welded else full


class Numbers:
    """The two sides of each comparison, by name.

    made: the modules of `dynamics/` by name. welded: the tree of the moving bodies, whose first body moves, instead of
    the full one, whose first body is the ground. Pinocchio welds too; for the full tree its fixed joints turn, held.
    """

    def __init__(self, made: Mapping[str, Any], *, welded: bool = False) -> None:
        self.made, self.welded = made, welded
        self.tree = _tree(welded)
        rng = np.random.default_rng(0)
        self.q, self.v, self.a = rng.uniform(-1.5, 1.5, (3, self.tree.nv))
        self.wrenches = rng.uniform(-5.0, 5.0, (len(self.tree), 6))
        self.free = _oracle(XML)
        self.held = _oracle(XML if welded else with_fixed_joints_turning(XML))
        for oracle in (self.free, self.held):
            oracle.model.gravity.linear = GRAVITY
        names = self.held.joint_names
        self.movable = [names.index(name) for name in self.tree.movable_joints]
        self.rows = [names.index(name) + 1 for name in self.tree.joints if name]
        """Where in the model whose fixed joints turn each body but the root stands, as a joint."""

    def spread(self, x: np.ndarray) -> np.ndarray:
        """A vector over the movable joints as one over all, zero at fixed ones."""
        full = np.zeros(len(self.held.joint_names))
        full[self.movable] = x
        return full

    @cached_property
    def moving(self) -> pin.Data:
        """Pinocchio's data after the full motion without wrenches."""
        model, data = self.held.model, self.held.model.createData()
        q, v, a = (self.spread(x) for x in (self.q, self.v, self.a))
        q = self.held.position(q)
        pin.rnea(model, data, q, v, a)
        pin.forwardKinematics(model, data, q, v, a)
        pin.computeJointJacobians(model, data, q)
        pin.centerOfMass(model, data, q, v, a, True)
        pin.computeSubtreeMasses(model, data)
        return data

    @cached_property
    def pushed(self) -> pin.Data:
        """The same with the wrenches."""
        model, data = self.held.model, self.held.model.createData()
        forces = pin.StdVec_Force()
        forces.extend([pin.Force(np.zeros(6)) for _ in range(model.njoints)])
        for i, row in zip(self.bodies, self.rows, strict=True):
            forces[row] = pin.Force(self.wrenches[i][3:], self.wrenches[i][:3])
        q, v, a = (self.spread(x) for x in (self.q, self.v, self.a))
        pin.rnea(model, data, self.held.position(q), v, a, forces)
        return data

    @property
    def bodies(self) -> list[int]:
        """The bodies but the root."""
        return [i for i, name in enumerate(self.tree.joints) if name]

    def cases(self) -> dict[str, Case]:
        parts = (
            self._efforts,
            self._loads,
            self._momenta,
            self._links,
            self._points,
            self._steps,
            self._derivatives,
            self._hessians,
            self._linear,
        )
        return {name: case for part in (*parts, self._blocks, self._branch_inertias) for name, case in part().items()}

    def _efforts(self) -> dict[str, Case]:
        made, tree, oracle = self.made, self.tree, self.free
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        W = made["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        tau_free = oracle.inverse_dynamics(self.q, self.v, self.a)
        tau_pushed = self.pushed.tau[self.movable].copy()
        M = oracle.mass_matrix(self.q)
        zero, kp, kd = np.zeros(tree.nv), 3.0, 0.5
        asked = self.a + kd * (0.1 - self.v) + kp * (0.2 - self.q)
        tracking = (
            ex.matrix([0.2] * tree.nv),
            ex.matrix([0.1] * tree.nv),
            a,
            ex.matrix([kp] * tree.nv),
            ex.matrix([kd] * tree.nv),
        )
        terms = cache(lambda: made["projected"].terms(tree, q, v, ex.matrix(tau_free), g, W))
        rest = oracle.inverse_dynamics(self.q, zero, zero)
        cases: dict[str, Case] = {
            "inverse_dynamics": (lambda: made["newton_euler"].inverse_dynamics(tree, q, v, a, g), lambda: tau_free),
            "inverse_dynamics, pushed": (
                lambda: made["newton_euler"].inverse_dynamics(tree, q, v, a, g, W),
                lambda: tau_pushed,
            ),
            "bias_forces": (
                lambda: made["newton_euler"].bias_forces(tree, q, v, g),
                lambda: oracle.bias_forces(self.q, self.v),
            ),
            "gravity_forces": (
                lambda: made["newton_euler"].gravity_forces(tree, q, g),
                lambda: oracle.gravity_forces(self.q),
            ),
            "computed_torque": (
                lambda: made["newton_euler"].computed_torque(tree, q, v, *tracking, g),
                lambda: oracle.inverse_dynamics(self.q, self.v, asked),
            ),
            "computed_torque, pushed": (
                lambda: made["newton_euler"].computed_torque(tree, q, v, *tracking, g, W),
                lambda: oracle.inverse_dynamics(self.q, self.v, asked) + tau_pushed - tau_free,
            ),
            "mass_matrix": (lambda: ex.matrix(made["mass_matrix"].mass_matrix(tree, q)), lambda: M),
            "projected": (lambda: made["projected"].inverse_dynamics(tree, q, v, a, g), lambda: tau_free),
            "projected, pushed": (
                lambda: made["projected"].inverse_dynamics(tree, q, v, a, g, W),
                lambda: tau_pushed,
            ),
            "body_recursion": (lambda: made["body_frame"].recursion(tree, q, v, a, g)["tau"], lambda: tau_free),
            "body_recursion, pushed": (
                lambda: made["body_frame"].recursion(tree, q, v, a, g, W)["tau"],
                lambda: tau_pushed,
            ),
            "terms, mass matrix": (lambda: terms()["mass_matrix"], lambda: M),
            "terms, gravity": (lambda: terms()["gravity_forces"], lambda: -rest),
            "terms, velocity": (
                lambda: terms()["velocity_forces"],
                lambda: rest - oracle.bias_forces(self.q, self.v),
            ),
            "terms, external": (lambda: terms()["external_forces"], lambda: tau_free - tau_pushed),
            "terms, efforts": (lambda: terms()["efforts"], lambda: tau_free),
        }
        for method in ("articulated", "mass_matrix"):
            solve = made[method].forward_dynamics
            cases[f"forward_dynamics, {method}"] = (
                lambda solve=solve: solve(tree, q, v, ex.matrix(tau_free), g),
                lambda: self.a,
            )
            cases[f"forward_dynamics, {method}, pushed"] = (
                lambda solve=solve: solve(tree, q, v, ex.matrix(tau_pushed), g, W),
                lambda: self.a,
            )
        return cases

    def _loads(self) -> dict[str, Case]:
        made, tree = self.made, self.tree
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        W = made["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        cases: dict[str, Case] = {}
        for label, data, wrenches in (("", self.moving, None), (", pushed", self.pushed, W)):
            tau = data.tau[self.movable].copy()
            loads = np.array([_angular_first(data.f[row]) for row in self.rows])
            along = np.array([tau[dofs(tree)[i]] if tree.inboard[i].nv else 0.0 for i in self.bodies])
            axes = motion_subspaces(tree)[self.bodies]
            found = cache(partial(made["constraint"].constraint_forces, tree, q, v, ex.matrix(tau), g, wrenches))
            expected = {"wrench": loads, "actuation": along, "constraint": loads - axes * along[:, None]}
            p, R = PLACE
            mounted = (tree, q, v, ex.matrix(self.a), ex.matrix(p), ex.matrix(TURNED), g, wrenches)
            read = {"force": loads[:, 3:] @ R, "torque": (loads[:, :3] - np.cross(p, loads[:, 3:])) @ R}
            for name, value in read.items():
                for query, sign in (("force_torque", 1.0), ("reaction", -1.0)):
                    sensor = getattr(made["sensors"], query)
                    cases[f"{query}, {name}{label}"] = (
                        lambda sensor=sensor, mounted=mounted, name=name: sensor(*mounted)[name],
                        lambda value=value, sign=sign: sign * value,
                    )
            for name, value in expected.items():
                cases[f"constraint_forces, {name}{label}"] = (
                    lambda found=found, name=name: found()[name],
                    lambda value=value: value,
                )
        return cases

    def _momenta(self) -> dict[str, Case]:
        made, tree, oracle = self.made, self.tree, self.free
        H = made["hamilton"]
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        W = made["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        M = oracle.mass_matrix(self.q)
        p = M @ self.v
        kinetic = self.v @ p / 2
        tau_free, tau_pushed = self.moving.tau[self.movable].copy(), self.pushed.tau[self.movable].copy()
        rate = oracle.momentum_rate(self.q, self.v, self.a)
        potential = lambda: self._potential()
        energy = cache(partial(H.energy, tree, q, v, g))
        hamiltonian = cache(partial(H.hamiltonian, tree, q, ex.matrix(p), g))
        return {
            "momentum": (lambda: H.momentum(tree, q, v), lambda: p),
            "velocity_from_momentum": (lambda: H.velocity_from_momentum(tree, q, ex.matrix(p)), lambda: self.v),
            "velocity_through_mass_matrix": (
                lambda: H.velocity_through_mass_matrix(tree, q, ex.matrix(p)),
                lambda: self.v,
            ),
            "momentum_rate": (lambda: H.momentum_rate(tree, q, ex.matrix(p), ex.matrix(tau_free), g), lambda: rate),
            "momentum_rate, pushed": (
                lambda: H.momentum_rate(tree, q, ex.matrix(p), ex.matrix(tau_pushed), g, W),
                lambda: rate,
            ),
            "flow, v": (lambda: H.flow(tree, q, ex.matrix(p), ex.matrix(tau_free), g)["v"], lambda: self.v),
            "momentum_derivative": (lambda: H.momentum_derivative(tree, q, v, a), lambda: rate),
            "energy, kinetic": (lambda: energy()["kinetic"], lambda: np.array([kinetic])),
            "energy, potential": (lambda: energy()["potential"], potential),
            "energy, total": (lambda: energy()["total"], lambda: kinetic + potential()),
            "energy, lagrangian": (lambda: energy()["lagrangian"], lambda: kinetic - potential()),
            "hamiltonian, kinetic": (lambda: hamiltonian()["kinetic"], lambda: np.array([kinetic])),
            "hamiltonian, potential": (lambda: hamiltonian()["potential"], potential),
            "hamiltonian": (lambda: hamiltonian()["hamiltonian"], lambda: kinetic + potential()),
        }

    def _potential(self) -> np.ndarray:
        """Pinocchio leaves out the root link, which does not move."""
        root = np.zeros(3) if self.welded else self.tree.inertia[0].moment
        model, data = self.held.model, self.held.model.createData()
        moving = pin.computePotentialEnergy(model, data, self.held.position(self.spread(self.q)))
        return np.array([moving - GRAVITY @ root])

    def _links(self) -> dict[str, Case]:
        made, tree, data, model = self.made, self.tree, self.moving, self.held.model
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        body = lambda rows: np.array(rows).ravel()
        motion = cache(lambda: made["newton_euler"].link_motion(tree, q, v, a, g))
        poses = cache(lambda: made["kinematics"].link_poses(tree, q))
        recursion = cache(lambda: made["body_frame"].recursion(tree, q, v, a, g))
        jacobians = cache(lambda: made["projected"].jacobians(tree, q))
        biases = cache(lambda: made["projected"].bias_accelerations(tree, q, v))
        branch = cache(lambda: made["hamilton"].system_momentum(tree, q, v))
        ground = 0 if self.welded else 1
        still = np.zeros((ground, 3))
        turn = [data.oMi[row].rotation for row in self.rows]
        omega = [data.v[row].angular for row in self.rows]
        linear = [data.v[row].linear for row in self.rows]
        # Pinocchio's acceleration after `forwardKinematics` has no weight in it; classical, in joint axes.
        alpha = [data.a[row].angular for row in self.rows]
        origin = [pin.getClassicalAcceleration(model, data, row, pin.LOCAL).linear for row in self.rows]
        loads = [_angular_first(data.f[row]) for row in self.rows]
        lever = [model.inertias[row].lever for row in self.rows]
        mass, about = ([getattr(model.inertias[row], name) for row in self.rows] for name in ("mass", "inertia"))
        centre = [
            x + np.cross(wd, s) + np.cross(w, np.cross(w, s))
            for x, wd, w, s in zip(origin, alpha, omega, lever, strict=True)
        ]
        J = [pin.getJointJacobian(model, data, row, pin.LOCAL)[:, self.movable] for row in self.rows]
        at_centre = [j[:3] - pin.skew(s) @ j[3:] for j, s in zip(J, lever, strict=True)]
        biased = self.held.model.createData()
        full = self.held.position(self.spread(self.q)), self.spread(self.v), self.spread(np.zeros(tree.nv))
        pin.forwardKinematics(model, biased, *full)
        sigma_R = [biased.a[row].angular for row in self.rows]
        sigma_S = [
            pin.getClassicalAcceleration(model, biased, row, pin.LOCAL).linear
            + np.cross(wd, s)
            + np.cross(w, np.cross(w, s))
            for row, wd, w, s in zip(self.rows, sigma_R, omega, lever, strict=True)
        ]
        momenta, masses, centres = self._branches()
        # The ground stands still: zeros in its row. Pinocchio has no load there.
        with_root = lambda rows: np.concatenate([still, np.array(rows)]).ravel()
        six = np.zeros((ground, 6))
        six_rows = lambda x, y: np.concatenate([six, np.hstack([np.array(x), np.array(y)])]).ravel()
        behind = lambda x, width: ex.matrix(x).array().ravel()[ground * width :]  # not the ground's
        p, R = PLACE
        imu = cache(lambda: made["sensors"].imu(tree, q, v, a, ex.matrix(p), ex.matrix(TURNED), g))
        swung = [np.cross(wd, p) + np.cross(w, np.cross(w, p)) for wd, w in zip(alpha, omega, strict=True)]
        weighed = [x + s - R_WL.T @ GRAVITY for x, s, R_WL in zip(origin, swung, turn, strict=True)]
        return {
            "imu, specific force": (
                lambda: imu()["specific_force"],
                lambda: np.concatenate([np.tile(-GRAVITY, (ground, 1)), np.array(weighed)]) @ R,
            ),
            "imu, angular velocity": (lambda: imu()["angular_velocity"], lambda: with_root(np.array(omega) @ R)),
            "link_poses, rotation": (lambda: behind(poses()["rotation"], 9), lambda: body(turn)),
            "link_poses, position": (
                lambda: behind(poses()["position"], 3),
                lambda: body([data.oMi[row].translation for row in self.rows]),
            ),
            "link_motion, velocity": (lambda: motion()["velocity"], lambda: six_rows(omega, linear)),
            "link_motion, acceleration": (lambda: motion()["acceleration"], lambda: six_rows(alpha, origin)),
            "link_motion, load": (lambda: behind(motion()["load"], 6), lambda: body(loads)),
            "recursion, omega": (lambda: recursion()["omega"], lambda: with_root(omega)),
            "recursion, omega_dot": (lambda: recursion()["omega_dot"], lambda: with_root(alpha)),
            "recursion, v_dot": (lambda: recursion()["v_dot"], lambda: with_root(origin)),
            "recursion, force": (lambda: behind(recursion()["force"], 3), lambda: body([f[3:] for f in loads])),
            "recursion, moment": (lambda: behind(recursion()["moment"], 3), lambda: body([f[:3] for f in loads])),
            "recursion, centre_acceleration": (lambda: recursion()["centre_acceleration"], lambda: with_root(centre)),
            "recursion, centre_force": (
                lambda: behind(recursion()["centre_force"], 3),
                lambda: body([m * (x - R.T @ GRAVITY) for m, x, R in zip(mass, centre, turn, strict=True)]),
            ),
            "recursion, centre_moment": (
                lambda: behind(recursion()["centre_moment"], 3),
                lambda: body([I @ wd + np.cross(w, I @ w) for I, wd, w in zip(about, alpha, omega, strict=True)]),
            ),
            "jacobians, translation": (
                lambda: behind(jacobians()["translation"], 3 * tree.nv),
                lambda: body(at_centre),
            ),
            "jacobians, rotation": (
                lambda: behind(jacobians()["rotation"], 3 * tree.nv),
                lambda: body([j[3:] for j in J]),
            ),
            "bias_accelerations, translation": (lambda: biases()["translation"], lambda: with_root(sigma_S)),
            "bias_accelerations, rotation": (lambda: biases()["rotation"], lambda: with_root(sigma_R)),
            "system_momentum, momentum": (lambda: behind(branch()["momentum"], 6), lambda: body(momenta)),
            "system_momentum, mass": (lambda: behind(branch()["mass"], 1), lambda: body(masses)),
            "system_momentum, centre": (lambda: behind(branch()["centre"], 3), lambda: body(centres)),
        }

    def _blocks(self) -> dict[str, Case]:
        """Y, F-bar, D, and the blocks together: (5) makes Pinocchio's accelerations, (2), (11) and (15) its loads."""
        tree, model, rows = self.tree, self.held.model, self.rows
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        W = self.made["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        levers = [np.eye(6) for _ in rows]
        for Y, row in zip(levers, rows, strict=True):
            Y[3:, :3] = -pin.skew(model.inertias[row].lever)
        D = [_swapped(self.moving.liMi[row].inverse().action) * (tree.parent[i] >= 0)
             for i, row in zip(self.bodies, rows, strict=True)]  # fmt: skip
        cases: dict[str, Case] = {}
        for label, data, wrenches in (("", self.moving, None), (", pushed", self.pushed, W)):
            loads = np.array([_angular_first(data.f[row]) for row in rows])
            external = np.array([
                np.concatenate([np.zeros(3), model.inertias[row].mass * self.moving.oMi[row].rotation.T @ GRAVITY])
                for row in rows
            ])  # fmt: skip
            if wrenches is not None:  # from the joint to the centre of mass
                external += [np.linalg.solve(Y.T, self.wrenches[i]) for Y, i in zip(levers, self.bodies, strict=True)]
            found = cache(partial(self.made["operators"].newton_euler_blocks, tree, q, v, g, wrenches))
            blocks = cache(lambda found=found: {name: ex.matrix(x).array() for name, x in found().items()})
            expected = {"external_lever": levers, "external_loads": external, "influence": D}
            for name, value in expected.items():
                cases[f"newton_euler_blocks, {name}{label}"] = (
                    lambda blocks=blocks, name=name: blocks()[name].reshape(len(tree), 6, -1)[self.bodies],
                    lambda value=value: np.array(value).reshape(len(rows), 6, -1),
                )
            for name in ("centre", "joint"):
                cases[f"newton_euler_blocks, loads by the {name}{label}"] = (
                    lambda blocks=blocks, name=name: self._loads_of(blocks(), by=name)[self.bodies],
                    lambda loads=loads: loads,
                )
        return cases

    def _loads_of(self, blocks: Mapping[str, np.ndarray], by: str) -> np.ndarray:
        """F of (15), or of (13) with the blocks at the centres of mass."""
        tree = self.tree
        b = {name: x.reshape(len(tree), 6, -1) for name, x in blocks.items() if name != "free_axis"}
        acceleration, F = np.zeros((2, len(tree), 6, 1))
        for i, parent in enumerate(tree.parent):
            carried = b["influence"][i] @ acceleration[parent] if parent >= 0 else 0.0
            part = tree.in_v[i]
            acceleration[i] = carried + blocks["free_axis"][part].T @ self.a[part, None] + b["velocity_products"][i]
        for i in reversed(range(len(tree))):
            if by == "centre":
                of_centre = b["centre_lever"][i] @ acceleration[i] + b["centre_velocity_products"][i]
                load = b["centre_lever"][i].T @ (b["centre_inertia"][i] @ of_centre + b["centre_velocity_loads"][i])
            else:
                load = b["inertia"][i] @ acceleration[i] + b["velocity_loads"][i]
            F[i] += load - b["external_lever"][i].T @ b["external_loads"][i]
            if tree.parent[i] >= 0:
                F[tree.parent[i]] += b["influence"][i].T @ F[i]
        return F[..., 0]

    def _branch_inertias(self) -> dict[str, Case]:
        """J, R, K and beta of (19b) from what Pinocchio's articulated-body algorithm leaves."""
        tree = self.tree if self.welded else weld(self.tree).tree
        model, data = self.free.model, self.free.model.createData()
        q, names = self.free.position(self.q), self.free.joint_names
        pin.aba(model, data, q, np.zeros(model.nv), np.zeros(model.nv))
        rows = [names.index(name) + 1 for name in tree.joints]
        X = [_swapped(data.liMi[row].inverse().action) for row in rows]
        J = [_swapped(model.inertias[row].matrix()) for row in rows]
        for i, parent in reversed(list(enumerate(tree.parent))):
            if parent >= 0:  # Pinocchio has subtracted what the joint gives way to, where it has a parent that moves
                J[parent] = J[parent] + X[i].T @ _swapped(data.Yaba[rows[i]]) @ X[i]
        G = motion_subspaces(tree)[..., None]
        R = [G_i.T @ J_i @ G_i for G_i, J_i in zip(G, J, strict=True)]
        K = [J_i @ G_i / R_i for G_i, J_i, R_i in zip(G, J, R, strict=True)]
        beta = [
            (np.eye(6) - G_i @ K_i.T) @ X_i * (parent >= 0)  # D_1 = 0
            for G_i, K_i, X_i, parent in zip(G, K, X, tree.parent, strict=True)
        ]
        found = cache(lambda: self.made["articulated"].branch_inertias(tree, ex.matrix(self.q)))
        expected = {"inertia": J, "resistance": np.diag(np.ravel(R)), "gain": K, "influence": beta}
        return {
            f"branch_inertias, {name}": (lambda name=name: found()[name], lambda value=value: np.array(value).ravel())
            for name, value in expected.items()
        }

    def _points(self) -> dict[str, Case]:
        """Of a point of the link that most joints carry, seen in three ways."""
        made, tree, model = self.made["task_space"], self.tree, self.held.model.copy()
        joints = [sum(tree.inboard[j].nv for j in tree.ancestors(i)) for i in self.bodies]
        point, row = PLACE[0], self.rows[int(np.argmax(joints))]
        body = self.bodies[int(np.argmax(joints))]
        at = model.addFrame(pin.Frame("point", row, pin.SE3(np.eye(3), point), pin.FrameType.OP_FRAME))
        data, still = model.createData(), np.zeros(model.nv)
        q, v = self.held.position(self.spread(self.q)), self.spread(self.v)
        pin.forwardKinematics(model, data, q, v, still)
        pin.computeJointJacobians(model, data, q)
        pin.updateFramePlacements(model, data)
        link = ex.matrix([float(i == body) for i in range(len(tree))])
        given = (ex.matrix(self.q), ex.matrix(self.v), link, ex.matrix(point))
        M = self.free.mass_matrix(self.q)
        few = [3, 4, 2]
        directions = ex.matrix([float(k in few) for k in range(6)])
        cases: dict[str, Case] = {}
        for name, frame in (("", pin.LOCAL_WORLD_ALIGNED), ("_local", pin.LOCAL), ("_world", pin.WORLD)):
            rate = pin.getFrameAcceleration if name else pin.getFrameClassicalAcceleration
            J = pin.getFrameJacobian(model, data, at, frame)[[3, 4, 5, 0, 1, 2]][:, self.movable]
            Omega = J @ np.linalg.solve(M, J.T)
            inertia = np.zeros((6, 6))
            inertia[np.ix_(few, few)] = np.linalg.inv(Omega[np.ix_(few, few)])
            expected = {
                "rotation": data.oMf[at].rotation,
                "position": data.oMf[at].translation,
                "velocity": _angular_first(pin.getFrameVelocity(model, data, at, frame)),
                "jacobian": J,
                "bias": _angular_first(rate(model, data, at, frame)),
                "mobility": Omega,
                "inertia": inertia,
            }
            motion = cache(partial(getattr(made, f"point_motion{name}"), tree, *given))
            space = cache(partial(getattr(made, f"operational_space{name}"), tree, given[0], *given[2:], directions))
            for output, value in expected.items():
                answer = space if output in ("mobility", "inertia") else motion
                cases[f"point{name}, {output}"] = (
                    lambda answer=answer, output=output: answer()[output],
                    lambda value=value: np.array(value).ravel(),
                )
        return cases

    def _branches(self) -> tuple[list[np.ndarray], list[float], list[np.ndarray]]:
        """Momentum, mass and centre of each branch but the root's, from Pinocchio's inertias and velocities."""
        model, data = self.held.model, self.moving
        momenta, masses, centres = [], [], []
        for row in self.rows:
            total, mass, moment = pin.Force.Zero(), 0.0, np.zeros(3)
            for k in model.subtrees[row]:
                placed = data.oMi[row].actInv(data.oMi[k])
                total = total + placed.act(model.inertias[k] * data.v[k])
                mass += model.inertias[k].mass
                moment += model.inertias[k].mass * placed.act(model.inertias[k].lever)
            momenta.append(_angular_first(total))
            masses.append(mass)
            centres.append(moment / mass if mass else moment)
        return momenta, masses, centres

    def _derivatives(self) -> dict[str, Case]:
        made, tree, oracle = self.made, self.tree, self.free
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        tau = oracle.inverse_dynamics(self.q, self.v, self.a)

        def theirs(of: Callable[..., Any], x: np.ndarray) -> tuple[np.ndarray, ...]:
            data = oracle.model.createData()  # what is returned lives in it
            *by_q_and_v, last = (x.copy() for x in of(oracle.model, data, oracle.position(self.q), self.v, x))
            return *by_q_and_v, np.triu(last) + np.triu(last, 1).T

        cases: dict[str, Case] = {}
        sides = (
            ("inverse", a, partial(theirs, pin.computeRNEADerivatives, self.a)),
            ("forward", ex.matrix(tau), partial(theirs, pin.computeABADerivatives, tau)),
        )
        for name, x, expected in sides:
            of = cache(partial(getattr(made["derivatives"], f"of_{name}_dynamics"), tree, q, v, x, g, None))
            for k, part in enumerate("qvx"):
                cases[f"derivatives of {name} dynamics, {part}"] = (
                    lambda of=of, part=part: ex.matrix(getattr(of(), part)),
                    lambda expected=expected, k=k: expected()[k],
                )
        return cases

    def _hessians(self) -> dict[str, Case]:
        """Differences of Pinocchio's first derivatives, exact to 1e-13: their error is of the tenth order."""
        made, tree, oracle = self.made, self.tree, self.free
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        weights, n = np.random.default_rng(5).uniform(-1.0, 1.0, tree.nv), tree.nv
        tau = oracle.inverse_dynamics(self.q, self.v, self.a)

        def gradient(of: Callable[..., Any], q: np.ndarray, v: np.ndarray, x: np.ndarray) -> np.ndarray:
            data = oracle.model.createData()  # what is returned lives in it
            *both, last = (m.copy() for m in of(oracle.model, data, oracle.position(q), v, x))
            return np.concatenate([weights @ m for m in (*both, np.triu(last) + np.triu(last, 1).T)])

        @cache
        def expected(of: Callable[..., Any], x: bytes) -> tuple[np.ndarray, np.ndarray]:
            f, h = partial(gradient, of, x=np.frombuffer(x)), 0.02
            factors = (5 / 6, -5 / 21, 5 / 84, -5 / 504, 1 / 1260)

            def slope(moved: Callable[[float], np.ndarray]) -> np.ndarray:
                pairs = enumerate(factors, start=1)
                return np.asarray(sum(c / h * (moved(k * h) - moved(-k * h)) for k, c in pairs))

            rows = [slope(lambda s, e=e: f(self.q + s * e, self.v)) for e in np.eye(n)]
            return f(self.q, self.v), np.array(
                [*rows, *(slope(lambda s, e=e: f(self.q, self.v + s * e)) for e in np.eye(n))]
            )

        cases: dict[str, Case] = {}
        for name, x, of in (
            ("inverse", self.a, pin.computeRNEADerivatives),
            ("forward", tau, pin.computeABADerivatives),
        ):
            ask = getattr(made["hessians"], f"of_{name}_dynamics")
            ours = cache(partial(ask, tree, q, v, ex.matrix(x), ex.matrix(weights), g, None))
            true = partial(expected, of, x.tobytes())
            for k, part in enumerate("qvx"):
                cases[f"hessian of {name} dynamics, {part}"] = (
                    lambda ours=ours, part=part: getattr(ours(), part),
                    lambda true=true, k=k: true()[0][k * n : (k + 1) * n],
                )
            for part, row, k in (("qq", 0, 0), ("qv", 0, 1), ("vv", 1, 1), ("qx", 0, 2)):
                cases[f"hessian of {name} dynamics, {part}"] = (
                    lambda ours=ours, part=part: ex.matrix(getattr(ours(), part)),
                    lambda true=true, row=row, k=k: true()[1][row * n : (row + 1) * n, k * n : (k + 1) * n],
                )
        return cases

    def _linear(self) -> dict[str, Case]:
        """Regressors and the Coriolis matrix; the sum C + C^T, since it is the same for all C with that property."""
        made, tree, oracle = self.made, self.tree, self.free
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        regressors, coriolis = made["regressors"], cache(partial(made["coriolis"].coriolis_matrix, tree, q, v))
        theta = regressors.parameters(tree)["theta"]
        position = oracle.position(self.q)

        def rate() -> np.ndarray:
            C = pin.computeCoriolisMatrix(oracle.model, oracle.model.createData(), position, self.v)
            return np.array(C + C.T)

        def bias() -> np.ndarray:
            data = oracle.model.createData()
            return np.array(pin.nle(oracle.model, data, position, self.v)) - pin.computeGeneralizedGravity(
                oracle.model, oracle.model.createData(), position
            )

        return {
            "regressor of efforts": (
                lambda: ex.matrix(regressors.inverse_dynamics(tree, q, v, a, g)) @ theta,
                lambda: oracle.inverse_dynamics(self.q, self.v, self.a),
            ),
            "regressor of momentum": (
                lambda: ex.matrix(regressors.momentum(tree, q, v)) @ theta,
                lambda: oracle.mass_matrix(self.q) @ self.v,
            ),
            "coriolis, C v": (lambda: ex.matrix(coriolis()["forces"]), bias),
            "coriolis, C + C^T": (lambda: ex.matrix(coriolis()["matrix"] + coriolis()["matrix"].T), rate),
        }

    def _steps(self) -> dict[str, Case]:
        made, tree, oracle = self.made, self.tree, self.free
        g, h = ex.matrix(GRAVITY), STEP_S
        tau = self.moving.tau[self.movable].copy()
        accelerate = lambda q, v: oracle.forward_dynamics(q, v, tau)

        def euler() -> tuple[np.ndarray, np.ndarray]:
            v = self.v + h * accelerate(self.q, self.v)
            return self.q + h * v, v

        def runge_kutta() -> tuple[np.ndarray, np.ndarray]:
            rates = []
            for share, weight in ((0.0, 1.0), (0.5, 2.0), (0.5, 2.0), (1.0, 1.0)):
                q_rate, v_rate = rates[-1][:2] if rates else (0.0, 0.0)
                q, v = self.q + share * h * q_rate, self.v + share * h * v_rate
                rates.append((v, accelerate(q, v), weight / 6.0))
            q = self.q + h * sum(weight * rate for rate, _, weight in rates)
            return q, self.v + h * sum(weight * rate for _, rate, weight in rates)

        cases: dict[str, Case] = {}
        state = tuple(ex.matrix(x) for x in (self.q, self.v, tau, h))
        for name, expected in (("semi_implicit_euler", euler), ("rk4", runge_kutta)):
            stepped = cache(partial(getattr(made["integration"], name), tree, *state, g))
            for k, part in enumerate("qv"):
                cases[f"step, {name}, {part}"] = (
                    lambda stepped=stepped, part=part: stepped()[part],
                    lambda expected=expected, k=k: expected()[k],
                )
        return cases


def difference(case: Case) -> float:
    """The largest difference over the largest entry; infinite where ours is not a number or has another size."""
    ours, theirs = case
    expected = np.asarray(theirs(), dtype=float)
    found = ours()
    found = found if isinstance(found, np.ndarray) else ex.matrix(found).array()
    if found.size != expected.size or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found.reshape(expected.shape) - expected).max() / np.abs(expected).max())


def _angular_first(force: pin.Force) -> np.ndarray:
    return np.concatenate([force.angular, force.linear])


def _swapped(matrix: np.ndarray) -> np.ndarray:
    """A matrix of Pinocchio's on vectors whose angular part is first."""
    order = [3, 4, 5, 0, 1, 2]
    return np.asarray(matrix)[np.ix_(order, order)]
