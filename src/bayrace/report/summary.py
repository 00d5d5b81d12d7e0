"""What a reader should conclude, in plain words, and the few numbers it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bayrace.calibrate.seen import PURPOSES
from bayrace.metrics.scoring import rank_correlation
from bayrace.report.document import Figure, Finding, Verdict
from bayrace.report.judged import LEVEL, Judged, Quantity
from bayrace.report.panels.accuracy import MILLI
from bayrace.report.panels.ood import DRAWN, Detection
from bayrace.report.tables import score_name

TOLERATED = 0.04  # of coverage, beyond what chance explains
TOLERATED_RATIO = 1.2  # of RMSE and σ, likewise
FEW = 30  # structures, below which percentages mean little


def findings(sets: Sequence[Judged], found: Sequence[Detection]) -> list[Finding]:
    """The sentences at the top, the most important first."""
    known = [each for each in sets if each.role == "test"]
    return [
        *_seen(sets),
        *(_accuracy(each) for each in known),
        *_honesty(sets),
        *_ranking(known),
        *_detection(sets, found),
        *_blind(sets),
        *_few(sets),
    ]


def key_figures(sets: Sequence[Judged], found: Sequence[Detection]) -> list[Figure]:
    """At most a handful of large numbers, of the first set and of the best score."""
    first = sets[0]
    figures = []
    if first.energy.size:
        atoms = first.atoms[first.energy.frame]
        per_atom = MILLI * float(np.sqrt(np.mean((first.energy.error / atoms) ** 2)))
        detail = f"{_short(MILLI * first.energy.rmse)} meV per structure, {first.name}"
        figures.append(Figure("Energy RMSE", _short(per_atom), "meV/atom", detail))
    if first.forces.size:
        rms = float(np.sqrt(np.mean(first.forces.label**2)))
        detail = f"{100 * first.forces.rmse / rms:.2g} % of the forces, {first.name}"
        figures.append(Figure("Force RMSE", _short(MILLI * first.forces.rmse), "meV/Å", detail))
    for key, label in (("energy", "Energies"), ("forces", "Forces")):
        quantity: Quantity = getattr(first, key)
        if quantity.uncertain:
            inside = 100 * float(np.mean(quantity.inside))
            detail = f"should be 90 %, {first.name}"
            figures.append(Figure(f"{label} in 90 % interval", f"{inside:.0f}", "%", detail))
    if found:
        best = max(found, key=lambda each: each.auroc)
        figures.append(Figure("AUROC", f"{best.auroc:.3f}", "", f"best score, {best.name}"))
    return figures


def _seen(sets: Sequence[Judged]) -> Iterator[Finding]:
    for each in sets:
        for part in ("train", "valid", "calibration"):
            if part in each.seen:
                text = (
                    f"{each.seen[part]} of the {len(each.frames)} structures of “{each.name}” were "
                    f"used for {PURPOSES[part]}: what they say of errors and σ is too favourable."
                )
                verdict: Verdict = "bad" if part == "train" else "caution"
                yield Finding(verdict, "This is not a clean test.", text)


def _accuracy(each: Judged) -> Finding:
    parts = []
    if each.energy.size:
        atoms = each.atoms[each.energy.frame]
        per_atom = MILLI * float(np.sqrt(np.mean((each.energy.error / atoms) ** 2)))
        parts.append(f"energies are wrong by {_short(per_atom)} meV/atom")
    if each.forces.size:
        rms = float(np.sqrt(np.mean(each.forces.label**2)))
        share = 100 * each.forces.rmse / rms if rms > 0 else math.nan
        wrong = f"{_short(MILLI * each.forces.rmse)} meV/Å ({share:.2g} % of their size)"
        parts.append(f"force components {'' if parts else 'are wrong '}by {wrong}")
    text = f"On the {len(each.frames)} structures of “{each.name}”, {' and '.join(parts)} (RMSE)."
    return Finding("note", "Typical errors.", text)


def _honesty(sets: Sequence[Judged]) -> Iterator[Finding]:
    for each in sets:
        for key, title in (("energy", "energies"), ("forces", "forces")):
            quantity: Quantity = getattr(each, key)
            if quantity.uncertain:
                yield _coverage(each, quantity, title)


def _coverage(each: Judged, quantity: Quantity, title: str) -> Finding:
    """Judge coverage against chance; components of one structure's forces are not independent."""
    inside = float(np.mean(quantity.inside))
    structures = np.unique(quantity.frame).size
    slack = TOLERATED + 2 * math.sqrt(LEVEL * (1 - LEVEL) / structures)
    factor = TOLERATED_RATIO + 2 / math.sqrt(2 * structures)
    ratio = quantity.rmse / float(np.sqrt(np.mean(quantity.std**2)))
    where = f"{title} of “{each.name}”"
    seen = (
        f"{100 * inside:.0f} % of the references are in the 90 % interval; the RMSE is "
        f"{_short(ratio)} times the predicted σ."
    )
    if abs(inside - LEVEL) <= slack and 1 / factor < ratio < factor:
        return Finding("good", f"σ of the {where} is honest.", seen)
    if inside < LEVEL - slack or ratio >= factor:
        verdict: Verdict = "bad" if inside < 0.7 or ratio > 2 else "caution"
        advice = (
            " Do not trust σ there; add such structures to the training data."
            if each.role == "ood"
            else " The recalibration was fitted to easier structures."
            if each.recalibrated
            else " Recalibrate on validation data: bayrace calibrate."
        )
        return Finding(verdict, f"σ of the {where} is too small.", seen + advice)
    advice = " Recalibrating (bayrace calibrate) makes the intervals narrower."
    if each.role == "ood" or each.recalibrated:
        advice = ""
    return Finding("caution", f"σ of the {where} is too large.", seen + advice)


def _ranking(known: Sequence[Judged]) -> Iterator[Finding]:
    for each in known:
        quantity = each.forces if each.forces.uncertain else each.energy
        if not quantity.uncertain:
            continue
        correlation = rank_correlation(quantity.error, quantity.std)
        if not math.isfinite(correlation):
            continue
        what = "force components" if each.forces.uncertain else "energies"
        text = (
            f"The rank correlation of |error| and σ is {correlation:.2f} ({what} of “{each.name}”)."
        )
        if correlation >= 0.3:
            yield Finding("good", "σ tells large errors from small ones.", text)
        else:
            hint = " σ says little about which prediction is worse."
            yield Finding("caution", "σ hardly ranks the errors.", text + hint)


def _detection(sets: Sequence[Judged], found: Sequence[Detection]) -> Iterator[Finding]:
    drawn = {score for score, *_ in DRAWN}
    for name in dict.fromkeys(each.name for each in found):
        best = max(
            (each for each in found if each.name == name and each.score in drawn),
            key=lambda each: each.auroc,
        )
        text = f"The {score_name(best.score)} gives an AUROC of {best.auroc:.3f}."
        if best.auroc >= 0.95:
            yield Finding("good", f"“{name}” is recognised as unknown.", text)
        elif best.auroc >= 0.8:
            yield Finding("caution", f"“{name}” is mostly recognised as unknown.", text)
        else:
            hint = " An ensemble or another posterior may see what this one does not."
            yield Finding("bad", f"“{name}” is not recognised as unknown.", text + hint)
    if not any(each.role == "ood" for each in sets):
        text = "Give structures the potential should not know with --ood name=file.xyz."
        yield Finding("note", "Detection of unknown structures was not tested.", text)


def _blind(sets: Sequence[Judged]) -> Iterator[Finding]:
    if not any(each.uncertain for each in sets):
        text = (
            "This potential gives numbers without any statement of how wrong they may be. Train "
            "with a likelihood (loss.kind: nll_jef), train an ensemble, or attach a posterior."
        )
        yield Finding("bad", "No uncertainty is predicted.", text)


def _few(sets: Sequence[Judged]) -> Iterator[Finding]:
    small = [f"“{each.name}” ({len(each.frames)})" for each in sets if len(each.frames) < FEW]
    if small:
        text = f"Shares and calibration errors of {', '.join(small)} are mostly chance."
        yield Finding("note", "Few structures.", text)


def _short(value: float) -> str:
    """Three significant digits without an exponent."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
