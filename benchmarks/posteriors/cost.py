"""What the predictions of the table's artifacts cost, beside one network of squared errors.

    python benchmarks/posteriors/cost.py 3bpa     needs an idle machine; writes results/cost.json

One core, batches of 16 and of 1 structure of the known set, graphs ready. Calls are made in turns
and the least time of each counts, as in uncertainty_cost.py. Force covariances in closed form,
which take dozens of backward passes, are timed beside the point prediction in a run of their own
with fewer rounds; never in one round only, whose time is that of whatever else the machine did.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from artifacts import ROWS, STUDIES, Study, artifacts, parser

from bayrace.config import make_config
from bayrace.core.graph import GraphBatch
from bayrace.data.dataset import Dataset
from bayrace.data.frame import Frame
from bayrace.evaluate.metrics.cost import Call, interleaved_times, peak_memory, relative_times
from bayrace.potential.potential import Potential
from bayrace.system.process import tune_process
from bayrace.workflow.train import read_splits

MEASURE = "mse-0"
SLOW = 4  # rows whose force covariances are computed for fewer frames take their time
SAME = ("nll_e", "nll_e-plain", "cholesky")  # cost what nll_jef-0 does

Potentials = dict[str, Potential]


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--rounds", type=int, default=12)
    known.add_argument("--slow-rounds", type=int, default=5, help="of force covariances")
    options = known.parse_args()
    tune_process()
    torch.set_num_threads(1)
    study = STUDIES[options.study]
    there = {
        name: each.file
        for name, each in artifacts(study, options.seeds[0]).items()
        if each.file.is_file()
    }
    chosen = [MEASURE, *(name for name in there if name not in (MEASURE, *SAME))]
    potentials = {name: Potential.load(there[name]) for name in chosen}
    frames = read_splits(make_config(potentials[MEASURE].config)).test[study.known]
    slow = options.slow_rounds
    found = {
        "16": cost(potentials, frames[:16], rounds=options.rounds, slow_rounds=slow),
        "1": cost(potentials, frames[:1], rounds=4 * options.rounds, slow_rounds=slow),
    }
    study.results.mkdir(parents=True, exist_ok=True)
    file_of(study).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def file_of(study: Study) -> Path:
    """Where the times are kept."""
    return study.results / "cost.json"


def cost(
    potentials: Potentials, frames: Sequence[Frame], *, rounds: int, slow_rounds: int
) -> dict[str, Any]:
    """By name: seconds, ratios to the measure with all σ and with that of the energy, memory."""
    batches = {name: batch_of(each, frames) for name, each in potentials.items()}
    full: dict[str, Call] = {
        name: partial(each.predict_batch, batches[name]) for name, each in potentials.items()
    }
    energy: dict[str, Call] = {
        name: partial(each.predict_batch, batches[name], uncertainty="energy")
        for name, each in potentials.items()
    }
    slow = [name for name in potentials if ROWS[name].every > SLOW]
    fast = [name for name in potentials if name not in slow]
    quick = timed([full[name] for name in fast] + list(energy.values()), rounds)
    long = timed([full[MEASURE], *(full[name] for name in slow)], slow_rounds) if slow else []
    ratios = dict(zip(fast, quick, strict=False)) | dict(zip(slow, long[1:], strict=True))
    of_energy = dict(zip(potentials, quick[len(fast) :], strict=True))
    memory = {name: weights(each) + peak(each, full[name]) for name, each in potentials.items()}
    return {
        name: {
            "time": ratios[name],
            "energy_time": of_energy[name],
            "memory": memory[name],
            "memory_ratio": memory[name] / memory[MEASURE],
        }
        for name in potentials
    }


def timed(calls: Sequence[Call], rounds: int) -> list[float]:
    """Least times over that of the first call."""
    return [float(ratio) for ratio in relative_times(interleaved_times(calls, rounds=rounds))]


def batch_of(potential: Potential, frames: Sequence[Frame]) -> GraphBatch:
    data = Dataset(
        frames,
        elements=potential.elements,
        cutoff=potential.model.cutoff,
        references=potential.references,
    )
    return data.batch(range(len(frames)), dtype=potential.dtype)[0]


def peak(potential: Potential, call: Call) -> int:
    return peak_memory(call, device=potential.device)


def weights(potential: Potential) -> int:
    """Bytes of the posterior and of the samples that predictions use."""
    tensors = (*potential.posterior.tensors().values(), *potential.folded.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


if __name__ == "__main__":
    main()
