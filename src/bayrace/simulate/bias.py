"""Uncertainty-biased dynamics: the energy is lowered by τ·σ, so that atoms move where σ grows.

σ is the epistemic standard deviation of the energy, calibrated where the potential is, and
τ ≥ 0 a plain number. The forces are the exact derivative of E − τ·σ: for members with energies E_m
and forces F_m, −∇σ = cov(E, F)/σ. Noise is left out: more labels do not lower it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.calculator import all_changes
from numpy.typing import NDArray
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.prediction import Uncertain
from bayrace.core.protocols import ClosedForm
from bayrace.deploy.ase import Calculator, begin, geometry_of
from bayrace.models.derivatives import evaluate
from bayrace.potential.potential import Potential

_SMALLEST = 1e-6  # eV, added in squares: the slope of σ is finite where σ is 0


class EnergyStd(NamedTuple):
    """Epistemic standard deviation of one structure's energy."""

    std: float  # eV
    gradient: NDArray[np.float64]  # (n, 3) eV/Å, in the order of the atoms


class BiasedCalculator(AseCalculator):
    """Energy and forces of E − τ·σ; everything else is asked of the calculator it wraps."""

    implemented_properties = ["energy", "free_energy", "forces"]  # noqa: RUF012 - ASE declares it so

    def __init__(self, calculator: Calculator, *, strength: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inner, self.strength = calculator, strength
        check_biasable(calculator.potential)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fill `results`."""
        structure = begin(self, atoms, properties, system_changes)
        inner, potential = self.inner, self.inner.potential
        forces = inner.get_property("forces", structure)
        batch = inner.neighbours.graph(geometry_of(structure), dtype=potential.dtype)
        spread = energy_spread(potential, batch)
        energy = inner.results["energy"] - self.strength * spread.std
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "forces": forces + self.strength * spread.gradient,
        }


def check_biasable(potential: Potential) -> None:
    """Refuse a potential whose energies have no epistemic uncertainty."""
    if isinstance(potential.posterior, ClosedForm) or potential.posterior.samples > 1:
        return
    raise ValueError(
        f"bias: the posterior {potential.posterior.name} does not know what it does not know; use "
        "an ensemble, SWAG, LLPR or another posterior with epistemic uncertainty, or no bias"
    )


def energy_spread(potential: Potential, batch: GraphBatch) -> EnergyStd:
    """σ of the energy and its gradient, of a batch of one structure."""
    calibration = potential.calibration
    fitted = None if calibration is None else calibration.energy
    numbers = torch.tensor(potential.elements, device=batch.species.device)[batch.species]

    def std(positions: Tensor) -> Tensor:
        variance = _variance(potential, replace(batch, positions=positions)) + _SMALLEST**2
        if fitted is None:
            return variance.sqrt()
        zero = torch.zeros_like(variance)[None]
        raw = Uncertain(zero, zero, variance[None])
        return fitted.apply(raw, numbers, batch.structure_index).std[0]

    gradient, value = torch.func.grad_and_value(std)(batch.positions)
    ordered: NDArray[np.float64] = gradient[batch.file_order].double().numpy(force=True)
    return EnergyStd(float(value), ordered)


def _variance(potential: Potential, batch: GraphBatch) -> Tensor:
    """Epistemic variance of the energy, a scalar in float64, differentiable in positions."""
    model, members, posterior = potential.model, potential.folded, potential.posterior
    if isinstance(posterior, ClosedForm):
        mean = {name: value[0] for name, value in members.items()}
        outputs = evaluate(model, mean, batch, forces=False)
        spread = posterior.spread(model, mean, batch, outputs, forces=False, stress=False)
        return spread.energy.double().sum()
    energies: Tensor = torch.func.vmap(lambda weights: model.energy(weights, batch).energy)(members)
    origins = potential.origins.to(batch.species.device)[..., batch.species].sum(-1, keepdim=True)
    return (energies.double() + origins).var(0, correction=0).sum()
