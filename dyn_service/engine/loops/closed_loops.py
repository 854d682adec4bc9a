"""Answers for robots whose links form closed loops, from the kernels of their tree.

q, v, a and tau have entries for all joints of the tree. With the rows J_c of the loop joints (`joints`):

    J_c v = 0,   J_c a + J_c-dot v = 0,   M a + C = tau + J_c^T lambda         (18) with the loads lambda of loop joints

The singular values of J_c give its rank and an orthonormal basis N of the velocities that keep the loops closed. With
a_p = -J_c^+ J_c-dot v:

    forward dynamics     a = a_p + N z,   (N^T M N) z = N^T (tau - C - M a_p)
    inverse dynamics     N^T S^T tau_S = N^T (M a + C)               S selects the driven joints; least |tau_S|
    loads                J_c^T lambda = M a + C - tau                least squares of the loads of all joints

This is lambda = -(J_c M^-1 J_c^T)^-1 (J_c M^-1 (tau - C) + J_c-dot v) without M^-1, so it also holds where links have
no mass of their own, and the rank depends on the geometry alone. C + M a_p is one call of `inverse_dynamics`.

Independent velocities u = S_u v determine v = G u, G = N (S_u N)^-1; `bias_forces`, `computed_torque` and
`independent_motion` are about them.

At regular states, compiled kernels give the same answers without N (`kernels`, `Answer.regular`); singular
values are for all other states, loads and errors.

`answers.ANSWERS` is the table of the queries; `simulation` has the motions for simulations.

Cost: O(N^3). Source: Newton-Euler document, (15), (18), (20); R. Featherstone, Rigid Body Dynamics Algorithms, 2008,
8.5 to 8.11. Checked by tests/engine/test_loops.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dyn_service.api.arrays import vectors
from dyn_service.api.cost import (
    BODY_S,
    CALL_S,
    COPIES,
    CUBE_S,
    NUMBER_S,
    Cost,
    count,
    given_shape,
    leading,
    overlay_lead,
)
from dyn_service.api.description import LoopFreedom
from dyn_service.api.inputs import checked_option, checked_options
from dyn_service.api.outputs import fill, output_arrays
from dyn_service.api.queries import COMPUTATIONS, QUERIES, Array, Query, Row, Wrench
from dyn_service.api.results import (
    ConstraintBases,
    IndependentMotion,
    PointMotion,
    PointMotionDerivatives,
)
from dyn_service.api.spec import WITHOUT_WRENCHES, Dimensions, Variant
from dyn_service.engine.loops import derivatives
from dyn_service.engine.loops.answers import KINEMATIC, WITH_LOADS, answer_of, refusal_of
from dyn_service.engine.loops.assembly import Assembly
from dyn_service.engine.loops.freedom import SAMPLES, Freedom, freedom_of, random_freedom, random_positions
from dyn_service.engine.loops.joints import (
    CLOSED,
    SINGULAR,
    TEARING,
    UNSUPPORTED,
    LoopJoints,
    LoopState,
    Tangent,
    first_place,
    pseudo_inverse,
    state_text,
    times,
    with_common_lead,
)
from dyn_service.engine.loops.kernels import REGULAR, LoopKernels
from dyn_service.engine.loops.paths import LoopPath
from dyn_service.engine.loops.simulation import ClosedSimulation
from dyn_service.engine.rows import ask, operand
from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from dyn_service.model.configuration import Configuration
from dyn_service.model.description import Description, Note
from dyn_service.model.loop_tree import UNRELATED
from dyn_service.support.suggestions import known_instead

if TYPE_CHECKING:
    from dyn_service.engine.evaluator import Evaluator

_MAX_TRAVEL = 1e5
"""Largest travel of joints, in lengths of the loop, by which loops are closed: limits beyond it are placeholders."""


class Call:
    """One call of a query: its row, its arguments as arrays by name, and the state that they describe."""

    def __init__(self, loops: ClosedLoops, row: Row, arguments: dict[str, Any]) -> None:
        self.loops, self.row, self.arguments = loops, row, arguments
        model = loops.tree.model
        sizes, joints = model.rows.sizes, len(model.client_description.joint_names)
        for name, spec in row.inputs.items():
            if arguments.get(name) is not None and spec.kind not in _OBJECTS:
                arguments[name] = operand(name, spec, arguments[name], spec.dims(sizes), joints)

    def input(self, kind: str) -> Any:
        """Returns the first input of a kind, or None."""
        name = self.row.first(kind)  # type: ignore[arg-type]
        return None if name is None else self.arguments.get(name)

    @cached_property
    def q(self) -> Array:
        """(..., nq)."""
        return cast("Array", self.input("position"))

    @cached_property
    def v(self) -> Array:
        """(..., nv); zero for queries without it."""
        v = self.input("velocity")
        return np.zeros(self.loops.nv) if v is None else v

    @cached_property
    def state(self) -> LoopState:
        """The loop joints."""
        return self.loops.joints.state(self.q, self.v)

    @cached_property
    def tangent(self) -> Tangent:
        """The motions that keep the loops closed."""
        return self.loops.tangent(self.state)

    @cached_property
    def bias_size(self) -> Array:
        """(..., nk), the size of what velocities add to the acceleration of each loop joint, with errors of v."""
        return np.asarray(self.state.bias_size + self.loops.moved(self.state, self.v, 2))

    @cached_property
    def least_acceleration(self) -> Array:
        """(..., nv): a_p, the least accelerations that keep the loops closed.

        Raises:
            FailedPreconditionError: No accelerations keep the loops closed, at a singular state.
        """
        a = -self.tangent.velocities(self.state.bias)
        remaining = np.abs(times(self.state.rows, a) + self.state.bias)
        place = first_place(remaining > TEARING * self.loops.of_rows(self.bias_size))
        if place is not None:
            joints = self.loops.joints
            name = joints.names[joints.joint_of_row[place[-1]]]
            raise FailedPreconditionError(
                f"the loop of joint '{name}' cannot stay closed at this velocity: J_c is singular at this position"
                f"{state_text(place[:-1])}"
            )
        return a

    def tree(self, query: str, *required: Any, wrenches: Sequence[Wrench] = (), **options: Any) -> Any:
        """Returns the tree's answer to a query, with this call's gravity, wrenches, overlay and `passive`."""
        row = QUERIES[query]
        arguments = {
            name: self.arguments.get(name, default)
            for name, default in (("gravity", None), ("overlay", None), ("passive", True))
            if name in row.optional_arguments
        }
        if "wrenches" in row.optional_arguments:
            arguments["wrenches"] = [*self.wrenches, *wrenches] or None
        return ask(self.loops.tree, query, *required, **arguments | options)

    @property
    def wrenches(self) -> list[Wrench]:
        """The external wrenches of the call."""
        wrenches = self.arguments.get("wrenches")
        if wrenches is None:
            return []
        return [wrenches] if isinstance(wrenches, Wrench) else list(wrenches)

    def forward(self, tau: Array) -> Array:
        """Returns the accelerations (..., nv) under efforts."""
        a_p = self.least_acceleration
        # In this order the weight and the bias cancel in `inverse_dynamics`, where they are exact to rounding.
        f = tau - self.tree("inverse_dynamics", self.q, self.v, a_p)
        return np.asarray(a_p + self.tangent.solve(self.tree("mass_matrix", self.q), f))

    def inverse(self, a: Array) -> tuple[Array, Array]:
        """Returns the efforts tau (..., nv), 0 at joints without a drive, and M a + C (..., nv).

        Raises:
            FailedPreconditionError: No joint is driven, or the drives cannot cause this motion.
        """
        loops = self.loops
        motors = loops.driven
        if motors is None or not motors.any():
            raise FailedPreconditionError(
                f"{self.row.name} has no answer for robot '{loops.name}': no joint of its file is driven: add "
                "'driven: true' to a joint in a joint file, a <transmission> with an <actuator> in URDF, or an "
                "actuator in MJCF"
            )
        h = self.tree("inverse_dynamics", self.q, self.v, a)
        N_T = np.swapaxes(self.tangent.basis, -1, -2)
        required, drives = times(N_T, h), self.tangent.drives(motors)
        tau = times(pseudo_inverse(drives), required) * motors
        missing = required - times(drives, tau)
        if (np.abs(missing) > UNSUPPORTED * times(np.abs(N_T), np.abs(h))).any():
            self._check_supported(a, h, N_T, missing, motors)
        return tau, h

    def _check_supported(self, a: Array, h: Array, N_T: Array, missing: Array, motors: Array) -> None:
        """Refuses a motion that the drives cannot cause. missing: (..., nv), what they lack along N."""
        # h may be rounding of larger terms: those of the acceleration and those of the velocity and the weight.
        static = self.tree("inverse_dynamics", self.q, self.v, np.zeros(self.loops.nv))
        inertial = times(np.abs(self.tree("mass_matrix", self.q)), np.abs(a))
        sizes = times(np.abs(N_T), np.abs(h) + np.abs(static) + inertial)
        lacking = np.abs(missing) > UNSUPPORTED * sizes.max(axis=-1, keepdims=True)
        place = first_place(lacking.any(axis=-1))
        if place is None:
            return
        motion = np.abs(times(np.swapaxes(N_T, -1, -2), missing)) / self.tangent.unit
        motion = np.broadcast_to(motion, (*lacking.shape[:-1], motion.shape[-1]))[place]
        joint = self.loops.configuration.velocity_joints[int(np.argmax(motion * (1.0 - motors)))]
        raise FailedPreconditionError(
            f"{self.row.name} has no answer{state_text(place)}: the drives cannot cause this motion of joint "
            f"'{joint}', which is passive; its acceleration must follow from forward_dynamics"
        )

    def independent_acceleration(self, rate: Array, rows: Array) -> Array:
        """Returns the accelerations (..., nv) in which the independent velocities have these rates (..., nu)."""
        a_p = self.least_acceleration
        G = self.loops.from_independent(self.tangent, rows)
        return np.asarray(a_p + times(G, rate - times(rows, a_p)))

    def loads(self, a: Array, forces: Array) -> tuple[Array, Array]:
        """Returns the loads of the loop joints (..., nk, 6) and of the links' inboard joints (..., nl, 6), from one
        solution lambda (..., m); of all solutions the one with the least squares of the loads of all joints.
        """
        joints, state, tangent = self.loops.joints, self.state, self.tangent
        loads = joints.wrenches(forces)
        inboard = self.tree("link_motion", self.q, self.v, a, wrenches=joints.on_links(state, loads)).load
        rank = int(tangent.rank.min(initial=0.0 if not tangent.rank.size else np.inf))
        dependent = np.arange(rank, tangent.U.shape[-1]) >= tangent.rank[..., None]
        redundant = np.swapaxes(tangent.U[..., :, rank:], -1, -2) * dependent[..., None]
        if redundant.shape[-2]:
            # Loads that balance each other, so that joints transmit them without motion, weight or effort.
            idle = joints.wrenches(redundant)
            at_idle = LoopState(*(x[..., None, *(slice(None),) * n] for x, n in zip(state, _STATE_AXES, strict=True)))
            no_motion = np.zeros(self.loops.nv)
            idle_inboard = ask(
                self.loops.kinematics,
                "link_motion",
                self.q[..., None, :],
                no_motion,
                no_motion,
                gravity=np.zeros(3),
                wrenches=joints.on_links(at_idle, idle),
            ).load
            all_idle = np.concatenate([idle, idle_inboard], axis=-2)
            entries = 6 * all_idle.shape[-2]
            columns = np.swapaxes(all_idle.reshape(*all_idle.shape[:-2], entries), -1, -2)
            now = np.concatenate(with_common_lead([loads, inboard], 2), axis=-2)
            share = -times(pseudo_inverse(columns), now.reshape(*now.shape[:-2], entries))
            loads = loads + np.einsum("...d,...dki->...ki", share, idle)
            inboard = inboard + np.einsum("...d,...dki->...ki", share, idle_inboard)
        return loads, inboard


_STATE_AXES = (2, 2, 1, 2, 1, 3, 2)
"""Axes of the fields of a `LoopState` for one state."""

_OBJECTS = ("wrenches", "overlay", "link", "directions")


class ClosedLoops:
    """The closed loops of a robot.

    tree: the evaluator of the tree alone. description: of the robot with its loop joints. loaded: the loops of the
    robot as loaded, whose positions and motions are those of robots with other numbers; None: this is that robot.
    """

    def __init__(self, tree: Evaluator, description: Description, loaded: ClosedLoops | None = None) -> None:
        self.tree, self.loaded = tree, loaded
        self.kinematics = tree if loaded is None else loaded.tree
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

    @cached_property
    def simulation(self) -> ClosedSimulation:
        """The motions for simulations."""
        return ClosedSimulation(self)

    def call(self, row: Row, arguments: dict[str, Any]) -> Call:
        """Returns a call of a query for these loops."""
        return Call(self, row, arguments)

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

    def is_prepared(self, row: Query) -> bool:
        """Whether the kernels for regular states by which a query is answered are in memory, if there are any."""
        if self.loaded is not None:
            return self.loaded.is_prepared(row)
        if not any(answer_of(part).regular for part in row.parts or (row,)):
            return True
        compiled: LoopKernels | None = self.__dict__.get("compiled")
        return "compiled" in self.__dict__ and (compiled is None or compiled.are_prepared)

    def prepare(self, row: Query, *, make: bool) -> bool:
        """Loads the kernels for regular states by which a query is answered; returns whether they are in memory.

        make: whether missing ones are compiled.
        """
        if not self.is_prepared(row) and self.compiled is not None:
            self.compiled.prepare(make=make)
        return self.is_prepared(row)

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
        text = f"its loop closes in none of {SAMPLES} random configurations: the smallest gap is {_gap_text(error)}"
        return Note("warning", f"joint '{joint.name}'", text, joint.line, "open-loop")

    def freedom_at(self, tangent: Tangent, state: LoopState) -> Freedom:
        """Returns `freedom`, or that of these states if it is unknown or their J_c has a larger rank."""
        if self.freedom is not None and tangent.rank.max(initial=0.0) <= self.freedom.rank:
            return self.freedom
        return freedom_of(self, tangent)

    def tangent(self, state: LoopState) -> Tangent:
        """Returns the motions that keep the loops closed at states."""
        return Tangent.of(state, self.unit, 0 if self.freedom is None else self.freedom.rank)

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
            f"{path} leaves the loop of joint '{name}' open{state_text(place[:-1])}: its gap is {_gap_text(error)}, "
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

    # Answers.

    def kernels(
        self, row: Query, method: str, variant: Variant = WITHOUT_WRENCHES
    ) -> list[tuple[Evaluator, tuple[Query, str, Variant]]]:
        """Returns the kernels of the tree by which a query is answered: their evaluator; row, method and variant."""
        if row.parts:
            return [kernel for part, choice in row.choices(method) for kernel in self.kernels(part, choice, variant)]
        if row.constant or refusal_of(row, method):
            return []
        answer = answer_of(row)
        kernels = [] if answer.function is not None else [(self.tree, (row, method, variant))]
        for query in (QUERIES[name] for name in (*answer.queries, *(["point_motion"] if row.pose else []))):
            pushed = query.wrenches is not None and (variant.wrenches or query.name in WITH_LOADS)
            overlaid = variant.overlay and query.overlay is not None and query.name not in KINEMATIC
            evaluator = self.kinematics if query.name in KINEMATIC else self.tree
            choice = method if query is row else next(iter(query.kernels))
            kernels.append((evaluator, (query, choice, Variant(pushed, overlaid))))
        return kernels

    def answer(self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...], out: Any, workers: Any) -> Any:
        """Answers a query, as `Evaluator.answer`.

        Raises:
            InvalidArgumentError: The position leaves a loop open, or the motion opens it.
            FailedPreconditionError: The query has no answer for this robot or state.
        """
        if row.constant:
            result = self._constant(row, required, optional)
        elif row.parts:
            arguments = row.named(required, optional)
            result = {part.name: self._part(part, row, arguments, workers) for part in row.parts}
        else:
            result = self._answer(row, row.named(required, optional), workers)
        return result if out is None else fill(row, result, output_arrays(row, out))

    def _part(self, part: Query, row: Query, arguments: Mapping[str, Any], workers: Any) -> Any:
        """Returns the answer of one query of a list."""
        defaults = dict(zip(part.optional_arguments, part.argument_defaults, strict=True))
        names = (*part.required, *part.optional_arguments)
        return self._answer(part, {name: arguments.get(name, defaults.get(name)) for name in names}, workers)

    def _constant(self, row: Query, required: tuple[Any, ...], optional: tuple[Any, ...]) -> Any:
        if row.name != "constraint_bases":
            return self.tree.answer(row, required, optional)
        tree = self.tree.answer(row, required, (None,))
        bases = self.joints.bases
        padded = [np.pad(G_hat, ((0, 0), (0, 6 - G_hat.shape[1]))) for G_hat in bases]
        rows, names = self.joint_rows(row.named(required, optional)["joints"])
        basis = np.concatenate([tree.basis, padded])[rows]
        return ConstraintBases(
            names, basis, np.concatenate([tree.directions, [float(G_hat.shape[1]) for G_hat in bases]])[rows]
        )

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

    def _answer(self, row: Query, arguments: dict[str, Any], workers: Any) -> Any:
        self.check_unlocked(row, arguments.get(row.overlay or ""))
        options = checked_options(row, {name: arguments[name] for name in row.options})
        if refusal := refusal_of(row, options[row.kernel_option] if row.kernel_option else ""):
            raise FailedPreconditionError(f"{row.name} has no answer for robot '{self.name}': {refusal}")
        call = Call(self, row, dict(arguments))
        regular_answer = answer_of(row).regular
        if regular_answer is None or self.compiled is None:
            return self._by_singular_values(call, workers)
        if row.name != "forward_dynamics" and not self.drives_determine_motion:
            return self._by_singular_values(call, workers)
        with np.errstate(all="ignore"):
            result, regular = regular_answer(call, self.compiled)
        if regular.all():
            return result
        return np.where(regular[..., None], result, self._by_singular_values(call, workers))

    def check_unlocked(self, row: Row, overlay: Any = None) -> None:
        """Refuses locked joints, of the robot or of an overlay.

        Raises:
            FailedPreconditionError: Joints are locked.
        """
        if self.tree.model.tree.free is not None or (overlay is not None and overlay.locked):
            raise FailedPreconditionError(
                f"{row.name} has no answer for robot '{self.name}': an overlay locks joints of closed loops; make "
                "them fixed in the robot's file"
            )

    def _by_singular_values(self, call: Call, workers: Any) -> Any:
        row, arguments = cast("Query", call.row), call.arguments
        answer = answer_of(row)
        if row.pose is not None and not answer.opens:
            self._check(call)
        if answer.function is not None:
            return answer.function(call)
        required = tuple(arguments[name] for name in row.required)
        optional = tuple(arguments[name] for name in row.optional_arguments)
        return self.tree.answer(row, required, optional, None, workers)

    def _check(self, call: Call) -> None:
        state, row = call.state, call.row
        self.check_closed(state, row.first("position") or "q")
        velocity, acceleration = row.first("velocity"), row.first("acceleration")
        if velocity is not None:
            self.check_kept(state, call.v, 0.0, 0.0, velocity)
        if acceleration is not None and not answer_of(row).reference:
            a = call.input("acceleration")
            self.check_kept(state, a, state.bias, call.bias_size, acceleration)


def _gap_text(error: Array) -> str:
    """Returns the error (6,) of a loop joint, rad and m, as text."""
    return f"{np.linalg.norm(error[3:]):.3g} m and {np.linalg.norm(error[:3]):.3g} rad"


# Computations.


def loop_error(robot: Any, q: Any) -> Array:
    """Returns the errors of the loop joints; arguments and errors are those of `RobotQueries.loop_error`."""
    call = _call(robot, "loop_error", q=q)
    if call is None:
        return np.zeros((*vectors("q", q, robot.nq).shape[:-1], 0, 6))
    return call.state.error


def assemble(robot: Any, q: Any, *, fixed: Sequence[str] | None = None) -> Array:
    """Returns the nearest closed positions; arguments and errors are those of `RobotQueries.assemble`."""
    call, start = _call(robot, "assemble", q=q), vectors("q", q, robot.nq)
    checked_option(COMPUTATIONS["assemble"].options["fixed"], fixed)
    for k, name in enumerate(fixed or ()):
        if name not in robot.joint_names:
            raise _no_movable_joint(name, robot.configuration, robot.name, _loop_joints(robot), f"fixed[{k}]")
    if not np.isfinite(start).all():
        raise InvalidArgumentError("q must have finite numbers", path="q")
    if call is None:
        return np.array(start)
    loops, lead = call.loops, start.shape[:-1]
    start = loops.configuration.unit(start, "q").reshape(-1, loops.configuration.nq)
    if (place := first_place(~np.isfinite(loops.joints.state(start, None).rows).all(axis=(-2, -1)))) is not None:
        largest = float(np.abs(start[place]).max())
        raise InvalidArgumentError(
            f"q has a number too large for poses of links, {largest:g}; begin nearer to a closed position", path="q"
        )
    assembled, iterations = loops.assembly(fixed or ()).nearest(start)
    closing = loops.joints.state(assembled, np.zeros(loops.nv))
    place = first_place(~(loops.gaps(closing) <= CLOSED))
    if place is not None:
        state, gap = np.unravel_index(place[0], lead), closing.error[place]
        raise FailedPreconditionError(
            f"assemble found no closed position{state_text([int(k) for k in state])} near q within the limits: after "
            f"{iterations} iterations the loop of joint '{loops.joints.names[place[-1]]}' has a gap of "
            f"{_gap_text(gap)}; begin nearer to a closed position, or fix fewer joints"
        )
    return assembled.reshape(call.q.shape)


def independent_motion(
    robot: Any, q: Any, v: Any, *, independent: Sequence[str] | None = None, gravity: Any = None
) -> IndependentMotion:
    """Returns the motion in independent velocities; arguments and errors are those of
    `RobotQueries.independent_motion`.
    """
    call = _call(robot, "independent_motion", q=q, v=v, gravity=gravity)
    if call is None:
        return _independent_tree(robot, q, v, independent, gravity)
    rows, G, a, freedom = _of_independent(call, independent)
    G_T = np.swapaxes(G, -1, -2)
    motion = IndependentMotion(
        rows,
        G,
        a,
        G_T @ call.tree("mass_matrix", call.q) @ G,
        times(G_T, call.tree("inverse_dynamics", call.q, call.v, a)),
        freedom,
        derivatives.idle_efforts(call, rows, G),
    )
    return _with_common_lead(motion)


def _with_common_lead(motion: IndependentMotion) -> IndependentMotion:
    """Returns a motion whose arrays all have the leading axes of the states, as every output of a row."""
    arrays = {name: np.asarray(getattr(motion, name)) for name in COMPUTATIONS["independent_motion"].outputs}
    axes = {name: x.ndim - len(COMPUTATIONS["independent_motion"].outputs[name].shape) for name, x in arrays.items()}
    lead = np.broadcast_shapes(*(x.shape[: axes[name]] for name, x in arrays.items()))
    return IndependentMotion(
        **{name: np.array(np.broadcast_to(x, (*lead, *x.shape[axes[name] :]))) for name, x in arrays.items()}
    )


def _of_independent(call: Call, independent: Sequence[str] | None) -> tuple[Array, Array, Array, Array]:
    """Returns S_u (nu, nv), G (..., nv, nu), the accelerations at constant u (..., nv), and the freedom (...)."""
    loops, kernels = call.loops, call.loops.compiled
    regular = np.zeros((), dtype=bool)
    if kernels is not None and independent is None:
        with np.errstate(all="ignore"):
            G, a_p, shares = kernels.independent_motion(call.q, call.v)
            a = a_p - times(G, a_p[..., kernels.independent])
        rows, regular = np.eye(loops.nv)[kernels.independent], (shares <= REGULAR).all(axis=-1)
        if regular.all():
            return rows, G, a, np.full(regular.shape, float(len(rows)))
    loops.check_closed(call.state, "q")
    loops.check_kept(call.state, call.v, 0.0, 0.0, "v")
    selected = loops.selection(independent, call.state)
    G_all = loops.from_independent(call.tangent, selected)
    a_all = call.independent_acceleration(np.zeros(len(selected)), selected)
    if regular.any() and np.array_equal(rows, selected):  # so that no answer depends on the other states
        G_all, a_all = np.where(regular[..., None, None], G, G_all), np.where(regular[..., None], a, a_all)
    return selected, G_all, a_all, np.where(call.tangent.exists, call.tangent.free.sum(axis=-1), np.nan)


def _independent_tree(robot: Any, q: Any, v: Any, independent: Sequence[str] | None, gravity: Any) -> IndependentMotion:
    """Returns the motion of a robot without loops, whose velocities are all independent."""
    M, bias = robot.mass_matrix(q), robot.bias_forces(q, v, gravity=gravity)
    free = robot.evaluator.model.tree.free
    is_free = np.ones(robot.nv, dtype=bool) if free is None else free > 0.0
    default = np.flatnonzero(is_free).tolist()
    entries = entries_of(robot.configuration, len(default), independent, default, robot.name)
    for k in entries:
        if not is_free[k]:
            raise InvalidArgumentError(
                f"independent has joint '{robot.configuration.velocity_joints[k]}', which an overlay locks; name "
                "joints that move",
                path="independent",
            )
    rows = np.eye(robot.nv)[entries]
    M, zeros, freedom = rows @ M @ rows.T, np.zeros(bias.shape), np.array(float(len(entries)))
    idle = np.zeros((robot.nv, robot.nv))
    return _with_common_lead(IndependentMotion(rows, rows.T, zeros, M, times(rows, bias), freedom, idle))


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
            raise _no_movable_joint(name, configuration, robot, loop_joints, "independent")
    entries = [k for name in independent for k, joint in enumerate(joints) if joint == name]
    if len(set(entries)) != count or len(set(entries)) != len(entries):
        raise InvalidArgumentError(
            f"independent has {len(entries)} velocities, expected {count}, the degrees of freedom of robot "
            f"'{robot}', each once",
            path="independent",
        )
    return entries


def _loop_joints(robot: Any) -> tuple[str, ...]:
    loops: ClosedLoops | None = robot.evaluator.closed_loops
    return () if loops is None else loops.joints.names


def _no_movable_joint(
    name: str, configuration: Configuration, robot: str, loop_joints: Sequence[str], path: str
) -> NotFoundError:
    """Returns the error for a name that is no movable joint of a robot."""
    if name in loop_joints:
        text = f"joint '{name}' of robot '{robot}' closes a loop, so it has no entries in q and v"
        return NotFoundError(f"{text}; its movable joints are {', '.join(configuration.names)}", path=path)
    hint = known_instead(name, configuration.names, "its movable joints are")
    return NotFoundError(f"robot '{robot}' has no movable joint '{name}'{hint}", path=path)


def _call(robot: Any, name: str, **arguments: Any) -> Call | None:
    """Returns the call of a computation; None if the robot has no closed loops."""
    loops: ClosedLoops | None = robot.evaluator.closed_loops
    if loops is None:
        return None
    loops.check_unlocked(COMPUTATIONS[name])
    return Call(loops, COMPUTATIONS[name], arguments)


def cost(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of a computation about closed loops; of `assemble` with the iterations of an ordinary start."""
    lead = leading(
        [*(given_shape(inputs.get(name), 1) for name in ("q", "v", "gravity")), overlay_lead(inputs.get("overlay"))]
    )
    n, states = sizes["nv"], count(lead)
    loops, (iterations, batch_iterations) = sizes["nk"], _ITERATIONS if "fixed" in options else (1, 1)
    numbers = n * (4 * n + 2) + 6 * n
    work = CALL_S + states * numbers * NUMBER_S
    if loops:
        state_s = loops * (sizes["nl"] * BODY_S + _LOOP_S) + 40 * n**3 * CUBE_S
        work += iterations * 10 * CALL_S * loops + batch_iterations * states * state_s
    reply = 8 * states * numbers
    return Cost(work, COPIES * reply + 8 * states * 30 * n**2, reply, lead)


_LOOP_S, _ITERATIONS = 5e-6, (20, 100)
"""Cost of a loop joint of one state; and calls of `point_motion` by which `assemble` closes the loops of one state, and
of a batch, all of whose states iterate until the last one is closed, each with singular values.
"""
