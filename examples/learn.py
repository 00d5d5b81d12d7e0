"""4. Choose what is worth a label, label it with GFN2-xTB, and train further: a round by hand.

python examples/learn.py          after examples/train.py; `bayrace active` does it in a loop
"""

from __future__ import annotations

import sys
from pathlib import Path

import bayrace
from bayrace.config.active import TuneConfig
from bayrace.data.embedded import embedded_frames
from bayrace.data.write import write_frames
from bayrace.evaluate.evaluation import evaluate
from bayrace.label.oracles.xtb import Gfn2
from bayrace.select.select import select
from bayrace.workflow.tune import train_from


def main(folder: Path, *, budget: int = 20, epochs: int = 10) -> bayrace.Potential:
    model = folder / "train" / "model.bayrace"
    potential = bayrace.Potential.load(model)
    pool = embedded_frames("ethanol-hot")
    chosen = select(potential, pool, by="variance", budget=budget)
    print("\n".join(["chosen first, and why:", *chosen.why[:3]]))
    labelled = [Gfn2().label(pool[place]) for place in chosen.indices]
    write_frames(folder / "labelled.traj", labelled)
    tuned = train_from(
        model,
        [str(folder / "labelled.traj")],
        tune=TuneConfig(epochs=epochs),
        folder=folder / "further",
    )
    assert tuned is not None
    tuned.save(folder / "further.bayrace")
    others = [frame for place, frame in enumerate(pool) if place not in set(chosen.indices)]
    for name, each in (("before", potential), ("after", tuned)):
        errors = evaluate(each, others, name=name).forces.error  # eV/Å
        print(f"{name}: {1000 * abs(errors).mean():.0f} meV/Å, mean error of the other forces")
    return tuned


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
