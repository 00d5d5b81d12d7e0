"""The table of posteriors on 3BPA, from what judge.py and cost.py found.

    python benchmarks/posteriors/table.py            print Markdown, write results/table.json

Judges what is there and was not judged before; rows appear as artifacts do.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import cost
import torch
from artifacts import ARTIFACTS, RESULTS
from judge import judge, read

from bayrace.system.process import tune_process

TABLE = RESULTS / "table.json"
SETS = ("300K", "600K", "1200K")

Results = dict[str, dict[str, Any]]
Row = Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    tune_process()
    torch.set_num_threads(1)
    there = [each for each in ARTIFACTS.values() if each.file.is_file() and each.shown]
    for each in there:
        judge(each)
    results = {each.name: found for each in there if (found := read(each)) is not None}
    times = json.loads(cost.FILE.read_text()) if cost.FILE.is_file() else {}
    for lines in (accuracy(results), calibration(results), likelihood(results)):
        print(lines, end="\n\n")
    print(detection(results, times))
    TABLE.write_text(json.dumps({"results": results, "cost": times}, indent=1) + "\n")


def accuracy(results: Results) -> str:
    """RMSE of energies in meV and of forces in meV/Å."""
    head = ("", *(f"{name[:-1]} K: E, F" for name in SETS))

    def cells(found: dict[str, Any]) -> Row:
        return [
            f"{1000 * at['energy_rmse']:.1f}, {1000 * at['forces_rmse']:.1f}"
            for at in (found["before"][name] for name in SETS)
        ]

    return markdown(head, results, cells)


def calibration(results: Results) -> str:
    """Calibration errors of energy and forces: raw, scaled, isotonic."""
    head = ("CE", *(f"{t} {q}: raw, scaled, isotonic" for t in ("300 K", "1200 K") for q in "EF"))

    def cells(found: dict[str, Any]) -> Row:
        stages = [found["before"], *(found["after"].get(m, {}) for m in ("scale", "isotonic"))]
        return [
            ", ".join(small(value(stage, at, quantity, "calibration_error")) for stage in stages)
            for at in ("300K", "1200K")
            for quantity in ("energy", "forces")
        ]

    return markdown(head, with_sigma(results), cells)


def likelihood(results: Results) -> str:
    """RMS of σ, NLL and coverage, raw and scaled."""
    head = (
        "raw → scaled",
        *("factor of σ: E, F", "NLL 300 K: E, F", "NLL 1200 K: E, F"),
        *("68 %, 95 % of E, 300 K", "68 %, 95 % of F, 300 K"),
    )

    def stages(found: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> str:
        return " → ".join(text(stage) for stage in (found["before"], found["after"]["scale"]))

    def cells(found: dict[str, Any]) -> Row:
        quantities = ("energy", "forces")

        def nll(at: str) -> Callable[[dict[str, Any]], str]:
            return lambda stage: ", ".join(
                signed(value(stage, at, quantity, "nll")) for quantity in quantities
            )

        def cover(quantity: str) -> Callable[[dict[str, Any]], str]:
            def text(stage: dict[str, Any]) -> str:
                at = value(stage, "300K", quantity, "coverage")
                return "–" if at is None else f"{100 * at['68']:.0f}, {100 * at['95']:.0f}"

            return text

        factors = (found["factors"].get(quantity) for quantity in quantities)
        return [
            ", ".join("–" if factor is None else f"{factor:.2f}" for factor in factors),
            stages(found, nll("300K")),
            stages(found, nll("1200K")),
            *(stages(found, cover(quantity)) for quantity in quantities),
        ]

    return markdown(head, with_sigma(results), cells)


def detection(results: Results, costs: dict[str, Any]) -> str:
    """AUROC of 300 K against 1200 K, and the cost of predictions."""
    scores = ("energy_total", "energy_epistemic", "forces_mean_total", "forces_mean_epistemic")
    head = (
        "",
        *("AUROC σ_E", "epistemic", "AUROC σ_F", "epistemic"),
        *("time, σ of E and F", "time, σ of E", "the same, one structure", "memory"),
    )

    def cells(found: dict[str, Any]) -> Row:
        areas = [fixed(found["auroc"].get(score)) for score in scores]
        many, one = (costs.get(size, {}).get(found["name"]) for size in ("16", "1"))
        if many is None or one is None:
            return [*areas, *"––––"]
        single = f"{one['time']:.2f}, {one['energy_time']:.2f}"
        times = (f"{many['time']:.2f}", f"{many['energy_time']:.2f}", single)
        return [*areas, *times, f"{many['memory_ratio']:.1f}"]

    named = {name: {**found, "name": name} for name, found in results.items()}
    return markdown(head, named, cells)


def with_sigma(results: Results) -> Results:
    return {name: found for name, found in results.items() if found["after"]}


def value(stage: dict[str, Any], at: str, quantity: str, metric: str) -> Any:
    """One metric of one quantity of a set; None where no σ is predicted."""
    found = stage.get(at, {}).get(quantity)
    return None if found is None else found[metric]


def small(number: float | None) -> str:
    return "–" if number is None else f"{number:.4f}".lstrip("0")


def fixed(number: float | None) -> str:
    return "–" if number is None else f"{number:.3f}"


def signed(number: float | None) -> str:
    return "–" if number is None else f"{number:.2f}".replace("-", "−")


def markdown(head: Row, results: Results, cells: Callable[[dict[str, Any]], Row]) -> str:
    rows = [head, ["---"] * len(head)]
    rows += [[ARTIFACTS[name].label, *cells(found)] for name, found in results.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main()
