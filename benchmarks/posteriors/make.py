"""Make what the table of posteriors lacks, in runs/posteriors.

    python benchmarks/posteriors/make.py 3bpa --seeds 0 1 2
    python benchmarks/posteriors/make.py silicon --only nll_jef swag    these, for seed 0

Run it where data lie in ../shared/data, that is in the folder of the project; silicon needs
benchmarks/silicon/split.py first. Killed and started again, it goes on where it was.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from artifacts import MADE, STUDIES, Artifact, parser

from bayrace.config import load_config
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.train.checkpoint import LAST
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import train_members
from bayrace.workflow.folder import ENSEMBLE, clear_folder
from bayrace.workflow.member import SideBySide
from bayrace.workflow.start import posterior_config


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--only", nargs="+", choices=[row.name for row in MADE])
    known.add_argument("--dry-run", action="store_true", help="only say what is missing")
    options = known.parse_args()
    tune_process()
    torch.set_num_threads(1)
    wanted = [
        Artifact(row, STUDIES[options.study], seed)
        for seed in options.seeds
        for row in MADE
        if options.only is None or row.name in options.only
    ]
    for each in wanted:
        if up_to_date(each):
            continue
        print(f"{each.file} is missing", flush=True)
        if not options.dry_run:
            start = time.process_time()
            make(each)
            print(f"{each.file}: {time.process_time() - start:.0f} s of a core", flush=True)


def up_to_date(artifact: Artifact) -> bool:
    """Whether it is there and not older than what it was fitted to."""
    base = artifact.base
    if not artifact.file.is_file() or base is None:
        return artifact.file.is_file()
    return base.file.is_file() and base.file.stat().st_mtime <= artifact.file.stat().st_mtime


def make(artifact: Artifact) -> None:
    """Train it, or fit it to its base."""
    row = artifact.row
    if row.posterior is not None:
        attach(artifact)
        return
    own = [f"seed={artifact.seed}", f"output={artifact.folder}"]
    config = load_config(artifact.study.config, [*row.changes, *own])
    if row.members > 1:
        begun = (artifact.folder / ENSEMBLE).is_file()
        train_members(config, members=row.members, how=SideBySide(1, pin=False), resume=begun)
    else:
        run.train(config, resume=begun_in(artifact.folder))


def attach(artifact: Artifact) -> None:
    """Fit a posterior to a trained network, as `bayrace fit` does, without its evaluation."""
    assert artifact.base is not None
    assert artifact.row.posterior is not None
    potential = Potential.load(artifact.base.file)
    config = posterior_config(potential, artifact.row.posterior, list(artifact.row.changes))
    folder = artifact.folder / "fit"
    folder.parent.mkdir(parents=True, exist_ok=True)
    if artifact.file.is_file():  # of an earlier base
        clear_folder(folder)
    fitted = run.fit_posterior(potential, config, folder=folder, resume=begun_in(folder))
    assert fitted is not None, "nothing stops it"
    print(f"{artifact.row.name}:", fitted.posterior.options())
    fitted.save(artifact.file)


def begun_in(folder: Path) -> bool:
    return (folder / LAST).is_file()


if __name__ == "__main__":
    main()
