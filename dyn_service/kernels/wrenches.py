"""Compiled conversion of external wrenches to the bodies of a kernel, for one or several states; see `kernels.direct`.

The same operations in the same order as in `engine.wrenches`, so the result is the same to the last bit: torque and
force are rotated from the axes of their frame to those of their link, with rotations from the kernel of `link_poses`;
the torque is moved to the link's origin; both are moved to the body of the link.

Accepts a `Wrench` itself, or a list or tuple of them, whose vectors are arrays of 3 doubles or of 3 for each state, or
tuples or lists of 3 numbers of Python or NumPy. For all other arguments, for errors, and if the status flags show an
overflow, `kernels.direct` returns `None`, and the caller takes the slow path.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from dyn_service.kernels.jit import Loop
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over
from dyn_service.kernels.python_api import DATA, LOOP, STRIDES, Writer, function, short

_BODY, _TURNED, _ROTATION, _ORIGIN, PLACE_WORDS = 0, 1, 2, 11, 14
"""The words of a link: its body, -1 if it does not move; whether its frame differs from the body's; R_BL and p_BL."""

_POSES, _POSES_PLAN, _LINKS, _COUNT, _PLACES = range(5)
"""The words of the plan: the loop of the poses' kernel and its plan, the dict of link indices, the number of links,
then each link's words.
"""

MAX_LINKS = 1024
"""Most links whose rotations and positions are kept on the stack."""

_STACK_BYTES = 1 << 17
"""Approximate memory on the stack for the wrenches on bodies, and the poses of links, of several states."""


@dataclass(frozen=True)
class Place:
    """The body that a link's wrench acts on; -1: the link does not move. R_BL and p_BL; None: the body's frame."""

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
    """The data for the conversion of wrenches to bodies.

    poses: the loop of `link_poses`. links: index by name; must not change. places: by link.
    """

    poses: Loop
    links: dict[str, int]
    places: Sequence[Place]

    def states(self, bodies: int) -> int:
        """Returns the number of states to convert at a time: whole vectors of the kernels' loops where it fits."""
        fitting = _STACK_BYTES // (8 * (6 * bodies + 12 * len(self.places)))
        return max(fitting // 8 * 8, min(fitting, 8), 1)

    @property
    def plan(self) -> bytes:
        """Packed, with the addresses of what this holds."""
        poses = self.poses
        head = struct.pack("=4q", poses.address, ctypes.addressof(poses.plan), id(self.links), len(self.places))
        return head + b"".join(place.words for place in self.places)


def emit_conversion(module: ir.Module, api_table: Any) -> Any:
    """Adds the function `wrenches(plan, wrenches, bodies, count, q, q_step, q_stride, states, first, number)`.

    It sets `bodies`, (states, count, 6) doubles, and returns 1 if successful. q: the positions of the first of these
    states. q_step, q_stride: bytes from state to state and from entry to entry. first: the index of the first state.
    number: the number of all states of the call, -1 for one state without an axis.
    """
    named, vector = _Name(module, api_table).function, _Vector(module, api_table).function
    return _Conversion(module, api_table, named, vector).function


_REFUSED, _TAKEN = short(0), short(1)


class _Name(Writer):
    """name(text, links): twice the index of the link, -2 if it does not exist; plus one if the name is `world`."""

    def __init__(self, module: ir.Module, api_table: Any) -> None:
        super().__init__(module, api_table, "name", function(I64, POINTER, POINTER))
        self.function.linkage = "internal"
        b, (text, links) = self.b, self.function.args
        none = self.function.append_basic_block()
        nothing = ir.Constant(POINTER, None)
        result, overflow = b.alloca(I64), b.alloca(I32)
        b.store(integer(-2), result)
        self.continue_if(self.is_a(text, "str"), otherwise=none)
        number = self.call("PyDict_GetItem", links, text)
        with b.if_then(b.icmp_unsigned("!=", number, nothing)):
            b.store(b.shl(self.call("PyLong_AsLongLongAndOverflow", number, overflow), integer(1)), result)
        of_world = b.icmp_signed("==", self.call("PyUnicode_Compare", text, self.known("world")), short(0))
        b.ret(b.or_(b.load(result, typ=I64), b.zext(of_world, I64)))
        b.position_at_end(none)
        b.ret(integer(-2))


_ADDRESS, _STEP, _STRIDE, _NUMBERS, _VECTOR_WORDS = 0, 1, 2, 3, 6
"""The words of a vector: the address of its first number, bytes from state to state and from number to number, and
three numbers for a vector that is no array.
"""


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
                self.take_items(kind, self.value, integer(3), self.numbers, otherwise=self.refused)
                b.ret(_TAKEN)
        b.branch(self.refused)
        b.position_at_end(self.refused)
        b.ret(_REFUSED)

    def take_array(self, states: Any) -> None:
        b = self.b
        lead = self.check_array(self.value, integer(1), lambda _: integer(3), states, otherwise=self.refused)
        strides = self.field(self.value, STRIDES)
        self.put(self.words, _ADDRESS, self.field(self.value, DATA))
        self.put(self.words, _STEP, b.select(b.icmp_signed("==", lead, integer(0)), integer(0), self.word(strides, 0)))
        self.put(self.words, _STRIDE, self.word(strides, lead))


class _Conversion(Writer):
    def __init__(self, module: ir.Module, api_table: Any, named: Any, vector: Any) -> None:
        kind = function(I32, POINTER, POINTER, POINTER, I64, POINTER, I64, I64, I64, I64, I64)
        super().__init__(module, api_table, "wrenches", kind)
        self.function.linkage = "internal"
        b = self.b
        self.plan, self.wrenches, self.bodies, count, self.q, self.q_step, self.q_stride, *rest = self.function.args
        self.states, self.first, self.total = rest
        self.named, self.vector = named, vector
        self.refused = self.function.append_basic_block()
        self.links = self.word(self.plan, _COUNT)
        posed = b.mul(self.states, self.links)
        self.rotations = b.alloca(DOUBLE, size=b.mul(posed, integer(9)))
        self.origins = b.alloca(DOUBLE, size=b.mul(posed, integer(3)))
        self.vectors = [b.alloca(I64, size=integer(_VECTOR_WORDS)) for _ in range(3)]
        self.bases, self.steps = b.alloca(POINTER, size=integer(3)), b.alloca(I64, size=integer(9))
        self.torque, self.force = (b.alloca(DOUBLE, size=integer(3)) for _ in range(2))
        self.posed = b.alloca(I64)
        b.store(integer(0), self.posed)
        self.numbers_of_state = b.mul(count, integer(6))
        with loop_over(b, b.mul(self.states, self.numbers_of_state)) as k:
            self.put(self.bodies, k, ir.Constant(DOUBLE, 0.0))
        one, listed = (self.is_a(self.wrenches, kind) for kind in ("Wrench", "list"))
        known = b.or_(b.or_(one, listed), self.is_a(self.wrenches, "tuple"))
        self.continue_if(known, otherwise=self.refused)
        size, wrench = b.alloca(I64), b.alloca(POINTER)
        with b.if_else(one) as (alone, several):
            with alone:
                b.store(integer(1), size)
                b.store(self.wrenches, wrench)
            with several, b.if_else(listed) as (in_list, in_tuple):
                with in_list:
                    b.store(self.call("PyList_Size", self.wrenches), size)
                with in_tuple:
                    b.store(self.call("PyTuple_Size", self.wrenches), size)
        with loop_over(b, b.load(size, typ=I64)) as k:
            with b.if_then(b.not_(one)), b.if_else(listed) as (in_list, in_tuple):
                with in_list:
                    b.store(self.call("PyList_GetItem", self.wrenches, k), wrench)
                with in_tuple:
                    b.store(self.call("PyTuple_GetItem", self.wrenches, k), wrench)
            self.push(b.load(wrench, typ=POINTER))
        b.ret(_TAKEN)
        b.position_at_end(self.refused)
        b.ret(_REFUSED)

    def push(self, wrench: Any) -> None:
        """Adds a wrench to its body in all states."""
        b = self.b
        self.continue_if(self.is_a(wrench, "Wrench"), otherwise=self.refused)
        names = self.word(self.plan, _LINKS, POINTER)
        link, frame = (b.call(self.named, (self.part(wrench, name), names)) for name in ("link", "frame"))
        of_world = b.trunc(frame, ir.IntType(1))
        link, frame = b.ashr(link, integer(1)), b.ashr(frame, integer(1))
        self.continue_if(b.icmp_signed(">=", link, integer(0)), otherwise=self.refused)
        for part, words in zip(("torque", "force", "point"), self.vectors, strict=True):
            taken = b.call(self.vector, (self.part(wrench, part), words, self.total))
            self.continue_if(b.icmp_signed("!=", taken, short(0)), otherwise=self.refused)
        turned = b.icmp_signed("!=", frame, link)
        with b.if_then(turned):
            self.continue_if(b.or_(of_world, b.icmp_signed(">=", frame, integer(0))), otherwise=self.refused)
            with b.if_then(b.icmp_signed("==", b.load(self.posed, typ=I64), integer(0))):
                self.ask_poses()
        place = self.word_at(self.plan, b.add(integer(_PLACES), b.mul(link, integer(PLACE_WORDS))))
        body, welded = self.word(place, _BODY), b.icmp_signed("!=", self.word(place, _TURNED), integer(0))
        torque, force = self.torque, self.force
        with b.if_then(b.icmp_signed(">=", body, integer(0))), loop_over(b, self.states) as s:
            *given, point = (self.vector_of(words, s) for words in self.vectors)
            for to, numbers in zip((torque, force), given, strict=True):
                for k, number in enumerate(numbers):
                    self.put(to, k, number)
            with b.if_then(turned):
                with b.if_then(b.not_(of_world)):
                    self.turn(self.rotation(s, frame), torque)
                    self.turn(self.rotation(s, frame), force)
                self.turn(self.rotation(s, link), torque, back=True)
                self.turn(self.rotation(s, link), force, back=True)
            self.add_cross(torque, point, force)
            with b.if_then(welded):
                R, p = self.word_at(place, _ROTATION), self.word_at(place, _ORIGIN)
                self.turn(R, force)
                self.turn(R, torque)
                self.add_cross(torque, [self.number(p, k) for k in range(3)], force)
            of_body = self.word_at(self.bodies, b.add(b.mul(s, self.numbers_of_state), b.mul(body, integer(6))))
            for k in range(3):
                self.add(of_body, k, self.number(torque, k))
                self.add(of_body, 3 + k, self.number(force, k))

    def vector_of(self, words: Any, state: Any) -> list[Any]:
        """Returns the three numbers of a vector in a state."""
        b = self.b
        step = b.mul(self.word(words, _STEP), b.add(self.first, state))
        base, stride = at(b, self.word(words, _ADDRESS, POINTER), step), self.word(words, _STRIDE)
        return [b.load(at(b, base, b.mul(stride, integer(k))), typ=DOUBLE) for k in range(3)]

    def ask_poses(self) -> None:
        """Runs the kernel of the links' poses for the states."""
        b = self.b
        b.store(integer(1), self.posed)
        for k, base in enumerate((self.q, self.rotations, self.origins)):
            self.put(self.bases, k, base)
        of_state = [self.q_step, b.mul(self.links, integer(72)), b.mul(self.links, integer(24))]
        for k, step in enumerate([*of_state, self.q_stride, *map(integer, (72, 24, 8, 24, 8))]):
            self.put(self.steps, k, step)
        states = b.alloca(I64)
        b.store(self.states, states)
        loop = self.word(self.plan, _POSES, LOOP.as_pointer())
        b.call(loop, [self.bases, states, self.steps, self.word(self.plan, _POSES_PLAN, POINTER)])

    def rotation(self, state: Any, link: Any) -> Any:
        index = self.b.add(self.b.mul(state, self.links), link)
        return self.word_at(self.rotations, self.b.mul(index, integer(9)))

    def turn(self, R: Any, x: Any, *, back: bool = False) -> None:
        """Replaces x by R x, or by R^T x, as `engine.wrenches.turn`."""
        b = self.b
        old = [self.number(x, k) for k in range(3)]
        for i in range(3):
            row = [self.number(R, 3 * k + i if back else 3 * i + k) for k in range(3)]
            parts = [b.fmul(r, y) for r, y in zip(row, old, strict=True)]
            self.put(x, i, b.fadd(b.fadd(parts[0], parts[1]), parts[2]))

    def add_cross(self, torque: Any, p: Any, force: Any) -> None:
        """Adds p x force, as `numpy.cross` computes it. p: three values."""
        b = self.b
        f = [self.number(force, k) for k in range(3)]
        for i, (j, k) in enumerate(((1, 2), (2, 0), (0, 1))):
            self.add(torque, i, b.fsub(b.fmul(p[j], f[k]), b.fmul(p[k], f[j])))

    def add(self, to: Any, k: int, number: Any) -> None:
        self.put(to, k, self.b.fadd(self.number(to, k), number))

    def number(self, base: Any, k: int) -> Any:
        return self.word(base, k, DOUBLE)
