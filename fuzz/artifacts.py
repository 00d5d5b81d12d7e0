"""Potentials of every posterior, damaged, or hostile with a checksum that is right."""

from __future__ import annotations

import copy
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mutate import damaged_bytes, hostile_document
from potentials import potential_of
from torch import Tensor

from bayrace.data.frame import DataError, Frame, bare_frame
from bayrace.deploy.ase import Calculator
from bayrace.potential import artifact
from bayrace.potential.potential import Potential, PotentialError, encode
from bayrace.predict.predict import NotFiniteError
from bayrace.testing.examples import EXAMPLES

EXPECTED = (PotentialError,)
_USED = (PotentialError, NotFiniteError, DataError)  # of predictions with what was accepted


def write_case(number: int, draw: random.Random, folder: Path) -> Path:
    """One file."""
    path = folder / "case.bayrace"
    contents = _bases()[number % len(_bases())]
    if draw.random() < 0.4:
        path.write_bytes(damaged_bytes(contents[0], draw))
        return path
    document, tensors = copy.deepcopy(contents[1]), dict(contents[2])
    if draw.random() < 0.65:
        document = hostile_document(document, draw)
    else:
        for _ in range(draw.choice((1, 1, 3))):
            _hostile_tensor(tensors, draw)
    path.write_bytes(_encoded(document, tensors, draw))
    return path


def try_case(path: Path) -> str:
    """Load it and predict with it; "refused" or "used", or a complaint."""
    potential = Potential.load(path, device="cpu")
    try:
        prediction = potential.predict(_molecule(), stress=True)
        atoms = _atoms()
        atoms.calc = Calculator(potential)
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        _ = potential.gap_limit, potential.fingerprint, potential.version
    except _USED:
        return "refused"
    calculated = (torch.tensor(energy, dtype=torch.float64), torch.from_numpy(forces))
    results = [prediction.energy.mean, prediction.forces.mean, *calculated]
    if getattr(potential.posterior, "energy_modelled", True):  # else its variance is nan
        results.append(prediction.energy.total)
    finite = all(bool(torch.isfinite(value).all()) for value in results)
    return "used" if finite else "NaN was returned"


def _encoded(document: Any, tensors: dict[str, Tensor], draw: random.Random) -> bytes:
    text = None
    if draw.random() < 0.05:  # no JSON that Python would write
        text = draw.choice(
            ("[" * 100_000, '{"a":' * 50_000, "", "null", "[]", "7", '"x"', "1" * 5000, "{", "NaN")
        )
    if text is None:
        return artifact.encode(document, tensors)
    encoded = artifact.encode({}, tensors)
    length = int.from_bytes(encoded[:8], "little")
    head = json.loads(encoded[8 : 8 + length])
    own = {"format": 2, "sha256": artifact._checksum(text, tensors), "content": text}
    head["__metadata__"]["bayrace"] = json.dumps(own)
    written = json.dumps(head).encode()
    return len(written).to_bytes(8, "little") + written + encoded[8 + length :]


def _hostile_tensor(tensors: dict[str, Tensor], draw: random.Random) -> None:
    name = draw.choice(sorted(tensors) or ["x"])
    value = tensors.pop(name, torch.zeros(1)).clone()
    kind = draw.randrange(9)
    if kind == 0:
        return
    if kind == 1:
        tensors[draw.choice(("posterior/x", "x", "distances/1-999", "distances/x", name + "x"))] = (
            value
        )
        return
    if kind <= 4 and value.numel():
        flat = value.reshape(-1)
        wild = (float("nan"), float("inf"), -1.0, 1e30, 1e38, -1e38, 0.0, 1e-40)
        chosen = draw.choice(wild) if value.is_floating_point() else draw.choice((0, 1, 200))
        flat[:: draw.choice((1, 2, 1000))] = chosen
    elif kind == 5:
        value = value[:-1] if value.ndim else value
    elif kind == 6:
        value = value.unsqueeze(0) if draw.random() < 0.5 else value.reshape(-1)
    elif kind == 7:
        types = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8)
        value = value.to(draw.choice(types))
    else:
        value = torch.zeros(draw.choice(((0,), (0, 3), (), (1, 1, 1), (7,))))
    tensors[name] = value.contiguous()


@cache
def _bases() -> list[tuple[bytes, dict[str, Any], dict[str, Tensor]]]:
    """Encoded, its document and its tensors, of a potential with each posterior."""
    makers = [*EXAMPLES, *["distance"] * 4]  # a third is what a newcomer has
    return [_base(potential_of(name, seed)) for seed, name in enumerate(makers)]


def _base(potential: Potential) -> tuple[bytes, dict[str, Any], dict[str, Tensor]]:
    data = encode(potential)
    length = int.from_bytes(data[:8], "little")
    head = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["bayrace"])
    tensors = {f"posterior/{k}": v for k, v in potential.posterior.tensors().items()}
    tensors |= {f"frames/{k}": torch.from_numpy(v) for k, v in potential.frames.items()}
    distances = potential.distances
    counts = {} if distances is None else distances.arrays()
    tensors |= {f"distances/{k}": torch.from_numpy(v) for k, v in counts.items()}
    plain = {k: v.detach().contiguous() for k, v in tensors.items()}
    return data, json.loads(head["content"]), plain


def _molecule() -> Frame:
    positions = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
    numbers = np.array([8, 1, 1])
    return bare_frame(numbers, positions, np.eye(3) * 6.0, np.ones(3, dtype=bool), source="water")


def _atoms() -> Any:
    from ase import Atoms

    frame = _molecule()
    return Atoms(frame.numbers, positions=frame.positions)
