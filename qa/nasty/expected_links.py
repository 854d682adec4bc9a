"""The true answers of the queries on links and bodies, from definitions.

Where the package sweeps, poses in the world are used: the influence of body j on body i is the transform between where
they stand. Bodies, for the queries of the Newton-Euler document, are what moves with one joint, in its link's axes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from flint import arb, arb_mat

from qa.nasty.reference import Array, blocks, cross_force, double, identity, rows, skew, stack, turn, vector
from qa.nasty.scales import Scales, sizes_of

_NONE = vector([0] * 3)


class ExpectedLinks(Scales):
    """True answers of queries whose rows are links, joints or bodies."""

    @property
    def _world(self) -> dict[str, Any]:
        return {"gravity": self.inputs["gravity"], "wrenches": self.acting}

    def between(self, j: int, i: int) -> arb_mat:
        """The motion transform from link j to link i, by their poses."""
        (R_Wj, p_j), (R_Wi, p_i) = self.state.poses[j], self.state.poses[i]
        R = R_Wi.transpose() * R_Wj
        return blocks(R, arb_mat(3, 3), R * skew(R_Wj.transpose() * (p_i - p_j)) * (-1), R)

    @cached_property
    def _classical(self) -> list[Any]:
        """[omega-dot; acceleration of the origin] per link under the state's accelerations."""
        return self._accelerated(list(self.inputs["a"]))

    @cached_property
    def _biased(self) -> list[Any]:
        """The same at zero joint accelerations."""
        return self._accelerated([0] * self.robot.nv)

    def _accelerated(self, a: list[Any]) -> list[Any]:
        spatial = self.state.acceleration(a, vector([0] * 6))
        pairs = zip(spatial, self.state.velocity, strict=True)
        return [A + stack(_NONE, skew(rows(V, 0, 3)) * rows(V, 3, 6)) for A, V in pairs]

    @cached_property
    def _fastest(self) -> tuple[float, float]:
        """The largest omega^2, rad^2/s^2, and omega times velocity of an origin or a centre, m/s^2."""
        V = np.abs([double(V).ravel() for V in self.state.velocity])
        omega = V[:, :3].max()
        centre = max(float(np.abs(double(com)).max()) for com in self.robot.com)
        return omega**2, omega * (V[:, 3:].max() + omega * centre)

    def link_poses(self) -> dict[str, Any]:
        R = np.array([double(R) for R, _ in self.state.poses])
        return {"rotation": ("rows", R, 1.0), "position": self._rows([p for _, p in self.state.poses])}

    def constraint_forces(self) -> dict[str, Any]:
        a = self.state.forward_dynamics(list(self.inputs["tau"]), **self._world).entries()
        F = self.state.forces(a, **self._world)
        jointed_links = [i for i, joint in enumerate(self.robot.joints) if joint]
        axes = [self.robot.subspace[i] for i in jointed_links]
        axial_forces = [
            arb(0) if S is None else (S.transpose() * F[i])[0, 0] for S, i in zip(axes, jointed_links, strict=True)
        ]
        constraint_wrenches = [
            F[i] if S is None else F[i] - S * f for S, f, i in zip(axes, axial_forces, jointed_links, strict=True)
        ]
        wrench = self._rows([F[i] for i in jointed_links])
        # Compared with the wrenches they are parts of.
        force, torque = wrench[2][3], wrench[2][0]
        turns = [S is not None and any(x != 0 for x in rows(S, 0, 3).entries()) for S in axes]
        return {
            "wrench": wrench,
            "actuation": ("rows", double(vector(axial_forces)).ravel(), np.where(turns, torque, force)),
            "constraint": ("rows", np.array([double(f).ravel() for f in constraint_wrenches]), wrench[2]),
        }

    def link_motion(self) -> dict[str, Any]:
        return {
            "velocity": self._rows(self.state.velocity),
            "acceleration": self._rows(self._classical, self._fastest),
            "load": self._rows(self.state.forces(list(self.inputs["a"]), **self._world)),
        }

    @property
    def _mounted(self) -> tuple[Any, Any]:
        """The position of a sensor in the frame of its row, and R^T of its axes."""
        roll, pitch, yaw = (arb(float(angle)) for angle in self.inputs["rpy"])
        x, y, z = (vector([float(k == i) for k in range(3)]) for i in range(3))
        R = turn(z, yaw) * turn(y, pitch) * turn(x, roll)
        return vector([float(p) for p in self.inputs["xyz"]]), R.transpose()

    def force_torque(self, direction: str) -> dict[str, Any]:
        jointed_links = [i for i, joint in enumerate(self.robot.joints) if joint]
        F = [self.state.forces(list(self.inputs["a"]), **self._world)[i] for i in jointed_links]
        p, R_ML = self._mounted
        sign = {"parent_on_child": 1, "child_on_parent": -1}[direction]
        force, torque = [rows(f, 3, 6) for f in F], [rows(f, 0, 3) for f in F]
        lever = [skew(p) * f for f in force]
        sizes = self.branch_sizes[jointed_links]
        return {
            "force": self._loads([R_ML * f * sign for f in force], sizes[:, 3:]),
            "torque": self._loads(
                [R_ML * (n - m) * sign for n, m in zip(torque, lever, strict=True)], sizes[:, :3], torque, lever
            ),
        }

    def imu(self) -> dict[str, Any]:
        p, R_ML = self._mounted
        g = vector([float(x) for x in self.inputs["gravity"]])
        specific_forces, angular_velocities = [], []
        for A, V, (R, _) in zip(self._classical, self.state.velocity, self.state.poses, strict=True):
            omega = rows(V, 0, 3)
            spinning = skew(rows(A, 0, 3)) * p + skew(omega) * (skew(omega) * p)
            specific_forces.append(R_ML * (rows(A, 3, 6) + spinning - R.transpose() * g))
            angular_velocities.append(R_ML * omega)
        return {
            "specific_force": self._rows(specific_forces, [self._fastest[1]]),
            "angular_velocity": self._rows(angular_velocities),
        }

    def body_recursion(self) -> dict[str, Any]:
        F = self.state.forces(list(self.inputs["a"]), **self._world)
        (omega_scale, v_scale), sizes = self._fastest, self.branch_sizes
        g, centre, force, moment = vector([float(x) for x in self.inputs["gravity"]]), [], [], []
        for i, (A, V, s) in enumerate(zip(self._classical, self.state.velocity, self.robot.com, strict=True)):
            omega, rate, I = rows(V, 0, 3), rows(A, 0, 3), self.robot.inertia[i]
            centre.append(rows(A, 3, 6) + skew(rate) * s + skew(omega) * (skew(omega) * s))
            force.append((centre[-1] - self.state.poses[i][0].transpose() * g) * I[3, 3])
            I_centre = arb_mat(3, 3, [I[k, n] for k in range(3) for n in range(3)]) + skew(s) * skew(s) * I[3, 3]
            moment.append(I_centre * rate + skew(omega) * (I_centre * omega))
        return {
            "omega": self._rows([rows(V, 0, 3) for V in self.state.velocity]),
            "omega_dot": self._rows([rows(A, 0, 3) for A in self._classical], [omega_scale]),
            "v_dot": self._rows([rows(A, 3, 6) for A in self._classical], [v_scale]),
            "force": self._loads([rows(f, 3, 6) for f in F], sizes[:, 3:]),
            "moment": self._loads([rows(f, 0, 3) for f in F], sizes[:, :3]),
            "tau": self._effort(self.state.along(F)),
            "centre_acceleration": self._rows(centre, [v_scale]),
            "centre_force": self._loads(force, sizes[:, 3:]),
            "centre_moment": self._loads(moment, sizes[:, :3]),
        }

    def bias_accelerations(self) -> dict[str, Any]:
        translation = []
        for A, V, s in zip(self._biased, self.state.velocity, self.robot.com, strict=True):
            turning, rate = skew(rows(V, 0, 3)), skew(rows(A, 0, 3))
            translation.append(rows(A, 3, 6) + rate * s + turning * turning * s)
        omega_scale, v_scale = self._fastest
        return {
            "translation": self._rows(translation, [v_scale]),
            "rotation": self._rows([rows(A, 0, 3) for A in self._biased], [omega_scale]),
        }

    def jacobians(self) -> dict[str, Any]:
        translation, rotation = (np.zeros((len(self.robot.links), 3, self.robot.nv)) for _ in range(2))
        for i, s in enumerate(self.robot.com):
            for j, column in self._columns_of(i):
                omega, v = rows(column, 0, 3), rows(column, 3, 6)
                rotation[i, :, self.robot.dof[j]] = double(omega).ravel()
                translation[i, :, self.robot.dof[j]] = double(v - skew(s) * omega).ravel()
        return {"translation": self._columns(translation), "rotation": self._columns(rotation)}

    def _columns_of(self, i: int) -> list[tuple[int, Any]]:
        """Each movable link j that is link i or carries it, and how its joint moves link i, (6, 1)."""
        columns = []
        j = i
        while j >= 0:
            S = self.robot.subspace[j]
            if S is not None:
                columns.append((j, self.between(j, i) * S))
            j = self.robot.parent[j]
        return columns

    def system_momentum(self) -> dict[str, Any]:
        mass = np.array([double(m) for m in self._masses])
        lengths = self.branch_sizes[:, :3] / self.branch_sizes[:, 3:]
        return {
            "momentum": self._loads(self.state.momentum, self.branch_sizes),
            "mass": ("rows", mass, np.where(mass > 0.0, mass, 1.0)),
            "centre": ("rows", np.array([double(c).ravel() for c in self._centres]), lengths),
        }

    @cached_property
    def _branches(self) -> list[list[int]]:
        """Per link, itself and all that hangs on it."""
        branches = [[i] for i in range(len(self.robot.links))]
        for i in range(len(branches) - 1, 0, -1):
            branches[self.robot.parent[i]] += branches[i]
        return branches

    @cached_property
    def _masses(self) -> list[arb]:
        return [sum((self.robot.mass[k] for k in branch), arb(0)) for branch in self._branches]

    @cached_property
    def _centres(self) -> list[Any]:
        """c per link: the centre of mass of its branch from its origin, in its axes; 0 without mass."""
        places = [p + R * com for (R, p), com in zip(self.state.poses, self.robot.com, strict=True)]
        centres = []
        for (R, p), mass, branch in zip(self.state.poses, self._masses, self._branches, strict=True):
            first_moment = sum((places[k] * self.robot.mass[k] for k in branch), _NONE)
            centres.append(R.transpose() * (first_moment * (1 / mass) - p) if mass != 0 else _NONE)
        return centres

    def system_momentum_rate(self) -> dict[str, Any]:
        robot, state, a = self.robot, self.state, list(self.inputs["a"])
        spatial = state.acceleration(a, vector([0] * 6))
        moving = zip(robot.inertia, spatial, state.velocity, strict=True)
        changing = state.inward([I * A + cross_force(V, I * V) for I, A, V in moving])  # about where origins are now
        rate, centre_rate, central, central_rate = [], [], [], []
        links = zip(changing, state.momentum, state.velocity, self._centres, self._masses, strict=True)
        for N, K, V, c, mass in links:
            speed, P = rows(V, 3, 6), rows(K, 3, 6)
            rate.append(N - stack(skew(speed) * P, _NONE))
            centre_rate.append(P * (1 / mass) - speed if mass != 0 else _NONE)
            central.append(rows(K, 0, 3) - skew(c) * P)
            central_rate.append(rows(N, 0, 3) - skew(c) * rows(N, 3, 6))
        g = vector([float(x) for x in self.inputs["gravity"]])
        pulls = [R.transpose() * g * m for (R, _), m in zip(state.poses, robot.mass, strict=True)]
        external_wrenches = [stack(skew(com) * f, f) for f, com in zip(pulls, robot.com, strict=True)]
        if self.acting is not None:
            external_wrenches = [weight + wrench for weight, wrench in zip(external_wrenches, self.acting, strict=True)]
        load, external = state.forces(a, **self._world), state.inward(external_wrenches)
        sizes, turning = self.branch_sizes, self.branch_sizes[:, :3]
        moments = [rows(f, 0, 3) for f in (*load, *external)]
        half = len(load)
        return {
            # Sums of what the parent and what the outside exert.
            "rate": self._loads(rate, sizes, load, external),
            "centre_rate": self._rows(centre_rate, [self._fastest_origin]),
            "central_momentum": self._loads(central, turning, [rows(K, 0, 3) for K in state.momentum]),
            "central_rate": self._loads(central_rate, turning, moments[:half], moments[half:]),
            "load": self._loads(load, sizes, external),
            "external": self._loads(external, sizes),
        }

    @property
    def _fastest_origin(self) -> float:
        return max(float(np.abs(double(rows(V, 3, 6))).max()) for V in self.state.velocity)

    # Branch inertias and operators.

    @cached_property
    def _yielding(self) -> dict[int, tuple[Any, Any, Any]]:
        """J, R, K per movable link: Featherstone's articulated-body inertias, table 7.1."""
        articulated = {}
        J = list(self.robot.inertia)
        for i in range(len(J) - 1, -1, -1):
            S, left = self.robot.subspace[i], J[i]
            if S is not None:
                U = J[i] * S
                R = (S.transpose() * U)[0, 0]
                articulated[i] = J[i], R, U * (1 / R)
                left = J[i] - U * U.transpose() * (1 / R)
            if i:
                X, parent = self.state.X[i], self.robot.parent[i]
                J[parent] = J[parent] + X.transpose() * left * X
        return articulated

    def _beta(self, i: int, D: Any) -> Any:
        return D - self.robot.subspace[i] * (self._yielding[i][2].transpose() * D)

    def branch_inertias(self) -> dict[str, Any]:
        moving, sizes = self.bodies, self.branch_sizes[self.bodies]
        J, R, K = zip(*(self._yielding[i] for i in moving), strict=True)
        gain = np.array([double(k).ravel() for k in K])
        ratio = sizes / self.d[:, None]
        return {
            "inertia": self._inertias(J, sizes),
            "resistance": ("matrix", np.diag(double(vector(R)).ravel()), 1.0),
            "gain": ("rows", gain, ratio * np.abs(gain / ratio).max(axis=1, keepdims=True)),
            "influence": self.influence_operators("beta")["phi"],
        }

    def _inertias(self, parts: Any, sizes: Array) -> tuple[str, Array, Any]:
        return "rows", np.array([double(part) for part in parts]), np.einsum("ni,nj->nij", sizes, sizes)

    @cached_property
    def bodies(self) -> list[int]:
        """The movable links, each with all links that its joint moves."""
        return [i for i, k in enumerate(self.robot.dof) if k >= 0]

    def _carrier(self, i: int) -> int:
        """The movable link that carries link i, itself not counted; -1: the world does."""
        i = self.robot.parent[i]
        while i >= 0 and self.robot.subspace[i] is None:
            i = self.robot.parent[i]
        return i

    @cached_property
    def _welded(self) -> dict[int, Any]:
        """The inertia of each body about its origin, (6, 6)."""
        inertias = {i: arb_mat(6, 6) for i in self.bodies}
        for k, I in enumerate(self.robot.inertia):
            i = k if k in inertias else self._carrier(k)
            if i >= 0:
                X = self.between(i, k)
                inertias[i] = inertias[i] + X.transpose() * I * X
        return inertias

    def influence_operators(self, method: str) -> dict[str, Any]:
        phi, psi = [], []
        products: dict[tuple[int, int], Any] = {}
        for i in self.bodies:
            parent, chain, j = self._carrier(i), [i], i
            while (j := self._carrier(j)) >= 0:
                chain.insert(0, j)
            step = arb_mat(6, 6)
            if parent >= 0:
                step = self.between(parent, i) if method == "D" else self._beta(i, self.between(parent, i))
            phi.append(step)
            for j in chain:
                if i == j or method == "D":
                    products[i, j] = self.between(j, i)
                else:
                    products[i, j] = step * products[parent, j]
                psi.append(products[i, j])
        return {"phi": self._operators(phi), "psi": self._operators(psi)}

    def mass_matrix_steps(self) -> dict[str, Any]:
        J, Q = (np.zeros((self.robot.nv, 6, self.robot.nv)) for _ in range(2))
        for row, i in enumerate(self.bodies):
            for j, column in self._columns_of(i):
                J[row, :, self.robot.dof[j]] = double(column).ravel()
                Q[row, :, self.robot.dof[j]] = double(self._welded[i] * column).ravel()
        sizes = sizes_of([self._welded[i] for i in self.bodies])
        return {
            "jacobian": self._columns(J),
            "momenta": ("rows", Q, sizes[:, :, None] * self.d),
            "mass_matrix": ("matrix", self.M, 1.0),
        }

    def _at_centre(self, i: int, s: Any, mass: Any) -> Any:
        """Weight, and the wrenches on all links that move with joint i, about their centre of mass."""
        total = stack(
            _NONE, self.state.poses[i][0].transpose() * vector([float(x) for x in self.inputs["gravity"]]) * mass
        )
        for k, W in enumerate(self.acting or []):
            if i == (k if k in self.bodies else self._carrier(k)):
                wrench = self.between(i, k).transpose() * W
                total = total + wrench - stack(skew(s) * rows(wrench, 3, 6), _NONE)
        return total

    def newton_euler_blocks(self) -> dict[str, Any]:
        quantities: dict[str, list[Any]] = {}
        for i in self.bodies:
            I, V, parent = self._welded[i], self.state.velocity[i], self._carrier(i)
            omega = rows(V, 0, 3)
            mass = I[3, 3]
            s = vector([I[2, 4], I[0, 5], I[1, 3]]) * (1 / mass)
            I_centre = arb_mat(3, 3, [I[k, n] for k in range(3) for n in range(3)]) + skew(s) * skew(s) * mass
            D = arb_mat(6, 6) if parent < 0 else self.between(parent, i)
            inherited = vector([0] * 6) if parent < 0 else D * self._biased[parent]
            turning = stack(_NONE, skew(omega) * rows(V, 3, 6))
            blocks_of = {
                "influence": D,
                "free_axis": self.robot.subspace[i],
                "centre_lever": blocks(identity(), arb_mat(3, 3), skew(s) * (-1), identity()),
                "velocity_products": self._biased[i] - inherited,
                "centre_velocity_products": stack(_NONE, skew(omega) * (skew(omega) * s)),
                "inertia": I,
                "centre_inertia": blocks(I_centre, arb_mat(3, 3), arb_mat(3, 3), identity() * mass),
                "velocity_loads": cross_force(V, I * V) - I * turning,
                "centre_velocity_loads": stack(skew(omega) * (I_centre * omega), _NONE),
                "external_loads": self._at_centre(i, s, mass),
            }
            for name, block in blocks_of.items():
                quantities.setdefault(name, []).append(block)
        sizes, central = sizes_of(quantities["inertia"]), sizes_of(quantities["centre_inertia"])
        return {
            "influence": self._operators(quantities["influence"]),
            "free_axis": ("rows", np.array([double(G).ravel() for G in quantities["free_axis"]]), 1.0),
            "centre_lever": self._operators(quantities["centre_lever"]),
            "velocity_products": self._rows(quantities["velocity_products"], self._fastest),
            "centre_velocity_products": self._rows(quantities["centre_velocity_products"]),
            "inertia": self._inertias(quantities["inertia"], sizes),
            "centre_inertia": self._inertias(quantities["centre_inertia"], central),
            "velocity_loads": self._loads(quantities["velocity_loads"], sizes),
            "centre_velocity_loads": self._loads(quantities["centre_velocity_loads"], central),
            "external_lever": self._operators(quantities["centre_lever"]),
            "external_loads": self._loads(quantities["external_loads"], central),
        }
