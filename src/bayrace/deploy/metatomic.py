"""Export to metatomic: a TorchScript file that LAMMPS, i-PI, ASE and others load through it.

The network is traced in its plain PyTorch form, once for every member, as a function of the vectors
between neighbours, so that the engine differentiates positions and cell itself. Outputs are
`energy`, of systems or atoms, and where there are several members `energy_uncertainty` (their
spread, calibrated) and `energy_ensemble`. A closed form (LLPR and the like) is exported as its
mean.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import bayrace
from bayrace.deploy.plain import PlainEnergy, example, plain_members
from bayrace.models.race.spec import RaceSpec
from bayrace.potential.potential import Potential


def export(potential: Potential, path: str | Path) -> tuple[str, ...]:
    """Write a file for metatomic; the names of its outputs."""
    try:
        from metatomic.torch import (
            AtomisticModel,
            ModelCapabilities,
            ModelMetadata,
            ModelOutput,
        )

        from bayrace.deploy.metatomic_module import MetatomicModule
    except ImportError as error:
        raise ValueError("metatomic is not installed; pip install 'bayrace[engines]'") from error
    members, origins = plain_members(potential.to(device="cpu"))
    spec = potential.spec
    assert isinstance(spec, RaceSpec)
    calibration = potential.calibration
    energy = None if calibration is None else calibration.energy
    module = MetatomicModule(
        [_traced(member, example(spec, potential.dtype)) for member in members],
        _species(spec.elements),
        origins,
        spec.cutoff,
        1.0 if energy is None else energy.one_factor("metatomic"),
    )
    names = ("energy", "energy_uncertainty", "energy_ensemble")[: 1 if len(members) == 1 else 3]
    about = "Machine-learned energy; its spread is over the members of the posterior."
    capabilities = ModelCapabilities(
        outputs={
            name: ModelOutput(unit="eV", sample_kind="atom", description=about) for name in names
        },
        atomic_types=list(spec.elements),
        interaction_range=spec.cutoff * spec.layers,
        length_unit="Angstrom",
        supported_devices=["cpu"],
        dtype=str(potential.dtype).removeprefix("torch."),
    )
    about_us = ModelMetadata(
        name="bayrace", description=f"A potential of bayrace {bayrace.__version__}; {about}"
    )
    AtomisticModel(module.eval(), about_us, capabilities).save(str(path))
    return names


def _traced(member: PlainEnergy, inputs: tuple[Tensor, Tensor, Tensor]) -> torch.nn.Module:
    """The plain network of one member as TorchScript."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of sizes and of the pairs that are too close
        trace: Any = torch.jit.trace  # torch has no types for it
        traced: torch.nn.Module = trace(member, inputs, check_trace=False)
    return traced


def _species(elements: tuple[int, ...]) -> Tensor:
    table = torch.full((120,), -1)
    table[list(elements)] = torch.arange(len(elements))
    return table
