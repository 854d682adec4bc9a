"""Exported functions of robots with closed loops: those of `dynamics.closed_dynamics`, and of the tree where it serves.

A C function raises no error, so its results are NaN where `Robot` refuses a state, or answers by singular values: where
loops are open, the motion opens them, joints without a drive have efforts, or the elimination is irregular. They are
not certified on random states, at which loops are open: the self-test compares them with `Robot` at closed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.arguments import Wrench
from dyn_service.api.queries import Array, Query
from dyn_service.api.spec import Variant
from dyn_service.dynamics import closed_dynamics
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.spatial import Mat
from dyn_service.engine.export.inputs import ExtraInputs
from dyn_service.engine.loops.answers import answer_of
from dyn_service.engine.loops.kernels import REGULAR
from dyn_service.errors import FailedPreconditionError, UnimplementedError
from dyn_service.kernels.certify import drawn_states
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.export import Function
from dyn_service.kernels.frames import kernel_tree
from dyn_service.kernels.graph import Graph, outputs_of
from dyn_service.kernels.rolled import Rolled
from dyn_service.kernels.signature import Operand, Signature, signature_of
from dyn_service.kernels.staged import Staged
from dyn_service.model.loop_tree import LoopTree
from dyn_service.model.steps import WEIGHTS

if TYPE_CHECKING:
    from dyn_service.engine.loops.queries import LoopQueries
    from dyn_service.engine.robot import Robot

_EFFORTS = ("inverse_dynamics", "gravity_forces", "bias_forces", "computed_torque")
_BY_LOOPS = (*_EFFORTS, "forward_dynamics", "constraint_forces", "step")
"""Queries with functions in `closed_dynamics`."""

NOTES = (
    "Closed loops: results are NaN where a loop is open, where the motion opens it, where a joint without a drive has",
    "an effort, and at irregular positions, such as singular ones.",
)
"""Lines of the comment before a function."""


def _loops_of(robot: Robot) -> LoopQueries:
    loops = robot.evaluator.closed_loops
    assert loops is not None  # the caller exports robots without loops in another way
    return loops


def check_exported(robot: Robot, row: Query, extra: ExtraInputs) -> None:
    """Refuses what has no function for closed loops.

    Raises:
        UnimplementedError: No function computes the query.
        FailedPreconditionError: The robot has no kernels for regular states, or the drives do not determine the motion.
    """
    loops = _loops_of(robot)
    by_loops = row.name in _BY_LOOPS
    if row.parts or (answer_of(row).function is not None and not by_loops):
        reason = (
            "name its queries one by one"
            if row.parts
            else "it takes a singular value decomposition, which the straight-line code of a function has not"
        )
        raise UnimplementedError(
            f"{row.name} of robot '{robot.name}', which has closed loops, is not exported: {reason}"
        )
    if extra.payload or extra.friction:
        raise UnimplementedError(
            f"functions of robot '{robot.name}', which has closed loops, take no payload and no friction: export "
            "robot.with_payload(..) or robot.overlaid(..)",
            path="payload" if extra.payload else "friction",
        )
    if loops.compiled is None:
        raise FailedPreconditionError(
            f"{row.name} of robot '{robot.name}' is not exported: its loops have no straight-line code, because they "
            "close near no random position, are closed by a screw, or are too many"
        )
    if row.name in _EFFORTS and not loops.drives_determine_motion:
        raise FailedPreconditionError(
            f"{row.name} of robot '{robot.name}' is not exported: its driven joints are not its independent ones, so "
            "that efforts are a least-squares solution, which a function does not compute; forward_dynamics is exported"
        )


def signature(robot: Robot, row: Query, method: str, variant: Variant) -> Signature:
    """Returns the signature of the kernel of a query."""
    loops = _loops_of(robot)
    if row.name not in _BY_LOOPS:
        return loops.tree.signature(row, method, variant)
    sizes = robot.sizes  # with one body per link, on which wrenches act, and rows of loop joints
    function = f"closed_dynamics.{method if row.name == 'step' else row.name}"
    return replace(signature_of(row, method, sizes, variant), bodies="links", function=function)


def graph(robot: Robot, row: Query, method: str, kernel: Signature) -> Graph | Staged:
    """Returns the traced form of a kernel, with results that are NaN where they do not count."""
    loops = _loops_of(robot)
    return _step(loops, kernel, method) if row.name == "step" else _masked(loops, row, kernel)


def _masked(loops: LoopQueries, row: Query, signature: Signature) -> Graph:
    """Returns a graph whose outputs are NaN where they do not count."""
    with ex.graph():
        symbols = {operand.name: ex.sym(operand.name, operand.size) for operand in signature.inputs}
        links = _links(loops) if signature.function.startswith("closed_dynamics.") else loops.tree.library.links
        outputs = outputs_of(kernel_tree(links, signature.bodies), signature, symbols)
        unknown = ex.matrix(0.0) if answer_of(row).opens else _unknown(loops, signature, symbols, outputs)
        return _graph(signature, symbols, [x + unknown for name, x in outputs.items() if name != "shares"])


def _graph(signature: Signature, symbols: Mapping[str, Mat], outputs: list[Mat]) -> Graph:
    flat = [ex.densify(ex.vec(ex.matrix(x).T)) for x in outputs]
    return Graph(ex.Program.of([symbols[operand.name] for operand in signature.inputs], flat), signature)


def _links(loops: LoopQueries) -> LoopTree:
    assert loops.compiled is not None
    return loops.compiled.links


def _unknown(
    loops: LoopQueries,
    signature: Signature,
    symbols: Mapping[str, Mat],
    outputs: Mapping[str, Mat],
    *,
    start: bool = True,
) -> Mat:
    """Returns NaN where the outputs do not count, else 0. start: whether the state of the inputs is checked too."""
    kinds: dict[str, Mat] = {operand.kind: symbols[operand.name] for operand in reversed(signature.inputs)}
    shares = [outputs["shares"]] if "shares" in outputs else []
    if start and (not shares or "dt" in symbols) and "position" in kinds:
        a = None if "dt" in symbols else kinds.get("acceleration")
        shares.append(closed_dynamics.shares(_links(loops), kinds["position"], kinds.get("velocity"), a))
    counts = ex.matrix(1.0)
    for share in shares:
        for x, limit in zip(ex.vertsplit(share), REGULAR.tolist(), strict=True):
            counts = counts * (x < limit)
    if "effort" in kinds and loops.driven is not None:
        for effort, drive in zip(ex.vertsplit(kinds["effort"]), loops.driven.tolist(), strict=True):
            counts = counts if drive else counts * ex.logic_not(ex.fabs(effort))  # fabs, because -0.0 is not 0 here
    return ex.if_else(counts, 0.0, nan)


def _step(loops: LoopQueries, signature: Signature, method: str) -> Graph | Staged:
    """Returns the step of `simulate`: one graph, or with several stages a kernel that calls that of accelerations."""
    calls = len(WEIGHTS[method])
    operands = {operand.name: operand for operand in signature.inputs}
    stages = tuple(replace(operands["v"], name=f"a{k + 1}", kind="acceleration") for k in range(calls))
    model = kernel_tree(_links(loops), "links")

    def part(function: str, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> Graph:
        part_signature = replace(signature, function=function, inputs=inputs, outputs=outputs)
        with ex.graph():
            symbols = {operand.name: ex.sym(operand.name, operand.size) for operand in inputs}
            values = outputs_of(model, part_signature, symbols)
            ends = outputs is signature.outputs
            unknown = (
                _unknown(loops, part_signature, symbols, values, start=ends) if "shares" in values else ex.matrix(0.0)
            )
            return _graph(part_signature, symbols, [values[operand.name] + unknown for operand in outputs])

    if calls == 1:
        return _single_stage(loops, signature, method, model)
    inner_inputs = tuple(operand for operand in signature.inputs if operand.kind != "duration")
    inputs = (*signature.inputs, *stages)
    inner = part("closed_dynamics.acceleration_near", inner_inputs, (replace(stages[0], name="a"),))
    state_operands = [tuple(replace(x, name=f"{x.name}{k + 1}") for x in signature.outputs) for k in range(calls)]
    states = tuple(part(f"integration.{method}_states", inputs, outputs) for outputs in state_operands)
    return Staged(signature, inner, (*states, part(f"closed_dynamics.{method}", inputs, signature.outputs)))


def _single_stage(loops: LoopQueries, signature: Signature, method: str, model: Any) -> Graph:
    """Returns a step with one stage as one graph, which shares expressions between stage and end."""
    with ex.graph():
        symbols = {operand.name: ex.sym(operand.name, operand.size) for operand in signature.inputs}
        inputs = tuple(operand for operand in signature.inputs if operand.kind != "duration")
        inner = replace(signature, function="closed_dynamics.acceleration_near", inputs=inputs)
        stage = outputs_of(model, inner, symbols)
        a1 = Operand("a1", stage["a"].shape[:1])
        end = replace(signature, function=f"closed_dynamics.{method}", inputs=(*signature.inputs, a1))
        values = outputs_of(model, end, {**symbols, "a1": stage["a"]})
        unknown = _unknown(loops, signature, symbols, values) + _unknown(loops, inner, symbols, stage, start=False)
        return _graph(signature, symbols, [values[operand.name] + unknown for operand in signature.outputs])


def golden(
    robot: Robot, function: Function, row: Query, method: str, links: Sequence[str]
) -> tuple[list[Array], list[Array]]:
    """Returns closed test states at which a function has results, and this robot's answers: an array per operand.

    links: those on which the function takes wrenches.
    """
    loops, signature = _loops_of(robot), function.signature
    rng, samples = np.random.default_rng(1), loops.simulation.samples
    with np.errstate(all="ignore"):
        references, _ = drawn_states(signature, robot.tree)
    q = samples[np.arange(len(references[0])) % len(samples)]
    v = loops.simulation.closed_state(q, rng.normal(size=(len(q), robot.nv)))[1]
    drives = np.ones(robot.nv) if loops.driven is None else loops.driven
    of_kind: dict[str, Array] = {"position": q, "velocity": v, "duration": np.full((len(q), 1), 1e-3)}
    of_kind["effort"] = rng.normal(size=(len(q), robot.nv)) * drives
    if any(operand.kind == "acceleration" for operand in signature.inputs):
        motion = robot.independent_motion(q, v)
        rates = rng.normal(size=(len(q), motion.jacobian.shape[-1], 1))
        of_kind["acceleration"] = (motion.jacobian @ rates)[..., 0] + motion.bias_accelerations
    # The first input of a kind is of the state, the others are references.
    states = [of_kind.pop(operand.kind, x) for operand, x in zip(signature.inputs, references, strict=True)]
    inputs = states if function.entering is None else compiled(function.entering)[0](*states)
    arrays = inputs if isinstance(inputs, tuple | list) else (inputs,)
    entries = [[*np.moveaxis(x.reshape(len(q), -1), -1, 0)] for x in arrays]
    (graph,) = function.graphs
    assert not isinstance(graph, Rolled)
    results = graph.program(entries)
    counts = np.all([np.isfinite(np.broadcast_to(x, len(q))) for output in results for x in output], axis=0)
    states = [x[counts] for x in states]
    if row.name not in _BY_LOOPS:
        answers = loops.tree.library.kernel(function.kernel)(*states)
        return states, [*answers] if isinstance(answers, tuple) else [answers]
    arguments: dict[str, Any] = {operand.name: x for operand, x in zip(signature.inputs, states, strict=True)}
    if "wrenches" in arguments:
        W = arguments["wrenches"]
        arguments["wrenches"] = [Wrench(link, W[:, k, :3], W[:, k, 3:], frame=link) for k, link in enumerate(links)]
    answer = getattr(robot, row.name)(**arguments, **({row.kernel_option: method} if row.kernel_option else {}))
    return states, [answer] if isinstance(answer, np.ndarray) else [getattr(answer, x.name) for x in signature.outputs]
