"""Kernels as loops: the code does not grow with the number of bodies.

The function of `dynamics/` runs on a tree with one body per kind (`dynamics/rolled_tree.py`), and its recursions are
ordered in passes, alternately outward (parents first) and inward. Each pass computes, for one body at a time, all
values whose terms are known: its own, those of its parent in an outward pass, the sums from its children in an inward
one. What a later pass needs is stored per body. So

    inverse dynamics   outward (velocity, acceleration), inward (load)
    forward dynamics   outward (velocity), inward (inertia, load), outward (acceleration)

A pass is one graph per kind of body; the numbers of a body are read from a table. After the passes, walks compute the
outputs that belong to pairs of bodies: the mass matrix, Jacobians. Where accelerations are solutions with the mass
matrix, it is computed and factored between two passes. Products with matrices that are inputs, the gains of a control
law, are computed between two passes, too. `lower.py` emits passes and walks as LLVM IR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.rolled_tree import (
    AnyParent,
    LessProduct,
    Loop,
    Loops,
    NotRolledError,
    PairMatrix,
    RolledTree,
    Solved,
    Walk,
)
from dyn_service.dynamics.spatial import constant
from dyn_service.kernels.frames import KernelTree
from dyn_service.kernels.graph import outputs_of
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.model.configuration import Limits
from dyn_service.model.joints.axial import Axial
from dyn_service.model.parameters import INERTIAL, LINEAR
from dyn_service.model.passive import Passive
from dyn_service.model.tree import Tree

SOLVED_ROWS, SOLVED_COLUMNS = 2, 3
"""Rows and columns of the solutions of linear equations whose sums are in registers. With four rows TALOS takes 0.95 of
the time, but its kernel 1.25 times as long to compile.
"""

MOST_COLUMNS = 8
"""Columns that are solved for at a time if lanes are columns: few joints in a row have more velocities."""

_NO_KIND = -1
"""The kind of body that has a symbol which no expression may contain."""

_ALIASES = {"nl": "nb", "nm": "nb"}
"""Other names of dimensions along which each body has its own entries."""


class Address(NamedTuple):
    """Where a step for body i reads or writes a scalar.

    buffer     entry `first` of
    input      the flat inputs, plus `stride` times the first entry of body i in `family`, if there is one
    output     the flat outputs, likewise; in a walk from body a plus `other_stride` times a's in `other`
    added      the same; the scalar is added, since several bodies have this entry
    shared     the sums over bodies that an entry of v drives, as `output`
    matrix     the matrix of linear equations, likewise; the scalar is added
    factor     the right factors of products, likewise; the scalar is added
    number     the numbers of body i
    own        the stored values of body i
    parent     the stored values of the parent
    children   the sums of body i
    gives      the sums of the parent
    total      the sums over all bodies
    state      the state of a walk
    """

    buffer: Literal[
        "input",
        "output",
        "added",
        "shared",
        "matrix",
        "factor",
        "number",
        "own",
        "parent",
        "children",
        "gives",
        "total",
        "state",
    ]
    first: int
    family: str | None = None
    stride: int = 0
    other: str | None = None
    other_stride: int = 0


@dataclass(frozen=True, eq=False)
class Step:
    """The computation of a pass for one kind of body.

    program: one column in, one column out. sources, targets: the place of each entry of these columns. cleared: entries
    of the body's sums that are set to zero at the end, since another body uses their row later.
    """

    program: ex.Program
    sources: tuple[Address, ...]
    targets: tuple[Address, ...]
    cleared: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Pass:
    """A loop over all bodies. steps: per kind of body; None if there is nothing to compute."""

    outward: bool
    steps: tuple[Step | None, ...]


@dataclass(frozen=True, eq=False)
class Walks:
    """A walk from each body to its descendants (outward) or ancestors.

    size: scalars of a state. first: the step at the body where the walk begins, per kind of that body. visits: the step
    at a visited body, per kind of the first body and of the visited one; first bodies with states of the same shape
    share steps.
    """

    outward: bool
    size: int
    first: tuple[Step | None, ...]
    visits: tuple[tuple[Step | None, ...], ...]


@dataclass(frozen=True, eq=False)
class Elimination:
    """The order in which a symmetric matrix over the velocities is factored as L^T D L.

    order: the entries of v, each after those that it depends on. parent: per entry, the last one before it in that
    order with a nonzero in its row of L, or -1. The nonzeros of a row are in the columns of the entry's parent, that
    one's parent, and so on. column: per entry, its column in the rows of the stored matrix, which is the number of
    these ancestors; so the rows of an entry and of its ancestor have the same columns up to the ancestor's. width:
    length of the stored rows.
    """

    order: tuple[int, ...]
    parent: tuple[int, ...]
    column: tuple[int, ...]
    width: int

    @property
    def operations(self) -> tuple[int, int]:
        """Number of multiplications of the factorisation, and of a solution."""
        return sum(d * (d + 3) // 2 for d in self.column), 2 * sum(self.column)

    @cached_property
    def nested(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The entries, each followed by its descendants; per entry, its place there, and the end of its descendants."""
        size = [1] * len(self.order)
        for k in reversed(self.order):
            if self.parent[k] >= 0:
                size[self.parent[k]] += size[k]
        place, next_to, first = [0] * len(size), [0] * len(size), 0
        for k in self.order:
            if self.parent[k] < 0:
                place[k], first = first, first + size[k]
            else:
                place[k] = next_to[self.parent[k]]
                next_to[self.parent[k]] += size[k]
            next_to[k] = place[k] + 1
        entries = sorted(range(len(size)), key=place.__getitem__)
        return tuple(entries), tuple(place), tuple(p + n for p, n in zip(place, size, strict=True))

    def blocks(self, size_limit: int) -> list[tuple[int, int]]:
        """Returns these entries in blocks of at most `size_limit`: the place of the first, and the number.

        In a block each entry but the last has one child, the next one, so all of them have the same descendants after
        the block, and the same ancestors before it.
        """
        entries, _, end = self.nested
        blocks: list[tuple[int, int]] = []
        first = 0
        while first < len(entries):
            next_first, stop = first + 1, end[entries[first]]
            while next_first < min(stop, first + size_limit) and end[entries[next_first]] == stop:
                next_first += 1
            blocks.append((first, next_first - first))
            first = next_first
        return blocks


@dataclass(frozen=True, eq=False)
class Equations:
    """Linear equations between two passes. previous_passes: number of passes before. matrix: the walk that computes it.

    first, count: the columns of the shared sums that are the right-hand sides; the solutions replace them.
    """

    previous_passes: int
    matrix: Walks
    first: int
    count: int


class InputProducts(NamedTuple):
    """Products with inputs (nv, nv) that are added to a column of the shared sums between two passes.

    previous_passes: number of passes before. column: the column. factors: the first entry of each input among the
    inputs, and the column of the shared sums that it is multiplied with.
    """

    previous_passes: int
    column: int
    factors: tuple[tuple[int, int], ...]


class SolvedMatrix(NamedTuple):
    """An output (nv, nv) that is replaced by the solutions with the matrix of the equations.

    first: its first entry among the outputs. symmetric: whether the solutions are symmetric. transposed: whether the
    output is transposed after the products.
    """

    first: int
    symmetric: bool
    transposed: bool


class Product(NamedTuple):
    """An output (nv, nv) from which Z^T B is subtracted. B has the zeros of the equations' matrix.

    first, Z: the first entries of the output and of Z among the outputs. B: the index of the right factor. twice:
    whether (Z^T B)^T is subtracted too.
    """

    first: int
    Z: int
    B: int
    twice: bool


@dataclass(frozen=True, eq=False)
class Rolled:
    """A kernel as passes over the bodies.

    kind, parent: per body. starts: per family, the first entry of each body. numbers: per kind, the numbers of its
    bodies, one row each. stored_values, body_sums: number of stored values and of sums per body. totals: number of sums
    over all bodies. velocities: nv. walks, last: computed after all passes; `last` computes outputs that belong to no
    body. shared_columns: number of columns, one entry per entry of v, of sums over bodies that move together. products:
    all with the same Z. clears_outputs: whether outputs are cleared first. errors: whether the last input has error
    factors, see `lower.with_errors`.
    """

    signature: Signature
    kind: tuple[int, ...]
    parent: tuple[int, ...]
    starts: dict[str, Sequence[int]]
    numbers: tuple[np.ndarray, ...]
    passes: tuple[Pass, ...]
    walks: tuple[Walks, ...]
    last: Step | None
    stored_values: int
    body_sums: int
    totals: int
    velocities: int
    shared_columns: int
    equations: tuple[Equations, ...]
    input_products: tuple[InputProducts, ...]
    solved: tuple[SolvedMatrix, ...]
    products: tuple[Product, ...]
    elimination: Elimination
    clears_outputs: bool
    errors: bool = False

    is_rolled: ClassVar[bool] = True

    @property
    def states(self) -> int:
        """Number of scalars of the states of walks."""
        walks = (*self.walks, *(equations.matrix for equations in self.equations))
        return len(self.kind) * max((walk.size for walk in walks), default=0)

    @property
    def matrix(self) -> int:
        """Number of scalars of the matrix of equations, and of the columns that are solved for at a time."""
        depths = self.elimination.width
        columns = SOLVED_COLUMNS * (self.velocities + depths + 1) if self.solved else 0
        return self.velocities * depths + columns if self.equations else 0

    @property
    def workspace(self) -> int:
        """Number of scalars per state that it stores besides its outputs."""
        pass_values = len(self.kind) * self.stored_values + self.rows * self.body_sums + self.totals
        factors = len(self.products) * self.velocities**2
        return pass_values + self.states + self.velocities * self.shared_columns + self.matrix + factors

    @cached_property
    def row(self) -> tuple[int, ...]:
        """Per body, the row of its sums.

        A row is reserved from the first visit of a child until the visit of the body, then used again, so that few rows
        suffice. Row 0 belongs to the bodies without children, and stays zero.
        """
        row = [0] * len(self.parent)
        free: list[int] = []
        count = 1
        for i in range(len(row) - 1, -1, -1):
            parent = self.parent[i]
            if parent >= 0 and not row[parent]:
                if not free:
                    free.append(count)
                    count += 1
                row[parent] = free.pop()
            if row[i]:
                free.append(row[i])
        return tuple(row)

    @property
    def rows(self) -> int:
        """Number of rows of sums, see `row`."""
        return 1 + max(self.row)

    @property
    def operations(self) -> int:
        """Number of instructions that a call executes."""
        counts = [[len(step.program.instructions) if step else 0 for step in sweep.steps] for sweep in self.passes]
        factored, solved = self.elimination.operations if self.equations else (0, 0)
        solutions = sum(factored + equations.count * solved for equations in self.equations)
        solutions += len(self.solved) * self.velocities * solved
        solutions += len(self.products) * self.velocities * (self.velocities + 2 * sum(self.elimination.column))
        solutions += sum(len(products.factors) for products in self.input_products) * self.velocities**2
        return sum(pass_counts[k] for pass_counts in counts for k in self.kind) + self._visits() + 2 * solutions

    def _visits(self) -> int:
        """Number of instructions that all walks execute."""
        ancestor_counts = np.zeros((len(self.kind), max(self.kind) + 1), dtype=np.int64)  # ancestors of each kind
        for i, parent in enumerate(self.parent):
            if parent >= 0:
                ancestor_counts[i] = ancestor_counts[parent]
                ancestor_counts[i, self.kind[parent]] += 1

        def cost(step: Step | None) -> int:
            return len(step.program.instructions) if step else 0

        total = 0
        for walks in (*self.walks, *(equations.matrix for equations in self.equations)):
            costs = np.array([[cost(step) for step in row] for row in walks.visits])
            total += sum(cost(walks.first[k]) for k in self.kind)
            total += int((ancestor_counts * costs[list(self.kind)]).sum())  # an outward walk visits the same pairs
        return total


@dataclass(frozen=True, eq=False)
class _Inertia:
    """The attributes of `BodyInertia` that the equations use."""

    mass: Any
    moment: Any
    about_origin: Any
    com: Any
    about_com: Any
    centre: None = None


FEW_KINDS = 4
"""Largest number of kinds of bodies, if their joints allow it. Each kind takes about as long to compile as a small
robot. More kinds save operations with zeros, but hardly time, since memory limits the speed of loops.
"""

MAX_KINDS = 12
"""Largest number of kinds of bodies of any kernel."""


def roll(model: KernelTree, signature: Signature, kinds: int = FEW_KINDS) -> Rolled:
    """Returns a kernel as loops.

    Args:
        model: The tree of the kernel.
        signature: The signature of the kernel.
        kinds: Largest number of kinds of bodies, if their joints allow it.

    Raises:
        NotRolledError: The function visits bodies in other ways than by sweeps, the bodies are of too many kinds, or
            the robot has no movable joint.
    """
    # A padded input has a row although no body has one, so its entries cannot be addressed by body.
    if signature.padded:
        raise NotRolledError("the robot has no movable joint")
    bodies, kind = _kinds(model.tree, kinds)
    with ex.graph():
        return _Passes(model.tree, _rolled_tree(model, bodies), kind, signature).ordered()


def _kinds(tree: Tree, max_kinds: int) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Returns the bodies of each kind, and the kind of each body.

    Bodies of a kind have zeros and ones at the same places in as many of their numbers as give at most
    `max_kinds` kinds.

    Raises:
        NotRolledError: There are more than `MAX_KINDS` even without these numbers, as with planar joints of many axes.
    """
    features: tuple[Callable[[int], Any], ...] = (
        lambda i: _pattern(tree.rotation[i]),
        lambda i: _pattern(tree.origin[i]),
        lambda i: _pattern(tree.inertia[i].moment),
        lambda i: _pattern(tree.inertia[i].about_origin),
    )
    for count in range(len(features), -1, -1):
        groups: dict[Any, list[int]] = {}
        for i, joint in enumerate(tree.inboard):
            # The numbers of other joints than axial ones are constants of the code of their kind.
            exact = () if isinstance(joint, Axial) else tuple(np.concatenate([np.zeros(0), *joint.numbers]).tolist())
            axis_pattern = _pattern(joint.axis) if isinstance(joint, Axial) and count else ()
            mimicked = tree.mimicked_body[i]
            leader = (mimicked != i, type(tree.inboard[mimicked]))
            key = (type(joint), tree.parent[i] < 0, bool(tree.joints[i]), exact, axis_pattern, leader)
            groups.setdefault((*key, *(feature(i) for feature in features[:count])), []).append(i)
        if len(groups) <= max_kinds:
            break
    if len(groups) > MAX_KINDS:
        raise NotRolledError(f"the bodies are of {len(groups)} kinds, at most {MAX_KINDS} are supported")
    kinds = tuple(map(tuple, groups.values()))
    kind_of = {i: k for k, bodies in enumerate(kinds) for i in bodies}
    return kinds, tuple(kind_of[i] for i in range(len(tree)))


def _pattern(array: Any) -> tuple[float, ...]:
    """Returns the entries of an array, with 2 for all except 0, 1 and -1, which cost no operation."""
    return tuple(x if x in (0.0, 1.0, -1.0) else 2.0 for x in np.asarray(array, dtype=float).ravel().tolist())


_UPPER = np.triu_indices(3)


def _rolled_tree(model: KernelTree, kinds: tuple[tuple[int, ...], ...]) -> KernelTree:
    tree = model.tree
    loops = Loops(kinds, tree.inboard)

    def per_kind(numbers_of: Any) -> tuple[Any, ...]:
        return tuple(loops.array(k, numbers_of) for k in range(len(kinds)))

    def joint(k: int) -> Any:
        first_joint = tree.inboard[kinds[k][0]]
        if not isinstance(first_joint, Axial):
            return first_joint
        numbers = {}
        for number in fields(first_joint):
            x = loops.array(k, lambda i, number=number: getattr(tree.inboard[i], number.name))  # type: ignore[misc]
            numbers[number.name] = x.item() if x.ndim == 0 else x
        return replace(first_joint, **numbers)

    def passive(name: str) -> Any:
        entries = getattr(tree.passive, name)
        return constant(np.concatenate([np.zeros(0), *per_kind(lambda i: entries[tree.in_rates[i]])]))

    free = None
    if tree.free is not None:
        free_entries = tree.free
        free = constant(np.concatenate([np.zeros(0), *per_kind(lambda i: free_entries[tree.in_v[i]])]))
    count = len(kinds)
    first = [bodies[0] for bodies in kinds]
    velocities = sum(tree.inboard[i].nv for i in first)
    rolled = RolledTree(
        name=tree.name,
        links=tuple(f"kind {k}" for k in range(count)),
        joints=tuple(f"kind {k}" if tree.joints[i] else "" for k, i in enumerate(first)),
        parent=tuple(-1 if tree.parent[i] < 0 else AnyParent() for i in first),  # type: ignore[misc]
        inboard=tuple(map(joint, range(count))),
        rotation=per_kind(lambda i: tree.rotation[i]),
        origin=per_kind(lambda i: tree.origin[i]),
        inertia=tuple(_kind_inertia(loops, tree, k) for k in range(count)),
        limits=Limits(*np.zeros((4, velocities))),
        passive=Passive(*(passive(field.name) for field in fields(Passive))),
        mimic=(None,) * sum(tree.inboard[i].nv > 0 for i in first),
        free=free,
        loops=loops,
        leading=tuple(tree.inboard[tree.mimicked_body[i]] for i in first),
        follows=tuple(tree.mimicked_body[i] != i for i in first),
    )
    return KernelTree(rolled, per_kind(lambda i: model.rotation[i]), per_kind(lambda i: model.origin[i]))


def _kind_inertia(loops: Loops, tree: Tree, k: int) -> Any:
    """Returns the inertia of the bodies of kind k, whose numbers differ from body to body."""
    bodies = tree.inertia

    def symmetric(matrix_of: Callable[[int], Any]) -> Any:
        upper = loops.array(k, lambda i: matrix_of(i)[_UPPER])
        matrix = np.zeros((3, 3), dtype=upper.dtype)
        matrix[_UPPER] = matrix.T[_UPPER] = upper
        return constant(matrix)

    return _Inertia(
        mass=loops.array(k, lambda i: bodies[i].mass).item(),
        moment=constant(loops.array(k, lambda i: bodies[i].moment)),
        about_origin=symmetric(lambda i: bodies[i].about_origin),
        com=constant(loops.array(k, lambda i: bodies[i].com)),
        about_com=symmetric(lambda i: bodies[i].about_com),
    )


class _Passes:
    """Traces a function on a tree of kinds, and orders the recursions that the tree records in passes.

    places, owner, first_pass: per symbol its place, the kind of body that has it (None: no body has it), and the first
    pass that can read it. pass_of: per recursion its pass. base: per recursion its first entry among the stored values,
    the sums over all bodies, or the shared columns. sums: per recursion its first entry among the sums from children.
    """

    def __init__(self, tree: Tree, model: KernelTree, kind: tuple[int, ...], signature: Signature) -> None:
        self.tree, self.kind, self.signature = tree, kind, signature
        self.elimination = _elimination(tree)
        rolled = model.tree
        assert isinstance(rolled, RolledTree)
        self.loops, self.kinds = rolled.loops, range(len(rolled))
        self.velocities = [joint.nv for joint in rolled.inboard]
        self.entries = {  # per family, kind and index of each entry on the tree of kinds
            "nq": _indexed(rolled.in_q),
            "nv": _indexed(rolled.in_v),
            "nr": _indexed(rolled.in_rates),
            "nb": [(k, 0) for k in self.kinds],
            "nj": [(k, 0) for k in self.kinds if rolled.joints[k]],
        }
        self._symbols: dict[int, _Symbols] = {}
        self.places: dict[str, Address] = {}
        self.owner: dict[str, int | None] = {}
        self.first_pass: dict[str, int] = {}
        self.pass_of: list[int] = []
        self.base: list[int] = []
        self.sums: list[int] = []
        self.walks: list[tuple[Walk, Operand | None, int]] = []
        self.matrices: list[tuple[PairMatrix, Operand, int]] = []
        self.solved: list[SolvedMatrix] = []
        self.products: list[Product] = []
        answers = self._traced(model)
        for k, symbols in enumerate(self.loops.numbers.symbols):
            for n, symbol in enumerate(symbols):
                self._locate(symbol, Address("number", n), k, 0)
        self._place_loops()
        self.outputs = list(self._placed_outputs(answers))
        self.stored = self._store()

    def _traced(self, model: KernelTree) -> dict[str, Any]:
        symbols: dict[str, Any] = {}
        start = 0
        for operand in self.signature.inputs:
            places = self._placed(operand, "input", start)
            symbol = ex.sym(f"input.{operand.name}", len(places))
            for scalar, (place, owner) in zip(symbol.elements(), places, strict=True):
                self._locate(scalar, place, owner, 0)
            symbols[operand.name] = symbol
            start += operand.size
        return outputs_of(model, self.signature, symbols)

    def _locate(self, symbol: Any, place: Address, owner: int | None, first_pass: int) -> None:
        name = symbol.name
        self.places[name], self.owner[name], self.first_pass[name] = place, owner, first_pass

    def _placed(self, operand: Operand, buffer: Any, start: int) -> list[tuple[Address, int | None]]:
        """Returns the address of each entry of an operand on the tree of kinds, and the kind that has it, or None."""
        dims = [_ALIASES.get(dim, dim) if isinstance(dim, str) else dim for dim in operand.dims]
        if dims == ["nt"]:
            return self._placed_parameters(buffer, start)
        if buffer == "input" and dims == ["nv", "nv"]:
            return [(Address(buffer, start), _NO_KIND)]  # one symbol of a matrix, for products only
        if unknown := [dim for dim in dims if isinstance(dim, str) and dim not in self.entries]:
            raise NotRolledError(f"an operand has the dimension {unknown[0]}")
        if sum(isinstance(dim, str) for dim in dims) > 1:
            raise NotRolledError("an operand has entries for pairs of bodies")
        strides = [int(np.prod(operand.shape[axis + 1 :], dtype=int)) for axis in range(len(dims))]
        addresses: list[tuple[Address, int | None]] = []
        for index in np.ndindex(*(dim if isinstance(dim, int) else len(self.entries[dim]) for dim in dims)):
            place, owner = Address(buffer, start), None
            for dim, stride, k in zip(dims, strides, index, strict=True):
                if isinstance(dim, str):
                    owner, k = self.entries[dim][k]
                    place = place._replace(family=dim, stride=stride)
                place = place._replace(first=place.first + stride * k)
            addresses.append((place, owner))
        return addresses

    def _placed_parameters(self, buffer: Any, start: int) -> list[tuple[Address, int | None]]:
        """Returns the same for the dynamic parameters: those of all links, then each part of those of all rates."""
        width, rates = len(INERTIAL), self.tree.nr
        addresses: list[tuple[Address, int | None]] = [
            (Address(buffer, start + n, "nb", width), k) for k in self.kinds for n in range(width)
        ]
        for part in range(len(LINEAR)):
            first = start + width * len(self.tree) + part * rates
            addresses += [(Address(buffer, first + n, "nr", 1), k) for k, n in self.entries["nr"]]
        return addresses

    def _place_loops(self) -> None:
        """Sets pass and entries of each recursion, in the order of recording."""
        summed = totals = columns = 0
        for loop in self.loops.recorded:
            own_symbols = [(x, k) for k, column in enumerate(loop.own) for x in column.nonzeros()] if loop.value else []
            neighbour_symbols = [
                (x, k)
                for part in (loop.parent, loop.children)
                for k, column in enumerate(part)
                for x in column.nonzeros()
            ]
            for symbol, k in (*own_symbols, *neighbour_symbols):  # the loop's own expressions contain them
                self._locate(symbol, Address("own", 0), k, 0)
            expressions = [(x, k) for part in (loop.value, loop.given) for k, x in enumerate(part)]
            ready = max((self._ready(x, k) for x, k in expressions), default=0)
            ready = max([ready, *(self.pass_of[n] for _, n in loop.products)])
            if loop.matrix is not None:
                self._locate_states(loop.matrix)
                ready = max(ready, *(self._ready(x, k) for x, k in _walk_expressions(loop.matrix)))
            odd = ready % 2  # even passes are outward, odd ones inward
            p = ready + {"outward": odd, "inward": 1 - odd}.get(loop.direction, 0)
            self.pass_of.append(p)
            self.sums.append(summed)
            if loop.direction == "total":
                self.base.append(totals)
                for entry, symbol in enumerate(loop.own[0].nonzeros()):
                    self._locate(symbol, Address("total", totals + entry), None, p + 1)
                totals += loop.size
                continue
            if loop.direction == "shared":
                self.base.append(columns)
                for k, column in enumerate(loop.own):
                    for symbol, place in zip(column.nonzeros(), self._shared(k, loop, columns), strict=True):
                        self._locate(symbol, place, k, p + 1)
                columns += loop.size
                continue
            self.base.append(0)
            for k in self.kinds:
                for symbol in loop.own[k].nonzeros():
                    self._locate(symbol, Address("own", 0), k, p)
                for symbol in loop.parent[k].nonzeros():
                    self._locate(symbol, Address("parent", 0), k, p + p % 2)
                for symbol, entry in _entries(loop.children[k]):
                    self._locate(symbol, Address("children", summed + entry), k, p)
            summed += loop.size if loop.direction == "inward" else 0
        self.summed, self.totals, self.columns = summed, totals, columns

    def _shared(self, k: int, loop: Loop, first: int) -> list[Address]:
        """Returns the places of the entries that kind k has in the columns of a shared sum, from the first on."""
        rows = range(self.velocities[k])
        return [Address("shared", self.tree.nv * (first + c) + n, "nv", 1) for c in range(loop.size) for n in rows]

    def _store(self) -> int:
        """Sets the entries of the values that a later pass or a child reads; returns their number per body."""
        count = 0
        for n, loop in enumerate(self.loops.recorded):
            later_reads = (self._read_later(self.pass_of[n], k) for k in self.kinds)
            if n not in self._read_by_children and not any(n in loops for loops in later_reads):
                continue
            self.base[n] = count
            for part in (loop.own, loop.parent):
                for symbol, entry in (pair for column in part for pair in _entries(column)):
                    self.places[symbol.name] = self.places[symbol.name]._replace(first=count + entry)
            count += loop.size
        return count

    def _ready(self, expression: Any, owner: int | None) -> int:
        """Returns the first pass in which all symbols of an expression of one kind of body are known."""
        ready = 0
        for name in self._symbols_of(expression).names:
            if name not in self.places or self.owner[name] not in (None, owner):
                raise NotRolledError("an expression mixes the values of several bodies")
            ready = max(ready, self.first_pass[name])
        return ready

    def _placed_outputs(self, answers: dict[str, Any]) -> Iterator[_Output]:
        """Yields the nonzero entries of outputs that passes compute; sets walks, matrices, solved and products."""
        start = 0
        for operand in self.signature.outputs:
            if isinstance(answers[operand.name], Walk):
                self.walks.append((answers[operand.name], operand, start))
                start += operand.size
                continue
            answer = answers[operand.name]
            if isinstance(answer, LessProduct):
                self.matrices.append((answer.B, self._factor, len(self.products) * self._factor.size))
                self.products.append(
                    Product(start, self._start_of(answer.Z, answers), len(self.products), answer.twice)
                )
                answer = answer.X
            if isinstance(answer, Solved):
                if [loop.matrix for loop in self.loops.recorded if loop.matrix is not None] != [answer.matrix]:
                    raise NotRolledError("the matrix of the equations is not kept")
                self.solved.append(SolvedMatrix(start, answer.symmetric, answer.transposed))
                answer = answer.given
            if isinstance(answer, PairMatrix | tuple):
                for X in (answer,) if isinstance(answer, PairMatrix) else answer:
                    if all(walk is not X.walk for walk, *_ in self.walks):
                        self.walks.append((X.walk, None, 0))
                    self.matrices.append((X, operand, start))
                start += operand.size
                continue
            entries, places = ex.vec(ex.matrix(answers[operand.name]).T), self._placed(operand, "output", start)
            if entries.numel() != len(places):
                raise NotRolledError("an output does not have one entry per kind")
            for expression, (place, owner) in zip(entries.elements(), places, strict=True):
                if self.tree.has_mimics and place.family in ("nq", "nv") and self._symbols_of(expression).own_loops:
                    raise NotRolledError("an entry of v is the value of one of the bodies that it moves, not a sum")
                if expression != 0.0:  # the loop over states has cleared the buffer
                    yield _Output(self._ready(expression, owner), owner, expression, place)
            start += operand.size

    def _start_of(self, Z: Solved, answers: dict[str, Any]) -> int:
        """Returns the first entry, among the outputs, of the output that is Z."""
        start = 0
        for operand in self.signature.outputs:
            answer = answers[operand.name]
            if isinstance(answer, Solved) and answer.given is Z.given:
                return start
            start += operand.size
        raise NotRolledError("the left factor of a product is not an output")

    def ordered(self) -> Rolled:
        """Returns the kernel."""
        tree, last = self.tree, [(output.expression, output.place) for output in self.outputs if output.owner is None]
        body_passes = [output.first_pass for output in self.outputs if output.owner is not None]
        count = 1 + max([*self.pass_of, *body_passes], default=0)
        passes = [tuple(self._step(p, k) for k in self.kinds) for p in range(count)]
        previous = np.cumsum([any(steps) for steps in passes]).tolist()  # passes without steps are left out
        equations = [
            Equations(previous[self.pass_of[n]], self._walks(loop.matrix, self._matrix, 0), self.base[n], loop.size)
            for n, loop in enumerate(self.loops.recorded)
            if loop.matrix is not None
        ]
        products = [
            InputProducts(
                previous[self.pass_of[n]],
                self.base[n],
                tuple((self.places[K.data[0].name].first, self.base[m]) for K, m in loop.products),
            )
            for n, loop in enumerate(self.loops.recorded)
            if loop.products
        ]
        return Rolled(
            self.signature,
            self.kind,
            tree.parent,
            self._starts(),
            tuple(
                np.reshape(columns, (len(columns), len(bodies))).T
                for columns, bodies in zip(self.loops.numbers.columns, self.loops.bodies, strict=True)
            ),
            tuple(Pass(p % 2 == 0, steps) for p, steps in enumerate(passes) if any(steps)),
            tuple(self._walks(*walk) for walk in self.walks),
            self._compiled(last) if last else None,
            self.stored,
            self.summed,
            self.totals,
            tree.nv,
            self.columns,
            tuple(equations),
            tuple(products),
            tuple(self.solved),
            tuple(self.products),
            self.elimination,
            # Several bodies add to an entry of a leader's joint; products are subtracted from entries that may be 0.
            tree.has_mimics or bool(self.products),
        )

    def _starts(self) -> dict[str, Sequence[int]]:
        """Returns per family the first entry of each body."""
        tree, columns = self.tree, self.elimination.column
        depth: list[int] = []
        for parent in tree.parent:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        named_index = np.cumsum([0, *(bool(name) for name in tree.joints)])[:-1]
        return {
            "nb": range(len(tree)),
            "nj": named_index.tolist(),
            **{
                name: [part.start for part in parts]
                for name, parts in (("nq", tree.in_q), ("nv", tree.in_v), ("nr", tree.in_rates))
            },
            "na": (np.cumsum(depth) - depth + np.arange(len(depth))).tolist(),
            "depth": depth,
            "column": [columns[part.start] if part.stop > part.start else 0 for part in tree.in_v],
        }

    def _step(self, p: int, k: int) -> Step | None:
        """Returns what a pass computes for one kind of body."""
        symbols: list[ex.Scalar] = []
        values: list[ex.Scalar] = []
        targets: list[tuple[ex.Scalar, Address]] = []
        cleared: list[int] = []

        def in_pass(expression: Any) -> ex.Matrix:
            """Returns the expression with the values of this pass in place of their symbols."""
            return ex.substitute([ex.matrix(expression)], [ex.column(symbols)], [ex.column(values)])[0]

        later_reads = self._read_later(p, k)
        for n, loop in enumerate(self.loops.recorded):
            if self.pass_of[n] != p:
                continue
            if loop.value:
                value = in_pass(loop.value[k])
                symbols += loop.own[k].nonzeros()
                values += value.nonzeros()
                if n in self._read_by_children:
                    # A child does not know its parent's kind, so each kind stores what is zero for it too.
                    value = ex.densify(value)
                if n in self._read_by_children or n in later_reads:
                    targets += [(x, Address("own", self.base[n] + entry)) for x, entry in _entries(value)]
            if loop.direction == "inward":
                cleared += range(self.sums[n], self.sums[n] + loop.size)
            if loop.direction == "shared":
                places = self._shared(k, loop, self.base[n])
                targets += [(x, places[entry]) for x, entry in _entries(in_pass(loop.given[k])) if x != 0.0]
                continue
            for x, entry in _entries(in_pass(loop.given[k])) if loop.given else ():
                buffer, first = ("total", self.base[n]) if loop.direction == "total" else ("gives", self.sums[n])
                targets.append((x, Address(buffer, first + entry)))  # type: ignore[arg-type]
        ready_outputs = [output for output in self.outputs if output.owner == k and output.first_pass == p]
        targets += zip(
            in_pass(ex.column([output.expression for output in ready_outputs])).elements(),
            (output.place for output in ready_outputs),
            strict=True,
        )
        return replace(self._compiled(targets), cleared=tuple(cleared)) if targets or cleared else None

    @cached_property
    def _read_by_children(self) -> set[int]:
        """The loops whose values are read as those of the parent."""
        expressions = [x for loop in self.loops.recorded for x in (*loop.value, *loop.given)]
        expressions += [output.expression for output in self.outputs] + self._expressions_of_walks()
        return {n for x in expressions for n in self._symbols_of(x).parent_loops}

    def _expressions_of_walks(self, k: int | None = None) -> list[Any]:
        """Returns the expressions of all walks that read values of bodies of kind k; None: of all kinds."""
        walks = [walk for walk, *_ in self.walks]
        walks += [loop.matrix for loop in self.loops.recorded if loop.matrix is not None]
        expressions = [x for walk in walks for x, b in _walk_expressions(walk) if k in (None, b)]
        return expressions + [x for X, *_ in self.matrices for b, x in enumerate(X.first) if k in (None, b)]

    def _walks(self, walk: Walk, operand: Operand | None, start: int) -> Walks:
        """Returns the steps of a walk whose blocks are entries of an output, or of several matrices."""

        def targets(block: Any, state: Any, a: int, b: int, *, same: bool) -> Step | None:
            entries = [(x, Address("state", entry)) for x, entry in _entries(ex.densify(state))]
            for x, places in self._pair_places(operand, start, block, same=same) if operand else ():
                entries += [(x, place) for place in places]
            for X, matrix_operand, first in self.matrices:
                if X.walk is walk:
                    entries += self._matrix_places(X, matrix_operand, first, a, b, same=same)
            self._ready(ex.column([x for x, _ in entries]), b)
            return self._compiled(entries) if entries else None

        self._locate_states(walk)
        visits = {(a, b): targets(*pair, a, b, same=False) for (a, b), pair in walk.others.items()}
        return Walks(
            walk.outward,
            max(int(state.numel()) for _, state in walk.first),
            tuple(targets(*pair, a, a, same=True) for a, pair in enumerate(walk.first)),
            # Kinds whose states have the same shape share a step: walks of TALOS then compile in half of the time.
            tuple(tuple(visits.get((walk.like[a], b)) for b in self.kinds) for a in self.kinds),
        )

    def _locate_states(self, walk: Walk) -> None:
        for (_, b), state in walk.state.items():
            for entry, symbol in enumerate(state.nonzeros()):
                self._locate(symbol, Address("state", entry), b, 0)

    @property
    def _matrix(self) -> Operand:
        """The stored matrix of linear equations."""
        return Operand("matrix", (self.tree.nv, self.tree.nv), dims=("nv", "column"))

    @property
    def _factor(self) -> Operand:
        """A right factor of a product."""
        return Operand("factor", (self.tree.nv, self.tree.nv), dims=("nv", "nv"))

    def _pair_places(
        self, operand: Operand, start: int, block: Any, *, same: bool
    ) -> Iterator[tuple[Any, list[Address]]]:
        """Yields each entry of a block (a, b) and its places. same: whether a is b.

        Of a mass matrix, a block (nv_b, nv_a) and its transpose; of Jacobians (bodies, k, nv), a block (k, nv_a); of
        regressors (nv, nt) a block (nv_b, 10), if a is b with a column for each part of the parameters of its rates.
        """
        dims = [_ALIASES.get(dim, dim) if isinstance(dim, str) else dim for dim in operand.dims]
        buffer: Any = "added" if self.tree.has_mimics else "output"
        for column in range(block.shape[1]):
            for row in range(block.shape[0]):
                (x,) = block[row, column].data
                if x is None or x == 0.0:
                    continue
                if operand.name == "matrix":
                    width = self.elimination.width
                    lower_place = Address("matrix", row + width * column, "column", 1, "nv", width)
                    upper_place = Address("matrix", column + width * row, "nv", width, "column", 1)
                    if same and row > column:  # the lower triangle of the transposed block
                        continue
                    # Of coupled joints either may come first; the other place is beyond its row's last column.
                    yield x, [lower_place, upper_place] if self.tree.has_mimics and not same else [lower_place]
                elif dims == ["nv", "nv"]:
                    width = operand.shape[1]
                    place = Address(buffer, start + width * row + column, "nv", width, "nv", 1)
                    transposed_place = Address(buffer, start + width * column + row, "nv", 1, "nv", width)
                    if not same or row >= column:
                        yield x, [place, transposed_place] if not same or row > column else [place]
                elif dims == ["nv", "nt"]:
                    row_stride, part = operand.shape[1], column - len(INERTIAL)
                    first = start + row_stride * row
                    if part < 0:
                        yield x, [Address(buffer, first + column, "nv", row_stride, "nb", len(INERTIAL))]
                    else:
                        first += len(INERTIAL) * len(self.tree) + part * self.tree.nr + row
                        yield x, [Address(buffer, first, "nv", row_stride, "nr", 1)]
                elif dims == ["nj", 6, "nb", len(INERTIAL)]:
                    row_stride = len(INERTIAL) * len(self.tree)
                    first = start + row_stride * row + column
                    yield x, [Address(buffer, first, "nj", 6 * row_stride, "nb", len(INERTIAL))]
                elif dims[0] == "na":  # the pairs of each body and its ancestors
                    yield x, [Address(buffer, start + 6 * row + column, "na", 36, "depth", 36)]
                else:
                    rows, width = operand.shape[1:]
                    yield x, [Address(buffer, start + width * row + column, str(dims[0]), rows * width, "nv", 1)]

    def _matrix_places(
        self, X: PairMatrix, operand: Operand, start: int, a: int, b: int, *, same: bool
    ) -> Iterator[tuple[Any, Address]]:
        """Yields each entry of the blocks (b, a) and (a, b) of a matrix, and its place.

        Of a matrix (bodies, 6, nv), the block (b, a) has the rows of body b.
        """
        buffer: Any = "factor" if operand.name == "factor" else "added" if self.tree.has_mimics else "output"
        width, absent = operand.shape[-1], ex.zeros(0, 0)
        family: Any = operand.dims[0]
        rows = 1 if family == "nv" else operand.shape[1]
        is_solved = buffer == "output" and any(solved.first == start for solved in self.solved)
        if is_solved:  # the solution for the states before has replaced the zeros
            absent = ex.zeros(self.velocities[b], self.velocities[a])
        blocks = [(X.first[a] if same else X.across.get((a, b), absent), width, 1)]
        blocks += [] if same else [(X.along.get((a, b), absent), 1, width)]
        for block, row_stride, column_stride in blocks:
            block = ex.densify(block) if is_solved else block
            for column in range(block.shape[1]):
                for row in range(block.shape[0]):
                    (x,) = block[row, column].data
                    if x is not None and (is_solved or x != 0.0):
                        first = start + row_stride * row + column_stride * column
                        yield x, Address(buffer, first, family, rows * row_stride, "nv", column_stride)

    def _read_later(self, p: int, k: int) -> set[int]:
        """Returns the loops whose own values on a kind of body are read in a later pass."""
        outputs = [output for output in self.outputs if output.owner == k and output.first_pass > p]
        expressions = [output.expression for output in outputs] + self._expressions_of_walks(k)
        for n, loop in enumerate(self.loops.recorded):
            if self.pass_of[n] > p:
                expressions += [part[k] for part in (loop.value, loop.given) if part]
        return {n for x in expressions for n in self._symbols_of(x).own_loops}

    def _symbols_of(self, expression: Any) -> _Symbols:
        """Returns the symbols of an expression; each expression is searched once."""
        if id(expression) not in self._symbols:
            names = [symbol.name for symbol in ex.symvar(ex.matrix(expression))]
            own_loops, parent_loops = (
                {int(name.split(".")[1]) for name in names if name.startswith(prefix)} for prefix in ("own.", "parent.")
            )
            # The entry holds the expression, so that no other one gets its id.
            self._symbols[id(expression)] = _Symbols(expression, names, own_loops, parent_loops)
        return self._symbols[id(expression)]

    def _compiled(self, targets: list[tuple[Any, Address]]) -> Step:
        column = ex.column([x for x, _ in targets])
        symbols = ex.symvar(column)
        program = ex.Program.of([ex.column(symbols)], [column])
        return Step(program, tuple(self.places[s.name] for s in symbols), tuple(place for _, place in targets))


def _elimination(tree: Tree) -> Elimination:
    """Returns the elimination of a tree's mass matrix. Rows of L are sets of bits, filled in from the last row on."""
    order = tree.parent_first_entries
    rank = {entry: k for k, entry in enumerate(order)}
    rows = [0] * tree.nv
    paths: list[int] = []
    for i, parent in enumerate(tree.parent):
        joint_entries = [rank[entry] for entry in range(tree.in_v[i].start, tree.in_v[i].stop)]
        paths.append((0 if parent < 0 else paths[parent]) | sum(1 << k for k in joint_entries))
        for k in joint_entries:
            rows[k] |= paths[i] & ((1 << k) - 1)
            later_entries = paths[i] >> (k + 1)
            while later_entries:  # only with mimic joints
                rows[k + later_entries.bit_length()] |= 1 << k
                later_entries &= (1 << (later_entries.bit_length() - 1)) - 1
    parents = [-1] * tree.nv
    for k in range(tree.nv - 1, -1, -1):
        last = rows[k].bit_length() - 1
        if last >= 0:
            parents[order[k]] = order[last]
            rows[last] |= rows[k] & ((1 << last) - 1)
    column = [0] * tree.nv
    for k in order:
        column[k] = column[parents[k]] + 1 if parents[k] >= 0 else 0
    return Elimination(order, tuple(parents), tuple(column), 1 + max(column, default=0))


def _walk_expressions(walk: Walk) -> Iterator[tuple[Any, int]]:
    """Yields the expressions of a walk, each with the kind of body whose values it reads."""
    yield from ((x, a) for a, pair in enumerate(walk.first) for x in pair)
    yield from ((x, b) for (_, b), pair in walk.others.items() for x in pair)


class _Output(NamedTuple):
    """An entry of an output: the first pass that can compute it, the kind of body that has it, or None."""

    first_pass: int
    owner: int | None
    expression: Any
    place: Address


class _Symbols(NamedTuple):
    """The names of an expression's symbols, and the recursions whose values it reads: own, and those of the parent."""

    expression: Any
    names: list[str]
    own_loops: set[int]
    parent_loops: set[int]


def _entries(column: Any) -> list[tuple[Any, int]]:
    """Returns the nonzeros of a column and their rows."""
    return [(x, row) for row, x in enumerate(column.data) if x is not None]


def _indexed(parts: Sequence[slice]) -> list[tuple[int, int]]:
    """Returns kind and index of each entry of consecutive slices, one per kind."""
    return [(k, n) for k, part in enumerate(parts) for n in range(part.stop - part.start)]
