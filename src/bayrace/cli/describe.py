"""What a training, of one model or of several members, prints before it begins."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:  # commands show their help without torch
    from bayrace.config import Config
    from bayrace.workflow.fit import Prepared


_POOLINGS = {
    "sum": "sum over atoms",
    "mean": "mean over atoms",
    "norm": "norm of a sum of vectors",
    "second_moment": "second moment of atoms",
}


def describe(config: Config, prepared: Prepared, out: Console) -> None:
    """Say what is about to be trained on what."""
    from bayrace.core.shapes import parameter_shapes
    from bayrace.data.doubts import determined
    from bayrace.data.frame import symbols_of
    from bayrace.models.race.options import RaceOptions

    train, splits = prepared.train, prepared.splits
    atoms = sum(len(frame.numbers) for frame in train.frames)
    weights = sum(math.prod(shape) for shape in parameter_shapes(prepared.model).values())
    count = len(train if prepared.stream is None else prepared.stream)
    part = "" if prepared.stream is None else " in the sample"
    out.print(
        f"data   {count} training and {len(prepared.valid)} validation structures, "
        f"{atoms} atoms{part} of {symbols_of(train.elements)}, "
        f"{train.mean_neighbours():.1f} neighbours within {train.cutoff:g} Å"
    )
    if splits.disk is not None:
        from bayrace.workflow.on_disk import described

        out.print(f"       {described(splits.disk, len(train))}")
    given = config.data.references != "auto"
    kind = "given" if given else "of isolated atoms" if splits.isolated else "fitted"
    if kind == "fitted" and not determined(train.frames, train.elements):
        kind = "fitted, of which only sums count (the compositions do not tell elements apart)"
    values = ", ".join(f"{symbols_of([z])} {e:.3f}" for z, e in train.references.items())
    target = config.target.build()
    if target.is_energy:
        out.print(f"       reference energies {kind}: {values} eV")
    else:
        out.print(f"target {target.name} in {target.unit}, by the {_POOLINGS[target.pooling]}")
        if any(train.references.values()):
            out.print(f"       references of the elements, fitted: {values} {target.unit}")
    model = config.model
    kind = model.kind
    if isinstance(model, RaceOptions):
        kind = f"{model.preset}: {model.layers} layers of {model.hidden}"
    out.print(
        f"model  {kind}, {weights} parameters, {model.dtype}, "
        f"loss {config.loss.kind}{' with stress' if prepared.lambdas.stress else ''}, "
        f"posterior {config.posterior.kind}"
    )
    if isinstance(model, RaceOptions):
        out.print(f"start  {_start(model.start, getattr(prepared.spec, 'pretrained', ''))}")
    out.print(f"run    {config.output}")


def _start(wanted: str, taken: str) -> str:
    """Which weights the training begins with, and why where they are random unasked."""
    from bayrace.data.frame import symbols_of
    from bayrace.models.race.pretrained import pretrained

    if taken:
        known = pretrained()
        return (
            f"weights pretrained on {known.molecules} small molecules by {known.method} "
            "(model.start: random draws them instead)"
        )
    if wanted == "random":
        return "random weights"
    elements = symbols_of(pretrained().spec.elements)
    return (
        f"random weights; the pretrained ones are for preset small and molecules of {elements} "
        "and do not suit these data (model.start: pretrained says why)"
    )
