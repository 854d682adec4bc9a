"""The closed loops of a robot with what they leave free, and the motions that keep them closed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Self

import numpy as np

from dyn_service.api.description import LoopFreedom
from dyn_service.api.inputs import checked_option
from dyn_service.api.queries import COMPUTATIONS, Array
from dyn_service.engine.loops.freedom import (
    SAMPLES,
    Freedom,
    closed_positions,
    freedom_of,
    random_freedom,
    random_positions,
)
from dyn_service.engine.loops.joints import SINGULAR, LoopState, Tangent, first_place, pseudo_inverse, state_text
from dyn_service.engine.loops.kernels import LoopKernels
from dyn_service.engine.loops.mechanism import Mechanism, gap_text
from dyn_service.engine.loops.tree_evaluator import TreeEvaluator
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.model.description import Description, Note
from dyn_service.support.suggestions import known_instead


class ClosedLoops(Mechanism):
    """The closed loops of a robot.

    tree: the evaluator of the tree alone. description: of the robot with its loop joints. loaded: the loops of the
    robot as loaded, whose positions and motions are those of robots with other numbers; None: this is that robot.
    """

    def __init__(self, tree: TreeEvaluator, description: Description, loaded: Self | None = None) -> None:
        super().__init__(tree, tree if loaded is None else loaded.tree, description)
        self.loaded = loaded

    @cached_property
    def freedom(self) -> Freedom | None:
        """What the loops leave free; None if they close in none of the random configurations that were tried."""
        return random_freedom(self) if self.loaded is None else self.loaded.freedom

    @cached_property
    def compiled(self) -> LoopKernels | None:
        """The kernels for regular states; None if the robot has none."""
        if self.loaded is not None:
            return self.loaded.compiled
        if self.freedom is None:
            return None
        kernels = LoopKernels(self.tree.model.tree, self.joints, self.freedom.pivots)
        return kernels if kernels.exist else None

    @cached_property
    def drives_determine_motion(self) -> bool:
        """Whether the driven joints are the independent ones, so that their efforts are unique."""
        drives = None if self.driven is None else tuple(np.flatnonzero(self.driven).tolist())
        return self.freedom is not None and drives == self.freedom.independent

    @property
    def known_freedom(self) -> LoopFreedom | None:
        """`freedom` for descriptions; None before it is known."""
        freedom: Freedom | None = (self.loaded or self).__dict__.get("freedom")
        if freedom is None:
            return None
        names = self.configuration.velocity_names
        return LoopFreedom(
            freedom=self.nv - freedom.rank,
            rank=freedom.rank,
            redundant=freedom.redundant,
            independent=tuple(names[k] for k in freedom.independent),
            undetermined=tuple(names[k] for k in freedom.undetermined),
        )

    @property
    def open_warning(self) -> Note | None:
        """A warning if the loops close in none of the random configurations; None before this is known."""
        loops = self.loaded or self
        return loops._open if loops.__dict__.get("freedom", loops) is None else None

    @cached_property
    def _open(self) -> Note:
        """The warning, with the smallest gap of random configurations."""
        _, state = random_positions(self, range(SAMPLES))
        gaps = self.gaps(state)
        sample = int(np.argmin(gaps.max(axis=-1)))
        joint = self.joints.joints[int(np.argmax(gaps[sample]))]
        error = state.error[sample, int(np.argmax(gaps[sample]))]
        text = f"its loop closes in none of {SAMPLES} random configurations: the smallest gap is {gap_text(error)}"
        return Note("warning", f"joint '{joint.name}'", text, joint.line, "open-loop")

    def freedom_at(self, tangent: Tangent, state: LoopState) -> Freedom:
        """Returns `freedom`, or that of these states if it is unknown or their J_c has a larger rank."""
        if self.freedom is not None and tangent.rank.max(initial=0.0) <= self.freedom.rank:
            return self.freedom
        return freedom_of(self, tangent)

    def tangent(self, state: LoopState) -> Tangent:
        """Returns the motions that keep the loops closed at states."""
        return Tangent.of(state, self.unit, 0 if self.freedom is None else self.freedom.rank)

    def selection(self, independent: Sequence[str] | None, state: LoopState) -> Array:
        """Returns the rows S_u (nu, nv) of the independent velocities.

        Errors are those of `entries_of`.
        """
        freedom = self.freedom_at(self.tangent(state), state)
        count = self.nv - freedom.rank
        names, default = self.joints.names, freedom.independent
        return np.eye(self.nv)[entries_of(self.configuration, count, independent, default, self.name, names)]

    def from_independent(self, tangent: Tangent, rows: Array) -> Array:
        """Returns G (..., nv, nu), v = G u for the independent velocities u = S_u v. rows: S_u (nu, nv).

        Raises:
            FailedPreconditionError: They do not determine v at a state.
        """
        N, unit = tangent.basis, rows @ self.unit
        part = rows @ N / unit[:, None]
        # Not relative to the largest singular value, which is rounding where no independent joint moves.
        place = first_place(np.linalg.svd(part, compute_uv=False)[..., -1] <= SINGULAR) if len(rows) else None
        if place is not None:
            names = ", ".join(f"'{self.configuration.velocity_names[k]}'" for k in np.argmax(rows, axis=-1))
            raise FailedPreconditionError(
                f"the velocities of {names} do not determine those of all joints{state_text(place)}: choose other "
                "independent joints"
            )
        return np.where(tangent.exists[..., None, None], N @ pseudo_inverse(part) / unit, np.nan)

    @cached_property
    def samples(self) -> Array:
        """(n, nq): random closed positions, with at least one.

        Raises:
            FailedPreconditionError: The loops close in none of the random positions.
        """
        if self.loaded is not None:
            return self.loaded.samples
        q, _ = closed_positions(self)
        if not len(q):
            raise FailedPreconditionError(
                f"robot '{self.name}' cannot be simulated: its loops close near none of {SAMPLES} random positions"
            )
        return q

    def joint_rows(self, names: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
        """Returns rows and names of selected joints, None for all: those of the tree, then those that close loops.

        Raises:
            NotFoundError: There is no joint of that name.
        """
        all_names = (*self.tree.model.tree.named_joints, *self.joints.names)
        if names is None:
            return list(range(len(all_names))), all_names
        for k, name in enumerate(names):
            if name not in all_names:
                hint = known_instead(name, all_names, "its joints are")
                raise NotFoundError(f"robot '{self.name}' has no joint '{name}'{hint}", path=f"options.joints[{k}]")
        return [all_names.index(name) for name in names], tuple(names)

    def check_efforts(self, tau: Array) -> None:
        """Refuses efforts (..., nv) of passive joints that are not 0.

        Raises:
            InvalidArgumentError: Names the joint.
        """
        place = None if self.driven is None else first_place((tau != 0.0) & (self.driven == 0.0))
        if place is not None:
            joint = self.configuration.velocity_joints[place[-1]]
            raise InvalidArgumentError(
                f"tau of joint '{joint}', which has no drive, must be 0, found {tau[place]:g}{state_text(place[:-1])}",
                path="inputs.tau",
            )


def entries_of(
    configuration: Configuration,
    count: int,
    independent: Sequence[str] | None,
    default: Iterable[int],
    robot: str,
    loop_joints: Sequence[str] = (),
) -> list[int]:
    """Returns the entries in v of independent joints.

    Args:
        configuration: The robot's joints.
        count: The degrees of freedom.
        independent: The joints; None: `default`.
        default: Entries in v.
        robot: The robot's name.
        loop_joints: The names of its loop joints.

    Raises:
        NotFoundError: There is no movable joint of that name.
        InvalidArgumentError: They have another number of velocities than the loops leave free, or are no list.
    """
    checked_option(COMPUTATIONS["independent_motion"].options["independent"], independent)
    if independent is None:
        return list(default)
    joints = configuration.velocity_joints
    for name in independent:
        if name not in joints:
            raise no_movable_joint(name, configuration, robot, loop_joints, "independent")
    entries = [k for name in independent for k, joint in enumerate(joints) if joint == name]
    if len(set(entries)) != count or len(set(entries)) != len(entries):
        raise InvalidArgumentError(
            f"independent has {len(entries)} velocities, expected {count}, the degrees of freedom of robot "
            f"'{robot}', each once",
            path="independent",
        )
    return entries


def no_movable_joint(
    name: str, configuration: Configuration, robot: str, loop_joints: Sequence[str], path: str
) -> NotFoundError:
    """Returns the error for a name that is no movable joint of a robot."""
    if name in loop_joints:
        text = f"joint '{name}' of robot '{robot}' closes a loop, so it has no entries in q and v"
        return NotFoundError(f"{text}; its movable joints are {', '.join(configuration.names)}", path=path)
    hint = known_instead(name, configuration.names, "its movable joints are")
    return NotFoundError(f"robot '{robot}' has no movable joint '{name}'{hint}", path=path)
