"""Many steps of a simulation in compiled code, with the control law that acts in it.

The kernels of the law and of the step are called in turn (`kernels/rollout.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dyn_service.api.queries import QUERIES, Array
from dyn_service.api.spec import WITHOUT_WRENCHES, Kind
from dyn_service.engine.evaluator import Evaluator
from dyn_service.engine.rows import ask
from dyn_service.kernels.jit import host
from dyn_service.kernels.rollout import Stage, packed, run_stages
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.simulation.laws import Term

MAX_VELOCITIES = 1 << 20
"""Numbers of the velocities of all states that compiled code computes between two checks for Ctrl-C: tens of
milliseconds for a small robot, tenths of a second for a large one.
"""

_KINDS: Mapping[str, Kind] = {"q": "position", "v": "velocity", "q_ref": "position", "v_ref": "velocity"}
_INPUTS: Mapping[str, tuple[str, ...]] = {
    "joint_feedback": ("q", "v", "q_ref", "v_ref", "kp", "kd", "tau"),
    "state_feedback": ("q", "v", "q_ref", "v_ref", "position_gain", "velocity_gain", "tau"),
    "limited": ("tau", "added", "limit", "free"),
}
"""The functions of `dynamics/newton_euler.py`, which are not rows of the table, and their inputs."""


def signature_of_term(evaluator: Evaluator, name: str) -> Signature:
    """Returns the signature of a term of a law: of a row of the table or another function of `newton_euler`."""
    if name in QUERIES:
        return evaluator.signature(QUERIES[name], "", WITHOUT_WRENCHES)
    inputs, sizes = [], evaluator.model.client_description.sizes
    for x in _INPUTS[name]:
        kind = _KINDS.get(x, "effort" if x in ("tau", "added") else "gain")
        dims: tuple[str, ...] = ("nq",) if kind == "position" else ("nv", "nv") if x.endswith("_gain") else ("nv",)
        inputs.append(Operand(x, tuple(sizes[size] for size in dims), kind, dims=dims))
    output = Operand("tau", (sizes.nv,), "effort", dims=("nv",))
    padded = {operand.name: len(operand.shape) for operand in inputs if not operand.size}
    return Signature(name, f"newton_euler.{name}", "moving", tuple(inputs), (output,) if output.size else (), padded)


def evaluated(evaluator: Evaluator, name: str, inputs: Mapping[str, Array]) -> Array:
    """Returns the efforts (..., nv) of a term of a law at a state. inputs: (..., n) each; of a query also gravity."""
    if name in QUERIES:
        row = QUERIES[name]
        tau: Array = ask(evaluator, name, *(inputs[x] for x in row.required), **inputs)
        return tau
    signature = signature_of_term(evaluator, name)
    if signature.empty:
        return np.zeros(0)
    tau = evaluator.library.kernel(signature)(*(inputs[operand.name] for operand in signature.inputs))
    return tau


def repeat_steps(
    evaluator: Evaluator,
    integrator: str,
    state: Mapping[str, Array],
    records: Mapping[str, Array],
    every: int,
    dt: float,
    gravity: Array | None,
    tau: Array | str,
    law: Sequence[Term],
) -> bool:
    """Computes many steps, with the bits of repeated calls of `step`; returns whether it succeeded.

    It does nothing and returns False if a kernel is not in memory, which one call of `step` ensures, or cannot be
    called so (`KernelLibrary.block`), as of a robot without movable joints, or if M(q) is checked at each state.

    Args:
        evaluator: The robot.
        integrator: The option of `step`.
        state: q (..., nq) and v (..., nv) at the start.
        records: Set to positions and velocities after each `every` steps, (records, ..., n), with contiguous entries.
        every: Number of steps between two records.
        dt: s.
        gravity: (..., 3); None: the robot's own.
        tau: (steps, ..., nv) efforts of each step, or (1, ..., nv) if all are the same; or the name of a term's output.
        law: The terms of a law, in the order of their evaluation.
    """
    lead = state["q"].shape[:-1]
    states, steps = math.prod(lead), len(records["q"]) * every
    step = Term("step", {"q": "q", "v": "v", "tau": tau}, "", gravity=True)
    stages: list[Stage] = []
    for term in (*law, step):
        stage = _stage(evaluator, term, integrator if term is step else "", dt, gravity, lead)
        if stage is None:
            return False
        stages.append(stage)
    lanes = host().lanes
    # Whole vectors of states, so that no lane is wasted between two parts.
    batch = max(MAX_VELOCITIES // (steps * max(evaluator.model.configuration.nv, 1)) // lanes, 1) * lanes
    flat = {name: np.ascontiguousarray(x).reshape(states, x.shape[-1]) for name, x in state.items()}
    rows = {name: x.reshape(len(x), states, x.shape[-1]) for name, x in records.items()}

    for first in range(0, states, batch):
        part = slice(first, first + batch)
        of_part = [
            stage._replace(inputs={name: x if isinstance(x, str) else x[:, part] for name, x in stage.inputs.items()})
            for stage in stages
        ]
        starts, ends = ({name: x[part] for name, x in flat.items()}, {name: x[:, part] for name, x in rows.items()})
        run_stages(of_part, starts, ends, every)
    return True


def _stage(
    evaluator: Evaluator, term: Term, integrator: str, dt: float, gravity: Array | None, lead: tuple[int, ...]
) -> Stage | None:
    """Returns the stage of a term, or with an integrator that of the step; None if compiled code cannot compute it."""
    robot: Any = term.model  # one in this process: checked by the law
    term_evaluator = evaluator if robot is None else robot.evaluator
    step = QUERIES["step"]
    if integrator and term_evaluator.model.checks_states(step, integrator):
        return None
    signature = (
        term_evaluator.signature(step, integrator, WITHOUT_WRENCHES)
        if integrator
        else signature_of_term(term_evaluator, term.name)
    )
    # Called from compiled code, without the checks of a call: the kernels must be in memory already.
    block = term_evaluator.library.block(signature)
    if block is None:
        return None
    values: dict[str, Any] = term_evaluator.defaults_of(QUERIES[term.name]) if term.name in QUERIES else {}
    values |= {"gravity": gravity} if term.gravity and gravity is not None else {}
    # The first axis is that of the steps; defaults are the same in all of them.
    values = {name: x[None] for name, x in values.items()} | dict(term.inputs)
    values |= {"dt": np.array([[dt]])} if integrator else {}
    inputs = {
        operand.name: x
        if isinstance(x := values[operand.name], str)
        else _spread(packed(x, operand), operand.shape, lead)
        for operand in signature.inputs
    }
    names = {operand.name: operand.name if integrator else term.output for operand in signature.outputs}
    return Stage(block, inputs, names)


def _spread(x: Array, core: tuple[int, ...], lead: tuple[int, ...]) -> Array:
    """Returns (steps, states, *core) of the values (steps, ..., *core)."""
    lead_of_x, states = x.shape[1 : x.ndim - len(core)], math.prod(lead)
    if not lead_of_x:
        return np.broadcast_to(x[:, None], (len(x), states, *core))
    x = x.reshape(len(x), *(1,) * (len(lead) - len(lead_of_x)), *lead_of_x, *core)
    return np.broadcast_to(x, (len(x), *lead, *core)).reshape(len(x), states, *core)
