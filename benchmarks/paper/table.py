"""Print what our runs reached beside the published figures.

    python benchmarks/paper/table.py qm9 --runs runs/paper/qm9

The folder holds one run per case (a target of QM9, a molecule of rMD17, a method of 3BPA), or one
folder per case with a run for each seed inside: runs/paper/qm9/u0/test.json, or
runs/paper/qm9/u0/seed-0/test.json and so on. Several seeds are shown as mean ± standard deviation.
For obn25 the files are those of `bayrace evaluate known.xyz --ood solid.xyz --json run/test.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import published

MILLI = 1000.0
Row = Sequence[str]


def main() -> None:
    """Read the runs of one data set and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=sorted(TABLES))
    parser.add_argument("--runs", type=Path, default=None, help="default: runs/paper/NAME")
    options = parser.parse_args()
    runs = read_runs(options.runs or Path("runs/paper") / options.name)
    print("\n".join(lines(TABLES[options.name](runs))))


def read_runs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Contents of the test.json of every seed, by case."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.rglob("test.json")):
        case = path.relative_to(folder).parts[0]
        if "trials" not in path.parts:
            found.setdefault(case, []).append(json.loads(path.read_text(encoding="utf-8")))
    return found


def qm9(runs: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """MAE of every target, and the share of references in the 90 % interval."""
    rows: list[Row] = [("target", "unit", "RACE", "ours", "in 90 %", "molecules, seeds")]
    for target, figure in published.QM9.items():
        sets = [next(iter(each.values())) for each in runs.get(target, [])]
        unit, factor = _unit(sets)
        errors = [factor * each["energy"]["mae"] for each in sets]
        inside = [
            100 * each["uncertainty"]["energy"]["coverage"]["90"]
            for each in sets
            if each["uncertainty"]["energy"]
        ]
        size = f"{sets[0]['frames']}, {len(sets)}" if sets else "not run"
        rows.append((target, unit, f"{figure:g}", spread(errors), spread(inside), size))
    return rows


def rmd17(runs: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """MAE of energies and forces of the ten molecules."""
    methods = ("RACE", "DE-JEF", "MACE", "GotenNet")
    rows: list[Row] = [("molecule", *methods, "ours (E/F)", "seeds")]
    for molecule in published.MOLECULES:
        known = published.RMD17.get(molecule, {})
        theirs = [f"{known[m][0]:g}/{known[m][1]:g}" if m in known else "–" for m in methods]
        sets = [next(iter(each.values())) for each in runs.get(molecule, [])]
        ours = "/".join(
            spread([MILLI * each[name]["mae"] for each in sets]) for name in ("energy", "forces")
        )
        rows.append((molecule, *theirs, ours if sets else "not run", str(len(sets))))
    return rows


def three_bpa(runs: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """RMSE of energies and forces at three temperatures."""
    rows: list[Row] = [("method", *(f"{name} (E/F)" for name in published.TEMPERATURES))]
    for method, values in published.THREE_BPA.items():
        rows.append((method, *(f"{energy:g}/{forces:g}" for energy, forces in values)))
    for case, seeds in runs.items():
        cells = []
        for name in published.TEMPERATURES:
            sets = [each[name] for each in seeds if name in each]
            pair = (spread([MILLI * s[q]["rmse"] for s in sets]) for q in ("energy", "forces"))
            cells.append("/".join(pair) if sets else "not run")
        rows.append((f"ours: {case}", *cells))
    return rows


def psb3(runs: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """MAE, RMSE and R² of values and gradients in kcal/mol; the paper's are not in our hands."""
    rows: list[Row] = [("quantity", "MAE", "RMSE", "R²", "gradient MAE", "RMSE", "R²")]
    for case, seeds in runs.items():
        sets = [next(iter(each.values())) for each in seeds]
        cells = []
        for quantity in ("energy", "forces"):
            for name, factor in (("mae", 23.06), ("rmse", 23.06), ("r2", 1.0)):
                cells.append(spread([factor * s[quantity][name] for s in sets if s[quantity]]))
        rows.append((case, *cells))
    return rows


def obn25(runs: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """AUROC of σ for solids, trained on liquids."""
    rows: list[Row] = [("method", "published", "ours")]
    cases = dict.fromkeys([*published.OBN25, *(case.upper() for case in runs)])
    for method in cases:
        seeds = runs.get(method.lower(), runs.get(method, []))
        found = [next(iter(each["detection"].values()))["energy_total"]["auroc"] for each in seeds]
        figure = published.OBN25.get(method)
        theirs = "–" if figure is None else f"{figure:.2f}"
        rows.append((method, theirs, spread(found) if found else "not run"))
    return rows


TABLES = {"qm9": qm9, "rmd17": rmd17, "3bpa": three_bpa, "psb3": psb3, "obn25": obn25}


def spread(values: Sequence[float]) -> str:
    """Mean, and ± the standard deviation over seeds where there are several."""
    if not values:
        return "–"
    mean = f"{statistics.fmean(values):.3g}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2g}"


def lines(rows: Sequence[Row]) -> list[str]:
    """A table in Markdown, in columns of even width."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return [text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]]


def _unit(sets: Sequence[dict[str, Any]]) -> tuple[str, float]:
    """The unit that is shown, and the factor to it."""
    unit = str(sets[0].get("target", {}).get("unit", "eV")) if sets else "–"
    return ("meV", MILLI) if unit == "eV" else (unit, 1.0)


if __name__ == "__main__":
    main()
