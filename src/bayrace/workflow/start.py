"""Train and fit in a line of Python, and the one place that decides what a run is.

    import bayrace
    potential = bayrace.train("data.xyz", ["train.max_time=30m"])
    rigid = bayrace.fit(potential, "llpr")
    honest = bayrace.calibrate(rigid, "more.xyz")

A run is one training or the trainings of an ensemble, and is begun or continued: configuration,
number of members and what its folder holds decide, here and nowhere else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bayrace.config import Config, ConfigError, load_config, make_config
from bayrace.posterior import POSTERIORS
from bayrace.posterior.method import unfitted
from bayrace.potential.opened import opened
from bayrace.potential.potential import Potential
from bayrace.train.callbacks import Callbacks
from bayrace.train.checkpoint import LAST
from bayrace.workflow import train as run
from bayrace.workflow.ensemble import recorded_members, train_members
from bayrace.workflow.fit import posterior_method
from bayrace.workflow.folder import CONFIG, ENSEMBLE
from bayrace.workflow.member import SideBySide


def train(
    source: str | Path | Mapping[str, Any] | Config,
    overrides: Iterable[str] = (),
    *,
    members: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Callbacks | None = None,
) -> Potential:
    """The potential of a training, which is also written to its folder.

    `source` is a YAML file, a data file, the folder of a run, or a configuration; `overrides` are
    "key.sub=value". `members`, or posterior: ensemble, trains several side by side.
    """
    config = source if isinstance(source, Config) else configuration(source, overrides)
    calls = callbacks or Callbacks()
    made = train_any(
        config,
        members=members,
        how=SideBySide(stop=calls.stop),
        resume=resume,
        overwrite=overwrite,
        callbacks=calls,
    )
    if made is None:
        raise KeyboardInterrupt(f"{config.output}: stopped and saved; continue with resume=True")
    return made


def fit(
    potential: Potential | str | Path,
    posterior: str,
    overrides: Iterable[str] = (),
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    callbacks: Callbacks | None = None,
) -> Potential:
    """The potential with another posterior, fitted to its weights and to its own training data.

    Those are read again; -s data.train=... among `overrides` names them anew. What trains (swag,
    ivon) does so in `folder`, or where nothing is left of it.
    """
    known = opened(potential)
    config = posterior_config(known, posterior, overrides)
    with tempfile.TemporaryDirectory(prefix="bayrace-") as scratch:
        where = Path(scratch if folder is None else folder)
        made = run.fit_posterior(known, config, folder=where, resume=resume, callbacks=callbacks)
    if made is None:
        raise KeyboardInterrupt(f"{posterior}: stopped; continue with folder=... and resume=True")
    return made


def configuration(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """The configuration that a YAML file, a run's folder, a data file or a mapping stands for."""
    if isinstance(source, Mapping):
        return make_config(source, overrides)
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        return load_config(path, overrides)
    if path.is_dir() and (path / CONFIG).is_file():
        return load_config(path / CONFIG, [*overrides, f"output={source}"])
    if path.is_dir() and not path.suffix:
        raise ConfigError(
            f"{source}: a folder without {CONFIG}; name the folder of a run, a configuration "
            f"(.yaml) or data, such as '{source}/*.xyz'"
        )
    name = path.name.split("@")[0].split(".")[0].strip("*?") or "bayrace"
    raw = {"data": {"train": str(source)}, "output": f"runs/{name}"}
    return make_config(raw, overrides, source=str(source))


def posterior_config(potential: Potential, kind: str, overrides: Iterable[str]) -> Config:
    """The configuration the potential was trained with, but for its posterior."""
    if kind in POSTERIORS and not POSTERIORS.find(kind).fits():
        raise unfitted(kind)
    raw = dict(potential.config)
    section = raw.get("posterior", {})
    raw["posterior"] = {**(section if isinstance(section, dict) else {}), "kind": kind}
    return make_config(raw, overrides, source="configuration of the potential")


def members_of(config: Config, *, members: int | None = None, resume: bool = False) -> int | None:
    """How many members a run has; None: it is the training of one network."""
    if members is not None:
        return members
    recorded = recorded_members(Path(config.output)) if resume else None
    if recorded is not None:
        return recorded
    method = posterior_method(config)
    return int(vars(method)["members"]) if method.trains == "several" else None


def train_any(
    config: Config,
    *,
    members: int | None = None,
    initial: Path | None = None,
    how: SideBySide | None = None,
    resume: bool | None = None,
    overwrite: bool = False,
    callbacks: Callbacks | None = None,
) -> Potential | None:
    """Train one network or several; None where `stop` ended it, to be resumed.

    `resume` None continues what the folder holds, if it holds a run. `initial` is the file of a
    potential that is trained further.
    """
    how, folder = how or SideBySide(), Path(config.output)
    begun = any((folder / name).is_file() for name in (ENSEMBLE, LAST))
    resume, overwrite = (begun if resume is None else resume), overwrite or resume is None
    count = members_of(config, members=members, resume=resume)
    if count is not None:
        several = train_members(
            config,
            members=count,
            how=how,
            initial=initial,
            resume=resume,
            overwrite=overwrite and not resume,
        )
        return several.potential
    single = run.train(
        config,
        initial=None if initial is None else Potential.load(initial),
        resume=resume,
        overwrite=overwrite and not resume,
        callbacks=callbacks or Callbacks(stop=how.stop),
    )
    return None if single.fit.reason == "interrupted" else single.potential
