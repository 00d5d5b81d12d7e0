"""What the adapters of the peers share: statistics of a data set and labels. ASE and NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ase.io
import numpy as np
from ase import Atoms
from ase.neighborlist import neighbor_list

if TYPE_CHECKING:  # apax has an environment without torch
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """What every code derives from its training frames before it builds a model."""

    elements: list[int]  # atomic numbers, ascending
    references: list[float]  # eV per atom of each element, least squares
    force_rms: float  # eV/Å
    mean_neighbours: float
    cutoff: float  # Å


@dataclass(frozen=True)
class Predicted:
    """Energies (S), forces (N, 3) and the labels in the same order."""

    energy: Tensor
    forces: Tensor
    energy_label: Tensor
    forces_label: Tensor
    atoms: Tensor  # of each structure


class Peer(Protocol):
    """One code behind the calls that the benchmarks need."""

    sizes: dict[str, dict[str, Any]]
    weights: tuple[float, float]  # of energy per atom and forces, recommended by the code
    ema: float

    def build(self, size: str, statistics: Statistics, seed: int) -> torch.nn.Module: ...

    def graphs(self, frames: list[Atoms], statistics: Statistics) -> list[Any]: ...

    def collate(self, graphs: list[Any]) -> Any: ...

    def predict(self, model: torch.nn.Module, batch: Any, *, training: bool) -> Predicted: ...

    def parameter_groups(self, model: torch.nn.Module, lr: float) -> list[dict[str, Any]]: ...


def read(path: Path) -> list[Atoms]:
    """All frames of a file."""
    return ase.io.read(path, ":")


def statistics(frames: list[Atoms], cutoff: float) -> Statistics:
    """Of the training frames."""
    elements = sorted({int(z) for atoms in frames for z in atoms.numbers})
    counts = np.array([[np.sum(a.numbers == z) for z in elements] for a in frames], float)
    energies = np.array([a.get_potential_energy() for a in frames])
    references = np.linalg.lstsq(counts, energies, rcond=None)[0]
    forces = np.concatenate([a.get_forces() for a in frames])
    pairs = sum(len(neighbor_list("i", a, cutoff)) for a in frames[:50])
    return Statistics(
        elements=elements,
        references=references.tolist(),
        force_rms=float(np.sqrt(np.mean(forces**2))),
        mean_neighbours=pairs / sum(len(a) for a in frames[:50]),
        cutoff=cutoff,
    )


def load_peer(name: str) -> Peer:
    """The adapter of a code; its package must be installed in this environment."""
    if name == "mace":
        from mace_peer import MacePeer

        return MacePeer()
    if name == "nequip":
        from nequip_peer import NequipPeer

        return NequipPeer()
    raise SystemExit(f"{name!r} is no peer: use mace or nequip")
