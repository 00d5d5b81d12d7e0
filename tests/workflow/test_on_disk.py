"""A training on structures that stay on disk is the training on the same structures in memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayrace.config import Config, ConfigError, make_config
from bayrace.data.convert import convert
from bayrace.data.embedded import embedded
from bayrace.data.frame import DataError
from bayrace.potential.potential import Potential
from bayrace.train import checkpoint
from bayrace.train.callbacks import Callbacks
from bayrace.train.settings import Event
from bayrace.workflow.prepare import prepare
from bayrace.workflow.train import train

pytest.importorskip("lmdb", reason="the extra `large` is not installed")

FRAMES = 30


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "ethanol.aselmdb"
    convert(f"{embedded('ethanol-train')}@:{FRAMES}", path)
    return path


def config(file: Path, name: str, **data: object) -> Config:
    raw = {
        "output": str(file.parent / name),
        "data": {"train": str(file), "valid": 6, **data},
        "model": {"preset": "tiny", "dtype": "float64"},
        "train": {"max_epochs": 3, "batch_size": 5},
        "posterior": "distance",
    }
    return make_config(raw)


@pytest.fixture(scope="module")
def in_memory(file: Path) -> Path:
    return train(config(file, "memory", keep="memory")).folder


def same(first: Path, second: Path) -> bool:
    (one, _), (two, _) = (checkpoint.load(each / checkpoint.LAST) for each in (first, second))
    return one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_weights(file: Path, in_memory: Path, workers: int) -> None:
    result = train(config(file, f"disk-{workers}", keep="disk", workers=workers))
    assert same(result.folder, in_memory)
    assert result.potential.statistics["train_frames"] == FRAMES - 6
    assert result.potential.posterior.name == "distance"
    before = Potential.load(in_memory / "model.bayrace")
    assert result.potential.fingerprint == before.fingerprint
    lines = (result.folder / "history.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["waited"] > 0


def test_interrupted_and_resumed(file: Path, in_memory: Path) -> None:
    chosen = config(file, "resumed", keep="disk")
    heard: list[Event] = []
    stopped = Callbacks(observer=heard.append, stop=lambda: len(heard) >= 7)
    assert train(chosen, callbacks=stopped).fit.reason == "interrupted"
    assert same(train(chosen, resume=True).folder, in_memory)


def test_a_sample_stands_for_all(file: Path) -> None:
    ready = prepare(config(file, "sample", keep="disk", sample=9))
    assert ready.stream is not None
    assert (len(ready.stream), len(ready.train), len(ready.valid)) == (FRAMES - 6, 9, 6)
    assert ready.train.elements == (1, 6, 8)
    assert prepare(config(file, "auto")).stream is None  # few structures are kept in memory


def test_elements_beyond_the_sample(file: Path, tmp_path: Path) -> None:
    """They are refused when they are met, with the remedy, and known where they have references."""
    both = tmp_path / "both.aselmdb"
    convert([f"{embedded('ethanol-train')}@:20", f"{embedded('ammonia-train')}@:1"], both)
    names = {"keep": "disk", "sample": 3, "valid": 2, "split_seed": 1}
    chosen = config(both, "unknown", **names)
    assert 7 not in prepare(chosen).train.elements
    with pytest.raises(DataError, match=r"element 7 was not among .* raise data\.sample"):
        train(chosen)
    references = {"H": -13.6, "C": -1030.0, "N": -1480.0, "O": -2040.0}
    known = config(both, "known", references=references, **names)
    assert train(known).potential.elements == (1, 6, 7, 8)


def test_what_does_not_go_with_the_disk(file: Path) -> None:
    ivon = config(file, "ivon", keep="disk")
    raw = make_config({**ivon.model_dump(mode="json"), "posterior": "ivon"})
    with pytest.raises(ConfigError, match=r"ivon with training data on disk.*keep=memory"):
        train(raw)
    assert not Path(raw.output).exists()
    budget = make_config(ivon.model_dump(mode="json"), ["train.edge_budget=500"])
    with pytest.raises(ConfigError, match=r"edge_budget: 500 with training data on disk"):
        train(budget)
    text = str(embedded("ethanol-train"))
    with pytest.raises(DataError, match="bayrace convert"):
        prepare(config(Path(text), "xyz", keep="disk"))
