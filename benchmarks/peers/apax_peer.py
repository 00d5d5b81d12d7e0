"""apax behind the calls of the speed benchmark: energies, forces and dynamics, no training."""

from __future__ import annotations

from typing import Any
from unittest import mock

import apax.md.ase_calc as ase_calc
import jax
import numpy as np
from apax.config.model_config import GMNNConfig
from apax.data.input_pipeline import OTFInMemoryDataset
from ase import Atoms
from ase.calculators.calculator import Calculator
from common import Statistics
from systems import CRYSTALS, SILICON

FIELDS = ("positions", "numbers", "idx", "box", "offsets")


class ApaxSubject:
    """A Gaussian moment network with apax's own sizes; only the cutoff is that of the others."""

    def __init__(self, frames: list[Atoms], statistics: Statistics) -> None:
        self.frames, self.statistics = frames, statistics
        self.ready: dict[str, tuple[Any, Any, Any]] = {}

    def step(self, budget: float, *, most: int) -> list[float]:
        raise NotImplementedError("training steps of apax are not measured")

    def prepare(self, system: str) -> None:
        """Everything is built with the first structure."""

    def evaluate(self, system: str, frames: list[Atoms]) -> None:
        """Energy and forces of frames whose neighbours are ready, compiled for their shapes."""
        if system not in self.ready:
            self.ready[system] = self._built(system, frames)
        call, params, inputs = self.ready[system]
        forces = np.asarray(call(params, *inputs)["forces"])
        assert np.isfinite(forces).all()

    def calculator(self) -> Calculator:
        """apax's own, with random weights instead of those of a folder."""
        config = self._config(self.statistics)
        _, params, _ = self._built("3bpa-1", self.frames[:1])
        given = (mock.Mock(model=config), params)
        with mock.patch.object(ase_calc, "restore_parameters", return_value=given):
            return ase_calc.ASECalculator("unread")

    def _built(self, system: str, frames: list[Atoms]) -> tuple[Any, Any, Any]:
        """A compiled function of a batch, its parameters and its arguments."""
        config = self._config(SILICON if system in CRYSTALS else self.statistics)
        data = OTFInMemoryDataset(
            frames, config.basis.r_max, bs=len(frames), n_epochs=1, ignore_labels=True
        )
        each = [data.prepare_data(place) for place in range(len(frames))]
        inputs = [np.stack([np.asarray(one[name]) for one in each]) for name in FIELDS]
        builder = config.get_builder()(config.model_dump(), n_species=119)
        box = np.array(inputs[FIELDS.index("box")][0])
        model = builder.build_energy_derivative_model(apply_mask=True, init_box=box)
        params = model.init(jax.random.PRNGKey(0), *(value[0] for value in inputs))
        call = jax.jit(jax.vmap(model.apply, in_axes=(None, 0, 0, 0, 0, 0)))
        return call, params, inputs

    def _config(self, statistics: Statistics) -> GMNNConfig:
        return GMNNConfig(basis={"name": "bessel", "r_max": statistics.cutoff})
