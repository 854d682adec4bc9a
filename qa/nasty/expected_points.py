"""The true answers of the queries on a point of a link, from definitions: J column by column, Omega = J M^-1 J^T."""

from __future__ import annotations

from typing import Any

import numpy as np
from flint import arb_mat

from dyn_service.api.spec import DIRECTIONS
from dyn_service.dynamics.task_space import MOBILITY_ROUNDING
from qa.nasty.expected_links import ExpectedLinks
from qa.nasty.reference import ExactRobot, State, blocks, double, identity, rows, skew, stack, vector

FRAMES = ("world_aligned", "local", "world")


class Point:
    """A point of a link at a state, seen as `frame` says."""

    def __init__(self, robot: ExactRobot, state: State, link: str, point: Any, frame: str) -> None:
        self.robot, self.state, self.link = robot, state, robot.links.index(link)
        R, p = state.poses[self.link]
        self.rotation, self.position = R, p + R * vector(list(point))
        zero_block = arb_mat(3, 3)
        translation = blocks(identity(), zero_block, skew(vector(list(point))) * (-1), identity())
        rotation = blocks(R, zero_block, zero_block, R)
        self.X = {
            "world_aligned": rotation * translation,
            "local": translation,
            "world": blocks(R, zero_block, skew(p) * R, R),
        }[frame]

    @property
    def jacobian(self) -> arb_mat:
        """(6, nv)."""
        columns = [vector([0] * 6)] * self.robot.nv
        i, X = self.link, self.X
        while i >= 0:
            S = self.robot.subspace[i]
            if S is not None:
                columns[self.robot.dof[i]] = X * S
            X, i = X * self.state.X[i], self.robot.parent[i]
        return arb_mat([[column[k, 0] for column in columns] for k in range(6)])

    @property
    def mobility(self) -> arb_mat:
        """Omega."""
        J = self.jacobian
        return J * self.state.mass_matrix.solve(J.transpose())


def moving(robot: ExactRobot, state: State, link: str, point: Any) -> list[str]:
    """A direction in which the link moves as well as any, wherever it is seen from."""
    shares = []
    for frame in FRAMES:
        share = np.diag(double(Point(robot, state, link, point, frame).mobility)).reshape(2, 3)
        shares.append((share / (share.sum(axis=1, keepdims=True) + 1e-300)).ravel())
    return [DIRECTIONS[int(np.argmax(np.min(shares, axis=0)))]]


class ExpectedPoints(ExpectedLinks):
    """True answers of queries on one link."""

    def _point(self, frame: str) -> Point:
        return Point(self.robot, self.state, self.inputs["link"], self.inputs["point"], frame)

    def point_motion(self, frame: str) -> dict[str, Any]:
        point = self._point(frame)
        V = point.X * self.state.velocity[point.link]
        bias = point.X * self.state.acceleration([0] * self.robot.nv, vector([0] * 6))[point.link]
        if frame == "world_aligned":
            bias = bias + stack(vector([0] * 3), skew(rows(V, 0, 3)) * rows(V, 3, 6))
        reach = max(1.0, float(np.abs(double(point.X)[3:, :3]).max()))  # from the link's origin to where it is seen
        omega_scale, v_scale = self._fastest
        speed = np.abs([double(velocity).ravel() for velocity in self.state.velocity])
        return {
            "rotation": ("rows", double(point.rotation), 1.0),
            "position": self._rows(
                [point.position], [sum(float(np.abs(double(p)).max()) for _, p in self.state.poses)]
            ),
            "velocity": self._rows([V], [speed[:, :3].max(), speed[:, 3:].max() + reach * speed[:, :3].max()]),
            "jacobian": self._columns_of_one(double(point.jacobian)),
            "bias": self._rows([bias], [omega_scale, v_scale + reach * omega_scale]),
        }

    def _columns_of_one(self, J: np.ndarray) -> Any:
        kind, value, scale = self._columns(J[None])
        return kind, value[0], scale

    def operational_space(self, frame: str) -> dict[str, Any]:
        point = self._point(frame)
        Omega = double(point.mobility)
        turns, shifts = np.sqrt(np.diag(Omega).reshape(2, 3).max(axis=1))
        # Carried there from the link's origin: so much of what turns it shifts it there.
        kinds = np.repeat([turns or 1.0, max(shifts, turns * np.abs(double(point.X)[3:, :3]).max()) or 1.0], 3)
        (k,) = (DIRECTIONS.index(name) for name in self.inputs["directions"])
        inertia = np.zeros((6, 6))
        mobile = Omega[k, k] > MOBILITY_ROUNDING * np.trace(Omega[:3, :3] if k < 3 else Omega[3:, 3:])
        inertia[k, k] = 1.0 / Omega[k, k] if mobile else 0.0
        return {
            "mobility": ("rows", Omega, np.outer(kinds, kinds)),
            "inertia": ("rows", inertia, (kinds[k] / Omega[k, k]) ** 2) if mobile else ("none", inertia, 1.0),
        }
