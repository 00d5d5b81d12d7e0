"""The section `data`: which structures to learn from, and where their labels are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bayrace.config.fields import NamedPaths, Paths, References, Validation
from bayrace.config.section import Section
from bayrace.data.split import Drawn


class DataConfig(Section):
    """Which structures to learn from, and where their labels are."""

    train: Paths = Field(
        description="Training file(s): any file ASE reads, rMD17 .npz, globs, file.xyz@:100."
    )
    valid: Validation = Field(
        default=0.1,
        description="Validation: file(s), a fraction of the training data, or a count of it.",
    )
    split: Drawn = Field(
        default="auto",
        description="What a drawn validation set consists of: single frames, stretches of frames "
        "that follow each other, or auto: stretches where single ones have copies in training.",
    )
    split_seed: int | None = Field(
        default=None,
        ge=0,
        description="Seed of the split into training and validation; null: the run's seed.",
    )
    test: NamedPaths = Field(
        default={}, description="Test files, as {name: path} or a list; evaluated after training."
    )
    energy_key: str | None = Field(
        default=None, description="Key of the energy, eV; null reads ASE's calculator results."
    )
    forces_key: str | None = Field(
        default=None, description="Key of the forces, eV/Å; null reads ASE's calculator results."
    )
    stress_key: str | None = Field(
        default=None, description="Key of the stress, eV/Å³; null reads ASE's calculator results."
    )
    virial_key: str | None = Field(
        default=None, description="Key of the virial, eV; stress = -virial / volume."
    )
    config_type_key: str = Field(
        default="config_type", description="Key of the configuration type of a structure."
    )
    config_weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default={}, description="Weight in the loss by configuration type, such as {hot: 0.5}."
    )
    keep: Literal["auto", "memory", "disk"] = Field(
        default="auto",
        description="Where training structures are: disk reads them as they are needed, from "
        ".aselmdb or .db files; auto: on disk if such files have more than 50 000.",
    )
    sample: int = Field(
        default=10_000,
        ge=1,
        description="disk: structures, drawn by the seed, that statistics, references, checks and "
        "the posterior are taken from.",
    )
    workers: int = Field(
        default=1,
        ge=0,
        description="disk: processes that read ahead; 0: the training reads by itself.",
    )
    references: References = Field(
        default="auto",
        description="Energy of each isolated atom, {symbol: eV}; auto: from IsolatedAtom frames, "
        "else least squares on the training structures.",
    )
