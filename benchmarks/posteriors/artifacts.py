"""What the tables of posteriors compare: two data sets, several seeds, and a row for each method.

Every network has our defaults and as many epochs as the data set's file says. What is fitted
afterwards is fitted to the first member of an ensemble. Seeds differ in their split too, where the
data are divided at random.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RUNS = Path("runs/posteriors")


@dataclass(frozen=True)
class Study:
    """A data set: its configuration has this name."""

    name: str
    known: str  # the test set that is like the training data
    unknown: str  # the one that must be detected
    shown: tuple[str, ...]  # test sets in the table of errors
    per_atom: bool  # whether energies are shown per atom
    calibrations: tuple[str, ...]  # that its validation frames are enough for

    @property
    def config(self) -> Path:
        return HERE / f"{self.name}.yaml"

    @property
    def results(self) -> Path:
        return RUNS / self.name / "results"


STUDIES = {
    "3bpa": Study("3bpa", "300K", "1200K", ("300K", "600K", "1200K"), False, ("scale", "isotonic")),
    "silicon": Study("silicon", "melt", "unknown", ("melt", "unknown"), True, ("scale",)),
}


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    label: str  # as the table has it
    changes: tuple[str, ...] = ()  # of the configuration
    members: int = 1
    posterior: str | None = None  # fitted to `base`
    base: str | None = None  # another row
    member_of: str | None = None  # the ensemble that it is the first member of
    every: int = 1  # of the known frames, those whose force covariances are computed; see judge.py
    shown: bool = True  # in the table


ENSEMBLES = (
    Row("mse", "ensemble of 5, MSE", ("loss.kind=mse",), members=5),
    Row("nll_jef", "ensemble of 5, NLL_JEF", ("loss.kind=nll_jef",), members=5),
)
FIRST = (
    Row("mse-0", "one network, MSE", member_of="mse"),
    Row("nll_jef-0", "one network, NLL_JEF (MVE)", member_of="nll_jef"),
)
ATTACHED = (
    Row("distance-mse", "distance on MSE", posterior="distance", base="mse-0"),
    Row("distance-jef", "distance on NLL_JEF (default)", posterior="distance", base="nll_jef-0"),
    Row("llpr-mse", "LLPR on MSE", posterior="llpr", base="mse-0", every=16),
    Row("llpr-jef", "LLPR on NLL_JEF", posterior="llpr", base="nll_jef-0", every=16),
    Row(
        "laplace-last",
        "Laplace on MSE, last layer",
        ("posterior.laplace.structure=last_layer",),
        posterior="laplace",
        base="mse-0",
        every=16,
    ),
    Row(
        "laplace-diagonal",
        "Laplace on MSE, diagonal",
        ("posterior.laplace.structure=diagonal",),
        posterior="laplace",
        base="mse-0",
        every=64,
    ),
    Row("swag", "SWAG on NLL_JEF", posterior="swag", base="nll_jef-0", every=4),
)
TRAINED = (
    Row("shallow", "shallow ensemble of 16", ("posterior=shallow", "loss.kind=shallow"), every=4),
    Row("ivon", "IVON, NLL_JEF", ("posterior=ivon",), every=4),
)
OTHERS = (
    Row("nll_e", "one network, NLL_E", ("loss.kind=nll_e",)),
    Row("nll_e-plain", "one network, NLL_E, β = 0", ("loss.kind=nll_e", "loss.beta=0")),
    Row("cholesky", "NLL_JEF, Cholesky", ("loss.covariance=cholesky",), shown=False),
)
ROWS = {row.name: row for row in (*FIRST, *OTHERS[:2], *ENSEMBLES, *TRAINED, *ATTACHED, OTHERS[2])}
"""By name, in the order of the table."""

MADE = (*ENSEMBLES, *ATTACHED, *TRAINED, *OTHERS)
"""What can be made by itself, in this order."""


@dataclass(frozen=True)
class Artifact:
    """A row for one data set and seed."""

    row: Row
    study: Study
    seed: int

    @property
    def folder(self) -> Path:
        return RUNS / self.study.name / f"seed-{self.seed}" / self.row.name

    @property
    def file(self) -> Path:
        if self.row.member_of is None:
            return self.folder / "model.bayrace"
        return self.folder.parent / self.row.member_of / "member-0/model.bayrace"

    @property
    def base(self) -> Artifact | None:
        """What it is fitted to."""
        return (
            None if self.row.base is None else Artifact(ROWS[self.row.base], self.study, self.seed)
        )


def artifacts(study: Study, seed: int) -> dict[str, Artifact]:
    """All rows of a data set and seed, by name."""
    return {name: Artifact(row, study, seed) for name, row in ROWS.items()}


def parser(purpose: str | None) -> argparse.ArgumentParser:
    """What the scripts of this folder can be told."""
    made = argparse.ArgumentParser(description=purpose)
    made.add_argument("study", nargs="?", default="3bpa", choices=STUDIES)
    made.add_argument("--seeds", type=int, nargs="+", default=[0], help="such as 0 1 2")
    return made
