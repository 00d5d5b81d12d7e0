"""Weights that trainings start from, where they suit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayrace
from bayrace.config import make_config
from bayrace.core.outputs import Outputs
from bayrace.data.dataset import Dataset
from bayrace.data.embedded import embedded
from bayrace.data.read import Frame
from bayrace.models.derivatives import evaluate
from bayrace.models.race.network import Race
from bayrace.models.race.pretrained import pretrained, started
from bayrace.models.race.spec import RaceSpec
from bayrace.models.race.stored_spec import ORGANIC
from bayrace.workflow.prepare import prepare

DATA = {"train": f"{embedded('ethanol-train')}@:60", "valid": 5}


def made(**changes: object) -> tuple[Race, Dataset]:
    """The network that a configuration gives for ethanol, and its training data."""
    ready = prepare(make_config({"data": DATA, "loss": {"kind": "nll_jef"}, **changes}))
    assert isinstance(ready.model, Race)
    return ready.model, ready.train


def first(model: Race, data: Dataset, seed: int = 0) -> Outputs:
    batch, _ = data.batch(range(20), dtype=torch.float64)
    return evaluate(model, model.init(seed, dtype=torch.float64), batch)


def test_the_first_forces_are_those_of_the_stored_network() -> None:
    """With its own eight elements, scale and energies, whatever the training data have."""
    model, data = made()
    assert model.spec.pretrained == "organic"
    own = pretrained()
    theirs = Race(replace(own.spec, pretrained="organic"))
    everything = Dataset(
        data.frames,
        elements=theirs.elements,
        cutoff=data.cutoff,
        references=dict.fromkeys(theirs.elements, 0.0),
    )
    mine, stored = first(model, data), first(theirs, everything)
    torch.testing.assert_close(mine.forces, stored.forces, rtol=1e-9, atol=1e-9)
    apart = (mine.energy - stored.energy).detach()
    torch.testing.assert_close(apart, apart[0].expand_as(apart), rtol=0, atol=1e-8)


def test_they_know_more_of_ethanol_than_nothing_and_its_mean_energy() -> None:
    model, data = made()
    _, labels = data.batch(range(20), dtype=torch.float64)
    found = first(model, data)
    missed = (found.forces - labels.forces).square().mean() / labels.forces.square().mean()
    assert missed.sqrt() < 0.3  # by another method, which is what training has to learn
    every, true = data.batch(range(len(data)), dtype=torch.float64)
    energy = evaluate(model, model.init(0, dtype=torch.float64), every).energy
    assert abs(float((energy - true.energy).mean())) < 1e-5  # eV


def test_noise_heads_are_drawn_and_nothing_else() -> None:
    model, _ = made()
    one, other = model.init(0), model.init(1)
    noise = model.noise_weights(one)
    for name, value in one.items():
        same = value == other[name]
        if name in noise:
            assert torch.equal(~same, noise[name].bool())
        else:
            assert same.all(), name


@pytest.mark.parametrize("loss", ["mse", "nll_e", "shallow"])
def test_other_losses_start_from_the_same_energies(loss: str) -> None:
    model, data = made()
    other, _ = made(
        loss={"kind": loss}, **({"posterior": {"kind": "shallow"}} if loss == "shallow" else {})
    )
    assert other.spec.pretrained == "organic"
    torch.testing.assert_close(first(other, data).forces, first(model, data).forces)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"preset": "tiny"}}, "preset small, and layers"),
        ({"model": {"cutoff": 4.5}}, "cutoff differ"),
    ],
)
def test_other_networks_are_drawn(changes: dict[str, dict[str, object]], reason: str) -> None:
    model, _ = made(**changes)
    assert model.spec.pretrained == ""
    wanted = {"model": {**changes["model"], "start": "pretrained"}}
    with pytest.raises(ValueError, match=reason):
        made(**wanted)


def test_a_number_of_neighbours_that_is_given_stays(caplog: pytest.LogCaptureFixture) -> None:
    model, _ = made(model={"mean_neighbours": 7.5})
    assert model.spec.mean_neighbours == 7.5
    assert model.spec.pretrained == ""
    assert "7.5 is given" in caplog.text
    with pytest.raises(ValueError, match=r"model.mean_neighbours .* and 7.5 is given"):
        made(model={"mean_neighbours": 7.5, "start": "pretrained"})
    own = pretrained().spec.mean_neighbours
    assert made(model={"mean_neighbours": own})[0].spec.pretrained == "organic"


def test_elements_they_do_not_know() -> None:
    spec = replace(drawn_spec(), elements=(1, 6, 14))
    with pytest.raises(ValueError, match="not Si"):
        started(spec, dataset(ethanol()), required=True)


def test_data_they_do_not_explain() -> None:
    """Such as forces of the wrong sign: the weights would be in the way."""
    frames = [
        replace(frame, forces=-frame.forces) for frame in ethanol() if frame.forces is not None
    ]
    data, spec = dataset(frames), drawn_spec()
    assert started(spec, data, required=False) is spec
    with pytest.raises(ValueError, match=r"miss .*% of what is to be learnt"):
        started(spec, data, required=True)


def test_structures_without_any_force_tell_nothing() -> None:
    frames = [replace(f, forces=0 * f.forces) for f in ethanol() if f.forces is not None]
    assert started(drawn_spec(), dataset(frames), required=False).pretrained == ""


def test_energies_alone_tell_too() -> None:
    frames = [replace(frame, forces=None) for frame in ethanol()]
    assert started(drawn_spec(), dataset(frames), required=True).pretrained == "organic"
    wrong = [replace(frame, energy=-frame.energy) for frame in frames if frame.energy is not None]
    assert started(drawn_spec(), dataset(wrong), required=False).pretrained == ""


def test_random_is_random() -> None:
    model, _ = made(model={"start": "random"})
    assert model.spec.pretrained == ""
    assert not torch.equal(model.init(0)["layer1.up.0e"], model.init(1)["layer1.up.0e"])


def test_a_specification_keeps_its_start() -> None:
    spec = made()[0].spec
    assert RaceSpec.from_json(spec.to_json()) == spec
    with pytest.raises(ValueError, match="pretrained='other'"):
        RaceSpec.from_json(spec.to_json() | {"pretrained": "other"})
    old = spec.to_json()
    del old["pretrained"]  # files of before
    assert RaceSpec.from_json(old).pretrained == ""


def ethanol() -> list[Frame]:
    return list(made()[1].frames)


def test_labels_that_leave_nothing_to_be_learnt() -> None:
    still = [replace(frame, forces=np.zeros_like(frame.forces)) for frame in ethanol()]
    with pytest.raises(ValueError, match="do not suit, the labels are all 0 or alike"):
        started(drawn_spec(), dataset(still), required=True)


def test_what_they_can_say_nothing_of_is_drawn() -> None:
    """Hydrogen in a cell of 0.8 Å, which the weights put at -5e9 eV: no network, and no error."""
    rng = np.random.default_rng(0)
    cells = [
        replace(
            ethanol()[0],
            numbers=np.array([1]),
            positions=np.zeros((1, 3)),
            cell=(0.8 + 0.01 * place) * np.eye(3),
            pbc=np.ones(3, dtype=bool),
            energy=-1.0,
            forces=rng.normal(size=(1, 3)),
        )
        for place in range(4)
    ]
    data = dataset(cells)
    spec = replace(drawn_spec(), elements=(1,), shift=(0.0,), shortest=((0.8,),))
    assert started(spec, data, required=False) == spec


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda data: b"", "missing"),
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "damaged"),
    ],
)
def test_weights_that_an_installation_has_lost(
    tmp_path: Path, damage: Callable[[bytes], bytes], word: str
) -> None:
    """Said at once, with what to do: neither a traceback nor a training from half a network."""
    package = tmp_path / "bayrace"
    shutil.copytree(
        Path(bayrace.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    file = package / "models" / "race" / f"{ORGANIC}.safetensors"
    left = damage(file.read_bytes())
    file.unlink()
    if left:
        file.write_bytes(left)
    script = "from bayrace.models.race.pretrained import pretrained; pretrained()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"ValueError: {file}: the weights to start from are {word}; install" in done.stderr
    assert "or train with model.start: random" in done.stderr


def dataset(frames: list[Frame]) -> Dataset:
    elements = tuple(sorted({int(z) for frame in frames for z in frame.numbers}))
    return Dataset(frames, elements=elements, cutoff=5.0, references=dict.fromkeys(elements, 0.0))


def drawn_spec() -> RaceSpec:
    return made(model={"start": "random"})[0].spec
