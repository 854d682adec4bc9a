"""Compiled conversion of external wrenches to the bodies of a kernel, for one or several states; see `kernels.direct`.

The conversion has two parts. `wrenches` reads the objects into a table once for each call. `fill` computes the wrenches
on bodies for a vector of states, in the buffer of the kernel's inputs (`kernels.loop`): torque and force are rotated
from the axes of their frame to those of their link, with rotations from the kernel of `link_poses`; the torque is moved
to the link's origin; both are moved to the body of the link. The order of these steps is that of `engine.wrenches`, and
both use the products and sums of `kernels.row_rotation`, so the result is the same to the last bit.

It accepts a `Wrench` itself, or a list or tuple of at most `MAX_WRENCHES`, whose vectors are arrays of 3 doubles or of
3 for each state, or tuples or lists of 3 numbers of Python or NumPy. For all other arguments, for errors, and if the
status flags show an overflow, the direct call returns `None`. The caller then converts arrays of other numbers and
calls it again, or evaluates the query step by step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dyn_service.kernels.jit import host
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over, splat, vector_address
from dyn_service.kernels.loop import FILL, FILL_NARROW, NARROW_LANES, Body, emit_gather
from dyn_service.kernels.python_api import DATA, STRIDES, Writer, function, short
from dyn_service.kernels.row_rotation import moved, rotated
from dyn_service.kernels.signature import Signature

_BODY, _TURNED, _ROTATION, _ORIGIN, PLACE_WORDS = 0, 1, 2, 11, 14
"""The words of a link: its body, -1 if it does not move; whether its frame differs from the body's; R_BL and p_BL."""

_LINKS, _PLACES_OF_POSES, _POSITIONS, _ENTRIES, _WIDE = range(5)
_POSES, _VECTOR, _RESULTS, _CLEARED, _SIZE, _FIRST_POSE, _FIRST_WRENCH, _OWN_WORDS = range(8)
_NARROW = _WIDE + _OWN_WORDS
_PLACES = _NARROW + _OWN_WORDS
"""The words of the plan: the dict of link indices; the places of the results of the kernel of poses; the numbers of
entries of the configuration and of the wrenches. For vectors of W states, then of `NARROW_LANES`: the body of the
kernel of poses, and the bytes of its vectors; the bytes of its results, those of the results with the part of the
workspace that must be 0, and those of results and workspace; the bytes in the inputs of the called kernel before the
configuration and before the wrenches. Then the words of each link.
"""

MAX_WRENCHES = 256
"""Most wrenches of a call; their table is on the stack."""

_ADDRESS, _STEP, _STRIDE, _NUMBERS, _VECTOR_WORDS = 0, 1, 2, 3, 6
"""The words of a vector: the address of its first number, bytes from state to state and from number to number, and
three numbers for a vector that is no array.
"""

_PLAN, _NUMBER, _NEEDS_POSES, _FIRST = range(4)
_OBJECT, _PLACE, _LINK, _FRAME, _VECTORS = range(5)
WRENCH_WORDS = _VECTORS + 3 * _VECTOR_WORDS
TABLE_WORDS = _FIRST + MAX_WRENCHES * WRENCH_WORDS
"""The words of the table: the plan, the number of wrenches, whether one of them needs the poses; then for each wrench:
the `Wrench`, the address of its link's words, its link, the link of its frame, torque, force and point.
"""

_OF_LINK, _OF_WORLD = -1, -2  # instead of the link of a frame


@dataclass(frozen=True)
class Place:
    """The body that a link's wrench acts on.

    body: its index; -1: the link does not move. rotation, origin: R_BL, p_BL; None: the frames are the same.
    """

    body: int
    rotation: Sequence[Sequence[float]] | None = None
    origin: Sequence[float] | None = None

    @property
    def words(self) -> bytes:
        """Packed."""
        if self.rotation is None or self.origin is None:
            return struct.pack("=2q12d", self.body, 0, *(0.0,) * 12)
        return struct.pack("=2q12d", self.body, 1, *(x for row in self.rotation for x in row), *self.origin)


@dataclass(frozen=True, eq=False)
class WrenchConversion:
    """The data of the conversion for a robot.

    poses: the compiled body of `link_poses`. links: index by name; must not change. places: by link.
    """

    poses: Body
    links: dict[str, int]
    places: Sequence[Place]

    @property
    def bodies(self) -> tuple[Body, Body]:
        """The bodies of `link_poses` for W states, and for `NARROW_LANES` states: the same if it has no narrow body."""
        return self.poses, self.poses.narrowed() if self.poses.narrow else self.poses

    def sizes(self, signature: Signature) -> list[int]:
        """Returns the bytes of memory that `fill` needs for W states and for `NARROW_LANES` states."""
        positions = next(operand.size for operand in signature.inputs if operand.kind == "position")
        return [8 * body.lanes * (2 + body.results + body.workspace + positions) for body in self.bodies]

    def plan(self, signature: Signature) -> bytes:
        """Returns the plan for a kernel, packed, with addresses of `poses` and `links`: this object must stay alive."""
        kinds, sizes = zip(*((operand.kind, operand.size) for operand in signature.inputs), strict=True)
        wrenches = kinds.index("wrenches")
        position = kinds.index("position")
        words = [id(self.links), self.poses.places, sizes[position], sizes[wrenches]]
        for body, lanes in zip(self.bodies, (self.poses.lanes, NARROW_LANES), strict=True):
            numbers = (1, body.results, body.results + body.cleared, body.results + body.workspace)
            words += [body.address, *(8 * body.lanes * n for n in numbers)]
            words += [8 * lanes * sum(sizes[:k]) for k in (position, wrenches)]
        return struct.pack(f"={_PLACES}q", *words) + b"".join(place.words for place in self.places)


def emit_conversion(module: ir.Module, api_table: Any) -> Any:
    """Adds `fill`, see `kernels.loop`, and `wrenches(plan, wrenches, table, number)`; returns the latter.

    It sets the table and returns 1; it returns 0 if an object is not accepted. number: the number of states of the
    call, -1 for one state without an axis.
    """
    name, vector = _Name(module, api_table).function, _Vector(module, api_table).function
    _Fill(module, api_table, FILL, host().lanes, _WIDE)
    if host().lanes > NARROW_LANES:
        _Fill(module, api_table, FILL_NARROW, NARROW_LANES, _NARROW)
    return _Reading(module, api_table, name, vector).function


_REFUSED, _TAKEN = short(0), short(1)


class _Name(Writer):
    """name(text, links): twice the index of the link, -2 if it does not exist; plus one if the name is `world`."""

    def __init__(self, module: ir.Module, api_table: Any) -> None:
        super().__init__(module, api_table, "name", function(I64, POINTER, POINTER))
        self.function.linkage = "internal"
        b, (text, links) = self.b, self.function.args
        not_text = self.function.append_basic_block()
        null = ir.Constant(POINTER, None)
        result, overflow = b.alloca(I64), b.alloca(I32)
        b.store(integer(-2), result)
        self.continue_if(self.is_a(text, "str"), failure=not_text)
        number = self.call("PyDict_GetItem", links, text)
        with b.if_then(b.icmp_unsigned("!=", number, null)):
            b.store(b.shl(self.call("PyLong_AsLongLongAndOverflow", number, overflow), integer(1)), result)
        of_world = b.icmp_signed("==", self.call("PyUnicode_Compare", text, self.object_address("world")), short(0))
        b.ret(b.or_(b.load(result, typ=I64), b.zext(of_world, I64)))
        b.position_at_end(not_text)
        b.ret(integer(-2))


class _Vector(Writer):
    """vector(value, words, number): sets the words and returns 1, or returns 0 if the value is not accepted."""

    def __init__(self, module: ir.Module, api_table: Any) -> None:
        super().__init__(module, api_table, "vector", function(I32, POINTER, POINTER, I64))
        self.function.linkage = "internal"
        b, (self.value, self.words, number) = self.b, self.function.args
        self.refused = self.function.append_basic_block()
        states = b.alloca(I64)
        # Wrenches do not determine the number of states: no array has -2 of them.
        b.store(b.select(b.icmp_signed("==", number, integer(-1)), integer(-2), number), states)
        with b.if_then(self.is_a(self.value, "ndarray")):
            self.take_array(states)
            b.ret(_TAKEN)
        self.numbers = self.word_at(self.words, _NUMBERS)
        self.put(self.words, _ADDRESS, self.numbers)
        self.put(self.words, _STEP, integer(0))
        self.put(self.words, _STRIDE, integer(8))
        for kind in ("tuple", "list"):
            with b.if_then(self.is_a(self.value, kind)):
                self.take_items(kind, self.value, integer(3), self.numbers, failure=self.refused)
                b.ret(_TAKEN)
        b.branch(self.refused)
        b.position_at_end(self.refused)
        b.ret(_REFUSED)

    def take_array(self, states: Any) -> None:
        b = self.b
        lead = self.check_array(self.value, integer(1), lambda _: integer(3), states, failure=self.refused)
        strides = self.field(self.value, STRIDES)
        self.put(self.words, _ADDRESS, self.field(self.value, DATA))
        self.put(self.words, _STEP, b.select(b.icmp_signed("==", lead, integer(0)), integer(0), self.word(strides, 0)))
        self.put(self.words, _STRIDE, self.word(strides, lead))


def emit_for_each(writer: Writer, table: Any, name: str) -> None:
    """Calls a C function with each `Wrench` of a table."""
    with loop_over(writer.b, writer.word(table, _NUMBER)) as n:
        entry = writer.b.add(integer(_FIRST + _OBJECT), writer.b.mul(n, integer(WRENCH_WORDS)))
        writer.call(name, writer.word(table, entry, POINTER))


class _Reading(Writer):
    def __init__(self, module: ir.Module, api_table: Any, name: Any, vector: Any) -> None:
        super().__init__(module, api_table, "wrenches", function(I32, POINTER, POINTER, POINTER, I64))
        self.function.linkage = "internal"
        b = self.b
        self.plan, self.wrenches, self.table, self.total = self.function.args
        self.name, self.vector = name, vector
        self.refused = self.function.append_basic_block()
        self.put(self.table, _PLAN, self.plan)
        for word in (_NUMBER, _NEEDS_POSES):
            self.put(self.table, word, integer(0))
        is_wrench, is_list = (self.is_a(self.wrenches, kind) for kind in ("Wrench", "list"))
        is_accepted = b.or_(b.or_(is_wrench, is_list), self.is_a(self.wrenches, "tuple"))
        self.continue_if(is_accepted, failure=self.refused)
        size, wrench = b.alloca(I64), b.alloca(POINTER)
        with b.if_else(is_wrench) as (single, sequence):
            with single:
                b.store(integer(1), size)
                b.store(self.wrenches, wrench)
            with sequence, b.if_else(is_list) as (in_list, in_tuple):
                with in_list:
                    b.store(self.call("PyList_Size", self.wrenches), size)
                with in_tuple:
                    b.store(self.call("PyTuple_Size", self.wrenches), size)
        count = b.load(size, typ=I64)
        self.continue_if(b.icmp_signed("<=", count, integer(MAX_WRENCHES)), failure=self.refused)
        with loop_over(b, count) as k:
            with b.if_then(b.not_(is_wrench)), b.if_else(is_list) as (in_list, in_tuple):
                with in_list:
                    b.store(self.call("PyList_GetItem", self.wrenches, k), wrench)
                with in_tuple:
                    b.store(self.call("PyTuple_GetItem", self.wrenches, k), wrench)
            self.push(b.load(wrench, typ=POINTER))
        b.ret(_TAKEN)
        b.position_at_end(self.refused)
        b.ret(_REFUSED)

    def push(self, wrench: Any) -> None:
        """Adds a wrench to the table, unless its link does not move."""
        b = self.b
        self.continue_if(self.is_a(wrench, "Wrench"), failure=self.refused)
        names = self.word(self.plan, _LINKS, POINTER)
        link, frame = (b.call(self.name, (self.part(wrench, name), names)) for name in ("link", "frame"))
        of_world = b.trunc(frame, ir.IntType(1))
        link, frame = b.ashr(link, integer(1)), b.ashr(frame, integer(1))
        self.continue_if(b.icmp_signed(">=", link, integer(0)), failure=self.refused)
        other_frame = b.icmp_signed("!=", frame, link)
        has_frame = b.or_(of_world, b.icmp_signed(">=", frame, integer(0)))
        self.continue_if(b.or_(b.not_(other_frame), has_frame), failure=self.refused)
        frame = b.select(other_frame, b.select(of_world, integer(_OF_WORLD), frame), integer(_OF_LINK))
        number = self.word(self.table, _NUMBER)
        entry = self.word_at(self.table, b.add(integer(_FIRST), b.mul(number, integer(WRENCH_WORDS))))
        place = self.word_at(self.plan, b.add(integer(_PLACES), b.mul(link, integer(PLACE_WORDS))))
        for word, value in ((_OBJECT, wrench), (_PLACE, place), (_LINK, link), (_FRAME, frame)):
            self.put(entry, word, value)
        for k, part in enumerate(("torque", "force", "point")):
            words = self.word_at(entry, _VECTORS + k * _VECTOR_WORDS)
            accepted = b.call(self.vector, (self.part(wrench, part), words, self.total))
            self.continue_if(b.icmp_signed("!=", accepted, short(0)), failure=self.refused)
        with b.if_then(b.icmp_signed(">=", self.word(place, _BODY), integer(0))):
            self.put(self.table, _NUMBER, b.add(number, integer(1)))
            self.put(self.table, _NEEDS_POSES, b.or_(self.word(self.table, _NEEDS_POSES), b.zext(other_frame, I64)))


class _Fill(Writer):
    """fill(in, table, memory, first, states) for vectors of some lanes. first_word: theirs in the plan."""

    def __init__(self, module: ir.Module, api_table: Any, name: str, lanes: int, first_word: int) -> None:
        super().__init__(module, api_table, name, function(ir.VoidType(), *[POINTER] * 3, I64, I64))
        b, (source, self.table, memory, self.first, self.left) = self.b, self.function.args
        self.lanes = ir.VectorType(DOUBLE, lanes)
        self.parts = [b.alloca(self.lanes, size=integer(3)) for _ in range(3)]  # torque, force and point
        self.place = b.alloca(I64)
        self.gather = emit_gather(module, self.lanes)
        self.plan = self.word(self.table, _PLAN, POINTER)
        body, self.vector, results, cleared, size, position, wrench = (
            self.word(self.plan, first_word + word) for word in range(_OWN_WORDS)
        )
        begin = b.add(b.ptrtoint(memory, I64), b.sub(self.vector, integer(1)))
        memory = b.inttoptr(b.and_(begin, b.neg(self.vector)), POINTER)  # aligned for the vectors of the poses
        self.poses = at(b, memory, self.vector)  # after a vector of zeros: the place -1
        with b.if_then(b.icmp_signed("!=", self.word(self.table, _NEEDS_POSES), integer(0))):
            with b.if_then(b.icmp_signed("==", self.first, integer(0))):
                self.clear(memory, b.add(cleared, self.vector))
            positions = self.repeated(at(b, source, position), at(b, self.poses, size))
            body = b.inttoptr(body, function(ir.VoidType(), *[POINTER] * 3).as_pointer())
            b.call(body, [positions, self.poses, at(b, self.poses, results)])
        self.bodies = at(b, source, wrench)
        self.clear(self.bodies, b.mul(self.word(self.plan, _ENTRIES), integer(8 * self.lanes.count)))
        with loop_over(b, self.word(self.table, _NUMBER)) as n:
            self.add(self.word_at(self.table, b.add(integer(_FIRST), b.mul(n, integer(WRENCH_WORDS)))))
        b.ret_void()

    def repeated(self, positions: Any, memory: Any) -> Any:
        """Returns the address of the positions in vectors of the poses, whose further lanes repeat the first ones."""
        b, width = self.b, 8 * self.lanes.count
        is_wide = b.icmp_signed("==", self.vector, integer(width))
        with b.if_then(b.not_(is_wide)), loop_over(b, self.word(self.plan, _POSITIONS)) as entry:
            cell = b.load(vector_address(b, positions, self.lanes, entry), align=width, typ=self.lanes)
            with loop_over(b, self.vector, step=width) as offset:
                b.store(cell, at(b, memory, b.add(b.mul(entry, self.vector), offset)), align=width)
        return b.select(is_wide, positions, memory)

    def clear(self, cells: Any, size: Any) -> None:
        zero = ir.Constant(self.lanes, [0.0] * self.lanes.count)
        with loop_over(self.b, size, step=8 * self.lanes.count) as offset:
            self.b.store(zero, at(self.b, cells, offset), align=8 * self.lanes.count)

    def add(self, entry: Any) -> None:
        """Adds a wrench to its body."""
        # The steps of `engine.wrenches`, in the same order, which has the reason why they exist twice.
        b, (torque, force, point) = self.b, self.parts
        for k, part in enumerate(self.parts):
            words = self.word_at(entry, _VECTORS + k * _VECTOR_WORDS)
            step, stride = self.word(words, _STEP), self.word(words, _STRIDE)
            base = at(b, self.word(words, _ADDRESS, POINTER), b.mul(step, self.first))
            b.call(self.gather, [part, base, self.left, step, integer(3), stride])
        frame, place = self.word(entry, _FRAME), self.word(entry, _PLACE, POINTER)
        with b.if_then(b.icmp_signed("!=", frame, integer(_OF_LINK))):
            with b.if_then(b.icmp_signed("!=", frame, integer(_OF_WORLD))):
                self.turn(self.rotation(frame), torque, force)
            self.turn([*zip(*self.rotation(self.word(entry, _LINK)), strict=True)], torque, force)
        self.move(torque, self.three(point), force)
        with b.if_then(b.icmp_signed("!=", self.word(place, _TURNED), integer(0))):
            numbers = [splat(b, self.word(place, k, DOUBLE), self.lanes) for k in range(_ROTATION, PLACE_WORDS)]
            self.turn([numbers[k : k + 3] for k in (0, 3, 6)], force, torque)
            self.move(torque, numbers[9:], force)
        cells = vector_address(b, self.bodies, self.lanes, b.mul(self.word(place, _BODY), integer(6)))
        for k, part in enumerate((torque, force)):
            total = at(b, cells, integer(24 * k * self.lanes.count))
            self.set(total, [b.fadd(x, y) for x, y in zip(self.three(total), self.three(part), strict=True)])

    def rotation(self, link: Any) -> list[list[Any]]:
        """Returns R_WL by rows."""
        b, places = self.b, self.word(self.plan, _PLACES_OF_POSES, POINTER)
        first, entries = b.mul(link, integer(9)), []
        for k in range(9):
            entry = b.add(first, integer(k))
            b.store(entry, self.place)
            with b.if_then(b.icmp_unsigned("!=", places, ir.Constant(POINTER, None))):
                place = b.load(at(b, places, b.mul(entry, integer(4))), align=4, typ=I32)
                b.store(b.sext(place, I64), self.place)
            cell = at(b, self.poses, b.mul(b.load(self.place, typ=I64), self.vector))
            entries.append(b.load(cell, align=8 * self.lanes.count, typ=self.lanes))
        return [entries[k : k + 3] for k in (0, 3, 6)]

    def three(self, part: Any) -> list[Any]:
        size = 8 * self.lanes.count
        return [self.b.load(at(self.b, part, integer(size * k)), align=size, typ=self.lanes) for k in range(3)]

    def set(self, part: Any, values: Sequence[Any]) -> None:
        size = 8 * self.lanes.count
        for k, value in enumerate(values):
            self.b.store(value, at(self.b, part, integer(size * k)), align=size)

    def turn(self, R: Sequence[Sequence[Any]], *parts: Any) -> None:
        """Replaces each x by R x."""
        for part in parts:
            self.set(part, rotated(self.b, R, self.three(part)))

    def move(self, torque: Any, p: Sequence[Any], force: Any) -> None:
        """Adds p x force to the torque."""
        self.set(torque, moved(self.b, self.three(torque), p, self.three(force)))
