"""Twenty trials of `bayrace search` on the embedded ethanol, and what the best is worth elsewhere.

    python benchmarks/search.py runs/search-ethanol

Prints the processor time of the trials, then the score of the default configuration, which is the
first trial, and of the best on the test frames and hot frames, which the search has not seen. A
folder that holds a finished search is only judged.
"""

from __future__ import annotations

import argparse
import os
import resource
from pathlib import Path

from bayrace.config.search import load_search
from bayrace.data.embedded import embedded, embedded_frames
from bayrace.potential.potential import Potential
from bayrace.workflow.folder import MODEL
from bayrace.workflow.search import SearchObserver, search
from bayrace.workflow.search_score import judge

CONFIG = """
output: {folder}
data: {{train: ["{train}", "{atoms}"], valid: "{valid}"}}
train: {{max_epochs: {epochs}}}
search:
  trials: {trials}
  workers: {workers}
  space:
    train.lr: {{low: 0.001, high: 0.03, log: true}}
    train.batch_size: [2, 5, 10]
    loss.forces: {{low: 1.0, high: 1000.0, log: true}}
"""


def main() -> None:
    """Search, then judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / "search.yaml"
    names = {name: embedded(f"ethanol-{name}") for name in ("train", "atoms", "valid")}
    path.write_text(CONFIG.format(**vars(options), **names), encoding="utf-8")
    config, section, raw = load_search(path)
    result = search(config, section, raw, watch=SearchObserver(told=lambda t: print(t, flush=True)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = os.times()
    minutes = (used.ru_utime + used.ru_stime + own.user + own.system) / 60
    print(f"{len(result.trials)} trials, {minutes:.1f} minutes of processor time")
    if result.best is None:
        return
    for name, number in (("default", 0), ("best", result.best.number)):
        potential = Potential.load(options.folder / f"trials/{number:04d}/seed-0" / MODEL)
        seen = judge(potential, embedded_frames("ethanol-test"), embedded_frames("ethanol-hot"))
        print(f"{name}: {seen}")
    print(f"best: trial {result.best.number}, {dict(result.best.values)}")


if __name__ == "__main__":
    main()
