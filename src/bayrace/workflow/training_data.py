"""The data that a potential was trained on, read again from its files."""

from __future__ import annotations

from pathlib import Path

from bayrace.config import Config, ConfigError, changed, make_config
from bayrace.data.frame import DataError, Frame
from bayrace.data.split import fingerprint
from bayrace.potential.potential import Potential
from bayrace.workflow.prepare import read_splits


def moved(config: Config) -> str:
    """A hint for training files that are named relative to another folder; empty if they exist."""
    named = [
        *config.data.train,
        *(config.data.valid if isinstance(config.data.valid, tuple) else ()),
    ]
    if all(Path(path.rpartition("@")[0] or path).exists() for path in named):
        return ""
    return (
        ". This is how the training of the potential named its files: start bayrace in the folder "
        "of that time, or name them anew with -s data.train=... (bayrace fit)"
    )


def training_frames(potential: Potential) -> tuple[list[Frame], list[Frame]]:
    """Training and validation frames of a potential, read again from its files."""
    config = make_config(potential.config, source="configuration of the potential")
    data = changed(config.data, test={})  # which may be much, and is not asked for
    try:
        splits = read_splits(changed(config, data=data))
    except DataError as error:
        raise DataError(f"{error}{moved(config)}") from error
    if fingerprint(splits.train) != potential.fingerprint:
        raise ConfigError(
            f"{', '.join(config.data.train)}: the data are not those that the potential was "
            "trained on any more; restore the files, or give others where a command takes them"
        )
    return splits.train, splits.valid
