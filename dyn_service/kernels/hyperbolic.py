"""The hyperbolic tangent of a vector, in LLVM IR, without calls or branches.

    tanh |x| = -t / (2 + t),  t = exp(y) - 1,  y = -2 |x|
    n = round(y / ln 2),  r = y - n ln 2 with ln 2 as the sum of two doubles
    t = 2^n s + (2^n - 1),  s = exp(r) - 1 = r + r^2 (1/2! + r/3! + ... + r^11/13!)          |r| <= ln 2 / 2

t is computed directly, not as exp(y) - 1, so that a small x keeps its digits. The remainder of the series is below
2e-17 of s. Beyond `LARGE` the result is 1 to the last bit. Error below `ERROR` units in the last place: one of s, half
a unit of the sum with 2^n - 1, which does not cancel, and half a unit each of 2 + t and the quotient. NaN gives NaN.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

from dyn_service.kernels.trig import vector_intrinsic

LARGE = 20.0
"""exp(-40) is a sixteenth of the distance from 1 to the double below it."""

ERROR = 3.0
"""Units in the last place."""

_LN_2 = (0.6931471805599453, 2.3190468138462996e-17)
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the rounded integer in the low mantissa bits
_SERIES = tuple(1.0 / math.factorial(k) for k in range(2, 14))


def tanh(b: ir.IRBuilder, x: Any) -> Any:
    """Emits tanh x for a <W x double>. Without fast-math flags: reassociation would undo the reduction."""
    kind = x.type
    bits = ir.VectorType(ir.IntType(64), kind.count)

    def number(value: float) -> Any:
        return ir.Constant(kind, [value] * kind.count)

    def integer(value: int) -> Any:
        return ir.Constant(bits, [value] * kind.count)

    fused = vector_intrinsic(b.module, "fma", kind, 3)

    def fma(p: Any, q: Any, r: Any) -> Any:
        return b.call(fused, [p, q, r])

    # Compared as integers: a floating comparison with NaN would raise the invalid flag, which NumPy reports.
    pattern = b.bitcast(x, bits)
    magnitude = b.and_(pattern, integer(0x7FFFFFFFFFFFFFFF))
    large = b.bitcast(number(LARGE), bits)
    size = b.bitcast(b.select(b.icmp_unsigned("<", magnitude, large), magnitude, large), kind)

    y = b.fmul(size, number(-2.0))
    shifted = fma(y, number(1.0 / _LN_2[0]), number(_ROUND))
    n = b.fsub(shifted, number(_ROUND))
    r = y
    for part in _LN_2:
        r = fma(n, number(-part), r)
    series = number(_SERIES[-1])
    for c in _SERIES[-2::-1]:
        series = fma(series, r, number(c))
    s = fma(b.fmul(r, r), series, r)
    power = b.bitcast(b.add(b.shl(b.bitcast(shifted, bits), integer(52)), integer(0x3FF0000000000000)), kind)  # 2^n
    t = fma(power, s, b.fsub(power, number(1.0)))
    found = b.fdiv(b.fneg(t), b.fadd(t, number(2.0)))

    positive = b.and_(b.bitcast(found, bits), integer(0x7FFFFFFFFFFFFFFF))
    signed = b.bitcast(b.or_(positive, b.and_(pattern, integer(-0x8000000000000000))), kind)
    is_number = b.icmp_unsigned("<=", magnitude, integer(0x7FF0000000000000))
    return b.select(is_number, signed, number(math.nan))
