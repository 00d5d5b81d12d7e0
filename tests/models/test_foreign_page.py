"""The examples of docs/foreign.md run."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import ase.io
import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

import bayrace
from bayrace import models

PAGE = Path(__file__).parents[2] / "docs" / "foreign.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_two() -> None:
    assert len(BLOCKS) == 2


def test_a_network_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, type] = {"__name__": "__main__"}
    exec(compile(BLOCKS[1], str(PAGE), "exec", dont_inherit=True), names)
    monkeypatch.setattr(models.MODELS, "_registered", {})
    models.register(names["NetworkSpec"])
    images = []
    for seed in range(20):
        atoms = bulk("Cu", cubic=True)
        atoms.rattle(0.08, seed=seed)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        images.append(atoms)
    ase.io.write(tmp_path / "mine.xyz", images)
    potential = bayrace.adopt(names["NetworkSpec"]((29,)), tmp_path / "mine.xyz")
    potential.save(tmp_path / "mine.bayrace")
    loaded = bayrace.Potential.load(tmp_path / "mine.bayrace")
    assert float(loaded.predict(images[0]).energy.std[0]) > 0


@pytest.mark.filterwarnings("ignore")  # of the other package
def test_sevennet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("sevenn", reason="pip install bayrace[sevennet]")
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[0], {"__name__": "__main__"})
    energy, sigma = re.search(r"(\S+) ± (\S+) eV", capsys.readouterr().out).groups()
    assert abs(float(energy)) < 1  # EMT counts from the perfect crystal; 7net-0 from far below
    assert 0 < float(sigma) < 1
