"""The edge convolution, the one operation that bounds everything, behind one seam.

out[n, row, c] = Σ_{edges e into n} R[pair(e), k, c] Σ_{m1, m2} CG x[sender(e), m1, c] Y(e)[m2]

for every path k = (input irrep, l2, output irrep). Rows are ordered by output irrep, then m3, then
path, so that the slice of one irrep is a view of shape (N, 2l + 1, paths · C).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.nn import gpu
from bayrace.nn.coupling import clebsch_gordan
from bayrace.nn.fused import convolve_fused
from bayrace.nn.irreps import Irrep
from bayrace.nn.kernels import Kernel, chosen_kernel, kernel_status, resolve
from bayrace.nn.passes import load
from bayrace.nn.plan import Path, Plan
from bayrace.nn.tables import constant, constant_when_compiled

__all__ = ["Kernel", "Path", "Plan", "convolve", "convolve_plain", "kernel_status", "prepare"]


def convolve(
    plan: Plan,
    features: Tensor,
    harmonics: Tensor,
    radial: Tensor,
    batch: GraphBatch,
    *,
    kernel: Kernel = "auto",
) -> Tensor:
    """Messages summed over neighbours.

    Args:
        plan: the paths.
        features: x, (N, plan.input_dim, C).
        harmonics: Y, (P, (plan.l_max + 1)²), of the first edge of each pair.
        radial: R, (P, paths, C), one row per undirected pair.
        batch: the graph; edges sorted by receiver.
        kernel: which implementation; `auto` takes the fastest that is available. The environment
            variable BAYRACE_KERNEL decides for `auto`.

    Returns:
        (N, plan.rows, C)
    """
    place = (features.dtype, features.device.type)
    if prepare(plan, features.shape[-1], *place, kernel=kernel) == "fused":
        return convolve_fused(plan, features, harmonics, radial, batch)
    return convolve_plain(plan, features, harmonics, radial, batch)


def convolve_plain(
    plan: Plan, features: Tensor, harmonics: Tensor, radial: Tensor, batch: GraphBatch
) -> Tensor:
    """The definition in plain PyTorch; every other kernel is tested against it."""
    receiver, sender = batch.edges
    sent, weight = features[sender], radial[batch.pair]
    along = edge_harmonics(plan.l_max, harmonics, batch)
    groups: dict[Irrep, list[Tensor]] = {irrep: [] for irrep in plan.outputs}
    for k, (source, degree, target) in enumerate(plan.paths):
        start = plan.input_offset[source]
        table = _table(source.l, degree, target.l, features)
        angular = along[:, degree**2 : (degree + 1) ** 2]  # (E, m2)
        coupling = torch.einsum("eb,abc->eca", angular, table)  # (E, m3, m1)
        message = coupling @ sent[:, start : start + source.dim]  # (E, m3, C)
        groups[target].append(message * weight[:, k, None])
    rows = [torch.stack(group, dim=2).flatten(1, 2) for group in groups.values() if group]
    messages = torch.cat(rows, dim=1)
    empty = messages.new_zeros(features.shape[0], plan.rows, features.shape[2])
    return empty.index_add(0, receiver, messages)


def edge_harmonics(l_max: int, harmonics: Tensor, batch: GraphBatch) -> Tensor:
    """From (P, ...) to (E, ...): the reverse edge has Y_l(-r) = (-1)^l Y_l(r)."""
    degree = torch.arange(l_max + 1, device=harmonics.device)
    parity = (1 - 2 * (degree % 2)).repeat_interleave(2 * degree + 1).to(harmonics.dtype)
    edges = torch.arange(batch.pair.shape[0], device=harmonics.device)
    backward = batch.pair_edges[0][batch.pair] != edges
    sign = torch.where(backward.unsqueeze(-1), parity, torch.ones_like(parity))
    return harmonics[batch.pair] * sign


@constant_when_compiled
def prepare(
    plan: Plan, channels: int, dtype: torch.dtype, device: str = "cpu", *, kernel: Kernel = "auto"
) -> Kernel:
    """Build what `convolve` needs ahead of its first call; the kernel that it will take."""
    if not plan.paths:
        return "plain"
    if device == "cuda" and chosen_kernel(kernel) == "fused":
        if missing := gpu.problem(dtype):
            raise RuntimeError(f"kernel='fused' is not available: {missing}; or choose 'plain'")
        return "fused"
    return resolve(load, plan.key, channels, dtype, device, kernel)


def _table(l1: int, l2: int, l3: int, like: Tensor) -> Tensor:
    return constant(
        ("clebsch_gordan", l1, l2, l3),
        like,
        lambda dtype, device: torch.tensor(clebsch_gordan(l1, l2, l3), dtype=dtype, device=device),
    )
