"""What a network is trained to predict of a structure: its energy, or another property.

A property is one number of a structure, read from the atoms' contributions by its pooling:

    sum             Σ_i e_i, extensive; references of the elements are fitted to training data
    mean            (1/n) Σ_i e_i, intensive: orbital energies, gaps
    norm            |Σ_i (q_i (r_i − r̄) + v_i)|, of a vector such as the dipole; the mean position r̄
                    makes it blind to the total charge, so that no origin matters
    second_moment   Σ_i q_i (|r_i − r_c|² + 1 Å²) around the centre of nuclear charge r_c, such as
                    ⟨R²⟩; elements have q and, for the extent of their own, references

Everything downstream treats it as it treats the energy; a property has no forces and no stress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Pooling = Literal["sum", "mean", "norm", "second_moment"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


@dataclass(frozen=True)
class Target:
    """A quantity of a structure, as tables and axes name it."""

    name: str
    unit: str  # of labels and predictions; eV is shown as meV
    pooling: Pooling

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("unit", self.unit)):
            if not isinstance(text, str) or len(text) > 60 or "\n" in text:
                raise ValueError(f"{what} of the target: {str(text)[:60]!r} is no short text")
        if not self.name:
            raise ValueError("the target has no name; give it one, such as dipole")
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling={self.pooling!r}: use one of {', '.join(POOLINGS)}")

    @property
    def is_energy(self) -> bool:
        """Whether its derivatives are forces and stress."""
        return self.name == "energy"

    @property
    def extensive(self) -> bool:
        """Whether two far copies of a structure have twice of it."""
        return self.pooling == "sum"

    @property
    def shown_unit(self) -> str:
        """Of tables and axes."""
        return "meV" if self.unit == "eV" else self.unit

    @property
    def factor(self) -> float:
        """From its own unit to the one that is shown."""
        return 1000.0 if self.unit == "eV" else 1.0


ENERGY = Target("energy", "eV", "sum")

KNOWN: dict[str, Target] = {
    target.name: target
    for target in (
        ENERGY,
        Target("mu", "D", "norm"),
        Target("alpha", "a0³", "sum"),
        Target("homo", "eV", "mean"),
        Target("lumo", "eV", "mean"),
        Target("gap", "eV", "mean"),
        Target("r2", "a0²", "second_moment"),
        Target("zpve", "eV", "sum"),
        Target("u0", "eV", "sum"),
        Target("u298", "eV", "sum"),
        Target("h298", "eV", "sum"),
        Target("g298", "eV", "sum"),
        Target("cv", "cal/mol/K", "sum"),
    )
}
"""Targets whose unit and pooling need not be given: the energy and the twelve of QM9."""


def target_of(model: object) -> Target:
    """What a model or its specification predicts; the energy where it does not say."""
    found = getattr(model, "target", getattr(getattr(model, "spec", None), "target", ENERGY))
    return found if isinstance(found, Target) else ENERGY
