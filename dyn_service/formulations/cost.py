"""Predicted cost of verification and of gait segments: dense operators, (6n)^2 memory and (6n)^3 time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dyn_service.api.cost import COPIES, Cost, Lead, count, given_shape, leading, overlay_lead
from dyn_service.api.spec import Dimensions

STATE_S, BODY_S, CUBE_S = 3e-3, 4e-4, 1e-9
"""Verification of one state: its beginning, each body, and each of the (6n)^3 steps of its dense operators."""

SEGMENT_S, SEGMENT_FRAME_S = 2e-4, 5e-7
"""A segment of the recursion, and each of its frames."""

BLOCK_S, BLOCK_FRAME_S, ENTRY_S, SOLVE_CUBE_S = 4e-4, 2e-6, 4e-9, 2e-10
"""A segment of the matrix, each of its frames; one of its (6n)^2 entries, and one of the (6n)^3 steps to solve."""

_SEGMENT_INPUTS = {"mass": 1, "inertia": 3, "rotation": 3, "ground_force": 1, "ground_moment": 1, "gravity": 1}
"""How many axes of their own inputs have that are not (n, 3)."""

_VECTORS = (
    "acceleration", "omega", "omega_dot", "proximal", "distal", "external_force", "external_moment", "external_point",
)  # fmt: skip


def verify(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """The cost of verification; as `Computation.cost`, like all that follow."""
    shapes = [given_shape(inputs.get(name), 1) for name in ("q", "v", "a", "gravity")]
    return of_states(sizes, leading([*shapes, overlay_lead(inputs.get("overlay"))]))


def of_states(sizes: Dimensions, lead: Lead) -> Cost:
    """The cost of the verification of a batch of states."""
    states, n = count(lead), sizes["nl"]
    work = states * (STATE_S + n * BODY_S + (6 * n) ** 3 * CUBE_S)
    # Rows of all links, the largest of them the loads of joints, and the operators of one state at a time.
    memory = 8 * (states * (40 * n + 4 * sizes["nv"] ** 2) + 8 * (6 * n) ** 2)
    # 14 residuals per state.
    reply = 8 * 14 * states
    return Cost(work, COPIES * reply + memory, reply, lead)


def segment_inverse_dynamics(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """The cost of the loads on a chain of segments."""
    if options["method"] == "matrix":
        return segment_matrices(sizes, inputs, options)
    n, frames = _chain(inputs)
    reply = 8 * frames * 6 * n
    work = n * (SEGMENT_S + frames * SEGMENT_FRAME_S)
    return _cost(inputs, work, COPIES * reply + 8 * frames * 60 * n, reply)


def segment_matrices(sizes: Dimensions, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Cost:
    """The cost of the matrix of a chain of segments."""
    n, frames = _chain(inputs)
    rows = 6 * n
    bodies = count(leading(given_shape(inputs.get(name), axes) for name, axes in (("mass", 1), ("inertia", 3))))
    reply = 8 * (frames * (rows**2 + 6 * rows) + bodies * rows**2)
    work = n * (BLOCK_S + frames * BLOCK_FRAME_S) + frames * (rows**2 * ENTRY_S + rows**3 * SOLVE_CUBE_S)
    return _cost(inputs, work, COPIES * reply + 8 * frames * (rows**2 + 60 * n), reply)


def _chain(inputs: Mapping[str, Any]) -> tuple[int, int]:
    mass = inputs["mass"]
    return mass.shape[-1] if mass.ndim else 1, count(_frames(inputs))


def _frames(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    axes = {**dict.fromkeys(_VECTORS, 2), **_SEGMENT_INPUTS}
    return leading(given_shape(inputs.get(name), number) for name, number in axes.items())


def _cost(inputs: Mapping[str, Any], work: float, memory: int, reply: int) -> Cost:
    input_bytes = sum(x.nbytes for x in inputs.values() if isinstance(x, np.ndarray))
    return Cost(work, memory + input_bytes, reply, _frames(inputs), segments=_chain(inputs)[0])
