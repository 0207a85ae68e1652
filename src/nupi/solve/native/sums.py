"""Operations that add up or compare many elements: reductions and matrix products."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from nupi.solve.native.builder import Lane
from nupi.solve.native.operations import Mask, UnsupportedError, number
from nupi.solve.native.pieces import Fixed, Product, Read, Reduction

if TYPE_CHECKING:
    from collections.abc import Callable

    from nupi.solve.native.builder import Builder, Tensor
    from nupi.solve.native.pieces import Source


def total(build: Builder, given: Lane, dim: Any = None, keepdim: Any = 0, dtype: Any = None) -> Lane:
    """The sum over some dimensions, or over all."""
    if dtype not in (None, build.dtype):
        raise UnsupportedError(f"a sum in {dtype}")
    if given.buffer.truth:  # the number of true elements, which is exact in floating point
        counted = build.new(given.shape)
        build.compute(counted, number(Mask("{0}")), [given])
        given = counted
    return reduce(build, given, dim, keepdim, kind="sum")


def mean(build: Builder, given: Lane, dim: Any = None, keepdim: Any = 0, dtype: Any = None) -> Lane:
    """The mean over some dimensions, or over all."""
    added = total(build, given, dim, keepdim, dtype)
    found = build.new(added.shape)
    share = added.index.numel() / given.index.numel()
    build.compute(found, f"({{0}} * {number(share)})", [added])
    return found


def variance(build: Builder, given: Lane, dim: Any = None, correction: Any = None, keepdim: Any = 0) -> Lane:
    """The mean squared distance from the mean, over n - correction."""
    away, squares = build.new(given.shape), build.new(given.shape)
    build.compute(away, "({0} - {1})", [given, mean(build, given, dim, keepdim=True)])
    build.compute(squares, "square({0})", [away])
    added = total(build, squares, dim, keepdim)
    found = build.new(added.shape)
    terms = given.index.numel() / added.index.numel() - (1 if correction is None else correction)
    build.compute(found, f"({{0}} / {number(terms)})", [added])
    return found


def reduce(build: Builder, given: Lane, dim: Any = None, keepdim: Any = 0, *, kind: str) -> Lane:
    """Reduce over some dimensions: one result for each place in the others."""
    rank = given.index.dim()
    asked = [dim] if isinstance(dim, int) else dim
    gone = sorted({each % rank for each in asked}) if asked and rank else list(range(rank))
    kept = [each for each in range(rank) if each not in gone]
    inner = math.prod(given.shape[each] for each in gone)
    outer = math.prod(given.shape[each] for each in kept)
    index = given.index.permute(*kept, *gone).reshape(outer, inner)
    shape = [1 if each in gone else size for each, size in enumerate(given.shape)]
    lane = build.new(shape if keepdim else [given.shape[each] for each in kept])
    operand = Read(given.buffer, build.tables.access(index))
    build.schedule.add(Reduction(kind, lane.buffer, (operand,), outer, inner))
    return lane


def product(build: Builder, first: Tensor, second: Tensor) -> Lane:
    """The matrix product, also of vectors and of batches of matrices."""
    a, b = _positions(first), _positions(second)
    shape = torch.matmul(torch.empty(a.shape, device="meta"), torch.empty(b.shape, device="meta")).shape
    left = a.unsqueeze(0) if a.dim() == 1 else a
    right = b.unsqueeze(-1) if b.dim() == 1 else b
    lane = build.new(shape)
    rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    if left.dim() == 2 and right.dim() == 2:
        places = lane.index.reshape(rows, columns)
        if isinstance(first, torch.Tensor) and isinstance(second, Lane):
            _by_constant(build, lane, first.reshape(rows, inner), Lane(second.buffer, right), places)
            return lane
        if isinstance(second, torch.Tensor) and isinstance(first, Lane):
            turned = second.reshape(inner, columns).t()
            _by_constant(build, lane, turned, Lane(first.buffer, left.t()), places.t())
            return lane
    # One result for each matrix of the batch, row and column; each is a sum of products.
    every = (*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), rows, columns, inner)
    pairs = (
        (first, left.unsqueeze(-2).expand(every)),
        (second, right.transpose(-1, -2).unsqueeze(-3).expand(every)),
    )
    operands = tuple(_placed(build, value, index.reshape(-1, inner)) for value, index in pairs)
    build.schedule.add(Reduction("sum", lane.buffer, operands, math.prod(every[:-1]), inner))
    return lane


def add_product(
    build: Builder, start: Tensor, first: Tensor, second: Tensor, beta: Any = 1, alpha: Any = 1
) -> Lane:
    """The matrix product times alpha, plus a tensor times beta."""
    found = product(build, first, second)
    result = build.new(found.shape)
    build.compute(result, f"({number(beta)} * {{0}} + {number(alpha)} * {{1}})", [start, found])
    return result


def _placed(build: Builder, value: Tensor, index: torch.Tensor) -> Source:
    access = build.tables.access(index)
    return Read(value.buffer, access) if isinstance(value, Lane) else Fixed(build.keep(value), access)


def _by_constant(
    build: Builder, target: Lane, matrix: torch.Tensor, operand: Lane, places: torch.Tensor
) -> None:
    rows, inner = matrix.shape
    read = Read(operand.buffer, build.tables.access(operand.index))
    where, columns = build.tables.access(places), operand.index.shape[1]
    build.schedule.add(Product(target.buffer, build.keep(matrix), read, rows, inner, columns, where))


def _positions(value: Tensor) -> torch.Tensor:
    """The index of each element of a value, in the value's shape."""
    if isinstance(value, Lane):
        return value.index
    return torch.arange(value.numel()).reshape(value.shape)


SUMS: dict[str, Callable[..., Lane]] = {
    "sum": total,
    "mean": mean,
    "var": variance,
    "amax": partial(reduce, kind="larger"),
    "amin": partial(reduce, kind="smaller"),
    "max": partial(reduce, kind="larger"),
    "min": partial(reduce, kind="smaller"),
}
"""Keys are the names of operations in torch; arguments are passed by name, the first tensor as `given`."""
PRODUCTS: dict[str, Callable[..., Lane]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), product),
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), add_product),
}
"""Keys are the names of operations in torch; arguments are passed by position."""
