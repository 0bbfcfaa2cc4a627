"""Vectors of LANES float32 as values of compiled functions: what is written once here runs 16 elements at a time.

`load(base, index, tag) * splat(2.0)` reads like arithmetic on numbers. LLVM splits such a vector into the registers that the
machine has. Addresses and tags are those of `ir`. `count` is how many elements are meant, from the first: with a constant
LANES it costs nothing; what lies behind is not touched.
"""

import operator
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import njit, types
from numba.core.cgutils import get_or_insert_function
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, overload, register_model

from nbengine_kernels.cpu import ir
from nbengine_kernels.cpu.ir import F32, I16, I32, LANES
from nbengine_kernels.cpu.runtime import AVX512, BFLOAT16_PRODUCTS


class _Vector(types.Type):  # type: ignore[misc]
    """LANES float32 in registers."""

    def __init__(self) -> None:
        super().__init__(name="Vector")


VECTOR = _Vector()
_KIND, _BITS = llvm.VectorType(F32, LANES), llvm.VectorType(I32, LANES)


@register_model(_Vector)
class _VectorModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _KIND)


def _number(value: float) -> Any:
    return _KIND([float(np.float32(value))] * LANES)


def _call(b: Any, name: str, *args: Any) -> Any:
    """An LLVM intrinsic of vectors that gives one."""
    function = llvm.FunctionType(_KIND, [_KIND] * len(args))
    return b.call(get_or_insert_function(b.module, function, f"llvm.{name}.v{LANES}f32"), args)


def _lanes_below(b: Any, count: Any) -> Any:
    limit = ir._splat(b, b.trunc(count, I32), LANES)
    return b.icmp_signed("<", _BITS(list(range(LANES))), limit)


def _masked(b: Any, kind: str, element: Any, *args: Any) -> Any:
    """llvm.masked.load(pointer, mask, default) or .store(value, pointer, mask)."""
    vector = llvm.VectorType(element, LANES)
    width = {I16: "i16", F32: "f32"}[element]
    result = vector if kind == "load" else llvm.VoidType()
    function = llvm.FunctionType(result, [arg.type for arg in args])
    return b.call(get_or_insert_function(b.module, function, f"llvm.masked.{kind}.v{LANES}{width}.p0"), args)


@intrinsic
def load_some(typingctx: Any, base: Any, index: Any, count: Any, tag: Any) -> Any:
    """`count` elements from `index` on of the array at `base`, zeros after them."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        element = ir._element(tag)
        kind = llvm.VectorType(element, LANES)
        place = b.bitcast(ir._at(b, args[0], args[1], element), kind.as_pointer())
        raw = _masked(b, "load", element, place, _lanes_below(b, args[2]), kind([0] * LANES))
        return ir._widen(b, raw, LANES) if ir._is_bf16(tag) else raw

    return VECTOR(types.int64, types.int64, types.int64, tag), codegen


@intrinsic
def store_some(typingctx: Any, base: Any, index: Any, value: Any, count: Any, tag: Any) -> Any:
    """Put the first `count` elements of a vector from `index` on, rounded as in `store`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        element = ir._element(tag)
        kind = llvm.VectorType(element, LANES)
        place = b.bitcast(ir._at(b, args[0], args[1], element), kind.as_pointer())
        value = b.trunc(ir._bf16_bits(b, args[2], LANES), kind) if ir._is_bf16(tag) else args[2]
        _masked(b, "store", element, value, place, _lanes_below(b, args[3]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, VECTOR, types.int64, tag), codegen


@intrinsic
def load(typingctx: Any, base: Any, index: Any, tag: Any) -> Any:
    """LANES elements from `index` on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir._load_vector(b, ir._at(b, args[0], args[1], ir._element(tag)), tag, LANES)

    return VECTOR(types.int64, types.int64, tag), codegen


@intrinsic
def store(typingctx: Any, base: Any, index: Any, value: Any, tag: Any) -> Any:
    """Put a vector from element `index` on, rounded to the nearest even bfloat16 where the tag says so."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        ir.store_vector_at(b, args[2], args[0], args[1], tag)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, VECTOR, tag), codegen


@intrinsic
def store_pairs(typingctx: Any, base: Any, index: Any, first: Any, second: Any) -> Any:
    """Put two vectors as LANES pairs of bfloat16, side by side, from pair `index` on."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        place = b.bitcast(ir._at(b, args[0], args[1], I32), _BITS.as_pointer())
        if BFLOAT16_PRODUCTS:  # then one instruction rounds both, and one shuffle brings them side by side
            wide = llvm.VectorType(ir._BFloat(), 2 * LANES)
            kind = llvm.FunctionType(wide, [_KIND, _KIND])
            narrow = get_or_insert_function(b.module, kind, "llvm.x86.avx512bf16.cvtne2ps2bf16.512")
            halves = b.bitcast(b.call(narrow, [args[3], args[2]]), llvm.VectorType(I16, 2 * LANES))
            order = llvm.VectorType(I32, 2 * LANES)([lane // 2 + lane % 2 * LANES for lane in range(2 * LANES)])
            both = b.bitcast(b.shuffle_vector(halves, halves, order), _BITS)
        else:
            low, high = (ir._bf16_bits(b, x, LANES) for x in args[2:])
            both = b.or_(low, b.shl(high, _BITS([16] * LANES)))
        b.store(both, place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, VECTOR, VECTOR), codegen


@intrinsic
def splat(typingctx: Any, value: Any) -> Any:
    """A float32 in every lane."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir._splat(b, args[0], LANES)

    return VECTOR(types.float32), codegen


@intrinsic
def rounded(typingctx: Any, value: Any, tag: Any) -> Any:
    """As it would come back from memory of the tag's type."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if not ir._is_bf16(tag):
            return args[0]
        return b.bitcast(b.shl(ir._bf16_bits(b, args[0], LANES), _BITS([16] * LANES)), _KIND)

    return VECTOR(VECTOR, tag), codegen


@intrinsic
def fma(typingctx: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return ir._fma(b, *args)

    return VECTOR(VECTOR, VECTOR, VECTOR), codegen


@intrinsic
def maximum(typingctx: Any, x: Any, y: Any) -> Any:
    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, y = args
        return b.select(b.fcmp_ordered(">", x, y), x, y)

    return VECTOR(VECTOR, VECTOR), codegen


@intrinsic
def where_less(typingctx: Any, x: Any, y: Any, yes: Any, no: Any) -> Any:
    """yes where x < y, else no."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, y, yes, no = args
        return b.select(b.fcmp_ordered("<", x, y), yes, no)

    return VECTOR(VECTOR, VECTOR, VECTOR, VECTOR), codegen


@intrinsic
def any_less(typingctx: Any, x: Any, y: Any) -> Any:
    """Whether x < y in any lane."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        below = b.bitcast(b.fcmp_ordered("<", *args), llvm.IntType(LANES))
        return b.icmp_unsigned("!=", below, llvm.IntType(LANES)(0))

    return types.boolean(VECTOR, VECTOR), codegen


@intrinsic
def first(typingctx: Any, value: Any) -> Any:
    """The first lane."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.extract_element(args[0], I32(0))

    return types.float32(VECTOR), codegen


@intrinsic
def total(typingctx: Any, value: Any) -> Any:
    """The sum of all lanes."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        (v,) = args
        while (n := v.type.count) > 1:
            halves = [llvm.VectorType(I32, n // 2)(list(range(k, k + n // 2))) for k in (0, n // 2)]
            v = b.fadd(*(b.shuffle_vector(v, v, half) for half in halves))
        return b.extract_element(v, I32(0))

    return types.float32(VECTOR), codegen


def write_exp2(b: Any, x: Any) -> Any:
    """See `exp2`."""
    x = b.select(b.fcmp_ordered("<", x, _number(127.0)), x, _number(127.0))
    n = _call(b, "rint", x)
    r, p = b.fsub(x, n), _number(_EXP2[0])
    for c in _EXP2[1:]:
        p = ir._fma(b, p, r, _number(c))
    if AVX512:  # has one instruction for what follows
        kind = llvm.FunctionType(_KIND, [_KIND, _KIND, _KIND, I16, I32])
        scale = get_or_insert_function(b.module, kind, "llvm.x86.avx512.mask.scalef.ps.512")
        return b.call(scale, [p, n, p, I16(-1), I32(4)])
    exponent = b.shl(b.fptosi(n, _BITS), _BITS([23] * LANES))
    power = b.bitcast(b.add(b.bitcast(p, _BITS), exponent), _KIND)
    return b.select(b.fcmp_ordered("<", x, _number(-126.0)), _number(0.0), power)


@intrinsic
def exp2(typingctx: Any, value: Any) -> Any:
    """2**x within 3e-7 relative; below 2**-126 as near as float32 gets, or 0; x is held below 127.

    x = n + r with |r| <= 1/2; 2**r by a polynomial (least squares at Chebyshev's points), 2**n by adding n to the exponent.
    """

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return write_exp2(b, args[0])

    return VECTOR(VECTOR), codegen


def _fit_exp2() -> list[float]:
    """Coefficients of degree 5, the highest first; the constant is 1, so that 2**0 is."""
    points = np.cos(np.pi * (np.arange(64) + 0.5) / 64) / 2
    rest = (2.0**points - 1.0) / points
    return [*np.polyfit(points, rest, 4, w=1 / 2.0**points).tolist(), 1.0]


_EXP2 = _fit_exp2()
LOG2E = np.float32(1.4426950408889634)


def _define(operation: Any, name: str) -> None:
    """Vector with Vector."""

    @intrinsic
    def combine(typingctx: Any, x: Any, y: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return getattr(b, name)(*args)

        return VECTOR(VECTOR, VECTOR), codegen

    @overload(operation, inline="always", strict=False)
    def choose(x: Any, y: Any) -> Any:
        if x is VECTOR and y is VECTOR:
            return lambda x, y: combine(x, y)
        return None


for _operation, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_operation, _name)

inline: Any = njit(inline="always", error_model="numpy")


@intrinsic
def reciprocal(typingctx: Any, value: Any) -> Any:
    """1 / x within two units of the last place, of a normal x. A division takes several times as long as a first guess and
    Newton's step."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        x, one = args[0], _number(1.0)
        if not AVX512:
            return b.fdiv(one, x)
        kind = llvm.FunctionType(_KIND, [_KIND, _KIND, I16])
        guess = b.call(get_or_insert_function(b.module, kind, "llvm.x86.avx512.rcp14.ps.512"), [x, x, I16(-1)])
        missing = ir._fma(b, b.fneg(x), guess, one)
        return ir._fma(b, guess, missing, guess)

    return VECTOR(VECTOR), codegen


@inline
def sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x)."""
    return reciprocal(splat(np.float32(1.0)) + exp2(x * splat(-LOG2E)))
