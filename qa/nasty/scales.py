"""On which scale an error counts: the part of the references that is the same for every query.

Joints: the error of tau_i over sqrt(M_ii), against the largest such ratio of the state; entries of M over
sqrt(M_ii M_jj); motions as the efforts they need, M (a' - a).
Links: places, velocities, accelerations and Jacobians against the largest of their kind in the state, where turning and
moving, and the columns of turning and sliding joints, are kinds of their own. What inertia makes, loads and momenta,
counts per body: over the sizes sqrt(kg m^2) and sqrt(kg) of what hangs there, against the largest such ratio; inertias
over products of two sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from dyn_service.api.queries import Wrench
from qa.nasty.reference import Array, ExactRobot, State, double, rows, skew, stack, vector

Answers = dict[str, Array]
"""Outputs by name."""

Answer = tuple[str, Array, Any]
"""How errors of an output count, its true value, and the scale they count on: a number, or an array like the value."""


class Scales:
    """The scales of one state.

    Args:
        robot: In balls.
        given: Inputs by name.
        acted: Whether the state's external wrenches act.
    """

    def __init__(self, robot: ExactRobot, inputs: Mapping[str, Any], *, acted: bool = False) -> None:
        self.robot, self.inputs = robot, inputs
        self.state: State = robot.at(inputs["q"], inputs["v"])
        self.acting = self._acting(inputs["wrenches"]) if acted else None
        self.M = double(self.state.mass_matrix)
        self.d = np.sqrt(np.diag(self.M))
        self._answers: dict[tuple[str, str], dict[str, Answer]] = {}

    def answers(self, query: str, method: str) -> dict[str, Answer]:
        """By output: how its errors count, its value, and the scale they count on."""
        answers = self._answers.get((query, method))
        if answers is None:
            query_method = getattr(self, query, None)
            if query_method is None:
                raise NotImplementedError(
                    f"query {query!r} has no true answer: add a method {query}() to Expected in "
                    "qa/nasty/measure.py, or "
                    " one of its bases, or name the query in the list without a reference in qa/nasty/survey.py"
                )
            answers = self._answers[query, method] = query_method(method) if query in self.by_method else query_method()
        return answers

    by_method: tuple[str, ...] = ()
    """Queries whose true answer depends on the method."""

    def error(self, query: str, method: str, answers: Answers) -> float:
        """The worst error of a query's outputs."""
        return max((self._error(answer, answers[name]) for name, answer in self.answers(query, method).items()))

    def _error(self, answer: Answer, value_found: Array) -> float:
        kind, value, scale = answer
        if kind == "parts":  # blocks (2, nv, k, nv) of (nv, nv), each for itself
            parts = np.asarray(value_found).reshape(2, self.robot.nv, -1, self.robot.nv)
            blocks = ((part, parts[i, :, k]) for i, row in enumerate(value) for k, part in enumerate(row))
            return max(self._error(part, block) for part, block in blocks)
        # Answers that are infinite or NaN are reported below as infinitely wrong; a warning would end the survey.
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.asarray(value_found).reshape(value.shape) - value
            if kind == "effort":
                scaled_error = difference / self.d / scale
            elif kind == "motion":
                scaled_error = self.M @ difference / self.d / scale
            elif kind == "none":  # all of it must be NaN
                scaled_error = np.where(np.isnan(value_found), 0.0, np.inf)
            elif kind == "place":
                scaled_error = difference * self.d / scale
            elif kind in ("matrix", "efforts", "motions", "mobility", "by efforts"):
                scaled_error = self.counted(kind, difference) / scale
            else:
                scaled_error = difference / scale
            error = float(np.abs(scaled_error).max(initial=0.0))
        return error if np.isfinite(error) else np.inf

    def counted(self, kind: str, X: Array) -> Array:
        """A matrix (nv, nv) over sqrt(M_ii M_jj): of efforts, of motions as the efforts they need, of motions, or of
        efforts, by efforts as what these move.
        """
        X = self.M @ X if kind in ("motions", "mobility") else X
        return (X @ self.M if kind in ("mobility", "by efforts") else X) / np.outer(self.d, self.d)

    def _effort(self, value: Any, *scale_terms: Any) -> Answer:
        array = double(value).ravel() if not isinstance(value, np.ndarray) else value
        sizes = [np.abs((x if isinstance(x, np.ndarray) else double(x).ravel()) / self.d).max() for x in scale_terms]
        # At rest without load efforts are zero; then what counts is that of the accelerations a rounding makes.
        return "effort", array, max([np.abs(array / self.d).max(), *sizes]) or 1.0

    @property
    def _swung(self) -> Array:
        """(nv,) the size of velocity efforts, the scale of forces that cancel in planar robots."""
        return self.d * np.abs(self.inputs["v"]) * np.abs(self.inputs["v"] * self.d).max(initial=0.0)

    def _motion(self, value: Any, *efforts: Any) -> Answer:
        _, _, scale = self._effort(np.zeros(self.robot.nv), *efforts)
        return "motion", double(value).ravel(), scale

    def _number(self, value: Any, scale: Any = 0.0) -> Answer:
        number = np.array(double(value))
        return "number", number, max(abs(float(number)), abs(float(double(scale))) if scale else 0.0) or 1.0

    def _rows(self, parts: Sequence[Any], term_scales: Sequence[float] = (0.0, 0.0)) -> Answer:
        """Vectors relative to the largest or to `term_scales`, the halves of six-vectors each on its own."""
        value = _array(parts)
        largest = [
            max(np.abs(half).max(initial=0.0), size) or 1.0
            for half, size in zip(np.split(value, range(3, value.shape[1], 3), axis=1), term_scales, strict=False)
        ]
        return "rows", value, np.repeat(largest, 3)

    def _loads(self, parts: Sequence[Any], sizes: Array, *term_vectors: Sequence[Any]) -> Answer:
        """Loads or momenta of bodies of these sizes, (bodies, 3 or 6), against the largest ratio of the state."""
        value = _array(parts)
        largest = max(np.abs(_array(vectors) / sizes).max(initial=0.0) for vectors in (parts, *term_vectors))
        return "rows", value, sizes * (largest or 1.0)

    def _operators(self, parts: Sequence[Any]) -> Answer:
        """6 x 6 blocks from motion to motion: their four quarters are kinds of their own."""
        value = _array(parts, 6, 6)
        quarters = np.abs(value).reshape(-1, 2, 3, 2, 3).max(axis=(0, 2, 4), initial=0.0)
        return "rows", value, np.kron(np.where(quarters > 0.0, quarters, 1.0), np.ones((3, 3)))

    def _columns(self, value: Array) -> Answer:
        """Jacobians (bodies, 3 or 6, nv): halves, and columns of turning and of sliding joints, are kinds."""
        scale = np.ones(value.shape[1:])
        for half in range(0, value.shape[1], 3):
            for kind in (self.turning, ~self.turning):
                largest = np.abs(value[:, half : half + 3, kind]).max(initial=0.0)
                scale[half : half + 3, kind] = largest or 1.0
        return "rows", value, scale

    @cached_property
    def turning(self) -> Array:
        """(nv,) which movable joints turn."""
        axes = [S for S in self.robot.subspace if S is not None]
        return np.array([any(x != 0 for x in rows(S, 0, 3).entries()) for S in axes], dtype=bool)

    @cached_property
    def branch_sizes(self) -> Array:
        """(links, 6): sqrt(kg m^2) and sqrt(kg) of each link and all that hangs on it, about its origin; where that has
        no mass, its parent's.
        """
        sizes = sizes_of(self.state.composite)
        for i, parent in enumerate(self.robot.parent):
            if not sizes[i].any():
                sizes[i] = sizes[parent]
        return sizes

    def _acting(self, wrenches: Sequence[Wrench]) -> list[Any]:
        """Per link [torque; force] at its origin in its axes, from the definition of `Wrench`."""
        total = [vector([0] * 6) for _ in self.robot.links]
        for wrench in wrenches:
            i = self.robot.links.index(wrench.link)
            torque, force, point = (vector(list(x)) for x in (wrench.torque, wrench.force, wrench.point))
            if wrench.frame != wrench.link:
                R_WL = self.state.poses[i][0]
                turn = R_WL.transpose()
                if wrench.frame != "world":
                    turn = turn * self.state.poses[self.robot.links.index(wrench.frame)][0]
                torque, force = turn * torque, turn * force
            total[i] = total[i] + stack(torque + skew(point) * force, force)
        return total


def sizes_of(inertias: Sequence[Any]) -> Array:
    """(bodies, 6): the root of the largest moment of inertia three times, of the mass three times."""
    diagonals = np.array([np.diag(double(inertia)) for inertia in inertias])
    return np.sqrt(np.repeat(diagonals.reshape(-1, 2, 3).max(axis=2), 3, axis=1))


def _array(parts: Sequence[Any], *shape: int) -> Array:
    arrays = [part if isinstance(part, np.ndarray) else double(part) for part in parts]
    return np.array([array.reshape(shape or -1) for array in arrays])
