"""Every query of `dynamics/` in numbers, without compiling a kernel, against Pinocchio's answer.

One tree with skew axes, revolute, continuous, prismatic and fixed joints, branches and links without inertia, moving,
under weight that no axis lies along, pushed by a wrench on every link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
SENSOR_RPY = np.array([0.4, -1.1, 2.3])
SENSOR_POSE = (np.array([0.3, -0.2, 0.11]), np.array(pin.rpy.rpyToMatrix(*SENSOR_RPY)))
"""Poses of sensors in the frames of their joints or links: xyz, and R of `SENSOR_RPY`, roll, pitch and yaw."""

Case = tuple[Callable[[], Any], Callable[[], np.ndarray]]
"""Ours and Pinocchio's."""


# Hundreds of edits are compared with the same few models.
_oracle = cache(Oracle)


@dataclass(frozen=True)
class Links:
    """Motion and loads of the moving links, a row of each: vectors in its joint's axes, at its joint's origin.

    lever: from there to the centre of mass.
    """

    rotation: list[np.ndarray]
    omega: list[np.ndarray]
    linear: list[np.ndarray]
    alpha: list[np.ndarray]
    origin: list[np.ndarray]
    loads: list[np.ndarray]
    lever: list[np.ndarray]

    def accelerations(self, points: list[np.ndarray]) -> list[np.ndarray]:
        """Of a point on each link."""
        motions = zip(self.origin, self.alpha, self.omega, points, strict=True)
        return [a + np.cross(alpha, p) + np.cross(omega, np.cross(omega, p)) for a, alpha, omega, p in motions]


@cache
def _tree(welded: bool) -> Tree:
    full = tree_of(read_text(XML))
    return weld(full).tree if welded else full


class Numbers:
    """The two sides of each comparison, by name.

    modules: those of `dynamics/` by name. welded: the tree of the moving bodies, whose first body moves, instead of
    the full one, whose first body is the ground. Pinocchio welds too; for the full tree its fixed joints turn, held.
    """

    def __init__(self, modules: Mapping[str, Any], *, welded: bool = False) -> None:
        self.modules, self.welded = modules, welded
        self.tree = _tree(welded)
        rng = np.random.default_rng(0)
        self.q, self.v, self.a = rng.uniform(-1.5, 1.5, (3, self.tree.nv))
        self.wrenches = rng.uniform(-5.0, 5.0, (len(self.tree), 6))
        self.free = _oracle(XML)
        # Pinocchio merges bodies behind fixed joints; with joints that turn and are held it has a row for each.
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
            # Pinocchio has the force first, this package the torque.
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
            self._accelerations,
            self._terms,
            self._loads,
            self._momenta,
            self._links,
            self._recursion,
            self._jacobians,
            self._points,
            self._steps,
            self._derivatives,
            self._hessians,
            self._linear,
        )
        return {name: case for part in (*parts, self._blocks, self._branch_inertias) for name, case in part().items()}

    def _efforts(self) -> dict[str, Case]:
        modules, tree, oracle = self.modules, self.tree, self.free
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        W = modules["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        tau_free = oracle.inverse_dynamics(self.q, self.v, self.a)
        tau_pushed = self.pushed.tau[self.movable].copy()
        kp, kd = 3.0, 0.5
        commanded_a = self.a + kd * (0.1 - self.v) + kp * (0.2 - self.q)
        tracking = (
            ex.matrix([0.2] * tree.nv),
            ex.matrix([0.1] * tree.nv),
            a,
            ex.matrix([kp] * tree.nv),
            ex.matrix([kd] * tree.nv),
        )
        return {
            "inverse_dynamics": (lambda: modules["newton_euler"].inverse_dynamics(tree, q, v, a, g), lambda: tau_free),
            "inverse_dynamics, pushed": (
                lambda: modules["newton_euler"].inverse_dynamics(tree, q, v, a, g, W),
                lambda: tau_pushed,
            ),
            "bias_forces": (
                lambda: modules["newton_euler"].bias_forces(tree, q, v, g),
                lambda: oracle.bias_forces(self.q, self.v),
            ),
            "gravity_forces": (
                lambda: modules["newton_euler"].gravity_forces(tree, q, g),
                lambda: oracle.gravity_forces(self.q),
            ),
            "computed_torque": (
                lambda: modules["newton_euler"].computed_torque(tree, q, v, *tracking, g),
                lambda: oracle.inverse_dynamics(self.q, self.v, commanded_a),
            ),
            "computed_torque, pushed": (
                lambda: modules["newton_euler"].computed_torque(tree, q, v, *tracking, g, W),
                lambda: oracle.inverse_dynamics(self.q, self.v, commanded_a) + tau_pushed - tau_free,
            ),
            "mass_matrix": (
                lambda: ex.matrix(modules["mass_matrix"].mass_matrix(tree, q)),
                lambda: oracle.mass_matrix(self.q),
            ),
            "projected": (lambda: modules["projected"].inverse_dynamics(tree, q, v, a, g), lambda: tau_free),
            "projected, pushed": (
                lambda: modules["projected"].inverse_dynamics(tree, q, v, a, g, W),
                lambda: tau_pushed,
            ),
            "body_recursion": (lambda: modules["body_frame"].recursion(tree, q, v, a, g)["tau"], lambda: tau_free),
            "body_recursion, pushed": (
                lambda: modules["body_frame"].recursion(tree, q, v, a, g, W)["tau"],
                lambda: tau_pushed,
            ),
        }

    def _terms(self) -> dict[str, Case]:
        tree, oracle = self.tree, self.free
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        W = self.modules["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        tau_free = oracle.inverse_dynamics(self.q, self.v, self.a)
        tau_pushed = self.pushed.tau[self.movable].copy()
        rest = oracle.gravity_forces(self.q)
        terms = cache(lambda: self.modules["projected"].terms(tree, q, v, ex.matrix(tau_free), g, W))
        return {
            "terms, mass matrix": (lambda: terms()["mass_matrix"], lambda: oracle.mass_matrix(self.q)),
            "terms, gravity": (lambda: terms()["gravity_forces"], lambda: -rest),
            "terms, velocity": (lambda: terms()["velocity_forces"], lambda: rest - oracle.bias_forces(self.q, self.v)),
            "terms, external": (lambda: terms()["external_forces"], lambda: tau_free - tau_pushed),
            "terms, efforts": (lambda: terms()["efforts"], lambda: tau_free),
        }

    def _accelerations(self) -> dict[str, Case]:
        modules, tree = self.modules, self.tree
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        W = modules["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        tau_free = self.free.inverse_dynamics(self.q, self.v, self.a)
        tau_pushed = self.pushed.tau[self.movable].copy()
        cases: dict[str, Case] = {}
        for method in ("articulated", "mass_matrix"):
            solve = modules[method].forward_dynamics
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
        modules, tree = self.modules, self.tree
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        W = modules["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
        cases: dict[str, Case] = {}
        for label, data, wrenches in (("", self.moving, None), (", pushed", self.pushed, W)):
            tau = data.tau[self.movable].copy()
            loads = np.array([_angular_first(data.f[row]) for row in self.rows])
            axial_loads = np.array([tau[dofs(tree)[i]] if tree.inboard[i].nv else 0.0 for i in self.bodies])
            axes = motion_subspaces(tree)[self.bodies]
            load_outputs = cache(
                partial(modules["constraint"].constraint_forces, tree, q, v, ex.matrix(tau), g, wrenches)
            )
            expected = {"wrench": loads, "actuation": axial_loads, "constraint": loads - axes * axial_loads[:, None]}
            p, R = SENSOR_POSE
            mounted = (tree, q, v, ex.matrix(self.a), ex.matrix(p), ex.matrix(SENSOR_RPY), g, wrenches)
            read = {"force": loads[:, 3:] @ R, "torque": (loads[:, :3] - np.cross(p, loads[:, 3:])) @ R}
            for name, value in read.items():
                for query, sign in (("force_torque", 1.0), ("reaction", -1.0)):
                    sensor = getattr(modules["sensors"], query)
                    cases[f"{query}, {name}{label}"] = (
                        lambda sensor=sensor, mounted=mounted, name=name: sensor(*mounted)[name],
                        lambda value=value, sign=sign: sign * value,
                    )
            for name, value in expected.items():
                cases[f"constraint_forces, {name}{label}"] = (
                    lambda load_outputs=load_outputs, name=name: load_outputs()[name],
                    lambda value=value: value,
                )
        return cases

    def _momenta(self) -> dict[str, Case]:
        modules, tree, oracle = self.modules, self.tree, self.free
        H = modules["hamilton"]
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        W = modules["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
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

    @cached_property
    def links(self) -> Links:
        """The links' motion without wrenches."""
        data, model, rows = self.moving, self.held.model, self.rows
        # Pinocchio's acceleration after `forwardKinematics` has no weight in it; classical, in joint axes.
        return Links(
            rotation=[data.oMi[row].rotation for row in rows],
            omega=[data.v[row].angular for row in rows],
            linear=[data.v[row].linear for row in rows],
            alpha=[data.a[row].angular for row in rows],
            origin=[pin.getClassicalAcceleration(model, data, row, pin.LOCAL).linear for row in rows],
            loads=[_angular_first(data.f[row]) for row in rows],
            lever=[model.inertias[row].lever for row in rows],
        )

    @property
    def ground(self) -> int:
        """How many links are the ground, which stands still and of whose load Pinocchio has none."""
        return 0 if self.welded else 1

    def with_root(self, *columns: Any) -> np.ndarray:
        """Vectors of all links from those of the moving ones, zero at the ground."""
        moving = np.hstack([np.array(rows) for rows in columns])
        return np.concatenate([np.zeros((self.ground, 3 * len(columns))), moving]).ravel()

    def without_ground(self, x: Any, width: int) -> np.ndarray:
        """The entries of all links but the ground, each of `width` numbers."""
        return ex.matrix(x).array().ravel()[self.ground * width :]

    def _links(self) -> dict[str, Case]:
        modules, tree, links = self.modules, self.tree, self.links
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        motion = cache(lambda: modules["newton_euler"].link_motion(tree, q, v, a, g))
        poses = cache(lambda: modules["kinematics"].link_poses(tree, q))
        p, R = SENSOR_POSE
        imu = cache(lambda: modules["sensors"].imu(tree, q, v, a, ex.matrix(p), ex.matrix(SENSOR_RPY), g))
        weights = [R_WL.T @ GRAVITY for R_WL in links.rotation]
        accelerations = links.accelerations([p] * len(self.rows))
        specific_forces = np.array(accelerations) - np.array(weights)
        return {
            "imu, specific force": (
                lambda: imu()["specific_force"],
                lambda: np.concatenate([np.tile(-GRAVITY, (self.ground, 1)), specific_forces]) @ R,
            ),
            "imu, angular velocity": (
                lambda: imu()["angular_velocity"],
                lambda: self.with_root(np.array(links.omega) @ R),
            ),
            "link_poses, rotation": (
                lambda: self.without_ground(poses()["rotation"], 9),
                lambda: _stacked(links.rotation),
            ),
            "link_poses, position": (
                lambda: self.without_ground(poses()["position"], 3),
                lambda: _stacked([self.moving.oMi[row].translation for row in self.rows]),
            ),
            "link_motion, velocity": (lambda: motion()["velocity"], lambda: self.with_root(links.omega, links.linear)),
            "link_motion, acceleration": (
                lambda: motion()["acceleration"],
                lambda: self.with_root(links.alpha, links.origin),
            ),
            "link_motion, load": (lambda: self.without_ground(motion()["load"], 6), lambda: _stacked(links.loads)),
        }

    def _recursion(self) -> dict[str, Case]:
        links, bodies = self.links, [self.held.model.inertias[row] for row in self.rows]
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        recursion = cache(lambda: self.modules["body_frame"].recursion(self.tree, q, v, a, g))
        centre = links.accelerations(links.lever)

        def centre_forces() -> np.ndarray:
            motions = zip(bodies, centre, links.rotation, strict=True)
            return _stacked([body.mass * (x - R.T @ GRAVITY) for body, x, R in motions])

        def centre_moments() -> np.ndarray:
            motions = zip([body.inertia for body in bodies], links.alpha, links.omega, strict=True)
            return _stacked([M @ alpha + np.cross(omega, M @ omega) for M, alpha, omega in motions])

        expected: dict[str, Callable[[], np.ndarray]] = {
            "force": lambda: _stacked([load[3:] for load in links.loads]),
            "moment": lambda: _stacked([load[:3] for load in links.loads]),
            "centre_force": centre_forces,
            "centre_moment": centre_moments,
        }
        motions = {"omega": links.omega, "omega_dot": links.alpha, "v_dot": links.origin, "centre_acceleration": centre}
        return {
            **{
                f"recursion, {name}": (lambda name=name: recursion()[name], lambda rows=rows: self.with_root(rows))
                for name, rows in motions.items()
            },
            **{
                f"recursion, {name}": (lambda name=name: self.without_ground(recursion()[name], 3), answer)
                for name, answer in expected.items()
            },
        }

    def _jacobians(self) -> dict[str, Case]:
        modules, tree, model, links = self.modules, self.tree, self.held.model, self.links
        q, v = ex.matrix(self.q), ex.matrix(self.v)
        jacobians = cache(lambda: modules["projected"].jacobians(tree, q))
        biases = cache(lambda: modules["projected"].bias_accelerations(tree, q, v))
        branch = cache(lambda: modules["hamilton"].system_momentum(tree, q, v))
        J = [pin.getJointJacobian(model, self.moving, row, pin.LOCAL)[:, self.movable] for row in self.rows]
        at_centre = [j[:3] - pin.skew(s) @ j[3:] for j, s in zip(J, links.lever, strict=True)]
        biased = model.createData()
        full = self.held.position(self.spread(self.q)), self.spread(self.v), self.spread(np.zeros(tree.nv))
        pin.forwardKinematics(model, biased, *full)
        bias_motion = replace(
            links,
            alpha=[biased.a[row].angular for row in self.rows],
            origin=[pin.getClassicalAcceleration(model, biased, row, pin.LOCAL).linear for row in self.rows],
        )
        momenta, masses, centres = self._branches()
        return {
            "jacobians, translation": (
                lambda: self.without_ground(jacobians()["translation"], 3 * tree.nv),
                lambda: _stacked(at_centre),
            ),
            "jacobians, rotation": (
                lambda: self.without_ground(jacobians()["rotation"], 3 * tree.nv),
                lambda: _stacked([j[3:] for j in J]),
            ),
            "bias_accelerations, translation": (
                lambda: biases()["translation"],
                lambda: self.with_root(bias_motion.accelerations(links.lever)),
            ),
            "bias_accelerations, rotation": (lambda: biases()["rotation"], lambda: self.with_root(bias_motion.alpha)),
            "system_momentum, momentum": (
                lambda: self.without_ground(branch()["momentum"], 6),
                lambda: _stacked(momenta),
            ),
            "system_momentum, mass": (lambda: self.without_ground(branch()["mass"], 1), lambda: _stacked(masses)),
            "system_momentum, centre": (lambda: self.without_ground(branch()["centre"], 3), lambda: _stacked(centres)),
        }

    def _blocks(self) -> dict[str, Case]:
        """Y, F-bar, D, and the blocks together: (5) makes Pinocchio's accelerations, (2), (11) and (15) its loads."""
        tree, model, rows = self.tree, self.held.model, self.rows
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        W = self.modules["sweeps"].PerBody(ex.matrix(w) for w in self.wrenches)
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
            block_outputs = cache(partial(self.modules["operators"].newton_euler_blocks, tree, q, v, g, wrenches))
            blocks = cache(
                lambda block_outputs=block_outputs: {name: ex.matrix(x).array() for name, x in block_outputs().items()}
            )
            expected = {"external_lever": levers, "external_loads": external, "influence": D}
            for name, value in expected.items():
                cases[f"newton_euler_blocks, {name}{label}"] = (
                    lambda blocks=blocks, name=name: blocks()[name].reshape(len(tree), 6, -1)[self.bodies],
                    lambda value=value: np.array(value).reshape(len(rows), 6, -1),
                )
            for name in ("centre", "joint"):
                cases[f"newton_euler_blocks, loads by the {name}{label}"] = (
                    lambda blocks=blocks, name=name: self._loads_of(blocks(), method=name)[self.bodies],
                    lambda loads=loads: loads,
                )
        return cases

    def _loads_of(self, blocks: Mapping[str, np.ndarray], method: str) -> np.ndarray:
        """F of (15), or of (13) with the blocks at the centres of mass."""
        tree = self.tree
        b = {name: x.reshape(len(tree), 6, -1) for name, x in blocks.items() if name != "free_axis"}
        acceleration, F = np.zeros((2, len(tree), 6, 1))
        for i, parent in enumerate(tree.parent):
            inherited = b["influence"][i] @ acceleration[parent] if parent >= 0 else 0.0
            part = tree.in_v[i]
            acceleration[i] = inherited + blocks["free_axis"][part].T @ self.a[part, None] + b["velocity_products"][i]
        for i in reversed(range(len(tree))):
            if method == "centre":
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
        # Its answer is of no interest: it leaves the articulated inertias in `data`.
        pin.aba(model, data, q, np.zeros(model.nv), np.zeros(model.nv))
        rows = [names.index(name) + 1 for name in tree.joints]
        X = [_swapped(data.liMi[row].inverse().action) for row in rows]
        J = [_swapped(model.inertias[row].matrix()) for row in rows]
        # From the leaves, as Pinocchio's sweep goes.
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
        branch_outputs = cache(lambda: self.modules["articulated"].branch_inertias(tree, ex.matrix(self.q)))
        expected = {"inertia": J, "resistance": np.diag(np.ravel(R)), "gain": K, "influence": beta}
        return {
            f"branch_inertias, {name}": (
                lambda name=name: branch_outputs()[name],
                lambda value=value: np.array(value).ravel(),
            )
            for name, value in expected.items()
        }

    def _points(self) -> dict[str, Case]:
        """Of a point of the link that most joints carry, seen in three ways."""
        task_space, tree, model = self.modules["task_space"], self.tree, self.held.model.copy()
        joints = [sum(tree.inboard[j].nv for j in tree.ancestors(i)) for i in self.bodies]
        point, row = SENSOR_POSE[0], self.rows[int(np.argmax(joints))]
        body = self.bodies[int(np.argmax(joints))]
        frame_id = model.addFrame(pin.Frame("point", row, pin.SE3(np.eye(3), point), pin.FrameType.OP_FRAME))
        data, zero_a = model.createData(), np.zeros(model.nv)
        q, v = self.held.position(self.spread(self.q)), self.spread(self.v)
        pin.forwardKinematics(model, data, q, v, zero_a)
        pin.computeJointJacobians(model, data, q)
        pin.updateFramePlacements(model, data)
        link = ex.matrix([float(i == body) for i in range(len(tree))])
        inputs = (ex.matrix(self.q), ex.matrix(self.v), link, ex.matrix(point))
        M = self.free.mass_matrix(self.q)
        rows_chosen = [3, 4, 2]
        directions = ex.matrix([float(k in rows_chosen) for k in range(6)])
        cases: dict[str, Case] = {}
        for name, frame in (("", pin.LOCAL_WORLD_ALIGNED), ("_local", pin.LOCAL), ("_world", pin.WORLD)):
            rate = pin.getFrameAcceleration if name else pin.getFrameClassicalAcceleration
            J = pin.getFrameJacobian(model, data, frame_id, frame)[[3, 4, 5, 0, 1, 2]][:, self.movable]
            Omega = J @ np.linalg.solve(M, J.T)
            inertia = np.zeros((6, 6))
            inertia[np.ix_(rows_chosen, rows_chosen)] = np.linalg.inv(Omega[np.ix_(rows_chosen, rows_chosen)])
            expected = {
                "rotation": data.oMf[frame_id].rotation,
                "position": data.oMf[frame_id].translation,
                "velocity": _angular_first(pin.getFrameVelocity(model, data, frame_id, frame)),
                "jacobian": J,
                "bias": _angular_first(rate(model, data, frame_id, frame)),
                "mobility": Omega,
                "inertia": inertia,
            }
            motion = cache(partial(getattr(task_space, f"point_motion{name}"), tree, *inputs))
            space = cache(
                partial(getattr(task_space, f"operational_space{name}"), tree, inputs[0], *inputs[2:], directions)
            )
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
                pose = data.oMi[row].actInv(data.oMi[k])
                total = total + pose.act(model.inertias[k] * data.v[k])
                mass += model.inertias[k].mass
                moment += model.inertias[k].mass * pose.act(model.inertias[k].lever)
            momenta.append(_angular_first(total))
            masses.append(mass)
            centres.append(moment / mass if mass else moment)
        return momenta, masses, centres

    def _derivatives(self) -> dict[str, Case]:
        modules, tree, oracle = self.modules, self.tree, self.free
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        tau = oracle.inverse_dynamics(self.q, self.v, self.a)

        def pinocchio_derivatives(algorithm: Callable[..., Any], x: np.ndarray) -> tuple[np.ndarray, ...]:
            data = oracle.model.createData()  # what is returned lives in it
            *by_q_and_v, last = (x.copy() for x in algorithm(oracle.model, data, oracle.position(self.q), self.v, x))
            return *by_q_and_v, np.triu(last) + np.triu(last, 1).T

        cases: dict[str, Case] = {}
        sides = (
            ("inverse", a, partial(pinocchio_derivatives, pin.computeRNEADerivatives, self.a)),
            ("forward", ex.matrix(tau), partial(pinocchio_derivatives, pin.computeABADerivatives, tau)),
        )
        for name, x, expected in sides:
            derivative_outputs = cache(
                partial(getattr(modules["derivatives"], f"of_{name}_dynamics"), tree, q, v, x, g, None)
            )
            for k, part in enumerate("qvx"):
                cases[f"derivatives of {name} dynamics, {part}"] = (
                    lambda derivative_outputs=derivative_outputs, part=part: ex.matrix(
                        getattr(derivative_outputs(), part)
                    ),
                    lambda expected=expected, k=k: expected()[k],
                )
        return cases

    def _hessians(self) -> dict[str, Case]:
        """Differences of Pinocchio's first derivatives, exact to 1e-13: their error is of the tenth order."""
        modules, tree, oracle = self.modules, self.tree, self.free
        q, v, g = (ex.matrix(x) for x in (self.q, self.v, GRAVITY))
        weights, n = np.random.default_rng(5).uniform(-1.0, 1.0, tree.nv), tree.nv
        tau = oracle.inverse_dynamics(self.q, self.v, self.a)

        def gradient(algorithm: Callable[..., Any], q: np.ndarray, v: np.ndarray, x: np.ndarray) -> np.ndarray:
            data = oracle.model.createData()  # what is returned lives in it
            *by_q_and_v, last = (m.copy() for m in algorithm(oracle.model, data, oracle.position(q), v, x))
            return np.concatenate([weights @ m for m in (*by_q_and_v, np.triu(last) + np.triu(last, 1).T)])

        @cache
        def expected(algorithm: Callable[..., Any], x: bytes) -> tuple[np.ndarray, np.ndarray]:
            f, h = partial(gradient, algorithm, x=np.frombuffer(x)), 0.02
            # Central differences of tenth order, so that a step of 0.02 loses no more than rounding.
            factors = (5 / 6, -5 / 21, 5 / 84, -5 / 504, 1 / 1260)

            def slope(moved_gradient: Callable[[float], np.ndarray]) -> np.ndarray:
                pairs = enumerate(factors, start=1)
                return np.asarray(sum(c / h * (moved_gradient(k * h) - moved_gradient(-k * h)) for k, c in pairs))

            rows = [slope(lambda s, e=e: f(self.q + s * e, self.v)) for e in np.eye(n)]
            return f(self.q, self.v), np.array(
                [*rows, *(slope(lambda s, e=e: f(self.q, self.v + s * e)) for e in np.eye(n))]
            )

        cases: dict[str, Case] = {}
        for name, x, algorithm in (
            ("inverse", self.a, pin.computeRNEADerivatives),
            ("forward", tau, pin.computeABADerivatives),
        ):
            ask = getattr(modules["hessians"], f"of_{name}_dynamics")
            ours = cache(partial(ask, tree, q, v, ex.matrix(x), ex.matrix(weights), g, None))
            true = partial(expected, algorithm, x.tobytes())
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
        modules, tree, oracle = self.modules, self.tree, self.free
        q, v, a, g = (ex.matrix(x) for x in (self.q, self.v, self.a, GRAVITY))
        regressors, coriolis = modules["regressors"], cache(partial(modules["coriolis"].coriolis_matrix, tree, q, v))
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
        modules, tree, oracle = self.modules, self.tree, self.free
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
            stepped = cache(partial(getattr(modules["integration"], name), tree, *state, g))
            for k, part in enumerate("qv"):
                cases[f"step, {name}, {part}"] = (
                    lambda stepped=stepped, part=part: stepped()[part],
                    lambda expected=expected, k=k: expected()[k],
                )
        return cases


def difference(case: Case) -> float:
    """The largest difference over the largest entry; infinite where ours is not a number or has another size."""
    ours, reference = case
    expected = np.asarray(reference(), dtype=float)
    actual = ours()
    actual = actual if isinstance(actual, np.ndarray) else ex.matrix(actual).array()
    if actual.size != expected.size or not np.isfinite(actual).all():
        return float("inf")
    return float(np.abs(actual.reshape(expected.shape) - expected).max() / np.abs(expected).max())


def _stacked(rows: Any) -> np.ndarray:
    return np.array(rows).ravel()


def _angular_first(force: pin.Force) -> np.ndarray:
    return np.concatenate([force.angular, force.linear])


def _swapped(matrix: np.ndarray) -> np.ndarray:
    """A matrix of Pinocchio's on vectors whose angular part is first."""
    order = [3, 4, 5, 0, 1, 2]
    return np.asarray(matrix)[np.ix_(order, order)]
