"""A potential that is in memory, or in a file: whoever takes one takes either."""

from __future__ import annotations

from pathlib import Path

import torch

from bayrace.potential.potential import Potential


def opened(
    potential: str | Path | Potential,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype | None = None,
) -> Potential:
    """The potential on a device; auto leaves one that is in memory where it is.

    Without `dtype` it keeps its own precision.
    """
    if isinstance(potential, Potential):
        where = None if str(device) == "auto" else device
        return potential.to(device=where, dtype=dtype)
    return Potential.load(potential, device=device, dtype=dtype)
