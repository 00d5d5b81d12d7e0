"""The report's numbers as tables, errors in meV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bayrace.core.target import ENERGY, Target
from bayrace.data.frame import symbols_of
from bayrace.evaluate.judged import Judged, Quantity
from bayrace.evaluate.metrics.calibration import SHOWN_LEVELS
from bayrace.evaluate.metrics.ood import NOVELTY
from bayrace.evaluate.metrics.quality import Quality, quality
from bayrace.report.document import Cell, Table
from bayrace.report.panels.accuracy import MILLI
from bayrace.report.panels.ood import Detection

Row = Sequence[Cell]
_BY_TYPE = "Energies in meV, force components in meV/Å."
_SIZES = (
    "σ: root mean square of the predicted one, equal to the RMSE where it is right, and its parts "
    "from noise (aleatoric) and from the posterior (epistemic), in meV, meV/Å and meV/Å³. In x %: "
    "percentage of references inside the x % interval."
)
_SCORES = (
    "CE: calibration error. Area: between calibration curve and diagonal. ENCE: mean over bins of "
    "|σ − RMSE|/σ. NLL (of eV and Å) and CRPS (meV, meV/Å, meV/Å³): of a normal distribution. All "
    "of them: less is better. ρ: rank correlation of |error| and σ, more is better."
)
_SCORE_NAMES = {
    "forces_mean": "σ of the forces, mean over atoms",
    "forces_max": "σ of the forces, largest atom",
}


def accuracy_table(sets: Sequence[Judged]) -> Table:
    """Errors of every set."""
    rows = [
        (each.name, title, quantity.size, *_errors(quantity, factor), _r2(quantity))
        for each in sets
        for title, quantity, factor in _quantities(each)
        if quantity.size
    ]
    columns = ("set", "quantity", "count", "MAE", "RMSE", "max", "R²")
    target = sets[0].target
    caption = (
        "Energies of whole structures in meV, energies per atom in meV/atom, force components in "
        "meV/Å, stress components in meV/Å³."
        if target.is_energy
        else f"{target.name} in {target.shown_unit}."
    )
    return Table("accuracy", "Errors", caption, columns, rows)


def uncertainty_tables(sets: Sequence[Judged]) -> list[Table]:
    """Everything that measures a predicted σ; nothing where none is predicted."""
    target = sets[0].target
    found = [
        ((each.name, title), quantity, measured, factor)
        for each in sets
        for title, quantity, factor in (
            (f"{target.name}, before", each.raw_energy, target.factor),
            (target.name, each.energy, target.factor),
            ("forces, before", each.raw_forces, MILLI),
            ("forces", each.forces, MILLI),
            ("stress", each.stress, MILLI),
        )
        if quantity is not None
        for measured in [judged_quality(quantity)]
        if measured is not None
    ]
    parts = ("RMSE", "σ", "aleatoric", "epistemic")
    levels = (f"in {100 * level:.0f} %" for level in SHOWN_LEVELS)
    sizes = [(*who, *_sizes(quantity, each, factor)) for who, quantity, each, factor in found]
    scores = [(*who, *_scores(each, factor)) for who, _, each, factor in found]
    whose = ("set", "quantity")
    names = ("CE", "area", "ENCE", "NLL", "CRPS", "ρ")
    captions = [_SIZES, _SCORES]
    if not target.is_energy:
        captions = [
            _SIZES.replace("meV, meV/Å and meV/Å³", target.shown_unit),
            _SCORES.replace("NLL (of eV and Å)", f"NLL (of {target.unit})").replace(
                "meV, meV/Å, meV/Å³", target.shown_unit
            ),
        ]
    tables = [
        Table("coverage", "Size and coverage of σ", captions[0], (*whose, *parts, *levels), sizes),
        Table("scores", "Scores of σ", captions[1], (*whose, *names), scores),
    ]
    return tables if found else []


def element_table(sets: Sequence[Judged]) -> Table | None:
    """Forces by element."""
    rows = [
        (each.name, symbols_of([number]), part.size // 3, *_short(part, MILLI))
        for each in sets
        for number in np.unique(each.forces.number)
        for part in [each.forces.chosen(each.forces.number == number)]
    ]
    columns = ("set", "element", "atoms", "MAE", "RMSE", "σ", "in 90 %", "CE")
    caption = "Force components in meV/Å, and the share of references in the 90 % interval."
    return Table("elements", "Forces by element", caption, columns, rows) if rows else None


def type_table(sets: Sequence[Judged]) -> Table | None:
    """Energies and forces by config_type; None where each set has only one."""
    rows: list[Row] = []
    for each in sets:
        types = np.array([frame.config_type for frame in each.frames])
        names = np.unique(types)
        for name in names if names.size > 1 else ():
            target = each.target
            for title, quantity, factor in (
                (target.name, each.energy, target.factor),
                ("forces", each.forces, MILLI),
            ):
                part = quantity.chosen((types == name)[quantity.frame])
                if part.size:
                    frames = int(np.sum(types == name))
                    rows.append((each.name, str(name), title, frames, *_short(part, factor)))
    columns = ("set", "config_type", "quantity", "structures", "MAE", "RMSE", "σ", "in 90 %", "CE")
    target = sets[0].target
    caption = f"{target.name} in {target.shown_unit}." if not target.is_energy else _BY_TYPE
    return Table("config-types", "By config_type", caption, columns, rows) if rows else None


def detection_table(found: Sequence[Detection], target: Target = ENERGY) -> Table | None:
    """Areas under the curves of every score."""
    rows = [(each.name, score_name(each.score, target), each.auroc, each.aupr) for each in found]
    caption = (
        "AUROC: chance that an unknown structure scores higher than a known one, 0.5 without any "
        "skill. AUPR: mean precision of alarms."
    )
    columns = ("unknown set", "score", "AUROC", "AUPR")
    return Table("detection", "Detection", caption, columns, rows) if rows else None


def score_name(key: str, target: Target = ENERGY) -> str:
    """The words for a score of `structure_scores`."""
    if key == NOVELTY:
        return "novelty of the structure"
    base, _, kind = key.rpartition("_")
    own = f"σ of the {target.name}" + (" / √atoms" if target.extensive else "")
    name = own if base == "energy" else _SCORE_NAMES.get(base, base)
    return name + ("" if kind == "total" else f" ({kind})")


def _quantities(each: Judged) -> Iterator[tuple[str, Quantity, float]]:
    """Name, values and factor to the unit that is shown."""
    yield each.target.name, each.energy, each.target.factor
    if not each.target.is_energy:
        return
    atoms = each.atom_counts[each.energy.frame]
    values = {name: value / atoms for name, value in vars(each.energy).items() if name in _SCALED}
    yield "energy per atom", Quantity(**{**vars(each.energy), **values}), MILLI
    yield "forces", each.forces, MILLI
    yield "stress", each.stress, MILLI


_SCALED = ("label", "mean", "std", "aleatoric", "epistemic", "low", "high")


def _errors(quantity: Quantity, factor: float) -> tuple[float, float, float]:
    largest = float(np.max(np.abs(quantity.error)))
    return factor * quantity.mae, factor * quantity.rmse, factor * largest


def _r2(quantity: Quantity) -> float | None:
    variance = float(np.var(quantity.label))
    return 1 - quantity.rmse**2 / variance if variance > 0 else None


def _short(part: Quantity, factor: float) -> Row:
    found = judged_quality(part)
    errors = (factor * part.mae, factor * part.rmse)
    if found is None:
        return (*errors, None, None, None)
    return (*errors, factor * found.sharpness, 100 * found.coverage[0.9], found.calibration_error)


def _sizes(quantity: Quantity, found: Quality, factor: float) -> Row:
    sizes = (quantity.rmse, found.sharpness, found.aleatoric, found.epistemic)
    return (*(factor * size for size in sizes), *(100 * each for each in found.coverage.values()))


def _scores(found: Quality, factor: float) -> Row:
    calibrated = (found.calibration_error, found.miscalibration_area, found.ence)
    return (*calibrated, found.nll, factor * found.crps, found.rank_correlation)


def judged_quality(quantity: Quantity) -> Quality | None:
    """Metrics of the predicted σ; None where none is predicted."""
    return quality(
        quantity.error,
        quantity.std,
        quantity.pit,
        aleatoric=quantity.aleatoric,
        epistemic=quantity.epistemic,
    )
