"""Every script of benchmarks/ starts, and what needs neither peers nor their data runs once."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import pytest
import torch

from bayrace.config import make_config
from bayrace.data.embedded import embedded
from bayrace.potential.potential import Potential
from bayrace.workflow import train as run

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))
PEERS = {"apax", "jax", "mace", "nequip", "qclab"}  # each in an environment of its own

START = """
import pathlib, runpy, sys
root = sys.argv[1]
for path in sys.argv[2:]:
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(root):
            del sys.modules[name]
    sys.path[0], sys.argv = str(pathlib.Path(path).parent), [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
        print("imported", path)
    except SystemExit as end:
        print("helped" if end.code == 0 else f"failed with {end.code!r}", path)
    except ModuleNotFoundError as error:
        print("missing", (error.name or "").split(".")[0], path)
"""


def test_every_script_starts(tmp_path: Path) -> None:
    """Each says what it is for with --help; modules without a main are imported."""
    assert len(SCRIPTS) > 20
    found = subprocess.run(
        [sys.executable, "-c", START, str(BENCHMARKS), *map(str, SCRIPTS)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    words = ("imported", "helped", "missing", "failed")
    lines = [line for line in found.stdout.splitlines() if line.startswith(words)]
    said = {line.split()[-1]: line.split()[:-1] for line in lines}
    assert set(said) == set(map(str, SCRIPTS))
    for path, outcome in said.items():
        main = '__name__ == "__main__"' in Path(path).read_text(encoding="utf-8")
        if outcome[0] == "missing":
            assert outcome[1] in PEERS, f"{path}: no {outcome[1]}"
        else:
            assert outcome == (["helped"] if main else ["imported"]), path


Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Script]:
    """Import one as if it was started in an empty folder; scripts of one folder see each other."""
    monkeypatch.chdir(tmp_path)

    def load(name: str) -> ModuleType:
        path = BENCHMARKS / name
        monkeypatch.syspath_prepend(str(path.parent))
        return importlib.import_module(path.stem)

    yield load
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(BENCHMARKS)):
            del sys.modules[name]


def start(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def trained(kind: str, path: Path, **loss: Any) -> Potential:
    """A network that has seen eight molecules once, with test sets named after temperatures."""
    hot, cold = (f"{embedded(f'ethanol-{name}')}@:3" for name in ("hot", "test"))
    config = make_config(
        {
            "output": str(path.parent),
            "data": {
                "train": f"{embedded('ethanol-train')}@:8",
                "valid": f"{embedded('ethanol-valid')}@:20",
                "test": {"300K": cold, "600K": hot, "1200K": hot},
            },
            "model": {"preset": "tiny", "layers": 1, "hidden": "8x0e+8x1o+8x2e"},
            "loss": {"kind": kind, "refit_epochs": 0, **loss},
            "train": {"max_epochs": 1, "batch_size": 4},
        }
    )
    return run.train(config).potential


def test_table_of_posteriors(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = script("posteriors/table.py")
    artifacts, judge, make = (
        sys.modules["artifacts"],
        *map(importlib.import_module, ("judge", "make")),
    )
    study = artifacts.STUDIES["3bpa"]
    for seed in (0, 1):
        rows = artifacts.artifacts(study, seed)
        trained("mse", rows["mse-0"].file)
        make.attach(rows["llpr-mse"])
    trained("nll_jef", artifacts.artifacts(study, 0)["nll_jef-0"].file)
    trained("nll_jef", artifacts.artifacts(study, 0)["cholesky"].file, covariance="cholesky")
    start(judge, monkeypatch, "3bpa", "--seeds", 0, 1)
    start(sys.modules["cost"], monkeypatch, "3bpa", "--rounds", 1, "--slow-rounds", 1)
    start(table, monkeypatch, "3bpa", "--seeds", 0, 1)
    start(importlib.import_module("covariance"), monkeypatch, "--every", 1, "--turns", 1)
    shown = capsys.readouterr().out
    assert "| LLPR on MSE |" in shown
    assert "± 0.000" in shown  # two seeds, trained alike
    assert "| Cholesky | 1200K, 3 |" in shown
    costs = json.loads(sys.modules["cost"].file_of(study).read_text())
    assert costs["1"]["mse-0"]["time"] == 1.0
    assert costs["1"]["llpr-mse"]["time"] > 1.0  # force covariances are not for nothing
    results = json.loads((study.results / "table.json").read_text())["results"]
    assert {"mse-0", "nll_jef-0", "llpr-mse"} <= set(results)
    assert [len(results[name]) for name in ("llpr-mse", "nll_jef-0")] == [2, 1]


def molecules(folder: Path) -> Path:
    """Files as benchmarks/peers/data.py writes them, of ethanol."""
    folder.mkdir(parents=True)
    for name in ("train", "valid"):
        ase.io.write(folder / f"{name}.xyz", ase.io.read(embedded(f"ethanol-{name}"), ":6"))
    return folder


def test_bayrace_beside_its_peers(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every quantity of the speed benchmark, of the smallest network."""
    worker = script("peers/worker.py").Worker("bayrace", molecules(tmp_path / "data"))
    few = {"size": "bayrace-tiny", "seconds": 0.01, "most": 1}
    for command in (
        {"do": "step", **few},
        {"do": "evaluate", "system": "3bpa-5", **few},
        {"do": "evaluate", "system": "si-64", **few},
        {"do": "dynamics", **few},
    ):
        assert all(seconds > 0 for seconds in worker.answer(command)["seconds"])
    assert worker.answer({"do": "start", "size": "bayrace-tiny"}) == {}
    peak = worker.answer({"do": "memory", "size": "bayrace-tiny", "system": "si-64"})
    assert peak["peak"] >= peak["before"] > 0


def test_make_bench_honours_its_folder(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """speed.py finds data, environments and results in BENCH, and its worker answers."""
    monkeypatch.setenv("BENCH", str(tmp_path / "elsewhere"))
    molecules(tmp_path / "elsewhere/data/3bpa")
    speed = script("peers/speed.py")
    only = ("--only", "3bpa-1", "bayrace-small", "--threads", 1)
    start(speed, monkeypatch, *only, "--rounds", 1, "--most", 1, "--seconds", 0.01)
    content = json.loads((tmp_path / "elsewhere/results/speed.json").read_text())
    assert content["results"]["3bpa-1"]["bayrace-small"]["median"] > 0
    assert speed.PYTHON["mace"] == str(tmp_path / "elsewhere/mace/bin/python")
    accuracy = importlib.import_module("accuracy")
    command = accuracy.Training("bayrace", "3bpa", 10).command()
    assert f'data.train="{tmp_path}/elsewhere/data/3bpa/train.xyz"' in command
    assert not any(part.startswith(".bench") or "=.bench" in part for part in command)
    start(accuracy, monkeypatch, "--table")
    made = (BENCHMARKS.parent / "Makefile").read_text(encoding="utf-8")
    assert "\nexport BENCH\n" in made


def test_muon_of_the_peers_moves_the_matrices_of_e3nn(script: Script) -> None:
    """It finds them inside flat parameters, and moves every direction of each alike."""
    o3, muon = pytest.importorskip("e3nn.o3"), script("peers/muon.py")
    torch.manual_seed(0)
    linear = o3.Linear("16x0e+8x1o", "24x0e+8x1o")
    network = torch.nn.Sequential(linear, torch.nn.Linear(24 + 3 * 8, 1))
    optimiser = muon.Muon(network, [{"params": network.parameters(), "lr": 0.1}])
    assert list(optimiser.momentum) == [linear.weight]
    before = [each.clone() for each in linear.weight_views()]
    slopes = torch.randn_like(linear.weight)
    network(linear.irreps_in.randn(5, -1)).sum().backward()
    linear.weight.grad = slopes
    optimiser.step()
    for old, new in zip(before, linear.weight_views(), strict=True):
        moved = torch.linalg.svdvals(old - new) / (0.1 * 0.2 * max(old.shape) ** 0.5)
        assert moved.min() > 0.85
        assert moved.max() < 1.15


def test_counts_of_operations(
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = script("peers/counts.py")
    monkeypatch.setattr(counts, "REPEATS", 1)
    data = molecules(tmp_path / "data")
    start(counts, monkeypatch, "--sizes", "bayrace-tiny", "--data", data)
    assert "all    together" in capsys.readouterr().out


def test_cost_of_uncertainty(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cost = script("uncertainty_cost.py")
    data = f"{embedded('ethanol-train')}@:6"
    path = tmp_path / "cost.json"
    start(
        cost,
        monkeypatch,
        *("--rounds", 1, "--data", data, "--preset", "tiny", "--sizes", 1),
        "--json",
        path,
    )
    found = json.loads(path.read_text())["1"]
    assert found["LLPR, force Σ exactly"] > found["point"] > 0


def test_energy_conservation_and_its_table(
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"
    trained("mse", folder / "model.bayrace")
    more = ("--start", embedded("ethanol-test"), "--steps", 60, "--warm", 2)
    start(script("3bpa/nve.py"), monkeypatch, folder / "model.bayrace", *more)
    start(script("3bpa/table.py"), monkeypatch, folder, "--figure", tmp_path / "curve.png")
    shown = capsys.readouterr().out
    assert "drift_meV_per_atom_per_ps" in shown
    assert "run: 2 steps" in shown
    assert (tmp_path / "curve.png").is_file()
