"""The tables of posteriors, from what judge.py and cost.py found: mean ± standard deviation.

    python benchmarks/posteriors/table.py 3bpa --seeds 0 1 2      print Markdown, write table.json

Judges what is there and was not judged before; rows appear as make.py makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import cost
import numpy as np
import torch
from artifacts import ROWS, STUDIES, Study, artifacts, parser
from judge import judge

from bayrace.system.process import tune_process

Found = dict[str, Any]  # what judge.py found for one artifact
Results = dict[str, list[Found]]  # by row, one for each seed
QUANTITIES = ("energy", "forces")


def main() -> None:
    options = parser(__doc__).parse_args()
    tune_process()
    torch.set_num_threads(1)
    study = STUDIES[options.study]
    results: Results = {}
    for seed in options.seeds:
        for name, each in artifacts(study, seed).items():
            if each.file.is_file() and each.row.shown:
                results.setdefault(name, []).append(judge(each))
    ordered = {name: results[name] for name in ROWS if name in results}
    for lines in (accuracy(ordered, study), calibration(ordered, study), scales(ordered, study)):
        print(lines, end="\n\n")
    file = cost.file_of(study)
    costs = json.loads(file.read_text()) if file.is_file() else {}
    print(detection(ordered, costs))
    content = {"results": ordered, "cost": costs}
    (study.results / "table.json").write_text(json.dumps(content, indent=1) + "\n")


def accuracy(results: Results, study: Study) -> str:
    """RMSE of energies in meV, or meV/atom, and of forces in meV/Å."""
    energy = "energy_per_atom_rmse" if study.per_atom else "energy_rmse"
    units = "meV/atom, meV/Å" if study.per_atom else "meV, meV/Å"
    head = (f"RMSE, {units}", *(f"{name}: E, F" for name in study.shown))

    def cells(seeds: list[Found]) -> list[str]:
        return [
            ", ".join(
                over(seeds, lambda f, n=name, m=metric: 1000 * f["before"][n][m], "{:.1f}")
                for metric in (energy, "forces_rmse")
            )
            for name in study.shown
        ]

    return markdown(head, results, cells)


def calibration(results: Results, study: Study) -> str:
    """Calibration errors of energy and forces: raw, scaled, isotonic."""
    sets = (study.known, study.unknown)
    head = ("CE: raw, scaled, isotonic", *(f"{name} {q}" for name in sets for q in "EF"))

    def cells(seeds: list[Found]) -> list[str]:
        return [
            ", ".join(
                over(seeds, lambda f, w=where: value(stage(f, w[0]), *w[1:]), "{:.4f}")
                for where in (
                    (which, name, quantity, "calibration_error")
                    for which in ("before", "scale", "isotonic")
                )
            )
            for name in sets
            for quantity in QUANTITIES
        ]

    return markdown(head, with_sigma(results), cells)


def scales(results: Results, study: Study) -> str:
    """RMSE over the root mean square of σ after scaling, and the share in 90 % intervals."""
    sets = (study.known, study.unknown)
    head = (
        "after scaling",
        "factor: E, F",
        *(f"{name}, RMSE/σ: E, F" for name in sets),
        *(f"{name}, in 90 %: E, F" for name in sets),
    )

    def ratio(found: Found, name: str, quantity: str) -> float | None:
        at = found["after"]["scale"][name]
        return None if at[quantity] is None else at[f"{quantity}_rmse"] / at[quantity]["sharpness"]

    def inside(found: Found, name: str, quantity: str) -> float | None:
        shares = value(found["after"]["scale"], name, quantity, "coverage")
        return None if shares is None else 100 * shares["90"]

    def cells(seeds: list[Found]) -> list[str]:
        def both(one: Callable[[Found, str], float | None], form: str) -> str:
            return ", ".join(over(seeds, lambda f, q=q: one(f, q), form) for q in QUANTITIES)

        return [
            both(lambda f, q: f["factors"].get(q), "{:.2f}"),
            *(both(lambda f, q, n=name: ratio(f, n, q), "{:.2f}") for name in sets),
            *(both(lambda f, q, n=name: inside(f, n, q), "{:.0f}") for name in sets),
        ]

    return markdown(head, with_sigma(results), cells)


def detection(results: Results, costs: Found) -> str:
    """AUROC of the known against the unknown set, and the cost of predictions."""
    scores = ("energy_total", "energy_epistemic", "forces_mean_total", "forces_mean_epistemic")
    head = (
        "",
        *("AUROC σ_E", "epistemic", "AUROC σ_F", "epistemic"),
        *("time, σ of E and F", "time, σ of E", "the same, one structure", "memory"),
    )
    names = {id(seeds): name for name, seeds in results.items()}

    def cells(seeds: list[Found]) -> list[str]:
        areas = [over(seeds, lambda f, s=score: f["auroc"].get(s), "{:.3f}") for score in scores]
        many, one = (costs.get(size, {}).get(names[id(seeds)]) for size in ("16", "1"))
        if many is None or one is None:
            return [*areas, *"––––"]
        single = f"{one['time']:.2f}, {one['energy_time']:.2f}"
        times = (f"{many['time']:.2f}", f"{many['energy_time']:.2f}", single)
        return [*areas, *times, f"{many['memory_ratio']:.1f}"]

    return markdown(head, results, cells)


def with_sigma(results: Results) -> Results:
    return {name: seeds for name, seeds in results.items() if seeds[0]["after"]}


def stage(found: Found, which: str) -> Found:
    """All sets before a calibration, or after one."""
    return found["before"] if which == "before" else found["after"].get(which, {})


def value(sets: Found, name: str, quantity: str, metric: str) -> Any:
    """One metric of one quantity of a set; None where no σ is predicted."""
    found = sets.get(name, {}).get(quantity)
    return None if found is None else found[metric]


def over(seeds: list[Found], number: Callable[[Found], float | None], form: str) -> str:
    """Mean and standard deviation over seeds."""
    values = [each for each in map(number, seeds) if each is not None]
    if not values:
        return "–"
    mean = form.format(np.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(np.std(values, ddof=1))}"


def markdown(
    head: Sequence[str], results: Results, cells: Callable[[list[Found]], list[str]]
) -> str:
    rows = [head, ["---"] * len(head)]
    rows += [[ROWS[name].label, *cells(seeds)] for name, seeds in results.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
