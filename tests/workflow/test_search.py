"""Search: every trial is kept, through a kill -9 too; test data are never read; best is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ase.io
import pytest

from bayrace.config import ConfigError, TrainConfig, load_config
from bayrace.config.search import load_search, with_values
from bayrace.data.embedded import embedded_frames
from bayrace.data.read import frame_to_atoms
from bayrace.workflow.search import BEST, RESULTS, SearchObserver, search

CONFIG = """
output: {folder}/out
data: {{train: {folder}/train.xyz, valid: 6, test: {{never: /no/such/file.xyz}}}}
model: {{preset: tiny, hidden: 4x0e+4x1o+4x2e, features: 4}}
train: {{max_epochs: 2, batch_size: 6, lr: 0.01}}
posterior: point
search:
  sampler: {sampler}
  space: {space}
  trials: {trials}
  workers: 2
  unknown: {folder}/hot.xyz
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of ethanol."""
    for name, count in (("train", 18), ("hot", 4)):
        atoms = [frame_to_atoms(frame) for frame in embedded_frames(f"ethanol-{name}")[:count]]
        ase.io.write(tmp_path / f"{name}.xyz", atoms, format="extxyz")
    return tmp_path


def written(folder: Path, *, sampler: str, space: str, trials: int) -> Path:
    path = folder / "config.yaml"
    text = CONFIG.format(folder=folder, sampler=sampler, space=space, trials=trials)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_grid_is_tried_whole_and_the_best_is_written(folder: Path) -> None:
    space = "{train.lr: [0.00001, 0.01], train.betas: [[0.9, 0.999]]}"
    config, wanted, raw = load_search(written(folder, sampler="grid", space=space, trials=9))
    heard: list[int] = []
    result = search(
        config, wanted, raw, watch=SearchObserver(lambda found: heard.append(found.number))
    )
    assert sorted(heard) == [0, 1]
    assert {each.values["train.lr"] for each in result.trials} == {0.01, 0.00001}
    assert result.best is not None
    assert result.best.values["train.lr"] == 0.01  # the other learns nothing
    assert result.best.number == 0  # the configuration as it is
    scores = [each.score for each in result.trials]
    assert result.best.score == min(score for score in scores if score is not None)
    parts = result.best.seeds[0]
    expected = 0.25 * 23.06 * (parts["energy_rmse"] + parts["forces_rmse"])
    expected += 0.125 * (parts["energy_ce"] + parts["forces_ce"]) + 0.25 * (1 - parts["auroc"])
    assert result.best.score == pytest.approx(expected)
    best = load_config(folder / "out" / BEST)
    assert (best.train.lr, best.train.betas, best.data.test) == (0.01, (0.9, 0.999), {})
    again = search(config, wanted, raw, watch=SearchObserver(lambda _: pytest.fail("tried again")))
    assert [each.score for each in again.trials] == scores
    other, wider, raw = load_search(
        written(folder, sampler="grid", space="{train.lr: [0.02]}", trials=9)
    )
    with pytest.raises(ConfigError, match="another space"):
        search(other, wider, raw, watch=SearchObserver())


def test_the_configuration_as_it_is_comes_first_outside_of_the_space_too(folder: Path) -> None:
    space = "{train.lr: {low: 0.00001, high: 0.00002}, train.batch_size: [6]}"
    source = written(folder, sampler="tpe", space=space, trials=5)
    config, wanted, raw = load_search(source, ["train.lr=auto", "search.prune=false"])
    result = search(config, wanted, raw, watch=SearchObserver())
    first, *others = result.trials
    assert first.values == {"train.lr": "auto", "train.batch_size": 6}
    assert not first.in_space
    assert all(1e-5 <= each.values["train.lr"] <= 2e-5 and each.in_space for each in others)
    assert result.best == first  # the others learn nothing
    assert load_config(folder / "out" / BEST).train.lr == "auto"
    assert set(result.importance) == set(wanted.space)  # of those inside


def test_a_grid_has_the_configuration_as_it_is_beside_it(folder: Path) -> None:
    source = written(folder, sampler="grid", space="{train.lr: [0.00001]}", trials=9)
    config, wanted, raw = load_search(source)
    result = search(config, wanted, raw, watch=SearchObserver())
    assert [each.values["train.lr"] for each in result.trials] == [0.01, 0.00001]


def test_no_trial_is_lost_by_a_kill(folder: Path) -> None:
    space = "{train.momentum: {low: 0.5, high: 0.99}}"
    source = written(folder, sampler="random", space=space, trials=3)
    source.write_text(source.read_text().replace("max_epochs: 2", "max_epochs: 30"))
    begun = [sys.executable, "-c", "from bayrace.cli.main import app; app()", "search", str(source)]
    process = subprocess.Popen(begun, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    histories = [folder / f"out/trials/{number:04d}/seed-0/history.jsonl" for number in (0, 1)]
    while not all(path.is_file() and path.stat().st_size for path in histories):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "out" / BEST).exists()
    ended = subprocess.run(begun, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    trials = json.loads((folder / "out" / RESULTS).read_text(encoding="utf-8"))
    assert [each["number"] for each in trials] == [0, 1, 2]
    assert all(each["state"] in ("complete", "pruned") for each in trials)
    default = TrainConfig().momentum  # which is tried first
    assert trials[0]["values"]["train.momentum"] == pytest.approx(default)
    assert (folder / "out" / BEST).is_file()
    assert (folder / "out" / "search.png").is_file()


def test_an_interrupted_trial_is_continued(folder: Path) -> None:
    """Its training leaves a potential of the epochs that it had, which is no result."""
    source = written(folder, sampler="random", space="{train.momentum: [0.9]}", trials=1)
    source.write_text(source.read_text().replace("max_epochs: 2", "max_epochs: 40"))
    config, wanted, raw = load_search(source)
    trial = folder / "out/trials/0000/seed-0"

    def begun() -> bool:
        history = trial / "history.jsonl"
        return history.is_file() and bool(history.read_text())

    stopped = search(config, wanted, raw, watch=SearchObserver(stop=begun))
    assert stopped.interrupted
    assert (trial / "model.bayrace").is_file()
    assert len((trial / "history.jsonl").read_text().splitlines()) < 40
    result = search(config, wanted, raw, watch=SearchObserver())
    assert [each.state for each in result.trials] == ["complete"]
    assert len((trial / "history.jsonl").read_text().splitlines()) == 40


def test_what_cannot_be_searched_is_refused(folder: Path) -> None:
    ranged = written(folder, sampler="grid", space="{train.lr: {low: 0.1, high: 1}}", trials=2)
    with pytest.raises(ConfigError, match=r"train\.lr is a range"):
        load_search(ranged)
    config, wanted, raw = load_search(
        written(folder, sampler="random", space="{train.rate: [0.1]}", trials=2)
    )
    with pytest.raises(ConfigError, match=r"train\.rate: the configuration has no such key"):
        search(config, wanted, raw, watch=SearchObserver())
    with pytest.raises(ConfigError, match="search"):
        load_search(written(folder, sampler="tpe", space="{}", trials=2))
    tiny = with_values(raw, {"train.lr": 1e-5}, output="x", seed=3)
    assert (tiny.train.lr, tiny.seed, tiny.data.split_seed) == (1e-5, 3, 0)
