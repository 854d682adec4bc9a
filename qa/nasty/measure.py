"""How wrong every query is, on each joint's and body's own scale, against the fifty-digit reference.

An error relative to the largest torque hides a finger behind a shoulder; `scales.py` says what counts instead. Here are
the states, and the true answers of the queries on joints; those on links are in `expected_links.py`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from flint import arb

from dyn_service.api.queries import DEFAULT_GRAVITY, Wrench
from qa.nasty.expected_points import moving
from qa.nasty.expected_regressors import ExpectedRegressors
from qa.nasty.reference import Array, ExactRobot, State, double, vector
from qa.nasty.scales import sizes_of

GRAVITY = (0.3, -0.2, -9.81)

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


def states(robot: ExactRobot, seed: int) -> list[dict[str, Any]]:
    """Inputs of every name, for states small and large; external wrenches on two links."""
    # A stream for each kind of input, so that a further input leaves the others and with them the published table as
    # they are.
    rng, wrench_rng, mounting, weighting = (np.random.default_rng([stream, seed]) for stream in (7, 8, 9, 10))
    drawn_states = []
    for q_size, v_size, a_size, effort, gravity_kind in STATES:
        q, q_ref = q_size * rng.uniform(-1, 1, (2, robot.nv))
        v, v_ref = v_size * rng.normal(size=(2, robot.nv))
        a, a_ref = a_size * rng.normal(size=(2, robot.nv))
        state = robot.at(q)
        # Efforts in the joints' own units: with equal numbers a gear of a milligram would decide nothing.
        scale = np.sqrt(np.diag(double(state.mass_matrix)))
        tau, p = effort * scale * rng.normal(size=(2, robot.nv))
        inputs = {"q": q, "v": v, "a": a, "tau": tau, "p": p, "q_ref": q_ref, "v_ref": v_ref, "a_ref": a_ref}
        inputs["q_to"] = q_ref
        inputs["weights"] = weighting.normal(size=robot.nv) / scale
        inputs |= {"kp": rng.uniform(1, 100, robot.nv), "kd": rng.uniform(1, 20, robot.nv), "dt": np.array([1e-3])}
        inputs["gravity"] = np.array(
            DEFAULT_GRAVITY if gravity_kind is None else GRAVITY if gravity_kind else (0.0, 0.0, 0.0)
        )
        inputs["rpy"] = mounting.uniform(-3, 3, 3)
        # Of the smallest size of what hangs anywhere: a lever of another robot's length would hide this one's moments.
        lengths = [size[0] / size[3] for size in sizes_of(state.composite) if size.all()]
        inputs["xyz"] = min(lengths) * mounting.normal(size=3)
        inputs["link"] = robot.links[int(mounting.choice([i for i, k in enumerate(robot.dof) if k >= 0]))]
        inputs["point"] = inputs["xyz"]
        inputs["directions"] = moving(robot, state, inputs["link"], inputs["point"])
        inputs["wrenches"] = _wrenches(robot, state, effort or 1.0, wrench_rng)
        drawn_states.append(inputs)
    return drawn_states


def _wrenches(robot: ExactRobot, state: State, effort: float, rng: np.random.Generator) -> list[Wrench]:
    """At points of two links, in efforts as the joints' are, in the units that what hangs there gives.

    One link moves, the other is any but the root. In the axes of the world, of the link or of another link.
    """
    wrenches = []
    moving = [i for i, k in enumerate(robot.dof) if k >= 0]
    for i in (int(rng.choice(moving)), int(rng.integers(1, len(robot.links)))):
        carrying = i  # a plate without inertia is pushed as what carries it would be
        while not (size := sizes_of([state.composite[carrying]])[0]).all():
            carrying = robot.parent[carrying]
        torque, force, point = rng.normal(size=(3, 3))
        frame = ("world", robot.links[i], robot.links[rng.integers(len(robot.links))])[rng.integers(3)]
        pushed = effort * size[0] * torque, effort * size[3] * force
        wrenches.append(Wrench(robot.links[i], *pushed, point * size[0] / size[3], frame))
    return wrenches


class Expected(ExpectedRegressors):
    """The true answers at one state, and the scales on which errors count."""

    by_method = (
        "step",
        "step_derivatives",
        "influence_operators",
        "force_torque",
        "point_motion",
        "point_motion_derivatives",
        "operational_space",
    )

    @property
    def _bias(self) -> Any:
        return self.state.inverse_dynamics([0] * self.robot.nv, **self._world)

    def _tau(self, a: Array) -> Any:
        return self.state.inverse_dynamics(list(a), **self._world)

    def inverse_dynamics(self) -> dict[str, Any]:
        return {"tau": self._effort(self._tau(self.inputs["a"]))}

    def forward_dynamics(self) -> dict[str, Any]:
        a = self.state.forward_dynamics(list(self.inputs["tau"]), **self._world)
        return {"a": self._motion(a, self.inputs["tau"], self._bias)}

    def mass_matrix(self) -> dict[str, Any]:
        return {"mass_matrix": ("matrix", self.M, 1.0)}

    def bias_forces(self) -> dict[str, Any]:
        return {
            "forces": self._effort(
                self.state.inverse_dynamics([0] * self.robot.nv, self.inputs["gravity"]), self._swung
            )
        }

    def gravity_forces(self) -> dict[str, Any]:
        rest = self.robot.at(self.inputs["q"])
        return {"forces": self._effort(rest.inverse_dynamics([0] * self.robot.nv, self.inputs["gravity"]))}

    def computed_torque(self) -> dict[str, Any]:
        """The error of a continuous joint is the shorter way round."""
        names = ("a_ref", "kd", "v_ref", "v", "kp", "q_ref", "q")
        joints = zip(self.robot.wraps, *(vector(list(self.inputs[name])).entries() for name in names), strict=True)
        a = []
        for wraps, a_ref, kd, v_ref, v, kp, q_ref, q in joints:
            turns = round(float((q_ref - q).mid()) / math.tau) if wraps else 0
            a.append(a_ref + kd * (v_ref - v) + kp * (q_ref - q - 2 * turns * arb.pi()))
        return {"tau": self._effort(self.state.inverse_dynamics(a, **self._world))}

    def integrate(self) -> dict[str, Any]:
        q, v = vector(list(self.inputs["q"])), vector(list(self.inputs["v"]))
        q_next = double(q + v * arb(float(self.inputs["dt"][0]))).ravel()
        return {"q": ("rows", q_next, float(np.abs(q_next).max(initial=1e-300)))}

    def difference(self) -> dict[str, Any]:
        # Compared with the positions: a difference of two roundings is no better than they.
        q, q_to = (vector(list(self.inputs[name])) for name in ("q", "q_to"))
        return {"v": ("rows", double(q_to - q).ravel(), float(np.abs(self.inputs["q"]).max(initial=1e-300)))}

    def momentum(self) -> dict[str, Any]:
        return {"p": self._effort(self.state.along(self.state.momentum))}

    def velocity_from_momentum(self) -> dict[str, Any]:
        v = self.state.mass_matrix.solve(vector(list(self.inputs["p"])))
        return {"v": self._motion(v, self.inputs["p"])}

    def _flow(self) -> tuple[Any, Any, Any]:
        v = self.state.mass_matrix.solve(vector(list(self.inputs["p"])))
        moving = State(self.robot, self.state.q, v.entries())
        rate = moving.momentum_rate(list(self.inputs["tau"]), **self._world)
        return v, rate, moving.momentum_turning

    def hamiltonian_flow(self) -> dict[str, Any]:
        v, rate, turning = self._flow()
        rest = self.robot.at(self.inputs["q"])
        load = [] if self.acting is None else [rest.along(rest.inward(self.acting))]
        return {
            "v": self._motion(v, self.inputs["p"]),
            "p_dot": self._effort(rate, self.inputs["tau"], turning, *self.gravity_forces()["forces"][1:2], *load),
        }

    def momentum_rate(self) -> dict[str, Any]:
        return {"p_dot": self.hamiltonian_flow()["p_dot"]}

    def momentum_derivative(self) -> dict[str, Any]:
        turning = self.state.momentum_turning
        return {"p_dot": self._effort(self.state.momentum_derivative(list(self.inputs["a"])), turning, self._swung)}

    def equation_terms(self) -> dict[str, Any]:
        no_gravity, zero_rates = [0.0] * 3, [0] * self.robot.nv
        rest = self.robot.at(self.inputs["q"])
        gravity_efforts = rest.inverse_dynamics(zero_rates, self.inputs["gravity"])
        velocity_efforts = self.state.inverse_dynamics(zero_rates, no_gravity)
        none_acting = np.zeros(self.robot.nv)
        pushed = none_acting if self.acting is None else rest.along(rest.inward(self.acting))
        return {
            "mass_matrix": ("matrix", self.M, 1.0),
            "velocity_forces": self._effort(-1 * velocity_efforts, self._swung),
            "gravity_forces": self._effort(-1 * gravity_efforts),
            "efforts": self._effort(self.inputs["tau"]),
            "external_forces": self._effort(pushed),
            "passive_forces": self._effort(none_acting),
        }

    def passive_forces(self) -> dict[str, Any]:
        """None: no frame has a bearing on what joints do by themselves, so these do nothing."""
        zero_efforts = np.zeros(self.robot.nv)
        efforts = {part: self._effort(zero_efforts) for part in ("damping", "friction", "springs")}
        return efforts | {part: self._number(arb(0), arb(1)) for part in ("stored", "dissipated")}

    def step(self, method: str) -> dict[str, Any]:
        h = arb(float(self.inputs["dt"][0]))

        def rate(q: Any, v: Any) -> Any:
            state = State(self.robot, q.entries(), v.entries())
            return state.forward_dynamics(list(self.inputs["tau"]), **self._world)

        q, v = vector(list(self.inputs["q"])), vector(list(self.inputs["v"]))
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
        return self._reached(q + change_q, v + change_v, largest, accelerated)

    def _reached(self, q: Any, v: Any, largest: Any = 0.0, accelerated: Any = 0.0) -> dict[str, Any]:
        """q and v after a step. largest, accelerated: what was added to them at most."""
        h, q_next, v_next = float(self.inputs["dt"][0]), double(q).ravel(), double(v).ravel()
        # Compared with what was added, and what the efforts would have made of the lightest joint alone.
        pushed = h * self._effort(self.inputs["tau"], self._bias)[2]
        return {
            "q": ("place", q_next, max((self.d * np.maximum(np.abs(q_next), largest)).max(), h * pushed)),
            "v": ("place", v_next, max((self.d * np.maximum(np.abs(v_next), accelerated)).max(), pushed)),
        }

    def energy(self) -> dict[str, Any]:
        kinetic, potential = self.state.kinetic, self.state.potential(list(self.inputs["gravity"]))
        total = kinetic + potential
        return {
            "kinetic": self._number(kinetic),
            "potential": self._number(potential, self._weighed()),
            "total": self._number(total, abs(potential) + kinetic + self._weighed()),
            "lagrangian": self._number(kinetic - potential, abs(potential) + kinetic + self._weighed()),
        }

    def _weighed(self) -> Any:
        size = arb(0)
        for (R, p), mass, com in zip(self.state.poses, self.robot.mass, self.robot.com, strict=True):
            size += mass * sum(abs(x) for x in (p + R * com).entries()) * 10
        return size

    def hamiltonian(self) -> dict[str, Any]:
        v = self.state.mass_matrix.solve(vector(list(self.inputs["p"])))
        kinetic = (v.transpose() * vector(list(self.inputs["p"])))[0, 0] / 2
        potential = self.state.potential(list(self.inputs["gravity"]))
        return {
            "kinetic": self._number(kinetic),
            "potential": self._number(potential, self._weighed()),
            "hamiltonian": self._number(kinetic + potential, kinetic + self._weighed()),
        }
