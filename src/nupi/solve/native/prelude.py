"""The part of the C program that is the same for every problem: vectors, selection, and the maths library."""

from __future__ import annotations

from nupi.solve.native.operations import LIBRARY, LIBRARY_OF_TWO

_VECTORS = """
#include <math.h>
#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define W ((int)(BYTES / sizeof(real)))

/* One number for each of W settings. */
typedef real vec __attribute__((vector_size(BYTES)));
typedef whole mask __attribute__((vector_size(BYTES)));

static inline vec all(real value) { return value - (vec){0}; }
static inline vec pick(mask c, vec a, vec b) { return (vec)((c & (mask)a) | (~c & (mask)b)); }
static inline vec square(vec a) { return a * a; }
static inline vec cube(vec a) { return a * a * a; }
static inline vec magnitude(vec a) { return pick((mask)(a <= all(0)), all(0) - a, a); }
static inline vec sign(vec a) { return pick((mask)(a > all(0)), all(1), pick((mask)(a < all(0)), all(-1), all(0))); }

/* Of two numbers; nan if one of them is. */
static inline vec larger(vec a, vec b) { return pick((mask)(a > b) | (mask)(a != a), a, b); }
static inline vec smaller(vec a, vec b) { return pick((mask)(a < b) | (mask)(a != a), a, b); }
/* The bound is a number; nan if a is. */
static inline vec atleast(vec a, vec low) { return pick((mask)(a < low), low, a); }
static inline vec atmost(vec a, vec high) { return pick((mask)(a > high), high, a); }

static inline vec between(vec a, vec b, vec w) {
  vec gap = b - a;
  return pick((mask)(magnitude(w) < all(0.5)), a + w * gap, b - gap * (all(1) - w));
}
"""


def prelude(body: str, *, double: bool) -> str:
    """The C text before the step, with the functions of the maths library that its body calls."""
    suffix = "" if double else "f"
    kinds = ("double", "long long") if double else ("float", "int")
    parts = [f"typedef {kinds[0]} real;\ntypedef {kinds[1]} whole;", _VECTORS]
    calls = [(name, "a[i]", "vec a") for name in (*LIBRARY, "rint")]
    calls += [(name, "a[i], b[i]", "vec a, vec b") for name in LIBRARY_OF_TWO]
    for name, given, taken in calls:
        if f"{name}_(" in body:
            loop = f"vec r; for (int i = 0; i < W; i++) r[i] = {name}{suffix}({given}); return r;"
            parts.append(f"static inline vec {name}_({taken}) {{ {loop} }}")
    return "\n".join(parts) + "\n"
