"""Reference values of a batch.

Sizes: S structures, N atoms, E directed edges, P undirected pairs (E = 2P), Z elements.
Units: eV, Å, eV/Å, eV/Å³. Stress uses ASE's Voigt order (xx, yy, zz, yz, xz, xy) and sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Labels:
    """Reference values of a batch in the batch's atom order; nan marks a missing label."""

    energy: Tensor  # (S,) eV, isolated-atom or fitted references already subtracted
    forces: Tensor  # (N, 3) eV/Å
    stress: Tensor  # (S, 6) eV/Å³
    weight: Tensor  # (S,) weight of each structure in the loss

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Labels:
        """Move to a device, change the dtype."""
        return Labels(*(value.to(device=device, dtype=dtype) for value in vars(self).values()))
