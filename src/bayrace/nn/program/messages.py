"""C source of messages with the radial splines inside, written out from a plan.

`send` sums messages at their receivers, `send_back` gives the gradients by positions,
`send_tangent` the change of the messages when positions move, and `send_reverse` the gradients by
parameters of both: of the messages and of what `send_back` gave. Paths and their couplings are
those of `bayrace.nn.codegen`; paths that read the same rows of x are written together, as many as
the registers hold, so that x is loaded and its gradient stored once for all of them.

Both edges of a pair have the same couplings T. Harmonics of odd degree change their sign with the
direction, and so do, instead, the radial weights of odd paths: by f, which is 1 or -1.
"""

from __future__ import annotations

from bayrace.nn.codegen import (
    Block,
    blocks_of,
    couple,
    each,
    gather_rows,
    harmonics_gradient,
    load_rows,
    reached_rows,
    sizes_of,
)
from bayrace.nn.plan import Plan
from bayrace.nn.sources import assembled, source_text

PASSES = ("send_reverse", "send_back", "send_tangent", "send")
CHUNK = 8  # edges of a receiver at a time: their radial weights stay in the first cache


def generate(plan: Plan, channels: int, *, fixed: bool, registers: int) -> str:
    """C source of the four passes; REAL, LANES and the pass are set when compiling.

    Where features are `fixed`, they do not move with the positions, as in the first layer.
    """
    blocks, count = blocks_of(plan)
    sizes = sizes_of(plan, count) | {"CHANNELS": channels, "CHUNK": CHUNK}
    writer = _Writer(plan, fixed)
    sums = _groups(blocks, registers // 2 - 2)
    pairs = _groups(blocks, registers // 4)
    bodies = {
        "odd": ", ".join(str(degree % 2) for _, degree, _ in plan.paths),
        "couple": couple(blocks),
        "forward": "\n".join(map(writer.forward, sums)),
        "tangent": "\n".join(map(writer.tangent, _groups(blocks, registers // 4))),
        "backward": "\n".join(map(writer.backward, pairs)),
        "reverse": "\n".join(map(writer.reverse, pairs)),
    }
    return assembled(source_text("messages.c", package=__package__), bodies, sizes)


Group = list[Block]
"""Paths that read the same rows of x."""


def _groups(blocks: list[Block], most: int) -> list[Group]:
    """Paths by what they read, with at most so many rows of the output in a group, or one path."""
    groups: list[Group] = []
    for block in sorted(blocks, key=lambda block: block.source):
        last = groups[-1] if groups else []
        rows = sum(len(other.rows) for other in last) + len(block.rows)
        if last and last[0].source == block.source and rows <= most:
            last.append(block)
        else:
            groups.append([block])
    return groups


class _Writer:
    """The bodies of the passes for a group of paths."""

    def __init__(self, plan: Plan, fixed: bool) -> None:
        self.fixed = fixed
        self.odd = [degree % 2 for _, degree, _ in plan.paths]

    def forward(self, group: Group) -> str:
        """Messages of a group, summed over the edges of a chunk."""
        lines = []
        for block in group:
            lines.append(f"{{ {_radial('w', 'rs[k]', block)}")
            lines.append(each(block.source_dim, "vec q# = w * x#;"))
            lines += [
                f"{_sum('a', block, m3)} += {_dot('t', 'q', block.into(m3))};"
                for m3 in reached_rows(block)
            ]
            lines.append("}")
        return _by_receiver(group, "", lines, "a")

    def tangent(self, group: Group) -> str:
        """The change of `forward` with x, T and R."""
        moved, change = "", "vec q# = v * x#;"
        if not self.fixed:
            moved = load_rows("d", "vxs[k]", group[0].source, group[0].source_dim)
            change = "vec q# = w * d# + v * x#;"
        lines = []
        for block in group:
            lines.append(f"{{ {_radial('w', 'rs[k]', block)} {_radial('v', 'vrs[k]', block)}")
            lines.append(each(block.source_dim, f"{change} vec p# = w * x#;"))
            for m3 in reached_rows(block):
                into = block.into(m3)
                lines.append(f"{_sum('a', block, m3)} += {_dot('t', 'q', into)};")
                lines.append(f"{_sum('b', block, m3)} += {_dot('u', 'p', into)};")
            lines.append("}")
        return _by_receiver(group, f"const real *u = tangent + k; {moved}", lines, "ab")

    def backward(self, group: Group) -> str:
        """Gradients of a group at a pair: of x, Y and R."""
        lines = []
        for block in group:
            reached, flip = reached_rows(block), self._flip(block)
            radial = " + ".join(f"g{m3} * ({_dot('t', 'x', block.into(m3))})" for m3 in reached)
            lines.append(f"{{ vec w = {flip}AT(r_of + {block.index} * channels + c);")
            lines.append(f"{gather_rows(block)} gw{block.index} += {flip}({radial});")
            lines += [f"g{m3} *= w;" for m3 in reached]
            for m1, terms in _leaving(block):
                lines.append(f"e{m1} += {_dot('t', 'g', terms)};")
            lines.append(f"{harmonics_gradient(block, 'x')} }}")
        return _by_pair(group, "", lines, ("gw", "gr_of"))

    def reverse(self, group: Group) -> str:
        """With s = T x and its change s', both (m3): R gets h·s + g·s', its change g·s."""
        first = group[0]
        moved = "" if self.fixed else load_rows("d", "vx_of[side]", first.source, first.source_dim)
        lines = []
        for block in group:
            flip = self._flip(block)
            lines.append(f"{{ vec w = {flip}AT(r_of + {block.index} * channels + c), r = {{0}};")
            lines.append(f"vec v = {flip}AT(vr_of + {block.index} * channels + c), m = {{0}};")
            lines.append(gather_rows(block))
            lines += [f"vec h{m3} = AT(h + {row} * channels);" for m3, row in enumerate(block.rows)]
            for m3 in reached_rows(block):
                into = block.into(m3)
                change = _dot("u", "x", into)
                change += "" if self.fixed else " + " + _dot("t", "d", into)
                lines.append(f"{{ vec s = {_dot('t', 'x', into)}; m += g{m3} * s;")
                lines.append(f"r += h{m3} * s + g{m3} * ({change}); }}")
                lines.append(f"vec a{m3} = w * h{m3} + v * g{m3}, b{m3} = w * g{m3};")
            for m1, terms in _leaving(block):
                lines.append(f"e{m1} += {_dot('t', 'a', terms)} + {_dot('u', 'b', terms)};")
            lines.append(f"gw{block.index} += {flip}r; gv{block.index} += {flip}m; }}")
        opening = f"const real *h = h_of[side] + c; {moved}"
        return _by_pair(group, opening, lines, ("gw", "gr_of"), ("gv", "gv_of"))

    def _flip(self, block: Block) -> str:
        return "f * " if self.odd[block.index] else ""


def _dot(factor: str, values: str, terms: list[tuple[int, int]]) -> str:
    """Σ factor[i] · values, written out; couplings of a chunk lie side by side."""
    return " + ".join(f"{factor}[{i} * CHUNK] * {values}{m}" for m, i in terms)


def _radial(name: str, base: str, block: Block) -> str:
    return f"vec {name} = AT({base} + {block.index} * channels + c);"


def _sum(name: str, block: Block, m3: int) -> str:
    return f"{name}{block.index}_{m3}"


def _leaving(block: Block) -> list[tuple[int, list[tuple[int, int]]]]:
    """Each m1 that reaches anything, and what."""
    return [(m1, block.out_of(m1)) for m1 in range(block.source_dim) if block.out_of(m1)]


def _by_receiver(group: Group, opening: str, lines: list[str], sums: str) -> str:
    """A loop over the edges of a chunk, with the named sums of every row of the output."""
    rows = [(block, m3, row) for block in group for m3, row in enumerate(block.rows)]
    zeros = " ".join(f"vec {_sum(name, *place[:2])} = {{0}};" for place in rows for name in sums)
    closing = "\n".join(
        f"put(o + {row} * channels + c, {' + '.join(_sum(name, block, m3) for name in sums)}, "
        "begin > start);"
        for block, m3, row in rows
    )
    body = "\n    ".join(lines)
    return f"""{{ {zeros}
  for (long k = 0; k < size; k++) {{
    const real *t = table + k;
    {load_rows("x", "xs[k]", group[0].source, group[0].source_dim)}
    {opening}
    {body}
  }}
  {closing} }}"""


def _by_pair(group: Group, opening: str, lines: list[str], *kept: tuple[str, str]) -> str:
    """Both edges of a pair; sums for R are `kept` by path, those for x are added at the end."""
    first = group[0]
    zeros = " ".join(f"vec {name}{block.index} = {{0}};" for block in group for name, _ in kept)
    closing = "\n  ".join(
        f"AT({where} + {block.index} * channels + c) = {name}{block.index};"
        for block in group
        for name, where in kept
    )
    features = " ".join(
        f"AT(gx + {first.source + m1} * channels) += e{m1};" for m1 in range(first.source_dim)
    )
    body = "\n    ".join(lines)
    return f"""{{ {zeros}
  for (int side = 0; side < 2; side++) {{
    const real *g = g_of[side] + c, f = (real)(1 - 2 * side); real *gx = gx_of[side] + c;
    {load_rows("x", "x_of[side]", first.source, first.source_dim)}
    {each(first.source_dim, "vec e# = {0};")} {opening}
    {body}
    if (want_x) {{ {features} }}
  }}
  {closing} }}"""
