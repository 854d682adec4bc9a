"""How wrong every query is, on each joint's own scale, against the fifty-digit reference.

An error relative to the largest torque hides a finger behind a shoulder. So efforts, momenta and forces count per
joint: the error of tau_i over sqrt(M_ii), against the largest such ratio of the state. Entries of M count over
sqrt(M_ii M_jj), motions as the efforts they need: M (a' - a) over sqrt(M_ii), against the largest ratio of the efforts
behind them. What links have is a vector each, counted against the largest of its kind in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from flint import arb

from dyn_service.queries import DEFAULT_GRAVITY
from tests.nasty.reference import Array, ExactRobot, State, cross_force, double, rows, stack, vector

GRAVITY = (0.3, -0.2, -9.81)
Answers = dict[str, Array]
Evaluate = Callable[[str, str, Mapping[str, Any]], Answers]
"""(query, method, inputs) -> outputs by name."""

STATES = (
    # sizes of: q, v, a, efforts in units of sqrt(M_ii); oblique gravity or none, None: straight down
    (3.0, 1.0, 1.0, 1.0, True),
    (3.0, 1.0, 1.0, 1.0, True),
    (1e-9, 1.0, 1.0, 1.0, True),
    (1e-4, 1e-3, 1.0, 1.0, True),
    (1.0, 0.0, 0.0, 1.0, True),
    (1.0, 0.0, 0.0, 0.0, None),
    (30.0, 100.0, 1e-3, 1.0, False),
    (1e-2, 1e-6, 1e-6, 1e-6, False),
)


def states(robot: ExactRobot, seed: int) -> list[dict[str, Array]]:
    """Inputs of every name, for states small and large."""
    rng = np.random.default_rng([7, seed])
    found = []
    for q_size, v_size, a_size, effort, weighed in STATES:
        q, q_ref = q_size * rng.uniform(-1, 1, (2, robot.nv))
        v, v_ref = v_size * rng.normal(size=(2, robot.nv))
        a, a_ref = a_size * rng.normal(size=(2, robot.nv))
        scale = np.sqrt(np.diag(double(robot.at(q).mass_matrix)))
        tau, p = effort * scale * rng.normal(size=(2, robot.nv))
        given = {"q": q, "v": v, "a": a, "tau": tau, "p": p, "q_ref": q_ref, "v_ref": v_ref, "a_ref": a_ref}
        given |= {"kp": rng.uniform(1, 100, robot.nv), "kd": rng.uniform(1, 20, robot.nv), "dt": np.array([1e-3])}
        given["gravity"] = np.array(DEFAULT_GRAVITY if weighed is None else GRAVITY if weighed else (0.0, 0.0, 0.0))
        found.append(given)
    return found


class Expected:
    """The true answers at one state, and the scales on which errors count."""

    def __init__(self, robot: ExactRobot, given: Mapping[str, Array], acting: list[Any] | None = None) -> None:
        self.robot, self.given, self.acting = robot, given, acting
        self.state: State = robot.at(given["q"], given["v"])
        self.M = double(self.state.mass_matrix)
        self.d = np.sqrt(np.diag(self.M))

    @cache  # noqa: B019 - lives as long as one state's comparison
    def answers(self, query: str, method: str) -> dict[str, tuple[str, Array, float]]:
        """By output: how its errors count, its value, and the scale they count on."""
        found: dict[str, tuple[str, Array, float]] = self.step(method) if query == "step" else getattr(self, query)()
        return found

    def error(self, query: str, method: str, found: Answers) -> float:
        """The worst error of a query's outputs."""
        true = self.answers(query, method)
        worst = 0.0
        for name, (kind, value, scale) in true.items():
            with np.errstate(invalid="ignore", over="ignore"):
                difference = np.asarray(found[name]).reshape(value.shape) - value
                if kind == "effort":
                    error = np.abs(difference / self.d).max() / scale
                elif kind == "motion":
                    error = np.abs(self.M @ difference / self.d).max() / scale
                elif kind == "place":
                    error = np.abs(difference * self.d).max() / scale
                elif kind == "matrix":
                    error = np.abs(difference / np.outer(self.d, self.d)).max()
                else:
                    error = np.abs(difference).max(initial=0.0) / scale
            worst = max(worst, float(error)) if np.isfinite(error) else np.inf
        return worst

    def _effort(self, value: Any, *beside: Any) -> tuple[str, Array, float]:
        array = double(value).ravel() if not isinstance(value, np.ndarray) else value
        sizes = [np.abs((x if isinstance(x, np.ndarray) else double(x).ravel()) / self.d).max() for x in beside]
        # At rest without load efforts are zero; then what counts is that of the accelerations a rounding makes.
        return "effort", array, max([np.abs(array / self.d).max(), *sizes]) or 1.0

    @property
    def _swung(self) -> Array:
        """(nv,) efforts as velocities make them: what forces that cancel in planar robots count beside."""
        return self.d * np.abs(self.given["v"]) * np.abs(self.given["v"] * self.d).max(initial=0.0)

    def _motion(self, value: Any, *efforts: Any) -> tuple[str, Array, float]:
        _, _, scale = self._effort(np.zeros(self.robot.nv), *efforts)
        return "motion", double(value).ravel(), scale

    def _rows(self, parts: list[Any], width: int = 3) -> tuple[str, Array, float]:
        value = np.array([double(p).ravel() for p in parts])
        return "rows", value, np.abs(value).max(initial=0.0) or 1.0

    def _number(self, value: Any, scale: Any = 0.0) -> tuple[str, Array, float]:
        found = np.array(double(value))
        return "number", found, max(abs(float(found)), abs(float(double(scale))) if scale else 0.0) or 1.0

    @property
    def _world(self) -> dict[str, Any]:
        return {"gravity": self.given["gravity"], "wrenches": self.acting}

    @property
    def _bias(self) -> Any:
        return self.state.inverse_dynamics([0] * self.robot.nv, **self._world)

    def _tau(self, a: Array) -> Any:
        return self.state.inverse_dynamics(list(a), **self._world)

    def inverse_dynamics(self) -> dict[str, Any]:
        return {"tau": self._effort(self._tau(self.given["a"]))}

    def forward_dynamics(self) -> dict[str, Any]:
        a = self.state.forward_dynamics(list(self.given["tau"]), **self._world)
        return {"a": self._motion(a, self.given["tau"], self._bias)}

    def mass_matrix(self) -> dict[str, Any]:
        return {"mass_matrix": ("matrix", self.M, 1.0)}

    def bias_forces(self) -> dict[str, Any]:
        return {
            "forces": self._effort(self.state.inverse_dynamics([0] * self.robot.nv, self.given["gravity"]), self._swung)
        }

    def gravity_forces(self) -> dict[str, Any]:
        still = self.robot.at(self.given["q"])
        return {"forces": self._effort(still.inverse_dynamics([0] * self.robot.nv, self.given["gravity"]))}

    def computed_torque(self) -> dict[str, Any]:
        g = {name: vector(list(value)) for name, value in self.given.items()}
        a = [
            a + kd * (v_ref - v) + kp * (q_ref - q)
            for a, kd, v_ref, v, kp, q_ref, q in zip(
                *(g[n].entries() for n in ("a_ref", "kd", "v_ref", "v", "kp", "q_ref", "q")), strict=True
            )
        ]
        return {"tau": self._effort(self.state.inverse_dynamics(a, **self._world))}

    def momentum(self) -> dict[str, Any]:
        return {"p": self._effort(self.state.along(self.state.momentum))}

    def velocity_from_momentum(self) -> dict[str, Any]:
        v = self.state.mass_matrix.solve(vector(list(self.given["p"])))
        return {"v": self._motion(v, self.given["p"])}

    def _flow(self) -> tuple[Any, Any, Any]:
        v = self.state.mass_matrix.solve(vector(list(self.given["p"])))
        moving = State(self.robot, self.state.q, v.entries())
        rate = moving.momentum_rate(list(self.given["tau"]), **self._world)
        return v, rate, moving.momentum_turning

    def hamiltonian_flow(self) -> dict[str, Any]:
        v, rate, turning = self._flow()
        return {
            "v": self._motion(v, self.given["p"]),
            "p_dot": self._effort(rate, self.given["tau"], turning, *self.gravity_forces()["forces"][1:2]),
        }

    def momentum_rate(self) -> dict[str, Any]:
        return {"p_dot": self.hamiltonian_flow()["p_dot"]}

    def momentum_derivative(self) -> dict[str, Any]:
        turning = self.state.momentum_turning
        return {"p_dot": self._effort(self.state.momentum_derivative(list(self.given["a"])), turning, self._swung)}

    def equation_terms(self) -> dict[str, Any]:
        nothing, none = [0.0] * 3, [0] * self.robot.nv
        still = self.robot.at(self.given["q"])
        held = still.inverse_dynamics(none, self.given["gravity"])
        moved = self.state.inverse_dynamics(none, nothing)
        found = {
            "mass_matrix": ("matrix", self.M, 1.0),
            "velocity_forces": self._effort(-1 * moved, self._swung),
            "gravity_forces": self._effort(-1 * held),
            "efforts": self._effort(self.given["tau"]),
        }
        if self.acting is not None:
            found["external_forces"] = self._effort(still.along(still.inward(self.acting)))
        return found

    def step(self, method: str) -> dict[str, Any]:
        h = arb(float(self.given["dt"][0]))

        def rate(q: Any, v: Any) -> Any:
            at = State(self.robot, q.entries(), v.entries())
            return at.forward_dynamics(list(self.given["tau"]), **self._world)

        q, v = vector(list(self.given["q"])), vector(list(self.given["v"]))
        if method == "rk4":
            a1 = rate(q, v)
            v2 = v + a1 * (h / 2)
            a2 = rate(q + v * (h / 2), v2)
            v3 = v + a2 * (h / 2)
            a3 = rate(q + v2 * (h / 2), v3)
            v4 = v + a3 * h
            a4 = rate(q + v3 * h, v4)
            change_q, change_v = (v + 2 * (v2 + v3) + v4) * (h / 6), (a1 + 2 * (a2 + a3) + a4) * (h / 6)
            largest = np.max([np.abs(double(x)).ravel() for x in (v, v2, v3, v4)], axis=0) * float(h)
            accelerated = np.max([np.abs(double(x)).ravel() for x in (a1, a2, a3, a4)], axis=0) * float(h)
        else:
            change_v = rate(q, v) * h
            change_q = (v if method == "explicit_euler" else v + change_v) * h
            largest, accelerated = np.abs(double(change_q)).ravel(), np.abs(double(change_v)).ravel()
        q_next, v_next = double(q + change_q).ravel(), double(v + change_v).ravel()
        # Beside what was added, and what the efforts would have made of the lightest joint alone.
        pushed = float(h) * self._effort(self.given["tau"], self._bias)[2]
        return {
            "q": ("place", q_next, max((self.d * np.maximum(np.abs(q_next), largest)).max(), float(h) * pushed)),
            "v": ("place", v_next, max((self.d * np.maximum(np.abs(v_next), accelerated)).max(), pushed)),
        }

    def energy(self) -> dict[str, Any]:
        kinetic, potential = self.state.kinetic, self.state.potential(list(self.given["gravity"]))
        total = kinetic + potential
        return {
            "kinetic": self._number(kinetic),
            "potential": self._number(potential, self._weighed()),
            "total": self._number(total, abs(potential) + kinetic + self._weighed()),
        }

    def _weighed(self) -> Any:
        size = arb(0)
        for (R, p), mass, com in zip(self.state.poses, self.robot.mass, self.robot.com, strict=True):
            size += mass * sum(abs(x) for x in (p + R * com).entries()) * 10
        return size

    def hamiltonian(self) -> dict[str, Any]:
        v = self.state.mass_matrix.solve(vector(list(self.given["p"])))
        kinetic = (v.transpose() * vector(list(self.given["p"])))[0, 0] / 2
        potential = self.state.potential(list(self.given["gravity"]))
        return {
            "kinetic": self._number(kinetic),
            "potential": self._number(potential, self._weighed()),
            "hamiltonian": self._number(kinetic + potential, kinetic + self._weighed()),
        }

    def link_poses(self) -> dict[str, Any]:
        R = np.array([double(R) for R, _ in self.state.poses])
        return {"rotation": ("rows", R, 1.0), "position": self._rows([p for _, p in self.state.poses])}

    def constraint_forces(self) -> dict[str, Any]:
        a = self.state.forward_dynamics(list(self.given["tau"]), **self._world).entries()
        F = self.state.forces(a, **self._world)
        named = [i for i, joint in enumerate(self.robot.joints) if joint]
        return {"wrench": self._rows([F[i] for i in named], 6)}

    def link_motion(self) -> dict[str, Any]:
        a = list(self.given["a"])
        spatial = self.state.acceleration(a, vector([0] * 6))
        classical = []
        for A, V in zip(spatial, self.state.velocity, strict=True):
            turned = cross_force(stack(rows(V, 0, 3), vector([0] * 3)), stack(vector([0] * 3), rows(V, 3, 6)))
            classical.append(A + turned)
        return {
            "velocity": self._rows(self.state.velocity, 6),
            "acceleration": self._rows(classical, 6),
            "load": self._rows(self.state.forces(a, **self._world), 6),
        }
