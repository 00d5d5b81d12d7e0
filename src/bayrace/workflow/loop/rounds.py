"""The loop: rounds of steps until there is a reason to stop.

    from bayrace.workflow.loop.rounds import run_loop
    ended = run_loop(config)
    ended.reason, ended.rounds[-1].errors

Killed at any moment and called again, it goes on with the step it was at.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bayrace.config.load import ConfigError, plain_values_of
from bayrace.config.loop import LoopConfig, StopConfig
from bayrace.config.oracle import make_oracle
from bayrace.report.document import short
from bayrace.report.page import render
from bayrace.report.round import Ending, Round, RunSummary
from bayrace.report.rounds import rounds_report
from bayrace.train.checkpoint import write_atomically
from bayrace.workflow.folder import locked
from bayrace.workflow.loop import gather, learn
from bayrace.workflow.loop.ahead import check_ahead
from bayrace.workflow.loop.observer import LoopObserver
from bayrace.workflow.loop.orphans import adopt
from bayrace.workflow.loop.state import STATE, State
from bayrace.workflow.loop.steps import Chosen, Explored, Labelled, Scored, Step, Trained
from bayrace.workflow.loop.workspace import Workspace

S = TypeVar("S", bound=Step)
ROUNDS, REPORT, FINAL = "rounds.json", "report.html", "model.bayrace"
_FREE: dict[str, bool | set[str]] = {  # may change while a loop is going on
    **dict.fromkeys(("output", "stop", "label", "workers", "pin"), True),
    "explore": {"workers"},
}


@dataclass(frozen=True)
class Ended:
    """Where a loop ended, and why."""

    rounds: list[Round]
    reason: str
    model: Path  # the newest potential
    problem: bool = False  # whether it had to give up


def run_loop(
    config: LoopConfig, *, watch: LoopObserver | None = None, overwrite: bool = False
) -> Ended:
    """Go on with the loop in `config.output` until it ends; `overwrite` begins anew."""
    watch, folder = watch or LoopObserver(), Path(config.output)
    _require_cluster()
    with locked(folder):
        _refuse_others(folder)
        adopt(folder)
        if overwrite:
            clear(folder)
        workspace = Workspace(config, State(folder / STATE), watch)
        check_ahead(workspace)  # first: settings that are refused bind nobody
        workspace.state.claim(*_settings(config))
        rounds = [_first(workspace)]
        ending = None
        while ending is None:
            _tell(workspace, rounds, None)
            reason = enough(rounds, config.stop)
            if reason is not None:
                ending = Ending(reason, "good" if reached(rounds, config.stop) else "note")
            else:
                found, ending = _next(workspace, rounds[-1])
                rounds.append(found)
        _tell(workspace, rounds, ending)
        newest = max(each.number for each in rounds if workspace.model(each.number).is_file())
        write_atomically(folder / FINAL, workspace.model(newest).read_bytes())
    return Ended(rounds, ending.reason, folder / FINAL, problem=ending.verdict == "bad")


def enough(rounds: Sequence[Round], stop: StopConfig) -> str | None:
    """Why to stop after a complete round; None to go on."""
    last = rounds[-1]
    judged = last.judged
    if reached(rounds, stop) and judged is not None and stop.error is not None:
        return (
            f"the force RMSE is {short(1000 * judged)} meV/Å, {1000 * stop.error:g} were asked for"
        )
    if stop.labels is not None and last.labels >= stop.labels:
        return f"the budget of {stop.labels} labels is spent"
    if stop.rounds is not None and last.number >= stop.rounds:
        return f"{stop.rounds} rounds are done"
    return None


def reached(rounds: Sequence[Round], stop: StopConfig) -> bool:
    """Whether the error is as small as was asked for."""
    judged = rounds[-1].judged
    return stop.error is not None and judged is not None and judged <= stop.error


def certain(runs: Sequence[RunSummary], stop: StopConfig) -> str | None:
    """Why to stop after an exploration; None to go on."""
    if stop.uncertain is None:
        return None
    met = sum(run.uncertain for run in runs)
    if met > stop.uncertain * len(runs):
        return None
    some = "none" if met == 0 else f"only {met}"
    return f"exploration is certain: {some} of {len(runs)} runs met an uncertain structure"


def nothing_chosen(runs: Sequence[RunSummary], skipped: Mapping[str, int], *, pool: int) -> Ending:
    """Why an exploration led to no choice: all is known, or what it met cannot be labelled."""
    met = sum(run.uncertain for run in runs)
    if not met:
        return Ending("exploration found nothing that is unlike the known structures", "good")
    longest = max(run.time for run in runs)
    why = ", ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "none was kept"
    return Ending(
        f"{met} of {len(runs)} runs became uncertain or flew apart (the longest lasted "
        f"{longest:g} fs), but none of their {pool} structures can be labelled ({why}); train "
        "longer or on more structures, explore at lower temperatures, or raise "
        "explore.rule.max_force_error",
        "bad",
    )


def clear(folder: Path) -> None:
    """Remove an earlier loop, and nothing else; the state first, so that no half is taken on."""
    for name in (STATE, f"{STATE}-journal", f"{STATE}.lock", ROUNDS, REPORT, FINAL):
        (folder / name).unlink(missing_ok=True)
    for each in folder.glob("round-*"):
        shutil.rmtree(each)


def _refuse_others(folder: Path) -> None:
    """Refuse a folder that is used for something else."""
    if (folder / STATE).is_file():
        return
    names = [each.name for each in folder.iterdir() if not each.name.startswith(("round-", "."))]
    if names:
        raise ConfigError(
            f"output: {folder} holds other files ({', '.join(sorted(names)[:3])}) and no loop; "
            "choose another folder with -s output=..."
        )


def _first(workspace: Workspace) -> Round:
    done = _step(workspace, 0, Trained, lambda: learn.train_first(workspace))
    found = _step(workspace, 0, Scored, lambda: learn.judge(workspace, 0))
    seconds = workspace.state.seconds(0)
    return Round(0, 0, 0, 0, done.train, done.valid, found.errors, None, seconds=seconds)


def _next(workspace: Workspace, last: Round) -> tuple[Round, Ending | None]:
    """A further round; the ending where it had to end early."""
    config, number = workspace.config, last.number + 1
    runs = _step(workspace, number, Explored, lambda: gather.explore(workspace, number)).runs
    ruled = config.explore.rule is not None
    reason = certain(runs, config.stop) if ruled else None
    ending, picked = None if reason is None else Ending(reason, "good"), Chosen()
    if ending is None:
        left = None if config.stop.labels is None else config.stop.labels - last.labels
        budget = config.select.budget if left is None else min(config.select.budget, left)
        picked = _step(
            workspace, number, Chosen, lambda: gather.choose(workspace, number, budget=budget)
        )
        if not picked.chosen:
            ending = nothing_chosen(runs, picked.skipped, pool=picked.pool)
    if ending is not None:
        ended = replace(
            last,
            number=number,
            failed=0,
            newest=None,
            runs=runs,
            chosen=(),
            skipped=picked.skipped,
            seconds=workspace.state.seconds(number),
        )
        return ended, ending
    return _learn(workspace, number, last, runs, picked), None


def _learn(
    workspace: Workspace, number: int, last: Round, runs: Sequence[RunSummary], picked: Chosen
) -> Round:
    """Label what was picked, train and evaluate."""
    new = _step(
        workspace, number, Labelled, lambda: gather.label(workspace, number, paid=last.labels)
    )
    done = _step(workspace, number, Trained, lambda: learn.tune(workspace, number))
    found = _step(workspace, number, Scored, lambda: learn.judge(workspace, number))
    labelled = zip(picked.chosen, new.uses, new.forces_rmse, strict=True)
    return Round(
        number=number,
        labels=last.labels + len(new.uses) - new.failed,
        failed=new.failed,
        calls=new.calls,
        train=done.train,
        valid=done.valid,
        errors=found.errors,
        newest=new.newest,
        runs=runs,
        chosen=[replace(pick, use=use, forces_rmse=rmse) for pick, use, rmse in labelled],
        skipped=picked.skipped,
        seconds=workspace.state.seconds(number),
    )


def _step(workspace: Workspace, number: int, step: type[S], work: Callable[[], S]) -> S:
    def announced() -> S:
        workspace.watch.begins(number, step.name)
        return work()

    result, seconds = workspace.state.once(number, step, announced)
    workspace.watch.ends(number, result, seconds)
    return result


def _require_cluster() -> None:
    """Complain before the first training rather than after it."""
    for module in ("distributed", "psutil"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"labelling needs {module}; pip install 'bayrace[cluster]'")


def _settings(config: LoopConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a loop cannot change on its way; and of this, what is not a default."""
    content: dict[str, Any] = plain_values_of(config, exclude=_FREE)
    if config.potential is not None:
        content["potential"] = hashlib.sha256(Path(config.potential).read_bytes()).hexdigest()
    return content, plain_values_of(config, exclude=_FREE, defaults=False)


def _tell(workspace: Workspace, rounds: Sequence[Round], ending: Ending | None) -> None:
    """Write the numbers and the page; they are made anew from the state, whatever was there."""
    config = workspace.config
    if ending is None:
        workspace.watch.round(rounds[-1])
    reason = None if ending is None else ending.reason
    content = {"reason": reason, "rounds": [asdict(each) for each in rounds]}
    write_atomically(workspace.root / ROUNDS, json.dumps(content, indent=1).encode())
    temperatures = ", ".join(f"{kelvin:g}" for kelvin in config.explore.temperatures)
    facts = {
        "folder": str(workspace.root),
        "oracle": make_oracle(config.oracle).method,
        "chosen by": f"{config.select.by}, {config.select.budget} a round",
        "explored at": f"{temperatures} K",
        "posterior": config.posterior.kind if config.potential is None else "of the potential",
        "training": f"{config.tune.epochs} epochs a round, from {config.tune.start}",
    }
    page = rounds_report(
        rounds,
        title="Active learning",
        facts=facts,
        ending=ending,
        shown=gather.shown(workspace, rounds),
    )
    write_atomically(workspace.root / REPORT, render(page).encode())
