"""What a round learns from: structures are met, chosen and labelled.

Each step reads files of earlier ones, writes its own as a whole, and returns what is worth
recording; done twice, it comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bayrace.config.load import ConfigError
from bayrace.config.oracle import label_settings, make_oracle
from bayrace.data.check import check_frame
from bayrace.data.frame import ISOLATED_TYPE, DataError, Frame
from bayrace.data.read import read_frames
from bayrace.data.write import write_frames
from bayrace.evaluate.evaluation import Evaluation, evaluate
from bayrace.label.label import Labelling, label_frames
from bayrace.label.store import LabelStore
from bayrace.potential.potential import Potential
from bayrace.report.round import Pick, Round, Shown
from bayrace.select.scan import Scanning
from bayrace.select.select import MIN_DISTANCE, Selection, select
from bayrace.workflow.loop.learn import errors
from bayrace.workflow.loop.runs import (
    KEYS,
    Exploration,
    RunRecord,
    explore_in_files,
    pool_of,
    read_run,
    read_traj,
)
from bayrace.workflow.loop.state import STATE
from bayrace.workflow.loop.steps import Chosen, Explored, Labelled
from bayrace.workflow.loop.workspace import CHOSEN, JUDGED, LABELLED, TRAIN, Workspace

_HALVINGS = 5  # of the least distance, where it lets nothing through


def explore(workspace: Workspace, number: int) -> Explored:
    """Simulate with the newest potential."""
    starts = _starts(workspace, number)
    exploration = Exploration(
        model=str(workspace.model(number - 1)),
        folder=str(workspace.folder(number) / "explore"),
        starts=tuple(_name(workspace, frame) for frame in starts),
        config=workspace.config.explore,
        seed=workspace.seed(number),
    )
    runs = explore_in_files(exploration, starts, progress=workspace.watch.run)
    return Explored(tuple(run.summary() for run in runs))


def choose(workspace: Workspace, number: int, *, budget: int) -> Chosen:
    """Choose up to `budget` structures of all that was visited."""
    config, folder = workspace.config.select, workspace.folder(number)
    runs = [read_run(file) for file in sorted((folder / "explore").glob("run-*.json"))]
    pool = pool_of(runs, folder / "explore")
    if not pool:
        return Chosen()
    train, valid = workspace.data(number - 1)
    potential = Potential.load(workspace.model(number - 1))
    seen = [*train, *valid, *_failed(workspace, number)]

    def at_least(distance: float | None) -> Selection:
        return select(
            potential,
            pool,
            by=config.acquisition(config.by),
            budget=budget,
            seen=seen,
            seed=workspace.seed(number),
            min_distance=distance,
            scanning=Scanning(over_atoms=config.over_atoms),
        )

    selection, lowered = at_least(config.min_distance), None
    if not len(selection.indices) and any(run.uncertain for run in runs):
        selection, lowered = _nearer(selection, config.min_distance, at_least)
    write_frames(folder / CHOSEN, [pool[place] for place in selection.indices])
    return Chosen(_picks(selection, runs), dict(selection.skipped), len(pool), lowered)


def label(workspace: Workspace, number: int, *, paid: int) -> Labelled:
    """Label what was chosen; `paid` labels were there before."""
    config, folder = workspace.config, workspace.folder(number)
    oracle = make_oracle(config.oracle, timeout=config.label.timeout)
    found = label_frames(
        read_traj(folder / CHOSEN),
        oracle,
        store=workspace.root / STATE,
        settings=label_settings(config.label),
        progress=workspace.watch.labels,
    )
    uses = _uses(found, paid, config.select.valid)
    result = Labelled(
        uses=uses,
        failures=list(found.failures.values()),
        newest=None,
        forces_rmse=[None for _ in uses],
        calls=LabelStore(workspace.root / STATE).calls(),
    )
    if not found.labelled:
        _refuse_silence(workspace, number, result.failures[-1])
        return result
    write_frames(folder / LABELLED, found.labelled)
    judged = evaluate(Potential.load(workspace.model(number - 1)), found.labelled, name="newest")
    np.savez(folder / JUDGED, error=judged.forces.error, std=judged.forces.std)
    return replace(result, newest=errors(judged), forces_rmse=_by_structure(judged, found))


def shown(workspace: Workspace, rounds: Sequence[Round]) -> list[Shown]:
    """The newest labels as they were predicted, for the page."""
    labelled = [each for each in rounds if each.newest is not None]
    if not labelled:
        return []
    last = labelled[-1]
    folder = workspace.folder(last.number)
    if not (folder / JUDGED).is_file():  # somebody has cleaned up
        return []
    frames = read_traj(folder / LABELLED)
    ends = np.cumsum([len(frame.numbers) for frame in frames])[:-1]
    with np.load(folder / JUDGED, allow_pickle=False) as arrays:
        errors, stds = (np.split(arrays[name], ends) for name in ("error", "std"))
    picks = [pick for pick in last.chosen if pick.use != "failed"]
    return [Shown(*each) for each in zip(picks, frames, errors, stds, strict=True)]


def _starts(workspace: Workspace, number: int) -> list[Frame]:
    """The structures that a round's runs begin from: given ones, and labels of earlier rounds."""
    config = workspace.config.explore
    given, found = (
        all_starts(workspace),
        workspace.labelled(number - 1)[0] if config.restart_fraction else [],
    )
    wanted = min(config.structures or len(given), len(given))
    new = min(round(wanted * config.restart_fraction), len(found))
    random = np.random.default_rng([workspace.config.seed, number])
    return [*_drawn(given, wanted - new, random), *_drawn(found, new, random)]


def _drawn(frames: list[Frame], count: int, random: np.random.Generator) -> list[Frame]:
    """Some of the frames, in their order."""
    return [frames[place] for place in np.sort(random.choice(len(frames), count, replace=False))]


def _name(workspace: Workspace, frame: Frame) -> str:
    """What a start is called: where its file lies within the loop, or how the file is called."""
    path = Path(frame.source)
    inside = path.is_relative_to(workspace.root)
    return f"{path.relative_to(workspace.root) if inside else path.name}, frame {frame.index}"


def all_starts(workspace: Workspace) -> list[Frame]:
    """What runs may begin from: the files that were named, else the training set."""
    paths = workspace.config.explore.starts
    if paths is None:
        return read_traj(workspace.folder(0) / TRAIN)
    frames = read_frames(list(paths), keys=KEYS, config_weights={}, require_labels=False)
    frames = [frame for frame in frames if frame.config_type != ISOLATED_TYPE]
    if not frames:
        raise ConfigError("explore.starts: no structures in these files; give at least 1")
    for frame in frames:
        check_frame(frame)
    return frames


def _nearer(
    selection: Selection, distance: float | None, choose: Callable[[float], Selection]
) -> tuple[Selection, float | None]:
    """Halve the least distance until something is chosen; with 0, only copies are left out.

    Runs that stop early meet uncertain structures which are near known ones all the same.
    """
    least = MIN_DISTANCE.get(selection.descriptor, 0.0) if distance is None else distance
    tried = (
        [] if least == 0 else [*(least / 2**halving for halving in range(1, _HALVINGS + 1)), 0.0]
    )
    for nearer in tried:
        selection = choose(nearer)
        if len(selection.indices):
            return selection, nearer
    return selection, None


def _picks(selection: Selection, runs: Sequence[RunRecord]) -> tuple[Pick, ...]:
    """Each choice, where it came from and why it was made."""
    places = [(run, visit) for run in runs for visit in run.visits]
    found = []
    for rank, (place, why) in enumerate(zip(selection.indices, selection.why, strict=True)):
        run, visit = places[int(place)]
        found.append(
            Pick(
                why=why,
                by=selection.criteria[rank],
                score=float(selection.scores[rank]),
                start=run.start,
                temperature=run.temperature,
                step=visit.step,
                time=visit.time,
                forces_std=visit.forces_std,
                risk=visit.risk,
            )
        )
    return tuple(found)


def _failed(workspace: Workspace, number: int) -> list[Frame]:
    """Structures of earlier rounds that the oracle could not label: nothing like them again."""
    found: list[Frame] = []
    for earlier in range(1, number):
        uses = workspace.labels(earlier).uses
        if "failed" in uses:
            frames = read_traj(workspace.folder(earlier) / CHOSEN)
            found += [f for f, use in zip(frames, uses, strict=True) if use == "failed"]
    return found


def _refuse_silence(workspace: Workspace, number: int, last: str) -> None:
    """One round without a label may be bad luck; the first, or a second in a row, is not."""
    if number == 1 or workspace.labels(number - 1).newest is None:
        raise DataError(
            f"none of the structures of round {number} could be labelled; correct the oracle, or "
            f"raise label.retries, and start again. The last error: {last}"
        )


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
    ends = np.cumsum(judged.atom_counts)[:-1]
    parts = iter(np.split(judged.forces.error, ends))
    return [
        None if frame is None else float(np.sqrt(np.mean(next(parts) ** 2)))
        for frame in found.frames
    ]
