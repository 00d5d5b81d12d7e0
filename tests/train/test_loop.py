from __future__ import annotations

import itertools
import math
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bayrace.core.outputs import Params
from bayrace.data.dataset import Dataset
from bayrace.models.derivatives import evaluate
from bayrace.models.pair import PairModel
from bayrace.train import checkpoint
from bayrace.train.adam import AdamSettings
from bayrace.train.callbacks import Callbacks
from bayrace.train.loop import Event, StepEvent, TrainingDiverged, ValidEvent, fit
from bayrace.train.monitors import resolve
from bayrace.train.schedule import Constant, WarmupCosine
from bayrace.train.task import Task


def least_squares(model: PairModel, dataset: Dataset) -> tuple[torch.Tensor, float]:
    """Weights that minimise runner.squares on a whole data set, and its minimum."""
    batch, labels = dataset.batch(range(len(dataset)), dtype=torch.float64, device="cpu")

    def predict(weights: torch.Tensor) -> torch.Tensor:
        outputs = evaluate(model, {"weights": weights}, batch)
        scale = (len(labels.energy) ** 0.5, labels.forces.numel() ** 0.5)
        return torch.cat([outputs.energy / scale[0], outputs.forces.reshape(-1) / scale[1]])

    size = model.init(0)["weights"].shape
    units = torch.eye(size.numel(), dtype=torch.float64).reshape(-1, *size)
    design = torch.func.vmap(predict)(units).T
    target = torch.cat(
        [
            labels.energy / len(labels.energy) ** 0.5,
            labels.forces.reshape(-1) / labels.forces.numel() ** 0.5,
        ]
    )
    weights = torch.linalg.lstsq(design, target).solution
    return weights.reshape(size), float((design @ weights - target).square().sum())


@pytest.mark.parametrize(("name", "lr"), [("amsgrad", 0.2), ("adamw", 0.03)])
def test_reaches_the_least_squares_optimum(
    runner: ModuleType, tmp_path: Path, name: str, lr: float
) -> None:
    data = runner.dataset(12, seed=0)
    model = PairModel(elements=(1, 8), cutoff=runner.CUTOFF, functions=2)
    weights, minimum = least_squares(model, data)
    optimiser = AdamSettings(name=name, lr=lr, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-12)
    chosen = runner.settings(
        optimiser=optimiser,
        schedule=WarmupCosine(warmup=5, floor=0.0),
        batch_size=12,
        valid_batch_size=12,
        max_epochs=1200,
        valid_every=1200,
        ema=None,
        max_gradient_norm=None,
    )
    result = fit(Task(model, lambda epoch: runner.squares(), data, data, chosen, tmp_path))
    assert result.reason == "epochs"
    assert result.metrics["loss"] == pytest.approx(minimum, rel=1e-9)
    torch.testing.assert_close(result.params["weights"], weights, rtol=1e-5, atol=1e-5)


def test_events_and_history(runner: ModuleType, tmp_path: Path) -> None:
    events: list[Event] = []
    result = fit(
        Task(
            runner.model(),
            lambda epoch: runner.squares(),
            runner.dataset(10, seed=0),
            runner.dataset(5, seed=1),
            runner.settings(max_epochs=4, valid_every=3, schedule=Constant()),
            tmp_path,
        ),
        callbacks=Callbacks(observer=events.append),
    )
    steps = [event for event in events if isinstance(event, StepEvent)]
    valid = [event for event in events if isinstance(event, ValidEvent)]
    assert [event.step for event in steps] == list(range(1, 13))
    assert [event.epoch for event in steps[::3]] == [1, 2, 3, 4]
    assert steps[0].steps_per_epoch == 3
    assert steps[5].loss == pytest.approx(sum(steps[5].parts.values()))
    assert steps[-1].eta == 0.0
    assert steps[0].eta > 0
    assert [event.epoch for event in valid] == [3, 4]  # every third, and the last
    assert [("valid" in line) for line in result.history] == [False, False, True, True]
    assert valid[0].train["loss"] == pytest.approx(sum(e.loss for e in steps[6:9]) / 3)
    assert result.history[3]["valid"] == valid[1].metrics
    assert result.metrics["loss"] == min(event.metrics["loss"] for event in valid)


def test_result_and_metrics_are_those_of_the_averaged_parameters(
    runner: ModuleType, tmp_path: Path
) -> None:
    result = runner.train(tmp_path, max_epochs=3)
    last, _ = checkpoint.load(tmp_path / checkpoint.LAST)
    assert result.epoch == 3
    assert torch.equal(result.params["weights"], last["average/weights"])
    assert not torch.equal(result.params["weights"], last["params/weights"])
    valid = runner.dataset(6, seed=1)
    batch, labels = valid.batch(range(6), dtype=torch.float64, device="cpu")
    outputs = evaluate(runner.model(), result.params, batch)
    forces = 1000 * (outputs.forces - labels.forces)
    energy = 1000 * (outputs.energy - labels.energy)
    expected = {
        "loss": float(runner.squares().loss(outputs, labels, batch).total),
        "forces_rmse": float(forces.square().mean().sqrt()),
        "forces_mae": float(forces.abs().mean()),
        "energy_mae": float(energy.abs().mean()),
        "energy_rmse_per_atom": float((energy / 5).square().mean().sqrt()),
    }
    for name, value in expected.items():
        assert result.metrics[name] == pytest.approx(value, rel=1e-10)


def test_early_stopping(runner: ModuleType, tmp_path: Path) -> None:
    changes = {"max_epochs": 50, "early_stopping": 2, "min_improvement": 1e9}
    result = runner.train(tmp_path, **changes)
    assert result.reason == "early_stopping"
    assert len(result.history) == 3  # the first sets the reference, two do not improve on it
    again = runner.train(tmp_path, resume=True, **changes)
    assert again.reason == "early_stopping"
    assert again.history == result.history


def test_time_limit(runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: 0.005 * next(ticks))  # not the machine's
    changes = {
        "max_epochs": 10**6,
        "max_time": 1.5,
        "schedule": WarmupCosine(warmup=1, floor=0.1),
        "valid_every": 1000,
    }
    result = runner.train(tmp_path, **changes)
    assert 1.3 < result.history[-1]["elapsed"] < 2.0  # the last validation included
    assert result.reason == "time"
    assert "valid" in result.history[-1]
    assert 0.005 <= result.history[-1]["learning_rate"] < 0.0075  # from 0.05, floor 0.005
    again = runner.train(tmp_path, resume=True, **changes)
    assert again.history == result.history
    longer = runner.train(tmp_path, resume=True, **(changes | {"max_time": 2.0}))
    assert longer.history[-1]["step"] > result.history[-1]["step"]


@pytest.mark.parametrize("limit", ["epochs", "time"])
def test_the_learning_rate_is_for_the_length_of_the_run(
    runner: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """A run of four times as many steps has half the rate, however its length is given."""
    changes = runner.preconditioned("muon") | {"schedule": WarmupCosine(warmup=1, floor=0.1)}
    changes["optimiser"] = replace(changes["optimiser"], usual_steps=10)
    if limit == "time":
        ticks = itertools.count()
        monkeypatch.setattr(time, "monotonic", lambda: 0.01 * next(ticks))  # not the machine's
        changes |= {"max_time": 2.0, "max_epochs": 10**6, "valid_every": 1000}
    else:
        changes |= {"max_epochs": 8}  # of five steps
    history = runner.train(tmp_path, **changes).history
    steps = history[-1]["step"]
    assert limit == "time" or steps == 40
    expected = 0.02 * math.sqrt(10 / steps)  # falls to a tenth of it
    assert history[-1]["learning_rate"] == pytest.approx(0.1 * expected, rel=0.1)


def test_stopping_before_any_validation_returns_the_current_parameters(
    runner: ModuleType, tmp_path: Path
) -> None:
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 3

    data = runner.dataset(20, seed=0)
    result = fit(
        Task(
            runner.model(), lambda epoch: runner.squares(), data, data, runner.settings(), tmp_path
        ),
        callbacks=Callbacks(stop=stop),
    )
    assert result.reason == "interrupted"
    assert (result.epoch, result.history, result.metrics) == (0, (), {})
    tensors, content = checkpoint.load(tmp_path / checkpoint.LAST)
    assert content["counters"]["step"] == 3
    assert torch.equal(tensors["average/weights"], result.params["weights"])


def test_a_change_of_likelihood_starts_the_search_for_the_best_anew(
    runner: ModuleType, tmp_path: Path
) -> None:
    data = runner.dataset(8, seed=0)
    result = fit(
        Task(
            runner.model(),
            lambda epoch: runner.squares(forces=1.0 if epoch < 3 else 1e4),
            data,
            data,
            runner.settings(max_epochs=6, schedule=Constant()),
            tmp_path,
        )
    )
    losses = [line["valid"]["loss"] for line in result.history]
    assert max(losses[:3]) < min(losses[3:])
    assert result.history[3]["improved"]
    assert result.epoch == 4 + losses[3:].index(min(losses[3:]))


def fit_frames(runner: ModuleType, train: Dataset, folder: Path, **changes: object) -> None:
    fit(
        Task(
            runner.model(),
            lambda epoch: runner.squares(),
            train,
            runner.dataset(6, seed=1),
            runner.settings(**({"checkpoint_every": 0.0} | changes)),
            folder,
        )
    )


def poisoned(runner: ModuleType, *wrong: int) -> Dataset:
    frames = runner.frames(20, seed=0)
    for index in wrong:
        frames[index] = replace(frames[index], energy=1e200)  # its square is infinite
    return Dataset(frames, elements=(1, 8), cutoff=runner.CUTOFF, references={1: 0.0, 8: 0.0})


def test_divergence_names_the_frame_and_keeps_the_checkpoint(
    runner: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(TrainingDiverged) as caught:
        fit_frames(runner, poisoned(runner, 7), tmp_path)
    error, message = caught.value, str(caught.value)
    assert error.frames == ("made.xyz, frame 7",)
    assert "the loss is not finite (loss inf" in message
    assert "energy inf, forces 0." in message
    assert "Frames that give it: made.xyz, frame 7." in message
    assert f"step {error.step + 1}:" in message
    assert "Lower the learning rate (now 0.05)" in message
    tensors, content = checkpoint.load(error.checkpoint)
    assert content["counters"]["step"] == error.step
    assert all(bool(value.isfinite().all()) for value in tensors.values())


def test_broken_parameters_do_not_replace_the_checkpoint(
    runner: ModuleType, tmp_path: Path
) -> None:
    wild = replace(runner.settings().optimiser, lr=1e200)
    with pytest.raises(TrainingDiverged, match="norm of the parameters is not finite"):
        fit_frames(runner, poisoned(runner), tmp_path, optimiser=wild)
    tensors, content = checkpoint.load(tmp_path / checkpoint.LAST)
    assert content["counters"]["step"] == 0
    assert math.isfinite(float(tensors["params/weights"].norm()))


def test_divergence_of_ivon_has_remedies_of_its_own(runner: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"raise ess=20 or hess_init=0\.5 .* check these"):
        fit_frames(runner, poisoned(runner, 7), tmp_path, **runner.ivon())


def test_divergence_of_a_validation_frame(runner: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match=r"the validation loss.*made.xyz, frame 3\."):
        fit(
            Task(
                runner.model(),
                lambda epoch: runner.squares(),
                runner.dataset(8, seed=0),
                poisoned(runner, 3),
                runner.settings(),
                tmp_path,
            )
        )


def test_float32_and_initial_parameters(runner: ModuleType, tmp_path: Path) -> None:
    initial: Params = {"weights": torch.zeros(3, 5, dtype=torch.float64)}
    data = runner.dataset(8, seed=0)
    result = fit(
        Task(
            runner.model(),
            lambda epoch: runner.squares(),
            data,
            data,
            runner.settings(dtype="float32", max_epochs=1, ema=None),
            tmp_path,
        ),
        initial=initial,
    )
    assert result.params["weights"].dtype == torch.float32
    assert torch.equal(initial["weights"], torch.zeros(3, 5, dtype=torch.float64))


def test_wrong_cutoff_is_refused(runner: ModuleType, tmp_path: Path) -> None:
    other = Dataset(
        runner.frames(4, seed=0), elements=(1, 8), cutoff=3.0, references={1: 0.0, 8: 0.0}
    )
    with pytest.raises(ValueError, match=r"training set has elements .* cutoff 3.0, the model"):
        fit_frames(runner, other, tmp_path)


def test_an_edge_budget_sets_the_steps(runner: ModuleType, tmp_path: Path) -> None:
    edges = int(runner.dataset(20, seed=0).edges.sum())
    result = runner.train(tmp_path, edge_budget=edges // 7, max_epochs=3)
    assert [entry["step"] for entry in result.history] == [8, 16, 24]  # ⌈edges / ⌊edges / 7⌋⌉


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"edge_budget": 0}, "edge_budget=0: must be positive"),
        ({"max_time": -1.0}, "max_time=-1.0: must be positive"),
        ({"ema": 1.0}, "ema=1.0"),
        ({"monitor": "energy"}, "monitor='energy' is unknown; use one of"),
        ({"dtype": "float16"}, "dtype='float16': use 'float32' or 'float64'"),
    ],
)
def test_settings_refuse_nonsense(
    runner: ModuleType, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        runner.settings(**changes)


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ({"loss": 1, "energy_mae": 2, "forces_rmse": 4, "forces_mae": 3}, "forces_mae"),
        ({"loss": 1, "energy_mae": 2, "energy_rmse": 3}, "energy_mae"),
        ({"loss": 1}, "loss"),
    ],
)
def test_what_is_monitored_by_default(metrics: dict[str, float], name: str) -> None:
    """Forces, and not their RMSE, which one odd frame of a small validation set decides."""
    assert resolve("auto", metrics) == name


def test_a_monitor_without_labels_is_refused(runner: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="monitor='stress_mae': no validation frame has"):
        runner.train(tmp_path, monitor="stress_mae")
