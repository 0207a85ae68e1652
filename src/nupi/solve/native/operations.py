"""The C expression of each pointwise torch operation, on vectors with one number per setting.

A vector of numbers is a `Number`, a vector of truth values is a `Mask`; both are C expressions. Python numbers are also
operands. The functions in the table take the arguments of the torch operation by position, including defaults.
The expressions propagate nan as torch does: every comparison with nan is false.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


class UnsupportedError(NotImplementedError):
    """The step has no native form, so torch runs it instead."""


class Number(str):
    """A C expression whose value is a vector of numbers."""

    __slots__ = ()


class Mask(str):
    """A C expression whose value is a vector of truth values: all bits set, or none."""

    __slots__ = ()


Operand: TypeAlias = "Number | Mask | float | bool | None"
Pointwise: TypeAlias = "Callable[..., Number | Mask]"


def literal(value: float) -> str:
    """A number as an exact C literal."""
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return float(value).hex()


def number(value: Operand) -> Number:
    """Convert any operand to numbers; a truth value becomes 0 or 1."""
    if isinstance(value, Number):
        return value
    if isinstance(value, Mask):
        return Number(f"pick({value}, all(1), all(0))")
    if value is None:
        raise UnsupportedError("an operand is missing")
    return Number(f"all({literal(float(value))})")


def mask(value: Operand) -> Mask:
    """Convert any operand to truth values; any number but 0 is true."""
    if isinstance(value, Mask):
        return value
    return Mask(f"((mask)({number(value)} != all(0)))")


def call(name: str) -> Pointwise:
    """A function of C's maths library, lane by lane."""
    return lambda *given: Number(f"{name}_({', '.join(map(number, given))})")


def infix(sign: str) -> Pointwise:
    """Two operands with a sign between them."""
    return lambda a, b: Number(f"({number(a)} {sign} {number(b)})")


def compare(sign: str) -> Pointwise:
    """A comparison, as a mask."""
    return lambda a, b: Mask(f"((mask)({number(a)} {sign} {number(b)}))")


def logical(sign: str) -> Pointwise:
    """Two masks with a sign between them."""
    return lambda a, b: Mask(f"({mask(a)} {sign} {mask(b)})")


def scaled(value: Operand, factor: Operand) -> Number:
    """The value times a factor, without the multiplication if the factor is 1."""
    if not isinstance(factor, str) and factor == 1:
        return number(value)
    return Number(f"({number(factor)} * {number(value)})")


def add(a: Operand, b: Operand, alpha: Operand = 1) -> Number:
    """The sum, b times alpha."""
    return Number(f"({number(a)} + {scaled(b, alpha)})")


def sub(a: Operand, b: Operand, alpha: Operand = 1) -> Number:
    """The difference, b times alpha."""
    return Number(f"({number(a)} - {scaled(b, alpha)})")


def div(a: Operand, b: Operand, rounding_mode: object = None) -> Number:
    """The quotient, rounded or not."""
    quotient = f"({number(a)} / {number(b)})"
    if rounding_mode is None:
        return Number(quotient)
    if rounding_mode == "trunc":
        return Number(f"trunc_({quotient})")
    raise UnsupportedError(f"a division with rounding_mode={rounding_mode!r}")


def where(condition: Operand, a: Operand, b: Operand) -> Number | Mask:
    """Choose a where the condition is true, else b."""
    if isinstance(a, Mask) and isinstance(b, Mask):
        return Mask(f"(({mask(condition)} & {a}) | (~{mask(condition)} & {b}))")
    return Number(f"pick({mask(condition)}, {number(a)}, {number(b)})")


def clamp(value: Operand, low: Operand = None, high: Operand = None) -> Number:
    """The value within [low, high]; nan stays nan."""
    found = number(value)
    if low is not None:
        found = Number(f"{'larger' if isinstance(low, str) else 'atleast'}({found}, {number(low)})")
    if high is not None:
        found = Number(f"{'smaller' if isinstance(high, str) else 'atmost'}({found}, {number(high)})")
    return found


def power(base: Operand, exponent: Operand) -> Number:
    """A power; small whole exponents are products, as in torch."""
    if not isinstance(base, str) or isinstance(exponent, str) or exponent is None:
        return Number(f"pow_({number(base)}, {number(exponent)})")
    x = number(base)
    simple = {
        0.0: "all(1)",
        0.5: f"sqrt_({x})",
        1.0: x,
        2.0: f"square({x})",
        3.0: f"cube({x})",
        -0.5: f"(all(1) / sqrt_({x}))",
        -1.0: f"(all(1) / {x})",
        -2.0: f"(all(1) / square({x}))",
    }
    return Number(simple.get(float(exponent), f"pow_({x}, {number(exponent)})"))


def lerp(start: Operand, end: Operand, weight: Operand) -> Number:
    """Interpolate from start to end by a weight, computed from the nearer end as in torch."""
    a, b = number(start), number(end)
    if isinstance(weight, str):
        return Number(f"between({a}, {b}, {number(weight)})")
    if weight is not None and abs(weight) < 0.5:
        return Number(f"({a} + {number(weight)} * ({b} - {a}))")
    return Number(f"({b} - ({b} - {a}) * (all(1) - {number(weight)}))")


def addcmul(value: Operand, a: Operand, b: Operand, scale: Operand = 1) -> Number:
    """Add scale a b to the value."""
    return Number(f"({number(value)} + {scaled(a, scale)} * {number(b)})")


def addcdiv(value: Operand, a: Operand, b: Operand, scale: Operand = 1) -> Number:
    """Add scale a / b to the value."""
    return Number(f"({number(value)} + {scaled(a, scale)} / {number(b)})")


def softplus(value: Operand, beta: Any = 1, threshold: Any = 20) -> Number:
    """log(1 + exp(beta x)) / beta, but x where beta x is above the threshold."""
    x = number(value)
    soft = f"(log1p_(exp_({scaled(x, beta)})) / {number(beta)})"
    return Number(f"pick((mask)({scaled(x, beta)} > {number(threshold)}), {x}, {soft})")


def softplus_backward(gradient: Operand, value: Operand, beta: Any, threshold: Any) -> Number:
    """The derivative of softplus times a gradient."""
    g, x = number(gradient), number(value)
    steep = f"(mask)({scaled(x, beta)} > {number(threshold)})"
    return Number(f"pick({steep}, {g}, {g} / (all(1) + exp_(-{scaled(x, beta)})))")


def threshold_backward(gradient: Operand, value: Operand, threshold: Operand) -> Number:
    """The gradient where the value is above the threshold, else 0."""
    return Number(f"pick((mask)({number(value)} <= {number(threshold)}), all(0), {number(gradient)})")


def sigmoid_backward(gradient: Operand, output: Operand) -> Number:
    """The derivative of a sigmoid, computed from its output, times a gradient."""
    return Number(f"({number(gradient)} * (all(1) - {number(output)}) * {number(output)})")


def tanh_backward(gradient: Operand, output: Operand) -> Number:
    """The derivative of tanh, computed from its output, times a gradient."""
    return Number(f"({number(gradient)} * (all(1) - square({number(output)})))")


def cast(value: Operand, *_: object) -> Number | Mask:
    """The value itself. It is converted to torch's result dtype when it is stored."""
    return value if isinstance(value, Mask) else number(value)


LIBRARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos"),
    *("atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "floor", "ceil", "trunc"),
)
LIBRARY_OF_TWO = ("pow", "atan2", "fmod", "hypot")

POINTWISE: dict[str, Pointwise] = {
    **{name: call(name) for name in (*LIBRARY, "atan2", "fmod", "hypot")},
    **{name: compare(sign) for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{name: compare(sign) for name, sign in (("eq", "=="), ("ne", "!="))},
    **{
        name: logical(sign)
        for name, sign in (("logical_and", "&"), ("logical_or", "|"), ("logical_xor", "^"))
    },
    "add": add,
    "sub": sub,
    "rsub": lambda a, b, alpha=1: sub(b, a, alpha),
    "mul": infix("*"),
    "div": div,
    "neg": lambda a: Number(f"(-{number(a)})"),
    "reciprocal": lambda a: Number(f"(all(1) / {number(a)})"),
    "square": lambda a: power(a, 2.0),
    "pow": power,
    "rsqrt": lambda a: power(a, -0.5),
    "abs": lambda a: Number(f"magnitude({number(a)})"),
    "sign": lambda a: Number(f"sign({number(a)})"),
    "sgn": lambda a: Number(f"sign({number(a)})"),
    "round": lambda a: call("rint")(a),
    "sigmoid": lambda a: Number(f"(all(1) / (all(1) + exp_(-{number(a)})))"),
    "relu": lambda a: clamp(a, 0),
    "clamp": clamp,
    "clamp_min": lambda a, low: clamp(a, low),
    "clamp_max": lambda a, high: clamp(a, None, high),
    "hardtanh": lambda a, low=-1, high=1: clamp(a, low, high),
    "maximum": lambda a, b: Number(f"larger({number(a)}, {number(b)})"),
    "minimum": lambda a, b: Number(f"smaller({number(a)}, {number(b)})"),
    "lerp": lerp,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "softplus": softplus,
    "softplus_backward": softplus_backward,
    "threshold_backward": threshold_backward,
    "sigmoid_backward": sigmoid_backward,
    "tanh_backward": tanh_backward,
    "where": where,
    "masked_fill": lambda a, condition, value: where(condition, value, a),
    "logical_not": lambda a: Mask(f"(~{mask(a)})"),
    "isnan": lambda a: Mask(f"((mask)({number(a)} != {number(a)}))"),
    "isfinite": lambda a: Mask(f"((mask)(magnitude({number(a)}) < all(INFINITY)))"),
    "isinf": lambda a: Mask(f"((mask)(magnitude({number(a)}) == all(INFINITY)))"),
    "fill": lambda _, value: number(value),
    "zero": lambda _: number(0),
    "copy": lambda _, value, __=False: cast(value),
    "clone": cast,
    "_to_copy": cast,
    "lift_fresh_copy": cast,
    "bitwise_and": logical("&"),
    "bitwise_or": logical("|"),
    "bitwise_not": lambda a: Mask(f"(~{mask(a)})"),
}
"""Keys are the names of operations in torch, without the overload and without the underscore of in-place forms."""
