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
    same_structures,
    write_json,
)

from bayrace.potential.potential import Potential
from bayrace.train import checkpoint


def training(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """Checkpoints are equal bit for bit, however often the training was killed."""
    data = ethanol(folder, "train", 24)

    def command(target: Path, *more: str) -> tuple[object, ...]:
        keys = ("model.preset=tiny", "model.dtype=float64", "train.batch_size=2", "train.threads=1")
        keys += ("train.max_epochs=60", "train.checkpoint_every=0.5", f"output={target}")
        return ("train", data, *(text for key in keys for text in ("-s", key)), *more)

    finish(*command(folder / "whole"))
    kills, runs = 0, 0
    while kills < amount.train:
        runs += 1
        target = folder / f"killed-{runs}"
        going = True
        while going and kills < amount.train:
            resume = (target / checkpoint.LAST).is_file()
            how = ("--resume",) if resume else ("--overwrite",)
            going = kill_after(random.uniform(1.0, 12.0), *command(target, *how))
            kills += going
        if going:
            resume = (target / checkpoint.LAST).is_file()
            finish(*command(target, "--resume" if resume else "--overwrite"))
        same_checkpoints(folder / "whole", target)
    return f"{kills} kills over {runs} trainings, checkpoints equal bit for bit"


def labelling(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """No label is lost, none is computed twice, and all are as without kills."""
    count = 4 * amount.label
    pool = folder / "metals.xyz"
    ase.io.write(pool, [_cluster(seed, 0.1) for seed in range(count)], format="extxyz")

    def command(name: str, *more: str) -> tuple[object, ...]:
        oracle = ("--oracle", f"{COUNTING}:Counting", "-a", f"log={folder / name}.log")
        how = ("-a", "seconds=0.2", "--workers", 2, "-o", folder / f"{name}.xyz", *more)
        return ("label", pool, *oracle, *how)

    finish(*command("whole"))
    kills = 0
    while kills < amount.label:
        resume = ("--resume",) if (folder / "killed.sqlite").exists() else ()
        if not kill_after(random.uniform(2.0, 7.0), *command("killed", *resume), everyone=False):
            break
        kills += 1
    finish(*command("killed", "--resume"))
    same_structures(folder / "whole.xyz", folder / "killed.xyz")
    need(once_each(folder / "killed.log") == count, "labels are missing")
    return f"{kills} kills, {count} labels, each paid for once"


def loop(folder: Path, amount: Amount, random: np.random.Generator) -> str:
    """The final weights are those of an undisturbed loop, and nothing is paid twice."""
    ase.io.write(folder / "start.xyz", [_cluster(seed, 0.05) for seed in range(12)])
    ase.io.write(folder / "hot.xyz", [_cluster(seed, 0.15) for seed in range(50, 58)])
    rounds = max(2, amount.loop // 3)
    files = {name: _loop_file(folder, name, rounds) for name in ("whole", "killed")}
    finish("active", files["whole"])
    kills, going = 0, True
    while going and kills < amount.loop:
        going = kill_after(random.uniform(2.0, 12.0), "active", files["killed"], everyone=False)
        kills += going
    finish("active", files["killed"])
    whole, killed = (Potential.load(folder / name / "model.bayrace") for name in files)
    mine, other = whole.posterior.tensors(), killed.posterior.tensors()
    need(mine.keys() == other.keys(), "other weights")
    need(all(bool((mine[key] == other[key]).all()) for key in mine), "the final weights differ")
    paid = [once_each(folder / f"{name}.log") for name in files]
    need(paid[0] == paid[1], f"{paid[1]} labels instead of {paid[0]}")
    said = [json.loads((folder / name / "rounds.json").read_text("utf-8")) for name in files]
    need(said[0]["reason"] == said[1]["reason"], "another reason to end")
    return f"{kills} kills over {rounds} rounds, {paid[1]} labels paid once, final weights equal"


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
        "train": {"max_epochs": 5, "batch_size": 3, "device": "cpu"},
        "posterior": "point",
        "test": {"hot": str(folder / "hot.xyz")},
        "explore": {
            "temperatures": [300, 900],
            "structures": 2,
            "steps": 30,
            "every": 10,
            "workers": 1,
            "rule": {"bound": 0.05, "probability": 0.01},
        },
        "select": {"by": "variance", "budget": 4, "valid": 0.25, "apart": 0.001},
        "oracle": {
            "kind": "ase",
            "ase": {"calculator": f"{COUNTING}:Counting", "arguments": arguments},
        },
        "tune": {"epochs": 3},
        "stop": {"rounds": rounds, "uncertain": None},
    }
    return write_json(folder / f"{name}.yaml", raw)
