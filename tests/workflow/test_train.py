from __future__ import annotations

import shutil
import signal

import ase.io
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from bayrace.config import make_config
from bayrace.data.embedded import embedded, embedded_frames
from bayrace.data.frame import DataError, frame_to_atoms
from bayrace.data.reference import fit_references
from bayrace.potential.potential import Potential
from bayrace.system.signals import stop_on_signals
from bayrace.workflow import train as run


def config(output, train, **sections):
    return make_config(
        {
            "output": str(output),
            "data": {"train": train, **sections.pop("data", {})},
            "model": {"preset": "tiny", "radial_hidden": [16], **sections.pop("model", {})},
            "train": {"max_epochs": 1, "batch_size": 4},
            **sections,
        }
    )


def test_references_and_statistics_come_from_the_training_part_only(tmp_path):
    ready = run.prepare(config(tmp_path, f"{embedded('ethanol-train')}@:20", data={"valid": 8}))
    assert (len(ready.train), len(ready.valid)) == (12, 8)
    assert ready.train.references == fit_references(ready.splits.train, given=None)
    assert ready.model.spec.mean_neighbours == ready.train.mean_neighbours()
    assert ready.model.spec.scale == ready.train.force_rms()


def test_preset_values_of_the_paper_are_not_measured(tmp_path):
    model = {"mean_neighbours": 13.0, "normalise": False}
    train = f"{embedded('ethanol-train')}@:8"
    spec = run.prepare(config(tmp_path, train, model=model)).model.spec
    assert (spec.mean_neighbours, spec.scale, spec.shift) == (13.0, 1.0, (0.0, 0.0, 0.0))


def test_validation_files_and_given_references(tmp_path):
    references = {"H": -10.0, "C": -40.0, "O": -100.0}
    data = {"valid": f"{embedded('ethanol-valid')}@:3", "references": references}
    ready = run.prepare(config(tmp_path, f"{embedded('ethanol-train')}@:8", data=data))
    assert (len(ready.train), len(ready.valid)) == (8, 3)
    assert ready.train.references == {1: -10.0, 6: -40.0, 8: -100.0}


def test_test_data_are_checked_before_the_training(tmp_path):
    data = {"valid": 2, "test": {"other": f"{embedded('ammonia-test')}@:2"}}
    settings = config(tmp_path, f"{embedded('ethanol-train')}@:6", data=data)
    with pytest.raises(DataError, match=r"ammonia-test.*N"):
        run.train(settings)
    assert not (tmp_path / "history.jsonl").exists()


@pytest.mark.parametrize("part", ["valid", "test"])
def test_sets_without_labels_are_refused_before_the_training(tmp_path, part):
    """They ended in a validation loss of 0 and in an empty table."""
    atoms = [frame.copy() for frame in ase.io.read(embedded("ethanol-test"), ":3")]
    for each in atoms:
        each.info["dft_energy"] = -309.0
    ase.io.write(tmp_path / "bare.xyz", atoms)
    data = {"valid": 2, part: str(tmp_path / "bare.xyz")}
    settings = config(tmp_path / "run", f"{embedded('ethanol-train')}@:6", data=data)
    with pytest.raises(DataError, match=r"bare.xyz: no frame .*energy: dft_energy"):
        run.train(settings)
    assert not (tmp_path / "run" / "history.jsonl").exists()


def test_single_atoms_alone_are_refused(tmp_path):
    """They gave a file of a potential that could not be read again."""
    atoms = [Atoms("H", info={"energy": -13.6 + 0.01 * n}) for n in range(6)]
    ase.io.write(tmp_path / "atoms.xyz", atoms)
    loss = {"kind": "nll_e", "forces": 0.0}
    data = {"valid": 2, "energy_key": "energy"}
    settings = config(tmp_path / "run", str(tmp_path / "atoms.xyz"), data=data, loss=loss)
    with pytest.raises(DataError, match="no atom has another within the cutoff of 5 Å"):
        run.train(settings)


def test_a_periodic_run_with_stress_and_its_noise(tmp_path):
    loss = {"stress": 1000.0, "stress_noise": True}
    data = {"valid": 2, "test": f"{embedded('ammonia-test')}@:2"}
    settings = config(tmp_path, f"{embedded('ammonia-train')}@:6", loss=loss, data=data)
    result = run.train(settings)
    (evaluation,) = result.evaluations
    assert evaluation.accuracy.total.stress.count == 12
    assert evaluation.stress.spread() > 0
    assert "stress_mae" in result.fit.metrics
    assert (tmp_path / "test.json").is_file()


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        run.train(config(tmp_path / "file", "none.xyz"))


def test_swag_from_the_training_itself(tmp_path):
    """No tail: the snapshots are of the run, also of one that was stopped and resumed."""
    posterior = {"kind": "swag", "swag": {"start": 0.5, "samples": 2, "rank": 2}}
    train, loss = f"{embedded('ethanol-train')}@:8", {"refit_epochs": 1}
    sections = {"posterior": posterior, "data": {"valid": 4}, "loss": loss}

    def settings(name):
        more = {"train": {"max_epochs": 6, "batch_size": 4}}
        base = config(tmp_path / name, train, **sections, model={"layers": 1})
        return make_config(
            base.model_dump(mode="json") | {"train": base.train.model_dump() | more["train"]}
        )

    whole = run.train(settings("whole"))
    assert whole.potential.posterior.name == "swag"
    kept = sorted(path.stem for path in (tmp_path / "whole" / "swag" / "snapshots").iterdir())
    assert kept == ["000004", "000005", "000006"]
    assert not (tmp_path / "whole" / "swag" / "last.ckpt").exists()
    asked = []

    def stop():
        asked.append(True)
        return len(asked) > 4

    first = run.train(settings("parts"), callbacks=run.Callbacks(stop=stop))
    assert first.fit.reason == "interrupted"
    parts = run.train(settings("parts"), resume=True)
    for name, value in whole.potential.posterior.tensors().items():
        assert value.equal(parts.potential.posterior.tensors()[name]), name


def test_what_nobody_asked_for_is_there(tmp_path):
    """By default a potential has an epistemic part and a calibration, and its file says so."""
    train = f"{embedded('ethanol-train')}@:20"
    run.train(config(tmp_path / "a", train, data={"valid": 8}))
    potential = Potential.load(tmp_path / "a" / "model.bayrace")
    assert potential.posterior.name == "distance"
    assert potential.calibration.method == "scale"
    assert set(potential.frames) == {"train", "valid", "calibration"}
    found = potential.predict(embedded_frames("ethanol-hot")[:3])
    assert (found.energy.epistemic > 0).all()
    assert (torch.linalg.eigvalsh(found.forces.epistemic) > 0).all()
    assert found.atomic_epistemic.shape == (27,)
    off = {"posterior": "point", "calibrate": "none"}
    plain = run.train(config(tmp_path / "b", train, data={"valid": 8}, **off)).potential
    assert plain.posterior.name == "point"
    assert plain.calibration is None
    torch.testing.assert_close(
        plain.predict(embedded_frames("ethanol-hot")[:3]).forces.mean, found.forces.mean
    )


def test_training_without_noise_and_posterior_is_not_calibrated(tmp_path):
    sections = {"posterior": "point", "loss": {"kind": "mse"}, "data": {"valid": 2}}
    result = run.train(config(tmp_path, f"{embedded('ethanol-train')}@:6", **sections))
    assert result.potential.calibration is None
    assert not result.potential.predict(embedded_frames("ethanol-hot")[0]).forces.total.any()


@pytest.mark.parametrize("kind", ["distance", "llpr"])
def test_a_signal_while_the_posterior_is_fitted_ends_it(tmp_path, kind):
    """It was heard once the whole fit was done; what resumes ends where an undisturbed run does."""

    def settings(name):
        data = {"valid": 4}
        train = f"{embedded('ethanol-train')}@:16"
        return config(tmp_path / name, train, data=data, posterior=kind)

    done = []

    def interrupt(count):
        done.append(count)
        if len(done) == 1:
            signal.raise_signal(signal.SIGINT)

    with stop_on_signals() as stop:
        callbacks = run.Callbacks(stop=stop, progress=interrupt)
        result = run.train(settings("stopped"), callbacks=callbacks)
    assert len(done) == 1
    assert result.fit.reason == "interrupted"
    saved = Potential.load(tmp_path / "stopped" / "model.bayrace")
    assert saved.posterior.name == "point"
    assert saved.statistics["reason"] == "interrupted"
    again = run.train(settings("stopped"), resume=True).potential
    whole = run.train(settings("whole")).potential
    assert again.posterior.name == kind
    for name, value in whole.posterior.tensors().items():
        assert torch.equal(again.posterior.tensors()[name], value), name


def test_ctrl_c_while_test_sets_are_evaluated_ends_it(tmp_path):
    """It was not heard, however large they were; what resumes evaluates the same potential."""
    train, hot = f"{embedded('ethanol-train')}@:16", f"{embedded('ethanol-hot')}@:8"
    settings = config(tmp_path / "run", train, data={"valid": 4, "test": {"hot": hot}})
    written = tmp_path / "run" / "model.bayrace"
    result = run.train(settings, callbacks=run.Callbacks(stop=written.exists))
    assert result.fit.reason == "interrupted"
    assert result.evaluations == ()
    assert not (tmp_path / "run" / "test.json").exists()
    saved = written.read_bytes()
    again = run.train(settings, resume=True)
    assert again.evaluations[0].accuracy.frames == 8
    assert written.read_bytes() == saved


def test_atoms_that_are_all_alike(tmp_path):
    """Features without any variance gave distances that are not finite, after the training."""
    cells = [Atoms("H", cell=[1.5, 1.5, 1.5], pbc=True) for _ in range(6)]
    for cell in cells:
        cell.calc = SinglePointCalculator(cell, energy=-1.0, forces=[[0.0, 0.0, 0.0]])
    ase.io.write(tmp_path / "alike.xyz", cells)
    run.train(config(tmp_path / "run", str(tmp_path / "alike.xyz"), data={"valid": 2}))
    potential = Potential.load(tmp_path / "run" / "model.bayrace")
    assert potential.posterior.name == "distance"
    known = potential.predict(cells[0]).energy
    other = potential.predict(Atoms("H", cell=[1.6, 1.6, 1.6], pbc=True)).energy
    assert known.total.isfinite().all()
    assert other.total.isfinite().all()
    assert other.total > known.total


@pytest.mark.parametrize("label", ["forces", "energy"])
def test_labels_beyond_any_network_are_refused_in_plain_words(tmp_path, label):
    frames = [frame_to_atoms(frame) for frame in embedded_frames("ethanol-train")[:12]]
    for place, atoms in enumerate(frames):
        if label == "forces":
            found = {"energy": 0.0, "forces": 1e8 * atoms.get_forces()}
        else:
            found = {"energy": 1e9 * place}
        atoms.calc = SinglePointCalculator(atoms, **found)
    ase.io.write(tmp_path / "wild.xyz", frames)
    loss = {} if label == "forces" else {"kind": "nll_e", "forces": 0.0}
    wild = config(tmp_path / "run", str(tmp_path / "wild.xyz"), loss=loss)
    with pytest.raises(ValueError, match=rf"wild.xyz: labels of {label} .* convert their unit"):
        run.train(wild)


@pytest.mark.parametrize("name", ["file", "file/inside"])
def test_no_folder_can_be_where_a_file_is(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file; name a folder"):
        run.train(config(tmp_path / name, str(embedded("ethanol-train"))))


def test_home_is_where_no_shell_has_looked(tmp_path, monkeypatch):
    """A folder that is called ~ waits for somebody to remove it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(embedded("ethanol-train"), tmp_path / "mine.xyz.gz")
    settings = config("~/run", "~/mine.xyz.gz@:12")
    assert settings.output == f"{tmp_path}/run"
    assert len(run.prepare(settings).splits.train) == 11
