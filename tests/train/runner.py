"""A small real training run, as functions for the tests and as a script they can kill.

python runner.py FOLDER PAUSE CHECKPOINT_EVERY [ivon | muon | soap]: trains four epochs, writing
the number of each step and then sleeping PAUSE seconds.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.likelihood.mse import SquaredError
from bayrace.models.noise import NO_NOISE, Lambdas
from bayrace.models.pair import PairModel
from bayrace.models.race.network import Race
from bayrace.testing.structures import small_spec
from bayrace.train.adam import AdamSettings
from bayrace.train.callbacks import Callbacks
from bayrace.train.ivon import IvonSettings
from bayrace.train.loop import FitResult, StepEvent, TrainSettings, fit, stop_on_signals
from bayrace.train.muon import MuonSettings
from bayrace.train.schedule import Plateau
from bayrace.train.soap import SoapSettings
from bayrace.train.task import Task

CUTOFF = 4.0
ELEMENTS = (1, 8)


def squares(forces: float = 1.0) -> SquaredError:
    """Mean squared errors of energies and forces."""
    lambdas = Lambdas(energy=1.0, forces=forces, stress=1.0)
    return SquaredError(lambdas, per_atom_energy=False, robust="none", huber_delta=0.01)


def frames(count: int, *, seed: int, source: str = "made.xyz") -> list[Frame]:
    """Clusters of five atoms with Morse energies and forces between all pairs."""
    random = np.random.default_rng(seed)
    grid = 1.6 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=float)
    result = []
    for index in range(count):
        positions = grid + 0.15 * random.standard_normal((5, 3))
        energy, forces = morse(positions)
        result.append(
            Frame(
                numbers=np.array([8, 1, 1, 8, 1]),
                positions=positions,
                cell=np.zeros((3, 3)),
                pbc=np.zeros(3, dtype=bool),
                energy=energy,
                forces=forces,
                stress=None,
                config_type="Default",
                weight=1.0,
                source=source,
                index=index,
            )
        )
    return result


def morse(positions: np.ndarray) -> tuple[float, np.ndarray]:
    """Energy (eV) and forces (eV/Å) of D (1 - exp(-a(r - r0)))² - D under a cutoff function."""
    where = torch.tensor(positions, requires_grad=True)
    first, second = torch.triu_indices(len(positions), len(positions), 1)
    distance = (where[first] - where[second]).norm(dim=-1)
    smooth = torch.where(distance < CUTOFF, (1 - (distance / CUTOFF) ** 2) ** 3, 0.0)
    well = 0.5 * ((1 - torch.exp(-1.5 * (distance - 1.6))) ** 2 - 1) * smooth
    (gradient,) = torch.autograd.grad(well.sum(), where)
    return float(well.sum().detach()), -gradient.numpy()


def dataset(count: int, *, seed: int) -> Dataset:
    references = {1: 0.0, 8: 0.0}
    return Dataset(
        frames(count, seed=seed), elements=ELEMENTS, cutoff=CUTOFF, references=references
    )


def model() -> PairModel:
    return PairModel(elements=ELEMENTS, cutoff=CUTOFF, functions=5)


def race() -> Race:
    """A network with matrices among its parameters."""
    sizes = {"hidden": "8x0e+8x1o", "features": 8, "layers": 1, "cutoff": CUTOFF}
    return Race(small_spec(ELEMENTS, noise=NO_NOISE, radial_knots=16, **sizes), kernel="plain")


def settings(**changes: object) -> TrainSettings:
    base = TrainSettings(
        optimiser=AdamSettings(
            name="amsgrad", lr=0.05, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8
        ),
        schedule=Plateau(factor=0.5, patience=1, threshold=1e-4, minimum=1e-6),
        batch_size=4,
        edge_budget=None,
        valid_batch_size=8,
        max_epochs=5,
        max_time=None,
        max_gradient_norm=5.0,
        ema=0.99,
        valid_every=1,
        early_stopping=None,
        min_improvement=0.0,
        monitor="loss",
        stress=False,
        checkpoint_every=1e9,
        seed=3,
        dtype="float64",
        device="cpu",
    )
    return replace(base, **changes)


def ivon(**changes: object) -> dict[str, object]:
    """Changes of the settings that make the optimiser IVON."""
    optimiser = IvonSettings(
        lr=0.05,
        ess=20.0,
        hess_init=0.5,
        betas=(0.9, 0.999995),
        weight_decay=1e-4,
        clip_radius=1.0,
        hessian="averaged",
    )
    return {"optimiser": replace(optimiser, **changes), "max_gradient_norm": None, "ema": None}


def preconditioned(name: str) -> dict[str, object]:
    """Changes of the settings that make the optimiser Muon or SOAP; `train` takes `race` then."""
    adam = AdamSettings("adamw", lr=0.02, weight_decay=0.01, betas=(0.9, 0.99), eps=1e-8)
    optimiser = MuonSettings(adam, momentum=0.9) if name == "muon" else SoapSettings(adam, 0.9)
    return {"optimiser": optimiser, "max_gradient_norm": None}


def train(
    folder: Path, *, pause: float = 0.0, resume: bool = False, **changes: object
) -> FitResult:
    """Twenty training frames, six for validation; step numbers on stdout if paused."""

    def observer(event: object) -> None:
        if pause and isinstance(event, StepEvent):
            sys.stdout.write(f"{event.step}\n")
            sys.stdout.flush()
            time.sleep(pause)

    chosen = settings(**changes)
    preconditions = isinstance(chosen.optimiser, MuonSettings | SoapSettings)
    with stop_on_signals() as stop:
        return fit(
            Task(
                race() if preconditions else model(),
                lambda epoch: squares(),
                dataset(20, seed=0),
                dataset(6, seed=1),
                chosen,
                folder,
            ),
            resume=resume,
            callbacks=Callbacks(observer=observer, stop=stop),
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind = sys.argv[4] if len(sys.argv) > 4 else ""
    result = train(
        Path(sys.argv[1]),
        max_epochs=4,
        pause=float(sys.argv[2]),
        checkpoint_every=float(sys.argv[3]),
        **(ivon() if kind == "ivon" else preconditioned(kind) if kind else {}),
    )
    sys.stdout.write(f"ended: {result.reason}\n")
