"""Standard normal numbers in the shape of parameters, the same whenever and wherever asked for."""

from __future__ import annotations

import numpy as np
import torch

from bayrace.core.outputs import Params


def generator(*key: int) -> torch.Generator:
    """A stream that depends on all numbers of `key`, none of them negative."""
    if any(number < 0 for number in key):
        raise ValueError(f"seed={key}: random streams are numbered from 0 up")
    # Its length belongs to the key: numpy takes trailing zeros for nothing.
    (seed,) = np.random.SeedSequence([len(key), *key]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(seed))


def normal_like(params: Params, stream: torch.Generator) -> Params:
    """One standard normal number per entry, of the parameters' types and devices.

    The numbers belong to the sorted names, since files do not keep the order of a dictionary, and
    are made in float32 (four times faster than float64) on the CPU, so that every precision and
    device sees the same ones.
    """
    sizes = {name: params[name].numel() for name in sorted(params)}
    flat = torch.randn(sum(sizes.values()), generator=stream, dtype=torch.float32)
    parts = dict(zip(sizes, torch.split(flat, list(sizes.values())), strict=True))
    return {name: parts[name].reshape(value.shape).to(value) for name, value in params.items()}
