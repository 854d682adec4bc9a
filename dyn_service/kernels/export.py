"""Kernels as C functions in an object file, for this processor or another, without Python, memory or locks.

A function computes one state, with the operations of `Robot` in their order. Each has these entries; all arrays are
the caller's, `w` is its workspace:

    int NAME_eval(inputs .., outputs .., double *w)     results by rows, as NumPy's
    int NAME(const double **arg, double **res, long long *iw, double *w, int mem)     CasADi's external functions
    NAME_n_in, NAME_n_out, NAME_name_in, NAME_name_out, NAME_sparsity_in, NAME_sparsity_out, NAME_work, NAME_incref,
    NAME_decref, NAME_diff_in if some inputs have no derivatives, and the same of jac_NAME, the Jacobian, if its blocks
    are the results of an exported function

A NULL input has its default; a NULL result is not written. Results of CasADi's functions are by columns, without
entries that are 0 at every state.

**Bits.** LLVM fuses the same products and sums of vectors with any number of lanes, but not those of single numbers
(`contract`). So where the processor has vectors of two doubles, both lanes compute the state, in the same time as one.
Sine, cosine and tanh need exact fused products; where the processor has none, they are computed exactly from rounded
ones, and all other products and sums are rounded separately. Source: S. Boldo, G. Melquiond, Emulation of a FMA and
correctly rounded sums: proved algorithms using rounding to odd (2008).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from dyn_service.kernels.graph import Graph
from dyn_service.kernels.jit import host
from dyn_service.kernels.llvm_ir import (
    DOUBLE,
    I32,
    I64,
    POINTER,
    at,
    copy_vectors,
    integer,
    internal,
    loop_over,
    splat,
    vector_address,
)
from dyn_service.kernels.lower import emit_body
from dyn_service.kernels.rolled import Rolled
from dyn_service.kernels.signature import Operand, Signature, first_entry, total_size
from dyn_service.kernels.staged import Staged


@dataclass(frozen=True)
class Target:
    """A processor.

    fuses: whether it has fused products. lanes: doubles in the vectors that compute a state. linkers: commands that
    link a shared library, if installed, without `-o FILE OBJECT`. ending: of the library's file name. reloc: LLVM's
    relocation model.
    """

    triple: str
    cpu: str
    features: str
    fuses: bool
    lanes: int
    linkers: tuple[tuple[str, ...], ...] = ()
    ending: str = ".so"
    reloc: str = "pic"

    def has_host_bits(self) -> bool:
        """Whether the results have the bits of `Robot` on the processor that runs this."""
        host_target = target_of("host")
        return (self.processor, self.fuses) == (host_target.processor, host_target.fuses)

    @property
    def processor(self) -> str:
        """The kind of processor: x86_64, aarch64, .."""
        return self.triple.partition("-")[0]


_LD, _LLD = ("ld", "-shared"), ("ld.lld", "-shared")
_X86 = "x86_64-unknown-linux-gnu"
_FOREIGN: Mapping[str, Target] = MappingProxyType(
    {
        **{
            f"x86-64-v{level}": Target(
                _X86, f"x86-64-v{level}", "", level > 2, 2, (("x86_64-linux-gnu-ld", "-shared"), _LLD)
            )
            for level in (2, 3, 4)
        },
        "aarch64": Target(
            "aarch64-unknown-linux-gnu", "generic", "", True, 2, (("aarch64-linux-gnu-ld", "-shared"), _LLD)
        ),
        "cortex-m7": Target("thumbv7em-unknown-none-eabihf", "cortex-m7", "", True, 1, reloc="static"),
        "wasm32": Target(
            "wasm32-unknown-unknown",
            "generic",
            "",
            False,
            1,
            (("wasm-ld", "--no-entry", "--export-dynamic", "--allow-undefined"),),
            ".wasm",
            "static",
        ),
    }
)
TARGETS = ("host", *_FOREIGN)
"""The names of the processors."""


def target_of(name: str) -> Target:
    """Returns the processor of that name, one of `TARGETS`."""
    if name != "host":
        return _FOREIGN[name]
    processor = host()
    fuses = "x86_64" not in processor.triple or "+fma" in processor.features.split(",")
    linkers = (("cc", "-shared", "-nostdlib"), ("gcc", "-shared", "-nostdlib"), ("clang", "-shared", "-nostdlib"))
    ending = ".dylib" if "darwin" in processor.triple or "apple" in processor.triple else ".so"
    # Two lanes, although one state needs one: LLVM fuses other products of single numbers, so one lane has other bits.
    return Target(processor.triple, processor.cpu, processor.features, fuses, 2, (*linkers, _LD, _LLD), ending)


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel to export, or several that are called one after the other and share the inputs.

    name: in C. signature: inputs and outputs of the function. graphs: of the kernels. required: number of inputs
    without a default, which come first. without_derivatives: number of inputs after them that CasADi's function also
    has, but no derivatives by them. defaults: the numbers of the other inputs. entering: computes the inputs of the
    kernel from those of the function; None: they are the same.
    """

    name: str
    signature: Signature
    graphs: Sequence[Graph | Rolled | Staged]
    required: int
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    without_derivatives: int = 0
    entering: Graph | None = None

    @property
    def kernel(self) -> Signature:
        """The signature of the kernel."""
        return self.signature if self.entering is None else replace(self.signature, inputs=self.converted_inputs)

    @property
    def converted_inputs(self) -> tuple[Operand, ...]:
        """The inputs of the kernel, if `entering` computes them."""
        return () if self.entering is None else self.entering.signature.outputs

    @property
    def named_inputs(self) -> tuple[Operand, ...]:
        """The inputs of CasADi's function."""
        return self.signature.inputs[: self.required + self.without_derivatives]

    def copied(self, graph: Graph | Rolled | Staged) -> tuple[Operand, ...]:
        """Returns the inputs of one of several kernels, which are copied for it."""
        return graph.signature.inputs if len(self.graphs) > 1 else ()

    def workspace(self, target: Target) -> int:
        """Returns the number of doubles that `w` needs."""
        operands = (*self.signature.inputs, *self.converted_inputs, *self.signature.outputs)
        vectors = total_size(operands) + max(total_size(self.copied(graph)) + graph.workspace for graph in self.graphs)
        return target.lanes * vectors + target.lanes - 1  # lanes - 1 more for alignment


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix in CasADi's form.

    An operand of one axis is a column; the last of several axes becomes the columns. places: by rows, the place of each
    entry in a buffer; -1 for an entry that is always 0.
    """

    shape: tuple[int, int]
    places: np.ndarray

    @classmethod
    def of(cls, operand: Operand, places: Any) -> Matrix:
        """Returns the matrix of an operand."""
        rows, columns = (operand.size, 1) if len(operand.shape) < 2 else (-1, operand.shape[-1])
        table = np.asarray(places, dtype=np.int32).reshape(rows, columns)
        return cls((table.shape[0], columns), table)

    @cached_property
    def by_columns(self) -> np.ndarray:
        """The places of the entries that CasADi stores."""
        flat = self.places.T.reshape(-1)
        return flat[flat >= 0]

    @cached_property
    def sparsity(self) -> list[int]:
        """CasADi's compressed columns: rows, columns, then 1 if all entries are stored, or starts and row indices."""
        is_stored = self.places.T >= 0
        if is_stored.all():
            return [*self.shape, 1]
        starts = [0, *np.cumsum(is_stored.sum(axis=1)).tolist()]
        return [*self.shape, *starts, *np.nonzero(is_stored)[1].tolist()]


def jacobian_of(function: Function, functions: Sequence[Function]) -> Function | None:
    """Returns the function with all derivatives of another: outputs `dY_dX` of each output Y by each required input X.

    None if there is no such function, or if its derivatives by q are by velocities (nq != nv).
    """
    signature = function.signature
    q = signature.pose
    names = [operand.name for operand in signature.inputs[: function.required]]
    derivative_names = {f"d{y.name}_d{x}" for y in signature.outputs for x in names}
    for jacobian in functions:
        if jacobian is function or jacobian.named_inputs != function.named_inputs:
            continue
        blocks = {operand.name: operand for operand in jacobian.signature.outputs}
        if (
            derivative_names <= blocks.keys()
            and q is not None
            and blocks[f"d{signature.outputs[0].name}_d{q.name}"].shape[-1:] == q.shape
        ):
            return jacobian
    return None


def object_code(functions: Sequence[Function], target: Target) -> tuple[bytes, list[str]]:
    """Returns the object file of these functions, and the functions of the C library that they call.

    The bytes are the same for the same functions, LLVM and target.
    """
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc=target.reloc, codemodel="small"
    )
    emitter = _Emitter(target, str(machine.target_data))
    emitted = {function.name: emitter.add(function) for function in functions}
    for function in functions:
        emitter.add_entries(function, *emitted[function.name])
        other = jacobian_of(function, functions)
        if other is not None:
            emitter.add_jacobian(function, other, *emitted[other.name])
    with llvm.create_context() as context, llvm.parse_assembly(emitter.text, context) as module:
        module.verify()
        passes = llvm.create_new_module_pass_manager()
        # The passes of `kernels.jit`, since they choose which products are fused, and with that the bits.
        passes.add_instruction_combine_pass()
        passes.add_new_gvn_pass()
        passes.run(module, llvm.create_pass_builder(machine, llvm.PipelineTuningOptions()))
        return bytes(machine.emit_object(module)), emitter.external


class _Emitter:
    """The module of a file."""

    def __init__(self, target: Target, layout: str) -> None:
        self._target, self._vector = target, ir.VectorType(DOUBLE, target.lanes)
        self._size = 8 * target.lanes
        self._module = ir.Module(name="dyn_service")
        self._module.triple, self._module.data_layout = target.triple, layout
        self._tables: dict[Any, Any] = {}
        self._begin_copies()

    @property
    def text(self) -> str:
        """The module as text."""
        fma = f"llvm.fma.v{self._target.lanes}f64"
        if self._target.fuses or fma not in self._module.globals:
            return str(self._module)
        fused = _emit_fused(self._module, self._vector).name
        lines = str(self._module).splitlines()
        return "\n".join(
            x.replace(f'@"{fma}"', f'@"{fused}"') for x in lines if not x.startswith("declare") or fma not in x
        )

    @property
    def external(self) -> list[str]:
        """The functions that are declared, except LLVM's."""
        return [x.name for x in self._module.functions if not x.blocks and not x.name.startswith("llvm.")]

    def add(self, function: Function) -> tuple[ir.Function, list[Matrix]]:
        """Adds a function (inputs .., w) that computes the results in w; returns it and the places of the results."""
        signature, name = function.signature, f"{function.name}.begin"
        results = total_size(signature.outputs)
        begin = internal(self._module, name, ir.VoidType(), *[POINTER] * (len(signature.inputs) + 1))
        b = ir.IRBuilder(begin.append_basic_block())
        *inputs, w = begin.args
        w, first = self._aligned(b, w), 0
        for operand, array in zip(signature.inputs, inputs, strict=True):
            default = function.defaults.get(operand.name)
            numbers = (
                ir.Constant(POINTER, None) if default is None else self._table(DOUBLE, default.reshape(-1).tolist())
            )
            padded = operand.name in signature.padded
            count = 0 if padded else operand.size
            b.call(self._gather, [at(b, w, integer(self._size * first)), array, numbers, integer(count)])
            first += operand.size
        input_count = total_size(function.converted_inputs)
        cleared, source = self._vector_at(b, w, first), w
        self._clear(b, cleared, input_count + results)
        if function.entering is not None:
            enter = emit_body(self._module, function.entering, self._vector, f"{function.name}.enter")
            b.call(enter, [w, cleared, cleared])  # straight-line code, without a workspace
            source, first = cleared, first + input_count
        places: list[int] = []
        target = self._vector_at(b, w, first)
        workspace = self._vector_at(b, target, results)
        for k, graph in enumerate(function.graphs):
            result_places: list[int] = []
            body = emit_body(self._module, graph, self._vector, f"{function.name}.body{k}", result_places)
            # A function of one kernel reads its inputs where they are; several kernels need theirs side by side.
            kernel_inputs, copied, start = source, 0, len(places)
            for operand in function.copied(graph):
                kernel_inputs, place = workspace, first_entry(function.kernel.inputs, operand.name)
                destination = self._vector_at(b, workspace, copied)
                copy_vectors(b, self._vector, operand.size, self._vector_at(b, source, place), destination)
                copied += operand.size
            free = self._vector_at(b, workspace, copied)
            self._clear(b, free, graph.input_count if isinstance(graph, Staged) else 0)
            b.call(body, [kernel_inputs, self._vector_at(b, target, start), free])
            result_places = result_places or list(range(total_size(graph.signature.outputs)))
            places += [place + first + start if place >= 0 else -1 for place in result_places]
        b.ret_void()
        ends = accumulate(operand.size for operand in signature.outputs)
        return begin, [Matrix.of(x, places[end - x.size : end]) for x, end in zip(signature.outputs, ends, strict=True)]

    def _vector_at(self, b: ir.IRBuilder, vectors: Any, count: int) -> Any:
        return at(b, vectors, integer(self._size * count))

    def _clear(self, b: ir.IRBuilder, vectors: Any, count: int) -> None:
        with loop_over(b, integer(self._size * count), step=self._size) as offset:
            b.store(ir.Constant(self._vector, [0.0] * self._vector.count), at(b, vectors, offset), align=self._size)

    def add_entries(self, function: Function, begin: ir.Function, results: Sequence[Matrix]) -> None:
        """Adds the functions that C and CasADi call."""
        signature = function.signature
        b, arguments = self._function(
            f"{function.name}_eval", I32, *[POINTER] * (len(signature.inputs) + len(results) + 1)
        )
        *arrays, w = arguments
        inputs, outputs = arrays[: len(signature.inputs)], arrays[len(signature.inputs) :]
        b.call(begin, [*inputs, w])
        for target, matrix in zip(outputs, results, strict=True):
            self._scatter_all(b, target, w, matrix.places.reshape(-1))
        b.ret(ir.Constant(I32, 0))
        names = [operand.name.replace(".", "_") for operand in signature.outputs]
        inputs = self._columns(function)
        self._add_casadi(function, function.name, begin, inputs, list(zip(names, results, strict=True)))

    def add_jacobian(self, function: Function, other: Function, begin: ir.Function, results: Sequence[Matrix]) -> None:
        """Adds jac_NAME: its inputs are the inputs and results of NAME, its results a block for each pair of these."""
        by_name = {operand.name: matrix for operand, matrix in zip(other.signature.outputs, results, strict=True)}
        outputs = function.signature.outputs
        nominal = [(f"out_{y.name}", Matrix((y.size, 1), np.full((y.size, 1), -1, dtype=np.int32))) for y in outputs]
        blocks = []
        for y in outputs:
            for k, x in enumerate(function.named_inputs):
                places = np.full(y.size * x.size, -1, dtype=np.int32)
                places = by_name[f"d{y.name}_d{x.name}"].places if k < function.required else places
                blocks.append((f"jac_{y.name}_{x.name}", Matrix((y.size, x.size), places.reshape(y.size, x.size))))
        inputs = self._columns(function)
        self._add_casadi(other, f"jac_{function.name}", begin, [*inputs, *nominal], blocks)

    @staticmethod
    def _columns(function: Function) -> list[tuple[str, Matrix]]:
        """Returns the inputs of CasADi's function: a matrix is transposed, since CasADi stores by columns."""
        return [
            (x.name, Matrix((x.shape[-1], x.size // x.shape[-1]), np.zeros(x.shape[::-1], dtype=np.int32)))
            for x in function.named_inputs
        ]

    def _add_casadi(
        self,
        function: Function,
        name: str,
        begin: ir.Function,
        inputs: Sequence[tuple[str, Matrix]],
        outputs: Sequence[tuple[str, Matrix]],
    ) -> None:
        """Adds NAME and the functions that describe it. Inputs of the kernel after `named_inputs` are NULL."""
        b, (arg, res, _, w, _) = self._function(name, I32, *[POINTER] * 4, I32)
        null = ir.Constant(POINTER, None)

        def pointer(array: Any, k: int) -> Any:
            return b.load(b.gep(array, [integer(k)], source_etype=POINTER), typ=POINTER)

        pointers = [pointer(arg, k) for k in range(len(function.named_inputs))]
        b.call(begin, [*pointers, *[null] * (len(function.signature.inputs) - len(pointers)), w])
        for k, (_, matrix) in enumerate(outputs):
            self._scatter_all(b, pointer(res, k), w, matrix.by_columns)
        b.ret(ir.Constant(I32, 0))
        sizes = (len(inputs), len(outputs), 0, function.workspace(self._target))
        b, arguments = self._function(f"{name}_work", I32, *[POINTER] * 4)
        for place, size in zip(arguments, sizes, strict=True):
            with b.if_then(b.icmp_unsigned("!=", place, null)):
                b.store(integer(size), place)
        b.ret(ir.Constant(I32, 0))
        for side, operands in (("in", inputs), ("out", outputs)):
            b, _ = self._function(f"{name}_n_{side}", I64)
            b.ret(integer(len(operands)))
            names = [self._text(operand_name) for operand_name, _ in operands]
            self._add_choice(f"{name}_name_{side}", names)
            self._add_choice(f"{name}_sparsity_{side}", [self._table(I64, matrix.sparsity) for _, matrix in operands])
        # Else CasADi would ask jac_NAME for blocks by these inputs, which do not exist.
        if function.without_derivatives:
            b, (index,) = self._function(f"{name}_diff_in", I32, I64)
            is_outside = b.icmp_signed(">=", index, integer(len(function.named_inputs)))
            b.ret(b.zext(b.or_(b.icmp_signed("<", index, integer(function.required)), is_outside), I32))
        for action in ("incref", "decref"):
            b, _ = self._function(f"{name}_{action}", ir.VoidType())
            b.ret_void()

    def _add_choice(self, name: str, tables: Sequence[Any]) -> None:
        """Adds a function that returns the address of one of these; NULL for another index."""
        b, (index,) = self._function(name, POINTER, I64)
        for k, table in enumerate(tables):
            with b.if_then(b.icmp_signed("==", index, integer(k))):
                b.ret(table)
        b.ret(ir.Constant(POINTER, None))

    def _function(self, name: str, returns: Any, *takes: Any) -> tuple[ir.IRBuilder, Sequence[Any]]:
        function = ir.Function(self._module, ir.FunctionType(returns, takes), name)
        function.attributes.add("nounwind")
        return ir.IRBuilder(function.append_basic_block()), function.args

    def _table(self, kind: Any, numbers: Sequence[Any]) -> Any:
        """Returns the address of a constant array."""
        key = (str(kind), tuple(numbers))
        if key not in self._tables:
            array = ir.ArrayType(kind, len(numbers))
            table = ir.GlobalVariable(self._module, array, f"constant.{len(self._tables)}")
            table.linkage, table.global_constant = "internal", True
            table.initializer = ir.Constant(array, list(numbers))
            self._tables[key] = table
        return self._tables[key]

    def _text(self, text: str) -> Any:
        return self._table(ir.IntType(8), [*text.encode(), 0])

    def _scatter_all(self, b: ir.IRBuilder, target: Any, w: Any, places: np.ndarray) -> None:
        b.call(self._scatter, [target, self._aligned(b, w), self._table(I32, places.tolist()), integer(len(places))])

    def _aligned(self, b: ir.IRBuilder, w: Any) -> Any:
        """Returns the first address in the workspace that is aligned for vectors."""
        return b.inttoptr(b.and_(b.add(b.ptrtoint(w, I64), integer(self._size - 1)), integer(-self._size)), POINTER)

    def _begin_copies(self) -> None:
        """Adds gather(to, from, default, count) and scatter(to, from, places, count), nothing if `to` is NULL."""
        null, zero, vector = ir.Constant(POINTER, None), ir.Constant(DOUBLE, 0.0), self._vector
        self._gather = internal(self._module, "gather", ir.VoidType(), *[POINTER] * 3, I64)
        destination, source, default, count = self._gather.args
        b = ir.IRBuilder(self._gather.append_basic_block())
        source = b.select(b.icmp_unsigned("==", source, null), default, source)
        missing = b.icmp_unsigned("==", source, null)
        with b.if_else(missing) as (clear, copy):
            with clear, loop_over(b, count) as k:
                b.store(splat(b, zero, vector), vector_address(b, destination, vector, k), align=self._size)
            with copy, loop_over(b, count) as k:
                number = b.load(at(b, source, b.mul(k, integer(8))), typ=DOUBLE)
                b.store(splat(b, number, vector), vector_address(b, destination, vector, k), align=self._size)
        b.ret_void()
        self._scatter = internal(self._module, "scatter", ir.VoidType(), *[POINTER] * 3, I64)
        destination, source, places, count = self._scatter.args
        b = ir.IRBuilder(self._scatter.append_basic_block())
        with b.if_then(b.icmp_unsigned("!=", destination, null)), loop_over(b, count) as k:
            place = b.sext(b.load(at(b, places, b.mul(k, integer(4))), typ=I32, align=4), I64)
            is_zero = b.icmp_signed("<", place, integer(0))
            index = b.select(is_zero, integer(0), place)
            number = b.load(vector_address(b, source, vector, index), typ=DOUBLE)
            b.store(b.select(is_zero, zero, number), at(b, destination, b.mul(k, integer(8))))
        b.ret_void()


_SPLIT = 134217729.0  # 2^27 + 1


def _emit_fused(module: ir.Module, vector: ir.VectorType) -> ir.Function:
    """Adds the function x y + z rounded once, for a processor without it and numbers far from over- and underflow.

    With the exact product u + u', t + t' = z + u', s + s' = u + t: it is s + odd(t' + s'), where odd rounds a number
    that is not a double to its neighbour with odd mantissa.
    """
    function = internal(module, "fused", vector, *[vector] * 3)
    b = ir.IRBuilder(function.append_basic_block())
    x, y, z = function.args
    bits = ir.VectorType(I64, vector.count)

    def number(value: float, kind: Any = vector) -> Any:
        return ir.Constant(kind, [value] * vector.count)

    def halves(p: Any) -> tuple[Any, Any]:
        large = b.fmul(p, number(_SPLIT))
        high = b.fsub(large, b.fsub(large, p))
        return high, b.fsub(p, high)

    def exact_sum(p: Any, q: Any) -> tuple[Any, Any]:
        total = b.fadd(p, q)
        part = b.fsub(total, p)
        return total, b.fadd(b.fsub(p, b.fsub(total, part)), b.fsub(q, part))

    (x1, x2), (y1, y2) = halves(x), halves(y)
    u = b.fmul(x, y)
    rest = b.fsub(b.fmul(x2, y2), b.fsub(b.fsub(b.fsub(u, b.fmul(x1, y1)), b.fmul(x2, y1)), b.fmul(x1, y2)))
    t, t_rest = exact_sum(z, rest)
    s, s_rest = exact_sum(u, t)
    odd, error = exact_sum(t_rest, s_rest)
    whole = b.bitcast(odd, bits)
    is_even = b.icmp_unsigned("==", b.and_(whole, number(1, bits)), number(0, bits))
    inwards = b.xor(b.fcmp_ordered(">", error, number(0.0)), b.fcmp_ordered(">", odd, number(0.0)))
    neighbour = b.bitcast(b.add(whole, b.select(inwards, number(-1, bits), number(1, bits))), vector)
    is_rounded = b.and_(b.fcmp_ordered("!=", error, number(0.0)), is_even)
    b.ret(b.fadd(s, b.select(is_rounded, neighbour, odd)))
    return function
