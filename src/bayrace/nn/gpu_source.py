"""Triton source of the fused convolution, written out from a plan.

Φ(g, x, Y, R) = Σ_n g[n] · out[n] is linear in each of its arguments, so three kernels give all of
its gradients, and sums of them every higher derivative (bayrace.nn.fused):

  by_receiver  out = ∂Φ/∂g: a program adds up the messages into one atom
  by_sender    ∂Φ/∂x: one atom again, over the same edges read backwards
  by_pair      ∂Φ/∂Y and ∂Φ/∂R: a program has both edges of one pair

A program owns what it writes, for BLOCK channels at a time: nothing is added atomically, so that
results are the same every time. The edges that an atom sends are the reverses of those it receives,
with the same R and Y_l(-r) = (-1)^l Y_l(r).
"""

from __future__ import annotations

from collections.abc import Iterable

from bayrace.nn.codegen import Block, blocks_of
from bayrace.nn.plan import Plan


def generate(plan: Plan) -> str:
    """Python source of the three kernels."""
    blocks, _ = blocks_of(plan)
    return "\n\n".join(
        (_by_receiver(plan, blocks), _by_sender(plan, blocks), _by_pair(plan, blocks))
    )


def _by_receiver(plan: Plan, blocks: list[Block]) -> str:
    body = [*_harmonics(plan), *_loads("x", "x", "other", plan.input_dim)]
    for block in blocks:
        body += [_weight(plan, block), *_couplings(block)]
        for m3, row in enumerate(block.rows):
            terms = (f"t{i} * x{block.source + m1}" for m1, i in block.into(m3))
            body.append(f"o{row} += w * ({_sum(terms)})")
    return _by_atom("by_receiver", "x", plan.rows, body, first_edge="1.0, -1.0")


def _by_sender(plan: Plan, blocks: list[Block]) -> str:
    body = [*_harmonics(plan), *_loads("g", "g", "other", plan.rows)]
    for block in blocks:
        body += [_weight(plan, block), *_couplings(block)]
        for m1 in range(block.source_dim):
            terms = [f"t{i} * g{block.rows[m3]}" for m3, i in block.out_of(m1)]
            if terms:
                body.append(f"o{block.source + m1} += w * ({_sum(terms)})")
    return _by_atom("by_sender", "g", plan.input_dim, body, first_edge="-1.0, 1.0")


def _by_atom(name: str, read: str, rows: int, body: Iterable[str], *, first_edge: str) -> str:
    """A kernel that owns one atom's rows; `first_edge`: sign of odd harmonics there, and else."""
    return "\n".join(
        (
            "@triton.jit",
            f"def {name}(first, sender, pair, pair_edges, {read}, y, r, out, channels,",
            "            BLOCK: tl.constexpr):",
            "    atom = tl.program_id(0).to(tl.int64)",
            "    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)",
            "    inside = lane < channels",
            *(f"    o{row} = tl.zeros([BLOCK], out.dtype.element_ty)" for row in range(rows)),
            "    begin = tl.load(first + atom)",
            "    end = tl.load(first + atom + 1)",
            "    for edge in range(begin, end):",
            "        p = tl.load(pair + edge)",
            "        other = tl.load(sender + edge)",
            f"        sign = tl.where(tl.load(pair_edges + p) == edge, {first_edge})",
            *(f"        {line}" for line in body),
            *(_store("out", "atom", rows, row, f"o{row}", indent=4) for row in range(rows)),
        )
    )


def _by_pair(plan: Plan, blocks: list[Block]) -> str:
    paths, harmonics = len(plan.paths), plan.harmonics_dim
    body = [
        *_harmonics(plan),
        *_loads("x", "x", "source", plan.input_dim),
        *_loads("g", "g", "target", plan.rows),
    ]
    for block in blocks:
        body += [_weight(plan, block), *_couplings(block)]
        for (m1, m3), i in block.couplings.items():
            product = f"x{block.source + m1} * g{block.rows[m3]}"
            body += [f"u = {product}", f"d{block.index} += t{i} * u", "u = u * w"]
            body += [
                f"e{m2} += {cg!r} * u" + (" * sign" if _odd(m2) else "")
                for m2, cg in block.terms[m1, m3]
            ]
    zero = "tl.zeros([BLOCK], y.dtype.element_ty)"
    return "\n".join(
        (
            "@triton.jit",
            "def by_pair(receiver, sender, pair_edges, g, x, y, r, gy, gr, pairs, channels,",
            "            BLOCK: tl.constexpr):",
            "    p = tl.program_id(0).to(tl.int64)",
            *(f"    e{m2} = {zero}" for m2 in range(harmonics)),
            "    for start in range(0, channels, BLOCK):",
            "        lane = start + tl.arange(0, BLOCK)",
            "        inside = lane < channels",
            *(f"        d{k} = {zero}" for k in range(paths)),
            "        for side in range(2):",
            "            edge = tl.load(pair_edges + side * pairs + p)",
            "            target = tl.load(receiver + edge)",
            "            source = tl.load(sender + edge)",
            "            sign = 1.0 - 2.0 * side",
            *(f"            {line}" for line in body),
            *(_store("gr", "p", paths, k, f"d{k}", indent=8) for k in range(paths)),
            *(
                f"    tl.store(gy + p * {harmonics} + {m2}, tl.sum(e{m2}, 0))"
                for m2 in range(harmonics)
            ),
        )
    )


def _harmonics(plan: Plan) -> list[str]:
    """Y of the edge, from that of the first edge of its pair."""
    count = plan.harmonics_dim
    return [
        f"y{m2} = tl.load(y + p * {count} + {m2})" + (" * sign" if _odd(m2) else "")
        for m2 in range(count)
    ]


def _odd(m2: int) -> bool:
    """Whether a component of Y changes its sign with the direction."""
    return bool(int(m2**0.5) % 2)


def _loads(name: str, array: str, atom: str, rows: int) -> list[str]:
    """All rows of an atom."""
    return [f"{name}{row} = {_load(array, atom, rows, row)}" for row in range(rows)]


def _weight(plan: Plan, block: Block) -> str:
    return f"w = {_load('r', 'p', len(plan.paths), block.index)}"


def _couplings(block: Block) -> list[str]:
    """T of a path from the harmonics."""
    return [
        f"t{i} = " + _sum(f"{cg!r} * y{m2}" for m2, cg in block.terms[pair])
        for pair, i in block.couplings.items()
    ]


def _load(array: str, item: str, rows: int, row: int) -> str:
    return f"tl.load({array} + ({item} * {rows} + {row}) * channels + lane, inside, 0.0)"


def _store(array: str, item: str, rows: int, row: int, value: str, *, indent: int) -> str:
    place = f"{array} + ({item} * {rows} + {row}) * channels + lane"
    return " " * indent + f"tl.store({place}, {value}, inside)"


def _sum(terms: Iterable[str]) -> str:
    return " + ".join(terms)
