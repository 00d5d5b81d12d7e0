"""The moments of one weight sample in one compiled call.

`bayrace.predict.moments` has the definitions, and does what is not done here. For a few dozen atoms
its small operations would take a tenth of the time of a prediction.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayrace.core.graph import GraphBatch
from bayrace.core.outputs import EpistemicVariances, Outputs
from bayrace.core.prediction import Prediction, Uncertain
from bayrace.models.noise import Lambdas, NoiseSpec
from bayrace.nn.compiler import build
from bayrace.nn.covariance import LOG_VARIANCE_RANGE, covariance
from bayrace.nn.kernels import DTYPES, resolve
from bayrace.nn.sources import source_text
from bayrace.nn.tables import inside_transforms

_REAL = torch.float64


class Noise(NamedTuple):
    """What the heads of a network mean."""

    spec: NoiseSpec
    lambdas: Lambdas


def single(
    outputs: Outputs,
    batch: GraphBatch,
    origin: Tensor,
    noise: Noise | None,
    spread: EpistemicVariances | None,
) -> Prediction | None:
    """A prediction from what a sample says; None where it takes the definitions.

    `origin` are energies of the elements. Without `noise` the heads are not looked at; `spread` are
    the epistemic variances where a closed form knows them.
    """
    if not _known(outputs, origin, noise):
        return None
    head = cover = None
    lambdas = Lambdas(1.0, 1.0, 1.0)
    if noise is not None:
        head, lambdas = outputs.energy_head, noise.lambdas
        if outputs.forces_head is not None:
            cover = covariance(outputs.forces_head, noise.spec.covariance)
    unknown, ignorance, atomic = None, None, None
    if spread is not None:
        unknown, ignorance, atomic = map(_double, (spread.energy, spread.forces, spread.atomic))
    given: list[Tensor | None] = [batch.file_order, batch.species, batch.structure_index]
    given += [outputs.atomic_energy, origin, outputs.forces, head, cover, ignorance, atomic]
    held = [None if each is None else each.contiguous() for each in given]
    atoms, structures = batch.n_atoms, batch.n_structures
    new = outputs.atomic_energy.new_empty
    rigidity = None if atomic is None else new(atoms)
    energy, energy_noise, energies = new(structures), new(structures), new(atoms)
    forces, aleatoric, epistemic = new((atoms, 3)), new((atoms, 3, 3)), new((atoms, 3, 3))
    out = (energy, energy_noise, energies, forces, aleatoric, epistemic, rigidity)
    sizes = _Sizes(atoms, structures, *LOG_VARIANCE_RANGE, lambdas.energy, lambdas.forces)
    addresses = (None if each is None else each.data_ptr() for each in (*held, *out))
    load(DTYPES[outputs.forces.dtype], _REAL, 0)["moments"](ctypes.byref(sizes), *addresses)
    if spread is not None and ignorance is None:
        epistemic.fill_(torch.nan)
    return Prediction(
        energy=Uncertain(energy, energy_noise, energy - energy if unknown is None else unknown),
        forces=Uncertain(forces, aleatoric, epistemic),
        stress=None,
        atomic_energy=energies,
        structure_index=batch.structure_index[batch.file_order],
        atomic_epistemic=rigidity,
    )


def _double(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.double()


def _known(outputs: Outputs, origin: Tensor, noise: Noise | None) -> bool:
    """Whether compiled code can have these, and knows what they mean."""
    forces = outputs.forces
    if forces.dtype not in DTYPES or outputs.atomic_energy.dtype != _REAL or origin.ndim != 1:
        return False
    if outputs.stress is not None or inside_transforms() or torch.compiler.is_compiling():
        return False
    if noise is not None and (noise.spec.kind == "shallow" or noise.spec.energy != "extensive"):
        return False
    heads = (outputs.energy_head, outputs.forces_head)
    if any(each is not None and each.dtype != forces.dtype for each in heads):
        return False
    where = forces.device.type
    return resolve(load, DTYPES[forces.dtype], 1, _REAL, where, "auto") == "fused"


class _Sizes(ctypes.Structure):
    """`sizes` of single.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("atoms", "structures")),
        *((name, ctypes.c_double) for name in ("low", "high", "energy", "forces")),
    )


@cache
def load(real: str, _dtype: torch.dtype, _lanes: int) -> dict[str, Any]:
    """The compiled function, for networks of the C type `real`.

    Raises:
        CompilerError: it cannot be built here.
    """
    library = build(source_text("single.c", package="bayrace.predict"), {"REAL": real})
    library.moments.argtypes = [ctypes.c_void_p] * 18
    library.moments.restype = None
    return {"moments": library.moments}
