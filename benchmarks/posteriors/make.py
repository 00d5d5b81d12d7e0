"""Make the artifacts of the table of posteriors that are missing, in runs/posteriors.

    python benchmarks/posteriors/make.py                     what there is to do, the cheap first
    python benchmarks/posteriors/make.py --only swag ivon    these, and what they are fitted to

Run it where data lie in ../shared/data, that is in the folder of the project. Killed and started
again, it goes on where it was. Everything together takes about two hours on one core.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from artifacts import ARTIFACTS, HERE, MADE, RUNS, Artifact

from bayrace.config import Config, load_config
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.train.checkpoint import LAST
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import train_members
from bayrace.workflow.folder import ENSEMBLE, clear_folder
from bayrace.workflow.member import SideBySide
from bayrace.workflow.start import posterior_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in MADE])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true", help="only say what is missing")
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(options.threads)
    wanted = [each for each in MADE if options.only is None or each.name in options.only]
    missing = [each for each in wanted if not up_to_date(each)]
    print("missing:", ", ".join(each.name for each in missing) or "nothing", flush=True)
    while missing and not options.dry_run:
        ready = [
            each for each in missing if each.base is None or ARTIFACTS[each.base].file.is_file()
        ]
        chosen = (ready or [maker(missing[0])])[0]
        start = time.perf_counter()
        make(chosen, threads=options.threads)
        print(f"{chosen.file}: {time.perf_counter() - start:.0f} s", flush=True)
        missing = [each for each in missing if not up_to_date(each)]


def up_to_date(artifact: Artifact) -> bool:
    """Whether it is there and not older than what it was fitted to."""
    if not artifact.file.is_file() or artifact.base is None:
        return artifact.file.is_file()
    base = ARTIFACTS[artifact.base].file
    return base.is_file() and base.stat().st_mtime <= artifact.file.stat().st_mtime


def maker(artifact: Artifact) -> Artifact:
    """The ensemble whose first member this one is fitted to."""
    assert artifact.base is not None
    return ARTIFACTS[ARTIFACTS[artifact.base].path.split("/")[0]]


def make(artifact: Artifact, *, threads: int) -> None:
    """Train it, or fit it to its base."""
    if artifact.config is None:
        attach(artifact)
        return
    overrides = [*artifact.overrides, f"train.threads={threads}", f"output={artifact.file.parent}"]
    config = load_config(HERE / artifact.config, overrides)
    if artifact.members > 1:
        begun = (artifact.file.parent / ENSEMBLE).is_file()
        train_members(config, members=artifact.members, how=SideBySide(1, pin=False), resume=begun)
    else:
        run.train(config, resume=begun_in(artifact.file.parent))


def attach(artifact: Artifact) -> None:
    """Fit a posterior to a trained network, as `bayrace fit` does, without its evaluation."""
    assert artifact.base is not None
    assert artifact.posterior is not None
    potential = Potential.load(ARTIFACTS[artifact.base].file)
    config: Config = posterior_config(potential, artifact.posterior, list(artifact.overrides))
    folder = RUNS / artifact.name
    folder.mkdir(parents=True, exist_ok=True)
    if artifact.file.is_file():  # of an earlier base
        clear_folder(folder / "fit")
    fitted = run.fit_posterior(
        potential, config, folder=folder / "fit", resume=begun_in(folder / "fit")
    )
    assert fitted is not None, "nothing stops it"
    print(f"{artifact.name}:", fitted.posterior.options())
    fitted.save(artifact.file)


def begun_in(folder: Path) -> bool:
    return (folder / LAST).is_file()


if __name__ == "__main__":
    main()
