"""C source of messages with the radial splines inside, written out from a plan.

`send` sums messages at their receivers, `send_back` gives the gradients by positions,
`send_tangent` the change of the messages when positions move, and `send_reverse` the gradients by
parameters of both: of the messages and of what `send_back` gave. Paths are written out as for
`bayrace.nn.codegen`.
"""

from __future__ import annotations

from bayrace.nn.codegen import (
    Block,
    backward_path,
    blocks_of,
    couple,
    dot,
    forward_path,
    gather_rows,
    load_rows,
    reached_rows,
    signs,
    tangent_path,
)
from bayrace.nn.plan import Plan
from bayrace.nn.program.sources import source_text

PASSES = ("send_reverse", "send_back", "send_tangent", "send")
CHUNK = 8  # edges of a receiver at a time: their radial weights stay in the first cache


def generate(plan: Plan, channels: int, *, fixed: bool) -> str:
    """C source of the four passes; REAL, LANES and the pass are set when compiling.

    Where features are `fixed`, they do not move with the positions, as in the first layer.
    """
    blocks, count = blocks_of(plan)
    sizes = {
        "PATHS": len(plan.paths),
        "INPUTS": plan.input_dim,
        "HARMONICS": plan.harmonics_dim,
        "ROWS": plan.rows,
        "COUPLINGS": count,
        "CHANNELS": channels,
        "CHUNK": CHUNK,
    }
    bodies = {
        "signs": signs(plan),
        "couple": couple(blocks),
        "coupling_signs": _coupling_signs(plan, blocks),
        "forward": "\n".join(map(forward_path, blocks)),
        "backward": "\n".join(map(backward_path, blocks)),
        "tangent": "\n".join(tangent_path(block, fixed=fixed) for block in blocks),
        "reverse": "\n".join(_reverse(block, fixed=fixed) for block in blocks),
    }
    source = source_text("messages.c")
    for name, body in bodies.items():
        source = source.replace(f"//@ {name}\n", body + "\n")
    return "".join(f"#define {name} {value}\n" for name, value in sizes.items()) + source


def _coupling_signs(plan: Plan, blocks: list[Block]) -> str:
    """Of T of the reverse edge, over T."""
    return ", ".join(
        str((-1) ** degree)
        for (_, degree, _), block in zip(plan.paths, blocks, strict=True)
        for _ in block.couplings
    )


def _reverse(block: Block, *, fixed: bool) -> str:
    """With s = T x and its change s', both (m3): R gets h·s + g·s', its change g·s."""
    reached = reached_rows(block)
    lines = []
    for m3 in reached:
        into = block.into(m3)
        change = dot("u", "x", into) + ("" if fixed else " + " + dot("t", "d", into))
        lines.append(f"{{ vec s = {dot('t', 'x', into)}; gw += h{m3} * s + g{m3} * ({change});")
        lines.append(f"gv += g{m3} * s; }}")
        lines.append(f"vec a{m3} = w * h{m3} + v * g{m3}, b{m3} = w * g{m3};")
    for m1 in range(block.source_dim):
        if block.out_of(m1):
            value = f"{dot('t', 'a', block.out_of(m1))} + {dot('u', 'b', block.out_of(m1))}"
            lines.append(f"AT(gx + {block.source + m1} * channels) += {value};")
    moved = "" if fixed else load_rows("d", "vx_of[side]", block.source, block.source_dim)
    others = " ".join(f"vec h{m3} = AT(h + {row} * channels);" for m3, row in enumerate(block.rows))
    return f"""{{ vec w = AT(r_of + {block.index} * channels + c), gw = {{0}};
  vec v = AT(vr_of + {block.index} * channels + c), gv = {{0}};
  for (int side = 0; side < 2; side++) {{
    const real *t = table[side], *u = tangent[side], *g = g_of[side] + c, *h = h_of[side] + c;
    real *gx = gx_of[side] + c;
    {load_rows("x", "x_of[side]", block.source, block.source_dim)} {moved}
    {gather_rows(block)} {others}
    {" ".join(lines)}
  }}
  AT(gr_of + {block.index} * channels + c) = gw;
  AT(gv_of + {block.index} * channels + c) = gv; }}"""
