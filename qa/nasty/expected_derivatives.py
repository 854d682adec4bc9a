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
        return self._changes(lambda at: at.inverse_dynamics(a, **self._world), State(self.robot, q, v))

    def _changes(self, of: Callable[[State], Any], here: State) -> list[arb_mat]:
        """Derivatives of a column, (k, 1), with respect to q and v, (k, nv) each."""

        def at(q: list[Any], v: list[Any]) -> Any:
            state = copy(here) if q is here.q else State(self.robot, q, v)  # a copy keeps the poses
            state.v = v
            return of(state)

        return [_slope(lambda q: at(q, here.v), here.q), _slope(lambda v: at(here.q, v), here.v)]

    @property
    def _here(self) -> State:
        return self.robot.at(self.given["q"], self.given["v"])

    def momentum_derivatives(self) -> dict[str, Any]:
        dq, _ = self._changes(lambda at: at.along(at.momentum), self._here)
        return {
            "p": self._effort(self.state.along(self.state.momentum)),
            "dp_dq": self._like("efforts", dq),
            "dp_dv": ("matrix", self.M, 1.0),
        }

    def joint_wrench_derivatives(self) -> dict[str, Any]:
        """Columns count over sqrt(M_jj), rows over the size of what hangs at the joint."""
        a, nothing = list(self.given["a"]), [0.0] * 3
        named = [i for i, joint in enumerate(self.robot.joints) if joint]

        def loads(F: Any) -> arb_mat:
            return vector([x for i in named for x in F[i].entries()])

        here = self._here
        still = self.robot.at(self.given["q"])
        dq, dv = self._changes(lambda at: loads(at.forces(a, **self._world)), here)
        da = _slope(lambda a: loads(still.forces(a, nothing)), [arb(0)] * self.robot.nv)

        def changes(X: arb_mat) -> Any:
            value = double(X).reshape(len(named), 6, self.robot.nv)
            size = self.branch_sizes[named][:, :, None] * self.d
            return "rows", value, size * (np.abs(value / size).max(initial=0.0) or 1.0)

        wrench = here.forces(a, **self._world)
        parts = {"dwrench_dq": dq, "dwrench_dv": dv, "dwrench_da": da}
        return {"wrench": self._rows([wrench[i] for i in named]), **{name: changes(X) for name, X in parts.items()}}

    def energy_derivatives(self) -> dict[str, Any]:
        gravity, energy = list(self.given["gravity"]), self.energy()
        dq, dv = self._changes(lambda at: vector([at.kinetic]), self._here)
        held, _ = self._changes(lambda at: vector([at.potential(gravity)]), self._here)
        return {
            "kinetic": energy["kinetic"],
            "potential": energy["potential"],
            "dkinetic_dq": self._effort(dq.transpose(), self._swung),
            "dkinetic_dv": self._effort(dv.transpose()),
            "dpotential_dq": self._effort(held.transpose()),
        }

    def centroidal_derivatives(self) -> dict[str, Any]:
        """The first link is the world: what all add up to about its origin is about the world's."""
        a, nothing = list(self.given["a"]), [0.0] * 3
        mass = sum(self.robot.mass, arb(0))

        def centre(at: State) -> Any:
            places = zip(self.robot.mass, at.poses, self.robot.com, strict=True)
            return sum(((p + R * com) * m for m, (R, p), com in places), vector(nothing)) * (1 / mass)

        def about_centre(at: State, of: Any) -> Any:
            return stack(rows(of, 0, 3) - skew(centre(at)) * rows(of, 3, 6), rows(of, 3, 6))

        def momentum(at: State) -> Any:
            return about_centre(at, at.momentum[0])

        def rate(at: State) -> Any:
            return about_centre(at, at.forces(a, nothing)[0])

        here = self._here
        jacobian, _ = self._changes(centre, here)
        of_momentum, of_rate = self._changes(momentum, here), self._changes(rate, here)
        names = ("jacobian", "dmomentum_dq", "dmomentum_dv", "drate_dq", "drate_dv")
        columns = zip(names, (jacobian, *of_momentum, *of_rate), strict=True)
        return {
            "centre": self._rows([centre(here)]),
            "momentum": self._rows([momentum(here)]),
            "rate": self._rows([rate(here)]),
            **{name: self._columns_of_one(double(X)) for name, X in columns},
        }

    def point_motion_derivatives(self, frame: str) -> dict[str, Any]:
        a, place = list(self.given["a"]), (self.given["link"], self.given["point"], frame)

        def moved(at: State) -> tuple[Any, Any]:
            point = Point(self.robot, at, *place)
            V = point.X * at.velocity[point.link]
            A = point.X * at.acceleration(a, vector([0] * 6))[point.link]
            lost = skew(rows(V, 0, 3)) * rows(V, 3, 6) if frame == "world_aligned" else vector([0] * 3)
            return V, A + stack(vector([0] * 3), lost)

        here = self._here
        dV, J = self._changes(lambda at: moved(at)[0], here)
        dA_dq, dA_dv = self._changes(lambda at: moved(at)[1], here)
        columns = {"jacobian": J, "dvelocity_dq": dV, "dacceleration_dq": dA_dq, "dacceleration_dv": dA_dv}
        V, A = moved(here)
        return {
            "velocity": self._rows([V]),
            "acceleration": self._rows([A]),
            **{name: self._columns_of_one(double(X)) for name, X in columns.items()},
        }

    @cached_property
    def _first(self) -> Rate:
        """At the state itself."""
        return self._rate(*(vector(list(self.given[name])) for name in ("q", "v")))

    def _rate(self, q: Any, v: Any) -> Rate:
        at, n = State(self.robot, q.entries(), v.entries()), self.robot.nv
        a = at.forward_dynamics(list(self.given["tau"]), **self._world)
        slopes = self._slopes(q.entries(), v.entries(), a.entries())
        inverse = at.mass_matrix.solve(_eye(n))
        return Rate(a, *(inverse * slope * (-1) for slope in slopes), inverse)

    def _like(self, kind: str, value: Any) -> Any:
        """On the scale of the largest entry, counted as `kind` does."""
        array = double(value) if isinstance(value, arb_mat) else value
        return kind, array, float(np.abs(self.counted(kind, array)).max(initial=0.0)) or 1.0

    def inverse_dynamics_derivatives(self) -> dict[str, Any]:
        q, v, a = (vector(list(self.given[name])).entries() for name in ("q", "v", "a"))
        dq, dv = self._slopes(q, v, a)
        return {
            "tau": self._effort(self._tau(self.given["a"])),
            "dtau_dq": self._like("efforts", dq),
            "dtau_dv": self._like("efforts", dv),
            "dtau_da": ("matrix", self.M, 1.0),
        }

    def forward_dynamics_derivatives(self) -> dict[str, Any]:
        of = self._first
        return {
            "a": self._motion(of.a, self.given["tau"], self._bias),
            "da_dq": self._like("motions", of.q),
            "da_dv": self._like("motions", of.v),
            "da_dtau": self._like("mobility", of.tau),
        }

    def inverse_dynamics_hessian(self) -> dict[str, Any]:
        a, weights = (vector(list(self.given[name])) for name in ("a", "weights"))
        return self._second(
            "a",
            lambda at: at.mass_matrix * weights,
            lambda at, _: weights.transpose() * at.inverse_dynamics(a.entries(), **self._world),
        )

    def forward_dynamics_hessian(self) -> dict[str, Any]:
        tau, weights = (vector(list(self.given[name])) for name in ("tau", "weights"))
        still = [0] * self.robot.nv
        return self._second(
            "tau",
            lambda at: at.mass_matrix.solve(weights),
            lambda at, mu: mu.transpose() * (tau - at.inverse_dynamics(still, **self._world)),
        )

    def _second(self, x: str, by_x: Callable[[State], Any], f: Callable[[State, Any], Any]) -> dict[str, Any]:
        """The gradient and the Hessian of f, (1, 1), a function of a state and of its gradient by x, (nv, 1).

        By one-sided differences, right to 2^-300 of the third derivatives: less than 1e-60 is zero.
        """
        n = self.robot.nv
        start = [vector(list(self.given[name])).entries() for name in ("q", "v")]
        turned: dict[int, tuple[State, Any]] = {}  # by a number of the moved entries of q

        def at(*moved: int) -> tuple[State, Any]:
            q, v = ([x + _MOVED * moved.count(k + n * of) for k, x in enumerate(start[of])] for of in (0, 1))
            key = sum((2 * n) ** (k + 1) for k in moved if k < n)
            if key not in turned:
                moving = State(self.robot, q, start[1])
                turned[key] = moving, by_x(copy(moving))
            state = copy(turned[key][0])
            state.v = v
            return state, turned[key][1]

        here, once = f(*at())[0, 0], [f(*at(k))[0, 0] for k in range(2 * n)]

        def block(row: int, column: int) -> arb_mat:
            pairs = [(i + n * row, k + n * column) for i in range(n) for k in range(n)]
            found = {
                of: (f(*at(*of))[0, 0] - once[of[0]] - once[of[1]] + here) / _MOVED**2
                for of in {tuple(sorted(pair)) for pair in pairs}
            }
            return arb_mat(n, n, [found[min(pair), max(pair)] for pair in pairs])

        first = at()[1]
        rows = [(at(k)[1] - first) * (1 / _MOVED) for k in range(n)]
        mixed = arb_mat(n, n, [row[k, 0] for row in rows for k in range(n)])
        slopes = np.array([float(((x - here) / _MOVED).mid()) for x in once])

        def nonzero(array: Any) -> Any:
            return np.where(np.abs(array) < 1e-60, 0.0, array)

        def like(kind: str, value: arb_mat) -> Any:
            return self._like(kind, nonzero(double(value)))

        return {
            "gradient_q": self._effort(nonzero(slopes[:n])),
            "gradient_v": self._effort(nonzero(slopes[n:])),
            f"gradient_{x}": self._effort(first) if x == "a" else self._motion(first, self.given["weights"]),
            "hessian_qq": like("efforts", block(0, 0)),
            "hessian_qv": like("efforts", block(0, 1)),
            "hessian_vv": like("efforts", block(1, 1)),
            f"hessian_q{x}": like("efforts" if x == "a" else "by efforts", mixed),
        }

    def _midpoint(self) -> list[list[Any]] | None:
        """q and v after an implicit midpoint step, each with its changes with q, v and tau; None: it is not found.

        The midpoint by Newton's method to 40 digits; changes by the implicit function, from differences.
        """
        n, h = self.robot.nv, arb(float(self.given["dt"][0])) / 2
        start = [vector(list(self.given[name])).entries() for name in ("q", "v", "tau")]

        def moved(q: list[Any], middle: list[Any], by: Any) -> list[Any]:
            return [x + by * y for x, y in zip(q, middle, strict=True)]

        def left(p: Any, q: list[Any], tau: list[Any], middle: list[Any]) -> tuple[Any, Any]:
            """The residual, and the impulse."""
            at = State(self.robot, moved(q, middle, h), middle)
            impulse = at.momentum_rate(tau, **self._world) * h
            return at.mass_matrix * vector(middle) - p - impulse, impulse

        before, middle = self.state.mass_matrix * vector(start[1]), start[1]
        for count in range(8):
            r, impulse = left(before, start[0], start[2], middle)
            missing = np.abs(double(r)).max() / max(np.abs(double(x)).max() for x in (before, impulse))
            if count == 5 and not missing <= TOLERANCE:  # as the kernel finds, after five steps
                return None
            if missing <= 1e-45:
                break
            try:
                step = _slope(lambda x: left(before, start[0], start[2], x)[0], middle).solve(r).entries()
            except ZeroDivisionError:  # far away, where balls are large
                return None
            middle = [arb((x - y).mid()) for x, y in zip(middle, step, strict=True)]
        given = [*start, middle]

        def both(q: list[Any], v: list[Any], tau: list[Any], middle: list[Any]) -> Any:
            """The residual, and v after the step."""
            p = State(self.robot, q, v).mass_matrix * vector(v)
            r, impulse = left(p, q, tau, middle)
            after = State(self.robot, moved(q, middle, 2 * h), v).mass_matrix.solve(p + impulse * 2)
            return stack(r, after)

        slopes = [_slope(lambda x, k=k: both(*given[:k], x, *given[k + 1 :]), given[k]) for k in range(4)]
        *of_r, J = (rows(slope, 0, n) for slope in slopes)
        *of_v, by_middle = (rows(slope, n, 2 * n) for slope in slopes)
        of_middle = [J.solve(x * (-1)) for x in of_r]
        changes = [x * (2 * h) for x in of_middle]
        q_next, v_next = vector(moved(start[0], middle, 2 * h)), rows(both(*given), n, 2 * n)
        return [
            [q_next, _eye(n) + changes[0], *changes[1:]],
            [v_next, *(x + by_middle * y for x, y in zip(of_v, of_middle, strict=True))],
        ]

    def step_derivatives(self, method: str) -> dict[str, Any]:
        if method == "implicit_midpoint":
            ends = self._midpoint()
            if ends is None:
                return {name: ("none", np.zeros(n), None) for name, n in (("q", self.robot.nv), ("v", self.robot.nv))}
            beside = (np.abs(np.asarray(self.given[name])) for name in "qv")
            return {**self._reached(ends[0][0], ends[1][0], *beside), **self._of_ends(ends)}
        n, h = self.robot.nv, arb(float(self.given["dt"][0]))
        q, v = (vector(list(self.given[name])) for name in ("q", "v"))
        eye, none = _eye(n), arb_mat(n, n)

        def stage(k_q: Any, k_v: Any, by: arb) -> tuple[Any, Any, list[Any], list[Any]]:
            """Rates of q and v at the state moved so far, and their changes with q, v and tau."""
            at_q, at_v = ([own + step * by for own, step in zip(*of, strict=True)] for of in (k_q, k_v))
            of = self._rate(at_q[0], at_v[0]) if by != 0 else self._first
            pushed = (none, none, of.tau)
            changes = [of.q * x + of.v * y + z for x, y, z in zip(at_q[1:], at_v[1:], pushed, strict=True)]
            return at_v[0], of.a, at_v[1:], changes

        start = ([q, eye, none, none], [v, none, eye, none])
        still = [vector([0] * n), none, none, none]
        weights, parts = {"rk4": ((1, 2, 2, 1), (0, h / 2, h / 2, h))}.get(method, ((6,), (0,)))
        rates, sums = (still, still), [[x * 0 for x in still], [x * 0 for x in still]]
        for weight, part in zip(weights, parts, strict=True):
            rate_q, rate_v, changes_q, changes_v = stage((start[0], rates[0]), (start[1], rates[1]), arb(part))
            rates = ([rate_q, *changes_q], [rate_v, *changes_v])
            sums = [[x + y * weight for x, y in zip(*of, strict=True)] for of in zip(sums, rates, strict=True)]
        ends = [[x + y * (h / 6) for x, y in zip(*of, strict=True)] for of in zip(start, sums, strict=True)]
        if method == "semi_implicit_euler":
            ends[0] = [x + y * h for x, y in zip(start[0], ends[1], strict=True)]
        return {**self.step(method), **self._of_ends(ends)}

    def _of_ends(self, ends: list[list[Any]]) -> dict[str, Any]:
        by_kind = [[self._like(kind, x) for kind, x in zip(KINDS, of[1:], strict=True)] for of in ends]
        # The scale includes the forces that velocities make, since their changes with q cancel in planar robots.
        kind, value, scale = by_kind[1][0]
        swung = float(self.given["dt"][0]) * float((self._swung / self.d).max() / self.d.max())
        by_kind[1][0] = kind, value, max(scale, swung)
        return {
            "dx_dx": ("parts", [of[:2] for of in by_kind], None),
            "dx_dtau": ("parts", [of[2:] for of in by_kind], None),
        }


KINDS = ("motions", "motions", "mobility")
"""How changes of q and v with q, v and tau are counted."""


def _slope(f: Callable[[list[Any]], Any], x: list[Any]) -> arb_mat:
    """The derivative of a column, (k, 1), with respect to each of the entries of x, (k, n)."""

    def moved(k: int, by: arb) -> list[Any]:
        return [*x[:k], x[k] + by, *x[k + 1 :]]

    columns = [(f(moved(k, _MOVED)) - f(moved(k, -_MOVED))) * (1 / (2 * _MOVED)) for k in range(len(x))]
    height = columns[0].nrows() if x else 0
    return arb_mat(height, len(x), [column[i, 0] for i in range(height) for column in columns])


def _eye(n: int) -> arb_mat:
    return arb_mat(n, n, [int(i == j) for i in range(n) for j in range(n)])
