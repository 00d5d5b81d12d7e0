"""Configuration of `bayrace search`: the section `search` beside those of a training."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bayrace.config.fields import Paths, Seconds
from bayrace.config.load import (
    ConfigError,
    apply_override,
    make_config,
    make_section,
    put,
    read_yaml,
)
from bayrace.config.renamed import new_key
from bayrace.config.schema import Config
from bayrace.config.section import Section

Value = bool | int | float | str | None


class RangeConfig(Section):
    """Numbers between two ends; whole ones where both ends are."""

    low: int | float = Field(description="Least value.")
    high: int | float = Field(description="Greatest value.")
    log: bool = Field(default=False, description="Even in the logarithm.")

    @model_validator(mode="after")
    def _ordered(self) -> RangeConfig:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("low must be below high, and above 0 where log is set")
        return self


class SearchConfig(Section):
    """Which values are tried, how they are judged, and how many at a time."""

    space: dict[
        str, RangeConfig | Annotated[tuple[Value | tuple[Value, ...], ...], Field(min_length=1)]
    ] = Field(
        min_length=1,
        description="By keys of the configuration: a list of values, or {low, high, log}; such as "
        "train.lr: {low: 0.001, high: 0.1, log: true}.",
    )
    sampler: Literal["tpe", "random", "grid"] = Field(
        default="tpe", description="How points are chosen; grid: all combinations of lists."
    )
    trials: int = Field(default=20, ge=1, description="Points to try; a grid ends by itself.")
    seeds: int = Field(default=1, ge=1, description="Trainings of each point; scores are averaged.")
    unknown: Paths | None = Field(
        default=None,
        description="Structures that the training data do not cover, for the AUROC in the score; "
        "not those of the test. null: the score has no such part.",
    )
    known: Paths | None = Field(
        default=None,
        description="Labelled structures that are scored; not those of the test. null: the "
        "validation set.",
    )
    prune: bool = Field(
        default=True, description="End trials whose validation errors are worse than the median."
    )
    workers: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Trials at a time; null: one per core."
    )
    max_time: Seconds | None = Field(
        default=None, description="Start no trial after this long: 30m, 2h, seconds; null: never."
    )
    storage: str | None = Field(
        default=None,
        description="Database of the trials, any that optuna takes; null: study.db in the output.",
    )
    seed: int = Field(default=0, ge=0, description="Of the choice of points.")

    @model_validator(mode="after")
    def _grid_of_lists(self) -> SearchConfig:
        ranges = [key for key, value in self.space.items() if isinstance(value, RangeConfig)]
        if self.sampler == "grid" and ranges:
            raise ValueError(f"a grid needs lists of values; {ranges[0]} is a range")
        return self


def load_search(
    path: str | Path, overrides: Iterable[str] = ()
) -> tuple[Config, SearchConfig, dict[str, Any]]:
    """The training, the search, and the raw training that values of the space are put into.

    A file that names no output folder gets runs/<name of the file>. Test data are left out: a
    search must not see them.
    """
    path = Path(path)
    raw: dict[str, Any] = {"output": f"runs/{path.stem}"} | read_yaml(path)
    for override in overrides:
        apply_override(raw, override)
    if not isinstance(raw.get("search"), Mapping):
        raise ConfigError(
            f"{path}: has no section search; `bayrace search --help` shows an example"
        )
    section = raw.pop("search")
    if isinstance(section.get("space"), Mapping):
        section = {**section, "space": {new_key(str(k)): v for k, v in section["space"].items()}}
    search = make_section(SearchConfig, section, source=f"{path}, search")
    if isinstance(raw.get("data"), dict):
        raw["data"] = {key: value for key, value in raw["data"].items() if key != "test"}
    config = make_config(raw, source=str(path))
    if config.posterior.kind == "ensemble":
        raise ConfigError(
            "posterior: an ensemble is several trainings; search with posterior: distance or "
            "llpr and several search.seeds, then train the ensemble with what was found"
        )
    return config, search, raw


def with_values(
    raw: Mapping[str, Any], values: Mapping[str, Any], *, output: str, seed: int
) -> Config:
    """The training of one point and seed."""
    changed: dict[str, Any] = copy.deepcopy({**raw, "output": output, "seed": seed})
    changed["data"].setdefault("split_seed", raw.get("seed", 0))
    for key, value in values.items():
        put(changed, key, value)
    return make_config(changed, source=output)


def value_of(config: Config, key: str) -> Any:
    """What a configuration says under a dotted key; ConfigError for one it does not have."""
    found: Any = config.model_dump(mode="json")
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ConfigError(f"search.space.{key}: the configuration has no such key")
        found = found[part]
    return found
