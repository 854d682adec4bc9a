"""Answers for robots whose links form closed loops, from the kernels of their tree.

At regular states, compiled kernels give the answers (`kernels`, `Answer.regular`); the singular values of `call` are
for all other states, loads and errors.

`answers.ANSWERS` is the table of the queries; `simulation` has the motions for simulations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import numpy as np

from dyn_service.api.inputs import checked_options
from dyn_service.api.outputs import fill, output_arrays
from dyn_service.api.queries import QUERIES, Query, Row
from dyn_service.api.results import ConstraintBases
from dyn_service.api.spec import WITHOUT_WRENCHES, Variant
from dyn_service.engine.loops.answers import KINEMATIC, WITH_LOADS, answer_of, refusal_of
from dyn_service.engine.loops.call import Call
from dyn_service.engine.loops.closed_loops import ClosedLoops
from dyn_service.engine.loops.kernels import LoopKernels
from dyn_service.engine.loops.simulation import ClosedSimulation
from dyn_service.engine.loops.tree_evaluator import TreeEvaluator
from dyn_service.errors import FailedPreconditionError


class LoopQueries(ClosedLoops):
    """The queries of a robot with closed loops."""

    @cached_property
    def simulation(self) -> ClosedSimulation:
        """The motions for simulations."""
        return ClosedSimulation(self)

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

    def kernels(
        self, row: Query, method: str, variant: Variant = WITHOUT_WRENCHES
    ) -> list[tuple[TreeEvaluator, tuple[Query, str, Variant]]]:
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
