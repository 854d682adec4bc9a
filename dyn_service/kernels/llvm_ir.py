"""Common parts of LLVM IR: types, address arithmetic, loops, arithmetic as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import ir

DOUBLE = ir.DoubleType()
I32, I64 = ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()


def integer(value: int) -> Any:
    """Returns a 64-bit integer constant."""
    return ir.Constant(I64, value)


def at(b: ir.IRBuilder, base: Any, byte_offset: Any) -> Any:
    """Returns the address `byte_offset` bytes after `base`."""
    return b.gep(base, [byte_offset], source_etype=ir.IntType(8))


def word(b: ir.IRBuilder, table: Any, index: Any, kind: Any = I64) -> Any:
    """Returns an entry of an array of 64-bit words."""
    return b.load(at(b, table, integer(8 * index) if isinstance(index, int) else b.mul(index, integer(8))), typ=kind)


def vector_address(b: ir.IRBuilder, buffer: Any, vector: ir.VectorType, entry: Any) -> Any:
    """Returns the address of an entry's vector in a buffer."""
    return at(b, buffer, b.mul(entry, integer(8 * vector.count)))


def copy_vectors(b: ir.IRBuilder, vector: ir.VectorType, count: int, source: Any, destination: Any) -> None:
    """Emits the copying of consecutive vectors."""
    size = 8 * vector.count
    with loop_over(b, integer(size * count), step=size) as offset:
        b.store(b.load(at(b, source, offset), align=size, typ=vector), at(b, destination, offset), align=size)


def internal(module: ir.Module, name: str, returns: Any, *takes: Any, inline: bool = False) -> ir.Function:
    """Adds a function that only its module calls."""
    function = ir.Function(module, ir.FunctionType(returns, takes), name)
    function.linkage = "internal"
    function.attributes.add("nounwind")
    function.attributes.add("alwaysinline" if inline else "noinline")
    return function


def library_function(module: ir.Module, name: str, kind: ir.FunctionType) -> ir.Function:
    """Declares a function of the C library. Calls read its address from memory, as `jit.LoadedCode` requires."""
    function = ir.Function(module, kind, name)
    function.attributes.add("nonlazybind")
    return function


def splat(b: ir.IRBuilder, number: Any, vector: ir.VectorType) -> Any:
    """Returns the vector whose lanes are all `number`."""
    index, undefined = ir.IntType(32), ir.Constant(vector, ir.Undefined)
    first = b.insert_element(undefined, number, ir.Constant(index, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(index, vector.count), [0] * vector.count))


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A result of `line`; llvmlite takes it as an operand."""

    type: Any
    reference: str

    def get_reference(self) -> str:
        """Returns its name in the text."""
        return self.reference


def line(b: ir.IRBuilder, kind: Any, text: str) -> Value:
    """Emits an instruction as text, at the end of a block."""
    # Twenty times as fast as an object of llvmlite for each instruction, of which a kernel has some ten thousand.
    lines = b.block.instructions
    value = Value(kind, f'%"{b.block.name}:{len(lines)}"')
    lines.append(f"{value.reference} = {text}")
    b.position_at_end(b.block)
    return value


def copied(b: ir.IRBuilder, emit: Callable[..., Any], *operands: Any) -> tuple[Any, ...]:
    """Emits the instructions of `emit(builder, *operands)`, without branches, and returns its results.

    `emit`, a function of a module, runs once for each combination of types; its text is copied with other names.
    """
    text, results, functions = _template(emit, tuple(operand.type for operand in operands))
    for name, kind in functions.items():
        if name not in b.module.globals:
            ir.Function(b.module, kind, name)
    lines = b.block.instructions
    # Names are unique in a function: block names are, and a block only grows.
    prefix = f'%"{b.block.name}:{len(lines)}:'
    text = text.replace('%"', prefix)
    for k, operand in enumerate(operands):
        text = text.replace(f'{prefix}operand{k}"', operand.get_reference())
    lines.append(text)
    b.position_at_end(b.block)
    return tuple(Value(kind, name.replace('%"', prefix)) for kind, name in results)


@cache
def _template(
    emit: Callable[..., Any], kinds: tuple[Any, ...]
) -> tuple[str, tuple[tuple[Any, str], ...], dict[str, Any]]:
    """Returns the instructions of `emit` as text, type and name of its results, and the functions that it declares."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "template")
    for k, argument in enumerate(function.args):
        argument.name = f"operand{k}"
    b = ir.IRBuilder(function.append_basic_block())
    emitted = emit(b, *function.args)
    results = emitted if isinstance(emitted, tuple) else (emitted,)
    text = "\n  ".join(map(str, b.block.instructions))
    functions = {f.name: f.function_type for f in module.functions if f is not function}
    return text, tuple((value.type, value.get_reference()) for value in results), functions


class _Loop:
    """A loop with an index: the base of the statements below.

    values: vectors that change in the loop. Before the loop these are the first values. In it they are the values of
    this iteration, which the caller replaces by the next ones. After it they are the last values.
    """

    def __init__(self, b: ir.IRBuilder, start: Any, values: Sequence[Any] = ()) -> None:
        self.b, self.start, self.values = b, start, list(values)

    def condition(self, index: Any) -> Any:
        """Emits whether the loop runs for an index."""
        raise NotImplementedError

    def following(self, index: Any) -> Any:
        """Emits the next index."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        b = self.b
        entry_block = b.block
        self.head, body, self.after = (b.append_basic_block() for _ in range(3))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.index = b.phi(I64)
        self.index.add_incoming(self.start, entry_block)
        self._carried = [b.phi(value.type) for value in self.values]
        for phi, value in zip(self._carried, self.values, strict=True):
            phi.add_incoming(value, entry_block)
        self.values = list(self._carried)
        b.cbranch(self.condition(self.index), body, self.after)
        b.position_at_end(body)
        return self.index

    def __exit__(self, *_: object) -> None:
        following = self.following(self.index)
        self.index.add_incoming(following, self.b.block)
        for phi, value in zip(self._carried, self.values, strict=True):
            phi.add_incoming(value, self.b.block)
        self.values = self._carried
        self.b.branch(self.head)
        self.b.position_at_end(self.after)


class loop_over(_Loop):  # noqa: N801 - reads as a statement
    """A counted loop from `start` to `count`: `with loop_over(b, n) as i`."""

    def __init__(
        self, b: ir.IRBuilder, count: Any, *, start: Any = None, step: int = 1, values: Sequence[Any] = ()
    ) -> None:
        super().__init__(b, integer(0) if start is None else start, values)
        self.count, self.step = count, step

    def condition(self, index: Any) -> Any:
        """Whether the index is below the count."""
        return self.b.icmp_signed("<", index, self.count)

    def following(self, index: Any) -> Any:
        """The index plus the step."""
        return self.b.add(index, integer(self.step))


class chain_from(_Loop):  # noqa: N801 - reads as a statement
    """A loop from `start` along `following` while the index is not negative: `with chain_from(b, i, parent) as i`."""

    def __init__(
        self, b: ir.IRBuilder, start: Any, following: Callable[[Any], Any], values: Sequence[Any] = ()
    ) -> None:
        super().__init__(b, start, values)
        self._following = following

    def condition(self, index: Any) -> Any:
        """Whether the index is not negative."""
        return self.b.icmp_signed(">=", index, integer(0))

    def following(self, index: Any) -> Any:
        """The next index of the chain."""
        return self._following(index)
