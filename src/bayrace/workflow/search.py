"""Search for hyper-parameters: what `bayrace search` does, with optuna.

Every trial is trained in processes of its own, one per seed, in trials/<number>/seed-<k> of the
output. The study is a database: after any end, a kill -9 too, the same call goes on with the trials
that were at work, from their checkpoints. Test data are never read.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from bayrace.config import Config, ConfigError, dump_config
from bayrace.config.build import label_keys
from bayrace.config.search import RangeConfig, SearchConfig, value_of, with_values
from bayrace.data.frame import DataError, Frame
from bayrace.data.read import read_frames, split_isolated
from bayrace.potential.potential import Potential
from bayrace.system.jobs import Placement, run_jobs
from bayrace.train.checkpoint import LAST, write_atomically
from bayrace.train.state import HISTORY
from bayrace.workflow.folder import MODEL, locked
from bayrace.workflow.member import SideBySide, finished_potential
from bayrace.workflow.prepare import read_splits
from bayrace.workflow.search_pruner import Pruner
from bayrace.workflow.search_score import Judgement, judge
from bayrace.workflow.workers import member_job, place_members

BEST, RESULTS, STUDY = "best.yaml", "trials.json", "study.db"
_log = logging.getLogger(__name__)
_STARTUP = 4  # trials before any is pruned
_GIVEN = "given"  # attribute of a trial whose values are no point of the space


@dataclass(frozen=True)
class Found:
    """One trial as tables and figures need it."""

    number: int
    state: str  # complete, pruned, failed
    values: Mapping[str, Any]
    score: float | None  # mean over seeds
    seeds: Sequence[Mapping[str, Any]] = ()  # Judgement of each
    in_space: bool = True  # only the configuration as it is may lie elsewhere


@dataclass(frozen=True)
class SearchResult:
    """What a search has found; `best` is None where no trial is complete."""

    trials: Sequence[Found]
    best: Found | None
    importance: Mapping[str, float]  # shares of the variance of the score; empty for few trials
    folder: Path
    interrupted: bool


@dataclass
class SearchObserver:
    """Who hears of trials, and who may end the search."""

    told: Callable[[Found], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False
    started: float = field(default_factory=time.monotonic)


def search(
    config: Config, search: SearchConfig, raw: Mapping[str, Any], *, watch: SearchObserver
) -> SearchResult:
    """Try points until there are enough; goes on where an earlier call ended."""
    folder = Path(config.output)
    for key in search.space:
        value_of(config, key)
    with locked(folder):
        study = _study(search, folder)
        run = _Run(search, raw, folder, study, _Frames.of(config, search), watch)
        placement = place_members(config, SideBySide(search.workers), members=search.trials)
        if not study.trials:
            run.enqueue(config)
        with ThreadPoolExecutor(len(placement.slots)) as pool:
            slots = [Placement((slot,), placement.threads) for slot in placement.slots]
            for done in [pool.submit(run.try_points, slot) for slot in slots]:
                done.result()
        return _conclude(study, raw, folder, interrupted=watch.stop())


@dataclass(frozen=True, eq=False)
class _Frames:
    known: Sequence[Frame]
    unknown: Sequence[Frame]

    @staticmethod
    def of(config: Config, search: SearchConfig) -> _Frames:
        """What trials are judged on; read once."""
        keys = label_keys(config.data, config.target)

        def read(paths: Sequence[str]) -> list[Frame]:
            return split_isolated(read_frames(list(paths), keys=keys, config_weights={}))[0]

        known = read(search.known) if search.known else read_splits(config).valid
        if not known:
            raise DataError("no structures to score trials on; give search.known")
        return _Frames(known, read(search.unknown) if search.unknown else [])


@dataclass(eq=False)
class _Run:
    """One call of `search`, shared by the threads that look after trials."""

    search: SearchConfig
    raw: Mapping[str, Any]
    folder: Path
    study: optuna.Study
    frames: _Frames
    watch: SearchObserver
    lock: threading.Lock = field(default_factory=threading.Lock)
    taken: set[int] = field(default_factory=set)

    def enqueue(self, config: Config) -> None:
        """The configuration as it is comes first, in the space or not; then a whole grid."""
        space = self.search.space
        default = {key: _plain_value(value_of(config, key)) for key in space}
        if all(_inside(space[key], value) for key, value in default.items()):
            self.study.enqueue_trial(default)
        else:
            self.study.enqueue_trial({}, user_attrs={_GIVEN: default})
        for point in _grid(self.search) if self.search.sampler == "grid" else []:
            if point != default:
                self.study.enqueue_trial(point)

    def try_points(self, slot: Placement) -> None:
        """Trials one after another until there are enough."""
        while (trial := self.next()) is not None:
            try:
                value = self.objective(trial, slot)
            except optuna.TrialPruned:
                self.study.tell(trial.number, state=TrialState.PRUNED)
            except _StoppedError:
                return  # it stays as it is, and is continued by the next call
            except (ValueError, OSError) as error:
                trial.set_user_attr("error", str(error))
                self.study.tell(trial.number, state=TrialState.FAIL)
            else:
                self.study.tell(trial.number, value)
            frozen = self.study.trials[trial.number]
            self.watch.told(_found(frozen))

    def next(self) -> Trial | None:
        """A trial that a killed search left behind, or a new one; None where that is all."""
        with self.lock:
            if self.watch.stop() or self.late():
                return None
            trials = self.study.trials
            for each in trials:
                if each.state == TrialState.RUNNING and each.number not in self.taken:
                    self.taken.add(each.number)
                    return Trial(self.study, each._trial_id)
            begun = [each for each in trials if each.state != TrialState.WAITING]
            tried = self.search.sampler == "grid" and len(begun) == len(trials)
            if tried or len(begun) >= self.search.trials:
                return None
            trial = self.study.ask()
            self.taken.add(trial.number)
            return trial

    def late(self) -> bool:
        """Whether the time of the search is over."""
        limit = self.search.max_time
        return limit is not None and time.monotonic() - self.watch.started > limit

    def objective(self, trial: Trial, slot: Placement) -> float:
        """The mean score of a point over its seeds."""
        with self.lock:
            values = _values(trial, self.search)
        found: list[Judgement] = []
        for seed in range(self.search.seeds):
            folder = self.folder / "trials" / f"{trial.number:04d}" / f"seed-{seed}"
            config = with_values(
                self.raw, values, output=str(folder), seed=int(self.raw.get("seed", 0)) + seed
            )
            self.train(trial, config, slot, first=seed == 0)
            found.append(judge(Potential.load(folder / MODEL), *vars(self.frames).values()))
            trial.set_user_attr("seeds", [asdict(each) for each in found])
        return sum(each.score for each in found) / len(found)

    def train(self, trial: Trial, config: Config, slot: Placement, *, first: bool) -> None:
        """One training in its process, unless it is done; the first of a trial may be pruned."""
        folder = Path(config.output)
        if finished_potential(config) is not None:
            return
        pruner = Pruner(trial, folder / HISTORY, config) if first and self.search.prune else None

        def stop() -> bool:
            return self.watch.stop() or (pruner is not None and pruner.hopeless())

        job = member_job(0, config, resume=(folder / LAST).is_file())
        standing = run_jobs([job], placement=slot, stop=stop)
        outcome = standing.outcomes.get(0)
        if self.watch.stop() and (outcome is None or outcome.state != "finished"):
            raise _StoppedError
        if pruner is not None and pruner.pruned:
            raise optuna.TrialPruned
        if outcome is None or outcome.state != "finished":
            raise DataError("" if outcome is None else outcome.error)


class _StoppedError(Exception):
    """The search is to end; the trial goes on another time."""


def _study(search: SearchConfig, folder: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: optuna.samplers.BaseSampler
    if search.sampler in ("random", "grid"):  # the points of a grid wait in the study
        sampler = optuna.samplers.RandomSampler(seed=search.seed)
    else:
        sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=_STARTUP)
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=search.storage or f"sqlite:///{(folder / STUDY).resolve()}",
        study_name="bayrace",
        sampler=sampler,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP, n_warmup_steps=2),
        direction="minimize",
        load_if_exists=True,
    )
    space = {key: repr(choice) for key, choice in search.space.items()}
    if study.user_attrs.setdefault("space", space) != space:
        raise ConfigError(
            f"search.space: {folder} holds a search of another space; choose another output, or "
            "remove the folder"
        )
    study.set_user_attr("space", space)
    return study


def _grid(search: SearchConfig) -> list[dict[str, Any]]:
    """All combinations of the values of a space of lists."""
    columns = [_labels(choice) for choice in search.space.values()]
    return [dict(zip(search.space, row, strict=True)) for row in itertools.product(*columns)]


def _labels(choice: Any) -> list[Any]:
    """The values of a list as optuna stores them: lists among them as JSON."""
    return [_plain_value(each) for each in choice]


def _plain_value(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple) else value


def _inside(choice: Any, value: Any) -> bool:
    if isinstance(choice, RangeConfig):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and choice.low <= value <= choice.high
    return value in _labels(choice)


def _values(trial: Trial, search: SearchConfig) -> dict[str, Any]:
    """Those of the configuration as it is, or a point of the space."""
    given = trial.user_attrs.get(_GIVEN)
    if given is not None:
        return {key: _read(value) for key, value in given.items()}
    return {key: _suggest(trial, key, choice) for key, choice in search.space.items()}


def _suggest(trial: Trial, key: str, choice: Any) -> Any:
    if not isinstance(choice, RangeConfig):
        found = trial.suggest_categorical(key, _labels(choice))
        listed = {_plain_value(each): each for each in choice}
        return listed[found]
    if isinstance(choice.low, int) and isinstance(choice.high, int):
        return trial.suggest_int(key, choice.low, choice.high, log=choice.log)
    return trial.suggest_float(key, choice.low, choice.high, log=choice.log)


def _found(trial: FrozenTrial) -> Found:
    state = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(
        trial.state, "failed"
    )
    given, seeds = trial.user_attrs.get(_GIVEN), trial.user_attrs.get("seeds", ())
    values = trial.params if given is None else given
    return Found(trial.number, state, dict(values), trial.value, seeds, in_space=given is None)


def _conclude(
    study: optuna.Study, raw: Mapping[str, Any], folder: Path, *, interrupted: bool
) -> SearchResult:
    """Everything that has ended, written out; the best configuration as a file of its own."""
    ended = [each for each in study.trials if each.state.is_finished()]
    trials = [_found(each) for each in ended]
    complete = [each for each in trials if each.state == "complete" and each.score is not None]
    best = min(complete, key=lambda each: each.score or 0.0, default=None)
    if best is not None:
        values = {key: _read(value) for key, value in best.values.items()}
        seed = int(raw.get("seed", 0))
        config = with_values(raw, values, output=f"{raw['output']}/best", seed=seed)
        write_atomically(folder / BEST, dump_config(config).encode())
    write_atomically(
        folder / RESULTS, json.dumps([asdict(each) for each in trials], indent=1).encode()
    )
    importance = _importance(study, sum(each.in_space for each in complete))
    return SearchResult(trials, best, importance, folder, interrupted)


def _read(value: Any) -> Any:
    """A value as the space has it: lists are stored as JSON."""
    listed = isinstance(value, str) and value.startswith("[")
    return json.loads(value) if listed else value


def _importance(study: optuna.Study, complete: int) -> dict[str, float]:
    if complete < _STARTUP:
        return {}
    keys = list(study.user_attrs["space"])  # so that a trial outside is left out
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are few trials
            return dict(optuna.importance.get_param_importances(study, params=keys))
    except (RuntimeError, ValueError) as error:
        _log.debug("no importance: %s", error)
        return {}
