"""The potential file: exact round trips, and a clear refusal of everything else."""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from ase.build import bulk, molecule

import bayrace
from bayrace.data.distances import Distances
from bayrace.data.frame import DataError, frame_from_atoms
from bayrace.models.noise import NO_NOISE
from bayrace.posterior.ensemble import Ensemble
from bayrace.posterior.point import Point
from bayrace.potential import artifact
from bayrace.potential.artifact import FORMAT_VERSION
from bayrace.potential.potential import Potential, PotentialError, encode
from bayrace.train.checkpoint import digest

Make = Callable[..., Potential]


@pytest.fixture
def saved(make_potential: Make, tmp_path: Path) -> Path:
    path = tmp_path / "model.bayrace"
    make_potential(seeds=(0, 1), dtype=torch.float32).save(path)
    return path


def test_round_trip_keeps_everything(make_potential: Make, tmp_path: Path) -> None:
    potential = replace(
        make_potential(seeds=(0, 1)),
        references={1: -13.605693122994, 6: -1029.123456789012345, 8: 0.1 + 0.2},
        statistics={"mean_neighbours": 7.25, "elements": {"C": 3}},
        config={"train": {"epochs": 3, "note": "Å, λ"}},
        fingerprint="abc",
        frames={"train": np.array([3, -5])},
        distances=Distances(4.0, {(6, 8): np.arange(2002, dtype=np.uint8)}),
    )
    path = tmp_path / "model.bayrace"
    potential.save(path)
    loaded = Potential.load(path, device="cpu")
    assert loaded.members.keys() == potential.members.keys()
    for name, value in potential.members.items():
        assert torch.equal(loaded.members[name], value)
    assert loaded.posterior.name == potential.posterior.name == "ensemble"
    for name in {field.name for field in fields(potential)} - {"posterior", "frames", "distances"}:
        assert getattr(loaded, name) == getattr(potential, name), name
    assert {name: list(value) for name, value in loaded.frames.items()} == {"train": [3, -5]}
    assert loaded.distances is not None
    assert loaded.distances.cutoff == potential.spec.cutoff
    np.testing.assert_array_equal(loaded.distances.counts[6, 8], potential.distances.counts[6, 8])
    assert loaded.version == bayrace.__version__
    assert [child.name for child in tmp_path.iterdir()] == [path.name]  # no temporary file left


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e38])
def test_weights_that_are_not_finite_are_refused(
    make_potential: Make, tmp_path: Path, number: float
) -> None:
    potential = make_potential(seeds=(0,))
    weights = {name: value.clone() for name, value in potential.posterior.tensors().items()}
    first = min(weights)
    weights[first].view(-1)[0] = number
    broken = replace(potential, posterior=type(potential.posterior).restore(weights, {}))
    path = tmp_path / "model.bayrace"
    with pytest.raises(PotentialError, match="is not finite everywhere"):
        broken.save(path)
    path.write_bytes(encode(broken))  # as somebody else might
    with pytest.raises(PotentialError, match=r"not finite everywhere|not a number"):
        Potential.load(path, device="cpu")


def test_tensors_are_read_in_the_order_of_their_names(saved: Path) -> None:
    names = list(artifact.read(saved).tensors)
    assert names == sorted(names)


def test_predictions_survive_the_file(make_potential: Make, tmp_path: Path) -> None:
    potential = make_potential(seeds=(0, 1))
    potential.save(tmp_path / "model.bayrace")
    loaded = Potential.load(tmp_path / "model.bayrace", device="cpu")
    atoms = molecule("CH3CH2OH")
    before, after = potential.predict(atoms), loaded.predict(atoms)
    assert torch.equal(before.energy.mean, after.energy.mean)
    assert torch.equal(before.forces.total, after.forces.total)


def test_equal_potentials_give_equal_files(make_potential: Make) -> None:
    assert encode(make_potential(seeds=(3,))) == encode(make_potential(seeds=(3,)))
    assert encode(make_potential(seeds=(3,))) != encode(make_potential(seeds=(4,)))


@pytest.mark.parametrize("seeds", [(3,), (3, 4)])
def test_files_of_the_first_format_can_be_read(
    make_potential: Make, tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    """It held stacked members under their own names, and the posterior's name alone."""
    potential = make_potential(seeds=seeds)
    data = encode(potential)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["bayrace"])
    content = json.loads(header["content"]) | {"posterior": potential.posterior.name}
    text = json.dumps(content)
    members = {name: value.contiguous() for name, value in potential.members.items()}
    sha256 = hashlib.sha256((text + digest(members)).encode()).hexdigest()
    old = {"format": 1, "sha256": sha256, "content": text}
    path = tmp_path / "old.bayrace"
    path.write_bytes(safetensors.torch.save(members, metadata={"bayrace": json.dumps(old)}))
    loaded = Potential.load(path, device="cpu")
    assert loaded.posterior.name == potential.posterior.name
    for name, value in members.items():
        assert torch.equal(loaded.members[name], value)


def test_header_is_readable_without_bayrace(saved: Path) -> None:
    data = saved.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["bayrace"])
    assert header["format"] == FORMAT_VERSION
    assert json.loads(header["content"])["spec"]["elements"] == [1, 6, 8]


def test_saving_replaces_an_older_file(make_potential: Make, saved: Path) -> None:
    make_potential(seeds=(7,)).save(saved)
    assert next(iter(Potential.load(saved).members.values())).shape[0] == 1


def test_device_and_precision(saved: Path) -> None:
    assert Potential.load(saved).dtype == torch.float32
    auto = Potential.load(saved, device="auto")
    assert auto.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    double = Potential.load(saved, device="cpu", dtype="float64")
    assert double.dtype == torch.float64
    assert double.to(dtype=torch.float32).dtype == torch.float32
    assert double.to(dtype="float32").model is double.model
    with pytest.raises(PotentialError, match="dtype='float16' is not supported; use one of"):
        Potential.load(saved, dtype="float16")
    with pytest.raises(PotentialError, match="device='gpu' is unknown; use auto, cpu or cuda"):
        Potential.load(saved, device="gpu")


def test_predict_takes_atoms_frames_and_sequences(make_potential: Make) -> None:
    potential = make_potential()
    molecules = [molecule("H2O"), molecule("CH4"), bulk("C")]
    several = potential.predict(molecules, stress=True)
    assert several.energy.mean.shape == (3,)
    assert several.structure_index.tolist() == [0] * 3 + [1] * 5 + [2] * 2
    assert several.stress is not None
    assert several.stress.mean[:2].isnan().all()
    single = potential.predict(molecules[1])
    torch.testing.assert_close(single.energy.mean, several.energy.mean[1:2])
    frame = frame_from_atoms(molecules[0], keys=None)
    torch.testing.assert_close(potential.predict(frame).energy.mean, several.energy.mean[:1])
    with pytest.raises(DataError, match="atom 0 is N"):
        potential.predict(molecule("N2"))
    broken = molecule("CH4")
    broken.positions[1] = np.nan
    with pytest.raises(DataError, match="nan"):
        potential.predict(broken)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(PotentialError, match=r"absent\.bayrace does not exist; check the path"):
        Potential.load(tmp_path / "absent.bayrace")
    with pytest.raises(PotentialError, match="is a folder; name the"):
        Potential.load(tmp_path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    others = {
        "text": b"3\nProperties=species:S:1:pos:R:3\nO 0 0 0\n" * 5,
        "pickle": pickle.dumps({"weights": [1.0] * 20}),
        "zip": b"PK\x03\x04" + bytes(100),
        "safetensors": safetensors.torch.save({"weight": torch.ones(3)}, metadata={"format": "pt"}),
        "plain safetensors": safetensors.torch.save({"weight": torch.ones(3)}),
    }
    for data in others.values():
        path.write_bytes(data)
        with pytest.raises(PotentialError, match="is not a bayrace potential; give a file written"):
            Potential.load(path)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_truncated_file(saved: Path, kept: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(PotentialError, match=r"is truncated.*fetch or copy the file again"):
        Potential.load(saved)


def test_flipped_bit_in_the_weights(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    data[-5] ^= 1
    saved.write_bytes(data)
    with pytest.raises(PotentialError, match="is corrupted: its contents do not match"):
        Potential.load(saved)


def test_flipped_bit_in_the_description(saved: Path) -> None:
    data = saved.read_bytes()
    assert data.count(b"force_rms") == 1
    saved.write_bytes(data.replace(b"force_rms", b"force_sms"))
    with pytest.raises(PotentialError, match="is corrupted: its contents do not match"):
        Potential.load(saved)


def test_no_flipped_bit_goes_unnoticed(saved: Path) -> None:
    data = saved.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    generator = np.random.default_rng(0)
    in_header = generator.choice(header, size=300, replace=False)
    in_weights = generator.integers(header, len(data), size=30)
    for place in (*range(8), *in_header, *in_weights):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(generator.integers(8))
        saved.write_bytes(damaged)
        with pytest.raises(PotentialError):
            Potential.load(saved)


def test_newer_format(saved: Path) -> None:
    data = saved.read_bytes()
    assert data.count(rb"\"format\": 2,") == 1
    saved.write_bytes(data.replace(rb"\"format\": 2,", rb"\"format\": 9,"))
    with pytest.raises(PotentialError, match=r"format version 9.*reads up to 2; upgrade with"):
        Potential.load(saved)


def test_missing_and_unexpected_weights(make_potential: Make, tmp_path: Path) -> None:
    potential = make_potential()
    path = tmp_path / "model.bayrace"
    weights = potential.posterior.tensors()
    fewer = {k: v for k, v in weights.items() if k != "embedding"}
    path.write_bytes(encode(replace(potential, posterior=Point(fewer))))
    with pytest.raises(PotentialError, match=r"missing \['embedding'\], unexpected \[\]"):
        Potential.load(path)
    more = weights | {"spare": torch.ones(1)}
    path.write_bytes(encode(replace(potential, posterior=Point(more))))
    with pytest.raises(PotentialError, match=r"missing \[\], unexpected \['spare'\]"):
        Potential.load(path)
    with pytest.raises(PotentialError, match="unexpected"):
        replace(potential, posterior=Point(more)).save(path)


def test_odd_shapes(make_potential: Make, tmp_path: Path) -> None:
    potential = make_potential(seeds=(0, 1))
    path = tmp_path / "model.bayrace"
    shape = tuple(potential.members["embedding"].shape)

    def write(value: torch.Tensor) -> None:
        members = Ensemble(potential.members | {"embedding": value})
        path.write_bytes(encode(replace(potential, posterior=members)))

    write(torch.ones(2, 5))
    with pytest.raises(
        PotentialError,
        match=rf"weight embedding has shape \(5,\), the model needs \({shape[1]}, ",
    ):
        Potential.load(path)
    with pytest.raises(ValueError, match=r"weights of \[2, 3\] members"):
        write(torch.ones(3, *shape[1:]))


def test_unknown_architecture(make_potential: Make, tmp_path: Path) -> None:
    class Future:
        name = "race"

        def to_json(self) -> dict[str, object]:
            return make_potential().spec.to_json() | {"attention": True}

    potential = replace(make_potential(noise=NO_NOISE), spec=Future())
    path = tmp_path / "model.bayrace"
    path.write_bytes(encode(potential))
    with pytest.raises(
        PotentialError, match=r"cannot build.*attention.*use the version that wrote"
    ):
        Potential.load(path)


def test_importing_bayrace_is_fast_and_offers_its_names() -> None:
    code = "import sys, bayrace; assert 'torch' not in sys.modules; print(bayrace.__version__)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"Calculator", "Potential"} <= set(dir(bayrace))
    assert bayrace.Potential is Potential
    with pytest.raises(AttributeError, match="no attribute 'Model'"):
        _ = bayrace.Model
