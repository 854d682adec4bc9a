"""The true Coriolis matrix and regressors.

C from its definition with the Jacobians J of all bodies, sum of J^T (I J-dot + B J), in which no inertia is added to
another; columns of regressors from bodies of which one number is 1 and all others are 0. Entries of a regressor count
against the largest of their kind: rows of turning and sliding joints, columns of masses, first moments and inertias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from flint import arb, arb_mat

from dyn_service.model.passive import PRISMATIC_WIDTH, REVOLUTE_WIDTH
from qa.nasty.expected_derivatives import ExpectedDerivatives
from qa.nasty.reference import Array, blocks, cross, cross_force, double, identity, skew, vector

_KINDS = np.repeat((0, 1, 2), (1, 3, 6))
"""Kinds of the parameters of a link: mass, first moments, inertias."""


def _unit_inertias() -> list[arb_mat]:
    """The 6 x 6 inertia of each parameter of a link."""
    zero_block = arb_mat(3, 3)
    inertias = [blocks(zero_block, zero_block, zero_block, identity())]
    for k in range(3):
        h = skew(vector([int(n == k) for n in range(3)]))
        inertias.append(blocks(zero_block, h, h * (-1), zero_block))
    for i, j in ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)):
        places = {(i, j), (j, i)}
        I = arb_mat(3, 3, [int((m, n) in places) for m in range(3) for n in range(3)])
        inertias.append(blocks(I, zero_block, zero_block, zero_block))
    return inertias


_UNITS = _unit_inertias()

Load = Callable[[arb_mat, int], arb_mat]
"""The six-vector of a link with an inertia."""


class ExpectedRegressors(ExpectedDerivatives):
    """True answers of the Coriolis matrix and the regressors."""

    def coriolis_matrix(self) -> dict[str, Any]:
        n, state = self.robot.nv, self.state
        C = arb_mat(n, n)
        J: list[list[arb_mat]] = []
        J_dot: list[list[arb_mat]] = []  # the columns of J-dot in the body's axes
        zero_column = vector([0] * 6)
        for i, S in enumerate(self.robot.subspace):
            parent, V, I = self.robot.parent[i], state.velocity[i], self.robot.inertia[i]
            for columns in (J, J_dot):
                columns.append([zero_column] * n if parent < 0 else [state.X[i] * column for column in columns[parent]])
            if S is not None:
                k = self.robot.dof[i]
                J[i][k], J_dot[i][k] = S, cross(V, S)
            for column in range(n):
                X, X_dot = J[i][column], J_dot[i][column]
                # B X, twice: V x* I X - I (V x X) + X x* (I V)
                twice = cross_force(V, I * X) - I * cross(V, X) + cross_force(X, I * V)
                load = I * X_dot + twice * (arb(1) / 2)
                for row in range(n):
                    C[row, column] += (J[i][row].transpose() * load)[0, 0]
        v = vector(list(self.inputs["v"]))
        return {
            "matrix": self._like("efforts", C),
            "forces": self._effort(C * v, self._swung),
            "transposed_forces": self._effort(C.transpose() * v, self._swung),
        }

    def inverse_dynamics_regressor(self) -> dict[str, Any]:
        n = self.robot.nv
        v, a, q = (np.asarray(self.inputs[name]) for name in ("v", "a", "q"))
        widths = np.where(self.turning, REVOLUTE_WIDTH, PRISMATIC_WIDTH)  # the defaults, as rest positions are 0
        smooth = double(vector([arb(float(x) / float(w)).tanh() for x, w in zip(v, widths, strict=True)])).reshape(n)
        parts = [np.diag(x) for x in (v, smooth, a, q)]
        return {"regressor": self._regressor(self._at_joints(self._load), parts)}

    def momentum_regressor(self) -> dict[str, Any]:
        n = self.robot.nv
        zero_block = np.zeros((n, n))
        Y = self._at_joints(lambda I, i: I * self.state.velocity[i])
        return {"regressor": self._regressor(Y, [zero_block, zero_block, np.diag(self.inputs["v"]), zero_block])}

    def energy_regressor(self) -> dict[str, Any]:
        g, n = vector([float(x) for x in self.inputs["gravity"]]), self.robot.nv
        kinetic, potential = [], []
        for i, (R, p) in enumerate(self.state.poses):
            V = self.state.velocity[i]
            kinetic += [(V.transpose() * (E * V))[0, 0] / 2 for E in _UNITS]
            weight = R.transpose() * g
            potential += [-(g.transpose() * p)[0, 0], *(-weight[k, 0] for k in range(3)), *[arb(0)] * 6]
        v, q = (vector(list(self.inputs[name])).entries() for name in ("v", "q"))
        zero_columns = [arb(0)] * n
        kinetic += [*zero_columns, *zero_columns, *(x * x / 2 for x in v), *zero_columns]
        potential += [*zero_columns, *zero_columns, *zero_columns, *(x * x / 2 for x in q)]
        values = {name: double(vector(x)).ravel() for name, x in (("kinetic", kinetic), ("potential", potential))}
        return {name: ("rows", value, self._largest(value[None])[0]) for name, value in values.items()}

    def joint_wrench_regressor(self) -> dict[str, Any]:
        columns_at = self._carried(self._load)
        jointed_links = [j for j, joint in enumerate(self.robot.joints) if joint]
        value = np.zeros((len(jointed_links), 6, len(self.robot.links), 10))
        for (i, j), columns in columns_at.items():
            if j in jointed_links:
                value[jointed_links.index(j), :, i] = np.stack([double(f).ravel() for f in columns], axis=-1)
        scale = np.ones_like(value)
        for half in (slice(0, 3), slice(3, 6)):
            for kind in range(3):
                entries = (slice(None), half, slice(None), kind == _KINDS)
                scale[entries] = np.abs(value[entries]).max(initial=0.0) or 1.0
        return {"regressor": ("rows", value, scale)}

    def _load(self, I: arb_mat, i: int) -> arb_mat:
        return I * self._accelerations[i] + cross_force(self.state.velocity[i], I * self.state.velocity[i])

    @cached_property
    def _accelerations(self) -> list[arb_mat]:
        """Spatial, with gravity as an acceleration of the ground."""
        lift = vector([0, 0, 0, *(-arb(float(g)) for g in self.inputs["gravity"])])
        return self.state.acceleration(list(self.inputs["a"]), lift)

    def _carried(self, load: Load) -> dict[tuple[int, int], list[arb_mat]]:
        """The ten six-vectors of link i at link j, which carries it, by (i, j)."""
        columns_at = {}
        for i in range(len(self.robot.links)):
            columns, j = [load(E, i) for E in _UNITS], i
            while j >= 0:
                columns_at[i, j] = columns
                columns, j = [self.state.X[j].transpose() * f for f in columns], self.robot.parent[j]
        return columns_at

    def _at_joints(self, load: Load) -> Array:
        """(nv, 10 links)."""
        Y = np.zeros((self.robot.nv, len(self.robot.links), 10))
        for (i, j), columns in self._carried(load).items():
            S = self.robot.subspace[j]
            if S is not None:
                Y[self.robot.dof[j], i] = [float(double((S.transpose() * f)[0, 0])) for f in columns]
        return Y.reshape(self.robot.nv, -1)

    def _regressor(self, of_links: Array, of_joints: Sequence[Array]) -> Any:
        value = np.concatenate([of_links, *of_joints], axis=1)
        scale = np.ones_like(value)
        for kind in (self.turning, ~self.turning):
            scale[kind] = self._largest(value[kind])
        return "rows", value, scale

    def _largest(self, value: Array) -> Array:
        """The largest entry of each kind of column, in the shape of the value."""
        n, links = self.robot.nv, len(self.robot.links)
        kinds = np.concatenate([np.tile(_KINDS, links), 3 + np.repeat(range(4), n)])
        scale = np.ones_like(value)
        for kind in range(7):
            scale[:, kinds == kind] = np.abs(value[:, kinds == kind]).max(initial=0.0) or 1.0
        return scale
