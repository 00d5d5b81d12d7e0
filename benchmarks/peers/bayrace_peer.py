"""bayrace behind the calls of the speed benchmark, each through the door its users take."""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from common import Statistics
from systems import BATCH, CRYSTALS, CUTOFF, SILICON

from bayrace import Calculator, Potential
from bayrace.config import Config, make_config
from bayrace.config.build import likelihoods, model_spec, train_settings
from bayrace.core.graph import GraphBatch
from bayrace.data.batch import build_graph, collate
from bayrace.data.frame import frame_from_atoms
from bayrace.models.race.network import Race
from bayrace.models.race.spec import RaceSpec
from bayrace.posterior.point import Point
from bayrace.predict.predict import predict
from bayrace.train.callbacks import Callbacks
from bayrace.train.loop import fit
from bayrace.train.task import Task
from bayrace.workflow import train as run

# nequip-2 and nequip-3 have gates and no products of features with themselves
LIKE_NEQUIP = {"preset": "small", "self_contraction": False, "gate": True}
PAPER = {"preset": "3bpa", "cutoff": CUTOFF, "mean_neighbours": "auto"}

EVEN_AND_ODD = "64x0e+64x0o+64x1e+64x1o+64x2e+64x2o"  # the irreps of nequip-paper

SIZES: dict[str, dict[str, Any]] = {
    "bayrace-tiny": {"preset": "tiny"},  # to try the benchmark itself
    "bayrace-small": {"preset": "small"},
    "bayrace-medium": {"preset": "medium"},
    "bayrace-paper": PAPER,
    "bayrace-paper-l2": PAPER | {"hidden": EVEN_AND_ODD},
    "bayrace-2": LIKE_NEQUIP | {"layers": 2},
    "bayrace-3": LIKE_NEQUIP | {"layers": 3},
}


def configuration(model: dict[str, Any], data: Path) -> Config:
    """The configuration of a run that neither validates nor saves while it is timed."""
    return make_config(
        {
            "data": {"train": str(data / "train.xyz"), "valid": str(data / "valid.xyz")},
            "model": model,
            "train": {
                "batch_size": BATCH,
                "valid_every": 10**6,
                "checkpoint_every": 3600,
                "max_epochs": 10**6,
                "device": "cpu",
            },
        }
    )


@dataclass(frozen=True)
class Measured:
    """What `model_spec` asks of a training set, answered from the statistics of the benchmark."""

    statistics: Statistics

    @property
    def elements(self) -> tuple[int, ...]:
        return tuple(self.statistics.elements)

    @property
    def frames(self) -> list[Any]:
        return [SimpleNamespace(forces=True)]  # there are some

    def mean_neighbours(self) -> float:
        return self.statistics.mean_neighbours

    def force_rms(self) -> float:
        return self.statistics.force_rms

    def atomic_shift(self) -> tuple[float, ...]:
        return (0.0,) * len(self.statistics.elements)

    def shortest_distances(self) -> tuple[tuple[float, ...], ...]:
        return ((0.5,) * len(self.elements),) * len(self.elements)  # Å; watched, and never met


def specification(model: dict[str, Any], statistics: Statistics) -> RaceSpec:
    """The network of a size for a training set with these statistics; its weights are drawn."""
    config = configuration({"start": "random"} | model, Path("unread"))
    return model_spec(config, Measured(statistics))  # type: ignore


class BayraceSubject:
    """One size of bayrace, trained by `fit`, evaluated by `predict` and `Calculator`."""

    def __init__(self, size: str, data: Path, statistics: Statistics) -> None:
        self.model = SIZES[size]
        self.config = configuration(self.model, data)
        self.statistics = statistics
        self.potentials: dict[bool, Potential] = {}
        self.batches: dict[str, GraphBatch] = {}

    @cached_property
    def prepared(self) -> run.Prepared:
        """Data, graphs and kernels, as `bayrace train` makes them."""
        return run.prepare(self.config)

    def step(self, budget: float, *, most: int) -> list[float]:
        """Seconds of training steps: from one report of the loop to the next."""
        ticks: list[float] = []

        def enough() -> bool:
            done = len(ticks) - 1  # the first step warms up
            return done >= most or (done >= 1 and ticks[-1] - ticks[0] > budget)

        with tempfile.TemporaryDirectory() as folder:
            fit(
                self.task(Path(folder) / "run"),
                callbacks=Callbacks(
                    observer=lambda _: ticks.append(time.perf_counter()), stop=enough
                ),
            )
        return [after - before for before, after in itertools.pairwise(ticks)]

    def task(self, folder: Path) -> Task:
        """The training, which is never finished."""
        ready = self.prepared
        return Task(
            ready.model,
            likelihoods(self.config.loss, ready.lambdas),
            ready.train,
            ready.valid,
            train_settings(self.config),
            folder,
        )

    def prepare(self, system: str) -> None:
        """Build the potential of a system and its kernels."""
        potential = self.potential(system)
        potential.model.prepare(potential.dtype)

    def evaluate(self, system: str, frames: list[Atoms]) -> None:
        """Energy and forces, with their noise, of frames whose graph is ready."""
        potential = self.potential(system)
        if system not in self.batches:
            self.batches[system] = self._batch(potential, frames)
        prediction = predict(potential.predictive, self.batches[system])
        assert math.isfinite(float(prediction.forces.mean.sum()))

    def calculator(self) -> AseCalculator:
        """The calculator of ASE with its defaults."""
        return Calculator(self.potential("3bpa-1"))

    def potential(self, system: str) -> Potential:
        """A potential for the elements of a system, with the weights that training begins with.

        Of crystals there is no training set, and the weights are drawn.
        """
        crystal = system in CRYSTALS
        if crystal not in self.potentials:
            statistics = SILICON if crystal else self.statistics
            spec = specification(self.model, statistics) if crystal else self.prepared.spec
            weights = Race(spec).init(0) if crystal else self.task(Path("unused")).initial()
            references = zip(statistics.elements, statistics.references, strict=True)
            self.potentials[crystal] = Potential(
                spec=spec,
                posterior=Point(weights),
                references=dict(references),
                lambdas=self.prepared.lambdas,
                statistics={},
                config={},
                fingerprint="",
            )
        return self.potentials[crystal]

    def _batch(self, potential: Potential, frames: list[Atoms]) -> GraphBatch:
        elements, cutoff = potential.elements, potential.model.cutoff
        graphs = [
            build_graph(
                frame_from_atoms(atoms, keys=None, index=i), elements=elements, cutoff=cutoff
            )
            for i, atoms in enumerate(frames)
        ]
        return collate(graphs, elements_count=len(elements), dtype=potential.dtype)
