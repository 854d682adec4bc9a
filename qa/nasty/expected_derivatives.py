"""The true derivatives of inverse and forward dynamics and of steps: differences of the reference, in 360 digits.

Columns are moved by 2^-300, which leaves 180 digits. Errors count like those of the mass matrix, on the scale of the
largest entry: a row of efforts over sqrt(M_ii), a row of motions as the efforts they need, a column by sqrt(M_jj) where
it moves a joint, and as what its efforts move where it is one of efforts.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_mat

from dyn_service.dynamics.midpoint import TOLERANCE
from qa.nasty.expected_points import ExpectedPoints, Point
from qa.nasty.reference import State, double, rows, skew, stack, vector

_MOVED = arb(2) ** -300


class Rate(NamedTuple):
    """a, (nv, 1), and its derivatives, (nv, nv)."""

    a: Any
    q: Any
    v: Any
    tau: Any


class ExpectedDerivatives(ExpectedPoints):
    """True answers of the derivatives."""

    def _slopes(self, q: list[Any], v: list[Any], a: list[Any]) -> list[arb_mat]:
        """Derivatives of the efforts with respect to q and v, (nv, nv) each; wrenches held in the links' axes."""
        return self._changes(lambda state: state.inverse_dynamics(a, **self._world), State(self.robot, q, v))

    def _changes(self, column: Callable[[State], Any], state_0: State) -> list[arb_mat]:
        """Derivatives of a column, (k, 1), with respect to q and v, (k, nv) each."""

        def column_at(q: list[Any], v: list[Any]) -> Any:
            state = copy(state_0) if q is state_0.q else State(self.robot, q, v)  # a copy keeps the poses
            state.v = v
            return column(state)

        return [
            _slope(lambda q: column_at(q, state_0.v), state_0.q),
            _slope(lambda v: column_at(state_0.q, v), state_0.v),
        ]

    @property
    def _here(self) -> State:
        return self.robot.at(self.inputs["q"], self.inputs["v"])

    def momentum_derivatives(self) -> dict[str, Any]:
        dq, _ = self._changes(lambda state: state.along(state.momentum), self._here)
        return {
            "p": self._effort(self.state.along(self.state.momentum)),
            "dp_dq": self._like("efforts", dq),
            "dp_dv": ("matrix", self.M, 1.0),
        }

    def joint_wrench_derivatives(self) -> dict[str, Any]:
        """Columns count over sqrt(M_jj), rows over the size of what hangs at the joint."""
        a, no_gravity = list(self.inputs["a"]), [0.0] * 3
        jointed_links = [i for i, joint in enumerate(self.robot.joints) if joint]

        def loads(F: Any) -> arb_mat:
            return vector([x for i in jointed_links for x in F[i].entries()])

        state_0 = self._here
        rest = self.robot.at(self.inputs["q"])
        dq, dv = self._changes(lambda state: loads(state.forces(a, **self._world)), state_0)
        da = _slope(lambda a: loads(rest.forces(a, no_gravity)), [arb(0)] * self.robot.nv)

        def changes(X: arb_mat) -> Any:
            value = double(X).reshape(len(jointed_links), 6, self.robot.nv)
            size = self.branch_sizes[jointed_links][:, :, None] * self.d
            return "rows", value, size * (np.abs(value / size).max(initial=0.0) or 1.0)

        wrench = state_0.forces(a, **self._world)
        parts = {"dwrench_dq": dq, "dwrench_dv": dv, "dwrench_da": da}
        return {
            "wrench": self._rows([wrench[i] for i in jointed_links]),
            **{name: changes(X) for name, X in parts.items()},
        }

    def energy_derivatives(self) -> dict[str, Any]:
        gravity, energy = list(self.inputs["gravity"]), self.energy()
        kinetic_dq, kinetic_dv = self._changes(lambda state: vector([state.kinetic]), self._here)
        potential_dq, _ = self._changes(lambda state: vector([state.potential(gravity)]), self._here)
        return {
            "kinetic": energy["kinetic"],
            "potential": energy["potential"],
            "dkinetic_dq": self._effort(kinetic_dq.transpose(), self._swung),
            "dkinetic_dv": self._effort(kinetic_dv.transpose()),
            "dpotential_dq": self._effort(potential_dq.transpose()),
        }

    def centroidal_derivatives(self) -> dict[str, Any]:
        """The first link is the world: what all add up to about its origin is about the world's."""
        a, zero_vector = list(self.inputs["a"]), [0.0] * 3
        mass = sum(self.robot.mass, arb(0))

        def centre(state: State) -> Any:
            places = zip(self.robot.mass, state.poses, self.robot.com, strict=True)
            return sum(((p + R * com) * m for m, (R, p), com in places), vector(zero_vector)) * (1 / mass)

        def about_centre(state: State, spatial: Any) -> Any:
            return stack(rows(spatial, 0, 3) - skew(centre(state)) * rows(spatial, 3, 6), rows(spatial, 3, 6))

        def momentum(state: State) -> Any:
            return about_centre(state, state.momentum[0])

        def rate(state: State) -> Any:
            return about_centre(state, state.forces(a, zero_vector)[0])

        state_0 = self._here
        jacobian, _ = self._changes(centre, state_0)
        of_momentum, of_rate = self._changes(momentum, state_0), self._changes(rate, state_0)
        names = ("jacobian", "dmomentum_dq", "dmomentum_dv", "drate_dq", "drate_dv")
        columns = zip(names, (jacobian, *of_momentum, *of_rate), strict=True)
        return {
            "centre": self._rows([centre(state_0)]),
            "momentum": self._rows([momentum(state_0)]),
            "rate": self._rows([rate(state_0)]),
            **{name: self._columns_of_one(double(X)) for name, X in columns},
        }

    def point_motion_derivatives(self, frame: str) -> dict[str, Any]:
        a, place = list(self.inputs["a"]), (self.inputs["link"], self.inputs["point"], frame)

        def moved(state: State) -> tuple[Any, Any]:
            point = Point(self.robot, state, *place)
            V = point.X * state.velocity[point.link]
            A = point.X * state.acceleration(a, vector([0] * 6))[point.link]
            frame_rotation_term = skew(rows(V, 0, 3)) * rows(V, 3, 6) if frame == "world_aligned" else vector([0] * 3)
            return V, A + stack(vector([0] * 3), frame_rotation_term)

        state_0 = self._here
        dV, J = self._changes(lambda state: moved(state)[0], state_0)
        dA_dq, dA_dv = self._changes(lambda state: moved(state)[1], state_0)
        columns = {"jacobian": J, "dvelocity_dq": dV, "dacceleration_dq": dA_dq, "dacceleration_dv": dA_dv}
        V, A = moved(state_0)
        return {
            "velocity": self._rows([V]),
            "acceleration": self._rows([A]),
            **{name: self._columns_of_one(double(X)) for name, X in columns.items()},
        }

    @cached_property
    def _first(self) -> Rate:
        """At the state itself."""
        return self._rate(*(vector(list(self.inputs[name])) for name in ("q", "v")))

    def _rate(self, q: Any, v: Any) -> Rate:
        state, n = State(self.robot, q.entries(), v.entries()), self.robot.nv
        a = state.forward_dynamics(list(self.inputs["tau"]), **self._world)
        slopes = self._slopes(q.entries(), v.entries(), a.entries())
        inverse = state.mass_matrix.solve(_eye(n))
        return Rate(a, *(inverse * slope * (-1) for slope in slopes), inverse)

    def _like(self, kind: str, value: Any) -> Any:
        """On the scale of the largest entry, counted as `kind` does."""
        array = double(value) if isinstance(value, arb_mat) else value
        return kind, array, float(np.abs(self.counted(kind, array)).max(initial=0.0)) or 1.0

    def inverse_dynamics_derivatives(self) -> dict[str, Any]:
        q, v, a = (vector(list(self.inputs[name])).entries() for name in ("q", "v", "a"))
        dq, dv = self._slopes(q, v, a)
        return {
            "tau": self._effort(self._tau(self.inputs["a"])),
            "dtau_dq": self._like("efforts", dq),
            "dtau_dv": self._like("efforts", dv),
            "dtau_da": ("matrix", self.M, 1.0),
        }

    def forward_dynamics_derivatives(self) -> dict[str, Any]:
        slopes = self._first
        return {
            "a": self._motion(slopes.a, self.inputs["tau"], self._bias),
            "da_dq": self._like("motions", slopes.q),
            "da_dv": self._like("motions", slopes.v),
            "da_dtau": self._like("mobility", slopes.tau),
        }

    def inverse_dynamics_hessian(self) -> dict[str, Any]:
        a, weights = (vector(list(self.inputs[name])) for name in ("a", "weights"))
        return self._second(
            "a",
            lambda state: state.mass_matrix * weights,
            lambda state, _: weights.transpose() * state.inverse_dynamics(a.entries(), **self._world),
        )

    def forward_dynamics_hessian(self) -> dict[str, Any]:
        tau, weights = (vector(list(self.inputs[name])) for name in ("tau", "weights"))
        zero_a = [0] * self.robot.nv
        return self._second(
            "tau",
            lambda state: state.mass_matrix.solve(weights),
            lambda state, mu: mu.transpose() * (tau - state.inverse_dynamics(zero_a, **self._world)),
        )

    def _second(self, x: str, by_x: Callable[[State], Any], f: Callable[[State, Any], Any]) -> dict[str, Any]:
        """The gradient and the Hessian of f, (1, 1), a function of a state and of its gradient by x, (nv, 1).

        By one-sided differences, right to 2^-300 of the third derivatives: less than 1e-60 is zero.
        """
        n = self.robot.nv
        start = [vector(list(self.inputs[name])).entries() for name in ("q", "v")]
        moved_states: dict[int, tuple[State, Any]] = {}  # by a number for each choice of moved entries of q

        def moved_state(*moved_entries: int) -> tuple[State, Any]:
            q, v = (
                [x + _MOVED * moved_entries.count(k + n * part) for k, x in enumerate(start[part])] for part in (0, 1)
            )
            key = sum((2 * n) ** (k + 1) for k in moved_entries if k < n)
            if key not in moved_states:
                moving = State(self.robot, q, start[1])
                moved_states[key] = moving, by_x(copy(moving))
            state = copy(moved_states[key][0])
            state.v = v
            return state, moved_states[key][1]

        value_0, moved_values = f(*moved_state())[0, 0], [f(*moved_state(k))[0, 0] for k in range(2 * n)]

        def block(row: int, column: int) -> arb_mat:
            pairs = [(i + n * row, k + n * column) for i in range(n) for k in range(n)]
            second_differences = {
                pair: (f(*moved_state(*pair))[0, 0] - moved_values[pair[0]] - moved_values[pair[1]] + value_0)
                / _MOVED**2
                for pair in {tuple(sorted(pair)) for pair in pairs}
            }
            return arb_mat(n, n, [second_differences[min(pair), max(pair)] for pair in pairs])

        first = moved_state()[1]
        rows = [(moved_state(k)[1] - first) * (1 / _MOVED) for k in range(n)]
        mixed = arb_mat(n, n, [row[k, 0] for row in rows for k in range(n)])
        slopes = np.array([float(((x - value_0) / _MOVED).mid()) for x in moved_values])

        def nonzero(array: Any) -> Any:
            return np.where(np.abs(array) < 1e-60, 0.0, array)

        def like(kind: str, value: arb_mat) -> Any:
            return self._like(kind, nonzero(double(value)))

        return {
            "gradient_q": self._effort(nonzero(slopes[:n])),
            "gradient_v": self._effort(nonzero(slopes[n:])),
            f"gradient_{x}": self._effort(first) if x == "a" else self._motion(first, self.inputs["weights"]),
            "hessian_qq": like("efforts", block(0, 0)),
            "hessian_qv": like("efforts", block(0, 1)),
            "hessian_vv": like("efforts", block(1, 1)),
            f"hessian_q{x}": like("efforts" if x == "a" else "by efforts", mixed),
        }

    def _midpoint(self) -> list[list[Any]] | None:
        """q and v after an implicit midpoint step, each with its changes with q, v and tau; None: it is not found.

        The midpoint by Newton's method to 40 digits; changes by the implicit function, from differences.
        """
        n, h = self.robot.nv, arb(float(self.inputs["dt"][0])) / 2
        start = [vector(list(self.inputs[name])).entries() for name in ("q", "v", "tau")]

        def positions(q: list[Any], middle: list[Any], duration: Any) -> list[Any]:
            return [x + duration * y for x, y in zip(q, middle, strict=True)]

        def left(p: Any, q: list[Any], tau: list[Any], middle: list[Any]) -> tuple[Any, Any]:
            """The residual, and the impulse."""
            mid_state = State(self.robot, positions(q, middle, h), middle)
            impulse = mid_state.momentum_rate(tau, **self._world) * h
            return mid_state.mass_matrix * vector(middle) - p - impulse, impulse

        p_0, middle = self.state.mass_matrix * vector(start[1]), start[1]
        for count in range(8):
            r, impulse = left(p_0, start[0], start[2], middle)
            missing = np.abs(double(r)).max() / max(np.abs(double(x)).max() for x in (p_0, impulse))
            if count == 5 and not missing <= TOLERANCE:  # as the kernel finds, after five steps
                return None
            if missing <= 1e-45:
                break
            try:
                step = _slope(lambda x: left(p_0, start[0], start[2], x)[0], middle).solve(r).entries()
            except ZeroDivisionError:  # far away, where balls are large
                return None
            middle = [arb((x - y).mid()) for x, y in zip(middle, step, strict=True)]
        unknowns = [*start, middle]

        def both(q: list[Any], v: list[Any], tau: list[Any], middle: list[Any]) -> Any:
            """The residual, and v after the step."""
            p = State(self.robot, q, v).mass_matrix * vector(v)
            r, impulse = left(p, q, tau, middle)
            mass_matrix_next = State(self.robot, positions(q, middle, 2 * h), v).mass_matrix
            return stack(r, mass_matrix_next.solve(p + impulse * 2))

        slopes = [_slope(lambda x, k=k: both(*unknowns[:k], x, *unknowns[k + 1 :]), unknowns[k]) for k in range(4)]
        *of_r, J = (rows(slope, 0, n) for slope in slopes)
        *of_v, by_middle = (rows(slope, n, 2 * n) for slope in slopes)
        of_middle = [J.solve(x * (-1)) for x in of_r]
        changes = [x * (2 * h) for x in of_middle]
        q_next, v_next = vector(positions(start[0], middle, 2 * h)), rows(both(*unknowns), n, 2 * n)
        return [
            [q_next, _eye(n) + changes[0], *changes[1:]],
            [v_next, *(x + by_middle * y for x, y in zip(of_v, of_middle, strict=True))],
        ]

    def step_derivatives(self, method: str) -> dict[str, Any]:
        if method == "implicit_midpoint":
            ends = self._midpoint()
            if ends is None:
                return {name: ("none", np.zeros(n), None) for name, n in (("q", self.robot.nv), ("v", self.robot.nv))}
            scales = (np.abs(np.asarray(self.inputs[name])) for name in "qv")
            return {**self._reached(ends[0][0], ends[1][0], *scales), **self._of_ends(ends)}
        n, h = self.robot.nv, arb(float(self.inputs["dt"][0]))
        q, v = (vector(list(self.inputs[name])) for name in ("q", "v"))
        eye, zero_matrix = _eye(n), arb_mat(n, n)

        def stage(k_q: Any, k_v: Any, duration: arb) -> tuple[Any, Any, list[Any], list[Any]]:
            """Rates of q and v at the state moved so far, and their changes with q, v and tau."""
            at_q, at_v = (
                [entry + rate * duration for entry, rate in zip(*entries_and_rates, strict=True)]
                for entries_and_rates in (k_q, k_v)
            )
            slopes = self._rate(at_q[0], at_v[0]) if duration != 0 else self._first
            pushed = (zero_matrix, zero_matrix, slopes.tau)
            changes = [slopes.q * x + slopes.v * y + z for x, y, z in zip(at_q[1:], at_v[1:], pushed, strict=True)]
            return at_v[0], slopes.a, at_v[1:], changes

        start = ([q, eye, zero_matrix, zero_matrix], [v, zero_matrix, eye, zero_matrix])
        zero_rate = [vector([0] * n), zero_matrix, zero_matrix, zero_matrix]
        weights, parts = {"rk4": ((1, 2, 2, 1), (0, h / 2, h / 2, h))}.get(method, ((6,), (0,)))
        rates, sums = (zero_rate, zero_rate), [[x * 0 for x in zero_rate], [x * 0 for x in zero_rate]]
        for weight, part in zip(weights, parts, strict=True):
            rate_q, rate_v, changes_q, changes_v = stage((start[0], rates[0]), (start[1], rates[1]), arb(part))
            rates = ([rate_q, *changes_q], [rate_v, *changes_v])
            sums = [
                [x + y * weight for x, y in zip(*sum_and_rate, strict=True)]
                for sum_and_rate in zip(sums, rates, strict=True)
            ]
        ends = [
            [x + y * (h / 6) for x, y in zip(*start_and_sum, strict=True)]
            for start_and_sum in zip(start, sums, strict=True)
        ]
        if method == "semi_implicit_euler":
            ends[0] = [x + y * h for x, y in zip(start[0], ends[1], strict=True)]
        return {**self.step(method), **self._of_ends(ends)}

    def _of_ends(self, ends: list[list[Any]]) -> dict[str, Any]:
        by_kind = [[self._like(kind, x) for kind, x in zip(KINDS, end[1:], strict=True)] for end in ends]
        # The scale includes the forces that velocities make, since their changes with q cancel in planar robots.
        kind, value, scale = by_kind[1][0]
        swung = float(self.inputs["dt"][0]) * float((self._swung / self.d).max() / self.d.max())
        by_kind[1][0] = kind, value, max(scale, swung)
        return {
            "dx_dx": ("parts", [kinds[:2] for kinds in by_kind], None),
            "dx_dtau": ("parts", [kinds[2:] for kinds in by_kind], None),
        }


KINDS = ("motions", "motions", "mobility")
"""How changes of q and v with q, v and tau are counted."""


def _slope(f: Callable[[list[Any]], Any], x: list[Any]) -> arb_mat:
    """The derivative of a column, (k, 1), with respect to each of the entries of x, (k, n)."""

    def moved(k: int, step: arb) -> list[Any]:
        return [*x[:k], x[k] + step, *x[k + 1 :]]

    # At 1200 bits: the truncation of central differences of 2^-300 is 2^-600, their rounding 2^-900.
    columns = [(f(moved(k, _MOVED)) - f(moved(k, -_MOVED))) * (1 / (2 * _MOVED)) for k in range(len(x))]
    height = columns[0].nrows() if x else 0
    return arb_mat(height, len(x), [column[i, 0] for i in range(height) for column in columns])


def _eye(n: int) -> arb_mat:
    return arb_mat(n, n, [int(i == j) for i in range(n) for j in range(n)])
