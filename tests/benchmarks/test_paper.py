"""The paper's recipes can be read, and its tables print what runs reached beside it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ase.io
import numpy as np
import pytest

from bayrace.config import load_config
from bayrace.config.search import load_search, value_of
from bayrace.data.embedded import embedded_frames
from bayrace.data.read import frame_to_atoms

PAPER = Path(__file__).resolve().parents[2] / "benchmarks" / "paper"
RECIPES = sorted(path for path in PAPER.glob("*.yaml") if not path.name.startswith("search"))
SETS = ("qm9", "psb3", "rmd17", "3bpa", "obn25")


def test_every_set_has_a_recipe_of_the_paper_and_one_for_here() -> None:
    names = {path.stem for path in RECIPES}
    assert names == {*SETS, *(f"{name}-reduced" for name in SETS)}
    for path in RECIPES:
        config = load_config(path)
        if path.stem in SETS:
            assert config.model.preset == path.stem
    assert load_config(PAPER / "qm9.yaml").loss.kind == "mse"
    for path in PAPER.glob("search-*.yaml"):
        config, search, _ = load_search(path)
        for key in search.space:
            value_of(config, key)


def run(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_ours_beside_the_published(tmp_path: Path) -> None:
    for seed, error in enumerate((0.010, 0.012)):
        folder = tmp_path / "u0" / f"seed-{seed}"
        folder.mkdir(parents=True)
        content = {
            "test": {
                "frames": 7,
                "target": {"name": "u0", "unit": "eV", "pooling": "sum"},
                "energy": {"mae": error},
                "uncertainty": {"energy": {"coverage": {"90": 0.91}}},
            }
        }
        (folder / "test.json").write_text(json.dumps(content), encoding="utf-8")
    table = run(PAPER / "table.py", "qm9", "--runs", tmp_path)
    row = next(line for line in table.splitlines() if line.startswith("| u0"))
    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "u0",
        "meV",
        "5.61",
        "11 ± 1.4",
        "91 ± 0",
        "7, 2",
    ]
    assert "not run" in table


@pytest.mark.parametrize("name", [name for name in SETS if name != "qm9"])
def test_tables_without_runs(tmp_path: Path, name: str) -> None:
    assert run(PAPER / "table.py", name, "--runs", tmp_path).startswith("| ")


def test_the_split_does_not_depend_on_the_order(tmp_path: Path) -> None:
    count = 20
    random = np.random.default_rng(0)
    arrays = {
        "gdb_id": np.arange(count),
        "Z": random.choice([0, 1, 6], (count, 5)),
        "R": random.normal(size=(count, 5, 3)),
        "props": random.normal(size=(count, 1)),
        "prop_names": np.array(["gap"]),
    }
    found = []
    for name, order in (("one", np.arange(count)), ("two", np.arange(count)[::-1])):
        shuffled = {k: v if k == "prop_names" else v[order] for k, v in arrays.items()}
        np.savez(tmp_path / f"{name}.npz", **shuffled)
        run(
            *(PAPER / "qm9_split.py", tmp_path / f"{name}.npz", tmp_path / name),
            *("--train", 12, "--valid", 3),
        )
        sets = [np.load(tmp_path / name / f"{part}.npz") for part in ("train", "valid", "test")]
        found.append([set(each["gdb_id"].tolist()) for each in sets])
    assert found[0] == found[1]
    assert [len(each) for each in found[0]] == [12, 3, 5]
    assert set.union(*found[0]) == set(range(count))


def test_extensivity_is_drawn(make_potential, tmp_path: Path) -> None:
    """σ of replicas grows as N where it is ignorance and as √N where it is noise."""
    make_potential(seeds=(0, 1)).save(tmp_path / "model.bayrace")
    frames = [frame_to_atoms(frame) for frame in embedded_frames("ethanol-test")[:12]]
    ase.io.write(tmp_path / "test.xyz", frames, format="extxyz")
    target = tmp_path / "figure.png"
    printed = run(
        PAPER / "extensivity.py", tmp_path / "model.bayrace", tmp_path / "test.xyz", "-o", target
    )
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "noise, replicas: N^0.500" in printed
    assert "ignorance, replicas: N^1.000" in printed
