"""Certification: compares a new kernel with its equations on the original tree.

Chosen frames, inertia transfers, regrouped sums and fused products are exact on paper, but may lose digits with the
numbers of a robot. So in several states, large and small, the results of the kernel are compared with those of the
same function of `dynamics/` traced on the tree as given. A difference within the rounding bound is accepted:

    |kernel - given| <= 3 spread + 6 eps scale        for each entry of each output

spread: largest change of an entry of the result as given when each operation and each number of the robot is rounded
at random instead of to nearest, in fifteen runs: the rounding error of the equations in this state, also if it is
ill-conditioned.
scale: with d_i = sqrt(M_ii) in this state, d_i max_j |tau_j| / d_j for efforts and d_i d_j for the mass matrix, so that
the scale of a shoulder does not hide the error of a finger, and an entry that cancels to zero may have rounding error.
Motions are compared twice: as they are, with 1 / d_i, and as the efforts they need, M (a' - a), because a nearly
singular M magnifies their error in one direction, which would hide errors in others. For other outputs: the size of
the entry's row (its body) over all states, times the relative size of the result in this state.

A kernel as loops is compared with straight-line code of the same function, which cannot have a fault of the loops. If
that is too large, the kernel is compared with loops on the tree as given, and the loops of a robot with a few bodies of
each kind with its straight-line code.

Cost: one more trace, and some microseconds per operation; nothing for a kernel from the store. Source: random rounding
is Monte Carlo arithmetic (D. S. Parker, 1997).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dyn_service.api.queries import DEFAULT_GRAVITY, QUERIES
from dyn_service.dynamics import expressions as ex
from dyn_service.kernels import frames
from dyn_service.kernels.budget import batch_sizes
from dyn_service.kernels.certificate import Certificate, Form
from dyn_service.kernels.compiling import compiled
from dyn_service.kernels.graph import Graph, trace
from dyn_service.kernels.jit import host
from dyn_service.kernels.lower import ERRORS, with_errors
from dyn_service.kernels.rolled import Rolled, roll
from dyn_service.kernels.signature import Operand, Signature, signature_of, sizes_of, total_size
from dyn_service.kernels.staged import Staged, has_stages, staged
from dyn_service.model import composite
from dyn_service.model.composite import massless_joint
from dyn_service.model.inertia import BodyInertia
from dyn_service.model.parameters import parameters_of
from dyn_service.model.passive import Passive
from dyn_service.model.tree import Tree

Array = NDArray[np.float64]

RUNS = 15
"""Runs with random rounding."""

# Not a fixed tolerance: one would be too tight for a mass matrix of condition 1e12, and too loose for a SCARA arm.
SPREADS, ROUNDINGS = 3.0, 6.0
"""The factors of the bound in the module's docstring, of the spread and of eps times the scale. Sums of a few hundred
terms in another order are within the bound; a form that is ten times worse than the tree as given is not.
"""

POSITIONS = (3.0, 3.0, 1.0, 1e-4, 1e-9, 1e-2, 1.0, 30.0, 3.0, 1e-3, 3.0, 0.3, 10.0, 3.0, 1.0, 3.0, 0.0, 0.0, 0.0, 1.0)
"""Scale of the random positions of each test state. 0 is a pose of right angles instead, with folded arms and retracted
slides, where the largest numbers cancel.
"""

AT_REST = 3
"""Number of states, the last ones, in which only gravity acts, straight down: its small component along nearly vertical
axes must be right.
"""

AT_UNIT_SCALE = 2
"""Number of states, the first ones, in which all inputs except positions have scale 1. In the others each input has its
own scale, from 1e-4 to 100, or is zero, so that no term is smaller than another in all states.
"""

_STEP_S = 1e-3
_EFFORTS = ("effort", "momentum")

UNBOUNDED = 1e30
"""Largest error reported; also that of a difference where the rounding bound is zero, and of NaN."""


Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def certified(
    links: Tree, signature: Signature, build: Callable[[Any], Kernel], trace: Callable[..., Any] = trace
) -> tuple[Kernel, Certificate]:
    """Returns a kernel and its certificate.

    The kernel is that of the chosen frames if its error is within the rounding bound, else that of the link frames.

    Args:
        links: The robot, one body per link.
        signature: The signature of the kernel.
        build: Makes a kernel from a graph: arrays (states, ...) in, an array or a tuple of arrays (states, ...) out.
        trace: Traces the kernel on a tree: `graph.trace`, or `rolled.roll` for a kernel as loops.
    """
    if signature.parametric:
        return _parametric(links, signature, build, trace)
    tree = frames.kernel_trees(links, signature, frames.welded(links))

    def build_on(form: Form, model: Any, refusal: float | None = None) -> tuple[Kernel, Certificate]:
        whole = trace(model, signature)
        kernel = build(whole)
        reference, parts = _reference(links, signature, trace, whole)
        graph = whole if model is tree and not whole.is_rolled else reference(tree, signature)
        result = difference(kernel, graph, links)
        if whole.is_rolled and result.error > 1.0:  # loops also round what is zero in straight-line code
            result = difference(kernel, graph, links, lambda inputs: _runs(trace(tree, signature), inputs))
        largest = max([result, *parts])._replace(states=result.states)
        return kernel, Certificate(signature.name, form, *largest, refused=refusal)

    if not signature.in_chosen_frames:
        return build_on("link frames", tree)
    candidate = build_on("chosen frames", frames.kernel_trees(links, signature, frames.cheapest_frames(links)))
    return candidate if candidate[1].error <= 1.0 else build_on("link frames", tree, refusal=candidate[1].error)


MAX_STRAIGHT = 100_000
"""Operations of a kernel as loops up to which its straight-line form is traced to compare it: at most half a second."""


def _straight(model: Any, signature: Signature) -> Graph | Staged:
    """Traces the straight-line form of a kernel on a tree."""
    if has_stages(signature, as_loops=False):
        return staged(signature, model.of(signature.bodies).tree, lambda part: trace(model, part))
    return trace(model, signature)


def _reference(
    links: Tree, signature: Signature, trace: Callable[..., Any], whole: Graph | Rolled | Staged
) -> tuple[Callable[..., Any], list[Difference]]:
    """Returns the function that traces the reference of a kernel: straight-line code, or loops if that is too large.

    Loops share the faults of loops, so then also returns the difference of both forms for a few bodies of each kind.
    """
    # Compared only with other loops, a fault of the loops stays unseen: two queries once lost columns so.
    bodies = _sample(links)
    if not whole.is_rolled or whole.operations <= MAX_STRAIGHT or len(bodies) == len(links):
        return _straight, []
    part = _solid(frames.part_of(links, bodies))
    small = signature.resized(sizes_of(part, frames.welded(part).tree, signature.bodies))
    _, certificate = certified(part, small, lambda graph: compiled(graph, optimised=False)[0], trace)
    return trace, [Difference(certificate.error, certificate.states, certificate.output, certificate.relative)]


def _sample(links: Tree) -> list[int]:
    """Returns bodies of every kind: the first two and the last of each, the bodies that they mimic, and their roots."""
    kinds: dict[Any, list[int]] = {}
    for i, joint in enumerate(links.inboard):
        kinds.setdefault((type(joint), links.parent[i] < 0, links.mimicked_body[i] == i), []).append(i)
    sample = {i for bodies in kinds.values() for i in (*bodies[:2], bodies[-1])}
    sample |= {links.mimicked_body[i] for i in sample}
    return sorted(sample | {links.ancestors(i)[-1] for i in sample})


def _parametric(
    links: Tree, signature: Signature, build: Callable[[Any], Kernel], trace: Callable[..., Any]
) -> tuple[Kernel, Certificate]:
    """Returns a parametric kernel and its certificate.

    The kernel is compared for several sets of numbers, each with the function on a tree that has these numbers.
    """
    model = frames.kernel_tree(links, signature.bodies)
    whole = trace(model, signature)
    kernel = build(whole)
    reference, parts = _reference(links, signature, trace, whole)
    errors: list[Difference] = []
    massless = signature.inverts_mass_matrix and massless_joint(frames.welded(links).tree) is not None
    for tree in drawn_numbers(_solid(links) if massless else links):
        model = frames.kernel_tree(tree, signature.bodies)
        expected = reference(model, signature.of_numbers)
        parametric = [operand for operand in signature.inputs if operand.kind == "overlay"]
        numbers = zip(parametric, parameters_of(model.tree).values(), strict=True)
        constant = {o.name: x if x.size else np.zeros(o.shape) for o, x in numbers}

        def with_numbers(inputs: Sequence[Array], constant: Mapping[str, Array] = constant) -> list[Array]:
            arrays = iter(inputs)
            return [
                np.broadcast_to(constant[o.name], (len(POSITIONS), *o.shape)) if o.name in constant else next(arrays)
                for o in signature.inputs
            ]

        def rounded(inputs: Sequence[Array], with_numbers: Any = with_numbers) -> list[Array]:
            return _runs(whole, with_numbers(inputs))

        def answer(*inputs: Array, with_numbers: Any = with_numbers) -> Any:
            return kernel(*with_numbers(inputs))

        errors.append(difference(answer, expected, tree, rounded))
    compared = errors if errors[-1].states else errors[:-1]  # the tree with locked joints may have no finite result
    states = min(error.states for error in compared)
    return kernel, Certificate(signature.name, "link frames", *max([*errors, *parts])._replace(states=states))


def drawn_numbers(links: Tree) -> Iterator[Tree]:
    """Yields the trees with which a parametric kernel is compared.

    The tree itself; one with all inertias scaled and all passive forces present; and one without passive forces, with
    every third joint locked, from the second on (a single joint too).
    """
    yield links
    rng = np.random.default_rng(2)

    def other(body: BodyInertia) -> BodyInertia:
        mass, com, about_com = body.mass, body.com, body.about_com
        size = rng.uniform(0.5, 2.0)
        return BodyInertia.from_com(mass * size, com * rng.uniform(0.5, 2.0, 3), about_com * size)

    inertia = tuple(map(other, links.inertia))
    passive_values = links.passive
    one_way = [joint.nv == 1 for joint in links.inboard for _ in range(joint.nv)]
    entries = {
        field.name: np.where(x > 0.0, x, size) * rng.uniform(0.5, 2.0, x.shape)
        for field, x, size in zip(fields(passive_values), passive_values.arrays, _DRAWN, strict=True)
    }
    entries["stiffness"] *= one_way
    passive = Passive(**{**entries, "rest": passive_values.rest + rng.uniform(-1.0, 1.0, passive_values.rest.shape)})
    yield replace(links, inertia=inertia, passive=passive)
    names = links.movable_joints
    yield links.without_passive.locked(names[1::3] or names)


def _solid(tree: Tree) -> Tree:
    """Returns the tree with mass and inertia in every body.

    A massless body gets the largest mass, and each body the inertia of a ball of its mass and a radius of 0.1 m in
    addition.
    """
    largest_mass = max([float(body.mass) for body in tree.inertia], default=0.0) or 1.0
    masses = [float(body.mass) or largest_mass for body in tree.inertia]
    bodies = [
        BodyInertia.from_com(mass, body.com, body.about_com + 0.004 * mass * np.eye(3))
        for mass, body in zip(masses, tree.inertia, strict=True)
    ]
    return replace(tree, inertia=tuple(bodies))


_DRAWN = (0.1, 0.1, 0.1, 0.01, 1.0, 0.0)
"""Damping, friction, width, armature, stiffness and rest given to joints without these."""


@lru_cache(maxsize=4)
def _test_positions(tree: Tree) -> tuple[Array, Array | MassOperator]:
    """Returns the test positions of a robot, (states, nq), and M there, (states, nv, nv)."""
    rng = np.random.default_rng(0)
    configuration = tree.configuration
    positions = rng.normal(size=(len(POSITIONS), configuration.nq)) * np.array(POSITIONS)[:, None]
    # The offset of each prismatic coordinate that moves a body to its parent's origin. Quaternions at right angles
    # consist of whole numbers.
    drawn_in = np.zeros(configuration.nq)
    for i in tree.independent_bodies:
        joint = tree.inboard[i]
        for k in np.flatnonzero(joint.shifts):
            direction = joint.pose(joint.neutral + np.eye(joint.nq)[k])[1]
            drawn_in[tree.in_q[i].start + k] = -(tree.rotation[i] @ direction) @ tree.origin[i]
    for row in np.flatnonzero(np.array(POSITIONS) == 0.0):
        turns = rng.integers(-1, 3, configuration.nq)
        retracted = np.where(configuration.shifts, drawn_in, turns)
        positions[row] = np.where(configuration.angles, turns * (np.pi / 2), retracted)
    if not configuration.flat:
        positions = configuration.normalised(positions)
        # A quaternion of zeros is no rotation.
        positions = np.where(np.isfinite(positions), positions, configuration.neutral)
    form = composite.mass_matrix if tree.nv <= MAX_DENSE else MassOperator.at
    return positions, form(tree, positions)


MAX_DENSE = 256
"""Degrees of freedom up to which the mass matrix of the test states is formed."""


@dataclass(frozen=True, eq=False)
class MassOperator:
    """M in several states, (states, nv, nv), without its entries: M x by inverse dynamics.

    positions: (states, nq). diagonal: (states, nv). kernel: inverse dynamics of q, v, a, gravity.
    """

    positions: Array
    diagonal: Array
    kernel: Callable[..., Array]

    @classmethod
    def at(cls, tree: Tree, positions: Array) -> MassOperator:
        """Returns M at these positions, (states, nq)."""
        sizes = {"nq": tree.nq, "nv": tree.nv, "nr": tree.nr, "nb": tree.nv}
        signature = signature_of(QUERIES["inverse_dynamics"], "", sizes)
        return cls(positions, composite.diagonal(tree, positions), compiled(roll(frames.welded(tree), signature))[0])

    @property
    def shape(self) -> tuple[int, int, int]:
        """(states, nv, nv)."""
        return (*self.diagonal.shape, self.diagonal.shape[-1])

    def __getitem__(self, states: Any) -> MassOperator:
        return MassOperator(self.positions[states], self.diagonal[states], self.kernel)

    def __matmul__(self, x: Array) -> Array:
        """Returns M x, (states, nv, k), for x of that shape."""
        v, gravity = np.zeros_like(self.diagonal), np.zeros(3)
        a = np.concatenate([np.zeros((*x.shape[:2], 1)), x], axis=-1).swapaxes(1, 2)
        # The first column has a = 0: springs load joints at rest too, and M x is the difference.
        tau = self.kernel(self.positions[:, None], v[:, None], a, gravity)
        return (tau[:, 1:] - tau[:, :1]).swapaxes(1, 2)


def drawn_states(signature: Signature, tree: Tree) -> tuple[tuple[Array, ...], Array | MassOperator]:
    """Returns the test states of a kernel: an array per input, (states, ...), and M in each state, (states, nv, nv)."""
    rng = np.random.default_rng(1)
    positions, M = _test_positions(tree)
    arrays = []
    for operand in signature.inputs:
        array = rng.normal(size=(len(POSITIONS), *operand.shape))
        sizes = 10.0 ** rng.uniform(-4.0, 2.0, len(POSITIONS)) * (rng.random(len(POSITIONS)) < 0.8)
        sizes[:AT_UNIT_SCALE] = 1.0
        sizes[-AT_REST:] = 0.0
        if operand is signature.pose and tree.nv:
            array = positions
        elif operand.kind == "duration":
            array = np.full_like(array, _STEP_S)
            array[1::2] = 1.0  # so that errors of accelerations are not small compared with the velocities
        elif operand.kind == "link":
            array[:] = np.eye(operand.size)[rng.integers(0, operand.size, len(POSITIONS))]
        elif operand.kind == "directions":  # at most nv, so that most states have a finite result
            counts = 1 + np.arange(len(POSITIONS)) % max(1, min(operand.size, tree.nv))
            array[:] = rng.permuted(np.arange(operand.size) < counts[:, None], axis=1)
        else:
            sizes = np.array(POSITIONS) if operand.kind == "position" else sizes
            array *= sizes.reshape(-1, *(1,) * len(operand.shape))
            if operand.kind in _EFFORTS and tree.nv:
                array *= _effort_scale(M)
            if operand.kind == "weight" and tree.nv:  # every other state: of efforts, on the scale of each joint
                array[1::2] /= np.maximum(_effort_scale(M), 1e-300)[1::2]
            if operand.kind == "gravity":
                array[-AT_REST:] = DEFAULT_GRAVITY
            if operand.kind == "position" and tree.nv:
                array = tree.configuration.normalised(array)
            if operand.kind in ("velocity", "acceleration") and tree.free is not None:
                array *= tree.free
        arrays.append(array)
    return tuple(arrays), M


class Difference(NamedTuple):
    """The fields of a `Certificate` from one comparison."""

    error: float
    states: int
    output: str
    relative: float


def difference(
    kernel: Callable[..., Any],
    reference: Graph | Rolled | Staged,
    tree: Tree,
    rounded: Callable[[Sequence[Array]], list[Array]] | None = None,
) -> Difference:
    """Returns the kernel's largest difference from the graph of the tree as given, as a share of the rounding bound.

    States in which a result of that graph is not finite are not compared, and not counted.

    Args:
        kernel: Arrays (states, ...) in, an array or a tuple of arrays (states, ...) out.
        reference: The graph of the tree as given.
        tree: The tree of both, one body per link.
        rounded: Returns runs of another computation of the same results, as `rounded_at_random` does; their spread is
            added to the bound.
    """
    with np.errstate(all="ignore"):
        inputs, M = drawn_states(reference.signature, tree)
        indices = compared_states(reference)
        inputs, M = tuple(x[indices] for x in inputs), M[indices]
        answers = kernel(*inputs)
        answers = answers if isinstance(answers, tuple) else (answers,)
        runs = _runs(reference, inputs)
        for k, other in enumerate(rounded(inputs) if rounded is not None else ()):
            runs[k] = np.concatenate([runs[k], runs[k][..., :1] + (other[..., 1:] - other[..., :1])], axis=-1)
        states = min(int(_finite(run).sum()) for run in runs)
        return max(
            Difference(error_of(operand, answer, run, M), states, operand.name, _relative(answer, run))
            for operand, answer, run in zip(reference.signature.outputs, answers, runs, strict=True)
        )


MAX_RUN_BYTES = 1 << 28
"""Bytes of the results of all runs above which fewer states are compared."""


MAX_RUN_OPERATIONS = 1 << 31
"""Operations in all states, computed once each, above which fewer states are compared."""


OPTIMISED_OPERATIONS = 1 << 22
"""Operations above which rounded runs take longer than optimising their code."""


def compared_states(reference: Graph | Rolled | Staged) -> NDArray[np.intp]:
    """Returns the indices of the test states in which a kernel is compared.

    All of them; for very large kernels fewer, at least two, or one if the results of two do not fit in memory.
    """
    count = MAX_RUN_BYTES // max(1, 8 * (1 + RUNS) * total_size(reference.signature.outputs))
    min_count = 2
    if reference.is_rolled:
        count = min(count, MAX_RUN_OPERATIONS // max(1, reference.operations))
        min_count = (batch_sizes(reference, host().lanes) or (1, 2))[1]
    return np.linspace(0, len(POSITIONS) - 1, min(max(count, min_count), len(POSITIONS))).astype(np.intp)


def _relative(answer: Array, runs: Array) -> float:
    """Returns the largest difference of one output, as a share of its largest entry in the same state.

    Where all entries of a state are zero, it is a share of the largest entry in all states.
    """
    finite, answer = _finite(runs), answer.reshape(len(runs), -1)
    error = size = np.zeros(int(finite.sum()))
    for part in _slices(answer.shape[-1]):
        expected = runs[:, part, 0][finite]
        error = np.maximum(error, np.abs(answer[:, part][finite] - expected).max(-1, initial=0.0))
        size = np.maximum(size, np.abs(expected).max(-1, initial=0.0))
    share = error / np.where(size > 0.0, size, size.max(initial=0.0))
    return float(
        np.where(error > 0.0, np.fmin(share, UNBOUNDED), np.where(error == 0.0, 0.0, UNBOUNDED)).max(initial=0.0)
    )


def _finite(runs: Array) -> Any:
    """Returns which states have finite results, (states,)."""
    return np.isfinite(runs).all(axis=(-2, -1))


def _effort_scale(M: Array | MassOperator) -> Array:
    """Returns d_i = sqrt(M_ii), (states, nv)."""
    return np.sqrt(np.abs(M.diagonal if isinstance(M, MassOperator) else np.diagonal(M, axis1=-2, axis2=-1)))


def error_of(operand: Operand, answer: Array, runs: Array, M: Array | MassOperator) -> float:
    """Returns the largest difference of one output as a share of the rounding bound.

    Args:
        operand: The output.
        answer: (states, ...) from the kernel.
        runs: (states, entries, 1 + RUNS) as given, the first rounded to nearest.
        M: (states, nv, nv).
    """
    finite = _finite(runs)
    answer = answer.reshape(len(runs), -1)
    if not finite.any():
        return 0.0
    if not finite.all():
        answer, runs, M = answer[finite], runs[finite], M[finite]
    expected, scale = runs[..., 0], _effort_scale(M)
    if operand.kind in ("plain", "load") or (operand.kind == "position" and expected.shape[-1] != M.shape[-1]):
        return _in_parts(answer, runs, _scale_of(_by_row(_largest(expected), operand), expected))
    if operand.kind in _EFFORTS:
        if len(operand.shape) != 2:
            return _in_parts(answer, runs, _scale_of(scale, expected))
        count = operand.shape[1]
        entries = np.arange(operand.size)
        return _in_parts(answer, runs, lambda part: scale[:, entries[part] // count] * scale[:, entries[part] % count])
    error, spread = answer - expected, runs - expected[..., None]
    effort_error, effort_spread, effort = M @ error[..., None], M @ spread, M @ expected[..., None]
    return max(
        _largest_share(error, spread, _scale_of(1.0 / np.maximum(scale, 1e-300), expected)(slice(None))),
        _largest_share(effort_error[..., 0], effort_spread, _scale_of(scale, effort[..., 0])(slice(None))),
    )


_SLICE = 1 << 20
"""Entries of a result that are compared at a time."""


def _slices(entries: int) -> list[slice]:
    return [slice(first, first + _SLICE) for first in range(0, entries, _SLICE)]


def _largest(outputs: Array) -> Array:
    """Returns the largest absolute value of each entry in all states."""
    largest = np.zeros(outputs.shape[-1])
    for state in outputs:
        for part in _slices(len(largest)):
            np.maximum(largest[part], np.abs(state[part]), out=largest[part])
    return largest


def _in_parts(answer: Array, runs: Array, scale: Callable[[slice], Array]) -> float:
    """Returns `_largest_share` of all entries. scale: from a slice of the entries to (states, entries of the slice)."""
    shares = [
        _largest_share(answer[:, part] - runs[:, part, 0], runs[:, part] - runs[:, part, :1], scale(part))
        for part in _slices(answer.shape[-1])
    ]
    return max(shares, default=0.0)


def _by_row(sizes: Array, operand: Operand) -> Array:
    """Returns the largest value in each entry's row: a zero entry may have the rounding error of others of its body."""
    rows = sizes.reshape(operand.shape[0], -1) if len(operand.shape) > 1 else sizes[:, None]
    return np.broadcast_to(rows.max(axis=1, keepdims=True), rows.shape).reshape(-1)


def _largest_share(error: Array, spread: Array, scale: Array) -> float:
    """Returns the largest difference as a share of the rounding bound.

    error, scale: (states, entries). spread: (states, entries, 1 + RUNS).
    """
    rounding_bound = SPREADS * np.abs(spread).max(axis=-1) + ROUNDINGS * np.finfo(np.float64).eps * scale
    share = np.divide(np.abs(error), rounding_bound, out=np.full_like(error, UNBOUNDED), where=rounding_bound > 0.0)
    # The result as given is finite, so infinity or NaN from the kernel exceeds any rounding.
    share = np.where(np.isfinite(share), np.minimum(share, UNBOUNDED), UNBOUNDED)
    return float(np.max(np.where(error == 0.0, 0.0, share), initial=0.0))


def _scale_of(entry_scale: Array, answer: Array) -> Callable[[slice], Array]:
    """Returns the function from a slice of the entries to their scale of rounding, own_i max_j |answer_j| / own_j."""
    entry_scale = np.broadcast_to(entry_scale, answer.shape)
    size = np.zeros((len(answer), 1))
    for part in _slices(answer.shape[-1]):
        entries, scale = np.abs(answer[:, part]), entry_scale[:, part]
        ratios = np.divide(entries, scale, out=np.zeros_like(entries), where=scale > 0.0)
        size = np.maximum(size, ratios.max(axis=-1, keepdims=True, initial=0.0))
    return lambda part: entry_scale[:, part] * size


def _runs(reference: Any, inputs: Sequence[Array]) -> list[Array]:
    return rounded_in_code(reference, inputs) if reference.is_rolled else rounded_at_random(reference.program, inputs)


def rounded_in_code(reference: Rolled | Staged, inputs: Sequence[Array]) -> list[Array]:
    """Returns the same as `rounded_at_random` for a kernel as loops, by compiled code with other random factors.

    If all runs do not fit in memory, each array has two: the one rounded to nearest, and that plus the largest change
    of each entry in all runs.
    """
    states, runs = len(inputs[0]), 1 + RUNS
    errors = np.finfo(np.float64).eps / 2 * np.random.default_rng(1).uniform(-1.0, 1.0, (states, runs, ERRORS))
    # The first run rounds to nearest, like the kernel.
    errors[:, 0] = 0.0
    # Twice: the sum of two indices, each below `ERRORS`, selects a factor.
    factors = 1.0 + np.concatenate([errors, errors], axis=-1)
    kernel = compiled(with_errors(reference), optimised=reference.operations > OPTIMISED_OPERATIONS)[0]

    def computed(states_slice: slice, runs_slice: slice) -> list[Array]:
        answers = kernel(*(x[states_slice, None] for x in inputs), factors[states_slice, runs_slice])
        answers = answers if isinstance(answers, tuple) else (answers,)
        return [answer.reshape(*answer.shape[:2], -1) for answer in answers]

    outputs = reference.signature.outputs
    if 8 * states * runs * total_size(outputs) <= MAX_RUN_BYTES:
        return [answer.swapaxes(1, 2) for answer in computed(slice(None), slice(None))]
    at_once = (batch_sizes(reference, host().lanes) or (1, 1))[0]
    summaries = [np.zeros((states, 2, operand.size)) for operand in outputs]
    for s in range(states):
        for first in range(0, runs, at_once):
            for summary, answers in zip(
                summaries, computed(slice(s, s + 1), slice(first, first + at_once)), strict=True
            ):
                if first == 0:
                    summary[s, 0] = answers[0, 0]
                for run in answers[0]:
                    np.abs(np.subtract(run, summary[s, 0], out=run), out=run)
                    np.maximum(summary[s, 1], run, out=summary[s, 1])
    for summary in summaries:
        summary[:, 1] += summary[:, 0]
    return [summary.swapaxes(1, 2) for summary in summaries]


def rounded_at_random(program: ex.Program, inputs: Sequence[Array]) -> list[Array]:
    """Returns a program's outputs, (states, entries, 1 + RUNS): rounded to nearest once, then RUNS times at random."""
    lanes = len(inputs[0]) * (1 + RUNS)
    flat = [np.repeat(x.reshape(len(x), -1), 1 + RUNS, axis=0).T for x in inputs]
    # A prime number of factors, so that operations at equal distances, as of equal joints, do not share one.
    errors = 1.0 + np.finfo(np.float64).eps / 2 * np.random.default_rng(1).uniform(-1.0, 1.0, (1021, lanes))
    errors[:, :: 1 + RUNS] = 1.0
    factors = list(errors)

    def rounded(k: int, value: Array) -> Any:
        return np.multiply(value, factors[k % len(factors)], out=value if isinstance(value, np.ndarray) else None)

    def constant(k: int, value: float) -> Any:
        # Whole numbers are part of the equations, not of the robot; they are exact.
        return value if not value % 1.0 else value * factors[k % len(factors)]

    outputs = []
    for entries in program(flat, constant, rounded):
        array = np.empty((len(entries), lanes))
        for k, entry in enumerate(entries):
            array[k] = entry  # a constant or a value for each lane
        outputs.append(array.T.reshape(len(inputs[0]), 1 + RUNS, -1).swapaxes(1, 2))
    return outputs
