"""A deep ensemble: members trained apart, in processes side by side, and stacked in one file.

    from bayrace.workflow.ensemble import train_members
    result = train_members(load_config("config.yaml"), members=8)
    result.potential.predict(atoms).energy.epistemic

Members share the data and its split and differ in the seed of weights and batches. Each has a
folder member-<k> in `config.output`, an ordinary run of bayrace.workflow.train; beside them are
config.yaml, ensemble.json, and in the end the stacked model.bayrace and test.json.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayrace.config import Config, ConfigError, changed, dump_config, plain_values_of
from bayrace.config.build import split_seed, train_settings
from bayrace.data.split import fingerprint
from bayrace.evaluate.evaluation import Evaluation
from bayrace.posterior.ensemble import Ensemble, EnsembleOptions
from bayrace.potential.potential import Potential
from bayrace.system.jobs import Outcome, Standing
from bayrace.train.checkpoint import LAST, write_atomically
from bayrace.workflow.calibrate import calibrated
from bayrace.workflow.fit import Prepared
from bayrace.workflow.folder import CONFIG, ENSEMBLE, MODEL, TEST, clear_folder, holds_files, locked
from bayrace.workflow.member import (
    MemberProgress,
    SideBySide,
    finished_potential,
    load_member,
    look,
)
from bayrace.workflow.shared import shared_data
from bayrace.workflow.train import evaluate_sets, prepare, write_json
from bayrace.workflow.workers import member_job, place_members, run_members

_log = logging.getLogger(__name__)


class EnsembleError(ValueError):
    """No member was trained to its end; the message says what became of each."""


@dataclass(frozen=True, eq=False)
class EnsembleResult:
    """What became of an ensemble."""

    potential: Potential | None  # of the members that finished; None if interrupted
    members: tuple[MemberProgress, ...]
    folder: Path
    evaluations: tuple[Evaluation, ...]  # of the test sets; empty if interrupted

    @property
    def interrupted(self) -> bool:
        """Whether members are left that resuming would train."""
        return self.potential is None

    @property
    def failed(self) -> tuple[MemberProgress, ...]:
        """The members that are missing in the potential, with their errors."""
        return tuple(member for member in self.members if member.state == "failed")


def train_members(
    config: Config,
    *,
    members: int,
    how: SideBySide | None = None,
    prepared: Prepared | None = None,
    initial: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> EnsembleResult:
    """Train `members` of them, several at a time, and write the folder `config.output`.

    `initial` is the file of an ensemble of as many members, each of which is trained further.
    A member that fails does not keep the others from being trained and stacked; see
    `result.failed`. EnsembleError if none succeeds. `resume` starts what was not started, continues
    what was not finished, and leaves the rest; it may also add members.
    """
    how = how or SideBySide()
    check_folder(config, members=members, resume=resume, overwrite=overwrite)
    config = _as_ensemble(config, members)
    with locked(Path(config.output)):
        check_folder(config, members=members, resume=resume, overwrite=overwrite)
        return _train_members(config, members, how, prepared, initial, resume=resume)


def _train_members(
    config: Config,
    members: int,
    how: SideBySide,
    prepared: Prepared | None,
    initial: Path | None,
    *,
    resume: bool,
) -> EnsembleResult:
    """In a folder that is ours."""
    placement = place_members(config, how, members=members)
    start = None if initial is None else load_member(str(initial), members - 1)
    ready = prepared or prepare(config, initial=start)  # kernels are built here, once
    configs = [member_config(config, index, threads=placement.threads) for index in range(members)]
    done = _finished(configs, ready) if resume else {}
    _make_folder(config, members, resume=resume)
    left = [index for index in range(members) if index not in done]
    earlier = dict.fromkeys(done, Outcome("finished"))

    def states(standing: Standing) -> tuple[MemberProgress, ...]:
        outcomes = earlier | {left[place]: each for place, each in standing.outcomes.items()}
        running = {left[place]: process for place, process in standing.running.items()}
        return tuple(
            look(index, each, pid=running.get(index), outcome=outcomes.get(index))
            for index, each in enumerate(configs)
        )

    with shared_data(Path(config.output), ready) if left else nullcontext() as data:
        begun = [resume and (Path(configs[index].output) / LAST).is_file() for index in left]
        jobs = [
            member_job(
                index,
                configs[index],
                data=data,
                resume=here if how.scheduler is None else None,
                initial=initial,
            )
            for index, here in zip(left, begun, strict=True)
        ]
        standing = run_members(jobs, how, placement, lambda now: how.observer(states(now)))
    ended = states(standing)
    how.observer(ended)
    return _conclude(config, ready, ended)


def _as_ensemble(config: Config, members: int) -> Config:
    """The configuration with the posterior it is trained to, which is no other."""
    kind = config.posterior.kind
    if kind not in ("point", "distance", "ensemble"):
        raise ConfigError(
            f"posterior: {kind} cannot have members that are trained apart; leave --members out, "
            "or set posterior: ensemble"
        )
    posterior = config.posterior.choosing("ensemble", EnsembleOptions(members))
    return changed(config, posterior=posterior)


def member_config(config: Config, index: int, *, threads: int | None) -> Config:
    """The configuration of one member: its own seed and folder, the same split.

    It does not tell how many members there are, as their number may grow.
    """
    alone = config.posterior.choosing("ensemble", EnsembleOptions()).choosing("point")
    return changed(
        config,
        seed=config.seed + index,
        output=str(Path(config.output) / f"member-{index}"),
        data=changed(config.data, split_seed=split_seed(config)),
        train=changed(config.train, threads=threads),
        posterior=alone,
        calibrate=config.calibrate.choosing("none"),  # σ is that of all members
    )


def recorded_members(folder: Path) -> int | None:
    """How many members the ensemble in a folder has; None where there is no ensemble."""
    path = folder / ENSEMBLE
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text())["members"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: damaged ({error}); write the number of members into it, as in "
            '{"members": 8}, or train anew with --overwrite'
        ) from error


def check_folder(config: Config, *, members: int, resume: bool, overwrite: bool) -> None:
    """Refuse too few members, to write over an earlier run, or to resume what is no ensemble."""
    if members < 2:
        raise ConfigError(
            f"members={members}: an ensemble has at least 2; leave --members out for one model"
        )
    folder = Path(config.output)
    if folder.is_file():
        raise ConfigError(f"output: {folder} is a file; name a folder")
    if not holds_files(folder):
        if resume:
            raise ConfigError(f"output: {folder} has nothing to resume; start without --resume")
        return
    if overwrite and not resume:
        return
    present = recorded_members(folder)
    elsewhere = "replace it with --overwrite, or choose another folder with -s output=..."
    if present is None:
        single = (folder / LAST).is_file()
        holds = "the run of one model, not of an ensemble" if single else "other files"
        hint = "continue it with --resume and without --members, " if resume and single else ""
        raise ConfigError(f"output: {folder} holds {holds}; {hint}{elsewhere}")
    if not resume:
        raise ConfigError(
            f"output: {folder} holds an ensemble of {present}; continue it with --resume, "
            f"{elsewhere}"
        )
    if members < present:
        raise ConfigError(
            f"members={members}: the ensemble in {folder} has {present}; a resumed one may only "
            "grow. Leave --members out, or train fewer in another folder with -s output=..."
        )


def stack(config: Config, potentials: Sequence[Potential], *, failed: Sequence[int]) -> Potential:
    """One potential of several that were trained on the same data."""
    first = potentials[0]
    for potential in potentials[1:]:
        if potential.spec != first.spec or potential.fingerprint != first.fingerprint:
            raise EnsembleError(
                "members differ in their network or their training data; train them with one "
                "configuration, anew with --overwrite"
            )
    weights = [{k: v[0] for k, v in potential.members.items()} for potential in potentials]
    return Potential(
        spec=first.spec,
        posterior=Ensemble.of(weights),
        references=first.references,
        lambdas=first.lambdas,
        statistics=_statistics(potentials, failed),
        config=plain_values_of(config),
        fingerprint=first.fingerprint,
        frames=first.frames,
        distances=first.distances,
    )


def _statistics(potentials: Sequence[Potential], failed: Sequence[int]) -> dict[str, Any]:
    """What members share, and lists of what they do not."""
    members = [potential.statistics for potential in potentials]
    own = ("epoch", "reason", "valid_metrics")
    metrics = [member["valid_metrics"] for member in members]
    statistics = {name: value for name, value in members[0].items() if name not in own}
    statistics["seed"] = [potential.config["seed"] for potential in potentials]
    statistics |= {name: [member[name] for member in members] for name in ("epoch", "reason")}
    statistics["valid_metrics"] = {
        name: [each[name] for each in metrics]
        for name in metrics[0]
        if all(name in each for each in metrics)
    }
    return statistics | ({"failed_members": list(failed)} if failed else {})


def _finished(configs: Sequence[Config], ready: Prepared) -> dict[int, Potential]:
    """The members that need no more training; refuse those of other data."""
    found = {index: finished_potential(config) for index, config in enumerate(configs)}
    done = {index: potential for index, potential in found.items() if potential is not None}
    expected = fingerprint(ready.train.frames)
    others = [index for index, potential in done.items() if potential.fingerprint != expected]
    if others:
        raise ConfigError(
            f"data: members {', '.join(map(str, others))} were trained on other data; restore the "
            "data files, or train anew with --overwrite"
        )
    return done


def _make_folder(config: Config, members: int, *, resume: bool) -> None:
    folder = Path(config.output)
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        clear_folder(folder)
    write_atomically(folder / ENSEMBLE, json.dumps({"members": members}).encode())
    write_atomically(folder / CONFIG, dump_config(config).encode())


def _conclude(
    config: Config, ready: Prepared, members: tuple[MemberProgress, ...]
) -> EnsembleResult:
    """Stack and evaluate what there is, unless the user is waiting."""
    folder = Path(config.output)
    if any(member.state in ("waiting", "interrupted") for member in members):
        return EnsembleResult(None, members, folder, ())
    failed = [member for member in members if member.state == "failed"]
    if len(failed) == len(members):
        reasons = "\n".join(f"  member {each.index}: {each.error}" for each in failed)
        raise EnsembleError(f"no member of {folder} was trained to its end:\n{reasons}")
    if failed:
        missing = ", ".join(str(member.index) for member in failed)
        _log.warning("the potential lacks members that failed: %s", missing)
    device = train_settings(config).device
    potentials = [
        Potential.load(folder / f"member-{member.index}" / MODEL, device=device)
        for member in members
        if member.state == "finished"
    ]
    potential = stack(config, potentials, failed=[member.index for member in failed])
    potential = calibrated(potential, ready.splits.valid, method=config.calibrate.method)
    potential.save(folder / MODEL)
    evaluations = evaluate_sets(potential, ready.splits.test)
    write_json(folder / TEST, evaluations)
    return EnsembleResult(potential, members, folder, evaluations)
