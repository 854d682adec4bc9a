"""Sine and cosine of a vector of angles, in LLVM IR, with one argument reduction for both, without calls or branches.

    n = round(x 2/pi),  r = x - n pi/2 with pi/2 as the sum of three doubles (exact by fused multiply-add)
    sin r = r + r u S(u),  cos r = 1 - u/2 + u^2 C(u),  u = r^2                 near-minimax on |r| <= pi/4 + 1/64
    the quadrant n mod 4 swaps them and sets their signs

Error below `ERROR` units in the last place for |x| <= 2^45 rad. The bound is the sum of all rounding errors with the
same sign; the largest error found at 3 10^7 angles is 1.575. The worst case of the sine is r just above 1/2: half a
unit of r is 0.88 of sin r, the last step adds half a unit, the polynomial 0.15. That of the cosine is r near pi/4: half
a unit each of 1 - u/2 and of the last step, 0.35 of r, 0.25 of u, 0.05 of the polynomial. Compensating the rounding of
r, u and 1 - u/2 would halve the error, and add 6 operations to each 28.

Beyond 2^45 rad (3.5e13) neighbouring doubles are nearly 0.01 rad apart, and the result is NaN, as for infinities and
NaN. A server reports INVALID_ARGUMENT with the joint; in this process the result is NaN.

**Hyperbolic tangent**, also without calls or branches:

    tanh |x| = -t / (2 + t),  t = exp(y) - 1,  y = -2 |x|
    n = round(y / ln 2),  r = y - n ln 2 with ln 2 as the sum of two doubles
    t = 2^n s + (2^n - 1),  s = exp(r) - 1 = r + r^2 (1/2! + r/3! + ... + r^11/13!)          |r| <= ln 2 / 2

The remainder of the series is below
2e-17 of s. Beyond `LARGE` the result is 1 to the last bit. Error below `TANH_ERROR` units in the last place: one of s,
half a unit of the sum with 2^n - 1, which does not cancel, and half a unit each of 2 + t and the quotient. NaN gives
NaN.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

# Neighbouring doubles are nearly 0.01 rad apart there. Python does not check angles: 5 to 12 % of the time of a call.
LIMIT = 2.0**45
"""rad; larger angles give NaN."""

ERROR = 1.7
"""Bound of the error of sine and cosine, in units in the last place."""

_TWO_OVER_PI = 0.6366197723675814
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it leaves the rounded integer in the low mantissa bits
_SIN = (
    -0.1666666666666662,
    0.008333333333319665,
    -0.0001984126982758921,
    2.755731291691741e-06,
    -2.50506361155074e-08,
    1.58896951511491e-10,
)
_COS = (
    0.041666666666666574,
    -0.0013888888888869554,
    2.480158728664762e-05,
    -2.755731353884198e-07,
    2.0875613405920367e-09,
    -1.1353995372101357e-11,
)


def vector_intrinsic(module: ir.Module, name: str, kind: ir.VectorType, arguments: int) -> ir.Function:
    """Declares LLVM's `llvm.NAME` on vectors of doubles; llvmlite declares intrinsics on scalars only."""
    full = f"llvm.{name}.v{kind.count}f64"
    intrinsic = module.globals.get(full)
    return intrinsic or ir.Function(module, ir.FunctionType(kind, [kind] * arguments), full)


class _Lanes:
    """Constants and the fused product and sum for vectors of a type. bits: the vector of integers of the same size."""

    def __init__(self, b: ir.IRBuilder, kind: Any) -> None:
        self._b, self._kind = b, kind
        self.bits = ir.VectorType(ir.IntType(64), kind.count)
        self._fma = vector_intrinsic(b.module, "fma", kind, 3)

    def number(self, value: float) -> Any:
        return ir.Constant(self._kind, [value] * self._kind.count)

    def integer(self, value: int) -> Any:
        return ir.Constant(self.bits, [value] * self._kind.count)

    def fma(self, p: Any, q: Any, r: Any) -> Any:
        """Returns p q + r, rounded once."""
        return self._b.call(self._fma, [p, q, r])


# Not the C library's vector functions: they exist on few platforms, differ in the last bits between them, and a call in
# the middle of a kernel spills every vector register.
def sincos(b: ir.IRBuilder, x: Any) -> tuple[Any, Any]:
    """Emits sin x and cos x for a <W x double>."""
    # Without fast-math flags: reassociation would make the reduction inexact.
    kind, lanes = x.type, _Lanes(b, x.type)
    bits, number, integer, fma = lanes.bits, lanes.number, lanes.integer, lanes.fma

    def polynomial(u: Any, coefficients: tuple[float, ...]) -> Any:
        value = number(coefficients[-1])
        for c in coefficients[-2::-1]:
            value = fma(value, u, number(c))
        return value

    # Compared as integers: a floating comparison with NaN would raise the invalid flag, which NumPy reports.
    magnitude = b.and_(b.bitcast(x, bits), integer(0x7FFFFFFFFFFFFFFF))
    limit = ir.Constant(bits, [0x42C0000000000000] * kind.count)  # 2^45
    x = b.select(b.icmp_unsigned("<=", magnitude, limit), x, number(float("nan")))

    shifted = fma(x, number(_TWO_OVER_PI), number(_ROUND))
    n = b.fsub(shifted, number(_ROUND))
    r = x
    for part in _HALF_PI:
        r = fma(n, number(-part), r)
    u = b.fmul(r, r)
    sin_r = fma(b.fmul(r, u), polynomial(u, _SIN), r)
    cos_r = fma(b.fmul(u, u), polynomial(u, _COS), fma(u, number(-0.5), number(1.0)))

    quadrant = b.bitcast(shifted, bits)
    odd = b.icmp_unsigned("!=", b.and_(quadrant, integer(1)), integer(0))
    sign_sin = b.shl(b.and_(quadrant, integer(2)), integer(62))
    sign_cos = b.shl(b.and_(b.add(quadrant, integer(1)), integer(2)), integer(62))

    def signed(value: Any, sign: Any) -> Any:
        return b.bitcast(b.xor(b.bitcast(value, bits), sign), kind)

    return signed(b.select(odd, cos_r, sin_r), sign_sin), signed(b.select(odd, sin_r, cos_r), sign_cos)


LARGE = 20.0
"""1 - tanh 20 = 8.5e-18 is less than a tenth of the distance from 1 to the double below it."""

TANH_ERROR = 3.0
"""Bound of the error of tanh, in units in the last place."""

_LN_2 = (0.6931471805599453, 2.3190468138462996e-17)
_SERIES = tuple(1.0 / math.factorial(k) for k in range(2, 14))


def tanh(b: ir.IRBuilder, x: Any) -> Any:
    """Emits tanh x for a <W x double>."""
    # Without fast-math flags: reassociation would undo the reduction.
    kind, lanes = x.type, _Lanes(b, x.type)
    bits, number, integer, fma = lanes.bits, lanes.number, lanes.integer, lanes.fma

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
    # Not exp(y) - 1, whose difference would cancel for small x.
    t = fma(power, s, b.fsub(power, number(1.0)))
    quotient = b.fdiv(b.fneg(t), b.fadd(t, number(2.0)))

    positive = b.and_(b.bitcast(quotient, bits), integer(0x7FFFFFFFFFFFFFFF))
    signed = b.bitcast(b.or_(positive, b.and_(pattern, integer(-0x8000000000000000))), kind)
    is_number = b.icmp_unsigned("<=", magnitude, integer(0x7FF0000000000000))
    return b.select(is_number, signed, number(math.nan))
