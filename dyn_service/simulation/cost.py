"""Predicted cost of a part of a simulation: states x steps x evaluations of the equation of motion.

For steps with a variable number of evaluations (`adaptive`, `implicit_midpoint`), the prediction is the minimum for an
ordinary motion; a server also has to check the elapsed time, see `progress`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dyn_service.api.cost import (
    BODY_S,
    CALL_S,
    COPIES,
    CUBE_S,
    WRENCH_S,
    WRENCH_STATE_S,
    Cost,
    Lead,
    count,
    given_shape,
    leading,
    overlay_lead,
    wrench_shapes,
)
from dyn_service.api.queries import Integrator
from dyn_service.api.spec import Dimensions
from dyn_service.simulation.task import LIMITS

EVALUATIONS: Mapping[Integrator, int] = {
    "auto": 4,
    "explicit_euler": 1,
    "semi_implicit_euler": 1,
    "rk4": 4,
    "implicit_midpoint": 6,
    "adaptive": 10,
    "stick_slip": 3,
}
"""Evaluations of the equation of motion per step."""

STICK_S = 1e-4
"""Cost of the iterations of one `stick_slip` step of one state, without the linear solves."""

SUPPORT_S, SUPPORT_STATE_S, SUPPORT_ENTRY_S = 6e-4, 2e-6, 4e-9
"""Cost of limits and contacts per evaluation: fixed, per state, and per entry of a Jacobian."""

MIN_S = 1e-3
"""Cost of a minimisation in `contact/steps.py` without the linear solves, and their number."""
_ITERATIONS = 10

_CONFIGURATIONS = 8
"""Cost of checking the inertia before the first step."""

SOLVE_S, SOLVE_CUBE_S = 3e-6, 3e-10
"""Cost of a LAPACK solve for one state: fixed, and per n^3."""

CLOSING_S, CLOSING_STATE_S = 2e-3, 1e-4
"""Cost of the loop joints for an evaluation of all states, and of each: several Newton steps in NumPy."""

_ALIVE = 24
"""Vectors per state that a step keeps in memory, independent of the records."""


def simulate(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of a part of a motion; see `Computation.cost`."""
    cost = _simulate_tree(sizes, inputs, options)
    return cost.plus(_closed_loops(sizes, options, cost.lead)) if sizes["nk"] else cost


def _simulate_tree(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    wrenches = inputs.get("wrenches") or ()
    samples = [given_shape(inputs.get("tau"), 2), *wrench_shapes(wrenches, 2)]
    lead = leading([*_states(inputs, "q", "v", "p", "gravity"), *samples, overlay_lead(inputs.get("overlay"))])
    steps, stride = options["steps"], max(options["every"], 1)
    evaluations = EVALUATIONS[options["integrator"]] if steps else 1
    cubes = options["method"] == "mass_matrix"
    # Steps after the last record are not computed.
    n_steps = max(steps // stride * stride, 1)
    numbers = sizes["nq"] + 2 * sizes["nv"]
    work = n_steps * evaluations * _evaluation_s(sizes, count(lead), len(wrenches), cubes=cubes)
    if options["integrator"] == "stick_slip":
        work += n_steps * count(lead) * (STICK_S + 3 * sizes["nv"] ** 3 * SOLVE_CUBE_S)
    contacts = len(inputs.get("contacts") or ())
    if not contacts and not any(options[name] for name in LIMITS):
        return _cost(work, lead, steps, stride, numbers, sizes, inputs)
    rows = 3 * contacts + (2 * sizes["nv"] if options["position_limits"] or options["velocity_limits"] else 0)
    evaluations = 1 if options["integrator"] == "stick_slip" else evaluations
    evaluations_total = n_steps * evaluations + _CONFIGURATIONS
    entries = 6 * sizes["nl"] * sizes["nv"] * bool(contacts) + rows * sizes["nv"]
    work += evaluations_total * (SUPPORT_S + count(lead) * (SUPPORT_STATE_S + entries * SUPPORT_ENTRY_S))
    if options["integrator"] == "stick_slip":
        work += n_steps * count(lead) * (MIN_S + _ITERATIONS * (sizes["nv"] + rows) * sizes["nv"] ** 2 * SOLVE_CUBE_S)
    elif any(contact.rigid for contact in inputs.get("contacts") or ()):
        work += evaluations_total * count(lead) * (SOLVE_S + (sizes["nv"] + rows) ** 3 * SOLVE_CUBE_S)
    numbers += 3 * contacts + 2 * sizes["nv"] + 8
    cost = _cost(work, lead, steps, stride, numbers, sizes, inputs)
    work_bytes = 8 * (count(lead) + _CONFIGURATIONS) * 8 * entries
    return cost._replace(bytes=cost.bytes + work_bytes, contacts=contacts)


def _closed_loops(sizes: Dimensions, options: Mapping[str, Any], lead: Lead) -> Cost:
    """Returns what closed loops add to the cost of `simulate`."""
    evaluations = EVALUATIONS[options["integrator"]] * max(options["steps"], 1)
    work = evaluations * (CLOSING_S + count(lead) * (CLOSING_STATE_S + 20 * sizes["nv"] ** 3 * SOLVE_CUBE_S))
    return Cost(work, 8 * count(lead) * 60 * sizes["nv"] ** 2, 0, lead)


def contact_dynamics(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of accelerations with rigid contacts."""
    wrenches = inputs.get("wrenches") or ()
    leads = [*wrench_shapes(wrenches, 1), overlay_lead(inputs.get("overlay"))]
    lead = leading([*_states(inputs, "q", "v", "tau", "gravity"), *leads])
    contacts, n, states = len(inputs["contacts"]), sizes["nv"], count(lead)
    entries = 6 * sizes["nl"] * n + 6 * contacts * n + 9 * contacts**2
    work = 6 * _evaluation_s(sizes, states, 0, cubes=False) + _evaluation_s(sizes, states, len(wrenches), cubes=False)
    work += SUPPORT_S + states * (SUPPORT_STATE_S + entries * SUPPORT_ENTRY_S)
    work += states * (SOLVE_S + (n + 3 * contacts) ** 3 * SOLVE_CUBE_S)
    cost = _cost(work, lead, 0, 1, n + 3 * contacts + 2, sizes, inputs)
    return cost._replace(bytes=cost.bytes + 8 * states * 4 * (entries + n**2), steps=0, contacts=contacts)


def simulate_rheonomic(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """Returns the cost of a part of a motion with prescribed joints: mass matrix, inverse dynamics and a solve per
    stage.
    """
    wrenches = inputs.get("wrenches") or ()
    leads = [given_shape(inputs.get("tau"), 2), given_shape(inputs.get("prescribed"), 3), *wrench_shapes(wrenches, 1)]
    lead = leading([*_states(inputs, "q", "v", "gravity"), *leads, overlay_lead(inputs.get("overlay"))])
    steps, stride = options["steps"], max(options["every"], 1)
    n, states = sizes["nv"], count(lead)
    stage = 2 * _evaluation_s(sizes, states, len(wrenches), cubes=False) + 2 * CALL_S
    stage += states * (SOLVE_S + n**3 * SOLVE_CUBE_S)
    numbers = sizes["nq"] + 3 * n
    return _cost((4 * steps + 1) * stage, lead, steps, stride, numbers, sizes, inputs)


def _states(inputs: Mapping[str, Any], *names: str) -> list[Lead]:
    return [given_shape(inputs.get(name), 1) for name in names]


def _evaluation_s(sizes: Dimensions, states: int, wrenches: int, *, cubes: bool) -> float:
    n = sizes["nl"]
    state_s = n * BODY_S + (n**3 * CUBE_S if cubes else 0.0)
    return CALL_S + wrenches * (WRENCH_S + states * WRENCH_STATE_S) + states * state_s


def _cost(
    work: float, lead: Lead, steps: int, stride: int, numbers: int, sizes: Dimensions, inputs: Mapping[str, Any]
) -> Cost:
    states, records, wrenches = count(lead), steps // stride + 1, len(inputs.get("wrenches") or ())
    reply = 8 * records * (states * numbers + 1)
    work_bytes = 8 * states * (_ALIVE * numbers + (24 * sizes["nl"] if wrenches else 0))
    input_bytes = sum(x.nbytes for x in inputs.values() if isinstance(x, np.ndarray))
    return Cost(work, COPIES * reply + work_bytes + input_bytes, reply, lead, steps=steps, wrenches=wrenches)
