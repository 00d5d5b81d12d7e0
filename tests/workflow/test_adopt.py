"""What adoption finds, splits and refuses, with a module that needs no other package."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

import bayrace
from bayrace.config import ConfigError
from bayrace.config.active import TuneConfig
from bayrace.data.frame import frame_from_atoms
from bayrace.data.split import frame_hashes
from bayrace.models.foreign import foreign_package
from bayrace.testing.modules import TinySpec
from bayrace.workflow.adopt import adopt, foreign_spec
from bayrace.workflow.tune import fine_tune, training_frames

SPEC = TinySpec((11, 14, 17), 4.5, seed=1)
ZERO = {11: -3.0, 14: 2.0, 17: 1.5}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bayrace.models.MODELS, "_registered", {})
    bayrace.models.register(TinySpec)


def write(
    path: Path, count: int, *, zero: dict[int, float], error: float = 0.0, start: int = 0
) -> Path:
    """Labels of the module itself, with other energies of the elements and an error per atom."""
    from bayrace.data.batch import build_graph, collate
    from bayrace.models.derivatives import evaluate

    model = SPEC.build()
    params = model.init(0)
    images = []
    for number in range(start, start + count):
        random = np.random.default_rng(number)
        atoms = bulk("NaCl", "rocksalt", 5.6, cubic=True)
        if number % 2:
            atoms = bulk("Si", "diamond", 5.4) * (2, 1, 1)
        if number % 4 == 2:
            atoms.symbols[0] = "Cl"  # or Na and Cl could not be told apart
        atoms.rattle(0.08, seed=number)
        graph = build_graph(
            frame_from_atoms(atoms, keys=None, index=0), elements=SPEC.elements, cutoff=SPEC.cutoff
        )
        batch = collate([graph], elements_count=3, dtype=params["out.weight"].dtype)
        outputs = evaluate(model, params, batch)
        energy = float(outputs.energy[0]) + sum(zero[z] for z in atoms.numbers)
        energy += error * len(atoms) * random.normal()
        forces = outputs.forces[batch.file_order].double().numpy()
        forces = forces + error * random.normal(size=forces.shape)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        images.append(atoms)
    ase.io.write(path, images)
    return path


def test_the_energy_zero_of_the_labels_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "a.xyz", 24, zero=ZERO, error=1e-4)
    adopted = adopt(SPEC, file)
    assert adopted.references == pytest.approx(ZERO, abs=5e-3)
    found = adopted.statistics
    assert found["energy_rmse_per_atom_before_shift"] > 100 * found["energy_rmse_per_atom"]
    kept = adopt(SPEC, file, shift="none")
    assert set(kept.references.values()) == {0.0}


def test_the_networks_own_zero_is_kept_where_it_is_right(tmp_path: Path) -> None:
    file = write(tmp_path / "a.xyz", 24, zero=dict.fromkeys(ZERO, 0.0), error=0.01)
    assert set(adopt(SPEC, file).references.values()) == {0.0}
    assert any(adopt(SPEC, file, shift="fit").references.values())


def test_calibration_frames_are_seen_by_nothing_else(tmp_path: Path) -> None:
    """Labels of the other part may be anything without moving the posterior, and vice versa."""
    first = write(tmp_path / "a.xyz", 20, zero=ZERO, error=0.01)
    good = write(tmp_path / "good.xyz", 10, zero=ZERO, error=0.01, start=100)
    bad = write(tmp_path / "bad.xyz", 10, zero=ZERO, error=0.05, start=100)
    one, other = adopt(SPEC, first, valid=good), adopt(SPEC, first, valid=bad)
    assert one.posterior.options() == other.posterior.options()
    assert one.references == other.references
    assert one.calibration is not None
    assert other.calibration is not None
    frame = training_frames(one)[1][0]
    small, large = (float(each.predict(frame).energy.std[0]) for each in (one, other))
    assert large > 2.5 * small
    assert set(one.frames["train"]).isdisjoint(one.frames["calibration"])


def test_the_growth_of_errors_is_kept_for_later_calibrations(tmp_path: Path) -> None:
    file = write(tmp_path / "a.xyz", 40, zero=ZERO, error=0.01)
    other = write(tmp_path / "b.xyz", 20, zero=ZERO, error=0.01, start=100)
    adopt(SPEC, file, growth=0.5).save(tmp_path / "a.bayrace")
    again = bayrace.calibrate(tmp_path / "a.bayrace", other, method="scale-rms")
    assert again.calibration is not None
    assert again.calibration.energy is not None
    assert again.calibration.forces is not None
    assert (again.calibration.energy.power, again.calibration.forces.power) == (0.5, 0.5)
    found = adopt(SPEC, file).calibration
    assert found is not None
    assert found.energy is not None
    assert 0.2 < found.energy.power < 4


def test_its_data_can_be_read_again_and_added_to(tmp_path: Path) -> None:
    adopted = adopt(SPEC, write(tmp_path / "a.xyz", 24, zero=ZERO, error=0.01))
    adopted.save(tmp_path / "a.bayrace")
    train, valid = training_frames(adopted)
    assert set(frame_hashes(train)) == set(adopted.frames["train"])
    assert len(valid) == 7
    new = ase.io.read(write(tmp_path / "b.xyz", 6, zero=ZERO, error=0.01, start=50), ":")
    more = [*train, *(frame_from_atoms(each, keys=None, index=k) for k, each in enumerate(new))]
    tuned = fine_tune(
        tmp_path / "a.bayrace", more, valid, tune=TuneConfig(), folder=tmp_path / "tune"
    )
    assert tuned is not None
    assert len(tuned.frames["train"]) == len(train) + 6
    assert tuned.references == adopted.references
    assert tuned.statistics["train_frames"] == len(train) + 6


def test_energies_alone_are_enough(tmp_path: Path) -> None:
    images = ase.io.read(write(tmp_path / "a.xyz", 24, zero=ZERO, error=0.01), ":")
    for atoms in images:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy())
    ase.io.write(tmp_path / "e.xyz", images)
    adopted = adopt(SPEC, tmp_path / "e.xyz")
    assert float(adopted.predict(images[0]).energy.std[0]) > 0


def test_refusals(tmp_path: Path) -> None:
    file = write(tmp_path / "a.xyz", 8, zero=ZERO)
    with pytest.raises(ConfigError, match="6 structures to fit σ to; give at least 8"):
        adopt(SPEC, file)
    with pytest.raises(ConfigError, match="there are distance, llpr"):
        adopt(SPEC, file, posterior="swag")
    with pytest.raises(ConfigError, match=r"nothing: no such weights; .*7net-0.*mace:FILE"):
        foreign_spec("nothing", elements=[1])
    with pytest.raises(ValueError, match=r"pip install 'bayrace\[mace\]'"):
        foreign_package("mace_that_nobody_has.modules", extra="mace")
    images = [molecule("H2O") for _ in range(12)]
    ase.io.write(tmp_path / "bare.xyz", images)
    with pytest.raises(ValueError, match="energ"):
        adopt(SPEC, tmp_path / "bare.xyz")
