"""A peer for the speed benchmark: the training step of `train.py`, and its calculator for ASE."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator
from common import Peer, Statistics, load_peer
from systems import BATCH, CRYSTALS, SILICON

from train import CLIP, loss_of, parts


class PeerSubject:
    """One size of MACE, of NequIP or of the e3nn formulation of RACE."""

    def __init__(self, code: str, size: str, frames: list[Atoms], statistics: Statistics) -> None:
        self.code, self.size, self.statistics = code, size, statistics
        self.peer = _peer(code)
        self.frames = frames
        self.models: dict[bool, torch.nn.Module] = {}
        self.batches: dict[str, Any] = {}
        self.trainer: Trainer | None = None

    def step(self, budget: float, *, most: int) -> list[float]:
        """Seconds of training steps."""
        if self.trainer is None:
            graphs = self.peer.graphs(self.frames, self.statistics)
            self.trainer = Trainer(self.peer, self.model("3bpa-5"), graphs)
        taken: list[float] = []
        while not taken or (len(taken) < most and sum(taken) < budget):
            start = time.perf_counter()
            self.trainer.step()
            taken.append(time.perf_counter() - start)
        return taken

    def prepare(self, system: str) -> None:
        """Build the model of a system."""
        self.model(system)

    def evaluate(self, system: str, frames: list[Atoms]) -> None:
        """Energy and forces of frames whose graph is ready."""
        if system not in self.batches:
            statistics = SILICON if system in CRYSTALS else self.statistics
            self.batches[system] = self.peer.collate(self.peer.graphs(frames, statistics))
        model = self.model(system)
        out = self.peer.predict(model, self.batches[system], training=False)
        assert bool(torch.isfinite(out.forces).all())

    def calculator(self) -> Calculator:
        """The code's own calculator, on the eager model."""
        model = self.model("3bpa-1").eval()
        if self.code == "mace":
            from mace.calculators import MACECalculator

            return MACECalculator(models=[model], device="cpu", default_dtype="float32")
        if self.code == "nequip":
            return _nequip_calculator(model, self.statistics)
        raise ValueError(f"{self.code} has no calculator for ASE; leave dynamics out for it")

    def model(self, system: str) -> torch.nn.Module:
        """A model with random weights for the elements of a system."""
        crystal = system in CRYSTALS
        if crystal not in self.models:
            statistics = SILICON if crystal else self.statistics
            self.models[crystal] = self.peer.build(self.size, statistics, seed=0)
        return self.models[crystal]


class Trainer:
    """Adam with AMSGrad, clipping and moving average, as in `train.py`, batch after batch."""

    def __init__(self, peer: Peer, model: torch.nn.Module, graphs: list[Any]) -> None:
        self.peer, self.model = peer, model
        self.chosen = itertools.cycle(part for part in parts(graphs, BATCH) if len(part) == BATCH)
        self.optimiser = torch.optim.Adam(peer.parameter_groups(model, 0.01), amsgrad=True)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.average = [p.detach().clone() for p in self.parameters]

    def step(self) -> None:
        """Collate, differentiate twice, move the weights and their average."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = loss_of(self.peer, self.model, self.peer.collate(next(self.chosen)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimiser.step()
        new = [p.detach() for p in self.parameters]
        torch._foreach_lerp_(self.average, new, 1 - self.peer.ema)


def _peer(code: str) -> Peer:
    if code == "e3nn":
        from e3nn_race import E3nnPeer

        return E3nnPeer()
    return load_peer(code)


def _nequip_calculator(model: torch.nn.Module, statistics: Statistics) -> Calculator:
    from ase.data import chemical_symbols
    from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
    from nequip.integrations.ase import NequIPCalculator

    symbols = [chemical_symbols[z] for z in statistics.elements]
    transforms = [
        ChemicalSpeciesToAtomTypeMapper(symbols),
        NeighborListTransform(r_max=statistics.cutoff),
    ]
    return NequIPCalculator(model, "cpu", transforms=transforms)
