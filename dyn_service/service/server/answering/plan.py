"""What the server knows about a robot beforehand, so that little is left to do for each request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from dyn_service.api.cost import Cost, answer_numbers
from dyn_service.api.description import Sizes
from dyn_service.api.inputs import check_names, checked_options
from dyn_service.api.queries import Array, Query
from dyn_service.api.spec import PUSHED, Kind, Variant
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.formulations.cost import of_states
from dyn_service.model.order import NAMES, Order, Orders
from dyn_service.service.protocol.arrays import pack_output
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.protocol.values import unpack
from dyn_service.service.server.administration.metrics import Durations
from dyn_service.service.server.answering.bounds import foretell, refuse_over
from dyn_service.service.server.answering.fast_path import StatePlan
from dyn_service.service.server.answering.finite import Diagnosis, NotFinite, first_not_finite

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

SLOW_BYTES = 16 << 10
"""A request or answer longer than this is work for another thread than the one that serves control loops."""

SLOW_WORK_S = 2.5e-4
"""So is more foretold work than this: a batch, more than four wrenches, large answers in world axes."""


class Plan:
    """One row of the table for one robot: reads a request's inputs, foretells the answer's cost, asks the robot."""

    def __init__(self, row: Query, robot: Robot, sizes: Sizes, durations: Durations, orders: Orders) -> None:
        self._row = row
        self._robot = robot
        self._orders = orders
        self._ask = getattr(robot, row.name)  # the method, not `evaluate`: it has a short way for single states
        self._sizes = sizes
        self._numbers = {name: spec.dims(sizes)[0] for name, spec in row.inputs.items() if spec.scalar}
        small = sizes["nv"] > 0 and len(row.inputs) > 0 and 8 * answer_numbers(row, sizes) <= SLOW_BYTES
        self._state = StatePlan(row, self._ask, sizes, durations, robot.configuration, orders) if small else None
        self.models = (UNSET, robot.fingerprint)
        """What a request may name as `model`."""
        self.state: StatePlan | None = None
        """The short way for single states, once the kernel is there."""
        self.refresh()

    @property
    def used_ns(self) -> int:
        """When the short way was last gone."""
        return 0 if self._state is None else self._state.used_ns

    @property
    def fingerprint(self) -> str:
        """The robot's fingerprint."""
        return self._robot.fingerprint

    def read_inputs(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], Order | None]:
        """The inputs as arrays and wrenches, in the robot's order; and that of the request, where it says one. Which
        shapes they must have is for the robot to say.

        Raises:
            InvalidArgumentError: An input is missing, unknown, or not what an input can be.
            NotFoundError: It names a joint that is none.
        """
        row, order = self._row, None
        if NAMES in raw:
            raw, order = self._orders.split(row, raw)
        check_names(row, raw)
        inputs: dict[str, Any] = {}
        for name, value in raw.items():
            if value is not None:
                path, spec = f"inputs.{name}", row.inputs[name]
                given = unpack(spec.kind, value, path)
                inputs[name] = given if order is None else order.inward(spec, given)
                if spec.kind == "position" and given.shape[-1:] == (self._sizes["nq"],):
                    self._robot.configuration.check_unit(inputs[name], name, path)
        return inputs, order

    def read_options(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """All options, those that were not given at their defaults.

        Raises:
            InvalidArgumentError: One is unknown, or not what it can be.
        """
        return checked_options(self._row, {name: value for name, value in raw.items() if value is not None})

    def afford(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], limits: RequestLimits, *, verify: bool
    ) -> Cost:
        """What the answer costs.

        Raises:
            ResourceExhaustedError: That is more than it may.
        """
        cost = foretell(self._row, self._sizes, inputs, options)
        if verify:
            cost = cost.beside(of_states(self._sizes, cost.lead))
        refuse_over(self._row, cost, limits)
        return cost

    def answer(
        self, inputs: Mapping[str, Any], options: Mapping[str, Any], order: Order | None = None
    ) -> dict[str, Any]:
        """The outputs by name, as a message carries them, in the order of who asks.

        Raises:
            DynError: What the robot raises.
        """
        vectors = {
            name: np.full(length, inputs[name]) for name, length in self._numbers.items() if inputs[name].ndim == 0
        }
        result = self._ask(**{**inputs, **vectors}, **options)
        row = self._row
        if order is not None:
            outputs = {row.output: result} if row.output else {name: getattr(result, name) for name in row.answers}
            return {name: pack_output(value) for name, value in order.outward(row, outputs).items()}
        if row.output is not None:
            return {row.output: pack_output(result)}
        return {name: pack_output(getattr(result, name)) for name in row.answers}

    def why(
        self, found: NotFinite, inputs: Mapping[str, Any], options: Mapping[str, Any], order: Order | None = None
    ) -> DynError:
        """Why an output is not finite."""
        if order is not None:
            found = replace(found, index=order.place(self._row, found.output, found.index))
        diagnosis = Diagnosis(self._acting, self._row, inputs, options)
        return diagnosis.of_output(found, lambda other: self.answer(other, options))

    def verification(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """The residuals at the request's state as plain values: numbers, or nested lists for a batch.

        Raises:
            DynError: What the robot raises; or a residual is not finite.
        """
        try:
            found = self.residuals(inputs, options)
            wrong = first_not_finite(found, "residuals")
        except np.linalg.LinAlgError:
            wrong = NotFinite("residuals", self._most_singular(inputs, options), math.nan)
        if wrong is not None:
            diagnosis = Diagnosis(self._acting, self._row, inputs, options)
            raise diagnosis.of_residual(wrong, lambda other: self.residuals(other, options))
        return {name: residual.tolist() for name, residual in found.items()}

    def _acting(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Robot:
        """Who answers these: the robot, otherwise where an overlay says so, or the bare one."""
        row, robot = self._row, self._robot
        overlay = inputs.get(row.overlay or "")
        robot = robot if overlay is None else robot.overlaid(overlay)
        return robot.acting(row, self._method(options), options.get(row.leaves_out or "", True))

    def _most_singular(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[int, ...]:
        """The state of a batch at which the mass matrix is nearest to having no inverse."""
        M = self._acting(inputs, options).mass_matrix(inputs[self._row.pose or ""])
        condition = np.asarray(np.linalg.cond(M))
        return tuple(int(k) for k in np.unravel_index(np.argmax(condition), condition.shape))

    def residuals(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Array]:
        """How far the formulations are apart at the request's state, (...,) each, for the robot that answers.

        Velocities and accelerations that the query does not take are zero; efforts are turned into the accelerations
        they produce. At that motion the formulations are compared without external wrenches.

        Raises:
            DynError: What the robot raises.
        """
        if self._row.constant:
            raise InvalidArgumentError(
                f"{self._row.name} takes no state, so there is nothing to verify", path="options.verify"
            )
        row, still = self._row, np.zeros(self._sizes["nv"])
        robot = self._acting(inputs, options)

        def given(kind: Kind) -> Any:
            name = row.first(kind)
            return None if name is None else inputs.get(name)

        q, v, a, gravity = (given(kind) for kind in ("position", "velocity", "acceleration", "gravity"))
        v = still if v is None else v
        if a is None:
            efforts, wrenches = given("effort"), given("wrenches")
            a = still
            if efforts is not None:
                a = robot.forward_dynamics(q, v, efforts, gravity=gravity, wrenches=wrenches)
        return robot.verify(q, v, a, gravity=gravity)

    def refresh(self, inputs: Mapping[str, Any] | None = None) -> None:
        """Opens the short way, if its kernels are there, without or with external wrenches.

        Args:
            inputs: Of a request that was just answered, as only such ways are looked for; None: of any.
        """
        state, row = self._state, self._row
        if state is None:
            return
        default = next(iter(row.kernels), "")
        if not state.plain:
            state.plain = self._robot.has_kernel(row, default)
        if not state.pushed and row.wrenches is not None and (inputs is None or row.wrenches in inputs):
            state.pushed = self._robot.has_kernel(row, default, PUSHED)
        if state.plain or state.pushed:
            self.state = state

    def has_kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Whether the kernel that a request needs is in this process."""
        method, variant, passive = self.kernel(inputs, options)
        return self._robot.has_kernel(self._row, method, variant, passive=passive)

    def kernel(self, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[str, Variant, bool]:
        """Which of the row's kernels a request needs: its method, what it takes beside, and whether what joints do by
        themselves acts in it.
        """
        row = self._row
        variant = Variant((row.wrenches or "") in inputs, (row.overlay or "") in inputs)
        return self._method(options), variant, options.get(row.leaves_out or "", True)

    def _method(self, options: Mapping[str, Any]) -> str:
        selector = self._row.selector
        return options.get(selector, "") if selector is not None else next(iter(self._row.kernels), "")
