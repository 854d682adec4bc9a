"""Common parts of LLVM IR: types, address arithmetic, a counted loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

DOUBLE = ir.DoubleType()
I64 = ir.IntType(64)
POINTER = ir.PointerType()

BLOCK, BYTES = "block", "bytes"
"""Names in the code of a kernel: its function (in, out) of a vector of states, and the bytes of `out`."""


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


class _Loop:
    """A loop with an index: the base of the statements below."""

    def __init__(self, b: ir.IRBuilder, start: Any) -> None:
        self.b, self.start = b, start

    def goes_on(self, index: Any) -> Any:
        """Emits whether the loop runs for an index."""
        raise NotImplementedError

    def following(self, index: Any) -> Any:
        """Emits the next index."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        b = self.b
        before = b.block
        self.head, inside, self.after = (b.append_basic_block() for _ in range(3))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.index = b.phi(I64)
        self.index.add_incoming(self.start, before)
        b.cbranch(self.goes_on(self.index), inside, self.after)
        b.position_at_end(inside)
        return self.index

    def __exit__(self, *_: object) -> None:
        following = self.following(self.index)
        self.index.add_incoming(following, self.b.block)
        self.b.branch(self.head)
        self.b.position_at_end(self.after)


class loop_over(_Loop):  # noqa: N801 - reads as a statement
    """A counted loop from `start` to `count`: `with loop_over(b, n) as i`."""

    def __init__(self, b: ir.IRBuilder, count: Any, *, start: Any = None, step: int = 1) -> None:
        super().__init__(b, integer(0) if start is None else start)
        self.count, self.step = count, step

    def goes_on(self, index: Any) -> Any:
        """Whether the index is below the count."""
        return self.b.icmp_signed("<", index, self.count)

    def following(self, index: Any) -> Any:
        """The index plus the step."""
        return self.b.add(index, integer(self.step))


class chain_from(_Loop):  # noqa: N801 - reads as a statement
    """A loop from `start` along `following` while the index is not negative: `with chain_from(b, i, parent) as i`."""

    def __init__(self, b: ir.IRBuilder, start: Any, following: Callable[[Any], Any]) -> None:
        super().__init__(b, start)
        self._following = following

    def goes_on(self, index: Any) -> Any:
        """Whether the index is not negative."""
        return self.b.icmp_signed(">=", index, integer(0))

    def following(self, index: Any) -> Any:
        """The next index of the chain."""
        return self._following(index)
