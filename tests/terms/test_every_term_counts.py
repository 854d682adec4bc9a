"""Drop or change a term of an equation, and the comparison with Pinocchio must turn red.

Each case edits one expression in memory and evaluates the queries in numbers (`in_numbers.py`, `many_in_numbers.py`,
`passive_in_numbers.py`) until one is wrong. These are the terms of the documents, named; `qa/mutations` puts every
small fault there is into every module.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

from tests.terms import many_in_numbers, passive_in_numbers, steps_in_numbers
from tests.terms.edits import Edit, EditError, edited
from tests.terms.in_numbers import Case, Numbers, difference

Cases = Callable[[Mapping[str, ModuleType]], dict[str, Case]]


def one_way(made: Mapping[str, ModuleType]) -> dict[str, Case]:
    """Joints with one way to move each."""
    return Numbers(made).cases()


SEVERAL_WAYS = many_in_numbers.cases
PASSIVE = passive_in_numbers.cases
LED = passive_in_numbers.led_cases
LOCKED = passive_in_numbers.locked_cases
STEPS = steps_in_numbers.cases

Terms = dict[str, dict[str, tuple[str, str, str]]]
"""By module, by name: function, expression, what becomes of it."""

ALONG = "of_joints(tree, lambda joint: joint.without_mimic.subspace).T @ F"

TERMS: Terms = {
    "dynamics.spatial": {
        "NE (4): lever arm of D": ("RigidTransform.__matmul__", "linear(V) + cross(turn, self.offset)", "linear(V)"),
        "NE (11): lever arm of D^T": (
            "RigidTransform.transposed_matmul",
            "self.rotation.T @ angular(F) + cross(self.offset, force)",
            "self.rotation.T @ angular(F)",
        ),
        "NE (16): I about the joint, not the centre": (
            "Inertia.of",
            "constant(body.about_origin)",
            "constant(body.about_com)",
        ),
        "NE (16): m s~ in torque": (
            "Inertia.__matmul__",
            "self.I @ angular(V) + self.H @ linear(V)",
            "self.I @ angular(V)",
        ),
        "NE (16): -m s~ in force": (
            "Inertia.__matmul__",
            "self.H.T @ angular(V) + self.m @ linear(V)",
            "self.m @ linear(V)",
        ),
        "NE (19b): D^T J D, coupling": ("Inertia.moved", "self.H + s @ self.m", "self.H"),
        "NE (19b): D^T J D, inertia": ("Inertia.moved", "self.I - self.H @ s + s @ H.T", "self.I - self.H @ s"),
        "NE (19b): J - K R K^T, coupling": ("Inertia.minus_outer", "self.H - W[:3, :] @ n.T", "self.H"),
        "NE (19b): J - K R K^T, mass": ("Inertia.minus_outer", "self.m - _symmetric(W[3:, :], n)", "self.m"),
    },
    "dynamics.sweeps": {
        "NE (7): Psi_D hands motion outward": (
            "outward",
            "x[i] if inherited is None else A[i] @ inherited + x[i]",
            "x[i]",
        ),
        "NE (13): Psi_D^T hands load inward": ("inward_recursion", "z[parent] + carry(i, z[i])", "z[parent]"),
    },
    "dynamics.kinematics": {
        "prismatic: d moves with q": (
            "placements",
            "p_PJ + summed(shifted, before=R_PJ) if shifted else p_PJ",
            "p_PJ",
        ),
        "prismatic: G = [0; axis]": (
            "motion_subspaces",
            "joint.subspace",
            "joint.subspace[[3, 4, 5, 0, 1, 2]] if joint.type == 'prismatic' else joint.subspace",
        ),
    },
    "dynamics.newton_euler": {
        "NE (5a): omega x g theta-dot": (
            "velocity_products",
            "cross(turned, angular(rates[i]))",
            "0 * angular(rates[i])",
        ),
        "NE (5a): omega x (omega x d)": (
            "velocity_products",
            "carried + 2 * cross(turned, linear(rates[i]))",
            "2 * cross(turned, linear(rates[i]))",
        ),
        "prismatic: 2 omega x g d-dot": (
            "velocity_products",
            "carried + 2 * cross(turned, linear(rates[i]))",
            "carried + cross(turned, linear(rates[i]))",
        ),
        "NE (17): omega x I omega": ("velocity_loads", "cross(omega, M_i.I @ omega)", "0 * omega"),
        "NE (17): m omega x (omega x s)": ("velocity_loads", "cross(omega, M_i.H.T @ omega)", "0 * omega"),
        "gravity lifts the ground": ("world_acceleration", "-gravity", "gravity"),
        "NE (14): load from acceleration": (
            "loads_through",
            "M @ acceleration + velocity_loads(M, V)",
            "velocity_loads(M, V)",
        ),
    },
    "dynamics.sensors": {
        "force/torque: about the sensor": (
            "force_torque",
            "angular(load) - cross(xyz, linear(load))",
            "angular(load)",
        ),
        "force/torque: force in its axes": ("force_torque", "R.T @ linear(load)", "linear(load)"),
        "force/torque: torque in its axes": (
            "force_torque",
            "R.T @ (angular(load) - cross(xyz, linear(load)))",
            "angular(load) - cross(xyz, linear(load))",
        ),
        "force/torque: wrenches": ("force_torque", "wrenches", "None"),
        "force/torque: of the child on the parent": ("reaction", "-load", "load"),
        "IMU: omega-dot x p": ("imu", "linear(V_dot_i) + cross(angular(V_dot_i), xyz)", "linear(V_dot_i)"),
        "IMU: omega x (omega x p)": ("imu", "cross(omega, cross(omega, xyz))", "0 * omega"),
        "IMU: less gravity": ("imu", "world_acceleration(gravity)", "None"),
        "IMU: angular velocity in its axes": ("imu", "R.T @ angular(V_i)", "angular(V_i)"),
        "rpy: about fixed axes": ("rotation_of_rpy", "sy * sp * sr + cy * cr", "sy * sp * sr - cy * cr"),
        "rpy: yaw": ("rotation_of_rpy", "cy * sp * cr + sy * sr", "cy * sp * cr - sy * sr"),
    },
    "dynamics.mass_matrix": {
        "NE (18c): composite inertia": (
            "_blocks",
            "D[i].congruence(C_i)",
            "D[i].congruence(C_i).turned(ex.eye(3)).moved(D[i].offset)",
        ),
        "NE (18c): load carried to ancestors": ("_blocks", "D[j].T @ F", "F"),
        "NE (19a): C": ("forward_dynamics", "zero_locked(tree, tau) - C", "zero_locked(tree, tau)"),
        "L^T D L: fill-in of the tree": ("factored", "L.get((i, j), 0) - share * L[k, j]", "L.get((i, j), 0)"),
        "L^T D L: back substitution": ("solve", "y[k] - L[k, i] * y[i]", "y[k]"),
    },
    "dynamics.articulated": {
        "NE (19b): R_i": ("branches", "G[i].T @ U + rotor[i]", "0.99 * (G[i].T @ U + rotor[i])"),
        "NE (19b): beta yields": ("ArticulatedTransform.__matmul__", "moved - self.G @ (self.K.T @ moved)", "moved"),
        "NE (19b): beta^T yields": (
            "ArticulatedTransform.transposed_matmul",
            "self.D.T @ (F - self.K @ (self.G.T @ F))",
            "self.D.T @ F",
        ),
        "NE (19b): beta, shown": ("branch_inertias", "branch.beta[i] @ ex.eye(6)", "D[i] @ ex.eye(6)"),
        "NE (19b): D_1 = 0, shown": (
            "branch_inertias",
            "ex.zeros(6, 6) if p < 0 else branch.beta[i] @ ex.eye(6)",
            "branch.beta[i] @ ex.eye(6)",
        ),
        "NE (19b): J, shown, coupling": ("branch_inertias", "ex.horzcat(b.H.T, b.m)", "ex.horzcat(b.H, b.m)"),
        "NE (19b): R, shown": ("branch_inertias", "G[i].T @ (branch.J[i] @ G[i])", "G[i].T @ (M[i] @ G[i])"),
        "NE (19b): K, shown": ("branch_inertias", "row_by_row(K_i.T)", "row_by_row(2 * K_i.T)"),
        "NE (19b): Phi_D^T K tau": (
            "articulated_solve",
            "branch.K @ effort",
            "PerBody(0 * x for x in branch.K @ effort)",
        ),
        "NE (19b): e - K^T Phi_D": ("articulated_solve", "yielded - branch.K.T @ (D @ inherited)", "yielded"),
        "(18b) in the same sweep: J A": ("forward_dynamics", "J @ A_i", "0 * A_i"),
        "(18b) in the same sweep: B": (
            "forward_dynamics",
            "PerBody(J @ A_i for J, A_i in zip(branch.J, A, strict=True)) + velocity_loads(M, V)",
            "PerBody(J @ A_i for J, A_i in zip(branch.J, A, strict=True))",
        ),
    },
    "dynamics.task_space": {
        "J: levers to the point": (
            "columns_seen",
            "shifts - skew(view.of_world @ lever) @ turns",
            "shifts",
        ),
        "J: of the bodies that carry the link": (
            "_LinkPoint.carrying",
            "inward_recursion(tree, self.link, lambda _, on: on)",
            "self.link",
        ),
        "levers: of all bodies on the way": (
            "_LinkPoint.levers",
            "inward_recursion(tree, from_children(tree, on, self.steps, start=ways_on), lambda _, way: way)",
            "from_children(tree, on, self.steps, start=ways_on)",
        ),
        "levers: to the point on the link": ("_LinkPoint.levers", "w * (R @ self.point)", "ex.zeros(3, 1)"),
        "world: at its origin": ("_world", "-(R.T @ at.origin(tree))", "at.point"),
        "bias: velocity products": (
            "_motion",
            "at.chosen(outward(tree, D, velocity_products(tree, D, G, V, v)))",
            "0 * at.chosen(V)",
        ),
        "bias: omega x v of the link": (
            "_motion",
            "rates - join(_NO_WAY, cross(angular(V_L), linear(V_L)))",
            "rates",
        ),
        "bias: omega x v of the point": (
            "_motion",
            "bias + join(_NO_WAY, cross(angular(velocity), linear(velocity)))",
            "bias",
        ),
        "Omega: beta, e - G K^T": ("_mobilities", "S @ K", "0 * (S @ K)"),
        "Omega: G R^-1 G^T": ("_mobilities", "K.T @ Z + branch.R_inverse[i]", "K.T @ Z"),
        "Omega: K^T Omega K": ("_mobilities", "K.T @ Z + branch.R_inverse[i]", "branch.R_inverse[i]"),
        "Omega: D of the parent's": ("_mobilities", "_transformed(D[i], inherited)", "inherited"),
        "Omega: carried to the point": ("_transformed", "S.moved(-D.offset)", "S"),
        "Lambda: of the directions that count": ("_inverse_in", "counts * Lambda", "Lambda"),
        "Lambda: the others left out": ("_inverse_in", "counts * Omega", "1 * Omega"),
    },
    "dynamics.coriolis": {
        "b: omega~ I - I omega~": (
            "_VelocityLoad.of",
            "turned + shifted - skew(angular(momentum))",
            "shifted - skew(angular(momentum))",
        ),
        "b: v~ H^T - H v~": (
            "_VelocityLoad.of",
            "turned + shifted - skew(angular(momentum))",
            "turned - skew(angular(momentum))",
        ),
        "b: n~": ("_VelocityLoad.of", "turned + shifted - skew(angular(momentum))", "turned + shifted"),
        "B: f": ("_VelocityLoad.__matmul__", "-skew(self.f) @ S[:3, :]", "0 * S[:3, :]"),
        "B^T: f": (
            "_VelocityLoad.transposed_matmul",
            "self.b.T @ S[:3, :] + skew(self.f) @ S[3:, :]",
            "self.b.T @ S[:3, :]",
        ),
        "lever arm of f": (
            "_VelocityLoad.in_parent",
            "R.T @ self.b @ R - skew(D.offset) @ skew(f)",
            "R.T @ self.b @ R",
        ),
        "S-dot: v x g": (
            "_cross",
            "cross(angular(V), linear(s)) + cross(linear(V), angular(s))",
            "cross(angular(V), linear(s))",
        ),
        "S-dot: omega x u": (
            "_cross",
            "cross(angular(V), linear(s)) + cross(linear(V), angular(s))",
            "cross(linear(V), angular(s))",
        ),
        "C_jk: C S-dot": ("_matrix", "composite[k] @ rates[k] + B[k] @ G[k]", "B[k] @ G[k]"),
        "C_jk: B S": ("_matrix", "composite[k] @ rates[k] + B[k] @ G[k]", "composite[k] @ rates[k]"),
        "C_kj: S-dot^T C S": ("_matrix", "rates[j].T @ mass + G[j].T @ load", "G[j].T @ load"),
        "C_kj: S^T B^T S": ("_matrix", "rates[j].T @ mass + G[j].T @ load", "rates[j].T @ mass"),
    },
    "dynamics.regressors": {
        "m v-dot": (
            "_loads",
            "ex.horzcat(v_dot, skew(w_dot) + skew(w) @ skew(w), ex.zeros(3, 6))",
            "ex.horzcat(0 * v_dot, skew(w_dot) + skew(w) @ skew(w), ex.zeros(3, 6))",
        ),
        "h x v-dot": ("_loads", "-skew(v_dot)", "0 * skew(v_dot)"),
        "omega-dot x h": ("_loads", "skew(w_dot) + skew(w) @ skew(w)", "skew(w) @ skew(w)"),
        "omega x (omega x h)": ("_loads", "skew(w_dot) + skew(w) @ skew(w)", "skew(w_dot)"),
        "I omega-dot": ("_loads", "_times_inertia(w_dot) + skew(w) @ _times_inertia(w)", "skew(w) @ _times_inertia(w)"),
        "omega x I omega": ("_loads", "_times_inertia(w_dot) + skew(w) @ _times_inertia(w)", "_times_inertia(w_dot)"),
        "momentum: h x v": ("_momentum", "-skew(u)", "0 * skew(u)"),
        "momentum: omega x h": (
            "_momentum",
            "ex.horzcat(u, skew(w), ex.zeros(3, 6))",
            "ex.horzcat(u, 0 * skew(w), ex.zeros(3, 6))",
        ),
    },
    "dynamics.derivatives": {
        "omega x (omega x d)": ("motion", "cross(omega, cross(omega, D[i].offset))", "0 * D[i].offset"),
        "v of the ground": ("motion", "D[i] @ V", "ex.vertcat((D[i] @ V)[:3], 0, 0, 0)"),
        "psi": ("ground_of", "omega @ g", "0 * g"),
        "Omega: omega-dot x g": ("ground_of", "turned @ g + omega @ psi", "omega @ psi"),
        "Omega: omega x psi": ("ground_of", "turned @ g + omega @ psi", "turned @ g"),
        "Omega: v-dot x g": ("ground_of", "lifted @ g", "0 * g"),
        "Omega: 2 psi x v": ("ground_of", "2 * skew(v) @ psi", "0 * psi"),
        "Omega, prismatic": ("ground_of", "omega @ (omega @ u)", "0 * u"),
        "Gamma": ("ground_of", "V_p + V", "V"),
        "I: m (d . d - d d^T)": ("Branch.carried", "h + (self.m / 2) * d", "h"),
        "I-dot: [d, P]": ("Branch.carried", "R.T @ (self.rate @ R) + moment_rate(d, P)", "R.T @ (self.rate @ R)"),
        "I-dot: [v, h]": ("branches", "turned + turned.T + moment_rate(linear(V), h)", "turned + turned.T"),
        "I-dot: omega~ I - I omega~": (
            "branches",
            "turned + turned.T + moment_rate(linear(V), h)",
            "moment_rate(linear(V), h)",
        ),
        "B: w x H": ("Branch.coriolis", "self.rate @ w - skew(angular(self.K)) @ w", "self.rate @ w"),
        "B: 2 w x P": ("Branch.coriolis", "-2 * (skew(linear(self.K)) @ w)", "0 * w"),
        "B^T: H": ("Branch.coriolis_transposed", "skew(angular(self.K)) @ turns", "0 * turns"),
        "B^T: P": ("Branch.coriolis_transposed", "2 * (skew(linear(self.K)) @ shifts)", "0 * shifts"),
        "G x* F": ("of_inverse_dynamics", "Q + loaded(G[i], of.F)", "Q"),
        "G x* F: torque of forces": (
            "loaded",
            "torque @ G[:3, :] + force @ G[3:, :]",
            "torque @ G[:3, :]",
        ),
        "da/dq": (
            "of_forward_dynamics",
            "ex.horzcat(-of_tau.q, -of_tau.v, free_selector(tree))",
            "ex.horzcat(of_tau.q, -of_tau.v, free_selector(tree))",
        ),
        "at this a": (
            "of_forward_dynamics",
            "of_inverse_dynamics(tree, q, v, a, gravity, wrenches, still)",
            "of_inverse_dynamics(tree, q, v, 0 * a, gravity, wrenches, still)",
        ),
    },
    "dynamics.hessians": {
        "J: carried": ("_Weighted.carried", "moment_rate(D.offset, linear(N))", "0 * self.J"),
        "dy: J psi": ("_Weighted.moved", "self.J @ turns", "0 * turns"),
        "dy: H x psi": ("_Weighted.moved", "skew(angular(self.N)) @ turns", "0 * turns"),
        "dy: 2 P x U": ("_Weighted.moved", "skew(linear(self.N)) @ shifts", "0 * shifts"),
        "W of the parent": ("_velocities", "D[i] @ of_parent[:6]", "0 * of_parent[:6]"),
        "Xi: W x g": ("_velocities", "omega @ G_i[:3, :]", "0 * G_i[:3, :]"),
        "Xi: lever": ("_velocities", "u @ G_i[:3, :]", "0 * G_i[:3, :]"),
        "y: P x w": ("_branches", "cross(linear(M @ V), linear(W))", "0 * linear(W)"),
        "y: v x (W x h)": ("_branches", "cross(linear(V), cross(Omega, h))", "0 * h"),
        "y: squares": ("_branches", "squares @ cross(omega, Omega)", "0 * omega"),
        "J: turned": ("_branches", "turned + turned.T", "0 * turned"),
        "J: w and h": ("_branches", "moment_rate(linear(W), h)", "0 * turned"),
        "dF: G x* F": ("of_inverse_dynamics", "loaded(G[i], of.F)", "0 * loaded(G[i], of.F)"),
        "dN: G x* N": ("of_inverse_dynamics", "loaded(G[i], by.N)", "0 * loaded(G[i], by.N)"),
        "dy: B^T Xi": ("of_inverse_dynamics", "of.coriolis_transposed(Xi[i])", "0 * g"),
        "dy: g x y": ("of_inverse_dynamics", "skew(by.y) @ g", "0 * g"),
        "qq: Xi . dF": ("of_inverse_dynamics", "Xi[j].T @ F_q", "0 * (Xi[j].T @ F_q)"),
        "qq: Omega . dN": ("of_inverse_dynamics", "on.Omega.T @ N_q", "0 * (on.Omega.T @ N_q)"),
        "qq: psi . dy": ("of_inverse_dynamics", "on.psi.T @ y_q", "0 * (on.psi.T @ y_q)"),
        "qv: Xi . dF": ("of_inverse_dynamics", "Xi[j].T @ F_v", "0 * (Xi[j].T @ F_v)"),
        "qv: psi . dy": ("of_inverse_dynamics", "on.psi.T @ y_v", "0 * (on.psi.T @ y_v)"),
        "vq: Gamma . dN": ("of_inverse_dynamics", "on.Gamma.T @ N_q", "0 * (on.Gamma.T @ N_q)"),
        "d/dq: psi . y": ("of_inverse_dynamics", "on.psi.T @ by.y", "0 * (on.psi.T @ by.y)"),
        "d/dv: g . y": ("of_inverse_dynamics", "G_i[:3, :].T @ by.y", "0 * (G_i[:3, :].T @ by.y)"),
        "X dtau/dq": ("of_forward_dynamics", "turned + turned.T - of.qq", "-of.qq"),
        "dtau/dv: g . r": ("of_inverse_dynamics", "g.T @ r", "0 * (g.T @ r)"),
        "dtau/dv: Gamma . K": ("of_inverse_dynamics", "on.Gamma.T @ F_a", "0 * (on.Gamma.T @ F_a)"),
        "X dtau/dv": ("of_forward_dynamics", "braked - of.qv", "-of.qv"),
        "at this a": (
            "of_forward_dynamics",
            "of_inverse_dynamics(tree, q, v, a, mu, gravity, wrenches, still, with_efforts=True)",
            "of_inverse_dynamics(tree, q, v, 0 * a, mu, gravity, wrenches, still, with_efforts=True)",
        ),
    },
    "dynamics.hamilton": {
        "H (P.2): Psi_D^T": (
            "momentum",
            "inward(tree, D, M @ velocities(tree, D, G, v))",
            "M @ velocities(tree, D, G, v)",
        ),
        "H (P.3b): omega x H": (
            "_flow",
            "cross(angular(V_i), angular(K_i)) + cross(linear(V_i), linear(K_i))",
            "cross(linear(V_i), linear(K_i))",
        ),
        "H (P.3b): eta-dot x P": (
            "_flow",
            "cross(angular(V_i), angular(K_i)) + cross(linear(V_i), linear(K_i))",
            "cross(angular(V_i), angular(K_i))",
        ),
        "H (P.3b), prismatic: omega x P": ("_flow", "cross(angular(V_i), linear(K_i))", "0 * linear(K_i)"),
        "H (P.3b): weight": ("_applied", "-(M_i @ lift)", "0 * (M_i @ lift)"),
        "H (4): L = T - V": ("energy", "kinetic - potential", "kinetic + potential"),
        "H (4): T of L": ("energy", "kinetic - potential", "-potential"),
        "H (4): V of L": ("energy", "kinetic - potential", "kinetic"),
        "H (6): half": ("energy", "ex.dot(V_i, M_i @ V_i) / 2", "ex.dot(V_i, M_i @ V_i)"),
    },
    "dynamics.projected": {
        "PNE 5.6: J_S of the origin": (
            "_carried",
            "R_PC.T @ (J_O - skew(p_PC) @ J_R)",
            "R_PC.T @ J_O",
        ),
        "PNE 5.6: sigma, centrifugal": (
            "_biases",
            "sigma_O + cross(sigma_R, p_PC) + cross(omega, cross(omega, p_PC))",
            "sigma_O + cross(sigma_R, p_PC)",
        ),
        "PNE 5.6: sigma, Coriolis": ("_biases", "sigma_O + 2 * cross(omega, u)", "sigma_O"),
        "PNE 5.6: sigma_R": ("_biases", "sigma_R + cross(omega, w)", "sigma_R"),
        "PNE 5.6: Omega~ I Omega": ("terms", "about_origin @ m.sigma_R + turning", "about_origin @ m.sigma_R"),
        "PNE 5.6: J_R^T I J_R": (
            "terms",
            "M + body.mass * (m.J_O.T @ m.J_O) + coupling + coupling.T + m.J_R.T @ (about_origin @ m.J_R)",
            "M + body.mass * (m.J_O.T @ m.J_O) + coupling + coupling.T",
        ),
    },
    "dynamics.body_frame": {
        "BF: omega-dot, revolute": ("recursion", "wd + cross(w, turn)", "wd"),
        "BF: v-dot, prismatic": (
            "recursion",
            "vd + shifting @ a[part] + 2 * cross(w, shift)",
            "vd + shifting @ a[part]",
        ),
        "BF: v-dot, omega x (omega x p)": (
            "recursion",
            "vd + cross(wd, p) + cross(w, cross(w, p))",
            "vd + cross(wd, p)",
        ),
        "BF: N, omega x M omega": (
            "recursion",
            "I @ omega_dot[i] + cross(omega[i], I @ omega[i])",
            "I @ omega_dot[i]",
        ),
        "BF: v-dot_cm, omega-dot x p_cm": (
            "recursion",
            "v_dot[i] + cross(omega_dot[i], p_cm) + cross(omega[i], cross(omega[i], p_cm))",
            "v_dot[i] + cross(omega[i], cross(omega[i], p_cm))",
        ),
        "BF: v-dot_cm, omega x (omega x p_cm)": (
            "recursion",
            "v_dot[i] + cross(omega_dot[i], p_cm) + cross(omega[i], cross(omega[i], p_cm))",
            "v_dot[i] + cross(omega_dot[i], p_cm)",
        ),
        "BF: F, weight": ("recursion", "v_dot_cm - weight[i]", "v_dot_cm"),
        "BF: v-dot_cm, shown": ("recursion", "(v_dot_cm, F, N)", "(v_dot[i], F, N)"),
        "BF: F, shown": ("recursion", "(v_dot_cm, F, N)", "(v_dot_cm, body.mass * v_dot_cm, N)"),
        "BF: N, shown": ("recursion", "(v_dot_cm, F, N)", "(v_dot_cm, F, I @ omega_dot[i])"),
        "BF: eta, p x R f": (
            "recursion",
            "eta[parent] + R_PC @ eta[i] + cross(p, R_PC @ f[i])",
            "eta[parent] + R_PC @ eta[i]",
        ),
        "BF: eta, p_cm x F": ("recursion", "N + cross(p_cm, F)", "N"),
    },
    "dynamics.operators": {
        "NE Def. 1: D": ("newton_euler_blocks", "D[i] @ _SIX", "_SIX"),
        "NE (1), (11): s~ of S, y~ of Y": ("newton_euler_blocks", "-skew(s)", "ex.zeros(3, 3)"),
        "NE (2): A-bar": ("newton_euler_blocks", "cross(w, cross(w, s))", "0 * s"),
        "NE (5a): A, shown": (
            "newton_euler_blocks",
            "velocity_products(tree, D, G, V, v)",
            "[ex.zeros(6, 1)] * len(tree)",
        ),
        "NE (11): m of M-bar": ("newton_euler_blocks", "body.mass * ex.eye(3)", "ex.eye(3)"),
        "NE (11): B-bar": ("newton_euler_blocks", "cross(w, I @ w)", "0 * w"),
        "NE (17): B, shown": ("newton_euler_blocks", "velocity_loads(M, V)", "[ex.zeros(6, 1)] * len(tree)"),
        "NE (11): F-bar, weight": ("newton_euler_blocks", "-body.mass * linear(up)", "body.mass * linear(up)"),
        "NE (11): F-bar, wrenches": ("newton_euler_blocks", "loads + about_centre", "loads"),
        "NE (11): F-bar, about the centre": (
            "newton_euler_blocks",
            "angular(W) - cross(s, linear(W))",
            "angular(W)",
        ),
    },
    "dynamics.constraint": {
        "NE (20): the part along the axis": ("constraint_forces", ALONG, f"PerBody(2 * x for x in {ALONG})"),
    },
}

TERMS_OF_SEVERAL_WAYS: Terms = {
    "dynamics.spatial": {
        "L D L^T: L": (
            "pivots",
            "S[i, j] - sum(row[k] * L[j][k] * D[k] for k in range(j))",
            "S[i, j]",
        ),
        "L D L^T: D": ("pivots", "S[i, i] - sum(row[k] * row[k] * D[k] for k in range(i))", "S[i, i]"),
        "k x k inverse: forward substitution": (
            "inverse",
            "-sum(L[i][k] * x[k] for k in range(n, i))",
            "ex.matrix(0.0)",
        ),
        "k x k inverse: back substitution": ("inverse", "x[k] - L[i][k] * x[i]", "x[k]"),
    },
    "dynamics.newton_euler": {
        "(5a): w x u": (
            "velocity_products",
            "join(cross(turned, angular(rates[i])), carried + 2 * cross(turned, linear(rates[i]))) + own",
            "join(cross(turned, angular(rates[i])), carried + 2 * cross(turned, linear(rates[i])))",
        ),
        "(5a): w x u of the root": ("velocity_products", "products.append(own)", "products.append(0 * own)"),
    },
    "dynamics.mass_matrix": {
        "M: a joint's own entries once": ("entries", "j != i or column <= row", "True"),
        "L^T D L: from right to left": ("factored", "sorted(columns[k], reverse=True)", "sorted(columns[k])"),
    },
    "dynamics.projected": {
        "PNE 5.6: sigma, w x u": (
            "_biases",
            "sigma_O + 2 * cross(omega, u) + cross(w, u)",
            "sigma_O + 2 * cross(omega, u)",
        ),
    },
    "dynamics.body_frame": {
        "BF: v-dot, w x u": (
            "recursion",
            "vd + shifting @ a[part] + 2 * cross(w, shift) + cross(turn, shift)",
            "vd + shifting @ a[part] + 2 * cross(w, shift)",
        ),
    },
    "dynamics.constraint": {
        "NE (20): (G^T G)^-1": (
            "constraint_forces",
            "_of_subspace(joint.without_mimic.subspace)",
            "joint.without_mimic.subspace",
        ),
        "NE (20): less what is along G": (
            "constraint_forces",
            "_of_subspace(joint.without_mimic.subspace)",
            "0 * _of_subspace(joint.without_mimic.subspace)",
        ),
        "(18a): the length of G^T F": ("_length", "ex.norm_2(x)", "ex.sumsqr(x)"),
    },
    "simulation.integrators.implicit_midpoint": {
        "momenta in the frames of the parents": ("_flow_on_parents", "p_dot + at.turning(v, p)", "p_dot"),
    },
}


PASSIVE_TERMS: Terms = {
    "dynamics.passive": {
        "damping": ("damping", "_reflected(tree, tree.passive.damping) * v", "ex.zeros(tree.nv, 1)"),
        "friction": ("friction", "constant(tree.passive.friction)", "ex.zeros(tree.nv, 1)"),
        "friction: its width": ("friction", "rates / dense(tree.passive.width)", "rates"),
        "springs: their rest": ("_from_rest", "joint.ratio * q[at] - rest[part]", "joint.ratio * q[at]"),
        "p: damping": ("efforts", "damping(tree, v) + friction(tree, v)", "friction(tree, v)"),
        "p: friction": ("efforts", "damping(tree, v) + friction(tree, v)", "damping(tree, v)"),
        "p: springs": (
            "efforts",
            "damping(tree, v) + friction(tree, v) + springs(tree, q)",
            "damping(tree, v) + friction(tree, v)",
        ),
        "dissipated: damping": ("passive_forces", "damping(tree, v) + friction(tree, v)", "friction(tree, v)"),
        "dissipated: friction": ("passive_forces", "damping(tree, v) + friction(tree, v)", "damping(tree, v)"),
        "armature, by bodies": ("armatures", "tree.passive.armature[part]", "0 * tree.passive.armature[part]"),
        "armature, by velocities": ("armature", "_reflected(tree, tree.passive.armature)", "ex.zeros(tree.nv, 1)"),
        "half I_r v^2": ("kinetic_energy", "dot(tree, v, armature(tree) * v) / 2", "dot(tree, v, armature(tree) * v)"),
        "half k x^2": (
            "spring_energy",
            "dot(tree, stretched, constant(tree.passive.stiffness) * stretched, rates=True) / 2",
            "dot(tree, stretched, constant(tree.passive.stiffness) * stretched, rates=True)",
        ),
    },
    "dynamics.newton_euler": {
        "tau: I_r a": (
            "inverse_dynamics",
            "joint_vector(tree, G.T @ F) + passive.armature(tree) * a",
            "joint_vector(tree, G.T @ F)",
        ),
        "tau: p": ("inverse_dynamics", "passive.efforts(tree, q, v)", "0"),
    },
    "dynamics.mass_matrix": {"M: I_r": ("_blocks", "G[i].T @ F + rotor[i]", "G[i].T @ F")},
    "dynamics.articulated": {
        "R_i: I_r": ("branches", "G[i].T @ U + rotor[i]", "G[i].T @ U"),
        "tau - p": ("forward_dynamics", "tau - passive.efforts(tree, q, v)", "tau"),
        "R_i: I_r, shown": (
            "branch_inertias",
            "G[i].T @ (branch.J[i] @ G[i]) + rotor[i]",
            "G[i].T @ (branch.J[i] @ G[i])",
        ),
    },
    "dynamics.hamilton": {
        "p: I_r v": (
            "momentum",
            "joint_vector(tree, G.T @ K) + passive.armature(tree) * v",
            "joint_vector(tree, G.T @ K)",
        ),
        "p-dot: tau - p": ("_flow", "tau - passive.efforts(tree, q, v)", "tau"),
        "T: the rotors'": ("energy", "kinetic + passive.kinetic_energy(tree, v)", "kinetic"),
        "V: the springs'": (
            "potential_energy",
            "passive.spring_energy(tree, q) - ex.dot(gravity, total(tree, moments, ex.zeros(3, 1)))",
            "-ex.dot(gravity, total(tree, moments, ex.zeros(3, 1)))",
        ),
    },
    "dynamics.projected": {
        "M: I_r": ("terms", "ex.diag(passive.armature(tree))", "ex.zeros(tree.nv, tree.nv)"),
        "P": ("terms", "-passive.efforts(tree, q, v)", "passive.efforts(tree, q, v)"),
    },
    "dynamics.body_frame": {
        "tau: I_r a": ("recursion", "joint_vector(tree, tau) + passive.armature(tree) * a", "joint_vector(tree, tau)"),
        "tau: p": ("recursion", "passive.efforts(tree, q, v)", "0"),
    },
    "dynamics.operators": {
        "step 3: I_r": ("mass_matrix_steps", "ex.diag(passive.armature(tree))", "ex.zeros(tree.nv, tree.nv)"),
    },
}


TERMS_OF_FOLLOWERS: Terms = {
    "dynamics.kinematics": {
        "tau: of bodies that move together the sum": ("_sum", "sum(columns[1:], columns[0])", "columns[0]"),
    },
    "dynamics.mass_matrix": {
        "M: pairs of bodies add up": ("_add", "entries[place] + value if place in entries else value", "value"),
        "M: below the diagonal": ("_add", "(max(row, column), min(row, column))", "(row, column)"),
        "M: a follower that its leader carries": (
            "entries",
            "2 * block[n, k] if j != i and row == column else block[n, k]",
            "block[n, k]",
        ),
        "L^T D L: fill-in": ("factored", "leftward[n + 1 :]", "[]"),
        "L^T D L: whose entry is whose": ("solve", "found[k]", "y[k]"),
    },
    "dynamics.passive": {
        "m^2 d": (
            "damping",
            "_reflected(tree, tree.passive.damping)",
            "constant(abs(tree.coupling_matrix).T @ tree.passive.damping)",
        ),
        "m f tanh(m v / w)": ("_rates", "np.abs(tree.coupling_matrix)", "np.sign(np.abs(tree.coupling_matrix))"),
        "m k": (
            "springs",
            "constant(tree.coupling_matrix.T) @ pulled",
            "constant(np.sign(tree.coupling_matrix.T)) @ pulled",
        ),
        "m q - q_0": ("_from_rest", "joint.ratio * q[at] - rest[part]", "q[at] - rest[part]"),
        "m^2 I_r": (
            "armature",
            "_reflected(tree, tree.passive.armature)",
            "constant(abs(tree.coupling_matrix).T @ tree.passive.armature)",
        ),
        "m^2 I_r, by bodies": ("armatures", "joint.ratio**2", "joint.ratio"),
    },
    "dynamics.articulated": {"(19b) is not of them": ("forward_dynamics", "tree.has_mimics", "False")},
    "dynamics.hamilton": {"(P.5b) is not of them": ("velocity_from_momentum", "tree.has_mimics", "False")},
    "dynamics.constraint": {
        "(18a): along a follower's own axis": ("constraint_forces", ALONG, ALONG.replace(".without_mimic", "")),
    },
}


TERMS_OF_LOCKS: Terms = {
    "dynamics.kinematics": {
        "tau of what is locked": ("zero_locked", "constant(tree.free) * x", "x"),
        "columns of what is locked": ("free_selector", "ex.diag(constant(tree.free))", "ex.eye(tree.nv)"),
        "M of what is locked": (
            "locked_diagonal",
            "ex.eye(tree.nv) - free_selector(tree)",
            "ex.zeros(tree.nv, tree.nv)",
        ),
    },
    "dynamics.mass_matrix": {
        "M: the diagonal of what is locked": ("_of_free", "free[i] * value + (1 - free[i])", "free[i] * value"),
        "M: what is locked on it": ("_of_free", "free[i] * value + (1 - free[i])", "value"),
        "M: beside what is locked": ("_of_free", "free[i] * free[j] * value", "value"),
        "M: below what is locked": ("_of_free", "free[i] * free[j] * value", "free[j] * value"),
        "(19a): efforts of locks": ("forward_dynamics", "zero_locked(tree, tau)", "tau"),
    },
    "dynamics.articulated": {
        "(19b): R^-1": ("branches", "free[i] * inverse(_held(R, free[i]))", "inverse(R)"),
        "(19b): R^-1 is 0": ("branches", "free[i] * inverse(_held(R, free[i]))", "inverse(_held(R, free[i]))"),
    },
    "dynamics.newton_euler": {
        "computed torque": (
            "computed_torque",
            "zero_locked(tree, a_ref + kd * (v_ref - v) + kp * error(tree, q, q_ref))",
            "a_ref + kd * (v_ref - v) + kp * error(tree, q, q_ref)",
        ),
    },
    "dynamics.hamilton": {
        "(P.5a)": ("velocity_through_mass_matrix", "zero_locked(tree, p)", "p"),
        "p-dot": ("_flow", "zero_locked(tree, tau - passive.efforts(tree, q, v))", "tau - passive.efforts(tree, q, v)"),
    },
    "dynamics.projected": {
        "Jacobians": ("body_motions", "free_selector(tree)", "ex.eye(tree.nv)"),
        "M": ("terms", "locked_diagonal(tree)", "ex.zeros(tree.nv, tree.nv)"),
        "Q": ("terms", "zero_locked(tree, tau)", "tau"),
    },
    "dynamics.operators": {
        "J = Psi G": ("mass_matrix_steps", "free_selector(tree)", "ex.eye(tree.nv)"),
        "step 3": ("mass_matrix_steps", "locked_diagonal(tree)", "ex.zeros(tree.nv, tree.nv)"),
    },
}

TERMS_OF_STEPS: Terms = {
    "dynamics.motion_derivatives": {
        "loads: B psi": ("joint_wrench_derivatives", "of.coriolis(seen[:3, :])", "0 * of.coriolis(seen[:3, :])"),
        "loads: C Omega": ("joint_wrench_derivatives", "of.inertia(Omega)", "0 * of.inertia(Omega)"),
        "loads: B g": ("joint_wrench_derivatives", "of.coriolis(own[:3, :])", "0 * of.coriolis(own[:3, :])"),
        "loads: C Gamma": ("joint_wrench_derivatives", "of.inertia(Gamma)", "0 * of.inertia(Gamma)"),
        "loads: C G": ("joint_wrench_derivatives", "of.inertia(own)", "0 * of.inertia(own)"),
        "loads: G x* F": ("joint_wrench_derivatives", "loaded(G[i], branch[i].F)", "0 * own[:6, :]"),
        "loads: psi seen outward": ("joint_wrench_derivatives", "D[i].rotation @ seen[:3, :]", "seen[:3, :]"),
        "loads: wrenches": ("_swept", "branches(tree, D, moved, wrenches)", "branches(tree, D, moved, None)"),
        "M: armature": ("slopes", "mirrored(G[i].T @ K) + rotor[i]", "mirrored(G[i].T @ K)"),
        "G x* K": ("slopes", "Q + loaded(G[i], branch[i].K)", "Q"),
        "G x* F": ("slopes", "W + loaded(G[i], held[i].F)", "W"),
        "ds_i/dq_i: Psi . K": ("slopes", "moved.T @ Psi[i] - G[i].T @ W", "-G[i].T @ W"),
        "ds_i/dq_i: weight": ("slopes", "moved.T @ Psi[i] - G[i].T @ W", "moved.T @ Psi[i]"),
        "ds_j/dq_i: Psi . K": ("slopes", "Psi[j].T @ Q - G[j].T @ W", "-G[j].T @ W"),
        "ds_j/dq_i: weight": ("slopes", "Psi[j].T @ Q - G[j].T @ W", "Psi[j].T @ Q"),
        "dp_i/dq_j": ("slopes", "Psi[j].T @ K", "0 * (Psi[j].T @ K)"),
        "ds_i/dq_j: Psi . K": ("slopes", "Psi[j].T @ Q - Omega[j].T @ K", "-Omega[j].T @ K"),
        "ds_i/dq_j: weight": ("slopes", "Psi[j].T @ Q - Omega[j].T @ K", "Psi[j].T @ Q"),
    },
    "dynamics.midpoint": {
        "r: E p": ("implicit_midpoint", "of.p - E @ before.p - impulse", "of.p - before.p - impulse"),
        "r: h s": ("implicit_midpoint", "of.p - E @ before.p - impulse", "of.p - E @ before.p"),
        "p': 2 h s": ("implicit_midpoint", "2 * impulse + unknown", "impulse + unknown"),
        "J: X": ("implicit_midpoint", "_turning(tree, E @ before.p)", "0 * _turning(tree, E @ before.p)"),
        "J: h^2 ds/dq": (
            "implicit_midpoint",
            "of.p_q + _turning(tree, E @ before.p) - half * of.s_q",
            "of.p_q + _turning(tree, E @ before.p)",
        ),
        "J: h ds/dv": (
            "implicit_midpoint",
            "slope @ integrate_derivatives(tree, half * v_m)[1] - of.s_v",
            "slope @ integrate_derivatives(tree, half * v_m)[1]",
        ),
        "J: m": ("implicit_midpoint", "slope @ integrate_derivatives(tree, half * v_m)[1]", "slope"),
        "dr/dq: dp/dq": ("implicit_midpoint", "E @ before.p_q", "before.p_q"),
        "dr/dq: c": ("implicit_midpoint", "(of.p_q - half * of.s_q) @ start", "0 * ((of.p_q - half * of.s_q) @ start)"),
        "dr/dv: E M": ("implicit_midpoint", "E @ before.M", "before.M"),
        "dp'/dq: h ds/dq": ("implicit_midpoint", "of.p_q + half * of.s_q", "of.p_q"),
        "dp'/dv: h ds/dv": ("implicit_midpoint", "slope @ step + of.M + half * of.s_v", "slope @ step + of.M"),
        "dp': turned": ("implicit_midpoint", "_turning(tree, p) @ step", "0 * step"),
        "dq': c": ("implicit_midpoint", "carried @ step + step", "step + step"),
        "dv': dp/dq": ("implicit_midpoint", "p_q @ by_v_m", "0 * step"),
        "dq'/dq: c c": ("implicit_midpoint", "carried @ start", "start"),
        "dv'/dq: dp/dq": ("implicit_midpoint", "p_q @ before_q", "0 * before_q"),
        "dp'/dtau": ("implicit_midpoint", "slope @ start + driven", "slope @ start"),
        "driven": ("implicit_midpoint", "of.s + zero_locked(tree, tau)", "of.s"),
        "dp'/dtau of what is locked": (
            "implicit_midpoint",
            "ex.horzcat(none, none, h * free)",
            "ex.horzcat(none, none, h * ex.eye(n))",
        ),
        "s: Psi . K": ("_momenta", "psi.T @ of.K", "0 * (psi.T @ of.K)"),
        "s: weight and wrenches": ("_momenta", "psi.T @ of.K - G_i.T @ rest.F", "psi.T @ of.K"),
        "s: passive efforts": ("_momenta", "s - passive.efforts(tree, q, v)", "s"),
        "p: armature": ("_momenta", "passive.armature(tree) * v", "0 * v"),
        "stiffness": ("_momenta", "s_q - ex.diag(passive.stiffness(tree))", "s_q"),
        "resistance": (
            "_momenta",
            "free_selector(tree) @ p_q.T - ex.diag(passive.resistance(tree, v))",
            "free_selector(tree) @ p_q.T",
        ),
        "ds/dv": ("_momenta", "free_selector(tree) @ p_q.T", "0 * p_q"),
        "elimination": ("_solved", "(rows[k][n:] - known) / rows[k][k]", "rows[k][n:] / rows[k][k]"),
    },
}


EDITS = [
    pytest.param(Edit(module, *edit), cases, id=f"{kind}{module} {name}" if kind else name)
    for kind, terms, cases in (
        ("", TERMS, one_way),
        ("", TERMS_OF_SEVERAL_WAYS, SEVERAL_WAYS),
        ("joints' own, ", PASSIVE_TERMS, PASSIVE),
        ("followers, ", TERMS_OF_FOLLOWERS, LED),
        ("locks, ", TERMS_OF_LOCKS, LOCKED),
        ("", TERMS_OF_STEPS, STEPS),
    )
    for module, of_module in terms.items()
    for name, edit in of_module.items()
]


CASES = {
    "one way": one_way,
    "several ways": SEVERAL_WAYS,
    "passive": PASSIVE,
    "followers": LED,
    "locks": LOCKED,
    "steps": STEPS,
}


@pytest.mark.parametrize("cases", CASES.values(), ids=CASES)
def test_as_written_all_agree(cases: Cases) -> None:
    with edited() as made:
        assert {name: difference(case) for name, case in cases(made).items() if not difference(case) < 1e-10} == {}


_TOLD: dict[str, list[str]] = {}
"""By module, the cases that detected an edit, latest first; they are tried first for the next edit."""


def _words(edit: Edit) -> tuple[str, ...]:
    """What the cases are called that an edit is most likely seen in."""
    function = edit.function.rpartition(".")[2].strip("_")
    return function, edit.module.rpartition(".")[2], *_SEEN_IN.get(edit.module, ())


_SEEN_IN = {
    "dynamics.derivatives": ("derivatives",),
    "dynamics.hessians": ("hessian",),
    "dynamics.motion_derivatives": ("derivatives of joint loads",),
    "dynamics.midpoint": ("implicit midpoint, A and B",),
    "dynamics.coriolis": ("coriolis, C v", "coriolis"),
    "dynamics.regressors": ("regressor",),
    "dynamics.hamilton": ("momentum", "flow", "energy"),
    "dynamics.task_space": ("point_local", "point"),
    "dynamics.body_frame": ("recursion",),
    "dynamics.operators": ("newton_euler_blocks",),
    "dynamics.newton_euler": ("newton_euler_blocks", "inverse_dynamics"),
    "dynamics.passive": ("energy, kinetic", "mass_matrix", "passive_forces"),
    "dynamics.spatial": ("mass_matrix", "forward_dynamics, articulated"),
    "dynamics.kinematics": ("projected", "equation_terms, M"),
    "simulation.integrators.implicit_midpoint": ("midpoint_step, momentum",),
    "dynamics.projected": ("terms",),
}


@pytest.mark.parametrize(("edit", "cases"), EDITS)
def test_without_the_term_they_do_not(edit: Edit, cases: Cases) -> None:
    told = _TOLD.setdefault(edit.module, [])
    with edited(edit) as made:
        asked = cases(made)
        try:
            likely = (name for word in _words(edit) for name in asked if word in name)
            for name in dict.fromkeys([*(name for name in told if name in asked), *likely, *asked]):
                if not difference(asked[name]) < 1e-6:
                    told.insert(0, name)
                    return
        except (RuntimeError, ZeroDivisionError, KeyError, AssertionError):
            return  # CasADi refuses the shapes, an entry is missing, or it is asked of what it is not: red enough
    pytest.fail("no case detects it")


SOURCE = """
class Body:
    def load(self, a):
        return (self.m
                * a) + self.m * a  # twice

def load(m, a):
    return [m * a for a in (a, -a)]
"""


def _of_source(edit: Edit) -> str:
    return ast.unparse(edit.made_in(ast.parse(SOURCE)))


def test_an_edit_does_not_see_line_breaks() -> None:
    found = _of_source(Edit("m", "Body.load", "(self.m)*a", "0", times=2))
    assert "return 0 + 0" in found
    assert "m * a for a" in found


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("m", "load", "m * b", "0"), "m.load: 'm * b' occurs 0 times, expected 1"),
        (Edit("m", "Body.load", "self.m * a", "0"), "m.Body.load: 'self.m * a' occurs 2 times, expected 1"),
        (Edit("m", "load", "m * a", "m*a"), "m.load: 'm*a' is what stands there"),
        (Edit("m", "Body.loads", "m * a", "0"), "m has 0 functions Body.loads, expected 1"),
    ],
    ids=["nowhere", "twice", "the same", "no such function"],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: Edit, message: str) -> None:
    with pytest.raises(EditError) as caught:
        _of_source(edit)
    assert str(caught.value) == message
