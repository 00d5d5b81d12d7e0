"""C source of the fused convolution, written out from a plan.

With T[m1, m3](e) = Σ_m2 CG Y[e, m2], computed once per edge, a path sends
R[pair(e)] · Σ_m1 T[m1, m3] x[sender(e), m1] into its row m3 of the receiver. Four passes follow:

  forward          out, by receiver
  backward         gradients of x, Y and R, by pair: both edges of a pair meet there, so that its
                   row of R is read once and its gradient written once
  double_receiver  the gradient of `backward` with respect to g, by receiver
  double_pairs     the gradients of `backward` with respect to x, Y and R, by pair

Inner loops run over LANES contiguous channels as one vector; channels are a multiple of LANES.
Passes by receiver own their output rows. Passes by pair add into rows of gx that several pairs
share: each thread has its own copy, and the copies are added in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.plan import Plan
from bayrace.nn.sources import assembled, source_text

T_BUFFER = 4096
"""Numbers of T kept at a time for a receiver: half of a usual L1 cache in single precision."""


def generate(plan: Plan) -> str:
    """C source of the four passes; REAL and LANES are set when compiling."""
    blocks, count = blocks_of(plan)
    sizes = sizes_of(plan, count) | {"CHUNK": max(4, min(32, T_BUFFER // count))}
    bodies = {
        "signs": signs(plan),
        "couple": couple(blocks),
        "forward": "\n".join(map(forward_path, blocks)),
        "backward": "\n".join(map(backward_path, blocks)),
        "double_receiver": "\n".join(map(tangent_path, blocks)),
        "double_pairs": "\n".join(map(_double_pairs_path, blocks)),
    }
    return assembled(source_text("convolution.c"), bodies, sizes)


def coupling_count(plan: Plan) -> int:
    """Non-zero T[m1, m3] over all paths: the multiply-adds per edge and channel."""
    return blocks_of(plan)[1]


@dataclass(frozen=True)
class Block:
    """One path: where it reads and writes, and its non-zero couplings."""

    index: int  # row of R
    source: int  # first component in x
    source_dim: int
    rows: tuple[int, ...]  # output row of each m3
    couplings: dict[tuple[int, int], int]  # (m1, m3) -> index into T
    terms: dict[tuple[int, int], list[tuple[int, float]]]  # (m1, m3) -> [(component of Y, CG)]

    def into(self, m3: int) -> list[tuple[int, int]]:
        """The (m1, index into T) that reach m3."""
        return [(m1, i) for (m1, target), i in self.couplings.items() if target == m3]

    def out_of(self, m1: int) -> list[tuple[int, int]]:
        """The (m3, index into T) that m1 reaches."""
        return [(m3, i) for (source, m3), i in self.couplings.items() if source == m1]


def sizes_of(plan: Plan, couplings: int) -> dict[str, int]:
    """What C code of a plan calls its dimensions."""
    return {
        "PATHS": len(plan.paths),
        "INPUTS": plan.input_dim,
        "HARMONICS": plan.harmonics_dim,
        "ROWS": plan.rows,
        "COUPLINGS": couplings,
    }


def blocks_of(plan: Plan) -> tuple[list[Block], int]:
    """All paths of a plan, and how many couplings they have together."""
    blocks, count = [], 0
    for index, (source, degree, target) in enumerate(plan.paths):
        table = clebsch_gordan(source.l, degree, target.l)
        terms: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for m1, m2, m3 in np.argwhere(np.abs(table) > 1e-10).tolist():
            terms.setdefault((m1, m3), []).append((degree**2 + m2, float(table[m1, m2, m3])))
        order = sorted(terms, key=lambda pair: (pair[1], pair[0]))
        couplings = {pair: count + i for i, pair in enumerate(order)}
        count += len(order)
        start = plan.input_offset[source]
        rows = plan.path_rows[index]
        blocks.append(Block(index, start, source.dim, rows, couplings, terms))
    return blocks, count


def signs(plan: Plan) -> str:
    """Of the harmonics of a pair's first edge, and of its reverse."""
    degrees = [degree for degree in range(plan.l_max + 1) for _ in range(2 * degree + 1)]
    rows = (["1" for _ in degrees], [str((-1) ** degree) for degree in degrees])
    return ",\n".join("{" + ", ".join(row) + "}" for row in rows)


def couple(blocks: list[Block]) -> str:
    """T of every path, t[i], from the harmonics y."""
    return "\n".join(
        f"t[{i}] = " + " + ".join(f"(real){cg!r} * y[{m2}]" for m2, cg in block.terms[pair]) + ";"
        for block in blocks
        for pair, i in block.couplings.items()
    )


def dot(factor: str, values: str, terms: list[tuple[int, int]]) -> str:
    """Σ factor[i] · values, written out."""
    return " + ".join(f"{factor}[{i}] * {values}{m}" for m, i in terms)


def each(count: int, template: str) -> str:
    """A template with # replaced by 0, 1, ..."""
    return " ".join(template.replace("#", str(m)) for m in range(count))


def _accumulators(block: Block) -> tuple[str, str]:
    opening = each(len(block.rows), "vec a# = {0};")
    closing = " ".join(
        f"put(o + {row} * channels + c, a{m3}, begin > start);" for m3, row in enumerate(block.rows)
    )
    return opening, closing


def load_rows(name: str, base: str, first: int, count: int) -> str:
    """Vectors name0, name1, ... from consecutive rows."""
    return " ".join(
        f"vec {name}{m} = AT({base} + {first + m} * channels + c);" for m in range(count)
    )


def forward_path(block: Block) -> str:
    """Messages of one path, summed over the edges of a chunk."""
    opening, closing = _accumulators(block)
    sums = " ".join(
        f"a{m3} += {dot('t', 'q', block.into(m3))};"
        for m3 in range(len(block.rows))
        if block.into(m3)
    )
    return f"""{{ {opening}
  for (long k = 0; k < size; k++) {{
    const real *t = table + k * COUPLINGS;
    vec w = AT(rs[k] + {block.index} * channels + c);
    {load_rows("x", "xs[k]", block.source, block.source_dim)}
    {each(block.source_dim, "vec q# = w * x#;")}
    {sums}
  }}
  {closing} }}"""


def tangent_path(block: Block) -> str:
    """The change of `forward` with x, Y and R."""
    opening, closing = _accumulators(block)
    sums = " ".join(
        f"a{m3} += {dot('t', 'q', block.into(m3))}; b{m3} += {dot('u', 'p', block.into(m3))};"
        for m3 in range(len(block.rows))
        if block.into(m3)
    )
    moved = load_rows("d", "vxs[k]", block.source, block.source_dim)
    moved += each(block.source_dim, "vec q# = w * d# + v * x#;")
    return f"""{{ {opening} {each(len(block.rows), "vec b# = {0};")}
  for (long k = 0; k < size; k++) {{
    const real *t = table + k * COUPLINGS, *u = tangent + k * COUPLINGS;
    vec w = AT(rs[k] + {block.index} * channels + c);
    vec v = AT(vrs[k] + {block.index} * channels + c);
    {load_rows("x", "xs[k]", block.source, block.source_dim)}
    {moved}
    {each(block.source_dim, "vec p# = w * x#;")}
    {sums}
  }}
  {each(len(block.rows), "a# += b#;")}
  {closing} }}"""


def gather_rows(block: Block) -> str:
    """Vectors g0, g1, ... of the rows that a path writes to."""
    return " ".join(f"vec g{m3} = AT(g + {row} * channels);" for m3, row in enumerate(block.rows))


def reached_rows(block: Block) -> list[int]:
    """The m3 that have a coupling."""
    return [m3 for m3 in range(len(block.rows)) if block.into(m3)]


def harmonics_gradient(block: Block, values: str) -> str:
    """Add Σ CG g x, with x the named values, to the vectors z of the harmonics' gradient."""
    components = sorted({m2 for terms in block.terms.values() for m2, _ in terms})
    lines = [f"vec z{m2} = z[{m2}];" for m2 in components]
    for (m1, m3), terms in block.terms.items():
        lines.append(f"{{ vec product = g{m3} * {values}{m1};")
        lines += [f"z{m2} += (real){cg!r} * product;" for m2, cg in terms]
        lines.append("}")
    lines += [f"z[{m2}] = z{m2};" for m2 in components]
    return " ".join(lines)


def backward_path(block: Block) -> str:
    """Gradients of one path at a pair: of x, Y and R."""
    reached = reached_rows(block)
    radial = " ".join(f"gw += g{m3} * ({dot('t', 'x', block.into(m3))});" for m3 in reached)
    scaled = " ".join(f"g{m3} *= w;" for m3 in reached)
    features = " ".join(
        f"AT(gx + {block.source + m1} * channels) += {dot('t', 'g', block.out_of(m1))};"
        for m1 in range(block.source_dim)
        if block.out_of(m1)
    )
    harmonics = harmonics_gradient(block, "x")
    loads = load_rows("x", "x_of[side]", block.source, block.source_dim)
    return f"""{{ vec w = AT(r_of + {block.index} * channels + c), gw = {{0}};
  for (int side = 0; side < 2; side++) {{
    const real *t = table[side], *g = g_of[side] + c; real *gx = gx_of[side] + c;
    vec *z = sums[side];
    {loads} {gather_rows(block)}
    if (want_r) {{ {radial} }}
    {scaled}
    if (want_x) {{ {features} }}
    if (want_y) {{ {harmonics} }}
  }}
  if (want_r) AT(gr_of + {block.index} * channels + c) = gw; }}"""


def _double_pairs_path(block: Block) -> str:
    reached = reached_rows(block)
    radial = " ".join(
        f"gw += g{m3} * ({dot('t', 'd', block.into(m3))} + {dot('u', 'x', block.into(m3))});"
        for m3 in reached
    )
    scaled = " ".join(f"vec h{m3} = g{m3} * w, l{m3} = g{m3} * v;" for m3 in reached)
    features = " ".join(
        f"AT(gx + {block.source + m1} * channels) += "
        f"{dot('u', 'h', block.out_of(m1))} + {dot('t', 'l', block.out_of(m1))};"
        for m1 in range(block.source_dim)
        if block.out_of(m1)
    )
    mixed = each(block.source_dim, "vec q# = w * d# + v * x#;")
    harmonics = harmonics_gradient(block, "q")
    return f"""{{ vec w = AT(r_of + {block.index} * channels + c), gw = {{0}};
  vec v = AT(vr_of + {block.index} * channels + c);
  for (int side = 0; side < 2; side++) {{
    const real *t = table[side], *u = tangent[side], *g = g_of[side] + c;
    real *gx = gx_of[side] + c; vec *z = sums[side];
    {load_rows("x", "x_of[side]", block.source, block.source_dim)}
    {load_rows("d", "vx_of[side]", block.source, block.source_dim)}
    {gather_rows(block)}
    if (want_r) {{ {radial} }}
    if (want_x) {{ {scaled} {features} }}
    if (want_y) {{ {mixed} {harmonics} }}
  }}
  if (want_r) AT(gr_of + {block.index} * channels + c) = gw; }}"""
