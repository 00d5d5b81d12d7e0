"""Files that are damaged, or hostile with a checksum that is right, end in a PotentialError."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule

from bayrace.deploy.ase import Calculator
from bayrace.models.race.network import Race
from bayrace.posterior.point import Point
from bayrace.potential import artifact
from bayrace.potential.potential import Potential, PotentialError, encode
from bayrace.testing.examples import EXAMPLES

Make = Callable[..., Potential]
Change = Callable[[dict[str, Any]], Any]


def rewritten(potential: Potential, path: Path, change: Change) -> Path:
    """A file with a changed document and the checksum that goes with it."""
    path.write_bytes(encode(potential))
    contents = artifact.read(path)
    change(contents.document)
    path.write_bytes(artifact.encode(contents.document, contents.tensors))
    return path


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


CHANGES: dict[str, Change] = {
    "endless layers": lambda d: d["spec"].update(layers=10**30),
    "no layers": lambda d: d["spec"].update(layers=-3),
    "layers as text": lambda d: d["spec"].update(layers="2"),
    "endless channels": lambda d: d["spec"].update(hidden="99999999x0e"),
    "no irreps": lambda d: d["spec"].update(hidden=7),
    "infinite cutoff": lambda d: d["spec"].update(cutoff=math.inf),
    "nan scale": lambda d: d["spec"].update(scale=math.nan),
    "unknown atoms": lambda d: d["spec"].update(elements=[1, 6, 800]),
    "noise as a list": lambda d: d["spec"].update(noise=[]),
    "spec as text": lambda d: d.update(spec="x"),
    "posterior as a list": lambda d: d.update(posterior=[]),
    "unhashable posterior": lambda d: d["posterior"].update(name={}),
    "options as a number": lambda d: d["posterior"].update(name="swag", options=3),
    "references as a list": lambda d: d.update(references=[1]),
    "references of nan": lambda d: d["references"].update({"1": math.nan}),
    "huge references": lambda d: d["references"].update({"1": 10**400}),
    "missing references": lambda d: d.update(references={}),
    "infinite lambdas": lambda d: d["lambdas"].update(energy=math.inf),
    "no weight of energies with noise": lambda d: d["lambdas"].update(energy=0.0),
    "lambdas as text": lambda d: d.update(lambdas="x"),
    "statistics as a list": lambda d: d.update(statistics=[]),
    "gap as text": lambda d: d["statistics"].update(distance_gap="wide"),
    "configuration as text": lambda d: d.update(config="x"),
    "calibration as a number": lambda d: d.update(calibration=5),
    "calibration of nan": lambda d: d.update(
        calibration={
            **dict.fromkeys(("forces", "stress")),
            "energy": {"factor": math.nan, "count": 3, "shape": None, "by_element": {}},
            "method": "scale",
            "frames": 3,
            "fingerprint": "",
        }
    ),
    "calibration whose square overflows": lambda d: d.update(
        calibration={
            **dict.fromkeys(("forces", "stress")),
            "energy": {"factor": 1e300, "count": 3, "shape": None, "by_element": {}},
            "method": "scale",
            "frames": 3,
            "fingerprint": "",
        }
    ),
    "deep": lambda d: d.update(statistics={"a": nested(500)}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_hostile_documents_are_refused(make_potential: Make, tmp_path: Path, name: str) -> None:
    path = rewritten(make_potential(), tmp_path / "x.bayrace", CHANGES[name])
    with pytest.raises(PotentialError, match=r"x\.bayrace"):
        Potential.load(path, device="cpu")


@pytest.mark.parametrize("text", ["[" * 100_000, "7", "null", '"x"', "1" * 5000, "{"])
def test_descriptions_that_are_no_mapping_are_refused(
    make_potential: Make, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "x.bayrace"
    data = encode(make_potential())
    length = int.from_bytes(data[:8], "little")
    head, tensors = json.loads(data[8 : 8 + length]), data[8 + length :]
    path.write_bytes(data)
    checksum = artifact._checksum(text, artifact.read(path).tensors)
    head["__metadata__"]["bayrace"] = json.dumps({"format": 2, "sha256": checksum, "content": text})
    written = json.dumps(head).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + tensors)
    with pytest.raises(PotentialError, match=r"x\.bayrace"):
        Potential.load(path, device="cpu")


@pytest.mark.parametrize("version", [1e400, -1, "2", None, [2]])
def test_strange_versions_are_refused(make_potential: Make, tmp_path: Path, version: Any) -> None:
    path = tmp_path / "x.bayrace"
    data = encode(make_potential())
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])
    own = json.loads(head["__metadata__"]["bayrace"])
    head["__metadata__"]["bayrace"] = json.dumps(own | {"format": version})
    written = json.dumps(head).encode()
    path.write_bytes(len(written).to_bytes(8, "little") + written + data[8 + length :])
    with pytest.raises(PotentialError, match="header"):
        Potential.load(path, device="cpu")


HURT: dict[str, tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "infinite factor": ("llpr", "factor", lambda value: value.fill_(math.inf)),
    "places beyond": ("llpr", "places", lambda value: value + 10**9),
    "flat factor": ("llpr", "factor", lambda value: value.flatten()),
    "negative variance": ("swag", "variance/embedding", lambda value: value.fill_(-1.0)),
    "lost deviations": ("swag", "deviations/embedding", lambda value: value[:, :-1]),
    "infinite std": ("laplace, diagonal, glm", "std/embedding", lambda v: v.fill_(math.inf)),
    "negative hessian": ("ivon", "hessian/embedding", lambda value: value.fill_(-1.0)),
    "half precision": ("point", "embedding", lambda value: value.half()),
}


@pytest.mark.parametrize("name", HURT)
def test_hostile_posteriors_are_refused(make_potential: Make, tmp_path: Path, name: str) -> None:
    kind, key, change = HURT[name]
    plain = make_potential()
    model = Race(plain.spec)
    posterior = EXAMPLES[kind](model, model.init(0, dtype=torch.float64))
    path = tmp_path / "x.bayrace"
    path.write_bytes(encode(_with(plain, posterior)))
    Potential.load(path, device="cpu")
    contents = artifact.read(path)
    tensors = dict(contents.tensors)
    tensors[f"posterior/{key}"] = change(tensors[f"posterior/{key}"].clone())
    path.write_bytes(artifact.encode(contents.document, tensors))
    with pytest.raises(PotentialError, match=r"x\.bayrace"):
        Potential.load(path, device="cpu")


def test_endless_samples_are_refused(make_potential: Make, tmp_path: Path) -> None:
    plain = make_potential()
    model = Race(plain.spec)
    posterior = EXAMPLES["swag"](model, model.init(0, dtype=torch.float64))

    def change(document: dict[str, Any]) -> None:
        document["posterior"]["options"]["samples"] = 10**12

    path = rewritten(_with(plain, posterior), tmp_path / "x.bayrace", change)
    with pytest.raises(PotentialError, match="samples"):
        Potential.load(path, device="cpu")


def test_a_file_may_leave_nothing_of_the_noise(make_potential: Make, tmp_path: Path) -> None:
    """The factor 0, whose logarithm came out as an error of Python's."""
    plain = make_potential()
    model = Race(plain.spec)
    posterior = EXAMPLES["distance"](model, model.init(0, dtype=torch.float64))

    def change(document: dict[str, Any]) -> None:
        document["posterior"]["options"]["noise"] = dict.fromkeys(("energy", "forces"), 0.0)

    path = rewritten(_with(plain, posterior), tmp_path / "x.bayrace", change)
    atoms = molecule("H2O")
    found = Potential.load(path, device="cpu").predict(atoms)
    assert not found.energy.aleatoric.any()
    assert not found.forces.aleatoric.any()
    assert found.energy.epistemic.isfinite().all()


@pytest.mark.parametrize("name", ["stressx", "atomic_energy"])
def test_noise_of_what_is_not_predicted_is_refused(
    make_potential: Make, tmp_path: Path, name: str
) -> None:
    plain = make_potential()
    model = Race(plain.spec)
    posterior = EXAMPLES["distance"](model, model.init(0, dtype=torch.float64))

    def change(document: dict[str, Any]) -> None:
        document["posterior"]["options"]["noise"] = {name: 1.0}

    path = rewritten(_with(plain, posterior), tmp_path / "x.bayrace", change)
    with pytest.raises(PotentialError, match=name):
        Potential.load(path, device="cpu")


def test_predictions_that_are_no_numbers_do_not_leave(make_potential: Make) -> None:
    """Weights that are finite, as a file's must be, but overflow."""
    plain = make_potential(dtype=torch.float32)
    weights = {name: value * 1e30 for name, value in plain.posterior.tensors().items()}
    potential = _with(plain, Point(weights))
    water = Atoms("OH2", positions=[[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    with pytest.raises(ValueError, match="the energy of structure 0 is not finite"):
        potential.predict(water)
    water.calc = Calculator(potential)
    with pytest.raises(ValueError, match="is not finite"):
        water.get_forces()


@pytest.mark.parametrize("distance", [1e6, 1e9])
def test_calculators_refuse_atoms_far_apart(make_potential: Make, distance: float) -> None:
    water = Atoms("OH2", positions=[[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    water.calc = Calculator(make_potential())
    water.get_forces()
    water.positions[1, 0] = distance  # as in a simulation that explodes
    with pytest.raises(ValueError, match="Å"):
        water.get_forces()


def test_calculators_refuse_tiny_and_broken_cells(make_potential: Make) -> None:
    atom = Atoms("O", cell=np.eye(3) * 5.0, pbc=True)
    atom.calc = Calculator(make_potential())
    atom.get_forces()
    for length in (0.01, math.nan):
        atom.cell[:] = np.eye(3) * length
        with pytest.raises(ValueError, match="cell"):
            atom.get_forces()


def _with(potential: Potential, posterior: Any) -> Potential:
    from dataclasses import replace

    return replace(potential, posterior=posterior)


def test_a_smoke_run_of_the_fuzzer() -> None:
    """A few dozen of the cases of `make fuzz`."""
    script = Path(__file__).parents[1] / "fuzz" / "run.py"
    command = [sys.executable, str(script), "--artifacts", "20", "--data", "20", "--configs", "12"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    counts = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    assert counts == {"artifacts": 20, "data": 20, "configs": 12}
