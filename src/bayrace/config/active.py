"""Configuration of active learning: `bayrace replay`, and fine-tuning on new labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model, model_validator

from bayrace.config.choice import method_in, method_sections, names_of
from bayrace.config.fields import Folder, NamedPaths
from bayrace.config.section import Section
from bayrace.select.acquire import ACQUISITIONS, Acquisition

if TYPE_CHECKING:
    Name = str
else:
    Name = names_of(ACQUISITIONS)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) != len(values):
        raise ValueError("each value may be given once")
    return values


_Seeds = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), AfterValidator(_unique)
]


class TuneConfig(Section):
    """How members learn from new labels."""

    start: Literal["checkpoint", "scratch"] = Field(
        default="checkpoint",
        description="checkpoint: every member is trained further; scratch: trained anew.",
    )
    layers: Literal["all", "last"] = Field(
        default="all",
        description="all: the whole network; last: its last layer alone. Networks of other "
        "packages keep their weights with all.",
    )
    epochs: int = Field(
        default=10, ge=1, description="Passes over training and new structures together."
    )
    rehearse: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Old structures in a pass, drawn anew each time, against forgetting; null: all "
        "of them. With it the cost is that of the new labels, however many there were before.",
    )
    lr: float = Field(
        default=0.003, gt=0, description="Largest learning rate, after which it falls (cosine)."
    )
    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Structures per step; null: as in training."
    )
    refit_epochs: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Epochs for the noise heads alone, afterwards; null: as in training. A replay "
        "judges means only and can do with 0.",
    )


class SelectBase(Section):
    """What acquisitions share, and the options of those that have some, under their names."""

    over_atoms: Literal["mean", "max", "sum"] = Field(
        default="mean",
        description="How BALD and variance of forces are taken over the atoms of a structure.",
    )
    min_distance: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Least distance of a chosen structure from any known one, Å (or standard "
        "deviations of features, for mixed compositions); null: 0.02 Å or 0.2.",
    )

    def acquisition(self, name: str) -> Acquisition:
        """An acquisition with its options."""
        found: Acquisition = method_in(self, ACQUISITIONS, name)
        return found


if TYPE_CHECKING:
    SelectConfig = SelectBase
else:
    SelectConfig = create_model(
        "SelectConfig", __base__=SelectBase, **method_sections(ACQUISITIONS)
    )


class ReplayConfig(Section):
    """Acquisitions compared on labelled pools."""

    model: str = Field(min_length=1, description="The potential to start from.")
    output: Folder = Field(
        default="runs/replay", min_length=1, description="Folder of the results."
    )
    pools: NamedPaths = Field(
        description="Labelled files to choose from, as {name: path} or a list."
    )
    tests: NamedPaths = Field(
        default={}, description="Further test files that nothing is chosen from."
    )
    holdout: float = Field(
        default=1 / 3,
        ge=0,
        lt=1,
        description="Part of each pool that is its test set, drawn by the seed; 0: everything that "
        "is not chosen.",
    )
    acquisitions: Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_unique)] = Field(
        default=(
            "random",
            "farthest",
            "variance",
            "bald-energy",
            "bald-force",
            "bald-ef",
            "diverse",
        ),
        description="Acquisitions to compare.",
    )
    budgets: _Seeds = Field(
        default=(5, 10, 20),
        description="Structures chosen from each pool; 0: none, only the training goes on.",
    )
    seeds: _Seeds = Field(
        default=(0, 1, 2),
        description="Seeds of the test sets, of random choices and of the training.",
    )
    select: SelectConfig = Field(default=SelectConfig(), description="What acquisitions share.")
    tune: TuneConfig = Field(default=TuneConfig(), description="How members learn.")
    workers: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Members trained at a time; null: one per core."
    )
    pin: bool = Field(default=True, description="Keep each member to its own core.")
    keep: bool = Field(default=False, description="Keep the potentials of all cells.")

    @model_validator(mode="after")
    def _has_pools(self) -> ReplayConfig:
        if not self.pools:
            raise ValueError("pools: give at least one labelled file, such as {hot: hot.xyz}")
        both = sorted(self.pools.keys() & self.tests.keys())
        if both:
            raise ValueError(f"{', '.join(both)}: a name of both pools and tests; rename one")
        return self
