"""Closed loops as a query of a study, `closed_loop`: a rollout with a compiled law for each state.

    outputs = {"error": {"query": "closed_loop", "output": "final_error", "options": {"law": "computed_torque",
               "q_ref": [..], "kp": 100, "kd": 20, "dt": 1e-3, "steps": 2000, "tolerance": 0.01}}}

A state is a start q, v and, by the overlay, a robot. The law knows the robot as described. A rollout that diverges has
no finite result, code 1 of a study. The same state alone has the same bits: `replay`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from dyn_service.api.arguments import mapped
from dyn_service.api.arrays import Array
from dyn_service.api.cost import overlay_lead
from dyn_service.api.laws import ComputedTorqueLaw, PDLaw, StateFeedbackLaw
from dyn_service.engine.robot import Robot
from dyn_service.simulation.divergence import DivergedError
from dyn_service.studies.keys import check_names, wrong
from dyn_service.support.optional import load

LAWS: Mapping[str, Any] = {"pd": PDLaw, "computed_torque": ComputedTorqueLaw, "state_feedback": StateFeedbackLaw}

HOW = ("dt", "steps", "integrator", "effort_limits")
"""Options that are arguments of `Robot.simulate`."""

OUTPUTS: Mapping[str, tuple[str, str]] = {
    "success": ("1", "1 if the final error is within the tolerance, else 0"),
    "final_error": ("rad | m", "largest position error of a joint at the end"),
    "largest_error": ("rad | m", "largest position error of a joint, from its set point, in the second half"),
    "final_speed": ("rad/s | m/s", "largest speed of a joint at the end"),
}

_RECORDS = 64
"""The fewest records of a rollout of at least as many steps; the last one is its end."""

_MOST_RECORDS = 1 << 19
"""Records at a time, of all states of a batch."""


class ClosedLoop:
    """Answers the query `closed_loop` of a study.

    Args:
        robot: The robot that the law knows.
        options: `law`: one of `LAWS`, and the fields of its class; `dt` s, `steps`, `integrator`; `tolerance`.
    """

    required = ("q", "v")
    accepted = frozenset({*required, "overlay"})

    def __init__(self, robot: Robot, options: Mapping[str, Any]) -> None:
        self.robot = robot
        values = dict(options)
        name = values.pop("law", "")
        check_names("options.law", "law", [name], LAWS)
        law_fields = [option for option in fields(LAWS[name]) if option.name != "model"]
        option_names = (*HOW, "tolerance", *(option.name for option in law_fields))
        check_names("options", f"option of closed_loop with the law {name} called", values, option_names)
        for option in ("dt", "steps", *(option.name for option in law_fields if option.default is MISSING)):
            if option not in values:
                raise wrong(f"options.{option}", f"is missing: closed_loop with the law {name} needs it")
        self.how: dict[str, Any] = {option: values.pop(option) for option in HOW if option in values}
        self.tolerance = float(values.pop("tolerance", 0.01))
        if values.get("limit") == "limits":
            values["limit"] = robot.limits.efforts
        try:
            self.how |= {"dt": float(self.how["dt"]), "steps": int(self.how["steps"])}
            numbers = {key: np.asarray(x, dtype=float) for key, x in values.items() if key != "compensation"}
            self.law = LAWS[name](**{"model": robot, **values, **numbers})
        except (TypeError, ValueError) as fault:
            raise wrong("options", f"closed_loop needs dt, steps and the numbers of the law: {fault}") from None
        steps = self.how["steps"]
        # Steps after the last record are not computed, so records are a divisor of the steps apart.
        self.how["every"] = next(k for k in range(max(1, steps // _RECORDS), 0, -1) if steps % k == 0)

    def template(self, state: Mapping[str, Any]) -> Any:
        """Returns the labelled answer at one state."""
        outputs = self(state)
        variables = {name: ((), outputs[name], {"units": u, "long_name": text}) for name, (u, text) in OUTPUTS.items()}
        return load("a study", "xarray").Dataset(variables)

    def replay(self, state: Mapping[str, Any]) -> Any:
        """Returns the motion of one state of the study, from `Study.state`."""
        return self.robot.simulate(state["q"], state["v"], self.law, overlay=state.get("overlay"), **self.how)

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the outputs at a block of states."""
        q, v, overlay = np.asarray(inputs["q"]), np.asarray(inputs["v"]), inputs.get("overlay")
        lead = np.broadcast_shapes(q.shape[:-1], v.shape[:-1], overlay_lead(overlay))
        count = math.prod(lead)
        q, v = (np.broadcast_to(x, (*lead, x.shape[-1])).reshape(count, x.shape[-1]) for x in (q, v))

        def flat(x: Any, axes: int, _: str) -> Any:
            x = np.asarray(x)
            core = x.shape[x.ndim - axes :]
            return x if x.ndim == axes else np.broadcast_to(x, (*lead, *core)).reshape(count, *core)

        robots = None if overlay is None else mapped(overlay, flat)
        batch_size = max(1, _MOST_RECORDS // (self.how["steps"] // self.how["every"] + 1))
        parts = [np.zeros((0, len(OUTPUTS)))]
        for begin in range(0, count, batch_size):
            batch = slice(begin, begin + batch_size)
            parts += self._rollouts(q[batch], v[batch], None if robots is None else mapped(robots, _rows(batch)))
        rows = np.concatenate(parts)
        return {name: rows[:, k].reshape(lead) for k, name in enumerate(OUTPUTS)}

    def _rollouts(self, q: Array, v: Array, overlay: Any) -> list[Array]:
        """Returns the outputs (states, outputs) in parts; those of a batch that fails half by half."""
        try:
            motion = self.robot.simulate(q, v, self.law, overlay=overlay, **self.how)
        # Other errors concern the robot or the options, and end the study.
        except DivergedError:
            if len(q) == 1:
                return [np.full((1, len(OUTPUTS)), np.nan)]
            middle = len(q) // 2
            return [
                part
                for half in (slice(0, middle), slice(middle, None))
                for part in self._rollouts(q[half], v[half], None if overlay is None else mapped(overlay, _rows(half)))
            ]
        goal = np.asarray(self.law.q_ref)
        # The set point at each record, of which the law holds the last one.
        if goal.ndim > 1:
            steps = np.arange(motion.q.shape[-2]) * self.how["every"]
            goal = goal[..., np.minimum(steps, goal.shape[-2] - 1), :]
        error = np.abs(self.robot.configuration.error(motion.q, goal)).max(axis=-1)
        late = error[..., error.shape[-1] // 2 :].max(axis=-1)
        speed = np.abs(motion.v[..., -1, :]).max(axis=-1)
        good = (error[..., -1] <= self.tolerance).astype(np.float64)
        return [np.stack([good, error[..., -1], late, speed], axis=-1)]


def _rows(part: slice) -> Any:
    """Returns the function that selects robots of an overlay."""
    return lambda x, axes, _: np.asarray(x)[part] if np.ndim(x) > axes else x
