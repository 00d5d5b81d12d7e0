"""The steps of a round.

Each reads files of earlier ones, writes its own as a whole, and returns what is worth recording as
JSON; done twice, it comes to the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bayrace import run
from bayrace.active.label import Labelling, label_frames
from bayrace.active.label_store import LabelStore
from bayrace.active.select import Selection, select
from bayrace.calibrate.fit import fit_calibration
from bayrace.config.load import ConfigError
from bayrace.config.loop import LoopConfig
from bayrace.config.oracle import label_settings, make_oracle
from bayrace.data.check import check_frame
from bayrace.data.frame import DataError, Frame, split_isolated
from bayrace.data.read import read_frames
from bayrace.data.split import frame_hashes
from bayrace.data.write import write_frames
from bayrace.ensemble import train_members
from bayrace.folder import ENSEMBLE
from bayrace.loop.runs import KEYS, Exploration, explore_in_files, pool_of, read_traj
from bayrace.loop.state import STATE, State
from bayrace.loop.watch import Watch
from bayrace.potential import Potential
from bayrace.report.evaluation import Evaluation, evaluate
from bayrace.train.checkpoint import LAST
from bayrace.train.signals import stop_on_signals
from bayrace.tuning import fine_tune, training_frames

MODEL, TRAIN, VALID = "model.bayrace", "train.traj", "valid.traj"
CHOSEN, LABELLED = "chosen.traj", "labelled.traj"


@dataclass(frozen=True, eq=False)
class Bench:
    """Where a loop works, and with what."""

    config: LoopConfig
    state: State
    watch: Watch

    @property
    def root(self) -> Path:
        """Of the whole loop."""
        return Path(self.config.output)

    def folder(self, number: int) -> Path:
        """Of a round."""
        return self.root / f"round-{number:02d}"

    def model(self, number: int) -> Path:
        """The potential that came of a round."""
        return self.folder(number) / MODEL

    def seed(self, number: int) -> int:
        """Of a round; below 2³¹."""
        return int(np.random.SeedSequence([self.config.seed, number]).generate_state(1)[0] // 2)

    @cached_property
    def tests(self) -> dict[str, list[Frame]]:
        """Test sets."""
        return {
            name: split_isolated(read_frames(list(paths), keys=KEYS, config_weights={}))[0]
            for name, paths in self.config.test.items()
        }

    def labelled(self, upto: int) -> tuple[list[Frame], list[Frame]]:
        """New labels of the rounds 1 to `upto`: for training, and for validation."""
        parts: dict[str, list[Frame]] = {"training": [], "validation": []}
        for number in range(1, upto + 1):
            uses = [use for use in self.state.result(number, "label")["uses"] if use != "failed"]
            frames = read_traj(self.folder(number) / LABELLED)
            for use, frame in zip(uses, frames, strict=True):
                parts[use].append(frame)
        return parts["training"], parts["validation"]

    def data(self, upto: int) -> tuple[list[Frame], list[Frame]]:
        """Everything to train on and to validate with after a round."""
        train, valid = self.labelled(upto)
        first = self.folder(0)
        return [*read_traj(first / TRAIN), *train], [*read_traj(first / VALID), *valid]


def train_first(bench: Bench) -> dict[str, Any]:
    """The potential to start from, its data beside it."""
    config, folder = bench.config, bench.folder(0)
    if config.potential is not None:
        potential = Potential.load(config.potential)
    else:
        potential = _trained(bench)
    train, valid = training_frames(potential)
    write_frames(folder / VALID, valid)
    write_frames(folder / TRAIN, train)
    if potential.calibration is None:
        potential = calibrated(potential, valid, method=config.calibrate)
    potential.save(folder / MODEL)
    return {"train": len(train), "valid": len(valid)}


def explore(bench: Bench, number: int) -> dict[str, Any]:
    """Simulate with the newest potential."""
    starts = _starts(bench, number)
    exploration = Exploration(
        model=str(bench.model(number - 1)),
        folder=str(bench.folder(number) / "explore"),
        starts=tuple(f"{Path(frame.source).name}, frame {frame.index}" for frame in starts),
        config=bench.config.explore,
        seed=bench.seed(number),
    )
    runs = explore_in_files(exploration, starts, progress=bench.watch.run)
    return {"runs": [_brief(run) for run in runs]}


def choose(bench: Bench, number: int, *, budget: int) -> dict[str, Any]:
    """Choose up to `budget` structures of all that was visited."""
    config, folder = bench.config.select, bench.folder(number)
    runs = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in sorted((folder / "explore").glob("run-*.json"))
    ]
    pool = pool_of(runs, folder / "explore")
    if not pool:
        return {"chosen": [], "skipped": {}, "pool": 0}
    train, valid = bench.data(number - 1)
    selection = select(
        Potential.load(bench.model(number - 1)),
        pool,
        by=config.by,
        budget=budget,
        seen=[*train, *valid, *_failed(bench, number)],
        seed=bench.seed(number),
        over=config.over,
        apart=config.apart,
    )
    write_frames(folder / CHOSEN, [pool[place] for place in selection.indices])
    chosen = _described(selection, runs)
    return {"chosen": chosen, "skipped": dict(selection.skipped), "pool": len(pool)}


def label(bench: Bench, number: int, *, paid: int) -> dict[str, Any]:
    """Label what was chosen; `paid` labels were there before."""
    config, folder = bench.config, bench.folder(number)
    oracle = make_oracle(config.oracle, timeout=config.label.timeout)
    found = label_frames(
        read_traj(folder / CHOSEN),
        oracle,
        store=bench.root / STATE,
        settings=label_settings(config.label),
        progress=bench.watch.labels,
    )
    if not found.labelled:
        last = list(found.failures.values())[-1]
        raise DataError(
            f"none of the {len(found.frames)} structures of round {number} could be labelled; "
            f"correct the oracle, or raise label.retries, and start again. The last error: {last}"
        )
    write_frames(folder / LABELLED, found.labelled)
    judged = evaluate(Potential.load(bench.model(number - 1)), found.labelled, name="newest")
    return {
        "uses": _uses(found, paid, config.select.valid),
        "failures": list(found.failures.values()),
        "newest": errors(judged),
        "forces_rmse": _by_structure(judged, found),
        "calls": LabelStore(bench.root / STATE).calls(),
    }


def tune(bench: Bench, number: int) -> dict[str, Any]:
    """Train all members further on everything there is, and calibrate what comes of it."""
    config, folder = bench.config, bench.folder(number) / "tune"
    train, valid = bench.data(number)
    if not any((folder / "run" / marker).is_file() for marker in (ENSEMBLE, LAST)):
        shutil.rmtree(folder / "run", ignore_errors=True)  # killed before there was anything
    with stop_on_signals() as stop:
        potential = fine_tune(
            bench.model(number - 1),
            train,
            valid,
            tune=config.tune,
            folder=folder,
            seed=bench.seed(number),
            workers=config.workers,
            pin=config.pin,
            observer=bench.watch.members,
            stop=stop,
        )
    if potential is None:
        raise KeyboardInterrupt
    calibrated(potential, valid, method=config.calibrate).save(bench.model(number))
    shutil.rmtree(folder / "run", ignore_errors=True)  # weights and states of the optimiser
    return {"train": len(train), "valid": len(valid)}


def judge(bench: Bench, number: int) -> dict[str, Any]:
    """Errors of a round's potential on the test sets."""
    potential = Potential.load(bench.model(number))
    return {
        name: errors(evaluate(potential, each, name=name)) for name, each in bench.tests.items()
    }


def errors(evaluation: Evaluation) -> dict[str, float | None]:
    """Errors and predicted σ (root mean square) of a set, eV and Å."""
    total, found = evaluation.accuracy.total, {}
    for name in ("energy", "energy_per_atom", "forces"):
        measured = getattr(total, name)
        found[f"{name}_rmse"] = None if measured is None else measured.rmse
        found[f"{name}_mae"] = None if measured is None else measured.mae
        found[f"{name}_std"] = getattr(evaluation, name).spread()
    return found


def calibrated(potential: Potential, valid: Sequence[Frame], *, method: str) -> Potential:
    """The potential with σ fitted to its errors on the validation set."""
    if method == "none":
        return potential
    stress = any(frame.stress is not None and frame.pbc.all() for frame in valid)
    raw = potential.predict_frames(valid, stress=stress, calibrated=False)
    return replace(
        potential,
        calibration=fit_calibration(raw, method=method),
        frames={**potential.frames, "calibration": frame_hashes(valid)},
    )


def _trained(bench: Bench) -> Potential:
    """The potential of the first training, which goes on where it was interrupted."""
    folder = bench.folder(0) / "train"
    config = bench.config.training(str(folder))
    with stop_on_signals() as stop:
        if config.posterior.kind == "ensemble":
            resume = (folder / ENSEMBLE).is_file()
            several = train_members(
                config,
                members=config.posterior.ensemble.members,
                workers=bench.config.workers,
                pin=bench.config.pin,
                resume=resume,
                overwrite=not resume,
                observer=bench.watch.members,
                stop=stop,
            )
            potential = several.potential
        else:
            resume = (folder / LAST).is_file()
            single = run.train(config, resume=resume, overwrite=not resume, stop=stop)
            potential = None if single.fit.reason == "interrupted" else single.potential
    if potential is None:
        raise KeyboardInterrupt
    return potential


def _starts(bench: Bench, number: int) -> list[Frame]:
    """The structures that a round's runs begin from."""
    config = bench.config.explore
    if config.starts is None:
        frames = read_traj(bench.folder(0) / TRAIN)
    else:
        paths = list(config.starts)
        frames = read_frames(paths, keys=KEYS, config_weights={}, require_labels=False)
        frames = [frame for frame in frames if frame.config_type != "IsolatedAtom"]
    if not frames:
        raise ConfigError("explore.starts: no structures in these files; give at least 1")
    for frame in frames:
        check_frame(frame)
    if config.structures is None or config.structures >= len(frames):
        return frames
    random = np.random.default_rng([bench.config.seed, number])
    chosen = np.sort(random.choice(len(frames), config.structures, replace=False))
    return [frames[place] for place in chosen]


def _brief(run: dict[str, Any]) -> dict[str, Any]:
    """A run without its visits."""
    visits = run.pop("visits")
    risks = [visit["risk"] for visit in visits if visit["risk"] is not None]
    broken = any(visit["broken"] for visit in visits)
    return {
        **run,
        "time": visits[-1]["time"] if visits else 0.0,
        "forces_std": max((visit["forces_std"] for visit in visits), default=None),
        "risk": max(risks, default=None),
        "uncertain": broken or run["reason"] == "exploded",
        "visits": len(visits),
    }


def _described(selection: Selection, runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each choice, where it came from and why it was made."""
    places = [(run, visit) for run in runs for visit in run["visits"]]
    found = []
    for rank, (place, why) in enumerate(zip(selection.indices, selection.why, strict=True)):
        run, visit = places[int(place)]
        found.append(
            {
                "why": why,
                "by": selection.criteria[rank],
                "score": float(selection.scores[rank]),
                "start": run["start"],
                "temperature": run["temperature"],
                "step": visit["step"],
                "time": visit["time"],
                "forces_std": visit["forces_std"],
                "risk": visit["risk"],
            }
        )
    return found


def _failed(bench: Bench, number: int) -> list[Frame]:
    """Structures of earlier rounds that the oracle could not label: nothing like them again."""
    found: list[Frame] = []
    for earlier in range(1, number):
        uses = bench.state.result(earlier, "label")["uses"]
        if "failed" in uses:
            frames = read_traj(bench.folder(earlier) / CHOSEN)
            found += [f for f, use in zip(frames, uses, strict=True) if use == "failed"]
    return found


def _uses(found: Labelling, paid: int, share: float) -> list[str]:
    """What each structure is used for; the validation set gets its share of all labels, evenly."""
    uses = []
    for frame in found.frames:
        if frame is None:
            uses.append("failed")
            continue
        turn = int((paid + 1) * share) > int(paid * share)
        uses.append("validation" if turn else "training")
        paid += 1
    return uses


def _by_structure(judged: Evaluation, found: Labelling) -> list[float | None]:
    """RMSE of the forces of each structure that was chosen, eV/Å; None where it has no label."""
    ends = np.cumsum(judged.atoms)[:-1]
    parts = iter(np.split(judged.forces.error, ends))
    return [
        None if frame is None else float(np.sqrt(np.mean(next(parts) ** 2)))
        for frame in found.frames
    ]
