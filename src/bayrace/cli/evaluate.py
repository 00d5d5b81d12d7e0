"""`bayrace evaluate`: errors of a potential on labelled files, and how well it knew them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bayrace.cli.cluster import Processes, Scheduler, loaded
from bayrace.cli.common import (
    Debug,
    Device,
    EdgeBudget,
    EnergyKey,
    ForcesKey,
    ModelFile,
    StressKey,
    console,
    counted,
    friendly,
    warn,
)
from bayrace.system.process import tune_process

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from bayrace.data.read import Frame, LabelKeys
    from bayrace.evaluate.evaluation import Evaluation
    from bayrace.evaluate.metrics.ood import Detection
    from bayrace.evaluate.strange import ByElements
    from bayrace.potential.cluster import OnCluster
    from bayrace.potential.potential import Potential


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(friendly(evaluate))


def evaluate(
    model: ModelFile,
    files: Annotated[list[str], typer.Argument(help="Labelled files; globs, file.xyz@:100.")],
    ood: Annotated[
        list[str] | None,
        typer.Option(help="A file of unknown structures, to be told from the others; repeatable."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="JSON file to write the numbers to as well (eV, Å)."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Also draw parity and σ figures into this folder.")
    ] = None,
    edge_budget: EdgeBudget = 20_000,
    workers: Processes = 1,
    scheduler: Scheduler = None,
    energy_key: EnergyKey = None,
    forces_key: ForcesKey = None,
    stress_key: StressKey = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Compare a potential with labelled structures: errors, and the quality of predicted σ.

    \b
    Examples:
      bayrace evaluate model.bayrace test.xyz
      bayrace evaluate model.bayrace test_300K.xyz test_1200K.xyz --json errors.json
      bayrace evaluate model.bayrace test_300K.xyz --ood test_1200K.xyz
      bayrace evaluate model.bayrace test.xyz --energy-key REF_energy --forces-key REF_forces
    """
    del debug
    tune_process()
    everything = (*files, *(ood or []))
    names = [Path(file).name for file in everything]
    unique = {f: n if names.count(n) == 1 else f for f, n in zip(everything, names, strict=True)}
    with loaded(model, device=device, workers=workers, scheduler=scheduler) as (potential, spread):
        keys = label_keys(potential, energy=energy_key, forces=forces_key, stress=stress_key)
        judge = partial(judged, potential, spread or potential, edge_budget=edge_budget)
        known = [judge(read_labelled([file], keys), name=unique[file]) for file in files]
        far = [
            unknown_set(judge, read_labelled([file], keys), potential.elements, unique[file])
            for file in ood or []
        ]
    detected = detect(known, far)
    evaluations = [*known, *(each.evaluation for each in far if each.evaluation is not None)]
    if json_file is not None:
        strange = {each.name: each.parts.to_json() for each in far if each.parts.strange}
        write_json(json_file, model, evaluations, detected, strange)
    if figures is not None:
        draw(figures, evaluations)


class Unknown(NamedTuple):
    """A set that is to be told from the known ones."""

    name: str
    evaluation: Evaluation | None  # of frames of known elements; None where there are none
    parts: ByElements


def judged(
    potential: Potential,
    predictor: Potential | OnCluster,
    frames: list[Frame],
    *,
    name: str,
    edge_budget: int,
) -> Evaluation:
    """The evaluation of one set, shown."""
    warn_if_seen(potential, frames, name)
    found = evaluate_frames(predictor, frames, name=name, edge_budget=edge_budget)
    show(found)
    return found


def unknown_set(
    judge: Callable[..., Evaluation], frames: list[Frame], elements: tuple[int, ...], name: str
) -> Unknown:
    """What is known of a set: `judge` sees only those of its frames that can be predicted."""
    from bayrace.evaluate.strange import by_elements

    parts = by_elements(frames, elements)
    return Unknown(name, judge(parts.usual, name=name) if parts.usual else None, parts)


def show(evaluation: Evaluation) -> None:
    """Print the tables of one set."""
    from bayrace.cli.tables import evaluation_table, quality_table

    out = console()
    out.print(evaluation_table(evaluation))
    quality = quality_table(evaluation)
    if quality is not None:
        out.print(quality)


def detect(
    known: list[Evaluation], unknown: list[Unknown]
) -> dict[str, dict[str, Detection | None]]:
    """How well the known sets together are told from each unknown one, printed; by its name."""
    import numpy as np

    from bayrace.cli.tables import detection_table
    from bayrace.evaluate.metrics.ood import detections

    found = {}
    joined = join_scores(known)
    for name, evaluation, parts in unknown:
        none = {score: np.empty(0) for score in joined}
        scores = none if evaluation is None else evaluation.scores()
        found[name] = detections(joined, scores, certain=len(parts.strange))
        if parts.strange:
            console().print(f"{name}: {parts.describe()}")
        names = " + ".join(k.name for k in known)
        table = detection_table(names, name, found[name], known[0].target)
        text = f"{name}: no σ is predicted, so nothing tells it from known structures"
        if parts.strange:
            text = f"{name}: no σ is predicted, so nothing but elements tells it from known ones"
        console().print(text if table is None else table)
    return found


def join_scores(evaluations: list[Evaluation]) -> dict[str, NDArray[np.float64]]:
    """Scores of all structures of several sets."""
    import numpy as np

    parts = [each.scores() for each in evaluations]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def warn_if_seen(potential: Potential, frames: list[Frame], name: str) -> None:
    """Say so if frames had a part in making the potential, as errors on them are no evidence."""
    from bayrace.calibrate.seen import PURPOSES, overlap

    found = overlap(potential.frames, frames)
    used = [f"{count} for {PURPOSES[part]}" for part, count in found.items() if part != "test"]
    if used:
        warn(
            f"{name}: of {len(frames)} frames, this potential used {', '.join(used)}; errors on "
            "them are smaller than on new ones"
        )


def label_keys(
    potential: Potential,
    *,
    energy: str | None = None,
    forces: str | None = None,
    stress: str | None = None,
) -> LabelKeys:
    """Keys given here, else those of the training data."""
    from bayrace.data.read import LabelKeys

    trained: dict[str, Any] = potential.config.get("data", {})
    own = not potential.target.is_energy
    target: dict[str, Any] = potential.config.get("target", {})
    trained_key = target.get("key") or potential.target.name if own else trained.get("energy_key")
    return LabelKeys(
        energy=energy or trained_key,
        forces=forces or trained.get("forces_key"),
        stress=stress or trained.get("stress_key"),
        virial=trained.get("virial_key"),
        config_type=trained.get("config_type_key"),
        forces_too=not own,
    )


def evaluate_frames(
    predictor: Potential | OnCluster, frames: list[Frame], *, name: str, edge_budget: int
) -> Evaluation:
    """Evaluate the frames of one file with a progress bar."""
    from bayrace.evaluate.evaluation import evaluate as compare

    with counted(name, len(frames)) as progress:
        return compare(predictor, frames, name=name, edge_budget=edge_budget, progress=progress)


def read_labelled(files: list[str], keys: LabelKeys) -> list[Frame]:
    """The frames of files but for isolated atoms; refused where none has a label."""
    from bayrace.data.hints import label_hint
    from bayrace.data.read import DataError, read_frames, split_isolated

    frames, _ = split_isolated(read_frames(files, keys=keys, config_weights={}))
    if not any(frame.labelled for frame in frames):
        raise DataError(
            f"{', '.join(files)}: no frame has an energy or forces to compare with; name their "
            f"keys with --energy-key and --forces-key{label_hint(frames)}, or use bayrace predict"
        )
    return frames


def write_json(
    path: Path,
    model: Path,
    evaluations: list[Evaluation],
    detected: dict[str, dict[str, Detection | None]],
    strange: dict[str, dict[str, Any]],
) -> None:
    """Write the numbers, in eV and Å; `strange` are frames of unknown elements, by set."""
    from bayrace.train.checkpoint import write_atomically

    detection = {
        name: {score: None if each is None else each.to_json() for score, each in found.items()}
        for name, found in detected.items()
    }
    content = {
        "model": str(model),
        "sets": {each.name: each.to_json() for each in evaluations},
        "detection": detection,
        "unknown_elements": strange,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode())
    console().print(f"numbers: {path}")


def draw(folder: Path, evaluations: list[Evaluation]) -> None:
    """Write the figures as PNG files."""
    from bayrace.report import figures

    drawings = {
        "parity.png": figures.parity(evaluations),
        "error-against-sigma.png": figures.error_against_spread(evaluations),
        "sigma.png": figures.spread_histograms(evaluations),
    }
    for name, figure in drawings.items():
        console().print(f"figure: {figures.save(figure, folder / name)}")
