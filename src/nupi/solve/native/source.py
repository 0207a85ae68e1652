"""Write the C program of a step: the pieces, inside a loop over settings and steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nupi.solve.native.pieces import Fixed, Loop, Product, Reduction
from nupi.solve.native.prelude import prelude

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nupi.solve.native.pieces import Buffer, Piece, Read, Source

_ACCUMULATORS = 12  # sums in registers: of the 16 vector registers that every machine has,
_MORE_ACCUMULATORS = 18  # and of the 32 with AVX-512, where each load serves 1.5 times as many sums
_RUN = 256  # terms summed in one run; rounding errors grow with this, not with the number of all terms

_FRAME = """
static void load(vec *to, const real *from, long rows, long stride, long first, long last) {
  for (long r = 0; r < rows; r++)
    for (int i = 0; i < W; i++) to[r][i] = from[r * stride + (first + i < last ? first + i : last)];
}

static void store(const vec *from, real *to, long rows, long stride, long first, long last) {
  for (long r = 0; r < rows; r++)
    for (int i = 0; i < W && first + i <= last; i++) to[r * stride + first + i] = from[r][i];
}

long scratch(void) { return V * sizeof(lanes); }
long width(void) { return V * W; }

/* Settings begin .. end - 1; the empty lanes of the last group repeat the last setting. */
void run(long begin, long end, long steps, lanes *b, real *const *x, const long *stride, const real *const *k,
         const int *const *t) {
  for (long c = begin; c < end; c += V * W) {
    for (int l = 0; l < V; l++) {
      lanes *s = b + l;
      long first = c + l * W, last = end - 1;
%(loads)s
    }
    for (long n = 0; n < steps; n++) step(b, k, t);
    for (int l = 0; l < V; l++) {
      lanes *s = b + l;
      long first = c + l * W, last = end - 1;
%(stores)s
    }
  }
}
"""


def program(
    pieces: Sequence[Piece],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    *,
    double: bool,
    groups: int,
) -> str:
    """The C program that runs the pieces in order, for `groups` vectors of settings at a time.

    Args:
        pieces: the pieces of one step.
        inputs: buffers loaded before the first step; those that are written are stored after the last.
        outputs: buffers that are only stored after the last step.
        double: float64 if True, else float32.
        groups: how many vectors of settings share one pass over a constant matrix.
    """
    body = [line for piece in pieces for line in _write(piece, pieces, groups)]
    text = "\n".join(body)
    written = {buffer for piece in pieces for buffer in piece.writes}
    kept = [
        buffer
        for buffer in _buffers(pieces, inputs, outputs)
        if buffer.lasting or f"->{buffer.name}[" in text
    ]
    members = "\n".join(f"  {'mask' if b.truth else 'vec'} {b.name}[{b.size}];" for b in kept)

    def move(how: str, number: int, buffer: Buffer) -> str:
        return f"      {how}(s->{buffer.name}, x[{number}], {buffer.size}, stride[{number}], first, last);"

    loads = [move("load", number, buffer) for number, buffer in enumerate(inputs)]
    stores = [
        move("store", number, buffer)
        for number, buffer in enumerate([*inputs, *outputs])
        if buffer in written or number >= len(inputs)
    ]
    frame = _FRAME % {"loads": "\n".join(loads), "stores": "\n".join(stores)}
    return (
        f"{prelude(text, double=double)}\n#define V {groups}\n\ntypedef struct {{\n{members}\n}} lanes;\n\n"
        "static void step(lanes *restrict b, const real *const *k, const int *const *t) {\n"
        f"{text}\n}}\n{frame}"
    )


def _buffers(pieces: Sequence[Piece], *ends: Sequence[Buffer]) -> list[Buffer]:
    """All buffers, each once, in the same order in every process."""
    found = {buffer: None for end in ends for buffer in end}
    for piece in pieces:
        for buffer in sorted(piece.reads | piece.writes, key=lambda each: each.name):
            found[buffer] = None
    return list(found)


def _write(piece: Piece, pieces: Sequence[Piece], groups: int) -> list[str]:
    if isinstance(piece, Product):
        return _product(piece, groups)
    inner = _loop(piece, pieces) if isinstance(piece, Loop) else _reduction(piece)
    return ["  for (int l = 0; l < V; l++) {", "    lanes *s = b + l;", *inner, "  }"]


def _operand(source: Source, *place: str) -> str:
    where = source.access.at(*place)
    if isinstance(source, Fixed):
        value = f"all(k[{source.number}][{where}])"
        return f"((mask)({value} != all(0)))" if source.truth else value
    return f"s->{source.buffer.name}[{where}]"


def _loop(loop: Loop, pieces: Sequence[Piece]) -> list[str]:
    """One pass: loads, statements in registers, and stores of values that other pieces read."""
    elsewhere = {buffer for piece in pieces if piece is not loop for buffer in piece.reads}
    before: list[str] = []
    body: list[str] = []
    names: dict[Source, str] = {}
    stores: dict[Read, str] = {}

    def define(lines: list[str], expression: str, *, truth: bool) -> str:
        name = f"r{len(before) + len(body)}"
        lines.append(f"const {'mask' if truth else 'vec'} {name} = {expression};")
        return name

    for statement in loop.statements:
        for operand in statement.operands:
            if operand in names:
                continue
            truth = operand.truth if isinstance(operand, Fixed) else operand.buffer.truth
            still = isinstance(operand, Fixed) or operand.buffer not in loop.writes
            lines = before if operand.access.fixed and still else body
            names[operand] = define(lines, _operand(operand, "i"), truth=truth)
        target = statement.target
        expression = statement.expression.format(*(names[operand] for operand in statement.operands))
        names[target] = define(body, expression, truth=target.buffer.truth)
        if target.buffer.lasting or target.buffer in elsewhere:
            stores[target] = names[target]
    body += [f"{_operand(target, 'i')} = {name};" for target, name in stores.items()]
    if loop.size == 1:
        return [f"    {line}" for line in ("const int i = 0;", "(void)i;", *before, *body)]
    head = f"    for (int i = 0; i < {loop.size}; i++) {{"
    return [*(f"    {line}" for line in before), head, *(f"      {line}" for line in body), "    }"]


def _reduction(piece: Reduction) -> list[str]:
    def term(r: str) -> str:
        return " * ".join(_operand(operand, "o", r) for operand in piece.operands)

    if piece.kind != "sum":
        inner = [
            f"vec total = {term('0')};",
            f"for (int r = 1; r < {piece.inner}; r++) total = {piece.kind}(total, {term('r')});",
        ]
    else:
        inner = [
            "vec total = all(0);",
            f"for (int a = 0; a < {piece.inner}; a += {_RUN}) {{",
            f"  const int z = a + {_RUN} < {piece.inner} ? a + {_RUN} : {piece.inner};",
            "  vec p0 = all(0), p1 = all(0), p2 = all(0), p3 = all(0);",
            "  int r = a;",
            "  for (; r + 4 <= z; r += 4) {",
            *(f"    p{i} += {term(f'r + {i}' if i else 'r')};" for i in range(4)),
            "  }",
            f"  for (; r < z; r++) p0 += {term('r')};",
            "  total += (p0 + p1) + (p2 + p3);",
            "}",
        ]
    inner.append(f"s->{piece.target.name}[o] = total;")
    return [f"    for (int o = 0; o < {piece.outer}; o++) {{", *(f"      {line}" for line in inner), "    }"]


def _product(piece: Product, groups: int) -> list[str]:
    """The product in tiles of a few rows, for all groups of settings at once; all sums of a tile are in registers.

    The number of rows of a tile does not change results: each sum has its terms in the same order.
    """
    few = _tiles(piece, max(1, _ACCUMULATORS // groups), groups)
    if groups == 1:  # a small matrix, which stays in the nearest cache
        return few
    many = _tiles(piece, _MORE_ACCUMULATORS // groups, groups)
    return ["#if defined(__AVX512F__)", *many, "#else", *few, "#endif"]


def _tiles(piece: Product, height: int, groups: int) -> list[str]:
    full = piece.rows // height * height
    lines = [f"  for (int q = 0; q < {piece.columns}; q++) {{"]
    if full:
        lines.append(f"    for (int i = 0; i < {full}; i += {height}) {{")
        lines += [f"      {line}" for line in _tile(piece, height, groups, "i")]
        lines.append("    }")
    if piece.rows > full:
        lines.append("    {")
        lines += [f"      {line}" for line in _tile(piece, piece.rows - full, groups, str(full))]
        lines.append("    }")
    return [*lines, "  }"]


def _tile(piece: Product, height: int, groups: int, first: str) -> list[str]:
    sums = [(row, group) for row in range(height) for group in range(groups)]
    lines = [f"const real *m = k[{piece.constant}] + (long)({first}) * {piece.inner};"]
    lines.append("vec " + ", ".join(f"a{row}_{group} = all(0)" for row, group in sums) + ";")
    lines.append(f"for (int j = 0; j < {piece.inner}; j++) {{")
    name, where = piece.operand.buffer.name, piece.operand.access.at("j", "q")
    lines += [f"  const vec x{group} = (b + {group})->{name}[{where}];" for group in range(groups)]
    for row in range(height):
        lines.append(f"  const vec m{row} = all(m[{row * piece.inner} + j]);")
        lines += [f"  a{row}_{group} += m{row} * x{group};" for group in range(groups)]
    lines.append("}")
    for row, group in sums:
        place = piece.places.at(f"{first} + {row}", "q")
        lines.append(f"(b + {group})->{piece.target.name}[{place}] = a{row}_{group};")
    return lines
