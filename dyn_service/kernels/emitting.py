"""Common parts of LLVM IR: types, address arithmetic, a counted loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

DOUBLE = ir.DoubleType()
I64 = ir.IntType(64)
POINTER = ir.PointerType()


def integer(value: int) -> Any:
    """Returns a 64-bit integer constant."""
    return ir.Constant(I64, value)


def at(b: ir.IRBuilder, base: Any, byte_offset: Any) -> Any:
    """Returns the address `byte_offset` bytes after `base`."""
    return b.gep(base, [byte_offset], source_etype=ir.IntType(8))


def splat(b: ir.IRBuilder, number: Any, vector: ir.VectorType) -> Any:
    """Returns the vector whose lanes are all `number`."""
    index, undefined = ir.IntType(32), ir.Constant(vector, ir.Undefined)
    first = b.insert_element(undefined, number, ir.Constant(index, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count))


class loop_over:  # noqa: N801 - reads as a statement
    """A counted loop from `start` to `count`: `with loop_over(b, n) as i`."""

    def __init__(self, b: ir.IRBuilder, count: Any, *, start: Any = None, step: int = 1) -> None:
        self.b, self.count, self.step = b, count, step
        self.start = integer(0) if start is None else start

    def __enter__(self) -> Any:
        b = self.b
        before = b.block
        self.head, inside, self.after = (b.append_basic_block() for _ in range(3))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.index = b.phi(I64)
        self.index.add_incoming(self.start, before)
        b.cbranch(b.icmp_signed("<", self.index, self.count), inside, self.after)
        b.position_at_end(inside)
        return self.index

    def __exit__(self, *_: object) -> None:
        b = self.b
        self.index.add_incoming(b.add(self.index, integer(self.step)), b.block)
        b.branch(self.head)
        b.position_at_end(self.after)


class chain_from:  # noqa: N801 - reads as a statement
    """A loop from `start` along `following` while the index is not negative: `with chain_from(b, i, parent) as i`."""

    def __init__(self, b: ir.IRBuilder, start: Any, following: Callable[[Any], Any]) -> None:
        self.b, self.start, self.following = b, start, following

    def __enter__(self) -> Any:
        b = self.b
        before = b.block
        self.head, inside, self.after = (b.append_basic_block() for _ in range(3))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.index = b.phi(I64)
        self.index.add_incoming(self.start, before)
        b.cbranch(b.icmp_signed(">=", self.index, integer(0)), inside, self.after)
        b.position_at_end(inside)
        return self.index

    def __exit__(self, *_: object) -> None:
        following = self.following(self.index)
        self.index.add_incoming(following, self.b.block)
        self.b.branch(self.head)
        self.b.position_at_end(self.after)
