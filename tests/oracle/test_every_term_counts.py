"""Drop or change a term of an equation, and the comparison with Pinocchio must turn red.

Each case edits one line of `dynamics/` in memory and evaluates the queries in numbers (`in_numbers.py`) until one is
wrong. These are the terms of the documents, named; `tests/mutations` puts every small fault there is into every module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import dyn_service.dynamics
from tests.oracle.in_numbers import Numbers, difference

SOURCES = Path(dyn_service.dynamics.__file__).parent
MODULES = (
    "spatial",
    "sweeps",
    "kinematics",
    "newton_euler",
    "mass_matrix",
    "articulated",
    "constraint",
    "hamilton",
    "projected",
    "body_frame",
    "integration",
)


@contextmanager
def dynamics(module: str = "", old: str = "", new: str = "") -> Iterator[dict[str, ModuleType]]:
    """The modules of `dynamics/`, in a package of their own, with one edit in one of them."""
    made: dict[str, ModuleType] = {"edited": ModuleType("edited")}
    try:
        sys.modules["edited"] = made["edited"]
        for name in MODULES:
            source = (SOURCES / f"{name}.py").read_text().replace("from dyn_service.dynamics.", "from edited.")
            if name == module:
                assert source.count(old) == 1, f"{module}.py has {source.count(old)} times: {old}"
                source = source.replace(old, new)
            made[name] = sys.modules[f"edited.{name}"] = ModuleType(f"edited.{name}")
            exec(compile(source, f"{name}.py", "exec"), made[name].__dict__)
        yield made
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "edited"]:
            del sys.modules[name]


def wrong_queries(made: dict[str, ModuleType], bound: float) -> Iterator[str]:
    """The queries that are further than this from Pinocchio, found one by one."""
    return (name for name, case in Numbers(made).cases().items() if not difference(case) < bound)


def test_as_written_all_agree() -> None:
    with dynamics() as made:
        assert list(wrong_queries(made, 1e-10)) == []


EDITS = [
    ("NE (4): lever arm of D", "spatial", "linear(V) + cross(turn, self.offset)", "linear(V)"),
    ("NE (11): lever arm of D^T", "spatial", "angular(F) + cross(self.offset, force), force)", "angular(F), force)"),
    (
        "NE (16): I about the joint, not the centre",
        "spatial",
        "constant(body.about_origin),",
        "constant(body.about_com),",
    ),
    ("NE (16): m s~ in torque", "spatial", "self.I @ angular(V) + self.H @ linear(V)", "self.I @ angular(V)"),
    ("NE (16): -m s~ in force", "spatial", "self.H.T @ angular(V) + self.m @ linear(V)", "self.m @ linear(V)"),
    ("NE (19b): D^T J D, coupling", "spatial", "H = self.H + s @ self.m", "H = self.H"),
    ("NE (19b): D^T J D, inertia", "spatial", "self.I - self.H @ s + s @ H.T", "self.I - self.H @ s"),
    ("NE (19b): J - K R K^T, coupling", "spatial", "self.H - W[:3, :] @ n.T", "self.H"),
    ("NE (19b): J - K R K^T, mass", "spatial", "self.m - _symmetric(W[3:, :], n)", "self.m"),
    ("NE (7): Psi_D hands motion outward", "sweeps", "x[i] if inherited is None else A[i] @ inherited + x[i]", "x[i]"),
    ("NE (13): Psi_D^T hands load inward", "sweeps", "z[parent] = z[parent] + carry(i, z[i])", "z[parent] = z[parent]"),
    ("prismatic: d moves with q", "kinematics", "p_PJ + summed(shifted, before=R_PJ) if shifted else p_PJ", "p_PJ"),
    (
        "prismatic: G = [0; axis]",
        "kinematics",
        "constant(joint.subspace)",
        'constant(joint.subspace[[3, 4, 5, 0, 1, 2]] if joint.type == "prismatic" else joint.subspace)',
    ),
    ("NE (5a): omega x g theta-dot", "newton_euler", "cross(turned, angular(rates[i]))", "0 * angular(rates[i])"),
    ("NE (5a): omega x (omega x d)", "newton_euler", "carried + 2 * cross", "2 * cross"),
    ("prismatic: 2 omega x g d-dot", "newton_euler", "+ 2 * cross(turned", "+ cross(turned"),
    ("NE (17): omega x I omega", "newton_euler", "cross(omega, M_i.I @ omega)", "0 * omega"),
    ("NE (17): m omega x (omega x s)", "newton_euler", "cross(omega, M_i.H.T @ omega)", "0 * omega"),
    ("gravity lifts the ground", "newton_euler", "join(ca.DM(3, 1), -gravity)", "join(ca.DM(3, 1), gravity)"),
    (
        "NE (14): load from acceleration",
        "newton_euler",
        "load = M @ acceleration + velocity_loads",
        "load = velocity_loads",
    ),
    (
        "NE (18c): composite inertia",
        "mass_matrix",
        "D[i].congruence(C_i)",
        "D[i].congruence(C_i).turned(ca.DM.eye(3)).moved(D[i].offset)",
    ),
    ("NE (18c): load carried to ancestors", "mass_matrix", "F = D[j].T @ F", "F = F"),
    ("NE (19a): C", "mass_matrix", "entries(tree, q), tau - C)", "entries(tree, q), tau)"),
    ("L^T D L: fill-in of the tree", "mass_matrix", "L[i, j] - share * L[k, j]", "L[i, j]"),
    ("L^T D L: back substitution", "mass_matrix", "y[k] = y[k] - L[k, i] * y[i]", "y[k] = y[k]"),
    ("NE (19b): R_i", "articulated", "= inverse(G[i].T @ U)", "= 0.99 * inverse(G[i].T @ U)"),
    ("NE (19b): beta yields", "articulated", "moved - self.G @ (self.K.T @ moved)", "moved"),
    ("NE (19b): beta^T yields", "articulated", "self.D.T @ (F - self.K @ (self.G.T @ F))", "self.D.T @ F"),
    (
        "NE (19b): Phi_D^T K tau",
        "articulated",
        "handed_inward(tree, D, branch.K @ effort)",
        "handed_inward(tree, D, Stack(0 * x for x in branch.K @ effort))",
    ),
    ("NE (19b): e - K^T Phi_D", "articulated", "yielded - branch.K.T @ (D @ inherited)", "yielded"),
    ("(18b) in the same sweep: J A", "articulated", "J @ A_i for J", "0 * A_i for J"),
    ("(18b) in the same sweep: B", "articulated", ") + velocity_loads(M, V)", ")"),
    (
        "H (P.2): Psi_D^T",
        "hamilton",
        "K = inward(tree, D, M @ velocities(tree, D, G, v))\n    return",
        "K = M @ velocities(tree, D, G, v)\n    return",
    ),
    ("H (P.3b): omega x H", "hamilton", "cross(angular(V_i), angular(K_i)) + ", ""),
    ("H (P.3b): eta-dot x P", "hamilton", " + cross(linear(V_i), linear(K_i))", ""),
    (
        "H (P.3b), prismatic: omega x P",
        "hamilton",
        "cross(angular(V_i), linear(K_i)),\n        )",
        "0 * linear(K_i),\n        )",
    ),
    ("H (P.3b): weight", "hamilton", "weight = Stack(-(M_i @ lift)", "weight = Stack(0 * (M_i @ lift)"),
    ("H (6): half", "hamilton", "ca.dot(V_i, M_i @ V_i) / 2", "ca.dot(V_i, M_i @ V_i)"),
    ("PNE 5.6: J_S of the origin", "projected", "turn @ (parent.J_O - skew(p_PC) @ parent.J_R)", "turn @ parent.J_O"),
    ("PNE 5.6: sigma, centrifugal", "projected", " + cross(parent.omega, cross(parent.omega, p_PC))", ""),
    ("PNE 5.6: sigma, Coriolis", "projected", "sigma_O + 2 * cross(omega, u)", "sigma_O"),
    ("PNE 5.6: sigma_R", "projected", "sigma_R + cross(omega, w), ", "sigma_R, "),
    ("PNE 5.6: Omega~ I Omega", "projected", "about_origin @ m.sigma_R + turning +", "about_origin @ m.sigma_R +"),
    ("PNE 5.6: J_R^T I J_R", "projected", " + m.J_R.T @ (about_origin @ m.J_R)", ""),
    ("BF: omega-dot, revolute", "body_frame", "wd + cross(w, turn)", "wd"),
    ("BF: v-dot, prismatic", "body_frame", "+ 2 * cross(w, shift)", ""),
    ("BF: v-dot, omega x (omega x p)", "body_frame", "vd + cross(wd, p) + cross(w, cross(w, p))", "vd + cross(wd, p)"),
    (
        "BF: N, omega x M omega",
        "body_frame",
        "N = I @ omega_dot[i] + cross(omega[i], I @ omega[i])",
        "N = I @ omega_dot[i]",
    ),
    ("BF: eta, p x R f", "body_frame", " + cross(p, R_PC @ f[i])", ""),
    ("BF: eta, p_cm x F", "body_frame", "N + cross(p_cm, F)", "N"),
    ("NE (20): the part along the axis", "constraint", "along = G.T @ F", "along = Stack(2 * x for x in G.T @ F)"),
]


@pytest.mark.parametrize(("module", "old", "new"), [pytest.param(*edit[1:], id=edit[0]) for edit in EDITS])
def test_without_the_term_they_do_not(module: str, old: str, new: str) -> None:
    with dynamics(module, old, new) as made:
        try:
            wrong = next(wrong_queries(made, 1e-6), None)
        except (RuntimeError, ZeroDivisionError):
            return  # CasADi refuses the shapes: as red as can be
        assert wrong is not None
