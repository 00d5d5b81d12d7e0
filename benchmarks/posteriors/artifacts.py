"""The artifacts of the table of posteriors on 3BPA: their names, their files, how they are made.

Every network has preset `small` and forty epochs of 450 frames, 3600 steps of five frames. What is
fitted afterwards is fitted to the first member of an ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RUNS = Path("runs/posteriors")
RESULTS = RUNS / "results"


@dataclass(frozen=True)
class Artifact:
    """One row of the table."""

    name: str
    label: str  # as the table has it
    config: str | None = None  # the file it is trained by
    overrides: tuple[str, ...] = ()
    members: int = 1
    posterior: str | None = None  # fitted to `base`
    base: str | None = None  # another artifact
    path: str = ""  # of the file, in RUNS; "" is name/model.bayrace
    every: int = 1  # of the 300 K frames, those whose force covariances are computed; see judge.py
    shown: bool = True  # in the table

    @property
    def file(self) -> Path:
        return RUNS / (self.path or f"{self.name}/model.bayrace")


def first_of(ensemble: str, label: str, name: str, *, shown: bool = True) -> Artifact:
    """The first member of an ensemble, which training the ensemble makes."""
    return Artifact(name, label, path=f"{ensemble}/member-0/model.bayrace", shown=shown)


ENSEMBLES = (
    Artifact("mse", "ensemble of 5, MSE", "mse.yaml", members=5),
    Artifact("nll_e", "ensemble of 5, NLL_E", "nll_e.yaml", members=5),
    Artifact("nll_jef", "ensemble of 5, NLL_JEF", "nll_jef.yaml", members=5),
)
FIRST = (
    first_of("mse", "one network, MSE", "mse-0"),
    first_of("nll_e", "one network, NLL_E", "nll_e-0"),
    first_of("nll_jef", "one network, NLL_JEF", "nll_jef-0"),
)
ATTACHED = (
    Artifact("distance-mse", "distance on MSE", posterior="distance", base="mse-0"),
    Artifact(
        "distance-jef", "distance on NLL_JEF, the default", posterior="distance", base="nll_jef-0"
    ),
    Artifact("llpr-mse", "LLPR on MSE", posterior="llpr", base="mse-0", every=8),
    Artifact("llpr-jef", "LLPR on NLL_JEF", posterior="llpr", base="nll_jef-0", every=8),
    Artifact(
        "laplace-last",
        "Laplace on MSE, last layer",
        posterior="laplace",
        base="mse-0",
        overrides=("posterior.laplace.structure=last_layer",),
        every=8,
    ),
    Artifact(
        "laplace-diagonal",
        "Laplace on MSE, diagonal",
        posterior="laplace",
        base="mse-0",
        overrides=("posterior.laplace.structure=diagonal",),
        every=32,
    ),
)
TRAINED = (
    Artifact("shallow", "shallow ensemble of 16", "shallow.yaml"),
    Artifact("swag", "SWAG on NLL_JEF", posterior="swag", base="nll_jef-0"),
    Artifact("ivon", "IVON, NLL_JEF", "ivon.yaml"),
)
OTHERS = (
    Artifact("nll_e-plain", "one network, NLL_E, β = 0", "nll_e.yaml", overrides=("loss.beta=0",)),
    Artifact(
        "cholesky",
        "one network, NLL_JEF, Cholesky",
        "nll_jef.yaml",
        overrides=("loss.covariance=cholesky",),
        shown=False,
    ),
)
ARTIFACTS = {each.name: each for each in (*FIRST, *OTHERS, *ENSEMBLES, *TRAINED, *ATTACHED)}
"""By name, in the order of the table."""

MADE = (*ATTACHED, *TRAINED, *OTHERS, *ENSEMBLES)
"""What can be made by itself, the cheap first."""
