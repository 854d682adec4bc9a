"""The loop joints of a robot at its states: gaps, velocities that open loops, positions that close them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from dyn_service.api.queries import Array
from dyn_service.api.results import PointMotion, PointMotionDerivatives
from dyn_service.engine.loops.assembly import Assembly
from dyn_service.engine.loops.joints import CLOSED, TEARING, LoopJoints, LoopState, first_place, state_text, times
from dyn_service.engine.loops.paths import LoopPath
from dyn_service.engine.loops.tree_evaluator import TreeEvaluator
from dyn_service.engine.rows import ask
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import Description
from dyn_service.model.loop_tree import UNRELATED

_MAX_TRAVEL = 1e5
"""Largest travel of joints, in lengths of the loop, by which loops are closed: limits beyond it are placeholders."""


class Mechanism:
    """The loop joints of a robot.

    tree: the evaluator of the tree alone. kinematics: that of the robot as loaded, whose positions and motions are
    those of robots with other numbers. description: of the robot with its loop joints.
    """

    def __init__(self, tree: TreeEvaluator, kinematics: TreeEvaluator, description: Description) -> None:
        self.tree, self.kinematics = tree, kinematics
        self.name = tree.model.name
        self.configuration = tree.model.configuration
        self.nv = self.configuration.nv
        paths = [LoopPath.of(description, joint) for joint in description.loop_joints]
        on_path = np.array([[name in path.joints for name in self.configuration.velocity_joints] for path in paths])
        sizes = np.array([path.length for path in paths])
        self.joints = LoopJoints(description.loop_joints, sizes, on_path, self._motions)
        self.unit = self.joints.unit(self.configuration.turns)
        travels = np.minimum([path.travel for path in paths], _MAX_TRAVEL * sizes)
        longer = (travels > sizes).any()
        self._travel_joints = replace(self.joints, sizes=np.maximum(sizes, travels)) if longer else self.joints
        self._driven = {joint.name: joint.driven for joint in description.joints}

    def _motions(self, q: Array, v: Array, links: Sequence[str], points: Array) -> PointMotion:
        return cast("PointMotion", ask(self.kinematics, "point_motion", q, v, links, point=points))

    def motion_derivatives(
        self, q: Array, v: Array, a: Array, links: Sequence[str], points: Array
    ) -> PointMotionDerivatives:
        """Returns the tree's `point_motion_derivatives` in world-aligned axes."""
        query = "point_motion_derivatives"
        return cast("PointMotionDerivatives", ask(self.kinematics, query, q, v, a, links, point=points))

    @cached_property
    def driven(self) -> Array | None:
        """(nv,): 1 for joints with a motor, else 0; None if the description states it of no joint."""
        drives = [self._driven.get(name) for name in self.configuration.velocity_joints]
        return None if all(drive is None for drive in drives) else np.array([float(drive is True) for drive in drives])

    def assembly(self, fixed: Sequence[str]) -> Assembly:
        """Returns what closes loops while these joints stand still."""
        fixed_entries = np.array([name in fixed for name in self.configuration.velocity_joints], dtype=bool)
        common = self.configuration, self.tree.model.tree.limits
        joints, unit = self._travel_joints, self._travel_joints.unit(self.configuration.turns)
        by_travel = None if joints is self.joints else Assembly(joints, *common, unit, fixed_entries)
        return Assembly(self.joints, *common, self.unit, fixed_entries, by_travel)

    def moved(self, state: LoopState, x: Array, power: int = 1) -> Array:
        """Returns a power of the largest motion (..., nk) that an entry of x (..., nv) can cause at each loop joint.

        Every entry of the loop counts as the largest one, because those of joints that the loops hold are rounding
        errors; entries of other joints count as rounding errors.
        """
        rates, sizes = state.rates * self.unit, np.abs(x / self.unit)
        related = np.max(sizes[..., None, :] * (rates > 0.0), axis=-1, initial=0.0)
        largest = related**power + UNRELATED * sizes.max(axis=-1, keepdims=True, initial=0.0) ** power
        return np.asarray(rates.max(axis=-1, initial=0.0) ** power * largest)

    def gaps(self, state: LoopState) -> Array:
        """Returns the gaps (..., nk) of the loop joints in rad and lengths of their loops."""
        return np.asarray(np.abs(self.joints.lengths * state.error).max(axis=-1))

    def of_rows(self, x: Array) -> Array:
        """Returns values of the loop joints (..., nk) for the rows of J_c, (..., m)."""
        return np.asarray(x[..., self.joints.joint_of_row])

    def check_closed(self, state: LoopState, path: str) -> None:
        """Refuses positions with a gap larger than `CLOSED`.

        Raises:
            InvalidArgumentError: Names the loop joint, its gap, and what to do.
        """
        place = first_place(self.gaps(state) > CLOSED)
        if place is None:
            return
        error, name = state.error[place], self.joints.names[place[-1]]
        raise InvalidArgumentError(
            f"{path} leaves the loop of joint '{name}' open{state_text(place[:-1])}: its gap is {gap_text(error)}, "
            "closed are at most "
            f"{CLOSED * self.joints.sizes[place[-1]]:.3g} m and {CLOSED:g} rad; "
            f"assemble({path}) returns the nearest closed position",
            path=f"inputs.{path}",
        )

    def check_kept(self, state: LoopState, x: Array, bias: Array | float, size: Array | float, path: str) -> None:
        """Refuses velocities or accelerations x (..., nv) that open a loop: J_c x + bias is not 0.

        size: (..., nk), of the terms in the bias.
        """
        violation = np.abs(times(state.rows, x) + bias)
        scale = self.moved(state, x) + size
        place = first_place(violation > TEARING * self.of_rows(scale))
        if place is None:
            return
        k = self.joints.joint_of_row[place[-1]]
        share = violation[place] / np.broadcast_to(self.of_rows(scale), violation.shape)[place]
        raise InvalidArgumentError(
            f"{path} opens the loop of joint '{self.joints.names[k]}'{state_text(place[:-1])}: {share:.2g} of it is "
            f"in directions that the joint blocks, at most {TEARING:g} is allowed; independent_motion returns the "
            "velocities and accelerations that keep loops closed",
            path=f"inputs.{path}",
        )


def gap_text(error: Array) -> str:
    """Returns the error (6,) of a loop joint, rad and m, as text."""
    return f"{np.linalg.norm(error[3:]):.3g} m and {np.linalg.norm(error[:3]):.3g} rad"
