"""What a reader should conclude, in plain words, and the few numbers it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bayrace.calibrate.seen import PURPOSES
from bayrace.evaluate.judged import Array, Judged, Quantity
from bayrace.evaluate.metrics.scoring import rank_correlation
from bayrace.report.document import Figure, Finding, Verdict, short
from bayrace.report.honesty import FEW, honesty, judge
from bayrace.report.panels.accuracy import MILLI
from bayrace.report.panels.ood import DRAWN, Detection
from bayrace.report.tables import score_name

RANKS = 0.3  # rank correlation from which σ is said to rank errors
FINE, ROUGH = 0.1, 0.25  # force error over force, up to which a potential is usable, with care


def findings(sets: Sequence[Judged], found: Sequence[Detection]) -> list[Finding]:
    """The sentences at the top, the most important first."""
    known = [each for each in sets if each.role == "test"]
    return [
        *_seen(sets),
        *_verdict(sets),
        *(_accuracy(each) for each in known),
        *honesty(sets),
        *_ranking(known),
        *_detection(sets, found),
        *_blind(sets),
        *_few(sets),
    ]


def key_figures(sets: Sequence[Judged], found: Sequence[Detection]) -> list[Figure]:
    """At most a handful of large numbers, of the first set and of the best score."""
    first, target = sets[0], sets[0].target
    figures = []
    if first.energy.size and not target.is_energy:
        rmse = short(target.factor * first.energy.rmse)
        mae = f"MAE {short(target.factor * first.energy.mae)}, {first.name}"
        figures.append(Figure(f"RMSE of {target.name}", rmse, target.shown_unit, mae))
    elif first.energy.size:
        atoms = first.atom_counts[first.energy.frame]
        per_atom = MILLI * float(np.sqrt(np.mean((first.energy.error / atoms) ** 2)))
        detail = f"{short(MILLI * first.energy.rmse)} meV per structure, {first.name}"
        figures.append(Figure("Energy RMSE", short(per_atom), "meV/atom", detail))
    if first.forces.size:
        rms = float(np.sqrt(np.mean(first.forces.label**2)))
        detail = f"{short(100 * first.forces.rmse / rms, 2)} % of the forces, {first.name}"
        figures.append(Figure("Force RMSE", short(MILLI * first.forces.rmse), "meV/Å", detail))
    name = "Energies" if target.is_energy else target.name
    for key, label in (("energy", name), ("forces", "Forces")):
        quantity: Quantity = getattr(first, key)
        if quantity.uncertain:
            inside = 100 * float(np.mean(quantity.inside))
            detail = f"should be 90 %, {first.name}"
            figures.append(Figure(f"{label} in 90 % interval", f"{inside:.3g}", "%", detail))
    if _best(found):
        hardest = min(_best(found), key=lambda each: each.auroc)
        figures.append(Figure("AUROC", f"{hardest.auroc:.3f}", "", f"unknown: {hardest.name}"))
    return figures


def _verdict(sets: Sequence[Judged]) -> Iterator[Finding]:
    """Where the potential can be used, in one sentence, by its force errors and their σ."""
    names: dict[str, list[str]] = {"usable": [], "with care": [], "not": []}
    errors = []
    for each in sets:
        rms = float(np.sqrt(np.mean(each.forces.label**2))) if each.forces.size else 0.0
        if rms == 0.0:
            continue
        share = each.forces.rmse / rms
        blind = each.forces.uncertain and judge("forces", each.forces).blind
        state = "not" if share > ROUGH else "with care" if share > FINE or blind else "usable"
        names[state].append(f"“{each.name}”")
        errors.append(f"{short(100 * share, 2)} % on “{each.name}”")
    parts = [f"{state} for {_listed(sets)}" for state, sets in names.items() if sets]
    if not parts:
        return
    sentence = ", ".join(parts)
    text = (
        f"Force errors are {', '.join(errors)} of the size of the forces; below "
        f"{100 * FINE:g} % with a σ that is not too small counts as usable, above "
        f"{100 * ROUGH:g} % as not."
    )
    verdict: Verdict = "good"
    if names["with care"] or names["not"]:
        verdict = "caution" if names["usable"] or not names["not"] else "bad"
    yield Finding(verdict, f"{sentence[0].upper()}{sentence[1:]}.", text)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


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
    parts, target = [], each.target
    if each.energy.size and not target.is_energy:
        mae, rmse = (short(target.factor * value) for value in (each.energy.mae, each.energy.rmse))
        text = (
            f"On the {len(each.frames)} structures of “{each.name}”, {target.name} is wrong by "
            f"{mae} {target.shown_unit} (MAE), {rmse} (RMSE)."
        )
        return Finding("note", "Typical errors.", text)
    if each.energy.size:
        atoms = each.atom_counts[each.energy.frame]
        per_atom = MILLI * float(np.sqrt(np.mean((each.energy.error / atoms) ** 2)))
        parts.append(f"energies are wrong by {short(per_atom)} meV/atom")
    if each.forces.size:
        rms = float(np.sqrt(np.mean(each.forces.label**2)))
        share = 100 * each.forces.rmse / rms if rms > 0 else math.nan
        wrong = f"{short(MILLI * each.forces.rmse)} meV/Å ({short(share, 2)} % of their size)"
        parts.append(f"force components {'' if parts else 'are wrong '}by {wrong}")
    text = f"On the {len(each.frames)} structures of “{each.name}”, {' and '.join(parts)} (RMSE)."
    return Finding("note", "Typical errors.", text)


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
        best = rank_correlation(_drawn_errors(quantity), quantity.std)
        if correlation >= RANKS:
            yield Finding("good", "σ tells large errors from small ones.", text)
        elif best < RANKS and correlation >= best / 2:
            hint = f" Perfect σ that vary as little would have {best:.2f}: errors are much alike."
            yield Finding("note", "σ varies too little to rank errors.", text + hint)
        else:
            hint = " σ says little about which prediction is worse."
            yield Finding("caution", "σ hardly ranks the errors.", text + hint)


def _drawn_errors(quantity: Quantity) -> Array:
    """Errors as they would be if σ were perfect."""
    return quantity.std * np.random.default_rng(0).normal(size=quantity.std.shape)


def _detection(sets: Sequence[Judged], found: Sequence[Detection]) -> Iterator[Finding]:
    for best in _best(found):
        name = best.name
        text = f"The {score_name(best.score, sets[0].target)} gives an AUROC of {best.auroc:.3f}."
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


def _best(found: Sequence[Detection]) -> list[Detection]:
    """The better of the drawn scores for each unknown set."""
    drawn = [each for each in found if each.score in DRAWN]
    names = dict.fromkeys(each.name for each in drawn)
    own = ([each for each in drawn if each.name == name] for name in names)
    return [max(each, key=lambda one: one.auroc) for each in own]


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
