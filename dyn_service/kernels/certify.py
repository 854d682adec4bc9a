"""Certification: compares a new kernel with its equations on the original tree.

Frames, lumps, regrouped sums and fused products are exact on paper. Whether a robot's numbers leave them exact enough
is seen here: at several states, large and small, the kernel's answers are compared with those of the same function of
`dynamics/` traced on the tree as given. A difference within rounding does not count:

    |kernel - given| <= 3 spread + 6 eps scale        for each entry of each output

spread: how far an entry of the answer as given moves when each of its operations and each number of the robot is
rounded at random instead of to nearest, the largest of fifteen runs: this very sweep's own rounding at this very state,
however ill the state.
scale: with d_i = sqrt(M_ii), what joint i moves in this state, d_i max_j |tau_j| / d_j for efforts and d_i d_j for the
mass matrix: a finger's error is not hidden behind a shoulder, and what is zero by cancellation may be its rounding.
Motions count by themselves, with 1 / d_i, and as the efforts they need, M (a' - a): a nearly singular M magnifies any
error of theirs along one way, and behind it others hide. Of other outputs, the size of an entry's row (its body) over
all states, times how large the answer is in this state beside that.

Cost: one more trace, and some microseconds an operation; nothing when a kernel comes from the store. Source: random
rounding is Monte Carlo arithmetic (D. S. Parker, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import DEFAULT_GRAVITY
from dyn_service.kernels import frames
from dyn_service.kernels.certificate import Certificate
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.model import composite
from dyn_service.model.composite import massless_joint
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.parameters import parameters_of
from dyn_service.model.passive import Passive
from dyn_service.model.tree import Tree

Array = NDArray[np.float64]

RUNS = 15
SPREADS = 3.0
ROUNDINGS = 6.0
"""Of the double's epsilon. With SPREADS the bound of the module's docstring: sums of a few hundred terms in another
order differ by so much, and a form that is ten times worse than the tree as given does not pass.
"""

POSITIONS = (3.0, 3.0, 1.0, 1e-4, 1e-9, 1e-2, 1.0, 30.0, 3.0, 1e-3, 3.0, 0.3, 10.0, 3.0, 1.0, 3.0, 0.0, 0.0, 0.0, 1.0)
"""Sizes of the positions, state by state: at random, small, tiny, large. Where it is 0 they are poses of right angles,
at which arms fold and slides are drawn in: there the largest numbers cancel.
"""

AT_REST = 3
"""In the last states nothing acts but weight, straight down: what nearly vertical axes leave of it has to be right."""

PLAIN = 2
"""In so many of the states all other inputs have size 1; in the rest each has one of its own from 1e-4 to 100, or is
zero: a term that is behind another at one state precedes it at the next.
"""

_STEP_S = 1e-3
_EFFORTS = ("effort", "momentum")

BEYOND = 1e30
"""The figure for a difference where rounding explains none, and for NaN."""


Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def certified(links: Tree, signature: Signature, build: Callable[[Graph], Kernel]) -> tuple[Kernel, Certificate, Graph]:
    """A robot's kernel, of the fastest form that is as exact as the tree as given; and the function on that.

    Args:
        links: The robot, one body per link.
        signature: Which kernel.
        build: Makes a kernel from a graph: arrays (states, ...) in, an array or a tuple of arrays (states, ...) out.
    """
    if signature.parametric:
        return _parametric(links, signature, build)
    if signature.bodies != "chosen":
        given = trace(frames.kernel_tree(links, signature.bodies), signature)
        kernel = build(given)
        return kernel, Certificate(signature.name, "link frames", *difference(kernel, given, links)), given
    tree = frames.welded(links)
    kernel = build(trace(frames.simplest(links), signature))
    given = trace(tree, signature, shared=False)
    chosen = difference(kernel, given, links)
    if chosen.error <= 1.0:
        return kernel, Certificate(signature.name, "chosen frames", *chosen), given
    kernel = build(trace(tree, signature))
    found = difference(kernel, given, links)
    return kernel, Certificate(signature.name, "link frames", *found, refused=chosen.error), given


def _parametric(
    links: Tree, signature: Signature, build: Callable[[Graph], Kernel]
) -> tuple[Kernel, Certificate, Graph]:
    """The kernel that takes a tree's numbers, held at several of such, each against the function on a tree that has
    them; and that of the robot's own.
    """
    model = frames.kernel_tree(links, signature.bodies)
    kernel, whole = build(trace(model, signature)), trace(model, signature, shared=False)
    found: list[Difference] = []
    graphs: list[Graph] = []
    massless = signature.inverts and massless_joint(frames.welded(links).tree) is not None
    for tree in drawn_numbers(_solid(links) if massless else links):
        model = frames.kernel_tree(tree, signature.bodies)
        given = trace(model, signature.of_numbers, shared=False)
        numbers = iter(parameters_of(model.tree).values())
        constant = {o.name: _padded(next(numbers), o) for o in signature.inputs if o.kind == "overlay"}

        def entered(inputs: Sequence[Array], constant: Mapping[str, Array] = constant) -> list[Array]:
            drawn = iter(inputs)
            return [
                np.broadcast_to(constant[o.name], (len(POSITIONS), *o.shape)) if o.name in constant else next(drawn)
                for o in signature.inputs
            ]

        def rounded(inputs: Sequence[Array], entered: Any = entered) -> list[Array]:
            return rounded_at_random(whole.function, entered(inputs))

        found.append(difference(lambda *inputs, entered=entered: kernel(*entered(inputs)), given, tree, rounded))
        graphs.append(given)
    compared = found if found[-1].states else found[:-1]  # the one with locked joints may have no answer at all
    states = min(each.states for each in compared)
    return kernel, Certificate(signature.name, "link frames", *max(found)._replace(states=states)), graphs[0]


def _padded(numbers: Array, operand: Operand) -> Array:
    return numbers if numbers.size else np.zeros(operand.shape)


def drawn_numbers(links: Tree) -> Iterator[Tree]:
    """The robots at which a parametric kernel is held: the one it is made for; with every number larger or smaller, and
    all that joints can do; and bare, with every third joint locked.
    """
    yield links
    rng = np.random.default_rng(2)

    def other(body: BodyInertia) -> BodyInertia:
        mass, com, about = body.mass, body.com, body.about_com
        size = rng.uniform(0.5, 2.0)
        return BodyInertia.of_centre(mass * size, com * rng.uniform(0.5, 2.0, 3), about * size)

    inertia = tuple(map(other, links.inertia))
    own = links.passive
    one_way = [joint.nv == 1 for joint in links.inboard for _ in range(joint.nv)]
    drawn = {
        each.name: np.where(x > 0.0, x, size) * rng.uniform(0.5, 2.0, x.shape)
        for each, x, size in zip(fields(own), own.arrays, _DRAWN, strict=True)
    }
    drawn["stiffness"] *= one_way
    passive = Passive(**{**drawn, "rest": own.rest + rng.uniform(-1.0, 1.0, own.rest.shape)})
    yield replace(links, inertia=inertia, passive=passive)
    names = links.movable_joints
    yield links.bare.locked(names[1::3] or names)


def _solid(tree: Tree) -> Tree:
    """Returns the robot with mass and inertia in every body: those of a ball of 0.1 m are added."""
    most = max([float(body.mass) for body in tree.inertia], default=0.0) or 1.0
    masses = [float(body.mass) or most for body in tree.inertia]
    bodies = [
        BodyInertia.of_centre(mass, body.com, body.about_com + 0.004 * mass * np.eye(3))
        for mass, body in zip(masses, tree.inertia, strict=True)
    ]
    return replace(tree, inertia=tuple(bodies))


_DRAWN = (0.1, 0.1, 0.1, 0.01, 1.0, 0.0)
"""Damping, friction, width, armature, stiffness and rest of joints that have none."""


@lru_cache(maxsize=4)
def _placed(tree: Tree) -> tuple[Array, Array]:
    """Positions at which a robot's kernels are held, (states, nq), and M there, (states, nv, nv)."""
    rng = np.random.default_rng(0)
    at = tree.configuration
    positions = rng.normal(size=(len(POSITIONS), at.nq)) * np.array(POSITIONS)[:, None]
    # The offset of each shift that brings a body back to its parent's origin; quaternions at right angles are whole.
    drawn_in = np.zeros(at.nq)
    for i in tree.leaders:
        joint = tree.inboard[i]
        for k in np.flatnonzero(joint.shifts):
            direction = joint.pose(joint.neutral + np.eye(joint.nq)[k])[1]
            drawn_in[tree.in_q[i].start + k] = -(tree.rotation[i] @ direction) @ tree.origin[i]
    for row in np.flatnonzero(np.array(POSITIONS) == 0.0):
        turns = rng.integers(-1, 3, at.nq)
        positions[row] = np.where(at.angles, turns * (np.pi / 2), np.where(at.shifts, drawn_in, turns))
    if not at.flat:
        positions = at.normalised(positions)
        positions = np.where(np.isfinite(positions), positions, at.neutral)  # a quaternion of zeros is no rotation
    return positions, composite.mass_matrix(tree, positions)


def drawn_states(signature: Signature, tree: Tree) -> tuple[tuple[Array, ...], Array]:
    """States at which a kernel is held: one array per operand, (states, ...), and M in each, (states, nv, nv)."""
    rng = np.random.default_rng(1)
    positions, M = _placed(tree)
    drawn = []
    for operand in signature.inputs:
        array = rng.normal(size=(len(POSITIONS), *operand.shape))
        sizes = 10.0 ** rng.uniform(-4.0, 2.0, len(POSITIONS)) * (rng.random(len(POSITIONS)) < 0.8)
        sizes[:PLAIN] = 1.0
        sizes[-AT_REST:] = 0.0
        if operand is signature.pose and tree.nv:
            array = positions
        elif operand.kind == "duration":
            array = np.full_like(array, _STEP_S)
        elif operand.kind == "link":
            array[:] = np.eye(operand.size)[rng.integers(0, operand.size, len(POSITIONS))]
        elif operand.kind == "directions":  # no more than the robot can move in, so that most states have an answer
            counts = 1 + np.arange(len(POSITIONS)) % max(1, min(operand.size, tree.nv))
            array[:] = rng.permuted(np.arange(operand.size) < counts[:, None], axis=1)
        else:
            sizes = np.array(POSITIONS) if operand.kind == "position" else sizes
            array *= sizes.reshape(-1, *(1,) * len(operand.shape))
            if operand.kind in _EFFORTS and tree.nv:
                array *= _moved(M)
            if operand.kind == "gravity":
                array[-AT_REST:] = DEFAULT_GRAVITY
            if operand.kind == "position" and tree.nv:
                array = tree.configuration.normalised(array)
            if operand.kind in ("velocity", "acceleration") and tree.free is not None:
                array *= tree.free
        drawn.append(array)
    return tuple(drawn), M


class Difference(NamedTuple):
    """The fields of a `Certificate` that a comparison gives."""

    error: float
    states: int
    output: str
    relative: float


def difference(
    kernel: Callable[..., Any],
    given: Graph,
    tree: Tree,
    rounded: Callable[[Sequence[Array]], list[Array]] | None = None,
) -> Difference:
    """Returns the kernel's largest difference from the function as given, as a share of the rounding bound.

    States at which an answer as given is not finite are not compared, and do not count.

    Args:
        kernel: Arrays (states, ...) in, an array or a tuple of arrays (states, ...) out.
        given: The function that it is compared with.
        tree: The robot of both.
        rounded: Another way to the same answers, as `rounded_at_random` gives them: its rounding widens the bound.
    """
    with np.errstate(all="ignore"):
        inputs, M = drawn_states(given.signature, tree)
        answers = kernel(*inputs)
        answers = answers if isinstance(answers, tuple) else (answers,)
        runs = rounded_at_random(given.function, inputs)
        for k, other in enumerate(rounded(inputs) if rounded is not None else ()):
            runs[k] = np.concatenate([runs[k], runs[k][..., :1] + (other[..., 1:] - other[..., :1])], axis=-1)
        states = min(int(_finite(run).sum()) for run in runs)
        return max(
            Difference(_share(operand, answer, run, M), states, operand.name, _relative(answer, run))
            for operand, answer, run in zip(given.signature.outputs, answers, runs, strict=True)
        )


def _relative(answer: Array, runs: Array) -> float:
    """Returns the largest difference of one output, as a share of its largest entry in the same state.

    Where all entries of a state are zero, they are those of all states.
    """
    given = runs[_finite(runs), :, 0]
    apart = np.abs(answer.reshape(len(runs), -1)[_finite(runs)] - given).max(-1, initial=0.0)
    size = np.abs(given).max(-1, initial=0.0)
    share = apart / np.where(size > 0.0, size, size.max(initial=0.0))
    return float(np.where(apart > 0.0, np.fmin(share, BEYOND), np.where(apart == 0.0, 0.0, BEYOND)).max(initial=0.0))


def _finite(runs: Array) -> Any:
    """Which states have an answer, (states,)."""
    return np.isfinite(runs).all(axis=(-2, -1))


def _moved(M: Array) -> Array:
    """sqrt(M_ii), (states, nv)."""
    return np.sqrt(np.abs(np.diagonal(M, axis1=-2, axis2=-1)))


def _share(operand: Operand, answer: Array, runs: Array, M: Array) -> float:
    """runs: (states, entries, 1 + RUNS), the first rounded to nearest. M: (states, nv, nv)."""
    finite = _finite(runs)
    if not finite.any():
        return 0.0
    answer, runs, M = answer.reshape(len(runs), -1)[finite], runs[finite], M[finite]
    given, moved = runs[..., 0], _moved(M)
    apart, spread = answer - given, runs - given[..., None]
    if operand.kind == "plain" or (operand.kind == "position" and given.shape[-1] != M.shape[-1]):
        return _beyond(apart, spread, _on_scale_of(_by_row(np.abs(given).max(axis=0), operand), given))
    if operand.kind in _EFFORTS:
        square = len(operand.shape) == 2
        scale = np.einsum("si,sj->sij", moved, moved).reshape(given.shape) if square else _on_scale_of(moved, given)
        return _beyond(apart, spread, scale)
    needed, needed_spread, needed_given = M @ apart[..., None], M @ spread, M @ given[..., None]
    return max(
        _beyond(apart, spread, _on_scale_of(1.0 / np.maximum(moved, 1e-300), given)),
        _beyond(needed[..., 0], needed_spread, _on_scale_of(moved, needed_given[..., 0])),
    )


def _by_row(sizes: Array, operand: Operand) -> Array:
    """Returns the largest absolute value in each entry's row: a zero entry may be rounding of the others of its
    body.
    """
    rows = sizes.reshape(operand.shape[0], -1) if len(operand.shape) > 1 else sizes[:, None]
    return np.broadcast_to(rows.max(axis=1, keepdims=True), rows.shape).reshape(-1)


def _beyond(apart: Array, spread: Array, scale: Array) -> float:
    """The largest difference over what rounding explains. apart, scale: (states, entries); spread: (..., 1 + RUNS)."""
    explained = SPREADS * np.abs(spread).max(axis=-1) + ROUNDINGS * np.finfo(np.float64).eps * scale
    share = np.divide(np.abs(apart), explained, out=np.full_like(apart, BEYOND), where=explained > 0.0)
    # What is finite as given and is not from the kernel is beyond all rounding.
    share = np.where(np.isfinite(share), np.minimum(share, BEYOND), BEYOND)
    return float(np.max(np.where(apart == 0.0, 0.0, share), initial=0.0))


def _on_scale_of(own: Array, answer: Array) -> Array:
    """Returns the scale of rounding, (states, entries): each entry's size times the size of the answer."""
    own = np.broadcast_to(own, answer.shape)
    ratios = np.divide(np.abs(answer), own, out=np.zeros_like(answer), where=own > 0.0)
    return np.asarray(own * ratios.max(axis=-1, keepdims=True, initial=0.0))


_OPERATIONS: Mapping[int, Callable[..., Any]] = {
    ca.OP_ADD: np.add,
    ca.OP_SUB: np.subtract,
    ca.OP_MUL: np.multiply,
    ca.OP_DIV: np.divide,
    ca.OP_SQ: np.square,
    ca.OP_INV: np.reciprocal,
    ca.OP_SQRT: np.sqrt,
    ca.OP_SIN: np.sin,
    ca.OP_COS: np.cos,
    ca.OP_ATAN2: np.arctan2,
    ca.OP_TANH: np.tanh,
}
_EXACT: Mapping[int, Callable[..., Any]] = {
    ca.OP_NEG: np.negative,
    ca.OP_TWICE: lambda x: x + x,
    ca.OP_ASSIGN: np.array,
    ca.OP_FABS: np.fabs,
    ca.OP_COPYSIGN: np.copysign,
    ca.OP_LT: lambda x, y: (x < y) * 1.0,
    ca.OP_NOT: lambda x: (x == 0.0) * 1.0,
    ca.OP_IF_ELSE_ZERO: lambda x, y: np.where(x == 0.0, 0.0, y),
}


def rounded_at_random(function: Any, inputs: Sequence[Array]) -> list[Array]:
    """The function's outputs, (states, entries, 1 + RUNS) each: rounded to nearest once, then RUNS times at random."""
    lanes = len(inputs[0]) * (1 + RUNS)
    flat = [np.repeat(x.reshape(len(x), -1), 1 + RUNS, axis=0).T for x in inputs]
    errors = 1.0 + np.finfo(np.float64).eps / 2 * np.random.default_rng(1).uniform(-1.0, 1.0, (1021, lanes))
    errors[:, :: 1 + RUNS] = 1.0
    outputs = [np.zeros((function.size1_out(k), lanes)) for k in range(function.n_out())]
    work: dict[int, Any] = {}
    for k in range(function.n_instructions()):
        operation = function.instruction_id(k)
        target = function.instruction_output(k)
        if operation == ca.OP_CONST:
            value = function.instruction_constant(k)
            # Whole numbers are the equations' own; what is zero stays so.
            work[target[0]] = np.full(lanes, value) if value == np.rint(value) else value * errors[k % len(errors)]
        elif operation == ca.OP_INPUT:
            operand, entry = function.instruction_input(k)
            work[target[0]] = flat[operand][entry]
        elif operation == ca.OP_OUTPUT:
            operand, entry = target
            outputs[operand][entry] = work[function.instruction_input(k)[0]]
        else:
            values = [work[index] for index in function.instruction_input(k)]
            exact = _EXACT.get(operation)
            work[target[0]] = exact(*values) if exact else _OPERATIONS[operation](*values) * errors[k % len(errors)]
    return [array.T.reshape(len(inputs[0]), 1 + RUNS, -1).swapaxes(1, 2) for array in outputs]
