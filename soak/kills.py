"""kill -9 at random moments: what is left goes on, and comes to what nobody disturbed comes to."""

from __future__ import annotations

import json
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from common import (
    COUNTING,
    Amount,
    ethanol,
    finish,
    kill_after,
    need,
    once_each,
    same_checkpoints,
    same_potentials,
    same_structures,
    write_json,
)

from bayrace.train import checkpoint
from bayrace.workflow.folder import MODEL


def training(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """Checkpoints and potential are equal bit for bit, however often the training was killed."""
    data = ethanol(folder, "train", 24)

    def command(target: Path, *more: str) -> tuple[object, ...]:
        keys = ("model.preset=tiny", "train.batch_size=2", "train.threads=1")  # else the defaults
        keys += ("train.max_epochs=60", "train.checkpoint_every=0.5", f"output={target}")
        return ("train", data, *(text for key in keys for text in ("-s", key)), *more)

    def again(target: Path) -> tuple[object, ...]:
        resume = (target / checkpoint.LAST).is_file()
        return command(target, "--resume" if resume else "--overwrite")

    finish(*command(folder / "whole"))
    kills, runs = 0, 0
    while kills < amount.train:
        runs += 1
        target = folder / f"killed-{runs}"
        while kills < amount.train and kill_after(random.uniform(0.3, 4.0), *again(target)):
            kills += 1
        if not (target / MODEL).is_file():
            finish(*again(target))
        same_checkpoints(folder / "whole", target)
        same_potentials(folder / "whole" / MODEL, target / MODEL)
    return f"{kills} kills over {runs} trainings, checkpoints and potentials equal bit for bit"


def labelling(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """No label is lost, none is computed twice, and all are as without kills."""
    count = 100
    pool = folder / "metals.xyz"
    ase.io.write(pool, [_cluster(seed, 0.1) for seed in range(count)], format="extxyz")

    def command(name: str, *more: str) -> tuple[object, ...]:
        oracle = ("--oracle", f"{COUNTING}:Counting", "-a", f"log={folder / name}.log")
        how = ("-a", "seconds=0.3", "--workers", 2, "-o", folder / f"{name}.xyz", *more)
        return ("label", pool, *oracle, *how)

    def again(name: str) -> tuple[object, ...]:
        return command(name, *(("--resume",) if (folder / f"{name}.sqlite").exists() else ()))

    finish(*command("whole"))
    kills, runs = 0, 0
    while kills < amount.label:
        runs += 1
        name = f"killed-{runs}"
        going = True
        while kills < amount.label and going:
            going = kill_after(random.uniform(0.3, 6.0), *again(name), everyone=False)
            kills += going
        if going:
            finish(*again(name))
        same_structures(folder / "whole.xyz", folder / f"{name}.xyz")
        need(once_each(folder / f"{name}.log") == count, "labels are missing")
    return f"{kills} kills over {runs} runs of {count} labels, each paid for once"


def loop(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """The final weights are those of an undisturbed loop, and nothing is paid twice."""
    ase.io.write(folder / "start.xyz", [_cluster(seed, 0.05) for seed in range(12)])
    ase.io.write(folder / "hot.xyz", [_cluster(seed, 0.15) for seed in range(50, 58)])
    rounds = 4
    finish("active", _loop_file(folder, "whole", rounds))
    paid = once_each(folder / "whole.log")
    kills, runs = 0, 0
    while kills < amount.loop:
        runs += 1
        name, going = f"killed-{runs}", True
        file = _loop_file(folder, name, rounds)
        while going and kills < amount.loop:
            going = kill_after(random.uniform(0.3, 12.0), "active", file, everyone=False)
            kills += going
        if going:
            finish("active", file)
        same_potentials(folder / "whole" / MODEL, folder / name / MODEL)
        again = once_each(folder / f"{name}.log")
        need(again == paid, f"{again} labels instead of {paid}")
        need(_reason(folder / "whole") == _reason(folder / name), "another reason to end")
    return (
        f"{kills} kills over {runs} loops of {rounds} rounds, {paid} labels each, paid once; "
        "final potentials equal bit for bit"
    )


def _reason(folder: Path) -> str:
    return str(json.loads((folder / "rounds.json").read_text("utf-8"))["reason"])


def _cluster(seed: int, amount: float) -> Atoms:
    side = 2.4 / np.sqrt(8)
    corners = side * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    atoms = Atoms("Cu4", positions=corners)
    atoms.rattle(amount, seed=seed)
    atoms.calc = EMT()
    atoms.get_forces()
    return atoms


def _loop_file(folder: Path, name: str, rounds: int) -> Path:
    arguments = {"log": str(folder / f"{name}.log"), "seconds": 0.2}
    raw = {
        "output": str(folder / name),
        "data": {"train": str(folder / "start.xyz"), "valid": 3},
        "model": {"preset": "tiny", "cutoff": 4.0},
        "loss": {"refit_epochs": 1},
        "train": {"max_epochs": 5, "batch_size": 3, "device": "cpu", "threads": 1},
        "posterior": "distance",
        "test": {"hot": str(folder / "hot.xyz")},
        "explore": {
            "temperatures": [300, 900],
            "structures": 2,
            "steps": 30,
            "every": 10,
            "workers": 1,
            "rule": {"max_force_error": 0.05, "probability": 0.01},
        },
        "select": {"by": "variance", "budget": 4, "valid": 0.25, "min_distance": 0.001},
        "oracle": {
            "kind": "ase",
            "ase": {"calculator": f"{COUNTING}:Counting", "arguments": arguments},
        },
        "tune": {"epochs": 3},
        "stop": {"rounds": rounds, "uncertain": None},
    }
    return write_json(folder / f"{name}.yaml", raw)
