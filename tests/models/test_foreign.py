"""SevenNet, CHGNet and MACE as potentials: their own energies, an honest σ, and what is refused.

Each needs its package; SevenNet and CHGNet bring their weights along, so that nothing is fetched.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from typer.testing import CliRunner

import bayrace
from bayrace.cli.main import app
from bayrace.evaluate.metrics.ood import auroc
from bayrace.models.foreign import ForeignSpec
from bayrace.models.mace import MaceSpec
from bayrace.models.module import ModuleModel, check_linear
from bayrace.posterior.point import Point
from bayrace.potential.potential import Potential
from bayrace.testing import graph_of
from bayrace.workflow.adopt import foreign_spec

pytestmark = pytest.mark.filterwarnings("ignore")  # of other packages

PLACES = {"sevennet": "sevenn", "chgnet": "chgnet", "mace": "mace"}  # what is imported
WEIGHTS = {"sevennet": "7net-0", "chgnet": "chgnet"}


@pytest.fixture(scope="module", params=list(PLACES))
def kind(request: pytest.FixtureRequest) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(PLACES[request.param], reason=f"pip install bayrace[{request.param}]")
    return str(request.param)


@pytest.fixture(scope="module")
def weights(kind: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """As a user names them; of MACE a small network with random weights."""
    if kind != "mace":
        return WEIGHTS[kind]
    path = tmp_path_factory.mktemp("mace") / "small.model"
    torch.save(_small_mace(seed=0), path)
    return f"mace:{path}"


def _small_mace(*, seed: int) -> Any:
    from e3nn import o3
    from mace import modules

    torch.manual_seed(seed)
    block = modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    return modules.ScaleShiftMACE(
        r_max=4.0,
        num_bessel=6,
        num_polynomial_cutoff=5,
        max_ell=2,
        interaction_cls=block,
        interaction_cls_first=block,
        num_interactions=2,
        num_elements=3,
        hidden_irreps=o3.Irreps("8x0e+8x1o"),
        MLP_irreps=o3.Irreps("6x0e"),
        atomic_energies=np.array([-1.0, -2.0, -3.0]),
        avg_num_neighbors=10.0,
        atomic_numbers=[11, 14, 17],
        correlation=2,
        gate=torch.nn.functional.silu,
        atomic_inter_scale=5.0,
        atomic_inter_shift=0.1,
        pair_repulsion=True,
    )


def _trained_mace(structures: list[Atoms]) -> Any:
    """The small network after some steps towards labelled forces; its package does the work."""
    from mace.data import AtomicData, config_from_atoms
    from mace.tools import AtomicNumberTable, torch_geometric

    network = _small_mace(seed=0)
    table = AtomicNumberTable([11, 14, 17])
    graphs = [
        AtomicData.from_config(config_from_atoms(atoms), z_table=table, cutoff=4.0)
        for atoms in structures
    ]
    batch = next(iter(torch_geometric.dataloader.DataLoader(graphs, batch_size=len(graphs))))
    target = torch.tensor(np.concatenate([atoms.get_forces() for atoms in structures]))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    errors = []
    for _ in range(40):
        optimiser.zero_grad()
        forces = network(batch.to_dict(), training=True)["forces"]
        loss = (forces - target.to(forces)).square().mean()
        loss.backward()
        optimiser.step()
        errors.append(float(loss))
    assert errors[-1] < 0.5 * errors[0]
    return network


def _own_calculator(kind: str, weights: str) -> Any:
    """The calculator that its package offers."""
    with contextlib.redirect_stdout(io.StringIO()):
        if kind == "sevennet":
            from sevenn.calculator import SevenNetCalculator

            return SevenNetCalculator(weights, device="cpu")
        if kind == "chgnet":
            from chgnet.model.dynamics import CHGNetCalculator

            return CHGNetCalculator(use_device="cpu")
        from mace.calculators import MACECalculator

        path = weights.removeprefix("mace:")
        return MACECalculator(model_paths=path, device="cpu", default_dtype="float32")


def crystal(name: str, *, rattle: float, strain: float, seed: int) -> Atoms:
    """Eight atoms of salt or silicon, not closer than 1 Å."""
    random = np.random.default_rng(seed)
    lattice = {"NaCl": ("rocksalt", 5.64), "Si": ("diamond", 5.43)}[name]
    atoms = bulk(name, *lattice, cubic=True)
    change = strain * random.normal(size=(3, 3))
    atoms.set_cell(atoms.cell[:] @ (np.eye(3) + (change + change.T) / 2), scale_atoms=True)
    perfect = atoms.positions.copy()
    while True:
        atoms.positions = perfect + rattle * random.normal(size=perfect.shape)
        distances = atoms.get_all_distances(mic=True)
        if distances[np.triu_indices(8, 1)].min() > 1.0:
            return atoms


def test_energies_forces_and_stress_are_those_of_the_package(
    kind: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CHGNet in float64: its float32 rounds forces by up to 2e-5 eV/Å."""
    structures = [
        crystal("NaCl", rattle=0.1, strain=0.02, seed=1),
        crystal("Si", rattle=0.2, strain=0.02, seed=2),
        bulk("NaCl", "rocksalt", 5.7),  # neighbours that are images of the atom itself
    ]
    spec = foreign_spec(weights, elements=[17, 14, 11])
    model = spec.build()
    potential = Potential(
        spec=spec,
        posterior=Point(model.init(0)),
        references=dict.fromkeys(spec.elements, 0.0),
        lambdas=bayrace.models.noise.Lambdas(1.0, 1.0, 1.0),
        statistics={},
        config={},
        fingerprint="0" * 64,
    )
    found = potential.predict(structures, stress=True)
    assert found.stress is not None
    calculator, start = _own_calculator(kind, weights), 0
    if kind == "chgnet":
        _in_double_precision(calculator, monkeypatch)
        found = potential.to(dtype="float64").predict(structures, stress=True)
        assert found.stress is not None
    for number, atoms in enumerate(structures):
        atoms.calc = calculator
        mine = found.forces.mean[start : start + len(atoms)].numpy()
        start += len(atoms)
        energy = float(found.energy.mean[number])
        assert energy == pytest.approx(float(atoms.get_potential_energy()), abs=1e-5 * len(atoms))
        np.testing.assert_allclose(mine, atoms.get_forces(), atol=1e-5)
        np.testing.assert_allclose(found.stress.mean[number], atoms.get_stress(), atol=1e-6)


def _in_double_precision(calculator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """CHGNet's own calculator, whose graphs are float32 otherwise."""
    from chgnet.graph import converter, crystalgraph
    from chgnet.model import model

    for module in (converter, crystalgraph, model):
        monkeypatch.setattr(module, "TORCH_DTYPE", torch.float64)
    calculator.model.double()
    calculator.model.composition_model.float()  # which reads counts of atoms as float32


def test_energies_are_linear_in_the_last_layer(kind: str, weights: str) -> None:
    model = foreign_spec(weights, elements=[11, 17]).build()
    assert isinstance(model, ModuleModel)
    frame = bayrace.data.frame.frame_from_atoms(
        crystal("NaCl", rattle=0.1, strain=0.02, seed=1), keys=None, index=0
    )
    params = model.init(0, dtype=torch.float64)
    batch = graph_of(model, frame)
    expected = {"sevennet": 64, "chgnet": 64, "mace": 8 + 6}[kind]
    assert model.last_layer(params).shape == (expected,)
    assert check_linear(model, params, batch, tolerance=1e-9) < 1e-9


@pytest.fixture(scope="module")
def adopted(kind: str, weights: str, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A potential for salt, labelled by another network, and what it is tried on."""
    folder = tmp_path_factory.mktemp("adopted")
    label = _other(kind, folder)
    home = [crystal("NaCl", rattle=r, strain=0.015, seed=k) for k, r in enumerate(_amplitudes(60))]
    test = [
        crystal("NaCl", rattle=r, strain=0.015, seed=500 + k) for k, r in enumerate(_amplitudes(40))
    ]
    far = [crystal("NaCl", rattle=0.3, strain=0.05, seed=900 + k) for k in range(15)]
    for name, images in (("home", home), ("test", test), ("far", far)):
        ase.io.write(folder / f"{name}.xyz", [label(atoms) for atoms in images])
    file = folder / "salt.bayrace"
    result = CliRunner().invoke(
        app, ["adopt", weights, "--data", str(folder / "home.xyz"), "-o", str(file)]
    )
    assert result.exit_code == 0, result.output
    return SimpleNamespace(folder=folder, file=file, printed=result.output)


def _amplitudes(count: int) -> list[float]:
    return np.random.default_rng(count).uniform(0.02, 0.12, count).tolist()


def _other(kind: str, folder: Path) -> Callable[[Atoms], Atoms]:
    """Labels by another foundation model where there is one, else by other weights."""
    if kind == "mace":
        torch.save(_small_mace(seed=1), folder / "other.model")
        calculator = _own_calculator("mace", f"mace:{folder / 'other.model'}")
    else:
        other = {"sevennet": "chgnet", "chgnet": "sevennet"}[kind]
        pytest.importorskip(PLACES[other], reason=f"labels are those of {other}")
        calculator = _own_calculator(other, WEIGHTS[other])

    def label(atoms: Atoms) -> Atoms:
        atoms.calc = calculator
        energy, forces = float(atoms.get_potential_energy()), atoms.get_forces()
        atoms.calc = SinglePointCalculator(
            atoms, energy=energy, forces=forces, stress=atoms.get_stress()
        )
        return atoms

    return label


def test_intervals_hold_at_home_and_strangers_are_known(adopted: SimpleNamespace) -> None:
    potential = Potential.load(adopted.file)
    home, far = (ase.io.read(adopted.folder / f"{name}.xyz", ":") for name in ("test", "far"))
    near, away = potential.predict(home), potential.predict(far)
    low, high = near.energy.interval(0.9)
    labels = torch.tensor([atoms.get_potential_energy() for atoms in home])
    inside = float(((labels >= low) & (labels <= high)).double().mean())
    assert 0.8 <= inside <= 1.0  # of 40: two standard errors around 0.9
    for one, other in ((near.energy.std, away.energy.std), (_worst(near), _worst(away))):
        assert auroc(one.numpy(), other.numpy()) >= 0.95


def _worst(prediction: Any) -> torch.Tensor:
    """σ of the force on the worst atom of structures of 8."""
    return prediction.forces.level.reshape(-1, 8).amax(1)


def test_sigma_rises_with_the_amplitude(adopted: SimpleNamespace) -> None:
    potential = Potential.load(adopted.file)
    energy, forces = [], []
    for rattle in (0.07, 0.15, 0.22, 0.3):  # the first is the middle of the data
        images = [crystal("NaCl", rattle=rattle, strain=0.01, seed=70 + k) for k in range(8)]
        found = potential.predict(images)
        energy.append(float(found.energy.std.median()))
        forces.append(float(_worst(found).median()))
    assert energy == sorted(energy)
    assert forces == sorted(forces)


def test_dynamics_run_and_stop(adopted: SimpleNamespace, tmp_path: Path) -> None:
    common = [
        "md",
        str(adopted.file),
        f"{adopted.folder}/test.xyz@0",
        "-o",
        str(tmp_path / "r.traj"),
    ]
    calm = CliRunner().invoke(
        app,
        [
            *common,
            "--temperature",
            "100",
            "--steps",
            "3",
            "--max-force-error",
            "50",
            "--gap",
            "off",
        ],
    )
    assert calm.exit_code == 0, calm.output
    hot = [*common, "--temperature", "6000", "--steps", "200", "--timestep", "2", "--overwrite"]
    stopped = CliRunner().invoke(app, hot)
    assert stopped.exit_code == 3, stopped.output
    assert "stopped: step" in stopped.output


def test_the_file_is_small_and_names_the_weights(
    kind: str, weights: str, adopted: SimpleNamespace
) -> None:
    potential = Potential.load(adopted.file)
    spec = potential.spec
    assert isinstance(spec, ForeignSpec)
    assert spec.weights == weights.removeprefix("mace:")
    assert spec.elements == (11, 17)
    assert adopted.file.stat().st_size < 250_000
    assert list(potential.posterior.draw(1, seed=0)) == sorted(potential.model.shapes)
    assert f"{weights}, Na, Cl" in adopted.printed


def test_other_weights_and_versions(
    kind: str, adopted: SimpleNamespace, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    potential = Potential.load(adopted.file)
    spec = potential.spec
    assert isinstance(spec, ForeignSpec)
    changed = Potential(**{**vars_of(potential), "spec": replace(spec, sha256="0" * 64)})
    with pytest.raises(ValueError, match="not the weights that were adopted"):
        changed.save(tmp_path / "other.bayrace")
    with caplog.at_level(logging.WARNING):
        replace(spec, package_version="0.0.1").build()
    assert "adopted with 0.0.1" in caplog.text
    with pytest.raises(ValueError, match=r"does not know atomic numbers \[118\]"):
        type(spec).adopt(spec.weights, elements=[118])


def vars_of(potential: Potential) -> dict[str, Any]:
    names = type(potential).__dataclass_fields__
    return {name: getattr(potential, name) for name in names}


def test_weights_of_a_user_that_change_are_refused(kind: str, tmp_path: Path) -> None:
    if kind != "mace":
        pytest.skip("its weights are in the wheel")
    path = tmp_path / "mine.model"
    torch.save(_small_mace(seed=0), path)
    spec = MaceSpec.adopt(str(path), elements=[11])
    spec.build()
    torch.save(_small_mace(seed=1), path)
    with pytest.raises(ValueError, match="not the weights that were adopted"):
        spec.build()
    path.unlink()
    with pytest.raises(ValueError, match="no such file"):
        spec.build()


def test_a_trained_mace(tmp_path: Path) -> None:
    """Trained here by its own package, then adopted with LLPR for what it was trained on."""
    warnings.simplefilter("ignore")
    pytest.importorskip("mace", reason="pip install bayrace[mace]")
    label = _other("mace", tmp_path)
    home = [
        label(crystal("NaCl", rattle=r, strain=0.015, seed=k))
        for k, r in enumerate(_amplitudes(30))
    ]
    torch.save(_trained_mace(home[:10]), tmp_path / "trained.model")
    ase.io.write(tmp_path / "home.xyz", home)
    weights = f"mace:{tmp_path / 'trained.model'}"
    potential = bayrace.adopt(weights, tmp_path / "home.xyz", posterior="llpr")
    calculator = _own_calculator("mace", weights)
    atoms = crystal("NaCl", rattle=0.1, strain=0.02, seed=1)
    found = potential.predict(atoms)
    atoms.calc = calculator
    np.testing.assert_allclose(found.forces.mean.numpy(), atoms.get_forces(), atol=1e-5)
    far = [crystal("NaCl", rattle=0.3, strain=0.05, seed=900 + k) for k in range(15)]
    near, away = potential.predict(home[10:]), potential.predict(far)
    assert auroc(_worst(near).numpy(), _worst(away).numpy()) >= 0.95
    assert auroc(near.energy.std.numpy(), away.energy.std.numpy()) >= 0.95
