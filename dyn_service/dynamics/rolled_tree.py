"""Sweeps as loops: an algorithm runs once per *kind* of body, and its recursions are recorded instead of unrolled.

A kind is a group of bodies with the same type of joint, on the ground or not, and zeros at the same places.
`RolledTree` has one body for each kind. Its numbers are symbols where the bodies of a kind differ; so are the values
that a body receives from its parent, its children, or a sum over all bodies. Its methods of `model/traversal.py`
record a `Loop` for each recursion, and `kernels/rolled.py` orders the loops in passes over the bodies. The size of the
result does not depend on the number of bodies.

An algorithm that visits bodies otherwise raises `NotRolledError`. Where the formula itself differs in loops, because
values of loops can neither be substituted nor multiplied, the function dispatches on the tree and has a second version
next to it, `.._in_loops`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.spatial import Inertia, Mat, of_upper_triangle, upper_triangle
from dyn_service.model.configuration import Configuration
from dyn_service.model.joints import Joint
from dyn_service.model.tree import Tree

T = TypeVar("T")

Direction = Literal["outward", "inward", "each", "total", "shared"]
"""outward: from the parent. inward: from the children. each: of the body alone. total: a sum over all bodies. shared: a
sum over the bodies that an entry of v drives.
"""


class NotRolledError(Exception):
    """Raised where an algorithm cannot be run once per kind of body."""


class AnyParent:
    """The parent of a body that is not on the ground. Its index is known only when the loop runs."""

    def __lt__(self, other: int) -> bool:
        return False

    def __ge__(self, other: int) -> bool:
        return True

    def __index__(self) -> int:
        raise NotRolledError("the algorithm visits the parent of a body by its index")


@dataclass(eq=False)
class Loop:
    """One recursion; lists have one entry per kind, columns of scalars.

    own: symbols of the body's value. parent: symbols of the parent's value. children: symbols of the sum over the
    children. value: the body's value. given: the term that it adds to the sum of its parent (inward) or of all bodies
    (total, shared). matrix: the matrix of linear equations with this sum as right-hand side; own is then the solution.
    products: added to this sum, each of an input (nv, nv) and a shared sum that was recorded before, by its number.
    """

    direction: Direction
    size: int
    own: list[Mat] = field(default_factory=list)
    parent: list[Mat] = field(default_factory=list)
    children: list[Mat] = field(default_factory=list)
    value: list[Mat] = field(default_factory=list)
    given: list[Mat] = field(default_factory=list)
    matrix: Walk | None = None
    products: Sequence[tuple[Mat, int]] = ()


@dataclass(eq=False)
class Walk:
    """A recursion, recorded in `loops`, from each body a over its descendants b (outward) or its ancestors b:

        block_aa, state_a = start(a),    block_ab, state_b = step(b, state of the body before b)

    first: per kind of a, block_aa and state_a. like: per kind of a, the first kind with states of the same shape, whose
    visits are the same. state: per kinds `like` and b, the symbols of the state that b gets. others: per kinds `like`
    and b, block_ab and state_b. States are columns.
    """

    loops: Loops
    outward: bool
    like: list[int] = field(default_factory=list)
    first: list[tuple[Mat, Mat]] = field(default_factory=list)
    state: dict[tuple[int, int], Mat] = field(default_factory=dict)
    others: dict[tuple[int, int], tuple[Mat, Mat]] = field(default_factory=dict)


def known_of_first(walk: Walk, values: Sequence[Mat]) -> dict[tuple[int, int], Mat]:
    """Adds values of the body where a walk begins to its states; returns their symbols for each pair of kinds."""
    walk.first = [
        (block, ex.vertcat(state, x) if state.numel() else state)
        for (block, state), x in zip(walk.first, values, strict=True)
    ]
    symbols = {(a, b): ex.sym(f"first.{a}.{b}", int(values[a].numel())) for a, b in walk.others}
    for pair, (block, state) in walk.others.items():
        walk.state[pair] = ex.vertcat(walk.state[pair], symbols[pair])
        walk.others[pair] = block, ex.vertcat(state, symbols[pair]) if state.numel() else state
    return symbols


@dataclass(eq=False)
class PairMatrix:
    """A matrix over the velocities, with entries for each body and its ancestors. Several can share one walk.

    first: per kind of a, the block (a, a). across: the block (b, a), along: the transposed block (a, b), both of shape
    (nv_b, nv_a), per kinds `like` of a (see `Walk`) and b.
    """

    walk: Walk
    first: list[Mat]
    across: dict[tuple[int, int], Mat] = field(default_factory=dict)
    along: dict[tuple[int, int], Mat] = field(default_factory=dict)

    def __neg__(self) -> PairMatrix:
        across_blocks, along_blocks = ({pair: -X for pair, X in blocks.items()} for blocks in (self.across, self.along))
        return PairMatrix(self.walk, [-X for X in self.first], across_blocks, along_blocks)

    @property
    def T(self) -> PairMatrix:
        """The transposed matrix."""
        return PairMatrix(self.walk, [X.T for X in self.first], self.along, self.across)

    def plus_diagonal(self, blocks: Sequence[Mat]) -> PairMatrix:
        """Returns the sum with a block for each kind."""
        first = [X + block for X, block in zip(self.first, blocks, strict=True)]
        return PairMatrix(self.walk, first, self.across, self.along)


@dataclass(frozen=True, eq=False)
class Solved:
    """The inverse of `matrix` times `given`, or its transpose. symmetric: whether one half is a copy of the other."""

    matrix: Walk
    given: PairMatrix
    symmetric: bool = False
    transposed: bool = False


@dataclass(frozen=True, eq=False)
class LessProduct:
    """X - Z^T B; twice: X - Z^T B - B^T Z. Z: an output of the same kernel, transposed there."""

    X: PairMatrix
    Z: Solved
    B: PairMatrix
    twice: bool = False


@dataclass(eq=False)
class Numbers:
    """The numbers that differ among the bodies of each kind. symbols, columns: per kind, in the same order."""

    symbols: list[list[Any]]
    columns: list[list[Any]]


@dataclass(eq=False)
class Loops:
    """What an algorithm records. bodies: per kind, the bodies of the robot. joints: of all bodies of the robot."""

    bodies: tuple[tuple[int, ...], ...]
    joints: tuple[Joint, ...]
    recorded: list[Loop] = field(default_factory=list)
    numbers: Numbers = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = Numbers([[] for _ in self.bodies], [[] for _ in self.bodies])

    def array(self, kind: int, array_of_body: Callable[[int], Any]) -> Any:
        """Returns an array of the bodies of a kind: a number where they agree, else a symbol.

        Args:
            kind: The kind.
            array_of_body: Returns the array of one body of the robot.

        Returns:
            An array of doubles, or of objects if it has symbols.
        """
        values = np.array([array_of_body(i) for i in self.bodies[kind]], dtype=float)
        first = values[0]
        same = (values == first).all(axis=0)
        # A constant only if all bodies agree to the last bit: the answer must not depend on the form.
        if same.all():
            return first
        entries = np.asarray(first).astype(object)
        for place in np.flatnonzero(~same):
            symbol = ex.sym(f"number.{kind}.{len(self.numbers.symbols[kind])}")
            self.numbers.symbols[kind] += symbol.data
            self.numbers.columns[kind].append(values.reshape(len(values), -1)[:, place])
            entries.flat[place] = symbol
        return entries

    def outward(self, kinds: Sequence[bool], step: Callable[[int, T | None], T]) -> list[T]:
        """Records z_i = step(i, z_ip), and returns z. kinds: whether each kind is on the ground, where z_ip is None."""
        first = next(k for k, ground in enumerate(kinds) if ground)
        shape = step(first, None)
        loop = self._begin("outward", shape, len(kinds))
        for k, ground in enumerate(kinds):
            value = shape if k == first else step(k, None if ground else shaped(shape, loop.parent[k]))
            self._keep(loop, k, value)
        return [shaped(shape, symbols) for symbols in loop.own]

    def inward(self, x: Sequence[T], carry: Callable[[int, T], T], kinds: Sequence[bool]) -> list[T]:
        """Records z_i = x_i + sum of carry(k, z_k) over the children k of i, and returns z. kinds: as in `outward`."""
        loop = self._begin("inward", x[0], len(kinds))
        z = []
        for k in range(len(kinds)):
            self._keep(loop, k, flat(x[k]) + loop.children[k])
            z.append(shaped(x[0], loop.own[k]))
        for k, ground in enumerate(kinds):
            loop.given.append(ex.zeros(loop.size, 1) if ground else flat(carry(k, z[k])))
        return z

    def from_children(self, start: Sequence[Mat], terms: Sequence[Mat | None]) -> list[Mat]:
        """Records z_i = start_i + the sum of the children's `given`, and returns z. given: None on the ground."""
        loop = self._begin("inward", start[0], len(terms))
        for k, x in enumerate(terms):
            self._keep(loop, k, flat(start[k]) + loop.children[k])
            loop.given.append(ex.zeros(loop.size, 1) if x is None else flat(x))
        return [shaped(start[0], own) for own in loop.own]

    def from_parent(self, x: Sequence[Mat], kinds: Sequence[bool], ground: Mat) -> list[Mat]:
        """Returns the parent's x, or `ground` for bodies on the ground."""
        # Values of a recorded loop are stored already, and need no second copy.
        loop = self._loop_of(x) or self._each(x, sparse=False)
        return [ground if on_ground else shaped(x[0], loop.parent[k]) for k, on_ground in enumerate(kinds)]

    def kept(self, x: Sequence[T]) -> list[T]:
        """Returns x as values that are computed once per body, and stored if a later pass reads them."""
        loop = self._each(x, sparse=True)
        return [shaped(value, symbols) for value, symbols in zip(x, loop.own, strict=True)]

    def total(self, x: Sequence[Mat]) -> Mat:
        """Returns the sum over all bodies."""
        loop = Loop("total", int(flat(x[0]).numel()))
        symbol = ex.sym(f"total.{len(self.recorded)}", loop.size)
        self.recorded.append(loop)
        loop.own, loop.given = [symbol], [flat(value) for value in x]
        return shaped(x[0], symbol)

    def shared(self, x: Sequence[Mat], matrix: Walk | None = None) -> list[Mat]:
        """Returns for each body the sum of the x of all bodies that move with the same entries of v.

        Args:
            x: Per kind, (nv of its joint, k).
            matrix: A symmetric matrix over the velocities; the result is then its inverse times the sum.
        """
        loop = Loop("shared", int(x[0].shape[1]), matrix=matrix)
        n = len(self.recorded)
        self.recorded.append(loop)
        for k, block in enumerate(x):
            loop.own.append(ex.sym(f"shared.{n}.{k}", int(block.numel())))
            loop.given.append(flat(ex.densify(ex.matrix(block))))
        return [ex.reshape(symbol, *block.shape) for symbol, block in zip(loop.own, x, strict=True)]

    def plus_products(self, x: Sequence[Mat], factors: Sequence[tuple[Mat, Sequence[Mat]]]) -> list[Mat]:
        """Returns `shared` of x plus the sum of all K y. factors: K, an input (nv, nv), and y, as x with one column."""
        first = len(self.recorded)
        for _, y in factors:
            self.shared(y)
        sums = self.shared(x)
        self.recorded[-1].products = [(K, first + n) for n, (K, _) in enumerate(factors)]
        return sums

    def walk(
        self,
        start: Callable[[int], tuple[Mat, Mat | None]],
        step: Callable[[int, Mat], tuple[Mat, Mat | None]],
        kinds: Sequence[bool],
        *,
        outward: bool,
    ) -> Walk:
        """Returns a walk from each body; see `sweeps.walk`. kinds: as in `outward`."""
        walk = Walk(self, outward)
        kind_of: dict[tuple[int, ...], int] = {}
        for a in range(len(kinds)):
            block, state = start(a)
            walk.first.append((block, flat(ex.zeros(0, 1) if state is None else state)))
            # States of the same shape share one visit, which is compiled once.
            walk.like.append(a if state is None else kind_of.setdefault(state.shape, a))
            for b, ground in enumerate(kinds):
                if state is None or walk.like[a] != a or (outward and ground):
                    continue
                symbol = ex.sym(f"state.{a}.{b}", *state.shape)
                walk.state[a, b] = flat(symbol)
                block_ab, following = step(b, symbol)
                walk.others[a, b] = block_ab, flat(ex.zeros(0, 1) if following is None else following)
        return walk

    def rate(self, x: Mat, inputs: Mat, input_rates: Mat) -> Mat:
        """Returns the derivative of x by time where the symbols `inputs` change with the rates `input_rates`.

        For each loop recorded so far, the loop of the rates of its values is recorded.
        """
        symbols, rates = [ex.matrix(inputs)], [ex.matrix(input_rates)]

        def know(entries: Mat, changes: Mat) -> None:
            symbols.append(ex.vertcat(*(entries[row] for row in entries.places)))
            rates.append(ex.vertcat(*(changes[row] for row in entries.places)))

        def rate_of(expression: Mat) -> Mat:
            return ex.sparsify(ex.jtimes(ex.matrix(expression), ex.vertcat(*symbols), ex.vertcat(*rates)))

        # A copy, because each iteration records another loop.
        for loop in tuple(self.recorded):
            if loop.direction == "total" or loop.matrix is not None or loop.products:
                raise NotRolledError("the rates of sums over all bodies, of solutions and of products are not recorded")
            if loop.direction == "shared":
                terms = [ex.reshape(rate_of(x), -1, loop.size) for x in loop.given]
                for values, changes in zip(loop.own, self.shared(terms), strict=True):
                    know(values, flat(changes))
                continue
            changing = self._begin(loop.direction, ex.zeros(loop.size, 1), len(loop.own))
            for k, value in enumerate(loop.value):
                know(loop.parent[k], changing.parent[k])
                know(loop.children[k], changing.children[k])
                self._keep(changing, k, rate_of(value))
                know(loop.own[k], changing.own[k])
            changing.given = [rate_of(terms) for terms in loop.given]
        return rate_of(x)

    def _begin(self, direction: Direction, shape: Any, kinds: int) -> Loop:
        loop = Loop(direction, int(flat(shape).numel()))
        n = len(self.recorded)
        self.recorded.append(loop)
        for k in range(kinds):
            loop.parent.append(ex.sym(f"parent.{n}.{k}", loop.size))
            loop.children.append(ex.sym(f"children.{n}.{k}", loop.size))
        return loop

    def _keep(self, loop: Loop, k: int, value: Any) -> None:
        column = flat(value)
        loop.value.append(column)
        loop.own.append(ex.symbols_like(f"own.{self.recorded.index(loop)}.{k}", column))

    def _each(self, x: Sequence[Any], *, sparse: bool) -> Loop:
        loop = self._begin("each", x[0], len(x))
        for k, value in enumerate(x):
            if int(flat(value).numel()) != loop.size and not sparse:
                raise NotRolledError("values of bodies of several kinds have different sizes")
            self._keep(loop, k, value)
        loop.size = max(int(value.numel()) for value in loop.value)
        return loop

    def _loop_of(self, x: Sequence[Any]) -> Loop | None:
        """Returns the loop whose own values these are."""
        for loop in self.recorded:
            if len(loop.own) == len(x) and all(
                ex.is_equal(flat(a), symbols) for a, symbols in zip(x, loop.own, strict=True)
            ):
                return loop
        return None


def flat(x: Any) -> Mat:
    """Returns the entries of a value as one sparse column; of symmetric blocks the upper triangle."""
    if isinstance(x, Inertia):
        return ex.vertcat(upper_triangle(x.I), ex.vec(ex.matrix(x.H)), upper_triangle(x.m))
    return ex.vec(ex.matrix(x))


def shaped(template: T, column: Mat) -> T:
    """Returns the value of the shape of `like` with these entries: the inverse of `flat`."""
    if isinstance(template, Inertia):
        I, H, m = of_upper_triangle(column[:6]), ex.reshape(column[6:15], 3, 3), of_upper_triangle(column[15:])
        return Inertia(I, H, m)  # type: ignore[return-value]
    shape: tuple[int, int] = template.shape  # type: ignore[attr-defined]
    value: Any = ex.reshape(column, *shape)
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class RolledTree(Tree):
    """One body for each kind of body of a robot.

    loops: the recursions recorded on it. leading: per kind, the joint with the entries in q and v: its own, or the
    mimicked one. follows: per kind, whether its joint is a mimic joint.
    """

    loops: Loops = field(kw_only=True)
    leading: tuple[Joint, ...] = field(kw_only=True)
    follows: tuple[bool, ...] = field(kw_only=True)

    @cached_property
    def has_mimics(self) -> bool:
        """Whether a joint of the robot mimics another."""
        return any(self.follows)

    @cached_property
    def configuration(self) -> Configuration:
        """The entries of q and v that each kind reads; a mimic joint reads those of the mimicked joint."""
        return Configuration(tuple(self.joints[i] for i in self.movable), tuple(self.leading[i] for i in self.movable))

    @property
    def grounded(self) -> list[bool]:
        """Per kind, whether its bodies are on the ground."""
        return [parent < 0 for parent in self.parent]

    def outward(self, step: Callable[[int, T | None], T]) -> list[T]:
        """Records the loop of `Traversal.outward`."""
        return self.loops.outward(self.grounded, step)

    def inward(self, x: Sequence[T], carry: Callable[[int, T], T]) -> list[T]:
        """Records the loop of `Traversal.inward`."""
        return self.loops.inward(x, carry, self.grounded)

    def of_parent(self, x: Sequence[Any], ground: Any) -> list[Any]:
        """Returns symbols of the parent's x."""
        return self.loops.from_parent(x, self.grounded, ground)

    def from_children(self, start: Sequence[Any], carry: Callable[[int], Any]) -> list[Any]:
        """Records the loop of `Traversal.from_children`."""
        terms = [None if ground else carry(i) for i, ground in enumerate(self.grounded)]
        return self.loops.from_children(start, terms)

    def walk(
        self,
        start: Callable[[int], tuple[Any, Any]],
        step: Callable[[int, Any], tuple[Any, Any]],
        *,
        outward: bool,
    ) -> Walk:
        """Records the walk."""
        return self.loops.walk(start, step, self.grounded, outward=outward)

    def total(self, terms: Sequence[Sequence[Any]], start: Any) -> Any:
        """Records the sum over all bodies."""
        return start + self.loops.total([sum(rest, first) for first, *rest in terms])

    def kept(self, x: Sequence[T]) -> list[T]:
        """Records x as values that are stored."""
        return self.loops.kept(x)

    def joint_arrays(self, f: Callable[[Joint], Any]) -> list[Any]:
        """Returns an array for each kind, with symbols where its joints differ."""
        return [self.loops.array(k, lambda i: f(self.loops.joints[i])) for k in range(len(self))]

    def driven_sums(self, x: Sequence[Any]) -> list[Any]:
        """Returns for each kind the sum over the bodies that its velocities drive; x itself without mimic joints."""
        return self.loops.shared(x) if self.has_mimics else list(x)

    def branch_sums(self, x: Sequence[Any]) -> list[Any]:
        """Records the sums as an inward loop."""
        return self.inward([ex.matrix(value) for value in x], lambda _, value: value)

    def need_bodies(self, reason: str) -> None:
        """Raises NotRolledError."""
        raise NotRolledError(reason)

    def ancestors(self, i: int) -> tuple[int, ...]:
        """Raises NotRolledError: the ancestors of a kind are not known."""
        raise NotRolledError("the algorithm visits the ancestors of a body")

    def branch(self, i: int) -> tuple[int, ...]:
        """Raises NotRolledError: the descendants of a kind are not known."""
        raise NotRolledError("the algorithm visits the descendants of a body")
