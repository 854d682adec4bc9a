"""Compiled loop that calls several kernels in turn, many times: the steps of a simulation and its control law.

    for each vector of states, one per lane:
        gather the first state and all constants
        for each record:
            for each of its steps:
                gather the samples of the step
                each kernel in turn; its results are inputs of others, and of the next step
            scatter the state

Between the kernels the numbers stay in lanes, in the processor's cache. Each kernel runs its own machine code, so that
the bits are those of single calls. Status flags of the processor are not read, so `numpy.errstate` has no effect.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from dyn_service.errors import ResourceExhaustedError
from dyn_service.kernels.jit import LoadedCode, host, shared_code
from dyn_service.kernels.llvm_ir import DOUBLE, I32, I64, POINTER, at, integer, loop_over
from dyn_service.kernels.loop import NARROW_LANES, Body, emit_gather, emit_scatter
from dyn_service.kernels.python_api import function
from dyn_service.kernels.signature import Operand, Signature, total_size

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Block:
    """A kernel as a function of a vector of states."""

    body: Body
    signature: Signature

    @property
    def numbers(self) -> int:
        """Number of scalars per state in its outputs and workspace."""
        return self.body.results + self.body.workspace


class Stage(NamedTuple):
    """One of the kernels that are called in turn.

    inputs: by name of an input, its values (steps or 1, states, ...) with contiguous entries, or the name of the state
    or of an output of an earlier kernel. outputs: by name of an output, the name under which later kernels read it; the
    name of the state for its next value.
    """

    block: Block
    inputs: Mapping[str, Array | str]
    outputs: Mapping[str, str]


def run_stages(
    stages: Sequence[Stage], state: Mapping[str, Array], records: Mapping[str, Array], record_interval: int
) -> None:
    """Calls the kernels in turn and sets the records. Releases the GIL.

    Args:
        stages: The kernels, in the order of their calls.
        state: The first state, (states, n) each, with contiguous entries.
        records: By name of the state, (records, states, n), with any strides but contiguous entries.
        record_interval: Number of steps between two records.

    Raises:
        ResourceExhaustedError: There is no memory for the workspace of the kernels.
    """
    count, states = next(iter(records.values())).shape[:2]
    bodies, lanes = _bodies(stages, states)
    size = 8 * lanes
    sizes = [size * total_size(stage.block.signature.inputs) for stage in stages]
    sizes += [size * stage.block.numbers for stage in stages]
    memory = _workspace(sum(sizes) // 8 + lanes)
    first = -(-memory.ctypes.data // size) * size
    starts = [first + sum(sizes[:k]) for k in range(len(sizes))]
    arrays: list[object] = []

    def words(rows: Sequence[Sequence[int]]) -> list[int]:
        """Returns the address and the number of rows of integers."""
        array = np.array(rows, dtype=np.int64)
        arrays.append(array)
        return [array.ctypes.data, len(rows)]

    destinations: dict[str, list[tuple[int, int]]] = {}  # by name of a value, the places that it is copied to
    constants: list[list[int]] = []
    samples: list[list[int]] = []
    for stage, start in zip(stages, starts, strict=False):
        for operand, place in _placed(stage.block.signature.inputs, start, size):
            values = stage.inputs[operand.name]
            if isinstance(values, str):
                destinations.setdefault(values, []).append((place, size * operand.size))
                if values not in state:
                    continue
                values = state[values][None]
            strides = (values.strides[1], values.strides[0] if len(values) > 1 else 0)
            # What is the same in all steps is copied once for each vector of states.
            (samples if strides[1] else constants).append([values.ctypes.data, *strides, operand.size, place])
    calls: list[list[int]] = []
    places: dict[str, int] = {}
    for stage, body, source, target in zip(stages, bodies, starts, starts[len(stages) :], strict=False):
        copies: list[list[int]] = []
        for operand, place in _placed(stage.block.signature.outputs, target, size):
            name = stage.outputs[operand.name]
            places[name] = place
            copies += [[place, *destination] for destination in destinations.get(name, ())]
        results = size * body.results
        calls.append([body.address, source, target, target + results, body.places, results, *words(copies)])
    scatters = [[x.ctypes.data, x.strides[1], x.strides[0], x.shape[2], places[name]] for name, x in records.items()]
    tables = [word for rows in (constants, samples, calls, scatters) for word in words(rows)]
    run, _ = _function(lanes)
    # ctypes releases the GIL here; `memory` and `arrays`, whose addresses are in the tables, live until it returns.
    run(*tables, states, count, record_interval)


def _bodies(stages: Sequence[Stage], states: int) -> tuple[list[Body], int]:
    """Returns the compiled functions of the kernels, and the number of states in their vectors."""
    bodies = [stage.block.body for stage in stages]
    if states <= NARROW_LANES and all(body.narrow for body in bodies):
        return [body.narrowed() for body in bodies], NARROW_LANES
    return bodies, host().lanes


def _placed(operands: Sequence[Operand], start: int, size: int) -> Iterator[tuple[Operand, int]]:
    """Yields each operand and the address of its vectors of `size` bytes, which begin at `start`."""
    for operand in operands:
        yield operand, start
        start += size * operand.size


def _workspace(count: int) -> Array:
    """Returns memory for so many numbers, all 0."""
    try:
        return np.zeros(count)
    except MemoryError:
        raise ResourceExhaustedError(
            f"there is not enough memory for the workspace of these kernels: {8 * count / 1e9:.1f} GB"
        ) from None


_RUN_STAGES = "run_stages"


@cache
def _function(lanes: int) -> tuple[Callable[..., None], LoadedCode]:
    """Returns the compiled function, loaded into this process, and its code."""
    code = shared_code(f"repeated calls {lanes}", "kernels.rollout", lambda: _emit(lanes))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 11)(code.address(_RUN_STAGES)), code


def _emit(lanes: int) -> str:
    """Returns the LLVM module with `run_stages`: four tables and their numbers of rows, then states, records,
    record_interval.

    The rows are, of moves from or to arrays: address, strides from state to state and from step to step (of records,
    from record to record), number of entries, place of their vectors; of calls: function, in, out, workspace, table of
    places or 0, bytes of the results, copies, their number; of copies: source, target, bytes.
    """
    module, vector = ir.Module(name=_RUN_STAGES), ir.VectorType(DOUBLE, lanes)
    gather, scatter = emit_gather(module, vector), emit_scatter(module, vector)
    run_stages = ir.Function(module, function(ir.VoidType(), *[I64] * 11), _RUN_STAGES)
    *tables, states, records, record_interval = run_stages.args
    b = ir.IRBuilder(run_stages.append_basic_block())
    constants, samples, calls, scatters = (
        (b.inttoptr(table, POINTER), rows) for table, rows in zip(tables[::2], tables[1::2], strict=True)
    )

    def row(table: Any, index: Any, count: int) -> list[Any]:
        row_address = at(b, table, b.mul(index, integer(8 * count)))
        return [b.load(at(b, row_address, integer(8 * k)), typ=I64) for k in range(count)]

    def move(table: tuple[Any, Any], first: Any, left: Any, time: Any, *, out: bool = False) -> None:
        with loop_over(b, table[1]) as k:
            base, to_state, to_step, entries, place = row(table[0], k, 5)
            offset = b.add(b.mul(first, to_state), b.mul(time, to_step))
            cells, start = b.inttoptr(place, POINTER), b.inttoptr(b.add(base, offset), POINTER)
            if out:
                b.call(scatter, [cells, start, left, to_state, entries, integer(8)])
            else:
                b.call(gather, [cells, start, left, to_state, entries, integer(8)])

    with loop_over(b, states, step=lanes) as first:
        left = b.sub(states, first)
        left = b.select(b.icmp_signed("<", left, integer(lanes)), left, integer(lanes))
        move(constants, first, left, integer(0))
        with loop_over(b, records) as record:
            with loop_over(b, record_interval) as step:
                move(samples, first, left, b.add(b.mul(record, record_interval), step))
                with loop_over(b, calls[1]) as k:
                    body, *buffers, places, results, copies, count = row(calls[0], k, 8)
                    kind = function(ir.VoidType(), *[POINTER] * 3).as_pointer()
                    b.call(b.inttoptr(body, kind), [b.inttoptr(buffer, POINTER) for buffer in buffers])
                    _emit_distribution(b, vector, places, buffers[1], results)
                    with loop_over(b, count) as n:
                        place, destination, size = row(b.inttoptr(copies, POINTER), n, 3)
                        with loop_over(b, size, step=8 * lanes) as offset:
                            cells = (b.inttoptr(b.add(address, offset), POINTER) for address in (place, destination))
                            cell, target_cell = cells
                            b.store(b.load(cell, align=8 * lanes, typ=vector), target_cell, align=8 * lanes)
            move(scatters, first, left, record, out=True)
    b.ret_void()
    return str(module)


def _emit_distribution(b: ir.IRBuilder, vector: ir.VectorType, places: Any, target: Any, results: Any) -> None:
    """Emits the copying of results to their entries, by the table of places; entries that are always 0 are left."""
    size = 8 * vector.count
    by_places = b.icmp_signed("!=", places, integer(0))
    with b.if_then(by_places), loop_over(b, results, step=size) as offset:
        entry = b.udiv(offset, integer(2 * vector.count))  # bytes of its word in the table
        place = b.sext(b.load(at(b, b.inttoptr(places, POINTER), entry), align=4, typ=I32), I64)
        with b.if_then(b.icmp_signed(">=", place, integer(0))):
            source = b.add(target, b.mul(place, integer(size)))
            stored_cell, result_cell = (b.inttoptr(address, POINTER) for address in (source, b.add(target, offset)))
            b.store(b.load(stored_cell, align=size, typ=vector), result_cell, align=size)


def packed(x: Array, operand: Operand) -> Array:
    """Returns values (..., *shape of the operand) with contiguous entries; a copy only if they are not."""
    expected = 8
    for n, stride in zip(reversed(operand.shape), reversed(x.strides), strict=False):
        if n > 1 and stride != expected:
            return np.ascontiguousarray(x)
        expected *= n
    return x
