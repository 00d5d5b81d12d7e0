"""Weights to start from: preset `small`, trained beforehand on hot molecules of many kinds.

Random weights learn what a bond is from the training frames alone, and what they say of a bond
longer or shorter than all of those is an accident. Weights that have seen many hot molecules,
labelled by a cheap method, know the shape of such curves, and training only has to move them to
the method of its own labels. Nothing else is taken over: references, the scale of forces and the
noise heads are those of the training data.

The weights are of our own making (scripts/pretrain) and under the licence of the package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from bayrace.core.outputs import Params
from bayrace.data.dataset import Dataset, edge_batches
from bayrace.data.frame import Floats, symbols_of
from bayrace.data.reference import composition, element_energies
from bayrace.models.derivatives import evaluate
from bayrace.models.race.options import Architecture
from bayrace.models.race.spec import RaceSpec
from bayrace.models.race.start import SCALARS
from bayrace.models.race.stored_spec import ORGANIC

_log = logging.getLogger(__name__)

DIGEST = "2a83824489b8e9b299779ecf616f9cabd9d4bb22bcc62115f72a3ddfd0db5e3a"  # SHA-256 of the file
LARGEST_MISS = 0.5  # of the forces: weights that explain less than this of them are no help
_LOOK = 100  # structures that tell so
_DECIMALS = 6  # of fitted energies, eV: the same for any number of threads
_MOST_EDGES = 200_000  # of all of them together
_EDGES = 20_000  # at once
_BY_ELEMENT = ("embedding", ".skip.")  # parameters with a row for each element


class Pretrained(NamedTuple):
    """A network that was trained before, on data that are not ours to predict."""

    spec: RaceSpec
    params: Params  # without noise heads
    molecules: int
    method: str  # of its labels

    def rows(self, elements: Sequence[int]) -> list[int]:
        """Where some elements stand among its own."""
        return [self.spec.elements.index(number) for number in elements]


class Seen(NamedTuple):
    """Energies and forces of some structures; nan where unknown."""

    energy: Tensor  # (S,) eV
    forces: Tensor  # (N, 3) eV/Å


@cache
def pretrained() -> Pretrained:
    """The weights in the package.

    Raises:
        ValueError: the file is missing or damaged.
    """
    file = resources.files("bayrace.models.race").joinpath(f"{ORGANIC}.safetensors")
    data = file.read_bytes() if file.is_file() else b""
    if hashlib.sha256(data).hexdigest() != DIGEST:
        raise ValueError(
            f"{file}: the weights to start from are {'damaged' if data else 'missing'}; install "
            "bayrace again, or train with model.start: random"
        )
    size = int.from_bytes(data[:8], "little")
    about = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["about"])
    params = {name: value.float() for name, value in safetensors.torch.load(data).items()}
    return Pretrained(
        RaceSpec.from_json(about["spec"]), params, about["molecules"], about["method"]
    )


def started(spec: RaceSpec, train: Dataset, *, required: bool, measured: bool = True) -> RaceSpec:
    """The network with the weights to start from where they suit it and its training data.

    What was `measured` of the data, the mean number of neighbours, gives way to that of the
    pretraining; a number that was given does not.

    Raises:
        ValueError: they are required and do not suit; says why.
    """
    own = pretrained().spec
    reason = _misfit(spec)
    if not reason and not measured and spec.mean_neighbours != own.mean_neighbours:
        reason = (
            f"they are of model.mean_neighbours {own.mean_neighbours:g}, and "
            f"{spec.mean_neighbours:g} is given"
        )
        if not required:
            _log.warning("the start is random: the pretrained weights do not suit, %s", reason)
    if not reason:
        begun = _begun(spec, train)
        if begun.missed <= LARGEST_MISS:
            return replace(begun.spec, shift=tuple(begun.shift.round(_DECIMALS).tolist()))
        reason = f"they miss {begun.missed:.0%} of what is to be learnt"
        if math.isinf(begun.missed):
            reason = "the labels are all 0 or alike, which leaves nothing to be learnt"
    if required:
        raise ValueError(
            f"model.start: pretrained: the weights do not suit, {reason}; use auto or random"
        )
    return spec


def _misfit(spec: RaceSpec) -> str:
    """Why the weights cannot be those of a network; empty where they can."""
    own = pretrained().spec
    names = [field.name for field in fields(Architecture)]
    if changed := [name for name in names if getattr(spec, name) != getattr(own, name)]:
        return f"they are of preset small, and {', '.join(changed)} differ"
    if unknown := sorted(set(spec.elements) - set(own.elements)):
        return f"they know {symbols_of(own.elements)}, and not {symbols_of(unknown)}"
    return "" if spec.target.is_energy else "they are of energies"


class _Begun(NamedTuple):
    """A network that starts from the weights, without the energies of elements that go with it."""

    spec: RaceSpec
    shift: Floats  # (Z,) eV, of the elements, fitted to what the weights leave
    missed: float  # part of the training labels: 0 is all right, 1 no better than nothing


def _begun(spec: RaceSpec, train: Dataset) -> _Begun:
    """What the weights are worth: by forces, root mean square, or energies where there are none."""
    own = pretrained().spec
    start = replace(
        spec,
        pretrained=ORGANIC,
        mean_neighbours=own.mean_neighbours,
        shortest=_shortest(spec) if spec.shortest else (),
        shift=(0.0,) * len(spec.elements),
    )
    wanted = min(_LOOK, max(1, int(_MOST_EDGES / train.edges.mean())))
    chosen = list(range(0, len(train), max(1, len(train) // wanted)))
    label, left = _looked(start, train, chosen)
    known = ~left.energy.isnan()
    frames = [train.frames[place] for place, good in zip(chosen, known, strict=True) if good]

    def fitted(energies: Tensor) -> tuple[Floats, float]:
        values = energies[known].numpy()
        shift = element_energies(frames, values, elements=spec.elements)
        return shift, _rms(torch.tensor(values - composition(frames, spec.elements) @ shift))

    shift, missed = fitted(left.energy)
    if label.forces.isnan().all():
        return _Begun(start, shift, _part(missed, fitted(label.energy)[1]))
    return _Begun(start, shift, _part(_rms(left.forces), _rms(label.forces)))


def _looked(start: RaceSpec, train: Dataset, chosen: Sequence[int]) -> tuple[Seen, Seen]:
    """Labels of some structures, and what the weights leave of them."""
    model = start.build()
    params = model.init(0, dtype=torch.float64)
    seen: list[tuple[Tensor, ...]] = []
    for batch, labels in edge_batches(train, like=params, edges=_EDGES, chosen=chosen):
        with torch.no_grad():
            found = evaluate(model, params, batch)
        left = (labels.energy - found.energy, labels.forces - found.forces)
        seen.append((labels.energy, labels.forces, *left))
    energy, forces, *left_over = (torch.cat(column) for column in zip(*seen, strict=True))
    return Seen(energy, forces), Seen(*left_over)


def overlaid(spec: RaceSpec, drawn: Mapping[str, Tensor]) -> Params:
    """The weights, where a network has them, in place of drawn ones but for noise heads."""
    if not spec.pretrained:
        return dict(drawn)
    own = pretrained()
    rows = own.rows(spec.elements)
    params = dict(drawn)
    for name, stored in own.params.items():
        if name not in drawn:
            continue  # a network without noise heads has fewer irreps at its end
        value = stored.to(drawn[name])
        if any(part in name for part in _BY_ELEMENT):
            value = value[rows]
        if name.endswith(SCALARS):  # energies only, in units of the scale
            energies = value * (own.spec.scale / spec.scale)
            value = torch.cat([energies, drawn[name][:, 1:]], dim=-1)
        params[name] = value
    return params


def _shortest(spec: RaceSpec) -> tuple[tuple[float, ...], ...]:
    """Å, (Z, Z): the shorter of two distances, of these data and of the pretraining's."""
    own = pretrained()
    rows = own.rows(spec.elements)
    known, measured = np.array(own.spec.shortest)[np.ix_(rows, rows)], np.array(spec.shortest)
    both = np.where(known * measured > 0, np.minimum(known, measured), known + measured)
    return tuple(map(tuple, both.tolist()))


def _rms(values: Tensor) -> float:
    """Root mean square of those that are known."""
    return float(values.double().square().nanmean().sqrt())


def _part(missed: float, whole: float) -> float:
    """Of nothing, everything is missed."""
    return missed / whole if whole > 0 else math.inf
