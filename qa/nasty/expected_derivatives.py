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

from qa.nasty.expected_points import ExpectedPoints
from qa.nasty.reference import State, double, vector

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
        n, here = self.robot.nv, State(self.robot, q, v)

        def at(q: list[Any], v: list[Any]) -> Any:
            state = copy(here) if q is here.q else State(self.robot, q, v)  # a copy keeps the poses
            state.v = v
            return state.inverse_dynamics(a, **self._world)

        def moved(x: list[Any], k: int, by: arb) -> list[Any]:
            return [*x[:k], x[k] + by, *x[k + 1 :]]

        def slope(tau: Callable[[list[Any]], Any], x: list[Any]) -> arb_mat:
            columns = [(tau(moved(x, k, _MOVED)) - tau(moved(x, k, -_MOVED))) * (1 / (2 * _MOVED)) for k in range(n)]
            return arb_mat(n, n, [columns[k][i, 0] for i in range(n) for k in range(n)])

        return [slope(lambda q: at(q, here.v), here.q), slope(lambda v: at(here.q, v), here.v)]

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

    def step_derivatives(self, method: str) -> dict[str, Any]:
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
        by_kind = [[self._like(kind, x) for kind, x in zip(KINDS, of[1:], strict=True)] for of in ends]
        return {
            **self.step(method),
            "dx_dx": ("parts", [of[:2] for of in by_kind], None),
            "dx_dtau": ("parts", [of[2:] for of in by_kind], None),
        }


KINDS = ("motions", "motions", "mobility")
"""How changes of q and v with q, v and tau are counted."""


def _eye(n: int) -> arb_mat:
    return arb_mat(n, n, [int(i == j) for i in range(n) for j in range(n)])
