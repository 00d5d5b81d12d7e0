"""A potential that is in memory or in a file, and the same one with other fields."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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


def altered(potential: Potential, **fields: Any) -> Potential:
    """The potential with other fields, but for its specification.

    Its network, which holds no weights, is built only once.
    """
    result = replace(potential, **fields)
    vars(result)["model"] = potential.model
    return result
